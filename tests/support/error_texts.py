"""Checks that no code decides by the text of an error: errors have attributes for that.

    python tests/support/error_texts.py [FOLDER]

Within `except ... as error`, neither `str(error)` nor its `args` or `reason` is searched: by `in`, by a method such as
`startswith`, or by a function of `re`.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

_SEARCHES = {"startswith", "endswith", "find", "index", "count", "partition", "rpartition"}


def check(folder: Path) -> list[str]:
    """The searches, each with its file and line."""
    return [
        f"{path}:{line}: the text of an error is searched: let the error have an attribute"
        for path in sorted(folder.rglob("*.py"))
        for line in sorted(set(_searches(ast.parse(path.read_text()))))
    ]


def _searches(tree: ast.AST) -> Iterator[int]:
    for handler in ast.walk(tree):
        if isinstance(handler, ast.ExceptHandler) and handler.name:
            for node in ast.walk(handler):
                match node:
                    case ast.Compare(ops=ops, comparators=searched) if any(
                        isinstance(op, (ast.In, ast.NotIn)) for op in ops
                    ):
                        pass
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=searched):
                        pass
                    case ast.Call(func=ast.Attribute(value=text, attr=attr)) if attr in _SEARCHES:
                        searched = [text]
                    case _:
                        continue
                if any(_is_text(value, handler.name) for value in searched):
                    yield node.lineno


def _is_text(value: ast.expr, error: str) -> bool:
    """Whether an expression is the text of the error of this name."""
    match value:
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name == error
        case ast.Attribute(value=ast.Name(id=name), attr="reason" | "args" | "msg"):
            return name == error
        case ast.Subscript(value=inner):
            return _is_text(inner, error)
    return False


if __name__ == "__main__":
    wrong = check(Path(*sys.argv[1:] or ["python/gristmill"]))
    print("\n".join(wrong) or "no text of an error is searched")
    sys.exit(bool(wrong))
