"""Uses of Grain beyond its documentation, and why: a new version of Grain may break them.

pyproject.toml bounds the versions, and tests/python/stream/test_grain.py sees each of these at work.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import grain

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class SourceDataset:
    """A dataset at the start of a Grain pipeline, whose elements' shapes are known before the first is made."""

    @property
    def _parent(self) -> Any:
        return no_parent()

    @property
    def _element_spec(self) -> Any:
        # grain.experimental.get_element_spec() reads it, also through transformations. There is no other way to
        # provide it.
        return self._describe_element()

    def _describe_element(self) -> Any:
        """The shapes and types of an element."""
        raise NotImplementedError


def no_parent() -> Any:
    """The `_parent` of a start of a pipeline, dataset or iterator.

    Raises:
      AttributeError: always. Grain fails an assertion in its place, and MaxText's MultiHostDataLoadIterator.close()
        asks with hasattr.
    """
    raise AttributeError("a source has no parent")


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
