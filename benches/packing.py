"""Fill rates of the packings side by side, on real text.

python benches/packing.py                                                          the demo's text and tokenizer
python benches/packing.py 'shards/**/*.json.gz' --tokenizer tokenizer.json         your own
"""

import argparse
import sys

import gristmill as gm
from gristmill._demo import sample_text

PACKINGS = [
    ("concat", {"packing": "concat"}),
    ("best_fit, window 64", {"packing": "best_fit", "fit_window": 64}),
    ("best_fit, window 256", {"packing": "best_fit", "fit_window": 256}),
    ("best_fit, window 1024", {"packing": "best_fit", "fit_window": 1024}),
    ("best_fit, window 4096", {"packing": "best_fit", "fit_window": 4096}),
    ("pad, split", {"packing": "pad", "truncation": "split"}),
    ("pad, right", {"packing": "pad", "truncation": "right"}),
]


def measure(dataset: gm.PackedDataset, length: int) -> dict[str, float]:
    """Plays a dataset to its end, for what became of its tokens."""
    unused = segments = 0
    iterator = iter(dataset)
    for batch in iterator:
        ids, positions = batch["tokens_segment_ids"], batch["tokens_positions"]
        segments += int(((positions == 0) & (ids > 0)).sum())
        unused += int((ids[:, 0] == 0).sum())
    stats = iterator.stats()
    iterator.close()
    # Rows of padding alone follow a lane's end, whatever the packing.
    rows = stats["rows"] - unused
    slots = rows * length
    all_tokens = stats["tokens"] + stats["dropped_tokens"]
    return {
        "rows": rows,
        "fill": stats["tokens"] / slots,
        "cut": segments / stats["documents"],
        "dropped": stats["dropped_tokens"] / all_tokens,
        "packing": stats["busy_seconds"]["pack"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="*", help="globs or paths; default: the demo's text")
    parser.add_argument("--text-field", default=None, help="key of a record that holds the text; default: text")
    parser.add_argument("--tokenizer", default=None, help="a tokenizer.json, gzipped or not; default: the demo's")
    parser.add_argument("--eos", default=None, help="token behind each document; default: the tokenizer's own")
    parser.add_argument("--sequence-length", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--lanes", type=int, default=1)
    arguments = parser.parse_args()
    encoder = gm.Encoder.from_file(arguments.tokenizer or sample_text.tokenizer())
    if not arguments.shards:
        arguments.shards = [sample_text.prepare(sample_text.default_folder(), 32).glob]
        arguments.text_field = arguments.text_field or sample_text.TEXT_FIELD
    print(
        "| sequence_length | packing | rows | fill rate | segments a document | dropped | packing time, s |\n"
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for length in arguments.sequence_length:
        for name, packing in PACKINGS:
            print(f"{length}: {name}", file=sys.stderr)
            dataset = gm.PackedDataset(
                arguments.shards,
                tokenizer=encoder,
                text_field=arguments.text_field or "text",
                eos=arguments.eos,
                sequence_length=length,
                batch_size=8 * arguments.lanes,
                lanes=arguments.lanes,
                layout="grain",
                **packing,
            )
            found = measure(dataset, length)
            print(
                f"| {length} | {name} | {found['rows']} | {found['fill']:.2%} | {found['cut']:.3f} | "
                f"{found['dropped']:.2%} | {found['packing']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
