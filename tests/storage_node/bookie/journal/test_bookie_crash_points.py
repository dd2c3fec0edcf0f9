"""The power goes after every single disk call of a short life, in every way: what was acknowledged is there.

One life of a node (a start, adds, fences and an explicit LAC around checkpoints, a crash, a replay, an orderly stop, a
start again) is recorded call by call. Then a node is started on what each call may have left behind, for each way in
which unsynced bytes may be lost, and asked for everything that had been acknowledged by then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from helpers.bookie.crash_disk import Call, CrashDisk, Cut, Inode, NoNetwork
from helpers.bookie.harness import DIGEST, KEY, entry

from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import CorruptDataError
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.journal.batches import Answers
from storage_node.bookie.journal.places import LogPlace
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.store.log_files import log_name
from storage_node.errors import CookieMismatchError
from storage_node.protocol.schema import Status
from storage_node.settings.bookie import BookieSettings

MIB = 1024 * 1024


@dataclass(eq=False)
class Life:
    """A recorded life: the disk's calls, and what was acknowledged after how many of them."""

    disk: CrashDisk
    journals: int
    once_from: int = 0
    tree: MemoryTree = field(default_factory=MemoryTree)
    acknowledged: list[tuple[int, str, int, int]] = field(default_factory=list)
    """(calls before, what, ledger, entry)"""
    served_from: int = 0

    def durable(self, answers: Answers) -> None:
        for frame in answers.frames:
            ledger_id, entry_id = map(int, frame.decode().split())
            self.note("entry", ledger_id, entry_id)

    def note(self, what: str, ledger_id: int, entry_id: int = 0) -> None:
        self.acknowledged.append((len(self.disk.calls), what, ledger_id, entry_id))


def settings(journals: int, once_from: int) -> BookieSettings:
    return BookieSettings(
        journal_directories=tuple(f"/j{number}" for number in range(journals)),
        ledger_directories=("/l0", "/l1"),
        bookie_id="a",
        listening_address="127.0.0.1",
        flush_interval_ms=3_600_000,
        skip_list_size_limit=32 * MIB,
        journal_pre_alloc_size_mb=1,
        journal_max_size_mb=16,
        min_usable_size_for_entry_log_creation=0,
        journal_write_once_from_bytes=once_from,
        journal_write_once_always=True,
    )


async def start(life: Life, disk: CrashDisk, tree: MemoryTree) -> tuple[Bookie, MemoryStore]:
    store = MemoryStore(tree)
    bookie = Bookie(settings(life.journals, life.once_from), store, network=NoNetwork(), disk=disk)
    try:
        await bookie.start()
    except BaseException:
        await store.close()
        raise
    return bookie, store


def body(ledger_id: int, entry_id: int) -> bytes:
    return entry(ledger_id, entry_id, b"%d/%d " % (ledger_id, entry_id) * (400 if entry_id % 3 == 0 else 3))


def add(life: Life, bookie: Bookie, ledger_id: int, entry_id: int) -> Status | None:
    answer = f"{ledger_id} {entry_id}".encode()
    return bookie.storage.add(memoryview(body(ledger_id, entry_id)), KEY, False, life, answer)


async def work(life: Life, bookie: Bookie, first: int) -> None:
    """Adds alone and together, a fence, an explicit LAC, with a checkpoint in between and one at the same time."""
    storage = bookie.storage
    for entry_id in range(first, first + 2):
        assert add(life, bookie, 1, entry_id) is Status.EOK
        await storage.journal.durable()
    fence = storage.fence(100 + first, KEY)
    assert not isinstance(fence, Status)
    await fence
    life.note("fence", 100 + first)
    await storage.checkpoint()
    assert all(add(life, bookie, ledger_id, first) is Status.EOK for ledger_id in (1, 2, 3, 4))
    checkpoint = asyncio.ensure_future(storage.checkpoint())
    await asyncio.sleep(0)
    assert add(life, bookie, 2, first + 1) is Status.EOK
    noted = lambda: life.note("lac", 3, first)  # noqa: E731
    packet = memoryview(DIGEST.package_lac(3, first))
    assert storage.write_lac(3, KEY, packet, noted) is Status.EOK
    await storage.journal.durable()
    await checkpoint
    assert add(life, bookie, 4, first + 1) is Status.EOK
    await storage.journal.durable()


