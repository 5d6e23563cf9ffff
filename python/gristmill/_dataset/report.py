"""Reports of a running iterator: to the log and to `on_stats`, every ten seconds."""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from gristmill._dataset.stream import Stream
from gristmill._util.text import counted
from gristmill.errors import ShardError

_LOG = logging.getLogger("gristmill")
_REPORT_SECONDS = 10.0


# The words for the end of a source, in some lanes and in all, by what happens then.
_EXHAUSTED = {
    "continue": "the source %r is exhausted in %s of %s: the others share its rows",
    "stop": "the source %r is exhausted in %s of %s, which end with it",
    "error": "the source %r is exhausted in %s of %s: the run stops once another row of it is due",
}

Stats = Callable[[], "dict[str, Any]"]


class Reporter:
    """Reports to those who cannot reach the iterator, which Grain's transformations hide."""

    # Bound here: while the interpreter ends, Grain still closes iterators, and this module's names are gone.
    _is_ending = staticmethod(sys.is_finalizing)
    _process_id = staticmethod(os.getpid)

    def __init__(self, on_stats: "Callable[[dict[str, Any]], None] | None") -> None:
        self._on_stats = on_stats
        self._due: float | None = None
        self._is_reporting = False
        self._process = self._process_id()
        self._has_warned_of_dropped = False
        self._has_warned_of_only_stops = False
        self._quarantined = 0
        self._undecodable = 0
        self._exhausted: dict[str, int] = {}
        self._begin()

    def restored(self, stream: Stream) -> None:
        """The run that saved a restored position reported what came before it."""
        stats = stream.stats()
        self._quarantined = stats["quarantined"]
        self._undecodable = stats.get("undecodable", 0)
        self._exhausted = _exhausted_lanes(stats)
        self._begin()

    def _begin(self) -> None:
        self._listed = 0
        self._has_ended = False

    def tick(self, stats: Stats, stream: Stream) -> None:
        """Reports if it is time to."""
        if self._due is None:
            self._due = time.monotonic() + _REPORT_SECONDS
        if time.monotonic() >= self._due:
            self.report(stats, stream)

    def end(self, stats: Stats, stream: Stream) -> None:
        """Reports at the first `next` after the end; those after it, until a restore, have nothing to add."""
        if not self._has_ended:
            self._has_ended = True
            self.report(stats, stream)
            steps = stream.position()["step"]
            if any(step == steps for step, _ in stream.spec.edited) and (filtered := stats()["filtered"]):
                _LOG.warning(
                    "the stream ends at step %s, from which on edits= has an edit that leaves no record, %s filtered: "
                    "see gristmill inspect filter SHARDS --keep=...", f"{steps:,}", counted(filtered, "record"),
                )  # fmt: skip

    def report(self, stats: Stats, stream: Stream) -> None:
        """Logs newly quarantined records and exhausted sources, and calls `on_stats`.

        Args:
          stats: figures of the iterator up to the last element.
          stream: its stream.
        """
        if self._is_ending() or self._is_reporting:  # `on_stats` may close the iterator
            return
        if self._process_id() != self._process:  # a forked child has nothing to report of its parent's iterator
            return
        self._is_reporting = True
        try:
            self._report(stats(), stream)
        finally:
            self._is_reporting = False

    def _report(self, stats: "dict[str, Any]", stream: Stream) -> None:
        self._due = time.monotonic() + _REPORT_SECONDS
        all_now = stats["quarantined"]
        new, self._quarantined = all_now - self._quarantined, all_now
        if new > 0:
            self._listed, entries = stream.core.quarantine(self._listed)
            records = counted(new, "record was", "records were")
            lost = counted(stats["lost_shards"], "shard")
            unread = f", {lost} not read to the end" if stats["lost_shards"] else ""
            _LOG.warning("%s quarantined, %s in all%s%s", records, f"{all_now:,}", unread, _first(entries))
        all_now = stats.get("undecodable", 0)
        new, self._undecodable = all_now - self._undecodable, all_now
        if new > 0:
            self._listed, entries = stream.core.quarantine(self._listed)
            samples = counted(new, "sample has", "samples have")
            _LOG.warning(
                "%s an image that cannot be decoded, and is not trained on, %s in all%s",
                samples, f"{all_now:,}", _first(entries),
            )  # fmt: skip
        for name, lanes in _exhausted_lanes(stats).items():
            if (mixing := stream.spec.mixing) and lanes > self._exhausted.get(name, 0):
                all_lanes = counted(len(stream.spec.running.own_lanes), "lane")
                _LOG.warning(_EXHAUSTED[mixing.on_exhausted], name, lanes, all_lanes)
            self._exhausted[name] = lanes
        if stats["dropped_tokens"] and not self._has_warned_of_dropped:
            self._has_warned_of_dropped = True
            dropped = stats["dropped_tokens"]
            share = 100 * dropped / (dropped + stats["tokens"])
            tokens = counted(dropped, "token is", "tokens are")
            cause = "by truncation=, or with rows that train nothing"
            _LOG.warning("%s dropped so far, %.1f %% of all, %s", tokens, share, cause)
        if stats["only_stops"] and not self._has_warned_of_only_stops:
            self._has_warned_of_only_stops = True
            _LOG.warning(
                "%s of %s so far train only the tokens that end them: their answers are empty, or one token that "
                "begins in the prompt", f"{stats['only_stops']:,}", counted(stats["documents"], "sample"),
            )  # fmt: skip
        if self._has_ended and stats["filtered"] and not stats["documents"]:
            records = counted(stats["filtered"], "record")
            _LOG.warning(
                "no document is left, and %s filtered: see gristmill inspect filter SHARDS --keep=...", records
            )
        if self._on_stats is not None:
            try:
                self._on_stats(stats)
            except Exception as error:
                self._on_stats = None  # otherwise it would stop the run again at every report
                if isinstance(error, StopIteration):  # from `next` it would mean the end of the stream
                    raise RuntimeError("on_stats raised StopIteration") from error
                raise


def _exhausted_lanes(stats: "dict[str, Any]") -> "dict[str, int]":
    """In how many lanes each source of a mixture is exhausted."""
    return {name: source["exhausted_lanes"] for name, source in stats.get("sources", {}).items()}


def _first(entries: "list[dict[str, Any]]") -> str:
    if not entries:  # the list is bounded, the count is not
        return ""
    return f"; the first listed: {ShardError(**entries[0])}"
