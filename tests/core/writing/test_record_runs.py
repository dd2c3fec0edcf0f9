"""Runs: many records given to a writer as one write have the fates that they would have one by one."""

from __future__ import annotations

import asyncio

import pytest
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import EntryBuilder
from dlspark.core.codec.records import HEADER_BYTES, MAX_LOGRECORDSET_SIZE
from dlspark.core.writing.acknowledgements import Appended
from dlspark.core.writing.proxy_writes import append_run, write_run
from dlspark.core.writing.record_runs import run_of
from dlspark.errors import (
    EndOfStreamError,
    InvalidRecordError,
    OverCapacityError,
    RecordTooLongError,
    TransactionIdOutOfOrderError,
    TransmitError,
    WriteCancelledError,
    WriteError,
)
from metadata.foundation.errors import InvariantViolation
from storage_node.protocol.schema import Status


class Fates:
    """What became of the records of one run, by their numbers."""

    def __init__(self, records):
        self.of = [None] * records
        self.parts = []

    def ended(self, first, count, outcome):
        self.parts.append((first, count))
        assert self.of[first : first + count] == [None] * count, "an outcome comes once"
        fates = outcome.first.run(count) if isinstance(outcome, Appended) else [outcome] * count
        self.of[first : first + count] = fates

    async def known(self):
        await until(lambda: None not in self.of)
        return self.of


def _write(writer, records, *, bulk):
    fates = Fates(len(records))
    write_run(writer, [txid for txid, _ in records], [payload for _, payload in records], fates.ended, bulk=bulk)
    return fates


async def _read(namespace, name):
    async with await (await namespace.open_log(name)).open_reader() as reader:
        records = []
        while more := await reader.read_available(1000, wait=True):
            records += more
        return records


# ---------------------------------------------------------------------- bytes


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_run_in_an_entry_is_what_its_records_are_one_by_one(before):
    records = [(5, b""), (5, b"x" * 300), (9, b"yy")]
    together, alone = EntryBuilder(), EntryBuilder()
    for builder in (together, alone):
        for number in range(before):
            builder.add(number, b"before", number + 1)
    together.add_run([txid for txid, _ in records], [payload for _, payload in records], before + 1)
    for number, (txid, payload) in enumerate(records):
        alone.add(txid, payload, before + 1 + number)
    assert (together.size, together.count, together.room) == (alone.size, alone.count, alone.room)
    assert together.finish() == alone.finish()


def test_a_run_for_which_there_is_no_room_is_not_put_into_an_entry():
    builder = EntryBuilder()
    payloads = [bytes(500_000), bytes(600_000)]
    with pytest.raises(InvariantViolation):
        builder.add_run([1, 1], payloads, 1)
    with pytest.raises(InvariantViolation):
        builder.add_run([1, 1], [b"", b""], 2**31 - 1)
    assert builder.count == 0
    builder.add_run([1], payloads[:1], 1)
    assert builder.room == MAX_LOGRECORDSET_SIZE - 13 - HEADER_BYTES - 500_000


@pytest.mark.parametrize(
    ("txids", "payloads", "error"),
    [
        ([1, True], [b"a", b"b"], InvalidRecordError),
        ([1, 2.0], [b"a", b"b"], InvalidRecordError),
        ([1, -1], [b"a", b"b"], TransactionIdOutOfOrderError),
        ([1, 2**63 - 1], [b"a", b"b"], TransactionIdOutOfOrderError),
        ([1, 2], [b"a", "b"], InvalidRecordError),
        ([1, 2], [b"a", None], InvalidRecordError),
        ([1, 2], [b"a", bytes(1_040_365)], RecordTooLongError),
    ],
)
def test_a_run_has_no_record_that_may_not_be_written(txids, payloads, error):
    with pytest.raises(error):
        run_of(txids, payloads)


def test_a_run_owns_its_payloads():
    changed = bytearray(b"before")
    run = run_of((1, 1), (changed, memoryview(b"view")))
    changed[:] = b"after!"
    assert list(run.payloads) == [b"before", b"view"]


def test_how_many_records_of_a_run_fit():
    run = run_of(range(4), [bytes(80)] * 4)
    assert [run.fitting(0, room) for room in (0, 99, 100, 399, 400, 10_000)] == [0, 0, 1, 3, 4, 4]
    assert [run.fitting(2, room) for room in (99, 100, 200, 10_000)] == [0, 1, 2, 2]
    assert run.part(0, 4) is run
    assert (run.part(1, 2).txids, run.part(1, 2).size) == (range(1, 3), 200)
    assert (run.in_order, run_of([1, 3, 2], [b""] * 3).in_order) == (True, False)


