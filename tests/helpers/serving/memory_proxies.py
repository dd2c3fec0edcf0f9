"""Write and read proxies in memory, for tests of the thin client: a `ProxyService` each, over logs that all share.

What they keep is true: a producer's request is judged by the log core's own table (`Producers`), a log has one owner,
and who is asked elsewhere names it. What tests do to them: hold or lose answers, refuse, stop, die, name each other as
owners. What they do not have is storage, take-over or anything else that takes time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import ProducerRequest
from dlspark.core.codec.records import LogRecord
from dlspark.core.writing.producers import Producers, Written
from dlspark.errors import ProxyLostError, ProxyUnreachableError
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.protocol.deliveries import encode_records, position_behind
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Applied,
    BeginEpoch,
    BulkReceipt,
    CreateStream,
    DeleteStream,
    Delivery,
    Done,
    EpochBegun,
    FindOwner,
    Handshake,
    Heartbeat,
    ListProxies,
    OwnerFound,
    ProxyInfo,
    ProxyStatus,
    ReadBatch,
    ReadFrom,
    Refusal,
    ReleaseStream,
    Request,
    SetFencingToken,
    StatusCode,
    TruncateStream,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.read_proxy.balance import ReadBalance
from dlspark.serving.routing.hosts import ProxyHost
from metadata.foundation.errors import DistributedLogError

FIRST_TXID = 1_700_000_000_000


@dataclass
class MemoryLog:
    """One log: its records, and what it knows of its producers."""

    records: list[LogRecord] = field(default_factory=list)
    producers: Producers = field(default_factory=Producers)
    entries: int = 0
    sealed: bool = False
    truncated: DLSN = DLSN.INITIAL
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """Readers at the end."""

    def append(self, payloads: tuple[bytes, ...], slot: int = 0) -> DLSN:
        """Append an entry of these records; returns the first one's place."""
        first = DLSN(1, self.entries, slot)
        self.entries += 1
        for number, payload in enumerate(payloads):
            position = len(self.records) + 1
            place = DLSN(1, first.entry_id, slot + number)
            self.records.append(LogRecord(FIRST_TXID + position, payload, place, position, 0, position - 1))
        waiting, self.waiting = self.waiting, []
        for wake in waiting:
            wake()
        return first

    @property
    def payloads(self) -> list[bytes]:
        """Return what its records hold, in their order."""
        return [record.payload for record in self.records]


