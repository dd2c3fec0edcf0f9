"""Tables keep level with cold storage: the very same files, each once, whatever the kind of the table."""

from __future__ import annotations

import asyncio
import json
import os

import pyarrow as pa
import pytest
from deltalake.transaction import RemoveAction
from helpers.cold.duck import connected
from helpers.logs import written
from pyiceberg.expressions import In

from dlspark.cold.lake.opening import open_table
from dlspark.cold.lake.syncing import TableSync, sync_tables
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn
from dlspark.tables.types import DOUBLE, INT, LONG, STRING, Field, ListOf, MapOf, Schema, Struct
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.foundation.errors import CallerError, NotAppliedError

KINDS = ["iceberg", "delta"]
SEGMENTS = [[f"{part}-{number}".encode() * 5 for number in range(10 + part)] for part in range(5)]


def rows_of(table) -> pa.Table:
    """Return all rows of a table by its own library."""
    target = open_table(table)
    target.load()
    if table.kind == "iceberg":
        return target._table.scan().to_arrow()
    return pa.table(target._table.scan().read_all())


def flat(column) -> list:
    return [one.as_py() for one in column]


async def synced(namespace, table):
    return await TableSync.over(namespace.logs_store, pause_s=0).sync(table)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_table_has_what_is_cold_and_gets_what_becomes_cold(namespace, mover, declared, kind):
    await written(namespace, "flights", SEGMENTS)
    await mover.move("flights", 1, 2)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared(kind, "flights"))
    report = await sync.sync(table)
    assert (report.rows, report.files, report.added, report.findings) == (21, 1, 1, [])
    await mover.copy("flights", 3, 3)
    await mover.copy("flights", 4, 4)
    report = await sync.sync(table)
    assert (report.rows, report.files, report.added, report.commits) == (46, 3, 2, 1)
    assert sorted(flat(rows_of(table).column("value"))) == sorted(payload for one in SEGMENTS[:4] for payload in one)
    again = await sync.sync(table)
    assert (again.added, again.commits, again.findings) == (0, 0, [])
    assert (await sync.check(table)).findings == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_waits_for_those_before_it(namespace, mover, declared, kind):
    """Segments of one log go into the table in order, so that its watermark is one number."""
    await written(namespace, "flights", SEGMENTS)
    await mover.copy("flights", 3, 3)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared(kind, "flights"))
    assert (await sync.sync(table)).files == 0
    await mover.copy("flights", 1, 2)
    assert (await sync.sync(table)).rows == 33


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_leaves_the_table_before_it_is_deleted(namespace, mover, declared, kind):
    await written(namespace, "flights", SEGMENTS)
    first, second = await mover.move("flights", 1, 1), await mover.move("flights", 2, 2)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared(kind, "flights"))
    await sync.sync(table)
    leaving = await mover.cold.begin_cold_delete("flights", first)
    await sync.release("flights", leaving.value)
    await mover.end_delete("flights", leaving)
    assert sorted(flat(rows_of(table).column("value"))) == sorted(SEGMENTS[1])
    assert (await sync.sync(table)).findings == []
    # One that the table has not seen yet is kept out of it for good.
    other = await sync.create(declared(kind, "flights", name="other"))
    leaving = await mover.cold.begin_cold_delete("flights", second)
    await sync.release("flights", leaving.value)
    await mover.end_delete("flights", leaving)
    for one in (table, other):
        report = await sync.sync(one)
        assert (report.rows, report.files) == (0, 0)
        assert (await sync.check(one)).findings == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_replaced_file_is_exchanged_in_one_commit(namespace, mover, declared, kind):
    await written(namespace, "flights", SEGMENTS)
    unit = await mover.move("flights", 1, 1)
    await mover.move("flights", 2, 2)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared(kind, "flights"))
    await sync.sync(table)
    now = await mover.replace("flights", unit)
    with pytest.raises(Exception, match=r"No such file|not found|does not exist"):
        rows_of(table)  # this mover asks nobody
    await sync.release("flights", now.value)
    assert sorted(flat(rows_of(table).column("value"))) == sorted(SEGMENTS[0] + SEGMENTS[1])
    again = await sync.sync(table)
    assert (again.commits, again.rows, again.findings) == (0, 21, [])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_table_that_is_made_behind_a_redaction_checks_clean(namespace, mover, declared, kind):
    """Its log names a replaced file that the table never had; a Delta table does not keep what was looked for."""
    await written(namespace, "flights", SEGMENTS)
    await mover.replace("flights", await mover.move("flights", 1, 1))
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared(kind, "flights"))
    assert (await sync.check(table)).findings == ["1 files are to be added, 0 to be given up"]
    assert (await sync.sync(table)).added == 1
    for _ in range(2):
        assert (await sync.check(table)).findings == []
        assert (await sync.sync(table)).commits == 0
    # One that is replaced now is told, until a sync has exchanged it.
    (unit,) = await mover.cold.units("flights")
    await mover.replace("flights", unit)
    assert "1 files are to be added, 1 to be given up" in (await sync.check(table)).findings
    assert (await sync.sync(table)).exchanged == 1
    assert (await sync.check(table)).findings == []


