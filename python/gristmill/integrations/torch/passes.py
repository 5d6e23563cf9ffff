"""`Pass`: the batches of an evaluation, from the first to the last each time."""

from collections.abc import Iterator
from typing import Any

from gristmill import PackedDataset
from gristmill.errors import ArgumentError
from gristmill.integrations.torch.loader import PartedLoader
from gristmill.integrations.torch.tensors import Tensors


class Pass:
    """An iterable over all batches of a dataset; each `iter` begins at the first one.

    All ranks take equally many: each reads all lanes, and has its own rows, which are padding where others alone have
    rows.

    Args:
      dataset: what `Loader` takes, with an end.
      parts: the number of parts in which a rank's rows of a step are delivered.
      more: further arguments of `Loader`.

    Raises:
      ArgumentError: the dataset does not end.
    """

    def __init__(self, dataset: Any, *, parts: int = 1, **more: Any) -> None:
        if isinstance(dataset, PackedDataset):
            if not dataset.ends:
                raise ArgumentError("epochs=None: an evaluation needs an end; use epochs=1")
            dataset = dataset.for_hosts(0, 1, equal_steps=True)
        self.dataset = dataset
        self._make = lambda: PartedLoader(dataset, parts=parts, **more)

    def __iter__(self) -> Iterator[Tensors]:
        loader = self._make()
        try:
            while True:
                try:
                    parts = loader.next_parts()
                except StopIteration:
                    return
                yield from parts
        finally:
            loader.close()
