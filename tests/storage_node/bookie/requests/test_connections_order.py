"""Who goes first, who waits, and what is answered before it is synced (docs/reference/wire.md#priorities)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from helpers.bookie.harness import KEY, BookieCluster, WireClient, entry
from helpers.bookie.wire_harness import HeldDisk
from helpers.waiting import until

from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.requests.limits import DISK_READS, ENDED_AT_ONCE, Gate, NodeLimits, Turnstile
from storage_node.protocol.encoding import (
    encode_add_request,
    encode_force_ledger_request,
    encode_list_entries_request,
    encode_read_request,
)
from storage_node.protocol.schema import Status
from storage_node.protocol.values import Response

BIG = 1_000_000


async def settled(client: WireClient) -> None:
    """What was sent before on this connection was handled: a later request was answered."""
    await client.ask(lambda txn: encode_list_entries_request(txn, 1 << 40))


def held(bookie: Bookie) -> int:
    """Connections whose sockets are not read at present."""
    return sum(connection.flow.stopped for connection in bookie._connections)


def stored(bookie: Bookie, ledger_id: int) -> list[int]:
    return [n for first, last in bookie.storage.ledgers[ledger_id].index.ranges() for n in range(first, last + 1)]


def send_deferred(client: WireClient, body: bytes, *, recovery: bool = False) -> asyncio.Future[Response]:
    client._txn += 1
    ids = (int.from_bytes(body[:8], "big"), int.from_bytes(body[8:16], "big"))
    head, tail = encode_add_request(client._txn, *ids, KEY, len(body), deferred_sync=True, recovery=recovery)
    return client._ask(head, body, tail)


def send_force(client: WireClient, ledger_id: int) -> asyncio.Future[Response]:
    client._txn += 1
    return client._ask(encode_force_ledger_request(client._txn, ledger_id))


# ------------------------------------------------------------------------------------------- deferred sync


async def test_a_deferred_add_is_answered_before_the_sync_and_nothing_else_is(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    client = await cluster.connect(await cluster.start(disk=disk))
    disk.holds.add("sync_data")
    deferred = send_deferred(client, entry(5, 0))
    synced = client.send_add(entry(6, 0))
    recovered = send_deferred(client, entry(7, 0), recovery=True)
    assert (await asyncio.wait_for(deferred, 60)).status == Status.EOK
    force = send_force(client, 5)
    await settled(client)
    assert [one.done() for one in (synced, recovered, force)] == [False] * 3
    disk.release()
    answers = await asyncio.wait_for(asyncio.gather(synced, recovered, force), 60)
    assert {answer.status for answer in answers} == {Status.EOK}


async def test_a_force_waits_for_the_sync_of_deferred_adds_in_every_batch_before_it(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    disk.holds.add("sync_data")
    await asyncio.wait_for(send_deferred(client, entry(5, 0)), 60)
    await asyncio.wait_for(send_deferred(client, entry(5, 1)), 60)
    assert len(disk.waiting) == 2, "two batches are written, none is synced"
    forced = send_force(client, 5)
    disk.waiting.pop(0)()
    await settled(client)
    assert not forced.done()
    disk.release()
    assert (await asyncio.wait_for(forced, 60)).status == Status.EOK


async def test_a_deferred_add_is_not_answered_before_a_batch_ahead_of_it_is_written(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    client = await cluster.connect(await cluster.start(disk=disk))
    disk.holds.add("journal")
    ahead = client.send_add(entry(6, 0))
    await settled(client)
    deferred = send_deferred(client, entry(5, 0))
    await settled(client)
    assert len(disk.waiting) == 2
    second = disk.waiting.pop()
    second()
    await until(lambda: len(disk.waiting) == 2)  # written, and its sync is held as well
    assert not deferred.done(), "a crash now would lose it: replay ends where the first batch is missing"
    disk.release()
    assert {(await asyncio.wait_for(one, 60)).status for one in (ahead, deferred)} == {Status.EOK}


async def test_deferred_entries_survive_the_death_of_the_process(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    for number in range(20):
        assert (await send_deferred(client, entry(5, number))).status == Status.EOK
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    for number in range(20):
        assert bytes((await client.read(5, number)).body or b"") == entry(5, number)


# ------------------------------------------------------------------------------------------- limits on requests


async def test_no_more_adds_than_the_limit_are_under_way_and_all_are_stored(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk, max_adds_in_progress_limit=4)
    first, second = await cluster.connect(bookie), await cluster.connect(bookie)
    disk.holds.add("journal")
    adds = [
        client.send_add(entry(ledger, number)) for number in range(20) for client, ledger in ((first, 5), (second, 6))
    ]
    await until(lambda: held(bookie) == 2)
    assert bookie.limits.adds.taken == 4
    assert sum(len(stored(bookie, ledger_id)) for ledger_id in bookie.storage.ledgers) == 4
    disk.release()
    answers = await asyncio.wait_for(asyncio.gather(*adds), 60)
    assert {answer.status for answer in answers} == {Status.EOK}
    assert bookie.limits.adds.taken == 0


async def test_an_add_of_recovery_does_not_wait_at_a_closed_gate(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk, max_adds_in_progress_limit=2)
    client = await cluster.connect(bookie)
    disk.holds.add("journal")
    normal = [client.send_add(entry(5, number)) for number in range(6)]
    urgent = client.send_add(entry(6, 0), recovery=True, priority=100)
    await until(lambda: 6 in bookie.storage.ledgers)
    assert stored(bookie, 5) == [0, 1]
    disk.release()
    assert (await asyncio.wait_for(urgent, 60)).status == Status.EOK
    assert {answer.status for answer in await asyncio.gather(*normal)} == {Status.EOK}


async def restarted(cluster: BookieCluster, disk: HeldDisk, entries: int, **settings: object) -> Bookie:
    """A node whose ledger 5 has so many entries, all on disk only, and not in the page cache's quick reach."""
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    for number in range(entries):
        await client.add(entry(5, number))
    await cluster.stop(bookie)
    return await cluster.start(disk=disk, **settings)


