"""No code decides by the text of an error: the check that `make lint` runs finds searches of it."""

import pytest

import error_texts
from helpers import ROOT


def test_no_text_of_an_error_is_searched():
    assert error_texts.check(ROOT / "python/gristmill") == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ('"a" in str(error)', True),
        ('"a" not in error.reason', True),
        ('re.sub("a", "b", str(error))', True),
        ('str(error).startswith("a")', True),
        ('"a" in error.args[0]', True),
        ('error.argument == "a"', False),
        ('"a" in names', False),
        ("print(str(error))", False),
        ('"a" in str(other)', False),
    ],
)
def test_searches_of_errors_are_found(tmp_path, line, is_found):
    (tmp_path / "a.py").write_text(f"try:\n    f()\nexcept E as error:\n    x = {line}\n")
    found = [f"{tmp_path / 'a.py'}:4: the text of an error is searched: let the error have an attribute"]
    assert error_texts.check(tmp_path) == (found if is_found else [])
