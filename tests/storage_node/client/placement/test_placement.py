"""The two policies over a registry: who is chosen, avoided and refused, and what a client's ledgers show of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.foundation.errors import BadVersionError, CallerError, DistributedLogError, MetadataUnavailableError
from storage_node.client.client import LedgerClient
from storage_node.client.health import BookieHealth, Quarantine
from storage_node.client.placement.arranging import Adherence, spans
from storage_node.client.placement.candidates import Candidates, FreeSpace, Weighing
from storage_node.client.placement.policies import Placement, RackAwarePlacement, UniformPlacement
from storage_node.client.placement.racks import DEFAULT_RACK, RackMap, StaticResolver
from storage_node.errors import (
    BadRequestError,
    BookieIOError,
    ConnectionClosedError,
    LedgerFencedError,
    NoSuchEntryError,
    NotEnoughBookiesError,
    RackResolutionError,
    ReadOnlyError,
    RequestTimeoutError,
)
from storage_node.protocol.writing_model import PickReplacements
from storage_node.settings.placement import PlacementSettings

ENFORCED = PlacementSettings(
    repp_dns_resolver_class="racks", min_num_racks_per_write_quorum=2, enforce_min_num_racks_per_write_quorum=True
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class Registry(BookieRegistry):
    """A list of bookies and the cluster's switch, without a store."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self.hosts = dict(hosts)
        self.disabled: bool | DistributedLogError = False

    async def writable(self) -> list[BookieAddress]:
        return [BookieAddress(bookie, host, 3181) for bookie, host in self.hosts.items()]

    async def health_check_disabled(self) -> bool:
        if isinstance(self.disabled, DistributedLogError):
            raise self.disabled
        return self.disabled


class Resolver(StaticResolver):
    """A table that counts how often each host was asked for, and may fail."""

    def __init__(self, table: Mapping[str, str], own: str | None = None) -> None:
        super().__init__(table, own)
        self.table = table
        self.asked: Counter[str] = Counter()
        self.broken = False

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        self.asked.update(hosts)
        if self.broken:
            raise RackResolutionError("the script is gone")
        return await super().locations(hosts)


class World:
    """Bookies `a0:1`, `a1:1`, `b0:1`, ... in racks /a, /b, ...; hosts are named like them."""

    def __init__(
        self,
        racks: Mapping[str, int],
        conf: PlacementSettings | None = None,
        *,
        own: str | None = None,
        seed: int = 1,
        free: Mapping[str, int] | None = None,
    ) -> None:
        conf = conf if conf is not None else PlacementSettings()
        self.clock = Clock()
        names = [f"{rack}{i}" for rack, count in racks.items() for i in range(count)]
        self.rack = {f"{name}:1": f"/{name[0]}" for name in names}
        self.registry = Registry({f"{name}:1": name for name in names})
        self.resolver = Resolver({name: f"/{name[0]}" for name in names if name[0] != "x"}, own)
        self.health = BookieHealth(self.clock, 60_000)
        self.quarantine = Quarantine(conf, self.clock, random.Random(seed))
        weighing = None
        if free is not None:
            ask = lambda bookie, told: asyncio.get_running_loop().call_soon(told, free[bookie])  # noqa: E731
            weighing = Weighing(FreeSpace(ask, conf, self.clock), conf.bookie_max_multiple_for_weight_based_placement)
        candidates = Candidates(self.registry, self.health, self.quarantine, random.Random(seed), weighing)
        times = {"memory_ms": 60_000, "replacement_pause_ms": 5_000, "replacement_timeout_ms": 2_000}
        self.racks = RackMap(self.resolver, self.clock)
        self.uniform: Placement = UniformPlacement(candidates, **times)
        self.aware: Placement = RackAwarePlacement(candidates, self.racks, conf, **times)

    def in_racks(self, ensemble: Sequence[str]) -> list[str]:
        return [self.rack[bookie] for bookie in ensemble]


def replacing(
    ensemble: Sequence[str], *indices: int, write_quorum: int = 2, last_resort: bool = False
) -> PickReplacements:
    staying = frozenset(bookie for i, bookie in enumerate(ensemble) if i not in indices)
    failed = frozenset(ensemble[i] for i in indices)
    return PickReplacements(tuple(ensemble), indices, staying | failed, last_resort, write_quorum)


