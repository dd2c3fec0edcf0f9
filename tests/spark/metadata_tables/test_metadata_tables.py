"""Metadata tables over real storage nodes in this process and metadata in memory; no Spark session."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.cold.moved import HandMover
from helpers.spark.memory_world import URI, DriverWorld
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import SettingsError
from dlspark.spark.datasource import DistributedLogDataSource
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.metadata_tables import reader as reading
from dlspark.spark.metadata_tables import registry as tables
from dlspark.spark.metadata_tables.logs import Row
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.extents import extent
from dlspark.spark.source.lag import NO_LAG, lag_of
from dlspark.spark.source.selection import Selection, selection_of
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import AddColumn, RenameColumn
from dlspark.tables.types import LONG, STRING, TIMESTAMP, Field, Schema, Struct
from metadata.bookkeeper.bookies import BookieRegistry, Cookie
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.distributedlog.segments import TruncationStatus
from metadata.distributedlog.sinks import SinkStore, StagedLedger, application_sink, job_sink, query_sink
from metadata.foundation.errors import MetadataUnavailableError
from metadata.zookeeper.memory import MemoryStore

PAGE = Path(__file__).parents[3] / "docs" / "spark-metadata.md"


async def rows(driver_world: DriverWorld, name: str, *logs: str, pattern: str | None = None) -> list[Row]:
    """Rows as Spark gets them: through Arrow, so that types and missing columns are looked at too."""
    table = tables.table_named(name)
    selection = Selection(tuple(sorted(logs)), pattern) if logs or pattern else None
    found = await reading.rows_of(table, URI, selection, connect=driver_world.connect)
    names = [column.name for column in table.columns]
    assert all(set(row) <= set(names) for row in found)
    batches = list(pa.ipc.open_stream(reading.encoded(found, table, names)))
    return [row for batch in batches for row in batch.to_pylist()]


# ---------------------------------------------------------------------- the registry


def test_every_table_and_option_has_a_schema_that_spark_and_arrow_agree_on() -> None:
    for name, table in tables.TABLES.items():
        schema, options = tables.metadata_table(name)
        assert options == {"metadata": name}
        names = [column.name for column in table.columns]
        assert schema.names == names
        assert len(set(names)) == len(names)
        assert reading.arrow_schema(table, names) == to_arrow_schema(schema, timezone="UTC")
        source = DistributedLogDataSource({"metadata": name.upper()})
        assert source.schema() == schema


def test_a_table_of_one_log_names_it_in_its_options() -> None:
    assert tables.metadata_table("segments", "flights")[1] == {"metadata": "segments", "log": "flights"}
    with pytest.raises(OptionError, match="bookies is of the whole namespace"):
        tables.metadata_table("bookies", "flights")


def test_the_documentation_holds_the_generated_tables() -> None:
    assert tables.tables_page() in PAGE.read_text()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metadata": "segmnts"}, "Did you mean segments"),
        ({"metadata": "nothing-like-it"}, "There are: logs, segments"),
        ({"metadata": "segments", "startingOffsets": "latest"}, "startingOffsets have no meaning"),
        ({"metadata": "logs", "minPartitions": "4", "failOnDataLoss": "false"}, "failOnDataLoss, minPartitions have"),
        ({"metadata": "bookies", "log": "flights"}, "bookies is of the whole namespace"),
        ({"metadata": "sinks", "subscribePattern": ".*"}, "sinks is of the whole namespace"),
    ],
)
def test_options_that_a_metadata_table_cannot_take_are_refused(given: dict[str, str], words: str) -> None:
    source = DistributedLogDataSource({"uri": URI, **given})
    with pytest.raises(OptionError, match=re.escape(words)):
        source.reader(source.schema())


def test_settings_of_clients_go_on_and_unknown_ones_are_refused_by_name() -> None:
    given = {"uri": "distributedlog://127.0.0.1:1/x", "metadata": "segments", "distributedlog.nonsense": "1"}
    options = Options(given, Scope.SOURCE_BATCH)
    assert tables.requested(options) is tables.SEGMENTS
    with pytest.raises(SettingsError, match="nonsense"):
        reading.table_reader(tables.SEGMENTS, options, tables.SEGMENTS.schema).partitions()


def test_a_stream_or_a_write_of_a_metadata_table_is_refused() -> None:
    source = DistributedLogDataSource({"uri": URI, "metadata": "segments", "log": "flights"})
    with pytest.raises(OptionError, match=r"cannot be streamed: .* one moment"):
        source.streamReader(source.schema())
    with pytest.raises(OptionError, match="metadata has no meaning here"):
        source.writer(source.schema(), False)
    with pytest.raises(OptionError, match="metadata has no meaning here"):
        source.streamWriter(source.schema(), False)


def test_some_columns_may_be_asked_for_and_no_others() -> None:
    source = DistributedLogDataSource({"uri": URI, "metadata": "segments"})
    wanted = StructType([tables.SEGMENTS.schema["ledger"], tables.SEGMENTS.schema["log"]])
    assert isinstance(source.reader(wanted), reading.TableReader)
    with pytest.raises(SchemaError, match="Column ledger string"):
        source.reader(StructType([StructField("ledger", tables.TYPES["string"])]))


def test_columns_are_given_in_the_order_that_is_asked_for() -> None:
    data = reading.encoded([{"log": "a", "ledger": 7, "nodes": ["x"]}], tables.SEGMENTS, ["nodes", "ledger"])
    partition = reading.TablePartition(data)
    table = reading.TableReader(tables.SEGMENTS, URI, None, ["nodes", "ledger"])
    assert [batch.to_pylist() for batch in table.read(partition)] == [[{"nodes": ["x"], "ledger": 7}]]


def test_without_columns_there_are_as_many_rows() -> None:
    partition = reading.TablePartition(reading.encoded([{"log": "a"}, {"log": "b"}], tables.SEGMENTS, []))
    batches = list(reading.TableReader(tables.SEGMENTS, URI, None, []).read(partition))
    assert [(batch.num_columns, batch.num_rows) for batch in batches] == [(0, 2)]


def admitted(table: tables.MetadataTable, *hints: Filter, **given: str) -> list[str]:
    options = Options({"uri": URI, "metadata": table.name, **given}, Scope.SOURCE_BATCH)
    made = reading.table_reader(table, options, table.schema, hints)
    return [log for log in "abc" if made._bounds.admits(log)]  # type: ignore[attr-defined]


def test_filters_on_the_log_leave_some_logs_to_be_asked_for() -> None:
    others: list[Filter] = [GreaterThan(("records",), 5), EqualTo(("segment",), 1)]
    assert admitted(tables.SEGMENTS, In(("log",), ("a", "b")), *others) == ["a", "b"]
    assert admitted(tables.SEGMENTS, *others) == ["a", "b", "c"]
    assert admitted(tables.BOOKIES, EqualTo(("log",), "a")) == ["a", "b", "c"]


def test_filters_on_the_log_of_ledgers_leave_all_where_some_ledgers_have_none() -> None:
    filters: list[Filter] = [IsNotNull(("log",)), EqualTo(("log",), "a")]
    assert admitted(tables.LEDGERS, *filters) == ["a", "b", "c"]
    assert admitted(tables.LEDGERS, *filters, log="a") == ["a"]


def test_a_table_too_large_for_a_partition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 100)
    with pytest.raises(Exception, match="for some logs at a time"):
        reading.encoded([{"log": "a"}], tables.LOGS, ["log"])


# ---------------------------------------------------------------------- segments, logs


async def test_segments_are_told_in_every_state(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(100, 107), entry=3)
    await driver_world.write(name, range(107, 119), entry=5)
    await driver_world.write(name, range(119, 130), entry=4)
    await driver_world.write(name, range(130, 133), entry=2, keep_open=True)
    await driver_world.truncate(name, 0, TruncationStatus.TRUNCATED)
    await driver_world.truncate(name, 1, TruncationStatus.PARTIALLY_TRUNCATED, entry=1)
    listed = await driver_world.namespace.logs_store.segments(name)
    found = await rows(driver_world, "segments", name)
    assert [row["state"] for row in found] == ["truncated", "truncated in part", "completed", "in progress"]
    assert [row["first_dlsn"] for row in found] == [None, "2:1:0", "3:0:0", "4:0:0"]
    assert [row["records"] for row in found] == [7, 12, 11, 3]
    assert [row["last_dlsn"] for row in found][2:] == ["3:2:2", "4:1:0"]
    assert [(row["first_transaction_id"], row["last_transaction_id"]) for row in found] == [
        (100, 106), (107, 118), (119, 129), (130, 132),
    ]  # fmt: skip
    assert [row["start_sequence_id"] for row in found] == [0, 7, 19, None]
    assert [row["ledger"] for row in found] == [one.ledger_id for one in listed]
    assert [row["ledger_state"] for row in found] == ["CLOSED", "CLOSED", "CLOSED", "OPEN"]
    assert [sorted(row["nodes"]) for row in found] == [["node-0", "node-1", "node-2"]] * 4  # type: ignore[call-overload]
    assert {row["completed_at"] is None for row in found[:3]} == {False}
    assert found[3]["completed_at"] is None
    for one, row in zip(listed[:3], found, strict=False):
        ledger = (await driver_world.namespace.services.ledger_store.read(one.ledger_id)).value
        assert (row["bytes"], row["entries"]) == (ledger.length, ledger.last_entry + 1)
    assert found[3]["entries"] == 2, "the control record that confirms two entries is not confirmed itself"
    assert 0 < found[3]["bytes"] < found[2]["bytes"]  # type: ignore[operator]
    assert found[2]["first_timestamp"].timestamp() * 1000 == pytest.approx(119)  # type: ignore[attr-defined]


async def test_where_segments_lie_is_told(driver_world: DriverWorld, tmp_path: Path) -> None:
    name = await driver_world.create()
    for first in (0, 20, 40, 60):
        await driver_world.write(name, range(first, first + 20))
    before = await rows(driver_world, "segments", name)
    assert [(row["place"], row["cold_file"], row["cold_rows"]) for row in before] == [("hot", None, None)] * 4
    assert await rows(driver_world, "cold_files", name) == []
    (tmp_path / "cold").mkdir()
    mover = HandMover(driver_world.namespace, f"file://{tmp_path / 'cold'}")
    gone = await mover.move(name, 1, 2)
    kept = await mover.copy(name, 3, 3)
    attempt = await mover.cold.copies.begin(name, 4, 4, root="file:///elsewhere", worker="w", now_ms=1_700_000_000_000)
    assert gone.value.file is not None
    assert kept.value.file is not None
    cold, copied = gone.value.file, kept.value.file
    found = await rows(driver_world, "segments", name)
    assert [row["place"] for row in found] == ["cold", "cold", "both", "hot"]
    assert [row["cold_file"] for row in found] == [cold.url, cold.url, copied.url, None]
    assert [row["cold_rows"] for row in found] == [20, 20, 20, None]
    assert [row["cold_bytes"] for row in found] == [cold.bytes // 2, cold.bytes // 2, copied.bytes, None]
    assert [row["ledger_state"] for row in found] == [None, None, "CLOSED", "CLOSED"]
    for column in ("bytes", "records", "last_dlsn", "first_dlsn"):
        assert [row[column] for row in found] == [row[column] for row in before], column
    files = await rows(driver_world, "cold_files", name)
    assert [(row["first_segment"], row["last_segment"], row["state"]) for row in files] == [
        (1, 2, "cold"), (3, 3, "both"), (4, 4, "being copied"),
    ]  # fmt: skip
    assert [row["file"] for row in files] == [cold.url, copied.url, attempt.value.url]
    assert [row["bytes"] for row in files] == [cold.bytes, copied.bytes, None]
    assert [row["rows"] for row in files] == [40, 20, None]
    assert files[0]["ledger_bytes"] == before[0]["bytes"] + before[1]["bytes"]  # type: ignore[operator]
    assert (files[2]["worker"], files[0]["redacted"], files[0]["replaced"]) == ("w", False, [])
    assert files[0]["hot_deleted_at"] is not None
    assert files[1]["hot_deleted_at"] is None
    assert [row["segment"] for row in await rows(driver_world, "ledgers", name)] == [3, 4]


async def test_what_no_storage_node_tells_is_null_and_the_rest_is_told(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(5))
    await driver_world.write(name, range(5, 8), keep_open=True)
    for _ in range(3):
        await driver_world.stop_node(0)
    first, last = await rows(driver_world, "segments", name)
    assert first["records"] == 5
    assert last["state"] == "in progress"
    assert [last[column] for column in ("last_dlsn", "records", "bytes", "entries")] == [None] * 4
    assert first["error"] is None
    assert last["error"]
    (log,) = await rows(driver_world, "logs", name)
    assert (log["earliest"], log["latest"], log["records"], log["segments"]) == ("1:0:0", None, None, 2)
    assert log["error"] == last["error"]


async def test_logs_are_told_with_their_extent_and_owner(driver_world: DriverWorld) -> None:
    name = await driver_world.create("flights")
    await driver_world.write(name, range(10, 30), entry=4)
    await driver_world.write(name, range(30, 35), keep_open=True)
    empty = await driver_world.create("empty")
    sealed = await driver_world.create("sealed")
    await driver_world.write(sealed, range(3), keep_open=True)
    await driver_world.seal(sealed)
    first, second, third = await rows(driver_world, "logs")
    assert [row["log"] for row in (first, second, third)] == [empty, name, sealed]
    assert (first["earliest"], first["latest"], first["records"], first["segments"]) == ("1:0:0", "1:0:0", 0, 0)
    assert first["first_transaction_id"] is None
    assert (second["earliest"], second["latest"], second["records"]) == ("1:0:0", "2:1:0", 25)
    assert (second["first_transaction_id"], second["last_transaction_id"]) == (10, 34)
    assert (second["open_segment"], second["sealed"]) == (2, False)
    assert second["writer"]
    assert (third["sealed"], third["writer"], third["open_segment"]) == (True, None, None)
    assert (third["records"], third["last_transaction_id"]) == (3, 2)
    assert all(row["created_at"] is not None and row["error"] is None for row in (first, second, third))
    assert second["completed_at"] is not None
    view = await driver_world.view(name)
    assert second["latest"] == str(await view.latest())


async def test_a_damaged_log_has_a_row_that_says_so_among_the_others(driver_world: DriverWorld) -> None:
    good, bad = await driver_world.create("good"), await driver_world.create("bad")
    await driver_world.write(good, range(3))
    await driver_world.write(bad, range(3))
    segment = (await driver_world.namespace.logs_store.segments(bad))[0]
    await driver_world.namespace.store.put(
        driver_world.namespace.logs_store.paths(bad).segment(segment), b"nonsense", -1
    )
    first, second = await rows(driver_world, "logs")
    assert first["log"] == bad
    assert "not segment metadata" in str(first["error"])
    assert (second["log"], second["error"], second["records"]) == (good, None, 3)


async def test_which_logs_are_asked_is_the_sources_selection(driver_world: DriverWorld) -> None:
    for name in ("a-1", "a-2", "b", "nested/c"):
        await driver_world.create(name)
        await driver_world.write(name, range(2))
    assert [row["log"] for row in await rows(driver_world, "segments")] == ["a-1", "a-2", "b", "nested/c"]
    assert [row["log"] for row in await rows(driver_world, "segments", pattern="a-.")] == ["a-1", "a-2"]
    assert [row["log"] for row in await rows(driver_world, "segments", "b", "a-2")] == ["a-2", "b"]
    with pytest.raises(OptionError, match="No log matches"):
        await rows(driver_world, "segments", pattern="zzz")
    with pytest.raises(LogNotFoundError, match="dlspark log create gone"):
        await rows(driver_world, "segments", "gone")
    options = Options({"uri": URI, "metadata": "logs", "subscribe": "b, a-2"}, Scope.SOURCE_BATCH)
    assert selection_of(options).names == ("a-2", "b")


async def test_no_metadata_store_is_an_error_that_names_the_option() -> None:
    async def away(uri: str) -> None:
        raise MetadataUnavailableError("nobody there")

    with pytest.raises(MetadataUnavailableError, match="option uri"):
        await reading.rows_of(tables.LOGS, URI, None, connect=away)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- schemas


async def test_schema_versions_have_each_column_of_each_version(driver_world: DriverWorld) -> None:
    await driver_world.create("bytes")
    city = Field(3, "city", STRING, required=True)
    fields = (Field(1, "at", TIMESTAMP, required=True), Field(2, "place", Struct((city,)), doc="where"))
    made = Declaration.of(RecordFormat.AVRO, Schema(0, fields), timestamp="at")
    await driver_world.namespace.create_log("typed", declaration=made)
    log = await driver_world.namespace.open_log("typed")
    await log.change_schema([RenameColumn(("place",), "to"), AddColumn(("n",), LONG, default=1)])
    assert await rows(driver_world, "schema_versions", "bytes") == []
    found = await rows(driver_world, "schema_versions")
    assert [(row["version"], row["field"], row["column"], row["current"]) for row in found] == [
        (0, 1, "at", False),
        (0, 2, "place", False),
        (0, 3, "place.city", False),
        (1, 1, "at", True),
        (1, 2, "to", True),
        (1, 3, "to.city", True),
        (1, 4, "n", True),
    ]
    assert found[2] == {
        "log": "typed", "version": 0, "current": False, "format": "avro", "field": 3, "column": "place.city",
        "type": "string", "required": True, "default": None, "comment": None, "gives_ids": False, "error": None,
    }  # fmt: skip
    assert [(row["column"], row["default"], row["comment"]) for row in found[4:]] == [
        ("to", None, "where"), ("to.city", None, None), ("n", "1", None),
    ]  # fmt: skip
    assert [row["column"] for row in found if row["gives_ids"]] == ["at", "at"]


async def test_a_declaration_that_cannot_be_read_is_a_row_that_says_so(driver_world: DriverWorld) -> None:
    await driver_world.create("broken")
    await SchemaStore(driver_world.namespace.logs_store).declare("broken", b"no JSON")
    (row,) = await rows(driver_world, "schema_versions", "broken")
    assert "it is not JSON" in str(row["error"])
    assert (row["log"], row["version"]) == ("broken", None)


# ---------------------------------------------------------------------- cursors


async def test_cursors_have_their_lag(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(1000, 1020), entry=5)
    await driver_world.write(name, range(1020, 1040), entry=5, keep_open=True)
    assert await rows(driver_world, "cursors", name) == []
    log = await driver_world.namespace.open_log(name)
    end = await (await driver_world.view(name)).latest()
    for cursor, position in {
        "at-end": end,
        "middle": DLSN(1, 2, 0),
        "slot": DLSN(2, 1, 3),
        "start": DLSN(1, 0, 0),
    }.items():
        await log.commit_position(cursor, position)
    async with await log.open_reader(subscriber="reading"):
        found = {row["cursor"]: row for row in await rows(driver_world, "cursors")}
    assert list(found) == ["at-end", "middle", "reading", "slot", "start"]
    assert {row["latest"] for row in found.values()} == {str(end)}
    lags = {cursor: (row["lag_records"], row["lag_ms"]) for cursor, row in found.items()}
    assert lags["at-end"] == (0, 0)
    assert lags["middle"] == (30, 1039 - 1010)
    assert lags["slot"] == (12, 1039 - 1025)
    assert lags["start"] == (40, 39)
    assert found["middle"]["position"] == "1:2:0"
    assert found["at-end"]["lag_bytes"] == 0
    assert found["start"]["lag_bytes"] > found["middle"]["lag_bytes"] > found["slot"]["lag_bytes"] > 0  # type: ignore[operator]
    assert found["reading"]["position"] is None
    assert found["reading"]["moved_at"] is None
    assert found["reading"]["lag_records"] is None
    assert found["reading"]["reader"]
    assert found["start"]["reader"] is None
    assert found["start"]["moved_at"] is not None
    assert {row["lost"] for row in found.values() if row["position"]} == {False}


async def test_a_cursor_behind_what_was_truncated_is_lost(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10), entry=5)
    await driver_world.write(name, range(10, 20), entry=5)
    log = await driver_world.namespace.open_log(name)
    await log.commit_position("late", DLSN(1, 1, 0))
    await driver_world.truncate(name, 0, TruncationStatus.TRUNCATED)
    (row,) = await rows(driver_world, "cursors", name)
    assert (row["lost"], row["lag_records"], row["lag_ms"]) == (True, 10, 9)


async def test_an_extent_is_what_a_walk_over_the_records_finds(driver_world: DriverWorld) -> None:
    """Every pair of record positions; bytes only where they are exact: between the beginnings of segments."""
    name = await driver_world.create()
    await driver_world.write(name, range(0, 70, 10), entry=3)
    await driver_world.write(name, range(70, 190, 10), entry=5)
    await driver_world.write(name, range(190, 240, 10), entry=2, keep_open=True)
    async with await (await driver_world.namespace.open_log(name)).open_reader() as reader:
        records = [await reader.read_next() for _ in range(24)]
    view = await driver_world.view(name)
    end = await view.latest()
    for first in range(24):
        found = await extent(view, records[first].dlsn, end)
        assert (found.records, found.last_txid) == (24 - first, 230)
        entry = [one.txid for one in records if one.dlsn[:2] == records[first].dlsn[:2]]
        assert found.first_txid == entry[0], "of the first record in its entry"
        assert lag_of(found).milliseconds == 230 - entry[0]
    assert lag_of(await extent(view, end, end)) == NO_LAG
    ledgers = [
        await driver_world.namespace.services.ledger_store.read(one.ledger_id)
        for one in view.between(DLSN(1, 0, 0), end)
    ]
    assert (await extent(view, DLSN(1, 0, 0), DLSN(2, 0, 0))).bytes == ledgers[0].value.length
    assert (await extent(view, DLSN(1, 0, 0), DLSN(3, 0, 0))).bytes == sum(one.value.length for one in ledgers[:2])


async def test_a_log_whose_writer_did_not_count_has_a_lag_without_records(driver_world: DriverWorld) -> None:
    class Uncounted(DriverLogView):
        """Java's library can be set to write such logs (enableRecordCounts); ours cannot."""

        async def count(self, start: DLSN, end: DLSN) -> int:
            raise OptionError("written without counts")

    name = await driver_world.create()
    await driver_world.write(name, range(5), entry=1)
    view = await Uncounted.open(driver_world.namespace, name)
    found = await extent(view, DLSN(1, 2, 0), await view.latest())
    await view.close()
    assert found.records is None
    assert found.bytes > 0
    assert lag_of(found).milliseconds == 2


