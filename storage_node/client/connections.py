"""Connections to bookies: one each, or some, opened at the first request, reopened by the first one after a loss.

A request is handed over synchronously and never waits here: while a connection is being opened its frames queue up.
Every request ends exactly once: with the bookie's answer, with an error when the link is lost (unreachable where
nothing was sent, unknown where it was under way), or when a sweep finds its time over. Late answers are dropped.

A link on which nothing at all came during some request's whole time is taken for dead, whatever TCP thinks of it: it is
closed, and the next request looks the bookie's address up again.

At the end stand the requests that no machine makes: the same one to several bookies (`ask_bookies`), and the one for
disk space.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from metadata.foundation.errors import DistributedLogError
from storage_node.client.add_runs import AddOwner, AddsUnderWay, SentRun
from storage_node.client.channels import Channel, Resolver, Surroundings, Sweeper
from storage_node.client.entering import ClientSecurity, client_security
from storage_node.client.health import BookieHealth, Quarantine
from storage_node.client.nearness import Hedges, Nearness, least_pending_first, order_over_regions
from storage_node.edge import Link, Network
from storage_node.errors import (
    ERROR_OF_STATUS,
    ConnectionClosedError,
    ProtocolError,
    RequestTimeoutError,
    TlsError,
)
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.encoding import encode_bookie_info_request
from storage_node.protocol.frames import Buffer
from storage_node.protocol.reading import more_telling
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import AddResponse, BatchReadResponse, BookieInfoResponse, ErrorResponse, Response
from storage_node.protocol.writing_model import Seat
from storage_node.settings.client import ClientSettings
from storage_node.transport.tls import insecure_error

logger = logging.getLogger(__name__)

BATCHES_AGAIN_S = 60.0
"""A secured node that dropped a connection at its first batch is asked for batches again after this."""

Answer: TypeAlias = Response | DistributedLogError


class Connection(Channel):
    """All requests of version 3 to one bookie, on one of its channels; the `FrameHandler` of its link."""

    def __init__(self, pool: ConnectionPool, bookie: str) -> None:
        super().__init__(pool, bookie)
        self._pool = pool
        self._heard = pool.loop.time()
        self._adds = AddsUnderWay()
        self.recognise = self._adds.recognise
        """Takes the EOKs to adds that what was read begins with, the hot path; returns how many bytes they are."""
        self._requests: dict[int, tuple[Operation, float, Callable[[Answer], None], int]] = {}

    @property
    def pending(self) -> int:
        """Requests under way that are no adds."""
        return len(self._requests)

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
        *,
        at_once: bool = False,
    ) -> None:
        """Send an add; `answer` is the EOK frame to come. `at_once`: within this call, where a link stands."""
        if not self._adds:
            self._pool.sweeper.join(self._sweep)
        self._adds.sent(answer, (owner, seat, entry_id, deadline, txn_id))  # before sending: a lost link must refuse it
        if self._link is None:
            self._send_later(frame)
        elif at_once:
            self._link.send_at_once(*frame)
        else:
            self._link.send(*frame)

    def will_send(self) -> None:
        """Have the link's queue leave behind what this turn of the loop has still to call: a run will be in it."""
        if self._link is not None:
            self._link.send()

    def send_run(self, run: SentRun, frames: bytes) -> None:
        """Send adds, all of whose frames are `frames`."""
        if not self._adds:
            self._pool.sweeper.join(self._sweep)
        self._adds.sent_run(run)  # before sending: a lost link must refuse them
        if self._link is not None:
            self._link.send(frames)
        else:
            self._send_later((frames,))

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
        """Drop the answer if it still comes: it is not wanted any more."""
        self._requests.pop(txn_id, None)

    # ------------------------------------------------------------------------------------ FrameHandler

    def frame_received(self, frame: memoryview) -> None:
        """Take one response. An add's acknowledgement is recognised by its bytes."""
        if self._adds.acknowledge(frame):
            return
        self._adds.pass_on()  # answers are passed on in the order in which they came
        response = decode_response(frame)
        if isinstance(response, ErrorResponse) and response.status is Status.EUA:
            self._not_heard(response)
            return
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
        """Handle an error, an EOK in another field order, or an answer whose time was over."""
        add = self._adds.take(response)
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
            owner.on_added(seat, (entry_id,))
        else:
            error = answer_error(response.status, self.bookie, response.ledger_id, entry_id)
            self._pool.quarantine.failed(self.bookie, error)
            owner.on_refused(seat, entry_id, error)

    def _not_heard(self, response: ErrorResponse) -> None:
        """End a request that was refused before it began: the node wants TLS or a proof first.

        Never as UnauthorizedAccessError, by which recovery concludes that the bookie holds what another client wrote.
        """
        reason: object = "it refuses the request (EUA) for what this client has proved so far"
        if not self._pool.security.asks:
            reason = TlsError(
                "it refuses the request (EUA), for this client is without TLS (security=on, or DLSPARK_SECURITY)",
                advice="Nothing was done. Set security=on and securityDirectory, or DLSPARK_SECURITY",
            )
        error = insecure_error(f"the storage node {self.bookie}", reason, node=self.bookie)
        self._pool.quarantine.failed(self.bookie, error)
        if response.operation is Operation.ADD:
            add = self._adds.take(response)
            if add is not None:
                add[0].on_refused(add[1], add[2], error)
            return
        request = self._requests.get(response.txn_id)
        if request is not None and request[0] is response.operation:
            del self._requests[response.txn_id]
            request[2](error)

    def _opened(self) -> None:
        self._heard = self._pool.loop.time()

    def batch_done(self) -> None:
        """Pass the EOKs of one read on together."""
        self._heard = self._pool.loop.time()
        self._adds.pass_on()

    # ------------------------------------------------------------------------------------ ends

    def _under_way(self) -> frozenset[object]:
        return frozenset((*self._adds.keys(), *self._requests))

    def _waits_for(self, keys: frozenset[object]) -> bool:
        return self._adds.waits_for(keys) or any(key in self._requests for key in keys)

    def _end_these(self, keys: frozenset[object], error: DistributedLogError) -> None:
        self._pool.quarantine.failed(self.bookie, error)
        # Taken out first, as in `_end_all`.
        adds = self._adds.take_these(keys)
        requests = [self._requests.pop(key) for key in keys if isinstance(key, int) and key in self._requests]
        for owner, seat, entry_id, _, _ in adds:
            owner.on_refused(seat, entry_id, error)
        for _, _, answer, _ in requests:
            answer(error)

    def _left(self, link: Link, keys: frozenset[object], error: Exception | None) -> None:
        self._adds.pass_on()  # of a batch that ended with the link: in no table any more, nothing else would end them
        super()._left(link, keys, error)

    def _end_all(self, error: DistributedLogError) -> None:
        if not self._pool.closed:
            self._pool.quarantine.failed(self.bookie, error)
        self._adds.pass_on()  # of a batch that ended with the link: its EOKs are as good as others
        # Taken out first: an owner may send again at once, on the next link, and that must not be ended here.
        adds = self._adds.take_all()
        requests, self._requests = self._requests, {}
        for owner, seat, entry_id, _, _ in adds:
            owner.on_refused(seat, entry_id, error)
        for _, _, answer, _ in requests.values():
            answer(error)

    def _sweep(self, now: float) -> bool:
        """End what has waited too long; True while anything waits."""
        began = now
        limit_ms = self._pool.settings.add_entry_timeout_ms
        for owner, seat, entry_id, deadline, _ in self._adds.take_late(now):
            began = min(began, deadline - limit_ms / 1000)
            owner.on_refused(seat, entry_id, self._late_error(limit_ms, entry_id))
        for txn_id, (_, deadline, answer, limit_ms) in list(self._requests.items()):
            if deadline <= now and self._requests.pop(txn_id, None) is not None:
                began = min(began, deadline - limit_ms / 1000)
                answer(self._late_error(limit_ms, None))
        # A slow request alone does not show that the link is dead: other answers may have come since it was sent.
        if began < now and self._heard < began and self._link is not None:
            logger.warning("nothing comes from %s any more: its connection is made anew", self.bookie)
            self._broken = "nothing came from the node any more"
            self._link.close()
        return bool(self._adds or self._requests)

    def _late_error(self, limit_ms: int, entry_id: int | None) -> RequestTimeoutError:
        error = RequestTimeoutError(f"no answer within {limit_ms} ms", node=self.bookie, entry_id=entry_id)
        self._pool.health.failed(self.bookie)
        self._pool.quarantine.failed(self.bookie, error)
        return error


