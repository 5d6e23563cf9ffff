"""`gristmill inspect prompts`: prompts of a shard, rendered, token by token."""

from collections.abc import Mapping
from typing import Any

from gristmill._mixture.mixture import Mixture
from gristmill._prompts.arguments import ARGUMENTS
from gristmill._prompts.batches import PADDING, ids_of
from gristmill._prompts.dataset import PromptDataset, sequence_of, spec_of
from gristmill._prompts.sequence import BatchSequence
from gristmill._sample.named import make_of
from gristmill._sample.samples import Chat, Completion, Text
from gristmill._shards.address import Address
from gristmill._spec.arguments import LARGEST_LENGTH
from gristmill._state import prompt_states
from gristmill._tokenizer.encoder import Encoder
from gristmill._tokenizer.spelling import spelling
from gristmill._util.text import counted, format_columns
from gristmill.errors import ArgumentError

# Arguments of a dataset that the commands set by other options.
_SET_ALREADY = frozenset({"shards", "tokenizer", "prompt", "storage_options", "full_prompts"})


def dataset_of(
    shards: Address | Mixture,
    settings: Mapping[str, Any],
    encoder: Encoder,
    *,
    sample: Any = None,
    **defaults: Any,
) -> PromptDataset:
    """The prompts that options of a command name.

    Args:
      shards: paths and globs, or a mixture.
      settings: arguments of `PromptDataset`; without a `sample` also of `gm.Chat`, whose `field` and
        `add_generation_prompt` have the defaults of prompts.
      encoder: the tokenizer.
      sample: what a prompt is made of, if it is no such conversation.
      defaults: arguments of `PromptDataset` that settings replace.

    Raises:
      GristmillError: a setting is not allowed, or see `PromptDataset`.
    """
    names = ARGUMENTS.keys() - _SET_ALREADY
    own = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    if sample is None:
        sample = make_of(Chat, {"field": "prompt", "add_generation_prompt": True, **others}, "--set")
    elif others:
        raise ArgumentError(f"--set {min(others)}: PromptDataset has no such argument, or another option sets it")
    elif not isinstance(sample, Chat | Completion | Text):
        raise ArgumentError("--sample: a prompt is a text, a chat or a completion")
    given = {"shards": shards} if isinstance(shards, Mixture) else shards.arguments
    return PromptDataset(**given, tokenizer=encoder, prompt=sample, **{**defaults, **own})


def locate(
    dataset: PromptDataset, state: "prompt_states.PromptState | None", *, path: str, step: int | None, row: int
) -> dict[str, Any]:
    """The prompt of a row of a global batch.

    Args:
      dataset: the prompts.
      state: a state of it. None: its start.
      path: where it is, for people.
      step: of the batch, from 0. None: the first one after the state.
      row: of the batch, from 0.

    Returns:
      A dict whose `kind` is "prompt", of one prompt.

    Raises:
      StateError: the state is of another dataset.
      ArgumentError: there is no such row.
    """
    spec, sequence = spec_of(dataset), sequence_of(dataset)
    step = first_step(sequence, state, step)
    if row >= spec.rows_per_batch:
        raise ArgumentError(f"--row {row}: a global batch has the rows 0 to {spec.rows_per_batch - 1}")
    items = sequence.items_of(step)
    if items is None:
        raise ArgumentError(f"there is no step {step}: the stream has ended before it")
    item = int(items[row // spec.num_generations])
    prompts = [] if item == PADDING else [_prompt(dataset, item)]
    return {"kind": "prompt", "path": path, "step": step, "row": row, "prompts": prompts}


def first_step(sequence: BatchSequence, state: "prompt_states.PromptState | None", step: int | None) -> int:
    """The step that is asked for, by default the first after a state, or of the stream if there is none.

    Raises:
      StateError: the state is of another dataset.
    """
    begin = 0 if state is None else sequence.restore(prompt_states.check(state))
    return begin if step is None else step


def inspect(
    shard: Address,
    settings: Mapping[str, Any],
    encoder: Encoder,
    *,
    records: int,
    sample: Any = None,
) -> dict[str, Any]:
    """The first prompts of a shard, as a `PromptDataset` makes them.

    Args:
      shard: the shard.
      settings: see `dataset_of`.
      encoder: the tokenizer.
      records: how many.
      sample: see `dataset_of`.

    Returns:
      A dict whose `kind` is "prompt".

    Raises:
      GristmillError: a setting is not allowed, or a record is bad.
    """
    dataset = dataset_of(
        shard,
        settings,
        encoder,
        sample=sample,
        prompt_length=LARGEST_LENGTH,
        columns=False,
        full_prompts=True,
        layout="ragged",
        max_samples=records,
        threads=1,
    )
    return {"kind": "prompt", "path": shard.name, "prompts": [_prompt(dataset, item) for item in range(len(dataset))]}


def describe(found: dict[str, Any]) -> str:
    """The result of `inspect` for people: the text, and a line for each token."""
    blocks = [] if "row" not in found else [f"row {found['row']:,} of the batch of step {found['step']:,}"]
    if blocks and not found["prompts"]:
        return f"{blocks[0]}: padding"
    for prompt in found["prompts"]:
        rows = [(str(index), str(token["id"]), repr(token["text"])) for index, token in enumerate(prompt["tokens"])]
        table = format_columns([("token", "id", "text"), *rows], right=(0, 1))
        place = f"{prompt['shard']}: record {prompt['record']:,}" if "row" in found else f"record {prompt['record']}"
        place = f"source {prompt['source']}, {place}" if "source" in prompt else place
        blocks.append(f"{place}: {counted(len(rows), 'token')}\n\n{prompt['text']}\n\n{table}")
    return "\n\n".join(blocks) or "no records"


def _prompt(dataset: PromptDataset, item: int) -> dict[str, Any]:
    spec = spec_of(dataset)
    ids = ids_of(spec, int(spec.rows[item]), 0).tolist()
    tokens = [{"id": token, "text": spelling(dataset.encoder, token)} for token in ids]
    shard, record = dataset.source(item)
    source = {} if spec.mixing is None else {"source": spec.source_of(item).name}
    return {**source, "shard": shard, "record": record, "text": dataset.text(item), "tokens": tokens}
