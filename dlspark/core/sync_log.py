"""The synchronous log: positions, readers, the writer, the life of its segments, and what notebooks show of it.

What each method does and raises is said at its asynchronous twin; here stands only what differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Literal, overload

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.dlsn_range import DLSNRange
from dlspark.core.codec.records import LogRecord
from dlspark.core.display.inquiries import shown
from dlspark.core.display.objects import LogPicture
from dlspark.core.display.picture import Unit
from dlspark.core.display.tail import INTERRUPTED, Tail, open_screen
from dlspark.core.lifecycle.status import LogStatus
from dlspark.core.log import AsyncLog
from dlspark.core.reading.reader import Start
from dlspark.core.reading.segments import Probes
from dlspark.core.runtime import Runtime
from dlspark.core.settings import Settings
from dlspark.core.sync_readers import AppendReader, AppendStream, LockedReader, LogReader
from dlspark.core.sync_writer import LogWriter
from metadata.ledgers import Versioned
from metadata.logs import SegmentMetadata
from metadata.store import ANY_VERSION


class Log:
    """One log, synchronously."""

    def __init__(self, runtime: Runtime, inner: AsyncLog) -> None:
        """Used by `Namespace.open_log`."""
        self._runtime = runtime
        self._inner = inner

    def __repr__(self) -> str:
        return f"Log({self.name!r})"

    def _repr_html_(self) -> str:
        """Its segments as a picture; asks the metadata store, for five seconds at most, and never raises."""
        return shown(self._runtime, f"log {self.name}", self._inner.picture)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def settings(self) -> Settings:
        return self._inner.settings

    def status(self) -> LogStatus:
        return self._runtime.run(self._inner.status())

    def truncate(self, dlsn: DLSN | str, *, respect_subscribers: bool = False, client_id: str | None = None) -> DLSN:
        return self._runtime.run(
            self._inner.truncate(dlsn, respect_subscribers=respect_subscribers, client_id=client_id)
        )

    def purge_older_than(self, txid: int, *, client_id: str | None = None) -> int:
        return self._runtime.run(self._inner.purge_older_than(txid, client_id=client_id))

    def metadata(self) -> Versioned[bytes]:
        return self._runtime.run(self._inner.metadata())

    def set_metadata(self, data: bytes, version: int = ANY_VERSION) -> int:
        return self._runtime.run(self._inner.set_metadata(data, version))

    def delete_metadata(self, version: int = ANY_VERSION) -> None:
        self._runtime.run(self._inner.delete_metadata(version))

    def open_writer(self, client_id: str | None = None) -> LogWriter:
        return LogWriter(self._runtime, self._runtime.run(self._inner.open_writer(client_id)))

    @property
    def probes(self) -> Probes:
        return self._inner.probes

    def segments(self) -> list[SegmentMetadata]:
        return self._runtime.run(self._inner.segments())

    def watch_segments(self) -> Iterator[list[SegmentMetadata]]:
        """The log's segments, now and after each change; waits for as long as it takes, until the log is closed."""
        changes = self._inner.watch_segments()

        async def following() -> list[SegmentMetadata] | None:
            return await anext(changes, None)

        try:
            while (segments := self._runtime.run(following())) is not None:
                yield segments
        finally:
            if not self._runtime.closed:
                self._runtime.run(changes.aclose())

    def position(self, start: Start) -> DLSN:
        return self._runtime.run(self._inner.position(start))

    def start(self) -> DLSN:
        return self._runtime.run(self._inner.start())

    def end(self) -> DLSN:
        return self._runtime.run(self._inner.end())

    def find_txid(self, txid: int) -> DLSN:
        return self._runtime.run(self._inner.find_txid(txid))

    def find_sequence_id(self, sequence_id: int) -> DLSN:
        return self._runtime.run(self._inner.find_sequence_id(sequence_id))

    def sequence_id(self, dlsn: DLSN) -> int:
        return self._runtime.run(self._inner.sequence_id(dlsn))

    def record_count(self, start: DLSN | None = None, end: DLSN | None = None) -> int:
        return self._runtime.run(self._inner.record_count(start, end))

    def first_record(self) -> LogRecord:
        return self._runtime.run(self._inner.first_record())

    def last_record(self, *, with_end_of_stream: bool = False) -> LogRecord:
        return self._runtime.run(self._inner.last_record(with_end_of_stream=with_end_of_stream))

    def first_dlsn(self) -> DLSN:
        return self._runtime.run(self._inner.first_dlsn())

    def first_txid(self) -> int:
        return self._runtime.run(self._inner.first_txid())

    def last_dlsn(self) -> DLSN:
        return self._runtime.run(self._inner.last_dlsn())

    def last_txid(self) -> int:
        return self._runtime.run(self._inner.last_txid())

    def is_sealed(self) -> bool:
        return self._runtime.run(self._inner.is_sealed())

    @overload
    def open_reader(self, start: Start | None = None) -> LogReader: ...

    @overload
    def open_reader(
        self, start: Start | None = None, *, subscriber: str, client_id: str | None = None
    ) -> LockedReader: ...

    @overload
    def open_reader(
        self, start: Start | None = None, *, exclusive: Literal[True], client_id: str | None = None
    ) -> LockedReader: ...

    def open_reader(
        self,
        start: Start | None = None,
        *,
        subscriber: str | None = None,
        exclusive: bool = False,
        client_id: str | None = None,
    ) -> LogReader:
        if subscriber is not None:
            reading = self._inner.open_reader(start, subscriber=subscriber, client_id=client_id)
            return LockedReader(self._runtime, self._runtime.run(reading))
        if exclusive:
            return LockedReader(
                self._runtime,
                self._runtime.run(self._inner.open_reader(start, exclusive=True, client_id=client_id)),
            )
        return LogReader(self._runtime, self._runtime.run(self._inner.open_reader(start)))

    def open_append_stream(self, client_id: str | None = None) -> AppendStream:
        return AppendStream(self._runtime, self._runtime.run(self._inner.open_append_stream(client_id)))

    def open_append_reader(self, position: int = 0) -> AppendReader:
        return AppendReader(self._runtime, self._runtime.run(self._inner.open_append_reader(position)))

    def tail(self, last: int = 10, *, seconds: float | None = None, records: int | None = None) -> None:
        """Show the last records, and what comes; see `AsyncLog.tail`. An interrupt ends it without an error."""
        tail = self._runtime.run(Tail.open(self._inner, last, seconds, records))
        try:
            screen = open_screen(self._inner.name, last)
            try:
                while (more := self._runtime.run(tail.more())) is not None:
                    screen.add(more)
            except KeyboardInterrupt:
                screen.end(INTERRUPTED)
            except Exception as error:
                screen.end(type(error).__name__)
                raise
            else:
                screen.end(tail.ending)
        finally:
            if not self._runtime.closed:
                self._runtime.run(tail.close())

    def picture(self, by: Unit = "records", *, mark: DLSNRange | None = None) -> LogPicture:
        return self._runtime.run(self._inner.picture(by, mark=mark))

    def subscribers(self) -> dict[str, DLSN]:
        return self._runtime.run(self._inner.subscribers())

    def commit_position(self, subscriber: str, dlsn: DLSN, *, back: bool = False) -> DLSN:
        return self._runtime.run(self._inner.commit_position(subscriber, dlsn, back=back))

    def delete_subscriber(self, subscriber: str) -> None:
        self._runtime.run(self._inner.delete_subscriber(subscriber))

    def close(self) -> None:
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
