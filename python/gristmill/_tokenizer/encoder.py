"""`Encoder`: a tokenizer with the ids of Hugging Face `tokenizers`."""

import functools
import hashlib
import importlib.resources
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, Unpack, get_args, overload

import numpy as np
import numpy.typing as npt

import gristmill._core as _core
from gristmill._tokenizer import auto_tokenizer, config_changes, diagnosis, hub, load, special_tokens
from gristmill._tokenizer.options import EncoderOptions, SpecialTokensInText
from gristmill._tokenizer.sibling_files import SiblingFiles
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill._util.named_values import encode as encode_values
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, ArgumentTypeError, TokenizerError

Ids: TypeAlias = "npt.NDArray[np.int32]"
Offsets: TypeAlias = "npt.NDArray[np.int64]"
Config: TypeAlias = Literal["warn", "apply", "ignore"]

_LARGEST_ID = 2**32 - 1
_LARGEST_CACHE = 2**40
# A text in many scripts, with everything that tokenizers treat in different ways.
_PROBE = "probe.txt"

_LOGGER = logging.getLogger("gristmill")


class Encoder:
    """A tokenizer, made from a tokenizer.json.

    Its ids are exactly those of the pinned version of `tokenizers` for
    `encode(text, add_special_tokens=False)` with truncation and padding off. It may be used from any
    number of threads, pickles as the bytes of its file, and copies share it.

    Args:
      json_bytes: the bytes of a tokenizer.json, gzipped or not. Files are read by `from_file` and
        `from_pretrained`, which take the same options.
      eos_token: the token that ends a document. None: the one that a file in the folder of tokenizer.json names.
      bos_token: the token that begins a document. None: likewise.
      special_tokens_in_text: treatment of a special token that is spelled out in a text, such as `</s>` in a web
        page: `"id"`, its id, as in the reference; or `"text"`, the ids of its characters.
      engine: `"auto"`, or `"reference"` to have the `tokenizers` library whatever the file.
      cache_bytes: about how far the cache of each thread may grow.

    Attributes:
      eos_id: id of the token that ends a document, if an option or a file in its folder names one, else None.
      bos_id: id of the token that begins a document, likewise.
      fingerprint: hash of tokenizer.json and of `special_tokens_in_text`.

    Raises:
      TokenizerError: the `tokenizers` library cannot load the file.
      ArgumentError: an option's value is not allowed, or the vocabulary lacks the EOS or BOS token it names.
      ArgumentTypeError: `json_bytes` are not bytes, or an option is of the wrong type.
    """

    def __init__(
        self,
        json_bytes: bytes,
        *,
        eos_token: str | None = None,
        bos_token: str | None = None,
        special_tokens_in_text: SpecialTokensInText = "id",
        engine: Literal["auto", "reference"] = "auto",
        cache_bytes: int = 2**26,
    ) -> None:
        if not isinstance(json_bytes, (bytes, bytearray, memoryview)):
            if isinstance(json_bytes, str) and json_bytes.lstrip().startswith("{"):
                hint = "; for a string: .encode() gives its bytes"
            else:
                hint = "; for a path: gm.Encoder.from_file(...)" if isinstance(json_bytes, (str, os.PathLike)) else ""
            raise load.wrong_tokenizer("json_bytes", json_bytes, "the bytes of a tokenizer.json", hint)
        json_bytes = load.inflate(bytes(json_bytes))
        self._settings: dict[str, Any] = {
            "eos_token": eos_token,
            "bos_token": bos_token,
            "special_tokens_in_text": checks.choice("special_tokens_in_text", special_tokens_in_text, ["id", "text"]),
            "engine": checks.choice("engine", engine, ["auto", "reference"]),
            "cache_bytes": checks.integer("cache_bytes", cache_bytes, 0, _LARGEST_CACHE),
        }
        try:
            self._core = _make_core(json_bytes, self._settings)
        except TokenizerError as error:
            raise TokenizerError(f"{error}{diagnosis.describe_bytes(json_bytes, str(error))}") from None
        self.eos_id, self.bos_id = (
            None if token is None else self._id_of(name, checks.text(name, token))
            for name, token in (("eos_token", eos_token), ("bos_token", bos_token))
        )
        # For "eos" and "bos": tokens that files in the folder of tokenizer.json name and the vocabulary lacks.
        self._unknown: dict[str, str] = {}
        # The folder of tokenizer.json, if it was read from a file: chat templates lie there.
        self._folder: Path | None = None
        self.fingerprint = self._hash()

    @classmethod
    def from_bytes(cls, json_bytes: bytes, **options: Unpack[EncoderOptions]) -> Self:
        """The encoder of a tokenizer.json's bytes, gzipped or not.

        Args:
          json_bytes: the bytes.
          options: see the class.

        Raises:
          TokenizerError: the `tokenizers` library cannot load them.
          ArgumentTypeError: `json_bytes` are not bytes.
        """
        return cls(json_bytes, **options)

    @classmethod
    def from_file(cls, path: Pathish, *, config: Config = "warn", **options: Unpack[EncoderOptions]) -> Self:
        """The encoder of a tokenizer.json, gzipped or not, or of the one in a folder.

        Unless options name them, `eos_id` and `bos_id` come from the tokenizer_config.json or special_tokens_map.json
        in its folder.

        Args:
          path: the file, or a folder that holds a tokenizer.json.
          config: what happens where `AutoTokenizer` of `transformers` gives other ids than tokenizer.json, because of
            the files beside it: `"warn"`: the ids are those of tokenizer.json, and the logger `gristmill` warns;
            `"ignore"`: no warning; `"apply"`: the ids are those of `AutoTokenizer(..., add_special_tokens=False)`.
            This needs `transformers` if there is a config.json, or the class of the tokenizer is that of a model.
          options: see the class.

        Raises:
          MissingTokenizerError: there is no such file.
          TokenizerError: a file cannot be read, or a library cannot load it.
          MissingExtraError: `config="apply"` needs `transformers`, which is not installed.
          ArgumentError: `config` is not allowed.
          ArgumentTypeError: `path` is not a path.
        """
        checks.choice("config", config, get_args(Config))
        path, json_bytes = load.read_tokenizer(checks.path("path", path))
        is_needed = config == "apply" or None in (options.get("eos_token"), options.get("bos_token"))
        files = SiblingFiles.read(path, is_needed=is_needed)
        try:
            if config == "apply":
                json_bytes = load.inflate(json_bytes)
                try:
                    json_bytes, options = _apply(path, json_bytes, files, options)
                except (ValueError, KeyError, TypeError, AttributeError):
                    cls(json_bytes)  # says what is wrong with it
                    raise
            encoder = cls(json_bytes, **options)
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from error.__cause__
        encoder._folder = path.parent
        encoder._take_special_tokens({name: files.named(f"{name}_token") for name in ("eos", "bos")})
        if config == "warn":
            encoder._warn_of_config(path, files)
        return encoder

    @classmethod
    def from_pretrained(
        cls, name: Pathish, *, revision: str = "main", config: Config = "warn", **options: Unpack[EncoderOptions]
    ) -> Self:
        """The encoder of a local folder, or of a model on the Hugging Face hub.

        Args:
          name: a folder that holds a tokenizer.json, such a file, or a hub name such as `"org/model"`.
          revision: branch, tag or commit on the hub.
          config: see `from_file`. `"apply"` needs `transformers` for a hub name.
          options: see the class.

        Raises:
          MissingTokenizerError: there is no such folder, or no tokenizer.json in it.
          TokenizerError: a file cannot be downloaded or read, or a library cannot load it.
          MissingExtraError: `huggingface_hub` (`pip install 'gristmill[hf]'`) or `transformers` is needed and not
            installed.
          ArgumentError: `config` is not allowed.
        """
        name = checks.path("name", name)
        revision = checks.text("revision", revision)
        checks.choice("config", config, get_args(Config))
        if config == "apply" and not os.path.exists(name) and hub.may_have(name):  # noqa: PTH110 - it never raises
            found = auto_tokenizer.load(name, revision)
            return cls(found.json_bytes, **found.options(options))
        return cls.from_file(load.find_pretrained(name, revision), config=config, **options)

    @overload
    def encode(self, text: str | bytes, *, offsets: Literal[False] = False) -> Ids: ...

    @overload
    def encode(self, text: str | bytes, *, offsets: Literal[True]) -> tuple[Ids, Offsets]: ...

    def encode(self, text: str | bytes, *, offsets: bool = False) -> "Ids | tuple[Ids, Offsets]":
        """The ids of `text`, a string or its UTF-8, int32 `[n]`, no special tokens added.

        Args:
          text: the text.
          offsets: whether to return where each token is, too.

        Returns:
          The ids; with `offsets` also int64 `[n, 2]`, for each token the index of its first character in the text and
          that behind its last, as the pinned `tokenizers` gives them. The library itself computes these: then a text
          takes as long as there.

        Raises:
          ArgumentTypeError: `text` is neither a string nor bytes.
          ArgumentError: it holds lone surrogates, which UTF-8 cannot express, or is not UTF-8.
          TokenizerError: the `tokenizers` library cannot encode it, for example because the vocabulary lacks a
            character and the token for unknown ones.
        """
        try:
            if not offsets:
                return self._core.encode(text)
            ids, _, spans = self._core.encode_with_offsets([text])
            return ids, spans.reshape(-1, 2)
        except (TypeError, UnicodeError):
            checks.assert_encodable("text", text)
            raise

    @overload
    def encode_batch(
        self, texts: Sequence[str | bytes], threads: int | None = None, *, offsets: Literal[False] = False
    ) -> tuple[Ids, Offsets]: ...

    @overload
    def encode_batch(
        self, texts: Sequence[str | bytes], threads: int | None = None, *, offsets: Literal[True]
    ) -> tuple[Ids, Offsets, Offsets]: ...

    def encode_batch(
        self, texts: Sequence[str | bytes], threads: int | None = None, *, offsets: bool = False
    ) -> "tuple[Ids, Offsets] | tuple[Ids, Offsets, Offsets]":
        """The ids of many texts, on several threads. Signals are handled between texts: Ctrl-C ends the call.

        Args:
          texts: strings, or their UTF-8 as bytes, in a list, an array of Arrow or the like. Bytes are faster for text
            that is not ASCII: CPython converts a string to UTF-8 first, on one thread.
          threads: number of threads; None: as many as this process has cores.
          offsets: whether to return where each token is in its text, too, see `encode`; on one thread.

        Returns:
          `ids` of all texts, int32 `[n]`, and `offsets`, int64 `[len(texts) + 1]`: text `i` has the ids
          `ids[offsets[i]:offsets[i + 1]]`. With `offsets` also the characters of each token, int64 `[n, 2]`.

        Raises:
          ArgumentTypeError: `texts` is not a list of strings or bytes.
          ArgumentError: a text holds lone surrogates or is not UTF-8, or `threads` is not allowed.
          TokenizerError: the `tokenizers` library cannot encode a text; the message says which.
          GristmillError: the system refuses threads.
        """
        expected = "a list of strings or bytes"
        if isinstance(texts, (set, frozenset)):
            raise checks.wrong_type(
                "texts", texts, expected, ", which has no order: list(...) or sorted(...) gives it one"
            )
        if isinstance(texts, (str, bytes, bytearray, memoryview, Mapping)):
            raise checks.wrong_type("texts", texts, expected)
        if hasattr(texts, "to_pylist"):  # an array or a column of Arrow
            texts = texts.to_pylist()
        threads = checks.optional_integer("threads", threads, 1, 1024)
        texts = checks.items("texts", texts, expected)
        try:
            if offsets:
                return self._encode_with_offsets(texts)
            return self._core.encode_batch(texts, threads or _core.usable_cores())
        except (TypeError, UnicodeError):
            for number, text in enumerate(texts):
                checks.assert_encodable(f"texts[{number}]", text)
            raise

    def _encode_with_offsets(self, texts: Sequence[str | bytes]) -> tuple[Ids, Offsets, Offsets]:
        try:
            ids, borders, spans = self._core.encode_with_offsets(texts)
        except TokenizerError:
            for number, text in enumerate(texts):
                try:
                    self._core.encode_with_offsets([text])
                except TokenizerError as error:
                    raise TokenizerError(f"texts[{number}]: {error}") from None
            raise
        return ids, borders, spans.reshape(-1, 2)

    def decode(self, ids: "npt.ArrayLike") -> str:
        """The text of some ids, special tokens included. Ids outside the vocabulary are skipped.

        Raises:
          ArgumentTypeError: `ids` are not integers.
          ArgumentError: one of them is negative, as labels may be, or larger than 32 bits.
        """
        try:
            array = np.asarray(ids).reshape(-1)
        except ValueError:
            raise checks.wrong_type("ids", ids, "integers in lists of one length") from None
        if not array.size:
            return ""
        if array.dtype.kind not in "iu":
            raise ArgumentTypeError(f"ids: expected integers, got {array.dtype}")
        wrong = np.flatnonzero((array < 0) | (array > _LARGEST_ID))
        if wrong.size:
            raise ArgumentError(f"ids[{wrong[0]}]={array[wrong[0]]}: expected ids from 0 to {_LARGEST_ID}")
        return self._core.decode(array.astype(np.uint32))

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as it is spelled in tokenizer.json, or None.

        Raises:
          ArgumentTypeError: `token` is not a string.
        """
        try:
            return self._core.token_to_id(token)
        except UnicodeEncodeError:
            return None  # a tokenizer.json cannot hold it
        except TypeError:
            raise checks.wrong_type("token", token, "a string") from None

    def id_to_token(self, token_id: int) -> str | None:
        """The spelling of an id in tokenizer.json, or None.

        Raises:
          ArgumentTypeError: `token_id` is not an integer.
          ArgumentError: it is negative, or larger than 32 bits.
        """
        return self._core.id_to_token(checks.integer("token_id", token_id, 0, _LARGEST_ID))

    @property
    def folder(self) -> Path | None:
        """The folder of the tokenizer.json that it was read from; None if it was made from bytes."""
        return self._folder

    @property
    def engine(self) -> str:
        """The engine that computes the ids: `"fast"` or `"reference"`. Their ids are the same."""
        return self._core.engine

    @property
    def engine_reason(self) -> str:
        """One sentence on why this engine was chosen: the recognised parts of tokenizer.json, or the unknown one."""
        return self._core.engine_reason

    @property
    def is_function(self) -> bool:
        """Whether a text has the same ids each time: not with BPE dropout, or two added tokens that normalize alike."""
        return not (self._core.dropout or self._core.ambiguous_tokens)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the fast engine.

        Returns:
          `shared`: of the encoder itself, whatever the number of threads; `thread`: of each thread's cache at first;
          `thread_bound`: of each thread's cache at most (`cache_bytes`). A thread's buffers add a few times its
          longest text, or tens of times with a normalizer that only the library has.
        """
        shared, thread, thread_bound = self._core.memory()
        return {"shared": shared, "thread": thread, "thread_bound": thread_bound}

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._core.vocab_size

    @property
    def largest_id(self) -> int:
        """The largest id, added tokens included.

        An embedding needs `largest_id + 1` rows. With holes among the ids, `vocab_size` is smaller, and JAX silently
        reads another row for an id beyond the last row.
        """
        return self._core.largest_id

    def _hash(self) -> str:
        digest = hashlib.sha256(self._core.json)
        digest.update(self._settings["special_tokens_in_text"].encode())
        return digest.hexdigest()[:16]

    @functools.cached_property
    def ids_fingerprint(self) -> str:
        """The version of `tokenizers` whose ids these are, and a hash of the ids of a probe text.

        Saved states hold it. Two releases of gristmill that reproduce different versions of `tokenizers` have the same
        hash if their ids of the probe text are the same. `probe=none`: the ids of a text differ from load to load.
        """
        digest = hashlib.sha256()
        probe = importlib.resources.files("gristmill._tokenizer").joinpath(_PROBE).read_bytes().decode()
        # Whole, and line by line: a vocabulary may lack characters of some lines.
        for text in (probe, *probe.split("\n")):
            try:
                digest.update(self.encode(text).tobytes() + b"end")
            except TokenizerError:
                digest.update(b"no ids")
        hash_of_ids = digest.hexdigest()[:16] if self.is_function else "none"
        return encode_values({"tokenizers": _core.TOKENIZERS_VERSION, "probe": hash_of_ids})

    def _id_of(self, name: str, token: str) -> int:
        """The id of the token that the argument `name` spells.

        Raises:
          ArgumentError: there is no such token; the message lists candidates.
        """
        found = self.token_to_id(checks.valid_text(name, token))
        if found is None and self is no_tokenizer():
            raise ArgumentError(f"{name}={shortened(token)}: ids without tokenizer= have no spellings: pass the id")
        if found is None:
            raise self._no_such_token(f"{name}={shortened(token)}: the vocabulary has no such token")
        return found

    def _no_such_token(self, wrong: str) -> ArgumentError:
        return ArgumentError(f"{wrong}. {special_tokens.describe(self._core.json)}")

    def _warn_of_config(self, path: Path, files: SiblingFiles) -> None:
        if found := config_changes.differences(self._core.json, files, self._settings["special_tokens_in_text"]):
            _LOGGER.warning(
                "%s: AutoTokenizer gives other ids than this encoder: %s; to have those ids, pass config='apply' to "
                "Encoder.from_file; to silence this, config='ignore'",
                path,
                "; ".join(found),
            )

    def _take_special_tokens(self, named: dict[str, list[str]]) -> None:
        """Takes the first token of each list that the vocabulary has, where no option has named one."""
        for name, tokens in named.items():
            option = f"{name}_token"
            if self._settings[option] is not None or not tokens:
                continue
            known = [token for token in tokens if self.token_to_id(token) is not None]
            if known:
                self._settings[option] = known[0]
                setattr(self, f"{name}_id", self.token_to_id(known[0]))
            else:
                self._unknown[name] = tokens[0]

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name != "ids_fingerprint"}
        return {**kept, "_core": self._core.json}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _core=_make_core(state["_core"], state["_settings"]))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<Encoder of {self.vocab_size} tokens, {self.engine} engine, {self.fingerprint}>"


