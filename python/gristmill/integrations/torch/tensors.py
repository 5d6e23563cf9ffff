"""Tensors of a batch's arrays: on the CPU those of the arrays' own memory, on a GPU copies that are made ahead."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gristmill.errors import ArgumentError

# torch's losses and embeddings index with 64 bits.
_LONG = frozenset({"inputs", "targets", "tokens", "labels", "next_token"})

Tensors = dict[str, Any]


def is_long(name: str, arrays: Mapping[str, Any]) -> bool:
    """Whether an array holds ids, labels or position ids, which become int64."""
    if name in _LONG or f"{name}_true_length" in arrays:
        return True
    return name.endswith(("ids", "labels")) and not name.endswith("segment_ids")


def on_cpu(arrays: Mapping[str, Any]) -> Tensors:
    """The tensors of some arrays: without a copy, unless it holds ids of 32 bits. Objects become lists."""
    return {
        name: _tensor(name, value, arrays) if isinstance(value, np.ndarray) else value for name, value in arrays.items()
    }


def _tensor(name: str, array: "np.ndarray[Any, Any]", arrays: Mapping[str, Any]) -> Any:
    if array.dtype.name == "bfloat16":  # NumPy has no kind for it
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    if array.dtype.kind not in "biufc":
        return array.tolist()
    is_of_ids = array.dtype.kind in "iu" and is_long(name, arrays)  # a field such as `soft_labels` may be of floats
    return torch.from_numpy(array.astype(np.int64, copy=False) if is_of_ids else array)


def on_device(batch: Tensors, device: torch.device) -> Tensors:
    """A batch with its tensors on a device."""
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


class Mover:
    """Copies batches to a GPU on a stream of its own, from pinned memory, beside what the GPU computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def move(self, batch: Tensors) -> tuple[Tensors, Any]:
        """Begins to copy a batch. Returns its tensors on the GPU, and the event after the copies."""
        with torch.cuda.stream(self._stream):
            moved = {
                name: value.pin_memory().to(self._device, non_blocking=True)
                if isinstance(value, torch.Tensor)
                else value
                for name, value in batch.items()
            }
            return moved, self._stream.record_event()

    def ready(self, batch: Tensors, event: Any) -> Tensors:
        """The batch, which the current stream of the GPU uses after the copies."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(current)  # its memory is used again only after that stream
        return batch


def device_of(device: "str | torch.device | None") -> torch.device:
    """The device that batches are moved to; by default the current GPU, or the CPU without one.

    Raises:
      ArgumentError: torch knows no such device, or finds no such GPU.
    """
    has_gpu = torch.cuda.is_available()
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if has_gpu else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device={device!r}: {str(error).splitlines()[0]}") from None
    count = torch.cuda.device_count() if has_gpu else 0
    if found.type == "cuda" and (found.index or 0) >= count:
        raise ArgumentError(f"device={str(device)!r}: torch finds {count} GPUs; leave device= out, or pass another one")
    return found
