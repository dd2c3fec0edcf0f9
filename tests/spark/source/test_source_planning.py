"""Spans into partitions, limits into shares, filters into bounds: pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import MAX_TIMESTAMP_MS
from dlspark.spark.source.batch_ends import byte_shares, shares
from dlspark.spark.source.filters import Bounds, push
from dlspark.spark.source.planning import ColdRows, SegmentSpan, clip, cut, partitions
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from storage_node.client.reader import LedgerLocation

LEDGER = LedgerLocation(7, LedgerMetadata(3, 3, 2, (Ensemble(0, ("a", "b", "c")),)), {})


def span(entries: int, entry_bytes: int = 1000, first: int = 0, log: str = "a", lssn: int = 1) -> SegmentSpan:
    return SegmentSpan(log, lssn, LEDGER, first, 0, first + entries - 1, None, 0, True, entry_bytes)


def covered(parts: list[SegmentSpan]) -> list[tuple[str, int, int, int]]:
    """Every (log, segment, entry, first slot) that is read, in order."""
    return [
        (part.log, part.lssn, entry, part.first_slot if entry == part.first_entry else 0)
        for part in parts
        for entry in range(part.first_entry, part.last_entry + 1)
    ]


def test_a_span_is_split_between_entries_and_keeps_its_ends() -> None:
    whole = replace(span(10, first=5), first_slot=3, end_slot=2)
    parts = [part for (part,) in partitions([whole], min_partitions=3, max_bytes=1 << 30)]
    assert [(p.first_entry, p.last_entry) for p in parts] == [(5, 8), (9, 12), (13, 14)]
    assert [p.first_slot for p in parts] == [3, 0, 0]
    assert [p.end_slot for p in parts] == [None, None, 2]


def test_a_span_of_one_entry_is_never_cut() -> None:
    assert partitions([span(1)], min_partitions=8, max_bytes=1) == [(span(1),)]


def test_rows_of_a_cold_file_weigh_what_is_read_of_them_and_are_never_cut() -> None:
    groups = [replace(span(100, first=100 * at), cold_rows=ColdRows(at, 0, 50, 400)) for at in range(6)]
    assert [one.bytes for one in groups] == [400] * 6
    assert [len(part) for part in partitions(groups, min_partitions=1, max_bytes=1200)] == [3, 3]
    assert [len(part) for part in partitions(groups, min_partitions=1, max_bytes=100)] == [1] * 6
    assert [len(part) for part in partitions(groups, min_partitions=40, max_bytes=1 << 20)] == [1] * 6
    mixed = [*groups[:2], span(10, entry_bytes=100, first=200)]
    parts = partitions(mixed, min_partitions=9, max_bytes=1 << 20)
    assert [one.cold_rows for part in parts for one in part][:2] == [one.cold_rows for one in groups[:2]]
    assert sum(one.entries for part in parts for one in part if one.cold_rows is None) == 10


def test_small_segments_share_a_partition_and_large_ones_are_split() -> None:
    small = [span(2, lssn=n) for n in range(1, 11)]
    assert len(partitions(small, min_partitions=1, max_bytes=8000)) == 3
    assert [len(p) for p in partitions([span(100)], min_partitions=1, max_bytes=25_000)] == [1, 1, 1, 1]


def test_nothing_to_read_makes_no_partition() -> None:
    assert partitions([], min_partitions=4, max_bytes=1000) == []


def test_min_partitions_is_reached_as_far_as_there_are_entries() -> None:
    assert len(partitions([span(3)], min_partitions=8, max_bytes=1 << 30)) == 3
    uneven = [span(1, entry_bytes=1_000_000), span(9, entry_bytes=1, lssn=2)]
    assert len(partitions(uneven, min_partitions=6, max_bytes=1 << 30)) == 6


def test_many_segments_share_no_more_partitions_than_are_asked_for() -> None:
    segments = [span(4, entry_bytes=1000 + lssn, lssn=lssn) for lssn in range(1, 25)]
    two = partitions(segments, min_partitions=2, max_bytes=1 << 40)
    assert [sum(part.entries for part in group) for group in two] == [49, 47], "of 96"


def fewest(sizes: list[int], limit: int) -> int:
    """In how few ranges entries of these sizes can be read, if none but a single entry may exceed the limit."""
    count, left = 0, 0
    for size in sizes:
        if size > left:
            count, left = count + 1, limit
        left -= size
    return count


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5000), st.integers(0, 5)), max_size=12),
    st.integers(1, 40),
    st.integers(1, 100_000),
)
def test_partitions_cover_each_entry_once_are_as_many_as_it_takes_and_nearly_equal(
    shapes: list[tuple[int, int, int]], min_partitions: int, max_bytes: int
) -> None:
    spans = [
        replace(span(entries, size, first=3, lssn=n + 1), first_slot=slot)
        for n, (entries, size, slot) in enumerate(shapes)
    ]
    planned = partitions(spans, min_partitions=min_partitions, max_bytes=max_bytes)
    assert covered([part for group in planned for part in group]) == covered(spans)
    assert all(planned)
    sizes = [max(1, s.entry_bytes) for s in spans for _ in range(s.entries)]
    assert len(planned) == max(min(min_partitions, len(sizes)), fewest(sizes, max_bytes))
    bytes_of = [sum(part.bytes for part in group) for group in planned]
    one_entry = [sum(part.entries for part in group) == 1 for group in planned]
    assert all(one or size <= max_bytes for one, size in zip(one_entry, bytes_of, strict=True))
    share = sum(sizes) / max(len(planned), 1)
    assert all(size < share + max(sizes) for size in bytes_of)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5000), st.integers(1, 10)), max_size=30),
    st.integers(1, 20),
    st.integers(1, 100_000),
)
def test_pieces_that_tell_their_records_share_partitions_within_the_limit(
    shapes: list[tuple[int, int, int]], min_partitions: int, max_bytes: int
) -> None:
    pieces = [
        replace(span(entries, size, lssn=n + 1), records=records) for n, (entries, size, records) in enumerate(shapes)
    ]
    planned = partitions(pieces, min_partitions=min_partitions, max_bytes=max_bytes, max_records=10)
    assert covered([part for group in planned for part in group]) == covered(pieces)
    assert all(sum(part.records for part in group) <= 10 for group in planned)
    entries = sum(piece.entries for piece in pieces)
    needed = len(partitions(pieces, min_partitions=1, max_bytes=max_bytes, max_records=10))
    assert len(planned) == max(min(min_partitions, entries), needed)
    by_records = fewest([piece.records for piece in pieces], 10)
    assert len(partitions(pieces, min_partitions=1, max_bytes=1 << 40, max_records=10)) == by_records


def test_shares_are_proportional_and_exact() -> None:
    assert shares(100, {"a": 900, "b": 100}) == {"a": 90, "b": 10}
    assert shares(5000, {"a": 3, "b": 4}) == {"a": 3, "b": 4}
    assert shares(10, {"a": 1_000_000, "b": 1, "c": 0}) == {"a": 9, "b": 1}


def test_more_logs_than_the_limit_take_turns() -> None:
    waiting = {"a": 5, "b": 5, "c": 5}
    assert [shares(1, waiting, turn) for turn in range(4)] == [{"a": 1}, {"b": 1}, {"c": 1}, {"a": 1}]
    assert shares(2, waiting, 2) == {"c": 1, "a": 1}


@settings(max_examples=500, deadline=None)
@given(
    st.integers(1, 10_000),
    st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(0, 10**12), max_size=20),
    st.integers(0, 100),
)
def test_shares_sum_to_the_limit_and_starve_no_log(limit: int, available: dict[str, int], turn: int) -> None:
    given_out = shares(limit, available, turn)
    assert sum(given_out.values()) == min(limit, sum(available.values()))
    assert all(1 <= count <= available[log] for log, count in given_out.items())
    waiting = sum(1 for count in available.values() if count)
    assert len(given_out) == min(waiting, limit)


def test_ranges_of_transaction_ids_and_segments_are_pushed_exactly() -> None:
    filters = [
        GreaterThan(("transaction_id",), 10),
        LessThanOrEqual(("transaction_id",), 20),
        GreaterThanOrEqual(("segment",), 2),
        LessThan(("segment",), 5),
        IsNotNull(("transaction_id",)),
    ]
    assert push(filters) == (Bounds(None, 2, 5, 11, 21), [])
    entries = [GreaterThanOrEqual(("entry",), 3), LessThan(("entry",), 9), EqualTo(("segment",), 4)]
    assert push(entries) == (Bounds(min_segment=4, end_segment=5, min_entry=3, end_entry=9), [])
    assert push([GreaterThan(("entry",), 3), LessThan(("entry",), 4)])[0].empty


@pytest.mark.parametrize(("column", "name"), [("segment", "segment"), ("entry", "entry"), ("transaction_id", "txid")])
def test_a_list_of_numbers_bounds_what_is_read_and_spark_looks_for_the_ones_between(column: str, name: str) -> None:
    wanted = In((column,), (40, 20, 30))
    bounds, left = push([wanted])
    assert left == [wanted]
    assert bounds == replace(Bounds(), **{f"min_{name}": 20, f"end_{name}": 41})


def test_a_timestamp_between_two_milliseconds_is_rounded_towards_the_rows_that_satisfy_it() -> None:
    moment = datetime(2013, 7, 1, tzinfo=timezone.utc) + timedelta(microseconds=1)
    ms = 1372636800000
    end = MAX_TIMESTAMP_MS + 1
    for kind, low, high in [
        (GreaterThan, ms + 1, end),
        (GreaterThanOrEqual, ms + 1, end),
        (LessThan, 0, ms + 1),
        (LessThanOrEqual, 0, ms + 1),
    ]:
        bounds, left = push([kind(("timestamp",), moment)])
        assert (bounds.min_txid, bounds.end_txid, left) == (low, high, []), kind
    assert push([EqualTo(("timestamp",), moment)])[0].empty
    exact, _ = push([EqualTo(("timestamp",), datetime(2013, 7, 1, tzinfo=timezone.utc))])
    assert (exact.min_txid, exact.end_txid) == (ms, ms + 1)


def test_logs_are_intersected() -> None:
    bounds, left = push([In(("log",), ("a", "b")), EqualTo(("log",), "b")])
    assert (bounds.logs, left) == (frozenset({"b"}), [])
    assert bounds.admits("b")
    assert not bounds.admits("a")
    assert push([EqualTo(("log",), "a"), EqualTo(("log",), "b")])[0].empty


def test_a_time_is_there_up_to_the_last_year_that_has_one() -> None:
    assert push([IsNotNull(("timestamp",))]) == (Bounds(end_txid=MAX_TIMESTAMP_MS + 1), [])


@pytest.mark.parametrize(
    "inexact",
    [
        Not(EqualTo(("transaction_id",), 5)),
        In(("transaction_id",), (1, None)),
        In(("value",), (b"x",)),
        IsNull(("transaction_id",)),
        IsNotNull(("timestamp", "part")),
        StringStartsWith(("log",), "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("slot",), 5),
        EqualTo(("log",), None),
        GreaterThan(("log",), "a"),
        GreaterThan(("timestamp",), datetime(2013, 7, 1)),
    ],
    ids=str,
)
def test_what_bounds_cannot_express_goes_back_to_spark(inexact: object) -> None:
    bounds, left = push([inexact])  # type: ignore[list-item]
    assert bounds == Bounds()
    assert left[0] is inexact


@settings(max_examples=500, deadline=None)
@given(
    st.integers(1, 10_000),
    st.dictionaries(
        st.text("abcdefgh", min_size=1, max_size=3), st.tuples(st.integers(0, 10**9), st.integers(1, 3_000)), max_size=9
    ),
    st.integers(0, 100),
)
def test_byte_shares_stay_below_the_limit_but_for_one_entry_and_serve_each_log_in_its_turn(
    limit: int, logs: dict[str, tuple[int, int]], turn: int
) -> None:
    available = {log: count and max(count, size) for log, (count, size) in logs.items()}
    first = {log: size for log, (_, size) in logs.items()}
    given_out = byte_shares(limit, available, first, turn)
    waiting = sorted(log for log, count in available.items() if count)
    assert all(first[log] <= share <= available[log] for log, share in given_out.items())
    if waiting:
        assert waiting[turn % len(waiting)] in given_out
        assert sum(given_out.values()) <= max(limit, first[waiting[turn % len(waiting)]])
        served = {log for later in range(len(waiting)) for log in byte_shares(limit, available, first, turn + later)}
        assert served == set(waiting)
    if sum(available.values()) <= limit:
        assert given_out == {log: available[log] for log in waiting}


def test_byte_shares_are_proportional() -> None:
    assert byte_shares(1_000, {"a": 9_010, "b": 1_010}, {"a": 10, "b": 10}) == {"a": 892, "b": 108}
    assert byte_shares(100, {"a": 500, "b": 500}, {"a": 100, "b": 100}, turn=1) == {"b": 100}
    assert byte_shares(10, {"a": 500}, {"a": 100}) == {"a": 100}


def test_pieces_of_a_span_meet_within_entries_and_keep_its_ends() -> None:
    whole = replace(span(10, first=5), first_slot=3, end_slot=2)
    parts = cut(whole, [DLSN(1, 7, 4), DLSN(1, 9, 0)], 17)
    assert [(p.first_entry, p.first_slot, p.last_entry, p.end_slot) for p in parts] == [
        (5, 3, 7, 4),
        (7, 4, 8, None),
        (9, 0, 14, 2),
    ]
    assert [(p.start, p.stop) for p in parts] == [
        (DLSN(1, 5, 3), DLSN(1, 7, 4)),
        (DLSN(1, 7, 4), DLSN(1, 9, 0)),
        (DLSN(1, 9, 0), DLSN(1, 14, 2)),
    ]
    assert {p.records for p in parts} == {17}
    assert cut(whole, [], 40) == [replace(whole, records=40)]


def test_a_span_is_clipped_to_entries() -> None:
    whole = replace(span(10, first=5), first_slot=3, end_slot=2)
    assert clip(whole, 0, None) == clip(whole, 5, 15) == whole
    assert clip(whole, 6, 14) == replace(whole, first_entry=6, first_slot=0, last_entry=13, end_slot=None)
    assert clip(whole, 15, None) is clip(whole, 0, 5) is None


def test_small_spans_share_a_partition_as_far_as_their_records_allow() -> None:
    small = [replace(span(1, lssn=n), records=4) for n in range(1, 8)]
    planned = partitions(small, min_partitions=1, max_bytes=1 << 30, max_records=10)
    assert [sum(part.records for part in group) for group in planned] == [8, 8, 8, 4]
