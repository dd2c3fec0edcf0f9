"""What the tests of the Spark connector share: a world in memory for each; a sandbox and a session for all of them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helpers.spark.logs import Logs
    from helpers.spark.memory_world import DriverWorld
    from pyspark.sql import SparkSession

    from dlspark.sandbox.sandbox import Sandbox

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@pytest.fixture
async def driver_world(tmp_path: Path) -> AsyncIterator[DriverWorld]:
    """Run storage nodes in this process, with metadata in memory."""
    from helpers.spark.memory_world import DriverWorld

    made = DriverWorld(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Run ZooKeeper and four storage nodes as processes."""
    from dlspark.sandbox.sandbox import Sandbox

    with Sandbox(tmp_path_factory.mktemp("sandbox"), nodes=4) as running:
        yield running


@pytest.fixture(scope="session")
def spark(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a session with the connector's jar, whose conf names the sandbox; its workers run this interpreter.

    `plain_format` is how it reads without the jar.
    """
    from helpers.cold.servers import KEYS
    from pyspark.sql import SparkSession

    from dlspark.spark import catalog_jar

    place = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("dlspark tests")
        .config("spark.distributedlog.uri", sandbox.uri)
        .config("spark.jars", str(catalog_jar()))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
    )
    with pytest.MonkeyPatch.context() as environment:
        # The workers' environment is the JVM's, and that is what it was when it started.
        for name, value in {"PYSPARK_PYTHON": sys.executable, **KEYS}.items():
            environment.setenv(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="session")
def plain_format(spark: SparkSession) -> str:
    """Give a name by which Spark finds no class of the jar: it reads as a session that has none."""
    from dlspark.spark.datasource import DistributedLogDataSource

    name = "plainlog"
    spark.dataSource.register(type("Plain", (DistributedLogDataSource,), {"name": classmethod(lambda cls: name)}))
    return name


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def logs(sandbox: Sandbox) -> Iterator[Logs]:
    """Give a writer of logs in the sandbox; everything it opened is closed after the test."""
    from helpers.spark.logs import Logs

    opened = Logs(sandbox.uri)
    yield opened
    opened.close()
