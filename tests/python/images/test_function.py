"""Images whose pixels a Python function makes."""

import gc
import io
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from PIL import Image

import gristmill as gm
from chat_models import write_vision
from helpers import assert_resumes, assert_same_batches, tar_of
from images import captions, image

SIZE = (8, 12)
BY_RULES = gm.ImageModel(size=SIZE, tokens=4, resample="bilinear")


def resized(pixels):
    """As `BY_RULES` does, by Pillow."""
    return Image.fromarray(pixels).resize(SIZE[::-1], Image.Resampling.BILINEAR)


def scaled(pixels):
    return np.asarray(resized(pixels), np.float32) / 127.5 - 1


def of_bytes(data):
    with Image.open(io.BytesIO(data)) as found:
        return resized(np.asarray(found.convert("RGB")))


def halves(pixels):
    """Tiles: the left half, the right half and the whole image of a wide one, else the whole image."""
    height, width = pixels.shape[:2]
    parts = [pixels[:, : width // 2], pixels[:, width // 2 :], pixels] if width > height else [pixels]
    return np.stack([np.asarray(resized(part)) for part in parts])


def half_count(height, width):
    return 3 if width > height else 1


def half_tokens(height, width):
    return 4 * half_count(height, width)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards")
    for number, count in enumerate([14, 9, 17]):
        (path / f"{number}.tar").write_bytes(tar_of(captions(count, number)))
    return str(path / "*.tar")


def make(shards, folder, model, **arguments):
    sample = gm.ImageText(
        model, fields={"text": "txt", **arguments.pop("fields", {})}, image_token="<|image_pad|>",
        images=arguments.pop("images", "uint8"),
    )  # fmt: skip
    defaults = {
        "packing": "best_fit", "sequence_length": 96, "batch_size": 4, "lanes": 2, "epochs": 1, "eos": False, "seed": 3,
        "fit_window": 5, "tokenizer": folder, "sample": sample,
    }  # fmt: skip
    return gm.PackedDataset(shards, **{**defaults, **arguments})


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("function", "options"),
    [(resized, {"tokens": 4}), (of_bytes, {"tokens": lambda height, width: 4, "input": "bytes"})],
)
def test_function_that_does_what_a_model_does_gives_its_stream(shards, folder, threads, function, options):
    model = gm.ImageFunction(function, shape=(*SIZE, 3), **options)
    assert_same_batches(make(shards, folder, model, threads=threads), make(shards, folder, BY_RULES))


def test_result_may_be_normalized_and_of_any_shape(shards, folder):
    expected = list(make(shards, folder, BY_RULES))
    found = list(make(shards, folder, gm.ImageFunction(scaled, shape=(*SIZE, 3), tokens=4), images="float32"))
    for ours, theirs in zip(found, expected, strict=True):
        there = theirs["image_masks"] == 1
        assert ours["images"].dtype == np.float32
        np.testing.assert_array_equal(ours["images"][there], theirs["images"][there].astype(np.float32) / 127.5 - 1)
        assert not ours["images"][~there].any()
    flat = gm.ImageFunction(lambda pixels: np.asarray(resized(pixels))[:, :, 1].reshape(-1), shape=(96,), tokens=4)
    (batch, *_) = make(shards, folder, flat)
    assert batch["images"].shape == (4, 8, 96)
    np.testing.assert_array_equal(batch["images"], expected[0]["images"][..., 1].reshape(4, 8, 96))


def test_tiles_and_tokens_follow_from_the_size(shards, folder):
    model = gm.ImageFunction(halves, shape=(*SIZE, 3), tokens=half_tokens, tiles=half_count, max_tiles=5)
    dataset = make(shards, folder, model)
    images = {}
    for _, parts in (record for number, count in enumerate([14, 9, 17]) for record in captions(count, number)):
        for data in (parts[name] for name in parts if name != "txt"):
            pixels = gm.decode_image(data)
            images[np.asarray(resized(pixels)).tobytes()] = halves(pixels)
    counted = 0
    for batch in dataset:
        assert batch["images"].shape == (4, 8, 5, *SIZE, 3)
        assert batch["image_masks"].shape == (4, 8, 5)
        for row, masks, tokens in zip(batch["images"], batch["image_masks"], batch["inputs"], strict=True):
            tiles = masks.sum(axis=1)
            assert (tokens == gm.Encoder.from_file(folder).token_to_id("<|image_pad|>")).sum() == 4 * tiles.sum()
            for slots, count in zip(row, tiles, strict=True):
                assert not slots[count:].any()
                if count:
                    np.testing.assert_array_equal(slots[:count], images[slots[count - 1].tobytes()])
                    counted += 1
    assert counted > 20
    assert_resumes(dataset, 2)


def test_files_of_other_formats_are_the_functions(tmp_path, folder):
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "TIFF")
    (tmp_path / "0.tar").write_bytes(tar_of([("a", {"tiff": file.getvalue(), "txt": b"a caption"})]))
    model = gm.ImageFunction(of_bytes, shape=(*SIZE, 3), tokens=4, input="bytes")
    arguments = {"batch_size": None, "lanes": 1}
    for fields in ({}, {"images": "tiff"}):
        (row,) = make(str(tmp_path / "0.tar"), folder, model, fields=fields, **arguments)
        np.testing.assert_array_equal(row["images"][0], pixels)
    sized = gm.ImageFunction(of_bytes, shape=(*SIZE, 3), tokens=lambda height, width: 4, input="bytes")
    with pytest.raises(gm.ShardError, match=r'sample "a": the image "tiff", at byte 512: expected a JPEG, PNG'):
        list(make(str(tmp_path / "0.tar"), folder, sized, **arguments))


