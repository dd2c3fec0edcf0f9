"""Frames: `int32 length` and that many bytes, cut out of a byte stream without copying (docs/reference/wire.md#frames).

A `FrameBuffer` lends its free space to the receiving socket (`writable`), and hands out each complete frame's body as a
memoryview of the chunk it arrived in (`advance`). A frame's view stays valid and unchanged for as long as anyone holds
it: a chunk is written again only when no view of it is left, which Python itself answers (a bytearray with exported
views refuses to change its size). Chunks are shared through a `ChunkPool`, since touching fresh memory costs more
than copying into used memory.

A connection holds a chunk only while a frame is incomplete in it or a view of it is held: a quiet connection holds
none. While many hold one (a storage node with hundreds of clients), an incomplete frame gets memory of its own
that grows with what arrives, so that a peer can occupy no more than twice what it has sent.

Never accepts a frame above `max_frame` (prefix included, as both peers of the protocol check it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TypeAlias

from metadata.foundation.errors import check
from storage_node.errors import ProtocolError, TlsOfferedError, TlsRefusedError

Buffer: TypeAlias = bytes | bytearray | memoryview

NO_PLAIN_ALERT = bytes.fromhex("15 03 01 00 02 02 46")
"""What a port for TLS answers to plain bytes: the fatal alert protocol_version, in a record (RFC 8446, section 6.2)."""
_ALERT_AS_LENGTH = int.from_bytes(NO_PLAIN_ALERT[:4], "big")
"""A frame that begins so would have 353 MB."""
NO_TLS_ANSWER = b"There is no TLS at this port.\n"
"""What a plain port answers to a peer that begins TLS: no record begins so, and every library of TLS says that."""
_HELLO_AS_LENGTH = 0x1603
"""The first half of the length where a handshake of TLS is taken for a frame: one that begins so would have 369 MB."""
MAX_FRAME_BYTES = 5 * 1024 * 1024
"""Largest frame, the 4-byte prefix included."""

CHUNK_BYTES = 2 * 1024 * 1024
SMALL_CHUNK_BYTES = 128 * 1024
"""A connection gets so much while many hold a chunk: all of it is memory from the beginning, which Python zeroes."""
MIN_FREE_BYTES = 64 * 1024
SHORT_READ_BYTES = 32 * 1024
"""Received at a time while begun frames take all the memory that they may."""
READ_BYTES = 256 * 1024
"""Received at a time while there are many connections, unless an incomplete frame needs more: so much each of them can
make wait in memory.
"""
ALL = 1 << 62
LENGTH = Struct(">i")
LENGTH_BYTES = 4


def _unreferenced(chunk: bytearray) -> bool:
    """Return whether no memoryview of the chunk is alive; changing its size is what Python refuses otherwise."""
    try:
        # Reference counts would be wrong here: views of views hold the chunk as well.
        last = chunk.pop()
    except BufferError:
        return False
    chunk.append(last)
    return True


class ChunkPool:
    """Receive chunks for all connections of a network; keeps at most `keep` retired ones for reuse.

    The chunk that was retired last is lent first: it is still in the processor's cache.
    """

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES, keep: int = 16) -> None:
        self._chunk_bytes = chunk_bytes
        self._keep = keep
        self._retired: deque[bytearray] = deque()
        self.lent = 0
        """Chunks that connections hold."""
        self.users = 0
        """Connections that may want one."""
        self.short = False
        """Begun frames take all the memory that they may."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a shared chunk; a frame that needs more gets memory of its own."""
        return self._chunk_bytes

    @property
    def shared(self) -> bool:
        """There are more connections than chunks to be kept."""
        return self.users > self._keep

    @property
    def crowded(self) -> bool:
        """More connections hold a chunk than should at a time."""
        return self.lent > self._keep

    def take(self, need: int) -> bytearray:
        """Return a chunk of at least `need` bytes of which no view is held."""
        self.lent += 1
        if need > self._chunk_bytes:
            return bytearray(need)
        for _ in range(len(self._retired)):
            chunk = self._retired.pop()
            if _unreferenced(chunk):
                return chunk
            # Still read by a handler: to the far end, where it is looked at last.
            self._retired.appendleft(chunk)
        return bytearray(SMALL_CHUNK_BYTES if self.crowded and not need else self._chunk_bytes)

    def retire(self, chunk: bytearray) -> None:
        """Give a chunk back; views of it may still be alive."""
        self.lent -= 1
        if len(chunk) == self._chunk_bytes and len(self._retired) < self._keep:
            self._retired.append(chunk)


_NOTHING = memoryview(b"")