def core_of(encoder: Encoder) -> _core.Encoder:
    """The core's object of an encoder."""
    return encoder._core


def check_special_tokens(encoder: Encoder, *, in_content: str) -> None:
    """Checks that a chat template's special tokens are read as such, and with `in_content="text"` only they.

    Raises:
      ArgumentError: they are not.
    """
    if encoder._settings["special_tokens_in_text"] == "text":
        raise ArgumentError(
            "special_tokens_in_text='text': the encoder would read the chat template's own special tokens as text; "
            "make it without, and set special_tokens_in_content='text' of gm.Chat"
        )
    if in_content == "text" and (reason := encoder._core.recognises_special_everywhere):
        raise ArgumentError(
            "special_tokens_in_content='text': this tokenizer cannot tell what messages say from control tokens: "
            f"{reason}"
        )


def _apply(path: Path, json_bytes: bytes, files: SiblingFiles, options: EncoderOptions) -> tuple[bytes, EncoderOptions]:
    """The tokenizer.json and the options with which an encoder gives the ids of `AutoTokenizer`."""
    value = json.loads(json_bytes)
    if not config_changes.is_generic(value, files):
        if path.name != load.TOKENIZER_FILE:
            raise TokenizerError(f"config='apply': AutoTokenizer reads files called {load.TOKENIZER_FILE} only")
        found = auto_tokenizer.load(str(path.parent))
        return found.json_bytes, found.options(options)
    if config_changes.splits_special_tokens(files):
        options = {"special_tokens_in_text": "text", **options}
    return json.dumps(value).encode() if config_changes.add_tokens(value, files) else json_bytes, options


