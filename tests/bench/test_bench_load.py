"""The load of `dlspark bench` without a server: due times, percentiles, which records came, the search for a rate, and
a run against a publisher whose speed is known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.bench.consuming import Delivered, Finish, Tally
from dlspark.bench.latencies import Latencies
from dlspark.bench.load import Load, MeasuredWindow, without
from dlspark.bench.rate_search import Bound, highest_rate
from dlspark.bench.records import MAX_GAPS, DeliveredRecords, RecordMaker, read_records
from dlspark.bench.systems import Burst
from dlspark.bench.workloads import SECOND_NS, WORKLOADS, BenchWorkload, Schedule, workload_named
from metadata.foundation.errors import CallerError

# ---------------------------------------------------------------------- when records are due


@given(rate=st.integers(1, 300_000), logs=st.integers(1, 16), part=st.floats(0, 2))
def test_each_record_is_due_once_at_its_time(rate: int, logs: int, part: float) -> None:
    schedule = Schedule(rate, logs, 1_000, 0.01 if rate > 1_000 else 1.0)
    now = 1_000 + int(part * (schedule.end_ns - 1_000))
    counts = [schedule.due_in(log, now) for log in range(logs)]
    assert sum(counts) == schedule.due_in_all(now) <= schedule.total
    due = np.sort(np.concatenate([schedule.due_ns(log, 0, count) for log, count in enumerate(counts)]))
    expected = 1_000 + np.arange(len(due)) * SECOND_NS / rate
    assert np.abs(due - expected).max() <= 1
    assert (due <= now).all()
    assert schedule.next_ns(now) > now or schedule.next_ns(now) == schedule.end_ns


def test_nothing_is_due_before_the_beginning_and_nothing_behind_the_end() -> None:
    schedule = Schedule(100, 1, 5 * SECOND_NS, 2)
    assert schedule.due_in_all(5 * SECOND_NS - 1) == 0
    assert schedule.due_in_all(100 * SECOND_NS) == schedule.total == 200


def test_workloads_have_one_and_sixteen_logs_and_two_sizes() -> None:
    assert [(one.logs, one.record_bytes) for one in WORKLOADS] == [(1, 100), (1, 1024), (16, 100), (16, 1024)]
    assert workload_named("16-LOGS-1kb") == WORKLOADS[3]
    with pytest.raises(CallerError, match="no workload '2-logs'"):
        workload_named("2-logs")


# ---------------------------------------------------------------------- percentiles


@given(st.lists(st.integers(0, 3_600_000_000), min_size=1, max_size=300), st.sampled_from([0.5, 0.95, 0.99, 0.999]))
def test_a_percentile_is_never_too_low_and_at_most_a_hundredth_too_high(micros: list[int], share: float) -> None:
    latencies = Latencies()
    for part in (micros[::2], micros[1::2]):
        latencies.add(np.array(part, np.int64) * 1000)
    exact = sorted(micros)[max(1, int(np.ceil(share * len(micros)))) - 1]
    assert exact <= latencies.percentile_us(share) <= exact * 1.01
    assert latencies.count == len(micros)
    assert latencies.as_ms()["max"] == max(micros) / 1e3


def test_no_records_take_no_time() -> None:
    assert set(Latencies().as_ms().values()) == {0}


# ---------------------------------------------------------------------- which records came


def test_records_say_their_numbers_and_due_times() -> None:
    due = np.array([7, 9, 2**62], np.int64)
    rows = RecordMaker(100).make(41, due)
    numbers, read = read_records(rows.tobytes(), 100)
    assert numbers.tolist() == [41, 42, 43]
    assert (read == due).all()
    with pytest.raises(CallerError, match="not records of 99 bytes"):
        read_records(rows.tobytes(), 99)
    with pytest.raises(CallerError, match="16 bytes at least"):
        RecordMaker(15)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=15),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=3),
)
def test_what_is_lost_and_what_came_twice_is_what_a_count_of_all_says(
    runs: list[tuple[int, int]], refused: list[tuple[int, int]]
) -> None:
    refused = [one for at, one in enumerate(refused) if all(_apart(one, other) for other in refused[:at])]
    delivered, seen = DeliveredRecords(), np.zeros(100, int)
    for first, count in runs:
        delivered.add(np.arange(first, first + count))
        seen[first : first + count] += 1
    written = 90
    may_miss = np.zeros(100, bool)
    for first, count in refused:
        may_miss[first : first + count] = True
    assert delivered.twice == int(np.maximum(seen - 1, 0).sum())
    assert delivered.count == int((seen > 0).sum())
    assert delivered.lost(written, refused) == int(((seen == 0) & ~may_miss)[:written].sum())


def _apart(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] + one[1] <= other[0] or other[0] + other[1] <= one[0]


def test_too_many_gaps_are_not_followed() -> None:
    with pytest.raises(CallerError, match="gaps between them"):
        DeliveredRecords().add(np.arange(0, 4 * MAX_GAPS, 2))


# ---------------------------------------------------------------------- the highest rate


@pytest.mark.parametrize("limit", [3, 9_999, 10_000, 10_001, 37_500, 123_456, 800_000])
async def test_the_highest_rate_of_a_system_is_found(limit: int) -> None:
    tried: list[int] = []

    async def sustains(rate: int) -> bool:
        tried.append(rate)
        return rate <= limit

    found = await highest_rate(sustains, 10_000)
    assert 0.95 * limit - 1 <= found <= limit
    assert len(tried) <= 20


async def test_a_system_that_sustains_nothing_has_no_highest_rate_and_steps_are_bounded() -> None:
    tried: list[int] = []

    async def sustains(rate: int) -> bool:
        tried.append(rate)
        return len(tried) > 100

    assert await highest_rate(sustains, 10_000) == 0
    assert tried[-1] == 1

    async def always(rate: int) -> bool:
        return True

    assert await highest_rate(always, 1, max_steps=5) == 16


def test_a_rate_is_sustained_where_all_bounds_hold() -> None:
    bound = Bound()
    assert bound.holds(1000, 970, 99.9, 499)
    assert not bound.holds(1000, 969, 1, 0)
    assert not bound.holds(1000, 1000, 100, 0)
    assert not bound.holds(1000, 1000, 1, 500)


# ---------------------------------------------------------------------- a run


class KnownPublisher:
    """Acknowledges at once, refuses, or never answers; has room for so many bursts of a log at all."""

    def __init__(self, *, room: int | None = None, refused: Sequence[int] = (), silent: bool = False) -> None:
        self.bursts: list[Burst] = []
        self._room = room
        self._refused = refused
        self._silent = silent

    def has_room(self, log: int) -> bool:
        return self._room is None or sum(burst.log == log for burst in self.bursts) < self._room

    def publish(self, burst: Burst) -> None:
        number = len(self.bursts)
        self.bursts.append(burst)
        if number in self._refused:
            burst.fail("no")
            burst.fail("again")
        elif not self._silent:
            for _ in range(len(burst)):
                burst.acknowledge_one()


def _run(publisher: KnownPublisher, rate: float = 20_000) -> tuple[Load, Schedule, MeasuredWindow]:
    begin = time.monotonic_ns()
    schedule = Schedule(rate, 4, begin, 0.1)
    return (
        Load(publisher, BenchWorkload("four", 4, 100)),
        schedule,
        MeasuredWindow(begin + SECOND_NS // 50, schedule.end_ns),
    )


async def test_all_that_is_due_is_handed_over_in_order_with_its_due_time() -> None:
    publisher = KnownPublisher()
    load, schedule, window = _run(publisher)
    published, left = await load.run(schedule, window)
    assert (left, published.refused, published.without_outcome, published.not_handed_over) == (0, 0, 0, 0)
    assert load.acknowledged == sum(load.handed_over) == schedule.total == 2_000
    assert published.latencies.count == published.due
    assert abs(published.due - 1_600) <= 1
    for log in range(4):
        mine = [burst for burst in publisher.bursts if burst.log == log]
        numbers, due = zip(*(read_records(burst.rows.tobytes(), 100) for burst in mine), strict=True)
        assert np.concatenate(numbers).tolist() == list(range(500))
        assert (np.concatenate(due) == schedule.due_ns(log, 0, 500)).all()
        assert [burst.payloads()[0] for burst in mine] == [burst.rows[0].tobytes() for burst in mine]
    # Once more: numbers go on, so that what reads can tell all records apart.
    await load.run(Schedule(1_000, 4, time.monotonic_ns(), 0.02), MeasuredWindow(0, 1))
    assert publisher.bursts[-1].first >= 500


async def test_what_a_publisher_has_no_room_for_counts_with_the_time_that_it_has_waited() -> None:
    load, schedule, window = _run(KnownPublisher(room=1))
    published, _ = await load.run(schedule, window)
    assert published.latencies.count == published.due >= 1_599
    assert published.not_handed_over > 1_000
    # The oldest of them has waited for most of the window: it is not left out of the percentiles.
    assert published.latencies.max_us >= 60_000


async def test_what_is_not_delivered_counts_once_with_the_time_that_it_has_waited() -> None:
    publisher = KnownPublisher(room=3, refused=[1])
    load, schedule, _ = _run(publisher)
    published, _ = await load.run(schedule, MeasuredWindow(schedule.begin_ns, schedule.end_ns))
    delivered = Latencies()
    load.count_undelivered(delivered, [[(0, count)] for count in load.handed_over], schedule.end_ns + SECOND_NS)
    # All that is due and was not refused: what was never handed over, too.
    assert published.not_handed_over > 1_000
    assert delivered.count == published.due
    assert delivered.percentile_us(1 / delivered.count) <= 100_000, "not handed over: until the end of the schedule"
    assert delivered.max_us >= 1_000_000


async def test_what_an_earlier_run_has_not_delivered_does_not_count() -> None:
    load, schedule, window = _run(KnownPublisher())
    await load.run(schedule, window)
    begin_ns = time.monotonic_ns()
    again = Schedule(1_000, 4, begin_ns, 0.02)
    await load.run(again, MeasuredWindow(begin_ns, again.end_ns))
    delivered = Latencies()
    load.count_undelivered(delivered, [[(10, 20), (499, count)] for count in load.handed_over], again.end_ns)
    assert delivered.count == 20
    assert delivered.max_us == 20_000


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8),
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), max_size=8),
)
def test_ranges_without_others_are_what_sets_say(steps: list[tuple[int, int]], taken: list[tuple[int, int]]) -> None:
    pairs, at = [], 0
    for gap, length in steps:
        pairs.append((at + gap, at + gap + length))
        at += gap + length
    left = {number for begin, end in pairs for number in range(begin, end)}
    for first, count in taken:
        left -= set(range(first, first + count))
    found = [number for begin, end in without(pairs, taken) for number in range(begin, end)]
    assert found == sorted(left)


async def test_the_side_that_reads_says_which_records_have_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlspark.bench.consuming.CATCH_UP_S", 0.01)
    tally = Tally(2, 100)
    rows = RecordMaker(100).make(0, np.arange(10, dtype=np.int64))
    tally.deliver(0, rows[:4].tobytes(), 50)
    tally.deliver(0, rows[6:].tobytes(), 60)
    tally.look()
    before_ns = time.monotonic_ns()
    delivered = await tally.answer(Finish([12, 3], [[(4, 1)], []]))
    assert isinstance(delivered, Delivered)
    assert delivered.missing == [[(4, 6), (10, 12)], [(0, 3)]]
    assert delivered.lost == 6
    assert delivered.at_ns > before_ns


async def test_a_burst_that_is_refused_is_counted_once_and_may_be_missing() -> None:
    publisher = KnownPublisher(refused=[1, 3])
    load, schedule, window = _run(publisher)
    published, _ = await load.run(schedule, window)
    refused = [publisher.bursts[1], publisher.bursts[3]]
    assert published.refused == sum(map(len, refused))
    assert published.reason == "no"
    for burst in refused:
        assert (burst.first, len(burst)) in load.unacknowledged[burst.log]
    assert load.acknowledged == schedule.total - published.refused


async def test_what_has_no_outcome_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlspark.bench.load.GRACE_S", 0.05)
    load, schedule, window = _run(KnownPublisher(silent=True), rate=1_000)
    published, _ = await load.run(schedule, window)
    assert published.without_outcome == sum(load.handed_over)
    assert published.latencies.count == published.due
    assert published.acknowledged == 0


async def test_the_backlog_is_asked_for_at_the_end_of_the_schedule() -> None:
    load, schedule, window = _run(KnownPublisher())
    asked: list[int] = []

    async def backlog() -> int:
        asked.append(time.monotonic_ns())
        await asyncio.sleep(0)
        return 17

    _, left = await load.run(schedule, window, (), backlog)
    assert left == 17
    assert len(asked) == 1
    assert asked[0] >= schedule.end_ns
