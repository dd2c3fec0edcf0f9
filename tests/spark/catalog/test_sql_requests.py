"""The SQL catalog's questions and answers without Spark: metadata in memory, storage nodes in this process."""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal

import pytest
from helpers.spark.memory_world import URI, DriverWorld, answer_request
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNull, LessThan
from pyspark.sql.types import StructType

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.vector_decoding import MAX_TIMESTAMP_MS
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from dlspark.spark.catalog.creation import check_layout, own_properties
from dlspark.spark.catalog.requests import answer
from dlspark.spark.catalog.scan import Pushed, Rows, RowsOfLog, exact, filters_of
from dlspark.spark.catalog.tables import (
    HANDLE,
    NOT_OF_A_TABLE,
    SCAN,
    TableHandle,
    TableProperties,
    checked_properties,
    pushed,
    unpacked,
)
from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import OPTIONS, Scope
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.filters import Bounds
from dlspark.spark.source.log_spans import Take
from metadata.distributedlog.segments import TruncationStatus
from metadata.foundation.errors import InvariantViolation
from metadata.zookeeper.memory import MemoryStore


async def ask(driver_world: DriverWorld, operation: str, **words: object) -> object:
    """The result of a question. AssertionError with the answer where it is an error."""
    said = await answer_request(driver_world, operation, **words)
    assert "result" in said, said
    return said["result"]


async def summarise(driver_world: DriverWorld, options: dict[str, str], *functions: dict[str, str]) -> object:
    found = await ask(driver_world, "summarise", options=options, functions=list(functions))
    assert isinstance(found, dict)
    return found["values"]


async def kind(driver_world: DriverWorld, operation: str, **words: object) -> object:
    """What kind of error the answer is."""
    error = (await answer_request(driver_world, operation, **words))["error"]
    assert isinstance(error, dict)
    return error["kind"]


async def text(driver_world: DriverWorld, operation: str, **words: object) -> str:
    error = (await answer_request(driver_world, operation, **words))["error"]
    assert isinstance(error, dict)
    assert error["kind"] == "refused"
    return str(error["text"])


def creation(*table: str, **properties: str) -> dict[str, object]:
    return {"table": table, "schema": StructType().json(), "default_provider": "parquet", "properties": properties}


async def read_options(driver_world: DriverWorld, log: str, **given: str) -> dict[str, str]:
    found = await ask(driver_world, "load", table=[log])
    assert isinstance(found, dict)
    return {HANDLE: json.dumps(found["handle"]), **given}


# ---------------------------------------------------------------------- names


async def test_a_log_is_a_table_in_the_namespace_that_its_name_begins_with(driver_world: DriverWorld) -> None:
    for name in ("top", "a/b/c", "a/b/d", "a/e", "a"):
        await driver_world.create(name)
    assert await ask(driver_world, "tables", namespace=[]) == ["a", "top"]
    assert await ask(driver_world, "namespaces", namespace=[]) == ["a"]
    assert await ask(driver_world, "tables", namespace=["a"]) == ["e"]
    assert await ask(driver_world, "namespaces", namespace=["a"]) == ["b"]
    assert await ask(driver_world, "tables", namespace=["a", "b"]) == ["c", "d"]
    assert await ask(driver_world, "namespaces", namespace=["a", "b"]) == []
    for missing in (["nowhere"], ["top"], ["a", "b", "c"], ["<bad>"]):
        assert await kind(driver_world, "tables", namespace=missing) == "no_such_namespace"
    assert await ask(driver_world, "namespace", namespace=["a"]) == {"location": f"{URI}/a"}


async def test_namespaces_come_and_go_with_logs_and_are_not_made_or_dropped(driver_world: DriverWorld) -> None:
    await driver_world.create("a/b")
    assert await kind(driver_world, "create_namespace", namespace=["a"]) == "namespace_exists"
    assert "CREATE TABLE x.y.<name>" in await text(driver_world, "create_namespace", namespace=["x", "y"])
    assert await kind(driver_world, "drop_namespace", namespace=["a"]) == "namespace_not_empty"
    assert await kind(driver_world, "drop_namespace", namespace=["x"]) == "no_such_namespace"
    assert await ask(driver_world, "drop", table=["a", "b"]) is True
    assert await kind(driver_world, "drop_namespace", namespace=["a"]) == "no_such_namespace"


