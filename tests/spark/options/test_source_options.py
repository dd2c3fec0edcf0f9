"""The registry of options: names, values, scopes, and errors that say what to do."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path

import pytest

from dlspark.core.settings.settings import Settings, describe_settings
from dlspark.spark import connection
from dlspark.spark.connection import namespace_settings
from dlspark.spark.errors import OptionError
from dlspark.spark.options.query_options import ELSEWHERE, Options
from dlspark.spark.options.registry import OPTIONS, Scope
from dlspark.spark.sink.session import settings_of
from dlspark.spark.source.selection import SourceQuery
from metadata.foundation.errors import CallerError
from storage_node.settings.client import REGISTRY as CLIENT_REGISTRY


def source(**raw: str) -> Options:
    return Options(raw, Scope.SOURCE_BATCH)


def test_names_are_read_in_any_case() -> None:
    assert source(MINPARTITIONS="3").integer("minPartitions") == 3
    assert source(minpartitions="3").given("MinPartitions")


def test_defaults_stand_in_without_counting_as_given() -> None:
    options = source()
    assert options.flag("failOnDataLoss") is True
    assert options.integer("minPartitions") == 1
    assert options.integer("startingTransactionId") is None
    assert not options.given("failOnDataLoss")


@pytest.mark.parametrize(
    ("name", "near"),
    [("startingOfsets", "startingOffsets"), ("subscrib", "subscribe"), ("failondatalos", "failOnDataLoss")],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest_one(name: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"Did you mean {near}") as caught:
        source(**{name: "x"})
    assert f"Unknown option {name.lower()!r}" in str(caught.value)


def test_an_option_far_from_all_others_lists_them() -> None:
    with pytest.raises(OptionError, match=r"docs/settings/spark\.md lists all") as caught:
        source(zzz="1")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"minPartitions": "0"}, r"Option minPartitions=0 is outside 1\.\."),
        ({"minPartitions": "many"}, "is not a whole number"),
        ({"minPartitions": "9223372036854775808"}, r"outside 1\.\.9223372036854775807"),
        ({"startingTransactionId": "-1"}, r"outside 0\.\."),
        ({"failOnDataLoss": "perhaps"}, "is not true or false"),
        ({"subscribe": "  "}, "is empty"),
        ({"startingTimestamp": "yesterday"}, "is not a time: milliseconds since 1970, .*ISO-8601"),
        ({"startingTimestamp": "2013-02-30"}, "is not a time.*there is no such day"),
        ({"startingTimestamp": "2013/7/1"}, "is not a time.*perhaps 2013-07-01 is meant"),
        ({"endingTimestamp": "-5"}, r"endingTimestamp=-5 is outside 0\.\."),
        ({"endingTimestamp": "-" + "9" * 5_000}, "is not a time"),
        ({"startingTimestamp": "100000000000000000000"}, "is not a time"),
        ({"startingTimestamp": str(1 << 63)}, r"outside 0\.\.9223372036854775807"),
        ({"startingTimestamp": "9" * 5_000}, r"5,002 characters\) is not a time"),
        ({"minPartitions": "9" * 5_000}, r"5,002 characters\) is not a whole number"),
        ({"failOnDataLoss": "x" * 5_000}, r"5,002 characters"),
        ({"paths": '["a","b"]'}, "several paths"),
    ],
)
def test_a_malformed_value_is_an_error_that_names_the_option(raw: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        Options(raw, Scope.SOURCE_BATCH)
    assert caught.value.advice


@pytest.mark.parametrize(
    ("name", "value", "scope", "belongs"),
    [
        ("endingOffsets", "latest", Scope.SOURCE_STREAM, "source, batch"),
        ("maxOffsetsPerTrigger", "5", Scope.SOURCE_BATCH, "source, streaming"),
        ("txnAppId", "a", Scope.SOURCE_BATCH, "sink, batch"),
        ("subscribe", "a", Scope.SINK_STREAM, "source"),
        ("txnVersion", "1", Scope.SINK_STREAM, "sink, batch"),
    ],
)
def test_an_option_of_another_kind_of_query_is_an_error(name: str, value: str, scope: Scope, belongs: str) -> None:
    with pytest.raises(OptionError, match=f"{name} has no meaning here: it belongs to: {belongs}"):
        Options({name: value}, scope)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1372636800000", 1372636800000),
        ("2013-07-01", 1372636800000),
        ("2013-07-01T00:00:00Z", 1372636800000),
        ("2013-07-01T02:00:00+02:00", 1372636800000),
        ("2013-07-01 00:00:00.001", 1372636800001),
        ("2013-07-01T00:00:00.000001Z", 1372636800001),
        ("2013-07-01 00:00:00.000000001z", 1372636800001),
        ("2013-07-01t02:00:00+0200", 1372636800000),
        ("1960-01-01", 0),
        ("0", 0),
    ],
)
def test_times_are_epoch_milliseconds_or_iso_and_utc_without_a_zone(text: str, ms: int) -> None:
    assert source(startingTimestamp=text).instant_ms("startingTimestamp") == ms


def test_what_spark_itself_adds_is_not_taken_for_options() -> None:
    options = Options(
        {
            "path": "flights",
            "checkpointLocation": "/c",
            "queryName": "q",
            "provider": "d",
            "owner": "o",
            "option.x": "1",
        },
        Scope.SINK_STREAM,
    )
    assert options.one_log() == "flights"


def test_one_log_is_named_by_the_option_or_the_path_but_not_two_ways() -> None:
    assert source(log="a").one_log() == "a"
    assert source(path="a", log="a").one_log() == "a"
    assert source().one_log() is None
    with pytest.raises(OptionError, match="Two logs are named"):
        source(path="a", log="b").one_log()


def test_options_survive_the_pickling_that_carries_them_to_workers() -> None:
    options = source(path="flights", minPartitions="2").with_uri("distributedlog://h:1/n")
    again = pickle.loads(pickle.dumps(options))
    assert (again.one_log(), again.integer("minPartitions"), again.uri) == ("flights", 2, "distributedlog://h:1/n")
    assert again.scope is Scope.SOURCE_BATCH


@pytest.mark.parametrize(
    ("text", "ms"),
    [("15m", 900_000), ("90s", 90_000), ("500ms", 500), ("7", 7), ("2 H", 7_200_000), ("1d", 86_400_000), ("1us", 1)],
)
def test_durations_are_written_as_sparks_own_and_rounded_up(text: str, ms: int) -> None:
    assert Options({"maxTriggerDelay": text}, Scope.SOURCE_STREAM).duration_ms("maxTriggerDelay") == ms


@pytest.mark.parametrize("text", ["soon", "-5s", "1.5h", "5 weeks", "99999999999999999d"])
def test_what_is_no_duration_is_an_error(text: str) -> None:
    with pytest.raises(OptionError, match=r"maxTriggerDelay=.* is (not a duration|outside)"):
        Options({"maxTriggerDelay": text}, Scope.SOURCE_STREAM)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kafka.bootstrap.servers", "option uri"),
        ("kafka.group.id", "cursorName"),
        ("groupIdPrefix", "cursorName"),
        ("kafka.max.poll.records", "bkc.<key>"),
        ("includeHeaders", "no key and no headers"),
        ("topic", "subscribe"),
        ("kafkaConsumer.pollTimeoutMs", "bkc.readEntryTimeoutSec"),
        ("fetchOffset.numRetries", "asked for again by themselves"),
        ("service.url", "option uri"),
        ("startingTime", "startingTimestamp"),
        ("pulsar.client.x", "not Pulsar"),
        ("start_stream_cut", "startingOffsets"),
        ("kinesis.streamName", "subscribe"),
        ("eventhubs.connectionString", "option uri"),
        ("maxEventsPerTrigger", "maxOffsetsPerTrigger"),
        ("startingVersion", "startingOffsets"),
    ],
)
def test_options_of_other_connectors_point_to_ours(name: str, instead: str) -> None:
    with pytest.raises(OptionError, match="is another connector's") as caught:
        source(**{name: "x"})
    assert instead in (caught.value.advice or "")


def test_what_the_advice_for_other_connectors_names_exists() -> None:
    """A key or option that is renamed must not live on in an advice."""
    known = {option.key for option in OPTIONS}
    clients = {f"bkc.{key}" for key in CLIENT_REGISTRY} | {info.key for info in describe_settings()}
    named = set(re.findall(r"\b[a-z]+[A-Z][A-Za-z]+\b|\bbkc\.[a-z]\w+", " ".join(ELSEWHERE.values())))
    assert named
    assert named <= known | clients


def test_settings_for_the_clients_go_on_by_their_prefix_and_find_their_proper_keys() -> None:
    options = source(**{"bkc.speculativereadtimeout": "7", "distributedlog.readlaclongpolltimeout": "900"})
    assert options.passed_on() == {"bkc.speculativereadtimeout": "7", "readlaclongpolltimeout": "900"}
    values = namespace_settings(pickle.loads(pickle.dumps(options)).passed_on())
    assert values == {"bkc.speculativeReadTimeout": "7", "readLACLongPollTimeout": "900"}
    settings = Settings().with_values(values)
    assert (settings.client_settings().speculative_read_ms, settings.long_poll_ms) == (7, 900)
    with pytest.raises(CallerError, match="readlaclongpol'"):
        Settings().with_values(namespace_settings(source(**{"distributedlog.readLacLongPol": "9"}).passed_on()))


def test_the_sessions_confs_are_defaults_of_options_where_they_have_a_meaning() -> None:
    session = {"maxOffsetsPerTrigger": "50", "failondataloss": "false", "bkc.readTimeout": "4", "ensembleSize": "5"}
    stream = Options({"log": "a"}, Scope.SOURCE_STREAM, session)
    assert (stream.integer("maxOffsetsPerTrigger"), stream.flag("failOnDataLoss")) == (50, False)
    assert stream.given("maxOffsetsPerTrigger")
    assert not stream.asked("maxOffsetsPerTrigger")
    assert stream.passed_on() == {"bkc.readtimeout": "4"}
    again = pickle.loads(pickle.dumps(stream.with_uri("distributedlog://h:1/n")))
    assert again.integer("maxOffsetsPerTrigger") == 50
    own = Options({"maxOffsetsPerTrigger": "7"}, Scope.SOURCE_STREAM, session)
    assert own.integer("maxOffsetsPerTrigger") == 7
    assert not Options({}, Scope.SOURCE_BATCH, session).given("maxOffsetsPerTrigger")
    assert Options({}, Scope.SINK_BATCH, session).integer("ensembleSize") == 5


@pytest.mark.parametrize(
    ("session", "says"),
    [
        ({"maxOffsetPerTrigger": "5"}, "Conf spark.distributedlog.maxOffsetPerTrigger: Unknown option"),
        ({"minPartitions": "0"}, "Conf spark.distributedlog.minPartitions: .*outside 1"),
        ({"subscribe": "a"}, "Conf spark.distributedlog.subscribe: It says what one query does"),
        ({"startingOffsets": "latest"}, "Conf spark.distributedlog.startingOffsets: It says what one query does"),
        ({"kafka.group.id": "a"}, "Conf spark.distributedlog.kafka.group.id: .*another connector's"),
    ],
)
def test_a_conf_that_no_query_could_honour_is_an_error_that_names_it(session: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        Options({}, Scope.SINK_BATCH, session)
    assert caught.value.advice


def test_the_uri_comes_from_the_option_then_the_session_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        connection, "_spark_command_lines", lambda: iter([["java", "--conf", f"{connection.CONF_KEY}=c"]])
    )
    monkeypatch.setenv("DLSPARK_URI", "e")

    def resolved(registered: dict[str, str], **raw: str) -> str:
        return connection.resolve_uri(
            Options(raw, Scope.SOURCE_BATCH, connection.session_defaults(os.environ, registered))
        )

    assert resolved({"uri": "s"}, uri="o") == "o"
    assert resolved({"uri": "s"}) == "s"
    assert resolved({}) == "c"
    monkeypatch.setattr(connection, "_spark_command_lines", lambda: iter([]))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert resolved({}) == "e"


@pytest.mark.usefixtures("no_namespace")
def test_without_any_uri_the_error_names_all_places() -> None:
    with pytest.raises(OptionError) as caught:
        connection.resolve_uri(source())
    places = ('option("uri"', "spark.distributedlog.uri", "DLSPARK_URI", "dlspark sandbox start")
    assert all(word in str(caught.value) for word in places)


def test_confs_are_found_in_a_command_line_or_a_properties_file(tmp_path: Path) -> None:
    key, found = connection.CONF_KEY, connection.defaults_in_arguments
    assert found(["java", f"-D{key}=x", "org.apache.spark.deploy.SparkSubmit"]) == {"uri": "x"}
    assert found(["java", "--conf", "spark.a=b", "--conf", f"{key}=y=z"]) == {"uri": "y=z"}
    assert found(["java", "--conf", "spark.distributedlog.minPartitions=4", f"-D{key}=x"]) == {
        "minPartitions": "4",
        "uri": "x",
    }
    assert found(["java", "--conf", "spark.a=b", "--conf"]) == {}
    properties = tmp_path / "spark.properties"
    properties.write_text(f"spark.master local\n{key} distributedlog://h:1/n\n")
    assert found(["java", "--properties-file", str(properties)]) == {"uri": "distributedlog://h:1/n"}
    assert found(["java", "--properties-file", str(properties), "--conf", f"{key}=x"]) == {"uri": "x"}
    assert found(["java", "--properties-file", str(tmp_path / "missing")]) == {}


def test_confs_are_found_in_spark_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_spark_command_lines", lambda: iter([["java", f"-D{connection.CONF_KEY}=x"]]))
    (tmp_path / "spark-defaults.conf").write_text(
        f"# note\n{connection.CONF_KEY}   distributedlog://h:1/n\nspark.distributedlog.failOnDataLoss=false\n"
    )
    there = {"SPARK_CONF_DIR": str(tmp_path)}
    assert connection.session_defaults(there) == {"uri": "x", "failOnDataLoss": "false"}
    assert connection.session_defaults(there, {"uri": "r"})["uri"] == "r"
    assert connection.session_defaults({"SPARK_HOME": str(tmp_path)}) == {"uri": "x"}
    (tmp_path / "spark-defaults.conf").write_text(f"# {connection.CONF_KEY}   distributedlog://h:1/n\n")
    monkeypatch.setattr(connection, "_spark_command_lines", lambda: iter([]))
    assert connection.session_defaults(there) == {}


@pytest.mark.parametrize(
    ("options", "ms"), [({}, 120_000), ({"outageTimeout": "90s"}, 90_000), ({"outageTimeout": "0s"}, 0)]
)
def test_what_is_away_is_waited_for_as_the_option_says(options: dict[str, str], ms: int) -> None:
    given = {"log": "a", "uri": "distributedlog://h:1/n", **options}
    query = SourceQuery.of(Options(given, Scope.SOURCE_STREAM))
    reading = Settings().with_values(namespace_settings(dict(query.client_settings))).client_settings()
    writing = settings_of(Options(given, Scope.SINK_STREAM))
    assert (reading.outage_wait_ms, writing.client_settings().outage_wait_ms) == (ms, ms)
    # The lock of a driver that died ends with its session, whose timeout may be as long as the default wait for locks.
    # One that is held between batches is given up for who waits.
    assert writing.lock_timeout_s == max(ms // 1000, 5)


def test_settings_of_the_clients_stand_before_what_follows_from_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLSPARK_SET_lockTimeoutSeconds", "7")
    given = {"log": "a", "uri": "distributedlog://h:1/n", "bkc.outageWaitMillis": "5"}
    query = SourceQuery.of(Options(given, Scope.SOURCE_STREAM))
    writing = settings_of(Options(given, Scope.SINK_STREAM))
    assert dict(query.client_settings) == {"bkc.outagewaitmillis": "5"}
    assert (writing.lock_timeout_s, writing.client_settings().outage_wait_ms) == (7, 5)


def test_the_region_of_a_query_is_its_clients_own_one() -> None:
    given = {"log": "a", "uri": "distributedlog://h:1/n", "region": "eu"}
    query = SourceQuery.of(Options(given, Scope.SOURCE_BATCH))
    reading = Settings().with_values(namespace_settings(dict(query.client_settings))).client_settings()
    assert reading.placement.region == "eu"
    for also in ("bkc.region", "distributedlog.region"):
        with pytest.raises(OptionError, match="says the own region as well"):
            SourceQuery.of(Options({**given, also: "us"}, Scope.SOURCE_BATCH))
    with pytest.raises(OptionError, match="region"):
        Options(given, Scope.SINK_BATCH)
