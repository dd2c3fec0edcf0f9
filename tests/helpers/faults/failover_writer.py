"""A writer process for the failover rounds: writes numbered records and prints when each was acknowledged.

Lines on standard output:

    ok <number> <dlsn> <seconds>     acknowledged, at that time of the machine's monotonic clock
    failed <number> <error>          definitely not applied
    unknown <number> <error>         may or may not be in the log
    waiting <error>                  the log has another owner
    owner                            the log is this writer's
    lost <error>                     a record was not acknowledged: this writer is at its end
    done                             standard input has ended, and the log is closed in order

The time is taken in the moment in which the library decides on the acknowledgement, by a look at its clock, not when
the user's code sees it: a process that is stopped in between, some microseconds of its processor time, has got it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import Any

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from helpers.faults.record_writer import payload_of, say
from metadata.foundation.errors import DistributedLogError, OutcomeUnknownError
from storage_node.edge import SystemClock

DEPTH = 32
PAUSE_S = 0.002
DECISION_S = 0.0002
"""Processor time from a look at the clock to the result that follows from it, at most."""


class Looks:
    """When did the library look at its clock last? By the machine's clock, and by this process's processor time, which
    stands still while the process does."""

    at_s = cpu_s = -1.0

    @classmethod
    def note(cls) -> None:
        cls.cpu_s, cls.at_s = time.process_time(), time.monotonic()


class TimedFuture(asyncio.Future[Any]):
    """Knows when it was decided that it got its result."""

    at_s = 0.0

    def set_result(self, result: Any) -> None:
        decided = time.process_time() - Looks.cpu_s < DECISION_S
        self.at_s = Looks.at_s if decided else time.monotonic()
        super().set_result(result)


class TimedLoop(asyncio.SelectorEventLoop):
    """asyncio's own event loop, with futures that know when they got their result."""

    def create_future(self) -> TimedFuture:
        return TimedFuture(loop=self)


async def write_until_told(uri: str, name: str, first: int, settings: dict[str, Any], stop: asyncio.Event) -> None:
    async with await AsyncNamespace.open(uri, settings) as namespace, await namespace.open_log(name) as log:
        while True:
            try:
                writer = await log.open_writer()
                break
            except DistributedLogError as error:
                say(f"waiting {type(error).__name__}: {error}")
        say("owner")
        room, lost = asyncio.Semaphore(DEPTH), asyncio.Event()

        def ended(number: int, future: Any) -> None:
            room.release()
            error = future.exception()
            if error is None:
                say(f"ok {number} {future.result()} {future.at_s}")
                return
            say(f"{'unknown' if isinstance(error, OutcomeUnknownError) else 'failed'} {number} {error!r}")
            if not lost.is_set():
                lost.set()
                say(f"lost {type(error).__name__}: {error}")

        number = first
        while not stop.is_set() and not lost.is_set():
            await room.acquire()
            future: asyncio.Future[DLSN] = writer.write(number, payload_of(number))
            future.add_done_callback(partial(ended, number))
            number += 1
            await asyncio.sleep(PAUSE_S)
        if lost.is_set():
            await writer.abort()
        else:
            await writer.close()
    say("done")


def run(name: str, uri: str, log: str, first: int, settings: dict[str, Any]) -> int:
    """Write records from number `first` on."""
    looked = SystemClock.elapsed_s

    def elapsed_s(clock: SystemClock) -> float:
        Looks.note()
        return looked(clock)

    SystemClock.elapsed_s = elapsed_s  # type: ignore[method-assign, assignment]
    loop = TimedLoop()
    asyncio.set_event_loop(loop)
    stop = asyncio.Event()

    async def main() -> None:
        waiting = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        waiting.add_done_callback(lambda _: stop.set())
        await write_until_told(uri, log, first, settings, stop)

    loop.run_until_complete(main())
    return 0
