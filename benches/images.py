"""How many images a second are decoded on one thread, beside Pillow, in rounds in turn.

python benches/images.py [FILE ...] [--rounds 7] [--seconds 0.3]

Without files, a photograph of matplotlib's sample data (512 x 600) is encoded in each format. Pixels are compared
before.
"""

import argparse
import io
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import cbook
from PIL import Image

import gristmill as gm

Decode = Callable[[bytes], npt.NDArray[np.uint8]]
ENCODINGS = {
    "JPEG, 4:2:0": ("JPEG", {"quality": 90}),
    "JPEG, 4:4:4": ("JPEG", {"quality": 90, "subsampling": 0}),
    "JPEG, progressive": ("JPEG", {"quality": 90, "progressive": True}),
    "PNG": ("PNG", {}),
    "WebP, lossy": ("WEBP", {"quality": 80}),
    "WebP, lossless": ("WEBP", {"lossless": True}),
    "GIF": ("GIF", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3)
    arguments = parser.parse_args()
    images = {path.name: path.read_bytes() for path in arguments.files} or encoded_photograph()
    print(f"{'images a second':24} {'gristmill':>10} {'Pillow':>10} {'ratio (least to most)':>24}")
    for name, data in images.items():
        np.testing.assert_array_equal(gm.decode_image(data), by_pillow(data))
        rounds = [
            (speed(gm.decode_image, data, arguments.seconds), speed(by_pillow, data, arguments.seconds))
            for _ in range(arguments.rounds)
        ]
        ours, pillows = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratios = sorted(mine / pillow for mine, pillow in rounds)
        middle = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:24} {ours:10.0f} {pillows:10.0f} {middle:>24}")


def encoded_photograph() -> dict[str, bytes]:
    with cbook.get_sample_data("grace_hopper.jpg") as file, Image.open(file) as image:
        photograph = image.convert("RGB")
    images = {}
    for name, (image_format, options) in ENCODINGS.items():
        file = io.BytesIO()
        photograph.save(file, image_format, **options)
        images[name] = file.getvalue()
    return images


def by_pillow(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def speed(decode: Decode, data: bytes, seconds: float) -> float:
    count = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        decode(data)
        count += 1
    return count / elapsed


if __name__ == "__main__":
    main()
