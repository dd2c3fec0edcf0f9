"""Random topologies over regions: made from a seed, played on our placement, and on the real one by `RegionProbe`.

A topology has two states of its cluster: between them nodes go, come, turn read-only and move.
In each of them both libraries make ensembles and pick a node in the place of one of an ensemble's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.foundation.errors import CallerError
from storage_node.client.health import BookieHealth, Quarantine
from storage_node.client.placement.candidates import Candidates, FreeSpace, Weighing
from storage_node.client.placement.racks import RackMap, StaticResolver
from storage_node.client.placement.region_policy import RegionAwarePlacement, RegionSwitches
from storage_node.errors import NotEnoughBookiesError
from storage_node.protocol.writing_model import PickReplacements
from storage_node.settings.placement import PlacementSettings

REGIONS = ("ap", "eu", "sa", "uk", "us")
TIMES = 4
"""Ensembles of each state, of either library."""
SIZES = ((3, 3, 3), (4, 4, 3), (5, 5, 4), (6, 6, 4), (6, 6, 5), (9, 9, 7), (5, 4, 3), (6, 3, 3), (7, 4, 3), (9, 6, 4))
UNFIT_SIZES = ((3, 3, 2), (6, 6, 3), (4, 3, 2), (9, 9, 5), (2, 2, 1), (2, 3, 2), (3, 2, 3))
OTHER_DEPTHS = ("/default-rack", "/rack-7", "/eu/hall-1/rack-1")


@dataclass
class State:
    """A cluster at one moment."""

    locations: dict[str, str | None]
    """Also of nodes that are gone; None: not known."""
    writable: list[str]
    read_only: list[str]
    moved: list[str]
    ensemble: list[str]
    """One that stands, of which a node is to be replaced."""
    failed: int


@dataclass
class Topology:
    """What a seed gives."""

    seed: int
    regions: tuple[str, ...]
    """reppRegionsToWrite; empty: no number of regions is demanded."""
    minimum: int
    enforce_in_replace: bool
    enforce_racks: bool
    own: str | None
    disallowed: frozenset[str]
    durability_off: bool
    sizes: tuple[int, int, int]
    weights: dict[str, int]
    states: list[State] = field(default_factory=list)

    @property
    def demanded(self) -> int:
        """The number of regions for new ensembles; 0: the settings ask for none."""
        if not self.regions:
            return 0
        return 1 if self.durability_off else self.minimum

    @property
    def demanded_in_replace(self) -> int:
        """The same for replacements."""
        return self.demanded if self.enforce_in_replace else min(self.demanded, 1)


def region(location: str | None) -> str | None:
    """Return the region of a location in two parts, by this file's own reading."""
    parts = (location or "").split("/")
    return parts[1] if len(parts) == 3 and parts[1] != "default-region" else None


