"""Rows of the metadata tables that belong to logs: `logs`, `segments`, `cursors`.

Fault model: storage nodes may be away, and that is when people read these tables. What only they know is null where
none answers within `ANSWER_TIMEOUT_S`, and after `PATIENCE_S` a query waits for no node any more. ZooKeeper has to
answer. A log that is deleted meanwhile has no rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.codec.vector_decoding import MAX_TIMESTAMP_MS
from dlspark.core.display.status import LogStatus, log_status
from dlspark.core.lock_owners import lock_owner
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.segments import first_active, is_truncated
from dlspark.core.reading.subscriptions import Subscriptions
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.extents import NOTHING, Extent, extent
from dlspark.spark.source.lag import lag_of
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import UNASSIGNED_SEQUENCE_ID, SegmentMetadata, TruncationStatus
from metadata.distributedlog.subscribers import READ_LOCK, SubscriberStore
from metadata.foundation.errors import (
    CorruptDataError,
    DistributedLogError,
    MetadataUnavailableError,
    NoAuthError,
    NoNodeError,
)
from metadata.retry import repeat
from metadata.store import Stat

Row: TypeAlias = dict[str, object]
"""Columns by name; those that are missing are null. Times are microseconds since the epoch."""

ANSWER_TIMEOUT_S: Final = 5.0
"""How long storage nodes may take to answer for one log."""
PATIENCE_S: Final = 30.0
"""How long a query waits for them over all logs together."""
MAX_REQUESTS: Final = 64
"""Requests to ZooKeeper that are under way at a time."""

_T = TypeVar("_T")


def micros(milliseconds: int | None) -> int | None:
    """Return a point in time as a timestamp column has it; null for what is not a time: 0, and what lies beyond the
    year 9999."""
    return milliseconds * 1000 if milliseconds is not None and 0 < milliseconds <= MAX_TIMESTAMP_MS else None


def distinct_nodes(ledger: LedgerMetadata) -> list[str]:
    """Return the ids of all nodes that a ledger has entries on, in the order in which they came."""
    return list(dict.fromkeys(node for ensemble in ledger.ensembles for node in ensemble.bookies))


class LogTables:
    """Makes the rows of one query, log by log."""

    def __init__(self, namespace: AsyncNamespace) -> None:
        self._namespace = namespace
        self._services = namespace.services
        self._room = asyncio.Semaphore(MAX_REQUESTS)
        self._until = asyncio.get_running_loop().time() + PATIENCE_S

    # ------------------------------------------------------------------ logs

    async def log(self, name: str) -> list[Row]:
        """Return the row of one log. Raises LogNotFoundError."""
        try:
            status = await log_status(self._services, name)
        except (CorruptDataError, NoAuthError) as error:
            return [{"log": name, "error": f"{type(error).__name__}: {error.message}"}]
        completed = [one for one in status.segments if not one.in_progress]
        in_progress = [one for one in status.segments if one.in_progress]
        row: Row = {
            "log": name,
            "earliest": str(status.start),
            "segments": len(status.segments),
            "open_segment": in_progress[-1].lssn if in_progress else None,
            "sealed": status.sealed,
            "writer": status.owner,
            "created_at": await self._created(name),
            "completed_at": micros(max((one.completion_time_ms for one in completed), default=0)),
        }
        return [row | await self._extent_of(name, status)]

    async def _extent_of(self, name: str, status: LogStatus) -> Row:
        answer, why = await self._answered(self._whole(name))
        if answer is None:
            return {"error": why}
        earliest, latest, found = answer
        return {
            "earliest": str(earliest),
            "latest": str(latest),
            "records": found.records,
            "bytes": found.bytes,
            "first_transaction_id": found.first_txid,
            "last_transaction_id": found.last_txid,
        }

    async def _whole(self, name: str) -> tuple[DLSN, DLSN, Extent]:
        async with self._viewed(name) as view:
            latest = await view.latest()
            return view.earliest(), latest, await extent(view, view.earliest(), latest)

    async def _created(self, name: str) -> int | None:
        path = (await self._services.logs.located(name)).root
        stat = await self._stat(path)
        return None if stat is None else micros(stat.ctime_ms)

    # ------------------------------------------------------------------ segments

    async def segments(self, name: str) -> list[Row]:
        """Return a row a segment. Raises LogNotFoundError, CorruptDataError for a list that cannot be read."""
        listed = await self._services.logs.segments(name)
        ledgers = await asyncio.gather(*(self.ledger(one.ledger_id) for one in listed))
        return [await self._segment(name, one, ledger) for one, ledger in zip(listed, ledgers, strict=True)]

    async def _segment(self, name: str, segment: SegmentMetadata, ledger: LedgerMetadata | None) -> Row:
        row = _segment_row(name, segment, ledger)
        if not segment.in_progress:
            return row | _ended(segment, ledger)
        tail, why = await self._answered(self._tail_of(name, segment))
        return row | ({"error": why} if tail is None else _grown(tail))

    async def ledger(self, ledger_id: int) -> LedgerMetadata | None:
        """Return a ledger's metadata; None where it is gone."""
        try:
            async with self._room:
                return (await self._services.ledger_store.read(ledger_id)).value
        except NoNodeError:
            return None

    async def _tail_of(self, name: str, segment: SegmentMetadata) -> OpenSegment:
        async with await self._namespace.open_log(name) as log:
            reader = await log.open_segment(segment)
            try:
                last_entry = await reader.refresh(acknowledged=False)
                last = await reader.last_user_record()
                stored = await reader.stored_bytes(last_entry) if last_entry >= 0 else 0
                if last is None:
                    return OpenSegment(None, None, 0, last_entry + 1, stored)
                return OpenSegment(last.dlsn, last.txid, last.last_position, last_entry + 1, stored)
            finally:
                await reader.close()

    # ------------------------------------------------------------------ cursors

    async def cursors(self, name: str) -> list[Row]:
        """Return a row a subscriber. Raises LogNotFoundError."""
        positions = await Subscriptions(self._services.logs, name).positions()
        if not positions:
            return []
        lags, why = await self._answered(self._lags(name, positions))
        rows: list[Row] = []
        for cursor, position in positions.items():
            path = await SubscriberStore(self._services.logs).path(name, cursor)
            stat = await self._stat(path)
            if stat is None:
                continue  # It has just been deleted.
            unset = position == DLSN.NON_INCLUSIVE_LOWER_BOUND
            rows.append(
                {
                    "log": name,
                    "cursor": cursor,
                    "position": None if unset else str(position),
                    "reader": await lock_owner(self._services, f"{path}/{READ_LOCK}"),
                    "moved_at": None if unset else micros(stat.mtime_ms),
                    "created_at": micros(stat.ctime_ms),
                    **({"error": why} if lags is None else lags[cursor]),
                }
            )
        return rows

    async def _lags(self, name: str, positions: Mapping[str, DLSN]) -> dict[str, Row]:
        async with self._viewed(name) as view:
            latest = await view.latest()
            found: dict[str, Row] = {}
            for cursor, position in positions.items():
                unset = position == DLSN.NON_INCLUSIVE_LOWER_BOUND
                lag = lag_of(NOTHING if unset else await extent(view, position, latest))
                lost = not unset and position < view.earliest() and view.lost_before(position)
                measured: Row = {
                    "lag_records": lag.records,
                    "lag_bytes": lag.bytes,
                    "lag_ms": lag.milliseconds,
                    "lost": lost,
                }
                found[cursor] = {"latest": str(latest), **({} if unset else measured)}
            return found

    # ------------------------------------------------------------------ asking

    @asynccontextmanager
    async def _viewed(self, name: str) -> AsyncIterator[DriverLogView]:
        view = await DriverLogView.open(self._namespace, name)
        try:
            yield view
        finally:
            await view.close()

    async def _stat(self, path: str) -> Stat | None:
        return await repeat(self._services.store, lambda: self._services.store.exists(path))

    async def _answered(self, question: Awaitable[_T]) -> tuple[_T | None, str | None]:
        """Return what storage nodes answer; None and the reason where they do not in time, or their data are damaged.

        Raises what the metadata store raises: MetadataUnavailableError, LogNotFoundError.
        """
        left_s = self._until - asyncio.get_running_loop().time()
        limit_s = max(min(ANSWER_TIMEOUT_S, left_s), 0.0)
        try:
            return await asyncio.wait_for(question, limit_s), None
        except asyncio.TimeoutError:
            return None, f"storage nodes did not answer within {limit_s:.1f} s"
        except (MetadataUnavailableError, LogNotFoundError):
            raise
        except DistributedLogError as error:
            return None, f"{type(error).__name__}: {error.message}"


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment in progress as storage nodes report it: its last record, and what its ledger has up to its LAC."""

    dlsn: DLSN | None
    txid: int | None
    records: int
    entries: int
    bytes: int


def segment_words(segment: SegmentMetadata) -> str:
    """Return a segment's state as the column `state` has it."""
    if segment.in_progress:
        return "in progress"
    if segment.truncation == TruncationStatus.PARTIALLY_TRUNCATED:
        return "truncated in part"
    return "truncated" if is_truncated(segment) else "completed"


