"""Checksums of requests: CRC-32 of the stream's name and of what is done to it (docs/reference/serving.md#checksums).

They are upstream's, so that what travels wrongly between a client and its proxy is noticed before it is written: the
digests of entries guard what lies behind the proxy, not the way to it. A client that sends none is served without.
"""

from __future__ import annotations

from zlib import crc32

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Handshake,
    ListProxies,
    Request,
    TruncateStream,
    WriteRecords,
)
from storage_node.protocol.frames import Buffer


def stream_checksum(stream: str) -> int:
    """Return of a request that has nothing but its stream: the CRC-32 of the name in UTF-8."""
    return crc32(stream.encode())


def write_checksum(stream: str, payload: Buffer) -> int:
    """Return of a write of one payload."""
    return crc32(payload, crc32(stream.encode()))


def writes_checksum(stream: str, payloads: tuple[Buffer, ...]) -> int:
    """Return of a write of any number of payloads: they follow each other. Upstream checks none where there are
    several."""
    checksum = crc32(stream.encode())
    for payload in payloads:
        checksum = crc32(payload, checksum)
    return checksum


def truncate_checksum(stream: str, dlsn: DLSN) -> int:
    """Return of a truncation: the DLSN is in its binary form of version 1. Raises CallerError where it has none."""
    return crc32(dlsn.to_bytes(), crc32(stream.encode()))


def request_checksum(request: Request) -> int | None:
    """Return what `context.checksum` of a request must be where it is given; None where the request has no stream."""
    if isinstance(request, WriteRecords):
        return writes_checksum(request.stream, request.payloads)
    if isinstance(request, TruncateStream):
        return truncate_checksum(request.stream, request.dlsn)
    return None if isinstance(request, Handshake | AcceptStreams | ListProxies) else stream_checksum(request.stream)
