"""Members of the serving tier: their JSON, what is read among foreign znodes, watching, and announcing for good."""

from __future__ import annotations

import json

import pytest
from helpers.waiting import until
from helpers.worlds.metadata import Heard, MetadataServer

from dlspark.serving.process.membership import (
    MAX_MEMBER_BYTES,
    WRITE_PROXIES,
    Announcement,
    ProxyEndpoint,
    ProxyMember,
    proxy_member,
    read_members,
    watch_members,
)
from dlspark.serving.routing.hosts import NO_SHARD
from metadata.foundation.errors import CallerError, CorruptDataError, MetadataUnavailableError
from metadata.store import MetadataStore, join
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

FIRST = proxy_member(ProxyEndpoint("10.0.0.1", 8000), 0, grpc=ProxyEndpoint("10.0.0.1", 8001))
SECOND = proxy_member(ProxyEndpoint("10.0.0.2", 8000), 1, stats=ProxyEndpoint("10.0.0.2", 9000))
UPSTREAM = (
    b'{"serviceEndpoint":{"host":"10.0.0.5","port":4181},"additionalEndpoints":{"aurora":{"host":"10.0.0.5","port":9},'
    b'"stats":{"host":"10.0.0.5","port":9},"service":{"host":"10.0.0.5","port":4181},'
    b'"thrift":{"host":"10.0.0.5","port":4181}},"status":"ALIVE","shard":3}'
)


@pytest.fixture
async def store(metadata_server: MetadataServer) -> MetadataStore:
    return await metadata_server.open()


@pytest.fixture
async def other(metadata_server: MetadataServer) -> MetadataStore:
    return await metadata_server.open()


@pytest.fixture
def folder(metadata_server: MetadataServer) -> str:
    return f"{metadata_server.root}/{WRITE_PROXIES}"


def test_upstreams_json_is_read_and_written_as_it_is() -> None:
    member = ProxyMember.decode(UPSTREAM, "member_0000000001")
    assert member.location == "1;3;10.0.0.5:4181"
    assert (member.frames, member.grpc, member.stats) == (None, None, ProxyEndpoint("10.0.0.5", 9))
    assert member.encode() == UPSTREAM


def test_what_is_announced_has_upstreams_names_and_ours() -> None:
    value = json.loads(FIRST.encode())
    service = {"host": "10.0.0.1", "port": 8000}
    assert value["serviceEndpoint"] == service
    named = {"service": service, "thrift": service, "frames": service, "grpc": {"host": "10.0.0.1", "port": 8001}}
    assert value["additionalEndpoints"] == named
    assert (value["status"], value["shard"]) == ("ALIVE", 0)
    assert ProxyMember.decode(FIRST.encode()) == FIRST
    assert json.loads(SECOND.encode())["additionalEndpoints"]["aurora"] == {"host": "10.0.0.2", "port": 9000}


def test_a_member_without_names_status_and_shard_is_one() -> None:
    member = ProxyMember.decode(b'{"serviceEndpoint":{"host":"h","port":1}}')
    assert member == ProxyMember(ProxyEndpoint("h", 1))
    assert member.shard == NO_SHARD
    null = ProxyMember.decode(b'{"serviceEndpoint":{"host":"h","port":1},"additionalEndpoints":null,"shard":null}')
    assert null == member
    odd = b'{"serviceEndpoint":{"host":"h","port":1},"additionalEndpoints":{"grpc":{"port":7},"x":3},"shard":true}'
    assert ProxyMember.decode(odd) == member


def test_a_region_is_announced_where_it_is_known_and_other_programs_read_over_it() -> None:
    near = proxy_member(ProxyEndpoint("10.0.0.1", 8000), 0, region="eu")
    value = json.loads(near.encode())
    assert value.pop("region") == "eu"
    unsaid = proxy_member(ProxyEndpoint("10.0.0.1", 8000), 0)
    # What an older release of ours, and Java's, has is the rest; what they write says no region.
    assert value == json.loads(unsaid.encode())
    assert ProxyMember.decode(near.encode()) == near
    assert ProxyMember.decode(unsaid.encode()).region is None
    assert ProxyMember.decode(UPSTREAM).region is None
    assert near != unsaid, "a watch hears of a region that is said later"
    for odd in (b'""', b"3", b"null", b'["eu"]', b'"eu/rack"', b'"a b"'):
        member = ProxyMember.decode(b'{"serviceEndpoint":{"host":"h","port":1},"region":' + odd + b"}")
        assert member == ProxyMember(ProxyEndpoint("h", 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"serviceEndpoint":{"host":"h","port":0}}',
        b'{"serviceEndpoint":{"host":"h","port":70000}}',
        b'{"serviceEndpoint":{"host":"","port":1}}',
        b'{"serviceEndpoint":{"host":"h","port":true}}',
        b"[" * 40_000,
        b'{"serviceEndpoint":{"host":"h","port":1},"x":"' + b"y" * MAX_MEMBER_BYTES + b'"}',
    ],
)
def test_what_is_no_member_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        ProxyMember.decode(data)


