"""What is due in a log's cold storage: the rules of the next unit, of hot copies and of files."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import replace

import pytest

from dlspark.cold.moving.planning import (
    GRACE_SHARE,
    ColdPicture,
    HotBlock,
    candidates,
    plan_cold_deletion,
    plan_hot_deletion,
    plan_unit,
    totals_of,
)
from dlspark.core.settings.cold import slot_of, slot_start_ms
from dlspark.core.settings.settings import Settings
from metadata.distributedlog.cold_places import ColdFile, UnitState
from metadata.distributedlog.cold_units import MAX_SEGMENTS, ColdLog, ColdSegment, ColdUnit
from metadata.distributedlog.segments import SegmentMetadata, TruncationStatus

NOW = 1_764_300_000_000
HOUR = 3_600_000
SETTINGS = Settings(cold_path="/cold")
DEFAULT_SLOT_S = 288.0


def _segment(lssn: int, ended_ms: int = NOW - HOUR, **fields) -> SegmentMetadata:
    values = {"last_txid": lssn, "completion_time_ms": ended_ms, "record_count": 1, "last_entry": 0, "last_slot": 0}
    return SegmentMetadata(1000 + lssn, lssn, lssn, **(values | fields))


def _open(lssn: int) -> SegmentMetadata:
    return SegmentMetadata(1000 + lssn, lssn, lssn, in_progress=True)


def _unit(first: int, last: int, state=UnitState.FINISHED, finished_ms: int = NOW - 10 * HOUR, **fields) -> ColdUnit:
    parts = tuple(ColdSegment(_segment(lssn, NOW - 10 * HOUR), lssn - first, 1, 100) for lssn in range(first, last + 1))
    file = ColdFile(f"file:///cold/{first}.parquet", 50, "", "", len(parts), len(parts))
    return ColdUnit(state, f"a{first}", parts, file, finished_ms, **fields)


def _picture(segments, units=(), truncated_to=(0, 0, 0), needed=None, name="log") -> ColdPicture:
    return ColdPicture(name, tuple(segments), tuple(units), ColdLog("n", "l", truncated_to), (), needed)


def _plan(picture, settings=SETTINGS, now_ms=NOW, size=100):
    return plan_unit(picture, {one.lssn: size for one in candidates(picture)}, settings, now_ms)


# ------------------------------------------------------------------ which run


def _numbers(plan):
    return [one.lssn for one in plan.segments]


def test_a_run_is_of_completed_segments_in_no_unit_without_a_hole():
    assert _numbers(_plan(_picture([_segment(3), _segment(4), _open(5)], [_unit(1, 2)]))) == [3, 4]
    assert _numbers(_plan(_picture([_segment(3), _segment(5)]))) == [3], "4 is missing"
    assert _numbers(_plan(_picture([_segment(1), _segment(2), _segment(3)], [_unit(2, 2)]))) == [1]
    assert _numbers(_plan(_picture([_open(1)]))) == []
    assert _numbers(_plan(_picture([_segment(1), _open(2), _segment(3)]))) == [1], "what lies behind an open one waits"


def test_hidden_segments_and_those_without_numbers_are_not_copied():
    hidden = _segment(1, truncation=TruncationStatus.TRUNCATED)
    partly = _segment(2, truncation=TruncationStatus.PARTIALLY_TRUNCATED)
    assert _numbers(_plan(_picture([hidden, partly, _segment(3)]))) == [2, 3]
    assert _numbers(_plan(_picture([_segment(0, version=1)]))) == []


def test_without_a_path_nothing_is_planned():
    assert not _plan(_picture([_segment(1)]), Settings()).segments


def test_a_run_ends_before_the_segment_that_would_be_too_much_and_is_due_at_once():
    settings = Settings(cold_path="/cold", cold_target_bytes=250)
    plan = _plan(_picture([_segment(lssn, NOW) for lssn in range(1, 6)]), settings)
    assert (_numbers(plan), plan.full, plan.due_ms) == ([1, 2], True, 0)
    alone = _plan(_picture([_segment(1, NOW), _segment(2, NOW)]), settings, size=1000)
    assert (_numbers(alone), alone.full) == ([1], True), "a large one goes alone"


def test_a_run_that_can_never_grow_is_full():
    assert _plan(_picture([_segment(1, NOW), _segment(3, NOW)])).full, "a number is missing behind it"
    assert _plan(_picture([_segment(1, NOW), _segment(2, NOW)], [_unit(2, 2)])).full
    assert _plan(_picture([_segment(1, NOW, last_txid=2**63 - 1)])).full, "the log is sealed"
    many = _plan(_picture([_segment(lssn, NOW) for lssn in range(1, MAX_SEGMENTS + 2)]), size=1)
    assert (len(many.segments), many.full) == (MAX_SEGMENTS, True)
    assert not _plan(_picture([_segment(1, NOW), _open(2)])).full


# ------------------------------------------------------------------ when


def test_a_segment_that_ended_in_the_slot_is_due_and_an_older_one_after_the_grace():
    slot = slot_of("log", DEFAULT_SLOT_S, NOW)
    start = slot_start_ms("log", DEFAULT_SLOT_S, slot)
    unit = _unit(1, 1, finished_ms=start - 1)
    in_slot = _plan(_picture([_segment(2, start), _open(3)], [unit]), now_ms=start + 5)
    assert in_slot.due_ms <= start + 5
    before = _plan(_picture([_segment(2, start - 10), _open(3)], [unit]), now_ms=start + 5)
    assert before.due_ms == start + round(DEFAULT_SLOT_S * 1000 * GRACE_SHARE)


def test_after_a_file_in_this_slot_the_next_one_waits_for_the_next_slot_or_the_delay():
    slot = slot_of("log", DEFAULT_SLOT_S, NOW)
    unit = _unit(1, 1, finished_ms=NOW)
    plan = _plan(_picture([_segment(2, NOW), _open(3)], [unit]))
    assert plan.due_ms >= slot_start_ms("log", DEFAULT_SLOT_S, slot + 1)
    soon = Settings(cold_path="/cold", cold_max_delay_s=1)
    assert _plan(_picture([_segment(2, NOW), _open(3)], [unit]), soon).due_ms == NOW + 1000


def test_without_freshness_only_the_delay_counts():
    settings = Settings(cold_path="/cold", cold_freshness_s=0, cold_max_delay_s=100)
    assert _plan(_picture([_segment(1, NOW - 1000), _segment(2, NOW), _open(3)]), settings).due_ms == NOW + 99_000


def test_a_unit_from_the_future_does_not_hold_the_log_up():
    unit = _unit(1, 1, finished_ms=NOW + 1000 * HOUR)
    assert _plan(_picture([_segment(2, NOW), _open(3)], [unit])).due_ms <= NOW + 2 * 288_000


@pytest.mark.parametrize("seed", range(3))
def test_a_day_has_at_most_300_files_and_no_record_waits_longer_than_freshness_says(seed):
    """A log whose segments end with slots, and now and then in between, moved by a worker that looks when told to."""
    rng = random.Random(seed)
    # From time to time an owner changes; or a sink publishes a segment every few seconds.
    gap_ms = (rng.choice((40_000, 700_000, 5_000_000)), 7_000)[seed % 2]
    day = range(NOW, NOW + 86_400_000)
    slot = slot_of("log", DEFAULT_SLOT_S, NOW)
    ends, at = [], NOW
    while at < day.stop:
        slot += 1
        boundary = slot_start_ms("log", DEFAULT_SLOT_S, slot) + rng.randrange(50, 900)
        while (at := at + rng.randrange(gap_ms // 2, gap_ms)) < boundary:
            ends.append(at)
        ends.append(at := boundary)
    segments = [_segment(number, ended) for number, ended in enumerate(ends, 1)]
    begins = dict(zip([one.lssn for one in segments], [NOW, *ends], strict=False))
    units: list[ColdUnit] = []
    worst, now_ms, first = 0, NOW, 0
    while first < len(ends) and now_ms < day.stop:
        ended = bisect_right(ends, now_ms)
        there = segments[first:ended]
        last = units[-1:]  # the newest one decides
        plan = _plan(_picture([*there, _open(there[-1].lssn + 1)] if there else [], last), now_ms=now_ms, size=1)
        next_end = ends[ended] if ended < len(ends) else day.stop
        if not plan.segments or plan.due_ms > now_ms:
            now_ms = min(next_end, plan.due_ms if plan.segments else next_end)
            continue
        now_ms += 2000  # copying
        parts = tuple(ColdSegment(one, 0, 1, 1) for one in plan.segments)
        units.append(replace(_unit(1, 1), segments=parts, finished_ms=now_ms))
        worst = max(worst, now_ms - begins[plan.first])
        first = plan.last
    assert len(units) <= 301, "a day that begins within a slot touches one more"
    assert worst <= 300_000


# ------------------------------------------------------------------ hot copies


def test_hot_copies_go_after_their_time_oldest_first():
    segments = [_segment(lssn) for lssn in range(1, 6)]
    units = [_unit(1, 2), _unit(3, 4)]
    plan = plan_hot_deletion(_picture(segments, units), SETTINGS, NOW)
    assert (plan.unit, plan.block) == (units[0], None)
    young = [_unit(1, 2, finished_ms=NOW - 1000), _unit(3, 4)]
    plan = plan_hot_deletion(_picture(segments, young), SETTINGS, NOW)
    assert (plan.unit, plan.block) == (young[0], HotBlock.NOT_YET), "the older unit's time counts, not the other's"
    assert plan.due_ms == NOW - 1000 + 4 * HOUR
    assert plan_hot_deletion(_picture(segments), SETTINGS, NOW).unit is None


def test_what_keeps_hot_copies():
    segments = [_segment(lssn) for lssn in range(1, 6)]
    never = Settings(cold_path="/cold", cold_hot_retention_s=-1)
    block = lambda *given, **more: plan_hot_deletion(_picture(*given, **more), SETTINGS, NOW).block  # noqa: E731
    assert plan_hot_deletion(_picture(segments, [_unit(1, 2)]), never, NOW).block is HotBlock.NEVER
    assert block(segments, [_unit(2, 3)]) is HotBlock.OLDER_SEGMENTS
    assert block(segments, [_unit(1, 5)]) is HotBlock.NEWEST
    assert block([*segments, _open(6)], [_unit(1, 5)]) is HotBlock.NEWEST, "an open one behind it does not help"
    assert block(segments, [_unit(1, 2)], needed=2) is HotBlock.PRODUCERS
    assert block(segments, [_unit(1, 2)], needed=3) is None
    kept = _unit(1, 2, keep_hot_until_ms=NOW + 5)
    plan = plan_hot_deletion(_picture(segments, [kept]), SETTINGS, NOW)
    assert (plan.block, plan.due_ms) == (HotBlock.RESTORED, NOW + 5)


def test_a_unit_whose_hot_copies_an_owner_took_needs_no_time():
    young = _unit(1, 2, finished_ms=NOW)
    assert plan_hot_deletion(_picture([_segment(3)], [young]), SETTINGS, NOW).block is None


# ------------------------------------------------------------------ files


def test_files_go_by_age_only_when_asked_and_only_the_oldest_without_hot_copies():
    cold = _unit(1, 2, UnitState.HOT_DELETED)
    picture = _picture([_segment(5)], [cold, _unit(3, 4)])
    assert plan_cold_deletion(picture, SETTINGS).unit is None
    aged = Settings(cold_path="/cold", cold_retention_hours=5)
    plan = plan_cold_deletion(picture, aged)
    assert (plan.unit, plan.due_ms) == (cold, NOW - 10 * HOUR + 5 * HOUR)
    assert plan_cold_deletion(_picture([_segment(1)], [_unit(1, 2)]), aged).unit is None, "hot copies go first"


def test_hidden_files_go_when_hot_segments_would():
    cold = _unit(1, 2, UnitState.HOT_DELETED)
    hidden = _picture([_segment(3)], [cold], truncated_to=(3, 0, 0))
    assert plan_cold_deletion(hidden, SETTINGS).due_ms == NOW - 10 * HOUR + 72 * HOUR
    assert plan_cold_deletion(_picture([_segment(3)], [cold], truncated_to=(2, 0, 0)), SETTINGS).unit is None
    for_ever = Settings(cold_path="/cold", retention_hours=0)
    assert plan_cold_deletion(hidden, for_ever).unit is None


def test_a_deletion_that_was_begun_is_due():
    begun = _unit(1, 2, UnitState.COLD_DELETE_STARTED)
    assert plan_cold_deletion(_picture([], [begun]), SETTINGS).unit == begun


# ------------------------------------------------------------------ totals


def test_totals_say_what_is_where():
    picture = _picture(
        [_segment(3), _segment(4, NOW - 5000), _open(5)], [_unit(1, 2, UnitState.HOT_DELETED), _unit(3, 3)]
    )
    totals = totals_of(picture, {3: 100, 4: 70, 5: 7}, SETTINGS, NOW)
    assert (totals.hot_segments, totals.hot_bytes) == (2, 77)
    assert (totals.both_segments, totals.both_bytes) == (1, 100)
    assert (totals.cold_segments, totals.cold_bytes) == (2, 200)
    assert (totals.files, totals.file_bytes, totals.lag_ms) == (2, 100, 5000)
