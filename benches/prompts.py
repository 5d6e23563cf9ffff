"""Times the start of a veRL run: reading a Parquet file of prompts and filtering the overlong ones.

    python benches/prompts.py TOKENIZER_FOLDER [--template FILE] [--rows N] [--rounds N] [--workers N]

veRL's way is `datasets.load_dataset` and `Dataset.filter` with a function that takes the length of
`tokenizer.apply_chat_template(prompt, add_generation_prompt=True)`, in as many processes as there are cores, or as
`--workers` says. gristmill's is `gristmill.integrations.verl.RLHFDataset`, with the items of veRL 0.6. Both have the
same tokenizer, template and file; the kept records are compared. A second figure leaves out what does not grow with the
file: making the encoder of the tokenizer. Needs `transformers` and `datasets`.
"""

import argparse
import functools
import importlib.metadata
import os
import pathlib
import platform
import random
import statistics
import sys
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import transformers

import gristmill as gm
from gristmill.integrations.verl import RLHFDataset

WORDS = (
    "Natalia sold clips to of her friends in April and then she half as many May How did altogether a "
    "train leaves the station at noon with miles hour each number is prime what probability that sum "
    "equals "
)
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'


def write_prompts(path: pathlib.Path, rows: int) -> None:
    """Records as veRL's script for GSM8K writes them, with questions of 10 to 400 words."""
    rng, words = random.Random(0), WORDS.split()
    records = []
    for index in range(rows):
        question = " ".join(rng.choice(words) for _ in range(rng.choice((10, 40, 60, 80, 120, 400))))
        records.append(
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": f"{question} {rng.randrange(10**4)}? {INSTRUCTION}"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(rng.randrange(1000))},
                "extra_info": {"split": "train", "index": index, "question": question},
            }
        )
    pq.write_table(pa.Table.from_pylist(records), path)


def verl_way(path: pathlib.Path, tokenizer: Any, length: int, workers: int, cache: str) -> Any:
    data = datasets.load_dataset("parquet", data_files=str(path), cache_dir=cache)["train"]

    def is_short(record: Any) -> bool:
        ids = tokenizer.apply_chat_template(record["prompt"], add_generation_prompt=True, tokenize=True)
        ids = ids if isinstance(ids, list) else ids["input_ids"]  # transformers 5 returns a dict
        return len(ids) <= length

    return data.filter(is_short, num_proc=workers)


def filter_alone(path: pathlib.Path, tokenizer: Any, length: int) -> Any:
    """Reads, renders, encodes and filters: all but making the encoder, which does not grow with the file."""
    encoder = gm.Encoder.from_bytes(tokenizer.backend_tokenizer.to_str().encode())
    template = gm.ChatTemplate.from_string(tokenizer.chat_template, tokenizer=encoder, **tokenizer.special_tokens_map)
    prompt = gm.Chat("prompt", template=template, add_generation_prompt=True)
    return functools.partial(gm.PromptDataset, str(path), tokenizer=encoder, prompt=prompt, prompt_length=length)


def timed(run: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    found = run()
    return time.perf_counter() - start, found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("--template", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(arguments.tokenizer))
    if arguments.template is not None:
        tokenizer.chat_template = arguments.template.read_bytes().decode()
    config = {"max_prompt_length": arguments.length, "filter_overlong_prompts": True, "prompt_items": "tokens"}
    names = ("transformers", "tokenizers", "datasets", "pyarrow")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    print(f"gristmill {gm.__version__}, {', '.join(versions)}, Python {platform.python_version()}")
    theirs, ours, alone = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "prompts.parquet"
        write_prompts(path, arguments.rows)
        print(f"{arguments.rows:,} records, {path.stat().st_size / 2**20:.1f} MiB, {arguments.workers} processes")
        for number in range(arguments.rounds):  # in turn, since the machine may be shared
            cache = f"{folder}/cache{number}"  # else the second round would find the result of the first
            spent, kept = timed(
                functools.partial(verl_way, path, tokenizer, arguments.length, arguments.workers, cache)
            )
            theirs.append(spent)
            spent, found = timed(lambda: RLHFDataset(str(path), tokenizer, config))
            ours.append(spent)
            indices = [info["index"] for info in kept["extra_info"]]
            assert indices == [found[i]["index"] for i in range(len(found))], "the kept records differ"
            spent, prompts = timed(filter_alone(path, tokenizer, arguments.length))
            alone.append(spent)
            assert len(prompts) == len(found)
            print(
                f"round {number}: datasets {theirs[-1]:.2f} s, RLHFDataset {ours[-1]:.3f} s, of which its filter "
                f"{alone[-1]:.3f} s; {len(found):,} kept",
                flush=True,
            )
    theirs_median = statistics.median(theirs)
    for name, spent in (("RLHFDataset", statistics.median(ours)), ("its filter", statistics.median(alone))):
        print(f"median: datasets {theirs_median:.2f} s, {name} {spent:.3f} s: {theirs_median / spent:.0f} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
