"""What waits for write memory is bounded over all connections."""

from __future__ import annotations

import asyncio

import pytest
from helpers.bookie.harness import MIB, BookieCluster, entry
from helpers.bookie.wire_harness import HeldDisk
from helpers.waiting import until

from storage_node.protocol.schema import Status


async def test_large_adds_beyond_what_may_wait_for_memory_are_refused_at_once_and_small_ones_wait(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None is refused for waiting too long.
    monkeypatch.setattr("storage_node.bookie.requests.connections.ROOM_WAIT_S", 3600.0)
    disk = HeldDisk()
    bookie = await cluster.start(disk=disk, request_memory_limit=8 * MIB)
    first = await cluster.connect(bookie)
    await first.add(entry(5, 0))
    disk.holds.add("entries")
    filling = [first.send_add(entry(5, number, bytes(2 * MIB))) for number in range(1, 20)]
    await until(lambda: bookie.limits.waiting.used)
    others = [await cluster.connect(bookie) for _ in range(10)]
    waiting = [client.send_add(entry(10 + which, 0, bytes(2 * MIB))) for which, client in enumerate(others)]
    await asyncio.wait_for(_refused(waiting), 60)
    refused = [add for add in waiting if add.done()]
    assert {add.result().status for add in refused} == {Status.ETOOMANYREQUESTS}
    assert 3 <= len(refused) < 10
    small = [client.send_add(entry(30 + which, 0)) for which, client in enumerate(others)]
    assert bookie.limits.waiting.used <= 8 * MIB + 2 * MIB * 10  # and what was read before anybody knew
    disk.release()
    answers = await asyncio.wait_for(asyncio.gather(*filling, *waiting, *small), 60)
    assert {answer.status for answer in answers[: len(filling)]} <= {Status.EOK, Status.ETOOMANYREQUESTS}
    assert {answer.status for answer in answers[-len(small) :]} == {Status.EOK}
    assert bookie.limits.waiting.used == 0


async def _refused(adds: list[asyncio.Future[object]]) -> None:
    await until(lambda: sum(add.done() for add in adds) >= 3)
