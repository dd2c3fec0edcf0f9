"""`RareRequests`: which proxy is here, and what it owns; streams created, moved and taken, or released where none is.

They are rare, and most take more than a turn of the event loop: those run in tasks, at most MAX_TASKS at a time. None
of them may hold up what is written: they are not in line with the requests on their stream, but where a stream is
given up, that is in line.

A handshake may name the streams that its client wants to hear of, by a regular expression (`matching`). Python's own
expressions may take exponential time on a short text; here they are RE2's, which Arrow has: no back references, no
looking around, and time that grows with the text alone. But it grows with the expression, too, and three counted
repetitions are a billion of what they repeat. So an expression is bounded as if its repetitions were written out, and
names are matched a slice at a time: between two slices the proxy does other things.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from math import prod
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import OperationNotServedError, ServiceUnavailableError, StreamUnavailableError
from dlspark.serving.process.fair_turns import FairTurns
from dlspark.serving.process.peers import ProxyDirectory
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
from dlspark.serving.write_proxy.streams.hand_over import Forwarder, confirmed, hand_over, same_proxy
from dlspark.serving.write_proxy.streams.model import StreamState
from dlspark.serving.write_proxy.streams.stream_host import (
    check_permitted,
    permissions_of,
)
from dlspark.serving.write_proxy.streams.table import StreamTable
from dlspark.serving.write_proxy.streams.taken_requests import RequestHandlers, TakenRequest
from dlspark.serving.write_proxy.tier.placement import StreamPlacement
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import CallerError, DistributedLogError, OutcomeUnknownError
from metadata.foundation.regions import region_named
from metadata.foundation.tasks import end_tasks

_LOG: Final = logging.getLogger(__name__)

MAX_TASKS: Final = 1000
"""Requests that run in tasks and are under way at a time; more are refused with 503."""
MAX_REGEX_CHARS: Final = 2048
"""Of an expression, each counted repetition taken as so many times the whole. Any name fits, each character escaped."""
SLICE_CHARS: Final = 2048
"""Of the names that are matched in one step, which takes some 50 ms with the worst expression."""
_COUNTED: Final = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_EVERYTHING: Final = (None, ".*")


class RareRequests:
    """What does a proxy answer to a request that writes nothing, and is not on a stream that is open here?"""

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
        self._max_request_bytes = max_request_bytes
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._matching = FairTurns(1)
        self._closed = False
        self._at_once = RequestHandlers[Answer | None]()
        self._at_once.add(Handshake, self._handshake)
        self._at_once.add(AcceptStreams, self._accept_streams)
        self._at_once.add(FindOwner, self._find_owner)
        self._at_once.add(ListProxies, lambda _taken, _request: directory.listed())
        self._in_tasks = RequestHandlers[Awaitable[Answer]]()
        self._in_tasks.add(CreateStream, self._create)
        self._in_tasks.add(ReleaseStream, self._release)
        self._in_tasks.add(MoveStream, self._move)
        self._in_tasks.add(TakeStream, self._take)

    def begin(self, taken: TakenRequest) -> None:
        """Begin a request. Never raises."""
        kind = type(taken.request)
        try:
            if self._at_once.handles(kind):
                answer = self._at_once.call(taken)
                if answer is not None:
                    taken.answer(answer)
            elif self._in_tasks.handles(kind):
                self._run(taken, self._in_tasks.call(taken))
            else:
                raise OperationNotServedError(
                    f"a write proxy does not serve {kind.__name__}",
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
            asyncio.ensure_future(work).cancel()  # a coroutine that is never run would warn of that
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

    # ------------------------------------------------------------------ proxies and owners

    def _handshake(self, taken: TakenRequest, request: Handshake) -> Answer | None:
        """Return the answer, or None where a task finds out first what matches the client's expression."""
        if request.region is not None:
            taken.caller.region = region_named(request.region, "the client's region") or None
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

    def _accept_streams(self, _taken: TakenRequest, request: AcceptStreams) -> Answer:
        if self._table.status is ProxyStatus.DOWN:
            raise ServiceUnavailableError("this proxy is going down", advice="Ask another proxy")
        self._table.status = ProxyStatus.WRITE_AND_ACCEPT if request.enabled else ProxyStatus.WRITE_ONLY
        return Done()

    def _find_owner(self, _taken: TakenRequest, request: FindOwner) -> Answer:
        stream = self._table.get(request.stream)
        if stream is not None and stream.owned:
            return OwnerFound(self._table.host.location)
        if stream is not None and stream.refusal is not None and stream.refusal.location is not None:
            return OwnerFound(stream.refusal.location)
        check_stream_length(request.stream)
        self._table.host.namespace.logs_store.validate_name(request.stream)
        location = self._placement.place(request.stream) if self._placement is not None else None
        if location is None:
            raise StreamUnavailableError("nobody is known to own the stream", log=request.stream, advice="Write to it")
        return OwnerFound(location)

    # ------------------------------------------------------------------ streams

    async def _create(self, _taken: TakenRequest, request: CreateStream) -> Answer:
        """Create the log; one that exists is left as it is."""
        namespace = self._table.host.namespace
        check_stream_length(request.stream)
        check_stream_parts(request.stream)
        check_permitted(await permissions_of(namespace, request.stream), request, request.stream)
        await namespace.create_log(request.stream)
        return Done()

    async def _release(self, _taken: TakenRequest, request: ReleaseStream) -> Answer:
        """Release a stream that is not served here: nothing is to be given up, but the caller needs the right."""
        check_stream_length(request.stream)
        check_permitted(await permissions_of(self._table.host.namespace, request.stream), request, request.stream)
        return Done()

    async def _move(self, _taken: TakenRequest, request: MoveStream) -> Answer:
        host = self._table.host
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
        return await confirmed(stream.name, host, self._forwarder, request.target)

    async def _take(self, _taken: TakenRequest, request: TakeStream) -> Answer:
        """Begin to take a stream over from the proxy that asks, which gives it up when this is answered."""
        table = self._table
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


