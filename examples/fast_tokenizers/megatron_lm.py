"""Megatron-LM's `HuggingFaceTokenizer` with gristmill's encoder, as `--use-gigatoken` gives it another one.

    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    from megatron_lm import with_gristmill

    tokenizer = with_gristmill(build_tokenizer(args))

For `pretrain_gpt.py`, `tools/preprocess_data.py` and its inference server, wherever they build a tokenizer with
`--tokenizer-type HuggingFaceTokenizer`. `gristmill pack --format megatron` writes the files of `preprocess_data.py`
without it.
"""

from typing import Any

from gristmill.integrations.transformers import fast


def with_gristmill(tokenizer: Any) -> Any:
    """Has a tokenizer of Megatron-LM encode by gristmill.

    Args:
      tokenizer: a `MegatronTokenizerText` whose library is `HuggingFaceTokenizer`. It is changed.

    Returns:
      The same object.
    """
    library = tokenizer._tokenizer
    library.tokenizer = fast(library.tokenizer)
    library.__class__ = _class_of(type(library))
    return tokenizer


def _class_of(base: type) -> type:
    def text_to_ids(self: Any, text: str) -> list[int]:
        # Megatron-LM makes tokens first, and looks their ids up, if there are no special tokens to add.
        ids: list[int] = self.tokenizer(text, add_special_tokens=self.include_special_tokens).input_ids
        return ids

    return type(base.__name__, (base,), {"__module__": base.__module__, "text_to_ids": text_to_ids})
