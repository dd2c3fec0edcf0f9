"""Entries that came back too large: their records as record sets again.

Record sets are expanded in a cold file, so an entry that had some may come back as more bytes than an entry may have: a
storage node refuses it, and no frame of a proxy holds it. Records of such an entry that stand side by side, with one
transaction id, become sets again, which readers see as the very same records. This is rare, and goes record by record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from dlspark.core.codec.entries import Compression, decode_content, encode_record_set
from dlspark.core.codec.records import FLAG_RECORD_SET, MAX_LOGRECORDSET_SIZE, LogRecord, encode_record
from dlspark.errors import RecordTooLongError
from metadata.foundation.errors import check

_SET_BYTES: Final = 512 << 10
"""Bytes of payloads in one set: it fits into a record whatever it compresses to."""
_LENGTH_BYTES: Final = 4
"""Bytes of a payload's length in a set."""


def fitting(content: memoryview, lssn: int, entry_id: int) -> memoryview:
    """Return the content of an entry, out of its envelope, in a form that an entry may have: itself mostly.

    An entry that was compressed in a way that is not known here may stay too large; readers take it all the same.
    """
    if len(content) <= MAX_LOGRECORDSET_SIZE:
        return content
    records = decode_content(content, lssn, entry_id, 0)
    packed = memoryview(b"".join(_encoded(run) for run in _runs(records)))
    # The members count for what an entry may expand to: what cannot be decoded again must not be handed out.
    check(decode_content(packed, lssn, entry_id, 0) == records, "an entry's records changed when they were packed")
    return packed if len(packed) < len(content) else content


def _runs(records: list[LogRecord]) -> Iterator[list[LogRecord]]:
    """Yield records that can be one set, and others alone."""
    run = records[:1]
    size = len(records[0].payload) + _LENGTH_BYTES
    for before, one in pairwise(records):
        size += len(one.payload) + _LENGTH_BYTES
        alike = one.txid == before.txid and one.position == before.position + 1 and not (one.flags or before.flags)
        if alike and size <= _SET_BYTES:
            run.append(one)
            continue
        yield run
        run, size = [one], len(one.payload) + _LENGTH_BYTES
    yield run


def _encoded(run: list[LogRecord]) -> bytes:
    """Return a run as a set, or, where that is shorter, a single record as it is."""
    first = run[0]
    found = [] if len(run) > 1 else [encode_record(first.txid, first.payload, first.position, first.flags)]
    if not first.flags:
        for codec in Compression:
            try:
                payload = encode_record_set([one.payload for one in run], codec)
            except RecordTooLongError:  # a payload of about what a record may have, and nothing is gained by a set
                continue
            found.append(encode_record(first.txid, payload, first.position, FLAG_RECORD_SET))
    return min(found, key=len)
