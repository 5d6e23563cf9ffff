"""`Encoder`: a tokenizer that gives the ids of Hugging Face `tokenizers`."""

import gzip
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill import _arguments, _core
from gristmill._errors import ArgumentError, ArgumentTypeError, GristmillError, TokenizerError

Pathish: TypeAlias = "str | os.PathLike[str]"
Ids: TypeAlias = "npt.NDArray[np.int32]"

_GZIP_MAGIC = b"\x1f\x8b"
# Files beside tokenizer.json that name its special tokens, in the order in which they are believed.
_LARGEST_ID = 2**32 - 1
_SPECIAL_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# Encoded into the fingerprint: a changed engine or Unicode table shows here, though the file is the same.
_PROBE = (
    "The quick brown fox's 1234567 jumps!\n\n  naïve Ünïcödé\t日本語のテキスト 한국어 हिन्दी "
    "العربية ﬁ Å \u00a0\u3000\u200b <s> </s> 🧑‍🚀\r\n\u0085end"
)


class Encoder:
    """A tokenizer, made from a tokenizer.json.

    It gives exactly the ids of the pinned version of `tokenizers` for
    `encode(text, add_special_tokens=False)` with truncation and padding off. It may be used from any
    number of threads, pickles as the bytes of its file, and copies share it.

    Every way to make one takes the same options:

    - `special_tokens_in_text`: what a special token that is spelled out in a text, such as `</s>` in a web
      page, becomes: `"id"`, its id, as in the reference; or `"text"`, the ids of its characters.
    - `engine`: `"auto"`, or `"reference"` to have the `tokenizers` library whatever the file.
    - `cache_bytes`: about how far the cache of each thread may grow.

    Attributes:
      eos_id: id of the token that ends a document, if a file beside tokenizer.json names one, else None.
      bos_id: id of the token that begins a document, likewise.
    """

    def __init__(
        self,
        json_bytes: bytes,
        *,
        eos_token: str | None = None,
        bos_token: str | None = None,
        special_tokens_in_text: str = "id",
        engine: str = "auto",
        cache_bytes: int = 2**26,
    ) -> None:
        if not isinstance(json_bytes, bytes):
            raise _arguments.wrong_type("json_bytes", json_bytes, "the bytes of a tokenizer.json")
        if json_bytes.startswith(_GZIP_MAGIC):
            json_bytes = gzip.decompress(json_bytes)
        self._settings: dict[str, Any] = {
            "eos_token": eos_token,
            "bos_token": bos_token,
            "special_tokens_in_text": _arguments.choice(
                "special_tokens_in_text", special_tokens_in_text, ["id", "text"]
            ),
            "engine": _arguments.choice("engine", engine, ["auto", "reference"]),
            "cache_bytes": _arguments.integer("cache_bytes", cache_bytes, 0),
        }
        self._core = _core.Encoder(json_bytes, special_tokens_in_text == "text", engine == "reference", cache_bytes)
        self.eos_id = None if eos_token is None else self._core.token_to_id(eos_token)
        self.bos_id = None if bos_token is None else self._core.token_to_id(bos_token)

    @classmethod
    def from_bytes(cls, json_bytes: bytes, **options: Any) -> Self:
        """The encoder of a tokenizer.json's bytes, gzipped or not.

        Raises:
          TokenizerError: the `tokenizers` library cannot load them.
        """
        return cls(json_bytes, **options)

    @classmethod
    def from_file(cls, path: Pathish, **options: Any) -> Self:
        """The encoder of a tokenizer.json, gzipped or not.

        `eos_id` and `bos_id` come from the tokenizer_config.json or special_tokens_map.json in its folder.

        Raises:
          TokenizerError: the file is missing, or the `tokenizers` library cannot load it.
        """
        path = Path(path)
        try:
            json_bytes = path.read_bytes()
        except (OSError, ValueError) as error:  # a NUL in the path, for one
            reason = getattr(error, "strerror", None) or error
            raise TokenizerError(f"cannot read the tokenizer {str(path)!r}: {reason}") from error
        try:
            return cls(json_bytes, **{**_special_tokens_beside(path), **options})
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None

    @classmethod
    def from_pretrained(cls, name: Pathish, *, revision: str = "main", **options: Any) -> Self:
        """The encoder of a local folder, or of a model on the Hugging Face hub.

        Args:
          name: a folder that holds a tokenizer.json, or a hub name such as `"org/model"`.
          revision: branch, tag or commit on the hub.
          options: see the class.

        Raises:
          TokenizerError: there is no tokenizer.json, or the `tokenizers` library cannot load it.
          GristmillError: `huggingface_hub` is needed and not installed (`pip install 'gristmill[hf]'`).
        """
        folder = Path(name)
        if folder.is_dir():
            return cls.from_file(folder / "tokenizer.json", **options)
        return cls.from_file(_download(os.fspath(name), revision), **options)

    def encode(self, text: str) -> Ids:
        """The ids of `text`, int32 `[n]`, no special tokens added."""
        return self._core.encode(text)

    def encode_batch(self, texts: Sequence[str], threads: int | None = None) -> "tuple[Ids, npt.NDArray[np.int64]]":
        """The ids of many texts, on several threads.

        Args:
          texts: what to encode.
          threads: how many threads to use; None: as many as this process has cores.

        Returns:
          The ids of all texts one after another, int32 `[n]`, and where each text's begin with the end at
          last, int64 `[len(texts) + 1]`: text `i` has the ids `ids[offsets[i]:offsets[i + 1]]`.
        """
        if isinstance(texts, str):
            raise _arguments.wrong_type("texts", texts, "a list of strings")
        threads = _arguments.optional_integer("threads", threads, 1, 1024)
        return self._core.encode_batch(list(texts), threads or _core.usable_cores())

    def decode(self, ids: "npt.ArrayLike") -> str:
        """The text of some ids, special tokens included."""
        array = np.asarray(ids, dtype=np.int64).reshape(-1)
        return self._core.decode(array)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as it is spelled in tokenizer.json, or None."""
        return self._core.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The spelling of an id in tokenizer.json, or None."""
        return self._core.id_to_token(_arguments.integer("token_id", token_id, 0, _LARGEST_ID))

    @property
    def engine(self) -> str:
        """`"fast"` or `"reference"`: which engine computes the ids. They are the same ids."""
        return self._core.engine

    @property
    def engine_reason(self) -> str:
        """One sentence: what was recognised in tokenizer.json, or what was not."""
        return self._core.engine_reason

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the fast engine.

        Returns:
          `shared`: of the encoder itself, whatever the number of threads; `thread`: what each thread's cache begins
          with; `thread_bound`: what it may grow to (`cache_bytes`). A thread's buffers, a few times
          its longest text, come on top.
        """
        shared, thread, thread_bound = self._core.memory()
        return {"shared": shared, "thread": thread, "thread_bound": thread_bound}

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._core.vocab_size

    @cached_property
    def fingerprint(self) -> str:
        """Hash of tokenizer.json, of the version of `tokenizers`, and of the ids of a probe text."""
        digest = hashlib.sha256(self._core.json)
        digest.update(self._settings["special_tokens_in_text"].encode())
        digest.update(_core.TOKENIZERS_VERSION.encode())
        digest.update(self.encode(_PROBE).tobytes())
        return digest.hexdigest()[:16]

    def special_token_id(self, name: str, given: "str | int | bool | None") -> int | None:
        """The id that `eos=` or `bos=` means.

        Args:
          name: `"eos"` or `"bos"`.
          given: a token, an id, False for none; None or True for the one named beside the tokenizer.

        Raises:
          ArgumentError: there is no such token; the message lists candidates.
        """
        if given is False:
            return None
        if given is None or given is True:
            found = self.eos_id if name == "eos" else self.bos_id
            if found is None:
                raise ArgumentError(
                    f"{name}={given!r}: no file beside the tokenizer names its {name.upper()} token; give "
                    f"{name}= a token or an id, or {name}=False for none{self._candidates()}"
                )
            return found
        if isinstance(given, str):
            found = self.token_to_id(_arguments.valid_text(name, given))
            if found is None:
                raise ArgumentError(f"{name}={given!r}: the vocabulary has no such token{self._candidates()}")
            return found
        token_id = _arguments.integer(name, given, 0, _LARGEST_ID)
        if self.id_to_token(token_id) is None:
            raise ArgumentError(f"{name}={token_id}: the vocabulary has no such id{self._candidates()}")
        return token_id

    def _candidates(self) -> str:
        added = json.loads(self._core.json).get("added_tokens") or []
        special = [token["content"] for token in added if token.get("special")]
        if not special:
            return ""
        shown = ", ".join(map(repr, special[:12]))
        return f". Its special tokens are {shown}" + (f" and {len(special) - 12} more" if len(special) > 12 else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._core.json, self._settings)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<Encoder of {self.vocab_size} tokens, {self.engine} engine, {self.fingerprint}>"


def as_encoder(tokenizer: "Encoder | Pathish") -> Encoder:
    """The encoder that `tokenizer=` means."""
    if isinstance(tokenizer, Encoder):
        return tokenizer
    if isinstance(tokenizer, (str, os.PathLike)):
        path = Path(tokenizer)
        return Encoder.from_file(path / "tokenizer.json" if path.is_dir() else path)
    raise ArgumentTypeError(
        f"tokenizer={tokenizer!r}: expected the path of a tokenizer.json or an Encoder, got {type(tokenizer).__name__}"
    )


def _rebuild(json_bytes: bytes, settings: dict[str, Any]) -> Encoder:
    return Encoder(json_bytes, **settings)


def _special_tokens_beside(path: Path) -> dict[str, str | None]:
    found: dict[str, str | None] = {"eos_token": None, "bos_token": None}
    for name in _SPECIAL_TOKEN_FILES:
        beside = path.parent / name
        if not beside.is_file():
            continue
        try:
            settings = json.loads(beside.read_bytes())
        except ValueError as error:
            raise TokenizerError(f"{beside} is not JSON: {error}") from None
        for key in found:
            value = settings.get(key) if isinstance(settings, dict) else None
            token = value.get("content") if isinstance(value, dict) else value
            if found[key] is None and isinstance(token, str):
                found[key] = token
    return found


def _download(name: str, revision: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError as error:
        raise GristmillError(
            f"{name!r} is no local folder, and the hub needs huggingface_hub: pip install 'gristmill[hf]'"
        ) from error
    try:
        path = hf_hub_download(name, "tokenizer.json", revision=revision)
    except (OSError, ValueError) as error:
        raise TokenizerError(f"cannot get tokenizer.json of {name!r} at {revision!r} from the hub: {error}") from error
    for beside in _SPECIAL_TOKEN_FILES:
        try:
            hf_hub_download(name, beside, revision=revision)
        except EntryNotFoundError:
            continue
    return Path(path)
