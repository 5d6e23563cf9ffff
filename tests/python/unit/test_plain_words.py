"""Sentences begin with the noun, and a word that is not used for a term is used nowhere: the check finds others."""

import pytest

import plain_words
from helpers import ROOT


def test_sentences_begin_with_the_noun_and_use_the_terms():
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


TERMS = "| word | meaning | not |\n| --- | --- | --- |\n| lane | a part | worker shed, *row* (a word), tick |\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a tick", ["tick"]),
        ("Ticks, ticked and ticking", ["Ticks", "ticked", "ticking"]),
        ("two worker\nsheds", ["worker\nsheds"]),
        ("a row, a worker and a stick, not word, `lane`", []),
    ],
)
def test_words_of_the_last_column_are_found_unless_in_italics(text, found):
    assert [match[0] for match in plain_words.unused_words(TERMS).finditer(text)] == found


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.md", "The backend\n\n`backend`, [x](backend.md)\n\n```\nbackend\n```\n\n| a | backends |\n", [1, 9]),
        ("a.rs", 'fn backend() {} // a backend\nlet text = "a backend";\n', [1]),
        ("a.py", 'backend = 1\nraise ValueError("no such backend")  # no backend\n', [2]),
    ],
)
def test_words_are_looked_for_in_comments_and_text(tmp_path, name, text, lines):
    path = tmp_path / name
    path.write_text(text)
    assert [int(line.removeprefix(f"{path}:").split(":")[0]) for line in plain_words.check([path])] == lines


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.rs", 'let text = "a backend";\n// "\nformat!("{a} backends: `backend`, \'backend\'");\n', [1, 3]),
        ("a.rs", '#[cfg(test)]\nlet text = "a backend";\n', []),
        ("a.py", 'x = "backend"\nraise ValueError(f"no such {x} backend", "a `backend`")\n', [2]),
    ],
)
def test_words_are_looked_for_in_messages_of_the_package_and_the_core(name, text, lines):
    unused = plain_words.unused_words(plain_words.TERMS.read_text())
    assert [number for number, said in plain_words.messages(name, text) if unused.search(said)] == lines
