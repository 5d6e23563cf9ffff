"""`fast`: a tokenizer of `transformers` whose ids gristmill's encoder computes.

    text ──> encoder: ids ──> truncation ──> template: special tokens ──> padding ──> BatchEncoding
                                                                                      └─ encodings, if asked for

The reference, the `tokenizers` object that the tokenizer has, computes all else: offsets, truncation that keeps an
overlap or cuts pairs, words that are split already, and the encodings that `word_ids` and its like read. So the results
are those of the tokenizer itself. The template, which special tokens go where, is read off the reference's own output.
"""

import copy
import itertools
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils import PaddingStrategy

from gristmill import Encoder
from gristmill.errors import ArgumentTypeError, GristmillError

_LOGGER = logging.getLogger("gristmill")
_STATE = "_gristmill"
# The methods that make ids: a class that has its own does more than text to ids.
_METHODS = ("_encode_plus", "_convert_encoding", "set_truncation_and_padding")
# Packages whose code reads the `tokenizers` object, and changes it by methods that are known.
_READERS = frozenset({"gristmill", "transformers"})
# Texts of which at least one has tokens in any vocabulary.
_PROBES = ("a", "the", "1", ".", " ", "ア")
_DEFAULTS: dict[str, Any] = {
    "add_special_tokens": True,
    "padding_strategy": PaddingStrategy.DO_NOT_PAD,
    "truncation_strategy": TruncationStrategy.DO_NOT_TRUNCATE,
    "max_length": None,
    "stride": 0,
    "is_split_into_words": False,
    "pad_to_multiple_of": None,
    "padding_side": None,
    "return_tensors": None,
    "return_token_type_ids": None,
    "return_attention_mask": None,
    "return_overflowing_tokens": False,
    "return_special_tokens_mask": False,
    "return_offsets_mapping": False,
    "return_length": False,
    "verbose": True,
    "split_special_tokens": None,
    "sanitize_control_tokens": False,
}