def refusing(pixels):
    if pixels.shape[1] == 7:
        raise ValueError("too odd")
    return resized(pixels)


@pytest.mark.parametrize("threads", [1, 3])
def test_exceptions_are_damage_of_the_image(shards, folder, threads):
    model = gm.ImageFunction(refusing, shape=(*SIZE, 3), tokens=4)
    with pytest.raises(
        gm.ShardError, match=r'record .*sample "0...": image ., at byte .*: the function raised ValueError: too odd'
    ):
        list(make(shards, folder, model, threads=threads))
    with iter(make(shards, folder, model, threads=threads, on_error="quarantine", max_error_rate=0.5)) as iterator:
        found = list(iterator)
        undecodable = iterator.stats()["undecodable"]
    widths = [number % 7 + 5 for count in [14, 9, 17] for number in range(count) if number % 4]
    assert undecodable == widths.count(7)
    expected = make(shards, folder, gm.ImageFunction(resized, shape=(*SIZE, 3), tokens=4))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours["inputs"], theirs["inputs"])


def test_functions_that_break_their_word_stop_the_run(shards, folder):
    def stopped(match, error=gm.ShardError, **options):
        defaults = {"process": resized, "shape": (*SIZE, 3), "tokens": 4}
        model = gm.ImageFunction(**{**defaults, **options})
        with pytest.raises(error, match=match):
            list(make(shards, folder, model, on_error="quarantine", max_error_rate=0.5))

    stopped(
        r"expected an array of uint8 \[9, 12, 3\], as images= and shape= say, found uint8 \[8, 12, 3\]",
        shape=(9, 12, 3),
    )
    stopped(r"expected an array of uint8 \[8, 12, 3\], as images= and shape= say, found float32", process=scaled)

    def out_of_memory(pixels):
        raise MemoryError

    stopped(
        r'byte \d+: sample "0...": the pixels of an image cannot be made: the function raised MemoryError',
        process=out_of_memory,
    )
    stopped("more than max_error_rate=0.5 allows.*the result of tokens=-1", tokens=lambda height, width: -1)


def test_iterators_end_while_the_function_runs(shards, folder):
    called = threading.Event()

    def slow(pixels):
        called.set()
        threading.Event().wait(0.01)
        return resized(pixels)

    model = gm.ImageFunction(slow, shape=(*SIZE, 3), tokens=4)
    for _ in range(3):
        called.clear()
        iterator = iter(make(shards, folder, model, threads=3, epochs=None))
        iterator.start_prefetch()
        assert called.wait(20)
        del iterator
        gc.collect()


