"""gristmill in a PyTorch loop: rows as tensors, without a copy.

    python examples/torch_loop.py 'demo-data/*/en_head.json.gz' demo-data/tokenizer

`batches` is all there is to it. Torch's `DataLoader` is not needed: the threads that a `DataLoader` would replace by
worker processes are inside gristmill, and a batch is a batch already. Of `world_size` ranks, each gives its own
lanes, and with them its rows of each global batch; `dataset` below is for one rank:

    dataset = gm.PackedDataset(..., shard_index=rank, shard_count=world_size, epochs=None, layout="hf")

Take `epochs=None` with several ranks: with a finite number, a rank ends when its own lanes have, some steps before the
others, and knows nothing of theirs. Its state, `iterator.get_state()`, is plain JSON; `gm.merge_states` joins those
of all ranks for another number of them.
"""

import sys
from collections.abc import Iterator
from typing import Any

import gristmill as gm


def batches(iterator: Any) -> Iterator[dict[str, Any]]:
    """The rest of a gristmill iterator as dicts of int32 tensors that share the arrays' memory.

    The memory is the batch's own for as long as a tensor of it lives, so that tensors may be kept, changed in
    place, and moved to a GPU with `non_blocking=True`. Where int64 is asked for (`embedding` takes int32, a loss's
    targets may not), `.long()` makes the copy.
    """
    import torch

    for element in iterator:
        yield {name: torch.from_numpy(array) for name, array in element.items()}


def main(shards: str, tokenizer: str) -> None:
    """Takes the first of the stream, and shows it."""
    dataset = gm.PackedDataset(shards, tokenizer=tokenizer, text_field="raw_content", sequence_length=512, batch_size=8)
    iterator = iter(dataset)
    for step, batch in zip(range(3), batches(iterator), strict=False):
        with_target = int((batch["targets_segmentation"] != 0).sum())
        print(f"step {step}: {tuple(batch['inputs'].shape)}, {with_target} places with a target")
    iterator.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