# ---------------------------------------------------------------------- the cluster


async def test_bookies_are_told_registered_or_not(driver_world: DriverWorld) -> None:
    registry = BookieRegistry(driver_world.namespace.store)
    await registry.write_cookie(Cookie("gone:3181", ("/j",), ("/l1", "/l2"), None))
    first, second, third, fourth = await rows(driver_world, "bookies")
    assert [row["bookie"] for row in (first, second, third, fourth)] == ["gone:3181", "node-0", "node-1", "node-2"]
    assert (first["state"], first["answers"], first["host"]) == ("not registered", None, None)
    assert (first["journal_directories"], first["ledger_directories"]) == (["/j"], ["/l1", "/l2"])
    assert (second["state"], second["host"], second["answers"], second["error"]) == (
        "writable",
        "127.0.0.1",
        True,
        None,
    )
    assert 0 < second["free_bytes"] <= second["total_bytes"]  # type: ignore[operator]
    assert second["registered_at"] is not None
    assert second["ledger_directories"]


async def test_a_bookie_that_is_registered_and_does_not_answer_is_told(driver_world: DriverWorld) -> None:
    other = MemoryStore(driver_world.tree)
    await other.create("/ledgers/available/dead:1", b"", ephemeral=True)
    await other.create("/ledgers/available/readonly/odd", b"", ephemeral=True)
    found = {row["bookie"]: row for row in await rows(driver_world, "bookies")}
    assert (found["dead:1"]["state"], found["dead:1"]["answers"], found["dead:1"]["port"]) == ("writable", False, 1)
    assert found["dead:1"]["error"]
    assert (found["odd"]["state"], found["odd"]["host"]) == ("read-only", None)
    assert "not host:port" in str(found["odd"]["error"])
    assert found["node-1"]["answers"]
    await other.close()


