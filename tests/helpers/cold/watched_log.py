"""`WatchedLog`: a log that is written to and read all the while, by readers that notice a record that is missing, that
comes twice, or that is another one.

A record says its own number and the checksum of the rest. Three readers never stop: one follows from the first record
on; one begins anew at the first record again and again, and wants all that was acknowledged by then; one begins at a
position or a transaction id anywhere.
"""

from __future__ import annotations

import asyncio
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.reader import AsyncLogReader

_HEAD: Final = struct.Struct(">QI")
TICK_S: Final = 0.05
A_TICK: Final = 8
"""Records that are written at once."""
LONG_S: Final = 300.0
"""After so long nothing comes any more: rounds run beside other work."""
LARGE: Final = 900_000
"""Bytes of a record of the large ones, a dozen of which make a file that goes in parts."""


class WatchedLog:
    """What does a log look like while other processes move its past?

    Args:
        namespace: open; this uses it for a writer and for readers.
        name: the log's.
        rng: draws what is written, and where readers begin.
    """

    def __init__(self, namespace: AsyncNamespace, name: str, rng: random.Random) -> None:
        self.name = name
        self.acknowledged: list[DLSN] = []
        """Positions, by the records' numbers."""
        self.begun_anew = 0
        self.positioned = 0
        self._namespace = namespace
        self._rng = rng
        self._number = 0
        self._large = 0
        self._writing: asyncio.Task[None] | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._written = asyncio.Event()
        self._ending = False

    async def start(self) -> None:
        """Write the first record, and let the writer and the readers run."""
        loop = asyncio.get_running_loop()
        self._writing = loop.create_task(self._write())
        await asyncio.wait(
            [self._writing, first := loop.create_task(self._written.wait())], return_when="FIRST_COMPLETED"
        )
        first.cancel()
        self.check()
        self._readers = [loop.create_task(one) for one in (self._follow(), self._begin_anew(), self._jump())]

    def write_large(self) -> None:
        """Have some megabytes that do not compress written next."""
        self._large += 12

    def check(self) -> None:
        """Raise what has ended the writer or a reader."""
        for task in [*([self._writing] if self._writing is not None else []), *self._readers]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def end_writing(self) -> None:
        """End the writer; its last segment is complete then. Readers go on."""
        self._ending = True
        if self._writing is not None:
            await self._writing

    async def end_reading(self) -> None:
        """Let each reader finish a last walk over all that was written."""
        self._written.clear()
        await asyncio.wait_for(asyncio.gather(*self._readers), LONG_S)

    async def abandon(self) -> None:
        """End all of it, for a test that has failed."""
        tasks = [*([self._writing] if self._writing is not None else []), *self._readers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ the writer

    async def _write(self) -> None:
        async with await self._namespace.open_log(self.name) as log, await log.open_writer() as writer:
            while not self._ending:
                sizes = [self._rng.randrange(1_000) for _ in range(A_TICK)] + [LARGE] * self._large
                self._large = 0
                numbers = range(self._number, self._number + len(sizes))
                self._number += len(sizes)
                pairs = zip(numbers, sizes, strict=True)
                written = [writer.write(number, _payload(number, self._rng.randbytes(size))) for number, size in pairs]
                self.acknowledged += await asyncio.gather(*written)
                self._written.set()
                await asyncio.sleep(TICK_S)  # the pace of the records

    # ------------------------------------------------------------------ the readers

    @property
    def _last_walk(self) -> bool:
        return not self._written.is_set()

    async def _follow(self) -> None:
        async with await self._namespace.open_log(self.name) as log, await log.open_reader("earliest") as reader:
            number = 0
            while not (self._last_walk and number == len(self.acknowledged)):
                number = self._checked(await reader.read_available(200, wait=True), number)

    async def _begin_anew(self) -> None:
        while True:
            last = self._last_walk
            wanted = len(self.acknowledged)
            async with await self._namespace.open_log(self.name) as log:
                await self._read(log, "earliest", 0, wanted)
            self.begun_anew += 1
            if last:
                return
            await asyncio.sleep(TICK_S)  # movers want some of the processor as well

    async def _jump(self) -> None:
        while True:
            last = self._last_walk
            wanted = len(self.acknowledged)
            first = self._rng.randrange(wanted)
            start = self.acknowledged[first] if self._rng.random() < 0.5 else first
            async with await self._namespace.open_log(self.name) as log:
                await self._read(log, start, first, min(wanted, first + 50))
            self.positioned += 1
            if last:
                return

    async def _read(self, log: AsyncLog, start: DLSN | int | str, number: int, end: int) -> None:
        async with await log.open_reader(start) as reader:
            await asyncio.wait_for(self._read_to(reader, number, end), LONG_S)

    async def _read_to(self, reader: AsyncLogReader, number: int, end: int) -> None:
        while number < end:
            number = self._checked(await reader.read_available(200, wait=True), number)

    def _checked(self, records: Sequence[LogRecord], number: int) -> int:
        """Assert that these are the records from a number on; return the number behind them."""
        for record in records:
            said, checksum = _HEAD.unpack_from(record.payload)
            assert (said, record.txid) == (number, number), f"record {said} at {record.dlsn} in place of {number}"
            assert zlib.crc32(memoryview(record.payload)[_HEAD.size :]) == checksum, f"record {number} is another one"
            assert number >= len(self.acknowledged) or self.acknowledged[number] == record.dlsn, f"{number} has moved"
            number += 1
        return number


def _payload(number: int, content: bytes) -> bytes:
    return _HEAD.pack(number, zlib.crc32(content)) + content
