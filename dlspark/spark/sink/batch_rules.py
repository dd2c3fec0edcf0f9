"""The rules by which a batch may be published, and into which of its logs (I9). Pure.

`judge` says from the marks of its logs how far a batch is published, log by log; `check_above` refuses what cannot
continue a log.

A log of the batch is

| | when | and then |
|---|---|---|
| open | the sink's mark in the log is below the batch, or there is none | the batch is published into it |
| covered | the mark has the batch with the rows that it has now: a replay | its rows there are skipped |
| differing | the mark has reached the batch, and nothing shows that what is there is what would be written | refused |

What is differing: other rows under the number; none, though later batches are in the log; so old a batch that its rows
are not known any more. A batch that has rows for fewer logs than were published is the same for these: forks of a
query may write to different logs, or to some that they share.

**A mark of the old form** is one number for all logs together (`Floor`). For a batch up to it a log without a record
of its own is judged by its segments, whose znodes carry the transactions that made them. A log younger than the old
mark's last move, or one that never had a segment, has nothing of it: open. The newest old batch is covered where the
transaction that moved the mark brought just its rows into the log; an older one where that transaction shows that the
sink wrote to this log, the old mark knows its rows in all, and one earlier transaction brought just its rows into each
of its logs. All else is differing: it may be in the log or not, and to guess either way would lose rows or double them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from dlspark.core.codec.records import MAX_TXID
from dlspark.spark.errors import BatchRefusedError, BatchSweptError, ReplayDiffersError, TransactionOrderError
from dlspark.spark.sink.messages import JobId, OrderedPart, Publication
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.sink_marks import Floor, LogMark, SinkState
from metadata.foundation.plurals import counted

_OPEN, _COVERED = "open", "covered"


class CommitOutcome(Enum):
    """PUBLISHED: by this attempt. COVERED: every log had the batch before, nothing was to be done."""

    PUBLISHED = "published"
    COVERED = "covered"


@dataclass(frozen=True, slots=True)
class LogHistory:
    """The transactions that made what a log holds, for a log that an older dlspark may have written.

    `born`: the one that made the log. `brought`: records of its segments, by the transaction that brought them.
    `untouched`: it never had a segment.
    """

    born: int
    brought: Mapping[int, int]
    untouched: bool


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The state of a batch, read in one go; `marks` are the marks that its logs have."""

    state: Versioned[SinkState]
    marks: Mapping[str, Versioned[LogMark]]
    open: tuple[str, ...] = ()
    covered: tuple[str, ...] = ()
    differing: Mapping[str, str] = field(default_factory=dict)
    """By log, what speaks against its being a replay."""
    ours: bool = False
    """This attempt has published it."""
    over: bool = False
    """There is nothing to publish."""
    unsettled: tuple[str, ...] = ()
    """Open logs whose producers may know the batch all the same: their marks are not the whole truth (I20)."""

    @property
    def outcome(self) -> CommitOutcome | None:
        """The outcome; None while there is something to publish."""
        if not self.over:
            return None
        return CommitOutcome.PUBLISHED if self.ours else CommitOutcome.COVERED


def old_logs(publication: Publication, state: SinkState, marks: Mapping[str, Versioned[LogMark]]) -> list[str]:
    """Return the logs whose segments are to be examined (`LogHistory`): an older dlspark may have published the
    batch."""
    batch = publication.job.batch
    if state.floor is None or batch > state.floor.mark.batch:
        return []
    return [log for log in publication.logs if log not in marks or marks[log].value.rows_of(batch) is None]


def judge_job(publication: Publication, state: Versioned[SinkState]) -> BatchProgress:
    """Return how far a batch write is published: its sink is its own, and has one publication, whole, into all logs."""
    over = publication.job.batch <= state.value.batch
    logs = tuple(publication.logs)
    ours = over and state.value.attempt == publication.job.attempt
    return BatchProgress(state, {}, () if over else logs, logs if over else (), ours=ours, over=over)


def judge(
    publication: Publication,
    state: Versioned[SinkState],
    marks: Mapping[str, Versioned[LogMark]],
    histories: Mapping[str, LogHistory | None],
) -> BatchProgress:
    """Return how far the batch is published. `histories` has what `old_logs` named; None: the log does not exist."""
    job, rows = publication.job, publication.rows_by_log
    floor = state.value.floor
    old = _judge_old(publication, floor, histories) if floor is not None and histories else {}
    findings = {
        log: _finding(job.batch, rows[log], marks[log].value if log in marks else None, old.get(log, ""))
        for log in publication.logs
    }
    open_logs = tuple(log for log, finding in findings.items() if finding == _OPEN)
    covered = tuple(log for log, finding in findings.items() if finding == _COVERED)
    differing = {log: finding for log, finding in findings.items() if finding not in (_OPEN, _COVERED)}
    if not rows:
        # Such a batch moves no mark: only the sink's own state says whether it was published.
        differing = _emptied(job.batch, state.value, marks)
        over, ours = job.batch <= state.value.batch, state.value.attempt == job.attempt
    else:
        # Marks are equal if batch and attempt are: such a mark shows this attempt's own publication (D13).
        over, ours = not open_logs, any(mark.value == LogMark(job.batch, job.attempt) for mark in marks.values())
    wanted = open_logs if rows else [log for log, mark in marks.items() if not mark.value.covers(job.batch)]
    unsettled = tuple(log for log in wanted if log in marks and marks[log].value.appending_ms is not None)
    return BatchProgress(state, marks, open_logs, covered, differing, ours, over, unsettled)


