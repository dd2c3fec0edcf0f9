"""`SpanEntries`: where a task gets the entries of its spans from. From where they are stored (`StoredEntries`), as a
rule: storage nodes, or the cold file of a segment; `proxy_entries` is the other way.

Whatever the way, a span gives exactly its entries, each once and in order, or raises: columns are made of what comes
without another look at whether something is missing between two entries.

Fault model: a storage node may be slow, down or answer with a damaged entry: `ReplicaReader` asks the next replica. An
entry that no replica can give is read from the segment's cold file, if the plan names one, which is how a task goes on
whose segment lost its ledger after the plan was made; else it fails the task with its position. A store of files that
is out of reach is waited for as storage nodes are (`outageTimeout`); a file that is gone fails the task.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from dlspark.core.cold.reading.locations import ColdLocation
from dlspark.core.cold.reading.places import ANYWHERE, ReadsFrom
from dlspark.core.runtime import Runtime
from dlspark.objects.errors import ObjectNotFoundError
from dlspark.spark.errors import TruncatedDataLossError
from dlspark.spark.source.planning import SegmentSpan
from metadata.foundation.errors import CallerError, DistributedLogError, InvariantViolation
from metadata.foundation.regions import region_of_task
from storage_node.client.reader import ReplicaReader
from storage_node.protocol.reading import MISSING
from storage_node.settings.client import ClientSettings

if TYPE_CHECKING:
    from dlspark.core.cold.reading.cold_files import ColdFilesHold

_log = logging.getLogger(__name__)


class SpanEntries(Protocol):
    """A source of entries for one task. Its spans are asked for one after the other, in the order of its partition."""

    def entries(self, span: SegmentSpan) -> AsyncGenerator[tuple[int, memoryview], None]:
        """Yield id and bytes of each entry of a span, `first_entry` to `last_entry` without a hole.

        Raises TruncatedDataLossError where the segment is not there any more, and what reading raises.
        """
        ...

    async def close(self) -> None:
        """End what the task has begun; what tasks share stays."""
        ...


class StoredEntries:
    """Entries from storage nodes and cold files.

    Args:
        reader: of storage nodes.
        cold: holds the stores of cold files; called where the first of them is read.
        patience_s: for how long a store is waited for that is out of reach.
        reads_from: in which region the task is.
    """

    def __init__(
        self,
        reader: ReplicaReader,
        cold: Callable[[], ColdFilesHold],
        patience_s: float = 0,
        reads_from: ReadsFrom = ANYWHERE,
    ) -> None:
        self._reader = reader
        self._cold = cold
        self._patience_s = patience_s
        self._reads_from = reads_from

    async def entries(self, span: SegmentSpan) -> AsyncGenerator[tuple[int, memoryview], None]:
        """Yield entries as `SpanEntries` does."""
        first = span.first_entry
        if span.hot is not None:
            try:
                async with aclosing(self._reader.entries(span.hot, first, span.last_entry)) as entries:
                    async for entry in entries:
                        yield entry.entry_id, entry.payload
                        first = entry.entry_id + 1
                return
            except (CallerError, InvariantViolation):
                raise
            except DistributedLogError as error:
                if span.cold is None and isinstance(error, MISSING):
                    # Each replica said so: if one were down, the error would name that node instead.
                    raise _entry_gone_error(span, error) from error
                if span.cold is None:
                    raise
                _log.info("log %s: segment %s goes on in its cold file: %s", span.log, span.lssn, error)
        if span.cold is not None:
            async with aclosing(self._cold_entries(span, span.cold, first)) as rest:
                async for entry_id, payload in rest:
                    yield entry_id, payload

    async def _cold_entries(
        self, span: SegmentSpan, location: ColdLocation, first: int
    ) -> AsyncGenerator[tuple[int, memoryview], None]:
        try:
            ledger = await self._cold().files.open(location, self._patience_s, self._reads_from)
            async with aclosing(ledger.entries(first, span.last_entry)) as entries:
                async for entry in entries:
                    yield entry.entry_id, entry.payload
        except ObjectNotFoundError as error:
            raise TruncatedDataLossError(
                f"The cold file of segment {span.lssn} is not there any more: the segment was truncated, or records of "
                "it erased, since the batch was planned",
                advice=PLAN_AGAIN,
                log=span.log,
                dlsn=f"{span.lssn}:{first}:0",
                path=error.path,
            ) from error

    async def close(self) -> None:
        """Do nothing: readers and stores are other tasks' too."""


def _entry_gone_error(span: SegmentSpan, error: DistributedLogError) -> TruncatedDataLossError:
    return TruncatedDataLossError(
        f"No storage node has this entry any more: segment {span.lssn} was deleted since the batch was planned",
        advice=PLAN_AGAIN,
        log=span.log,
        dlsn=f"{span.lssn}:{error.entry_id if error.entry_id is not None else span.first_entry}:0",
        ledger_id=span.ledger.ledger_id,
        entry_id=error.entry_id,
    )


PLAN_AGAIN: Final = (
    "Run the query again: it is planned anew, and failOnDataLoss=false then goes on at what is still there"
)


# ---------------------------------------------------------------------- what the tasks of a process share


class Closeable(Protocol):
    """A thing that a process's tasks share."""

    async def close(self) -> None:
        """End it."""
        ...


_Key = TypeVar("_Key", bound=Hashable)
_Shared = TypeVar("_Shared", bound=Closeable)


class SharedByTasks(Generic[_Key, _Shared]):
    """Readers or proxies that the tasks of this process share, by key: Spark uses its workers again, and connecting
    costs more than a small batch. Queries of one driver share their settings, so there is hardly ever more than one."""

    def __init__(self, make: Callable[[_Key], _Shared]) -> None:
        self._make = make
        self._runtime: Runtime | None = None
        self._pid = 0
        self._made: dict[_Key, _Shared] = {}

    def get(self, runtime: Runtime, key: _Key) -> _Shared:
        """Return the one of this key; it is closed with `runtime`."""
        if self._runtime is not runtime or self._pid != os.getpid():
            # After a fork, or once the runtime was closed, those of the old one are void.
            self._runtime, self._pid, self._made = runtime, os.getpid(), {}
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(key)
            closer: Callable[[], Awaitable[None]] = found.close
            runtime.on_close(closer)
        return found


def _reader(settings: ClientSettings) -> ReplicaReader:
    return ReplicaReader(settings=settings)


SHARED_READERS: Final = SharedByTasks(_reader)
"""The readers of storage nodes, by their settings."""


def _cold_files(_key: None) -> ColdFilesHold:
    # Imported late: most tasks read nothing cold, and pyarrow.parquet takes a while to load.
    from dlspark.core.cold.reading.cold_files import shared_cold_files

    return shared_cold_files().hold()


_SHARED_COLD: Final = SharedByTasks(_cold_files)


def cold_files_hold(runtime: Runtime) -> ColdFilesHold:
    """Return what holds the stores of cold files open for all tasks of this process. Called on the runtime's loop."""
    return _SHARED_COLD.get(runtime, None)


def task_reads_from(settings: ClientSettings) -> ReadsFrom:
    """Return from where a task of a query with these settings reads cold files: its own region, by its environment or
    by what the driver's settings say for all."""
    return ReadsFrom(region_of_task(settings.placement.region, os.environ) or "")
