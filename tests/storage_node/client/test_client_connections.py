"""One connection to a bookie: in which order, and how often, owners of adds hear of the answers that came together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from metadata.foundation.errors import DistributedLogError
from storage_node.client.connections import Connection, ConnectionPool
from storage_node.edge import FrameHandler, Link, Listener
from storage_node.errors import ConnectionClosedError, NoSuchLedgerError, ProtocolError
from storage_node.protocol.adds import AddTemplate
from storage_node.protocol.encoding import encode_add_response
from storage_node.protocol.frames import LENGTH_BYTES, Buffer
from storage_node.protocol.schema import Status
from storage_node.protocol.writing_model import Seat
from storage_node.settings.client import ClientSettings

LEDGER = 7


class DeafLink:
    """Takes everything, and never answers."""

    peer = "bookie"
    queued_bytes = 0

    def __init__(self) -> None:
        self.used = asyncio.Event()

    def send(self, *buffers: Buffer) -> None:
        self.used.set()

    def send_at_once(self, *buffers: Buffer) -> None:
        self.send(*buffers)

    async def drain(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...


class OneLink:
    """A network with nothing but that."""

    def __init__(self) -> None:
        self.link = DeafLink()

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        return self.link

    async def listen(self, host: str, port: int, accept: object) -> Listener:
        raise NotImplementedError


class Owner:
    """Notes what it hears."""

    def __init__(self, name: str, heard: list[tuple[object, ...]]) -> None:
        self._name = name
        self._heard = heard

    def on_added(self, seat: Seat, entry_ids: Sequence[int]) -> None:
        self._heard.append((self._name, seat.index, *entry_ids))

    def on_refused(self, seat: Seat, entry_id: int, error: DistributedLogError) -> None:
        self._heard.append((self._name, seat.index, type(error), entry_id))


class Adds:
    """Adds of two owners on one connection; the entry id is the transaction id."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self._owners = [Owner("a", self.heard), Owner("b", self.heard)]
        self._seats = [Seat(0, "bookie"), Seat(0, "bookie")]
        self._template = AddTemplate(LEDGER, b"k" * 20)

    async def __aenter__(self) -> Adds:
        self._network = OneLink()
        self.pool = ConnectionPool(_resolve, ClientSettings(), self._network, asyncio.get_running_loop())
        self.connection: Connection = self.pool.to("bookie", LEDGER)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()

    async def send(self, *entry_ids: int, owner: int = 0) -> None:
        for entry_id in entry_ids:
            head, answer = self._template.frames(entry_id, entry_id, 0)
            self.connection.send_add(
                entry_id, answer, self._owners[owner], self._seats[owner], entry_id, 1e9, (head, self._template.tail)
            )
        await self._network.link.used.wait()

    def answer(self, *entry_ids: int, status: Status = Status.EOK) -> None:
        for entry_id in entry_ids:
            frame = encode_add_response(entry_id, status, LEDGER, entry_id)
            self.connection.frame_received(memoryview(frame)[LENGTH_BYTES:])


async def _resolve(_bookie: str) -> tuple[str, int]:
    return "host", 1


async def test_acknowledgements_that_come_together_are_passed_on_together() -> None:
    async with Adds() as adds:
        await adds.send(0, 1, 2, 3)
        adds.answer(0, 2, 1)
        adds.connection.batch_done()
        adds.connection.batch_done()
        adds.answer(3)
        adds.connection.batch_done()
        assert adds.heard == [("a", 0, 0, 2, 1), ("a", 0, 3)]


async def test_owners_hear_of_their_own_acknowledgements_in_the_order_in_which_they_came() -> None:
    async with Adds() as adds:
        await adds.send(0, 1, 4)
        await adds.send(2, 3, owner=1)
        adds.answer(0, 1, 2, 3, 4)
        adds.connection.batch_done()
        assert adds.heard == [("a", 0, 0, 1), ("b", 0, 2, 3), ("a", 0, 4)]


async def test_an_error_is_heard_of_after_the_acknowledgements_that_came_before_it() -> None:
    async with Adds() as adds:
        await adds.send(0, 1, 2, 3)
        adds.answer(0, 1)
        adds.answer(2, status=Status.ENOLEDGER)
        adds.answer(3)
        adds.connection.batch_done()
        assert adds.heard == [("a", 0, 0, 1), ("a", 0, NoSuchLedgerError, 2), ("a", 0, 3)]


async def test_what_was_acknowledged_before_the_link_broke_in_the_same_read_counts() -> None:
    async with Adds() as adds:
        await adds.send(0, 1, 2)
        adds.answer(0, 1)
        adds.connection.link_closed(ProtocolError("a frame announces -1 bytes"))
        assert adds.heard == [("a", 0, 0, 1), ("a", 0, ConnectionClosedError, 2)]
