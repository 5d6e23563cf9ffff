"""How fast shards on a web server become batches, beside other ways to read them.

python benches/stores.py [--latency 0.02] [--megabytes-per-second 30]

A server in a process of its own answers each request after the latency, and sends at most so many bytes a second over
each connection. Three jobs:

- transport: plain JSONL, nearly all of whose bytes are in a field that nobody reads, so that the network bounds;
- work: plain JSONL of texts, so that the cores that encode bound; also from local files, for comparison;
- start: the time to the first batch of 64 lanes.

The others do the same work with the same encoder and packing, in as many threads as there are lanes and cores: only
the way of the bytes differs. `fsspec` reads file objects of its http file system, which needs aiohttp; `datasets`
streams.
"""

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import gristmill as gm
from gristmill._demo import sample_text

CHUNK = 128 << 10


# The server.


async def serve(folder: Path, latency: float, bytes_per_second: float) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                data = objects[path]
                start, end = 0, len(data)
                if span := fields.get("range"):
                    first, _, last = span.removeprefix("bytes=").partition("-")
                    start, end = int(first), min(int(last or end - 1) + 1, end)
                await asyncio.sleep(latency)
                status = "206 Partial Content" if span else "200 OK"
                writer.write(
                    f'HTTP/1.1 {status}\r\nContent-Length: {end - start}\r\nAccept-Ranges: bytes\r\nETag: "x"\r\n'
                    f"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
                    f"Content-Range: bytes {start}-{end - 1}/{len(data)}\r\n\r\n".encode()
                )
                due = time.monotonic()
                for at in range(start, end if method == "GET" else start, CHUNK):
                    piece = data[at : min(at + CHUNK, end)]
                    writer.write(piece)
                    await writer.drain()
                    due += len(piece) / bytes_per_second
                    await asyncio.sleep(max(0, due - time.monotonic()))
        writer.close()

    objects = {f"/{path.name}": memoryview(path.read_bytes()) for path in folder.iterdir()}
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


@contextlib.contextmanager
def serving(folder: Path, latency: float, rate: float) -> Iterator[tuple[str, int]]:
    """The URL of a server, and its process."""
    command = [sys.executable, __file__, "--serve", str(folder), str(latency), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.kill()


# The jobs.


def write(folder: Path, shards: int, megabytes: float, filler: int) -> list[Path]:
    """Shards of texts, each record with so many further bytes."""
    texts = []
    sample = sample_text.prepare(folder / "sample", 8)
    for path in sorted(Path(sample.folder).glob("*/en_head.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)[sample_text.TEXT_FIELD] for line in lines]
    texts = [text[start : start + 4000] for text in texts for start in range(0, len(text), 4000)]
    where = folder / f"shards-{shards}-{megabytes}-{filler}"
    where.mkdir()
    paths = []
    for number in range(shards):
        turned = itertools.cycle(texts[number * 97 % len(texts) :] + texts)
        path = where / f"{number:03d}.jsonl"
        left = megabytes * 1e6
        with path.open("w") as file:
            while left > 0:
                record = {"raw_content": next(turned)[: 200 if filler else None]}
                left -= file.write(json.dumps(record | ({"other": "x" * filler} if filler else {})) + "\n")
        paths.append(path)
    return paths


def own(shards: list[str], tokenizer: gm.Encoder, **more: object) -> gm.PackedDataset:
    return gm.PackedDataset(
        shards, tokenizer=tokenizer, text_field="raw_content", sequence_length=1024, batch_size=64, **more
    )


def gristmill(shards: list[str], tokenizer: gm.Encoder, lanes: int) -> str:
    iterator = iter(own(shards, tokenizer, lanes=lanes))
    for _ in iterator:
        pass
    stats = iterator.stats()
    return (
        f"{stats['requests']} requests, lanes waited {stats['fetch_wait_seconds']:.1f} s" if "requests" in stats else ""
    )


def by_lines(lines_of: object, shards: list[str], tokenizer: gm.Encoder, lanes: int) -> str:
    """Encodes and packs the lines that a function yields of a shard, a lane in each thread."""

    def lane(number: int) -> int:
        ids: list[int] = []
        rows = 0
        for shard in shards[number::lanes]:
            for line in lines_of(shard):
                text = line["raw_content"] if isinstance(line, dict) else json.loads(line)["raw_content"]
                ids.extend(tokenizer.encode(text))
                rows += len(ids) // 1024
                del ids[: len(ids) // 1024 * 1024]
        return rows

    with ThreadPoolExecutor(lanes) as pool:
        rows = sum(pool.map(lane, range(lanes)))
    return f"{rows} rows"


def fsspec_lines(url: str) -> Iterator[bytes]:
    import fsspec

    with fsspec.open(url, "rb") as file:
        yield from file


def datasets_lines(url: str) -> Iterator[dict[str, str]]:
    import datasets

    yield from datasets.load_dataset("json", data_files=[url], split="train", streaming=True)


# Measuring.


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(what: str, size: float, server: int | None, job: object, *arguments: object) -> None:
    before, cpu = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    of_server = cpu_seconds(server) if server else 0.0
    note = job(*arguments)
    seconds, now = time.monotonic() - before, resource.getrusage(resource.RUSAGE_SELF)
    busy = (now.ru_utime + now.ru_stime - cpu.ru_utime - cpu.ru_stime) / seconds
    of_server = (cpu_seconds(server) - of_server) / seconds if server else 0.0
    cores = f"cores {busy:4.2f}, of the server {of_server:4.2f}"
    print(f"{what:32} {size / seconds / 1e6:7.1f} MB/s {seconds:6.2f} s  {cores}  {note}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds before each answer")
    parser.add_argument("--megabytes-per-second", type=float, default=30, help="of each connection")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=4, help="of a shard of the job `work`")
    parser.add_argument("--jobs", nargs="+", default=["transport", "work", "start"])
    parser.add_argument("--others", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    print(
        f"gristmill {gm.__version__}, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in ("fsspec", "datasets"))
        + f"; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    rate = options.megabytes_per_second * 1e6
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokenizer = gm.Encoder.from_file(sample_text.tokenizer())
        for job in options.jobs:
            small = job == "start"
            filler = 400_000 if job == "transport" else 0
            paths = write(folder, 64 if small else options.shards, 1 if small else options.megabytes, filler)
            size = sum(path.stat().st_size for path in paths)
            slow = rate / 10 if job == "transport" else rate
            with serving(paths[0].parent, options.latency, slow) as (url, server):
                urls = [f"{url}/{path.name}" for path in paths]
                if small:
                    for _ in range(3):
                        before = time.monotonic()
                        iterator = iter(own(urls, tokenizer, lanes=64))
                        next(iterator)
                        print(f"start: first batch after {(time.monotonic() - before) * 1000:.0f} ms")
                        iterator.close()
                    continue
                if job == "transport":
                    total = options.lanes * slow / 1e6
                    print(f"transport: {slow / 1e6:.0f} MB/s a connection, so {total:.0f} MB/s of one for each lane")
                measured(f"{job}: gristmill", size, server, gristmill, urls, tokenizer, options.lanes)
                if job == "work":
                    local = [str(path) for path in paths]
                    measured("work: gristmill, local files", size, None, gristmill, local, tokenizer, options.lanes)
                if options.others:
                    for name, lines in (("fsspec", fsspec_lines), ("datasets", datasets_lines)):
                        measured(f"{job}: {name}", size, server, by_lines, lines, urls, tokenizer, options.lanes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
    else:
        main()
