"""Commits that the loop makes itself: when, and that an answer never comes before one, nor after one that failed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import ClassVar

import pytest
from helpers.bookie.faulty_disk import FaultyDisk
from helpers.bookie.harness import KEY, BookieCluster, WireClient, entry

from storage_node.bookie.disk.system_disk import QUICK_CALLS
from storage_node.bookie.journal.writer import LONE_BATCHES
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.requests.connections import ServedConnection
from storage_node.errors import ProtocolError
from storage_node.protocol.schema import Status

LONG_S = 1000.0
"""No commit of a test takes so long, whatever else the machine does."""


class CountingDisk(FaultyDisk):
    """Counts commits that were made in place, whatever the machine's disk takes for one."""

    def __init__(self) -> None:
        super().__init__()
        self.in_place = 0
        self.limits_s: set[float] = set()
        self.limit_s = LONG_S

    def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
        assert pool == "journal"
        self.limits_s.add(limit_s)

        def counted() -> None:
            self.in_place += 1
            call()

        return super().at_once(pool, counted, self.limit_s)


async def append(client: WireClient, numbers: range) -> None:
    """Add small entries, each after the answer to the one before."""
    for number in numbers:
        assert await client.add(entry(3, number)) == Status.EOK


async def test_quick_commits_are_made_in_place_and_are_found_again(cluster: BookieCluster) -> None:
    """The first ones go by threads: nothing is known of the disk yet. Every answer follows its own sync."""
    disk = CountingDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    await append(client, range(QUICK_CALLS))
    by_threads, before = disk.passed, disk.in_place
    for number in range(QUICK_CALLS, QUICK_CALLS + 20):
        synced = disk.passed
        await append(client, range(number, number + 1))
        assert disk.passed > synced, "an answer without a sync (I1)"
    assert disk.in_place == before + 20
    assert by_threads >= QUICK_CALLS
    assert disk.limits_s == {0.001}, "the limit of journalInPlaceMicros"
    await cluster.kill(bookie)
    client = await cluster.connect(await cluster.start())
    for number in range(QUICK_CALLS + 20):
        assert (await client.read(3, number)).status == Status.EOK


async def test_what_comes_together_goes_by_a_thread_where_it_is_more_than_a_block(cluster: BookieCluster) -> None:
    disk = CountingDisk()
    client = await cluster.connect(await cluster.start(disk=disk))
    await append(client, range(QUICK_CALLS + 1))
    before = disk.in_place
    answer = await client.send_add(entry(3, QUICK_CALLS + 1, bytes(5000)))
    assert answer.status == Status.EOK
    assert disk.in_place == before


async def test_a_slow_disk_and_an_operator_end_it(cluster: BookieCluster) -> None:
    """Commits go by threads again where one took longer than the limit, until as many were short."""
    disk = CountingDisk()
    client = await cluster.connect(await cluster.start(disk=disk))
    await append(client, range(QUICK_CALLS + 1))
    assert disk.in_place > 0
    disk.limit_s, before = 0.0, disk.in_place
    await append(client, range(QUICK_CALLS + 1, QUICK_CALLS + 5))
    assert disk.in_place == before
    off = CountingDisk()
    bookie = await cluster.start("b", disk=off, journal_in_place_micros=0)
    client = await cluster.connect(bookie)
    await append(client, range(2 * (QUICK_CALLS + LONE_BATCHES)))
    assert not bookie.storage.journal.of(3).may_hold(next(iter(bookie._connections)))
    assert off.in_place == 0
    assert off.limits_s == set(), "the disk was asked though it is switched off"


@pytest.mark.parametrize("call", ["write", "sync"])
async def test_a_commit_that_fails_in_place_stops_the_node_without_an_answer(cluster: BookieCluster, call: str) -> None:
    disk = CountingDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    await append(client, range(QUICK_CALLS + 1))
    before = disk.in_place
    disk.errors[(call, "/journal-")] = errno.EIO
    doomed = client.send_add(entry(3, QUICK_CALLS + 1))
    await asyncio.wait_for(bookie.failed.wait(), 60)
    assert disk.in_place == before + 1
    with pytest.raises(ConnectionError):
        await doomed


class Interrupt(BaseException):
    """What a signal's handler may raise in the middle of anything."""


async def test_an_interrupt_within_a_commit_stops_the_node_without_an_answer(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = CountingDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    await append(client, range(QUICK_CALLS + 1))
    raised: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context.get("exception")))
    before, calls = disk.before, list[str]()

    def interrupted(call: str, path: str) -> None:
        before(call, path)
        if "/journal-" in path:
            calls.append(call)
            if call == "sync":
                raise Interrupt

    monkeypatch.setattr(disk, "before", interrupted)
    doomed, behind = (client.send_add(entry(3, QUICK_CALLS + number)) for number in (1, 2))
    await asyncio.wait_for(bookie.failed.wait(), 60)
    assert isinstance(raised[0], Interrupt), "it goes on to whom it is for"
    assert calls == ["write", "sync"], "nothing is written behind it"
    assert "a commit was interrupted: Interrupt()" in str(bookie.failure)
    for answer in (doomed, behind):
        with pytest.raises(ConnectionError):
            await answer