class FrameBuffer:
    """The receiving half of one connection."""

    __slots__ = ("_chunk", "_closed", "_end", "_lent", "_max_frame", "_need", "_pool", "_start", "_view", "has_more")

    def __init__(self, pool: ChunkPool, *, max_frame: int = MAX_FRAME_BYTES) -> None:
        self._pool = pool
        self._max_frame = max_frame
        self._chunk: bytearray | None = None
        self._lent = False
        """The chunk is the pool's, not memory of this connection's own."""
        self._view = _NOTHING
        self._start = 0
        self._end = 0
        self._need = 0
        """Bytes of the incomplete frame, its prefix included; 0 as long as that is not known."""
        self._closed = False
        self.has_more = False
        """There are whole frames that were not cut out yet: `cut` has to follow before the next `writable`."""
        pool.users += 1

    @property
    def held_bytes(self) -> int:
        """Memory held at present."""
        return 0 if self._chunk is None else len(self._chunk)

    @property
    def begun(self) -> tuple[int, int, int]:
        """Of an incomplete frame: (memory besides ordinary chunks of the pool, bytes that arrived, bytes it lacks)."""
        if self._chunk is None or self._start == self._end:
            return 0, 0, 0
        size = len(self._chunk)
        own = not self._lent or size > self._pool.chunk_bytes
        received = self._end - self._start
        return (size if own else 0), received, max(self._need - received, 0)

    def writable(self) -> memoryview:
        """Free space for the next bytes of the stream; valid until the next `advance`."""
        check(not self._closed, "a closed frame buffer was asked for space")
        if self._chunk is None:
            self._hold(self._pool.take(0), True)
        end = self._end
        if self._pool.short:
            return self._view[end : end + SHORT_READ_BYTES]
        if not self._pool.shared:
            return self._view[end:]
        return self._view[end : end + max(READ_BYTES, self._need - (end - self._start))]

    def advance(
        self, received: int, most: int = ALL, recognise: Callable[[memoryview], int] | None = None
    ) -> list[memoryview]:
        """Take `received` new bytes into account; return the bodies of the frames they complete, `most` at most.

        `recognise` is shown what is there, from the beginning of a frame on, and returns how many bytes of whole
        frames it has taken: those are not cut. Raises ProtocolError on a length that cannot be: the stream is lost
        from there on.
        """
        self._end += received
        if recognise is not None:
            self._start += recognise(self._view[self._start : self._end])
            if self._start == self._end and len(self._view) - self._end >= MIN_FREE_BYTES:
                self._need = 0
                return []
        return self.cut(most)

    def cut(self, most: int) -> list[memoryview]:
        """Return the next frames of what is there. Raises as `advance` does."""
        view = self._view
        start, end = self._start, self._end
        frames: list[memoryview] = []
        append, length_at = frames.append, LENGTH.unpack_from
        longest = self._max_frame - LENGTH_BYTES
        need = 0
        self.has_more = False
        while (first := start + LENGTH_BYTES) <= end:
            (length,) = length_at(view, start)
            # Before any memory is taken for it: the length is a stranger's until the frame is whole.
            if length == _ALERT_AS_LENGTH:
                raise TlsRefusedError(
                    "the other end speaks TLS, and takes no connection without; nothing was done",
                    advice="Set security=on and securityDirectory here as well, or DLSPARK_SECURITY",
                )
            if not 0 < length <= longest:
                if length >> 16 == _HELLO_AS_LENGTH:
                    raise TlsOfferedError(
                        "the other end begins TLS, and none is spoken at this port",
                        advice="Switch security on here (security=optional takes both), or off there",
                    )
                raise ProtocolError(
                    f"a frame announces {length} bytes, allowed are 1 to {longest}",
                    advice="The peer is not a BookKeeper client, or the entry is too large",
                )
            after = first + length
            if after > end:
                need = LENGTH_BYTES + length
                break
            if len(frames) == most:
                self.has_more = True
                break
            append(view[first:after])
            start = after
        self._start, self._need = start, need
        if self.has_more:
            return frames
        if need:
            # Memory of its own grows only once it is full: a peer pays for a long frame by sending it, not by
            # announcing it.
            if start + need > len(view) and (self._lent or end == len(view)):
                self._move(need)
        elif len(view) - end < MIN_FREE_BYTES:
            self._move(0)
        return frames

    def rewind(self) -> None:
        """Give the chunk back if everything was consumed and no view of it is held any more.

        Called after the frames of a batch were handled. What is left of an incomplete frame goes into memory of its
        own while chunks are short.
        """
        if self._chunk is None or self._closed or self.has_more:
            return
        if self._start != self._end:
            # An incomplete frame must not keep a shared chunk for as long as its peer likes.
            if self._lent and self._pool.crowded:
                self._move(self._need)
            return
        self._view.release()
        if _unreferenced(self._chunk):
            self._drop()
        else:
            self._view = memoryview(self._chunk)

    def close(self) -> None:
        """Give the chunk back."""
        if not self._closed:
            self._closed = True
            self._pool.users -= 1
            self._drop()

    def _hold(self, chunk: bytearray, lent: bool) -> None:
        self._chunk, self._view, self._lent = chunk, memoryview(chunk), lent

    def _drop(self) -> None:
        """Hold no chunk any more; views of it may live on."""
        self.has_more = False
        chunk, self._chunk = self._chunk, None
        self._start = self._end = 0
        if chunk is not None:
            self._view.release()
            self._view = _NOTHING
            if self._lent:
                self._pool.retire(chunk)

    def _move(self, need: int) -> None:
        """Carry the begun frame over to memory that can hold it whole, or, while chunks are short, twice as much."""
        begun = self._view[self._start : self._end]
        left = len(begun)
        self._drop()
        if not left:
            return
        if self._pool.crowded:
            size = max(2 * left, LENGTH_BYTES + MIN_FREE_BYTES)
            self._hold(bytearray(min(size, need) if need else size), False)
        else:
            self._hold(self._pool.take(need), True)
        self._view[:left] = begun
        self._end = left
        begun.release()
