"""Exits while daemon threads are in calls of gristmill, as a prefetcher's threads are.

    python exit_program.py TOKENIZER

Run by `test_life.py` and, with the finished wheel, by `make wheel`.
"""

import sys
import threading

import gristmill as gm

encoder = gm.Encoder.from_file(sys.argv[1])
began = threading.Barrier(3)


def encode() -> None:
    began.wait()
    while True:
        encoder.encode("some text " * 50)


for _ in range(2):
    threading.Thread(target=encode, daemon=True).start()
began.wait()
print("ends")
