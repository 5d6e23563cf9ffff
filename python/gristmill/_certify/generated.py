"""Generated texts of several kinds, each biased towards what tokenizers get wrong. A seed always gives the same."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

_SCALARS = 0x11_0000
_SURROGATES = range(0xD800, 0xE000)
# Coprime to the number of scalars: a short run sees some of all planes.
_STRIDE = 388_961
_LONGEST_REPEAT = 50_000

# Where pre-tokenizers cut, and texts that look like tokens.
_FRAGMENTS = (
    *(" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x85", "\xa0", "\u2003", "\u3000", "\u2028"),
    *("\u200b", "\u180e", " " * 20, "▁", "▁▁", " ▁", "▁ ", "a", "the", "The", "THE", " the", "don't", "I'LL", "we've"),
    *("'s", "'S", "'ſ", "ſ", "'re", "'", "''", "’s", "HelloWorld", "iPhone", "café", "cafe\u0301", "İ", "ı", "ǅ", "ʰ"),
    *("0", "1", "12", "123", "1234", "1234567", "٣", "१२", "²", "½", "Ⅷ", "1.5", "1,000", ".", ",", "!", "?", "-"),
    *("--", "...", "(", ")", "[]", "{}", "/", "//", "\\", "_", "__init__", "=", "==", "=>", "<", ">", "</", "&amp;"),
    *("#", "$", "%", "+", "~", "|", "`", '"', "“", "”", "…", "€", "©", "→", "\u0301", "€1", "_-_", "-" * 64),
    *("日本語", "です。", "中文", "的", "한국어", "\u1112\u1161\u11ab", "ภาษาไทย", "हिन्दी", "العربية", "עִבְרִית"),
    *("Ελληνικά", "русский", "がｶﾞ", "か\u3099", "ー", "々", "〇", "一", "龥", "가", "😀", "👩‍👩‍👧", "🇩🇪"),
    *("𝒳", "𐐀", "𠀀", "\0", "\x1b"),
    *("<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|im_start|>", "<0x0A>", "[INST]", "<mask>", "Ġthe", "##s"),
)  # fmt: skip
# The ranges of a script's letters and digits.
_SCRIPTS = (
    *(((0x41, 0x5B), (0x61, 0x7B), (0xC0, 0x250)), ((0x370, 0x400),), ((0x400, 0x530),), ((0x531, 0x58B),)),
    *(((0x5B0, 0x5F5),), ((0x600, 0x700),), ((0x700, 0x750),), ((0x900, 0x980),), ((0x980, 0xA00),), ((0xA80, 0xB00),)),
    *(((0xB80, 0xC00),), ((0xC00, 0xC80),), ((0xD00, 0xD80),), ((0xE01, 0xE5C),), ((0xE81, 0xEE0),), ((0xF00, 0xFD0),)),
    *(((0x1000, 0x10A0),), ((0x10A0, 0x1100),), ((0x1200, 0x1380),), ((0x13A0, 0x13F6),), ((0x1780, 0x17EA),)),
    *(((0x1800, 0x18AB),), ((0x1E00, 0x1F00),), ((0x3041, 0x3100),), ((0x4E00, 0xA000),), ((0xAC00, 0xD7A4),)),
    *(((0x1100, 0x1200),), ((0xFF01, 0xFFEF),), ((0x10400, 0x10450),), ((0x1D400, 0x1D800),), ((0x20000, 0x2A6E0),)),
    *(((0x1F300, 0x1F650), (0x1F900, 0x1FA00)),),
)
# The characters that decoders leave where bytes were wrong, and characters without a glyph.
_ODD = (
    *("\ufffd", "\ufffd" * 3, "\ufeff", "\ufffe", "\uffff", "\ufdd0", "\U0010ffff", "\ue000", "\ud7ff", "\U000e0041"),
    *("\x00", "\x01", "\x7f", "\x80", "\x9f", "\xad", "\u034f", "\u061c", "\u200d", "\u200e", "\u202e", "\u2066"),
    *("\ufe0f", "\U000e0100", "\u0301" * 8, "\\ud800", "\\x80", "&#xD800;", "%80", "%ED%A0%80", "<0x80>", "<0xFF>"),
)  # fmt: skip


@dataclass(frozen=True)
class Material:
    """The material that texts are made of.

    Attributes:
      added: the spellings of the added tokens.
      vocabulary: spellings and texts of other tokens.
      pool: texts to mutate. It may grow.
    """

    added: Sequence[str]
    vocabulary: Sequence[str]
    pool: Sequence[str]


def sources(material: Material, seed: int) -> dict[str, Iterator[str]]:
    """Texts by kind; those of all but `scalars` never end."""
    kinds = {name: kind for name, kind in _KINDS.items() if name != "added tokens" or material.added}
    found = {name: _endless(kind, random.Random(f"{seed} {name}"), material) for name, kind in kinds.items()}
    return {"scalars": _scalars(seed), **found}


def _endless(
    kind: Callable[[random.Random, Material], str], source: random.Random, material: Material
) -> Iterator[str]:
    while True:
        yield kind(source, material)


def _scalars(seed: int) -> Iterator[str]:
    """Every Unicode scalar value: at the start of a text, between letters, and behind a space."""
    for number in range(_SCALARS):
        scalar = (number * _STRIDE + seed) % _SCALARS
        if scalar not in _SURROGATES:
            yield f"{chr(scalar)}\na{chr(scalar)}b {chr(scalar)} x"


def _unicode(source: random.Random, _: Material) -> str:
    limit = source.choice((0x80, 0x250, 0x3000, 0x1_0000, _SCALARS))
    return "".join(_scalar(source, 0, limit) for _ in range(_size(source, 300)))


def _script(source: random.Random, _: Material) -> str:
    script = source.choice(_SCRIPTS)
    words = (
        "".join(_scalar(source, *source.choice(script)) for _ in range(source.randrange(1, 12)))
        for _ in range(_size(source, 40))
    )
    return "".join(word + source.choice((" ", " ", " ", "", ", ", ".\n", "-", " 12")) for word in words)


def _border(source: random.Random, material: Material) -> str:
    def part() -> str:
        drawn = source.randrange(10)
        if drawn < 6 or not material.vocabulary:
            return source.choice(_FRAGMENTS)
        return source.choice(material.vocabulary) if drawn < 9 else chr(source.randrange(0x20, 0x7F))

    return "".join(part() * (source.randrange(60) if source.random() < 0.08 else 1) for _ in range(_size(source, 30)))


def _added(source: random.Random, material: Material) -> str:
    around = ("", "", " ", "  ", "a", "b ", "\n", "▁", "\u0301", ".", "é", "日")
    parts = []
    for _ in range(source.randrange(1, 8)):
        token = source.choice(material.added)
        drawn = source.random()
        if drawn < 0.15 and token:
            cut = source.randrange(len(token))
            token = token[:cut] + token[cut + 1 :]
        elif drawn < 0.25:
            token = token.swapcase()
        parts += [source.choice(around), token, source.choice((*around, source.choice(_FRAGMENTS)))]
    return "".join(parts)


def _repeat(source: random.Random, material: Material) -> str:
    units = source.choice((_FRAGMENTS, _FRAGMENTS, material.vocabulary or _FRAGMENTS, material.added or _FRAGMENTS))
    unit = "".join(source.choice(units) for _ in range(source.randrange(1, 3))) or " "
    times = max(1, _size(source, _LONGEST_REPEAT) // len(unit))
    return source.choice(("", "a", " ", "\n", "x ")) + unit * times + source.choice(("", "b", " c", "\n", "."))


def _odd(source: random.Random, _: Material) -> str:
    def part() -> str:
        drawn = source.randrange(4)
        if drawn == 0:  # bytes that are no UTF-8, as decoders replace them
            return source.randbytes(source.randrange(1, 12)).decode("utf-8", "replace")
        if drawn == 1:  # UTF-8 that was read as Latin-1
            return source.choice(_FRAGMENTS).encode().decode("latin-1")
        return source.choice(_ODD if drawn == 2 else _FRAGMENTS)

    return "".join(part() for _ in range(_size(source, 30)))


def _mutation(source: random.Random, material: Material) -> str:
    text = source.choice(material.pool)
    start = source.randrange(len(text) + 1)
    text = text[start : start + _size(source, 2000)]
    for _ in range(source.randrange(1, 8)):
        start = source.randrange(len(text) + 1)
        end = min(len(text), start + _size(source, 20))
        there = text[start:end]
        changed = (
            "",
            there * 2,
            there.swapcase(),
            there[::-1],
            source.choice(_FRAGMENTS),
            _scalar(source, 0, _SCALARS),
            there.replace(" ", source.choice(_FRAGMENTS)),
        )
        text = text[:start] + source.choice(changed) + text[end:]
    return text


def _scalar(source: random.Random, start: int, end: int) -> str:
    while (scalar := source.randrange(start, end)) in _SURROGATES:
        pass
    return chr(scalar)


def _size(source: random.Random, most: int) -> int:
    """A number from 1 on; each power of two is as likely as the others."""
    return int(most ** source.random())


_KINDS: Mapping[str, Callable[[random.Random, Material], str]] = {
    "random characters": _unicode,
    "scripts": _script,
    "borders of pre-tokens": _border,
    "added tokens": _added,
    "long repeats": _repeat,
    "damaged text": _odd,
    "mutations": _mutation,
}
