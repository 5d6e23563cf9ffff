"""Images a second that a training loop gets for its model, of a folder that Megatron-Energon can read too.

python benches/image_loaders.py [--seconds 4] [--rounds 5] [--threads 1 2] [--loaders target/loaders/bin/python]

The folder holds a photograph of matplotlib in 256 JPEGs of 512 x 600 to 1600 x 1200 pixels, with captions,
in tars and with the files of `energon prepare`. Everybody reads, decodes and resizes them to 224 x 224 (SigLIP):

- gristmill: `PackedDataset` with `ImageText("siglip")` and 1 or 2 threads;
- Pillow: `Image.open`, `convert`, `resize` over the files in memory, in as many threads;
- torchvision: `decode_jpeg` and an antialiased bicubic resize, likewise;
- Energon: its train loader with as many workers, which decodes and resizes with Pillow.

torchvision and Energon are run by `--loaders`, a Python that has them (`pip install torch torchvision
megatron-energon`, some 6 GB); those that it lacks are left out, which is printed. Contenders take turns in each round;
medians are printed, and Pillow's pixels are compared with gristmill's before.
"""

import argparse
import io
import itertools
import json
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIDE = 224
SHARDS = 8
OF_SHARD = 32
WARM_UP = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--loaders", type=Path, default=Path("target/loaders/bin/python"))
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)  # the part of `--loaders`: a contender and a folder
    arguments = parser.parse_args()
    if arguments.play:
        play(*arguments.play)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder))
        compare(arguments, folder)


def compare(arguments: argparse.Namespace, folder: str) -> None:
    """Prints a line for each contender."""
    pythons = {
        "gristmill": Path(sys.executable), "Pillow": Path(sys.executable), "torchvision": arguments.loaders,
        "Energon": arguments.loaders,
    }  # fmt: skip
    players = {name: Player(python, name, folder) for name, python in pythons.items()}
    for player in [player for player in players.values() if player.missing]:
        print(f"{player.name} is left out: {player.missing}")
        del players[player.name]
    print(", ".join(player.version for player in players.values()))
    for threads in arguments.threads:
        rounds = [
            {name: player.speed(threads, arguments.seconds) for name, player in players.items()}
            for _ in range(arguments.rounds)
        ]
        print(f"\n{f'images a second, {threads} thread' + 's' * (threads > 1):30} {'median':>8} {'gristmill is':>24}")
        for name in players:
            speeds = [speeds[name] for speeds in rounds]
            ratios = sorted(speeds["gristmill"] / speeds[name] for speeds in rounds)
            times = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"{name:30} {statistics.median(speeds):8.0f} {times if name != 'gristmill' else '':>24}", flush=True)
    for player in players.values():
        player.close()


class Player:
    """A process that runs a contender whenever it is asked to."""

    def __init__(self, python: Path, name: str, folder: str) -> None:
        self.name = name
        self.version = ""
        if not python.exists():
            self.missing: str | None = f"{python} does not exist"
            return
        command = [str(python), __file__, "--play", name, folder]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hello = self._answer()
        self.missing, self.version = hello.get("missing"), hello.get("version", "")

    def speed(self, threads: int, seconds: float) -> float:
        """Images a second, by the clock, of a run of its own."""
        assert self._process.stdin is not None
        print(json.dumps([threads, seconds]), file=self._process.stdin, flush=True)
        return float(self._answer()["speed"])

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # Energon prints too
            if line.startswith('{"image_loaders":'):
                return dict(json.loads(line)["image_loaders"])
        raise RuntimeError(f"{self.name} ended with {self._process.wait()}")


def play(name: str, folder: str) -> None:
    """Answers questions on the standard input with speeds of a contender."""

    def answer(**values: Any) -> None:
        print(json.dumps({"image_loaders": values}), flush=True)

    try:
        version, run = CONTENDERS[name](Path(folder))
    except ImportError as error:
        answer(missing=str(error))
        return
    answer(version=version)
    for line in sys.stdin:
        threads, seconds = json.loads(line)
        answer(speed=run(threads, seconds))


Run = Callable[[int, float], float]


def gristmill(folder: Path) -> tuple[str, Run]:
    """The loader, with captions that no image tokens are in."""
    import numpy as np

    import gristmill as gm

    def run(threads: int, seconds: float) -> float:
        dataset = gm.PackedDataset(
            gm.EnergonFolder(folder), tokenizer=folder / "tokenizer.json", packing="pad", eos=False, sequence_length=32,
            sample=gm.ImageText("siglip", max_images=1), batch_size=16, lanes=4, seed=1, shuffle_window=64,
            threads=threads, epochs=None,
        )  # fmt: skip
        with iter(dataset) as iterator:
            return speed_of((int(batch["image_masks"].sum()) for batch in iterator), seconds)

    model = gm.ImageModel("siglip")
    for data in images_of(folder)[:OF_SHARD]:
        np.testing.assert_array_equal(model.pixels(data), by_pillow(data))
    return f"gristmill {gm.__version__}", run


def pillow(folder: Path) -> tuple[str, Run]:
    """Pillow in threads."""
    import PIL

    return f"Pillow {PIL.__version__}", in_threads(folder, by_pillow)


