"""Requests that are small to send and large to do: they are cut into pieces, bounded, or charged what they take."""

from __future__ import annotations

import asyncio
import random
import sys
from itertools import pairwise

import pytest
from helpers.bookie.harness import BookieCluster, entry
from helpers.bookie.wire_harness import HeldDisk, PacketClient

from storage_node.bookie.requests.limits import TASK_BYTES
from storage_node.bookie.requests.reads import MAX_BATCH_ENTRIES
from storage_node.bookie.store import index as indexes
from storage_node.bookie.store.index import LedgerIndex
from storage_node.protocol.encoding import encode_list_entries_request
from storage_node.protocol.schema import Status
from storage_node.protocol.values import ListEntriesResponse

SMALL = 300


def index_of(ids: list[int]) -> LedgerIndex:
    index = LedgerIndex()
    for at, entry_id in enumerate(ids):
        index.put(entry_id, 1, at, 100)
    return index


def runs_of(ids: set[int]) -> list[tuple[int, int]]:
    """The runs, the plain way."""
    starts = sorted(entry_id for entry_id in ids if entry_id - 1 not in ids)
    ends = sorted(entry_id for entry_id in ids if entry_id + 1 not in ids)
    return list(zip(starts, ends, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_the_runs_of_an_index_are_those_of_its_entries(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "LOOKED_AT_ONCE", 16)
    r = random.Random(seed)
    ids: list[int] = []
    at = r.choice((0, 5, 100_000))
    for _ in range(r.randrange(200)):
        at += r.choice((1, 1, 1, 1, 2, 3, 40, 2000, -1, -50))
        ids.append(max(at, 0))
    index = index_of(ids)
    assert list(index.ranges()) == runs_of(set(ids))
    assert [entry_id for entry_id in set(ids) if index.get(entry_id) is None] == []
    steps = list(index.steps())
    pauses = [at for at, step in enumerate(steps) if step is None]
    assert all(after - before <= 2 * 16 for before, after in pairwise(pauses))


def memory_of(index: LedgerIndex) -> int:
    held = sum(sys.getsizeof(part) for part in (index._logs, index._places, index._sizes, index._strays))
    return held + len(index._strays) * 120


def test_gaps_between_entries_take_no_more_memory_than_the_entries_alone_could() -> None:
    count = 2000
    for stride in (2, 10, 17, 100, 1024, 2000):
        index = index_of([number * stride for number in range(count)])
        assert memory_of(index) < count * SMALL + 4096, stride
        assert index.get(5 * stride) is not None
        assert list(index.ranges()) == runs_of({number * stride for number in range(count)})
    two = index_of([0, 1024])
    assert memory_of(two) < 2048, "two entries are no twelve kilobytes"


def test_a_gap_in_a_ledger_of_some_size_keeps_it_dense() -> None:
    index = index_of([*range(100), *range(1000, 3000), *range(3100, 4000)])
    assert not index._strays
    assert list(index.ranges()) == [(0, 99), (1000, 2999), (3100, 3999)]


async def test_the_list_of_a_ledgers_entries_lets_others_go_on_and_fits_into_a_frame(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "LOOKED_AT_ONCE", 8)
    bookie = await cluster.start(netty_max_frame_size_bytes=65536)
    client, other = await cluster.connect(bookie), await cluster.connect(bookie)
    for number in range(0, 2000, 2):
        client.send_add(entry(5, number, lac=-1))
    assert await client.add(entry(5, 3000)) is Status.EOK
    answered: list[str] = []
    listing = client._ask(encode_list_entries_request(900_000, 5))
    listing.add_done_callback(lambda _: answered.append("list"))
    client._waiting[900_000] = client._waiting.pop(client._txn)
    for number in range(0, 40, 2):
        assert (await other.read(5, number)).status is Status.EOK
        answered.append("read")
    response = await listing
    assert isinstance(response, ListEntriesResponse)
    assert response.status is Status.EOK
    assert len(response.availability or b"") == 64 + 1001 * 24
    assert answered.index("list") > 0, "somebody else was answered in between"
    for number in range(2000, 6000, 2):
        client.send_add(entry(5, number, lac=-1))
    answer = await client.ask(lambda txn: encode_list_entries_request(txn, 5))
    assert isinstance(answer, ListEntriesResponse)
    assert (answer.status, answer.availability) == (Status.EIO, None), "larger than any frame"
    assert (await client.read(5, 0)).status is Status.EOK, "and the connection goes on"


async def test_a_batch_of_small_entries_has_so_many_and_who_wants_more_asks_again(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    for number in range(MAX_BATCH_ENTRIES + 10):
        client.send_add(entry(5, number, b""))
    await client.add(entry(5, MAX_BATCH_ENTRIES + 10))
    reader = await PacketClient.connect(cluster, bookie)
    first = await reader.batch(5, 0)
    assert (first.status, len(first.entries)) == (Status.EOK, MAX_BATCH_ENTRIES)
    rest = await reader.batch(5, MAX_BATCH_ENTRIES)
    assert len(rest.entries) == 11


async def test_a_request_that_waits_is_charged_what_it_takes(cluster: BookieCluster) -> None:
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk)
    client = await cluster.connect(bookie)
    assert (await client.read(6, 0)).status is Status.ENOLEDGER
    disk.holds.add("journal")
    fences = [client.send_read(100 + number, 0, key=b"k" * 20, fence=True) for number in range(10)]
    assert (await client.read(6, 0)).status is Status.ENOLEDGER
    (connection,) = bookie._connections
    assert connection.flow.in_flight >= 10 * TASK_BYTES
    disk.release()
    for answer in fences:
        assert (await asyncio.wait_for(answer, 60)).status is Status.ENOENTRY
    assert (await client.read(6, 0)).status is Status.ENOLEDGER
    assert connection.flow.in_flight == 0