def test_an_address_is_read_from_text() -> None:
    assert ProxyEndpoint.parse("[::1]:80") == ProxyEndpoint("::1", 80)
    for text in ("host:80", "[::1]:80"):
        assert str(ProxyEndpoint.parse(text)) == text
    for text in ("host", ":80", "host:", "host:0", "host:65536", "host:٣"):
        with pytest.raises(CallerError):
            ProxyEndpoint.parse(text)


async def test_foreign_and_broken_znodes_are_left_out(store: MetadataStore, folder: str) -> None:
    assert await read_members(store, folder) == ()
    await store.create(join(folder, "lock"), b"x", make_parents=True)
    for data in (b"\xff", FIRST.encode(), b'{"serviceEndpoint":{"host":"h","port":1},"status":"DEAD"}', UPSTREAM):
        await store.create(join(folder, "member_"), data, ephemeral=True, sequential=True)
    assert [one.shard for one in await read_members(store, folder)] == [0, 3]


async def test_members_are_watched_from_before_their_folder_is_there(
    store: MetadataStore, other: MetadataStore, folder: str
) -> None:
    heard = Heard()
    watch = await watch_members(other, folder, heard)
    assert watch.members == ()
    assert heard.items == []
    first, second = Announcement(store, folder, FIRST), Announcement(store, folder, SECOND)
    await first.begin()
    await until(lambda: watch.members == (FIRST,))
    await second.begin()
    await until(lambda: watch.members == (FIRST, SECOND))
    await first.withdraw()
    await until(lambda: watch.members == (SECOND,))
    assert heard.items[-1] == (SECOND,)
    await watch.close()
    count = len(heard.items)
    await second.withdraw()
    await watch.close()
    assert await read_members(other, folder) == ()
    assert len(heard.items) == count


async def test_a_watch_hears_first_of_those_that_are_there(
    store: MetadataStore, other: MetadataStore, folder: str
) -> None:
    await Announcement(store, folder, FIRST).begin()
    heard = Heard()
    watch = await watch_members(other, folder, heard)
    assert heard.items == [(FIRST,)]
    await watch.close()


async def test_a_change_of_a_members_data_is_heard(store: MetadataStore, other: MetadataStore, folder: str) -> None:
    await Announcement(store, folder, FIRST).begin()
    watch = await watch_members(other, folder)
    path = join(folder, watch.members[0].name)
    await store.put(path, b'{"serviceEndpoint":{"host":"h","port":1},"status":"STOPPING"}', -1)
    await until(lambda: watch.members == ())
    await store.put(path, SECOND.encode(), -1)
    await until(lambda: watch.members == (SECOND,))
    await watch.close()


async def test_a_lost_session_is_announced_again_and_watched_through(
    store: MetadataStore, other: MetadataStore, metadata_server: MetadataServer, folder: str
) -> None:
    announcement = Announcement(store, folder, FIRST)
    await announcement.begin()
    watch = await watch_members(other, folder)
    before = watch.members[0].name
    await metadata_server.expire(store)
    await until(lambda: watch.members == (FIRST,) and watch.members[0].name != before)
    await metadata_server.expire(other)
    second = Announcement(store, folder, SECOND)
    await second.begin()
    await until(lambda: watch.members == (FIRST, SECOND))
    await watch.close()
    await announcement.withdraw()
    await second.withdraw()


async def test_who_withdrew_stays_withdrawn(
    store: MetadataStore, other: MetadataStore, metadata_server: MetadataServer
) -> None:
    folder = f"{metadata_server.root}/{WRITE_PROXIES}"
    announcement = Announcement(store, folder, FIRST)
    await announcement.begin()
    await announcement.withdraw()
    await announcement.withdraw()
    await metadata_server.expire(store)
    marker = Announcement(other, folder, SECOND)
    await marker.begin()
    await until(lambda: store.state.value == "connected")
    assert await read_members(other, folder) == (SECOND,)


async def test_an_announcement_whose_answer_was_lost_is_one_member() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    faults = [Fault.LOSE_REPLY]
    tree.inject = lambda _s, name, path: faults.pop() if faults and name == "create" and "member_" in path else None
    announcement = Announcement(store, "/ns/.write_proxy", FIRST)
    await announcement.begin()
    assert not faults
    assert await read_members(store, "/ns/.write_proxy") == (FIRST,)
    await announcement.withdraw()
    assert await read_members(store, "/ns/.write_proxy") == ()
    await store.close()


async def test_where_nothing_answers_nothing_is_announced_later() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    announcement = Announcement(store, "/ns/.write_proxy", FIRST)
    await store.close()
    with pytest.raises(MetadataUnavailableError):
        await announcement.begin()
    with pytest.raises(MetadataUnavailableError):
        await watch_members(store, "/ns/.write_proxy")
