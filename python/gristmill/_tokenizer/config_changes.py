"""How the files beside a tokenizer.json change the ids of `AutoTokenizer`, and a tokenizer.json with these changes.

`AutoTokenizer` of `transformers` 5 adds the tokens that stand in the files and not in tokenizer.json, and obeys
`split_special_tokens`. Its class for some models replaces further parts of tokenizer.json by its own.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gristmill._tokenizer.sibling_files import Json, SiblingFiles
from gristmill._util.text import counted, shortened

Token = dict[str, Any]
"""A token as tokenizer.json lists it, without its id."""

# In the order in which they get their ids.
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA, _ADDITIONAL = "extra_special_tokens", "additional_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
# The classes that take all of tokenizer.json.
_GENERIC = ("", "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
_LLAMA = "LlamaTokenizer"
_SPLITTING = "split_special_tokens"
_STRIP = "strip_accents"
# Settings of a class with a BertNormalizer: what they are called there, and their defaults.
_OF_BERT: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    _STRIP: (_STRIP, None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
_TOKENS_SHOWN = 4
_BETWEEN = re.compile(r"[\s,:]*")


def differences(tokenizer_json: bytes, files: SiblingFiles, special_tokens_in_text: str = "id") -> list[str]:
    """The reasons why `AutoTokenizer` has other ids than an encoder of a tokenizer.json; the bytes are a valid one."""
    parts = _without_model(tokenizer_json.decode())
    known = {token["content"]: token for token in parts.get("added_tokens") or []}
    tokens = _tokens(files, known)
    compared = _FLAGS if parts.get("normalizer") else _FLAGS[:-1]
    lacking = [token["content"] for token in tokens if token["content"] not in known]
    other = [
        token["content"]
        for token in tokens
        if token["content"] in known and any(token[flag] != known[token["content"]].get(flag) for flag in compared)
    ]
    found = []
    if lacking:
        found.append(f"the files beside it add {_listed(lacking)}, which tokenizer.json does not list as added")
    if other:
        found.append(f"the files beside it give {_listed(other)} other flags ({', '.join(compared)})")
    if splits_special_tokens(files) and special_tokens_in_text == "id":
        found.append(f"tokenizer_config.json sets {_SPLITTING}, so that special tokens in a text are text")
    return [*found, *_of_class(parts, files)]


def splits_special_tokens(files: SiblingFiles) -> bool:
    """Whether a special token that is spelled in a text is text."""
    return files.config.get(_SPLITTING) is True


def is_generic(value: Json, files: SiblingFiles) -> bool:
    """Whether `AutoTokenizer` is known to take all of a tokenizer.json with this value, and only adds tokens."""
    return _has_generic_class(value, files) and not files.has_model and not files.config.get("auto_map")


def add_tokens(value: Json, files: SiblingFiles) -> bool:
    """Adds the tokens that a generic `AutoTokenizer` adds to the value of a tokenizer.json, with the ids that it gives.

    Returns:
      Whether there are any.
    """
    vocabulary = value["model"]["vocab"]
    # Unigram lists its tokens with their scores.
    ids = (
        vocabulary if isinstance(vocabulary, dict) else {piece: number for number, (piece, *_) in enumerate(vocabulary)}
    )
    added: dict[str, Token] = {}

    def add(tokens: Iterable[Token]) -> None:
        for token in tokens:
            content = token["content"]
            before = added.get(content)
            if not content or (before and all(before.get(name) == token[name] for name in (*_FLAGS, "special"))):
                continue
            token_id = before["id"] if before else ids.get(content)
            if token_id is None:
                token_id = max([len(ids), *(other["id"] + 1 for other in added.values())])
            # The library does not forget that a token was special.
            special = token["special"] or bool(before and before["special"])
            added[content] = {**token, "special": special, "id": token_id}

    listed = value.get("added_tokens") or []
    add(listed)
    tokens = _tokens(files, {token["content"]: token for token in listed})
    before = [*added.values()]
    add(tokens)
    if [*added.values()] == before:
        return False
    value["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    return True


def _tokens(files: SiblingFiles, known: dict[str, Token]) -> list[Token]:
    """The tokens that `AutoTokenizer` adds to a tokenizer.json with these, in order; some are there already."""
    settings = dict(files.config)
    if _ADDITIONAL in settings and not settings.get(_EXTRA):
        settings[_EXTRA] = settings.pop(_ADDITIONAL)
    names = [key for key, value in settings.items() if _names_one_of_a_model(key) and isinstance(value, str)]
    of_model = {key: settings.pop(key) for key in names}
    of_model |= _popped_names(settings)
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        listed = ((number, _token(value)) for number, value in decoder.items() if number.isdecimal())
        by_id = {int(number): token for number, token in listed if token}
    else:
        settings |= _special_tokens(files, settings)
        of_model |= _popped_names(settings)
        by_id = _legacy_tokens(files, settings, known)
    if _ADDITIONAL in settings and _EXTRA not in settings:
        settings[_EXTRA] = settings[_ADDITIONAL]
    others = {key: value for key, value in settings.items() if _names_one_of_a_model(key)} | of_model
    named = [*filter(None, map(_token, [*map(settings.get, _NAMED), *others.values()]))]
    tokens = [by_id[number] for number in sorted(by_id)]
    found = {*known, *(token["content"] for token in tokens)}
    for token in [*named, *_list_of_tokens(settings)]:
        if token["content"] not in found and token not in tokens:
            tokens.append(token)
    are_special = {token["content"] for token in named}
    return [_complete(token, special=token["special"] or token["content"] in are_special) for token in tokens]


def _popped_names(settings: Json) -> Json:
    """The extra tokens of settings that have names, which these then lack."""
    return settings.pop(_EXTRA) if isinstance(settings.get(_EXTRA), dict) else {}


def _special_tokens(files: SiblingFiles, settings: Json) -> Json:
    """The named tokens of special_tokens_map.json beside these settings: its own are special, whatever it says."""
    found = {
        key: {**value, "special": True} if isinstance(value, dict) and key != _EXTRA else value
        for key, value in files.special_tokens.items()
    }
    if isinstance(found.get(_EXTRA), list):
        before = settings.get(_EXTRA)
        found[_EXTRA] = [*(before if isinstance(before, list) else []), *found[_EXTRA]]
    return found


def _legacy_tokens(files: SiblingFiles, settings: Json, known: dict[str, Token]) -> dict[int, Token]:
    """By their ids, the tokens of added_tokens.json and tokenizer.json, which come if no setting lists tokens."""
    extra = settings.get(_EXTRA)
    named = map(_token, [*map(settings.get, _NAMED), *(extra if isinstance(extra, list) else [])])
    # Tokens that tokenizer_config.json lists with flags are no names yet when AutoTokenizer looks.
    special = {token["content"] for token in named if token and "__type" not in token}
    by_id: dict[int, Token] = {
        number: {"content": content, "normalized": content not in special, "special": content in special}
        for content, number in files.added_tokens.items()
        if content and isinstance(number, int)
    }
    return by_id | {token["id"]: token for token in known.values()}


def _names_one_of_a_model(key: str) -> bool:
    return key.endswith("_token") and key not in _NAMED


def _list_of_tokens(settings: Json) -> list[Token]:
    extra = settings.get(_EXTRA)
    return [*filter(None, map(_token, extra if isinstance(extra, list) else []))]


def _token(value: Any) -> Token | None:
    """A token that is spelled, or listed with some of its flags; None for what is no token."""
    if isinstance(value, str):
        value = {"content": value, "special": True}
    if not isinstance(value, dict) or not value.get("content") or not isinstance(value["content"], str):
        return None
    return {"special": False, **value}


def _complete(token: Token, *, special: bool) -> Token:
    """A token with all its flags."""
    flags = {flag: bool(token.get(flag, flag == "normalized" and not special)) for flag in _FLAGS}
    return {"content": token["content"], **flags, "special": special}


def _class(files: SiblingFiles) -> str:
    name = files.config.get("tokenizer_class")
    return name.removesuffix("Fast") if isinstance(name, str) else ""


def _of_class(parts: Json, files: SiblingFiles) -> Iterator[str]:
    """Settings, or their defaults, that the class of a model follows, and that tokenizer.json has otherwise."""
    if _has_generic_class(parts, files):
        return
    name, config, steps = _class(files), files.config, _steps_of(parts)
    prefix = config.get("add_prefix_space")
    bytes_step, space_step, bert = (steps.get(kind) for kind in ("ByteLevel", "Metaspace", "BertNormalizer"))
    differing: dict[str, Any] = {}
    if name == _LLAMA:
        scheme = "never" if prefix is False else "always" if config.get("legacy") else "first"
        if (space_step or {}).get("prepend_scheme") != scheme:
            differing["prepend_scheme"] = scheme
    elif space_step and (prefix is False) != (space_step.get("prepend_scheme") == "never"):
        differing["add_prefix_space"] = prefix is not False
    elif bytes_step and bool(prefix) != bytes_step.get("add_prefix_space"):
        differing["add_prefix_space"] = bool(prefix)
    if bert:
        differing |= _of_bert(config, bert)
    if differing:
        settings = ", ".join(f"{setting}={value!r}" for setting, value in differing.items())
        yield f"{name} has {settings}, and tokenizer.json does otherwise"


def _of_bert(config: Json, normalizer: Json) -> Json:
    """The settings of a class with a BertNormalizer that another one has otherwise."""
    wanted = {of_file: config.get(setting, default) for setting, (of_file, default) in _OF_BERT.items()}
    differing = {name for name, value in wanted.items() if value != normalizer.get(name)}
    if _strips_accents(wanted) == _strips_accents(normalizer):
        differing.discard(_STRIP)
    return {setting: wanted[name] for setting, (name, _) in _OF_BERT.items() if name in differing}


def _strips_accents(normalizer: Json) -> Any:
    return normalizer.get("lowercase") if normalizer.get(_STRIP) is None else normalizer[_STRIP]


def _has_generic_class(parts: Json, files: SiblingFiles) -> bool:
    name = _class(files)
    return name in _GENERIC or (name == _LLAMA and "ByteLevel" in _steps_of(parts))


def _steps_of(parts: Json) -> dict[Any, Json]:
    """The steps of a tokenizer.json before its model, by their kinds."""
    return {step.get("type"): step for key in ("normalizer", "pre_tokenizer") for step in _steps(parts.get(key))}


def _steps(part: Any) -> Iterator[Json]:
    """A normalizer or pre-tokenizer, or those that it is a sequence of."""
    if isinstance(part, dict):
        yield part
        for step in part.get("normalizers") or part.get("pretokenizers") or []:
            yield from _steps(step)


def _listed(contents: Sequence[str]) -> str:
    shown = ", ".join(map(shortened, contents[:_TOKENS_SHOWN]))
    more = len(contents) - _TOKENS_SHOWN
    return shown + (f" and {counted(more, 'more', 'more')}" if more > 0 else "")


def _without_model(text: str) -> Json:
    """The members of a tokenizer.json, without its model if that comes last, as usual: it takes most of the time."""
    decoder = json.JSONDecoder()
    found: Json = {}
    at = text.index("{") + 1
    while text[at := _BETWEEN.match(text, at).end()] != "}":  # type: ignore[union-attr]  # it matches nothing, too
        key, at = decoder.raw_decode(text, at)
        if key == "model" and {"added_tokens", "normalizer", "pre_tokenizer"} <= found.keys():
            break
        found[key], at = decoder.raw_decode(text, _BETWEEN.match(text, at).end())  # type: ignore[union-attr]
    return found
