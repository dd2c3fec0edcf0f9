"""Placement: how streams are given out, what is written down, and that no proxy is named that does not run."""

from __future__ import annotations

import pytest
from helpers.worlds.metadata import Heard
from hypothesis import given
from hypothesis import strategies as st

from dlspark.serving.process.membership import ProxyEndpoint, ProxyMember, proxy_member
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.routing.own_region import OwnRegionFirst
from dlspark.serving.routing.ring import HostRing
from dlspark.serving.write_proxy.tier.placement import (
    MAX_LOAD_BYTES,
    MAX_PLACED,
    EqualLoads,
    LeastLoadPlacement,
    LoadTable,
    RingPlacement,
    ServerLoad,
    StreamLoad,
    given_out,
)
from metadata.foundation.errors import CorruptDataError
from metadata.store import MAX_REQUEST_BYTES
from metadata.zookeeper.memory import MemoryStore, MemoryTree

A, B, C = (proxy_member(ProxyEndpoint("127.0.0.1", port), shard) for shard, port in enumerate((1, 2, 3)))
UPSTREAM = (
    b'{"1":{"str":"10.0.0.5:4181"},"2":{"i64":4},"3":{"lst":["rec",2,{"1":{"str":"a"},"2":{"i32":3}},'
    b'{"1":{"str":"b"},"2":{"i32":1}}]}}'
)


def placement(*members: ProxyMember) -> LeastLoadPlacement:
    made = LeastLoadPlacement(RingPlacement(), EqualLoads().load_of)
    made.use_members(members)
    return made


def test_a_load_is_thrifts_json() -> None:
    load = ServerLoad("10.0.0.5:4181", (StreamLoad("b", 1), StreamLoad("a", 3)))
    assert load.encode() == UPSTREAM
    read = ServerLoad.decode(UPSTREAM)
    assert (read.server, read.load, set(read.streams)) == (load.server, 4, set(load.streams))
    assert ServerLoad.decode(b'{"1":{"str":"x"},"2":{"i64":0}}') == ServerLoad("x")
    assert ServerLoad.decode(ServerLoad('q"\\é').encode()) == ServerLoad('q"\\é')
    assert ServerLoad("host/10.0.0.5:4181").node == "host--10.0.0.5:4181"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"1":{"str":7}}',
        b'{"1":{"str":""}}',
        b'{"1":{"str":"x"},"3":{"lst":["rec",1]}}',
        b'{"1":{"str":"x"},"3":{"lst":["str",0]}}',
        b'{"1":{"str":"x"},"3":{"lst":[]}}',
        b'{"1":{"str":"x"},"3":{"lst":["rec",1,{"1":{"str":"a"},"2":{"i32":-1}}]}}',
        b'{"1":{"str":"x"},"3":{"lst":["rec",1,{"1":{"str":"a"}}]}}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_what_is_no_load_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        ServerLoad.decode(data)


def test_a_load_that_is_too_large_leaves_out_the_lightest(caplog: pytest.LogCaptureFixture) -> None:
    streams = tuple(StreamLoad(f"{number:05}-{'x' * 100}", number) for number in range(5000))
    data = ServerLoad("s", streams).encode()
    assert MAX_LOAD_BYTES - 400 < len(data) <= MAX_LOAD_BYTES
    kept = ServerLoad.decode(data).streams
    assert min(one.load for one in kept) == 5000 - len(kept)
    assert "lightest are not written" in caplog.text


@given(st.integers(1, 20), st.lists(st.integers(0, 100_000), max_size=200))
def test_loads_are_given_out_evenly(servers: int, loads: list[int]) -> None:
    streams = [StreamLoad(f"s{number}", load) for number, load in enumerate(loads)]
    given_loads = given_out([f"p{number}" for number in range(servers)], streams)
    assert sorted(one.stream for server in given_loads for one in server.streams) == sorted(s.stream for s in streams)
    sums = [server.load for server in given_loads]
    assert max(sums) - min(sums) <= max(loads, default=0)


