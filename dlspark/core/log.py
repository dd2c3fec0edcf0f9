"""`AsyncLog`: one log: its segments, positions in it, and its writers and readers.

Only a reader that is opened for a subscriber, or as the exclusive one, takes a lock (D18).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Literal, overload

import pyarrow as pa

from dlspark.core.append_stream import AsyncAppendReader, AsyncAppendStream, committed_length
from dlspark.core.codec.dlsn import DLSN, DLSNRange
from dlspark.core.display.picture import Unit
from dlspark.core.display.status import LogPicture, LogStatus, log_picture, log_status
from dlspark.core.display.tail import INTERRUPTED, TailReader, open_screen
from dlspark.core.lifecycle.deletion import older_than
from dlspark.core.lifecycle.owned_segments import OwnedSegments, taken
from dlspark.core.reading.locked_reader import AsyncLockedReader
from dlspark.core.reading.positions import LogPositions
from dlspark.core.reading.reader import AsyncLogReader, Start
from dlspark.core.reading.segment_list import SegmentWatch
from dlspark.core.reading.segments import Probes
from dlspark.core.reading.subscriptions import Subscriptions
from dlspark.core.services import Services
from dlspark.core.settings.settings import LiveSettings, Settings
from dlspark.core.typed.declarations import Declarations, declaration_of
from dlspark.core.write_lock import default_client_id
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import AlreadyClosedError
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import Change
from dlspark.tables.types import Schema
from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.permissions import Action
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import CallerError
from metadata.foundation.opened_here import OnOneLoop
from metadata.foundation.tasks import Once, each
from metadata.store import ANY_VERSION


class AsyncLog(OnOneLoop, LogPositions):
    """Opens writers and readers of one log, finds positions in it, truncates it, and shows its state.

    `AsyncNamespace.open_log` returns it. A handle costs nothing, and its log need not exist: LogNotFoundError comes
    when it is used. Closing it closes the writers and readers that were opened through it.
    """

    def __init__(self, services: Services, name: str, live: LiveSettings) -> None:
        """Use `AsyncNamespace.open_log` instead. `live` is closed with the log."""
        self.name = services.logs.validate_name(name)
        self.probes = Probes()
        """Counters of what searches (`find_txid` and others) have read since this handle was opened."""
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._live = live
        self._settings = live.current
        live.listen(self._settings_changed)
        self._end_measures = services.meter.open_log(self.name, live.current)
        self._open: list[AsyncLogWriter | AsyncLogReader | SegmentWatch] = []
        self._closing = Once(self._close)

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._closing.begun

    @property
    def settings(self) -> Settings:
        """The settings that hold now: the namespace's, over them this log's overrides, over these dynamic settings."""
        return self._settings

    def __repr__(self) -> str:
        return f"AsyncLog({self.name!r})"

    def _settings_changed(self, settings: Settings) -> None:
        self._settings = settings
        for opened in self._open:
            opened.use_settings(settings)

    # ------------------------------------------------------------------ writers and readers

    async def open_writer(
        self, client_id: str | None = None, *, producers: bool = False, gaps_allowed: bool = False
    ) -> AsyncLogWriter:
        """Become the log's writer; the log is created if `createStreamIfNotExists` is on and the namespace is not
        bound as federated.

        Args:
            client_id: the name that other clients see when they want the log; host and process unless given.
            producers: take requests of idempotent producers, and conditional appends (`AsyncLogWriter.append`).
            gaps_allowed: let producers leave out numbers.

        Raises:
            OwnershipAcquireFailedError: after `lockTimeoutSeconds`, with the owner's name.
            LogNotFoundError: the log does not exist, and is not to be created.
            DistributedLogError: whatever the recovery of an unfinished segment raises; nothing was written.
        """
        self._check_open()
        await self._services.permit(self.name, Action.ACQUIRE, Action.WRITE)
        services = self._services

        async def opened() -> AsyncLogWriter:
            return await AsyncLogWriter.open(
                services, self.name, self._settings, client_id, producers=producers, gaps_allowed=gaps_allowed
            )

        try:
            writer = await opened()
        except LogNotFoundError:
            if not (self._settings.create_log_if_missing and services.create_missing):
                raise
            await services.logs.ensure(self.name)
            writer = await opened()
        await self._adopt(writer)
        return writer

    async def open_append_stream(self, client_id: str | None = None) -> AsyncAppendStream:
        """Return the end of the log as a stream of bytes; a missing log is created as by `open_writer`, and so are the
        errors.

        Raises EndOfStreamError for a stream that is sealed.
        """
        writer = await self.open_writer(client_id)
        try:
            return await AsyncAppendStream.at_end(writer, self)
        except BaseException:
            await writer.abort()
            raise

    @overload
    async def open_reader(self, start: Start | None = None) -> AsyncLogReader: ...

    @overload
    async def open_reader(
        self, start: Start | None = None, *, subscriber: str, client_id: str | None = None
    ) -> AsyncLockedReader: ...

    @overload
    async def open_reader(
        self, start: Start | None = None, *, exclusive: Literal[True], client_id: str | None = None
    ) -> AsyncLockedReader: ...

    @overload
    async def open_reader(
        self, start: Start | None = None, *, subscriber: str | None, exclusive: bool, client_id: str | None = None
    ) -> AsyncLogReader: ...

    async def open_reader(
        self,
        start: Start | None = None,
        *,
        subscriber: str | None = None,
        exclusive: bool = False,
        client_id: str | None = None,
    ) -> AsyncLogReader:
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
        self._check_open()
        reader: AsyncLogReader
        if subscriber is None and not exclusive:
            if client_id is not None:
                raise CallerError("a reader without a lock has no name", advice="Give a subscriber, or exclusive=True")
            position = await self.position("earliest" if start is None else start)
            reader = AsyncLogReader(self._services.reading, self.name, self._settings, position, self.position)
        else:
            reader = await AsyncLockedReader.open(
                self._services.reading,
                self.name,
                self._settings,
                self.position,
                start=start,
                subscriber=subscriber,
                client_id=client_id,
            )
        await self._adopt(reader)
        return reader

    async def open_append_reader(self, position: int = 0) -> AsyncAppendReader:
        """Return the log as a stream of bytes (`open_append_stream`), from a byte on. Raises LogNotFoundError."""
        reader = await self.open_reader(position)
        return AsyncAppendReader(reader, position, partial(committed_length, self))

    async def _adopt(self, opened: AsyncLogWriter | AsyncLogReader) -> None:
        """Take over what took time to open. Settings may have changed meanwhile; or this handle was closed, and would
        not close what it never knew (I16): then `opened` is closed here. Raises AlreadyClosedError.
        """
        if self.closed:
            try:
                await opened.close()
            finally:
                self._check_open()
        opened.use_settings(self._settings)
        self._remember(opened)

    def _remember(self, opened: AsyncLogWriter | AsyncLogReader | SegmentWatch) -> None:
        self._open = [*(one for one in self._open if not one.closed), opened]

    # ------------------------------------------------------------------ subscribers

    @property
    def _subscriptions(self) -> Subscriptions:
        self._check_open()
        return Subscriptions(self._services.reading.logs, self.name)

    async def subscribers(self) -> dict[str, DLSN]:
        """Return all subscribers with their positions; DLSN.NON_INCLUSIVE_LOWER_BOUND for those that committed none
        yet.

        What lies below the lowest of them has been read by all. Raises LogNotFoundError.
        """
        return await self._subscriptions.positions()

    async def commit_position(self, subscriber: str, dlsn: DLSN, *, back: bool = False) -> DLSN:
        """Store where a subscriber goes on, for readers without a lock; returns what is stored now.

        A position behind the stored one is not taken unless `back` is given. Raises LogNotFoundError, and an
        OutcomeUnknownError, after which it may be called again.
        """
        return await self._subscriptions.commit(subscriber, dlsn, back=back)

    async def delete_subscriber(self, subscriber: str) -> None:
        """Forget a subscriber and its position; a missing one is a success.

        Raises OwnershipAcquireFailedError, with the reader's name, while a reader is open for it.
        """
        await self._subscriptions.delete(subscriber)

    # ------------------------------------------------------------------ changes

    async def watch_segments(self) -> AsyncGenerator[list[SegmentMetadata], None]:
        """Yield the log's segments, now and after each change: a segment begins, is completed, truncated or deleted.

        Changes that come close together are seen as one. While nothing changes it makes no request; it waits while the
        metadata store cannot be reached. It ends when this handle is closed. Raises LogNotFoundError, also when the
        log is deleted.
        """
        self._check_open()
        watch = SegmentWatch(self._services.reading, self.name, self._settings)
        self._remember(watch)
        async with aclosing(watch.changes()) as changes:
            async for segments in changes:
                yield segments

    # ------------------------------------------------------------------ the application's own bytes

    async def metadata(self) -> Versioned[bytes]:
        """Return the bytes that the application keeps with the log (empty where there are none), and their version.

        Raises LogNotFoundError.
        """
        self._check_open()
        return await LogAdmin(self._services.logs).metadata(self.name)

    async def set_metadata(self, data: bytes, version: int = ANY_VERSION) -> int:
        """Keep `data` with the log, if what is there has that version; returns the new version.

        Empty bytes delete what is there. Raises LogNotFoundError; BadVersionError where another client was first and
        nothing was changed; OutcomeUnknownError only with a version: read before trying again.
        """
        self._check_open()
        return await LogAdmin(self._services.logs).set_metadata(self.name, data, version)

    async def delete_metadata(self, version: int = ANY_VERSION) -> None:
        """Delete the application's bytes, if they have that version. Raises as `set_metadata` does."""
        await self.set_metadata(b"", version)

    # ------------------------------------------------------------------ what its records are

    async def schema(self) -> Declaration | None:
        """Return what the log declares of its records, with all versions of the schema; None where it declares nothing.

        Raises LogNotFoundError.
        """
        self._check_open()
        found = await self._declarations.find()
        return None if found is None else found.declaration

    async def declare_schema(
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
        declaration = declaration_of(schema, format, timestamp=timestamp, strict=strict, confluent=confluent)
        await self._permit_declaring()
        await self._declarations.declare(declaration, replace=replace)
        return declaration

    async def change_schema(
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
        await self._permit_declaring()
        return await self._declarations.change(changes, strict=strict, confluent=confluent)

    async def withdraw_schema(self) -> None:
        """Take away what the log declares, with all versions; its records stay. A log without a schema is a success.

        Raises BadVersionError where another client has just changed it, LogNotFoundError, RequestDeniedError.
        """
        await self._permit_declaring()
        await self._declarations.withdraw()

    @property
    def _declarations(self) -> Declarations:
        return Declarations(self._services.logs, self.name)

    async def _permit_declaring(self) -> None:
        self._check_open()
        # What the records are is for those to say who may write them.
        await self._services.permit(self.name, Action.WRITE)

    # ------------------------------------------------------------------ life cycle

    async def status(self) -> LogStatus:
        """Return the log's segments with their states, where it begins, and who writes it. Raises LogNotFoundError."""
        self._check_open()
        return await log_status(self._services, self.name)

    async def truncate(
        self, dlsn: DLSN | str, *, respect_subscribers: bool = False, client_id: str | None = None
    ) -> DLSN:
        """Hide every record below `dlsn` from readers; returns the log's first position afterwards.

        Only completed segments are truncated: where the DLSN lies in a segment that is being written, or beyond, the
        position returned is below it. It is above the DLSN where more was hidden before: a truncation is never taken
        back. DLSN.INVALID changes nothing. With `respect_subscribers` nothing is hidden that a subscriber of the log
        has still to read. No data is deleted: that is for retention.

        It uses the lock of this handle's writer where that is open, else it takes the log's lock as `client_id`. Raises
        OwnershipAcquireFailedError with the owner's name while another client writes, LogNotFoundError, LockingError
        where the lock was lost on the way. After an OutcomeUnknownError it may be called again.
        """
        self._check_open()
        await self._services.permit(self.name, Action.TRUNCATE)
        async with self._owned(client_id) as owned:
            return await owned.truncate(dlsn, respect_subscribers=respect_subscribers)

    async def purge_older_than(self, txid: int, *, client_id: str | None = None) -> int:
        """Delete the oldest completed segments whose transaction ids are all below `txid`; returns how many.

        The newest completed segment always stays. Locking and errors are those of `truncate`. A ledger that cannot be
        deleted yet fails the call, and is deleted by a later one.
        """
        if isinstance(txid, bool) or not isinstance(txid, int) or txid < 0:
            raise CallerError(
                f"{txid!r} is not a transaction id; nothing was purged",
                advice="Give the lowest transaction id to keep; dlspark log delete deletes everything",
            )
        self._check_open()
        await self._services.permit(self.name, Action.TRUNCATE)
        async with self._owned(client_id) as owned:
            return await owned.purge(lambda segments: older_than(segments, txid))

    @asynccontextmanager
    async def _owned(self, client_id: str | None) -> AsyncIterator[OwnedSegments]:
        """Yield the log's segments, under the lock of this handle's writer, or under the lock taken for the block."""
        self._check_open()
        for one in self._open:
            if isinstance(one, AsyncLogWriter) and not one.closed and one.owned.lock.held:
                yield one.owned
                return
        async with taken(self._services, self.name, self._settings, client_id or default_client_id()) as owned:
            yield owned

    # ------------------------------------------------------------------ for people

    async def tail(self, last: int = 10, *, seconds: float | None = None, records: int | None = None) -> None:
        """Show the last `last` records; with `seconds` or `records` also those that come, until either is over.

        In a notebook that is a table that changes in place, elsewhere a line for each record. Raises CallerError,
        LogNotFoundError, and what its reader raises.
        """
        tail = await TailReader.open(self, self.open_reader, last, seconds, records)
        try:
            screen = open_screen(self.name, last)
            try:
                while (more := await tail.more()) is not None:
                    screen.add(more)
            except BaseException as error:
                screen.end(type(error).__name__ if isinstance(error, Exception) else INTERRUPTED)
                raise
            screen.end(tail.ending)
        finally:
            await tail.close()

    async def picture(self, by: Unit = "records", *, mark: DLSNRange | None = None) -> LogPicture:
        """Return the log's segments as a picture for notebooks, in proportion to their records or bytes.

        `mark` is highlighted in it. Costs what `status` does; by bytes, one request more for each segment that is
        drawn, 60 at most. Raises LogNotFoundError.
        """
        self._check_open()
        return await log_picture(self._services, self.name, by, mark)

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        """Close what was opened through this handle: writers complete their segments, readers end. Idempotent.

        A cancellation is raised only once all of it is closed. Then the first failure of a writer is raised.
        """
        self._check_loop()
        await self._closing.run()

    async def _close(self) -> None:
        self._live.close()
        opened, self._open = self._open, []
        try:
            # What is closed already has raised its failure to its own caller.
            await each([one.close for one in opened if not one.closed])
        finally:
            self._end_measures()

    async def __aenter__(self) -> AsyncLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        self._check_loop()
        if self.closed:
            raise AlreadyClosedError("the log was closed", log=self.name, advice="Open it again")
