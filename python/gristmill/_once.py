"""`once`: properties that are made at first use.

`functools.cached_property` holds a lock while a value is made, before Python 3.12 one for all instances. A child forked
meanwhile, as data loaders fork, would hang at its own first use. Without one, two threads may make the value twice.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

Owner = TypeVar("Owner")
Value = TypeVar("Value")


def once(method: Callable[[Owner], Value]) -> Callable[[Owner], Value]:
    """Keeps the first result of a method of `name` as the attribute `_name`."""
    name = f"_{method.__name__}"

    @functools.wraps(method)
    def kept(self: Owner) -> Value:
        attributes = vars(self)
        if name not in attributes:
            attributes[name] = method(self)
        value: Value = attributes[name]
        return value

    return kept
