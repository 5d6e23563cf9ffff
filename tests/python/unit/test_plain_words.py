"""Sentences of comments, docstrings and docs begin with the noun: the check that `make lint` runs finds others."""

import pytest

import plain_words
from helpers import ROOT


def test_sentences_begin_with_the_noun():
    assert plain_words.check([ROOT / path for path in plain_words.PATHS]) == []


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.rs", "/// What a lane reads.\nfn f() {}\n", [1]),
        ("a.rs", "//! A lane. It reads\n//! shards. Those of another\n//! lane stay. Of each, all.\n", [2, 3]),
        ("a.rs", "/// A shard\n/// of a lane, which is what\n/// that lane reads.\n", []),
        ("a.rs", "// A shard.\nlet url = 1; // of a store\n", [2]),
        ("a.py", '"""Which lane.\n\n    that of a lane\n"""\nx = "What"  # Those\n', [1, 3, 5]),
        ("a.py", 'def f(a):\n    """Reads.\n\n    Args:\n      a: of a lane.\n    """\n    # What if it ends?\n', []),
        ("a.py", '# "What" and `Of` are words.\n', []),
        ("Makefile", "# What is built.\nall: ## Of all\n\techo What\n", [1]),
        ("a.md", "# Lanes\n\n- What a lane reads\n\n```\nWhat\n```\n\nThat is all.\n", [3, 9]),
    ],
)
def test_other_beginnings_are_found(tmp_path, name, text, lines):
    path = tmp_path / name
    path.write_text(text)
    found = sorted(plain_words.check([tmp_path if path.suffix else path]))
    assert [int(line.removeprefix(f"{path}:").split(":")[0]) for line in found] == lines
