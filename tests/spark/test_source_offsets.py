"""Offsets: the stored form is golden (I14); whatever else stands there is a typed error."""

from __future__ import annotations

import json

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import OffsetError, OptionError
from dlspark.spark.offsets import Bound, Offsets, parse_places
from dlspark.spark.options import Options, Scope
from dlspark.spark.selection import AtTxid, Everywhere, PerLog, SourceQuery
from metadata.errors import CallerError

GOLDEN = '{"v": 1, "logs": {"aviation": "12:0:0", "flights": "3:1200:0"}}'


def test_the_stored_form_is_golden() -> None:
    offsets = Offsets({"flights": DLSN(3, 1200, 0), "aviation": DLSN(12, 0, 0)})
    assert json.dumps(offsets.stored()) == GOLDEN
    assert Offsets.from_stored(json.loads(GOLDEN)) == offsets
    assert json.dumps(Offsets.from_stored(json.loads(GOLDEN)).stored()) == GOLDEN


def test_no_logs_yet_is_an_offset_too() -> None:
    assert json.dumps(Offsets({}).stored()) == '{"v": 1, "logs": {}}'
    assert Offsets.from_stored({"v": 1, "logs": {}}) == Offsets({})


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({}, "not one of this source's"),
        ([], "not one of this source's"),
        (None, "not one of this source's"),
        ({"logs": {}}, "not one of this source's"),
        ({"v": 1, "logs": {}, "more": 1}, "not one of this source's"),
        ({"v": 2, "logs": {}}, "version 2"),
        ({"v": 1, "logs": []}, "has no positions"),
        ({"v": 1, "logs": {"a": "1:2"}}, "is not a position"),
        ({"v": 1, "logs": {"a": "1:-2:0"}}, "is not a position"),
        ({"v": 1, "logs": {"a": "0:0:0"}}, "is not a position"),
        ({"v": 1, "logs": {"a": 5}}, "is not a position"),
        ({"v": 1, "logs": {"a": "1:0:99999999999999999999"}}, "is not a position"),
    ],
)
def test_a_checkpoint_with_something_else_is_an_error(stored: object, says: str) -> None:
    with pytest.raises(OffsetError, match=says) as caught:
        Offsets.from_stored(stored)
    assert caught.value.advice


def test_places_are_bounds_or_positions_by_log() -> None:
    assert parse_places("startingOffsets", " Earliest ") is Bound.EARLIEST
    assert parse_places("startingOffsets", "latest") is Bound.LATEST
    assert parse_places("startingOffsets", '{"a": "3:1200:0", "b": "earliest"}') == {
        "a": DLSN(3, 1200, 0),
        "b": Bound.EARLIEST,
    }
    stored = {"aviation": DLSN(12, 0, 0), "flights": DLSN(3, 1200, 0)}
    assert parse_places("startingOffsets", GOLDEN) == stored
    in_progress = json.dumps({**json.loads(GOLDEN), "behind": {"flights": {"records": 1, "bytes": 2, "ms": None}}})
    assert parse_places("startingOffsets", in_progress) == stored


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("newest", "neither earliest, latest nor JSON"),
        ("{", "neither earliest, latest nor JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "must be a JSON object"),
        ("5", "must be a JSON object"),
        ('{"a": "1:0"}', "log a: '1:0' is not a position"),
        ('{"a": {"entry": 1}}', "is not a position"),
        ('{"a": "1:0:0", "a": "2:0:0"}', "named twice"),
        ('{"a": "١:0:0"}', "is not a position"),
    ],
)
def test_malformed_places_are_errors_that_name_the_option(text: str, says: str) -> None:
    with pytest.raises(OffsetError, match=says) as caught:
        parse_places("startingOffsets", text)
    assert "startingOffsets" in str(caught.value)
    assert caught.value.advice


def query(scope: Scope = Scope.SOURCE_BATCH, **raw: str) -> SourceQuery:
    return SourceQuery.of(Options({"uri": "distributedlog://h:1/n", **raw}, scope))


def test_logs_are_selected_by_path_by_list_or_by_pattern() -> None:
    assert query(path="flights").selection.names == ("flights",)
    assert query(log="flights").selection.names == ("flights",)
    assert query(subscribe="b, a").selection.names == ("a", "b")
    pattern = query(subscribePattern="fl.*").selection
    assert pattern.of(["flights", "aflights", "flow"]) == ["flights", "flow"]


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "No log to read is named"),
        ({"path": "a", "subscribe": "b"}, "named 2 ways"),
        ({"subscribe": "a", "subscribePattern": "b"}, "named 2 ways"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribe": "a,a"}, "twice"),
        ({"path": "a", "startingOffsets": "latest", "startingTimestamp": "5"}, "contradict each other"),
        ({"path": "a", "startingTransactionId": "5", "startingTimestamp": "5"}, "contradict each other"),
        ({"path": "a", "endingTransactionId": "5", "endingTimestamp": "5"}, "contradict each other"),
        ({"path": "a", "endingOffsets": "latest", "endingTransactionId": "5"}, "contradict each other"),
        ({"path": "a", "startingTimestamp": "6", "endingTimestamp": "5"}, "lies after"),
        ({"path": "a", "startingOffsets": '{"a": "2:0:0"}', "endingOffsets": '{"a": "1:0:0"}'}, "lies after"),
        ({"subscribe": "a,b", "startingOffsets": '{"a": "2:0:0"}'}, "no position for b"),
        ({"path": "a", "startingOffsets": '{"a": "2:0:0", "b": "1:0:0"}'}, "position for b"),
    ],
)
def test_contradictions_are_errors(raw: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        query(**raw)
    assert caught.value.advice


@pytest.mark.parametrize("name", ["<x>", "", " ", "a\0b"])
def test_a_log_name_that_cannot_exist_is_an_error(name: str) -> None:
    with pytest.raises(CallerError):
        query(subscribe=f"flights,{name}")


def test_defaults_read_everything_there_is() -> None:
    plain = query(path="a")
    assert plain.start == Everywhere(Bound.EARLIEST)
    assert plain.end == Everywhere(Bound.LATEST)
    assert plain.fail_on_data_loss
    assert query(path="a", startingTimestamp="7").start == AtTxid(7, "startingTimestamp")
    assert query(path="a", endingTransactionId="7").end == AtTxid(7, "endingTransactionId")
    assert query(path="a", startingOffsets='{"a": "1:2:3"}').start == PerLog({"a": DLSN(1, 2, 3)}, "startingOffsets")
