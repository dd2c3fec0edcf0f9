"""Rights of clients that prove by certificate and token who they are, over real connections under TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from helpers.security.minting import MintedAuthority
from helpers.serving.scripted_service import ScriptedService
from helpers.waiting import until

from dlspark.serving.bindings.frames_client import FramesClient
from dlspark.serving.bindings.frames_server import FramesServer, frames_network
from dlspark.serving.bindings.service import FramesLimits
from dlspark.serving.process.rights_door import RightsDoor
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Delivery,
    Done,
    Handshake,
    ReadBatch,
    ReadFrom,
    Refusal,
    Request,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.security.authentication import Authentication
from dlspark.serving.security.credentials import ClientCredentials
from metadata.distributedlog.rights_store import RightsStore, RightsWatch
from metadata.security.audit import NOWHERE
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.rights import LogPattern, Rule, Subject, Verb
from metadata.zookeeper.memory import MemoryStore, MemoryTree

WRITE = WriteRecords("orders", (b"x",))
READ = ReadBatch("orders", ReadFrom.OLDEST)


def allowed(who: str, *verbs: Verb) -> Rule:
    return Rule(True, Subject.parse(who), frozenset(verbs), LogPattern("orders"))


def is_denied(answer: Answer) -> bool:
    return isinstance(answer, Refusal) and answer.code is StatusCode.REQUEST_DENIED


class SecuredDoor:
    """A frames server under TLS, whose door keeps to rules in a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = MintedAuthority()
        self.service = ScriptedService()
        self.ending = AsyncExitStack()
        self.network = frames_network(FramesLimits())

    def identity(self, name: str, *roles: str) -> TlsIdentity:
        folder = self.authority.folder(self.folder / name, name, roles=roles, hosts=["127.0.0.1"])
        return TlsIdentity(TlsFiles.of_folder(folder))

    async def start(self) -> None:
        store = MemoryStore(MemoryTree())
        await store.create("/ns")
        self.rights = RightsStore(store, "/ns")
        watch = RightsWatch(self.rights, [Subject.parse("role:operator")])
        await watch.start()
        self.ending.push_async_callback(watch.close)
        self.door = RightsDoor(self.service, lambda: watch.book, demands_proof=True, noted=NOWHERE)
        changed = asyncio.Event()
        watch.on_change = changed.set

        async def recheck() -> None:
            while True:
                await changed.wait()
                changed.clear()
                await self.door.recheck()

        task = asyncio.create_task(recheck())
        self.ending.callback(task.cancel)
        server = FramesServer(self.network, self.door, authentication=Authentication(self.identity("proxy1", "proxy")))
        await server.start("127.0.0.1", 0)
        self.ending.push_async_callback(server.close, grace_s=0)
        self.port = server.port

    @property
    def asked(self) -> list[Request]:
        """What came to the service, without what clients ask to learn whether they are let in."""
        return [one for one in self.service.requests if not isinstance(one, Handshake)]

    async def client(self, name: str, *roles: str) -> FramesClient:
        credentials = ClientCredentials(self.identity(name, *roles))
        address = f"127.0.0.1:{self.port}"
        client = await FramesClient.connect(self.network, address, timeout_ms=60_000, credentials=credentials)
        self.ending.push_async_callback(client.close)
        return client


@pytest.fixture(name="secured")
async def _secured(tmp_path: Path) -> AsyncIterator[SecuredDoor]:
    made = SecuredDoor(tmp_path)
    await made.start()
    async with made.ending:
        yield made


async def test_a_certificates_name_and_role_decide(secured: SecuredDoor) -> None:
    await secured.rights.change(add=[allowed("role:writers", Verb.WRITE), allowed("user:report", Verb.READ)])
    writer, report = await secured.client("alice", "writers"), await secured.client("report", "client")
    operator = await secured.client("root", "operator")
    await until(lambda: secured.door._book().rules.verbs)
    assert isinstance(await writer.call(WRITE), WriteReceipt)
    assert is_denied(await writer.call(READ))
    assert isinstance(await report.call(READ), Delivery)
    assert is_denied(await report.call(WRITE))
    assert is_denied(await report.call(AcceptStreams(False)))
    assert isinstance(await operator.call(AcceptStreams(False)), Done)
    assert [type(one) for one in secured.asked] == [WriteRecords, ReadBatch, AcceptStreams]
    assert all(one.session is not None for one in secured.service.callers)


async def test_a_right_that_is_withdrawn_ends_a_read_that_waits_over_an_open_connection(secured: SecuredDoor) -> None:
    await secured.rights.change(add=[allowed("user:report", Verb.READ)])
    report = await secured.client("report", "client")
    await until(lambda: secured.door._book().rules.verbs)
    secured.service.hold = True
    reading = asyncio.ensure_future(report.call(READ))
    await until(lambda: secured.asked)
    await secured.rights.change(remove=[allowed("user:report", Verb.READ)])
    assert is_denied(await asyncio.wait_for(reading, 60))
    assert is_denied(await report.call(READ))
    assert len(secured.asked) == 1
