"""A read proxy over metadata and storage nodes in memory, and readers that pull from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.service import Caller
from dlspark.serving.protocol.deliveries import batches_of, records_of
from dlspark.serving.protocol.operations import Answer, Delivery, ReadBatch, ReadForm, ReadFrom, Refusal
from dlspark.serving.read_proxy.service import ReadProxyService
from dlspark.serving.read_proxy.settings import ReadProxySettings
from helpers.worlds.memory_bookies import BookieLink, MemoryBookie
from helpers.worlds.memory_cluster import MemoryCluster
from storage_node.protocol import v2
from storage_node.protocol.schema import Status
from storage_node.protocol.values import BatchReadRequest, ReadRequest

LOCATION = "proxy:8100"


class CountingBookie(MemoryBookie):
    """Counts the entries that it has handed out."""

    def __init__(self, bookie_id: str, served: Counter[tuple[int, int]]) -> None:
        super().__init__(bookie_id)
        self.served = served

    def _answer_read(
        self,
        link: BookieLink,
        request: ReadRequest,
        status: Status,
        body: bytes | None,
        max_lac: int | None,
        entry_id: int | None = None,
    ) -> None:
        if body is not None:
            self.served[request.ledger_id, request.entry_id if entry_id is None else entry_id] += 1
        super()._answer_read(link, request, status, body, max_lac, entry_id)

    def _batch(self, link: BookieLink, frame: memoryview) -> None:
        before = self.reads
        super()._batch(link, frame)
        request = v2.decode_request(frame)
        assert isinstance(request, BatchReadRequest), request
        for entry_id in range(request.entry_id, request.entry_id + self.reads - before):
            self.served[request.ledger_id, entry_id] += 1


class ReadWorld(MemoryCluster):
    """A cluster in memory, and read proxies of it."""

    defaults: ClassVar[Mapping[str, object]] = {
        "lock_timeout_s": 5,
        "long_poll_ms": 200,
        "read_ahead_wait_ms": 20,
        "rolling_concurrency": 0,
    }

    def __init__(self) -> None:
        self.served: Counter[tuple[int, int]] = Counter()
        super().__init__([CountingBookie(f"node{i}:3181", self.served) for i in range(3)])
        self.services: list[ReadProxyService] = []

    async def proxy(self, namespace: AsyncNamespace | None = None, **settings: object) -> ReadProxyService:
        own = ReadProxySettings(**{"linger_ms": 0, **settings})  # type: ignore[arg-type]
        service = ReadProxyService(namespace or await self.namespace(), own, location=LOCATION)
        self.services.append(service)
        return service

    async def stop(self) -> None:
        for service in self.services:
            await service.close()
        await super().stop()


def submitted(service: ReadProxyService, request: object, caller: Caller) -> asyncio.Future[Answer]:
    """Submit a request; its answer, which has to come once."""
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def reply(found: Answer) -> None:
        if not answer.cancelled():
            answer.set_result(found)

    service.submit(request, caller, reply)  # type: ignore[arg-type]
    return answer


class Puller:
    """A reader through the proxy, as clients are: it asks, keeps the position, and asks again."""

    def __init__(
        self,
        service: ReadProxyService,
        stream: str,
        start: DLSN | int | ReadFrom = ReadFrom.OLDEST,
        *,
        caller: Caller | None = None,
        number: int = 0,
        form: ReadForm = ReadForm.RECORDS,
        max_bytes: int = 1 << 20,
        wait_ms: int = 10_000,
    ) -> None:
        self.service = service
        self.stream = stream
        self.position = start
        self.caller = caller or Caller("client:1")
        self.number = number
        self.form = form
        self.max_bytes = max_bytes
        self.wait_ms = wait_ms
        self.records: list[LogRecord] = []
        self.rows: list[bytes] = []
        self.ended = False

    @property
    def payloads(self) -> list[bytes]:
        return self.rows if self.form is ReadForm.ARROW else [record.payload for record in self.records]

    def ask(self) -> asyncio.Future[Answer]:
        request = ReadBatch(self.stream, self.position, self.number, self.form, self.max_bytes, self.wait_ms)
        return submitted(self.service, request, self.caller)

    def take(self, answer: Answer) -> Delivery | Refusal:
        if isinstance(answer, Refusal):
            return answer
        assert isinstance(answer, Delivery)
        assert answer.form is self.form
        if isinstance(self.position, DLSN):
            assert answer.next >= self.position, (answer.next, self.position, answer)
        self.position = answer.next
        self.ended = answer.end_of_stream
        if self.form is ReadForm.ARROW:
            self.rows += [value for batch in batches_of(answer) for value in batch.column("value").to_pylist()]
        else:
            self.records += records_of(answer)
        return answer

    async def pull(self) -> Delivery | Refusal:
        """Ask once."""
        return self.take(await self.ask())

    async def until(self, count: int) -> Refusal | None:
        """Ask until there are `count` records or the log ends; the refusal that came instead."""
        while len(self.payloads) < count and not self.ended:
            answer = await self.pull()
            if isinstance(answer, Refusal):
                return answer
        return None

    async def to_end(self) -> Refusal | None:
        """Ask until the log ends; the refusal that came instead."""
        while not self.ended:
            answer = await self.pull()
            if isinstance(answer, Refusal):
                return answer
        return None
