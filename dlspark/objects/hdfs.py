"""Objects as files of HDFS, by WebHDFS.

An object is written under a temporary name in its own folder, as one stream; its blocks are synced to disk when they
are closed (SYNC_BLOCK). Then it is renamed, which fails where the name is taken. So a name appears with all its bytes,
and never in place of another. A process that is killed leaves a temporary file, which `uploads` finds.

Fault model: the name node or a data node may go, or answer late, at any time; only the rename, and a deletion, can
leave an outcome open. Everything before concerns a temporary name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from dlspark.objects.addresses import StoreRoot, is_part, name_of_temporary, temporary_name
from dlspark.objects.errors import (
    ObjectNotFoundError,
    ObjectStoreError,
    not_found_error,
    short_error,
    unavailable_error,
    unknown_error,
)
from dlspark.objects.opened_store import READ_POLICY, OpenedStore, ReadPolicy, check_ranges
from dlspark.objects.ranges import cut_range, joined_ranges
from dlspark.objects.store import ObjectInfo, OpenUpload
from dlspark.objects.threaded_writer import ThreadedWriter, begun
from dlspark.objects.webhdfs import UploadStream, WebHdfs
from metadata.foundation.errors import check
from metadata.foundation.tasks import together

T = TypeVar("T")

THREADS: Final = 4


class HdfsStore(OpenedStore):
    """How does a folder of HDFS hold objects?

    Args:
        root: the folder; it is made with the first object.
        endpoints: where its name nodes serve WebHDFS.
        policy: of reads.
    """

    def __init__(self, root: StoreRoot, endpoints: Sequence[str], policy: ReadPolicy = READ_POLICY) -> None:
        super().__init__(root, policy)
        self._hdfs = WebHdfs(endpoints)
        self._threads = ThreadPoolExecutor(THREADS, "cold-hdfs")

    def _path(self, url: str) -> str:
        self._check_usable()
        return f"{self._place.path}/{self._place.name_of(url)}"

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._threads, work)

    async def create(self, url: str) -> HdfsObjectWriter:
        """Begin to write an object, under a temporary name."""
        path = self._path(url)
        return await begun(self._threads, partial(HdfsObjectWriter, self._hdfs, path, url, self._threads))

    async def head(self, url: str) -> ObjectInfo:
        """Return the size and time of an object."""
        path = self._path(url)
        return await self._persist(partial(self._in_thread, partial(_head, self._hdfs, path, url)))

    async def read(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of (offset, length) ranges, up to four at a time."""
        path = self._path(url)
        check_ranges(ranges, url)
        joined = joined_ranges([one for one in ranges if one[1]])
        tries = [
            self._persist(partial(self._in_thread, partial(_read, self._hdfs, path, url, start, end)))
            for start, end in joined
        ]
        pieces = await together(tries)
        return [
            cut_range(url, offset, length, joined, pieces) if length else memoryview(b"") for offset, length in ranges
        ]

    async def delete(self, url: str) -> None:
        """Delete an object, and its folder where that was the last one in it."""
        path = self._path(url)
        await self._in_thread(partial(_delete, self._hdfs, path, url))
        await self._in_thread(partial(_prune, self._hdfs, self._place.path, path, url))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield the files below a folder that have an object's name."""
        async for name, found in self._walk(prefix):
            if not name.rpartition("/")[2].startswith("."):
                yield _info(self._place.url_of(name), found)

    async def uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        """Yield the temporary files below a folder."""
        async for name, found in self._walk(prefix):
            folder, _, last = name.rpartition("/")
            made = name_of_temporary(last)
            if made is not None:
                object_name = f"{folder}/{made}" if folder else made
                yield OpenUpload(self._place.url_of(object_name), last, int(found["modificationTime"]))

    async def _walk(self, prefix: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yield the files below a folder, by their names below the root, however deep."""
        self._check_usable()
        todo = [self._place.folder_of(prefix)]
        while todo:
            folder = todo.pop()
            path = f"{self._place.path}/{folder}".rstrip("/") or "/"
            after = ""
            while True:
                work = partial(_page, self._hdfs, path, prefix, after)
                page, more = await self._persist(partial(self._in_thread, work))
                for found in page:
                    last = str(found["pathSuffix"])
                    if not is_part(name_of_temporary(last) or last):
                        continue
                    if found["type"] == "DIRECTORY":
                        todo.append(f"{folder}{last}/")
                    elif found["type"] == "FILE":
                        yield f"{folder}{last}", found
                if not more or not page:
                    break
                after = str(page[-1]["pathSuffix"])

    async def abort_upload(self, upload: OpenUpload) -> None:
        """Take a temporary file away."""
        folder, _, last = self._path(upload.url).rpartition("/")
        check(name_of_temporary(upload.upload_id) == last, "This is no upload of HDFS", path=upload.url)
        await self._in_thread(partial(_delete, self._hdfs, f"{folder}/{upload.upload_id}", upload.url))

    async def close(self) -> None:
        """Let the threads end when they have done what is under way."""
        self._closed = True
        self._threads.shutdown(wait=False)


class HdfsObjectWriter(ThreadedWriter):
    """A file of HDFS that is being written under a temporary name."""

    def __init__(self, hdfs: WebHdfs, path: str, url: str, threads: ThreadPoolExecutor) -> None:
        super().__init__(url, threads)
        folder, _, last = path.rpartition("/")
        self._hdfs = hdfs
        self._path = path
        self._temporary = f"{folder}/{temporary_name(last)}"
        self._sent = 0
        self._is_gone = False
        # SYNC_BLOCK: a data node acknowledges the end of a block when it is on disk, not in its page cache.
        flags = {"overwrite": "false", "createflag": "create,sync_block"}
        place = hdfs.place("PUT", self._temporary, "CREATE", url, "begin an object", flags)
        self._stream = UploadStream(place, url)

    def _put(self, pieces: Sequence[bytes | memoryview]) -> None:
        for piece in pieces:
            size = memoryview(piece).nbytes
            if size:
                self._stream.send(piece)
                self._sent += size

    def _publish(self) -> None:
        doing = "make the object"
        self._stream.end()
        try:
            size = _head(self._hdfs, self._temporary, self._url).bytes
        except ObjectNotFoundError as error:
            raise unavailable_error(self._url, doing, "its temporary file was taken away") from error
        if size != self._sent:
            raise unavailable_error(self._url, doing, f"{self._sent} bytes were sent, and {size} have arrived")
        fields = {"destination": self._path, "renameoptions": "NONE"}
        try:
            self._hdfs.ask("PUT", self._temporary, "RENAME", self._url, doing, fields, is_change=True)
            self._is_gone = True
        except ObjectNotFoundError as error:
            # Just now it was there: something on the way has sent the request twice, or it was taken away.
            raise unknown_error(self._url, doing, "its temporary file is not there any more") from error

    def drop(self) -> None:
        """Break the stream off, and take the temporary file away."""
        if self._is_gone:
            self._stream.close()
            return
        self._is_gone = True
        try:
            # In order: a data node that has yet to make the file would make it behind the deletion.
            self._stream.end()
        except ObjectStoreError:
            pass
        self._stream.close()
        # Also where the rename's outcome is open: if it comes late, it finds nothing.
        try:
            _delete(self._hdfs, self._temporary, self._url)
        except ObjectStoreError:
            pass  # the sweep will find it


# -------------------------------------------------------------------- in threads


def _head(hdfs: WebHdfs, path: str, url: str) -> ObjectInfo:
    found = hdfs.ask("GET", path, "GETFILESTATUS", url, "tell of an object").get("FileStatus", {})
    if found.get("type") != "FILE":
        raise not_found_error(url)
    return _info(url, found)


def _read(hdfs: WebHdfs, path: str, url: str, start: int, end: int) -> memoryview:
    """Return the bytes from `start` on up to `end`, or to the end of the file. Raises RangeShortError behind it."""
    doing = "return bytes of an object"
    try:
        place = hdfs.place("GET", path, "OPEN", url, doing, {"offset": str(start), "length": str(end - start)})
    except ObjectStoreError as error:
        if "out of the range" in error.message:
            raise short_error(url, start, end - start, 0) from error
        raise
    return memoryview(hdfs.fetch(place, url, doing))


def _page(hdfs: WebHdfs, path: str, url: str, after: str) -> tuple[Sequence[dict[str, Any]], bool]:
    """Return files and folders of a folder behind the name `after`, and whether there are more; none of one that is not
    there."""
    fields = {"startAfter": after} if after else {}
    try:
        answer = hdfs.ask("GET", path, "LISTSTATUS_BATCH", url, "list objects", fields)
    except ObjectNotFoundError:
        return (), False
    listing = answer["DirectoryListing"]
    return listing["partialListing"]["FileStatuses"]["FileStatus"], bool(listing["remainingEntries"])


def _delete(hdfs: WebHdfs, path: str, url: str) -> None:
    """Delete a file; a missing one is a success."""
    try:
        hdfs.ask("DELETE", path, "DELETE", url, "delete an object", {"recursive": "false"}, is_change=True)
    except ObjectNotFoundError:
        pass


def _prune(hdfs: WebHdfs, root: str, path: str, url: str) -> None:
    """Take folders away that are empty, from the deepest one up to the root, as far as that goes."""
    folder = path.rpartition("/")[0]
    while folder.startswith(f"{root}/"):
        try:
            _delete(hdfs, folder, url)
        except ObjectStoreError:
            return  # not empty, most often
        folder = folder.rpartition("/")[0]


def _info(url: str, found: dict[str, Any]) -> ObjectInfo:
    return ObjectInfo(url, int(found["length"]), int(found["modificationTime"]))
