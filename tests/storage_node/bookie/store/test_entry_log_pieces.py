"""How the entry logs' writer follows: in pieces that are large where the memory is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from helpers.bookie.faulty_disk import ForwardingFile
from helpers.bookie.harness import BookieCluster, entry

from storage_node.bookie.disk.records import BLOCK
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.store.entry_logs import LEAST_PIECE_BYTES, PIECE_BYTES
from storage_node.bookie.store.log_files import parse_log_name
from storage_node.edge import DiskFile
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Status

ENTRY_BYTES = 50 * 1024


class NotingFile(ForwardingFile):
    """A file that notes how much each write has."""

    def __init__(self, inner: DiskFile, sizes: list[int]) -> None:
        super().__init__(inner)
        self._sizes = sizes

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._sizes.append(sum(memoryview(buffer).nbytes for buffer in buffers))
        super().write_at(offset, buffers)


class NotingDisk(SystemDisk):
    """The real disk; notes the writes to entry logs."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        file = super().open(path, create=create, direct=direct)
        return NotingFile(file, self.sizes) if parse_log_name(path.rpartition("/")[2]) else file


@pytest.mark.parametrize(
    ("memory", "frame", "piece"),
    [(32 << 20, 5 << 20, PIECE_BYTES), (4 << 20, 1000 * 1024, LEAST_PIECE_BYTES)],
    ids=["slabs of 8 MB", "slabs of 1 MB"],
)
async def test_bulk_goes_to_the_entry_log_in_large_pieces(
    cluster: BookieCluster, memory: int, frame: int, piece: int
) -> None:
    disk = NotingDisk()
    overrides = {"skip_list_size_limit": memory, "netty_max_frame_size_bytes": frame, "flush_interval_ms": 3_600_000}
    bookie = await cluster.start("a", disk=disk, **overrides)
    client = await cluster.connect(bookie)
    disk.sizes.clear()
    for number in range(3 * piece // ENTRY_BYTES + 1):
        assert await client.add(entry(5, number, bytes(ENTRY_BYTES))) is Status.EOK
    await bookie.storage.checkpoint()
    assert disk.sizes[:2] == [piece, piece]
    assert max(disk.sizes) == piece
    assert all(size % BLOCK == 0 for size in disk.sizes)
    read = await client.read(5, 0)
    assert bytes(read.body or b"") == entry(5, 0, bytes(ENTRY_BYTES))
