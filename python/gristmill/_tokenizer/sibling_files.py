"""The files beside a tokenizer.json, which `AutoTokenizer` of `transformers` reads, too.

tokenizer_config.json     the class; tokens (`added_tokens_decoder`, `pad_token` and other named ones,
                          `extra_special_tokens`); settings
special_tokens_map.json   named tokens; AutoTokenizer reads it if the former has no `added_tokens_decoder`
added_tokens.json         tokens, likewise
config.json               the kind of model, which may decide the class
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gristmill.errors import TokenizerError

Json = dict[str, Any]

_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_MODEL_FILE = "config.json"


@dataclass(frozen=True)
class SiblingFiles:
    """The contents of the files beside a tokenizer.json; nothing for one that is not there or holds no object.

    Attributes:
      config: tokenizer_config.json.
      special_tokens: special_tokens_map.json.
      added_tokens: added_tokens.json.
      has_model: whether there is a config.json.
    """

    config: Json = field(default_factory=dict)
    special_tokens: Json = field(default_factory=dict)
    added_tokens: Json = field(default_factory=dict)
    has_model: bool = False

    @classmethod
    def read(cls, path: Path, *, is_needed: bool = True) -> Self:
        """The files beside the tokenizer.json at `path`.

        Args:
          path: the tokenizer.json.
          is_needed: whether it is an error that one is damaged; else it counts as absent.

        Raises:
          TokenizerError: one cannot be read, or is not JSON.
        """
        folder = path.parent
        found = []
        for name in _TOKENIZER_FILES:
            try:
                found.append(_read(folder / name))
            except TokenizerError:
                if is_needed:
                    raise
                found.append({})
        config, special_tokens, added_tokens = found
        return cls(config, special_tokens, added_tokens, (folder / _MODEL_FILE).exists())

    def named(self, key: str) -> list[str]:
        """The tokens that the files name so, such as "eos_token", the most trusted first."""
        values = (settings.get(key) for settings in (self.config, self.special_tokens))
        contents = (value.get("content") if isinstance(value, dict) else value for value in values)
        return [content for content in contents if isinstance(content, str)]


def _read(path: Path) -> Json:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TokenizerError(f"cannot read {str(path)!r} beside the tokenizer.json: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}
