"""The leader computes loads, the others follow; neither ends for what cannot be read or written now."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping

import pytest
from helpers.virtual_time import virtual_time
from helpers.waiting import until

from dlspark.core.metrics.cells import Timing
from dlspark.serving.process.membership import ProxyEndpoint, ProxyMember, paged_member, proxy_member
from dlspark.serving.write_proxy.tier.placement import (
    REFRESH_S,
    EqualLoads,
    LeastLoadPlacement,
    LoadAppraiser,
    LoadTable,
    RingPlacement,
)
from dlspark.serving.write_proxy.tier.placement_keeper import MeasuredLoads, PlacementKeeper, stream_loads_in
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree
from storage_node.edge import SystemClock

A, B = (
    proxy_member(ProxyEndpoint("127.0.0.1", port), shard, stats=ProxyEndpoint("127.0.0.1", port + 1))
    for shard, port in enumerate((10, 20))
)
FOREIGN = ProxyMember(ProxyEndpoint("127.0.0.1", 30))


class Tier:
    """Proxies over one tree, and the streams of its namespace."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.streams = ["s1", "s2", "s3"]
        self.stores: list[MemoryStore] = []
        self.keepers: list[PlacementKeeper] = []
        self.timing = Timing()

    async def names(self) -> Iterable[str]:
        return self.streams

    def proxy(self, leads: bool, appraiser: LoadAppraiser | None = None) -> LeastLoadPlacement:
        self.stores.append(MemoryStore(self.tree))
        appraiser = appraiser or EqualLoads()
        policy = LeastLoadPlacement(RingPlacement(), appraiser.load_of)
        table = LoadTable(self.stores[-1], "/ns")
        keeper = PlacementKeeper(
            policy, table, self.names, appraiser, leads=leads, clock=SystemClock(), timing=self.timing
        )
        keeper.use_members((A, B, FOREIGN))
        keeper.start()
        self.keepers.append(keeper)
        return policy

    async def close(self) -> None:
        for keeper in self.keepers:
            await keeper.close()
            await keeper.close()
        for store in self.stores:
            await store.close()


def places(policy: LeastLoadPlacement, streams: Iterable[str]) -> dict[str, str | None]:
    return {stream: policy.place(stream) for stream in streams}


@virtual_time
async def test_followers_say_what_the_leader_computed() -> None:
    tier = Tier()
    follower = tier.proxy(leads=False)
    leader = tier.proxy(leads=True)
    await until(lambda: follower.loads)
    assert {one.server for one in follower.loads} == {str(A.endpoint), str(B.endpoint)}
    assert places(follower, tier.streams) == places(leader, tier.streams)
    tier.streams = ["s1", "s2", "s3", "s4", "s5"]
    await until(lambda: sum(len(one.streams) for one in follower.loads) == 5, every_s=REFRESH_S / 4)
    assert places(follower, tier.streams) == places(leader, tier.streams)
    assert tier.timing.done.count == 2
    await tier.close()


@virtual_time
async def test_a_proxy_that_comes_or_goes_gets_its_share_soon() -> None:
    tier = Tier()
    leader = tier.proxy(leads=True)
    await until(lambda: len(leader.loads) == 2)
    began = asyncio.get_running_loop().time()
    tier.keepers[0].use_members((B,))
    await until(lambda: len(leader.loads) == 1, every_s=0.5)
    assert asyncio.get_running_loop().time() - began < REFRESH_S / 10
    assert [len(one.streams) for one in leader.loads] == [3]
    await tier.close()


@virtual_time
async def test_a_leader_that_cannot_write_keeps_what_held_and_tries_again() -> None:
    tier = Tier()
    leader = tier.proxy(leads=True)
    await until(lambda: leader.loads)
    before = leader.loads
    failing = [True]
    tier.tree.inject = lambda _s, name, _path: Fault.REFUSE if failing and name == "multi" else None
    tier.streams = ["other"]
    await until(lambda: tier.timing.failed.count, every_s=REFRESH_S / 4)
    assert leader.loads == before
    failing.clear()
    await until(lambda: leader.loads != before, every_s=REFRESH_S / 4)
    await tier.close()


@virtual_time
async def test_loads_are_what_owners_say_and_what_they_said_last() -> None:
    said: dict[ProxyEndpoint, Mapping[str, int] | Exception] = {
        ProxyEndpoint("127.0.0.1", 11): {"s1": 1000, "s2": 10},
        ProxyEndpoint("127.0.0.1", 21): {"s3": 500, "s2": 900},
    }

    async def fetch(endpoint: ProxyEndpoint, tls: ssl.SSLContext | None) -> Mapping[str, int]:
        assert tls is None
        answer = said[endpoint]
        if isinstance(answer, Exception):
            raise answer
        return answer

    members: list[ProxyMember] = [A, B, FOREIGN]
    loads = MeasuredLoads(lambda: members, fetch)
    assert loads.load_of("s1") == 1
    await loads.refresh()
    assert [loads.load_of(one) for one in ("s1", "s2", "s3", "s4")] == [1000, 900, 500, 1]
    said[ProxyEndpoint("127.0.0.1", 21)] = ValueError("not a page")
    said[ProxyEndpoint("127.0.0.1", 11)] = OSError("refused")
    await loads.refresh()
    assert loads.load_of("s3") == 500
    members.remove(B)
    await loads.refresh()
    assert [loads.load_of(one) for one in ("s1", "s2", "s3")] == [1000, 10, 1]


@virtual_time
async def test_pages_under_tls_are_asked_under_tls_alone() -> None:
    secured, context = ProxyEndpoint("10.0.0.9", 9000), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asked: list[tuple[ProxyEndpoint, ssl.SSLContext | None]] = []

    async def fetch(endpoint: ProxyEndpoint, tls: ssl.SSLContext | None) -> Mapping[str, int]:
        asked.append((endpoint, tls))
        return {str(endpoint): 7}

    members = [A, paged_member(proxy_member(ProxyEndpoint("10.0.0.9", 8000), 3), secured)]
    shown: list[ssl.SSLContext | None] = [None]
    loads = MeasuredLoads(lambda: members, fetch, lambda: shown[0])
    await loads.refresh()
    assert asked == [(A.stats, None)], "who has nothing to show does not ask, and never in plain"
    shown[0] = context
    await loads.refresh()
    assert asked[1:] == [(A.stats, None), (secured, context)]
    assert loads.load_of("10.0.0.9:9000") == 7


def test_a_page_of_streams_is_read_and_what_is_none_is_refused() -> None:
    body = b'{"a": {"bytesPerSecond": 5}, "b": {"bytesPerSecond": -1}, "c": 3, "d": {"bytesPerSecond": true}}'
    assert stream_loads_in(body) == {"a": 5}
    assert stream_loads_in(b'{"a": {"bytesPerSecond": 99999999999}}') == {"a": 2**31 - 1}
    for bad in (b"[]", b"", b"<html>", b"\xff"):
        with pytest.raises(ValueError):
            stream_loads_in(bad)
