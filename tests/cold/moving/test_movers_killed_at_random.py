"""Two movers, killed at moments that nobody chose, over a store that loses answers; readers read all the while.

A round is one SIGKILL. Each log has some rounds; then its movers are dead, and one pass and one sweep have to leave
nothing but what the log's marks name. The store is a real S3 server; with --rounds a folder and a mock of S3, too.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio
from helpers.cold.fault_proxy import FaultPlan, HttpFault, RunningProxy, running_proxy
from helpers.cold.mover_process import IMPORTS, MoverProcess
from helpers.cold.places import ObjectPlace, names, open_uploads
from helpers.cold.watched_log import LONG_S, WatchedLog
from helpers.fork_server import ForkServer
from helpers.rounds import with_rounds
from helpers.waiting import until

from dlspark.cold.moving.auditing import audit_log
from dlspark.cold.moving.log_mover import LogMover
from dlspark.cold.moving.owning import is_owner_mark
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_deleted_log, sweep_log
from dlspark.cold.moving.verifying import verify_object
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.store import ObjectStore
from dlspark.sandbox.sandbox import Sandbox
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_store import ColdStore

pytestmark = [pytest.mark.processes, pytest.mark.torture]

ROUNDS = 2
"""For each place, where --rounds says nothing; else a third of that."""
A_LOG = 4
"""Rounds of one log."""
FAULTS = {
    HttpFault.CUT_BEFORE: 0.02,
    HttpFault.CUT_AFTER: 0.04,
    HttpFault.CUT_IN_ANSWER: 0.02,
    HttpFault.LATE: 0.03,
    HttpFault.REFUSED_503: 0.02,
    HttpFault.DONE_500: 0.02,
    HttpFault.DONE_503: 0.02,
    HttpFault.DELAY: 0.05,
}
TIMES = {"coldFreshnessSeconds": "1", "coldHotRetentionSeconds": "1"}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("movers-killed") / "sandbox", nodes=1, zookeeper_tick_ms=200) as running:
        yield running


@contextmanager
def disturbed(place: ObjectPlace, rng: random.Random) -> Iterator[RunningProxy | None]:
    """Run a proxy with faults before a place that has a server."""
    endpoint = place.options.get("endpoint")
    if endpoint is None:
        yield None
        return
    with running_proxy(endpoint, FaultPlan(rng, FAULTS)) as proxy:
        yield proxy


@pytest.mark.parametrize("place", ["seaweed", *with_rounds("folder", "moto")], indirect=True)
@pytest.mark.timeout(7_200)
async def test_movers_killed_at_random_lose_nothing_and_leave_nothing(sandbox, place, rounds, seed, tmp_path, request):
    wanted = ROUNDS if rounds is None else max(1, rounds // 3)
    rng = random.Random(f"{seed} {request.node.name}")
    with disturbed(place, random.Random(rng.random())) as proxy:
        settings = {"coldStoragePath": place.root, **TIMES}
        if proxy is not None:
            settings |= {"coldStorageEndpoint": proxy.endpoint, "coldStorageRegion": "us-east-1"}
        with ForkServer(IMPORTS, log=tmp_path / "movers.log") as forks:
            await MoverRounds(sandbox.uri, place, settings, proxy, rng, forks).run(wanted)
    # A mover that broke a rule of its own ends, and says so.
    assert "rule of its own" not in (tmp_path / "movers.log").read_text("utf-8", "replace")


async def files_in(store: ObjectStore) -> set[str]:
    """Return what a place holds, but for the mark of its owner."""
    return {url for url in await names(store) if not is_owner_mark(url)}


class MoverRounds:
    """The rounds of one place."""

    def __init__(
        self,
        uri: str,
        place: ObjectPlace,
        settings: dict[str, str],
        proxy: RunningProxy | None,
        rng: random.Random,
        forks: ForkServer,
    ) -> None:
        self._uri = uri
        self._place = place
        self._settings = settings
        self._proxy = proxy
        self._rng = rng
        self._movers = [
            MoverProcess(forks, f"mover-{number}", uri, settings | {"zkSessionTimeoutSeconds": "3"})
            for number in range(2)
        ]
        self._rates = dict(proxy.plan.rates) if proxy is not None else {}
        self.counts: Counter[str] = Counter()

    async def run(self, rounds: int) -> None:
        """Make so many rounds."""
        async with await AsyncNamespace.open(self._uri, self._settings) as namespace:
            for first in range(0, rounds, A_LOG):
                await self._one_log(namespace, f"log{first}", min(A_LOG, rounds - first))
                print(self.summary(), flush=True)
        assert self.counts["files"]
        assert self.counts["units whose hot copies went"] or rounds < 5 * A_LOG

    def summary(self) -> str:
        """Return what was done, in a line."""
        place = self._place.options.get("endpoint", "a folder")
        return f"{place}: " + ", ".join(f"{count} {what}" for what, count in self.counts.items())

    async def _one_log(self, namespace: AsyncNamespace, name: str, rounds: int) -> None:
        log = WatchedLog(namespace, name, random.Random(self._rng.random()))
        cold = ColdStore(namespace.services.logs)
        try:
            await log.start()
            if self._proxy is not None:
                self._proxy.plan.rates = self._rates
            for number in range(rounds):
                if number % 2:
                    log.write_large()
                await self._kill_one(cold, log)
            for mover in self._movers:
                mover.kill()
            await self._tidy(namespace, cold, log)
        finally:
            await log.abandon()
            for mover in self._movers:
                mover.kill()
        await self._deleted(namespace, cold, name)

    async def _kill_one(self, cold: ColdStore, log: WatchedLog) -> None:
        self.counts["movers that ended alone"] += sum(one.ended_alone for one in self._movers)
        await asyncio.gather(*(one.start() for one in self._movers))
        units = len(await cold.units(log.name))

        async def copying() -> bool:
            log.check()
            return bool(await cold.attempts(log.name))

        async def moved() -> bool:
            log.check()
            return len(await cold.units(log.name)) > units

        # The moment of the kill is drawn: any, or soon after a copy was begun, or soon after a file was made, where
        # the next copy and the deletion of hot ones are near.
        kind, longest_s = self._rng.choice((("any time", 4.0), ("copying", 0.5), ("moved", 1.0), ("moved", 0.1)))
        if kind != "any time":
            await until(copying if kind == "copying" else moved, f"{kind}", patience_s=LONG_S, every_s=0.02)
        self.counts[f"of them: {kind}"] += 1
        await asyncio.sleep(self._rng.uniform(0.0, longest_s))
        log.check()
        for victim in self._rng.choice(([0], [1], [0], [1], [0, 1])):
            assert self._movers[victim].alive
            self._movers[victim].kill()
        self.counts["kills"] += 1

    async def _tidy(self, namespace: AsyncNamespace, cold: ColdStore, log: WatchedLog) -> None:
        """One pass and one sweep, while readers read; then nothing is left but what marks name."""
        if self._proxy is not None:
            self.counts["faults"], self.counts["requests"] = self._proxy.plan.met, len(self._proxy.plan.requests)
            self._proxy.plan.stop()
            self._proxy.settle()  # what was under way arrives at last, after all who waited for it are dead
        await log.end_writing()
        services, settings = namespace.services, namespace.settings
        stores = MoverStores()
        mover = LogMover(services, cold, stores, log.name, lambda: settings, "the last one")

        async def passed() -> bool:
            done = await mover.run(at_once=True)
            assert not done.problems
            log.check()
            return done.busy is None

        await until(passed, "the dead mover's lock has gone", patience_s=LONG_S, every_s=0.2)
        swept = await sweep_log(services, cold, stores, log.name, settings, min_age_s=0)
        assert swept.kept == []
        self.counts["swept objects"] += len(swept.objects)
        self.counts["swept uploads"] += len(swept.uploads)

        assert await cold.attempts(log.name) == []
        units = [one.value for one in await cold.units(log.name)]
        files = [unit.file for unit in units if unit.file is not None]
        assert sum(file.rows for file in files) == len(log.acknowledged)
        store = self._place.open()
        assert await files_in(store) == {file.url for file in files}
        assert await open_uploads(store) == []
        reports = [await verify_object(stores.of(file), file.url, file) for file in files]
        assert [one.wrong for one in reports if one.wrong is not None] == []
        assert await audit_log(services, cold, stores, log.name, settings) == (len(files), [])
        await log.end_reading()
        await stores.close()
        await store.close()
        self.counts["files"] += len(files)
        self.counts["units whose hot copies went"] += sum(unit.state is UnitState.HOT_DELETED for unit in units)
        self.counts["records"] += len(log.acknowledged)
        self.counts["walks from the first record on"] += log.begun_anew
        self.counts["walks from a position on"] += log.positioned

    async def _deleted(self, namespace: AsyncNamespace, cold: ColdStore, name: str) -> None:
        """Delete the log: the next one begins in an empty place."""
        await namespace.delete_log(name)
        stores = MoverStores()
        # The first sweep deletes, the second finds nothing and forgets.
        for _ in range(2):
            (note,) = await cold.deleted_logs()
            await sweep_deleted_log(namespace.services, cold, stores, note, min_age_s=0)
        assert await cold.deleted_logs() == []
        await stores.close()
        store = self._place.open()
        assert await files_in(store) == set()
        assert await open_uploads(store) == []
        await store.close()


@pytest_asyncio.fixture(autouse=True)
async def _no_task_left() -> AsyncIterator[None]:
    yield
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