# ---------------------------------------------------------------------- fates


@pytest.mark.parametrize("bulk", [True, False])
async def test_the_records_of_a_run_lie_side_by_side(namespace, bulk):
    async with await (await namespace.open_log("run")).open_writer() as writer:
        before = writer.write(1, b"before")
        fates = _write(writer, [(2, b"a"), (2, b"b"), (3, b"c")], bulk=bulk)
        await writer.flush()
        assert await before == DLSN(1, 0, 0)
        assert await fates.known() == [DLSN(1, 1, slot) for slot in range(3)]
    records = await _read(namespace, "run")
    assert [(record.txid, record.payload, record.position) for record in records] == [
        (1, b"before", 1),
        (2, b"a", 2),
        (2, b"b", 3),
        (3, b"c", 4),
    ]


@pytest.mark.parametrize("bulk", [True, False])
async def test_a_run_that_waits_for_a_segment_is_written_in_its_place(memory_cluster, bulk):
    namespace = await memory_cluster.namespace()
    async with await (await namespace.open_log("first")).open_writer() as writer:
        fates = _write(writer, [(1, b"a"), (1, b"b")], bulk=bulk)
        behind = _write(writer, [(1, b"c")], bulk=not bulk)
        assert writer.unacknowledged == 3
        await writer.flush()
        assert [*await fates.known(), *await behind.known()] == [DLSN(1, 0, slot) for slot in range(3)]
    assert [record.payload for record in await _read(namespace, "first")] == [b"a", b"b", b"c"]