# ------------------------------------------------------------------------------------ new ensembles


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 2**32),
    st.data(),
)
@settings(max_examples=80, deadline=None)
def test_ensembles_are_distinct_registered_in_enough_racks_and_decided_by_the_seed(
    counts: list[int], size: int, write_quorum: int, seed: int, data: st.DataObject
) -> None:
    size, racks = min(size, sum(counts)), dict(zip("abcd", counts, strict=False))
    write_quorum = min(size, write_quorum)

    async def draw() -> tuple[tuple[str, ...], tuple[str, ...], Mapping[int, str], World]:
        world = World(racks, seed=seed)
        found = await world.aware.new_ensemble(size, write_quorum, 1)
        again = await World(racks, seed=seed).aware.new_ensemble(size, write_quorum, 1)
        index = data.draw(st.integers(0, size - 1))
        picked = await world.aware.replacements(replacing(found, index, write_quorum=write_quorum))
        return found, again, picked, world

    found, again, picked, world = asyncio.run(draw())
    assert found == again
    assert len(set(found)) == size
    assert set(found) <= set(world.registry.hosts)
    wanted = min(write_quorum, 2)
    if len(racks) >= max(wanted, 3) or (len(racks) == 2 and size == 2):
        rare = max(counts) * 2 > sum(counts)  # one rack with most of the bookies may leave no arrangement
        assert rare or spans(world.in_racks(found), write_quorum, wanted)
    assert set(picked.values()).isdisjoint(found)
    assert bool(picked) == (sum(counts) > size)


async def test_with_one_rack_bookies_are_drawn_evenly() -> None:
    for policy in ("uniform", "aware"):
        world = World({"a": 6})
        seen: Counter[str] = Counter()
        for _ in range(1500):
            seen.update(await getattr(world, policy).new_ensemble(3, 3, 2))
        assert all(abs(count - 750) < 100 for count in seen.values()), seen


async def test_the_client_s_own_rack_comes_first_unless_it_is_not_known() -> None:
    world = World({"a": 2, "b": 2, "c": 2}, own="/b")
    firsts = {world.rack[(await world.aware.new_ensemble(3, 3, 2))[0]] for _ in range(20)}
    assert firsts == {"/b"}
    world = World({"a": 2, "b": 2, "c": 2}, own=DEFAULT_RACK)
    firsts = {world.rack[(await world.aware.new_ensemble(3, 3, 2))[0]] for _ in range(50)}
    assert firsts == {"/a", "/b", "/c"}


async def test_too_few_bookies_are_an_error_that_says_how_many_there_are() -> None:
    world = World({"a": 1, "b": 1})
    for placement in (world.uniform, world.aware):
        with pytest.raises(NotEnoughBookiesError, match=r"needs 3 .* and 2 are registered"):
            await placement.new_ensemble(3, 2, 2)


async def test_enforcement_refuses_what_cannot_keep_the_rule_and_bookies_of_unknown_rack() -> None:
    one_rack = World({"a": 4}, ENFORCED)
    with pytest.raises(NotEnoughBookiesError, match=r"4 of them in 1 known racks.*into 2 racks"):
        await one_rack.aware.new_ensemble(3, 3, 2)
    assert len(await one_rack.aware.new_ensemble(3, 1, 1)) == 3, "one copy needs one rack"

    odd_circle = World({"a": 3, "b": 3}, ENFORCED)
    with pytest.raises(NotEnoughBookiesError):
        await odd_circle.aware.new_ensemble(3, 2, 2)
    assert spans(odd_circle.in_racks(await odd_circle.aware.new_ensemble(4, 2, 2)), 2, 2)

    unknown = World({"a": 1, "b": 1, "x": 5}, ENFORCED)
    assert set(unknown.in_racks(await unknown.aware.new_ensemble(2, 2, 2))) == {"/a", "/b"}
    unknown.resolver.broken = True
    unknown.racks.forget()
    unknown.registry.hosts["c0:1"] = "c0"
    with pytest.raises(NotEnoughBookiesError) as caught:
        await unknown.aware.new_ensemble(3, 3, 2)
    assert isinstance(caught.value.__cause__, RackResolutionError)


