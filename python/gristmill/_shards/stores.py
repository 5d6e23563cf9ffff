"""Shards in stores on the network: URLs, and globs of them, with few requests.

    gs://bucket/2023-*/en_head.json.gz    gs://bucket/  ──> the folders in it  ──> the size of that name in each
    gs://bucket/data/**/*.gz              gs://bucket/data/  ──> all objects below it, in pages

The folder before the first component with `*`, `?` or `[` is listed, and names behind that component are asked for. If
more such components follow, all that is below the folder is listed.
Patterns match as those of local files do: see `gristmill._shards.listing`.
"""

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from glob import has_magic
from typing import Any

import gristmill._core as _core
from gristmill._shards import hub
from gristmill._util.checks import wrong_type
from gristmill.errors import ArgumentError, MissingShardError

# Name and value of each option.
StorageOptions = tuple[tuple[str, str], ...]

# Other schemes of one store, and its usual one.
_USUAL = {"gcs": "gs", "s3a": "s3", "azure": "az", "abfs": "abfss"}
_URLS = tuple(f"{scheme}://" for scheme in _core.STORE_SCHEMES)


def is_remote(name: str) -> bool:
    """Whether a name is a URL of a store on the network, and not a path."""
    return name.startswith(_URLS)


def usual(url: str) -> str:
    """A URL with the usual scheme of its store, so that an object has one."""
    scheme, rest = url.split("://", 1)
    return f"{_USUAL.get(scheme, scheme)}://{rest}"


def sizes(urls: Iterable[str], options: StorageOptions) -> dict[str, int | None]:
    """The sizes of objects in bytes by their URLs, None of those that are not there; with many requests at once.

    Raises:
      ArgumentError: an option is unknown.
      GristmillError: a store cannot be reached.
    """
    named = list(dict.fromkeys(urls))
    found: dict[str, int | None] = {}
    for is_hub in (False, True):
        own = [url for url in named if hub.is_one(url) == is_hub]
        if own:
            store = reach_hub(options) if is_hub else reach(options)
            found |= zip(own, store.sizes(own), strict=True)
    return found


def reach(options: StorageOptions) -> "_core.Stores":
    """The stores that these options reach.

    Raises:
      ArgumentError: an option is unknown.
    """
    return _core.Stores(list(options))


def is_match(pattern: str, url: str) -> bool:
    """Whether a URL is another one, or matches it if that is a glob."""
    if not is_glob(pattern):
        return url == pattern
    (root, key), (own_root, own_key) = _divided(pattern), _divided(url)
    return root == own_root and _fits_all(own_key.split("/"), key.split("/"))


def reach_hub(options: StorageOptions) -> hub.Hub:
    """The Hugging Face Hub.

    Raises:
      ArgumentError: an option is unknown.
    """
    endpoint, token = reach(options).hub()
    seconds = [min(30.0, float(value)) for name, value in options if name == "retry_timeout"]
    return hub.Hub(endpoint, token, *seconds)


def is_glob(url: str) -> bool:
    """Whether a URL is a glob."""
    scheme, rest = url.split("://", 1)
    # A URL of the web has a question mark of its own, and its servers list nothing.
    return scheme not in ("http", "https") and has_magic(rest)


def absolute(url: str) -> str:
    """A URL as a path from a root, so that the part of it below a folder is that of the same shards under a mount."""
    scheme, rest = url.split("://", 1)
    return f"/{scheme}:/{rest}"


def check_options(name: str, options: Any) -> StorageOptions | None:
    """The options of stores, sorted by name; None if there are none.

    Args:
      name: the argument, for errors.
      options: a dict of strings, or a list of texts as `parse_options` takes them.

    Raises:
      ArgumentError: a text has no value.
      ArgumentTypeError: they are something else; numbers and booleans are spelled out.
    """
    if options is None:
        return None
    if isinstance(options, (list, tuple)) and all(isinstance(text, str) for text in options):
        options = parse_options(name, options)
    if not isinstance(options, Mapping):
        raise wrong_type(name, options, "a dict of strings")
    found = []
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, (str, int, float)):
            raise wrong_type(f"{name}[{key!r}]", value, "strings as names and values")
        found.append((key, str(value).lower() if isinstance(value, bool) else str(value)))
    return tuple(sorted(found))


def parse_options(name: str, texts: Sequence[str]) -> dict[str, str]:
    """The options of stores that texts such as `aws_region=eu-west-1` hold.

    Raises:
      ArgumentError: a text has no value.
    """
    if wrong := [text for text in texts if "=" not in text]:
        raise ArgumentError(f"{name}={wrong[0]!r}: expected name=value, such as aws_region=eu-west-1")
    return dict(text.split("=", 1) for text in texts)