async def test_a_metadata_table_is_found_where_no_log_has_its_name(driver_world: DriverWorld) -> None:
    await driver_world.create("flights")
    found = await ask(driver_world, "load", table=["flights", "Segments"])
    assert isinstance(found, dict)
    assert (found["writable"], found["pushdown"]) == (False, False)
    assert unpacked({HANDLE: json.dumps(found["handle"])}, Scope.SOURCE_BATCH) == {
        "uri": URI,
        "metadata": "segments",
        "log": "flights",
    }
    found = await ask(driver_world, "load", table=["bookies"])
    assert isinstance(found, dict)
    assert {column["name"] for column in found["columns"]} >= {"bookie", "host"}
    for missing in (["flights", "bookies"], ["other", "segments"], ["flights", "x"], ["<bad>"]):
        assert await kind(driver_world, "load", table=missing) == "no_such_table"
    assert "no older versions" in await text(driver_world, "load", table=["bookies"], version="1:0:0")
    for change in ("drop", "alter", "rename"):
        assert "can only be read" in await text(driver_world, change, table=["flights", "segments"], new_table=["x"])
    await driver_world.create("flights/segments")
    found = await ask(driver_world, "load", table=["flights", "segments"])
    assert isinstance(found, dict)
    assert found["writable"] is True


# ---------------------------------------------------------------------- creating, changing, dropping


async def test_creation_keeps_properties_that_later_queries_get_unless_they_say_otherwise(
    driver_world: DriverWorld,
) -> None:
    given = creation("a", "t", MAXOFFSETSPERTRIGGER="5", compressionType="lz4", startingOffsets="latest", comment="x")
    made = await ask(driver_world, "create", **given)
    assert isinstance(made, dict)
    loaded = await ask(
        driver_world, "load", table=["a", "t"], defaults={"minPartitions": "2", "startingTimestamp": "7"}
    )
    assert isinstance(loaded, dict)
    assert (
        loaded["properties"]
        == made["properties"]
        == {
            "comment": "x",
            "compressionType": "lz4",
            "location": f"{URI}/a/t",
            "maxOffsetsPerTrigger": "5",
            "provider": "distributedlog",
            "startingOffsets": "latest",
        }
    )
    handle = {HANDLE: json.dumps(loaded["handle"])}
    place = {"uri": URI, "log": "a/t", "columns": "raw"}
    batch = {**place, "startingOffsets": "latest", "minPartitions": "2"}
    assert unpacked(handle, Scope.SOURCE_BATCH) == batch
    assert unpacked(handle, Scope.SOURCE_STREAM) == {**batch, "maxOffsetsPerTrigger": "5"}
    assert unpacked(handle, Scope.SINK_BATCH) == {**place, "compressionType": "lz4"}
    own = {**handle, "startingTransactionId": "3", "MinPartitions": "9"}
    assert unpacked(own, Scope.SOURCE_BATCH) == {**place, "startingTransactionId": "3", "MinPartitions": "9"}


async def test_creation_is_refused_before_anything_is_done(driver_world: DriverWorld) -> None:
    assert "Did you mean maxOffsetsPerTrigger" in await text(
        driver_world, "create", **creation("t", maxOfsetsPerTrigger="5")
    )
    assert "is not a whole number" in await text(driver_world, "create", **creation("t", minPartitions="many"))
    for name in ("uri", "subscribe", "txnAppId", "numLogs"):
        assert "cannot be a property of a table" in await text(driver_world, "create", **creation("t", **{name: "1"}))
    assert "InvalidLogNameError" in await text(driver_world, "create", **creation("<t>"))
    assert await driver_world.namespace.logs(recursive=True) == []
    await driver_world.create("t")
    assert await kind(driver_world, "create", **creation("t")) == "table_exists"


