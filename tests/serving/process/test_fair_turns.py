"""Turns that go round by who asks."""

from __future__ import annotations

import asyncio
import random

import pytest

from dlspark.serving.process.fair_turns import FairTurns


async def test_who_asks_for_much_waits_behind_itself_by_host_and_by_connection() -> None:
    turns, order = FairTurns(1), []

    async def work(address: str) -> None:
        async with turns.turn(address):
            order.append(address)
            await asyncio.sleep(0)

    asks = [f"greedy:{number}" for number in range(20)] * 5 + ["modest:1"] * 2 + ["greedy:99", "[::1]:7"]
    await asyncio.gather(*map(work, asks))
    assert sorted(order) == sorted(asks)
    assert order.index("modest:1") <= 3
    assert order.index("[::1]:7") <= 4
    assert order.index("greedy:99") <= 25


@pytest.mark.parametrize("seed", range(20))
async def test_never_more_than_there_are_and_none_is_lost_whoever_is_cancelled(seed: int) -> None:
    rng, turns, taken, most = random.Random(seed), FairTurns(3), 0, 0

    async def work() -> None:
        nonlocal taken, most
        async with turns.turn(f"h{rng.randrange(3)}:{rng.randrange(3)}"):
            taken += 1
            most = max(most, taken)
            try:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                taken -= 1

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.ensure_future(work()))
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert most == 3
    assert (taken, turns._free, len(turns._hosts)) == (0, 3, 0)