async def test_a_long_poll_is_answered_before_the_commit_of_what_moved_the_lac(cluster: BookieCluster) -> None:
    """Its answer has left when the loop begins to commit: a reader at the tail does not wait for the sync."""

    class Looking(CountingDisk):
        queued: ClassVar[list[int]] = []

        def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
            self.queued.append(sum(connection.link.queued_bytes for connection in bookie._connections))
            return super().at_once(pool, call, limit_s)

    disk = Looking()
    bookie = await cluster.start(disk=disk)
    writer, reader = await cluster.connect(bookie), await cluster.connect(bookie)
    last = SEEN
    await append(writer, range(last + 1))
    poll = reader.send_poll(3, last - 1, 60_000)
    await reader.read_lac(3)  # behind it: the poll waits
    assert not poll.done()
    before = disk.in_place
    await append(writer, range(last + 1, last + 2))
    assert disk.in_place == before + 1
    assert disk.queued[-1] == 0
    assert (await poll).status == Status.EOK


# ------------------------------------------------------------------------------------ before the turn's end


class Straight:
    """Hands what a client sends to its connection at the node, without a socket in between."""

    def __init__(self, bookie: Bookie, number: int) -> None:
        self.served: ServedConnection = list(bookie._connections)[number]

    def send(self, *pieces: bytes) -> None:
        self.served.frame_received(memoryview(b"".join(pieces))[4:])


def straight(client: WireClient, bookie: Bookie, number: int) -> ServedConnection:
    """Let a client send straight to its connection, the node's one of this number, which is returned."""
    way = Straight(bookie, number)
    client.link = way  # type: ignore[assignment]
    return way.served


SEEN = QUICK_CALLS + LONE_BATCHES + 2
"""So many adds of one connection, one at a time, and nothing is likely to come beside the next one."""


async def with_one_writer(cluster: BookieCluster) -> tuple[CountingDisk, Bookie, WireClient]:
    """A node to which one connection has written of late."""
    disk = CountingDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    await append(client, range(SEEN))
    return disk, bookie, client


async def test_an_add_of_the_only_writer_is_committed_by_the_read_that_brings_it(cluster: BookieCluster) -> None:
    """There and then, with what else the read has brought; its answer follows the sync."""
    disk, bookie, client = await with_one_writer(cluster)
    link, served = client.link, straight(client, bookie, 0)
    in_place, synced, commits = disk.in_place, disk.passed, bookie.storage.journal.commits
    answers = [client.send_add(entry(3, SEEN + number)) for number in range(3)]
    assert (disk.passed, served.link.queued_bytes) == (synced, 0), "the read may bring more"
    served.batch_done()
    assert (disk.in_place, disk.passed, bookie.storage.journal.commits) == (in_place + 1, synced + 1, commits + 1)
    assert served.link.queued_bytes > 0
    assert {(await answer).status for answer in answers} == {Status.EOK}
    client.link = link


async def test_adds_of_two_connections_in_one_turn_are_one_commit(cluster: BookieCluster) -> None:
    """Where more than one has added of late, a batch waits for the turn's end."""
    disk = CountingDisk()
    bookie = await cluster.start(disk=disk)
    first, second = await cluster.connect(bookie), await cluster.connect(bookie)
    await append(first, range(SEEN))
    assert await second.add(entry(4, 0)) == Status.EOK
    links = first.link, second.link
    connections = straight(first, bookie, 0), straight(second, bookie, 1)
    in_place, commits = disk.in_place, bookie.storage.journal.commits
    answers = [first.send_add(entry(3, SEEN)), second.send_add(entry(4, 1))]
    for served in connections:
        served.batch_done()
    assert disk.in_place == in_place
    assert {(await answer).status for answer in answers} == {Status.EOK}
    assert (disk.in_place, bookie.storage.journal.commits) == (in_place + 1, commits + 1)
    first.link, second.link = links
    await append(first, range(SEEN + 1, SEEN + 3))
    assert not bookie.storage.journal.of(3).may_hold(connections[0]), "the other may be back"
    await append(first, range(SEEN + 3, 2 * SEEN + 1))
    assert bookie.storage.journal.of(3).may_hold(connections[0]), "it is the only one again"


async def test_what_was_stored_before_a_wrong_request_of_the_same_read_is_committed(cluster: BookieCluster) -> None:
    disk, bookie, client = await with_one_writer(cluster)
    link, served = client.link, straight(client, bookie, 0)
    in_place = disk.in_place
    assert client.send_add(entry(3, SEEN)) is not None
    served.frame_received(memoryview(b"\x0a\x06\x08\x03\x10\x02\x18\x07\xaa\x06\x7f"))
    with pytest.raises(ProtocolError):
        served.batch_done()
    assert disk.in_place == in_place + 1
    client.link = link
    other = await cluster.connect(bookie)
    assert (await other.read(3, SEEN)).status == Status.EOK


async def test_a_fence_of_the_same_turn_is_committed_with_the_adds_before_it(cluster: BookieCluster) -> None:
    """What waits for the turn's end takes along what was held: one batch, in order (I5)."""
    disk, bookie, client = await with_one_writer(cluster)
    assert await client.add(entry(5, 0)) == Status.EOK
    link, served = client.link, straight(client, bookie, 0)
    fenced = bookie.storage.fence(3, KEY)
    assert isinstance(fenced, asyncio.Future)
    in_place = disk.in_place
    refused = client.send_add(entry(3, SEEN))
    stored = client.send_add(entry(5, 1))
    served.batch_done()
    assert disk.in_place == in_place
    assert ((await refused).status, (await stored).status) == (Status.EFENCED, Status.EOK)
    await fenced
    client.link = link