async def test_a_run_that_is_too_long_for_an_entry_is_answered_entry_by_entry(namespace):
    records = [(number, b"%d" % number + bytes(300_000)) for number in range(8)]
    async with await (await namespace.open_log("long")).open_writer() as writer:
        fates = _write(writer, records, bulk=True)
        await writer.flush()
        places = await fates.known()
    assert fates.parts == [(0, 3), (3, 3), (6, 2)]
    assert places == [DLSN(1, number // 3, number % 3) for number in range(8)]
    found = await _read(namespace, "long")
    assert [(one.txid, one.payload, one.dlsn) for one in found] == [
        (*record, place) for record, place in zip(records, places, strict=True)
    ]


@pytest.mark.parametrize(("bulk", "parts"), [(True, [(0, 6)]), (False, [(0, 3), (3, 3)])])
async def test_records_that_are_no_bulk_are_sent_as_soon_as_they_are_enough_for_an_entry(memory_cluster, bulk, parts):
    namespace = await memory_cluster.namespace(output_buffer_bytes=100)
    async with await (await namespace.open_log("small")).open_writer() as writer:
        await asyncio.gather(writer.write(1, b"first"), writer.flush())
        fates = _write(writer, [(1, bytes(30))] * 6, bulk=bulk)
        await fates.known()
    assert fates.parts == parts


@pytest.mark.parametrize("wrong", [(1, b"below those before it"), (3, bytes(1_100_000)), (3, "text")])
@pytest.mark.parametrize("bulk", [True, False])
async def test_of_a_run_with_a_wrong_record_the_others_have_the_fates_that_they_have_one_by_one(namespace, wrong, bulk):
    async with await (await namespace.open_log("wrong")).open_writer() as writer:
        fates = _write(writer, [(2, b"a"), wrong, (3, b"c")], bulk=bulk)
        await writer.flush()
        before, refused, behind = await fates.known()
    assert before == DLSN(1, 0, 0)
    assert isinstance(refused, (TransactionIdOutOfOrderError, RecordTooLongError, InvalidRecordError))
    if bulk:
        assert isinstance(behind, WriteCancelledError)
        assert behind.__cause__ is None
    else:
        assert behind == DLSN(1, 0, 1)
    kept = [b"a"] if bulk else [b"a", b"c"]
    assert [record.payload for record in await _read(namespace, "wrong")] == kept


@pytest.mark.parametrize("bulk", [True, False])
async def test_over_a_limit_of_records_the_first_ones_are_taken(memory_cluster, bulk):
    namespace = await memory_cluster.namespace(outstanding_write_limit=2, write_limit_dark_mode=False)
    async with await (await namespace.open_log("limit")).open_writer() as writer:
        fates = _write(writer, [(1, b"a"), (1, b"b"), (1, b"c"), (1, b"d")], bulk=bulk)
        await writer.flush()
        *taken, over, behind = await fates.known()
        assert writer.over_limit == (1 if bulk else 2)
    assert taken == [DLSN(1, 0, 0), DLSN(1, 0, 1)]
    assert [type(over), type(behind)] == [OverCapacityError, WriteCancelledError if bulk else OverCapacityError]


@pytest.mark.parametrize("bulk", [True, False])
async def test_what_refuses_a_run_as_a_whole_is_every_records_unless_they_are_a_bulk(namespace, bulk):
    writer = await (await namespace.open_log("sealed")).open_writer()
    await writer.mark_end_of_stream()
    fates = _write(writer, [(1, b"a"), (1, b"b"), (1, b"c")], bulk=bulk)
    behind = WriteCancelledError if bulk else EndOfStreamError
    assert [type(fate) for fate in await fates.known()] == [EndOfStreamError, behind, behind]
    await writer.close()


@pytest.mark.parametrize("bulk", [True, False])
async def test_records_that_were_accepted_are_refused_alike(memory_cluster, bulk):
    namespace = await memory_cluster.namespace(ensemble_size=5, write_quorum=5)
    writer = await (await namespace.open_log("five")).open_writer()
    fates = _write(writer, [(1, b"a"), (1, b"b")], bulk=bulk)
    assert [type(fate) for fate in await fates.known()] == [WriteError, WriteError]
    with pytest.raises(WriteError):
        await writer.close()


async def test_a_run_that_was_sent_and_one_that_was_not_end_differently(memory_cluster):
    namespace = await memory_cluster.namespace()
    writer = await (await namespace.open_log("failed")).open_writer()
    await asyncio.gather(writer.write(1, b"one"), writer.flush())
    for bookie in memory_cluster.bookies:
        bookie.hold_adds, bookie.reject = True, Status.EFENCED
    sent = _write(writer, [(2, b"a"), (2, b"b")], bulk=True)
    writer.push()
    buffered = _write(writer, [(2, b"c"), (2, b"d")], bulk=False)
    await until(lambda: any(bookie._held for bookie in memory_cluster.bookies))
    for bookie in memory_cluster.bookies:
        bookie.release()
    assert [type(fate) for fate in await sent.known()] == [TransmitError] * 2
    assert [type(fate) for fate in await buffered.known()] == [WriteCancelledError] * 2
    assert all(fate.__cause__ is not None for fate in buffered.of), "not to be taken for one behind a refused record"
    await writer.abort()


async def test_a_run_need_not_be_durable(memory_cluster):
    namespace = await memory_cluster.namespace(durable_writes=False)
    async with await (await namespace.open_log("taken")).open_writer() as writer:
        fates = _write(writer, [(1, b"a"), (1, b"b")], bulk=True)
        assert await fates.known() == [DLSN.INVALID] * 2
    assert [record.payload for record in await _read(namespace, "taken")] == [b"a", b"b"]


async def test_outcomes_come_in_the_order_of_the_records_in_one_turn(namespace):
    """A future tells its outcome a turn of the loop later: a record behind it must not be heard of before."""
    async with await (await namespace.open_log("order")).open_writer(producers=True) as writer:
        await asyncio.gather(writer.write(1, b"first"), writer.flush())
        heard = []
        append_run(writer, [1], [b"a"], lambda *_: heard.append("append"))
        write_run(writer, [1], [b"b"], lambda *_: heard.append("run"), bulk=False)
        append_run(writer, [1], [b"c"], lambda *_: heard.append("append behind"))
        await writer.flush()
        assert heard == ["append", "run", "append behind"]


async def test_who_fails_to_take_an_outcome_takes_no_others_away(namespace, caplog):
    def fail(*_):
        raise ValueError("not taken")

    async with await (await namespace.open_log("deaf")).open_writer() as writer:
        write_run(writer, [1], [b"a"], fail, bulk=False)
        fates = _write(writer, [(1, b"b")], bulk=False)
        behind = writer.write(1, b"c")
        await writer.flush()
        assert await fates.known() == [DLSN(1, 0, 1)]
        assert await behind == DLSN(1, 1, 0)
    assert "the outcome of a write was not taken" in caplog.text
