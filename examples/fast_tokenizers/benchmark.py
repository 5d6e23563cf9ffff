"""The speed of a tokenizer of transformers with and without gristmill, by the calls of trainers and servers.

    python examples/fast_tokenizers/benchmark.py TOKENIZER_FOLDER TEXTS.jsonl --field text

The rows are those of Megatron-LM (a document, no special tokens), of NeMo-RL (conversations of several turns), and
of SGLang (a long prompt; a batch that is padded). All results are compared before anything is timed. The best of
several rounds counts, so caches are warm in both.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from gristmill.integrations.transformers import fast

_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def calls_of(texts: list[str]) -> dict[str, tuple[int, Callable[[Any], Any]]]:
    """By name: the bytes of text of a call, and the call."""
    conversations = [
        [{"role": role, "content": text[:500]} for role, text in zip(("user", "assistant") * 4, part, strict=False)]
        for part in zip(*[iter(texts)] * 8, strict=False)
    ]
    long, batch = "\n".join(texts)[:200_000], [text[:2000] for text in texts[:64]]
    sizes = [sum(len(text.encode()) for text in some) for some in (texts, [long], batch)]
    said = sum(len(message["content"].encode()) for one in conversations for message in one)
    return {
        "documents": (sizes[0], lambda one: [one(text, add_special_tokens=False)["input_ids"] for text in texts]),
        "conversations": (said, lambda one: [one.apply_chat_template(messages) for messages in conversations]),
        "a long prompt": (sizes[1], lambda one: one.encode(long)),
        "a padded batch": (sizes[2], lambda one: one(batch, padding=True)["input_ids"]),
    }


def seconds(call: Callable[[], Any], rounds: int) -> float:
    """The shortest time of some rounds."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares a tokenizer of transformers with and without gristmill.")
    parser.add_argument("tokenizer", help="a folder, or a model of the hub")
    parser.add_argument("texts", type=Path, help="a file of JSON lines")
    parser.add_argument("--field", default="text")
    parser.add_argument("--count", type=int, default=1000, help="texts that are read")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with options.texts.open(encoding="utf-8") as lines:
        texts = [json.loads(line)[options.field] for line in islice(lines, options.count)]
    plain = AutoTokenizer.from_pretrained(options.tokenizer)
    plain.chat_template = plain.chat_template or _TEMPLATE
    plain.pad_token = plain.pad_token or plain.eos_token or plain.convert_ids_to_tokens(0)
    own = fast(plain)
    print(f"{'call':16} {'transformers':>14} {'gristmill':>14}   MB/s of UTF-8")
    for name, (size, call) in calls_of(texts).items():
        if call(plain) != call(own):
            raise SystemExit(f"{name}: the results differ")
        speeds = [size / 1e6 / seconds(partial(call, one), options.rounds) for one in (plain, own)]
        print(f"{name:16} {speeds[0]:14.1f} {speeds[1]:14.1f}   {speeds[1] / speeds[0]:.1f}x")


if __name__ == "__main__":
    main()
