"""`ChatTokenizer`: what is taken of a tokenizer of `transformers`."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gristmill import Chat, ChatTemplate, Encoder
from gristmill.errors import ArgumentError, ArgumentTypeError, TemplateError
from gristmill.integrations.verl.config import TemplateOptions


@dataclass(frozen=True)
class ChatTokenizer:
    """The ids, the chat templates and the special tokens of a tokenizer.

    Attributes:
      encoder: its ids.
      templates: its chat template, or several by name; None if it has none.
      special_tokens: variables of templates.
      pad_id: the id of padding; None if it has none.
    """

    encoder: Encoder
    templates: "str | Mapping[str, str] | None"
    special_tokens: Mapping[str, Any]
    pad_id: int | None

    @classmethod
    def of(cls, tokenizer: Any, processor: Any = None) -> Self:
        """The tokenizer for one of `transformers`, or for a folder that it has saved.

        Args:
          tokenizer: the tokenizer.
          processor: one of `transformers`, whose tokenizer and template are taken then, as veRL does.

        Raises:
          ArgumentTypeError: it does not use the `tokenizers` library.
          TokenizerError: the encoder cannot be made.
        """
        if isinstance(tokenizer, (str, os.PathLike)):
            return cls._with_template(cls._of_folder(os.fspath(tokenizer)), processor)
        tokenizer = getattr(processor, "tokenizer", None) or tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ArgumentTypeError(
                f"tokenizer: expected a fast tokenizer of transformers, or the path of its folder, got "
                f"{type(tokenizer).__name__}"
            )
        encoder = _encoder(backend.to_str(), backend.encode_special_tokens)
        found = cls(
            encoder,
            getattr(tokenizer, "chat_template", None),
            dict(tokenizer.special_tokens_map),
            tokenizer.pad_token_id,
        )
        return cls._with_template(found, processor)

    @classmethod
    def _with_template(cls, found: Self, processor: Any) -> Self:
        """The same with the chat template of a processor, if it has one."""
        own = getattr(processor, "chat_template", None)
        if isinstance(own, Mapping):
            own = own.get("default")  # whether there are tools or not
        return found if own is None else dataclasses.replace(found, templates=own)

    @classmethod
    def _of_folder(cls, name: str) -> Self:
        encoder = Encoder.from_pretrained(name)
        tokens = {} if encoder.folder is None else ChatTemplate.special_tokens_of(encoder.folder)
        pad = tokens.get("pad_token")
        # As veRL's hf_tokenizer: EOS stands for a pad token that is missing.
        pad_id = encoder.token_to_id(pad) if isinstance(pad, str) else encoder.eos_id
        try:
            source = ChatTemplate.from_pretrained(name).source
        except TemplateError:  # the configuration may name one
            source = None
        return cls(encoder, source, tokens, pad_id)

    def template(self, options: TemplateOptions) -> ChatTemplate:
        """The template that conversations are rendered with.

        Raises:
          TemplateError: there is none, it is not valid, or the core does not render it exactly.
          ArgumentError: the template prints the date, and there is none.
        """
        source = options.source if options.source is not None else self.templates
        if isinstance(source, Mapping):
            named = dict(source)
            source = named.get("tool_use" if options.tools and "tool_use" in named else "default")
        if source is None:
            raise TemplateError(
                "chat_template should be provided in data.apply_chat_template_kwargs or tokenizer config: this "
                "tokenizer has none"
            )
        template = ChatTemplate.from_string(source, tokenizer=self.encoder, **self.special_tokens)
        if template.uses_date and options.date is None:
            raise ArgumentError(
                "the chat template prints today's date, so that prompts would change at midnight and differ between "
                "restarts: set data.date, such as +data.date=2026-11-26, or +data.date=today for the day of the start"
            )
        return template

    def chat(self, field: str, options: TemplateOptions, *, add_generation_prompt: bool) -> Chat:
        """The conversations under a key."""
        return Chat(
            field,
            template=self.template(options),
            tools=options.tools,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=options.variables or None,
            date=options.date,
            none_fields=options.none_fields,
            string_arguments="keep",
        )


# veRL makes two data sets with one tokenizer: training and validation.
@functools.lru_cache(maxsize=1)
def _encoder(tokenizer: str, splits_special_tokens: bool) -> Encoder:
    return Encoder.from_bytes(tokenizer.encode(), special_tokens_in_text="text" if splits_special_tokens else "id")
