"""The memory of a process, measured as a user would: a long endless stream, and hostile shards.

    python benches/soak.py stream --minutes 5 --svg docs/soak.svg
    python benches/soak.py hostile --folder /somewhere/with/4GB
    python benches/soak.py images --folder /somewhere/with/4GB --steps 400

`stream` samples resident memory, open files and threads of an endless run, and draws them. `hostile` makes the shards
that SECURITY.md speaks of, reads each in a process of its own, and says how much memory that took at most. `images`
shuffles a window of 10,000 samples with photographs of 3840 x 2160 pixels, and prints resident memory by steps. All
exit with 1 if a bound is passed.
"""

import argparse
import gzip
import io
import json
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data import topics

import tokenizers

import gristmill as gm

MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    stream = commands.add_parser("stream")
    stream.add_argument("--minutes", type=float, default=5)
    stream.add_argument("--svg", type=Path)
    hostile = commands.add_parser("hostile")
    hostile.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    hostile.add_argument("--only", choices=list(HOSTILE))
    images = commands.add_parser("images")
    images.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    images.add_argument("--steps", type=int, default=400)
    read = commands.add_parser("read")  # the command that `hostile` starts for each kind
    read.add_argument("shards")
    read.add_argument("tokenizer")
    read.add_argument("arguments", type=json.loads)
    arguments = parser.parse_args()
    if arguments.command == "read":
        return play(arguments)
    with tempfile.TemporaryDirectory(dir=getattr(arguments, "folder", None)) as folder:
        run = {"stream": soak, "hostile": hostile_shards, "images": soak_images}[arguments.command]
        return run(arguments, Path(folder))


def write_tokenizer(folder: Path) -> Path:
    """A byte-level BPE tokenizer of 2,000 tokens, trained on Python's own documentation."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(list(topics.topics.values()), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def memory(kind: str) -> int:
    """`VmRSS` or `VmHWM`, the most there was, of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind))
    return int(line.split()[1]) * 1024


def entries(name: str) -> int:
    return sum(1 for _ in Path(f"/proc/self/{name}").iterdir())


# --- an endless stream ---


