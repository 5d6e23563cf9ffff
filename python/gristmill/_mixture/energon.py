"""The sources of a metadataset of Megatron-Energon: a YAML file that blends prepared folders.

splits:
  train:
    blend:
      - {weight: 5, path: ./captions}
      - {weight: 2, path: ./chats, subset: {range: [0%, 75%]}}
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gristmill._mixture import syntax
from gristmill._sample.file_stores import Location, locate
from gristmill._sample.samples import ImageText
from gristmill._shards.address import Address
from gristmill._shards.energon_files import NAMES, check_keys, subflavors_of
from gristmill._shards.energon_folder import EnergonFolder, Subset
from gristmill._shards.place import Place
from gristmill._util import checks
from gristmill._util.local_files import Pathish
from gristmill.errors import ArgumentError, GristmillError

# Keys of a folder, beside its path and its share.
_OF_FOLDER = frozenset({"split_part", "subset", "split_config", "dataset_config", "aux"})
_KINDS = ("path", "blend", "blend_epochized", "datasets")
# Keys that are followed.
FOLLOWED = frozenset(
    {
        *_KINDS,
        *_OF_FOLDER,
        *NAMES,
        "splits",
        "weight",
        "repetitions",
        "range",
        "shuffle_over_epochs_multiplier",
        "fs_path",
    }
)
REFUSED = frozenset({"join", "joiner", "nonmatch"})
_MOST_NESTED = 16
# The splits that Energon evaluates: `get_val_dataset` reads each sample once, whatever a blend says of repetitions.
EVALUATED = frozenset({"val", "test"})


class Weighed(NamedTuple):
    """A folder of a blend.

    Attributes:
      name: its name.
      folder: the folder.
      weight: its weight next to the others.
      passes: how often an epoch of the blend has all of its samples.
      subflavors: what the metadataset and its dataset.yaml call its samples.
      aux: the stores of files beside it.
    """

    name: str
    folder: EnergonFolder
    weight: int
    passes: int
    subflavors: dict[str, Any]
    aux: dict[str, Location]

    def with_aux(self, sample: Any) -> Any:
        """The sample with its stores: those of its record function, or one folder of the images of JSONL.

        Raises:
          ArgumentError: it does not.
        """
        if not self.aux or (isinstance(sample, ImageText) and sample.record is None and sample.image_root is not None):
            return sample
        names = ", ".join(map(repr, self.aux))
        (first, *others) = self.aux.values()
        if isinstance(sample, ImageText) and sample.record is not None:
            own = sample.record.aux or {}
            if twice := sorted(own.keys() & self.aux.keys()):
                raise ArgumentError(
                    f"{self.name}: aux {twice[0]!r} is in the metadataset and in aux= of its gm.RecordFunction; name "
                    "it in one of them"
                )
            aux = {**own, **{name: found.text for name, found in self.aux.items()}}
            return replace(sample, record=replace(sample.record, aux=aux))
        if isinstance(sample, ImageText) and self.folder.are_lines and not others and not first.is_prepared:
            return replace(sample, image_root=str(first.place))
        raise ArgumentError(
            f"{self.name}: its aux {names} is read by record=gm.RecordFunction(...) of gm.ImageText, or where it is "
            "one filesystem:// folder beside JSONL, as that of its images; set record= or image_root=, or leave aux out"
        )


class _Part(NamedTuple):
    folder: EnergonFolder
    weight: Fraction
    passes: int = 1
    is_partial: bool = False
    subflavors: Mapping[str, Any] = MappingProxyType({})
    aux: Mapping[str, Location] = MappingProxyType({})


class _Read(NamedTuple):
    """The parts of metadatasets that are read: a split, once or as often as a blend says, and what nodes around say."""

    split: str
    repeats: bool
    subflavors: Mapping[str, Any] = MappingProxyType({})
    subset: tuple[float, float] | None = None


def read(
    path: Pathish, split: str, *, repeats: bool, storage_options: Mapping[str, str] | None = None
) -> list[Weighed]:
    """The folders of a split.

    Args:
      path: the file.
      split: the split.
      repeats: whether an epoch has the samples of a folder as often as `repetitions` says; else once.
      storage_options: how stores are reached.

    Raises:
      ArgumentError: the file is no metadataset, or uses what is not offered.
      GristmillError: it cannot be read, or a folder is not as `EnergonFolder` says.
    """
    file = Place(Address.of(checks.path("path", path), storage_options=storage_options))
    found = [*_of_file(file, _Read(checks.text("split", split), repeats), Fraction(1), 0)]
    if not found:
        raise ArgumentError(f"{file}: split={split!r}: expected a folder with a weight above 0 in it, found none")
    scale = math.lcm(*(part.weight.denominator for part in found))
    whole = [int(part.weight * scale) for part in found]
    least = math.gcd(*whole)
    named: dict[str, Weighed] = {}
    for part, weight in zip(found, whole, strict=True):
        own = Path(os.path.normpath(part.folder.path)).name.removesuffix(".jsonl")
        base = re.sub(r"[^A-Za-z0-9_-]", "_", own)[:40] or "folder"
        name = next(name for name in _names(f"{base}-part" if part.is_partial else base) if name not in named)
        named[name] = Weighed(name, part.folder, weight // least, part.passes, dict(part.subflavors), dict(part.aux))
    return [*named.values()]


def splits_of(path: Pathish, storage_options: Mapping[str, str] | None = None) -> "list[str] | None":
    """The names of the splits of a metadataset; None if the file is no metadataset, or is not there.

    Raises:
      ArgumentError: it is one that is not read.
      GristmillError: the store cannot be reached.
    """
    file = Place(Address.of(checks.path("path", path), storage_options=storage_options))
    if (content := file.read()) is None:
        return None
    values, _ = syntax.parse(str(file), content)
    return [*map(str, _splits(file, values))] if is_one(values) else None


def is_one(values: Mapping[str, Any]) -> bool:
    """Whether the values of a file are those of a metadataset, and not those of a mixture file."""
    return "splits" in values and "sources" not in values


def _names(base: str) -> Iterator[str]:
    yield base
    number = 2
    while True:
        yield f"{base}-{number}"
        number += 1


def _of_file(file: Place, wanted: _Read, weight: Fraction, depth: int) -> Iterator[_Part]:
    if depth > _MOST_NESTED:
        raise ArgumentError(f"{file}: expected at most {_MOST_NESTED} metadatasets inside of each other, found more")
    content = file.read()
    if content is None:
        raise GristmillError(f"cannot read the metadataset {str(file)!r}: there is no such file")
    splits, split = _splits(file, syntax.parse(str(file), content)[0]), wanted.split
    if split not in splits:
        raise ArgumentError(f"{file}: split={split!r}: expected one of {', '.join(map(repr, splits)) or 'none'}")
    yield from _of_node(file, splits[split], wanted, weight, depth)


def _splits(file: Place, values: dict[str, Any]) -> Mapping[str, Any]:
    """The nodes of a metadataset by their splits."""
    splits = values.get("splits")
    # Energon takes a file without a class for one of the first kind.
    kind = values.get("__class__", "Metadataset")
    if kind not in ("MetadatasetV2", "Metadataset") or not isinstance(splits, Mapping):
        raise ArgumentError(f"{file}: expected a metadataset of Energon, with __class__: MetadatasetV2 and splits")
    check_keys(file, values, ("__module__", "__class__", "splits"))
    return splits


def _of_node(
    file: Place, node: Any, wanted: _Read, weight: Fraction, depth: int, share: str | None = None
) -> Iterator[_Part]:
    """The folders of a path or a blend. `share` is the key of its share in the blend that it is in."""
    values = _values_of(file, node, share)
    # Outer ones win, as in Energon.
    wanted = wanted._replace(subflavors={**subflavors_of(file, node), **wanted.subflavors})
    expected = f"{file}: expected a path, or a blend with weights or repetitions, found"
    if joins := values.keys() & REFUSED:
        raise ArgumentError(
            f"{expected} {', '.join(sorted(joins))}: joins are not offered; write the samples of both into one "
            "folder, or read the other one as aux of a gm.RecordFunction"
        )
    kind = next((kind for kind in _KINDS if kind in values), None)
    if kind is None:
        raise ArgumentError(f"{expected} {', '.join(sorted(map(str, values))) or 'none'}")
    check_keys(file, values, {kind, "subset", *(_OF_FOLDER if kind == "path" else ())})
    if kind != "path":
        wanted = wanted._replace(subset=_share(file, values.get("subset"), wanted.subset))
    else:
        yield from _of_path(file, values, wanted, weight, depth)
        return
    items = values[kind]
    if not isinstance(items, list):
        raise ArgumentError(f"{file}: {kind}: expected a list of paths, found {type(items).__name__}")
    if kind == "blend_epochized":
        yield from _epochized(file, items, wanted, weight, depth)
        return
    weights = [_number(file, item, "weight", "a blend") for item in items]
    if not wanted.repeats and not all(weights):
        weights = [Fraction(1)] * len(items)  # Energon reads all for evaluation, also those of no weight.
    for item, part in zip(items, weights, strict=True):
        if part:
            yield from _of_node(file, item, wanted, weight * part / sum(weights), depth, "weight")


def _values_of(file: Place, node: Any, share: str | None) -> dict[str, Any]:
    """The values of a node that are there and change which samples there are, but for its share."""
    if not isinstance(node, Mapping):
        raise ArgumentError(f"{file}: expected a path or a blend, found {type(node).__name__}")
    times = node.get("shuffle_over_epochs_multiplier", 1)
    if times != 1 or isinstance(times, bool):
        raise ArgumentError(
            f"{file}: shuffle_over_epochs_multiplier: expected 1, each sample once an epoch, found {times!r}: leave it "
            "out; seed=None of gm.PackedDataset reads in order"
        )
    left_out = {*NAMES, "shuffle_over_epochs_multiplier", share}
    return {key: value for key, value in node.items() if key not in left_out and value is not None}


def _of_path(file: Place, values: Mapping[str, Any], wanted: _Read, weight: Fraction, depth: int) -> Iterator[_Part]:
    """The folder of a path, or those of another metadataset."""
    for key in values.keys() - {"subset", "aux"}:
        if not isinstance(values[key], str):
            raise ArgumentError(f"{file}: {key}: expected text, found {values[key]!r}")
    given, part = values["path"], values.get("split_part", wanted.split)
    place = file.parent / given
    path = str(place) if "://" in str(place) else os.path.normpath(str(place))
    if not syntax.is_mixture_file(path):
        configs = {key: values.get(key) for key in ("split_config", "dataset_config")}
        subset: Any = _subset(file, values.get("subset"))
        if wanted.subset is not None and subset is not None and not isinstance(subset[0], float):
            subset = Subset(subset, wanted.subset)
        elif wanted.subset is not None:
            subset = _share(file, values.get("subset"), wanted.subset)
        options = dict(file.address.options)
        try:
            folder = EnergonFolder(path, split=part, subset=subset, storage_options=options, **configs)
        except ArgumentError as error:
            raise error.reworded(lambda text: f"{file}: {given}: {text}") from None
        aux = _aux(file, values.get("aux") or {})
        yield _Part(folder, weight, subflavors={**folder.subflavors, **wanted.subflavors}, aux=aux)
        return
    wanted = wanted._replace(subset=_share(file, values.get("subset"), wanted.subset))
    if others := sorted(values.keys() & {"split_config", "dataset_config", "aux"}):
        raise ArgumentError(f"{file}: {others[0]} of another metadataset is not offered: name it at its folders")
    yield from _of_file(Place(file.address.at(path)), wanted._replace(split=part), weight, depth + 1)


def _aux(file: Place, given: Any) -> dict[str, Location]:
    """The stores of files beside a folder."""
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{file}: aux: expected folders by name, found {given!r}")
    try:
        return {str(name): locate(str(name), one, file.parent) for name, one in given.items()}
    except ArgumentError as error:
        raise error.reworded(lambda text: f"{file}: {text}") from None


def _epochized(file: Place, items: list[Any], wanted: _Read, weight: Fraction, depth: int) -> Iterator[_Part]:
    """The folders of a blend whose epoch has each sample so often: weighed by the samples that they give to it."""
    parts: list[_Part] = []
    for item in items:
        times = _number(file, item, "repetitions", "blend_epochized")
        found = [*_of_node(file, item, wanted, Fraction(1), depth, "repetitions")]
        if not wanted.repeats:
            parts += (part._replace(weight=Fraction(len(part.folder))) for part in found)
            continue
        if len(found) != 1 or found[0].passes != 1 or found[0].is_partial:
            raise ArgumentError(f"{file}: repetitions of a blend are not offered: name them at its folders")
        (folder,) = (part.folder for part in found)
        whole, rest = divmod(math.floor(times * len(folder)), len(folder))
        if whole:
            parts.append(found[0]._replace(weight=Fraction(whole * len(folder)), passes=whole))
        if rest:
            parts.append(found[0]._replace(folder=folder.part(rest), weight=Fraction(rest), is_partial=True))
    total = sum(part.weight for part in parts)
    if not total:
        raise ArgumentError(f"{file}: expected repetitions that give a sample, found none in blend_epochized")
    yield from (part._replace(weight=weight * part.weight / total) for part in parts)


def _number(file: Place, item: Any, key: str, blend: str) -> Fraction:
    value = item.get(key, 1) if isinstance(item, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ArgumentError(f"{file}: expected {key} from 0 on in each item of {blend}, found {value!r}")
    return Fraction(str(value))


def _subset(file: Place, subset: Any) -> "tuple[float, float | None] | None":
    """The range of a subset: `[0%, 80%]`, `[0, 1000]` or `[1422, end]`."""
    if subset is None:
        return None
    ends = subset.get("range") if isinstance(subset, Mapping) and len(subset) == 1 else None
    if not isinstance(ends, list) or len(ends) != 2:
        raise ArgumentError(f"{file}: expected a subset with a range of two numbers, found {subset!r}")
    low, high = (_end(file, end) for end in ends)
    if low is None:
        raise ArgumentError(f"{file}: expected a number or a percentage as the start of a range, found 'end'")
    if high is not None and isinstance(low, float) != isinstance(high, float):
        raise ArgumentError(f"{file}: expected two numbers or two percentages in a range, found {ends!r}")
    return low, high


def _share(file: Place, subset: Any, around: tuple[float, float] | None) -> tuple[float, float] | None:
    """The fractions of a subset within those of the nodes around it, in Energon's order of additions."""
    own = _subset(file, subset)
    if own is None:
        return around
    low, high = own
    if not isinstance(low, float):
        raise ArgumentError(
            f"{file}: expected percentages in a subset of a blend or another metadataset, found {subset!r}: name "
            "numbers of samples at its folders"
        )
    high = 1.0 if high is None else high
    first, last = around or (0.0, 1.0)
    return low + first * (high - low), low + last * (high - low)


def _end(file: Place, end: Any) -> float | None:
    if isinstance(end, str) and end.strip() == "end":
        return None
    if isinstance(end, str) and (found := re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*%\s*", end)):
        return float(found[1]) / 100
    if isinstance(end, int) and not isinstance(end, bool):
        return end
    raise ArgumentError(f"{file}: expected a number, a percentage or end in a range, found {end!r}")
