"""States of a data set: which prompts a loader's position counts, and under which settings they were made."""

import logging
from typing import Any

from gristmill._util.text import counted
from gristmill.errors import StateError
from gristmill.integrations.verl.chat_tokenizer import ChatTokenizer
from gristmill.integrations.verl.config import RLConfig

_LOGGER = logging.getLogger("gristmill")


def settings_of(options: RLConfig, tokenizer: ChatTokenizer | None, max_samples: int) -> dict[str, Any]:
    """The settings that items may depend on, by veRL's names. Only messages read it: prompts are compared."""
    found: dict[str, Any] = {
        "data.prompt_key": options.prompt_key,
        "data.prompt_items": options.items,
        "max_samples": max_samples,
        "data.filter_overlong_prompts": options.filter_overlong_prompts,
    }
    if max_samples > 0 and options.shuffle:
        found["data.seed"] = options.seed
    if tokenizer is None:
        return found
    template = options.template
    return {
        **found,
        "data.max_prompt_length": options.max_prompt_length,
        "data.truncation": options.truncation,
        "data.apply_chat_template_kwargs": repr({**template.variables, "tools": template.tools}),
        "data.date": template.date,
        "data.none_fields": template.none_fields,
        "tools": repr(options.tool_schemas),
        "the tokenizer": tokenizer.encoder.fingerprint,
        "the chat template": tokenizer.template(template).fingerprint,
    }


def state_of(content: str, count: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The state of a data set."""
    return {"prompts": count, "content": content, "settings": dict(settings)}


def check(saved: dict[str, Any], current: dict[str, Any]) -> None:
    """Checks that a state was saved with the same prompts.

    Raises:
      StateError: it was saved with others; the message says what has changed.
    """
    if "content" not in saved:
        if "fingerprint" in saved:
            _LOGGER.warning(
                "the loader's state is of an earlier version of gristmill: whether its prompts are these is not checked"
            )
        return
    if saved["content"] == current["content"]:
        return
    one, other = saved["settings"], current["settings"]
    changed = [
        f"{name} was {one.get(name)!r} and is {other.get(name)!r}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]
    causes = "; ".join(changed) or "the files hold other records, or in another order"
    raise StateError(
        f"the state was saved with other prompts, {counted(saved['prompts'], 'prompt')} where there are "
        f"{current['prompts']} now, so its position means other ones: {causes}; use the files and settings of the "
        "run that saved it"
    )
