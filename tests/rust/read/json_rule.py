"""The lines that are sound, by Python's own json: writes the table that the Rust reader is tested with.

    python tests/read/json_rule.py > tests/read_json_rule.jsonl
    python tests/read/json_rule.py --cases 1000000 --seed 7 > /tmp/rule.jsonl
    GRISTMILL_JSON_RULE=/tmp/rule.jsonl cargo test same_rule_as_python

Each row holds a line, written as Latin-1 (one character for each byte), and its text, null where the
line is an error. Depth is left out: Python's limit is that of its stack.
"""

import argparse
import json
import random
import sys

SPECIAL = [
    b"",
    b" ",
    b"null",
    b'"text"',
    b"[]",
    b"{}",
    b'{"text": "a"}',
    b'\xef\xbb\xbf{"text": "a"}',
    b'{"text": "a"}\r',
    b'{"text": "a"}\x00',
    b'{"text": "a"}\x0b',
    b'{"text": "a"}\xc2\xa0',
    b'{"text": "a"} x',
    b'{"text": null, "text": "a"}',
    b'{"text": "a", "text": null}',
    b'{"text": "a", "te\\u0078t": "b"}',
    b'{"text": "\\ud800", "text": "b"}',
    b'{"text": "b", "text": "\\ud800"}',
    b'{"text": "\\ud800\\udc00"}',
    b'{"text": "\\udc00\\ud800"}',
    b'{"text": "\\ud800\\ud800\\udc00"}',
    b'{"text": "\\ud800\\u0041"}',
    b'{"text": "\\ud800x"}',
    b'{"text": "\\uD83D\\uDE00\\udbff\\udfff"}',
    b'{"text": "\\ud800\\u12"}',
    b'{"text": "\\u 123"}',
    b'{"text": "\\u+123"}',
    b'{"text": "\\u0x12"}',
    b'{"text": "\\u1_23"}',
    b'{"text": "\\u\xef\xbc\x91123"}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "\xf4\x90\x80\x80"}',
    b'{"text": "\xc0\x80"}',
    b'{"x": "\\ud800", "\\udc00": 1, "text": "c"}',
    b'{"x": NaN, "text": "c"}',
    b'{"x": Infinity, "text": "c"}',
    b'{"x": -Infinity, "text": "c"}',
    b'{"x": 1e999, "text": "c"}',
    b'{"x": \xd9\xa1, "text": "c"}',
    b'{"x": 1\xd9\xa1, "text": "c"}',
    b'{"x": ' + b"9" * 5000 + b', "text": "c"}',
    b'{"text": "\x7f\x1f"}',
    b'{"text": "\x7f\xc2\x80"}',
]

VALUES = [
    "null", "true", "false", "0", "-0", "1.5", "-2e-3", "1E+9", "01", "1.", ".5", "+1", "--1", "1e", "NaN",
    "Infinity", "-Infinity", "[]", "{}", "[1, 2]", "[1,]", "[,]", '{"a": 1}', '{"a": 1,}', '{"a"}', "{1: 2}",
    '{"text": "inner"}', '[{"text": [[]]}]', '""', '"x"', '"\\n\\t\\"\\\\\\/\\b\\f\\r"', '"\\x"', '"\\u00e9"',
    '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00\\ud83d"', '"\\u12"', '"é€😀"', '"tab\there"', "'x'", "tru", "nulL", "",
]  # fmt: skip
KEYS = [
    '"text"',
    '"text"',
    '"te\\u0078t"',
    '"Text"',
    '"t"',
    '""',
    '"\\ud800"',
    '"x"',
    "text",
    '"text',
]
EDITS = b'{}[]",:\\/ntu0123456789eE.-+ \t\r\x00\x1f\x7f\x80\xc3\xed\xf0\xff'


def text_of(line: bytes) -> str | None:
    """The text of a sound line, by the rule of docs/formats.md."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        record = json.loads(line.decode(), parse_constant=refuse)
        text = record["text"]
        text.encode()
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return text if isinstance(text, str) and isinstance(record, dict) else None


def random_line(rng: random.Random) -> bytes:
    """A record, more often sound than not, with up to three bytes changed."""
    usual = VALUES if rng.random() < 0.2 else ['"some text"', '"\\u00e9\\n"', '"é€😀"', "1", '["a", {"b": "c"}]']
    space = rng.choice(["", "", " ", "\t", " \r"])
    members = [f"{space}{rng.choice(KEYS[:8])}{space}:{space}{rng.choice(usual)}" for _ in range(rng.randrange(4))]
    if rng.random() < 0.1:
        members.append(f"{rng.choice(KEYS)}: 1")
    members.append('"text": ' + rng.choice(usual))
    line = bytearray(("{" + ",".join(members) + space + "}").encode())
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2])):
        at = rng.randrange(len(line) + 1)
        line[at : at + rng.randrange(2)] = bytes([rng.choice(EDITS)]) * rng.randrange(2)
    return bytes(line)


def main() -> None:
    """Writes the table to stdout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="random lines besides the chosen ones")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.set_int_max_str_digits(0)
    rng = random.Random(arguments.seed)
    chosen = SPECIAL + [b'{"x": %b, "text": "ok"}' % value.encode() for value in VALUES]
    chosen += [b'{"text": %b}' % value.encode() for value in VALUES]
    for line in chosen + [random_line(rng) for _ in range(arguments.cases)]:
        print(json.dumps({"line": line.decode("latin-1"), "text": text_of(line)}))


if __name__ == "__main__":
    main()