class Lister:
    """Finds the objects that URLs and globs of them name. All patterns of a manifest share one.

    Raises, whatever is asked first:
      ArgumentError: an option is unknown.
      GristmillError: a store cannot be reached.
    """

    def __init__(self, patterns: Iterable[object], options: StorageOptions) -> None:
        self._options = options
        self._urls = [name for name in patterns if isinstance(name, str) and is_remote(name) and not is_glob(name)]

    def matches(self, pattern: str) -> list[tuple[str, int]]:
        """The objects of one of the patterns, and their sizes in bytes.

        Raises:
          MissingShardError: there is none.
        """
        url = self._pinned(pattern)
        if not is_glob(pattern):
            if (size := self._sizes[url]) is None:
                raise MissingShardError(f"no such object: {pattern!r}{braces_advice(pattern) or _advice(pattern)}")
            return [(url, size)]
        root, key = _divided(url)
        if has_magic(root):
            raise MissingShardError(f"{pattern!r}: a glob begins behind the bucket, or the data set of the hub")
        found = [(root + key, size) for key, size in self._objects(root, key.split("/"))]
        if not found and "*" not in key and (size := sizes([url], self._options)[url]) is not None:
            return [(url, size)]  # a name such as x[1].jsonl
        if not found:
            raise MissingShardError(f"no object matches the glob {pattern!r}{braces_advice(pattern)}")
        return found

    def _pinned(self, url: str) -> str:
        return self._hub.pinned(url) if hub.is_one(url) else url

    def e_tags(self, paths: Sequence[str]) -> tuple[str | None, ...]:
        """The versions of the shards that were found, as stores have them; empty if none is in a store."""
        urls = [path for path in paths if is_remote(path)]
        if not urls:
            return ()
        found = dict(zip(urls, self._stores.e_tags(urls), strict=True))
        return tuple(found.get(path) for path in paths)

    @functools.cached_property
    def _stores(self) -> "_core.Stores":
        return reach(self._options)

    @functools.cached_property
    def _hub(self) -> hub.Hub:
        return reach_hub(self._options)

    @functools.cached_property
    def _sizes(self) -> dict[str, int | None]:
        """The sizes of all objects that are no globs: they are asked for at once."""
        return sizes(map(self._pinned, self._urls), self._options)

    def _objects(self, root: str, pattern: list[str]) -> Iterable[tuple[str, int]]:
        """Keys and sizes of the objects that match the components of a pattern.

        Raises:
          MissingShardError: a key that no request can name matches.
        """
        store = self._hub if hub.is_one(root) else self._stores
        first = next(depth for depth, part in enumerate(pattern) if has_magic(part))
        part, rest = pattern[first], pattern[first + 1 :]
        folder = "".join(f"{name}/" for name in pattern[:first])
        if part == "**" or any(map(has_magic, rest)):
            listed, odd = store.list_below(root + folder)
            _refuse(root, pattern, [key for key in odd if _fits_all(key.split("/"), pattern)])
            return [(key, size) for key, size in listed if _fits_all(key.split("/"), pattern)]
        folders, objects, odd = store.list_folder(root + folder)
        below_folder = [(key, key[len(folder) :].rstrip("/")) for key in odd if key.endswith("/") == bool(rest)]
        _refuse(root, pattern, [key for key, name in below_folder if name and _fits(name, part)])
        if not rest:
            return [(key, size) for key, size in objects if _fits(key[len(folder) :], part)]
        names = ["/".join([below, *rest]) for below in folders if _fits(below[len(folder) :], part)]
        found = store.sizes([root + name for name in names])
        return [(name, size) for name, size in zip(names, found, strict=True) if size is not None]


def braces_advice(name: str) -> str:
    """Advice about a path, glob or URL that names nothing and has alternatives or a range in braces, as shells do."""
    found = re.search(r"\{[^{}]*(,|\.\.)[^{}]*\}", name)
    return "; braces are no part of a glob: list the names, or use * and [...]" if found else ""


def _advice(url: str) -> str:
    """How the objects of a folder are named, if a URL without an object may be one."""
    scheme, rest = url.split("://", 1)
    _, _, key = rest.partition("/")
    if scheme in ("http", "https"):
        return ": a web server lists nothing, so name each URL" if "*" in key else ""
    if "." in key.rsplit("/", 1)[-1]:
        return ""
    files = url.rstrip("/") + "/*.jsonl"
    return f": name the objects of a folder one by one or by a glob, such as {files!r}"


def _refuse(root: str, pattern: list[str], odd: Sequence[str]) -> None:
    """Raises an error about a key that a pattern matches, and that no request can name."""
    if odd:
        name = root + "/".join(pattern)
        raise MissingShardError(
            f"{name!r} matches {root + odd[0]!r}, a name with an empty part or a control character, which no request "
            "can name: copy the object to another name, or name the shards so that it is not among them"
        )


def _divided(url: str) -> tuple[str, str]:
    """The root of a URL's store, with a slash at the end, and the key in it."""
    if hub.is_one(url):
        return hub.root_of(url)
    scheme, rest = url.split("://", 1)
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}/", key


def _fits(name: str, pattern: str) -> bool:
    # As for local files: a name with a dot in front is hidden.
    return fnmatch.fnmatchcase(name, pattern) and (pattern[0] == "." or name[:1] != ".")


def _fits_all(names: list[str], pattern: list[str]) -> bool:
    """Whether the components of a key match those of a pattern."""
    if not pattern or not names:
        return not pattern and not names
    if pattern[0] != "**":
        return _fits(names[0], pattern[0]) and _fits_all(names[1:], pattern[1:])
    if len(pattern) == 1:
        return not any(name.startswith(".") for name in names)
    if _fits_all(names, pattern[1:]):
        return True
    return not names[0].startswith(".") and _fits_all(names[1:], pattern)