def draw(seed: int) -> Topology:
    """Make the topology of this seed."""
    rng = random.Random(f"topology {seed}")
    up = rng.sample(REGIONS, rng.randint(1, 5))
    racks = {name: rng.randint(1, 3) for name in up}
    nodes: dict[str, str | None] = {}
    for name in up:
        for _ in range(rng.choice((0, 1, 2, 3, 3, 4, 5, 6, 8))):
            nodes[_bookie(len(nodes))] = f"/{name}/rack-{rng.randrange(racks[name])}"
    if rng.random() < 0.2:
        for _ in range(rng.randint(1, 3)):
            nodes[_bookie(len(nodes))] = rng.choice((None, "/default-region/default-rack"))
    if rng.random() < 0.1:
        nodes[_bookie(len(nodes))] = rng.choice(OTHER_DEPTHS)
    minimum = rng.choice((1, 2, 2, 2, 3, 3))
    listed = rng.sample(up, len(up)) + [name for name in REGIONS if name not in up]
    listed = sorted(listed[: rng.randint(max(minimum, len(up) - 1), 5)]) if rng.random() < 0.85 else []
    topology = Topology(
        seed=seed,
        regions=tuple(listed),
        minimum=minimum,
        enforce_in_replace=rng.random() < 0.8,
        enforce_racks=rng.random() < 0.12,
        own=rng.choice((None, f"/{rng.choice(REGIONS)}/rack-{rng.randrange(3)}")),
        disallowed=frozenset(up if rng.random() < 0.04 else [name for name in up if rng.random() < 0.1]),
        durability_off=rng.random() < 0.05,
        sizes=rng.choice(UNFIT_SIZES if rng.random() < 0.1 else SIZES),
        weights={bookie: rng.randint(0, 2**40) for bookie in nodes} if rng.random() < 0.15 else {},
    )
    first = _state(rng, topology, nodes, [])
    later = dict(nodes)
    moved = [b for b in nodes if region(nodes[b]) is not None and rng.random() < 0.15]
    for bookie in moved:
        later[bookie] = f"/{rng.choice(up)}/rack-{rng.randrange(3)}"
    for _ in range(rng.choice((0, 0, 1, 3))):
        later[_bookie(len(later))] = f"/{rng.choice(REGIONS)}/rack-{rng.randrange(3)}"
    topology.states = [first, _state(rng, topology, later, moved)]
    return topology


def _bookie(number: int) -> str:
    return f"10.9.{number // 100}.{number % 100 + 1}:3181"


def _state(rng: random.Random, topology: Topology, nodes: Mapping[str, str | None], moved: list[str]) -> State:
    fate = {bookie: rng.choices(("writable", "read-only", "gone"), (12, 1, 1))[0] for bookie in nodes}
    writable = [bookie for bookie in nodes if fate[bookie] == "writable"]
    # Java takes the depth of its first node for the depth of all: those of two parts come first.
    writable.sort(key=lambda bookie: (nodes[bookie] or "/x/y").count("/") != 2)
    size = topology.sizes[0]
    members = rng.sample(list(nodes), size) if len(nodes) >= size else []
    return State(
        locations=dict(nodes),
        writable=writable,
        read_only=[bookie for bookie in nodes if fate[bookie] == "read-only"],
        moved=moved,
        ensemble=members,
        failed=rng.randrange(size),
    )


# ------------------------------------------------------------------------------------ ours


class _Nodes(BookieRegistry):
    """The writable nodes of one state, without a store."""

    def __init__(self) -> None:
        self.state: State | None = None

    async def writable(self) -> list[BookieAddress]:
        assert self.state is not None
        return [BookieAddress(bookie, bookie.partition(":")[0], 3181) for bookie in self.state.writable]

    async def health_check_disabled(self) -> bool:
        return True


class _Clock:
    def time(self) -> float:
        return 1000.0


@dataclass
class Played:
    """What came of one state."""

    ensembles: list[list[str]] = field(default_factory=list)
    refused: str = ""
    """The error's class, where a new ensemble was refused."""
    reason: str = ""
    picked: list[str] = field(default_factory=list)
    """Replacements; none where it was refused."""


def settings_of(topology: Topology) -> PlacementSettings:
    """Return the settings as ours. Raises CallerError."""
    return PlacementSettings(
        ensemble_placement_policy="regionaware",
        repp_dns_resolver_class="racks",
        repp_regions_to_write=";".join(topology.regions),
        repp_minimum_regions_for_durability=topology.minimum,
        repp_enable_durability_enforcement_in_replace=topology.enforce_in_replace,
        enforce_min_num_racks_per_write_quorum=topology.enforce_racks,
    )


