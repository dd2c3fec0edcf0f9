"""Records as tables: by the version that reading began with, and what ends that."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

import pyarrow as pa
import pytest

from dlspark.errors import (
    EndOfStreamError,
    NoSchemaError,
    RecordMisfitError,
    SchemaChangedError,
)
from dlspark.tables.evolution import AddColumn, AllowNull, DropColumn, RenameColumn
from dlspark.tables.types import STRING

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("item", pa.string())])


async def declared(namespace, **how):
    await namespace.create_log("orders")
    log = await namespace.open_log("orders")
    await log.declare_schema(COLUMNS, **how)
    return log


async def write(log, *payloads: bytes, seal: bool = False) -> None:
    async with await log.open_writer() as writer:
        written = writer.write_bulk(list(enumerate(payloads, start=writer.last_txid + 1)))
        await writer.flush()
        if seal:
            await writer.mark_end_of_stream()
    await asyncio.gather(*written)


async def whole(reader) -> pa.Table:
    return pa.concat_tables([table async for table in reader.tables()])


async def test_records_are_rows_of_the_log_s_columns_with_where_each_is(namespace):
    log = await declared(namespace)
    await write(log, b'{"id": 1, "item": "a"}', b"{", b'{"id": 3}', seal=True)
    async with await log.open_reader() as reader:
        found = await whole(reader)
    assert found.schema.names == ["id", "item", "_log", "_error"]
    assert found.column("id").to_pylist() == [1, None, 3]
    assert found.column("item").to_pylist() == ["a", None, None]
    where = found.column("_log").to_pylist()
    assert [(one["log"], one["segment"], one["entry"], one["slot"], one["row"]) for one in where] == [
        ("orders", 1, 0, 0, 0),
        ("orders", 1, 0, 1, 0),
        ("orders", 1, 0, 2, 0),
    ]
    assert [one["value"] for one in where] == [None, b"{", None]
    assert where[2]["timestamp"] == datetime(1970, 1, 1, 0, 0, 0, 2000, tzinfo=timezone.utc)
    errors = found.column("_error").to_pylist()
    assert (errors[0], errors[2]) == (None, None)
    assert errors[1]
    assert namespace.services.meter.of("orders").misfit_records.value == 1


async def test_a_reader_waits_at_the_tail_and_its_position_is_behind_what_it_gave(namespace):
    log = await declared(namespace)
    async with await log.open_reader() as reader:
        waiting = asyncio.ensure_future(reader.next_table())
        await write(log, b'{"id": 1}', b'{"id": 2}')
        rows = (await asyncio.wait_for(waiting, 60)).num_rows
        while rows < 2:
            rows += (await asyncio.wait_for(reader.next_table(), 60)).num_rows
        assert str(reader.position) == "1:0:2"


async def test_rows_and_records_share_one_position(namespace):
    log = await declared(namespace)
    await write(log, *(b'{"id": %d}' % number for number in range(4)), seal=True)
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b'{"id": 0}'
        assert (await reader.next_table()).column("id").to_pylist() == [1, 2, 3]
        with pytest.raises(EndOfStreamError):
            await reader.next_table()


async def test_a_log_without_a_schema_says_so_and_its_records_are_read_all_the_same(namespace):
    await namespace.create_log("plain")
    log = await namespace.open_log("plain")
    await write(log, b"x")
    async with await log.open_reader() as reader:
        with pytest.raises(NoSchemaError, match="declares no schema"):
            await reader.next_table()
        assert (await reader.read_next()).payload == b"x"


# ---------------------------------------------------------------------- versions


async def test_a_reader_keeps_the_version_it_began_with_and_says_once_that_there_is_another(namespace, caplog):
    log = await declared(namespace)
    await write(log, b'{"id": 1, "item": "a"}')
    async with await log.open_reader() as reader:
        assert (await reader.next_table()).column("item").to_pylist() == ["a"]
        await log.change_schema([RenameColumn(("item",), "what"), AddColumn(("note",), STRING)])
        await write(log, b'{"id": 2, "what": "b", "note": "n"}')
        await write(log, b'{"id": 3, "what": "c", "note": "n"}')
        more = [await asyncio.wait_for(reader.next_table(), 60) for _ in range(2)]
    assert [table.schema.names for table in more] == [["id", "item", "_log", "_error"]] * 2
    assert [table.column("item").to_pylist() for table in more] == [["b"], ["c"]]
    assert [record.message for record in caplog.records if "version 1 of its schema" in record.message] == [
        "log orders: version 1 of its schema is there; tables keep the columns of version 0, with which reading began"
    ]
    async with await log.open_reader() as reader:
        assert (await reader.next_table()).schema.names == ["id", "what", "note", "_log", "_error"]


@pytest.mark.parametrize("change", [DropColumn(("item",)), AllowNull(("id",))])
async def test_records_of_a_version_that_are_no_rows_of_the_first_end_the_tables_and_nothing_is_lost(namespace, change):
    log = await declared(namespace)
    await write(log, b'{"id": 1, "item": "a"}')
    async with await log.open_reader() as reader:
        await reader.next_table()
        await log.change_schema([change])
        await write(log, b'{"id": 2}')
        for _ in range(2):
            with pytest.raises(SchemaChangedError, match="nothing more was read"):
                await asyncio.wait_for(reader.next_table(), 60)
        position = reader.position
        assert (await reader.read_next()).payload == b'{"id": 2}'
    async with await log.open_reader(position) as reader:
        assert (await reader.next_table()).column("id").to_pylist() == [2]


@pytest.mark.parametrize("anew", [False, True])
async def test_a_schema_that_is_withdrawn_ends_the_tables(namespace, anew):
    log = await declared(namespace)
    await write(log, b'{"id": 1}')
    async with await log.open_reader() as reader:
        await reader.next_table()
        await log.withdraw_schema()
        if anew:
            await log.declare_schema(COLUMNS)
        await write(log, b'{"id": 2}')
        with pytest.raises(SchemaChangedError, match="was withdrawn"):
            await asyncio.wait_for(reader.next_table(), 60)


async def test_a_read_that_is_cancelled_while_the_schema_is_looked_up_loses_nothing(namespace, monkeypatch):
    log = await declared(namespace)
    await write(log, b'{"id": 1}', seal=True)
    async with await log.open_reader() as reader:
        looking = asyncio.Event()

        async def renew() -> None:
            looking.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(reader._tables, "renew", renew)
            reading = asyncio.ensure_future(reader.next_table())
            await asyncio.wait_for(looking.wait(), 60)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        assert (await reader.next_table()).column("id").to_pylist() == [1]


# ---------------------------------------------------------------------- strict logs


async def test_a_strict_log_gives_what_stands_before_the_first_record_that_does_not_fit_then_ends(namespace):
    log = await declared(namespace, strict=True)
    await write(log, b'{"id": 1}', b'{"id": 2}', b"{", b'{"id": 4}')
    async with await log.open_reader() as reader:
        assert (await reader.next_table()).column("id").to_pylist() == [1, 2]
        for _ in range(2):
            with pytest.raises(RecordMisfitError, match="nothing from it on was read") as caught:
                await reader.next_table()
        assert (str(reader.position), caught.value.dlsn, caught.value.log) == ("1:0:2", "1:0:2", "orders")
    async with await log.open_reader("1:0:2") as reader:
        with pytest.raises(RecordMisfitError):
            await reader.next_table()
        assert str(reader.position) == "1:0:2"
    await log.change_schema(strict=False)
    async with await log.open_reader("1:0:2") as reader:
        assert (await reader.next_table()).column("id").to_pylist() == [None, 4]


async def test_payloads_of_record_sets_are_rows_of_their_own(namespace):
    log = await declared(namespace)
    async with await log.open_writer() as writer:
        written = writer.write_record_set(1, [b'{"id": 1}', b"{", b'{"id": 3}'], "lz4")
        await writer.mark_end_of_stream()
    await asyncio.gather(*written)
    async with await log.open_reader() as reader:
        found = await whole(reader)
    assert found.column("id").to_pylist() == [1, None, 3]
    assert [one["slot"] for one in found.column("_log").to_pylist()] == [0, 1, 2]


async def test_a_subscriber_commits_how_far_it_came_in_rows(namespace):
    log = await declared(namespace)
    await write(log, b'{"id": 1}', b'{"id": 2}')
    async with await log.open_reader(subscriber="billing") as reader:
        assert (await reader.next_table()).column("id").to_pylist() == [1, 2]
        await reader.commit_position()
    await write(log, b'{"id": 3}')
    async with await log.open_reader(subscriber="billing") as reader:
        assert (await asyncio.wait_for(reader.next_table(), 60)).column("id").to_pylist() == [3]
