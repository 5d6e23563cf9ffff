"""The text of a single token, for people."""

from gristmill._tokenizer.encoder import Encoder

# The text that a decoder writes for a part of a character, and the one that stands for a space in vocabularies of
# SentencePiece.
_PART = "\ufffd"
_SPACE = "\u2581"


def spelling(encoder: Encoder, token: int) -> str:
    """The text of a token; of a part of a character, or of one without text, its spelling in the vocabulary."""
    text, own = encoder.decode([token]), encoder.id_to_token(token)
    if own is not None and own.startswith(_SPACE):  # a decoder leaves out the space in front of a first token
        return own.replace(_SPACE, " ")
    return own or text if _PART in text or not text else text
