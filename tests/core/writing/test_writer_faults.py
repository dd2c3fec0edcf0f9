"""The writer when something fails: crashes, two owners, lost answers, storage nodes that refuse."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.writing.segment_sequence import MAX_TAKE_OVERS
from dlspark.errors import (
    OverCapacityError,
    StreamNotReadyError,
    TransactionIdOutOfOrderError,
    TransmitError,
    WriteCancelledError,
    WriteError,
    WriterDeposedError,
)
from metadata.distributedlog.locks import LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.segments import SegmentListError
from metadata.foundation.errors import DistributedLogError, NoNodeError, NotAppliedError, OutcomeUnknownError
from metadata.zookeeper.memory import Fault
from storage_node.errors import NoSuchLedgerError
from storage_node.protocol.schema import Status


async def _all(namespace, name):
    log = await namespace.open_log(name)
    async with await log.open_reader() as reader:
        records = []
        while more := await reader.read_available(1000, wait=True):
            records += more
        return records


async def _outcome(future):
    try:
        return await asyncio.wait_for(future, 60)
    except Exception as error:
        return error


async def _prepared(writer):
    """The ledger that is ready for the writer's next segment."""
    await writer._sequence._transitions.prepare()
    return writer._sequence._transitions._allocator.ledger


# ---------------------------------------------------------------------- crash and recovery


