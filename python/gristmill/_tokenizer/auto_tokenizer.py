"""The tokenizer.json that `AutoTokenizer` of the installed `transformers` makes of a folder or a model on the hub."""

from dataclasses import dataclass

from gristmill._tokenizer.options import EncoderOptions
from gristmill.errors import MissingExtraError, TokenizerError


@dataclass(frozen=True)
class AutoTokenizerJson:
    """The tokenizer.json that `AutoTokenizer` encodes with.

    Attributes:
      json_bytes: its tokenizer.json.
      splits_special_tokens: whether a special token in a text is text.
      eos_token: the token that ends a document, if it has one.
      bos_token: the token that begins a document, likewise.
    """

    json_bytes: bytes
    splits_special_tokens: bool
    eos_token: str | None
    bos_token: str | None

    def options(self, given: EncoderOptions) -> EncoderOptions:
        """The options of an encoder of it: those that are given, and its own."""
        options: EncoderOptions = {"eos_token": self.eos_token, "bos_token": self.bos_token}
        if self.splits_special_tokens:
            options["special_tokens_in_text"] = "text"
        return options | given


def load(name: str, revision: str | None = None) -> AutoTokenizerJson:
    """The tokenizer that `AutoTokenizer.from_pretrained` gives; code of a model is not run.

    Raises:
      MissingExtraError: `transformers` is not installed.
      TokenizerError: it cannot load the tokenizer, or has one that the `tokenizers` library is no part of.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            f"config='apply': the class of the tokenizer {name!r} may replace parts of its tokenizer.json, which "
            "transformers knows: pip install transformers"
        ) from error
    revisions = {} if revision is None else {"revision": revision}
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **revisions)
    except Exception as error:  # it may be an error of any library that a class of it uses
        raise TokenizerError(
            f"AutoTokenizer cannot load {name!r}: {error}; config='warn' takes its tokenizer.json"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(
            f"config='apply': AutoTokenizer makes a {type(tokenizer).__name__} of {name!r}, which does not use the "
            "tokenizers library; config='warn' takes the tokenizer.json"
        )
    return AutoTokenizerJson(
        backend.to_str().encode(), backend.encode_special_tokens, tokenizer.eos_token, tokenizer.bos_token
    )
