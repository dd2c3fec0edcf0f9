"""Ledger allocation: per log and from a pool. Whatever dies, no ledger is lost and none is two segments'."""

from __future__ import annotations

import asyncio

import pytest
from helpers.waiting import until

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.writing.ledger_allocators import (
    TRANSITIONS,
    AllocatorEvent,
    AllocatorLostError,
    AllocatorPhase,
    LedgerAllocator,
    LedgerKind,
    NoAllocatorError,
    shared_pool,
)
from dlspark.errors import SettingsError, WriterDeposedError
from metadata.distributedlog.allocators import Allocation, AllocatorStore
from metadata.foundation.errors import BadVersionError, CallerError, DistributedLogError, InvariantViolation
from metadata.store import SessionState
from metadata.zookeeper.memory import Fault
from storage_node.errors import NotEnoughBookiesError

POOL = {"allocator_pool": True, "allocator_pool_name": "here", "allocator_pool_size": 2}
KIND = LedgerKind(3, 3, 2, b"")


async def _ledgers(namespace):
    return {ledger_id async for ledger_id in namespace.services.ledger_store.ids()}


async def _named(memory_cluster, *paths):
    """What allocator znodes name."""
    found = set()
    for path in paths:
        ledger_id = (await AllocatorStore(memory_cluster.operator).read(path)).ledger_id
        if ledger_id is not None:
            found.add(ledger_id)
    return found


async def _segments(namespace, *logs):
    return [segment.ledger_id for log in logs for segment in await namespace.logs_store.segments(log)]


async def _records(namespace, name):
    log = await namespace.open_log(name)
    async with await log.open_reader() as reader:
        records = []
        while more := await reader.read_available(1000, wait=True):
            records += more
        return records


async def _write(log, txid, payload):
    async with await log.open_writer() as writer:
        future = writer.write(txid, payload)
        await writer.flush()
        return await future


# ---------------------------------------------------------------------- the machine


@pytest.mark.parametrize("phase", AllocatorPhase)
@pytest.mark.parametrize("event", AllocatorEvent)
async def test_every_step_of_an_allocator_is_in_the_table_or_refused(namespace, phase, event):
    allocator = LedgerAllocator(namespace.services, Allocation("/a", b"", 0))
    allocator.phase = phase
    if (phase, event) in TRANSITIONS:
        allocator._step(event)
        assert allocator.phase is TRANSITIONS[phase, event]
    else:
        with pytest.raises(InvariantViolation):
            allocator._step(event)
        assert allocator.phase is phase


# ---------------------------------------------------------------------- a log's own


async def test_the_start_transaction_clears_the_allocation_of_its_ledger(memory_cluster, namespace):
    log = await namespace.open_log("own")
    path = namespace.logs_store.paths("own").allocation
    writer = await log.open_writer()
    assert (await AllocatorStore(memory_cluster.operator).read(path)).data == b""
    await writer._sequence._transitions.prepare()
    (ledger_id,) = await _named(memory_cluster, path)
    assert await _ledgers(namespace) == {ledger_id}
    writer.write(1, b"one")
    await writer.flush()
    (segment,) = await log.segments()
    assert segment.ledger_id == ledger_id
    assert (await AllocatorStore(memory_cluster.operator).read(path)).data == b""
    await writer.close()


async def test_a_start_that_was_not_applied_uses_its_ledger_the_next_time(memory_cluster):
    namespace = await memory_cluster.namespace(
        zk_session_timeout_s=1, rolling_minutes=0, max_segment_bytes=1, output_buffer_bytes=0
    )
    log = await namespace.open_log("again")
    writer = await log.open_writer()
    session, refuse = namespace.store.session_id, []
    path = namespace.logs_store.paths("again").allocation

    def inject(session_id, name, first):
        return Fault.REFUSE if refuse and (session_id, name, first) == (session, "multi", path) else None

    memory_cluster.tree.inject = inject
    refuse.append("starts")
    writer._sequence.roll_is_due = lambda: False
    outcome = writer.write(1, b"x")
    with pytest.raises(DistributedLogError):
        await outcome
    (kept,) = await _named(memory_cluster, path)
    refuse.clear()
    await writer._sequence.start(1)
    assert writer._sequence.current.ledger.ledger_id == kept
    assert await _ledgers(namespace) == {kept}
    with pytest.raises(DistributedLogError):
        await writer.close()


