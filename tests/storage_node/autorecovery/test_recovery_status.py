"""What an operator is told of auto-recovery, and the switch."""

from __future__ import annotations

import pytest

from metadata.bookkeeper.auditors import AuditorStore
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import CallerError
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.autorecovery.status import MarkedLedger, OpenLock, RecoveryStatus, recovery_status, switch

ROOT = "/ledgers"


class FixedClock:
    def now_ms(self) -> int:
        return 1_000_000


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore(MemoryTree())
    await LedgerStore(store, ROOT).format()
    return store


async def test_a_cluster_without_auto_recovery_is_enabled_and_has_nothing_to_tell(store: MemoryStore) -> None:
    found = await recovery_status(store, ROOT, FixedClock())
    assert found == RecoveryStatus(True, None, None, 0, 0)


async def test_marks_locks_auditor_and_delay_are_told(store: MemoryStore) -> None:
    marks, auditors = ReplicationStore(store, ROOT), AuditorStore(store, ROOT)
    await marks.prepare()
    await marks.set_lost_bookie_recovery_delay(30)
    await auditors.vote("b1:3181")
    await marks.mark(7, ["b2:3181", "b3:3181"], 940_000)
    await marks.mark(70_000, ["b2:3181"])
    await store.create(
        f"{ROOT}/underreplication/ledgers/0000/0000/0000/0009/urL0000000009", b"nonsense {", make_parents=True
    )
    await marks.lock(7, "b4:3181")
    await store.create(marks.lock_path(8), b"", make_parents=True)
    found = await recovery_status(store, ROOT, FixedClock())
    assert (found.enabled, found.auditor, found.lost_bookie_recovery_delay_s) == (True, "b1:3181", 30)
    assert found.marked == 3
    assert found.ledgers == [
        MarkedLedger(7, ("b2:3181", "b3:3181"), 60),
        MarkedLedger(9, None, None),
        MarkedLedger(70_000, ("b2:3181",), None),
    ]
    assert found.locked == 2
    assert found.locks == [OpenLock(7, "b4:3181"), OpenLock(8, None)]


async def test_the_lists_are_bounded_and_the_counts_are_not(store: MemoryStore) -> None:
    marks = ReplicationStore(store, ROOT)
    for ledger_id in range(20):
        await marks.mark(ledger_id, ["b"])
        await marks.lock(ledger_id, "me")
    found = await recovery_status(store, ROOT, FixedClock(), limit=3)
    assert (found.marked, found.locked) == (20, 20)
    assert [ledger.ledger_id for ledger in found.ledgers] == [0, 1, 2]
    assert [lock.ledger_id for lock in found.locks] == [0, 1, 2]


async def test_the_switch_is_the_znode_and_tells_whether_it_moved(store: MemoryStore) -> None:
    assert not await switch(store, ROOT, on=True)
    assert await switch(store, ROOT, on=False)
    assert not await switch(store, ROOT, on=False)
    assert await store.exists(f"{ROOT}/underreplication/disable") is not None
    assert not (await recovery_status(store, ROOT, FixedClock())).enabled
    assert await switch(store, ROOT, on=True)
    assert await store.exists(f"{ROOT}/underreplication/disable") is None


async def test_where_no_cluster_is_nothing_is_switched() -> None:
    store = MemoryStore(MemoryTree())
    with pytest.raises(CallerError, match="initialised"):
        await switch(store, ROOT, on=False)
    with pytest.raises(CallerError, match="initialised"):
        await recovery_status(store, ROOT, FixedClock())
    assert await store.exists(ROOT) is None
