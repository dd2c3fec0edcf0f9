"""A simulated cluster with auto-recovery on it: bookies that are lost for good or come back, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from helpers.worlds.model_cluster import FAST, ModelCluster
from metadata.bookkeeper.auditors import AuditorStore
from metadata.bookkeeper.bookies import BookieAddress
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.bookkeeper.replication import ReplicationStore
from metadata.zookeeper.memory import Fault, Injector, MemoryStore
from storage_node.autorecovery.daemon import AutoRecovery
from storage_node.client.writer import LedgerWriter
from storage_node.edge import Clock
from storage_node.protocol.digests import EntryDigest
from storage_node.protocol.striping import write_set
from storage_node.settings.autorecovery import AutoRecoverySettings

QUICK = AutoRecoverySettings(
    open_ledger_grace_period_ms=3_000,
    failed_ledger_lock_period_ms=64_000,
    rereplicate_backoff_ms=500,
    client=FAST,
)


MARK_FOLDER = re.compile(r"/underreplication/ledgers/(\w{4})/(\w{4})/(\w{4})/(\w{4})(?:/urL\d+)?$")


class RecoveryWorld(ModelCluster):
    """The cluster, and auto-recovery processes, each with a session of its own."""

    def __init__(self, bookies: int = 4, *, seed: int = 0) -> None:
        super().__init__(bookies, seed=seed)
        self.marks = ReplicationStore(self.store)
        self.auditors = AuditorStore(self.store)
        self.recoveries: dict[str, tuple[AutoRecovery, MemoryStore]] = {}
        self.ever_marked: set[int] = set()
        self.faults: Injector | None = None
        """What befalls requests to the metadata store, as `MemoryTree.inject`."""
        self.tree.inject = self._inject

    def _inject(self, session_id: int, operation: str, path: str) -> Fault | None:
        folder = MARK_FOLDER.search(path) if operation in ("create", "multi") else None
        if folder is not None:  # a mark, or its ledger's own folder together with it
            self.ever_marked.add(int("".join(folder.groups()), 16))
        return None if self.faults is None else self.faults(session_id, operation, path)

    async def __aenter__(self) -> RecoveryWorld:
        await super().__aenter__()
        await self.marks.prepare()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for name in list(self.recoveries):
            await self.end(name)
        await super().__aexit__(*exc)

    async def recover(
        self, name: str = "r1", settings: AutoRecoverySettings = QUICK, clock: Clock | None = None
    ) -> AutoRecovery:
        """Start an auto-recovery process."""
        store = MemoryStore(self.tree)
        seeded = random.Random(len(self.recoveries) + 1)
        recovery = AutoRecovery(settings, store, bookie_id=name, network=self, rng=seeded, clock=clock)
        self.recoveries[name] = (recovery, store)
        await recovery.start()
        return recovery

    async def end(self, name: str) -> None:
        """Stop it in order."""
        recovery, store = self.recoveries.pop(name)
        await recovery.stop()
        await store.close()
        assert recovery.failure is None, recovery.failure

    async def crash(self, name: str) -> None:
        """End it as if it were killed: its session ends, nothing is given back by itself."""
        recovery, store = self.recoveries.pop(name)
        await store.close()
        await recovery.stop()

    # ---- bookies

    async def lose(self, name: str) -> None:
        """End a node for good; its registration goes with its session."""
        self.bookies[name].kill()
        await self.registry.unregister(name)

    async def bring_back(self, name: str) -> None:
        """Start a node again with what it had."""
        self.bookies[name].down = False
        await self.registry.register(BookieAddress(name, name, 3181))

    async def make_readonly(self, name: str) -> None:
        await self.registry.register(BookieAddress(name, name, 3181), readonly=True)

    # ---- ledgers

    async def writer(self, entries: int, e: int = 3, w: int = 3, a: int = 2) -> LedgerWriter:
        """Open a ledger and write so many acknowledged entries."""
        writer = await self.client(replace(FAST, delay_ensemble_change=True)).create(
            ensemble_size=e, write_quorum=w, ack_quorum=a, password=b"secret"
        )
        await asyncio.gather(*(writer.add(payload(n)) for n in range(entries)))
        await self.settle(1)
        return writer

    async def closed(self, entries: int, e: int = 3, w: int = 3, a: int = 2) -> int:
        """Write a closed ledger."""
        writer = await self.writer(entries, e, w, a)
        await writer.close()
        return writer.ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.ledgers.read(ledger_id)).value

    async def marked(self) -> list[int]:
        return [ledger_id async for ledger_id in self.marks.marked()]

    async def assert_whole(self, ledger_id: int, entries: int) -> LedgerMetadata:
        """Assert that the ledger is closed with so many entries, each on all its bookies, which are alive."""
        metadata = await self.metadata(ledger_id)
        assert metadata.is_closed
        assert metadata.last_entry == entries - 1
        assert metadata.length == sum(len(payload(n)) for n in range(entries))
        names = {name for ensemble in metadata.ensembles for name in ensemble.bookies}
        assert not {name for name in names if self.bookies[name].down}
        digest = EntryDigest(metadata.digest_type, metadata.password)  # type: ignore[arg-type]
        length = 0
        for entry_id in range(entries):
            length += len(payload(entry_id))
            bookies = metadata.ensemble_for(entry_id).bookies
            for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
                body = self.bookies[bookies[index]].ledgers[ledger_id].entries[entry_id]
                entry = digest.verify(ledger_id, entry_id, memoryview(body))
                assert (bytes(entry.payload), entry.length) == (payload(entry_id), length)
        return metadata

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float = 120) -> float:
        """Wait, on the virtual clock; how long it took."""
        began = self.loop.time()
        while not await condition():
            assert self.loop.time() - began < within_s, "not within the time given"
            await asyncio.sleep(0.05)
        return self.loop.time() - began

    async def until_repaired(self, within_s: float = 120) -> float:
        """Wait until no ledger is marked, nor locked."""

        async def clean() -> bool:
            return not await self.marked() and not await self.marks.locked()

        return await self.until(clean, within_s)

    async def until_marked(self, ledgers: Iterable[int], within_s: float = 120) -> float:
        """Wait until all of them have been marked, though they may be repaired again by now."""

        async def all_marked() -> bool:
            return set(ledgers) <= self.ever_marked

        return await self.until(all_marked, within_s)


def payload(number: int) -> bytes:
    return f"entry {number} ".encode() * (number % 7 + 1)
