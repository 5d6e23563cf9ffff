"""The sample types of Energon that are more than a text beside images, as texts and messages.

```text
type                          prompt                              trained on
VQASample, VQAOCRSample       the context, a newline              the answer of the largest weight, of these the first
MultiChoiceVQASample          the same, with the choices as       the letter of the right one
                              lines "A. text" behind it
InterleavedSample                                                 its texts, as they are, with its images between them
SimilarityInterleavedSample                                       its texts with spaces between them, each image before
                                                                  the text that it is matched to
```
"""

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gristmill._sample.record_function import IMAGES, KEY, RecordFunction
from gristmill._sample.samples import Chat, Completion, Text
from gristmill._shards.energon_files import SampleType
from gristmill.errors import ArgumentError

_Record = Any  # a dict of parts
_IMAGE = "<image>"
# Part of fingerprints: changes when the texts below change.
_VERSION = 1


def function_of(kind: SampleType) -> RecordFunction:
    """The function that makes texts of the samples of a type."""
    return RecordFunction(_COOKS[kind.name], kind.fields, name=kind.name, version=_VERSION)


def text_of(kind: SampleType, text: Any, advice: str) -> "Text | Chat | Completion":
    """The text that samples of a type become, if the user names none of its own.

    Raises:
      ArgumentError: the user names one that reads other keys.
    """
    has_answers = kind.name in _WITH_ANSWERS
    if text is None:
        return Completion() if has_answers else Text("text")
    has_messages = isinstance(text, Chat) and text.field == Chat.field and has_answers
    is_default = isinstance(text, Completion) and (text.prompt_field, text.completion_field) == ("prompt", "completion")
    if has_messages or (is_default and has_answers):
        return text  # type: ignore[no-any-return]
    expected = "gm.Completion(), gm.Chat() or None" if has_answers else "None"
    raise ArgumentError(f"text={text!r}: expected {expected} of a {kind.name}, whose parts are read together; {advice}")


def _answered(record: _Record) -> dict[str, Any]:
    answers, weights = record.get("answers"), record.get("answer_weights")
    answers = [answers] if isinstance(answers, str) else answers
    if not _are(answers, str):
        raise ValueError(f"expected answers that are a text or a list of texts, found {_shown(answers)}")
    if weights is not None and (not _are(weights, (int, float)) or len(weights) != len(answers)):
        raise ValueError(f"expected a weight for each of {len(answers)} answers, found {_shown(weights)}")
    best = max(range(len(answers)), key=weights.__getitem__) if weights else 0
    return _asked(_text(record, "context"), answers[best])


def _chosen(record: _Record) -> dict[str, Any]:
    choices, right = record.get("choices"), record.get("correct_choice_idx", 0)
    right = int(right) if isinstance(right, str) and right.strip().isdecimal() else right
    if not _are(choices, str) or len(choices) > len(string.ascii_uppercase):
        raise ValueError(f"expected choices, a list of at most 26 texts, found {_shown(choices)}")
    if isinstance(right, bool) or not isinstance(right, int) or not 0 <= right < len(choices):
        raise ValueError(f"expected correct_choice_idx from 0 to {len(choices) - 1}, found {_shown(right)}")
    lines = [f"{letter}. {choice}" for letter, choice in zip(string.ascii_uppercase, choices, strict=False)]
    return _asked("\n".join([_text(record, "context"), *lines]), string.ascii_uppercase[right])


def _interleaved(record: _Record) -> dict[str, Any]:
    names = {*record[IMAGES], *(f"{record[KEY].rpartition('/')[2]}.{part}" for part in record[IMAGES])}
    sequence, texts, images = record.get("sequence"), [], []
    if not isinstance(sequence, list):
        raise ValueError(f"expected a sequence, a list of texts and of images by name, found {_shown(sequence)}")
    for item in sequence:
        found = item
        if isinstance(item, Mapping):  # as content in parts has it
            is_image = "image" in str(item.get("type", "text"))
            given = [item[key] for key in ("image", "text", "path") if isinstance(item.get(key), str)]
            if len(given) > 1:
                raise ValueError(f"expected a text or an image in an item of the sequence, found {_shown(given)}")
            found = next(iter(given), None)
            if is_image and found not in names:
                raise ValueError(f"expected one of {sorted(names)} as an image of the sequence, found {_shown(found)}")
        if not isinstance(found, str):
            raise ValueError(f"expected texts and images by name in the sequence, found {_shown(item)}")
        if found in names:
            images.append(found)
        texts.append(_IMAGE if found in names else found)
    listed = {image.removeprefix(f"{record[KEY].rpartition('/')[2]}.") for image in images}
    if left := [part for part in record[IMAGES] if part not in listed]:
        raise ValueError(f"expected each image of the sample in the sequence, found none that names {left[0]!r}")
    return {"text": "".join(texts), "images": images}


def _matched(record: _Record) -> dict[str, Any]:
    texts, matrix, matched = (record.get(key) for key in ("texts", "similarity_matrix", "matched_text_indices"))
    if not _are(texts, str):
        raise ValueError(f"expected texts, a list of them, found {_shown(texts)}")
    if matched is None and isinstance(matrix, list) and all(_are(row, (int, float)) for row in matrix):
        matched = [max(range(len(row)), key=row.__getitem__) for row in matrix]
    images = record[IMAGES]
    if not _are(matched, int, least=0) or len(matched) != len(images):
        raise ValueError(
            f"expected matched_text_indices, the index of a text for each of {len(images)} images, or a "
            f"similarity_matrix with a row for each, found {_shown(matched if matched is not None else matrix)}"
        )
    if wrong := [index for index in matched if not 0 <= index < len(texts)]:
        raise ValueError(f"expected indices of {len(texts)} texts, found {wrong[0]}")
    order = sorted(range(len(images)), key=matched.__getitem__)
    said = [_IMAGE * matched.count(index) + text for index, text in enumerate(texts)]
    return {"text": " ".join(said), "images": order}


def _asked(question: str, answer: str) -> dict[str, Any]:
    """A question and its answer, as messages and as a prompt with its completion."""
    said = question if _IMAGE in question else _IMAGE + question
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    return {"prompt": f"{said}\n", "completion": answer, "messages": messages}


def _text(record: _Record, name: str) -> str:
    if not isinstance(found := record.get(name), str):
        raise ValueError(f"expected a text as {name}, found {_shown(found)}")
    return found


def _are(items: Any, kind: Any, *, least: int = 1) -> bool:
    is_list = isinstance(items, Sequence) and not isinstance(items, str) and len(items) >= least
    return is_list and all(isinstance(item, kind) and not isinstance(item, bool) for item in items)


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)[:80]


_COOKS: Mapping[str, Callable[[_Record], dict[str, Any]]] = {
    "VQASample": _answered,
    "VQAOCRSample": _answered,
    "MultiChoiceVQASample": _chosen,
    "InterleavedSample": _interleaved,
    "SimilarityInterleavedSample": _matched,
}
_WITH_ANSWERS = frozenset({"VQASample", "VQAOCRSample", "MultiChoiceVQASample"})
# The text that samples of each type become.
RESULTS: Mapping[str, str] = {
    "VQASample": "a prompt, which is the context, and its completion, which is the answer of the largest weight",
    "VQAOCRSample": "a prompt, which is the context, and its completion, which is the answer of the largest weight",
    "MultiChoiceVQASample": "a prompt, which is the context with its choices, and the letter of the right one",
    "InterleavedSample": "one text with its images in their places",
    "SimilarityInterleavedSample": "one text, in which each image is before the text that it is matched to",
}
