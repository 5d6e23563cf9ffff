"""Videos: frames, sizes, tokens and pixels, and rows of them.

A naive model chooses the frames and lays out the patches as the sources of transformers say; its processors are asked
themselves where torch and torchvision are installed.
"""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

import gristmill as gm
from chat_models import write_vision
from helpers import assert_resumes, assert_same_batches, tar_of

av = pytest.importorskip("av")

CODECS = {
    "mp4": ("libx264", "yuv420p"), "hevc": ("libx265", "yuv420p"), "webm": ("libvpx-vp9", "yuv420p"),
    "av1": ("libsvtav1", "yuv420p"), "gif": ("gif", "rgb8"), "mkv": ("libx264", "yuv420p"), "avi": ("mpeg4", "yuv420p"),
}  # fmt: skip
CONTAINERS = {"hevc": "mp4", "av1": "mp4", "mkv": "matroska"}


def film(frames, width=64, height=48, fps=8, kind="mp4", path=None):
    """A film in which a bright square moves over a ramp of colours."""
    codec, pixels = CODECS[kind]
    file = io.BytesIO()
    # An index at the start is written once the file is complete, which is read again for it.
    options = {"movflags": "faststart"} if path else {}
    with av.open(path or file, "w", format=CONTAINERS.get(kind, kind), options=options) as container:
        try:
            stream = container.add_stream(codec, rate=fps)
        except Exception as error:  # FFmpeg was built without it
            pytest.skip(f"{codec}: {error}")
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        for number in range(frames):
            y, x = np.mgrid[:height, :width]
            image = np.stack([x * 4 % 256, y * 5 % 256, np.full_like(x, number * 9 % 256)], -1).astype(np.uint8)
            left = number * 3 % max(1, width - 8)
            image[8:20, left : left + 8] = 255
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return Path(path).read_bytes() if path else file.getvalue()


