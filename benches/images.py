"""How many images a second are decoded, and decoded and resized for models, beside Pillow, in rounds in turn.

python benches/images.py [FILE ...] [--rounds 7] [--seconds 0.3] [--threads 1 2]

Without files, a photograph of matplotlib's sample data (512 x 600) is encoded in each format. Pixels are compared
before. Pillow's side of the models is what transformers' PIL processors do with NumPy.
"""

import argparse
import io
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from matplotlib import cbook
from PIL import Image

import gristmill as gm

Work = Callable[[bytes], npt.NDArray[Any]]
ENCODINGS = {
    "JPEG, 4:2:0": ("JPEG", {"quality": 90}),
    "JPEG, 4:4:4": ("JPEG", {"quality": 90, "subsampling": 0}),
    "JPEG, progressive": ("JPEG", {"quality": 90, "progressive": True}),
    "PNG": ("PNG", {}),
    "WebP, lossy": ("WEBP", {"quality": 80}),
    "WebP, lossless": ("WEBP", {"lossless": True}),
    "GIF": ("GIF", {}),
}
MODELS = {
    "siglip, uint8": ("siglip", np.uint8),
    "clip, float32": ("clip", np.float32),
    "gemma3, uint8": ("gemma3", np.uint8),
    "qwen2.5-vl, float32": ("qwen2.5-vl", np.float32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    print(f"gristmill {gm.__version__}, Pillow {PIL.__version__}, NumPy {np.__version__}\n")
    encoded = encoded_photograph()
    photographs = [path.read_bytes() for path in arguments.files] or [encoded["JPEG, 4:2:0"]]
    for threads in arguments.threads:
        kind = f"on {threads} thread" + "s" * (threads > 1)
        print(f"{'images a second ' + kind:30} {'gristmill':>10} {'Pillow':>10} {'ratio (least to most)':>24}")
        decoded = {"photographs": photographs} if arguments.files else {name: [data] for name, data in encoded.items()}
        for name, images in decoded.items():
            report(name, images, gm.decode_image, by_pillow, threads, arguments)
        for name, (model, dtype) in MODELS.items():
            ours, pillows = preparations(gm.ImageModel(model), model, dtype)
            report(name, photographs, ours, pillows, threads, arguments)
        print()


def report(name: str, images: Sequence[bytes], ours: Work, pillows: Work, threads: int, arguments: Any) -> None:
    """Compares the values, and prints the medians of paired rounds."""
    for data in images:
        np.testing.assert_array_equal(ours(data), pillows(data))
    rounds = [
        tuple(speed(work, images, threads, arguments.seconds) for work in (ours, pillows))
        for _ in range(arguments.rounds)
    ]
    ratios = sorted(mine / pillow for mine, pillow in rounds)
    middle = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    mine, pillow = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"{name:30} {mine:10.0f} {pillow:10.0f} {middle:>24}", flush=True)


def speed(work: Work, images: Sequence[bytes], threads: int, seconds: float) -> float:
    """Images a second that all threads together have done."""
    counts = [0] * threads
    start = time.perf_counter()

    def run(thread: int) -> None:
        for data in itertools.cycle(images):
            work(data)
            counts[thread] += 1
            if time.perf_counter() - start >= seconds:
                return

    workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - start)


def by_pillow(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def preparations(model: gm.ImageModel, name: str, dtype: Any) -> tuple[Work, Work]:
    """The array that a model makes of an image, by gristmill and by Pillow with NumPy."""

    def resized(image: Image.Image) -> npt.NDArray[np.uint8]:
        if name == "clip":
            scale = 224 / min(image.size)
            width, height = (224 if side == min(image.size) else int(scale * side) for side in image.size)
            left, top = (width - 224) // 2, (height - 224) // 2
            whole = image.resize((width, height), Image.Resampling.BICUBIC)
            return np.asarray(whole)[top : top + 224, left : left + 224]
        filter_ = Image.Resampling.BILINEAR if name == "gemma3" else Image.Resampling.BICUBIC
        height, width = model.plan(image.height, image.width).size
        return np.asarray(image.resize((width, height), filter_))

    def pillows(data: bytes) -> npt.NDArray[Any]:
        with Image.open(io.BytesIO(data)) as image:
            pixels = resized(image.convert("RGB"))
        if dtype == np.uint8:
            return pixels
        mean, std = np.array([[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]], np.float32)
        normalized = ((pixels.astype(np.float64) * (1 / 255)).astype(np.float32) - mean) / std
        return patches(normalized) if name.startswith("qwen") else normalized

    return lambda data: model.pixels(data, dtype=dtype), pillows


def patches(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    down, across = pixels.shape[0] // 28, pixels.shape[1] // 28
    blocks = pixels.transpose(2, 0, 1).reshape(3, down, 2, 14, across, 2, 14).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.repeat(blocks[:, :, :, :, :, None], 2, 5).reshape(4 * down * across, -1)


def encoded_photograph() -> dict[str, bytes]:
    with cbook.get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        photograph = image.convert("RGB")
    images = {}
    for name, (image_format, options) in ENCODINGS.items():
        file = io.BytesIO()
        photograph.save(file, image_format, **options)
        images[name] = file.getvalue()
    return images


if __name__ == "__main__":
    main()
