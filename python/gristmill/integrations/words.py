"""Errors in the words of another program: its keys in place of the names of gristmill's arguments."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

from gristmill._messages import Mention
from gristmill.errors import GristmillError

E = TypeVar("E", bound=GristmillError)


class Words:
    """The words of a program.

    Args:
      keys: what the program calls each argument; with `=` at the end where it is also shown without a value.
      remedies: for arguments that an error may be about what to do in the program, in place of what gristmill says.
    """

    def __init__(self, keys: Mapping[str, str], *, remedies: Mapping[str, str] = {}) -> None:
        self._keys, self._remedies = keys, remedies

    def said(self, error: E) -> E:
        """An error of gristmill's in these words."""

        def spell(mention: Mention) -> str:
            key = self._keys.get(mention.name)
            if key is None:
                return str(mention)
            return key + mention.value if key.endswith("=") or not mention.value else f"{key}={mention.value}"

        if remedy := self._remedies.get(error.argument or ""):
            error = error.reworded(lambda text: f"{text.rpartition('; ')[0]}; {remedy}")
        return error.spelled(spell)

    @contextlib.contextmanager
    def of_errors(self) -> Iterator[None]:
        """Raises errors of gristmill's in these words.

        Raises:
          GristmillError: the same error.
        """
        try:
            yield
        except GristmillError as error:
            raise self.said(error) from error.__cause__