async def live(journals: int, once_from: int) -> Life:
    life = Life(CrashDisk(), journals, once_from)
    store = MemoryStore(life.tree)
    await LedgerStore(store).format()
    await store.close()
    for number, ending in enumerate(("crash", "stop", "crash")):
        bookie, store = await start(life, life.disk, life.tree)
        life.served_from = life.served_from or len(life.disk.calls)
        await work(life, bookie, 10 * number)
        await (bookie.stop() if ending == "stop" else bookie.abort())
        await store.close()
    return life


async def check(life: Life, found: CrashDisk, count: int) -> None:
    """Everything acknowledged within `count` calls is there, and nothing else than what was written."""
    bookie, store = await start(life, found, life.tree)
    storage = bookie.storage
    try:
        assert not storage.lossy
        for at, what, ledger_id, entry_id in life.acknowledged:
            if at > count:
                break
            if what == "fence":
                assert add(life, bookie, ledger_id, 0) is Status.EFENCED
            elif what == "lac":
                ledger = storage.ledgers[ledger_id]
                assert ledger.explicit_lac is not None
                assert ledger.lac >= entry_id
            else:
                place = storage.find(ledger_id, entry_id)
                assert not isinstance(place, Status), (ledger_id, entry_id, place)
                read = await storage.read(*place)
                assert read is not None, (ledger_id, entry_id)
                assert bytes(read) == body(ledger_id, entry_id)
        for ledger_id, ledger in storage.ledgers.items():
            for first, last in ledger.index.ranges():
                for entry_id in range(first, last + 1):
                    read = await storage.read(ledger, entry_id)
                    assert read is not None
                    assert bytes(read) == body(ledger_id, entry_id)
    finally:
        acknowledged = len(life.acknowledged)
        await bookie.abort()
        await store.close()
        del life.acknowledged[acknowledged:]


ONCE = pytest.mark.parametrize("once_from", [0, 1000], ids=["twice", "once"])
"""Of the entries a third is larger than that."""


@ONCE
@pytest.mark.parametrize("journals", [1, 2])
async def test_no_crash_point_loses_what_was_acknowledged(journals: int, once_from: int) -> None:
    life = await live(journals, once_from)
    seen: set[tuple[int, int]] = set()
    tried = 0
    for count in range(life.served_from, len(life.disk.calls) + 1):
        acknowledged = sum(at <= count for at, *_ in life.acknowledged)
        for cut in Cut if journals == 1 else (Cut.NOTHING, Cut.EVERYTHING):
            found = life.disk.after(count, cut)
            key = found.signature(), acknowledged
            if key in seen:
                continue
            seen.add(key)
            tried += 1
            try:
                await check(life, found, count)
            except Exception as error:
                before = [call.kind for call in life.disk.calls[max(0, count - 5) : count]]
                raise AssertionError(f"after call {count} ({before}), {cut.value}: {error!r}") from error
    assert tried > 100
    print(f"{journals} journals, once from {once_from}: {len(life.disk.calls)} calls, {tried} different disks")


async def test_no_crash_point_of_a_replay_loses_the_logs_that_the_journal_names() -> None:
    """No checkpoint knows them: they stay until the one of that start is in every directory."""
    life = Life(CrashDisk(), 1, 1000)
    store = MemoryStore(life.tree)
    await LedgerStore(store).format()
    await store.close()
    bookie, store = await start(life, life.disk, life.tree)
    for entry_id in range(0, 12, 3):
        assert add(life, bookie, 1, entry_id) is Status.EOK
        await bookie.storage.journal.durable()
        await life.disk.submit("entries", lambda: None)
    await bookie.abort()
    await store.close()
    begun = len(life.disk.calls)
    bookie, store = await start(life, life.disk, life.tree)
    await bookie.abort()
    await store.close()
    removed = [call for call in life.disk.calls[begun:] if any(name.endswith(".log") for name, _ in call.names)]
    assert len(removed) > 2, "the new journal file and log, and the old log"
    for count in range(begun, len(life.disk.calls) + 1):
        for cut in Cut:
            await check(life, life.disk.after(count, cut), count)


