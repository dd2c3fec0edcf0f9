"""What a sink task tells the driver: small frozen values, pickled by Spark from the task to the commit.

A batch is named by (sink id, batch number, attempt): the attempt is one run of one Spark job, chosen on the planner and
carried to every task of it, so that a commit can tell its own publication from another's (D13).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from metadata.sinks import StagedLedger


@dataclass(frozen=True, slots=True)
class JobId:
    """Whose batch a job writes, and which attempt at it the job is."""

    sink_id: str
    batch: int
    attempt: str

    def __str__(self) -> str:
        return f"batch {self.batch} of sink {self.sink_id}"

    def staged(self, ledger_id: int) -> StagedLedger:
        """The listing of one ledger of this job."""
        return StagedLedger(self.batch, self.attempt, ledger_id)


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A closed ledger with the records of one task for one log, to which no log refers yet.

    `stamped` says that the transaction ids are the batch's own timestamp and not the user's; `partition` is the task's
    number in the job and `ordinal` the segment's in the task: they order segments whose transaction ids are equal.
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
    stamped: bool


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """One task's result. `covered`: the batch had been published before, and the task wrote nothing that counts.

    `rows` is what a covered task was given; None if it did not come to the end of them.
    """

    job: JobId
    covered: bool = False
    segments: tuple[StagedSegment, ...] = ()
    rows: int | None = None

    @property
    def row_count(self) -> int | None:
        """The task's rows, as far as they are known."""
        return self.rows if self.covered else sum(segment.record_count for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Publication:
    """A whole batch, as the driver is to publish it. `rows`: None if a task did not count them all."""

    job: JobId
    segments: tuple[StagedSegment, ...]
    rows: int | None = None

    @property
    def logs(self) -> list[str]:
        """The logs it appends to, sorted."""
        return sorted({segment.log for segment in self.segments})

    def of_log(self, log: str) -> list[StagedSegment]:
        return [segment for segment in self.segments if segment.log == log]


def gather(messages: Iterable[SinkMessage]) -> list[Publication]:
    """The publications that `messages` speak of: one, unless tasks of different attempts were mixed up."""
    found: dict[JobId, list[SinkMessage]] = {}
    for message in messages:
        found.setdefault(message.job, []).append(message)
    return [_publication(job, parts) for job, parts in found.items()]


def _publication(job: JobId, messages: Sequence[SinkMessage]) -> Publication:
    counts = [message.row_count for message in messages]
    known = [count for count in counts if count is not None]
    segments = tuple(segment for message in messages for segment in message.segments)
    return Publication(job, segments, sum(known) if len(known) == len(counts) else None)
