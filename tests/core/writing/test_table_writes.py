"""Tables as records: encoded by the log's schema, with transaction ids that never say less than their rows' time."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.typed import table_writes
from dlspark.core.typed.declarations import Declarations
from dlspark.errors import (
    AlreadyClosedError,
    CallerError,
    EndOfStreamError,
    MetadataUnavailableError,
    NoSchemaError,
    RecordTooLongError,
    RowRefusedError,
    TransactionIdOutOfOrderError,
)
from dlspark.tables.evolution import AddColumn, RenameColumn
from dlspark.tables.types import STRING

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("item", pa.string())])
TIME = pa.timestamp("us", "UTC")
TIMED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", TIME, nullable=False)])


async def declared(namespace, columns: pa.Schema = COLUMNS, **how):
    await namespace.create_log("orders")
    log = await namespace.open_log("orders")
    await log.declare_schema(columns, **how)
    return log


async def records(log) -> list:
    """What is in a sealed log."""
    async with await log.open_reader() as reader:
        return [record async for record in reader]


def at(*millis: int) -> pa.Array:
    return pa.array([datetime.fromtimestamp(one / 1000, timezone.utc) for one in millis], TIME)


def timed(*millis: int) -> pa.Table:
    return pa.table({"id": range(len(millis)), "at": at(*millis)})


@pytest.mark.parametrize("format_", ["json", "avro", "arrow"])
async def test_a_table_that_is_written_is_read_back(namespace, format_):
    log = await declared(namespace, format=format_)
    rows = pa.table({"ITEM": ["a", None, "c"], "id": pa.array([1, 2, 3], pa.int32())})
    async with await log.open_writer() as writer:
        written = await writer.write_table(rows)
        await writer.write_table(rows.to_batches()[0])
        assert await writer.write_table(rows.slice(0, 0)) == ()
        await writer.mark_end_of_stream()
    assert written[0].dlsn == DLSN(1, 0, 0)
    async with await log.open_reader() as reader:
        found = pa.concat_tables([table async for table in reader.tables()])
    assert found.column("id").to_pylist() == [1, 2, 3] * 2
    assert found.column("item").to_pylist() == ["a", None, "c"] * 2
    assert found.column("_error").null_count == 6
    assert [one["row"] for one in found.column("_log").to_pylist()] == (
        [0, 1, 2] if format_ == "arrow" else [0] * 3
    ) * 2


# ---------------------------------------------------------------------- all or nothing


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"id": [1], "more": ["x"]}, "no column more"),
        ({"item": ["x"]}, "id is NOT NULL"),
        ({"id": [1, None]}, "id"),
        ({"id": ["one"]}, "Column id is long"),
    ],
)
async def test_rows_that_are_refused_have_written_nothing(namespace, rows, said):
    log = await declared(namespace)
    async with await log.open_writer() as writer:
        with pytest.raises(RowRefusedError, match=said) as caught:
            await writer.write_table(pa.table(rows))
        assert caught.value.log == "orders"
        assert "nothing was written" in str(caught.value)
        await writer.mark_end_of_stream()
    assert await records(log) == []


async def test_a_row_in_the_last_chunk_refuses_those_before_it(namespace, monkeypatch):
    monkeypatch.setattr(table_writes, "CHUNK_ROWS", 2)
    log = await declared(namespace)
    async with await log.open_writer() as writer:
        with pytest.raises(RowRefusedError):
            await writer.write_table(pa.table({"id": [1, 2, 3, 4, None]}))
        await writer.write_table(pa.table({"id": [1, 2, 3]}))
        await writer.mark_end_of_stream()
    assert [record.payload for record in await records(log)] == [
        b'{"id":1}',
        b'{"id":2}',
        b'{"id":3}',
    ]


async def test_a_row_that_no_record_can_hold_is_refused_with_the_others(namespace):
    log = await declared(namespace)
    async with await log.open_writer() as writer:
        with pytest.raises(RecordTooLongError):
            await writer.write_table(pa.table({"id": [1, 2], "item": ["x", "x" * 1_100_000]}))
        await writer.mark_end_of_stream()
        with pytest.raises(EndOfStreamError):
            await writer.write_table(pa.table({"id": [1]}))
    assert await records(log) == []


async def test_rows_of_a_large_arrow_table_are_split_into_records_that_a_log_takes(namespace):
    log = await declared(namespace, format="arrow")
    async with await log.open_writer() as writer:
        await writer.write_table(pa.table({"id": range(5), "item": ["x" * 400_000] * 5}), txids=[1, 3, 5, 9, 9])
        await writer.mark_end_of_stream()
    found = await records(log)
    assert len(found) > 2
    assert [record.txid for record in found][-1] == 9
    assert max(len(record.payload) for record in found) < 1_040_384


async def test_what_is_no_table_or_has_no_schema_is_refused(namespace):
    log = await declared(namespace)
    async with await log.open_writer() as writer:
        with pytest.raises(CallerError, match="list is not a table of Arrow's"):
            await writer.write_table([{"id": 1}])
    with pytest.raises(AlreadyClosedError):
        await writer.write_table(pa.table({"id": [1]}))
    await log.withdraw_schema()
    async with await log.open_writer() as writer:
        with pytest.raises(NoSchemaError):
            await writer.write_table(pa.table({"id": [1]}))


# ---------------------------------------------------------------------- transaction ids


async def test_ids_come_from_the_timestamp_column_and_rows_that_come_late_raise_nothing(namespace):
    log = await declared(namespace, TIMED, timestamp="at")
    async with await log.open_writer() as writer:
        await writer.write_table(timed(5_000, 3_000, 7_000))
        await writer.write_table(timed(6_000, 8_000))
        assert writer.last_txid == 8_000
        with pytest.raises(CallerError, match="takes transaction ids from column at"):
            await writer.write_table(timed(9_000), txids=[1])
        await writer.mark_end_of_stream()
    assert [record.txid for record in await records(log)] == [5_000, 5_000, 7_000, 7_000, 8_000]
    async with await log.open_reader(6_000) as reader:
        found = pa.concat_tables([table async for table in reader.tables()])
    assert found.column("_error").null_count == 3


async def test_a_record_of_many_rows_has_the_latest_of_their_times(namespace):
    log = await declared(namespace, TIMED, timestamp="at", format="arrow")
    async with await log.open_writer() as writer:
        await writer.write_table(timed(5_000, 9_000, 7_000))
        await writer.mark_end_of_stream()
    assert [record.txid for record in await records(log)] == [9_000]


async def test_a_time_that_no_transaction_id_says_is_refused(namespace):
    columns = pa.schema([pa.field("at", pa.int64(), nullable=False)])
    log = await declared(namespace, columns, timestamp="at")
    async with await log.open_writer() as writer:
        with pytest.raises(RowRefusedError, match="which no transaction id can be"):
            await writer.write_table(pa.table({"at": [2**63 - 1]}))
        await writer.write_table(pa.table({"at": [-5, 2**63 - 2]}))
        assert writer.last_txid == 2**63 - 2


async def test_ids_of_the_caller_stay_or_are_refused_and_the_time_stands_in_for_them(namespace):
    log = await declared(namespace)
    rows = pa.table({"id": [1, 2, 3]})
    async with await log.open_writer() as writer:
        await writer.write_table(rows, txids=[4, 4, 9])
        await writer.write_table(rows, txids=np.array([9, 10, 11]))
        with pytest.raises(TransactionIdOutOfOrderError):
            await writer.write_table(rows, txids=[10, 12, 13])
        for wrong in ([12, 13], [12.0, 13.0, 14.0], [12, 13, -1], [12, 13, 2**63 - 1], [13, 12, 14]):
            with pytest.raises(CallerError, match="nothing was written"):
                await writer.write_table(rows, txids=wrong)
        await writer.write_table(rows)
        await writer.mark_end_of_stream()
    found = [record.txid for record in await records(log)]
    assert found[:6] == [4, 4, 9, 9, 10, 11]
    assert len(set(found[6:])) == 1
    assert found[6] > 1_700_000_000_000


# ---------------------------------------------------------------------- versions


async def test_a_writer_takes_a_column_that_was_added_while_it_was_open(namespace):
    log = await declared(namespace)
    async with await log.open_writer() as writer:
        await writer.write_table(pa.table({"id": [1]}))
        await log.change_schema([AddColumn(("note",), STRING)])
        await writer.write_table(pa.table({"id": [2], "note": ["n"]}))
        await writer.mark_end_of_stream()
    assert [record.payload for record in await records(log)][1] == b'{"id":2,"note":"n"}'


async def test_a_declaration_is_looked_up_again_once_it_is_old_and_not_for_each_table(namespace, monkeypatch):
    log = await declared(namespace)
    looked = 0
    find = Declarations.find

    async def counted(declarations, known=None):
        nonlocal looked
        looked += 1
        return await find(declarations, known)

    monkeypatch.setattr(Declarations, "find", counted)
    async with await log.open_writer() as writer:
        for _ in range(3):
            await writer.write_table(pa.table({"id": [1]}))
        assert looked == 1
        await log.change_schema([RenameColumn(("item",), "what")])
        monkeypatch.setattr(table_writes, "SCHEMA_AGE_S", 0.0)
        writer._tables._due_s = 0.0
        await writer.write_table(pa.table({"id": [2], "what": ["x"]}))
        await writer.mark_end_of_stream()
    assert [record.payload for record in await records(log)][-1] == b'{"id":2,"what":"x"}'


async def test_a_writer_goes_on_with_the_version_it_knows_while_the_metadata_store_is_away(namespace, monkeypatch):
    log = await declared(namespace)

    async def away(declarations, known=None):
        raise MetadataUnavailableError("nobody answers")

    async with await log.open_writer() as writer:
        await writer.write_table(pa.table({"id": [1]}))
        writer._tables._due_s = 0.0
        with monkeypatch.context() as patch:
            patch.setattr(Declarations, "find", away)
            await writer.write_table(pa.table({"id": [2]}))
            with pytest.raises(RowRefusedError):
                await writer.write_table(pa.table({"more": [2]}))
        await writer.mark_end_of_stream()
    assert len(await records(log)) == 2


async def test_tables_of_several_tasks_stay_in_the_order_in_which_they_were_given(namespace):
    log = await declared(namespace)
    async with await log.open_writer() as writer:
        await asyncio.gather(*(writer.write_table(pa.table({"id": [number]})) for number in range(20)))
        await writer.mark_end_of_stream()
    assert [record.payload for record in await records(log)] == [b'{"id":%d}' % n for n in range(20)]