def torchvision(folder: Path) -> tuple[str, Run]:
    """Torchvision in threads, each operation of which uses one."""
    import torch
    import torchvision
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import InterpolationMode
    from torchvision.transforms.v2.functional import resize

    torch.set_num_threads(1)

    def work(data: bytes) -> Any:
        pixels = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
        return resize(pixels, [SIDE, SIDE], InterpolationMode.BICUBIC, antialias=True)

    return f"torchvision {torchvision.__version__}", in_threads(folder, work)


def energon(folder: Path) -> tuple[str, Run]:
    """Energon's train loader, whose workers are processes."""
    import megatron.energon as me
    import numpy as np
    import torch
    from PIL import Image

    class Encoder(me.DefaultTaskEncoder):  # type: ignore[misc, name-defined]
        decoder = me.SampleDecoder(image_decode="pilrgb")

        @me.stateless
        def encode_sample(self, sample: Any) -> Any:
            image = sample.image
            if not isinstance(image, Image.Image):
                image = Image.fromarray(np.asarray(image).transpose(1, 2, 0))
            resized = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            sample.image = torch.from_numpy(np.array(resized))
            return sample

    def run(workers: int, seconds: float) -> float:
        dataset = me.get_train_dataset(
            str(folder), batch_size=16, shuffle_buffer_size=64, max_samples_per_sequence=None, task_encoder=Encoder(),
            worker_config=me.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        )  # fmt: skip
        batches = iter(me.get_savable_loader(dataset))
        return speed_of((len(batch.image) for batch in batches), seconds)

    from importlib.metadata import version

    return f"Energon {version('megatron-energon')}", run


CONTENDERS = {"gristmill": gristmill, "Pillow": pillow, "torchvision": torchvision, "Energon": energon}


def by_pillow(data: bytes) -> Any:
    """The steps of SigLIP's processor with Pillow, up to the normalization."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def speed_of(counts: Iterator[int], seconds: float) -> float:
    """Images a second once the first batches are there."""
    start, done = time.perf_counter(), 0
    for count in counts:
        if time.perf_counter() - start >= WARM_UP:
            break
        done = count
    start, done = time.perf_counter(), 0
    for count in counts:
        done += count
        if time.perf_counter() - start >= seconds:
            break
    return done / (time.perf_counter() - start)


def in_threads(folder: Path, work: Callable[[bytes], Any]) -> Run:
    """Does work on the images of a folder, in threads."""
    images = images_of(folder)

    def run(threads: int, seconds: float) -> float:
        counts = [0] * threads
        start = time.perf_counter()

        def loop(thread: int) -> None:
            for data in itertools.cycle(images[thread::threads]):
                work(data)
                counts[thread] += 1
                if time.perf_counter() - start >= seconds:
                    return

        running = [threading.Thread(target=loop, args=(thread,)) for thread in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return sum(counts) / (time.perf_counter() - start)

    return run


def images_of(folder: Path) -> list[bytes]:
    """The JPEGs of a folder's tars."""
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.endswith(".jpg"):
                    file = archive.extractfile(member)
                    assert file is not None
                    found.append(file.read())
    return found


def write_folder(folder: Path) -> None:
    """Shards of photographs, each a little different, with captions, and what `energon prepare` writes."""
    photographs = list(photographs_here())
    counts, number = {}, 0
    for shard in range(SHARDS):
        name = f"photographs-{shard:03}.tar"
        with tarfile.open(folder / name, "w") as archive:
            starts = []
            for _ in range(OF_SHARD):
                image = photographs[number % len(photographs)].rotate(number // len(photographs))
                file = io.BytesIO()
                image.save(file, "JPEG", quality=80 + number % 15)
                for extension, data in [("jpg", file.getvalue()), ("txt", f"Photograph {number}.".encode())]:
                    if extension == "jpg":
                        starts.append(archive.offset)
                    member = tarfile.TarInfo(f"{number:06}.{extension}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                number += 1
            end = archive.offset
        (folder / f"{name}.idx").write_bytes(struct.pack(f"<{len(starts) + 1}Q", *starts, end))
        counts[name] = OF_SHARD
    meta = folder / ".nv-meta"
    meta.mkdir()
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    (meta / "split.yaml").write_text(
        json.dumps({"split_parts": {"train": list(counts), "val": [], "test": []}, "exclude": []})
    )
    (meta / "dataset.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}\n"
        "field_map: {image: jpg, caption: txt}\n"
    )
    (meta / "index.uuid").write_text("00000000-0000-4000-8000-000000000000")
    write_tokenizer(folder / "tokenizer.json")


def photographs_here() -> Iterator[Any]:
    """A photograph in several sizes, as Pillow's images."""
    from matplotlib import cbook
    from PIL import Image

    with cbook.get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        hopper = image.convert("RGB")
    for width, height in [(512, 600), (640, 480), (1024, 768), (1600, 1200)]:
        yield hopper.resize((width, height), Image.Resampling.LANCZOS)


def write_tokenizer(path: Path) -> None:
    """A tokenizer of bytes."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["Photograph 1."], trainer)
    tokenizer.save(str(path))


if __name__ == "__main__":
    main()
