"""The notes of a run: `History`, the requests of clients and how each ended (ok, failed, or unknown), and `Trace`,
everything that happened.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from metadata.foundation.errors import CallerError, DistributedLogError, NotAppliedError
from simulation.environment.loop import SimulatedLoop


class OperationOutcome(Enum):
    """What became of an operation?"""

    OPEN = "open"
    OK = "ok"
    FAILED = "failed"
    """It definitely did not happen."""
    UNKNOWN = "unknown"
    """It may or may not have happened."""


@dataclass(slots=True)
class RecordedOperation:
    """One request of a client; times are virtual seconds."""

    client: str
    kind: str
    subject: str
    began: float
    ended: float = -1.0
    outcome: OperationOutcome = OperationOutcome.OPEN
    error: str = ""


def outcome_of(error: BaseException) -> OperationOutcome:
    """Return what an error says of the request that it ended."""
    return OperationOutcome.FAILED if isinstance(error, NotAppliedError | CallerError) else OperationOutcome.UNKNOWN


class History:
    """All operations of a run, in the order in which they began."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.operations: list[RecordedOperation] = []
        self._loop = loop

    def begin(self, client: str, kind: str, subject: str) -> RecordedOperation:
        """Note that a request of `client` begins now. It stays open until `end`, so for good where its process is
        killed.
        """
        operation = RecordedOperation(client, kind, subject, self._loop.time())
        self.operations.append(operation)
        return operation

    def end(self, operation: RecordedOperation, error: BaseException | None = None) -> None:
        """Note that the request was answered now: ok, or what `error` says of it."""
        operation.ended = self._loop.time()
        operation.outcome = OperationOutcome.OK if error is None else outcome_of(error)
        if error is not None:
            operation.error = repr(error)

    @contextmanager
    def operation(self, client: str, kind: str, subject: str) -> Iterator[RecordedOperation]:
        """Yield an operation as long as the block runs; errors of the product are noted and raised on."""
        operation = self.begin(client, kind, subject)
        try:
            yield operation
        except DistributedLogError as error:
            self.end(operation, error)
            raise
        else:
            self.end(operation)

    def counts(self) -> Counter[str]:
        """Return how many requests of each kind ended how, as `add.ok`; `open` for those that never ended."""
        return Counter(f"{o.kind}.{o.outcome.value}" for o in self.operations)


class Trace:
    """A sum over everything that happened, in order; with `lines` also the text of it."""

    def __init__(self, loop: SimulatedLoop, *, keep: bool) -> None:
        self._loop = loop
        self.sum = 0
        self.lines: list[str] | None = [] if keep else None

    def note(self, what: str) -> None:
        """Add an event, at the present virtual time. Two runs of one seed must give the same sum."""
        line = f"{self._loop.time():.6f} {what}"
        self.sum = zlib.crc32(line.encode(), self.sum)
        if self.lines is not None:
            self.lines.append(line)