@pytest.fixture
def no_quick_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read of a file takes a thread."""
    monkeypatch.setattr("storage_node.bookie.disk.system_disk.READ_NOW", 0)


@pytest.mark.usefixtures("no_quick_reads")
async def test_no_more_reads_than_the_limit_are_under_way(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await restarted(cluster, disk, 10, max_reads_in_progress_limit=3)
    client = await cluster.connect(bookie)
    disk.holds.add("reads")
    reads = [client.send_read(5, number) for number in range(10)]
    await until(lambda: held(bookie) == 1)
    assert bookie.limits.reads.taken == 3
    fence = client.send_read(5, -1, key=KEY, fence=True)
    other = await cluster.connect(bookie)
    late = other.send_read(5, -1, key=KEY, fence=True)
    await until(lambda: bookie.limits.reads.taken >= 4)
    assert bookie.storage.ledgers[5].fenced, "a fence waits for nobody's reads"
    disk.release()
    answers = await asyncio.wait_for(asyncio.gather(*reads, fence, late), 60)
    assert {answer.status for answer in answers} == {Status.EOK}
    assert bookie.limits.reads.taken == 0


@pytest.mark.usefixtures("no_quick_reads")
async def test_recovery_reads_go_to_the_disk_before_those_that_wait_already(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await restarted(cluster, disk, 40)
    client = await cluster.connect(bookie)
    disk.holds.add("reads")
    reads = [client.send_read(5, number) for number in range(30)]
    await settled(client)
    client._txn += 1
    urgent = client._ask(encode_read_request(client._txn, 5, 39, master_key=KEY, fence=True, priority=100))
    await until(lambda: bookie.limits.disk_reads._urgent)
    assert len(disk.waiting) == DISK_READS, "the others wait, and so does the urgent one behind them"
    disk.waiting.pop(0)()
    await until(lambda: len(disk.waiting) == DISK_READS)
    disk.waiting.pop()()  # the one that came to the disk last
    assert (await asyncio.wait_for(urgent, 60)).status == Status.EOK
    assert sum(read.done() for read in reads) == 1, "one of those that were at the disk already made room for it"
    disk.release()
    assert {answer.status for answer in await asyncio.wait_for(asyncio.gather(*reads), 60)} == {Status.EOK}


async def test_recovery_adds_overtake_adds_that_wait_for_memory(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    disk.holds |= {"journal", "entries"}
    normal = [client.send_add(entry(5, number, bytes(BIG))) for number in range(40)]
    await until(lambda: held(bookie) == 1)
    assert len(stored(bookie, 5)) < 40
    (connection,) = bookie._connections
    head, tail = encode_add_request(9000, 6, 0, KEY, len(entry(6, 0)), recovery=True, priority=100)
    connection.frame_received(memoryview(head[4:] + entry(6, 0) + tail))
    assert len(connection._urgent) == 1 or 6 in bookie.storage.ledgers
    order: list[int] = []
    client._waiting[9000] = urgent = asyncio.get_running_loop().create_future()
    urgent.add_done_callback(lambda _: order.append(-1))
    normal[-1].add_done_callback(lambda _: order.append(39))
    disk.release()
    answers = await asyncio.wait_for(asyncio.gather(urgent, *normal), 60)
    assert {answer.status for answer in answers} == {Status.EOK}
    assert order == [-1, 39]


async def test_adds_that_find_no_memory_in_time_are_refused_one_by_one(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.bookie.requests.connections.ROOM_WAIT_S", 0.2)
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    disk.holds |= {"journal", "entries"}
    adds = [client.send_add(entry(5, number, bytes(BIG))) for number in range(34)]
    refused = await asyncio.wait_for(adds[-1], 60)
    assert refused.status == Status.ETOOMANYREQUESTS
    disk.release()
    statuses = [answer.status for answer in await asyncio.wait_for(asyncio.gather(*adds), 60)]
    count = statuses.count(Status.EOK)
    assert statuses == [Status.EOK] * count + [Status.ETOOMANYREQUESTS] * (34 - count)
    assert 10 < count < 34


# ------------------------------------------------------------------------------------------- what they share


def test_a_gate_lets_in_as_many_as_left() -> None:
    gate = Gate(2)
    came: list[int] = []

    def let_in(number: int) -> None:
        came.append(number)
        gate.take()

    gate.take()
    gate.take()
    for number in range(5):
        gate.wait(lambda number=number: let_in(number))  # type: ignore[misc]
    assert gate.closed
    gate.give(2)
    assert came == [0, 1]
    gate.give()
    assert came == [0, 1, 2]
    assert not Gate(0).closed


async def test_a_turnstile_lets_urgent_ones_pass_first_and_forgets_who_gave_up() -> None:
    turnstile = Turnstile(1)
    passed: list[str] = []

    async def go(name: str, urgent: bool) -> None:
        await turnstile.enter(name, urgent=urgent)
        passed.append(name)
        turnstile.leave()

    await turnstile.enter("first", urgent=False)
    tasks = [asyncio.ensure_future(go(name, name.startswith("u"))) for name in ("a", "b", "u1", "c", "u2")]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.sleep(0)
    turnstile.leave()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert passed == ["u2", "a", "c"]
    await asyncio.wait_for(turnstile.enter("last", urgent=False), 60)


async def test_a_turnstile_lets_one_of_each_connection_pass_however_many_the_others_want() -> None:
    turnstile = Turnstile(1)
    passed: list[str] = []

    async def go(name: str) -> None:
        await turnstile.enter(name[0], urgent=False)
        passed.append(name)
        turnstile.leave()

    await turnstile.enter("first", urgent=False)
    names = ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]
    tasks = [asyncio.ensure_future(go(name)) for name in names]
    await asyncio.sleep(0)
    turnstile.leave()
    await asyncio.gather(*tasks)
    assert passed == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_what_a_closed_connection_leaves_is_ended_a_few_in_a_turn() -> None:
    endings = NodeLimits(asyncio.get_running_loop().time, answer_bytes=1, waiting_bytes=1).endings
    tasks = [asyncio.ensure_future(asyncio.sleep(3600)) for _ in range(3 * ENDED_AT_ONCE)]
    await asyncio.sleep(0)
    endings.add(tasks)
    ended: list[int] = []
    while not ended or ended[-1] < len(tasks):
        await asyncio.sleep(0)
        ended.append(sum(task.cancelled() for task in tasks))
    assert max(after - before for before, after in pairwise([0, *ended])) == ENDED_AT_ONCE
