"""The cluster as the storage of an Apache Pulsar broker: how to point one at it, and what brokers have stored there.

    python examples/pulsar_ledgers.py [LEDGERS_ROOT]

`LEDGERS_ROOT` is the tree of ledgers in ZooKeeper (`zkLedgersRootPath` of the nodes), such as /pulsar/ledgers, which a
broker's set-up makes; without it, that of the namespace. Needs a running cluster: see examples/README.md.
"""

import asyncio
import sys

from dlspark import AsyncNamespace
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from storage_node.client.client import LedgerClient

NAME = "pulsar/managed-ledger"  # where a broker notes in a ledger's metadata which topic it is of


async def topics(ledgers: LedgerStore) -> dict[str, list[int]]:
    """Return the ledgers of each topic ("tenant/namespace/persistent/topic"), in order: they are its log."""
    found: dict[str, list[int]] = {}
    async for ledger in ledgers.ids():
        custom = (await ledgers.read(ledger)).value.custom
        if custom.get("application") == b"pulsar" and NAME in custom:
            found.setdefault(custom[NAME].decode(), []).append(ledger)
    return {name: sorted(those) for name, those in sorted(found.items())}


async def main(root: str | None) -> None:
    """Print every topic with its ledgers."""
    async with await AsyncNamespace.open() as namespace:
        services = namespace.services
        root = root or services.ledger_store.root
        if root.endswith("/ledgers"):  # a broker looks for them there, below its metadata
            print("A broker whose broker.conf says this stores its topics on the nodes of this tree:")
            print(f"  metadataStoreUrl=zk:{namespace.uri.servers}{root.removesuffix('/ledgers')}")

        ledgers = LedgerStore(services.store, root)
        registry = BookieRegistry(services.store, root)
        print(f"{len(await registry.writable())} nodes below {root}")
        client = LedgerClient(ledgers, registry)
        found = await topics(ledgers)
        print(f"{len(found)} topic(s) of brokers")
        for name, those in found.items():
            print(name)
            for ledger in those:
                # A broker that writes is not disturbed: without recovery nothing is fenced.
                reader = await client.open(ledger, recover=False)
                last = reader.last_add_confirmed
                entries = await reader.read(0, last) if last >= 0 else []
                nodes = ", ".join(reader.metadata.ensembles[-1].bookies)
                size = sum(len(entry.payload) for entry in entries)
                print(f"  ledger {ledger}: {len(entries)} entries, {size:,} bytes, on {nodes}")
                await reader.close()
        await client.close()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
