"""Routes beside the ring."""

from __future__ import annotations

import pytest

from dlspark.serving.routing.hosts import ProxyHost, hash_int
from dlspark.serving.routing.other_routes import RegionChain, ServerOrder, SingleHost
from dlspark.serving.routing.ring import HostRing
from metadata.foundation.errors import CallerError

STREAMS = [f"stream-{number}" for number in range(60)]
HOSTS = [ProxyHost(f"127.0.0.1:{port}") for port in (8003, 8001, 8002)]
SORTED = ["127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"]


def test_the_order_of_addresses_and_the_hash_give_the_host() -> None:
    order = ServerOrder(HOSTS)
    assert order.addresses() == tuple(SORTED)
    assert order.pick("test-stream", 0.0) == SORTED[1880292752 % 3]
    assert [order.pick(stream, 0.0) for stream in STREAMS] == [SORTED[hash_int(stream) % 3] for stream in STREAMS]
    assert any(hash_int(stream) < 0 for stream in STREAMS)


def test_after_one_that_was_tried_the_hash_chooses_among_the_others() -> None:
    order = ServerOrder(HOSTS)
    for stream in STREAMS:
        first = order.pick(stream, 0.0)
        assert first is not None
        others = [address for address in SORTED if address != first]
        second = order.pick(stream, 0.0, {first})
        assert second == others[hash_int(stream) % 2]
        third = order.pick(stream, 0.0, {first, second})
        assert {first, second, third} == set(SORTED)
        assert order.pick(stream, 0.0, set(SORTED)) is None


def test_a_host_that_failed_leaves_the_list_until_its_blackout_is_over() -> None:
    order = ServerOrder(HOSTS, blackout_s=10.0)
    order.failed(SORTED[0], 0.0)
    left = SORTED[1:]
    assert [order.pick(stream, 1.0) for stream in STREAMS] == [left[hash_int(stream) % 2] for stream in STREAMS]
    assert order.pick("s", 1.0, set(left)) == SORTED[0], "the last one left"
    order.answered(SORTED[0])
    assert [order.pick(stream, 1.0) for stream in STREAMS] == [SORTED[hash_int(stream) % 3] for stream in STREAMS]


def test_a_single_host_is_asked_once_in_each_round() -> None:
    single = SingleHost("a:1")
    single.failed("a:1", 0.0)
    assert single.pick("s", 0.0) == "a:1"
    assert single.pick("s", 0.0, {"a:1"}) is None
    single.update([ProxyHost("b:1")], 0.0)
    assert single.addresses() == ("b:1",)
    with pytest.raises(CallerError, match="2 hosts"):
        single.update(HOSTS[:2], 0.0)


def test_regions_are_asked_in_turn() -> None:
    chain = RegionChain([("here", HostRing([ProxyHost("a:1")])), ("there", HostRing([ProxyHost("b:1")]))])
    assert chain.pick("s", 0.0) == "a:1"
    assert chain.pick("s", 0.0, {"a:1"}) == "b:1"
    assert chain.pick("s", 0.0, (), {"here"}) == "b:1"
    assert chain.pick("s", 0.0, (), {"here", "there"}) is None
    assert [chain.region_of(address) for address in ("a:1", "b:1", "c:1")] == ["here", "there", None]


def test_each_regions_members_are_its_own() -> None:
    chain = RegionChain([("here", HostRing()), ("there", HostRing())])
    chain.update([ProxyHost("a:1")], 0.0)
    chain.route_of("there").update([ProxyHost("b:1")], 0.0)
    assert chain.addresses() == ("a:1", "b:1")
    assert chain.region_of("a:1") == "here"
    with pytest.raises(CallerError, match="no region"):
        chain.route_of("elsewhere")
    with pytest.raises(CallerError, match="a name of its own"):
        RegionChain([("here", HostRing()), ("here", HostRing())])
