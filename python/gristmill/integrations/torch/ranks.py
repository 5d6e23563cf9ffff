"""The facts that the ranks of `torch.distributed` agree on: that they read one stream, and whether a step exists.

Lanes of finite epochs end at different steps, each rank knows only its own, and a training step that one rank does
not join hangs the others. So each rank votes, with step t, whether it has rows in step t+1, and all of them take step
t+1 if any has. The vote of step t+1 runs while step t is trained on.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from gristmill._util import checks
from gristmill.errors import ArgumentError, StateError

# A group of its own on CPUs, so that a vote neither waits for a device nor mixes with collectives of the trainer.
# One for each default group: validation makes a loader each time.
_GROUPS: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()


class Ranks:
    """All ranks of the default process group. Each of them makes this object, and its calls, in the same order."""

    def __init__(self) -> None:
        world = dist.group.WORLD
        if world not in _GROUPS:
            _GROUPS[world] = dist.new_group(backend="gloo")
        self._group = _GROUPS[world]

    def check_same(self, fingerprint: str, step: int, differences: Callable[[str], str] = lambda _: "") -> None:
        """Checks that all ranks are at the same step of the same stream.

        Args:
          fingerprint: that of this rank's stream.
          step: that of this rank.
          differences: says how this rank's stream differs from that of a fingerprint.

        Raises:
          ArgumentError: the streams differ: raised on all ranks.
          StateError: the steps differ: raised on all ranks.
        """
        found = self.gather((fingerprint, step))
        steps = [step for _, step in found]
        others = [rank for rank, (other, _) in enumerate(found) if other != found[0][0]]
        if others:
            found = self.gather(differences(found[0][0]))
            different = f": {found[others[0]]}" if found[others[0]] else ""
            raise ArgumentError(
                f"ranks 0 and {others[0]} have different streams{different}. All ranks need the same shards, tokenizer "
                "and arguments"
            )
        if len(set(steps)) > 1:
            raise StateError(f"the ranks resumed at different steps, {steps}: load the same checkpoint on all of them")

    def check_parts(self, rank: int, world_size: int) -> None:
        """Checks that each part of a step has a rank that loads it.

        Raises:
          ArgumentError: a part has none, or the ranks divide steps into different numbers of parts: raised on all.
        """
        found = self.gather((rank, world_size))
        sizes = sorted({size for _, size in found})
        missing = sorted(set(range(world_size)) - {rank for rank, _ in found})
        if len(sizes) > 1 or missing:
            raise ArgumentError(
                f"world_size={world_size}: the {len(found)} processes load as the ranks {[rank for rank, _ in found]} "
                f"of {', '.join(map(str, sizes))}: expected each rank from 0 to {world_size - 1} at least once; pass "
                "the data-parallel rank and the number of data-parallel ranks on each process"
            )

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        found: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(found, value, self._group)
        return found

    def vote(self, more: bool) -> Callable[[], bool]:
        """Begins a vote.

        Args:
          more: whether this rank has rows.

        Returns:
          A function that waits for the answer: whether any rank has.
        """
        any_more = torch.tensor(int(more))
        work = dist.all_reduce(any_more, dist.ReduceOp.MAX, self._group, async_op=True)

        def answer() -> bool:
            work.wait()
            return bool(any_more)

        return answer


def all_ranks() -> Ranks | None:
    """The ranks that take steps together, or None if there is one, or a trainer simulates them."""
    if not is_distributed() or dist.get_world_size() == 1 or dist.get_backend() == "fake":
        return None
    return Ranks()


def whole_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The flat state of all processes of that of this one; called on all of them."""
    ranks, found = all_ranks(), dict(state)
    for other in ranks.gather(found) if ranks else ():
        found |= other
    return found


def is_distributed() -> bool:
    """Whether there is a default process group."""
    return dist.is_available() and dist.is_initialized()


def own_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The rank of this process, and the number of ranks: as given, else those of the process group, else 0 of 1.

    Raises:
      ArgumentError: one is given without the other, or `rank` is out of range.
      ArgumentTypeError: one is not an integer.
    """
    if rank is None and world_size is None:
        return (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)
    if rank is None or world_size is None:
        name, other = ("world_size", "rank") if rank is None else ("rank", "world_size")
        raise ArgumentError(f"{name}= is given without {other}=: pass both, or neither for those of the process group")
    count = checks.integer("world_size", world_size, 1, 2**32)
    return checks.integer("rank", rank, 0, count - 1), count
