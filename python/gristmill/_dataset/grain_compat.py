"""What this package uses of Grain beyond its documentation, and why: where a new version of Grain may break it.

pyproject.toml bounds the versions, and tests/python/stream/test_grain.py sees each of these at work.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import grain

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Source:
    """A start of a Grain pipeline, dataset or iterator."""

    @property
    def _parent(self) -> Any:
        # Grain fails an assertion here, and MaxText's MultiHostDataLoadIterator.close() asks with hasattr.
        raise AttributeError("a source has no parent")


class SourceDataset(Source):
    """A source whose elements' shapes are known before the first is made."""

    @property
    def _element_spec(self) -> Any:
        # What grain.experimental.get_element_spec() asks for, also behind transformations. There is no other way to
        # tell it.
        return self._describe_element()

    def _describe_element(self) -> Any:
        """The shapes and types of an element."""
        raise NotImplementedError


class Closable:
    """An iterator that knows whether Grain's `close` was called."""

    _closed: bool

    def _is_closed(self) -> bool:
        # Grain tells it by an error of its own alone, which is no `ArgumentError`. A method, because Grain closes
        # iterators while the interpreter ends, when the names of modules are gone.
        return self._closed


def unwrapped(method: F) -> F:
    """Keeps Grain from putting a frame of its own around an iterator's method, to shorten tracebacks.

    A signal that raises in that frame would lose the element that the method has returned.
    """
    method.is_traceback_filtered = True  # type: ignore[attr-defined]
    return method


def process_count(iterator: grain.DatasetIterator) -> int:
    """How many worker processes of `mp_prefetch` share the cores; known from the first `next` on."""
    return max(1, iterator._ctx.mp_context.process_count)


def measured(iterator: grain.DatasetIterator) -> AbstractContextManager[None]:
    """Counts the time within as the iterator's own, in Grain's execution summary."""
    return iterator._stats.record_self_time()


def recorded(iterator: grain.DatasetIterator, element: T) -> T:
    """The element, which Grain's execution summary has seen."""
    return iterator._stats.record_output_spec(element)
