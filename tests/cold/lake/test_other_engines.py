"""Spark with Iceberg's own runtime reads a lake table, and changes it: the log notices nothing.

It needs another Spark than this project's: `DLSPARK_LAKE_SPARK` names the Python of an environment with pyspark 4.1
(`pip install 'pyspark==4.1.*'`). Iceberg's runtime comes from Maven Central. Only with --rounds.
"""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from helpers.cold.duck import connected
from helpers.cold.other_spark import OtherSpark
from helpers.logs import written

from dlspark.cold.lake.opening import open_table
from dlspark.cold.lake.syncing import TableSync
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.types import LONG, STRING, Field, Schema
from dlspark.testing.java_process import OutOfReachError

FLIGHTS = Schema(0, (Field(1, "id", LONG, True), Field(2, "delay", LONG), Field(3, "carrier", STRING)))


def lines(first: int, count: int) -> list[bytes]:
    return [
        json.dumps({"id": at, "delay": at % 60, "carrier": "AB"[at % 2]}).encode() for at in range(first, first + count)
    ]


async def payloads(namespace) -> list[bytes]:
    async with await namespace.open_log("flights") as log:
        last = await log.last_record()
        found: list[bytes] = []
        async with await log.open_reader() as reader:
            while True:
                record = await reader.read_next()
                found.append(bytes(record.payload))
                if record.dlsn >= last.dlsn:
                    return found


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_spark_gets_the_figures_and_may_change_the_table(namespace, mover, declared, tmp_path, rounds):
    python = os.environ.get("DLSPARK_LAKE_SPARK")
    if python is None:
        pytest.skip("DLSPARK_LAKE_SPARK names no Python with pyspark 4.1")
    declaration = Declaration.of(RecordFormat.JSON, FLIGHTS)
    await namespace.create_log("flights", declaration=declaration)
    written_lines = [lines(part * 1000, 1000) for part in range(6)]
    await written(namespace, "flights", written_lines)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    for lssn in (1, 2, 3):
        await mover.move("flights", lssn, lssn, declaration)
        await sync.sync(table)
    try:
        spark = await asyncio.to_thread(OtherSpark, python, tmp_path)
    except OutOfReachError as reason:
        pytest.skip(str(reason))
    print("Spark", spark.version)
    try:
        await look_and_change(spark, namespace, mover, sync, table, declaration, written_lines)
    finally:
        await asyncio.to_thread(spark.stop)


async def look_and_change(spark, namespace, mover, sync, table, declaration, written_lines) -> None:
    """Ask for figures, and change the table by each kind of statement."""

    async def ask(statement: str):
        found = await asyncio.to_thread(spark.ask, statement)
        print(statement, "->", found)
        return found

    async def look(what: str):
        report = await sync.check(await sync.tables.get("flights"))
        print(f"check after {what}:", report.findings)
        return report.findings

    figures = "SELECT carrier, count(*) n, sum(delay) s, max(_log.segment) l FROM {} GROUP BY carrier ORDER BY carrier"
    mine = {
        carrier: [
            one["delay"] for part in written_lines[:3] for one in map(json.loads, part) if one["carrier"] == carrier
        ]
        for carrier in "AB"
    }
    expected = [{"carrier": key, "n": len(one), "s": sum(one), "l": 3} for key, one in mine.items()]
    name = f"dlspark.{table.identifier}"
    assert await ask(figures.format(name)) == expected
    target = open_table(table)
    target.load()
    with connected() as database:
        place = f"iceberg_scan('{target._table.metadata_location}')"
        duck = database.execute(figures.format(place)).fetchall()
    target.close()
    assert duck == [tuple(one.values()) for one in expected]
    assert await look("reading") == []

    # Its engine keeps to gc.enabled=false, and says so.
    expire = (
        f"CALL dlspark.system.expire_snapshots(table => '{table.identifier}', older_than => TIMESTAMP '2999-01-01')"
    )
    refused = await ask(expire)
    assert "GC is disabled" in refused["error"]
    await ask(f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled' = 'true')")
    assert any("gc.enabled" in one for one in await look("gc.enabled = true"))
    expired = await ask(expire)
    assert "error" not in expired
    assert int(expired[0]["deleted_data_files_count"]) == 0
    await ask(f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    assert await look("expire_snapshots") == []

    deleted = await ask(f"DELETE FROM {name} WHERE id < 10")
    assert "error" not in deleted
    assert any("from outside" in one for one in await look("DELETE"))
    rewritten = await ask(
        f"CALL dlspark.system.rewrite_data_files(table => '{table.identifier}', options => map('rewrite-all', 'true'))"
    )
    assert int(rewritten[0]["rewritten_data_files_count"]) >= 3
    findings = await look("rewrite_data_files")
    assert any("does not name" in one for one in findings)

    # The log: nothing has happened. The table: followed, and nothing is put back.
    assert await payloads(namespace) == [one for part in written_lines for one in part]
    await mover.move("flights", 4, 4, declaration)
    report = await sync.sync(table)
    print("sync:", report)
    assert report.added == 1
    assert (await sync.sync(table)).commits == 0
    assert (await ask(f"SELECT count(*) n, count(DISTINCT id) d FROM {name}")) == [{"n": 3990, "d": 3990}]
    # Not one file of the log is gone, and what the engine has written lies elsewhere.
    units = [one.value for one in await mover.cold.units("flights")]
    assert len(units) == 4
    there = {one.url: one.bytes async for one in mover.files.list(f"{mover.files.root}/")}
    assert there == {unit.file.url: unit.file.bytes for unit in units}
    assert await payloads(namespace) == [one for part in written_lines for one in part]
