"""`collate_fn`: items to a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.errors import ArgumentError
from gristmill.integrations.verl.torch_compat import is_tensor, stack


def collate_fn(data_list: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A batch of items of `RLHFDataset` or `MultiTurnSFTDataset`, as veRL's own function makes it.

    Args:
      data_list: the items of the batch.

    Returns:
      Tensors, stacked; then all other keys as 1-D arrays of objects. Keys come in the order of the first item.

    Raises:
      ArgumentError: an item lacks a key that another has. veRL gives an array that is shorter than the batch.
    """
    items = list(data_list)
    keys = {key: None for item in items for key in item}
    for number, item in enumerate(items):
        if missing := [key for key in keys if key not in item]:
            raise ArgumentError(f"item {number} of the batch lacks {', '.join(map(repr, missing))}, which others have")
    columns = {key: [item[key] for item in items] for key in keys}
    tensors = {key: values for key, values in columns.items() if is_tensor(values[0])}
    others = {key: values for key, values in columns.items() if key not in tensors}
    return {
        **{key: stack(values) for key, values in tensors.items()},
        **{key: np.fromiter(values, dtype=object, count=len(values)) for key, values in others.items()},
    }
