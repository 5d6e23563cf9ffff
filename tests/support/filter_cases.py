"""Random filters, and records that have what they name."""

import json
import random

KEYS = ["a", "b", "text", "class", "my key", "ü"]


def record(rng: random.Random) -> str:
    """A line of JSON, with keys that occur twice, nulls, and values of all types."""
    members = [(key, _value(rng, 0)) for key in KEYS if rng.random() < 0.8]
    members += [(rng.choice(KEYS), _value(rng, 0)) for _ in range(rng.randrange(3))]
    return _object(rng, members)


def _object(rng: random.Random, members: list[tuple[str, str]]) -> str:
    def written(key: str) -> str:
        return json.dumps(key, ensure_ascii=rng.random() < 0.5) if rng.random() < 0.9 else _escaped(key)

    return "{" + ", ".join(f"{written(key)}: {value}" for key, value in members) + "}"


def _escaped(text: str) -> str:
    return '"' + "".join(f"\\u{ord(char):04x}" for char in text) + '"'


def _value(rng: random.Random, depth: int) -> str:
    match rng.randrange(12 if depth < 3 else 8):
        case 0:
            return "null"
        case 1:
            return rng.choice(["true", "false"])
        case 2 | 3 | 4:
            return str(rng.choice([0, 1, 2, 3, -1, -2, 5, 10]))
        case 5:
            return rng.choice(
                ["0.5", "-0.0", "1e999", "-1E400", "1e-400", "9007199254740993", "1" * 400, "2.5", "1e308"]
            )
        case 6 | 7:
            return rng.choice(['""', '"a"', '"b"', '"ab"', '"\\ud800"', '"\\ud83d\\ude00é\\n"', '"\\u0061"', '"2"'])
        case 8:
            return json.dumps(_value(rng, depth + 1), ensure_ascii=False)
        case 9:
            return "[" + ", ".join(_value(rng, depth + 1) for _ in range(rng.randrange(4))) + "]"
    return _object(rng, [(rng.choice(KEYS), _value(rng, depth + 1)) for _ in range(rng.randrange(4))])


def expression(rng: random.Random) -> str:
    """A filter, written in one of many ways."""
    return _condition(rng, 0, None)


def _condition(rng: random.Random, depth: int, items: str | None) -> str:
    match rng.randrange(10 if depth < 3 else 6):
        case 0 | 1 | 2:
            return _comparison(rng, depth, items)
        case 3:
            return f"{_operand(rng, depth + 1, items)} {rng.choice(['is None', 'is not None'])}"
        case 4:
            return _membership(rng, depth, items)
        case 5:
            return _operand(rng, depth + 1, items)
        case 6 | 7:
            parts = [_condition(rng, depth + 1, items) for _ in range(rng.randrange(2, 4))]
            return "(" + rng.choice([" and ", " or ", "\nand "]).join(parts) + ")"
        case 8:
            return f"not ({_condition(rng, depth + 1, items)})"
    return f"not {_comparison(rng, depth, items)}"


def _comparison(rng: random.Random, depth: int, items: str | None) -> str:
    text = _operand(rng, depth + 1, items)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        text += f" {rng.choice(['<', '<=', '==', '!=', '>=', '>'])} {_operand(rng, depth + 1, items)}"
    return text


def _membership(rng: random.Random, depth: int, items: str | None) -> str:
    word, left = rng.choice(["in", "not in"]), _operand(rng, depth + 1, items)
    if rng.random() < 0.5:
        constants = ", ".join(_constant(rng) for _ in range(rng.randrange(1, 4)))
        return f"{left} {word} {rng.choice(['({},)', '[{}]'])}".format(constants)
    return f"{left} {word} {_path(rng, items)}"


def _constant(rng: random.Random) -> str:
    return rng.choice(["0", "1", "2", "-1", "3", "0.5", "1e3", "'a'", '"ab"', "''", "'é'", "True", "False", "2**0"[:1]])


def _operand(rng: random.Random, depth: int, items: str | None) -> str:
    match rng.randrange(12 if depth < 4 else 6):
        case 0 | 1:
            return _constant(rng)
        case 2 | 3 | 4 | 5:
            return _path(rng, items)
        case 6 | 7:
            sign = rng.choice(["+", "-", "*", "/", "//", "%"])
            return f"({_operand(rng, depth + 1, items)} {sign} {_operand(rng, depth + 1, items)})"
        case 8:
            return f"-{_path(rng, items)}"
        case 9:
            arguments = ", ".join(_operand(rng, depth + 1, items) for _ in range(rng.randrange(2, 4)))
            return f"{rng.choice(['min', 'max'])}({arguments})"
        case 10:
            return f"len({_operand(rng, depth + 1, items) if items else _path(rng, None)})"
    if items is not None:
        return _path(rng, items)
    return _aggregate(rng, depth)


def _aggregate(rng: random.Random, depth: int) -> str:
    name = rng.choice(["sum", "mean", "min", "max", "count", "len"])
    if name != "count" and name != "len" and rng.random() < 0.3:
        return f"{name}({_path(rng, None)})"
    items = f"{_path(rng, None)}[*]" + (f"{_steps(rng)}[*]" if rng.random() < 0.2 else "")
    item = items + _steps(rng)
    if name == "len" or rng.random() < 0.4:
        return f"{name}({item})"
    part = _condition if name == "count" or rng.random() < 0.3 else _operand
    return (
        f"{name}({item} == 0 or {part(rng, depth + 1, items)})"
        if name == "count"
        else f"{name}({item} + ({part(rng, depth + 1, items)}))"
    )


def _path(rng: random.Random, items: str | None) -> str:
    if items is not None and rng.random() < 0.7:
        return f"json({items + _steps(rng)})" + _steps(rng) if rng.random() < 0.1 else items + _steps(rng)
    key = rng.choice(KEYS)
    path = (key if key in ("a", "b", "text", "ü") else f'key("{key}")') + _steps(rng)
    return f"json({path})" + _steps(rng) if rng.random() < 0.15 else path


def _steps(rng: random.Random) -> str:
    steps = ["", "", ".a", ".b", "[0]", "[1]", "[-1]", '["class"]', "[-2]", "[ 'my key' ]", ".ü", " .text"]
    return "".join(rng.choice(steps) for _ in range(rng.randrange(3)))
