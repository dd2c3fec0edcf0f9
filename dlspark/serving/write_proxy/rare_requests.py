"""`RareRequests`: who is here, who owns what; streams that are created, moved and taken, or released where none is.

They are rare, and most take more than a turn of the event loop: those run in tasks, at most MAX_TASKS at a time. None
of them may hold up what is written: they are not in line with the requests on their stream, but where a stream is
given up, that is in line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from dlspark.errors import (
    DistributedLogError,
    OperationNotServedError,
    OutcomeUnknownError,
    ServiceUnavailableError,
    StreamUnavailableError,
)
from dlspark.serving.process.directory import ProxyDirectory
from dlspark.serving.process.fair_turns import FairTurns
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    CreateStream,
    Done,
    FindOwner,
    Handshake,
    ListProxies,
    MoveStream,
    OwnerFound,
    ProxyInfo,
    ProxyStatus,
    ReleaseStream,
    TakeStream,
)
from dlspark.serving.protocol.request_checks import check_stream_length, check_stream_parts
from dlspark.serving.write_proxy.ownership_filter import matching, takes_all
from dlspark.serving.write_proxy.streams.hand_over import Forwarder, hand_over, same_proxy
from dlspark.serving.write_proxy.streams.log_operations import (
    check_permitted,
    create_stream,
    permissions_of,
    read_ahead,
)
from dlspark.serving.write_proxy.streams.model import StreamState
from dlspark.serving.write_proxy.streams.requests import TakenRequest
from dlspark.serving.write_proxy.streams.table import StreamTable
from dlspark.serving.write_proxy.tier.placement import StreamPlacement
from metadata.foundation.tasks import end_tasks

_LOG: Final = logging.getLogger(__name__)

MAX_TASKS: Final = 1000
"""Requests that run in tasks and are under way at a time; more are refused with 503."""


class RareRequests:
    """The requests of one proxy that are not records."""

    def __init__(
        self,
        table: StreamTable,
        forwarder: Forwarder | None,
        placement: StreamPlacement | None,
        directory: ProxyDirectory,
        max_request_bytes: int,
    ) -> None:
        self._table = table
        self._forwarder = forwarder
        self._placement = placement
        self._directory = directory
        self._max_request_bytes = max_request_bytes
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._matching = FairTurns(1)
        self._closed = False
        self._at_once: Mapping[type, Callable[[TakenRequest], Answer | None]] = {
            Handshake: self._handshake,
            AcceptStreams: self._accept_streams,
            FindOwner: self._find_owner,
            ListProxies: lambda _: self._directory.listed(),
        }
        self._in_tasks: Mapping[type, Callable[[TakenRequest], Awaitable[Answer]]] = {
            CreateStream: self._create,
            ReleaseStream: self._release,
            MoveStream: self._move,
            TakeStream: self._take,
        }

    def begin(self, taken: TakenRequest) -> None:
        """Begin a request. Never raises."""
        at_once, in_task = self._at_once.get(type(taken.request)), self._in_tasks.get(type(taken.request))
        try:
            if at_once is not None:
                answer = at_once(taken)
                if answer is not None:
                    taken.answer(answer)
            elif in_task is not None:
                self._run(taken, in_task(taken))
            else:
                raise OperationNotServedError(
                    f"a write proxy does not serve {type(taken.request).__name__}",
                    advice="Ask a read proxy: a client that is given addresses reads from those in read_from",
                )
        except DistributedLogError as error:
            taken.fail(error)

    def _run(self, taken: TakenRequest, work: Awaitable[Answer]) -> None:
        async def run() -> None:
            try:
                taken.answer(await work)
            except Exception as error:
                if not isinstance(error, DistributedLogError):
                    _LOG.exception("a %s ended with an error", type(taken.request).__name__)
                taken.fail(error)

        if self._closed or len(self._tasks) >= MAX_TASKS:
            asyncio.ensure_future(work).cancel()
            raise ServiceUnavailableError("too many requests of this kind are under way", advice="Ask again later")
        task = self._loop.create_task(run())
        self._tasks.add(task)

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # Only where the task was cancelled, for the proxy ends: everything else is answered.
            taken.fail(OutcomeUnknownError("the proxy has ended; whether it was done is not known"))

        task.add_done_callback(ended)

    async def close(self) -> None:
        """End what is under way. Idempotent."""
        self._closed = True
        await end_tasks(self._tasks, drop_errors=True)

    # ------------------------------------------------------------------ who is here

    def _handshake(self, taken: TakenRequest) -> Answer | None:
        """Return the answer, or None where a task finds out first what matches the client's expression."""
        request = taken.request
        assert isinstance(request, Handshake)
        if not request.ownerships:
            return self._introduction(())
        wanted = matching(self._table.owned, request.stream_regex)
        if takes_all(request.stream_regex):
            return self._introduction(next(wanted))
        self._run(taken, self._filtered(wanted, taken.caller.address))
        return None

    async def _filtered(self, wanted: Iterator[list[str]], address: str) -> Answer:
        owned: list[str] = []
        more: list[str] | None = []
        while more is not None:
            owned += more
            async with self._matching.turn(address):  # one step of all handshakes in a turn of the loop
                more = next(wanted, None)
                await asyncio.sleep(0)
        return self._introduction(owned)

    def _introduction(self, owned: Iterable[str]) -> ProxyInfo:
        host = self._table.host
        return ProxyInfo(
            location=host.location,
            status=self._table.status,
            ownerships=dict.fromkeys(owned, host.location),
            max_request_bytes=self._max_request_bytes,
            region=host.settings.region,
        )

    def _accept_streams(self, taken: TakenRequest) -> Answer:
        request = taken.request
        assert isinstance(request, AcceptStreams)
        if self._table.status is ProxyStatus.DOWN:
            raise ServiceUnavailableError("this proxy is going down", advice="Ask another proxy")
        self._table.status = ProxyStatus.WRITE_AND_ACCEPT if request.enabled else ProxyStatus.WRITE_ONLY
        return Done()

    def _find_owner(self, taken: TakenRequest) -> Answer:
        request = taken.request
        assert isinstance(request, FindOwner)
        stream = self._table.get(request.stream)
        if stream is not None and stream.owned:
            return OwnerFound(self._table.host.location)
        if stream is not None and stream.refusal is not None and stream.refusal.location is not None:
            return OwnerFound(stream.refusal.location)
        check_stream_length(request.stream)
        self._table.host.namespace.logs_store.validate_name(request.stream)
        place = self._placement.place(request.stream) if self._placement is not None else None
        if place is None:
            raise StreamUnavailableError("nobody is known to own the stream", log=request.stream, advice="Write to it")
        return OwnerFound(place)

    # ------------------------------------------------------------------ streams

    async def _create(self, taken: TakenRequest) -> Answer:
        request = taken.request
        assert isinstance(request, CreateStream)
        check_stream_length(request.stream)
        check_stream_parts(request.stream)
        await create_stream(self._table.host.namespace, request)
        return Done()

    async def _release(self, taken: TakenRequest) -> Answer:
        """Return of a stream that is not served here: nothing is to be given up, but not everybody may ask for it."""
        request = taken.request
        assert isinstance(request, ReleaseStream)
        check_stream_length(request.stream)
        check_permitted(await permissions_of(self._table.host.namespace, request.stream), request, request.stream)
        return Done()

    async def _move(self, taken: TakenRequest) -> Answer:
        request, host = taken.request, self._table.host
        assert isinstance(request, MoveStream)
        stream = self._table.get(request.stream)
        if stream is not None and stream.refusal is not None and stream.refusal.location is not None:
            return stream.refusal
        if stream is None or not stream.owned:
            raise StreamUnavailableError(
                "the stream is not served here, so it cannot be moved from here",
                log=request.stream,
                advice="Ask its owner: FindOwner says who that is",
            )
        check_permitted(stream.permissions, request, stream.name)
        if same_proxy(request.target, host.location):
            return Done()
        if self._forwarder is None:
            raise OperationNotServedError("this proxy knows no way to others", log=stream.name)
        await hand_over(stream, host, self._forwarder, request.target)
        return Done()

    async def _take(self, taken: TakenRequest) -> Answer:
        request, table = taken.request, self._table
        assert isinstance(request, TakeStream)
        check_stream_length(request.stream)
        check_stream_parts(request.stream)
        check_permitted(await permissions_of(table.host.namespace, request.stream), request, request.stream)
        await read_ahead(table.host.namespace, request.stream)  # The source serves the stream until this is answered.
        stream = table.get(request.stream)
        if stream is not None and stream.state in (StreamState.INITIALIZING, StreamState.INITIALIZED):
            return Done()
        if stream is not None:
            stream.forget()  # that another proxy had it
        if table.get(request.stream) is not None:
            raise StreamUnavailableError("the stream is being given up here", log=request.stream, advice="Ask later")
        timeout_s = max(1, table.host.settings.take_timeout_ms // 1000)
        table.add(request.stream, lock_timeout_s=timeout_s).start()
        return Done()
