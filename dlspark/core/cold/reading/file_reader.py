"""`ColdFileReader`: one cold file: its footer, fetched once, and its row groups, fetched ahead of whoever reads them.

The footer says where everything is. It comes with the last bytes of the file (`TAIL_BYTES`), and takes a second request
only where it is longer. From then on each row group, or some columns of it, is one request. Row groups are decoded in a
thread, for pyarrow gives the interpreter to others meanwhile, and the event loop goes on.

How far ahead: a look at one place costs one row group. Who goes on gets the next one on its way, then two, four: until
what is on its way, as it will be in memory, reaches the window. So readers hold a bounded part of a file, whatever its
length, and a long read keeps several requests in flight.

Where the log names mirrors, each part is fetched from the nearest place that gives it, and checked before it counts
(`places`). What is kept is kept by the file's own address: it is the same wherever it came from.

Fault model: a request may fail, and is tried again by the store's own policy, at other places, and then for
`patience_s` by this reader: a store that was out of reach and comes back costs time only. What comes back is checked
(`files.row_groups`): damaged bytes are an error with their place, never data (I12). A file that is not there is the
caller's to explain: only the log's metadata say whether it should be.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from dlspark.core.cold.files.digests import RecordColumns
from dlspark.core.cold.files.footer import TAIL_BYTES, Footer
from dlspark.core.cold.files.row_groups import decode_records, decode_row_group
from dlspark.core.cold.reading.places import FilePlace, FilePlaces, within
from dlspark.core.cold.reading.shared_loads import SharedLoads
from dlspark.errors import DamagedColdFileError
from dlspark.objects.errors import StoreUnavailableError
from metadata.distributedlog.cold_places import ColdFile
from metadata.foundation.tasks import end_tasks

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BYTES: Final = 32 << 20
"""Row groups that are on their way to one reader, by what they take in memory. One always may be, beside the one that
is being read."""
RETRY_S: Final = 0.5
"""Pause before a store is asked again that could not be reached."""

FOOTER_BYTES: Final = 32 << 20
"""Footers that are kept, of all files of a loop, by what they take in memory."""
RECORD_BYTES: Final = 64 << 20
"""Row groups as records that are kept, for readers that come to them soon after."""
COLUMN_BYTES: Final = 16 << 20
"""Columns of row groups that are kept."""

_log = logging.getLogger(__name__)
T = TypeVar("T")


class KnownParts:
    """Which parts of cold files are known, or on their way? One for all files of an event loop."""

    def __init__(self) -> None:
        self.footers: SharedLoads[str, Footer] = SharedLoads(FOOTER_BYTES, footer_bytes)
        """By the file's address, which is never used twice."""
        self.records: SharedLoads[tuple[str, int], RecordColumns] = SharedLoads(RECORD_BYTES, record_bytes)
        """By address and number of the row group."""
        self.columns: SharedLoads[tuple[str, int, tuple[str, ...]], pa.RecordBatch] = SharedLoads(
            COLUMN_BYTES, lambda batch: batch.nbytes
        )
        """By address, number of the row group, and columns; none of these: all."""

    async def close(self) -> None:
        """End what is being loaded, and forget the row groups; footers stay."""
        await self.columns.close()
        await self.records.close()
        await self.footers.end_loads()


def footer_bytes(footer: Footer) -> int:
    """Return about what a footer takes in memory: as stored, as Parquet has it, and its tables of entries."""
    return 4 * footer.footer_bytes + 64 * footer.entries


def record_bytes(records: RecordColumns) -> int:
    """Return what records take in memory."""
    return int(records.value.nbytes) + sum(one.nbytes for one in records.numbers)


@dataclass(slots=True)
class _Ahead(Generic[T]):
    index: int
    size: int
    task: asyncio.Task[T]


