"""Survival goals: the numbers that follow, the price, and what is refused."""

from __future__ import annotations

import pytest

from dlspark.core.settings.settings import Settings
from dlspark.core.settings.survival import shortfall, survival_plan
from dlspark.errors import SettingsError
from metadata.foundation.regions import region_names

THREE = "eu;us;asia"


def settings(**values):
    return Settings.from_mapping(values)


def over_regions(regions=THREE, **values):
    return Settings.from_mapping({"survive": "region", "bkc.reppRegionsToWrite": regions} | values)


@pytest.mark.parametrize(
    ("goal", "by", "regions", "quorums"),
    [
        ("node", "copies", 0, (3, 3, 2)),
        ("rack", "copies", 0, (3, 3, 2)),
        ("region", "copies", 3, (6, 6, 4)),
        ("region", "copies", 4, (4, 4, 3)),
        ("region", "copies", 7, (4, 4, 3)),
        ("region", "acknowledgements", 3, (3, 3, 2)),
        ("region", "acknowledgements", 5, (3, 3, 2)),
    ],
)
def test_a_goal_is_three_numbers(goal, by, regions, quorums):
    plan = survival_plan(goal, by, [f"r{number}" for number in range(regions)])
    assert plan.quorums == quorums
    assert plan.price.startswith(f"{quorums[1]} copies")


@pytest.mark.parametrize("regions", range(3, 10))
@pytest.mark.parametrize("by", ["copies", "acknowledgements"])
def test_when_a_region_is_away_every_entry_is_somewhere_and_writing_goes_on(by, regions):
    size, write_quorum, ack_quorum = survival_plan("region", by, [f"r{number}" for number in range(regions)]).quorums
    assert size == write_quorum  # each region has its share of every entry
    copies = -(-size // min(regions, 3 if by == "acknowledgements" else size))
    assert copies <= write_quorum - ack_quorum  # so an ack quorum is left without any region
    assert write_quorum - copies >= ack_quorum
    if by == "copies":
        # Java's quorum rule, and no region alone holds an ack quorum: an acknowledged entry is in two of them.
        assert ack_quorum > write_quorum - write_quorum // 2
        assert copies < ack_quorum


def test_the_settings_of_a_namespace_follow_from_the_goal():
    given = over_regions()
    assert given.quorums == (6, 6, 4)
    placement = given.client_settings().placement
    assert placement.ensemble_placement_policy == "regionaware"
    assert placement.repp_minimum_regions_for_durability == 2
    assert not placement.enforce_min_num_fault_domains_for_write

    cheaper = over_regions(surviveBy="acknowledgements")
    assert cheaper.quorums == (3, 3, 2)
    assert cheaper.client_settings().placement.enforce_min_num_fault_domains_for_write

    racks = settings(survive="rack").client_settings().placement
    assert (racks.min_num_racks_per_write_quorum, racks.enforces_racks) == (2, True)
    assert racks.enforce_min_num_fault_domains_for_write

    assert settings().survival is None
    assert settings(survive="node").in_namespace((5, 5, 3)).quorums == (3, 3, 2)
    assert settings().in_namespace((5, 5, 3)).quorums == (5, 5, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"survive": "planet"}, "is not one of"),
        ({"survive": "region"}, "bkc.reppRegionsToWrite lists 0 (none)"),
        ({"survive": "region", "bkc.reppRegionsToWrite": "eu;us"}, "lists 2 (eu, us)"),
        ({"surviveBy": "acknowledgements"}, "does nothing without survive=region"),
        ({"survive": "rack", "surviveBy": "acknowledgements"}, "does nothing without survive=region"),
        (
            {"survive": "region", "bkc.reppRegionsToWrite": THREE, "bkc.enforceMinNumFaultDomainsForWrite": True},
            "another value of one of them is set",
        ),
        (
            {
                "survive": "region",
                "bkc.reppRegionsToWrite": THREE,
                "bkc.reppEnableDurabilityEnforcementInReplace": False,
            },
            "another value of one of them is set",
        ),
        ({"survive": "node", "bkcEnsembleSize": 5}, "means bkcEnsembleSize=3, and 5 is set"),
        ({"survive": "rack", "bkc.minNumRacksPerWriteQuorum": 3}, "another value of one of them is set"),
        (
            {"survive": "region", "bkc.reppRegionsToWrite": THREE, "bkcAckQuorumSize": 3},
            "means bkcAckQuorumSize=4, and 3 is set",
        ),
        (
            {"survive": "region", "bkc.reppRegionsToWrite": THREE, "bkc.ensemblePlacementPolicy": "rackaware"},
            "knows no regions",
        ),
        (
            # Set by key, even to what is the default.
            {"survive": "region", "bkc.reppRegionsToWrite": THREE, "bkcEnsembleSize": 3},
            "means bkcEnsembleSize=6, and 3 is set",
        ),
    ],
)
def test_what_contradicts_a_goal_is_refused(values, message):
    with pytest.raises(SettingsError) as caught:
        Settings.from_mapping(values)
    assert message in str(caught.value)
    assert caught.value.advice


def test_one_log_cannot_leave_the_goal_of_its_namespace():
    with pytest.raises(SettingsError, match="means bkcWriteQuorumSize=6"):
        over_regions().for_log({"bkcWriteQuorumSize": 3})
    with pytest.raises(SettingsError, match="whole namespace"):
        over_regions().for_log({"survive": "node"})


def test_the_same_numbers_may_be_said_beside_the_goal():
    assert over_regions(bkcEnsembleSize=6, bkcWriteQuorumSize=6, bkcAckQuorumSize=4).quorums == (6, 6, 4)


def test_regions_are_listed_with_semicolons():
    assert region_names(" eu; us ;;asia;") == ("eu", "us", "asia")
    assert region_names("") == ()


def test_what_a_cluster_lacks_for_a_goal_is_said():
    rack = survival_plan("rack", "copies", [])
    assert shortfall(rack, {"/a": 2, "/b": 2, "/c": 2}) is None
    assert shortfall(rack, {"/a": 5, "/b": 3}) == (
        "survive=rack needs storage nodes in 3 racks, and there are 5 in /a, 3 in /b: it does not survive the loss of "
        "one; where 2 racks have all copies writing stops then"
    )
    assert "none of a known place" in shortfall(rack, {})
    assert shortfall(rack, {"/a": 1, "/b": 2, "/c": 2}) == (
        "survive=rack needs 2 storage nodes in each of 3 racks, and there are 1 in /a, 2 in /b, 2 in /c: while one "
        "rack is away no new segment may begin"
    )
    assert shortfall(rack, {"/a": 1, "/b": 2, "/c": 2, "/d": 2}) is None
    region = survival_plan("region", "copies", ["eu", "us", "asia"])
    assert shortfall(region, {"eu": 3, "us": 3, "asia": 3}) is None
    assert "3 regions" in shortfall(region, {"eu": 9, "us": 9})
    assert "3 storage nodes in each" in shortfall(region, {"eu": 3, "us": 3, "asia": 2})
    assert shortfall(survival_plan("node", "copies", []), {"/a": 3}) is None
