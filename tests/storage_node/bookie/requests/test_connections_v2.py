"""Protocol version 2 on the port of version 3 (docs/reference/wire.md#version-2-packets)."""

from __future__ import annotations

import asyncio

import pytest
from helpers.bookie.harness import KEY, BookieCluster, entry
from helpers.bookie.wire_harness import HeldDisk, PacketClient
from helpers.reference_vectors import vectors

from storage_node.protocol import v2
from storage_node.protocol.digests import master_key
from storage_node.protocol.encoding import encode_read_request
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddResponse, AuthResponse, ReadResponse


async def start(cluster: BookieCluster, **settings: object) -> PacketClient:
    return await PacketClient.connect(cluster, await cluster.start(**settings))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- which version


async def test_the_two_versions_live_side_by_side_and_read_each_others_entries(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    three, two = await cluster.connect(bookie), await PacketClient.connect(cluster, bookie)
    assert await two.add(entry(5, 0)) == Status.EOK
    assert await three.add(entry(5, 1)) == Status.EOK
    assert bytes((await two.read(5, 1)).body or b"") == entry(5, 1)
    assert bytes((await three.read(5, 0)).body or b"") == entry(5, 0)
    assert (await three.read(5, 0)).max_lac == 0


async def test_a_connection_that_began_in_version_3_may_turn_to_version_2_once(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    three = await cluster.connect(bookie)
    await three.add(entry(5, 0))
    two = PacketClient()
    assert three.link is not None
    two.link = three.link
    three.frame_received = two.frame_received  # type: ignore[method-assign]
    assert bytes((await two.read(5, 0)).body or b"") == entry(5, 0)
    three.link.send(encode_read_request(9, 5, 0))
    await asyncio.wait_for(three.closed.wait(), 60)


async def test_after_the_first_packet_of_version_2_a_message_of_version_3_closes_the_connection(
    cluster: BookieCluster,
) -> None:
    client = await start(cluster)
    assert (await client.read(5, 0)).status == Status.ENOLEDGER
    client.send(encode_read_request(1, 5, 0))
    await asyncio.wait_for(client.closed.wait(), 60)


@pytest.mark.parametrize("opcode", [4, 5, 6, 0, 9])
async def test_opcodes_that_nobody_can_decode_drop_the_connection(cluster: BookieCluster, opcode: int) -> None:
    client = await start(cluster)
    assert await client.add(entry(5, 0)) == Status.EOK
    body = bytes([2, opcode, 0, 0]) + bytes(60)
    client.send(len(body).to_bytes(4, "big") + body)
    await asyncio.wait_for(client.closed.wait(), 60)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_versions_0_to_2_are_served_and_echoed(cluster: BookieCluster, version: int) -> None:
    client = await start(cluster)
    body = entry(5, 0)
    await client.ask(v2.encode_add_request(KEY, len(body), version=version), body)
    await client.ask(v2.encode_read_request(5, 0, version=version))
    expected = [b"\0\0\0\1", b"\0\0\0\2"] if version == 0 else [bytes([version, op, 0, 0]) for op in (1, 2)]
    assert [frame[:4] for frame in client.frames] == expected
    assert client.frames[1][24:] == body


async def test_a_later_version_is_refused_with_code_103_and_its_ids(cluster: BookieCluster) -> None:
    client = await start(cluster)
    body = entry(5, 0)
    for request in (
        v2.encode_read_request(5, -1),
        v2.encode_add_request(KEY, len(body)) + body,
        v2.encode_batch_read_request(5, 0, 3, max_count=1, max_bytes=100),
    ):
        client.send(request[:4] + b"\x07" + request[5:])
        frame = await client.frame()
        assert frame[:2] == b"\x07" + request[5:6]
        assert frame[2:8] == bytes.fromhex("0000 00000067")
        assert frame[8:16] == (5).to_bytes(8, "big")
    assert (await client.read(5, 0)).status == Status.ENOLEDGER, "the add was not stored, the connection lives on"


# ------------------------------------------------------------------------------------------- adds and reads


async def test_ids_are_echoed_exactly_also_for_the_last_entry_and_for_duplicates(cluster: BookieCluster) -> None:
    client = await start(cluster)
    for number in range(3):
        assert await client.add(entry(5, number)) == Status.EOK
    last = await client.read(5, -1)
    assert (last.status, bytes(last.body or b"")) == (Status.EOK, entry(5, 2))
    assert client.frames[-1][8:24] == (5).to_bytes(8, "big") + b"\xff" * 8
    client.send(*[v2.encode_read_request(5, 1)] * 3)
    assert [await client.answer() for _ in range(3)] == [ReadResponse(0, Status.EOK, 5, 1, memoryview(entry(5, 1)))] * 3
    client.send(*[v2.encode_add_request(KEY, len(entry(5, 1))) + entry(5, 1)] * 2)
    assert [await client.answer() for _ in range(2)] == [AddResponse(0, Status.EOK, 5, 1)] * 2


async def test_many_packets_in_one_burst_are_all_answered(cluster: BookieCluster) -> None:
    client = await start(cluster)
    for number in range(500):
        body = entry(5, number)
        client.send(v2.encode_add_request(KEY, len(body)), body)
    seen = [await client.answer() for _ in range(500)]
    assert seen == [AddResponse(0, Status.EOK, 5, number) for number in range(500)]


async def test_what_is_not_here_and_what_is_refused_has_its_code(cluster: BookieCluster) -> None:
    client = await start(cluster)
    assert await client.add(entry(5, 0)) == Status.EOK
    assert (await client.read(5, 1)).status == Status.ENOENTRY
    assert (await client.read(6, 0)).status == Status.ENOLEDGER
    assert await client.add(entry(5, 1), key=master_key(b"wrong")) == Status.EUA
    assert (await client.read(5, 0, fence=True, key=master_key(b"wrong"))).status == Status.EUA
    cut = entry(5, 1)[:20]
    assert await client.ask(v2.encode_add_request(KEY, len(cut)), cut) == AddResponse(0, Status.EBADREQ, 5, 1)
    negative = (5).to_bytes(8, "big") + b"\xff" * 8 + bytes(30)
    assert await client.add(negative) == Status.EBADREQ, "a negative entry id is refused"


async def test_a_fence_stops_adds_but_not_those_of_recovery(cluster: BookieCluster) -> None:
    client = await start(cluster)
    await client.add(entry(5, 0))
    fenced = await client.read(5, -1, fence=True)
    assert bytes(fenced.body or b"") == entry(5, 0)
    assert await client.add(entry(5, 1)) == Status.EFENCED
    assert await client.add(entry(5, 1), high=True) == Status.EFENCED
    assert await client.add(entry(5, 1), recovery=True) == Status.EOK
    assert (await client.read(7, -1, fence=True)).status == Status.ENOENTRY, "and fences what it did not know"
    assert await client.add(entry(7, 0)) == Status.EFENCED


async def test_a_fencing_read_of_version_1_has_no_key_and_is_refused(cluster: BookieCluster) -> None:
    client = await start(cluster)
    await client.add(entry(5, 0))
    answer = await client.ask(v2.encode_read_request(5, -1, fence=True, master_key=KEY, version=1))
    assert answer == ReadResponse(0, Status.EUA, 5, -1)


async def test_a_read_only_node_takes_adds_of_high_priority_alone(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await PacketClient.connect(cluster, bookie)
    await client.add(entry(5, 0))
    bookie.read_only = True
    assert await client.add(entry(5, 1)) == Status.EREADONLY
    assert await client.add(entry(5, 1), high=True) == Status.EOK
    assert (await client.read(5, 0)).status == Status.EOK


async def test_lost_state_is_said_with_code_101_not_107(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client, three = await PacketClient.connect(cluster, bookie), await cluster.connect(bookie)
    bookie.storage.contents.lossy = True
    await client.read(5, 0)
    assert client.frames[-1][4:8] == (101).to_bytes(4, "big")
    assert (await three.read(5, 0)).status == Status.EUNKNOWNLEDGERSTATE


async def test_who_begins_an_authentication_is_told_to_go_on(cluster: BookieCluster) -> None:
    client = await start(cluster)
    assert await client.ask(v2.encode_auth("anything", b"token")) == AuthResponse(
        0, Status.EOK, "AuthDisabledPlugin", b""
    )
    assert client.frames == [vectors("wire.md")["v2 AUTH (req or resp) AuthDisabledPlugin"][4:]]
    assert await client.add(entry(5, 0)) == Status.EOK


# ------------------------------------------------------------------------------------------- batch reads


async def filled(cluster: BookieCluster, sizes: list[int], **settings: object) -> tuple[PacketClient, list[bytes]]:
    client = await start(cluster, **settings)
    bodies = [entry(5, number, b"x" * size) for number, size in enumerate(sizes)]
    for body in bodies:
        assert await client.add(body) == Status.EOK
    return client, bodies


async def test_a_batch_ends_at_its_count_and_at_the_last_entry(cluster: BookieCluster) -> None:
    client, bodies = await filled(cluster, [10] * 6)
    two = await client.batch(5, 1, count=2)
    assert [bytes(one) for one in two.entries] == bodies[1:3]
    for count in (0, -1, 100):
        rest = await client.batch(5, 1, count=count)
        assert [bytes(one) for one in rest.entries] == bodies[1:]


async def test_a_batch_ends_at_the_first_entry_that_is_missing(cluster: BookieCluster) -> None:
    client, bodies = await filled(cluster, [10] * 3)
    await client.add(entry(5, 4))
    assert [bytes(one) for one in (await client.batch(5, 0)).entries] == bodies
    assert len((await client.batch(5, 4)).entries) == 1
    none = await client.batch(5, 3)
    assert (none.status, none.entries) == (Status.ENOENTRY, ())
    assert len(client.frames[-1]) == 32
    assert (await client.batch(6, 0)).status == Status.ENOLEDGER


async def test_a_batch_stays_within_the_size_that_was_asked_for_except_with_its_first_entry(
    cluster: BookieCluster,
) -> None:
    client, bodies = await filled(cluster, [100] * 4)
    frame = 36 + 2 * (4 + len(bodies[0]))
    assert len((await client.batch(5, 0, size=frame)).entries) == 2
    assert len(client.frames[-1]) + 4 == frame
    assert len((await client.batch(5, 0, size=frame - 1)).entries) == 1
    for size in (1, 0, -5):
        assert len((await client.batch(5, 0, size=size)).entries) == 1


async def test_a_batch_stays_within_the_limit_of_the_node(cluster: BookieCluster) -> None:
    client, bodies = await filled(cluster, [100] * 4, max_batch_read_size=36 + 3 * 144)
    assert [bytes(one) for one in (await client.batch(5, 0)).entries] == bodies[:3]


async def test_a_batch_of_the_last_entry_is_that_entry_alone(cluster: BookieCluster) -> None:
    client, bodies = await filled(cluster, [10] * 3)
    assert [bytes(one) for one in (await client.batch(5, -1, count=10)).entries] == bodies[-1:]


async def test_a_fencing_batch_read_fences_before_it_answers(cluster: BookieCluster) -> None:
    client, bodies = await filled(cluster, [10] * 3)
    assert [bytes(one) for one in (await client.batch(5, 0, fence=True)).entries] == bodies
    assert await client.add(entry(5, 3)) == Status.EFENCED
    assert (await client.batch(8, 0, fence=True)).status == Status.ENOENTRY
    assert await client.add(entry(8, 0)) == Status.EFENCED


async def test_batches_are_read_from_disk_and_stop_at_a_damaged_entry(cluster: BookieCluster) -> None:
    client, bodies = await filled(cluster, [5000] * 5)
    await cluster.stop(cluster.running[0][0])
    (log,) = cluster.ledger_files(".log")
    data = bytearray(log.read_bytes())
    at = data.index(bodies[3])
    data[at + 100] ^= 1
    log.write_bytes(data)
    client = await start(cluster)
    assert [bytes(one) for one in (await client.batch(5, 0)).entries] == bodies[:3]
    assert (await client.batch(5, 3)).status == Status.EIO
    assert [bytes(one) for one in (await client.batch(5, 4)).entries] == bodies[4:]


async def test_a_failed_fencing_read_also_waits_for_the_durable_fence(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    client = await PacketClient.connect(cluster, bookie)
    three = await cluster.connect(bookie)
    disk.holds.add("journal")
    client.send(v2.encode_read_request(5, -1, fence=True, master_key=KEY))
    client.send(v2.encode_batch_read_request(6, 0, 1, max_count=1, max_bytes=9, fence=True, master_key=KEY))
    fence = three.send_read(7, -1, key=KEY, fence=True)
    assert (await three.read(5, 0)).status == Status.ENOENTRY, "the ledger exists, so the fence was begun"
    while len(bookie.storage.ledgers) < 3:
        await three.read(6, 0)
    assert (client.frames, fence.done()) == ([], False)
    disk.release()
    assert {(await client.answer()).status for _ in range(2)} == {Status.ENOENTRY}
    assert (await fence).status == Status.ENOENTRY