async def read_ahead(namespace: AsyncNamespace, stream: str) -> None:
    """Fetch what the log's next owner needs and can have before it has the lock: the segments that have their end,
    which are kept, and what a ledger is made of. Raises the metadata store's errors."""
    services = namespace.services
    try:
        await asyncio.gather(
            services.logs.hot_segments(stream),
            services.ledger_store.reserve_id(),
            services.ledgers.bookies.writable(),
        )
    except LogNotFoundError:
        pass  # It is made when it is opened.


# ---------------------------------------------------------------------- the streams that a client wants to hear of


def takes_all(regex: str | None) -> bool:
    """Return whether every stream matches, so that nothing has to be tried."""
    return regex in _EVERYTHING


def matching(streams: Sequence[str], regex: str | None) -> Iterator[list[str]]:
    """Yield the streams that match as a whole, in their order; all of them without an expression. Each step matches a
    slice.

    The first step raises CallerError for an expression that is too long, or that RE2 does not understand.
    """
    if regex in _EVERYTHING or regex is None:
        yield list(streams)
        return
    _check_length(regex)
    try:
        # Alone first: what is put around it must not make a whole of it.
        pc.match_substring_regex(pa.array([""]), regex)
        for part in _slices(streams):
            matched = pc.match_substring_regex(pa.array(part, pa.string()), rf"\A(?:{regex})\z")
            yield [stream for stream, found in zip(part, matched.to_pylist(), strict=True) if found]
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise CallerError(
            f"not a regular expression: {error}", advice="RE2's are understood: no references, no looking around"
        ) from error


def _check_length(regex: str) -> None:
    length = len(regex)
    if length <= MAX_REGEX_CHARS:  # else not even looked at
        counts = [max(int(number[:9] or 0) for number in found) for found in _COUNTED.findall(regex)]
        length *= prod(max(count, 1) for count in counts)
    if length > MAX_REGEX_CHARS:
        raise CallerError(
            f"the regular expression is longer than {MAX_REGEX_CHARS} characters, its repetitions written out",
            advice="Ask for all streams, and choose among them",
        )


def _slices(streams: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    chars = 0
    for stream in streams:
        part.append(stream)
        chars += len(stream)
        if chars >= SLICE_CHARS:
            yield part
            part, chars = [], 0
    if part:
        yield part
