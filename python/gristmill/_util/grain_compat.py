"""Uses of Grain beyond its documentation, and why: a new version of Grain may break them.

pyproject.toml bounds the versions, and tests/python/stream/test_grain.py sees each of these at work.

A dataset is one of Grain's, and Grain is loaded only where it is used: loops of PyTorch and the command line need none,
and with JAX beside it Grain takes a second. `IterDataset` and `DatasetIterator` are bases without Grain. Once Grain is
loaded they derive from its classes, and with them all classes and objects made before. A program loads it itself, or
by asking a dataset for a method of Grain's, such as `map`.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class _Late:
    """A base that derives from a class of Grain's once Grain is loaded."""

    _has_joined: ClassVar[bool] = False

    def __init__(self) -> None:
        join()
        super().__init__()  # Grain's, where it is there

    def __class_getitem__(cls, item: Any) -> type[Self]:
        return cls

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # `isinstance(dataset, grain.IterDataset)` asks for it, and Grain is loaded then.
        join()
        return type(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or _Late._has_joined:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        load()
        return getattr(self, name)


class _LateDataset(_Late):
    """`grain.IterDataset`, as soon as there is one."""

    # The values that Grain gives to a dataset without parents, for one that was made before.
    _parents: ClassVar[tuple[()]] = ()
    _seed_rng_seed: ClassVar[None] = None
    has_child = False


class _LateIterator(_Late):
    """`grain.DatasetIterator`, as soon as there is one."""

    _parents: ClassVar[tuple[()]] = ()
    _closed = False

    def close(self) -> None:
        """Marks the iterator as closed."""
        self._closed = True

    def __del__(self) -> None:
        self.close()

    async def save(self, directory: Any) -> Any:
        """Writes the state; called by Orbax's `save_checkpointables`, which looks for it in the class."""
        load()
        return await super().save(directory)  # type: ignore[misc]


if TYPE_CHECKING:
    from grain import DatasetIterator as DatasetIterator
    from grain import IterDataset as IterDataset
else:
    IterDataset, DatasetIterator = _LateDataset, _LateIterator

_LOCK = threading.Lock()


def join() -> None:
    """Has the classes derive from Grain's, if Grain is loaded."""
    grain: Any = sys.modules.get("grain")
    if _Late._has_joined or not hasattr(grain, "IterDataset"):  # or is being loaded
        return
    with _LOCK:
        if _Late._has_joined:
            return
        for own, theirs in ((_LateDataset, grain.IterDataset), (_LateIterator, grain.DatasetIterator)):
            own.__bases__ = (_Late, theirs)
            theirs._abc_caches_clear()
        for derived in _derived(_LateDataset):
            if "__iter__" in vars(derived):  # Grain wraps it when a class is made
                grain.IterDataset.__init_subclass__.__func__(derived)
        _Late._has_joined = True


def load() -> Any:
    """Loads Grain. Returns its module."""
    absl = logging.getLogger("absl")
    absl.addFilter(_is_no_jax_warning)
    try:
        import grain
    finally:
        absl.removeFilter(_is_no_jax_warning)
    join()
    return grain


def _is_no_jax_warning(record: logging.LogRecord) -> bool:
    """Whether a message is not Grain's that it found no JAX, which rows do not need."""
    return "jax profiler" not in record.getMessage()


def _derived(base: Any) -> list[Any]:
    return [one for own in base.__subclasses__() for one in (own, *_derived(own))]


class SourceDataset:
    """A dataset at the start of a Grain pipeline, whose elements' shapes are known before the first is made."""

    @property
    def _parent(self) -> Any:
        return no_parent()

    @property
    def _element_spec(self) -> Any:
        # grain.experimental.get_element_spec() reads it, also through transformations. There is no other way to
        # provide it.
        struct = load().experimental.ShapeDtypeStruct
        return {name: struct(shape, dtype) for name, (shape, dtype) in self._describe_element().items()}

    def _describe_element(self) -> "dict[str, tuple[tuple[int, ...], Any]]":
        """The shape and type of each array of an element."""
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


def _is_of_grain(iterator: Any) -> bool:
    """Whether an iterator was made when Grain was there."""
    return "_ctx" in iterator.__dict__


def process_count(iterator: Any) -> int:
    """How many worker processes of `mp_prefetch` share the cores; known from the first `next` on."""
    return max(1, iterator._ctx.mp_context.process_count) if _is_of_grain(iterator) else 1


def measured(iterator: Any) -> AbstractContextManager[None]:
    """Counts the time within as the iterator's own, in Grain's execution summary."""
    return iterator._stats.record_self_time() if _is_of_grain(iterator) else contextlib.nullcontext()


def recorded(iterator: Any, element: T) -> T:
    """The element, which Grain's execution summary has seen."""
    return iterator._stats.record_output_spec(element) if _is_of_grain(iterator) else element
