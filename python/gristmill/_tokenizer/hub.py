"""Tokenizers of models on the Hugging Face hub."""

import re
from pathlib import Path

from gristmill.errors import MissingExtraError, TokenizerError

# Files beside tokenizer.json that name its special tokens, in the order in which they are believed.
SPECIAL_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
_MODEL = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
# In which the hub must answer once. Its client asks again and again, for half a minute.
_SECONDS = 5


def may_have(name: str) -> bool:
    """Whether the hub may have a model of this name; any other name is that of a file or folder."""
    return _MODEL.fullmatch(name) is not None and not name.endswith((".json", ".gz"))


def download(name: str, revision: str = "main") -> Path:
    """The tokenizer.json of a model on the hub, with the files that name its special tokens beside it.

    Raises:
      TokenizerError: a file cannot be got.
      MissingExtraError: `huggingface_hub` is not installed.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":  # it is installed, and misses something itself
            raise
        raise MissingExtraError(
            f"{name!r} is no local folder, and the hub needs huggingface_hub: pip install 'gristmill[hf]'"
        ) from error
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    # Documented, and yet it looks private. A version without it cannot say from its cache that a file is absent.
    known_as_absent = getattr(huggingface_hub, "_CACHED_NO_EXIST", object())
    paths: dict[str, str] = {}

    def is_absent(file: str, error: Exception) -> bool:
        """Whether the repository lacks the file: one that could not be asked for may name another EOS."""
        if not isinstance(error, LocalEntryNotFoundError):
            return isinstance(error, EntryNotFoundError)
        if try_to_load_from_cache(name, file, revision=revision) is known_as_absent:
            return True
        # A cache that other programs filled does not say what the repository lacks. Behind the file that is believed
        # first, another can only add tokens that this one does not name, and asking for those fails aloud.
        return constants.HF_HUB_OFFLINE and SPECIAL_TOKEN_FILES[0] in paths

    silence = _silence(name, revision)
    for file in ("tokenizer.json", *SPECIAL_TOKEN_FILES):
        try:
            paths[file] = hf_hub_download(name, file, revision=revision, local_files_only=silence is not None)
        except Exception as error:  # some of those of its HTTP client come through, whichever that is
            if file == "tokenizer.json" or not is_absent(file, error):
                reason = f": {error}" if silence is None else f", which could not be reached: {silence}"
                raise TokenizerError(
                    f"{name!r} is no local folder, and its {file} at {revision!r} cannot be got from the hub{reason}"
                ) from error
    return Path(paths["tokenizer.json"])


def _silence(name: str, revision: str) -> Exception | None:
    """Why the hub does not answer when it is asked for a model; None if it does, whatever its answer is."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        get_hf_file_metadata(hf_hub_url(name, "tokenizer.json", revision=revision), timeout=_SECONDS)
    except (HfHubHTTPError, HFValidationError):
        return None
    except Exception as error:  # whichever its HTTP client is
        return error
    return None
