"""What Spark's workers keep is out of the collector's sight, in Spark's workers and nowhere else."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from dlspark.spark import worker_daemon
from dlspark.spark.datasource import DistributedLogDataSource
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.readers import BatchReader, batch_reader, stream_reader
from dlspark.spark.source.schema import SCHEMA
from dlspark.spark.worker_daemon import DAEMON, FREEZE_AT, OWN_DAEMON, begin_use, due, main_module
from storage_node.settings.client import ClientSettings

if TYPE_CHECKING:
    from dlspark.sandbox.sandbox import Sandbox

OURS = ("dlspark", "metadata", "storage_node")
MOST_MODULES = 260
"""Of ours, that a worker of Spark's loads to plan a write or to commit it: some 240."""


@pytest.mark.parametrize("daemon", [DAEMON, OWN_DAEMON])
def test_only_a_worker_of_a_daemon_freezes_and_only_some_times(daemon: str) -> None:
    assert [uses for uses in range(100) if due(uses, daemon)] == list(FREEZE_AT)
    assert not any(due(uses, other) for uses in range(100) for other in (None, "pytest", "pyspark.worker"))


def test_other_processes_freeze_nothing() -> None:
    assert main_module() not in (DAEMON, OWN_DAEMON)
    assert worker_daemon.__name__ == OWN_DAEMON
    before = gc.get_freeze_count()
    for _ in range(max(FREEZE_AT) + 1):
        begin_use()
    assert gc.get_freeze_count() == before


@pytest.mark.parametrize("reader", [batch_reader, stream_reader])
def test_a_task_of_each_kind_of_query_is_a_use(
    reader: Callable[[Options, StructType], DataSourceReader | DataSourceStreamReader],
) -> None:
    options = Options({"uri": "distributedlog://h:1/n", "log": "flights"}, Scope.ANY)
    before = worker_daemon._uses
    assert list(reader(options, SCHEMA).read(LogPartition((), ClientSettings()))) == []
    assert worker_daemon._uses == before + 1


def test_a_data_source_that_is_only_made_is_a_use() -> None:
    """For the commit of a micro-batch Spark has one made and sent back, in a worker that does nothing else."""
    before = worker_daemon._uses
    DistributedLogDataSource({"uri": "distributedlog://h:1/n", "log": "flights"})
    assert worker_daemon._uses == before + 1


def test_a_plan_and_a_question_for_columns_are_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a worker of a kind of its own."""

    async def no_plan(reader: object) -> list[LogPartition]:
        return []

    monkeypatch.setattr(BatchReader, "_plan", no_plan)
    options = {"uri": "distributedlog://h:1/n", "log": "flights", "columns": "raw"}
    before = worker_daemon._uses
    assert batch_reader(Options(options, Scope.SOURCE_BATCH), SCHEMA).partitions() == []
    assert worker_daemon._uses == before + 1
    assert DistributedLogDataSource(options).schema() == SCHEMA
    assert worker_daemon._uses == before + 2


@pytest.mark.parametrize("daemon", [DAEMON, OWN_DAEMON])
def test_a_worker_that_is_used_again_shows_the_collector_next_to_nothing(daemon: str) -> None:
    """Run as the daemon runs: a module of its name, started with `-m`."""
    lines = (
        "import gc, sys, types",
        f"sys.modules['__main__'].__spec__ = types.SimpleNamespace(name='{daemon}')",
        "def worker(sock, authenticated): ...",
        "from dlspark.spark.worker_daemon import begin_use",
        "import numpy, pyarrow",
        "begin_use(); gc.collect(); first = len(gc.get_objects())",
        "begin_use(); gc.collect(); second = len(gc.get_objects())",
        "print(first, second)",
    )
    told = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True).stdout
    first, second = map(int, told.split())
    assert second < first / 100


@pytest.mark.parametrize(
    "module", ["source.readers", "sink.writer", "sink.segments.task", "sink.driver", "source.driver"]
)
def test_what_a_worker_imports_leaves_pandas_alone(module: str) -> None:
    """It takes a quarter of a second a process, and Arrow imports it where a module makes a scalar."""
    code = f"import sys, dlspark.spark.{module}; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_plans_a_write_and_what_commits_it_load_neither_arrow_nor_what_reads(sandbox: Sandbox) -> None:
    """Spark's own daemon forks these workers, and each loads all that it needs. Here one process does both."""
    lines = (
        "import sys",
        "import pyspark.sql.worker.commit_data_source_write, pyspark.sql.worker.write_into_data_source",
        "from pyspark.sql.types import BinaryType, StructField, StructType",
        "from dlspark.spark.datasource import DistributedLogDataSource",
        "from dlspark.spark.sink.messages import SinkMessage",
        "schema = StructType([StructField('value', BinaryType())])",
        "source = DistributedLogDataSource({'uri': sys.argv[1], 'path': 'planned-and-committed'})",
        "writer = source.writer(schema, False)",
        "writer.commit([SinkMessage(writer._job)])",
        "source.streamWriter(schema, False)",
        "print(*sys.modules)",
    )
    command = [sys.executable, "-c", "\n".join(lines), sandbox.uri]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert not {"numpy", "pyarrow", "pandas"} & set(loaded)
    assert not [name for name in loaded if name.startswith(("dlspark.core.reading.", "dlspark.core.writing."))]
    assert len([name for name in loaded if name.split(".")[0] in OURS]) < MOST_MODULES


