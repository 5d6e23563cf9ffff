"""Arguments that have no effect together with others."""

import logging
from collections.abc import Mapping
from typing import Any

from gristmill._spec.arguments import Argument

_LOGGER = logging.getLogger("gristmill")


def reset_arguments_without_effect(arguments: Mapping[str, Argument], values: dict[str, Any]) -> None:
    """Gives arguments without effect their defaults, as fingerprints do, and warns if they had other values."""
    unmet = {name: conditions for name, argument in arguments.items() if (conditions := argument.unmet(values))}
    for name, conditions in unmet.items():
        if values[name] != arguments[name].default:
            needed = " and ".join(
                f"{other}={' or '.join(map(repr, allowed))}" if allowed else f"{other}="
                for other, allowed in conditions.items()
            )
            _LOGGER.warning("%s=%r has no effect without %s", name, values[name], needed)
    values |= {name: arguments[name].default for name in unmet}


def warn_of_unnamed_sidecars(values: Mapping[str, Any]) -> None:
    """Warns of sidecars that the filter does not name, perhaps because it spells them in another way."""
    if values["keep"] is not None and values["sidecars"] is not None:
        named = {path[0] for path in values["keep"].paths}
        for name in [name for name, _ in values["sidecars"].named if name not in named]:
            _LOGGER.warning("keep= does not name the sidecar %r, which is read for nothing but its length", name)
