"""`WriteProxyService`: the way of a request through a write proxy: limits, checks, its stream. It knows no protocol.

A request on a stream goes through, in this order:

1. the proxy's status; for a write, its limits of requests and bytes;
2. its checksum;
3. the stream: the one that is here, or a new one, if this proxy takes others now;
4. for a write, the stream's limits; then it is begun, or waits until the log is open. Access control is the stream's to
   check, for it knows the log's entry.

Requests of one caller on one stream are begun in the order in which they come: from `submit` until a record is with the
log's writer nothing waits, except that requests wait in line for a log that is not open yet.

Fault model: nothing from a client is trusted. What it says is checked before anything is done for it; what it holds
here is bounded by name (docs/settings/write-proxy.md). A stream that fails takes no other with it. The process must
end where this proxy's own location holds a log by another session of ZooKeeper: clients would be sent in circles.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import ChecksumFailedError, OverCapacityError, ServiceUnavailableError, StreamUnavailableError
from dlspark.serving.bindings.service import Caller, Reply, RunReply
from dlspark.serving.process.peers import ProxyDirectory
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import (
    BeginEpoch,
    DeleteStream,
    Heartbeat,
    ProxyStatus,
    ReleaseStream,
    Request,
    SetFencingToken,
    StatusCode,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import request_checksum
from dlspark.serving.protocol.write_runs import WriteRun
from dlspark.serving.write_proxy.rare_requests import RareRequests
from dlspark.serving.write_proxy.settings import WriteProxySettings
from dlspark.serving.write_proxy.streams.hand_over import Forwarder, hand_over, one_by_one, same_proxy
from dlspark.serving.write_proxy.streams.limits import LimitValues, WriteLimiter
from dlspark.serving.write_proxy.streams.model import StreamState
from dlspark.serving.write_proxy.streams.runs import TakenRun
from dlspark.serving.write_proxy.streams.stream import ProxyStream
from dlspark.serving.write_proxy.streams.stream_host import MayCreate
from dlspark.serving.write_proxy.streams.table import RATE_LIMIT_DISABLED, StreamTable
from dlspark.serving.write_proxy.streams.taken_requests import TakenRequest, payload_bytes
from dlspark.serving.write_proxy.tier.placement import StreamPlacement
from metadata.foundation.errors import DistributedLogError
from storage_node.protocol.frames import MAX_FRAME_BYTES

_LOG: Final = logging.getLogger(__name__)

GLOBAL_LIMITER_DISABLED: Final = "service_global_limiter_disabled"
"""The feature that switches the limits of the whole proxy off."""
CHECKSUM_DISABLED: Final = "service_checksum_disabled"
"""The feature that has checksums believed."""
_SERVED: Final = (StreamState.INITIALIZED, StreamState.CLOSING)
"""The states in which a stream is served on the way down: what waits while it is closed hears where it has gone."""
_OnStream: TypeAlias = BeginEpoch | SetFencingToken | Heartbeat | TruncateStream | DeleteStream | ReleaseStream
_ON_STREAMS: Final = (BeginEpoch, SetFencingToken, Heartbeat, TruncateStream, DeleteStream, ReleaseStream)


class WriteProxyService:
    """What does a write proxy do with a request? A `ProxyService`; all calls come from one event loop.

    Args:
        location: its name among clients and locks.
        forwarder: asks other proxies; without one streams cannot be moved.
        placement: where streams belong that have no owner.
        directory: which proxies are announced; `owners_gone` has to be called for those that are so no longer.
        on_fatal: called once, with the reason, where the process must end. The service takes nothing any more by then.
        stream_settings: returns the settings with a stream's own limits; see `stream_settings_changed`.
        max_request_bytes: the longest request, as clients are informed of it.
    """

    def __init__(
        self,
        namespace: AsyncNamespace,
        settings: WriteProxySettings,
        *,
        location: str,
        forwarder: Forwarder | None = None,
        placement: StreamPlacement | None = None,
        on_fatal: Callable[[str], None] | None = None,
        directory: ProxyDirectory | None = None,
        stream_settings: Callable[[str], WriteProxySettings] | None = None,
        max_request_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._table = table = StreamTable(namespace, settings, location, self._fatal, stream_settings)
        if directory is not None:
            table.host.announced = directory.announced
        self._settings = settings
        self._forwarder = forwarder
        self._placement = placement
        self._on_fatal = on_fatal
        self.count_writer: Callable[[str, str | None], None] | None = None
        """Called for each write on a stream that is served here, with its name and the client's region; None: nobody
        wants to know."""
        self.may_create: MayCreate | None = None
        """None: everybody may."""
        self._leaving = False
        """True while streams are given up, one after the other: those that have not been reached are served."""
        self._rare = RareRequests(table, forwarder, placement, directory or ProxyDirectory(), max_request_bytes)
        self._limiter = WriteLimiter("service", LimitValues.of_service(settings), self._loop.time(), table.counts)
        features = namespace.services.features
        self._no_limits = features.feature(RATE_LIMIT_DISABLED)
        self._no_global_limits = features.feature(GLOBAL_LIMITER_DISABLED)
        self._no_checksums = features.feature(CHECKSUM_DISABLED)

    # ------------------------------------------------------------------ for the process

    @property
    def status(self) -> ProxyStatus:
        """Which requests it takes: writes, and other streams."""
        return self._table.status

    @property
    def streams_cached(self) -> int:
        """Streams that are here in any state."""
        return len(self._table)

    @property
    def streams_owned(self) -> list[str]:
        """Names of the streams that are served here."""
        return self._table.owned

    def streams_served(self) -> list[ProxyStream]:
        """Return the streams that are served here."""
        return [stream for stream in self._table if stream.owned]

    async def hand_over(self, name: str, target: str) -> None:
        """Hand a stream over to the proxy at `target`. Raises where it is not served here, and as `hand_over`."""
        stream = self._table.get(name)
        if stream is None or self._forwarder is None:
            raise StreamUnavailableError("the stream is not served here, or no other proxy is known", log=name)
        await hand_over(stream, self._table.host, self._forwarder, target)

    @property
    def requests_per_second(self) -> float:
        """Writes a second, over the last minute."""
        return self._table.recent.requests_per_second(self._loop.time())

    @property
    def bytes_per_second(self) -> float:
        """Payload bytes a second, over the last minute."""
        return self._table.recent.bytes_per_second(self._loop.time())

    @property
    def bytes_under_way(self) -> int:
        """Payload bytes of requests that are not answered."""
        return self._table.host.traffic.bytes

    @property
    def requests_under_way(self) -> int:
        """Requests on streams that are not answered."""
        return self._table.host.traffic.requests

    @property
    def limit_counts(self) -> Counter[str]:
        """The number of times that limits were passed, by names such as `service-rps-soft`."""
        return self._table.counts

    def use_settings(self, settings: WriteProxySettings) -> None:
        """Let other limits and time-outs hold from now on; the converter, and how many streams are opened at a time,
        stay as they were."""
        self._settings = settings
        self._limiter.use(LimitValues.of_service(settings), self._loop.time())
        self._table.use_settings(settings)

    def stream_settings_changed(self, stream: str) -> None:
        """Ask `stream_settings` again for the limits of a stream."""
        self._table.stream_settings_changed(stream)

    def owners_gone(self, addresses: Collection[str]) -> None:
        """Note that the proxies at these addresses are not announced any more: no client is sent there from memory."""
        if addresses:
            for stream in self._table:
                stream.owner_gone(addresses)

    # ------------------------------------------------------------------ requests

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """Begin `request`: see `ProxyService.submit`."""
        now = self._time()
        size = payload_bytes(request) if type(request) is WriteRecords else 0
        taken = TakenRequest(request, caller, reply, size, now)
        try:
            if type(request) is WriteRecords:
                self._write(taken, request, now)
            elif isinstance(request, _ON_STREAMS) and not self._is_released(request):
                self._on_stream(taken, request)
            else:
                self._check_checksum(request)
                self._rare.begin(taken)
        except DistributedLogError as error:
            taken.fail(error)
        except Exception as error:  # the boundary: a mistake here must leave neither the client nor the others waiting
            _LOG.exception("a %s could not be begun", type(request).__name__)
            taken.fail(error)

    def submit_run(self, run: WriteRun, caller: Caller, reply: RunReply) -> bool:
        """Begin writes that came together: see `RunTaker.submit_run`."""
        table = self._table
        stream = table.get(run.stream)
        if stream is None or table.status is ProxyStatus.DOWN or self._limiter.active or stream.limiter.active:
            return False  # each is looked at by itself
        if not run.summed and not self._no_checksums.is_available():
            return False  # the wrong one is refused alone
        taken = TakenRun(run, caller, reply, self._time())
        if not stream.submit_run(taken):
            return False
        table.recent.add(taken.size, taken.began_s, taken.records)
        if self.count_writer is not None:
            for _ in range(taken.records):
                self.count_writer(run.stream, caller.region)
        return True

    def caller_gone(self, caller: Caller) -> None:
        """Drop what this caller asked for, as far as it was not begun."""
        waited = self._table.host.waited
        for stream in list(waited):
            stream.caller_gone(caller)
            if not stream.waits:
                waited.discard(stream)

    def _write(self, taken: TakenRequest, request: WriteRecords, now: float) -> None:
        # Every record comes through here: no call is made that the usual case does not need.
        table, size = self._table, taken.size
        stream = table.get(request.stream)
        if table.status is ProxyStatus.DOWN:
            self._check_up(request.stream, stream)
        table.recent.add(size, now)
        if self._limiter.active and not (self._no_limits.is_available() or self._no_global_limits.is_available()):
            self._limiter.check(size, now, dark=self._settings.dark_mode)
        if request.context.checksum is not None:
            self._check_checksum(request)
        if stream is None or stream.state is not StreamState.INITIALIZED:
            stream = self._stream(stream, request, taken.caller)
        try:
            if stream.limiter.active and not self._no_limits.is_available():
                stream.limiter.check(size, now, dark=self._settings.dark_mode)
            stream.submit(taken)
        except OverCapacityError:
            stream.forget_unused()  # names come from clients: a refused request must not leave a stream behind
            raise
        # Names come from clients: a stream that is not open here, and perhaps never will be, is not counted.
        if self.count_writer is not None and stream.state is StreamState.INITIALIZED:
            self.count_writer(request.stream, taken.caller.region)

    def _on_stream(self, taken: TakenRequest, request: _OnStream) -> None:
        stream = self._table.get(request.stream)
        if self._table.status is ProxyStatus.DOWN:
            self._check_up(request.stream, stream)
        self._check_checksum(request)
        stream = self._stream(stream, request, taken.caller)
        try:
            stream.submit(taken)
        except OverCapacityError:
            stream.forget_unused()
            raise

    def _check_up(self, name: str, stream: ProxyStream | None) -> None:
        """Raise ServiceUnavailableError on the way down, unless it is known where the stream has gone, or it is served
        until it is handed over."""
        if stream is not None and (stream.refusal is not None or (self._leaving and stream.state in _SERVED)):
            return
        raise self._down_error(name)

    def _stream(self, stream: ProxyStream | None, request: WriteRecords | _OnStream, caller: Caller) -> ProxyStream:
        """Return the stream of a request: the one that is here, unless it must be begun anew."""
        if stream is not None and stream.refusal is not None:
            stream = self._still_refused(stream, request.context.tried_hosts)
        if stream is None:
            create_missing = not isinstance(request, DeleteStream)
            stream = self._table.add(request.stream, create_missing=create_missing, may_create=self.may_create)
        elif self._is_made_anew(stream, request, caller):
            raise StreamUnavailableError("there was no log, and it may be made", log=stream.name, advice="Ask again")
        return stream

    def _is_made_anew(self, stream: ProxyStream, request: WriteRecords | _OnStream, caller: Caller) -> bool:
        """Return whether a stream was opened for others, who may not make its log, and is being given up for that."""
        refusal = stream.refusal
        if self.may_create is None or refusal is None or refusal.code is not StatusCode.LOG_NOT_FOUND:
            return False
        return not isinstance(request, DeleteStream) and self.may_create(caller, request.stream, noted=False)

    def _is_released(self, request: Request) -> bool:
        """Return whether it asks to release a stream that is not served here: nothing is opened for that."""
        if not isinstance(request, ReleaseStream):
            return False
        stream = self._table.get(request.stream)
        return stream is None or stream.refusal is not None

    def _still_refused(self, stream: ProxyStream, tried: tuple[str, ...]) -> ProxyStream | None:
        """Return a stream that is refused here; None where the client has been at the proxy that is remembered as its
        owner, and was sent back: that memory is wrong, and the lock is asked."""
        owner = stream.refusal.location if stream.refusal is not None else None
        if owner is None or not any(same_proxy(owner, one) for one in tried):
            return stream
        stream.forget()
        return self._table.get(stream.name)

    def _check_checksum(self, request: Request) -> None:
        context = getattr(request, "context", None)
        if context is None or context.checksum is None or self._no_checksums.is_available():
            return
        if context.checksum != request_checksum(request):
            raise ChecksumFailedError("the request's checksum is wrong: it did not come as it was sent")

    # ------------------------------------------------------------------ ending

    async def shut_down(self) -> None:
        """Take no other streams, and give all up: to the proxies where they belong, where these take them.

        Each is served until it is reached: a client is without it as long as it moves, and not until all have.
        Returns when all are given up, after `server_shutdown_timeout_ms` at the latest. From then on requests are
        answered by where their streams have gone, or refused with 503, until `close`.
        """
        # A proxy that is down already had to end (`_fatal`): it may not be the owner of what it would go on serving.
        self._leaving = self._table.status is not ProxyStatus.DOWN
        self._table.status = ProxyStatus.DOWN
        late = await one_by_one(self._table, self._end_stream, self._settings.shutdown_timeout_ms / 1000)
        if late:
            _LOG.warning("%d streams were not given up in time; their logs are closed with the namespace", late)
        self._leaving = False

    async def _end_stream(self, stream: ProxyStream) -> None:
        target = self._placement.place(stream.name) if self._placement is not None else None
        own = self._table.host.location
        if self._forwarder is not None and target is not None and not same_proxy(target, own) and stream.owned:
            try:
                await hand_over(stream, self._table.host, self._forwarder, target)
                return  # its clients are sent to the target, and see no error
            except DistributedLogError as error:
                _LOG.info("stream %s is closed, and not handed over to %s: %s", stream.name, target, error)
        stream.give_up(refusal_of(self._down_error(stream.name)), self._table.host.found_kept_s)
        await asyncio.wait([stream.ended])

    async def close(self) -> None:
        """End everything that runs in the background, and forget all streams. Idempotent; comes behind `shut_down`.

        A log that is not closed by now is closed with the namespace.
        """
        self._table.status = ProxyStatus.DOWN
        await self._rare.close()  # first: a move, or a stream that is taken, would go on with the streams
        for stream in self._table:
            stream.give_up(refusal_of(self._down_error(stream.name)))
        await self._table.close()

    def _fatal(self, reason: str) -> None:
        # Nothing more is taken from here on, in this very step: each answer may be that of a log with another owner.
        if self._table.status is ProxyStatus.DOWN:
            return
        self._table.status = ProxyStatus.DOWN
        _LOG.critical("this proxy must end: %s", reason)
        if self._on_fatal is not None:
            self._on_fatal(reason)

    def _down_error(self, stream: str) -> ServiceUnavailableError:
        return ServiceUnavailableError("this proxy is going down", log=stream, advice="Ask another proxy")
