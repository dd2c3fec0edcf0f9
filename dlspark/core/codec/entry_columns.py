"""`EntryColumns`: entries that follow each other, as the columns of their records: what a cold file gives to readers.

A file keeps records by columns, and readers want them so. Between the two no entry is made: its header, and those of
its records, would be taken apart again at once. Which entries the columns stand for is kept beside them, for readers
are at an entry, count entries, and may go on from any of them elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dlspark.core.codec.records import HEADER_BYTES
from dlspark.core.codec.vector_decoding import DecodedBatch


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """All user records of entries `first_entry` to `last_entry` of one segment; there may be none.

    `records.end_of_stream` says where the stream was ended, if it was in one of these entries.
    """

    first_entry: int
    last_entry: int
    records: DecodedBatch
    size: int = field(init=False)
    """About what its records take in entries, in bytes."""

    def __post_init__(self) -> None:
        offsets = self._offsets
        object.__setattr__(self, "size", int(offsets[-1] - offsets[0]) + HEADER_BYTES * len(self.records))

    @property
    def _offsets(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Where each payload begins in its buffer, and the last one ends."""
        payload = self.records.payload
        if not len(payload):
            return np.zeros(1, np.int32)
        return np.frombuffer(payload.buffers()[1], np.int32, len(payload) + 1, 4 * payload.offset)

    def split(self, max_bytes: int) -> tuple[EntryColumns, EntryColumns | None]:
        """Return the first entries, of about `max_bytes` together, one of them at least; and those behind them, None
        where that are all. Both share their memory with these."""
        if self.size <= max_bytes:
            return self, None
        records, offsets = self.records, self._offsets
        # Cut where an entry begins: at the last one up to the bound, or else at the first one behind it.
        begins = np.flatnonzero(records.entry_id[1:] != records.entry_id[:-1]) + 1
        sizes = offsets[begins].astype(np.int64) - int(offsets[0]) + HEADER_BYTES * begins
        within = max(int(np.searchsorted(sizes, max_bytes, side="right")) - 1, 0)
        if within >= len(begins):
            return self, None  # It is one entry, with others that have no records.
        cut = int(begins[within])
        following = int(records.entry_id[cut])
        end = records.end_of_stream
        before = end is not None and end.entry_id < following
        head, rest = records.sliced(0, cut), records.sliced(cut, len(records))
        # A reader ends where it is told of the end, so only the half that has it may tell.
        return (
            EntryColumns(self.first_entry, following - 1, replace(head, end_of_stream=end if before else None)),
            EntryColumns(following, self.last_entry, replace(rest, end_of_stream=None if before else end)),
        )
