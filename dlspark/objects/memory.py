"""An object store in memory, with S3's manners and its faults: for the simulation and for tests.

`MemoryBucket` is what lies at the store: it outlives the stores that are opened on it, as a bucket outlives processes.
It has no clock but the one that it is given. A small object is put by one request, a bigger one by a multi-part upload
that stays open where its writer is gone. What is late comes some requests later, also where its writer has given up;
an upload that was aborted in the meantime makes no object.

It must never be opened by an address of settings: what it holds goes with the process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from dlspark.objects.addresses import root_of
from dlspark.objects.errors import (
    ObjectOutcomeUnknownError,
    ObjectStoreError,
    exists_error,
    not_found_error,
    refused_error,
    short_error,
    unavailable_error,
    unknown_error,
    unreached_error,
)
from dlspark.objects.memory_faults import MOST_REQUESTS_LATE, ObjectFault, ObjectFaults, StoreCall
from dlspark.objects.opened_store import READ_POLICY, OpenedStore, ReadPolicy, check_ranges
from dlspark.objects.store import ObjectInfo, OpenUpload
from metadata.foundation.errors import check

PART_BYTES: Final = 64 << 10
PAGE: Final = 100
"""Names in one answer to a listing."""


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    modified_ms: int


@dataclass(slots=True)
class _BegunUpload:
    url: str
    started_ms: int
    parts: dict[int, bytes] = field(default_factory=dict)


class MemoryBucket:
    """What lies at a store in memory, and what goes wrong there?

    Args:
        now_ms: the store's clock, milliseconds since the epoch.
        faults: what its requests meet; nothing by default.
    """

    def __init__(self, now_ms: Callable[[], int], faults: ObjectFaults | None = None) -> None:
        self.faults = faults or ObjectFaults(random.Random(0))
        self.requests = 0
        """Requests that were made of it, of every kind."""
        self._now_ms = now_ms
        self._objects: dict[str, _Stored] = {}
        self._uploads: dict[str, _BegunUpload] = {}
        self._late: list[tuple[int, Callable[[], object]]] = []

    # ------------------------------------------------------------------ what is there, for tests

    @property
    def objects(self) -> dict[str, bytes]:
        """All objects by their addresses."""
        return {url: stored.data for url, stored in self._objects.items()}

    @property
    def open_uploads(self) -> list[OpenUpload]:
        """All uploads that were begun and not ended."""
        return [OpenUpload(one.url, upload_id, one.started_ms) for upload_id, one in self._uploads.items()]

    def settle(self) -> None:
        """Have everything that is late arrive now."""
        late, self._late = self._late, []
        for _, action in late:
            _unheard(action)

    def damage(self, url: str, data: bytes) -> None:
        """Put other bytes in place of an object's, as no store should."""
        self._objects[url] = _Stored(data, self._objects[url].modified_ms)

    # ------------------------------------------------------------------ requests

    def change(
        self,
        call: StoreCall,
        url: str,
        doing: str,
        action: Callable[[], object],
        torn: Callable[[], object] | None = None,
    ) -> None:
        """Do a change as the faults will have it (`torn` does a part). Raises ObjectStoreError, also `action`'s."""
        fault = self._request(call)
        if fault is ObjectFault.REFUSED:
            raise unavailable_error(url, doing, "503 SlowDown")
        if fault is None:
            action()
            return
        if fault is ObjectFault.ANSWER_LOST:
            _unheard(action)
        elif fault is ObjectFault.TORN and torn is not None:
            _unheard(torn)
        elif fault is ObjectFault.LATE:
            due = self.requests + self.faults.rng.randint(1, MOST_REQUESTS_LATE)
            self._late.append((due, action))
        raise unknown_error(url, doing, f"the connection was lost ({fault.value})")

    def look(self, call: StoreCall, url: str, doing: str) -> ObjectFault | None:
        """Begin a read. Raises StoreUnavailableError; returns what will be wrong with its bytes."""
        fault = self._request(call)
        if fault is ObjectFault.REFUSED:
            raise unavailable_error(url, doing, "503 SlowDown")
        if fault is ObjectFault.CUT:
            raise unreached_error(url, doing, "connection reset")
        return fault

    def _request(self, call: StoreCall) -> ObjectFault | None:
        self.requests += 1
        due = [action for when, action in self._late if when <= self.requests]
        self._late = [one for one in self._late if one[0] > self.requests]
        for action in due:
            _unheard(action)
        return self.faults.draw(call)

    def get(self, url: str) -> _Stored:
        """Return an object. Raises ObjectNotFoundError."""
        stored = self._objects.get(url)
        if stored is None:
            raise not_found_error(url)
        return stored

    def put(self, url: str, data: bytes) -> None:
        """Make an object. Raises ObjectExistsError."""
        if url in self._objects:
            raise exists_error(url)
        self._objects[url] = _Stored(data, self._now_ms())

    def remove(self, url: str) -> None:
        """Take an object away; a missing one is a success."""
        self._objects.pop(url, None)

    def begin(self, upload_id: str, url: str) -> None:
        """Open an upload."""
        self._uploads[upload_id] = _BegunUpload(url, self._now_ms())

    def put_part(self, upload_id: str, url: str, number: int, data: bytes) -> None:
        """Put a part of an upload, in place of one of its number. Raises StoreRefusedError where it was ended."""
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise refused_error(url, "take a part", "404 NoSuchUpload", "It was aborted: write the object anew")
        upload.parts[number] = data

    def complete(self, upload_id: str, url: str, most_bytes: int | None = None) -> None:
        """End an upload with an object, of `most_bytes` at most. Raises ObjectOutcomeUnknownError where it was ended:
        it may have been by an earlier try to complete it."""
        if url in self._objects and upload_id in self._uploads:
            raise exists_error(url)
        upload = self._uploads.pop(upload_id, None)
        if upload is None:
            raise unknown_error(url, "make the object", "404 NoSuchUpload")
        parts = [upload.parts[number] for number in sorted(upload.parts)]
        self._objects[url] = _Stored(b"".join(parts)[:most_bytes], self._now_ms())

    def end(self, upload_id: str) -> None:
        """End an upload without an object; a missing one is a success."""
        self._uploads.pop(upload_id, None)

    def new_id(self) -> str:
        """Return an id for an upload."""
        return f"{self.faults.rng.getrandbits(64):016x}"

    def names(self, prefix: str, after: str) -> list[tuple[str, _Stored]]:
        """Return a page of the objects below `prefix` whose addresses follow `after`."""
        found = sorted(url for url in self._objects if url.startswith(prefix) and url > after)
        return [(url, self._objects[url]) for url in found[:PAGE]]


