"""gristmill in place of MaxText's `MultiHostDataLoadIterator`.

MaxText's trainer calls `next(data_iterator)` for batches and `reset()` to start over, and checkpoints
`data_iterator.local_iterator` with Grain's handlers into `<step>/iter/process_{i}-of-{n}.json`. `DataLoadIterator`
has all three, and its batches hold what MaxText's models read: `inputs`, `targets`, and the `_segmentation` and
`_position` of both.

    train_iterator = DataLoadIterator(dataset, mesh)        # in place of MultiHostDataLoadIterator(loader, mesh)

All hosts get the same number of whole batches, so it also serves evaluation over a finite dataset. MaxText's own
checkpointing works unchanged while the number of hosts stays the same. With `gm.CheckpointSave` and
`gm.CheckpointRestore` in place of Grain's handlers, the same files restore on any number of hosts.

MaxText's own class (as of 0.2.5) works too, for training with `epochs=None`, where no host ends before another:

    loader = dataset.for_sharding(input_sharding(mesh))
    train_iterator = MultiHostDataLoadIterator(loader, mesh)

One thing differs from MaxText's pipelines: the last token of a document has no target, where MaxText trains it on
the first token of the next document. `PackedDataset(..., boundary_targets=True)` does as MaxText does.

Run as a program, it shows the shapes of a batch on a mesh of all devices:

    python examples/maxtext_iterator.py 'demo-data/*/en_head.json.gz' demo-data/tokenizer
"""

import sys

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gristmill as gm


def input_sharding(mesh: Mesh) -> NamedSharding:
    """How MaxText lays out its input: rows over all devices, in the order of all axes of the mesh."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


class DataLoadIterator:
    """The interface of MaxText's `MultiHostDataLoadIterator` over `global_batches`."""

    def __init__(self, dataset: gm.PackedDataset, mesh: Mesh) -> None:
        self.dataloader = dataset
        self.global_mesh = mesh
        # MaxText saves this, and assigns what it restored.
        self.local_iterator = gm.global_batches(dataset, input_sharding(mesh))

    def reset(self) -> None:
        """Returns to the start of the stream."""
        self.local_iterator.close()
        self.local_iterator = gm.global_batches(self.dataloader, input_sharding(self.global_mesh))

    def __iter__(self) -> "DataLoadIterator":
        self.reset()
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return next(self.local_iterator)


def main(shards: str, tokenizer: str) -> None:
    """Prints the shapes of the first batch."""
    dataset = gm.PackedDataset(
        shards, tokenizer=tokenizer, text_field="raw_content", sequence_length=512, batch_size=8 * jax.device_count()
    )
    mesh = Mesh(jax.devices(), ("data",))
    for name, array in next(DataLoadIterator(dataset, mesh)).items():
        print(f"{name:22} {array.dtype} {array.shape} {array.sharding.spec}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/maxtext_iterator.py SHARDS TOKENIZER")
    main(*sys.argv[1:])
