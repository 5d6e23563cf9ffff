"""Templates that the core does not render exactly, rendered by jinja2 as `transformers` sets it up."""

import datetime
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from gristmill.errors import ArgumentError, TemplateError

# The names under which reasoning is known; `transformers` 5.24 gives each message that has one the first two.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class JinjaTemplate:
    """A template in a sandbox. It knows where its `generation` blocks are, and nothing of where else bytes come from.

    Raises:
      TemplateError: the template is not valid.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, Any]) -> None:
        self._special_tokens = dict(special_tokens)
        self._lock = threading.Lock()
        self._date: str | None = None
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        generation = environment.extensions[_Generation.identifier]
        assert isinstance(generation, _Generation)
        self._generation = generation
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(_described(error)) from error

    def render(self, conversation: Mapping[str, Any]) -> tuple[str, list[tuple[int, int]] | None]:
        """The text of a conversation, and the ranges of characters that `generation` blocks wrote.

        Args:
          conversation: as the core takes it: JSON, but for the date.

        Returns:
          The text and the ranges; None for these if a block's place is not known, inside of a macro.

        Raises:
          TemplateError: the template raises.
        """
        variables = _variables(conversation)
        # One rendering at a time: the template's functions have no other way to know which one they are part of.
        with self._lock:
            self._date = conversation["date"]
            try:
                return self._pieces({**self._special_tokens, **variables})
            except TemplateError:
                raise
            except Exception as error:  # An expression of a template may raise any error.
                raise TemplateError(_described(error)) from error

    def _pieces(self, variables: Mapping[str, Any]) -> tuple[str, list[tuple[int, int]] | None]:
        pieces: list[str] = []
        ranges: list[tuple[int, int]] = []
        length, are_known = 0, True
        self._generation.written.clear()
        for piece in self._template.generate(variables):
            for text in self._generation.written:
                # A block of the template itself is a piece of its own.
                are_known = are_known and text == piece and len(self._generation.written) == 1
                ranges.append((length, length + len(text)))
            self._generation.written.clear()
            pieces.append(piece)
            length += len(piece)
        return "".join(pieces), ranges if are_known and not self._generation.written else None

    def _strftime_now(self, form: str) -> str:
        if self._date is None:
            raise TemplateError("the template prints today's date: give a date")
        return _parsed_date(self._date).strftime(form)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: notes what its block wrote."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.written: list[str] = []

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text = caller()
        self.written.append(text)
        return text


class _Dict:
    """`dict` without its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    @staticmethod
    def fromkeys(*args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # A variable of a template may be named self.
        self, *given = args
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the name {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _variables(conversation: Mapping[str, Any]) -> dict[str, Any]:
    parsed = {
        name: None if conversation[name] is None else json.loads(conversation[name])
        for name in ("messages", "tools", "documents", "kwargs")
    }
    messages = _dicts("messages", parsed["messages"])
    if not messages:
        raise TemplateError("messages: the conversation is empty")
    for name in ("tools", "documents"):
        if parsed[name] is not None:
            _dicts(name, parsed[name])
    keeps_none = conversation["none_fields"] == "keep"
    return {
        "messages": messages if keeps_none else [_without_none(message) for message in messages],
        "tools": parsed["tools"],
        "documents": parsed["documents"],
        "add_generation_prompt": conversation["add_generation_prompt"],
        **(parsed["kwargs"] or {}),
    }


def _dicts(name: str, values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise TemplateError(f"{name} must be a list of dicts")
    return values


def _without_none(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as `transformers` 5.24 gives it to templates: without what is None, and reasoning under two names."""
    kept = {key: value for key, value in message.items() if value is not None}
    for name in _REASONING:
        if name in kept:
            return {"thinking": kept[name], **kept, "reasoning_content": kept[name]}
    return kept


def _parsed_date(date: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(date)
    except ValueError:
        raise ArgumentError(f"date={date!r}: expected a date such as '2026-11-26' or '2026-11-26T12:00:00'") from None


def _described(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    return message if line is None else f"line {line} of the template: {message}"