def test_a_log_has_no_layout_of_its_own() -> None:
    check_layout([], constrained=False)
    for partitioning, constrained in ((["log"], False), ([], True)):
        with pytest.raises(SchemaError):
            check_layout(partitioning, constrained=constrained)
    own = {"minPartitions": "1", "comment": "x"}
    place = f"{URI}/t"
    given = {**own, "provider": "Parquet", "owner": "me", "option.a": "1", "location": place}
    assert own_properties(given, "parquet", place) == own
    for refused in ({"provider": "csv"}, {"location": "/x"}, {"provider": "parquet"}, {"external": "true"}):
        with pytest.raises(OptionError):
            own_properties(refused, "parquet" if refused == {"provider": "csv"} else "", place)


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"compressionType": "gzip"}, "compressionType"),
        ({"startingOffsets": "{"}, "startingOffsets is neither"),
        ({"startingOffsets": '{"other": "earliest"}'}, "no position for t"),
        ({"startingTimestamp": "5", "startingTransactionId": "5"}, "contradict"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "lies after"),
        ({"maxTriggerDelay": "1m"}, "does nothing without minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "is above maxOffsetsPerTrigger"),
        ({"bkc.noSuchKey": "5"}, "nosuchkey"),
        ({"distributedlog.readAheadBatchSize": "many"}, "many"),
    ],
)
async def test_what_a_query_would_refuse_is_refused_as_a_property(
    driver_world: DriverWorld, properties: dict[str, str], says: str
) -> None:
    assert says in await text(driver_world, "create", **creation("t", **properties))
    assert await driver_world.namespace.logs() == []
    await ask(driver_world, "create", **creation("t", maxRecordsPerPartition="5"))
    assert says in await text(driver_world, "alter", table=["t"], set=properties, remove=[])
    loaded = await ask(driver_world, "load", table=["t"])
    assert isinstance(loaded, dict)
    assert "maxRecordsPerPartition" in loaded["properties"]
    assert not set(properties) & set(loaded["properties"])


async def test_settings_that_are_handed_on_are_properties_too(driver_world: DriverWorld) -> None:
    made = await ask(
        driver_world,
        "create",
        **creation("t", **{"bkc.readEntryTimeoutSec": "7", "distributedlog.lockTimeoutSeconds": "3"}),
    )
    assert isinstance(made, dict)
    handle = {HANDLE: json.dumps(made["handle"])}
    for scope in (Scope.SOURCE_BATCH, Scope.SOURCE_STREAM, Scope.SINK_BATCH):
        found = unpacked(handle, scope)
        assert found["bkc.readentrytimeoutsec"] == "7"
        assert found["distributedlog.locktimeoutseconds"] == "3"


