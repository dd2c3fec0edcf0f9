"""Writes that arrived together, by columns: `take_run` reads many frames at a time, with the compiled core by one call.

A run are writes of one record each, on one stream, of which nothing is asked but to be stored, as long as they follow
each other: most of what a proxy gets. What else comes is for `request_frames.decode_request`, which also says what is
wrong with a frame. No I/O; whatever bytes it is given, nothing is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from dlspark.serving.protocol.frame_parts import FRAME_VERSION
from dlspark.serving.protocol.write_frames import CHECKSUM, ONE_PAYLOAD, PLAIN_HEAD, RequestKind
from metadata.foundation import compiled


class WriteRun(NamedTuple):
    """Writes of one record each, in the order in which they came."""

    stream: str
    numbers: list[int]
    """Of their requests."""
    payloads: list[bytes]
    size: int
    """Bytes of all payloads."""
    summed: bool
    """False where a checksum that came with one of them is wrong."""


def take_run(frames: Sequence[memoryview]) -> WriteRun | None:
    """Return the run that the frames, without their lengths, begin with; None where the first is not part of one."""
    core = compiled.core
    taken = core.take_writes(frames) if core is not None else _take_writes(frames)
    if taken is None:
        return None
    name, numbers, payloads, size, summed = taken
    try:
        return WriteRun(name.decode(), numbers, payloads, size, summed)
    except UnicodeDecodeError:
        return None


def _take_writes(frames: Sequence[memoryview]) -> tuple[bytes, list[int], list[bytes], int, bool] | None:
    """Do what `dlspark_speed.take_writes` does: return the stream's name, and the columns of a run."""
    stream, summed = b"", True
    numbers: list[int] = []
    payloads: list[bytes] = []
    for frame in frames:
        end = len(frame)
        if end < PLAIN_HEAD.size:
            break
        version, kind, flags, number, checksum, _, length = PLAIN_HEAD.unpack_from(frame)
        at = PLAIN_HEAD.size + length
        payload_at = at + ONE_PAYLOAD.size
        if version != FRAME_VERSION or kind != RequestKind.WRITE_RECORDS or flags & ~CHECKSUM or payload_at > end:
            break
        name = bytes(frame[PLAIN_HEAD.size : at])
        if ONE_PAYLOAD.unpack_from(frame, at) != (1, end - payload_at) or (numbers and name != stream):
            break
        stream, payload = name, bytes(frame[payload_at:])
        if flags and crc32(payload, crc32(name)) != checksum:
            summed = False
        numbers.append(number)
        payloads.append(payload)
    return (stream, numbers, payloads, sum(map(len, payloads)), summed) if numbers else None
