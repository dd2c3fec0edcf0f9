"""Limits of requests and bytes, soft, hard and dark; the mean of the last minute; partitions; transaction ids."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.errors import OverCapacityError, StreamUnavailableError, TooManyProducersError
from dlspark.serving.write_proxy.settings import WriteProxySettings
from dlspark.serving.write_proxy.streams.limits import (
    FORGOTTEN_S,
    AcquireLimit,
    ClientProducers,
    LimitValues,
    PartitionCounts,
    Permits,
    RecentRate,
    WriteLimiter,
)


def test_permits_come_by_the_second_and_a_second_of_them_is_kept() -> None:
    permits = Permits(10, 0.0)
    assert permits.take(1, 0.0)
    assert not permits.take(1, 0.05)
    assert permits.take(1, 0.1)
    assert [permits.take(1, 100.0) for _ in range(12)] == [True] * 11 + [False], "ten kept, and one on account"


def test_a_request_larger_than_a_second_passes_and_those_behind_it_wait_for_it() -> None:
    permits = Permits(100, 0.0)
    assert permits.take(500, 0.0)
    assert not permits.take(1, 4.9)
    assert permits.take(1, 5.1)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 30)), min_size=1, max_size=80))
def test_what_passes_never_exceeds_the_limit_by_more_than_a_burst_and_one_request(
    steps: list[tuple[float, int]],
) -> None:
    permits, now, passed = Permits(10, 0.0), 0.0, 0
    for wait, cost in steps:
        now += wait
        if permits.take(cost, now):
            passed += cost
    assert passed <= 10 * now + 10 + 30 + 1e-6


def limiter(**values: int) -> WriteLimiter:
    return WriteLimiter("stream", LimitValues(**values), 0.0, Counter())


def test_over_a_soft_limit_requests_are_only_counted() -> None:
    one = limiter(rps_soft=1, bps_soft=10)
    for _ in range(3):
        one.check(100, 0.0, dark=False)
    assert one.counts == {"stream-rps-soft": 2, "stream-bps-soft": 2}


@pytest.mark.parametrize("values", [{"rps_hard": 1}, {"bps_hard": 10}])
def test_over_a_hard_limit_they_are_refused_and_in_dark_mode_counted(values: dict[str, int]) -> None:
    one = limiter(**values)
    one.check(10, 0.0, dark=False)
    with pytest.raises(OverCapacityError, match="a second; the request was not taken"):
        one.check(10, 0.0, dark=False)
    one.check(10, 0.0, dark=True)
    assert sum(one.counts.values()) == 2


@pytest.mark.parametrize("value", [0, -1])
def test_nothing_and_less_switch_a_limit_off(value: int) -> None:
    one = limiter(rps_soft=value, rps_hard=value, bps_soft=value, bps_hard=value)
    assert not one.active
    for _ in range(1000):
        one.check(1 << 20, 0.0, dark=False)
    assert not one.counts


def test_limits_that_change_hold_at_once() -> None:
    one = limiter()
    one.use(LimitValues(rps_hard=1), 5.0)
    assert one.active
    one.check(1, 5.0, dark=False)
    one.use(LimitValues(rps_hard=1), 5.0)
    with pytest.raises(OverCapacityError):
        one.check(1, 5.0, dark=False)
    one.use(LimitValues(), 5.0)
    one.check(1, 5.0, dark=False)


def test_the_mean_is_that_of_the_last_minute() -> None:
    rate = RecentRate(1000.0)
    for second in range(60):
        rate.add(60, 1000.0 + second)
    assert rate.per_second(1059.9) == pytest.approx(60, rel=0.01)
    assert rate.per_second(1089.5) == pytest.approx(30, rel=0.05)
    assert rate.per_second(1200.0) == 0
    rate.add(60, 5000.0)
    assert rate.per_second(5000.0) == 1


@given(st.lists(st.tuples(st.floats(0, 90), st.integers(0, 1000)), max_size=50))
def test_the_mean_forgets_what_is_older_and_nothing_else(steps: list[tuple[float, int]]) -> None:
    rate, now = RecentRate(0.0), 0.0
    noted: list[tuple[float, int]] = []
    for wait, amount in steps:
        now += wait
        rate.add(amount, now)
        noted.append((now, amount))
    recent = sum(amount for moment, amount in noted if int(moment) > int(now) - 60)
    assert rate.per_second(now) * min(60, max(1.0, now)) == pytest.approx(recent)


def test_a_busy_proxy_takes_no_other_stream() -> None:
    settings = WriteProxySettings(rps_acquire=5)
    recent = AcquireLimit(0.0)
    for second in range(60):
        for _ in range(6):
            recent.add(100, float(second))
    assert recent.is_over(settings, 59.9)
    assert not recent.is_over(WriteProxySettings(rps_acquire=7), 59.9)
    assert recent.is_over(WriteProxySettings(bps_acquire=500), 59.9)
    assert not recent.is_over(WriteProxySettings(), 59.9)
    assert not recent.is_over(settings, 200.0)


# ---- partitions ----------------------------------------------------------------------------------------------------

DELIMITED = WriteProxySettings(converter_class="DelimiterStreamPartitionConverter").converter()


def test_partitions_of_one_group_are_limited_and_those_it_has_stay() -> None:
    counts = PartitionCounts(DELIMITED)
    for number in range(2):
        counts.add(f"flights_{number}")
    with pytest.raises(StreamUnavailableError, match="2 partitions of flights are cached here"):
        counts.check("flights_2", 2, "cached")
    counts.check("flights_1", 2, "cached")
    counts.check("trains_2", 2, "cached")
    counts.discard("flights_0")
    counts.check("flights_2", 2, "cached")
    counts.discard("never_7")
    assert (counts.count("flights"), counts.count("trains")) == (1, 0)


@pytest.mark.parametrize("limit", [0, -1])
def test_no_limit_no_refusal(limit: int) -> None:
    counts = PartitionCounts(DELIMITED)
    for number in range(100):
        counts.check(f"flights_{number}", limit, "acquired")
        counts.add(f"flights_{number}")


# ---- producers -----------------------------------------------------------------------------------------------------


def test_a_client_begins_so_many_producers_and_others_are_not_in_its_way() -> None:
    known: set[str] = set()
    limit = ClientProducers(known.__contains__)

    def begin(client: str, name: str, now_s: float = 0.0) -> None:
        limit.check(client, name, 2, now_s)
        known.add(name)

    begin("a", "1")
    begin("a", "2")
    begin("a", "1")
    with pytest.raises(TooManyProducersError, match="server_producers_per_client"):
        begin("a", "3")
    begin("b", "3")
    begin("a", "3")  # another client's goes on through this one
    known.remove("1")
    with pytest.raises(TooManyProducersError):
        begin("a", "4", 1.0)
    begin("a", "4", FORGOTTEN_S)
    with pytest.raises(TooManyProducersError):
        begin("a", "5", FORGOTTEN_S)
    for number in range(10):
        limit.check("c", f"c{number}", 0, 0.0)
