"""`Auditor`: finds ledgers that lack copies and publishes them; it repairs nothing.

*Bookie audit*: every ledger's metadata is read; a ledger that names bookies which are not registered is marked with
them. At the beginning of a term, once in a while, and when bookies are lost (`LossTracker`).

*Ledger check*: every ledger is checked by reading (`checker`), once in a long while; the time of the last one is kept
in the metadata.

*Placement check* (`PlacementCheck`), where it is asked for: every fragment of a closed ledger is judged by the
placement policy of auto-recovery's own ledger client (the placement keys in its file). A ledger is as good as its worst
fragment. Those that do not keep the policy are counted and named in the log. An open ledger is passed over: its writer
may still replace bookies. Where no racks are configured all bookies are in one, and no ledger keeps the policy, as
upstream has it. With `repairedPlacementPolicyNotAdheringBookieEnable` those that do not keep it are
marked, for workers to move copies of them; but none of which it is not known where its bookies lie, for
of such a ledger no copy can be moved. The same check counts marks that are older than
`underreplicatedLedgerRecoveryGracePeriod`: ledgers whose repair gets nowhere.

All of them wait while auto-recovery is switched off. An audit that cannot be finished is begun anew: what was lost
stays lost until one has run through. Ledgers are walked through, never collected: memory does not grow with their
number, and only a few reads are under way at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from metadata.bookkeeper.auditors import AuditorStore, PeriodicCheck
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore, Versioned
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import CorruptDataError, DistributedLogError, InvariantViolation, NoNodeError
from metadata.foundation.pacing import for_each
from metadata.foundation.tasks import end_tasks
from metadata.store import SessionState, WatchEvent
from storage_node.autorecovery.checker import METADATA_AWAY, LedgerChecker
from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.ledger_rules import CUSTOM_KEY
from storage_node.edge import Clock
from storage_node.settings.autorecovery import AutoRecoverySettings

logger = logging.getLogger(__name__)

METADATA_READS: Final = 32
"""Ledgers whose metadata an audit reads at once."""

RETRY_S: Final = 1.0
"""Pause before something that the metadata store interrupted is begun anew."""


@dataclass(slots=True)
class AuditReport:
    """Which bookies and ledgers did one pass find lost?"""

    ledgers: int = 0
    marked: int = 0
    """Ledgers that lack copies, however often they were marked before."""
    unreadable: int = 0
    """Ledgers that could not be looked at."""
    lost: set[str] = field(default_factory=set)
    """Bookies whose copies are missing."""


class Auditor:
    """Which ledgers lack copies? One term as the cluster's auditor, which finds and marks them.

    Args:
        marks: the cluster's marks, for workers.
        auditors: remembers when a check last ran.
        ledgers: all ledgers.
        registry: reports changes of the lists of bookies.
        checker: finds fragments that lack copies.
        settings: intervals and bounds.
        clock: the time of day, for the checks' znodes.
        judge_placement: says how well an ensemble keeps to the racks.
        knows_places: says whether it was known then where the ensemble's bookies lie.
    """

    def __init__(
        self,
        marks: ReplicationStore,
        auditors: AuditorStore,
        ledgers: LedgerStore,
        registry: BookieRegistry,
        checker: LedgerChecker,
        settings: AutoRecoverySettings,
        clock: Clock,
        judge_placement: Judge,
        knows_places: KnowsPlaces,
    ) -> None:
        self._judge_placement = judge_placement
        self._knows_places = knows_places
        self._marks = marks
        self._auditors = auditors
        self._ledgers = ledgers
        self._registry = registry
        self._checker = checker
        self._settings = settings
        self._clock = clock
        self._losses = LossTracker(())
        self._delay: Versioned[int] | None = None
        self._wanted = asyncio.Event()
        self._lists_changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.placement: PlacementReport | None = None
        """The result of the last placement check."""

    async def run(self) -> None:
        """Audit when there is reason to. Until it is cancelled; raises only what no later attempt could repair."""
        await self._marks.initialize_lost_bookie_recovery_delay(self._settings.lost_bookie_recovery_delay_s)
        self._losses = LossTracker(await self._auditors.known())
        self._wanted.set()
        stop_watching = self._registry.watch(self._lists_changed.set)
        work = [self._audit_when_wanted, self._follow_lists, self._follow_delay]
        work += [self._want_audits, self._check_ledgers_in_time, self._check_placement_in_time]
        tasks = [asyncio.get_running_loop().create_task(self._again(part)) for part in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            stop_watching()
            self._cancel_timer()
            await end_tasks(tasks)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a part that may be interrupted by the metadata store, from its beginning after each interruption."""
        while True:
            try:
                await work()
                return
            except InvariantViolation:
                raise
            except DistributedLogError as error:
                if self._marks.store.state is SessionState.CLOSED:
                    return
                logger.warning("auditing is interrupted, trying again: %s", error)
                await asyncio.sleep(RETRY_S)

    # ---- registered bookies -----------------------------------------------------------------------------------------

    async def _audit_when_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._marks.wait_until_enabled()
                lost = set(self._losses.lost)
                report = await self.audit_bookies()
            except BaseException:
                self._wanted.set()
                raise
            self._losses.audited(lost)  # only those that were lost before it began: others it may have passed over
            logger.info(
                "audited %d ledgers: %d lack the copies of %s",
                report.ledgers,
                report.marked,
                ", ".join(sorted(report.lost)) or "no bookie",
            )

    async def _follow_lists(self) -> None:
        while True:
            await self._lists_changed.wait()
            self._lists_changed.clear()
            try:
                available = (await self._auditors.registered()).available
            except BaseException:
                self._lists_changed.set()
                raise
            self._act_on(self._losses.saw(available, self._delay_s))

    @property
    def _delay_s(self) -> int:
        return self._settings.lost_bookie_recovery_delay_s if self._delay is None else self._delay.value

    def _act_on(self, need: AuditNeed) -> None:
        if need is AuditNeed.WAIT:
            # Counted from the first loss: lists that keep changing must not put the audit off for ever.
            if self._timer is None:
                logger.info("%s is lost; an audit follows in %d s", ", ".join(self._losses.lost), self._delay_s)
                self._start_timer()
            return
        self._cancel_timer()
        if need is AuditNeed.AUDIT:
            self._wanted.set()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._wanted.set()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _follow_delay(self) -> None:
        """Audit at once where an operator sets the delay to 0, or again to what it was."""
        while True:
            changed = asyncio.Event()

            def hear(_event: WatchEvent, changed: asyncio.Event = changed) -> None:
                changed.set()

            try:
                found = await self._marks.lost_bookie_recovery_delay(hear)
            except CorruptDataError as error:
                logger.warning("the delay stays at %d s: %s", self._delay_s, error)
                found = self._delay
            before, self._delay = self._delay, found
            if before is not None and found is not None and found.version != before.version:
                waiting = self._timer is not None
                self._cancel_timer()
                if found.value in (0, before.value):
                    self._wanted.set()
                elif waiting:
                    self._start_timer()
            await changed.wait()

    async def _want_audits(self) -> None:
        interval_s = self._settings.periodic_bookie_check_interval_s
        while interval_s > 0:
            await asyncio.sleep(interval_s)
            self._wanted.set()

    async def audit_bookies(self) -> AuditReport:
        """Mark every ledger that names a bookie which is not registered. Raises the metadata store's errors."""
        report = AuditReport()
        # Before any ledger is read: a bookie that is lost later has an audit of its own.
        available = set((await self._auditors.registered()).available)

        async def look(ledger_id: int) -> None:
            metadata = await self._metadata_of(ledger_id, report)
            if metadata is None:
                return
            missing = {name for ensemble in metadata.ensembles for name in ensemble.bookies} - available
            if missing - report.lost:
                # A name that is met for the first time: it may have registered since this audit began.
                available.update((await self._auditors.registered()).available)
                missing -= available
            if missing:
                await self._mark(ledger_id, missing, report)

        await for_each(self._ledgers.ids(), METADATA_READS, look)
        return report

    async def _metadata_of(self, ledger_id: int, report: AuditReport) -> LedgerMetadata | None:
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except NoNodeError:
            return None  # deleted since it was listed
        except CorruptDataError as error:
            logger.error("a ledger cannot be audited: %s", error)
            report.unreadable += 1
            return None
        report.ledgers += 1
        return metadata

    async def _mark(self, ledger_id: int, missing: set[str], report: AuditReport) -> None:
        now_ms = self._clock.now_ms() if self._settings.store_mark_time else None
        await self._marks.mark(ledger_id, sorted(missing), now_ms)
        report.marked += 1
        report.lost |= missing

    # ---- what they hold ---------------------------------------------------------------------------------------------

    async def _check_ledgers_in_time(self) -> None:
        await self._in_time(PeriodicCheck.ALL_LEDGERS, self._settings.periodic_check_interval_s, self._check_by_reading)

    async def _check_placement_in_time(self) -> None:
        interval_s = self._settings.periodic_placement_check_interval_s
        await self._in_time(PeriodicCheck.PLACEMENT_POLICY, interval_s, self.check_placement)

    async def _in_time(self, check: PeriodicCheck, interval_s: int, run: Callable[[], Awaitable[object]]) -> None:
        """Run a check whenever its interval is over, also since the term of another auditor."""
        while interval_s > 0:
            last_ms = await self._auditors.last_run_ms(check)
            # A clock that was ahead when the last run was written must not put off the next one for longer than usual.
            since_s = interval_s if last_ms is None else max((self._clock.now_ms() - last_ms) / 1000, 0)
            await asyncio.sleep(max(interval_s - since_s, 0))
            await self._marks.wait_until_enabled()
            await run()
            await self._auditors.set_last_run_ms(check, self._clock.now_ms())

    async def _check_by_reading(self) -> None:
        report = await self.check_all_ledgers()
        logger.info(
            "checked %d ledgers by reading: %d lack copies, %d could not be read",
            report.ledgers,
            report.marked,
            report.unreadable,
        )

    async def check_placement(self) -> PlacementReport:
        """Judge every closed ledger by the placement policy. Raises the metadata store's errors."""
        overdue = await self._overdue()
        mark = self._mark_placement if self._settings.repair_placement else None
        report = await PlacementCheck(self._ledgers, self._judge_placement, mark, self._knows_places).run()
        report.overdue = overdue
        self.placement = report
        logger.log(
            logging.WARNING if report.not_adhering else logging.INFO,
            "checked the placement of %d closed ledgers: %d do not keep the policy, %d do by the racks that are known",
            report.closed,
            report.not_adhering,
            report.softly_adhering,
        )
        if report.unlocated:
            logger.warning(
                "%d of those that do not keep the placement policy are not marked, because it is not known where their "
                "storage nodes lie (reppDnsResolverClass, networkTopologyScriptFileName)",
                report.unlocated,
            )
        return report

    async def _mark_placement(self, ledger_id: int) -> None:
        await self._marks.mark_placement(ledger_id, self._clock.now_ms() if self._settings.store_mark_time else None)

    async def _overdue(self) -> int:
        """Count and name the ledgers that have been marked for longer than the grace period. A mark without a time, or
        one that cannot be read, is not counted: since when it is there is not known."""
        grace_s = self._settings.underreplicated_grace_period_s
        count, named = 0, []
        if grace_s <= 0:
            return count
        async for ledger_id in self._marks.marked():
            try:
                found = await self._marks.read(ledger_id)
            except CorruptDataError as error:
                logger.error("since when a ledger lacks copies is not known: %s", error)
                continue
            since_ms = None if found is None else found.value.ctime_ms
            if since_ms is not None and self._clock.now_ms() - since_ms > grace_s * 1000:
                count += 1
                named += [str(ledger_id)] if count <= MAX_NAMED else []
        if count:
            logger.error(
                "%d ledgers have been marked for more than %d s and are not repaired: %s%s",
                count,
                grace_s,
                ", ".join(named),
                "" if count <= MAX_NAMED else ", ...",
            )
        return count

    async def check_all_ledgers(self) -> AuditReport:
        """Read every ledger's copies and mark those that lack some. Raises the metadata store's errors."""
        report = AuditReport()

        async def look(ledger_id: int) -> None:
            try:
                found = await self._checker.inspect(ledger_id)
            except NoNodeError:
                return
            except (*METADATA_AWAY, InvariantViolation):
                raise
            except DistributedLogError as error:
                logger.warning("a ledger could not be checked: %s", error)
                report.unreadable += 1
                return
            report.ledgers += 1
            if found.missing:
                await self._mark(ledger_id, found.missing, report)

        await for_each(self._ledgers.ids(), self._settings.max_concurrent_ledger_checks, look)
        return report


