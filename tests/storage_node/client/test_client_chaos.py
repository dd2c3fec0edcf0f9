"""Seeded chaos: a writer, recoverers, failing bookies and a metadata store that loses answers, all at once.

Whatever happens: acknowledgements come in order, nothing acknowledged is missing at the end, everybody who opened the
ledger saw the same end, and every byte is what was written (I1, I2, I3, I5, I10). Replay one round with `--seed N`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

import pytest
from helpers.virtual_time import virtual_time
from helpers.worlds.model_cluster import FAST, ModelCluster

from metadata.foundation.errors import DistributedLogError, InvariantViolation
from metadata.zookeeper.memory import Fault
from storage_node.client.client import LedgerClient
from storage_node.client.reader import LedgerReader
from storage_node.client.writer import LedgerWriter
from storage_node.errors import LedgerRecoveryError

ROUNDS = 40
SIZES = [(3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 3)]
FAULTS = ["down", "silent", "mute", "corrupt"]


def payload(entry_id: int) -> bytes:
    return b"%06d" % entry_id


async def break_things(cluster: ModelCluster, rng: random.Random) -> None:
    """At most one bookie is broken at a time; any number is slow or loses its connections."""
    for _ in range(rng.randrange(6)):
        await asyncio.sleep(rng.uniform(0, 0.5))
        bookie = rng.choice(list(cluster.bookies.values()))
        what = rng.choice([*FAULTS, "slow", "disconnect"])
        if what in FAULTS:
            heal(cluster)
            bookie.kill() if what == "down" else setattr(bookie, what, True)
        elif what == "slow":
            bookie.delay_s = rng.choice([0, 0.1, 0.4])
        else:
            for link in list(bookie.links):
                link.close()


def heal(cluster: ModelCluster) -> None:
    for bookie in cluster.bookies.values():
        for fault in FAULTS:
            setattr(bookie, fault, False)


async def produce(writer: LedgerWriter, rng: random.Random, acknowledged: list[int]) -> None:
    futures = []
    for i in range(rng.randrange(150)):
        try:
            future = writer.add(payload(i))
        except DistributedLogError:
            break
        future.add_done_callback(
            lambda f, i=i: acknowledged.append(i) if not f.cancelled() and f.exception() is None else None  # type: ignore[misc]
        )
        futures.append(future)
        if rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0, 0.02))
    await asyncio.gather(*futures, return_exceptions=True)
    if rng.random() < 0.5:
        try:
            await writer.close()
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            logging.info("the close failed, as it may: %s", error)


async def recover(cluster: ModelCluster, ledger_id: int, rng: random.Random) -> LedgerReader | None:
    await asyncio.sleep(rng.uniform(0, 1.5))
    try:
        return await cluster.client().open(ledger_id, recover=True)
    except LedgerRecoveryError:
        return None


async def follow(client: LedgerClient, ledger_id: int) -> list[bytes]:
    """Tail the ledger to its end, through whatever happens (I3, I4, I6)."""
    seen: list[bytes] = []
    while True:
        try:
            reader = await client.open(ledger_id, recover=False)
            while not (reader.closed and len(seen) > reader.last_add_confirmed):
                before = reader.last_add_confirmed
                entry = await reader.poll(len(seen), 2_000)
                assert reader.last_add_confirmed >= before
                if entry is not None:
                    assert entry.entry_id == len(seen)
                    seen.append(bytes(entry.payload))
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            logging.info("the tail goes on after %s", error)
            await asyncio.sleep(0.2)
        else:
            return seen


class Switch:
    """`bkc.disable_ensemble_change`, as an operator uses it: for a while now and then."""

    def __init__(self) -> None:
        self.on = False

    async def operate(self, rng: random.Random) -> None:
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(rng.uniform(0, 0.1))
            self.on = True
            await asyncio.sleep(rng.uniform(0, 3))
            self.on = False


@virtual_time
async def one_round(seed: int) -> None:
    rng = random.Random(seed)
    size, write_quorum, ack_quorum = rng.choice(SIZES)
    jitter_s = rng.choice([0.001, 0.01, 0.03])
    async with ModelCluster(size + rng.randrange(3), seed=seed, jitter_s=jitter_s) as cluster:
        settings = replace(
            FAST,
            delay_ensemble_change=rng.random() < 0.4,
            channels_per_bookie=rng.choice([1, 1, 2]),
            explicit_lac_interval_ms=rng.choice([0, 0, 50]),
            batch_reads=rng.random() < 0.7,
            sticky_reads=rng.random() < 0.2,
            speculative_lac_ms=rng.choice([100, 1500]),
        )
        switch = Switch()
        client = cluster.client(settings, ensemble_change_disabled=lambda: switch.on)
        writer = await client.create(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
        following = asyncio.ensure_future(follow(client, writer.ledger_id))

        def inject(_session: int, name: str, _path: str) -> Fault | None:
            return rng.choice(list(Fault)) if name in ("put", "get") and rng.random() < 0.05 else None

        cluster.tree.inject = inject
        acknowledged: list[int] = []
        recoveries = [recover(cluster, writer.ledger_id, rng) for _ in range(rng.randrange(3))]
        _, _, *readers = await asyncio.gather(
            break_things(cluster, rng),
            produce(writer, rng, acknowledged),
            *recoveries,
            switch.operate(random.Random(f"switch {seed}")),
        )
        readers.pop()
        heal(cluster)
        cluster.tree.inject = None
        await cluster.settle(2)
        final = await cluster.client(settings).open(writer.ledger_id, recover=True)
        end = final.last_add_confirmed
        assert await following == [payload(i) for i in range(end + 1)]
        assert acknowledged == list(range(len(acknowledged)))
        assert end >= len(acknowledged) - 1
        assert all((r.last_add_confirmed, r.length) == (end, final.length) for r in readers if r is not None)
        entries = await final.read(0, end) if end >= 0 else []
        assert [bytes(e.payload) for e in entries] == [payload(i) for i in range(end + 1)]
        assert final.length == 6 * (end + 1)
        assert not isinstance(writer.error, InvariantViolation)


def test_chaos_never_loses_reorders_or_cuts(rounds: int | None, seed: int | None) -> None:
    seeds = range(rounds or ROUNDS) if seed is None else [seed]
    for number in seeds:
        try:
            one_round(number)
        except BaseException as error:
            raise AssertionError(f"round failed; replay it with --seed {number}") from error


@pytest.mark.torture
@pytest.mark.long
def test_chaos_for_many_rounds(rounds: int | None) -> None:
    for number in range(10_000, 10_000 + (rounds or 1_000)):
        try:
            one_round(number)
        except BaseException as error:
            raise AssertionError(f"round failed; replay it with --seed {number}") from error
