"""Where a log is to be read, as one read proxy decides it, and what several of them make of that."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.serving.read_proxy.balance import BACK_S, MOST_TRIED, SENT_S, ReadBalance
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.routing.ring import HostRing

HOSTS = [ProxyHost(f"10.0.0.{number}:8100", number) for number in range(1, 6)]
PLACES = {number: host.location for number, host in enumerate(HOSTS, 1)}


def balance_of(counts: dict[int, int | None], balance: float = 1.25) -> ReadBalance:
    """What 10.0.0.1 knows of others, by the last digit of their addresses."""
    made = ReadBalance(balance)
    made.use_members(HOSTS[number - 1] for number in counts)
    for number, count in counts.items():
        made.heard(HOSTS[number - 1].address, count)
    return made


def first_on_the_ring(stream: str, digits: Sequence[int]) -> str:
    ring = HostRing(HOSTS)
    addresses = [HOSTS[digit - 1].address for digit in digits]
    return next(f"1;{one[7]};{one}" for one in ring.following(stream) if one in addresses)


CASES = {
    # own reads, counts of others, tried, the digits of those that may be named
    "room here": (9, {2: 10, 3: 10}, (), ()),
    "as much as the bound": (12, {2: 10, 3: 7}, (), ()),
    "no room": (13, {2: 10, 3: 7}, (), (2, 3)),
    "one other has room": (16, {2: 16, 3: 2}, (), (3,)),
    "sent by another": (13, {2: 10, 3: 7}, (2,), ()),
    "the other one that has room was tried": (16, {2: 16, 3: 2}, (3,), ()),
    "tried one that is gone": (13, {2: 10, 3: 7}, (5,), (2, 3)),
    "tried one that does not answer": (13, {2: 10, 3: 7, 4: None}, (4,), (2, 3)),
    "too many were tried, whoever they are": (13, {2: 10, 3: 7}, (4, 5), ()),
    "no other is known": (100, {2: None, 3: None}, (), ()),
    "no other is there": (100, {}, (), ()),
    "what is not known counts nowhere": (13, {2: 10, 3: 7, 4: None, 5: None}, (), (2, 3)),
    "the first log of all": (0, {2: 0, 3: 0}, (), ()),
    "the second": (1, {2: 0, 3: 0}, (), (2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_log_is_read_here_or_where_the_table_says(name: str) -> None:
    reads, counts, tried, expected = CASES[name]
    for number in range(20):
        found = balance_of(counts).elsewhere(f"log-{number}", reads, [PLACES[one] for one in tried], 0.0)
        assert found == (first_on_the_ring(f"log-{number}", expected) if expected else None), number


def test_without_a_bound_every_log_is_read_here() -> None:
    assert balance_of({2: 0, 3: 0}, balance=0).elsewhere("log", 10_000, (), 0.0) is None


def test_tried_hosts_may_be_addresses() -> None:
    assert balance_of({2: 0}).elsewhere("log", 50, [HOSTS[1].address], 0.0) is None


def test_a_burst_between_two_answers_is_spread_though_all_ask_one_proxy() -> None:
    balance, reads = balance_of(dict.fromkeys((2, 3, 4, 5), 0)), 0
    for number in range(1_000):
        reads += balance.elsewhere(f"log-{number}", reads, (), 0.0) is None
        counts = [reads, *balance.counts().values()]
        assert max(counts) <= math.ceil(1.25 * (number + 1) / 5)
    assert sum(counts) == 1_000


def test_what_was_sent_counts_until_the_answer_to_a_later_question() -> None:
    balance = balance_of({2: 0})
    address = HOSTS[1].address
    assert balance.elsewhere("a", 5, (), 0.0) == PLACES[2]
    balance.asked(address)
    assert balance.elsewhere("b", 5, (), 0.0) == PLACES[2]
    balance.heard(address, 1)  # it knows of the first, and need not know of the second
    assert balance.counts() == {address: 2}
    balance.lost(address)
    assert balance.counts() == {}
    assert balance.elsewhere("c", 5, (), 0.0) is None


def test_members_keep_their_counts_and_one_that_comes_again_has_none() -> None:
    balance = balance_of({2: 4, 3: 5})
    balance.use_members([HOSTS[1], HOSTS[3]])
    assert balance.counts() == {HOSTS[1].address: 4}
    balance.use_members(HOSTS[1:4])
    assert balance.counts() == {HOSTS[1].address: 4}
    balance.heard(HOSTS[4].address, 7)  # a late answer of one that is no member
    assert balance.counts() == {HOSTS[1].address: 4}


def test_all_who_ask_for_a_log_are_sent_to_the_same_proxy_and_it_is_one_log_there() -> None:
    balance = balance_of({2: 10, 3: 10, 4: 10})
    place = balance.elsewhere("log", 20, (), 0.0)
    before = balance.counts()
    assert [balance.elsewhere("log", 20, (), SENT_S * 0.9 * n) for n in range(10)] == [place] * 10
    assert balance.elsewhere("log", 0, (), SENT_S * 8.2) == place, "though there would be room here"
    assert balance.counts() == before


def test_a_log_is_sent_anew_where_its_proxy_has_no_room_and_may_not_read_it_any_more() -> None:
    balance = balance_of({2: 0, 3: 10, 4: 10})
    assert balance.elsewhere("log", 20, (), 0.0) == PLACES[2]
    balance.heard(HOSTS[1].address, 0)
    assert balance.elsewhere("log", 10, (), SENT_S + 1) == PLACES[2], "it has room"
    balance.heard(HOSTS[1].address, 40)
    assert balance.elsewhere("log", 10, (), 2 * SENT_S + 2) is None
    balance.lost(HOSTS[1].address)
    assert balance.elsewhere("log", 20, (), 2 * SENT_S + 2) in (PLACES[3], PLACES[4])


def test_a_client_is_sent_only_where_it_can_go() -> None:
    balance = balance_of({2: 0, 3: 0})
    assert balance.elsewhere("log", 20, (), 0.0, usable=lambda host: host is HOSTS[2]) == PLACES[3]
    assert balance.elsewhere("log", 20, (), 0.0, usable=lambda host: host is HOSTS[1]) == PLACES[2]
    assert balance.elsewhere("log", 20, (), 0.0, usable=lambda host: False) is None


def test_a_client_that_does_not_say_whom_it_asked_is_known_again_by_its_connection() -> None:
    balance = balance_of({2: 0})
    assert balance.elsewhere("log", 20, (), 0.0, client="10.1.1.1:5") == PLACES[2]
    assert balance.elsewhere("log", 20, (), 1.0, client="10.1.1.1:6") == PLACES[2], "another client"
    assert balance.elsewhere("other", 20, (), 1.0, client="10.1.1.1:5") == PLACES[2], "another log"
    assert balance.elsewhere("log", 20, (), 1.0, client="10.1.1.1:5") is None, "it does not follow"
    assert balance.elsewhere("other", 20, (), 1.0 + BACK_S, client="10.1.1.1:5") == PLACES[2], "a new reader"


def test_what_is_remembered_is_bounded() -> None:
    balance = ReadBalance(1.25, max_sent=10)
    balance.use_members(HOSTS[1:2])
    balance.heard(HOSTS[1].address, 0)
    for number in range(100):
        assert balance.elsewhere(f"log-{number}", 1_000, (), 0.0, client="c:1") == PLACES[2]
    assert len(balance._sent) == len(balance._clients) == 10


FORGETFUL = [ReadBalance(1.25, max_sent=0) for _ in HOSTS]
"""Five proxies that know each other."""
for _own, _proxy in zip(HOSTS, FORGETFUL, strict=True):
    _proxy.use_members(host for host in HOSTS if host is not _own)


@given(
    st.lists(st.lists(st.none() | st.integers(0, 30), min_size=5, max_size=5), min_size=5, max_size=5),
    st.lists(st.integers(0, 30), min_size=5, max_size=5),
    st.sampled_from(["log-1", "log-2", "log-3"]),
)
def test_no_client_goes_in_circles_whatever_each_proxy_knows(
    known: list[list[int | None]], reads: list[int], stream: str
) -> None:
    for proxy, counts in zip(FORGETFUL, known, strict=True):
        for host, count in zip(HOSTS, counts, strict=True):
            proxy.heard(host.address, count)
    at, tried = 0, []
    while (place := FORGETFUL[at].elsewhere(stream, reads[at], tried, 0.0)) is not None:
        assert place not in tried
        target = int(place.split(";")[1]) - 1
        assert known[at][target] is not None, "it never answered"
        tried.append(HOSTS[at].location)
        at = target
    assert len(tried) <= MOST_TRIED + 1
