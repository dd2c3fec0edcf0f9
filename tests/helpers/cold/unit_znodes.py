"""Logs whose past lies in files, as znodes alone: there is no file, and no ledger."""

from __future__ import annotations

from dataclasses import replace

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdSegment, ColdUnit, unit_name
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.store import Create
from metadata.zookeeper.memory import MemoryStore, MemoryTree

ROOT = "s3://bucket/cold"


def segment(lssn: int) -> SegmentMetadata:
    """Return a completed segment of three records."""
    base = SegmentMetadata(ledger_id=1_000_000 + lssn, lssn=lssn, first_txid=lssn * 10, last_txid=lssn * 10 + 9)
    return replace(base, record_count=3, last_entry=2, last_slot=0, start_sequence_id=(lssn - 1) * 3)


def unit(first: int, segments: int) -> ColdUnit:
    """Return a unit whose hot copies are gone."""
    attempt = f"{first:032x}"
    url = f"{ROOT}/{'n' * 32}/{'l' * 32}/{unit_name(first, first + segments - 1)}-{attempt}.parquet"
    file = ColdFile(url, 4_000_000 + first, attempt * 2, attempt[::-1] * 2, 3 * segments, 3 * segments, {"region": "r"})
    parts = tuple(ColdSegment(segment(first + index), 3 * index, 3, 5_000_000) for index in range(segments))
    return ColdUnit(UnitState.HOT_DELETED, attempt, parts, file, 1_764_300_000_000, 1_764_300_000_000)


async def cold_log(tree: MemoryTree, units: int, segments: int, name: str = "log") -> LogStore:
    """Return the namespace of a log with so many units of so many segments each, and two hot segments behind them."""
    logs = await log_store(tree)
    await make_cold_log(logs, units, segments, name)
    return logs


async def make_cold_log(logs: LogStore, units: int, segments: int, name: str = "log") -> None:
    """Make such a log."""
    await logs.create(name)
    await ColdStore(logs).ensure(name)
    paths = logs.paths(name)
    for first in range(0, units, 100):
        some = [unit(1 + index * segments, segments) for index in range(first, min(first + 100, units))]
        await logs.store.multi([Create(f"{paths.cold_units}/{one.name}", one.encode()) for one in some])
    await add(logs, units * segments + 1, units * segments + 2, name=name)


async def log_store(tree: MemoryTree) -> LogStore:
    """Return the namespace, in a session of its own."""
    store = MemoryStore(tree)
    if await store.exists("/ns") is None:
        await store.create("/ns")
    return LogStore(store, "/ns")


async def add(logs: LogStore, *numbers: int, name: str = "log") -> None:
    """Put segments on a log's list."""
    await logs.store.multi([Create(logs.paths(name).segment(segment(n)), segment(n).encode()) for n in numbers])


async def copy_segment(logs: LogStore, lssn: int, name: str = "log") -> Versioned[ColdUnit]:
    """Make a unit of one segment that is on the list: FINISHED."""
    copies = ColdStore(logs).copies
    attempt = await copies.begin(name, lssn, lssn, root=ROOT, worker="w", now_ms=1)
    file = ColdFile(attempt.value.url, 10, "aa", "bb", 3, 3)
    return await copies.finish(name, attempt, [ColdSegment(segment(lssn), 0, 3, 50)], file, now_ms=2)
