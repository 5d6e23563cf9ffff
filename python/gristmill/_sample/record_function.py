"""`RecordFunction`: a Python function from the parts of a record to messages or texts, and images."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill._shards.energon_files import alternatives
from gristmill._util import checks
from gristmill.errors import ArgumentError, ArgumentTypeError

Cook = Callable[[dict[str, Any]], "Mapping[str, Any] | None"]
# The names of the sample's key, and of the extensions of its images, which a function is given beside the parts.
KEY, IMAGES = "__key__", "__images__"


@dataclass(frozen=True)
class RecordFunction:
    """A function that makes messages or texts of the parts of a record, for folders and tars whose parts are neither.

    Worker threads call it for each record, before anything is packed. It is called with a dict:

    - the parts of `fields` that the record has, by their names: JSON as values, text as `str`, and of a member that is
      an image or other data a dict of its `bytes` (their number), and of an image `width` and `height`;
    - `"__key__"`, the key of the sample, and `"__images__"`, the extensions of its images in their natural order.

    It returns a dict, which is read as a record by the `text` of `ImageText`, or None, which leaves the record out and
    counts it as filtered. `"images"` in the dict lists the images of the sample in the order of their placeholders,
    by their extensions, their names or their numbers in `"__images__"`; without it they are all in that order.

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

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    cook: Cook
    fields: "Mapping[str, str] | Sequence[str]"
    name: str | None = None
    version: "str | int | None" = None

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

    def __hash__(self) -> int:
        return hash(self.described)

    @property
    def described(self) -> str:
        """The part of it that defines the stream."""
        return f"RecordFunction(name={self.name!r}, fields={self.fields!r}, version={self.version!r})"

    @property
    def given(self) -> list[tuple[str, list[list[str]]]]:
        """The parts as the core takes them: of each the first of some, with keys into its JSON."""
        fields: Mapping[str, str] = self.fields  # type: ignore[assignment]
        return [(name, alternatives(part)) for name, part in fields.items()]

    def call(self, record: str, key: str, images: list[str]) -> str | None:
        """The record that is made of another one, both as JSON."""
        made = self.cook({**json.loads(record), KEY: key, IMAGES: images})
        if made is None:
            return None
        if not isinstance(made, Mapping):
            raise ArgumentTypeError(f"cook={self.name}: expected a dict or None, found {type(made).__name__}")
        return json.dumps(made, ensure_ascii=False, allow_nan=False)


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}.{name}"
