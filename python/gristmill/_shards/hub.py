"""Files of data sets on the Hugging Face Hub: `hf://datasets/owner/name@revision/path`, listed by its HTTP API.

A few old data sets are also named without an owner; the hub then says which one is meant.

A revision is looked up once and becomes the commit that it names, `hf://datasets/owner/name@0f3c.../path`, so that the
files of a run cannot change under it. The core reads them at the URLs that such names stand for.
"""

import functools
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

import gristmill._core as _core
from gristmill.errors import GristmillError, MissingShardError

# Names with a revision, which need no owner, and those without one.
_WITH_REVISION = re.compile(r"hf://datasets/((?:[^/@]+/)?[^/@]+)@(refs/(?:convert|pr)/[^/]+|[^/]+)/(.*)", re.DOTALL)
_WITH_OWNER = re.compile(r"hf://datasets/([^/@]+/[^/@*?[]+)/(.*)", re.DOTALL)
_WITHOUT_OWNER = re.compile(r"hf://datasets/([^/@*?[]+)/(.*)", re.DOTALL)
# A data set without the path of a file.
_WHOLE = re.compile(r"hf://datasets/[^/*?[]+/[^/*?[]+/?")
_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="next"')
# Files that are asked for in one request.
_PATHS_AT_ONCE = 500
# Seconds that an answer may take, and for how long failures are waited out, as for other stores.
_PATIENCE, _RETRY = 20, 30

# The answer to a request: the value of its JSON, and the URL of the next page.
_Answer = tuple[Any, str | None]


def is_one(url: str) -> bool:
    """Whether a URL is one of the hub."""
    return url.startswith("hf://")


class _NotThereError(Exception):
    """The hub knows nothing of a name."""


