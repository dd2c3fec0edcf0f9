"""What one commit of a table is made of, from plain values."""

from __future__ import annotations

from dataclasses import replace

from dlspark.cold.lake.planning import LogUnits, TableState, holes, plan_changes
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_units import ColdSegment, ColdUnit
from metadata.distributedlog.segments import SegmentMetadata

NOTHING = TableState("None", {})


def file(name: str) -> ColdFile:
    return ColdFile(f"file:///cold/{name}.parquet", 10, "", "", 5, 5)


def unit(first: int, last: int, **fields) -> ColdUnit:
    segments = tuple(ColdSegment(SegmentMetadata(lssn, lssn, 0), 0, 5, 10) for lssn in range(first, last + 1))
    made = ColdUnit(UnitState.FINISHED, f"a{first}", segments, file(f"{first}-{last}"), 0)
    return replace(made, **fields)


def log(*units: ColdUnit, waiting=()) -> LogUnits:
    return LogUnits("flights", "id", units, frozenset(waiting))


def urls(changes) -> list[str]:
    return [one.url.rpartition("/")[2].removesuffix(".parquet") for one in changes.added]


def test_units_beyond_the_watermark_are_added_in_order():
    changes = plan_changes(NOTHING, [log(unit(1, 2), unit(3, 3))])
    assert (urls(changes), dict(changes.watermarks)) == (["1-2", "3-3"], {"id": 3})
    changes = plan_changes(TableState("1", {"id": 2}), [log(unit(1, 2), unit(3, 3))])
    assert (urls(changes), dict(changes.watermarks)) == (["3-3"], {"id": 3})
    assert not plan_changes(TableState("1", {"id": 3}), [log(unit(1, 2), unit(3, 3))])


def test_a_hole_is_waited_for_as_long_as_the_log_lists_a_segment_of_it():
    assert urls(plan_changes(NOTHING, [log(unit(1, 1), unit(4, 4), waiting={3, 4})])) == ["1-1"]
    assert urls(plan_changes(NOTHING, [log(unit(1, 1), unit(4, 4), waiting={4})])) == ["1-1", "4-4"]


def test_a_unit_without_a_file_moves_the_watermark_along_with_others_alone():
    empty = unit(1, 1, file=None)
    assert not plan_changes(NOTHING, [log(empty)])
    changes = plan_changes(NOTHING, [log(empty, unit(2, 2))])
    assert (urls(changes), dict(changes.watermarks)) == (["2-2"], {"id": 2})


def test_a_unit_that_leaves_is_taken_out_once_and_never_added():
    leaving = unit(1, 1, state=UnitState.COLD_DELETE_STARTED)
    for state in (NOTHING, TableState("1", {"id": 1})):
        changes = plan_changes(state, [log(leaving)])
        assert not changes.added
        assert [one.gone for one in changes.replaced] == [("file:///cold/1-1.parquet",)]
        assert changes  # also where the table never had it: commits that are under way lose their head
        after = TableState("2", {"id": 1}, changes.settled)
        again = plan_changes(after, [log(leaving)])
        assert not again
        assert again.settled == changes.settled
        assert plan_changes(after, [log(unit(2, 2))]).settled == frozenset()


def test_a_replaced_file_is_exchanged_once():
    swapped = unit(1, 1, replaced=(file("old"),))
    changes = plan_changes(TableState("1", {"id": 1}), [log(swapped)])
    assert [(one.gone, one.file) for one in changes.replaced] == [(("file:///cold/old.parquet",), swapped.file)]
    assert not plan_changes(TableState("2", {"id": 1}, changes.settled), [log(swapped)])
    again = replace(swapped, file=file("newer"), replaced=(file("old"), swapped.file))
    assert plan_changes(TableState("2", {"id": 1}, changes.settled), [log(again)]).replaced
    fresh = plan_changes(NOTHING, [log(swapped)])
    assert (urls(fresh), fresh.replaced) == (["1-1"], ())


def test_a_commit_takes_so_many_files_and_no_more():
    changes = plan_changes(NOTHING, [log(*(unit(lssn, lssn) for lssn in range(1, 6)))], limit=2)
    assert (urls(changes), dict(changes.watermarks), changes.more) == (["1-1", "2-2"], {"id": 2}, True)


def test_a_unit_that_begins_within_the_watermark_and_ends_beyond_it_is_reported():
    state = TableState("1", {"id": 2})
    assert not plan_changes(state, [log(unit(2, 3))])
    assert len(holes(state, [log(unit(2, 3))])) == 1