async def test_ledgers_are_told_with_what_names_them(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10))
    await driver_world.write(name, range(10, 12), keep_open=True)
    unnamed = await driver_world.namespace.ledgers.create()
    await unnamed.close()
    staged = await driver_world.namespace.ledgers.create()
    sinks = SinkStore(driver_world.namespace.store, driver_world.namespace.uri.path)
    await sinks.ensure("q")
    await sinks.list_ledger("q", StagedLedger(0, "a", staged.ledger_id))
    of_log = await rows(driver_world, "ledgers", name)
    assert [(row["log"], row["segment"], row["use"], row["state"]) for row in of_log] == [
        (name, 1, "segment", "CLOSED"), (name, 2, "segment", "OPEN"),
    ]  # fmt: skip
    assert of_log[0]["bytes"] > 0  # type: ignore[operator]
    assert (of_log[1]["bytes"], of_log[1]["last_entry"]) == (None, None)
    assert of_log[0]["missing"] == []
    assert of_log[0]["digest"] == "CRC32"
    everything = {row["ledger"]: row for row in await rows(driver_world, "ledgers")}
    assert everything[of_log[0]["ledger"]] == of_log[0]
    assert (everything[unnamed.ledger_id]["use"], everything[unnamed.ledger_id]["bytes"]) == (None, 0)
    assert everything[staged.ledger_id]["use"] == "staged by a sink"
    assert everything[staged.ledger_id]["created_at"] is not None
    await staged.abandon()


