"""`Text`, `Chat`, `Instruction`, `Completion`, `ImageText` and so on: what a record becomes, as callers say it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Literal, TypeAlias

from gristmill._chat.template import ChatTemplate, OnLostReasoning, TrainOn, check_final_stop
from gristmill._images.function import ImageFunction
from gristmill._images.model import ImageModel
from gristmill._images.video import VideoModel
from gristmill._sample.fields import CarriedField, Field, carried, check_fields, union
from gristmill._sample.record_function import RecordFunction
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill.errors import ArgumentError

FORMATS = ("messages", "sharegpt", "chatml")
_CHOICES = {
    "format": FORMATS,
    "none_fields": ("drop", "keep"),
    "special_tokens_in_content": ("id", "text"),
    "on_untrained": ("error", "drop"),
    "on_lost_reasoning": ("error", "ignore"),
    "samples": ("conversation", "turns", "rounds"),
    "string_arguments": ("decode", "keep"),
}
_TRAIN_ON = ("assistant", "last", "final", "all", "template")


@dataclass(frozen=True)
class FillInTheMiddle:
    """Cuts documents at two characters and puts the middle behind the rest, so that a model learns to fill gaps.

    A share `rate` of the documents is cut before it is encoded, at two characters that are drawn from the seed of the
    stream and the document's epoch, shard and record. The ids are those of the three sections, each encoded alone, with
    the sentinels that announce them, in the order of Megatron-LM:

        PSM   prefix sentinel, prefix, suffix sentinel, suffix, middle sentinel, middle
        SPM   prefix sentinel, suffix sentinel, suffix, middle sentinel, prefix, middle

    BOS and EOS stand around them, as around every document. Empty documents stay as they are.

    Attributes:
      rate: the share of the documents that are cut, from 0 to 1.
      spm_rate: the share of those that get the order SPM.
      prefix: the sentinel of what is before the gap, by its spelling or id. None for all three: those of
        StarCoder, CodeLlama, DeepSeek-Coder or Qwen2.5-Coder, if the vocabulary has them.
      middle: the sentinel of what fills the gap.
      suffix: the sentinel of what is after the gap.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    rate: float = 0.5
    spm_rate: float = 0.5
    prefix: str | int | None = None
    middle: str | int | None = None
    suffix: str | int | None = None

    def __post_init__(self) -> None:
        for name in ("rate", "spm_rate"):
            object.__setattr__(self, name, checks.fraction(name, getattr(self, name)))
        given = {name: getattr(self, name) for name in ("prefix", "middle", "suffix")}
        for name, token in given.items():
            if token is not None and not isinstance(token, str):
                checks.integer(name, token, 0, 2**32 - 1, ", a token, or None")
        if None in given.values() and any(token is not None for token in given.values()):
            missing = next(name for name, token in given.items() if token is None)
            raise ArgumentError(f"{missing}=None: expected prefix=, middle= and suffix=, or none of them")


@dataclass(frozen=True)
class Text:
    """A document: the string under one key or in one column.

    Attributes:
      field: the key or column. A column of JSON must hold strings.
      fim: how documents are cut for fill-in-the-middle. None: they are not.
      fields: values of other keys that travel with the sample, by the names of their arrays: `Field` with
        `per="sample"`.

    Raises:
      ArgumentError: the field is empty.
      ArgumentTypeError: a value is of the wrong type.
    """

    field: str
    fim: FillInTheMiddle | None = None
    fields: Mapping[str, Field] | None = None

    def __post_init__(self) -> None:
        checks.text("field", self.field)
        check_fields(self.fields, per_sample=True)
        if self.fim is not None and not isinstance(self.fim, FillInTheMiddle):
            raise checks.wrong_type("fim", self.fim, "gm.FillInTheMiddle or None")


