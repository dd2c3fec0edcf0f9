"""Programs that write and read all the time, while the cluster under them is changed: direct ones, and thin clients.

Each is restarted with other settings when the test says so (`restart`), as a deployment restarts a program: it settles
what is under way, closes everything, and goes on where it was. A program never asks twice itself: an error that reaches
it is kept, and ends it. What its client library tries again within a request is the library's business.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.client.client import AsyncClient
from helpers.waiting import until
from metadata.foundation.settings import Value

PAUSE_S: Final = 0.02
"""Between two records of one writer."""
DIRECT: Final[Mapping[str, Value]] = {
    "zkSessionTimeoutSeconds": 40,
    "periodicFlushFrequencyMilliSeconds": 5,
    "readAheadWaitTime": 200,
}
_READS: Final = 100
_FOLLOWED_S: Final = 120.0


class Program(ABC):
    """One program and its log; `end` says by an error whether anything failed."""

    def __init__(self, log: str, settings: Mapping[str, str]) -> None:
        self.log = log
        self.settings = dict(settings)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work."""
        self._stopping.clear()
        self._task = asyncio.ensure_future(self.run(self._stopping))

    async def end(self) -> None:
        """Stop in order. Raises what failed."""
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()
            await task

    async def restart(self, settings: Mapping[str, str]) -> None:
        """Stop in order, and go on with other settings. Raises what failed."""
        await self.end()
        self.settings = dict(settings)
        self.start()

    @property
    def ended(self) -> bool:
        """Return whether it has ended by itself, which is by an error."""
        return self._task is not None and self._task.done()

    def check(self) -> None:
        """Raise what has failed so far."""
        if self._task is not None and self._task.done():
            self._task.result()
            raise AssertionError(f"the program of {self.log} has ended")

    @abstractmethod
    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set."""


class Writer(Program):
    """Writes the numbers from 1 on, and knows which were acknowledged."""

    def __init__(self, log: str, settings: Mapping[str, str]) -> None:
        super().__init__(log, settings)
        self.sent = 0
        self.acknowledged = 0
        self.longest_s = 0.0
        self._last = DLSN.INVALID

    async def write_on(self, stopping: asyncio.Event, send: Callable[[int], asyncio.Future[DLSN]]) -> None:
        """Send numbers by `send` until `stopping` is set, and wait for what was sent. Raises where a write failed."""
        under_way: set[asyncio.Future[DLSN]] = set()
        failed: list[BaseException] = []

        def settled(future: asyncio.Future[DLSN], number: int, began_s: float) -> None:
            under_way.discard(future)
            error = future.exception()
            if error is not None:
                failed.append(error)
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            if number != self.acknowledged + 1 or future.result() <= self._last:
                failed.append(AssertionError(f"{self.log}: {number} at {future.result()} follows {self.acknowledged}"))
            self.acknowledged, self._last = number, future.result()

        while not stopping.is_set() and not failed:
            number = self.sent = self.sent + 1
            future, began_s = send(number), time.monotonic()
            under_way.add(future)
            future.add_done_callback(partial(settled, number=number, began_s=began_s))
            await asyncio.sleep(PAUSE_S)
        while under_way:
            await asyncio.wait(set(under_way))
            await asyncio.sleep(0)
        if failed:
            raise failed[0]
        assert self.acknowledged == self.sent


class DirectWriter(Writer):
    """Writes by ZooKeeper and storage nodes."""

    def __init__(self, uri: str, log: str, settings: Mapping[str, str]) -> None:
        super().__init__(log, settings)
        self._uri = uri

    async def run(self, stopping: asyncio.Event) -> None:
        namespace = await AsyncNamespace.open(self._uri, {**DIRECT, **self.settings})
        try:
            async with await namespace.open_log(self.log) as log:
                writer = await log.open_writer()
                await self.write_on(stopping, lambda number: writer.write(number, b"%d" % number))
                await writer.close()
        finally:
            await namespace.close()


class ThinWriter(Writer):
    """Writes by write proxies, as an idempotent producer."""

    def __init__(self, proxies: str, readers: str, log: str, settings: Mapping[str, str]) -> None:
        super().__init__(log, settings)
        self._proxies, self._readers = proxies, readers

    async def run(self, stopping: asyncio.Event) -> None:
        values: dict[str, Value] = {**self.settings, "idempotentProducer": True, "clientId": f"writer of {self.log}"}
        client = await AsyncClient.connect(self._proxies, values, read_from=self._readers)
        try:
            producer = client.producer(self.log)
            await self.write_on(stopping, lambda number: producer.send(b"%d" % number))
        finally:
            await client.close()


class Reader(Program):
    """Follows a writer's log: each number once, in order."""

    def __init__(self, log: str, settings: Mapping[str, str]) -> None:
        super().__init__(log, settings)
        self.read = 0
        self._at: DLSN | None = None

    def take(self, dlsn: DLSN, payload: bytes) -> None:
        if self._at is not None and dlsn <= self._at:
            return  # a reader begins at the record that it has read last
        assert int(payload) == self.read + 1, f"{self.log}: {payload!r} at {dlsn} follows {self.read}"
        self.read, self._at = self.read + 1, dlsn

    @property
    def start_at(self) -> DLSN | str:
        return self._at or "earliest"

    async def follow(self, writer: Writer) -> None:
        """Wait until all that was acknowledged has been read. Raises what failed."""
        wanted = writer.acknowledged

        def reached() -> bool:
            self.check()
            return self.read >= wanted

        await until(reached, lambda: f"{self.log}: read up to {self.read} of {wanted}", patience_s=_FOLLOWED_S)


class DirectReader(Reader):
    """Reads from storage nodes."""

    def __init__(self, uri: str, log: str, settings: Mapping[str, str]) -> None:
        super().__init__(log, settings)
        self._uri = uri

    async def run(self, stopping: asyncio.Event) -> None:
        namespace = await AsyncNamespace.open(self._uri, {**DIRECT, **self.settings})
        try:
            async with await namespace.open_log(self.log) as log, await log.open_reader(self.start_at) as reader:
                while not stopping.is_set():
                    for record in await reader.read_available(_READS, wait=True):
                        self.take(record.dlsn, bytes(record.payload))
        finally:
            await namespace.close()


class ThinReader(Reader):
    """Reads by the read proxy."""

    def __init__(self, proxies: str, readers: str, log: str, settings: Mapping[str, str]) -> None:
        super().__init__(log, settings)
        self._proxies, self._readers = proxies, readers

    async def run(self, stopping: asyncio.Event) -> None:
        client = await AsyncClient.connect(self._proxies, self.settings, read_from=self._readers)
        try:
            reader = client.reader(self.log, self.start_at, poll_ms=200)
            ended = asyncio.ensure_future(stopping.wait())
            try:
                while not stopping.is_set():
                    reading = asyncio.ensure_future(reader.read_next())
                    await asyncio.wait({reading, ended}, return_when=asyncio.FIRST_COMPLETED)
                    if reading.done():
                        record = reading.result()
                        self.take(record.dlsn, bytes(record.payload))
                    else:
                        reading.cancel()
                        await asyncio.wait({reading})
            finally:
                ended.cancel()
        finally:
            await client.close()
