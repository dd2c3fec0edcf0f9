"""So many at a time, so many requests a second, so many bytes a second, so long a slice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from helpers.virtual_time import virtual_time

from metadata.foundation.pacing import ByteRate, Pauses, Slices, TokenBucket, for_each


async def test_no_more_than_the_limit_at_once_and_nothing_drawn_ahead() -> None:
    running = most = drawn = 0

    def numbers() -> Iterator[int]:
        nonlocal drawn
        for number in range(50):
            drawn += 1
            yield number

    async def act(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert drawn <= number + 7
        await asyncio.sleep(0)
        running -= 1

    await for_each(numbers(), 7, act)
    assert (drawn, most, running) == (50, 7, 0)


async def test_the_first_error_ends_the_others() -> None:
    ended = 0

    async def act(number: int) -> None:
        nonlocal ended
        try:
            if number == 3:
                raise KeyError(number)
            await asyncio.Event().wait()
        finally:
            ended += 1

    with pytest.raises(KeyError):
        await for_each(range(100), 4, act)
    assert ended == 4


async def test_an_error_while_drawing_is_raised() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise KeyError("listing")

    async def act(_number: int) -> None:
        await asyncio.sleep(0)

    with pytest.raises(KeyError):
        await for_each(broken(), 3, act)


@virtual_time
async def test_bytes_go_at_the_rate_that_was_set() -> None:
    loop = asyncio.get_running_loop()
    rate, began = ByteRate(1000), loop.time()
    await asyncio.gather(*(rate.take(500) for _ in range(9)))
    assert loop.time() - began == pytest.approx(4)
    await asyncio.sleep(100)
    began = loop.time()
    await rate.take(500)
    assert loop.time() == began, "what was not used is not owed, nor saved up"
    await rate.take(1)
    assert loop.time() - began == pytest.approx(0.5)
    for _ in range(100):
        await ByteRate(-1).take(10**9)
    assert loop.time() - began == pytest.approx(0.5)


class TestTokenBucket:
    def bucket(self, rate: float) -> tuple[TokenBucket, list[float]]:
        clock = [100.0]
        return TokenBucket(rate, lambda: clock[0]), clock

    def test_a_second_of_requests_goes_at_once_and_the_rest_at_the_rate(self) -> None:
        bucket, _ = self.bucket(4.0)
        assert [bucket.reserve_s() for _ in range(7)] == [0.0, 0.0, 0.0, 0.0, 0.25, 0.5, 0.75]

    def test_time_brings_tokens_back_up_to_a_second_of_them(self) -> None:
        bucket, clock = self.bucket(4.0)
        for _ in range(6):
            bucket.reserve_s()
        clock[0] += 0.5
        assert bucket.reserve_s() == 0.25
        clock[0] += 1_000
        assert [bucket.reserve_s() for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.25]

    def test_a_rate_below_one_still_lets_one_through(self) -> None:
        bucket, clock = self.bucket(0.1)
        assert [bucket.reserve_s(), bucket.reserve_s()] == [0.0, 10.0]
        clock[0] += 5
        assert bucket.reserve_s() == 15.0

    async def test_who_came_first_goes_first(self) -> None:
        """Also where a machine is so busy that time passes between taking a token and waiting for it."""
        bucket, clock = self.bucket(100.0)
        for _ in range(100):
            bucket.reserve_s()
        order: list[int] = []

        async def take(number: int) -> None:
            await bucket.take()
            order.append(number)

        first = asyncio.ensure_future(take(1))
        await asyncio.sleep(0)
        clock[0] += 0.02
        await take(2)
        await first
        assert order == [1, 2]

    async def test_many_go_in_order(self) -> None:
        bucket = TokenBucket(2_000.0)
        order: list[int] = []

        async def take(number: int) -> None:
            await bucket.take()
            order.append(number)

        await asyncio.gather(*(take(number) for number in range(2_050)))
        assert order == list(range(2_050))


async def test_work_that_never_waits_is_interrupted_where_a_slice_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, turns, done = [0.0], 0, 0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    slices = Slices(0.005)
    for _ in range(100):
        clock[0] += 0.001
        await slices.pause()
        done += 1
    assert (done, turns) == (100, 20)
    clock[0] += 1.0  # it has waited for something
    slices.begin()
    await slices.pause()
    assert turns == 20
    beside.cancel()


def test_pauses_double_up_to_the_longest_and_are_shortened_by_half_at_most() -> None:
    pauses = Pauses(0.1, 1.0, random.Random(3))
    taken = [pauses.take_s() for _ in range(8)]
    for pause_s, whole_s in zip(taken, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0), strict=True):
        assert whole_s / 2 <= pause_s <= whole_s
    assert len(set(taken)) == 8


@virtual_time
async def test_a_pause_is_waited_for() -> None:
    began = asyncio.get_running_loop().time()
    await Pauses(2.0, 2.0, random.Random(3)).wait()
    assert 1.0 <= asyncio.get_running_loop().time() - began <= 2.0