class ConnectionPool:
    """All connections of one client, on one loop."""

    def __init__(
        self,
        resolve: Resolver,
        settings: ClientSettings,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random | None = None,
        security: ClientSecurity | None = None,
    ) -> None:
        """Make no connection yet. Raises IdentityError where the settings name certificates that are none."""
        self.resolve = resolve
        self.settings = settings
        self.security = security or client_security(settings)
        self.network = network
        self.loop = loop
        self.health = BookieHealth(loop, settings.failure_memory_ms)
        self.nearness = Nearness()
        self.hedges = Hedges(settings.hedged_reads_percent)
        self.quarantine = Quarantine(settings.placement, loop, rng or random.Random())
        self.sweeper = Sweeper(loop, settings.sweep_interval_s)
        self.closed = False
        self.adds_under_way = 0
        """Entries of all writers that were added and are not acknowledged yet."""
        self.lone_adds = 0
        """So many in a row were the only one under way when the turn of the loop that added them ended."""
        self._looks = 0
        self._channels = settings.channels_per_bookie
        self._connections: dict[tuple[str, int], Connection] = {}
        self._batches: dict[str, BatchConnection] = {}
        self._next_txn_id = 1

    def next_txn_id(self, count: int = 1) -> int:
        """Return the first of `count` numbers in a row that are unique for this client; the copies of one entry to
        several bookies may share one."""
        first = self._next_txn_id
        self._next_txn_id = first + count
        return first

    @property
    def bookies(self) -> set[str]:
        """All that there ever was a connection to."""
        return {bookie for bookie, _ in self._connections} | set(self._batches)

    @property
    def requests(self) -> int:
        """How many numbers `next_txn_id` has given out. Looking takes one as well, which is not counted: so requests,
        which are many, need no counter of their own."""
        self._looks += 1
        return self.next_txn_id() - self._looks

    def pending(self, bookie: str) -> int:
        """Return how many requests to a bookie are under way: reads and questions, each batch as one."""
        count = sum(
            connection.pending
            for channel in range(self._channels)
            if (connection := self._connections.get((bookie, channel))) is not None
        )
        batches = self._batches.get(bookie)
        return count + (0 if batches is None else batches.pending)

    def reading_order(self, indices: Sequence[int], bookies: Sequence[str]) -> Sequence[int]:
        """Return `indices` of `bookies`, which are in write-set order, as they are to be asked, by the settings: over
        regions where the own one is known."""
        settings, nearness = self.settings, self.nearness
        if not settings.reorder_reads:
            return indices
        if settings.reorder_threshold_pending:
            indices = least_pending_first(
                indices, lambda index: self.pending(bookies[index]), settings.reorder_threshold_pending
            )
        if not nearness.known:
            return self.health.reading_order(indices, bookies)
        now = self.loop.time()
        return order_over_regions(
            indices,
            lambda index: self.health.standing(
                bookies[index],
                local=nearness.is_local(bookies[index]),
                time_s=nearness.round_trip_s(bookies[index], now),
                pending=self.pending(bookies[index]),
            ),
        )

    def note_slow(self, bookie: str) -> None:
        """Note that another replica had to be asked as well. Not where requests under way decide: there they show how
        busy a bookie is."""
        if not self.settings.reorder_threshold_pending:
            self.health.slow(bookie)

    def to(self, bookie: str, ledger_id: int = 0) -> Connection:
        """Return the connection to a bookie that a ledger uses, opened when first used."""
        key = (bookie, ledger_id % self._channels)
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = Connection(self, bookie)
        return connection

    def batches_of(self, bookie: str) -> BatchConnection:
        """Return the connection, of version 2, for a bookie's batch reads."""
        connection = self._batches.get(bookie)
        if connection is None:
            connection = self._batches[bookie] = BatchConnection(self, bookie)
        return connection

    async def close(self) -> None:
        """Close all connections and timers. Idempotent."""
        self.closed = True
        self.sweeper.stop()
        for connection in (*self._connections.values(), *self._batches.values()):
            await connection.close()
        await self.security.close()


