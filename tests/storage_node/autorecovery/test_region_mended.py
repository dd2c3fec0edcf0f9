"""A region of storage nodes is lost and comes back, with real processes: every ledger's placement comes back as well.

Three regions with two storage nodes each; two processes of auto-recovery move copies
(repairedPlacementPolicyNotAdheringBookieEnable), each in a region that stays. While the region is lost ledgers are
written on, and what it held is restored elsewhere, in two regions: that is what the rule asks for then. Once it is back
the operator asks for three regions again, one process of auto-recovery is killed amid its work, and in the end
`dlspark regions check` counts no ledger that does not keep the rule, and every entry is on each of its nodes.

Only with `--rounds N`; the seed says which region is lost, whether its ZooKeeper server goes too, and when the process
is killed. `--seed N` replays one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import javaproperties
import pytest
from helpers.waiting import until

from dlspark.sandbox.beginning import LEDGERS_PATH
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.pacing import for_each
from metadata.zookeeper.client import ZooKeeperStore
from storage_node.client.client import LedgerClient
from storage_node.protocol.striping import write_set
from storage_node.settings.client import ClientSettings
from storage_node.settings.placement import PlacementSettings

pytestmark = [
    pytest.mark.processes,
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="regions need an address each"),
]

ROUND_TRIP_MS = 4.0
LEDGERS = 12
PATIENCE_S = 240.0


def over_regions(minimum: int, prefix: str = "", resolver: str = "reppDnsResolverClass") -> dict[str, str]:
    """Return the keys of a rule over so many regions, by acknowledgements."""
    return {
        f"{prefix}ensemblePlacementPolicy": "regionaware",
        f"{prefix}reppMinimumRegionsForDurability": str(minimum),
        f"{prefix}enforceMinNumFaultDomainsForWrite": "true",
        resolver: "announced",
    }


@dataclass
class Mender:
    """A process of auto-recovery."""

    process: subprocess.Popen[bytes]
    log: Path

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(60)


class Regions:
    """The sandbox of all rounds, and what runs beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sandbox = Sandbox(directory / "sandbox", regions=3, round_trip_ms=ROUND_TRIP_MS)
        self.menders: list[Mender] = []
        self._started = 0
        self.sandbox.start()

    def region_of(self, node: str) -> str:
        """The region of a node, by the address in its name."""
        return next(name for name, place in self.sandbox.regions.places.items() if node.startswith(f"{place.host}:"))

    def mend(self, region: str, minimum: int) -> Mender:
        """Start auto-recovery in a region, which asks for so many regions."""
        self._started += 1
        conf = self.directory / f"mender-{self._started}.conf"
        settings = {
            **over_regions(minimum),
            "zkServers": self.sandbox.zookeeper_address,
            "zkLedgersRootPath": LEDGERS_PATH,
            "zkTimeout": "4000",
            "bookieId": f"mender-{self._started}:3181",
            "repairedPlacementPolicyNotAdheringBookieEnable": "true",
            "auditorPeriodicPlacementPolicyCheckInterval": "2",
            "openLedgerRereplicationGracePeriod": "1000",
            "lockReleaseOfFailedLedgerGracePeriod": "5000",
            "rwRereplicateBackoffMs": "200",
        }
        conf.write_text(javaproperties.dumps(settings, timestamp=None))
        log = conf.with_suffix(".log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "storage_node.autorecovery", "--conf", str(conf)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.sandbox.regions.environment(region)},
            )
        mender = Mender(process, log)
        self.menders.append(mender)
        return mender

    async def check(self, minimum: int) -> Mapping[str, int]:
        """What `dlspark regions check` counts by a rule over so many regions."""
        settings = {
            **over_regions(minimum, "bkc.", "bkEnsemblePlacementDnsResolverClass"),
            "ack-quorum-size": str(max(minimum, 2)),
        }
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "dlspark.cli", "regions", "check", "--uri", self.sandbox.uri]
        process = await asyncio.create_subprocess_exec(
            *command, *given, "--output", "json", stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        output, errors = await process.communicate()
        assert process.returncode in (0, 3), errors.decode()
        found: dict[str, int] = json.loads(output)
        assert (process.returncode == 3) == bool(found["fail"] or found["unreadable"])
        return found

    def close(self) -> None:
        for mender in self.menders:
            if mender.process.poll() is None:
                mender.process.kill()
                mender.process.wait(60)
        self.sandbox.stop()


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Regions]:
    opened = Regions(tmp_path_factory.mktemp("mended"))
    try:
        yield opened
    finally:
        opened.close()


@dataclass
class Cluster:
    """The cluster as a test sees it, in no region."""

    store: ZooKeeperStore
    ledgers: LedgerStore
    registry: BookieRegistry
    marks: ReplicationStore
    plain: LedgerClient
    """Knows nothing of regions."""
    ruled: LedgerClient
    """Each of its ledgers carries a rule over two regions."""
    written: dict[int, int] = field(default_factory=dict)
    """Ledgers, and how many entries each has."""

    async def write(self, rng: random.Random) -> None:
        """Write closed ledgers of both kinds."""

        async def one(number: int) -> None:
            client = self.ruled if number % 2 else self.plain
            entries = rng.randint(1, 30)
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"pw")
            await asyncio.gather(*(writer.add(payload(writer.ledger_id, n)) for n in range(entries)))
            await writer.close()
            self.written[writer.ledger_id] = entries

        await for_each(range(LEDGERS), 4, one)

    async def names(self, nodes: set[str]) -> bool:
        """Whether any ledger names one of the nodes."""
        found = [(await self.ledgers.read(ledger_id)).value for ledger_id in self.written]
        return any(nodes & set(part.bookies) for metadata in found for part in metadata.ensembles)

    async def is_marked(self) -> bool:
        async for _ in self.marks.marked():
            return True
        return False

    async def read_every_copy(self) -> int:
        """Read each entry from each of its nodes by itself; how many copies that were."""
        copies = 0

        async def read(ledger_id: int) -> None:
            nonlocal copies
            metadata = (await self.ledgers.read(ledger_id)).value
            assert metadata.is_closed
            assert metadata.last_entry == self.written[ledger_id] - 1
            replicas = self.plain.copies(ledger_id, metadata)
            for entry_id in range(self.written[ledger_id]):
                bookies = metadata.ensemble_for(entry_id).bookies
                for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                    entry = await replicas.read(bookies[index], entry_id)
                    assert bytes(entry.payload) == payload(ledger_id, entry_id)
                    copies += 1

        await for_each(list(self.written), 8, read)
        return copies


