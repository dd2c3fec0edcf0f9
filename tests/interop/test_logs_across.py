"""Logs between the Java DistributedLog core and ours: written by one; read, followed, recovered, continued by both."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.interop.clusters import InteropCluster, newest_version
from helpers.interop.java_tool import make_payload
from helpers.interop.log_sides import (
    FIRST_TXID,
    RECORD_BYTES,
    JavaLog,
    Pair,
    expected,
    java_view,
    java_writes,
    our_log,
    our_view,
    read_records,
    we_read,
    we_write,
    write_records,
)

from dlspark.core.sync.namespace import Namespace
from dlspark.core.writing.acknowledgements import Appended
from dlspark.errors import EndOfStreamError
from dlspark.testing.java_process import JavaError, JavaTool
from metadata.distributedlog.segments import SegmentMetadata

MAX_TXID = 2**63 - 1


def same_segments(ours: list[SegmentMetadata], javas: list[dict[str, Any]]) -> None:
    assert [
        (s.lssn, s.ledger_id, s.in_progress, s.first_txid, s.last_txid, s.record_count, s.last_entry, s.last_slot)
        for s in ours
    ] == [
        tuple(
            s[key]
            for key in (
                "lssn",
                "ledger",
                "in_progress",
                "first_txid",
                "last_txid",
                "count",
                "last_entry",
                "last_slot",
            )
        )
        for s in javas
    ]


@newest_version
def test_java_reads_what_we_wrote(java_log: JavaLog, uri: str, log_name: str, compression: str) -> None:
    with our_log(uri, log_name, compressionType=compression) as log:
        dlsns = we_write(log, 0, 700) + we_write(log, 700, 300)  # two segments
        assert java_view(java_log.read(1000)) == expected(dlsns)
        assert java_view(java_log.read_sync(1000)) == expected(dlsns)
        assert java_view(java_log.read(10, dlsn=dlsns[690])) == expected(dlsns)[690:700]
        assert java_view(java_log.read(20, from_txid=1695)) == expected(dlsns)[695:715]
        facts = java_log.call("facts", txid=1695)
        assert (facts["count"], facts["first_txid"], facts["last_txid"]) == (1000, 1000, 1999)
        assert (facts["first_dlsn"], facts["last_dlsn"], facts["at_txid"]) == (dlsns[0], dlsns[-1], dlsns[695])
        same_segments(log.segments(), java_log.call("segments"))


@newest_version
def test_we_read_what_java_wrote(java_log: JavaLog, uri: str, log_name: str) -> None:
    java_log.call("create")
    dlsns = java_writes(java_log, 0, 700) + java_writes(java_log, 700, 300)
    with our_log(uri, log_name) as log:
        assert our_view(we_read(log, 1000)) == expected(dlsns)
        assert our_view(we_read(log, 10, dlsns[690])) == expected(dlsns)[690:700]
        assert str(log.find_txid(1695)) == dlsns[695]
        same_segments(log.segments(), java_log.call("segments"))
        assert [segment.start_sequence_id for segment in log.segments()] == [0, 700]


def test_java_reads_our_open_segment_past_its_control_records(
    java_log: JavaLog, uri: str, log_name: str, compression: str
) -> None:
    with our_log(uri, log_name, compressionType=compression) as log, log.open_writer() as writer:
        dlsns = []
        for batch in range(4):
            dlsns += write_records(writer, 5 * batch, 5)
            writer.commit()  # a control record makes the batch visible and is itself never delivered
        assert [segment["in_progress"] for segment in java_log.call("segments")] == [True]
        assert java_view(java_log.read(20)) == expected(dlsns)


def requests(first: int, number: int) -> list[tuple[int, bytes]]:
    return [(FIRST_TXID + index, make_payload(0, index, RECORD_BYTES)) for index in range(first, first + number)]


def places(answer: Appended) -> list[str]:
    assert answer.first is not None
    return [str(answer.first._replace(slot_id=answer.first.slot_id + slot)) for slot in range(answer.records)]


@newest_version
def test_java_reads_and_continues_a_log_of_idempotent_producers(
    java_log: JavaLog, uri: str, log_name: str, compression: str
) -> None:
    """Small and large requests, repeated ones, snapshots in between; then Java as the writer, then we again."""
    settings = {"compressionType": compression, "producerSnapshotEntries": 5}
    with our_log(uri, log_name, **settings) as log:
        dlsns: list[str] = []
        with log.open_writer(producers=True) as writer:
            for number in range(40):
                size = (1, 25, 3)[number % 3]
                asked = requests(len(dlsns), size), f"p{number % 2}", number // 2
                answers = [writer.append(asked[0], producer=asked[1], sequence=asked[2]) for _ in range(2)]
                writer.flush()
                assert [answer.result(60).repeated for answer in answers] == [False, True]
                dlsns += places(answers[0].result(60))
            writer.commit()
            assert java_view(java_log.read(len(dlsns))) == expected(dlsns)
        dlsns += java_writes(java_log, len(dlsns), 20)
        dlsns += java_writes(java_log, len(dlsns), 20, abort=True)
        with log.open_writer(producers=True) as writer:
            assert writer.append(requests(0, 1), producer="p1", sequence=19).result(60).repeated
            last = writer.append(requests(len(dlsns), 7), producer="p1", sequence=20)
            writer.flush()
            dlsns += places(last.result(60))
        assert java_view(java_log.read(len(dlsns))) == expected(dlsns)
        assert java_view(java_log.read(10, dlsn=dlsns[33])) == expected(dlsns)[33:43]
        assert java_view(java_log.read(10, from_txid=FIRST_TXID + 90)) == expected(dlsns)[90:100]
        assert our_view(we_read(log, len(dlsns))) == expected(dlsns)
        same_segments(log.segments(), java_log.call("segments"))


def test_we_read_an_open_segment_of_java_past_its_control_records(java_log: JavaLog, uri: str, log_name: str) -> None:
    java_log.call("create")
    writer = java_log.call("writer")
    dlsns: list[str] = []
    with our_log(uri, log_name) as log:
        for batch in range(4):
            dlsns += java_log.call(
                "write", writer=writer, txid=1000 + 5 * batch, first=5 * batch, count=5, size=RECORD_BYTES
            )
            assert our_view(we_read(log, len(dlsns))) == expected(dlsns)
    java_log.call("close_writer", writer=writer)


def test_a_reader_follows_the_other_librarys_writer(plain_pair: Pair) -> None:
    """From before the first segment into the second, which it hears of by a watch."""
    with plain_pair.reader.following() as follower:
        dlsns: list[str] = []
        for segment in range(2):
            writer = plain_pair.writer.open_writer()
            for first in (30 * segment, 30 * segment + 10, 30 * segment + 20):
                dlsns += writer.write_numbered(first, 10)
                assert follower.next(10) == expected(dlsns)[first:]
            writer.close()


def test_a_segment_that_java_left_in_progress_is_completed_by_us_and_the_other_way_round(
    plain_java_log: JavaLog, uri: str, log_name: str
) -> None:
    plain_java_log.call("create")
    dlsns = java_writes(plain_java_log, 0, 10, abort=True)
    with our_log(uri, log_name) as log:
        writer = log.open_writer()
        dlsns += write_records(writer, 10, 10)
        writer.abort()
        assert [segment.in_progress for segment in log.segments()] == [False, True]
        dlsns += java_writes(plain_java_log, 20, 10)
        assert [segment.in_progress for segment in log.segments()] == [False, False, False]
        assert our_view(we_read(log, 30)) == expected(dlsns)
        assert java_view(plain_java_log.read(30)) == expected(dlsns)
        same_segments(log.segments(), plain_java_log.call("segments"))


def test_the_end_of_stream_that_we_mark_stops_java(plain_java_log: JavaLog, uri: str, log_name: str) -> None:
    with our_log(uri, log_name) as log:
        with log.open_writer() as writer:
            dlsns = write_records(writer, 0, 5)
            writer.mark_end_of_stream()
        assert plain_java_log.call("facts")["end_of_stream"] is True
        assert plain_java_log.call("segments")[-1]["last_txid"] == MAX_TXID
        with pytest.raises(JavaError) as ended:
            plain_java_log.read(6)
        assert ended.value.error == "EndOfStreamException"
        assert java_view(plain_java_log.read(5)) == expected(dlsns)
        writer_number = plain_java_log.call("writer")
        with pytest.raises(JavaError):
            plain_java_log.call("write", writer=writer_number, txid=2000, count=1, size=1)


def test_the_end_of_stream_that_java_marks_stops_us(plain_java_log: JavaLog, uri: str, log_name: str) -> None:
    plain_java_log.call("create")
    number = plain_java_log.call("writer")
    dlsns = plain_java_log.call("write", writer=number, txid=1000, count=5, size=RECORD_BYTES)
    plain_java_log.call("end_of_stream", writer=number)
    plain_java_log.call("close_writer", writer=number)
    with our_log(uri, log_name) as log:
        with log.open_reader() as reader:
            assert our_view(read_records(reader, 5)) == expected(dlsns)
            with pytest.raises(EndOfStreamError):
                read_records(reader, 1)
        with pytest.raises(EndOfStreamError), log.open_writer() as writer:
            writer.write(2000, b"too late").result(60)


@newest_version
def test_a_namespace_bound_by_java_on_real_bookies_is_ours_to_use(
    java: JavaTool, theirs: InteropCluster, log_name: str
) -> None:
    uri = f"distributedlog://{theirs.zk}/bound-by-java{theirs.root}"
    java.call("dl.bind", zk=theirs.zk, root=theirs.root, uri=uri)
    java_log = JavaLog(java, uri, log_name, compressionType="lz4")
    with our_log(uri, log_name, compressionType="lz4") as log:
        dlsns = we_write(log, 0, 300)
        dlsns += java_writes(java_log, 300, 300)
        dlsns += we_write(log, 600, 100)
        assert our_view(we_read(log, 700)) == expected(dlsns)
        assert java_view(java_log.read(700)) == expected(dlsns)
        same_segments(log.segments(), java_log.call("segments"))


def test_logs_are_listed_and_deleted_by_both(plain_java_log: JavaLog, uri: str, log_name: str) -> None:
    with Namespace.open(uri) as namespace:
        plain_java_log.call("create")
        assert log_name in list(namespace.logs())
        namespace.delete_log(log_name)
        assert log_name not in plain_java_log.call("list")
        namespace.create_log(log_name)
        assert log_name in plain_java_log.call("list")
        plain_java_log.call("delete")
        assert not namespace.log_exists(log_name)
