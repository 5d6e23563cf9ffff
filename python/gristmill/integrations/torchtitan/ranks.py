"""The facts that the ranks of `torch.distributed` agree on: that they read one stream, and whether a step exists.

Lanes of finite epochs end at different steps, each rank knows only its own, and a training step that one rank does
not join hangs the others. So each rank votes, with step t, whether it has rows in step t+1, and all of them take step
t+1 if any has. The vote of step t+1 runs while step t is trained on.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from gristmill import PackedDataset
from gristmill.errors import ArgumentError, StateError

# A group of its own on CPUs, so that a vote neither waits for a device nor mixes with collectives of the trainer.
# One for each default group: validation makes a dataloader each time.
_GROUPS: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()


class Ranks:
    """All ranks of the default process group. Each of them makes this object, and its calls, in the same order."""

    def __init__(self) -> None:
        world = dist.group.WORLD
        if world not in _GROUPS:
            _GROUPS[world] = dist.new_group(backend="gloo")
        self._group = _GROUPS[world]

    def check_same(self, dataset: PackedDataset, step: int) -> None:
        """Checks that all ranks are at the same step of the same stream.

        Raises:
          ArgumentError: the streams differ: raised on all ranks.
          StateError: the steps differ: raised on all ranks.
        """
        found: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(found, (dataset.fingerprint, step), self._group)
        steps = [step for _, step in found]
        others = [rank for rank, (fingerprint, _) in enumerate(found) if fingerprint != found[0][0]]
        if others:
            dist.all_gather_object(found, dataset.differences(found[0][0]), self._group)
            different = f": {found[others[0]]}" if found[others[0]] else ""
            raise ArgumentError(
                f"ranks 0 and {others[0]} have different streams{different}. All ranks need the same shards, tokenizer "
                "and arguments"
            )
        if len(set(steps)) > 1:
            raise StateError(f"the ranks resumed at different steps, {steps}: load the same checkpoint on all of them")

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
    """The ranks that take steps together, or None if there is one, or torchtitan simulates them."""
    if not dist.is_initialized() or dist.get_world_size() == 1 or dist.get_backend() == "fake":
        return None
    return Ranks()
