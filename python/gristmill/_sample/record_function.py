"""`RecordFunction`: a Python function from the parts of a record to messages or texts, and images."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gristmill._core as _core
from gristmill._sample.file_stores import PRIMARY, StoredFile, Stores
from gristmill._shards.energon_files import alternatives
from gristmill._shards.energon_folder import EnergonFolder
from gristmill._shards.stores import StorageOptions
from gristmill._util import checks
from gristmill.errors import ArgumentError, ArgumentTypeError

Cook = Callable[..., "Mapping[str, Any] | None"]
# The names of the sample's key, and of the extensions of its images, which a function is given beside the parts.
KEY, IMAGES = "__key__", "__images__"
# Keys under which results have images by mistake.
_OTHER_MEDIA = ("image", "image_url", "image_urls", "video", "videos", "video_url", "video_urls", "audio", "audios")


@dataclass(frozen=True)
class RecordFunction:
    """A function that makes messages or texts of the parts of a record, for folders and tars whose parts are neither.

    Worker threads call it for each record, before anything is packed. It is called with a dict:

    - the parts of `fields` that the record has, by their names: JSON as values, text as `str`, and of a member that is
      an image or other data a dict of its `bytes` (their number), and of an image `width` and `height`;
    - `"__key__"`, the key of the sample, of records that are no tars their number in the shard, and `"__images__"`, the
      extensions of its images in their natural order.

    It returns a dict, which is read as a record by the `text` of `ImageText`, or None, which leaves the record out and
    counts it as filtered. `"images"` in the dict lists the images of the sample in the order of their placeholders,
    by their extensions, their names or their numbers in `"__images__"`; without it they are all in that order.

    With `aux`, it is also called with stores of files, as keyword arguments by their names: `images.get("a/b.jpg")` is
    the value of a JSON file, the string of a text, or else a file that `read()` reads, and that `"images"` of the
    result may list. Records with keys have no further images then, unless `fields=` of `ImageText` names them. A file
    that is not there raises `FileNotFoundError`, or `KeyError` where it is no member of tars. A function with a
    parameter `primary` has the tars of its own `EnergonFolder` as a store of this name, in which `primary.get(".jpg")`
    is a part of the sample. The part `json` of an `EnergonFolder` that is JSONL is the record.

    It holds the GIL, so one record is made at a time. The stream stays the same on any number of threads and hosts, and
    after any restart, if the result depends on the argument alone. The `name` and `version` define the stream: change
    the version when results change. An exception, and a result that JSON cannot hold, make a bad record, whose message
    has its shard, record and byte.

    Args:
      cook: the function.
      fields: the parts that it is given: a list of extensions such as `["json", "txt"]`, or parts by name, in which
        commas are alternatives and brackets lead into JSON: `{"question": "txt", "answer": "json[answers][0]"}`.
      name: what the fingerprint has of the function; None: its module and name.
      version: a further part of the fingerprint.
      aux: stores of files by the names of the function's arguments, each as in Energon's metadatasets: a folder that
        `energon prepare` made, whose `.nv-meta/index.sqlite` names the members of its tars, or `filesystem://` and a
        folder; in a store its URL, or `filesystem+s3://bucket/folder`. A metadataset adds those of its own. The names
        are part of the fingerprint, and the folders are not, so files may move.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    cook: Cook
    fields: "Mapping[str, str] | Sequence[str]"
    name: str | None = None
    version: "str | int | None" = None
    aux: "Mapping[str, Any] | None" = None

    def __post_init__(self) -> None:
        if not callable(self.cook):
            raise checks.wrong_type("cook", self.cook, "a function")
        fields = self.fields
        if not isinstance(fields, Mapping):
            expected = "a list of parts, or a dict of them by name"
            if isinstance(fields, str):
                raise checks.wrong_type("fields", fields, expected)
            fields = {part: part for part in checks.items("fields", fields, expected)}
        if not fields:
            raise ArgumentError("fields: expected the parts that the function is given, found none")
        for name, part in fields.items():
            checks.text("fields", name)
            alternatives(checks.text(f"fields[{name!r}]", part))
            if name in (KEY, IMAGES):
                raise ArgumentError(
                    f"fields: the name {name!r} is that of what is given beside the parts; take another"
                )
        object.__setattr__(self, "fields", dict(fields))
        object.__setattr__(self, "name", _name(self.cook) if self.name is None else checks.text("name", self.name))
        if self.version is not None and not isinstance(self.version, (str, int)):
            raise checks.wrong_type("version", self.version, "a text, a number or None")
        if self.aux is not None:
            if not isinstance(self.aux, Mapping):
                raise checks.wrong_type("aux", self.aux, "a dict of folders by name, or None")
            object.__setattr__(self, "aux", {checks.text("aux", name): given for name, given in self.aux.items()})

    def __hash__(self) -> int:
        return hash(self.described)

    @property
    def described(self) -> str:
        """The part of it that defines the stream."""
        aux = f", aux={sorted(self.aux)!r}" if self.aux else ""
        return f"RecordFunction(name={self.name!r}, fields={self.fields!r}, version={self.version!r}{aux})"


