"""Segment metadata as values, and the format of a segment's znode: decimal numbers joined with `;`
(docs/reference/znodes.md#segment-metadata).

| version | in progress | completed |
|---|---|---|
| 1 | V;ledger;firstTx | V;ledger;firstTx;lastTx;completionMs |
| 2 | V;ledger;firstTx;lssn | V;ledger;firstTx;lastTx;completionMs;lssn;lastEid;lastSlot |
| 3, 4 | V;ledger;firstTx;lssn;minEid;minSlot | as 2, then ;minEid;minSlot |
| 5 | V;ledger;firstTx;lssn;minEid;minSlot;startSeqId | as 3, then ;startSeqId |

V packs a signed 64-bit number: bits 0-7 version, 8-9 truncation, 28-31 region, 32-63 the record count of a completed
segment. Version 1 has neither truncation nor region in V. The number of fields shows whether the segment is completed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cmp_to_key
from itertools import pairwise
from typing import ClassVar, Final

from metadata.distributedlog.cold_places import ColdPlace
from metadata.foundation.errors import CorruptDataError, check

VERSION: Final = 5
MINIMUM_VERSION: Final = 2
INVALID_TXID: Final = -999
UNASSIGNED_LSSN: Final = 0
UNKNOWN_LEDGER: Final = 2**63 - 1
"""The ledger of a segment without records of which no file says more: only a unit of a rebuilt log has such ones."""
UNASSIGNED_SEQUENCE_ID: Final = -1
MAX_RECORD_COUNT: Final = 2**31 - 1

IN_PROGRESS_PREFIX: Final = "inprogress"
COMPLETED_PREFIX: Final = "logrecs"

_NUMBER: Final = re.compile(rb"-?\d{1,19}")
_COUNTS: Final = {1: (3, 5), 2: (4, 8), 3: (6, 10), 4: (6, 10), 5: (7, 11)}  # fields in progress, completed


class UnsupportedMetadataVersionError(CorruptDataError):
    """The segment's metadata is of a version that this library does not read."""

    code: ClassVar[int] = 521


class SegmentListError(CorruptDataError):
    """A log's segments do not follow each other: one between two others is missing."""

    code: ClassVar[int] = 600


class TruncationStatus(IntEnum):
    """How much of a segment did a truncation hide? Nothing, the part before the minimum entry and slot, or
    everything.
    """

    ACTIVE = 0
    PARTIALLY_TRUNCATED = 1
    TRUNCATED = 2
    UNKNOWN = 3


_HIDING: Final = (TruncationStatus.PARTIALLY_TRUNCATED, TruncationStatus.TRUNCATED)


