"""Under-replication marks, locks and switches: vectors of docs/reference/znodes.md, races, lost answers."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.reference_vectors import vectors
from helpers.worlds.metadata import Heard, MetadataServer
from hypothesis import given
from hypothesis import strategies as st

from metadata.bookkeeper.ledgers import MAX_LEDGER_ID, LedgerStore
from metadata.bookkeeper.repairs import RepairQueue
from metadata.bookkeeper.replication import LedgerLock, ReplicationStore, UnderReplicatedLedger, mark_name
from metadata.foundation.errors import CallerError, CorruptDataError
from metadata.store import MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")
LEDGER = 12345
PATH = VECTORS["mark of ledger 12345"].decode()
NOW = 1_700_000_000_000


@pytest.fixture
async def base(store: MetadataStore, root: str) -> str:
    await LedgerStore(store, f"{root}/ledgers").format()
    await ReplicationStore(store, f"{root}/ledgers").prepare()
    return f"{root}/ledgers/underreplication"


@pytest.fixture
def replication(store: MetadataStore, base: str) -> ReplicationStore:
    return ReplicationStore(store, base.rpartition("/")[0])


@pytest.fixture
def elsewhere(other: MetadataStore, base: str) -> ReplicationStore:
    """Another process's."""
    return ReplicationStore(other, base.rpartition("/")[0])


async def ids(replication: ReplicationStore) -> list[int]:
    return [ledger_id async for ledger_id in replication.marked()]


# ---- formats ---------------------------------------------------------------------------------------------------------


def test_vectors_of_paths() -> None:
    replication = ReplicationStore(MemoryStore(MemoryTree()))
    base = "/ledgers/underreplication"
    assert replication.mark_path(12345) == f"{base}/{PATH}"
    assert replication.mark_path(223192270503937) == f"{base}/{VECTORS['mark of ledger 223192270503937'].decode()}"
    assert replication.lock_path(12345) == f"{base}/{VECTORS['lock of ledger 12345'].decode()}"
    assert replication.mark_path(MAX_LEDGER_ID).startswith(f"{base}/ledgers/7fff/ffff/ffff/ffff/urL9223372036854775807")


@pytest.mark.parametrize("ledger_id", [-1, MAX_LEDGER_ID + 1])
def test_an_id_that_is_none_has_no_mark(ledger_id: int) -> None:
    with pytest.raises(CallerError):
        mark_name(ledger_id)


def test_vector_of_a_mark() -> None:
    mark, text = UnderReplicatedLedger(("10.0.0.3:3181",), NOW), VECTORS["under-replication mark"]
    assert mark.encode() == text
    assert UnderReplicatedLedger.decode(text, "p") == mark


def test_a_mark_is_read_leniently() -> None:
    text = b'ctime :  5  news: "?" replica:"a"\r\n\treplica: "b\\072c"'
    assert UnderReplicatedLedger.decode(text, "p") == UnderReplicatedLedger(("a", "b:c"), 5)
    assert UnderReplicatedLedger.decode(b"", "p") == UnderReplicatedLedger(())
    with pytest.raises(CorruptDataError):
        UnderReplicatedLedger.decode(b"replica: {", "p")


@given(st.lists(st.text(min_size=1), unique=True), st.none() | st.integers(0, 2**63 - 1))
def test_what_a_mark_says_is_read_back(missing: list[str], ctime_ms: int | None) -> None:
    mark = UnderReplicatedLedger(tuple(missing), ctime_ms)
    assert UnderReplicatedLedger.decode(mark.encode(), "p") == mark


# ---- the tree --------------------------------------------------------------------------------------------------------


async def test_the_tree_is_prepared_once_for_all(replication: ReplicationStore, base: str) -> None:
    await replication.prepare()
    data, _ = await replication.store.get(f"{base}/LAYOUT")
    assert data == VECTORS["under-replication layout"]
    names, _ = await replication.store.children(base)
    assert names == ["LAYOUT", "ledgers", "locks"]


async def test_another_layout_is_refused(replication: ReplicationStore, base: str) -> None:
    await replication.store.put(f"{base}/LAYOUT", b'type: "OTHER" version: 1', 0)
    with pytest.raises(CorruptDataError, match="'OTHER'"):
        await replication.prepare()


# ---- marks -----------------------------------------------------------------------------------------------------------


async def test_a_mark_has_its_path_and_text(replication: ReplicationStore, base: str) -> None:
    assert await replication.mark(LEDGER, ["10.0.0.3:3181"], NOW)
    data, stat = await replication.store.get(f"{base}/{PATH}")
    assert data == VECTORS["under-replication mark"]
    assert (stat.version, stat.ephemeral_owner) == (0, 0)
    assert await ids(replication) == [LEDGER]


