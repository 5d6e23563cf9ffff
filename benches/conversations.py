"""Writes conversations of made-up prose, which `gristmill bench --sample chat` measures.

python benches/conversations.py chats.jsonl [--conversations 20000]
"""

import argparse
import json
import pathlib
import random
import sys

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


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--conversations", type=int, default=20_000)
    arguments = parser.parse_args()
    write_conversations(arguments.file, arguments.conversations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