def all_frames(data):
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def by_hand(name, data):
    """Indices, patches as bytes and the text of a video, as transformers' sources have them."""
    frames = all_frames(data)
    with av.open(io.BytesIO(data)) as container:
        fps = float(container.streams.video[0].average_rate)
    total = len(frames)
    if name == "qwen3-vl":
        count = min(max(int(total / fps * 2), 4), 768, total)
        indices = np.linspace(0, total - 1, count).round().astype(int).tolist()
        patch = 16
    else:
        most = math.floor(min(768, total) / 2) * 2
        count = math.floor(min(max(total / fps * 2, 4), most, total) / 2) * 2
        indices = [int(number * (total / count)) for number in range(count)]
        patch = 14
    model = gm.VideoModel(name)
    rows, columns = model.plan(data).size
    resized = gm.ImageModel(size=(rows, columns), resample="bicubic")
    chosen = np.stack([resized.pixels(png(frames[index])) for index in indices])
    if len(chosen) % 2:
        chosen = np.concatenate([chosen, chosen[-1:]])
    grid = (len(chosen) // 2, rows // patch, columns // patch)
    videos = chosen.transpose(0, 3, 1, 2)[None]
    parts = videos.reshape(1, grid[0], 2, 3, grid[1] // 2, 2, patch, grid[2] // 2, 2, patch)
    patches = parts.transpose(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(math.prod(grid), -1)
    tokens = math.prod(grid) // 4
    text = f"<|vision_start|>{'<|video_pad|>' * tokens}<|vision_end|>"
    if name == "qwen3-vl":
        even = [*indices, *indices[-1:]] if len(indices) % 2 else indices
        times = [(even[at] / fps + even[at + 1] / fps) / 2 for at in range(0, len(even), 2)]
        each = "<|video_pad|>" * (tokens // grid[0])
        text = "".join(f"<{time:.1f} seconds><|vision_start|>{each}<|vision_end|>" for time in times)
    return indices, grid, patches, text


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
@pytest.mark.parametrize("kind", CODECS)
def test_frames_sizes_and_pixels(name, kind):
    for frames, fps in [(33, 8), (7, 4), (50, 25)]:
        data = film(frames, fps=fps, kind=kind)
        model = gm.VideoModel(name)
        indices, grid, patches, text = by_hand(name, data)
        plan = model.plan(data)
        assert (list(plan.frames), plan.grid_thw) == (indices, grid), kind
        assert plan.tokens == math.prod(grid) // 4
        each = plan.tokens // plan.groups
        assert plan.text.replace("<|video_pad|>", "<|video_pad|>" * each) == text
        np.testing.assert_array_equal(model.pixels(data), patches)


@pytest.mark.parametrize("seconds", [0.25, 1.5])
def test_frames_before_a_cut_are_not_counted(seconds):
    """A film that is cut without encoding it again has the frames from the key frame before the cut on, unseen."""
    whole, file = film(40, path=None), io.BytesIO()
    with av.open(io.BytesIO(whole)) as source, av.open(file, "w", format="mp4") as target:
        of = source.streams.video[0]
        stream = target.add_stream_from_template(of)
        for packet in source.demux(of):
            if packet.dts is not None:
                packet.pts, packet.dts = (time - int(seconds / of.time_base) for time in (packet.pts, packet.dts))
                packet.stream = stream
                target.mux(packet)
    data = file.getvalue()
    shown = len(all_frames(data))
    assert shown < 40
    model = gm.VideoModel("qwen3-vl")
    assert model.plan(data).frames[-1] == shown - 1
    np.testing.assert_array_equal(model.pixels(data), by_hand("qwen3-vl", data)[2])


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl"])
def test_sizes_and_pixels_of_transformers(name):
    """The processors of transformers; their resize is torchvision's, whose values are at most 2 of 255 away."""
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    kind = "Qwen3VLVideoProcessor" if name == "qwen3-vl" else "Qwen2VLVideoProcessor"
    reference = getattr(transformers, kind)(do_sample_frames=True, fps=2)
    for frames, width, height, fps in [(33, 64, 48, 8), (90, 322, 180, 30), (9, 48, 320, 3), (64, 640, 360, 24)]:
        data = film(frames, width, height, fps)
        whole = torch.from_numpy(all_frames(data)).permute(0, 3, 1, 2)
        metadata = {"total_num_frames": len(whole), "fps": float(fps), "duration": len(whole) / fps}
        found = reference(videos=[whole], video_metadata=[metadata], return_tensors="pt", return_metadata=True)
        model = gm.VideoModel(name)
        plan = model.plan(data)
        assert list(plan.frames) == [int(index) for index in found["video_metadata"][0].frames_indices]
        assert list(plan.grid_thw) == found["video_grid_thw"][0].tolist()
        expected = found["pixel_values_videos"].numpy()
        pixels = model.pixels(data, dtype="float32")
        assert pixels.shape == expected.shape
        std = 0.5 if name == "qwen3-vl" else 0.26
        assert np.abs(pixels - expected).max() <= 2.01 / 255 / std
        assert (np.abs(pixels - expected) > 1e-5).mean() < 0.1


def test_settings_are_those_of_a_checkpoint(tmp_path):
    values = {
        "video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 4096, "longest_edge": 25_165_824},
        "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "fps": 3, "min_frames": 4, "max_frames": 96,
        "image_mean": [0.4, 0.5, 0.6], "image_std": [0.5, 0.5, 0.5], "do_sample_frames": True, "resample": 3,
    }  # fmt: skip
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(values))
    model = gm.VideoModel.from_pretrained(tmp_path)
    assert model == gm.VideoModel(
        "qwen3-vl", fps=3, max_frames=96, min_pixels=4096, max_pixels=25_165_824, image_mean=(0.4, 0.5, 0.6),
        image_std=(0.5, 0.5, 0.5),
    )  # fmt: skip
    for change, message in [
        ({"video_processor_type": "X"}, "expected a video_processor_type of Qwen2VLVideoProcessor, Qwen3VL.*, found X"),
        ({"patch_size": 14}, "patch_size=14: expected 16"),
        ({"new": 1}, "expected settings that are known, found {'new': 1}"),
        ({"cap_pixels_per_frame": True}, "cap_pixels_per_frame=True: expected False"),
    ]:
        (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({**values, **change}))
        with pytest.raises(gm.ArgumentError, match=message):
            gm.VideoModel.from_pretrained(tmp_path)
    with pytest.raises(gm.ArgumentError, match=r"expected video_preprocessor_config.json in it, found none"):
        gm.VideoModel.from_pretrained(tmp_path.parent)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_vision(tmp_path_factory.mktemp("models") / "vision")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = tokenizer["added_tokens"]
    tokens.append({**tokens[-1], "id": tokens[-1]["id"] + 1, "content": "<|video_pad|>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(
        "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
        "{%- if message.content is string %}{{ message.content }}{%- else %}{%- for part in message.content %}"
        "{%- if part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{%- else %}{{ part.text }}"
        "{%- endif %}{%- endfor %}{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
    )
    return folder


SMALL = {
    "qwen2.5-vl": {"min_pixels": 28 * 28 * 4, "max_pixels": 28 * 28 * 4},
    "qwen3-vl": {"min_pixels": 4096, "max_pixels": 40_000},
}


def dataset(folder, shards, model, **more):
    fields = more.pop("fields", {"videos": "mp4", "text": "txt"})
    settings = {
        "packing": "best_fit", "fit_window": 3, "sequence_length": 320, "batch_size": 1, "lanes": 1, "eos": False,
        "epochs": 1, **more,
    }  # fmt: skip
    text = settings.pop("text", None)
    sample = gm.ImageText(model, fields=fields, text=text, max_images=4, max_patches=600)
    return gm.PackedDataset(str(shards), tokenizer=folder, sample=sample, **settings)


@pytest.mark.parametrize("name", SMALL)
def test_rows_have_the_ids_of_the_text(tmp_path, folder, name):
    model = gm.VideoModel(name, **SMALL[name])
    films = [film(frames, fps=6, height=48 + 8 * (frames % 2)) for frames in (13, 20, 9)]
    records = [
        (f"{at}", {"mp4": data, "txt": f"caption {at}{' <video> behind' if at == 1 else ''}".encode()})
        for at, data in enumerate(films)
    ]
    (tmp_path / "x.tar").write_bytes(tar_of(records))
    found = dataset(folder, tmp_path / "x.tar", model, packing="pad", shuffle_window=1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for batch, (_, parts) in zip(found, records, strict=True):
        plan = model.plan(parts["mp4"])
        of_video = plan.text.replace("<|video_pad|>", "<|video_pad|>" * (plan.tokens // plan.groups))
        caption = parts["txt"].decode()
        text = caption.replace("<video>", of_video) if "<video>" in caption else of_video + caption
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert batch["inputs"][0, : len(expected)].tolist() == expected[:320]
        assert batch["image_grid_thw"][0, 0].tolist() == list(plan.grid_thw)
        pixels = model.pixels(parts["mp4"])
        np.testing.assert_array_equal(batch["image_patches"][0, : len(pixels)], pixels)
        assert batch["inputs"][0, batch["image_position"][0, 0]] == tokenizer.token_to_id("<|video_pad|>")
    assert_resumes(found, 2)
    assert_same_batches(
        dataset(folder, tmp_path / "x.tar", model, threads=3), dataset(folder, tmp_path / "x.tar", model)
    )


@pytest.mark.parametrize("name", SMALL)
def test_conversations_with_videos(tmp_path, folder, name):
    model = gm.VideoModel(name, **SMALL[name])
    data = film(12, fps=6)
    question = {"role": "user", "content": [{"type": "video", "video": "mp4"}, {"type": "text", "text": "Which?"}]}
    messages = [question, {"role": "assistant", "content": "A film."}]
    (tmp_path / "x.tar").write_bytes(tar_of([("0", {"mp4": data, "json": json.dumps(messages).encode()})]))
    chat = gm.Chat("json", stop_tokens=["<|im_end|>\n"])
    found = dataset(folder, tmp_path / "x.tar", model, fields={"videos": ["mp4"]}, text=chat)
    batch = next(iter(found))
    plan = model.plan(data)
    of_video = plan.text.replace("<|video_pad|>", "<|video_pad|>" * (plan.tokens // plan.groups))
    text = f"<|im_start|>user\n{of_video}Which?<|im_end|>\n<|im_start|>assistant\nA film.<|im_end|>\n"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert batch["inputs"][0, : len(expected)].tolist() == expected
    trained = batch["targets"][0][batch["targets_segmentation"][0] > 0]
    assert tokenizer.decode(trained.tolist()) in ("A film.", "A film.\n", "A film.<|im_end|>\n")
    # The same video beside a line.
    (tmp_path / "film.mp4").write_bytes(data)
    (tmp_path / "x.jsonl").write_text(json.dumps({"messages": messages, "videos": ["mp4"]}) + "\n")
    (tmp_path / "mp4").write_bytes(data)
    beside = dataset(
        folder, tmp_path / "x.jsonl", model, fields=None, text=gm.Chat("messages", stop_tokens=["<|im_end|>\n"])
    )
    assert_same_batches(beside, found)


def test_folders_of_energon(tmp_path, folder):
    """The field of videos is read by a model of videos; neither medium is read as the other."""
    data, messages = film(12, fps=6), [{"role": "user", "content": "<video>Q"}, {"role": "assistant", "content": "A"}]

    def prepared(field_map):
        meta = tmp_path / "set" / ".nv-meta"
        meta.mkdir(parents=True, exist_ok=True)
        parts = {"mp4": data, "jpg": png(all_frames(data)[0]), "json": json.dumps(messages).encode()}
        (tmp_path / "set" / "a.tar").write_bytes(tar_of([("0", parts)]))
        (meta / ".info.json").write_text(json.dumps({"shard_counts": {"a.tar": 1}}))
        (meta / "split.json").write_text(json.dumps({"split_parts": {"train": ["a.tar"]}, "exclude": []}))
        about = {"__module__": "megatron.energon", "__class__": "ChatMLWebdataset", "field_map": field_map}
        (meta / "dataset.yaml").write_text(json.dumps(about))
        return gm.EnergonFolder(tmp_path / "set")

    def rows(shards, model, **more):
        sample = gm.ImageText(model, text=gm.Chat(format="chatml"), max_images=4, max_patches=600, **more)
        return gm.PackedDataset(
            shards, tokenizer=folder, sample=sample, packing="pad", sequence_length=320, batch_size=1, lanes=1, epochs=1
        )

    model = gm.VideoModel("qwen3-vl", **SMALL["qwen3-vl"])
    pytest.importorskip("yaml")
    films = prepared({"videos": "mp4", "conversation": "json"})
    named = rows(str(tmp_path / "set" / "a.tar"), model, fields={"videos": "mp4", "conversation": "json"})
    assert_same_batches(rows(films, model), named)
    with pytest.raises(gm.ArgumentError, match=r"have videos, as dataset.yaml says: videos need a gm.VideoModel"):
        rows(films, "qwen3-vl")
    with pytest.raises(gm.ArgumentError, match=r"have images, as dataset.yaml says: name its videos and its text in"):
        rows(prepared({"images": "jpg", "conversation": "json"}), model)


def test_records_are_refused_in_words_of_videos(tmp_path, folder):
    model = gm.VideoModel("qwen3-vl", **SMALL["qwen3-vl"])
    (tmp_path / "a.mp4").write_bytes(film(12, fps=6))
    part = {"type": "video", "video": "a.mp4"}
    turns = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "A"}]
    for record, message in [
        ({"image": "a.png"}, 'expected a video, found none but "image": images and audio are not read beside videos'),
        ({"video": "b.mp4"}, r'video 0 under the key "video": the video "b.mp4" at ".*": expected a video file'),
        ({"video": "a.mp4", "text": "<video><video>"}, "expected a placeholder for each video, found 2 for 1"),
        ({"video": {"bytes": None}}, 'expected "bytes" or a "path", found neither'),
    ]:
        (tmp_path / "x.jsonl").write_text(json.dumps({"text": "some text", **record}))
        with pytest.raises(gm.ShardError, match=message):
            list(dataset(folder, tmp_path / "x.jsonl", model, fields=None, text=gm.Text("text")))
    for more, message in [
        ({"fps": 1}, 'expected a part of type video without "fps": gm.VideoModel has the sizes and frames'),
        ({"video": ["a.mp4"]}, "in a part of type video, found a list"),
        ({"video": "b.mp4"}, "video 0 of the messages: the video"),
    ]:
        record = {"messages": [{"role": "user", "content": [part | more]}, turns[1]]}
        (tmp_path / "x.jsonl").write_text(json.dumps(record))
        with pytest.raises(gm.ShardError, match=message):
            list(dataset(folder, tmp_path / "x.jsonl", model, fields=None, text=gm.Chat("messages")))
    png_alone = tar_of([("0", {"png": png(all_frames(film(2))[0]), "txt": b"some text"})])
    (tmp_path / "x.tar").write_bytes(png_alone)
    with pytest.raises(
        gm.ShardError, match='expected a video, found none but the PNG image "png": images are not read'
    ):
        list(dataset(folder, tmp_path / "x.tar", model, fields=None, text=gm.Text("txt")))


def test_videos_and_images_in_one_stream(tmp_path, folder):
    """Two sources have the same arrays: of each, the rows are those of a stream of its own."""
    films = [("0", {"mp4": film(12, fps=6), "txt": b"a film"}), ("1", {"mp4": film(8, fps=6), "txt": b"another"})]
    stills = [(f"{at}", {"png": png(all_frames(film(2))[0]), "txt": b"a still"}) for at in range(3)]
    for name, records in [("films", films), ("stills", stills)]:
        (tmp_path / f"{name}.tar").write_bytes(tar_of(records))
    rows = {"tokenizer": folder, "eos": False, "packing": "pad", "sequence_length": 320, "batch_size": 1, "lanes": 1}
    more = {"max_images": 4, "max_patches": 600, "text": gm.Text("txt")}
    video = gm.ImageText(gm.VideoModel("qwen2.5-vl", **SMALL["qwen2.5-vl"]), **more)
    still = gm.ImageText(gm.ImageModel("qwen2.5-vl", max_pixels=50_000), **more)

    def source(name, sample):
        return gm.Source(str(tmp_path / f"{name}.tar"), sample=sample, epochs=1, weight=1)

    mixture = gm.Mixture({"films": source("films", video), "stills": source("stills", still)})
    mixed = list(gm.PackedDataset(mixture, **rows))
    alone = [
        batch
        for name, sample in [("films", video), ("stills", still)]
        for batch in gm.PackedDataset(str(tmp_path / f"{name}.tar"), sample=sample, epochs=1, **rows)
    ]
    key = lambda batch: (batch["inputs"].tobytes(), batch["image_patches"].tobytes(), batch["image_grid_thw"].tobytes())  # noqa: E731
    assert sorted(map(key, mixed)) == sorted(map(key, alone))
    other = gm.ImageText(gm.ImageModel("qwen3-vl", max_pixels=80_000), **more)
    mixture = gm.Mixture({"films": source("films", video), "stills": source("stills", other)})
    with pytest.raises(gm.ArgumentError, match=r"patches of 1176 values .*patches of 1536 values"):
        gm.PackedDataset(mixture, **rows)


def test_damaged_and_endless_files(tmp_path, folder):
    """Each is an error that says what was expected; in rows it is located and counted, and the others stay."""
    model = gm.VideoModel("qwen2.5-vl", **SMALL["qwen2.5-vl"])
    good = film(12, fps=6)
    for data, message in [
        (b"", "expected a file of MP4, WebM"),
        (b"no film at all, but a text of some length", "expected a file of MP4, WebM"),
        (good[:300], "expected a file of MP4, WebM|expected 1 to|expected frames"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "expected a file of MP4, WebM"),
        (film(2, fps=1)[:-1] + b"x", None),
    ]:
        if message is not None:
            with pytest.raises(gm.ImageError, match=message):
                model.plan(data)
    with pytest.raises(gm.ImageError, match="expected 1 to 8 frames, found more"):
        gm.VideoModel("qwen2.5-vl", max_file_frames=8).plan(good)
    with pytest.raises(gm.ImageError, match="expected 1 to 8 frames, found more"):
        gm.VideoModel("qwen2.5-vl", max_file_frames=8).plan(film(12, kind="webm"))
    with pytest.raises(gm.ImageError, match=r"expected at least 2 frames, found 1$"):
        model.plan(film(1))
    for kind in ("webm", "mkv"):  # FFmpeg ends them without an error
        data = film(12, fps=6, kind=kind)
        with pytest.raises(gm.ImageError, match=f"expected {len(data)} bytes, .*found {len(data) - 9}"):
            model.plan(data[:-9])
        assert model.plan(data + b"tail").frames == model.plan(data).frames
    # The index of a film is at its start here, so that its end can be lost.
    first = film(60, 160, 96, 6, path=str(tmp_path / "first.mp4"))
    cut = first[: len(first) * 2 // 3]
    assert model.plan(cut).frames == model.plan(first).frames
    with pytest.raises(
        gm.ImageError, match=r"video: expected \d+ frames or more, as its header says, found \d+|can be decoded"
    ):
        model.pixels(cut)
    records = [("0", good), ("1", b"no film"), ("2", good), ("3", cut)]
    (tmp_path / "x.tar").write_bytes(tar_of([(key, {"mp4": data, "txt": b"caption"}) for key, data in records]))
    with pytest.raises(
        gm.ShardError, match=r"record 1, .*sample \"1\": the video \"mp4\", at byte \d+: video: expected a file of MP4"
    ):
        list(dataset(folder, tmp_path / "x.tar", model, shuffle_window=1))
    (tmp_path / "y.tar").write_bytes(tar_of([("3", {"mp4": cut, "txt": b"caption"})]))
    with pytest.raises(
        gm.ShardError, match=r"record 0, .*sample \"3\": video 0, at byte \d+, cannot be decoded: video: expected"
    ):
        list(dataset(folder, tmp_path / "y.tar", model))
    iterator = iter(dataset(folder, tmp_path / "x.tar", model, on_error="quarantine", max_error_rate=1.0))
    batches = list(iterator)
    assert (iterator.stats()["quarantined"], iterator.stats()["undecodable"]) == (1, 1)
    assert sum(int(batch["image_masks"].sum()) for batch in batches) == 3


def test_what_is_beside_a_video_is_refused(tmp_path, folder):
    model = gm.VideoModel("qwen2.5-vl", **SMALL["qwen2.5-vl"])
    (tmp_path / "x.tar").write_bytes(tar_of([("0", {"mp4": film(8), "txt": b"a <image> and <video>"})]))
    with pytest.raises(gm.ShardError, match="images and audio are not read beside videos"):
        list(dataset(folder, tmp_path / "x.tar", model))
    with pytest.raises(gm.ArgumentError, match="expected videos, and text or conversation"):
        gm.ImageText(model, fields={"images": "mp4"})
    with pytest.raises(gm.ArgumentError, match="mrope=True"):
        gm.PackedDataset(str(tmp_path / "x.tar"), tokenizer=folder, packing="pad", eos=False,
                         sample=gm.ImageText(model, text=gm.Text("txt"), mrope=True))  # fmt: skip
    for arguments, message in [
        ({"name": "x"}, "name"),
        ({"name": "qwen3-vl", "fps": 0}, "fps=0"),
        ({"name": "qwen3-vl", "fps": 2, "num_frames": 8}, "expected one of them"),
        ({"name": "qwen3-vl", "min_frames": 9, "max_frames": 8}, "max_frames"),
    ]:
        with pytest.raises(gm.ArgumentError, match=message):
            gm.VideoModel(**arguments)
