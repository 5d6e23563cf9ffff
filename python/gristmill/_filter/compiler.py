"""Filters checked, brought into one form, and compiled.

    len(text) > 100 and sum(lines[*].words) / len(lines) >= 5

    paths     text, lines
    program   path 0 | length | number 100 | compare > | and 9
              path 1 | aggregate sum [*] 1 | item words | path 1 | length | arithmetic / | number 5 | compare >=

Only what is listed in docs/filters.md is accepted of Python's expressions. Two expressions that differ only in how they
are written have the same text afterwards: it is part of the fingerprint of a stream. The program is one for a stack of
operands, and is described in rust/format/keep/mod.rs.
"""

import ast
import keyword
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, NamedTuple

from gristmill import filters
from gristmill._filter.syntax import Source
from gristmill._util import checks
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError

# A key, an index, None for all items, or `...` for the JSON that a string holds.
Step = str | int | EllipsisType | None
Steps = tuple[Step, ...]
# Its name, and what belongs to it.
Instruction = tuple[Any, ...]
Program = tuple[Instruction, ...]

ALL = None
JSON = ...
# The name of a filter of `gm.filters` in an expression: no part of a path or of a string.
_PRESET = re.compile(r"""(?<![\w.'"])gm\.filters\.(\w+)(?![\w.'"])""")
_DEEPEST = 100
_LARGEST_INDEX = 2**31

# A key that is no name is written key("my key"): a list of one string means the same where no list can be.
_FUNCTIONS = ("len", "sum", "mean", "min", "max", "count")
_VALUES = ("json", "hive")
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=", ast.GtE: ">=", ast.Gt: ">"}
# How tightly operations hold their operands together.
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)

_ALLOWED = "keys, constants, comparisons, and, or, not, in, + - * / // %, and the functions " + ", ".join(
    (*_FUNCTIONS, *_VALUES)
)
_FOUND = {
    ast.IfExp: "a conditional expression",
    ast.Lambda: "a function",
    ast.NamedExpr: "an assignment",
    ast.JoinedStr: "an f-string",
    ast.Dict: "a dict",
    ast.Set: "a set",
    ast.List: "a list",
    ast.Tuple: "a tuple",
    ast.Starred: "a star",
    ast.Slice: "a slice",
}


@dataclass(frozen=True)
class Keep:
    """A filter. The core reads it in `rust/python/keep.rs`.

    Attributes:
      text: the expression in its one form.
      paths: the paths that it looks at, from the keys of a record on; each leads to one value.
      program: what the core evaluates.
      clauses: the conditions that must all hold: text and program of each.
      values: what the conditions are about, for people who choose thresholds: text and program of each. The program of
        a path with `[*]` leaves a list.
      hive_keys: the keys of folders in the paths of shards that it looks at.
      of_all: the folders with such keys that are around all shards, and so in no fingerprint of a manifest.
    """

    text: str
    paths: tuple[Steps, ...]
    program: Program
    clauses: tuple[tuple[str, Program], ...]
    values: tuple[tuple[str, Program], ...]
    hive_keys: tuple[str, ...] = ()
    of_all: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The value that a stream's fingerprint has of it: an expression, whose comment has the folders around all."""
        return f"{self.text}  # {'/'.join(self.of_all)}" if self.of_all else self.text


def compile_filter(name: str, expression: Any) -> Keep:
    """A filter from its expression.

    Args:
      name: the argument, for errors.
      expression: the expression.

    Raises:
      ArgumentError: it is not one of a filter; the message says where.
      ArgumentTypeError: it is no string.
    """
    source = Source(name, _with_presets(name, checks.text(name, expression)))
    tree = source.parse()
    compiler = _Compiler(source)
    try:
        whole = compiler.term(tree)
        clauses = compiler.clauses(tree)
    except RecursionError:
        raise source.too_deep(0) from None
    return Keep(
        whole.text,
        tuple(compiler.paths),
        whole.program,
        tuple((clause.text, clause.program) for clause in clauses),
        tuple(compiler.values.items()),
        tuple(compiler.hive_keys),
    )


