"""Hand-overs: in which order a proxy that ends gives its streams away; what a target does before it has the lock."""

from __future__ import annotations

import asyncio

from helpers.serving.proxy_world import proxies
from helpers.virtual_time import virtual_time

from dlspark.serving.protocol.operations import Done, MoveStream, ReleaseStream
from dlspark.serving.write_proxy.streams.hand_over import HAND_OVERS_AT_ONCE, LONGEST_WAIT_S, one_by_one


class Ends:
    """Ends streams: those in `takes_s` after so many seconds, the others after `usual_s`."""

    def __init__(self, usual_s: float, takes_s: dict[int, float] | None = None) -> None:
        self._usual_s = usual_s
        self._takes_s = takes_s or {}
        self.under_way = 0
        self.most = 0
        self.ended: list[int] = []
        self.cut_off: list[int] = []

    async def end(self, stream: int) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self._takes_s.get(stream, self._usual_s))
            self.ended.append(stream)
        except asyncio.CancelledError:
            self.cut_off.append(stream)
            raise
        finally:
            self.under_way -= 1


def now_s() -> float:
    return asyncio.get_running_loop().time()


@virtual_time
async def test_one_at_a_time_where_that_is_fast_enough() -> None:
    ends, began_s = Ends(0.05), now_s()
    assert await one_by_one(range(100), ends.end, 300) == 0
    assert (ends.most, ends.ended) == (1, list(range(100)))
    assert now_s() - began_s < 5.1


@virtual_time
async def test_one_that_hangs_keeps_the_others_no_longer_than_a_turn() -> None:
    ends, began_s = Ends(0.05, {3: 30}), now_s()
    assert await one_by_one(range(10), ends.end, 100) == 0
    assert ends.ended == [0, 1, 2, 4, 5, 6, 7, 8, 9, 3]
    assert ends.most == 2
    assert now_s() - began_s < 3 * 0.05 + 30.1


@virtual_time
async def test_where_all_are_slow_they_follow_each_other_at_the_pace_of_turns() -> None:
    ends, began_s = Ends(10.0), now_s()
    assert await one_by_one(range(30), ends.end, 300) == 0
    assert now_s() - began_s < 30 * LONGEST_WAIT_S + 10.1


@virtual_time
async def test_more_are_on_their_way_where_the_time_asks_for_it() -> None:
    ends = Ends(0.09)
    assert await one_by_one(range(50), ends.end, 4) == 0
    assert 1 < ends.most <= 4
    assert len(ends.ended) == 50


@virtual_time
async def test_what_does_not_fit_into_the_time_is_counted_and_cut_off() -> None:
    ends = Ends(1.0)
    late = await one_by_one(range(1000), ends.end, 5)
    assert ends.most == HAND_OVERS_AT_ONCE
    assert late == 1000 - len(ends.ended)
    assert len(ends.cut_off) <= HAND_OVERS_AT_ONCE
    assert ends.under_way == 0


@virtual_time
async def test_an_end_that_fails_is_followed_by_the_next() -> None:
    seen: list[int] = []

    async def end(stream: int) -> None:
        seen.append(stream)
        raise ValueError(stream)

    assert await one_by_one(range(3), end, 10) == 0
    assert seen == [0, 1, 2]


# ---- what a target does before it has the lock -----------------------------------------------------------------------


@virtual_time
async def test_a_target_reads_and_draws_what_it_can_while_the_source_still_serves() -> None:
    async with proxies() as world:
        source, target = await world.proxy(1), await world.proxy(2)
        for number in range(5):
            await source.write("events", b"%d" % number)
            await source.ask(ReleaseStream("events"))
        await source.write("events", b"5")
        await target.write("others", b"a")
        asked: list[tuple[bool, str]] = []
        ours = target.namespace.store.session_id

        def note(session: int, operation: str, path: str) -> None:
            asked.append((session == ours, f"{operation} {path}"))

        world.tree.inject = note
        assert await source.ask(MoveStream("events", target.location)) == Done()
        await target.written("events", b"6")
        given_up = next(
            number for number, (by_target, what) in enumerate(asked) if not by_target and "put /ledgers" in what
        )
        before = [what for by_target, what in asked[:given_up] if by_target]
        behind = [what for by_target, what in asked[given_up:] if by_target]
        assert sum("logrecs" in what for what in before) == 5, "the segments that have their end"
        assert sum("logrecs" in what for what in behind) <= 2, "the one that got it now; and its own"
        assert [what for what in behind if "idgen" in what] == [], "its next ledger's id was drawn before"