async def test_a_sync_says_how_many_files_it_has_exchanged(namespace, mover, declared):
    await written(namespace, "flights", SEGMENTS)
    unit = await mover.move("flights", 1, 1)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    await sync.sync(table)
    await mover.replace("flights", unit)
    report = await sync.sync(table)
    assert (report.exchanged, report.added, report.removed, report.commits) == (1, 0, 0, 1)
    assert flat(rows_of(table).column("value")) == SEGMENTS[0]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_group_of_logs_is_one_table_partitioned_by_log(namespace, mover, declared, kind):
    for name in ("east", "west/north"):
        await written(namespace, name, SEGMENTS[:3])
        await mover.move(name, 1, 2)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared(kind, "east", "west/north", name="all_logs"))
    report = await sync.sync(table)
    assert (report.rows, report.files, report.commits) == (42, 2, 1)
    logs = [one["log"] for one in flat(rows_of(table).column("_log"))]
    assert sorted(logs) == ["east"] * 21 + ["west/north"] * 21
    if kind == "iceberg":
        target = open_table(table)
        target.load()
        found = target._table.scan(row_filter="_log.log = 'east'").plan_files()
        assert len(list(found)) == 1  # the others are left out by their partition


FIRST = Schema(0, (Field(1, "id", LONG, True), Field(2, "small", INT), Field(3, "name", STRING)))


def lines(*rows: dict) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


async def declare(namespace, name, changes):
    schemas = SchemaStore(namespace.logs_store)
    stored = await schemas.get(name)
    new = Declaration.decode(stored.data, name).evolved(changes)
    await schemas.replace(name, stored, new.encode_to_store())
    return new


async def test_a_declared_schema_evolves_in_one_iceberg_table(namespace, mover, declared):
    declaration = Declaration.of(RecordFormat.JSON, FIRST)
    await namespace.create_log("flights", declaration=declaration)
    await written(
        namespace,
        "flights",
        [lines({"id": 1, "small": 7, "name": "a"}), lines({"id": 2, "small": 2**40, "title": "b"}), lines({"id": 9})],
    )
    await mover.move(
        "flights", 1, 1, Declaration.decode((await SchemaStore(namespace.logs_store).get("flights")).data, "")
    )
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    await sync.sync(table)
    nested = Struct((Field(1, "x", DOUBLE), Field(2, "tags", ListOf(Field(3, "element", STRING)))))
    new = await declare(
        namespace,
        "flights",
        [
            WidenColumn(("small",), LONG),
            RenameColumn(("name",), "title"),
            AddColumn(("where",), nested),
            AddColumn(("by",), MapOf(Field(1, "key", STRING, True), Field(2, "value", INT))),
        ],
    )
    await mover.move("flights", 2, 2, new)
    report = await sync.sync(table)
    assert (report.rows, report.findings) == (2, [])
    rows = rows_of(table).select(["id", "small", "title", "where", "by"]).sort_by("id").to_pylist()
    assert rows == [
        {"id": 1, "small": 7, "title": "a", "where": None, "by": None},
        {"id": 2, "small": 2**40, "title": "b", "where": None, "by": None},
    ]
    await declare(namespace, "flights", [DropColumn(("small",))])
    assert (await sync.check(table)).findings == []


