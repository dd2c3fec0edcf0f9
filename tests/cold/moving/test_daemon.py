"""`MoverDaemon` in memory: several of them share the logs, what fails for one log holds up no other, and all of it ends
in order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from helpers.cold.moving_world import ROOT, MovingWorld
from helpers.waiting import until

from dlspark.cold.moving import daemon
from dlspark.cold.moving.daemon import MoverDaemon
from dlspark.cold.moving.log_mover import LogMover
from dlspark.cold.moving.stores import MoverStores
from dlspark.core.namespace import AsyncNamespace
from dlspark.objects.errors import StoreUnavailableError
from metadata.foundation.errors import InvariantViolation
from metadata.foundation.tasks import end_tasks


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    """What is looked at now and then is looked at many times in a second; the world's own clock says what is due."""
    for name, seconds in (("LOOK_S", 0.1), ("LOGS_S", 0.05), ("FIRST_PAUSE_S", 0.02), ("LONGEST_PAUSE_S", 0.1)):
        monkeypatch.setattr(daemon, name, seconds)
    for name in ("AUDIT_S", "SWEEP_S", "TABLES_S"):
        monkeypatch.setattr(daemon, name, 0.2)


@asynccontextmanager
async def running(world: MovingWorld, namespace: AsyncNamespace, count: int = 1, **more: int):
    """Run so many daemons, each with stores of its own; end them as a signal does."""
    made = [
        MoverDaemon(namespace, stores=MoverStores(world.open_store), worker=f"worker-{n}", rng=random.Random(n), **more)
        for n in range(count)
    ]
    tasks = [asyncio.get_running_loop().create_task(one.run()) for one in made]
    try:
        yield tasks
    finally:
        await end_tasks(tasks)


async def moved(world: MovingWorld, namespace: AsyncNamespace, *logs: str, units: int = 1) -> None:
    """Wait until each of these logs has so many units."""

    async def all_moved() -> bool:
        return all([len(await world.units(namespace, log)) >= units for log in logs])

    await until(all_moved, f"{logs} are in files", every_s=0.02)


async def test_logs_are_moved_as_they_come_and_left_when_they_go(world):
    namespace = await world.namespace(cold_max_delay_s=1)
    await world.write(namespace, "first", 2)
    async with running(world, namespace):
        world.clock.moment_ms += 60_000
        await moved(world, namespace, "first")
        written = await world.write(namespace, "second", 2)
        world.clock.moment_ms += 60_000
        await moved(world, namespace, "second")
        assert await world.read(namespace, "second") == written
        await namespace.delete_log("first")
        written += await world.write(namespace, "second", 1, first=3)
        world.clock.moment_ms += 60_000
        await moved(world, namespace, "second", units=2)
        # The daemon's own sweep takes what the deleted log has left.
        second = {unit.file.url for unit in await world.units(namespace, "second")}
        await until(lambda: world.files == second, lambda: world.files)
    assert await world.read(namespace, "second") == written


async def test_several_share_the_logs_by_their_locks(world, monkeypatch):
    namespace = await world.namespace(cold_max_delay_s=1)
    logs = [f"log{n}" for n in range(4)]
    at_work: Counter[str] = Counter()
    refused = {log: asyncio.Event() for log in logs}
    move, run = LogMover._move, LogMover.run

    async def tried(self, **given):
        done = await run(self, **given)
        if done.busy is not None:
            refused[self.name].set()
        return done

    async def watched(self, done, *, at_once):
        assert not at_work[self.name], "two have the lock of one log"
        at_work[self.name] += 1
        try:
            await move(self, done, at_once=at_once)
            await refused[self.name].wait()  # another one has come, and found the lock taken
        finally:
            at_work[self.name] -= 1

    monkeypatch.setattr(LogMover, "_move", watched)
    monkeypatch.setattr(LogMover, "run", tried)
    for log in logs:
        await world.write(namespace, log, 2)
    async with running(world, namespace, 3):
        for segment in range(3, 5):
            world.clock.moment_ms += 60_000
            await moved(world, namespace, *logs, units=segment - 2)
            for log in logs:
                await world.write(namespace, log, 1, first=segment)
    for log in logs:
        assert [unit.first for unit in await world.units(namespace, log)][:2] == [1, 3]


async def test_no_more_are_at_work_at_a_time_than_it_was_told(world, monkeypatch):
    namespace = await world.namespace(cold_max_delay_s=1)
    logs = [f"log{n}" for n in range(5)]
    now, most = 0, 0
    run = LogMover.run

    async def counted(self, **given):
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        try:
            return await run(self, **given)
        finally:
            now -= 1

    monkeypatch.setattr(LogMover, "run", counted)
    for log in logs:
        await world.write(namespace, log, 2)
    async with running(world, namespace, concurrency=2):
        world.clock.moment_ms += 60_000
        await moved(world, namespace, *logs)
    assert most == 2


