"""Whether files that are about to be written would be read as shards.

A stream would start, and a later run of it would find other shards: the files that the first one wrote.
"""

import fnmatch
import functools
import os
from collections.abc import Iterable, Sequence
from glob import has_magic

from gristmill._shards import stores
from gristmill._shards.manifest import Manifest, absolute
from gristmill._util.local_files import Pathish


def find_shard(shards: "Sequence[Pathish] | Manifest", files: Iterable[Pathish]) -> tuple[str, str] | None:
    """The first of some files, whether they are there or not, that would be a shard, and the reason in words.

    Args:
      shards: the paths and globs that a manifest is made of, or the manifest.
      files: the paths of the files.
    """
    if isinstance(shards, Manifest):
        patterns = [absolute(shards.folder, path) for path in shards.paths]
    else:
        patterns = [os.fspath(pattern) for pattern in shards]
    remote = [pattern for pattern in patterns if stores.is_remote(pattern)]
    patterns = [pattern for pattern in patterns if not stores.is_remote(pattern)]
    # Links to folders are followed; a file's own name counts.
    real_folder = functools.cache(os.path.realpath)
    written = [os.fspath(file) for file in files]
    for file in filter(stores.is_remote, written):
        for pattern in remote:
            if stores.is_match(pattern, file):
                is_glob = stores.is_glob(pattern)
                return (
                    file,
                    f"the glob {pattern!r} of the shards matches it, too" if is_glob else "it is one of the shards",
                )
    written = [file for file in written if not stores.is_remote(file)]
    names = {os.path.basename(file) for file in written}
    for pattern in patterns:
        # As for shards, a name that exists is no glob.
        is_glob = has_magic(pattern) and not isinstance(shards, Manifest) and not os.path.exists(pattern)
        if not is_glob and os.path.basename(pattern) not in names:
            continue  # with a hundred thousand paths, each would take a look at the file system
        for file in written:
            folder, name = os.path.split(file)
            path = os.path.join(real_folder(folder), name)
            if is_glob and _matches(pattern, path):
                return file, f"the glob {pattern!r} of the shards matches it, too"
            if not is_glob and path == os.path.join(real_folder(os.path.dirname(pattern)), os.path.basename(pattern)):
                return file, "it is one of the shards"
    return None


def _matches(pattern: str, path: str) -> bool:
    """Whether a glob matches a path from the root without links, as `gristmill._shards.listing` reads globs."""
    absolute = pattern if os.path.isabs(pattern) else os.path.join(os.getcwd(), pattern)
    parts = absolute.split(os.sep)
    literal = next(number for number, part in enumerate(parts) if has_magic(part))
    root = os.path.join(os.path.realpath(os.sep.join(parts[:literal]) or os.sep), "")
    return path.startswith(root) and _match(parts[literal:], path.removeprefix(root).split(os.sep))


def _match(patterns: list[str], names: list[str]) -> bool:
    if not patterns or not names:
        return not patterns and not names
    first, rest = patterns[0], patterns[1:]
    if first == "**":
        # Folders that are not hidden, and at the end what lies in them.
        ends = next((number for number, name in enumerate(names) if name.startswith(".")), len(names))
        return ends == len(names) if not rest else any(_match(rest, names[begin:]) for begin in range(ends + 1))
    if has_magic(first):
        is_shown = first.startswith(".") or not names[0].startswith(".")
        return is_shown and fnmatch.fnmatchcase(names[0], first) and _match(rest, names[1:])
    return first == names[0] and _match(rest, names[1:])
