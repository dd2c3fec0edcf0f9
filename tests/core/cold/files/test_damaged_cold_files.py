"""A flipped bit anywhere in a cold file is an error with its place, or is harmless: never other data."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.cold_segments import (
    MadeSegment,
    SegmentMaker,
    footer_of,
    parts_of,
    random_segment,
    records_of,
    verified,
    written,
)

from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.entry_table import EntryTable
from dlspark.core.cold.files.footer import Footer
from dlspark.core.cold.files.row_groups import decode_row_group
from dlspark.core.cold.files.verifying import FileVerifier
from dlspark.errors import DamagedColdFileError
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.types import LONG, STRING, Field, Schema
from metadata.foundation.errors import CallerError, CorruptDataError

URL = "file:///cold.parquet"


def small_file() -> bytes:
    """Return a file of two row groups with typed columns, control records and a record that does not fit."""
    declaration = Declaration.of(RecordFormat.JSON, Schema(0, (Field(1, "n", LONG), Field(2, "s", STRING))))
    maker = SegmentMaker(1)
    for number in range(12):
        maker.record(b'{"n":%d,"s":"text %d"}' % (number, number) if number != 7 else b"junk", 1_000 + number)
        if number % 4 == 3:
            maker.control()
            maker.end_entry()
    data, _ = written([maker.finish()], declaration, row_group_bytes=100)
    assert len(footer_of(data).row_groups) > 1
    return data


def whole(data: bytes) -> str:
    """Return the digest of a file that was verified."""
    return verified(data, URL).digest


def damaged(data: bytes, at: int, bit: int) -> bytes:
    """Return a file with a flipped bit."""
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowMemoryError("malloc of size 4096 failed"),
        pa.ArrowNotImplementedError("Support for codec 'zstd' not built"),
        pa.ArrowCancelled("Operation cancelled"),
    ],
)
def test_what_this_process_cannot_do_is_not_called_damage(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A reader that may pass damaged row groups over would lose whole ones."""
    data = small_file()
    footer = footer_of(data)

    def fails(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(pq, "ParquetFile", fails)
        with pytest.raises(type(error)) as caught:
            decode_row_group(footer, 0, parts_of(data, footer.ranges(0)))
    assert caught.value is error
    with monkeypatch.context() as patched:
        error = pa.ArrowInvalid("no page")
        patched.setattr(pq, "ParquetFile", fails)
        with pytest.raises(DamagedColdFileError, match="its pages cannot be read: no page"):
            decode_row_group(footer, 0, parts_of(data, footer.ranges(0)))


def test_a_flipped_bit_at_any_byte_of_a_file_is_found(rounds: int | None) -> None:
    data = small_file()
    whole(data)
    dice = random.Random(1)
    # Columns' bytes are flipped one by one below, and to verify the rest for each would take a minute.
    for at in range(0, len(data), 1 if rounds else 11):
        with pytest.raises(DamagedColdFileError) as caught:
            whole(damaged(data, at, dice.randrange(8)))
        assert caught.value.url == URL


def test_a_reader_of_any_columns_gets_the_columns_or_an_error_with_its_place() -> None:
    data = small_file()
    footer = footer_of(data)
    for index, group in enumerate(footer.row_groups):
        right = decode_row_group(footer, index, parts_of(data, footer.ranges(index)))
        for at in range(group.range[0], sum(group.range)):
            bad = damaged(data, at, at % 8)
            for column in right.schema.names:
                chunk = next(one for one in group.chunks if one.offset <= at < one.end)
                parts = parts_of(bad, footer.ranges(index, [column]))
                if chunk.path.split(".")[0] != column:
                    found = decode_row_group(footer, index, parts, [column])
                    assert found.column(0).equals(right.column(column))
                    continue
                with pytest.raises(DamagedColdFileError) as caught:
                    decode_row_group(footer, index, parts, [column])
                assert (caught.value.row_group, caught.value.column) == (index, chunk.path)


def test_the_page_of_a_damage_is_said() -> None:
    maker = SegmentMaker(1)
    dice = random.Random(1)
    for _ in range(3_000):
        maker.record(dice.randbytes(2_000))
    data, _ = written([maker.finish()], row_group_bytes=8 << 20)
    footer = footer_of(data)
    chunk = footer.row_groups[0].columns["value"]
    with pytest.raises(DamagedColdFileError, match="row group 0, column value, page 1") as caught:
        records_of(damaged(data, chunk.offset + 2_500_000, 3), footer, 0)
    assert caught.value.page == 1


def test_bytes_that_are_missing_or_too_many_are_found() -> None:
    data = small_file()
    for size in (0, 7, 11, 12, 100, len(data) - 1):
        with pytest.raises(DamagedColdFileError):
            whole(data[:size])
        with pytest.raises(DamagedColdFileError):
            whole(data[len(data) - size :])
    with pytest.raises(DamagedColdFileError):
        whole(data[:4] + b"x" + data[4:])
    with pytest.raises(DamagedColdFileError):
        whole(data + data)


def test_another_parquet_file_is_no_cold_file() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    with pytest.raises(DamagedColdFileError, match="not that of a cold file"):
        whole(sink.getvalue().to_pybytes())


def test_a_footer_that_says_something_else_than_the_rows_is_found() -> None:
    data = small_file()
    footer = footer_of(data)
    table = footer.segments[0].entries
    moved = EntryTable(table.slots, table.records + np.array([1, 0, -1]), table.rows)
    others = {
        "entry table": replace(footer, segments=(replace(footer.segments[0], entries=moved),)),
        "index": replace(footer, row_groups=(replace(footer.row_groups[0], last_txid=5), *footer.row_groups[1:])),
        "slot": replace(
            footer,
            segments=(replace(footer.segments[0], entries=replace_slots(table)),),
        ),
    }
    for what, other in others.items():
        verifier = FileVerifier(other)
        with pytest.raises(DamagedColdFileError, match=what):
            verify_with(verifier, data)


def verify_with(verifier: FileVerifier, data: bytes) -> None:
    """Give a verifier a whole file."""
    for offset, length in verifier.parts:
        verifier.take(data[offset : offset + length])
    verifier.finish()


def test_a_flipped_bit_of_any_page_index_or_footer_is_found_by_the_digests_of_both() -> None:
    data = small_file()
    footer = footer_of(data)
    offset, length = FileVerifier(footer).parts[-1]
    for at in range(offset, offset + length):
        with pytest.raises(DamagedColdFileError):
            Footer.parse(damaged(data, at, at % 8), len(data), URL)


def replace_slots(table: EntryTable) -> EntryTable:
    """Return an entry table whose entries have fewer slots than records."""
    return EntryTable(table.slots - 2, table.records, table.rows)


def test_what_was_not_fetched_is_asked_for_by_name() -> None:
    data = small_file()
    footer = footer_of(data)
    with pytest.raises(CallerError, match=r"column _log.log of row group 0"):
        decode_row_group(footer, 0, {})
    with pytest.raises(CallerError, match="no column nothing"):
        footer.ranges(0, ["nothing"])


def test_a_file_of_a_newer_version_is_refused_with_advice() -> None:
    data = small_file()
    from dlspark.core.cold.files import footer as module

    older, module.VERSION = module.VERSION, 2
    try:
        with pytest.raises(CorruptDataError, match="version 1; 2 is supported"):
            footer_of(data)
    finally:
        module.VERSION = older


PLACES_A_ROUND = 20


@pytest.mark.long
@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_flipped_bits_of_a_larger_file_are_found_with_their_places(rounds: int | None, seed: int | None) -> None:
    """500 rounds are 10,000 places."""
    declaration = Declaration.of(RecordFormat.JSON, Schema(0, (Field(1, "n", LONG), Field(2, "s", STRING))))
    segments = [*(random_segment(n, n + 1, records=1_000) for n in range(2)), json_segment(3, 2_000)]
    data, done = written(segments, declaration, row_group_bytes=100_000)
    assert whole(data) == done.digest
    footer = footer_of(data)
    found: dict[str, list[tuple[int, int]]] = {}
    for number in range(rounds or 1):
        dice = random.Random(f"{seed} {number}")
        for _ in range(PLACES_A_ROUND):
            at, bit = dice.randrange(len(data)), dice.randrange(8)
            error = error_at(data, footer, at, bit)
            if error.page is not None:
                found.setdefault(f"{error.row_group} {error.column}", []).append((at, error.page))
    # The later in a column's bytes, the later the page; where a place is in no header, its page is always said.
    for chunk, places in found.items():
        pages = [page for _, page in sorted(places)]
        assert pages == sorted(pages), (chunk, sorted(places))


def json_segment(lssn: int, records: int) -> MadeSegment:
    """Return a segment whose records lie in typed columns alone."""
    maker = SegmentMaker(lssn, start_sequence_id=lssn * 1_000)
    for number in range(records):
        maker.record(b'{"n":%d,"s":"text %d"}' % (number, number % 37))
    return maker.finish()


def digest_of(records: RecordColumns) -> bytes:
    """Return the digest of a row group's records."""
    digest = RecordDigest()
    digest.update(records)
    return digest.digest()


def error_at(data: bytes, footer: Footer, at: int, bit: int) -> DamagedColdFileError:
    """Flip a bit; assert that whoever verifies, and whoever reads what has it, gets an error with its place; return
    the error."""
    bad = damaged(data, at, bit)
    with pytest.raises(DamagedColdFileError) as verified:
        whole(bad)
    assert verified.value.url == URL
    places = [
        (index, chunk)
        for index, group in enumerate(footer.row_groups)
        for chunk in group.chunks
        if chunk.offset <= at < chunk.end
    ]
    if not places:
        # Between columns and footer, or at the very beginning: readers see it in the footer, or never look at it.
        offset, length = FileVerifier(footer).parts[-1]
        if offset <= at < offset + length:
            with pytest.raises(DamagedColdFileError):
                Footer.parse(bad[offset:], len(bad), URL)
        return verified.value
    ((index, chunk),) = places
    with pytest.raises(DamagedColdFileError) as read:
        decode_row_group(footer, index, parts_of(bad, footer.ranges(index)))
    for error in (verified.value, read.value):
        assert (error.row_group, error.column) == (index, chunk.path)
    columns = footer.record_columns(index)
    if any(footer.row_groups[index].chunks[leaf] is chunk for leaf in footer.leaves(columns)):
        with pytest.raises(DamagedColdFileError, match=f"row group {index}, column"):
            records_of(bad, footer, index)
    else:
        # Whoever reads records does not fetch it.
        assert footer.row_groups[index].digest == digest_of(records_of(bad, footer, index))
    for other in {max(0, index - 1), min(index + 1, len(footer.row_groups) - 1)} - {index}:
        assert len(records_of(bad, footer, other)) == footer.row_groups[other].records
    return read.value


def test_a_footer_is_found_with_one_more_request_at_most() -> None:
    data, _ = written([random_segment(1, 1, records=3_000, largest=10)], row_group_bytes=2_000)
    needed = Footer.bytes_needed(data[-8:], len(data))
    assert Footer.parse(data[-needed:], len(data), URL).records == 3_000
    with pytest.raises(CallerError, match="Fetch as many last bytes"):
        Footer.parse(data[-needed + 1 :], len(data), URL)
