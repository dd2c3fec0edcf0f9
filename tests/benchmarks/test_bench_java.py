"""Four pairs of client and cluster: each ratio is of the two pairs that differ in what it compares."""

from __future__ import annotations

from benchmarks.java_cluster import ROOT
from benchmarks.java_pairs import Figures, JavaPairs
from dlspark.sandbox import LEDGERS_PATH

P50_US = {
    ("Java client", LEDGERS_PATH): 100.0,
    ("Java client", ROOT): 200.0,
    ("our client", LEDGERS_PATH): 50.0,
    ("our client", ROOT): 160.0,
}


class ClientOf:
    def __init__(self, name: str, asked: list[tuple[str, str]]) -> None:
        self.name = name
        self._asked = asked

    def measure(self, root: str, seconds: float) -> Figures:
        self._asked.append((self.name, root))
        p50 = P50_US[self.name, root]
        return Figures(p50, 10 * p50, 1e6 / p50, 1e5 / p50, 1e5 / p50)


def test_nodes_are_compared_under_each_client_and_clients_on_each_kind_of_node() -> None:
    asked: list[tuple[str, str]] = []
    pairs = JavaPairs(ClientOf("Java client", asked), ClientOf("our client", asked), lambda: (1e8, 1e9))
    pairs.round(1.0)
    ratios = {row.what: row.ratios for row in pairs.rows}
    assert len(ratios) == 21
    assert ratios["our nodes, Java client: append 100 B, depth 1, p50"] == [100 / 200]
    assert ratios["our nodes, our client: append 100 B, depth 1, p99"] == [50 / 160]
    assert ratios["our client, Java bookies: append 100 B, depth 1, p50"] == [160 / 200]
    assert ratios["our client, our nodes: write 256 KB, depth 16"] == [2.0]
    assert ratios["memory of a node (RSS)"] == [0.1]


def test_every_pair_is_warmed_up_once_and_another_one_begins_in_each_round() -> None:
    asked: list[tuple[str, str]] = []
    pairs = JavaPairs(ClientOf("Java client", asked), ClientOf("our client", asked), lambda: (1.0, 1.0))
    for _ in range(4):
        pairs.round(1.0)
    assert len(asked) == 5 * 4
    assert sorted(asked[:4]) == sorted(P50_US)
    assert sorted(asked[4::4]) == sorted(P50_US)
