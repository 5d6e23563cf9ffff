"""Megatron-Bridge's data module by its name: batches, ranks, states and validation."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gristmill as gm
from chat_models import VISION_CHATML, write_vision
from gristmill.integrations.energon import (
    EnergonDataloader,
    EnergonMultiModalDataModule,
    QwenVLTaskEncoder,
    WorkerConfig,
    cyclic_iter,
)
from helpers import tar_of
from images import captions, image, tar_index

COUNTS = {"train/a.tar": 9, "train/b.tar": 7, "train/c.tar": 8, "train/d.tar": 6, "val.tar": 5}
SMALL = {"min_pixels": 28 * 28, "max_pixels": 56 * 56, "max_padding_length": 256, "pad_to_multiple_of": 16}


def chats(shard, count):
    """Chats of none to two images."""
    records = []
    for number in range(count):
        images = number % 3
        turns = [
            {"from": "human", "value": "<image>" * images + f"What of {shard}?"},
            {"from": "gpt", "value": f"Number {number}" + "!" * (number % 5)},
        ]
        parts = {f"{at}.png": image(30 + at, 40 + number, number) for at in range(images)}
        parts["json"] = json.dumps(turns).encode()
        records.append((f"{shard[-5]}{number:03}", parts))
    return records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared")
    (path / "train").mkdir()
    (path / ".nv-meta").mkdir()
    for name, count in COUNTS.items():
        data = tar_of(chats(name, count))
        (path / name).write_bytes(data)
        (path / f"{name}.idx").write_bytes(tar_index(data))
    meta = path / ".nv-meta"
    (meta / ".info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": COUNTS}))
    parts = {"train": ["train/{a,b,c,d}.tar"], "val": ["val.tar"], "test": []}
    (meta / "split.yaml").write_text(json.dumps({"split_parts": parts, "exclude": []}))
    (meta / "dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


@pytest.fixture
def module(folder, tokenizer):
    def module(rank=0, ranks=1, encoder=SMALL, **arguments):
        group = SimpleNamespace(rank=lambda: rank, size=lambda: ranks)
        return EnergonMultiModalDataModule(
            path=folder, tokenizer=tokenizer, pg_collection=SimpleNamespace(dp=group),
            task_encoder=QwenVLTaskEncoder(**encoder), **arguments,
        )  # fmt: skip

    return module


def take(loader, count):
    return [next(loader) for _ in range(count)]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            if name == "visual_inputs":
                assert one[name].as_model_kwargs().keys() == value.as_model_kwargs().keys()
                for key, array in value.as_model_kwargs().items():
                    np.testing.assert_array_equal(one[name].as_model_kwargs()[key], array, strict=True)
            elif isinstance(value, np.ndarray):
                np.testing.assert_array_equal(one[name], value, err_msg=name, strict=True)
            else:
                assert one[name] == value, name


def references(folder, tokenizer, name):
    """The result of each sample of a shard by an encoding of its parts: ids, trained, and the images' patches."""
    encoder = gm.Encoder.from_pretrained(tokenizer)
    pad, start, end = (encoder.token_to_id(f"<|{word}|>") for word in ("image_pad", "vision_start", "vision_end"))
    im_start, im_end = (encoder.token_to_id(f"<|im_{word}|>") for word in ("start", "end"))
    model = gm.ImageModel("qwen2.5-vl-bridge", min_pixels=28 * 28, max_pixels=56 * 56)
    found = {}
    for key, parts in chats(name, COUNTS[name]):
        human, answer = (turn["value"] for turn in json.loads(parts["json"]))
        files = [parts[part] for part in sorted(parts) if part.endswith("png")]
        plans = [model.plan(*reversed(gm.image_size(file))) for file in files]
        ids = [im_start, *encoder.encode("user\n")]
        for plan in plans:
            ids += [start, *[pad] * plan.tokens, end]
        ids += [*encoder.encode(human.replace("<image>", "")), im_end, *encoder.encode("\n")]
        head = [im_start, *encoder.encode("assistant\n")]
        tail = [*encoder.encode(answer), im_end, *encoder.encode("\n")]
        trained = [False] * len(ids + head) + [True] * len(tail)
        pixels = [model.pixels(file, dtype="float32") for file in files]
        found[key] = (
            ids + head + tail,
            trained,
            pixels,
            [plan.grid_thw for plan in plans],
        )
    return found


