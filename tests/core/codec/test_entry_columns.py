"""Entries as the columns of their records: how they are cut, and what each part says."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.entry_columns import EntryColumns
from dlspark.core.codec.records import HEADER_BYTES
from dlspark.core.codec.vector_decoding import DecodedBatch

ENTRIES = {3: 2, 4: 1, 6: 3, 7: 1, 10: 4}
"""Records of entries 2 to 11; the others have none."""
PAYLOAD = b"ten bytes."
RECORD = HEADER_BYTES + len(PAYLOAD)


def columns(end: DLSN | None = None, offset: int = 0) -> EntryColumns:
    """Return entries 2 to 11; the array of their payloads begins at an offset of its buffers."""
    entries = [entry for entry, count in ENTRIES.items() for _ in range(count)]
    slots = [slot for count in ENTRIES.values() for slot in range(count)]
    position = np.arange(1, len(entries) + 1)
    payload = pa.array([b"before"] * offset + [PAYLOAD] * len(entries), pa.binary()).slice(offset)
    zeros = np.zeros(len(entries), np.int64)
    batch = DecodedBatch(5, np.array(entries), np.array(slots), position, position, position, zeros, payload, end)
    return EntryColumns(2, 11, batch)


def parts_of(one: EntryColumns, max_bytes: int) -> list[EntryColumns]:
    parts: list[EntryColumns] = []
    rest: EntryColumns | None = one
    while rest is not None:
        part, rest = rest.split(max_bytes)
        parts.append(part)
    return parts


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("max_bytes", [0, 1, RECORD, 2 * RECORD, 3 * RECORD, 4 * RECORD - 1, 5 * RECORD, 11 * RECORD])
def test_parts_are_whole_entries_up_to_the_bound(offset: int, max_bytes: int) -> None:
    whole = columns(offset=offset)
    assert whole.size == 11 * RECORD
    parts = parts_of(whole, max_bytes)
    numbers = [n for part in parts for n in range(part.first_entry, part.last_entry + 1)]
    assert numbers == list(range(2, 12))
    assert [one for part in parts for one in part.records.records()] == whole.records.records()
    for part in parts:
        inside = set(part.records.entry_id.tolist())
        assert inside == {n for n in ENTRIES if part.first_entry <= n <= part.last_entry}
        assert part.size == len(part.records) * RECORD
        assert part.size <= max_bytes or len(inside) == 1
    for part, following in itertools.pairwise(parts):
        # As much as fits: the next entry that has records would have been too much.
        assert part.size + ENTRIES[following.records.entry_id[0]] * RECORD > max_bytes


def test_entries_without_records_are_one_part() -> None:
    none = EntryColumns(4, 9, DecodedBatch.none(5))
    assert none.size == 0
    assert none.split(0) == (none, None)


@pytest.mark.parametrize("entry", [3, 5, 6, 10, 11])
def test_only_the_part_that_has_the_end_of_the_stream_tells_of_it(entry: int) -> None:
    end = DLSN(5, entry, 9)
    for max_bytes in (0, 3 * RECORD, 11 * RECORD):
        telling = [one for one in parts_of(columns(end), max_bytes) if one.records.end_of_stream is not None]
        assert [one.records.end_of_stream for one in telling] == [end]
        assert telling[0].first_entry <= entry <= telling[0].last_entry
