"""MaxText's config, with the key `gristmill` for what MaxText has no key for, as arguments of gristmill.

In a YAML file of MaxText's:

    gristmill:
      stop_tokens: ["<|im_end|>"]
      on_error: quarantine
"""

import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill import Chat, Instruction, Tokens

# Arguments of `gm.Chat`.
CHAT_KEYS = (
    "date", "final_stop", "none_fields", "on_lost_reasoning", "on_untrained", "special_tokens_in_content",
    "stop_tokens", "string_arguments", "system_field", "template_kwargs", "tools", "train_empty_reasoning",
    "train_reasoning", "train_tool_calls",
)  # fmt: skip
# Arguments of `gm.Source` and `gm.PackedDataset` alike.
SOURCE_KEYS = (
    "cache_bytes", "cache_dir", "io_bytes", "keep", "max_document_bytes", "max_error_rate", "on_error",
    "shuffle_window", "split_bytes", "storage_options",
)  # fmt: skip
# Arguments of `gm.PackedDataset` alone; the others for training only.
STREAM_KEYS = ("boundary_targets", "fit_window", "prefetch", "threads", "verify")
TRAINING_KEYS = ("lanes", "seed", "skip")
# Arguments of `gm.Mixture`, for training only.
MIXTURE_KEYS = ("on_exhausted", "stages", "weights_by")
KEYS = (*CHAT_KEYS, *SOURCE_KEYS, *STREAM_KEYS, *TRAINING_KEYS, *MIXTURE_KEYS)

# The columns of conversations: their names, as MaxText's Grain pipeline takes them, and Alpaca's.
_COLUMNS: tuple[tuple[str | None, ...], ...] = (
    ("prompt", None, "completion"),
    ("question", None, "answer"),
    ("instruction", None, "output"),
    ("instruction", "input", "output"),
)
# The characters that the name of a source may not have.
_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST_NAME = 64


def own_settings(config: Any) -> dict[str, Any]:
    """The values under the key `gristmill`.

    Raises:
      ValueError: a key is unknown, or has no effect.
    """
    found = getattr(config, "gristmill", None) or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"gristmill={found!r}: expected a dict of settings, such as {{'on_error': 'quarantine'}}")
    if unknown := sorted(map(str, found.keys() - set(KEYS))):
        raise ValueError(f"gristmill: unknown keys {', '.join(unknown)}; the known ones are {', '.join(sorted(KEYS))}")
    if not config.use_sft and (unused := [key for key in CHAT_KEYS if key in found]):
        raise ValueError(f"gristmill.{unused[0]}: has an effect with use_sft alone; leave it out")
    return dict(found)


def check(config: Any) -> None:
    """Refuses what is not done here.

    Raises:
      ValueError: the config asks for it.
    """
    advice = {
        "use_dpo": "use gm.PromptDataset with layout='tunix', see docs/coming-from-maxtext.md",
        "use_multimodal": "use gm.ImageText in a loop of your own",
        "colocated_python_data_input": "its iterator runs in another process than the one that calls it; leave it out",
        "is_offline_distillation": "the teacher's top k are not read; keep MaxText's own pipeline",
        "formatting_func_path": "format the records beforehand, or name their columns in train_data_columns",
    }
    for name, instead in advice.items():
        if getattr(config, name, False):
            raise ValueError(f"{name}={getattr(config, name)!r}: not with gristmill: {instead}")
    for name in ("tokenize_train_data", "tokenize_eval_data"):
        if not getattr(config, name, True) and config.use_sft:
            raise ValueError(f"{name}=false: conversations are rendered and encoded here; leave it out with use_sft")


