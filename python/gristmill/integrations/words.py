"""Errors in the words of another program: its keys in place of the names of gristmill's arguments."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

from gristmill._messages import Mention
from gristmill.errors import GristmillError, ShardError

E = TypeVar("E", bound=GristmillError)


class Words:
    """The words of a program.

    Args:
      keys: what the program calls each argument; with `=` at the end where it is also shown without a value.
      remedies: for arguments that an error may be about what to do in the program, in place of what gristmill says.
      columns: the key that names the columns, which an error in a shard mentions; empty: it mentions none.
    """

    def __init__(self, keys: Mapping[str, str], *, remedies: Mapping[str, str] = {}, columns: str = "") -> None:
        self._keys, self._remedies, self._columns = keys, remedies, columns

    def said(self, error: E) -> E:
        """An error of gristmill's in these words."""
        has_columns = False

        def spell(mention: Mention) -> str:
            nonlocal has_columns
            key = self._keys.get(mention.name)
            has_columns |= key == self._columns
            if key is None:
                return str(mention)
            return key + mention.value if key.endswith("=") or not mention.value else f"{key}={mention.value}"

        if remedy := self._remedies.get(error.argument or ""):
            error = error.reworded(lambda text: f"{text.rpartition('; ')[0]}; {remedy}")
        said = error.spelled(spell)
        if isinstance(error, ShardError) and self._columns and not has_columns:
            said = said.reworded(lambda text: f"{text}; to read other columns, set {self._columns}")
        return said

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
