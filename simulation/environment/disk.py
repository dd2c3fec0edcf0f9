"""`SimulatedDisk`: the files of one host, with a page cache that a power cut loses.

Fault model. A write is in the page cache at once and on the medium after `sync_data`. A power cut keeps any part of
what was not synced: each write whole, not at all, or torn into blocks of 512 or 4096 bytes. Creations, renames and
removals become durable with `sync_directory`, all of a directory's; of the others a power cut keeps some: a prefix
where the file system keeps them in order (`keeps_order`), any of them elsewhere, as POSIX allows. Killing a process
loses nothing but the calls under way, which stop somewhere in the middle. A sync that fails drops what it should have
written, and the next one reports success, as Linux does. Reads, writes and syncs may fail with EIO, the disk may be
slow or full, synced bits may flip, files may be lost.

Calls given to `submit` take virtual time in their pool, as many at once as the real pool has threads.
"""

from __future__ import annotations

import asyncio
import errno
import os.path
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeVar

from simulation.environment.loop import PROCESS, Process, SimulatedLoop
from storage_node.edge import DiskFile
from storage_node.protocol.frames import Buffer

T = TypeVar("T")

BLOCK = 4096
POOLS = {"journal": 2, "entries": 1, "reads": 4, "files": 1}
CALL_S = {"journal": 0.0008, "entries": 0.002, "reads": 0.0004, "files": 0.001}
"""Mean time a call takes where the disk is healthy."""
TEAR_BYTES = (512, 4096)
WHOLE, TORN = 0.35, 0.7
"""Of the writes that were not synced: up to here whole, up to there in part, the others not at all."""
STEPS_LEFT = (0, 1, 1, 1, 2, 3, 4, 5, 6, 9)
"""Primitive operations that a call under way still does when its process is killed."""
REMOVAL = "removal"
"""The moment in which a file has been removed; the others are pools in which a call begins."""

Synced = Callable[[str, "Sequence[tuple[int, bytes]]"], None]
Reached = Callable[[str], None]


class PowerCut(BaseException):
    """Ends a blocking call in the middle. Not an error: no code that could handle it is left."""


@dataclass(slots=True, eq=False)
class Inode:
    """A file's bytes as processes see them, and as they lie on the medium."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    """Unsynced writes in order; a length of -1 as offset stands for a truncation to the length of the bytes."""
    earlier: int = 0
    """How many of them, the first ones, are of a process that was killed."""


@dataclass(slots=True)
class DiskFaults:
    """How do calls go wrong from now on? `eio_...` are probabilities for each call."""

    eio_read: float = 0.0
    eio_write: float = 0.0
    eio_sync: float = 0.0
    slow: float = 1.0
    full: bool = False


class SimulatedFile(DiskFile):
    """An open file of one process."""

    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode, direct: bool) -> None:
        self._disk = disk
        self._path = path
        self._direct = direct
        self.inode = inode
        self.holder: Process | None = None

    @property
    def path(self) -> str:
        """The path that it was opened under."""
        return self._path

    @property
    def direct(self) -> bool:
        """True where writes must be whole blocks."""
        return self._direct

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write into the page cache, all or nothing. Raises OSError by the disk's faults, and EINVAL for a direct write
        that is not aligned."""
        data = b"".join(buffers)
        if self._direct and (offset % BLOCK or len(data) % BLOCK):
            raise OSError(errno.EINVAL, "a direct write that is not aligned", self._path)
        self._disk.write(self, offset, data)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes. Raises OSError (EIO) by the disk's faults."""
        self._disk.may_fail("eio_read", self._path)
        return bytes(self.inode.data[offset : offset + length])

    def read_now(self, offset: int, length: int) -> bytearray | None:
        """Return the bytes, or None by chance: callers must manage with both."""
        # The kernel decides which bytes are in the page cache; and with read faults the other way has to meet them.
        if self._disk.rng.random() < 0.5 or self._disk.faults.eio_read:
            return None
        data = self.inode.data[offset : offset + length]
        return data if len(data) == length else None

    def size(self) -> int:
        """Return how many bytes the file has as its process sees it, synced or not."""
        return len(self.inode.data)

    def truncate(self, size: int) -> None:
        """Set the length; a power failure before a sync may undo it."""
        self._disk.step()
        data = self.inode.data
        del data[size:]
        data.extend(bytes(size - len(data)))
        self.inode.pending.append((-1, size.to_bytes(8, "big")))

    def sync_data(self) -> None:
        """Make the file's bytes survive a power failure. Raises OSError by the disk's faults."""
        self._disk.sync(self)

    def close(self) -> None:
        """End the lock that this handle may be."""
        self.holder = None


