"""Votes of auditors, times of their checks, names of bookies."""

from __future__ import annotations

import asyncio

import pytest
from helpers.reference_vectors import vectors
from helpers.worlds.metadata import Heard, MetadataServer

from metadata.bookkeeper.auditors import AuditorStore, PeriodicCheck
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.foundation.errors import CallerError
from metadata.store import MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")


@pytest.fixture
async def ledgers(store: MetadataStore, root: str) -> str:
    await LedgerStore(store, f"{root}/ledgers").format()
    await ReplicationStore(store, f"{root}/ledgers").prepare()
    return f"{root}/ledgers"


@pytest.fixture
def auditors(store: MetadataStore, ledgers: str) -> AuditorStore:
    return AuditorStore(store, ledgers)


@pytest.fixture
def elsewhere(other: MetadataStore, ledgers: str) -> AuditorStore:
    return AuditorStore(other, ledgers)


async def test_the_lowest_vote_is_the_auditors(auditors: AuditorStore, elsewhere: AuditorStore, ledgers: str) -> None:
    assert await auditors.auditor() is None
    first, second = await auditors.vote("10.0.0.1:3181"), await elsewhere.vote("other")
    assert first == "V_0000000000"
    assert await auditors.votes() == [first, second]
    data, stat = await auditors.store.get(f"{ledgers}/underreplication/auditorelection/{first}")
    assert data == VECTORS["auditor vote"]
    assert stat.ephemeral_owner == auditors.store.session_id
    await auditors.announce("10.0.0.1:3181")
    data, _ = await elsewhere.store.get(f"{ledgers}/underreplication/auditorelection")
    assert data == VECTORS["auditor vote"]
    assert await elsewhere.auditor() == "10.0.0.1:3181"
    heard = Heard()
    assert await elsewhere.watch_vote(first, heard)
    await auditors.withdraw(first)
    await auditors.withdraw(first)
    await heard.wait(1)
    assert await elsewhere.auditor() == "other"
    assert not await elsewhere.watch_vote(first, heard)


async def test_nobody_votes_twice_in_one_session(auditors: AuditorStore) -> None:
    assert await auditors.vote("a") == await auditors.vote("a")
    assert len(await auditors.votes()) == 1


async def test_a_vote_whose_answer_was_lost_is_found_again() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await LedgerStore(store).format()
    await ReplicationStore(store).prepare()
    auditors = AuditorStore(store)
    faults = [Fault.LOSE_REPLY]
    tree.inject = lambda _s, name, path: faults.pop() if faults and name == "create" and "V_" in path else None
    vote = await auditors.vote("a")
    assert not faults
    assert await auditors.votes() == [vote]


async def test_a_vote_ends_with_its_session(
    auditors: AuditorStore, elsewhere: AuditorStore, metadata_server: MetadataServer
) -> None:
    first, second = await auditors.vote("a"), await elsewhere.vote("b")
    heard = Heard()
    assert await elsewhere.watch_vote(first, heard)
    await metadata_server.expire(auditors.store)
    await asyncio.wait_for(heard.wait(1), 60)
    assert await elsewhere.votes() == [second]
    assert await elsewhere.auditor() == "b"


@pytest.mark.parametrize("check", list(PeriodicCheck))
async def test_the_time_of_a_check_is_kept(
    auditors: AuditorStore, elsewhere: AuditorStore, check: PeriodicCheck
) -> None:
    assert await auditors.last_run_ms(check) is None
    await auditors.set_last_run_ms(check, 1_600_000_000_000)
    await elsewhere.set_last_run_ms(check, 1_700_000_000_000)
    assert await auditors.last_run_ms(check) == 1_700_000_000_000


async def test_vector_of_a_checks_time(auditors: AuditorStore, ledgers: str) -> None:
    await auditors.set_last_run_ms(PeriodicCheck.ALL_LEDGERS, 1_700_000_000_000)
    data, _ = await auditors.store.get(f"{ledgers}/underreplication/checkallledgersctime")
    assert data == VECTORS["check time 1700000000000"]
    await auditors.store.put(f"{ledgers}/underreplication/checkallledgersctime", b"\xff", 0)
    assert await auditors.last_run_ms(PeriodicCheck.ALL_LEDGERS) is None, "what is no time is due"


async def test_bookies_are_known_by_name_whatever_they_registered(auditors: AuditorStore, ledgers: str) -> None:
    await auditors.store.create(f"{ledgers}/available/a", b"\xff\xffjunk")
    await auditors.store.create(f"{ledgers}/available/readonly/b")
    await auditors.store.create(f"{ledgers}/cookies/c", make_parents=True)
    found = await auditors.registered()
    assert (found.writable, found.readonly, found.available) == ({"a"}, {"b"}, {"a", "b"})
    assert await auditors.known() == {"c"}


async def test_without_a_cluster_no_list_is_empty(store: MetadataStore, root: str) -> None:
    with pytest.raises(CallerError):
        await AuditorStore(store, f"{root}/nothing").registered()
