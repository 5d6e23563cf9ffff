"""The tokenizer of MaxText's config: what `AutoTokenizer` knows, and the files of SentencePiece and tiktoken.

A file of either becomes a tokenizer.json in memory. Its ids are compared with those of the library that MaxText uses,
on texts of many kinds, before it is used.
"""

import base64
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill import Encoder
from gristmill.errors import MissingExtraError, TokenizerError

# The types of pieces of a SentencePiece model.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_UNIGRAM, _BPE = 1, 2
_NEVER = -1e6
_SPACE = "\u2581"
_PROBE = Path(__file__).parents[2] / "_tokenizer" / "probe.txt"
_CONVERT = (
    'make a tokenizer.json where transformers knows the model: python -c "from transformers import AutoTokenizer; '
    "AutoTokenizer.from_pretrained('FOLDER').save_pretrained('CONVERTED')\", and set tokenizer_path to CONVERTED and "
    "tokenizer_type to huggingface"
)
# Texts that tokenizers differ on.
_ODD = (
    "",
    " ",
    "  two  spaces  ",
    "trailing ",
    "a\tb\r\nc\n\n\nd",
    "12345 6.7e8",
    "ﬁ ① ﷺ é",
    "日本語のテキスト 🙂",
    "<0x41> <s> x </s>",
)


def encoder_of(config: Any) -> Encoder:
    """The tokenizer of a config.

    Raises:
      GristmillError: as `Encoder.from_pretrained`; or a file of SentencePiece or tiktoken cannot be converted with the
        same ids.
    """
    path = str(config.tokenizer_path)
    kind = getattr(config, "tokenizer_type", "huggingface")  # a string, or an enumeration of them
    make = next((make for name, make in _LIBRARIES.items() if kind == name), None)
    if make is None or not _is_binary(path):
        with hub_token(getattr(config, "hf_access_token", None)):
            return Encoder.from_pretrained(path)
    try:
        described, ends, reference = make(path)
    except ImportError as error:
        raise MissingExtraError(
            f"tokenizer_path={path!r}: pip install {error.name}, which MaxText needs too, or {_CONVERT}"
        ) from error
    json_bytes = json.dumps(described).encode()
    # Special tokens that are spelled out in a text are text, as in these libraries; in conversations templates write
    # them.
    encoder = Encoder.from_bytes(json_bytes, **ends | {"special_tokens_in_text": "text"})
    probe = _PROBE.read_text(encoding="utf-8")
    for text in (*_ODD, *probe.splitlines(), probe):
        if encoder.encode(text).tolist() != reference(text):
            raise TokenizerError(f"tokenizer_path={path!r}: converted, it has other ids for {text[:80]!r}; {_CONVERT}")
    return Encoder.from_bytes(json_bytes, **ends) if config.use_sft else encoder


@contextlib.contextmanager
def hub_token(token: str | None) -> Iterator[None]:
    """Has downloads from the hub use a token."""
    before = os.environ.get("HF_TOKEN")
    if token:
        os.environ["HF_TOKEN"] = token
    try:
        yield
    finally:
        if token:
            if before is None:
                del os.environ["HF_TOKEN"]
            else:
                os.environ["HF_TOKEN"] = before


Converted = tuple[dict[str, Any], dict[str, Any], Callable[[str], list[int]]]


def _is_binary(path: str) -> bool:
    """Whether this is a file that is no tokenizer.json."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        start = file.read(64).lstrip()
    return not start.startswith((b"{", b"\x1f\x8b"))


def _of_sentencepiece(path: str) -> Converted:
    """The tokenizer.json of a SentencePiece model, the names of EOS and BOS, and the ids of the library."""
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    model_type: Any = vars(sentencepiece_model_pb2)["ModelProto"]
    model = model_type.FromString(Path(path).read_bytes())
    processor = SentencePieceProcessor(model_proto=model.SerializeToString())
    pieces = model.pieces
    kind = {_BPE: _bpe, _UNIGRAM: _unigram}.get(model.trainer_spec.model_type)
    if kind is None:
        raise TokenizerError(f"tokenizer_path={path!r}: expected a SentencePiece model of BPE or Unigram; {_CONVERT}")
    described = {
        "version": "1.0",
        "added_tokens": [
            _added(number, piece.piece, special=piece.type == _CONTROL)
            for number, piece in enumerate(pieces)
            if piece.type in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model.normalizer_spec)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": kind(model, processor.unk_id()),
    }
    eos, bos = (pieces[number].piece if number >= 0 else None for number in (processor.eos_id(), processor.bos_id()))
    return described, {"eos_token": eos, "bos_token": bos}, processor.EncodeAsIds


def _added(number: int, content: str, *, special: bool) -> dict[str, Any]:
    # Tokens of users are matched once spaces are replaced.
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special}
    return {"id": number, "content": content, "special": special, **flags}


def _normalizers(spec: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        found.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        found += [
            {"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    if spec.add_dummy_prefix:
        found.append({"type": "Prepend", "prepend": _SPACE})
    return [*found, {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]


def _bpe(model: Any, unknown: int) -> dict[str, Any]:
    ids = {piece.piece: number for number, piece in enumerate(model.pieces)}
    mergeable = {piece.piece: piece.score for piece in model.pieces if piece.type == _NORMAL}
    splits = (
        (-score, ids[piece[:at]], ids[piece[at:]], piece[:at], piece[at:])
        for piece, score in mergeable.items()
        for at in range(1, len(piece))
        if piece[:at] in mergeable and piece[at:] in mergeable
    )
    return {
        "type": "BPE",
        "unk_token": model.pieces[unknown].piece,
        "fuse_unk": True,
        "byte_fallback": model.trainer_spec.byte_fallback,
        "vocab": ids,
        "merges": [list(split[3:]) for split in sorted(splits)],
    }


def _unigram(model: Any, unknown: int) -> dict[str, Any]:
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "byte_fallback": model.trainer_spec.byte_fallback,
        # A text that spells out a control token, or the unknown one, is not given it.
        "vocab": [
            [piece.piece, _NEVER if piece.type in (_CONTROL, _UNKNOWN) else piece.score] for piece in model.pieces
        ],
    }


def _of_tiktoken(path: str) -> Converted:
    """The same of a file of tiktoken, with the pattern and the special tokens of MaxText, which are Llama 3's."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    ranks: Mapping[bytes, int] = load_tiktoken_bpe(path)
    named = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{n}|>" for n in range(4))]
    named += ["<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"]
    named += [f"<|reserved_special_token_{n}|>" for n in range(5, 251)]
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    )
    encoding = tiktoken.Encoding(Path(path).name, pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={})
    letters = _letters()
    spelled = {piece: "".join(letters[byte] for byte in piece) for piece in ranks}
    splits = (
        (rank, ranks[piece[:at]], ranks[piece[at:]], spelled[piece[:at]], spelled[piece[at:]])
        for piece, rank in ranks.items()
        for at in range(1, len(piece))
        if piece[:at] in ranks and piece[at:] in ranks
    )
    described = {
        "version": "1.0",
        "added_tokens": [_added(len(ranks) + n, token, special=True) for n, token in enumerate(named)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {spelled[piece]: rank for piece, rank in ranks.items()},
            "merges": [list(split[3:]) for split in sorted(splits)],
        },
    }
    return described, {"bos_token": named[0], "eos_token": named[1]}, encoding.encode_ordinary


def _letters() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies, as GPT-2 has them."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


_LIBRARIES = {"sentencepiece": _of_sentencepiece, "tiktoken": _of_tiktoken}