@given(st.integers(1, 20), st.integers(0, 200))
def test_equal_loads_are_given_out_by_their_number(servers: int, count: int) -> None:
    for load in (0, 1):
        streams = [StreamLoad(f"s{number}", load) for number in range(count)]
        sizes = [len(one.streams) for one in given_out([f"p{number}" for number in range(servers)], streams)]
        assert set(sizes) <= {count // servers, count // servers + 1}
    assert given_out([], streams) == ()


def test_a_stream_goes_where_it_was_given_or_where_least_is() -> None:
    made = placement(A, B)
    ring = HostRing([ProxyHost(str(one.endpoint), one.shard) for one in (A, B)])
    for stream in map(str, range(50)):  # no loads yet
        assert (made.place(stream) or "").endswith(f";{ring.pick(stream, 0.0)}")
    made.use_loads([ServerLoad(str(A.endpoint), (StreamLoad("x", 5),)), ServerLoad(str(B.endpoint))])
    assert made.place("x") == A.location
    assert [made.place(f"new-{number}") for number in range(6)] == [B.location] * 5 + [A.location]
    assert made.place("new-0") == B.location
    assert made.difference == 5


def test_a_proxy_that_does_not_run_is_not_named() -> None:
    made = placement(A, B)
    made.use_loads([ServerLoad(str(one.endpoint), (StreamLoad(one.location, 1),)) for one in (A, B, C)])
    assert {made.place(C.location), made.place("other")} == {A.location, B.location}
    made.use_members((C,))
    assert {made.place(A.location), made.place(C.location), made.place("new")} == {C.location}
    made.use_members(())
    assert made.place("new") is None
    made.use_members((A,))
    made.use_loads([])
    assert made.place("new") == A.location


def test_a_proxy_that_came_since_the_loads_were_computed_has_least() -> None:
    made = placement(A)
    made.use_loads([ServerLoad(str(A.endpoint), (StreamLoad("x", 2),))])
    made.use_members((A, B))
    assert made.place("x") == A.location
    assert [made.place(f"new-{number}") for number in range(4)] == [B.location, B.location, A.location, B.location]


def test_how_many_places_are_remembered_is_bounded() -> None:
    made = placement(A)
    made.use_loads([ServerLoad(str(A.endpoint))])
    for number in range(MAX_PLACED + 10):
        made.place(str(number))
    assert len(made._placed) == MAX_PLACED


def of_region(region: str | None, port: int, shard: int = -1) -> ProxyMember:
    return proxy_member(ProxyEndpoint("127.0.0.1", port), shard, region=region)


@pytest.mark.parametrize("numbered", [False, True])
def test_a_proxy_that_knows_its_region_places_streams_there_as_its_clients_do(numbered: bool) -> None:
    eu = [of_region("eu", 10 + number, number if numbered else -1) for number in range(3)]
    us = [of_region("us", 20 + number, number if numbered else -1) for number in range(3)]
    unsaid = of_region(None, 30)
    made = placement(*eu, *us, unsaid)
    made.use_region("eu")
    streams = [f"s{number}" for number in range(200)]

    def check(*members: ProxyMember) -> set[str | None]:
        hosts = [ProxyHost(str(one.endpoint), one.shard, region=one.region) for one in members]
        clients = OwnRegionFirst("eu", HostRing, hosts)
        by_address = {str(one.endpoint): one.location for one in members}
        placed = [made.place(stream) for stream in streams]
        assert placed == [by_address[clients.pick(stream, 0.0) or ""] for stream in streams]
        return set(placed)

    def locations(*members: ProxyMember) -> set[str | None]:
        return {one.location for one in members}

    assert check(*eu, *us, unsaid) == locations(*eu)
    made.use_members((*eu[1:], *us, unsaid))  # the first one ends: its streams stay in the region
    assert check(*eu[1:], *us, unsaid) == locations(*eu[1:])
    made.use_members((*us, unsaid))  # nobody is left there: of the others no number pushes another out
    assert check(*us, unsaid) == locations(*us)
    made.use_members((unsaid,))
    assert check(unsaid) == locations(unsaid)
    made.use_members((*us, *eu))
    assert check(*us, *eu) == locations(*eu)


def test_loads_do_not_place_a_stream_in_another_region() -> None:
    near, nearer, far = of_region("eu", 1), of_region("eu", 2), of_region("us", 3)
    made = placement(near, nearer, far)
    made.use_region("eu")
    without = {stream: made.place(stream) for stream in map(str, range(50))}
    loads = (StreamLoad("a", 9),), (StreamLoad("b", 1),), tuple(StreamLoad(stream, 1) for stream in without)
    made.use_loads(ServerLoad(str(one.endpoint), some) for one, some in zip((near, nearer, far), loads, strict=True))
    assert (made.place("a"), made.place("b")) == (near.location, nearer.location)
    assert {stream: made.place(stream) for stream in without} == without
    made.use_members((far,))
    assert {made.place("a"), made.place("0")} == {far.location}


async def test_loads_are_written_down_read_and_watched() -> None:
    tree = MemoryTree()
    store, other = MemoryStore(tree), MemoryStore(tree)
    table, elsewhere = LoadTable(store, "/ns"), LoadTable(other, "/ns")
    heard = Heard()
    assert await elsewhere.read(heard) == ()
    assert await elsewhere.written_ms() is None
    await table.write(given_out(["p:1", "q/1:2"], [StreamLoad("a", 1)]), 1_700_000_000_123)
    await heard.wait(1)
    assert await elsewhere.written_ms() == 1_700_000_000_123
    data, _ = await other.get("/ns/.server-load")
    assert data == (1_700_000_000_123).to_bytes(8, "big")
    assert (await other.children("/ns/.server-load"))[0] == ["p:1", "q--1:2"]
    assert await elsewhere.read(heard) == (ServerLoad("p:1", (StreamLoad("a", 1),)), ServerLoad("q/1:2"))
    await table.write([ServerLoad("r:1")], 5)
    await heard.wait(2)
    await other.create("/ns/.server-load/foreign", b"\x00")
    assert await elsewhere.read() == (ServerLoad("r:1"),)
    await table.write([], -1)
    assert await elsewhere.read() == ()
    for one in (store, other):
        await one.close()


async def test_loads_that_take_more_than_a_request_are_written_in_several() -> None:
    store = MemoryStore(MemoryTree())
    table = LoadTable(store, "/ns")
    streams = [StreamLoad(f"{number}-{'x' * 100}", 1) for number in range(MAX_REQUEST_BYTES // 50)]
    loads = given_out([f"p:{number}" for number in range(6)], streams)
    await table.write(loads, 7)
    assert await table.written_ms() == 7
    assert len(await table.read()) == 6
    await store.close()
