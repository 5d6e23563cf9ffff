"""Makes a source distribution that holds all crates, from one that does not: vendored_sdist.py SDIST OUTPUT.

Cargo wants to see every crate of Cargo.lock. Of those that no supported system compiles for the package (other systems'
interfaces, what tests need) only the manifest is kept: they are most of the size.
"""

import gzip
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

SYSTEMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin")
VENDOR = "vendor"
_CONFIG = f"""\
[source.crates-io]
replace-with = "vendored"

[source.vendored]
directory = "{VENDOR}"
"""


def main() -> None:
    """Unpacks, adds the crates and packs again."""
    sdist, output = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (root,) = Path(folder).iterdir()
        _cargo(root, "vendor", "--locked", "--quiet", "--versioned-dirs", VENDOR)
        compiled = _compiled(root)
        for crate in (root / VENDOR).iterdir():
            if crate.name not in compiled:
                _keep_manifest(crate)
        (root / ".cargo").mkdir()
        (root / ".cargo" / "config.toml").write_text(_CONFIG)
        _pack(root, output)
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB, {len(compiled)} crates")


def _compiled(root: Path) -> set[str]:
    """Names and versions of the crates that are compiled for the package, as their folders are called."""
    features = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["maturin"]["features"]
    options = ["--locked", "--edges", "normal,build", "--prefix", "none", "--features", ",".join(features)]
    systems = [option for system in SYSTEMS for option in ("--target", system)]
    lines = _cargo(root, "tree", *options, *systems).splitlines()
    # "name v1.2.3 (proc-macro)"; those of the workspace have a path behind them.
    words = [line.split() for line in lines if line and str(root) not in line]
    return {f"{name}-{version.removeprefix('v')}" for name, version, *_ in words}


def _keep_manifest(crate: Path) -> None:
    checksum = crate / ".cargo-checksum.json"
    package = json.loads(checksum.read_text())["package"]
    for path in crate.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "Cargo.toml":
            path.unlink()
    (crate / "src").mkdir()
    (crate / "src" / "lib.rs").touch()
    checksum.write_text(json.dumps({"files": {}, "package": package}))


def _pack(root: Path, output: Path) -> None:
    """The same files give the same bytes."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with (
        output.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as inflated,
        tarfile.open(fileobj=inflated, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        archive.add(root, root.name, filter=plain)


def _cargo(root: Path, *arguments: str) -> str:
    return subprocess.run(["cargo", *arguments], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
