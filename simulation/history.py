"""`History`: what clients asked for and what came of it: ok, failed, or unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from metadata.foundation.errors import CallerError, DistributedLogError, NotAppliedError
from simulation.loop import SimulatedLoop


class Outcome(Enum):
    OPEN = "open"
    OK = "ok"
    FAILED = "failed"
    """It definitely did not happen."""
    UNKNOWN = "unknown"
    """It may or may not have happened."""


@dataclass(slots=True)
class Operation:
    """One request of a client; times are virtual seconds."""

    client: str
    kind: str
    subject: str
    began: float
    ended: float = -1.0
    outcome: Outcome = Outcome.OPEN
    error: str = ""


def outcome_of(error: BaseException) -> Outcome:
    """What an error says of the request that it ended."""
    return Outcome.FAILED if isinstance(error, NotAppliedError | CallerError) else Outcome.UNKNOWN


class History:
    """All operations of a run, in the order in which they began."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.operations: list[Operation] = []
        self._loop = loop

    def begin(self, client: str, kind: str, subject: str) -> Operation:
        operation = Operation(client, kind, subject, self._loop.time())
        self.operations.append(operation)
        return operation

    def end(self, operation: Operation, error: BaseException | None = None) -> None:
        operation.ended = self._loop.time()
        operation.outcome = Outcome.OK if error is None else outcome_of(error)
        if error is not None:
            operation.error = repr(error)

    @contextmanager
    def operation(self, client: str, kind: str, subject: str) -> Iterator[Operation]:
        """An operation as long as the block runs; errors of the product are noted and raised on."""
        operation = self.begin(client, kind, subject)
        try:
            yield operation
        except DistributedLogError as error:
            self.end(operation, error)
            raise
        else:
            self.end(operation)

    def counts(self) -> Counter[str]:
        return Counter(f"{o.kind}.{o.outcome.value}" for o in self.operations)
