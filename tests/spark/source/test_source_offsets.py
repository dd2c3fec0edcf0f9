"""Offsets: the stored form is golden (I14); whatever else stands there is a typed error."""

from __future__ import annotations

import json

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.spark.errors import OffsetError, OptionError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.offsets import LogIdentity, NamedOffset, Offsets, parse_offsets
from dlspark.spark.source.selection import AtTxid, BatchLimits, Everywhere, PerLog, Selection, SourceQuery
from metadata.foundation.errors import CallerError

GOLDEN = '{"v": 1, "logs": {"aviation": "12:0:0", "flights": "3:1200:0"}}'


def test_the_stored_form_is_golden() -> None:
    offsets = Offsets({"flights": DLSN(3, 1200, 0), "aviation": DLSN(12, 0, 0)})
    assert json.dumps(offsets.stored()) == GOLDEN
    assert Offsets.from_stored(json.loads(GOLDEN)) == offsets
    assert json.dumps(Offsets.from_stored(json.loads(GOLDEN)).stored()) == GOLDEN


def test_the_optional_parts_are_golden_too_and_checkpoints_without_them_are_read_as_before() -> None:
    """What a first batch leaves: which ledgers its logs are, and where it began."""
    golden = (
        '{"v": 1, "logs": {"aviation": "12:0:0", "flights": "3:1200:0"}, '
        '"ledgers": {"aviation": "11:40", "flights": "3:17@6c5d0c43-9a1b"}, "begin": {"flights": "1:0:0"}}'
    )
    offsets = Offsets(
        {"flights": DLSN(3, 1200, 0), "aviation": DLSN(12, 0, 0)},
        {"flights": LogIdentity(3, 17, "6c5d0c43-9a1b"), "aviation": LogIdentity(11, 40)},
        {"flights": DLSN(1, 0, 0)},
    )
    assert json.dumps(offsets.stored()) == golden
    assert Offsets.from_stored(json.loads(golden)) == offsets
    nothing_yet = Offsets({}, {}, {})
    assert json.dumps(nothing_yet.stored()) == '{"v": 1, "logs": {}, "begin": {}}'
    assert Offsets.from_stored(nothing_yet.stored()) == nothing_yet != Offsets({})


def test_a_log_has_moved_if_its_position_has_or_if_it_is_another_log() -> None:
    start = Offsets(
        {"a": DLSN(1, 5, 0), "b": DLSN(1, 5, 0), "c": DLSN(1, 5, 0)}, {"a": LogIdentity(1, 7), "b": LogIdentity(1, 8)}
    )
    assert start.moved(start) == []
    assert start.moved(
        Offsets(start.positions, {"a": LogIdentity(1, 7), "b": LogIdentity(1, 9), "c": LogIdentity(1, 1)})
    ) == ["b"]
    assert start.moved(Offsets({**start, "a": DLSN(1, 6, 0), "d": DLSN(1, 0, 0)})) == ["a", "d"]
    assert start.moved(Offsets(start.positions)) == []


def test_a_ledger_of_another_cluster_is_another_one_and_of_a_cluster_that_is_not_known_may_be_the_same() -> None:
    here, there, unknown = LogIdentity(1, 7, "c1"), LogIdentity(1, 7, "c2"), LogIdentity(1, 7)
    assert (here.differs(there), here.differs(unknown), unknown.differs(here), here.differs(here)) == (
        True,
        False,
        False,
        False,
    )
    position = {"a": DLSN(1, 5, 0)}
    assert Offsets(position, {"a": here}).moved(Offsets(position, {"a": there})) == ["a"]
    assert Offsets(position, {"a": unknown}).moved(Offsets(position, {"a": there})) == []
    assert [LogIdentity.parse(str(one)) for one in (here, unknown)] == [here, unknown]


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
        ({"v": 1, "logs": {}, "ledgers": []}, "has no positions"),
        ({"v": 1, "logs": {}, "ledgers": {"a": "3"}}, "is not a segment with its ledger"),
        ({"v": 1, "logs": {}, "ledgers": {"a": 17}}, "is not a segment with its ledger"),
        ({"v": 1, "logs": {}, "ledgers": {"a": "0:17"}}, "is not a segment with its ledger"),
        ({"v": 1, "logs": {}, "ledgers": {"a": "3:17@"}}, "is not a segment with its ledger"),
        ({"v": 1, "logs": {}, "ledgers": {"a": "3:17@c d"}}, "is not a segment with its ledger"),
        ({"v": 1, "logs": {}, "ledgers": {"a": "3@c"}}, "is not a segment with its ledger"),
        ({"v": 1, "logs": {}, "begin": {"a": "3"}}, "is not a position"),
        ({"v": 1, "logs": {}, "begin": None}, "has no positions"),
        ({"v": 1, "logs": {"a": "1:0:99999999999999999999"}}, "is not a position"),
        ({"v": 1, "logs": {"a": "1" * 5_000 + ":0:0"}}, r"is not a position"),
        ({"v": 1, "logs": {}, "ledgers": {"a": "3:" + "7" * 5_000}}, "is not a segment with its ledger"),
    ],
)
def test_a_checkpoint_with_something_else_is_an_error(stored: object, says: str) -> None:
    with pytest.raises(OffsetError, match=says) as caught:
        Offsets.from_stored(stored)
    assert caught.value.advice


