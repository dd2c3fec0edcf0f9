"""One rule for the names of logs at every entry point: a leading slash is refused, with the name as it should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pyarrow as pa
import pytest
from helpers.spark.memory_world import URI, DriverWorld, answer_request
from pyspark.sql.types import StringType, StructField, StructType

from dlspark.core.namespace import AsyncNamespace
from dlspark.sandbox.sandbox import Sandbox
from dlspark.spark.metadata_tables.reader import table_reader
from dlspark.spark.metadata_tables.registry import table_named
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.columns import SinkColumns, columns_of, routing_of
from dlspark.spark.sink.foreach import ForeachLogWriter
from dlspark.spark.sink.log_rows import rows_by_log
from dlspark.spark.source.selection import SourceQuery
from metadata.distributedlog.log_admin import LogAdmin
from metadata.foundation.errors import CallerError

SLASH = r"'/x'.*begins with a slash.*write 'x'"
VALUE = StructType([StructField("value", StringType())])


async def _first_change(namespace: AsyncNamespace) -> object:
    async for change in namespace.watch_logs("/x"):
        return change
    return None


LIBRARY: dict[str, Callable[[AsyncNamespace], Awaitable[object]]] = {
    "create_log": lambda it: it.create_log("/x"),
    "open_log": lambda it: it.open_log("/x"),
    "log_exists": lambda it: it.log_exists("/x"),
    "delete_log": lambda it: it.delete_log("/x"),
    "rename_log from": lambda it: it.rename_log("/x", "y"),
    "rename_log to": lambda it: it.rename_log("y", "/x"),
    "logs": lambda it: it.logs("/x"),
    "logs recursive": lambda it: it.logs("/x", recursive=True),
    "watch_logs": _first_change,
    "metadata": lambda it: LogAdmin(it.logs_store).metadata("/x"),
    "below": lambda it: LogAdmin(it.logs_store).below("/x"),
    "segments": lambda it: it.logs_store.segments("/x"),
}


@pytest.mark.parametrize("entry", LIBRARY)
async def test_the_library_refuses_a_leading_slash(driver_world: DriverWorld, entry: str) -> None:
    await driver_world.namespace.create_log("y")
    with pytest.raises(CallerError, match=SLASH):
        await LIBRARY[entry](driver_world.namespace)
    assert await driver_world.namespace.logs() == ["y"]


def source(**raw: str) -> object:
    return SourceQuery.of(Options({"uri": URI, **raw}, Scope.SOURCE_BATCH))


def sink(**raw: str) -> object:
    options = Options({"uri": URI, **raw}, Scope.SINK_BATCH)
    return columns_of(VALUE, options.one_log(), routing_of(options))


def column_log() -> object:
    batch = pa.record_batch([pa.array([b"a"]), pa.array(["/x"])], names=["value", "log"])
    return rows_by_log(batch, SinkColumns(value=0, transaction_id=None, log=1, one_log=None), "task 0")


SPARK: dict[str, Callable[[], object]] = {
    "load": lambda: source(path="/x"),
    "log": lambda: source(log="/x"),
    "subscribe": lambda: source(subscribe="y,/x"),
    "assign": lambda: source(assign='["/x"]'),
    "subscribePattern": lambda: source(subscribePattern="/x"),
    "anchored pattern": lambda: source(subscribePattern="^/x"),
    "startingOffsets": lambda: source(log="x", startingOffsets='{"/x": "earliest"}'),
    "endingOffsets": lambda: source(log="x", endingOffsets='{"/x": "latest"}'),
    "of a pattern": lambda: source(subscribePattern="x.*", startingOffsets='{"/x": "earliest"}'),
    "startingOffsetsByTimestamp": lambda: source(log="x", startingOffsetsByTimestamp='{"/x": 5}'),
    "endingOffsetsByTransactionId": lambda: source(log="x", endingOffsetsByTransactionId='{"/x": 5}'),
    "metadata": lambda: table_reader(
        table_named("segments"),
        Options({"uri": URI, "metadata": "segments", "path": "/x"}, Scope.SOURCE_BATCH),
        table_named("segments").schema,
    ),
    "save": lambda: sink(path="/x"),
    "option of the sink": lambda: sink(log="/x"),
    "column log": column_log,
    "foreach": lambda: ForeachLogWriter("/x", uri=URI),
}


@pytest.mark.parametrize("entry", SPARK)
def test_options_and_columns_refuse_a_leading_slash(entry: str) -> None:
    with pytest.raises(CallerError, match=r"begins with a slash.*write '\^?x'"):
        SPARK[entry]()


def test_a_template_of_names_refuses_a_leading_slash() -> None:
    with pytest.raises(CallerError, match="'/x-0': it begins with a slash"):
        sink(log="/x-{}", numLogs="2")


SQL: dict[str, dict[str, object]] = {
    "load": {"table": ["/x"]},
    "create": {"table": ["/x"], "schema": VALUE.json(), "properties": {}},
    "create_or_replace": {"table": ["/x"], "schema": VALUE.json(), "properties": {}},
    "replace": {"table": ["/x"]},
    "alter": {"table": ["/x"], "set": {"comment": "c"}},
    "drop": {"table": ["/x"]},
    "rename": {"table": ["y"], "new_table": ["/x"]},
    "tables": {"namespace": ["/x"]},
    "namespaces": {"namespace": ["/x"]},
    "namespace": {"namespace": ["/x"]},
    "create_namespace": {"namespace": ["/x"]},
}


@pytest.mark.parametrize("operation", SQL)
async def test_sql_refuses_a_leading_slash(driver_world: DriverWorld, operation: str) -> None:
    await driver_world.namespace.create_log("y")
    said = await answer_request(driver_world, operation, **SQL[operation])
    assert "begins with a slash" in json.dumps(said), said
    assert "write 'x'" in json.dumps(said)
    assert await driver_world.namespace.logs() == ["y"]


COMMANDS = [
    ["log", "create", "/x"],
    ["log", "show", "/x"],
    ["log", "list", "/x"],
    ["log", "list", "-r", "/x"],
    ["log", "count", "/x", "1:0:0"],
    ["log", "rename", "/x", "z"],
    ["log", "rename", "y", "/x"],
    ["log", "delete", "--yes", "/x"],
    ["log", "truncate", "/x", "1:0:0"],
    ["read", "/x"],
    ["write", "/x"],
]


@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_command_line_refuses_a_leading_slash(sandbox: Sandbox, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlspark.cli", *command],
        input="line\n",
        env=os.environ | {"DLSPARK_URI": sandbox.uri},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "invalid log name '/x': it begins with a slash" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
