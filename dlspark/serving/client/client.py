"""`AsyncClient`: the thin client. It writes and reads logs through proxies, from one event loop.

    async with await AsyncClient.connect("proxy-1:8000,proxy-2:8000") as client:
        dlsn = await client.write("orders", b"one")
        async for record in client.reader("orders"): ...

It knows addresses of proxies, and at which of them it last found a stream; it knows neither ZooKeeper nor storage
nodes. Given a namespace's URI instead of a list, it watches there which proxies are announced, and nothing else.

Fault model: proxies redirect, refuse, stop and vanish; what a request does then stands in `requests`, what a producer
does in `producers`. A client is of the process and the loop that made it. What it may hold is bounded: records without
an outcome (`maxPendingBytes`), connections (`channels`), streams whose owners it remembers, and producers
(`MAX_PRODUCERS`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.default_namespace import uri_or_default
from dlspark.errors import AlreadyClosedError, OverCapacityError
from dlspark.serving.client.answer_rules import StreamRequest
from dlspark.serving.client.batching import BatchBounds
from dlspark.serving.client.channels import ChannelFailure, Channels, Connect, ProxyChannel
from dlspark.serving.client.dispatch import ClientCounters, Dispatcher, InFlightRequest
from dlspark.serving.client.fleet import Fleet, fleets_of
from dlspark.serving.client.fleet_routes import FleetRoutes
from dlspark.serving.client.monitor import INTERVAL_MS, AsyncStreamMonitor
from dlspark.serving.client.multi_stream import AsyncMultiStreamWriter, MultiStreamLimits
from dlspark.serving.client.producers import ProducerSession
from dlspark.serving.client.producing import AsyncProducer, BufferPool
from dlspark.serving.client.reading import AsyncProxyReader, ProxyStart, ReadRoutes
from dlspark.serving.client.requests import Finished
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.client.write_sessions import PlainSession, SessionLimits, WriteSession
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Done,
    EpochBegun,
    FindOwner,
    Handshake,
    Heartbeat,
    MoveStream,
    OwnerFound,
    ProxyInfo,
    ReadForm,
    Refusal,
    ReleaseStream,
    Request,
    SetFencingToken,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.routing.hosts import address_of
from dlspark.serving.routing.own_region import OwnRegionFirst
from dlspark.serving.security.credentials import ClientCredentials
from metadata.foundation.opened_here import OnOneLoop
from metadata.foundation.settings import Value
from metadata.foundation.tasks import Once, each
from storage_node.edge import Clock, Network, SystemClock
from storage_node.errors import ProtocolError

logger = logging.getLogger(__name__)

MAX_PRODUCERS: Final = 10_000
"""Producers that a client has at a time; the one that was not used for longest ends, if nothing of it is under way."""
_NAME_ONE: Final = "Give host:port, a namespace's URI, or the setting finagleNameStr"
_RANDOM: Final = random.SystemRandom()


class AsyncClient(OnOneLoop):
    """Writes and reads logs through proxies, without ZooKeeper or storage nodes in reach.

    Make it with `connect`, and close it; it is an asynchronous context manager. All calls come from the loop that made
    it. `write` and `producer` write, `reader` reads; the rest asks about streams and proxies.

    Every operation raises what the proxy's refusal says: LogNotFoundError, RequestDeniedError and so on;
    ProxyUnreachableError where no proxy could be asked in time, and an OutcomeUnknownError where one was, and nobody
    knows what came of it. Times and retries are the settings'.
    """

    def __init__(
        self,
        fleets: Sequence[Fleet],
        settings: ThinClientSettings,
        connect: Connect,
        *,
        read_fleets: Sequence[Fleet] = (),
        clock: Clock | None = None,
        random_bits: Callable[[int], int] = _RANDOM.getrandbits,
    ) -> None:
        """For `connect` and for tests. Nothing is asked before `open`.

        Args:
            fleets: the proxies of each region, the local one's first.
            settings: the client's.
            connect: makes a connection to an address.
            read_fleets: the proxies to read through; none: those of `fleets`.
            clock: goes on while the machine is suspended.
            random_bits: gives a number of so many bits, for names and epochs that no other client has.
        """
        self.settings = settings
        self._fleets = list(fleets)
        self._read_fleets = list(read_fleets)
        self._loop = asyncio.get_running_loop()
        self._clock = clock if clock is not None else SystemClock()
        self._random_bits = random_bits
        self._routes: FleetRoutes | None = None
        self._buffer_pool = BufferPool(settings.max_pending_bytes, settings.max_pending_records)
        self._unique = f"{settings.client_id or settings.name}-{uuid.UUID(int=random_bits(128), version=4)}"
        self._incarnation = 0
        self._producers: OrderedDict[tuple[str, str | None], AsyncProducer] = OrderedDict()
        self._others: weakref.WeakSet[AsyncMultiStreamWriter | AsyncStreamMonitor] = weakref.WeakSet()
        self._connect = connect
        self._dispatcher: Dispatcher | None = None
        self._reads: ReadRoutes | None = None
        self._closing = Once(self._close)

    @classmethod
    async def connect(
        cls,
        where: str | Sequence[str] | None = None,
        settings: ThinClientSettings | Mapping[str, Value] | None = None,
        *,
        read_from: str | Sequence[str] | None = None,
        network: Network | None = None,
    ) -> AsyncClient:
        """Return a client. Connections are made when they are needed; a namespace is looked up now.

        Args:
            where: the proxies, "host:port,host:port", or a namespace's URI, in which they are announced; a sequence has
                one such text for each region, the local one first. None: what the settings name, else the namespace
                that DLSPARK_URI names, else that of a sandbox which runs on this machine.
            settings: settings, or their values by key (docs/settings/thin-client.md).
            read_from: as `where`, the proxies to read through; None: the read proxies that are announced, else the
                write proxies.
            network: makes the connections; None: TCP.

        In a namespace the proxies of the own region are asked first (setting `region`, or DLSPARK_REGION).

        Raises CallerError, SettingsError, MetadataUnavailableError, or NoProxiesError where no proxy is announced in
        time.
        """
        made = settings if isinstance(settings, ThinClientSettings) else ThinClientSettings.from_mapping(settings or {})
        named = where if where is not None else list(made.regions()) or uri_or_default(None, _NAME_ONE)
        # Their sessions of ZooKeeper are secured as these settings say, not only as the environment does.
        reading = fleets_of(read_from, made.tls) if read_from is not None else []
        client = cls(fleets_of(named, made.tls), made, _over_frames(network, made.credentials()), read_fleets=reading)
        await client.open()
        return client

    async def open(self) -> None:
        """Learn which proxies there are. Done by `connect`."""
        opened: list[Fleet] = []
        try:
            for fleet in (*self._fleets, *self._read_fleets):
                opened.append(fleet)
                await fleet.open(self._fleet_changed)
            routes = FleetRoutes(self._fleets, self._read_fleets, self.settings)
        except BaseException:
            await each([fleet.close for fleet in opened])
            raise
        self._dispatcher = Dispatcher(
            lambda connected, closed: Channels(self._connect, on_connected=connected, on_closed=closed),
            routes.writing,
            self.settings.ownerships(),
            self.settings.limits(),
            self.settings.handshakes(),
            checksum=self.settings.checksum,
            now=self._clock.elapsed_s,
            own_region=routes.own if isinstance(routes.writing, OwnRegionFirst) else "",
        )
        self._routes = routes
        self._reads = ReadRoutes(self._dispatcher, routes.reading, self.settings)
        self._fleet_changed()

    def _fleet_changed(self) -> None:
        """Note that a fleet has other proxies now."""
        if self._reads is None or self._routes is None:
            return
        now = self._clock.elapsed_s()
        self._routes.update(now)
        self._reads.update(self._routes.read_hosts(), now)

    # ------------------------------------------------------------------ writing

    async def write(self, stream: str, payload: bytes | bytearray | memoryview) -> DLSN:
        """Write one record, and return its DLSN once it is stored. Waits first where too many records wait for their
        outcome. Records of one stream are written in the order of the calls. Raises as `AsyncProducer.send`."""
        return await self.producer(stream).write(payload)

    async def write_bulk(self, stream: str, payloads: Iterable[bytes | bytearray | memoryview]) -> list[DLSN]:
        """Write records in order, in as few requests as they fit in, and return their DLSNs. Raises the first failure;
        records before and behind it may be stored."""
        producer = self.producer(stream)
        futures = []
        for payload in payloads:
            await producer.wait_for_room()
            futures.append(producer.send(payload))
        done = await asyncio.gather(*futures, return_exceptions=True)  # the others are waited for when one fails
        for one in done:
            if isinstance(one, BaseException):
                raise one
        return [one for one in done if isinstance(one, DLSN)]

    async def append(
        self,
        stream: str,
        payloads: Sequence[bytes | bytearray | memoryview],
        *,
        expected_position: int | DLSN | None = None,
        fencing_token: bytes | None = None,
    ) -> DLSN:
        """Write records whole or not at all, on conditions: see `AsyncProducer.append`."""
        return await self.producer(stream).append(
            payloads, expected_position=expected_position, fencing_token=fencing_token
        )

    def producer(self, stream: str, name: str | None = None) -> AsyncProducer:
        """Return the producer of this name on the stream, the same one each time until it is closed or fenced.

        Args:
            stream: the log.
            name: one process's at a time: the one that begins with it last fences the others. None: the client's own
                (`producerName`, or a name that no other client has).

        Raises AlreadyClosedError, or OverCapacityError where `MAX_PRODUCERS` are in use.
        """
        self._check_loop()
        key = (stream, name)
        found = self._producers.get(key)
        if found is not None and not found.fenced:
            self._producers.move_to_end(key)
            return found
        return self._new_producer(stream, name)

    def _new_producer(self, stream: str, name: str | None) -> AsyncProducer:
        if self._closing.begun:
            raise AlreadyClosedError("the client is closed")
        key = (stream, name)
        if key not in self._producers and len(self._producers) >= MAX_PRODUCERS:
            self._end_idle_producer()
        settings = self.settings
        limits = SessionLimits(
            max_in_flight=settings.max_in_flight,
            request_timeout_ms=settings.request_timeout_ms,
            memory_s=settings.producer_memory_s,
            backoff_start_ms=settings.redirect_backoff_start_ms,
        )
        given = name or settings.producer_name
        own = f"{self._unique}-{self._incarnation}" if self._incarnation else self._unique
        session: WriteSession = (
            ProducerSession(stream, given or own, random_bits=self._random_bits, only_user=not given, limits=limits)
            if settings.idempotent or name is not None
            else PlainSession(limits)
        )

        def forget(producer: AsyncProducer) -> None:
            if self._producers.get(key) is producer:
                del self._producers[key]
                self._incarnation += 1  # a name that is taken up again would not be new to the log

        self._producers[key] = made = AsyncProducer(
            self._working(),
            session,
            stream,
            (given or own) if isinstance(session, ProducerSession) else None,
            limits=BatchBounds(
                settings.batch_max_bytes,
                settings.batch_max_records,
                settings.linger_ms,
                settings.max_pending_bytes,
                settings.max_pending_records,
            ),
            buffer_pool=self._buffer_pool,
            clock=self._clock,
            request_timeout_ms=settings.request_timeout_ms,
            closed=forget,
        )
        return made

    def _end_idle_producer(self) -> None:
        for producer in self._producers.values():
            if not producer.pending:
                producer.abandon(AlreadyClosedError("the producer was not used for long, and was closed"))
                return
        raise OverCapacityError(f"{MAX_PRODUCERS} producers are in use", advice="Close those that are done")

    def multi_stream_writer(
        self, streams: Sequence[str], limits: MultiStreamLimits | None = None
    ) -> AsyncMultiStreamWriter:
        """Return a writer whose records go to whichever of the streams takes them soonest, in record sets."""
        self._check_loop()
        dispatcher = self._working()

        def send(request: WriteRecords, settle: Callable[[Answer], None], timeout_ms: int) -> InFlightRequest:
            return dispatcher.begin(request, _unwrapped(settle), timeout_ms=timeout_ms)

        writer = AsyncMultiStreamWriter(send, streams, limits)
        self._others.add(writer)
        return writer

    def monitor(
        self,
        streams: Iterable[str],
        *,
        instance: int = 0,
        instances: int = 1,
        interval_ms: int = INTERVAL_MS,
        to_readers: bool = False,
    ) -> AsyncStreamMonitor:
        """Return a monitor that sends a heartbeat to each stream every `interval_ms`: see `AsyncStreamMonitor`, which
        has the other arguments."""
        self._check_loop()
        dispatcher = self._working()

        def send(request: Heartbeat, settle: Callable[[Answer], None]) -> InFlightRequest:
            return dispatcher.begin(request, _unwrapped(settle))

        monitor = AsyncStreamMonitor(
            send, streams, instance=instance, instances=instances, interval_ms=interval_ms, to_readers=to_readers
        )
        self._others.add(monitor)
        return monitor

    # ------------------------------------------------------------------ reading

    def reader(
        self,
        stream: str,
        start: ProxyStart = "earliest",
        *,
        form: str | ReadForm = ReadForm.RECORDS,
        max_bytes: int | None = None,
        poll_ms: int | None = None,
    ) -> AsyncProxyReader:
        """Return a reader of the stream. Nothing is asked before the first read.

        Args:
            stream: the log.
            start: a DLSN or its text, a transaction id, "earliest" or "latest".
            form: "records", "entries" as they are stored, or "arrow".
            max_bytes: about what one poll brings; None: 512 KiB.
            poll_ms: how long a proxy keeps a poll at the end of the log; None: 10 s.

        Raises CallerError for what cannot be, AlreadyClosedError.
        """
        self._check_loop()
        if self._closing.begun or self._reads is None:
            raise AlreadyClosedError("the client is closed")
        return self._reads.reader(stream, start, form=form, max_bytes=max_bytes, poll_ms=poll_ms)

    # ------------------------------------------------------------------ streams

    async def create(self, stream: str) -> None:
        """Create the log. Raises LogExistsError where it is there."""
        _expect(await self.ask(CreateStream(stream)), Done)

    async def delete(self, stream: str) -> None:
        """Delete the log and all that is in it. Raises LogNotFoundError."""
        _expect(await self.ask(DeleteStream(stream)), Done)

    async def truncate(self, stream: str, dlsn: DLSN | str) -> DLSN:
        """Hide every record below `dlsn`; return the position that the log was truncated to."""
        wanted = DLSN.parse(dlsn) if isinstance(dlsn, str) else dlsn
        done = _expect(await self.ask(TruncateStream(stream, wanted)), Done)
        return wanted if done.dlsn is None else done.dlsn

    async def release(self, stream: str) -> None:
        """Have the proxy that owns the stream give it up; the next write makes a proxy own it."""
        _expect(await self.ask(ReleaseStream(stream)), Done)

    async def move(self, stream: str, target: str) -> None:
        """Have the proxy that owns the stream hand it over to the one at `target` (`host:port`)."""
        _expect(await self.ask(MoveStream(stream, target)), Done)

    async def owner(self, stream: str) -> str:
        """Return the address of the proxy that owns the stream, or would own it."""
        return address_of(_expect(await self.ask(FindOwner(stream)), OwnerFound).location)

    async def heartbeat(self, stream: str, *, to_readers: bool = False) -> None:
        """Make a proxy own the stream. `to_readers`: it also writes a control record, so that readers see that it
        lives."""
        _expect(await self.ask(Heartbeat(stream, to_readers)), Done)

    async def begin_epoch(self, stream: str, producer: str, epoch: int | None = None) -> int:
        """Begin a producer's next epoch, or the one that is named, and return it: requests of older ones are refused
        from now on, whichever client sends them."""
        return _expect(await self.ask(BeginEpoch(stream, producer, epoch)), EpochBegun).epoch

    async def set_fencing_token(self, stream: str, token: bytes, *, expected: bytes | None = None) -> None:
        """Have every write that names another fencing token refused from now on.

        Args:
            stream: the log.
            token: empty bytes: none.
            expected: the token that the log must have now; None: any.

        Raises ConditionError where it has another.
        """
        _expect(await self.ask(SetFencingToken(stream, token, expected)), Done)

    # ------------------------------------------------------------------ proxies

    @property
    def counters(self) -> ClientCounters:
        """What the client has done so far."""
        return self._working().counters

    @property
    def proxies(self) -> tuple[str, ...]:
        """The addresses of all write proxies that are known, the local region's first."""
        return self._working().route.addresses()

    async def handshake(self, proxy: str, *, stream_regex: str | None = None) -> ProxyInfo:
        """Ask the proxy at `host:port` what it is, and which streams it owns. Raises ProxyUnreachableError."""
        answer = await self._ask_at(proxy, Handshake(stream_regex))
        if not isinstance(answer, ProxyInfo):
            raise ProtocolError(f"a handshake was answered with {type(answer).__name__}", node=proxy)
        return answer

    async def accept_streams(self, proxy: str, *, enabled: bool) -> None:
        """Have the proxy at `host:port` take streams that it does not own yet, or not."""
        await self._ask_at(proxy, AcceptStreams(enabled))

    async def ask(self, request: StreamRequest) -> Answer:
        """Take a request to the proxy that serves its stream, and return its answer.

        Raises what a refusal says. Cancelled, what was sent may still be done.
        """
        self._check_loop()
        answered: asyncio.Future[Answer] = self._loop.create_future()

        def settle(finished: Finished) -> None:
            _end(answered, finished.for_caller, request.stream)

        in_flight = self._working().begin(request, settle)
        try:
            return await answered
        finally:
            in_flight.cancel()

    async def _ask_at(self, proxy: str, request: Request) -> Answer:
        self._check_loop()
        answered: asyncio.Future[Answer] = self._loop.create_future()

        def heard(answer: Answer | ChannelFailure) -> None:
            if not isinstance(answer, ChannelFailure):
                _end(answered, answer, None)
            elif not answered.done():
                answered.set_exception(answer.error)

        sending = self._working().channels.submit(proxy, request, heard)
        try:
            return await answered
        finally:
            sending.cancel()

    def _working(self) -> Dispatcher:
        if self._dispatcher is None or self._closing.begun:
            raise AlreadyClosedError("the client is closed, or was not opened")
        return self._dispatcher

    # ------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Write what was sent, each record's future getting its outcome; then end everything. Idempotent.

        It takes no longer than `requestTimeoutMs`. Cancelled, it ends what is under way at once.
        """
        self._check_loop()
        await self._closing.run()

    async def _close(self) -> None:
        producers = list(self._producers.values())
        # In this order: producers flush through the dispatcher, which ends requests through its connections.
        steps: list[Callable[[], Coroutine[Any, Any, None]]] = [other.close for other in list(self._others)]
        steps.append(lambda: _close_all(producers))
        if self._reads is not None:
            steps.append(self._reads.close)
        if self._dispatcher is not None:
            steps.append(self._dispatcher.close)
        steps += [fleet.close for fleet in (*self._fleets, *self._read_fleets)]
        await each(steps)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _close_all(producers: Sequence[AsyncProducer]) -> None:
    await asyncio.gather(*(producer.close() for producer in producers))


def _end(answered: asyncio.Future[Answer], answer: Answer, stream: str | None) -> None:
    if answered.done():
        return
    if isinstance(answer, Refusal):
        answered.set_exception(error_of(answer, stream=stream))
    else:
        answered.set_result(answer)


def _unwrapped(settle: Callable[[Answer], None]) -> Callable[[Finished], None]:
    return lambda finished: settle(finished.for_caller)


_Wanted = TypeVar("_Wanted")


def _expect(answer: Answer, wanted: type[_Wanted]) -> _Wanted:
    """Return the answer, which must be of this kind."""
    if not isinstance(answer, wanted):
        raise ProtocolError(f"a proxy answered with {type(answer).__name__}, {wanted.__name__} was expected")
    return answer


_NETWORKS: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Network]] = weakref.WeakKeyDictionary()
"""The clients of one loop share what connections receive into: megabytes each otherwise."""


def _over_frames(network: Network | None, credentials: ClientCredentials | None) -> Connect:
    """Return what makes connections over frames, on this network; with credentials under TLS alone."""
    from dlspark.serving.bindings.frames_client import FramesClient
    from storage_node.transport.tcp import TcpNetwork

    loop = asyncio.get_running_loop()
    over = network or _NETWORKS.get(loop) or _NETWORKS.setdefault(loop, TcpNetwork())

    async def connect(address: str, on_closed: Callable[[], None]) -> ProxyChannel:
        return await FramesClient.connect(over, address, on_closed=on_closed, credentials=credentials)

    return connect
