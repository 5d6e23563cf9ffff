"""Writes the tables of docs/options.md from the table of arguments: `make options`."""

import re

from gristmill._prompts import arguments as prompt_arguments
from gristmill._spec.arguments import GROUPS, REQUIRED, Argument, arguments_of
from gristmill._spec.kinds import Choice, SpecialToken
from helpers import ROOT

PAGE = ROOT / "docs" / "options.md"
_TABLES = re.compile(r"(<!-- tables: make options -->\n).*(<!-- end -->\n)", re.DOTALL)
_PROMPTS = re.compile(r"(<!-- prompts: make options -->\n).*(<!-- end of prompts -->\n)", re.DOTALL)
_OF_SCOPE = {
    "source": "\n\nEach source of a [mixture](mixtures.md) has its own, as arguments of `gm.Source`.",
    "stream": "",
    "running": "",
}
_HEAD = "| argument | default | meaning | in the fingerprint |\n| --- | --- | --- | --- |\n"


def write(page: str) -> str:
    """The page with tables of today's arguments."""
    tables = (
        f"### {group.__name__}\n\n{group.__doc__}{_OF_SCOPE[group.scope]}\n\n{_HEAD}"
        + "".join(map(_row, arguments_of(group).values()))
        for group in GROUPS
    )
    page = _TABLES.sub(lambda found: f"{found[1]}\n{chr(10).join(tables)}\n{found[2]}", page)
    prompts = _HEAD + "".join(map(_row, prompt_arguments.ARGUMENTS.values()))
    return _PROMPTS.sub(lambda found: f"{found[1]}\n{prompts}\n{found[2]}", page)


def _row(argument: Argument) -> str:
    default = "" if argument.default is REQUIRED else f"`{argument.default!r}`"
    return f"| `{argument.name}` | {default} | {_meaning(argument)} | {_in_fingerprint(argument)} |\n"


def _meaning(argument: Argument) -> str:
    text = argument.help.removesuffix(".")
    text = text[0].lower() + text[1:]
    if argument.see:
        text = f"[{text}]({argument.see})"
    if isinstance(argument.kind, Choice):
        text += ": " + ", ".join(f"`{word}`" for word in argument.kind.words)
    if isinstance(argument.kind, SpecialToken):
        words = "`True` or `None`" if argument.default is None else "`True`"
        text += f"; {words}: the tokenizer's own; `False`: none"
    return text + (f"; `None`: {argument.none}" if argument.none else "")


def _in_fingerprint(argument: Argument) -> str:
    if not argument.defines_stream:
        return "no"
    conditions = [
        " or ".join(f"`{word}`" for word in allowed) if allowed else f"a `{other}`"
        for other, allowed in argument.needs.items()
    ]
    text = "yes" + (f", with {' and '.join(conditions)}" if conditions else "")
    bounds = {
        "no": "",
        "yes": ", but may change",
        "if larger": ", but may grow if no record was quarantined",
        "ahead": ", but may change for steps to come",
    }
    return text + bounds[argument.may_change]


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
