"""A secured tier: real proxies under TLS on real sockets, asked by thin clients, with everything that may change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers.security.minting import MintedAuthority, replace_file, write_folder
from helpers.waiting import until
from helpers.worlds.memory_cluster import MemoryCluster
from prometheus_client import CollectorRegistry

from dlspark.core.metrics.registries import Statistics
from dlspark.errors import NotAuthenticatedError
from dlspark.serving.bindings import frames_client
from dlspark.serving.client.client import AsyncClient
from dlspark.serving.process import host
from dlspark.serving.process.membership import WRITE_PROXIES, read_members
from dlspark.serving.protocol import distributedlog_pb2 as pb
from dlspark.serving.protocol.rpc_requests import SERVICE
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.security import authentication, credentials
from dlspark.serving.security.token_issuing import SigningKey, TokenGrant
from dlspark.serving.write_proxy.proxy import WriteProxy
from dlspark.serving.write_proxy.settings import read_configuration
from dlspark.spark.source.planning import SegmentSpan
from dlspark.spark.source.proxy_entries import ProxyEntries, TaskProxies
from dlspark.spark.source.task_tokens import TaskGrant, TaskToken
from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.security.restrictions import UNRESTRICTED, Restrictions
from metadata.security.settings import SecuritySettings
from storage_node.client.reader import LedgerLocation

HOSTS = ["localhost", "127.0.0.1"]


class SecuredTier:
    """Two write proxies and a read proxy over a cluster in memory, an authority, and who issues tokens."""

    def __init__(self, cluster: MemoryCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.authority = MintedAuthority()
        self.key = SigningKey.make("ES256")
        self.key.publish(folder / "keys.json")
        self.writers: list[WriteProxy] = []
        self.reader: ReadProxy
        self._ending: list[Any] = []

    def issue(self, name: str, *roles: str) -> Path:
        """Write a new identity into a folder, over the one that is there."""
        return self.authority.folder(self.folder / name, name, roles=roles, hosts=HOSTS)

    def token(self, place: Path, name: str, seconds: int = 300, restrictions: Restrictions = UNRESTRICTED) -> Path:
        grant = TokenGrant(name, seconds, restrictions, frozenset({"operator"}))
        replace_file(place, self.key.issue(grant, time.time()).reveal().encode())
        return place

    async def start(
        self, security: str = "on", *, proves: bool = False, grpc_port: int = -1, second_proves: bool | None = None
    ) -> None:
        """`second_proves`: whether the second write proxy demands a certificate; None: as the others do."""
        common = {
            "security": security,
            "securityDirectory": str(self.issue("proxy", "proxy")),
            "tlsClientAuthentication": str(proves).lower(),
            "tokenKeys": str(self.folder / "keys.json"),
            "superUsers": "role:operator,user:etl",
        }
        for number in range(2):
            own = {"server_port": 0, "server_shard": number, "server_grpc_port": grpc_port if number == 0 else -1}
            own |= {"server_host": "127.0.0.1", "server_advertised_host": "127.0.0.1"}
            if number == 1 and second_proves is not None:
                own["tlsClientAuthentication"] = str(second_proves).lower()
            proxy = WriteProxy(
                None,
                read_configuration(None, {**common, **own}, {}),  # type: ignore[dict-item]
                statistics=Statistics(CollectorRegistry()),
                namespace=await self.cluster.namespace(),
            )
            await proxy.start()
            self.writers.append(proxy)
            self._ending.append(proxy.stop)
        own = {"port": 0, "listenHost": "127.0.0.1", "advertisedHost": "127.0.0.1", "lingerMs": 0}
        self.reader = ReadProxy(
            None,
            ReadProxySettings.from_mapping({**common, **own}),
            statistics=Statistics(CollectorRegistry()),
            namespace=await self.cluster.namespace(),
        )
        await self.reader.start()
        self._ending.append(self.reader.stop)
        await until(lambda: all(len(one.members) == 2 for one in self.writers))

    async def stop(self) -> None:
        for end in self._ending:
            await end()

    @property
    def addresses(self) -> list[str]:
        return [one.location.rpartition(";")[2] for one in self.writers]

    def generations(self) -> list[int]:
        """How often each write proxy has read its certificates."""
        found = [one.host._authentication for one in self.writers]
        return [one.identity.generation for one in found if one is not None]

    @asynccontextmanager
    async def client(self, **settings: object) -> AsyncIterator[AsyncClient]:
        read_from = self.reader.location.rpartition(";")[2]
        given = {"security": "on", "requestTimeoutMs": 120_000, **settings}
        client = await AsyncClient.connect(",".join(self.addresses), given, read_from=read_from)  # type: ignore[arg-type]
        try:
            yield client
        finally:
            await client.close()

    def by_token(self, place: Path) -> dict[str, object]:
        """The settings of a client that has a token, and no certificate."""
        trusted = str(self.folder / "proxy" / "authorities.pem")
        return {
            "tlsTrustStore": trusted,
            "tlsTrustStoreType": "PEM",
            "tlsClientAuthentication": "false",
            "tokenFile": str(place),
        }


@pytest.fixture(name="tier")
async def _tier(
    memory_cluster: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SecuredTier]:
    monkeypatch.setattr(host, "REFRESH_S", 0.05)
    monkeypatch.setattr(credentials, "LOOK_S", 0.05)
    monkeypatch.setattr(frames_client, "LOOK_S", 0.05)
    monkeypatch.setattr(authentication, "JUDGED_S", 0.05)
    tier = SecuredTier(memory_cluster, tmp_path)
    try:
        yield tier
    finally:
        await tier.stop()


async def written_and_read(client: AsyncClient, stream: str, count: int) -> list[bytes]:
    for number in range(count):
        await client.write(stream, b"%d" % number)
    await client.heartbeat(stream, to_readers=True)
    async with client.reader(stream, "earliest") as reader:
        return [(await asyncio.wait_for(reader.read_next(), 60)).payload for _ in range(count)]


async def test_a_certificate_and_a_token_do_the_same_work(tier: SecuredTier, tmp_path: Path) -> None:
    await tier.start()
    async with tier.client(securityDirectory=str(tier.issue("operator", "operator"))) as client:
        assert await written_and_read(client, "by-certificate", 5) == [b"0", b"1", b"2", b"3", b"4"]
    async with tier.client(**tier.by_token(tier.token(tmp_path / "token", "etl"))) as client:
        assert await written_and_read(client, "by-token", 5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_proxies_ask_each_other_under_tls(tier: SecuredTier) -> None:
    await tier.start(proves=True)
    async with tier.client(securityDirectory=str(tier.issue("operator", "operator"))) as client:
        await client.write("orders", b"one")
        owner = await client.owner("orders")
        (other,) = [one for one in tier.addresses if one != owner]
        await client.move("orders", other)
        await client.write("orders", b"two")
        assert await client.owner("orders") == other


async def test_members_say_that_they_speak_tls(tier: SecuredTier) -> None:
    await tier.start()
    found = await read_members(tier.cluster.operator, f"{tier.writers[0].host._opened.uri.path}/{WRITE_PROXIES}")
    assert [one.secured for one in found] == [True, True]


async def test_what_a_token_is_restricted_to_holds_at_proxies(tier: SecuredTier, tmp_path: Path) -> None:
    await tier.start()
    narrow = tier.token(
        tmp_path / "token", "etl", restrictions=Restrictions(("orders*",), frozenset({"write", "create"}))
    )
    async with tier.client(**tier.by_token(narrow)) as client:
        await client.write("orders-1", b"one")
        with pytest.raises(RequestDeniedError):
            await client.write("invoices", b"one")
        with pytest.raises(RequestDeniedError):
            await client.delete("orders-1")


@pytest.mark.long
async def test_clients_that_prove_nothing_good_hear_why(tier: SecuredTier, tmp_path: Path) -> None:
    await tier.start(proves=True)
    foreign = MintedAuthority("Another authority")
    stranger = write_folder(tmp_path / "stranger", foreign.issue("operator", roles=["operator"]), tier.authority.pem)
    async with tier.client(securityDirectory=str(stranger), requestTimeoutMs=120_000) as client:
        with pytest.raises(NotAuthenticatedError, match=r"refused.*nothing was done.*dlspark tls show"):
            await client.create("orders")
    believer = write_folder(tmp_path / "believer", tier.authority.issue("operator"), foreign.pem)
    async with tier.client(securityDirectory=str(believer), requestTimeoutMs=120_000) as client:
        with pytest.raises(NotAuthenticatedError, match="certificate is refused"):
            await client.create("orders")
    async with await AsyncClient.connect(",".join(tier.addresses), {"requestTimeoutMs": 120_000}) as client:
        with pytest.raises(NotAuthenticatedError, match="the other end speaks TLS"):
            await client.write("orders", b"nothing of it was done")


async def test_a_token_alone_hears_at_once_that_the_logs_owner_wants_a_certificate(
    tier: SecuredTier, tmp_path: Path
) -> None:
    await tier.start(second_proves=True)
    by_token, by_certificate = tier.addresses
    async with tier.client(securityDirectory=str(tier.issue("operator", "operator"))) as other:
        for stream, owner in (("here", by_token), ("there", by_certificate)):
            await other.write(stream, b"one")
            if await other.owner(stream) != owner:
                await other.move(stream, owner)
        async with tier.client(**tier.by_token(tier.token(tmp_path / "token", "etl")), requestTimeoutMs=-1) as client:
            assert await client.write("here", b"two")
            for _ in range(2):
                with pytest.raises(NotAuthenticatedError, match="wants a certificate, and this client has") as no:
                    await asyncio.wait_for(client.write("there", b"nothing of it was done"), 60)
                assert by_certificate in str(no.value)
                assert "securityDirectory" in (no.value.advice or "")
            await other.move("there", by_token)
            assert await client.write("there", b"two")


async def test_an_expired_token_is_said_at_once(tier: SecuredTier, tmp_path: Path) -> None:
    await tier.start()
    place = tmp_path / "token"
    replace_file(place, tier.key.issue(TokenGrant("etl", 1, UNRESTRICTED), time.time() - 3_600).reveal().encode())
    async with tier.client(**tier.by_token(place)) as client:
        with pytest.raises(NotAuthenticatedError, match="expired"):
            await client.create("orders")


async def test_a_task_whose_token_ends_goes_on_with_a_newer_one_or_says_what_to_raise(
    tier: SecuredTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of its reading, over real connections: the proxy ends the session, the next one needs a token."""
    await tier.start()
    async with tier.client(securityDirectory=str(tier.issue("operator", "operator"))) as client:
        receipts = [await client.write("orders", b"%d" % number) for number in range(3)]
        await client.heartbeat("orders", to_readers=True)
    passed = [0.0]
    """Seconds that the proxy's clock is ahead of the one by which tokens are made."""
    judging = tier.reader.host._authentication
    assert judging is not None
    assert judging._tokens is not None
    monkeypatch.setattr(judging._tokens, "_now", lambda: time.time() + passed[0])
    grant = TaskGrant("etl", frozenset({"operator"}), ("orders",))

    def made(ahead_s: float) -> TaskToken:
        now = time.time() + ahead_s
        issued = tier.key.issue(
            TokenGrant("etl", 300, Restrictions(("orders",), frozenset({"read"})), grant.roles), now
        )
        # By the executor's clock, which goes with this machine's, all of them have ended.
        return TaskToken(grant, issued.reveal(), time.time() - 1, 300_000, now)

    trusting = SecuritySettings(
        security="on",
        tls_trust_store=str(tier.folder / "proxy" / "authorities.pem"),
        tls_trust_store_type="pem",
        tls_client_authentication=False,
    )
    first = made(0)
    proxies = TaskProxies([tier.reader.location.rpartition(";")[2]], 60_000, security=trusting, token=first)
    (segment,) = await (await (await tier.cluster.namespace()).open_log("orders")).segments()
    nowhere = LedgerLocation(segment.ledger_id, LedgerMetadata(3, 3, 2, ()), {})  # no storage node is asked
    spans = [SegmentSpan("orders", at.lssn, nowhere, at.entry_id, 0, at.entry_id, None, 0, False, 1) for at in receipts]

    async def read(span: SegmentSpan, token: TaskToken) -> list[int]:
        entries = ProxyEntries(proxies, [span], token)
        try:
            return [entry_id async for entry_id, _ in entries.entries(span)]
        finally:
            await entries.close()

    async def read_on(span: SegmentSpan, token: TaskToken) -> None:
        while True:  # the proxy looks at its sessions once a second: until then it answers
            await read(span, token)

    try:
        assert await read(spans[0], first) == [spans[0].first_entry]
        passed[0] = 400.0
        proxies.renew(made(400))  # a task of a later plan has brought it
        assert await read(spans[1], first) == [spans[1].first_entry]
        passed[0] = 800.0
        with pytest.raises(NotAuthenticatedError, match="The token that the driver made for this task ended at") as no:
            await asyncio.wait_for(read_on(spans[2], first), 60)
        assert "expired" in no.value.message
        assert "tokenLifetime" in (no.value.advice or "")
        assert proxies.refused  # the next task gets other connections
    finally:
        await proxies.close()