async def test_marks_merge_and_move_the_version_on(replication: ReplicationStore, elsewhere: ReplicationStore) -> None:
    await replication.mark(LEDGER, ["a"], NOW)
    assert await elsewhere.mark(LEDGER, ["b", "a"], NOW + 1)
    found = await replication.read(LEDGER)
    assert found is not None
    assert (found.value, found.version) == (UnderReplicatedLedger(("a", "b"), NOW + 1), 1)


async def test_a_mark_that_says_everything_is_left_alone(replication: ReplicationStore) -> None:
    await replication.mark(LEDGER, ["a", "b"], NOW)
    assert not await replication.mark(LEDGER, ["b"], NOW + 1)
    found = await replication.read(LEDGER)
    assert found is not None
    assert (found.value.ctime_ms, found.version) == (NOW, 0)


async def test_a_ledger_is_marked_for_its_placement_as_by_java_without_a_bookie(
    replication: ReplicationStore, elsewhere: ReplicationStore, base: str
) -> None:
    assert await replication.mark_placement(LEDGER, NOW)
    found = await replication.read(LEDGER)
    assert found is not None
    assert (found.value, found.value.encode()) == (UnderReplicatedLedger((), NOW), b"ctime: %d\n" % NOW)
    assert await elsewhere.mark(LEDGER, ["a"], NOW + 1)
    assert not await replication.mark_placement(LEDGER, NOW + 2), "it is looked at in any case"
    claim = await RepairQueue(elsewhere, "worker", random.Random(1)).next()
    assert claim is not None
    assert not await replication.mark_placement(LEDGER, NOW + 3)
    found = await replication.read(LEDGER)
    assert found is not None
    assert found.version == claim.mark.version + 1, "the worker may have looked before"
    assert found.value == UnderReplicatedLedger(("a",), NOW + 1), "it keeps its time"


async def test_the_same_loss_again_outlives_a_repair_that_is_under_way(
    replication: ReplicationStore, elsewhere: ReplicationStore
) -> None:
    """The repairer may have looked while the node was back for a moment."""
    await replication.mark(LEDGER, ["a"])
    claim = await RepairQueue(elsewhere, "worker", random.Random(1)).next()
    assert claim is not None
    await replication.mark(LEDGER, ["a"])
    assert not await RepairQueue(elsewhere, "w", random.Random(0)).settle(claim)
    assert await ids(replication) == [LEDGER]
    assert await replication.locked() == set()


async def test_many_auditors_at_once_lose_nobodys_news(
    replication: ReplicationStore, elsewhere: ReplicationStore
) -> None:
    sides = [replication, elsewhere]
    await asyncio.gather(*(sides[n % 2].mark(LEDGER, [f"node-{n}"], NOW + n) for n in range(10)))
    found = await replication.read(LEDGER)
    assert found is not None
    assert set(found.value.missing) == {f"node-{n}" for n in range(10)}


async def test_removing_the_last_mark_removes_its_folders(replication: ReplicationStore, base: str) -> None:
    await replication.mark(LEDGER, ["a"])
    await replication.mark(LEDGER + 1, ["a"])
    assert await replication.remove_mark(LEDGER, 0)
    assert await ids(replication) == [LEDGER + 1]
    assert await replication.remove_mark(LEDGER + 1, 0)
    assert await replication.remove_mark(LEDGER + 1, 0), "it is gone, which is what was wanted"
    names, _ = await replication.store.children(f"{base}/ledgers")
    assert names == []


async def test_a_newer_mark_is_not_removed(replication: ReplicationStore) -> None:
    await replication.mark(LEDGER, ["a"])
    await replication.mark(LEDGER, ["b"])
    assert not await replication.remove_mark(LEDGER, 0)
    assert await ids(replication) == [LEDGER]


async def test_marking_and_removing_race_without_an_error(
    replication: ReplicationStore, elsewhere: ReplicationStore
) -> None:
    """Parents vanish under the creation of a mark (docs/reference/znodes.md#parents)."""
    for turn in range(15):
        await replication.mark(LEDGER, ["a"])
        await asyncio.gather(
            replication.remove_mark(LEDGER, 0), elsewhere.mark(LEDGER ^ 1 + turn, ["b"]), elsewhere.mark(LEDGER, ["b"])
        )
        assert LEDGER in await ids(elsewhere)
        for ledger_id in await ids(elsewhere):
            found = await elsewhere.read(ledger_id)
            assert found is not None
            assert "b" in found.value.missing
            assert await elsewhere.remove_mark(ledger_id, found.version)


