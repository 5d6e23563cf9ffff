"""A naive model of filters: Python's own tree of an expression, evaluated on what `json.loads` returns.

It follows the rules of docs/filters.md and nothing of the compiler or the core: `[*]` is a slice here, and an item of
an aggregate is found by walking from the record each time.
"""

import ast
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

Step = str | int | slice | type
ALL = slice(None)
JSON = json.JSONDecoder


def keeps(expression: str, line: str) -> bool:
    """Whether a filter keeps the record of a line."""
    return bool(_value(_tree(expression), _record(line), None))


def value(expression: str, line: str) -> Any:
    """The value of an expression for the record of a line; None: there is none."""
    return _value(_tree(expression), _record(line), None)


def _tree(expression: str) -> ast.expr:
    return ast.parse(f"({expression}\n)".replace("[*]", "[:]"), mode="eval").body


def _record(line: str) -> Any:
    def number(text: str) -> float:
        return float(text)  # rounds, and is infinite if it is too large

    return json.loads(line, parse_int=number)


# An item of an aggregate: its path, up to the last `[*]`, and the value there.
Item = tuple[list[Step], Any]


def _value(node: ast.expr, record: Any, item: Item | None) -> Any:
    def of(other: ast.expr) -> Any:
        return _value(other, record, item)

    match node:
        case ast.List() | ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call(func=ast.Name(id="key" | "json")):
            steps = _steps(node)
            if item and steps[: len(item[0])] == item[0]:
                return _walk(item[1], steps[len(item[0]) :])
            return _walk(record, steps)
        case ast.Constant(value=constant):
            return float(constant) if type(constant) is int else constant
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not of(operand)
        case ast.UnaryOp(operand=operand):
            return _arithmetic(lambda zero, x: zero - x, 0.0, of(operand))
        case ast.BoolOp(op=ast.And(), values=values):
            result = True
            for operand in values:
                result = of(operand)
                if not result:
                    break
            return result
        case ast.BoolOp(values=values):
            result = False
            for operand in values:
                result = of(operand)
                if result:
                    break
            return result
        case ast.BinOp(left=left, op=operator, right=right):
            operations: dict[type, Callable[[float, float], float]] = {
                ast.Add: lambda a, b: a + b,
                ast.Sub: lambda a, b: a - b,
                ast.Mult: lambda a, b: a * b,
                ast.Div: lambda a, b: a / b,
                ast.FloorDiv: lambda a, b: a // b,
                ast.Mod: lambda a, b: a % b,
            }
            return _arithmetic(operations[type(operator)], of(left), of(right))
        case ast.Compare():
            operands = [node.left, *node.comparators]
            return all(
                _compares(of(left), operator, right, of)
                for left, operator, right in zip(operands, node.ops, operands[1:], strict=False)
            )
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _call(name, arguments, record, item)
    raise AssertionError(ast.dump(node))


def _compares(left: Any, operator: ast.cmpop, right: ast.expr, of: Callable[[ast.expr], Any]) -> bool:
    if isinstance(operator, (ast.Is, ast.IsNot)):
        return (left is None) == isinstance(operator, ast.Is)
    if isinstance(operator, (ast.In, ast.NotIn)):
        items = [of(item) for item in right.elts] if isinstance(right, (ast.Tuple, ast.List)) else of(right)
        if left is None or not (isinstance(items, list) or (isinstance(items, str) and isinstance(left, str))):
            return False
        if isinstance(items, str):
            is_in = left in items
        else:
            is_in = any(_is_like(left, other) and left == other for other in items)
        return is_in == isinstance(operator, ast.In)
    other = of(right)
    if not _is_like(left, other):
        return False
    return {
        ast.Lt: left < other,
        ast.LtE: left <= other,
        ast.Eq: left == other,
        ast.NotEq: left != other,
        ast.GtE: left >= other,
        ast.Gt: left > other,
    }[type(operator)]


def _is_like(one: Any, other: Any) -> bool:
    return (isinstance(one, (bool, float)) and isinstance(other, (bool, float))) or (
        isinstance(one, str) and isinstance(other, str)
    )


def _arithmetic(operation: Callable[[float, float], float], left: Any, right: Any) -> float | None:
    if not (isinstance(left, (bool, float)) and isinstance(right, (bool, float))):
        return None
    try:
        result = operation(float(left), float(right))
    except ZeroDivisionError:
        return None
    return None if math.isnan(result) else result


def _call(name: str, arguments: list[ast.expr], record: Any, item: Item | None) -> Any:
    if name in ("min", "max") and len(arguments) > 1:
        values = [_value(argument, record, item) for argument in arguments]
        return _reduce(name, values) if all(isinstance(value, (bool, float)) for value in values) else None
    (argument,) = arguments
    prefix = next(_starred(argument), None)
    if name == "len" and (item or prefix is None):
        value = _value(argument, record, item)
        return float(len(value)) if isinstance(value, (str, list)) else None
    if prefix is None:
        prefix = [*_steps(argument), ALL]
        argument = ast.Subscript(argument, ast.Slice())
    if not isinstance(_walk(record, prefix[: prefix.index(ALL)]), list):
        return None
    values = [_value(argument, record, (prefix, value)) for value in _items(record, prefix)]
    values = [value for value in values if value is not None]
    if name == "len":
        return float(len(values))
    if name == "count":
        return float(sum(bool(value) for value in values))
    if not all(isinstance(value, (bool, float)) for value in values):
        return None
    return _reduce(name, values)


def _reduce(name: str, values: list[float]) -> float | None:
    total = 0.0
    for number in values:  # `sum` of newer versions rounds otherwise
        total += number
    match name:
        case "min" | "max":
            return float({"min": min, "max": max}[name](values)) if values else None
        case "mean":
            total = total / len(values) if values else math.nan
    return None if math.isnan(total) else total


def _starred(node: ast.AST) -> Iterator[list[Step]]:
    """The steps up to the last `[*]` of each path that has one."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) or (isinstance(node, ast.Call) and _is_json(node)):
        steps = _steps(node)
        if ALL in steps:
            yield steps[: len(steps) - steps[::-1].index(ALL)]
        return
    for child in ast.iter_child_nodes(node):
        yield from _starred(child)


def _steps(node: ast.expr) -> list[Step]:
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.List(elts=[ast.Constant(value=str(key))]) | ast.Call(args=[ast.Constant(value=str(key))]):
            return [key]
        case ast.Call(args=[inner]) if _is_json(node):
            return [*_steps(inner), JSON]
        case ast.Attribute(value=inner, attr=name):
            return [*_steps(inner), name]
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return [*_steps(inner), ALL]
        case ast.Subscript(value=inner, slice=index):
            return [*_steps(inner), ast.literal_eval(index)]
    raise AssertionError(ast.dump(node))


def _is_json(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "json"


def _inside(text: str) -> Any:
    """The value of a JSON text; None if it is none, as of lines."""
    try:
        text.encode()
        return json.loads(text, parse_int=float, parse_constant=_fails)
    except (ValueError, RecursionError):
        return None


def _fails(text: str) -> Any:
    raise ValueError(text)


def _walk(value: Any, steps: list[Step]) -> Any:
    for step in steps:
        if step is JSON:
            value = _inside(value) if isinstance(value, str) else value
        elif isinstance(step, str) and isinstance(value, dict):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        return None
    return value


def _items(value: Any, steps: list[Step]) -> Iterator[Any]:
    if not steps:
        yield value
    elif steps[0] == ALL:
        for item in value if isinstance(value, list) else []:
            yield from _items(item, steps[1:])
    else:
        yield from _items(_walk(value, steps[:1]), steps[1:])
