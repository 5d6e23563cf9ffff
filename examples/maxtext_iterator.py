"""gristmill where MaxText expects its `MultiHostDataLoadIterator`.

MaxText's trainer takes batches with `next(data_iterator)`, begins anew with `reset()`, and checkpoints
`data_iterator.local_iterator` with Grain's handlers into `<step>/iter/process_{i}-of-{n}.json`. `DataLoadIterator`
has these, and gives what MaxText's model reads: `inputs`, `targets`, and their `_segmentation` and `_position`.

    train_iterator = DataLoadIterator(dataset, mesh)        # in place of MultiHostDataLoadIterator(loader, mesh)

Its batches are whole on every host to the end, so that it serves evaluation over a finite set too. There are two
ways to checkpoint it. MaxText's own works as it is, on an unchanged number of hosts. With `gm.CheckpointSave` and
`gm.CheckpointRestore` in place of Grain's, the same files restore on any number.

MaxText's own class (seen with 0.2.5) works as well, for training with `epochs=None`, where no host ends before another:

    loader = dataset.for_sharding(input_sharding(mesh))
    train_iterator = MultiHostDataLoadIterator(loader, mesh)

One thing differs from MaxText's pipelines: the last token of a document has no target, where MaxText trains it on
the first token of the next one. `PackedDataset(..., boundary_targets=True)` does as MaxText does.

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
        """Goes back to the start of the stream."""
        self.local_iterator.close()
        self.local_iterator = gm.global_batches(self.dataloader, input_sharding(self.global_mesh))

    def __iter__(self) -> "DataLoadIterator":
        self.reset()
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return next(self.local_iterator)


def main(shards: str, tokenizer: str) -> None:
    """Takes the first of the stream, and shows it."""
    dataset = gm.PackedDataset(
        shards, tokenizer=tokenizer, text_field="raw_content", sequence_length=512, batch_size=8 * jax.device_count()
    )
    mesh = Mesh(jax.devices(), ("data",))
    for name, array in next(DataLoadIterator(dataset, mesh)).items():
        print(f"{name:22} {array.dtype} {array.shape} {array.sharding.spec}")


if __name__ == "__main__":
    main(*sys.argv[1:])
