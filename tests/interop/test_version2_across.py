"""The Java client in its version 2 protocol (as Pulsar's brokers speak) on our nodes, beside our version 3."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from helpers.interop.clusters import InteropCluster, newest_version
from helpers.interop.ledgers import (
    CLOSED,
    FENCED,
    NEAR_LIMIT_BYTES,
    SIZES,
    UNAUTHORIZED,
    as_java_tells,
    contents_of,
    java_adds,
    java_creates,
    java_reads,
    payloads,
    we_add,
    we_read,
)

from dlspark.testing.java_process import JavaError, JavaTool
from metadata.bookkeeper.ledger_metadata import DigestType, LedgerState
from storage_node.errors import LedgerFencedError

VERSION_2 = {"useV2WireProtocol": True}


@pytest.fixture
def ask(java: JavaTool, ours: InteropCluster) -> Callable[..., Awaitable[Any]]:
    """The Java client of version 2 on our nodes."""
    return partial(ours.on(java), settings=VERSION_2)


@newest_version
@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "MAC", "DUMMY"])
async def test_java_writes_and_reads_in_version_2_with_every_digest(
    ask: Any, ours: InteropCluster, digest: str
) -> None:
    secret = {"digest": digest, "password": "secret"}
    ledger = await java_creates(ask, **secret)
    await java_adds(ask, ledger, SIZES)
    await ask("ledger.close", handle=ledger["handle"])
    assert await java_reads(ask, ledger["ledger"], **secret) == as_java_tells(payloads(SIZES))
    async with ours.client() as client:
        assert await we_read(client, ledger["ledger"], password=b"secret") == payloads(SIZES)
        writer = await client.create(
            digest_type=DigestType.HMAC if digest == "MAC" else DigestType[digest], password=b"secret"
        )
        await we_add(writer, SIZES)
        await writer.close()
    assert await java_reads(ask, writer.ledger_id, **secret) == as_java_tells(payloads(SIZES))
    with pytest.raises(JavaError) as refused:
        await ask("ledger.open", ledger=writer.ledger_id, recover=False, digest=digest, password="wrong")
    assert refused.value.code == UNAUTHORIZED


@newest_version
async def test_batch_reads_bring_what_single_reads_bring_within_count_and_size(ask: Any, ours: InteropCluster) -> None:
    sizes = tuple(range(100, 160))
    async with ours.client() as client:
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await we_add(writer, sizes)
        await writer.close()
    opened = await ask("ledger.open", ledger=writer.ledger_id, recover=False)
    batch = partial(ask, "ledger.batch_read", handle=opened["handle"])
    everything = as_java_tells(payloads(sizes))
    assert await batch(first=0, count=60) == everything
    assert await batch(first=10, count=7) == everything[10:17]
    some = await batch(first=0, count=60, bytes=1000)
    assert 1 <= len(some) < 10
    assert some == everything[: len(some)]
    assert await batch(first=59, count=50, bytes=1) == everything[59:], "one entry always comes"
    with pytest.raises(JavaError):
        await batch(first=60, count=1)
    await ask("ledger.close", handle=opened["handle"])


async def test_entries_near_the_frame_limit_and_stripes_pass_in_version_2(ask: Any, ours: InteropCluster) -> None:
    for sizes, options in (
        ((NEAR_LIMIT_BYTES, 3, NEAR_LIMIT_BYTES), {}),
        (tuple(range(20, 60)), {"ensemble": 4, "write_quorum": 3, "ack_quorum": 2}),
    ):
        ledger = await java_creates(ask, **options)
        await java_adds(ask, ledger, sizes)
        await ask("ledger.close", handle=ledger["handle"])
        assert await java_reads(ask, ledger["ledger"]) == as_java_tells(payloads(sizes))
        async with ours.client() as client:
            assert await we_read(client, ledger["ledger"]) == payloads(sizes)


@newest_version
async def test_java_recovers_in_version_2_what_our_writer_left_open(ask: Any, ours: InteropCluster) -> None:
    async with ours.client() as client:
        writer = await client.create()
        adds = [writer.add(payload) for payload in payloads((500,) * 300)]
        await adds[20]
        opened = await ask("ledger.open", ledger=writer.ledger_id, recover=True)
        with pytest.raises(LedgerFencedError):
            await writer.add(b"too late")
        results = await asyncio.gather(*adds, return_exceptions=True)
        acknowledged = [result for result in results if isinstance(result, int)]
        assert opened["lac"] >= acknowledged[-1] >= 20
        assert await we_read(client, writer.ledger_id) == payloads((500,) * (opened["lac"] + 1))
        metadata = await ask("ledger.metadata", ledger=writer.ledger_id)
        assert (metadata["state"], metadata["last_entry"]) == ("CLOSED", opened["lac"])


@newest_version
async def test_we_recover_what_a_version_2_writer_has_under_way(ask: Any, ours: InteropCluster) -> None:
    ledger = await java_creates(ask)
    await ask("ledger.write", handle=ledger["handle"], count=20, size=2000)
    await ask("ledger.write", handle=ledger["handle"], first=20, count=2000, size=2000, wait=False)
    async with ours.client() as client:
        reader = await client.open(ledger["ledger"], recover=True)
        ended = await ask("ledger.write", handle=ledger["handle"], first=2020, count=1, size=2000)
        # The handle is closed once an add has met the fence; or, where all were stored before it, by the metadata.
        assert FENCED in ended["failed"] or len(ended["acknowledged"]) == 2020
        assert set(ended["failed"]) <= {FENCED, CLOSED}
        assert ended["failed"]
        assert reader.metadata.state is LedgerState.CLOSED
        assert reader.last_add_confirmed >= ended["acknowledged"][-1] >= 19
        assert await contents_of(reader) == payloads((2000,) * (reader.last_add_confirmed + 1))
        await reader.close()


async def test_a_version_2_reader_follows_a_tail_by_reading_the_lac(ask: Any, ours: InteropCluster) -> None:
    async with ours.client() as client:
        writer = await client.create()
        await we_add(writer, (10, 20, 30))
        opened = await ask("ledger.open", ledger=writer.ledger_id, recover=False)
        await we_add(writer, (40,), first=3)
        assert await ask("ledger.lac", handle=opened["handle"]) == 2
        entries = await ask("ledger.read", handle=opened["handle"], last=2)
        assert entries == as_java_tells(payloads((10, 20, 30)))
        await writer.close()
    assert len(await java_reads(ask, writer.ledger_id)) == 4


async def test_a_version_2_writer_survives_the_loss_of_a_node(ask: Any, ours: InteropCluster) -> None:
    ledger = await java_creates(ask)
    await java_adds(ask, ledger, (50,) * 5)
    lost = (await ask("ledger.metadata", ledger=ledger["ledger"]))["ensembles"]["0"][0]
    await ask("ledger.write", handle=ledger["handle"], first=5, count=200, size=50, wait=False)
    await asyncio.to_thread(ours.lose, lost)
    answer = await ask("ledger.write", handle=ledger["handle"], first=205, count=5, size=50)
    assert answer["acknowledged"] == list(range(210))
    await ask("ledger.close", handle=ledger["handle"])
    async with ours.client() as client:
        assert await we_read(client, ledger["ledger"]) == payloads((50,) * 210)
