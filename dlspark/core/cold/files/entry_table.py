"""`EntryTable`: how many slots, records and rows each entry of a segment has, so that entries can be made again.

Rows are user records; control records are none. So an entry with more slots than records had control records in the
slots that no row has, and one without records had nothing else. Entries of a segment are numbered from 0 without a
hole, so the table needs no numbers. Where the stream was ended is said beside the table, since it happens once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dlspark.core.codec.record_chain import IntArray


@dataclass(frozen=True, slots=True)
class EntryTable:
    """How much is in each entry of a segment?

    Args:
        slots: slots of each entry, those of control records and of the end of stream included.
        records: user records of each entry.
        rows: rows of each entry: differs where records hold several.
    """

    slots: IntArray
    records: IntArray
    rows: IntArray
    records_after: IntArray = field(init=False)
    """User records of the segment up to and including each entry."""
    rows_after: IntArray = field(init=False)
    """Rows of the segment up to and including each entry."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "records_after", np.cumsum(self.records, dtype=np.int64))
        object.__setattr__(self, "rows_after", np.cumsum(self.rows, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def record_count(self) -> int:
        """All user records."""
        return int(self.records_after[-1]) if len(self) else 0

    @property
    def row_count(self) -> int:
        """All rows."""
        return int(self.rows_after[-1]) if len(self) else 0

    def records_before(self, entry: int) -> int:
        """Return the user records in the entries before `entry`."""
        return int(self.records_after[min(entry, len(self)) - 1]) if entry > 0 and len(self) else 0

    def rows_before(self, entry: int) -> int:
        """Return the rows of the entries before `entry`."""
        return int(self.rows_after[min(entry, len(self)) - 1]) if entry > 0 and len(self) else 0

    def entry_of_record(self, number: int) -> int:
        """Return the entry that has user record `number` of the segment, from 0; the number of entries where there are
        not so many."""
        return int(np.searchsorted(self.records_after, number, side="right"))
