"""The index: where each entry of a ledger lies in the entry logs; in memory, with one sidecar file a log on disk.

A sidecar (docs/reference/node-files.md#sidecars) is a chain of blocks, one for each checkpoint that found new
records in the log:

    0   8   magic "dlsINDEX"             then, for each run of entries of one ledger:
    8   8   log id                           8  ledger id, 8  first entry id, 4  count
    16  8   covers the log from here         count times 4: place (offset / 32) of the record, little-endian
    24  8   up to here                       count times 4: size of the record, likewise; 0: not in this log
    32  4   bytes behind the header
    36  4   CRC-32 of those bytes
    40  4   CRC-32 of bytes [0, 40)

It is never trusted unseen: a block that fails a sum, or a gap in the chain, and the log is scanned instead (D11). The
last copy of an entry wins, in memory as in the order of logs and blocks.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from heapq import merge
from struct import Struct
from typing import TypeAlias

from storage_node.protocol.digests import crc32

MAGIC = b"dlsINDEX"
_BLOCK = Struct(">8sQQQII")
_SUM = Struct(">I")
_RUN = Struct(">qqI")
BLOCK_HEADER_BYTES = _BLOCK.size + _SUM.size

MAX_GAP = 1024
"""Missing entries that are represented by empty places; beyond it an entry goes to a dict of its own."""
FREE_GAPS = 256
GAPS_AN_ENTRY = 16
"""Empty places that an index may have, and that each of its entries may bring. An empty one takes twelve bytes, an
entry in the dict some two hundred: so a ledger with gaps between its entries takes no more than one of strays."""

COUNTED_TOGETHER = 4096
LOOKED_AT_ONCE = 8192

Place: TypeAlias = tuple[int, int, int]
"""(log id, offset / 32, size of the record)"""


class LedgerIndex:
    """The places of one ledger's entries: dense arrays from `base` on, twelve bytes an entry, and a dict for strays."""

    __slots__ = ("_base", "_gaps", "_logs", "_places", "_sizes", "_strays", "last")

    def __init__(self) -> None:
        self._base = 0
        self._logs = array("I")
        self._places = array("I")
        self._sizes = array("I")
        self._strays: dict[int, Place] = {}
        self._gaps = 0
        self.last = -1
        """The highest entry id, -1 if there is none."""

    def put(self, entry_id: int, log_id: int, place: int, size: int) -> Place | None:
        """Note where an entry lies. Returns where its previous copy lay, which is forgotten; None if there was none."""
        sizes = self._sizes
        at = entry_id - self._base
        count = len(sizes)
        # Nearly every entry is the next one in order, and passes this branch by.
        if at != count or not count:
            if not count:
                self._base = entry_id
            elif 0 <= at < count:
                stray = self._strays.pop(entry_id, None) if self._strays else None
                previous = (self._logs[at], self._places[at], sizes[at]) if sizes[at] else stray
                self._gaps -= not sizes[at]
                self._logs[at] = log_id
                self._places[at] = place
                sizes[at] = size
                return previous
            elif count < at <= count + MAX_GAP and not self._strays and self._may_have_gap(at - count):
                self._gaps += at - count
                gap = array("I", bytes(4 * (at - count)))
                self._logs.extend(gap)
                self._places.extend(gap)
                sizes.extend(gap)
            else:
                previous = self._strays.get(entry_id)
                self._strays[entry_id] = (log_id, place, size)
                if entry_id > self.last:
                    self.last = entry_id
                return previous
        self._logs.append(log_id)
        self._places.append(place)
        sizes.append(size)
        if entry_id > self.last:
            self.last = entry_id
        return self._strays.pop(entry_id, None) if self._strays else None

    def _may_have_gap(self, size: int) -> bool:
        """Return whether `size` more empty places are in proportion."""
        gaps = self._gaps
        return gaps + size <= FREE_GAPS + GAPS_AN_ENTRY * (len(self._sizes) - gaps)

    def put_run(self, first: int, log_id: int, places: array[int], sizes: array[int]) -> list[Place]:
        """Note many at once, as a sidecar has them; size 0 means that there is nothing. Returns the places
        forgotten.
        """
        count = len(self._sizes)
        # In one piece only where nothing is replaced or missing; else entry by entry, so that the last copy counts.
        if 0 in sizes or self._strays or (count and first != self._base + count):
            puts = (self.put(first + at, log_id, places[at], size) for at, size in enumerate(sizes) if size)
            return [previous for previous in puts if previous is not None]
        if not count:
            self._base = first
        self._logs.extend(array("I", [log_id]) * len(sizes))
        self._places.extend(places)
        self._sizes.extend(sizes)
        self.last = max(self.last, first + len(sizes) - 1)
        return []

    def get(self, entry_id: int) -> Place | None:
        """Return where an entry lies, None if it is not here."""
        at = entry_id - self._base
        if 0 <= at < len(self._sizes):
            size = self._sizes[at]
            if size:
                return self._logs[at], self._places[at], size
        return self._strays.get(entry_id)

    def bytes_by_log(self) -> Iterator[tuple[int, int]]:
        """Yield (log id, bytes of records) of all entries; a log may come more than once."""
        for start in range(0, len(self._sizes), COUNTED_TOGETHER):
            logs = self._logs[start : start + COUNTED_TOGETHER]
            sizes = self._sizes[start : start + COUNTED_TOGETHER]
            if logs.count(logs[0]) == len(logs):
                pairs: Iterable[tuple[int, int]] = [(logs[0], sum(sizes))]
            else:
                pairs = zip(logs, sizes, strict=True)
            for log_id, size in pairs:
                if size:
                    yield log_id, size
        for log_id, _, size in self._strays.values():
            yield log_id, size

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Return the contiguous runs (first, last) of entry ids, ascending."""
        return (run for run in self.steps() if run is not None)

    def steps(self) -> Iterator[tuple[int, int] | None]:
        """Yield the runs of `ranges`, with None in between, often enough that others can go on meanwhile. Entries that
        come while that is done are among them or not."""
        pieces: list[list[int]] = []
        ids = list(self._strays)
        for start in range(0, len(ids), LOOKED_AT_ONCE):
            pieces.append(sorted(ids[start : start + LOOKED_AT_ONCE]))
            yield None
        strays = ((stray, stray) for stray in merge(*pieces))
        first, last, looked = -1, -2, 0
        for run in _in_order(strays, self._dense_runs()):
            looked += 1
            if run is None or looked % LOOKED_AT_ONCE == 0:
                yield None
            if run is None:
                continue
            if run[0] != last + 1:
                if first >= 0:
                    yield first, last
                first = run[0]
            last = run[1]
        if first >= 0:
            yield first, last

    def _dense_runs(self) -> Iterator[tuple[int, int] | None]:
        """Yield the runs in the arrays, and None after each part of them."""
        sizes, base = self._sizes, self._base
        begun = -1
        for start in range(0, len(sizes), LOOKED_AT_ONCE):
            part = sizes[start : start + LOOKED_AT_ONCE]
            if 0 not in part:
                begun = start if begun < 0 else begun
            else:
                for at, size in enumerate(part, start):
                    if size and begun < 0:
                        begun = at
                    elif not size and begun >= 0:
                        yield base + begun, base + at - 1
                        begun = -1
            end = start + len(part)
            yield None
        if begun >= 0:
            yield base + begun, base + end - 1


class _Run:
    __slots__ = ("first", "next", "places", "sizes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.next = first
        self.places = array("I")
        self.sizes = array("I")


def _in_order(
    strays: Iterator[tuple[int, int]], dense: Iterator[tuple[int, int] | None]
) -> Iterator[tuple[int, int] | None]:
    """Yield two ascending lines of runs as one."""
    stray = next(strays, None)
    for run in dense:
        while run is not None and stray is not None and stray < run:
            yield stray
            stray = next(strays, None)
        yield run
    while stray is not None:
        yield stray
        stray = next(strays, None)


class NewPlaces:
    """Which entries were added to one log since its last checkpoint? The next block of its sidecar."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[int, list[_Run]] = {}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def ledger_ids(self) -> list[int]:
        """Return the ledgers of which an entry was added."""
        return list(self._runs)

    def put(self, ledger_id: int, entry_id: int, place: int, size: int) -> None:
        """Note where an entry lies: `place` is its offset / 32, `size` the record's bytes. The last copy counts."""
        runs = self._runs.get(ledger_id)
        if runs is None:
            runs = self._runs[ledger_id] = []
        run = runs[-1] if runs else None
        if run is None or entry_id != run.next:
            gap = entry_id - run.next if run is not None else -1
            if run is not None and 0 < gap <= 8:
                run.places.extend([0] * gap)
                run.sizes.extend([0] * gap)
            else:
                run = _Run(entry_id)
                runs.append(run)
        run.places.append(place)
        run.sizes.append(size)
        run.next = entry_id + 1

    def put_run(self, ledger_id: int, first: int, places: array[int], sizes: array[int]) -> None:
        """Note where a run of entries lies, none of which is missing."""
        runs = self._runs.get(ledger_id)
        if runs and runs[-1].next == first:
            run = runs[-1]
            run.places.extend(places)
            run.sizes.extend(sizes)
            run.next = first + len(sizes)
            return
        for number, (place, size) in enumerate(zip(places, sizes, strict=True), first):
            self.put(ledger_id, number, place, size)

    def block(self, log_id: int, start: int, end: int) -> bytes:
        """Return the sidecar block that says what the log holds from `start` to `end`."""
        parts: list[bytes] = []
        for ledger_id, runs in self._runs.items():
            for run in runs:
                parts += (_RUN.pack(ledger_id, run.first, len(run.sizes)), _pack(run.places), _pack(run.sizes))
        payload = b"".join(parts)
        head = _BLOCK.pack(MAGIC, log_id, start, end, len(payload), crc32(payload, 0))
        return head + _SUM.pack(crc32(head, 0)) + payload


