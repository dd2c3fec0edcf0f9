"""A bookie in this process on a temporary directory, and a plain client of the wire protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import DigestType
from metadata.security.audit import NOWHERE, Noted
from metadata.security.exchange import Authenticator
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.security import node_security
from storage_node.bookie.requests.handlers import list_group, list_head
from storage_node.edge import Clock, Link
from storage_node.protocol.decoding import decode_response
from storage_node.protocol.digests import EntryDigest, master_key
from storage_node.protocol.encoding import (
    encode_add_request,
    encode_read_lac_request,
    encode_read_request,
    encode_write_lac_request,
)
from storage_node.protocol.schema import Status
from storage_node.protocol.values import AddResponse, ReadLacResponse, ReadResponse, Response
from storage_node.settings.bookie import BookieSettings
from storage_node.transport.tcp import TcpNetwork

MIB = 1024 * 1024
KEY = master_key(b"pw")
DIGEST = EntryDigest(DigestType.CRC32, b"pw")


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int | None = None) -> bytes:
    """Return a packaged entry."""
    known = entry_id - 1 if lac is None else lac
    return DIGEST.package(ledger_id, entry_id, known, len(payload) * (entry_id + 1), payload) + payload


def availability(ranges: list[tuple[int, int]]) -> bytes:
    """Return the blob that lists these runs of entry ids."""
    return list_head(len(ranges)) + b"".join(list_group(*run) for run in ranges)


async def lists(cluster: BookieCluster) -> tuple[list[str], list[str]]:
    store = MemoryStore(cluster.tree)
    registry = BookieRegistry(store)
    found = [b.bookie_id for b in await registry.writable()], [b.bookie_id for b in await registry.readonly()]
    await store.close()
    return found


class WireClient:
    """Sends requests and matches the answers by txn id."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.closed = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._txn = 0

    def frame_received(self, frame: memoryview) -> None:
        response = decode_response(frame)
        self._waiting.pop(response.txn_id).set_result(response)

    def batch_done(self) -> None:
        pass

    def link_closed(self, error: Exception | None) -> None:
        self.closed.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("closed"))
                future.exception()
        self._waiting.clear()

    def _ask(self, *frame: bytes) -> asyncio.Future[Response]:
        assert self.link is not None
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[self._txn] = future
        self.link.send(*frame)
        return future

    def send_add(
        self, body: bytes, *, key: bytes = KEY, recovery: bool = False, priority: int = 0
    ) -> asyncio.Future[Response]:
        self._txn += 1
        ledger, number = int.from_bytes(body[:8], "big"), int.from_bytes(body[8:16], "big", signed=True)
        head, tail = encode_add_request(self._txn, ledger, number, key, len(body), recovery=recovery, priority=priority)
        return self._ask(head, body, tail)

    async def add(self, body: bytes, *, key: bytes = KEY, recovery: bool = False, priority: int = 0) -> Status:
        answer = await asyncio.wait_for(self.send_add(body, key=key, recovery=recovery, priority=priority), 60)
        assert isinstance(answer, AddResponse)
        return answer.status

    def send_read(
        self,
        ledger: int,
        number: int,
        *,
        key: bytes | None = None,
        fence: bool = False,
        previous_lac: int | None = None,
        timeout_ms: int | None = None,
        piggyback: bool = False,
    ) -> asyncio.Future[Response]:
        self._txn += 1
        return self._ask(
            encode_read_request(
                self._txn,
                ledger,
                number,
                master_key=key,
                fence=fence,
                previous_lac=previous_lac,
                timeout_ms=timeout_ms,
                piggyback=piggyback,
            )
        )

    async def read(self, ledger: int, number: int) -> ReadResponse:
        answer = await asyncio.wait_for(self.send_read(ledger, number), 60)
        assert isinstance(answer, ReadResponse)
        return answer

    async def fence(self, ledger: int, number: int = -1, *, key: bytes = KEY) -> ReadResponse:
        answer = await asyncio.wait_for(self.send_read(ledger, number, key=key, fence=True), 60)
        assert isinstance(answer, ReadResponse)
        return answer

    def send_poll(self, ledger: int, previous_lac: int, timeout_ms: int) -> asyncio.Future[Response]:
        return self.send_read(ledger, -1, previous_lac=previous_lac, timeout_ms=timeout_ms, piggyback=True)

    async def read_lac(self, ledger: int) -> ReadLacResponse:
        self._txn += 1
        answer = await asyncio.wait_for(self._ask(encode_read_lac_request(self._txn, ledger)), 60)
        assert isinstance(answer, ReadLacResponse)
        return answer

    async def write_lac(self, ledger: int, lac: int, *, key: bytes = KEY) -> Status:
        self._txn += 1
        body = DIGEST.package_lac(ledger, lac)
        answer = await asyncio.wait_for(self._ask(encode_write_lac_request(self._txn, ledger, lac, key, body)), 60)
        return answer.status

    def send_ask(self, encode: Callable[[int], bytes]) -> asyncio.Future[Response]:
        self._txn += 1
        return self._ask(encode(self._txn))

    async def ask(self, encode: Callable[[int], bytes]) -> Response:
        return await asyncio.wait_for(self.send_ask(encode), 60)


