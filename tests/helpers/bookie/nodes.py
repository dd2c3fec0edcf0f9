"""Some bookies in this process, on real sockets and directories, with metadata in memory, and clients of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security.settings import AdmissionSettings, SecuritySettings
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.node.bookie import Bookie
from storage_node.client.client import LedgerClient
from storage_node.settings.bookie import MIB, BookieSettings
from storage_node.settings.client import ClientSettings

SETTINGS = ClientSettings(
    add_entry_timeout_ms=30_000,
    read_entry_timeout_ms=30_000,
    speculative_read_ms=500,
    long_poll_ms=1_000,
    vacancy_retry_ms=100,
    replacement_pause_ms=200,
)


class Nodes:
    """Bookies, each with a directory and a metadata session of its own.

    Args:
        directory: for their data.
        security, admission: of the bookies.
        client_security: of the clients.
    """

    def __init__(
        self,
        directory: Path,
        security: SecuritySettings | None = None,
        client_security: SecuritySettings | None = None,
        admission: AdmissionSettings | None = None,
    ) -> None:
        self.security = security or SecuritySettings(security="off")
        self.client_security = client_security or SecuritySettings(security="off")
        self.admission = admission or AdmissionSettings()
        self.directory = directory
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.ledgers = LedgerStore(self.store)
        self.registry = BookieRegistry(self.store)
        self.running: dict[str, tuple[Bookie, MemoryStore]] = {}
        self.clients: list[LedgerClient] = []

    async def start(self, name: str, port: int = 0) -> Bookie:
        settings = BookieSettings(
            journal_directories=(str(self.directory / name / "journal"),),
            ledger_directories=(str(self.directory / name / "ledgers"),),
            bookie_port=port,
            listening_address="127.0.0.1",
            bookie_id=name,
            journal_max_size_mb=16,
            journal_pre_alloc_size_mb=1,
            skip_list_size_limit=32 * MIB,
            security=self.security,
            admission=self.admission,
        )
        store = MemoryStore(self.tree)
        bookie = Bookie(settings, store)
        await bookie.start()
        self.running[name] = (bookie, store)
        return bookie

    async def stop(self, name: str) -> None:
        bookie, store = self.running.pop(name)
        await bookie.stop()
        await store.close()

    def client(self, settings: ClientSettings = SETTINGS, security: SecuritySettings | None = None) -> LedgerClient:
        settings = replace(settings, security=security or self.client_security)
        client = LedgerClient(self.ledgers, self.registry, settings=settings)
        self.clients.append(client)
        return client


@asynccontextmanager
async def running(nodes: Nodes, count: int = 4) -> AsyncIterator[Nodes]:
    """Run bookies node-0, node-1 ... for the length of a block."""
    await nodes.ledgers.format()
    try:
        for number in range(count):
            await nodes.start(f"node-{number}")
        yield nodes
    finally:
        for client in nodes.clients:
            await client.close()
        for name in list(nodes.running):
            await nodes.stop(name)
        await nodes.store.close()