async def test_closing_a_writer_leaves_no_ledger_that_was_made_and_not_used(memory_cluster, namespace):
    log = await namespace.open_log("unused")
    writer = await log.open_writer()
    await writer._sequence._transitions.prepare()
    assert len(await _ledgers(namespace)) == 1
    await writer.close()
    assert await _ledgers(namespace) == set()
    assert await _named(memory_cluster, namespace.logs_store.paths("unused").allocation) == set()


async def test_closing_while_the_metadata_store_is_away_leaves_the_ledger_to_the_next_owner(memory_cluster):
    namespace = await memory_cluster.namespace(write_lock=False)
    writer = await (await namespace.open_log("away")).open_writer()
    await writer._sequence._transitions.prepare()
    memory_cluster.tree.disconnect(namespace.store.session_id)
    await until(lambda: namespace.store.state is SessionState.SUSPENDED)
    await writer.close()
    memory_cluster.tree.reconnect(namespace.store.session_id)
    other = await memory_cluster.namespace(write_lock=False)
    named = await _named(memory_cluster, other.logs_store.paths("away").allocation)
    assert len(named) == 1
    assert await _ledgers(other) == named
    await _write(await other.open_log("away"), 1, b"x")
    assert await _ledgers(other) == set(await _segments(other, "away"))


async def test_a_ledger_of_other_quorums_than_wanted_by_now_is_replaced(memory_cluster, namespace):
    log = await namespace.open_log("quorums")
    writer = await log.open_writer()
    transitions = writer._sequence._transitions
    await transitions.prepare()
    before = await _ledgers(namespace)
    await transitions._allocator.allocate(LedgerKind(2, 2, 2, b""))
    after = await _ledgers(namespace)
    assert len(after) == 1
    assert not after & before
    await writer.close()


async def test_a_ledger_in_a_region_that_was_disallowed_meanwhile_is_replaced(memory_cluster, namespace):
    log = await namespace.open_log("closed-region")
    writer = await log.open_writer()
    transitions = writer._sequence._transitions
    await transitions.prepare()
    (before,) = await _ledgers(namespace)
    asked = []

    async def may_begin(metadata):
        asked.append(metadata)
        return len(asked) > 1

    namespace.services.ledgers.may_begin = may_begin
    writer.write(1, b"one")
    await writer.flush()
    (segment,) = await log.segments()
    assert segment.ledger_id != before
    assert before not in await _ledgers(namespace)
    assert len(asked[0].last_ensemble.bookies) == 3
    await writer.close()


async def test_what_is_no_ledger_id_in_the_allocation_is_replaced(memory_cluster, namespace):
    await namespace.create_log("foreign")
    path = namespace.logs_store.paths("foreign").allocation
    await memory_cluster.operator.put(path, b"99999999999999999999999999", -1)
    assert await _write(await namespace.open_log("foreign"), 1, b"x") == DLSN(1, 0, 0)