async def test_a_log_that_cannot_be_moved_holds_up_no_other(world, monkeypatch):
    namespace = await world.namespace(cold_max_delay_s=1)
    tries = 0
    run = LogMover.run

    async def bad(self, **given):
        nonlocal tries
        if self.name == "bad":
            tries += 1
            raise StoreUnavailableError("the store does not take this log")
        return await run(self, **given)

    monkeypatch.setattr(LogMover, "run", bad)
    for log in ("bad", "good"):
        await world.write(namespace, log, 2)
    async with running(world, namespace):
        world.clock.moment_ms += 60_000
        await moved(world, namespace, "good")
        before = tries
        await until(lambda: tries > before + 2, "it is tried again and again")
        assert await world.units(namespace, "bad") == []
        monkeypatch.setattr(LogMover, "run", run)
        await moved(world, namespace, "bad")


async def test_a_store_that_is_away_for_a_while_is_used_when_it_is_back(world):
    namespace = await world.namespace(cold_max_delay_s=1)
    written = await world.write(namespace, "log", 2)
    away = True

    def opened(address, options=None):
        if away:
            raise StoreUnavailableError("the store does not answer")
        return world.open_store(address, options)

    one = MoverDaemon(namespace, stores=MoverStores(opened), worker="worker", rng=random.Random(1))
    task = asyncio.get_running_loop().create_task(one.run())
    failures = namespace.services.meter.root.cold_failures
    world.clock.moment_ms += 60_000
    await until(lambda: failures.value >= 3, "it fails, and tries again", every_s=0.01)
    assert await world.units(namespace, "log") == []
    assert not task.done()
    away = False
    await moved(world, namespace, "log")
    await end_tasks([task])
    assert await world.read(namespace, "log") == written
    await world.check_tidy(namespace, "log")


async def test_settings_that_change_while_it_runs_count(world, monkeypatch, tmp_path):
    """Switched on what waits moves, and switched off again nothing does."""
    conf = tmp_path / "logs.conf"
    conf.write_text("")
    namespace = await world.namespace(cold_path="", cold_max_delay_s=1, stream_config_default=str(conf))
    passes = 0
    run = LogMover.run

    async def counted(self, **given):
        nonlocal passes
        passes += 1
        return await run(self, **given)

    monkeypatch.setattr(LogMover, "run", counted)
    written = await world.write(namespace, "log", 2)
    looks = 0
    wait = daemon._wait

    async def looked(seconds, changed):
        nonlocal looks
        looks += 1
        await wait(seconds, changed)

    monkeypatch.setattr(daemon, "_wait", looked)
    async with running(world, namespace):
        world.clock.moment_ms += 60_000
        await until(lambda: looks > 20, "it looks again and again")
        assert passes == 0
        conf.write_text(f"coldStoragePath={ROOT}\n")
        await namespace.reload_settings()
        await moved(world, namespace, "log")
        conf.write_text("")
        await namespace.reload_settings()
        written += await world.write(namespace, "log", 1, first=3)
        world.clock.moment_ms += 60_000
        before, seen = passes, looks
        await until(lambda: looks > seen + 20, "it looks again and again")
        assert passes <= before + 1, "one pass may have been under way"
        assert len(await world.units(namespace, "log")) == 1
    assert await world.read(namespace, "log") == written


async def test_what_breaks_a_rule_of_its_own_ends_it_with_that_error(world, monkeypatch):
    namespace = await world.namespace(cold_max_delay_s=1)
    await world.write(namespace, "log", 2)

    async def broken(self, **given):
        raise InvariantViolation("a unit lies before its beginning")

    monkeypatch.setattr(LogMover, "run", broken)
    task = asyncio.get_running_loop().create_task(
        MoverDaemon(namespace, stores=MoverStores(world.open_store), worker="worker").run()
    )
    with pytest.raises(InvariantViolation, match="before its beginning"):
        await asyncio.wait_for(task, 60)


async def test_it_ends_at_once_in_the_midst_of_a_copy_and_another_one_goes_on(world, monkeypatch):
    namespace = await world.namespace(cold_max_delay_s=1)
    written = await world.write(namespace, "log", 2)
    stuck = asyncio.Event()
    move = LogMover._move

    async def hangs(self, done, *, at_once):
        stuck.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(LogMover, "_move", hangs)
    async with running(world, namespace):
        world.clock.moment_ms += 60_000
        await asyncio.wait_for(stuck.wait(), 60)
    # Its lock is free, all of its tasks have ended, and its stores are closed: the next one needs no patience.
    assert not [one for one in asyncio.all_tasks() if "MoverDaemon" in repr(one)]
    monkeypatch.setattr(LogMover, "_move", move)
    done = await world.mover(namespace, "log", "another").run(at_once=True)
    assert done.busy is None
    assert len(done.moved) == 1
    assert await world.read(namespace, "log") == written
    await world.check_tidy(namespace, "log")
