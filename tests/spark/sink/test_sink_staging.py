"""A task's staging: entries, segments and their metadata, with ledgers that only remember what was added."""

from __future__ import annotations

import asyncio
import random

import pyarrow as pa
import pytest

from dlspark.core.codec.entries import Compression
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.spark.errors import BatchRefusedError, TransactionOrderError
from dlspark.spark.sink.columns import SinkColumns
from dlspark.spark.sink.messages import IdOrigin, StagedSegment
from dlspark.spark.sink.segments import task as sink_task
from dlspark.spark.sink.segments.task import StageSettings, TaskWriter, WriteWindow
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from metadata.foundation.errors import InvariantViolation
from storage_node.errors import QuorumWriteError

BOTH = SinkColumns(value=0, transaction_id=1, log=2, one_log=None)


class RememberedLedger:
    """Stands where a LedgerWriter would; adds are acknowledged when the test says so, or at once."""

    def __init__(self, ledger_id: int, *, hold: bool = False) -> None:
        self.ledger_id = ledger_id
        self.entries: list[bytes] = []
        self.adds: list[asyncio.Future[int]] = []
        self.hold = hold
        self.closed = self.abandoned = False
        self.last_entry_lie = 0

    @property
    def last_add_pushed(self) -> int:
        return len(self.entries) - 1

    def add(self, *payload: bytes) -> asyncio.Future[int]:
        self.entries.append(b"".join(bytes(part) for part in payload))
        add = asyncio.get_running_loop().create_future()
        if not self.hold:
            add.set_result(self.last_add_pushed)
        self.adds.append(add)
        return add

    async def wait_for_room(self) -> None:
        return None

    async def close(self) -> LedgerMetadata:
        self.closed = True
        last = self.last_add_pushed + self.last_entry_lie
        return LedgerMetadata(3, 3, 2, (Ensemble(0, ("a", "b", "c")),), LedgerState.CLOSED, last)

    async def abandon(self) -> None:
        self.abandoned = True


class Task:
    def __init__(
        self,
        columns: SinkColumns = BOTH,
        *,
        max_segment_bytes: int = 1 << 40,
        compression: Compression = Compression.NONE,
        hold: bool = False,
        stamps: dict[str, int] | None = None,
    ) -> None:
        self.ledgers: list[RememberedLedger] = []
        self.hold = hold
        self.stamps = stamps or {}
        settings = StageSettings(columns, compression, max_segment_bytes, partition=4)
        self.writer = TaskWriter(settings, self.create, self.stamp)  # type: ignore[arg-type]

    async def create(self, _log: str) -> RememberedLedger:
        self.ledgers.append(RememberedLedger(100 + len(self.ledgers), hold=self.hold))
        return self.ledgers[-1]

    async def stamp(self, log: str, timed: bool) -> int:
        if timed:
            return self.stamps.get(log, -1)
        return self.stamps.get(log, 1000)

    async def feed(self, batch: pa.RecordBatch) -> None:
        rows = self.writer.split(batch)
        await self.writer.meet(self.writer.unmet(rows))
        for cut in self.writer.take(rows):
            await self.writer.send(cut)

    async def finish(self) -> tuple[StagedSegment, ...]:
        for cut in self.writer.rest():
            await self.writer.send(cut)
        return await self.writer.finish()

    def records(self, segment: StagedSegment) -> list[tuple[int, bytes, int]]:
        ledger = next(ledger for ledger in self.ledgers if ledger.ledger_id == segment.ledger_id)
        rows = decode_entries(
            [(n, memoryview(entry)) for n, entry in enumerate(ledger.entries)], lssn=1, start_sequence_id=0
        )
        assert (rows.entry_id[-1], rows.slot_id[-1]) == (segment.last_entry, segment.last_slot)
        assert len(rows) == segment.record_count
        assert rows.position.tolist() == list(range(1, len(rows) + 1))
        assert (rows.txid[0], rows.txid[-1]) == (segment.first_txid, segment.last_txid)
        return list(zip(rows.txid.tolist(), rows.payload.to_pylist(), rows.position.tolist(), strict=True))


def arrow(rows: list[tuple[int, str, bytes]]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([value for _, _, value in rows], pa.binary()),
            pa.array([txid for txid, _, _ in rows], pa.int64()),
            pa.array([log for _, log, _ in rows], pa.string()),
        ],
        names=["value", "transaction_id", "log"],
    )


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("seed", range(5))
async def test_every_row_lands_once_in_its_logs_segment_in_order(seed: int, compression: Compression) -> None:
    rng = random.Random(seed)
    task = Task(compression=compression)
    expected: dict[str, list[tuple[int, bytes]]] = {}
    txid = 0
    for _ in range(8):
        rows = []
        for _ in range(rng.randrange(2000)):
            txid += rng.choice([0, 1, 7])
            log = rng.choice(["a", "b", "c/d"])
            value = rng.randbytes(rng.choice([0, 10, 300, 3000]))
            rows.append((txid, log, value))
            expected.setdefault(log, []).append((txid, value))
        await task.feed(arrow(rows))
    segments = await task.finish()
    assert [segment.log for segment in segments] == list(expected)
    for segment in segments:
        assert [(t, value) for t, value, _ in task.records(segment)] == expected[segment.log]
        assert segment.user_bytes == sum(len(value) for _, value in expected[segment.log])
        assert (segment.partition, segment.ordinal, segment.origin) == (4, 0, IdOrigin.GIVEN)
    assert all(ledger.closed for ledger in task.ledgers)