@dataclass
class BookieCluster:
    """Metadata, and bookies on directories that outlive them."""

    tmp_path: Path
    tree: MemoryTree = field(default_factory=MemoryTree)
    network: TcpNetwork = field(default_factory=TcpNetwork)
    running: list[tuple[Bookie, MemoryStore]] = field(default_factory=list)
    clients: list[WireClient] = field(default_factory=list)

    def settings(self, name: str = "a", **overrides: object) -> BookieSettings:
        values: dict[str, object] = {
            "journal_directories": (str(self.tmp_path / name / "journal"),),
            "ledger_directories": (str(self.tmp_path / name / "ledgers"),),
            "bookie_port": 0,
            "bookie_id": name,
            "listening_address": "127.0.0.1",
            "flush_interval_ms": 3_600_000,
            "skip_list_size_limit": 32 * MIB,
            "journal_pre_alloc_size_mb": 1,
            "journal_max_size_mb": 16,
            "min_usable_size_for_entry_log_creation": 0,
            "disk_usage_threshold": 1.0,
            **overrides,
        }
        return BookieSettings(**values)  # type: ignore[arg-type]

    async def start(
        self,
        name: str = "a",
        *,
        disk: SystemDisk | None = None,
        clock: Clock | None = None,
        audit: Noted = NOWHERE,
        authenticators: Mapping[str, Authenticator] | None = None,
        **overrides: object,
    ) -> Bookie:
        store = MemoryStore(self.tree)
        settings = self.settings(name, **overrides)
        security = node_security(settings, authenticators=authenticators, audit=audit)
        bookie = Bookie(settings, store, network=TcpNetwork(), disk=disk, clock=clock, security=security)
        try:
            await bookie.start()
        except BaseException:
            await store.close()
            raise
        self.running.append((bookie, store))
        return bookie

    async def connect(self, bookie: Bookie) -> WireClient:
        client = WireClient()
        self.clients.append(client)
        address = bookie.address
        client.link = await self.network.connect(address.host, address.port, client, timeout_ms=60_000)
        return client

    async def stop(self, bookie: Bookie) -> None:
        await bookie.stop()
        await self._close_store(bookie)

    async def kill(self, bookie: Bookie) -> None:
        """End it as a crash does."""
        await bookie.abort()
        await self._close_store(bookie)

    async def _close_store(self, bookie: Bookie) -> None:
        for pair in [pair for pair in self.running if pair[0] is bookie]:
            self.running.remove(pair)
            await pair[1].close()

    async def close(self) -> None:
        for client in self.clients:
            if client.link is not None:
                client.link.close()
                await client.closed.wait()
        for bookie, _ in list(self.running):
            await self.stop(bookie)

    def journal(self, name: str = "a") -> list[Path]:
        return sorted((self.tmp_path / name / "journal" / "current").glob("journal-*.log"))

    def ledger_files(self, suffix: str, name: str = "a") -> list[Path]:
        return sorted((self.tmp_path / name / "ledgers" / "current").glob(f"*{suffix}"))