async def test_a_ledger_that_auto_recovery_misses_copies_of_says_where(driver_world: DriverWorld) -> None:
    from metadata.bookkeeper.replication import ReplicationStore

    name = await driver_world.create()
    await driver_world.write(name, range(10))
    (row,) = await rows(driver_world, "ledgers", name)
    replication = ReplicationStore(driver_world.namespace.store)
    await replication.prepare()
    await replication.mark(int(str(row["ledger"])), ["node-1"])
    (row,) = await rows(driver_world, "ledgers", name)
    assert row["missing"] == ["node-1"]


async def test_a_damaged_ledger_has_a_row_that_says_so(driver_world: DriverWorld) -> None:
    name = await driver_world.create()
    await driver_world.write(name, range(10))
    (row,) = await rows(driver_world, "ledgers", name)
    store = driver_world.namespace.services.ledger_store
    await driver_world.namespace.store.put(store.path(int(str(row["ledger"]))), b"nonsense", -1)
    (row,) = await rows(driver_world, "ledgers", name)
    assert row["state"] is None
    assert row["error"]


async def test_sinks_are_told_with_their_mark_and_what_is_staged(driver_world: DriverWorld) -> None:
    sinks = SinkStore(driver_world.namespace.store, driver_world.namespace.uri.path)
    assert await rows(driver_world, "sinks") == []
    query, application, job = query_sink("0a-1"), application_sink("nightly/1"), job_sink("abc")
    state, *_ = [await sinks.ensure(one) for one in (query, application, job)]
    store = driver_world.namespace.store
    await store.multi(sinks.publish_ops(query, state, state.value.moved(7, "att", 70), []))
    await sinks.list_ledger(query, StagedLedger(9, "b", 100))
    await sinks.list_ledger(query, StagedLedger(8, "a", 101))
    await store.put(sinks.paths(job).root, json.dumps({"v": 99}).encode(), -1)
    found = {row["sink"]: row for row in await rows(driver_world, "sinks")}
    assert (found[query]["kind"], found[query]["name"], found[query]["batch"]) == ("query", "0a-1", 7)
    assert (found[query]["attempt"], found[query]["staged"], found[query]["staged_from"]) == ("att", 2, 8)
    assert found[query]["published_at"] is not None
    assert (found[application]["kind"], found[application]["name"]) == ("application", "nightly/1")
    assert (found[application]["batch"], found[application]["published_at"]) == (None, None)
    assert "not a mark of version" in str(found[job]["error"])