class Hub:
    """The hub, with the same methods as other stores.

    Args:
      endpoint: the URL of its server.
      token: with which it is asked; None: public data sets alone.
      retry_seconds: for how long failures are waited out.
    """

    def __init__(self, endpoint: str, token: str | None, retry_seconds: float = _RETRY) -> None:
        self._endpoint, self._token, self._retry_seconds = endpoint, token, retry_seconds
        self._commit = functools.cache(self._find_commit)

    def pinned(self, url: str) -> str:
        """A URL or glob with the commit in place of its revision.

        Raises:
          MissingShardError: it names no data set, or the hub knows none of that name and revision.
          GristmillError: the hub cannot be reached.
        """
        failure = None
        readings = _readings(url)
        for repository, revision, path in readings:
            if not path:
                break
            try:
                commit, name = self._commit(repository, revision)
            except MissingShardError as error:
                failure = failure or error
                continue
            # The hub says what stands for a name without owner.
            return f"hf://datasets/{repository if '/' in repository else name}@{commit}/{path}"
        if failure is None:
            raise _wrong_form(url)
        if "/" not in readings[0][0]:
            raise MissingShardError(f"{_wrong_form(url)}; as a file of a data set without owner: {failure}")
        raise failure

    def list_below(self, url: str) -> tuple[list[tuple[str, int]], list[str]]:
        """Path and size of each file below a folder, and those that no request can name: there are none."""
        return [(path, size) for path, size in self._tree(url, recursive=True) if size is not None], []

    def list_folder(self, url: str) -> tuple[list[str], list[tuple[str, int]], list[str]]:
        """The folders directly below a URL, the files, and those that no request can name: there are none."""
        entries = list(self._tree(url, recursive=False))
        folders = [path for path, size in entries if size is None]
        return folders, [(path, size) for path, size in entries if size is not None], []

    def sizes(self, urls: Iterable[str]) -> list[int | None]:
        """The sizes of files in bytes; None for one that is not there."""
        named = [_divided(url) for url in urls]
        wanted: dict[tuple[str, str], list[str]] = {}
        for repository, revision, path in named:
            wanted.setdefault((repository, revision), []).append(path)
        found: dict[tuple[str, str, str], int] = {}
        for (repository, revision), paths in wanted.items():
            url = f"{self._endpoint}/api/datasets/{repository}/paths-info/{_quoted(revision)}"
            for start in range(0, len(paths), _PATHS_AT_ONCE):
                form = {"paths": paths[start : start + _PATHS_AT_ONCE], "expand": False}
                entries, _ = self._ask(url, urllib.parse.urlencode(form, doseq=True).encode())
                found |= {
                    (repository, revision, entry["path"]): entry["size"] for entry in entries if entry["type"] == "file"
                }
        return [found.get((repository, revision, path)) for repository, revision, path in named]

    def _find_commit(self, repository: str, revision: str) -> tuple[str, str]:
        """The commit of a revision, and the data set's own name."""
        try:
            found, _ = self._ask(f"{self._endpoint}/api/datasets/{repository}/revision/{_quoted(revision)}")
        except _NotThereError:
            raise MissingShardError(
                f"hf://datasets/{repository}@{revision}: the hub knows no such data set or revision (a slash in a "
                "revision is written %2F)"
            ) from None
        return found["sha"], found.get("id", repository)

    def _tree(self, url: str, *, recursive: bool) -> Iterator[tuple[str, int | None]]:
        """The path of each file and folder below a folder, and the size of each file."""
        repository, revision, folder = _divided(url)
        page: str | None = (
            f"{self._endpoint}/api/datasets/{repository}/tree/{_quoted(revision)}"
            f"/{urllib.parse.quote(folder.rstrip('/'))}".rstrip("/")
            + f"?recursive={recursive}&expand=False"
        )
        seen = set()
        while page:
            if page in seen:
                raise GristmillError(
                    f"{page}: expected further pages of the listing, found one again: the hub lists without end; name "
                    "the files one by one, without globs"
                )
            seen.add(page)
            try:
                entries, page = self._ask(page)
            except _NotThereError:
                return  # no such folder
            for entry in entries:
                yield entry["path"], entry["size"] if entry["type"] == "file" else None

    def _ask(self, url: str, form: bytes | None = None, *, was_moved: bool = False) -> _Answer:
        """The answer to a request.

        Raises:
          _NotThereError: there is nothing of that name.
          MissingShardError: the hub denies access.
          GristmillError: it cannot be reached.
        """
        headers = {"User-Agent": f"gristmill/{_core.__version__}"}
        if self._token and url.startswith(f"{self._endpoint}/"):  # to no other server that a page may name
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(url, form, headers)
        end, delay = time.monotonic() + self._retry_seconds, 0.1
        while True:
            try:
                with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                    found = _NEXT.search(answer.headers.get("Link") or "")
                    return json.load(answer), found and found[1]
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 404:
                    raise _NotThereError from None
                if error.code in (307, 308) and not was_moved and (moved := error.headers.get("Location")):
                    # The data set was renamed: urllib follows such answers to requests without a form alone.
                    return self._ask(urllib.parse.urljoin(url, moved), form, was_moved=True)
                if error.code in (401, 403):
                    raise MissingShardError(
                        f"{url}: the hub denies access ({error.code}): there is no such data set, or it is private or "
                        "gated: set HF_TOKEN to a token that may read it, or log in with: hf auth login"
                    ) from None
                if error.code not in (408, 425, 429) and (error.code < 500 or error.code in (501, 505, 511)):
                    raise GristmillError(
                        f"{url}: expected an answer of the hub, found {error.code} {error.reason}: it refuses such "
                        "requests; check the URL, and set HF_ENDPOINT if the hub is elsewhere"
                    ) from None
                failure: Exception = error
            except (OSError, ValueError) as error:
                failure = error
            if time.monotonic() + delay > end:
                raise GristmillError(
                    f"{url}: the hub did not answer: {failure}, tried for {self._retry_seconds:g} seconds; set "
                    "HF_ENDPOINT if it is elsewhere"
                ) from failure
            time.sleep(delay)
            delay = min(2 * delay, 5)


def root_of(url: str) -> tuple[str, str]:
    """The part of a URL that names the data set and its revision, with a slash at the end, and the path in it."""
    repository, revision, path = _divided(url)
    return f"hf://datasets/{repository}@{revision}/", path


def _divided(url: str) -> tuple[str, str, str]:
    """Name, revision and path of a URL."""
    return _readings(url)[0]


def _readings(url: str) -> list[tuple[str, str, str]]:
    """Name, revision and path in each way that a URL may be read: `datasets/squad/x/y.jsonl` may have an owner or none.

    Raises:
      MissingShardError: there is none.
    """
    if found := _WITH_REVISION.fullmatch(url):
        repository, revision, path = found.groups()
        revision = urllib.parse.unquote(revision)
        return [(repository, f"refs/convert/{revision[1:]}" if revision.startswith("~") else revision, path)]
    both = [found for form in (_WITH_OWNER, _WITHOUT_OWNER) if (found := form.fullmatch(url))]
    if not both:
        raise _wrong_form(url)
    return [(found[1], "main", found[2]) for found in both]


def _wrong_form(url: str) -> MissingShardError:
    if _WHOLE.fullmatch(url):
        files = url.rstrip("/") + "/**/*.parquet"
        return MissingShardError(f"{url!r}: expected files of the data set, such as {files!r}")
    return MissingShardError(
        f"{url!r}: expected hf://datasets/owner/name@revision/path: other files of the hub are not read"
    )


def _quoted(revision: str) -> str:
    return urllib.parse.quote(revision, safe="")
