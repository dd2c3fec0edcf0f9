"""`ColdLocation`: where the entries of a cold segment are, for whoever reads them without a metadata store.

It travels to Spark's tasks by pickle, as `LedgerLocation` does: the file's address and what a reader of it must know,
never a credential.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.distributedlog.cold_places import ColdFile
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import present


@dataclass(frozen=True, slots=True)
class ColdLocation:
    """Which part of which file is a segment?

    Args:
        file: the file; None where the segment's unit has no user record, and therefore none.
        lssn: the segment's number.
        ledger_id: its ledger, which may be gone.
        first_txid, completion_ms: its first transaction id and the time of its end, by which it is known in its file.
        version: of its metadata, which says how its entries are wrapped.
        last_entry: of its ledger; -1 where it has none, or its metadata do not say.
        bytes: of its ledger, one copy.
    """

    file: ColdFile | None
    lssn: int
    ledger_id: int
    first_txid: int
    completion_ms: int
    version: int
    last_entry: int
    bytes: int

    @classmethod
    def of(cls, segment: SegmentMetadata) -> ColdLocation:
        """Return where a listed segment is that has a unit. Raises InvariantViolation for one that has none."""
        place = present(segment.cold, "a segment that is not cold was looked for in a file")
        return cls(
            file=place.file,
            lssn=segment.lssn,
            ledger_id=segment.ledger_id,
            first_txid=segment.first_txid,
            completion_ms=segment.completion_time_ms,
            version=segment.version,
            last_entry=segment.last_entry,
            bytes=place.ledger_bytes,
        )

    @property
    def enveloped(self) -> bool:
        """True where its entries are wrapped in an envelope, as `SegmentMetadata.enveloped`."""
        return self.version >= 4

    @property
    def entry_bytes(self) -> int:
        """About the bytes of one of its entries, as its ledger stores them."""
        return self.bytes // (self.last_entry + 1) if self.last_entry >= 0 else 0
