"""The dataset that MaxText's config describes."""

from collections.abc import Mapping
from typing import Any

from gristmill import Mixture, PackedDataset, Source
from gristmill.integrations.maxtext.settings import (
    MIXTURE_KEYS,
    SOURCE_KEYS,
    STREAM_KEYS,
    TRAINING_KEYS,
    own_settings,
    packing_of,
    sample_of,
    source_name,
)
from gristmill.integrations.maxtext.tokenizers import encoder_of
from gristmill.integrations.maxtext.words import MAXTEXT


def make_dataset(
    config: Any,
    patterns: "Mapping[str, float | tuple[str, float]]",
    columns: list[str],
    *,
    batch_size: int,
    epochs: int | None,
    seed: int | None = None,
    is_training: bool = True,
) -> PackedDataset:
    """The dataset that a config describes.

    Args:
      config: MaxText's.
      patterns: globs and weights of the sources by their names; or weights by glob.
      columns: `["messages"]` with `use_sft`, or the columns that a conversation is made of; else that of the text, or
        with `tokenize_train_data: false` of the ids.
      batch_size: rows of the global batch.
      epochs: passes over the shards.
      seed: that of shuffling. None: in order.
      is_training: whether `lanes`, `seed` and the settings of a mixture have an effect.

    Raises:
      ValueError: the config asks for what is not done here.
      GristmillError: as `PackedDataset`, with the keys of MaxText's config.
    """
    settings = own_settings(config)
    own = sample_of(config, columns, "train_data_columns" if is_training else "eval_data_columns", settings)
    own |= {"epochs": epochs} | {key: settings[key] for key in SOURCE_KEYS if key in settings}
    stream: dict[str, Any] = {"seed": seed}
    stream |= {key: settings[key] for key in (*STREAM_KEYS, *TRAINING_KEYS * is_training) if key in settings}
    mixing = {key: settings[key] for key in MIXTURE_KEYS if key in settings and is_training}
    listed = [(name, *value) if isinstance(value, tuple) else (name, name, value) for name, value in patterns.items()]
    with MAXTEXT.of_errors():
        shards: Any
        if len(patterns) > 1 or mixing:
            shards = Mixture(
                {source_name(name): Source(glob, weight=weight, **own) for name, glob, weight in listed}, **mixing
            )
        else:
            shards = listed[0][1]
            stream |= own
        encoder = encoder_of(config)
        if not config.use_sft and "sample" not in own:  # templates write their own, and ready ids have them
            stream |= {
                "bos": bool(config.add_bos) and encoder.bos_id is not None,
                "eos": None if config.add_eos and encoder.eos_id is not None else False,
            }
        return PackedDataset(
            shards,
            tokenizer=encoder,
            sequence_length=config.max_target_length,
            batch_size=batch_size,
            **packing_of(config),
            **stream,
        )
