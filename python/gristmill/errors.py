"""Every exception that gristmill raises on purpose. All of them pickle."""

from collections.abc import Callable
from typing import Any, Self

from gristmill import _messages
from gristmill._messages import Mention


class GristmillError(Exception):
    """Base of all of gristmill's exceptions.

    Attributes:
      argument: the name of the argument that it is about; None where it is about several, or about none.
    """

    argument: str | None = None

    def reworded(self, words: Callable[[str], str]) -> Self:
        """The same error with another text: of the same class, with the same attributes and cause."""
        reduced: tuple[Any, ...] = tuple(self.__reduce__())
        made, given, *state = reduced  # an ImportError has its text from its arguments alone
        changed: Self = made(*(words(text) if isinstance(text, str) else text for text in given))
        for attributes in state:
            changed.__setstate__(attributes)
        changed.__cause__ = self.__cause__
        return changed

    def spelled(self, spell: Callable[[Mention], str]) -> Self:
        """The same error with the arguments that its text names as `spell` writes them, see `gristmill._messages`."""
        return self.reworded(lambda text: _messages.spelled(text, spell, self.argument))


class _AboutArgumentError(GristmillError):
    def __init__(self, *args: object, argument: str | None = None) -> None:
        super().__init__(*args)
        self.argument = argument or (_messages.argument_of(str(args[0])) if args else None)


class ArgumentError(_AboutArgumentError, ValueError):
    """An argument's value is not allowed. Its attribute `argument` is the name, None where it is about several."""


class ArgumentTypeError(_AboutArgumentError, TypeError):
    """An argument is of the wrong type. Its attribute `argument` is the name."""


class TokenizerError(GristmillError, ValueError):
    """A tokenizer cannot be loaded, or a text cannot be encoded with it."""


class TemplateError(GristmillError, ValueError):
    """A chat template cannot be compiled, or cannot render or mask a conversation."""


class ImageError(GristmillError, ValueError):
    """Bytes are not an image of a known format, are damaged or end early, or hold more pixels than allowed."""


class MissingTokenizerError(TokenizerError, FileNotFoundError):
    """A path names no tokenizer.json, and no folder that holds one."""


class StateError(GristmillError, ValueError):
    """A saved state does not fit the dataset that it is to be restored on."""


class MissingShardError(GristmillError, FileNotFoundError):
    """A path names no file, or a glob matches none."""


class MissingExtraError(GristmillError, ImportError):
    """Something needs a library that gristmill itself does not; the message names the extra to install."""


class ShardError(GristmillError):
    """A record of a shard, or the shard itself, cannot be used.

    Attributes:
      shard: path of the shard.
      record: 0-based line in the shard, blank lines counted, or row; None if the shard could not be opened.
      byte: offset of the record's first byte in the inflated shard; for damage inside a gzip member or Zstandard frame,
        the number of bytes inflated before it; None for rows, and if the shard could not be opened.
      reason: what was expected, what was found, and what to do.
    """

    def __init__(self, shard: str, record: int | None, byte: int | None, reason: str) -> None:
        where = "" if record is None else f": record {record}"
        offset = "" if byte is None else f", byte {byte}"
        super().__init__(f"{shard}{where}{offset}: {reason}")
        self.shard = shard
        self.record = record
        self.byte = byte
        self.reason = reason

    def reworded(self, words: Callable[[str], str]) -> Self:
        """The same error with another reason."""
        changed = type(self)(self.shard, self.record, self.byte, words(self.reason))
        changed.__cause__ = self.__cause__
        return changed

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shard, self.record, self.byte, self.reason)