BatchAnswer: TypeAlias = BatchReadResponse | DistributedLogError

_UNKNOWN_THERE = (Status.EBADREQ, Status.EBADVERSION)


class BatchConnection(Channel):
    """All batch reads of one client from one bookie.

    Only version 2 of the protocol has them, so they go by a connection of their own. A bookie may not know them: it
    drops the connection, or refuses. Then they are `refused`, and entries are read one by one. A connection that is
    lost after a batch was answered is an ordinary loss. Where connections are secured, one that is dropped may also be
    one of a client that has not the rights yet, to which version 2 has no answer: batches are tried again later.
    """

    def __init__(self, surroundings: Surroundings, bookie: str) -> None:
        super().__init__(surroundings, bookie)
        self._refused_until_s = 0.0
        """By the loop's clock."""
        self._served = False
        self._requests: dict[int, tuple[float, Callable[[BatchAnswer], None], int]] = {}

    @property
    def refused(self) -> bool:
        """The bookie does not serve batch reads, as far as is known."""
        return self._around.loop.time() < self._refused_until_s

    @property
    def pending(self) -> int:
        """Batches under way."""
        return len(self._requests)

    def read(
        self,
        request_id: int,
        ledger_id: int,
        first: int,
        *,
        max_count: int,
        max_bytes: int,
        timeout_ms: int,
        answer: Callable[[BatchAnswer], None],
    ) -> None:
        """Ask for entries from `first` on; `answer` is called once, with the response or an error."""
        around = self._around
        if not self._requests:
            around.sweeper.join(self._sweep)
        self._requests[request_id] = (around.loop.time() + timeout_ms / 1000, answer, timeout_ms)
        frame = v2.encode_batch_read_request(ledger_id, first, request_id, max_count=max_count, max_bytes=max_bytes)
        if self._link is not None:
            self._link.send(frame)
        else:
            self._send_later((frame,))

    def forget(self, request_id: int) -> None:
        """Drop the answer if it still comes: it is not wanted any more."""
        self._requests.pop(request_id, None)

    def frame_received(self, frame: memoryview) -> None:
        """Take one response; only batches are asked for here."""
        response = v2.decode_response(frame)
        if not isinstance(response, BatchReadResponse):
            raise ProtocolError(f"an answer to {response.operation.name} where batches were asked for")
        self._served = True
        if response.status in _UNKNOWN_THERE:
            self._refused_until_s = math.inf
        request = self._requests.pop(response.request_id, None)
        if request is not None:
            request[1](response)

    def _sweep(self, now: float) -> bool:
        for request_id, (deadline, answer, limit_ms) in list(self._requests.items()):
            if deadline <= now and self._requests.pop(request_id, None) is not None:
                answer(RequestTimeoutError(f"no batch of entries within {limit_ms} ms", node=self.bookie))
        return bool(self._requests)

    def _under_way(self) -> frozenset[object]:
        return frozenset(self._requests)

    def _waits_for(self, keys: frozenset[object]) -> bool:
        return any(key in self._requests for key in keys)

    def _end_these(self, keys: frozenset[object], error: DistributedLogError) -> None:
        for request in [self._requests.pop(key) for key in keys if isinstance(key, int) and key in self._requests]:
            request[1](error)

    def _end_all(self, error: DistributedLogError) -> None:
        requests, self._requests = self._requests, {}
        if requests and not self._served and isinstance(error, ConnectionClosedError) and not self._around.closed:
            secured = self._around.security.asks
            self._refused_until_s = self._around.loop.time() + BATCHES_AGAIN_S if secured else math.inf
            self._around.health.answered(self.bookie)  # it did what such a bookie does: nothing is wrong with it
        for _, answer, _ in requests.values():
            answer(error)