@pytest.mark.long
@pytest.mark.torture
async def test_no_write_fails_while_certificates_and_tokens_are_renewed(
    tier: SecuredTier, tmp_path: Path, rounds: int | None
) -> None:
    await tier.start()
    folder, place = tier.issue("operator", "operator"), tier.token(tmp_path / "token", "etl")
    done = asyncio.Event()
    counts = [0, 0]

    async def write(number: int, client: AsyncClient) -> None:
        while not done.is_set():
            await client.write(f"stream-{number}", b"%d" % counts[number])
            counts[number] += 1

    async with tier.client(securityDirectory=str(folder)) as one, tier.client(**tier.by_token(place)) as two:
        writing = [asyncio.ensure_future(write(number, client)) for number, client in enumerate((one, two))]
        for _ in range(rounds or 1):
            before, generations = counts.copy(), tier.generations()
            tier.issue("proxy", "proxy")
            tier.issue("operator", "operator")
            tier.token(place, "etl")

            def all_new(before: list[int] = before, old: list[int] = generations) -> bool:
                """Each proxy has read its new certificate, and both clients have written since."""
                read = all(now > then for now, then in zip(tier.generations(), old, strict=True))
                wrote = all(now > then + 5 for now, then in zip(counts, before, strict=True))
                return (read and wrote) or any(one.done() for one in writing)

            await until(all_new)
        done.set()
        await asyncio.gather(*writing)
        for number, client in enumerate((one, two)):
            stream = f"stream-{number}"
            await client.heartbeat(stream, to_readers=True)
            async with client.reader(stream, "earliest") as reader:
                read = [(await asyncio.wait_for(reader.read_next(), 60)).payload for _ in range(counts[number])]
            assert read == [b"%d" % one for one in range(counts[number])]