def _with_presets(name: str, text: str) -> str:
    """The text with the expressions of `gm.filters` for their names, which command lines and files can only spell.

    Raises:
      ArgumentError: there is no filter of such a name.
    """

    def expression(found: re.Match[str]) -> str:
        preset = getattr(filters, found[1], None)
        if not isinstance(preset, filters.QualityFilter):
            names = [known for known, value in vars(filters).items() if isinstance(value, filters.QualityFilter)]
            raise ArgumentError(f"{name}: expected one of gm.filters: {', '.join(names)}, found {shortened(found[0])}")
        return f"({preset})"

    return _PRESET.sub(expression, text)


class _Term(NamedTuple):
    """A part of an expression."""

    text: str
    # How tightly it holds together.
    binding: int
    program: Program

    def inside(self, least: int) -> str:
        """The text as an operand of what needs operands to hold together as tightly as `least`."""
        return self.text if self.binding >= least else f"({self.text})"


class _Compiler:
    def __init__(self, source: Source) -> None:
        self._source = source
        self.paths: dict[Steps, int] = {}
        self.values: dict[str, Program] = {}
        self.hive_keys: dict[str, None] = {}
        # In an aggregate: the steps to each of its items.
        self._items: Steps | None = None
        self._depth = 0

    def clauses(self, tree: ast.expr) -> list[_Term]:
        """The conditions that must all hold."""
        return [self.term(clause) for clause in _operands(tree, ast.And)]

    def term(self, node: ast.expr) -> _Term:
        """A part of the expression."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._source.too_deep(node)
        term = self._term(node)
        self._depth -= 1
        return term

    def _term(self, node: ast.expr) -> _Term:
        if _is_path(node):
            return self._path(node)
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as constant):
                return self._constant(constant, is_negative=True)
            case ast.UnaryOp(op=ast.USub()):
                term = self.term(node.operand)
                return _Term(f"-{term.inside(_SIGN)}", _SIGN, (*term.program, ("negate",)))
            case ast.UnaryOp(op=ast.Not()):
                term = self.term(node.operand)
                return _Term(f"not {term.inside(_NOT)}", _NOT, (*term.program, ("not",)))
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.BoolOp():
                return self._logic(node)
            case ast.Compare():
                return self._comparison(node)
            case ast.Call():
                return self._call(node)
        raise self._source.error(node, _ALLOWED, _FOUND.get(type(node), f"a {type(node).__name__}"))

    # Values

    def _constant(self, node: ast.Constant, is_negative: bool = False) -> _Term:
        value = node.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number, text = self._number(node, -value if is_negative else value)
            return _Term(text, _SIGN if text.startswith("-") else _ATOM, (("number", number),))
        if is_negative:
            raise self._source.error(node, "a number after -", repr(value)[:30])
        if isinstance(value, bool):
            return _Term(str(value), _ATOM, (("boolean", value),))
        if isinstance(value, str):
            return _Term(self._string(node, value), _ATOM, (("text", value),))
        if value is None:
            raise self._source.error(node, "a value", "None", "write `is None` or `is not None`")
        raise self._source.error(node, "a number, a string, True or False", repr(value)[:30])

    def _number(self, node: ast.AST, value: float) -> tuple[float, str]:
        """A number as the core holds it, and its text."""
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise self._source.error(node, "a number below 1.8e308", "a larger one")
        if number != value:
            advice = f"the nearest that it can hold is {number:.0f}"
            raise self._source.error(node, "a number that a 64-bit float can hold", "a longer one", advice)
        is_short = number.is_integer() and abs(number) < 2**53
        return number, str(int(number)) if is_short else repr(number)

    def _string(self, node: ast.AST, value: str) -> str:
        """The text of a string: as `repr`, but the same in each version of Python."""
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self._source.error(node, "a string without lone surrogates", "one") from None
        return _quoted(value)

    def _path(self, node: ast.expr) -> _Term:
        steps = self._steps(node)
        if ALL not in steps:
            self.values.setdefault(path_text(steps), program := self._program(steps))
            return _Term(path_text(steps), _ATOM, program)
        if self._items is None:
            raise self._source.error(
                node,
                "one value",
                "all items of an array",
                f"{', '.join(_FUNCTIONS[1:])} or len make one value of them",
            )
        return _Term(path_text(steps), _ATOM, _item_program(steps[len(self._items) :]))

    def _program(self, steps: Steps) -> Program:
        """The program that finds the value of a path without `[*]`."""
        first, *inside = _divided(steps)
        return (("path", self._index(first)), *(("json", part) for part in inside))

    def _index(self, steps: Steps) -> int:
        """The index of a path."""
        return self.paths.setdefault(steps, len(self.paths))

    def _steps(self, node: ast.expr) -> Steps:
        """The steps of a path."""
        steps: list[Step] = []
        while True:
            match node:
                case ast.Name(id=name):
                    steps.append(self._name(node, name))
                    return tuple(reversed(steps))
                case ast.List(elts=[ast.Constant(value=str(key))]) | ast.Call(args=[ast.Constant(value=str(key))]):
                    steps.append(self._key(node, key))
                    return tuple(reversed(steps))
                case ast.Call(func=ast.Name(id="json"), args=[inner], keywords=[]) if _is_path(inner):
                    steps.append(JSON)
                    node = inner
                    continue
                case ast.Attribute(attr=name):
                    steps.append(self._name(node, name))
                case ast.Subscript(slice=index):
                    steps.append(self._subscript(index))
                case _:
                    raise self._source.error(node, "a key before what is in brackets or behind a point", "none")
            node = node.value
            if isinstance(node, ast.Call) and not _is_path(node):
                raise self._source.error(node, "a key before what is in brackets or behind a point", "a function")

    def _name(self, node: ast.Name | ast.Attribute, name: str) -> str:
        if not self._source.spells(node, name):
            advice = f"Python reads it as {name!r}: write the key as a string in brackets"
            raise self._source.error(node, "a name in its usual letters", "another one", advice)
        return name

    def _key(self, node: ast.AST, key: str) -> str:
        self._string(node, key)
        return key

    def _subscript(self, index: ast.expr) -> Step:
        match index:
            case ast.Constant(value=str(key)):
                return self._key(index, key)
            case ast.Slice() if self._source.is_star(index):
                return ALL
            case ast.Constant(value=number):
                pass
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=positive)) if type(positive) is int:
                number = -positive
            case _:
                number = None
        if type(number) is not int:
            raise self._source.error(
                index, "an index, a string or * in brackets", _FOUND.get(type(index), "another one")
            )
        if abs(number) >= _LARGEST_INDEX:
            raise self._source.error(index, f"an index below {_LARGEST_INDEX}", "a larger one")
        return number

    # Operations

    def _arithmetic(self, node: ast.BinOp) -> _Term:
        sign = _ARITHMETIC.get(type(node.op))
        if sign is None:
            advice = "write `and`, `or`" if isinstance(node.op, (ast.BitAnd, ast.BitOr)) else ""
            raise self._source.error(node, f"one of {' '.join(_ARITHMETIC.values())}", "another operation", advice)
        binding = _SUM if sign in "+-" else _PRODUCT
        left, right = self.term(node.left), self.term(node.right)
        text = f"{left.inside(binding)} {sign} {right.inside(binding + 1)}"
        return _Term(text, binding, (*left.program, *right.program, ("arithmetic", sign)))

    def _logic(self, node: ast.BoolOp) -> _Term:
        word, binding = ("and", _AND) if isinstance(node.op, ast.And) else ("or", _OR)
        terms = [self.term(operand) for operand in _operands(node, type(node.op))]
        program: list[Instruction] = []
        left = sum(len(term.program) + 1 for term in terms) - 1
        for term in terms:
            left -= len(term.program) + 1
            program += [*term.program, (word, left)]
        return _Term(f" {word} ".join(term.inside(binding + 1) for term in terms), binding, tuple(program[:-1]))

    def _comparison(self, node: ast.Compare) -> _Term:
        for operator in node.ops:
            if type(operator) not in _COMPARISONS:
                if len(node.ops) > 1:
                    raise self._source.error(node, "in, not in and is without another comparison", "a chain of them")
                return self._membership(node.left, operator, node.comparators[0])
        for operand in (node.left, *node.comparators):
            if isinstance(operand, ast.Constant) and operand.value is None:
                raise self._source.error(operand, "a value", "None", "write `is None` or `is not None`")
        terms = [self.term(operand) for operand in (node.left, *node.comparators)]
        self._look_at(terms)
        text, program = terms[0].inside(_SUM), list(terms[0].program)
        signs = [_COMPARISONS[type(operator)] for operator in node.ops]
        left = sum(len(term.program) + 1 for term in terms[1:])
        for sign, term in zip(signs, terms[1:], strict=True):
            left -= len(term.program) + 1
            text += f" {sign} {term.inside(_SUM)}"
            program += [*term.program, ("chain", sign, left) if left else ("compare", sign)]
        return _Term(text, _COMPARISON, tuple(program))

    def _membership(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> _Term:
        negated = isinstance(operator, (ast.NotIn, ast.IsNot))
        term = self.term(left)
        self._look_at([term])
        if isinstance(operator, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._source.error(right, "None after is", "another value", "compare values with == or !=")
            word = "is not None" if negated else "is None"
            return _Term(f"{term.inside(_SUM)} {word}", _COMPARISON, (*term.program, ("is_nothing", negated)))
        word = "not in" if negated else "in"
        if isinstance(right, (ast.Tuple, ast.List)):
            constants = self._constants(right)
            values = [value for constant in constants for _, value in constant.program]
            numbers = [float(value) for value in values if not isinstance(value, str)]
            strings = [value for value in values if isinstance(value, str)]
            listed = ", ".join(constant.text for constant in constants) + ("," if len(constants) == 1 else "")
            test = ("one_of", negated, numbers, strings)
            return _Term(f"{term.inside(_SUM)} {word} ({listed})", _COMPARISON, (*term.program, test))
        container = self.term(right)
        program = (*term.program, *container.program, ("in", negated))
        return _Term(f"{term.inside(_SUM)} {word} {container.inside(_SUM)}", _COMPARISON, program)

    def _constants(self, node: ast.Tuple | ast.List) -> list[_Term]:
        if not node.elts:
            raise self._source.error(node, "constants in the list", "an empty list")
        for item in node.elts:
            constant = item.operand if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub) else item
            if not isinstance(constant, ast.Constant):
                raise self._source.error(
                    item, "constants in the list", "another value", "compare values with == and or"
                )
        return [self.term(item) for item in node.elts]

    def _look_at(self, terms: Sequence[_Term]) -> None:
        """Notes what a condition compares, beside constants and single paths."""
        for term in terms:
            if self._items is None and len(term.program) > 1:
                self.values.setdefault(term.text, term.program)

    # Functions

    def _call(self, node: ast.Call) -> _Term:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name == "hive":
            return self._hive(node)
        if name == "json":
            raise self._source.error(node, "a path as the argument of json", "another one")
        if name not in _FUNCTIONS:
            raise self._source.error(node, f"one of the functions {', '.join((*_FUNCTIONS, *_VALUES))}", "another one")
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self._source.error(node, f"plain arguments of {name}", "a named one or a star")
        if name in ("min", "max") and len(node.args) > 1:
            terms = [self.term(argument) for argument in node.args]
            program = [instruction for term in terms for instruction in term.program]
            text = f"{name}({', '.join(term.text for term in terms)})"
            return _Term(text, _ATOM, (*program, ("extreme", name, len(terms))))
        if len(node.args) != 1:
            raise self._source.error(node, f"one argument of {name}", f"{len(node.args)}")
        argument = node.args[0]
        starred = [path for path in _paths_in(argument) if ALL in self._steps(path)]
        if name == "len" and (self._items is not None or not starred):
            term = self.term(argument)
            return _Term(f"len({term.text})", _ATOM, (*term.program, ("length",)))
        return self._aggregate(node, name, argument, starred)

    def _hive(self, node: ast.Call) -> _Term:
        """The value of a folder in the path of the shard."""
        match node:
            case ast.Call(args=[ast.Constant(value=str(key))], keywords=[]):
                text = f"hive({self._string(node, key)})"
            case _:
                raise self._source.error(node, 'one key as a string, such as hive("lang")', "another argument")
        self.hive_keys[key] = None
        self.values.setdefault(text, program := (("hive", key),))
        return _Term(text, _ATOM, program)

    def _aggregate(self, node: ast.Call, name: str, argument: ast.expr, starred: list[ast.expr]) -> _Term:
        if self._items is not None:
            raise self._source.error(node, "no function of all items inside another one", name)
        if name == "len" and not _is_path(argument):
            raise self._source.error(argument, "a path as the argument of len", "an operation")
        if not starred:
            if name == "count" or not _is_path(argument):
                raise self._source.error(argument, f"[*] in the argument of {name}", "none", "[*] stands for all items")
            items = (*self._steps(argument), ALL)
            term = _Term(path_text(items), _ATOM, _item_program(()))
        else:
            items = self._items_of(starred)
            self._items = items
            term = self.term(argument)
            self._items = None
        first = items.index(ALL)
        if JSON in items[first:]:
            raise self._source.error(argument, "json() before the first [*] or behind the last one", "one between two")
        array = self._program(items[:first])
        for path in map(self._steps, starred) if starred else [items]:
            item = _item_program(path[len(items) :])
            self.values.setdefault(path_text(path), (*array, ("aggregate", "list", items[first:], len(item)), *item))
        head = ("aggregate", name, items[first:], len(term.program))
        return _Term(f"{name}({term.text})", _ATOM, (*array, head, *term.program))

    def _items_of(self, starred: list[ast.expr]) -> Steps:
        """The steps up to the last `[*]`, which all paths must have in common."""
        found: Steps | None = None
        for node in starred:
            steps = self._steps(node)
            items = steps[: len(steps) - steps[::-1].index(ALL)]
            if found is not None and items != found:
                advice = "a function goes through the items of one array"
                raise self._source.error(node, f"items of {path_text(found)}", path_text(items), advice)
            found = items
        assert found is not None
        return found


def _operands(node: ast.expr, operator: type[ast.boolop]) -> Iterator[ast.expr]:
    """The operands of `and` or `or`, those of the same word inside them too; of another expression itself."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, operator):
        for value in node.values:
            yield from _operands(value, operator)
    else:
        yield node


