"""Loading of tokenizers from a file, a folder, or a model on the Hugging Face hub."""

import os
import zlib
from pathlib import Path

from gristmill._tokenizer import diagnosis, hub
from gristmill._util import checks
from gristmill._util.local_files import Pathish, inflated, working_folder
from gristmill._util.text import shortened
from gristmill.errors import ArgumentTypeError, MissingTokenizerError, TokenizerError

TOKENIZER_FILE = "tokenizer.json"


def tokenizer_file(path: Pathish) -> Path:
    """The tokenizer.json of a path: the one in the folder if the path is a folder, else the path itself."""
    # Path.is_dir() raises if a name is too long or a folder cannot be read; reading the file raises a better error.
    return Path(path) / TOKENIZER_FILE if os.path.isdir(path) else Path(path)  # noqa: PTH112


def read_tokenizer(path: Pathish) -> tuple[Path, bytes]:
    """The tokenizer.json of a path, and its bytes.

    Raises:
      MissingTokenizerError: there is no such file.
      TokenizerError: it cannot be read.
    """
    file = tokenizer_file(path)
    try:
        if file.exists() and not file.is_file():
            raise TokenizerError(f"cannot read the tokenizer {str(file)!r}: expected a regular file")
        return file, file.read_bytes()
    except FileNotFoundError as error:
        raise MissingTokenizerError(
            f"cannot read the tokenizer {str(file)!r}: {error.strerror} "
            f"(working folder: {working_folder()})" + (_hub_hint(str(file)) or diagnosis.describe_folder(file.parent))
        ) from error
    except OSError as error:
        raise TokenizerError(f"cannot read the tokenizer {str(file)!r}: {error.strerror or error}") from error
    except ValueError as error:  # a null character, or one that file names cannot hold
        raise MissingTokenizerError(
            f"cannot read the tokenizer {str(file)!r}: no file has this name: {error}"
        ) from error


def find_pretrained(name: str, revision: str) -> Pathish:
    """The local path of a pretrained tokenizer: `name` if it exists, else that of a download from the hub.

    Raises:
      MissingTokenizerError: there is no such folder, and no model on the hub can have this name.
      TokenizerError: a file cannot be downloaded.
      MissingExtraError: `huggingface_hub` is needed and not installed.
    """
    if os.path.exists(name):  # noqa: PTH110 - Path.exists() raises for names that are too long
        return name
    if not hub.may_have(name):
        raise MissingTokenizerError(f"no such folder: {shortened(name)} (working folder: {working_folder()})")
    return hub.download(name, revision)


def inflate(json_bytes: bytes) -> bytes:
    """The bytes of a tokenizer.json, inflated if they are gzipped.

    Raises:
      TokenizerError: the gzip data is damaged.
    """
    try:
        return inflated(json_bytes)
    except (OSError, EOFError, zlib.error) as error:
        raise TokenizerError(f"corrupt gzip data (it starts with 1f 8b): {error}") from None


def wrong_tokenizer(name: str, value: object, expected: str, hint: str = "") -> ArgumentTypeError:
    """The error for a value that is not a tokenizer; it says how to convert tokenizers of other libraries."""
    kind = type(value)
    if hasattr(kind, "backend_tokenizer"):  # the fast ones of transformers
        source = "tokenizer.backend_tokenizer"
    elif hasattr(kind, "to_str"):
        source = "tokenizer"
    else:
        return checks.wrong_type(name, value, expected, hint)
    return ArgumentTypeError(
        f"{name}=: expected {expected}, got {kind.__module__.partition('.')[0]}.{kind.__name__}; use "
        f"gm.Encoder.from_bytes({source}.to_str().encode(), eos_token=...)"
    )


def _hub_hint(path: str) -> str:
    if not hub.may_have(path):
        return ""
    return f"; for a model on the Hugging Face hub: gm.Encoder.from_pretrained({path!r})"