async def test_marks_are_listed_in_order_and_at_random(replication: ReplicationStore) -> None:
    marked = [3, 4, 65_536, 223192270503937, 2**40, MAX_LEDGER_ID]
    for ledger_id in marked:
        await replication.mark(ledger_id, ["a"])
    assert await ids(replication) == sorted(marked)


async def test_claims_come_in_an_order_of_chance_and_list_each_folder_once(replication: ReplicationStore) -> None:
    for ledger_id in range(12):
        await replication.mark(ledger_id, ["a"])
    listed = Heard()
    orders = []
    for seed in range(3):
        claims = RepairQueue(replication, "w", random.Random(seed), listed)
        order = []
        while (claim := await claims.next()) is not None:
            order.append(claim)
        assert sorted(claim.ledger_id for claim in order) == list(range(12))
        orders.append([claim.ledger_id for claim in order])
        for claim in order:
            await claims.give_back(claim)
    assert orders[0] != orders[1] or orders[1] != orders[2]


async def test_foreign_names_are_no_marks(replication: ReplicationStore, base: str) -> None:
    await replication.store.create(f"{base}/ledgers/junk/deep", make_parents=True)
    await replication.store.create(f"{base}/ledgers/0000/0000/0000/0001/other", make_parents=True)
    assert await ids(replication) == []


async def test_a_watch_hears_of_a_new_mark_and_of_a_lock_given_back(
    replication: ReplicationStore, elsewhere: ReplicationStore
) -> None:
    heard = Heard()
    claims = RepairQueue(replication, "w", random.Random(0), heard)
    assert await claims.next() is None
    await elsewhere.mark(LEDGER, ["a"])
    await heard.wait(1)
    lock = await elsewhere.lock(LEDGER, "other")
    assert lock is not None
    before = len(heard.items)
    assert await claims.next() is None
    await elsewhere.unlock(lock)
    await heard.wait(before + 1)
    assert await claims.next() is not None


# ---- locks -----------------------------------------------------------------------------------------------------------


async def test_one_holds_a_lock(replication: ReplicationStore, elsewhere: ReplicationStore, base: str) -> None:
    lock = await replication.lock(LEDGER, "host1")
    assert lock is not None
    data, stat = await replication.store.get(f"{base}/locks/urL0000012345")
    assert data == VECTORS["under-replication lock"]
    assert stat.ephemeral_owner == replication.store.session_id
    assert await elsewhere.lock(LEDGER, "host2") is None
    assert await replication.lock(LEDGER, "host1") is None, "nor does the same process twice"
    assert await ReplicationStore(replication.store, base.rpartition("/")[0]).lock(LEDGER, "host1") is None
    assert await elsewhere.locked() == {LEDGER}
    await replication.unlock(lock)
    await replication.unlock(lock)
    assert await elsewhere.lock(LEDGER, "host2") is not None


async def test_a_lock_ends_with_its_session_and_is_not_given_back_for_another(
    replication: ReplicationStore, elsewhere: ReplicationStore, metadata_server: MetadataServer
) -> None:
    await replication.mark(LEDGER, ["a"])
    claim = await RepairQueue(replication, "w", random.Random(0)).next()
    assert claim is not None
    session = replication.store.session_id
    ended = asyncio.Event()
    replication.store.on_session(lambda _state: ended.set() if replication.store.session_id != session else None)
    await metadata_server.expire(replication.store)
    await asyncio.wait_for(ended.wait(), 60)
    taken: LedgerLock | None = None
    while taken is None:
        taken = await elsewhere.lock(LEDGER, "other")
    assert not replication.holds(claim.lock)
    assert not await RepairQueue(replication, "w", random.Random(0)).settle(claim), (
        "the mark is the new holder's to remove"
    )
    assert await elsewhere.locked() == {LEDGER}
    assert await ids(elsewhere) == [LEDGER]


async def test_a_claim_takes_each_ledger_once(replication: ReplicationStore, elsewhere: ReplicationStore) -> None:
    for ledger_id in range(6):
        await replication.mark(ledger_id, ["a"])
    sides = [replication, elsewhere] * 4
    claims = await asyncio.gather(*(RepairQueue(side, "w", random.Random(n)).next() for n, side in enumerate(sides)))
    taken = [claim.ledger_id for claim in claims if claim is not None]
    assert len(taken) == len(set(taken))
    while (claim := await RepairQueue(elsewhere, "w", random.Random(9)).next()) is not None:
        taken.append(claim.ledger_id)
    assert sorted(taken) == list(range(6))


async def test_settling_removes_mark_and_lock(replication: ReplicationStore) -> None:
    await replication.mark(LEDGER, ["a"])
    claim = await RepairQueue(replication, "w", random.Random(0)).next()
    assert claim is not None
    assert claim.mark.value.missing == ("a",)
    assert await RepairQueue(replication, "w", random.Random(0)).settle(claim)
    assert await ids(replication) == []
    assert await replication.locked() == set()