class OurPolicy:
    """Our placement of one topology."""

    def __init__(self, topology: Topology) -> None:
        settings, rng, clock = settings_of(topology), random.Random(topology.seed), _Clock()
        self._topology = topology
        self._nodes = _Nodes()
        weighing = None
        if topology.weights:
            weighing = Weighing(FreeSpace(self._free_space, settings, clock), 3)
        candidates = Candidates(
            self._nodes, BookieHealth(clock, 60_000), Quarantine(settings, clock, rng), rng, weighing
        )
        self._table: dict[str, str] = {}
        self._racks = RackMap(StaticResolver(self._table, topology.own), clock)
        self.placement = RegionAwarePlacement(
            candidates,
            self._racks,
            settings,
            RegionSwitches(self._disallowed, self._is_on),
            rng,
            memory_ms=60_000,
            replacement_pause_ms=5_000,
            replacement_timeout_ms=2_000,
        )

    def _free_space(self, bookie: str, deliver: Callable[[int | None], None]) -> None:
        asyncio.get_running_loop().call_soon(deliver, self._topology.weights.get(bookie))

    async def _disallowed(self) -> frozenset[str]:
        return self._topology.disallowed

    def _is_on(self, scope: str | None, feature: str) -> bool:
        return scope is None and self._topology.durability_off

    def enter(self, state: State) -> None:
        """Let the cluster be as in this state from now on."""
        self._nodes.state = state
        self._table.clear()
        for bookie, location in state.locations.items():
            if location is not None:
                self._table[bookie.partition(":")[0]] = location
        self._racks.forget()

    async def play(self, state: State, times: int = TIMES) -> Played:
        """Make ensembles and a replacement."""
        self.enter(state)
        size, write_quorum, ack_quorum = self._topology.sizes
        played = Played()
        try:
            for _ in range(times):
                played.ensembles.append(list(await self.placement.new_ensemble(size, write_quorum, ack_quorum)))
        except (CallerError, NotEnoughBookiesError) as error:
            played.refused, played.reason = type(error).__name__, str(error)
        if state.ensemble and write_quorum <= size:
            wanted = PickReplacements(
                tuple(state.ensemble),
                (state.failed,),
                frozenset(state.ensemble),
                True,
                write_quorum,
                ack_quorum=ack_quorum,
            )
            try:
                played.picked += (await self.placement.replacements(wanted)).values()
            except NotEnoughBookiesError as error:
                played.reason += str(error)
        return played


# ------------------------------------------------------------------------------------ theirs


def as_case(topology: Topology, ours: Sequence[Played], times: int = TIMES) -> dict[str, Any]:
    """Return what `RegionProbe` is to play: the same, and its verdict on what ours made."""
    size, write_quorum, ack_quorum = topology.sizes
    sizes = {"E": size, "Qw": write_quorum, "Qa": ack_quorum, "excluded": []}
    settings: dict[str, str] = {
        "reppMinimumRegionsForDurability": str(topology.minimum),
        "reppEnableDurabilityEnforcementInReplace": str(topology.enforce_in_replace).lower(),
        "enforceMinNumRacksPerWriteQuorum": str(topology.enforce_racks).lower(),
        "diskWeightBasedPlacementEnabled": str(bool(topology.weights)).lower(),
    }
    if topology.regions:
        settings["reppRegionsToWrite"] = ";".join(topology.regions)
    steps: list[dict[str, Any]] = []
    for state, played in zip(topology.states, ours, strict=True):
        steps.append(
            {
                "do": "cluster",
                "locations": state.locations,
                "writable": state.writable,
                "readOnly": state.read_only,
                "moved": state.moved,
                "weights": {bookie: topology.weights.get(bookie, 0) for bookie in state.writable}
                if topology.weights
                else {},
            }
        )
        steps.append({"do": "ensemble", "times": times, **sizes})
        steps += [{"do": "judge", "ensemble": made, "replacing": False, **sizes} for made in played.ensembles]
        if state.ensemble:
            failed = state.ensemble[state.failed]
            steps.append({"do": "replace", "ensemble": state.ensemble, "failed": failed, "times": times, **sizes})
    return {
        "settings": settings,
        "own": topology.own,
        "disallowed": sorted(topology.disallowed),
        "durabilityOff": topology.durability_off,
        "steps": steps,
    }
