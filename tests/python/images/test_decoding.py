"""`decode_image` gives exactly the pixels of Pillow, and `image_size` its sizes."""

import io
import itertools
import os
import random
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gristmill as gm

# The warning is about transparent palettes, which Pillow drops as we do.
pytestmark = pytest.mark.filterwarnings("ignore:Palette images with Transparency")
SIZES = [(1, 1), (1, 2), (3, 1), (7, 8), (9, 17), (16, 16), (31, 33), (64, 47)]
CASES = int(os.environ.get("GRISTMILL_CASES", 300))


def photo(width, height, channels=3):
    """Waves and noise, the same for the same shape."""
    generator = np.random.default_rng([width, height, channels])
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 7 + y / 5 + k) * 80 + 128 for k in range(channels)], -1)
    return np.clip(waves + generator.normal(0, 20, waves.shape), 0, 255).astype(np.uint8)


def picture(mode, width, height):
    if mode == "I;16":
        return Image.fromarray(photo(width, height, 1)[..., 0].astype(np.uint16) * 3)
    if mode == "P":
        return Image.fromarray(photo(width, height)).quantize(37)
    if mode == "CMYK":
        return Image.fromarray(photo(width, height, 4), "CMYK")
    pixels = photo(width, height, 4)
    pixels[::2, ::3, 3] = 0
    return Image.fromarray(pixels).convert(mode)


def saved(image, image_format, **options):
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def assert_as_pillow(data):
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB"))
        white = np.asarray(on_white(image))
    decoded = gm.decode_image(data)
    assert decoded.dtype == np.uint8
    assert gm.image_size(data) == (expected.shape[1], expected.shape[0])
    np.testing.assert_array_equal(decoded, expected)
    same_size = gm.ImageModel(size=expected.shape[:2], alpha="white")
    np.testing.assert_array_equal(same_size.pixels(data), white)


