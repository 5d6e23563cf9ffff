"""Times the text of conversations: the crate `chat-template` beside transformers, each on one thread.

    cargo build --release -p gristmill-chat-template --example speed
    python benches/chat_templates.py TEMPLATE...

A table of microseconds for one conversation: `apply_chat_template(tokenize=False)`, from Python objects; the text of
the crate with spans, from JSON bytes; and its text with a mask. Each is the fastest of several rounds.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

PROGRAM = pathlib.Path(__file__).parents[1] / "target/release/examples/speed"


def conversation(turns: int) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": "You are helpful."}]
    for _ in range(turns):
        messages.append({"role": "user", "content": "What is the capital of France, and why? " * 3})
        messages.append({"role": "assistant", "content": "The capital of France is Paris. " * 10})
    return messages


def transformers_time(tokenizer: Any, source: str, messages: list[dict[str, Any]]) -> float:
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(20):
            tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False)
        best = min(best, (time.perf_counter() - start) / 20)
    return best * 1e6


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("templates", type=pathlib.Path, nargs="+")
    parser.add_argument("--turns", type=int, default=4)
    arguments = parser.parse_args()
    messages = conversation(arguments.turns)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")), bos_token="<s>", eos_token="</s>"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(messages, file)
        file.flush()
        command = [str(PROGRAM), file.name, *map(str, arguments.templates)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    print(f"{'template':40} transformers   spans    mask   times")
    for path, line in zip(arguments.templates, lines, strict=True):
        rendering, masked = map(float, line.split("\t")[1:])
        theirs = transformers_time(tokenizer, path.read_bytes().decode(), messages)
        print(f"{path.name:40} {theirs:12.1f} {rendering:7.2f} {masked:7.2f} {theirs / rendering:7.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
