"""The cores of this process."""

import gristmill._core as _core


def usable_cores() -> int:
    """How many cores this process may use: of the machine, its affinity and its control group the fewest."""
    return _core.usable_cores()
