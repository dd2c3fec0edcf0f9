"""The ledger tree: paths, layout, ids, and compare-and-set with lost answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest
from helpers.reference_vectors import vectors
from helpers.worlds.metadata import Heard, MetadataServer

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerLayout, LedgerStore
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    ConnectionLossError,
    CorruptDataError,
    InvariantViolation,
    NodeExistsError,
    NoNodeError,
)
from metadata.store import Create, EventKind, MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")
METADATA = LedgerMetadata(3, 3, 2, (Ensemble(0, ("a:1", "b:1", "c:1")),))


@pytest.fixture
async def ledgers(store: MetadataStore, root: str) -> LedgerStore:
    ledgers = LedgerStore(store, f"{root}/ledgers")
    await ledgers.format()
    return ledgers


class Faults:
    """A MemoryTree whose n-th request of one kind meets a fault."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.met = 0

    def arm(self, operation: str, fault: Fault, *, at: str = "", then: Callable[[], None] | None = None) -> None:
        self.met = 0

        def inject(session_id: int, name: str, path: str) -> Fault | None:
            if name != operation or not path.endswith(at) or self.met:
                return None
            self.met += 1
            if then is not None:
                asyncio.get_running_loop().call_soon(then)
            return fault

        self.tree.inject = inject


@pytest.fixture
async def faults() -> Faults:
    faults = Faults()
    await LedgerStore(faults.store).format()
    return faults


# ---- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger_id", [0, 12345, 2147483646, 2147483647, 4294967296, 9223372036854775807])
def test_hierarchical_paths_are_those_of_the_vectors(ledger_id: int) -> None:
    path = VECTORS[f"path of ledger {ledger_id}, hierarchical"].decode()
    assert LedgerLayout.HIERARCHICAL.path("/ledgers", ledger_id) == f"/ledgers{path}"


def test_other_layouts_have_their_own_paths() -> None:
    long, flat = (VECTORS[f"path of ledger 12345, {layout}"].decode() for layout in ("long hierarchical", "flat"))
    assert LedgerLayout.LONG_HIERARCHICAL.path("/l", 12345) == f"/l{long}"
    assert LedgerLayout.FLAT.path("/l", 12345) == f"/l{flat}"
    assert LedgerLayout.LEGACY_HIERARCHICAL.path("/l", 12345) == "/l/00/0001/L2345"
    for layout, ledger_id in ((LedgerLayout.LEGACY_HIERARCHICAL, 2**31), (LedgerLayout.FLAT, -1)):
        with pytest.raises(CallerError):
            layout.path("/l", ledger_id)


def test_the_layout_is_two_lines_without_a_final_newline() -> None:
    data = VECTORS["layout"]
    assert LedgerLayout.HIERARCHICAL.encode() == data
    for layout in LedgerLayout:
        assert LedgerLayout.decode(layout.encode(), "p") is layout
    assert LedgerLayout.decode(b"1\nflat:1", "p") is LedgerLayout.FLAT
    assert LedgerLayout.decode(b"1\nhierarchical:1", "p") is LedgerLayout.LEGACY_HIERARCHICAL


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2",
        b"2\n",
        b"2\norg.example.Other:1",
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:2",
        b"3\nflat:1",
        b"\xff\xff",
        b"1\nflat",
    ],
)
def test_a_layout_that_is_none_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        LedgerLayout.decode(data, "/ledgers/LAYOUT")
    assert caught.value.path == "/ledgers/LAYOUT"


async def test_format_makes_the_tree_once(store: MetadataStore, ledgers: LedgerStore) -> None:
    root = ledgers.root
    assert (await store.children(root))[0] == ["INSTANCEID", "LAYOUT", "available"]
    assert (await store.children(f"{root}/available"))[0] == ["readonly"]
    instance = (await store.get(f"{root}/INSTANCEID"))[0]
    assert str(uuid.UUID(instance.decode())).encode() == instance
    await LedgerStore(store, root).format()
    assert (await store.get(f"{root}/INSTANCEID"))[0] == instance
    assert (await store.get(f"{root}/LAYOUT"))[1].version == 0