class ColdFileReader:
    """How is a cold file read? Made by `ColdFiles`.

    Args:
        places: where it is, and copies of it.
        file: what the log's metadata say of it.
        known: what is known of this file and others.
        patience_s: for how long a store that cannot be reached is asked again.
    """

    def __init__(self, places: FilePlaces, file: ColdFile, known: KnownParts, patience_s: float = 0) -> None:
        self.file = file
        self._places = places
        self._known = known
        self._patience_s = patience_s
        self._footer: Footer | None = None

    # ------------------------------------------------------------------ the footer

    async def footer(self) -> Footer:
        """Return the footer. Raises ObjectStoreError, DamagedColdFileError."""
        if self._footer is None:
            # Kept here as well: one that is too large to be shared is fetched once for each reader, not for each group.
            self._footer = await self._known.footers.get(self.file.url, self._load_footer)
        return self._footer

    async def _load_footer(self) -> Footer:
        return await self._load(self._footer_at)

    async def _footer_at(self, place: FilePlace, limit_s: float | None) -> Footer:
        size = self.file.bytes
        tail = await self._last_bytes(place, limit_s, min(TAIL_BYTES, size))
        # Named by its own address wherever it was read: it is the same file, and the one that metadata name.
        needed = Footer.bytes_needed(tail, size, self.file.url)
        if needed > len(tail):
            tail = await self._last_bytes(place, limit_s, needed)
        footer = await _in_thread(partial(Footer.parse, tail, size, self.file.url))
        if place.mirror is not None and footer.digest != self.file.digest:
            # Whole in itself, and another file: nothing but the digest tells.
            raise DamagedColdFileError("a mirror has other records under its name", url=self.file.url)
        return footer

    async def _last_bytes(self, place: FilePlace, limit_s: float | None, count: int) -> memoryview:
        return (await self._fetch(place, limit_s, [(self.file.bytes - count, count)]))[0]

    # ------------------------------------------------------------------ one row group

    async def records(self, index: int) -> RecordColumns:
        """Return the user records of a row group. Raises ObjectStoreError, DamagedColdFileError."""
        return await self._known.records.get((self.file.url, index), partial(self._load_records, index))

    async def _load_records(self, index: int) -> RecordColumns:
        footer = await self.footer()
        ranges = footer.ranges(index, footer.record_columns(index))

        async def at(place: FilePlace, limit_s: float | None) -> RecordColumns:
            parts = await self._parts(place, limit_s, ranges)
            return await _in_thread(partial(decode_records, footer, index, parts))

        return await self._load(at)

    async def batch(self, index: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return columns of a row group, or all (`Footer.ranges` has how they are named). Raises ObjectStoreError,
        DamagedColdFileError."""
        key = (self.file.url, index, tuple(columns or ()))
        return await self._known.columns.get(key, partial(self._load_columns, index, columns))

    async def _load_columns(self, index: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        footer = await self.footer()
        ranges = footer.ranges(index, columns)

        async def at(place: FilePlace, limit_s: float | None) -> pa.RecordBatch:
            parts = await self._parts(place, limit_s, ranges)
            return await _in_thread(partial(decode_row_group, footer, index, parts, columns))

        return await self._load(at)

    # ------------------------------------------------------------------ row groups ahead

    def all_records(
        self, indices: range, *, window_bytes: int = WINDOW_BYTES
    ) -> AsyncGenerator[tuple[int, RecordColumns], None]:
        """Yield the records of row groups in order, each with its index, while the next are on their way. Raises as
        `records`."""
        return self._ahead(indices, self.records, window_bytes)

    def batches(
        self, indices: range, columns: Sequence[str] | None = None, *, window_bytes: int = WINDOW_BYTES
    ) -> AsyncGenerator[tuple[int, pa.RecordBatch], None]:
        """Yield columns of row groups in order, as `all_records`. Raises as `batch`."""
        return self._ahead(indices, lambda index: self.batch(index, columns), window_bytes)

    async def _ahead(
        self, indices: range, load: Callable[[int], Coroutine[Any, Any, T]], window_bytes: int
    ) -> AsyncGenerator[tuple[int, T], None]:
        footer = await self.footer()
        ahead: deque[_Ahead[T]] = deque()
        room = 0
        following = indices.start

        def top_up() -> None:
            """Have one row group on its way, and more as far as the window allows."""
            nonlocal following
            while following < indices.stop:
                size = footer.parquet.row_group(following).total_byte_size
                if ahead and sum(one.size for one in ahead) + size > room:
                    return
                ahead.append(_Ahead(following, size, asyncio.get_running_loop().create_task(load(following))))
                following += 1

        try:
            top_up()
            while ahead:
                found = await asyncio.shield(ahead[0].task)
                one = ahead.popleft()
                # Only who comes back for more gets more ahead: the first row group comes on its own.
                room = min(max(2 * room, one.size), window_bytes)
                top_up()
                yield one.index, found
                del found
        finally:
            await end_tasks([one.task for one in ahead], drop_errors=True)

    # ------------------------------------------------------------------ requests

    async def _parts(
        self, place: FilePlace, limit_s: float | None, ranges: Sequence[tuple[int, int]]
    ) -> dict[tuple[int, int], memoryview]:
        return dict(zip(ranges, await self._fetch(place, limit_s, ranges), strict=True))

    async def _fetch(
        self, place: FilePlace, limit_s: float | None, ranges: Sequence[tuple[int, int]]
    ) -> list[memoryview]:
        wanted = sum(length for _, length in ranges)
        return await within(limit_s, wanted, lambda: place.store().read(place.url, ranges))

    async def _load(self, load: Callable[[FilePlace, float | None], Awaitable[T]]) -> T:
        return await self._persist(lambda: self._places.load(load))

    async def _persist(self, request: Callable[[], Awaitable[T]]) -> T:
        """Run a request until the store can be reached, for `patience_s` at most."""
        loop = asyncio.get_running_loop()
        since: float | None = None
        while True:
            try:
                return await request()
            except StoreUnavailableError as error:
                now = loop.time()
                if since is None:
                    since = now
                    if self._patience_s:
                        _log.warning("cold file %s cannot be read yet: %s", self.file.url, error)
                if now - since >= self._patience_s:
                    raise
            await asyncio.sleep(RETRY_S)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