@dataclass(frozen=True, slots=True)
class SegmentMetadata:
    """Which part of a log is a segment, and in which ledger is it? Fields that only a completed one has keep their
    defaults in progress.

    `name` is the znode's actual name where the value was read from one: old logs have other names. `cold`: where its
    copy in a file is. `former_ledgers`: those that it was before, oldest first, if it came back from a file; readers'
    lists and units say it. None of these takes part in comparisons.
    """

    ledger_id: int
    lssn: int
    first_txid: int
    last_txid: int = INVALID_TXID
    completion_time_ms: int = 0
    record_count: int = 0
    last_entry: int = -1
    last_slot: int = -1
    min_entry: int = 0
    min_slot: int = 0
    start_sequence_id: int = UNASSIGNED_SEQUENCE_ID
    in_progress: bool = False
    truncation: TruncationStatus = TruncationStatus.ACTIVE
    region: int = 0
    version: int = VERSION
    name: str | None = field(default=None, compare=False)
    cold: ColdPlace | None = field(default=None, compare=False)
    former_ledgers: tuple[int, ...] = field(default=(), compare=False)

    @property
    def first_ledger(self) -> int:
        """The ledger that it was written into: what tells it from a later segment of its number, for it stays the same
        wherever its entries lie."""
        return self.former_ledgers[0] if self.former_ledgers else self.ledger_id

    def was_ledger(self, ledger_id: int) -> bool:
        """Return whether this ledger is, or was, the segment; True also where it may have been any."""
        return ledger_id == self.ledger_id or ledger_id in self.former_ledgers or self.first_ledger == UNKNOWN_LEDGER

    @property
    def from_files(self) -> bool:
        """True where its records lie in a file, or came out of one: it may have been written in another cluster."""
        return self.cold is not None or bool(self.former_ledgers) or self.ledger_id == UNKNOWN_LEDGER

    @property
    def znode_name(self) -> str:
        """Its actual name, or the one to give it."""
        if self.name is not None:
            return self.name
        return f"{IN_PROGRESS_PREFIX if self.in_progress else COMPLETED_PREFIX}_{self.lssn:018d}"

    def named(self, name_version: int) -> SegmentMetadata:
        """Return this segment with the name that its znode gets: by its number (1), or by transaction ids (0):
        docs/reference/znodes.md#segment-names.

        Segments of metadata version 1 have no numbers: only transaction ids make their names distinct.
        """
        if name_version == 1 and self.lssn != UNASSIGNED_LSSN:
            return replace(self, name=None)
        if self.in_progress:
            return replace(self, name=f"{IN_PROGRESS_PREFIX}_{self.first_txid:x}")
        return replace(self, name=f"{COMPLETED_PREFIX}_{self.first_txid:018d}_{self.last_txid:018d}")

    @property
    def enveloped(self) -> bool:
        """True where entries are wrapped in an envelope."""
        return self.version >= 4

    @property
    def effective_start_sequence_id(self) -> int:
        """The stored start sequence id; where it is unassigned a negative number that grows with the LSSN."""
        if self.version >= 5 and self.start_sequence_id != UNASSIGNED_SEQUENCE_ID:
            return self.start_sequence_id
        return _signed(-(2**63) + (self.lssn << 32))

    def completed(
        self,
        *,
        last_txid: int,
        completion_time_ms: int,
        record_count: int,
        last_entry: int,
        last_slot: int,
        start_sequence_id: int = UNASSIGNED_SEQUENCE_ID,
    ) -> SegmentMetadata:
        """Return this in-progress segment, completed. Below version 5 it has no start sequence id."""
        check(self.in_progress, f"segment {self.lssn} is completed already")
        return replace(
            self,
            in_progress=False,
            last_txid=last_txid,
            completion_time_ms=completion_time_ms,
            record_count=record_count,
            last_entry=last_entry,
            last_slot=last_slot,
            start_sequence_id=start_sequence_id if self.version >= 5 else UNASSIGNED_SEQUENCE_ID,
            name=None,
        )

    def encode(self) -> bytes:
        """Return the znode's data."""
        check(self.version in _COUNTS, f"segment metadata version {self.version} is not one of 1 to 5")
        check(0 <= self.record_count <= MAX_RECORD_COUNT, f"{self.record_count} records do not fit the format")
        fields = [self._packed(), self.ledger_id, self.first_txid]
        if not self.in_progress:
            fields += [self.last_txid, self.completion_time_ms]
        if self.version >= 2:
            fields.append(self.lssn)
            if not self.in_progress:
                fields += [self.last_entry, self.last_slot]
        if self.version >= 3:
            fields += [self.min_entry, self.min_slot]
        if self.version >= 5:
            fields.append(self.start_sequence_id)
        return ";".join(map(str, fields)).encode("ascii")

    def _packed(self) -> int:
        packed = self.version
        if self.version >= 2:
            packed |= int(self.truncation) << 8 | (self.region & 0xF) << 28
        if not self.in_progress:
            packed |= self.record_count << 32
        return _signed(packed)

    @classmethod
    def decode(cls, data: bytes, path: str, *, skip_minimum_version: bool = False) -> SegmentMetadata:
        """Read the data of the znode at `path`. Raises CorruptDataError; UnsupportedMetadataVersionError for a version
        above 5, or below 2 unless `skip_minimum_version`."""
        parts = bytes(data).split(b";")
        # Not left to int(), which also takes blanks, underscores and digits of other scripts.
        if not all(_NUMBER.fullmatch(part) for part in parts):
            raise CorruptDataError(f"not segment metadata: {bytes(data[:80])!r}", path=path)
        numbers = [int(part) for part in parts]
        if any(not -(2**63) <= number < 2**63 for number in numbers):
            raise CorruptDataError(f"not segment metadata, a number is too large: {bytes(data[:80])!r}", path=path)
        packed = numbers[0]
        version = packed & 0xFF
        if version not in _COUNTS or (version < MINIMUM_VERSION and not skip_minimum_version):
            raise UnsupportedMetadataVersionError(
                f"segment metadata of version {version}; {MINIMUM_VERSION} to {VERSION} are supported",
                path=path,
                advice="Was it written by a newer library? Set ledgerMetadataSkipMinVersionCheck to read version 1",
            )
        open_count, completed_count = _COUNTS[version]
        if len(numbers) not in (open_count, completed_count):
            raise CorruptDataError(f"segment metadata of version {version} with {len(numbers)} fields", path=path)
        segment = _unpack(numbers, version, in_progress=len(numbers) == open_count, name=path.rpartition("/")[2])
        if segment.ledger_id < 0 or segment.record_count < 0 or segment.lssn < 0:
            raise CorruptDataError(f"segment metadata with a negative number: {bytes(data[:80])!r}", path=path)
        return segment


