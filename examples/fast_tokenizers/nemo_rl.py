"""NeMo-RL's tokenizers with gristmill's encoder, as `policy.tokenizer.use_fastokens` gives them another one.

    python nemo_rl.py examples/run_grpo.py --config config.yaml

runs one of NeMo-RL's scripts with it; in NeMo-RL itself it is one line of `nemo_rl.algorithms.utils.get_tokenizer`,
behind the load, where the flag is a field of the tokenizer's config:

    tokenizer = maybe_fast(tokenizer, bool(tokenizer_config.get("use_gristmill")))

Nothing of transformers is patched: other tokenizers of the process stay as they are. Ray pickles the tokenizer to its
actors, where it encodes by gristmill too.
"""

import importlib
import logging
import os
import runpy
import sys
from typing import Any

_LOGGER = logging.getLogger(__name__)


def maybe_fast(tokenizer: Any, enabled: bool) -> Any:
    """The tokenizer, or one with the same results whose ids gristmill computes.

    Args:
      tokenizer: a tokenizer of transformers.
      enabled: the flag of the config. `NRL_USE_GRISTMILL` overrides it: "1" is true, anything else false.
    """
    override = os.environ.get("NRL_USE_GRISTMILL")
    if not (enabled if override is None else override == "1"):
        return tokenizer
    try:
        from gristmill.integrations.transformers import fast

        return fast(tokenizer)
    except (ImportError, TypeError) as error:  # not installed, or a tokenizer in Python
        _LOGGER.warning("the tokenizer encodes as before: %s", error)
        return tokenizer


def install() -> None:
    """Has `get_tokenizer` of NeMo-RL return such tokenizers, and processors that have them."""
    utils = importlib.import_module("nemo_rl.algorithms.utils")
    inner = utils.get_tokenizer

    def get_tokenizer(config: Any, *args: Any, **kwargs: Any) -> Any:
        found = inner(config, *args, **kwargs)
        enabled = bool(config.get("use_gristmill", True))
        if not hasattr(found, "tokenizer"):
            return maybe_fast(found, enabled)
        found.tokenizer = maybe_fast(found.tokenizer, enabled)
        return found

    utils.get_tokenizer = get_tokenizer


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
