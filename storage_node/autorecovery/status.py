"""The state of auto-recovery, by its znodes: for operators. It needs no running daemon, and changes none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from metadata.bookkeeper.auditors import AuditorStore
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import CorruptDataError
from metadata.store import MetadataStore
from storage_node.edge import Clock

DEFAULT_LIMIT: Final = 1000
"""Marks and locks that are read: each is a znode of its own."""


@dataclass(frozen=True, slots=True)
class MarkedLedger:
    """A ledger that lacks copies. `missing` is None where the mark cannot be read, `age_s` where it has no time."""

    ledger_id: int
    missing: tuple[str, ...] | None
    age_s: int | None


@dataclass(frozen=True, slots=True)
class OpenLock:
    """A ledger that is being repaired, and the worker that does so; None: the lock does not name it."""

    ledger_id: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """Which ledgers lack copies now, and are they repaired? `marked` and `locked` count all; the lists end where the
    limit was.

    `lost_bookie_recovery_delay_s` is None until an auditor or an operator has set it.
    """

    enabled: bool
    auditor: str | None
    lost_bookie_recovery_delay_s: int | None
    marked: int
    locked: int
    ledgers: list[MarkedLedger] = field(default_factory=list)
    locks: list[OpenLock] = field(default_factory=list)


async def recovery_status(
    store: MetadataStore, root: str, clock: Clock, *, limit: int = DEFAULT_LIMIT
) -> RecoveryStatus:
    """Return the status of the cluster at `root`. Raises CallerError where no cluster is initialised there,
    CorruptDataError where the delay is not a number, and the metadata store's errors."""
    await LedgerStore(store, root).check_initialised()
    marks = ReplicationStore(store, root)
    delay = await marks.lost_bookie_recovery_delay()
    ledgers: list[MarkedLedger] = []
    marked = 0
    async for ledger_id in marks.marked():
        marked += 1
        if len(ledgers) < limit:
            found = await _marked(marks, ledger_id, clock)
            ledgers += [] if found is None else [found]
    locked = sorted(await marks.locked())
    return RecoveryStatus(
        enabled=await marks.enabled(),
        auditor=await AuditorStore(store, root).auditor(),
        lost_bookie_recovery_delay_s=None if delay is None else delay.value,
        marked=marked,
        locked=len(locked),
        ledgers=ledgers,
        locks=[OpenLock(ledger_id, await marks.lock_owner(ledger_id)) for ledger_id in locked[:limit]],
    )


async def _marked(marks: ReplicationStore, ledger_id: int, clock: Clock) -> MarkedLedger | None:
    """Return one mark as operators see it; None where the ledger was repaired since it was listed."""
    try:
        found = await marks.read(ledger_id)
    except CorruptDataError:
        return MarkedLedger(ledger_id, None, None)
    if found is None:
        return None
    since_ms = found.value.ctime_ms
    age_s = None if since_ms is None else max(clock.now_ms() - since_ms, 0) // 1000
    return MarkedLedger(ledger_id, found.value.missing, age_s)


async def switch(store: MetadataStore, root: str, *, on: bool) -> bool:
    """Switch auto-recovery on or off for the whole cluster; False where it was so already.

    Raises CallerError where no cluster is initialised below `root`, and the metadata store's errors.
    """
    await LedgerStore(store, root).check_initialised()
    marks = ReplicationStore(store, root)
    return await (marks.enable() if on else marks.disable())
