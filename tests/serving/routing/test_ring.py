"""The ring: against one that is built from nothing, and what happens as hosts come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.serving.routing.hosts import BLACKOUT_S, Blackouts, ProxyHost, address_of, hash_long, split_address
from dlspark.serving.routing.ring import POINTS_PER_HOST, HostRing, host_points
from metadata.foundation.errors import CallerError

STREAMS = [f"stream-{number}" for number in range(300)]
HOSTS = [ProxyHost(f"127.0.0.1:{8000 + number}", shard=number) for number in range(5)]


def by_definition(hosts: list[ProxyHost], stream: str, tried: frozenset[str] = frozenset(), points: int = 997) -> str:
    """The definition, word for word: the lowest point at or above the hash, or the lowest of all."""
    places = [
        (hash_long(f"shard-{host.shard}-{number}-{host.java_text}"), host.address)
        for host in hosts
        for number in range(points)
        if host.address not in tried
    ]
    behind = [place for place in places if place[0] >= hash_long(stream)]
    return min(behind or places)[1]


def test_a_hosts_points_are_upstreams() -> None:
    host = ProxyHost("127.0.0.1:8000", shard=3)
    points = host_points(host)
    assert len(points) == POINTS_PER_HOST == 997
    assert points[0] == -739197673517503940


def test_a_stream_belongs_to_the_first_point_behind_its_hash() -> None:
    ring = HostRing(HOSTS)
    found = [ring.pick(stream, 0.0) for stream in STREAMS]
    assert found[:20] == [by_definition(HOSTS, stream) for stream in STREAMS[:20]]
    assert set(found) == {host.address for host in HOSTS}


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)), st.text(max_size=8))
def test_hosts_that_were_tried_are_passed_over(members: set[int], tried: set[int], stream: str) -> None:
    hosts = [ProxyHost(f"10.0.0.{number}:1") for number in members]
    passed_over = frozenset(f"10.0.0.{number}:1" for number in tried)
    ring = HostRing(hosts, points=3)
    left = [host for host in hosts if host.address not in passed_over]
    found = ring.pick(stream, 0.0, passed_over)
    assert found == (by_definition(hosts, stream, passed_over, 3) if left else None)


@given(st.lists(st.sets(st.integers(0, 7), max_size=8), max_size=6))
def test_a_ring_whose_hosts_came_and_went_is_the_ring_of_those_that_stayed(lists: list[set[int]]) -> None:
    ring = HostRing(points=3)
    for members in lists:
        ring.update([ProxyHost(f"10.0.0.{number}:1") for number in members], 0.0)
    last = [ProxyHost(f"10.0.0.{number}:1") for number in (lists[-1] if lists else ())]
    assert set(ring.addresses()) == {host.address for host in last}
    anew = HostRing(last, points=3)
    assert [ring.pick(stream, 0.0) for stream in STREAMS[:30]] == [anew.pick(stream, 0.0) for stream in STREAMS[:30]]


def test_a_host_that_joins_takes_streams_to_itself_and_moves_no_others() -> None:
    ring = HostRing(HOSTS[:4])
    before = {stream: ring.pick(stream, 0.0) for stream in STREAMS}
    ring.update(HOSTS, 1.0)
    after = {stream: ring.pick(stream, 1.0) for stream in STREAMS}
    moved = {stream for stream in STREAMS if before[stream] != after[stream]}
    assert moved
    assert {after[stream] for stream in moved} == {HOSTS[4].address}
    ring.update([*HOSTS[:4]], 2.0)
    assert len(ring) == 5, "a host with a shard number stays when it vanishes"


def test_a_host_without_a_shard_number_goes_when_it_vanishes() -> None:
    ring = HostRing([ProxyHost("a:1"), ProxyHost("b:1")])
    ring.update([ProxyHost("b:1")], 1.0)
    assert ring.addresses() == ("b:1",)
    assert {ring.pick(stream, 1.0) for stream in STREAMS} == {"b:1"}


def test_a_shard_stays_when_it_vanishes_and_is_replaced_when_it_comes_up_elsewhere() -> None:
    ring = HostRing([ProxyHost("a:1", 0), ProxyHost("b:1", 1)])
    ring.update([ProxyHost("b:1", 1)], 1.0)
    assert set(ring.addresses()) == {"a:1", "b:1"}
    ring.update([ProxyHost("b:1", 1), ProxyHost("c:1", 0)], 2.0)
    assert set(ring.addresses()) == {"b:1", "c:1"}
    assert HostRing([ProxyHost("b:1", 1), ProxyHost("c:1", 0)]).pick("s", 0.0) == ring.pick("s", 2.0)


def test_of_two_hosts_with_one_shard_the_later_one_counts() -> None:
    ring = HostRing([ProxyHost("a:1", 0), ProxyHost("b:1", 0)])
    assert ring.addresses() == ("b:1",)


def test_a_host_that_gets_another_shard_number_has_other_points() -> None:
    ring = HostRing([ProxyHost("a:1", 0), ProxyHost("b:1", 1)])
    ring.update([ProxyHost("a:1", 1), ProxyHost("b:1", 0)], 1.0)
    anew = HostRing([ProxyHost("a:1", 1), ProxyHost("b:1", 0)])
    assert [ring.pick(stream, 1.0) for stream in STREAMS] == [anew.pick(stream, 1.0) for stream in STREAMS]


def test_a_host_that_failed_is_passed_over_for_the_length_of_a_blackout() -> None:
    ring = HostRing(HOSTS)
    stream = STREAMS[0]
    first = ring.pick(stream, 100.0)
    assert first is not None
    ring.failed(first, 100.0)
    second = ring.pick(stream, 100.0 + BLACKOUT_S - 1)
    assert second == by_definition(HOSTS, stream, frozenset({first}))
    assert ring.pick(stream, 100.0 + BLACKOUT_S) == first
    ring.failed(first, 500.0)
    ring.answered(first)
    assert ring.pick(stream, 500.0) == first


def test_where_all_failed_they_are_asked_all_the_same() -> None:
    ring = HostRing(HOSTS[:2])
    for host in HOSTS[:2]:
        ring.failed(host.address, 0.0)
    first = ring.pick("s", 1.0)
    assert first is not None
    assert ring.pick("s", 1.0, {first}) is not None
    assert ring.pick("s", 1.0, {host.address for host in HOSTS}) is None


def test_a_host_that_is_announced_again_is_asked_again() -> None:
    ring = HostRing(HOSTS[:2])
    stream = next(stream for stream in STREAMS if ring.pick(stream, 0.0) == HOSTS[0].address)
    ring.failed(HOSTS[0].address, 0.0)
    ring.update(HOSTS[:2], 1.0)
    assert ring.pick(stream, 1.0) == HOSTS[1].address, "it was there all the time"
    ring.update(HOSTS[1:2], 2.0)
    ring.update(HOSTS[:2], 3.0)
    assert ring.pick(stream, 3.0) == HOSTS[0].address


def test_a_ring_without_hosts_has_none_to_ask() -> None:
    assert HostRing().pick("s", 0.0) is None


@pytest.mark.parametrize("address", ["nowhere", "host:0", "host:65536", "host:-1", ":80", "host:８0", "host:"])
def test_an_address_that_cannot_be_dialled_is_refused_and_changes_nothing(address: str) -> None:
    ring = HostRing(HOSTS[:1])
    with pytest.raises(CallerError):
        ring.update([HOSTS[1], ProxyHost(address)], 1.0)
    assert ring.addresses() == (HOSTS[0].address,)


def test_a_location_ends_in_the_address() -> None:
    assert address_of("1;3;10.0.0.5:4181") == "10.0.0.5:4181" == address_of("10.0.0.5:4181")
    assert ProxyHost("10.0.0.5:4181", 3).location == "1;3;10.0.0.5:4181"
    assert split_address("[::1]:80") == ("::1", 80)


def test_blackouts_are_forgotten_when_they_are_over() -> None:
    blackouts = Blackouts(10.0)
    for number in range(100):
        blackouts.begin(f"host-{number}", float(number))
    assert len(blackouts.at(60.0)) == 49
    assert len(blackouts) == 49
