"""YAML and JSON in which no key is there twice: their readers would take the last one and say nothing."""

import functools
import json
from collections.abc import Sequence
from typing import Any

from gristmill.errors import ArgumentError, MissingExtraError


def yaml_of(path: str, text: str, instead: str = "") -> tuple[Any, Any]:
    """The values of YAML, and its root as a node with lines. `instead` says what else can be done without PyYAML.

    Raises:
      ArgumentError: it is not YAML, or an object in it has a key twice.
      MissingExtraError: PyYAML is not installed.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError(f"{path} is YAML, which needs PyYAML: pip install pyyaml{instead}") from None
    try:
        return yaml.load(text, functools.partial(_loader(), path)), yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ArgumentError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def __init__(self, path: str, text: str) -> None:
            super().__init__(text)
            self._path = path

        def flatten_mapping(self, node: Any) -> None:
            """Checks the keys of an object before those of others are merged into it."""
            lines: dict[str, int] = {}
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                    continue
                number = key.start_mark.line + 1
                if key.value in lines:
                    raise ArgumentError(
                        f"{self._path}, line {number}: the key {key.value!r} is on line {lines[key.value]}, too"
                    )
                lines[key.value] = number
            super().flatten_mapping(node)

    return Loader


def json_of(path: str, text: str) -> Any:
    """The values of JSON.

    Raises:
      ArgumentError: it is not JSON, or an object in it has a key twice.
    """

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ArgumentError(f"{path}: the key {key!r} is there twice")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{path}: not valid JSON: {error}") from None
