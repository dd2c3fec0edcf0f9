"""Values of options that a user has mistyped: each is refused before anything runs, with a plain reason and, where one
is near, the word that was meant."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from helpers.spark.memory_world import URI, DriverWorld
from pyspark.sql.types import StringType, StructField, StructType

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import BatchRefusedError
from dlspark.spark.metadata_tables.reader import rows_of
from dlspark.spark.metadata_tables.registry import CURSORS, LOGS, SEGMENTS, MetadataTable, requested
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.columns import columns_of, routing_of
from dlspark.spark.sink.commit_modes import commit_way
from dlspark.spark.sink.driver import PublishingSession
from dlspark.spark.sink.session import SinkSession, settings_of
from dlspark.spark.sink.write_proxies import proxies_at
from dlspark.spark.sink.writer import batch_writer
from dlspark.spark.source.offsets import NamedOffset
from dlspark.spark.source.selection import PerLog, Selection, SourceQuery
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.sinks import MAX_APPLICATION_CHARS, application_sink
from metadata.foundation.errors import CallerError

VALUE = StructType([StructField("value", StringType())])


def source(**raw: str) -> SourceQuery:
    options = Options({"uri": URI, **raw}, Scope.SOURCE_BATCH)
    requested(options)
    return SourceQuery.of(options)


def sink(**raw: str) -> None:
    options = Options({"uri": URI, "log": "x", **raw}, Scope.SINK_BATCH)
    settings_of(options)
    commit_way(options, numbered=True)
    columns_of(VALUE, options.one_log(), routing_of(options))
    batch_writer(options, VALUE, overwrite=False)


def offsets(value: object) -> SourceQuery:
    return source(log="flights", startingOffsets=value if isinstance(value, str) else json.dumps(value))


MISTYPED: dict[str, tuple[Callable[[], object], str]] = {
    "a comma at the end": (lambda: source(subscribe="a,"), r"Option subscribe names no log .*'a,'.*comma out: 'a'"),
    "two commas": (lambda: source(subscribe="a,,b"), "comma out: 'a,b'"),
    "commas alone": (lambda: source(subscribe=","), "Option subscribe names no log.*Write for example flights,alerts"),
    "subscribe as JSON": (lambda: source(subscribe='["a"]'), "not JSON.*option assign"),
    "assign without a name": (lambda: source(assign='["a", ""]'), "Option assign has a name that is empty"),
    "a log in capitals": (lambda: offsets({"Flights": "earliest"}), "one for Flights, which .*Did you mean flights?"),
    "a log beside it": (
        lambda: offsets({"flights": "earliest", "Flights": "earliest"}),
        "a position for Flights, which the query does not read.*Did you mean flights?",
    ),
    "the keys of a checkpoint in capitals": (
        lambda: offsets({"V": 1, "Logs": {"flights": "3:1:0"}}),
        r'like an offset of a checkpoint.*\{"v": 1, "logs": .*spelled like that',
    ),
    "a checkpoint's offset in part": (
        lambda: offsets({"logs": {"flights": "3:1:0"}}),
        "like an offset of a checkpoint",
    ),
    "a word": (lambda: offsets("earlest"), "neither earliest, latest nor JSON: 'earlest'.*Did you mean earliest?"),
    "a word of a log": (lambda: offsets({"flights": "Lattest"}), "log flights: 'Lattest' is .*Did you mean latest?"),
    "a position alone": (lambda: offsets("3:1:0"), r'A position is one log\'s: .*\{"flights": "3:1:0"\}'),
    "a time of a log": (
        lambda: source(log="flights", startingOffsetsByTimestamp='{"flights": "yesterday"}'),
        "Option startingOffsetsByTimestamp of flights='yesterday' is not a time",
    ),
    "a strategy": (
        lambda: source(log="a", startingTimestamp="5", startingOffsetsByTimestampStrategy="eror"),
        "must be one of error, latest, not 'eror'.*Did you mean error?",
    ),
    "a metadata table": (lambda: source(metadata="segment"), "No metadata table 'segment'.*Did you mean segments?"),
    "an application": (
        lambda: sink(txnAppId="a" * 300, txnVersion="1"),
        r"Option txnAppId is too long.*'aaa.*\(302 characters\); nothing was written.*at most 246 letters",
    ),
    "a compression": (lambda: sink(compressionType="lz"), "is not one of none, lz4.*Did you mean lz4?"),
    "a commit mode": (lambda: sink(commitMode="apend"), "commitMode='apend' cannot be.*Did you mean append?"),
    "a key column": (
        lambda: sink(log="x-{}", numLogs="2", partitionBy="valu"),
        "partitionBy names column 'valu', and there are value.*Did you mean value?",
    ),
}


@pytest.mark.parametrize("kind", MISTYPED)
def test_a_mistyped_value_has_a_plain_reason_and_a_near_name(kind: str) -> None:
    action, words = MISTYPED[kind]
    with pytest.raises(CallerError, match=words):
        action()


def test_words_and_names_that_are_right_in_any_case_and_place_are_taken() -> None:
    assert offsets(" EARLIEST ").start == source(log="flights").start
    assert offsets({"flights": "Earliest"}).start == PerLog({"flights": NamedOffset.EARLIEST}, "startingOffsets")
    at = DLSN(3, 1, 0)
    assert offsets({"v": 1, "logs": {"flights": "3:1:0"}}).start == PerLog({"flights": at}, "startingOffsets")
    # Logs may be called as the parts of a checkpoint are.
    query = source(subscribe="v,logs", startingOffsets='{"v": "3:1:0", "logs": "3:1:0"}')
    assert query.start == PerLog({"v": at, "logs": at}, "startingOffsets")


def test_the_longest_application_makes_a_sink() -> None:
    assert application_sink("a" * MAX_APPLICATION_CHARS)
    with pytest.raises(CallerError):
        application_sink("a" * (MAX_APPLICATION_CHARS + 1))


MISSING = {
    "flight": "No such log: flight; nothing was read.*Did you mean flights?",
    "Flights": "Did you mean flights?",
    "team/alert": "Did you mean team/alerts?",
    "team": r"No such log: team; nothing was read. team is a folder.*Name one \(team/alerts\).*\(team/\.\*\)",
    "flights,other": "Several logs are named by option subscribe",
    "zebra": r"No such log: zebra; nothing was read.*Create it \(`dlspark log create zebra`\)",
}


@pytest.mark.parametrize("name", MISSING)
async def test_a_log_that_is_not_there_has_a_near_name_or_is_a_folder(driver_world: DriverWorld, name: str) -> None:
    for there in ("flights", "team/alerts", "team/raw/x"):
        await driver_world.namespace.create_log(there)

    driver = await driver_world.driver(log=name)
    with pytest.raises(LogNotFoundError, match=MISSING[name]):
        await driver.required_views()


@pytest.mark.parametrize("table", [LOGS, SEGMENTS, CURSORS])
async def test_metadata_tables_say_the_same(driver_world: DriverWorld, table: MetadataTable) -> None:
    await driver_world.namespace.create_log("team/alerts")
    for name in ("team/alert", "team"):
        with pytest.raises(LogNotFoundError, match=MISSING[name]):
            await rows_of(table, URI, Selection(names=(name,)), connect=driver_world.connect)


async def test_a_sink_that_may_not_create_its_log_says_the_same(driver_world: DriverWorld) -> None:
    await driver_world.namespace.create_log("team/alerts")
    settings = driver_world.namespace.services.settings.with_values({"createStreamIfNotExists": False})
    proxies = proxies_at("nowhere:1", driver_world.namespace.uri.path, 1000)
    with pytest.raises(BatchRefusedError, match=r"is false.*Did you mean team/alerts\?"):
        await PublishingSession(SinkSession(driver_world.namespace, settings, proxies)).check_ready(("team/alert",))
