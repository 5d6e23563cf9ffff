"""Tokenizers of models on the Hugging Face hub."""

import re
from pathlib import Path

from gristmill.errors import MissingExtraError, TokenizerError

# Files that name the special tokens of the tokenizer.json in their folder, in order of precedence.
SPECIAL_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# A tokenizer does not need it.
TEMPLATE_FILE = "chat_template.jinja"
_MODEL = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)
# Time limit for one answer of the hub, whose client retries for half a minute.
_SECONDS = 5


def may_have(name: str) -> bool:
    """Whether this can be the name of a model on the hub; any other name is that of a file or folder."""
    return _MODEL.fullmatch(name) is not None and not name.endswith((".json", ".gz"))


def download(name: str, revision: str = "main") -> Path:
    """Downloads the tokenizer.json of a model on the hub and what a dataset needs beside it, into one folder.

    Raises:
      TokenizerError: a file cannot be downloaded.
      MissingExtraError: `huggingface_hub` is not installed.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":  # it is installed, and one of its dependencies is missing
            raise
        raise MissingExtraError(
            f"{name!r} is not a local folder, and the hub needs huggingface_hub: pip install 'gristmill[hf]'"
        ) from error
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    # Documented, although its name looks private. A version without it does not know absent files from its cache.
    known_as_absent = getattr(huggingface_hub, "_CACHED_NO_EXIST", object())
    paths: dict[str, str] = {}

    def is_absent(file: str, error: Exception) -> bool:
        """Whether the repository is known to lack the file. A file that failed to download may name another EOS."""
        if not isinstance(error, LocalEntryNotFoundError):
            return isinstance(error, EntryNotFoundError)
        if try_to_load_from_cache(name, file, revision=revision) is known_as_absent:
            return True
        # A cache that other programs filled does not know which files the repository lacks. After the first file, the
        # others can only add tokens that it does not name, and a dataset that asks for such a token gets an error.
        return constants.HF_HUB_OFFLINE and SPECIAL_TOKEN_FILES[0] in paths

    silence = _reason_for_silence(name, revision)
    for file in ("tokenizer.json", *SPECIAL_TOKEN_FILES, TEMPLATE_FILE):
        try:
            paths[file] = hf_hub_download(name, file, revision=revision, local_files_only=silence is not None)
        except Exception as error:  # including those of its HTTP client
            if file == "tokenizer.json" or (file in SPECIAL_TOKEN_FILES and not is_absent(file, error)):
                reason = f": {error}" if silence is None else f", which could not be reached: {silence}"
                raise TokenizerError(
                    f"{name!r} is not a local folder, and its {file} at {revision!r} "
                    f"cannot be downloaded from the hub{reason}"
                ) from error
    return Path(paths["tokenizer.json"])


def _reason_for_silence(name: str, revision: str) -> Exception | None:
    """The error of a request for a model that the hub does not answer; None if it answers, even with an error."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        get_hf_file_metadata(hf_hub_url(name, "tokenizer.json", revision=revision), timeout=_SECONDS)
    except (HfHubHTTPError, HFValidationError):
        return None
    except Exception as error:  # it may be an error of its HTTP client
        return error
    return None
