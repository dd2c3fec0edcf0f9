"""Planning and reading while storage nodes are away and come back, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dlspark.core.settings.settings import Settings
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.planning import Partition
from dlspark.spark.source.selection import SourceQuery
from dlspark.testing.cluster import URI, InProcessCluster
from storage_node.client.reader import ReplicaReader
from storage_node.errors import NotEnoughBookiesError

PATIENT = Settings.from_mapping({"bkc.outageWaitMillis": 60_000})
HASTY = Settings.from_mapping({"bkc.outageWaitMillis": 200})
ROWS = 50


@pytest.fixture
async def cluster_with_log(tmp_path: Path) -> AsyncIterator[InProcessCluster]:
    async with InProcessCluster(tmp_path) as cluster_with_log:
        namespace = await cluster_with_log.connect()
        async with await (await namespace.open_log("flights")).open_writer() as writer:
            await writer.write_batch(np.arange(ROWS), pa.array([b"%d" % n for n in range(ROWS)]))
        yield cluster_with_log


async def opened(cluster_with_log: InProcessCluster, settings: Settings) -> SourceDriver:
    query = SourceQuery.of(Options({"uri": URI, "log": "flights"}, Scope.SOURCE_BATCH))
    driver = SourceDriver(query, lambda _: cluster_with_log.connect(settings))
    await driver.open()
    return driver


async def planned(driver: SourceDriver) -> list[Partition]:
    start, end = await driver.resolve(driver.query.start), await driver.resolve(driver.query.end, ending=True)
    return await driver.plan(start, end)


async def holders(cluster_with_log: InProcessCluster, driver: SourceDriver) -> list[int]:
    """The nodes that have the log's segment."""
    ((span,),) = await planned(driver)
    return [int(name.removeprefix("node-")) for name in span.ledger.metadata.last_ensemble.bookies]


async def entries(driver: SourceDriver, plan: list[Partition]) -> int:
    """What a task reads of a plan, without asking anybody else."""
    reader = ReplicaReader(settings=driver.client_settings)
    try:
        return sum(
            [1 for (span,) in plan async for _ in reader.entries(span.ledger, span.first_entry, span.last_entry)]
        )
    finally:
        await reader.close()


async def test_a_plan_is_made_once_a_node_of_each_entry_is_back(cluster_with_log: InProcessCluster) -> None:
    driver, hasty = await opened(cluster_with_log, PATIENT), await opened(cluster_with_log, HASTY)
    nodes = await holders(cluster_with_log, driver)
    for node in nodes:
        await cluster_with_log.stop_node(node)
    with pytest.raises(NotEnoughBookiesError, match=r"not running: node-.*waited 0\.2 s"):
        await planned(hasty)
    planning = asyncio.ensure_future(planned(driver))
    assert not (await asyncio.wait({planning}, timeout=1))[0]
    await cluster_with_log.start_node(nodes[1])
    assert await entries(driver, await planning) > 0
    await driver.close()
    await hasty.close()


async def test_a_plan_names_a_node_that_was_away_when_the_segment_was_located(
    cluster_with_log: InProcessCluster,
) -> None:
    driver = await opened(cluster_with_log, HASTY)
    first, *others = await holders(cluster_with_log, await opened(cluster_with_log, HASTY))
    await cluster_with_log.stop_node(first)
    assert await entries(driver, await planned(driver)) > 0
    await cluster_with_log.start_node(first)
    for node in others:
        await cluster_with_log.stop_node(node)
    assert await entries(driver, await planned(driver)) > 0
    await driver.close()


async def test_a_task_waits_for_the_nodes_that_its_plan_names(cluster_with_log: InProcessCluster) -> None:
    driver = await opened(cluster_with_log, PATIENT)
    plan = await planned(driver)
    for node in await holders(cluster_with_log, driver):
        await cluster_with_log.stop_node(node)
    reading = asyncio.ensure_future(entries(driver, plan))
    assert not (await asyncio.wait({reading}, timeout=1))[0]
    for index, bookie in enumerate(cluster_with_log.bookies):
        if bookie is None:
            await cluster_with_log.start_node(index)
    assert await reading > 0
    await driver.close()
