"""The reference: the `tokenizers` package, set up as gristmill promises its ids."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from gristmill.errors import MissingExtraError, TokenizerError

Ids = list[int]


class Reference:
    """A tokenizer of the `tokenizers` package, with truncation and padding off.

    Attributes:
      version: of the package.

    Raises:
      MissingExtraError: the package is not installed, or is one of another interface.
      TokenizerError: it cannot load the file.
    """

    def __init__(self, json_bytes: bytes, *, special_tokens_as_text: bool) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise _missing("is not installed") from None
        self.version = version("tokenizers")
        if not hasattr(Tokenizer, "encode_batch_fast"):
            raise _missing(f"{self.version} has another interface")
        try:
            self._tokenizer = Tokenizer.from_buffer(json_bytes)
        except Exception as error:
            raise TokenizerError(f"the `tokenizers` package cannot load it: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = special_tokens_as_text

    def encode_batch(self, texts: Sequence[str]) -> list[Ids | None]:
        """The ids of texts; None where the package raises an error."""
        if (found := self._encode(texts)) is not None:
            return [encoding.ids for encoding in found]
        return [None if (one := self._encode([text])) is None else one[0].ids for text in texts]

    def _encode(self, texts: Sequence[str]) -> list[Any] | None:
        try:
            return self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of Rust is no Exception
            return None


def _missing(why: str) -> MissingExtraError:
    return MissingExtraError(f"the reference, the `tokenizers` package, {why}: pip install 'gristmill[certify]'")