async def test_several_may_format_at_once(store: MetadataStore, root: str) -> None:
    many = [LedgerStore(store, f"{root}/deep/er/ledgers") for _ in range(5)]
    await asyncio.gather(*(ledgers.format() for ledgers in many))
    assert (await store.children(f"{root}/deep/er/ledgers"))[0] == ["INSTANCEID", "LAYOUT", "available"]


async def test_format_goes_on_where_a_crash_left_it(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/ledgers/available", make_parents=True)
    await LedgerStore(store, f"{root}/ledgers").format()
    assert (await store.children(f"{root}/ledgers"))[0] == ["INSTANCEID", "LAYOUT", "available"]
    await store.delete(f"{root}/ledgers/LAYOUT")
    kept = await store.get(f"{root}/ledgers/INSTANCEID")
    await LedgerStore(store, f"{root}/ledgers").format()
    assert await store.get(f"{root}/ledgers/INSTANCEID") == kept


async def test_a_cluster_without_an_instance_id_gets_none_later(store: MetadataStore, ledgers: LedgerStore) -> None:
    await store.delete(f"{ledgers.root}/INSTANCEID")
    await LedgerStore(store, ledgers.root).format()
    assert await store.exists(f"{ledgers.root}/INSTANCEID") is None


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("operation", ["multi", "children", "exists", "get"])
async def test_format_survives_a_lost_answer(operation: str, fault: Fault) -> None:
    faults = Faults()
    faults.arm(operation, fault)
    await LedgerStore(faults.store).format()
    assert faults.met == 1
    assert (await faults.store.children("/ledgers"))[0] == ["INSTANCEID", "LAYOUT", "available"]


async def test_a_cluster_that_was_never_formatted_is_a_clear_error(store: MetadataStore, root: str) -> None:
    for path in (f"{root}/ledgers", root):  # one that does not exist, and one that is something else
        with pytest.raises(CallerError, match="no BookKeeper cluster") as refused:
            await LedgerStore(store, path).read(1)
        assert "dlspark cluster init" in str(refused.value)
        assert await store.exists(f"{path}/LAYOUT") is None


async def without_layout(store: MetadataStore, root: str, *ledgers: str) -> None:
    """A tree as Apache Pulsar's set-up leaves it, and znodes of ledgers."""
    await store.create(f"{root}/available/readonly", make_parents=True)
    await store.create(f"{root}/INSTANCEID", b"5ca1ab1e")
    for path in ledgers:
        await store.create(f"{root}/{path}", make_parents=True)


async def test_who_finds_no_layout_writes_the_hierarchical_one(store: MetadataStore, root: str) -> None:
    await without_layout(store, root, "00/0000/L0007")
    everybody = [LedgerStore(store, root) for _ in range(4)]
    assert await everybody[0].stored_layout() is None
    assert await asyncio.gather(*(one.layout() for one in everybody)) == [LedgerLayout.HIERARCHICAL] * 4
    data, stat = await store.get(f"{root}/LAYOUT")
    assert (data, stat.version) == (VECTORS["layout"], 0)
    assert [ledger_id async for ledger_id in everybody[0].ids()] == [7]


@pytest.mark.parametrize(
    ("found", "commands"),
    [
        (["L0000000007"], "--layout flat"),
        (["000/0000/0000/0000/L0007"], "--layout longhierarchical"),
        (["L0000000007", "00/0000/L0008"], "a root of its own"),
    ],
)
async def test_ledgers_of_another_layout_are_not_given_the_usual_one(
    store: MetadataStore, root: str, found: list[str], commands: str
) -> None:
    await without_layout(store, root, *found)
    for call in (LedgerStore(store, root).layout(), LedgerStore(store, root).format()):
        with pytest.raises(CallerError, match="would not find") as refused:
            await call
        assert commands in str(refused.value)
    assert await store.exists(f"{root}/LAYOUT") is None


async def test_a_layout_that_is_named_is_written_where_it_finds_the_ledgers(store: MetadataStore, root: str) -> None:
    await without_layout(store, root, "L0000000007")
    assert await LedgerStore(store, root).format(LedgerLayout.FLAT) == [f"{root}/LAYOUT"]
    assert [ledger_id async for ledger_id in LedgerStore(store, root).ids()] == [7]
    with pytest.raises(CallerError, match="laid out by FlatLedgerManagerFactory"):
        await LedgerStore(store, root).format(LedgerLayout.HIERARCHICAL)
    assert await LedgerStore(store, root).format() == []


async def test_cookies_without_an_instance_id_are_left_without_one(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/cookies/10.0.0.1:3181", make_parents=True)
    made = await LedgerStore(store, root).format()
    assert made == [f"{root}/available", f"{root}/available/readonly", f"{root}/LAYOUT"]


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_lost_answer_to_the_layout_is_looked_up(faults: Faults, fault: Fault) -> None:
    await faults.store.delete("/ledgers/LAYOUT")
    faults.arm("create", fault, at="/LAYOUT")
    assert await LedgerStore(faults.store).layout() is LedgerLayout.HIERARCHICAL
    assert faults.met == 1


async def test_a_foreign_layout_is_refused(store: MetadataStore, ledgers: LedgerStore) -> None:
    await store.put(f"{ledgers.root}/LAYOUT", b"2\norg.example.Other:1", -1)
    fresh = LedgerStore(store, ledgers.root)
    for call in (fresh.format(), fresh.generate_id(), fresh.read(1)):
        with pytest.raises(CorruptDataError):
            await call


# ---- ids -------------------------------------------------------------------------------------------------------------


async def test_ids_count_up_and_leave_nothing_behind(store: MetadataStore, ledgers: LedgerStore) -> None:
    assert [await ledgers.generate_id() for _ in range(3)] == [0, 1, 2]
    assert (await store.children(f"{ledgers.root}/idgen"))[0] == []


async def test_ids_made_at_once_are_different(ledgers: LedgerStore) -> None:
    ids = await asyncio.gather(*(ledgers.generate_id() for _ in range(50)))
    assert sorted(ids) == list(range(50))


async def test_ids_go_on_with_the_long_generator_when_31_bits_are_used_up(faults: Faults) -> None:
    ledgers = LedgerStore(faults.store)
    await ledgers.generate_id()
    faults.tree.set_sequence("/ledgers/idgen", 2**31 - 2)
    assert await ledgers.generate_id() == 2**31 - 2
    assert await ledgers.generate_id() == 1 << 32
    assert await LedgerStore(faults.store).generate_id() == (1 << 32) + 1
    assert (await faults.store.children("/ledgers/idgen-long"))[0] == ["HOB-0000000001"]


@pytest.mark.parametrize("counter", [2**31 - 1, 2**31, 2**32 - 5])
async def test_a_negative_or_largest_suffix_counts_as_overflow(faults: Faults, counter: int) -> None:
    ledgers = LedgerStore(faults.store)
    await faults.store.create("/ledgers/idgen")
    faults.tree.set_sequence("/ledgers/idgen", counter)
    assert await ledgers.generate_id() == 1 << 32


async def test_the_long_generator_moves_to_the_next_high_bits_and_drops_old_ones(faults: Faults) -> None:
    for high in range(1, 6):
        await faults.store.create(f"/ledgers/idgen-long/HOB-{high:010d}", make_parents=True)
    await faults.store.create("/ledgers/idgen-long/foreign")
    faults.tree.set_sequence("/ledgers/idgen-long/HOB-0000000005", 2**31 - 1)
    ledgers = LedgerStore(faults.store)
    assert await ledgers.generate_id() == 6 << 32
    assert await ledgers.generate_id() == (6 << 32) + 1
    names = (await faults.store.children("/ledgers/idgen-long"))[0]
    assert names == ["HOB-0000000004", "HOB-0000000005", "HOB-0000000006", "foreign"]


async def test_the_flat_layout_makes_ids_below_the_root(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/LAYOUT", LedgerLayout.FLAT.encode())
    ledgers = LedgerStore(store, root)
    first = await ledgers.generate_id()
    assert await ledgers.generate_id() == first + 1
    await ledgers.create(7, METADATA)
    assert await store.exists(f"{root}/L0000000007") is not None
    assert [number async for number in ledgers.ids()] == [7]
    await ledgers.delete(7)
    assert await store.exists(root) is not None


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("operation", ["create", "delete"])
async def test_a_lost_answer_costs_at_most_an_id(faults: Faults, operation: str, fault: Fault) -> None:
    faults.arm(operation, fault, at="")
    ledgers = LedgerStore(faults.store)
    ids = [await ledgers.generate_id() for _ in range(3)]
    assert faults.met == 1
    assert len(set(ids)) == 3


async def test_a_reserved_id_is_the_next_one_and_is_given_once(store: MetadataStore, ledgers: LedgerStore) -> None:
    await asyncio.gather(ledgers.reserve_id(), ledgers.reserve_id())
    assert [await ledgers.generate_id() for _ in range(3)] == [0, 1, 2]
    reserving = asyncio.ensure_future(ledgers.reserve_id())
    await asyncio.sleep(0)
    assert await ledgers.generate_id() == 3
    await reserving
    assert (await store.children(f"{ledgers.root}/idgen"))[0] == []


async def test_ids_that_are_skipped_are_given_to_nobody(store: MetadataStore, ledgers: LedgerStore) -> None:
    await ledgers.skip_ids(5)  # of a sequence that does not exist yet
    assert await ledgers.generate_id() == 0
    await ledgers.reserve_id()
    await ledgers.skip_ids(100)
    await ledgers.skip_ids(0)
    assert await ledgers.generate_id() == 102
    assert (await store.children(f"{ledgers.root}/idgen"))[0] == []


async def test_long_ids_are_skipped_in_their_own_sequence(faults: Faults) -> None:
    ledgers = LedgerStore(faults.store)
    await faults.store.create("/ledgers/idgen")
    faults.tree.set_sequence("/ledgers/idgen", 2**31 - 1)
    assert await ledgers.generate_id() == 1 << 32
    await ledgers.skip_ids(9)
    assert await ledgers.generate_id() == (1 << 32) + 10


async def test_the_flat_layouts_ids_are_skipped_too(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/LAYOUT", LedgerLayout.FLAT.encode())
    ledgers = LedgerStore(store, root)
    first = await ledgers.generate_id()
    await ledgers.skip_ids(3)
    assert await ledgers.generate_id() == first + 4


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_lost_answer_skips_more_ids_and_none_twice(faults: Faults, fault: Fault) -> None:
    ledgers = LedgerStore(faults.store)
    first = await ledgers.generate_id()
    faults.arm("multi", fault)
    await ledgers.skip_ids(3)
    assert faults.met == 1
    assert await ledgers.generate_id() > first + 3


# ---- metadata --------------------------------------------------------------------------------------------------------


async def test_what_is_joined_comes_with_the_ledger(store: MetadataStore, ledgers: LedgerStore, root: str) -> None:
    ledgers.join_creation(12345, [Create(f"{root}/listing")])
    created = await ledgers.create(12345, METADATA)
    assert await ledgers.read(12345) == created
    assert await store.exists(f"{root}/listing") is not None
    await ledgers.delete(12345)
    await ledgers.create(12345, METADATA)  # joined once only


async def test_without_what_is_joined_no_ledger_comes(store: MetadataStore, ledgers: LedgerStore, root: str) -> None:
    ledgers.join_creation(12345, [Create(f"{root}/gone/listing")])
    with pytest.raises(NoNodeError) as raised:
        await ledgers.create(12345, METADATA)
    assert raised.value.path == f"{root}/gone/listing"
    with pytest.raises(NoNodeError):
        await ledgers.read(12345)
    other = await ledgers.create(7, METADATA)
    ledgers.join_creation(7, [Create(f"{root}/listing")])
    with pytest.raises(NodeExistsError):
        await ledgers.create(7, METADATA)
    assert await store.exists(f"{root}/listing") is None
    assert await ledgers.read(7) == other


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_joined_creation_is_decided_by_the_token_when_its_answer_is_lost(faults: Faults, fault: Fault) -> None:
    ledgers = LedgerStore(faults.store)
    await ledgers.create(12344, METADATA)  # the parents
    faults.arm("multi", fault, at="")
    ledgers.join_creation(12345, [Create("/listing")])
    created = await ledgers.create(12345, METADATA)
    assert faults.met == 1
    assert await ledgers.read(12345) == created
    assert await faults.store.exists("/listing") is not None


async def test_create_read_write_delete(store: MetadataStore, ledgers: LedgerStore) -> None:
    created = await ledgers.create(12345, METADATA)
    assert created.version == 0
    token = created.value.creator_token
    assert token is not None
    assert 0 <= token < 2**63
    assert await ledgers.read(12345) == created
    closed = await ledgers.write(12345, created.value.closed(9, 90), 0)
    assert closed.version == 1
    assert await ledgers.read(12345) == closed
    assert closed.value.creator_token == 0
    await ledgers.delete(12345)
    await ledgers.delete(12345)
    with pytest.raises(NoNodeError) as caught:
        await ledgers.read(12345)
    assert caught.value.ledger_id == 12345
    assert (await store.children(ledgers.root))[0] == ["INSTANCEID", "LAYOUT", "available"]


async def test_a_taken_id_is_refused(ledgers: LedgerStore) -> None:
    first = await ledgers.create(1, METADATA)
    with pytest.raises(NodeExistsError) as caught:
        await ledgers.create(1, METADATA)
    assert caught.value.ledger_id == 1
    assert await ledgers.read(1) == first


async def test_only_one_of_two_conditional_writes_wins(ledgers: LedgerStore) -> None:
    base = (await ledgers.create(1, METADATA)).value
    results = await asyncio.gather(
        *(ledgers.write(1, base.closed(last, 10), 0) for last in (4, 5)), return_exceptions=True
    )
    lost = [result for result in results if isinstance(result, BadVersionError)]
    assert len(lost) == 1
    assert lost[0].ledger_id == 1
    assert (await ledgers.read(1)).version == 1


async def test_metadata_is_never_written_unconditionally(ledgers: LedgerStore) -> None:
    with pytest.raises(InvariantViolation):
        await ledgers.write(1, METADATA, -1)


async def test_a_read_can_leave_a_watch(ledgers: LedgerStore) -> None:
    base = await ledgers.create(1, METADATA)
    heard = Heard()
    await ledgers.read(1, heard)
    await ledgers.write(1, base.value.closed(0, 1), 0)
    events = await heard.wait(1)
    assert [(event.kind, event.path) for event in events] == [(EventKind.CHANGED, ledgers.path(1))]


async def test_foreign_bytes_in_a_ledgers_znode_are_corrupt(store: MetadataStore, ledgers: LedgerStore) -> None:
    await ledgers.create(1, METADATA)
    await store.put(ledgers.path(1), b"garbage", -1)
    with pytest.raises(CorruptDataError) as caught:
        await ledgers.read(1)
    assert caught.value.path == ledgers.path(1)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE])
async def test_a_lost_creation_is_resolved_by_the_creator_token(faults: Faults, fault: Fault) -> None:
    ledgers = LedgerStore(faults.store)
    await faults.store.create("/ledgers/00/0000", make_parents=True)
    faults.arm("create", fault, at="L0007")
    created = await ledgers.create(7, METADATA)
    assert faults.met == 1
    assert await ledgers.read(7) == created


async def test_a_lost_creation_that_somebody_else_made_is_refused(faults: Faults) -> None:
    rival = LedgerStore(MemoryStore(faults.tree))
    theirs = await rival.create(7, METADATA)
    faults.arm("create", Fault.LOSE_REPLY, at="L0007")
    with pytest.raises(NodeExistsError):
        await LedgerStore(faults.store).create(7, METADATA)
    assert faults.met == 1
    assert await rival.read(7) == theirs


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.REFUSE])
async def test_a_lost_write_is_resolved_by_reading_back(faults: Faults, fault: Fault) -> None:
    ledgers = LedgerStore(faults.store)
    base = await ledgers.create(7, METADATA)
    faults.arm("put", fault)
    written = await ledgers.write(7, base.value.closed(3, 30), 0)
    assert faults.met == 1
    assert written.version == 1
    assert await ledgers.read(7) == written


