"""Stores of files that a record function reads by name, as the `aux` of Energon's metadatasets names them.

```text
filesystem:///data/images   the files of a folder   "a/b.jpg" is /data/images/a/b.jpg
/data/prepared              members of its tars     "a/b.jpg" is the member a/b.jpg, by .nv-meta/index.sqlite
```
"""

import functools
import json
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import gristmill._core as _core
from gristmill._shards import energon_files
from gristmill._shards.address import Address
from gristmill._shards.energon_files import META
from gristmill._shards.energon_folder import divided
from gristmill._shards.place import Place
from gristmill._shards.stores import StorageOptions, is_remote, sizes
from gristmill._util import checks
from gristmill.errors import ArgumentError

# The store of the folder itself, in which a name that begins with a dot is one of the sample's parts.
PRIMARY = "primary"
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<path>.*)", re.IGNORECASE)
_INDEX = "index.sqlite"
_OF_MEDIA = "run `energon prepare --media-metadata-by-extension` on it"
_AV_FIELDS = (
    "video_duration", "video_num_frames", "video_fps", "video_width", "video_height", "audio_duration",
    "audio_channels", "audio_sample_rate", "audio_num_samples",
)  # fmt: skip


@dataclass(frozen=True)
class Location:
    """Where a store is.

    Attributes:
      place: the folder.
      is_prepared: whether its files are the members of tars that Energon has prepared.
    """

    place: Place
    is_prepared: bool

    @property
    def text(self) -> str:
        """Its name as Energon writes it."""
        path = str(self.place)
        if self.is_prepared:
            return path
        return f"filesystem+{path}" if self.place.is_remote else f"filesystem://{path}"


def locate(name: str, given: Any, folder: Place) -> Location:
    """Finds a store that is named as in Energon's metadatasets. Relative paths start from the folder.

    Raises:
      ArgumentError: it cannot be one.
    """
    is_prepared, path = True, given
    if isinstance(given, Mapping) and len(given) == 1:
        ((kind, path),) = given.items()
        is_prepared = kind == "path"
        if kind not in ("path", "fs_path"):
            raise ArgumentError(f"aux: {name}: expected path or fs_path, found {kind!r}")
    elif isinstance(given, str) and (url := _URL.fullmatch(given)):
        kind, _, scheme = url["scheme"].lower().partition("+")
        if kind == "filesystem":
            is_prepared, path = False, f"{scheme}://{url['path']}" if scheme else url["path"]
    if not isinstance(path, str) or not path:
        raise ArgumentError(f"aux: {name}: expected a folder, or filesystem:// with one, found {given!r}")
    path = checks.without_scheme(path)
    if "://" in path and not is_remote(path):
        raise ArgumentError(
            f"aux: {name}: expected a path, or a URL of {', '.join(_core.STORE_SCHEMES)}, found {given!r}: name the "
            "store by its own URL"
        )
    if is_prepared and path.endswith((".yaml", ".yml", ".jsonl")):
        raise ArgumentError(
            f"aux: {name}: expected a folder `energon prepare` made, or filesystem:// and a folder, found {given!r}"
        )
    return Location(folder / path, is_prepared)


@dataclass(frozen=True)
class StoredFile:
    """A file of a store, of which nothing is read before `read`. The `images` of a record function's result list it.

    Attributes:
      name: its name in the store.
    """

    name: str
    _path: str = field(repr=False)
    _size: int = field(repr=False)
    _e_tag: "str | None" = field(repr=False)
    _offset: int = field(repr=False)
    _bytes: int = field(repr=False)
    _files: "_core.Files" = field(repr=False, compare=False)

    def read(self) -> bytes:
        """Its bytes.

        Raises:
          OSError: it is not there any longer, or has changed.
          ValueError: it is longer than `max_document_bytes`.
        """
        if self._bytes > self._files.longest:
            raise ValueError(
                f"{self.name!r} has {self._bytes} bytes, expected at most {self._files.longest}: raise "
                "max_document_bytes= to read it"
            )
        found = self._files.read(self._path, self._size, self._e_tag, self._offset, self._bytes)
        if found is None:
            raise OSError(f"{self._path}: expected {self._size} bytes as before, found another file, or none")
        return found

    @property
    def described(self) -> dict[str, Any]:
        """The file as the core reads it, in `rust/prepare/record_function.rs`."""
        found = {"name": self.name, "path": self._path, "size": self._size, "offset": self._offset}
        return {**found, "bytes": self._bytes, **({} if self._e_tag is None else {"e_tag": self._e_tag})}


