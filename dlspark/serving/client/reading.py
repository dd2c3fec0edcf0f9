"""`AsyncProxyReader`: a log's records through proxies, in order, each once, and at the growing tail. `ReadRoutes`: the
proxies that a client's readers ask, and over which connections.

The position is the client's: each poll names the DLSN to read next, and its delivery says where to go on. So any proxy
can answer the next poll, and one that dies loses nothing: the same position is asked of another. The next poll is sent
as soon as a delivery has come, before that one is consumed: while a program works on one delivery, the next one is on
its way. There are never more than these two. A reader that knows where it will end asks for nothing behind that
(`ahead_until`).

There are no owners here: a log is read at the proxy that its hash gives it, so that the readers of all clients share
what that proxy has read, and goes on at the next one where that fails. A proxy that reads its share of all logs already
names another one, which is asked then. Where a stream was last read is remembered apart from its owner.

What a poll may bring counts against its connection at the proxy, for as long as the poll waits. So readers have
connections of their own, `READERS_PER_CONNECTION` each: what they ask for together is half of what a proxy lets one
connection have under way. A connection whose readers are gone is closed.

Fault model: proxies die, stop, and refuse; deliveries may be ill-formed. What a delivery claims is checked before
anything of it is handed out: it must not go back, and its records must lie between where it begins and where it ends
(I4, I12). An error leaves the reader where it is: the next call asks again for what was not delivered. Nothing is read
twice or passed over in silence.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.errors import EndOfStreamError, ReadCancelledError, ReadError
from dlspark.serving.client.dispatch import Dispatcher, InFlightRequest
from dlspark.serving.client.ownership import ReadPlaces
from dlspark.serving.client.requests import Cancellable, Finished
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.protocol.deliveries import StoredEntry, batches_of, decode_stored, position_behind, records_of
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import Answer, Delivery, ReadBatch, ReadForm, ReadFrom, Refusal
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.routing.own_region import ReadRoute
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.foundation.opened_here import OnOneLoop
from storage_node.errors import ProtocolError

if TYPE_CHECKING:
    import pyarrow as pa


_T = TypeVar("_T")

READ_BYTES: Final = 512 * 1024
"""About what one poll brings."""
POLL_MS: Final = 10_000
"""How long a proxy keeps a poll at the end of the log."""
NAMED_STARTS: Final = {"earliest": ReadFrom.OLDEST, "latest": ReadFrom.LATEST}
FORMS: Final = {form.name.lower(): form for form in ReadForm}
ProxyStart: TypeAlias = "DLSN | int | str"
"""Where to begin: a DLSN or its text, a transaction id, "earliest" or "latest"."""


PollSender: TypeAlias = "Callable[[ReadBatch, Callable[[Answer], None], int], Cancellable]"
"""Takes a poll through proxies, on this connection. Its second argument is called once, perhaps before it returns; a
refusal that it gets is final."""


def read_start(start: ProxyStart) -> DLSN | int | ReadFrom:
    """Return a start as users write it, as proxies take it. Raises CallerError."""
    if isinstance(start, str):
        named = NAMED_STARTS.get(start)
        return DLSN.parse(start) if named is None else named
    if isinstance(start, DLSN) or (isinstance(start, int) and not isinstance(start, bool)):
        return start
    raise CallerError(f"{start!r} is not a start", advice="Give a DLSN, a transaction id, 'earliest' or 'latest'")


def read_form(form: str | ReadForm) -> ReadForm:
    """Return a form by its name. Raises CallerError."""
    found = form if isinstance(form, ReadForm) else FORMS.get(form.lower())
    if found is None:
        raise CallerError(f"{form!r} is not a form", advice=f"There are {', '.join(FORMS)}")
    return found


class AsyncProxyReader(OnOneLoop):
    """Reads one log through proxies: record by record, in bulk, as entries or as Arrow batches, and waits at the tail.

    Open it with `AsyncClient.reader`, which documents its arguments, and close it. One read at a time; reads of several
    tasks wait for each other. An error leaves the reader where it is: the next read asks again.

    Args:
        ask: takes a poll through proxies.
        name: the log.
        start: where to begin.
        form: what deliveries hold.
        number: tells a client's readers apart.
        connection: the one to use to each proxy.
        max_bytes: about what one poll brings.
        poll_ms: how long a proxy keeps a poll at the end of the log.
        ended: called by `close`.
    """

    def __init__(
        self,
        ask: PollSender,
        name: str,
        start: ProxyStart,
        *,
        form: str | ReadForm = ReadForm.RECORDS,
        number: int = 0,
        connection: int = 0,
        max_bytes: int = READ_BYTES,
        poll_ms: int = POLL_MS,
        ended: Callable[[AsyncProxyReader], None] | None = None,
    ) -> None:
        self.name = name
        self._ask = ask
        self._request = ReadBatch(
            name, read_start(start), reader=number, form=read_form(form), max_bytes=max_bytes, wait_ms=poll_ms
        )
        self._connection = connection
        self._ended = ended
        self._asking: Cancellable | None = None
        self._ahead: asyncio.Future[Delivery] | None = None
        self._records: deque[LogRecord] = deque()
        self._position: ProxyStart = start
        self._sealed = False
        self._loop = asyncio.get_running_loop()
        self._one_read = asyncio.Lock()
        self._closed = False
        self.ahead_until: DLSN | None = None
        """Behind this nothing is asked for before it is wanted; None: one poll is always ahead."""

    @property
    def position(self) -> ProxyStart:
        """Where another reader has to start to go on behind the last record delivered: its own start before the first
        delivery, and a DLSN from then on."""
        return self._position

    @property
    def form(self) -> ReadForm:
        """What deliveries hold."""
        return self._request.form

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # ------------------------------------------------------------------ for users

    async def read_next(self) -> LogRecord:
        """Return the next record; waits at the tail. Raises EndOfStreamError behind the last record of a sealed log.

        Raises AlreadyTruncatedError where the position was truncated: its advice says from where there are records, and
        `skip_to` goes there. Any other error may pass: the next call asks again. In the form ARROW: CallerError.
        """
        while not self._records:
            delivery, records = await self._next(self._decoded)
            self._records.extend(records)
            if not records:
                self._position = delivery.next
        return self._deliver()

    async def read_bulk(self, count: int) -> list[LogRecord]:
        """Return up to `count` records: waits for the first, and takes as many as have come with it. Raises as
        `read_next`."""
        if count < 1:
            return []
        found = [await self.read_next()]
        while self._records and len(found) < count:
            found.append(self._deliver())
        return found

    async def next_entries(self) -> list[StoredEntry]:
        """Return the next entries as they are stored, those without records of a user too; waits at the tail. In the
        form ENTRIES only. Raises as `read_next`."""
        while True:
            entries = await self.poll_entries()
            if entries:
                return entries

    async def poll_entries(self) -> list[StoredEntry]:
        """Return what one poll brings: as `next_entries`, but perhaps nothing."""
        self._check_form(ReadForm.ENTRIES)
        delivery, entries = await self._next(lambda one: [decode_stored(part) for part in one.parts])
        self._position = delivery.next
        return entries

    async def next_batches(self) -> list[pa.RecordBatch]:
        """Return the next records as Arrow batches; waits at the tail. In the form ARROW only. Raises as
        `read_next`."""
        self._check_form(ReadForm.ARROW)
        while True:
            delivery, batches = await self._next(batches_of)
            self._position = delivery.next
            if batches:
                return batches

    async def records(self) -> AsyncIterator[LogRecord]:
        """Yield records for ever, waiting at the tail, until the log is sealed."""
        while True:
            try:
                record = await self.read_next()
            except EndOfStreamError:
                return
            yield record

    def __aiter__(self) -> AsyncIterator[LogRecord]:
        return self.records()

    async def skip_to(self, start: ProxyStart) -> None:
        """Go on at another position, forwards or back. What was read ahead is dropped. Raises CallerError."""
        wanted = read_start(start)
        self._check_loop()
        async with self._one_read:
            self._check_open()
            self._drop_ahead()
            self._records.clear()
            self._sealed = False
            self._request = replace(self._request, start=wanted)
            self._position = start

    async def close(self) -> None:
        """Ask no further; a read that waits gets ReadCancelledError. Idempotent."""
        if self._closed:
            return
        self._check_loop()
        self._closed = True
        ahead = self._ahead
        self._drop_ahead()
        if ahead is not None and not ahead.done():
            ahead.set_exception(ReadCancelledError("the reader was closed", log=self.name))
            ahead.exception()  # nobody may be waiting
        if self._ended is not None:
            self._ended(self)

    async def __aenter__(self) -> AsyncProxyReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ polls

    async def _next(self, decode: Callable[[Delivery], _T]) -> tuple[Delivery, _T]:
        """Return the next delivery, checked and decoded; the poll behind it is on its way when this returns."""
        self._check_loop()
        async with self._one_read:
            self._check_open()
            if self._sealed:
                raise EndOfStreamError("the log is sealed, and all its records were delivered", log=self.name)
            if self._ahead is None:
                self._poll()
            ahead = self._ahead
            if ahead is None:
                raise ReadCancelledError("the reader was closed", log=self.name)
            try:
                # Shielded: a caller that gives up leaves the poll for the next one.
                delivery = await asyncio.shield(ahead)
                self._check(delivery)
                decoded = decode(delivery)  # before the position moves: what cannot be decoded is asked for again
            except DistributedLogError:
                self._ahead = None
                raise
            # From here on the position has moved, and nothing is awaited: a caller that is cancelled loses nothing.
            self._ahead = None
            self._request = replace(self._request, start=delivery.next)
            self._sealed = delivery.end_of_stream
            beyond = self.ahead_until is not None and delivery.next >= self.ahead_until
            if not (self._sealed or self._closed or beyond):
                self._poll()
            return delivery, decoded

    def _poll(self) -> None:
        future: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        self._ahead = future

        def settle(answer: Answer) -> None:
            self._asking = None
            if future.done():
                return
            if isinstance(answer, Delivery):
                future.set_result(answer)
                return
            if isinstance(answer, Refusal):
                error = error_of(answer, stream=self.name)
            else:
                error = ProtocolError(f"a read was answered with {type(answer).__name__}")
            future.set_exception(error)
            future.exception()  # it is raised by the next read, which may never come

        request = self._request
        if request.start is ReadFrom.LATEST:
            # Answered at once: where its proxy were lost before it has said where the reader begins, another one would
            # begin behind what was written meanwhile.
            request = replace(request, wait_ms=0)
        asking = self._ask(request, settle, self._connection)
        if not future.done():
            self._asking = asking

    def _check(self, delivery: Delivery) -> None:
        """Raise unless a delivery goes on where its poll asked (I4): the poll is then asked again."""
        start = self._request.start
        if delivery.form is not self._request.form:
            raise ProtocolError(f"a proxy delivered {delivery.form.name}, asked for {self._request.form.name}")
        if isinstance(start, DLSN) and delivery.next < start:
            raise ReadError(f"a proxy was asked for {start} and says to go on at {delivery.next}", log=self.name)

    def _decoded(self, delivery: Delivery) -> list[LogRecord]:
        """Return the records of a delivery. Raises unless they lie between where it begins and where it ends (I4)."""
        records = records_of(delivery)
        start = self._request.start
        if not records:
            return records
        first, last = records[0].dlsn, records[-1].dlsn
        rising = all(one.dlsn < other.dlsn for one, other in pairwise(records))
        if not rising or (isinstance(start, DLSN) and first < start) or last >= delivery.next:
            raise ReadError(
                f"a proxy delivered {first} to {last} for {start}, to go on at {delivery.next}", log=self.name
            )
        return records

    def _deliver(self) -> LogRecord:
        record = self._records.popleft()
        self._position = position_behind(record)
        return record

    def _drop_ahead(self) -> None:
        asking, self._asking, self._ahead = self._asking, None, None
        if asking is not None:
            asking.cancel()

    def _check_form(self, wanted: ReadForm) -> None:
        if self.form is not wanted:
            raise CallerError(
                f"this reader's form is {self.form.name}", advice=f"Open it with form={wanted.name.lower()!r}"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ReadCancelledError("the reader is closed", log=self.name)


# ---------------------------------------------------------------------- all readers of a client


READERS_PER_CONNECTION: Final = 16
MAX_READ_BYTES: Final = 8 * 1024 * 1024
"""What one poll may ask for: a frame has to hold it."""
MAX_POLL_MS: Final = 60_000


class ReadRoutes:
    """Opens and ends the readers of one client, and gives each its connection and its route."""

    def __init__(self, dispatcher: Dispatcher, route: ReadRoute, settings: ThinClientSettings) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._route = route
        self._hosts: tuple[ProxyHost, ...] | None = None
        """Proxies that the route does not know yet: a client without readers makes no ring of them."""
        self._last_read_at = ReadPlaces(route, dispatcher.now, settings.ownership_cache_streams)
        """Where each stream was last read."""
        self._readers: dict[AsyncProxyReader, int] = {}
        """With the slot that each takes: `READERS_PER_CONNECTION` slots in a row are one connection."""
        self._free_slots: list[int] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._readers)

    def update(self, hosts: Iterable[ProxyHost], now: float) -> None:
        """Note that these are the proxies to read through. Raises CallerError."""
        self._hosts = tuple(hosts)
        if self._readers:
            self._take_hosts(now)

    def _take_hosts(self, now: float) -> None:
        hosts, self._hosts = self._hosts, None
        if hosts is not None:
            self._route.update(hosts, now)

    def reader(
        self,
        stream: str,
        start: ProxyStart,
        *,
        form: str | ReadForm,
        max_bytes: int | None,
        poll_ms: int | None,
    ) -> AsyncProxyReader:
        """Return a reader. Raises CallerError for a start, a form, a size or a time that cannot be."""
        size = READ_BYTES if max_bytes is None else max_bytes
        wait_ms = POLL_MS if poll_ms is None else poll_ms
        if not 0 < size <= MAX_READ_BYTES or not 0 < wait_ms <= MAX_POLL_MS:
            raise CallerError(
                f"max_bytes={size}, poll_ms={wait_ms} cannot be",
                advice=f"Up to {MAX_READ_BYTES} bytes and {MAX_POLL_MS} ms are taken",
            )
        self._take_hosts(self._dispatcher.now())
        # The lowest free slot: connections fill up, and the last ones become empty and are closed.
        slot = heapq.heappop(self._free_slots) if self._free_slots else len(self._readers)
        self._number += 1
        reader = AsyncProxyReader(
            self._asker(wait_ms),
            stream,
            start,
            form=form,
            number=self._number,
            connection=_connection_of(slot),
            max_bytes=size,
            poll_ms=wait_ms,
            ended=self._ended,
        )
        self._readers[reader] = slot
        return reader

    async def close(self) -> None:
        """End all readers."""
        for reader in list(self._readers):
            await reader.close()

    def _asker(self, wait_ms: int) -> Callable[[ReadBatch, Callable[[Answer], None], int], InFlightRequest]:
        settings = self._settings
        # A poll is not late while the proxy may keep it.
        attempt_ms = wait_ms + settings.attempt_timeout_ms if settings.attempt_timeout_ms > 0 else 0
        timeout_ms = settings.request_timeout_ms + wait_ms if settings.request_timeout_ms >= 0 else -1
        limits = replace(settings.limits(), attempt_timeout_ms=attempt_ms, request_timeout_ms=timeout_ms)

        def ask(request: ReadBatch, settle: Callable[[Answer], None], connection: int) -> InFlightRequest:
            def settled(finished: Finished) -> None:
                settle(finished.for_caller)

            return self._dispatcher.begin(
                request,
                settled,
                connection=connection,
                route=self._route,
                ownerships=self._last_read_at,
                limits=limits,
            )

        return ask

    def _ended(self, reader: AsyncProxyReader) -> None:
        slot = self._readers.pop(reader)
        heapq.heappush(self._free_slots, slot)
        connection = _connection_of(slot)
        if not any(_connection_of(other) == connection for other in self._readers.values()):
            for address in self._dispatcher.channels.addresses_of(connection):
                self._dispatcher.channels.end_connection(address, connection)
        if not any(other.name == reader.name for other in self._readers):
            self._last_read_at.forget(reader.name)
            self._route.release(reader.name)
        if not self._readers:
            self._free_slots.clear()


def _connection_of(slot: int) -> int:
    """Return the connection of a reader's slot; 0 is the one for requests."""
    return 1 + slot // READERS_PER_CONNECTION
