"""A sink's task: what it does with its rows, before anything of them can be seen.

A task of which few rows come, for one log, stages nothing: where the batch may be appended, it hands its rows over in
its message (`inline_rows`). Any other task writes its rows into ledgers of its own, one for each log it meets (a new
one whenever one has grown to the namespace's segment size), closes them and reports them to the driver. No log refers
to these ledgers until the driver publishes the batch, so a task may fail, be repeated or run twice at any time. Every
ledger that exists is listed under the sink, so what is not published is found and swept.

`Staging` is the task on the event loop; its `TaskWriter` gathers rows and writes them, each ledger by a
`StagedSegmentWriter`. What a task needs from the metadata store it asks for before the rows are there, so that the
answers come while Spark fetches the rows:

| asked for | why it may be asked before the rows are there |
|---|---|
| the sink | where nothing was published up to the batch, no log has it: their marks need not be asked |
| the highest transaction ids of logs that are known by name | a timestamp is a first choice, which the commit mends |
| a ledger id, the storage nodes | an id that is not used is lost, which does no harm |

Rows of a typed frame are encoded as they are cut by log (`row_encoding`). Where the log takes ids from a column they
are times of rows: a time below the highest so far in the log and task becomes that one. Tasks may overlap then, and the
commit raises what would go back.

A ledger is made when its log has its first rows. Where the sink is known to exist, that does not wait for the sink's
state: what a replay has made in vain is listed under a batch that is published, and its commit sweeps it. Rows of a log
whose mark has reached the batch are only counted: the commit decides whether they are the rows that are there. No entry
is sent before the marks were read, and none before its ledger exists.

Encoding runs in Spark's thread while the entries of the batch before travel; the bytes in flight of all ledgers of a
task together are bounded.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlspark.core.codec.entries import Compression, EncodedEntry
from dlspark.core.runtime import Runtime
from dlspark.spark.errors import BatchRefusedError
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.columns import MAX_NUM_LOGS, SinkColumns
from dlspark.spark.sink.commit_modes import CommitMode, commit_way
from dlspark.spark.sink.inline_rows import gather_inline
from dlspark.spark.sink.log_rows import LogRows, check_order
from dlspark.spark.sink.messages import IdOrigin, JobId, SinkMessage, StagedSegment
from dlspark.spark.sink.row_cutting import Cut, cutter, packs_rows, takes_ids_from_column
from dlspark.spark.sink.segments.staged_ledger import (
    ENTRY_BYTES,
    StagedSegmentWriter,
    WriteWindow,
    cut_entries,
    stored_bytes,
)
from dlspark.spark.sink.session import SinkSession, open_session
from dlspark.spark.worker_daemon import begin_use
from metadata.distributedlog.sinks import JOB_PREFIX
from metadata.foundation import fault_points
from metadata.foundation.errors import CallerError, DistributedLogError, NoNodeError
from metadata.foundation.pacing import for_each
from metadata.foundation.tasks import end_tasks
from storage_node.client.writer import LedgerWriter

if TYPE_CHECKING:
    from dlspark.tables.declaration import Declaration

STAMPS_AHEAD = 16
"""Logs whose highest ids are asked for before there are rows for them."""
PENDING_BYTES = 4 * ENTRY_BYTES
"""Rows of one log are gathered to about this size before they are cut into entries, so that few entries are short."""
MAX_PENDING_BYTES = 64 * ENTRY_BYTES
"""Most bytes gathered over all logs of a task; above it, everything gathered is written."""
MAX_LOGS_PER_TASK = MAX_NUM_LOGS
"""Most logs that one task may write: each has a ledger open at once."""
LOGS_AT_ONCE = 16
"""Ledgers that are made, and closed, at the same time."""
ROLL_POSITION = 2**31 - 2**24
"""A segment ends before its positions do (31 bits): one cut holds far fewer records than the difference."""
RECORD_HEADER_BYTES = 20


def run_task(
    options: Options,
    columns: SinkColumns,
    job: JobId,
    partition: int,
    stamp_ms: int,
    batches: Iterator[pa.RecordBatch],
) -> SinkMessage:
    """Stage a task's rows, or hand them over where they are few; called in Spark's thread.

    Args:
        options: the options of the write.
        columns: where the sink's columns are in `batches`.
        job: whose batch the task writes.
        partition: the task's number in the job.
        stamp_ms: the time that rows without a transaction id carry, the same for each task of the job.
        batches: the rows.

    Rows for logs that have the batch (a replay) are counted and not written. The same holds if that turns out only when
    something goes wrong: another driver may have published the batch and swept what this task was writing.
    """
    begin_use()
    way = commit_way(options, numbered=not job.sink_id.startswith(JOB_PREFIX))
    share = way.share(partition)
    find = functools.partial(_find_declared, options) if columns.typed is not None else None
    if share and not (way.mode is CommitMode.AUTO and packs_rows(columns)):
        cut = cutter(columns, f"task {partition}", find, one_row=True)
        inline, looked_at = gather_inline(columns, partition, stamp_ms, share, batches, cut)
        if inline is not None:
            fault_points.reach("sink.writing")
            fault_points.reach("sink.staged")
            return SinkMessage(job, inline=inline)
        if way.proxied:
            raise way.commit_mode_error(f"Task {partition} has rows for several logs, or more than fit into a request")
        batches = chain(looked_at, batches)
    cut = cutter(columns, f"task {partition}", find)
    message = _stage_task(options, columns, cut, job, partition, stamp_ms, batches)
    fault_points.reach("sink.staged")
    return message


def _find_declared(options: Options, logs: Sequence[str]) -> Mapping[str, Declaration]:
    """Return what logs declare that rows have named (in Spark's thread). Raises BatchRefusedError."""

    async def find() -> Mapping[str, Declaration]:
        return await (await open_session(options)).declared.need(logs)

    return Runtime.shared().run(find())


def _stage_task(
    options: Options,
    columns: SinkColumns,
    cut: Cut,
    job: JobId,
    partition: int,
    stamp_ms: int,
    batches: Iterator[pa.RecordBatch],
) -> SinkMessage:
    runtime = Runtime.shared()
    opening = runtime.submit(_begin(options, columns, cut, job, partition, stamp_ms))
    try:
        # Spark fetches the first rows while the session opens and asks.
        first = list(islice(batches, 1))
    except Exception:
        runtime.run(opening.result().give_up())
        raise
    staging = opening.result()
    seen: Counter[str] = Counter()
    rest = chain(first, batches)
    try:
        return _stage_rows(runtime, staging, rest, seen)
    except Exception as error:
        runtime.run(staging.give_up())
        # The query's own errors, and rows that are refused, do not come from another driver's publication.
        if not isinstance(error, DistributedLogError) or isinstance(error, CallerError):
            raise
        return _replayed(runtime, staging, rest, seen, error)


async def _begin(
    options: Options, columns: SinkColumns, cut: Cut, job: JobId, partition: int, stamp_ms: int
) -> Staging:
    return Staging(await open_session(options), job, columns, partition, stamp_ms, cut)


def _stage_rows(
    runtime: Runtime, staging: Staging, batches: Iterator[pa.RecordBatch], seen: Counter[str]
) -> SinkMessage:
    """Stage all rows; `seen` counts those that were looked at, by log."""
    task = staging.task
    sender = _EntrySender(runtime, task)
    for batch in batches:
        rows = task.split(batch)
        _count(rows, seen)
        unmet = task.unmet(rows)
        if unmet:
            runtime.run(staging.meet(unmet))
        for cut in task.take(rows):
            sender.send(cut)
    for cut in task.rest():
        sender.send(cut)
    sender.drain()
    fault_points.reach("sink.writing")
    return SinkMessage(staging.job, runtime.run(staging.finish()), task.covered)


def _replayed(
    runtime: Runtime, staging: Staging, rest: Iterator[pa.RecordBatch], seen: Counter[str], error: DistributedLogError
) -> SinkMessage:
    """Return the message of a task that failed, if all of its logs have the batch by now. Raises `error` if one has
    not."""
    # The rows that were not looked at yet count as well: the commit compares rows by number.
    for batch in rest:
        _count(staging.task.split(batch), seen)
    if not seen or runtime.run(staging.session.covered(staging.job, list(seen))) != set(seen):
        raise error
    return SinkMessage(staging.job, covered=tuple(sorted(seen.items())))


def _count(rows: Sequence[LogRows], seen: Counter[str]) -> None:
    for part in rows:
        seen[part.log] += part.row_count


class _EntrySender:
    """Sends cuts in order, one at a time on the event loop while the next one is being encoded."""

    def __init__(self, runtime: Runtime, task: TaskWriter) -> None:
        self._runtime = runtime
        self._task = task
        self._under_way: Future[None] | None = None

    def send(self, cut: EntriesToSend) -> None:
        self.drain()  # one cut at a time: a log's entries are sent in the order of its rows (I4)
        self._under_way = self._runtime.submit(self._task.send(cut))

    def drain(self) -> None:
        """Wait for the cut under way. Raises what it failed with."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()


class Staging:
    """A task under way. Made on the event loop, as all coroutines run there; ended by `finish` or `give_up`."""

    def __init__(
        self,
        session: SinkSession,
        job: JobId,
        columns: SinkColumns,
        partition: int,
        stamp_ms: int,
        cut: Cut | None = None,
    ) -> None:
        self.session = session
        self.job = job
        settings = StageSettings(columns, session.compression, session.settings.max_segment_bytes, partition, cut)
        self.task = TaskWriter(settings, self._create, self._stamp)
        self._stamp_ms = stamp_ms
        self._sink_seen = session.has_seen(job)
        self._state = asyncio.ensure_future(session.state(job))
        logs = columns.known_logs if columns.transaction_id is None else ()
        self._stamps = {
            log: asyncio.ensure_future(session.stamp(log, 0 if takes_ids_from_column(columns, log) else stamp_ms))
            for log in logs[:STAMPS_AHEAD]
        }
        session.get_ready()

    async def meet(self, rows: Sequence[LogRows]) -> None:
        """Get ready for new logs; those that have the batch are skipped from here on."""
        if self._sink_seen:
            await self.task.meet(rows)
            covered = await self._covered(rows)
        else:
            covered = await self._covered(rows)
            await self.task.meet([part for part in rows if part.log not in covered])
        await self.task.skip(covered)

    async def _covered(self, rows: Sequence[LogRows]) -> set[str]:
        """Return the logs that have the batch. Where the sink has published nothing so far, no log needs to be
        asked."""
        state = await self._state
        # This only saves work: a fork of the query may have set the state back, and the commit decides by the marks.
        if self.job.batch > state.batch:
            return set()
        return await self.session.covered(self.job, [part.log for part in rows])

    async def _create(self, log: str) -> LedgerWriter:
        try:
            return await self.session.create_ledger(self.job, log)
        except NoNodeError:
            if not self._sink_seen:
                raise
            await self._state  # The sink was removed since the last task; reading its state has created it again.
            return await self.session.create_ledger(self.job, log)

    async def _stamp(self, log: str, timed: bool) -> int:
        asked = self._stamps.pop(log, None)
        return await (self.session.stamp(log, 0 if timed else self._stamp_ms) if asked is None else asked)

    async def finish(self) -> tuple[StagedSegment, ...]:
        """Close what was written; without rows, too, the sink is there for the commit."""
        await self._state
        segments = await self.task.finish()
        await self._end()
        self.session.get_ready()  # For the next batch: Spark uses a worker again.
        return segments

    async def give_up(self) -> None:
        """Leave what was begun as it is, listed, for a sweep."""
        await self._end()
        await self.task.abandon()

    async def _end(self) -> None:
        await end_tasks([self._state, *self._stamps.values()], drop_errors=True)


@dataclass(frozen=True, slots=True)
class StageSettings:
    """The settings by which a task writes."""

    columns: SinkColumns
    compression: Compression
    max_segment_bytes: int
    partition: int
    cut: Cut | None = None
    """Cuts Arrow batches by log; None: as the columns say."""

    @property
    def task(self) -> str:
        """The task's name in messages."""
        return f"task {self.partition}"


@dataclass(frozen=True, slots=True)
class EntriesToSend:
    """Entries of one log, encoded and to be sent, and how many rows they hold; `last`: its segment has grown enough and
    ends with them."""

    log: str
    entries: list[EncodedEntry]
    last: bool
    row_count: int


@dataclass(slots=True)
class _GatheredRows:
    """Rows of one log that wait to be cut into entries, and where its segment has got to (kept in Spark's thread).

    `last_txid`: no time of a row may be below it, where ids are such times.
    """

    stamp: int | None
    origin: IdOrigin
    last_txid: int = -1
    rows: list[LogRows] = field(default_factory=list)
    row_count: int = 0
    size: int = 0
    next_position: int = 1
    stored_bytes: int = 0


@dataclass(slots=True)
class _StagedLog:
    """The open segment of one log and those closed before it (kept on the event loop)."""

    segment: StagedSegmentWriter | None = None
    row_count: int = 0
    """Rows that the open segment holds."""
    closed: list[StagedSegment] = field(default_factory=list)


class TaskWriter:
    """Stages the rows of one task. `split`, `take` and `rest` run in Spark's thread, the coroutines on the event loop.

    Args:
        settings: how the task writes.
        create: makes a listed ledger for a log.
        stamp: gives the timestamp that rows without an id carry in a log; or, if so asked, the highest id that the log
            has so far.
    """

    def __init__(
        self,
        settings: StageSettings,
        create: Callable[[str], Awaitable[LedgerWriter]],
        stamp: Callable[[str, bool], Awaitable[int]],
    ) -> None:
        self._settings = settings
        self._cut_by_log = settings.cut or cutter(settings.columns, settings.task)
        self._create = create
        self._stamp = stamp
        self._window = WriteWindow()
        self._gathered: dict[str, _GatheredRows] = {}
        self._staged: dict[str, _StagedLog] = {}
        self._ahead: dict[str, asyncio.Task[LedgerWriter]] = {}
        self._waiting: dict[str, None] = {}
        """Logs that were met and for which no ledger is being made yet, in the order in which they were met."""
        self._covered: dict[str, int] = {}
        self._pending_bytes = 0

    @property
    def covered(self) -> tuple[tuple[str, int], ...]:
        """The logs that are skipped, with the rows that came for them."""
        return tuple(sorted(self._covered.items()))

    def split(self, batch: pa.RecordBatch) -> list[LogRows]:
        """Check a batch's rows and cut them by log. Raises BatchRefusedError; nothing of the batch is taken then."""
        return self._cut_by_log(batch)

    def unmet(self, rows: Sequence[LogRows]) -> list[LogRows]:
        """Return the parts of `rows` whose log was not met before."""
        return [part for part in rows if part.log not in self._gathered and part.log not in self._covered]

    async def meet(self, rows: Sequence[LogRows]) -> None:
        """Get ready for new logs: each will have a ledger, so some are made while rows are still coming."""
        if len(self._gathered) + len(rows) > MAX_LOGS_PER_TASK:
            raise BatchRefusedError(
                f"{self._settings.task} writes more than {MAX_LOGS_PER_TASK} logs; nothing of the batch is visible",
                advice='Bring the rows of a log together: df.repartition("log")',
            )
        self._waiting |= dict.fromkeys(part.log for part in rows)
        self._make_some()
        await for_each(rows, min(len(rows), LOGS_AT_ONCE), self._meet)

    async def _meet(self, part: LogRows) -> None:
        # One stamp a log and task, taken once: ids within a segment must not decrease (I4).
        stamp = await self._stamp(part.log, part.timed) if part.txids is None or part.timed else None
        self._staged[part.log] = _StagedLog()
        if part.timed:
            self._gathered[part.log] = _GatheredRows(None, IdOrigin.TIMED, -1 if stamp is None else stamp)
        else:
            origin = IdOrigin.STAMPED if part.txids is None else IdOrigin.GIVEN
            self._gathered[part.log] = _GatheredRows(stamp, origin)

    def _make_some(self) -> None:
        """Make ledgers for the logs that wait for one, LOGS_AT_ONCE at a time."""
        while self._waiting and len(self._ahead) < LOGS_AT_ONCE:
            log = next(iter(self._waiting))
            del self._waiting[log]
            self._ahead[log] = asyncio.ensure_future(self._create(log))

    async def skip(self, logs: Iterable[str]) -> None:
        """Only count the rows of these logs, for which none was taken yet: they have the batch."""
        for log in logs:
            self._covered[log] = 0
            self._gathered.pop(log, None)
            self._staged.pop(log, None)
            self._waiting.pop(log, None)
            ahead = self._ahead.pop(log, None)
            if ahead is not None:
                await (await ahead).abandon()  # listed under a batch that the log has: its commit sweeps it

    def take(self, rows: Sequence[LogRows]) -> Iterator[EntriesToSend]:
        """Gather rows of logs that were met; gives what is large enough to be sent."""
        for part in rows:
            if part.log in self._covered:
                self._covered[part.log] += part.row_count
                continue
            gathered = self._gathered[part.log]
            if part.timed and part.txids is not None:
                part = replace(part, txids=np.maximum.accumulate(np.maximum(part.txids, gathered.last_txid)))
            else:
                check_order(part.txids, part.log, self._settings.task, gathered.last_txid)
            if part.txids is not None:
                gathered.last_txid = int(part.txids[-1])
            size = part.values.nbytes + RECORD_HEADER_BYTES * len(part.values)
            gathered.rows.append(part)
            gathered.row_count += part.row_count
            gathered.size += size
            self._pending_bytes += size
            if gathered.size >= PENDING_BYTES:
                yield self._cut(part.log, gathered)
        if self._pending_bytes > MAX_PENDING_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[EntriesToSend]:
        """Yield everything gathered and not yet given."""
        for log, gathered in self._gathered.items():
            if gathered.rows:
                yield self._cut(log, gathered)

    def _cut(self, log: str, gathered: _GatheredRows) -> EntriesToSend:
        parts = [part.values for part in gathered.rows]
        values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        entries = cut_entries(
            self._txids(gathered, len(values)), values, gathered.next_position, self._settings.compression
        )
        self._pending_bytes -= gathered.size
        row_count = gathered.row_count
        gathered.rows, gathered.row_count, gathered.size = [], 0, 0
        gathered.next_position += len(values)
        gathered.stored_bytes += sum(map(stored_bytes, entries))
        last = gathered.stored_bytes >= self._settings.max_segment_bytes or gathered.next_position > ROLL_POSITION
        if last:
            gathered.next_position, gathered.stored_bytes = 1, 0
        return EntriesToSend(log, entries, last, row_count)

    def _txids(self, gathered: _GatheredRows, count: int) -> npt.NDArray[np.int64]:
        if gathered.stamp is not None:
            return np.full(count, gathered.stamp, dtype=np.int64)
        return np.concatenate([part.txids for part in gathered.rows if part.txids is not None])

    async def send(self, cut: EntriesToSend) -> None:
        """Send entries to the log's segment, beginning one if none is open."""
        staged = self._staged[cut.log]
        if staged.segment is None:
            ahead = self._ahead.pop(cut.log, None)
            self._waiting.pop(cut.log, None)
            self._make_some()
            # Entries wait until the ledger's metadata exist: a storage node deletes entries of a ledger that the
            # metadata do not list (I13).
            staged.segment = StagedSegmentWriter(
                await (self._create(cut.log) if ahead is None else ahead), self._window
            )
        for entry in cut.entries:
            await staged.segment.add(entry)
        staged.row_count += cut.row_count
        if cut.last:
            await self._close(cut.log, staged)

    async def finish(self) -> tuple[StagedSegment, ...]:
        """Close every segment, with every entry acknowledged. Raises the first failure; nothing is visible then."""
        # Before any close: a task of which an add has failed must not offer segments to the commit (I9).
        await self._window.drain()
        await for_each(
            self._staged.items(), min(len(self._staged), LOGS_AT_ONCE), lambda item: self._close(item[0], item[1])
        )
        return tuple(segment for staged in self._staged.values() for segment in staged.closed)

    async def _close(self, log: str, staged: _StagedLog) -> None:
        if staged.segment is not None:
            segment, staged.segment = staged.segment, None
            rows, staged.row_count = staged.row_count, 0
            origin, number = self._gathered[log].origin, len(staged.closed)
            staged.closed.append(await segment.close(log, self._settings.partition, number, origin, rows))

    async def abandon(self) -> None:
        """Give up: the ledgers stay as they are, listed, for a sweep."""
        self._window.abandon()
        self._waiting.clear()
        ahead = list(self._ahead.values())
        self._ahead.clear()
        await end_tasks(ahead, drop_errors=True)
        # A task that had made its ledger before it was ended leaves an open writer.
        for creation in ahead:
            if not creation.cancelled() and creation.exception() is None:
                await creation.result().abandon()
        for staged in self._staged.values():
            if staged.segment is not None:
                await staged.segment.abandon()
