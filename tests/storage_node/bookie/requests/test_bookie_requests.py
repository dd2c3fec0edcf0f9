"""Requests and answers over real sockets (docs/reference/wire.md#bookie-promises)."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from helpers.bookie.harness import DIGEST, KEY, BookieCluster, WireClient, entry

from storage_node.protocol.digests import master_key
from storage_node.protocol.encoding import (
    encode_add_request,
    encode_auth_request,
    encode_bookie_info_request,
    encode_force_ledger_request,
    encode_list_entries_request,
    encode_read_request,
    encode_start_tls_request,
)
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.values import BookieInfoResponse, ErrorResponse, ListEntriesResponse, ReadResponse


async def test_added_entries_are_read_back_with_the_lac_they_told_of(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    for number in range(4):
        assert await client.add(entry(5, number)) == Status.EOK
    answer = await client.read(5, 1)
    assert (answer.status, answer.entry_id, answer.max_lac) == (Status.EOK, 1, 2)
    assert bytes(answer.body or b"") == entry(5, 1)
    last = await client.read(5, -1)
    assert (last.status, last.entry_id) == (Status.EOK, -1)
    assert bytes(last.body or b"") == entry(5, 3)


async def test_many_adds_in_flight_are_all_acknowledged_and_committed_in_groups(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    answers = await asyncio.gather(*(client.send_add(entry(5, number)) for number in range(2000)))
    assert {answer.status for answer in answers} == {Status.EOK}
    assert bookie.storage.journal.commits < 1000
    assert bytes((await client.read(5, 1999)).body or b"") == entry(5, 1999)


async def test_large_and_small_entries_survive_side_by_side(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    sizes = [0, 1, 100_000, 3, 1_000_000, 65_000, 5_200_000, 40, 66_000]
    bodies = [entry(6, number, bytes([number]) * size) for number, size in enumerate(sizes)]
    answers = await asyncio.gather(*(client.send_add(body) for body in bodies))
    assert {answer.status for answer in answers} == {Status.EOK}
    for number, body in enumerate(bodies):
        assert bytes((await client.read(6, number)).body or b"") == body


async def test_what_is_not_here_is_named_exactly(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    await client.add(entry(5, 0))
    assert (await client.read(5, 1)).status == Status.ENOENTRY
    assert (await client.read(9, 0)).status == Status.ENOLEDGER
    assert (await client.read(9, -1)).status == Status.ENOLEDGER
    assert (await client.read(5, -7)).status == Status.ENOENTRY
    assert (await client.read_lac(9)).status == Status.ENOENTRY


async def test_another_key_is_refused_for_adds_fences_and_lacs(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    await client.add(entry(5, 0))
    wrong = master_key(b"wrong")
    assert await client.add(entry(5, 1), key=wrong) == Status.EUA
    assert await client.add(entry(5, 1), key=wrong, recovery=True) == Status.EUA
    assert (await client.fence(5, key=wrong)).status == Status.EUA
    assert await client.write_lac(5, 0, key=wrong) == Status.EUA
    unkeyed = await client.send_read(5, 0, fence=True)
    assert unkeyed.status == Status.EUA
    assert await client.add(entry(5, 1)) == Status.EOK, "the refusals have not fenced it"


async def test_a_fence_stops_adds_but_not_recovery(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    await client.add(entry(5, 0))
    fenced = await client.fence(5)
    assert (fenced.status, fenced.max_lac) == (Status.EOK, None)
    assert bytes(fenced.body or b"") == entry(5, 0)
    assert await client.add(entry(5, 1)) == Status.EFENCED
    assert await client.add(entry(5, 1), recovery=True) == Status.EOK
    assert await client.add(entry(6, 0)) == Status.EOK
    assert (await client.read(5, 1)).status == Status.EOK


async def test_a_fence_of_an_unknown_ledger_creates_it_and_answers_no_entry(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    assert (await client.fence(5)).status == Status.ENOENTRY
    assert await client.add(entry(5, 0)) == Status.EFENCED
    assert (await client.read(5, 0)).status == Status.ENOENTRY


async def test_adds_and_a_fence_in_one_burst_split_exactly_at_the_fence(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    writer, recoverer = await cluster.connect(bookie), await cluster.connect(bookie)
    await writer.add(entry(5, 0))
    adds = [writer.send_add(entry(5, number)) for number in range(1, 300)]
    fence = recoverer.send_read(5, -1, key=KEY, fence=True)
    answers = await asyncio.gather(*adds)
    body = (await fence).body
    statuses = [answer.status for answer in answers]
    accepted = statuses.count(Status.EOK)
    assert statuses == [Status.EOK] * accepted + [Status.EFENCED] * (299 - accepted)
    last = await recoverer.read(5, -1)
    assert bytes(last.body or b"") == entry(5, accepted), "nothing came in after the fence (I5)"
    assert body is not None


async def test_duplicate_adds_are_all_acknowledged_and_the_last_copy_is_read(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    first, second = entry(5, 0), entry(5, 0, lac=-1)
    assert [await client.add(body) for body in (first, first, second)] == [Status.EOK] * 3
    assert bytes((await client.read(5, 0)).body or b"") == second


async def test_ids_come_from_the_body_and_malformed_bodies_are_bad_requests(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    negative = struct.pack(">qqqq", 5, -0x2000, -1, 0) + bytes(8)
    negative_ledger = struct.pack(">qqqq", -5, 0, -1, 0) + bytes(8)
    for body in (b"", b"x" * 23, negative, negative_ledger):
        assert await client.add(body) == Status.EBADREQ
    body = entry(8, 2)
    answer = await client.ask(lambda txn: b"".join((encode_add_request(txn, 5, 0, KEY, len(body))[0], body)))
    assert (answer.status, getattr(answer, "ledger_id", None)) == (Status.EOK, 5)
    assert (await client.read(8, 2)).status == Status.EOK
    assert (await client.read(5, 0)).status == Status.ENOLEDGER


async def test_explicit_lacs_are_kept_and_raise_the_lac(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    await client.add(entry(5, 0))
    assert await client.write_lac(5, 0) == Status.EOK
    answer = await client.read_lac(5)
    assert answer.status == Status.EOK
    assert bytes(answer.lac_body or b"") == DIGEST.package_lac(5, 0)
    assert bytes(answer.last_entry_body or b"") == entry(5, 0)
    assert (await client.read(5, 0)).max_lac == 0
    assert await client.write_lac(7, 3) == Status.EOK
    alone = await client.read_lac(7)
    assert (alone.status, alone.last_entry_body) == (Status.EOK, None)
    await client.fence(5)
    assert await client.write_lac(5, 0) == Status.EOK, "a fence does not refuse explicit LACs"


async def test_force_info_list_auth_tls_and_unknown_operations_are_answered(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    for number in (0, 1, 2, 7):
        await client.add(entry(5, number))
    assert (await client.ask(lambda t: encode_force_ledger_request(t, 5))).status == Status.EOK
    info = await client.ask(encode_bookie_info_request)
    assert isinstance(info, BookieInfoResponse)
    assert 0 < (info.free_disk_space or 0) <= (info.total_disk_capacity or 0)
    partial_info = await client.ask(lambda t: encode_bookie_info_request(t, 2))
    assert isinstance(partial_info, BookieInfoResponse)
    assert partial_info.total_disk_capacity is None
    listed = await client.ask(lambda t: encode_list_entries_request(t, 5))
    assert isinstance(listed, ListEntriesResponse)
    assert listed.availability is not None
    assert len(listed.availability) == 64 + 2 * 24
    unlisted = await client.ask(lambda t: encode_list_entries_request(t, 6))
    assert unlisted.status == Status.ENOLEDGER
    auth = await client.ask(lambda t: encode_auth_request(t, "anything", b"token"))
    assert (auth.status, getattr(auth, "plugin", None)) == (Status.EOK, "AuthDisabledPlugin")
    tls = await client.ask(encode_start_tls_request)
    assert tls == ErrorResponse(Operation.START_TLS, tls.txn_id, Status.EBADREQ)
    for operation in (3, 4, 12):
        frame = b"\x0a\x06\x08\x03\x10" + bytes([operation]) + b"\x18"
        answer = await client.ask(lambda t, f=frame: struct.pack(">i", len(f) + 1) + f + bytes([t]))  # type: ignore[misc]
        assert answer.status == Status.EBADREQ
    old = await client.ask(lambda t: encode_read_request(t, 5, 0).replace(b"\x08\x03\x10\x01", b"\x08\x02\x10\x01"))
    assert old.status == Status.EBADVERSION


# ------------------------------------------------------------------------------------------- long polls


async def test_a_long_poll_wakes_when_the_lac_moves_on(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    writer, reader = await cluster.connect(bookie), await cluster.connect(bookie)
    await writer.add(entry(5, 0))
    poll = reader.send_poll(5, -1, 3_600_000)
    await reader.read(5, 0)
    assert not poll.done()
    await writer.add(entry(5, 1))
    answer = await asyncio.wait_for(poll, 60)
    assert isinstance(answer, ReadResponse)
    assert (answer.status, answer.entry_id, answer.max_lac) == (Status.EOK, 0, 0)
    assert bytes(answer.body or b"") == entry(5, 0)
    assert answer.lac_update_timestamp_ms is not None


async def test_a_long_poll_that_is_behind_is_answered_at_once(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    for number in range(3):
        await client.add(entry(5, number))
    answer = await asyncio.wait_for(client.send_poll(5, 0, 3_600_000), 60)
    assert isinstance(answer, ReadResponse)
    assert (answer.entry_id, answer.max_lac, answer.lac_update_timestamp_ms) == (1, 1, None)


async def test_a_long_poll_times_out_as_an_empty_success(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    await client.add(entry(5, 0))
    answer = await asyncio.wait_for(client.send_poll(5, 5, 20), 60)
    assert answer == ReadResponse(answer.txn_id, Status.EOK, 5, -1, None, -1)


@pytest.mark.parametrize("cause", ["fence", "explicit LAC"])
async def test_a_long_poll_ends_with_a_fence_or_an_explicit_lac(cluster: BookieCluster, cause: str) -> None:
    bookie = await cluster.start()
    writer, reader = await cluster.connect(bookie), await cluster.connect(bookie)
    await writer.add(entry(5, 0))
    poll = reader.send_poll(5, -1, 3_600_000)
    await reader.read(5, 0)
    if cause == "fence":
        await writer.fence(5)
        expected = (-1, -1)
    else:
        await writer.write_lac(5, 0)
        expected = (0, 0)
    answer = await asyncio.wait_for(poll, 60)
    assert isinstance(answer, ReadResponse)
    assert (answer.status, answer.entry_id, answer.max_lac) == (Status.EOK, *expected)


async def test_long_polls_name_unknown_ledgers_absent_entries_and_bad_requests(cluster: BookieCluster) -> None:
    client = await cluster.connect(await cluster.start())
    assert (await client.send_poll(5, -1, 3_600_000)).status == Status.ENOLEDGER
    await client.write_lac(6, 4)
    assert (await client.send_poll(6, 0, 3_600_000)).status == Status.ENOENTRY
    await client.add(entry(7, 9))
    absent = await client.send_poll(7, 3, 3_600_000)
    assert (absent.status, getattr(absent, "entry_id", 0), getattr(absent, "max_lac", 0)) == (Status.EOK, -1, 8)
    bad = await client.send_read(7, 3, previous_lac=1, timeout_ms=5, piggyback=True)
    assert bad.status == Status.EBADREQ
    plain = await client.send_read(7, 9, previous_lac=1, timeout_ms=5)
    assert (plain.status, getattr(plain, "entry_id", 0)) == (Status.EOK, 9)


async def test_a_closed_connections_polls_are_forgotten(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    writer, reader = await cluster.connect(bookie), await cluster.connect(bookie)
    await writer.add(entry(5, 0))
    reader.send_poll(5, -1, 3_600_000)
    await reader.read(5, 0)
    assert len(bookie.storage.ledgers[5].waiters or ()) == 1
    assert reader.link is not None
    reader.link.close()
    await reader.closed.wait()
    await writer.add(entry(5, 1))
    assert len(bookie.storage.ledgers[5].waiters or ()) == 0


# ------------------------------------------------------------------------------------------- bad input, bounds


GARBAGE = {
    "a foreign protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a negative length": struct.pack(">i", -1),
    "an empty frame": struct.pack(">i", 0),
    "an oversize frame": struct.pack(">i", 5242880) + b"x",
    "noise in a frame": struct.pack(">i", 16) + bytes(range(200, 216)),
    "a version 2 frame": bytes.fromhex("00000014020200000000000000003039000000000000000700"),
    "a cut message": struct.pack(">i", 8) + b"\x0a\x06\x08\x03\x10\x02\x18",
    "an unknown operation": struct.pack(">i", 8) + b"\x0a\x06\x08\x03\x10\x63\x18\x05",
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_closes_its_connection_and_nobody_elses(
    cluster: BookieCluster, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    bookie = await cluster.start()
    good = await cluster.connect(bookie)
    await good.add(entry(5, 0))
    reader, writer = await asyncio.open_connection("127.0.0.1", bookie.address.port)
    writer.write(GARBAGE[what] + bytes(64))
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    assert (await good.read(5, 0)).status == Status.EOK
    assert "closing the connection to 127.0.0.1" in caplog.text


async def test_a_peer_that_asks_much_and_reads_nothing_is_bounded(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    writer = await cluster.connect(bookie)
    for number in range(8):
        await writer.add(entry(5, number, bytes(1_000_000)))
    with socket.socket() as greedy:
        greedy.connect(("127.0.0.1", bookie.address.port))
        greedy.sendall(b"".join(encode_read_request(txn, 5, txn % 8) for txn in range(1, 2001)))
        for _ in range(20):
            await writer.read(5, 0)
        links = [connection for connection in bookie._connections if connection.link.queued_bytes]
        assert all(connection.link.queued_bytes < 40_000_000 for connection in links)
        received = 0
        greedy.setblocking(False)
        loop = asyncio.get_running_loop()
        while received < 200_000_000:
            received += len(await loop.sock_recv(greedy, 1 << 20))
    assert (await writer.read(5, 0)).status == Status.EOK


async def test_more_adds_than_memory_wait_for_room_and_are_all_stored(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    clients: list[WireClient] = [await cluster.connect(bookie) for _ in range(3)]
    body = bytes(1_000_000)
    pending = [
        client.send_add(entry(10 + which, number, body)) for number in range(30) for which, client in enumerate(clients)
    ]
    answers = await asyncio.wait_for(asyncio.gather(*pending), 60)
    assert {answer.status for answer in answers} == {Status.EOK}
    for which, client in enumerate(clients):
        for number in (0, 15, 29):
            assert bytes((await client.read(10 + which, number)).body or b"") == entry(10 + which, number, body)
