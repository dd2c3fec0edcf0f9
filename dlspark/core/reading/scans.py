"""Looking for the last record of something from its end: in which steps."""

from __future__ import annotations

from collections.abc import Iterator

from dlspark.core.settings import Settings


def backward_scan(last: int, settings: Settings) -> Iterator[tuple[int, int]]:
    """Ranges of entries (first, last) from `last` down to 0.

    They double, from `firstNumEntriesEachPerLastRecordScan` to `maxNumEntriesPerReadLastRecordScan` entries.
    """
    size = settings.first_scan_entries
    while last >= 0:
        first = max(0, last - size + 1)
        yield first, last
        last = first - 1
        size = max(size, min(2 * size, settings.max_scan_entries))
