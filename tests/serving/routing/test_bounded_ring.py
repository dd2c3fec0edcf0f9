"""The ring with bounded loads: who gets what, and that nobody gets too much."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.routing.ring import BoundedRing, HostRing

HOSTS = [ProxyHost(f"10.0.0.{number}:4181") for number in range(1, 4)]
VECTORS = {
    "a balance of 1.0": (1.0, "123213312231"),
    "a balance of 1.25": (1.25, "123221331233"),
    "a balance of 2.0": (2.0, "123222331233"),
}
"""Logs, asked for in this order, and the last digit of their host, for the three hosts with the given balance."""


@pytest.mark.parametrize("name", VECTORS)
def test_logs_are_placed_as_the_vectors_say(name: str) -> None:
    balance, digits = VECTORS[name]
    ring = BoundedRing(HOSTS, balance=balance)
    found = [ring.pick(f"log-{number}", 0.0) for number in range(12)]
    assert found == [f"10.0.0.{digit}:4181" for digit in digits]


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_are_what_the_definition_says(name: str) -> None:
    balance, digits = VECTORS[name]
    ring = HostRing(HOSTS)
    loads = dict.fromkeys((host.address for host in HOSTS), 0)
    for number, digit in enumerate(digits):
        full: set[str] = set()
        while True:
            place = ring.lookup(f"log-{number}", full)
            assert place is not None
            if loads[place] < math.ceil(balance * (number + 1) / 3):
                break
            full.add(place)
        loads[place] += 1
        assert place == f"10.0.0.{digit}:4181"


def test_without_a_bound_it_is_the_ring() -> None:
    bounded, ring = BoundedRing(HOSTS, balance=1000.0), HostRing(HOSTS)
    for number in range(50):
        assert bounded.pick(f"log-{number}", 0.0) == ring.pick(f"log-{number}", 0.0)


@given(st.integers(1, 8), st.integers(1, 100), st.sampled_from((1.0, 1.1, 1.25, 2.0)))
def test_no_host_has_more_than_its_share_and_the_balance(hosts: int, logs: int, balance: float) -> None:
    ring = BoundedRing((ProxyHost(f"h{number}:1") for number in range(hosts)), balance=balance, points=5)
    for number in range(logs):
        assert ring.pick(f"log-{number}", 0.0) is not None
        most = max(ring.load(address) for address in ring.addresses())
        assert most <= math.ceil(balance * (number + 1) / hosts)
    assert sum(ring.load(address) for address in ring.addresses()) == logs == len(ring)


def test_a_log_stays_where_it_is_when_hosts_join_and_others_go() -> None:
    ring = BoundedRing(HOSTS[:2])
    before = {number: ring.pick(f"log-{number}", 0.0) for number in range(20)}
    ring.update(HOSTS, 1.0)
    for number in range(0, 20, 2):
        ring.release(f"log-{number}")
    assert {number: ring.pick(f"log-{number}", 1.0) for number in range(1, 20, 2)} == {
        number: before[number] for number in range(1, 20, 2)
    }


def test_the_logs_of_a_host_that_failed_move_to_the_others_within_their_bounds() -> None:
    ring = BoundedRing(HOSTS, balance=1.25)
    places = {number: ring.pick(f"log-{number}", 0.0) for number in range(30)}
    gone = HOSTS[0].address
    ring.failed(gone, 1.0)
    moved = {number: ring.pick(f"log-{number}", 1.0) for number in range(30)}
    assert gone not in moved.values()
    assert all(moved[number] == place for number, place in places.items() if place != gone)
    assert max(ring.load(host.address) for host in HOSTS) <= math.ceil(1.25 * 30 / 2)
    assert ring.load(gone) == 0


def test_the_logs_of_a_host_that_left_have_no_place_until_they_are_asked_for() -> None:
    ring = BoundedRing(HOSTS)
    for number in range(30):
        ring.pick(f"log-{number}", 0.0)
    had = ring.load(HOSTS[0].address)
    ring.update(HOSTS[1:], 1.0)
    assert len(ring) == 30 - had


def test_a_host_that_was_tried_is_not_chosen_and_where_all_were_none_is() -> None:
    ring = BoundedRing(HOSTS)
    first = ring.pick("log", 0.0)
    assert first is not None
    second = ring.pick("log", 0.0, {first})
    assert second not in (None, first)
    assert ring.pick("log", 0.0) == second, "it has moved"
    assert ring.pick("log", 0.0, {host.address for host in HOSTS}) is None
    assert len(ring) == 0
    assert BoundedRing().pick("log", 0.0) is None


def test_hosts_that_all_failed_are_asked_all_the_same() -> None:
    ring = BoundedRing(HOSTS)
    for host in HOSTS:
        ring.failed(host.address, 0.0)
    assert ring.pick("log", 1.0) is not None


def test_a_host_that_a_proxy_named_is_known_to_have_failed_for_as_long_as_one_of_the_list() -> None:
    ring = BoundedRing(HOSTS, blackout_s=10.0)
    for address in ("10.9.9.9:4181", HOSTS[0].address):
        ring.failed(address, 0.0)
        assert (ring.failed_lately(address, 9.0), ring.failed_lately(address, 11.0)) == (True, False)
        ring.failed(address, 20.0)
        ring.answered(address)
        assert not ring.failed_lately(address, 21.0)
    assert not ring.failed_lately(HOSTS[1].address, 0.0)


def test_what_is_placed_is_bounded() -> None:
    ring = BoundedRing(HOSTS, max_placed=10)
    for number in range(100):
        ring.pick(f"log-{number}", 0.0)
    assert len(ring) == 10 == sum(ring.load(host.address) for host in HOSTS)


def test_clients_agree_where_few_logs_overflow_and_their_bound_is_each_one_s_own() -> None:
    """The bound is not one of all clients together: of one log each, a hundred clients place what the hash says."""
    logs, plain = [f"log-{number}" for number in range(100)], HostRing(HOSTS)
    alone = [BoundedRing(HOSTS) for _ in logs]
    assert [ring.pick(log, 0.0) for ring, log in zip(alone, logs, strict=True)] == [
        plain.pick(log, 0.0) for log in logs
    ]
    one, other = BoundedRing(HOSTS), BoundedRing(HOSTS)
    there = {log: one.pick(log, 0.0) for log in logs}
    assert sum(other.pick(log, 0.0) == there[log] for log in reversed(logs)) > 80
