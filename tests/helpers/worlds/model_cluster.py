"""A small cluster in memory for the client's tests: model bookies that speak the real messages.

Tests run it on virtual time (`helpers.virtual_time`). The network delays each frame by a seeded random time, in
order per link.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.client.client import LedgerClient
from storage_node.client.writer import LedgerWriter
from storage_node.edge import FrameHandler, Link, Listener
from storage_node.errors import BookieUnreachableError, ProtocolError
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_request
from storage_node.protocol.digests import ENTRY_IDS, LAC_HEADER
from storage_node.protocol.encoding import (
    encode_add_response,
    encode_force_ledger_response,
    encode_read_lac_response,
    encode_read_response,
    encode_write_lac_response,
)
from storage_node.protocol.frames import LENGTH, Buffer
from storage_node.protocol.schema import Status
from storage_node.protocol.values import (
    AddRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    WriteLacRequest,
)
from storage_node.settings.client import ClientSettings

FAST = ClientSettings(
    add_entry_timeout_ms=1_000,
    read_entry_timeout_ms=1_000,
    speculative_read_ms=300,
    long_poll_ms=400,
    connect_timeout_ms=500,
    vacancy_retry_ms=200,
    replacement_pause_ms=1_000,
)


@dataclass
class Ledger:
    """What a model bookie keeps of a ledger."""

    key: bytes | None = None
    fenced: bool = False
    entries: dict[int, bytes] = field(default_factory=dict)
    lac: int = -1
    explicit_lac: bytes | None = None
    waiters: list[Callable[[], None]] = field(default_factory=list)


class ModelBookie:
    """A bookie without a disk, with knobs for everything that can go wrong."""

    def __init__(self, name: str, world: ModelCluster) -> None:
        self.name = name
        self.world = world
        self.ledgers: dict[int, Ledger] = {}
        self.links: set[ModelLink] = set()
        self.down = False
        self.silent = False  # takes requests, does nothing
        self.mute = False  # does what it is asked to, but its answers are lost
        self.delay_s = 0.0
        self.refuse_adds: Status | None = None
        self.corrupt = False  # flips a byte of every entry it returns
        self.odd_encoding = False  # answers adds with an unknown field at the end
        self.batches = True  # serves batch reads; else drops the connection on them, as older bookies do
        # Gives so many entries more than were asked for: docs/reference/wire.md#reading-in-batches
        self.batch_excess = 0
        self.batch_reads: list[BatchReadRequest] = []
        self.read_delay_s = 0.0  # of reads alone
        self.refuse_forces: Status | None = None
        self.unsynced: dict[int, set[int]] = {}  # entries that a crash would take
        self.requests: list[Request] = []
        self.adds: list[int] = []  # entry ids in the order of arrival

    def ledger(self, ledger_id: int) -> Ledger:
        return self.ledgers.setdefault(ledger_id, Ledger())

    def kill(self) -> None:
        """Break its connections and refuse new ones; what is stored stays."""
        self.down = True
        for link in list(self.links):
            link.break_both()

    def crash(self) -> None:
        """Do as `kill` does, and lose what was not synced."""
        self.kill()
        for ledger_id, entries in self.unsynced.items():
            for entry_id in entries:
                self.ledger(ledger_id).entries.pop(entry_id, None)
        self.unsynced.clear()

    def handle(self, frame: bytes, reply: Callable[[bytes], None], drop: Callable[[], None]) -> None:
        if self.silent or self.down:
            return
        if frame[0] == v2.VERSION:
            if self.batches:
                self._batch(memoryview(frame), reply)
            else:
                drop()
            return
        request = decode_request(memoryview(frame))
        self.requests.append(request)

        def answer(data: bytes) -> None:
            if not self.mute and not self.silent:
                slower = self.read_delay_s if isinstance(request, ReadRequest) else 0
                self.world.loop.call_later(self.delay_s + slower, reply, data)

        if isinstance(request, AddRequest):
            data = encode_add_response(request.txn_id, self._add(request), request.ledger_id, request.entry_id)
            answer(LENGTH.pack(len(data) - 1) + data[4:] + b"\x98\x06\x01" if self.odd_encoding else data)
        elif isinstance(request, ReadLacRequest):
            answer(self._read_lac(request))
        elif isinstance(request, WriteLacRequest):
            ledger = self.ledger(request.ledger_id)
            ledger.key = request.master_key
            ledger.explicit_lac = bytes(request.body)
            self._move_lac(ledger, LAC_HEADER.unpack_from(request.body)[1])
            answer(encode_write_lac_response(request.txn_id, Status.EOK, request.ledger_id))
        elif isinstance(request, ForceLedgerRequest):
            if self.refuse_forces is None:
                self.unsynced.pop(request.ledger_id, None)
            status = self.refuse_forces or Status.EOK
            answer(encode_force_ledger_response(request.txn_id, status, request.ledger_id))
        elif isinstance(request, ReadRequest):
            if request.previous_lac is not None and not request.fence:
                self._long_poll(request, answer)
            else:
                answer(self._read(request))

    def _add(self, request: AddRequest) -> Status:
        self.adds.append(request.entry_id)
        if self.refuse_adds is not None:
            return self.refuse_adds
        ledger = self.ledger(request.ledger_id)
        if ledger.key not in (None, request.master_key):
            return Status.EUA
        if ledger.fenced and not request.recovery:
            return Status.EFENCED
        ledger.key = request.master_key
        _, entry_id, lac = ENTRY_IDS.unpack_from(request.body)
        assert entry_id == request.entry_id
        ledger.entries[entry_id] = bytes(request.body)
        if request.deferred_sync:
            self.unsynced.setdefault(request.ledger_id, set()).add(entry_id)
        self._move_lac(ledger, lac)
        return Status.EOK

    def _move_lac(self, ledger: Ledger, lac: int) -> None:
        if lac > ledger.lac:
            ledger.lac = lac
            waiters, ledger.waiters = ledger.waiters, []
            for wake in waiters:
                wake()

    def _body(self, ledger: Ledger, entry_id: int) -> bytes | None:
        body = ledger.entries.get(max(ledger.entries, default=-1) if entry_id == -1 else entry_id)
        if body is not None and self.corrupt:
            return body[:-1] + bytes([body[-1] ^ 1])
        return body

    def _read(self, request: ReadRequest) -> bytes:
        if request.fence:
            ledger = self.ledger(request.ledger_id)
            if ledger.key not in (None, request.master_key):
                return encode_read_response(request.txn_id, Status.EUA, request.ledger_id, request.entry_id)[0]
            ledger.key = request.master_key
            ledger.fenced = True
        known = self.ledgers.get(request.ledger_id)
        body = None if known is None else self._body(known, request.entry_id)
        if known is None or body is None:
            status = Status.ENOLEDGER if known is None else Status.ENOENTRY
            return encode_read_response(request.txn_id, status, request.ledger_id, request.entry_id)[0]
        lac = None if request.fence else known.lac
        head, tail = encode_read_response(
            request.txn_id, Status.EOK, request.ledger_id, request.entry_id, len(body), max_lac=lac
        )
        return head + body + tail

    def _batch(self, frame: memoryview, reply: Callable[[bytes], None]) -> None:
        request = v2.decode_request(frame)
        assert isinstance(request, BatchReadRequest)
        self.batch_reads.append(request)
        known = self.ledgers.get(request.ledger_id)
        ids = (request.ledger_id, request.entry_id, request.request_id)
        entries: list[memoryview] = []
        size = v2.BATCH_ANSWER_BYTES
        for entry_id in range(request.entry_id, request.entry_id + request.max_count + self.batch_excess):
            body = None if known is None else self._body(known, entry_id)
            if body is None or (entries and size + len(body) > request.max_bytes):
                break
            entries.append(memoryview(body))
            size += len(body) + v2.BATCH_ENTRY_BYTES
        status = Status.EOK if entries else Status.ENOENTRY if known is not None else Status.ENOLEDGER
        if not self.mute:
            data = b"".join(v2.encode_batch_read_response(status, *ids, tuple(entries)))
            self.world.loop.call_later(self.delay_s + self.read_delay_s, reply, data)

    def _read_lac(self, request: ReadLacRequest) -> bytes:
        known = self.ledgers.get(request.ledger_id)
        body = None if known is None else self._body(known, -1)
        if known is None or (body is None and known.explicit_lac is None):
            return encode_read_lac_response(request.txn_id, Status.ENOENTRY, request.ledger_id)
        return encode_read_lac_response(request.txn_id, Status.EOK, request.ledger_id, known.explicit_lac, body)

    def _long_poll(self, request: ReadRequest, answer: Callable[[bytes], None]) -> None:
        known = self.ledgers.get(request.ledger_id)
        if known is None:
            answer(encode_read_response(request.txn_id, Status.ENOLEDGER, request.ledger_id, -1)[0])
            return
        done = False

        def wake() -> None:
            nonlocal done
            if not done:
                done = True
                answer(self._tail(request, known))

        assert request.previous_lac is not None
        if known.lac > request.previous_lac:
            wake()
        else:
            known.waiters.append(wake)
            self.world.loop.call_later((request.timeout_ms or 0) / 1000, wake)

    def _tail(self, request: ReadRequest, ledger: Ledger) -> bytes:
        assert request.previous_lac is not None
        following = request.previous_lac + 1
        if ledger.lac >= following and following in ledger.entries:
            body = self._body(ledger, following)
            assert body is not None
            head, tail = encode_read_response(
                request.txn_id, Status.EOK, request.ledger_id, following, len(body), max_lac=ledger.lac
            )
            return head + body + tail
        return encode_read_response(request.txn_id, Status.EOK, request.ledger_id, -1, max_lac=ledger.lac)[0]


class ModelLink:
    """The client's end of a connection to a model bookie."""

    def __init__(self, world: ModelCluster, bookie: ModelBookie, handler: FrameHandler) -> None:
        self.peer = bookie.name
        self.queued_bytes = 0
        self._world = world
        self._bookie = bookie
        self._handler = handler
        self._partial = b""
        self._open = True
        self._last = [0.0, 0.0]
        bookie.links.add(self)
        world.links.add(self)

    def send(self, *buffers: Buffer) -> None:
        if not self._open:
            return
        data = b"".join(bytes(piece) for piece in buffers)
        self.queued_bytes += len(data)
        self._later(0, lambda: self._arrive(data))

    def send_at_once(self, *buffers: Buffer) -> None:
        self.send(*buffers)

    def _later(self, direction: int, action: Callable[[], None]) -> None:
        """Call after a random time, but never before what was sent earlier."""
        loop = self._world.loop
        when = max(loop.time() + self._world.rng.uniform(0, self._world.jitter_s), self._last[direction])
        self._last[direction] = when
        loop.call_at(when, action)

    def _arrive(self, data: bytes) -> None:
        self.queued_bytes -= len(data)
        if not self._open:
            return
        self._partial += data
        while len(self._partial) >= 4:
            (length,) = LENGTH.unpack_from(self._partial)
            if len(self._partial) < 4 + length:
                return
            frame, self._partial = self._partial[4 : 4 + length], self._partial[4 + length :]
            self._bookie.handle(frame, self._reply, self.close)

    def _reply(self, data: bytes) -> None:
        self._later(1, lambda: self._deliver(data))

    def _deliver(self, data: bytes) -> None:
        if self._open and not self._bookie.down:
            try:
                self._handler.frame_received(memoryview(data)[4:])
                self._handler.batch_done()
            except ProtocolError:
                self.close()

    async def drain(self) -> None:
        await asyncio.sleep(self._world.jitter_s)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def break_both(self) -> None:
        self.close()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._bookie.links.discard(self)
            self._world.links.discard(self)
            self._world.loop.call_soon(self._handler.link_closed, None)