def test_places_are_bounds_or_positions_by_log() -> None:
    assert parse_offsets("startingOffsets", " Earliest ") is NamedOffset.EARLIEST
    assert parse_offsets("startingOffsets", "latest") is NamedOffset.LATEST
    assert parse_offsets("startingOffsets", "-1") is NamedOffset.LATEST
    mixed = '{"a": "3:1200:0", "b": "earliest", "c": -2, "d": -1, "e": "-1"}'
    assert parse_offsets("startingOffsets", mixed) == (
        {
            "a": DLSN(3, 1200, 0),
            "b": NamedOffset.EARLIEST,
            "c": NamedOffset.EARLIEST,
            "d": NamedOffset.LATEST,
            "e": NamedOffset.LATEST,
        },
        {},
    )
    assert parse_offsets("startingOffsets", GOLDEN) == ({"aviation": DLSN(12, 0, 0), "flights": DLSN(3, 1200, 0)}, {})
    in_progress = json.dumps({**json.loads(GOLDEN), "behind": {"flights": {"records": 1, "bytes": 2, "ms": None}}})
    assert parse_offsets("startingOffsets", in_progress) == parse_offsets("startingOffsets", GOLDEN)
    from_checkpoint = '{"v": 1, "logs": {"a": "3:1:0"}, "ledgers": {"a": "3:17@c1"}, "begin": {"a": "1:0:0"}}'
    assert parse_offsets("startingOffsets", from_checkpoint) == ({"a": DLSN(3, 1, 0)}, {"a": LogIdentity(3, 17, "c1")})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("newest", "neither earliest, latest nor JSON"),
        ("{", "neither earliest, latest nor JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "must be a JSON object"),
        ("5", "is neither earliest, latest nor JSON"),
        ('{"a": "1:0"}', "log a: '1:0' is not a position"),
        ('{"a": {"0": 23, "1": -2}}', "log a.*is not one place; a log has no partitions"),
        ('{"a": -3}', "is not a position"),
        ('{"a": true}', "is not a position"),
        ('{"v": 1, "logs": {"a": "1:2"}}', "log a: '1:2' is not a position"),
        ('{"a": "1:0:0", "a": "2:0:0"}', "named twice"),
        ('{"a": "١:0:0"}', "is not a position"),
        ('{"a": "%s:0:0"}' % ("1" * 5_000), "is not a position"),
        ('{"a": %s}' % ("1" * 5_000), "a number has 5,000 digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' * 100_000, "nested too deeply"),
    ],
)
def test_malformed_places_are_errors_that_name_the_option(text: str, says: str) -> None:
    with pytest.raises(OffsetError, match=says) as caught:
        parse_offsets("startingOffsets", text)
    assert "startingOffsets" in str(caught.value)
    assert len(str(caught.value)) < 500
    assert caught.value.advice


def query(scope: Scope = Scope.SOURCE_BATCH, **raw: str) -> SourceQuery:
    return SourceQuery.of(Options({"uri": "distributedlog://h:1/n", **raw}, scope))


