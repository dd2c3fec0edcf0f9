"""Sinks in metadata: marks, listings, and the token that is published or swept and never both."""

from __future__ import annotations

import asyncio

import pytest
from helpers.reference_vectors import vectors

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.sink_marks import LogMark, SinkMark, SinkState
from metadata.distributedlog.sinks import (
    MAX_SINK_ID_CHARS,
    SinkStore,
    StagedLedger,
    application_sink,
    job_sink,
    log_tag,
    query_sink,
)
from metadata.foundation.errors import BadVersionError, CallerError, CorruptDataError, NodeExistsError, NoNodeError
from metadata.store import Create, Op
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

VECTORS = vectors("znodes.md")
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


def test_a_staged_ledger_is_told_by_its_name_alone() -> None:
    ledger = StagedLedger(12, "9f", 4711)
    assert ledger.name.encode() == VECTORS["sink listing, older release"]
    assert StagedLedger.parse(ledger.name) == ledger  # as an older dlspark lists them
    ledger = StagedLedger(12, "9f", 4711, log_tag("team/flights"))
    assert ledger.name.encode() == VECTORS["sink listing, log team/flights"]
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
    assert {state.value for state in found} == {SinkState()}
    assert {state.version for state in found} == {0}
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


async def test_publishing_moves_the_marks_and_takes_the_tokens_in_one_step(
    sinks: SinkStore, store: MemoryStore
) -> None:
    state = await sinks.ensure("q")
    await store.create(FLIGHTS.partition, make_parents=True)
    winner, loser = StagedLedger(0, "a", 1), StagedLedger(0, "b", 2)
    await sinks.list_ledger("q", winner, "flights")
    await sinks.list_ledger("q", loser, "flights")
    assert await sinks.mark_in(FLIGHTS, "q") is None
    await store.multi(publication(sinks, state, winner))
    moved, mark = await sinks.read("q"), await sinks.mark_in(FLIGHTS, "q")
    assert moved is not None
    assert moved.value == SinkState(0, "a", 7)
    assert mark is not None
    assert (mark.value, mark.value.rows) == (LogMark(0, "a"), ((0, 7),))
    assert await sinks.staged("q") == [loser]
    # Another attempt, which had seen no mark in the log either.
    with pytest.raises(NodeExistsError) as caught:
        await store.multi(publication(sinks, state, loser))
    assert caught.value.path == f"{FLIGHTS.partition}/sink-q"
    assert await sinks.staged("q") == [loser]


FLIGHTS = LogPaths(f"{NS}/flights", f"{NS}/flights/<default>")


def publication(sinks: SinkStore, state: Versioned[SinkState], winner: StagedLedger) -> list[Op]:
    moved = state.value.moved(winner.batch, winner.attempt, 7)
    mark = LogMark().moved(winner.batch, winner.attempt, 7, 64)
    return [*sinks.publish_ops("q", state, moved, [winner]), sinks.mark_op(FLIGHTS, "q", None, mark)]


async def test_a_sink_of_the_old_form_is_taken_over_only_as_it_was_found(sinks: SinkStore, store: MemoryStore) -> None:
    await store.create(f"{NS}/.sinks/q", OLD_UNTOUCHED, make_parents=True)
    state = await sinks.ensure("q")
    assert state.value.old
    await store.put(f"{NS}/.sinks/q", OLD_PUBLISHED, -1)  # an older dlspark publishes
    with pytest.raises(BadVersionError):
        await store.multi(sinks.publish_ops("q", state, state.value.moved(3, "new", 1), []))
    state = await sinks.ensure("q")
    await store.multi(sinks.publish_ops("q", state, state.value.moved(4, "new", 1), []))
    assert state.value.floor is not None
    assert (state.value.floor.mark, state.value.floor.zxid > 0) == (SinkMark(2, "a2"), True)
    data, _ = await store.get(f"{NS}/.sinks/q")
    with pytest.raises(CorruptDataError, match="not a mark of version 1"):
        SinkMark.decode(data, "/x")  # which is how an older dlspark reads it: it publishes nothing
    taken = await sinks.ensure("q")
    assert (taken.value.batch, taken.value.floor, taken.value.old) == (4, state.value.floor, False)


# Bytes that version 0.1.0 wrote: a sink that its first task made, and the same after three batches.
OLD_UNTOUCHED = b'{"v":1,"batch":-1,"attempt":""}'
OLD_PUBLISHED = b'{"v":1,"batch":2,"attempt":"a2","rows":[[2,12],[1,11],[0,10]]}'


async def test_a_batch_writes_sink_keeps_the_old_form_and_is_moved_once(sinks: SinkStore, store: MemoryStore) -> None:
    state = await sinks.ensure("job-a")
    await store.multi(sinks.publish_ops("job-a", state, state.value.moved(0, "a", 7), []))
    assert (await store.get(f"{NS}/.sinks/job-a"))[0] == b'{"v":1,"batch":0,"attempt":"a","rows":[[0,7]]}'
    with pytest.raises(BadVersionError):
        await store.multi(sinks.publish_ops("job-a", state, state.value.moved(0, "b", 7), []))


async def test_a_listing_says_which_log_it_is_for_until_it_is_condemned(sinks: SinkStore) -> None:
    await sinks.ensure("q")
    new, old = StagedLedger(0, "a", 1, log_tag("flights")), StagedLedger(0, "a", 2)
    await sinks.list_ledger("q", new, "flights")
    await sinks.list_ledger("q", old)
    assert [(await sinks.log_of("q", one) or ("gone",))[0] for one in (new, old)] == ["flights", ""]
    await sinks.condemn("q", new)
    found = await sinks.log_of("q", new)
    assert found is not None
    assert (found[0], found[1].version) == ("", 1)
    assert await sinks.log_of("q", StagedLedger(0, "a", 3)) is None


async def test_a_condemned_ledger_can_never_be_published(sinks: SinkStore, store: MemoryStore) -> None:
    state = await sinks.ensure("q")
    ledger = StagedLedger(0, "a", 1)
    assert not await sinks.stands("q", ledger)
    await sinks.list_ledger("q", ledger)
    assert await sinks.stands("q", ledger)
    assert await sinks.condemn("q", ledger) is True
    assert await sinks.condemn("q", ledger) is True
    assert not await sinks.stands("q", ledger)
    with pytest.raises(BadVersionError) as caught:
        await store.multi(sinks.publish_ops("q", state, state.value.moved(0, "a", 1), [ledger]))
    assert caught.value.op_index == 1
    await sinks.list_ledger("q", ledger)  # a zombie that lists it again does not revive it
    with pytest.raises(BadVersionError):
        await store.multi(sinks.publish_ops("q", state, state.value.moved(0, "a", 1), [ledger]))
    await sinks.forget("q", ledger)
    await sinks.forget("q", ledger)
    assert await sinks.staged("q") == []


async def test_a_published_ledger_can_never_be_condemned(sinks: SinkStore, store: MemoryStore) -> None:
    state = await sinks.ensure("q")
    ledger = StagedLedger(0, "a", 1)
    await sinks.list_ledger("q", ledger)
    await store.multi(sinks.publish_ops("q", state, state.value.moved(0, "a", 1), [ledger]))
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
    assert (await sinks.ensure("q")).value == SinkState()
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
