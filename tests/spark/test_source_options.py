"""The registry of options: names, values, scopes, and errors that say what to do."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dlspark.spark import connection
from dlspark.spark.errors import OptionError
from dlspark.spark.options import OPTIONS, Options, Scope, options_table


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
    with pytest.raises(OptionError, match="Known options: uri, log") as caught:
        source(zzz="1")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"minPartitions": "0"}, "integer from 1"),
        ({"minPartitions": "many"}, "must be an integer"),
        ({"minPartitions": "9223372036854775808"}, "integer from 1"),
        ({"startingTransactionId": "-1"}, "integer from 0"),
        ({"failOnDataLoss": "perhaps"}, "true or false"),
        ({"subscribe": "  "}, "is empty"),
        ({"startingTimestamp": "yesterday"}, "neither epoch milliseconds nor an ISO-8601"),
        ({"startingTimestamp": "2013-02-30"}, "neither epoch milliseconds nor an ISO-8601"),
        ({"endingTimestamp": "-5"}, "must not lie before 1970"),
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


def test_the_documentation_holds_the_generated_table() -> None:
    table = options_table()
    assert all(f"| `{option.name}` |" in table for option in OPTIONS)
    document = Path(__file__).parents[2] / "docs" / "spark-options.md"
    assert table in document.read_text(encoding="utf-8"), "regenerate docs/spark-options.md with options_table()"


def test_the_uri_comes_from_the_option_then_the_conf_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        connection, "_spark_command_lines", lambda: iter([["java", "--conf", f"{connection.CONF_KEY}=c"]])
    )
    monkeypatch.setenv("DLSPARK_URI", "e")
    assert connection.resolve_uri(source(uri="o"), "s") == "o"
    assert connection.resolve_uri(source(), "s") == "s"
    assert connection.resolve_uri(source()) == "c"
    monkeypatch.setattr(connection, "_spark_command_lines", lambda: iter([]))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert connection.resolve_uri(source()) == "e"


def test_without_any_uri_the_error_names_all_three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DLSPARK_URI", "SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError) as caught:
        connection.resolve_uri(source())
    assert all(word in str(caught.value) for word in ('option("uri"', "spark.distributedlog.uri", "DLSPARK_URI"))


def test_the_conf_is_found_in_a_command_line_or_a_properties_file(tmp_path: Path) -> None:
    key = connection.CONF_KEY
    assert connection.uri_in_arguments(["java", f"-D{key}=x", "org.apache.spark.deploy.SparkSubmit"]) == "x"
    assert connection.uri_in_arguments(["java", "--conf", "spark.a=b", "--conf", f"{key}=y=z"]) == "y=z"
    assert connection.uri_in_arguments(["java", "--conf", "spark.a=b"]) is None
    properties = tmp_path / "spark.properties"
    properties.write_text(f"spark.master local\n{key} distributedlog://h:1/n\n")
    assert connection.uri_in_arguments(["java", "--properties-file", str(properties)]) == "distributedlog://h:1/n"
    assert connection.uri_in_arguments(["java", "--properties-file", str(tmp_path / "missing")]) is None


def test_the_conf_is_found_in_spark_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_spark_command_lines", lambda: iter([]))
    (tmp_path / "spark-defaults.conf").write_text(f"# note\n{connection.CONF_KEY}   distributedlog://h:1/n\n")
    assert connection.conf_uri({"SPARK_CONF_DIR": str(tmp_path)}) == "distributedlog://h:1/n"
    assert connection.conf_uri({"SPARK_HOME": str(tmp_path)}) is None