def test_logs_are_selected_by_path_by_list_or_by_pattern() -> None:
    assert query(path="flights").selection.names == ("flights",)
    assert query(log="flights").selection.names == ("flights",)
    assert query(subscribe="b, a").selection.names == ("a", "b")
    pattern = query(subscribePattern="fl.*").selection
    assert pattern.of(["flights", "aflights", "flow"]) == ["flights", "flow"]
    assert query(assign='["b", "a,c"]').selection.names == ("a,c", "b")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "No log to read is named"),
        ({"path": "a", "subscribe": "b"}, "named 2 ways"),
        ({"subscribe": "a", "subscribePattern": "b"}, "named 2 ways"),
        ({"subscribePattern": "("}, "not a regular expression"),
        ({"subscribe": "a,a"}, "twice"),
        ({"assign": '["a", "a"]'}, "assign names a log twice"),
        ({"assign": '{"a": [0, 1]}'}, "must be a JSON list of names"),
        ({"assign": "[]"}, "must be a JSON list of names"),
        ({"assign": '["a", 1]'}, "must be a JSON list of names"),
        ({"assign": "a,b"}, "assign is not JSON"),
        ({"assign": '["a"]', "subscribe": "a"}, "named 2 ways"),
        ({"path": "a", "startingOffsets": "latest"}, "startingOffsets of a batch query cannot be latest"),
        ({"path": "a", "startingOffsets": '{"a": -1}'}, "startingOffsets of a batch query cannot be latest"),
        ({"path": "a", "endingOffsets": "earliest"}, "endingOffsets of a batch query cannot be earliest"),
        ({"subscribe": "a,b", "startingOffsetsByTimestamp": '{"a": 5}'}, "no position for b"),
        ({"path": "a", "startingOffsetsByTimestamp": '{"a": 5, "b": 5}'}, "position for b"),
        ({"path": "a", "startingOffsetsByTimestamp": "5"}, "must be a JSON object"),
        ({"path": "a", "startingOffsetsByTimestamp": "yesterday"}, "startingOffsetsByTimestamp is not JSON"),
        ({"path": "a", "startingOffsetsByTimestamp": '{"a": "yesterday"}'}, " of a.*is not a time"),
        ({"path": "a", "startingOffsetsByTimestamp": '{"a": {"0": 5}}'}, "a log has no partitions"),
        ({"path": "a", "startingOffsetsByTimestamp": '{"a": true}'}, "log a: True is none"),
        ({"path": "a", "startingOffsetsByTransactionId": '{"a": "x"}'}, " of a.*is not a whole number"),
        ({"path": "a", "startingOffsetsByTransactionId": '{"a": -1}'}, " of a.*is outside 0"),
        (
            {"path": "a", "startingOffsetsByTransactionId": '{"a": 9}', "endingOffsetsByTransactionId": '{"a": 8}'},
            "lies after",
        ),
        ({"path": "a", "startingTimestamp": "9", "endingOffsetsByTimestamp": '{"a": 8}'}, "lies after"),
        (
            {"path": "a", "startingOffsetsByTimestamp": '{"a": 8}', "startingTimestamp": "5"},
            "startingTimestamp and startingOffsetsByTimestamp contradict",
        ),
        ({"path": "a", "startingOffsetsByTimestampStrategy": "error"}, "does nothing without"),
        ({"path": "a", "startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "now"}, "one of error, latest"),
        ({"path": "a", "startingOffsets": "earliest", "startingTimestamp": "5"}, "contradict each other"),
        ({"path": "a", "startingTransactionId": "5", "startingTimestamp": "5"}, "contradict each other"),
        ({"path": "a", "endingTransactionId": "5", "endingTimestamp": "5"}, "contradict each other"),
        ({"path": "a", "endingOffsets": "latest", "endingTransactionId": "5"}, "contradict each other"),
        ({"path": "a", "startingTimestamp": "6", "endingTimestamp": "5"}, "lies after"),
        ({"path": "a", "startingOffsets": '{"a": "2:0:0"}', "endingOffsets": '{"a": "1:0:0"}'}, "lies after"),
        ({"subscribe": "a,b", "startingOffsets": '{"a": "2:0:0"}'}, "no position for b"),
        ({"path": "a", "startingOffsets": '{"a": "2:0:0", "b": "1:0:0"}'}, "position for b"),
        ({"assign": "[" * 100_000}, "Option assign is not JSON.*nested too deeply"),
        ({"assign": "[" + "1" * 5_000 + "]"}, "Option assign is not JSON.*5,000 digits"),
        ({"path": "a", "startingOffsetsByTimestamp": '{"a": "%s"}' % ("1" * 5_000)}, " of a.*is not a time"),
        (
            {"path": "a", "startingOffsetsByTransactionId": '{"a": "%s"}' % ("1" * 5_000)},
            " of a.*is not a whole number",
        ),
        ({"subscribePattern": "(" * 5_000 + ")" * 5_000}, "subscribePattern is not a regular expression"),
    ],
)
def test_contradictions_are_errors(raw: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        query(**raw)
    assert caught.value.advice


@pytest.mark.parametrize("named", [{"path": "a"}, {"log": "a"}, {"subscribe": "a"}, {"assign": '["a"]'}])
@pytest.mark.parametrize("scope", [Scope.SOURCE_BATCH, Scope.SOURCE_STREAM])
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("startingOffsets", '{"a": "earliest", "b": "earliest"}'),
        ("startingOffsets", '{"a": "1:0:0", "b": "1:0:0"}'),
        ("startingOffsets", '{"v": 1, "logs": {"a": "1:0:0", "b": "1:0:0"}}'),
        ("startingOffsetsByTimestamp", '{"a": 1, "b": 2}'),
        ("startingOffsetsByTransactionId", '{"a": 1, "b": 2}'),
    ],
)
def test_a_place_in_a_log_that_is_not_read_is_refused_by_name(
    named: dict[str, str], scope: Scope, option: str, text: str
) -> None:
    with pytest.raises(OffsetError, match=f"Option {option} has a position for b, which the query does not read"):
        query(scope, **named, **{option: text})