class _Directory:
    """Names of one directory: as seen, as durable, and the changes between them."""

    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.changes: list[tuple[tuple[str, Inode | None], ...]] = []

    def change(self, *changes: tuple[str, Inode | None]) -> None:
        """Set or remove names, all of them in one step."""
        _set_names(self.names, changes)
        self.changes.append(changes)

    def settle(self, count: int) -> None:
        """Make the first `count` changes durable."""
        for changes in self.changes[:count]:
            _set_names(self.durable, changes)
        del self.changes[:count]

    def lose_some(self, rng: Random, *, in_order: bool) -> None:
        """Keep what is durable and some of the other changes; lose the rest."""
        if in_order:
            self.settle(rng.randint(0, len(self.changes)))
        else:
            for changes in self.changes:
                if rng.random() < 0.5:
                    _set_names(self.durable, changes)
        self.changes.clear()
        self.names = dict(self.durable)


@dataclass(slots=True, eq=False)
class _PoolCall(Generic[T]):
    """A blocking call on its way through a pool."""

    work: Callable[[], T]
    future: asyncio.Future[T]
    process: Process
    ended: bool = False


class SimulatedDisk:
    """The `Disk` of one host; it outlives the host's processes."""

    def __init__(self, loop: SimulatedLoop, host: str, rng: Random, *, capacity: int = 1 << 30) -> None:
        self.rng = rng
        self.host = host
        self.capacity = capacity
        self.faults = DiskFaults()
        self.synced: Synced | None = None
        """Called after every successful sync with the path, and what became durable."""
        self.survived: Synced | None = None
        """Called after a power cut with each path, and the writes that were not synced and are on the medium whole."""
        self.reached: Reached = lambda point: None
        """Called with the coverage point of every fault that took effect."""
        self.keeps_order = rng.random() < 0.5
        """Names that were not synced become durable in the order in which they were made."""
        self.tears = False
        """The next cut stops calls right behind their first write, and tears what is not synced into its sectors."""
        self._trap: tuple[str, Callable[[], None]] | None = None
        self._loop = loop
        self._directories: dict[str, _Directory] = {}
        self._locks: dict[str, SimulatedFile] = {}
        self._lost: dict[str, Inode] = {}
        self._budget: int | None = None
        self._active: dict[str, list[_PoolCall[object]]] = {}
        self._queued: dict[str, deque[_PoolCall[object]]] = {}

    # ------------------------------------------------------------------------------------ primitive operations

    def step(self) -> None:
        """Do one primitive operation; a call cut off by a crash ends here, with `PowerCut`."""
        if self._budget is not None:
            if self._budget == 0:
                raise PowerCut
            self._budget -= 1

    def may_fail(self, kind: str, path: str) -> None:
        """Raise OSError (EIO) with the probability that the faults give this kind of call: `eio_read`, `eio_write`,
        `eio_sync`."""
        probability: float = getattr(self.faults, kind)
        if probability and self.rng.random() < probability:
            self.reached(f"disk.{kind.replace('_', '-')}")
            raise OSError(errno.EIO, "simulated", path)

    def write(self, file: SimulatedFile, offset: int, data: bytes) -> None:
        """Put bytes into the page cache. Raises OSError, EIO or ENOSPC, with nothing written."""
        self.step()
        inode = file.inode
        self.may_fail("eio_write", file.path)
        # Bytes within the file have their blocks already: a full disk takes those (what journals prepare is for this).
        if self.faults.full and offset + len(data) > len(inode.data):
            self.reached("disk.full")
            raise OSError(errno.ENOSPC, "simulated", file.path)
        content = inode.data
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        inode.pending.append((offset, data))

    def sync(self, file: SimulatedFile) -> None:
        """Put a file's unsynced writes on the medium. Where it raises OSError (EIO), some of them are lost for good."""
        self.step()
        inode = file.inode
        try:
            self.may_fail("eio_sync", file.path)
        except OSError:
            self._keep_some(inode)  # marked clean nevertheless, as by Linux: a second sync would report success
            raise
        written, inode.pending = inode.pending, []
        earlier, inode.earlier = inode.earlier, 0
        for offset, data in written:
            _apply(inode.durable, offset, data)
        if self.synced is not None and written[earlier:]:
            # What a killed process left in the cache was replayed from there: by its bytes nothing begins to count.
            self.synced(file.path, written[earlier:])

    def _keep_some(self, inode: Inode) -> list[tuple[int, bytes]]:
        """Put each unsynced write on the medium whole, in part, or not at all; return those that are there whole."""
        written, inode.pending = inode.pending, []
        inode.earlier = 0
        for offset, data in written:
            fate = TORN if self.tears else self.rng.random()
            if offset < 0 or fate < WHOLE:
                _apply(inode.durable, offset, data)
            elif fate <= TORN and len(data) > TEAR_BYTES[0]:
                # In any order: a disk writes the sectors of one request as it likes.
                block = TEAR_BYTES[0] if self.tears else self.rng.choice(TEAR_BYTES)
                for at in range(0, len(data), block):
                    if self.rng.random() < 0.5:
                        _apply(inode.durable, offset + at, data[at : at + block])
                self.reached("disk.torn-write")
            else:
                self.reached("disk.unsynced-lost")
        return [(offset, data) for offset, data in written if inode.durable[offset : offset + len(data)] == data]

    def holds(self, path: str, length: int) -> bool:
        """Return True if the file would be there after a power cut, with its first `length` bytes as they are now."""
        folder, name = os.path.split(path)
        directory = self._directories.get(folder)
        inode = None if directory is None else directory.durable.get(name)
        return (
            inode is not None and len(inode.durable) >= length and all(length <= offset for offset, _ in inode.pending)
        )

    def on_medium(self, path: str, offset: int, length: int) -> bytes:
        """Return those bytes of the file as a power cut would leave them for certain; none where its name is not
        durable. Of a file that was lost, what it holds: its process goes on to write it, and cannot know."""
        folder, name = os.path.split(path)
        directory = self._directories.get(folder)
        inode = None if directory is None else directory.durable.get(name, self._lost.get(path))
        return b"" if inode is None else bytes(inode.durable[offset : offset + length])

    # ------------------------------------------------------------------------------------ moments

    def at_moment(self, moment: str, trap: Callable[[], None]) -> None:
        """Call `trap` once, right after the next moment of this name; it replaces a trap that waits."""
        self._trap = (moment, trap)

    def _moment(self, name: str) -> None:
        if self._trap is not None and self._trap[0] == name:
            trap, self._trap = self._trap[1], None
            trap()

    # ------------------------------------------------------------------------------------ Disk: names

    def _at(self, path: str) -> tuple[_Directory, str]:
        folder, name = os.path.split(path)
        directory = self._directories.get(folder)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", folder)
        return directory, name

    def close_to_others(self, path: str) -> None:
        """Do nothing: the simulated host has no other users."""

    def make_directory(self, path: str) -> None:
        """Create it and its parents, durable at once."""
        while path not in self._directories and path != "/":
            self._directories[path] = _Directory()
            path = os.path.dirname(path)

    def list_directory(self, path: str) -> list[str]:
        """Return names, sorted, as processes see them; empty for a directory that does not exist."""
        directory = self._directories.get(path)
        return [] if directory is None else sorted(directory.names)

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> SimulatedFile:
        """Open for reading and writing. Raises FileNotFoundError. A file that is created here is durable after
        `sync_directory` only."""
        directory, name = self._at(path)
        inode = directory.names.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.step()
            inode = Inode()
            directory.change((name, inode))
        return SimulatedFile(self, path, inode, direct)

    def read_file(self, path: str) -> bytes | None:
        """Return the whole file as processes see it, None if there is none. No fault fails it."""
        directory = self._directories.get(os.path.dirname(path))
        inode = None if directory is None else directory.names.get(os.path.basename(path))
        return None if inode is None else bytes(inode.data)

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a file by a new one that is synced under another name first, as the real disk does."""
        temporary = f"{path}.new"
        self.remove(temporary)
        file = self.open(temporary, create=True)
        file.write_at(0, [data])
        file.sync_data()
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        """Rename within a directory, in one change. Raises FileNotFoundError, also for another directory."""
        self.step()
        directory, old_name = self._at(old)
        target, new_name = self._at(new)
        inode = directory.names.get(old_name)
        if inode is None or target is not directory:
            raise FileNotFoundError(errno.ENOENT, "no such file, or another directory", old)
        directory.change((new_name, inode), (old_name, None))  # in one step: no power cut leaves neither name

    def remove(self, path: str) -> None:
        """Delete a file; a missing one is fine. A power failure before `sync_directory` may bring it back."""
        directory, name = self._at(path)
        if name in directory.names:
            self.step()
            directory.change((name, None))
            self._moment(REMOVAL)

    def sync_directory(self, path: str) -> None:
        """Make the changes of the directory's names survive a power failure. Raises OSError by the disk's faults."""
        self.step()
        self.may_fail("eio_sync", path)
        directory = self._directories[path]
        directory.settle(len(directory.changes))

    def lock(self, path: str) -> SimulatedFile:
        """Take the lock, which a dead process does not hold. Raises BlockingIOError while a living one does."""
        holder = self._locks.get(path)
        if holder is not None and holder.holder is not None and not holder.holder.dead:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        file = self._locks[path] = self.open(path, create=True)
        file.holder = PROCESS.get()
        return file

    def usage(self, path: str) -> tuple[int, int, int]:
        """Return (1, capacity, free bytes); none are free while the fault `full` is on."""
        used = sum(len(inode.data) for d in self._directories.values() for inode in d.names.values())
        return 1, self.capacity, 0 if self.faults.full else max(self.capacity - used, 0)

    # ------------------------------------------------------------------------------------ Disk: pools

    def submit(self, pool: str, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run the call in its pool; it takes effect at the end of its virtual time, or in part where its process is
        killed."""
        process = PROCESS.get()
        if process is None:
            raise RuntimeError("a disk is used by processes only")
        entry = _PoolCall(call, self._loop.create_future(), process)
        self._active.setdefault(pool, [])
        self._queued.setdefault(pool, deque()).append(entry)
        self._start_calls(pool)
        return entry.future

    def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
        """Run the call here by chance, on a disk that is not slow: callers must manage with both."""
        if self.faults.slow * CALL_S[pool.partition("-")[0]] > limit_s or self.rng.random() < 0.5:
            return False
        try:
            call()
        finally:
            self.reached("disk.at-once")
        return True

    def close(self) -> None:
        """Do nothing: calls under way end by themselves."""

    def _start_calls(self, pool: str) -> None:
        active, queued, kind = self._active[pool], self._queued[pool], pool.partition("-")[0]
        while queued and len(active) < POOLS[kind]:
            call = queued.popleft()
            active.append(call)
            seconds = self.rng.uniform(0.3, 1.7) * CALL_S[kind] * self.faults.slow
            self._loop.call_later(seconds, self._complete, pool, call, context=call.process.context)
            self._moment(kind)

    def _complete(self, pool: str, call: _PoolCall[object]) -> None:
        if call.ended:
            return
        call.ended = True
        self._active[pool].remove(call)
        if not call.future.done():
            try:
                result = call.work()
            except Exception as error:
                call.future.set_exception(error)
            else:
                call.future.set_result(result)
        self._start_calls(pool)

    # ------------------------------------------------------------------------------------ crashes and damage

    def cut(self, *, power: bool) -> None:
        """Stop calls under way somewhere: the host's process was killed. With `power` the page cache is gone too."""
        for active in self._active.values():
            for call in active:
                call.ended = True
                # The kernel finishes the call that it is in, or not: so many operations of it still happen.
                self._budget = 1 if self.tears else self.rng.choice(STEPS_LEFT)
                try:
                    call.work()
                except (PowerCut, Exception):
                    pass  # cut off, or failed: the process that asked is dead
                self._budget = None
            self._loop.graveyard.extend(active)  # kept: their callbacks must not be finalised within the run
            active.clear()
        for queued in self._queued.values():
            self._loop.graveyard.extend(queued)
            queued.clear()
        if power:
            self._lose_cache()
        for directory in self._directories.values():
            for inode in directory.names.values():
                inode.earlier = len(inode.pending)
        self.tears = False

    def _lose_cache(self) -> None:
        for directory in self._directories.values():
            directory.lose_some(self.rng, in_order=self.keeps_order)
        for folder, directory in self._directories.items():
            for name, inode in directory.names.items():
                kept = self._keep_some(inode) if inode.pending else []
                inode.data = bytearray(inode.durable)
                if kept and self.survived is not None:
                    self.survived(f"{folder}/{name}", kept)

    def wipe(self) -> None:
        """Put another disk in place of this one."""
        self._directories.clear()
        self._locks.clear()
        self._lost.clear()

    def files(self, suffix: str, folder: str = "") -> list[str]:
        """Return the paths of files whose name ends so, below directories whose path contains `folder`."""
        return [
            f"{path}/{name}"
            for path, directory in sorted(self._directories.items())
            if folder in path
            for name in sorted(directory.names)
            if name.endswith(suffix)
        ]

    def lose(self, path: str) -> None:
        """Remove a file from the medium."""
        directory, name = self._at(path)
        self._lost[path] = directory.names[name]
        # From both: a lost file is gone for the running process, and stays gone after a crash.
        directory.names.pop(name, None)
        directory.durable.pop(name, None)

    def flip(self, path: str) -> bool:
        """Flip one synced bit of a file; False where nothing is synced."""
        directory, name = self._at(path)
        inode = directory.names[name]
        size = min(len(inode.durable), len(inode.data))
        if not size:
            return False
        at, bit = self.rng.randrange(size), 1 << self.rng.randrange(8)
        inode.durable[at] ^= bit
        inode.data[at] ^= bit
        return True


def _set_names(names: dict[str, Inode], changes: Sequence[tuple[str, Inode | None]]) -> None:
    for name, inode in changes:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _apply(content: bytearray, offset: int, data: bytes) -> None:
    if offset < 0:
        size = int.from_bytes(data, "big")
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
