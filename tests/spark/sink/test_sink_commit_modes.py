"""Which way a batch takes, what a task hands over, and how parts of tasks become one: all without I/O."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from dlspark.core.codec.records import HEADER_BYTES
from dlspark.spark.errors import BatchRefusedError, OptionError, ReplayDiffersError, TransactionOrderError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.append.appender import BatchToAppend
from dlspark.spark.sink.append.clients import LENGTHS, check_lengths, decode_answer, encode_request
from dlspark.spark.sink.append.server import decode_request, encode_error, encode_outcome
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.columns import SinkColumns
from dlspark.spark.sink.commit_modes import ENTRY_ROOM, LEAST_SHARE, CommitMode, CommitWay, commit_way
from dlspark.spark.sink.inline_rows import gather_inline, joined, records, runs_between
from dlspark.spark.sink.messages import IdOrigin, InlineRows, JobId, Publication, StagedSegment
from metadata.foundation.errors import CorruptDataError, OutcomeUnknownError

URI = "distributedlog://zk:2181/x"
STAMPED = SinkColumns(value=0, transaction_id=None, log=1, one_log=None)
WITH_IDS = SinkColumns(value=0, transaction_id=2, log=1, one_log=None)
JOB = JobId("q", 3, "a")


def rows(*values: str, log: str = "flights", ids: list[int] | None = None) -> pa.RecordBatch:
    columns = {"value": pa.array(values), "log": pa.array([log] * len(values))}
    if ids is not None:
        columns["transaction_id"] = pa.array(ids, pa.int64())
    return pa.record_batch(columns)


def part(*values: str, partition: int = 0, ids: list[int] | None = None) -> InlineRows:
    columns = STAMPED if ids is None else WITH_IDS
    found, _ = gather_inline(columns, partition, 1000, 1 << 20, [rows(*values, ids=ids)])
    assert found is not None
    return found[0]


def staged(partition: int, first: int, last: int, *, origin: IdOrigin = IdOrigin.GIVEN) -> StagedSegment:
    return StagedSegment("flights", 7, partition, 0, first, last, 5, 0, 4, 100, origin, 5)


def way(scope: Scope, *, numbered: bool = True, **raw: str) -> CommitWay:
    return commit_way(Options({"uri": URI, **raw}, scope), numbered=numbered)


def test_a_stream_chooses_by_itself_and_a_batch_makes_segments_unless_it_asks() -> None:
    assert way(Scope.SINK_STREAM) == CommitWay(CommitMode.AUTO, 512 << 10, 60_000)
    assert way(Scope.SINK_BATCH).mode is CommitMode.SEGMENTS
    asked = way(Scope.SINK_BATCH, commitMode="Auto", appendMaxBytes="1000", appendIdleRelease="5s")
    assert asked == CommitWay(CommitMode.AUTO, 1000, 5000)
    assert way(Scope.SINK_STREAM, commitMode="append", appendMaxBytes="1").max_bytes == ENTRY_ROOM
    assert way(Scope.SINK_STREAM, commitMode="segments").share(0) == 0
    with pytest.raises(OptionError, match="txnAppId"):
        way(Scope.SINK_BATCH, numbered=False, commitMode="append")
    with pytest.raises(OptionError, match="auto, append, segments"):
        way(Scope.SINK_STREAM, commitMode="each")


def test_a_sessions_append_does_not_stop_a_write_without_a_number() -> None:
    options = Options({"uri": URI}, Scope.SINK_BATCH, {"commitMode": "append"})
    assert commit_way(options, numbered=False).mode is CommitMode.SEGMENTS
    assert commit_way(options, numbered=True).mode is CommitMode.APPEND


def test_shares_let_every_even_batch_pass_that_fits_and_bound_what_the_driver_gets() -> None:
    auto = CommitWay(CommitMode.AUTO, 512 << 10)
    for tasks in (1, 2, 7, 16):
        even = (512 << 10) // tasks
        assert all(auto.share(task) >= even for task in range(tasks))
    assert sum(auto.share(task) for task in range(1000)) < 1000 * LEAST_SHARE + 10 * (512 << 10)


def test_a_batch_is_appended_if_it_is_small_whole_and_for_one_log() -> None:
    auto, append = CommitWay(CommitMode.AUTO, 100), CommitWay(CommitMode.APPEND, 100)
    small, large = part("a"), part(*["x" * 50] * 3)
    other = gather_inline(STAMPED, 1, 1000, 1 << 20, [rows("b", log="trains")])[0]
    assert other is not None
    for one in (auto, append):
        assert one.appends(Publication(JOB, (), inline=(small,)))
        assert not one.appends(Publication(JOB, (), inline=(small, *other)))
        assert not one.appends(Publication(JOB, (), (("flights", 4),), inline=(small,)))
        assert one.appends(Publication(JOB, (), known=("flights",)))
        assert not one.appends(Publication(JOB, ()))
    assert not CommitWay(CommitMode.SEGMENTS).appends(Publication(JOB, (), inline=(small,)))
    for publication in (Publication(JOB, (), inline=(large,)), Publication(JOB, (staged(0, 1, 2),), inline=(small,))):
        assert not auto.appends(publication)
        with pytest.raises(BatchRefusedError, match=r"commitMode=append.*commitMode=auto"):
            append.appends(publication)


def test_a_task_hands_over_few_rows_of_one_log_and_nothing_else() -> None:
    found, looked_at = gather_inline(STAMPED, 4, 1000, 1 << 20, [rows("a", "bc"), rows("d")])
    assert found is not None
    assert len(looked_at) == 2
    assert (found[0].record_count, found[0].size, found[0].partition) == (3, 4 + 3 * HEADER_BYTES, 4)
    assert gather_inline(STAMPED, 4, 1000, 10, []) == ((), [])
    batches = iter([rows("a"), rows("b", log="trains"), rows("c")])
    found, looked_at = gather_inline(STAMPED, 4, 1000, 1 << 20, batches)
    assert (found, len(looked_at), len(list(batches))) == (None, 2, 1)
    found, looked_at = gather_inline(STAMPED, 4, 1000, 30, iter([rows("a"), rows("b" * 20)]))
    assert (found, len(looked_at)) == (None, 2)
    with pytest.raises(TransactionOrderError, match="4 follows 5"):
        gather_inline(WITH_IDS, 0, 1000, 1 << 20, [rows("a", ids=[5]), rows("b", ids=[4])])


def test_parts_are_joined_in_the_order_of_tasks_or_of_ids() -> None:
    one = joined([part("c", partition=2), part("a", "b", partition=0)])
    assert records(one, 0) == [(1000, b"a"), (1000, b"b"), (1000, b"c")]
    assert records(one, 5000)[0] == (5000, b"a")
    one = joined([part("x", "y", ids=[7, 9], partition=0), part("z", ids=[3], partition=1)])
    assert records(one, 0) == [(3, b"z"), (7, b"x"), (9, b"y")]
    with pytest.raises(TransactionOrderError, match="overlap"):
        joined([part("x", "y", ids=[7, 9]), part("z", ids=[8], partition=1)])


def test_what_other_tasks_have_staged_stays_between_the_parts() -> None:
    parts = [part(name, partition=number) for number, name in ((0, "a"), (1, "b"), (3, "d"), (4, "e"))]
    runs = runs_between(parts, [staged(2, 2000, 2000, origin=IdOrigin.STAMPED)])
    assert [[value for _, value in records(run, 0)] for run in runs] == [[b"a", b"b"], [b"d", b"e"]]
    with_ids = [part("a", ids=[1]), part("b", ids=[50], partition=1)]
    assert len(runs_between(with_ids, [staged(2, 10, 20)])) == 2
    assert len(runs_between(with_ids, [staged(2, 60, 70)])) == 1


def split(message: bytes) -> tuple[bytes, bytes]:
    head, body = LENGTHS.unpack_from(message)
    check_lengths(head, body)
    assert len(message) == LENGTHS.size + head + body
    return message[LENGTHS.size : LENGTHS.size + head], message[LENGTHS.size + head :]


def test_requests_and_answers_survive_their_bytes() -> None:
    batch = BatchToAppend(JOB, part("a", "b", ids=[1, 2]), 5000)
    assert decode_request("s3", *split(encode_request("s3", batch))) == (batch, None)
    assert decode_request("s3", *split(encode_request("s3", batch, session=-7))) == (batch, -7)
    for outcome in (*CommitOutcome, None):
        assert decode_answer(split(encode_outcome(outcome))[0]) is outcome
    error = ReplayDiffersError("it differs", log="flights", advice="do this")
    with pytest.raises(ReplayDiffersError) as caught:
        decode_answer(split(encode_error(error))[0])
    assert (str(caught.value), caught.value.log) == (str(error), "flights")


def test_what_is_not_understood_is_refused_and_an_unknown_answer_is_said_as_such() -> None:
    head, body = split(encode_request("s3", BatchToAppend(JOB, part("a"))))
    broken = (head.replace(b'"q"', b'"q","r"'), head.replace(b"[", b"{", 1), head.replace(b"null}", b'"7"}'))
    for bad in (b"{}", b"[]", b"\xff", *broken):
        with pytest.raises(CorruptDataError):
            decode_request("s3", bad, body)
    with pytest.raises(CorruptDataError, match="another secret"):
        decode_request("s4", head, body)
    with pytest.raises(CorruptDataError):
        check_lengths(1 << 30, 0)
    with pytest.raises(OutcomeUnknownError):
        decode_answer(b"nonsense")
    with pytest.raises(CorruptDataError, match="damaged"):
        records(decode_request("s3", head, b"\x00" * 8)[0].rows, 0)


def test_rows_that_share_records_in_segments_are_not_said_to_fit_into_an_entry() -> None:
    packed = replace(staged(0, 1, 2), row_count=2000)
    with pytest.raises(BatchRefusedError, match="has 2,000 rows of a record each, and commitMode=append"):
        CommitWay(CommitMode.APPEND, ENTRY_ROOM).appends(Publication(JobId("q-1", 0, "a"), (packed,)))
