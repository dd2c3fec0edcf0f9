"""Virtual time: the clock jumps onto timers, and moves on for each that is set."""

from __future__ import annotations

import asyncio

import pytest

from helpers.virtual_time import virtual_time


@pytest.mark.parametrize("wait_s", [65.1, 0.1, 0.3, 1e-9, 1e-15, 1 / 3, 2000.7])
@virtual_time
async def test_a_timer_that_finds_a_rounding_error_missing_is_set_again_once(wait_s: float) -> None:
    loop = asyncio.get_running_loop()
    began, fired, done = loop.time(), 0, loop.create_future()

    def fire() -> None:
        nonlocal fired
        fired += 1
        waited = loop.time() - began
        if waited >= wait_s or fired > 10:
            done.set_result(waited)
        else:
            loop.call_later(wait_s - waited, fire)

    loop.call_later(wait_s, fire)
    waited = await done
    assert wait_s <= waited < wait_s + 1e-8
    assert fired <= 2


@virtual_time
async def test_the_time_is_that_of_the_timer_when_it_fires() -> None:
    loop = asyncio.get_running_loop()
    for number in range(1000):
        when, fired = loop.time() + 0.1 * (number % 7 + 1) / 3, loop.create_future()
        loop.call_at(when, lambda fired=fired: fired.set_result(loop.time()))
        assert await fired == when


@virtual_time
async def test_the_clock_stands_while_anything_is_to_do() -> None:
    loop = asyncio.get_running_loop()
    began, fired = loop.time(), []
    loop.call_later(0.5, fired.append, 1)
    for _ in range(100):
        await asyncio.sleep(0)
    assert loop.time() == began
    assert not fired
    await asyncio.sleep(0.5)
    assert (loop.time(), fired) == (began + 0.5, [1])
