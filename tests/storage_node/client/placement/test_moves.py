"""Which copies are moved so that an ensemble keeps the placement rule: the fewest, and only for a better verdict."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from test_placement import ENFORCED, Clock, Registry
from test_region_policy import COUNTED, LISTED, REGIONS, World

from metadata.foundation import pacing
from storage_node.client.health import BookieHealth, Quarantine
from storage_node.client.placement import mending
from storage_node.client.placement.arranging import Adherence, adherence, broken_windows
from storage_node.client.placement.candidates import Candidates
from storage_node.client.placement.mending import BrokenEnsemble, search_moves
from storage_node.client.placement.policies import RackAwarePlacement, UniformPlacement
from storage_node.client.placement.racks import RackMap, StaticResolver
from storage_node.client.placement.regions import PlacementRefusal
from storage_node.errors import NotEnoughBookiesError, RackResolutionError
from storage_node.settings.placement import PlacementSettings

SPACE = {"e": 4, "u": 3, "a": 3}


def names(*short):
    return tuple(f"{name}:1" for name in short)


def moved(ensemble, moves):
    return tuple(moves.get(index, bookie) for index, bookie in enumerate(ensemble))


@pytest.mark.parametrize(
    ("conf", "ensemble", "quorums", "count"),
    [
        (COUNTED, ("e0", "e1", "e2"), (3, 2), 1),
        (COUNTED, ("e0", "u0", "e2"), (3, 2), 0),
        (LISTED, ("e0", "e1", "e2", "e3", "u0", "a0"), (6, 4), 1),
        (LISTED, ("e0", "e1", "e2", "u0", "u1", "a0"), (6, 4), 0),
        (LISTED, ("e0", "e1", "e2", "u0"), (4, 3), 1),
        (LISTED, ("e0", "e1"), (2, 2), 1),
    ],
)
async def test_the_fewest_copies_are_moved(conf, ensemble, quorums, count):
    for seed in range(20):
        world = World(SPACE, conf, seed=seed)
        members = names(*ensemble)
        moves = await world.policy.moves(members, *quorums)
        assert len(moves) == count
        after = moved(members, moves)
        assert len(set(after)) == len(after)
        assert await world.policy.judge(after, *quorums) is not Adherence.FAIL
        if count:
            assert await world.policy.judge(members, *quorums) is Adherence.FAIL


async def test_of_as_many_moves_those_after_which_copies_are_spread_evenly_win():
    world = World(SPACE)
    members = names("e0", "e1", "e2", "u0", "u1", "e3")
    moves = await world.policy.moves(members, 6, 4)
    assert [REGIONS[bookie[0]] for bookie in moves.values()] == ["ap"]


async def test_copies_are_moved_into_no_region_that_is_disallowed():
    world = World(SPACE, COUNTED)
    world.disallowed = frozenset({"us"})
    for _ in range(20):
        moves = await world.policy.moves(names("e0", "e1", "e2"), 3, 2)
        assert [REGIONS[bookie[0]] for bookie in moves.values()] == ["ap"]
    world.disallowed = frozenset({"us", "ap"})
    with pytest.raises(NotEnoughBookiesError, match=r"there are: 1 in eu"):
        await world.policy.moves(names("e0", "e1", "e2"), 3, 2)


async def test_nothing_is_moved_while_it_is_not_known_where_a_member_lies():
    world = World({**SPACE, "x": 1}, COUNTED)
    with pytest.raises(RackResolutionError, match=r"not known where x0:1 lie"):
        await world.policy.moves(names("e0", "e1", "x0"), 3, 2)


async def test_a_node_of_unknown_region_gets_no_copy():
    world = World({"e": 4, "x": 2}, COUNTED)
    with pytest.raises(NotEnoughBookiesError):
        await world.policy.moves(names("e0", "e1", "e2"), 3, 2)


async def test_racks_are_mended_too_and_the_uniform_policy_has_nothing_to_mend():
    table = {"a0": "/a", "a1": "/a", "a2": "/a", "b0": "/b", "x0": "/default-rack"}
    registry, clock = Registry({f"{name}:1": name for name in table}), Clock()
    quarantine = Quarantine(ENFORCED, clock, random.Random(1))
    candidates = Candidates(registry, BookieHealth(clock, 60_000), quarantine, random.Random(1))
    times = {"memory_ms": 60_000, "replacement_pause_ms": 5_000, "replacement_timeout_ms": 2_000}
    aware = RackAwarePlacement(candidates, RackMap(StaticResolver(table), clock), ENFORCED, **times)
    moves = await aware.moves(names("a0", "a1", "a2"), 3, 2)
    assert list(moves.values()) == ["b0:1"]
    assert await aware.moves(names("a0", "a1", "b0"), 3, 2) == {}
    registry.hosts.pop("b0:1")
    with pytest.raises(NotEnoughBookiesError):
        await aware.moves(names("a0", "a1", "a2"), 3, 2)
    assert await UniformPlacement(candidates, **times).moves(names("a0", "a1", "a2"), 3, 2) == {}


async def test_without_a_demand_copies_in_one_rack_are_moved_to_another_rack_of_their_region():
    world = World({"e": 5}, PlacementSettings(ensemble_placement_policy="regionaware"))
    world.resolver.table.update({"e0": "/eu/r1", "e1": "/eu/r1", "e2": "/eu/r1", "e3": "/eu/r1", "e4": "/eu/r2"})
    members = names("e0", "e1", "e2")
    assert await world.policy.judge(members, 3, 2) is Adherence.FAIL
    moves = await world.policy.moves(members, 3, 2)
    assert list(moves.values()) == ["e4:1"]
    assert await world.policy.judge(moved(members, moves), 3, 2) is not Adherence.FAIL


# ---- the search ------------------------------------------------------------------------------------------------------


def over_racks(ensemble, racks, write_quorum, wanted=2):
    """Names are rack and number."""

    def verdict(bookies):
        return adherence(bookies, lambda b: b[0], lambda _: True, write_quorum, wanted)

    def failing(bookies):
        return broken_windows([bookie[0] for bookie in bookies], write_quorum, wanted)

    order = [f"{rack}{number}" for rack, count in racks.items() for number in range(10, 10 + count)]
    return BrokenEnsemble(ensemble, order, lambda b: b[0], lambda b: b[0], lambda _: None, verdict, failing)


def ended(steps):
    """Run a search to its end: what it found, and how many steps it took."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