class AuditNeed(Enum):
    """Which bookies are lost at present, and is it time to mark their ledgers?"""

    NOTHING = "nothing"
    """No bookie is lost: an audit that was to come is not needed."""
    WAIT = "wait"
    """Audit after the delay, counted from when this was first said."""
    AUDIT = "audit"


class LossTracker:
    """Which bookies were there, and which of them are lost and not yet audited. Pure.

    A bookie that is missing for the first time is *lost*. Without a delay, or with more than one lost, an audit is due
    at once. A single one is given time to come back: a restart should not set the cluster copying.
    """

    def __init__(self, known: Collection[str]) -> None:
        self._known = set(known)
        self.lost: set[str] = set()

    def saw(self, available: Collection[str], delay_s: int) -> AuditNeed:
        """Note that the lists changed: these bookies are registered now. Returns what is to be done."""
        self.lost.difference_update(available)
        self._known.update(available)
        fresh = self._known.difference(available)
        self._known -= fresh  # counted once, until it has been seen again
        self.lost |= fresh
        if not self.lost:
            return AuditNeed.NOTHING
        return AuditNeed.AUDIT if delay_s == 0 or len(self.lost) > 1 else AuditNeed.WAIT

    def audited(self, lost: Collection[str]) -> None:
        """Note that an audit that began when these were lost has published their ledgers."""
        self.lost.difference_update(lost)


