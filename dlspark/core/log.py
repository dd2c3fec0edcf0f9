"""`AsyncLog`: one log: its segments, positions in it, and its writers and readers."""

from __future__ import annotations

from types import TracebackType

from dlspark.core.dlsn import DLSN
from dlspark.core.reader import AsyncLogReader
from dlspark.core.records import LogRecord
from dlspark.core.segments import Probes, SegmentReader, choose_segment, first_active, is_truncated
from dlspark.core.services import Services
from dlspark.core.settings import LiveSettings, Settings
from dlspark.core.writer import AsyncLogWriter
from dlspark.errors import AlreadyClosedError, CallerError, LogEmptyError
from metadata.logs import SegmentMetadata

EARLIEST = "earliest"
LATEST = "latest"


class AsyncLog:
    """A handle on a log. Opening one costs nothing; whether the log exists shows when it is used."""

    def __init__(self, services: Services, name: str, live: LiveSettings) -> None:
        """`live` is closed with the log."""
        self.name = services.logs.validate_name(name)
        self.probes = Probes()
        """What searches (`find_txid`) have read since this handle was opened."""
        self._services = services
        self._live = live
        self._settings = live.current
        live.listen(self._settings_changed)
        self._open: list[AsyncLogWriter | AsyncLogReader] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def settings(self) -> Settings:
        """What holds now: the namespace's settings, this log's overrides, and over them its dynamic settings."""
        return self._settings

    def _settings_changed(self, settings: Settings) -> None:
        self._settings = settings
        for opened in self._open:
            opened.use_settings(settings)

    # ------------------------------------------------------------------ positions

    async def segments(self) -> list[SegmentMetadata]:
        """All segments, oldest first, truncated ones included. Raises LogNotFoundError."""
        self._check_open()
        return await self._services.logs.segments(self.name)

    async def open_segment(self, segment: SegmentMetadata) -> SegmentReader:
        """One segment's entries. An in-progress segment is opened without disturbing its writer. Close it after use."""
        self._check_open()
        ledger = await self._services.ledgers.open(segment.ledger_id, password=self._settings.password, recover=False)
        return SegmentReader(segment, ledger, self.probes)

    async def start(self) -> DLSN:
        """The first position that is left."""
        for segment in await self.segments():
            if self._settings.ignore_truncation:
                return DLSN(segment.lssn, 0, 0)
            if not is_truncated(segment):
                return first_active(segment)
        return await self.end()

    async def end(self) -> DLSN:
        """The next position to read once everything committed up to now has been read: an exclusive end.

        It lies in the first segment whose end is still open: what follows such a segment is not readable yet.
        """
        segments = await self.segments()
        if not segments:
            return DLSN.INITIAL
        for segment in segments:
            if not segment.in_progress:
                continue
            reader = await self.open_segment(segment)
            try:
                lac = await reader.refresh()
                if not reader.settled:
                    return DLSN(segment.lssn, lac + 1, 0)
            finally:
                await reader.close()
        return DLSN(segments[-1].lssn + 1, 0, 0)

    async def find_txid(self, txid: int) -> DLSN:
        """The position of the first record with a transaction id of `txid` or above; the end if there is none yet.

        Reads about log2(entries) entries of one segment, whatever the log's length (P9); `probes` counts them.
        Meaningful where transaction ids do not decrease, which writers ensure unless told not to.
        """
        segments = await self.segments()
        active = segments if self._settings.ignore_truncation else [s for s in segments if not is_truncated(s)]
        for segment in active[choose_segment(active, txid) :]:
            self.probes.segments += 1
            reader = await self.open_segment(segment)
            try:
                searched = reader.lac
                settled = reader.settled
                found = await reader.locate_txid(txid)
            finally:
                await reader.close()
            if found is None and not settled:
                # What came meanwhile, here and behind, has not been looked at: it may be what is looked for.
                found = (searched + 1, 0)
            if found is not None:
                dlsn = DLSN(segment.lssn, *found)
                return dlsn if self._settings.ignore_truncation else max(dlsn, first_active(segment))
        return DLSN(segments[-1].lssn + 1, 0, 0) if segments else DLSN.INITIAL

    async def first_record(self) -> LogRecord:
        """The first record that is left. Raises LogEmptyError."""
        for segment in await self.segments():
            if is_truncated(segment) or not (segment.in_progress or segment.record_count):
                continue
            reader = await self.open_segment(segment)
            try:
                settled = reader.settled
                record = await reader.first_user_record(first_active(segment))
            finally:
                await reader.close()
            if record is not None:
                return record
            if not settled:
                break  # its first record is not readable yet, and what lies behind is not the first
        raise self._empty()

    async def last_record(self, *, with_end_of_stream: bool = False) -> LogRecord:
        """The last committed record. Raises LogEmptyError."""
        for segment in reversed(await self.segments()):
            if is_truncated(segment):
                break
            reader = await self.open_segment(segment)
            try:
                await reader.refresh()
                record = await reader.last_user_record(with_end_of_stream=with_end_of_stream)
            finally:
                await reader.close()
            if record is not None:
                return record
        raise self._empty()

    async def is_sealed(self) -> bool:
        """Whether an end-of-stream record is the last one."""
        try:
            return (await self.last_record(with_end_of_stream=True)).is_end_of_stream
        except LogEmptyError:
            return False

    def _empty(self) -> LogEmptyError:
        return LogEmptyError("the log has no records", log=self.name)

    # ------------------------------------------------------------------ writing, reading

    async def open_writer(self, client_id: str | None = None) -> AsyncLogWriter:
        """Become the log's writer; the log is created if `createStreamIfNotExists` is on.

        `client_id` names this writer to others who want the log. Raises OwnershipAcquireFailedError with the owner's
        name after `lockTimeoutSeconds`, LogNotFoundError, and what recovering an unfinished segment raises.
        """
        self._check_open()
        if self._settings.create_log_if_missing:
            await self._services.logs.ensure(self.name)
        writer = await AsyncLogWriter.open(self._services, self.name, self._settings, client_id)
        writer.use_settings(self._settings)  # They may have changed while it was being opened.
        self._remember(writer)
        return writer

    async def open_reader(self, start: DLSN | int | str = EARLIEST) -> AsyncLogReader:
        """A reader from `start`: a DLSN (or its text), a transaction id, "earliest", or "latest" (what comes next).

        Raises LogNotFoundError. That a position was truncated shows at the first read.
        """
        self._check_open()
        reader = AsyncLogReader(self._services, self.name, self._settings, await self._position(start))
        self._remember(reader)
        return reader

    async def _position(self, start: DLSN | int | str) -> DLSN:
        if isinstance(start, DLSN):
            await self._require()
            return start
        if isinstance(start, bool) or not isinstance(start, int | str):
            raise CallerError(f"{start!r} is not a position", advice="Give a DLSN, a transaction id or 'earliest'")
        if isinstance(start, int):
            return await self.find_txid(start)
        if start == LATEST:
            return await self.end()
        await self._require()
        return DLSN.INITIAL if start == EARLIEST else DLSN.parse(start)

    async def _require(self) -> None:
        """Raise LogNotFoundError unless the log exists."""
        await self._services.logs.open(self.name)

    def _remember(self, opened: AsyncLogWriter | AsyncLogReader) -> None:
        self._open = [*(one for one in self._open if not one.closed), opened]

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        """Close what was opened through this handle: writers complete their segment, readers end. Idempotent."""
        self._closed = True
        self._live.close()
        opened, self._open = self._open, []
        errors: list[BaseException] = []
        for one in opened:
            if one.closed:
                continue  # Its user has seen how that ended.
            try:
                await one.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def __aenter__(self) -> AsyncLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError("the log was closed", log=self.name, advice="Open it again")
