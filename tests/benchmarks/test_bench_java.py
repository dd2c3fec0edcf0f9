"""Four pairs of client and cluster: each ratio is of the two pairs that differ in what it compares."""

from __future__ import annotations

from benchmarks.costs import Costs
from benchmarks.java_cluster import ROOT
from benchmarks.java_pairs import LARGE_WINDOWS, SMALL_WARM_UPS, JavaPairs, Load
from benchmarks.results import Measured
from dlspark.sandbox.beginning import LEDGERS_PATH

P50_US = {
    ("Java client", LEDGERS_PATH): 100.0,
    ("Java client", ROOT): 200.0,
    ("our client", LEDGERS_PATH): 50.0,
    ("our client", ROOT): 160.0,
}
LOADS = [load for load in Load for _ in range(LARGE_WINDOWS if load is Load.LARGE else 1)]
"""In which order: one for each window of a pair in a round."""


class ClientOf:
    def __init__(self, name: str, asked: list[tuple[Load, str, str] | str]) -> None:
        self.name = name
        self._asked = asked

    def measure(self, load: Load, root: str, seconds: float) -> Measured:
        self._asked.append((load, self.name, root))
        p50 = P50_US[self.name, root]
        costs = None if self.name == "Java client" else Costs("entry", {"nodes": {"processor us": p50 / 10}})
        return Measured((p50, 10 * p50) if load is Load.APPENDS else (1e5 / p50,), costs)


def pairs_that_note(asked: list[tuple[Load, str, str] | str]) -> JavaPairs:
    clients = ClientOf("Java client", asked), ClientOf("our client", asked)
    return JavaPairs(*clients, lambda: (1e8, 1e9), lambda: asked.append("settled"))


def test_nodes_are_compared_under_each_client_and_clients_on_each_kind_of_node() -> None:
    pairs = pairs_that_note([])
    pairs.round(1.0)
    ratios = {row.what: row.ratios for row in pairs.rows}
    assert len(ratios) == 21
    assert ratios["our nodes, Java client: append 100 B, depth 1, p50"] == [100 / 200]
    assert ratios["our nodes, our client: append 100 B, depth 1, p99"] == [50 / 160]
    assert ratios["our client, Java bookies: append 100 B, depth 1, p50"] == [160 / 200]
    assert ratios["our client, our nodes: write 256 KB, depth 16"] == [2.0]
    assert ratios["memory of a node (RSS)"] == [0.1]


def test_what_an_entry_costs_our_nodes_stands_once_a_load_beside_what_it_costs_javas() -> None:
    pairs = pairs_that_note([])
    pairs.round(1.0)
    known = {row.what: row.costs[0].figures for row in pairs.rows if row.costs}
    assert [what.split(": ")[1] for what in known] == [
        *("append 100 B, depth 1, p50", "1 KB entries, depth 256", "write 256 KB, depth 16", "read 256 KB")
    ]
    assert all(what.startswith("our nodes, our client") for what in known)
    both = {"nodes": {"processor us": 5.0}, "Java bookies: nodes": {"processor us": 16.0}}
    assert all(figures == both for figures in known.values())


def test_every_pair_is_warmed_up_with_every_load_before_anything_counts() -> None:
    asked: list[tuple[Load, str, str] | str] = []
    pairs_that_note(asked).round(1.0)
    warm_up = asked[: asked.index("settled")]
    for client, root in P50_US:
        assert {load for load in Load if (load, client, root) in warm_up} == set(Load)
        assert warm_up.count((Load.SMALL, client, root)) == SMALL_WARM_UPS


def test_pairs_take_turns_with_each_load_on_settled_disks_and_another_one_begins_in_each_round() -> None:
    asked: list[tuple[Load, str, str] | str] = []
    pairs = pairs_that_note(asked)
    pairs.round(1.0)
    del asked[: asked.index("settled")]
    for _ in range(3):
        pairs.round(1.0)
    assert asked[::2] == ["settled"] * (4 * 4 * len(LOADS))
    counted = [window for window in asked if not isinstance(window, str)]
    turns = [counted[at : at + 4] for at in range(0, len(counted), 4)]
    assert [{load for load, _, _ in turn} for turn in turns] == [{load} for load in LOADS] * 4
    assert all(sorted(window[1:] for window in turn) == sorted(P50_US) for turn in turns)
    assert sorted(turn[0][1:] for turn in turns[:: len(LOADS)]) == sorted(P50_US)


def test_of_several_windows_in_a_round_the_mean_counts() -> None:
    """A Java bookie writes a large entry three times as fast in one window as in the next."""
    rates = iter(range(1, 1_000))

    class Swinging(ClientOf):
        def measure(self, load: Load, root: str, seconds: float) -> Measured:
            found = super().measure(load, root, seconds)
            return Measured((float(next(rates)),)) if load is Load.LARGE and "settled" in self._asked else found

    asked: list[tuple[Load, str, str] | str] = []
    clients = Swinging("Java client", asked), Swinging("our client", asked)
    pairs = JavaPairs(*clients, lambda: (1e8, 1e9), lambda: asked.append("settled"))
    pairs.round(1.0)
    own, others = (sum(range(first, 4 * LARGE_WINDOWS + 1, 4)) / LARGE_WINDOWS for first in (3, 1))
    row = next(row for row in pairs.rows if row.what == "our nodes, our client: write 256 KB, depth 16")
    assert row.measured == [own]
    row = next(row for row in pairs.rows if row.what == "our nodes, Java client: write 256 KB, depth 16")
    assert row.measured == [others]