@pytest.mark.long
async def test_a_revoked_client_is_sent_away_while_others_work_on(tier: SecuredTier) -> None:
    await tier.start(proves=True)
    pair = tier.authority.issue("lost", roles=["operator"])
    lost = write_folder(tier.folder / "lost", pair, tier.authority.pem)
    other = tier.issue("operator", "operator")
    async with (
        tier.client(securityDirectory=str(lost), requestTimeoutMs=120_000) as one,
        tier.client(securityDirectory=str(other)) as two,
    ):
        await one.write("orders", b"one")
        await two.write("orders", b"two")
        replace_file(tier.folder / "proxy" / "revoked.pem", tier.authority.revoke(pair))
        with pytest.raises(NotAuthenticatedError, match="refused"):
            await asyncio.wait_for(_written_for_ever(one), 60)
        await two.write("orders", b"four")


async def _written_for_ever(client: AsyncClient) -> None:
    while True:
        await client.write("orders", b"three")


async def test_plain_clients_work_on_in_the_middle_of_a_change(tier: SecuredTier) -> None:
    await tier.start("optional")
    async with await AsyncClient.connect(",".join(tier.addresses), {"requestTimeoutMs": 120_000}) as plain:
        await plain.write("orders", b"one")
        async with tier.client(securityDirectory=str(tier.issue("operator", "operator"))) as secured:
            await secured.write("orders", b"two")
            owner = await secured.owner("orders")
            (other,) = [one for one in tier.addresses if one != owner]
            await secured.move("orders", other)
        await plain.write("orders", b"three")


async def test_grpc_of_a_secured_proxy(tier: SecuredTier, tmp_path: Path) -> None:
    await tier.start(grpc_port=0)
    member = tier.writers[0].member
    assert member.grpc is not None
    assert member.endpoints["grpc-tls"] == member.grpc
    token = tier.token(tmp_path / "token", "etl").read_text()
    trusted = grpc.ssl_channel_credentials(tier.authority.pem)
    async with grpc.aio.secure_channel(str(member.grpc), trusted) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/Create",
            request_serializer=pb.StreamRequest.SerializeToString,
            response_deserializer=pb.DoneResponse.FromString,
        )
        answer = await call(pb.StreamRequest(stream="orders"), metadata=(("authorization", f"Bearer {token}"),))
        assert answer.status.code == pb.Status.SUCCESS
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(pb.StreamRequest(stream="orders"))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
