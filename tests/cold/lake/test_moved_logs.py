"""Logs that are renamed, deleted and made anew while a table shows them: known by their ids, not by their names."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from helpers.logs import written

from dlspark.cold.lake import log_sources
from dlspark.cold.lake.opening import open_table
from dlspark.cold.lake.syncing import TableSync, release_deleted_log, release_unit
from dlspark.cold.moving.stores import MoverStores
from dlspark.cold.moving.sweeping import sweep_deleted_log
from dlspark.cold.restoring.rebuilding import LogRebuild, check_files, find_files
from dlspark.objects.opening import open_store
from metadata.distributedlog.cold_tables import TableLog, table_logs
from metadata.distributedlog.log_admin import LogAdmin
from metadata.foundation.errors import CallerError, NotAppliedError

KINDS = ["iceberg", "delta"]
SEGMENTS = [[f"{part}-{number}".encode() * 5 for number in range(10 + part)] for part in range(5)]


@pytest.fixture
def sync(namespace):
    return TableSync.over(namespace.logs_store, pause_s=0)


def payloads(table) -> list[bytes]:
    target = open_table(table)
    target.load()
    rows = target._table.scan().to_arrow() if table.kind == "iceberg" else pa.table(target._table.scan().read_all())
    return sorted(one.as_py() for one in rows.column("value"))


def sorted_records(*parts: list[bytes]) -> list[bytes]:
    return sorted(record for part in parts for record in part)


async def deleted(namespace, mover, name: str):
    await namespace.delete_log(name)
    (note,) = await mover.cold.deleted_logs()
    return note


@pytest.mark.parametrize("kind", KINDS)
async def test_a_log_that_is_renamed_keeps_its_rows_and_goes_on(namespace, mover, declared, sync, kind):
    await written(namespace, "flights", SEGMENTS)
    await mover.move("flights", 1, 1)
    table = await sync.create(declared(kind, "flights"))
    await sync.sync(table)
    await namespace.rename_log("flights", "air/flights")
    unit = await mover.move("air/flights", 2, 2)
    report = await sync.sync(table)
    assert (report.rows, report.files, report.added, report.findings) == (21, 2, 1, [])
    now = await sync.tables.get("flights")
    assert now.logs == ("air/flights",)
    assert (await sync.check(now)).findings == []
    # What leaves is asked for by the log's new name.
    leaving = await mover.cold.begin_cold_delete("air/flights", (await mover.cold.units("air/flights"))[0])
    await release_unit(namespace.logs_store, "air/flights", leaving.value)
    assert payloads(table) == sorted_records(SEGMENTS[1])
    assert unit.value.file is not None


async def test_a_group_is_partitioned_by_the_names_that_its_files_have(namespace, mover, declared, sync):
    """Iceberg takes a partition's value for the column's: a file that says an older name is of that partition."""
    for name in ("east", "west"):
        await written(namespace, name, SEGMENTS[:3])
        await mover.move(name, 1, 1)
    table = await sync.create(declared("iceberg", "east", "west", name="all_logs"))
    await namespace.rename_log("east", "north")
    await sync.sync(table)
    await mover.move("north", 2, 2)
    assert (await sync.sync(table)).findings == []
    target = open_table(table)
    target.load()
    for name, count in (("east", 10), ("north", 11), ("west", 10)):
        rows = target._table.scan(row_filter=f"_log.log = '{name}'").to_arrow()
        assert [one["log"] for one in rows.column("_log").to_pylist()] == [name] * count


async def test_the_namespace_is_not_walked_again_and_again_for_a_log_that_is_nowhere(
    namespace, mover, declared, sync, monkeypatch
):
    """Its deletion's note was forgotten before a sync saw it: as where its declaration was put back from a backup."""
    for name in ("east", "west"):
        await written(namespace, name, SEGMENTS[:3])
        await mover.move(name, 1, 1)
    table = await sync.create(declared("delta", "east", "west", name="all_logs"))
    await sync.sync(table)
    await mover.cold.forget_deleted(await deleted(namespace, mover, "east"))
    walks = []
    names = LogAdmin.names

    async def counted(admin, prefix=""):
        walks.append(prefix)
        return await names(admin, prefix)

    monkeypatch.setattr(LogAdmin, "names", counted)
    for _ in range(3):
        # Each time by a new one, as movers do.
        (said,) = (await TableSync.over(namespace.logs_store, pause_s=0).sync(table)).findings
        assert "east is not there" in said
    assert len(walks) == 1
    await sync.check(table)
    assert len(walks) == 2
    leaving = await mover.cold.begin_cold_delete("west", (await mover.cold.units("west"))[0])
    await release_unit(namespace.logs_store, "west", leaving.value)
    assert len(walks) > 2
    monkeypatch.setattr(log_sources, "SEARCH_AGAIN_S", 0.0)
    before = len(walks)
    await sync.sync(table)
    assert len(walks) == before + 1
    # Another one is looked for at once.
    monkeypatch.undo()
    monkeypatch.setattr(LogAdmin, "names", counted)
    await namespace.rename_log("west", "south")
    await sync.sync(table)
    assert (await sync.tables.get("all_logs")).logs == ("east", "south")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_report_counts_the_files_of_a_deleted_log_that_the_table_gave_up(
    namespace, mover, declared, sync, kind, count
):
    await written(namespace, "flights", SEGMENTS)
    table = await sync.create(declared(kind, "flights"))
    for lssn in range(1, count + 1):
        await mover.move("flights", lssn, lssn)
    await sync.sync(table)
    if not count:
        await mover.copy("flights", 1, 1)  # it is in cold storage by now, and not in the table
        await sync._followed(await sync.tables.current(table))
    await deleted(namespace, mover, "flights")
    report = await sync.sync(table)
    assert (report.removed, report.added, report.exchanged, report.commits) == (count, 0, 0, 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_files_of_a_deleted_log_leave_its_tables_before_they_are_deleted(namespace, mover, declared, sync, kind):
    for name in ("east", "west"):
        await written(namespace, name, SEGMENTS[:3])
        await mover.move(name, 1, 2)
    table = await sync.create(declared(kind, "east", "west", name="all_logs"))
    alone = await sync.create(declared(kind, "east", name="alone"))
    await sync.sync(table)
    await sync.sync(alone)
    note = await deleted(namespace, mover, "east")
    stores = MoverStores()
    try:
        swept = await sweep_deleted_log(namespace.services, mover.cold, stores, note)
        assert len(swept.objects) == 1
        assert payloads(table) == sorted_records(*SEGMENTS[:2])  # west's
        assert payloads(alone) == []
        # Nothing is done twice, and a table that never showed the log is not asked to give it up.
        for one in (table, alone):
            report = await sync.sync(one)
            assert (report.commits, report.findings) == (0, [])
            assert (await sync.check(one)).findings == []
        assert (await sweep_deleted_log(namespace.services, mover.cold, stores, note, min_age_s=-1)).logs == ["east"]
    finally:
        await stores.close()
    assert await mover.cold.deleted_logs() == []
    assert [one.deleted for one in (await sync.tables.get("all_logs")).members] == [True, False]
    assert (await sync.sync(table)).findings == []


async def borrowing(namespace, root: str, name: str) -> None:
    """Rebuild a log from the files of the only one that has some, which goes on beside it."""
    store = open_store(root)
    try:
        found = await find_files(store, f"{root}/")
        checked = await check_files(store, found)
        rebuild = LogRebuild(namespace.services, namespace.services.settings, name, options={}, adopt=False)
        await rebuild.run(found, checked, namespace_id="b" * 32)
    finally:
        await store.close()


@pytest.mark.parametrize("own", [False, True], ids=["all-borrowed", "some-borrowed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_deleted_log_had_borrowed_leaves_its_tables_and_stays_in_the_store(
    namespace, mover, declared, sync, root, kind, own
):
    await written(namespace, "flights", SEGMENTS[:3])
    await mover.move("flights", 1, 2)
    await borrowing(namespace, root, "again")
    if own:
        await written(namespace, "again", [[b"own"] * 3, [b"open"]], start=1_000)
        await mover.move("again", 3, 4)  # an empty segment lies before
    table = await sync.create(declared(kind, "again"))
    lender = await sync.create(declared(kind, "flights", name="lender"))
    await sync.sync(lender)
    assert (await sync.sync(table)).rows == 21 + 3 * own
    note = await deleted(namespace, mover, "again")
    stores = MoverStores()
    try:
        swept = await sweep_deleted_log(namespace.services, mover.cold, stores, note)
        assert len(swept.objects) == own
        assert payloads(table) == []
        assert payloads(lender) == sorted_records(*SEGMENTS[:2])  # the files are there
        for one, rows in ((table, 0), (lender, 21)):
            report = await sync.sync(one)
            assert (report.rows, report.commits, report.findings) == (rows, 0, [])
        (member,) = (await sync.tables.get(table.name)).members
        assert member.deleted
        assert (await sweep_deleted_log(namespace.services, mover.cold, stores, note, min_age_s=-1)).logs == ["again"]
    finally:
        await stores.close()


async def test_a_lost_file_of_a_lender_leaves_the_borrowers_table_with_its_truncation(
    namespace, mover, declared, sync, root
):
    """As docs/lake-tables.md has it: until then the table names a file that is not there."""
    await written(namespace, "flights", SEGMENTS[:4])
    await mover.move("flights", 1, 1)
    await mover.move("flights", 2, 3)
    await borrowing(namespace, root, "again")
    table = await sync.create(declared("iceberg", "again"))
    await sync.sync(table)
    await mover.delete_cold("flights", (await mover.cold.units("flights"))[0])
    with pytest.raises(FileNotFoundError):
        payloads(table)
    unit = await mover.cold.begin_cold_delete("again", (await mover.cold.units("again"))[0])
    await release_unit(namespace.logs_store, "again", unit.value)
    assert payloads(table) == sorted_records(*SEGMENTS[1:3])


async def test_files_of_a_deleted_log_stay_while_a_table_cannot_be_asked(namespace, mover, declared, sync):
    await written(namespace, "flights", SEGMENTS)
    await mover.move("flights", 1, 1)
    table = await sync.create(declared("delta", "flights"))
    await sync.sync(table)
    note = await deleted(namespace, mover, "flights")

    def unreachable(_):
        raise NotAppliedError("the store is away")

    with pytest.raises(NotAppliedError, match="away"):
        await release_deleted_log(namespace.logs_store, note.value, opener=unreachable)
    (url, _), *_ = note.value.folders
    assert len([one async for one in mover.files.list(f"{url}/")]) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_log_that_is_made_anew_is_another_log(namespace, mover, declared, sync, kind):
    await written(namespace, "flights", SEGMENTS)
    await mover.move("flights", 1, 3)
    table = await sync.create(declared(kind, "flights"))
    await sync.sync(table)
    note = await deleted(namespace, mover, "flights")
    await written(namespace, "flights", [[b"new"] * 3, [b"newer"]])
    await mover.move("flights", 1, 1)
    report = await sync.sync(table)
    assert (report.rows, report.added, report.findings) == (0, 0, [])
    stores = MoverStores()
    await sweep_deleted_log(namespace.services, mover.cold, stores, note)
    await stores.close()
    assert payloads(table) == []
    # It may have a table of its own, where its first segment counts again.
    other = await sync.create(declared(kind, "flights", name="again"))
    assert (await sync.sync(other)).rows == 3
    assert payloads(other) == [b"new"] * 3


@pytest.mark.parametrize("change", ["deleted", "renamed"])
async def test_a_table_of_a_log_that_had_the_name_before_is_not_taken_for_the_same(
    namespace, mover, declared, sync, change
):
    await written(namespace, "flights", SEGMENTS)
    await mover.move("flights", 1, 1)
    wanted = declared("delta", "flights")
    await sync.create(wanted)
    assert await sync.create(wanted) == await sync.tables.get("flights")  # a repetition
    await (deleted(namespace, mover, "flights") if change == "deleted" else namespace.rename_log("flights", "other"))
    await written(namespace, "flights", [[b"new"] * 3, [b"newer"]])
    await mover.move("flights", 1, 1)
    # Twice: what it says of its logs is up to date only behind the first.
    for match in ("another log, and not in it", "another log, and not in it|declared otherwise"):
        with pytest.raises(CallerError, match=match):
            await sync.create(wanted)
    await sync.tables.drop("flights")
    again = await sync.create(replace(wanted, id="new", place=f"{wanted.place}-new"))
    assert (await sync.sync(again)).rows == 3


async def test_a_commit_that_was_on_its_way_brings_no_file_of_a_deleted_log_back(namespace, mover, declared, sync):
    """It was planned before the log was deleted, and arrives after the sweep has asked the table."""
    await written(namespace, "flights", SEGMENTS)
    table = await sync.create(declared("delta", "flights"))
    await sync.sync(table)
    late = []

    def held(one):
        target = open_table(one)
        send = target._send

        def keep(commit):
            late.append(lambda: send(commit))
            raise NotAppliedError("given up")

        target._send = keep
        return target

    await mover.move("flights", 1, 1)
    await sync.sync(table)
    await mover.move("flights", 2, 2)
    with pytest.raises(NotAppliedError, match="given up"):
        await TableSync.over(namespace.logs_store, opener=held, pause_s=0).sync(table)
    note = await deleted(namespace, mover, "flights")
    await release_deleted_log(namespace.logs_store, note.value)
    (commit,) = late
    with pytest.raises(NotAppliedError, match="changed meanwhile"):
        commit()
    assert payloads(table) == []


async def test_a_log_has_its_id_in_the_declaration_before_a_file_of_it_is_in_the_table(
    namespace, mover, declared, sync
):
    await written(namespace, "flights", SEGMENTS)
    table = await sync.create(declared("iceberg", "flights"))
    assert (await sync.tables.get("flights")).members == (TableLog("flights"),)
    (said,) = (await sync.sync(table)).findings
    assert "has nothing in cold storage" in said
    await mover.move("flights", 1, 1)

    def refused(_):
        raise CallerError("no table today")

    with pytest.raises(CallerError):
        await TableSync.over(namespace.logs_store, opener=refused).sync(table)
    await sync.sync(table)
    cold = await mover.cold.cold_log("flights")
    assert (await sync.tables.get("flights")).members == (TableLog("flights", cold.value.log_id),)


async def test_a_sync_of_a_declaration_that_was_dropped_meanwhile_adds_nothing(namespace, mover, declared, sync):
    await written(namespace, "flights", SEGMENTS)
    await mover.move("flights", 1, 1)
    table = await sync.create(declared("iceberg", "flights"))
    await sync.tables.drop("flights")
    with pytest.raises(NotAppliedError, match="dropped meanwhile"):
        await sync.sync(table)
    await sync.tables.create(replace(table, id="another", members=table_logs(["flights"])))
    with pytest.raises(NotAppliedError, match="dropped meanwhile"):
        await sync.sync(table)
    assert payloads(table) == []
