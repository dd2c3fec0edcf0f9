"""The ledger client against real bookies in this process: real sockets, real journals, metadata in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.bookie.nodes import SETTINGS, Nodes, running
from helpers.bookie.strangers import write_as_stranger
from helpers.security.minting import MintedAuthority, secured_by

from metadata.bookkeeper.ledger_metadata import DigestType, Ensemble, LedgerMetadata, LedgerState
from storage_node.client.reader import ReplicaReader
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerFencedError, LedgerRecoveryError, UnauthorizedAccessError
from storage_node.settings.bookie import MIB
from storage_node.settings.placement import PlacementSettings


@pytest.fixture(params=["plain", pytest.param("tls", marks=pytest.mark.long)])
async def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Nodes]:
    """Give four bookies: in plain, and in the long rounds under mutual TLS, where the same is promised."""
    made = Nodes(tmp_path)
    if request.param == "tls":
        authority = MintedAuthority()
        made.security = secured_by(authority.folder(tmp_path / "node", "node", roles=["node"], hosts=["127.0.0.1"]))
        made.client_security = secured_by(authority.folder(tmp_path / "client", "client", roles=["client"]))
    async with running(made):
        yield made


def payload(entry_id: int) -> bytes:
    return b"%08d" % entry_id * (1 + entry_id % 50)


@pytest.mark.parametrize("digest", DigestType)
async def test_a_ledger_is_written_closed_and_read_with_every_digest(nodes: Nodes, digest: DigestType) -> None:
    client = nodes.client()
    writer = await client.create(digest_type=digest, password=b"pw")
    futures = [writer.add(payload(i)) for i in range(500)]
    futures += [writer.add(b""), writer.add(bytes(3 * MIB))]
    assert await asyncio.gather(*futures) == list(range(502))
    metadata = await writer.close()
    reader = await nodes.client().open(writer.ledger_id, password=b"pw", recover=False)
    assert reader.metadata == metadata
    entries = await reader.read(0, 501)
    assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(500)] + [b"", bytes(3 * MIB)]
    assert entries[-1].length == reader.length


async def test_a_node_that_stops_in_the_middle_is_replaced_and_nothing_is_lost(nodes: Nodes) -> None:
    client = nodes.client()
    writer = await client.create()
    futures = [writer.add(payload(i)) for i in range(300)]
    await futures[20]
    await nodes.stop(writer.metadata.last_ensemble.bookies[0])
    futures += [writer.add(payload(i)) for i in range(300, 600)]
    assert await asyncio.gather(*futures) == list(range(600))
    await writer.close()
    assert len(writer.metadata.ensembles) >= 1
    reader = await nodes.client().open(writer.ledger_id, recover=True)
    assert [bytes(e.payload) for e in await reader.read(0, 599)] == [payload(i) for i in range(600)]


async def test_a_second_client_fences_the_writer_and_both_agree(nodes: Nodes) -> None:
    writer = await nodes.client().create()
    futures = [writer.add(payload(i)) for i in range(200)]
    await futures[10]
    reader = await nodes.client().open(writer.ledger_id, recover=True)
    results = await asyncio.gather(*futures, return_exceptions=True)
    acknowledged = [r for r in results if isinstance(r, int)]
    assert all(isinstance(r, LedgerFencedError) for r in results[len(acknowledged) :])
    assert reader.last_add_confirmed >= len(acknowledged) - 1
    entries = await reader.read(0, reader.last_add_confirmed)
    assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(len(entries))]
    if len(acknowledged) == 200:
        with pytest.raises(LedgerFencedError):
            await writer.add(b"after the fence")


async def test_a_fence_survives_a_restart_of_every_node(nodes: Nodes) -> None:
    writer = await nodes.client().create()
    await writer.add(b"one")
    await nodes.client().open(writer.ledger_id, recover=True)
    for name in writer.metadata.last_ensemble.bookies:
        await nodes.stop(name)
        await nodes.start(name)
    with pytest.raises(LedgerFencedError):
        await writer.add(b"two")


async def test_recovery_with_one_of_three_down_succeeds_and_with_two_down_never_closes_short(nodes: Nodes) -> None:
    writer = await nodes.client().create()
    for i in range(30):
        await writer.add(payload(i))
    a, b, _ = writer.metadata.last_ensemble.bookies
    await nodes.stop(a)
    await nodes.stop(b)
    with pytest.raises(LedgerRecoveryError):
        await nodes.client().open(writer.ledger_id, recover=True)
    assert (await nodes.ledgers.read(writer.ledger_id)).value.state is LedgerState.IN_RECOVERY
    await nodes.start(b)
    reader = await nodes.client().open(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 29
    assert [bytes(e.payload) for e in await reader.read(0, 29)] == [payload(i) for i in range(30)]


async def test_all_nodes_restart_and_a_long_lived_client_goes_on(nodes: Nodes) -> None:
    client = nodes.client()
    writer = await client.create()
    for i in range(20):
        await writer.add(payload(i))
    await writer.close()
    reader = await client.open(writer.ledger_id, recover=False)
    assert len(await reader.read(0, 19)) == 20
    for name in sorted(nodes.running):
        await nodes.stop(name)
    for i in range(4):
        await nodes.start(f"node-{i}")
    assert [bytes(e.payload) for e in await reader.read(0, 19)] == [payload(i) for i in range(20)]
    again = await client.create()
    assert await again.add(b"x") == 0
    await again.close()


async def test_a_tail_is_followed_by_long_poll_to_the_end(nodes: Nodes) -> None:
    writer = await nodes.client().create()
    reader = await nodes.client().open(writer.ledger_id, recover=False)

    async def produce() -> None:
        for i in range(100):
            await writer.add(payload(i))
        await writer.close()

    producing = asyncio.ensure_future(produce())
    seen = []
    while not (reader.closed and len(seen) > reader.last_add_confirmed):
        entry = await reader.poll(len(seen), 5_000)
        if entry is not None:
            seen.append(bytes(entry.payload))
    await producing
    assert seen == [payload(i) for i in range(100)]


async def test_executors_read_by_location_alone(nodes: Nodes) -> None:
    client = nodes.client()
    writer = await client.create(ensemble_size=4, write_quorum=3)
    await asyncio.gather(*(writer.add(payload(i)) for i in range(50)))
    await writer.close()
    location = await client.locate(writer.ledger_id)
    reader = ReplicaReader(settings=replace(SETTINGS, security=nodes.client_security))
    try:
        assert [bytes(e.payload) async for e in reader.entries(location, 10, 49)] == [payload(i) for i in range(10, 50)]
    finally:
        await reader.close()


async def test_where_metadata_names_no_password_the_nodes_refusals_end_no_ledger(nodes: Nodes) -> None:
    writer = await nodes.client().create(password=b"right")
    await writer.add(b"x")
    current = await nodes.ledgers.read(writer.ledger_id)
    nameless = replace(
        current.value, password=None, digest_type=None, creator_token=None, ctime_ms=None, format_version=2
    )
    written = await nodes.ledgers.write(writer.ledger_id, nameless, current.version)
    with pytest.raises(UnauthorizedAccessError):
        await nodes.client().open(writer.ledger_id, password=b"other", recover=True)
    assert not (await nodes.ledgers.read(writer.ledger_id)).value.is_closed
    assert written.version


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_ids_that_strangers_wrote_under_are_passed_over_and_such_ledgers_recovered(
    nodes: Nodes, count: int
) -> None:
    taken = [bookie.address for bookie, _ in list(nodes.running.values())[:count]]
    await write_as_stranger(taken, range(100), nodes.client_security)
    client = nodes.client()
    deserted = await client.create()
    await deserted.abandon()

    async def make() -> LedgerWriter:
        writer = await client.create()
        writer.replace_with(make)
        return writer

    for _ in range(5):
        writer = await make()
        assert await asyncio.gather(*[writer.add(payload(i)) for i in range(40)]) == list(range(40))
        await writer.close()
        reader = await nodes.client().open(writer.ledger_id, recover=False)
        assert [bytes(e.payload) for e in await reader.read(0, 39)] == [payload(i) for i in range(40)]
    reader = await nodes.client().open(deserted.ledger_id, recover=True)
    assert (reader.closed, reader.last_add_confirmed) == (True, -1)


async def test_a_node_says_that_a_ledger_has_another_key_only_once_that_is_on_its_disk_d19(nodes: Nodes) -> None:
    name, (bookie, _) = next(iter(nodes.running.items()))
    client = nodes.client()
    await (await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)).close()  # every node is known
    journal = bookie.storage.journal.of(7)
    holding = asyncio.Event()
    reached = journal.durable

    async def held() -> None:
        await holding.wait()
        await reached()

    journal.durable = held  # type: ignore[method-assign]
    await write_as_stranger([bookie.address], [7], nodes.client_security)
    await nodes.ledgers.create(7, LedgerMetadata(1, 1, 1, (Ensemble(0, (name,)),)))
    opening = asyncio.ensure_future(client.open(7, recover=True))
    done, _ = await asyncio.wait([opening], timeout=0.5)
    assert not done
    holding.set()
    assert (await opening).last_add_confirmed == -1


async def test_a_node_that_may_have_forgotten_a_ledger_never_says_that_it_has_another_key_i11(nodes: Nodes) -> None:
    name, (bookie, _) = next(iter(nodes.running.items()))
    await write_as_stranger([bookie.address], [7], nodes.client_security)
    bookie.storage.contents.lossy = True  # as after an unclean start
    await nodes.ledgers.create(7, LedgerMetadata(1, 1, 1, (Ensemble(0, (name,)),)))
    with pytest.raises(LedgerRecoveryError, match="nothing was cut off"):
        await nodes.client().open(7, recover=True)
    assert not (await nodes.ledgers.read(7)).value.is_closed


async def test_nodes_are_asked_for_their_free_space_where_it_weighs(nodes: Nodes) -> None:
    placement = PlacementSettings(disk_weight_based_placement_enabled=True, get_bookie_info_timeout_s=1)
    client = nodes.client(replace(SETTINGS, placement=placement))
    asked = set()
    nodes.running["node-1"][0].disk_space = lambda: (asked.add("node-1"), (1000, 1))[1]  # type: ignore[method-assign]
    for _ in range(5):
        writer = await client.create()
        assert "node-1" not in writer.metadata.last_ensemble.bookies, "one byte against all the others' room"
        assert await writer.add(b"x") == 0
    assert asked == {"node-1"}