@pytest.mark.parametrize("core", ["with", "without"])
def test_what_a_task_of_a_source_does_leaves_pandas_alone(core: str) -> None:
    """Each new worker would load it, for the first rows that it makes."""
    lines = (
        "import sys",
        "import numpy as np",
        "from dlspark.core.codec.arrow_arrays import binary_array",
        "from dlspark.core.codec.entries import Compression",
        "from dlspark.core.codec.vector_decoding import decode_entries",
        "from dlspark.core.codec.vector_encoding import encode_entries",
        "from dlspark.spark.source.partition_reader import TYPES, record_batches",
        "ids, values = np.array([5, 2**62]), binary_array([b'a', b'bc'])",
        "(entry,) = encode_entries(ids, values, first_position=1, compression=Compression.NONE)",
        "body = memoryview(b''.join(bytes(part) for part in entry.buffers))",
        "rows = decode_entries([(0, body)], lssn=7, start_sequence_id=100)",
        "(batch,) = record_batches(rows, 'flights', list(TYPES))",
        "assert batch.num_rows == 2 and batch.schema.names == list(TYPES)",
        "assert 'pandas' not in sys.modules",
    )
    environment = os.environ | ({"DLSPARK_NO_SPEED": "1"} if core == "without" else {})
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60, env=environment)


def test_the_daemon_has_most_of_a_task_loaded_before_it_forks_and_no_thread() -> None:
    lines = (
        "import gc, os, sys",
        "from pyspark import daemon",
        "from dlspark.spark import worker_daemon",
        "def ours():",
        "    return [name for name in sys.modules if name.split('.')[0] in ('dlspark', 'metadata', 'storage_node')]",
        "def manager():",
        "    global before",
        "    before = ours()",
        "    assert not {'numpy', 'pyarrow', 'pandas'} & sys.modules.keys(), 'they start threads'",
        "    assert os.listdir('/proc/self/task') == [str(os.getpid())]",
        "    assert gc.get_freeze_count() > 10_000",
        "daemon.manager = manager",
        "worker_daemon.main()",
        "import dlspark.spark.datasource, dlspark.spark.source.readers",
        "print(len(before), len(ours()))",
        "import dlspark.spark.sink.segments.task",
        "print(len(ours()))",
    )
    told = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True, timeout=60
    )
    before, for_sources, for_all = map(int, told.stdout.split())
    assert before > 0.9 * for_sources
    assert before > 0.75 * for_all