def on_white(image):
    """As transformers' PIL processors do it."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    background = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(background, image.convert("RGBA")).convert("RGB")


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_in_every_encoding(mode, width, height):
    image = picture(mode, width, height)
    options = [{}, {"progressive": True}, {"restart_marker_blocks": 2}, {"optimize": True}]
    for quality, subsampling, more in itertools.product((1, 50, 95, 100), (0, 1, 2), options):
        assert_as_pillow(saved(image, "JPEG", quality=quality, subsampling=subsampling, **more))


FACTORS = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2)]


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (17, 9), (40, 33)])
def test_jpeg_with_sampling_factors_that_pillow_does_not_write(factors, width, height):
    assert_as_pillow(with_components(width, height, [factors, (1, 1), (1, 1)]))
    assert_as_pillow(with_components(width, height, [(1, 1), factors, (1, 1)]))


def with_components(width, height, factors):
    """A grey JPEG whose blocks are declared as those of several components."""
    grey = saved(Image.fromarray(photo(512, 512, 1)[..., 0]), "JPEG", quality=60)
    frame = grey.index(b"\xff\xc0")
    scan = grey.index(b"\xff\xda")
    count = len(factors)
    components = b"".join(bytes([i + 1, h << 4 | v, 0]) for i, (h, v) in enumerate(factors))
    new_frame = b"\xff\xc0" + struct.pack(">HBHHB", 8 + 3 * count, 8, height, width, count) + components
    of_scan = b"".join(bytes([i + 1, 0]) for i in range(count))
    new_scan = b"\xff\xda" + struct.pack(">HB", 6 + 2 * count, count) + of_scan + bytes([0, 63, 0])
    return grey[:frame] + new_frame + grey[frame + 13 : scan] + new_scan + grey[scan + 10 :]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("interlaced", [False, True])
def test_png_of_every_colour_type_and_depth(width, height, interlaced):
    kinds = [*((0, depth) for depth in (1, 2, 4, 8, 16)), *((3, depth) for depth in (1, 2, 4, 8))]
    for color, depth in [*kinds, (2, 8), (2, 16), (4, 8), (4, 16), (6, 8), (6, 16)]:
        for transparency in (False, True):
            assert_as_pillow(png(width, height, color, depth, interlaced, transparency and color < 4))


def png(width, height, color, depth, interlaced, transparency):
    """A PNG of noise, with a palette that is too short for some of its indices."""
    generator = random.Random(f"{width} {height} {color} {depth}")
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    lines = b""
    for x, y, dx, dy in passes:
        columns, rows = -(-(width - x) // dx), -(-(height - y) // dy)
        if columns > 0:
            size = (columns * bits + 7) // 8
            # 16-bit greys below 256 too: above, all of them are white.
            noise = (bytes([generator.randrange(5)]) + line(generator, size, color, depth) for _ in range(max(rows, 0)))
            lines += b"".join(noise)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced))]
    if color == 3:
        chunks.append((b"PLTE", generator.randbytes(3 * max(2, 2**depth * 3 // 4))))
    if transparency:
        grey = struct.pack(">H", generator.choice((0, 1, 255)))
        chunks.append((b"tRNS", {0: grey, 2: grey * 3, 3: b"\x00\x80"}[color]))
    chunks += [(b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def line(generator, size, color, depth):
    if (color, depth) != (0, 16):
        return generator.randbytes(size)
    return b"".join(struct.pack(">H", generator.randrange(generator.choice((300, 65536)))) for _ in range(size // 2))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_webp_lossy_lossless_and_animated(mode, width, height):
    image = picture(mode, width, height)
    options = [{"quality": 1}, {"quality": 80, "method": 6}, {"quality": 100}, {"quality": 60, "alpha_quality": 30}]
    lossless = [{"lossless": True}, {"lossless": True, "exact": True}]
    animated = {"save_all": True, "append_images": [image.rotate(180)]}
    for more in [*options, *lossless, animated, {"lossless": True, **animated}]:
        assert_as_pillow(saved(image, "WEBP", **more))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_gif_first_frame(mode, width, height):
    image = picture(mode, width, height)
    animated = {"save_all": True, "append_images": [image.rotate(180)]}
    for more in [{}, {"interlace": 0}, {"transparency": 3}, animated]:
        assert_as_pillow(saved(image, "GIF", **more))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_bmp_of_every_mode(mode, width, height):
    assert_as_pillow(saved(picture(mode, width, height), "BMP"))


def bmp(bits, rows, masks=(), colors=(), top_down=False, header=40):
    """A file of rows of numbers of so many bits, as other programs write them."""
    height, width = len(rows), len(rows[0])
    fields = b"".join(struct.pack("<I", mask) for mask in masks)
    if header == 12:
        palette = b"".join(bytes(color) for color in colors)
        head = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        palette = b"".join(bytes((*color, 0)) for color in colors)
        sign = -1 if top_down else 1
        head = struct.pack(
            "<IiiHHIIiiII", header, width, sign * height, 1, bits, 3 if masks else 0, 0, 0, 0, len(colors), 0
        )
        head += fields.ljust(header - 40, b"\0") if header > 40 else fields
    lines = []
    for row in rows if top_down else rows[::-1]:
        if bits < 8:
            written = "".join(format(value, f"0{bits}b") for value in row)
            line = int(written.ljust(-(-len(written) // 8) * 8, "0"), 2).to_bytes(-(-len(written) // 8))
        else:
            line = b"".join(int(value).to_bytes(bits // 8, "little") for value in row)
        lines.append(line.ljust(-(-width * bits // 32) * 4, b"\0"))
    start = 14 + len(head) + len(palette)
    data = b"".join(lines)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + head + palette + data


@pytest.mark.parametrize("top_down", [False, True])
@pytest.mark.parametrize(
    ("bits", "masks", "header"),
    [
        (1, (), 40), (4, (), 40), (8, (), 40), (8, (), 12), (24, (), 12), (16, (), 40), (24, (), 124), (32, (), 40),
        (16, (0x7C00, 0x3E0, 0x1F), 40), (16, (0xF800, 0x7E0, 0x1F), 40), (16, (0xF800, 0x7E0, 0x1F), 56),
        (32, (0xFF0000, 0xFF00, 0xFF), 40), (32, (0xFF000000, 0xFF0000, 0xFF00), 52),
        (32, (0xFF0000, 0xFF00, 0xFF, 0xFF000000), 108), (32, (0xFF, 0xFF00, 0xFF0000, 0xFF000000), 124),
    ],
)  # fmt: skip
def test_bmp_that_pillow_does_not_write(bits, masks, header, top_down):
    generator = np.random.default_rng([bits, header])
    for width, height in [(1, 1), (7, 3), (33, 5)]:
        rows = generator.integers(0, 2**bits, (height, width), np.uint64).tolist()
        colors = generator.integers(0, 256, (2**bits, 3)).tolist() if bits <= 8 else ()
        assert_as_pillow(bmp(bits, rows, masks, colors, top_down and header > 12, header))


def test_bmp_that_is_not_read():
    for data, match in [
        (bmp(32, [[1]], (0xFFF, 0xFF000, 0xFF)), "expected masks of colours that are known, found"),
        (bmp(8, [[3]], (), [(1, 2, 3)] * 2), "expected a palette of more than 3 colours, found 2"),
        (bmp(8, [[3]], (), [(1, 2, 3)] * 4)[:-2], "expected 4 bytes of pixels, found 2"),
    ]:
        with pytest.raises(gm.ImageError, match=f"^BMP image: {match}"):
            gm.decode_image(data)
    runs = bytearray(bmp(8, [[3]], (), [(1, 2, 3)] * 4))
    runs[30] = 1
    with pytest.raises(gm.ImageError, match="expected pixels without compression, found runs of 8 bits of 8 bits"):
        gm.image_size(bytes(runs))


@pytest.mark.parametrize("transparent", [False, True])
def test_gif_frame_on_a_canvas_of_another_size(transparent):
    control = b"!\xf9\x04\x01\x00\x00\x02\x00" if transparent else b""
    palette = bytes(range(5, 17))
    for left, top, screen in [(0, 0, 2), (1, 2, 9), (3, 4, 5), (3, 0, 2)]:
        head = b"GIF89a" + struct.pack("<HHBBB", screen, screen, 0x81, 0, 0) + palette
        frame = b"," + struct.pack("<HHHHB", left, top, 2, 2, 0) + b"\x02\x03\x44\x34\x05\x00;"
        assert_as_pillow(head + control + frame)


def test_photographs():
    matplotlib = pytest.importorskip("matplotlib")
    folder = Path(matplotlib.__file__).parent / "mpl-data"
    paths = [path for path in folder.rglob("*") if path.suffix in {".jpg", ".png", ".gif"}]
    assert any(path.suffix == ".jpg" for path in paths)
    for path in paths:
        assert_as_pillow(path.read_bytes())


def test_orientation_is_not_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(picture("RGB", 20, 10), "JPEG", exif=exif)
    assert gm.decode_image(data).shape == (10, 20, 3)
    assert_as_pillow(data)


IMAGES = {
    "JPEG": saved(picture("RGB", 40, 30), "JPEG"),
    "JPEG, progressive": saved(picture("RGB", 40, 30), "JPEG", progressive=True),
    "JPEG, CMYK": saved(picture("CMYK", 40, 30), "JPEG"),
    "PNG": saved(picture("RGB", 40, 30), "PNG"),
    "PNG, palette": saved(picture("P", 40, 30), "PNG"),
    "WebP": saved(picture("RGB", 40, 30), "WEBP"),
    "WebP, lossless": saved(picture("RGBA", 40, 30), "WEBP", lossless=True),
    "GIF": saved(picture("P", 40, 30), "GIF"),
    "BMP": saved(picture("RGB", 40, 30), "BMP"),
    "BMP, palette": saved(picture("P", 40, 30), "BMP"),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_truncated_at_any_byte_is_an_error(kind):
    data = IMAGES[kind]
    for length in range(0, len(data) * 9 // 10, 7):
        with pytest.raises(gm.ImageError, match=r"expected|ends? |end of|[Ee]nd Of|enough|EOF"):
            gm.decode_image(data[:length])


@pytest.mark.parametrize("kind", IMAGES)
def test_size_comes_from_the_headers_alone(kind):
    assert gm.image_size(IMAGES[kind][: 850 if kind != "WebP" else 100]) == (40, 30)


@pytest.mark.parametrize("kind", IMAGES)
def test_mutated_images_are_refused_or_decoded_as_pillow_does(kind):
    generator = random.Random(kind)
    for _ in range(CASES):
        data = mutated(IMAGES[kind], generator)
        try:
            decoded = gm.decode_image(data, max_pixels=10**6)
        except gm.ImageError:
            continue
        assert decoded.shape[:2] == gm.image_size(data)[::-1]
        assert_prepared(generator.choice(MODELS), data, decoded)
        try:
            with Image.open(io.BytesIO(data)) as image:
                expected = np.asarray(image.convert("RGB"))
        except Exception:
            continue  # Pillow refuses more: damage behind the pixels, for example
        # Damaged coefficients of a JPEG overflow, and differently without vector code.
        if not kind.startswith("JPEG") or gm.build_info()["jpeg_vector_code"]:
            np.testing.assert_array_equal(decoded, expected)


MODELS = [
    gm.ImageModel("qwen2-vl", max_pixels=50_000),
    gm.ImageModel("clip", size=(20, 24)),
    gm.ImageModel("llama4", size=28),
    gm.ImageModel(size=(25, 31), resample="lanczos", alpha="white"),
]


def assert_prepared(model, data, decoded):
    """The model takes the image, or refuses its aspect ratio; opaque pixels are those of Pillow's resize."""
    height, width = decoded.shape[:2]
    try:
        plan = model.plan(height, width)
    except gm.ImageError:
        assert max(height, width) > 200 * min(height, width)
        return
    values = model.pixels(data, max_pixels=10**6)
    if model.name == "qwen2-vl":
        assert len(values) == 4 * plan.tokens
    elif model.name is None and data.startswith(b"\xff\xd8"):
        expected = Image.fromarray(decoded).resize((31, 25), Image.Resampling.LANCZOS)
        np.testing.assert_array_equal(values, np.asarray(expected))