def sample_of(config: Any, columns: list[str], name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say what a record becomes.

    Args:
      config: MaxText's.
      columns: the names of the columns.
      name: the key of the config that has them.
      settings: those of the key `gristmill`.

    Raises:
      ValueError: there are no such columns.
    """
    if not config.use_sft:
        if len(columns) != 1:
            raise ValueError(f"{name}={columns}: expected one column, that of the text; several need use_sft")
        is_text = getattr(config, "tokenize_train_data" if name == "train_data_columns" else "tokenize_eval_data", True)
        return {"text_field": columns[0]} if is_text else {"sample": Tokens(columns[0])}
    options = {key: settings[key] for key in CHAT_KEYS if key in settings}
    options["template"] = _template(config)
    options.setdefault("string_arguments", "keep")
    options["train_on"] = "assistant" if config.sft_train_on_completion_only else "all"
    if list(columns) == ["messages"]:
        return {"sample": Chat("messages", **options)}
    for keys in _COLUMNS:
        if set(columns) == {key for key in keys if key}:
            return {"sample": Instruction(*keys, **options)}  # type: ignore[arg-type]  # the first and last are no None
    known = [["messages"], *([key for key in keys if key] for keys in _COLUMNS)]
    raise ValueError(f"{name}={columns}: expected one of {', '.join(map(str, known))} with use_sft")


def _template(config: Any) -> str | None:
    """The chat template, where the config has one: its text, or that of a file.

    Raises:
      ValueError: there is no such file, or no template in it.
    """
    path: str = getattr(config, "chat_template_path", "")
    if config.chat_template or not path:
        return config.chat_template or None
    package = importlib.util.find_spec("maxtext")
    # MaxText's own templates are named from the folder that its package is in.
    folders = [Path(), *(Path(found).parent for found in (package and package.submodule_search_locations) or ())]
    file = next((folder / path for folder in folders if (folder / path).is_file()), None)
    if file is None:
        raise ValueError(f"chat_template_path={path!r}: no such file in {', '.join(map(str, folders))}")
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        text = json.loads(text).get("chat_template")
        if not text:
            raise ValueError(f"chat_template_path={path!r}: expected a JSON object with the key chat_template")
    return text


def sources_of(files: str, mixture_file: str | None = None) -> dict[str, tuple[str, float]]:
    """Globs and weights by names, as MaxText writes them: `a*.parquet`, `a*,0.3;b*,0.7`, or a JSON file of a mixture.

    Sources have the names of that file, and else are called as their globs; other characters than a source may have in
    its name become `_`.

    Raises:
      ValueError: a part has no weight, or two have one name.
    """
    if mixture_file:
        parts = json.loads(Path(mixture_file).read_text(encoding="utf-8"))
        listed = [(name, part["path"], part["weight"]) for name, part in parts.items()]
    elif ";" in files:
        if not all(re.fullmatch(r"[^,]+,[\s\d.eE+-]+", part) for part in files.split(";")):
            raise ValueError(f"grain_train_files={files!r}: expected glob,weight;glob,weight")
        pairs = [part.split(",") for part in files.split(";")]
        listed = [(glob, glob, weight) for glob, weight in pairs]
    else:
        listed = [(files, files, 1.0)]
    named = {source_name(name): (pattern, float(weight)) for name, pattern, weight in listed}
    if len(named) < len(listed):
        raise ValueError(
            f"the sources {', '.join(name for name, *_ in listed)} would not have names of their own, of at most "
            f"{_LONGEST_NAME} letters, digits, _, - and .: name them in grain_train_mixture_config_path"
        )
    return named


def source_name(name: str) -> str:
    """A name that a source may have."""
    return _NAME.sub("_", name)[-_LONGEST_NAME:]


def packing_of(config: Any) -> dict[str, Any]:
    """How documents become rows."""
    # MaxText cuts conversations in any case.
    truncation = "right" if config.use_truncation or config.use_sft else "split"
    if not config.packing:
        return {"packing": "pad", "truncation": truncation}
    packing = "concat" if config.grain_packing_type == "concat_then_split" else "best_fit"
    most = config.max_segments_per_seq
    return {"packing": packing, "truncation": truncation, "max_segments": most if most and most > 0 else None}
