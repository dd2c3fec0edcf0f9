"""Notes of places that movers cannot reach: each mover's own, gone with its session."""

from __future__ import annotations

import pytest
from helpers.waiting import until

from metadata.distributedlog.cold_away import AwayNote, AwayNotes
from metadata.foundation.errors import CorruptDataError
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

FOLDER = "/ns/.dlspark-cold/away"
US = AwayNote("mover-a", "s3://us/dl", None, 1_764_300_000_000)
ASIA = AwayNote("mover-a", "hdfs://nn:9000/dl", "http://nn:9870", 1_764_300_000_001)


async def opened():
    tree = MemoryTree()
    store = MemoryStore(tree)
    await store.create("/ns")
    await store.create("/ns/.dlspark-cold", b"{}")
    return tree, store, AwayNotes(store, "/ns")


async def test_what_a_mover_notes_is_read_by_all_and_is_gone_when_it_says_so():
    tree, store, notes = await opened()
    assert await notes.all() == []
    await notes.tell([])
    assert await store.exists(FOLDER) is None, "where all is well nothing is written"
    await notes.tell([US, ASIA])
    other = AwayNotes(MemoryStore(tree), "/ns")
    assert await other.all() == [US, ASIA]
    await notes.tell([ASIA])
    assert await other.all() == [ASIA]
    await notes.tell([])
    assert await other.all() == []


async def test_movers_have_notes_of_their_own_which_go_with_their_sessions():
    tree, _, notes = await opened()
    second = MemoryStore(tree)
    others = AwayNotes(second, "/ns")
    await notes.tell([US])
    await others.tell([ASIA])
    assert sorted(await notes.all(), key=lambda one: one.since_ms) == [US, ASIA]
    tree.expire(second.session_id)
    assert await notes.all() == [US]


async def test_a_note_is_made_again_in_a_new_session():
    tree, store, notes = await opened()
    await notes.tell([US])
    before = store.session_id
    tree.expire(before)
    await until(lambda: store.session_id != before, "a new session")
    await notes.tell([US])
    assert await notes.all() == [US]
    names, _ = await store.children(FOLDER)
    assert len(names) == 1


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_an_answer_that_is_lost_makes_no_second_note(fault):
    tree, store, notes = await opened()
    met = []

    def inject(_session, operation, path):
        if operation in ("create", "put", "delete") and path.startswith(FOLDER) and (operation, path) not in met:
            met.append((operation, path))
            return fault
        return None

    tree.inject = inject
    await notes.tell([US])
    await notes.tell([ASIA])
    assert await notes.all() == [ASIA]
    names, _ = await store.children(FOLDER)
    assert len(names) == 1
    await notes.tell([])
    assert await notes.all() == []
    assert {operation for operation, _ in met} == {"create", "put", "delete"}


async def test_a_note_that_is_none_is_said_to_be_none():
    _, store, notes = await opened()
    await store.create(FOLDER)
    await store.create(f"{FOLDER}/x", b'{"v":2}')
    with pytest.raises(CorruptDataError, match="notes no places"):
        await notes.all()
