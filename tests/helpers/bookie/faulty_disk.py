"""The real disk, with errors on request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.edge import DiskFile
from storage_node.protocol.frames import Buffer


class ForwardingFile:
    """A file that does what another does: subclasses come in between. Every read of it goes through a thread."""

    def __init__(self, inner: DiskFile) -> None:
        self._inner = inner
        self.path = inner.path

    @property
    def direct(self) -> bool:
        return self._inner.direct

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._inner.write_at(offset, buffers)

    def sync_data(self) -> None:
        self._inner.sync_data()

    def read_at(self, offset: int, length: int) -> bytes:
        return self._inner.read_at(offset, length)

    def read_now(self, offset: int, length: int) -> bytearray | None:
        return None

    def size(self) -> int:
        return self._inner.size()

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)

    def close(self) -> None:
        self._inner.close()


class FaultyFile(ForwardingFile):
    """A file whose writes or syncs may fail, or wait for a gate."""

    def __init__(self, inner: DiskFile, disk: FaultyDisk) -> None:
        super().__init__(inner)
        self._disk = disk

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._disk.before("write", self.path)
        super().write_at(offset, buffers)

    def sync_data(self) -> None:
        self._disk.before("sync", self.path)
        super().sync_data()

    def read_at(self, offset: int, length: int) -> bytes:
        self._disk.before("read", self.path)
        return super().read_at(offset, length)


class FaultyDisk(SystemDisk):
    """The real disk, with errors on request: (call, part of the path) -> errno."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[tuple[str, str], int] = {}
        self.hits: list[tuple[str, str]] = []
        self.full = False
        self.usages: dict[str, tuple[int, int, int]] = {}
        """Part of a path -> what `usage` says of it."""
        self.gate: threading.Event | None = None
        self.waiting = 0
        self.passed = 0

    def before(self, call: str, path: str) -> None:
        if call == "sync" and "/journal-" in path:
            gate = self.gate
            if gate is not None:
                self.waiting += 1
                gate.wait(60)
            self.passed += 1
        for (wanted, part), number in self.errors.items():
            if wanted == call and part in path:
                self.hits.append((call, path))
                raise OSError(number, "injected", path)

    def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
        return self.gate is None and super().at_once(pool, call, limit_s)  # at the gate the loop would wait

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        if create:
            self.before("create", path)
        return FaultyFile(super().open(path, create=create, direct=direct), self)

    def usage(self, path: str) -> tuple[int, int, int]:
        for part, said in self.usages.items():
            if part in path:
                return said
        return (1, 1000, 0) if self.full else (1, 1000, 1000)
