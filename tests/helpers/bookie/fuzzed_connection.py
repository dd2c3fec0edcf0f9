"""A connection of a real node over a link that exists only here, fed with whatever a fuzzer makes."""

from __future__ import annotations

import asyncio
import time

from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.requests.connections import ServedConnection
from storage_node.errors import ProtocolError
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.frames import Buffer


class PretendedLink:
    """Takes every answer whole, and judges it."""

    peer = "a fuzzer"
    queued_bytes = 0

    def __init__(self) -> None:
        self.paused = False
        self.closed = False
        self.answers = 0

    def send_at_once(self, *buffers: Buffer) -> None:
        self.send(*buffers)

    def send(self, *buffers: Buffer) -> None:
        data = memoryview(b"".join(buffers))
        while data:
            length = int.from_bytes(data[:4], "big")
            assert 0 < length <= len(data) - 4, "an answer is no whole frame"
            frame, data = data[4 : 4 + length], data[4 + length :]
            if frame[0] == 0x0A:
                decode_response(frame)
            elif frame[0] <= v2.VERSION:
                v2.decode_response(frame)
            self.answers += 1

    async def drain(self) -> None:
        pass

    def has_more(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True


class Victim:
    """The node, one connection of it at a time, and what was seen."""

    def __init__(self, bookie: Bookie) -> None:
        self.bookie = bookie
        self.slowest_s = 0.0
        self.closed = 0
        self.answers = 0
        self._link = PretendedLink()
        self._connect()

    def _connect(self) -> None:
        self._link = PretendedLink()
        connection = self.bookie._accept(self._link)
        assert isinstance(connection, ServedConnection)
        self.connection = connection

    def hang_up(self) -> None:
        """End the connection, as after an error or by the peer."""
        self.answers += self._link.answers
        self.connection.link_closed(None)
        self._connect()

    def feed(self, body: bytes) -> None:
        """Deliver a frame. ProtocolError closes the connection, as the transport would; nothing else may come out."""
        began = time.thread_time()
        try:
            self.connection.frame_received(memoryview(body))
            self.connection.batch_done()
        except ProtocolError:
            self._link.closed = True
        self.slowest_s = max(self.slowest_s, time.thread_time() - began)
        if self._link.closed:
            self.closed += 1
            self.hang_up()

    async def settle(self) -> None:
        """Let what was begun come to its end; a connection that will not read on is given up."""
        await self.bookie.storage.journal.durable()
        await asyncio.sleep(0)
        if self._link.paused or len(self.connection._requester.polls) > 1000:
            self.hang_up()
