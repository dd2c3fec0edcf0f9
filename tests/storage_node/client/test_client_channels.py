"""A channel whose link is renewed: no other link ends by it, no answer is lost, and no old link stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest
from helpers.waiting import until

from metadata.foundation.errors import DistributedLogError
from storage_node.client.connections import Answer, Connection, ConnectionPool
from storage_node.client.entering import ClientSecurity, LinkProof
from storage_node.edge import FrameHandler, Link, Network, SecurableLink
from storage_node.errors import ConnectionClosedError, RequestTimeoutError
from storage_node.protocol.adds import AddTemplate
from storage_node.protocol.encoding import encode_add_response, encode_bookie_info_request
from storage_node.protocol.frames import LENGTH_BYTES, Buffer
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.writing_model import Seat
from storage_node.settings.client import ClientSettings

LEDGER = 7


class HandedLink(SecurableLink):
    """One end of a connection that a test is the other end of."""

    peer = "bookie"
    queued_bytes = 0
    secured = True
    certificate = None
    between_frames = True

    def __init__(self, handler: FrameHandler) -> None:
        self.handler = handler
        self.sent: list[Buffer] = []
        self.closed = False

    def send(self, *buffers: Buffer) -> None:
        if not self.closed:
            self.sent.extend(buffers)

    def send_at_once(self, *buffers: Buffer) -> None:
        self.send(*buffers)

    async def drain(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def deliver_to(self, handler: FrameHandler) -> None:
        self.handler = handler

    def start_tls(self, terms: object, ended: object) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.end(None)

    def end(self, error: Exception | None) -> None:
        """Have the connection end, as a link does: the handler hears of it from the loop."""
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(lambda: self.handler.link_closed(error))


class Handing:
    """Security whose connections are made when a test says so; `stale` has the channel's link renewed."""

    asks = True
    stale = False

    def __init__(self) -> None:
        self.asked: list[tuple[FrameHandler, asyncio.Future[Link]]] = []
        self.links: list[HandedLink] = []

    async def connect(
        self, network: Network, host: str, port: int, handler: FrameHandler, **_: object
    ) -> tuple[Link, LinkProof]:
        made: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self.asked.append((handler, made))
        return await made, LinkProof()

    async def hand(self) -> HandedLink:
        """Let the connection that was asked for first be made."""
        await until(lambda: self.asked, every_s=0)
        handler, made = self.asked.pop(0)
        link = HandedLink(handler)
        self.links.append(link)
        made.set_result(link)
        return link

    def outdated(self, proof: LinkProof) -> bool:
        return self.stale

    def still_good(self, proof: LinkProof) -> None: ...

    def why_over(self, proof: LinkProof) -> str | None:
        return None

    def look(self) -> None: ...

    async def close(self) -> None: ...


class Owner:
    """Notes what becomes of its adds."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_added(self, seat: Seat, entry_ids: Sequence[int]) -> None:
        self.heard.extend(entry_ids)

    def on_refused(self, seat: Seat, entry_id: int, error: DistributedLogError) -> None:
        self.heard.append((entry_id, type(error)))


class World:
    """One channel to one bookie."""

    def __init__(self) -> None:
        self.security = Handing()
        loop = asyncio.get_running_loop()
        security = cast(ClientSecurity, self.security)
        network = cast(Network, None)
        self.pool = ConnectionPool(self._resolve, ClientSettings(), network, loop, security=security)
        self.channel: Connection = self.pool.to("bookie", LEDGER)
        self.owner = Owner()
        self._seat = Seat(0, "bookie")
        self._template = AddTemplate(LEDGER, b"k" * 20)
        self.answers: list[Answer] = []
        self._txn_ids = 1000

    async def _resolve(self, _bookie: str) -> tuple[str, int]:
        return "host", 1

    def add(self, entry_id: int) -> None:
        head, answer = self._template.frames(entry_id, entry_id, 0)
        self.channel.send_add(entry_id, answer, self.owner, self._seat, entry_id, 1e9, (head, self._template.tail))

    def ask(self, timeout_ms: int = 1000_000) -> None:
        self._txn_ids += 1
        frame = encode_bookie_info_request(self._txn_ids)
        self.channel.request(self._txn_ids, Operation.BOOKIE_INFO, frame, timeout_ms, self.answers.append)

    def acknowledge(self, link: HandedLink, entry_id: int) -> None:
        frame = encode_add_response(entry_id, Status.EOK, LEDGER, entry_id)
        link.handler.frame_received(memoryview(frame)[LENGTH_BYTES:])

    async def opened(self) -> HandedLink:
        """Return the channel's first link, with nothing under way on it."""
        self.add(0)
        link = await self.security.hand()
        await until(lambda: link.sent, every_s=0)
        self.acknowledge(link, 0)
        link.handler.batch_done()
        self.owner.heard.clear()
        return link

    async def renewing(self) -> None:
        """Begin to renew the link."""
        self.security.stale = True
        self.channel._look(1e9)
        self.security.stale = False
        await until(lambda: self.security.asked, every_s=0)

    async def renewed(self) -> HandedLink:
        await self.renewing()
        link = await self.security.hand()
        await until(lambda: self.channel._link is link, every_s=0)
        return link


