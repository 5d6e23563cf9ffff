"""`GristmillTokenizer`: Levanter's tokenizer with the ids of gristmill's encoder.

Levanter's `BatchTokenizer` and `ChatProcessor` call it as they call their own, so a cache is built by the same lines,
has the same metadata, and is read by a Levanter without gristmill.
"""

import itertools
from dataclasses import dataclass, field, fields
from typing import TypeVar

from gristmill import Encoder
from gristmill.errors import ArgumentTypeError, MissingExtraError

try:
    from levanter import tokenizers
    from levanter.tokenizers import HfMarinTokenizer
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"gristmill.integrations.levanter needs {error.name}: pip install marin-levanter", name=error.name
    ) from error

C = TypeVar("C")


@dataclass(frozen=True)
class GristmillTokenizer(HfMarinTokenizer):
    """Levanter's `HfMarinTokenizer`, of which gristmill's encoder makes the ids of text.

    The ids are those of Hugging Face `tokenizers` for texts of any shape: runs of more than 25,000 characters without
    a space, or of spaces alone, are not cut before they are encoded, as Levanter's own tokenizer cuts them.

    Attributes:
      encoder: the encoder.
    """

    encoder: Encoder = field(kw_only=True, repr=False, compare=False)

    @classmethod
    def of(cls, tokenizer: HfMarinTokenizer) -> "GristmillTokenizer":
        """The tokenizer with gristmill's encoder.

        Raises:
          ArgumentTypeError: it is not one of Levanter's.
          TokenizerError: the encoder cannot load it.
        """
        if not isinstance(tokenizer, HfMarinTokenizer):
            raise ArgumentTypeError(f"expected a tokenizer of load_tokenizer, got {type(tokenizer).__name__}")
        values = {one.name: getattr(tokenizer, one.name) for one in fields(HfMarinTokenizer)}
        return cls(**values, encoder=Encoder.from_bytes(tokenizer._tokenizer.to_str().encode()))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of a text."""
        if add_special_tokens:  # the special tokens are those of the post-processor
            return super().encode(text, add_special_tokens=True)
        return self.encoder.encode(text).tolist()

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool = False) -> list[list[int]]:
        """The ids of several texts, on all cores."""
        bos = [self.bos_token_id] if add_special_tokens and self.bos_token_id is not None else []
        ids, offsets = self.encoder.encode_batch(texts)
        return [bos + ids[start:end].tolist() for start, end in itertools.pairwise(offsets)]


def load_tokenizer(name_or_path: str) -> GristmillTokenizer:
    """Levanter's `load_tokenizer`, with gristmill's encoder.

    Args:
      name_or_path: a folder, or a name that Levanter finds.

    Raises:
      TokenizerError: the encoder cannot load it.
    """
    return GristmillTokenizer.of(tokenizers.load_tokenizer(name_or_path))


def with_gristmill(config: C) -> C:
    """A `LmDataConfig` that builds its caches with gristmill's encoder.

    Args:
      config: the config, which is changed and returned.

    Raises:
      ArgumentTypeError: its tokenizer is not one of Levanter's.
    """
    # A cached property of a frozen dataclass.
    vars(config)["the_tokenizer"] = GristmillTokenizer.of(config.the_tokenizer)  # type: ignore[attr-defined]
    return config
