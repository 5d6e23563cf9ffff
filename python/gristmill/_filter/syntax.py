"""The text of a filter as Python's syntax tree, and errors that say where in the text."""

import ast
import io
import keyword
import tokenize
from itertools import pairwise

from gristmill._util.text import shortened
from gristmill.errors import ArgumentError

_LONGEST = 2**20
_EXCERPT = 30
_OPERATORS = ("and", "or", "not", "in", "is", "if", "else")
_ADVICE = {
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`",
    "=": "compare with ==",
    "<>": "compare with !=",
}


class Source:
    """The text of a filter.

    The tree is that of the text in parentheses, so that it may span lines and have comments, and with `[:]` in place of
    `[*]`, which Python does not know: characters stay where they are.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._code = f"({self._text}\n)"
        self._starts = [0]
        for line in self._code.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def parse(self) -> ast.expr:
        """The tree.

        Raises:
          ArgumentError: it is no expression.
        """
        if len(self._text) > _LONGEST:
            raise self._error(_LONGEST, f"at most {_LONGEST} characters", f"{len(self._text)}")
        for at, char in enumerate(self._text):
            if char not in "\n\t" and (char < " " or char == "\x7f"):
                raise self._error(at, "an expression", f"the control character {char!r}", "write it as an escape")
        if not self._text.strip():
            raise self._error(0, "an expression", "nothing")
        try:
            return ast.parse(self._without_stars(), mode="eval").body
        except SyntaxError as error:
            raise self._of_python(error) from None
        except (RecursionError, MemoryError):
            raise self.too_deep(0) from None

    def is_star(self, node: ast.Slice) -> bool:
        """Whether what looks like a slice is `[*]`."""
        return self._code[self._begin(node)] == "*"

    def spells(self, node: ast.Name | ast.Attribute, name: str) -> bool:
        """Whether a name is spelled in the text as the tree has it: Python changes some letters to others."""
        end = self._offset(node.end_lineno or 1, node.end_col_offset or 0)
        return self._code[:end].endswith(name)

    def error(self, node: ast.AST, expected: str, found: str, advice: str = "") -> ArgumentError:
        """The error at a node of the tree."""
        return self._error(self._begin(node) - 1, expected, found, advice)

    def too_deep(self, at: "int | ast.AST") -> ArgumentError:
        """The error for too many operations inside each other."""
        at = at if isinstance(at, int) else self._begin(at) - 1
        return self._error(at, "fewer operations inside each other", "more", "split the condition with `and`")

    def _without_stars(self) -> str:
        """The code with `:` for each `*` that is alone in brackets.

        Raises:
          SyntaxError: a bracket closes that is not open.
        """
        code, depth = list(self._code), 0
        try:
            tokens = [
                token
                for token in tokenize.generate_tokens(io.StringIO(self._code).readline)
                if token.type in (tokenize.OP, tokenize.NAME, tokenize.NUMBER, tokenize.STRING)
            ]
        except (tokenize.TokenError, SyntaxError):
            return self._code  # parsing it says what is wrong
        for token, (after, last) in zip(tokens, pairwise([*tokens[1:], None, None]), strict=True):
            if token.type != tokenize.OP:
                continue
            if token.string == "[" and after and after.string == "*" and last and last.string == "]":
                code[self._starts[after.start[0] - 1] + after.start[1]] = ":"
            depth += (token.string in "([{") - (token.string in ")]}")
            if depth <= 0 and after is not None:
                row, column = token.start
                raise SyntaxError("a bracket that closes nothing", ("", row, column + 1, ""))
        return "".join(code)

    def _of_python(self, error: SyntaxError) -> ArgumentError:
        at = self._starts[(error.lineno or 1) - 1] + max(error.offset or 1, 1) - 2
        rest = self._text[max(at, 0) :]
        word = rest.split(maxsplit=1)[0] if rest.strip() else ""
        advice = next((advice for start, advice in _ADVICE.items() if rest.startswith(start)), "")
        name = "".join(char for char in word if char.isidentifier())
        if keyword.iskeyword(name) and (name not in _OPERATORS or self._text[:at].rstrip().endswith(".")):
            advice = f'a key that is a word of Python is written as a string: item["{name}"], or key("{name}")'
        return self._error(at, "an expression", f"{error.msg}", advice)

    def _error(self, at: int, expected: str, found: str, advice: str = "") -> ArgumentError:
        at = min(max(at, 0), len(self._text))
        rest = self._text[at:]
        excerpt = repr(rest[:_EXCERPT]) + ("..." if len(rest) > _EXCERPT else "")
        where = f"at character {at}: {excerpt}" if rest else "at its end"
        advice = f"; {advice}" if advice else ""
        return ArgumentError(
            f"{self._name}={shortened(self._text)}: expected {expected}, found {found} {where}{advice}"
        )

    def _begin(self, node: ast.AST) -> int:
        return self._offset(getattr(node, "lineno", 1), getattr(node, "col_offset", 1))

    def _offset(self, line: int, column: int) -> int:
        """The character of the code at a line and the bytes before it there."""
        start = self._starts[line - 1]
        text = self._code[start : self._starts[line] - 1]
        return start + len(text.encode()[:column].decode(errors="ignore"))
