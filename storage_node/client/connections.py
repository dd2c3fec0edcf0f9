"""Connections to bookies: one each, opened at the first request, reopened by the first request after a loss.

A request is handed over synchronously and never waits here: while a connection is being opened its frames queue up.
Every request ends exactly once: with the bookie's answer, with an error when the link is lost (unreachable where
nothing was sent, unknown where it was under way), or when a sweep finds its time over. Late answers are dropped.

Time limits are swept, all of a connection at once, by one `Sweeper` a client that runs only while somebody waits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from metadata.errors import DistributedLogError
from storage_node.client.health import BookieHealth
from storage_node.client.placement.quarantine import Quarantine
from storage_node.client.settings import ClientSettings
from storage_node.edge import Buffer, Link, Network
from storage_node.errors import (
    ERROR_OF_STATUS,
    BookieUnreachableError,
    ConnectionClosedError,
    ProtocolError,
    RequestTimeoutError,
)
from storage_node.protocol.frames import LENGTH_BYTES
from storage_node.protocol.messages import (
    AddResponse,
    Operation,
    Response,
    Status,
    decode_response,
    encode_add_response,
)
from storage_node.protocol.writing import Seat

logger = logging.getLogger(__name__)

MAX_ACKNOWLEDGEMENT_BYTES = 64
"""No canonical EOK answer to an add is longer."""

Answer: TypeAlias = Response | DistributedLogError
Resolver: TypeAlias = Callable[[str], Awaitable[tuple[str, int]]]


class AddOwner(Protocol):
    """Who sent an add; called back once for each add and seat."""

    def on_added(self, seat: Seat, entry_id: int) -> None: ...

    def on_refused(self, seat: Seat, entry_id: int, error: DistributedLogError) -> None: ...


class Sweeper:
    """Calls its members every interval; rests while it has none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._loop = loop
        self._interval_s = interval_s
        self._members: dict[Callable[[float], bool], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def join(self, member: Callable[[float], bool]) -> None:
        """Call `member(now)` from now on until it returns False. Joining twice is joining once."""
        if self._stopped:
            return  # the client is closed: connections end their requests without being swept
        self._members[member] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._sweep)

    def leave(self, member: Callable[[float], bool]) -> None:
        self._members.pop(member, None)

    def stop(self) -> None:
        """For good."""
        self._stopped = True
        self._members.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        now = self._loop.time()
        self._timer = None
        for member in list(self._members):
            if member in self._members and not member(now):
                self._members.pop(member, None)
        if self._members and self._timer is None:
            self._timer = self._loop.call_later(self._interval_s, self._sweep)


def answer_error(status: Status, bookie: str, ledger_id: int | None, entry_id: int | None) -> DistributedLogError:
    """The error that a status other than EOK stands for."""
    kind = ERROR_OF_STATUS[int(status)]
    what = (kind.__doc__ or status.name).split(" (E")[0].split(";")[0].rstrip(".")
    return kind(f"{what} ({status.name})", node=bookie, ledger_id=ledger_id, entry_id=entry_id)