def test_interpreter_ends_while_the_function_runs(shards, folder):
    program = f"""
    import time
    import numpy as np
    import gristmill as gm

    def slow(pixels):
        time.sleep(0.01)
        return np.zeros((8, 12, 3), np.uint8)

    sample = gm.ImageText(
        gm.ImageFunction(slow, shape=(8, 12, 3), tokens=4), text=gm.Text("txt"), image_token="<|image_pad|>"
    )
    iterator = iter(gm.PackedDataset(
        {shards!r}, tokenizer={str(folder)!r}, sample=sample, packing="best_fit", sequence_length=96, eos=False,
        threads=3,
    ))
    print(next(iterator)["images"].shape)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "(8, 8, 12, 3)"), done.stderr


def test_name_is_what_defines_the_stream(shards, folder):
    def state_of(**options):
        dataset = make(shards, folder, gm.ImageFunction(resized, **{"shape": (*SIZE, 3), "tokens": 4, **options}))
        with iter(dataset) as iterator:
            next(iterator)
            return dataset, iterator.get_state()

    first, state = state_of()
    assert gm.ImageFunction(resized, shape=(*SIZE, 3)).name == f"{__name__}.resized"
    with iter(first) as iterator:
        iterator.set_state(state)
    for options in [{"name": "resized 2"}, {"tokens": 5}, {"input": "bytes"}]:
        other, _ = state_of(name="resized 2") if "name" in options else (None, None)
        if other is None:
            other = make(shards, folder, gm.ImageFunction(resized, **{"shape": (*SIZE, 3), "tokens": 4, **options}))
        with iter(other) as iterator, pytest.raises(gm.StateError):
            iterator.set_state(state)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"process": "resized"}, "process"),
        ({"shape": 3}, "shape"),
        ({"shape": ()}, "expected one of 1 to"),
        ({"shape": (0, 3)}, "shape"),
        ({"shape": (1 << 20, 1 << 20)}, "expected one of 1 to"),
        ({"tokens": -1}, "tokens"),
        ({"input": "file"}, "input"),
        ({"max_tiles": 3}, "expected both of a model with tiles, or neither"),
        ({"tiles": 3, "max_tiles": 3}, "tiles"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, match):
    with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError), match=match):
        gm.ImageFunction(**{"process": resized, "shape": (8, 12, 3), **options})


def test_model_of_a_function_needs_a_token(shards, folder):
    sample = gm.ImageText(gm.ImageFunction(resized, shape=(8, 12, 3), tokens=4), text=gm.Text("txt"))
    with pytest.raises(gm.ArgumentError, match="set image_token="):
        gm.PackedDataset(shards, tokenizer=folder, sample=sample, packing="best_fit")
    assert image(3, 3)


def squares(pixels):
    """Squares of 4 pixels, as many as fit: an image in its own size."""
    rows, columns = square_grid(*pixels.shape[:2])
    cut = pixels[: 4 * rows, : 4 * columns].reshape(rows, 4, columns, 4, 3)
    return np.ascontiguousarray(cut.transpose(0, 2, 1, 3, 4).reshape(rows * columns, 48))


def square_grid(height, width):
    return max(1, height // 4), max(1, width // 4)


def square_tokens(height, width):
    rows, columns = square_grid(height, width)
    return rows * columns


def test_images_in_their_own_size(tmp_path, folder):
    sizes = [(8, 9), (20, 4), (13, 27), (5, 5), (40, 8)]
    files = [image(width, height, number) for number, (width, height) in enumerate(sizes)]
    records = [(f"{number}", {"png": data, "txt": b"a caption"}) for number, data in enumerate(files)]
    (tmp_path / "x.tar").write_bytes(tar_of(records))
    model = gm.ImageFunction(squares, shape=(48,), tokens=square_tokens, grid=square_grid)
    sample = gm.ImageText(model, text=gm.Text("txt"), image_token="<|image_pad|>", max_images=2, max_patches=48)
    dataset = gm.PackedDataset(
        str(tmp_path / "x.tar"), tokenizer=folder, packing="pad", sequence_length=96, batch_size=1, eos=False, lanes=1,
        sample=sample, epochs=1, shuffle_window=1,
    )  # fmt: skip
    for batch, data in zip(dataset, files, strict=True):
        expected = squares(gm.decode_image(data))
        np.testing.assert_array_equal(batch["image_patches"][0, : len(expected)], expected)
        assert not batch["image_patches"][0, len(expected) :].any()
        rows, columns = square_grid(*gm.decode_image(data).shape[:2])
        assert batch["image_grid_thw"][0, 0].tolist() == [1, rows, columns]
    assert_resumes(dataset, 2)
    with pytest.raises(gm.ArgumentError, match="grid=: expected no tiles= beside it"):
        gm.ImageFunction(squares, shape=(48,), tiles=square_tokens, max_tiles=3, grid=square_grid)
