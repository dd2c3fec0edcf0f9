"""Slabs: the pooled, page-aligned memory that an entry is copied into once.

A slab is the image of one region of an entry log: what lies at offset x of the slab will lie at `base + x` of the log.
From the same memory the journal commits, the entry log is written and, afterwards, reads at the tail are served.

A slab's memory is used again only when its log region is written, the journal has committed it, and no view of it is
alive (an answer still in a socket's queue): Python refuses to change the size of a map that has views.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

from metadata.foundation.errors import check

BLOCK = 4096
"""Unit of direct writes: addresses, lengths and file offsets are multiples of it."""


def up(size: int) -> int:
    """Rounded up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


def down(size: int) -> int:
    """Rounded down to whole blocks."""
    return size & -BLOCK


def aligned_memory(size: int) -> mmap.mmap:
    """Zeroed memory that begins on a page, in large pages where the kernel has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= 2 * 1024 * 1024:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them: small pages do as well
            pass
    return memory


class Slab:
    """One slab in use. `end` is where the next record goes; `written` is how far the log region has been written."""

    __slots__ = ("_memory", "base", "end", "flying", "log_id", "sealed", "size", "view", "written")

    def __init__(self, memory: mmap.mmap, log_id: int, base: int) -> None:
        self._memory = memory
        self.size = len(memory)
        self.view = memoryview(memory)
        self.log_id = log_id
        self.base = base
        self.end = 0
        self.written = 0
        self.flying = 0
        """Journal batches of this slab that are not on disk yet."""
        self.sealed = False
        """Nothing will be added any more."""

    @property
    def settled(self) -> bool:
        """Everything in it is in the journal and in the log file: from here on it is only a cache."""
        return self.sealed and self.flying == 0 and self.written >= self.end

    def reclaim(self) -> mmap.mmap | None:
        """Give the memory up, if nothing reads it."""
        check(self.settled, "a slab was reclaimed before it was written")
        # Before the memory is used again: a view that an answer still holds would send another entry's bytes (I12).
        self.view.release()
        try:
            self._memory.resize(self.size)
        except BufferError:
            self.view = memoryview(self._memory)
            return None
        return self._memory


class SlabPool:
    """Hands out slabs, at most `limit` at a time; the oldest settled ones make room."""

    def __init__(self, slab_bytes: int, limit: int, evicted: Callable[[Slab], None]) -> None:
        self.slab_bytes = slab_bytes
        self._limit = limit
        self._evicted = evicted
        self._slabs: list[Slab] = []

    def take(self, log_id: int, base: int, *, beyond_limit: bool = False) -> Slab | None:
        """A slab for the region of the log at `base`; None while all are needed (write back first)."""
        memory = self._free_memory()
        if memory is None:
            if len(self._slabs) >= self._limit and not beyond_limit:
                return None
            memory = aligned_memory(self.slab_bytes)
        slab = Slab(memory, log_id, base)
        self._slabs.append(slab)
        return slab

    @property
    def beyond_limit(self) -> bool:
        """Whether more slabs are in use than the limit: `take` was asked for one beyond it."""
        return len(self._slabs) > self._limit

    def _free_memory(self) -> mmap.mmap | None:
        """The memory of the oldest slab that is only a cache, once the pool is at its limit.

        Where answers on their way hold views of all of those, the oldest is left to them, and ends with them.
        """
        if len(self._slabs) < self._limit:
            return None
        settled = [slab for slab in self._slabs if slab.settled]
        for slab in settled:
            memory = slab.reclaim()
            if memory is not None:
                self._drop(slab)
                return memory
        if settled:
            self._drop(settled[0])
        return None

    def _drop(self, slab: Slab) -> None:
        self._slabs.remove(slab)
        self._evicted(slab)
