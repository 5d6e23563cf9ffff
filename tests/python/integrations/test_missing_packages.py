"""Importing an adapter where its trainer is not installed."""

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