class MemoryProxy:
    """One proxy, as a `ProxyService`."""

    def __init__(self, fleet: MemoryProxies, address: str) -> None:
        self.fleet = fleet
        self.address = address
        self.status = ProxyStatus.WRITE_AND_ACCEPT
        self.region: str | None = None
        self.requests: list[Request] = []
        """All that came, in their order."""
        self.held: deque[Callable[[], None]] = deque()
        """What waits for `release`."""
        self.hold = False
        self.silent = False
        """Takes requests and does nothing, as a stopped process."""
        self.lose_answers = 0
        """So many requests are done, and the connection is lost instead of the answer."""
        self.refusals: deque[Refusal] = deque()
        """What the next requests on streams are answered with, without being done."""
        self.claims: dict[str, str] = {}
        """Streams, and whom it takes for the owner whatever is true."""
        self.links: list[MemoryLink] = []
        self.reads: set[str] = set()
        """Logs that were read here since it came up."""
        self.balance: ReadBalance | None = None
        """Which logs others are to read."""
        self.sent_on: list[str] = []
        self.up = True
        self.gone: list[Caller] = []

    # ------------------------------------------------------------------ what tests do

    def release(self) -> None:
        """Answer what was held, and hold no more."""
        self.hold = False
        while self.held:
            self.held.popleft()()

    def stop(self) -> None:
        """Die: connections are lost, and none can be made."""
        self.up = False
        self.reads.clear()
        self.drop_connections()
        for stream in [one for one, owner in self.fleet.owners.items() if owner == self.address]:
            del self.fleet.owners[stream]

    def drop_connections(self) -> None:
        """Lose every connection; what was asked and not answered never is."""
        for link in list(self.links):
            link.lose()

    def of(self, kind: type[Request]) -> list[Request]:
        """Return the requests of one kind that came."""
        return [request for request in self.requests if isinstance(request, kind)]

    # ------------------------------------------------------------------ ProxyService

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """Do it at once, or as the test wants it."""
        self.requests.append(request)
        if self.silent:
            return
        if self.hold and not isinstance(request, Handshake):
            self.held.append(lambda: self._serve(request, reply))
            return
        self._serve(request, reply)

    def caller_gone(self, caller: Caller) -> None:
        """Remember it."""
        self.gone.append(caller)

    def _serve(self, request: Request, reply: Reply) -> None:
        if isinstance(request, ReadBatch):
            if self.refusals:
                reply(self.refusals.popleft())
            else:
                self._read(request, reply)
            return
        answer = self._answer(request)
        if self.lose_answers and not isinstance(request, Handshake):
            self.lose_answers -= 1
            self.drop_connections()
            return
        reply(answer)

    def _answer(self, request: Request) -> Answer:
        if isinstance(request, Handshake):
            return self._handshake(request)
        if isinstance(request, AcceptStreams):
            self.status = ProxyStatus.WRITE_AND_ACCEPT if request.enabled else ProxyStatus.WRITE_ONLY
            return Done()
        if self.refusals:
            return self.refusals.popleft()
        if isinstance(request, FindOwner):
            return OwnerFound(self.fleet.owners.get(request.stream, self.address))
        if isinstance(request, ReadBatch | ListProxies):
            raise AssertionError(f"{type(request).__name__} is answered elsewhere")
        refusal = self._own(request.stream)
        if refusal is not None:
            return refusal
        try:
            return self._do(request)
        except DistributedLogError as error:
            return refusal_of(error)

    def _handshake(self, request: Handshake) -> ProxyInfo:
        owned = dict(self.fleet.owners) if request.ownerships else {}
        return ProxyInfo(self.address, self.status, owned, region=self.region)

    def _own(self, stream: str) -> Refusal | None:
        claimed = self.claims.get(stream)
        owner = claimed or self.fleet.owners.get(stream)
        if owner is None:
            if self.status is not ProxyStatus.WRITE_AND_ACCEPT:
                return Refusal(StatusCode.SERVICE_UNAVAILABLE, "takes no streams")
            self.fleet.owners[stream] = self.address
            return None
        if owner != self.address:
            return Refusal(StatusCode.FOUND, f"owned by {owner}", location=owner)
        return None

    def _do(self, request: Request) -> Answer:
        log = self.fleet.log(getattr(request, "stream", ""))
        if isinstance(request, WriteRecords):
            return self._write(log, request)
        if isinstance(request, BeginEpoch):
            known = log.producers.state(request.producer)
            epoch = request.epoch
            if epoch is None:
                epoch = known.epoch + 1 if known is not None else 0
            begun = ProducerRequest(request.producer, epoch, -1, 0)
            if log.producers.judge(begun) is None:
                log.producers.begin(begun, DLSN.INITIAL, 0)
                log.producers.answered(begun)
            state = log.producers.state(request.producer)
            return EpochBegun(epoch, state.last + 1 if state is not None else 0)
        if isinstance(request, SetFencingToken):
            log.producers.token = request.token
        elif isinstance(request, TruncateStream):
            log.truncated = max(log.truncated, request.dlsn)
            return Done(request.dlsn)
        elif isinstance(request, ReleaseStream):
            self.fleet.owners.pop(request.stream, None)
        elif isinstance(request, DeleteStream):
            self.fleet.logs.pop(request.stream, None)
        else:
            assert isinstance(request, CreateStream | Heartbeat), request
        return Done()

    def _write(self, log: MemoryLog, request: WriteRecords) -> Answer:
        payloads = tuple(bytes(payload) for payload in request.payloads)
        if log.sealed:
            return Refusal(StatusCode.END_OF_STREAM, "sealed", applied=Applied.WRONG)
        if request.fencing_token is not None and request.fencing_token != log.producers.token:
            return Refusal(StatusCode.ILLEGAL_STATE, "fenced", error="ConditionError", actual="token")
        if request.expected_position is not None and request.expected_position != len(log.records):
            return Refusal(StatusCode.ILLEGAL_STATE, "moved on", error="ConditionError", actual=len(log.records))
        if request.stamp is not None:
            stamp = ProducerRequest(request.stamp.name, request.stamp.epoch, request.stamp.sequence, len(payloads))
            known = log.producers.judge(stamp)
            if isinstance(known, Written):
                return WriteReceipt(known.first, known.records, repeated=True)
            first = log.append(payloads, slot=1)
            log.producers.begin(stamp, first, 0)
            log.producers.answered(stamp)
            return WriteReceipt(first, len(payloads))
        if request.is_whole or len(payloads) == 1:
            return WriteReceipt(log.append(payloads), len(payloads))
        return BulkReceipt(tuple(log.append((payload,)) for payload in payloads))

    # ------------------------------------------------------------------ reads

    def _read(self, request: ReadBatch, reply: Reply) -> None:
        if self.balance is not None and request.stream not in self.reads:
            now = asyncio.get_running_loop().time()
            place = self.balance.elsewhere(request.stream, len(self.reads), request.context.tried_hosts, now)
            if place is not None:
                self.sent_on.append(request.stream)
                reply(Refusal(StatusCode.FOUND, "has its share", location=place))
                return
        self.reads.add(request.stream)
        log = self.fleet.log(request.stream)
        start = self._start(log, request)
        if isinstance(start, Refusal):
            reply(start)
            return
        found = [record for record in log.records if record.dlsn >= start]
        if found or log.sealed:
            reply(self.fleet.delivery(request, start, found, log.sealed))
            return
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def wake() -> None:
            if timer is not None:
                timer.cancel()
            from_here = ReadBatch(request.stream, start, request.reader, request.form, request.max_bytes, 0)
            self._read(from_here, reply)

        def over() -> None:
            log.waiting.remove(wake)
            reply(self.fleet.delivery(request, start, [], False))

        if not request.wait_ms:
            reply(self.fleet.delivery(request, start, [], False))
            return
        log.waiting.append(wake)
        timer = loop.call_later(request.wait_ms / 1000, over)

    def _start(self, log: MemoryLog, request: ReadBatch) -> DLSN | Refusal:
        start = request.start
        if start is ReadFrom.OLDEST:
            return log.truncated
        if start is ReadFrom.LATEST:
            return DLSN(1, log.entries, 0)
        if isinstance(start, DLSN):
            if start < log.truncated:
                advice = f"Begin at {log.truncated}"
                return Refusal(
                    StatusCode.TRUNCATED_TRANSACTION,
                    f"{start} was truncated",
                    error="AlreadyTruncatedError",
                    advice=advice,
                    actual=str(log.truncated),
                )
            return start
        return next((record.dlsn for record in log.records if record.txid >= start), DLSN(1, log.entries, 0))


