"""Batches in Megatron-Bridge's own steps and builder; `make test-bridge`, or GRISTMILL_BRIDGE=FOLDER of its `src`."""

import contextlib
import importlib
import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

import bridge
import gristmill as gm
from chat_models import VISION_CHATML, write_vision
from gristmill.integrations.energon import EnergonMultiModalDataModule, QwenVLTaskEncoder, attach
from helpers import tar_of
from images import image, tar_index

torch = pytest.importorskip("torch", reason="torch is not installed: make test-bridge")
pytestmark = pytest.mark.skipif(bridge.source() is None, reason="Megatron-Bridge is not installed: make test-bridge")

SMALL = {"min_pixels": 28 * 28, "max_pixels": 56 * 56, "max_padding_length": 256, "pad_to_multiple_of": 16}
WITH_TOOLS = (
    "{%- if tools %}{{ '<|im_start|>system\n' + tools[0].function.name + '<|im_end|>\n' }}{%- endif %}" + VISION_CHATML
)
TOOLS = [{"type": "function", "function": {"name": "zoom", "parameters": {}}}]


@pytest.fixture(autouse=True)
def megatron(monkeypatch):
    """Bridge's modules by their names; its batches stay on the CPU."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    end = bridge.installed()

    def module(name):
        if not (bridge.source() / "megatron" / "bridge" / f"{name.replace('.', '/')}.py").is_file():
            pytest.skip(f"this version of Megatron-Bridge has no {name}")
        return importlib.import_module(f"megatron.bridge.{name}")

    yield module
    end()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared")
    (path / ".nv-meta").mkdir()
    counts = {"a.tar": 8, "b.tar": 8, "val.tar": 4}
    for name, count in counts.items():
        records = []
        for number in range(count):
            images = number % 3
            turns = [
                {"from": "human", "value": "<image>" * images + "What is it?"},
                {"from": "gpt", "value": f"Number {number}" + "!" * number},
            ]
            parts = {f"{at}.png": image(30 + at, 40 + number, number) for at in range(images)}
            parts["json"] = json.dumps({"conversations": turns, "tools": TOOLS}).encode()
            records.append((f"s{number:03}", parts))
        data = tar_of(records)
        (path / name).write_bytes(data)
        (path / f"{name}.idx").write_bytes(tar_index(data))
    (path / ".nv-meta/.info.json").write_text(json.dumps({"energon_version": "7.4.1", "shard_counts": counts}))
    parts = {"train": ["a.tar", "b.tar"], "val": ["val.tar"]}
    (path / ".nv-meta/split.yaml").write_text(json.dumps({"split_parts": parts, "exclude": []}))
    (path / ".nv-meta/dataset.yaml").write_text("__module__: megatron.energon\n__class__: CrudeWebdataset\n")
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_vision(tmp_path_factory.mktemp("models") / "vision")


class Model:
    """A model that keeps what it is called with. Its loss is 1 at each token."""

    def __init__(self):
        group = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
        self.pg_collection = SimpleNamespace(pp=group, tp=group, cp=group, ep=group, dp=group, dp_cp=group)
        self.config = SimpleNamespace(mtp_num_layers=None, is_hybrid_model=False, seq_length=256)
        self.vp_stage = None
        self.calls = []

    def __call__(self, **given):
        self.calls.append(given)
        return torch.ones(given["labels"].shape)


def state():
    """The state of a run, as the steps use it."""
    found = MagicMock()
    found.straggler_timer = _Timer()
    found.cfg.dataset = SimpleNamespace(skip_getting_attention_mask_from_dataset=True, seq_length=256)
    found.cfg.model = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2), seq_length=256)
    for name in ("seqlen_sum", "seqlen_sq_sum", "vision_patches", "vision_patch_sum", "vision_patch_sq_sum"):
        setattr(found, f"_flops_{name}", 0)
    return found


class _Timer(contextlib.nullcontext):
    def __call__(self, **_):
        return self


def module_of(folder, tokenizer, **more):
    encoder = QwenVLTaskEncoder(**SMALL, **more.pop("encoder", {}))
    return EnergonMultiModalDataModule(folder, tokenizer, task_encoder=encoder, lanes=1, **more)


def images_of(batch):
    """How many images the placeholders of a batch are, and their tokens."""
    grids = batch["visual_inputs"].image_grid_thw
    return (0, 0) if grids is None else (len(grids), int(grids.prod(dim=1).sum()) // 4)


@pytest.mark.parametrize("form", ["padded", "packed", "joined"])
def test_batches_pass_the_step_of_vision_models(megatron, folder, tokenizer, form):
    step = megatron("training.vlm_step")
    if form != "padded" and not hasattr(step, "_PACKED_SEQ_PARAM_KEYS"):
        pytest.skip("this version of Megatron-Bridge packs in its step")
    more = {
        "padded": {"micro_batch_size": 2},
        "packed": {"packing_buffer_size": 8, "max_segments": 4, "encoder": {"in_batch_packing_pad_to_multiple_of": 8}},
        "joined": {"micro_batch_size": 3, "encoder": {"enable_in_batch_packing": True}},
    }[form]
    loader, expected = (module_of(folder, tokenizer, **more).train_dataloader() for _ in range(2))
    pad = gm.Encoder.from_pretrained(tokenizer).token_to_id("<|image_pad|>")
    for _ in range(6):
        batch, model = next(expected), Model()
        images, tokens = images_of(batch)
        assert int((batch["input_ids"] == pad).sum()) == tokens
        output, loss = step.forward_step(state(), loader, model)
        (given,) = model.calls
        for name in ("input_ids", "labels", "loss_mask", "position_ids"):
            assert torch.equal(given[name][:, : batch[name].shape[1]], batch[name]), name
            assert given[name].dtype == (torch.float32 if name == "loss_mask" else torch.int64)
        assert given["attention_mask"] is None
        assert ("pixel_values" in given) == (images > 0)
        if images:
            assert given["pixel_values"].shape == (4 * tokens, 1176)
            assert torch.equal(given["image_grid_thw"], batch["visual_inputs"].image_grid_thw)
        packed = given.get("packed_seq_params")
        assert (packed is not None) == (form != "padded")
        if packed is not None:
            assert torch.equal(packed.cu_seqlens_q, batch["cu_seqlens_q"])
            assert int(packed.max_seqlen_q) == int(batch["max_seqlen_q"])
        total, count, _ = loss(output)
        assert total == count == batch["loss_mask"].sum()


def test_batches_pass_the_step_of_qwen3_vl(megatron, folder, tokenizer):
    step = megatron("models.qwen_vl.qwen3_vl_step")
    more = {"micro_batch_size": 2, "encoder": {"patch_size": 16}}
    loader, expected = (module_of(folder, tokenizer, **more).train_dataloader() for _ in range(2))
    for _ in range(6):
        batch, model = next(expected), Model()
        images, tokens = images_of(batch)
        output, loss = step.forward_step(state(), loader, model)
        (given,) = model.calls
        length = batch["input_ids"].shape[1]
        assert torch.equal(given["input_ids"][:, :length], batch["input_ids"])
        assert torch.equal(given["labels"][:, :length], batch["labels"])
        if images:
            assert given["pixel_values"].shape == (4 * tokens, 1536)
        assert loss(output)[0] == batch["loss_mask"].sum()


def test_module_stands_in_the_builder_of_energons_data(megatron, folder, tokenizer):
    """Bridge's builder makes its task encoder with transformers, which is replaced here."""
    builders = megatron("data.builders.energon")
    inner = SimpleNamespace(
        chat_template=WITH_TOOLS,
        backend_tokenizer=SimpleNamespace(to_str=lambda: (tokenizer / "tokenizer.json").read_text()),
    )
    names = ("tokenizer", "image_processor")
    theirs = type("QwenVLTaskEncoder", (), {
        **{name: value for name, value in vars(QwenVLTaskEncoder(**SMALL)).items() if name not in names},
        "seq_length": 256, "merge_size": 2, "hf_tokenizer": inner,
    })  # fmt: skip
    builders.build_energon_task_encoder = lambda config: theirs()
    config = builders.EnergonDatasetConfig(
        path=str(folder), seq_length=256, micro_batch_size=2, num_workers=1, shuffle_buffer_size=8,
        task_encoder=builders.QwenVLEnergonTaskEncoderConfig(hf_processor_path="x"), dataset_kwargs={"lanes": 1},
    )  # fmt: skip
    context = SimpleNamespace(train_samples=10, valid_samples=4, test_samples=0, tokenizer=None, pg_collection=None)
    attach()
    train, validation, test = builders.EnergonDatasetBuilder(config).build(context)
    assert test is None
    encoder = gm.Encoder.from_pretrained(tokenizer)
    batch = next(train)
    assert "zoom" in encoder.decode(batch["input_ids"][0].tolist())
    assert len(batch["__key__"]) == 2
    saved, following = train.save_state(), next(train)["__key__"]
    train.restore_state(saved)
    assert next(train)["__key__"] == following
    keys = [key for _ in range(2) for key in next(validation)["__key__"]]
    assert keys == [f"s{number:03}" for number in range(4)]
