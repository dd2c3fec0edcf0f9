"""Objects as files of a folder: of this machine's, or of a network's file system that is mounted.

An object is written under a temporary name in its own folder, synced, then linked to its name, which fails where the
name is taken, and the folder is synced. So a name appears with all its bytes on disk, and never in place of another.
A process that is killed leaves a temporary file, which `uploads` finds; the name of an object ends it, so it is known
whose it was. It costs a hard link: file systems without them are refused.

Fault model: a write, a sync or a link may fail at any time (full, input/output error), and power may go. A failed sync
is not repeated: the kernel may have dropped the pages. Where the folder's sync after the link fails, the name is there
and may be gone after a power failure. That is no outcome to find out by looking, for the page cache shows it all the
same: it is told as not done, and the object is left to the sweep.

It never leaves the root: each folder below it is opened by its own name from the one above it and is no symbolic link,
so no link that is put there leads out. The root itself may be a link, and is never made here: where the file system is
not mounted, its files must not come to lie below the empty mount point, nor seem to be gone.

Who may read is the root's own rights: a folder or file gives group and others what the folder above it gives them, and
never the right to write: but in a folder with the group's id set (02770), where several users work, the group keeps it
for folders. So a root of 0700 holds files of 0600, and one of 0750 files that its group may read, whatever the umask
would give away. A root that is open to everybody on the machine is warned of, once, and left as it is.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from dlspark.objects.addresses import StoreRoot, is_part, name_of_temporary, temporary_name
from dlspark.objects.errors import (
    ObjectStoreError,
    StoreUnavailableError,
    exists_error,
    not_found_error,
    refused_error,
    scrubbed,
    short_error,
    unavailable_error,
    unknown_error,
    unreached_error,
)
from dlspark.objects.opened_store import READ_POLICY, OpenedStore, ReadPolicy, check_ranges
from dlspark.objects.store import ObjectInfo, OpenUpload
from dlspark.objects.threaded_writer import ThreadedWriter, begun
from metadata.foundation.errors import check
from metadata.foundation.private_files import DIRECTORY_MODE, FILE_MODE
from metadata.foundation.tasks import together

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREADS: Final = 4
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Not blocked by a pipe that lies there under an object's name."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_RIGHT: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_LINKED_OR_NO_FOLDER: Final = (errno.ELOOP, errno.ENOTDIR)
_NOT_REACHED: Final = (
    errno.ENOTCONN,
    errno.ETIMEDOUT,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
)
"""Of a file system that is mounted from elsewhere: nobody answers there."""
_READABLE: Final = stat.S_IRGRP | stat.S_IROTH
_ENTERED: Final = stat.S_IXGRP | stat.S_IXOTH
_told_open: set[str] = set()
"""Roots of which it was said that they are open to everybody."""
_FOLDER_TRIES: Final = 20
"""A folder that becomes empty is taken away, perhaps while another writer goes into it."""


@dataclass(frozen=True, slots=True)
class _RootFolder:
    """The folder below which everything is, and whether it may be gone: then nothing is below it."""

    path: str
    may_be_gone: bool

    def warn_if_open(self, mode: int) -> None:
        """Say once in this process that everybody may read what is written here. Called from threads."""
        if mode & stat.S_IROTH and mode & stat.S_IXOTH and self.path not in _told_open:
            _told_open.add(self.path)
            logger.warning(
                "every user of this machine may read the files in %s, for the folder is open to all (mode %04o). If "
                "that is not meant: chmod o-rwx %s",
                self.path,
                stat.S_IMODE(mode),
                self.path,
            )


class LocalStore(OpenedStore):
    """How does a folder hold objects?

    Args:
        root: the folder, which has to be there.
        policy: of reads.
        may_be_gone: the folder is one object's own, which goes with the last of its objects: that it is not there says
            no more than that the object is not.
    """

    def __init__(self, root: StoreRoot, policy: ReadPolicy = READ_POLICY, *, may_be_gone: bool = False) -> None:
        super().__init__(root, policy)
        self._folder = _RootFolder(root.path, may_be_gone)
        # Threads of its own: files that hang (a dead NFS server) hold up nothing else. They start when first needed.
        self._threads = ThreadPoolExecutor(THREADS, "cold-files")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, work)

    async def create(self, url: str) -> LocalObjectWriter:
        """Begin to write an object, under a temporary name."""
        self._check_usable()
        name = self._place.name_of(url)
        return await begun(self._threads, partial(LocalObjectWriter, self._folder, name, url, self._threads))

    async def head(self, url: str) -> ObjectInfo:
        """Return the size and time of an object."""
        self._check_usable()
        name = self._place.name_of(url)

        def ask() -> ObjectInfo:
            with _reading(url, "tell of an object"), _opened(self._folder, name, url) as descriptor:
                return _info(url, os.fstat(descriptor))

        return await self._persist(partial(self._in_thread, ask))

    async def read(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of (offset, length) ranges, in up to four threads."""
        self._check_usable()
        name = self._place.name_of(url)
        check_ranges(ranges, url)
        found: list[memoryview] = [memoryview(b"")] * len(ranges)

        def read_some(first: int, step: int) -> None:
            with _reading(url, "return bytes of an object"), _opened(self._folder, name, url) as descriptor:
                for index in range(first, len(ranges), step):
                    found[index] = _read_range(descriptor, url, *ranges[index])

        # A thread for each megabyte, up to four: handing over costs more than a small range does.
        jobs = max(1, min(THREADS, len(ranges), sum(length for _, length in ranges) >> 20))
        tries = [self._persist(partial(self._in_thread, partial(read_some, first, jobs))) for first in range(jobs)]
        await together(tries)
        return found

    async def delete(self, url: str) -> None:
        """Delete an object, and its folder where that was the last one in it."""
        self._check_usable()
        await self._in_thread(partial(_delete, self._folder, self._place.name_of(url), url))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the files below a folder that have an object's name."""
        self._check_usable()
        for name, found in await self._walk(prefix):
            if not name.rpartition("/")[2].startswith("."):
                yield _info(self._place.url_of(name), found)

    async def uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        """Yield the temporary files below a folder."""
        self._check_usable()
        for name, found in await self._walk(prefix):
            folder, _, last = name.rpartition("/")
            made = name_of_temporary(last)
            if made is not None:
                object_name = f"{folder}/{made}" if folder else made
                yield OpenUpload(self._place.url_of(object_name), last, found.st_mtime_ns // 1_000_000)

    async def _walk(self, prefix: str) -> Sequence[tuple[str, os.stat_result]]:
        name = self._place.folder_of(prefix)
        return await self._persist(partial(self._in_thread, partial(_walk, self._folder, name, prefix)))

    async def abort_upload(self, upload: OpenUpload) -> None:
        """Take a temporary file away."""
        self._check_usable()
        name = self._place.name_of(upload.url)
        folder, _, last = name.rpartition("/")
        check(name_of_temporary(upload.upload_id) == last, "This is no upload of a local file", path=upload.url)
        unfinished = f"{folder}/{upload.upload_id}" if folder else upload.upload_id
        await self._in_thread(partial(_delete, self._folder, unfinished, upload.url))

    async def close(self) -> None:
        """Let the threads end when they have done what is under way."""
        self._closed = True
        self._threads.shutdown(wait=False)


class LocalObjectWriter(ThreadedWriter):
    """A file that is being written under a temporary name."""

    def __init__(self, root: _RootFolder, name: str, url: str, threads: ThreadPoolExecutor) -> None:
        super().__init__(url, threads)
        folder, _, last = name.rpartition("/")
        self._name = last
        self._temporary = temporary_name(last)
        self._folder, self._file = _new_file(root, folder, self._temporary, url)

    def _put(self, pieces: Sequence[bytes | memoryview]) -> None:
        try:
            for piece in pieces:
                left = memoryview(piece).cast("B")
                while left:
                    left = left[os.write(self._file, left) :]
        except OSError as error:
            raise _change_error(self._url, "take bytes of an object", error) from error

    def _publish(self) -> None:
        try:
            os.fdatasync(self._file) if hasattr(os, "fdatasync") else os.fsync(self._file)
            os.link(
                self._temporary,
                self._name,
                src_dir_fd=self._folder,
                dst_dir_fd=self._folder,
                follow_symlinks=False,
            )
        except FileExistsError:
            raise exists_error(self._url) from None
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise refused_error(
                    self._url,
                    "make an object",
                    f"the file system makes no hard links ({error.strerror})",
                    "Use a file system that has them: else a name cannot appear whole and never in place of another",
                ) from error
            raise _change_error(self._url, "make an object", error) from error
        try:
            # First: whatever comes later may fail. Before it the name may be gone again after a power failure.
            os.fsync(self._folder)
        except OSError as error:
            # Never "unknown": reading it back would show it, from the page cache, and its ledgers would go (I21).
            raise StoreUnavailableError(
                f"The object store made an object that is not durable: {scrubbed(error)}",
                path=self._url,
                advice="It does not count, whoever finds it; write it anew under another name, and look at the disk",
            ) from error
        # The temporary name goes in `drop`: if that fails, the sweep finds it.

    def drop(self) -> None:
        """Close, and take the temporary file away, as far as possible. It blocks, and raises nothing."""
        file, self._file = self._file, -1
        folder, self._folder = self._folder, -1
        if folder >= 0:
            try:
                os.unlink(self._temporary, dir_fd=folder)
            except OSError:
                pass  # gone already, or found by the sweep
        for descriptor in (file, folder):
            if descriptor >= 0:
                try:
                    os.close(descriptor)
                except OSError:
                    pass  # what matters was synced


# -------------------------------------------------------------------- in threads


def _folder_of(root: _RootFolder, parts: Sequence[str], url: str, *, make: bool) -> int:
    """Open a folder below the root, one part after the other. Raises OSError; StoreRefusedError without a root."""
    try:
        descriptor = os.open(root.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        if root.may_be_gone and not make and isinstance(error, FileNotFoundError):
            raise
        raise refused_error(
            url,
            "look into its folder",
            f"there is no folder {root.path} ({error.strerror})",
            "Mount its file system; if it is new, make the folder once yourself: it is not made here, so that nothing "
            "comes to lie below a mount point that is empty",
        ) from error
    try:
        if make:
            root.warn_if_open(os.fstat(descriptor).st_mode)
        for part in parts:
            if make:
                _make_folder(descriptor, part)
            below = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_folder(above: int, name: str) -> None:
    try:
        mode = os.fstat(above).st_mode
        # Who sets the group's id on a folder that the group may write to has several users work in it, of whom each has
        # to put files into what another one has made; as for any folder the umask may take it away.
        shared = stat.S_IWGRP if mode & stat.S_ISGID else 0
        os.mkdir(name, DIRECTORY_MODE | mode & (_READABLE | _ENTERED | shared), dir_fd=above)
    except FileExistsError:
        pass  # and yet synced: the writer that made it may not have come so far
    os.fsync(above)  # a file in it is durable only if the folder is


def _new_file(root: _RootFolder, folder: str, temporary: str, url: str) -> tuple[int, int]:
    """Make a temporary file; return its folder's descriptor and its own. Raises ObjectStoreError."""
    parts = folder.split("/") if folder else []
    for _ in range(_FOLDER_TRIES):
        descriptor = -1
        try:
            descriptor = _folder_of(root, parts, url, make=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            rights = FILE_MODE | os.fstat(descriptor).st_mode & _READABLE
            return descriptor, os.open(temporary, flags, rights, dir_fd=descriptor)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            # A deletion has just taken the folder away, which was empty.
            if not isinstance(error, FileNotFoundError):
                raise _change_error(url, "begin an object", error) from error
    raise unavailable_error(url, "begin an object", "its folder was taken away again and again")


@contextmanager
def _opened(root: _RootFolder, name: str, url: str) -> Iterator[int]:
    """Open a file below the root to read. Raises OSError, ObjectNotFoundError."""
    folder, _, last = name.rpartition("/")
    above = -1
    try:
        above = _folder_of(root, folder.split("/") if folder else [], url, make=False)
        descriptor = os.open(last, _FILE, dir_fd=above)
    except FileNotFoundError:
        raise not_found_error(url) from None
    finally:
        if above >= 0:
            os.close(above)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise not_found_error(url)
        yield descriptor
    finally:
        os.close(descriptor)


def _read_range(descriptor: int, url: str, offset: int, length: int) -> memoryview:
    pieces: list[bytes] = []
    got = 0
    # One call reads 2 GiB at most, and may read less; the end of the file is where nothing comes.
    while got < length and (piece := os.pread(descriptor, length - got, offset + got)):
        pieces.append(piece)
        got += len(piece)
    if got != length:
        raise short_error(url, offset, length, got)
    return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def _delete(root: _RootFolder, name: str, url: str) -> None:
    parts = name.split("/")
    try:
        descriptor = _folder_of(root, parts[:-1], url, make=False)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _change_error(url, "delete an object", error) from error
    try:
        os.unlink(parts[-1], dir_fd=descriptor)
    except FileNotFoundError:
        pass  # and yet synced: the deletion that took it away may not have been
    except OSError as error:
        os.close(descriptor)
        raise _change_error(url, "delete an object", error) from error
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise unknown_error(url, "delete the object for good", error) from error
    finally:
        os.close(descriptor)
    _prune(root, parts[:-1], url)


def _prune(root: _RootFolder, parts: Sequence[str], url: str) -> None:
    """Take folders away that are empty, from the deepest one up, as far as that goes."""
    for depth in range(len(parts), 0, -1):
        try:
            above = _folder_of(root, parts[: depth - 1], url, make=False)
        except (OSError, ObjectStoreError):
            return
        try:
            os.rmdir(parts[depth - 1], dir_fd=above)
        except OSError:
            return  # not empty, most often
        finally:
            os.close(above)


def _walk(root: _RootFolder, folder: str, url: str) -> list[tuple[str, os.stat_result]]:
    """Return the regular files below a folder (`a/b/`, or "" for all), however deep, with what the system says."""
    found: list[tuple[str, os.stat_result]] = []
    todo = [folder]
    with _reading(url, "list objects"):
        while todo:
            name = todo.pop()
            try:
                descriptor = _folder_of(root, [part for part in name.split("/") if part], url, make=False)
            except FileNotFoundError:
                continue  # taken away meanwhile, or never there: it has no objects
            try:
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        if not is_part(name_of_temporary(entry.name) or entry.name):
                            continue
                        try:
                            if entry.is_dir(follow_symlinks=False):
                                todo.append(f"{name}{entry.name}/")
                            elif entry.is_file(follow_symlinks=False):
                                found.append((f"{name}{entry.name}", entry.stat(follow_symlinks=False)))
                        except FileNotFoundError:
                            continue
            finally:
                os.close(descriptor)
    return found


def _info(url: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(url, found.st_size, found.st_mtime_ns // 1_000_000)


@contextmanager
def _reading(url: str, doing: str) -> Iterator[None]:
    """Raise what goes wrong with a read as an error of stores."""
    try:
        yield
    except OSError as error:
        raise _change_error(url, doing, error) from error


def _change_error(url: str, doing: str, error: OSError) -> ObjectStoreError:
    """Return the error of something that the file system did not do."""
    if error.errno in _FULL:
        return refused_error(url, doing, error.strerror, "Make room, or raise the quota; nothing was lost")
    if error.errno in _NO_RIGHT:
        return refused_error(url, doing, error.strerror, "Give this user the right to the folder and its files")
    if error.errno in _LINKED_OR_NO_FOLDER:
        return refused_error(
            url,
            doing,
            f"a part of its path is a symbolic link, or is no folder ({error.strerror})",
            "Below the root nothing may be a link: move the files themselves, or make the root the link",
        )
    made = unreached_error if error.errno in _NOT_REACHED else unavailable_error
    return made(url, doing, error.strerror or error)