# ------------------------------------------------------------------------------------ placement

MAX_VERDICTS: Final = 10_000
"""Ensembles whose verdict is remembered for the rest of a pass: most ledgers share theirs with others."""
MAX_NAMED: Final = 100
"""Ledgers that a pass names in the log; all are counted."""

Judge: TypeAlias = Callable[[Sequence[str], LedgerMetadata], Awaitable[Adherence]]
"""Judges an ensemble of a ledger by its quorums, and by its own rule if it has one."""

KnowsPlaces: TypeAlias = Callable[[Sequence[str], LedgerMetadata], bool]
"""Says whether it was known where all bookies of an ensemble lie, when it was judged last."""


@dataclass(slots=True)
class PlacementReport:
    """How many ledgers did one pass judge, and find in too few racks?"""

    closed: int = 0
    """Ledgers that were judged."""
    not_adhering: int = 0
    softly_adhering: int = 0
    """They keep the policy in the racks that are known, but not all of their bookies' racks are."""
    unreadable: int = 0
    marked: int = 0
    """Ledgers that do not keep the policy and were marked, for workers to mend."""
    unlocated: int = 0
    """Ledgers that do not keep the policy and were not marked: where their bookies lie is not known, so that none of
    their copies could be moved."""
    overdue: int = 0
    """Ledgers that have been marked for longer than `underreplicatedLedgerRecoveryGracePeriod`; the auditor's alone."""
    named: dict[int, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """Ledgers that do not keep the policy, the first `MAX_NAMED` of them, and their fragments that do not."""
    soft: dict[int, tuple[Ensemble, ...]] = field(default_factory=dict, compare=False)
    """Ledgers that keep it softly, the first `MAX_NAMED` of them, and their fragments that do."""


class PlacementCheck:
    """One pass over all ledgers. `judge` is the policy's; `mark`, if given, is called with each ledger that does not
    keep it, but for those of which `knows_places` says that no failing ensemble's bookies have all known places."""

    def __init__(
        self,
        ledgers: LedgerStore,
        judge: Judge,
        mark: Callable[[int], Awaitable[None]] | None = None,
        knows_places: KnowsPlaces = lambda _bookies, _metadata: True,
    ) -> None:
        self._ledgers = ledgers
        self._judge = judge
        self._mark = mark
        self._knows_places = knows_places
        self._verdicts: dict[tuple[object, ...], Adherence] = {}
        self.report = PlacementReport()

    async def run(self) -> PlacementReport:
        """Judge the ledgers once. Raises the metadata store's errors."""
        await for_each(self._ledgers.ids(), METADATA_READS, self._look)
        return self.report

    async def _look(self, ledger_id: int) -> None:
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except NoNodeError:
            return  # deleted since it was listed
        except CorruptDataError as error:
            logger.error("the placement of a ledger cannot be checked: %s", error)
            self.report.unreadable += 1
            return
        if not metadata.is_closed:
            return
        try:
            verdicts = [await self._verdict(part.bookies, metadata) for part in metadata.ensembles]
        except CorruptDataError as error:
            logger.error("the placement of ledger %d cannot be checked: %s", ledger_id, error)
            self.report.unreadable += 1
        else:
            await self._count(ledger_id, metadata, verdicts)

    async def _count(self, ledger_id: int, metadata: LedgerMetadata, verdicts: Sequence[Adherence]) -> None:
        report = self.report
        report.closed += 1
        worst = min(verdicts)
        if worst is Adherence.MEETS_SOFT:
            report.softly_adhering += 1
            if report.softly_adhering <= MAX_NAMED:
                judged_parts = zip(metadata.ensembles, verdicts, strict=True)
                report.soft[ledger_id] = tuple(part for part, one in judged_parts if one is Adherence.MEETS_SOFT)
        elif worst is Adherence.FAIL:
            report.not_adhering += 1
            judged = zip(metadata.ensembles, verdicts, strict=True)
            failing = [part for part, verdict in judged if verdict is Adherence.FAIL]
            if report.not_adhering <= MAX_NAMED:
                bad = [f"from entry {part.first_entry} on {', '.join(part.bookies)}" for part in failing]
                report.named[ledger_id] = tuple(bad)
                logger.warning("ledger %d does not keep the placement policy: %s", ledger_id, "; ".join(bad))
            if self._mark is None:
                return
            if any(self._knows_places(part.bookies, metadata) for part in failing):
                await self._mark(ledger_id)
                report.marked += 1
            else:
                report.unlocated += 1

    async def _verdict(self, bookies: tuple[str, ...], metadata: LedgerMetadata) -> Adherence:
        key = (bookies, metadata.write_quorum, metadata.ack_quorum, metadata.custom.get(CUSTOM_KEY))
        found = self._verdicts.get(key)
        if found is None:
            found = await self._judge(bookies, metadata)
            if len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.clear()
            self._verdicts[key] = found
        return found
