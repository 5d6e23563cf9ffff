"""The compared pipelines over conversations: each renders, encodes and masks them in the function of a `datasets.map`.

They are written as their users write them. Their threads are worker processes, as `map` has them. The work includes
reading the shards, which `datasets` converts to Arrow first.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gristmill._bench.job import Batches, Job

# The ids of a record, and whether each is trained on.
Encode: TypeAlias = "Callable[[dict[str, Any]], dict[str, list[int]]]"

# Values of `gm.Chat` that the others follow, or that change masks only.
_FOLLOWED = frozenset({"kind", "field", "template", "tools", "template_kwargs", "add_generation_prompt"})
_OF_MASKS = frozenset(
    {"train_on", "on_untrained", "stop_tokens", "train_reasoning", "train_tool_calls", "on_lost_reasoning"}
)


def transformers(job: Job) -> Batches:
    """`apply_chat_template`, whose masks are those of the template's `generation` blocks."""
    tokenizer = _tokenizer(job)
    sample = _sample(job)
    tools = sample.get("tools")
    options = {
        "chat_template": job.template,
        "add_generation_prompt": sample.get("add_generation_prompt", False),
        "return_dict": True,
        "return_assistant_tokens_mask": True,
        **(sample.get("template_kwargs") or {}),
    }

    def encode(record: dict[str, Any]) -> dict[str, list[int]]:
        own = record[tools] if isinstance(tools, str) else tools
        found = tokenizer.apply_chat_template(record[sample["field"]], tools=own, **options)
        return {"ids": found["input_ids"], "mask": found["assistant_masks"]}

    return _mapped(job, encode)


def renderers(job: Job) -> Batches:
    """`renderers`, which knows the templates of some models, by their names on the hub."""
    from renderers.base import MODEL_RENDERER_MAP, build_training_sample, create_renderer

    sample = _sample(job)
    if others := sorted(sample.keys() & {"tools", "template_kwargs", "add_generation_prompt"}):
        raise ValueError(f"the benchmark of renderers has no {', '.join(others)}")
    tokenizer, folder = _tokenizer(job), Path(job.tokenizer).absolute().parent.name
    known = [name for name in MODEL_RENDERER_MAP if name.split("/")[-1].lower() == folder.lower()]
    if not known:
        raise ValueError(
            f"renderers finds a model by its name: expected a folder named as one that it knows, such as "
            f"{next(iter(MODEL_RENDERER_MAP)).split('/')[-1]}, found {folder}"
        )
    tokenizer.name_or_path = known[0]
    renderer = create_renderer(tokenizer)

    def encode(record: dict[str, Any]) -> dict[str, list[int]]:
        found = build_training_sample(renderer, record[sample["field"]])
        return {"ids": found.token_ids, "mask": [int(trained) for trained in found.loss_mask]}

    return _mapped(job, encode)


def _sample(job: Job) -> Mapping[str, Any]:
    sample = job.sample or {}
    if others := sorted(sample.keys() - _FOLLOWED - _OF_MASKS):
        raise ValueError(f"it has no counterpart of {', '.join(others)}")
    return {"field": "messages", **sample}


def _tokenizer(job: Job) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(Path(job.tokenizer).parent)


def _mapped(job: Job, encode: Encode) -> Batches:
    import datasets
    import numpy as np
    import pyarrow.compute as compute

    datasets.disable_progress_bars()

    def batches() -> Batches:
        kind = "parquet" if job.shards[0].endswith(".parquet") else "json"
        with tempfile.TemporaryDirectory(dir=job.scratch) as cache:
            records = datasets.load_dataset(kind, data_files=job.shards, split="train", cache_dir=cache)
            processes = job.threads if job.threads > 1 else None
            mapped = records.map(encode, remove_columns=records.column_names, num_proc=processes)
            table = mapped.data.table
            trained = compute.sum(compute.list_flatten(table["mask"])).as_py()
            yield np.asarray(compute.list_flatten(table["ids"])), None
        return {"trained_tokens": trained or 0}

    return batches()
