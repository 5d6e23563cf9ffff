"""The run of `gristmill certify`: batches of texts of all kinds in turn, until it has compared enough."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gristmill._certify import certificate, texts
from gristmill._certify.comparison import Comparison
from gristmill._certify.reference import Reference
from gristmill._shards.address import NOWHERE, Address
from gristmill._tokenizer.encoder import Encoder, core_of
from gristmill._tokenizer.options import SpecialTokensInText
from gristmill._util.progress import Progress
from gristmill._util.text import counted
from gristmill.errors import TokenizerError

# Texts of one kind that are compared at once.
_BATCH_TEXTS = 256
_BATCH_CHARACTERS = 2**16
# Given texts are longer than generated ones, and those that matter most.
_GIVEN_CHARACTERS = 2**18


@dataclass(frozen=True)
class Job:
    """The texts that are compared, and for how long.

    Attributes:
      tokenizer: path of the tokenizer.json.
      name: the tokenizer's name in the certificate.
      special_tokens_in_text: as that of `Encoder`.
      texts: paths, globs and URLs of shards, and paths of text files; and how stores are reached.
      text_field: the key of a shard's texts.
      seed: of generated texts.
      documents: how many texts to compare; None: as many as the time allows.
      minutes: how long to compare if `documents` is None.
    """

    tokenizer: Path
    name: str
    special_tokens_in_text: SpecialTokensInText = "id"
    texts: Address = NOWHERE
    text_field: str = "text"
    seed: int = 1
    documents: int | None = None
    minutes: float = 1.0


def load(path: Path, special_tokens_in_text: SpecialTokensInText) -> Encoder:
    """The encoder of a tokenizer.json.

    Raises:
      TokenizerError: it cannot be loaded, or its ids differ from load to load.
    """
    encoder = Encoder.from_file(path, config="ignore", special_tokens_in_text=special_tokens_in_text)
    core = core_of(encoder)
    if core.dropout or core.ambiguous_tokens:
        why = "it has dropout" if core.dropout else "it has two added tokens that normalize alike"
        raise TokenizerError(f"{path}: its ids differ from load to load, because {why}: there is nothing to compare")
    return encoder


def certify(job: Job) -> tuple[dict[str, Any], BaseException | None]:
    """Compares a tokenizer's ids with the reference's.

    Returns:
      The certificate, which docs/json.md describes; and what interrupted the comparison, which is then shorter.

    Raises:
      GristmillError: the tokenizer or a text cannot be read, or the reference is not installed.
    """
    encoder = load(job.tokenizer, job.special_tokens_in_text)
    identity = certificate.identity(encoder)
    reference = Reference(core_of(encoder).json, special_tokens_as_text=job.special_tokens_in_text == "text")
    comparison = Comparison(encoder, reference)
    unread = texts.Unread()
    sources = texts.sources(encoder, job.texts, job.text_field, job.seed, unread)
    began = time.monotonic()
    stopped: BaseException | None = None
    try:
        _compare(comparison, sources, job)
    except (KeyboardInterrupt, SystemExit) as error:
        stopped = error
    kinds = {kind: counts.to_json() for kind, counts in comparison.kinds.items()}
    made = certificate.signed(
        {
            "tokenizer": job.name,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **identity,
            "versions": {**identity["versions"], "reference": reference.version},
            "seed": job.seed,
            "seconds": round(time.monotonic() - began, 3),
            "interrupted": stopped is not None,
            "unread_records": unread.records,
            "differences": comparison.differences,
            "totals": certificate.totals(kinds),
            "kinds": kinds,
            "examples": comparison.examples,
        }
    )
    return made, stopped


def _compare(comparison: Comparison, sources: Mapping[str, Iterator[str]], job: Job) -> None:
    """Compares a batch of each kind in turn, so that a short run has some of each."""
    began = time.monotonic()
    seconds = 60 * job.minutes
    left = dict(sources)
    with Progress("comparing", job.documents or seconds, " texts" if job.documents else " s") as progress:
        while True:
            for kind, source in list(left.items()):
                spent = time.monotonic() - began
                most = _BATCH_TEXTS if job.documents is None else min(_BATCH_TEXTS, job.documents - comparison.texts)
                if most == 0 or (job.documents is None and spent >= seconds):
                    return
                batch = _batch(source, most, _GIVEN_CHARACTERS if kind == texts.GIVEN else _BATCH_CHARACTERS)
                if not batch:
                    del left[kind]
                    continue
                comparison.add(kind, batch)
                differences = counted(comparison.differences, "difference")
                done = comparison.texts if job.documents else time.monotonic() - began
                progress.show(done, f"{counted(comparison.texts, 'text')}, {differences}")


def _batch(source: Iterator[str], most: int, most_characters: int) -> list[str]:
    batch: list[str] = []
    characters = 0
    for text in itertools.islice(source, most):
        batch.append(text)
        characters += len(text)
        if characters >= most_characters:
            break
    return batch
