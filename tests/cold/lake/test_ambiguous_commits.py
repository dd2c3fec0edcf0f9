"""Seeded rounds: units come, are replaced and go, two syncs work at one table, and answers to commits are lost,
late or lie.

At every snapshot the table has whole units of the log, without a hole, each file once; a file that `release` gave
free is in no later one. Without --rounds the tables are one of a REST catalog and a Delta table in a folder.
`--rounds 1000`: as many rounds as it takes to lie about 1,000 commits to a table of each kind.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from helpers.cold.lake_tables import RoundTable, Snapshots, round_table, use_keys
from helpers.cold.lake_worlds import LakeModel
from helpers.cold.servers import S3Server
from helpers.rounds import with_rounds

from dlspark.cold.lake.syncing import TableSync
from metadata.distributedlog.cold_tables import ColdTableStore
from metadata.distributedlog.cold_units import DeletedLog
from metadata.foundation.errors import NotAppliedError, OutcomeUnknownError
from metadata.zookeeper.memory import MemoryStore, MemoryTree

STEPS = 7


class World:
    """A model of a log, a declared table of it, and two syncs whose commits are lied about."""

    def __init__(
        self, lake: RoundTable, model: LakeModel, rng: random.Random, tables: ColdTableStore, readable: bool
    ) -> None:
        self.lake = lake
        self.model = model
        self.rng = rng
        self.readable = readable
        self.table = lake.table
        self.syncs = [TableSync(model, tables, opener=lake.open, pause_s=0, rng=rng) for _ in range(2)]
        self.released: dict[str, int] = {}

    def snapshots(self) -> Snapshots:
        return self.lake.snapshots()

    async def step(self) -> None:
        choice = self.rng.random()
        if choice < 0.6 or len(self.model.units) < 2:
            for _ in range(self.rng.randint(1, 3)):
                self.model.add()
            await asyncio.gather(*(self.sync(one) for one in self.syncs), return_exceptions=False)
        elif choice < 0.8:
            at = self.rng.randrange(len(self.model.units))
            unit = self.model.replace(at)
            if await self.release(unit, {one.url for one in unit.replaced}):
                self.model.forget_replaced(at)
        else:
            unit = self.model.begin_delete()
            urls = {one.url for one in unit.replaced} | {unit.file.url}
            other = asyncio.ensure_future(self.sync(self.syncs[1]))
            if await self.release(unit, urls):
                assert self.model.units.pop(0) is unit
            await other

    async def sync(self, sync: TableSync) -> None:
        try:
            await sync.sync(self.table)
        except (NotAppliedError, OutcomeUnknownError):
            pass  # left to the next one

    async def release(self, unit, urls: set[str]) -> bool:
        try:
            await self.syncs[0].release("flights", unit)
        except (NotAppliedError, OutcomeUnknownError):
            return False
        count = len(self.snapshots())
        self.released |= dict.fromkeys(urls, count)
        return True

    async def delete(self) -> bool:
        """Delete the log while a sync is under way, and try to have its files given up."""
        self.model.add()
        other = asyncio.ensure_future(self.sync(self.syncs[1]))
        await asyncio.sleep(0)
        self.model.deleted = True
        await self.release_deleted()
        await other
        return True

    async def release_deleted(self) -> bool:
        try:
            await self.syncs[0].release_deleted(DeletedLog("log-id", "flights", 0, ((self.model.folder[:-1], {}),)))
        except (NotAppliedError, OutcomeUnknownError):
            return False
        self.released |= dict.fromkeys(self.model.rows, len(self.snapshots()))
        return True

    def check(self) -> None:
        order = {url: int(Path(url).name.split("-")[0]) for url in self.model.rows}
        for number, (urls, rows) in enumerate(self.snapshots()):
            assert len(urls) == len(set(urls)), f"a file twice in snapshot {number}"
            firsts = sorted(order[url] for url in urls)
            assert len(set(firsts)) == len(firsts), f"a unit twice in snapshot {number}"
            known = sorted({first for url, first in order.items()})
            if firsts:
                assert firsts == [one for one in known if firsts[0] <= one <= firsts[-1]], "a hole"
            assert rows == sum(self.model.rows[url] for url in urls)
            late = [url for url in urls if self.released.get(url, 10**9) <= number]
            assert not late, f"{late} came back in snapshot {number}"

    async def run(self) -> None:
        columns = await self.model.columns(self.table)
        for tries_left in reversed(range(50)):  # half of all commits are lied about
            target = await asyncio.to_thread(self.lake.open, self.table)
            try:
                await asyncio.to_thread(target.ensure, columns)
                break
            except NotAppliedError:
                if not tries_left:
                    raise
                # Whoever makes a table may have to ask twice.
            finally:
                await asyncio.to_thread(target.close)
        for _ in range(STEPS):
            await self.step()
        ends = self.rng.random() < 0.3 and await self.delete()
        self.lake.stop()
        if ends and not await self.release_deleted():
            raise AssertionError("a table that answers gives up a deleted log's files")
        for sync in self.syncs:
            report = await sync.sync(self.table)
        self.check()
        wanted = {one.file.url for one in self.model.units if one.state.value != "COLD_DELETE_STARTED" and not ends}
        urls, rows = self.snapshots()[-1] if self.snapshots() else ([], 0)
        assert set(urls) == wanted
        assert rows == report.rows == sum(self.model.rows[url] for url in wanted)
        assert report.findings == []
        if self.readable:
            assert self.lake.rows() == rows
        assert (await self.syncs[0].check(self.table)).findings == []


KINDS = {"iceberg": 6, "delta": 6, "rest": 1, "delta_s3": 1}
"""How many rounds the ordinary run has."""
LIES_A_ROUND = 2.5
"""At least so many: about half of all commits are lied about."""

ROUND_S = 300
"""A round takes some seconds, and on a machine with much else to do a minute: who waits longer hangs."""


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["rest", "delta", *with_rounds("iceberg", "delta_s3")])
async def test_no_file_is_lost_and_none_is_there_twice(tmp_path, kind, rounds, request, monkeypatch):
    lies: Counter[str] = Counter()
    server = None
    if kind in ("rest", "delta_s3"):
        server = request.getfixturevalue("lake_server")
        use_keys(monkeypatch)
    for seed in count():
        if lies.total() >= rounds if rounds else seed >= KINDS[kind]:
            break
        lies += await one_round(kind, tmp_path / f"{kind}-{seed}", seed, server)
        if rounds and (seed + 1) % 10 == 0:
            print(f"{kind}: {seed + 1} rounds, {lies.total()} commits were lied about", flush=True)
    print(f"{kind}: {seed} rounds, {lies.total()} commits were lied about: {dict(sorted(lies.items()))}", flush=True)
    assert lies.total() > LIES_A_ROUND * seed


async def one_round(kind: str, folder: Path, seed: int, server: S3Server | None) -> Counter[str]:
    """Return how often each lie was told."""
    store = MemoryStore(MemoryTree())
    await store.create("/ns")
    await store.create("/ns/.dlspark-cold", json.dumps({"v": 1, "namespace": "n"}).encode())
    tables = ColdTableStore(store, "/ns")
    (folder / "cold").mkdir(parents=True)
    rng = random.Random(seed)
    with round_table(kind, folder, random.Random(seed), server) as lake:
        world = World(lake, LakeModel(folder / "cold", rng, server), rng, tables, readable=seed % 10 == 0)
        await tables.create(world.table)
        try:
            await asyncio.wait_for(world.run(), ROUND_S)
        except BaseException as error:
            error.add_note(f"seed {seed}") if hasattr(error, "add_note") else None
            raise
        told = lake.told
    await store.close()
    shutil.rmtree(folder)
    return told
