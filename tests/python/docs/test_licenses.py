"""The list of third-party licences holds every crate that is compiled into the extension."""

import re
import shutil
import subprocess

import pytest

from helpers import ROOT


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo lists the crates")
def test_every_compiled_crate_is_listed_with_its_version():
    # Procedural macros run while compiling, and are not in the wheel.
    edges = ["--edges", "normal,no-proc-macro", "--prefix", "none"]
    tree = ["cargo", "tree", "--locked", "--features", "python", *edges]
    crates = subprocess.run([*tree, "--format", "{p}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    compiled = set(re.findall(r"^(\S+) v(\S+)", crates, re.MULTILINE))
    assert len(compiled) > 30
    listed = set(re.findall(r"^- (\S+) ([^\s,]+)", (ROOT / "THIRD_PARTY_LICENSES.md").read_text(), re.MULTILINE))
    assert not compiled - listed, "run `make licenses`"


def test_licences_of_bundled_code_are_listed():
    text = (ROOT / "THIRD_PARTY_LICENSES.md").read_text()
    for holder in ("K.Kosako", "Unicode, Inc.", "zlib", "Independent JPEG Group", "Google Inc.", "Meta Platforms"):
        assert holder in text