def _unpack(numbers: list[int], version: int, *, in_progress: bool, name: str) -> SegmentMetadata:
    packed, rest = numbers[0], iter(numbers[1:])
    ledger_id, first_txid = next(rest), next(rest)
    last_txid, completion = (INVALID_TXID, 0) if in_progress else (next(rest), next(rest))
    lssn = next(rest) if version >= 2 else UNASSIGNED_LSSN
    last_entry, last_slot = (next(rest), next(rest)) if version >= 2 and not in_progress else (-1, -1)
    min_entry, min_slot = (next(rest), next(rest)) if version >= 3 else (0, 0)
    return SegmentMetadata(
        ledger_id=ledger_id,
        lssn=lssn,
        first_txid=first_txid,
        last_txid=last_txid,
        completion_time_ms=completion,
        record_count=0 if in_progress else packed >> 32,
        last_entry=last_entry,
        last_slot=last_slot,
        min_entry=min_entry,
        min_slot=min_slot,
        start_sequence_id=next(rest) if version >= 5 else UNASSIGNED_SEQUENCE_ID,
        in_progress=in_progress,
        truncation=TruncationStatus(packed >> 8 & 0x3) if version >= 2 else TruncationStatus.ACTIVE,
        region=packed >> 28 & 0xF if version >= 2 else 0,
        version=version,
        name=name,
    )


def _signed(number: int) -> int:
    """Return the value as a signed 64-bit number, wrapped around."""
    # Java reads and writes these as a long, whose highest bit is the sign.
    return (number + 2**63) % 2**64 - 2**63


def order(segments: Iterable[SegmentMetadata]) -> list[SegmentMetadata]:
    """Return the segments in order of LSSN; of first transaction id where one of two has none; in progress before
    completed where equal.
    """
    return sorted(segments, key=cmp_to_key(_compare))


def _compare(one: SegmentMetadata, other: SegmentMetadata) -> int:
    if UNASSIGNED_LSSN in (one.lssn, other.lssn):
        by = one.first_txid - other.first_txid
    else:
        by = one.lssn - other.lssn
    return by or int(other.in_progress) - int(one.in_progress)


def gap_in(segments: Iterable[SegmentMetadata]) -> tuple[int, int] | None:
    """Return the first two LSSNs of an ordered list that do not follow each other (versions from 2 on)."""
    for one, other in pairwise(segments):
        if one.version >= 2 and other.version >= 2 and other.lssn != one.lssn + 1:
            return one.lssn, other.lssn
    return None


def with_head_hidden(segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
    """Return an ordered list in which all that lies before a hidden record is hidden too.

    A truncation hides a head of the log, never less (docs/reference/znodes.md#hiding-and-deleting-segments). Each
    segment is read by itself: of a truncation meanwhile a list may know the younger ones alone, and of Java's the
    segments in files hear later. Whoever went by such a list would pass over records without a word (I8).
    """
    last = next((index for index in reversed(range(len(segments))) if segments[index].truncation in _HIDING), 0)
    gone = TruncationStatus.TRUNCATED
    head = [one if one.truncation is gone else replace(one, truncation=gone) for one in segments[:last]]
    return head + list(segments[last:])
