"""Work that is shared out over turns of the loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from storage_node.transport.turns import TURN_S, Turns


async def test_a_mistake_of_one_keeps_nobody_waiting() -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    turns, done = Turns(time.monotonic), asyncio.Event()

    def fail() -> None:
        raise ValueError("a mistake")

    turns.join(fail)
    turns.join(done.set)
    await asyncio.wait_for(done.wait(), 10)
    assert [str(context["exception"]) for context in told] == ["a mistake"]
    assert len(turns) == 0


async def test_a_turn_has_time_until_it_is_spent_and_the_next_one_has_it_again() -> None:
    now = 0.0
    turns = Turns(lambda: now)
    assert turns.has_time()
    now += TURN_S / 2
    assert turns.has_time()
    now += TURN_S / 2
    assert not turns.has_time(), "those served so far have had it all"
    await asyncio.sleep(0)
    assert turns.has_time()