class _Index:
    """The index that Energon has made of a folder."""

    def __init__(self, place: Place, of: str, advice: str, needed: Collection[str] = ()) -> None:
        """Opens it; of a folder in a store it is fetched.

        Args:
          place: the folder.
          of: the argument that names it, for errors.
          advice: what to do where there is none.
          needed: the tables that it must have.

        Raises:
          ArgumentError: there is none, or it lacks tables.
          GristmillError: the store cannot be reached.
        """
        import sqlite3

        index = place / META / _INDEX
        missing = ArgumentError(f"{of}expected {index}, found none: {advice}")
        if place.is_remote:
            (size,) = sizes([str(index)], place.address.options).values()
            if size is None:
                raise missing
            copy = tempfile.mkdtemp(prefix="gristmill-index-")
            weakref.finalize(self, shutil.rmtree, copy, ignore_errors=True)
            file = Path(copy) / _INDEX
            place.address.reach().download(str(index), size, str(file))
        else:
            file = Path(str(index)).absolute()
            if not file.is_file():
                raise missing
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                f"file:{quote(str(file))}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            weakref.finalize(self, self._database.close)
            self.tables = {name for (name,) in self._database.execute("SELECT name FROM sqlite_master")}
        except sqlite3.Error as error:
            raise ArgumentError(f"{of}expected {index}, found {error}: prepare the folder again") from error
        if lacking := {*needed} - self.tables:
            raise ArgumentError(f"{of}expected {index}, found it without {min(lacking)}: prepare the folder again")

    def row(self, query: str, *values: str) -> "tuple[Any, ...] | None":
        """The first row that a query finds."""
        with self._lock:
            found: tuple[Any, ...] | None = self._database.execute(query, values).fetchone()
        return found