async def test_a_lost_write_that_another_overtook_says_which(faults: Faults) -> None:
    ledgers, rival = LedgerStore(faults.store), LedgerStore(MemoryStore(faults.tree))
    base = await ledgers.create(7, METADATA)
    theirs = base.value.closed(5, 50)

    class Rival:
        task: asyncio.Task[object] | None = None

    def overtake() -> None:
        Rival.task = asyncio.ensure_future(rival.write(7, theirs, 0))

    faults.arm("put", Fault.LOSE_REQUEST, then=overtake)
    with pytest.raises(BadVersionError):
        await ledgers.write(7, base.value.closed(3, 30), 0)
    assert Rival.task is not None
    await Rival.task
    assert (await ledgers.read(7)).value == theirs


async def test_a_lost_write_under_later_ones_stays_unknown(faults: Faults) -> None:
    ledgers, rival = LedgerStore(faults.store), LedgerStore(MemoryStore(faults.tree))
    base = await ledgers.create(7, METADATA)
    ours = base.value.with_ensemble(4, ("a:1", "b:1", "d:1"))
    raced: list[asyncio.Task[object]] = []

    async def follow() -> None:
        while (await rival.read(7)).version == 0:
            pass
        await rival.write(7, ours.closed(9, 9), 1)

    faults.arm("put", Fault.LOSE_REPLY, then=lambda: raced.append(asyncio.ensure_future(follow())))
    faults.tree.stall()  # the answer is lost and the rival is faster than our reading back
    writing = asyncio.ensure_future(ledgers.write(7, ours, 0))
    await asyncio.sleep(0)
    faults.tree.resume()
    try:
        written = await writing
    except ConnectionLossError:
        await asyncio.gather(*raced)
        assert (await ledgers.read(7)).version == 2
    else:
        assert written.version == 1
        await asyncio.gather(*raced)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_lost_deletion_is_repeated(faults: Faults, fault: Fault) -> None:
    ledgers = LedgerStore(faults.store)
    await ledgers.create(7, METADATA)
    faults.arm("delete", fault)
    await ledgers.delete(7)
    assert faults.met == 1
    assert await faults.store.exists("/ledgers/00") is None


