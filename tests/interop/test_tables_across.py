"""Logs that declare what their records are, in the hands of the Java core, which sees bytes as ever."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from helpers.interop.java_tool import described
from helpers.interop.log_sides import FIRST_TXID, JavaLog, our_log

from dlspark.core.sync.log import Log
from dlspark.core.sync.namespace import Namespace
from dlspark.tables.codecs import RecordEncoder
from dlspark.tables.declaration import RecordFormat
from dlspark.tables.evolution import AddColumn
from dlspark.tables.types import STRING
from dlspark.testing.java_process import JavaTool

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("item", pa.string())])
ROWS = pa.table({"id": [1, 2, 3], "item": ["tea", None, "é😀"]}, schema=COLUMNS)


def bytes_in(log: Log, number: int) -> list[bytes]:
    with log.open_reader("earliest") as reader:
        found: list[bytes] = []
        while len(found) < number:
            found += [bytes(record.payload) for record in reader.read_bulk(number - len(found))]
        return found


@pytest.mark.parametrize("format_", list(RecordFormat))
def test_java_reads_the_bytes_of_typed_records(
    uri: str, log_name: str, plain_java_log: JavaLog, format_: RecordFormat
) -> None:
    with our_log(uri, log_name) as log:
        log.declare_schema(COLUMNS, format_.value)
        with log.open_writer() as writer:
            writer.write_table(ROWS)
            writer.flush()
        declaration = log.schema()
        assert declaration is not None
        log.change_schema([AddColumn(("note",), STRING)])
        expected = RecordEncoder(declaration).encode(ROWS.to_batches()[0]).payloads.to_pylist()
        assert bytes_in(log, len(expected)) == expected
    found = plain_java_log.read(len(expected))
    assert [(one["size"], one["crc32"]) for one in found] == [
        (described(one)["size"], described(one)["crc32"]) for one in expected
    ]
    short = [one for one in expected if len(one) <= 64]
    assert [base64.b64decode(one["payload"]) for one in found if "payload" in one] == short


def test_what_java_writes_into_such_a_log_is_bytes_that_do_not_fit(
    uri: str, log_name: str, plain_java_log: JavaLog
) -> None:
    with our_log(uri, log_name) as log:
        log.declare_schema(COLUMNS)
        writer = plain_java_log.call("writer")
        plain_java_log.call("write", writer=writer, txid=FIRST_TXID, first=0, count=3, size=20)
        plain_java_log.call("close_writer", writer=writer)
        with log.open_writer() as ours:
            ours.write_table(ROWS)
            ours.flush()
        theirs = bytes_in(log, 3)
        with log.open_reader("earliest") as reader:
            rows: list[dict[str, object]] = []
            for table in reader.tables():
                rows += table.to_pylist()
                if len(rows) >= 6:
                    break
        assert [row["id"] for row in rows] == [None] * 3 + [1, 2, 3]
        assert [row["_log"]["value"] for row in rows] == [*theirs, None, None, None]  # type: ignore[index]
        assert all(row["_error"] for row in rows[:3])


def test_java_lists_and_deletes_a_log_that_declares_a_schema(java: JavaTool, uri: str, log_name: str) -> None:
    namespace = java.call("dl.open", uri=uri, settings={})
    with Namespace.open(uri, {"lockTimeoutSeconds": 0}) as ours:
        ours.create_log(log_name)
        with ours.open_log(log_name) as log:
            log.declare_schema(COLUMNS)
            with log.open_writer() as writer:
                writer.write_table(ROWS)
        assert log_name in java.call("dl.list", namespace=namespace)
        assert java.call("dl.exists", namespace=namespace, log=log_name)
        java.call("dl.delete", namespace=namespace, log=log_name)
        assert log_name not in java.call("dl.list", namespace=namespace)
        assert not ours.log_exists(log_name)
        ours.create_log(log_name)
        with ours.open_log(log_name) as log:
            assert log.schema() is None
            log.declare_schema(COLUMNS)
        ours.delete_log(log_name)
        assert log_name not in java.call("dl.list", namespace=namespace)
    java.call("dl.close", namespace=namespace)