class ModelCluster:
    """Model bookies, their registrations in a memory store, and clients."""

    def __init__(self, bookies: int = 4, *, seed: int = 0, jitter_s: float = 0.003) -> None:
        self.loop = asyncio.get_running_loop()
        self.rng = random.Random(seed)
        self.jitter_s = jitter_s
        self.links: set[ModelLink] = set()
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.ledgers = LedgerStore(self.store, rng=random.Random(seed))
        self.registry = BookieRegistry(self.store)
        self.bookies = {f"b{i}:3181": ModelBookie(f"b{i}:3181", self) for i in range(bookies)}
        self.clients: list[LedgerClient] = []

    async def __aenter__(self) -> ModelCluster:
        await self.ledgers.format()
        for name in self.bookies:
            await self.registry.register(BookieAddress(name, name, 3181))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for client in self.clients:
            await client.close()
        await self.settle()
        assert not self.links, "connections outlive their clients"
        await self.store.close()

    async def settle(self, seconds: float = 5.0) -> None:
        """Let everything that is under way arrive."""
        await asyncio.sleep(seconds)

    def client(
        self,
        settings: ClientSettings = FAST,
        store: MemoryStore | None = None,
        ensemble_change_disabled: Callable[[], bool] = lambda: False,
    ) -> LedgerClient:
        ledgers = self.ledgers if store is None else LedgerStore(store, rng=random.Random(1))
        registry = self.registry if store is None else BookieRegistry(store)
        client = LedgerClient(
            ledgers,
            registry,
            settings=settings,
            network=self,
            rng=random.Random(3),
            ensemble_change_disabled=ensemble_change_disabled,
        )
        self.clients.append(client)
        return client

    def holding(self, names: tuple[str, ...]) -> list[ModelBookie]:
        return [self.bookies[name] for name in names]

    # ---- Network

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> ModelLink:
        await asyncio.sleep(self.rng.uniform(0, self.jitter_s))
        bookie = self.bookies[host]
        if bookie.down:
            raise BookieUnreachableError("connection refused", node=host)
        return ModelLink(self, bookie, handler)

    async def listen(self, host: str, port: int, accept: Callable[[Link], FrameHandler]) -> Listener:
        raise NotImplementedError("model bookies do not listen")


def payload(entry_id: int) -> bytes:
    return b"entry %06d " % entry_id * 3


async def write(writer: LedgerWriter, count: int) -> list[int]:
    return [await f for f in [writer.add(payload(writer.last_add_pushed + 1)) for _ in range(count)]]


async def contents(cluster: ModelCluster, ledger_id: int) -> list[bytes]:
    reader = await cluster.client().open(ledger_id, recover=True)
    if reader.last_add_confirmed < 0:
        return []
    return [bytes(e.payload) for e in await reader.read(0, reader.last_add_confirmed)]
