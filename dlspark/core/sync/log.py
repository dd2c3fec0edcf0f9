"""The synchronous log: positions, readers, the writer, the life of its segments, and what notebooks show of it.

By hand is what differs from the asynchronous classes; the rest is made from them (`generation`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import TracebackType
from typing import Literal, overload

import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN, DLSNRange
from dlspark.core.codec.records import LogRecord
from dlspark.core.display.picture import Unit
from dlspark.core.display.status import LogPicture, LogStatus, shown
from dlspark.core.display.tail import INTERRUPTED, TailReader, open_screen
from dlspark.core.log import AsyncLog
from dlspark.core.reading.locked_reader import AsyncLockedReader
from dlspark.core.reading.reader import Start
from dlspark.core.reading.segments import Probes
from dlspark.core.runtime import Runtime, iterated
from dlspark.core.settings.settings import Settings
from dlspark.core.sync.readers import AppendReader, AppendStream, LockedReader, LogReader
from dlspark.core.sync.writer import LogWriter
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import Change
from dlspark.tables.types import Schema
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.opened_here import OpenedHere
from metadata.store import ANY_VERSION


class Log(OpenedHere):
    """Opens writers and readers of one log, finds positions in it, truncates it, and shows its state.

    `Namespace.open_log` returns it; it is `AsyncLog` for programs without an event loop.
    """

    def __init__(self, runtime: Runtime, inner: AsyncLog) -> None:
        """Use `Namespace.open_log` instead."""
        self._runtime = runtime
        self._inner = inner

    def __repr__(self) -> str:
        return f"Log({self.name!r})"

    def _repr_html_(self) -> str:
        """Return its segments as a picture; asks the metadata store, for five seconds at most, and never raises."""
        return shown(self._runtime, f"log {self.name}", self._inner.picture)

    @property
    def name(self) -> str:
        """The log's name."""
        return self._inner.name

    @property
    def probes(self) -> Probes:
        """What searches (`find_txid`) have read since this handle was opened."""
        return self._inner.probes

    def tail(self, last: int = 10, *, seconds: float | None = None, records: int | None = None) -> None:
        """Show the last records, and what comes; see `AsyncLog.tail`. An interrupt ends it without an error."""
        tail = self._runtime.run(TailReader.open(self._inner, self._inner.open_reader, last, seconds, records))
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

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- made from dlspark.core.log.AsyncLog; left out: open_segment

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._inner.closed

    @property
    def settings(self) -> Settings:
        """The settings that hold now: the namespace's, over them this log's overrides, over these dynamic settings."""
        return self._inner.settings

    def open_writer(
        self, client_id: str | None = None, *, producers: bool = False, gaps_allowed: bool = False
    ) -> LogWriter:
        """Become the log's writer; the log is created if `createStreamIfNotExists` is on and the namespace is not
        bound as federated.

        Args:
            client_id: the name that other clients see when they want the log; host and process unless given.
            producers: take requests of idempotent producers, and conditional appends (`LogWriter.append`).
            gaps_allowed: let producers leave out numbers.

        Raises:
            OwnershipAcquireFailedError: after `lockTimeoutSeconds`, with the owner's name.
            LogNotFoundError: the log does not exist, and is not to be created.
            DistributedLogError: whatever the recovery of an unfinished segment raises; nothing was written.
        """
        opened = self._runtime.run(self._inner.open_writer(client_id, producers=producers, gaps_allowed=gaps_allowed))
        return LogWriter(self._runtime, opened)

    def open_append_stream(self, client_id: str | None = None) -> AppendStream:
        """Return the end of the log as a stream of bytes; a missing log is created as by `open_writer`, and so are the
        errors.

        Raises EndOfStreamError for a stream that is sealed.
        """
        opened = self._runtime.run(self._inner.open_append_stream(client_id))
        return AppendStream(self._runtime, opened)

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

    @overload
    def open_reader(
        self, start: Start | None = None, *, subscriber: str | None, exclusive: bool, client_id: str | None = None
    ) -> LogReader: ...

    def open_reader(
        self,
        start: Start | None = None,
        *,
        subscriber: str | None = None,
        exclusive: bool = False,
        client_id: str | None = None,
    ) -> LogReader:
        """Return a reader of the log's records from `start` on; it takes no lock, unless it is to be the only one.

        Args:
            start: a DLSN (or its text), a transaction id, "earliest" (the default), "last" (the last record there is),
                or "latest" (the records to come). A position that was truncated raises at the first read.
            subscriber: be the only reader of that name; without a start it goes on at the position committed last.
            exclusive: be the only exclusive reader of the log.
            client_id: the name that other clients see when they want the lock.

        Raises:
            LogNotFoundError: the log does not exist.
            OwnershipAcquireFailedError: for a lock, after `lockTimeoutSeconds`, with the other reader's name.
            CallerError: a start or a combination that makes no sense.
        """
        opened = self._runtime.run(
            self._inner.open_reader(start, subscriber=subscriber, exclusive=exclusive, client_id=client_id)
        )
        if isinstance(opened, AsyncLockedReader):
            return LockedReader(self._runtime, opened)
        return LogReader(self._runtime, opened)

    def open_append_reader(self, position: int = 0) -> AppendReader:
        """Return the log as a stream of bytes (`open_append_stream`), from a byte on. Raises LogNotFoundError."""
        opened = self._runtime.run(self._inner.open_append_reader(position))
        return AppendReader(self._runtime, opened)

    def subscribers(self) -> dict[str, DLSN]:
        """Return all subscribers with their positions; DLSN.NON_INCLUSIVE_LOWER_BOUND for those that committed none
        yet.

        What lies below the lowest of them has been read by all. Raises LogNotFoundError.
        """
        return self._runtime.run(self._inner.subscribers())

    def commit_position(self, subscriber: str, dlsn: DLSN, *, back: bool = False) -> DLSN:
        """Store where a subscriber goes on, for readers without a lock; returns what is stored now.

        A position behind the stored one is not taken unless `back` is given. Raises LogNotFoundError, and an
        OutcomeUnknownError, after which it may be called again.
        """
        return self._runtime.run(self._inner.commit_position(subscriber, dlsn, back=back))

    def delete_subscriber(self, subscriber: str) -> None:
        """Forget a subscriber and its position; a missing one is a success.

        Raises OwnershipAcquireFailedError, with the reader's name, while a reader is open for it.
        """
        self._runtime.run(self._inner.delete_subscriber(subscriber))

    def watch_segments(self) -> Iterator[list[SegmentMetadata]]:
        """Yield the log's segments, now and after each change: a segment begins, is completed, truncated or deleted.

        Changes that come close together are seen as one. While nothing changes it makes no request; it waits while the
        metadata store cannot be reached. It ends when this handle is closed. Raises LogNotFoundError, also when the
        log is deleted.
        """
        yield from iterated(self._runtime, self._inner.watch_segments())

    def metadata(self) -> Versioned[bytes]:
        """Return the bytes that the application keeps with the log (empty where there are none), and their version.

        Raises LogNotFoundError.
        """
        return self._runtime.run(self._inner.metadata())

    def set_metadata(self, data: bytes, version: int = ANY_VERSION) -> int:
        """Keep `data` with the log, if what is there has that version; returns the new version.

        Empty bytes delete what is there. Raises LogNotFoundError; BadVersionError where another client was first and
        nothing was changed; OutcomeUnknownError only with a version: read before trying again.
        """
        return self._runtime.run(self._inner.set_metadata(data, version))

    def delete_metadata(self, version: int = ANY_VERSION) -> None:
        """Delete the application's bytes, if they have that version. Raises as `set_metadata` does."""
        self._runtime.run(self._inner.delete_metadata(version))

    def schema(self) -> Declaration | None:
        """Return what the log declares of its records, with all versions of the schema; None where it declares nothing.

        Raises LogNotFoundError.
        """
        return self._runtime.run(self._inner.schema())

    def declare_schema(
        self,
        schema: pa.Schema | Schema,
        format: RecordFormat | str = "json",
        timestamp: str | None = None,
        strict: bool = False,
        confluent: Mapping[int, object] | None = None,
        replace: bool = False,
    ) -> Declaration:
        """Declare what each record is: a row of these columns. Records are not looked at, and stay as they are.

        Args:
            schema: the columns; what is not nullable is required of each row.
            format: how a record holds a row: "json", "avro", or "arrow", where a record holds many.
            timestamp: the column that gives each record its transaction id, in milliseconds; for good.
            strict: whether reading ends at a record that does not fit, in place of a row that says why.
            confluent: as in `change_schema`.
            replace: whether it takes the place of what the log declares, with all versions, in one step.

        Raises SchemaExistsError where the log declares a schema that is not to be replaced, InvalidSchemaError,
        LogNotFoundError, RequestDeniedError where it may not be written.
        """
        return self._runtime.run(self._inner.declare_schema(schema, format, timestamp, strict, confluent, replace))

    def change_schema(
        self,
        changes: Collection[Change] = (),
        *,
        strict: bool | None = None,
        confluent: Mapping[int, object] | None = None,
    ) -> Declaration:
        """Change the log's schema, all changes in one step, and return what the log declares then.

        Args:
            changes: one after the other (`dlspark.tables.evolution`: AddColumn, DropColumn, RenameColumn and others).
            strict: as in `declare_schema`; None: as it is.
            confluent: Avro schemas by their numbers in a registry of Confluent's, beside those that are there: records
                that begin with such a number are read by them.

        What another client changes at the same time stays: the changes are made after it, or refused where they cannot
        be any more. Raises EvolutionError, InvalidSchemaError, NoSchemaError, RequestDeniedError: nothing was changed;
        OutcomeUnknownError where the metadata store stays away: look before trying again.
        """
        return self._runtime.run(self._inner.change_schema(changes, strict=strict, confluent=confluent))

    def withdraw_schema(self) -> None:
        """Take away what the log declares, with all versions; its records stay. A log without a schema is a success.

        Raises BadVersionError where another client has just changed it, LogNotFoundError, RequestDeniedError.
        """
        self._runtime.run(self._inner.withdraw_schema())

    def status(self) -> LogStatus:
        """Return the log's segments with their states, where it begins, and who writes it. Raises LogNotFoundError."""
        return self._runtime.run(self._inner.status())

    def truncate(self, dlsn: DLSN | str, *, respect_subscribers: bool = False, client_id: str | None = None) -> DLSN:
        """Hide every record below `dlsn` from readers; returns the log's first position afterwards.

        Only completed segments are truncated: where the DLSN lies in a segment that is being written, or beyond, the
        position returned is below it. It is above the DLSN where more was hidden before: a truncation is never taken
        back. DLSN.INVALID changes nothing. With `respect_subscribers` nothing is hidden that a subscriber of the log
        has still to read. No data is deleted: that is for retention.

        It uses the lock of this handle's writer where that is open, else it takes the log's lock as `client_id`. Raises
        OwnershipAcquireFailedError with the owner's name while another client writes, LogNotFoundError, LockingError
        where the lock was lost on the way. After an OutcomeUnknownError it may be called again.
        """
        return self._runtime.run(
            self._inner.truncate(dlsn, respect_subscribers=respect_subscribers, client_id=client_id)
        )

    def purge_older_than(self, txid: int, *, client_id: str | None = None) -> int:
        """Delete the oldest completed segments whose transaction ids are all below `txid`; returns how many.

        The newest completed segment always stays. Locking and errors are those of `truncate`. A ledger that cannot be
        deleted yet fails the call, and is deleted by a later one.
        """
        return self._runtime.run(self._inner.purge_older_than(txid, client_id=client_id))

    def picture(self, by: Unit = "records", *, mark: DLSNRange | None = None) -> LogPicture:
        """Return the log's segments as a picture for notebooks, in proportion to their records or bytes.

        `mark` is highlighted in it. Costs what `status` does; by bytes, one request more for each segment that is
        drawn, 60 at most. Raises LogNotFoundError.
        """
        return self._runtime.run(self._inner.picture(by, mark=mark))

    def close(self) -> None:
        """Close what was opened through this handle: writers complete their segments, readers end. Idempotent.

        A cancellation is raised only once all of it is closed. Then the first failure of a writer is raised.
        """
        if not self._runtime.closed:
            self._runtime.run(self._inner.close())

    def segments(self) -> list[SegmentMetadata]:
        """Return all segments, oldest first, truncated ones included. Raises LogNotFoundError."""
        return self._runtime.run(self._inner.segments())

    def start(self) -> DLSN:
        """Return the first position that truncation and retention have left; the end of a log without any. Raises
        LogNotFoundError."""
        return self._runtime.run(self._inner.start())

    def end(self) -> DLSN:
        """Return the next position to read once everything committed up to now has been read: an exclusive end.

        It lies in the first segment whose end is still open: what follows such a segment is not readable yet. Covers
        every record that was acknowledged before this call by a writer that is alive. Raises LogNotFoundError.
        """
        return self._runtime.run(self._inner.end())

    def first_record(self) -> LogRecord:
        """Return the first record that is left. Raises LogEmptyError."""
        return self._runtime.run(self._inner.first_record())

    def last_record(self, *, with_end_of_stream: bool = False) -> LogRecord:
        """Return the last committed record. Raises LogEmptyError."""
        return self._runtime.run(self._inner.last_record(with_end_of_stream=with_end_of_stream))

    def first_dlsn(self) -> DLSN:
        """Return the position of the first record that is left. Raises LogEmptyError."""
        return self._runtime.run(self._inner.first_dlsn())

    def first_txid(self) -> int:
        """Return the transaction id of the first record that is left. Raises LogEmptyError."""
        return self._runtime.run(self._inner.first_txid())

    def last_dlsn(self) -> DLSN:
        """Return the position of the last committed record (`end` is the one behind it). Raises LogEmptyError."""
        return self._runtime.run(self._inner.last_dlsn())

    def last_txid(self) -> int:
        """Return the transaction id of the last committed record. Raises LogEmptyError."""
        return self._runtime.run(self._inner.last_txid())

    def is_sealed(self) -> bool:
        """Return whether the log ends with an end-of-stream record. Raises LogNotFoundError."""
        return self._runtime.run(self._inner.is_sealed())

    def find_txid(self, txid: int) -> DLSN:
        """Return the position of the first record with a transaction id of `txid` or above; the end if there is none
        yet.

        Reads about log2(segments) segments' metadata and log2(entries) entries of one of them at most (P9), a few where
        ids grow evenly, none where it begins a completed segment; `probes` counts.
        Meaningful where transaction ids do not decrease, which writers ensure unless `maxIdSanityCheck` is off. Raises
        LogNotFoundError.
        """
        return self._runtime.run(self._inner.find_txid(txid))

    def find_sequence_id(self, sequence_id: int) -> DLSN:
        """Return the position of the record with this sequence id, or of the first one left behind it; the end if none
        is yet.

        Segments of metadata versions below 5 have no sequence ids; they are passed over. Raises LogNotFoundError.
        """
        return self._runtime.run(self._inner.find_sequence_id(sequence_id))

    def position(self, start: DLSN | int | str) -> DLSN:
        """Return the position that a start stands for: a DLSN or its text, a transaction id, "earliest", "last" or
        "latest".

        Raises CallerError for anything else, LogNotFoundError.
        """
        return self._runtime.run(self._inner.position(start))

    def record_count(self, start: DLSN | None = None, end: DLSN | None = None) -> int:
        """Return how many records there are from `start` to before `end`: by default, all that are left and committed.

        Whole segments are counted by their metadata. What truncation hides does not count. Raises LogNotFoundError.
        """
        return self._runtime.run(self._inner.record_count(start, end))

    def sequence_id(self, dlsn: DLSN) -> int:
        """Return the sequence id of the first record at or after `dlsn`: how many records the log had before it.

        Meaningless below metadata version 5, as upstream's: a negative number that grows. Raises AlreadyTruncatedError
        for a segment that was deleted.
        """
        return self._runtime.run(self._inner.sequence_id(dlsn))

    # --- made up to here
