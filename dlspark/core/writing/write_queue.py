"""The queue in front of a segment that is being started, and the limits of what a writer takes unacknowledged.

There are limits in records, for one writer and for all, and one in bytes. Those in records are settings, 0 or less for
none. Over one of them a record is refused, or with `outstandingWriteLimitDarkmode`, and while the feature
`dl.disable_write_limit` is on, only counted. The limit in bytes is for what waits while a segment is being started, and
always holds: memory is bounded by it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from dlspark.core.dynamic.features import DISABLE_WRITE_LIMIT, DL_SCOPE
from dlspark.core.services import Services
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.record_runs import RecordRun
from dlspark.core.writing.write_kinds import QueuedWrite
from dlspark.errors import OverCapacityError
from metadata.foundation.errors import DistributedLogError

MAX_QUEUED_BYTES = 256 << 20
"""Payload bytes that may wait while a segment is being started; more are refused with OverCapacityError."""


class WriteQueue:
    """The writes that wait for a segment, in order."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.since = 0.0
        """When the first of what waits was queued, by the event loop's clock."""
        self._waiting: deque[QueuedWrite] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def crowded(self) -> bool:
        """True if so much waits that `wait_for_room` should wait: half of MAX_QUEUED_BYTES."""
        return self.bytes > MAX_QUEUED_BYTES // 2

    @property
    def first(self) -> QueuedWrite:
        """The write that waits longest. Raises IndexError where nothing waits."""
        return self._waiting[0]

    @property
    def last_txid(self) -> int:
        """Highest transaction id that waits, -1 for none."""
        return max((operation.last_txid for operation in self._waiting), default=-1)

    def add(self, operation: QueuedWrite) -> None:
        """Put a checked write behind all others. Its limits are `WriteLimits.check`'s."""
        if not self._waiting:
            self.since = asyncio.get_running_loop().time()
        self._waiting.append(operation)
        self.records += operation.records
        self.bytes += operation.size

    def take(self) -> QueuedWrite:
        """Take the write that waits longest off the queue. Raises IndexError where nothing waits."""
        operation = self._waiting.popleft()
        self.records -= operation.records
        self.bytes -= operation.size
        return operation

    def refuse(self, error: DistributedLogError) -> None:
        """Fail everything that waits."""
        # Emptied first: a caller that hears of the failure may write again in the same step.
        waiting, self._waiting = self._waiting, deque()
        self.records = self.bytes = 0
        for operation in waiting:
            operation.fail(error)


class WriteLimits:
    """The limits of one writer, and its part in the one of all writers of the namespace."""

    def __init__(self, services: Services, log: str) -> None:
        self.over_limit = 0
        """Records over `perWriterOutstandingWriteLimit` or `globalOutstandingWriteLimit`: refused, or only counted."""
        self._log = log
        self._shared = services.shared
        self._counters = services.counters
        self._measures = services.meter.of(log)
        self._switched_off = services.features.scope(DL_SCOPE).feature(DISABLE_WRITE_LIMIT)
        self._counted = 0
        self._ended = False

    def has_room(self, settings: Settings, run: RecordRun, outstanding: int, queue: WriteQueue) -> bool:
        """Return whether all records of `run` are within the limits."""
        mine, everybody, records = settings.outstanding_write_limit, settings.global_outstanding_write_limit, len(run)
        over_records = 0 < mine < outstanding + records or 0 < everybody < self._shared.outstanding + records
        return not over_records and not (queue and queue.bytes + run.size > MAX_QUEUED_BYTES)

    def check(self, settings: Settings, operation: QueuedWrite, outstanding: int, queue: WriteQueue) -> None:
        """Raise OverCapacityError unless `operation` may be taken; `outstanding` of the writer's records are under way.

        One operation is taken even if it alone is over a limit of bytes.
        """
        mine, everybody = settings.outstanding_write_limit, settings.global_outstanding_write_limit
        if mine > 0 and outstanding + operation.records > mine:
            self._measures.stream_write_limiter_acquire_failure.inc(operation.records)
            self._over(settings, operation, outstanding, mine, "perWriterOutstandingWriteLimit")
        elif everybody > 0 and self._shared.outstanding + operation.records > everybody:
            self._measures.write_limiter_acquire_failure.inc(operation.records)
            self._over(settings, operation, self._shared.outstanding, everybody, "globalOutstandingWriteLimit")
        if queue and queue.bytes + operation.size > MAX_QUEUED_BYTES:  # an empty queue takes one of any size
            raise OverCapacityError(
                f"{queue.bytes} bytes wait for a segment to be started; this record was not taken",
                log=self._log,
                advice="Await wait_for_room() between writes",
            )

    def _over(self, settings: Settings, operation: QueuedWrite, outstanding: int, limit: int, key: str) -> None:
        self.over_limit += operation.records
        self._counters[f"over-{key}"] += operation.records
        if settings.write_limit_dark_mode or self._switched_off.is_available():
            return
        raise OverCapacityError(
            f"{outstanding} records wait for acknowledgement, the limit is {limit}; this one was not taken",
            log=self._log,
            advice=f"Wait for earlier writes, or raise {key}",
        )

    def count(self, outstanding: int) -> None:
        """Note how many records of this writer are under way, for the limit that all writers share."""
        if not self._ended:
            self._shared.outstanding += outstanding - self._counted
            self._counted = outstanding

    def end(self) -> None:
        """Note that the writer is closed: take its part out of the shared count, for good."""
        self.count(0)
        self._ended = True
