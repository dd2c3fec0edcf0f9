"""The codec alone: entries of 256 KB to Arrow columns and back, on one core, over a warm copy of the same bytes.

For information: the targets are on what a reader and a writer reach with it (rows P3 and P4).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from benchmarks.costs import CLIENT, Costs, Watch, costs_of
from benchmarks.limits import memory_bytes_per_s
from benchmarks.payloads import ENTRY_BYTES, Records, any_lengths, equal_lengths
from benchmarks.results import Row
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.core.codec.vector_encoding import encode_entries


class CodecBenchmark:
    """Rows C1 (decode) and C2 (encode)."""

    def __init__(self) -> None:
        kinds = [make(length) for length in (100, 1024) for make in (equal_lengths, any_lengths)]
        self._cases = [(records, *_rows(records)) for records in kinds]
        self.rows = [decode for _, decode, _ in self._cases] + [encode for _, _, encode in self._cases]

    def round(self, seconds: float) -> None:
        """Measure each row once, with the copy measured before and after."""
        before = memory_bytes_per_s(ENTRY_BYTES, seconds / 10)
        figures = [(decode, encode, _measure(records, seconds)) for records, decode, encode in self._cases]
        after = memory_bytes_per_s(ENTRY_BYTES, seconds / 10)
        for decode, encode, measured in figures:
            for row, (rate, costs) in zip((decode, encode), measured, strict=True):
                row.add(rate / 1e6, before / 1e6, after / 1e6, costs=costs)


def _rows(records: Records) -> tuple[Row, Row]:
    limit = "MB/s memory copy"
    mega = len(records.txids) / sum(map(len, records.entries()))
    return (
        Row("C1", f"decode, {records.name} (1 MB/s = {mega * 1e6:,.0f} records/s)", "MB/s", limit, None),
        Row("C2", f"encode, {records.name}", "MB/s", limit, None),
    )


def _measure(records: Records, seconds: float) -> tuple[tuple[float, Costs], tuple[float, Costs]]:
    """Return bytes per second decoded and encoded, and what a record cost."""
    entries = [(i, memoryview(entry)) for i, entry in enumerate(records.entries())]
    size, count = sum(len(entry) for _, entry in entries), len(records.txids)

    def decode() -> None:
        decode_entries(entries, lssn=1, start_sequence_id=0)

    def encode() -> None:
        for _ in encode_entries(records.txids, records.payloads, first_position=1, max_entry_bytes=ENTRY_BYTES):
            pass

    def measured(work: Callable[[], None]) -> tuple[float, Costs]:
        watch = Watch({CLIENT: [os.getpid()]})
        return size * _per_second(work, seconds, watch, count), costs_of("record", watch)

    return measured(decode), measured(encode)


def _per_second(work: Callable[[], None], seconds: float, watch: Watch, units: int) -> float:
    work()
    calls = 0
    with watch:
        begin = time.perf_counter()
        while (elapsed := time.perf_counter() - begin) < seconds / 10 or not calls:
            work()
            calls += 1
    watch.units = calls * units
    return calls / elapsed
