"""The rows of a stream: the arguments that say how they are made, checked together, and their arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import gristmill._core as _core
from gristmill._sample.fields import CarriedField
from gristmill._sample.plans import ImageTextPlan
from gristmill._sample.samples import ImageText, halves_of
from gristmill._spec.arguments import Rows, arguments_of
from gristmill._util import checks
from gristmill.errors import ArgumentError

# Many consumers count the elements of an array in 32 bits.
_MOST_ELEMENTS = 2**31


def make_rows(values: Mapping[str, Any], *, has_sample_fields: bool = False) -> Rows:
    """The rows of a stream with these checked arguments, of a source with this sample.

    Args:
      values: the arguments.
      has_sample_fields: whether rows have arrays of values for each of their segments.

    Raises:
      ArgumentError: they do not go together.
    """
    rows = Rows(**{name: values[name] for name in arguments_of(Rows)})
    if rows.truncation == ("right" if rows.packing == "pad" else "split"):
        rows = replace(rows, truncation=None)  # so that fingerprints leave it out
    if rows.pad_segments_to == 1:
        rows = replace(rows, pad_segments_to=None)
    if rows.pad_segments_to and rows.sequence_length % rows.pad_segments_to:
        raise ArgumentError(
            f"pad_segments_to={rows.pad_segments_to}: expected a number that divides sequence_length="
            f"{rows.sequence_length}"
        )
    if rows.layout == "varlen":
        _check_has_lengths(rows, values["sample"])
    if rows.layout == "varlen" or has_sample_fields:
        rows = _with_bounded_segments(rows)
    if isinstance(values["sample"], ImageText):
        _check_images(rows)
    if len(halves_of(values["sample"])) > 1:
        _check_pairs(rows)
    return rows


def rows_of_images(rows: Rows) -> Rows:
    """The rows as samples with images have them, which are never cut: one that is too long is a bad record."""
    has_no_effect = rows.packing == "best_fit" and rows.truncation in ("right", "error")
    return replace(rows, truncation=None) if has_no_effect else rows


def most_segments(rows: Rows) -> int:
    """The most segments that a row can have."""
    return 1 if rows.packing == "pad" else rows.max_segments or rows.sequence_length


def provenance_entries(provenance: "bool | int", rows: Rows) -> int:
    """The entries of a row's provenance that the argument stands for; 0: rows have none.

    Raises:
      ArgumentError: there are more than tokens of a row.
    """
    length = rows.sequence_length
    if not isinstance(provenance, (bool, np.bool_)):
        return checks.integer("provenance", provenance, 1, length, ", or True or False")
    if not provenance:
        return 0
    most = 1 if rows.packing == "pad" else min(rows.max_segments or _default_segments(length), length)
    return most + 1 if rows.truncation == "middle" else most


def has_mask_of_tokens(rows: Rows) -> bool:
    """Whether rows have a mask of their tokens unless the user says it: where each row has one document.

    Models of `transformers` tell documents of a row apart by their positions, and no longer if there is a mask.
    """
    return rows.packing == "pad" or rows.max_segments == 1


def check_sizes(
    rows: Rows, provenance: int, images: ImageTextPlan | None = None, fields: Sequence[CarriedField] = ()
) -> None:
    """Checks that consumers can count the elements of each array.

    Raises:
      ArgumentError: they cannot.
    """
    segments = most_segments(rows)
    arrays = _core.layout_fields(
        rows.layout, rows.sequence_length, segments, (provenance, 4), images=images, fields=list(fields)
    )
    for field in arrays:
        if (rows.batch_size or 1) * math.prod(field.row_shape) > _MOST_ELEMENTS:
            raise ArgumentError(
                f"batch_size={rows.batch_size}: the array {field.name!r} with rows of shape {list(field.row_shape)} "
                f"would have more than {_MOST_ELEMENTS} elements; lower batch_size=, sequence_length= or "
                + ("max_images= or max_patches=" if images else "provenance=")
            )
    names = [array.name for array in arrays]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"fields[{name!r}]: the batch has an array of that name already; give it another one")


def _with_bounded_segments(rows: Rows) -> Rows:
    """The rows of arrays that have an element for each of their segments."""
    if rows.packing == "pad" or rows.max_segments is not None:
        return rows
    return replace(rows, max_segments=_default_segments(rows.sequence_length))


def _check_has_lengths(rows: Rows, sample: Any) -> None:
    """Checks that the lengths of segments, which `varlen` has, describe the rows."""
    if rows.truncation == "middle":
        raise ArgumentError(
            "truncation='middle': layout='varlen' has lengths of segments, which do not say where one is cut inside; "
            "use 'right', 'left' or 'split', or another layout="
        )
    if isinstance(sample, ImageText) and sample.mrope:
        raise ArgumentError(
            "mrope=True: layout='varlen' has no array of positions, which gm.expand counts from 0 in each segment; use "
            "another layout="
        )


def _default_segments(sequence_length: int) -> int:
    """For how many segments of a row there is room if the user does not say: few rows have more."""
    return min(max(16, sequence_length // 16), sequence_length)


def _check_pairs(rows: Rows) -> None:
    """Checks that pairs are neither cut nor separated."""
    for name, is_wrong, advice in [
        ("packing", rows.packing != "best_fit", "both of a pair are in one row: use 'best_fit'"),
        ("truncation", rows.truncation not in ("drop", "error"), "pairs are never cut: use 'drop' or 'error'"),
        ("boundary_targets", rows.boundary_targets, "nothing is trained from one answer to the other; leave it out"),
        ("max_segments", rows.max_segments == 1, "a pair has two segments; raise it"),
    ]:
        if is_wrong:
            raise ArgumentError(f"{name}={getattr(rows, name)!r}: {advice}")


def _check_images(rows: Rows) -> None:
    """Checks that samples with images are neither cut nor joined."""
    for name, is_wrong, advice in [
        ("packing", rows.packing == "concat", "samples with images are never cut: use 'best_fit' or 'pad'"),
        (
            "truncation",
            rows.truncation not in (None, "right", "error", "drop"),
            "samples with images are never cut: leave it out, or use 'drop'",
        ),
        (
            "boundary_targets",
            rows.boundary_targets,
            "nothing is trained from one sample with images to the next; leave it out",
        ),
    ]:
        if is_wrong:
            raise ArgumentError(f"{name}={getattr(rows, name)!r}: {advice}")
