"""Ledgers between the Java BookKeeper client and ours, on storage nodes of ours and on real bookies."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from helpers.interop.clusters import InteropCluster, both_versions
from helpers.interop.java_tool import described, make_payload
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
    java_sees,
    payloads,
    restored,
    we_add,
    we_read,
)
from helpers.waiting import until

from dlspark.testing.java_process import JavaError, JavaTool
from metadata.bookkeeper.ledger_metadata import DigestType, LedgerMetadata, LedgerState
from metadata.foundation.errors import NoNodeError
from storage_node.client.placement.ledger_rules import CUSTOM_KEY, LedgerRule, rule_of
from storage_node.errors import LedgerFencedError, LedgerRecoveryError, UnauthorizedAccessError
from storage_node.settings.client import ClientSettings

NO_SUCH_LEDGER = -7
NO_SUCH_LEDGER_IN_METADATA = -25


@both_versions
@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "MAC", "DUMMY"])
async def test_a_ledger_written_by_java_is_read_by_both(
    java: JavaTool, either_cluster: InteropCluster, digest: str
) -> None:
    ask = either_cluster.on(java)
    ledger = await java_creates(ask, digest=digest, password="secret", custom={"application": "interop"})
    await java_adds(ask, ledger, SIZES)
    await ask("ledger.close", handle=ledger["handle"])
    assert await java_reads(ask, ledger["ledger"], digest=digest, password="secret") == as_java_tells(payloads(SIZES))
    async with either_cluster.client() as client:
        reader = await client.open(ledger["ledger"], password=b"secret", recover=False)
        assert reader.closed
        assert reader.length == sum(SIZES)
        assert reader.metadata.custom == {"application": b"interop"}
        assert await contents_of(reader) == payloads(SIZES)
        await reader.close()


@both_versions
@pytest.mark.parametrize("digest", list(DigestType), ids=lambda digest: digest.name)
async def test_a_ledger_written_by_us_is_read_by_both(
    java: JavaTool, either_cluster: InteropCluster, digest: DigestType
) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        writer = await client.create(digest_type=digest, password=b"secret", custom={"application": b"interop"})
        assert await we_add(writer, SIZES) == list(range(len(SIZES)))
        await writer.close()
        assert await we_read(client, writer.ledger_id, password=b"secret") == payloads(SIZES)
    java_name = "MAC" if digest is DigestType.HMAC else digest.name
    entries = await java_reads(ask, writer.ledger_id, digest=java_name, password="secret")
    assert entries == as_java_tells(payloads(SIZES))
    metadata = await ask("ledger.metadata", ledger=writer.ledger_id)
    assert metadata["state"] == "CLOSED"
    assert (metadata["last_entry"], metadata["length"]) == (len(SIZES) - 1, sum(SIZES))
    assert metadata["custom"] == {"application": "interop"}
    assert metadata["digest"] == java_name


async def test_entries_near_the_frame_limit_pass_both_ways(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask, sizes = either_cluster.on(java), (NEAR_LIMIT_BYTES, 3, NEAR_LIMIT_BYTES)
    ledger = await java_creates(ask)
    await java_adds(ask, ledger, sizes)
    await ask("ledger.close", handle=ledger["handle"])
    async with either_cluster.client() as client:
        assert await we_read(client, ledger["ledger"]) == payloads(sizes)
        writer = await client.create()
        await we_add(writer, sizes)
        await writer.close()
    assert await java_reads(ask, writer.ledger_id) == as_java_tells(payloads(sizes))


async def test_entries_striped_over_four_nodes_pass_both_ways(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask, sizes = either_cluster.on(java), tuple(range(20, 60))
    ledger = await java_creates(ask, ensemble=4, write_quorum=3, ack_quorum=2)
    await java_adds(ask, ledger, sizes)
    await ask("ledger.close", handle=ledger["handle"])
    async with either_cluster.client() as client:
        assert await we_read(client, ledger["ledger"]) == payloads(sizes)
        writer = await client.create(ensemble_size=4, write_quorum=3, ack_quorum=2)
        await we_add(writer, sizes)
        await writer.close()
    assert await java_reads(ask, writer.ledger_id) == as_java_tells(payloads(sizes))


@both_versions
async def test_java_recovers_a_ledger_while_our_writer_has_adds_under_way(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        writer = await client.create()
        adds = [writer.add(make_payload(0, index, 2000)) for index in range(50)]
        await adds[10]
        recovery = asyncio.ensure_future(ask("ledger.open", ledger=writer.ledger_id, recover=True))
        while not recovery.done():
            if len(adds) < 5000 and writer.error is None:  # it can be fenced with nothing under way
                adds.append(writer.add(make_payload(0, len(adds), 2000)))
            await asyncio.sleep(0.001)
        with pytest.raises(LedgerFencedError):
            await writer.add(b"too late")
        results = await asyncio.gather(*adds, return_exceptions=True)
        opened = await recovery
        acknowledged = [result for result in results if isinstance(result, int)]
        refused = [result for result in results if not isinstance(result, int)]
        assert acknowledged == list(range(len(acknowledged)))
        assert all(isinstance(error, LedgerFencedError) for error in refused), refused
        assert opened["lac"] >= acknowledged[-1]
        # Upstream takes the length from the last stored entry that it saw, also where that entry turns out to have
        # been on too few nodes to be recovered: it may then say too much, never too little. (Ours measures.)
        assert 2000 * (opened["lac"] + 1) <= opened["length"] <= 2000 * len(adds)
        assert await we_read(client, writer.ledger_id) == payloads((2000,) * (opened["lac"] + 1))
    assert len(await java_reads(ask, writer.ledger_id)) == opened["lac"] + 1
    metadata = await ask("ledger.metadata", ledger=writer.ledger_id)
    assert (metadata["state"], metadata["last_entry"]) == ("CLOSED", opened["lac"])


@both_versions
async def test_a_ledger_s_rule_over_regions_outlives_a_recovery_by_java(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    ask, rule = either_cluster.on(java), LedgerRule(2, by_acknowledgements=True, regions=("eu", "us", "ap"))
    async with either_cluster.client() as client:
        writer = await client.create(custom={CUSTOM_KEY: rule.encode(), "application": b"interop"})
        await we_add(writer, SIZES)
        await writer.abandon()
        await ask("ledger.open", ledger=writer.ledger_id, recover=True)
        metadata = await ask("ledger.metadata", ledger=writer.ledger_id)
        assert metadata["state"] == "CLOSED"
        assert metadata["custom"] == {CUSTOM_KEY: rule.encode().decode(), "application": "interop"}
        reader = await client.open(writer.ledger_id, recover=False)
        assert rule_of(reader.metadata) == rule
        assert await contents_of(reader) == payloads(SIZES)
        await reader.close()


async def test_we_recover_a_ledger_while_the_java_writer_has_adds_under_way(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    ask = either_cluster.on(java)
    ledger = await java_creates(ask)
    await ask("ledger.write", handle=ledger["handle"], first=0, count=20, size=2000)
    await ask("ledger.write", handle=ledger["handle"], first=20, count=3000, size=2000, wait=False)
    async with either_cluster.client() as client:
        reader = await client.open(ledger["ledger"], recover=True)
        ended = await ask("ledger.write", handle=ledger["handle"], first=3020, count=1, size=2000)
        assert ended["acknowledged"] == list(range(len(ended["acknowledged"])))
        assert len(ended["acknowledged"]) >= 20
        # The handle is closed once an add has met the fence; or, where all were stored before it, by the metadata.
        assert FENCED in ended["failed"] or len(ended["acknowledged"]) == 3020
        assert set(ended["failed"]) <= {FENCED, CLOSED}
        assert ended["failed"]
        assert reader.metadata.state is LedgerState.CLOSED
        assert reader.last_add_confirmed >= ended["acknowledged"][-1]
        assert await contents_of(reader) == payloads((2000,) * (reader.last_add_confirmed + 1))
        await reader.close()


async def test_a_ledger_of_a_killed_java_writer_is_recovered_by_us(
    victim: JavaTool, either_cluster: InteropCluster
) -> None:
    ask = either_cluster.on(victim)
    ledger = await java_creates(ask)
    answer = await ask("ledger.write", handle=ledger["handle"], count=25, size=300)
    await ask("ledger.write", handle=ledger["handle"], first=25, count=2000, size=300, wait=False)
    victim.kill()
    async with either_cluster.client() as client:
        recovered = await we_read(client, ledger["ledger"])
        assert len(recovered) > answer["acknowledged"][-1]
        assert recovered == payloads((300,) * len(recovered))
        assert await we_read(client, ledger["ledger"]) == recovered


async def test_two_recoveries_at_once_agree_on_the_end(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        writer = await client.create()
        adds = [writer.add(make_payload(0, index, 500)) for index in range(200)]
        await adds[50]
        first, second, third = await asyncio.gather(
            ask("ledger.open", ledger=writer.ledger_id, recover=True),
            client.open(writer.ledger_id, recover=True),
            ask("ledger.open", ledger=writer.ledger_id, recover=True),
        )
        results = await asyncio.gather(*adds, return_exceptions=True)
        acknowledged = [result for result in results if isinstance(result, int)]
        assert first["lac"] == second.last_add_confirmed == third["lac"] >= acknowledged[-1]
        assert first["length"] == second.length == third["length"]
        await second.close()


async def test_a_recovery_and_the_writer_s_close_at_once_agree_on_the_end(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    """Whoever writes the closing metadata, the ledger ends where the writer was acknowledged."""
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        for _ in range(3):
            ours = await client.create()
            theirs = await java_creates(ask)
            await we_add(ours, (50,) * 20)
            await ask("ledger.write", handle=theirs["handle"], count=20, size=50)
            closed, by_java, by_us, java_closed = await asyncio.gather(
                ours.close(),
                ask("ledger.open", ledger=ours.ledger_id, recover=True),
                client.open(theirs["ledger"], recover=True),
                ask("ledger.close", handle=theirs["handle"]),
                return_exceptions=True,
            )
            # A close that comes second is told so: by the end that it agrees with, or as fenced.
            assert isinstance(closed, (LedgerMetadata, LedgerFencedError)), closed
            assert isinstance(java_closed, (dict, JavaError)), java_closed
            assert by_java["lac"] == by_us.last_add_confirmed == 19
            assert by_java["length"] == by_us.length == 1000
            await by_us.close()
            for ledger_id in (ours.ledger_id, theirs["ledger"]):
                assert await we_read(client, ledger_id) == payloads((50,) * 20)
                metadata = await ask("ledger.metadata", ledger=ledger_id)
                assert (metadata["state"], metadata["last_entry"], metadata["length"]) == ("CLOSED", 19, 1000)


async def test_recovery_succeeds_with_one_node_down(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask, sizes = either_cluster.on(java), (100,) * 10
    async with either_cluster.client() as client:
        by_java, by_us = await client.create(), await client.create()
        for writer in (by_java, by_us):
            await we_add(writer, sizes)
        shared = set(by_java.metadata.last_ensemble.bookies) & set(by_us.metadata.last_ensemble.bookies)
        await asyncio.to_thread(either_cluster.lose, min(shared))
        opened = await ask("ledger.open", ledger=by_java.ledger_id, recover=True)
        assert (opened["lac"], opened["length"]) == (9, 1000)
        assert await we_read(client, by_us.ledger_id) == payloads(sizes)
        assert await java_reads(ask, by_us.ledger_id) == as_java_tells(payloads(sizes))
        assert await we_read(client, by_java.ledger_id) == payloads(sizes)


async def test_recovery_with_two_nodes_down_fails_and_closes_nothing_short(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    ask, sizes = either_cluster.on(java), (100,) * 10
    async with either_cluster.client() as client:
        writer = await client.create()
        await we_add(writer, sizes)
        for bookie in writer.metadata.last_ensemble.bookies[:2]:
            await asyncio.to_thread(either_cluster.lose, bookie)
        with pytest.raises(JavaError):
            await ask("ledger.open", ledger=writer.ledger_id, recover=True)
        with pytest.raises(LedgerRecoveryError):
            await client.open(writer.ledger_id, recover=True)
        assert (await ask("ledger.metadata", ledger=writer.ledger_id))["state"] == "IN_RECOVERY"
        await restored(java, either_cluster, client)
        assert await we_read(client, writer.ledger_id) == payloads(sizes)
        assert await java_reads(ask, writer.ledger_id) == as_java_tells(payloads(sizes))


async def test_java_survives_the_loss_of_a_node_in_mid_stream(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask = either_cluster.on(java)
    ledger = await java_creates(ask)
    await java_adds(ask, ledger, (50,) * 10)
    before = await ask("ledger.metadata", ledger=ledger["ledger"])
    lost = before["ensembles"]["0"][1]
    await ask("ledger.write", handle=ledger["handle"], first=10, count=500, size=50, wait=False)
    await asyncio.to_thread(either_cluster.lose, lost)
    ensembles, count = before["ensembles"], 510
    while len(ensembles) == 1 and count < 5_000:  # it may hear of the loss only after two others have acknowledged
        answer = await ask("ledger.write", handle=ledger["handle"], first=count, count=10, size=50)
        count += 10
        assert answer["acknowledged"] == list(range(count))
        ensembles = (await ask("ledger.metadata", ledger=ledger["ledger"]))["ensembles"]
    await ask("ledger.close", handle=ledger["handle"])
    assert len(ensembles) == 2
    assert lost not in max(ensembles.items(), key=lambda item: int(item[0]))[1]
    async with either_cluster.client() as client:
        assert await we_read(client, ledger["ledger"]) == payloads((50,) * count)
    assert await java_reads(ask, ledger["ledger"]) == as_java_tells(payloads((50,) * count))


async def test_we_survive_the_loss_of_a_node_in_mid_stream(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        writer = await client.create()
        await we_add(writer, (50,) * 10)
        lost = writer.metadata.last_ensemble.bookies[1]
        adds = [writer.add(make_payload(0, index, 50)) for index in range(10, 510)]
        await asyncio.to_thread(either_cluster.lose, lost)
        adds += [writer.add(make_payload(0, index, 50)) for index in range(510, 520)]
        assert list(await asyncio.gather(*adds)) == list(range(10, 520))
        metadata = await writer.close()
        assert len(metadata.ensembles) == 2
        assert lost not in metadata.last_ensemble.bookies
        assert await we_read(client, writer.ledger_id) == payloads((50,) * 520)
    assert await java_reads(ask, writer.ledger_id) == as_java_tells(payloads((50,) * 520))


async def test_we_follow_the_tail_of_a_java_writer(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask = either_cluster.on(java)
    ledger = await java_creates(ask)
    async with either_cluster.client() as client:
        reader = await client.open(ledger["ledger"], recover=False)
        assert reader.last_add_confirmed == -1
        assert await reader.poll(0, 200) is None
        waiting = asyncio.ensure_future(reader.poll(0, 30_000))
        await java_adds(ask, ledger, (10, 20))
        entry = await waiting
        assert entry is not None
        assert bytes(entry.payload) == make_payload(0, 0, 10)
        assert reader.last_add_confirmed >= 0
        waiting = asyncio.ensure_future(reader.poll(2, 30_000))
        await java_adds(ask, ledger, (30,), first=2)
        await ask("ledger.close", handle=ledger["handle"])
        entry = await waiting
        if entry is None:  # woken by the closing rather than by an entry
            assert reader.closed
            entry = (await reader.read(2, 2))[0]
        assert bytes(entry.payload) == make_payload(0, 2, 30)
        await reader.close()


async def test_java_follows_the_tail_of_our_writer(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        writer = await client.create()
        await writer.add(make_payload(0, 0, 40))  # nodes learn of a ledger by its first entry
        opened = await ask("ledger.open", ledger=writer.ledger_id, recover=False)
        waiting = asyncio.ensure_future(ask("ledger.poll", handle=opened["handle"], entry=0, timeout_ms=4000))
        for index in (1, 2):  # one by one: each add carries the LAC of those before
            await writer.add(make_payload(0, index, 40))
        found = await waiting
        assert found["lac"] >= 0
        assert {key: found[key] for key in ("entry", "size", "crc32", "payload")} == {
            "entry": 0,
            **described(make_payload(0, 0, 40)),
        }
        assert await ask("ledger.lac", handle=opened["handle"]) == 1
        await writer.close()
    assert len(await java_reads(ask, writer.ledger_id, recover=False)) == 3


async def test_an_explicit_lac_written_by_java_shows_the_last_entry_to_both(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    ask = either_cluster.on(java)
    ledger = await java_creates(ask, settings={"explicitLacInterval": 50})
    await java_adds(ask, ledger, (10, 20, 30))
    opened = await ask("ledger.open", ledger=ledger["ledger"], recover=False)
    async with either_cluster.client() as client:
        reader = await client.open(ledger["ledger"], recover=False)

        async def we_see_it() -> None:
            while await reader.read_last_confirmed() < 2:
                await reader.poll(reader.last_add_confirmed + 1, 200)

        await asyncio.wait_for(we_see_it(), 60)
        await until(partial(java_sees, ask, opened["handle"], 2), "Java sees the LAC", every_s=0.02)
        assert await contents_of(reader) == payloads((10, 20, 30))
        await reader.close()
    await ask("ledger.close", handle=ledger["handle"])


async def test_an_explicit_lac_written_by_us_shows_the_last_entry_to_java(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client(ClientSettings(explicit_lac_interval_ms=50)) as client:
        writer = await client.create()
        await we_add(writer, (10, 20, 30))
        opened = await ask("ledger.open", ledger=writer.ledger_id, recover=False)
        await until(partial(java_sees, ask, opened["handle"], 2), "Java sees the LAC", every_s=0.02)
        assert await ask("ledger.read", handle=opened["handle"], last=2) == as_java_tells(payloads((10, 20, 30)))
        await writer.close()


async def test_we_force_a_ledger_whose_adds_are_acknowledged_before_their_sync(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        writer = await client.create(deferred_sync=True)
        assert await we_add(writer, (10,) * 5) == list(range(5))
        assert writer.last_add_confirmed == -1
        assert await writer.force() == writer.last_add_confirmed == 4
        assert (await writer.close()).last_entry == 4
        assert await java_reads(ask, writer.ledger_id) == as_java_tells(payloads((10,) * 5))


async def test_java_forces_a_ledger_whose_adds_are_acknowledged_before_their_sync(
    java: JavaTool, either_cluster: InteropCluster
) -> None:
    ask = either_cluster.on(java)
    ledger = await ask("ledger.create_deferred")
    answer = await ask("ledger.write_deferred", handle=ledger["handle"], count=5, size=10)
    assert answer == {"before": -1, "after": 4}
    async with either_cluster.client() as client:
        assert await we_read(client, ledger["ledger"]) == payloads((10,) * 5)


async def test_an_empty_ledger_closes_and_recovers_alike(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        closed, left = await client.create(), await client.create()
        assert (await closed.close()).last_entry == -1
        for writer in (closed, left):
            opened = await ask("ledger.open", ledger=writer.ledger_id, recover=True)
            assert (opened["lac"], opened["length"], opened["closed"]) == (-1, 0, True)
        java_left = await java_creates(ask)
        assert await we_read(client, java_left["ledger"]) == []
        with pytest.raises(LedgerFencedError):
            await left.add(b"too late")


async def test_a_fence_survives_the_restart_of_every_node(java: JavaTool, ours: InteropCluster) -> None:
    ask = ours.on(java)
    ledger = await java_creates(ask)
    async with ours.client() as client:
        reader = await client.open(ledger["ledger"], recover=True)
        await reader.close()
    for bookie in ours.bookies:
        await asyncio.to_thread(ours.lose, bookie)
    await restored(java, ours)
    late = await ask("ledger.write", handle=ledger["handle"], count=1, size=10)
    assert (late["acknowledged"], late["failed"]) == ([], [FENCED])


async def test_a_wrong_password_is_refused_by_both(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask = either_cluster.on(java)
    ledger = await java_creates(ask, password="right")
    await java_adds(ask, ledger, (10,))
    await ask("ledger.close", handle=ledger["handle"])
    async with either_cluster.client() as client:
        with pytest.raises(UnauthorizedAccessError):
            await client.open(ledger["ledger"], password=b"wrong", recover=False)
        writer = await client.create(password=b"right")
        await we_add(writer, (10,))
        await writer.close()
    with pytest.raises(JavaError) as refused:
        await ask("ledger.open", ledger=writer.ledger_id, password="wrong", recover=False)
    assert refused.value.code == UNAUTHORIZED


async def test_ledgers_are_listed_and_deleted_by_both(java: JavaTool, either_cluster: InteropCluster) -> None:
    ask = either_cluster.on(java)
    async with either_cluster.client() as client:
        writer = await client.create()
        await writer.close()
        ledger = await java_creates(ask)
        await ask("ledger.close", handle=ledger["handle"])
        assert {writer.ledger_id, ledger["ledger"]} <= set(await ask("ledger.ids"))
        await client.delete(ledger["ledger"])
        await ask("ledger.delete", ledger=writer.ledger_id)
        assert not {writer.ledger_id, ledger["ledger"]} & set(await ask("ledger.ids"))
        with pytest.raises(NoNodeError):
            await client.open(writer.ledger_id, recover=False)
    with pytest.raises(JavaError) as missing:
        await ask("ledger.open", ledger=ledger["ledger"], recover=False)
    assert missing.value.code in (NO_SUCH_LEDGER, NO_SUCH_LEDGER_IN_METADATA)


@both_versions
async def test_our_nodes_tell_java_their_disk_space(java: JavaTool, ours: InteropCluster) -> None:
    sizes = await ours.on(java)("ledger.info")
    assert set(sizes) == set(ours.bookies)
    assert all(0 < free <= total for free, total in sizes.values())
