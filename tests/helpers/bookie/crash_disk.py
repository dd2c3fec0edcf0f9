"""A disk in memory that remembers every call, and can be cut off after any of them.

What a power cut may leave of the calls so far is up to `Cut`: of what was not synced, nothing, everything, everything
but the end of the last write, or only the last write. Names (creations, renames, removals) are synced by directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from storage_node.edge import DiskFile, FrameHandler, Link, Listener
from storage_node.protocol.frames import Buffer

T = TypeVar("T")


class Cut(Enum):
    NOTHING = "nothing of what was not synced"
    EVERYTHING = "everything, synced or not"
    TORN = "everything but the second half of the last write"
    LAST_ONLY = "of what was not synced only the last write"


class Inode:
    """A file's bytes."""

    __slots__ = ("data",)

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def write(self, offset: int, data: bytes) -> None:
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data


@dataclass(frozen=True, slots=True)
class Call:
    """One call: a write or sync of an inode, a change of names, or the sync of a directory."""

    kind: str
    inode: Inode | None = None
    offset: int = 0
    data: bytes = b""
    names: tuple[tuple[str, Inode | None], ...] = ()
    directory: str = ""


class CrashFile:
    """An open file."""

    def __init__(self, disk: CrashDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self.path = path
        self.inode = inode
        self.direct = False

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        self.inode.write(offset, data)
        self._disk.calls.append(Call("write", self.inode, offset, data))

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self.inode.data[offset : offset + length])

    def read_now(self, offset: int, length: int) -> bytearray | None:
        return None

    def size(self) -> int:
        return len(self.inode.data)

    def truncate(self, size: int) -> None:
        raise AssertionError("a bookie truncates no file")

    def sync_data(self) -> None:
        self._disk.calls.append(Call("sync", self.inode))

    def close(self) -> None:
        self._disk.locked.discard(self.path)


@dataclass
class CrashDisk:
    """See the module."""

    names: dict[str, Inode] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    locked: set[str] = field(default_factory=set)

    def _rename(self, *changes: tuple[str, Inode | None]) -> None:
        for name, inode in changes:
            if inode is None:
                self.names.pop(name, None)
            else:
                self.names[name] = inode
        self.calls.append(Call("name", names=changes, directory=changes[0][0].rpartition("/")[0]))

    def close_to_others(self, path: str) -> None:
        """Do nothing: no other process is there."""

    def make_directory(self, path: str) -> None:
        pass

    def list_directory(self, path: str) -> list[str]:
        return sorted(name.rpartition("/")[2] for name in self.names if name.rpartition("/")[0] == path)

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        inode = self.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(2, "no such file", path)
            inode = Inode()
            self._rename((path, inode))
        return CrashFile(self, path, inode)

    def read_file(self, path: str) -> bytes | None:
        inode = self.names.get(path)
        return None if inode is None else bytes(inode.data)

    def write_file(self, path: str, data: bytes) -> None:
        fresh = Inode()
        self._rename((f"{path}.new", fresh))
        CrashFile(self, path, fresh).write_at(0, [data])
        self.calls.append(Call("sync", fresh))
        self._rename((path, fresh), (f"{path}.new", None))
        self.sync_directory(path.rpartition("/")[0])

    def rename(self, old: str, new: str) -> None:
        self._rename((new, self.names[old]), (old, None))

    def remove(self, path: str) -> None:
        if path in self.names:
            self._rename((path, None))

    def sync_directory(self, path: str) -> None:
        self.calls.append(Call("syncdir", directory=path))

    def lock(self, path: str) -> DiskFile:
        if path in self.locked:
            raise BlockingIOError(11, "locked", path)
        self.locked.add(path)
        return CrashFile(self, path, Inode())

    def usage(self, path: str) -> tuple[int, int, int]:
        return 1, 1 << 40, 1 << 40

    def submit(self, pool: str, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run the calls one after the other, each in a turn of its own: every order of calls is one of these."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def perform() -> None:
            try:
                result = call()
            except BaseException as error:  # handed on, as the real disk does
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        loop.call_soon(perform)
        return future

    def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
        return False

    def close(self) -> None:
        pass

    # ------------------------------------------------------------------------------------ the cut

    def after(self, count: int, cut: Cut) -> CrashDisk:
        """Return the disk as it may be found when the power went after `count` calls."""
        return self.left_by(self.calls[:count], cut)

    @staticmethod
    def left_by(calls: Sequence[Call], cut: Cut) -> CrashDisk:
        synced: dict[int, int] = {}
        synced_names: dict[str, int] = {}
        for at, call in enumerate(calls):
            if call.kind == "sync":
                synced[id(call.inode)] = at
            elif call.kind == "syncdir":
                synced_names[call.directory] = at
        last_write = max((at for at, call in enumerate(calls) if call.kind == "write"), default=-1)
        found = CrashDisk()
        copies: dict[int, Inode] = {}
        for at, call in enumerate(calls):
            if call.kind == "write" and call.inode is not None:
                durable = synced.get(id(call.inode), -1) > at
                data = call.data
                if not durable and (cut is Cut.NOTHING or (cut is Cut.LAST_ONLY and at != last_write)):
                    continue
                if not durable and cut is Cut.TORN and at == last_write:
                    data = data[: len(data) // 2]
                copies.setdefault(id(call.inode), Inode()).write(call.offset, data)
            elif call.kind == "name":
                durable = synced_names.get(call.directory, -1) > at
                if not durable and cut is Cut.NOTHING:
                    continue
                for name, inode in call.names:
                    if inode is None:
                        found.names.pop(name, None)
                    else:
                        found.names[name] = copies.setdefault(id(inode), Inode())
        return found

    def signature(self) -> int:
        """Return a value that is equal for disks with equal files."""
        return hash(frozenset((name, bytes(inode.data)) for name, inode in self.names.items()))


class NoNetwork:
    """Listens nowhere: the test speaks to the storage."""

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        raise AssertionError("nobody connects")

    async def listen(self, host: str, port: int, accept: Callable[[Link], FrameHandler]) -> Listener:
        class Nowhere:
            port = 3181

            async def close(self) -> None:
                pass

        return Nowhere()