@ONCE
async def test_a_flipped_bit_of_what_was_synced_is_never_served_nor_denied(once_from: int) -> None:
    """In every write, wherever it lies: the node refuses to start, or it answers the entry, an error, or "unknown".

    One place is left out, and cannot be told from a write that a crash tore: the journal's last batch, with the bytes
    in an entry log that it names.
    """
    life = await live(1, once_from)
    calls = life.disk.calls
    small = [at for at, call in enumerate(calls) if call.kind == "write" and len(call.data) < 64 * 1024]
    writes = [at for at in small if not calls[at].data.startswith(b"5\n")]  # cookies have tests of their own
    last = max(at for at in writes if calls[at].data.startswith(b"dlsBATCH"))
    place = LogPlace.parse(memoryview(calls[last].data)[64:104])
    assert (place is not None) == bool(once_from)
    refused = served = 0
    for at in writes:
        call = calls[at]
        if at == last or call.data.count(0) == len(call.data) or is_named(call, place, life.disk):
            continue
        for where in (9, len(call.data.rstrip(b"\0")) // 2):
            data = bytearray(call.data)
            data[where] ^= 4
            spoiled = [*calls[:at], Call("write", call.inode, call.offset, bytes(data)), *calls[at + 1 :]]
            found = CrashDisk.left_by(spoiled, Cut.EVERYTHING)
            try:
                await check_spoiled(life, found)
                served += 1
            except CorruptDataError:
                refused += 1
            except AssertionError as error:
                raise AssertionError(
                    f"byte {where} of {call.data[:40]!r} at {call.offset} of call {at}: {error}"
                ) from error
    assert refused >= 2
    assert served > 20


def is_named(call: Call, place: LogPlace | None, disk: CrashDisk) -> bool:
    """Return whether the call writes what the place names."""
    inode = None if place is None else disk.names.get(f"/l0/current/{log_name(place.log_id)}")
    if place is None or inode is None:
        return False
    return call.inode is inode and call.offset + len(call.data) > place.offset


@ONCE
async def test_a_lost_file_is_never_an_entry_that_was_not_there(once_from: int) -> None:
    """Each file alone, and each entry log with its index: refused, unknown, an error, or not needed."""
    life = await live(2, once_from)
    everything = life.disk.after(len(life.disk.calls), Cut.EVERYTHING)
    logs = [name for name in everything.names if name.startswith("/l") and name.endswith(".log")]
    losses = [(name,) for name in everything.names] + [(name, name.replace(".log", ".idx")) for name in logs]
    refused: set[str] = set()
    for lost in losses:
        found = life.disk.after(len(life.disk.calls), Cut.EVERYTHING)
        for name in lost:
            del found.names[name]
        try:
            await check_spoiled(life, found)
        except (CorruptDataError, CookieMismatchError):
            refused.add(lost[0].rpartition("/")[2])
    assert "VERSION" in refused
    assert any(name.startswith("journal-") for name in refused)
    assert not any(name.endswith((".idx", "checkpoint", "SESSION")) for name in refused), refused


async def check_spoiled(life: Life, found: CrashDisk) -> None:
    bookie, store = await start(life, found, life.tree)
    storage = bookie.storage
    try:
        for _, what, ledger_id, entry_id in life.acknowledged:
            if what != "entry":
                continue
            place = storage.find(ledger_id, entry_id)
            if isinstance(place, Status):
                assert place is Status.EUNKNOWNLEDGERSTATE, (ledger_id, entry_id, place)
                continue
            read = await storage.read(*place)
            assert read is None or bytes(read) == body(ledger_id, entry_id)
    finally:
        await bookie.abort()
        await store.close()


def test_the_crash_disk_loses_what_it_says() -> None:
    disk = CrashDisk()
    file = disk.open("/d/f", create=True)
    file.write_at(0, [b"first"])
    file.sync_data()
    disk.sync_directory("/d")
    file.write_at(5, [b"second"])
    file.write_at(11, [b"third!"])
    disk.rename("/d/f", "/d/g")
    count = len(disk.calls)

    def left(cut: Cut) -> dict[str, bytes]:
        return {name: bytes(inode.data) for name, inode in disk.after(count, cut).names.items()}

    assert left(Cut.NOTHING) == {"/d/f": b"first"}
    assert left(Cut.EVERYTHING) == {"/d/g": b"firstsecondthird!"}
    assert left(Cut.TORN) == {"/d/g": b"firstsecondthi"}
    assert left(Cut.LAST_ONLY) == {"/d/g": b"first" + bytes(6) + b"third!"}
    assert isinstance(disk.names["/d/g"], Inode)
