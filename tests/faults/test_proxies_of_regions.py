"""Proxies in the regions of a sandbox: thin clients use their own region's, and go on elsewhere when it is lost.

How long a log takes to move from region to region is told as well.

Real processes over gateways. Only with --rounds: `pytest tests/faults/test_proxies_of_regions.py --rounds 10 -s` prints
the figures of so many moves, ten at least, which docs/regions.md has. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

import pytest
from helpers.faults.region_processes import RegionClient, longest_gap_s
from helpers.faults.region_thin_clients import number_of
from helpers.fork_server import ForkServer
from helpers.waiting import wait_until

from dlspark.core.runtime import Runtime
from dlspark.core.sync.namespace import Namespace
from dlspark.sandbox.processes import child_environment
from dlspark.sandbox.proxies import READER
from dlspark.sandbox.sandbox import Sandbox
from dlspark.sandbox.state import ProxyPlace
from dlspark.serving.client.sync import Client
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.protocol.operations import Answer, Handshake, ProxyInfo
from dlspark.serving.read_proxy.proxy import COUNT, count_in
from storage_node.transport.tcp import TcpNetwork

pytestmark = [
    pytest.mark.processes,
    pytest.mark.torture,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="regions need an address each"),
]

ROUND_TRIPS_MS = (20.0, 60.0)
LEAST_MOVES = 10
SETTINGS = {"requestTimeoutMs": 120_000, "idempotentProducer": True}
R1, R2, R3 = "r1", "r2", "r3"


class Served:
    """A sandbox of three regions with a write proxy and a read proxy in each."""

    def __init__(self, directory: Path) -> None:
        self.sandbox = Sandbox(directory / "sandbox", regions=3, round_trip_ms=ROUND_TRIPS_MS[0], proxies=1)
        self.sandbox.start()
        try:
            self.namespace = Namespace.open(self.sandbox.uri, dict(self.sandbox.settings))
            self.outside = Client.connect(self.sandbox.uri)
            self.forks = ForkServer(("helpers.faults.region_thin_clients",), log=directory / "clients.log")
        except BaseException:
            self.sandbox.stop()
            raise

    def start(self, what: str, log: str, region: str) -> RegionClient:
        arguments = {
            "environment": self.sandbox.regions.environment(region),
            "uri": self.sandbox.uri,
            "log": log,
            "settings": SETTINGS,
        }
        return RegionClient(self.forks.spawn(f"helpers.faults.region_thin_clients:{what}", arguments), region)

    def homes(self, log: str) -> list[str]:
        """The regions of which a proxy says that it owns the log."""
        return self._regions_where(
            self.sandbox.state.write_proxies,
            Handshake(re.escape(log)),
            lambda answer: isinstance(answer, ProxyInfo) and answer.ownerships.get(log) == answer.location,
        )

    def move(self, log: str, region: str, *, asked_in: str) -> Mapping[str, object]:
        """`dlspark regions move` by an operator in a region; returns what it says."""
        command = ["regions", "move", log, region, "--uri", self.sandbox.uri, "--output", "json"]
        done = subprocess.run(
            [sys.executable, "-m", "dlspark.cli", *command],
            env={**os.environ, **child_environment(), **self.sandbox.regions.environment(asked_in)},
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        said: Mapping[str, object] = json.loads(done.stdout)
        return said

    def reads(self) -> list[str]:
        """The regions whose read proxy reads a log."""
        return self._regions_where(self.sandbox.state.read_proxies, COUNT, count_in)

    def _regions_where(
        self, places: list[ProxyPlace], request: Handshake, holds: Callable[[Answer], object]
    ) -> list[str]:
        async def ask() -> list[str]:
            peers = ProxyPeers(TcpNetwork())
            try:
                answers = [(place.region, await peers.call(place.frames, request)) for place in places]
            finally:
                await peers.close()
            return [region.name for region, answer in answers if region is not None and holds(answer)]

        return Runtime.shared().run(ask())

    def end(self, client: RegionClient) -> None:
        client.child.close_input()
        client.until_said("ended")
        client.child.wait()

    def close(self) -> None:
        self.forks.close()
        try:
            self.outside.close()
            self.namespace.close()
        finally:
            self.sandbox.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    opened = Served(tmp_path_factory.mktemp("proxies-of-regions"))
    try:
        yield opened
    finally:
        opened.close()


def until_acknowledged(writer: RegionClient, moment: float) -> None:
    wait_until(lambda: writer.has_after(moment), lambda: f"nothing acknowledged: {writer.outcomes.notes[-5:]}")


def check(served: Served, log: str, writer: RegionClient, reader: RegionClient | None = None) -> None:
    """Every record is in the log once, in order, where its acknowledgement says; the reader has seen the same."""
    served.end(writer)
    served.outside.release(log)  # its segment ends, so that all of it can be read
    found: dict[int, object] = {}
    with served.namespace.open_log(log) as opened, opened.open_reader() as all_of_it:
        while more := all_of_it.read_bulk(5000):
            for record in more:
                number = number_of(record.payload)
                assert number not in found, f"record {number} is there twice"
                found[number] = record.dlsn
    assert writer.outcomes.acknowledged == found
    assert not writer.outcomes.failed
    assert not writer.outcomes.unknown
    assert list(found) == sorted(found)
    if reader is not None:
        wait_until(lambda: reader.has_after(0.0) and len(reader.seen) >= len(found), "the reader has seen them all")
        served.end(reader)
        assert not reader.said("broke"), reader.outcomes.notes
        assert reader.seen == list(found)


def test_clients_use_their_own_regions_proxies_and_go_on_elsewhere_when_it_is_lost(served: Served) -> None:
    sandbox, log = served.sandbox, f"own-{time.monotonic_ns()}"
    served.namespace.create_log(log)
    writer = served.start("write", log, R2)
    reader = served.start("read", log, R3)
    until_acknowledged(writer, 0.0)
    assert served.homes(log) == [R2]
    wait_until(lambda: reader.has_after(0.0), "the reader follows")
    assert served.reads() == [R3]

    def goes_on_after(lose: Callable[[], None]) -> None:
        lose()
        lost_at = time.monotonic()
        until_acknowledged(writer, lost_at)
        wait_until(lambda: reader.has_after(lost_at), "reads go on")

    # The proxies of the writer's region end alone: it goes on in another one.
    goes_on_after(lambda: sandbox.proxies.kill_region(R2))
    assert served.homes(log) in ([R1], [R3])
    sandbox.proxies.start_region(R2)
    # A whole region is lost with the log's owner: the writer goes on at home.
    served.move(log, R1, asked_in=R2)
    assert served.homes(log) == [R1]
    goes_on_after(lambda: sandbox.kill_region(R1))
    assert served.homes(log) == [R2]
    sandbox.heal_region(R1)
    assert served.move(log, R1, asked_in=R2)["moved"]
    # The reader's read proxy ends: it reads elsewhere, and at home again once that can be.
    goes_on_after(lambda: sandbox.proxies.kill(READER - 2))
    sandbox.proxies.start_one(READER - 2)
    wait_until(lambda: R3 in served.reads(), "the reader comes home")
    check(served, log, writer, reader)


@pytest.mark.parametrize("round_trip_ms", ROUND_TRIPS_MS)
def test_a_log_moves_between_regions_and_its_writer_sees_no_error(
    served: Served, rounds: int | None, round_trip_ms: float
) -> None:
    for region in served.sandbox.regions.names:
        served.sandbox.regions.slow(region, round_trip_ms)
    log = f"move-{time.monotonic_ns()}"
    served.namespace.create_log(log)
    writer = served.start("write", log, R1)
    until_acknowledged(writer, 0.0)
    moves, pauses = [], []
    ways = [R2, R3, R1]
    for number in range(max(LEAST_MOVES, rounds or 0)):
        began, region = time.monotonic(), ways[number % len(ways)]
        said = served.move(log, region, asked_in=R1)
        assert said["moved"]
        assert served.homes(log) == [region]
        ended = time.monotonic()
        until_acknowledged(writer, ended)
        moves.append(float(str(said["took_ms"])))
        pauses.append(1000 * longest_gap_s(writer.times, began))
    print(
        f"\nround trips of {round_trip_ms:g} ms, {len(moves)} moves: dlspark regions move takes {median(moves):.0f} ms "
        f"(median; {min(moves):.0f} to {max(moves):.0f}); no write is acknowledged for {median(pauses):.0f} ms "
        f"({min(pauses):.0f} to {max(pauses):.0f})"
    )
    check(served, log, writer)
