"""Logs between the Java DistributedLog core and ours: written by one; read, followed, recovered, continued by both."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from clusters import REPOSITORY, Cluster, both_versions
from java_tool import JavaError, JavaTool, described, make_payload

from dlspark.core.records import LogRecord
from dlspark.core.sync import Log, LogReader, LogWriter, Namespace
from dlspark.errors import EndOfStreamError, OwnershipAcquireFailedError
from dlspark.sandbox import Sandbox
from metadata.logs import SegmentMetadata

JAVA_OWNERSHIP_FAILED = 302
JAVA_END_OF_STREAM = 512
MAX_TXID = 2**63 - 1
RECORD_BYTES = 150
_names = count(1)


@pytest.fixture
def log_name() -> str:
    return f"flights-{next(_names)}"


@pytest.fixture(params=["none", "lz4"])
def compression(request: pytest.FixtureRequest) -> str:
    """Both sides write with this compression; what is read tells its own."""
    value: str = request.param
    return value


@pytest.fixture
def uri(sandbox: Sandbox, ours: Cluster) -> str:
    return sandbox.uri


@contextmanager
def our_log(uri: str, name: str, **settings: object) -> Iterator[Log]:
    with Namespace.open(uri, {"lockTimeoutSeconds": 0, **settings}) as namespace:
        if not namespace.log_exists(name):
            namespace.create_log(name)
        with namespace.open_log(name) as log:
            yield log


class JavaLog:
    """A log as the Java library has it open. Namespaces stay open with the process: closing one takes Java seconds."""

    def __init__(self, tool: JavaTool, uri: str, name: str, **settings: object) -> None:
        self._tool = tool
        key = f"{uri} {sorted(settings.items())}"
        if key not in tool.kept:
            tool.kept[key] = tool.call("dl.open", uri=uri, settings=settings)
        self._namespace = tool.kept[key]
        self._name = name

    def call(self, do: str, **arguments: object) -> Any:
        return self._tool.call(f"dl.{do}", namespace=self._namespace, log=self._name, **arguments)

    def read(self, number: int, **where: object) -> list[dict[str, Any]]:
        """The next `number` records of a reader that is opened there.

        One more try where it stops short: upstream's segment reader can lose a wake-up (a request that is queued
        between its finding the queue empty and its giving up its turn is forgotten) and then waits for ever.
        """
        records: list[dict[str, Any]] = self.call("read", count=number, timeout_ms=8000, **where)
        return records if len(records) == number else self.call("read", count=number, timeout_ms=15_000, **where)


@pytest.fixture
def java_log(java: JavaTool, uri: str, log_name: str, compression: str) -> JavaLog:
    return JavaLog(java, uri, log_name, compressionType=compression)


@pytest.fixture
def plain_java_log(java: JavaTool, uri: str, log_name: str) -> JavaLog:
    return JavaLog(java, uri, log_name)


def we_write(log: Log, first: int, number: int) -> list[str]:
    """Records first.. of this size, txid 1000 + number, through a writer that is closed in the end; their DLSNs."""
    with log.open_writer() as writer:
        return write_records(writer, first, number)


def write_records(writer: LogWriter, first: int, number: int) -> list[str]:
    futures = [
        writer.write(1000 + index, make_payload(0, index, RECORD_BYTES)) for index in range(first, first + number)
    ]
    writer.flush()
    return [str(future.result(30)) for future in futures]


def java_writes(log: JavaLog, first: int, number: int, *, abort: bool = False) -> list[str]:
    """The same by Java; aborted instead of closed, the segment stays in progress."""
    writer = log.call("writer")
    dlsns: list[str] = log.call("write", writer=writer, txid=1000 + first, first=first, count=number, size=RECORD_BYTES)
    log.call("abort_writer" if abort else "close_writer", writer=writer)
    return dlsns


def expected(dlsns: list[str], first: int = 0) -> list[dict[str, Any]]:
    """What a reader gets for records first.., in the words of the Java side; sequence ids run on over segments."""
    return [
        {
            "dlsn": dlsn,
            "txid": 1000 + index,
            "sequence_id": index,
            **described(make_payload(0, index, RECORD_BYTES)),
        }
        for index, dlsn in enumerate(dlsns, first)
    ]


def java_view(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert not any(record["control"] for record in records)
    return [{key: value for key, value in record.items() if key not in ("position", "control")} for record in records]


def our_view(records: list[LogRecord]) -> list[dict[str, Any]]:
    return [
        {
            "dlsn": str(record.dlsn),
            "txid": record.txid,
            "sequence_id": record.sequence_id,
            **described(bytes(record.payload)),
        }
        for record in records
    ]


def we_read(log: Log, number: int, start: str = "earliest") -> list[LogRecord]:
    with log.open_reader(start) as reader:
        return read_records(reader, number)


def read_records(reader: LogReader, number: int, timeout_s: float = 20) -> list[LogRecord]:
    """The next `number` records, fewer if they do not come in time."""
    records: list[LogRecord] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < number and time.monotonic() < deadline:
        records += reader.read_bulk(number - len(records))
    return records


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


@both_versions
def test_java_reads_what_we_wrote(java_log: JavaLog, uri: str, log_name: str, compression: str) -> None:
    with our_log(uri, log_name, compressionType=compression) as log:
        dlsns = we_write(log, 0, 700) + we_write(log, 700, 300)  # two segments
        assert java_view(java_log.read(1000)) == expected(dlsns)
        assert java_view(java_log.call("read_sync", count=1000)) == expected(dlsns)
        assert java_view(java_log.read(10, dlsn=dlsns[690])) == expected(dlsns)[690:700]
        assert java_view(java_log.read(20, from_txid=1695)) == expected(dlsns)[695:715]
        facts = java_log.call("facts", txid=1695)
        assert (facts["count"], facts["first_txid"], facts["last_txid"]) == (1000, 1000, 1999)
        assert (facts["first_dlsn"], facts["last_dlsn"], facts["at_txid"]) == (dlsns[0], dlsns[-1], dlsns[695])
        same_segments(log.segments(), java_log.call("segments"))


@both_versions
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


def test_java_follows_our_writer(java: JavaTool, plain_java_log: JavaLog, uri: str, log_name: str) -> None:
    with our_log(uri, log_name, periodicFlushFrequencyMilliSeconds=10) as log:
        reader = plain_java_log.call("reader")
        dlsns = []
        for segment in range(2):  # the second segment is found through the watch
            with log.open_writer() as writer:
                for batch in range(3):
                    first = 30 * segment + 10 * batch
                    dlsns += write_records(writer, first, 10)
                    found = java.call("dl.next", reader=reader, count=10)
                    assert java_view(found) == expected(dlsns)[first:]
        java.call("dl.close_reader", reader=reader)


def test_we_follow_a_java_writer(plain_java_log: JavaLog, uri: str, log_name: str) -> None:
    plain_java_log.call("create")
    with our_log(uri, log_name) as log, log.open_reader() as reader:
        dlsns: list[str] = []
        for segment in range(2):
            writer = plain_java_log.call("writer")
            for batch in range(3):
                first = 30 * segment + 10 * batch
                dlsns += plain_java_log.call(
                    "write", writer=writer, txid=1000 + first, first=first, count=10, size=RECORD_BYTES
                )
                assert our_view(read_records(reader, 10)) == expected(dlsns)[first:]
            plain_java_log.call("close_writer", writer=writer)


@both_versions
def test_we_recover_and_continue_the_log_of_a_killed_java_writer(
    victim: JavaTool, plain_java_log: JavaLog, uri: str, log_name: str
) -> None:
    dying = JavaLog(victim, uri, log_name, zkSessionTimeoutSeconds=2)
    dying.call("create")
    writer = dying.call("writer")
    dlsns = dying.call("write", writer=writer, txid=1000, count=120, size=RECORD_BYTES)
    victim.kill()
    with our_log(uri, log_name, lockTimeoutSeconds=30) as log:  # the dead session's lock goes when it expires
        dlsns += we_write(log, 120, 80)
        assert our_view(we_read(log, 200)) == expected(dlsns)
        assert [segment.record_count for segment in log.segments()] == [120, 80]
        assert java_view(plain_java_log.read(200)) == expected(dlsns)
        same_segments(log.segments(), plain_java_log.call("segments"))


OUR_DYING_WRITER = """
import sys
from dlspark.core.sync import Namespace
from java_tool import make_payload
uri, name = sys.argv[1:]
with Namespace.open(uri, {"zkSessionTimeoutSeconds": 2}) as namespace:
    namespace.create_log(name)
    with namespace.open_log(name) as log, log.open_writer() as writer:
        futures = [writer.write(1000 + index, make_payload(0, index, 150)) for index in range(120)]
        writer.flush()
        print(",".join(str(future.result(30)) for future in futures), flush=True)
        sys.stdin.read()