@dataclass(frozen=True)
class Chat:
    """A conversation, rendered by a chat template and trained on where the model would generate.

    The text is exactly that of `transformers`' `apply_chat_template`, encoded as a whole; a token is trained on if its
    first byte is. A message's own `"train": false` or `"weight": 0` takes it out. A conversation whose mask cannot be
    derived, or that the template refuses, is a bad record; so is one with a flag of other programs (`loss`,
    `loss_mask`, `trainable`, `masked`) that says otherwise than what is done.

    Attributes:
      field: key of the record that holds the list of messages. For one inside of objects or structs their keys and its
        own, with dots between them, as for all keys of samples: `"conversation.messages"`.
      template: the chat template: its text, the path of a file or of a folder that `transformers` has saved, or a
        `ChatTemplate`. None: the one beside the tokenizer.json.
      tools: JSON schemas of tools for all conversations, or the key of the record that holds its own: a list, or a
        string with such JSON.
      train_on: `"assistant"`: of each assistant message what the model would generate, from behind the generation
        prompt up to and with the token that ends the turn; `"last"`: of the last one; `"final"`: of those behind the
        last message of the user; `"all"`: everything; `"template"`: the template's `generation` blocks; or a list of
        roles.
      add_generation_prompt: whether the text ends with the start of an answer.
      template_kwargs: further variables of the template, such as `{"enable_thinking": False}`; or the key of the record
        that holds its own: an object, or a string with such JSON. Missing or null is none.
      date: the date that a template prints, such as `"2026-11-26"`; `"today"` is the day on which the dataset is made.
        A template that may print it needs one.
      none_fields: `"drop"`: keys of messages that are null are left out, as `transformers` 5.24 does, and so are those
        that structs of Parquet and Arrow fill in with null, in tools and at any depth; or `"keep"`.
      special_tokens_in_content: `"id"`: a special token that is spelled out in a message has its id, as in
        `transformers`; `"text"`: it has the ids of its characters, so that no message can write a control token. The
        tokens of the template are read as such in either case.
      on_untrained: what becomes of a conversation without any trained token, or whose trained tokens truncation has
        dropped: `"error"`: it is a bad record; `"drop"`: it is left out and counted as filtered.
      format: `"messages"`: messages as templates take them; `"sharegpt"`: with `from` and `value`, and a system
        prompt under `system` beside them; `"chatml"`: either, in a list or in an object that has one under
        `conversations`, `messages` or `conversation`, as the samples of Megatron-Bridge.
      stop_tokens: the tokens at which the model stops, for templates that write none after a message.
      train_reasoning: whether reasoning is trained on, where it is a field of a message.
      train_tool_calls: whether tool calls are.
      on_lost_reasoning: what becomes of a conversation of which a trained message has reasoning (`reasoning_content`,
        `reasoning`, `thinking`, or a part of its content) of which the template writes nothing: `"error"`: it is a bad
        record, whose message names what helps; `"ignore"`: it is trained on without it. Without an effect if
        `train_reasoning=False`.
      final_stop: a token of the tokenizer that is written behind an assistant message at the end of a conversation, and
        trained on if the message is, where the template writes no token there at which the model stops, such as
        `"<|user|>"` for GLM.
      samples: the samples that a conversation becomes. `"conversation"`: one. For templates that strip earlier
        reasoning, so that what is trained is what the model would have written: `"turns"`: one for each assistant
        message that is trained on, of the messages up to and with it, trained on it alone; `"rounds"`: one for each
        message of the user, of the messages before the next one of the user, trained on the assistant's behind it. In
        the order of the messages; a bad one makes the record bad. `train_on` is `"assistant"`.
      string_arguments: what becomes of arguments of tool calls that are strings: `"decode"`: each that is the JSON of
        an object is that object, as templates expect; `"keep"`: they stay, as in `transformers`.
      system_field: key of a system prompt that precedes the messages, which a record may lack. None: there is none, but
        for the `system` of `"sharegpt"` and `"chatml"`.
      train_empty_reasoning: whether the marks of a reasoning without words, such as `<think>` and `</think>` of Qwen3,
        are trained on, with the white space behind them that does not begin the answer itself.
      fields: values of other keys that travel with the sample, as of `Text`.
      train_key: the key of a message that says how much it is trained on: true, false, a number such as 0.5, or null,
        which says nothing; `"masked"` says the opposite. Rows then have the field `weight`. None: `"train"` and
        `"weight"` say whether it is.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    field: str = "messages"
    template: "ChatTemplate | Pathish | None" = None
    tools: "Sequence[Mapping[str, Any]] | str | None" = None
    train_on: TrainOn = "assistant"
    add_generation_prompt: bool = False
    template_kwargs: Mapping[str, Any] | str | None = None
    date: str | None = None
    none_fields: Literal["drop", "keep"] = "drop"
    special_tokens_in_content: Literal["id", "text"] = "id"
    on_untrained: Literal["error", "drop"] = "error"
    format: Literal["messages", "sharegpt", "chatml"] = "messages"
    stop_tokens: Sequence[str] = ()
    train_reasoning: bool = True
    train_tool_calls: bool = True
    on_lost_reasoning: OnLostReasoning = "error"
    final_stop: str | None = None
    samples: Literal["conversation", "turns", "rounds"] = "conversation"
    string_arguments: Literal["decode", "keep"] = "decode"
    system_field: str | None = None
    train_empty_reasoning: bool = True
    train_key: str | None = None
    fields: Mapping[str, Field] | None = None

    def __post_init__(self) -> None:
        checks.text("field", self.field)
        check_fields(self.fields, per_sample=True)
        if self.final_stop is not None:
            check_final_stop(self.final_stop, add_generation_prompt=self.add_generation_prompt)
        for name, words in _CHOICES.items():
            checks.choice(name, getattr(self, name), words)
        for name in ("add_generation_prompt", "train_reasoning", "train_tool_calls", "train_empty_reasoning"):
            checks.boolean(name, getattr(self, name))
        if not self.train_on or (isinstance(self.train_on, str) and self.train_on not in _TRAIN_ON):
            raise ArgumentError(
                f"train_on={self.train_on!r}: expected one of {', '.join(map(repr, _TRAIN_ON))}, or a list of roles"
            )
        for name in ("stop_tokens",) if isinstance(self.train_on, str) else ("stop_tokens", "train_on"):
            if isinstance(words := getattr(self, name), str):
                raise checks.wrong_type(name, words, "a list of strings")
            for word in checks.items(name, words, "a list of strings"):
                checks.text(name, word)
        for name in ("tools", "template_kwargs"):
            if isinstance(key := getattr(self, name), str):
                checks.text(name, key)
        if not isinstance(self.template_kwargs, (str, Mapping, type(None))):
            raise checks.wrong_type("template_kwargs", self.template_kwargs, "a dict, a key of the record, or None")
        if not isinstance(self.tools, (str, type(None))):
            expected = "a list of dicts, a key of the record, or None"
            if not all(isinstance(tool, Mapping) for tool in checks.items("tools", self.tools, expected)):
                raise checks.wrong_type("tools", self.tools, expected)
        for name in ("system_field", "train_key"):
            if (key := getattr(self, name)) is not None:
                checks.text(name, key)
        if self.samples != "conversation":
            if self.train_on != "assistant":
                raise ArgumentError(
                    f"samples={self.samples!r}: expected train_on='assistant', as each sample is trained on its own "
                    f"messages, got train_on={self.train_on!r}"
                )
            if self.add_generation_prompt:
                raise ArgumentError(
                    f"samples={self.samples!r}: a sample ends with a message of the assistant; leave "
                    "add_generation_prompt= out"
                )


@dataclass(frozen=True, init=False)
class Instruction(Chat):
    """A conversation whose parts have a column each, as in Alpaca: an instruction, perhaps an input, and the output.

    The user's message is the instruction, a newline and the input; the instruction alone where the input is missing,
    null or empty. The assistant's message is the output.

    Attributes:
      instruction: key of the record that holds the instruction.
      input: key of the input. None: there is none.
      output: key of the output. With `add_generation_prompt` the conversation ends before it.
      system: key of a system prompt, which a record may lack, too. None: there is none.

    Args:
      options: the others of `Chat`, but for `field` and `format`.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    # Names a prompt.
    field: str = dataclass_field(default="instruction", init=False)
    instruction: str = "instruction"
    input: str | None = "input"
    output: str = "output"
    system: str | None = None

    def __init__(
        self,
        instruction: str = "instruction",
        input: str | None = "input",  # noqa: A002
        output: str = "output",
        system: str | None = None,
        **options: Any,
    ) -> None:
        has_other_key = "field" in options or options.get("system_field") is not None
        if has_other_key or options.get("format", "messages") != "messages":
            raise ArgumentError(
                "field=, system_field=, format=: gm.Instruction has a key for each part of a conversation; leave them "
                "out"
            )
        super().__init__(instruction, **options)
        for name, key in {"instruction": instruction, "input": input, "output": output, "system": system}.items():
            if key is not None or name in ("instruction", "output"):
                checks.text(name, key)
            object.__setattr__(self, name, key)

    @property
    def columns(self) -> tuple[str | None, str | None, str | None]:
        """The keys of input, output and system prompt, without that of the output where a conversation ends before."""
        return self.input, None if self.add_generation_prompt else self.output, self.system


