"""One bookie with small logs, ledgers in metadata, and a disk that can die at a chosen call."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path

from helpers.bookie.faulty_disk import ForwardingFile
from helpers.bookie.harness import DIGEST, KEY, MIB
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.store import MetadataStore
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.disk.records import HEADER_BYTES
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.journal.batches import Answers
from storage_node.bookie.node.bookie import Bookie
from storage_node.edge import DiskFile
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Status
from storage_node.settings.bookie import BookieSettings
from storage_node.transport.tcp import TcpNetwork

LOG_BYTES = 256 * 1024
NAME = "a"


def body_of(ledger_id: int, entry_id: int, size: int = 1000) -> bytes:
    """Return an entry whose payload only this id has."""
    payload = (f"{ledger_id}:{entry_id};".encode() * (size // 4 + 1))[:size]
    return DIGEST.package(ledger_id, entry_id, entry_id - 1, size, payload) + payload


class DyingFile(ForwardingFile):
    """A file of a `DyingDisk`. Every read can be held, since all go through a thread."""

    def __init__(self, inner: DiskFile, disk: DyingDisk) -> None:
        super().__init__(inner)
        self._disk = disk

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._disk.step("write", self.path)
        gate = self._disk.write_gate
        if gate is not None:
            gate(self.path)
        super().write_at(offset, buffers)

    def sync_data(self) -> None:
        self._disk.step("sync", self.path)
        super().sync_data()
        self._disk.synced[self.path] = self.size()

    def read_at(self, offset: int, length: int) -> bytes:
        if any(part in self.path for part in self._disk.unreadable):
            raise OSError(errno.EIO, "injected", self.path)
        gate = self._disk.read_gate
        if gate is not None:
            gate(self.path)
        return super().read_at(offset, length)

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", self.path)
        super().truncate(size)


class DyingDisk(SystemDisk):
    """The real disk. From the chosen call on nothing changes any more, and `lose` takes back what was never synced."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.dies_at: int | None = None
        self.synced: dict[str, int] = {}
        self.unreadable: set[str] = set()
        self.read_gate: Callable[[str], None] | None = None
        self.write_gate: Callable[[str], None] | None = None
        self.free: int | None = None

    @property
    def dead(self) -> bool:
        return self.dies_at is not None and len(self.calls) >= self.dies_at

    def die_in(self, calls: int) -> None:
        """Let so many further changes through."""
        self.dies_at = len(self.calls) + calls

    def step(self, call: str, path: str) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the disk is dead", path)
        self.calls.append((call, path))

    def lose(self) -> None:
        """Drop what was written to entry logs and sidecars behind their last sync."""
        for path in {path for call, path in self.calls if call == "write" and path.endswith((".log", ".idx"))}:
            file = Path(path)
            if "/journal-" not in path and "/spare-" not in path and file.exists():
                with file.open("r+b") as stream:
                    stream.truncate(min(self.synced.get(path, 0), file.stat().st_size))

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        return DyingFile(super().open(path, create=create, direct=direct), self)

    def write_file(self, path: str, data: bytes) -> None:
        self.step("replace", path)
        super().write_file(path, data)

    def remove(self, path: str) -> None:
        self.step("remove", path)
        super().remove(path)

    def rename(self, old: str, new: str) -> None:
        self.step("rename", old)
        super().rename(old, new)

    def usage(self, path: str) -> tuple[int, int, int]:
        return super().usage(path) if self.free is None else (1, 1 << 40, self.free)


class FixedClock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def elapsed_s(self) -> float:
        return self.now / 1000


class Sink:
    """Notes the adds that were made durable, by their answers."""

    def __init__(self) -> None:
        self.durable_adds: list[bytes] = []

    def durable(self, answers: Answers) -> None:
        self.durable_adds += answers.frames