async def test_small_arrow_batches_are_gathered_into_full_entries() -> None:
    task = Task()
    for n in range(300):
        await task.feed(arrow([(n, "a", bytes(10_000))]))
    (segment,) = await task.finish()
    assert segment.record_count == 300
    assert segment.last_entry + 1 <= 300 * 10_100 // sink_task.ENTRY_BYTES + 4


async def test_a_segment_ends_at_its_size_and_the_next_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task, "PENDING_BYTES", 10_000)
    task = Task(max_segment_bytes=50_000)
    expected = []
    for n in range(100):
        expected.append((n, bytes([n]) * 3000))
        await task.feed(arrow([(n, "a", expected[-1][1])]))
    segments = await task.finish()
    assert [segment.ordinal for segment in segments] == list(range(len(segments)))
    assert len(segments) >= 5
    assert [(t, value) for segment in segments for t, value, _ in task.records(segment)] == expected


async def test_gathered_bytes_are_bounded_over_all_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task, "MAX_PENDING_BYTES", 100_000)
    task = Task()
    for n in range(60):
        await task.feed(arrow([(n, f"log{n}", bytes(5_000))]))
        assert task.writer._pending_bytes <= 110_000
    assert len(await task.finish()) == 60


async def test_rows_without_ids_carry_the_batchs_time_or_the_logs_highest() -> None:
    task = Task(SinkColumns(0, None, 2, None), stamps={"b": 5000})
    await task.feed(arrow([(1, "a", b"1"), (9, "b", b"2"), (0, "a", b"3")]))
    segments = await task.finish()
    assert [(s.log, s.first_txid, s.last_txid, s.origin) for s in segments] == [
        ("a", 1000, 1000, IdOrigin.STAMPED),
        ("b", 5000, 5000, IdOrigin.STAMPED),
    ]
    assert [value for _, value, _ in task.records(segments[0])] == [b"1", b"3"]


async def test_a_task_without_rows_makes_no_ledger() -> None:
    task = Task()
    await task.feed(arrow([]))
    assert await task.finish() == ()
    assert task.ledgers == []


async def test_ids_that_decrease_between_arrow_batches_are_refused_in_the_task() -> None:
    task = Task()
    await task.feed(arrow([(5, "a", b"1"), (1, "b", b"1")]))
    await task.feed(arrow([(2, "b", b"1")]))
    with pytest.raises(TransactionOrderError, match="decrease in task 4: 4 follows 5"):
        await task.feed(arrow([(4, "a", b"1")]))


async def test_too_many_logs_in_one_task_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task, "MAX_LOGS_PER_TASK", 3)
    task = Task()
    with pytest.raises(BatchRefusedError, match="more than 3 logs"):
        await task.feed(arrow([(n, f"log{n}", b"") for n in range(4)]))


async def test_bytes_in_flight_are_bounded_over_all_ledgers() -> None:
    window = WriteWindow(max_bytes=100)
    adds = [asyncio.get_running_loop().create_future() for _ in range(3)]
    for add in adds:
        await window.room()
        window.push(add, 50)
    waiting = asyncio.ensure_future(window.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    adds[0].set_result(0)
    await waiting
    adds[1].set_result(1)
    adds[2].set_exception(QuorumWriteError("lost"))
    with pytest.raises(QuorumWriteError):
        await window.drain()


async def test_a_failed_add_fails_the_task_and_leaves_the_ledgers_listed_for_a_sweep() -> None:
    task = Task(hold=True)
    await task.feed(arrow([(1, "a", bytes(900_000)), (2, "a", bytes(900_000))]))
    task.ledgers[0].adds[0].set_exception(QuorumWriteError("lost"))
    for add in task.ledgers[0].adds[1:]:
        add.set_exception(QuorumWriteError("lost"))
    with pytest.raises(QuorumWriteError):
        await task.finish()
    await task.writer.abandon()
    assert task.ledgers[0].abandoned
    assert not task.ledgers[0].closed


async def test_a_ledger_that_closed_elsewhere_is_never_reported() -> None:
    task = Task()
    await task.feed(arrow([(1, "a", bytes(2_000_00))]))
    for cut in task.writer.rest():
        await task.writer.send(cut)
    task.ledgers[0].last_entry_lie = -1
    with pytest.raises(InvariantViolation, match="closed at entry"):
        await task.writer.finish()
