"""Places: what a journal holds of a large batch whose records were written once, into their entry log.

A PLACE record stands in the batch for them, and says which bytes of which log they are, with their sum
(docs/reference/node-files.md#places). Such a batch is on disk when both are, the record and the bytes; where the bytes
do not have their sum it is torn, or damaged, as any other batch whose records do not have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from storage_node.bookie.disk.records import HEADER_BYTES, PLACE, header, parse_header
from storage_node.protocol.digests import crc32

_BODY = Struct(">II")
PLACE_BYTES = HEADER_BYTES + _BODY.size
"""A PLACE record's."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where do a batch's records lie? In the log `log_id` at `offset`, `length` bytes with the CRC-32
    `records_sum`."""

    log_id: int
    offset: int
    length: int
    records_sum: int

    def encode(self) -> bytes:
        """Return the PLACE record."""
        body = _BODY.pack(self.length, self.records_sum)
        return header(PLACE, self.log_id, self.offset, body) + body

    @classmethod
    def parse(cls, data: memoryview) -> LogPlace | None:
        """Return the place, where `data` is an intact PLACE record and nothing else; None if not."""
        found = parse_header(data, 0)
        body = data[HEADER_BYTES:]
        if found is None or found[0] != PLACE or len(body) != _BODY.size or crc32(body, 0) != found[4]:
            return None
        length, records_sum = _BODY.unpack(body)
        return cls(found[2], found[3], length, records_sum)


class PlacedRecords(Protocol):
    """Which object reads the records that a journal names by their place? The store's, which has the entry logs."""

    def read(self, place: LogPlace) -> memoryview | None:
        """Return the records; None where they do not have their sum. Raises OSError, FileNotFoundError where the log
        is missing: its name was durable before any place in it was written."""
        ...

    def require(self, place: LogPlace) -> None:
        """Note that its log is named. Raises FileNotFoundError where it is missing."""
        ...
