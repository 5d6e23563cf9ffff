"""Compares the crate with jinja2 on random templates, and on mutations of real ones.

    python compare_templates.py [--count 1000] [--seed 0] [--mutate TEMPLATES_FOLDER]

Both must give the same text, or both must fail, or the crate must say that it does not support the template.
"""

import argparse
import collections
import json
import pathlib
import signal
import sys
from typing import Any

from compare_conversations import PROGRAM, Crate, Reference, difference, verdict
from conversations import Conversations
from templates import Templates

CONTEXT: dict[str, Any] = {
    "x": "X",
    "y": 5,
    "text": "  some Text, here\n",
    "num": 3.5,
    "d": {"a": 1, "b": "two", "items": [1, 2], "c": None},
    "l": [3, "a", 1.5, None, ["n"], True, {"a": "b"}],
    "none_value": None,
}
MESSAGES = [
    {"role": "system", "content": " You <b>are</b> 'helpful'. "},
    {"role": "user", "content": "Hello é", "a": 1, "name": "n"},
    {"role": "assistant", "content": [{"type": "text", "text": "part"}], "a": 2, "tool_calls": [{"id": "1"}]},
    {"role": "user", "content": "", "a": 0.5},
]


class TimeOutError(Exception):
    pass


def alarm(*_: object) -> None:
    raise TimeOutError


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutate", type=pathlib.Path)
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM)
    arguments = parser.parse_args()
    crate, reference, templates = Crate(arguments.program), Reference(), Templates(arguments.seed)
    conversations = Conversations(arguments.seed)
    sources = (
        [path.read_bytes().decode() for path in sorted(arguments.mutate.glob("*.jinja"))] if arguments.mutate else []
    )
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    shown = 0
    signal.signal(signal.SIGALRM, alarm)
    for number in range(arguments.count):
        if sources:
            source = templates.mutated(templates.random.choice(sources))
            request = conversations.request()
        else:
            source, part_kind, part = templates.template()
            request = {"messages": MESSAGES, "add_generation_prompt": True, "kwargs": CONTEXT}
        signal.setitimer(signal.ITIMER_REAL, 5)
        try:
            expected = reference.render(source, request)
            if "TimeOutError" in expected.get("error", ""):
                continue
        except TimeOutError:
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if not sources and expected.get("ok", "").strip():
            templates.keep(part_kind, part)
        compiled = crate.compile(source)
        found = compiled if "error" in compiled else crate.render(source, request)
        kind = verdict(expected, found)
        if kind == "unsupported":
            reasons[found["error"].split(": ", 1)[-1]] += 1
        if found.get("kind") == "Limit":
            kind = "limit"
        counts[kind] += 1
        if (
            kind in ("OTHER TEXT", "ONLY THE CRATE FAILS", "ONLY THE REFERENCE FAILS", "limit")
            and shown < arguments.show
        ):
            shown += 1
            print(f"template {number}: {kind}\n  {json.dumps(source, ensure_ascii=False)[:3000]}")
            print(difference(expected, found))
        crate.templates.clear()
    print(dict(counts))
    print(reasons.most_common(25))
    return 0 if not {"OTHER TEXT", "ONLY THE CRATE FAILS", "ONLY THE REFERENCE FAILS"} & set(counts) else 1


if __name__ == "__main__":
    sys.exit(main())
