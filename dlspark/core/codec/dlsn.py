"""`DLSN`: the position of a record in a log (docs/reference/records.md#dlsn); `DLSNRange`: from one to before another.

A DLSN is the triple (log segment sequence number, entry id, slot id), ordered like a tuple. People and offsets see it
as text, `3:1200:0`; znodes and the proxy protocol carry one of two binary forms, or that form in base64:

    version  bytes                                          length
    1        01, i64 lssn, i64 entry id, i64 slot id            25
    0        00, the same three i64, 175 zero bytes            200   (upstream sized it in bits by mistake)

Integers are big-endian and signed.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import ClassVar, NamedTuple

from dlspark.core.markup import code
from metadata.foundation.errors import CallerError

_BODY = Struct(">qqq")
_TEXT = re.compile(r"(-?[0-9]{1,19}):(-?[0-9]{1,19}):(-?[0-9]{1,19})")
_LENGTH_OF_VERSION = {0: 200, 1: 25}
_MIN_I64, _MAX_I64 = -(1 << 63), (1 << 63) - 1
_ADVICE = "A DLSN is written segment:entry:slot, for example 3:1200:0"


class _Fields(NamedTuple):
    lssn: int
    entry_id: int
    slot_id: int


class DLSN(_Fields):
    """Says where a record is in its log: segment, entry in it, record in that. Compares and hashes like the tuple it
    is."""

    __slots__ = ()

    INITIAL: ClassVar[DLSN]
    """The earliest position of a log."""
    NON_INCLUSIVE_LOWER_BOUND: ClassVar[DLSN]
    """Below every real record."""
    INVALID: ClassVar[DLSN]
    """No position: what a non-durable write returns."""

    def __str__(self) -> str:
        return f"{self.lssn}:{self.entry_id}:{self.slot_id}"

    @classmethod
    def parse(cls, text: str) -> DLSN:
        """Return the DLSN written as `segment:entry:slot`. Raises CallerError."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise CallerError(f"{text!r} is not a DLSN", advice=_ADVICE)
        lssn, entry_id, slot_id = (int(part) for part in found.groups())
        return cls(lssn, entry_id, slot_id)._checked()

    def to_bytes(self, version: int = 1) -> bytes:
        """Return the binary form of `version` 1 or 0. Raises CallerError where a part does not fit in an i64."""
        length = _LENGTH_OF_VERSION.get(version)
        if length is None:
            raise CallerError(f"there is no DLSN form of version {version}", advice="Use version 1")
        body = bytes([version]) + _BODY.pack(*self._checked())
        return body.ljust(length, b"\0")

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> DLSN:
        """Return the DLSN of either binary form; as upstream, the length must be exactly the version's."""
        view = memoryview(data)
        length = _LENGTH_OF_VERSION.get(view[0]) if len(view) else None
        if length != len(view):
            first = f"first byte {view[0]}" if len(view) else "empty"
            raise CallerError(f"{len(view)} bytes ({first}) are not a serialised DLSN", advice=_ADVICE)
        return cls(*_BODY.unpack_from(view, 1))

    def to_base64(self, version: int = 1) -> str:
        """Return the binary form in standard base64, with padding."""
        return base64.b64encode(self.to_bytes(version)).decode("ascii")

    @classmethod
    def from_base64(cls, text: str) -> DLSN:
        """Return the DLSN of `to_base64`. Raises CallerError."""
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise CallerError(f"{text!r} is not a DLSN in base64: {error}", advice=_ADVICE) from error
        return cls.from_bytes(data)

    @property
    def next(self) -> DLSN:
        """The next slot of the same entry: as an exclusive end or a next-to-read position, "just after this"."""
        return DLSN(self.lssn, self.entry_id, self.slot_id + 1)

    def run(self, count: int) -> list[DLSN]:
        """Return this position and those behind it in its entry, `count` together."""
        slots = range(self.slot_id, self.slot_id + count)
        return list(map(tuple.__new__, repeat(DLSN), zip(repeat(self.lssn), repeat(self.entry_id), slots)))

    @property
    def next_entry(self) -> DLSN:
        """The first slot of the next entry."""
        return DLSN(self.lssn, self.entry_id + 1, 0)

    @property
    def next_segment(self) -> DLSN:
        """The first position of the next segment."""
        return DLSN(self.lssn + 1, 0, 0)

    def _repr_html_(self) -> str:
        if self.lssn < 1 or self.entry_id < 0 or self.slot_id < 0:
            return f"{code(self)} <small>no record's position</small>"
        return f"{code(self)} <small>segment {self.lssn:,}, entry {self.entry_id:,}, slot {self.slot_id:,}</small>"

    def _checked(self) -> DLSN:
        if not all(_MIN_I64 <= part <= _MAX_I64 for part in self):
            raise CallerError(f"a part of the DLSN {self} does not fit in 64 bits", advice=_ADVICE)
        return self


DLSN.INITIAL = DLSN(1, 0, 0)
DLSN.NON_INCLUSIVE_LOWER_BOUND = DLSN(1, 0, -1)
DLSN.INVALID = DLSN(0, -1, -1)


@dataclass(frozen=True, slots=True)
class DLSNRange:
    """Positions from `start` to before `end`, as `Log.record_count` and Spark's batches take them."""

    start: DLSN
    end: DLSN

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise CallerError(f"a range cannot end at {self.end}, before its start {self.start}")

    @classmethod
    def parse(cls, text: str) -> DLSNRange:
        """Return the range written as `1:0:0..3:0:0`. Raises CallerError."""
        start, dots, end = text.partition("..") if isinstance(text, str) else ("", "", "")
        if not dots:
            raise CallerError(f"{text!r} is not a range", advice="A range is written start..end, as 1:0:0..3:0:0")
        return cls(DLSN.parse(start), DLSN.parse(end))

    def __str__(self) -> str:
        return f"{self.start}..{self.end}"

    def __contains__(self, dlsn: object) -> bool:
        return isinstance(dlsn, DLSN) and self.start <= dlsn < self.end

    @property
    def empty(self) -> bool:
        """True if no position lies in it."""
        return self.start == self.end

    def _repr_html_(self) -> str:
        if self.empty:
            return f"{code(self.start)} <small>empty range</small>"
        last = self.end.lssn - (1 if self.end[1:] <= (0, 0) else 0)
        over = max(last - self.start.lssn + 1, 1)
        where = "in one segment" if over == 1 else f"over {over:,} segments"
        return f"{code(self.start)} to before {code(self.end)} <small>{where}</small>"