async def test_without_enforcement_a_failing_resolver_is_one_rack_for_all_and_asked_again_later() -> None:
    world = World({"a": 2, "b": 2})
    world.resolver.broken = True
    assert len(set(await world.aware.new_ensemble(3, 3, 2))) == 3
    asked = world.resolver.asked.total()
    world.resolver.broken = False
    await world.aware.new_ensemble(2, 2, 2)
    assert world.resolver.asked.total() == asked, "not at each ensemble"
    world.clock.now += 61
    assert set(world.in_racks(await world.aware.new_ensemble(2, 2, 2))) == {"/a", "/b"}


# ------------------------------------------------------------------------------------ the map of racks


async def test_a_bookie_is_looked_up_once_and_again_when_it_comes_back_or_moves() -> None:
    world = World({"a": 1, "b": 1})
    for _ in range(3):
        await world.aware.new_ensemble(2, 2, 2)
    assert world.resolver.asked == {"a0": 1, "b0": 1}
    world.registry.hosts["b0:1"] = "a0"
    await world.aware.new_ensemble(2, 2, 2)
    assert world.racks.rack_of("b0:1") == "/a"
    del world.registry.hosts["b0:1"]
    await world.aware.new_ensemble(1, 1, 1)
    assert world.racks.rack_of("b0:1") == "/a", "where it was is remembered: its replacement should be near"
    world.registry.hosts["b0:1"] = "b0"
    await world.aware.new_ensemble(2, 2, 2)
    assert world.racks.rack_of("b0:1") == "/b"


async def test_locations_have_one_or_two_parts_and_anything_else_counts_as_not_known() -> None:
    world = World({"a": 4})
    world.resolver.table.update({"a0": "/region/rack/", "a1": "rack", "a2": "/a/b/c", "a3": "/r"})  # type: ignore[attr-defined]
    await world.aware.new_ensemble(1, 1, 1)
    places = [world.racks.rack_of(f"a{i}:1") for i in range(4)]
    assert places == ["/region/rack", DEFAULT_RACK, DEFAULT_RACK, "/r"]


async def test_two_racks_of_which_none_may_be_lost_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    goal = replace(ENFORCED, enforce_min_num_fault_domains_for_write=True)  # as survive=rack has it
    world = World({"a": 2, "b": 2, "c": 1}, goal)
    await world.aware.new_ensemble(3, 3, 2)
    assert not caplog.records
    gone = world.registry.hosts.pop("c0:1")
    for _ in range(2):
        await world.aware.new_ensemble(3, 3, 2)
    (said,) = caplog.records
    assert said.getMessage() == (
        "writable storage nodes are in /a and /b alone, and entries count only when nodes of 2 racks have them: when "
        "one of these racks goes, writing stops. To survive that, start storage nodes in another rack"
    )
    world.registry.hosts["c0:1"] = gone
    await world.aware.new_ensemble(3, 3, 2)
    del world.registry.hosts["c0:1"]
    await world.aware.new_ensemble(3, 3, 2)
    assert len(caplog.records) == 2, "it is news again"


# ------------------------------------------------------------------------------------ replacements


async def test_a_failed_bookie_is_replaced_within_its_rack_else_outside_the_others_else_anywhere() -> None:
    world = World({"a": 2, "b": 2, "c": 1})
    assert await world.aware.replacements(replacing(("a0:1", "b0:1"), 0)) == {0: "a1:1"}
    del world.registry.hosts["a1:1"]
    assert await world.aware.replacements(replacing(("a0:1", "b0:1"), 0)) == {0: "c0:1"}
    del world.registry.hosts["c0:1"]
    assert await world.aware.replacements(replacing(("a0:1", "b0:1"), 0)) == {0: "b1:1"}
    enforced = World({"a": 2, "b": 2}, ENFORCED)
    del enforced.registry.hosts["a1:1"]
    assert await enforced.aware.replacements(replacing(("a0:1", "b0:1"), 0)) == {}


async def test_under_enforcement_a_rack_may_be_lost_as_long_as_every_write_set_keeps_its_racks() -> None:
    world = World({"a": 1, "b": 2, "c": 1}, ENFORCED)
    ensemble = ("b0:1", "c0:1", "a0:1")
    del world.registry.hosts["a0:1"]
    assert await world.aware.replacements(replacing(ensemble, 2, write_quorum=3)) == {2: "b1:1"}
    assert await world.aware.replacements(replacing(ensemble, 2, write_quorum=2)) == {}


