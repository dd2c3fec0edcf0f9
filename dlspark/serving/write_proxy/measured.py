"""A proxy's service as it looks from outside: what is asked and answered, counted and timed. No I/O.

`MeasuredService` stands before the service itself and hands everything on unchanged. What a stream takes in is kept for
the placement of streams (`StreamTraffic`). It must never change an answer, or answer by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dlspark.serving.bindings.service import Caller, ProxyService, Reply
from dlspark.serving.protocol.operations import (
    Answer,
    BulkReceipt,
    CreateStream,
    DeleteStream,
    Heartbeat,
    Refusal,
    ReleaseStream,
    Request,
    StatusCode,
    TruncateStream,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.write_proxy.metrics import ProxyMeasures, ProxyScopes, StreamMeasures

_DENIED: Final = (StatusCode.REQUEST_DENIED, StatusCode.CHECKSUM_FAILED)
_TIMED: Final[Mapping[type, str]] = {
    Heartbeat: "heartbeat",
    TruncateStream: "truncate",
    ReleaseStream: "release",
    CreateStream: "create",
    DeleteStream: "delete",
}


class StreamTraffic:
    """How many bytes a second streams take, over the time between the last two samples."""

    def __init__(self) -> None:
        self.bytes_per_second: dict[str, int] = {}
        """As of the last sample; a stream without traffic since is not in it."""
        self._bytes: dict[str, int] = {}
        self._since: float | None = None

    def add(self, stream: str, count: int) -> None:
        """Note that a stream that is owned here has taken `count` bytes."""
        self._bytes[stream] = self._bytes.get(stream, 0) + count

    def sample(self, now: float) -> None:
        """Begin the next time; `now` in seconds."""
        if self._since is not None and now > self._since:
            seconds = now - self._since
            self.bytes_per_second = {one: max(1, int(count / seconds)) for one, count in self._bytes.items()}
        self._since = now
        self._bytes = {}


class MeasuredService:
    """A `ProxyService` before another one."""

    def __init__(
        self, service: ProxyService, scopes: ProxyScopes, traffic: StreamTraffic, clock: Callable[[], float]
    ) -> None:
        """`clock` returns seconds that never go back."""
        self._service = service
        self._scopes = scopes
        self._traffic = traffic
        self._clock = clock
        self._pending = {False: 0, True: 0}
        self._outstanding = 0
        root = scopes.root
        root.write_pending.follow(self, lambda one: one._pending[False])
        root.bulk_write_pending.follow(self, lambda one: one._pending[True])
        root.outstanding.follow(self, lambda one: one._outstanding)

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """See `ProxyService`."""
        began, root = self._clock(), self._scopes.root
        self._outstanding += 1
        if isinstance(request, WriteRecords):
            self._submit_write(request, caller, reply, began)
            return
        operation = type(request).__name__

        def answered(answer: Answer) -> None:
            self._outstanding -= 1
            refusal = answer if isinstance(answer, Refusal) else None
            field = _TIMED.get(type(request))
            timing = getattr(root, field) if field is not None else root.other.of(operation)
            self._count(root, refusal, field or operation)
            if refusal is None or refusal.code is not StatusCode.FOUND:
                timing.record(self._clock() - began, refusal is None)
            reply(answer)

        self._service.submit(request, caller, answered)

    def _submit_write(self, request: WriteRecords, caller: Caller, reply: Reply, began: float) -> None:
        records, root = len(request.payloads), self._scopes.root
        bulk = records != 1 or request.is_whole
        root.records_received.value += records
        self._pending[bulk] += 1

        def answered(answer: Answer) -> None:
            self._outstanding -= 1
            self._pending[bulk] -= 1
            refusal = answer if isinstance(answer, Refusal) else None
            self._count(root, refusal, "bulkWrite" if bulk else "write")
            if refusal is not None and refusal.code is StatusCode.FOUND:
                root.records_redirect.value += records
            else:
                stream = self._count_records(request, answer, records)
                timing = stream.bulk_write if bulk else stream.write
                timing.record(self._clock() - began, refusal is None)
            reply(answer)

        self._service.submit(request, caller, answered)

    def _count_records(self, request: WriteRecords, answer: Answer, records: int) -> StreamMeasures:
        """Count what became of the records; returns where their stream is counted."""
        failed = 0
        if isinstance(answer, BulkReceipt):
            failed = list(map(type, answer.results)).count(Refusal)
        elif not isinstance(answer, WriteReceipt):
            failed = records
        if failed == records:  # A name that was never written is a client's alone: it gets no series.
            stream = self._scopes.known(request.stream)
        else:
            stream = self._scopes.of(request.stream)
            stream.records_success.value += records - failed
            self._traffic.add(request.stream, sum(map(len, request.payloads)))
        stream.records_failure.value += failed
        return stream

    def _count(self, root: ProxyMeasures, refusal: Refusal | None, operation: str) -> None:
        code = refusal.code if refusal is not None else StatusCode.SUCCESS
        root.status_codes.values[code.name] += 1
        root.status_code_count.value += 1
        if code is StatusCode.FOUND:
            root.redirect.value += 1
        elif code in _DENIED:
            root.denied.values[operation] += 1

    def caller_gone(self, caller: Caller) -> None:
        """See `ProxyService`."""
        self._service.caller_gone(caller)
