"""When a log follows its writers to another region: the decision alone, then real proxies in two regions."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from test_homes import Regions, regions

from dlspark.serving.client.client import AsyncClient
from dlspark.serving.protocol.operations import AcceptStreams, Refusal, WriteRecords
from dlspark.serving.write_proxy.settings import WriteProxySettings
from dlspark.serving.write_proxy.tier.following import FollowRules, RequestCounts, follow
from dlspark.serving.write_proxy.tier.writer_follower import MAX_COUNTED, WriterFollower
from metadata.foundation.errors import CallerError

RULES = FollowRules(percent=75, windows=3, least=10, stay_s=600)
ALL = ("eu", "us", "asia")


def of(*windows: dict[str | None, int]) -> list[RequestCounts]:
    return list(windows)


FROM_US: dict[str | None, int] = {"us": 90, "eu": 10}


def test_a_log_goes_where_nearly_all_of_its_writes_come_from_in_every_window() -> None:
    decided = follow("eu", of(*[FROM_US] * 3), 600, ALL, RULES)
    assert (decided.region, decided.reason) == ("us", "270 of its last 300 requests came from us")
    exactly: dict[str | None, int] = {"us": 75, "eu": 25}
    assert follow("eu", of(*[exactly] * 3), 600, ALL, RULES).region == "us"
    assert follow("eu", of({"eu": 99}, *[FROM_US] * 3), 600, ALL, RULES).region == "us", "older windows do not count"


@pytest.mark.parametrize(
    ("history", "owned_s", "takers", "why"),
    [
        (of(*[FROM_US] * 3), 599, ALL, "owned here for 599 s"),
        (of(*[FROM_US] * 2), 600, ALL, "2 of 3 windows"),
        (of({"us": 9}, FROM_US, FROM_US), 600, ALL, "9 requests"),
        (of({}, FROM_US, FROM_US), 600, ALL, "0 requests"),
        (of(FROM_US, {"us": 74, "eu": 26}, FROM_US), 600, ALL, "no region"),
        (of(FROM_US, {"us": 74, None: 26}, FROM_US), 600, ALL, "no region"),
        (of(*[{None: 100}] * 3), 600, ALL, "no region"),
        (of(FROM_US, {"asia": 100}, FROM_US), 600, ALL, "no region"),
        (of(*[{"eu": 90, "us": 10}] * 3), 600, ALL, "its writers are here"),
        (of(*[FROM_US] * 3), 600, ("eu",), "no write proxy is announced"),
    ],
)
def test_else_it_stays_and_says_why(
    history: list[RequestCounts], owned_s: float, takers: tuple[str, ...], why: str
) -> None:
    decided = follow("eu", history, owned_s, takers, RULES)
    assert decided.region is None
    assert why in decided.reason


@pytest.mark.parametrize("seed", range(20))
def test_whatever_writers_do_a_log_never_moves_more_often_than_it_must_stay(seed: int) -> None:
    chance = random.Random(seed)
    own, since, moves, history = "eu", 0, 0, []
    windows = 500
    shares = [1.0, 0.0, 0.9, 0.5]
    for now in range(windows):
        if chance.random() < 0.1:
            shares = [chance.random() for _ in range(4)]
        writes: dict[str | None, int] = {
            region: int(100 * share * chance.random())
            for region, share in zip(("eu", "us", "asia", None), shares, strict=True)
        }
        history = [*history, writes][-RULES.windows :]
        decided = follow(own, history, (now - since) * 60.0, ALL, RULES)
        if decided.region is not None:
            assert decided.region != own
            assert all(4 * one[decided.region] >= 3 * sum(one.values()) for one in history)
            assert (now - since) * 60 >= RULES.stay_s
            own, since, moves, history = decided.region, now, moves + 1, []
    assert moves <= windows * 60 / RULES.stay_s


def test_rules_are_the_settings_and_a_majority_is_more_than_half() -> None:
    assert WriteProxySettings().follow_rules() == FollowRules()
    assert not WriteProxySettings().follow_writers
    with pytest.raises(CallerError, match="server_follow_writers_percent"):
        WriteProxySettings.from_mapping({"server_follow_writers_percent": 50})


# ---- two regions in memory -------------------------------------------------------------------------------------------

FOLLOWING = {
    "server_follow_writers": True,
    "server_follow_writers_window_sec": 10,
    "server_follow_writers_windows": 3,
    "server_follow_writers_min_requests": 5,
    "server_follow_writers_stay_sec": 100,
}


class Writers:
    """Clients that write a log in turn, a record a second together."""

    def __init__(self, world: Regions, **clients: AsyncClient) -> None:
        self.world = world
        self.clients = clients
        self.shares: dict[str, float] = {}
        self.written: list[bytes] = []
        self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        owed = dict.fromkeys(self.clients, 0.0)
        while True:
            for region, client in self.clients.items():
                owed[region] += self.shares.get(region, 0.0)
                if owed[region] >= 1:
                    owed[region] -= 1
                    payload = b"%s-%d" % (region.encode(), len(self.written))
                    await client.write("x", payload)
                    self.written.append(payload)
            await asyncio.sleep(1)

    async def until(self, region: str) -> float:
        """Wait until the log is owned there, and return when."""
        await until(lambda: self._task.done() or self.world.region("x") == region, every_s=1)
        assert not self._task.done(), self._task.exception()
        return asyncio.get_running_loop().time()

    async def stop(self) -> None:
        self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            pass


@virtual_time
async def test_a_log_follows_its_writers_once_and_goes_back_with_them_and_not_for_less() -> None:
    async with regions(each=1, **FOLLOWING) as world:
        writers = Writers(world, eu=await world.client("eu"), us=await world.client("us"))
        writers.shares = {"eu": 1.0}
        await asyncio.sleep(150)
        assert world.region("x") == "eu"
        writers.shares = {"eu": 0.4, "us": 0.6}
        await asyncio.sleep(300)
        assert world.region("x") == "eu", "six of ten are no majority to move for"
        writers.shares = {"eu": 0.1, "us": 0.9}
        began = asyncio.get_running_loop().time()
        moved_at = await writers.until("us")
        assert moved_at - began <= 50
        writers.shares = {"eu": 1.0}
        assert await writers.until("eu") - moved_at >= 100, "it stays as long as it must"
        followers = [proxy._follower for some in world.of.values() for proxy in some]
        assert [one.moved for one in followers if one is not None] == [1, 1]
        await writers.stop()
        found = await world.read("x")
        assert found[: len(writers.written)] == writers.written, "every acknowledged record once, in order"
        assert len(found) <= len(writers.written) + 1


@virtual_time
async def test_a_log_that_was_moved_by_hand_stays_as_long_and_clients_of_no_region_hold_it() -> None:
    async with regions(each=1, **FOLLOWING) as world:
        near, nowhere = await world.client("eu"), await world.client("")
        writers = Writers(world, eu=near, nowhere=nowhere)
        writers.shares = {"eu": 0.7, "nowhere": 0.3}
        await asyncio.sleep(5)
        await world.move("x", "us")
        moved_at = asyncio.get_running_loop().time()
        await asyncio.sleep(200)
        assert world.region("x") == "us", "of three in ten nobody knows where they are"
        writers.shares = {"eu": 1.0}
        assert await writers.until("eu") - moved_at >= 100
        await writers.stop()


@virtual_time
async def test_where_the_other_region_does_not_take_it_it_stays_and_is_tried_again() -> None:
    async with regions(each=1, **FOLLOWING) as world:
        writers = Writers(world, us=await world.client("us"))
        (near,), (far,) = world.of["eu"], world.of["us"]
        await (await world.client("eu")).write("x", b"first")
        service = far._service
        assert service is not None
        await world.tier.ask(far, AcceptStreams(False))
        writers.shares = {"us": 1.0}
        follower = near._follower
        assert follower is not None
        await asyncio.sleep(300)
        assert (world.region("x"), follower.moved) == ("eu", 0)
        await world.tier.ask(far, AcceptStreams(True))
        await writers.until("us")
        await writers.stop()
        assert (await world.read("x"))[: len(writers.written) + 1] == [b"first", *writers.written]


@virtual_time
async def test_names_from_clients_are_counted_only_where_the_stream_is_served() -> None:
    async with regions(each=1, **FOLLOWING) as world:
        (near,), (far,) = world.of["eu"], world.of["us"]
        client = await world.client("us")
        await client.write("x", b"first")
        follower, owner = near._follower, far._follower
        assert follower is not None
        assert owner is not None
        for name in ("x", "no such/name", "x"):  # owned elsewhere, or never to be opened
            refused = await world.tier.ask(near, WriteRecords(name, (b"1",)))
            assert isinstance(refused, Refusal), name
        assert follower._counts == {}
        await client.write("x", b"second")
        assert list(owner._counts) == ["x"]


@virtual_time
async def test_how_many_names_are_counted_in_a_window_is_bounded() -> None:
    follower = WriterFollower(
        "eu", RULES, 60.0, members=tuple, owned=tuple, hand_over=lambda stream, target: asyncio.sleep(0)
    )
    for number in range(MAX_COUNTED + 10):
        follower.count(str(number), "us")
    follower.count("0", "us")
    assert len(follower._counts) == MAX_COUNTED
    assert follower._counts["0"] == {None: 2}
    await follower.look()
    assert follower._counts == {}


@virtual_time
async def test_a_proxy_that_does_not_know_its_region_does_not_follow() -> None:
    async with regions(each=1) as world:
        with pytest.raises(CallerError, match="does not know in which region"):
            await world.tier.add(server_follow_writers=True)
        assert all(proxy._follower is None for some in world.of.values() for proxy in some), "off by default"