"""


@both_versions
def test_java_recovers_and_continues_the_log_of_our_killed_writer(
    java: JavaTool, uri: str, log_name: str, version: str
) -> None:
    path = [str(REPOSITORY), str(REPOSITORY / "tests" / "interop")]
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{OUR_DYING_WRITER}", uri, log_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        dlsns = writer.stdout.readline().strip().split(",")
        writer.kill()
    assert len(dlsns) == 120
    heir = JavaLog(java, uri, log_name, lockTimeoutSeconds=30)
    dlsns += java_writes(heir, 120, 80)
    assert java_view(heir.read(200)) == expected(dlsns)
    with our_log(uri, log_name) as log:
        assert our_view(we_read(log, 200)) == expected(dlsns)
        assert [segment.record_count for segment in log.segments()] == [120, 80]
        same_segments(log.segments(), heir.call("segments"))


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


def test_a_log_that_java_is_writing_is_refused_to_us_with_its_owner(
    plain_java_log: JavaLog, uri: str, log_name: str
) -> None:
    plain_java_log.call("create")
    writer = plain_java_log.call("writer")
    with our_log(uri, log_name) as log:
        with pytest.raises(OwnershipAcquireFailedError) as refused:
            log.open_writer()
        assert refused.value.owner == "java"
        plain_java_log.call("close_writer", writer=writer)
        we_write(log, 0, 1)


def test_a_log_that_we_are_writing_is_refused_to_java(plain_java_log: JavaLog, uri: str, log_name: str) -> None:
    with our_log(uri, log_name) as log:
        with log.open_writer() as writer:
            write_records(writer, 0, 1)
            with pytest.raises(JavaError) as refused:
                plain_java_log.call("writer")
            assert refused.value.code == JAVA_OWNERSHIP_FAILED
        java_writes(plain_java_log, 1, 1)


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
            writer.write(2000, b"too late").result(30)


def test_a_large_and_an_empty_record_pass_both_ways(java_log: JavaLog, uri: str, log_name: str) -> None:
    with our_log(uri, log_name) as log:
        with log.open_writer() as writer:
            futures = [writer.write(1 + size, make_payload(0, 0, size)) for size in (0, 1, 900_000)]
            writer.flush()
            dlsns = [str(future.result(30)) for future in futures]
        number = java_log.call("writer")
        dlsns += java_log.call("write", writer=number, txid=900_001, count=1, size=900_000)
        java_log.call("close_writer", writer=number)
        contents = [make_payload(0, 0, size) for size in (0, 1, 900_000, 900_000)]
        facts = [
            (dlsn, len(payload), described(payload)["crc32"]) for dlsn, payload in zip(dlsns, contents, strict=True)
        ]
        assert [(r["dlsn"], r["size"], r["crc32"]) for r in java_log.read(4)] == facts
        assert [(str(r.dlsn), bytes(r.payload)) for r in we_read(log, 4)] == list(zip(dlsns, contents, strict=True))


@pytest.mark.parametrize("codec", ["NONE", "LZ4"])
def test_a_record_set_of_java_is_its_members_to_both(java_log: JavaLog, uri: str, log_name: str, codec: str) -> None:
    java_log.call("create")
    writer = java_log.call("writer")
    dlsns = java_log.call("write", writer=writer, txid=1000, count=3, size=RECORD_BYTES)
    dlsns += java_log.call("write_set", writer=writer, txid=1003, first=3, count=5, size=RECORD_BYTES, codec=codec)
    dlsns += java_log.call("write", writer=writer, txid=1008, first=8, count=2, size=RECORD_BYTES)
    java_log.call("close_writer", writer=writer)
    members = [{**record, "txid": 1003} if 3 <= index < 8 else record for index, record in enumerate(expected(dlsns))]
    with our_log(uri, log_name) as log:
        assert our_view(we_read(log, 10)) == members
        assert our_view(we_read(log, 5, dlsns[5])) == members[5:]
        assert log.segments()[0].record_count == 10
    assert java_view(java_log.read(10)) == members


@both_versions
def test_a_namespace_bound_by_java_on_real_bookies_is_ours_to_use(
    java: JavaTool, theirs: Cluster, log_name: str
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