def soak(arguments: argparse.Namespace, folder: Path) -> int:
    """Samples an endless stream of shards with bad lines and cut ends, shuffled, with states saved and restored."""
    rng = random.Random(3)
    documents = [text[start : start + 3000] for text in topics.topics.values() for start in range(0, len(text), 3000)]
    for number in range(12):
        lines = [json.dumps({"text": " ".join(rng.sample(documents, 2))}) for _ in range(400)]
        lines[rng.randrange(400)] = "{"
        data = gzip.compress("\n".join(lines).encode())
        (folder / f"{number:02}.jsonl.gz").write_bytes(data[: len(data) - 1000 * (number == 5)])
    dataset = gm.PackedDataset(
        str(folder / "*.jsonl.gz"), tokenizer=write_tokenizer(folder), sequence_length=2048, batch_size=8, epochs=None,
        eos="</s>", seed=1, on_error="quarantine", max_error_rate=0.2, quarantine_file=folder / "quarantine.jsonl",
    )  # fmt: skip
    samples = sample(dataset, arguments.minutes * 60)
    first, last = samples[len(samples) // 5], samples[-1]
    settled = [rss for _, rss, _, _, _ in samples[len(samples) // 5 :]]
    third = len(settled) // 3
    grown = statistics.median(settled[-third:]) - statistics.median(settled[:third])
    spread = max(settled) - min(settled)
    files, threads = ({row[column] for row in samples[len(samples) // 5 :]} for column in (2, 3))
    print(
        f"{last[0]:.0f} s, {last[4]:,} tokens: memory {statistics.median(settled) / MIB:.0f} MiB (the median from "
        f"{first[0]:.0f} s on), {grown / MIB:+.1f} MiB from first to last third, within {spread / MIB:.1f} MiB; "
        f"open files {sorted(files)}, threads {sorted(threads)}"
    )
    if arguments.svg:
        draw(samples, arguments.svg)
    return int(grown > 32 * MIB or max(files) - min(files) > 16 or len(threads) > 1)


def sample(dataset: gm.PackedDataset, seconds: float) -> list[tuple[float, int, int, int, int]]:
    """Second, resident bytes, open files, threads and tokens, some 300 times."""
    iterator = iter(dataset)
    start, samples, kept = time.monotonic(), [], []
    while (now := time.monotonic() - start) < seconds:
        for _ in range(10):
            kept = [*kept[-5:], next(iterator)]  # a consumer holds some batches
        if now >= len(samples) * seconds / 300:
            tokens = iterator.stats()["tokens"]
            samples.append((now, memory("VmRSS"), entries("fd"), entries("task"), tokens))
            if len(samples) % 60 == 0:  # as a run that is restored now and then
                iterator.set_state(iterator.get_state())
    iterator.close()
    return samples


# --- a window of large images ---

IMAGES = 10_000


def soak_images(arguments: argparse.Namespace, folder: Path) -> int:
    """Memory of a stream whose shuffle window holds 10,000 samples with large photographs."""
    size = write_photographs(folder / "0.tar")
    dataset = gm.PackedDataset(
        folder / "0.tar", tokenizer=write_tokenizer(folder), eos=False, packing="pad", sequence_length=32, batch_size=4,
        lanes=1, seed=1, shuffle_window=IMAGES, epochs=None, threads=2,
        sample=gm.ImageText("siglip", text=gm.Text("txt"), max_images=1),
    )  # fmt: skip
    print(
        f"a window of {IMAGES:,} samples: {size / 2**30:.1f} GiB of JPEGs, "
        f"{3840 * 2160 * 3 * IMAGES / 2**30:.0f} GiB of pixels"
    )
    print(f"{'step':>6} {'images':>7} {'seconds':>8} {'memory, MiB':>12} {'most, MiB':>10}")
    settled, start, most_step = [], time.monotonic(), max(1, arguments.steps // 10)
    with iter(dataset) as iterator:
        for step in range(1, arguments.steps + 1):
            next(iterator)
            if step == 1 or step % most_step == 0:
                now, most = memory("VmRSS") / MIB, memory("VmHWM") / MIB
                print(f"{step:6} {4 * step:7} {time.monotonic() - start:8.1f} {now:12.0f} {most:10.0f}", flush=True)
                settled.append(now)
    grown = settled[-1] - settled[1]
    print(f"memory has grown by {grown:.1f} MiB since step {most_step}")
    return int(grown > 32)


def write_photographs(path: Path) -> int:
    """A tar of a photograph, 4 KiB wide, in other qualities and with captions. Returns the bytes of all images."""
    from matplotlib import cbook
    from PIL import Image

    files = []
    with cbook.get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        large = image.convert("RGB").resize((3840, 2160), Image.Resampling.BICUBIC)
    for quality in range(30, 50):
        data = io.BytesIO()
        large.save(data, "JPEG", quality=quality)
        files.append(data.getvalue())
    size = 0
    with tarfile.open(path, "w") as archive:
        for number in range(IMAGES):
            photograph = files[number % len(files)]
            size += len(photograph)
            for extension, content in [("jpg", photograph), ("txt", f"Photograph {number}.".encode())]:
                member = tarfile.TarInfo(f"{number:06}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return size


def draw(samples: list[tuple[float, int, int, int, int]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "gristmill"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, sharex=True, figsize=(8, 5), height_ratios=(3, 1, 1))
    minutes = [row[0] / 60 for row in samples]
    figures = (("memory, MiB", [row[1] / MIB for row in samples]), ("open files", [row[2] for row in samples]))
    for axis, (name, values) in zip(axes, (*figures, ("threads", [row[3] for row in samples])), strict=True):
        axis.plot(minutes, values, linewidth=1)
        axis.set_ylabel(name)
        axis.set_ylim(0, 1.2 * max(values))
    axes[-1].set_xlabel(f"minutes; {samples[-1][4] / 1e6:,.0f} million tokens")
    figure.align_ylabels()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


# --- hostile shards ---


def repeated(before: bytes, unit: bytes, size: int, after: bytes) -> Iterator[bytes]:
    yield before
    times, per_block = size // len(unit), max(1, MIB // len(unit))
    for _ in range(times // per_block):
        yield unit * per_block
    yield unit * (times % per_block) + after


SOUND = b'{"text": "a"}\n'


def gzipped(folder: Path, parts: Iterator[bytes]) -> str:
    with gzip.open(folder / "shard.jsonl.gz", "wb", compresslevel=6) as shard:
        for part in parts:
            shard.write(part)
    return str(folder / "shard.jsonl.gz")


def line_of_3_gb(folder: Path) -> str:
    return gzipped(folder, repeated(SOUND + b'{"text": "', b"x", 3000 * MIB, b'"}\n' + SOUND))


def document_of_1_gb(folder: Path) -> str:
    return gzipped(folder, repeated(b'{"text": "', b"some words and ", 1000 * MIB, b'"}\n'))


def empty_documents(folder: Path) -> str:
    return gzipped(folder, repeated(b"", b'{"text": ""}\n', 13 * 10**7, SOUND))


def bomb_of_1000(folder: Path) -> str:
    return gzipped(folder, repeated(SOUND, b"\0", 2000 * MIB, b"\n" + SOUND))


def bomb_of_27(folder: Path) -> str:
    rng = random.Random(1)
    words = [rng.randbytes(rng.randrange(2, 9)).hex().encode() for _ in range(60)]
    lines = [b'{"text": "' + b" ".join(rng.choices(words, k=4)) + b" and so on" * 26 + b'"}\n' for _ in range(500)]
    return gzipped(folder, repeated(b"", b"".join(lines), 700 * MIB, SOUND))


def many_shards(folder: Path) -> str:
    data = gzip.compress(SOUND)
    for number in range(10**5):
        path = folder / f"{number // 1000:03}" / f"{number:06}.jsonl.gz"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return str(folder / "*" / "*.jsonl.gz")


# The shards, other arguments, the most memory in MiB beyond that of the same process on one small shard, and what is
# expected of the counts: documents, and quarantined records.
HOSTILE: dict[str, tuple[Callable[[Path], str], dict[str, object], int, tuple[int, int]]] = {
    "3 GB line": (line_of_3_gb, {"max_error_rate": 0.5}, 4 * 128 + 64, (2, 1)),
    "1 GB document": (document_of_1_gb, {"max_document_bytes": 2**30}, 5 * 1024, (1, 0)),
    "10^7 empty documents": (empty_documents, {}, 64, (10**7 + 1, 0)),
    "1000:1 bomb": (bomb_of_1000, {"max_error_rate": 0.5}, 4 * 128 + 64, (2, 1)),
    "27:1 bomb": (bomb_of_27, {}, 96, (0, 0)),
    "10^5 shards": (many_shards, {"batch_size": 64}, 128, (10**5, 0)),
}


def hostile_shards(arguments: argparse.Namespace, folder: Path) -> int:
    tokenizer = write_tokenizer(folder)
    (folder / "small").mkdir()
    (folder / "small" / "shard.jsonl").write_bytes(SOUND)
    plain = read(str(folder / "small" / "shard.jsonl"), tokenizer, {})["memory"]
    failed = 0
    for name in [arguments.only] if arguments.only else HOSTILE:
        make, more, bound, (documents, quarantined) = HOSTILE[name]
        case = folder / name.replace(" ", "-")
        case.mkdir()
        shards = make(case)
        size = sum(path.stat().st_size for path in case.rglob("*.gz"))
        seen = read(shards, tokenizer, more)
        beyond = (seen["memory"] - plain) / MIB
        right = beyond <= bound and (
            not documents or (seen["documents"], seen["quarantined"]) == (documents, quarantined)
        )
        failed += not right
        print(
            f"{name} ({size / MIB:.1f} MiB on disk): {seen['documents']:,} documents, {seen['rows']:,} rows, "
            f"{seen['quarantined']} quarantined; made in {seen['made']:.1f} s, read in {seen['read']:.1f} s; "
            f"{beyond:.0f} of {bound} MiB more than one small shard, {seen['files']} files open"
            + ("" if right else "  <-- wrong"),
            flush=True,
        )
    return int(failed > 0)


def read(shards: str, tokenizer: Path, arguments: dict[str, object]) -> dict[str, float]:
    """Plays the shards in a process of its own."""
    command = [sys.executable, __file__, "read", shards, str(tokenizer), json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def play(arguments: argparse.Namespace) -> int:
    start = time.monotonic()
    dataset = gm.PackedDataset(
        arguments.shards,
        tokenizer=arguments.tokenizer,
        on_error="quarantine",
        threads=2,
        eos="</s>",
        **arguments.arguments,
    )
    iterator = iter(dataset)
    made, rows, files = time.monotonic(), 0, 0
    for _ in iterator:
        rows += 1
        files = max(files, entries("fd")) if rows % 50 == 1 else files
    stats = iterator.stats()
    seen = {key: stats[key] for key in ("documents", "quarantined")}
    seen |= {
        "rows": rows,
        "made": made - start,
        "read": time.monotonic() - made,
        "files": files,
        "memory": memory("VmHWM"),
    }
    print(json.dumps(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
