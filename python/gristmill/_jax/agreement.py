"""Checks that all processes of a sharding have the same stream, and are at the same step of it.

A host whose glob matches other shards, or that was started with another seed or tokenizer, would load rows of another
stream, and the batches would not show it. So the processes compare the fingerprints of their datasets once, before
they load anything: first a hash of each, and only if these differ the fingerprints themselves. Batches do not show
either that hosts were restored from states of different steps, so the hosts compare these before they continue. And
processes that load the same lanes may quarantine different records, if the disk of one is bad: with
`on_error="quarantine"` such replicas compare their cursors at each step.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from gristmill._jax.exchange import Exchange, exchange
from gristmill._spec import fingerprints
from gristmill._util.text import format_numbers
from gristmill.errors import ArgumentError, GristmillError, StateError

_DIGEST_BYTES = 16
_WORD_BYTES = 4
_WORDS = "{name} is {after} instead of {before}"
# How many processes with another stream than most a message names.
_MOST_TOLD = 4

Place = Callable[[], object]


def check_same_stream(fingerprint: str, sharding: Any) -> None:
    """Compares the fingerprints of all processes of a sharding: each of them must call this.

    Args:
      fingerprint: of the dataset of this process, and whatever else all of them must share.
      sharding: a `jax.sharding.Sharding`. Anything else, or one without this process,
        is ignored here and refused later.

    Raises:
      ArgumentError: the fingerprints differ. Raised on every process; names those that differ from most, and how.
    """
    if not _spans_processes(sharding):
        return
    by_process = gathered(exchange(frozenset(sharding.device_set)), fingerprint.encode())
    if len(set(by_process.values())) > 1:
        raise ArgumentError(
            f"the processes of the sharding have different streams: {_describe_differences(by_process)}"
        )


class Agreement:
    """Collective questions of all processes. Each is asked once, also if an interrupt takes a batch back.

    All processes must ask equally often, or one of them would take the answer to one question for that to another.
    """

    def __init__(
        self, ask_step: Callable[[int], None], vote: Callable[[bool, Place], Callable[[], bool]] | None = None
    ) -> None:
        self._ask_step = ask_step
        self._ask_vote = vote
        self._is_asking = False
        self._has_started = False
        self._by_step: dict[int, Callable[[], bool]] = {}

    def start(self, step: Callable[[], int]) -> None:
        """Makes sure once that all processes resume at the same step, which calling `step` returns.

        Raises:
          StateError: they do not; on all of them.
        """
        if self._has_started:
            return
        if self._is_asking:  # The call was interrupted, and whether the others were asked is not known.
            _out_of_step()
        first = step()
        self._is_asking = True
        try:
            self._ask_step(first)
        except StateError:
            self._is_asking = False  # all of them know, and will ask again
            raise
        self._has_started = True
        self._is_asking = False

    def vote(self, step: int, has_rows: bool, place: Place) -> Callable[[], bool]:
        """The vote on whether any process has rows in a step, in which this one takes part now unless it already has.

        Calling the result waits for the answer, and raises GristmillError if replicas are at different positions before
        the step; `place` returns that of this process. If all load the same lanes, or never end, there is no vote,
        unless records may be quarantined.
        """
        if self._ask_vote is None:
            return lambda: has_rows
        if step not in self._by_step:
            if self._is_asking:  # as above
                return _out_of_step
            self._is_asking = True
            self._by_step[step] = self._ask_vote(has_rows, place)
            self._is_asking = False
            self._by_step.pop(step - 2, None)  # the step of a delivered batch
        return self._by_step[step]

    def forget(self) -> None:
        """All processes move to another position, and ask anew."""
        self._has_started = False
        self._by_step.clear()


def agreement_of(
    sharding: jax.sharding.Sharding, lanes: dict[int, list[int]], *, ends: bool, quarantines: bool
) -> Agreement | None:
    """The agreement of this process with the others of a sharding, if there are any.

    Args:
      sharding: of the batches.
      lanes: those of each process.
      ends: whether the stream does, each lane at a step of its own.
      quarantines: whether bad records are quarantined, by each process by itself.
    """
    if not _spans_processes(sharding):
        return None
    votes, compares = collectives_needed(lanes, ends=ends, quarantines=quarantines)
    vote = _vote(exchange(frozenset(sharding.device_set)), lanes if compares else None) if votes else None
    return Agreement(functools.partial(_check_same_step, sharding=sharding), vote)


def collectives_needed(lanes: dict[int, list[int]], *, ends: bool, quarantines: bool) -> tuple[bool, bool]:
    """Whether processes with these lanes vote on each step, and whether replicas among them compare their cursors."""
    groups = {tuple(own) for own in lanes.values()}
    compares = quarantines and len(groups) < len(lanes)
    return compares or (ends and len(groups) > 1), compares


def _vote(exchange: Exchange, replicas: dict[int, list[int]] | None) -> Callable[[bool, Place], Callable[[], bool]]:
    """Votes on whether any process has rows. Replicas, if given, also compare their cursors."""
    # For each device the first one whose process loads the same lanes.
    first_with: dict[tuple[int, ...], int] = {}
    firsts = [
        first_with.setdefault(tuple(replicas[process]), device) if replicas else device
        for device, process in enumerate(exchange.processes.tolist())
    ]

    def vote(has_rows: bool, place: Place) -> Callable[[], bool]:
        message = has_rows.to_bytes(_WORD_BYTES, "little")
        if replicas:
            message += hashlib.blake2b(repr(place()).encode(), digest_size=_DIGEST_BYTES).digest()
        ask = exchange.ask(lambda _: _words(message))

        def answer() -> bool:
            answers = ask()
            differs = (answers[:, 1:] != answers[firsts, 1:]).any(axis=1)
            if differs.any():
                device = int(differs.argmax())
                one, other = exchange.processes[[firsts[device], device]]
                raise GristmillError(
                    f"processes {one} and {other} load the same lanes, and are at different positions of them: they "
                    "read different bytes, and quarantined different records. Compare their quarantine files, give "
                    "both the same shards, and resume from an earlier saved state"
                )
            return bool(answers[:, 0].any())

        return answer

    return vote


def _check_same_step(step: int, sharding: Any) -> None:
    """Compares the steps at which all processes of a sharding resume: each of them must call this.

    Args:
      step: of the state of this process.
      sharding: one that `_spans_processes`.

    Raises:
      StateError: the steps differ; on every process.
    """
    steps = exchange(frozenset(sharding.device_set)).gather(lambda _: _words(step.to_bytes(2 * _WORD_BYTES, "little")))
    of_processes = {device.process_index: int.from_bytes(words.tobytes(), "little") for device, words in steps.items()}
    if len(set(of_processes.values())) > 1:
        groups: dict[int, list[int]] = {}
        for process, its_step in sorted(of_processes.items()):
            groups.setdefault(its_step, []).append(process)
        described = ", ".join(
            f"process {format_numbers(group)} at step {its_step}" for its_step, group in groups.items()
        )
        raise StateError(
            f"the processes of the sharding resumed at different steps: {described}. Restore all of them from one "
            "state, made by gristmill.merge_states of those that all saved after the same batch"
        )


def _spans_processes(sharding: Any) -> bool:
    """Whether this process is one of several of a sharding."""
    try:
        processes = {device.process_index for device in sharding.device_set}
    except (AttributeError, ValueError):  # no sharding, or of no devices: for others to refuse
        return False
    return len(processes) > 1 and jax.process_index() in processes


def gathered(exchange: Exchange, text: bytes) -> dict[int, str]:
    """For each process its text; the own one for all if they are equal."""
    digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
    summaries = exchange.gather(lambda _: _words(len(text).to_bytes(_WORD_BYTES, "little") + digest))
    if len({summary.tobytes() for summary in summaries.values()}) == 1:
        return {device.process_index: text.decode() for device in summaries}
    longest = max(int.from_bytes(summary.tobytes()[:_WORD_BYTES], "little") for summary in summaries.values())
    padded = text.ljust(-(-longest // _WORD_BYTES) * _WORD_BYTES, b"\0")
    texts = exchange.gather(lambda _: _words(padded))
    return {device.process_index: words.tobytes().rstrip(b"\0").decode() for device, words in texts.items()}


def _words(data: bytes) -> npt.NDArray[np.uint32]:
    return np.frombuffer(data, np.uint32)


def _describe_differences(by_process: dict[int, str]) -> str:
    """The processes whose streams differ from that of most, and the differences."""
    # In a tie, the stream of the first process, so that all processes raise the same error.
    most = Counter(by_process[process] for process in sorted(by_process)).most_common(1)[0][0]
    usual = [process for process in sorted(by_process) if by_process[process] == most]
    others = [process for process in sorted(by_process) if by_process[process] != most]
    lines = [
        f"process {process}: {fingerprints.differences(most, by_process[process], _WORDS)}"
        for process in others[:_MOST_TOLD]
    ]
    if len(others) > _MOST_TOLD:
        lines.append(f"{len(others) - _MOST_TOLD} more processes")
    return (
        f"{'; '.join(lines)}; compared with process {format_numbers(usual)}. Give all of them the same shards "
        "(manifest), tokenizer, arguments and release of gristmill"
    )


def _out_of_step() -> bool:
    raise GristmillError(
        "this process was interrupted, or another one ended, during a vote on the start or the end of the stream, "
        "and they may be out of step: end all processes, and resume from a saved state"
    )
