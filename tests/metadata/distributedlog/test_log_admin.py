"""Renaming logs, the application's bytes of a log, and the names of all logs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.worlds.metadata import MetadataServer

from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import unit_name
from metadata.distributedlog.locks import DistributedLock, LockingError, OwnershipAcquireFailedError
from metadata.distributedlog.log_admin import Below, LogAdmin
from metadata.distributedlog.log_folders import FederatedFolders
from metadata.distributedlog.log_names import InvalidLogNameError, LogExistsError, LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.permissions import Permissions, PermissionStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import BadVersionError, CallerError, OutcomeUnknownError
from metadata.store import Create, Delete, MetadataStore, Stat, Watcher
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

BINDING = Binding.for_cluster("h:1")


@pytest.fixture
async def logs(store: MetadataStore, root: str) -> LogStore:
    await NamespaceStore(store, f"{root}/ns").bind(BINDING)
    return LogStore(store, f"{root}/ns")


@pytest.fixture
async def admin(logs: LogStore) -> LogAdmin:
    return LogAdmin(logs)


async def filled(logs: LogStore, name: str) -> list[SegmentMetadata]:
    """A log with two completed segments and one in progress."""
    await logs.create(name)
    state = await logs.open(name)
    segments = []
    for lssn in (1, 2, 3):
        segment = SegmentMetadata(ledger_id=100 + lssn, lssn=lssn, first_txid=lssn * 10, in_progress=True)
        state = await logs.start_segment(name, state, segment)
        if lssn < 3:
            done = segment.completed(
                last_txid=lssn * 10 + 9, completion_time_ms=1, record_count=2, last_entry=1, last_slot=0
            )
            state = await logs.complete_segment(name, state, done, segment)
            segment = done
        segments.append(segment)
    return segments


async def tree(store: MetadataStore, path: str) -> dict[str, bytes]:
    found = {path: (await store.get(path))[0]}
    for child in (await store.children(path))[0]:
        found |= await tree(store, f"{path}/{child}")
    return found


# ---- renaming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"), [("old", "new"), ("old", "deep/down/new"), ("a/b", "c"), ("a/b", "a"), ("a/b", "a/c")]
)
async def test_a_renamed_log_is_the_same_log_under_its_new_name(
    logs: LogStore, admin: LogAdmin, old: str, new: str
) -> None:
    segments = await filled(logs, old)
    await admin.set_metadata(old, b"the application's")
    await logs.store.create(f"{logs.paths(old).subscribers}/reader", b"position", make_parents=True)
    before = await tree(logs.store, logs.paths(old).root)
    await admin.rename(old, new)
    assert not await logs.exists(old)
    with pytest.raises(LogNotFoundError):
        await logs.open(old)
    assert await logs.segments(new) == segments
    state = await logs.open(new)
    assert (state.max_lssn.value, state.max_txid.value) == (3, 29)
    assert (await admin.metadata(new)).value == b"the application's"
    after = await tree(logs.store, logs.paths(new).root)
    assert [data for _, data in sorted(after.items())] == [data for _, data in sorted(before.items())]
    assert await admin.names() == [new]
    # It can be written on: the versions are those of a new log.
    done = segments[-1].completed(last_txid=39, completion_time_ms=1, record_count=2, last_entry=1, last_slot=0)
    assert (await logs.complete_segment(new, state, done, segments[-1])).max_txid.value == 39


async def test_logs_nested_below_a_renamed_one_stay(logs: LogStore, admin: LogAdmin) -> None:
    await logs.create("a", b"a's")
    await logs.create("a/b", b"b's")
    await admin.rename("a", "c")
    assert await admin.names() == ["a/b", "c"]
    assert (await logs.store.get(logs.paths("a").root))[0] == b""
    assert (await admin.metadata("a/b")).value == b"b's"
    assert (await admin.metadata("c")).value == b"a's"


async def test_a_name_that_is_taken_or_cannot_be_is_refused(logs: LogStore, admin: LogAdmin) -> None:
    await filled(logs, "old")
    await logs.create("taken")
    with pytest.raises(LogExistsError, match="taken"):
        await admin.rename("old", "taken")
    for bad in (".hidden", "a b", "x/.y", "/new"):
        with pytest.raises(InvalidLogNameError):
            await admin.rename("old", bad)
    for inside in ("old", "old/deeper"):
        with pytest.raises(CallerError, match="into itself"):
            await admin.rename("old", inside)
    with pytest.raises(LogNotFoundError):
        await admin.rename("nothing", "new")
    assert await logs.list() == ["old", "taken"]


async def test_a_log_is_not_renamed_while_somebody_writes_it(
    metadata_server: MetadataServer, logs: LogStore, admin: LogAdmin
) -> None:
    segments = await filled(logs, "old")
    writer = await metadata_server.open()
    lock = DistributedLock(writer, logs.paths("old").lock, "the writer")
    await lock.acquire(0)
    with pytest.raises(OwnershipAcquireFailedError, match="the writer"):
        await admin.rename("old", "new")
    assert await logs.segments("old") == segments
    await lock.release()
    await admin.rename("old", "new")
    assert await logs.segments("new") == segments


async def test_a_writer_that_comes_while_a_log_is_renamed_keeps_it(logs: LogStore, admin: LogAdmin) -> None:
    """The lock is taken between what the renaming read and its transaction."""
    await filled(logs, "old")
    entered: list[str] = []

    async def enter() -> list:
        if not entered:
            lock = logs.paths("old").lock
            entered.append(await logs.store.create(f"{lock}/member_late_s1_", b"late", ephemeral=True, sequential=True))
        return []

    with pytest.raises(OwnershipAcquireFailedError, match="late"):
        await admin.rename("old", "new", enter)
    assert await logs.list() == ["old"]
    await logs.store.delete(entered[0])
    await admin.rename("old", "new")


async def test_a_segment_that_comes_while_a_log_is_renamed_goes_along(logs: LogStore, admin: LogAdmin) -> None:
    segments = await filled(logs, "old")
    started: list[SegmentMetadata] = []

    async def start() -> list:
        if not started:
            started.append(SegmentMetadata(ledger_id=7, lssn=4, first_txid=40, in_progress=True))
            await logs.start_segment("old", await logs.open("old"), started[0])
        return []

    await admin.rename("old", "new", start)
    assert await logs.segments("new") == [*segments, *started]


async def test_a_reader_that_has_the_log_locked_keeps_it_from_being_renamed(logs: LogStore, admin: LogAdmin) -> None:
    await filled(logs, "old")
    await logs.store.create(f"{logs.paths('old').read_lock}/member_", b"reader", ephemeral=True, sequential=True)
    with pytest.raises(LockingError, match="reader"):
        await admin.rename("old", "new")


async def test_what_is_denied_on_a_log_is_denied_under_its_new_name(logs: LogStore, admin: LogAdmin) -> None:
    permissions = PermissionStore(logs.store, f"{logs.namespace_path}/.acl")
    await permissions.set(Permissions(deny_write=True), "old")
    await logs.create("old")
    await admin.rename("old", "new", lambda: permissions.move_ops("old", "new"))
    assert await permissions.get("new") == Permissions(deny_write=True)
    assert await permissions.get("old") is None


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("hits", [1, 2])
async def test_a_lost_answer_leaves_the_log_under_one_name_and_the_call_succeeds(fault: Fault, hits: int) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await NamespaceStore(store, "/ns").bind(BINDING)
    logs = LogStore(store, "/ns")
    segments = await filled(logs, "old")
    met: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if name == "multi" and len(met) < hits:
            met.append(name)
            return fault
        return None

    tree.inject = inject
    await LogAdmin(logs).rename("old", "new")
    assert await logs.list() == ["new"]
    assert await logs.segments("new") == segments


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (True, True), (False, False), (False, True)])
async def test_another_log_under_the_new_name_is_not_taken_for_a_renaming_whose_answer_was_lost(
    ours: bool, theirs: bool
) -> None:
    """Only segments of its own show that it was this log that got the name."""
    tree = MemoryTree()
    store = MemoryStore(tree)
    await NamespaceStore(store, "/ns").bind(BINDING)
    logs, others = LogStore(store, "/ns"), LogStore(MemoryStore(tree), "/ns")
    await (filled(logs, "old") if ours else logs.create("old"))
    lost: list[str] = []

    def inject(session_id: int, name: str, path: str) -> Fault | None:
        if session_id == store.session_id and name == "multi" and not lost:
            lost.append(path)
            return Fault.LOSE_REQUEST
        return None

    tree.inject = inject
    exists = logs.exists

    async def late(name: str) -> bool:
        if lost and await others.exists("old"):
            await others.delete_tree("old")
            await others.create("new")
            if theirs:
                state = await others.open("new")
                await others.start_segment("new", state, SegmentMetadata(500, 1, 1, in_progress=True))
        return await exists(name)

    logs.exists = late  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknownError, match="no segment of it"):
        await LogAdmin(logs).rename("old", "new")
    assert await others.list() == ["new"]


async def test_a_log_too_long_for_one_transaction_stays_as_it_is() -> None:
    store = MemoryStore(MemoryTree())
    await NamespaceStore(store, "/ns").bind(BINDING)
    logs = LogStore(store, "/ns")
    await logs.create("long")
    ledgers = logs.paths("long").ledgers
    data = SegmentMetadata(ledger_id=1, lssn=1, first_txid=1, in_progress=True).encode()
    for start in range(0, 5_000, 1_000):
        await store.multi([Create(f"{ledgers}/logrecs_{number:018d}", data) for number in range(start, start + 1_000)])
    with pytest.raises(CallerError, match="nothing was renamed"):
        await LogAdmin(logs).rename("long", "short")
    assert await logs.list() == ["long"]


async def test_a_log_of_too_many_cold_units_says_that_these_are_in_the_way_and_is_renamed_without_them() -> None:
    store = MemoryStore(MemoryTree())
    await NamespaceStore(store, "/ns").bind(BINDING)
    logs = LogStore(store, "/ns")
    await logs.create("long")
    await ColdStore(logs).ensure("long")
    units = logs.paths("long").cold_units
    paths = [f"{units}/{unit_name(number, number)}" for number in range(1, 2_001)]
    for start in range(0, 2_000, 500):
        await store.multi([Create(path, b"x" * 700) for path in paths[start : start + 500]])
    with pytest.raises(CallerError, match=r"2000 of them units of cold storage; nothing was renamed") as refused:
        await LogAdmin(logs).rename("long", "short")
    assert "coldRetentionHours" in refused.value.advice
    assert await logs.list() == ["long"]
    # A thousand fit.
    for start in range(0, 1_000, 500):
        await store.multi([Delete(path) for path in paths[start : start + 500]])
    await LogAdmin(logs).rename("long", "short")
    assert await logs.list() == ["short"]
    assert len((await store.children(logs.paths("short").cold_units))[0]) == 1_000


async def test_in_a_federated_namespace_a_name_is_taken_wherever_it_is(store: MetadataStore, root: str) -> None:
    await NamespaceStore(store, f"{root}/ns").bind(replace(BINDING, federated=True))
    logs = LogStore(store, f"{root}/ns", log_folders=FederatedFolders(store, f"{root}/ns", max_logs=1))
    admin = LogAdmin(logs)
    segments = await filled(logs, "a")
    await logs.create("b")
    with pytest.raises(LogExistsError):
        await admin.rename("a", "b")
    index_version = (await store.get(f"{root}/ns/.subnamespaces"))[1].version
    await admin.rename("a", "c")
    assert await logs.segments("c") == segments
    assert not await logs.exists("a")
    assert await logs.list() == ["b", "c"]
    # As at a creation: a creator of the same name, who read the index before, has to look again.
    assert (await store.get(f"{root}/ns/.subnamespaces"))[1].version == index_version + 1


# ---- the application's bytes -----------------------------------------------------------------------------------------


async def test_an_applications_bytes_are_versioned(logs: LogStore, admin: LogAdmin) -> None:
    await logs.create("log", b"first")
    found = await admin.metadata("log")
    assert (found.value, found.version) == (b"first", 0)
    assert await admin.set_metadata("log", b"second", 0) == 1
    with pytest.raises(BadVersionError):
        await admin.set_metadata("log", b"late", 0)
    assert await admin.set_metadata("log", b"") == 2
    assert (await admin.metadata("log")).value == b""
    assert (await logs.store.get(logs.paths("log").root))[0] == b""


async def test_bytes_given_at_creation_are_not_given_to_a_log_that_exists(logs: LogStore, admin: LogAdmin) -> None:
    await logs.create("log", b"first")
    await logs.create("log", b"again")
    assert (await admin.metadata("log")).value == b"first"
    await logs.create("a/b")
    await logs.create("a", b"folder and log")
    assert (await admin.metadata("a")).value == b"folder and log"


async def test_what_is_no_log_has_no_bytes(logs: LogStore, admin: LogAdmin) -> None:
    await logs.create("a/b")
    for name in ("nothing", "a"):
        with pytest.raises(LogNotFoundError):
            await admin.metadata(name)
        with pytest.raises(LogNotFoundError):
            await admin.set_metadata(name, b"x")
    assert (await logs.store.get(f"{logs.namespace_path}/a"))[0] == b""


# ---- all names -------------------------------------------------------------------------------------------------------


async def test_all_names_are_listed_in_full_and_folders_are_none(logs: LogStore, admin: LogAdmin) -> None:
    assert await admin.names() == []
    for name in ("x", "a/b", "a/c/d", "a/c", "z"):
        await logs.create(name)
    await logs.store.create(f"{logs.namespace_path}/.hidden/log", make_parents=True)
    assert await admin.names() == ["a/b", "a/c", "a/c/d", "x", "z"]
    assert await admin.names("a") == ["a/b", "a/c", "a/c/d"]
    assert await admin.names("a/c") == ["a/c/d"]
    assert await admin.names("nothing") == []


async def test_what_is_directly_below_a_name_is_a_log_or_a_folder_or_both(logs: LogStore, admin: LogAdmin) -> None:
    assert await admin.below() == []
    for name in ("x", "a/b", "a/c/d", "a/c"):
        await logs.create(name)
    await logs.store.create(f"{logs.namespace_path}/.hidden/log", make_parents=True)
    await logs.store.create(f"{logs.namespace_path}/a/empty")
    assert await admin.below() == [Below("a", is_log=False, is_folder=True), Below("x", is_log=True, is_folder=False)]
    assert await admin.below("a/") == [
        Below("b", is_log=True, is_folder=False),
        Below("c", is_log=True, is_folder=True),
    ]
    assert await admin.below("x") == await admin.below("nothing") == []


async def test_a_partition_of_another_name_is_no_log(store: MetadataStore, root: str) -> None:
    await NamespaceStore(store, f"{root}/ns").bind(BINDING)
    logs = LogStore(store, f"{root}/ns", "part")
    await logs.create("a")
    await logs.create("a/b")
    assert await LogAdmin(logs).names() == ["a", "a/b"]
    assert await logs.list("a") == ["b"]
    with pytest.raises(InvalidLogNameError, match="unpartitionedStreamName"):
        await logs.create("a/part")


class _Forgetting(MemoryStore):
    """A store in which a znode goes just before it is read, once."""

    going: str | None = None

    async def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        if path == self.going:
            self.going = None
            await self.delete(path)
        return await super().get(path, watch)


async def test_what_goes_from_a_log_while_it_is_read_does_not_make_it_another_or_none() -> None:
    """A note or a claim comes and goes at any time."""
    store = _Forgetting(MemoryTree())
    await store.create("/ns")
    logs = LogStore(store, "/ns")
    await logs.create("log")
    await store.create(f"{logs.paths('log').partition}/deletedLedgers")
    store.going = f"{logs.paths('log').partition}/deletedLedgers"
    await LogAdmin(logs).rename("log", "new")
    assert store.going is None
    assert await logs.list() == ["new"]
    await store.close()


async def test_a_log_that_is_made_again_while_one_of_its_name_is_renamed_keeps_what_it_has(
    logs: LogStore, admin: LogAdmin
) -> None:
    """Versions begin again with a log: the transaction finds those that it read, of another log."""
    await filled(logs, "old")
    again: list[list[SegmentMetadata]] = []

    async def make_again() -> list:
        if not again:
            await logs.delete_tree("old")
            made = await filled(logs, "old")
            await logs.delete_tree("old")
            await logs.create("old")
            state = await logs.open("old")
            for segment in made:
                other = replace(segment, ledger_id=segment.ledger_id + 100, in_progress=True)
                state = await logs.start_segment("old", state, other)
                if segment.lssn < 3:
                    done = other.completed(
                        last_txid=segment.last_txid, completion_time_ms=1, record_count=2, last_entry=1, last_slot=0
                    )
                    state = await logs.complete_segment("old", state, done, other)
            again.append(await logs.segments("old"))
        return []

    await admin.rename("old", "new", make_again)
    assert [one.ledger_id for one in await logs.segments("new")] == [one.ledger_id for one in again[0]]