def answer_error(status: Status, bookie: str, ledger_id: int | None, entry_id: int | None) -> DistributedLogError:
    """Return the error that a status other than EOK stands for."""
    kind = ERROR_OF_STATUS[int(status)]
    what = (kind.__doc__ or status.name).split(" (E")[0].split(";")[0].rstrip(".")
    return kind(f"{what} ({status.name})", node=bookie, ledger_id=ledger_id, entry_id=entry_id)


# ------------------------------------------------------------------------------------ single requests


async def ask_bookies(
    pool: ConnectionPool,
    ledger_id: int,
    bookies: Sequence[str],
    operation: Operation,
    encode: Callable[[int], bytes],
    *,
    needed: int,
) -> None:
    """Send `encode(txn_id)` to all of `bookies`; return when `needed` said EOK.

    Raises the error that says most, as soon as `needed` cannot say so any more; some bookies may have done it even so.
    """
    decided: asyncio.Future[None] = pool.loop.create_future()
    asked: list[tuple[str, int]] = []
    succeeded = 0
    refused = 0
    error: DistributedLogError | None = None

    def answered(bookie: str, answer: Answer) -> None:
        nonlocal succeeded, refused, error
        if decided.done():
            return
        if not isinstance(answer, DistributedLogError) and answer.status is Status.EOK:
            pool.health.answered(bookie)
            succeeded += 1
            if succeeded == needed:
                decided.set_result(None)
            return
        refused += 1
        failure = answer if isinstance(answer, DistributedLogError) else None
        if failure is None and not isinstance(answer, DistributedLogError):
            failure = answer_error(answer.status, bookie, ledger_id, None)
        error = more_telling(error, failure or ProtocolError("no reason", node=bookie))
        if refused > len(bookies) - needed:
            decided.set_exception(error)

    def ask(bookie: str) -> None:
        txn_id = pool.next_txn_id()
        asked.append((bookie, txn_id))
        pool.to(bookie, ledger_id).request(
            txn_id,
            operation,
            encode(txn_id),
            pool.settings.read_entry_timeout_ms,
            lambda answer: answered(bookie, answer),
        )

    try:
        for bookie in bookies:
            ask(bookie)
        await decided
    finally:
        for bookie, txn_id in asked:
            pool.to(bookie, ledger_id).forget(txn_id)


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """How much room has a bookie? Bytes of its ledger disks together; None for what it does not report."""

    total: int | None
    free: int | None


async def ask_disk_space(pool: ConnectionPool, bookie: str) -> DiskSpace:
    """Ask `bookie`, for at most `getBookieInfoTimeoutSecs`. Raises what kept it from answering."""
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def take(answer: Answer) -> None:
        if not answered.done():
            answered.set_result(answer)

    txn_id = pool.next_txn_id()
    timeout_ms = pool.settings.placement.get_bookie_info_timeout_s * 1000
    pool.to(bookie).request(txn_id, Operation.BOOKIE_INFO, encode_bookie_info_request(txn_id), timeout_ms, take)
    answer = await answered
    if isinstance(answer, DistributedLogError):
        raise answer
    if not isinstance(answer, BookieInfoResponse) or answer.status is not Status.EOK:
        raise answer_error(answer.status, bookie, None, None)
    return DiskSpace(answer.total_disk_capacity, answer.free_disk_space)
