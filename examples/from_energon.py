"""Reads a folder that Megatron-Energon has prepared, or a metadataset of such folders, with gristmill.

    python examples/from_energon.py FOLDER_OR_YAML --tokenizer TOKENIZER --model qwen3-vl

It opens each split, compares its counts, reads the first batch, and prints the lines of Python that read it.
"""

import argparse
from pathlib import Path

import gristmill as gm


def main(arguments: list[str] | None = None) -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--model", required=True, help="a name of gm.ImageModel, such as qwen3-vl")
    parser.add_argument("--sequence-length", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--splits", nargs="+", default=["train", "val", "test"])
    given = parser.parse_args(arguments)
    sample = gm.ImageText(given.model)
    print("import gristmill as gm\n")
    for split in given.splits:
        try:
            print(f"\n{lines(given, split, sample)}")
        except gm.ArgumentError as error:
            if "split=" not in str(error):
                raise
            print(f"# {split}: {error}")


def lines(given: argparse.Namespace, split: str, sample: gm.ImageText) -> str:
    """The lines that read a split, whose first batch has been read."""
    is_training = split == "train"
    if given.path.suffix in (".yaml", ".yml"):
        epochs = None if is_training else 1
        shards = gm.Mixture.from_energon(given.path, split, sample=sample, epochs=epochs)
        written = (
            f"gm.Mixture.from_energon({str(given.path)!r}, {split!r}, "
            f"sample=gm.ImageText({given.model!r}), epochs={epochs})"
        )
        of_sample = {}
    else:
        shards = gm.EnergonFolder(given.path, split=split)
        written = f"gm.EnergonFolder({str(given.path)!r}, split={split!r})"
        of_sample = {"sample": sample}
    options = {
        "sequence_length": given.sequence_length,
        "batch_size": given.batch_size,
        "packing": "best_fit",
        "truncation": "drop",
        "eos": False,
        **({"seed": 0} if is_training else {"lanes": 1, "equal_steps": True}),
        **({"epochs": None if is_training else 1} if of_sample else {}),
    }
    dataset = gm.PackedDataset(shards, tokenizer=given.tokenizer, **of_sample, **options)
    with iter(dataset) as rows:
        shapes = {name: array.shape for name, array in next(rows).items()}
        stats = rows.stats()
    call = ", ".join(f"{name}={value!r}" for name, value in options.items())
    of_sample = f"sample=gm.ImageText({given.model!r}), " if of_sample else ""
    return (
        f"# {split}: {shards!r}; the first batch has {stats['documents']} samples, {stats['images']} images: {shapes}\n"
        f"{split} = gm.PackedDataset(\n    {written},\n    tokenizer={given.tokenizer!r}, {of_sample}{call},\n)"
    )


if __name__ == "__main__":
    main()
