"""`SystemDisk`: a bookie's files on a real Linux file system, and the few threads that long calls run on.

Fault model: any call may raise OSError. A write or sync that failed is never repeated here, with one exception: a file
system that refuses O_DIRECT (EINVAL before anything was written) is used through the page cache instead.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from metadata.foundation.private_files import DIRECTORY_MODE, FILE_MODE, close_to_others
from storage_node.bookie.disk.resources import SpareDescriptors
from storage_node.edge import DiskFile
from storage_node.protocol.frames import Buffer

logger = logging.getLogger(__name__)
T = TypeVar("T")

THREADS = {"journal": 2, "entries": 1, "reads": 4, "files": 1}
"""Threads a pool (`journal-1` has as many as `journal`). Only long single calls go there: many short ones would fight
the loop for the interpreter."""

QUICK_CALLS = 16
"""So many calls in a row must have been short before one is run without a thread: a disk that hesitates now and then
stops the loop once in as many."""

READ_NOW = getattr(os, "RWF_NOWAIT", 0)


class SystemFile:
    """An open file descriptor."""

    def __init__(self, path: str, descriptor: int, direct: bool) -> None:
        self.path = path
        self.direct = direct
        self._descriptor = descriptor

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all of the buffers at `offset`, in as many system calls as needed. Raises OSError, after which a part
        may be written. A file system that refuses O_DIRECT is written through the page cache from then on."""
        pieces = [memoryview(buffer).cast("B") for buffer in buffers]
        while pieces:
            try:
                written = os.pwritev(self._descriptor, pieces, offset)
            except OSError as error:
                if not (self.direct and error.errno == errno.EINVAL):
                    self._name(error)
                    raise
                self._give_up_direct()
                continue
            if written <= 0:  # it would be tried again for ever
                raise OSError(errno.EIO, "the file system wrote nothing", self.path)
            offset += written
            while pieces and written >= len(pieces[0]):
                written -= len(pieces.pop(0))
            if written:
                pieces[0] = pieces[0][written:]

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file. Blocking. Raises OSError."""
        try:
            data = os.pread(self._descriptor, length, offset)
            while 0 < len(data) < length:
                more = os.pread(self._descriptor, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            self._name(error)
            raise
        return data

    def read_now(self, offset: int, length: int) -> bytearray | None:
        """Return all `length` bytes if they are in the page cache, else None; None also where the kernel lacks
        RWF_NOWAIT."""
        if not READ_NOW:
            return None
        data = bytearray(length)
        try:
            got = os.preadv(self._descriptor, [data], offset, READ_NOW)
        except OSError:  # not in memory, or not supported here: the caller reads on a thread and sees real errors
            return None
        return data if got == length else None

    def size(self) -> int:
        """Return the file's length in bytes, as the file system has it. Raises OSError."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Set the file's length; a longer one ends in zeros. Not durable before a sync. Raises OSError."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            self._name(error)
            raise

    def sync_data(self) -> None:
        """Call fdatasync. Raises OSError; it must not be repeated then: the kernel may have dropped the pages that
        failed.
        """
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._name(error)
            raise

    def _name(self, error: OSError) -> None:
        """Name the file in an error: the kernel names none for a descriptor, and a node has several disks."""
        error.filename = self.path

    def close(self) -> None:
        """Close the descriptor; a second call does nothing. Syncs nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _give_up_direct(self) -> None:
        logger.warning("%s: the file system refuses direct writes, going through the page cache", self.path)
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self.direct = False


class _Pool:
    """Threads that take calls from one queue and hand results back to the caller's loop."""

    def __init__(self, name: str, threads: int) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._times_s: deque[float] = deque(maxlen=QUICK_CALLS)
        """What the last calls took; of the loop's thread only."""
        self._threads = [
            threading.Thread(target=self._run, name=f"bookie-{name}-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(partial(self._perform, loop, future, call))
        return future

    def at_once(self, call: Callable[[], object], limit_s: float) -> bool:
        times_s = self._times_s
        if len(times_s) < QUICK_CALLS or max(times_s) > limit_s:
            return False
        began = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - began)
        return True

    def close(self) -> None:
        """Let the threads end after what is queued, and wait for them."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            work = self._calls.get()
            if work is None:
                return
            work()
            del work

    def _perform(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], call: Callable[[], T]) -> None:
        began = time.perf_counter()
        try:
            result = call()
        except BaseException as error:  # carried over to the loop, whatever it is
            _hand_back(loop, partial(_fail, future, error))
        else:
            _hand_back(loop, partial(self._succeeded, future, result, time.perf_counter() - began))

    def _succeeded(self, future: asyncio.Future[T], result: T, took_s: float) -> None:
        """End a thread's call, on the loop."""
        self._times_s.append(took_s)
        _succeed(future, result)


def _hand_back(loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:  # the loop is closed: nothing waits for the result any more
        logger.debug("a disk call ended after its loop was closed")


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class SystemDisk:
    """The real disk. Threads start with the first call that needs them and end with `close`."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._spare = SpareDescriptors()

    def make_directory(self, path: str) -> None:
        """Create it and its missing parents with mode 0700, and sync each one's parent; an existing one is left as it
        is."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directory(parent)
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            return
        self.sync_directory(parent)

    def close_to_others(self, path: str) -> None:
        """Take the rights of group and others from a directory and the files in it."""
        close_to_others(path)

    def list_directory(self, path: str) -> list[str]:
        """Return names, sorted; empty for a directory that does not exist. Raises OSError for any other failure."""
        try:
            return sorted(self._spare.have(partial(os.listdir, path)))
        except FileNotFoundError:
            return []

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        """Open for reading and writing, with mode 0600 where it is created. Where the file system refuses O_DIRECT the
        file goes through the page cache, and `direct` is False."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        if direct:
            try:
                return SystemFile(path, self._open(path, flags | os.O_DIRECT), True)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                logger.warning("%s: the file system refuses direct writes, going through the page cache", path)
        return SystemFile(path, self._open(path, flags), False)

    def read_file(self, path: str) -> bytes | None:
        """Return the whole file, None if there is none. Raises any other OSError."""
        try:
            with open(path, "rb", opener=self._open) as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def write_file(self, path: str, data: bytes) -> None:
        """Replace the file: write `<path>.new`, fsync, rename, fsync of the directory. Raises OSError; the old file or
        the new one is there whole in any case."""
        temporary = f"{path}.new"
        descriptor = self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)  # before the rename: after a crash the name must not lead to an empty file
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        """Rename within a file system, replacing a file of the new name. Not durable before `sync_directory`."""
        os.rename(old, new)

    def remove(self, path: str) -> None:
        """Delete a file; a missing one is fine. Not durable before `sync_directory`."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def sync_directory(self, path: str) -> None:
        """Call fsync on the directory: creations, renames and removals in it are durable on return. Raises OSError."""
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> DiskFile:
        """Create the file if it is missing and take `flock` on it, without waiting. Raises BlockingIOError while
        another process has it."""
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return SystemFile(path, descriptor, False)

    def _open(self, path: str, flags: int) -> int:
        """Return a descriptor, which may be a spare one's place."""
        return self._spare.have(partial(os.open, path, flags, FILE_MODE))

    def usage(self, path: str) -> tuple[int, int, int]:
        """Return (device id, total bytes, bytes free for ordinary users) of the file system that holds `path`."""
        stats = os.statvfs(path)
        return os.stat(path).st_dev, stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize

    def submit(self, pool: str, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run the call on a thread of the pool, which starts with its first call. The call runs to its end even if the
        future is cancelled."""
        if pool not in self._pools:
            self._spare.hold()
            self._pools[pool] = _Pool(pool, THREADS[pool.partition("-")[0]])
        return self._pools[pool].submit(call)

    def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
        """Run the call here, where each of the pool's last calls took no more than `limit_s`; False: not here."""
        known = self._pools.get(pool)
        return known is not None and known.at_once(call, limit_s)

    def close(self) -> None:
        """Finish what was submitted and end the threads; a later `submit` starts them again."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()
        self._spare.let_go()
