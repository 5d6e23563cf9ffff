"""Packs, resumes, verifies and quarantines on a file system that lacks calls: run under `limited_file_system.c`.

Arguments: a folder to work in, and JSON: a list of cases, each with the error of every call that fails.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import gristmill as gm
from gristmill._cli import main
from gristmill._files import pack as pack_module
from gristmill._util import folder_lock
from gristmill._util.folder_lock import HOLDER, LOCK, locked
from helpers import write_shard

CALLS = ("flock", "sync_folder", "open_folder", "sync_file", "replace", "map_shared", "map", "count_names")
FORMATS = ("npy", "megatron", "array_record", "parquet")
PARTS_BEFORE_THE_END = 2
ENDED = os.fork()
if not ENDED:
    time.sleep(60)
LEFT_BY_A_KILL = json.dumps(
    {"host": "here", "pid": ENDED, "machine": folder_lock._machine(), "started": folder_lock._started(ENDED)}
)
os.kill(ENDED, 9)
os.waitpid(ENDED, 0)


def set_failures(failures):
    libc = ctypes.CDLL(None)
    for call in CALLS:
        assert libc.fail(call.encode(), failures.get(call, 0)), call


def run(*arguments):
    return main.run(list(map(str, arguments)))


def interrupted_run(*arguments):
    finish = pack_module._Part.finish

    def finish_and_stop(part, *more):
        if part._number == PARTS_BEFORE_THE_END:
            raise KeyboardInterrupt
        return finish(part, *more)

    pack_module._Part.finish = finish_and_stop
    try:
        assert run(*arguments) == 130
    finally:
        pack_module._Part.finish = finish


def contents(folder):
    """The files of a folder, without its own path in the index."""
    return {
        path.name: path.read_bytes().replace(str(folder).encode(), b"")
        for path in folder.iterdir()
        if not path.name.startswith(LOCK)
    }


def pack_and_verify(source, folder, file_format):
    pack = ["pack", source / "a.jsonl", "--tokenizer", source / "tokenizer.json", "--eos", "1", "--output", folder]
    pack += ["--text-field", "raw_content", "--sequence-length", "8", "--batch-size", "2", "--rows-per-file", "20"]
    pack += ["--on-error", "quarantine", "--max-error-rate", "1", "--format", file_format, "--threads", "1"]
    interrupted_run(*pack)
    assert len(list(folder.glob("part-*.json"))) == PARTS_BEFORE_THE_END
    assert not (folder / HOLDER).exists()
    (folder / HOLDER).write_text(LEFT_BY_A_KILL)
    with locked(folder):
        assert run(*pack) == 1, "two processes write into one folder"
    for _ in range(2):
        assert run(*pack) == 0
        found = contents(folder)
        # Where flock works, the lock file has no meaning.
        (folder / HOLDER).unlink(missing_ok=True)
    assert run("verify", folder, "--threads", "1") == 0
    assert run("inspect", folder) == 0
    return found


def states_and_quarantine(source, folder):
    """The lines of a quarantine file, and the stream after a restored state."""

    arguments = {
        "tokenizer": source / "tokenizer.json",
        "text_field": "raw_content",
        "sequence_length": 8,
        "batch_size": 2,
        "threads": 1,
        "eos": 1,
        "on_error": "quarantine",
        "max_error_rate": 1.0,
        "quarantine_file": folder / "quarantine.jsonl",
    }

    def iterate():
        return iter(gm.PackedDataset(source / "a.jsonl", **arguments))

    with iterate() as iterator:
        for _ in range(20):
            next(iterator)
        state = iterator.get_state()
    with iterate() as iterator:
        iterator.set_state(state)
        rest = [batch["inputs"].tolist() for batch in iterator]
        iterator.get_state()
    return sorted((folder / "quarantine.jsonl").read_text().splitlines()), rest


def everything(source, folder, file_format):
    folder.mkdir()
    packed = pack_and_verify(source, folder / "packed", file_format)
    return packed, states_and_quarantine(source, folder)


def main_program(folder, cases):
    write_shard(folder / "a.jsonl", [("a" * 29 if number % 5 else None) for number in range(60)])
    model = {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    expected = {name: everything(folder, folder / f"usual-{name}", name) for name in FORMATS}
    for number, failures in enumerate(cases):
        name = FORMATS[number % len(FORMATS)]
        print("case", number, failures, name, file=sys.stderr, flush=True)
        set_failures(failures)
        try:
            found = everything(folder, folder / f"case-{number}", name)
        finally:
            set_failures({})
        # The order of entries in a quarantine file is that of the threads.
        for listed in (found[0], expected[name][0]):
            listed.pop("quarantine.jsonl", None)
        assert found == expected[name]


if __name__ == "__main__":
    main_program(Path(sys.argv[1]), json.loads(sys.argv[2]))
