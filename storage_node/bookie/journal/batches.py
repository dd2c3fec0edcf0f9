"""Batches: which records of a journal go to the disk together, how they are written, and who waits for that.

A small batch is copied behind its header. A large one is written from the slab where it lies, behind a header block of
its own; or, where the settings ask for it, once, into its entry log: then the journal gets its place there alone, and
`journal.places` reads it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from storage_node.bookie.disk.records import BLOCK, Slab, down, up
from storage_node.bookie.journal.files import BATCH_HEADER_BYTES
from storage_node.bookie.journal.places import LogPlace
from storage_node.protocol.digests import crc32, crc32_combine

COPY_BYTES = 64 * 1024
"""Batches up to this size are copied; larger ones are written in place."""
COMBINE_BYTES = 32 * 1024
"""Bodies of this size are not summed again for the batch."""
GATHER_BYTES = 1024 * 1024
"""A batch in several pieces is copied, and holds no more than this."""
BATCH_BYTES = 4 * 1024 * 1024
"""A batch is closed once it has reached this size."""

Acknowledge = Callable[[], None]


class AnswerSink(Protocol):
    """Sends the answers to adds: a connection."""

    def durable(self, answers: Answers) -> None:
        """Note that the records of these answers are on disk (or written, where the client asked for no more)."""
        ...


class Answers:
    """One sink's answers that wait for the same batch, so that they leave together."""

    __slots__ = ("bytes_stored", "frames", "sink")

    def __init__(self, sink: AnswerSink) -> None:
        self.sink = sink
        self.frames: list[bytes] = []
        self.bytes_stored = 0


class Batch:
    """Which records go to the disk together, and which answers wait for that?

    Args:
        slab: the memory that the records lie in.
        start: where the first one begins there.
    """

    __slots__ = (
        "acknowledgements",
        "answers",
        "copied",
        "durable_through",
        "earlier",
        "early",
        "end",
        "kept",
        "log_end",
        "offset",
        "placed",
        "sequence",
        "slab",
        "start",
        "summed",
        "synced",
        "total",
        "total_sum",
        "written",
    )

    def __init__(self, slab: Slab, start: int) -> None:
        self.slab = slab
        self.start = start
        """Where its last piece begins."""
        self.end = start
        self.earlier: list[tuple[int, int]] = []
        """The pieces before, where there are several."""
        self.kept = 0
        """Bytes in those."""
        self.summed = start
        """Up to here `total_sum` covers the records."""
        self.total_sum = 0
        self.acknowledgements: list[Acknowledge] = []
        self.answers: dict[AnswerSink, Answers] = {}
        self.early: dict[AnswerSink, Answers] = {}
        """Answers that do not wait for the sync."""
        self.copied = False
        """Once it is closed: it is written from a copy behind its header; if not, from the slab where it lies."""
        self.placed = False
        """Once it is closed: its records are written into their entry log alone, and the journal gets their place."""
        self.log_end = 0
        """Where it is placed: up to here the slab must be in the log."""
        self.total = 0
        """Once it is closed: bytes in the file."""
        self.sequence = 0
        self.durable_through = 0
        self.offset = 0
        self.written = False
        self.synced = False

    def answers_to(self, sink: AnswerSink, early: bool = False) -> Answers:
        """Return a sink's answers that wait for this batch, to be added to; `early`: for no more than its write."""
        waiting = self.early if early else self.answers
        answers = waiting.get(sink)
        if answers is None:
            answers = waiting[sink] = Answers(sink)
        return answers

    def cover(self, at: int, body_sum: int, body_length: int) -> None:
        """Cover a large body, which lies at `at`, by the sum that is known already: that saves going through it once
        more.
        """
        if crc32_combine is not None:
            before = crc32(self.slab.view[self.summed : at], self.total_sum)
            self.total_sum = crc32_combine(before, body_sum, body_length)
            self.summed = at + body_length

    def gather(self, start: int, end: int) -> bool:
        """Let the batch go on at `start`, behind others' records; False where it must not hold more."""
        if self.length + end - start > GATHER_BYTES:
            return False
        if start != self.end:
            self.total_sum = crc32(self.slab.view[self.summed : self.end], self.total_sum)
            self.earlier.append((self.start, self.end))
            self.kept += self.end - self.start
            self.start = self.end = self.summed = start
        return True

    def copy_to(self, target: memoryview) -> None:
        """Copy the records there, without what lies between."""
        at = 0
        for start, end in (*self.earlier, (self.start, self.end)):
            target[at : at + end - start] = self.slab.view[start:end]
            at += end - start

    def records_sum(self) -> int:
        """Return the CRC-32 of all records, once there will be no more."""
        return crc32(self.slab.view[self.summed : self.end], self.total_sum)

    @property
    def length(self) -> int:
        """Bytes of its records, headers and padding of each included."""
        return self.kept + self.end - self.start

    def place(self) -> LogPlace:
        """Return where its records lie in their log, once there will be no more."""
        return LogPlace(self.slab.log_id, self.slab.base + self.start, self.length, self.records_sum())

    def close(self, once_from: int) -> None:
        """Settle how it is written: it takes no more records. `once_from`: bytes from which on it is written once, into
        the entry log; 0: never."""
        length = self.length
        self.placed = not self.earlier and 0 < once_from <= length
        self.copied = bool(self.earlier) or length <= COPY_BYTES
        if self.placed:
            self.total = BLOCK
        elif self.copied:
            self.total = up(BATCH_HEADER_BYTES + length)
        else:
            self.total = BLOCK + up(self.end) - down(self.start)
