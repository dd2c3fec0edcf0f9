"""Marks of the old form, one for all logs, as version 0.1.0 wrote them: honoured, and taken for no more than they say.

What that version had published is in no log twice, and no log is told that it has what it never got (I9): also where
its log declares a schema since, and the batch that comes again is of typed frames.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from helpers.spark.sink_world import NS, SINK, Process, job

from dlspark.spark.errors import ReplayDiffersError
from dlspark.spark.sink.batch_rules import CommitOutcome
from dlspark.spark.sink.messages import Publication
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.segments import SegmentMetadata
from metadata.distributedlog.sink_marks import LogMark, SinkMark
from metadata.foundation.errors import BadVersionError, CorruptDataError
from metadata.store import Op, SetData

pytestmark = pytest.mark.usefixtures("frames")

ROOT = f"{NS}/.sinks/{SINK}"
UNTOUCHED = b'{"v":1,"batch":-1,"attempt":""}'
"""A sink as the first task of version 0.1.0 made it."""


class OldDriver:
    """Version 0.1.0: the bytes that it wrote, in the transactions in which it wrote them."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.rows: list[list[int]] = []
        self.version = 0

    async def begin(self) -> None:
        await self.process.store.create(ROOT, UNTOUCHED, make_parents=True)
        await self.process.store.create(f"{ROOT}/attempts")

    async def publish(self, batch: int, parts: dict[str, int], version: int | None = None) -> None:
        """`parts` is log -> rows; each log gets one segment that begins at transaction id 10 * batch."""
        self.rows.insert(0, [batch, sum(parts.values())])
        mark = {"v": 1, "batch": batch, "attempt": f"old{batch}", "rows": self.rows}
        data = json.dumps(mark, separators=(",", ":")).encode()
        ops: list[Op] = [SetData(ROOT, data, self.version if version is None else version)]
        for log, rows in parts.items():
            await self.process.log_store.ensure(log)
            ops += await self._append(log, batch, rows)
        await self.process.store.multi(ops)
        self.version += 1

    async def _append(self, log: str, batch: int, rows: int) -> list[Op]:
        state = await self.process.log_store.open(log)
        segment = SegmentMetadata(
            ledger_id=1_000_000 + next(self.process.world.ids),
            lssn=state.max_lssn.value + 1,
            first_txid=10 * batch,
            last_txid=10 * batch + 9,
            completion_time_ms=1,
            record_count=rows,
            last_entry=0,
            last_slot=rows - 1,
            in_progress=False,
        )
        return self.process.log_store.publish_ops(log, state, [segment])


@pytest.fixture
async def old(driver: Process) -> OldDriver:
    """Three batches over two logs, the last one into the first alone, among those of others."""
    old = OldDriver(driver)
    await old.begin()
    await driver.log_store.create("prepared")
    await driver.publish(await driver.stage(job(0, "x", "other-query"), [("others", 0, 0)]))
    await old.publish(0, {"flights": 10, "trains": 3})
    await old.publish(1, {"flights": 7, "trains": 7})
    await old.publish(2, {"flights": 12})
    return old


async def stage(driver: Process, batch: int, parts: dict[str, int], attempt: str = "new") -> Publication:
    """A batch of new code, with so many rows for each log, at the ids that version 0.1.0 had for it."""
    await driver.sinks.ensure(SINK)
    staged = [
        await driver.stage(job(batch, attempt), [(log, 10 * batch, 10 * batch + 9)], count=rows)
        for log, rows in parts.items()
    ]
    return Publication(job(batch, attempt), tuple(segment for one in staged for segment in one.segments))


async def lssns(driver: Process, log: str) -> list[int]:
    return [one.lssn for one in await driver.segments(log)]


@pytest.mark.parametrize("frames", ["raw"], indirect=True)  # what version 0.1.0 wrote
async def test_the_bytes_are_those_of_version_0_1_0(driver: Process, old: OldDriver) -> None:
    data, stat = await driver.store.get(ROOT)
    assert data == b'{"v":1,"batch":2,"attempt":"old2","rows":[[2,12],[1,14],[0,13]]}'
    assert stat.version == 3


@pytest.mark.parametrize(
    ("batch", "parts"),
    [(2, {"flights": 12}), (1, {"flights": 7, "trains": 7}), (0, {"flights": 10, "trains": 3})],
)
async def test_a_replay_over_the_upgrade_is_skipped(
    driver: Process, old: OldDriver, batch: int, parts: dict[str, int]
) -> None:
    if "trains" in parts:  # of which the newest old transaction says nothing: it may be any writer's
        with pytest.raises(ReplayDiffersError, match="did not note into which logs"):
            await driver.publish(await stage(driver, batch, parts))
        await old.publish(3, {"flights": 1, "trains": 1})
    assert await driver.publish(await stage(driver, batch, parts, "again")) is CommitOutcome.COVERED
    for log in parts:
        assert await driver.mark(log) is None
        assert len(await driver.segments(log)) == {"flights": 3, "trains": 2}[log] + ("trains" in parts)


