"""Arguments in messages: the form in which messages name them, and its reader.

    batch_size=                    the argument
    batch_size=6                   with a value: a word, a number, a string in quotes or something in brackets
    stop_tokens= of gm.Chat        of another class than the one that was called

Whoever shows a message spells its arguments. Within quotes, paths and other words the form names none.
"""

from collections.abc import Callable
from typing import NamedTuple

_BEFORE = "/'\".=-"
_OWNER = " of gm."
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "'\""


class Mention(NamedTuple):
    """An argument that a message names.

    Attributes:
      name: its name.
      value: its value, as the message has it; empty if there is none.
      owner: the class that it is of, such as `Chat`; empty if that is the one that was called.
      end: the text between the argument and what follows it: `=`, or nothing where the message is about it.
    """

    name: str
    value: str = ""
    owner: str = ""
    end: str = "="

    def __str__(self) -> str:
        return f"{self.name}{self.end}{self.value}{self.owner and _OWNER}{self.owner}"


def parts(message: str, argument: str | None = None) -> "list[str | Mention]":
    """The texts and the arguments of a message, in order. It may begin with the one that it is about, and a colon."""
    found: list[str | Mention] = []
    start = sign = 0
    if argument and message.startswith(f"{argument}: "):
        found.append(Mention(argument, end=""))
        start = sign = len(argument)
    while (sign := message.find("=", sign)) >= 0:
        name = _name_before(message, start, sign)
        sign += 1
        if not name:
            continue
        found.append(message[start : sign - 1 - len(name)])
        value = message[sign : _end_of_value(message, sign)]
        start = sign = sign + len(value)
        owner = ""
        if message.startswith(_OWNER, start):
            owner = _word_at(message, start + len(_OWNER))
            start = sign = start + len(_OWNER) + len(owner)
        found.append(Mention(name, value, owner))
    return [part for part in (*found, message[start:]) if part != ""]


def spelled(message: str, spell: Callable[[Mention], str], argument: str | None = None) -> str:
    """A message with its arguments as `spell` writes them."""
    return "".join(part if isinstance(part, str) else spell(part) for part in parts(message, argument))


def argument_of(message: str) -> str | None:
    """The argument that a message begins with, and so is about; None if it begins with another text."""
    first = next(iter(parts(message)), "")
    return first.name if isinstance(first, Mention) and not first.owner else None


def _name_before(message: str, start: int, sign: int) -> str:
    """The name that ends at a sign, unless it is a part of a longer word; empty if there is none."""
    first = sign
    while first > start and (message[first - 1].isalnum() or message[first - 1] == "_"):
        first -= 1
    name = message[first:sign]
    is_part = first > 0 and (message[first - 1] in _BEFORE or message[first - 1].isalnum())
    return name if name.isidentifier() and not is_part else ""


def _end_of_value(message: str, start: int) -> int:
    first = message[start : start + 1]
    if first in _QUOTES and first:
        return _end_of_quotes(message, start)
    if first in _OPENING and first:
        return _end_of_brackets(message, start)
    end = start
    while end < len(message) and (message[end].isalnum() or message[end] in "_+-."):
        end += 1
    return start + len(message[start:end].rstrip("."))  # the dot of a sentence


def _end_of_quotes(message: str, start: int) -> int:
    end = start + 1
    while end < len(message) and message[end] != message[start]:
        end += 2 if message[end] == "\\" else 1
    return min(end + 1, len(message))


def _end_of_brackets(message: str, start: int) -> int:
    depth, end = 0, start
    while end < len(message):
        if message[end] in _QUOTES:
            end = _end_of_quotes(message, end)
            continue
        depth += (message[end] in _OPENING) - (message[end] in _CLOSING)
        end += 1
        if depth == 0:
            break
    return end


def _word_at(message: str, start: int) -> str:
    end = start
    while end < len(message) and (message[end].isalnum() or message[end] == "_"):
        end += 1
    return message[start:end]
