"""Writes that arrived together, by columns: `take_run` reads many frames at a time, with the compiled core by one call.

A run are two or more writes of one record each, on one stream, of which nothing is asked but to be stored, as long as
they follow each other: most of what a proxy gets. What else comes is for `request_frames.decode_request`, which also
says what is wrong with a frame. No I/O; whatever bytes it is given, nothing is raised.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

from dlspark.serving.protocol.frame_parts import FRAME_VERSION
from dlspark.serving.protocol.write_frames import CHECKSUM, PLAIN_HEAD, RequestKind
from metadata.foundation import compiled

_WRITE: Final = int(RequestKind.WRITE_RECORDS)
_LENGTH_BYTES: Final = 2
_NAME_AT: Final = PLAIN_HEAD.size - _LENGTH_BYTES
"""Where the stream's name begins, with its length before it."""
_U32_BYTES: Final = 4
_ONE: Final = (1).to_bytes(_U32_BYTES, "big")


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


def take_run(frames: list[memoryview], first: int, longest: int) -> WriteRun | None:
    """Return the run that begins with the frame `first`, those without their lengths, and in which none has more than
    `longest` bytes; None where there are not two writes for it."""
    if first + 1 >= len(frames):
        return None
    core = compiled.core
    take = core.take_writes if core is not None else _take_writes
    taken = take(frames, first, longest)
    if taken is None:
        return None
    name, numbers, payloads, size, summed = taken
    try:
        return WriteRun(name.decode(), numbers, payloads, size, summed)
    except UnicodeDecodeError:
        return None


def _take_writes(
    frames: list[memoryview], first: int, longest: int
) -> tuple[bytes, list[int], list[bytes], int, bool] | None:
    """Do what `dlspark_speed.take_writes` does: return the stream's name, and the columns of a run."""
    frame = frames[first]
    if not PLAIN_HEAD.size <= len(frame) <= longest:
        return None
    version, kind, flags, _, _, _, length = PLAIN_HEAD.unpack_from(frame)
    if version != FRAME_VERSION or kind != _WRITE or flags & ~CHECKSUM:
        return None
    # In all frames of a run the same stands between: the stream's name with its length, and that one payload comes.
    alike = bytes(frame[_NAME_AT : PLAIN_HEAD.size + length]) + _ONE
    size_at = _NAME_AT + len(alike)
    payload_at = size_at + _U32_BYTES
    if frames[first + 1][_NAME_AT:size_at] != alike:
        return None
    numbers: list[int] = []
    payloads: list[bytes] = []
    summed, begun = True, crc32(alike[_LENGTH_BYTES : -len(_ONE)])
    for at in range(first, len(frames)):
        frame = frames[at]
        end = len(frame)
        if not payload_at <= end <= longest or frame[_NAME_AT:size_at] != alike:
            break
        version, kind, flags, number, checksum, _, _ = PLAIN_HEAD.unpack_from(frame)
        if version != FRAME_VERSION or kind != _WRITE or flags & ~CHECKSUM:
            break
        if int.from_bytes(frame[size_at:payload_at], "big") != end - payload_at:
            break
        payload = bytes(frame[payload_at:])
        if flags and crc32(payload, begun) != checksum:
            summed = False
        numbers.append(number)
        payloads.append(payload)
    if len(numbers) < 2:
        return None
    return alike[_LENGTH_BYTES : -len(_ONE)], numbers, payloads, sum(map(len, payloads)), summed
