"""Seeded rounds: units come, are replaced and go, two syncs work at one table, and answers to commits are lost,
late or lie.

At every snapshot the table has whole units of the log, without a hole, each file once; a file that `release` gave
free is in no later one. `--rounds 1000` for more.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from helpers.cold.lake_worlds import LakeModel, Liar, LyingCatalog, LyingDelta
from pyiceberg.catalog import load_catalog

from dlspark.cold.lake.iceberg import IcebergTable
from dlspark.cold.lake.syncing import TableSync
from metadata.distributedlog.cold_tables import ColdTable, ColdTableStore, table_logs
from metadata.distributedlog.cold_units import DeletedLog
from metadata.foundation.errors import NotAppliedError, OutcomeUnknownError
from metadata.zookeeper.memory import MemoryStore, MemoryTree

STEPS = 7


class World:
    """A model of a log, a declared table of it, and two syncs whose commits are lied about."""

    def __init__(self, folder: Path, kind: str, seed: int, tables: ColdTableStore) -> None:
        (folder / "cold").mkdir(parents=True)
        self.rng = random.Random(seed)
        self.kind = kind
        self.folder = folder
        self.model = LakeModel(folder / "cold", self.rng)
        self.liar = Liar(self.rng, 0.5)
        place = f"sqlite:///{folder}/catalog.db" if kind == "iceberg" else f"{folder}/table"
        options = {"warehouse": f"file://{folder}/lake"} if kind == "iceberg" else {}
        name = "air.flights" * (kind == "iceberg")
        self.table = ColdTable("flights", "id", kind, place, name, table_logs(["flights"]), options)
        self.syncs = [TableSync(self.model, tables, opener=self.open, pause_s=0, rng=self.rng) for _ in range(2)]
        self.released: dict[str, int] = {}
        self.catalog = load_catalog("c", type="sql", uri=place, **options) if kind == "iceberg" else None

    def open(self, table: ColdTable):
        if self.catalog is not None:
            return IcebergTable(LyingCatalog(self.catalog, self.liar), table.identifier, table.id, table.grouped)
        found = LyingDelta(table.place, table.id, table.grouped, table.options)
        found.liar = self.liar
        return found

    def snapshots(self) -> list[tuple[list[str], int]]:
        """Return the files that each snapshot names, oldest first, and the rows that it says."""
        if self.catalog is not None:
            table = self.catalog.load_table("air.flights")
            return [
                (
                    [
                        entry.data_file.file_path
                        for manifest in one.manifests(table.io)
                        for entry in manifest.fetch_manifest_entry(table.io)
                    ],
                    int(one.summary["total-records"]),
                )
                for one in sorted(table.snapshots(), key=lambda one: one.sequence_number)
            ]
        found = []
        for version in range(DeltaTable(self.table.place).version() + 1):
            actions = pa.table(DeltaTable(self.table.place, version=version).get_add_actions(flatten=True)).to_pylist()
            found.append(([one["path"] for one in actions], sum(one["num_records"] for one in actions)))
        return found

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
        target = self.open(self.table)
        target.ensure(await self.model.columns(self.table))
        for _ in range(STEPS):
            await self.step()
        ends = self.rng.random() < 0.3 and await self.delete()
        self.liar.settle()
        self.liar.rate = 0
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
        assert (await self.syncs[0].check(self.table)).findings == []


@pytest.mark.torture
@pytest.mark.timeout(0)  # as many rounds as are asked for
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
async def test_no_file_is_lost_and_none_is_there_twice(tmp_path, kind, rounds):
    told = 0
    for seed in range(rounds or 6):
        store = MemoryStore(MemoryTree())
        await store.create("/ns")
        await store.create("/ns/.dlspark-cold", json.dumps({"v": 1, "namespace": "n"}).encode())
        tables = ColdTableStore(store, "/ns")
        world = World(tmp_path / f"{kind}-{seed}", kind, seed, tables)
        await tables.create(world.table)
        try:
            await world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}") if hasattr(error, "add_note") else None
            raise
        told += len(world.liar.told)
        if world.catalog is not None:
            world.catalog.engine.dispose()
        await store.close()
    assert told > 5 * (rounds or 6) / 2  # answers were lied about