def shifted(ids, trained):
    mask = [*trained[1:], False]
    return [token if is_trained else -100 for token, is_trained in zip([*ids[1:], 0], mask, strict=True)], mask


def test_batches_hold_what_the_samples_say(module, folder, tokenizer):
    loader = module(micro_batch_size=2).datasets_provider(WorkerConfig(0, 1, 1), "val")
    samples = references(folder, tokenizer, "val.tar")
    batches = list(loader)
    assert [batch["__key__"] for batch in batches] == [[*samples][:2], [*samples][2:4], [*samples][4:]]
    for batch in batches:
        rows = [samples[key] for key in batch["__keys__"]]
        longest = max(len(ids) for ids, *_ in rows)
        width = -(-longest // 16) * 16
        assert batch["input_ids"].shape == (2, width)
        assert {batch[name].dtype.name for name in ("input_ids", "labels", "position_ids", "attention_mask")} == {
            "int64"
        }
        assert batch["loss_mask"].dtype == np.float32
        for number, (ids, trained, _, _) in enumerate(rows):
            labels, mask = shifted(ids, trained)
            length = len(ids)
            assert batch["input_ids"][number].tolist() == ids + [0] * (width - length)
            assert batch["labels"][number].tolist() == labels + [-100] * (width - length)
            assert batch["loss_mask"][number].tolist() == mask + [0] * (width - length)
            assert batch["attention_mask"][number].tolist() == [1] * length + [0] * (width - length)
            assert batch["position_ids"][number].tolist() == list(range(width))
        images = [pixels for _, _, found, _ in rows for pixels in found]
        visual = batch["visual_inputs"]
        if images:
            np.testing.assert_array_equal(visual.pixel_values, np.concatenate(images), strict=True)
            assert visual.image_grid_thw.tolist() == [list(grid) for _, _, _, grids in rows for grid in grids]
        else:
            assert visual.as_model_kwargs() == {}
        assert batch["cu_seqlens_q"] is None
    assert not batches[-1]["loss_mask"][1].any()  # the last row is padding


@pytest.mark.parametrize("multiple", [1, 4])
def test_packed_batches_are_segments_of_one_row(module, folder, tokenizer, multiple):
    samples = {
        key: sample for name in COUNTS if "train" in name for key, sample in references(folder, tokenizer, name).items()
    }
    encoder = {**SMALL, "enable_energon_packing": True, "in_batch_packing_pad_to_multiple_of": multiple}
    loader = module(encoder=encoder, packing_buffer_size=8, shuffle_buffer_size=8, max_segments=6).train_dataloader()
    for batch in take(loader, 12):
        rows = [samples[key] for key in batch["__key__"]]
        real = [len(ids) for ids, *_ in rows]
        padded = [-(-length // multiple) * multiple for length in real]
        total = sum(padded)
        assert 1 <= len(rows) <= 6
        assert total <= 256
        assert batch["input_ids"].shape == batch["labels"].shape == batch["position_ids"].shape == (1, total)
        ids, labels, mask, positions = [], [], [], []
        for (found, trained, _, _), length in zip(rows, padded, strict=True):
            own_labels, own_mask = shifted(found, trained)
            more = length - len(found)
            ids += found + [0] * more
            labels += own_labels + [-100] * more
            mask += own_mask + [0] * more
            positions += range(length)
        assert batch["input_ids"][0].tolist() == ids
        assert batch["labels"][0].tolist() == labels
        assert batch["loss_mask"][0].tolist() == mask
        assert batch["position_ids"][0].tolist() == positions
        assert batch["attention_mask"] is None
        assert batch["cu_seqlens_q"].tolist() == batch["cu_seqlens_kv"].tolist() == [0, *np.cumsum(real)]
        assert batch["cu_seqlens_q"].dtype == np.int32
        assert batch["max_seqlen_q"] == batch["max_seqlen_kv"] == max(padded)
        assert batch["total_tokens"] == total
        if padded == real:
            assert batch["cu_seqlens_q_padded"] is None
        else:
            assert (
                batch["cu_seqlens_q_padded"].tolist()
                == batch["cu_seqlens_kv_padded"].tolist()
                == [0, *np.cumsum(padded)]
            )
        images = [pixels for _, _, found, _ in rows for pixels in found]
        if images:
            np.testing.assert_array_equal(batch["visual_inputs"].pixel_values, np.concatenate(images), strict=True)


def test_samples_of_a_batch_are_joined(module):
    val = module(micro_batch_size=2).datasets_provider(WorkerConfig(0, 1, 1), "val")
    joining = {**SMALL, "enable_in_batch_packing": True, "pad_to_max_length": True}
    joined = module(encoder=joining, micro_batch_size=2).datasets_provider(WorkerConfig(0, 1, 1), "val")
    for batch, other in zip(joined, val, strict=True):
        lengths = [length for length in other["attention_mask"].sum(axis=1).tolist() if length]
        assert batch["cu_seqlens_q"].tolist() == [0, *np.cumsum(lengths)]
        assert batch["input_ids"].shape == (1, 256)
        assert batch["cu_seqlens_q_padded"][-1] == batch["total_tokens"] == 256
        real = other["attention_mask"] == 1
        assert batch["input_ids"][0, : sum(lengths)].tolist() == other["input_ids"][real].tolist()


def test_arguments_by_position_in_either_order(folder, tokenizer):
    now = EnergonMultiModalDataModule(folder, tokenizer, 512, 2, 3)
    assert (now.seq_length, now.micro_batch_size, now.num_workers, now.num_val_workers) == (512, 2, 3, 3)
    before = EnergonMultiModalDataModule(folder, tokenizer, "qwen2.5-vl", 512, 2, 8, 3)
    assert (before.image_processor, before.seq_length, before.global_batch_size) == ("qwen2.5-vl", 512, 8)
    assert before.init_global_step == 0
    assert before.train_dataloader_object is None
    with pytest.raises(gm.ArgumentTypeError, match="seq_length: given by position and by name"):
        EnergonMultiModalDataModule(folder, tokenizer, 512, seq_length=512)
    with pytest.raises(gm.ArgumentTypeError, match="at most 15 arguments by position, got 22"):
        EnergonMultiModalDataModule(folder, tokenizer, *range(20))
    for wrong, message in [
        ({"cooker": 1}, "cooker=: unknown"),
        ({"shuffle_over_epochs_multiplier": -1}, "shuffle_over_epochs_multiplier=-1: expected 1"),
        ({"split_config": "other.yaml"}, "split_config='other.yaml': expected 'split.yaml'"),
        ({"packing_buffer_size": 8, "micro_batch_size": 2}, "micro_batch_size=2: expected 1 with packing_buffer_size="),
        ({"micro_batch_size": 0}, "micro_batch_size=0: expected an integer"),
    ]:
        with pytest.raises((gm.ArgumentError, gm.ArgumentTypeError), match=message):
            EnergonMultiModalDataModule(folder, tokenizer, **wrong)


def test_what_the_module_cannot_do_is_refused(module, folder, tokenizer):
    with pytest.raises(ValueError, match="split='valid': expected 'train', 'val' or 'test'"):
        module().datasets_provider(WorkerConfig(0, 1, 1), "valid")
    with pytest.raises(
        gm.ArgumentError, match="global_batch_size=3: expected a multiple of micro_batch_size=1 times 2"
    ):
        module(ranks=2, global_batch_size=3).train_dataloader()
    other = EnergonMultiModalDataModule(folder, tokenizer, task_encoder=object())
    with pytest.raises(gm.ArgumentTypeError, match=r"task_encoder=object: expected a gm\.ImageText, or a QwenVL"):
        other.train_dataloader()
    with pytest.raises(gm.ArgumentTypeError, match="task_encoder=None: expected"):
        EnergonMultiModalDataModule(folder, tokenizer).train_dataloader()
    with pytest.raises(gm.ArgumentTypeError, match="tokenizer=int: expected a path"):
        EnergonMultiModalDataModule(folder, 3, "qwen2.5-vl").train_dataloader()


def test_any_image_text_is_a_task_encoder(folder, tokenizer, tmp_path):
    sample = gm.ImageText(gm.ImageModel("gemma3", size=(8, 12), tokens=4), fields={"conversation": "json"})
    sample = gm.ImageText(
        gm.ImageModel("gemma3", size=(8, 12), tokens=4), text=gm.Chat("json", format="chatml", template=GEMMA)
    )
    data = EnergonMultiModalDataModule(folder, tokenizer, seq_length=128, task_encoder=sample, micro_batch_size=4)
    batch = next(data.val_dataloader())
    assert batch["visual_inputs"].pixel_values.shape == (3, 3, 8, 12)
    assert batch["visual_inputs"].pixel_values.dtype == np.uint8
    (tmp_path / "captions.tar").write_bytes(tar_of(captions(4)))
    tiles = gm.ImageText(gm.ImageModel("llama4", size=4, max_tiles=4, tokens=3), text=gm.Text("txt"))
    data = EnergonMultiModalDataModule(
        tmp_path / "captions.tar", tokenizer, seq_length=512, task_encoder=tiles, eos=False, seed=None
    )
    found = take(data.train_dataloader(), 4)
    model = gm.ImageModel("llama4", size=4, max_tiles=4)
    for batch, (_, parts) in zip(found, captions(4), strict=True):
        files = [
            parts[part] for part in sorted(parts, key=lambda part: int(part.split(".")[0]) if "png" in part else 99)
        ]
        pixels = [model.pixels(file) for file in files[:-1]]
        if pixels:
            expected = np.concatenate(pixels).transpose(0, 3, 1, 2)
            np.testing.assert_array_equal(batch["visual_inputs"].pixel_values, expected)
    tars = EnergonMultiModalDataModule(folder / "train" / "*.tar", tokenizer, "qwen2.5-vl", 512)
    assert len(next(tars.train_dataloader())["__key__"]) == 1


GEMMA = VISION_CHATML.replace("<|vision_start|><|image_pad|><|vision_end|>", "<start_of_image>")


def test_loaders_of_training(module):
    data = module()
    train, val = data.build()
    assert data.train_dataloader() is train
    assert data.val_dataloader() is val
    assert isinstance(train, EnergonDataloader)
    assert iter(train) is train  # and keeps its methods
    keys = [batch["__key__"][0] for batch in take(train, 60)]
    assert sorted(keys[:30]) == sorted(keys[30:])  # each epoch has each sample once
    assert len(set(keys[:30])) == 30
    assert keys[:30] != keys[30:]
    unshuffled = module(shuffle_over_epochs_multiplier=None, lanes=1).train_dataloader()
    assert [batch["__key__"][0] for batch in take(unshuffled, 30)] == sorted(keys[:30])


def test_order_depends_on_neither_ranks_nor_workers(module):
    def global_batches(ranks, workers):
        loaders = [
            module(rank, ranks, global_batch_size=8, micro_batch_size=2, num_workers=workers).train_dataloader()
            for rank in range(ranks)
        ]
        rows = 8 // ranks // 2
        return [
            [key for loader in loaders for batch in take(loader, rows) for key in batch["__key__"]] for _ in range(9)
        ]

    assert global_batches(1, 1) == global_batches(2, 0) == global_batches(4, 3)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_validation_is_one_pass_with_equal_steps(module, ranks):
    loaders = [
        module(rank, ranks, micro_batch_size=2).datasets_provider(WorkerConfig(rank, ranks, 1), "val")
        for rank in range(ranks)
    ]
    for _ in range(2):
        found = [list(loader) for loader in loaders]
        assert {len(batches) for batches in found} == {-(-5 // (2 * ranks))}
        keys = [key for step in zip(*found, strict=True) for batch in step for key in batch["__key__"]]
        assert keys == [f"l{number:03}" for number in range(5)]


def test_validation_begins_again_at_each_iter_and_repeats(module):
    val = module().val_dataloader()
    first = [batch["__key__"] for batch in take(iter(val), 3)]
    assert [batch["__key__"] for batch in take(iter(val), 3)] == first
    assert [batch["__key__"] for batch in take(val, 3)] == [["l003"], ["l004"], first[0]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_states_restore_again_and_again(module, ranks):
    """A second resume after fewer batches than there are workers repeats samples in Energon."""
    given = {"global_batch_size": 4, "shuffle_buffer_size": 16, "num_workers": 4}
    for rank in range(ranks):
        expected = take(module(rank, ranks, **given).train_dataloader(), 60)
        state, found = None, []
        for count in (1, 2, 1, 7, 3, 1, 1, 20, 9):
            loader = module(rank, ranks, **given).train_dataloader()
            if state is not None:
                loader.restore_state(json.loads(json.dumps(state)))
                assert loader.save_state() == state  # also before the first batch
            found += take(loader, count)
            state = loader.save_state()
            loader.close()
        assert_same(found, expected[: len(found)])
        assert len(json.dumps(state)) < 4096


def test_state_restores_in_a_loader_that_has_run(module):
    loader = module().train_dataloader()
    take(loader, 3)
    state = loader.save_state()
    expected = take(loader, 5)
    loader.restore_state(state)
    assert_same(take(loader, 5), expected)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 1), (2, 3)])
def test_states_of_all_ranks_restore_on_other_numbers_of_ranks(module, before, after):
    given = {"global_batch_size": 12, "lanes": 4}
    loaders = [module(rank, before, **given).train_dataloader() for rank in range(before)]
    for loader in loaders:
        take(loader, 5 * 12 // before)
    states = [loader.save_state() for loader in loaders]
    expected = [batch["__key__"] for _ in range(3) for loader in loaders for batch in take(loader, 12 // before)]
    others = [module(rank, after, **given).train_dataloader() for rank in range(after)]
    for loader in others:
        loader.restore_state(states)
    found = [batch["__key__"] for _ in range(3) for loader in others for batch in take(loader, 12 // after)]
    assert found == expected


def test_states_that_do_not_fit_are_refused(module):
    loader = module(global_batch_size=4).train_dataloader()
    take(loader, 6)
    within = loader.save_state()
    with pytest.raises(gm.StateError, match="saved within a global batch, after 2 batches of 1 rows on 1 ranks"):
        module(0, 2, global_batch_size=4).train_dataloader().restore_state(within)
    take(loader, 2)
    with pytest.raises(gm.StateError, match="expected a state of save_state"):
        loader.restore_state({"step": 3})
    with pytest.raises(gm.StateError, match="at least one state"):
        loader.restore_state([])
    other = module(0, 2).train_dataloader()
    with pytest.raises(gm.StateError, match="saved by 1 ranks, and there are 2: pass global_batch_size="):
        other.restore_state(loader.save_state())
    one_of_two = module(0, 2, global_batch_size=4).train_dataloader()
    take(one_of_two, 2)
    with pytest.raises(gm.StateError, match=r"merge the states.*saved by 2 ranks, and there are 1"):
        loader.restore_state(one_of_two.save_state())
    assert len(take(loader, 1)) == 1


def test_state_of_validation_at_its_end(module):
    val = module().val_dataloader()
    take(val, 5)
    again = module().val_dataloader()
    again.restore_state(val.save_state())
    assert_same(take(again, 2), take(val, 2))


def test_too_few_shards_for_the_ranks(module, caplog):
    whole = module(global_batch_size=6).train_dataloader()
    expected = [batch["__key__"] for batch in take(whole, 12)]
    parts = [module(rank, 6, global_batch_size=6).train_dataloader() for rank in range(6)]
    assert "lanes are not a multiple of 6 ranks: each rank reads all shards" in caplog.text
    assert [batch["__key__"] for _ in range(2) for part in parts for batch in take(part, 1)] == expected


def test_samples_that_do_not_fit_are_counted(module):
    loader = module(encoder={**SMALL, "max_num_images": 1}).train_dataloader()
    keys = {key for batch in take(loader, 70) for key in batch["__key__"]}
    assert all(int(key[-3:]) % 3 < 2 for key in keys)
    assert loader.stats()["filtered"] > 0


def test_metadatasets_are_blended(folder, tokenizer, tmp_path):
    file = tmp_path / "mix.yaml"
    splits = {
        "train": {
            "blend": [{"weight": 3, "path": str(folder)}, {"weight": 1, "path": str(folder), "split_part": "val"}]
        },
        "val": {"path": str(folder)},
    }
    file.write_text(json.dumps({"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}))
    data = EnergonMultiModalDataModule(
        file, tokenizer, task_encoder=QwenVLTaskEncoder(**SMALL), micro_batch_size=4, lanes=1
    )
    keys = [key for batch in take(data.train_dataloader(), 10) for key in batch["__key__"]]
    assert sum(key.startswith("l") for key in keys) == 10
    assert len(list(data.datasets_provider(WorkerConfig(0, 1, 1), "val"))) == 2


def test_test_split_is_there_or_none(module, caplog):
    assert module().test_dataloader() is None
    assert "there is no split 'test'" in caplog.text


def test_cyclic_iter_repeats_and_refuses_nothing():
    numbers = cyclic_iter([1, 2])
    assert [next(numbers) for _ in range(5)] == [1, 2, 1, 2, 1]
    with pytest.raises(gm.GristmillError, match="without items"):
        next(cyclic_iter([]))


def test_torch_is_not_loaded():
    code = "import sys, gristmill.integrations.energon; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.skipif("GRISTMILL_MULTIMODAL" not in os.environ, reason="GRISTMILL_MULTIMODAL is not set")
@pytest.mark.parametrize(("patch_size", "model"), [(14, "qwen2-vl"), (16, "qwen3-vl")])
def test_chats_that_energon_prepared(patch_size, model):
    """Ids and labels against those of an independent program that was compared with Megatron-Bridge."""
    root = Path(os.environ["GRISTMILL_MULTIMODAL"])
    expected = json.loads((root / "expected" / "chats.json").read_text())
    name = expected["tokenizer"].removeprefix("shared/")
    encoder_json = gzip.decompress((root.parent / name).read_bytes())
    inner = SimpleNamespace(chat_template=VISION_CHATML, backend_tokenizer=SimpleNamespace(to_str=encoder_json.decode))
    tokenizer = SimpleNamespace(_tokenizer=inner)  # as Megatron wraps those of transformers
    data = EnergonMultiModalDataModule(
        root / "chats", tokenizer, on_error="quarantine", max_error_rate=1.0, lanes=1, seed=None,
        task_encoder=QwenVLTaskEncoder(patch_size=patch_size, max_padding_length=8192),
    )  # fmt: skip
    samples = {sample["key"]: sample for sample in expected["models"][model]["samples"]}
    good = [key for key, sample in samples.items() if "error" not in sample and len(sample["sizes"]) <= 10]
    loader = data.train_dataloader()
    batches = take(loader, len(good))
    assert [batch["__key__"][0].rpartition("/")[2] for batch in batches] == good
    for key, batch in zip(good, batches, strict=True):
        length = int(batch["attention_mask"].sum())
        ids, labels = batch["input_ids"][0, :length], batch["labels"][0, :length]
        trained = int((labels != -100).sum())
        assert trained == samples[key]["trained"] == int(batch["loss_mask"].sum())
        np.testing.assert_array_equal(labels[:-1][labels[:-1] != -100], ids[1:][labels[:-1] != -100])
        if not samples[key]["sizes"]:
            assert hashlib.sha1(ids.astype(np.int32).tobytes()).hexdigest() == samples[key]["ids_sha1"]
    assert loader.stats()["filtered"] == 1  # eleven images
