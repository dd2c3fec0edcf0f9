"""A region is lost while logs are written and followed: killed, cut off in one direction or both, or slow.

Three regions, 20 ms apart, each with two storage nodes and a ZooKeeper voter. In each round a writer is in one region,
another one that waits for its log in a second, with a reader; the seed decides what happens to which region, the
writer's own or the third. Then, while the region is still lost, writes must be acknowledged again, by the writer that
can; everything that was acknowledged is in the log, and the reader has seen nothing else (`verdict.check_round`).

The voter of the lost region is lost with it: in a third of the rounds of seeds 0 to 9, 20 to 29 and so on the one
that leads, and in all rounds of the others. Replay a round with `--seed N`; ten seeds in a row are all kinds of loss. A
table at the end has the times.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.faults.region_processes import RegionClient, longest_gap_s
from helpers.faults.verdict import Outcomes, check_round
from helpers.fork_server import ForkServer
from helpers.waiting import wait_until

from dlspark.core.codec.records import LogRecord
from dlspark.core.runtime import Runtime
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.zookeeper.client import ZooKeeperStore

pytestmark = [
    pytest.mark.processes,
    pytest.mark.torture,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="regions need an address each"),
]

DEFAULT_ROUNDS = 1
ROUND_TRIP_MS = 20.0
SLOW_ROUND_TRIP_MS = 800.0
LOST_FOR_S = 5.0
"""How long acknowledgements go on at least, from the first one after the loss, until the region is healed."""
SESSION_S = 4
SETTINGS = {
    "zkSessionTimeoutSeconds": SESSION_S,
    "lockTimeoutSeconds": 30,
    "periodicFlushFrequencyMilliSeconds": 5,
    "writerOutputBufferSize": 2048,
}
NUMBERS_PER_WRITER = 1_000_000
KINDS = ("killed", "cut off", "cut off inwards", "cut off outwards", "slow")
PLANS = list(itertools.product(KINDS, ("third", "own")))
ORDER = (1, 2, 5, 6, 9, 0, 3, 4, 7, 8)
"""Of the plans: the first two, which are always played, are a killed region of a writer and another one cut off."""


@dataclass
class Round:
    """What the table says of a round."""

    seed: int
    kind: str
    which: str
    led: bool
    writes_stopped_s: float
    reads_stopped_s: float


class Regions:
    """The sandbox of all rounds."""

    def __init__(self, directory: Path) -> None:
        self.played: list[Round] = []
        self.sandbox = Sandbox(directory / "sandbox", regions=3, round_trip_ms=ROUND_TRIP_MS)
        self.sandbox.start()
        try:
            self.namespace = Namespace.open(self.sandbox.uri, {**SETTINGS, **self.sandbox.settings})
            self.forks = ForkServer(("helpers.faults.region_clients",), log=directory / "clients.log")
        except BaseException:
            self.sandbox.stop()
            raise

    def start(self, what: str, name: str, log: str, region: str, **more: object) -> RegionClient:
        arguments = {
            "environment": self.sandbox.regions.environment(region),
            "name": name,
            "uri": self.sandbox.uri,
            "log": log,
            "settings": SETTINGS,
            **more,
        }
        return RegionClient(self.forks.spawn(f"helpers.faults.region_clients:{what}", arguments), region)

    def leading_region(self) -> str:
        """The region of the voter that leads."""
        from metadata.zookeeper.homing import four_letters

        places = self.sandbox.state.regions
        modes = {p.name: four_letters(p.host, p.zookeeper_port, "srvr") for p in places}
        return next((name for name, said in modes.items() if "Mode: leader" in said), "none")

    def lose(self, kind: str, region: str) -> None:
        if kind == "killed":
            self.sandbox.kill_region(region)
        elif kind == "slow":
            self.sandbox.regions.slow(region, SLOW_ROUND_TRIP_MS)
        else:
            direction = {"cut off": "both", "cut off inwards": "in", "cut off outwards": "out"}[kind]
            self.sandbox.regions.cut(region, direction)  # type: ignore[arg-type]

    def await_all_nodes(self) -> None:
        """Wait until every node is registered: a round begins with all regions."""

        async def count() -> int:
            store = await ZooKeeperStore.connect(self.sandbox.zookeeper_address)
            try:
                return len(await BookieRegistry(store, LEDGERS_PATH).writable())
            finally:
                await store.close()

        wait_until(lambda: Runtime.shared().run(count()) == self.sandbox.node_count, "all nodes are registered")

    def close(self) -> None:
        self.forks.close()
        try:
            self.namespace.close()
        finally:
            self.sandbox.stop()


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    opened = Regions(tmp_path_factory.mktemp("regions"))
    try:
        yield opened
    finally:
        opened.close()


def with_leader_lost(leading: str, places: tuple[str, str, str], which: str) -> tuple[str, str, str]:
    """The same places, in an order in which the region that is lost has the voter that leads."""
    home, second, third = places
    lost = home if which == "own" else third
    swapped = {lost: leading, leading: lost}
    return swapped.get(home, home), swapped.get(second, second), swapped.get(third, third)


def play(regions: Regions, seed: int) -> Round:
    """One round."""
    rng = random.Random(seed)
    kind, which = PLANS[ORDER[seed % len(ORDER)]]
    home, second, third = rng.sample(regions.sandbox.regions.names, 3)
    if seed // len(ORDER) % 2:
        home, second, third = with_leader_lost(regions.leading_region(), (home, second, third), which)
    lost = home if which == "own" else third
    regions.await_all_nodes()
    name = f"regions-{seed}-{time.monotonic_ns()}"
    regions.namespace.create_log(name)
    writer = regions.start("write", "writer", name, home, first=0)
    writer.until_said("owner")
    heir = regions.start("write", "heir", name, second, first=NUMBERS_PER_WRITER)
    reader = regions.start("read", "reader", name, second)
    wait_until(lambda: reader.has_after(0.0) and len(reader.seen) >= 200, "the reader follows")
    led = regions.leading_region() == lost
    try:
        lost_at = time.monotonic()
        regions.lose(kind, lost)
        if kind == "killed" and which == "own":
            writer.child.kill()  # it was in the region
        # Where the writer's own region is left alone its session may still have been at the lost voter, and end with
        # it: then the heir goes on, as it should.
        may_go_on = [heir] if which == "own" and kind != "slow" else [writer, heir]

        def acknowledged_after(moment: float) -> bool:
            return any(one.has_after(moment) for one in may_go_on)

        wait_until(
            lambda: acknowledged_after(lost_at),
            lambda: f"nothing acknowledged: {[one.outcomes.notes[-5:] for one in may_go_on]}",
        )
        back_at = min(moment for one in may_go_on for moment in one.times if moment > lost_at)
        wait_until(lambda: acknowledged_after(back_at + LOST_FOR_S), "writes go on while the region is lost")
        wait_until(lambda: reader.has_after(back_at + LOST_FOR_S / 2), "reads go on while the region is lost")
        healed_at = time.monotonic()
    finally:
        regions.sandbox.heal_region(lost)
    writers = [writer, heir]
    for one in writers:
        one.child.close_input()
    for one in writers:
        one.until_said("ended")
        one.child.wait()
    records = _check_log(regions, name, writers, reader)
    assert records, "an empty log shows nothing"
    acknowledged = [moment for one in writers for moment in one.times if moment <= healed_at]
    seen = [moment for moment in reader.times if moment <= healed_at]
    return Round(seed, kind, which, led, longest_gap_s(acknowledged, lost_at), longest_gap_s(seen, lost_at))


def _check_log(regions: Regions, name: str, writers: list[RegionClient], reader: RegionClient) -> list[LogRecord]:
    outcomes = Outcomes()
    for one in writers:
        outcomes.acknowledged |= one.outcomes.acknowledged
        outcomes.failed |= one.outcomes.failed
        outcomes.unknown |= one.outcomes.unknown
    records: list[LogRecord] = []
    with regions.namespace.open_log(name) as log, log.open_reader() as all_of_it:
        while more := all_of_it.read_bulk(5000):
            records += more
    wait_until(lambda: reader.has_after(0.0) and len(reader.seen) >= len(records), "the reader has seen them all")
    reader.child.close_input()
    reader.until_said("ended")
    reader.child.wait()
    assert not reader.said("broke"), reader.outcomes.notes
    assert reader.seen == [record.txid for record in records], "the reader saw something else"
    check_round(outcomes, records, [])
    return records


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" not in metafunc.fixturenames:
        return
    one: int | None = metafunc.config.getoption("--seed")
    rounds: int | None = metafunc.config.getoption("--rounds")
    seeds = [one] if one is not None else list(range(DEFAULT_ROUNDS if rounds is None else rounds))
    metafunc.parametrize("round_seed", seeds)


def test_a_lost_region_loses_nothing_that_was_acknowledged_and_writes_come_back(
    regions: Regions, round_seed: int
) -> None:
    regions.played.append(play(regions, round_seed))
    print(regions.played[-1])


def test_times_are_told(regions: Regions) -> None:
    if not regions.played:
        pytest.skip("no round was played")
    print(f"\nround trips of {ROUND_TRIP_MS:g} ms, sessions of {SESSION_S} s; the longest time without:")
    print(f"{'region lost':<18} {'of':<9} {'rounds':>6} {'writes, median':>15} {'most':>6} {'reads':>15} {'most':>6}")
    for (kind, which), played in itertools.groupby(
        sorted(regions.played, key=lambda r: (r.kind, r.which)), key=lambda r: (r.kind, r.which)
    ):
        rows = list(played)
        writes, reads = sorted(r.writes_stopped_s for r in rows), sorted(r.reads_stopped_s for r in rows)
        whose = "writer's" if which == "own" else "another"
        print(
            f"{kind:<18} {whose:<9} {len(rows):>6} {writes[len(rows) // 2]:>13.2f} s {writes[-1]:>4.2f} s "
            f"{reads[len(rows) // 2]:>13.2f} s {reads[-1]:>4.2f} s"
        )
    assert all(played.reads_stopped_s > 0 for played in regions.played)
