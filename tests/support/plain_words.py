"""Finds sentences that do not begin with a noun, and words that are not used here: see Style in CONTRIBUTING.md.

    python tests/support/plain_words.py [PATH ...]

Comments, docstrings and Markdown are looked at. The words that a sentence may not begin with (see BEGINNINGS) leave out
the noun that it is about: "What a lane read" stands for "The records that a lane read". Questions may begin so. Text in
quotation marks or backquotes is not looked at, nor are the descriptions of arguments ("name: of the file").

The words that are not used are those of docs/terminology.md, whose last column names them. Messages, which are the
strings of the package and the core with a space in them, are looked at for these as well.
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

TERMS = Path(__file__).resolve().parents[2] / "docs/terminology.md"
MESSAGES = ["rust", "crates", "python/gristmill"]

# Within a paragraph the capital shows where a sentence begins; its first word may be in lower case.
_BEGINNING = re.compile(rf"(?:^(?i:{'|'.join(BEGINNINGS)})|(?<![\w-])(?:{'|'.join(BEGINNINGS)}))\b(?!:|[^.:]*\?)")
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|(?<=\])\([^)]*\)")
_RUST_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_RUST = re.compile(r"(?:^|(?<=\s))//[/!]?\s?(?P<text>.*)$")
_MARK = re.compile(r"^(?:[-*>#|]+|\d+\.)\s+")
_ARGUMENT = re.compile(r"^\w+: ")

# A line of a comment or of the docs: its number, whether it continues the line before, and its text.
Line = tuple[int, bool, str]


def check(paths: list[Path]) -> list[str]:
    """The sentences that begin with one of BEGINNINGS or have a word that is not used, each with its file and line."""
    unused = unused_words(TERMS.read_text())
    return [f"{path}:{number}: {text}" for path in _files(paths) for number, text in _wrong(path, unused)]


def unused_words(terms: str) -> re.Pattern[str]:
    """The words of the last column, with endings: those in italics have other meanings, and may be used for these."""
    cells = [line.split("|")[3] for line in terms.splitlines() if line.count("|") == 4]
    words = {word.strip() for cell in cells for word in re.sub(r"\*[^*]*\*|\([^)]*\)", "", cell).split(",")}
    patterns = [r"(?:e?s|e?d|ing)?\s+".join(word.split()) for word in sorted(words - {"", "not"}) if "--" not in word]
    return re.compile(rf"(?i:\b(?:{'|'.join(patterns)})(?:e?s|e?d|ing)?\b)") if patterns else re.compile("(?!)")


def _wrong(path: Path, unused: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    lines = list(_lines(path))
    if path.resolve() == TERMS:
        lines = [(number, continues, re.sub(r"\|[^|]*\|$", "|", text)) for number, continues, text in lines]
    yield from _found(iter(lines), unused)
    folders = {str(folder) for folder in path.resolve().parents} if "test" not in path.name else set()
    if folders & {str(TERMS.parents[1] / name) for name in MESSAGES} and "tests" not in path.parts:
        yield from ((number, text) for number, text in messages(path.name, path.read_text()) if unused.search(text))


def messages(name: str, source: str) -> Iterator[tuple[int, str]]:
    """The strings with a space, which a user may see, each with its line; what they quote is left out."""
    if name.endswith(".py"):
        tree = ast.parse(source)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        strings = [
            (node.lineno, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        ]
    else:
        lines = enumerate(source.partition("#[cfg(test)]")[0].splitlines(), 1)
        strings = [(number, text) for number, line in lines for text in _RUST_STRING.findall(_RUST.sub("", line))]
    for number, text in strings:
        if " " in text:
            yield number, re.sub(r"`[^`]*`|(?<!\w)'[^']*'", "_", " ".join(text.split()))


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(file for file in path.rglob("*") if file.suffix in READERS) if path.is_dir() else [path]


def _lines(path: Path) -> Iterator[Line]:
    return READERS.get(path.suffix, _other_lines)(path.read_text())


def _found(lines: Iterator[Line], unused: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The lines in which a sentence begins so, or a word is not used, with their numbers."""
    paragraph: list[tuple[int, str]] = []
    for number, continues, text in [*lines, (0, False, "")]:
        if not continues or not text.strip() or _MARK.match(text.strip()) or _ARGUMENT.match(text.strip()):
            yield from _in_paragraph(paragraph, unused)
            paragraph = []
        if text.strip():
            paragraph.append((number, text.strip()))


def _in_paragraph(paragraph: list[tuple[int, str]], unused: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    joined = "\n".join(_MARK.sub("", text) if n == 0 else text for n, (_, text) in enumerate(paragraph))
    plain = _QUOTED.sub(lambda quoted: re.sub(r"[^\n]", "_", quoted[0]), joined)
    for match in [*_BEGINNING.finditer(plain), *unused.finditer(plain)]:
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
    print("\n".join(wrong) or f"no sentence begins with {', '.join(BEGINNINGS)}, and no word is used that is not")
    sys.exit(bool(wrong))
