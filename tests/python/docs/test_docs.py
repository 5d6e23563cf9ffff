"""Every Python block and `gristmill` command in README and docs runs; targets, scripts and links in them exist."""

import os
import re
import shlex
import subprocess
import sys
import tomllib

import click
import pytest

from gristmill._cli import main
from helpers import PATIENCE, ROOT

# The blocks of training.md need eight devices: test_examples.py runs them.
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# Too slow: only their options are checked; other tests run them.
NOT_RUN = {"demo", "bench", "trace"}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(page):
    lines = [line for block in blocks(page, "console") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line.partition("#")[0])[2:] for line in lines if line.startswith("$ gristmill ")]


@pytest.fixture
def workplace(tmp_path, shard_folder, tokenizer_file, monkeypatch):
    """A working folder with the data that the pages assume."""
    (tmp_path / "demo-data").mkdir()
    for path in shard_folder.iterdir():
        (tmp_path / "demo-data" / path.name).symlink_to(path)
    (tmp_path / "demo-data/tokenizer").symlink_to(tokenizer_file.parent)
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUNNING = [
    page
    for page in PAGES
    if page.name not in ("training.md", "your-data.md") and (commands(page) or blocks(page, "python"))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_code_blocks_and_commands_of_page_run(page, workplace, capsys):
    for name, text in re.findall(r'^```toml title="(.*?)"\n(.*?)^```', page.read_text(), re.DOTALL | re.MULTILINE):
        (workplace / name).write_text(text)
    for arguments in commands(page):
        command = main.cli.commands.get(arguments[0])
        if arguments[0] in NOT_RUN:
            command.make_context(arguments[0], arguments[1:])
        else:
            assert main.run(arguments) == 0, capsys.readouterr().err
    if code := "".join(blocks(page, "python")):
        if page.name == "README.md":  # a jitted step without shardings accepts the batch
            code += "jax.jit(lambda table, batch: table[batch['inputs']])(jax.numpy.zeros((2**18, 2)), batch)"
        (workplace / "page.py").write_text(code)
        done = subprocess.run(
            [sys.executable, "page.py"],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr[-3000:]


def test_pages_hold_the_expected_blocks_and_commands():
    assert sum(len(blocks(page, "python")) for page in PAGES) > 20
    assert len(blocks(ROOT / "README.md", "python")) == 2
    assert {arguments[0] for page in PAGES for arguments in commands(page)} >= set(main.cli.commands)


def test_named_make_targets_and_scripts_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE)) | {"test-list", "test-NAME"}
    targets |= {f"test-{name}" for name in tomllib.loads((ROOT / "tests" / "environments.toml").read_text())}
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    text = "\n".join(page.read_text() for page in pages)
    called = set(re.findall(r"(?:^\$ |^ {4}|`)make ([\w-]+(?:\.\d+)*)", text, re.MULTILINE))
    assert called - targets == set()
    assert called >= {"demo", "test", "bench", "docs", "wheel", "fuzz", "test-maxtext"}
    assert 10 < len(re.findall(r"^[\w%-]+:.*## ", makefile, re.MULTILINE)) < 20  # `make` lists them
    scripts = set(re.findall(r"(?<!^-)python ((?:\w+/)+[\w.]+)", text, re.MULTILINE))  # without those that diffs remove
    assert [script for script in scripts if not (ROOT / script).exists()] == []
    assert scripts >= {"benches/scaling.py", "benches/encoders"}


def test_links_point_to_existing_files():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_lines_are_no_longer_than_120():
    pages = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
    for page in pages:
        lines = page.read_text().splitlines()
        assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == [], page.name


def test_heading_links_point_to_existing_headings():
    def anchors(page):
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())) for heading in headings}

    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text()):
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


def test_every_page_is_in_the_site():
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


def test_landing_page_lists_the_site_in_its_order():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    expected = re.findall(
        r"^ +- (.*?):(?: ([\w/-]+\.md))?$", re.sub(r"^ {10}.*\n", "", nav, flags=re.MULTILINE), re.MULTILINE
    )
    expected = [(name, "decisions/index.md" if name == "Decisions" else page) for name, page in expected[1:]]
    text = (ROOT / "docs/index.md").read_text().partition("\n## Promises")[0]
    found = re.findall(r"^(?:## (.*)|- \[(.*?)\]\((.*?)\).*)$", text, re.MULTILINE)
    assert [(heading or name, page) for heading, name, page in found] == expected
    assert len(expected) > 40


def test_first_paragraph_of_every_page_says_who_needs_it():
    pages = {page for page in (ROOT / "docs").glob("*.md") if page.name not in ("index.md", "changelog.md")}
    assert len(pages) > 30
    for page in pages:
        title, paragraph, *_ = page.read_text().split("\n\n")
        assert title.startswith("# ")
        assert paragraph.startswith(("You need this page if ", "You need this page to ")), page.name


def test_one_sentence_says_everywhere_what_gristmill_is():
    places = ["README.md", "docs/index.md", "mkdocs.yml", "pyproject.toml", "Cargo.toml", "Makefile", "rust/lib.rs"]
    places += ["python/gristmill/__init__.py", "python/gristmill/_cli/main.py"]
    for place in places:
        text = (ROOT / place).read_text().lower()
        assert "turns raw training data into the batches that language models are trained on" in text, place


def test_decisions_are_listed_and_complete():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^## \[.*\]\((.*)\)|^- (.*)$", (folder / "index.md").read_text(), re.MULTILINE)
    expected = []
    for page in (name for name, _ in listed if name):
        _, *entries = re.split(r"^## (.*)\n", (folder / page).read_text(), flags=re.MULTILINE)
        expected += [(page, ""), *(("", heading) for heading in entries[::2])]
        for heading, entry in zip(entries[::2], entries[1::2], strict=True):
            parts = re.findall(r"^- (Context|Decision|Rejected|Cost): ", entry, re.MULTILINE)
            assert [part for part in parts if part != "Rejected"] == ["Context", "Decision", "Cost"], heading
    assert listed == expected
    assert {page for page, _ in listed if page} == {page.name for page in folder.iterdir()} - {"index.md"}


def test_every_command_is_documented():
    page = (ROOT / "docs" / "commands.md").read_text()
    for name, command in main.cli.commands.items():
        assert f"`gristmill {name}`" in page
        for option in command.params:
            assert isinstance(option, click.Argument) or option.help, f"{name} {option.name}"


def test_every_public_name_is_in_the_reference():
    import gristmill as gm

    page = (ROOT / "docs" / "reference.md").read_text()
    for name in gm.__all__:
        assert re.search(rf"gristmill\.{name}\b", page), name


def test_troubleshooting_messages_occur_in_the_code():
    paths = [
        path
        for folder in ("python", "rust", "crates")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".py", ".rs")
    ]
    code = "\n".join(path.read_text() for path in paths)
    code = re.sub(r'"\s*\+?\s*f?"|\\\n\s*', "", code).replace('\\"', '"')  # messages over several lines
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = [row for row in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) if " " in row]
    assert len(messages) > 20
    parts = {part.strip() for message in messages for part in message.split("...")}
    assert {part for part in parts if part not in code} == set()