class FunctionPlan:
    """A record function with its stores. The core reads it in `rust/python/record_function.rs`.

    Attributes:
      given: the parts that it is given: of each the first of some, with keys into its JSON.
      reads_files: whether it has stores.
    """

    def __init__(self, function: RecordFunction, folder: EnergonFolder | None, options: StorageOptions) -> None:
        """Finds the stores.

        Raises:
          ArgumentError: they are not those that the function takes, or one is not what it is named as.
          GristmillError: a store on the network cannot be reached.
        """
        aux = dict(function.aux or {})
        if PRIMARY in _needed(function.cook) and PRIMARY not in aux:
            if folder is None or folder.are_lines:
                raise ArgumentError(
                    f"cook={function.name}: its {PRIMARY} is the store of an EnergonFolder of tars, and its records "
                    f"are of none; name a folder in aux={{{PRIMARY!r}: ...}}"
                )
            aux[PRIMARY] = folder.path
        _check_takes(function, aux)
        self.function = function
        fields: Mapping[str, str] = function.fields  # type: ignore[assignment]
        # A record of JSONL is the part `json` of Energon's samples, and its only one.
        inside = 1 if folder is not None and folder.are_lines else 0
        self.given = [(name, _inside(alternatives(part), inside)) for name, part in fields.items()]
        self._stores = Stores(aux, options)
        self.reads_files = len(self._stores) > 0

    def call(self, record: str, key: str, images: list[str], files: "_core.Files | None") -> str | None:
        """The record that is made of another one, both as JSON."""
        stores = {} if files is None else self._stores.open(files, key)
        given = json.loads(record)
        made = self.function.cook({**given, KEY: key, IMAGES: images}, **stores)
        if made is None:
            return None
        if not isinstance(made, Mapping):
            name = self.function.name
            raise ArgumentTypeError(f"cook={name}: expected a dict or None, found {type(made).__name__}")
        for key in _OTHER_MEDIA:  # parts of the record may be passed on
            if made.get(key) and made[key] != given.get(key):
                raise ValueError(f'expected the images of the result under "images", found some under {key!r}')
        return json.dumps(made, ensure_ascii=False, allow_nan=False, default=_described)


def _inside(members: list[list[str]], steps: int) -> list[list[str]]:
    return [path[steps:] if path[0] == "json" else path for path in members]


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, StoredFile):
        return value.described
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _needed(cook: Cook) -> set[str]:
    """The names of the arguments that a function must be given, if that is known."""
    try:
        parameters = inspect.signature(cook).parameters
    except (TypeError, ValueError):
        return set()
    return {name for name, parameter in parameters.items() if parameter.default is parameter.empty}


def _check_takes(function: RecordFunction, aux: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function.cook).bind({}, **aux)
    except ValueError:
        return  # A function of C may not say what it takes.
    except TypeError as error:
        raise ArgumentError(
            f"cook={function.name}: expected a function of a record and of the stores {sorted(aux)} by their names, "
            f"found: {error}; name its stores in aux="
        ) from None


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}.{name}"
