"""Finds sentences of comments, docstrings and Markdown that do not begin with a noun: see Style in CONTRIBUTING.md.

    python tests/support/plain_words.py [PATH ...]

The words that are looked for (see BEGINNINGS) leave out the noun that the sentence is about: "What a lane read" stands
for "The records that a lane read". Questions may begin so. Text in quotation marks or backquotes is not looked at, nor
are the descriptions of arguments ("name: of the file").
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

BEGINNINGS = ["What", "Of", "That", "Those", "Which"]
CODE = ["rust", "crates", "python/gristmill", "tests", "benches", "examples", "Makefile"]
PATHS = [*CODE, "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]

# Within a paragraph the capital shows where a sentence begins; its first word may be in lower case.
_BEGINNING = re.compile(rf"(?:^(?i:{'|'.join(BEGINNINGS)})|(?<![\w-])(?:{'|'.join(BEGINNINGS)}))\b(?!:|[^.:]*\?)")
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")
_RUST = re.compile(r"(?:^|(?<=\s))//[/!]?\s?(?P<text>.*)$")
_MARK = re.compile(r"^(?:[-*>#|]+|\d+\.)\s+")
_ARGUMENT = re.compile(r"^\w+: ")

# A line of a comment or of the docs: its number, whether it continues the line before, and its text.
Line = tuple[int, bool, str]


def check(paths: list[Path]) -> list[str]:
    """The sentences that begin with one of BEGINNINGS, each with its file and line."""
    return [f"{path}:{number}: {text}" for path in _files(paths) for number, text in _found(_lines(path))]


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(file for file in path.rglob("*") if file.suffix in READERS) if path.is_dir() else [path]


def _lines(path: Path) -> Iterator[Line]:
    return READERS.get(path.suffix, _other_lines)(path.read_text())


def _found(lines: Iterator[Line]) -> Iterator[tuple[int, str]]:
    """The lines in which a sentence begins so, with their numbers."""
    paragraph: list[tuple[int, str]] = []
    for number, continues, text in [*lines, (0, False, "")]:
        if not continues or not text.strip() or _MARK.match(text.strip()) or _ARGUMENT.match(text.strip()):
            yield from _in_paragraph(paragraph)
            paragraph = []
        if text.strip():
            paragraph.append((number, text.strip()))


def _in_paragraph(paragraph: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    joined = "\n".join(_MARK.sub("", text) if n == 0 else text for n, (_, text) in enumerate(paragraph))
    plain = _QUOTED.sub(lambda quoted: re.sub(r"[^\n]", "_", quoted[0]), joined)
    for match in _BEGINNING.finditer(plain):
        yield paragraph[plain.count("\n", 0, match.start())]


def _rust_lines(source: str) -> Iterator[Line]:
    previous = None
    for number, line in enumerate(source.splitlines(), 1):
        match = _RUST.search(line)
        before = line[: match.start("text")].strip() if match else None
        if match:
            yield number, before == previous, match["text"]
        previous = before


def _python_lines(source: str) -> Iterator[Line]:
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    yield number, number > node.lineno, lines[number - 1].strip().removeprefix("r").removeprefix('"""')
    previous = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            number, column = token.start
            alone = not token.line[:column].strip()
            yield number, alone and number == previous + 1, token.string.lstrip("#: ")
            previous = number if alone else 0


def _markdown_lines(source: str) -> Iterator[Line]:
    code = False
    for number, line in enumerate(source.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        yield number, not line.lstrip().startswith("|"), "" if code or fence else line


def _other_lines(source: str) -> Iterator[Line]:
    """Comments that begin with a number sign, as in a Makefile."""
    previous = 0
    for number, line in enumerate(source.splitlines(), 1):
        if match := re.match(r"\s*#+ (.*)", line):
            yield number, number == previous + 1, match[1]
            previous = number


READERS = {".rs": _rust_lines, ".py": _python_lines, ".pyi": _python_lines, ".md": _markdown_lines}

if __name__ == "__main__":
    wrong = check([Path(path) for path in sys.argv[1:] or PATHS])
    print("\n".join(wrong) or f"no sentence begins with {', '.join(BEGINNINGS)}")
    sys.exit(bool(wrong))