def _finding(batch: int, rows: int, mark: LogMark | None, old: str) -> str:
    """Return _OPEN, _COVERED, or what makes the log differ. `old`: the same, as `_judge_old` has it; empty: it has
    nothing."""
    published = mark.rows_of(batch) if mark is not None else None
    if published is not None:
        # Spark repeats a batch with the rows it had, so another number of rows shows another batch.
        if published == rows:
            return _COVERED
        return f"was published with {counted(published, 'row')} into this log, and now has {rows}"
    if old and old != _OPEN:
        return old
    # At or below the mark is not open, also where this number was never published: writing it now would put rows of
    # the past behind later ones, perhaps a second time (D15).
    if mark is None or not mark.covers(batch):
        return _OPEN
    if mark.forgot(batch):
        return f"is older than the batches whose numbers of rows are kept for this log, and has {rows}"
    return (
        f"has {counted(rows, 'row')} for this log, which has later batches up to {mark.batch} and nothing of this one"
    )


def _judge_old(publication: Publication, floor: Floor, histories: Mapping[str, LogHistory | None]) -> dict[str, str]:
    """Return the findings (`_finding`) for logs that an older dlspark may have written."""
    batch, rows = publication.job.batch, publication.rows_by_log
    findings: dict[str, str] = {}
    asked: list[set[int]] = []
    for log, history in histories.items():
        if floor.zxid and (history is None or _never_reached(history, floor.zxid)):
            findings[log] = _OPEN
            continue
        findings[log] = (
            "was published by an older dlspark, which did not note into which logs; nothing shows that the "
            f"{rows[log]} rows that it has for this log are there"
        )
        if history is None or not floor.zxid or history.born in history.brought or floor.zxid not in history.brought:
            continue  # copied, renamed, or not a log that the sink has written to last
        if batch == floor.mark.batch:
            # The transaction that moved the mark also made this batch's segments.
            brought = history.brought[floor.zxid]
            findings[log] = (
                _COVERED
                if brought == rows[log]
                else f"was published with {counted(brought, 'row')} into this log, and now has {rows[log]}"
            )
        elif floor.mark.rows_of(batch) == publication.rows:
            # Earlier transactions that brought just as many records: one of them may be this batch's.
            asked.append({zxid for zxid, n in history.brought.items() if zxid < floor.zxid and n == rows[log]})
    old = [log for log, finding in findings.items() if finding != _OPEN]
    # A batch was published into all of its logs by one transaction (D16), so they must have a candidate in common.
    if batch < floor.mark.batch and len(asked) == len(old) and asked and set.intersection(*asked):
        findings |= dict.fromkeys(old, _COVERED)
    return findings


def _never_reached(history: LogHistory, zxid: int) -> bool:
    """Return whether no transaction up to this one can have brought anything into the log.

    What was renamed, or copied, was made again with all that it holds: its age is not that of its records.
    """
    return history.untouched or (history.born > zxid and history.born not in history.brought)


def _emptied(batch: int, state: SinkState, marks: Mapping[str, Versioned[LogMark]]) -> dict[str, str]:
    """Return the logs that a batch without rows could write to, and that have it with some."""
    found = {log: mark.value.rows_of(batch) for log, mark in marks.items()}
    differing = {
        log: f"was published with {counted(rows, 'row')} into this log, and now has none"
        for log, rows in found.items()
        if rows is not None
    }
    old = state.floor.mark.rows_of(batch) if state.floor is not None and not differing else None
    return {"": f"was published with {counted(old, 'row')} by an older dlspark, and now has none"} if old else differing


def replay_differs_error(publication: Publication, progress: BatchProgress) -> ReplayDiffersError:
    """Return the error for a batch with logs that differ.

    Spark repeats a batch with the rows it had: their place is in the checkpoint. A checkpoint that was rolled back (or
    copied, and run twice) has lost that, and may cut the same rows into other batches under the same numbers.
    """
    log, why = next(iter(progress.differing.items()))
    others = f" (and so for {', '.join(list(progress.differing)[1:6])})" if len(progress.differing) > 1 else ""
    return ReplayDiffersError(
        f"{publication.job} {why}{others}: it is another batch, or may be (the checkpoint was rolled back or copied, a "
        "number was used twice, or the query gives other rows when it is repeated); nothing of it was published now",
        log=log or None,
        advice="Go on from the newest checkpoint; or start with an empty one, or with another txnAppId, after looking "
        "at the log's end. failOnDataLoss=false skips such rows, though they may be new, and publishes the others",
    )


def check_above(log: str, highest_txid: int, first: OrderedPart) -> None:
    """Raise unless the batch's first id may follow the log's highest (equal is fine)."""
    if highest_txid == MAX_TXID:
        raise log_sealed_error(log)
    if first.first_txid < highest_txid:
        raise TransactionOrderError(
            f"The batch begins at transaction id {first.first_txid}, below the log's highest, {highest_txid}; "
            "nothing of the batch is visible",
            log=log,
            advice="Write rows in the order of their ids, drop those below the log's highest, "
            "or leave transaction_id out: the batch then carries its own timestamp",
        )


def log_sealed_error(log: str) -> BatchRefusedError:
    """Return the error for a log that takes no more records."""
    return BatchRefusedError(
        "The log has been sealed by an end-of-stream record and takes no more records; nothing of the batch is visible",
        log=log,
        advice="Write to another log",
    )


def batch_swept_error(job: JobId) -> BatchSweptError:
    """Return the error for a job whose ledgers, or whose sink, a sweep has taken for abandoned."""
    return BatchSweptError(
        f"What attempt {job.attempt} had staged for {job} was swept as abandoned; nothing of the batch is visible",
        advice="Run the write again",
    )
