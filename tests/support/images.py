"""Images of noise, and samples of images and captions."""

import io
import struct
import tarfile

import numpy as np
from PIL import Image


def image(width: int, height: int, seed: int = 0, kind: str = "PNG") -> bytes:
    """The file of an image of noise."""
    file = io.BytesIO()
    pixels = np.random.default_rng([width, height, seed]).integers(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def captions(count: int, shard: int = 0, kind: str = "PNG") -> list[tuple[str, dict[str, bytes]]]:
    """Records of none to three images and a caption."""
    random = np.random.default_rng([count, shard])
    records = []
    for number in range(count):
        parts = {f"{10 - at}.{kind.lower()}": image(5 + number % 7, 4 + at, number, kind) for at in range(number % 4)}
        parts["txt"] = f"caption {number} of {shard}{'!' * int(random.integers(0, 30))}".encode()
        records.append((f"{number:04}", parts))
    return records


def tar_index(data: bytes) -> bytes:
    """The index of a tar, as `energon prepare` writes it: where each sample begins, and where the last one ends."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = archive.getmembers()
    firsts = {member.name.split(".")[0]: member.offset for member in reversed(members)}
    places = [*sorted(firsts.values()), members[-1].offset_data + -(-members[-1].size // 512) * 512]
    return struct.pack(f"<{len(places)}Q", *places)
