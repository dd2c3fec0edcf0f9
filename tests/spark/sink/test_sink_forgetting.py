"""Rounds in which a log's segments are deleted, its producers are forgotten, and the log is renamed or made anew, while
batches come by every way: each is in a log once, or is refused with the reason (I20).

What was deleted is still counted: everything that a reader could ever have read of a log is noted before it goes.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from helpers.spark.appends_world import LOG, QUERY, AppendsCluster, Driver
from helpers.spark.typed_frames import Using
from helpers.virtual_time import virtual_time

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.reading.positions import EARLIEST
from dlspark.errors import LogEmptyError
from dlspark.spark.errors import BatchRefusedError, ReplayDiffersError
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import DistributedLogError

pytestmark = pytest.mark.usefixtures("frames")

ROUNDS = 12
STEPS = 45
ASIDE = "aside"
WEEK_MS = 7 * 24 * 3_600_000
EVENTS = {
    "commit": 40.0,
    "die in the middle": 14.0,
    "crash": 8.0,
    "kill a proxy": 4.0,
    "lose answers": 6.0,
    "late request": 4.0,
    "purge": 6.0,
    "retention": 3.0,
    "truncate": 3.0,
    "silence": 3.0,
    "a clock ahead": 1.0,
    "delete": 1.0,
    "rename": 2.0,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--seed")
        rounds = metafunc.config.getoption("--rounds") or ROUNDS
        metafunc.parametrize("round_seed", [first] if first is not None else range(rounds))


class Rounds:
    """One round: a query and what becomes of its log."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = AppendsCluster()
        # Nothing is deleted unless this test asks for it: it looks at everything before.
        expiry_s = self.rng.choice((2, 604_800))
        self.cluster.settings = {
            "retention_hours": 0,
            "producer_expiry_s": expiry_s,
            "producer_snapshot_entries": self.rng.choice((1, 10_000)),
        }
        self.drivers: list[Driver] = []
        self.query = 0
        self.batch = 0
        self.seen: dict[tuple[int, DLSN], bytes] = {}
        """All that was ever in a log, by the log and the place in it."""
        self.logs = 0
        """Which of the logs that had the name has it now."""
        self.made = 0
        """How many were made behind the first one."""
        self.aside: int | None = None
        """Which has the other name."""
        self.committed: list[tuple[int, bytes]] = []
        self.refused = 0

    async def start(self) -> None:
        await self.cluster.start()
        for number in range(2):
            await self.cluster.proxy(number)
        for number in range(3):
            self.drivers.append(await self._driver(number))

    async def _driver(self, number: int) -> Driver:
        driver = await self.cluster.driver(proxied=number == 2)
        driver.sink = f"{QUERY}-{self.query}"
        return driver

    def rows(self, batch: int) -> list[bytes]:
        return [b"%d:%d:%d" % (self.query, batch, number) for number in range(2)]

    # ------------------------------------------------------------------ what is there

    async def look(self) -> None:
        """Note all that the log has now."""
        await self.cluster.proxies.make_visible(LOG)
        namespace = await self.cluster.namespace(ignore_truncation=True)
        try:
            log = await namespace.open_log(LOG)
            async with await log.open_reader(EARLIEST) as reader:
                while found := await reader.read_available(1000, wait=True):
                    values = Using.frames.read([one.payload for one in found], [one.txid for one in found])
                    for record, value in zip(found, values, strict=True):
                        place = self.logs, record.dlsn
                        assert self.seen.setdefault(place, value) == value
        except (LogNotFoundError, LogEmptyError):
            pass
        finally:
            await namespace.close()

    def check(self) -> None:
        """Nothing is in a log twice, and what was said to be there is, or was."""
        there = Counter((log, payload) for (log, _), payload in self.seen.items() if payload != b"plain")
        assert {row for row, count in there.items() if count > 1} == set(), "twice"
        assert [row for row in self.committed if row not in there] == [], "lost"

    # ------------------------------------------------------------------ events

    async def step(self) -> None:
        (what,) = self.rng.choices(list(EVENTS), list(EVENTS.values()))
        number = self.rng.randrange(3)
        proxies = list(self.cluster.proxies.up.values())
        if what in ("commit", "die in the middle"):
            await self._commit(number, dies=what != "commit")
        elif what == "crash":
            await self._replace(number)
        elif what == "kill a proxy":
            doomed = self.rng.choice(proxies)
            await self.cluster.kill_proxy(doomed)
            await self.cluster.proxy(int(doomed.location.split(";")[1]))
        elif what == "lose answers":
            proxy = self.rng.choice(proxies)
            proxy.lose_requests, proxy.lose_answers = self.rng.randrange(2), self.rng.randrange(2)
        elif what == "late request":
            sent = [one for proxy in proxies for one in proxy.batches]
            if sent:
                await self.rng.choice(proxies).deliver(self.rng.choice(sent))
        elif what == "silence":
            await asyncio.sleep(5)
        elif what == "a clock ahead":
            self.cluster.clock.ahead_ms += WEEK_MS
        else:
            await self._operate(what)

    async def _operate(self, what: str) -> None:
        """Operators do what they like; what a living owner refuses is left."""
        try:
            if what in ("purge", "retention"):
                await self._alone()
                await self.cluster.forget_segments(what, before=self.look)
            elif what == "truncate":
                await self._alone()
                await self._truncate()
            else:
                await self._alone()
                await self._recover()
                await self.look()
                await (self._delete() if what == "delete" else self._rename())
        except LogNotFoundError:
            pass

    async def _alone(self) -> None:
        """All owners die, in the middle of whatever they do."""
        for number in range(3):
            await self._replace(number)
        for doomed in list(self.cluster.proxies.up.values()):
            await self.cluster.kill_proxy(doomed)
            await self.cluster.proxy(int(doomed.location.split(";")[1]))

    async def _recover(self) -> None:
        """What a dead owner was answered is found by readers once another one has recovered the log."""
        namespace = await self.cluster.namespace()
        try:
            await (await (await namespace.open_log(LOG)).open_writer()).close()
        finally:
            await namespace.close()

    async def _truncate(self) -> None:
        namespace = await self.cluster.namespace()
        try:
            log = await namespace.open_log(LOG)
            places = [dlsn for number, dlsn in self.seen if number == self.logs]
            if places:
                await log.truncate(self.rng.choice(places))
        finally:
            await namespace.close()

    async def _delete(self) -> None:
        namespace = await self.cluster.namespace()
        try:
            await namespace.delete_log(LOG)
            self._new_log()
        finally:
            await namespace.close()

    async def _rename(self) -> None:
        namespace = await self.cluster.namespace()
        try:
            if self.aside is None:
                await namespace.rename_log(LOG, ASIDE)
                self.aside = self.logs
                self._new_log()
            else:  # back, in the place of the one that has the name now
                await namespace.delete_log(LOG)
                await namespace.rename_log(ASIDE, LOG)
                self.logs, self.aside = self.aside, None
        finally:
            await namespace.close()

    def _new_log(self) -> None:
        self.made += 1
        self.logs = self.made

    async def _replace(self, number: int) -> None:
        await self.drivers[number].crash()
        self.drivers[number] = await self._driver(number)

    # ------------------------------------------------------------------ batches

    async def _commit(self, number: int, *, dies: bool) -> None:
        batch = self.rng.randint(max(0, self.batch - 2), self.batch)
        mode = self.rng.choice(("append", "append", "segments"))
        rows, log = self.rows(batch), self.logs
        work = asyncio.ensure_future(self.drivers[number].commit(batch, mode, rows))
        if dies:
            for _ in range(self.rng.randrange(300)):
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])
            await self._replace(number)
            return
        try:
            await work
        except ReplayDiffersError:
            # An earlier batch than the newest one, which was gone past, or whose log is another one now.
            await self._replace(number)
        except BatchRefusedError as error:
            if "forgotten" not in error.message:
                raise
            await self._go_past()
        except DistributedLogError:
            await self._replace(number)
        else:
            if batch == self.batch:
                self.committed += [(log, row) for row in rows]
                self.batch += 1

    async def _go_past(self) -> None:
        """The user looks at the log's end, and goes on behind it with another sink."""
        self.refused += 1
        self.query += 1
        self.batch = 0
        for number in range(3):
            await self._replace(number)

    async def end(self) -> None:
        for proxy in self.cluster.proxies.up.values():
            proxy.lose_requests = proxy.lose_answers = 0
        for _ in range(3):
            await self._alone()
            await self._commit(0, dies=False)
        await self._alone()
        await self.cluster.forget_segments("purge", before=self.look)
        await self.look()
        self.check()
        await self.cluster.stop()


@virtual_time
async def test_each_batch_is_in_a_log_once_or_is_refused_with_the_reason(round_seed: int) -> None:
    await one_round(round_seed)


async def one_round(seed: int) -> Rounds:
    rounds = Rounds(seed)
    await rounds.start()
    for _ in range(STEPS):
        await rounds.step()
    await rounds.end()
    return rounds
