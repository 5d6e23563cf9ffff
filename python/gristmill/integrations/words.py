"""Errors in the words of another program: its keys in place of the names of gristmill's arguments."""

import contextlib
import re
from collections.abc import Iterator, Sequence

from gristmill.errors import GristmillError, ShardError


class Words:
    """The words of a program.

    Args:
      keys: patterns of a message and their replacements, which are applied one after another.
    """

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        self._keys = keys

    def of(self, message: str) -> str:
        """A message of gristmill's in these words."""
        for pattern, key in self._keys:
            message = re.sub(pattern, key, message)
        return message

    @contextlib.contextmanager
    def of_errors(self) -> Iterator[None]:
        """Raises errors of gristmill's in these words.

        Raises:
          GristmillError: the same error.
        """
        try:
            yield
        except ShardError as error:
            raise ShardError(error.shard, error.record, error.byte, self.of(error.reason)) from error.__cause__
        except GristmillError as error:
            raise type(error)(self.of(str(error))) from error.__cause__
