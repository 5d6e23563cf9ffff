"""Times conversations: from JSONL to ids and loss masks, beside `transformers` with `datasets.map`, and `renderers`.

    python benches/conversations.py MODEL [--conversations 20000] [--rounds 5] [--threads 1 --threads 2]

MODEL is a folder with tokenizer.json, tokenizer_config.json and a chat template with `generation` blocks, without which
`transformers` has no masks. Each contender runs in a process of its own, once a round, in alternating order, and does
the whole work: it reads the file, renders, encodes and masks each conversation. Loading the tokenizer is not timed. The
table has medians of conversations a second, and the median of the rounds' ratios. What is not installed is left out;
`renderers` knows Qwen 3 here. Its threads, and those of `transformers`, are processes.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

# Prose with the usual share of punctuation and numbers.
_WORDS = (  # noqa: SIM905 - it reads as prose
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its about "
    "than into them can only other time new some could these two may first then do any like my now over such our man"
).split()


def write_conversations(path: pathlib.Path, count: int) -> None:
    """Conversations of one to four turns, with a system message in every second one."""
    chance = random.Random(0)

    def prose(words: int) -> str:
        sentences = []
        while words > 0:
            length = chance.randrange(4, 20)
            sentences.append(
                " ".join(chance.choices(_WORDS, k=length)).capitalize() + chance.choice([".", "?", ", 42."])
            )
            words -= length
        return " ".join(sentences)

    with path.open("w") as file:
        for index in range(count):
            messages = [{"role": "system", "content": prose(20)}] if index % 2 else []
            for _ in range(chance.randrange(1, 5)):
                messages.append({"role": "user", "content": prose(chance.randrange(10, 60))})
                messages.append({"role": "assistant", "content": prose(chance.randrange(40, 250))})
            file.write(json.dumps({"messages": messages}) + "\n")


def gristmill(model: str, path: str, threads: int) -> Callable[[], tuple[int, int]]:
    import gristmill as gm

    dataset = gm.PackedDataset(
        path, tokenizer=model, sample=gm.Chat(), sequence_length=4096, batch_size=8, packing="best_fit",
        layout="grain", threads=threads,
    )  # fmt: skip

    def run() -> tuple[int, int]:
        iterator = iter(dataset)
        for _ in iterator:
            pass
        stats = iterator.stats()
        return stats["tokens"], stats["trained_tokens"]

    return run


def transformers(model: str, path: str, threads: int) -> Callable[[], tuple[int, int]]:
    tokenizer = _tokenizer(model)

    def encoded(record: dict[str, Any]) -> dict[str, Any]:
        found = tokenizer.apply_chat_template(record["messages"], return_dict=True, return_assistant_tokens_mask=True)
        return {"input_ids": found["input_ids"], "mask": found["assistant_masks"]}

    return _mapped(path, threads, encoded)


def renderers(model: str, path: str, threads: int) -> Callable[[], tuple[int, int]]:
    from renderers.base import build_training_sample
    from renderers.qwen3 import Qwen3Renderer

    renderer = Qwen3Renderer(_tokenizer(model))

    def encoded(record: dict[str, Any]) -> dict[str, Any]:
        found = build_training_sample(renderer, record["messages"])
        return {"input_ids": found.token_ids, "mask": [int(trained) for trained in found.loss_mask]}

    return _mapped(path, threads, encoded)


def _tokenizer(model: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(model)


def _mapped(
    path: str, threads: int, encoded: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[], tuple[int, int]]:
    """What `datasets.map` makes of each record, counted by the columns' lengths and sums."""
    import datasets
    import pyarrow.compute as compute

    datasets.disable_progress_bars()
    scratch = tempfile.mkdtemp(prefix="gristmill-bench-")

    def run() -> tuple[int, int]:
        found = datasets.load_dataset("json", data_files=path, split="train", cache_dir=scratch)
        processes = threads if threads > 1 else None
        found = found.map(encoded, remove_columns=["messages"], num_proc=processes, load_from_cache_file=False)
        lists = found.data.table
        tokens = compute.sum(compute.list_value_length(lists["input_ids"])).as_py()
        return tokens, compute.sum(compute.list_flatten(lists["mask"])).as_py()

    return run


CONTENDERS = {"gristmill": gristmill, "transformers": transformers, "renderers": renderers}
_NEEDED = {"gristmill": ["gristmill"], "transformers": ["transformers", "datasets"], "renderers": ["renderers"]}


def child(name: str, model: str, path: str, threads: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    run = CONTENDERS[name](model, path, threads)
    start = time.perf_counter()
    tokens, trained = run()
    print(json.dumps({"seconds": time.perf_counter() - start, "tokens": tokens, "trained": trained}))


def measured(name: str, model: str, path: pathlib.Path, threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, model, "--child", name, "--file", str(path), "--threads", str(threads)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--conversations", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--child")
    parser.add_argument("--file")
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.model, arguments.file, arguments.threads[0])
        return 0
    names = [name for name in CONTENDERS if all(map(importlib.util.find_spec, _NEEDED[name]))]
    packages = ["tokenizers", *dict.fromkeys(package for name in names for package in _NEEDED[name])]
    print(", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "chats.jsonl"
        write_conversations(path, arguments.conversations)
        megabytes = path.stat().st_size / 1e6
        print(f"{arguments.conversations:,} conversations, {megabytes:.1f} MB, {arguments.rounds} rounds")
        print(f"{'threads':>7} {'':14}{'conversations/s':>16}{'tokens/s':>14}{'gristmill is':>14}   tokens, trained on")
        for threads in arguments.threads or [1, 2]:
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for number in range(arguments.rounds):
                for name in names if number % 2 == 0 else names[::-1]:
                    rounds[name].append(measured(name, arguments.model, path, threads))
            for name, found in rounds.items():
                seconds = statistics.median(run["seconds"] for run in found)
                pairs = zip(found, rounds["gristmill"], strict=True)
                ratio = statistics.median(other["seconds"] / own["seconds"] for other, own in pairs)
                print(
                    f"{threads:7} {name:14}{arguments.conversations / seconds:16,.0f}"
                    f"{found[0]['tokens'] / seconds:14,.0f}{ratio:12.1f} x   "
                    f"{found[0]['tokens']:,}, {found[0]['trained']:,}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
