"""The comparison of an encoder's ids with the reference's, and the shortest text that shows a difference."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gristmill._certify.reference import Ids, Reference
from gristmill._tokenizer.encoder import Encoder
from gristmill.errors import TokenizerError

# Differences that are listed, and seconds that each may take to be made short.
_MOST_LISTED = 10
_SECONDS = 20.0
# The ids of a listed text, beyond which they are left out.
_MOST_IDS = 200


@dataclass
class Counts:
    """The counts of the texts of one kind that were compared.

    Attributes:
      texts: number of texts.
      characters: of all of them.
      bytes: of their UTF-8.
      tokens: of the reference.
      differences: texts with other ids than the reference's, or with none.
      refused: texts that neither encodes.
      refused_by_reference: texts that only the reference does not encode.
      sha256: of all texts as UTF-8, each behind its length in eight bytes, little-endian.
    """

    texts: int = 0
    characters: int = 0
    bytes: int = 0
    tokens: int = 0
    differences: int = 0
    refused: int = 0
    refused_by_reference: int = 0
    sha256: Any = field(default_factory=hashlib.sha256)

    def to_json(self) -> dict[str, Any]:
        """The counts as values of JSON."""
        return {**vars(self), "sha256": self.sha256.hexdigest()}


class Comparison:
    """Compares texts, and counts.

    Attributes:
      kinds: by kind of texts, what was compared.
      examples: the first differences.
    """

    def __init__(self, encoder: Encoder, reference: Reference) -> None:
        self.kinds: dict[str, Counts] = {}
        self.examples: list[dict[str, Any]] = []
        self._encoder = encoder
        self._reference = reference

    @property
    def differences(self) -> int:
        """Texts with other ids than the reference's."""
        return sum(counts.differences for counts in self.kinds.values())

    @property
    def texts(self) -> int:
        """Texts that were compared."""
        return sum(counts.texts for counts in self.kinds.values())

    def add(self, kind: str, texts: Sequence[str]) -> None:
        """Compares texts. Each is encoded twice: the second time, the encoder's cache knows its words."""
        expected = self._reference.encode_batch(texts)
        passes = [_encode_batch(self._encoder, texts) for _ in range(2)]
        counts = self.kinds.setdefault(kind, Counts())
        for text, theirs, *ours in zip(texts, expected, *passes, strict=True):
            data = text.encode()
            counts.sha256.update(len(data).to_bytes(8, "little") + data)
            counts.texts += 1
            counts.characters += len(text)
            counts.bytes += len(data)
            counts.tokens += len(theirs or ())
            if theirs is None:
                counts.refused += ours == [None, None]
                counts.refused_by_reference += ours != [None, None]
            elif wrong := [found for found in ours if found != theirs]:
                counts.differences += 1
                if len(self.examples) < _MOST_LISTED:
                    self.examples.append(self._example(kind, counts.texts - 1, text, theirs, wrong[0]))

    def _example(self, kind: str, number: int, text: str, expected: Ids, found: Ids | None) -> dict[str, Any]:
        def differs(part: str) -> bool:
            [theirs] = self._reference.encode_batch([part])
            return theirs is not None and _encode(self._encoder, part) != theirs

        alone = differs(text)
        if alone:
            text = shortest(text, differs, _SECONDS)
            [shown] = self._reference.encode_batch([text])
            expected, found = shown or [], _encode(self._encoder, text)
        return {
            "kind": kind,
            "number": number,
            "text": text,
            "alone": alone,
            "expected": expected[:_MOST_IDS],
            "found": found and found[:_MOST_IDS],
        }


def shortest(text: str, differs: Callable[[str], bool], seconds: float) -> str:
    """A part of a text that still differs, of which no character can be left out unless time runs out.

    Args:
      text: a text that differs.
      differs: whether one does.
      seconds: how long to try.
    """
    until = time.monotonic() + seconds
    size = len(text)
    while (size := size // 2) > 0:
        start = 0
        while start < len(text):
            if time.monotonic() > until:
                return text
            shorter = text[:start] + text[start + size :]
            if differs(shorter):
                text = shorter
            else:
                start += size
    return text


def _encode_batch(encoder: Encoder, texts: Sequence[str]) -> list[Ids | None]:
    try:
        ids, offsets = encoder.encode_batch(texts)
    except TokenizerError:
        return [_encode(encoder, text) for text in texts]
    return [part.tolist() for part in np.split(ids, offsets[1:-1])]


def _encode(encoder: Encoder, text: str) -> Ids | None:
    try:
        return encoder.encode(text).tolist()  # type: ignore[no-any-return]
    except TokenizerError:
        return None
