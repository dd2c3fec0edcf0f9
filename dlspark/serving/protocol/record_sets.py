"""Record sets that a client has encoded: what they may hold, by their headers alone. No I/O; nothing is opened here.

A set of a kilobyte may hold 60,000 records of no bytes, and expand to 255 times its length. What a proxy holds for a
write grows with its records, and readers expand what it has written. So both are bounded before a set is opened,
and the records count in what the client holds of the proxy's memory. A set opens to what its header says, or not at
all; one whose header makes no sense is refused when it is opened, by itself.
"""

from __future__ import annotations

from typing import Final

from dlspark.core.codec.entries import MAX_EXPANDED_BYTES, expanded_bytes, record_set_count
from dlspark.core.codec.records import MAX_LOGRECORDSET_SIZE
from dlspark.errors import InvalidEntryError, RecordTooLongError
from dlspark.serving.protocol.frame_parts import MAX_PAYLOADS
from dlspark.serving.protocol.operations import WriteRecords

MAX_SET_RECORDS: Final = MAX_PAYLOADS
"""Records of all record sets of one request: as many as may come in one that are no set."""
OPENED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""Sets that expand to more are opened in a thread: 64 MiB take 70 ms."""


def opens_at_once(request: WriteRecords) -> bool:
    """Returns whether the record sets of the request, if it has any, are opened in a few milliseconds."""
    if not request.context.is_record_set or request.is_whole:
        return True  # what is written whole fits in one entry, before compression too
    return declared_bytes(request) <= OPENED_AT_ONCE_BYTES


def declared_bytes(request: WriteRecords) -> int:
    """Returns what the record sets of the request expand to, as these say."""
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
