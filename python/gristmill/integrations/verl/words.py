"""Errors in veRL's words: `data.max_prompt_length` for what gristmill's own arguments are called."""

from gristmill.integrations.words import Words

# The name of an argument of gristmill's in messages, and the key of veRL's configuration that sets it.
_KEYS = (
    (r"; raise max_memory=, or keep fewer .*", "; raise data.max_memory, or read fewer records with max_samples"),
    (r"\bdate=None: .*set date= of gm\.Chat to a date such as", "set data.date to a date such as"),
    (r"\bprompt_length=", "data.max_prompt_length="),
    (r"\btemplate_kwargs\b=?", "data.apply_chat_template_kwargs"),
    (r"\b(max_document_bytes|max_memory|stop_tokens|none_fields)=(?=\S)", r"data.\1="),
    (r"\b(max_document_bytes|max_error_rate|max_memory|stop_tokens|none_fields|threads)=(?!\S)", r"data.\1"),
    (r"\b(max_error_rate|threads)=(?=\S)", r"data.\1="),
    (r"\b(max_document_bytes|max_error_rate|max_memory|stop_tokens|none_fields)= ", r"data.\1 "),
    (r" of gm\.(Chat|PromptDataset)\b", ""),
)

VERL = Words(_KEYS)
