"""The messages of a sink's tasks to the driver: small frozen values, which Spark pickles from the task to the commit.

A batch is named by (sink id, batch number, attempt). The attempt is one run of one Spark job: it is chosen on the
planner and sent to every task of the job, so that a commit recognises its own publication (D13).

Parts of a batch, staged or not, have one order in each log, whichever way they take: that of their transaction ids, and
of their tasks where ids are equal (`order_segments`). Ids that are times of rows (`IdOrigin.TIMED`) may overlap between
tasks: whoever puts the parts into the log raises those that would go back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Protocol, TypeVar

from pyspark.sql.datasource import WriterCommitMessage

from dlspark.spark.errors import TransactionOrderError
from metadata.distributedlog.sinks import StagedLedger, log_tag


@dataclass(frozen=True, slots=True)
class JobId:
    """The name of a job: the sink and number of its batch, and which attempt at it the job is."""

    sink_id: str
    batch: int
    attempt: str

    def __str__(self) -> str:
        return f"batch {self.batch} of sink {self.sink_id}"

    def staged(self, ledger_id: int, log: str) -> StagedLedger:
        """Return the listing of one ledger of this job, which is for `log`."""
        return StagedLedger(self.batch, self.attempt, ledger_id, log_tag(log))


class IdOrigin(Enum):
    """Where do the transaction ids of rows come from, and may they be others?"""

    GIVEN = "given"
    """From the user, row by row: they stay as they are, or the batch is refused."""
    STAMPED = "stamped"
    """The batch's own timestamp: one for all rows of a log, not below the log's highest."""
    TIMED = "timed"
    """From the column that the log declares for them: no id may be below its row's time, and any may be above."""


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A closed ledger with the records of one task for one log, to which no log refers yet.

    `origin` says where the transaction ids come from; `partition` is the task's number in the job and `ordinal` the
    segment's in the task: they order segments whose transaction ids are equal. `row_count` is how many rows of the
    frame its records hold, by which a replay is known; a record may hold many.
    """

    log: str
    ledger_id: int
    partition: int
    ordinal: int
    first_txid: int
    last_txid: int
    record_count: int
    last_entry: int
    last_slot: int
    user_bytes: int
    origin: IdOrigin
    row_count: int

    @property
    def raisable(self) -> bool:
        """Whether its ids may be raised one by one."""
        return self.origin is IdOrigin.TIMED


@dataclass(frozen=True, slots=True)
class InlineRows:
    """A task's rows for its one log, which travel in its message: they are few, and no ledger was made for them.

    `rows` is an Arrow stream of the columns `value` and, unless the batch carries its own timestamp, `txid`;
    `stamp_ms` is that timestamp, None where rows have ids. `size` is what the rows take of an entry. `raisable`: the
    ids are times of rows, which may be raised. Each row is one record.
    """

    log: str
    partition: int
    first_txid: int
    last_txid: int
    record_count: int
    size: int
    stamp_ms: int | None
    rows: bytes
    raisable: bool = False

    ordinal = 0

    @property
    def origin(self) -> IdOrigin:
        """Where the ids come from."""
        if self.stamp_ms is not None:
            return IdOrigin.STAMPED
        return IdOrigin.TIMED if self.raisable else IdOrigin.GIVEN


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """One task's result: what it has staged, or the rows themselves; and `covered`: the logs that had the batch before,
    with the rows that it was given for them and did not write."""

    job: JobId
    segments: tuple[StagedSegment, ...] = ()
    covered: tuple[tuple[str, int], ...] = ()
    inline: tuple[InlineRows, ...] = ()


@dataclass(frozen=True, slots=True)
class Publication:
    """A whole batch, as the driver is to publish it.

    `covered`: rows that tasks did not write, log by log, because the log had the batch. `known`: the logs that a batch
    without rows would have written, if its options name them. `inline`: rows that are in no ledger yet.
    """

    job: JobId
    segments: tuple[StagedSegment, ...]
    covered: tuple[tuple[str, int], ...] = ()
    known: tuple[str, ...] = ()
    inline: tuple[InlineRows, ...] = ()

    @property
    def logs(self) -> list[str]:
        """The logs that it has rows for, sorted."""
        return sorted(self.rows_by_log)

    @property
    def rows_by_log(self) -> dict[str, int]:
        """The rows that it has for each log, staged, inline or covered."""
        counts: Counter[str] = Counter()
        for segment in self.segments:
            counts[segment.log] += segment.row_count
        for part in self.inline:
            counts[part.log] += part.record_count
        for log, rows in self.covered:
            counts[log] += rows
        return dict(+counts)  # only what is above 0: a log without rows does not belong to the batch

    @property
    def rows(self) -> int:
        """The rows that it has in all."""
        return sum(self.rows_by_log.values())

    def by_log(self) -> dict[str, list[StagedSegment]]:
        """Return its segments, log by log, as they came; logs are sorted."""
        found: dict[str, list[StagedSegment]] = {log: [] for log in sorted({one.log for one in self.segments})}
        for segment in self.segments:
            found[segment.log].append(segment)
        return found

    def only(self, logs: Iterable[str]) -> Publication:
        """Return what of it goes into these logs."""
        chosen = set(logs)
        # Without what is covered: those logs have the batch, and a multi must not touch them (D16).
        return replace(self, segments=tuple(one for one in self.segments if one.log in chosen), covered=())


class OrderedPart(Protocol):
    """Rows of one task for one log, staged or not, as they are ordered among those of other tasks."""

    @property
    def partition(self) -> int:
        """The task's number in the job."""

    @property
    def ordinal(self) -> int:
        """The part's number in the task."""

    @property
    def first_txid(self) -> int:
        """Transaction id of its first row."""

    @property
    def last_txid(self) -> int:
        """Transaction id of its last row."""

    @property
    def raisable(self) -> bool:
        """Whether its ids may be raised one by one."""


_Part = TypeVar("_Part", bound=OrderedPart)


def order_segments(log: str, segments: Sequence[_Part]) -> list[_Part]:
    """Return `segments` of one log (or rows that travelled inline) in the order in which they continue it.

    Raises TransactionOrderError if two overlap whose ids cannot be raised.
    """
    # Equal ids go by task and part: a batch that is repeated has its rows in the same order, whichever way it takes.
    ordered = sorted(segments, key=lambda s: (s.first_txid, s.last_txid, s.partition, s.ordinal))
    for before, after in pairwise(ordered):
        if after.first_txid < before.last_txid and not (before.raisable and after.raisable):
            raise TransactionOrderError(
                f"Transaction ids of two tasks overlap: task {before.partition} wrote {before.first_txid} to "
                f"{before.last_txid}, task {after.partition} wrote {after.first_txid} to {after.last_txid}; "
                "nothing of the batch is visible",
                log=log,
                advice='Write df.repartitionByRange("transaction_id").sortWithinPartitions("transaction_id"), '
                "or one task: df.coalesce(1) of sorted rows",
            )
    return ordered
