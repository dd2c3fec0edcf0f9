"""What tests of logs do again and again: write a log of given segments, read it, wait for a condition."""

from __future__ import annotations

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import AlreadyTruncatedError
from metadata.logs import TruncationStatus


async def written(namespace, name, segments, *, start=0):
    """A log of these segments (lists of payloads), a record an entry; transaction ids count up by 10. Its handle."""
    log = await namespace.open_log(name, {"writerOutputBufferSize": 0})
    txid = start
    for payloads in segments:
        async with await log.open_writer() as writer:
            for payload in payloads:
                writer.write(txid, payload)
                txid += 10
    return log


async def drained(reader):
    """What there is to be read at present."""
    payloads = []
    while more := await reader.read_available(100, wait=True):
        payloads += [record.payload for record in more]
    return payloads


async def payloads(log, start="earliest"):
    """What a new reader from `start` finds, and the error it ends with instead, if it does."""
    async with await log.open_reader(start) as reader:
        try:
            return await drained(reader)
        except AlreadyTruncatedError as error:
            return error


def states(segments):
    """Each segment's truncation, in a letter or the minimum position."""
    letters = {TruncationStatus.ACTIVE: "a", TruncationStatus.TRUNCATED: "t"}
    return [
        "i" if s.in_progress else letters.get(s.truncation) or str(DLSN(s.lssn, s.min_entry, s.min_slot))
        for s in segments
    ]
