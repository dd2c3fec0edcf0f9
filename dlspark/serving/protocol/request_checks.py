"""What a request must be before it is begun, seen from itself alone: its stream's name, its checksum, its record sets.

*Names.* What a name may consist of is the namespace's to say (`metadata.distributedlog.log_names`); it sets no length.
A proxy does: a name is kept, logged and shown as long as the stream is known, and each component of it is a question to
ZooKeeper.

*Checksums* are CRC-32 of the stream's name and of what is done to it (docs/reference/serving.md#checksums). They are
upstream's, so that what travels wrongly between a client and its proxy is noticed before it is written: the digests of
entries guard what lies behind the proxy, not the way to it. A client that sends none is served without.

*Record sets* come encoded, and are bounded by what their headers say. A set of a kilobyte may hold 60,000 records of no
bytes, and expand to 255 times its length. What a proxy holds for a write grows with its records, and readers expand
what it has written. So both are bounded before a set is opened, and the records count in what the client holds of the
proxy's memory. A set opens to what its header says, or not at all; one whose header makes no sense is refused when it
is opened, by itself.

No I/O, and nothing is opened or changed here.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import MAX_EXPANDED_BYTES, expanded_bytes, record_set_count
from dlspark.core.codec.records import MAX_LOGRECORDSET_SIZE
from dlspark.errors import InvalidEntryError, RecordTooLongError
from dlspark.serving.protocol.frame_parts import MAX_PAYLOADS
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Handshake,
    ListProxies,
    Request,
    TruncateStream,
    WriteRecords,
)
from metadata.distributedlog.log_names import InvalidLogNameError
from storage_node.protocol.frames import Buffer

# ---------------------------------------------------------------------- names


MAX_STREAM_BYTES: Final = 1024
MAX_STREAM_PARTS: Final = 32
"""Each component of a new log's name is a znode, which ZooKeeper keeps in memory with its whole path, and which stays
when the log is deleted. Of a name of 500, which is a request of a kilobyte, it keeps a third of a megabyte."""
SHOWN_CHARS: Final = 64
"""What an error repeats of a longer name."""


def check_stream_length(name: str) -> None:
    """Raise InvalidLogNameError for a name of more than MAX_STREAM_BYTES in UTF-8."""
    length = len(name.encode("utf-8", "surrogatepass"))
    if length > MAX_STREAM_BYTES:
        raise InvalidLogNameError(
            f"the name {name[:SHOWN_CHARS]!r}... has {length} bytes, proxies take {MAX_STREAM_BYTES}",
            advice="Choose a shorter name",
        )


def check_stream_parts(name: str) -> None:
    """Raise InvalidLogNameError for a name of more than MAX_STREAM_PARTS components."""
    parts = name.count("/") + 1
    if parts > MAX_STREAM_PARTS:
        raise InvalidLogNameError(
            f"the name {name[:SHOWN_CHARS]!r}... has {parts} components, write proxies take {MAX_STREAM_PARTS}",
            advice="Choose a name with fewer slashes",
        )


# ---------------------------------------------------------------------- checksums


def stream_checksum(stream: str) -> int:
    """Return the checksum of a request that has nothing but its stream: the CRC-32 of the name in UTF-8."""
    return crc32(stream.encode())


def write_checksum(stream: str, payload: Buffer) -> int:
    """Return the checksum of a write of one payload."""
    return crc32(payload, crc32(stream.encode()))


def writes_checksum(stream: str, payloads: tuple[Buffer, ...]) -> int:
    """Return the checksum of a write of any number of payloads: they follow each other. Upstream checks none where
    there are several."""
    checksum = crc32(stream.encode())
    for payload in payloads:
        checksum = crc32(payload, checksum)
    return checksum


def truncate_checksum(stream: str, dlsn: DLSN) -> int:
    """Return the checksum of a truncation: the DLSN is in its binary form of version 1. Raises CallerError where it has
    none."""
    return crc32(dlsn.to_bytes(), crc32(stream.encode()))


def request_checksum(request: Request) -> int | None:
    """Return what `context.checksum` of a request must be where it is given; None where the request has no stream."""
    if isinstance(request, WriteRecords):
        return writes_checksum(request.stream, request.payloads)
    if isinstance(request, TruncateStream):
        return truncate_checksum(request.stream, request.dlsn)
    return None if isinstance(request, Handshake | AcceptStreams | ListProxies) else stream_checksum(request.stream)


# ---------------------------------------------------------------------- record sets


MAX_SET_RECORDS: Final = MAX_PAYLOADS
"""Records of all record sets of one request: as many as may come in one that are no set."""
OPENED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""Sets that expand to more are opened in a thread: 64 MiB take 70 ms."""


def opens_at_once(request: WriteRecords) -> bool:
    """Return whether the record sets of the request, if it has any, are opened in a few milliseconds."""
    if not request.context.is_record_set or request.is_whole:
        return True  # what is written whole fits in one entry, before compression too
    return declared_bytes(request) <= OPENED_AT_ONCE_BYTES


def declared_bytes(request: WriteRecords) -> int:
    """Return what the record sets of the request expand to, as these say."""
    expanded = 0
    for payload in request.payloads:
        try:
            expanded += max(expanded_bytes(payload), 0)
        except InvalidEntryError:
            continue
    return expanded


def declared_records(request: WriteRecords) -> int:
    """Return how many records the request has, those of its record sets counted as these say."""
    if not request.context.is_record_set:
        return len(request.payloads)
    records = 0
    for payload in request.payloads:
        try:
            records += max(record_set_count(payload), 1)
        except InvalidEntryError:
            records += 1
    return records


def check_record_sets(request: WriteRecords) -> None:
    """Raise RecordTooLongError where the record sets of the request hold more than one request may."""
    records = declared_records(request)
    if records > MAX_SET_RECORDS:
        raise RecordTooLongError(
            f"the record sets of a request hold {records} records, {MAX_SET_RECORDS} are taken; nothing was written",
            advice="Send fewer records in a request",
        )
    expanded = declared_bytes(request)
    most = MAX_LOGRECORDSET_SIZE if request.is_whole else MAX_EXPANDED_BYTES
    if expanded > most:
        raise RecordTooLongError(
            f"the record sets of a request expand to {expanded} bytes, at most {most} are taken; nothing was written",
            advice="Send fewer records in a request; what is written whole has to fit in one entry",
        )