def special_tokens_in_text_of(encoder: Encoder) -> str:
    """The treatment of special tokens that are spelled out in a text."""
    found: str = encoder._settings["special_tokens_in_text"]
    return found


@functools.cache
def no_tokenizer() -> Encoder:
    """The encoder of streams of ready ids, which encode nothing: it has no ids."""
    model = {"type": "BPE", "vocab": {}, "merges": []}
    return Encoder(json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode())


def text_of(encoder: Encoder, ids: Sequence[int]) -> str:
    """The text of some ids; without a tokenizer the ids themselves."""
    return " ".join(map(str, ids)) if encoder is no_tokenizer() else encoder.decode(ids)


def as_encoder(tokenizer: "Encoder | Pathish | None", *, is_needed: bool = True) -> Encoder:
    """The encoder that `tokenizer=` means; None for none, where samples are ready ids."""
    if tokenizer is None and not is_needed:
        return no_tokenizer()
    if isinstance(tokenizer, Encoder):
        return tokenizer
    if isinstance(tokenizer, (str, os.PathLike)):
        return Encoder.from_file(checks.path("tokenizer", tokenizer))
    raise load.wrong_tokenizer("tokenizer", tokenizer, "the path of a tokenizer.json or an Encoder")


def special_token_id(
    encoder: Encoder, name: special_tokens.SpecialToken, given: "str | int | bool | None"
) -> int | None:
    """The id that `eos=` or `bos=` means.

    Args:
      encoder: the tokenizer.
      name: which of them.
      given: a token, an id, False for none; None or True for the tokenizer's own.

    Raises:
      ArgumentError: there is no such token; the message lists candidates.
    """
    if given is False:
        return None
    if given is None or given is True:
        found = {"eos": encoder.eos_id, "bos": encoder.bos_id}[name]
        unknown = encoder._unknown.get(name)
        reason = (
            f"no file in the tokenizer's folder names its {name.upper()} token"
            if unknown is None
            else f"the files in the tokenizer's folder name {unknown!r}, which is not in its vocabulary"
        )
        wrong = f"{name}={given!r}: {reason}; pass {name}= a token or an id, or {name}=False for none"
    elif isinstance(given, str):
        return encoder._id_of(name, given)
    else:
        return token_id(encoder, name, given)
    if found is None:
        raise encoder._no_such_token(wrong)
    return found


