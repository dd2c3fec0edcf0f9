"""A node that is lost for good, with real processes (acceptance 3 of the storage tier): 200 ledgers on four nodes.

Auto-recovery runs inside of each node's process. One node is killed and its directory deleted; the others restore what
it held: every entry of every ledger is then read from each replica by itself. And a node that comes back with an empty
disk under its old identity is refused.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from helpers.waiting import until

from dlspark.sandbox.processes import SandboxError
from dlspark.sandbox.sandbox import Sandbox
from metadata.bookkeeper.auditors import AuditorStore
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.pacing import for_each
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.securing import open_session
from storage_node.client.client import LedgerClient
from storage_node.protocol.striping import write_set

pytestmark = pytest.mark.processes

LEDGERS = 200
OPEN_LEDGERS = 5
REPAIR_WITHIN_S = 240
SETTINGS = {"zkTimeout": 4000, "openLedgerRereplicationGracePeriod": 1000, "rwRereplicateBackoffMs": 200}


@pytest.fixture
def recovering_sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path, nodes=4, node_settings=SETTINGS, zookeeper_tick_ms=500, auto_recovery=True) as running:
        yield running


@asynccontextmanager
async def client_of(recovering_sandbox: Sandbox) -> AsyncIterator[tuple[LedgerClient, LedgerStore]]:
    store = await open_session(recovering_sandbox.zookeeper_address, SecuritySettings())
    ledgers = LedgerStore(store)
    client = LedgerClient(ledgers, BookieRegistry(store), rng=random.Random(3))
    try:
        yield client, ledgers
    finally:
        await client.close()
        await store.close()


def payload(ledger_id: int, entry_id: int) -> bytes:
    return random.Random(ledger_id << 20 | entry_id).randbytes(entry_id * 97 % 3000)


async def write_ledgers(client: LedgerClient, count: int) -> dict[int, int]:
    """Ledgers of all digests and several shapes, the last few left open; by id, how many entries they have.

    Those have an ack quorum above 1: with 1, the lost node might have had the only copy of the last entry, and nobody
    may close such a ledger.
    """
    written: dict[int, int] = {}
    digests, shapes = list(DigestType), [(3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 1)]

    async def write(number: int) -> None:
        is_open = number >= count - OPEN_LEDGERS
        e, w, a = shapes[number % (3 if is_open else 4)]
        digest = digests[number // 4 % len(digests)]
        writer = await client.create(ensemble_size=e, write_quorum=w, ack_quorum=a, digest_type=digest, password=b"pw")
        entries = number % 23
        await asyncio.gather(*(writer.add(payload(writer.ledger_id, n)) for n in range(entries)))
        await (writer.abandon() if is_open else writer.close())
        written[writer.ledger_id] = entries

    await for_each(range(count), 10, write)
    return written


async def whole(ledgers: LedgerStore, marks: ReplicationStore, written: dict[int, int], lost: str) -> bool:
    """Whether no ledger names the lost node and none is marked any more."""
    async for _ in marks.marked():
        return False
    naming = 0

    async def look(ledger_id: int) -> None:
        nonlocal naming
        metadata = (await ledgers.read(ledger_id)).value
        naming += any(lost in ensemble.bookies for ensemble in metadata.ensembles)

    await for_each(written, 16, look)
    return naming == 0


async def read_every_copy(client: LedgerClient, ledgers: LedgerStore, written: dict[int, int], lost: str) -> int:
    """Each entry from each of its replicas, by itself; how many copies that were."""
    copies = 0

    async def read(ledger_id: int) -> None:
        nonlocal copies
        metadata = (await ledgers.read(ledger_id)).value
        replicas = client.copies(ledger_id, metadata)
        if metadata.is_closed:
            assert metadata.last_entry == written[ledger_id] - 1
        for entry_id in range(written[ledger_id]):
            bookies = metadata.ensemble_for(entry_id).bookies
            assert lost not in bookies
            for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                entry = await replicas.read(bookies[index], entry_id)
                assert bytes(entry.payload) == payload(ledger_id, entry_id)
                copies += 1

    await for_each(written, 16, read)
    return copies


async def test_a_node_lost_for_good_is_made_up_for_and_cannot_come_back_empty(recovering_sandbox: Sandbox) -> None:
    async with client_of(recovering_sandbox) as (client, ledgers):
        marks, auditors = ReplicationStore(ledgers.store), AuditorStore(ledgers.store)
        written = await write_ledgers(client, LEDGERS)
        lost = recovering_sandbox.node_ids[1]
        held = sum([lost in (await ledgers.read(n)).value.ensembles[0].bookies for n in written])
        assert held > LEDGERS / 3

        async def elected() -> bool:
            return await auditors.auditor() in recovering_sandbox.node_ids

        await until(elected, every_s=0.2)

        began = time.monotonic()
        recovering_sandbox.kill_node(1)
        shutil.rmtree(recovering_sandbox.node_directory(1))
        await until(lambda: whole(ledgers, marks, written, lost), "repaired", patience_s=REPAIR_WITHIN_S, every_s=0.2)
        took = time.monotonic() - began

        copies = await read_every_copy(client, ledgers, written, lost)
        print(f"\n{held} of {LEDGERS} ledgers lost a copy; all whole again after {took:.1f} s (expiry of the dead")
        print(f"node's session included); {copies} copies of {sum(written.values())} entries read, each by itself")
        await assert_open_ledgers_recover(client, written)

    with pytest.raises(SandboxError, match="did not start") as refused:
        recovering_sandbox.start_node(1)
    assert "cookie" in str(refused.value)


async def assert_open_ledgers_recover(client: LedgerClient, written: dict[int, int]) -> None:
    """The ledgers that nobody closed end where their writers stopped."""
    for ledger_id, entries in written.items():
        reader = await client.open(ledger_id, password=b"pw", recover=True)
        assert reader.last_add_confirmed == entries - 1
        await reader.close()
