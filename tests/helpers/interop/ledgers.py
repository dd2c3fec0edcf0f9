"""Ledgers written and read by the Java BookKeeper client and by ours, in steps that both have."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from dlspark.testing.java_process import JavaTool
from helpers.interop.clusters import InteropCluster
from helpers.interop.java_tool import described, make_payload
from helpers.waiting import until
from storage_node.client.client import LedgerClient
from storage_node.client.reader import LedgerReader
from storage_node.client.writer import LedgerWriter
from storage_node.errors import NotEnoughBookiesError

SIZES = (0, 1, 100, 70_000)
NEAR_LIMIT_BYTES = 5 * 1024 * 1024 - 1024
FENCED = -101
CLOSED = -11
UNAUTHORIZED = -102


def payloads(sizes: tuple[int, ...]) -> list[bytes]:
    return [make_payload(0, index, size) for index, size in enumerate(sizes)]


async def java_creates(ask: Any, **options: object) -> dict[str, Any]:
    created: dict[str, Any] = await ask("ledger.create", **options)
    return created


async def java_adds(ask: Any, ledger: dict[str, Any], sizes: tuple[int, ...], first: int = 0) -> dict[str, Any]:
    """Add one entry a size, in order; the answer tells which were acknowledged."""
    answer: dict[str, Any] = {}
    for index, size in enumerate(sizes, first):
        answer = await ask("ledger.write", handle=ledger["handle"], first=index, count=1, size=size)
    return answer


async def java_reads(ask: Any, ledger_id: int, *, recover: bool = True, **options: object) -> list[dict[str, Any]]:
    opened = await ask("ledger.open", ledger=ledger_id, recover=recover, **options)
    entries: list[dict[str, Any]] = await ask("ledger.read", handle=opened["handle"])
    await ask("ledger.close", handle=opened["handle"])
    return entries


async def restored(java: JavaTool, cluster: InteropCluster, client: LedgerClient | None = None) -> None:
    """Bring lost nodes back, and wait until all Java clients of the cluster, and `client`, write to each of them.

    A client that saw the loss hears of the return by a watch. Before that Java's has forgotten the node's address, so
    that what it sends there fails at once, ahead of what the other nodes answer (a fence, say); and with no other node
    to put in its place the ledger ends with "not enough bookies".
    """
    await asyncio.to_thread(cluster.restore)
    await answered(java, cluster)
    if client is not None:
        await until(partial(we_reach, client, len(cluster.bookies)), "a new ledger on all nodes")


async def answered(java: JavaTool, cluster: InteropCluster) -> None:
    """Wait until every node has answered all adds that Java's clients have sent.

    An add is acknowledged by two of three nodes. Where the third one is lost before it has answered, the client looks
    for another node before the ledger's next add, and without one that add ends with "not enough bookies", whatever
    the nodes would have said of it. Nodes answer a client's adds in order: who has answered a later one owes nothing.
    """
    await cluster.on(java)("ledger.reach", nodes=len(cluster.bookies))


async def we_reach(client: LedgerClient, nodes: int) -> bool:
    """Return whether our client writes to so many nodes at once."""
    try:
        writer = await client.create(ensemble_size=nodes, write_quorum=nodes, ack_quorum=nodes)
        await writer.add(b"x")
    except NotEnoughBookiesError:
        return False
    await writer.close()
    await client.delete(writer.ledger_id)
    return True


async def java_sees(ask: Any, handle: int, entry: int) -> bool:
    """Return whether the explicit LAC that Java reads is `entry` or a later one."""
    return bool(await ask("ledger.lac", handle=handle, explicit=True) >= entry)


def as_java_tells(contents: list[bytes]) -> list[dict[str, Any]]:
    """Return what the Java side must read if the ledger holds exactly these payloads."""
    lengths = [sum(len(payload) for payload in contents[: index + 1]) for index in range(len(contents))]
    return [{"entry": index, "length": lengths[index], **described(payload)} for index, payload in enumerate(contents)]


async def we_add(writer: LedgerWriter, sizes: tuple[int, ...], first: int = 0) -> list[int]:
    adds = [writer.add(make_payload(0, index, size)) for index, size in enumerate(sizes, first)]
    return list(await asyncio.gather(*adds))


async def we_read(client: LedgerClient, ledger_id: int, *, recover: bool = True, password: bytes = b"") -> list[bytes]:
    reader = await client.open(ledger_id, password=password, recover=recover)
    try:
        return await contents_of(reader)
    finally:
        await reader.close()


async def contents_of(reader: LedgerReader) -> list[bytes]:
    if reader.last_add_confirmed < 0:
        return []
    entries = await reader.read(0, reader.last_add_confirmed)
    assert [entry.entry_id for entry in entries] == list(range(reader.last_add_confirmed + 1))
    return [bytes(entry.payload) for entry in entries]