@dataclass(frozen=True, init=False)
class Completion:
    """A prompt and its completion, of which the completion is trained on.

    Two strings are joined as they are, and the EOS token after them is trained on, too. The joined text is encoded as a
    whole: a token that begins in the prompt belongs to it.

    Two lists of messages are one conversation, rendered by a chat template, and the assistant's messages of the
    completion are trained on, as in `Chat`. They are lists if the first record has some, or options say so; a record of
    the other kind is a bad one.

    Attributes:
      prompt_field: key of the record that holds the prompt.
      completion_field: key of the record that holds the completion.
      on_untrained: what becomes of a record without any trained token: `"error"`: it is a bad record; `"drop"`: it is
        left out and counted as filtered.
      fields: values of other keys that travel with the sample, as of `Text`.
      options: of lists of messages, those of `Chat` by name: `template`, `tools`, `date` and so on, but for `field`,
        `format`, `samples`, `train_on` and `add_generation_prompt`.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    prompt_field: str = "prompt"
    completion_field: str = "completion"
    on_untrained: Literal["error", "drop"] = "error"
    fields: Mapping[str, Field] | None = None
    options: Mapping[str, Any] = dataclass_field(default_factory=dict, init=False, hash=False)

    def __init__(
        self,
        prompt_field: str = "prompt",
        completion_field: str = "completion",
        on_untrained: Literal["error", "drop"] = "error",
        fields: Mapping[str, Field] | None = None,
        **options: Any,
    ) -> None:
        checks.text("prompt_field", prompt_field)
        check_fields(fields, per_sample=True)
        checks.text("completion_field", completion_field)
        checks.choice("on_untrained", on_untrained, _CHOICES["on_untrained"])
        own = {"field", "format", "samples", "train_on", "add_generation_prompt"} & options.keys()
        if own:
            raise ArgumentError(
                f"{min(own)}=: the messages of a gm.Completion are trained on its completion; leave it out"
            )
        values = {"prompt_field": prompt_field, "completion_field": completion_field, "on_untrained": on_untrained}
        for name, value in (values | {"fields": fields, "options": options}).items():
            object.__setattr__(self, name, value)
        if options:
            self.chat()

    def chat(self) -> Chat:
        """The conversation whose first messages are the prompt."""
        return Chat(self.prompt_field, on_untrained=self.on_untrained, fields=self.fields, **self.options)


@dataclass(frozen=True)
class Preference:
    """Two answers to one prompt, of which one was chosen and one rejected: both in one row, next to each other.

    They are the segments 2k - 1, chosen, and 2k, rejected, of their row, and neither cut nor separated. The array
    `pair`, int32 `[rows, max_segments]`, has at `[r, s]` the number k of the pair that segment s + 1 is one of, from 1,
    and 0 behind the last one. A pair is one sample in `stats()`; in `provenance` the offsets of the rejected one
    count on behind the chosen one's.

    `packing` is `"best_fit"`, and `truncation` `"drop"` or `"error"`, for pairs longer than a row.

    Attributes:
      chosen: what the chosen conversation, or completion, is made of: `Chat` or `Completion`. Its `fields` are the
        values of its segment.
      rejected: the same of the rejected one.

    Raises:
      ArgumentError: they differ in kind, or are several samples each.
      ArgumentTypeError: a value is of the wrong type.
    """

    chosen: "Chat | Completion"
    rejected: "Chat | Completion"

    def __post_init__(self) -> None:
        for name in ("chosen", "rejected"):
            half = getattr(self, name)
            if not isinstance(half, (Chat, Completion)):
                raise checks.wrong_type(name, half, "gm.Chat or gm.Completion")
            if isinstance(half, Chat) and half.samples != "conversation":
                raise ArgumentError(f"{name}: samples={half.samples!r}: a pair has one of each; leave samples= out")
        if isinstance(self.chosen, Chat) != isinstance(self.rejected, Chat):
            raise ArgumentError("rejected: expected the same kind of sample as chosen, gm.Chat or gm.Completion")


ID_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")


@dataclass(frozen=True)
class Tokens:
    """Ready ids: a list of integers of a record, from 0 to 2**31 - 1, and what travels with each of them.

    Nothing is encoded, and no tokenizer is needed. `eos` and `bos` are added only where they are given as ids, and not
    to an empty list; an EOS is trained on if the id before it is.

    Files of ids alone are read, too: Megatron's `.bin` with its `.idx` beside it, of which the sequences of a document
    are one sample; and arrays of one axis, `.npy` as NumPy saves them, or with `dtype` numbers without a head, lowest
    byte first, in files named `.npy` or `.bin`. `eos` is the border there: each document ends with it, it is not added
    again, and what follows the last one is a document.

    Attributes:
      field: key of the record that holds the ids.
      loss_mask: key of a list that says of each id whether it is trained on: 0 and 1, or booleans. None: all are.
      labels: or key of a list that has the id itself where it is trained on, and -100 elsewhere, not shifted.
      fields: values that travel with each id, or with the sample, by the names of their arrays: `Field`.
      dtype: the type of the numbers in files without a head, such as `"uint16"`.
      on_untrained: what becomes of a sample without any trained id: `"error"`: it is a bad record; `"drop"`: it is left
        out and counted as filtered.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    field: str = "input_ids"
    loss_mask: str | None = None
    labels: str | None = None
    fields: Mapping[str, Field] | None = None
    dtype: str | None = None
    on_untrained: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        checks.text("field", self.field)
        for name in ("loss_mask", "labels"):
            if (key := getattr(self, name)) is not None:
                checks.text(name, key)
        if self.loss_mask is not None and self.labels is not None:
            raise ArgumentError(
                f"labels={self.labels!r}: loss_mask={self.loss_mask!r} says what is trained on; leave one of them out"
            )
        check_fields(self.fields, per_sample=False)
        if self.dtype is not None:
            checks.choice("dtype", self.dtype, ID_DTYPES)
        checks.choice("on_untrained", self.on_untrained, _CHOICES["on_untrained"])