def fast(tokenizer: Any) -> Any:
    """A tokenizer with the same results, whose ids are computed by gristmill.

    It is a copy, of a class made of that of the given one, with its name. Ids, masks and type ids of texts and pairs,
    with special tokens, padding and truncation, come from the encoder, and so does
    `apply_chat_template(tokenize=True)`. The tokenizer's own library makes the rest: offsets, `stride`, truncation of
    pairs, words that are split already, decoding; and what the encoder cannot, of which the logger `gristmill` warns
    once. Tokens that are added later are seen. It pickles, copies and saves as the given one.

    Args:
      tokenizer: a `PreTrainedTokenizerFast` of transformers 5 or later. It stays as it is.

    Raises:
      ArgumentTypeError: it is another object.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ArgumentTypeError(
            f"tokenizer: expected a PreTrainedTokenizerFast, got {type(tokenizer).__name__}; "
            "AutoTokenizer.from_pretrained loads one where the model has a tokenizer.json"
        )
    if not hasattr(PreTrainedTokenizerFast, "set_truncation_and_padding") or hasattr(
        PreTrainedTokenizerFast, "_batch_encode_plus"
    ):
        raise ArgumentTypeError("fast needs transformers 5 or later, whose tokenizers encode in one method")
    copied = copy.deepcopy(tokenizer)
    if not isinstance(copied, _Encoding):
        copied.__class__ = _class_of(type(tokenizer))
    return copied


@dataclass(frozen=True)
class _Part:
    """A part of a template: special tokens, or the ids of a text."""

    special: tuple[int, ...]
    # 0 or 1: the first or the second text.
    text: int | None
    type_ids: tuple[int, ...]


class _State:
    """The encoder of a tokenizer as it is, and its templates."""

    def __init__(self, tokenizer: Any, reference: Any) -> None:
        self.json = reference.to_str()
        self.size = reference.get_vocab_size()
        self.may_have_changed = False
        self._reference = reference
        self._encoders: dict[bool, Encoder | None] = {}
        self._templates: dict[tuple[bool, bool], Sequence[_Part] | None] = {}
        self._name = type(tokenizer).__name__
        own = [name for name in _METHODS if not _is_of_library(type(tokenizer), name)]
        self.reason = f"the class has a method {own[0]} of its own" if own else ""
        self._said: set[str] = set()

    def encoder(self, *, splits_special: bool) -> Encoder | None:
        """The encoder; None: the reference computes the ids."""
        if self.reason:
            self.say(self.reason)
            return None
        if splits_special not in self._encoders:
            self._encoders[splits_special] = self._make(splits_special=splits_special)
        return self._encoders[splits_special]

    def _make(self, *, splits_special: bool) -> Encoder | None:
        try:
            text = "text" if splits_special else "id"
            encoder = Encoder.from_bytes(self.json.encode(), special_tokens_in_text=text)  # type: ignore[arg-type]
        except GristmillError as error:
            self.reason = str(error)
        else:
            if encoder.engine == "fast" and encoder.is_function:
                return encoder
            self.reason = encoder.engine_reason if encoder.engine != "fast" else "its ids are random"
        self.say(self.reason)
        return None

    def say(self, reason: str) -> None:
        """Warns that the reference encodes, once for each reason."""
        if reason not in self._said:
            self._said.add(reason)
            _LOGGER.warning("%s: the tokenizers library encodes in place of gristmill: %s", self._name, reason)

    def template(self, *, is_pair: bool, add_special_tokens: bool) -> Sequence[_Part] | None:
        """The parts of an encoding; None: they are not known."""
        key = (is_pair, add_special_tokens)
        if key not in self._templates:
            self._templates[key] = _template(self._reference, is_pair, add_special_tokens)
        return self._templates[key]


class _Encoding:
    """The methods that `fast` puts before those of a tokenizer's class."""

    def _encode_plus(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        found = None
        if unknown := options.keys() - _DEFAULTS.keys():
            self._state().say(f"calls have options that are not known, {', '.join(sorted(unknown))}")
        else:
            found = self._encoded(text, text_pair, {**_DEFAULTS, **options})
        if found is None:
            return super()._encode_plus(text=text, text_pair=text_pair, **options)  # type: ignore[misc]
        data, is_batched, count = found

        def encodings() -> Any:
            return super(_Encoding, self)._encode_plus(text=text, text_pair=text_pair, **options).encodings  # type: ignore[misc]

        batch = LazyEncoding(data, tensor_type=options.get("return_tensors"), n_sequences=count)
        batch.make_encodings = encodings
        if not is_batched and options.get("return_tensors") is None:
            data = {key: value[0] if isinstance(value[0], list) else value for key, value in batch.items()}
            batch = LazyEncoding(data, n_sequences=count)
            batch.make_encodings = encodings
        return batch

    def _encoded(self, text: Any, pair: Any, options: dict[str, Any]) -> tuple[dict[str, Any], bool, int] | None:
        """The values of a call, whether it has a batch, and the number of its texts; None: the reference makes them."""
        items, is_batched = _items(text, pair)
        truncation, most = options["truncation_strategy"], options["max_length"]
        is_cut = truncation != TruncationStrategy.DO_NOT_TRUNCATE
        if (
            not items
            or options["is_split_into_words"]
            or options["sanitize_control_tokens"]
            or options["return_offsets_mapping"]
            or options["return_overflowing_tokens"]
            or not isinstance(options["add_special_tokens"], bool)
            or (is_cut and (options["stride"] or len(items[0]) > 1 or truncation == TruncationStrategy.ONLY_SECOND))
        ):
            return None
        splits_special = options["split_special_tokens"]
        splits_special = self.split_special_tokens if splits_special is None else splits_special  # type: ignore[attr-defined]
        state = self._state()
        encoder = state.encoder(splits_special=bool(splits_special))
        add_special_tokens = options["add_special_tokens"]
        if encoder is None:
            return None
        template = state.template(is_pair=len(items[0]) > 1, add_special_tokens=add_special_tokens)
        if template is None:
            state.say("its post-processor does more than to put special tokens around a text")
            return None
        added = sum(len(part.special) for part in template)
        if is_cut and (most is None or most <= added):
            return None
        try:
            ids = _ids(encoder, [one for item in items for one in item])
        except GristmillError:
            return None  # the reference raises its own error
        if is_cut:
            left = self.truncation_side == "left"  # type: ignore[attr-defined]
            ids = [own[-(most - added) :] if left else own[: most - added] for own in ids]
        names = (
            "padding_strategy",
            "truncation_strategy",
            "max_length",
            "stride",
            "pad_to_multiple_of",
            "padding_side",
        )
        self.set_truncation_and_padding(**{name: options[name] for name in names})  # type: ignore[attr-defined]
        if self._tokenizer.encode_special_tokens != splits_special:  # a change waits for threads that encode by it
            self._tokenizer.encode_special_tokens = splits_special
        width = len(items[0])
        rows = [_laid(template, ids[at : at + width]) for at in range(0, len(ids), width)]
        return self._values(rows, options), is_batched, width

    def _values(self, rows: "list[tuple[list[int], list[int], list[int]]]", options: dict[str, Any]) -> dict[str, Any]:
        """The lists of a `BatchEncoding`, padded."""
        own: Any = self
        inputs = own.model_input_names

        def wanted(name: str, default: bool) -> bool:
            return default if options[name] is None else bool(options[name])

        length = 0
        if options["padding_strategy"] != PaddingStrategy.DO_NOT_PAD:
            is_fixed = options["padding_strategy"] == PaddingStrategy.MAX_LENGTH and options["max_length"] is not None
            length = options["max_length"] if is_fixed else max(len(ids) for ids, _, _ in rows)
            if multiple := options["pad_to_multiple_of"]:
                length = -(-length // multiple) * multiple
        side = options["padding_side"] or own.padding_side
        missing = [max(0, length - len(ids)) for ids, _, _ in rows]

        def padded(values: list[int], pad: int, count: int) -> list[int]:
            return [pad] * count + values if side == "left" else values + [pad] * count

        columns: dict[str, Any] = {}
        if not any(missing):
            columns["input_ids"] = [ids for ids, _, _ in rows]
        else:
            columns["input_ids"] = [
                padded(ids, own.pad_token_id, count) for (ids, _, _), count in zip(rows, missing, strict=True)
            ]
        if wanted("return_token_type_ids", "token_type_ids" in inputs):
            columns["token_type_ids"] = [
                padded(types, own.pad_token_type_id, count) for (_, types, _), count in zip(rows, missing, strict=True)
            ]
        if wanted("return_attention_mask", "attention_mask" in inputs):
            columns["attention_mask"] = [
                padded([1] * len(ids), 0, count) for (ids, _, _), count in zip(rows, missing, strict=True)
            ]
        if options["return_special_tokens_mask"]:
            columns["special_tokens_mask"] = [
                padded(marks, 1, count) for (_, _, marks), count in zip(rows, missing, strict=True)
            ]
        if options["return_length"]:
            columns["length"] = [len(ids) for ids in columns["input_ids"]]
        for ids in columns["input_ids"]:
            own._eventual_warn_about_too_long_sequence(ids, options["max_length"], options["verbose"])
        return columns

    def _state(self) -> _State:
        """The encoder of the tokenizer as it is now."""
        reference = self._tokenizer
        state: _State | None = self.__dict__.get(_STATE)
        if state is None or state.size != reference.get_vocab_size():
            state = None
        elif state.may_have_changed:
            state.may_have_changed = False
            state = state if reference.to_str() == state.json else None
        if state is None:
            with _without_settings(reference):
                state = _State(self, reference)
            self.__dict__[_STATE] = state
        return state

    def _changed(self) -> None:
        if state := self.__dict__.get(_STATE):
            state.may_have_changed = True

    @property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers` object, which may be changed."""
        self._changed()
        return self._tokenizer

    @property
    def _tokenizer(self) -> Any:
        # transformers changes it in the methods below alone; others at any time, as the code of models does it:
        # `tokenizer._tokenizer.post_processor = ...`.
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] not in _READERS:
            self._changed()
        return self.__dict__["_tokenizer"]

    @_tokenizer.setter
    def _tokenizer(self, value: Any) -> None:
        self.__dict__["_tokenizer"] = value
        self.__dict__.pop(_STATE, None)

    def _add_tokens(self, *args: Any, **kwargs: Any) -> Any:
        self._changed()
        return super()._add_tokens(*args, **kwargs)  # type: ignore[misc]

    def update_post_processor(self, *args: Any, **kwargs: Any) -> Any:
        """See the tokenizer's class."""
        self._changed()
        return super().update_post_processor(*args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        kept = {name: value for name, value in self.__dict__.items() if name != _STATE}
        return _restored, (type(self).__mro__[2], kept)


class LazyEncoding(BatchEncoding):
    """A `BatchEncoding` whose encodings the reference makes when they are asked for.

    Attributes:
      make_encodings: makes them.
    """

    make_encodings: "Callable[[], Any] | None" = None

    @property
    def _encodings(self) -> Any:
        make = self.__dict__.pop("make_encodings", None)
        if make is not None:
            self.__dict__["_made"] = make()
        return self.__dict__.get("_made")

    @_encodings.setter
    def _encodings(self, value: Any) -> None:
        self.__dict__["_made"] = value

    @property
    def is_fast(self) -> bool:
        """Whether there are encodings."""
        return True

    def __reduce__(self) -> Any:
        made = BatchEncoding(self.data, self._encodings, n_sequences=self.n_sequences)
        return _plain, (made.data, made.encodings, made.n_sequences)


def _plain(data: Any, encodings: Any, count: int | None) -> BatchEncoding:
    return BatchEncoding(data, encodings, n_sequences=count)


_CLASSES: dict[type, type] = {}


def _class_of(base: type) -> type:
    """The class with the name of `base` that encodes by gristmill."""
    if base not in _CLASSES:
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        _CLASSES[base] = type(base.__name__, (_Encoding, base), names)
    return _CLASSES[base]


def _restored(base: type, values: dict[str, Any]) -> Any:
    """A tokenizer of pickled values."""
    made: Any = object.__new__(_class_of(base))
    made.__dict__.update(values)
    return made


def _is_of_library(made: type, name: str) -> bool:
    """Whether the class of a tokenizer has a method as the library's base class has it."""
    base = next(one for one in made.__mro__[2:] if one is PreTrainedTokenizerFast or name in vars(one))
    return base is PreTrainedTokenizerFast


class _without_settings:  # noqa: N801 - a function in all but its form
    """Switches truncation and padding of a `tokenizers` object off, and back on."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference
        self._settings = (reference.truncation, reference.padding)

    def __enter__(self) -> None:
        self._reference.no_truncation()
        self._reference.no_padding()

    def __exit__(self, *error: object) -> None:
        truncation, padding = self._settings
        if truncation is not None:
            self._reference.enable_truncation(**truncation)
        if padding is not None:
            self._reference.enable_padding(**padding)


def _items(text: Any, pair: Any) -> "tuple[list[tuple[str, ...]], bool]":
    """The texts of each item of a call, one or two, and whether it is a batch; no items: the reference checks them."""
    if isinstance(text, str):
        if pair is not None and not isinstance(pair, str):
            return [], False
        return [(text, pair) if pair else (text,)], False
    if not isinstance(text, list | tuple):
        return [], True
    items: list[tuple[Any, ...]]
    if pair is not None:
        if not isinstance(pair, list | tuple) or len(pair) != len(text):
            return [], True
        items = list(zip(text, pair, strict=True))
    else:
        items = [
            (one,) if isinstance(one, str) else tuple(one) if isinstance(one, list | tuple) else () for one in text
        ]
    width = len(items[0]) if items else 0
    is_right = width in (1, 2) and all(len(item) == width and all(type(one) is str for one in item) for item in items)
    # A pretokenized text of one word looks like an item of one text.
    is_plain = width == 2 or all(isinstance(one, str) for one in text)
    return (items, True) if is_right and is_plain else ([], True)


def _ids(encoder: Encoder, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text."""
    if len(texts) == 1:
        return [encoder.encode(texts[0]).tolist()]
    ids, offsets = encoder.encode_batch(texts)
    flat, borders = ids.tolist(), offsets.tolist()
    return [flat[start:end] for start, end in itertools.pairwise(borders)]


def _laid(template: Sequence[_Part], ids: Sequence[list[int]]) -> tuple[list[int], list[int], list[int]]:
    """The ids, type ids and marks of special tokens of an encoding."""
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    for part in template:
        own = list(part.special) if part.text is None else ids[part.text]
        found[0].extend(own)
        found[1].extend(part.type_ids if part.text is None else list(part.type_ids) * len(own))
        found[2].extend([int(part.text is None)] * len(own))
    return found


def _template(reference: Any, is_pair: bool, add_special_tokens: bool) -> Sequence[_Part] | None:
    """The parts of an encoding, as the reference lays them; None if each text is not in it once, in order."""
    with _without_settings(reference):
        for probe in _PROBES:
            pair = (probe, probe) if is_pair else (probe,)
            encoding = reference.encode(*pair, add_special_tokens=add_special_tokens)
            bare = reference.encode(probe, add_special_tokens=False).ids
            if bare:
                break
        else:
            return None
    parts: list[_Part] = []
    texts: list[int] = []
    at, sequence = 0, encoding.sequence_ids
    while at < len(encoding.ids):
        text = sequence[at]
        if text is None:
            parts.append(_Part((encoding.ids[at],), None, (encoding.type_ids[at],)))
            at += 1
            continue
        end = at + len(bare)
        if encoding.ids[at:end] != bare or set(sequence[at:end]) != {text} or len(set(encoding.type_ids[at:end])) > 1:
            return None
        parts.append(_Part((), text, (encoding.type_ids[at],)))
        texts.append(text)
        at = end
    return parts if texts == list(range(len(pair))) else None
