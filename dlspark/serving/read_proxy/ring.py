"""`EntryRing`: the entries of one log that were read lately, undecoded and in order. No I/O.

    evicted ...  | first ................ newest |  not read yet
                 ^ begin                         ^ end

Entries are numbered in the order in which they come (*ordinals*), so that a reader finds its entry without a search.
A ring covers every position from `begin` on: what was written there and has been read is in the ring, and what is read
later will come. It is bounded in bytes; the oldest entries go first. All rings of a proxy share a `RingBudget`, in
which the entry that came first of all goes first, whichever log it belongs to: a quiet log keeps little, and its
readers at the end lose nothing by that.

The bytes of an entry are copied when it comes. What arrives is a view of a larger buffer, which would be held as a
whole for as long as one small entry is kept, and the bounds would mean nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entries import declared_bytes
from dlspark.core.reading.segment_follower import FetchedEntry
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import check

ENTRY_OVERHEAD_BYTES = 512
"""What an entry counts besides its payload: its objects, and what ring and budget have of it."""
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class RingEntry:
    """An entry as the ring keeps it."""

    segment: SegmentMetadata
    start_sequence_id: int
    entry_id: int
    payload: bytes
    offset: int
    """Bytes, decompressed, of all entries of this ring before it: chunks begin at multiples of their size."""
    content_bytes: int
    """What its payload takes out of its envelope, as that says; record sets may expand further."""
    counted_before: int
    """What all entries of this ring before it counted."""
    broken: bool
    """Whether it is passed over, because all its copies are damaged; the payload is then empty."""

    @property
    def start(self) -> DLSN:
        """The position of its first slot."""
        return DLSN(self.segment.lssn, self.entry_id, 0)

    @property
    def after(self) -> DLSN:
        """The first position behind it."""
        return DLSN(self.segment.lssn, self.entry_id + 1, 0)

    @property
    def counted_bytes(self) -> int:
        """What it counts in the ring's bounds."""
        return len(self.payload) + ENTRY_OVERHEAD_BYTES


class RingBudget:
    """Bounds the bytes of several rings together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.entries_added = 0
        """Entries that came so far."""
        self._order: OrderedDict[tuple[int, int], EntryRing] = OrderedDict()

    def added(self, ring: EntryRing, ordinal: int, size: int) -> None:
        """Count an entry; evicts those that came first of all until the rest fits."""
        self._order[ring.number, ordinal] = ring
        self.entries_added += 1
        self.used_bytes += size
        while self.used_bytes > self.max_bytes and len(self._order) > 1:
            oldest = next(iter(self._order.values()))
            oldest.evict_one()

    def removed(self, ring: EntryRing, ordinal: int, size: int) -> None:
        """Forget an entry that its ring has given up."""
        del self._order[ring.number, ordinal]
        self.used_bytes -= size


class EntryRing:
    """The newest entries of one log, up to `max_bytes`; the newest one stays however long it is."""

    def __init__(self, begin: DLSN, max_bytes: int, budget: RingBudget) -> None:
        """`begin`: where the reading of the log begins."""
        self.begin = begin
        """From here on nothing is missing: neither among what is kept, nor between that and what will come."""
        self.first = 0
        """Ordinal of the oldest entry that is kept."""
        self.after = 0
        """Ordinal that the next entry will get."""
        self.kept_bytes = 0
        self.max_bytes = max_bytes
        self.evicted = 0
        """Entries that have gone so far."""
        self.number = next(_NUMBERS)
        """No other ring of the process has it."""
        self._budget = budget
        self._entries: dict[int, RingEntry] = {}
        self._offset = 0
        self._counted = 0
        self._end = begin

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, ordinal: int) -> RingEntry:
        return self._entries[ordinal]

    @property
    def end(self) -> DLSN:
        """Where the next entry comes at the earliest; `begin` before the first one."""
        return self._end

    def append(self, fetched: FetchedEntry) -> None:
        """Keep the next entry of the log; older ones may go."""
        segment = fetched.segment
        start = DLSN(segment.lssn, fetched.entry_id, 0)
        in_order = start.next_entry > self._end and start.lssn >= self._end.lssn
        check(in_order, f"entry {start} came behind {self._end}", dlsn=start)
        check(fetched.columns is None, "a ring was given columns, and it keeps entries", dlsn=start)
        payload = bytes(fetched.payload)  # copied: see above
        size = declared_bytes(payload, segment.enveloped)
        entry = RingEntry(
            segment,
            fetched.start_sequence_id,
            fetched.entry_id,
            payload,
            self._offset,
            size,
            self._counted,
            fetched.broken,
        )
        ordinal = self.after
        self._entries[ordinal] = entry
        self.after += 1
        self._offset += size
        self._counted += entry.counted_bytes
        self._end = entry.after
        self.kept_bytes += entry.counted_bytes
        # The newest entry stays even if it is alone too long: else a reader at the end would never get it.
        while self.kept_bytes > self.max_bytes and len(self._entries) > 1:
            self.evict_one()
        self._budget.added(self, ordinal, entry.counted_bytes)

    def advance(self, position: DLSN) -> bool:
        """Note that nothing comes any more before `position`: a segment has ended. Whether that was news."""
        news = position > self._end
        self._end = max(self._end, position)
        return news

    def evict_one(self) -> None:
        """Give up the oldest entry."""
        entry = self._entries.pop(self.first)
        self._budget.removed(self, self.first, entry.counted_bytes)
        self.kept_bytes -= entry.counted_bytes
        self.first += 1
        self.evicted += 1
        self.begin = entry.after  # a reader before this has fallen out, and says so rather than pass over it (I4)

    def clear(self) -> None:
        """Give up all entries."""
        while self._entries:
            self.evict_one()

    def bytes_from(self, ordinal: int) -> int:
        """Return what the entries from `ordinal` on count; it may be `after`."""
        if ordinal >= self.after:
            return 0
        return self._counted - self._entries[max(ordinal, self.first)].counted_before

    def covers(self, position: DLSN) -> bool:
        """Return whether a reader at `position` misses nothing if it reads from this ring."""
        return position >= self.begin

    def find(self, position: DLSN) -> int:
        """Ordinal of the first entry that is kept and does not lie below `position`; `after` if there is none yet."""
        low, high = self.first, self.after
        while low < high:
            middle = (low + high) // 2
            if self._entries[middle].after <= position:
                low = middle + 1
            else:
                high = middle
        return low

    def run(self, ordinal: int, chunk_bytes: int, max_bytes: int) -> Iterator[RingEntry]:
        """Yield entries from `ordinal` on that are decoded together: of one segment, and of one chunk.

        Chunks begin where `offset` passes a multiple of `chunk_bytes`: readers that have come different ways soon read
        the same chunks. A run ends before its content would pass `max_bytes`, and has one entry always.
        """
        first = self._entries[ordinal]
        chunk = first.offset // chunk_bytes
        size = 0
        for number in range(ordinal, self.after):
            entry = self._entries[number]
            if number > ordinal:
                same = entry.segment.ledger_id == first.segment.ledger_id and entry.offset // chunk_bytes == chunk
                if not same or entry.broken or size + entry.content_bytes > max_bytes:
                    return
            size += entry.content_bytes
            yield entry
            if entry.broken:
                return