async def test_a_leftover_is_left_alone_by_an_owner_that_was_deposed(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    old = await (await one.open_log("claimed")).open_writer()
    memory_cluster.cut_off(one)
    new = await (await other.open_log("claimed")).open_writer()
    await new._sequence._transitions.prepare()
    ready = await _ledgers(other)
    memory_cluster.tree.inject = None
    with pytest.raises(WriterDeposedError):
        await old._sequence._transitions.start(1)
    assert await _ledgers(other) == ready, "the old owner deletes nothing, and leaves nothing"
    kept = new.write(1, b"kept")
    await new.close()
    assert await kept == DLSN(1, 0, 0)
    await old.close()


async def test_an_allocator_found_lost_ahead_of_the_first_record_deposes_its_writer(memory_cluster, namespace):
    writer = await (await namespace.open_log("ahead")).open_writer()
    path = namespace.logs_store.paths("ahead").allocation
    await memory_cluster.operator.put(path, b"", -1)
    await writer._sequence._prepare()
    assert namespace.counters["ledger-not-made-in-advance"] == 1
    with pytest.raises(WriterDeposedError):
        await writer.write(1, b"x")
    with pytest.raises(WriterDeposedError):
        await writer.close()


async def test_an_allocator_of_a_pool_found_lost_while_it_is_lent_is_read_again(memory_cluster):
    namespace = await memory_cluster.namespace(**{**POOL, "allocator_pool_size": 1})
    pool = shared_pool(namespace.services)
    allocator = await pool.lend()
    with pytest.raises(NotEnoughBookiesError):
        await allocator.allocate(LedgerKind(9, 9, 9, b""))
    await memory_cluster.operator.put(allocator.allocation.path, b"", -1)
    pool.give_back(allocator)  # it makes its next ledger in the background, and finds that it is lost
    with pytest.raises(AllocatorLostError):
        await pool.lend()
    await until(lambda: pool._free)
    assert namespace.counters["allocator-rescued"] == 1
    pool.give_back(await pool.lend())


async def test_a_ledger_that_somebody_else_has_begun_to_delete_cannot_be_handed_over_any_more(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    await one.create_log("race")
    path = one.logs_store.paths("race").allocation
    store = AllocatorStore(memory_cluster.operator)
    first = LedgerAllocator(one.services, await store.read(path))
    await first.allocate(KIND)
    hand_over = first.obtain()
    second = LedgerAllocator(other.services, await store.read(path))
    with pytest.raises(NotEnoughBookiesError):
        await second.allocate(LedgerKind(9, 9, 9, b""))  # It deletes the leftover, and gets no further.
    assert await _ledgers(one) == set()
    with pytest.raises(BadVersionError):
        await one.store.multi([hand_over])
    await second.allocate(KIND)
    assert await _ledgers(one) == await _named(memory_cluster, path) == {second.ledger.ledger_id}


def _dies_at(memory_cluster, namespace, step, how):
    """Have this client's metadata requests from the `step`-th writing one on go nowhere; that one as `how` says."""
    session, seen = namespace.store.session_id, [0]

    def inject(session_id, name, path):
        if session_id != session:
            return None
        seen[0] += name in ("put", "create", "delete", "multi")
        if seen[0] < step:
            return None
        return how if seen[0] == step and name in ("put", "create", "delete", "multi") else Fault.REFUSE

    memory_cluster.tree.inject = inject
    return seen


async def _crashing_session(memory_cluster, namespace, step, how):
    """Open, write, roll, close; die on the way. Returns whether the whole of it was reached."""
    seen = _dies_at(memory_cluster, namespace, step, how)
    log = await namespace.open_log("crash")
    try:
        writer = await log.open_writer()
        for i in range(3):
            await writer.write(100 * step + i, b"x" * 200)
        await writer.close()
    except DistributedLogError:
        pass
    memory_cluster.tree.inject = None
    return seen[0] < step


@pytest.mark.parametrize("how", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("pool", [False, True], ids=["own", "pool"])
async def test_a_crash_at_any_step_loses_no_ledger_and_gives_none_to_two_segments(
    memory_cluster, how, pool, monkeypatch
):
    # Who is dead waits for nothing.
    monkeypatch.setattr("dlspark.core.writing.transactions.OwnersTransactions._pauses", lambda self: [])
    settings = {"output_buffer_bytes": 0, "rolling_minutes": 0, "max_segment_bytes": 300}
    settings |= POOL if pool else {}
    first = await memory_cluster.namespace(**settings)
    # What the dying client finds: a segment in progress, and a leftover in the allocator.
    writer = await (await first.open_log("crash")).open_writer()
    await writer.write(1, b"one")
    await writer._sequence._transitions.prepare()
    await memory_cluster.crash(first)
    for step in range(1, 60):
        dying = await memory_cluster.namespace(**settings)
        whole = await _crashing_session(memory_cluster, dying, step, how)
        await memory_cluster.crash(dying)
        again = await memory_cluster.namespace(**settings)
        assert (await _write(await again.open_log("crash"), 100 * step + 50, b"after")).lssn > 0
        used = await _segments(again, "crash")
        assert len(set(used)) == len(used), f"a ledger of two segments, after step {step}"
        await again.services.shared.close()
        allocators = [again.logs_store.paths("crash").allocation]
        if pool:
            allocators += await AllocatorStore(memory_cluster.operator).members("/dl/.allocation_pool/here")
        known = set(used) | await _named(memory_cluster, *allocators)
        assert await _ledgers(again) == known, f"after step {step}"
        records = await _records(again, "crash")
        assert [record.sequence_id for record in records] == list(range(len(records)))
        await memory_cluster.crash(again)
        if whole:
            break
    assert whole, "the crashes went all the way"
    assert step > 10


# ---------------------------------------------------------------------- pools


async def test_segments_of_many_logs_take_their_ledgers_from_one_pool(memory_cluster):
    namespace = await memory_cluster.namespace(**POOL)
    for i in range(5):
        assert await _write(await namespace.open_log(f"log{i}"), 1, b"%d" % i) == DLSN(1, 0, 0)
        assert (await namespace.logs_store.open(f"log{i}")).allocation.version == 0, "its own allocator is not used"
    members = await AllocatorStore(memory_cluster.operator).members("/dl/.allocation_pool/here")
    assert members == [f"/dl/.allocation_pool/here/A{i:010d}" for i in range(2)]
    pool = shared_pool(namespace.services)
    await until(lambda: not pool._making)
    segments = await _segments(namespace, *(f"log{i}" for i in range(5)))
    named = await _named(memory_cluster, *members)
    assert len(named) == 2, "the next ledgers are ready"
    assert await _ledgers(namespace) == {*segments, *named}


async def test_the_pool_makes_the_next_ledger_before_it_is_wanted(memory_cluster):
    namespace = await memory_cluster.namespace(**POOL)
    pool = shared_pool(namespace.services)
    allocator = await pool.lend()
    ready = allocator.ledger
    assert allocator.phase is AllocatorPhase.ALLOCATED
    pool.give_back(allocator)
    again = [await pool.lend(), await pool.lend()]
    assert ready in [one.ledger for one in again]
    with pytest.raises(NoAllocatorError, match="no ledger allocator is available"):
        await pool.lend()
    for one in again:
        pool.give_back(one)


async def test_a_log_whose_quorums_are_others_than_the_pools_uses_its_own_allocator(memory_cluster):
    namespace = await memory_cluster.namespace(**POOL)
    log = await namespace.open_log("two", {"bkcEnsembleSize": 2, "bkcWriteQuorumSize": 2})
    await _write(log, 1, b"x")
    (segment,) = await log.segments()
    assert (await namespace.services.ledger_store.read(segment.ledger_id)).value.ensemble_size == 2
    assert (await namespace.logs_store.open("two")).allocation.version > 0


async def test_a_ledger_that_the_owner_before_names_late_is_refused_also_for_a_log_beside_the_pool(memory_cluster):
    namespace = await memory_cluster.namespace(**POOL)
    await namespace.create_log("two")
    found = (await namespace.logs_store.open("two")).allocation
    log = await namespace.open_log("two", {"bkcEnsembleSize": 2, "bkcWriteQuorumSize": 2})
    async with await log.open_writer() as writer:
        with pytest.raises(BadVersionError):
            await memory_cluster.operator.put(namespace.logs_store.paths("two").allocation, b"9", found.version)
        future = writer.write(1, b"x")
        await writer.flush()
        assert await future == DLSN(1, 0, 0)


async def test_two_processes_that_share_a_pool_lose_neither_ledgers_nor_records(memory_cluster):
    one, other = await memory_cluster.namespace(**POOL), await memory_cluster.namespace(**POOL)
    for i in range(4):
        await _write(await one.open_log("a"), i, b"a%d" % i)
        await _write(await other.open_log("b"), i, b"b%d" % i)
    assert one.counters["allocator-rescued"] + other.counters["allocator-rescued"] > 0
    assert [record.payload for record in await _records(one, "a")] == [b"a%d" % i for i in range(4)]
    assert [record.payload for record in await _records(one, "b")] == [b"b%d" % i for i in range(4)]
    used = await _segments(one, "a", "b")
    assert len(set(used)) == 8
    assert set(used) <= await _ledgers(one)


async def test_a_deleted_pool_leaves_no_ledger_and_takes_none_from_a_segment(memory_cluster):
    namespace, operator = await memory_cluster.namespace(**POOL), await memory_cluster.namespace()
    await _write(await namespace.open_log("log"), 1, b"x")
    pool = shared_pool(namespace.services)
    await until(lambda: not pool._making)
    assert await operator.delete_allocator_pool("here") == 2
    assert await _ledgers(operator) == set(await _segments(operator, "log"))
    assert await operator.delete_allocator_pool("here") == 0
    assert await memory_cluster.operator.exists("/dl/.allocation_pool/here") is None
    # Whoever still uses it is told so, and writes nothing into a ledger that is gone.
    writer = await (await namespace.open_log("log")).open_writer()
    with pytest.raises(DistributedLogError):
        await writer.write(2, b"y")
    with pytest.raises(DistributedLogError):
        await writer.close()
    assert [record.payload for record in await _records(operator, "log")] == [b"x"]


@pytest.mark.parametrize("how", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_the_deletion_of_a_pool_that_was_interrupted_anywhere_is_finished_by_the_next(memory_cluster, how):
    namespace = await memory_cluster.namespace(**POOL)
    step, ended = 0, False
    while not ended:
        step += 1
        pool = shared_pool(namespace.services)
        pool.give_back(await pool.lend())
        await until(lambda pool=pool: not pool._making)
        dying = await memory_cluster.namespace()
        seen = _dies_at(memory_cluster, dying, step, how)
        try:
            await asyncio.wait_for(dying.delete_allocator_pool("here"), 60)
        except (DistributedLogError, asyncio.TimeoutError):
            pass
        ended = seen[0] < step
        memory_cluster.tree.inject = None
        await memory_cluster.crash(dying)
        operator = await memory_cluster.namespace()
        await operator.delete_allocator_pool("here")
        assert await _ledgers(operator) == set(), f"after step {step}"
        await pool.close()
        namespace.services.shared.pool = None
    assert step > 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"allocator_pool": True}, "not the name of an allocator pool"),
        ({"allocator_pool": True, "allocator_pool_name": "a/b"}, "not the name of an allocator pool"),
        ({"allocator_pool": True, "allocator_pool_name": "a", "allocator_pool_path": "pools"}, "begin with"),
        ({"allocator_pool": True, "allocator_pool_name": "a", "allocator_pool_path": "."}, "begin with"),
        ({"allocator_pool": True, "allocator_pool_name": "a", "allocator_pool_path": ".p/"}, "must not end"),
        ({"allocator_pool": True, "allocator_pool_name": "a", "allocator_pool_size": 0}, "outside 1"),
    ],
)
async def test_a_pool_that_cannot_be_is_refused_with_the_settings(memory_cluster, settings, message):
    with pytest.raises(SettingsError, match=message):
        await memory_cluster.namespace(**settings)


async def test_a_pool_to_delete_has_a_name(namespace):
    with pytest.raises(CallerError):
        await namespace.delete_allocator_pool("")
