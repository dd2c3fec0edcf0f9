"""The two ways of a batch into its logs: appended to the open segment, or published as segments of its own. Pure.

| | `append` | `segments` |
|---|---|---|
| rows travel | in the tasks' messages | in ledgers of the tasks |
| and become visible by | one request of an idempotent producer (`appends`) | one conditional multi (`commit`) |
| which holds | one log, one entry | any number of both |
| and leaves behind | a segment that stays open for the next batch | a segment a task and log |

The driver chooses when it has heard of all rows. A task chooses before: it keeps its rows as long as they are few and
for one log, and writes a ledger for each log as soon as they are not. Either choice may be another one when the batch
is run again; what is in the log decides, and not how it came there (I20).

A write without a number of its own is never appended: nothing would recognise it when it comes again.

With the option `proxy` every batch is appended, and one that cannot be is refused before anything is written: tasks
then reach neither ZooKeeper nor storage nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from dlspark.core.codec.records import MAX_LOGRECORDSET_SIZE
from dlspark.spark.errors import BatchRefusedError, OptionError
from dlspark.spark.options.proxies import PROXY
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.messages import Publication
from metadata.foundation.plurals import counted
from metadata.foundation.settings import did_you_mean, shown

ENTRY_ROOM: Final = MAX_LOGRECORDSET_SIZE - 1024
"""Bytes of records, with their headers, that one entry takes beside what says whose they are."""
LEAST_SHARE: Final = 32 * 1024
"""Bytes of rows that each task may hand to the driver in any case: a thousand tasks bring 32 MB at most."""


class CommitMode(Enum):
    """The values of option `commitMode`."""

    AUTO = "auto"
    APPEND = "append"
    SEGMENTS = "segments"


@dataclass(frozen=True, slots=True)
class CommitWay:
    """The way that a sink's options choose for its batches. `max_bytes`: a batch with more is not appended; `idle_ms`:
    how long a log stays held.

    `proxied`: batches go to proxies, and nowhere else.
    """

    mode: CommitMode
    max_bytes: int = 0
    idle_ms: int = 0
    proxied: bool = False

    def share(self, partition: int) -> int:
        """Return bytes of rows that this task may hand to the driver instead of writing a ledger; 0: none.

        Of a batch that can be appended and is spread evenly, each of n tasks has less than an n-th. Shares that fall
        with the task's number let all of these pass, and bound what the driver gets of a batch that is too large.
        """
        if self.mode is CommitMode.SEGMENTS:
            return 0
        if self.proxied:
            return self.max_bytes  # every batch goes through proxies
        return max(LEAST_SHARE, self.max_bytes // (1 + partition))

    def appends(self, publication: Publication) -> bool:
        """Return whether the batch is appended. Raises BatchRefusedError where `append` was asked for and cannot be."""
        if self.mode is CommitMode.SEGMENTS:
            return False
        if not publication.rows:
            return len(publication.known) == 1  # the log's owner knows whether the batch had rows before
        if self.proxied and len(publication.logs) != 1:
            raise self.commit_mode_error(
                f"{publication.job} has rows for {len(publication.logs)} logs", publication.logs[0]
            )
        if len(publication.logs) != 1:
            return False  # several logs show a batch in one instant only by a multi (D16)
        size = sum(part.size for part in publication.inline) + sum(one.user_bytes for one in publication.segments)
        whole = not (publication.segments or publication.covered)
        if whole and size <= self.max_bytes:
            return True
        if self.proxied:
            raise self.commit_mode_error(f"{publication.job} has {size} bytes", publication.logs[0])
        if self.mode is CommitMode.AUTO or publication.covered:
            return False
        # Rows that were staged share records of this format, and are smaller than they would be in an entry.
        packed = any(one.row_count != one.record_count for one in publication.segments)
        rows = f"{counted(publication.rows, 'row')} {'of a record each' if packed else f'of {size} bytes'}"
        raise BatchRefusedError(
            f"{publication.job} has {rows}, and commitMode=append puts a batch into one entry, which has room for "
            f"{self.max_bytes} bytes; nothing of the batch is visible",
            log=publication.logs[0],
            advice="Use commitMode=auto, which publishes large batches as segments; or make batches smaller, for "
            "example with maxOffsetsPerTrigger or maxBytesPerTrigger of the source",
        )

    def commit_mode_error(self, what: str, log: str | None = None) -> BatchRefusedError:
        """Return the error for a batch that is not one request to a proxy."""
        return BatchRefusedError(
            f"{what}, and through proxies a batch is one request for one log, of at most {self.max_bytes} bytes; "
            "nothing of the batch is visible",
            log=log,
            advice="Make batches smaller, for example with maxOffsetsPerTrigger or maxBytesPerTrigger of the source, "
            "and write each log with a query of its own; or leave the option proxy out",
        )


def commit_way(options: Options, *, numbered: bool) -> CommitWay:
    """Return the way of a sink's batches; `numbered`: they have numbers by which a replay is known. Raises
    OptionError."""
    mode = _mode(options)
    if mode is CommitMode.APPEND and not numbered and options.asked("commitMode"):
        raise OptionError(
            "commitMode=append needs a number for each batch, by which it is known when it comes again",
            advice="Give txnAppId and txnVersion, or leave commitMode out",
        )
    idle_ms = options.duration_ms("appendIdleRelease") or 0
    if _is_proxied(options, numbered=numbered):
        return CommitWay(CommitMode.APPEND, ENTRY_ROOM, idle_ms, proxied=True)
    if mode is CommitMode.SEGMENTS or not numbered:
        return CommitWay(CommitMode.SEGMENTS)
    if mode is CommitMode.APPEND:
        return CommitWay(mode, ENTRY_ROOM, idle_ms)
    return CommitWay(mode, min(options.integer("appendMaxBytes") or 0, ENTRY_ROOM), idle_ms)


def _is_proxied(options: Options, *, numbered: bool) -> bool:
    """Return whether batches go through proxies alone. A session's default does not hold for writes that cannot."""
    if options.proxies is None:
        return False
    if options.given("commitMode") and _mode(options) is CommitMode.SEGMENTS:
        why, advice = "commitMode=segments writes to storage nodes itself", "Leave one of the two out"
    elif options.given("numLogs"):
        why, advice = "numLogs spreads a batch over several logs", "Write each log with a query of its own"
    elif not numbered:
        why = "a batch needs a number, by which it is known when it comes again"
        advice = "Give txnAppId and txnVersion, or leave proxy out"
    else:
        return True
    if options.asked(PROXY):
        raise OptionError(f"Through proxies a batch is one request, for one log: {why}", advice=advice)
    return False


def _mode(options: Options) -> CommitMode:
    text = options.text("commitMode")
    if text is None:
        # A write that is made once would start a process for it, and hold the log for a while.
        return CommitMode.AUTO if options.scope & Scope.SINK_STREAM else CommitMode.SEGMENTS
    try:
        return CommitMode(text.strip().lower())
    except ValueError:
        known = [mode.value for mode in CommitMode]
        advice = f"{did_you_mean(text, known)}Give one of: {', '.join(known)}"
        raise OptionError(f"Option commitMode={shown(text)} cannot be", advice=advice) from None
