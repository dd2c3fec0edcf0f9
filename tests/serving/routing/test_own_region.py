"""Routes of a client that knows its region: which hosts come first, which next, and when it comes back."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from dlspark.serving.routing.hosts import BLACKOUT_S, ProxyHost
from dlspark.serving.routing.other_routes import ServerOrder
from dlspark.serving.routing.own_region import OwnRegionFirst, OwnRegionReads
from dlspark.serving.routing.ring import BoundedRing, HostRing
from metadata.foundation.errors import CallerError

RING = partial(HostRing, points=50)
BOUNDED = partial(BoundedRing, points=50)


def hosts(*regions: str, each: int = 3, shards: bool = False) -> list[ProxyHost]:
    return [
        ProxyHost(f"{region or 'none'}{number}:1", 10 * place + number if shards else -1, region=region or None)
        for place, region in enumerate(regions)
        for number in range(each)
    ]


ALL = hosts("eu", "us", "asia")
STREAMS = [f"stream-{number}" for number in range(200)]


def test_all_clients_of_a_region_ask_the_same_of_its_hosts_and_spread_over_them() -> None:
    eu, again = OwnRegionFirst("eu", RING, ALL), OwnRegionFirst("eu", RING, reversed(ALL))
    alone = RING([host for host in ALL if host.region == "eu"])
    chosen = {stream: eu.pick(stream, 0.0) for stream in STREAMS}
    assert chosen == {stream: again.pick(stream, 0.0) for stream in STREAMS}
    assert chosen == {stream: alone.pick(stream, 0.0) for stream in STREAMS}, "as if there were no other region"
    assert set(chosen.values()) == {"eu0:1", "eu1:1", "eu2:1"}
    assert eu.addresses()[:3] == ("eu0:1", "eu1:1", "eu2:1")
    assert (eu.region_of("us1:1"), eu.region_of("x:1")) == ("us", None)


def test_other_regions_are_asked_in_turn_when_the_own_one_has_none_left() -> None:
    eu, us = OwnRegionFirst("eu", RING, ALL), OwnRegionFirst("us", RING, ALL)
    own = ["eu0:1", "eu1:1", "eu2:1"]
    next_region = Counter(eu.region_of(eu.pick(stream, 0.0, own) or "") for stream in STREAMS)
    assert set(next_region) == {"us", "asia"}
    assert min(next_region.values()) > len(STREAMS) / 4, "no single region gets all of what another one loses"
    # Whoever has only asia left asks the same host there.
    tried = ["eu0:1", "eu1:1", "eu2:1", "us0:1", "us1:1", "us2:1"]
    assert [eu.pick(one, 0.0, tried) for one in STREAMS] == [us.pick(one, 0.0, tried) for one in STREAMS]
    assert eu.pick("x", 0.0, [host.address for host in ALL]) is None
    assert eu.region_of(eu.pick("x", 0.0, (), ["eu", "us"]) or "") == "asia"
    listed = OwnRegionFirst("eu", RING, ALL, order=["us"])
    assert {listed.region_of(listed.pick(stream, 0.0, own) or "") for stream in STREAMS} == {"us"}


def test_a_failed_region_is_passed_over_for_a_while_and_asked_after_all_where_nothing_else_is_left() -> None:
    eu = OwnRegionFirst("eu", RING, hosts("eu", "us"))
    for address in ("eu0:1", "eu1:1", "eu2:1"):
        eu.failed(address, 10.0)
    assert eu.failed_lately("eu0:1", 10.0)
    assert eu.region_of(eu.pick("x", 11.0) or "") == "us"
    us = ["us0:1", "us1:1", "us2:1"]
    assert eu.region_of(eu.pick("x", 11.0, us) or "") == "eu", "better than none"
    eu.answered("eu1:1")
    assert eu.pick("x", 11.0) == "eu1:1"
    assert eu.region_of(eu.pick("x", 10.0 + BLACKOUT_S) or "") == "eu"
    eu.failed("eu1:1", 400.0)
    eu.update(us_only := [host for host in hosts("eu", "us") if host.region == "us"], 401.0)
    assert eu.region_of(eu.pick("x", 401.0) or "") == "us"
    eu.update([*us_only, ProxyHost("eu1:1", region="eu")], 402.0)
    assert eu.pick("x", 402.0) == "eu1:1", "it was announced anew"


def test_hosts_without_a_region_come_last_and_alone_they_are_one_ring() -> None:
    mixed = hosts("", "us")
    eu = OwnRegionFirst("eu", RING, mixed)
    assert {eu.region_of(eu.pick(stream, 0.0) or "") for stream in STREAMS} == {"us"}
    tried = ["us0:1", "us1:1", "us2:1"]
    assert (eu.pick("x", 0.0, tried) or "").startswith("none")
    old = hosts("", each=5)
    assert [OwnRegionFirst("eu", RING, old).pick(one, 0.0) for one in STREAMS] == [
        RING(old).pick(one, 0.0) for one in STREAMS
    ], "as with older proxies before"


def test_a_numbered_host_keeps_its_place_while_it_is_away_unless_its_number_comes_up_elsewhere() -> None:
    all_hosts = hosts("eu", "us", shards=True)
    eu = OwnRegionFirst("eu", RING, all_hosts)
    stream = next(one for one in STREAMS if eu.pick(one, 0.0) == "eu1:1")
    eu.update([host for host in all_hosts if host.address != "eu1:1"], 1.0)
    assert eu.pick(stream, 1.0) == "eu1:1"
    moved = ProxyHost("us9:1", 1, region="us")
    eu.update([*(host for host in all_hosts if host.address != "eu1:1"), moved], 2.0)
    assert eu.pick(stream, 2.0) in ("eu0:1", "eu2:1")
    assert eu.region_of("us9:1") == "us"


def test_a_host_that_says_its_region_for_the_first_time_leaves_those_that_say_none() -> None:
    before = hosts("", shards=True)
    eu = OwnRegionFirst("eu", RING, before)
    eu.update([ProxyHost(host.address, host.shard, region="eu") for host in before], 1.0)
    assert sorted(eu.addresses()) == sorted(host.address for host in before)
    assert {eu.region_of(address) for address in eu.addresses()} == {"eu"}


def test_an_address_that_is_none_changes_nothing() -> None:
    eu = OwnRegionFirst("eu", ServerOrder, ALL)
    with pytest.raises(CallerError):
        eu.update([ProxyHost("eu0:1", region="eu"), ProxyHost("what", region="us")], 1.0)
    assert set(eu.addresses()) == {host.address for host in ALL}


# ---- reads -----------------------------------------------------------------------------------------------------------


def test_a_log_that_is_read_elsewhere_is_better_read_at_home_as_soon_as_that_can_be_asked() -> None:
    eu = OwnRegionReads("eu", BOUNDED, hosts("eu", "us", each=1))
    assert eu.pick("x", 0.0) == "eu0:1"
    assert not eu.outranked("eu0:1", 0.0)
    assert eu.outranked("us0:1", 0.0)
    assert eu.outranked("stranger:1", 0.0)
    eu.failed("eu0:1", 1.0)
    assert not eu.outranked("us0:1", 1.0)
    assert eu.pick("x", 1.0) == "us0:1"
    assert eu.outranked("us0:1", 1.0 + BLACKOUT_S)
    eu.update(hosts("us", each=1), 2.0)
    assert not eu.outranked("us0:1", 2.0)
    assert not OwnRegionReads("eu", BOUNDED, hosts("", each=2)).outranked("none0:1", 0.0)


def test_a_log_counts_in_one_region() -> None:
    rings: list[BoundedRing] = []

    def made() -> BoundedRing:
        rings.append(BOUNDED())
        return rings[-1]

    eu = OwnRegionReads("eu", made, hosts("eu", "us", each=1))
    for _ in range(3):
        eu.pick("x", 0.0)
        assert sum(len(ring) for ring in rings) == 1
        eu.pick("x", 0.0, ["eu0:1"])
        assert sum(len(ring) for ring in rings) == 1
    eu.release("x")
    assert not any(len(ring) for ring in rings)
