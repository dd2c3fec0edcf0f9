"""`SpanEntries`: where a task gets the entries of its spans from. From storage nodes (`ReplicaEntries`), as a rule;
`proxy_entries` is the other way.

Whatever the way, a span gives exactly its entries, each once and in order, or raises: columns are made of what comes
without another look at whether something is missing between two entries.

Fault model: a storage node may be slow, down or answer with a damaged entry: `ReplicaReader` asks the next replica. An
entry that no replica can give fails the task with the entry's position.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

from dlspark.core.runtime import Runtime
from dlspark.spark.errors import TruncatedDataLossError
from dlspark.spark.source.planning import SegmentSpan
from storage_node.client.reader import ReplicaReader
from storage_node.errors import NoSuchEntryError, NoSuchLedgerError
from storage_node.protocol.reading import MISSING
from storage_node.settings.client import ClientSettings


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


class ReplicaEntries:
    """Entries from storage nodes."""

    def __init__(self, reader: ReplicaReader) -> None:
        self._reader = reader

    async def entries(self, span: SegmentSpan) -> AsyncGenerator[tuple[int, memoryview], None]:
        """Yield entries as `SpanEntries` does."""
        try:
            async for entry in self._reader.entries(span.ledger, span.first_entry, span.last_entry):
                yield entry.entry_id, entry.payload
        except MISSING as error:  # each replica said so: if one were down, the error would name that node instead
            raise _entry_gone_error(span, error) from error

    async def close(self) -> None:
        """Do nothing: the reader is other tasks' too."""


def _entry_gone_error(span: SegmentSpan, error: NoSuchEntryError | NoSuchLedgerError) -> TruncatedDataLossError:
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
