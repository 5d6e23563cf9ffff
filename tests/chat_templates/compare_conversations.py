"""Compares the crate with transformers on random conversations.

    python compare_conversations.py TEMPLATES_FOLDER [--count 1000] [--seed 0] [--only NAME]

`--count` conversations, others for each template, are rendered with each template of the folder: by
`apply_chat_template`, and by the example `render` of the crate (built first: `cargo build --release -p
gristmill-chat-template --example render`). Both must give the same text, or both must fail. Needs
transformers 5.24 and jinja2 3.1.6.
"""

import argparse
import collections
import datetime
import json
import pathlib
import subprocess
import sys
from typing import Any, NoReturn

import jinja2
from conversations import Conversations
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 11, 5, 9, 7, 3)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
PROGRAM = pathlib.Path(__file__).parents[2] / "target/release/examples/render"


class FrozenDateTime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return NOW


def raise_as_it_is(environment: jinja2.Environment, source: str | None = None) -> NoReturn:
    raise


def as_it_is(value: Any) -> Any:
    return value


class Crate:
    """The example `render`, as a process that answers line by line."""

    def __init__(self, program: pathlib.Path = PROGRAM) -> None:
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"RUST_BACKTRACE": "0"}
        )
        self.templates: dict[str, int] = {}

    def send(self, request: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request, ensure_ascii=False).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to the oldest request that was sent and had none."""
        assert self.process.stdout
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit("the crate's process died")
        return json.loads(answer)

    def compile(self, source: str) -> dict[str, Any]:
        self.templates[source] = len(self.templates)
        self.send({"id": self.templates[source], "source": source, "special_tokens": TOKENS})
        return self.answer()

    def send_conversation(self, source: str, request: dict[str, Any]) -> None:
        self.send({"id": self.templates[source], "date": NOW.isoformat(), **request})

    def render(self, source: str, request: dict[str, Any]) -> dict[str, Any]:
        self.send_conversation(source, request)
        return self.answer()


class Reference:
    """`apply_chat_template` at a fixed moment."""

    def __init__(self) -> None:
        chat_template_utils.datetime = FrozenDateTime
        # Half of the time goes into tracebacks that people can read, and into copies of objects as plain values, which
        # these already are.
        jinja2.environment.Environment.handle_exception = raise_as_it_is
        chat_template_utils._plain_template_data = as_it_is
        chat_template_utils._message_objects_to_dicts = as_it_is
        tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **TOKENS)

    def render(self, source: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            text = self.tokenizer.apply_chat_template(
                request["messages"],
                tools=request.get("tools"),
                documents=request.get("documents"),
                chat_template=source,
                add_generation_prompt=request["add_generation_prompt"],
                tokenize=False,
                **request.get("kwargs", {}),
            )
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"ok": text}


def verdict(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """Whether two answers agree, and how they differ else."""
    if "ok" in expected:
        if "ok" in found:
            return "same text" if expected["ok"] == found["ok"] else "OTHER TEXT"
        return "unsupported" if found["kind"] == "Unsupported" else "ONLY THE CRATE FAILS"
    return "ONLY THE REFERENCE FAILS" if "ok" in found else "both fail"


def difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    a, b = expected.get("ok", expected.get("error")), found.get("ok", found.get("error"))
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"  expected {a[max(0, at - 60) : at + 60]!r}\n  found    {b[max(0, at - 60) : at + 60]!r}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", type=int, default=20)
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM)
    arguments = parser.parse_args()
    crate, reference = Crate(arguments.program), Reference()
    counts: collections.Counter[str] = collections.Counter()
    shown = 0
    for path in sorted(arguments.folder.glob("*.jinja")):
        if arguments.only not in path.name:
            continue
        source = path.read_bytes().decode()
        compiled = crate.compile(source)
        if "error" in compiled:
            print(path.name, compiled)
            try:
                chat_template_utils._compile_jinja_template(source)
            except jinja2.TemplateError as error:
                print("  jinja2 as well:", error)
        conversations = Conversations(f"{arguments.seed} {path.name}")
        own: collections.Counter[str] = collections.Counter()
        for number in range(arguments.count):
            request = conversations.request()
            crate.send_conversation(source, request)  # rendered while the reference renders
            expected = reference.render(source, request)
            found = crate.answer()
            kind = verdict(expected, found)
            own[kind] += 1
            if kind not in ("same text", "both fail") and shown < arguments.show:
                shown += 1
                print(f"{path.name}, conversation {number}: {kind}\n{difference(expected, found)}")
        counts += own
        if set(own) - {"same text", "both fail"}:
            print(path.name, dict(own))
    print(f"{counts.total():,} renderings:", dict(counts))
    return 0 if not set(counts) - {"same text", "both fail"} else 1


if __name__ == "__main__":
    sys.exit(main())
