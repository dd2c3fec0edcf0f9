"""When readers see what is acknowledged, with default settings: at once, without another record."""

from __future__ import annotations

import asyncio

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import LogEmptyError
from dlspark.testing.cluster import InProcessCluster

SILENT = {"bkc.explicitLacInterval": 0}
"""A writer that tells nothing by itself, as one of upstream's library."""


async def acknowledged(writer: AsyncLogWriter, txid: int) -> DLSN:
    written = writer.write(txid, b"%d" % txid)
    await writer.send()
    return await written


async def writing(
    in_process_cluster: InProcessCluster, name: str, **settings: int
) -> tuple[AsyncNamespace, AsyncLogWriter]:
    namespace = await in_process_cluster.connect(Settings.from_mapping(settings))
    return namespace, await (await namespace.open_log(name)).open_writer()


async def test_a_record_is_found_by_whoever_asks_after_its_acknowledgement(
    in_process_cluster: InProcessCluster,
) -> None:
    _, writer = await writing(in_process_cluster, "quiet")
    log = await (await in_process_cluster.connect()).open_log("quiet")
    for txid in range(20):
        written = await acknowledged(writer, txid)
        assert written == DLSN(1, txid, 0)  # nothing else is in the log
        assert (await log.last_record()).txid == txid
        assert await log.end() == DLSN(1, txid + 1, 0)
        assert await log.record_count() == txid + 1
    await writer.close()


async def test_a_tailing_reader_gets_a_record_that_none_follows(in_process_cluster: InProcessCluster) -> None:
    _, writer = await writing(in_process_cluster, "tailed")
    log = await (await in_process_cluster.connect()).open_log("tailed")
    async with await log.open_reader() as reader:
        for txid in range(20):
            await acknowledged(writer, txid)
            assert (await asyncio.wait_for(reader.read_next(), 60)).txid == txid
    await writer.close()


async def test_what_a_writer_never_tells_is_waited_for_once_and_not_guessed(
    in_process_cluster: InProcessCluster,
) -> None:
    _, writer = await writing(in_process_cluster, "silent", **SILENT)
    await acknowledged(writer, 0)
    log = await (await in_process_cluster.connect()).open_log("silent")
    with pytest.raises(LogEmptyError):
        await log.last_record()
    (segment,) = await log.segments()
    reader = await log.open_segment(segment)
    assert [await reader.refresh() for _ in range(2)] == [-1, -1]  # I6: it may yet come to nothing
    asked = asyncio.ensure_future(reader.refresh())
    await acknowledged(writer, 1)
    await asked
    assert await reader.refresh() == 0
    await writer.commit()
    assert await reader.refresh(acknowledged=False) >= 1
    await reader.close()
    await writer.close()


async def test_storage_nodes_that_are_away_are_told_when_they_are_back(in_process_cluster: InProcessCluster) -> None:
    _, writer = await writing(in_process_cluster, "told-late")
    await acknowledged(writer, 0)
    for index in range(4):
        await in_process_cluster.stop_node(index)
    for index in range(4):
        await in_process_cluster.start_node(index)
    log = await (await in_process_cluster.connect()).open_log("told-late")
    async with await log.open_reader() as reader:
        assert (await asyncio.wait_for(reader.read_next(), 60)).txid == 0
    await writer.abort()


@pytest.mark.parametrize("region", ["eu", ""])
async def test_a_reader_in_a_region_says_how_far_behind_it_may_be(
    in_process_cluster: InProcessCluster, region: str
) -> None:
    _, writer = await writing(in_process_cluster, "far")
    namespace = await in_process_cluster.connect(Settings.from_mapping({"region": region}))
    log = await namespace.open_log("far")
    async with await log.open_reader() as reader:
        assert reader.lag_s is None  # nothing was read yet
        for txid in range(3):
            await acknowledged(writer, txid)
            assert (await asyncio.wait_for(reader.read_next(), 60)).txid == txid
        recorded = reader._ahead.measures.reader_region_lag.done
        if region:
            assert reader.lag_s is not None
            assert reader.lag_s >= 0
            assert recorded.count > 0
        else:
            assert reader.lag_s is None
            assert recorded.count == 0
    await writer.close()
