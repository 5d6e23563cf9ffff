"""The manifest: the sorted list of shards with their sizes."""

import errno
import glob
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

import gristmill as gm
from command_line import fails, run_json
from gristmill._shards import listing
from helpers import PATIENCE, assert_same_batches


class BytesPath:
    """A path of bytes, which `os.PathLike` allows and gristmill refuses."""

    def __fspath__(self):
        return b"a*"

    def __repr__(self):
        return "BytesPath()"


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(["b/x.jsonl", "a/x.jsonl", "a/Z.jsonl", "a/é.jsonl", "a/deep/y.jsonl"]):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
    return tmp_path / "data"


def names(manifest, folder):
    return [path.removeprefix(f"{folder}/") for path in manifest.paths]


def test_urls_of_files_are_paths(tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    path = tmp_path / "a b" / "x.jsonl"
    path.write_text('{"text": "a"}\n')
    for url in (f"file://{path}", f"file://localhost{path}", path.as_uri(), f"file://{tmp_path}/a%20b/*.jsonl"):
        assert gm.Manifest.find(url) == gm.Manifest.find(str(path))
        assert gm.Manifest.find([url]).paths == (str(path),)
    saved = tmp_path / "all.manifest.json"
    gm.Manifest.find(f"file://{path}").save(saved.as_uri())
    assert gm.Manifest.find(f"file://{saved}").paths == (str(path),)
    for url in ("file://host/x.jsonl", "file://x"):
        with pytest.raises(gm.ArgumentError, match=f"{url!r}: expected file:///path, with nothing between"):
            gm.Manifest.find(url)


def test_paths_of_all_arguments_may_be_urls(tmp_path, tokenizer_file, capsys):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    root = tmp_path.as_uri()
    dataset = gm.PackedDataset(
        f"{root}/x.jsonl",
        tokenizer=tokenizer_file.as_uri(),
        sequence_length=16,
        batch_size=1,
        eos=False,
        on_error="quarantine",
        max_error_rate=1.0,
        quarantine_file=f"{root}/quarantine.jsonl",
    )
    gm.pack(dataset, f"{root}/packed")
    assert len(gm.PackedRows(f"{root}/packed")) == 1
    assert (tmp_path / "quarantine.jsonl").read_text().count("\n") == 1
    assert run_json(capsys, "inspect", f"{root}/x.jsonl")["format"] == "jsonl"
    assert fails(capsys, "inspect", "file://host/x.jsonl", code=2).startswith(
        "error: 'file://host/x.jsonl': expected file:///path"
    )


def test_manifest_is_sorted_bytewise_with_sizes(folder):
    manifest = gm.Manifest.find(f"{folder}/**/*.jsonl")
    assert names(manifest, folder) == ["a/Z.jsonl", "a/deep/y.jsonl", "a/x.jsonl", "a/é.jsonl", "b/x.jsonl"]
    assert manifest.sizes == (2, 4, 1, 3, 0)
    assert len(manifest) == 5
    assert next(iter(manifest)) == (manifest.paths[0], 2)


def test_relative_paths_keep_their_working_folder(tmp_path, encoder, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "s.jsonl").write_text(json.dumps({"text": name * 50}) + "\n")
    monkeypatch.chdir(tmp_path / "a")
    dataset = gm.PackedDataset("s.jsonl", tokenizer=encoder, sequence_length=16)
    expected, fingerprint = list(dataset), dataset.fingerprint
    monkeypatch.chdir(tmp_path / "b")
    for again in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert_same_batches(again, expected)
        assert (again.fingerprint, again.manifest.paths) == (fingerprint, ("s.jsonl",))
    (tmp_path / "a" / "s.jsonl").unlink()
    with pytest.raises(gm.ShardError, match=rf"s\.jsonl: .*, found none at {tmp_path}/a/s\.jsonl"):
        next(iter(dataset))


def test_same_names_in_two_folders_are_two_manifests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = gm.Manifest(("s.jsonl",), (1,))
    assert here == gm.Manifest(("s.jsonl",), (1,))
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert here != gm.Manifest(("s.jsonl",), (1,))


def test_manifest_takes_any_iterables():
    expected = gm.Manifest(("a", "b"), (1, 2))
    for paths, sizes in ((["b", "a"], [2, 1]), (iter("ba"), iter([2, 1])), ({"a": 0, "b": 0}, range(1, 3))):
        found = gm.Manifest(paths, sizes)
        assert (found, found.paths, found.sizes) == (expected, ("a", "b"), (1, 2))
    for paths, sizes, said in (
        ("a", (1,), "paths='a': expected a list of paths, got str; for a glob or a path: Manifest.find"),
        (b"a", (1,), "paths=b'a': expected a list of paths, got bytes"),
        (5, (1,), "paths=5: expected a list of paths, got int"),
        (("a",), None, "sizes=None: expected a list of sizes in bytes, got NoneType"),
    ):
        with pytest.raises(gm.ArgumentTypeError, match=re.escape(said)):
            gm.Manifest(paths, sizes)


@pytest.mark.parametrize("path", ["a\0b", "a\0*"])
def test_names_with_nul_are_refused(path):
    said = re.escape(f"shards={path!r}: expected paths and globs without NUL")
    for make in (lambda: gm.Manifest((path,), (1,)), lambda: gm.Manifest.find([path])):
        with pytest.raises(gm.ArgumentError, match=said):
            make()


def test_relative_paths_need_a_working_folder(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a").rmdir()
    with pytest.raises(gm.MissingShardError, match=r"the working folder, which .* was removed"):
        gm.Manifest(("s.jsonl",), (1,))
    with pytest.raises(gm.MissingShardError, match=r"no file matches .* \(working folder: removed\)"):
        gm.Manifest.find("*.jsonl")


def test_overlapping_globs_and_paths_list_each_shard_once(folder):
    manifest = gm.Manifest.find([folder / "b/x.jsonl", f"{folder}/a/*.jsonl", str(folder / "a/x.jsonl")])
    assert names(manifest, folder) == ["a/Z.jsonl", "a/x.jsonl", "a/é.jsonl", "b/x.jsonl"]
    assert gm.Manifest.find(manifest) is manifest


def test_shard_spelled_in_several_ways_is_listed_once(folder, monkeypatch):
    monkeypatch.chdir(folder / "a")
    assert gm.Manifest.find(["x.jsonl", "./x.jsonl", folder / "a/*.jsonl"]).paths == (
        str(folder / "a/Z.jsonl"),
        "x.jsonl",
        str(folder / "a/é.jsonl"),
    )
    (folder / "a/link.jsonl").symlink_to("x.jsonl")
    assert gm.Manifest.find(["./x.jsonl", "link.jsonl", "deep/../x.jsonl"]).paths == ("link.jsonl", "./x.jsonl")
    with pytest.raises(gm.ArgumentError, match=r"x\.jsonl' is listed twice"):
        gm.Manifest(("x.jsonl", "./x.jsonl"), (1, 1))


def test_existing_name_with_glob_characters_is_a_path(tmp_path):
    (tmp_path / "part[1].jsonl").touch()
    assert gm.Manifest.find(tmp_path / "part[1].jsonl").paths == (str(tmp_path / "part[1].jsonl"),)


def test_fingerprint_covers_names_and_sizes_not_the_folder(folder, tmp_path):
    before = gm.Manifest.find(f"{folder}/**/*.jsonl").fingerprint
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    assert gm.Manifest.find(f"{moved}/**/*.jsonl").fingerprint == before
    (moved / "b/x.jsonl").write_bytes(b"grown")
    assert gm.Manifest.find(f"{moved}/**/*.jsonl").fingerprint != before
    assert gm.Manifest.find(f"{moved}/a/*.jsonl").fingerprint != before


def test_manifest_pickles_and_compares(folder):
    manifest = gm.Manifest.find(f"{folder}/a/*.jsonl")
    assert pickle.loads(pickle.dumps(manifest)) == manifest


@pytest.mark.parametrize(
    ("name", "glob_inside"),
    [("a.parquet", "*.parquet"), ("a.jsonl.zst", "*.jsonl.zst"), ("a.gz", "*.gz"), ("notes.txt", "*.json.gz")],
)
def test_error_for_a_folder_shows_a_glob_for_its_files(tmp_path, name, glob_inside):
    (tmp_path / name).touch()
    with pytest.raises(gm.MissingShardError, match=re.escape(f"for example {str(tmp_path / glob_inside)!r}")):
        gm.Manifest.find(tmp_path)


def test_error_for_brackets_in_a_glob_names_glob_escape(tmp_path):
    (tmp_path / "[1]").mkdir()
    (tmp_path / "[1]" / "a.jsonl").write_text("{}")
    with pytest.raises(gm.MissingShardError, match=r"\[1\]' exists: glob\.escape escapes its name$"):
        gm.Manifest.find(str(tmp_path / "[1]" / "*.jsonl"))
    assert len(gm.Manifest.find(glob.escape(str(tmp_path / "[1]")) + "/*.jsonl").paths) == 1


@pytest.mark.parametrize(
    ("shards", "error", "message"),
    [
        ([], gm.ArgumentError, r"shards=\[\]"),
        (5, gm.ArgumentTypeError, "shards=5: expected a glob"),
        (io.StringIO("a.gz\n"), gm.ArgumentTypeError, "shards=<.*>: expected a glob, .*, got StringIO"),
        ({"train": "a.gz"}, gm.ArgumentTypeError, "shards={'train': 'a.gz'}: expected a glob, .*, got dict"),
        (pa.table({"text": ["a"]}), gm.ArgumentTypeError, "shards=pyarrow.Table .*: expected a glob, .*, got Table$"),
        ([5], gm.ArgumentTypeError, "shards=5: expected paths and globs"),
        ("/nowhere/*.gz", gm.MissingShardError, r"no file matches the glob '/nowhere/\*\.gz' \(.*\)$"),
        ("/nowhere/a.gz", gm.MissingShardError, "no such file: '/nowhere/a.gz'"),
        (
            ["/nowhere/a.gz", "/nowhere/b.gz", __file__, "/nowhere/*"],
            gm.MissingShardError,
            r"no such file: '/nowhere/a.gz'.*; and 2 more of the 4 patterns$",
        ),
        ("/", gm.MissingShardError, "is a folder: name its shards"),
        (
            BytesPath(),
            gm.ArgumentTypeError,
            r"shards=BytesPath\(\): expected paths and globs as strings",
        ),
        (b"/nowhere", gm.ArgumentTypeError, r"shards=b'/nowhere': expected paths and globs, got bytes"),
        ("/dev/null", gm.MissingShardError, "'/dev/null' is a pipe, a socket or a device: a shard is a regular file"),
        ("hdfs://bucket/*.gz", gm.MissingShardError, "a shard is a local file, or an object of gs://, s3://"),
        ("~/nowhere.gz", gm.MissingShardError, "~ is not expanded"),
        ("/nowhere/{a,b}.gz", gm.MissingShardError, "no such file: .*; braces are no part of a glob: list the names"),
        ("/nowhere/{000..123}/*.gz", gm.MissingShardError, "no file matches the glob .*; braces are no part of a glob"),
    ],
)
def test_values_that_name_no_shard_are_refused(shards, error, message):
    with pytest.raises(error, match=message):
        gm.Manifest.find(shards)


def test_dangling_link_that_a_glob_matches_is_an_error(folder):
    (folder / "a/gone.jsonl").symlink_to(folder / "nowhere")
    with pytest.raises(gm.MissingShardError, match=r"a/gone\.jsonl', which matches .* is a dangling link"):
        gm.Manifest.find(f"{folder}/a/*.jsonl")
    with pytest.raises(gm.MissingShardError, match="is a dangling link"):
        gm.Manifest.find(folder / "a/gone.jsonl")
    (folder / "a/gone.jsonl").unlink()
    (folder / "a/folder.jsonl").mkdir()
    assert len(gm.Manifest.find(f"{folder}/a/*.jsonl")) == 3


def test_non_utf_8_names_and_wrong_sizes_are_refused(folder):
    (folder / os.fsdecode(b"\xff.jsonl")).touch()
    with pytest.raises(gm.ArgumentError, match=r"the name of the shard '.*udcff\.jsonl' is not UTF-8: rename the file"):
        gm.Manifest.find(f"{folder}/*.jsonl")
    with pytest.raises(gm.ArgumentError, match="the size of 'a'=-1: expected"):
        gm.Manifest(("a",), (-1,))
    with pytest.raises(gm.ArgumentTypeError, match="paths as strings"):
        gm.Manifest((5,), (1,))


def test_linked_folder_does_not_list_shards_twice(folder):
    found = gm.Manifest.find(f"{folder}/**/*.jsonl").paths
    (folder / "a/latest").symlink_to(".")
    (folder / "c").symlink_to("b")
    assert gm.Manifest.find(f"{folder}/**/*.jsonl").paths == found
    assert names(gm.Manifest.find([f"{folder}/c/*.jsonl", f"{folder}/b/*.jsonl"]), folder) == ["c/x.jsonl"]


def test_shard_listed_twice_is_an_error():
    with pytest.raises(gm.ArgumentError, match="'a' is listed twice"):
        gm.Manifest(("a", "b", "a"), (1, 2, 1))


PATTERNS = [
    "**/*.jsonl", "*/*.jsonl", "**", "a/**", "a/**/x.jsonl", "*/deep/*", "[ab]/x.jsonl", "*/.hidden", "*/.*",
    "**/.hidden", "a/*/", "no/**", "no/**/x.jsonl", "no*/x.jsonl", "a/x.jsonl/*", "**/**/y.jsonl", "?/?.jsonl",
    "c/**/x.jsonl", "a\0/*", ".*/x.jsonl", "a/../*/x.jsonl", "*", "loop/*", "*/nothing",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("absolute", [True, False])
def test_globs_match_as_pythons_do(folder, monkeypatch, pattern, absolute):
    (folder / "a/.hidden").touch()
    (folder / ".folder").mkdir()
    (folder / ".folder/x.jsonl").touch()
    (folder / "c").symlink_to("a")
    (folder / "loop").symlink_to("loop")
    (folder / "b/back").symlink_to("..")
    (folder / "nothing").symlink_to("nowhere")
    monkeypatch.chdir(folder)
    pattern = str(folder / pattern) if absolute else pattern

    def shards(paths):
        return {path for path in paths if Path(path).is_file()}

    def files(paths):
        """The files without further names through links to parent folders."""
        return {Path(path).parent.resolve() / Path(path).name for path in paths}

    try:
        expected = shards(glob.glob(pattern, recursive=True))  # noqa: PTH207 - what is compared with
    except ValueError:  # for a NUL
        expected = set()
    found = shards(listing.matches(pattern))
    assert found <= expected
    assert files(found) == files(expected)


def test_links_to_parent_folders_are_not_followed_forever(folder):
    found = gm.Manifest.find(f"{folder}/**/*.jsonl").paths
    for name in ("a/one", "a/two", "b/three"):
        (folder / name).symlink_to("..")
    assert gm.Manifest.find(f"{folder}/**/*.jsonl").paths == found
    assert gm.Manifest.find(f"{folder}/a/one/**/*.jsonl").paths == tuple(
        path.replace(f"{folder}/", f"{folder}/a/one/") for path in found
    )


def test_each_shard_is_statted_once(folder, monkeypatch):
    statted, stat = [], os.stat
    monkeypatch.setattr(os, "stat", lambda path, **options: statted.append(path) or stat(path, **options))
    found = gm.Manifest.find(f"{folder}/**/*.jsonl").paths
    assert sorted(path for path in map(str, statted) if path in found) == list(found)


CLOSED = """
    import os, sys
    import gristmill as gm
    if os.geteuid() == 0:
        os.seteuid(65534)
    for pattern in sys.argv[1:]:
        try:
            print(len(gm.Manifest.find(pattern)))
        except gm.MissingShardError as error:
            print(error)
"""


def test_folder_without_permission_is_an_error():
    # Outside of pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for folder in ("open", "closed", "listed"):
            (top / folder).mkdir()
            (top / folder / "a.gz").touch()
        patterns = ["*/*.gz", "*/a.gz", "**/a.gz", "closed/*", "closed/a.gz", "listed/*.gz", "listed/a.gz", "[o]*/a.gz"]
        try:
            top.chmod(0o755)
            (top / "closed").chmod(0)
            (top / "listed").chmod(0o744)
            code = [sys.executable, "-c", textwrap.dedent(CLOSED), *(str(top / pattern) for pattern in patterns)]
            done = subprocess.run(code, capture_output=True, text=True, timeout=PATIENCE, check=False)
        finally:
            for folder in ("closed", "listed"):
                (top / folder).chmod(0o755)
    said = dict(zip(patterns, done.stdout.splitlines() or pytest.fail(done.stderr), strict=True))
    closed = {
        "*/*.gz": "closed", "*/a.gz": "(closed|listed)/a.gz", "**/a.gz": "(closed|listed/a.gz)", "closed/*": "closed",
        "closed/a.gz": "closed/a.gz", "listed/a.gz": "listed/a.gz",
    }  # fmt: skip
    for pattern, path in closed.items():
        refused = rf"cannot list '{top}/{path}': Permission denied; fix this, or leave the folder out"
        assert re.match(refused, said[pattern]), (pattern, said)
    assert re.search(r"listed/a.gz', which matches .* is not accessible \(Permission denied\): ", said["listed/*.gz"])
    assert said["[o]*/a.gz"] == "1"


@pytest.mark.parametrize("pattern", ["*/x.jsonl", "a/*.jsonl", "**/*.jsonl", "a*/**"])
def test_folder_that_the_disk_cannot_read_is_an_error(folder, monkeypatch, pattern):
    scandir = os.scandir

    def failing(path):
        if str(path).rstrip("/") in (f"{folder}/a", str(folder) if pattern == "*/x.jsonl" else ""):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(gm.MissingShardError, match=r"cannot list '.*data(/a/?)?': Input/output error; "):
        gm.Manifest.find(f"{folder}/{pattern}")


def test_order_does_not_depend_on_spelling_of_paths(folder, monkeypatch):
    expected = gm.Manifest.find(f"{folder}/**/*.jsonl")
    monkeypatch.chdir(folder / "a")
    for shards in (["../b/*.jsonl", "./*.jsonl", "../**/*.jsonl"], ["*.jsonl", f"{folder}/**/*.jsonl"]):
        found = gm.Manifest.find(shards)
        assert [str(Path(path).resolve()) for path in found.paths] == list(expected.paths)
        assert found.fingerprint == expected.fingerprint


def test_error_for_a_name_outside_the_locale_says_so(folder):
    """Under `LC_ALL=C` Python takes file names for ASCII."""
    program = "import gristmill as gm\ngm.Manifest.find('\\u00e9.jsonl')"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert "is not ascii, the encoding of file names in this process: set PYTHONUTF8=1" in done.stderr
