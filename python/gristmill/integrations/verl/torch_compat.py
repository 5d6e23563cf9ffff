"""torch where it is installed; else NumPy arrays stand for its tensors."""

from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import torch
    from torch.utils.data import Dataset
except ImportError:
    torch = None
    Dataset = object

try:
    # It has what veRL calls beside the items: `process_multi_modal_info`, `_build_messages`.
    from verl.utils.dataset.rl_dataset import RLHFDataset as VerlDataset
except ImportError:

    class VerlDataset(Dataset):  # type: ignore[misc, no-redef, unused-ignore]
        """Stands for veRL's class."""

        def _build_messages(self, example: dict[str, Any], key: str) -> Any:
            return example[key]


__all__ = ["Dataset", "VerlDataset", "is_tensor", "stack", "tensor"]


def tensor(array: "npt.NDArray[Any]") -> Any:
    """A tensor with the memory of an array."""
    return array if torch is None else torch.from_numpy(array)


def is_tensor(value: Any) -> bool:
    """Whether a value of an item is a tensor."""
    return isinstance(value, np.ndarray if torch is None else torch.Tensor)


def stack(tensors: list[Any]) -> Any:
    """One tensor of several of equal shape."""
    return np.stack(tensors) if torch is None else torch.stack(tensors)