def token_id(encoder: Encoder, name: str, given: str | int) -> int:
    """The id of a token that an argument gives by its spelling or id.

    Raises:
      ArgumentError: there is no such token; the message lists candidates.
    """
    if isinstance(given, str):
        return encoder._id_of(name, given)
    found = checks.integer(name, given, 0, _LARGEST_ID)
    if encoder.id_to_token(found) is None and encoder is not no_tokenizer():
        raise encoder._no_such_token(f"{name}={found}: the vocabulary has no such id")
    return found


def check_is_function(encoder: Encoder) -> None:
    """Checks that a text has the same ids each time; otherwise no stream could be reproduced.

    Raises:
      ArgumentError: its ids are random.
    """
    if dropout := encoder._core.dropout:
        raise ArgumentError(
            f"tokenizer=: it uses BPE dropout ({dropout:g}), so its ids are random, and a stream must be reproducible; "
            'set "dropout" to null in its tokenizer.json'
        )
    if ambiguous := encoder._core.ambiguous_tokens:
        first, second = map(shortened, ambiguous)
        raise ArgumentError(
            f"tokenizer=: its added tokens {first} and {second} are equal once normalized, so that their ids in a text "
            "differ from load to load, and a stream must be reproducible; remove one of them from its tokenizer.json, "
            'or set its "normalized" to false there'
        )


def _make_core(json_bytes: bytes, settings: dict[str, Any]) -> _core.Encoder:
    as_text, reference = settings["special_tokens_in_text"] == "text", settings["engine"] == "reference"
    return _core.Encoder(json_bytes, as_text, reference, settings["cache_bytes"])
