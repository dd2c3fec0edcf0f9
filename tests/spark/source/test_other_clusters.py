"""A checkpoint and the log of its name in another cluster, where ledgers have the same numbers again; no Spark.

A cluster that was made anew gives the first log's first segment ledger 0 once more. A query that went on at its old
position passed over the new log's first records without a word.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.spark.memory_world import DriverWorld
from helpers.waiting import until
from test_source_driver import read

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.spark.errors import OffsetError, RecreatedDataLossError
from dlspark.spark.source.offsets import LogIdentity, Offsets
from dlspark.spark.source.selection import NO_BATCH_LIMITS
from metadata.store import ANY_VERSION, SessionState
from metadata.zookeeper.memory import MemoryStore

LOG = "flights"
ID = "/ledgers/INSTANCEID"


@pytest.fixture
async def new_world(tmp_path: Path) -> AsyncIterator[DriverWorld]:
    """Run another cluster, beside that of `driver_world`."""
    made = DriverWorld(tmp_path / "new")
    await made.start()
    yield made
    await made.stop()


async def read_to_the_end(world: DriverWorld) -> Offsets:
    """Write 12 records, read them, and return what the checkpoint keeps."""
    await world.write(await world.create(LOG), range(12), entry=4)
    driver = await world.driver(log=LOG)
    end = await driver.end_of_batch(await driver.resolve(driver.query.start), NO_BATCH_LIMITS, None)
    return Offsets.from_stored(json.loads(json.dumps(end.stored())))


@pytest.fixture
async def old(driver_world: DriverWorld, new_world: DriverWorld) -> Offsets:
    """Return the checkpoint of the old cluster; in the new one the log has 40 records, in the same ledger."""
    end = await read_to_the_end(driver_world)
    await new_world.write(await new_world.create(LOG), range(40), entry=4)
    view = await new_world.view(LOG)
    here = view.identity(end[LOG])
    assert here is not None
    assert here[:2] == end.identities[LOG][:2]
    assert here.cluster != end.identities[LOG].cluster != ""
    return end


async def test_the_log_of_a_new_cluster_is_another_one_whatever_its_ledgers_numbers_are(
    new_world: DriverWorld, old: Offsets
) -> None:
    driver = await new_world.driver(log=LOG)
    with pytest.raises(RecreatedDataLossError, match="with its whole cluster: this is") as caught:
        await driver.end_of_batch(old, NO_BATCH_LIMITS, None)
    here = (await driver.latest()).identities[LOG].cluster
    assert f"this is {here} (segment 1 was ledger 0 of cluster {old.identities[LOG].cluster})" in str(caught.value)
    with pytest.raises(RecreatedDataLossError):
        await driver.plan(old, await driver.latest())
    assert await driver.other_logs(old) == [LOG]
    other = await new_world.driver(log=LOG, startingOffsets=json.dumps(old.stored()))
    with pytest.raises(OffsetError, match="created later"):
        await other.resolve(other.query.start)


async def test_it_is_read_from_its_first_record_where_loss_is_allowed(
    new_world: DriverWorld, old: Offsets, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await new_world.driver(log=LOG, failOnDataLoss="false")
    end = await driver.end_of_batch(old, NO_BATCH_LIMITS, None)
    assert await read(await driver.plan(old, end)) == list(range(40))
    assert "with its whole cluster" in caplog.text
    assert await (await new_world.driver(log=LOG)).other_logs(end) == []


async def test_a_checkpoint_that_does_not_say_its_cluster_goes_on(driver_world: DriverWorld) -> None:
    """Those of earlier releases; and a batch without news keeps their text."""
    end = await read_to_the_end(driver_world)
    driver = await driver_world.driver(log=LOG)
    before = replace(end, identities={LOG: LogIdentity(*end.identities[LOG][:2])})
    assert await driver.end_of_batch(before, NO_BATCH_LIMITS, None) == before
    await driver_world.write(LOG, range(12, 20))
    then = await driver.end_of_batch(before, NO_BATCH_LIMITS, None)
    assert await read(await driver.plan(before, then)) == list(range(12, 20))
    assert then.identities[LOG].cluster


async def test_where_a_cluster_has_no_id_its_ledgers_decide(driver_world: DriverWorld) -> None:
    end = await read_to_the_end(driver_world)
    await driver_world.namespace.store.delete(ID)
    driver = await driver_world.driver(log=LOG)
    assert await driver.other_logs(end) == []
    there = (await driver.latest()).identities[LOG]
    assert there == LogIdentity(*end.identities[LOG][:2])


async def test_an_id_that_is_no_uuid_is_kept_as_text_that_can_be_read_back(driver_world: DriverWorld) -> None:
    """Apache BookKeeper's clusters have UUIDs; nobody checks it."""
    await driver_world.namespace.store.put(ID, b'our "cluster"] 3:17@x', ANY_VERSION)
    end = await read_to_the_end(driver_world)
    assert LogIdentity.parse(str(end.identities[LOG])) == end.identities[LOG]
    assert await (await driver_world.driver(log=LOG)).other_logs(end) == []


def come_back_as(store: MemoryStore, world: DriverWorld) -> None:
    """End a store's session; the one that follows is with the ZooKeeper of another world."""
    with store._tree.lock:
        store._tree._end(store._session)
    world.tree._next_session += 1_000  # ZooKeeper's are never used again
    store._tree = world.tree
    store._renew()