def test_a_search_that_finds_nothing_ends(monkeypatch):
    monkeypatch.setattr(mending, "MOVE_LIMIT", 10)
    order = [f"{region}{number}" for region in "abcde" for number in range(3)]
    hopeless = BrokenEnsemble(
        ["z0", "z1", "z2"], order, lambda b: b, lambda b: b[0], lambda d: d, lambda _: Adherence.FAIL, lambda _: []
    )
    found, count = ended(search_moves(hopeless))
    assert found == PlacementRefusal("none of the first 10 ways to move its copies keeps the rule")
    assert count == 10


def test_a_few_moves_are_found_among_many_racks():
    others = dict.fromkeys("defghijklmnopqrst", 3)
    found, count = ended(search_moves(over_racks(["a0", "a1", "b0", "b1", "c0", "c1"], others, 2)))
    assert len(found) == 3
    assert count < 50
    found, count = ended(search_moves(over_racks([f"a{n}" for n in range(10)], others, 3)))
    assert len(found) == 4
    assert count < 2_000


def test_a_search_says_no_sooner_than_every_way_was_tried():
    rng = random.Random(1)
    found_at_all = refused = 0
    for _ in range(60):
        size = rng.randint(2, 5)
        write_quorum = rng.randint(2, size)
        wanted = rng.randint(2, write_quorum)
        ensemble = [f"{rng.choice('abc')}{number}" for number in range(size)]
        broken = over_racks(ensemble, {rack: rng.randint(0, 2) for rack in "abcd"}, write_quorum, wanted)
        found, _ = ended(search_moves(broken))
        least = least_moves(broken)
        if least is None:
            assert isinstance(found, PlacementRefusal)
            refused += 1
            continue
        assert len(found) == least
        after = moved(ensemble, found)
        assert broken.verdict(after) is not Adherence.FAIL
        assert len(set(after)) == size
        found_at_all += least > 0
    assert found_at_all > 10
    assert refused > 4


def least_moves(broken):
    """Return how many moves are needed, by trying all of them."""
    for count in range(len(broken.members) + 1):
        for indices in itertools.combinations(range(len(broken.members)), count):
            for bookies in itertools.permutations(broken.order, count):
                after = moved(broken.members, dict(zip(indices, bookies, strict=True)))
                if broken.verdict(after) is not Adherence.FAIL:
                    return count
    return None


async def test_moves_over_regions_are_the_fewest_too():
    rng = random.Random(2)
    for seed in range(40):
        world = World(SPACE, rng.choice([LISTED, COUNTED]), seed=seed)
        members = tuple(
            rng.sample([f"{name}{number}:1" for name, count in SPACE.items() for number in range(count)], 4)
        )
        quorums = (4, 3)
        try:
            moves = await world.policy.moves(members, *quorums)
        except NotEnoughBookiesError:
            moves = None
        least = None
        others = [
            f"{name}{n}:1" for name, count in SPACE.items() for n in range(count) if f"{name}{n}:1" not in members
        ]
        for count in range(4):
            ways = [
                dict(zip(indices, bookies, strict=True))
                for indices in itertools.combinations(range(4), count)
                for bookies in itertools.permutations(others, count)
            ]
            for way in ways:
                if await world.policy.judge(moved(members, way), *quorums) is not Adherence.FAIL:
                    least = count
                    break
            if least is not None:
                break
        assert (None if moves is None else len(moves)) == least


async def test_others_have_their_turn_while_moves_are_searched_for(monkeypatch):
    monkeypatch.setattr(pacing, "SLICE_S", 0.0)
    broken = over_racks([f"a{n}" for n in range(10)], dict.fromkeys("defghijklmnopqrst", 3), 3)
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    found = await pacing.run_in_slices(search_moves(broken))
    beside.cancel()
    again, steps = ended(search_moves(broken))
    assert (found, len(found)) == (again, 4)
    assert turns >= steps > 4
