"""The real disk's behaviour that others rely on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_node.bookie.disk.records import aligned_memory
from storage_node.bookie.disk.system_disk import SystemDisk, SystemFile


def test_a_file_system_that_refuses_a_direct_write_is_written_through_the_page_cache(tmp_path: Path) -> None:
    """An unaligned write is what every file system refuses on a direct descriptor."""
    file = SystemDisk().open(str(tmp_path / "f"), create=True, direct=True)
    aligned = memoryview(aligned_memory(4096))
    aligned[:5] = b"first"
    file.write_at(0, [aligned])
    file.write_at(4096, [b"unaligned"])
    file.write_at(4105, [b" and", b" more"])
    file.sync_data()
    assert not file.direct
    assert file.read_at(4096, 100) == b"unaligned and more"
    assert file.read_at(0, 5) == b"first"
    assert file.size() == 4114
    file.close()
    file.close()


@pytest.mark.parametrize("call", ["write", "read", "truncate", "sync"])
def test_an_error_names_its_file(call: str) -> None:
    """A pipe refuses all of it, as a disk that is gone does."""
    reading, writing = os.pipe()
    file = SystemFile("/data/ledgers/current/1.log", writing, direct=False)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: file.write_at(0, [b"x"]),
        "read": lambda: file.read_at(0, 1),
        "truncate": lambda: file.truncate(0),
        "sync": file.sync_data,
    }
    with pytest.raises(OSError, match=r"/data/ledgers/current/1\.log"):
        calls[call]()
    file.close()
    os.close(reading)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    disk = SystemDisk()
    path = str(tmp_path / "a" / "b" / "file")
    disk.make_directory(str(tmp_path / "a" / "b"))
    disk.make_directory(str(tmp_path / "a" / "b"))
    assert disk.read_file(path) is None
    disk.write_file(path, b"one")
    disk.write_file(path, b"two")
    assert disk.read_file(path) == b"two"
    assert disk.list_directory(str(tmp_path / "a" / "b")) == ["file"]
    assert disk.list_directory(str(tmp_path / "none")) == []
    disk.remove(path)
    disk.remove(path)


def test_a_lock_is_exclusive_until_it_is_closed(tmp_path: Path) -> None:
    disk = SystemDisk()
    held = disk.lock(str(tmp_path / "lock"))
    with pytest.raises(BlockingIOError):
        disk.lock(str(tmp_path / "lock"))
    held.close()
    disk.lock(str(tmp_path / "lock")).close()


async def test_calls_run_off_the_loop_and_bring_their_errors_back() -> None:
    disk = SystemDisk()
    assert await disk.submit("reads", threading.get_ident) != threading.get_ident()

    def fail() -> None:
        raise OSError(5, "gone")

    with pytest.raises(OSError, match="gone"):
        await disk.submit("entries", fail)
    order: list[int] = []
    await asyncio.gather(*(disk.submit("files", lambda n=n: order.append(n)) for n in range(20)))  # type: ignore[misc]
    assert order == list(range(20))
    disk.close()
    assert not any(thread.name.startswith("bookie-") for thread in threading.enumerate())
    assert await disk.submit("reads", lambda: 7) == 7
    disk.close()
