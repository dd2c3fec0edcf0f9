"""A ledger's rule over regions is in its metadata, and whoever recovers or repairs it keeps that, by any settings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster

from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.foundation.errors import CorruptDataError
from storage_node.autorecovery.auditor import PlacementCheck
from storage_node.client.client import LedgerClient
from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.ledger_rules import (
    CUSTOM_KEY,
    LedgerRule,
    custom_of_settings,
    rule_of,
    rule_of_settings,
)
from storage_node.client.placement.racks import StaticResolver
from storage_node.client.placement.region_policy import RegionAwarePlacement, RegionSwitches
from storage_node.errors import LedgerRecoveryError, RackResolutionError
from storage_node.protocol.writing_model import PickReplacements
from storage_node.settings.client import ClientSettings
from storage_node.settings.placement import PlacementSettings

COUNTED = PlacementSettings(ensemble_placement_policy="regionaware", enforce_min_num_fault_domains_for_write=True)
LISTED = PlacementSettings(ensemble_placement_policy="regionaware", repp_regions_to_write="eu;us;ap")
WEAK = (
    PlacementSettings(),
    PlacementSettings(ensemble_placement_policy="uniform"),
    PlacementSettings(ensemble_placement_policy="regionaware"),
    replace(LISTED, repp_minimum_regions_for_durability=0),
)
RULE = LedgerRule(2, True, True, ())


def metadata(data: bytes | None) -> LedgerMetadata:
    custom = {} if data is None else {CUSTOM_KEY: data}
    return LedgerMetadata(3, 3, 2, (Ensemble(0, ("a", "b", "c")),), custom=custom)


class Failing(StaticResolver):
    """A script that fails."""

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        raise RackResolutionError("the topology script ended with status 1")


class Regions(ModelCluster):
    """Nodes in eu and us, and clients by different settings."""

    def __init__(self, eu: int = 2, us: int = 2) -> None:
        super().__init__(eu + us)
        regions = ["eu"] * eu + ["us"] * us
        self.region = dict(zip(sorted(self.bookies), regions, strict=True))
        self.on: set[str] = set()

    def by(self, placement: PlacementSettings, *, known: bool = True, **changes: object) -> LedgerClient:
        settings: ClientSettings = replace(FAST, placement=placement, add_entry_timeout_ms=60_000, **changes)  # type: ignore[arg-type]
        table = {name: f"/{region}/{name}" for name, region in self.region.items()} if known else {}
        client = LedgerClient(
            self.ledgers,
            self.registry,
            settings=settings,
            network=self,
            rng=random.Random(5),
            racks=StaticResolver(table),
            regions=RegionSwitches(is_on=lambda region, name: region is None and name in self.on),
        )
        self.clients.append(client)
        return client

    def regions_of(self, found: LedgerMetadata) -> set[str]:
        return {self.region[bookie] for bookie in found.last_ensemble.bookies}


@pytest.mark.parametrize("rule", [RULE, LedgerRule(3, False, False, ("eu", "us", "ap-süd"))])
def test_a_rule_is_read_back(rule: LedgerRule) -> None:
    assert rule_of(metadata(rule.encode())) == rule
    encoded = metadata(rule.encode()).encode()
    assert rule_of(LedgerMetadata.decode(encoded, "/ledgers/x")) == rule


def test_the_rule_s_bytes_are_fixed() -> None:
    assert RULE.encode() == b'{"v":1,"minimum":2,"by":"acknowledgements","replace":true,"regions":[]}'


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"{}", "cannot be read"),
        (b'{"v":2,"minimum":2,"by":"copies","replace":true,"regions":[]}', "version 2"),
        (b'{"v":1,"minimum":"2","by":"copies","replace":true,"regions":[]}', "cannot be read"),
        (b'{"v":1,"minimum":true,"by":"copies","replace":true,"regions":[]}', "cannot be read"),
        (b'{"v":1,"minimum":0,"by":"copies","replace":true,"regions":[]}', "cannot be read"),
        (b'{"v":1,"minimum":2,"by":"luck","replace":true,"regions":[]}', "cannot be read"),
        (b'{"v":1,"minimum":2,"by":"copies","replace":1,"regions":[]}', "cannot be read"),
        (b'{"v":1,"minimum":2,"by":"copies","replace":true,"regions":[1]}', "cannot be read"),
        (b'{"v":1,"minimum":2,"by":"copies","replace":true,"regions":1}', "cannot be read"),
    ],
)
def test_a_rule_that_cannot_be_read_is_not_no_rule(data: bytes, words: str) -> None:
    with pytest.raises(CorruptDataError, match=words):
        rule_of(metadata(data))


def test_only_settings_that_demand_a_number_of_regions_leave_a_rule() -> None:
    assert rule_of(metadata(None)) is None
    assert rule_of_settings(COUNTED) == RULE
    assert rule_of_settings(LISTED) == LedgerRule(2, False, True, ("eu", "us", "ap"))
    for settings in WEAK:
        assert custom_of_settings(settings) == {}


@virtual_time
async def test_a_new_ledger_carries_its_rule_beside_what_its_owner_gives() -> None:
    async with Regions() as cluster:
        writer = await cluster.by(COUNTED).create(custom={"application": b"x"})
        stored = (await cluster.ledgers.read(writer.ledger_id)).value
        assert stored.custom == {"application": b"x", CUSTOM_KEY: RULE.encode()}
        plain = await cluster.by(PlacementSettings()).create(custom={"application": b"x"})
        assert plain.metadata.custom == {"application": b"x"}


@pytest.mark.parametrize("placement", WEAK)
@virtual_time
async def test_a_recovery_by_weaker_settings_counts_the_regions_of_the_ledger_s_rule(
    placement: PlacementSettings,
) -> None:
    async with Regions() as cluster:
        writer = await cluster.by(COUNTED).create()
        await writer.add(b"first")
        ensemble = writer.metadata.last_ensemble.bookies
        regions = [cluster.region[bookie] for bookie in ensemble]
        alone = next(b for b, region in zip(ensemble, regions, strict=True) if regions.count(region) == 1)
        cluster.bookies[alone].kill()
        with pytest.raises(LedgerRecoveryError, match="not known in which racks or regions"):
            await cluster.by(placement, known=False).open(writer.ledger_id, recover=True)
        await cluster.by(placement).open(writer.ledger_id, recover=True)
        closed = (await cluster.ledgers.read(writer.ledger_id)).value
        assert closed.is_closed
        assert closed.custom == {CUSTOM_KEY: RULE.encode()}
        assert alone not in closed.last_ensemble.bookies, "its entries count once they are in both regions"
        assert cluster.regions_of(closed) == {"eu", "us"}


@pytest.mark.parametrize("placement", WEAK)
@virtual_time
async def test_replacements_keep_the_ledger_s_rule_by_any_settings(placement: PlacementSettings) -> None:
    async with Regions(3, 2) as cluster:
        writer = await cluster.by(COUNTED).create()
        await writer.add(b"first")
        await writer.close()
        closed = (await cluster.ledgers.read(writer.ledger_id)).value
        ensemble = closed.last_ensemble.bookies
        others = [b for b in ensemble if [cluster.region[o] for o in ensemble].count(cluster.region[b]) == 1]
        index = ensemble.index(others[0])
        home = cluster.region[others[0]]
        for _ in range(10):
            picked = await cluster.by(placement).copies(writer.ledger_id, closed).replacements(ensemble, [index])
            assert [cluster.region[bookie] for bookie in picked.values()] == [home]


@virtual_time
async def test_a_lost_copy_is_restored_by_a_process_that_knows_no_region_at_all_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Regions(3, 2) as cluster:
        writer = await cluster.by(COUNTED).create()
        await writer.add(b"first")
        await writer.close()
        closed = (await cluster.ledgers.read(writer.ledger_id)).value
        ensemble = closed.last_ensemble.bookies
        for placement in WEAK:
            caplog.clear()
            client = cluster.by(placement, known=False)
            picked = await client.copies(writer.ledger_id, closed).replacements(ensemble, [1])
            assert set(picked) == {1}
            assert not set(picked.values()) & set(ensemble)
            assert f"{picked[1]} takes the place of {ensemble[1]}, though a rule over regions holds" in caplog.text
            policy = client._use().placements.of(closed)
            assert isinstance(policy, RegionAwarePlacement)
            assert policy.unlocated_copies == 1
        for demanding in (COUNTED, LISTED):  # these settings demand regions themselves
            blind = cluster.by(demanding, known=False).copies(writer.ledger_id, closed)
            assert await blind.replacements(ensemble, [1]) == {}


@virtual_time
async def test_a_lost_copy_is_not_restored_blindly_where_some_regions_are_known_or_a_look_up_fails() -> None:
    async with Regions(3, 2) as cluster:
        writer = await cluster.by(COUNTED).create()
        await writer.add(b"first")
        await writer.close()
        closed = (await cluster.ledgers.read(writer.ledger_id)).value
        ensemble = closed.last_ensemble.bookies
        for table, failing in ({ensemble[0]: "/eu/r1"}, False), ({}, True):
            client = cluster.by(PlacementSettings(), known=False)
            client._racks = Failing(table) if failing else StaticResolver(table)
            assert await client.copies(writer.ledger_id, closed).replacements(ensemble, [1]) == {}


@virtual_time
async def test_a_writer_places_nothing_where_no_region_is_known() -> None:
    async with Regions(3, 2) as cluster:
        made = (await cluster.by(COUNTED).create()).metadata
        ensemble = made.last_ensemble.bookies
        wanted = PickReplacements(ensemble, (1,), frozenset(ensemble), True, made.write_quorum, ack_quorum=2)
        blind = cluster.by(PlacementSettings(), known=False)._use().placements.of(made)
        assert await blind.replacements(wanted) == {}


@pytest.mark.parametrize("placement", WEAK)
@virtual_time
async def test_ledgers_are_judged_and_mended_by_their_own_rule(placement: PlacementSettings) -> None:
    async with Regions(3, 2) as cluster:
        client = cluster.by(placement)
        ensemble = tuple(name for name, region in cluster.region.items() if region == "eu")
        with_rule = replace(metadata(RULE.encode()), ensembles=(Ensemble(0, ensemble),))
        assert await client.judge_placement(ensemble, with_rule) is Adherence.FAIL
        moves = await client.placement_moves(ensemble, with_rule)
        assert [cluster.region[bookie] for bookie in moves.values()] == ["us"]
        assert not await client.may_begin(with_rule)
        with pytest.raises(RackResolutionError):
            await cluster.by(placement, known=False).placement_moves(ensemble, with_rule)


@virtual_time
async def test_a_stronger_process_keeps_its_own_rule_and_the_switch_takes_out_both() -> None:
    async with Regions(3, 2) as cluster:
        strong = cluster.by(replace(COUNTED, repp_minimum_regions_for_durability=3))
        both = tuple(sorted(cluster.region)[1:4])
        found = replace(metadata(RULE.encode()), ensembles=(Ensemble(0, both),))
        assert await strong.judge_placement(both, found) is Adherence.FAIL
        assert await cluster.by(COUNTED).judge_placement(both, found) is not Adherence.FAIL
        cluster.on.add("repp_disable_durability_enforcement")
        alone = tuple(sorted(cluster.region)[:3])
        for settings in (*WEAK, COUNTED):
            assert await cluster.by(settings).judge_placement(alone, found) is not Adherence.FAIL


@virtual_time
async def test_a_check_of_placement_counts_what_it_cannot_judge() -> None:
    async with Regions() as cluster:
        client = cluster.by(COUNTED)
        for ledger_id, data in ((1, None), (2, RULE.encode()), (3, b"nonsense")):
            found = replace(metadata(data), ensembles=(Ensemble(0, tuple(sorted(cluster.bookies)[1:4])),))
            await cluster.ledgers.create(ledger_id, found.closed(-1, 0))
        report = await PlacementCheck(cluster.ledgers, client.judge_placement).run()
        assert (report.closed, report.unreadable, report.not_adhering) == (2, 1, 0)