class MemoryLink:
    """A connection to one proxy, as `FramesClient`: requests and answers arrive a turn of the loop later, in order."""

    def __init__(self, proxy: MemoryProxy, on_closed: Callable[[], None]) -> None:
        self.proxy = proxy
        self.caller = Caller(f"client-{id(self)}")
        self.closed = False
        self._on_closed = on_closed
        self._number = 0
        self._replies: dict[int, tuple[Request, Reply]] = {}
        self._loop = asyncio.get_running_loop()
        proxy.links.append(self)

    def submit(self, request: Request, reply: Reply) -> int:
        """Ask; `reply` is called once, with a refusal where the connection is lost."""
        if self.closed:
            reply(refusal_of(ProxyUnreachableError("the connection to the proxy is closed")))
            return 0
        self._number += 1
        number = self._number
        self._replies[number] = request, reply
        self._loop.call_soon(self._arrive, number, request)
        return number

    stale = False
    """It shows no proof that could be renewed."""

    def finish(self) -> None:
        """Close once nothing is under way: never asked for, as it is never stale."""

    def forget(self, number: int) -> None:
        """Drop the answer, which is not wanted any more."""
        if number in self._replies:
            self._replies[number] = self._replies[number][0], lambda answer: None

    def _arrive(self, number: int, request: Request) -> None:
        if not self.closed:
            self.proxy.submit(request, self.caller, lambda answer: self._answered(number, answer))

    def _answered(self, number: int, answer: Answer) -> None:
        self._loop.call_soon(self._deliver, number, answer)

    def _deliver(self, number: int, answer: Answer) -> None:
        found = self._replies.pop(number, None)
        if found is not None:
            found[1](answer)

    def lose(self) -> None:
        """Break the connection."""
        if self.closed:
            return
        self.closed = True
        self.proxy.links.remove(self)
        self.proxy.caller_gone(self.caller)
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        replies, self._replies = self._replies, {}
        for request, reply in replies.values():
            asks = isinstance(request, Handshake | FindOwner | ReadBatch)
            kind = ProxyUnreachableError if asks else ProxyLostError
            reply(refusal_of(kind("the connection was lost before the proxy answered")))
        self._on_closed()

    async def close(self) -> None:
        """End it."""
        self.lose()


