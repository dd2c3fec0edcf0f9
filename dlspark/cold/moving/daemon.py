"""`MoverDaemon`: the mover of a namespace: one task a log that has cold storage, a few of them at work at a time.

A task waits for a change of its log's list, for a moment at which something is due, or for `LOOK_S`, and then makes a
pass (`LogMover`). Several processes may do this for one namespace: each pass takes the lock of the log's worker, and a
process that finds it taken comes back later. Settings are those of each log as they are at that moment, dynamic ones
included; logs come and go while the daemon runs.

Beside that it brings lake tables forward when something has moved, and sweeps and audits each log from time to time.

Fault model: a failed pass is told, and tried again after a pause that grows. It ends at once, at any line, when it is
cancelled: what it has begun is taken up by the next pass of any worker. A broken invariant of ours ends it for good:
then it must not go on moving the only copies of anything.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Final

from dlspark.cold.lake.syncing import sync_tables
from dlspark.cold.moving.auditing import ColdFinding, audit_log
from dlspark.cold.moving.log_mover import LogMover, MoverPass
from dlspark.cold.moving.mirroring import PAUSE_S, LogMirrors
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_deleted_log, sweep_log
from dlspark.core.log import AsyncLog
from dlspark.core.metrics.structured_logging import about
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.cold_mirrors import noted_options
from dlspark.core.write_lock import default_client_id
from metadata.distributedlog.cold_away import AwayNote
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.foundation.errors import DistributedLogError, InvariantViolation, NoNodeError
from metadata.foundation.tasks import end_tasks, undisturbed
from metadata.store import SessionState, WatchEvent

_log = logging.getLogger(__name__)

CONCURRENCY: Final = 4
"""Passes at a time: each holds a row group and a reader's window in memory, some 100 MB at most."""
LOOK_S: Final = 60.0
"""A log is looked at so often though nothing seems to have changed."""
LOGS_S: Final = 30.0
"""So often the names of all logs are listed: a watch tells of those at the top at once."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
AUDIT_S: Final = 3600.0
MIRRORS_S: Final = 60.0
"""So often mirrors are looked after though nothing has moved."""
TABLES_S: Final = 30.0
"""Seconds between two looks at the lake tables."""
SWEEP_S: Final = 6 * 3600.0
STOP_TIMEOUT_S: Final = 5.0


class MoverDaemon:
    """What moves the logs of a namespace? `run` it as a task; cancel that to end it.

    Args:
        namespace: open, and not closed by this.
        stores: where files are; real ones unless given. Closed by this.
        worker: how this process is named, for people.
        concurrency: passes at a time.
        rng: spreads what is done from time to time.
    """

    def __init__(
        self,
        namespace: AsyncNamespace,
        *,
        stores: MoverStores | None = None,
        worker: str | None = None,
        concurrency: int = CONCURRENCY,
        rng: random.Random | None = None,
    ) -> None:
        self._namespace = namespace
        self._services = namespace.services
        self.cold = ColdStore(namespace.services.logs)
        self.stores = stores or MoverStores(clock=self._services.clock)
        self._worker = worker or default_client_id()
        self._turns = asyncio.Semaphore(concurrency)
        self._rng = rng or random.Random()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lags: dict[str, int] = {}
        self._findings: dict[str, int] = {}
        self._broken: asyncio.Future[None] | None = None
        self._news = asyncio.Event()
        self._to_mirror = asyncio.Event()
        self._mirrors: dict[str, LogMirrors] = {}
        self._unfilled: dict[str, str | None] = {}
        """What failed for a log's mirrors in the last round, and was said."""
        self._mirrored: set[str] = set()
        """Logs that have mirrors, by their settings."""
        measures = self._services.meter.root
        measures.cold_lag.follow(self, lambda daemon: max(daemon._lags.values(), default=0))
        measures.cold_findings.follow(self, lambda daemon: sum(daemon._findings.values()))

    async def run(self) -> None:
        """Move until cancelled. Raises InvariantViolation; the store's error where the session has ended."""
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        own = [
            loop.create_task(self._follow_logs()),
            loop.create_task(self._follow_units()),
            loop.create_task(self._follow_mirrors()),
            loop.create_task(self._from_time_to_time(AUDIT_S, self.audit)),
            loop.create_task(self._from_time_to_time(SWEEP_S, self.sweep)),
        ]
        try:
            await asyncio.wait([*own, self._broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await undisturbed(self._end([*own, *self._tasks.values()]))
        for ended in (*own, self._broken):
            if ended.done() and not ended.cancelled() and (error := ended.exception()) is not None:
                raise error

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        await end_tasks(tasks, drop_errors=True)
        try:
            # What an upload was given up with may hang: the sweep finds what is left of it.
            await asyncio.wait_for(self.stores.close(), STOP_TIMEOUT_S)
        except (asyncio.TimeoutError, DistributedLogError) as error:
            _log.info("the object stores could not be closed in order: %s", error)

    # ------------------------------------------------------------------ logs come and go

    async def _follow_logs(self) -> None:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        watching = loop.create_task(self._watch_top(changed))
        try:
            while True:
                changed.clear()
                try:
                    names = await self._namespace.logs(recursive=True)
                except InvariantViolation:
                    raise
                except DistributedLogError as error:
                    self._raise_if_closed(error)
                    _log.warning("the logs cannot be listed; trying again: %s", error)
                else:
                    self._begin(names)
                await _wait(LOGS_S, changed)
        finally:
            await end_tasks([watching], drop_errors=True)

    async def _watch_top(self, changed: asyncio.Event) -> None:
        async with aclosing(self._namespace.watch_logs()) as changes:
            async for _ in changes:
                changed.set()

    def _begin(self, names: list[str]) -> None:
        self._tasks = {name: task for name, task in self._tasks.items() if not task.done()}
        for name in names:
            if name not in self._tasks:
                task = asyncio.get_running_loop().create_task(self._guarded(name))
                self._tasks[name] = task

    async def _guarded(self, name: str) -> None:
        """Move a log until it is gone; what breaks an invariant ends the daemon."""
        try:
            await self._move(name)
        except LogNotFoundError:
            pass
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._services.meter.root.alerts.inc()
            _log.exception("log %s: the mover ends: a rule of its own is broken", name, extra=about(log=name))
            if self._broken is not None and not self._broken.done():
                self._broken.set_exception(error)
        finally:
            self._lags.pop(name, None)
            self._findings.pop(name, None)
            self._mirrored.discard(name)

    # ------------------------------------------------------------------ one log

    async def _move(self, name: str) -> None:
        changed = asyncio.Event()
        pause_s = FIRST_PAUSE_S
        async with await self._namespace.open_log(name) as log:
            mover = LogMover(self._services, self.cold, self.stores, name, lambda: log.settings, self._worker)
            while True:
                changed.clear()
                wait_s = LOOK_S
                self._see_mirrors(log)
                if log.settings.cold_path:
                    try:
                        wait_s = await self._pass(mover, log, changed)
                        failed = wait_s < 0
                    except (InvariantViolation, LogNotFoundError):
                        raise
                    except DistributedLogError as error:
                        self._raise_if_closed(error)
                        self._services.meter.root.cold_failures.inc()
                        _log.warning("log %s: a pass failed: %s", name, error, extra=about(log=name))
                        failed = True
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if failed else FIRST_PAUSE_S
                    wait_s = pause_s * self._rng.uniform(0.5, 1.0) if failed else wait_s
                    if failed:
                        # A change of the list is no reason to hurry: what has failed will fail again.
                        await asyncio.sleep(wait_s)
                        continue
                await _wait(wait_s, changed)

    async def _pass(self, mover: LogMover, log: AsyncLog, changed: asyncio.Event) -> float:
        """Make one pass; return how long to wait for the next, below 0 where something failed."""
        await self._watch(mover.name, changed)
        async with self._turns:
            done = await mover.run()
        if done.busy is None:
            self._lags[mover.name] = done.lag_ms
        if done.moved or done.cold_deleted or done.replaced_deleted:
            self._news.set()
            if mover.name in self._mirrored:
                self._to_mirror.set()
        if done.problems:
            return -1.0
        if done.busy is not None:
            return LOOK_S * self._rng.uniform(0.1, 0.3)
        return self._wait_s(done)

    def _wait_s(self, done: MoverPass) -> float:
        longest = LOOK_S * self._rng.uniform(0.8, 1.2)
        if done.next_ms is None:
            return longest
        return min(longest, max(0.02, (done.next_ms - self._services.clock.now_ms()) / 1000))

    async def _watch(self, name: str, changed: asyncio.Event) -> None:
        """Have `changed` set with the next change of the log's list."""
        path = (await self._services.logs.located(name)).ledgers

        def heard(_event: WatchEvent) -> None:
            changed.set()

        try:
            await self._services.store.children(path, heard)
        except NoNodeError as error:
            raise LogNotFoundError("the log is gone", log=name, path=path) from error

    def _raise_if_closed(self, error: DistributedLogError) -> None:
        if self._services.store.state is SessionState.CLOSED:
            raise error

    # ------------------------------------------------------------------ lake tables

    async def _follow_units(self) -> None:
        """Bring the namespace's lake tables forward when something has moved, and now and then in any case."""
        while True:
            self._news.clear()
            try:
                await self.sync_tables()
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                self._raise_if_closed(error)
                _log.warning("the lake tables cannot be read; again later: %s", error)
            await _wait(TABLES_S * self._rng.uniform(0.8, 1.2), self._news)

    # ------------------------------------------------------------------ mirrors

    def _see_mirrors(self, log: AsyncLog) -> None:
        """Note whether a log has mirrors, so that a round over them opens those logs alone."""
        if not log.settings.cold_mirrors:
            self._mirrored.discard(log.name)
        elif log.name not in self._mirrored:
            self._mirrored.add(log.name)
            self._to_mirror.set()

    async def _follow_mirrors(self) -> None:
        """Copy into mirrors when something has moved, and now and then in any case. Beside the moving: a region that is
        far, or away, must not hold it up."""
        while True:
            self._to_mirror.clear()
            more = await self.mirror()
            await self._tell_away()
            if more:
                await asyncio.sleep(PAUSE_S)
            else:
                await _wait(MIRRORS_S * self._rng.uniform(0.8, 1.2), self._to_mirror)

    async def mirror(self) -> bool:
        """Copy for a while what the mirrors of all logs lack, one log after the other; return whether there is more."""
        more = False
        self._mirrors = {name: one for name, one in self._mirrors.items() if name in self._mirrored}
        self._unfilled = {name: one for name, one in self._unfilled.items() if name in self._mirrored}

        async def fill(log: AsyncLog) -> None:
            nonlocal more
            if not log.settings.cold_mirrors:
                self._mirrors.pop(log.name, None)
                return
            if log.name not in self._mirrors:
                self._mirrors[log.name] = LogMirrors(self._services, self.cold, self.stores, log.name)
            # A turn each: a log with years to copy must not keep the others' new files away.
            done = await self._mirrors[log.name].run(log.settings, turns=1)
            more = more or done.more
            # Once: a mirror that is away for a day fails in each round, for each log.
            if done.failure is not None and self._unfilled.get(log.name) != done.failure:
                _log.warning("log %s: %s", log.name, done.failure, extra=about(log=log.name))
            self._unfilled[log.name] = done.failure

        await self._each(self._in_turn(self._mirrored), fill, "its mirrors could not be filled")
        return more

    async def _tell_away(self) -> None:
        """Note for people which mirrors are out of reach, and since when: `dlspark cold status` asks none of them."""
        away = self.stores.put_off.away
        notes = [AwayNote(self._worker, one.root, noted_options(one.options), one.since_ms) for one in away]
        try:
            if notes:
                await self.cold.namespace_id()
            await self.cold.away.tell(notes)
        except InvariantViolation:
            raise
        except DistributedLogError as error:
            self._raise_if_closed(error)
            _log.warning("it could not be noted which mirrors are out of reach; again later: %s", error)

    # ------------------------------------------------------------------ from time to time

    async def sync_tables(self) -> None:
        """Bring the namespace's lake tables level with what is cold, where some are declared."""
        for report in await sync_tables(self._services.logs):
            if report.error is not None:
                self._services.meter.root.cold_failures.inc()
                _log.warning("lake table %s is not level: %s", report.table, report.error)
            for finding in report.findings:
                _log.warning("lake table %s: %s", report.table, finding)

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        # Another order each time: what the first one meets at a place is for a while said to all that follow it.
        found = sorted(names)
        self._rng.shuffle(found)
        return found

    async def _each(self, names: Iterable[str], work: Callable[[AsyncLog], Awaitable[None]], failure: str) -> None:
        """Do some work for one log after the other. One that fails is told of as `failure`, and keeps no other from it;
        one that is gone is passed over."""
        for name in names:
            try:
                async with await self._namespace.open_log(name) as log:
                    await work(log)
            except LogNotFoundError:
                continue
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                self._raise_if_closed(error)
                _log.warning("log %s: %s: %s", name, failure, error, extra=about(log=name))

    async def _from_time_to_time(self, period_s: float, work: Callable[[], Awaitable[object]]) -> None:
        # The first time soon, but not at once, and not with all other processes.
        await asyncio.sleep(period_s * self._rng.uniform(0.02, 0.1))
        while True:
            try:
                await work()
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                self._raise_if_closed(error)
                _log.warning("cold storage could not be looked at whole; again later: %s", error)
            await asyncio.sleep(period_s * self._rng.uniform(0.8, 1.2))

    async def audit(self) -> list[ColdFinding]:
        """Look whether every file is there; return what is wrong."""
        found: list[ColdFinding] = []

        async def look(log: AsyncLog) -> None:
            _, wrong = await audit_log(self._services, self.cold, self.stores, log.name, log.settings)
            self._findings[log.name] = len(wrong)
            found.extend(wrong)

        await self._each(list(self._tasks), look, "its files could not be audited")
        return found

    async def sweep(self) -> None:
        """Delete what nothing names, and what deleted logs have left."""

        async def sweep(log: AsyncLog) -> None:
            await sweep_log(self._services, self.cold, self.stores, log.name, log.settings)

        await self._each(self._in_turn(self._tasks), sweep, "its files could not be swept")
        deleted_logs = await self.cold.deleted_logs()
        for deleted in self._rng.sample(deleted_logs, len(deleted_logs)):
            try:
                await sweep_deleted_log(self._services, self.cold, self.stores, deleted)
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                # Its note stays, and so does its turn with the next sweep; later notes have theirs now.
                self._raise_if_closed(error)
                _log.warning("what deleted log %s left could not be swept: %s", deleted.value.log, error)


async def _wait(seconds: float, changed: asyncio.Event) -> None:
    """Wait until `changed` is set, at most so long."""
    try:
        await asyncio.wait_for(changed.wait(), seconds)
    except asyncio.TimeoutError:
        pass