async def test_several_replacements_at_once_are_distinct_and_see_each_other() -> None:
    world = World({"a": 1, "b": 1, "c": 2, "d": 2})
    for bookie in ("a0:1", "b0:1"):
        del world.registry.hosts[bookie]
    picked = await world.aware.replacements(replacing(("a0:1", "b0:1", "c0:1"), 0, 1))
    assert sorted(picked) == [0, 1]
    assert set(picked.values()) in ({"d0:1", "c1:1"}, {"d1:1", "c1:1"}, {"d0:1", "d1:1"})
    assert world.rack[picked[0]] == "/d", "the first comes from the one rack that is free"


async def test_a_seat_s_own_bookie_that_is_back_takes_it_again() -> None:
    world = World({"a": 2, "b": 2})
    wanted = PickReplacements(("a0:1", "b0:1"), (0,), frozenset({"b0:1"}), False, 2)
    for placement in (world.uniform, world.aware):
        assert await placement.replacements(wanted) == {0: "a0:1"}


async def test_who_failed_a_moment_ago_replaces_nobody_unless_the_writer_would_fail_without() -> None:
    for policy in ("uniform", "aware"):
        world = World({"a": 2, "b": 1})
        world.health.failed("a1:1")
        wanted = replacing(("a0:1", "b0:1"), 0)
        placement = getattr(world, policy)
        assert await placement.replacements(wanted) == {}
        assert await placement.replacements(replace(wanted, last_resort=True)) == {0: "a1:1"}
        world.clock.now += 6
        assert await placement.replacements(wanted) == {0: "a1:1"}


async def test_who_failed_lately_is_taken_last_but_before_the_rule_is_given_up() -> None:
    world = World({"a": 2, "b": 2})
    world.health.failed("b0:1")
    for _ in range(20):
        assert "b0:1" not in await world.aware.new_ensemble(2, 2, 2)
    world.health.failed("b1:1")
    for _ in range(20):
        assert set(world.in_racks(await world.aware.new_ensemble(2, 2, 2))) == {"/a", "/b"}
        assert "b1:1" not in await world.uniform.new_ensemble(2, 2, 2)


async def test_a_metadata_store_that_does_not_answer_holds_up_no_ensemble_change() -> None:
    world = World({"a": 2})

    async def never() -> list[BookieAddress]:
        await asyncio.Event().wait()
        return []

    world.registry.writable = never  # type: ignore[method-assign]
    times = {"memory_ms": 60_000, "replacement_pause_ms": 5_000, "replacement_timeout_ms": 20}
    candidates = Candidates(world.registry, world.health, world.quarantine, random.Random(1))
    placement = UniformPlacement(candidates, **times)
    with pytest.raises(RequestTimeoutError, match="20 ms"):
        await placement.replacements(replacing(("a0:1",), 0))


# ------------------------------------------------------------------------------------ adherence and fault domains


async def test_an_ensemble_is_judged_by_its_racks() -> None:
    world = World({"a": 3, "b": 2, "x": 1})
    assert await world.aware.judge(("a0:1", "b0:1"), 2, 2) is Adherence.MEETS_STRICT
    assert await world.aware.judge(("a0:1", "a1:1"), 2, 2) is Adherence.FAIL
    assert await world.aware.judge(("a0:1", "x0:1"), 2, 2) is Adherence.MEETS_SOFT
    assert await world.aware.judge(("a0:1", "gone:1"), 2, 2) is Adherence.MEETS_SOFT
    assert await world.uniform.judge(("a0:1", "a1:1"), 2, 2) is Adherence.MEETS_STRICT
    enforced = World({"a": 1, "x": 1}, ENFORCED)
    assert await enforced.aware.judge(("a0:1", "x0:1"), 2, 2) is Adherence.FAIL


async def test_where_a_bookie_is_tells_its_registration_and_not_its_id() -> None:
    world = World({"a": 1, "b": 1})
    world.registry.hosts = {"id-one:1": "a0", "id-two:1": "b0"}
    assert await world.aware.judge(("id-one:1", "id-two:1"), 2, 2) is Adherence.MEETS_STRICT
    assert set(world.resolver.asked) == {"a0", "b0"}


async def test_acknowledgements_span_as_many_racks_as_a_write_quorum_must() -> None:
    world = World({"a": 3, "b": 2})
    await world.aware.new_ensemble(3, 3, 2)
    assert not world.aware.spans_fault_domains(("a0:1", "a1:1"), 3)
    assert world.aware.spans_fault_domains(("a0:1", "b1:1"), 3)
    assert world.aware.spans_fault_domains(("a0:1",), 1)
    assert world.uniform.spans_fault_domains(("a0:1",), 3)


