"""Errors in veRL's words: `data.max_prompt_length` for what gristmill's own arguments are called."""

from gristmill.integrations.words import Words

_SAME = ("date", "max_document_bytes", "max_error_rate", "max_memory", "none_fields", "stop_tokens", "threads")

VERL = Words(
    {
        **{name: f"data.{name}" for name in _SAME},
        "prompt_length": "data.max_prompt_length",
        "template_kwargs": "data.apply_chat_template_kwargs",
    },
    remedies={"max_memory": "raise data.max_memory, or read fewer records with max_samples"},
)