@asynccontextmanager
async def cluster_of(regions: Regions) -> AsyncIterator[Cluster]:
    store = await ZooKeeperStore.connect(regions.sandbox.zookeeper_address)
    ledgers, registry = LedgerStore(store, LEDGERS_PATH), BookieRegistry(store, LEDGERS_PATH)
    rule = PlacementSettings(
        ensemble_placement_policy="regionaware",
        enforce_min_num_fault_domains_for_write=True,
        repp_dns_resolver_class="announced",
    )
    plain = LedgerClient(ledgers, registry)
    ruled = LedgerClient(
        ledgers, registry, settings=ClientSettings(placement=rule), topology=TopologyStore(store, LEDGERS_PATH)
    )
    try:
        yield Cluster(store, ledgers, registry, ReplicationStore(store, LEDGERS_PATH), plain, ruled)
    finally:
        await plain.close()
        await ruled.close()
        for ledger_id in [ledger_id async for ledger_id in ledgers.ids()]:
            await ledgers.delete(ledger_id)  # the next round counts its own
        await store.close()


def payload(ledger_id: int, entry_id: int) -> bytes:
    return random.Random(ledger_id << 20 | entry_id).randbytes(entry_id * 97 % 3000)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" not in metafunc.fixturenames:
        return
    one: int | None = metafunc.config.getoption("--seed")
    rounds: int | None = metafunc.config.getoption("--rounds")
    metafunc.parametrize("round_seed", [one] if one is not None else list(range(rounds or 1)))


async def test_every_ledger_lies_in_all_regions_again_once_a_lost_one_is_back(
    regions: Regions, round_seed: int
) -> None:
    rng = random.Random(round_seed)
    sandbox = regions.sandbox
    lost, *staying = rng.sample(sandbox.regions.names, 3)
    indexes = sandbox.region_nodes(lost)
    nodes = {sandbox.node_ids[index] for index in indexes}
    with_its_voter = rng.random() < 0.5
    async with cluster_of(regions) as cluster:

        async def registered(count: int) -> None:
            async def there() -> bool:
                return len(await cluster.registry.writable()) == count

            await until(there, "the nodes are registered", patience_s=PATIENCE_S, every_s=0.1)

        await registered(sandbox.node_count)
        await cluster.write(rng)
        menders = [regions.mend(region, 2) for region in staying]
        if with_its_voter:
            await asyncio.to_thread(sandbox.kill_region, lost)
        else:
            for index in indexes:
                sandbox.kill_node(index)
        try:
            await registered(sandbox.node_count - len(indexes))
            await cluster.write(rng)

            async def restored() -> bool:
                return not await cluster.names(nodes) and not await cluster.is_marked()

            await until(restored, "what was lost is restored", patience_s=PATIENCE_S, every_s=0.5)
            away = await regions.check(2)
        finally:
            if with_its_voter:
                await asyncio.to_thread(sandbox.heal_region, lost)
            else:
                for index in indexes:
                    await asyncio.to_thread(sandbox.start_node, index)
        await registered(sandbox.node_count)
        for mender in menders:
            mender.end(signal.SIGTERM)
        before = await regions.check(3)
        assert before["closed"] == len(cluster.written)
        assert before["fail"] == len(cluster.written), "all of them lie in two regions"

        began = time.monotonic()
        menders = [regions.mend(region, 3) for region in sandbox.regions.names]
        await asyncio.sleep(rng.uniform(1.0, 6.0))
        menders.pop(rng.randrange(3)).end(signal.SIGKILL)

        async def mended() -> bool:
            return not await cluster.is_marked() and (await regions.check(3))["fail"] == 0

        await until(mended, "placement comes back", patience_s=PATIENCE_S, every_s=1.0)
        took_s = time.monotonic() - began
        after = await regions.check(3)
        assert (after["closed"], after["fail"], after["unreadable"]) == (len(cluster.written), 0, 0)
        for ledger_id in cluster.written:
            for part in (await cluster.ledgers.read(ledger_id)).value.ensembles:
                assert {regions.region_of(node) for node in part.bookies} == set(sandbox.regions.names)
        copies = await cluster.read_every_copy()
        assert copies == 3 * sum(cluster.written.values())
        for mender in menders:
            assert mender.process.poll() is None, mender.log.read_text()[-2000:]
            mender.end(signal.SIGTERM)
            assert "has to give up" not in mender.log.read_text()
        print(
            f"seed {round_seed}: {lost} lost{' with its voter' if with_its_voter else ''}; then {away['fail']} of "
            f"{away['closed']} in one region; back: {before['fail']} not in three regions, {after['fail']} after "
            f"{took_s:.0f} s; {copies} copies read"
        )
