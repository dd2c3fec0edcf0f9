"""Reading through read proxies: real Spark, real proxies as processes, and tasks that reach nothing else."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from helpers.spark.read_proxy_processes import ReadProxyProcesses
from helpers.waiting import wait_until

from dlspark.core.sync.namespace import Namespace
from dlspark.errors import ProxyUnreachableError
from dlspark.serving.client.fleet import NoProxiesError
from dlspark.spark import register
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import CONF_PREFIX, Scope
from dlspark.spark.source.partition_reader import LogPartition
from dlspark.spark.source.readers import batch_reader
from dlspark.spark.source.schema import SCHEMA

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from pyspark.sql import DataFrame, SparkSession

    from dlspark.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.spark, pytest.mark.processes]

MS = 1_000_000
"""Transaction ids of the tests begin here: a time in 1970."""
NOWHERE = "127.0.0.1:1"
"""Where nothing listens."""


@pytest.fixture(scope="module")
def running(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadProxyProcesses]:
    made = ReadProxyProcesses(sandbox.uri, tmp_path_factory.mktemp("proxies"), 2)
    yield made
    made.close()


@pytest.fixture
def proxies(running: ReadProxyProcesses) -> ReadProxyProcesses:
    """Two read proxies; a test may kill them."""
    running.restart_missing()
    return running


@pytest.fixture(scope="module")
def large(sandbox: Sandbox) -> str:
    """A log of 40 MB in entries of 100 KB: many deliveries."""
    with Namespace.open(sandbox.uri) as namespace:
        namespace.create_log("large-through-proxies")
        with namespace.open_log("large-through-proxies").open_writer() as writer:
            for number in range(400):
                writer.write_batch(np.array([number]), pa.array([os.urandom(100_000)], type=pa.binary())).result()
    return "large-through-proxies"


def reading(spark: SparkSession, log: str, **options: object) -> DataFrame:
    reader = spark.read.format("distributedlog")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(log)


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def failure(action: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        action()
    return str(caught.value)


def partitions_of(sandbox: Sandbox, log: str, **options: str) -> tuple[object, list[LogPartition]]:
    """The reader and the plan of a batch, as Spark hands them to tasks."""
    made = batch_reader(Options({"uri": sandbox.uri, "log": log, **options}, Scope.SOURCE_BATCH), SCHEMA)
    planned = made.partitions()
    assert all(isinstance(one, LogPartition) for one in planned)
    return made, planned  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("discover", {}),
        ("list", {"minPartitions": 7}),
        ("discover", {"maxRecordsPerPartition": 9}),
        ("list", {"startingOffsets": "1:2:7", "endingOffsets": "3:1:4"}),
        ("list", {"startingTimestamp": MS + 33, "endingTimestamp": MS + 92}),
    ],
)
def test_a_batch_has_the_rows_and_columns_that_it_has_without_proxies(
    spark: SparkSession, proxies: ReadProxyProcesses, three_segments: str, where: str, options: dict[str, object]
) -> None:
    named = {
        name: json.dumps({three_segments: value}) if name.endswith("Offsets") else value
        for name, value in options.items()
    }
    proxy = "discover" if where == "discover" else proxies.option
    frame = reading(spark, three_segments, proxy=proxy, **named)
    direct = reading(spark, three_segments, **named)
    assert frame.rdd.getNumPartitions() == direct.rdd.getNumPartitions()
    found = rows(frame)
    assert found == rows(direct) != []
    assert frame.columns == direct.columns
    assert frame.count() == len(found)


def test_a_typed_frame_has_the_rows_that_it_has_without_proxies(
    spark: SparkSession, proxies: ReadProxyProcesses, logs: Logs
) -> None:
    log = logs.typed("typed")
    logs.run(log.declare(pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])))
    logs.run(log.write([{"id": number} for number in range(20)]))
    logs.run(log.write_bytes([b"bad"], [30]))
    through = reading(spark, log.name, proxy=proxies.option, minPartitions=3).select("_error", "id", "_log.entry")
    direct = reading(spark, log.name).select("_error", "id", "_log.entry")
    assert sorted(through.collect(), key=str) == sorted(direct.collect(), key=str)
    assert through.where("_error is null").count() == 20
    assert through.where("_error is not null").count() == 1


def test_a_stream_goes_on_from_its_checkpoint_whichever_way_it_reads(
    spark: SparkSession, proxies: ReadProxyProcesses, logs: Logs, tmp_path: Path
) -> None:
    name = logs.create(logs.name())
    seen: list[int] = []

    def run(**options: object) -> None:
        reader = spark.readStream.format("distributedlog").option("maxOffsetsPerTrigger", "7")
        for key, value in options.items():
            reader = reader.option(key, str(value))
        query = (
            reader.load(name)
            .writeStream.foreachBatch(
                lambda frame, _: seen.extend(row[0] for row in frame.select("transaction_id").collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(180)

    expected: list[int] = []
    for number, options in enumerate(
        [{"proxy": "discover"}, {}, {"proxy": proxies.option}, {"proxy": f"{NOWHERE},{proxies.option}"}]
    ):
        new = list(range(MS + 20 * number, MS + 20 * number + 20))
        logs.write(name, new, entry_records=3, keep_open=number % 2 == 1)
        expected += new
        run(**options)
        assert sorted(seen) == expected, options
        if number == 2:
            proxies.kill(0)
    logs.delete_first_segment(name)
    logs.write(name, [MS + 100])
    run(proxy="discover", failOnDataLoss="false")
    assert sorted(seen) == [*expected, MS + 100]


def test_the_sessions_conf_and_an_option_of_a_table_lead_through_proxies(
    spark: SparkSession, proxies: ReadProxyProcesses, three_segments: str
) -> None:
    from dlspark.spark import enable

    enable(spark)
    table = f"dlog.`{three_segments}`"
    by_option = spark.read.option("proxy", "discover").table(table)
    assert by_option.count() == 120
    assert rows(by_option) == rows(spark.read.table(table))
    older = spark.read.option("proxy", "discover").option("versionAsOf", "2:0:0").table(table)
    assert older.count() == older.select("value").distinct().count() == 41, "the position itself is of the version"
    # Where nothing listens, it shows that the option is not passed over.
    nowhere = spark.read.option("proxy", NOWHERE).option("outageTimeout", "0s").table(table)
    assert NOWHERE in failure(lambda: nowhere.select("value").collect())
    spark.conf.set(f"{CONF_PREFIX}proxy", NOWHERE)
    spark.conf.set(f"{CONF_PREFIX}outageTimeout", "0s")
    try:
        register(spark)
        text = failure(lambda: reading(spark, three_segments).collect())
        assert "ProxyUnreachableError" in text
        assert NOWHERE in text
        assert rows(reading(spark, three_segments, proxy=proxies.option)) != []
        spark.conf.set(f"{CONF_PREFIX}proxy", "nonsense")
        register(spark)
        assert "Conf spark.distributedlog.proxy" in failure(lambda: reading(spark, three_segments).collect())
    finally:
        spark.conf.unset(f"{CONF_PREFIX}proxy")
        spark.conf.unset(f"{CONF_PREFIX}outageTimeout")
        register(spark)


def test_a_task_reaches_read_proxies_and_nothing_else(
    sandbox: Sandbox, proxies: ReadProxyProcesses, three_segments: str, tmp_path: Path
) -> None:
    """It runs in a process that cannot even import ZooKeeper's client, nor gRPC, and writes down whom it connects to.
    Its plan has no storage node's address."""
    reader, planned = partitions_of(sandbox, three_segments, proxy="discover", minPartitions="4")
    blind = [
        LogPartition(
            tuple(replace(span, ledger=replace(span.ledger, addresses={})) for span in one.spans),
            one.client_settings,
            one.proxies,
        )
        for one in planned
    ]
    (tmp_path / "task").write_bytes(pickle.dumps((reader, blind)))
    program = textwrap.dedent("""
        import json, pickle, socket, sys
        for name in ("kazoo", "metadata.zookeeper.client", "grpc"):
            sys.modules[name] = None
        asked = []
        def hook(event, arguments):
            if event == "socket.connect" and isinstance(arguments[1], tuple):
                asked.append(f"{arguments[1][0]}:{arguments[1][1]}")
        sys.addaudithook(hook)
        reader, partitions = pickle.loads(open(sys.argv[1], "rb").read())
        rows = [sum(batch.num_rows for batch in reader.read(partition)) for partition in partitions]
        print(json.dumps([rows, sorted(set(asked))]))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "task")], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    counts, asked = json.loads(done.stdout)
    assert sum(counts) == 120
    assert asked, "the hook sees connections"
    assert set(asked) <= set(proxies.addresses)


def test_a_proxy_killed_in_the_middle_of_a_partition_is_gone_on_without(
    sandbox: Sandbox, proxies: ReadProxyProcesses, large: str
) -> None:
    for proxy, restarted in (("discover", False), (proxies.option, True)):
        reader, (partition, *more) = partitions_of(sandbox, large, proxy=proxy, maxBytesPerPartition=str(1 << 30))
        assert not more
        direct, (same,) = partitions_of(sandbox, large, maxBytesPerPartition=str(1 << 30))
        expected = [row for batch in direct.read(same) for row in batch.to_pylist()]  # type: ignore[attr-defined]
        batches = reader.read(partition)  # type: ignore[attr-defined]
        found = next(batches).to_pylist()
        asked = proxies.asked_by(os.getpid())
        assert asked
        for number in asked:
            proxies.kill(number)
            # One that has its share sends readers on, so that both may have been asked: then nobody else would be left.
            if restarted or len(asked) == len(proxies.addresses):
                proxies.restart(number)
        found += [row for batch in batches for row in batch.to_pylist()]
        assert len(found) == len(expected) == 400
        assert found == expected
        proxies.restart_missing()


def test_without_proxies_a_query_says_so_before_it_runs_and_a_task_whom_it_asked(
    spark: SparkSession, sandbox: Sandbox, proxies: ReadProxyProcesses, three_segments: str
) -> None:
    reader, (partition,) = partitions_of(sandbox, three_segments, proxy=proxies.option, outageTimeout="1s")
    for number in range(2):
        proxies.end(number)

    def none_announced() -> bool:
        try:
            partitions_of(sandbox, three_segments, proxy="discover", outageTimeout="1s")
        except NoProxiesError:
            return True
        return False

    wait_until(none_announced, "those that other tests have killed are announced until their sessions end")
    text = failure(lambda: reading(spark, three_segments, proxy="discover").collect())
    assert "NoProxiesError" in text
    assert "dlspark proxy read" in text
    with pytest.raises(ProxyUnreachableError) as caught:
        list(reader.read(partition))  # type: ignore[attr-defined]
    assert all(address in str(caught.value) for address in proxies.addresses)
    query = reading(spark, three_segments, proxy=proxies.option, outageTimeout="1s")
    text = failure(query.collect)
    assert "ProxyUnreachableError" in text
    assert all(address in text for address in proxies.addresses)
    assert "Traceback" not in text


def test_what_is_no_read_proxy_is_an_error_that_names_it(
    spark: SparkSession, sandbox: Sandbox, three_segments: str
) -> None:
    zookeeper = sandbox.uri.split("/")[2]
    for option, says in (
        (zookeeper, zookeeper),
        (NOWHERE, NOWHERE),
        ("no-such-host.invalid:8100", "no-such-host.invalid:8100"),
        ("nonsense", "Option proxy: 'nonsense' is not the address of a proxy"),
        (sandbox.uri, "is a URI"),
    ):
        text = failure(lambda option=option: reading(spark, three_segments, proxy=option, outageTimeout="1s").collect())
        assert says in text, option
    text = failure(
        lambda: (
            spark.readStream.format("distributedlog").option("proxy", "a:b").load(three_segments).isStreaming
            and spark.readStream.format("distributedlog")
            .option("proxy", "a:b")
            .load(three_segments)
            .writeStream.format("noop")
            .trigger(availableNow=True)
            .start()
            .awaitTermination(60)
        )
    )
    assert "is not host:port" in text
