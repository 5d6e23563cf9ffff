"""SGLang's tokenizers with gristmill's encoder, as `--tokenizer-backend fastokens` gives them another one.

In SGLang and SGL-JAX all tokenizers come from `get_tokenizer`. One more value of `tokenizer_backend` is

    if tokenizer_backend == "gristmill":
        tokenizer = with_gristmill(tokenizer, tokenizer_name)

behind the fixes that they apply to a loaded tokenizer, and "gristmill" among the choices of the flag. Nothing of
transformers is patched, so one process can have tokenizers of both kinds.
"""

from typing import Any

from gristmill.integrations.transformers import fast


def with_gristmill(tokenizer: Any, name: str) -> Any:
    """A tokenizer with the same results, whose ids gristmill computes.

    Args:
      tokenizer: the loaded tokenizer, with all fixes.
      name: the model, for the message.

    Raises:
      RuntimeError: it is a tokenizer in Python, or of tiktoken.
    """
    try:
        return fast(tokenizer)
    except TypeError as error:
        raise RuntimeError(
            f"the tokenizer of {name!r} cannot encode by gristmill: {error}. Start again without "
            "--tokenizer-backend=gristmill"
        ) from error