def mutated(data, generator):
    """Data with bytes changed, removed and repeated; the checksums of a PNG are correct again in most."""
    data = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 5))):
        at = generator.randrange(generator.choice((60, len(data))))
        length = generator.randrange(1, 20)
        kind = generator.random()
        if kind < 0.7:
            data[at] = generator.randrange(256)
        elif kind < 0.8:
            del data[at : at + length]
        elif kind < 0.9:
            data[at:at] = data[at : at + length]
        else:
            del data[-length:]
    return checked(bytes(data)) if data.startswith(b"\x89PNG") and generator.random() < 0.7 else bytes(data)


def checked(data):
    at = 8
    parts = [data[:8]]
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4])
        if end + 4 > len(data):
            break
        parts += [data[at:end], struct.pack(">I", zlib.crc32(data[at + 4 : end]))]
        at = end + 4
    return b"".join([*parts, data[at:]])


@pytest.mark.parametrize("kind", IMAGES)
def test_more_pixels_than_allowed_are_refused_with_their_size(kind):
    image_format = kind.split(",")[0]
    match = f"^{image_format} image: expected at most 1199 pixels, found 40 x 30; raise max_pixels to decode it$"
    with pytest.raises(gm.ImageError, match=match):
        gm.decode_image(IMAGES[kind], max_pixels=1199)
    assert gm.decode_image(IMAGES[kind], max_pixels=1200).shape == (30, 40, 3)


