"""`ReadCursor`: one reader's place in a log, and what it gets next. No I/O.

A cursor reads from one ring at a time: the one at the log's end, or one that catches up, never from both. It keeps what
a direct reader keeps (`dlspark.core.reading.reader`): the position, the number of the last record, by which a gap shows
(I4), and the error that is final. Between two reads of its reader nothing is kept for it but that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.reader_checks import GapCheck
from dlspark.serving.protocol.operations import ReadForm
from dlspark.serving.read_proxy.chunks import Chunk, ChunkMaker, Chunks, gap_error
from dlspark.serving.read_proxy.ring import EntryRing
from metadata.foundation.errors import DistributedLogError
from storage_node.protocol.frames import Buffer


@dataclass(frozen=True, slots=True)
class Collected:
    """What a cursor has found for its reader."""

    parts: tuple[Buffer, ...]
    size: int
    """Bytes of the parts."""


NOTHING = Collected((), 0)


class ReadCursor:
    """Where one reader is. Without a ring it has to be placed first."""

    def __init__(
        self, start: DLSN, maker: ChunkMaker, chunks: Chunks, counters: Counter[str], *, chunk_bytes: int
    ) -> None:
        self.position = start
        """Where it reads on: everything before was delivered."""
        self.ring: EntryRing | None = None
        self.ordinal = 0
        """The ring's entry in which `position` lies, or the first one behind it."""
        self.end_of_stream = False
        """Whether the reader has everything that will ever be in the log."""
        self.failure: DistributedLogError | None = None
        """The error behind what was delivered; it is final."""
        self._maker = maker
        self._chunks = chunks
        self._chunk_bytes = chunk_bytes
        self._numbers = GapCheck(maker.log, counters)

    # ------------------------------------------------------------------ its place

    def attach(self, ring: EntryRing) -> None:
        """Read from `ring`, which covers the position."""
        self.ring = ring
        self.ordinal = ring.find(self.position)

    def detach(self) -> None:
        """Read from no ring, until it is placed again."""
        self.ring = None

    @property
    def fallen_out(self) -> bool:
        """Whether the ring has given up what comes next."""
        return self.ring is not None and self.ordinal < self.ring.first

    @property
    def at_end(self) -> bool:
        """Whether it has had all that the ring has."""
        return self.ring is not None and self.ordinal >= self.ring.after

    def pass_end(self) -> None:
        """Go past the end of a segment behind which the ring reads on (at the ring's end)."""
        if self.ring is not None and self.at_end:
            self.position = max(self.position, self.ring.end)

    # ------------------------------------------------------------------ what comes next

    def collect(self, form: ReadForm, max_bytes: int) -> Collected:
        """Return what comes next, up to about `max_bytes`; nothing at the end, where it failed, and where it fell out.

        The position moves past what is returned, and past what readers do not see.
        """
        ring = self.ring
        parts: list[Buffer] = []
        size = 0
        while ring is not None and self.failure is None and not self.end_of_stream and size < max_bytes:
            if self.fallen_out:
                break
            if self.at_end:
                self.pass_end()
                break
            if ring[self.ordinal].after <= self.position:
                self.ordinal += 1  # It began in the future, or in the middle.
                continue
            chunk = self._next_chunk(ring, form, max_bytes - size)
            if parts and size + chunk.size > max_bytes:
                break  # It has become longer than its entries are: it is the next delivery's.
            if self._gap_before(chunk):
                break
            self._take(chunk)
            parts += chunk.parts
            size += chunk.size
        return Collected(tuple(parts), size) if parts else NOTHING

    def _next_chunk(self, ring: EntryRing, form: ReadForm, max_bytes: int) -> Chunk:
        run = list(ring.run(self.ordinal, self._chunk_bytes, max_bytes))
        if run[0].broken:
            self._numbers.pass_over(run[0].start)
        if self.position > run[0].start:
            # Only this reader begins here: what it gets of the first entry is not kept for others.
            return self._maker.make(form, run[:1], self.position)
        return self._chunks.get(ring, self._maker, form, run, self.ordinal)

    def _gap_before(self, chunk: Chunk) -> bool:
        """Return whether records are missing between the last chunk and this one; the cursor has failed then."""
        self._numbers.enter(chunk.next.lssn)
        if not chunk.first_number:
            return False
        last = self._numbers.last
        if self._numbers.missing_before(chunk.first_number) and self._maker.gap_detection:
            self.failure = gap_error(self._maker.log, self.position, chunk.first_number, last)
            return True
        return False

    def _take(self, chunk: Chunk) -> None:
        self.position = chunk.next
        self.ordinal += chunk.entries
        if chunk.last_number:
            self._numbers.last = chunk.last_number
        self.end_of_stream = chunk.end_of_stream is not None
        self.failure = chunk.failure