# Each version's change, and what its one record says; then what a reader of the table finds of it, by ids of columns.
TEN_VERSIONS = [
    ([], {"id": 0, "small": 10, "name": "first"}),
    ([AddColumn(("note",), STRING)], {"id": 1, "small": 11, "name": "a", "note": "n1"}),
    ([WidenColumn(("small",), LONG)], {"id": 2, "small": 2**40, "name": "b", "note": "n2"}),
    ([RenameColumn(("name",), "title")], {"id": 3, "small": 13, "title": "c", "note": "n3"}),
    ([DropColumn(("note",))], {"id": 4, "small": 14, "title": "d"}),
    ([AddColumn(("remark",), LONG)], {"id": 5, "small": 15, "title": "e", "remark": 5}),
    (
        [AddColumn(("at",), Struct((Field(1, "x", INT), Field(2, "y", DOUBLE))))],
        {"id": 6, "small": 16, "title": "f", "remark": 6, "at": {"x": 1, "y": 1.5}},
    ),
    (
        [WidenColumn(("at", "x"), LONG), RenameColumn(("at", "y"), "height")],
        {"id": 7, "small": 17, "title": "g", "remark": 7, "at": {"x": 2**40, "height": 2.5}},
    ),
    (
        [AddColumn(("tags",), ListOf(Field(1, "element", STRING)))],
        {"id": 8, "small": 18, "title": "h", "remark": 8, "at": {"x": 3, "height": 3.5}, "tags": ["t", "u"]},
    ),
    (
        [RenameColumn(("small",), "count"), DropColumn(("tags",))],
        {"id": 9, "count": 19, "title": "i", "remark": 9, "at": {"x": 4, "height": 4.5}},
    ),
]


async def test_ten_versions_of_a_schema_are_one_iceberg_table(namespace, mover, declared):
    """Data moves under each version, some of it only when the next one is declared. Columns go by their ids."""
    declaration = Declaration.of(RecordFormat.JSON, FIRST)
    await namespace.create_log("flights", declaration=declaration)
    await written(namespace, "flights", [*(lines(record) for _, record in TEN_VERSIONS), lines({"id": 10})])
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    for number, (changes, _) in enumerate(TEN_VERSIONS):
        if changes:
            declaration = await declare(namespace, "flights", changes)
        await mover.move("flights", number + 1, number + 1, declaration)
        if number % 3 != 1:  # some files wait until the table has gone past their version
            assert (await sync.sync(table)).findings == []
    assert len(declaration.schemas) == len(TEN_VERSIONS)
    report = await sync.sync(table)
    assert (report.rows, report.files, report.findings) == (10, 10, [])
    assert (await sync.check(table)).findings == []
    expected = []
    for number, (_, said) in enumerate(TEN_VERSIONS):
        at = said.get("at")
        height = None if at is None else at.get("height", at.get("y"))
        expected.append(
            {
                "id": number,
                "count": said.get("small", said.get("count")),
                "title": said.get("title", said.get("name")),
                "remark": said.get("remark"),
                "at": None if at is None else {"x": at["x"], "height": height},
            }
        )
    columns = list(expected[0])
    assert rows_of(table).select(columns).sort_by("id").to_pylist() == expected
    target = open_table(table)
    target.load()
    with connected() as database:
        place = f"iceberg_scan('{target._table.metadata_location}')"
        quoted = ", ".join(f'"{one}"' for one in columns)
        found = database.execute(f"SELECT {quoted} FROM {place} ORDER BY id").fetchall()
    assert [dict(zip(columns, row, strict=True)) for row in found] == expected
    assert "note" not in rows_of(table).column_names