class Node:
    """A bookie that can be killed and started again on its directories, and the metadata of its ledgers."""

    def __init__(self, path: Path, tree: MemoryTree, **overrides: object) -> None:
        self._path = path
        self._tree = tree
        self._overrides = overrides
        self.admin = MemoryStore(tree)
        self.metadata = LedgerStore(self.admin)
        self.clock = FixedClock()
        self.disk = DyingDisk()
        self.store: MetadataStore = self.admin
        self._bookie: Bookie | None = None

    @property
    def settings(self) -> BookieSettings:
        values: dict[str, object] = {
            "journal_directories": (str(self._path / "journal"),),
            "ledger_directories": (str(self._path / "ledgers0"), str(self._path / "ledgers1")),
            "bookie_port": 0,
            "bookie_id": NAME,
            "listening_address": "127.0.0.1",
            "flush_interval_ms": 3_600_000,
            "skip_list_size_limit": 2 * MIB,
            "log_size_limit": LOG_BYTES,
            "netty_max_frame_size_bytes": 128 * 1024,
            "journal_pre_alloc_size_mb": 1,
            "journal_max_size_mb": 16,
            "min_usable_size_for_entry_log_creation": 0,
            "disk_usage_threshold": 1.0,
            "gc_wait_time_ms": 3_600_000,
            "compaction_rate_by_entries": 10_000_000,
            **self._overrides,
        }
        return BookieSettings(**values)  # type: ignore[arg-type]

    @property
    def bookie(self) -> Bookie:
        assert self._bookie is not None
        return self._bookie

    async def start(self, store: MetadataStore | None = None) -> Bookie:
        self.disk = DyingDisk()
        self.store = store or MemoryStore(self._tree)
        bookie = Bookie(self.settings, self.store, network=TcpNetwork(), disk=self.disk, clock=self.clock)
        try:
            await bookie.start()
        except BaseException:
            await self.store.close()
            raise
        self._bookie = bookie
        return bookie

    async def kill(self) -> None:
        """End it as a crash does: the disk takes nothing more, and what was not synced is lost."""
        self.disk.die_in(0)
        if self.bookie.failure is not None:
            await self.bookie.failed.wait()
        await self.bookie.abort()
        await self.store.close()
        self.disk.lose()
        self._bookie = None

    async def stop(self) -> None:
        if self._bookie is not None:
            await self._bookie.stop()
            await self.store.close()
            self._bookie = None

    async def close(self) -> None:
        await self.stop()
        await self.admin.close()

    async def create(self, *ledger_ids: int, bookies: tuple[str, ...] = (NAME,)) -> None:
        for ledger_id in ledger_ids:
            await self.metadata.create(ledger_id, LedgerMetadata(1, 1, 1, (Ensemble(0, bookies),)))

    async def delete(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self.metadata.delete(ledger_id)

    async def add(self, ledger_id: int, entries: Sequence[int], size: int = 1000, *, recovery: bool = False) -> Status:
        """Add entries; the last status. Returns when they are durable."""
        return await self.add_all([(ledger_id, entry_id) for entry_id in entries], size, recovery=recovery)

    async def add_all(self, ids: Sequence[tuple[int, int]], size: int = 1000, *, recovery: bool = False) -> Status:
        """Add entries of several ledgers in that order."""
        storage, sink, taken = self.bookie.storage, Sink(), 0
        status: Status | None = Status.EOK
        for ledger_id, entry_id in ids:
            body = memoryview(body_of(ledger_id, entry_id, size))
            while (status := storage.add(body, KEY, recovery, sink, b"a")) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            taken += status is Status.EOK
        await storage.journal.durable()
        assert len(sink.durable_adds) == taken
        return status or Status.EOK

    async def read(self, ledger_id: int, entry_id: int) -> bytes | Status:
        found = self.bookie.storage.find(ledger_id, entry_id)
        if isinstance(found, Status):
            return found
        body = await self.bookie.storage.read(*found)
        return Status.EIO if body is None else bytes(body)

    async def check(self, ledger_id: int, entries: Sequence[int], size: int = 1000) -> None:
        for entry_id in entries:
            assert await self.read(ledger_id, entry_id) == body_of(ledger_id, entry_id, size), (ledger_id, entry_id)

    def forget_memory(self) -> None:
        """Let every read of a sealed region go to the file, as if its memory had been needed for something else."""
        logs = self.bookie.storage.contents.logs
        for key in [key for key, slab in logs._slabs.items() if slab.settled]:
            logs._pool._drop(logs._slabs[key])

    def log_ids(self) -> list[int]:
        return sorted(int(path.name[:16], 16) for path in self._path.glob("ledgers*/current/*.log"))

    def path_of(self, log_id: int, suffix: str = ".log") -> Path:
        return next(self._path.glob(f"ledgers*/current/{log_id:016x}{suffix}"))

    def files(self) -> int:
        """Return how many bytes entry logs and their sidecars take on the disk."""
        found = [*self._path.glob("ledgers*/current/*.log"), *self._path.glob("ledgers*/current/*.idx")]
        size = 0
        for path in found:
            try:
                size += path.stat().st_blocks * 512
            except FileNotFoundError:  # removed since it was listed
                continue
        return size

    def counted(self) -> dict[int, int]:
        """Return the live bytes of each log, counted from the indexes."""
        live: dict[int, int] = {}
        for ledger in self.bookie.storage.ledgers.values():
            for first, last in ledger.index.ranges():
                for entry_id in range(first, last + 1):
                    place = ledger.index.get(entry_id)
                    assert place is not None
                    assert place[2] > HEADER_BYTES
                    live[place[0]] = live.get(place[0], 0) + place[2]
        return live

    def kept_count(self) -> dict[int, int]:
        """Return the live bytes of each log, as the node keeps count."""
        return {log_id: usage.live for log_id, usage in self.bookie.storage.contents.live.logs.items() if usage.live}
