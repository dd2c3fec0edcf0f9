"""The znodes of a log: names, creation, listing, and the transactions on segments."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from helpers.reference_vectors import vectors
from helpers.worlds.metadata import Heard
from hypothesis import given
from hypothesis import strategies as st

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.log_names import InvalidLogNameError, LogExistsError, LogNotFoundError, LogState
from metadata.distributedlog.logs import MAX_DELETES, LogStore
from metadata.distributedlog.namespaces import NotBoundError
from metadata.distributedlog.segments import SegmentListError, SegmentMetadata, TruncationStatus
from metadata.foundation.errors import (
    BadVersionError,
    ConnectionLossError,
    CorruptDataError,
    InvariantViolation,
    NodeExistsError,
    NoNodeError,
)
from metadata.store import ANY_VERSION, Check, Create, Delete, EventKind, MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree


@pytest.fixture
async def logs(store: MetadataStore, root: str) -> LogStore:
    await store.create(f"{root}/ns")
    return LogStore(store, f"{root}/ns")


def opening(lssn: int, ledger_id: int | None = None) -> SegmentMetadata:
    return SegmentMetadata(
        ledger_id=1_000 + lssn if ledger_id is None else ledger_id, lssn=lssn, first_txid=lssn * 10, in_progress=True
    )


def finished(segment: SegmentMetadata) -> SegmentMetadata:
    return segment.completed(
        last_txid=segment.lssn * 10 + 9,
        completion_time_ms=1_700_000_000_000,
        record_count=3,
        last_entry=2,
        last_slot=0,
        start_sequence_id=(segment.lssn - 1) * 3,
    )


async def run(logs: LogStore, name: str, state: LogState, lssn: int) -> LogState:
    """Start and complete one segment."""
    state = await logs.start_segment(name, state, opening(lssn))
    return await logs.complete_segment(name, state, finished(opening(lssn)), opening(lssn))


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flights", "a/b/c", "ünïcode", "with.dot", "a-b_c:d;e", "x" * 200])
def test_good_names_are_taken_as_they_are(name: str) -> None:
    assert LogStore.validate_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "/flights", "//a", ".hidden", "<default>", "/.hidden", "a/", "a//b", "a/./b", "a/../b", ".", "..",
        "a b", "a<b", "a>b", "a\0b", "a\x01b", "a\x1eb", "a\x1fb", "a\x80b", "a\x9fb", "a\ue000b", "a\ufff5b",
        "a\ud800b", "\U0001f600",
    ],
)  # fmt: skip
def test_bad_names_are_refused_with_code_602(name: str) -> None:
    with pytest.raises(InvalidLogNameError) as caught:
        LogStore.validate_name(name)
    assert caught.value.code == 602


@given(st.text(max_size=20))
def test_any_text_is_a_name_or_refused(name: str) -> None:
    try:
        plain = LogStore.validate_name(name)
    except InvalidLogNameError:
        return
    assert LogStore.validate_name(plain) == plain


def test_the_paths_of_a_log() -> None:
    paths = LogStore(MemoryStore(MemoryTree()), "/messaging/ns").paths("a/b")
    assert paths.root == "/messaging/ns/a/b"
    assert paths.partition == "/messaging/ns/a/b/<default>"
    assert [paths.max_txid, paths.version, paths.lock, paths.read_lock, paths.ledgers, paths.allocation] == [
        f"{paths.partition}/{name}" for name in ("maxtxid", "version", "lock", "readLock", "ledgers", "allocation")
    ]
    assert paths.segment(opening(3)) == f"{paths.ledgers}/inprogress_000000000000000003"


# ---- creation --------------------------------------------------------------------------------------------------------


async def test_a_new_log_has_the_znodes_of_the_log_layout(store: MetadataStore, logs: LogStore) -> None:
    await logs.create("flights")
    paths = logs.paths("flights")
    expected = {
        paths.root: b"",
        paths.partition: b"",
        paths.max_txid: b"0",
        paths.version: vectors("znodes.md")["log layout"],
        paths.lock: b"",
        paths.read_lock: b"",
        paths.ledgers: b"0",
        paths.allocation: b"",
    }
    for path, data in expected.items():
        found, stat = await store.get(path)
        assert (found, stat.version, stat.ephemeral_owner) == (data, 0, 0)
    assert (await store.children(paths.partition))[0] == sorted(
        ["allocation", "ledgers", "lock", "maxtxid", "readLock", "version"]
    )
    assert await logs.open("flights") == LogState(Versioned(0, 0), Versioned(0, 0), Versioned(b"", 0))


async def test_a_log_is_made_by_one_transaction(store: MetadataStore, logs: LogStore) -> None:
    await logs.create("a/b/c")
    czxids = {(await store.get(path))[1].czxid for path in (logs.paths("a/b/c").allocation, f"{logs.namespace_path}/a")}
    assert len(czxids) == 1


async def test_creating_a_complete_log_changes_nothing(logs: LogStore) -> None:
    await logs.create("flights")
    state = await run(logs, "flights", await logs.open("flights"), 1)
    await logs.create("flights")
    await logs.ensure("flights")
    assert await logs.open("flights") == state


async def test_a_half_made_log_is_not_found_and_can_be_completed(store: MetadataStore, logs: LogStore) -> None:
    await logs.create("flights")
    await store.delete(logs.paths("flights").allocation)
    with pytest.raises(LogNotFoundError) as caught:
        await logs.open("flights")
    assert (caught.value.code, caught.value.log) == (510, "flights")
    await logs.create("flights")
    assert (await logs.open("flights")).allocation == Versioned(b"", 0)


async def test_a_concurrent_creator_loses_with_code_522_and_ensure_does_not_mind(logs: LogStore) -> None:
    results = await asyncio.gather(*(logs.create("raced") for _ in range(6)), return_exceptions=True)
    lost = [result for result in results if result is not None]
    assert len(lost) < 6
    assert all(isinstance(result, LogExistsError) and result.code == 522 for result in lost)
    await asyncio.gather(*(logs.ensure("other") for _ in range(6)))
    assert await logs.list() == ["other", "raced"]


async def test_logs_are_made_only_in_a_namespace(store: MetadataStore, root: str) -> None:
    with pytest.raises(NotBoundError):
        await LogStore(store, f"{root}/nowhere").create("flights")


async def test_logs_that_share_a_new_folder_may_be_created_at_once(logs: LogStore) -> None:
    names = [f"plant/hall/machine-{number}" for number in range(5)]
    await asyncio.gather(*(logs.create(name) for name in names))
    assert [await logs.exists(name) for name in names] == [True] * 5


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_lost_creation_is_an_unknown_outcome_that_ensure_resolves(fault: Fault) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/ns")
    logs = LogStore(store, "/ns")
    met: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if name == "multi" and len(met) % 2 == 0:
            met.append(path)
            return fault
        return None

    tree.inject = inject
    with pytest.raises(ConnectionLossError):
        await logs.create("one")
    met.append("let the next one meet it as well")
    await asyncio.sleep(0)
    await logs.ensure("two")
    await logs.ensure("one")
    assert await logs.list() == ["one", "two"]


async def test_listing_shows_direct_children_without_reserved_names(store: MetadataStore, logs: LogStore) -> None:
    for name in ("b", "a", "nested/x", "nested/y"):
        await logs.create(name)
    await store.create(f"{logs.namespace_path}/.sinks")
    assert await logs.list() == ["a", "b", "nested"]
    assert await logs.list("nested") == ["x", "y"]
    assert await logs.list("a") == []
    assert await logs.list("missing") == []
    assert await LogStore(store, f"{logs.namespace_path}/nowhere").list() == []
    assert [await logs.exists(name) for name in ("a", "nested", "nested/x", "c")] == [True, False, True, False]


# ---- foreign content -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("node", "data"), [("ledgers", b""), ("ledgers", b"many"), ("version", b"\0\0\0\1")])
async def test_foreign_content_refuses_the_open(store: MetadataStore, logs: LogStore, node: str, data: bytes) -> None:
    await logs.create("flights")
    path = f"{logs.paths('flights').partition}/{node}"
    await store.put(path, data, -1)
    for call in (logs.open("flights"), logs.create("flights")):
        with pytest.raises(CorruptDataError) as caught:
            await call
        assert (caught.value.path, caught.value.log) == (path, "flights")


async def test_a_maxtxid_that_is_no_number_counts_as_minus_999_and_is_overwritten(
    store: MetadataStore, logs: LogStore
) -> None:
    await logs.create("flights")
    await store.put(logs.paths("flights").max_txid, b"junk", -1)
    state = await logs.open("flights")
    assert state.max_txid == Versioned(-999, 1)
    state = await run(logs, "flights", state, 1)
    assert (await store.get(logs.paths("flights").max_txid))[0] == b"19"


async def test_garbage_in_a_segment_is_corrupt_and_names_the_znode(store: MetadataStore, logs: LogStore) -> None:
    await logs.create("flights")
    path = f"{logs.paths('flights').ledgers}/logrecs_000000000000000001"
    await store.create(path, b"\xff\x00garbage")
    with pytest.raises(CorruptDataError) as caught:
        await logs.segments("flights")
    assert (caught.value.path, caught.value.log) == (path, "flights")


async def test_children_that_are_no_segments_are_skipped(store: MetadataStore, logs: LogStore) -> None:
    await logs.create("flights")
    await run(logs, "flights", await logs.open("flights"), 1)
    await store.create(f"{logs.paths('flights').ledgers}/foreign", b"junk")
    assert [segment.lssn for segment in await logs.segments("flights")] == [1]


# ---- segments --------------------------------------------------------------------------------------------------------


async def test_a_segment_is_started_and_completed_by_one_transaction_each(store: MetadataStore, logs: LogStore) -> None:
    await logs.create("flights")
    paths = logs.paths("flights")
    await store.put(paths.allocation, b"1001", 0)
    state = await logs.open("flights")
    state = await logs.start_segment("flights", state, opening(1))
    assert state == LogState(Versioned(1, 1), Versioned(0, 0), Versioned(b"", 2))
    assert state == await logs.open("flights")
    assert (await store.get(f"{paths.ledgers}/inprogress_000000000000000001"))[0] == b"5;1001;10;1;0;0;-1"
    assert await logs.segments("flights") == [opening(1)]
    state = await logs.complete_segment("flights", state, finished(opening(1)), opening(1))
    assert state == LogState(Versioned(1, 2), Versioned(19, 1), Versioned(b"", 2))
    assert state == await logs.open("flights")
    assert await logs.segments("flights") == [finished(opening(1))]
    assert (await store.children(paths.ledgers))[0] == ["logrecs_000000000000000001"]


async def test_completion_never_lowers_the_highest_number_or_transaction_id(logs: LogStore) -> None:
    await logs.create("flights")
    state = await logs.start_segment("flights", await logs.open("flights"), opening(1))
    state = await logs.start_segment("flights", state, opening(2))
    late = replace(state, max_txid=Versioned(5_000, state.max_txid.version))
    done = await logs.complete_segment("flights", late, finished(opening(1)), opening(1))
    assert (done.max_lssn.value, done.max_txid.value) == (2, 5_000)
    assert [segment.in_progress for segment in await logs.segments("flights")] == [False, True]


async def test_a_deposed_owner_changes_nothing(logs: LogStore) -> None:
    await logs.create("flights")
    stale = await logs.open("flights")
    current = await run(logs, "flights", stale, 1)
    before = await logs.segments("flights")
    with pytest.raises(BadVersionError):
        await logs.start_segment("flights", stale, opening(2))
    with pytest.raises((BadVersionError, NodeExistsError)):
        await logs.complete_segment("flights", stale, finished(opening(1)), opening(1))
    assert (await logs.open("flights"), await logs.segments("flights")) == (current, before)


async def test_a_segment_completed_by_somebody_else_cannot_be_completed_again(logs: LogStore) -> None:
    await logs.create("flights")
    state = await run(logs, "flights", await logs.open("flights"), 1)
    with pytest.raises(NoNodeError):
        await logs.complete_segment("flights", state, replace(finished(opening(2)), ledger_id=1), opening(2, 1))
    assert await logs.open("flights") == state


async def test_extra_operations_join_the_transaction(store: MetadataStore, logs: LogStore, root: str) -> None:
    await logs.create("flights")
    state = await logs.open("flights")
    with pytest.raises(NoNodeError) as caught:
        await logs.start_segment("flights", state, opening(1), extra=[Check(f"{root}/lost-lock", -1)])
    assert caught.value.op_index == 3
    assert await logs.open("flights") == state
    await logs.start_segment("flights", state, opening(1), extra=[Create(f"{root}/mark")])
    assert await store.exists(f"{root}/mark") is not None


async def test_a_segment_keeps_its_ledger_and_goes_one_way(logs: LogStore) -> None:
    await logs.create("flights")
    state = await logs.open("flights")
    for call in (
        logs.start_segment("flights", state, finished(opening(1))),
        logs.complete_segment("flights", state, opening(1), opening(1)),
        logs.complete_segment("flights", state, replace(finished(opening(1)), ledger_id=9), opening(1)),
    ):
        with pytest.raises(InvariantViolation):
            await call


async def test_deleting_a_segment_twice_is_a_success(logs: LogStore) -> None:
    await logs.create("flights")
    await logs.start_segment("flights", await logs.open("flights"), opening(1))
    await logs.delete_segment("flights", opening(1))
    await logs.delete_segment("flights", opening(1))
    assert await logs.segments("flights") == []


async def test_only_the_owner_removes_an_empty_segment_whose_number_may_have_come_again(logs: LogStore) -> None:
    await logs.create("flights")
    stale = await logs.start_segment("flights", await logs.open("flights"), opening(1))
    await logs.remove_segment("flights", stale, opening(1))
    await logs.remove_segment("flights", stale, opening(1))
    assert await logs.segments("flights") == []
    state = await logs.start_segment("flights", stale, opening(1))
    with pytest.raises(BadVersionError):
        await logs.remove_segment("flights", stale, opening(1))
    assert await logs.segments("flights") == [opening(1)]
    with pytest.raises(InvariantViolation):
        await logs.remove_segment("flights", state, finished(opening(1)))
    await logs.delete_segment("flights", opening(1))
    await logs.delete_tree("flights")
    with pytest.raises(NoNodeError):
        await logs.remove_segment("flights", state, opening(1))


async def test_published_segments_of_many_logs_appear_together_or_not_at_all(
    store: MetadataStore, logs: LogStore
) -> None:
    for name in ("one", "two"):
        await logs.create(name)
    states = {name: await logs.open(name) for name in ("one", "two")}
    batch = [finished(opening(1)), finished(opening(2))]
    ops = [op for name in ("one", "two") for op in logs.publish_ops(name, states[name], batch)]
    await run(logs, "two", states["two"], 1)
    with pytest.raises((BadVersionError, NodeExistsError)):
        await store.multi(ops)
    assert await logs.segments("one") == []
    assert await logs.open("one") == states["one"]
    await store.multi(logs.publish_ops("one", states["one"], batch))
    assert await logs.segments("one") == batch
    assert await logs.open("one") == LogState(Versioned(2, 1), Versioned(29, 1), Versioned(b"", 0))
    for wrong in ([], [opening(3)], [finished(opening(3)), finished(opening(5))]):
        with pytest.raises(InvariantViolation):
            logs.publish_ops("one", states["one"], wrong)


# ---- reading the list ------------------------------------------------------------------------------------------------


async def test_a_missing_segment_in_the_middle_is_an_error_and_at_the_start_is_not(
    store: MetadataStore, logs: LogStore
) -> None:
    await logs.create("flights")
    state = await logs.open("flights")
    for lssn in range(1, 5):
        state = await run(logs, "flights", state, lssn)
    await logs.delete_segment("flights", finished(opening(1)))
    assert [segment.lssn for segment in await logs.segments("flights")] == [2, 3, 4]
    await logs.delete_segment("flights", finished(opening(3)))
    with pytest.raises(SegmentListError) as caught:
        await logs.segments("flights")
    assert (caught.value.code, caught.value.log) == (600, "flights")
    assert "4 follows segment 2" in str(caught.value)
    tolerant = LogStore(store, logs.namespace_path, validate_sequence=False)
    assert [segment.lssn for segment in await tolerant.segments("flights")] == [2, 4]


async def test_a_watch_on_the_list_hears_the_next_segment(logs: LogStore) -> None:
    await logs.create("flights")
    heard = Heard()
    assert await logs.segments("flights", heard) == []
    await logs.start_segment("flights", await logs.open("flights"), opening(1))
    events = await heard.wait(1)
    assert [(event.kind, event.path) for event in events] == [(EventKind.CHILDREN, logs.paths("flights").ledgers)]


async def test_a_truncated_segment_keeps_its_name(store: MetadataStore, logs: LogStore) -> None:
    await logs.create("flights")
    await run(logs, "flights", await logs.open("flights"), 1)
    (segment,) = await logs.segments("flights")
    path = logs.paths("flights").segment(segment)
    hidden = replace(segment, truncation=TruncationStatus.TRUNCATED)
    await store.multi([Delete(path, 0), Create(path, hidden.encode())])
    assert (await logs.segments("flights"))[0].truncation is TruncationStatus.TRUNCATED


async def test_a_missing_log_has_no_segments(logs: LogStore) -> None:
    with pytest.raises(LogNotFoundError):
        await logs.segments("missing")


async def test_the_list_stays_whole_while_segments_roll_under_it() -> None:
    """Readers that list at any moment of a roll see consecutive segments, and never fewer than before."""
    tree = MemoryTree()
    writer, reader = MemoryStore(tree), MemoryStore(tree)
    await writer.create("/ns")
    logs, view = LogStore(writer, "/ns"), LogStore(reader, "/ns")
    await logs.create("flights")
    state = await logs.start_segment("flights", await logs.open("flights"), opening(1))
    done = False
    lists = 0

    async def read() -> None:
        nonlocal lists
        highest = 1
        while not done:
            segments = await view.segments("flights")
            numbers = [segment.lssn for segment in segments]
            assert numbers == list(range(1, len(numbers) + 1))
            completed = max((segment.lssn for segment in segments if not segment.in_progress), default=0)
            assert completed >= highest - 2
            highest = max(highest, numbers[-1] if numbers else 0)
            lists += 1

    reading = [asyncio.ensure_future(read()) for _ in range(3)]
    for lssn in range(1, 40):
        state = await logs.start_segment("flights", state, opening(lssn + 1))
        state = await logs.complete_segment("flights", state, finished(opening(lssn)), opening(lssn))
    done = True
    await asyncio.gather(*reading)
    assert lists > 5


async def test_a_child_that_vanishes_while_it_is_read_is_looked_for_again() -> None:
    tree = MemoryTree()
    writer, reader = MemoryStore(tree), MemoryStore(tree)
    await writer.create("/ns")
    logs = LogStore(writer, "/ns")
    await logs.create("flights")
    state = await logs.start_segment("flights", await logs.open("flights"), opening(1))
    completing: list[asyncio.Task[LogState]] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if session_id == reader.session_id and name == "get" and "inprogress" in path and not completing:
            completing.append(
                asyncio.ensure_future(logs.complete_segment("flights", state, finished(opening(1)), opening(1)))
            )
            tree.stall()
            asyncio.get_running_loop().call_soon(tree.resume)
        return None

    tree.inject = inject
    found = await LogStore(reader, "/ns").segments("flights")
    assert found in ([opening(1)], [finished(opening(1))])
    await completing[0]
    assert await LogStore(reader, "/ns").segments("flights") == [finished(opening(1))]


# ---- deletion --------------------------------------------------------------------------------------------------------


async def test_a_deleted_log_is_gone_with_everything_below_it(store: MetadataStore, logs: LogStore) -> None:
    await logs.create("flights")
    await run(logs, "flights", await logs.open("flights"), 1)
    await store.create(f"{logs.paths('flights').subscribers}/me/readLock", make_parents=True)
    await logs.delete_tree("flights")
    await logs.delete_tree("flights")
    assert (await store.children(logs.namespace_path))[0] == []


async def test_logs_nested_below_a_deleted_one_stay(logs: LogStore) -> None:
    await logs.create("a")
    await logs.create("a/b")
    await logs.delete_tree("a")
    assert [await logs.exists("a"), await logs.exists("a/b")] == [False, True]
    await logs.create("a")
    assert await logs.exists("a")


async def test_the_lock_of_a_log_with_very_many_other_znodes_goes_with_the_last_transaction() -> None:
    store = MemoryStore(MemoryTree())
    await store.create("/ns")
    logs = LogStore(store, "/ns")
    await logs.create("flights")
    paths = logs.paths("flights")
    member = f"{paths.lock}/member"
    await store.create(member)
    for parent in (f"{paths.partition}/a", f"{paths.partition}/z"):
        await store.create(parent)
        await store.multi([Create(f"{parent}/{number}") for number in range(MAX_DELETES)])
    await logs.delete_tree("flights", lambda: Check(member, ANY_VERSION))
    assert await logs.list() == []


async def test_a_very_long_log_is_deleted_in_several_transactions() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/ns")
    logs = LogStore(store, "/ns")
    await logs.create("flights")
    ledgers = logs.paths("flights").ledgers
    for start in range(1, 2 * MAX_DELETES + 300, 500):
        await store.multi([Create(f"{ledgers}/logrecs_{lssn:018d}") for lssn in range(start, start + 500)])
    multis: list[str] = []
    tree.inject = lambda session_id, name, path: multis.append(path) if name == "multi" else None
    await logs.delete_tree("flights")
    assert len(multis) == 3
    assert multis[0] == f"{ledgers}/logrecs_{1:018d}"
    assert await logs.list() == []
