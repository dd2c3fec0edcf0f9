"""A ledger client that proves who it is to a real node: DIGEST-MD5 and SCRAM, with TLS and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.security.minting import MintedAuthority
from helpers.waiting import until

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.security.sasl.credentials import remove_scram_user, write_scram_user
from metadata.security.sasl.scram import stored_keys
from metadata.security.sasl.settings import ClientProofSettings, NodeProofSettings, SaslSettings
from metadata.security.secrets import Secret
from metadata.security.settings import SecuritySettings
from metadata.zookeeper.memory import MemoryStore, MemoryTree
from storage_node.bookie.node.bookie import Bookie
from storage_node.client.client import LedgerClient
from storage_node.errors import QuorumWriteError, SecureConnectionError
from storage_node.settings.bookie import MIB, BookieSettings
from storage_node.settings.client import ClientSettings

JAAS = """
Bookie { x.DigestLoginModule required user_bookkeeper-1="one" user_guest="two"; };
BookKeeper { x.DigestLoginModule required username="bookkeeper-1" password="one"; };
Guest { x.DigestLoginModule required username="guest" password="two"; };
Liar { x.DigestLoginModule required username="bookkeeper-1" password="two"; };
"""


@dataclass(frozen=True)
class Setup:
    """A folder with an identity, users and passwords, and a node that takes both mechanisms."""

    folder: Path
    tls: bool

    @property
    def sasl(self) -> SaslSettings:
        return SaslSettings(str(self.folder / "jaas.conf"), digest_md5_without_tls=not self.tls)

    @property
    def security(self) -> SecuritySettings:
        if not self.tls:
            return SecuritySettings()
        return SecuritySettings(security="on", security_directory=str(self.folder / "identity"))

    def node(self) -> BookieSettings:
        return BookieSettings(
            journal_directories=(str(self.folder / "journal"),),
            ledger_directories=(str(self.folder / "ledgers"),),
            bookie_port=0,
            listening_address="127.0.0.1",
            bookie_id="node",
            journal_max_size_mb=16,
            journal_pre_alloc_size_mb=1,
            skip_list_size_limit=32 * MIB,
            security=self.security,
            proofs=NodeProofSettings(("sasl", "scram"), scram_users_file=str(self.users), sasl=self.sasl),
        )

    def client(self, proofs: ClientProofSettings) -> ClientSettings:
        return ClientSettings(
            add_entry_timeout_ms=30_000,
            read_entry_timeout_ms=30_000,
            long_poll_ms=1_000,
            vacancy_retry_ms=100,
            replacement_pause_ms=100,
            security=self.security,
            proofs=proofs,
        )

    @property
    def users(self) -> Path:
        return self.folder / "scram.json"

    def by_digest(self, section: str = "BookKeeper") -> ClientProofSettings:
        return ClientProofSettings("sasl", client_section=section, sasl=self.sasl, demands_proof=True)

    def by_scram(self, user: str = "flights") -> ClientProofSettings:
        return ClientProofSettings("scram", scram_user=user, scram_password_file=str(self.folder / "password"))


@pytest.fixture(params=[True, False], ids=["TLS", "plain"])
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Setup:
    made = Setup(tmp_path, bool(request.param))
    MintedAuthority().folder(tmp_path / "identity", "node-1", roles=["node"], hosts=["127.0.0.1"])
    for name, text in (("jaas.conf", JAAS), ("password", "pencil\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    write_scram_user(made.users, "flights", stored_keys(Secret("pencil")))
    return made


@dataclass
class World:
    store: MemoryStore
    bookie: Bookie
    setup: Setup

    @asynccontextmanager
    async def client(self, proofs: ClientProofSettings) -> AsyncIterator[LedgerClient]:
        registry = BookieRegistry(self.store)
        client = LedgerClient(LedgerStore(self.store), registry, settings=self.setup.client(proofs))
        try:
            yield client
        finally:
            await client.close()


@pytest.fixture
async def world(setup: Setup) -> AsyncIterator[World]:
    store = MemoryStore(MemoryTree())
    await LedgerStore(store).format()
    bookie = Bookie(setup.node(), store)
    await bookie.start()
    try:
        yield World(store, bookie, setup)
    finally:
        await bookie.stop()
        await store.close()


async def written(client: LedgerClient) -> int:
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await asyncio.gather(*(writer.add(b"entry %d" % number) for number in range(100)))
    await writer.close()
    return writer.ledger_id


@pytest.mark.parametrize("by", ["digest", "scram"])
async def test_whoever_proves_itself_writes_and_reads(world: World, by: str) -> None:
    proofs = world.setup.by_digest() if by == "digest" else world.setup.by_scram()
    async with world.client(proofs) as client:
        ledger = await written(client)
        reader = await client.open(ledger, recover=False)
        # A hundred entries at once go by a batch, in version 2, on a connection of their own.
        assert len(await reader.read(0, 99)) == 100
        await reader.close()


@pytest.mark.parametrize("who", ["nobody", "liar", "guest", "unknown by scram"])
async def test_whoever_does_not_is_refused_and_nothing_is_stored(world: World, who: str) -> None:
    setup = world.setup
    proofs = {
        "nobody": ClientProofSettings(),
        "liar": setup.by_digest("Liar"),
        "guest": setup.by_digest("Guest"),
        "unknown by scram": setup.by_scram("trains"),
    }[who]
    async with world.client(proofs) as client:
        with pytest.raises(QuorumWriteError):
            await written(client)
    async with world.client(setup.by_digest()) as client:
        ledger = await written(client)
    async with world.client(proofs) as client:
        reader = await client.open(ledger, recover=False)
        with pytest.raises(SecureConnectionError):
            await reader.read(0, 0)


async def test_a_user_that_is_taken_away_loses_its_connections(world: World) -> None:
    setup = world.setup
    async with world.client(setup.by_scram()) as client:
        ledger = await written(client)
        remove_scram_user(setup.users, "flights")
        await world.bookie._watch.look()
        reader = await client.open(ledger, recover=False)
        with pytest.raises(SecureConnectionError):
            await reader.read(0, 0)
        write_scram_user(setup.users, "flights", stored_keys(Secret("pencil")))

        async def reads() -> bool:
            try:
                return len(await reader.read(0, 0)) == 1
            except SecureConnectionError:
                return False

        await until(reads, "the user is let in again")
        await reader.close()
