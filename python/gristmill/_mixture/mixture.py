"""`Mixture`: several sources of one stream, as callers describe them."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gristmill._core as _core
from gristmill._mixture import energon, mixture_file
from gristmill._mixture.mixture_file import MixtureFile
from gristmill._mixture.source import Source, check_weight
from gristmill._mixture.stages import Stage
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill._util.text import shortened
from gristmill.errors import ArgumentError, ArgumentTypeError

_LARGEST_STEP = 2**62


class Mixture:
    """Several sources, of which each row of a batch is of one: the first argument of a `PackedDataset`.

    Or of a `PromptDataset`, in which each prompt is of one source, and nothing is said of lanes.

    The sources of a batch's rows follow from the weights and the row's index in the stream by a rule without chance:
    no batch is more than one row off the weights, and a run hardly at all. The order of the sources does not matter.

    Args:
      sources: the sources by their names, of letters, digits, `_`, `-` and `.`.
      stages: weights from a step on, `[(0, {"web": 0.9, "code": 0.1}), (300_000, {...})]`. A source that a stage does
        not name has the weight 0 there. Until the first stage, the sources' own weights hold. A run may be restored
        with other stages, and other sources in them, from its step on.
      weights_by: what the weights count. `"rows"`: over all lanes. `"tokens"`: those that are not padding, for rows
        that are not full. `"samples"`: documents, conversations and so on whose last token was delivered. Both count in
        each lane, and anew from each stage on.
      on_exhausted: what happens when a source has delivered its last epoch in a lane. `"continue"`: the others share
        its rows by their weights, and the lane ends with the last of them. `"stop"`: the lane ends. `"error"`: the run
        stops once another row of the source is due.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        stages: "Sequence[tuple[int, Mapping[str, float]]] | None" = None,
        weights_by: Literal["rows", "tokens", "samples"] = "rows",
        on_exhausted: Literal["continue", "stop", "error"] = "continue",
    ) -> None:
        self.sources = _checked_sources(sources)
        self.weights_by: str = checks.choice("weights_by", weights_by, _core.WEIGHTS_BY)
        self.on_exhausted: str = checks.choice("on_exhausted", on_exhausted, _core.ON_EXHAUSTED)
        self.stages = _checked_stages(self.sources, stages)

    @classmethod
    def from_file(cls, path: "Pathish") -> "Mixture":
        """The mixture of a mixture file, see docs/mixtures.md.

        The file's other arguments of the stream are left to `PackedDataset.from_file`.

        Args:
          path: the file, of TOML or YAML. Paths in it start from its folder.

        Raises:
          ArgumentError: the file is not valid, has an unknown key, or a value is not allowed.
          ArgumentTypeError: a value is of the wrong type.
          GristmillError: the file cannot be read.
          MissingExtraError: the file is YAML, and PyYAML is not installed.
        """
        return mixture_of(mixture_file.read(path))

    @classmethod
    def from_energon(
        cls,
        path: "Pathish",
        split: str = "train",
        *,
        weights_by: Literal["rows", "tokens", "samples"] = "samples",
        on_exhausted: Literal["continue", "stop", "error"] = "continue",
        repeats: bool | None = None,
        sample: Any = None,
        **source: Any,
    ) -> "Mixture":
        """The mixture of a metadataset of Megatron-Energon (`MetadatasetV2`), read as it is.

        A path, blends of paths with weights, also of other metadatasets, and of folders `split_part`, `subset`,
        `split_config` and `dataset_config`. Energon draws at random; here the shares are exact. A source is named as
        its folder, `captions`, `captions-2` where that is taken. Keys that are not known are errors.

        With `blend_epochized`, an epoch has `floor(repetitions * samples)` samples of each folder: each one as often as
        the whole part says, and for the rest the first ones of each shard, a source of their own that is named
        `captions-part`. The weights are these numbers. With `epochs=1` it is one epoch of the blend, exactly; without,
        the shares are these. For evaluation each sample counts once, as in Energon's `get_val_dataset`.

        Args:
          path: the YAML file, or its URL in a store. Paths in it start from its folder.
          split: which of its splits; the split part of its folders, where the file does not name another one.
          weights_by: what the weights count, in Energon the samples.
          on_exhausted: what happens at the end of a source with finite `epochs`.
          repeats: whether `repetitions` count. None: not in the splits `"val"` and `"test"`.
          sample: the sample of all sources; a dict of samples by the names of sources; or a function that returns the
            sample for the subflavors of a source, a dict.
          source: other arguments of each `Source`, such as `on_error`. `epochs` are those of the blend, and
            `storage_options` say how the stores of the file and of its folders are reached.

        Raises:
          ArgumentError: the file is no metadataset, or has what is not offered: joins, repetitions of blends,
            and keys that are not known; or a sample does not read the `aux` of its folder. Or as
            `EnergonFolder`.
          GristmillError: the file cannot be read.
          MissingExtraError: PyYAML is not installed.
        """
        epochs = checks.optional_integer("epochs", source.pop("epochs", None), 1, 2**32)
        if repeats is None:
            repeats = split not in energon.EVALUATED
        checks.boolean("repeats", repeats)
        folders = energon.read(path, split, repeats=repeats, storage_options=source.pop("storage_options", None))
        if isinstance(sample, Mapping) and sample.keys() != (names := {found.name for found in folders}):
            raise ArgumentError(
                f"sample={sorted(map(str, sample))}: expected a sample for each of the sources {sorted(names)}"
            )
        sources = {}
        for found in folders:
            own = sample(found.subflavors) if callable(sample) else sample
            if isinstance(sample, Mapping):
                own = sample[found.name]
            sources[found.name] = Source(
                found.folder,
                weight=found.weight,
                epochs=epochs and epochs * found.passes,
                sample=found.with_aux(own),
                **source,
            )
        return cls(sources, weights_by=weights_by, on_exhausted=on_exhausted)

    def __repr__(self) -> str:
        return f"<Mixture of {', '.join(self.sources)}>"


