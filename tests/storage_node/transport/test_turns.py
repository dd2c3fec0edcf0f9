"""Work that is shared out over turns of the loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from storage_node.transport.turns import TURN_S, Turns


class Worker:
    """Work that takes its time by the clock that it moves."""

    def __init__(self, name: str, served: list[str], spend: Callable[[], None]) -> None:
        self._name = name
        self._served = served
        self._spend = spend

    def work(self) -> None:
        self._served.append(self._name)
        self._spend()


class Scripted:
    """A loop's turns, with workers that are ready in each, in the same order: as the sockets of a busy server are."""

    def __init__(self, names: str, takes_s: float) -> None:
        self.now = 0.0
        self.takes_s = takes_s
        self.served: list[str] = []
        self.turns = Turns(lambda: self.now)
        self._workers = [Worker(name, self.served, self._spend) for name in names]

    def _spend(self) -> None:
        self.now += self.takes_s

    def all_are_ready(self) -> None:
        for worker in self._workers:
            self.turns.serve(worker.work)

    async def turn(self) -> None:
        self.all_are_ready()
        await asyncio.sleep(0)


async def test_a_mistake_of_one_keeps_nobody_waiting() -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    turns, done = Turns(time.monotonic), asyncio.Event()

    def fail() -> None:
        raise ValueError("a mistake")

    turns.join(fail)
    turns.join(done.set)
    await asyncio.wait_for(done.wait(), 60)
    assert [str(context["exception"]) for context in told] == ["a mistake"]
    assert len(turns) == 0


async def test_a_turn_serves_at_once_until_its_time_is_spent_and_the_next_one_goes_on() -> None:
    it = Scripted("abc", TURN_S / 2)
    it.all_are_ready()
    assert it.served == ["a", "b"], "the third one stands in line"
    await asyncio.sleep(0)
    it.all_are_ready()
    assert it.served == ["a", "b", "c", "a", "b"]


async def test_who_is_ready_in_a_turn_with_time_does_not_wait() -> None:
    it = Scripted("ab", TURN_S / 10)
    for _ in range(20):
        await it.turn()
    assert it.served == ["a", "b"] * 20
    assert len(it.turns) == 0


@pytest.mark.parametrize("takes_s", [TURN_S / 3, TURN_S / 2, TURN_S, 3 * TURN_S])
async def test_those_that_are_ready_in_each_turn_take_turns_however_little_time_there_is(takes_s: float) -> None:
    it = Scripted("abcdefgh", takes_s)
    while len(it.served) < 800:
        await it.turn()
    counts = Counter(it.served[:800])
    # Those that are served in one turn are found in the same order again: the first has a little more, and no more.
    assert max(counts.values()) <= 1.5 * min(counts.values()), counts


async def test_who_has_left_is_not_served_any_more() -> None:
    it, gone = Scripted("abc", TURN_S), Scripted("x", TURN_S)
    worker = gone._workers[0]
    for waiting in it._workers:
        it.turns.join(waiting.work)
    it.turns.join(worker.work)
    it.turns.leave(worker.work)
    it.turns.leave(worker.work)
    for _ in range(3):
        await asyncio.sleep(0)
    assert (it.served, gone.served) == (["a", "b", "c"], [])


async def test_those_that_take_little_of_a_turn_ask_for_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Scripted("a", TURN_S / 100)
    asked: list[object] = []
    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon

    def noted(call: Callable[..., object], *more: object, **named: Any) -> asyncio.Handle:
        asked.append(call)
        return call_soon(call, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon", noted)
        for _ in range(5):
            it.all_are_ready()
            it.now += 1.0
        assert (it.served, asked) == (["a"] * 5, [])
        for _ in range(50):
            it.all_are_ready()  # of one turn, or of some: half of its time is left even so
        assert (len(it.served), asked) == (55, [])
        for _ in range(60):
            it.all_are_ready()  # from here on its end has to be known; the last ones find its time spent
        assert asked == [it.turns._begin_turn, it.turns._serve_line]
        assert len(it.turns) == 1
