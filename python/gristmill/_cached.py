"""`cached_property`: `functools.cached_property` without a lock.

Before Python 3.12 that one holds a lock while a value is made, one for all instances. A child forked meanwhile, as data
loaders fork, would hang at its own first use. Two threads may make the value twice.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - it takes the place of the library's
        """A method whose first result becomes an attribute."""

        def __init__(self, make: Any) -> None:
            self._make = make
            self.__doc__ = make.__doc__

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The result, which hides this descriptor from now on."""
            if instance is None:
                return self
            return vars(instance).setdefault(self._make.__name__, self._make(instance))


__all__ = ["cached_property"]