def _unheard(action: Callable[[], object]) -> None:
    """Do what comes late: its answer reaches nobody."""
    try:
        action()
    except ObjectStoreError:
        pass


def without_object(bucket: MemoryBucket, call: StoreCall, url: str, doing: str, action: Callable[[], object]) -> None:
    """Do what makes no object. Raises NotAppliedErrors only: whatever became of it, none is there."""
    try:
        bucket.change(call, url, doing, action)
    except ObjectOutcomeUnknownError as error:
        raise unavailable_error(url, doing, error.message) from error


class MemoryObjectStore(OpenedStore):
    """How does code that takes an `ObjectStore` run without one?

    Args:
        bucket: what lies at the store.
        root: the address that the store goes by, of any scheme.
        part_bytes: bigger objects are uploaded in parts of this size.
        pause: awaited at each request: others run meanwhile.
    """

    def __init__(
        self,
        bucket: MemoryBucket,
        root: str,
        *,
        part_bytes: int = PART_BYTES,
        policy: ReadPolicy = READ_POLICY,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(root_of(root), policy, bucket.faults.rng)
        self._bucket = bucket
        self._part_bytes = part_bytes
        self._pause = pause or partial(asyncio.sleep, 0)

    async def create(self, url: str) -> MemoryObjectWriter:
        """Begin to write an object."""
        self._check_usable()
        self._place.name_of(url)
        return MemoryObjectWriter(self, self._bucket, url, self._part_bytes, self._pause)

    async def persist_part(self, upload_id: str, url: str, number: int, data: bytes) -> None:
        """Put a part, again where the store did not take it: it makes no object, whatever becomes of it."""
        action = partial(self._bucket.put_part, upload_id, url, number, data)

        async def put() -> None:
            await self._pause()
            without_object(self._bucket, StoreCall.PART, url, "take a part", action)

        await self._persist(put)

    async def head(self, url: str) -> ObjectInfo:
        """Return the size and time of an object."""
        self._check_usable()
        self._place.name_of(url)

        async def ask() -> ObjectInfo:
            await self._pause()
            self._bucket.look(StoreCall.HEAD, url, "tell of an object")
            stored = self._bucket.get(url)
            return ObjectInfo(url, len(stored.data), stored.modified_ms)

        return await self._persist(ask)

    async def read(self, url: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of (offset, length) ranges."""
        self._check_usable()
        self._place.name_of(url)
        check_ranges(ranges, url)

        async def ask() -> list[memoryview]:
            await self._pause()
            fault = self._bucket.look(StoreCall.READ, url, "return bytes of an object")
            return [self._cut(url, offset, length, fault) for offset, length in ranges]

        return await self._persist(ask)

    def _cut(self, url: str, offset: int, length: int, fault: ObjectFault | None) -> memoryview:
        found = self._bucket.get(url).data[offset : offset + length]
        if fault is ObjectFault.SHORT:
            found = found[: len(found) // 2]
        if fault is ObjectFault.FLIPPED and found:
            place = self._bucket.faults.rng.randrange(len(found) * 8)
            flipped = bytearray(found)
            flipped[place // 8] ^= 1 << place % 8
            found = bytes(flipped)
        if len(found) != length:
            raise short_error(url, offset, length, len(found))
        return memoryview(found)

    async def delete(self, url: str) -> None:
        """Delete an object."""
        self._check_usable()
        self._place.name_of(url)
        await self._pause()
        self._bucket.change(StoreCall.DELETE, url, "delete the object", partial(self._bucket.remove, url))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield all objects below a folder."""
        self._check_usable()
        folder = self._place.url_of(self._place.folder_of(prefix))
        after = ""
        while page := await self._persist(partial(self._page, folder, after)):
            for url, stored in page:
                yield ObjectInfo(url, len(stored.data), stored.modified_ms)
            after = page[-1][0]

    async def _page(self, folder: str, after: str) -> Sequence[tuple[str, _Stored]]:
        await self._pause()
        self._bucket.look(StoreCall.LIST, folder, "list objects")
        return self._bucket.names(folder, after)

    async def uploads(self, prefix: str) -> AsyncIterator[OpenUpload]:
        """Yield the uploads below a folder that are open."""
        self._check_usable()
        folder = self._place.url_of(self._place.folder_of(prefix))

        async def ask() -> Sequence[OpenUpload]:
            await self._pause()
            self._bucket.look(StoreCall.UPLOADS, folder, "list uploads")
            return [one for one in self._bucket.open_uploads if one.url.startswith(folder)]

        for upload in await self._persist(ask):
            yield upload

    async def abort_upload(self, upload: OpenUpload) -> None:
        """End an upload without an object."""
        self._check_usable()
        self._place.name_of(upload.url)
        await self._pause()
        action = partial(self._bucket.end, upload.upload_id)
        self._bucket.change(StoreCall.ABORT, upload.url, "abort an upload", action)

    async def close(self) -> None:
        """Take no more calls."""
        self._closed = True


class MemoryObjectWriter:
    """An object that is being written into memory, as S3 takes it."""

    def __init__(
        self,
        store: MemoryObjectStore,
        bucket: MemoryBucket,
        url: str,
        part_bytes: int,
        pause: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._url = url
        self._part_bytes = part_bytes
        self._pause = pause
        self._waiting = bytearray()
        self._upload_id: str | None = None
        self._parts = 0
        self._ended = False

    async def write(self, data: bytes | memoryview) -> None:
        """Add bytes; whole parts go at once."""
        check(not self._ended, "An object was written to after its end", path=self._url)
        self._waiting += data
        while len(self._waiting) > self._part_bytes:
            await self._send(self._part_bytes)

    async def _send(self, length: int) -> None:
        if self._upload_id is None:
            await self._pause()
            upload_id = self._bucket.new_id()
            begin = partial(self._bucket.begin, upload_id, self._url)
            without_object(self._bucket, StoreCall.BEGIN, self._url, "begin an upload", begin)
            self._upload_id = upload_id
        self._parts += 1
        await self._store.persist_part(self._upload_id, self._url, self._parts, bytes(self._waiting[:length]))
        del self._waiting[:length]

    async def commit(self) -> None:
        """Make the object."""
        check(not self._ended, "An object was committed after its end", path=self._url)
        self._ended = True
        if self._upload_id is None:
            data = bytes(self._waiting)
            await self._pause()
            put = self._bucket.put
            self._bucket.change(
                StoreCall.PUT,
                self._url,
                "make the object",
                partial(put, self._url, data),
                partial(put, self._url, data[: len(data) // 2]),
            )
            return
        if self._waiting:
            await self._send(len(self._waiting))
        await self._pause()
        complete = partial(self._bucket.complete, self._upload_id, self._url)
        self._bucket.change(
            StoreCall.COMMIT, self._url, "make the object", complete, partial(complete, self._part_bytes)
        )

    async def abort(self) -> None:
        """Leave nothing, as far as the store can be reached."""
        self._ended = True
        upload_id, self._upload_id = self._upload_id, None
        if upload_id is None:
            return
        await self._pause()
        try:
            self._bucket.change(StoreCall.ABORT, self._url, "abort an upload", partial(self._bucket.end, upload_id))
        except ObjectStoreError:
            pass  # the sweep will find it
