"""The cores of this process."""

import os

import gristmill._core as _core


def usable_cores() -> int:
    """How many cores this process may use: of the machine, its affinity and its control group the fewest."""
    return _core.usable_cores()


def shared_cores(processes: int) -> int:
    """How many threads one of some processes has, which share the cores with those of other ranks on this machine.

    torchrun and its like say in LOCAL_WORLD_SIZE how many ranks a machine has.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, usable_cores() // (processes * (max(1, int(ranks)) if ranks.isdecimal() else 1)))
