"""`ColdFileReader`: one cold file: its footer, fetched once, and its row groups, fetched ahead of whoever reads them.

The footer says where everything is. It comes with the last bytes of the file (`TAIL_BYTES`), and takes a second request
only where it is longer. From then on each row group, or some columns of it, is one request. Row groups are decoded in a
thread, for pyarrow gives the interpreter to others meanwhile, and the event loop goes on.

How far ahead: a look at one place costs one row group. Who goes on gets the next one on its way, then two, four: until
what is on its way, as it will be in memory, reaches the window. So readers hold a bounded part of a file, whatever its
length, and a long read keeps several requests in flight.

Fault model: a request may fail, and is tried again by the store's own policy, and then for `patience_s` by this reader:
a store that was out of reach and comes back costs time only. What comes back is checked (`files.row_groups`): damaged
bytes are an error with their place, never data (I12). A file that is not there is the caller's to explain: only the
log's metadata say whether it should be.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from dlspark.cold.files.footer import TAIL_BYTES, Footer
from dlspark.cold.files.row_groups import decode_row_group
from dlspark.cold.objects.errors import StoreUnavailableError
from dlspark.cold.objects.store import ObjectStore
from dlspark.cold.reading.shared_loads import SharedLoads
from metadata.distributedlog.cold_units import ColdFile
from metadata.foundation.tasks import end_tasks

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BYTES: Final = 32 << 20
"""Row groups that are on their way to one reader, by what they take in memory. One always may be, beside the one that
is being read."""
RETRY_S: Final = 0.5
"""Pause before a store is asked again that could not be reached."""

_log = logging.getLogger(__name__)
T = TypeVar("T")

GroupKey = tuple[str, int, tuple[str, ...]]
"""A row group of a file, and the columns of it; none: all."""


@dataclass(slots=True)
class _Ahead:
    index: int
    size: int
    task: asyncio.Task[pa.RecordBatch]


class ColdFileReader:
    """How is a cold file read? Made by `ColdFiles`, which shares one among all readers of the file on its loop.

    Args:
        store: the opened store that has it.
        file: what the log's metadata say of it.
        footers: footers that are known, by address.
        groups: row groups that are known.
        patience_s: for how long a store that cannot be reached is asked again.
    """

    def __init__(
        self,
        store: ObjectStore,
        file: ColdFile,
        footers: SharedLoads[str, Footer],
        groups: SharedLoads[GroupKey, pa.RecordBatch],
        patience_s: float = 0,
    ) -> None:
        self.file = file
        self._store = store
        self._footers = footers
        self._groups = groups
        self._patience_s = patience_s

    # ------------------------------------------------------------------ the footer

    async def footer(self) -> Footer:
        """Return the footer. Raises ObjectStoreError, DamagedColdFileError."""
        return await self._footers.get(self.file.url, self._load_footer)

    async def _load_footer(self) -> Footer:
        size = self.file.bytes
        tail = await self._last_bytes(min(TAIL_BYTES, size))
        needed = Footer.bytes_needed(tail, size, self.file.url)
        if needed > len(tail):
            tail = await self._last_bytes(needed)
        return await _in_thread(partial(Footer.parse, tail, size, self.file.url))

    async def _last_bytes(self, count: int) -> bytes:
        return bytes((await self._read([(self.file.bytes - count, count)]))[0])

    # ------------------------------------------------------------------ row groups

    async def batch(self, index: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return a row group, or these columns of it (`Footer.ranges` has how they are named). Raises ObjectStoreError,
        DamagedColdFileError."""
        footer = await self.footer()
        key = (self.file.url, index, tuple(columns or ()))
        return await self._groups.get(key, partial(self._load_group, footer, index, columns))

    async def _load_group(self, footer: Footer, index: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        ranges = footer.ranges(index, columns)
        parts = dict(zip(ranges, await self._read(ranges), strict=True))
        decode = partial(decode_row_group, footer, index, parts, columns, check_digest=columns is None)
        return await _in_thread(decode)

    async def batches(
        self,
        indices: range,
        columns: Callable[[int], Sequence[str]] | None = None,
        *,
        window_bytes: int = WINDOW_BYTES,
    ) -> AsyncGenerator[tuple[int, pa.RecordBatch], None]:
        """Yield row groups in order, each with its index, while the next ones are on their way; of each the `columns`,
        or all. Raises as `batch`."""
        footer = await self.footer()
        ahead: deque[_Ahead] = deque()
        room = 0
        following = indices.start

        def top_up(least: int) -> None:
            """Have at least so many row groups on their way, and more as far as the window allows."""
            nonlocal following
            while following < indices.stop:
                size = footer.parquet.row_group(following).total_byte_size
                if len(ahead) >= least and sum(one.size for one in ahead) + size > room:
                    return
                wanted = columns(following) if columns is not None else None
                task = asyncio.get_running_loop().create_task(self.batch(following, wanted))
                ahead.append(_Ahead(following, size, task))
                following += 1

        try:
            top_up(1)
            while ahead:
                batch = await asyncio.shield(ahead[0].task)
                one = ahead.popleft()
                # Only who comes back for more gets more ahead: the first row group is on its own.
                room = min(max(2 * room, one.size), window_bytes)
                top_up(1)
                yield one.index, batch
                del batch
        finally:
            await end_tasks([one.task for one in ahead], drop_errors=True)

    # ------------------------------------------------------------------ requests

    async def _read(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return await self._persist(lambda: self._store.read(self.file.url, ranges))

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
