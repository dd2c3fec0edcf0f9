"""Ending tasks, also where a cancellation is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine

import pytest

from metadata.foundation import tasks
from metadata.foundation.tasks import Once, each, end_tasks, together, undisturbed


async def a_result_on_its_way(event: asyncio.Event) -> asyncio.Task[None]:
    """A task whose `wait_for` has its result, but has not returned it: a cancellation is lost here before Python 3.12.

    Such loops are the storage node's checkpoints, and every wait for a session to be connected again.
    """
    arrived = asyncio.Event()

    async def wait() -> None:
        await event.wait()
        arrived.set()

    async def work() -> None:
        while True:
            await asyncio.wait_for(wait(), 3600)
            event.clear()

    task = asyncio.get_running_loop().create_task(work())
    await asyncio.sleep(0)
    event.set()
    await arrived.wait()
    return task


@pytest.mark.timeout(60)
@pytest.mark.parametrize("later", range(5))
async def test_a_task_ends_whose_cancellation_met_the_result_of_a_wait_for(
    monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    if sys.version_info < (3, 12):
        monkeypatch.setattr(tasks, "AGAIN_S", 0.01)
    task = await a_result_on_its_way(asyncio.Event())
    for _ in range(later):
        await asyncio.sleep(0)

    await end_tasks([task])

    assert task.cancelled()


async def test_errors_are_left_to_the_caller_unless_they_are_dropped() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while it was ended")

    for drop_errors in (False, True):
        task = asyncio.get_running_loop().create_task(fail())
        await asyncio.sleep(0)
        await end_tasks([task], drop_errors=drop_errors)
        assert isinstance(task.exception(), ValueError)


async def test_one_whose_waiting_is_closed_half_way_raises_nothing_of_its_own() -> None:
    """So a process ends that is killed meanwhile, in simulation: its coroutines are closed, not continued."""
    task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
    ending = end_tasks([task], drop_errors=True)
    ending.send(None)

    ending.close()

    await asyncio.wait([task])
    assert task.cancelled()


async def test_who_is_cancelled_while_ending_tasks_still_waits_for_them() -> None:
    tidy = asyncio.Event()
    tidied: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await undisturbed(tidy_up())

    async def tidy_up() -> None:
        await tidy.wait()
        tidied.append("in peace")

    task = asyncio.get_running_loop().create_task(work())
    await asyncio.sleep(0)
    ending = asyncio.get_running_loop().create_task(end_tasks([task]))
    for _ in range(3):
        await asyncio.sleep(0)
        ending.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()

    tidy.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert task.cancelled()
    assert tidied == ["in peace"]


async def test_undisturbed_work_gives_its_result_or_error() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("as it is")

    assert await undisturbed(answer()) == 42
    with pytest.raises(ValueError, match="as it is"):
        await undisturbed(fail())


async def test_nothing_to_end_is_no_error() -> None:
    await end_tasks([])


async def test_work_done_once_goes_on_when_callers_are_cancelled_and_tells_the_first_of_its_failure() -> None:
    runs, go_on = 0, asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        await go_on.wait()
        raise ValueError("it failed")

    once = Once(work)
    assert not once.begun
    first = asyncio.ensure_future(once.run())
    await asyncio.sleep(0)
    assert once.begun
    second, third = asyncio.ensure_future(once.run()), asyncio.ensure_future(once.run())
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    assert not first.done()
    assert not third.done()
    go_on.set()
    with pytest.raises(ValueError, match="it failed"):
        await first
    await third
    await once.run()
    assert runs == 1


async def test_each_step_is_taken_whatever_becomes_of_the_others() -> None:
    taken: list[int] = []

    def step(number: int) -> Callable[[], Awaitable[None]]:
        async def take() -> None:
            taken.append(number)
            if number != 1:
                raise ValueError(f"step {number}")

        return take

    with pytest.raises(ValueError, match="step 0"):
        await each([step(0), step(1), step(2)])
    assert taken == [0, 1, 2]


async def test_what_runs_together_ends_together() -> None:
    ended: list[int] = []
    begun = asyncio.Event()

    async def run(number: int) -> int:
        try:
            if number == 2:
                await begun.wait()
                raise ValueError("the second failed")
            begun.set()
            await asyncio.Event().wait()
            return number
        finally:
            await asyncio.sleep(0)  # to end takes a while
            ended.append(number)

    before = asyncio.all_tasks()
    with pytest.raises(ValueError, match="the second failed"):
        await together(run(number) for number in range(4))
    assert sorted(ended) == [0, 1, 2, 3]
    assert asyncio.all_tasks() == before

    async def value(number: int) -> int:
        return number

    assert await together(value(number) for number in range(3)) == [0, 1, 2]
    assert await together(list[Coroutine[None, None, int]]()) == []


async def test_who_is_cancelled_leaves_nothing_running_that_ran_together() -> None:
    ended: list[int] = []

    async def run(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    waiting = asyncio.ensure_future(together(run(number) for number in range(3)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sorted(ended) == [0, 1, 2]
