"""Packages import those of lower layers alone: the check that `make lint` runs finds other imports."""

import pytest

import layers
from helpers import ROOT


def test_packages_import_lower_layers_alone():
    assert layers.check(ROOT / "python/gristmill") == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"_spec/a.py": "from gristmill._util import b\n", "_util/b.py": ""}, []),
        (
            {"_util/a.py": "def f():\n    from gristmill._spec import b\n", "_spec/b.py": ""},
            ["_util/a.py:2: _util imports gristmill._spec.b, which is not in a lower layer"],
        ),
        (
            {"_jax/a.py": "import gristmill._files.b\n", "_files/b.py": ""},
            ["_jax/a.py:1: _jax imports gristmill._files.b, which is not in a lower layer"],
        ),
        (
            {"_new/a.py": "from gristmill import errors\n", "errors.py": "", "__init__.py": ""},
            [f"_new/a.py:1: _new imports errors, of which one is in no layer: see {layers.__file__}"],
        ),
        (
            {"_util/a.py": "from gristmill._util.b import c\n", "_util/b.py": "import gristmill._util.a\n"},
            [": these import one another: gristmill._util.a <- gristmill._util.b <- gristmill._util.a"],
        ),
        ({"integrations/a.py": "from gristmill import b\n", "__init__.py": ""}, []),
        ({"integrations/a.py": "from gristmill._util import b\n", "_util/b.py": ""}, []),
        (
            {"integrations/x/a.py": "from gristmill._dataset import spec\n", "_dataset/spec.py": ""},
            [
                "integrations/x/a.py:1: an adapter imports gristmill._dataset.spec: use public names, see "
                f"{layers.__file__}"
            ],
        ),
    ],
    ids=["lower", "higher within a function", "same layer", "no layer", "cycle", "public", "helpers", "private"],
)
def test_other_imports_are_found(tmp_path, files, expected):
    folder = tmp_path / "gristmill"
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert [line.removeprefix(str(folder)).removeprefix("/") for line in layers.check(folder)] == expected
