"""Storage nodes in memory, for tests of what is above them: they speak the real protocol over links that are calls.

They show what a test needs to see or do: hold back acknowledgements, stop a node, look at what is stored. What they do
not have is a disk: durability and restarts are tested with the real storage node.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct

from metadata.bookkeeper.bookies import BookieAddress
from storage_node.edge import FrameHandler, Link, Listener
from storage_node.errors import BookieUnreachableError, ConnectionClosedError
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_request
from storage_node.protocol.encoding import encode_add_response, encode_read_lac_response, encode_read_response
from storage_node.protocol.frames import Buffer
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddRequest, BatchReadRequest, ReadLacRequest, ReadRequest
from storage_node.settings.client import ClientSettings

PATIENT = ClientSettings(
    add_entry_timeout_ms=30_000, read_entry_timeout_ms=10_000, speculative_read_ms=200, long_poll_ms=200
)
"""For clients in real time: that the machine stands still for a second does not mean that a storage node has failed."""
_HEADER = Struct(">qqqq")
_LENGTH = Struct(">i")


@dataclass
class StoredLedger:
    entries: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False
    key: bytes | None = None
    lac: int = -1
    advanced: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryBookie:
    """One node. `hold_adds` keeps answers to adds back until `release`; `reject` answers adds with that status."""

    def __init__(self, bookie_id: str) -> None:
        self.id = bookie_id
        self.ledgers: dict[int, StoredLedger] = {}
        self.up = True
        self.hold_adds = False
        self.reject: Status | None = None
        self.reads = 0
        self._held: list[Callable[[], None]] = []
        self.links: list[BookieLink] = []

    @property
    def address(self) -> BookieAddress:
        host, _, port = self.id.partition(":")
        return BookieAddress(self.id, host, int(port))

    def release(self) -> None:
        self.hold_adds = False
        held, self._held = self._held, []
        for answer in held:
            answer()

    def stop(self) -> None:
        self.up = False
        for link in list(self.links):
            link.break_off()

    async def serve(self, link: BookieLink, frame: memoryview) -> None:
        if frame[0] == v2.VERSION:
            self._batch(link, frame)
            return
        request = decode_request(frame)
        if isinstance(request, AddRequest):
            self._add(link, request)
        elif isinstance(request, ReadRequest):
            await self._read(link, request)
        elif isinstance(request, ReadLacRequest):
            ledger = self.ledgers.get(request.ledger_id)
            last = ledger.entries[max(ledger.entries)] if ledger and ledger.entries else None
            status = Status.EOK if ledger else Status.ENOLEDGER
            link.answer(encode_read_lac_response(request.txn_id, status, request.ledger_id, None, last))
        else:
            raise AssertionError(f"unexpected {request}")

    def _batch(self, link: BookieLink, frame: memoryview) -> None:
        request = v2.decode_request(frame)
        assert isinstance(request, BatchReadRequest), request
        ledger = self.ledgers.get(request.ledger_id, StoredLedger())
        found: list[memoryview] = []
        size = v2.BATCH_ANSWER_BYTES
        for entry_id in range(request.entry_id, request.entry_id + request.max_count):
            body = ledger.entries.get(entry_id)
            if body is None or (found and size + len(body) > request.max_bytes):
                break
            size += len(body) + v2.BATCH_ENTRY_BYTES
            found.append(memoryview(body))
        self.reads += len(found)
        status = Status.EOK if found else Status.ENOENTRY
        ids = (request.ledger_id, request.entry_id, request.request_id)
        link.answer(b"".join(v2.encode_batch_read_response(status, *ids, tuple(found))))

    def _add(self, link: BookieLink, request: AddRequest) -> None:
        ledger_id, entry_id, lac, _ = _HEADER.unpack_from(request.body)
        ledger = self.ledgers.setdefault(ledger_id, StoredLedger())
        status = Status.EOK
        if self.reject is not None:
            status = self.reject
        elif ledger.key not in (None, request.master_key):
            status = Status.EUA
        elif ledger.fenced and not request.recovery:
            status = Status.EFENCED
        else:
            ledger.key = request.master_key
            ledger.entries[entry_id] = bytes(request.body)
            if lac > ledger.lac:
                ledger.lac = lac
                advanced, ledger.advanced = ledger.advanced, asyncio.Event()
                advanced.set()

        def answer() -> None:
            link.answer(encode_add_response(request.txn_id, status, ledger_id, entry_id))

        if self.hold_adds:
            self._held.append(answer)
        else:
            answer()

    async def _read(self, link: BookieLink, request: ReadRequest) -> None:
        self.reads += 1
        ledger = self.ledgers.get(request.ledger_id)
        if request.fence:
            ledger = self.ledgers.setdefault(request.ledger_id, StoredLedger())
            if ledger.key not in (None, request.master_key):
                self._answer_read(link, request, Status.EUA, None, None)
                return
            ledger.key = request.master_key
            ledger.fenced = True
        if ledger is None:
            self._answer_read(link, request, Status.ENOLEDGER, None, None)
            return
        entry_id, max_lac = request.entry_id, None
        if request.previous_lac is not None:
            if ledger.lac <= request.previous_lac:
                try:
                    await asyncio.wait_for(ledger.advanced.wait(), (request.timeout_ms or 0) / 1000)
                except asyncio.TimeoutError:
                    pass
            max_lac = ledger.lac
            entry_id = request.previous_lac + 1 if ledger.lac > request.previous_lac else -1
            if entry_id == -1 or entry_id not in ledger.entries:
                head, tail = encode_read_response(request.txn_id, Status.EOK, request.ledger_id, -1, max_lac=max_lac)
                link.answer(head + tail)
                return
        elif entry_id == -1 and ledger.entries:
            entry_id = max(ledger.entries)
        body = ledger.entries.get(entry_id)
        self._answer_read(link, request, Status.EOK if body is not None else Status.ENOENTRY, body, max_lac, entry_id)

    def _answer_read(
        self,
        link: BookieLink,
        request: ReadRequest,
        status: Status,
        body: bytes | None,
        max_lac: int | None,
        entry_id: int | None = None,
    ) -> None:
        entry_id = request.entry_id if entry_id is None else entry_id
        length = None if body is None else len(body)
        head, tail = encode_read_response(request.txn_id, status, request.ledger_id, entry_id, length, max_lac=max_lac)
        link.answer(head + (body or b"") + tail)

    def fingerprint(self) -> str:
        digest = hashlib.sha1()
        for ledger_id in sorted(self.ledgers):
            for entry_id in sorted(self.ledgers[ledger_id].entries):
                digest.update(self.ledgers[ledger_id].entries[entry_id])
        return digest.hexdigest()


class BookieLink(Link):
    """Both ends of a connection: what is sent is served, what is answered is delivered, a loop turn later each."""

    def __init__(self, bookie: MemoryBookie, handler: FrameHandler) -> None:
        self._bookie = bookie
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._pending = b""
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        bookie.links.append(self)

    @property
    def peer(self) -> str:
        return self._bookie.id

    @property
    def queued_bytes(self) -> int:
        return 0

    def send(self, *buffers: Buffer) -> None:
        if self._closed:
            return
        self._pending += b"".join(bytes(buffer) for buffer in buffers)
        while len(self._pending) >= 4:
            (length,) = _LENGTH.unpack_from(self._pending)
            if len(self._pending) < 4 + length:
                return
            frame, self._pending = self._pending[4 : 4 + length], self._pending[4 + length :]
            task = self._loop.create_task(self._bookie.serve(self, memoryview(frame)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def send_at_once(self, *buffers: Buffer) -> None:
        self.send(*buffers)

    def answer(self, frames: bytes) -> None:
        self._loop.call_soon(self._deliver, frames)

    def _deliver(self, frames: bytes) -> None:
        if not self._closed:
            self._handler.frame_received(memoryview(frames)[4:])
            self._handler.batch_done()

    async def drain(self) -> None:
        if self._closed:
            raise ConnectionClosedError("closed")

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def break_off(self) -> None:
        self._end(ConnectionClosedError("the node stopped", node=self._bookie.id))

    def close(self) -> None:
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._bookie.links.remove(self)
        for task in self._tasks:
            task.cancel()
        self._loop.call_soon(self._handler.link_closed, error)


class MemoryNetwork:
    """Connects to memory bookies by their host and port."""

    def __init__(self) -> None:
        self.bookies: dict[tuple[str, int], MemoryBookie] = {}

    def add(self, bookie: MemoryBookie) -> None:
        self.bookies[bookie.address.host, bookie.address.port] = bookie

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        await asyncio.sleep(0)
        bookie = self.bookies.get((host, port))
        if bookie is None or not bookie.up:
            raise BookieUnreachableError("no such node, or it is down", node=f"{host}:{port}")
        return BookieLink(bookie, handler)

    async def listen(self, host: str, port: int, accept: Callable[[Link], FrameHandler]) -> Listener:
        raise AssertionError("memory bookies do not listen")
