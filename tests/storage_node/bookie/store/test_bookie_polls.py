"""Parked long polls in numbers: bounded, woken and taken back without looking at all of them."""

from __future__ import annotations

import asyncio

from helpers.bookie.harness import BookieCluster, entry

from storage_node.bookie.store import waiters
from storage_node.bookie.store.contents import Ledger
from storage_node.bookie.store.waiters import WAKE_AT_ONCE, LacWaiter, LacWaiters, PollLine
from storage_node.protocol.schema import Status
from storage_node.protocol.values import ReadResponse

MANY = 40_000


class CountedWaiters(LacWaiters):
    """Counts the polls that are looked at."""

    __slots__ = ("looked",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.looked = 0

    def _next(self) -> LacWaiter | None:
        self.looked += 1
        return super()._next()


def park(ledger: Ledger, previous_lac: int, told: list[tuple[int, bool]]) -> LacWaiter:
    assert ledger.waiters is not None
    return LacWaiter(ledger.waiters, previous_lac, lambda advanced: told.append((previous_lac, advanced)))


async def test_polls_that_no_add_satisfies_cost_an_add_nothing() -> None:
    ledger = Ledger(5)
    line = ledger.waiters = CountedWaiters(ledger)
    told: list[tuple[int, bool]] = []
    for _ in range(MANY):
        park(ledger, 1 << 62, told)
    park(ledger, 3, told)
    for lac in range(100):
        ledger.raise_lac(lac)
    assert told == [(3, True)]
    assert line.looked == 101, "each of them found nobody; one found the poll"


async def test_polls_are_taken_back_one_by_one_without_looking_for_them() -> None:
    ledger = Ledger(5)
    ledger.waiters = LacWaiters(ledger)
    parked = [park(ledger, number % 7, []) for number in range(MANY)]
    for poll in parked:
        poll.cancel()
    assert len(ledger.waiters) == 0
    assert len(ledger.waiters._heap) <= waiters._DEAD_POLLS, "and nothing is left of them"


async def test_one_turn_of_the_loop_wakes_a_part_of_them_and_all_are_woken() -> None:
    ledger = Ledger(5)
    ledger.waiters = LacWaiters(ledger)
    told: list[tuple[int, bool]] = []
    for number in range(1000):
        park(ledger, number % 10, told)
    ledger.raise_lac(5)
    assert len(told) == WAKE_AT_ONCE, "the first at once: a reader at the tail waits for it"
    ledger.raise_lac(6)
    assert len(told) == WAKE_AT_ONCE, "no more in the same turn"
    await asyncio.sleep(0)
    assert len(told) == 2 * WAKE_AT_ONCE
    for _ in range(3):
        await asyncio.sleep(0)
    assert sorted(told) == sorted((number % 10, True) for number in range(1000) if number % 10 < 6)
    ledger.wake_all()
    for _ in range(3):
        await asyncio.sleep(0)
    assert [advanced for previous, advanced in told if previous >= 6] == [False] * 400


async def test_a_line_that_is_full_ends_its_oldest_poll_and_timeouts_come_in_parts() -> None:
    ledger = Ledger(5)
    ledger.waiters = LacWaiters(ledger)
    line, told = PollLine(1000), list[tuple[int, bool]]()
    polls = [park(ledger, number, told) for number in range(1003)]
    for poll in polls:
        line.add(poll)
    assert told == [(0, False), (1, False), (2, False)]
    for poll in polls:
        line.timed_out(poll)
    assert len(told) == 3
    await asyncio.sleep(0)
    assert len(told) <= 3 + WAKE_AT_ONCE
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(told) == 1003


async def test_a_connections_oldest_poll_is_answered_when_it_parks_too_many(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    writer, greedy, reader = [await cluster.connect(bookie) for _ in range(3)]
    await writer.add(entry(5, 0))
    honest = reader.send_poll(5, 0, 3_600_000)
    polls = [greedy.send_poll(5, 1 << 60, 3_600_000) for _ in range(waiters.MAX_CONNECTION_POLLS + 2)]
    for poll in polls[:2]:
        answer = await asyncio.wait_for(poll, 60)
        assert isinstance(answer, ReadResponse)
        assert (answer.status, answer.body, answer.max_lac) == (Status.EOK, None, -1)
    assert not any(poll.done() for poll in polls[2:])
    assert len(bookie.limits.polls) == waiters.MAX_CONNECTION_POLLS + 1
    assert not honest.done()
    await writer.add(entry(5, 1))
    await writer.add(entry(5, 2))
    answered = await asyncio.wait_for(honest, 60)
    assert isinstance(answered, ReadResponse)
    assert answered.max_lac == 1
    assert greedy.link is not None
    greedy.link.close()
    await greedy.closed.wait()
    assert (await reader.read(5, 0)).status is Status.EOK
    assert len(bookie.limits.polls) == len(bookie.storage.ledgers[5].waiters or ()) == 0
