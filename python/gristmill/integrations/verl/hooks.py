"""Methods of veRL's class that derived classes override."""

import inspect
from typing import Any

from gristmill.errors import ArgumentError

# The methods of this data set whose work the core does, without the `datasets.Dataset` that these take and return.
_NEVER_CALLED = ("_read_files_and_tokenize", "maybe_filter_out_long_prompts")


def overrides(derived: type, base: type, name: str) -> bool:
    """Whether a class has its own method in place of that of `base`."""
    order = derived.__mro__
    return any(name in vars(one) for one in order[: order.index(base)])


def check(derived: type, base: type) -> None:
    """Checks that a derived class overrides nothing that is never called.

    Raises:
      ArgumentError: it does.
    """
    for name in _NEVER_CALLED:
        if overrides(derived, base, name):
            raise ArgumentError(
                f"{derived.__name__} overrides {name}, which gristmill's {base.__name__} never calls: it "
                "reads and filters records in the core, without a datasets.Dataset; derive the class from "
                "veRL's own RLHFDataset, or filter the files beforehand"
            )


def takes_key(method: Any) -> bool:
    """Whether `_build_messages` takes the key of the prompt, as in veRL 0.8 and later."""
    return "key" in inspect.signature(method).parameters
