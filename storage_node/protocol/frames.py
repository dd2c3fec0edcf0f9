"""Frames: `int32 length` and that many bytes, cut out of a byte stream without copying (wire specification 1.1).

A `FrameBuffer` lends its free space to whoever receives (`writable`), and hands out each complete frame's body as a
memoryview of the chunk it arrived in (`advance`). A frame's view stays valid and unchanged for as long as anyone holds
it: a chunk is written again only when no view of it is left, which Python itself answers (a bytearray with exported
views refuses to change its size). Chunks are shared through a `ChunkPool`, since touching fresh memory costs more
than copying into used memory.

Never accepts a frame above `max_frame` (prefix included, as both peers of the protocol check it), and never more than
one chunk is reserved for a frame that has not arrived.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TypeAlias

from metadata.errors import check
from storage_node.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_FRAME_BYTES = 5 * 1024 * 1024
"""Largest frame, the 4-byte prefix included."""

CHUNK_BYTES = 2 * 1024 * 1024
MIN_FREE_BYTES = 64 * 1024
LENGTH = Struct(">i")
LENGTH_BYTES = 4


def _unreferenced(chunk: bytearray) -> bool:
    """True when no memoryview of the chunk is alive; changing its size is what Python refuses otherwise."""
    try:
        last = chunk.pop()
    except BufferError:
        return False
    chunk.append(last)
    return True


class ChunkPool:
    """Receive chunks for all connections of a network; keeps at most `keep` retired ones for reuse."""

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES, keep: int = 16) -> None:
        self._chunk_bytes = chunk_bytes
        self._keep = keep
        self._retired: deque[bytearray] = deque()

    def take(self, need: int) -> bytearray:
        """A chunk of at least `need` bytes that nobody reads."""
        if need > self._chunk_bytes:
            return bytearray(need)
        for _ in range(len(self._retired)):
            chunk = self._retired.popleft()
            if _unreferenced(chunk):
                return chunk
            self._retired.append(chunk)
        return bytearray(self._chunk_bytes)

    def retire(self, chunk: bytearray) -> None:
        """Give a chunk back; views of it may still be alive."""
        if len(chunk) == self._chunk_bytes and len(self._retired) < self._keep:
            self._retired.append(chunk)


class FrameBuffer:
    """The receiving half of one connection."""

    __slots__ = ("_chunk", "_closed", "_end", "_max_frame", "_pool", "_start", "_view")

    def __init__(self, pool: ChunkPool, *, max_frame: int = MAX_FRAME_BYTES) -> None:
        self._pool = pool
        self._max_frame = max_frame
        self._chunk = pool.take(0)
        self._view = memoryview(self._chunk)
        self._start = 0
        self._end = 0
        self._closed = False

    def writable(self) -> memoryview:
        """Free space for the next bytes of the stream; valid until the next `advance`."""
        check(not self._closed, "a closed frame buffer was asked for space")
        return self._view[self._end :]

    def advance(self, received: int) -> list[memoryview]:
        """Take `received` new bytes into account; return the bodies of all frames they complete.

        Raises ProtocolError on a length that cannot be: the stream is lost from there on.
        """
        view = self._view
        start, end = self._start, self._end + received
        frames: list[memoryview] = []
        append, length_at = frames.append, LENGTH.unpack_from
        longest = self._max_frame - LENGTH_BYTES
        need = 0
        while (first := start + LENGTH_BYTES) <= end:
            (length,) = length_at(view, start)
            if not 0 < length <= longest:
                raise ProtocolError(
                    f"a frame announces {length} bytes, allowed are 1 to {longest}",
                    advice="The peer is not a BookKeeper client, or the entry is too large",
                )
            after = first + length
            if after > end:
                need = LENGTH_BYTES + length
                break
            append(view[first:after])
            start = after
        self._start, self._end = start, end
        if start + need > len(view) or len(view) - end < MIN_FREE_BYTES:
            self._move(need)
        return frames

    def rewind(self) -> None:
        """Start again at the chunk's front if everything was consumed and nobody reads it any more.

        Called after the frames of a batch were handled, so that a quiet connection touches few pages.
        """
        if self._start != self._end or self._start == 0 or self._closed:
            return
        self._view.release()
        if _unreferenced(self._chunk):
            self._start = self._end = 0
        self._view = memoryview(self._chunk)

    def close(self) -> None:
        """Give the chunk back."""
        if not self._closed:
            self._closed = True
            self._view.release()
            self._pool.retire(self._chunk)

    def _move(self, need: int) -> None:
        """Carry the begun frame over to a chunk that can hold it whole."""
        view = self._view
        left = self._end - self._start
        chunk = self._pool.take(max(need, LENGTH_BYTES))
        fresh = memoryview(chunk)
        fresh[:left] = view[self._start : self._end]
        view.release()
        self._pool.retire(self._chunk)
        self._chunk, self._view, self._start, self._end = chunk, fresh, 0, left
