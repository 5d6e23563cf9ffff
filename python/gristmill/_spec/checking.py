"""The checked values of the arguments of a dataset. All checks here need no files."""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gristmill._spec import quarantine
from gristmill._spec.arguments import Argument

_LOGGER = logging.getLogger("gristmill")


def check(arguments: Mapping[str, Argument], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of all arguments, each as its kind has it; those without effect have their defaults.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """
    values = {name: argument.kind.check(name, given[name]) for name, argument in arguments.items()}
    values["quarantine_file"] = quarantine.checked_file(values["quarantine_file"], values["on_error"])
    for name, conditions in _without_effect(arguments, values).items():
        default = arguments[name].default
        if values[name] != default:
            needed = " and ".join(
                f"{other}={' or '.join(map(repr, allowed))}" if allowed else f"{other}="
                for other, allowed in conditions.items()
            )
            _LOGGER.warning("%s=%r has no effect without %s", name, values[name], needed)
        values[name] = default
    _warn_of_unnamed_sidecars(values)
    return MappingProxyType(values)


def _without_effect(
    arguments: Mapping[str, Argument], values: Mapping[str, Any]
) -> "dict[str, dict[str, tuple[str, ...]]]":
    return {name: unmet for name, argument in arguments.items() if (unmet := argument.unmet(values))}


def _warn_of_unnamed_sidecars(values: Mapping[str, Any]) -> None:
    """Warns of sidecars that the filter does not name, perhaps because it spells them in another way."""
    if values["keep"] is not None and values["sidecars"] is not None:
        named = {path[0] for path in values["keep"].paths}
        for name in [name for name, _ in values["sidecars"].named if name not in named]:
            _LOGGER.warning("keep= does not name the sidecar %r, which is read for nothing but its length", name)
