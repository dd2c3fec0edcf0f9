"""Rules in ZooKeeper: no change is lost, each reaches who watches, and what cannot be read allows nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from helpers.waiting import until

from metadata.distributedlog import rights_store
from metadata.distributedlog.bindings import RESERVED_NODES
from metadata.distributedlog.rights_store import RIGHTS, RightsStore, RightsWatch
from metadata.foundation.errors import CallerError, ConnectionLossError, CorruptDataError, NoNodeError
from metadata.security.principals import Principal, Scheme
from metadata.security.rights import (
    ALL_VERBS,
    EVERYBODY,
    InvalidRuleError,
    LogPattern,
    Rule,
    RuleSet,
    Subject,
    Verb,
    encode_rules,
)
from metadata.store import MetadataStore
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

ALICE = Principal("alice", Scheme.TLS)
OPERATOR = Principal("root", Scheme.TLS, frozenset({"operator"}))
SUPER = [Subject.parse("role:operator")]
READ = Rule(True, EVERYBODY, frozenset({Verb.READ}), LogPattern("orders"))


def rule(log: str, *verbs: Verb, allow: bool = True) -> Rule:
    return Rule(allow, Subject.parse("user:alice"), frozenset(verbs or ALL_VERBS), LogPattern(log))


@pytest.fixture(name="rights")
async def _rights(store: MetadataStore, root: str) -> RightsStore:
    await store.create(f"{root}/ns")
    return RightsStore(store, f"{root}/ns")


async def test_rules_are_added_and_removed(rights: RightsStore) -> None:
    assert await rights.read() == RuleSet()
    await rights.change(add=[rule("a", Verb.READ), rule("b")])
    after = await rights.change(add=[rule("a", Verb.WRITE)], remove=[rule("b")])
    assert list(after) == [rule("a", Verb.READ, Verb.WRITE)]
    assert await rights.read() == after


async def test_a_change_that_is_no_change_writes_nothing(rights: RightsStore) -> None:
    await rights.change(add=[rule("a")])
    _, before = await rights.store.get(rights.path)
    await rights.change(add=[rule("a", Verb.READ)], remove=[rule("z")])
    assert (await rights.store.get(rights.path))[1] == before


async def test_operators_at_once_lose_nothing(rights: RightsStore, other: MetadataStore) -> None:
    second = RightsStore(other, rights.path.removesuffix(f"/{RIGHTS}"))
    await asyncio.gather(
        *(one.change(add=[rule(f"{n}-{i}")]) for i in range(8) for n, one in enumerate((rights, second)))
    )
    assert len(await rights.read()) == 16
    await asyncio.gather(
        *(one.change(remove=[rule(f"{n}-{i}")]) for i in range(7) for n, one in enumerate((rights, second)))
    )
    assert [str(one.logs) for one in await rights.read()] == ["0-7", "1-7"]


async def test_a_namespace_that_is_not_there_gets_no_rules(store: MetadataStore, root: str) -> None:
    with pytest.raises(NoNodeError):
        await RightsStore(store, f"{root}/missing").change(add=[READ])


def test_the_name_is_reserved() -> None:
    assert RIGHTS in RESERVED_NODES
    assert RIGHTS.startswith(".")


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
async def test_a_lost_answer_does_a_change_once(fault: Fault) -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/ns")
    rights = RightsStore(store, "/ns")
    await rights.change(add=[rule("a"), rule("b")])
    faults = [fault]
    tree.inject = lambda _session, name, _path: faults.pop() if name == "put" and faults else None
    after = await rights.change(add=[rule("c")], remove=[rule("a")])
    assert not faults
    assert after == await rights.read() == RuleSet.of([rule("b"), rule("c")])


async def test_too_many_rules_are_refused_and_nothing_is_changed(
    rights: RightsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rights.change(add=[rule("a")])
    monkeypatch.setattr("metadata.security.rights.MAX_RULES", 1)
    with pytest.raises(InvalidRuleError, match="2 rules"):
        await rights.change(add=[rule("b")])
    monkeypatch.undo()
    assert list(await rights.read()) == [rule("a")]


async def test_damaged_rules_are_mended_and_sound_ones_are_not(rights: RightsStore) -> None:
    await rights.store.create(rights.path, b"{torn")
    for attempt in (rights.read, lambda: rights.change(add=[READ])):
        with pytest.raises(CorruptDataError, match="acl mend"):
            await attempt()
    assert (await rights.store.get(rights.path))[0] == b"{torn"
    rules = RuleSet.of([rule("a")])
    assert await rights.mend(rules) == rules == await rights.read()
    await rights.mend(rules)
    with pytest.raises(CallerError, match="not damaged"):
        await rights.mend(RuleSet())
    assert await rights.read() == rules


# ---------------------------------------------------------------------- watching


@pytest.fixture(name="watched")
async def _watched(other: MetadataStore, rights: RightsStore) -> AsyncIterator[Callable[..., RightsWatch]]:
    """Watches in another session; none polls within a test, unless it asks for that."""
    made: list[RightsWatch] = []

    def watched(*, poll_s: float = 3600.0) -> RightsWatch:
        made.append(RightsWatch(RightsStore(other, rights.path.removesuffix(f"/{RIGHTS}")), SUPER, poll_s=poll_s))
        return made[-1]

    yield watched
    for one in made:
        await one.close()


def allowed(watch: RightsWatch, verb: Verb = Verb.READ, log: str = "orders") -> bool:
    return watch.book.decide(ALICE, verb, log).allowed


async def test_nothing_is_allowed_before_rules_were_read(watched: Callable[..., RightsWatch]) -> None:
    watch = watched()
    assert not allowed(watch)
    await watch.start()
    assert not allowed(watch)
    assert watch.book.broken is None


async def test_a_change_reaches_who_watches(rights: RightsStore, watched: Callable[..., RightsWatch]) -> None:
    watch, heard = watched(), []
    await watch.start()
    watch.on_change = lambda: heard.append(allowed(watch))
    await rights.change(add=[READ])
    await until(lambda: heard == [True])
    await rights.change(add=[rule("orders", Verb.READ, allow=False)])
    await until(lambda: heard == [True, False])
    await rights.store.delete(rights.path)
    await until(lambda: len(heard) == 3)
    await rights.change(add=[READ])  # made anew, with version 0 as at first
    await until(lambda: heard == [True, False, False, True])


async def test_a_change_is_seen_without_watches(
    rights: RightsStore, watched: Callable[..., RightsWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RightsWatch, "_changed", lambda _self, _event: None)
    watch = watched(poll_s=0.01)
    await watch.start()
    await rights.change(add=[READ])
    await until(lambda: allowed(watch))
    await rights.change(remove=[READ])
    await until(lambda: not allowed(watch))


@pytest.mark.parametrize("data", [b"{torn", b'{"v":2,"rules":[]}', b"\xff"])
async def test_damaged_rules_allow_nothing_but_to_super_users_until_they_are_mended(
    rights: RightsStore, watched: Callable[..., RightsWatch], data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await rights.change(add=[READ])
    watch = watched()
    await watch.start()
    assert allowed(watch)
    await rights.store.put(rights.path, data, -1)
    await until(lambda: not allowed(watch))
    assert "cannot be read" in watch.book.decide(ALICE, Verb.READ, "orders").reason
    assert watch.book.decide(OPERATOR, Verb.ADMINISTER, None).allowed
    assert [one.levelno for one in caplog.records if "nothing is allowed" in one.message.lower()] == [logging.ERROR]
    await rights.mend(RuleSet.of([READ]))
    await until(lambda: allowed(watch))


async def test_a_watch_begins_with_damaged_rules(rights: RightsStore, watched: Callable[..., RightsWatch]) -> None:
    await rights.store.create(rights.path, b"{torn")
    watch = watched()
    await watch.start()
    assert not allowed(watch)
    assert watch.book.decide(OPERATOR, Verb.READ, "orders").allowed


async def test_many_rules_are_read_in_a_thread(
    rights: RightsStore, watched: Callable[..., RightsWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights_store, "LARGE_BYTES", 10)
    await rights.change(add=[READ])
    watch = watched()
    await watch.start()
    assert allowed(watch)


@pytest.fixture(name="away")
async def _away() -> AsyncIterator[tuple[MemoryTree, MemoryStore, RightsWatch]]:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/ns")
    await store.create("/ns/.dlspark-rights", encode_rules(RuleSet.of([READ])))
    watch = RightsWatch(RightsStore(store, "/ns"), SUPER, poll_s=0.01)
    await watch.start()
    yield tree, store, watch
    await watch.close()


async def test_what_was_known_holds_for_a_while_without_zookeeper_and_then_no_more(
    away: tuple[MemoryTree, MemoryStore, RightsWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, store, watch = away
    watch._max_age_s = 3600
    failures: list[BaseException] = []
    unanswered = watch._unanswered

    def note(error: BaseException) -> None:
        failures.append(error)
        unanswered(error)

    monkeypatch.setattr(watch, "_unanswered", note)
    tree.disconnect(store.session_id)
    await until(lambda: len(failures) >= 2)
    assert allowed(watch)
    watch._max_age_s = 0
    await until(lambda: not allowed(watch))
    assert "has not answered" in watch.book.decide(ALICE, Verb.READ, "orders").reason
    assert watch.book.decide(OPERATOR, Verb.READ, "orders").allowed
    tree.reconnect(store.session_id)
    await until(lambda: allowed(watch))


async def test_a_look_that_was_not_answered_is_made_again_before_the_next_poll(
    away: tuple[MemoryTree, MemoryStore, RightsWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store, watch = away
    monkeypatch.setattr(rights_store, "AGAIN_S", 0.01)
    sync, failed = store.sync, asyncio.Event()

    async def sync_later(path: str) -> None:
        if watch._poll_s < 3_600:
            watch._poll_s = 3_600
            failed.set()
            raise ConnectionLossError("the answer was lost")
        await sync(path)

    monkeypatch.setattr(store, "sync", sync_later)
    await failed.wait()
    monkeypatch.setattr(store, "exists", _unwatched(store.exists))
    await store.put("/ns/.dlspark-rights", encode_rules(RuleSet()), -1)
    await until(lambda: not allowed(watch))


def _unwatched(exists: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    async def without(path: str, _watch: object = None) -> object:
        return await exists(path)

    return without


async def test_a_mistake_of_ours_ends_no_watch(
    away: tuple[MemoryTree, MemoryStore, RightsWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store, watch = away
    monkeypatch.setattr(rights_store, "decode_rules", lambda *_: 1 // 0)
    await store.put("/ns/.dlspark-rights", encode_rules(RuleSet()), -1)
    await until(lambda: watch.book.broken == "ZeroDivisionError")
    monkeypatch.undo()
    await until(lambda: watch.book.broken is None)
    assert not allowed(watch)


async def test_a_first_look_that_is_not_answered_is_an_error() -> None:
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/ns")
    tree.inject = lambda _session, _name, _path: Fault.LOSE_REQUEST
    watch = RightsWatch(RightsStore(store, "/ns"), SUPER)
    with pytest.raises(ConnectionLossError):
        await watch.start()
    assert not allowed(watch)