def _is_path(node: ast.expr) -> bool:
    match node:
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return True
        case ast.List(elts=[ast.Constant(value=str())]):
            return True
        case ast.Call(func=ast.Name(id="key"), args=[ast.Constant(value=str())], keywords=[]):
            return True
        case ast.Call(func=ast.Name(id="json"), args=[inner], keywords=[]):
            return _is_path(inner)
    return False


def _divided(steps: Steps) -> list[Steps]:
    """The steps before each look into the JSON of a string, and behind the last one."""
    parts: list[list[Step]] = [[]]
    for step in steps:
        if step is JSON:
            parts.append([])
        else:
            parts[-1].append(step)
    return [tuple(part) for part in parts]


def _item_program(steps: Steps) -> Program:
    """The program that finds a value of an item."""
    first, *inside = _divided(steps)
    return (("item", first), *(("json", part) for part in inside))


def _paths_in(node: ast.AST) -> Iterator[ast.expr]:
    """The paths of an expression."""
    match node:
        case ast.expr() if _is_path(node):
            yield node
        case ast.Call():
            for argument in node.args:
                yield from _paths_in(argument)
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[ast.List()]):
            yield from _paths_in(left)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _paths_in(child)


def path_text(steps: Steps) -> str:
    """A path as an expression has it."""
    first, *rest = steps
    text = str(first) if is_name(str(first)) else f"key({_quoted(str(first))})"
    for step in rest:
        if step is JSON:
            text = f"json({text})"
        elif isinstance(step, str):
            text += f".{step}" if is_name(step) else f"[{_quoted(step)}]"
        else:
            text += "[*]" if step is ALL else f"[{step}]"
    return text


def is_name(key: str) -> bool:
    """Whether a key is written as it is at the start of a path."""
    return key.isascii() and key.isidentifier() and not keyword.iskeyword(key)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + "".join(f"\\x{ord(char):02x}" if char < " " or char == "\x7f" else char for char in escaped) + "'"
