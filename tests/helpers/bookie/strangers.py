"""`write_as_stranger`: adds under ledger ids of a cluster by a client that knows its storage nodes and nothing else.

Storage nodes ask for no credentials unless they are configured to: every client that can connect may add the first
entry under an id that is not used yet. This does, with a client whose metadata is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.client.client import LedgerClient
from storage_node.settings.client import ClientSettings

PASSWORD: Final = b"a stranger's"


async def write_as_stranger(
    nodes: Sequence[BookieAddress], ledger_ids: Iterable[int], security: SecuritySettings | None = None
) -> None:
    """Add an entry under each of these ids, on every one of these nodes. `security`: how it got in, where that is asked
    for."""
    store = MemoryStore(MemoryTree())
    ledgers, registry = LedgerStore(store), BookieRegistry(store)
    await ledgers.format()
    for node in nodes:
        await registry.register(node)
    client = LedgerClient(ledgers, registry, settings=ClientSettings(security=security or SecuritySettings()))
    size = len(nodes)
    try:
        for ledger_id in ledger_ids:
            writer = await client.create(
                ensemble_size=size, write_quorum=size, ack_quorum=size, password=PASSWORD, ledger_id=ledger_id
            )
            await writer.add(b"not yours")
            await writer.close()
    finally:
        await client.close()
        await store.close()
