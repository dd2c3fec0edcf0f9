"""Outages of a real cluster while a batch is committed, in both modes: each row is in the log once all the same.

The driver is held before its batch becomes visible; then storage nodes die or stand still, or ZooKeeper dies, and it
goes on. They come back in time, and it is done; or they do not, it ends with an error, and the next driver goes on.
Each mode meets some of the outages; with --rounds each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.rounds import pairs_with_rounds
from helpers.spark.driver_processes import Spawner, fault, finish
from helpers.spark.sink_driver import Plan
from helpers.spark.typed_frames import Using
from helpers.waiting import wait_until

from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.processes, pytest.mark.torture, pytest.mark.usefixtures("frames")]

NODES = 4
GONE = (0, 1, 2)
"""With these gone there is one node, where an entry needs two."""
Act = Callable[[Sandbox], None]


@pytest.fixture(scope="module")
def outage_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One that no other test needs."""
    with Sandbox(tmp_path_factory.mktemp("cluster"), nodes=NODES) as running:
        yield running


def kill_nodes(outage_sandbox: Sandbox) -> None:
    for index in GONE:
        outage_sandbox.kill_node(index)


def start_nodes(outage_sandbox: Sandbox) -> None:
    for index in GONE:
        outage_sandbox.start_node(index)


def stop_nodes(outage_sandbox: Sandbox) -> None:
    for index in GONE:
        outage_sandbox.pause_node(index)


def wake_nodes(outage_sandbox: Sandbox) -> None:
    for index in GONE:
        outage_sandbox.resume_node(index)


OUTAGES: dict[str, tuple[Act, Act]] = {
    "nodes die": (kill_nodes, start_nodes),
    "nodes stand still": (stop_nodes, wake_nodes),
    "ZooKeeper dies": (Sandbox.kill_zookeeper, Sandbox.start_zookeeper),
}


class Held:
    """A driver that is held before its second batch becomes visible."""

    def __init__(self, outage_sandbox: Sandbox, place: Path, spawn: Spawner, name: str, mode: str, outage: str) -> None:
        name = f"{name}-{Using.frames.kind}"
        self.plan = Plan(
            uri=outage_sandbox.uri,
            query_id=name,
            logs=(f"{name}-log",),
            batches=4,
            rows=50,
            checkpoint=str(place / "checkpoint"),
            stamped=False,
            empty=0.0,
            mode=mode,
            outage=outage,
            kind=Using.frames.kind,
        )
        self.plan.declare()
        self._spawn = spawn
        self._go_on = place / "go-on"
        flag = place / "flag"
        self.process = spawn(self.plan, 1, fault("sink.before-publish", "wait", flag, 1, until=self._go_on))
        wait_until(flag.exists, "the driver is held")

    def go_on(self) -> None:
        self._go_on.touch()

    def check(self) -> None:
        """A driver finishes what is left; then the log has everything once and in order."""
        assert finish(self._spawn(self.plan, 2)) == 0
        txids, values = self.plan.read(self.plan.logs[0])
        assert values == self.plan.expected(self.plan.logs[0])
        assert txids == sorted(txids)


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("append", "nodes die"),
        ("segments", "nodes stand still"),
        ("segments", "ZooKeeper dies"),
        *pairs_with_rounds(("append", "nodes stand still"), ("append", "ZooKeeper dies"), ("segments", "nodes die")),
    ],
)
def test_what_comes_back_in_time_is_waited_for(
    outage_sandbox: Sandbox, tmp_path: Path, spawn: Spawner, mode: str, what: str
) -> None:
    away, back = OUTAGES[what]
    held = Held(outage_sandbox, tmp_path, spawn, f"{mode}-{what.replace(' ', '-')}", mode, "1m")
    away(outage_sandbox)
    try:
        held.go_on()
    finally:
        back(outage_sandbox)
    assert finish(held.process) == 0
    held.check()


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("append", "nodes stand still"),
        ("segments", "nodes die"),
        *pairs_with_rounds(("append", "nodes die"), ("segments", "nodes stand still")),
    ],
)
def test_what_stays_away_ends_the_driver_and_the_next_one_goes_on(
    outage_sandbox: Sandbox, tmp_path: Path, spawn: Spawner, mode: str, what: str
) -> None:
    away, back = OUTAGES[what]
    held = Held(outage_sandbox, tmp_path, spawn, f"{mode}-{what.replace(' ', '-')}-for-long", mode, "2s")
    away(outage_sandbox)
    try:
        held.go_on()
        assert finish(held.process) == 1
    finally:
        back(outage_sandbox)
    held.check()