# ------------------------------------------------------------------------------------ quarantine

CHECKED = PlacementSettings(bookie_health_check_enabled=True, bookie_error_threshold_per_interval=10)


async def failures(world: World, bookie: str, count: int, error: DistributedLogError | None = None) -> None:
    for _ in range(count):
        world.quarantine.failed(bookie, error or BookieIOError("disk", node=bookie))


async def test_a_bookie_that_fails_often_is_avoided_but_not_forbidden_and_released_in_time() -> None:
    world = World({"a": 4}, CHECKED)
    await failures(world, "a0:1", 10)
    await failures(world, "a1:1", 9)
    world.clock.now += 60
    for placement in (world.aware, world.uniform):
        seen = {bookie for _ in range(20) for bookie in await placement.new_ensemble(3, 3, 2)}
        assert seen == {"a1:1", "a2:1", "a3:1"}
        assert "a0:1" in await placement.new_ensemble(4, 3, 2), "there is nobody else"
        assert await placement.replacements(replacing(("a1:1", "a2:1", "a3:1"), 0)) == {0: "a0:1"}
    world.clock.now += 1800
    seen = {bookie for _ in range(20) for bookie in await world.aware.new_ensemble(3, 3, 2)}
    assert "a0:1" in seen


async def test_failures_are_counted_within_one_interval() -> None:
    world = World({"a": 4}, CHECKED)
    for _ in range(4):
        await failures(world, "a0:1", 9)
        world.clock.now += 60
    assert await world.quarantine.avoided(world.registry.health_check_disabled) == frozenset()


@pytest.mark.parametrize(
    "error",
    [NoSuchEntryError("x"), LedgerFencedError("x"), ReadOnlyError("x"), ConnectionClosedError("x")],
    ids=lambda error: type(error).__name__,
)
async def test_refusals_of_a_healthy_bookie_and_lost_connections_do_not_count(error: DistributedLogError) -> None:
    world = World({"a": 4}, CHECKED)
    await failures(world, "a0:1", 50, error)
    world.clock.now += 60
    assert await world.quarantine.avoided(world.registry.health_check_disabled) == frozenset()


async def test_lost_connections_count_where_the_settings_say_so() -> None:
    world = World({"a": 4}, replace(CHECKED, bookie_connection_error_quarantine_enabled=True))
    await failures(world, "a0:1", 10, ConnectionClosedError("gone"))
    await failures(world, "a1:1", 10, BadRequestError("what"))
    world.clock.now += 60
    assert await world.quarantine.avoided(world.registry.health_check_disabled) == {"a0:1", "a1:1"}


async def test_the_cluster_s_switch_releases_everybody() -> None:
    world = World({"a": 4}, CHECKED)
    await failures(world, "a0:1", 10)
    world.clock.now += 60
    world.registry.disabled = MetadataUnavailableError("away")
    assert await world.quarantine.avoided(world.registry.health_check_disabled) == frozenset(), "not judged blindly"
    world.registry.disabled = False
    assert await world.quarantine.avoided(world.registry.health_check_disabled) == {"a0:1"}
    await failures(world, "a1:1", 10)
    world.clock.now += 60
    world.registry.disabled = True
    assert await world.quarantine.avoided(world.registry.health_check_disabled) == frozenset()


async def test_the_ratio_spares_some_and_off_means_nothing_is_counted() -> None:
    world = World({"a": 40}, replace(CHECKED, bookie_quarantine_ratio=0.5))
    for bookie in world.registry.hosts:
        await failures(world, bookie, 10)
    world.clock.now += 60
    assert 8 < len(await world.quarantine.avoided(world.registry.health_check_disabled)) < 32
    off = World({"a": 2})
    await failures(off, "a0:1", 1000)
    off.clock.now += 60
    assert await off.quarantine.avoided(off.registry.health_check_disabled) == frozenset()


# ------------------------------------------------------------------------------------ free space

WEIGHED = PlacementSettings(disk_weight_based_placement_enabled=True)


