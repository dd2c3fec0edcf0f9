"""What a request must be before it is begun: names, checksums and record sets that a proxy can take."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args
from zlib import crc32

import pytest
from helpers.reference_vectors import vectors
from helpers.serving.values import REQUESTS
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import (
    MAX_EXPANDED_BYTES,
    SET_HEADER,
    SET_VERSION,
    Compression,
    encode_record_set,
)
from dlspark.core.codec.records import MAX_LOGRECORDSET_SIZE
from dlspark.errors import RecordTooLongError
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Handshake,
    ListProxies,
    ProducerStamp,
    Request,
    RequestContext,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import (
    MAX_SET_RECORDS,
    MAX_STREAM_BYTES,
    check_record_sets,
    check_stream_length,
    declared_records,
    request_checksum,
    stream_checksum,
    truncate_checksum,
    write_checksum,
    writes_checksum,
)
from metadata.distributedlog.log_names import InvalidLogNameError

# ---------------------------------------------------------------------- names


def test_a_name_of_the_greatest_length_is_taken() -> None:
    for name in ("", "a" * MAX_STREAM_BYTES, "ö" * (MAX_STREAM_BYTES // 2), "\ud800"):
        check_stream_length(name)


@pytest.mark.parametrize("name", ["a" * (MAX_STREAM_BYTES + 1), "ö" * MAX_STREAM_BYTES, "a/" * 32_000])
def test_a_longer_one_is_refused_in_few_words(name: str) -> None:
    with pytest.raises(InvalidLogNameError, match="bytes") as refused:
        check_stream_length(name)
    assert len(str(refused.value)) < 400


# ---------------------------------------------------------------------- checksums


def test_checksums_are_those_of_the_reference() -> None:
    expected = {name: int.from_bytes(value, "big") for name, value in vectors("serving.md").items()}
    assert write_checksum("test-stream", b"hello") == expected["checksum of a write"]
    assert writes_checksum("test-stream", (b"hel", b"lo")) == expected["checksum of a write"]
    assert truncate_checksum("test-stream", DLSN(3, 17, 2)) == expected["checksum of a truncation"]
    assert stream_checksum("test-stream") == expected["checksum of a stream"]


@given(st.text(max_size=5), st.lists(st.binary(max_size=5), max_size=3))
def test_a_checksum_is_that_of_everything_in_one_piece(stream: str, payloads: list[bytes]) -> None:
    whole = stream.encode() + b"".join(payloads)
    assert writes_checksum(stream, tuple(payloads)) == crc32(whole)
    assert write_checksum(stream, memoryview(b"".join(payloads))) == crc32(whole)


def test_a_bit_that_flips_on_the_way_is_noticed() -> None:
    payload = b"a record"
    right = write_checksum("s", payload)
    for bit in range(8 * len(payload)):
        flipped = (int.from_bytes(payload, "big") ^ 1 << bit).to_bytes(len(payload), "big")
        assert write_checksum("s", flipped) != right


@given(st.data())
@pytest.mark.parametrize("kind", get_args(Request), ids=lambda kind: kind.__name__)
def test_every_request_on_a_stream_has_one(kind: type, data: st.DataObject) -> None:
    request = data.draw(REQUESTS[kind])
    checksum = request_checksum(request)
    match request:
        case Handshake() | AcceptStreams() | ListProxies():
            assert checksum is None
        case WriteRecords():
            assert checksum == writes_checksum(request.stream, request.payloads)
        case TruncateStream():
            assert checksum == truncate_checksum(request.stream, request.dlsn)
        case _:
            assert checksum == stream_checksum(request.stream)
            assert checksum == request_checksum(replace(request, stream=request.stream))


# ---------------------------------------------------------------------- record sets


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
