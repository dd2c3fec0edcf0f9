"""Checksums of requests are those of the reference, and cover everything that is done."""

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
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Handshake,
    ListProxies,
    Request,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.protocol.request_checks import (
    request_checksum,
    stream_checksum,
    truncate_checksum,
    write_checksum,
    writes_checksum,
)


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
