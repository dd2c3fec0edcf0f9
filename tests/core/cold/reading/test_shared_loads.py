"""Values that several readers want at about the same time: loaded once, kept within a bound, left without a task."""

from __future__ import annotations

import asyncio

import pytest

from dlspark.core.cold.reading.shared_loads import SharedLoads


class Loader:
    """Loads `value`s of their own length, as often as it is asked, when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.gate = asyncio.Event()

    def __call__(self, value: str):
        async def load() -> str:
            self.asked.append(value)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(value)
                raise
            if value == "bad":
                raise ValueError(value)
            return value

        return load


async def test_readers_that_come_together_share_one_load():
    loads, loader = SharedLoads[str, str](10, len), Loader()
    waiting = [asyncio.ensure_future(loads.get("k", loader("value"))) for _ in range(3)]
    await asyncio.sleep(0)
    loader.gate.set()
    assert await asyncio.gather(*waiting) == ["value"] * 3
    assert loader.asked == ["value"]
    assert await loads.get("k", loader("other")) == "value"
    assert (loads.known("k"), loads.bytes) == ("value", 5)


async def test_a_failure_is_every_waiter_s_and_is_not_kept():
    loads, loader = SharedLoads[str, str](10, len), Loader()
    waiting = [asyncio.ensure_future(loads.get("k", loader("bad"))) for _ in range(2)]
    await asyncio.sleep(0)
    loader.gate.set()
    assert [type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)] == [ValueError] * 2
    assert await loads.get("k", loader("good")) == "good"


async def test_a_reader_that_gives_up_leaves_the_load_to_others_and_the_last_one_ends_it():
    loads, loader = SharedLoads[str, str](10, len), Loader()
    first, second = (asyncio.ensure_future(loads.get("k", loader("value"))) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert loader.cancelled == []
    second.cancel()
    await asyncio.wait([second])
    third = asyncio.ensure_future(loads.get("k", loader("again")))
    await asyncio.sleep(0)
    loader.gate.set()
    assert await third == "again"
    assert loader.cancelled == ["value"]
    assert len(asyncio.all_tasks()) == 1


async def test_the_ones_used_longest_ago_make_room():
    loads, loader = SharedLoads[str, str](10, len), Loader()
    loader.gate.set()
    for value in ("aaaa", "bbbb"):
        await loads.get(value, loader(value))
    await loads.get("aaaa", loader("never"))
    await loads.get("cccc", loader("cccc"))
    assert [loads.known(key) for key in ("aaaa", "bbbb", "cccc")] == ["aaaa", None, "cccc"]
    assert await loads.get("long", loader("x" * 11)) == "x" * 11
    assert (loads.known("long"), loads.bytes) == (None, 8)
    loads.forget()
    assert (loads.known("aaaa"), loads.bytes) == (None, 0)


async def test_nothing_is_left_after_the_close():
    loads, loader = SharedLoads[str, str](10, len), Loader()
    waiting = asyncio.ensure_future(loads.get("k", loader("value")))
    await asyncio.sleep(0)
    await loads.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(asyncio.all_tasks()) == 1
