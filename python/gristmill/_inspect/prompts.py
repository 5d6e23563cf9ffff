"""`gristmill inspect --prompt`: prompts of a shard, rendered, token by token."""

from collections.abc import Mapping
from typing import Any

from gristmill._prompts.dataset import PromptDataset
from gristmill._sample.named import make_of
from gristmill._sample.samples import Chat
from gristmill._shards import stores
from gristmill._spec.arguments import LARGEST_LENGTH
from gristmill._tokenizer.encoder import Encoder
from gristmill._tokenizer.spelling import spelling
from gristmill._util.text import counted, format_columns


def inspect(
    path: str,
    settings: Mapping[str, Any],
    encoder: Encoder,
    *,
    records: int,
    storage_options: stores.StorageOptions | None = None,
) -> dict[str, Any]:
    """The first prompts of a shard, as a `PromptDataset` makes them.

    Args:
      path: the shard.
      settings: values of `gm.Chat`; `field` and `add_generation_prompt` have the defaults of prompts.
      encoder: the tokenizer.
      records: how many.
      storage_options: how stores are reached.

    Returns:
      A dict whose `kind` is "prompt".

    Raises:
      GristmillError: a setting is not allowed, or a record is bad.
    """
    settings = {"field": "prompt", "add_generation_prompt": True, **settings}
    dataset = PromptDataset(
        path,
        tokenizer=encoder,
        storage_options=dict(storage_options or ()),
        prompt=make_of(Chat, settings, "--set"),
        prompt_length=LARGEST_LENGTH,
        columns=False,
        full_prompts=True,
        layout="ragged",
        max_samples=records,
        threads=1,
    )
    return {"kind": "prompt", "path": path, "prompts": [_prompt(dataset, item) for item in range(len(dataset))]}


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people: the text, and a line for each token."""
    blocks = []
    for prompt in found["prompts"]:
        rows = [(str(index), str(token["id"]), repr(token["text"])) for index, token in enumerate(prompt["tokens"])]
        table = format_columns([("token", "id", "text"), *rows], right=(0, 1))
        blocks.append(f"record {prompt['record']}: {counted(len(rows), 'token')}\n\n{prompt['text']}\n\n{table}")
    return "\n\n".join(blocks) or "no records"


def _prompt(dataset: PromptDataset, item: int) -> dict[str, Any]:
    found = dataset[item]
    tokens = [{"id": token, "text": spelling(dataset.encoder, token)} for token in found["ids"].tolist()]
    return {"record": dataset.source(item)[1], "text": found["full_prompts"], "tokens": tokens}