@pytest.fixture
async def world() -> AsyncIterator[World]:
    one = World()
    yield one
    await one.pool.close()


@pytest.mark.parametrize("together", [False, True])
async def test_a_renewal_that_comes_too_late_ends_no_other_link(together: bool, world: World) -> None:
    first = await world.opened()
    await world.renewing()
    first.end(None)
    await until(lambda: world.channel._link is None, every_s=0)
    world.add(1)
    await until(lambda: len(world.security.asked) == 2, every_s=0)
    late = await world.security.hand()
    if not together:
        await until(lambda: late.closed, every_s=0)
        await asyncio.sleep(0)  # what follows its end
    good = await world.security.hand()
    await until(lambda: late.closed and (good.sent or good.closed or world.owner.heard), every_s=0)
    await asyncio.sleep(0)
    assert world.channel._link is good
    world.acknowledge(good, 1)
    good.handler.batch_done()
    assert world.owner.heard == [1]
    assert world.channel.losses == 1, "the first link, and no other"


async def test_a_link_that_is_lost_as_soon_as_it_was_made_is_closed(world: World) -> None:
    world.add(1)
    await until(lambda: world.security.asked, every_s=0)
    world.channel.link_closed(None)
    link = await world.security.hand()
    await until(lambda: world.owner.heard or link.sent, every_s=0)
    assert world.owner.heard == [(1, ConnectionClosedError)]
    assert link.closed, "else its descriptor would stay, and its end would be taken for another link's"


async def test_what_was_acknowledged_before_a_link_that_was_renewed_broke_counts(world: World) -> None:
    old = await world.opened()
    world.add(1)
    world.add(2)
    await world.renewed()
    world.acknowledge(old, 1)
    old.end(None)  # in the midst of what it delivers
    await asyncio.sleep(0)
    assert world.owner.heard == [1, (2, ConnectionClosedError)]


async def test_the_last_acknowledgement_before_a_link_that_was_renewed_broke_counts(world: World) -> None:
    old = await world.opened()
    world.add(1)
    await world.renewed()
    world.acknowledge(old, 1)
    old.end(None)
    await asyncio.sleep(0)
    assert world.owner.heard == [1]
    assert world.channel.losses == 0


@pytest.mark.parametrize("lost", [False, True])
async def test_a_link_that_was_renewed_is_closed_though_its_last_answer_never_comes(lost: bool, world: World) -> None:
    old = await world.opened()
    world.ask(timeout_ms=0)
    new = await world.renewed()
    assert not old.closed
    if lost:
        new.end(None)
        await until(lambda: world.channel._link is None, every_s=0)
    else:
        world.channel._sweep(asyncio.get_running_loop().time() + 1)
    assert [type(answer) for answer in world.answers] == [ConnectionClosedError if lost else RequestTimeoutError]
    world.pool.sweeper._sweep()
    assert old.closed
    await asyncio.sleep(0)
    assert not world.channel._leaving