async def test_statements_that_do_more_than_append_are_refused_with_what_can_be_done(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    said = await text(driver_world, "change", table=["t"])
    assert "neither updated, deleted, merged nor overwritten" in said
    assert "dlspark log truncate" in said
    assert await kind(driver_world, "change", table=["gone"]) == "no_such_table"
    assert "can only be read" in await text(driver_world, "change", table=["bookies"])


def test_options_of_time_travel_are_sparks_and_are_taken_away_where_they_were_applied() -> None:
    plain = TableHandle(URI, "t")
    older = {HANDLE: json.dumps(plain.until(position="1:2:4").to_json())}
    assert unpacked({**older, "versionAsOf": "1:2:3"}, Scope.SOURCE_BATCH) == {
        "uri": URI, "log": "t", "columns": "raw", "endingOffsets": '{"t": "1:2:4"}',
    }  # fmt: skip
    by_time = {HANDLE: json.dumps(plain.until(txid=9).to_json())}
    assert unpacked({**by_time, "TIMESTAMPASOF": "1970-01-01"}, Scope.SOURCE_BATCH)["endingTransactionId"] == "9"
    for scope in (Scope.SOURCE_STREAM, Scope.SOURCE_BATCH):
        with pytest.raises(OptionError, match="versionasof was not applied"):
            unpacked({HANDLE: json.dumps(plain.to_json()), "versionasof": "1:2:3"}, scope)
    with pytest.raises(OptionError, match="VERSION AS OF '3:1200:7'"):
        Options({"versionAsOf": "1:2:3"}, Scope.SOURCE_BATCH)


async def test_properties_are_changed_under_their_version_and_foreign_bytes_are_left_alone(
    driver_world: DriverWorld,
) -> None:
    await ask(driver_world, "create", **creation("t", minPartitions="2", compressionType="lz4"))
    changed = await ask(
        driver_world, "alter", table=["t"], set={"minPartitions": "3", "comment": "c"}, remove=["COMPRESSIONTYPE"]
    )
    assert isinstance(changed, dict)
    assert changed["properties"] == {
        "comment": "c",
        "location": f"{URI}/t",
        "minPartitions": "3",
        "provider": "distributedlog",
    }
    assert "AddColumn" in await text(driver_world, "alter", table=["t"], set={}, remove=[], others=["AddColumn"])
    await ask(driver_world, "alter", table=["t"], set={}, remove=["minPartitions", "comment"])
    log = await driver_world.namespace.open_log("t")
    assert (await log.metadata()).value == b""
    await log.set_metadata(b"another application's")
    assert "bytes of its own" in await text(driver_world, "alter", table=["t"], set={"minPartitions": "3"}, remove=[])
    loaded = await ask(driver_world, "load", table=["t"])
    assert isinstance(loaded, dict)
    assert set(loaded["properties"]) == {"location", "provider"}
    assert (await log.metadata()).value == b"another application's"
    assert await kind(driver_world, "alter", table=["none"], set={}, remove=[]) == "no_such_table"


@pytest.mark.parametrize("name", ["location", "path", "checkpointLocation", "queryName", "owner", "option.log"])
async def test_what_spark_says_of_its_own_tables_is_no_property_of_a_log(driver_world: DriverWorld, name: str) -> None:
    await ask(driver_world, "create", **creation("t", minPartitions="2"))
    refused = await text(driver_world, "alter", table=["t"], set={name: "/elsewhere"}, remove=[])
    assert f"{name} cannot be a property of a table" in refused
    assert (await (await driver_world.namespace.open_log("t")).metadata()).value.count(b"elsewhere") == 0


def test_further_keys_of_a_stored_object_stay_and_other_versions_are_foreign() -> None:
    kept = TableProperties.decode(b'{"app": [1], "dlspark": {"v": 1, "properties": {"minPartitions": "2"}}}')
    assert json.loads(kept.changed("t", {}, ["minPartitions"]).encode()) == {"app": [1]}
    assert TableProperties.decode(kept.encode()) == kept
    for foreign in (b"\xff", b"[]", b"3", b'{"dlspark": {"v": 2}}', b'{"dlspark": {"v": 1, "properties": [1]}}'):
        assert TableProperties.decode(foreign).foreign, foreign
    assert TableProperties.decode(b"") == TableProperties()


async def test_a_log_is_renamed_and_dropped_unless_somebody_writes_it(driver_world: DriverWorld) -> None:
    await driver_world.create("old")
    await driver_world.create("taken")
    assert await kind(driver_world, "rename", table=["old"], new_table=["taken"]) == "table_exists"
    assert await kind(driver_world, "rename", table=["none"], new_table=["x"]) == "no_such_table"
    assert await ask(driver_world, "rename", table=["old"], new_table=["a", "new"]) is True
    await driver_world.write("a/new", range(5), keep_open=True)
    assert "OwnershipAcquireFailedError" in await text(driver_world, "drop", table=["a", "new"])
    assert "OwnershipAcquireFailedError" in await text(driver_world, "rename", table=["a", "new"], new_table=["x"])
    await driver_world.write("a/new", [5])
    assert await ask(driver_world, "drop", table=["a", "new"]) is True
    assert await ask(driver_world, "drop", table=["a", "new"]) is False
    assert await driver_world.namespace.logs(recursive=True) == ["taken"]


async def test_a_log_that_a_failed_query_created_goes_unless_it_has_become_somebody_elses(
    driver_world: DriverWorld,
) -> None:
    async def created(name: str) -> dict[str, object]:
        said = await ask(driver_world, "create", **creation(name))
        assert isinstance(said, dict)
        return {"table": [name], "created": said["created"]}

    unused = await created("unused")
    assert await ask(driver_world, "abandon", **unused) is True
    assert await ask(driver_world, "abandon", **unused) is False
    written = await created("written")
    await driver_world.write("written", range(3))
    assert "written to since" in await text(driver_world, "abandon", **written)
    await driver_world.truncate("written", 0, TruncationStatus.TRUNCATED)
    await driver_world.namespace.logs_store.delete_segment(
        "written", (await driver_world.namespace.logs_store.segments("written"))[0]
    )
    assert "written to since" in await text(driver_world, "abandon", **written), "although no segment is left"
    writing = await created("writing")
    await driver_world.write("writing", range(3), keep_open=True)
    assert "OwnershipAcquireFailedError" in await text(driver_world, "abandon", **writing)
    await driver_world.write("writing", [3])
    again = await created("again")
    await ask(driver_world, "drop", table=["again"])
    await driver_world.create("again")
    assert "another one" in await text(driver_world, "abandon", **again)
    assert await driver_world.namespace.logs() == ["again", "writing", "written"]


async def test_a_log_that_is_there_is_not_replaced(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    for operation in ("replace", "create_or_replace"):
        assert "only grows" in await text(driver_world, operation, **creation("t"))
    assert await kind(driver_world, "replace", **creation("new")) == "no_such_table"
    await ask(driver_world, "create_or_replace", **creation("new"))
    assert await driver_world.namespace.logs() == ["new", "t"]


# ---------------------------------------------------------------------- older versions


async def test_a_version_ends_with_the_record_that_is_named(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(100, 107), entry=3)
    await driver_world.write("t", range(107, 109))
    for version, expected in (("1:0:0", 1), ("1:0:2", 3), ("1:1:0", 4), ("1:2:0", 7), ("2:0:1", 9)):
        loaded = await ask(driver_world, "load", table=["t"], version=version)
        assert isinstance(loaded, dict)
        assert loaded["writable"] is False
        options = {HANDLE: json.dumps(loaded["handle"])}
        counted = await summarise(
            driver_world, options, {"function": "count"}, {"function": "max", "column": "transaction_id"}
        )
        assert counted == [expected, 99 + expected], version
    assert "no record 2:1:0 yet" in await text(driver_world, "load", table=["t"], version="2:1:0")
    assert "not a position" in await text(driver_world, "load", table=["t"], version="7")


async def test_a_version_that_was_truncated_is_gone_and_not_empty(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(5))
    await driver_world.write("t", range(5, 9))
    await driver_world.truncate("t", 0, TruncationStatus.TRUNCATED)
    assert "DataLossError" in await text(driver_world, "load", table=["t"], version="1:0:2")


async def test_a_time_ends_before_the_next_millisecond(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(100, 110))
    for micros, expected in ((99_999, 0), (100_000, 1), (100_999, 1), (101_000, 2), (10**12, 10), (-5, 0)):
        loaded = await ask(driver_world, "load", table=["t"], timestamp_us=micros)
        assert isinstance(loaded, dict)
        options = {HANDLE: json.dumps(loaded["handle"])}
        assert await summarise(driver_world, options, {"function": "count"}) == [expected], micros


def test_an_option_that_names_another_log_or_another_end_is_refused() -> None:
    handle = {HANDLE: json.dumps(TableHandle(URI, "t").to_json())}
    for name in ("uri", "log", "Subscribe", "path", "metadata"):
        with pytest.raises(OptionError, match="no meaning for a table"):
            unpacked({**handle, name: "x"}, Scope.SOURCE_BATCH)
    older = {HANDLE: json.dumps(TableHandle(URI, "t").until(position="1:2:4").to_json())}
    assert unpacked(older, Scope.SOURCE_BATCH)["endingOffsets"] == '{"t": "1:2:4"}'
    with pytest.raises(OptionError, match="contradict"):
        unpacked({**older, "endingTimestamp": "5"}, Scope.SOURCE_BATCH)


def test_every_option_may_be_a_property_or_is_refused_as_one() -> None:
    samples = {"integer >= 1": "3", "integer >= 0": "3", "true / false": "true", "epoch milliseconds or ISO-8601": "3"}
    allowed = set()
    for option in OPTIONS:
        given = {"proxy": "discover", "columns": "raw"}.get(option.key) or samples.get(option.type_words)
        value = option.default or given or ("latest" if "Offsets" in option.key else "x")
        if option.key in NOT_OF_A_TABLE:
            with pytest.raises(OptionError, match="cannot be a property"):
                checked_properties({option.key.upper(): value})
        else:
            allowed |= set(checked_properties({option.key.upper(): value}))
    assert {"startingOffsets", "minPartitions", "compressionType", "failOnDataLoss"} <= allowed


# ---------------------------------------------------------------------- what is pushed down


async def test_filters_that_are_kept_exactly_are_told_from_those_that_are_not(driver_world: DriverWorld) -> None:
    said = [
        [">=", "timestamp", {"us": 1_500}],
        ["=", "log", "t"],
        ["in", "log", ["t", "u"]],
        ["not null", "value"],
        ["<", "segment", 3],
        ["=", "value", "x"],
        ["not null", "timestamp"],
    ]
    exact = await ask(driver_world, "filters", filters=said)
    assert exact == [True, True, True, True, True, False, True]
    kept = [words for words, one in zip(said, exact, strict=True) if one]
    assert Pushed.of({"filters": kept}).bounds == Bounds(
        logs=frozenset({"t"}), end_segment=3, min_txid=2, end_txid=MAX_TIMESTAMP_MS + 1
    )
    with pytest.raises(InvariantViolation):
        Pushed.of({"filters": said})


def test_values_of_all_kinds_have_words_and_what_no_bound_expresses_is_left_to_spark() -> None:
    said: list[list[object]] = [
        ["null", "value"],
        ["=", "segment", True],
        ["<", "segment", 2.5],
        [">=", "transaction_id", {"decimal": "3.50"}],
        ["in", "segment", [1, 2.5]],
    ]
    assert filters_of(said) == [
        IsNull(("value",)),
        EqualTo(("segment",), True),
        LessThan(("segment",), 2.5),
        GreaterThanOrEqual(("transaction_id",), Decimal("3.50")),
        In(("segment",), (1, 2.5)),
    ]
    assert exact(said) == [False] * 5
    assert Pushed.of({"hints": said}).bounds == Bounds()


async def test_a_time_beyond_the_years_of_python_is_a_bound_as_any(driver_world: DriverWorld) -> None:
    said = [["<", "timestamp", {"us": 1 << 60}], [">", "timestamp", {"us": -(1 << 60)}], ["=", "segment", 1]]
    assert await ask(driver_world, "filters", filters=said) == [True, True, True]
    every_time = Bounds(min_segment=1, end_segment=2, end_txid=MAX_TIMESTAMP_MS + 1)
    assert Pushed.of({"filters": said}).bounds == every_time


def test_filters_that_spark_sees_to_still_spare_what_cannot_satisfy_them() -> None:
    hinted = Pushed.of(
        {"filters": [[">", "segment", 1]], "hints": [["in", "transaction_id", [7, 3]], ["=", "slot", 1]]}
    )
    assert hinted.bounds == Bounds(min_segment=2, min_txid=3, end_txid=8)


@pytest.mark.parametrize(
    ("words", "take"),
    [
        ({"limit": 5}, Take(5)),
        ({"limit": 5, "order": ["transaction_id"], "descending": True}, Take(5, last=True)),
        ({"limit": 5, "order": ["timestamp"], "descending": False}, Take(5, timed=True)),
        ({"limit": 5, "order": ["segment", "entry", "slot"], "descending": True}, Take(5, last=True)),
        ({"limit": 5, "order": ["value"], "descending": True}, None),
        ({"limit": 5, "order": ["entry", "segment"], "descending": True}, None),
        ({}, None),
    ],
)
def test_a_limit_is_taken_where_the_order_is_the_logs_own(words: dict[str, object], take: Take | None) -> None:
    assert Pushed.of(pushed({SCAN: json.dumps(words)})).take == take


async def test_a_limited_plan_reads_at_least_the_rows_that_are_wanted_and_only_their_entries(
    driver_world: DriverWorld,
) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(100, 140), entry=4)
    await driver_world.write("t", range(140, 160), entry=4, keep_open=True)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log="t")
    start = await driver.resolve(driver.query.start)
    end = await driver.resolve(driver.query.end, ending=True)
    for records, last in itertools.product((1, 4, 5, 41, 60, 99), (False, True)):
        spans = [
            span for partition in await driver.plan(start, end, None, Take(records, last=last)) for span in partition
        ]
        entries = sum(span.entries for span in spans)
        assert min(records, 60) / 4 <= entries <= min(records, 60) / 4 + 2, (records, last)
        first = spans[0]
        assert (first.lssn, first.first_entry, first.first_slot) == (1, 0, 0) or last
        # The last entry of the open segment is read whatever the limit, when the last records are wanted.
        assert not last or spans[-1].lssn == 2