async def test_what_a_crashed_writer_was_acknowledged_is_recovered_by_the_next(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    writer = await (await one.open_log("crash")).open_writer()
    kept = [writer.write(i, b"%d" % i) for i in range(10)]
    await writer.flush()
    written = [await future for future in kept]
    buffered = writer.write(10, b"never sent")
    await memory_cluster.crash(one)
    log = await other.open_log("crash")
    writer = await log.open_writer()
    assert other.counters["segment-recovered"] == 1
    (segment,) = await log.segments()
    assert (segment.in_progress, segment.record_count, segment.last_txid) == (False, 10, 9)
    assert writer.last_txid == 9
    future = writer.write(10, b"10")
    await writer.close()
    assert await future == DLSN(2, 0, 0)
    records = await _all(other, "crash")
    assert [record.dlsn for record in records] == [*written, DLSN(2, 0, 0)]
    assert [record.sequence_id for record in records] == list(range(11))
    assert not (buffered.done() and buffered.exception() is None), "what was not sent is not acknowledged"


async def test_an_empty_segment_of_a_crashed_writer_is_removed_with_its_ledger(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    writer = await (await one.open_log("empty")).open_writer()
    for bookie in memory_cluster.bookies:
        bookie.stop()  # The segment starts in metadata, but no record reaches a node.
    writer.write(1, b"lost")
    await until(lambda: writer.segment is not None)
    (segment,) = await one.logs_store.segments("empty")
    await memory_cluster.crash(one)
    for bookie in memory_cluster.bookies:
        bookie.up = True
    log = await other.open_log("empty")
    async with await log.open_writer() as writer:
        assert await log.segments() == []
        assert other.counters["empty-segment-removed"] == 1
        assert segment.ledger_id not in [ledger async for ledger in other.ledgers._ledgers.ids()]
        future = writer.write(1, b"kept")
    assert await future == DLSN(1, 0, 0), "the number of the removed segment is used again"


async def test_recovery_that_was_interrupted_is_repeated_to_the_same_end(memory_cluster):
    one = await memory_cluster.namespace()
    writer = await (await one.open_log("twice")).open_writer()
    for i in range(3):
        writer.write(i, b"%d" % i)
    await writer.flush()
    await memory_cluster.crash(one)
    other = await memory_cluster.namespace()
    session = other.store.session_id
    # The multi that completes the segment never reaches the server; the recovering client dies.
    memory_cluster.tree.inject = lambda s, op, path: Fault.LOSE_REQUEST if s == session and op == "multi" else None
    opening = asyncio.ensure_future((await other.open_log("twice")).open_writer())
    await until(lambda: other.counters["lost-answer-not-applied"])
    opening.cancel()
    await asyncio.wait([opening])
    memory_cluster.tree.inject = None
    await memory_cluster.crash(other)
    third = await memory_cluster.namespace()
    log = await third.open_log("twice")
    async with await log.open_writer():
        (segment,) = await log.segments()
        assert (segment.in_progress, segment.record_count, segment.last_entry) == (False, 3, 0)
    assert [record.payload for record in await _all(third, "twice")] == [b"0", b"1", b"2"]


async def test_a_segment_whose_ledger_was_removed_by_a_recovery_that_died_is_removed(memory_cluster):
    one = await memory_cluster.namespace()
    log = await one.open_log("half")
    async with await log.open_writer() as writer:
        writer.write(1, b"one")
    writer = await log.open_writer()
    metadata, _ = await writer._sequence._transitions.start(1)
    await one.ledgers.delete(metadata.ledger_id)
    await memory_cluster.crash(one)
    other = await memory_cluster.namespace()
    async with await (await other.open_log("half")).open_writer() as writer:
        future = writer.write(2, b"two")
    assert await future == DLSN(2, 0, 0)
    assert other.counters["segment-without-ledger"] == 1
    assert [record.payload for record in await _all(other, "half")] == [b"one", b"two"]


@pytest.mark.parametrize("error", [NoNodeError, NoSuchLedgerError])
async def test_a_ledger_that_a_server_lagging_behind_does_not_know_yet_is_kept(memory_cluster, monkeypatch, error):
    one = await memory_cluster.namespace()
    writer = await (await one.open_log("lag")).open_writer()
    writer.write(1, b"acknowledged")
    await writer.flush()
    await memory_cluster.crash(one)
    other = await memory_cluster.namespace()
    recover, synced, sync = other.ledgers.open, [], other.store.sync

    async def behind(ledger_id, **how):
        if not synced:
            raise error("never heard of it", ledger_id=ledger_id)
        return await recover(ledger_id, **how)

    async def catch_up(path):
        synced.append(path)
        await sync(path)

    log = await other.open_log("lag")
    monkeypatch.setattr(other.ledgers, "open", behind)
    monkeypatch.setattr(other.store, "sync", catch_up)
    await (await log.open_writer()).close()
    monkeypatch.undo()
    assert other.counters["segment-without-ledger"] == 0
    assert [record.payload for record in await _all(other, "lag")] == [b"acknowledged"]


async def test_a_ledger_allocated_and_never_used_is_deleted_by_the_next_owner(memory_cluster):
    one = await memory_cluster.namespace()
    writer = await (await one.open_log("leftover")).open_writer()
    ledger = await _prepared(writer)
    await memory_cluster.crash(one)
    other = await memory_cluster.namespace()
    async with await (await other.open_log("leftover")).open_writer() as writer:
        writer.write(1, b"x")
    left = [ledger_id async for ledger_id in other.ledgers._ledgers.ids()]
    assert ledger.ledger_id not in left
    (segment,) = await other.logs_store.segments("leftover")
    assert left == [segment.ledger_id]
    assert (await other.logs_store.open("leftover")).allocation.value == b""


# ---------------------------------------------------------------------- two owners


async def _next_owner(memory_cluster, name, *, instead_of):
    """While `instead_of` stands still its session ends, and somebody else becomes the log's owner and writes."""
    memory_cluster.cut_off(instead_of)
    namespace = await memory_cluster.namespace()
    writer = await (await namespace.open_log(name)).open_writer("next owner")
    written = writer.write(7, b"of the next owner")
    await writer.flush()
    memory_cluster.tree.inject = None
    return namespace, writer, written


async def test_one_who_stood_still_while_reading_the_log_leaves_its_next_owner_alone(memory_cluster, monkeypatch):
    one = await memory_cluster.namespace()
    log = await one.open_log("overtaken")
    async with await log.open_writer() as writer:
        writer.write(1, b"one")
    opened, listing, taken_over, found = one.logs_store.open, one.logs_store.hot_listing, [], asyncio.Event()

    async def noted(name):
        state = await opened(name)
        found.set()
        return state

    async def later(name):
        await found.wait()
        if not taken_over:
            taken_over.append(await _next_owner(memory_cluster, name, instead_of=one))
        return await listing(name)

    monkeypatch.setattr(one.logs_store, "open", noted)
    monkeypatch.setattr(one.logs_store, "hot_listing", later)
    with pytest.raises(WriterDeposedError):
        await log.open_writer()
    ((other, new, kept),) = taken_over
    await new.close()
    assert await kept == DLSN(2, 0, 0)
    assert [record.payload for record in await _all(other, "overtaken")] == [b"one", b"of the next owner"]


async def test_one_who_stood_still_before_reading_the_log_leaves_its_next_owner_alone(memory_cluster, monkeypatch):
    one = await memory_cluster.namespace()
    log = await one.open_log("asleep")
    async with await log.open_writer() as writer:
        writer.write(1, b"one")
    snapshot, taken_over = one.logs_store.snapshot, []

    async def later(name, **besides):
        taken_over.append(await _next_owner(memory_cluster, name, instead_of=one))
        return await snapshot(name, **besides)

    monkeypatch.setattr(one.logs_store, "snapshot", later)
    with pytest.raises((LockingError, OwnershipAcquireFailedError)):
        await log.open_writer()
    ((other, new, kept),) = taken_over
    later_one = new.write(8, b"not fenced")
    await new.close()
    assert (await kept, await later_one) == (DLSN(2, 0, 0), DLSN(2, 1, 0))
    assert [record.payload for record in await _all(other, "asleep")] == [b"one", b"of the next owner", b"not fenced"]


async def _left_behind(memory_cluster, name):
    """A log's former owner, with a record in its segment: its session has ended, and it does not know that yet."""
    old = await memory_cluster.namespace()
    writer = await (await old.open_log(name, {"writerOutputBufferSize": 0})).open_writer("the former owner")
    await writer.write(1, b"one")
    memory_cluster.cut_off(old)
    return old, writer


async def _begins(writer):
    await writer._sequence._transitions.start(2)


async def _ends(writer):
    segment = writer._sequence.current.metadata
    with suppress(DistributedLogError):  # where recovery has closed it already
        await writer._sequence.current.ledger.close()
    await writer._sequence._transitions.complete(segment, last_txid=1, record_count=1, last_entry=0, last_slot=0)


async def _allocates(writer):
    await writer._sequence._transitions.prepare()


async def _begins_what_it_allocated(writer):
    await _allocates(writer)
    await _begins(writer)


@pytest.mark.parametrize("last_words", [_begins, _ends, _allocates, _begins_what_it_allocated])
@pytest.mark.parametrize("moment", ["snapshot", "hot_listing", "complete_segment"])
@pytest.mark.parametrize("producers", [False, True])
async def test_a_last_transaction_of_the_former_owner_does_not_keep_its_successor_from_opening_the_log(
    memory_cluster, monkeypatch, last_words, moment, producers
):
    _, former = await _left_behind(memory_cluster, "handed-over")
    namespace = await memory_cluster.namespace()
    logs, uttered = namespace.logs_store, []
    then = getattr(logs, moment)

    async def disturbed(*arguments, **named):
        if not uttered:
            uttered.append(True)
            memory_cluster.tree.inject = None
            try:
                await last_words(former)
            except DistributedLogError as error:
                uttered.append(error)
        return await then(*arguments, **named)

    monkeypatch.setattr(logs, moment, disturbed)
    log = await namespace.open_log("handed-over", {"writerOutputBufferSize": 0})
    writer = await log.open_writer("the successor", producers=producers)
    assert uttered
    assert namespace.counters["recovery-begun-again"] <= 1
    assert await writer.write(1, b"two") > DLSN(1, 0, 0)
    refused = former.write(3, b"never")
    assert isinstance(await _outcome(refused), OutcomeUnknownError | NotAppliedError)
    await writer.close()
    with pytest.raises(NotAppliedError):
        await former.close()
    assert [record.payload for record in await _all(namespace, "handed-over")] == [b"one", b"two"]
    segments = await log.segments()
    assert [segment.in_progress for segment in segments] == [False] * len(segments)
    left = [ledger async for ledger in namespace.ledgers._ledgers.ids()]
    assert sorted(left) == sorted(segment.ledger_id for segment in segments), "and no ledger is left over"


async def test_once_a_writer_is_open_no_transaction_of_the_former_owner_is_applied(memory_cluster):
    old = await memory_cluster.namespace()
    former = await (await old.open_log("asleep")).open_writer("the former owner")
    memory_cluster.cut_off(old)
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("asleep")
    writer = await log.open_writer("the successor")
    memory_cluster.tree.inject = None
    for last_words in (_allocates, _begins):
        with pytest.raises(DistributedLogError):
            await last_words(former)
    future = writer.write(1, b"one")
    await writer.close()
    assert await future == DLSN(1, 0, 0)
    assert namespace.counters["recovery-begun-again"] == 0


async def _move(memory_cluster, name):
    """Somebody else sets the value that every owner's transactions depend on."""
    path = f"/dl/{name}/<default>/ledgers"
    data, _ = await memory_cluster.operator.get(path)
    await memory_cluster.operator.put(path, data, -1)


async def test_a_log_that_is_changed_again_and_again_is_given_up(memory_cluster, monkeypatch):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("restless")
    await namespace.create_log("restless")
    listing = namespace.logs_store.hot_listing

    async def moved(name):
        await _move(memory_cluster, name)
        return await listing(name)

    monkeypatch.setattr(namespace.logs_store, "hot_listing", moved)
    with pytest.raises(WriterDeposedError):
        await log.open_writer()
    assert namespace.counters["recovery-begun-again"] == MAX_TAKE_OVERS - 1
    monkeypatch.undo()
    async with await log.open_writer():
        pass  # The lock was given back.


@pytest.mark.parametrize("settings", [{}, {"write_lock": False}])
async def test_a_log_that_changes_under_one_who_does_not_own_it_is_left_alone(memory_cluster, monkeypatch, settings):
    namespace = await memory_cluster.namespace(**settings)
    await namespace.create_log("taken")
    log = await namespace.open_log("taken")
    listing = namespace.logs_store.hot_listing

    async def deposed(name):
        for member in (await memory_cluster.operator.children(f"/dl/{name}/<default>/lock"))[0]:
            await memory_cluster.operator.delete(f"/dl/{name}/<default>/lock/{member}")
        await _move(memory_cluster, name)
        return await listing(name)

    monkeypatch.setattr(namespace.logs_store, "hot_listing", deposed)
    with pytest.raises(WriterDeposedError):
        await log.open_writer()
    assert namespace.counters["recovery-begun-again"] == 0


async def test_an_owner_whose_lock_is_gone_deposes_nobody(memory_cluster, monkeypatch):
    namespace = await memory_cluster.namespace()
    await namespace.create_log("gone")
    logs = namespace.logs_store
    claim, before = logs.claim, await logs.open("gone")

    async def late(*arguments, **named):
        for member in (await memory_cluster.operator.children("/dl/gone/<default>/lock"))[0]:
            await memory_cluster.operator.delete(f"/dl/gone/<default>/lock/{member}")
        return await claim(*arguments, **named)

    monkeypatch.setattr(logs, "claim", late)
    with pytest.raises(WriterDeposedError):
        await (await namespace.open_log("gone")).open_writer()
    assert await logs.open("gone") == before


async def test_a_deposed_recovery_does_not_remove_the_segment_that_took_the_number_of_an_empty_one(
    memory_cluster, monkeypatch
):
    one = await memory_cluster.namespace()
    writer = await (await one.open_log("number")).open_writer()
    await writer._sequence._transitions.start(1)
    await memory_cluster.crash(one)
    two = await memory_cluster.namespace()
    delete, taken_over = two.ledgers.delete, []

    async def then_stand_still(ledger_id):
        await delete(ledger_id)
        taken_over.append(await _next_owner(memory_cluster, "number", instead_of=two))

    monkeypatch.setattr(two.ledgers, "delete", then_stand_still)
    with pytest.raises(WriterDeposedError):
        await (await two.open_log("number")).open_writer()
    ((other, new, kept),) = taken_over
    await new.close()
    assert await kept == DLSN(1, 0, 0), "the number of the empty segment"
    assert [record.payload for record in await _all(other, "number")] == [b"of the next owner"]


async def test_a_deposed_writer_gets_no_acknowledgement_after_its_successor(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    old = await (await one.open_log("fenced")).open_writer()
    first = old.write(1, b"first")
    await old.flush()
    memory_cluster.cut_off(one)
    log = await other.open_log("fenced")
    new = await log.open_writer()
    kept = new.write(5, b"kept")
    await new.flush()
    late = old.write(2, b"late")
    with pytest.raises((TransmitError, WriteError)):
        await old.flush()
    assert isinstance(await _outcome(late), OutcomeUnknownError | NotAppliedError)
    memory_cluster.tree.inject = None
    refused = old.write(3, b"never")
    assert isinstance(await _outcome(refused), WriteError)
    await new.close()
    with pytest.raises(Exception):  # noqa: B017  whichever of its failures came first
        await old.close()
    assert (await first, await kept) == (DLSN(1, 0, 0), DLSN(2, 0, 0))
    assert [record.payload for record in await _all(other, "fenced")] == [b"first", b"kept"]


async def test_a_writer_that_lost_its_lock_for_good_refuses_every_later_write(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    old = await (await one.open_log("lost")).open_writer()
    old.write(1, b"one")
    await old.flush()
    memory_cluster.cut_off(one)
    new = await (await other.open_log("lost")).open_writer("usurper")
    memory_cluster.tree.inject = None
    deadline = time.monotonic() + 60
    while not isinstance(outcome := await _outcome(old.write(2, b"two")), WriterDeposedError):
        assert time.monotonic() < deadline, outcome
        await asyncio.sleep(0.02)
    assert "usurper" in str(outcome)
    with pytest.raises(WriterDeposedError):
        await old.close()
    await new.close()


async def test_a_writer_whose_session_was_closed_says_so_and_blames_no_other_owner(memory_cluster):
    namespace = await memory_cluster.namespace()
    writer = await (await namespace.open_log("closed")).open_writer()
    await namespace.store.close()
    outcome = await _outcome(writer.write(1, b"never sent"))
    assert isinstance(outcome, WriteError)
    assert not isinstance(outcome, WriterDeposedError)
    assert "the metadata session was closed" in str(outcome)
    with pytest.raises(WriteError, match="the metadata session was closed"):
        await writer.close()


async def test_a_session_that_expires_alone_is_survived(memory_cluster):
    namespace = await memory_cluster.namespace()
    writer = await (await namespace.open_log("blink")).open_writer()
    writer.write(1, b"one")
    await writer.flush()
    memory_cluster.tree.expire(namespace.store.session_id)
    later = writer.write(2, b"two")
    await writer.flush()
    assert await later == DLSN(1, 1, 0)
    await until(lambda: writer._lock.held)
    await writer.close()
    assert len(await _all(namespace, "blink")) == 2


async def test_a_start_that_lost_the_race_is_refused_and_leaves_no_ledger(memory_cluster):
    one = await memory_cluster.namespace()
    writer = await (await one.open_log("race")).open_writer()
    path = one.logs_store.paths("race").ledgers
    await one.store.put(path, b"0", -1)  # somebody else's conditional set came first
    outcome = await _outcome(writer.write(1, b"x"))
    assert isinstance(outcome, WriterDeposedError)
    assert [ledger async for ledger in one.ledgers._ledgers.ids()] == []
    with pytest.raises(WriterDeposedError):
        await writer.close()


# ---------------------------------------------------------------------- lost answers


def _once(memory_cluster, namespace, fault, operation, part):
    """Have `fault` befall the next such request of this client; returns a list that shows whether it did."""
    session, struck = namespace.store.session_id, []

    def inject(session_id, name, path):
        if session_id == session and name == operation and part in path and not struck:
            struck.append(path)
            return fault
        return None

    memory_cluster.tree.inject = inject
    return struck


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE])
@pytest.mark.parametrize("step", ["record the ledger", "start", "complete"])
async def test_a_lost_answer_is_resolved_by_looking(memory_cluster, fault, step):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("doubt")
    writer = await log.open_writer()
    struck: list[str] = []
    if step == "record the ledger":
        struck = _once(memory_cluster, namespace, fault, "multi", "/L0")
    elif step == "start":
        struck = _once(memory_cluster, namespace, fault, "multi", "allocation")
    future = writer.write(1, b"one")
    await writer.flush()
    if step == "complete":
        struck = _once(memory_cluster, namespace, fault, "multi", "logrecs")
    await writer.close()
    assert struck, "the fault was reached"
    if fault is not Fault.REFUSE and step != "record the ledger":
        name = "lost-answer-applied" if fault is Fault.LOSE_REPLY else "lost-answer-not-applied"
        assert namespace.counters[name] == 1
    assert await future == DLSN(1, 0, 0)
    assert [record.payload for record in await _all(namespace, "doubt")] == [b"one"]
    (segment,) = await log.segments()
    assert not segment.in_progress
    assert [ledger async for ledger in namespace.ledgers._ledgers.ids()] == [segment.ledger_id]


@pytest.mark.parametrize("refused", [0, 1])
async def test_a_batch_is_not_written_only_where_none_of_its_entries_was_sent(memory_cluster, monkeypatch, refused):
    """The ledger refuses one of its entries: where another was sent before, the log may keep a part of the batch."""
    writer = await (await (await memory_cluster.namespace()).open_log("parts")).open_writer()
    first = writer.write(1, b"first")
    await writer.flush()
    await first
    ledger = writer._sequence.current.ledger
    add, added = ledger.add, []

    def refuse_one(*buffers):
        if len(added) == refused:
            raise NotAppliedError("no more")
        added.append(buffers)
        return add(*buffers)

    monkeypatch.setattr(ledger, "add", refuse_one)
    outcome = await _outcome(writer.write_batch([2] * 3, pa.array([b"x" * 900_000] * 3)))
    assert len(added) == refused
    assert isinstance(outcome, OutcomeUnknownError if refused else NotAppliedError)
    monkeypatch.undo()
    await writer.abort()
    namespace = await memory_cluster.namespace()
    async with await (await namespace.open_log("parts")).open_writer():
        pass  # recovers what the other has left
    assert len(await _all(namespace, "parts")) in {1, 1 + refused}


async def test_a_start_whose_answer_stays_unknown_leaves_the_ledger_alone(memory_cluster):
    namespace = await memory_cluster.namespace(zk_session_timeout_s=1)
    log = await namespace.open_log("unknown")
    writer = await log.open_writer()
    session = namespace.store.session_id
    applied: list[str] = []

    def inject(session_id, name, path):
        if session_id != session:
            return None
        if name == "multi" and "allocation" in path and not applied:
            applied.append(path)
            return Fault.LOSE_REPLY
        return Fault.REFUSE if applied else None

    memory_cluster.tree.inject = inject
    outcome = await asyncio.wait_for(_outcome(writer.write(1, b"x")), 60)
    assert isinstance(outcome, WriteError), "the record itself was definitely not sent"
    assert not namespace.ledgers._writers, "the ledger's writer is given up"
    memory_cluster.tree.inject = None
    (segment,) = await log.segments()
    assert [ledger async for ledger in namespace.ledgers._ledgers.ids()] == [segment.ledger_id]
    with pytest.raises(WriteError):
        await writer.close()
    assert [ledger async for ledger in namespace.ledgers._ledgers.ids()] == [segment.ledger_id], "nor does a close"
    async with await log.open_writer() as writer:
        future = writer.write(1, b"x")
    assert await future == DLSN(1, 0, 0)


async def test_a_start_of_unknown_outcome_keeps_its_ledger_where_a_successor_has_changed_the_log(
    memory_cluster, monkeypatch
):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("overtaken")
    writer = await log.open_writer()
    struck = _once(memory_cluster, namespace, Fault.LOSE_REPLY, "multi", "allocation")
    state = await namespace.logs_store.open("overtaken")
    changed = replace(state, max_lssn=replace(state.max_lssn, version=state.max_lssn.version + 7))

    async def without_the_segment(name):
        return []

    async def of_the_successor(name):
        return changed

    monkeypatch.setattr(namespace.logs_store, "hot_segments", without_the_segment)
    monkeypatch.setattr(namespace.logs_store, "open", of_the_successor)
    assert isinstance(await _outcome(writer.write(1, b"x")), WriterDeposedError)
    monkeypatch.undo()
    assert struck
    with pytest.raises(WriteError):
        await writer.close()
    (segment,) = await log.segments()
    assert [ledger async for ledger in namespace.ledgers._ledgers.ids()] == [segment.ledger_id]


async def test_a_start_of_unknown_outcome_keeps_its_ledger_where_the_list_cannot_be_read(memory_cluster, monkeypatch):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("unread")
    writer = await log.open_writer()
    struck = _once(memory_cluster, namespace, Fault.LOSE_REPLY, "multi", "allocation")

    async def damaged(name):
        raise SegmentListError("one in the middle is missing", log=name)

    monkeypatch.setattr(namespace.logs_store, "hot_segments", damaged)
    assert isinstance(await _outcome(writer.write(1, b"x")), WriteError)
    monkeypatch.undo()
    assert struck
    with pytest.raises(WriteError):
        await writer.close()
    (segment,) = await log.segments()
    assert [ledger async for ledger in namespace.ledgers._ledgers.ids()] == [segment.ledger_id]


# ---------------------------------------------------------------------- storage nodes


async def test_the_first_failed_entry_decides_the_outcome_of_those_behind_it(memory_cluster):
    namespace = await memory_cluster.namespace()
    writer = await (await namespace.open_log("failing")).open_writer()
    good = writer.write(1, b"good")
    await writer.flush()
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = True
    sent = [writer.write(2, b"sent"), writer.write(3, b"sent too")]
    writer._sequence.current.send()
    behind = writer.write(4, b"sent behind")
    writer._sequence.current.send()
    buffered = writer.write(5, b"buffered")
    for bookie in memory_cluster.bookies:
        bookie.reject = Status.EFENCED
        bookie.release()
        bookie.hold_adds = False
    outcomes = [await _outcome(future) for future in (*sent, behind, buffered)]
    # Those held were stored before the fence and acknowledged, or not: never "not applied" for what was sent.
    assert all(isinstance(o, DLSN | OutcomeUnknownError) for o in outcomes[:3])
    later = await _outcome(_flushed(writer, writer.write(6, b"later")))
    assert isinstance(later, WriteError | TransmitError)
    assert isinstance(outcomes[3], WriteCancelledError | DLSN | TransmitError)
    assert await good == DLSN(1, 0, 0)
    with pytest.raises((WriteError, TransmitError)):
        await writer.close()


async def _flushed(writer, future):
    await writer.flush()
    return await future


async def _fail_segment(memory_cluster, writer):
    for bookie in memory_cluster.bookies:
        bookie.reject = Status.EFENCED
    failed = writer.write(max(writer.last_txid, 0), b"refused by the nodes")
    with pytest.raises((TransmitError, WriteError)):
        await writer.flush()
    for bookie in memory_cluster.bookies:
        bookie.reject = None
    return await _outcome(failed)


async def test_after_a_failed_entry_the_writer_stays_failed_and_the_next_one_recovers(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("sticky")
    writer = await log.open_writer()
    writer.write(1, b"one")
    await writer.flush()
    assert isinstance(await _fail_segment(memory_cluster, writer), TransmitError)
    outcome = await _outcome(writer.write(2, b"two"))
    assert isinstance(outcome, WriteError)
    assert isinstance(outcome.__cause__, Exception)
    with pytest.raises(WriteError):
        await writer.close()
    async with await log.open_writer() as writer:
        writer.write(2, b"two")
    assert [record.payload for record in await _all(namespace, "sticky")] == [b"one", b"two"]


@pytest.mark.parametrize("limit", ["outstanding_write_limit", "global_outstanding_write_limit"])
async def test_what_failed_takes_no_room_from_the_write_that_starts_over(memory_cluster, limit):
    namespace = await memory_cluster.namespace(
        disable_rolling_on_error=False, write_limit_dark_mode=False, **{limit: 1}
    )
    writer = await (await namespace.open_log("room")).open_writer()
    await asyncio.gather(writer.write(1, b"one"), writer.flush())
    assert isinstance(await _fail_segment(memory_cluster, writer), TransmitError)
    assert (writer.unacknowledged, namespace.services.shared.outstanding) == (0, 0)
    await asyncio.gather(writer.write(2, b"two"), writer.flush())
    await writer.close()
    assert [record.payload for record in await _all(namespace, "room")] == [b"one", b"two"]


async def test_a_writer_that_failed_takes_no_room_from_others(memory_cluster):
    namespace = await memory_cluster.namespace(write_limit_dark_mode=False, global_outstanding_write_limit=1)
    failed = await (await namespace.open_log("failed")).open_writer()
    await asyncio.gather(failed.write(1, b"one"), failed.flush())
    assert isinstance(await _fail_segment(memory_cluster, failed), TransmitError)
    async with await (await namespace.open_log("other")).open_writer() as writer:
        await asyncio.gather(writer.write(1, b"one"), writer.flush())
    await failed.abort()


async def test_a_record_that_comes_as_the_ledger_refuses_the_buffer_before_it_is_answered(memory_cluster):
    namespace = await memory_cluster.namespace(output_buffer_bytes=1_000_000)
    writer = await (await namespace.open_log("full")).open_writer()
    await asyncio.gather(writer.write(1, b"one"), writer.flush())
    buffered = writer.write(2, bytes(600_000))
    await writer._sequence.current.ledger.abandon()  # the ledger has failed, and nobody here has heard of it
    behind = writer.write(3, bytes(600_000))  # there is no room for both in one entry
    outcomes = [await _outcome(buffered), await _outcome(behind)]
    assert [type(outcome) for outcome in outcomes] == [WriteError, WriteError]
    await writer.abort()


@pytest.mark.parametrize("started", [True, False])
async def test_records_of_a_bulk_before_a_refused_one_are_sent(memory_cluster, started):
    namespace = await memory_cluster.namespace(output_buffer_bytes=0)
    writer = await (await namespace.open_log("bulk")).open_writer()
    if started:
        await writer.write(1, b"one")
    first, refused, behind = writer.write_bulk([(2, b"two"), (1, b"out of order"), (3, b"three")])
    assert isinstance(await _outcome(first), DLSN)
    assert isinstance(await _outcome(refused), TransactionIdOutOfOrderError)
    assert isinstance(await _outcome(behind), WriteCancelledError)
    await writer.close()


async def test_by_setting_the_next_write_recovers_and_starts_over(memory_cluster):
    namespace = await memory_cluster.namespace(disable_rolling_on_error=False)
    log = await namespace.open_log("restart")
    writer = await log.open_writer()
    writer.write(1, b"one")
    await writer.flush()
    assert isinstance(await _fail_segment(memory_cluster, writer), TransmitError)
    future = writer.write(2, b"two")
    await writer.flush()
    assert await future == DLSN(2, 0, 0)
    await writer.close()
    records = await _all(namespace, "restart")
    assert [record.payload for record in records] == [b"one", b"two"]
    assert [record.sequence_id for record in records] == [0, 1]


async def test_losing_one_node_of_four_stops_nothing(memory_cluster):
    namespace = await memory_cluster.namespace()
    writer = await (await namespace.open_log("replaced")).open_writer()
    written = [writer.write(0, b"0")]
    await writer.flush()
    used = {name for e in writer._sequence.current.ledger.metadata.ensembles for name in e.bookies}
    next(bookie for bookie in memory_cluster.bookies if bookie.id in used).stop()
    for i in range(1, 20):
        written.append(writer.write(i, b"%d" % i))
        await writer.flush()
    await writer.close()
    assert [record.dlsn for record in await _all(namespace, "replaced")] == [await future for future in written]


async def test_too_few_nodes_is_said_before_anything_is_taken_for_written(memory_cluster):
    namespace = await memory_cluster.namespace(ensemble_size=5, write_quorum=5)
    writer = await (await namespace.open_log("five")).open_writer()
    outcome = await _outcome(writer.write(1, b"x"))
    assert isinstance(outcome, WriteError)
    assert "NotEnoughBookies" in type(outcome.__cause__).__name__
    with pytest.raises(WriteError):
        await writer.close()


async def test_an_aborted_writer_leaves_its_segment_to_be_recovered(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("aborted")
    writer = await log.open_writer()
    kept = writer.write(1, b"kept")
    await writer.flush()
    dropped = writer.write(2, b"dropped")
    await writer.abort()
    assert isinstance(await _outcome(dropped), WriteCancelledError)
    assert (await log.segments())[0].in_progress
    await (await log.open_writer()).close()
    assert [record.dlsn for record in await _all(namespace, "aborted")] == [await kept]


async def test_an_error_in_the_body_aborts_instead_of_completing(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("body")

    async def fail_midway():
        async with await log.open_writer() as writer:
            writer.write(1, b"x")
            raise RuntimeError("the user's")

    with pytest.raises(RuntimeError):
        await fail_midway()
    async with await log.open_writer() as writer:
        assert writer.last_txid == -1  # nothing was written


# ---------------------------------------------------------------------- starting


async def test_fail_fast_refuses_while_a_segment_is_being_started(memory_cluster):
    namespace = await memory_cluster.namespace(fail_fast=True)
    writer = await (await namespace.open_log("fast")).open_writer()
    first = writer.write(1, b"first")
    with pytest.raises(StreamNotReadyError):
        await writer.write(2, b"second")
    await writer.flush()
    assert await first == DLSN(1, 0, 0)
    await writer.close()


async def test_what_waits_for_a_start_is_bounded(memory_cluster, monkeypatch):
    monkeypatch.setattr("dlspark.core.writing.write_queue.MAX_QUEUED_BYTES", 1000)
    namespace = await memory_cluster.namespace()
    writer = await (await namespace.open_log("bounded")).open_writer()
    memory_cluster.tree.stall()
    taken = [writer.write(1, b"x" * 600)]
    with pytest.raises(OverCapacityError):
        await writer.write(1, b"x" * 600)
    memory_cluster.tree.resume()
    await writer.wait_for_room()
    taken.append(writer.write(1, b"x" * 600))
    await writer.close()
    assert [await future for future in taken] == [DLSN(1, 0, 0), DLSN(1, 0, 1)]


async def test_a_missing_log_is_created_only_if_the_setting_says_so(memory_cluster):
    namespace = await memory_cluster.namespace(create_log_if_missing=False)
    with pytest.raises(LogNotFoundError):
        await (await namespace.open_log("missing")).open_writer()
    assert await namespace.logs() == []


async def test_a_cancelled_open_leaves_no_lock_behind(memory_cluster):
    namespace = await memory_cluster.namespace()
    log = await namespace.open_log("cancelled")
    memory_cluster.tree.stall()
    opening = asyncio.ensure_future(log.open_writer())
    await until(lambda: memory_cluster.tree._stalled, "the opening writer asks for its lock")
    memory_cluster.tree.resume()
    for _ in range(6):
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    if not opening.cancelled():
        await opening.result().close()
    await (await log.open_writer()).close()
