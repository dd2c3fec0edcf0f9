"""Record sets from clients: what they may hold is known before they are opened, whatever their headers say."""

from __future__ import annotations

import pytest

from dlspark.core.codec.entries import (
    MAX_EXPANDED_BYTES,
    SET_HEADER,
    SET_VERSION,
    Compression,
    encode_record_set,
)
from dlspark.core.codec.records import MAX_LOGRECORDSET_SIZE
from dlspark.errors import RecordTooLongError
from dlspark.serving.protocol.operations import ProducerStamp, RequestContext, WriteRecords
from dlspark.serving.protocol.request_checks import MAX_SET_RECORDS, check_record_sets, declared_records

SETS = RequestContext(is_record_set=True)


def declared(count: int, length: int, codec: Compression = Compression.LZ4) -> bytes:
    """A set of which only the header is there."""
    return SET_HEADER.pack(SET_VERSION | codec, count, length, 0)


def test_records_are_counted_by_what_the_headers_say() -> None:
    two, three = encode_record_set([b"a", b"b"]), encode_record_set([b"", b"", b""], Compression.LZ4)
    assert declared_records(WriteRecords("s", (two, three), SETS)) == 5
    assert declared_records(WriteRecords("s", (two, three))) == 2
    assert declared_records(WriteRecords("s", (b"none", declared(0, 0)), SETS)) == 2, "each holds something"


def test_what_fits_in_one_request_is_taken() -> None:
    check_record_sets(WriteRecords("s", (declared(MAX_SET_RECORDS, MAX_EXPANDED_BYTES),), SETS))
    check_record_sets(WriteRecords("s", (declared(9, MAX_LOGRECORDSET_SIZE),), SETS, atomic=True))
    check_record_sets(WriteRecords("s", (b"not a set", encode_record_set([b"a"])), SETS))


@pytest.mark.parametrize(
    ("sets", "stamped", "says"),
    [
        ([(MAX_SET_RECORDS + 1, 0)], False, "records"),
        ([(MAX_SET_RECORDS, 0), (1, 0)], False, "records"),
        ([(2**31 - 1, 2**31 - 1)], False, "records"),
        ([(1, MAX_EXPANDED_BYTES + 1)], False, "expand"),
        ([(1, MAX_EXPANDED_BYTES), (1, 1)], False, "expand"),
        ([(1, MAX_LOGRECORDSET_SIZE + 1)], True, "expand"),
        ([(1, MAX_LOGRECORDSET_SIZE), (1, 1)], True, "expand"),
        # A length below 0 makes no room for others.
        ([(1, MAX_EXPANDED_BYTES + 1), (1, -(2**31))], False, "expand"),
    ],
)
def test_what_does_not_is_refused_before_anything_is_opened(
    sets: list[tuple[int, int]], stamped: bool, says: str
) -> None:
    stamp = ProducerStamp("p", 0, 0) if stamped else None
    payloads = tuple(declared(count, length) for count, length in sets)
    with pytest.raises(RecordTooLongError, match=f"{says}.*nothing was written"):
        check_record_sets(WriteRecords("s", payloads, SETS, stamp))
