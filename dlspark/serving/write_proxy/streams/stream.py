"""`ProxyStream`: one stream on a write proxy: its log's writer, the requests that wait for it, its end.

`streams.model` decides, this does: it opens the writer in a task of its own, hands requests to `Execution`, closes or
aborts the writer, and answers what waits when that is known. Requests are begun in the order in which they came, those
that waited before all others.

Fault model: opening and closing may take as long as ZooKeeper and storage nodes let them, and end in any error. The
lock is released whatever happens: an error of closing is logged, and what it means for records their own answers say.
A request that waits when a stream ends was not begun, and its refusal says so; one that was begun is answered by what
its writer says, never by a guess.

Each stream is bounded: in requests under way (`server_max_stream_requests_under_way`), in truncations, and by the
bytes of the whole proxy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from dlspark.core.log import AsyncLog
from dlspark.core.metrics.structured_logging import about
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import OperationNotServedError, OverCapacityError, StreamUnavailableError, WriteCancelledError
from dlspark.serving.bindings.service import Caller
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    DeleteStream,
    Done,
    Refusal,
    ReleaseStream,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import check_record_sets, opens_at_once
from dlspark.serving.routing.hosts import address_of
from dlspark.serving.write_proxy.streams.execution import Execution, opened_sets
from dlspark.serving.write_proxy.streams.limits import WriteLimiter
from dlspark.serving.write_proxy.streams.model import (
    DENIED_KEPT_S,
    ON_REQUEST,
    FailureScope,
    OnRequest,
    StreamEffect,
    StreamEvent,
    StreamState,
    failure_scope_of,
    step,
)
from dlspark.serving.write_proxy.streams.runs import TakenRun
from dlspark.serving.write_proxy.streams.stream_host import (
    END_IN_DOUBT,
    MayCreate,
    StreamHost,
    check_permitted,
    permissions_of,
)
from dlspark.serving.write_proxy.streams.taken_requests import TakenRequest, not_begun, too_late_error
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.owner_names import gives_way
from metadata.distributedlog.permissions import ALLOW_ALL, Permissions, RequestDeniedError
from metadata.foundation.errors import DistributedLogError

_LOG: Final = logging.getLogger(__name__)

MAX_TRUNCATIONS: Final = 16
"""Truncations of one stream that are under way."""
STAY_S: Final = 1
"""The time for which the lock's queue is waited in, again and again, for an owner that gives way."""