@pytest.mark.parametrize("parts", [{"flights": 11}, {"flights": 12, "trains": 1}, {"flights": 13, "prepared": 1}, {}])
async def test_another_batch_under_an_old_number_is_refused(
    driver: Process, old: OldDriver, parts: dict[str, int]
) -> None:
    with pytest.raises(ReplayDiffersError, match=r"older dlspark|and now has") as caught:
        await driver.publish(await stage(driver, 2, parts))
    assert caught.value.log == (None if not parts else "trains" if "trains" in parts else "flights")
    assert await lssns(driver, "flights") == [1, 2, 3]
    assert await lssns(driver, "prepared") == []


@pytest.mark.parametrize("batch", [0, 1, 2])
async def test_a_fork_into_a_log_that_never_had_anything_of_it_is_written(
    driver: Process, old: OldDriver, batch: int
) -> None:
    """A checkpoint that was copied before the upgrade, and whose fork writes elsewhere."""
    parts = {"made-now": 12, "prepared": 5}
    assert await driver.publish(await stage(driver, batch, parts)) is CommitOutcome.PUBLISHED
    assert await driver.publish(await stage(driver, batch, parts, "again")) is CommitOutcome.COVERED
    assert await driver.mark("made-now") == LogMark(batch, "new")
    assert await lssns(driver, "made-now") == await lssns(driver, "prepared") == [1]


async def test_a_fork_into_a_log_that_others_had_written_is_refused_by_name(driver: Process, old: OldDriver) -> None:
    for batch, rows in ((2, 12), (1, 14), (0, 10)):  # even where it has a segment of just so many rows
        with pytest.raises(ReplayDiffersError, match="nothing shows that the") as caught:
            await driver.publish(await stage(driver, batch, {"others": rows}))
        assert caught.value.log == "others"
    assert await driver.publish(await stage(driver, 3, {"others": 10})) is CommitOutcome.PUBLISHED


async def test_a_log_made_again_since_gets_the_old_batch(driver: Process, old: OldDriver) -> None:
    await driver.log_store.delete_tree("flights")
    await driver.log_store.create("flights")
    assert await driver.publish(await stage(driver, 2, {"flights": 12})) is CommitOutcome.PUBLISHED
    assert await lssns(driver, "flights") == [1]


async def renamed(driver: Process) -> None:
    await LogAdmin(driver.log_store).rename("flights", "moved")


async def copied(driver: Process) -> None:
    """What a tool does that copies znodes to another ensemble: all are as if just made."""
    data, _ = await driver.store.get(ROOT)
    await driver.store.delete(f"{ROOT}/attempts")
    await driver.store.delete(ROOT)
    await driver.store.create(ROOT, data)
    await driver.store.create(f"{ROOT}/attempts")
    await renamed(driver)


@pytest.mark.parametrize("how", [renamed, copied])
async def test_where_transactions_do_not_tell_any_more_the_batch_is_refused(
    driver: Process, old: OldDriver, how: Callable[[Process], Awaitable[None]]
) -> None:
    await how(driver)
    with pytest.raises(ReplayDiffersError, match="nothing shows that the 12 rows") as caught:
        await driver.publish(await stage(driver, 2, {"moved": 12}))
    assert caught.value.log == "moved"
    assert await driver.publish(await stage(driver, 3, {"moved": 12})) is CommitOutcome.PUBLISHED


async def test_an_old_sink_is_taken_over_and_an_older_dlspark_refuses_it_then(driver: Process, old: OldDriver) -> None:
    assert await driver.commit(await stage(driver, 3, {"flights": 4, "trains": 1})) is CommitOutcome.PUBLISHED
    data, _ = await driver.store.get(ROOT)
    with pytest.raises(CorruptDataError, match="not a mark of version 1"):
        SinkMark.decode(data, ROOT)  # the first thing that a task and a commit of version 0.1.0 do
    with pytest.raises(BadVersionError):
        await old.publish(3, {"flights": 4, "trains": 1})  # one that had read its mark before
    assert await lssns(driver, "flights") == [1, 2, 3, 4]
    # What the old mark says holds on.
    assert await driver.commit(await stage(driver, 2, {"flights": 12}, "b")) is CommitOutcome.COVERED
    assert await driver.commit(await stage(driver, 3, {"flights": 4, "trains": 1}, "c")) is CommitOutcome.COVERED
    with pytest.raises(ReplayDiffersError):
        await driver.publish(await stage(driver, 2, {"flights": 11}, "d"))
    assert await driver.commit(await stage(driver, 1, {"made-now": 14}, "e")) is CommitOutcome.PUBLISHED


async def test_what_an_older_dlspark_publishes_at_the_same_moment_is_seen(driver: Process, old: OldDriver) -> None:
    batch = await stage(driver, 3, {"flights": 4})
    original = driver.store.multi
    pending = [True]

    async def multi(ops):
        if pending and ops[0].path == ROOT:
            pending.clear()
            data = b'{"v":1,"batch":3,"attempt":"old3","rows":[[3,4],[2,12],[1,14],[0,13]]}'
            theirs = await old._append("flights", 3, 4)
            await original([SetData(ROOT, data, 3), *theirs])
        return await original(ops)

    driver.store.multi = multi  # type: ignore[method-assign]
    assert await driver.publish(batch) is CommitOutcome.COVERED
    assert await lssns(driver, "flights") == [1, 2, 3, 4]
    assert not pending