async def test_records_without_a_time_make_the_order_by_time_another_one(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", [1, 2, MAX_TIMESTAMP_MS + 1], entry=1)
    driver = await driver_world.driver(Scope.SOURCE_BATCH, log="t")
    start = await driver.resolve(driver.query.start)
    end = await driver.resolve(driver.query.end, ending=True)

    async def entries(take: Take, bounds: Bounds | None = None) -> int:
        return sum(span.entries for part in await driver.plan(start, end, bounds, take) for span in part)

    assert await entries(Take(1, last=True)) <= 2
    assert await entries(Take(1, last=True, timed=True)) >= 3
    assert await entries(Take(1, last=True, timed=True), Bounds(end_txid=MAX_TIMESTAMP_MS + 1)) == 1


FUNCTIONS = [
    {"function": "count"},
    {"function": "count", "column": "value"},
    {"function": "min", "column": "transaction_id"},
    {"function": "max", "column": "timestamp"},
    {"function": "max", "column": "segment"},
]


async def test_aggregates_from_metadata_are_those_of_the_rows(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(100, 140), entry=4)
    await driver_world.write("t", range(140, 160), entry=4, keep_open=True)
    await driver_world.commit("t")
    for low, high in itertools.product((0, 100, 103, 139, 140, 158, 500), (None, 101, 141, 160)):
        rows = [txid for txid in range(100, 160) if low <= txid and (high is None or txid < high)]
        filters = [[">=", "transaction_id", low]] + ([] if high is None else [["<", "transaction_id", high]])
        options = await read_options(driver_world, "t", **{SCAN: json.dumps({"filters": filters})})
        found = await summarise(driver_world, options, *FUNCTIONS)
        if rows:
            assert found == [len(rows), len(rows), rows[0], rows[-1] * 1000, 1 if rows[-1] < 140 else 2], filters
        else:
            assert found == [0, 0, None, None, None], filters
    statistics = await ask(driver_world, "statistics", options=await read_options(driver_world, "t"))
    assert isinstance(statistics, dict)
    assert statistics["rows"] == 60
    assert statistics["bytes"] > 60 * 3


@pytest.mark.parametrize("operation", ["statistics", "summarise"])
async def test_a_question_about_a_query_opens_the_namespace_as_its_options_say(
    operation: str, driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver_world.create("t")
    opened: list[str] = []

    async def open_it(uri: str, settings: Mapping[str, object]) -> AsyncNamespace:
        opened.append(Settings.from_mapping(settings).security_directory)
        store = MemoryStore(driver_world.tree)
        return await AsyncNamespace.over(store, uri, own=(store,))

    monkeypatch.setattr(AsyncNamespace, "open", open_it)
    options = await read_options(driver_world, "t", **{"tls.directory": "/here"})
    said = await answer({"operation": operation, "options": options, "functions": list(FUNCTIONS)}, lambda: URI)
    assert "result" in said, said
    assert opened == ["/here"]


async def test_statements_open_the_namespace_as_the_session_and_the_catalog_say(
    driver_world: DriverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver_world.create("t")
    opened: list[Settings] = []

    async def open_it(uri: str, settings: Settings) -> AsyncNamespace:
        opened.append(settings)
        store = MemoryStore(driver_world.tree)
        return await AsyncNamespace.over(store, uri, own=(store,))

    monkeypatch.setattr(AsyncNamespace, "open", open_it)
    request: dict[str, object] = {"operation": "tables", "namespace": [], "catalog": "dlog"}
    request["defaults"] = {"distributedlog.readAheadWaitTime": "17", "distributedlog.lockTimeoutSeconds": "9"}
    session = {"tls.directory": "/here", "bkc.addEntryTimeoutSec": "7"}
    assert await answer(request, lambda: URI, session=session) == {"result": ["t"]}
    (settings,) = opened
    assert (settings.security, settings.security_directory) == ("on", "/here")
    assert settings.client_settings().add_entry_timeout_ms == 7_000
    assert settings.as_mapping()["readAheadWaitTime"] == 17
    assert settings.as_mapping()["lockTimeoutSeconds"] == 0, "a statement does not wait for locks"


async def test_a_statement_with_settings_that_contradict_each_other_is_refused(driver_world: DriverWorld) -> None:
    session = {"tls.directory": "/here", "distributedlog.security": "off"}
    said = await answer(
        {"operation": "tables", "namespace": [], "catalog": "dlog", "defaults": {}}, lambda: URI, session=session
    )
    assert "security is switched off" in str(said["error"])


async def test_aggregates_that_metadata_does_not_tell_are_not_answered(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", [1, 2, MAX_TIMESTAMP_MS + 1])
    options = await read_options(driver_world, "t")

    async def asked(*functions: dict[str, str]) -> object:
        return await summarise(driver_world, options, *functions)

    assert await asked({"function": "max", "column": "transaction_id"}) == [MAX_TIMESTAMP_MS + 1]
    for unknown in (
        {"function": "max", "column": "timestamp"},
        {"function": "count", "column": "timestamp"},
        {"function": "max", "column": "value"},
        {"function": "max", "column": "entry"},
    ):
        assert await asked({"function": "count"}, unknown) is None, unknown


class Uncounted(DriverLogView):
    """A log whose writer kept no record counts, as this library's never is: what the view says of it."""

    async def count(self, start: DLSN, end: DLSN) -> int:
        raise OptionError("this log was written without record counts")


async def test_a_log_whose_writer_did_not_count_has_no_aggregates(driver_world: DriverWorld) -> None:
    await driver_world.create("t")
    await driver_world.write("t", range(5))
    view = await Uncounted.open(driver_world.namespace, "t")
    rows = Rows([RowsOfLog(view, view.earliest(), await view.latest())])
    assert await rows.summary([{"function": "count"}]) is None
    statistics = await rows.statistics()
    assert statistics["rows"] is None
    assert statistics["bytes"]
    await view.close()


async def test_what_python_did_not_expect_is_no_answer(driver_world: DriverWorld) -> None:
    with pytest.raises(KeyError):
        await answer_request(driver_world, "dance")


# ---------------------------------------------------------------------- times that some type cannot hold

FAR = (-(2**63), -62_135_596_800_000_001, -9_223_372_036_854_775, -1, 0, 1_500, MAX_TIMESTAMP_MS * 1000)
FAR += (MAX_TIMESTAMP_MS * 1000 + 999, MAX_TIMESTAMP_MS * 1000 + 1000, 2**63 - 1)
HOLDS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<=>": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@pytest.mark.parametrize("comparison", HOLDS)
def test_a_bound_keeps_its_meaning_however_far_away_it_is(comparison: str) -> None:
    ids = (0, 1, 2, MAX_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS, MAX_TIMESTAMP_MS + 1, 2**62)
    for micros in FAR:
        words = [comparison, "timestamp", {"us": micros}]
        assert exact([words]) == [True]
        bounds = Pushed.of({"filters": [words]}).bounds
        kept = [one for one in ids if bounds.min_txid <= one and (bounds.end_txid is None or one < bounds.end_txid)]
        # Ids beyond the year 9999 have no timestamp, and satisfy nothing.
        wanted = [one for one in ids if one <= MAX_TIMESTAMP_MS and HOLDS[comparison](one * 1000, micros)]
        assert kept == wanted, (micros, bounds)