async def test_creation_survives_parents_being_pruned_under_it(ledgers: LedgerStore) -> None:
    async def churn(number: int) -> None:
        for _ in range(10):
            await ledgers.create(number, METADATA)
            await ledgers.delete(number)

    await asyncio.gather(*(churn(number) for number in range(4)))
    assert [number async for number in ledgers.ids()] == []


# ---- scan ------------------------------------------------------------------------------------------------------------


async def test_ids_come_in_ascending_order_and_foreign_znodes_are_skipped(
    store: MetadataStore, ledgers: LedgerStore
) -> None:
    ids = [4294967296, 0, 12345, 12346, 99999, 2147483647, 2147483646, 2**63 - 1]
    for ledger_id in ids:
        await ledgers.create(ledger_id, METADATA)
    for name in ("underreplication", "0", "0000", "00/x", "00/0000/M0001", "00/0000/L1", "000/0000/0021/x"):
        await store.create(f"{ledgers.root}/{name}", make_parents=True)
    assert [number async for number in ledgers.ids()] == sorted(ids)


async def test_a_session_lost_during_a_scan_does_not_cut_it_short(
    metadata_server: MetadataServer, ledgers: LedgerStore
) -> None:
    for ledger_id in range(0, 40_000, 10_000):
        await ledgers.create(ledger_id, METADATA)
    found = []
    async for number in ledgers.ids():
        found.append(number)
        if number == 10_000:
            await metadata_server.break_connection(ledgers.store)
    assert found == [0, 10_000, 20_000, 30_000]
