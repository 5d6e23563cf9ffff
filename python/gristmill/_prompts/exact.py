"""Values that JSON lacks, of Parquet, Arrow and rows of Python: as pyarrow's `to_pylist` gives them.

The core notes them in a record's JSON (`crates/json/src/packed/typed.rs`).
"""

import base64
import datetime
import decimal
import functools
import json
import math
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Any

# The first byte of a record that has such values, and the first character of keys that stand for one.
_MARK = b"\0"
_KEY = "\ud800"
_NANOSECONDS = 10**9
_EPOCH = datetime.datetime(1970, 1, 1)


def load(record: bytes) -> dict[str, Any]:
    """A record of the arena as Python has it.

    Raises:
      ValueError: Python has no such value, as of days after the year 9999.
    """
    if not record.startswith(_MARK):
        plain: dict[str, Any] = json.loads(record.decode())
        return plain
    try:
        found: dict[str, Any] = json.loads(record[1:].decode(), object_hook=_value)
    except OverflowError as error:
        raise ValueError(str(error)) from None
    return found


def as_json(value: Any) -> Any:
    """A value with what templates and filters have in place of such values: strings, numbers and None.

    Raises:
      TypeError: it is none that a file of columns could hold.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(value, (bytes, bytearray)):
        return value.decode(errors="replace")
    if isinstance(value, decimal.Decimal):
        return as_json(float(value))
    if isinstance(value, uuid.UUID):
        return str(value)
    if hasattr(value, "tolist"):  # an array or a scalar of NumPy
        return as_json(value.tolist())
    raise TypeError(f"found {type(value).__name__}")


def as_python(value: Any) -> Any:
    """A value with dicts and lists in place of other mappings, tuples and arrays, as `to_pylist` has them."""
    if isinstance(value, Mapping):
        return {key: as_python(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_python(item) for item in value]
    if hasattr(value, "tolist") and not isinstance(value, (bytes, bytearray)):
        return as_python(value.tolist())
    return value


def _value(found: dict[str, Any]) -> Any:
    """The value that an object of the core's stands for."""
    if len(found) == 1:
        ((key, value),) = found.items()
        if key.startswith(_KEY):
            return _KINDS[key[1:]](value)
    return found


def _time(value: list[int]) -> datetime.time:
    time, per_second = value
    return (_EPOCH + datetime.timedelta(microseconds=time * 10**6 // per_second)).time()


def _duration(value: list[int]) -> datetime.timedelta:
    time, per_second = value
    if per_second == _NANOSECONDS and (pandas := _pandas()):
        found: datetime.timedelta = pandas.Timedelta(time, unit="ns")
        return found
    return datetime.timedelta(microseconds=_microseconds(time, per_second))


def _timestamp(value: list[Any]) -> datetime.datetime:
    time, per_second, name = value
    zone = None if name is None else _zone(name)
    if per_second == _NANOSECONDS and (pandas := _pandas()):
        found: datetime.datetime = pandas.Timestamp(time, tz=zone, unit="ns")
        return found
    moment = _EPOCH + datetime.timedelta(microseconds=_microseconds(time, per_second))
    return moment if zone is None else moment.replace(tzinfo=datetime.UTC).astimezone(zone)


def _microseconds(time: int, per_second: int) -> int:
    microseconds, rest = divmod(time * 10**6, per_second)
    if rest:
        raise ValueError(f"{time} nanoseconds are no whole microseconds, which need pandas: install it")
    return microseconds


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> datetime.tzinfo:
    if name[:1] in ("+", "-"):
        hours, _, minutes = name[1:].partition(":")
        offset = datetime.timedelta(hours=int(hours), minutes=int(minutes or 0))
        return datetime.timezone(-offset if name[0] == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, OSError):
        raise ValueError(f"the time zone {name!r} is not known here: install tzdata") from None


@functools.cache
def _pandas() -> Any:
    """The package, whose types pyarrow has for nanoseconds; None if it is not installed."""
    try:
        import pandas
    except ImportError:
        return None
    return pandas


_KINDS: dict[str, Callable[[Any], Any]] = {
    "bytes": base64.b64decode,
    "uuid": lambda text: uuid.UUID(bytes=base64.b64decode(text)),
    "decimal": decimal.Decimal,
    "date": lambda days: datetime.date(1970, 1, 1) + datetime.timedelta(days=days),
    "time": _time,
    "timestamp": _timestamp,
    "duration": _duration,
}
