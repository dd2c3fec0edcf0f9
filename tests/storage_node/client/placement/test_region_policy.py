"""Placement over regions with a registry, a map of locations, and operators who switch regions off and on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster
from test_placement import Clock, Registry, Resolver
from test_placement import World as RackWorld

from metadata.foundation.errors import CallerError, CorruptDataError, MetadataUnavailableError
from storage_node.client.client import LedgerClient
from storage_node.client.health import BookieHealth, Quarantine
from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.candidates import Candidates
from storage_node.client.placement.racks import RackMap, StaticResolver
from storage_node.client.placement.region_policy import RegionAwarePlacement, RegionSwitches
from storage_node.client.placement.regions import RegionRules, keeps_regions
from storage_node.errors import LedgerFencedError, LedgerRecoveryError, NotEnoughBookiesError
from storage_node.protocol.writing_model import PickReplacements
from storage_node.settings.client import ClientSettings
from storage_node.settings.placement import PlacementSettings

REGIONS = {"e": "eu", "u": "us", "a": "ap"}
LISTED = PlacementSettings(ensemble_placement_policy="regionaware", repp_regions_to_write="eu;us;ap")
COUNTED = PlacementSettings(ensemble_placement_policy="regionaware", enforce_min_num_fault_domains_for_write=True)


class World:
    """Bookies `e0:1`, `e1:1`, `u0:1`, ...: at `/eu/r0`, `/eu/r1`, `/us/r0`; `x0` is of no known place."""

    def __init__(
        self, counts: Mapping[str, int], conf: PlacementSettings = LISTED, *, region: str = "", seed: int = 1
    ) -> None:
        names = [f"{letter}{i}" for letter, count in counts.items() for i in range(count)]
        self.registry = Registry({f"{name}:1": name for name in names})
        self.resolver = Resolver({n: f"/{REGIONS[n[0]]}/r{n[1:]}" for n in names if n[0] in REGIONS})
        self.on: set[tuple[str | None, str]] = set()
        self.disallowed: frozenset[str] | Exception = frozenset()
        clock = Clock()
        candidates = Candidates(
            self.registry,
            BookieHealth(clock, 60_000),
            Quarantine(conf, clock, random.Random(seed)),
            random.Random(seed),
        )
        self.policy = RegionAwarePlacement(
            candidates,
            RackMap(self.resolver, clock, region),
            conf,
            RegionSwitches(self._disallowed, lambda region, key: (region, key) in self.on),
            random.Random(seed),
            memory_ms=60_000,
            replacement_pause_ms=5_000,
            replacement_timeout_ms=2_000,
        )

    async def _disallowed(self) -> frozenset[str]:
        if isinstance(self.disallowed, Exception):
            raise self.disallowed
        return self.disallowed


def regions(bookies: Sequence[str]) -> Counter[str]:
    return Counter(REGIONS[bookie[0]] for bookie in bookies)


def wanted(ensemble: Sequence[str], *indices: int, sizes: tuple[int, int]) -> PickReplacements:
    write_quorum, ack_quorum = sizes
    return PickReplacements(
        tuple(ensemble),
        indices,
        frozenset(ensemble[index] for index in indices),
        last_resort=True,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
    )


async def test_copies_are_spread_over_regions_whatever_the_draw():
    """bookkeeper issue 3722: new ensembles failed by chance."""
    for seed in range(200):
        world = World({"e": 2, "u": 3, "a": 2, "x": 2}, seed=seed)
        found = await world.policy.new_ensemble(6, 6, 4)
        assert set(regions(found).values()) == {2}
        assert await world.policy.judge(found, 6, 4) is Adherence.MEETS_STRICT


async def test_the_own_region_gives_first():
    world = World({"e": 3, "u": 3, "a": 3}, region="us")
    assert {REGIONS[(await world.policy.new_ensemble(4, 4, 3))[0][0]] for _ in range(20)} == {"us"}


async def test_a_size_that_cannot_keep_the_rule_is_refused_with_both_ways_on():
    """bookkeeper issue 4553."""
    with pytest.raises(CallerError) as caught:
        await World({"e": 3, "u": 3, "a": 3}).policy.new_ensemble(3, 3, 2)
    assert "6/6/4" in str(caught.value)
    assert "enforceMinNumFaultDomainsForWrite" in str(caught.value)


async def test_operators_close_a_region_and_open_it_again():
    world = World({"e": 3, "u": 3, "a": 3})
    world.disallowed = frozenset({"eu"})
    found = await world.policy.new_ensemble(6, 6, 4)
    assert regions(found) == {"us": 3, "ap": 3}
    assert await world.policy.allows(found, 6, 4)
    before = ("e0:1", "e1:1", "u0:1", "u1:1", "a0:1", "a1:1")
    assert not await world.policy.allows(before, 6, 4)
    world.disallowed = frozenset()
    world.on.add(("ap", "disallow_bookie_placement"))
    assert regions(await world.policy.new_ensemble(6, 6, 4)) == {"eu": 3, "us": 3}
    world.on.clear()
    assert set(regions(await world.policy.new_ensemble(6, 6, 4)).values()) == {2}


async def test_where_every_region_is_closed_nothing_is_placed():
    world = World({"e": 3, "u": 3, "a": 3})
    world.disallowed = frozenset({"eu", "us", "ap"})
    with pytest.raises(NotEnoughBookiesError, match="no region may be placed on: ap, eu, us are all disallowed"):
        await world.policy.new_ensemble(6, 6, 4)


async def test_nothing_is_placed_while_it_is_not_known_which_regions_are_closed():
    world = World({"e": 3, "u": 3, "a": 3})
    world.disallowed = MetadataUnavailableError("away")
    with pytest.raises(MetadataUnavailableError):
        await world.policy.new_ensemble(6, 6, 4)
    with pytest.raises(MetadataUnavailableError):
        await world.policy.allows(["e0:1"], 1, 1)


async def test_lost_copies_are_restored_by_racks_though_it_cannot_be_read_what_is_closed_where_no_region_is_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcome: Exception | None = CorruptDataError("it is of a later release")

    async def closed() -> frozenset[str]:
        if outcome is not None:
            raise outcome
        return frozenset({"eu"})

    world = RackWorld({"a": 2, "b": 2})
    monkeypatch.setattr(world.aware, "_disallowed", closed)
    ensemble = ("a0:1", "b0:1")
    lost = replace(wanted(ensemble, 0, sizes=(2, 2)), excluded=frozenset(ensemble), restoring=True)
    for _ in range(3):
        assert await world.aware.replacements(lost) == {0: "a1:1"}
    assert [one.levelname for one in caplog.records] == ["WARNING"], "once"
    assert "a later release" in caplog.text
    for other in (
        world.aware.replacements(replace(lost, restoring=False)),
        world.aware.moves(("a0:1", "a1:1"), 2, 2),
        world.aware.new_ensemble(2, 2, 2),
    ):
        with pytest.raises(CorruptDataError):
            await other
    outcome = MetadataUnavailableError("away")  # which passes
    with pytest.raises(MetadataUnavailableError):
        await world.aware.replacements(lost)

    outcome = CorruptDataError("it is damaged")
    regional = RackWorld({"a": 2, "b": 2})
    regional.resolver.table["a0"] = "/eu/a"  # also of a node that is lost
    regional.registry.hosts.pop("b1:1")
    monkeypatch.setattr(regional.aware, "_disallowed", closed)
    with pytest.raises(CorruptDataError):
        await regional.aware.replacements(lost)
    regional.resolver.table["a1"] = "/eu/b"
    outcome = None
    regional.racks.forget()
    assert await regional.aware.replacements(lost) == {}


async def test_the_switch_for_durability_takes_the_number_of_regions_out():
    world = World({"e": 9})
    with pytest.raises(NotEnoughBookiesError):
        await world.policy.new_ensemble(6, 6, 4)
    world.on.add((None, "repp_disable_durability_enforcement"))
    assert regions(await world.policy.new_ensemble(3, 3, 2)) == {"eu": 3}


async def test_a_node_without_a_region_is_placed_around_and_said(caplog):
    """bookkeeper issue 2490."""
    world = World({"e": 2, "u": 2, "a": 2, "x": 1})
    with caplog.at_level(logging.WARNING):
        await world.policy.new_ensemble(6, 6, 4)
    assert "1 storage nodes get no copies, because their locations name no region: x0:1" in caplog.text


async def test_a_node_that_comes_back_elsewhere_counts_where_it_is():
    """bookkeeper issues 3665 and 4504: a changed rack was not carried on, a former region stayed."""
    world = World({"e": 3, "u": 3, "a": 1})
    assert regions(await world.policy.new_ensemble(6, 6, 4))["ap"] == 1
    world.registry.hosts.pop("e0:1")
    await world.policy.new_ensemble(6, 6, 4)
    world.registry.hosts["e0:1"] = "moved"
    world.resolver.table = {**world.resolver.table, "moved": "/ap/r7"}
    world.resolver._table = world.resolver.table
    found = await world.policy.new_ensemble(6, 6, 4)
    assert {"e0:1", "a0:1"} <= set(found)


async def test_after_forgetting_a_node_that_is_away_is_looked_up_where_it_is_now():
    """Its replacement is picked by its region, and it may never be writable again."""
    world = World({"e": 3, "u": 3, "a": 3})
    ensemble = ("e0:1", "u0:1", "a0:1")
    await world.policy.judge(ensemble, 3, 3)
    world.registry.hosts.pop("e0:1")
    world.resolver._table = {**world.resolver.table, "e0": "/us/r9"}
    await world.policy.judge(ensemble, 3, 3)
    assert world.policy.racks.region_of("e0:1") == "eu"
    world.policy.racks.forget()
    assert await world.policy.judge(ensemble, 3, 3) is Adherence.MEETS_SOFT
    assert world.policy.racks.region_of("e0:1") == "us"
    asked = world.resolver.asked["e0"]
    await world.policy.judge(ensemble, 3, 3)
    assert world.resolver.asked["e0"] == asked, "once, not at each look"


async def test_a_changed_rack_counts_inside_its_region():
    """bookkeeper issue 3665: it was not carried to the policy of its region."""
    world = World({"e": 3, "u": 3, "a": 3})
    world.resolver._table = {name: f"/{REGIONS[name[0]]}/r{int(name[1]) // 2}" for name in world.resolver.table}
    for _ in range(20):
        found = await world.policy.new_ensemble(6, 6, 4)
        assert len({world.policy.racks.rack_of(bookie) for bookie in found}) == 6, "two racks in each region"
    world.resolver._table |= {"e0": "/eu/r1", "e2": "/eu/r0"}
    world.policy.racks.forget()
    for _ in range(20):
        found = await world.policy.new_ensemble(6, 6, 4)
        assert not {"e1:1", "e2:1"} <= set(found), "they are in one rack now"


async def test_a_replacement_keeps_the_rule_by_the_names_of_nodes_that_are_gone():
    """bookkeeper issue 2642: the region of a dead node was not known to what repairs its ledgers."""
    world = World({"e": 3, "u": 3, "a": 3})
    ensemble = ("e0:1", "e1:1", "u0:1", "u1:1", "a0:1", "a1:1")
    for bookie in ensemble[:2]:
        world.registry.hosts.pop(bookie)  # both of eu are away; they have names of this form, and a location
    found = await world.policy.replacements(wanted(ensemble, 2, sizes=(6, 4)))
    assert regions(list(found.values())) == {"us": 1}
    world.registry.hosts.pop("u2:1")
    found = await world.policy.replacements(wanted(ensemble, 2, sizes=(6, 4)))
    # Not of eu: with three there, and one of us, eu and ap would still not hold four: eu's e2 and ap's a2 are lawful.
    assert regions(list(found.values())) <= Counter({"eu": 1, "ap": 1})


async def test_anomalous_ensembles_are_counted(caplog):
    world = World({"e": 4, "u": 3, "a": 3})
    found = await world.policy.replacements(wanted(("e0:1", "e1:1", "e2:1"), 0, sizes=(3, 2)))
    assert found == {0: "e3:1"}
    assert world.policy.anomalous_ensembles == 1


async def test_entries_count_when_enough_regions_have_them():
    world = World({"e": 3, "u": 3, "a": 3, "x": 1}, COUNTED)
    found = await world.policy.new_ensemble(3, 3, 2)
    assert set(regions(found).values()) == {1}
    assert world.policy.spans_fault_domains(found[:2], 3)
    assert not world.policy.spans_fault_domains(["e0:1", "e1:1"], 3)
    assert not world.policy.spans_fault_domains(["e0:1", "x0:1"], 3)


async def test_without_known_regions_the_policy_is_the_rack_aware_one():
    plain = PlacementSettings(ensemble_placement_policy="regionaware")
    world = World({"x": 5}, plain)
    assert len(set(await world.policy.new_ensemble(3, 3, 2))) == 3
    one = World({"e": 5}, plain)
    assert regions(await one.policy.new_ensemble(3, 3, 2)) == {"eu": 3}
    spread = World({"e": 5, "u": 5}, plain)
    assert len(regions(await spread.policy.new_ensemble(4, 4, 3))) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"repp_regions_to_write": "eu;us", "repp_minimum_regions_for_durability": 3}, "names 2 regions"),
        ({"repp_regions_to_write": "eu;eu"}, "twice"),
        ({"repp_regions_to_write": "eu/r1;us"}, "not the name of a region"),
        ({"repp_regions_to_write": "eu;us", "ensemble_placement_policy": "rackaware"}, "knows no regions"),
        ({"enforce_min_num_fault_domains_for_write": True, "repp_minimum_regions_for_durability": 1}, "asks for none"),
        (
            {
                "enforce_min_num_fault_domains_for_write": True,
                "repp_enable_durability_enforcement_in_replace": False,
            },
            "no entry would be acknowledged",
        ),
    ],
)
def test_settings_of_regions_that_cannot_be_honoured_are_refused(wrong, message):
    with pytest.raises(CallerError, match=message):
        PlacementSettings(**{"ensemble_placement_policy": "regionaware"} | wrong)


@pytest.mark.parametrize("key", ["minNumZonesPerWriteQuorum", "desiredNumZonesPerWriteQuorum"])
def test_keys_of_zones_are_refused_because_regions_are_zones(key):
    with pytest.raises(CallerError, match="regions are your zones"):
        ClientSettings.from_mapping({key: "2"})


@pytest.mark.parametrize("key", ["reppEnableValidation", "reppDisableDurabilityEnforcementFeature"])
def test_keys_that_would_do_nothing_are_refused_with_the_reason(key):
    with pytest.raises(CallerError, match=f"{key} has no effect here"):
        ClientSettings.from_mapping({key: "true"})


# ------------------------------------------------------------------------------------ through the client


def region_client(cluster: ModelCluster, places: Mapping[str, str]) -> LedgerClient:
    client = LedgerClient(
        cluster.ledgers,
        cluster.registry,
        settings=replace(FAST, placement=COUNTED, add_entry_timeout_ms=60_000),
        network=cluster,
        rng=random.Random(4),
        racks=StaticResolver(places),
    )
    cluster.clients.append(client)
    return client


@virtual_time
async def test_an_entry_is_acknowledged_from_two_regions_also_by_a_recovery_not_from_two_racks_of_one():
    """Java counts network locations here: two racks of one region are enough for it."""
    async with ModelCluster(4) as cluster:
        locations = ("/eu/r1", "/eu/r2", "/us/r1", "/us/r2")
        places = dict(zip(sorted(cluster.bookies), locations, strict=True))
        writer = await region_client(cluster, places).create()
        await writer.add(b"first")
        ensemble = writer.metadata.last_ensemble.bookies
        inside = [places[bookie].split("/")[1] for bookie in ensemble]
        alone = next(b for b, region in zip(ensemble, inside, strict=True) if inside.count(region) == 1)
        cluster.bookies[alone].mute = True
        second = writer.add(b"second")
        await cluster.settle(20)
        assert not second.done(), "both acknowledgements come from one region"
        recovering = asyncio.ensure_future(region_client(cluster, places).open(writer.ledger_id, recover=True))
        await cluster.settle(20)
        assert not recovering.done(), "what is added again has to lie in two regions, too"
        cluster.bookies[alone].kill()
        reader = await recovering
        assert [entry.payload for entry in await reader.read(0, 0)] == [b"first"]
        with pytest.raises(LedgerFencedError):
            await second


@virtual_time
async def test_a_ledger_whose_regions_are_not_known_is_not_recovered_with_fewer():
    async with ModelCluster(3) as cluster:
        known, *others = sorted(cluster.bookies)
        writer = await cluster.client().create()
        await writer.add(b"first")
        for places in ({}, {known: "/eu/r1"}, {others[0]: "/eu/r1", others[1]: "/eu/r2"}):
            with pytest.raises(LedgerRecoveryError, match="not known in which racks or regions"):
                await region_client(cluster, places).open(writer.ledger_id, recover=True)
        everywhere = {known: "/eu/r1", others[0]: "/us/r1", others[1]: "/us/r2"}
        reader = await region_client(cluster, everywhere).open(writer.ledger_id, recover=True)
        assert [entry.payload for entry in await reader.read(0, 0)] == [b"first"]


@pytest.mark.parametrize(
    ("conf", "sizes"), [(LISTED, (6, 6, 4)), (LISTED, (4, 4, 3)), (COUNTED, (3, 3, 2)), (COUNTED, (4, 2, 2))]
)
async def test_several_seats_are_given_away_at_once_and_the_rule_is_kept(conf, sizes):
    size, write_quorum, ack_quorum = sizes
    rules = RegionRules(
        regions=("eu", "us", "ap"), minimum=2, acknowledged_from_regions=conf.enforce_min_num_fault_domains_for_write
    )
    refused = 0
    for seed in range(120):
        rng = random.Random(seed)
        world = World({"e": rng.randint(2, 5), "u": rng.randint(2, 5), "a": rng.randint(2, 5)}, conf, seed=seed)
        ensemble = await world.policy.new_ensemble(*sizes)
        failed = rng.sample(range(size), rng.randint(1, size))
        for index in failed:
            world.registry.hosts.pop(ensemble[index])
        if rng.random() < 0.5:  # and all others of one region are away as well
            gone = rng.choice("eua")
            for bookie in [one for one in world.registry.hosts if one[0] == gone and one not in ensemble]:
                world.registry.hosts.pop(bookie)
        found = await world.policy.replacements(wanted(ensemble, *failed, sizes=(write_quorum, ack_quorum)))
        after = [found.get(index, bookie) for index, bookie in enumerate(ensemble)]
        placed = [REGIONS[bookie[0]] for bookie in after]
        assert keeps_regions(placed, write_quorum, ack_quorum, rules), (seed, ensemble, failed, after)
        assert len(set(after)) == size
        refused += len(found) < len(failed)
    assert refused or conf is COUNTED  # by numbers the rule was what decided, in some


def test_a_writer_that_counts_regions_never_waits_for_ever():
    """Locations and switches may change so that no answer of its nodes would be enough."""
    assert ClientSettings().quorum_timeout_ms == 0
    assert ClientSettings(placement=COUNTED).quorum_timeout_ms == 60_000
    assert ClientSettings(placement=COUNTED, add_entry_quorum_timeout_ms=5_000).quorum_timeout_ms == 5_000
