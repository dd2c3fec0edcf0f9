"""Declarations of lake tables: made once, without secrets; they follow what becomes of their logs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from metadata.distributedlog.cold_tables import MAX_LOGS, ColdTable, ColdTableStore, TableLog, table_logs
from metadata.foundation.errors import CallerError, CorruptDataError, NoNodeError, NotAppliedError
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

TABLE = ColdTable(
    "flights", "id", "iceberg", "https://catalog", "air.flights", table_logs(["a", "b/c"]), {"warehouse": "w"}, 7
)


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
        await tables.create(replace(TABLE, members=table_logs(["a"])))
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
        replace(TABLE, members=()),
        replace(TABLE, members=table_logs(["a", "a"])),
        replace(TABLE, members=table_logs(map(str, range(MAX_LOGS + 1)))),
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
    await store.put(f"{tables.root}/flights", TABLE.encode().replace(b'"v":2', b'"v":3'), -1)
    with pytest.raises(CorruptDataError, match="newer dlspark"):
        await tables.get("flights")


async def test_a_declaration_follows_its_logs_unless_another_has_noted_something():
    store, tables = await opened()
    await tables.create(TABLE)
    known = (TableLog("a", "1"), TableLog("b/c", "2"))
    first = await tables.follow(TABLE, known)
    assert (first.members, first.id) == (known, TABLE.id)
    assert await tables.follow(TABLE, (TableLog("a", "1"), TableLog("b/c"))) == first  # planned by what is no more
    renamed = (TableLog("z", "1"), TableLog("b/c", "2", deleted=True))
    lost = [Fault.LOSE_REPLY]
    store._tree.inject = lambda _, operation, path: lost.pop() if lost and operation == "put" else None
    assert (await tables.follow(first, renamed)).members == renamed
    assert (await tables.get("flights")).logs == ("z", "b/c")
    await tables.drop("flights")
    with pytest.raises(NotAppliedError, match="dropped meanwhile"):
        await tables.follow(first, known)


async def test_a_declaration_of_the_first_version_names_logs_alone():
    store, tables = await opened()
    await tables.create(TABLE)
    fields = json.loads(TABLE.encode()) | {"v": 1, "logs": ["a", "b/c"]}
    await store.put(f"{tables.root}/flights", json.dumps(fields).encode(), -1)
    assert await tables.get("flights") == TABLE
