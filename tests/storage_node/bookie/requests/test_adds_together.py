"""Adds that come together are stored together, and to the same end as one by one (`Storage.add_run`)."""

from __future__ import annotations

import asyncio
import random

import pytest
from helpers.bookie.harness import KEY, BookieCluster, WireClient, entry

from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.requests.connections import ADDS_AT_ONCE
from storage_node.bookie.store.runs import SMALL_BYTES
from storage_node.protocol.digests import master_key
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddResponse, Response

OTHER_KEY = master_key(b"another")
FENCED = 9

Add = tuple[bytes, bytes, bool]
"""Body, key, whether it is a recovery's."""


def adds_of(seed: int) -> list[Add]:
    """Return adds of some ledgers: mostly the next entry of the same one, and all that is out of the ordinary."""
    rng = random.Random(seed)
    next_of = dict.fromkeys((5, 6, 7, FENCED), 0)
    ledger_id, adds = 5, []
    while len(adds) < 3 * ADDS_AT_ONCE:
        if rng.random() < 0.1:
            ledger_id = rng.choice(list(next_of))
        number = next_of[ledger_id]
        if rng.random() < 0.1:
            number = max(0, number + rng.choice((-2, -1, 3, 2000)))  # again, behind a gap, astray
        next_of[ledger_id] = max(next_of[ledger_id], number + 1) if number < 1000 else next_of[ledger_id]
        size = rng.choice((0, 1, 100, 1000, SMALL_BYTES, 40_000)) if rng.random() < 0.1 else 50
        body = entry(ledger_id, number, rng.randbytes(size), lac=rng.randrange(-1, number + 1))
        if rng.random() < 0.03:
            body = rng.choice((body[:23], entry(ledger_id, -3)))
        adds.append((body, OTHER_KEY if rng.random() < 0.05 else KEY, rng.random() < 0.05))
    return adds


def send(client: WireClient, add: Add) -> asyncio.Future[Response]:
    body, key, recovery = add
    return client.send_add(body, key=key, recovery=recovery, priority=100 if recovery else 0)


async def fenced(cluster: BookieCluster, bookie: Bookie) -> WireClient:
    client = await cluster.connect(bookie)
    assert (await client.fence(FENCED)).status is Status.ENOENTRY
    return client


def contents(bookie: Bookie) -> dict[int, tuple[bool, int, list[tuple[int, bytes]]]]:
    """Return of each ledger whether it is fenced, its LAC, and its entries."""
    storage = bookie.storage
    found = {}
    for ledger_id, ledger in sorted(storage.ledgers.items()):
        numbers = [n for first, last in ledger.index.ranges() for n in range(first, last + 1)]
        bodies = [(n, bytes(storage.read_now(ledger, n) or b"")) for n in numbers]
        found[ledger_id] = ledger.fenced, ledger.lac, bodies
    return found


def usage(bookie: Bookie) -> list[tuple[int, int]]:
    return [(log.live, log.stored) for log in bookie.storage.contents.live.logs.values()]


@pytest.mark.parametrize("seed", range(4))
async def test_adds_that_come_together_end_as_one_by_one(cluster: BookieCluster, seed: int) -> None:
    adds = adds_of(seed)
    together, alone = await cluster.start("a"), await cluster.start("b")
    crowd, single = await fenced(cluster, together), await fenced(cluster, alone)
    at_once = await asyncio.wait_for(asyncio.gather(*(send(crowd, add) for add in adds)), 60)
    one_by_one = [await asyncio.wait_for(send(single, add), 60) for add in adds]
    assert at_once == one_by_one
    assert {answer.status for answer in at_once if isinstance(answer, AddResponse)} >= {Status.EOK, Status.EUA}
    assert contents(together) == contents(alone)
    assert usage(together) == usage(alone)
    # What was acknowledged together outlives a crash, and a clean stop behind it (sidecars).
    before = contents(together)
    await cluster.kill(together)
    again = await cluster.start("a")
    assert {k: v[2] for k, v in contents(again).items()} == {k: v[2] for k, v in before.items()}
    reader = await cluster.connect(again)
    await again.storage.checkpoint()
    await cluster.stop(again)
    reader = await cluster.connect(await cluster.start("a"))
    for ledger_id, (_, _, bodies) in before.items():
        for number, body in bodies:
            assert bytes((await reader.read(ledger_id, number)).body or b"") == body


async def test_ordinary_adds_that_come_together_are_one_run(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = await cluster.start()
    client = await cluster.connect(bookie)
    assert await client.add(entry(5, 0)) is Status.EOK
    runs: list[tuple[int, int] | None] = []
    add_run = bookie.storage.add_run

    def noted(*arguments: object) -> tuple[int, int] | None:
        runs.append(add_run(*arguments))  # type: ignore[arg-type]
        return runs[-1]

    monkeypatch.setattr(bookie.storage, "add_run", noted)
    answers = [client.send_add(entry(5, number)) for number in range(1, 2 * ADDS_AT_ONCE + 1)]
    await asyncio.wait_for(asyncio.gather(*answers), 60)
    assert sum(run[0] for run in runs if run is not None) == 2 * ADDS_AT_ONCE
    assert len(runs) < ADDS_AT_ONCE