class MemoryProxies:
    """Proxies that serve the same logs."""

    def __init__(self, *addresses: str) -> None:
        self.logs: dict[str, MemoryLog] = {}
        self.owners: dict[str, str] = {}
        self.proxies = {address: MemoryProxy(self, address) for address in addresses}
        self.connections = 0
        """How often one was asked for."""
        self.connect_s = 0.0
        """How long that takes."""

    def __getitem__(self, address: str) -> MemoryProxy:
        return self.proxies[address]

    def add(self, address: str) -> MemoryProxy:
        """Start one more proxy."""
        self.proxies[address] = proxy = MemoryProxy(self, address)
        return proxy

    def log(self, name: str) -> MemoryLog:
        """Return a log; makes it where it is not there."""
        return self.logs.setdefault(name, MemoryLog())

    def bound_reads(self, balance: float = 1.25) -> None:
        """Have read proxies share what is read; `tell_counts` is theirs to learn from."""
        for proxy in self.proxies.values():
            proxy.balance = ReadBalance(balance)
            proxy.balance.use_members(ProxyHost(one) for one in self.proxies if one != proxy.address)
        self.tell_counts()

    def tell_counts(self) -> None:
        """Send each running proxy the number of logs that the others read."""
        for proxy in self.proxies.values():
            for other in self.proxies.values():
                if proxy.balance is not None and proxy.up:
                    proxy.balance.asked(other.address)
                    proxy.balance.heard(other.address, len(other.reads) if other.up else None)

    @property
    def requests(self) -> list[Request]:
        """Return the requests that came to any of them."""
        return [request for proxy in self.proxies.values() for request in proxy.requests]

    async def connect(self, address: str, on_closed: Callable[[], None]) -> MemoryLink:
        """Connect as clients do. Raises ProxyUnreachableError."""
        self.connections += 1
        await asyncio.sleep(self.connect_s)
        proxy = self.proxies.get(address)
        if proxy is None or not proxy.up:
            raise ProxyUnreachableError("no such proxy, or it is down", node=address)
        return MemoryLink(proxy, on_closed)

    def delivery(self, request: ReadBatch, start: DLSN, found: list[LogRecord], sealed: bool) -> Delivery:
        """Return the answer to a poll: whole records up to `max_bytes`, one at least."""
        size, count = 0, 0
        for record in found:
            size += len(record.payload)
            if count and size > request.max_bytes:
                break
            count += 1
        some = found[:count]
        behind = position_behind(some[-1]) if some else start
        parts = (encode_records(some),) if some else ()
        return Delivery(request.form, behind, parts, end_of_stream=sealed and count == len(found))
