"""`ReadProxyService`: reads of many readers, answered from one read of each log.

Theory of operation. A `ReadBatch` is a pull. Its reader is known by connection and number; where the request goes on at
the position that the reader's session has, the session answers from a ring, in the same step. Where it
does not, a session is opened: a task finds the position, and ends. A read that finds nothing waits in its feed's list:
no task, no polling. When entries come the feed calls all that wait, one after the other; a timer of the loop answers
those for which nothing came in time with an empty delivery, which says where to go on.

    no session, and the log is to be
    read at another proxy              Refusal FOUND, which names it (`balance`)
    no session, or another position    open a session: log, position, feed
    a feed, and something in its ring  Delivery
    a feed, nothing there              wait in the feed's list
    no feed (behind the ring)          wait for a turn to catch up
    a final error                      what came before it, then a Refusal; the session ends

What is refused with code LOG_READ_ERROR and the like is refused for good where it stands, as a direct reader fails; the
refusal's advice says where another one goes on.

Fault model: clients may send anything, ask twice, go away, or never come back. Each bound has a name in the settings.
Reading permission is not checked, as upstream does not check it: the namespace's access control is about writing. The
loop is never blocked by one reader: a delivery is bounded in bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import (
    AlreadyTruncatedError,
    OperationNotServedError,
    ReadError,
    ServiceUnavailableError,
    StreamNotReadyError,
    TooManyStreamsError,
)
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.process.fair_turns import FairTurns
from dlspark.serving.process.peers import ProxyDirectory
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    Delivery,
    FindOwner,
    Handshake,
    ListProxies,
    OwnerFound,
    ProxyInfo,
    ProxyStatus,
    ReadBatch,
    Refusal,
    Request,
    StatusCode,
)
from dlspark.serving.protocol.request_checks import check_stream_length
from dlspark.serving.read_proxy.balance import ReadBalance, any_host
from dlspark.serving.read_proxy.chunks import NOTHING, Chunks, Collected, ReadCursor
from dlspark.serving.read_proxy.figures import ReadProxyFigures
from dlspark.serving.read_proxy.ring import RingBudget
from dlspark.serving.read_proxy.served_log import ServedLog, ServingContext, SharedFeed
from dlspark.serving.read_proxy.sessions import CatchUpTurns, PendingRead, ReaderSession, ReaderSessions
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.routing.hosts import ProxyHost
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks

_log = logging.getLogger(__name__)

SWEEP_S = 1.0
"""How often readers that ask for nothing are looked for."""
LONGEST_TURN_S = 2.0
"""A turn to catch up ends after it while others wait, however little its readers have asked for: a few that ask for one
byte after another kept all others from theirs for good."""
REQUEST_BYTES = 64 * 1024
"""What a read proxy says that it takes: its requests are small."""


class ReadProxyService:
    """Answers the requests of a read proxy's clients: a `ProxyService`. Made on the loop that calls it; close it.

    Args:
        namespace: whose logs are read.
        settings: the proxy's.
        location: how answers name it.
        directory: the proxies that there are; None: none is known.
    """

    def __init__(
        self,
        namespace: AsyncNamespace,
        settings: ReadProxySettings,
        *,
        location: str,
        directory: ProxyDirectory | None = None,
    ) -> None:
        self.settings = settings
        self.location = location
        """How answers name this proxy."""
        self.balance: ReadBalance | None = None
        """Which logs other proxies are to read; None: none."""
        self._namespace = namespace
        self._directory = directory or ProxyDirectory()
        self._loop = asyncio.get_running_loop()
        self._sessions = ReaderSessions(settings.max_readers, settings.max_caller_readers)
        self._turns: CatchUpTurns[ReaderSession] = CatchUpTurns(settings.max_catch_ups, self._granted)
        self._logs: dict[str, ServedLog] = {}
        self._unused: OrderedDict[ServedLog, asyncio.TimerHandle] = OrderedDict()
        self._openings: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._deliveries = self._delivered_bytes = self._catch_ups_begun = self._redirects = 0
        self._context = ServingContext(
            namespace,
            settings,
            rings=RingBudget(settings.rings_bytes),
            catch_up_rings=RingBudget(settings.max_catch_ups * settings.catch_up_bytes),
            chunks=Chunks(settings.decoded_bytes),
            searches=FairTurns(settings.max_searches),
            turn_over=self._turns.give_back,
            failed=self._log_failed,
        )
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    # ------------------------------------------------------------------ requests

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """Begin `request`; see `ProxyService.submit`."""
        try:
            if isinstance(request, Handshake):
                # A read proxy owns nothing: the regular expression, which is the client's, is not tried.
                status = ProxyStatus.DOWN if self._closed else ProxyStatus.WRITE_AND_ACCEPT
                region = str(self._namespace.services.region_id)
                logs_read = len(self._logs) if request.count_logs else None
                reply(ProxyInfo(self.location, status, {}, REQUEST_BYTES, region, logs_read))
                return
            self._check_open()
            if isinstance(request, ReadBatch):
                self._read(request, caller, reply)
            elif isinstance(request, FindOwner):
                reply(OwnerFound(self.location))
            elif isinstance(request, ListProxies):
                reply(self._directory.listed())
            else:
                raise OperationNotServedError(
                    f"a read proxy does not serve {type(request).__name__}",
                    advice="Ask a write proxy: a client is given addresses of write proxies, and read_from for these",
                )
        except DistributedLogError as error:
            reply(refusal_of(error))

    def caller_gone(self, caller: Caller) -> None:
        """Forget the readers of a connection that is closed."""
        for session in self._sessions.of_caller(caller):
            self._drop(session)

    def figures(self) -> ReadProxyFigures:
        """Return what there is now, and what was done so far."""
        chunks = self._context.chunks
        return ReadProxyFigures(
            readers=len(self._sessions),
            waiting=self._sessions.busy_count,
            logs=len(self._logs),
            ring_bytes=self._context.rings.used_bytes,
            catch_up_bytes=self._context.catch_up_rings.used_bytes,
            catch_ups=self._turns.taken,
            catch_ups_waiting=self._turns.waiting,
            catch_ups_begun=self._catch_ups_begun,
            entries_read=self._context.rings.entries_added + self._context.catch_up_rings.entries_added,
            decoded_bytes=chunks.kept_bytes,
            chunks_decoded=chunks.made,
            chunks_shared=chunks.shared,
            redirects=self._redirects,
            deliveries=self._deliveries,
            delivered_bytes=self._delivered_bytes,
        )

    def logs_shown(self) -> Mapping[str, Mapping[str, object]]:
        """Return the logs that are read: how many readers each has, and what is kept for those at its end."""
        return {name: {"readers": log.users, "ringBytes": log.ring_bytes} for name, log in sorted(self._logs.items())}

    def _check_open(self) -> None:
        if self._closed:
            raise ServiceUnavailableError("the read proxy is being stopped", advice="Ask another read proxy")

    # ------------------------------------------------------------------ sessions

    def _read(self, request: ReadBatch, caller: Caller, reply: Reply) -> None:
        session = self._sessions.find(caller, request.reader)
        if session is not None and not session.continues(request):
            self._drop(session)
            session = None
        # A reader with a session reads on here, also where the log would be sent elsewhere by now: what is read stays.
        if session is None:
            check_stream_length(request.stream)
            refusal = self._read_elsewhere(request, caller)
            if refusal is not None:
                reply(refusal)
                return
            session = self._open(request, caller)
        self._supersede(session)
        pending = session.pending = PendingRead(request, reply)
        self._sessions.mark_busy(session)
        self._advance(session)
        if session.pending is pending:
            self._limit(session, pending)

    def _limit(self, session: ReaderSession, pending: PendingRead) -> None:
        """Give a read that waits its time: that for finding the position first, then what its reader will wait."""
        if pending.timer is not None:
            pending.timer.cancel()
        request, most = pending.request, self.settings.max_wait_ms
        wait_ms = self.settings.max_open_ms if session.cursor is None else min(max(request.wait_ms, 0), most)
        if request.context.timeout_ms > 0:
            wait_ms = min(wait_ms, request.context.timeout_ms)
        pending.timer = self._loop.call_later(wait_ms / 1000, self._supersede, session)

    def _read_elsewhere(self, request: ReadBatch, caller: Caller) -> Refusal | None:
        """Return the refusal that sends a reader to another proxy; None where the log is read here, or is to be."""
        log = self._logs.get(request.stream)
        if self.balance is None or (log is not None and not log.failed):
            return None
        location = self.balance.elsewhere(
            request.stream,
            len(self._logs),
            request.context.tried_hosts,
            self._loop.time(),
            usable=self._speaks_grpc if caller.grpc else any_host,
            client=caller.address if caller.grpc else None,
        )
        if location is None:
            return None
        self._redirects += 1
        return Refusal(
            StatusCode.FOUND,
            f"the proxy reads {len(self._logs)} logs, its share of those that all read proxies read",
            location=location,
            advice=f"Read the log at {location}; or ask again, with the proxies that were asked as tried hosts",
        )

    def _speaks_grpc(self, host: ProxyHost) -> bool:
        return self._directory.grpc_address(host.location) != ""

    def _open(self, request: ReadBatch, caller: Caller) -> ReaderSession:
        self._sessions.check_room(caller)
        log = self._served(request.stream)
        session = ReaderSession(
            caller=caller, number=request.reader, log=log, asked=request.start, on_change=self._advance
        )
        self._sessions.add(session)
        self._use(log)
        session.opening = self._opening(self._find_position(session))
        return session

    async def _find_position(self, session: ReaderSession) -> None:
        try:
            await asyncio.shield(session.log.opened)
            position = await session.log.position_of(session.asked, session.caller.address)
        except Exception as error:
            session.opening = None
            if not isinstance(error, DistributedLogError):
                _log.exception("log %s: a reader's start could not be found", session.log.name)
                error = ReadError(f"the start could not be found: {error!r}", log=session.log.name)
            self._refuse(session, error)
            return
        session.opening = None
        if not session.closed:
            session.cursor = session.log.cursor(position)
            self._advance(session)
            if session.pending is not None:
                self._limit(session, session.pending)

    def _supersede(self, session: ReaderSession) -> None:
        """Answer a read that nobody waits for any longer: its time is over, or its reader has asked again."""
        pending = session.pending
        if pending is None:
            return
        if session.cursor is None:
            self._answer(session, pending, _not_ready(session.log.name))
        else:
            self._deliver(session, pending, session.cursor, NOTHING)

    def _drop(self, session: ReaderSession) -> None:
        """End a session. A read of it that is under way is answered: it will not be by anything else."""
        if session.closed:
            return
        self._supersede(session)
        session.closed = True
        self._turns.withdraw(session.caller.address, session)
        session.log.leave(session)
        self._sessions.remove(session)
        if session.opening is not None:
            session.opening.cancel()
        self._release(session.log)

    # ------------------------------------------------------------------ what a reader gets next

    def _advance(self, session: ReaderSession) -> None:
        """Answer the reader's pending read, if it can be answered; otherwise see to it that it will be."""
        cursor = session.cursor
        # A reply may ask for the next read at once: the loop answers that too, and the stack does not get deeper.
        while not session.closed and (pending := session.pending) is not None and cursor is not None:
            if cursor.failure is not None:
                self._refuse(session, cursor.failure)
            elif cursor.end_of_stream:
                self._deliver(session, pending, cursor, NOTHING)
            elif (shared := session.log.attach(session, cursor)) is None:
                self._wait_for_turn(session)
                return
            elif not self._collect(session, pending, cursor, shared):
                return

    def _wait_for_turn(self, session: ReaderSession) -> None:
        """Have a reader wait for its turn to catch up. A feed that is kept though nobody reads from it makes room."""
        self._turns.ask(session.caller.address, session)  # the connection's: each call of gRPC is a caller of its own
        if session.shared is None and self._context.lingering:
            lingering, log = self._context.lingering.popitem(last=False)
            log.end_feed(lingering)

    def _collect(self, session: ReaderSession, pending: PendingRead, cursor: ReadCursor, shared: SharedFeed) -> bool:
        """Deliver what the ring has for the reader; False where it has to wait."""
        request = pending.request
        found = cursor.collect(request.form, min(max(request.max_bytes, 1), self.settings.max_delivery_bytes))
        shared.feed.advanced(cursor.ordinal)
        if found.parts:
            self._deliver(session, pending, cursor, found)
            return True
        if cursor.failure is not None or cursor.end_of_stream or cursor.fallen_out:
            return True
        if shared.catches_up and (shared.feed.complete or session.log.tail.feed.ring.covers(cursor.position)):
            return True  # It has caught up, by what its readers do not see; or goes on behind another ring's loss.
        if shared.feed.failure is not None:
            cursor.failure = shared.feed.failure
            return True
        shared.waiting[session] = None
        return False

    def _granted(self, session: ReaderSession) -> bool:
        """Use the session's turn to catch up; whether it is used."""
        if session.closed or session.cursor is None:
            return False
        used = session.log.catch_up(session, session.cursor)
        self._catch_ups_begun += used
        # Not now: this is called from within a step of another reader.
        self._loop.call_soon(self._advance, session)
        return used

    # ------------------------------------------------------------------ answers

    def _deliver(self, session: ReaderSession, pending: PendingRead, cursor: ReadCursor, found: Collected) -> None:
        """Answer a read with what was found. A feed that catches up, and has had its share, loses its turn by that."""
        shared = session.shared
        self._deliveries += 1
        self._delivered_bytes += found.size
        delivery = Delivery(pending.request.form, cursor.position, found.parts, cursor.end_of_stream)
        self._answer(session, pending, delivery)
        if shared is not None and shared.catches_up:
            shared.delivered_bytes += found.size
            if not session.closed:  # the reply may have closed it
                session.log.attach(session, cursor)  # It may have caught up by this.
            if self._turns.contended and shared.delivered_bytes >= self.settings.catch_up_turn_bytes:
                session.log.end_turn(shared)

    def _refuse(self, session: ReaderSession, error: DistributedLogError) -> None:
        """End a session with its final error."""
        if session.closed:
            return
        refusal = refusal_of(error)
        if session.cursor is not None:
            note = f"Everything before {session.cursor.position} was delivered"
            if not isinstance(error, AlreadyTruncatedError):  # it says itself where there are records
                note += ": another reader goes on there"
            refusal = replace(refusal, advice=f"{refusal.advice}. {note}" if refusal.advice else note)
        pending, session.pending = session.pending, None
        self._drop(session)  # before the reply, which may ask again
        if pending is not None:
            pending.end(refusal)

    def _answer(self, session: ReaderSession, pending: PendingRead, answer: Delivery | Refusal) -> None:
        """End a session's pending read, before the reply is called: that may ask for the next one."""
        session.pending = None
        if session.shared is not None:
            session.shared.waiting.pop(session, None)
        if isinstance(answer, Delivery):
            session.next = answer.next
        self._sessions.mark_idle(session, self._loop.time())
        pending.end(answer)

    # ------------------------------------------------------------------ logs

    def _served(self, name: str) -> ServedLog:
        """Return the log as it is served; begins to serve it where it is not."""
        log = self._logs.get(name)
        if log is not None and not log.failed:
            return log
        if len(self._logs) >= self.settings.max_logs and self._unused:
            self._end_log(next(iter(self._unused)))
        if len(self._logs) >= self.settings.max_logs:
            raise TooManyStreamsError(
                f"the proxy reads {self.settings.max_logs} logs, the most it takes", advice="Ask another read proxy"
            )
        log = self._logs[name] = ServedLog(name, self._context)
        self._opening(self._open_log(log))
        return log

    async def _open_log(self, log: ServedLog) -> None:
        try:
            await log.open()
        except BaseException as error:
            if self._logs.get(log.name) is log:
                del self._logs[log.name]
            known = error if isinstance(error, DistributedLogError) else ReadError(f"{error!r}", log=log.name)
            log.opened.set_exception(known)
            log.opened.exception()  # its readers may all have gone
            if not isinstance(error, Exception):
                raise
        else:
            log.opened.set_result(None)
        finally:
            self._settle(log)

    def _use(self, log: ServedLog) -> None:
        log.users += 1
        timer = self._unused.pop(log, None)
        if timer is not None:
            timer.cancel()

    def _release(self, log: ServedLog) -> None:
        log.users -= 1
        self._settle(log)

    def _settle(self, log: ServedLog) -> None:
        """Let a log without readers go: at once where nobody can use it again, else after a while."""
        if log.users or log in self._unused or not log.opened.done():
            return
        if self._closed or self._logs.get(log.name) is not log:
            self._end_log(log)
        else:
            self._unused[log] = self._loop.call_later(self.settings.linger_ms / 1000, self._end_log, log)

    def _end_log(self, log: ServedLog) -> None:
        timer = self._unused.pop(log, None)
        if timer is not None:
            timer.cancel()
        if self._logs.get(log.name) is log:
            del self._logs[log.name]
        task = self._loop.create_task(log.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _log_failed(self, log: ServedLog) -> None:
        """Have the log opened anew for the next reader; readers that are here get what is left, then the error."""
        if self._logs.get(log.name) is log:
            del self._logs[log.name]
        self._loop.call_soon(self._settle, log)

    # ------------------------------------------------------------------ the end

    def _sweep(self) -> None:
        now = self._loop.time()
        for session in self._sessions.idle_for(self.settings.reader_idle_ms / 1000, now):
            self._drop(session)
        for session in self._sessions.idle_for(self.settings.catch_up_idle_ms / 1000, now):
            if session.shared is not None and session.shared.catches_up:
                session.log.leave(session)
        if self._turns.contended:
            self._end_long_turns(now)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _end_long_turns(self, now: float) -> None:
        """End the turns that took longest, as many as readers wait for."""
        for shared, log in list(self._context.catching_up.items())[: self._turns.waiting]:
            if now - shared.begun_s < LONGEST_TURN_S:
                return
            log.end_turn(shared)

    def _opening(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)
        return task

    async def close(self) -> None:
        """Refuse what waits and what comes, and end all reading. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._sweeper.cancel()
        stopping = ServiceUnavailableError("the read proxy is being stopped", advice="Ask another read proxy")
        for session in self._sessions:
            self._refuse(session, stopping)
        await end_tasks(list(self._openings), drop_errors=True)
        for log in [*self._unused, *self._logs.values()]:
            self._end_log(log)
        while self._closing:
            await asyncio.wait(list(self._closing))


def _not_ready(log: str) -> Refusal:
    """Return the answer to a read whose time is over before its position was found: where to go on is not known."""
    return refusal_of(StreamNotReadyError("the reader's start was not found in time", log=log, advice="Ask again"))
