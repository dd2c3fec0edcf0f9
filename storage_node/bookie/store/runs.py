"""Runs: small adds of one ledger that came together, in order, written behind each other into a slab in one call.

What an add costs beside the copy of its body is calls of Python's: a run makes those of index, journal and answers once
for all of its adds (`Storage.add_run`). A run ends before the first add that is not ordinary: of another ledger, with
another key, out of order, large, or not canonical. Whoever stores adds one by one decides about that one.

The compiled core has the same as `append_adds` (speed/src/frames.rs).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

from metadata.foundation import compiled
from storage_node.bookie.disk.records import ALIGN, ENTRY, HEADER_BYTES, SUMMED, SUMMED_BYTES, Slab
from storage_node.protocol.digests import ENTRY_IDS, crc32
from storage_node.protocol.layouts import decode_add_and_answer

RUN_BYTES = 256 * 1024
"""Entries that are stored together take no more."""
SMALL_BYTES = 16 * 1024
"""A larger body is stored by itself: copying it takes longer than all else, and the journal need not sum it again."""

_HEAD = Struct(f">{SUMMED_BYTES}sI")
"""A record's header: what its sum covers, and the sum."""

QuickAdd: TypeAlias = Callable[[memoryview], "tuple[bytes, bytes, memoryview] | None"]
"""Returns the answer that acknowledges an ordinary add, its key, its body; None for anything else."""


class StoredRun(NamedTuple):
    """Which entries lie behind each other in a slab, and what is answered when they are durable? A tuple: one is made
    for each read."""

    slab: Slab
    end: int
    """Where the last record ends in the slab."""
    ledger_id: int
    first: int
    """The first entry's id: the others follow it."""
    lac: int
    """The highest LAC that one of them carries."""
    key: bytes
    answers: list[bytes]
    places: array[int]
    """Of each record, as the index has it: offset in the log / 32."""
    sizes: array[int]
    """Bytes of each record, without the gap behind it."""

    @property
    def body_bytes(self) -> int:
        """Bytes of the entries."""
        return sum(self.sizes) - HEADER_BYTES * len(self.sizes)


def append_adds(frames: list[memoryview], slab: Slab, quick_add: QuickAdd) -> StoredRun | None:
    """Write the entries of these adds behind the last record of the slab, as far as they are a run. None: not one is.

    The slab itself is not changed: what was written counts once its `end` is that of the run.
    """
    start, end = slab.end, min(slab.size, slab.end + RUN_BYTES)
    place = (slab.base + start) // ALIGN
    if compiled.core is None or quick_add is not decode_add_and_answer:
        return _append(frames, slab, end, place, quick_add)
    found = compiled.core.append_adds(frames, slab.view[start:end], place)
    if found is None:
        return None
    size, ledger_id, first, lac, key, answers, places, sizes = found
    return StoredRun(slab, start + size, ledger_id, first, lac, key, answers, array("I", places), array("I", sizes))


def _append(frames: Sequence[memoryview], slab: Slab, room: int, place: int, quick_add: QuickAdd) -> StoredRun | None:
    view, end = slab.view, slab.end
    ledger_id = entry_id = first = lac = -1
    key, answers, places, sizes = b"", list[bytes](), array("I"), array("I")
    pack, pack_head, ids_of = SUMMED.pack, _HEAD.pack_into, ENTRY_IDS.unpack_from
    for frame in frames:
        add = quick_add(frame)
        if add is None:
            break
        answer, its_key, body = add
        length = len(body)
        size = HEADER_BYTES + length + ALIGN - 1 & -ALIGN
        if end + size > room or not ENTRY_IDS.size <= length <= SMALL_BYTES:
            break
        its_ledger, its_entry, its_lac = ids_of(body)
        if not answers and its_ledger >= 0 and its_entry >= 0:
            ledger_id, entry_id, key = its_ledger, its_entry, its_key
            first = entry_id
        if its_entry != entry_id or its_ledger != ledger_id or its_key != key or its_ledger < 0:
            break
        head = pack(ENTRY, length, ledger_id, entry_id, crc32(body, 0))
        pack_head(view, end, head, crc32(head, 0))
        body_at = end + HEADER_BYTES
        view[body_at : body_at + length] = body
        answers.append(answer)
        places.append(place)
        sizes.append(HEADER_BYTES + length)
        if its_lac > lac:
            lac = its_lac
        end += size
        place += size // ALIGN
        entry_id += 1
    return StoredRun(slab, end, ledger_id, first, lac, key, answers, places, sizes) if answers else None
