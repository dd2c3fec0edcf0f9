"""Sinks in metadata: marks, listings, and the token that is published or swept and never both."""

from __future__ import annotations

import asyncio

import pytest

from metadata.errors import BadVersionError, CallerError, CorruptDataError, NoNodeError
from metadata.memory import Fault, MemoryStore, MemoryTree
from metadata.sinks import (
    MAX_SINK_ID_CHARS,
    NO_BATCH,
    Mark,
    SinkStore,
    StagedLedger,
    application_sink,
    job_sink,
    query_sink,
)
from metadata.store import Create

NS = "/dl/ns"


@pytest.fixture
async def tree() -> MemoryTree:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create(NS, make_parents=True)
    await store.close()
    return tree


@pytest.fixture
async def store(tree: MemoryTree):
    store = MemoryStore(tree)
    yield store
    await store.close()


@pytest.fixture
def sinks(store: MemoryStore) -> SinkStore:
    return SinkStore(store, NS)


def test_a_mark_survives_its_json_and_the_golden_text_stays() -> None:
    assert Mark(7, "a1").encode() == b'{"v":1,"batch":7,"attempt":"a1"}'
    assert Mark.decode(b'{"v":1,"batch":7,"attempt":"a1"}', "/x") == Mark(7, "a1")
    assert Mark.decode(Mark().encode(), "/x") == Mark(NO_BATCH, "")
    moved = Mark(6, "a", ((6, 998),)).moved(7, "b", 1000)
    assert moved.encode() == b'{"v":1,"batch":7,"attempt":"b","rows":[[7,1000],[6,998]]}'
    assert Mark.decode(moved.encode(), "/x").rows == ((7, 1000), (6, 998))
    assert moved.moved(8, "c", None).rows == moved.rows


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"7",
        b"[]",
        b"{",
        b'{"v":2,"batch":7,"attempt":""}',
        b'{"v":1,"batch":"7","attempt":""}',
        b'{"v":1,"batch":true,"attempt":""}',
        b'{"v":1,"batch":-2,"attempt":""}',
        b'{"v":1,"batch":7}',
        b'{"v":1,"batch":7,"attempt":"a","rows":7}',
        b'{"v":1,"batch":7,"attempt":"a","rows":[[7]]}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_mark_is_an_error_with_its_place_and_never_a_mark(data: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        Mark.decode(data, "/ns/.sinks/q")
    assert caught.value.path == "/ns/.sinks/q"
    assert caught.value.advice


def test_a_mark_covers_every_batch_up_to_its_own() -> None:
    assert [batch for batch in range(-1, 9) if Mark(5).covers(batch)] == [-1, 0, 1, 2, 3, 4, 5]
    assert not Mark().covers(0)


def test_a_staged_ledger_is_told_by_its_name_alone() -> None:
    ledger = StagedLedger(12, "9f", 4711)
    assert ledger.name == "b0000000000000000012-9f-4711"
    assert StagedLedger.parse(ledger.name) == ledger
    for foreign in ("b12-9f-4711", "x", "b0000000000000000012-9f-", "b0000000000000000012--1", ledger.name + "\n"):
        assert StagedLedger.parse(foreign) is None


def test_sink_ids_are_safe_names_and_different_kinds_never_meet() -> None:
    assert query_sink("be16cb90-49e4-418d-bd74-97bb25f15c8c") == "be16cb90-49e4-418d-bd74-97bb25f15c8c"
    assert application_sink("../etl daily/ü") == "app-..%2Fetl%20daily%2F%C3%BC"
    assert job_sink("ab12") == "job-ab12"
    assert application_sink("ab12") != job_sink("ab12") != query_sink("ab12")


@pytest.mark.parametrize("name", ["", ".hidden", "x" * (MAX_SINK_ID_CHARS + 1)])
def test_an_id_that_cannot_name_a_sink_is_refused(name: str) -> None:
    with pytest.raises(CallerError):
        query_sink(name)


async def test_a_sink_is_created_once_however_many_tasks_ask(tree: MemoryTree) -> None:
    stores = [MemoryStore(tree) for _ in range(8)]
    found = await asyncio.gather(*(SinkStore(store, NS).ensure("q") for store in stores))
    assert {mark.value for mark in found} == {Mark()}
    assert {mark.version for mark in found} == {0}
    for store in stores:
        await store.close()


