"""The options that every way to make an `Encoder` takes."""

from typing import Literal, TypeAlias, TypedDict

SpecialTokensInText: TypeAlias = Literal["id", "text"]


class EncoderOptions(TypedDict, total=False):
    """See `Encoder`."""

    eos_token: str | None
    bos_token: str | None
    special_tokens_in_text: SpecialTokensInText
    engine: Literal["auto", "reference"]
    cache_bytes: int
