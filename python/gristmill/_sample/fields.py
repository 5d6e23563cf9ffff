"""`Field`: values of a record that travel with its tokens, or with the sample."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gristmill._util import checks
from gristmill.errors import ArgumentError, MissingExtraError

DTYPES = ("float32", "float16", "bfloat16", "int32", "int64", "uint8")
# It is no dtype of NumPy's own.
_BFLOAT16 = "bfloat16"
_OWNERS = ("token", "sample")
_MOST_AXES = 2
# Elements of a value: a token's are held while a window of documents waits.
_MOST_ELEMENTS = 2**16


@dataclass(frozen=True)
class Field:
    """Values of a record that travel with its tokens, such as advantages, or with the sample, such as a reward.

    They are cut, packed, padded and saved with what they belong to, and become an array of the batch. A field `name` of
    each token, with values of a shape `shape`, becomes:

    - `maxtext`: `targets_{name}`, `[rows, sequence_length, *shape]`: the value of the token `targets[r, i]`, and zeros
      where there is no target.
    - `grain`, `hf`, `varlen`: `{name}`, of the same shape: the value of the token itself, and zeros on padding.
      `varlen` also has `next_{name}`, `[rows, *shape]`: the value of the token that follows the row's last one in its
      document.

    A field of the sample becomes `{name}` in each layout, `[rows, max_segments, *shape]`: the value of segment s + 1 at
    `[r, s]`, and zeros behind the last. BOS and EOS have zeros.

    Values that are missing, null, NaN, of other lengths, or that the dtype cannot hold, make a record a bad one.

    Attributes:
      field: the key of the record. None: the name of the field.
      dtype: `"float32"`, `"float16"`, `"bfloat16"` (NumPy knows it by the package `ml_dtypes`), `"int32"`, `"int64"` or
        `"uint8"`.
      shape: the shape of a value, of at most two axes; empty: a number.
      per: `"token"`: a list of the record has a value for each token; `"sample"`: it has one.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    field: str | None = None
    dtype: Literal["float32", "float16", "bfloat16", "int32", "int64", "uint8"] = "float32"
    shape: Sequence[int] = ()
    per: Literal["token", "sample"] = "token"

    def __post_init__(self) -> None:
        if self.field is not None:
            checks.text("field", self.field)
        checks.choice("dtype", self.dtype, DTYPES)
        checks.choice("per", self.per, _OWNERS)
        axes = checks.items("shape", self.shape, "the sizes of at most two axes")
        if len(axes) > _MOST_AXES:
            raise ArgumentError(f"shape={tuple(axes)}: expected at most two axes")
        sizes = tuple(checks.integer("shape", axis, 1, _MOST_ELEMENTS) for axis in axes)
        elements = 1
        for size in sizes:
            elements *= size
        if elements > _MOST_ELEMENTS:
            raise ArgumentError(f"shape={sizes}: expected at most {_MOST_ELEMENTS} elements")
        object.__setattr__(self, "shape", sizes)


@dataclass(frozen=True, kw_only=True)
class CarriedField:
    """A field of a source. The core reads it in `rust/python/fields.rs`.

    Attributes:
      name: its name, of which a layout makes those of the arrays.
      key: the key of the record; None of one that the core makes.
      is_weight: whether it says how much each token is trained on, by the weights of messages.
    """

    name: str
    key: str | None
    dtype: str
    shape: tuple[int, ...]
    per: str
    is_weight: bool = False

    @property
    def described(self) -> str:
        """The field without its name, for a fingerprint and messages."""
        return f"{self.key} {self.dtype}{list(self.shape) or ''} per {self.per}"

    @property
    def arrays(self) -> tuple[str, str, tuple[int, ...], str]:
        """All that arrays show of it, in which the sources of a mixture agree."""
        return self.name, self.dtype, self.shape, self.per


def check_fields(fields: Any, *, per_sample: bool) -> None:
    """Checks the argument `fields` of a sample.

    Args:
      fields: the fields by name, or None.
      per_sample: whether only fields of the sample are allowed, as its tokens are made here.

    Raises:
      ArgumentError: a name or a field is not allowed.
      ArgumentTypeError: it is no dict of fields.
    """
    if fields is None:
        return
    if not isinstance(fields, Mapping):
        raise checks.wrong_type("fields", fields, "a dict of gm.Field by name, or None")
    for name, field in fields.items():
        checks.text("fields", name)
        if not isinstance(field, Field):
            raise checks.wrong_type(f"fields[{name!r}]", field, "a gm.Field")
        if per_sample and field.per != "sample":
            raise ArgumentError(
                f"fields[{name!r}]: expected per='sample', as the tokens of a text are not known before it is encoded; "
                "with values for each token, pass the ids, too, as gm.Tokens"
            )


def carried(fields: Mapping[str, Field] | None) -> list[CarriedField]:
    """The fields of a sample as the core takes them."""
    return [
        CarriedField(name=name, key=field.field or name, dtype=field.dtype, shape=tuple(field.shape), per=field.per)
        for name, field in (fields or {}).items()
    ]


def described(fields: Mapping[str, Field] | None) -> dict[str, str] | None:
    """The fields of a sample for its fingerprint; None if there are none."""
    return {field.name: field.described for field in carried(fields)} or None


def _load_bfloat16() -> None:
    """Loads the package by which NumPy knows the dtype.

    Raises:
      MissingExtraError: it is not installed.
    """
    try:
        importlib.import_module("ml_dtypes")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "dtype='bfloat16': NumPy knows it by ml_dtypes, which is not installed: pip install ml_dtypes",
            name="ml_dtypes",
        ) from error


def union(sources: Mapping[str, Sequence[CarriedField]]) -> list[CarriedField]:
    """The fields of all sources by their names, in the order of the first source that has each.

    Raises:
      ArgumentError: two sources have one of another type or shape under one name.
      MissingExtraError: a dtype needs a package that is not installed.
    """
    if any(field.dtype == _BFLOAT16 for fields in sources.values() for field in fields):
        _load_bfloat16()
    found: dict[str, tuple[str, CarriedField]] = {}
    for source, fields in sources.items():
        for field in fields:
            first, known = found.setdefault(field.name, (source, field))
            if known.arrays != field.arrays:
                raise ArgumentError(
                    f"fields: the sources {first!r} and {source!r} have other arrays {field.name!r}: "
                    f"{known.dtype} {list(known.shape)} per {known.per}, and {field.dtype} {list(field.shape)} per "
                    f"{field.per}; rows of one mixture hold the same"
                )
    return [field for _, field in found.values()]