@pytest.mark.parametrize("policy", ["uniform", "aware"])
async def test_bookies_with_more_room_get_more_up_to_three_times_the_median(policy: str) -> None:
    free = {"a0:1": 10, "a1:1": 20, "a2:1": 30, "a3:1": 1_000_000, "a4:1": 20}
    world = World({"a": 5}, WEIGHED, free=free)
    rounds, seen = 4000, Counter[str]()
    for _ in range(rounds):
        seen.update(await getattr(world, policy).new_ensemble(1, 1, 1))
    for bookie, weight in {"a0:1": 10, "a1:1": 20, "a2:1": 30, "a3:1": 60, "a4:1": 20}.items():
        expected = weight / 140
        assert abs(seen[bookie] / rounds - expected) < 4 * (expected * (1 - expected) / rounds) ** 0.5


async def test_free_space_is_asked_anew_at_its_interval_and_after_a_failure_at_the_retry_interval() -> None:
    clock, asked = Clock(), Counter[str]()
    answers: dict[str, int | None] = {"a": 5, "b": None}

    def ask(bookie: str, told: object) -> None:
        asked[bookie] += 1
        asyncio.get_running_loop().call_soon(told, answers[bookie])  # type: ignore[arg-type]

    free = FreeSpace(ask, replace(WEIGHED, get_bookie_info_interval_s=300, get_bookie_info_retry_interval_s=60), clock)
    assert await free.of(["a", "b"]) == {"a": 5, "b": 0}
    assert await free.of(["a", "b"]) == {"a": 5, "b": 0}
    assert asked == {"a": 1, "b": 1}
    clock.now += 60
    answers["b"] = 7
    await free.of(["a", "b"])
    await asyncio.sleep(0)
    assert (await free.of(["a", "b"]), asked) == ({"a": 5, "b": 7}, {"a": 1, "b": 2})
    clock.now += 240
    answers["a"] = None
    await free.of(["a", "b"])
    await asyncio.sleep(0)
    assert (await free.of(["a", "b"]))["a"] == 5, "what was known stays until it is told anew"
    assert asked == {"a": 2, "b": 2}
    assert await free.of(["b"]) == {"b": 7}
    assert (await free.of(["a", "b"]))["a"] == 0, "one that was away starts again"


# ------------------------------------------------------------------------------------ settings