def test_huge_sizes_are_refused_before_anything_is_decoded():
    data = bytearray(IMAGES["PNG"])
    data[16:24] = struct.pack(">II", 2**31 - 1, 2**31 - 1)
    with pytest.raises(gm.ImageError, match="2147483647 x 2147483647"):
        gm.decode_image(data)
    data = bytearray(IMAGES["JPEG"])
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(gm.ImageError, match="found 65535 x 65535"):
        gm.decode_image(data)


def test_too_many_scans_are_refused():
    data = IMAGES["JPEG, progressive"]
    scan = data.index(b"\xff\xda")
    end = data.index(b"\xff", scan + 14)
    with pytest.raises(gm.ImageError, match="expected at most 500 scans, found more"):
        gm.decode_image(data[:end] + data[scan:end] * 600 + data[end:])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "expected a JPEG, PNG, WebP, GIF or BMP image, found no bytes"),
        (b"BM\x00\x01", r"found bytes that begin with \[42, 4d, 00, 01\]"),
        (b"\xff\xd8\xff\xd9", "JPEG image: expected a scan, found the end of the data at byte 4"),
        (b"\x89PNG\r\n\x1a\n", "PNG image: expected the chunk IHDR, found the end of the data at byte 8"),
        (b"RIFF\x64\x00\x00\x00WEBPVP8 ", "WebP image: expected 108 bytes, found 16"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "GIF image: expected more bytes, found the end of the data"),
    ],
)
def test_other_bytes_are_refused_with_what_was_found(data, match):
    for function in (gm.decode_image, gm.image_size):
        with pytest.raises(gm.ImageError, match=match):
            function(data)


def test_bytes_may_be_of_any_type():
    data = IMAGES["JPEG"]
    for same in (bytearray(data), memoryview(data), memoryview(b"x" + data)[1:]):
        np.testing.assert_array_equal(gm.decode_image(same), gm.decode_image(data))
        assert gm.image_size(same) == (40, 30)
    with pytest.raises(gm.ArgumentTypeError, match=r"data='image\.jpg': expected the bytes of an image, got str"):
        gm.decode_image("image.jpg")
    with pytest.raises(gm.ArgumentError, match="max_pixels=0"):
        gm.decode_image(data, max_pixels=0)


def test_threads_decode_at_once():
    expected = {kind: gm.decode_image(data) for kind, data in IMAGES.items()}
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for kind, decoded in zip(IMAGES, pool.map(gm.decode_image, IMAGES.values()), strict=True):
                np.testing.assert_array_equal(decoded, expected[kind])
