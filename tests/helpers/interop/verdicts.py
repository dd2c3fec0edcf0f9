"""What our placement and the real one made of the same topology, held against the rule, worked out by brute force.

A difference is either named here, with the reason for which it may be (`DIFFERENCES`, listed in docs/interop.md), or a
fault. What is lawful is decided in this file alone: it shares no code with the policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import Any

from helpers.interop.topologies import Played, State, Topology, region

SAME = ("both make ensembles", "both refuse the sizes", "both refuse", "both replace", "both keep the node")
DIFFERENCES = {
    "all disallowed": "every region is disallowed: refused here, Java draws nodes at random",
    "unlawful": "Java's ensemble leaves an ack quorum to m-1 regions: it checks nobody in a region of one rack",
    "unknown region": "Java counts the nodes of unknown location as a region of their own",
    "stale region": "Java knows a node that came back elsewhere by the region that it was looked up in while away",
    "by racks": "one known region, and no number demanded: ours places by racks alone, with nodes of unknown location",
    "racks": "fewer racks than enforced: Java looks at racks of one allocation, ours at what a region holds in the end",
    "search": "lawful, by Java's check too, but its greedy order (region by region, in blocks) does not find it",
    "replaced unlawfully": "Java's replacement leaves an ack quorum to m-1 regions",
    "replaced by search": "lawful replacement that Java refuses: it checks positions that are shifted, or counts nodes"
    " that are gone as regions",
    "replaced elsewhere": "Java and ours take another region, each lawful",
}


class Fault(AssertionError):
    """A difference that nothing justifies."""


def lawful(regions: Sequence[str | None], write_quorum: int, ack_quorum: int, minimum: int) -> bool:
    """Return whether no `minimum` - 1 regions hold an ack quorum of any write set; one that is not known may be any."""
    if minimum <= 1:
        return True
    size = len(regions)
    for start in range(size):
        members = [regions[(start + i) % size] for i in range(write_quorum)]
        unknown = members.count(None)
        for group in combinations({r for r in members if r is not None}, minimum - 1):
            if sum(r in group for r in members) + unknown >= ack_quorum:
                return False
        if len({r for r in members if r is not None}) < minimum:
            return False
    return True


def in_racks(locations: Sequence[str], sizes: tuple[int, int, int], *, one_region: bool = False) -> bool:
    """Return whether each region's part of every write set spans two racks, where it is more than one node."""
    size, write_quorum, _ = sizes
    for place in {None} if one_region else {region(location) for location in locations}:
        racks = [location for location in locations if one_region or region(location) == place]
        part = max(1, int(write_quorum * len(racks) / size + 0.5))
        for start in range(len(racks)):
            if part > 1 and len({racks[(start + i) % len(racks)] for i in range(part)}) < 2:
                return False
    return True


def possible(counts: Iterable[int], sizes: tuple[int, int, int], minimum: int) -> bool:
    """Return whether regions with so many nodes can make a lawful ensemble."""
    return _possible(tuple(sorted((min(count, sizes[0]) for count in counts if count), reverse=True)), sizes, minimum)


@cache
def _possible(counts: tuple[int, ...], sizes: tuple[int, int, int], minimum: int) -> bool:
    size, write_quorum, ack_quorum = sizes
    if sum(counts) < size:
        return False
    if minimum <= 1:
        return True
    left, placed = list(counts), [-1] * size
    touching = [[[(s + i) % size for i in range(write_quorum)] for s in range(size)] for _ in range(size)]
    for position in range(size):
        touching[position] = [window for window in touching[position] if position in window]

    def fits(position: int) -> bool:
        for window in touching[position]:
            held = Counter(placed[i] for i in window if placed[i] >= 0)
            if sum(count for _, count in held.most_common(minimum - 1)) >= ack_quorum:
                return False
        return True

    def fill(position: int) -> bool:
        if position == size:
            return True
        for number in range(len(left)):
            if left[number]:
                left[number] -= 1
                placed[position] = number
                if fits(position) and fill(position + 1):
                    return True
                placed[position] = -1
                left[number] += 1
        return False

    return fill(0)


def _everything_off(topology: Topology, state: State) -> bool:
    """Return whether all regions that are up are disallowed."""
    up = {region(state.locations[bookie]) for bookie in state.writable} - {None}
    return bool(up) and up <= topology.disallowed


