"""Our placement over regions beside the real `RegionAwareEnsemblePlacementPolicy`, on topologies made from seeds.

What ours makes must pass the check of the real one, and both must refuse the same sizes. What else differs is named and
counted (`verdicts.DIFFERENCES`, and docs/interop.md); whatever is not named there fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from helpers.interop.clusters import NEWEST, JavaProcesses
from helpers.interop.topologies import OurPolicy, Played, State, Topology, as_case, draw, region, settings_of
from helpers.interop.verdicts import Comparison

from dlspark.testing.java_process import JavaTool
from metadata.foundation.errors import CallerError

pytestmark = pytest.mark.torture

FEW = 300
FOUND = (68732,)
"""Topologies that long rounds have found: the search of an ensemble gave up, and another order of regions has one."""
BATCH = 100
FEW_ENSEMBLES, ENSEMBLES = 500, 10_000
"""For each distribution; the second with --rounds."""


@pytest.fixture
def policies(processes: JavaProcesses) -> JavaTool:
    """Give the JVM that hosts the real policies; no cluster is needed."""
    return processes.get(NEWEST)


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """Drop the warnings of thousands of topologies; nothing here looks at them."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(36_000)
async def test_ensembles_replacements_and_refusals_on_random_topologies(
    policies: JavaTool, rounds: int | None, seed: int | None
) -> None:
    found = Comparison()
    seeds = [seed] if seed is not None else [*FOUND, *range(rounds or FEW)]
    for start in range(0, len(seeds), BATCH):
        topologies = [draw(number) for number in seeds[start : start + BATCH]]
        played: list[list[Played]] = []
        for topology in topologies:
            ours = OurPolicy(topology)
            played.append([await ours.play(state) for state in topology.states])
        cases = [as_case(topology, made) for topology, made in zip(topologies, played, strict=True)]
        answers = await asyncio.wrap_future(policies.submit("regions.play", cases=cases))
        for topology, made, answer in zip(topologies, played, answers, strict=True):
            found.add(topology, made, answer)
        if found.faults:
            break
    print(f"{len(seeds):,} topologies\n{found.summary()}")
    assert not found.faults, f"{len(found.faults)} differences without a reason: " + "\n".join(found.faults[:20])


async def test_too_few_regions_for_the_number_demanded_are_refused_at_the_start_by_both(policies: JavaTool) -> None:
    topology = draw(0)
    topology.regions, topology.minimum, topology.states = ("eu", "us"), 3, []
    (answer,) = await policies.ask("regions.play", cases=[as_case(topology, [])])
    assert "insufficient" in answer["refused"]
    with pytest.raises(CallerError):
        settings_of(topology)


SPREADS = {
    "6/6/4 over three regions": ((6, 6, 4), {"ap": 6, "eu": 6, "us": 6}, 2),
    "3/3/3 over five regions": ((3, 3, 3), {"ap": 4, "eu": 4, "sa": 4, "uk": 4, "us": 4}, 2),
    "4/4/3 over four regions of different size": ((4, 4, 3), {"ap": 2, "eu": 4, "sa": 6, "us": 8}, 2),
}


@pytest.mark.parametrize("own", [None, "eu"])
@pytest.mark.parametrize("name", SPREADS)
async def test_ensembles_are_spread_over_the_regions_as_widely_as_by_java(
    policies: JavaTool, name: str, own: str | None, rounds: int | None
) -> None:
    """All ledgers in the same two regions was a fault of the real one (2658): each pair of regions is counted."""
    sizes, nodes, minimum = SPREADS[name]
    times = ENSEMBLES if rounds is not None else FEW_ENSEMBLES
    locations: dict[str, str | None] = {}
    for place, count in nodes.items():
        for number in range(count):
            locations[f"10.9.0.{len(locations) + 1}:3181"] = f"/{place}/rack-{number % 2}"
    topology = Topology(
        seed=7,
        regions=tuple(nodes),
        minimum=minimum,
        enforce_in_replace=True,
        enforce_racks=False,
        own=None if own is None else f"/{own}/rack-0",
        disallowed=frozenset(),
        durability_off=False,
        sizes=sizes,
        weights={},
        states=[State(locations, list(locations), [], [], [], 0)],
    )
    played = await OurPolicy(topology).play(topology.states[0], times)
    (answer,) = await asyncio.wrap_future(policies.submit("regions.play", cases=[as_case(topology, [Played()], times)]))
    ours = _pairs(played.ensembles, locations)
    theirs = _pairs(answer["steps"][1]["made"], locations)
    even = {pair: _unevenness(found, tuple(nodes)) for pair, found in (("ours", ours), ("Java's", theirs))}
    print(f"{name}, own region {own}, {times:,} ensembles: ours {_shown(ours)}; Java's {_shown(theirs)}; {even}")
    assert len(played.ensembles) == len(answer["steps"][1]["made"]) == times
    assert len(ours) >= len(theirs), "Java uses pairs of regions that ours never does"
    used = Counter(place for ensemble in played.ensembles for place in {region(locations[b]) for b in ensemble})
    others = [used[place] for place in nodes if place != own]
    assert max(others) - min(others) <= len(nodes), f"ours prefers some regions: {used}"
    assert even["ours"] <= even["Java's"] + 0.01, "ours prefers some pairs more than Java does"


def _unevenness(pairs: Counter[tuple[str, str]], regions: tuple[str, ...]) -> float:
    """Return chi-square against equal counts for all pairs of regions, per ensemble counted: 0 is even."""
    names = [(one, other) for i, one in enumerate(sorted(regions)) for other in sorted(regions)[i + 1 :]]
    expected = sum(pairs.values()) / len(names)
    return round(sum((pairs[name] - expected) ** 2 / expected for name in names) / sum(pairs.values()), 4)


def _pairs(ensembles: list[list[str]], locations: dict[str, str | None]) -> Counter[tuple[str, str]]:
    """Count the ensembles in which two regions lie together."""
    found: Counter[tuple[str, str]] = Counter()
    for ensemble in ensembles:
        places = sorted({str(region(locations[bookie])) for bookie in ensemble})
        found.update((one, other) for i, one in enumerate(places) for other in places[i + 1 :])
    return found


def _shown(pairs: Counter[tuple[str, str]]) -> str:
    return ", ".join(f"{one}+{other} {count}" for (one, other), count in sorted(pairs.items()))
