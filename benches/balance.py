"""Costs of hosts in each step, of rows in order and balanced, on real documents.

python benches/balance.py                                                      the demo's text and tokenizer
python benches/balance.py 'shards/*.json.gz' --tokenizer tokenizer.json        your own; several globs are compared
python benches/balance.py 'chats/*.jsonl' --tokenizer folder --chat messages   conversations

A host's share of a step costs the sum of its rows; printed is that of the costliest host relative to the mean of all.
"""

import argparse
import platform

import numpy as np

import gristmill as gm
from gristmill._demo import sample_text


def costs_of_hosts(dataset: gm.PackedDataset, cost: gm.Cost, hosts: int) -> tuple[np.ndarray, float]:
    """The costs `[steps, hosts]` of the steps whose rows are all there, and the share of their elements with tokens."""
    found, tokens, elements = [], 0, 0
    with iter(dataset) as batches:
        for batch in batches:
            lengths = batch["seq_lens"].astype(np.float64)
            if not lengths[:, 0].all():  # a lane has ended: what is left of the others is no step to compare
                break
            rows = (cost.linear * lengths + cost.quadratic * lengths**2).sum(axis=1)
            found.append(rows.reshape(hosts, -1).sum(axis=1))
            tokens, elements = tokens + lengths.sum(), elements + batch["tokens"].size
    if not found:
        raise SystemExit("too few documents for a step: give more shards, or a smaller --batch or --sequence-length")
    return np.array(found), tokens / elements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="*", help="globs or paths; default: the demo's text")
    parser.add_argument("--text-field", default="text", help="key of a record that holds the text")
    parser.add_argument("--chat", help="key of a record that holds a conversation, in place of text")
    parser.add_argument("--tokenizer", help="a tokenizer.json or its folder; default: the demo's")
    parser.add_argument("--sequence-length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=32, help="rows of a step")
    parser.add_argument("--hosts", type=int, default=4, help="each has one lane")
    parser.add_argument("--quadratic", type=float, default=1e-4, help="see gm.Cost")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    encoder = gm.Encoder.from_file(arguments.tokenizer or sample_text.tokenizer())
    if not arguments.shards:
        arguments.shards = [sample_text.prepare(sample_text.default_folder(), 32).glob]
        arguments.text_field = sample_text.TEXT_FIELD
    cost = gm.Cost(1.0, arguments.quadratic)
    print(
        f"gristmill {gm.__version__}, NumPy {np.__version__}, Python {platform.python_version()}; rows of "
        f"{arguments.sequence_length}, {arguments.batch} a step, {arguments.hosts} hosts, {cost}"
    )
    print(f"{'shards':40} {'order':>9} {'steps':>6} {'mean':>6} {'p99':>6} {'most':>6} {'full':>7}")
    for shards in arguments.shards:
        for name, balance in (("best_fit", None), ("balanced", cost)):
            dataset = gm.PackedDataset(
                shards,
                tokenizer=encoder,
                **({"sample": gm.Chat(arguments.chat)} if arguments.chat else {"text_field": arguments.text_field}),
                sequence_length=arguments.sequence_length,
                batch_size=arguments.batch,
                lanes=arguments.hosts,
                epochs=arguments.epochs,
                seed=arguments.seed,
                packing="best_fit",
                layout="varlen",
                balance=balance,
            )
            costs, full = costs_of_hosts(dataset, cost, arguments.hosts)
            ratios = costs.max(axis=1) / costs.mean(axis=1)
            print(
                f"{shards[-40:]:40} {name:>9} {len(ratios):6} {ratios.mean():6.3f} {np.quantile(ratios, 0.99):6.3f} "
                f"{ratios.max():6.3f} {full:7.2%}"
            )


if __name__ == "__main__":
    main()