class ProxyStream:
    """What becomes of requests on one stream, from the first until the proxy gives it up?

    Args:
        host: what it shares with all others.
        limiter: its own limits, which the service checks.
        lock_timeout_s: how long to wait for another owner of the log to give it up; 0: not at all.
        create_missing: make the log where there is none.
        may_create: whether a caller may make it, asked and noted once it is known that there is none, of those who wait
            then: one without the right keeps nobody else from making it. None: anybody may.

    All calls come from one event loop; none of them waits.
    """

    def __init__(
        self,
        name: str,
        host: StreamHost,
        limiter: WriteLimiter,
        *,
        lock_timeout_s: int = 0,
        create_missing: bool = True,
        may_create: MayCreate | None = None,
    ) -> None:
        self.name = name
        self.limiter = limiter
        self.state = StreamState.UNINITIALIZED
        self.permissions: Permissions = ALLOW_ALL
        self.moving = False
        """True while it is handed over."""
        self.under_way: dict[TakenRequest | TakenRun, None] = {}
        """Every request that is not answered, in the order in which they came; those that came together as one."""
        self.requests = 0
        """How many these are."""
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._lock_timeout_s = lock_timeout_s
        self._create_missing = create_missing
        self._may_create = may_create
        self._waiting: deque[TakenRequest] = deque()
        self._opening: TakenRequest | None = None
        """The request whose record sets are opened in a thread: what comes behind it waits."""
        self._on_request = ON_REQUEST[self.state]
        self._execution: Execution | None = None
        self._log: AsyncLog | None = None
        self._writer: AsyncLogWriter | None = None
        self._refusal = refusal_of(StreamUnavailableError("the stream is not open", log=name))
        self._keep_s = 0.0
        self._kept: asyncio.TimerHandle | None = None
        self._afterwards: Callable[[], Awaitable[None]] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._truncations = 0
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when it has no writer, and does not open one any more."""

    # ------------------------------------------------------------------ for the service

    @property
    def owned(self) -> bool:
        """True while this proxy serves it."""
        return self.state is StreamState.INITIALIZED

    @property
    def refusal(self) -> Refusal | None:
        """The refusal of all requests; None where they are not refused."""
        return self._refusal if self._on_request is OnRequest.REFUSE else None

    def submit(self, taken: TakenRequest) -> None:
        """Begin a request, or let it wait. Raises OverCapacityError where too many are under way."""
        host = self._host
        settings = host.settings
        if self.requests >= settings.max_stream_requests:
            raise OverCapacityError(
                f"{self.requests} requests on this stream are under way; the request was not taken",
                log=self.name,
                advice="Wait for earlier answers",
            )
        host.traffic.take(taken.size, settings.max_bytes_under_way)
        self.under_way[taken] = None
        self.requests += 1
        taken.on_end = self._ended
        # Behind those that wait, also when the log is open by now: a caller's requests are begun in their order.
        if self._on_request is OnRequest.RUN and self._opening is None and not self._waiting:
            self._begin(taken)
        elif self._on_request is not OnRequest.REFUSE:
            self._waiting.append(taken)
            host.waited.add(self)
            if self.state is StreamState.UNINITIALIZED:
                self.start()
        else:
            taken.answer(self._refusal)
        if settings.service_timeout_ms > 0 and self._watch is None:
            self._watch_oldest()

    def submit_run(self, run: TakenRun) -> bool:
        """Begin writes that came together; False where any of them would wait, or be refused: nothing was done."""
        host, execution = self._host, self._execution
        settings, traffic = host.settings, host.traffic
        if (
            execution is None
            or self._on_request is not OnRequest.RUN
            or self.waits
            or self.permissions is not ALLOW_ALL
            or self.requests + run.records > settings.max_stream_requests
            or traffic.bytes + run.size > settings.max_bytes_under_way
        ):
            return False
        traffic.take(run.size, settings.max_bytes_under_way, run.records)
        self.under_way[run] = None
        self.requests += run.records
        run.on_end = self._ended
        execution.begin_run(run)
        if settings.service_timeout_ms > 0 and self._watch is None:
            self._watch_oldest()
        return True

    def start(self) -> None:
        """Begin to open the log, where that has not begun."""
        self._happened(StreamEvent.START)

    def give_up(
        self, refusal: Refusal, keep_s: float = 0.0, afterwards: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Let the writer finish what it has, close it, release the lock. `ended` says when that is done.

        `refusal` is for what waits and what comes, and is remembered for `keep_s`. `afterwards` runs before the stream
        is ended, under no lock. Only the first reason for an end counts.
        """
        if self.state in (StreamState.UNINITIALIZED, StreamState.INITIALIZING, StreamState.INITIALIZED):
            self._refusal, self._keep_s, self._afterwards = refusal, keep_s, afterwards
        self._happened(StreamEvent.GIVE_UP)

    def forget(self) -> None:
        """Forget why it has ended, where that was kept: the lock is asked again."""
        if self.state is StreamState.CLOSED and self._kept is not None:
            self._kept.cancel()
            self._forget()

    def owner_gone(self, addresses: Collection[str]) -> None:
        """Note that the proxies at these addresses are not announced any more. The session by which they held logs has
        ended, or they give them up: such an owner is not remembered, and the lock is asked."""
        owner = self.refusal.location if self.refusal is not None else None
        if owner is not None and address_of(owner) in addresses:
            self.forget()

    def forget_unused(self) -> None:
        """Note that its first request was refused: nothing of it stays, for names come from clients."""
        if self.state is StreamState.UNINITIALIZED:
            self._happened(StreamEvent.GIVE_UP)

    @property
    def waits(self) -> bool:
        """True while requests wait to be begun."""
        return bool(self._waiting) or self._opening is not None

    def caller_gone(self, caller: Caller) -> None:
        """Drop what this caller asked, as far as it waits to be begun."""
        dropped = [taken for taken in self._waiting if taken.caller is caller]
        if dropped:
            self._waiting = deque([taken for taken in self._waiting if taken.caller is not caller])
        if self._opening is not None and self._opening.caller is caller:
            dropped.append(self._opening)
        for taken in dropped:
            taken.fail(WriteCancelledError("the client has gone; the request was not begun", log=self.name))

    async def refresh_permissions(self) -> None:
        """Look at the log's access control again. Raises what the metadata store does."""
        self.permissions = await permissions_of(self._host.namespace, self.name)

    # ------------------------------------------------------------------ requests

    def _begin(self, taken: TakenRequest) -> None:
        request = taken.request
        execution = self._execution
        try:
            if self.permissions is not ALLOW_ALL:
                check_permitted(self.permissions, request, self.name)
            if execution is not None and type(request) is WriteRecords:
                if request.context.is_record_set and taken.sets is None and not opens_at_once(request):
                    self._open_sets(taken, request)
                else:
                    execution.begin(taken)
            elif execution is not None and execution.begins(type(request)):
                execution.begin(taken)
            elif isinstance(request, ReleaseStream):
                self._give_up_for(taken, None)
            elif isinstance(request, DeleteStream):
                self._give_up_for(taken, lambda: self._host.namespace.delete_log(self.name))
            elif isinstance(request, TruncateStream):
                self._truncate(taken, request)
            else:
                taken.fail(OperationNotServedError(f"a stream has no {type(request).__name__}", log=self.name))
        except DistributedLogError as error:
            taken.fail(error)

    def _open_sets(self, taken: TakenRequest, request: WriteRecords) -> None:
        """Open its record sets in a thread, and begin it then: the other streams have their turns meanwhile."""
        check_record_sets(request)
        self._opening = taken
        self._host.waited.add(self)
        self._host.run(self._open_sets_of(taken, request))

    async def _open_sets_of(self, taken: TakenRequest, request: WriteRecords) -> None:
        try:
            async with self._host.opening_sets.turn(taken.caller.address):
                if not (taken.answered or taken.is_too_late(self._loop.time())):
                    taken.sets = await self._loop.run_in_executor(None, opened_sets, request.payloads)
        except Exception as error:
            _LOG.exception("the record sets of a request on %s could not be opened", self.name)
            taken.fail(error)
        # In front again, and not begun from here: the stream may have been closed, or failed, meanwhile.
        self._opening = None
        self._waiting.appendleft(taken)
        self._go_on()

    def _go_on(self) -> None:
        """Begin what waits, or refuse it; until the stream is closed it waits on."""
        if self._on_request is OnRequest.RUN:
            self._run_waiting()
        elif self._on_request is OnRequest.REFUSE:
            self._refuse_waiting()

    def _run_waiting(self) -> None:
        """Begin what waits, in order. Tens of thousands may, and each may be a record set of milliseconds: what a turn
        of the loop has no time for is for the next ones, and what comes meanwhile waits behind it."""
        turns, now = self._host.turns, self._loop.time()
        deadline = turns.now() + turns.share_s
        while self._waiting and self._on_request is OnRequest.RUN and self._opening is None:
            taken = self._waiting.popleft()
            if taken.is_too_late(now):
                taken.fail(too_late_error(self.name))
            elif not taken.answered:
                self._begin(taken)
            if self._waiting and turns.now() > deadline:
                turns.join(self._go_on)
                return

    def _refuse_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for taken in waiting:
            taken.answer(self._refusal)

    def _ended(self, taken: TakenRequest | TakenRun) -> None:
        del self.under_way[taken]
        self.requests -= taken.records
        self._host.traffic.give_back(taken.size, taken.records)

    def request_failed(self, error: BaseException) -> None:
        """Note that a request has ended with `error`: see `model.failure_scope_of`."""
        scope = failure_scope_of(error)
        if scope is FailureScope.REQUEST:
            return
        if scope is FailureScope.PROCESS:
            if self.state is StreamState.INITIALIZED:
                self._host.on_fatal(f"the writer of {self.name} was closed behind this proxy's back: {error}")
            return
        if self.state is StreamState.INITIALIZED:
            self._log_end("a request failed", error)
            self._remember(error, scope)
            self._happened(StreamEvent.FAILED)

    def _writer_failed(self, error: BaseException) -> None:
        """Note that the writer takes nothing more: another owner has the log, or it cannot go on."""
        if self.state is StreamState.INITIALIZED:
            owner = error.__cause__ if isinstance(error.__cause__, OwnershipAcquireFailedError) else None
            self._log_end("its writer has failed", error)
            self._remember(owner or error, FailureScope.ELSEWHERE if owner is not None else FailureScope.STREAM)
            self._happened(StreamEvent.FAILED)

    def _remember(self, error: BaseException, scope: FailureScope) -> None:
        """Refuse with `error` from now on, and for as long as that is worth knowing."""
        self._keep_s = 0.0
        if scope is FailureScope.ELSEWHERE and isinstance(error, OwnershipAcquireFailedError):
            if not self._host.is_former(error.owner, self._loop.time()):
                self._refusal = not_begun(refusal_of(error))
                self._keep_s = self._host.found_kept_s
                if error.owner == self._host.location:
                    self._host.on_fatal(f"{self.name} is owned by an earlier session of this very proxy")
                return
            # Sent to the owner, a client would come back here.
            error = StreamUnavailableError(
                "the process that was here before has the log until its session ends", log=self.name, advice="Ask again"
            )
        if isinstance(error, RequestDeniedError):
            self._keep_s = DENIED_KEPT_S
        if self.state is StreamState.INITIALIZED:
            why = error.message if isinstance(error, DistributedLogError) else repr(error)
            error = StreamUnavailableError(
                f"the stream has failed here: {why}; the request was not begun",
                log=self.name,
                advice="Ask again, or another proxy",
            )
        self._refusal = not_begun(refusal_of(error))

    # ------------------------------------------------------------------ the machine

    def _happened(self, event: StreamEvent) -> None:
        self.state, effects = step(self.state, event)
        self._on_request = ON_REQUEST[self.state]
        for effect in effects:
            self._do(effect)

    def _do(self, effect: StreamEffect) -> None:
        if effect is StreamEffect.OPEN:
            self._host.on_owned(self.name, True)
            self._host.run(self._open())
        elif effect is StreamEffect.RUN_WAITING:
            self._run_waiting()
        elif effect is StreamEffect.REFUSE_WAITING:
            self._refuse_waiting()
        elif effect is StreamEffect.CLOSE_WRITER:
            self._host.run(self._end_writer(abort=False))
        elif effect is StreamEffect.ABORT_WRITER:
            self._host.run(self._end_writer(abort=True))
        elif effect is StreamEffect.KEEP:
            self._keep()
        else:
            self._host.on_removed(self)

    # ------------------------------------------------------------------ beginning

    async def _open(self) -> None:
        try:
            # Not in turn: it waits for another owner to give the log up, and would keep the others from their turns.
            if self._lock_timeout_s:
                await self._open_log(self._lock_timeout_s)
            else:
                await self._open_in_turn()
        except Exception as error:
            scope = failure_scope_of(error)
            if isinstance(error, OwnershipAcquireFailedError):
                self._host.log_found(self.name, error.owner, self._loop.time())
            elif scope is not FailureScope.REQUEST:
                self._log_end("the log could not be opened", error)
            if self.state is StreamState.INITIALIZING:
                self._remember(error, scope)
                if scope is FailureScope.PROCESS:
                    self._host.on_fatal(f"{self.name} could not be opened: {error}")
            self._happened(StreamEvent.OPEN_FAILED)
            return
        self._happened(StreamEvent.OPENED)

    async def _open_in_turn(self) -> None:
        """Open the log unless another owner has it. An owner that gives way to others in the lock's queue is waited
        for, and so is the session of this proxy's former process.

        In short stays: of two proxies that wait, the second learns then that the first one has it.
        """
        try:
            async with self._host.opening.turn(self._waiting[0].caller.address if self._waiting else ""):
                return await self._open_log(0)
        except OwnershipAcquireFailedError as error:
            if not self._waits_for(error.owner):
                raise
        deadline = self._loop.time() + self._host.settings.take_timeout_ms / 1000
        while True:
            try:
                return await self._open_log(STAY_S)
            except OwnershipAcquireFailedError as error:
                late = self._loop.time() >= deadline and not self._host.is_former(error.owner, self._loop.time())
                if late or not self._waits_for(error.owner):
                    raise

    def _waits_for(self, owner: str) -> bool:
        """Return whether the owner would give the log up for the requests here. To delete it is not such a request."""
        wanted = self.state is StreamState.INITIALIZING and any(
            not isinstance(taken.request, DeleteStream) for taken in self._waiting
        )
        return wanted and (gives_way(owner) or self._host.is_former(owner, self._loop.time()))

    async def _open_log(self, lock_timeout_s: int) -> None:
        may_create = self._may_create
        if may_create is None:
            return await self._open_log_as(lock_timeout_s, create_missing=self._create_missing)
        try:
            await self._open_log_as(lock_timeout_s, create_missing=False)
        except LogNotFoundError:
            waiting = (taken.caller for taken in self._waiting if not isinstance(taken.request, DeleteStream))
            callers = list(dict.fromkeys(waiting))
            makers = [one for one in callers if may_create(one, self.name, noted=False)]
            for one in makers[:1] or callers:
                may_create(one, self.name, noted=True)
            if not makers:
                raise
            await self._open_log_as(lock_timeout_s, create_missing=True)

    async def _open_log_as(self, lock_timeout_s: int, *, create_missing: bool) -> None:
        host = self._host
        log = await host.namespace.open_log(
            self.name, host.log_overrides(lock_timeout_s, create_missing=create_missing)
        )
        try:
            await self.refresh_permissions()
            writer = await log.open_writer(host.location, producers=True, gaps_allowed=host.settings.gaps_allowed)
        except BaseException:
            await log.close()  # it may hold the lock: kept, no other proxy could take the log
            raise
        self._log, self._writer = log, writer
        writer.on_failed = self._writer_failed
        settings = host.settings
        self._execution = Execution(writer, self, settings.entries_under_way, settings.producers_per_client)

    # ------------------------------------------------------------------ ending

    async def _end_writer(self, *, abort: bool) -> None:
        # Each step is taken whatever became of the one before: an error here must neither keep the lock nor the stream.
        try:
            if abort and self._writer is not None:
                await self._writer.abort()
        except Exception as error:
            self._log_end("its writer ended with an error", error)
        try:
            if self._log is not None:
                await self._log.close()
        except Exception as error:
            self._log_end("its writer ended with an error", error)
        try:
            if self._afterwards is not None:
                await self._afterwards()
        finally:
            self._happened(StreamEvent.WRITER_ENDED)

    def _keep(self) -> None:
        self._execution = self._writer = self._log = None  # a kept stream keeps no buffers: there may be thousands
        self._host.on_owned(self.name, False)
        if not self.ended.done():
            self.ended.set_result(None)
        keep_s, owner = self._keep_s, self._refusal.location
        if owner is not None:
            keep_s = min(keep_s, self._host.kept_s(owner))  # asked now: it may have gone while the writer was given up
        if keep_s > 0:
            self._kept = self._loop.call_later(keep_s, self._forget)
        else:
            self._forget()

    def _forget(self) -> None:
        self._kept = None
        self._happened(StreamEvent.FORGET)

    def _give_up_for(self, taken: TakenRequest, work: Callable[[], Awaitable[None]] | None) -> None:
        """Give the stream up because a request asks for it, and answer that once `work` is done, or took too long."""
        failed: list[Exception] = []

        async def afterwards() -> None:
            try:
                if work is not None:
                    await work()
            except Exception as error:
                failed.append(error)

        def ended(_: asyncio.Future[None]) -> None:
            limit.cancel()
            if failed:
                taken.fail(failed[0])
            else:
                taken.answer(Done())

        limit = self._loop.call_later(self._host.settings.writer_close_timeout_ms / 1000, taken.answer, END_IN_DOUBT)
        self.ended.add_done_callback(ended)
        gone = StreamUnavailableError("the stream was given up here", log=self.name, advice="Ask any proxy")
        self.give_up(refusal_of(gone), afterwards=afterwards)

    def _truncate(self, taken: TakenRequest, request: TruncateStream) -> None:
        writer = self._writer
        if self._truncations >= MAX_TRUNCATIONS or writer is None:
            raise OverCapacityError(
                f"{self._truncations} truncations are under way; this one was not begun",
                log=self.name,
                advice="Wait for earlier ones",
            )
        self._truncations += 1

        async def truncate() -> None:
            try:
                taken.answer(Done(await writer.truncate(request.dlsn)))
            except Exception as error:
                self.request_failed(error)
                taken.fail(error)
            finally:
                self._truncations -= 1

        self._host.run(truncate())

    # ------------------------------------------------------------------ service time-out

    def _watch_oldest(self) -> None:
        """Wait until the oldest request has taken as long as the service time-out, or was answered."""
        timeout_s = self._host.settings.service_timeout_ms / 1000
        self._watch = None
        oldest = next(iter(self.under_way), None)
        if oldest is None or timeout_s <= 0 or self.state in (StreamState.ERROR, StreamState.CLOSED):
            return
        left = oldest.began_s + timeout_s - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._watch_oldest)
            return
        if self.state in (StreamState.INITIALIZING, StreamState.INITIALIZED):
            probation_s = self._host.settings.probation_timeout_ms / 1000
            _LOG.warning(
                "stream %s: a %s took longer than %g s; it is not served here for %g s",
                self.name,
                type(oldest.request).__name__,
                timeout_s,
                probation_s,
                extra=about(log=self.name),
            )
            late = StreamUnavailableError(
                f"a request took longer than {timeout_s:g} s here: the stream is on probation; nothing was done",
                log=self.name,
                advice="Ask another proxy",
            )
            self._refusal, self._keep_s = refusal_of(late), probation_s
            self._happened(StreamEvent.TIMED_OUT)

    def _log_end(self, what: str, error: BaseException) -> None:
        _LOG.warning("stream %s: %s: %s", self.name, what, error, extra=about(log=self.name))