def _segment_row(name: str, segment: SegmentMetadata, ledger: LedgerMetadata | None) -> Row:
    """Return what is known of a segment in any state."""
    unassigned = segment.start_sequence_id == UNASSIGNED_SEQUENCE_ID or segment.version < 5
    row: Row = {
        "log": name,
        "segment": segment.lssn,
        "ledger": segment.ledger_id,
        "state": segment_words(segment),
        "first_dlsn": None if is_truncated(segment) else str(first_active(segment)),
        "first_transaction_id": segment.first_txid,
        "first_timestamp": micros(segment.first_txid),
        "start_sequence_id": None if unassigned else segment.start_sequence_id,
        "region": segment.region,
        "version": segment.version,
        **_place(segment),
    }
    if ledger is not None:
        row |= {
            "ensemble_size": ledger.ensemble_size,
            "write_quorum": ledger.write_quorum,
            "ack_quorum": ledger.ack_quorum,
            "ledger_state": ledger.state.name,
            "nodes": distinct_nodes(ledger),
        }
    return row


def _place(segment: SegmentMetadata) -> Row:
    """Return where a segment's records are, besides or in place of its ledger."""
    cold = segment.cold
    if cold is None:
        return {"place": "hot"}
    file = cold.file
    share = None if file is None else file.bytes * cold.rows // max(1, file.rows)
    return {
        "place": "both" if cold.listed else "cold",
        "cold_file": None if file is None else file.url,
        "cold_rows": cold.rows,
        "cold_bytes": share,
    }


def _ended(segment: SegmentMetadata, ledger: LedgerMetadata | None) -> Row:
    last_txid = None if segment.last_txid == MAX_TXID else segment.last_txid
    closed = ledger is not None and ledger.is_closed
    size = ledger.length if ledger is not None and closed else None
    # A segment that lies in a file knows what its ledger had. Its last entry is in its metadata only where it has one.
    size = segment.cold.ledger_bytes if size is None and segment.cold is not None else size
    return {
        "last_dlsn": str(DLSN(segment.lssn, segment.last_entry, segment.last_slot))
        if segment.last_entry >= 0
        else None,
        "last_transaction_id": last_txid,
        "last_timestamp": micros(last_txid),
        "records": segment.record_count,
        "entries": ledger.last_entry + 1 if ledger is not None and closed else None,
        "bytes": size,
        "completed_at": micros(segment.completion_time_ms),
    }


def _grown(tail: OpenSegment) -> Row:
    return {
        "last_dlsn": None if tail.dlsn is None else str(tail.dlsn),
        "last_transaction_id": tail.txid,
        "last_timestamp": micros(tail.txid),
        "records": tail.records,
        "entries": tail.entries,
        "bytes": tail.bytes,
    }
