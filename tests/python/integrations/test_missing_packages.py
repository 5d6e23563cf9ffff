"""Importing an adapter where its trainer is not installed."""

import importlib
import sys

import pytest

import gristmill as gm


@pytest.mark.parametrize("missing", ["torch", "torchtitan"])
def test_torchtitan_names_what_to_install(monkeypatch, missing):
    for name in [name for name in sys.modules if name.startswith("gristmill.integrations.torchtitan")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(gm.MissingExtraError, match=r"needs torch and torchtitan: .*; pip install torch torchtitan"):
        import gristmill.integrations.torchtitan  # noqa: F401


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("torch", "Loader", "gristmill.integrations.torch needs torch: pip install torch"),
        ("transformers", "attach", "pip install torch"),
        ("transformers", "fast", "fast needs transformers, which is not installed: pip install transformers"),
        ("lightning", "DataModule", "needs torch and lightning: .*; pip install torch lightning"),
        ("megatron", "ExternalLoader", "gristmill.integrations.megatron needs torch: pip install torch"),
    ],
)
def test_adapters_for_pytorch_name_what_to_install(monkeypatch, module, name, message):
    others = ("gristmill.integrations.", "lightning.", "pytorch_lightning.")  # found without the package around them
    for loaded in [loaded for loaded in sys.modules if loaded.startswith(others)]:
        monkeypatch.delitem(sys.modules, loaded)
    for missing in ("torch", "transformers", "lightning", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(gm.MissingExtraError, match=message):
        getattr(importlib.import_module(f"gristmill.integrations.{module}"), name)


def test_a_field_of_bfloat16_names_what_to_install(monkeypatch, tmp_path):
    shard = tmp_path / "a.jsonl"
    shard.write_text('{"ids": [1, 2, 3], "w": [0.5, 0.5, 0.5]}\n')
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    sample = gm.Tokens("ids", fields={"w": gm.Field("w", "bfloat16")})
    with pytest.raises(gm.MissingExtraError, match="pip install ml_dtypes"):
        gm.PackedDataset(str(shard), sample=sample, sequence_length=4, batch_size=1)