async def test_nothing_is_read_of_a_sink_that_does_not_exist(sinks: SinkStore) -> None:
    assert await sinks.read("q") is None
    assert await sinks.staged("q") == []
    assert await sinks.sinks() == []
    assert await sinks.stat("q") is None
    assert await sinks.remove("q") is True
    with pytest.raises(NoNodeError):
        await sinks.list_ledger("q", StagedLedger(0, "a", 1))


async def test_ledgers_are_listed_by_batch_and_foreign_names_are_left_alone(
    sinks: SinkStore, store: MemoryStore
) -> None:
    await sinks.ensure("q")
    for ledger in (StagedLedger(10, "b", 3), StagedLedger(2, "a", 9), StagedLedger(10, "b", 3)):
        await sinks.list_ledger("q", ledger)
    await store.create(f"{sinks.paths('q').attempts}/notes", b"")
    assert await sinks.staged("q") == [StagedLedger(2, "a", 9), StagedLedger(10, "b", 3)]
    assert await sinks.remove("q") is False
    assert await sinks.read("q") is not None


async def test_publishing_moves_the_mark_and_takes_the_tokens_in_one_step(sinks: SinkStore, store: MemoryStore) -> None:
    mark = await sinks.ensure("q")
    winner, loser = StagedLedger(0, "a", 1), StagedLedger(0, "b", 2)
    await sinks.list_ledger("q", winner)
    await sinks.list_ledger("q", loser)
    await store.multi(sinks.publish_ops("q", Mark(0, "a"), mark.version, [winner]))
    moved = await sinks.read("q")
    assert moved is not None
    assert moved.value == Mark(0, "a")
    assert await sinks.staged("q") == [loser]
    with pytest.raises(BadVersionError) as caught:
        await store.multi(sinks.publish_ops("q", Mark(0, "b"), mark.version, [loser]))
    assert caught.value.op_index == 0  # type: ignore[attr-defined]


async def test_a_condemned_ledger_can_never_be_published(sinks: SinkStore, store: MemoryStore) -> None:
    mark = await sinks.ensure("q")
    ledger = StagedLedger(0, "a", 1)
    assert not await sinks.stands("q", ledger)
    await sinks.list_ledger("q", ledger)
    assert await sinks.stands("q", ledger)
    assert await sinks.condemn("q", ledger) is True
    assert await sinks.condemn("q", ledger) is True
    assert not await sinks.stands("q", ledger)
    with pytest.raises(BadVersionError) as caught:
        await store.multi(sinks.publish_ops("q", Mark(0, "a"), mark.version, [ledger]))
    assert caught.value.op_index == 1  # type: ignore[attr-defined]
    await sinks.list_ledger("q", ledger)  # a zombie that lists it again does not revive it
    with pytest.raises(BadVersionError):
        await store.multi(sinks.publish_ops("q", Mark(0, "a"), mark.version, [ledger]))
    await sinks.forget("q", ledger)
    await sinks.forget("q", ledger)
    assert await sinks.staged("q") == []


async def test_a_published_ledger_can_never_be_condemned(sinks: SinkStore, store: MemoryStore) -> None:
    mark = await sinks.ensure("q")
    ledger = StagedLedger(0, "a", 1)
    await sinks.list_ledger("q", ledger)
    await store.multi(sinks.publish_ops("q", Mark(0, "a"), mark.version, [ledger]))
    assert await sinks.condemn("q", ledger) is False


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_every_request_comes_through_a_lost_answer_or_request(tree: MemoryTree, fault: Fault) -> None:
    store = MemoryStore(tree)
    sinks = SinkStore(store, NS)
    struck: set[tuple[str, str]] = set()

    def inject(_session: int, operation: str, path: str) -> Fault | None:
        if (operation, path) in struck:
            return None
        struck.add((operation, path))
        return fault

    tree.inject = inject
    ledger = StagedLedger(0, "a", 1)
    assert (await sinks.ensure("q")).value == Mark()
    await sinks.list_ledger("q", ledger)
    assert await sinks.staged("q") == [ledger]
    assert await sinks.condemn("q", ledger) is True
    await sinks.forget("q", ledger)
    assert await sinks.sinks() == ["q"]
    assert await sinks.remove("q") is True
    assert await sinks.sinks() == []
    assert len(struck) >= 8
    tree.inject = None
    await store.close()


async def test_sinks_lie_where_listings_of_logs_do_not_look(sinks: SinkStore, store: MemoryStore) -> None:
    await sinks.ensure("q")
    await store.multi([Create(f"{NS}/log")])
    names, _ = await store.children(NS)
    assert names == [".sinks", "log"]
    assert sinks.root == f"{NS}/.sinks"
