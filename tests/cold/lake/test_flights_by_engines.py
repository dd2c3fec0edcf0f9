"""The flights of a year as an Iceberg table: every engine comes to the same figures, and what others do to the table is
nothing to the log.

Figures are compared with those that Arrow makes of the rows that were written: DuckDB's of the table, our own Spark's
of the log, by SQL and by the source, and those of a Spark with Iceberg's own runtime, which `DLSPARK_LAKE_SPARK` names
(see test_other_engines.py). That one then expires snapshots, deletes rows and rewrites files, while a reader of the log
goes round and round. Only with --rounds.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from helpers.cold.duck import connected
from helpers.cold.other_spark import OtherSpark

from benchmarks.cold_logs import FLIGHTS, another_year, cold_settings, flights, move
from dlspark.cold.lake.opening import open_table
from dlspark.cold.lake.syncing import TableSync
from dlspark.core.namespace import AsyncNamespace
from dlspark.testing.java_process import OutOfReachError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dlspark.sandbox.sandbox import Sandbox

PARTS = 4
LATER = 1_000
BEGIN, END = datetime(2013, 2, 8, 5, tzinfo=timezone.utc), datetime(2013, 2, 10, tzinfo=timezone.utc)
INCOMPLETE = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum")
QUESTIONS = {
    "delays": "SELECT carrier, month, count(*) n, count(dep_delay) k, sum(dep_delay) s, round(avg(arr_delay), 6) a "
    "FROM {table} GROUP BY carrier, month ORDER BY carrier, month",
    "nulls": f"SELECT {', '.join(f'count(*) - count({one}) n_{one}' for one in INCOMPLETE)} FROM {{table}}",
    "ends": "SELECT min(scheduled_ms) a, max(scheduled_ms) b, {ms}(min(time_hour)) c, {ms}(max(time_hour)) d "
    "FROM {table}",
    "days": "SELECT count(*) n, count(dep_time) k, sum(distance) s FROM {table} "
    "WHERE month = 2 AND (day = 8 OR day = 9) AND origin = 'JFK'",
    "moments": "SELECT count(*) n, count(dep_time) k, sum(distance) s FROM {table} "
    f"WHERE time_hour >= {{moment}} '{BEGIN.isoformat(' ')}' AND time_hour < {{moment}} '{END.isoformat(' ')}'",
    "places": "SELECT _log.segment s, count(*) n, min(_log.transaction_id) a, max(_log.transaction_id) b FROM {table} "
    "GROUP BY _log.segment ORDER BY s",
}
SPARK = {"ms": "unix_millis", "moment": "TIMESTAMP"}
DUCK = {"ms": "epoch_ms", "moment": "TIMESTAMPTZ"}
Figures = dict[str, list[tuple[object, ...]]]


def figures_of(rows: pa.Table, parts: Sequence[pa.Table]) -> Figures:
    """Return what all engines have to say of rows, by Arrow."""
    groups = rows.group_by(["carrier", "month"]).aggregate(
        [("id", "count"), ("dep_delay", "count"), ("dep_delay", "sum"), ("arr_delay", "mean")]
    )
    delays = [
        (one["carrier"], one["month"], one["id_count"], one["dep_delay_count"], one["dep_delay_sum"], mean)
        for one in groups.to_pylist()
        for mean in [None if one["arr_delay_mean"] is None else round(one["arr_delay_mean"], 6)]
    ]
    hours = rows["time_hour"].cast(pa.int64())
    ends = [pc.min_max(one).as_py() for one in (rows["scheduled_ms"], pc.divide(hours, 1000))]
    may = pc.or_(pc.equal(rows["day"], 8), pc.equal(rows["day"], 9))
    days = pc.and_(pc.and_(pc.equal(rows["month"], 2), may), pc.equal(rows["origin"], "JFK"))
    begin, end = (pa.scalar(one, rows["time_hour"].type) for one in (BEGIN, END))
    moments = pc.and_(pc.greater_equal(rows["time_hour"], begin), pc.less(rows["time_hour"], end))
    return {
        "delays": sorted(delays),
        "nulls": [tuple(rows[one].null_count for one in INCOMPLETE)],
        "ends": [tuple(one[key] for one in ends for key in ("min", "max"))],
        "days": [_few(rows.filter(days))],
        "moments": [_few(rows.filter(moments))],
        "places": [
            (at, len(one), *pc.min_max(one["scheduled_ms"]).as_py().values()) for at, one in enumerate(parts, start=1)
        ],
    }


def _few(rows: pa.Table) -> tuple[object, ...]:
    return len(rows), len(rows) - rows["dep_time"].null_count, pc.sum(rows["distance"]).as_py()


def asked(table: str, dialect: Mapping[str, str]) -> dict[str, str]:
    """Return the questions as an engine is asked them."""
    return {key: text.format(table=table, **dialect) for key, text in QUESTIONS.items()}


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    from dlspark.sandbox.sandbox import Sandbox

    with Sandbox(tmp_path / "sandbox", nodes=3) as running:
        yield running


@pytest.fixture
def spark(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from dlspark.spark import catalog_jar, enable

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.distributedlog.uri", sandbox.uri)
        .config("spark.jars", str(catalog_jar()))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
    )
    session = builder.getOrCreate()
    enable(session, uri=sandbox.uri)
    yield session
    session.stop()


class LogReader:
    """Reads a log from its beginning to its end, again and again.

    Args:
        namespace: the log's.
        rows: how many records it has.
    """

    def __init__(self, namespace: AsyncNamespace, rows: int) -> None:
        self._namespace = namespace
        self._rows = rows
        self.digests: list[str] = []

    async def round(self) -> None:
        """Read it once, and note the digest of all ids and bytes."""
        # Apart: where a batch ends is up to the reader.
        ids, values, count = hashlib.sha256(), hashlib.sha256(), 0
        async with await self._namespace.open_log("flights") as log, await log.open_reader() as reader:
            while count < self._rows:
                batch = await reader.next_batch()
                ids.update(batch.column("transaction_id").to_numpy().tobytes())
                values.update(b"".join(batch.column("value").to_pylist()))
                count += len(batch)
        assert count == self._rows
        self.digests.append(f"{ids.hexdigest()} {values.hexdigest()}")

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Read on during a block, and to the end of the round that is under way at its end."""
        ended = asyncio.Event()

        async def read() -> None:
            while not ended.is_set():
                await self.round()

        task = asyncio.create_task(read())
        try:
            yield
        finally:
            ended.set()
            await task


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(1800)
async def test_all_engines_come_to_the_figures_of_the_flights(sandbox, spark, declared, tmp_path):
    rows = flights()
    size = -(-len(rows) // PARTS)
    parts = [rows.slice(at * size, size) for at in range(PARTS)]
    expected = figures_of(rows, parts)
    (tmp_path / "cold").mkdir()
    async with await AsyncNamespace.open(sandbox.uri, cold_settings(str(tmp_path / "cold"), {})) as namespace:
        await namespace.create_log("flights")
        async with await namespace.open_log("flights") as log:
            await log.declare_schema(FLIGHTS, timestamp="scheduled_ms")
        sync = TableSync.over(namespace.services.logs)
        table = await sync.create(declared("iceberg", "flights"))
        for part in parts:
            await write(namespace, part)
            await move(namespace, "flights")
            report = await sync.sync(table)
        print("sync:", report)
        assert (report.rows, report.files, report.findings) == (len(rows), PARTS, [])

        target = open_table(table)
        target.load()
        with connected() as database:
            database.execute("SET TimeZone = 'UTC'")
            place = f"iceberg_scan('{target._table.metadata_location}')"
            for key, question in asked(place, DUCK).items():
                assert database.execute(question).fetchall() == expected[key], f"DuckDB: {key}"
        target.close()
        print("DuckDB: the figures agree:", {key: len(one) for key, one in expected.items()}, "rows")
        await asyncio.to_thread(ask_our_own, spark, expected)
        print("our own Spark, SQL and source: the figures agree")

        python = os.environ.get("DLSPARK_LAKE_SPARK")
        if python is None:
            pytest.skip("DuckDB and our own agree; DLSPARK_LAKE_SPARK names no Python with pyspark 4.1 for the rest")
        try:
            other = await asyncio.to_thread(OtherSpark, python, tmp_path)
        except OutOfReachError as reason:
            pytest.skip(f"DuckDB and our own agree; {reason}")
        try:
            await change_from_outside(other, namespace, sync, table, rows, expected)
        finally:
            await asyncio.to_thread(other.stop)
        await asyncio.to_thread(ask_our_own, spark, figures_of(*with_later(rows, parts)))


def with_later(rows: pa.Table, parts: Sequence[pa.Table]) -> tuple[pa.Table, list[pa.Table]]:
    """Return the rows with those that are written last."""
    later = another_year(rows, 1).slice(0, LATER)
    return pa.concat_tables([rows, later]), [*parts, later]


async def write(namespace: AsyncNamespace, rows: pa.Table) -> None:
    """Write a segment."""
    async with await namespace.open_log("flights") as log, await log.open_writer() as writer:
        for batch in rows.to_batches(max_chunksize=50_000):
            await writer.write_table(batch)


def ask_our_own(spark: SparkSession, expected: Figures) -> None:
    """Ask our own Spark for the figures of the log, by SQL and by the source."""
    spark.read.format("distributedlog").load("flights").createOrReplaceTempView("flights_source")
    for name in ("dlog.flights", "flights_source"):
        for key, question in asked(name, SPARK).items():
            assert [tuple(row) for row in spark.sql(question).collect()] == expected[key], f"{name}: {key}"


async def change_from_outside(other, namespace, sync, table, rows, expected) -> None:
    """Ask another Spark for the figures of the table, and have it change the table while the log is read."""
    name = f"dlspark.{table.identifier}"

    async def ask(statement: str):
        found = await asyncio.to_thread(other.ask, statement)
        assert "error" not in found, found
        return found

    for key, question in asked(name, SPARK).items():
        assert [tuple(row.values()) for row in await ask(question)] == expected[key], f"Spark {other.version}: {key}"
    print(f"Spark {other.version}: the figures agree; the first:", expected["delays"][0], expected["nulls"])
    units = [one.value for one in await _units(namespace)]
    reader = LogReader(namespace, len(rows))
    await reader.round()
    gone = len(rows.filter(pc.equal(rows["carrier"], "HA")))
    async with reader.going_on():
        await ask(f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled' = 'true')")
        (expired,) = await ask(
            f"CALL dlspark.system.expire_snapshots(table => '{table.identifier}', older_than => TIMESTAMP '2999-01-01')"
        )
        await ask(f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled' = 'false')")
        await ask(f"DELETE FROM {name} WHERE carrier = 'HA'")
        (rewritten,) = await ask(
            f"CALL dlspark.system.rewrite_data_files(table => '{table.identifier}', "
            "options => map('rewrite-all', 'true'))"
        )
    print("expire_snapshots:", expired, "rewrite_data_files:", rewritten, "rows deleted:", gone)
    assert expired["deleted_data_files_count"] == 0
    assert rewritten["rewritten_data_files_count"] >= 1
    print("rounds of the log's reader:", len(reader.digests), "different ones:", len(set(reader.digests)))
    assert len(reader.digests) > 1
    assert len(set(reader.digests)) == 1
    assert (await ask(f"SELECT count(*) n FROM {name}")) == [{"n": len(rows) - gone}]
    assert (await sync.check(table)).findings, "it is reported"

    # The table goes on with what is new, and nothing is put back. No file of the log was touched.
    await write(namespace, with_later(rows, [])[1][0])
    await move(namespace, "flights")
    report = await sync.sync(table)
    print("sync:", report)
    assert report.added == 1
    assert (await ask(f"SELECT count(*) n, count(DISTINCT id) d FROM {name}")) == [
        {"n": len(rows) - gone + LATER, "d": len(rows) - gone + LATER}
    ]
    await asyncio.to_thread(check_files, units)


def check_files(units) -> None:
    """Compare files with what the log says of them."""
    for unit in units:
        data = Path(unit.file.url.removeprefix("file://")).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (unit.file.bytes, unit.file.sha256)


async def _units(namespace: AsyncNamespace):
    from metadata.distributedlog.cold_store import ColdStore

    return await ColdStore(namespace.services.logs).units("flights")