async def test_a_delta_table_follows_new_columns_and_says_what_it_cannot_follow(namespace, mover, declared):
    await namespace.create_log("flights", declaration=Declaration.of(RecordFormat.JSON, FIRST))
    rows = [lines({"id": number, "small": number, "name": str(number), "note": "n"}) for number in range(1, 5)]
    await written(namespace, "flights", rows)
    await mover.move("flights", 1, 1, Declaration.of(RecordFormat.JSON, FIRST))
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("delta", "flights"))
    await sync.sync(table)
    new = await declare(namespace, "flights", [AddColumn(("note",), STRING)])
    await mover.move("flights", 2, 2, new)
    assert (await sync.sync(table)).findings == []
    found = rows_of(table).select(["id", "note"]).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [{"id": 1, "note": None}, {"id": 2, "note": "n"}]
    new = await declare(namespace, "flights", [RenameColumn(("name",), "title")])
    await mover.move("flights", 3, 3, new)
    with pytest.raises(CallerError, match="column name is called title"):
        await sync.sync(table)
    (report,) = await sync_tables(namespace.logs_store)
    assert isinstance(report.error, CallerError)
    assert len(rows_of(table)) == 2


async def test_logs_with_other_columns_do_not_share_a_table(namespace, mover, declared):
    await namespace.create_log("east", declaration=Declaration.of(RecordFormat.JSON, FIRST))
    other = Schema(0, (Field(1, "id", LONG, True), Field(2, "small", STRING)))
    await namespace.create_log("west", declaration=Declaration.of(RecordFormat.JSON, other))
    with pytest.raises(CallerError, match="different columns in version 0: small"):
        await TableSync.over(namespace.logs_store).create(declared("iceberg", "east", "west"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_table_that_was_changed_from_outside_is_reported_and_followed(namespace, mover, declared, kind):
    await written(namespace, "flights", SEGMENTS)
    await mover.move("flights", 1, 2)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared(kind, "flights"))
    await sync.sync(table)
    target = open_table(table)
    target.load()
    if kind == "iceberg":
        # The engine rewrites the file into one of the table's own.
        await asyncio.to_thread(target._table.delete, In("value", SEGMENTS[0]))
        left = 11
    else:
        (url,) = target.named(None)
        size = target._table.get_add_actions(flatten=True)["size_bytes"][0].as_py()
        gone = RemoveAction(url, True, 0, size)
        target._table.create_write_transaction([gone], "append", target._table.schema())
        left = 0
    assert len(rows_of(table)) == left
    await mover.copy("flights", 3, 3)
    report = await sync.sync(table)
    assert any("from outside" in one for one in report.findings)
    assert len(rows_of(table)) == left + 12  # followed, and what was deleted is not put back
    assert any("does not name" in one for one in (await sync.check(table)).findings)
    assert (await sync.sync(table)).commits == 0


async def test_snapshots_may_be_expired_from_outside(namespace, mover, declared):
    await written(namespace, "flights", SEGMENTS)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    for lssn in (1, 2, 3):
        await mover.copy("flights", lssn, lssn)
        await sync.sync(table)
    target = open_table(table)
    target.load()
    expire = target._table.maintenance.expire_snapshots()
    for one in target._table.snapshots()[:-1]:
        expire = expire.by_id(one.snapshot_id)
    expire.commit()
    await mover.copy("flights", 4, 4)
    report = await sync.sync(table)
    assert (report.rows, report.findings) == (46, [])
    assert (await sync.check(table)).findings == []


async def test_the_state_in_the_table_is_needed_and_its_identity_too(namespace, mover, declared):
    await written(namespace, "flights", SEGMENTS)
    await mover.copy("flights", 1, 1)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    await sync.sync(table)
    target = open_table(table)
    target.load()
    with target._table.transaction() as change:
        change.remove_properties("dlspark.state")
    with pytest.raises(CallerError, match="does not say any more which files"):
        await sync.sync(table)
    with target._table.transaction() as change:
        change.set_properties({"dlspark.table": "another"})
    with pytest.raises(CallerError, match="is not the one that was declared"):
        await sync.sync(table)


async def test_every_snapshot_has_whole_units_and_its_watermark(namespace, mover, declared):
    await written(namespace, "flights", SEGMENTS)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    expected = []
    for lssn in (1, 2, 3, 4):
        await mover.copy("flights", lssn, lssn)
        await sync.sync(table)
        expected.append(sum(map(len, SEGMENTS[:lssn])))
    target = open_table(table)
    target.load()
    snapshots = target._table.snapshots()
    assert [int(one.summary["total-records"]) for one in snapshots] == expected
    marks = [list(json.loads(one.summary["dlspark.watermarks"]).values()) for one in snapshots]
    assert marks == [["1"], ["2"], ["3"], ["4"]]
    assert [len(target._table.scan(snapshot_id=one.snapshot_id).to_arrow()) for one in snapshots] == expected


async def test_duckdb_reads_the_tables_files_and_gives_the_figures(namespace, mover, declared):
    declaration = Declaration.of(RecordFormat.JSON, FIRST)
    await namespace.create_log("flights", declaration=declaration)
    rows = [lines(*({"id": part * 100 + at, "small": at, "name": "x"} for at in range(50))) for part in range(3)]
    await written(namespace, "flights", rows)
    await mover.move("flights", 1, 1, declaration)
    await mover.move("flights", 2, 2, declaration)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    await sync.sync(table)
    target = open_table(table)
    target.load()
    with connected() as database:
        found = database.execute(
            f"SELECT count(*), sum(small), max(_log.segment) FROM iceberg_scan('{target._table.metadata_location}')"
        ).fetchone()
    assert found == (100, 2 * sum(range(50)), 2)


async def test_duckdb_reads_a_group_of_logs_by_its_partitions(namespace, mover, declared):
    for name in ("east", "west/north"):
        await written(namespace, name, SEGMENTS[:3])
        await mover.move(name, 1, 2)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "east", "west/north", name="all_logs"))
    await sync.sync(table)
    target = open_table(table)
    target.load()
    with connected() as database:
        place = f"iceberg_scan('{target._table.metadata_location}')"
        found = database.execute(f"SELECT _log.log, count(*) FROM {place} GROUP BY ALL ORDER BY ALL").fetchall()
        assert found == [("east", 21), ("west/north", 21)]
        some = database.execute(f"SELECT count(*) FROM {place} WHERE _log.log = 'east' AND _log.segment = 2").fetchone()
    assert some == (11,)


async def test_a_missing_library_is_named_with_its_extra(declared, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(CallerError, match=r"pip install 'dlspark\[delta\]'"):
        open_table(declared("delta", "flights"))


async def test_release_keeps_files_while_a_table_cannot_be_asked(namespace, mover, declared):
    await written(namespace, "flights", SEGMENTS)
    unit = await mover.move("flights", 1, 1)
    sync = TableSync.over(namespace.logs_store, pause_s=0)
    table = await sync.create(declared("iceberg", "flights"))
    await sync.sync(table)
    leaving = await mover.cold.begin_cold_delete("flights", unit)
    os.rename(table.place.removeprefix("sqlite:///"), table.place.removeprefix("sqlite:///") + ".away")
    with pytest.raises((NotAppliedError, CallerError)):
        await sync.release("flights", leaving.value)