def test_policies_and_resolvers_are_known_by_upstream_s_names_and_short_ones() -> None:
    upstream = "org.apache.bookkeeper.client."
    for name in ("rackaware", "RackawareEnsemblePlacementPolicy", f"{upstream}RackawareEnsemblePlacementPolicy"):
        assert PlacementSettings(ensemble_placement_policy=name).policy == "rackaware"
    for name in ("uniform", "default", f"{upstream}DefaultEnsemblePlacementPolicy"):
        assert PlacementSettings(ensemble_placement_policy=name).policy == "uniform"
    assert PlacementSettings(repp_dns_resolver_class="org.apache.distributedlog.net.DNSResolverForRows").resolver == (
        "rows"
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ensemble_placement_policy": "LocalBookieEnsemblePlacementPolicy"}, "not known here"),
        ({"ensemble_placement_policy": "ZoneawareEnsemblePlacementPolicy"}, "regions are your zones"),
        ({"repp_dns_resolver_class": "magic"}, "not known here.*racks"),
        ({"network_topology_script_file_name": "/x", "repp_dns_resolver_class": "racks"}, "come from racks"),
        ({"dns_resolver_overrides": "a:b"}, "come from a script"),
        ({"enforce_min_num_racks_per_write_quorum": True}, "no rack is known"),
        ({"enforce_min_num_fault_domains_for_write": True}, "never acknowledged"),
        ({"min_num_racks_per_write_quorum": 0}, "minNumRacksPerWriteQuorum=0 is outside 1"),
        ({"bookie_quarantine_ratio": 1.5}, "bookieQuarantineRatio=1.5 is outside 0"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(CallerError, match=message):
        PlacementSettings(**wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ through the client


@virtual_time
async def test_a_client_s_ledgers_span_racks_before_and_after_the_loss_of_a_bookie() -> None:
    async with ModelCluster(6) as cluster:
        racks = {name: f"/rack{index % 3}" for index, name in enumerate(sorted(cluster.bookies))}
        client = LedgerClient(
            cluster.ledgers,
            cluster.registry,
            settings=replace(FAST, placement=ENFORCED),
            network=cluster,
            rng=random.Random(2),
            racks=StaticResolver(racks),
        )
        cluster.clients.append(client)
        for _ in range(10):
            writer = await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
            assert spans([racks[bookie] for bookie in writer.metadata.last_ensemble.bookies], 2, 2)
            await writer.add(b"before")
            victim = writer.metadata.last_ensemble.bookies[1]
            cluster.bookies[victim].kill()
            await asyncio.gather(*(writer.add(b"after") for _ in range(4)))
            ensemble = writer.metadata.last_ensemble.bookies
            assert victim not in ensemble
            assert spans([racks[bookie] for bookie in ensemble], 2, 2)
            cluster.bookies[victim].down = False
            await writer.close()
            await cluster.settle(10)


@virtual_time
async def test_an_entry_is_acknowledged_when_it_lies_in_enough_racks_not_before() -> None:
    """Three copies, two acknowledgements: two bookies in one rack do not do."""
    async with ModelCluster(4) as cluster:
        racks = dict(zip(sorted(cluster.bookies), ("/a", "/a", "/b", "/b"), strict=True))
        client = domain_client(cluster, racks)
        writer = await client.create()
        await writer.add(b"first")
        ensemble = writer.metadata.last_ensemble.bookies
        alone = next(b for b in ensemble if [racks[other] for other in ensemble].count(racks[b]) == 1)
        cluster.bookies[alone].mute = True
        future = writer.add(b"second")
        await cluster.settle(20)
        assert not future.done(), "both acknowledgements come from one rack"
        cluster.bookies[alone].kill()
        assert await future == 1, "another bookie outside that rack took the seat"
        assert len({racks[bookie] for bookie in writer.metadata.last_ensemble.bookies}) == 2
        await writer.close()


@virtual_time
async def test_what_recovery_adds_again_must_lie_in_enough_racks_too() -> None:
    async with ModelCluster(4) as cluster:
        racks = dict(zip(sorted(cluster.bookies), ("/a", "/a", "/b", "/b"), strict=True))
        writer = await domain_client(cluster, racks).create()
        await writer.add(b"first")
        ensemble = writer.metadata.last_ensemble.bookies
        alone = next(b for b in ensemble if [racks[other] for other in ensemble].count(racks[b]) == 1)
        cluster.bookies[alone].mute = True
        recovering = asyncio.ensure_future(domain_client(cluster, racks).open(writer.ledger_id, recover=True))
        await cluster.settle(20)
        assert not recovering.done(), "both acknowledgements come from one rack"
        cluster.bookies[alone].kill()
        reader = await recovering
        assert [entry.payload for entry in await reader.read(0, 0)] == [b"first"]
        closed = (await cluster.ledgers.read(writer.ledger_id)).value
        assert len({racks[bookie] for bookie in closed.last_ensemble.bookies if bookie != alone}) == 2


@virtual_time
async def test_a_ledger_placed_in_one_rack_is_recovered_all_the_same() -> None:
    """Who created it did not ask for racks; no acknowledgement could ever satisfy the rule."""
    async with ModelCluster(3) as cluster:
        writer = await cluster.client().create()
        await writer.add(b"first")
        client = domain_client(cluster, dict.fromkeys(cluster.bookies, "/a"))
        reader = await client.open(writer.ledger_id, recover=True)
        assert [entry.payload for entry in await reader.read(0, 0)] == [b"first"]


def domain_client(cluster: ModelCluster, racks: dict[str, str]) -> LedgerClient:
    domains = replace(ENFORCED, enforce_min_num_fault_domains_for_write=True)
    client = LedgerClient(
        cluster.ledgers,
        cluster.registry,
        settings=replace(FAST, placement=domains, add_entry_timeout_ms=60_000),
        network=cluster,
        rng=random.Random(4),
        racks=StaticResolver(racks),
    )
    cluster.clients.append(client)
    return client


def test_delayed_changes_and_fault_domains_exclude_each_other() -> None:
    domains = replace(ENFORCED, enforce_min_num_fault_domains_for_write=True)
    with pytest.raises(CallerError, match="delayEnsembleChange"):
        replace(FAST, placement=domains, delay_ensemble_change=True)


@virtual_time
async def test_the_cluster_s_switch_is_a_znode_beside_the_ledgers() -> None:
    async with ModelCluster(3) as cluster:
        assert not await cluster.registry.health_check_disabled()
        await cluster.store.create("/ledgers/disableHealthCheck")
        assert await cluster.registry.health_check_disabled()
        with pytest.raises(BadVersionError):
            await cluster.store.delete("/ledgers/disableHealthCheck", 7)
