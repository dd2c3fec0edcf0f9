"""The side that reads: a process of its own, so that it does not take turns from the one that writes.

They speak by a pipe, a request and its answer at a time. The process ends when its pipe ends, however the one that
started it came to its end; Ctrl-C is for that one alone.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dlspark.bench.latencies import Latencies
from dlspark.bench.load import MeasuredWindow
from dlspark.bench.processors import Spending
from dlspark.bench.records import DeliveredRecords, read_records
from dlspark.core.runtime import new_event_loop
from metadata.foundation.errors import DistributedLogError, NotAppliedError
from storage_node.protocol.frames import Buffer

if TYPE_CHECKING:
    from dlspark.bench.systems import System

OPEN_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 60.0
CATCH_UP_S: Final = 20.0
"""How long records that were acknowledged are waited for before they count as lost."""
_TURN_S: Final = 0.001
_STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class MeasureWindow:
    """Asks for the records that are due in this window; answered at once."""

    window: MeasuredWindow


@dataclass(frozen=True, slots=True)
class CountDelivered:
    """Asks how many records have come so far, of all logs and in all runs."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Asks for what was measured, once all that was written has come, or is given up."""

    written: Sequence[int]
    """Records of each log in all runs."""
    unacknowledged: Sequence[Sequence[tuple[int, int]]]
    """Which of them may be missing."""


@dataclass
class Delivered:
    """What has come of the records that were due in a window?"""

    latencies: Latencies = field(default_factory=Latencies)
    """From due to delivered, of what was delivered: `Load.count_undelivered` adds the rest."""
    lost: int = 0
    """Acknowledged and not delivered, in all runs."""
    twice: int = 0
    """Likewise."""
    processor_s: float | None = None
    """What the process that reads spent in the window."""
    missing: list[list[tuple[int, int]]] = field(default_factory=list)
    """For each log the numbers of records that were handed over and have not come, in all runs: from the first of a
    pair to before the second."""
    at_ns: int = 0
    """When they were given up."""


Request: TypeAlias = MeasureWindow | CountDelivered | Finish


class ConsumerProcess:
    """The process that reads. Make it with `consumer_process`."""

    def __init__(self, process: Any, connection: Connection) -> None:
        self._process = process
        self._connection = connection

    async def opened(self) -> None:
        """Wait until it reads. Raises NotAppliedError with what it says."""
        await self._answer(OPEN_TIMEOUT_S)

    async def ask(self, request: Request) -> Any:
        """Send a request, and return the answer. Raises NotAppliedError with what has made it end."""
        try:
            self._connection.send(request)
        except OSError:
            pass  # it has ended: what it said last says why
        return await self._answer(ANSWER_TIMEOUT_S)

    async def _answer(self, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while not self._connection.poll():
            if time.monotonic() > deadline:
                raise NotAppliedError(f"the process that reads has not answered within {timeout_s:g} s")
            await asyncio.sleep(_TURN_S)
        try:
            failure, answer = self._connection.recv()
        except (EOFError, OSError):
            raise NotAppliedError("the process that reads has ended; nothing more was measured") from None
        if failure is not None:
            raise NotAppliedError(f"reading failed; nothing more was measured: {failure}")
        return answer


def words_of(error: Exception) -> str:
    """Return what is said of a failure of a system; with its kind, where it is not one of ours."""
    return str(error) if isinstance(error, DistributedLogError) else f"{type(error).__name__}: {error}"


@contextmanager
def consumer_process(system: System, names: Sequence[str], record_bytes: int) -> Iterator[ConsumerProcess]:
    """Start a process that reads these logs; it has ended when the block is left."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, system, list(names), record_bytes), daemon=True)
    # Inherited, so that Ctrl-C cannot meet the process before it would ignore it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()
    try:
        yield ConsumerProcess(process, ours)
    finally:
        ours.close()
        process.join(_STOP_S)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


# ---------------------------------------------------------------------- in the process


def _main(connection: Connection, system: System, names: list[str], record_bytes: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_consume(connection, system, names, record_bytes))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the one that asks has ended
    except Exception as error:
        try:
            connection.send((words_of(error), None))
        except OSError:
            pass  # likewise
    finally:
        loop.close()


async def _consume(connection: Connection, system: System, names: list[str], record_bytes: int) -> None:
    tally = Tally(len(names), record_bytes)
    async with system.consumer(names, tally.deliver) as consumer:
        connection.send((None, None))
        while True:
            tally.look()
            consumer.check()
            if connection.poll():
                connection.send((None, await tally.answer(connection.recv())))
            await asyncio.sleep(_TURN_S)


class Tally:
    """Counts what is delivered."""

    def __init__(self, logs: int, record_bytes: int) -> None:
        self._record_bytes = record_bytes
        self._arrived: deque[tuple[int, Buffer, int]] = deque()
        self._logs = [DeliveredRecords() for _ in range(logs)]
        self._window = MeasuredWindow(0, 0)
        self._latencies = Latencies()
        self._spending: Spending | None = None

    def deliver(self, log: int, data: Buffer, at_ns: int) -> None:
        """Take records; from any thread."""
        self._arrived.append((log, data, at_ns))

    def look(self) -> None:
        """Count what has come since."""
        if self._spending is not None:
            self._spending.look(time.monotonic_ns())
        while self._arrived:
            log, data, at_ns = self._arrived.popleft()
            numbers, due_ns = read_records(data, self._record_bytes)
            self._logs[log].add(numbers)
            self._latencies.add(at_ns - self._window.part_of(due_ns))

    async def answer(self, request: Request) -> Delivered | int | None:
        """Return the answer to a request."""
        if isinstance(request, MeasureWindow):
            self._window, self._latencies = request.window, Latencies()
            self._spending = Spending(None, request.window.from_ns, request.window.to_ns)
            return None
        if isinstance(request, CountDelivered):
            return sum(log.count for log in self._logs)
        deadline = time.monotonic() + CATCH_UP_S
        while (lost := self._lost(request)) and time.monotonic() < deadline:
            await asyncio.sleep(_TURN_S)
            self.look()
        spent = None if self._spending is None else self._spending.seconds
        missing = [log.missing(written) for log, written in zip(self._logs, request.written, strict=True)]
        twice = sum(log.twice for log in self._logs)
        return Delivered(self._latencies, lost, twice, spent, missing, time.monotonic_ns())

    def _lost(self, request: Finish) -> int:
        pairs = zip(self._logs, request.written, request.unacknowledged, strict=True)
        return sum(log.lost(written, refused) for log, written, refused in pairs)
