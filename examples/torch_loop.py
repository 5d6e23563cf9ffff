"""gristmill in a PyTorch loop: rows as tensors, without a copy.

    python examples/torch_loop.py 'demo-data/*/en_head.json.gz' demo-data/tokenizer

`batches` is all there is to it. Torch's `DataLoader` is not needed: gristmill has threads where a `DataLoader` has
worker processes, and delivers whole batches. Each of `world_size` ranks loads its own lanes, and with them its rows of
each global batch. The dataset of one rank:

    dataset = gm.PackedDataset(..., shard_index=rank, shard_count=world_size, epochs=None, layout="hf")

Use `epochs=None` with several ranks: with a finite number, each rank ends when its own lanes do, which may be some
steps before the others. The state, `iterator.get_state()`, is plain JSON; `gm.merge_states` joins the states of all
ranks, so that another number of ranks can restore them.

Models of `transformers` keep the documents of a packed row apart by `position_ids`, if they get no mask: with
`layout="hf"`, drop `attention_mask`, which is 1 on all of them.
"""

import sys
from collections.abc import Iterator
from typing import Any

import gristmill as gm


def batches(iterator: Any) -> Iterator[dict[str, Any]]:
    """The rest of a gristmill iterator as dicts of int32 tensors that share the arrays' memory.

    The memory belongs to the batch for as long as one of its tensors lives, so tensors may be kept, changed in place,
    and moved to a GPU with `non_blocking=True`. Where int64 is required (`embedding` takes int32, the targets of a loss
    may not be), `.long()` makes the copy.
    """
    import torch

    for element in iterator:
        yield {name: torch.from_numpy(array) for name, array in element.items()}


def main(shards: str, tokenizer: str) -> None:
    """Prints the shapes of the first batches."""
    dataset = gm.PackedDataset(shards, tokenizer=tokenizer, text_field="raw_content", sequence_length=512, batch_size=8)
    iterator = iter(dataset)
    for step, batch in zip(range(3), batches(iterator), strict=False):
        with_target = int((batch["targets_segmentation"] != 0).sum())
        print(f"step {step}: {tuple(batch['inputs'].shape)}, {with_target} tokens with a target")
    iterator.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/torch_loop.py SHARDS TOKENIZER")
    main(*sys.argv[1:])