class _Folder:
    """The files below a folder."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @functools.cached_property
    def index(self) -> _Index:
        """The index of the media in it, which only `get_media_metadata` needs."""
        return _Index(self.place, "", _OF_MEDIA)

    def find(self, name: str, files: "_core.Files") -> StoredFile | None:
        """The file of a name."""
        path = str(self.place / name)
        found = files.find(path)
        if found is None:
            return None
        size, e_tag = found
        return StoredFile(name, path, size, e_tag, 0, size, files)


class _Prepared:
    """The members of the tars of a folder, by the index that Energon has made."""

    def __init__(self, name: str, place: Place) -> None:
        self.place = place
        self._tars = [*energon_files.read_counts(place / META)]
        self._sizes: dict[str, tuple[int, str | None]] = {}
        advice = "prepare the folder, or name it as filesystem://"
        self.index = _Index(place, f"aux: {name}: ", advice, ("samples", "sample_parts"))

    def find(self, name: str, files: "_core.Files") -> StoredFile | None:
        """The member of a name."""
        if (both := divided(name)) is None:
            return None
        row = self.index.row(
            "SELECT tar_file_id, content_byte_offset, content_byte_size FROM samples JOIN sample_parts "
            "USING (tar_file_id, sample_index) WHERE sample_key = ? AND part_name = ?",
            *both,
        )
        if row is None:
            return None
        path = str(self.place / self._tars[row[0]])
        if path not in self._sizes:
            found = files.find(path)
            if found is None:
                raise FileNotFoundError(f"{path}: expected the tar that .info.json lists, found none")
            self._sizes[path] = found
        size, e_tag = self._sizes[path]
        _, offset, length = row
        return StoredFile(name, path, size, e_tag, offset, length, files)


class FileStore:
    """Files that a record function reads by name; of Energon's class of this name its `get` and `[name]`."""

    def __init__(self, name: str, found: "_Folder | _Prepared", files: "_core.Files", key: str) -> None:
        self._name = name
        self._found = found
        self._files = files
        self._key = key

    def get(self, name: str, sample: Any = None) -> Any:  # noqa: ARG002 - as Energon's
        """The file of a name: of `.json` its value, of `.txt` and `.text` a string, else a `StoredFile`.

        Args:
          name: its path in the folder, or the name of a member of the tars. In the store `primary`, a name that begins
            with a dot is that of a part of this sample: `.jpg`.
          sample: has no effect. Energon notes there what was read.

        Raises:
          FileNotFoundError: the folder has no such file.
          KeyError: the tars have no such member.
          ValueError: it is not JSON or UTF-8, or is longer than `max_document_bytes`.
        """
        name = self._full(name)
        found = self._found.find(name, self._files)
        if found is None:
            kind = KeyError if isinstance(self._found, _Prepared) else FileNotFoundError
            raise kind(f"aux {self._name!r}: expected the file {name!r} in {self._found.place}, found none")
        extension = name.rsplit(".", 1)[-1].lower()
        if extension in ("json", "jsn"):
            return json.loads(found.read())
        return found.read().decode() if extension in ("txt", "text") else found

    def __getitem__(self, name: str) -> tuple[Any, dict[str, Any]]:
        """The file of a name as `get` has it, and where it was."""
        return self.get(name), {"dataset_path": self.get_path(), "file_names": (name,)}

    def get_media_metadata(self, name: str) -> SimpleNamespace:
        """The description of an image, a video or a sound that `energon prepare --media-metadata-by-...` has noted.

        Returns:
          Images have `width`, `height`, `format` and `mode`; videos and sounds `video_duration`, `video_num_frames`,
          `video_fps`, `video_width`, `video_height`, `audio_duration`, `audio_channels`, `audio_sample_rate` and
          `audio_num_samples`, of which those that are not known are None.

        Raises:
          ArgumentError: the folder has no descriptions.
          KeyError: it has none of this file.
        """
        name, index = self._full(name), self._found.index
        if "media_metadata" not in index.tables:
            raise ArgumentError(f"aux {self._name!r}: expected media in the index of {self.get_path()}: {_OF_MEDIA}")
        row = index.row("SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?", name)
        if row is None:
            raise KeyError(f"aux {self._name!r}: expected {name!r} among the media of {self.get_path()}, found none")
        kind, described = row
        return SimpleNamespace(**{**(dict.fromkeys(_AV_FIELDS) if kind == "av" else {}), **json.loads(described)})

    def _full(self, name: str) -> str:
        """The name of a file, of which that of a part of this sample has the extension alone."""
        if not isinstance(name, str):
            raise TypeError(f"aux {self._name!r}: expected the name of a file, found {type(name).__name__}")
        return f"{self._key}{name}" if self._name == PRIMARY and name.startswith(".") else name

    def get_path(self) -> str:
        """The folder."""
        return str(self._found.place)


class Stores:
    """The stores of a record function in a run, by their names."""

    def __init__(self, given: Mapping[str, Any], options: StorageOptions) -> None:
        """Finds them.

        Raises:
          ArgumentError: one is not what it is named as.
          GristmillError: a store on the network cannot be reached.
        """
        here = Place(Address((".",), options))
        self._found: dict[str, _Folder | _Prepared] = {}
        for name, one in given.items():
            at = locate(name, one, here)
            self._found[name] = _Prepared(name, at.place) if at.is_prepared else _Folder(at.place)

    def __len__(self) -> int:
        return len(self._found)

    def open(self, files: "_core.Files", key: str) -> dict[str, FileStore]:
        """The stores for the function's call with a record of a key."""
        return {name: FileStore(name, found, files, key) for name, found in self._found.items()}