async def test_a_query_over_whose_head_the_cluster_is_made_anew_ends(
    driver_world: DriverWorld, new_world: DriverWorld
) -> None:
    """ZooKeeper and nodes come back empty at the same addresses, and the session with them is a new one."""
    driver = await driver_world.driver(log=LOG, failOnDataLoss="false")
    await driver_world.write(await driver_world.create(LOG), range(12), entry=4)
    end = await driver.end_of_batch(await driver.resolve(driver.query.start), NO_BATCH_LIMITS, None)
    await new_world.write(await new_world.create(LOG), range(40), entry=4)
    store = driver._opened().store
    assert isinstance(store, MemoryStore)
    come_back_as(store, new_world)
    view = driver._views[LOG]
    await until(view._changed.is_set)
    for _ in range(2):
        with pytest.raises(RecreatedDataLossError, match="made anew while the query ran") as caught:
            await driver.end_of_batch(end, NO_BATCH_LIMITS, None)
        assert "Start the query again" in str(caught.value)
    again = await new_world.driver(log=LOG, failOnDataLoss="false")
    assert await read(await again.plan(end, await again.latest())) == list(range(40))


async def test_it_ends_where_only_the_ledgers_are_made_anew_in_a_zookeeper_of_their_own(
    driver_world: DriverWorld, new_world: DriverWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No watch is on that one: the rows of another log in the new ledger would be read."""
    logs, ledgers = MemoryStore(driver_world.tree), MemoryStore(driver_world.tree)

    async def connect(uri: str) -> AsyncNamespace:
        return await AsyncNamespace.over(logs, uri, ledger_store=ledgers, own=(logs, ledgers))

    monkeypatch.setattr(driver_world, "connect", connect)
    await driver_world.write(await driver_world.create(LOG), range(12), entry=4)
    driver = await driver_world.driver(log=LOG)
    end = await driver.end_of_batch(await driver.resolve(driver.query.start), NO_BATCH_LIMITS, None)
    session = ledgers.session_id
    come_back_as(ledgers, new_world)
    await until(lambda: ledgers.session_id != session)
    with pytest.raises(RecreatedDataLossError, match="made anew while the query ran"):
        await driver.end_of_batch(end, NO_BATCH_LIMITS, None)


async def test_it_ends_where_the_cluster_is_formatted_within_the_session(driver_world: DriverWorld) -> None:
    """`bookkeeper shell metaformat`: ZooKeeper lives on, and ledgers are counted from 0 again."""
    driver = await driver_world.driver(log=LOG)
    await driver_world.write(await driver_world.create(LOG), range(12), entry=4)
    end = await driver.end_of_batch(await driver.resolve(driver.query.start), NO_BATCH_LIMITS, None)
    await driver_world.namespace.delete_log(LOG)
    await driver_world.namespace.store.put(ID, b"another", ANY_VERSION)
    await driver_world.write(await driver_world.create(LOG), range(100, 140), entry=4)
    with pytest.raises(RecreatedDataLossError, match="made anew while the query ran"):
        await driver.end_of_batch(end, NO_BATCH_LIMITS, None)


@pytest.mark.parametrize("change", ["gone", "new"])
async def test_an_id_that_goes_or_comes_is_no_new_cluster(driver_world: DriverWorld, change: str) -> None:
    store = driver_world.namespace.store
    known, _ = await store.get(ID)
    if change == "new":
        await store.delete(ID)
    end = await read_to_the_end(driver_world)
    driver = await driver_world.driver(log=LOG)
    await driver.latest()
    if change == "new":
        await store.create(ID, known)
    else:
        await store.delete(ID)
    await driver_world.write(LOG, range(12, 20))
    then = await driver.end_of_batch(end, NO_BATCH_LIMITS, None)
    assert await read(await driver.plan(end, then)) == list(range(12, 20))
    assert then.identities[LOG].cluster == known.decode()


async def test_a_session_that_ends_is_no_new_cluster(driver_world: DriverWorld) -> None:
    end = await read_to_the_end(driver_world)
    driver = await driver_world.driver(log=LOG)
    await driver.latest()
    store = driver._opened().store
    assert isinstance(store, MemoryStore)
    session = store.session_id
    driver_world.tree.expire(session)
    await until(lambda: store.session_id != session and store.state is SessionState.CONNECTED)
    await driver_world.write(LOG, range(12, 20))
    then = await driver.end_of_batch(end, NO_BATCH_LIMITS, None)
    assert await read(await driver.plan(end, then)) == list(range(12, 20))


async def test_the_cluster_decides_too_where_the_segment_that_was_read_is_gone(
    driver_world: DriverWorld, new_world: DriverWorld
) -> None:
    end = await read_to_the_end(driver_world)
    behind = replace(end, positions={LOG: DLSN(2, 0, 0)})
    await new_world.create(LOG)
    for first in (0, 12):
        await new_world.write(LOG, range(first, first + 12), entry=4)
    logs = new_world.namespace.logs_store
    await new_world.namespace.store.delete(logs.paths(LOG).segment((await logs.segments(LOG))[0]))
    driver = await new_world.driver(log=LOG)
    assert await driver.other_logs(behind) == [LOG]
    with pytest.raises(RecreatedDataLossError):
        await driver.end_of_batch(behind, NO_BATCH_LIMITS, None)