class Comparison:
    """Counts what is the same and what differs, over many topologies."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.judged = 0
        """Ensembles of ours that Java's own check was asked about, and passed."""

    def add(self, topology: Topology, ours: Sequence[Played], theirs: dict[str, Any]) -> None:
        """Compare one topology."""
        if "refused" in theirs:
            self._fault(topology, f"Java refuses the settings: {theirs['refused']}")
            return
        steps = iter(theirs["steps"])
        for number, (state, played) in enumerate(zip(topology.states, ours, strict=True)):
            dropped = next(steps)["dropped"]
            java = next(steps)
            verdicts = [next(steps) for _ in played.ensembles]
            replaced = next(steps) if state.ensemble else None
            try:
                self._ensembles(topology, state, played, java, verdicts, dropped)
                if replaced is not None and topology.sizes[1] <= topology.sizes[0]:
                    self._replacement(topology, state, played, replaced)
            except Fault as fault:
                self._fault(topology, f"state {number}: {fault}")

    def _fault(self, topology: Topology, text: str) -> None:
        self.faults.append(f"seed {topology.seed}: {text}")

    def _ensembles(
        self,
        topology: Topology,
        state: State,
        played: Played,
        java: dict[str, Any],
        verdicts: Sequence[dict[str, Any]],
        dropped: Sequence[str],
    ) -> None:
        size, write_quorum, ack_quorum = topology.sizes
        allowed = {
            b for b in state.writable if (r := region(state.locations[b])) is None or r not in topology.disallowed
        }
        located = Counter(r for b in allowed if (r := region(state.locations[b])) is not None)
        for made, verdict in zip(played.ensembles, verdicts, strict=True):
            if len({*made}) != size or not allowed >= {*made}:
                raise Fault(f"ours are not {size} distinct nodes that may be used: {made}")
            regions = [region(state.locations[b]) for b in made]
            if not lawful(regions, write_quorum, ack_quorum, topology.demanded):
                raise Fault(f"ours is not lawful: {regions}")
            by_racks = topology.demanded <= 1 and len(located) < 2
            racks = [str(state.locations[b]) for b in made]
            if topology.enforce_racks and not in_racks(racks, topology.sizes, one_region=by_racks):
                raise Fault(f"ours is in too few racks: {[state.locations[b] for b in made]}")
            if topology.demanded and not {*dropped} & {*made}:
                if not all(verdict["fits"]) or not verdict["valid"]:
                    raise Fault(f"ours does not pass Java's check: {regions} {verdict}")
                self.judged += 1
        unfit = "IllegalArgumentException" in java["refused"]
        everything_off = _everything_off(topology, state)
        if unfit != (played.refused == "CallerError") and not (everything_off and played.refused):
            raise Fault(f"sizes {topology.sizes}: Java {java['refused']}, ours {played.refused!r} {played.reason}")
        if unfit:
            self.counts["both refuse the sizes"] += 1
        elif played.ensembles:
            if played.refused:
                raise Fault(f"ours refuses by chance: {played.reason}")
            self.counts["both make ensembles" if java["made"] else "search"] += 1
        else:
            # Refused here. It must be impossible, and what Java made must be against the rule.
            counts = located.values()
            enough = possible(counts, topology.sizes, topology.demanded)
            if enough and not topology.enforce_racks and not everything_off:
                raise Fault(f"ours refuses what is possible with {dict(located)}: {played.reason}")
            self.counts[self._why_refused(topology, state, java["made"], everything_off)] += 1

    def _why_refused(self, topology: Topology, state: State, made: list[list[str]], everything_off: bool) -> str:
        if not made:
            return "both refuse"
        if everything_off:
            return "all disallowed"
        _, write_quorum, ack_quorum = topology.sizes
        reasons = []
        former = topology.states[0]
        for ensemble in made:
            regions = [region(state.locations[b]) for b in ensemble]
            barred = [b for b in ensemble if region(state.locations[b]) in topology.disallowed]
            if barred:
                if any(b in former.writable or former.locations[b] == state.locations[b] for b in barred):
                    raise Fault(f"Java uses {barred}, whose regions are disallowed, and nothing explains it")
                reasons.append("stale region")
            elif None in regions:
                reasons.append("unknown region")
            elif not lawful(regions, write_quorum, ack_quorum, topology.demanded):
                reasons.append("unlawful")
            elif not topology.enforce_racks or in_racks([str(state.locations[b]) for b in ensemble], topology.sizes):
                raise Fault(f"ours refuses where Java makes {[state.locations[b] for b in ensemble]}")
            else:
                reasons.append("racks")
        return max(reasons, key=reasons.count)

    def _replacement(self, topology: Topology, state: State, played: Played, java: dict[str, Any]) -> None:
        _, write_quorum, ack_quorum = topology.sizes
        minimum = topology.demanded_in_replace
        failed = state.ensemble[state.failed]
        home = region(state.locations[failed])

        def of(bookie: str) -> str | None:
            return region(state.locations[bookie])

        def touching(bookie: str | None) -> list[list[str | None]]:
            members = list(state.ensemble)
            if bookie is not None:
                members[state.failed] = bookie
            size = len(members)
            windows = [[(s + i) % size for i in range(write_quorum)] for s in range(size)]
            return [
                [of(members[i]) for i in window if bookie is not None or i != state.failed]
                for window in windows
                if state.failed in window
            ]

        def broken(window: list[str | None], doubting: bool) -> bool:
            held = Counter(r for r in window if r is not None)
            most = sum(count for _, count in held.most_common(minimum - 1))
            return most + (window.count(None) if doubting else 0) >= ack_quorum

        def keeps(bookie: str | None, doubting: bool = True) -> bool:
            return minimum <= 1 or not any(broken(window, doubting) for window in touching(bookie))

        free = [b for b in state.writable if b not in state.ensemble and of(b) not in topology.disallowed]
        near = [b for b in free if home is not None and of(b) == home]
        anomalous = not keeps(None, doubting=False)
        murky = any(of(b) is None for b in state.ensemble) or topology.enforce_racks
        known = {of(b) for b in [*state.ensemble, *free]} - {None}
        if played.picked:
            (pick,) = played.picked
            if pick not in free:
                raise Fault(f"ours takes {pick}, which may not be used")
            if topology.demanded <= 1 and len(known) < 2 and of(pick) != home:
                self.counts["by racks"] += 1
                return
            if near and of(pick) != home and not topology.enforce_racks:
                raise Fault(f"ours takes {of(pick)} though {home} has nodes")
            rack = state.locations[failed]
            if any(state.locations[b] == rack for b in near) and state.locations[pick] != rack and not murky:
                raise Fault(f"ours leaves the rack {rack}, which has nodes")
            if of(pick) != home and not anomalous and not keeps(pick, doubting=not murky):
                raise Fault(f"ours takes {of(pick)}, which is not lawful: {[of(b) for b in state.ensemble]}")
            if not java["picked"]:
                self.counts["replaced by search"] += 1
            elif {of(b) for b in java["picked"]} == {home} or of(pick) in {of(b) for b in java["picked"]}:
                self.counts["both replace"] += 1
            elif home is None:
                self.counts["unknown region"] += 1
            else:
                self.counts["replaced elsewhere"] += 1
            return
        if _everything_off(topology, state):
            self.counts["all disallowed" if java["picked"] else "both keep the node"] += 1
            return
        if near and not topology.enforce_racks:
            raise Fault(f"ours keeps {failed} though {home} has nodes")
        usable = [b for b in free if of(b) is not None and keeps(b)] if not anomalous and minimum > 1 else free
        if usable and not topology.enforce_racks:
            raise Fault(f"ours keeps {failed} though {of(usable[0])} could take its place")
        if not java["picked"]:
            self.counts["both keep the node"] += 1
        elif any(of(b) is None for b in java["picked"]):
            self.counts["unknown region"] += 1
        elif topology.enforce_racks:
            self.counts["racks"] += 1
        else:
            self.counts["replaced unlawfully"] += 1

    def summary(self) -> str:
        """Return the counts, a line each."""
        lines = [f"{self.judged:8,} ensembles of ours pass Java's own check"]
        known = [*SAME, *DIFFERENCES]
        lines += [f"{count:8,} {name}" for name, count in sorted(self.counts.items(), key=lambda i: known.index(i[0]))]
        return "\n".join(lines)