class Connection:
    """All requests of this client to one bookie; the `FrameHandler` of its link."""

    def __init__(self, pool: ConnectionPool, bookie: str) -> None:
        self.bookie = bookie
        self._pool = pool
        self._link: Link | None = None
        self._opening: asyncio.Task[None] | None = None
        self._lost_early = False
        self._backlog: list[Buffer] = []
        self._address: tuple[str, int] | None = None
        # by the bytes of the answer that will acknowledge it: owner, seat, entry id, deadline, transaction id
        self._adds: dict[bytes, tuple[AddOwner, Seat, int, float, int]] = {}
        self._requests: dict[int, tuple[Operation, float, Callable[[Answer], None], int]] = {}

    @property
    def queued_bytes(self) -> int:
        """Bytes that have not left yet."""
        if self._link is not None:
            return self._link.queued_bytes
        return sum(map(len, self._backlog))

    # ------------------------------------------------------------------------------------ requests

    def send_add(
        self,
        txn_id: int,
        answer: bytes,
        owner: AddOwner,
        seat: Seat,
        entry_id: int,
        deadline: float,
        frame: tuple[Buffer, ...],
    ) -> None:
        """Send an add; `answer` is the EOK to come. Deadlines must not decrease from call to call."""
        if not self._adds:
            self._pool.sweeper.join(self._sweep)
        self._adds[answer] = (owner, seat, entry_id, deadline, txn_id)
        if self._link is not None:
            self._link.send(*frame)
        else:
            self._send_later(frame)

    def request(
        self, txn_id: int, operation: Operation, frame: bytes, timeout_ms: int, answer: Callable[[Answer], None]
    ) -> None:
        """Send any other request; `answer` is called once, with the response or an error, never from inside."""
        if not self._requests:
            self._pool.sweeper.join(self._sweep)
        self._requests[txn_id] = (operation, self._pool.loop.time() + timeout_ms / 1000, answer, timeout_ms)
        if self._link is not None:
            self._link.send(frame)
        else:
            self._send_later((frame,))

    def forget(self, txn_id: int) -> None:
        """Nobody waits for this request any more."""
        self._requests.pop(txn_id, None)

    def _send_later(self, frame: tuple[Buffer, ...]) -> None:
        self._backlog.extend(frame)
        if self._opening is None:
            self._lost_early = False
            self._opening = self._pool.loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            link = await self._connect()
        except DistributedLogError as error:
            self._opening = None
            self._lose(error)
            return
        except (
            Exception
        ) as error:  # the boundary: whatever a network raises, the requests must end and the next one retry
            logger.exception("cannot connect to %s", self.bookie)
            self._opening = None
            self._lose(BookieUnreachableError(f"the connection could not be made: {error!r}", node=self.bookie))
            return
        self._opening = None
        if self._lost_early:
            self._lose(ConnectionClosedError("the connection was lost as soon as it was made", node=self.bookie))
            return
        self._link = link
        backlog, self._backlog = self._backlog, []
        link.send(*backlog)

    async def _connect(self) -> Link:
        if self._pool.closed:
            raise BookieUnreachableError("the client is closed", node=self.bookie)
        timeout_ms = self._pool.settings.connect_timeout_ms
        try:
            self._address = await asyncio.wait_for(self._pool.resolve(self.bookie), timeout_ms / 1000)
        except (DistributedLogError, asyncio.TimeoutError) as error:
            if self._address is None:
                raise BookieUnreachableError(
                    f"the storage node's address is not known: {error or 'metadata did not answer'}", node=self.bookie
                ) from error
            logger.info("using the last known address of %s: %s", self.bookie, error)  # metadata may just be away
        return await self._pool.network.connect(*self._address, self, timeout_ms=timeout_ms)

    # ------------------------------------------------------------------------------------ FrameHandler

    def frame_received(self, frame: memoryview) -> None:
        """One response. An add's acknowledgement, the hot path, is recognised by its bytes."""
        add = self._adds.pop(bytes(frame), None) if len(frame) < MAX_ACKNOWLEDGEMENT_BYTES else None
        if add is not None:
            add[0].on_added(add[1], add[2])
            return
        response = decode_response(frame)
        if response.operation is Operation.ADD:
            self._other_add_answer(response)
            return
        request = self._requests.get(response.txn_id)
        if request is None or request[0] is not response.operation:
            return  # answers are matched by (txn id, operation); unknown ones are dropped
        del self._requests[response.txn_id]
        if response.status is not Status.EOK:
            self._pool.quarantine.failed(self.bookie, answer_error(response.status, self.bookie, None, None))
        request[2](response)

    def _other_add_answer(self, response: Response) -> None:
        """An error, an EOK in another field order, or an answer whose time was over."""
        add = self._take_add(response)
        if add is None:
            return
        owner, seat, entry_id, _, _ = add
        if not isinstance(response, AddResponse):
            error: DistributedLogError = ProtocolError("an EOK without an answer to the add", node=self.bookie)
            if response.status is not Status.EOK:
                error = answer_error(response.status, self.bookie, None, entry_id)
            self._pool.quarantine.failed(self.bookie, error)
            owner.on_refused(seat, entry_id, error)
        elif response.status is Status.EOK:
            owner.on_added(seat, entry_id)
        else:
            error = answer_error(response.status, self.bookie, response.ledger_id, entry_id)
            self._pool.quarantine.failed(self.bookie, error)
            owner.on_refused(seat, entry_id, error)

    def _take_add(self, response: Response) -> tuple[AddOwner, Seat, int, float, int] | None:
        if isinstance(response, AddResponse):
            ids = (response.ledger_id, response.entry_id)
            add = self._adds.pop(encode_add_response(response.txn_id, Status.EOK, *ids)[LENGTH_BYTES:], None)
            if add is not None:
                return add
        for answer, add in self._adds.items():  # without ids, or with wrong ones: rare enough to be searched for
            if add[4] == response.txn_id:
                del self._adds[answer]
                return add
        return None

    def batch_done(self) -> None:
        """Acknowledgements are passed on one by one; there is nothing to collect."""

    def link_closed(self, error: Exception | None) -> None:
        """All requests under way end as unknown."""
        if self._link is None:
            self._lost_early = True
            return
        self._link = None
        reason = f": {error}" if error is not None else ""
        self._lose(ConnectionClosedError(f"the connection was lost{reason}", node=self.bookie))

    # ------------------------------------------------------------------------------------ ends

    def _lose(self, error: DistributedLogError) -> None:
        if not self._pool.closed:
            self._pool.health.failed(self.bookie)
            self._pool.quarantine.failed(self.bookie, error)
        self._backlog.clear()
        adds, self._adds = self._adds, {}
        requests, self._requests = self._requests, {}
        for owner, seat, entry_id, _, _ in adds.values():
            owner.on_refused(seat, entry_id, error)
        for _, _, answer, _ in requests.values():
            answer(error)

    def _sweep(self, now: float) -> bool:
        """End what has waited too long; True while anything waits."""
        while self._adds:
            expected, (owner, seat, entry_id, deadline, _) = next(iter(self._adds.items()))
            if deadline > now:
                break
            del self._adds[expected]
            owner.on_refused(seat, entry_id, self._late(self._pool.settings.add_entry_timeout_ms, entry_id))
        for txn_id, (_, deadline, answer, limit_ms) in list(self._requests.items()):
            if deadline <= now and self._requests.pop(txn_id, None) is not None:
                answer(self._late(limit_ms, None))
        return bool(self._adds or self._requests)

    def _late(self, limit_ms: int, entry_id: int | None) -> RequestTimeoutError:
        error = RequestTimeoutError(f"no answer within {limit_ms} ms", node=self.bookie, entry_id=entry_id)
        self._pool.health.failed(self.bookie)
        self._pool.quarantine.failed(self.bookie, error)
        return error

    async def close(self) -> None:
        """End the link; requests that still wait end with an error."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
            self._opening = None
        if self._link is not None:
            self._link.close()
            self._link = None
        self._lose(ConnectionClosedError("the client was closed", node=self.bookie))


class ConnectionPool:
    """All connections of one client, on one loop."""

    def __init__(
        self,
        resolve: Resolver,
        settings: ClientSettings,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random | None = None,
    ) -> None:
        self.resolve = resolve
        self.settings = settings
        self.network = network
        self.loop = loop
        self.health = BookieHealth(loop, settings.failure_memory_ms)
        self.quarantine = Quarantine(settings.placement, loop, rng or random.Random())
        self.sweeper = Sweeper(loop, settings.sweep_interval_s)
        self.closed = False
        self._connections: dict[str, Connection] = {}
        self._txn_ids = itertools.count(1)

    def next_txn_id(self) -> int:
        """Unique for this client; the copies of one entry to several bookies may share it."""
        return next(self._txn_ids)

    def to(self, bookie: str) -> Connection:
        """The connection to a bookie, opened when first used."""
        connection = self._connections.get(bookie)
        if connection is None:
            connection = self._connections[bookie] = Connection(self, bookie)
        return connection

    async def close(self) -> None:
        """Close all connections and timers. Idempotent."""
        self.closed = True
        self.sweeper.stop()
        for connection in list(self._connections.values()):
            await connection.close()
