"""Notes of places that movers cannot reach: each mover's own, gone with its session."""

from __future__ import annotations

import pytest
from helpers.waiting import until

from metadata.distributedlog.cold_away import AwayNote, AwayNotes
from metadata.foundation.errors import DistributedLogError
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

FOLDER = "/ns/.dlspark-cold/away"
US = AwayNote("mover-a", "s3://us/dl", {}, 1_764_300_000_000)
ASIA = AwayNote("mover-a", "hdfs://nn:9000/dl", {"endpoint": "http://nn:9870"}, 1_764_300_000_001)


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


def losing(operation):
    """Return what loses each answer for a note from the first request of a kind on, so that whoever asks gives up."""
    seen = []

    def inject(_session, asked, path):
        if path.startswith(f"{FOLDER}/"):
            seen.append(asked)
        return Fault.LOSE_REPLY if operation in seen and path.startswith(f"{FOLDER}/") else None

    return inject


@pytest.mark.parametrize("operation", ["create", "put"])
async def test_a_note_whose_writing_was_not_confirmed_is_taken_back_when_the_place_is_reached_again(operation):
    tree, store, notes = await opened()
    if operation == "put":
        await notes.tell([ASIA])
    tree.inject = losing(operation)
    with pytest.raises(DistributedLogError):
        await notes.tell([US])
    tree.inject = None
    assert await notes.all() == [US], "it was written for all that"
    await notes.tell([])
    assert await notes.all() == []
    assert (await store.children(FOLDER))[0] == []


async def test_a_note_whose_deletion_was_not_confirmed_is_made_again_when_the_place_goes_again():
    tree, _, notes = await opened()
    await notes.tell([US])
    tree.inject = losing("delete")
    with pytest.raises(DistributedLogError):
        await notes.tell([])
    tree.inject = None
    await notes.tell([US])
    assert await notes.all() == [US]


async def test_a_doubtful_note_of_an_ended_session_is_not_left_beside_that_of_the_next_one():
    tree, store, notes = await opened()
    tree.inject = losing("create")
    with pytest.raises(DistributedLogError):
        await notes.tell([US])
    tree.inject = None
    before = store.session_id
    tree.expire(before)
    await until(lambda: store.session_id != before, "a new session")
    await notes.tell([ASIA])
    assert await notes.all() == [ASIA]
    await notes.tell([])
    assert (await store.children(FOLDER))[0] == []


@pytest.mark.parametrize("data", [b'{"v":2,"places":7}', b"\xff", b'{"v":1,"places":[{}]}', b"[]"])
async def test_a_note_that_this_dlspark_does_not_know_is_passed_over(data, caplog):
    caplog.set_level("INFO", "metadata.distributedlog.cold_away")
    _, store, notes = await opened()
    await notes.tell([US])
    await store.create(f"{FOLDER}/x", data)
    assert await notes.all() == [US]
    assert f"{FOLDER}/x notes no places that this dlspark knows" in caplog.text
