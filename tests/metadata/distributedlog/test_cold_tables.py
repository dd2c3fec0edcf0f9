"""Declarations of lake tables: made once, never changed, without secrets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.distributedlog.cold_tables import MAX_LOGS, ColdTable, ColdTableStore
from metadata.foundation.errors import CallerError, CorruptDataError, NoNodeError
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

TABLE = ColdTable("flights", "id", "iceberg", "https://catalog", "air.flights", ("a", "b/c"), {"warehouse": "w"}, 7)


async def opened():
    store = MemoryStore(MemoryTree())
    await store.create("/ns")
    await store.create("/ns/.dlspark-cold", b"{}")
    return store, ColdTableStore(store, "/ns")


async def test_a_declaration_is_read_back_and_dropped():
    _, tables = await opened()
    assert await tables.tables() == []
    assert await tables.create(TABLE) == TABLE
    assert await tables.get("flights") == TABLE
    assert await tables.tables() == [TABLE]
    assert await tables.drop("flights")
    assert await tables.get("flights") is None
    assert not await tables.drop("flights")


async def test_the_same_declaration_again_is_the_first_one_and_another_is_refused():
    _, tables = await opened()
    await tables.create(TABLE)
    assert await tables.create(replace(TABLE, id="other", created_ms=9)) == TABLE
    with pytest.raises(CallerError, match="declared otherwise"):
        await tables.create(replace(TABLE, logs=("a",)))
    assert await tables.get("flights") == TABLE


async def test_nothing_is_declared_where_cold_storage_has_no_znode():
    """It is made with its data, by whoever needs the namespace's id: never empty, as a parent."""
    store = MemoryStore(MemoryTree())
    await store.create("/ns")
    with pytest.raises(NoNodeError):
        await ColdTableStore(store, "/ns").create(TABLE)
    assert await store.exists("/ns/.dlspark-cold") is None


async def test_an_answer_that_was_lost_is_not_another_declaration():
    store, tables = await opened()
    await store.create(tables.root)
    lost = [Fault.LOSE_REPLY]

    def lose(_: int, operation: str, path: str) -> Fault | None:
        return lost.pop() if lost and path.endswith("/flights") else None

    store._tree.inject = lose
    assert await tables.create(TABLE) == TABLE
    assert lost == []


@pytest.mark.parametrize(
    "table",
    [
        replace(TABLE, options={"s3.secret-access-key": "x"}),
        replace(TABLE, options={"token": "x"}),
        replace(TABLE, place="https://user:word@catalog"),
        replace(TABLE, logs=()),
        replace(TABLE, logs=("a", "a")),
        replace(TABLE, logs=tuple(map(str, range(MAX_LOGS + 1)))),
        replace(TABLE, name="a/b"),
        replace(TABLE, name=""),
    ],
)
async def test_what_cannot_be_declared(table):
    _, tables = await opened()
    with pytest.raises(CallerError):
        await tables.create(table)
    assert await tables.tables() == []


async def test_a_declaration_of_another_version_is_refused():
    store, tables = await opened()
    await tables.create(TABLE)
    await store.put(f"{tables.root}/flights", TABLE.encode().replace(b'"v":1', b'"v":2'), -1)
    with pytest.raises(CorruptDataError, match="newer dlspark"):
        await tables.get("flights")