def mixture_of(file: MixtureFile) -> Mixture:
    """The mixture of a file.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """
    try:
        return make(file.described)
    except (ArgumentError, ArgumentTypeError) as error:
        raise error.reworded(lambda text: f"{file.path}: {text}") from None


def make(described: Mapping[str, Any]) -> Mixture:
    """The mixture that is described.

    Raises:
      ArgumentError: a value is not allowed.
      ArgumentTypeError: a value is of the wrong type.
    """
    values = dict(described)
    sources = {name: mixture_file.source(name, own) for name, own in values.pop("sources").items()}
    if values.get("stages") is not None:
        values["stages"] = [(stage["step"], stage["weights"]) for stage in values["stages"]]
    return Mixture(sources, **values)


def resolved(described: Mapping[str, Any]) -> dict[str, Any]:
    """A described mixture with the defaults of all that it leaves out."""
    values = _with_defaults(Mixture, described)
    values["sources"] = {name: _with_defaults(Source, own) for name, own in values["sources"].items()}
    # The sources that another one stands for.
    for own in values["sources"].values():
        if own["sample"] is not None:
            own["text_field"] = None
    return values


def _with_defaults(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(kind).parameters.items()
    return {name: values.get(name, parameter.default) for name, parameter in parameters}


def _checked_sources(sources: Any) -> dict[str, Source]:
    if not isinstance(sources, Mapping):
        raise checks.wrong_type("sources", sources, "a dict of gm.Source by name")
    if not sources:
        raise ArgumentError("sources={}: expected at least one source")
    for name, source in sources.items():
        if not isinstance(name, str):
            raise checks.wrong_type("sources", name, "names that are strings")
        if not _core.is_source_name(name):
            raise ArgumentError(
                f"sources: the name {shortened(name)}: expected 1 to 64 of the characters A-Z a-z 0-9 _ - ."
            )
        if not isinstance(source, Source):
            raise ArgumentTypeError(f"sources: {name!r} is a {type(source).__name__}, expected a gm.Source")
    return dict(sources)


def _checked_stages(sources: Mapping[str, Source], stages: Any) -> list[Stage]:
    """All stages, the first from step 0 on."""
    found: list[Stage] = []
    given = [] if stages is None else checks.items("stages", stages, "a list of (step, weights)")
    for stage in given:
        if not (isinstance(stage, Sequence) and len(stage) == 2):
            raise checks.wrong_type("stages", stage, "pairs of a step and a dict of weights")
        step = checks.integer("stages", stage[0], 0, _LARGEST_STEP)
        if found and step <= found[-1].step:
            raise ArgumentError(f"stages: step {step} follows step {found[-1].step}: expected rising steps")
        found.append(Stage(step, _stage_weights(sources, step, stage[1])))
    if not found or found[0].step > 0:
        missing = [name for name, source in sources.items() if source.weight is None]
        if missing:
            raise ArgumentError(
                f"the source {missing[0]!r} has no weight: set weight= of each source, or let stages= begin at step 0"
            )
        found.insert(0, Stage(0, {name: source.weight or 0.0 for name, source in sources.items()}))
    for step, weights in found:
        if not any(weights.values()):
            raise ArgumentError(f"all weights are 0 from step {step} on: expected at least one above 0")
    return found


def _stage_weights(sources: Mapping[str, Source], step: int, weights: Any) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise checks.wrong_type("stages", weights, "a dict of weights by the names of sources")
    if unknown := [name for name in weights if name not in sources]:
        raise ArgumentError(
            f"stages: step {step} names {shortened(unknown[0])}: expected names of sources: {', '.join(sources)}"
        )
    return {name: check_weight(f"stages: the weight of {name!r}", weights.get(name, 0.0)) for name in sources}
