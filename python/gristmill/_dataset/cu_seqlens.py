"""`cu_seqlens`: where the segments of a batch begin and end, as kernels of attention take it."""

from collections.abc import Mapping
from typing import Any

from gristmill.errors import ArgumentError


def cu_seqlens(batch: Mapping[str, Any], flat: bool = False, *, padded: bool = True) -> Any:
    """The offsets of the segments of a batch of `layout="varlen"`, for attention over segments of different length.

    Shapes are static: it works inside of `jax.jit`. The longest segment has at most `sequence_length` tokens.

    Args:
      batch: the arrays of `varlen`, of NumPy or JAX, with rows.
      flat: False: of each row, for kernels that take rows. True: of all rows one after another, for kernels that take
        `tokens.reshape(-1)`. There the padding of a row is a segment of its own.
      padded: of rows with `pad_segments_to`. True: a segment ends where the next one begins, as Transformer Engine's
        `cu_seqlens_padded`. False: it ends with its last token, so offsets are sums of lengths, as its `cu_seqlens`.

    Returns:
      int32 of the batch's library. `[rows, max_segments + 1]`: 0, the end of each segment, and then the end of the
      last. Flat `[rows * (max_segments + 1) + 1]`: 0, and for each row the ends of its segments, that of the last
      again for those that it does not have, and the row's own end; segments that are not there have no tokens.

    Raises:
      ArgumentError: the batch is of another layout, or is a single row.

    Example:
      >>> import gristmill as gm
      >>> offsets = torch.from_numpy(gm.cu_seqlens(batch, flat=True)).cuda()
      >>> flash_attn_varlen_func(q, k, v, offsets, offsets, sequence_length, sequence_length, causal=True)
    """
    if "tokens" not in batch or "seq_lens" not in batch:
        raise ArgumentError(
            f"batch has {', '.join(map(repr, batch))}: expected 'tokens' and 'seq_lens', as a dataset with "
            "layout='varlen' has them"
        )
    tokens, lengths = batch["tokens"], batch["seq_lens"]
    if lengths.ndim != 2:
        raise ArgumentError(f"batch: expected rows, found a single one, of shape {list(tokens.shape)}; use batch_size=")
    array = lengths.__array_namespace__()
    rows, length = tokens.shape
    rooms = batch.get("seq_lens_padded", lengths)
    parts = rooms if padded else lengths
    if flat:
        padding = length - rooms.sum(axis=1, keepdims=True, dtype=array.int32)
        parts = array.concat([parts, padding], axis=1).reshape(1, -1)
    starts = array.zeros((1 if flat else rows, 1), dtype=array.int32)
    offsets = array.concat([starts, parts.cumsum(axis=1, dtype=array.int32)], axis=1)
    return offsets[0] if flat else offsets
