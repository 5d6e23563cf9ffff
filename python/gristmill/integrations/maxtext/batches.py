"""`PromptBatches`: the batches of one host, with a state."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill._prompts.order import Orders
from gristmill._util.named_values import encode
from gristmill.errors import StateError
from gristmill.integrations.maxtext.source import Ends, Prompts, limited

Batch = dict[str, "npt.NDArray[Any]"]
STATE_VERSION = 1
_PADDING = -1


class PromptBatches(Iterator[Batch]):
    """The batches of one host.

    For each column `c`, keys in sorted order: `c`: int64 `[rows, max_target_length]`, padded on the right with 0;
    `c_segmentation`: int32, 1 on each id; `c_position`: int32, 0, 1, ...; `c_true_length`: int32 `[rows, 1]`, the
    number of ids that are left.

    Args:
      prompts: the prompts.
      ends: BOS, EOS, and the side that is cut.
      length: `max_target_length`.
      most: how many ids are kept.
      rows: the rows of a batch of this host.
      host: its index.
      hosts: how many hosts load.
      seed: seeds the order. None: MaxText's order, which depends on the number of hosts.
      drop_remainder: whether the last batch is left out unless it is full.
      epochs: how often all prompts are delivered.
    """

    def __init__(
        self,
        prompts: Prompts,
        ends: Ends,
        *,
        length: int,
        most: int,
        rows: int,
        host: int,
        hosts: int,
        seed: int | None,
        drop_remainder: bool,
        epochs: int,
    ) -> None:
        self._prompts, self._ends = prompts, ends
        self._length, self._most, self._size = length, most, rows
        self._host, self._hosts, self._seed = host, hosts, seed
        self._orders = Orders(len(prompts), seed, "gristmill")
        self._epochs = epochs
        counts = [len(self._own(0, other)) for other in range(hosts)] if rows else [0]
        rounded = [count // rows if drop_remainder else -(-count // rows) for count in counts]
        # All hosts take equally many steps: one that has fewer rows than another gets padding.
        self._steps = max(rounded)
        self._fills = hosts > 1
        self._drops = drop_remainder
        self._step = 0
        # The epoch, and this host's rows in it.
        self._current: tuple[int, npt.NDArray[Any]] = (-1, np.empty(0, np.int64))
        self._fingerprint = self._described()

    def __next__(self) -> Batch:
        """The next batch: a dict of fresh arrays.

        With one host the last batch of an epoch may be smaller. On several hosts all batches are full: rows of padding,
        whose ids, segmentation and true length are 0, fill them, and a host that has fewer batches than another gets
        batches of padding.
        """
        if not self._steps:
            raise StopIteration
        epoch, number = divmod(self._step, self._steps)
        if epoch >= self._epochs:
            raise StopIteration
        if self._current[0] != epoch:
            self._current = (epoch, self._own(epoch, self._host))
        own = self._current[1]
        if self._drops:
            own = own[: len(own) // self._size * self._size]
        rows = own[number * self._size : (number + 1) * self._size]
        if self._fills:
            rows = np.concatenate([rows, np.full(self._size - len(rows), _PADDING)])
        self._step += 1
        return self._make(rows.tolist())

    def padding(self) -> Batch:
        """A batch of padding."""
        return self._make([_PADDING] * self._size)

    def reset(self) -> None:
        """Starts again from the beginning."""
        self._step = 0

    def get_state(self) -> dict[str, Any]:
        """The position: how many rows all hosts have passed, and what they are of."""
        return {
            "version": STATE_VERSION,
            "fingerprint": self._fingerprint,
            "place": self._step * self._size * self._hosts,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position, with `shuffle` also to one that another number of hosts has saved.

        Raises:
          StateError: the state is of other prompts, arguments or, without `shuffle`, of another number of hosts.
        """
        if state.get("version") != STATE_VERSION or state.get("fingerprint") != self._fingerprint:
            raise StateError(
                f"the state was saved by another pipeline: expected {self._fingerprint}, found "
                f"{state.get('fingerprint')}; use the prompts, the tokenizer and the arguments of the run that saved it"
            )
        place, step = state.get("place"), self._size * self._hosts
        if type(place) is not int or place < 0 or place % step:
            raise StateError(f"the state's place is {place!r}: expected a multiple of the {step} rows of a step")
        self._step = place // step

    def __iter__(self) -> Self:
        return self

    def _own(self, epoch: int, host: int) -> "npt.NDArray[Any]":
        """The rows of a host in an epoch, in order."""
        prompts, count = self._prompts, len(self._prompts)
        rows = np.arange(count)
        if self._seed is not None:
            order = self._orders.of_epoch(epoch).astype(np.int64)
            return order[(rows // self._size) % self._hosts == host]
        if prompts.is_splittable:
            return np.array_split(rows, self._hosts)[host]
        if prompts.shard_count < self._hosts:
            return rows[host :: self._hosts]
        return rows[prompts.shards % self._hosts == host]

    def _make(self, rows: list[int]) -> Batch:
        found: Batch = {}
        for index, column in enumerate(self._prompts.columns):
            ids = np.zeros((len(rows), self._length), np.int64)
            lengths = np.zeros((len(rows), 1), np.int32)
            for at, row in enumerate(rows):
                if row != _PADDING:
                    kept = limited(self._prompts.ids(row, index), self._most, self._ends)
                    ids[at, : len(kept)] = kept
                    lengths[at] = len(kept)
            places = np.arange(self._length, dtype=np.int32)
            mask = (places < lengths).astype(np.int32)
            found[column] = ids
            found[f"{column}_segmentation"] = mask
            found[f"{column}_position"] = places * mask
            found[f"{column}_true_length"] = lengths
        return {key: found[key] for key in sorted(found)}

    def _described(self) -> str:
        described: dict[str, Any] = {
            "prompts": self._prompts.fingerprint,
            "max_target_length": self._length,
            "rows": self._size * self._hosts,
            "drop_remainder": self._drops,
        }
        described |= {"hosts": self._hosts} if self._seed is None else {"seed": self._seed}
        return encode(described)