async def test_a_mark_that_cannot_be_read_stops_no_other(replication: ReplicationStore) -> None:
    await replication.store.create(replication.mark_path(1), b"{{{", make_parents=True)
    await replication.mark(2, ["a"])
    claim = await RepairQueue(replication, "w", random.Random(0)).next()
    assert claim is not None
    assert claim.ledger_id == 2
    with pytest.raises(CorruptDataError):
        await RepairQueue(replication, "w", random.Random(0)).next()
    assert await replication.locked() == {2}


async def test_a_mark_is_one_write_where_only_the_ledger_s_own_folder_is_missing() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await LedgerStore(store).format()
    replication = ReplicationStore(store)
    await replication.prepare()
    await replication.mark(1, ["a"])
    writes: list[str] = []
    tree.inject = lambda _s, name, _p: writes.append(name) if name in ("create", "put", "multi") else None
    for ledger_id in (2, 3, 4):
        assert await replication.mark(ledger_id, ["a"])
    assert writes == ["multi"] * 3
    assert await replication.mark(1 << 16 | 4, ["a"]), "a folder further out is missing"
    assert await replication.mark(1 << 48 | 4, ["a"])
    assert await ids(replication) == [1, 2, 3, 4, 1 << 16 | 4, 1 << 48 | 4]
    await store.create(replication.mark_path(5).rpartition("/")[0])
    assert await replication.mark(5, ["a"]), "the folder was left behind"
    assert 5 in await ids(replication)


async def test_lost_answers_leave_one_mark_and_one_lock() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await LedgerStore(store).format()
    replication = ReplicationStore(store)
    await replication.prepare()
    for operation in ("create", "multi", "put", "delete"):
        for fault in Fault:
            faults = [fault]
            tree.inject = lambda _s, name, _p, faults=faults, op=operation: (  # type: ignore[misc]
                faults.pop() if faults and name == op else None
            )
            await replication.mark(LEDGER, ["a"], NOW)
            await replication.mark(LEDGER, ["a", "b"], NOW)
            claim = await RepairQueue(replication, "w", random.Random(0)).next()
            assert claim is not None
            whole = await RepairQueue(replication, "w", random.Random(0)).settle(claim)
            tree.inject = None
            assert not faults, "the fault happened"
            assert await replication.locked() == set()
            if not whole:  # a lost answer to the deletion: not repeated, the ledger is looked at once more
                again = await RepairQueue(replication, "w", random.Random(0)).next()
                assert again is None or await RepairQueue(replication, "w", random.Random(0)).settle(again)
            assert await ids(replication) == []


# ---- switches --------------------------------------------------------------------------------------------------------


async def test_the_switch_is_heard(replication: ReplicationStore, elsewhere: ReplicationStore, base: str) -> None:
    await replication.wait_until_enabled()
    assert await elsewhere.disable()
    assert not await elsewhere.disable()
    assert await replication.store.exists(f"{base}/disable") is not None
    waiting = asyncio.create_task(replication.wait_until_enabled())
    assert not await replication.enabled()
    assert not waiting.done()
    assert await elsewhere.enable()
    await asyncio.wait_for(waiting, 60)
    assert not await elsewhere.enable()


async def test_the_delay_is_set_once_and_changed_by_anybody(
    replication: ReplicationStore, elsewhere: ReplicationStore, base: str
) -> None:
    heard = Heard()
    assert await replication.lost_bookie_recovery_delay(heard) is None
    assert await elsewhere.initialize_lost_bookie_recovery_delay(30)
    assert not await elsewhere.initialize_lost_bookie_recovery_delay(60)
    await heard.wait(1)
    found = await replication.lost_bookie_recovery_delay(heard)
    assert found is not None
    assert found.value == 30
    await elsewhere.set_lost_bookie_recovery_delay(30)
    await heard.wait(2)
    again = await replication.lost_bookie_recovery_delay()
    assert again is not None
    assert (again.value, again.version) == (30, found.version + 1)
    data, _ = await replication.store.get(f"{base}/lostBookieRecoveryDelay")
    assert data == b"30"


async def test_a_delay_that_is_none_is_refused(replication: ReplicationStore, base: str) -> None:
    with pytest.raises(CallerError):
        await replication.set_lost_bookie_recovery_delay(-1)
    await replication.store.create(f"{base}/lostBookieRecoveryDelay", b"soon")
    with pytest.raises(CorruptDataError, match="soon"):
        await replication.lost_bookie_recovery_delay()
