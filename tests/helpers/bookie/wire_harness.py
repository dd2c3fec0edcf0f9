"""A plain client of protocol version 2, and a disk whose calls wait until a test lets them go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from helpers.bookie.harness import KEY, BookieCluster, WireClient
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.node.bookie import Bookie
from storage_node.edge import Link
from storage_node.protocol import v2
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddResponse, BatchReadResponse, ReadResponse, ResponseV2
from storage_node.transport.tls import securable

T = TypeVar("T")


class PacketClient:
    """Sends packets of version 2 and takes the answers as they come, in order of arrival."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.closed = asyncio.Event()
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self.frames: list[bytes] = []

    @classmethod
    async def connect(cls, cluster: BookieCluster, bookie: Bookie) -> PacketClient:
        client = cls()
        address = bookie.address
        client.link = await cluster.network.connect(address.host, address.port, client, timeout_ms=60_000)
        cluster.clients.append(client)  # type: ignore[arg-type]  # it is closed like the others
        return client

    @classmethod
    def over(cls, first: WireClient) -> PacketClient:
        """Take over the connection of a client of version 3, which has secured it."""
        client = cls()
        assert first.link is not None
        client.link = first.link
        securable(first.link).deliver_to(client)
        first.link_closed(None)
        return client

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self._arrived.put_nowait(bytes(frame))

    def batch_done(self) -> None:
        pass

    def link_closed(self, error: Exception | None) -> None:
        self.closed.set()

    def send(self, *pieces: bytes) -> None:
        assert self.link is not None
        self.link.send(*pieces)

    async def answer(self) -> ResponseV2:
        return v2.decode_response(memoryview(await self.frame()))

    async def frame(self) -> bytes:
        return await asyncio.wait_for(self._arrived.get(), 60)

    async def ask(self, *pieces: bytes) -> ResponseV2:
        self.send(*pieces)
        return await self.answer()

    async def add(self, body: bytes, *, key: bytes = KEY, recovery: bool = False, high: bool = False) -> Status:
        answer = await self.ask(v2.encode_add_request(key, len(body), recovery=recovery, high_priority=high), body)
        assert isinstance(answer, AddResponse)
        ids = (int.from_bytes(body[:8], "big", signed=True), int.from_bytes(body[8:16], "big", signed=True))
        assert (answer.ledger_id, answer.entry_id) == ids
        return answer.status

    async def read(self, ledger_id: int, entry_id: int, *, fence: bool = False, key: bytes = KEY) -> ReadResponse:
        answer = await self.ask(v2.encode_read_request(ledger_id, entry_id, fence=fence, master_key=key))
        assert isinstance(answer, ReadResponse)
        assert (answer.ledger_id, answer.entry_id) == (ledger_id, entry_id)
        return answer

    async def batch(
        self, ledger_id: int, entry_id: int, *, count: int = 0, size: int = 1 << 30, fence: bool = False
    ) -> BatchReadResponse:
        request = v2.encode_batch_read_request(
            ledger_id, entry_id, 77, max_count=count, max_bytes=size, fence=fence, master_key=KEY
        )
        answer = await self.ask(request)
        assert isinstance(answer, BatchReadResponse)
        assert (answer.ledger_id, answer.entry_id, answer.request_id) == (ledger_id, entry_id, 77)
        return answer


class HeldDisk(SystemDisk):
    """The real disk, whose calls of some pools, or of some name, wait while `holds` names them."""

    def __init__(self, *holds: str) -> None:
        super().__init__()
        self.holds = set(holds)
        self.waiting: list[Callable[[], None]] = []

    def submit(self, pool: str, call: Callable[[], T]) -> asyncio.Future[T]:
        if pool not in self.holds and getattr(call, "__name__", "") not in self.holds:
            return super().submit(pool, call)
        held: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def go() -> None:
            super(HeldDisk, self).submit(pool, call).add_done_callback(pass_on)

        def pass_on(done: asyncio.Future[T]) -> None:
            error = done.exception()
            if held.cancelled():
                return
            if error is None:
                held.set_result(done.result())
            else:
                held.set_exception(error)

        self.waiting.append(go)
        return held

    def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
        return False  # it could not be held up

    def release(self) -> None:
        """Let everything go, from now on too."""
        self.holds.clear()
        waiting, self.waiting = self.waiting, []
        for go in waiting:
            go()
