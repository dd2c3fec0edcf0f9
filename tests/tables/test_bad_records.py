"""Records that do not fit: each kind is a row that says why and has the bytes, and leaves all others as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pytest
from helpers.bad_records import TXID, BadRecord, avro_but, bad_maps, bad_records, declared, good_record, good_row

from dlspark.tables.codecs import RecordDecoder
from dlspark.tables.declaration import RecordFormat
from dlspark.tables.errors import RecordMisfitError
from dlspark.tables.typed_rows import TypedRows

CASES = [
    *((RecordFormat.JSON, maps, one) for maps in (True, False) for one in bad_records(RecordFormat.JSON)),
    *((RecordFormat.JSON, True, one) for one in bad_maps()),
    *((format_, True, one) for format_ in (RecordFormat.AVRO, RecordFormat.ARROW) for one in bad_records(format_)),
]
EACH = pytest.mark.parametrize(
    ("format_", "maps", "bad"),
    CASES,
    ids=[f"{format_.value} {'' if maps else 'without maps '}{bad.kind}" for format_, maps, bad in CASES],
)


def records_of(payloads: Sequence[bytes]) -> pa.RecordBatch:
    count = len(payloads)
    return pa.record_batch(
        {
            "log": ["orders"] * count,
            "segment": pa.array([1] * count),
            "entry": pa.array(range(count)),
            "slot": pa.array([0] * count),
            "sequence_id": pa.array(range(count)),
            "transaction_id": pa.array([TXID] * count),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "value": pa.array(payloads, pa.binary()),
        }
    )


@pytest.mark.parametrize("format_", list(RecordFormat))
def test_there_are_twenty_kinds_and_more(format_: RecordFormat) -> None:
    kinds = [one.kind for one in bad_records(format_)]
    assert len(set(kinds)) == len(kinds) > 30


@EACH
def test_a_record_that_does_not_fit_says_why_and_keeps_its_bytes(
    format_: RecordFormat, maps: bool, bad: BadRecord
) -> None:
    decoder = RecordDecoder(declared(format_, maps=maps))
    good = good_record(format_, maps=maps)
    rows = TypedRows(decoder).of(records_of([good, bad.payload, good]))
    rows.validate(full=True)
    first, *refused, last = rows.to_pylist()
    for row in (first, last):
        assert row.pop("_error") is None
        assert row.pop("_log")["value"] is None
        assert row == good_row(maps=maps)
    assert refused
    for row in refused:
        log = row.pop("_log")
        assert (log["entry"], log["value"]) == (1, bad.payload)
        assert re.search(bad.says, row.pop("_error"))
        assert set(row.values()) == {None}


@EACH
def test_a_strict_log_refuses_it(format_: RecordFormat, maps: bool, bad: BadRecord) -> None:
    rows = TypedRows(RecordDecoder(declared(format_, strict=True, maps=maps)), ["_log"], ["segment"])
    with pytest.raises(RecordMisfitError, match=bad.says) as refused:
        rows.of(records_of([good_record(format_, maps=maps), bad.payload]))
    assert refused.value.dlsn == "1:1:0"


@pytest.mark.parametrize("format_", list(RecordFormat))
@pytest.mark.parametrize("maps", [True, False])
def test_all_kinds_at_once_leave_every_good_row(format_: RecordFormat, maps: bool) -> None:
    good = good_record(format_, maps=maps)
    payloads = [one for bad in bad_records(format_) for one in (good, bad.payload)]
    rows = TypedRows(RecordDecoder(declared(format_, maps=maps))).of(records_of(payloads)).to_pylist()
    fits = [row for row in rows if row["_error"] is None]
    assert [row["_log"]["entry"] for row in fits] == [*range(0, len(payloads), 2)]
    assert all(row["name"] == "tea" and row["id"] == 1 for row in fits)
    lost = {row["_log"]["entry"]: row["_log"]["value"] for row in rows if row["_error"] is not None}
    assert lost == {at: payload for at, payload in enumerate(payloads) if at % 2}


def test_two_records_that_are_wrong_together_do_not_pass_for_two_that_are_right() -> None:
    """Each pair has as many objects as records, on as many lines."""
    decoder, good = RecordDecoder(declared(RecordFormat.JSON, maps=False)), good_record(RecordFormat.JSON, maps=False)
    for pair in (
        [b"  ", good + good],
        [good + good, b" \t"],
        [good[:6], good[6:] + good],
        [b"{}" + good[:6], good[6:]],
    ):
        rows = TypedRows(decoder).of(records_of(pair)).to_pylist()
        assert all(row["_error"] is not None for row in rows), pair
        assert [row["_log"]["value"] for row in rows] == pair


def test_a_datum_is_refused_wherever_it_is_cut() -> None:
    decoder, good = RecordDecoder(declared(RecordFormat.AVRO)), avro_but()
    cut = [good[:at] for at in range(len(good))]
    assert decoder.decode(pa.array([*cut, good], pa.binary())).errors.null_count == 1


def test_a_stream_is_refused_wherever_it_is_cut() -> None:
    decoder, good = RecordDecoder(declared(RecordFormat.ARROW)), good_record(RecordFormat.ARROW)
    cut = [good[:at] for at in range(len(good) - 8)]
    assert decoder.decode(pa.array(cut, pa.binary())).errors.null_count == 0
