"""What tests of logs do again and again: write a log of given segments, read it, wait for a reader at its tail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.errors import AlreadyTruncatedError
from helpers.waiting import until
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus


async def written(
    namespace: AsyncNamespace, name: str, segments: Iterable[Sequence[bytes]], *, start: int = 0
) -> AsyncLog:
    """Write a log of these segments (of payloads), a record an entry; transaction ids count up by 10. Its handle."""
    log = await namespace.open_log(name, {"writerOutputBufferSize": 0})
    txid = start
    for payloads in segments:
        async with await log.open_writer() as writer:
            for payload in payloads:
                writer.write(txid, payload)
                txid += 10
    return log


async def drained(reader: AsyncLogReader) -> list[bytes]:
    """Read what is there at present."""
    payloads: list[bytes] = []
    while more := await reader.read_available(100, wait=True):
        payloads += [record.payload for record in more]
    return payloads


async def payloads(log: AsyncLog, start: str | DLSN = "earliest") -> list[bytes] | AlreadyTruncatedError:
    """Read what a new reader from `start` finds; returns the error that it ends with instead, if it does."""
    async with await log.open_reader(start) as reader:
        try:
            return await drained(reader)
        except AlreadyTruncatedError as error:
            return error


async def records_of(namespace: AsyncNamespace, name: str = "log", start: str | DLSN = "earliest") -> list[LogRecord]:
    """Read the records that a new reader of a log finds."""
    async with await namespace.open_log(name) as log, await log.open_reader(start) as reader:
        found: list[LogRecord] = []
        while more := await reader.read_available(100, wait=True):
            found += more
        return found


async def waits_at_tail(reader: AsyncLogReader) -> None:
    """Return when a read of this reader waits for a record to come."""
    await until(lambda: reader._turn.locked() and reader.caught_up, "a read waits at the tail")


def states(segments: Iterable[SegmentMetadata]) -> list[str]:
    """Return each segment's truncation, in a letter or the minimum position."""
    letters = {TruncationStatus.ACTIVE: "a", TruncationStatus.TRUNCATED: "t"}
    return [
        "i" if s.in_progress else letters.get(s.truncation) or str(DLSN(s.lssn, s.min_entry, s.min_slot))
        for s in segments
    ]
