"""How long a run waits for its first batch when it is restored in the middle of large shards.

python benches/resume.py

Writes shards of real text (the demo's, repeated with variation) that hold 1 GB inflated in all: once as one shard,
once as one for each of eight lanes. Takes a state in the middle, and measures in fresh processes the time from
`set_state` to the first batch. The yardstick is decompression alone up to the same bytes: by zlib, as Python has it,
and by the gzip of the system.
"""

import argparse
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gristmill as gm
from gristmill._demo import sample_text
from gristmill._state import states

PIECE = 1 << 18


# The shards, and a state in their middle.


def write(folder: Path, shards: int, megabytes: int) -> list[Path]:
    """Shards of that many inflated megabytes in all, unless they are there."""
    paths = [folder / f"{megabytes}-{shards}" / f"{number}.jsonl.gz" for number in range(shards)]
    if all(path.exists() for path in paths):
        return paths
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    records = variations(sample_text.prepare(folder / "sample", 32))
    for path in paths:
        left = megabytes * 1_000_000 // shards
        unfinished = path.with_suffix(".part")
        with gzip.open(unfinished, "wb", 6) as file:
            while left > 0:
                left -= file.write(next(records))
        unfinished.rename(path)
    return paths


def variations(sample: sample_text.Sample) -> Iterator[bytes]:
    """The sample's records again and again, each time turned elsewhere: what is repeated is far apart."""
    texts = []
    for path in sorted(Path(sample.folder).glob("*/en_head.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)[sample_text.TEXT_FIELD] for line in lines]
    for turn in range(1_000_000):
        for number, text in enumerate(texts):
            start = (turn * 7919 + number * 104729) % len(text)
            record = {"text": f"{turn} {number} {text[start:]}{text[:start]}"}
            yield (json.dumps(record, ensure_ascii=False) + "\n").encode()


def dataset(paths: list[Path], tokenizer: str, threads: int) -> gm.PackedDataset:
    return gm.PackedDataset(
        [str(path) for path in paths], tokenizer=tokenizer, sequence_length=1024, batch_size=8, lanes=len(paths),
        threads=threads, prefetch=1,
    )  # fmt: skip


def state_in_the_middle(paths: list[Path], tokenizer: str, megabytes: int) -> dict:
    """Plays until all lanes are half through, once."""
    saved = paths[0].parent / "state.json"
    half = megabytes * 500_000 // len(paths)
    if saved.exists():
        return json.loads(saved.read_text())
    iterator = iter(dataset(paths, tokenizer, os.cpu_count() or 1))
    for step, _ in enumerate(iterator):
        if step % 100 == 0 and min(bytes_before(iterator.get_state())) >= half:
            break
    state = iterator.get_state()
    iterator.close()
    saved.write_text(json.dumps(state))
    return state


def bytes_before(state: dict) -> list[int]:
    return [states.cursor_numbers(cursor)["byte"] for cursor in state["lanes"].values()]


# The times that are measured, each in a process of its own.


class Clock:
    """Seconds by the wall's clock and of processor time, that of child processes included."""

    def __enter__(self) -> None:
        self._start = self._now()

    def __exit__(self, *_: object) -> None:
        self.seconds = [end - start for start, end in zip(self._start, self._now(), strict=True)]

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), sum(os.times()[:4])


@dataclass
class Case:
    """The stream that a measure is taken of."""

    paths: list[Path]
    dataset: gm.PackedDataset
    state: dict
    clock: Clock

    def parts(self) -> Iterator[tuple[Path, int]]:
        """Each shard and its inflated bytes before the state."""
        return zip(self.paths, bytes_before(self.state), strict=True)


def resume(case: Case) -> None:
    iterator = iter(case.dataset)
    with case.clock:
        iterator.set_state(case.state)
        next(iterator)
    iterator.close()


def first(case: Case) -> None:
    """A first batch without a state: what of the time above is not due to passing over what lies before."""
    iterator = iter(case.dataset)
    with case.clock:
        next(iterator)
    iterator.close()


def inflate(case: Case) -> None:
    with case.clock:
        for path, byte in case.parts():
            inflater, left = zlib.decompressobj(16 + zlib.MAX_WBITS), byte
            with path.open("rb") as file:
                while left > 0:
                    left -= len(inflater.decompress(file.read(PIECE)))


def system_gzip(case: Case) -> None:
    with case.clock:
        for path, byte in case.parts():
            with subprocess.Popen(["gzip", "-dc", str(path)], stdout=subprocess.PIPE) as process:
                left = byte
                while left > 0:
                    left -= len(process.stdout.read(PIECE))
                process.kill()


MEASURES = {"resume": resume, "first": first, "zlib": inflate, "gzip": system_gzip}


def measure_here(name: str, paths: list[Path], tokenizer: str, cores: int) -> list[float]:
    """The seconds of one measure on so many cores, by the wall's clock and of processor time."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    state = json.loads((paths[0].parent / "state.json").read_text())
    case = Case(paths, dataset(paths, tokenizer, cores), state, Clock())
    MEASURES[name](case)
    return case.clock.seconds


def measure(name: str, paths: list[Path], tokenizer: str, cores: int) -> list[float]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--measure", name, "--tokenizer", tokenizer, "--cores", str(cores)]
    done = subprocess.run([*command, *map(str, paths)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


# The table.


def versions() -> str:
    found = subprocess.run(["gzip", "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return (
        f"gristmill {gm.__version__}, Python {platform.python_version()}, zlib {zlib.ZLIB_RUNTIME_VERSION}, {found}, "
        f"{platform.machine()}, {os.cpu_count()} cores"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=sample_text.default_folder().with_name("resume"))
    parser.add_argument("--megabytes", type=int, default=1000, help="inflated, of all shards")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokenizer", default=None, help="default: that of the demo")
    parser.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tokenizer = arguments.tokenizer or str(sample_text.tokenizer())
    if arguments.measure:
        print(measure_here(arguments.measure, arguments.paths, tokenizer, arguments.cores))
        return
    print(
        f"{versions()}; medians of {arguments.rounds} rounds; CPU: seconds of processor time; first: a first batch "
        "without a state.\n\n"
        "| shards | cores | MB inflated before the state | resume, s | resume, CPU | first, CPU | "
        "zlib, CPU | gzip, CPU | resume / zlib, CPU |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for shards, cores in ((1, 1), (8, 1), (8, 2)):
        paths = write(arguments.folder, shards, arguments.megabytes)
        state = state_in_the_middle(paths, tokenizer, arguments.megabytes)
        # Each round runs all of them, so that a busy machine is busy for all alike.
        rounds = [{name: measure(name, paths, tokenizer, cores) for name in MEASURES} for _ in range(arguments.rounds)]
        wall = statistics.median(figures["resume"][0] for figures in rounds)
        cpu = [statistics.median(figures[name][1] for figures in rounds) for name in MEASURES]
        ratio = statistics.median(figures["resume"][1] / figures["zlib"][1] for figures in rounds)
        print(
            f"| {shards} | {cores} | {sum(bytes_before(state)) / 1e6:.0f} | {wall:.2f} | "
            f"{' | '.join(f'{seconds:.2f}' for seconds in cpu)} | {ratio:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