@pytest.mark.parametrize("name", ["<x>", "", " ", "a\0b"])
def test_a_log_name_that_cannot_exist_is_an_error(name: str) -> None:
    with pytest.raises(CallerError):
        query(subscribe=f"flights,{name}")


def test_defaults_read_everything_there_is() -> None:
    plain = query(path="a")
    assert plain.start == Everywhere(NamedOffset.EARLIEST)
    assert plain.end == Everywhere(NamedOffset.LATEST)
    assert plain.fail_on_data_loss
    assert plain.limits == BatchLimits(max_delay_ms=15 * 60_000)
    assert not plain.late_start_fails
    assert query(path="a", startingTimestamp="7").start == AtTxid(7, "startingTimestamp")
    times = '{"a": 7, "b": "1970-01-01T00:00:01Z"}'
    option = "startingOffsetsByTimestamp"
    assert query(subscribe="a,b", **{option: times}).start == PerLog(
        {"a": AtTxid(7, option), "b": AtTxid(1000, option)}, option
    )
    assert query(path="a", endingTransactionId="7").end == AtTxid(7, "endingTransactionId")
    assert query(path="a", startingOffsets='{"a": "1:2:3"}').start == PerLog({"a": DLSN(1, 2, 3)}, "startingOffsets")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"maxTriggerDelay": "1m"}, "does nothing without minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is above maxOffsetsPerTrigger"),
        ({"cursorName": "a/b"}, "cursorName cannot be"),
        ({"cursorName": ".."}, "cursorName cannot be"),
    ],
)
def test_contradictions_of_streaming_queries_are_errors(raw: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        query(Scope.SOURCE_STREAM, path="a", **raw)
    assert caught.value.advice


def test_limits_of_a_stream() -> None:
    raw = {"maxOffsetsPerTrigger": "9", "maxBytesPerTrigger": "1000", "minOffsetsPerTrigger": "3"}
    assert query(Scope.SOURCE_STREAM, path="a", **raw).limits == BatchLimits(9, 1000, 3, 15 * 60_000)
    assert query(Scope.SOURCE_STREAM, path="a", maxTriggerDelay="90s", **raw).limits.max_delay_ms == 90_000


@pytest.mark.parametrize(
    ("pattern", "folder"),
    [
        ("flights-.*", ""),
        ("ny/.*", "ny"),
        ("a/b/c-\\d+", "a/b"),
        ("team/raw/flights", "team/raw"),
        ("a\\.b/c", "a.b"),
        ("x/(a|b)", "x"),
        ("x/[a|b]/c", "x"),
        ("a/b|c/d", ""),
        (r"a/[\](]|c/d", ""),
        ("a/(?#()x|c/d", ""),
        ("a/?b", ""),
        ("(?i)ny/.*", ""),
        ("t.*/x", ""),
    ],
)
def test_logs_are_looked_for_in_the_folder_that_a_pattern_begins_with(pattern: str, folder: str) -> None:
    assert Selection(pattern=pattern).folder == folder