@dataclass(frozen=True)
class ImageText:
    """Images with a text or a conversation: of WebDataset's samples in tars that are not compressed, or of records.

    Records of Parquet, Arrow and JSONL have images under keys: bytes, an object of `bytes` and `path` as `datasets`
    writes it, a path or URL, a data URL, base64, or a list of these; or in the parts of their messages. Images that are
    in a record stay in memory, as their file has them, until their row is complete.

    A sample is never cut. Images are known by their headers until a row is packed, and then decoded straight into the
    batch. Their tokens are never trained on.

    - With a text all other tokens are trained on, and EOS. A text that holds `<image>` has its images there, as many as
      the sample has; any other one has them in front.
    - A completion likewise; it is trained on, and its prompt is not.
    - A conversation is rendered by its chat template, in which each image is a part `{"type": "image"}`; `<image>` in
      a message stands for such a part. Where parts name members, as `"image": "left.jpg"`, their images are these, else
      those of the sample in order. With `format="chatml"` the images of a message come before its text, whose
      pieces are stripped of spaces, as in Megatron-Bridge.

    With a `VideoModel`, samples have videos in place of images: `<video>`, and parts of type video. Rows hold them in
    the arrays of images. Otherwise videos are not read, and audio never: `<video>`, `<audio>` and parts of such types
    are bad records, and so is a text beside a video or sound without an image.

    A sample whose placeholders do not match its images, or that does not fit into a row (`sequence_length`,
    `max_images`, `max_patches`), is a bad record; with `truncation="drop"` one that does not fit is left out and
    counted as filtered. An image that turns out to be damaged when it is decoded stops the run, or with
    `on_error="quarantine"` becomes zeros: its sample stays in the row, is not trained on, is listed, and counted as
    `undecodable`.

    Attributes:
      model: what becomes of an image: a name such as `"qwen3-vl"` or `"gemma3"`, an `ImageModel`, or an
        `ImageFunction`, which makes pixels in Python, or a `VideoModel`.
      fields: parts of a sample by their extensions: `"images"`, a list such as `["jpg", "png"]`, of which each
        stands for all extensions that end in it (`0.jpg`, `left.jpg`) and one with a dot for itself; and `"text"`
        or `"conversation"`, such as `"txt"` or `"json[caption]"`. None: those of an `EnergonFolder`'s dataset.yaml;
        else all images, and the text or conversation that the first record has, which is logged. Images of a tar are in
        the natural order of their extensions; `jpgs` is a pickled list of `bytes`, of which nothing is unpickled.
        Records have keys in place of extensions: `"images"` are those of images, in this order; else `images` and
        `image`.
      text: `Text`, `Chat`, `Instruction`, `Completion` or `Preference` of these; None: as `fields` says.
      record: the function that makes of the parts of a record the one whose keys `text` names, by default those of
        `Chat`. None: the record itself, or what a folder's sample type says.
      max_images: the most images of a row.
      images: `"uint8"`: resized pixels; `"float32"`: normalized ones, those of the model's processor in
        `transformers`.
      mrope: whether positions are those of Qwen-VL's M-RoPE, with three axes.
      max_patches: of models that take images in their own size, the most patches of a row. None: as many as the tokens
        of a row can stand for.
      image_token: the token of images, of models whose name does not say it, such as LLaVA's `"<image>"`.
      image_root: the folder, or URL in a store, from which relative paths of images start; None: that of their shard.
        It is no part of the fingerprint, so images may move.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    model: "str | ImageModel | ImageFunction | VideoModel"
    fields: "Mapping[str, Any] | None" = None
    text: "Text | Chat | Completion | Preference | None" = None
    max_images: int = 8
    images: Literal["uint8", "float32"] = "uint8"
    mrope: bool = False
    max_patches: int | None = None
    image_token: str | None = None
    image_root: str | None = None
    record: RecordFunction | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, (str, ImageModel, ImageFunction, VideoModel)):
            kinds = "a name, a gm.ImageModel, a gm.ImageFunction or a gm.VideoModel"
            raise checks.wrong_type("model", self.model, kinds)
        if self.text is not None and not isinstance(self.text, (Text, Chat, Completion, Preference)):
            raise checks.wrong_type(
                "text", self.text, "gm.Text, gm.Chat, gm.Instruction, gm.Completion, gm.Preference or None"
            )
        if self.record is not None and not isinstance(self.record, RecordFunction):
            raise checks.wrong_type("record", self.record, "gm.RecordFunction or None")
        if isinstance(self.text, Chat) and self.text.samples != "conversation":
            raise ArgumentError(
                f"samples={self.text.samples!r}: a conversation with images is one sample; leave samples= out"
            )
        if isinstance(self.text, Text) and self.text.fim is not None:
            raise ArgumentError(
                f"text={self.text!r}: texts with images are not cut for fill-in-the-middle; leave fim= out"
            )
        checks.integer("max_images", self.max_images, 1, 2**16)
        checks.optional_integer("max_patches", self.max_patches, 1, 2**24)
        checks.choice("images", self.images, ("uint8", "float32"))
        checks.boolean("mrope", self.mrope)
        if self.image_token is not None:
            checks.text("image_token", self.image_token)
        if self.image_root is not None:
            object.__setattr__(self, "image_root", checks.path("image_root", self.image_root))
        self._check_fields()

    def _check_fields(self) -> None:
        if self.fields is None:
            return
        if not isinstance(self.fields, Mapping):
            raise checks.wrong_type("fields", self.fields, "a dict of parts by name, or None")
        medium = medium_of(self)
        if unknown := self.fields.keys() - {medium, "text", "conversation"}:
            raise ArgumentError(f"fields={sorted(unknown)!r}: expected {medium}, and text or conversation")
        if {"text", "conversation"} <= self.fields.keys():
            raise ArgumentError("fields: expected a text or a conversation, got both")
        if self.record is not None and self.fields.keys() - {medium}:
            raise ArgumentError(f"fields={sorted(self.fields)!r}: text= names keys of what record= makes; leave it out")
        for name, value in self.fields.items():
            if name != medium:
                checks.text(f"fields[{name!r}]", value)
            elif not isinstance(value, str):
                for extension in checks.items(f"fields[{medium!r}]", value, "a list of extensions"):
                    checks.text(f"fields[{medium!r}]", extension)


def medium_of(sample: ImageText) -> Literal["images", "videos"]:
    """The key of `fields=` by which a sample names its images, or its videos."""
    return "videos" if isinstance(sample.model, VideoModel) else "images"


Sample: TypeAlias = Text | Chat | Completion | Preference | Tokens | ImageText


def check(name: str, value: Any) -> Sample | None:
    """The value of the argument `sample`.

    Raises:
      ArgumentTypeError: it is no sample.
    """
    if value is None or isinstance(value, (Text, Chat, Completion, Preference, Tokens, ImageText)):
        return value
    raise checks.wrong_type(
        name, value, "gm.Text, gm.Chat, gm.Instruction, gm.Completion, gm.Preference, gm.Tokens, gm.ImageText or None"
    )


def halves_of(sample: Any) -> list[Any]:
    """The chosen and the rejected sample of a pair, also of one with images; else its text, or the sample itself."""
    of = sample.text if isinstance(sample, ImageText) else sample
    return [of.chosen, of.rejected] if isinstance(of, Preference) else [of]


def fields_of(sample: Sample | None) -> list[CarriedField]:
    """The fields of a sample as the core takes them, with that of the weights of messages."""
    of, *rejected = halves_of(sample)
    if rejected:
        return union({"chosen": fields_of(of), "rejected": fields_of(*rejected)})
    found = carried(of.fields) if of is not None else []
    options = of.options if isinstance(of, Completion) else vars(of) if isinstance(of, Chat) else {}
    if options.get("train_key") is not None:
        found.append(CarriedField(name="weight", key=None, dtype="float32", shape=(), per="token", is_weight=True))
    return found


def check_ends(values: Mapping[str, Any]) -> None:
    """Checks that no tokens are put around conversations.

    Raises:
      ArgumentError: `eos` or `bos` names one.
    """
    for name in ("eos", "bos"):
        if values[name] is not False:
            raise ArgumentError(
                f"{name}={values[name]!r}: the chat template writes the tokens around a conversation; leave it out"
            )