Runs: TypeAlias = "list[tuple[int, int, array[int], array[int]]]"


def parse_sidecar(data: bytes, log_id: int, length: int) -> tuple[Runs, int] | None:
    """Return (the runs of a log's first `length` bytes, bytes of the sidecar that say so); None if it does not say all
    of it.

    Blocks behind `length` belong to a checkpoint that was not finished; they are left out.
    """
    runs: Runs = []
    at = covered = 0
    while covered < length:
        head = data[at : at + _BLOCK.size]
        total = data[at + _BLOCK.size : at + BLOCK_HEADER_BYTES]
        if len(total) < _SUM.size or _SUM.unpack(total)[0] != crc32(head, 0):
            return None
        magic, found, start, end, size, payload_sum = _BLOCK.unpack(head)
        payload = data[at + BLOCK_HEADER_BYTES : at + BLOCK_HEADER_BYTES + size]
        # A block that does not continue the chain leaves bytes of the log unaccounted for: then the log is scanned
        # (D11).
        in_chain = magic == MAGIC and found == log_id and start == covered and start < end <= length
        if not in_chain or len(payload) != size or crc32(payload, 0) != payload_sum:
            return None
        runs += _parse_runs(payload)
        covered = end
        at += BLOCK_HEADER_BYTES + size
    return runs, at


def _parse_runs(payload: bytes) -> Runs:
    runs: Runs = []
    at = 0
    while at < len(payload):
        ledger_id, first, count = _RUN.unpack_from(payload, at)
        at += _RUN.size
        places = _unpack(payload[at : at + 4 * count])
        sizes = _unpack(payload[at + 4 * count : at + 8 * count])
        runs.append((ledger_id, first, places, sizes))
        at += 8 * count
    return runs


def _pack(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = array("I", values)
        values.byteswap()
    return values.tobytes()


def _unpack(data: bytes) -> array[int]:
    values = array("I", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
