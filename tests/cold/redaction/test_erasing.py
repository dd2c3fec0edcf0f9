"""Records erased from cold files: those that are meant and no others, at the same positions, whatever is killed."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.cold.moved_logs import FIVE_SEGMENTS, damage_value, footer_of, moved, units_of
from helpers.logs import records_of, written
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.cold.redaction.erasing import LogErasure
from dlspark.cold.redaction.selection import ErasureRequest
from dlspark.cold.restoring.checking import check_file, read_footer
from dlspark.cold.restoring.rebuilding import LogRebuild, check_files, find_files
from dlspark.cold.restoring.returning import LogReturn
from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord
from dlspark.errors import DamagedColdFileError, SqlTextError
from dlspark.objects.errors import ObjectNotFoundError
from dlspark.objects.opening import open_store
from dlspark.tables.declaration import SchemaChangedError
from dlspark.tables.evolution import RenameColumn
from metadata.distributedlog.cold_places import UnitState
from metadata.distributedlog.cold_store import ColdStore
from metadata.foundation import fault_points
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.zookeeper.memory import Fault

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def erasure(namespace, name="log", **changes):
    return LogErasure(namespace.services, replace(namespace.services.settings, **changes), name)


async def erase(namespace, request, name="log", **options):
    one = erasure(namespace, name)
    return await one.run(await one.plan(request), **options)


def at(*places):
    return ErasureRequest(dlsns=tuple(DLSN(*place) for place in places))


def without(records, *places):
    """The records as they are to be read where those at `places` are erased."""
    return [
        LogRecord(
            one.txid,
            b"" if tuple(one.dlsn) in places else one.payload,
            one.dlsn,
            one.position,
            one.flags,
            one.sequence_id,
        )
        for one in records
    ]


async def declared(namespace, name="log", **options):
    """A log of five segments whose records are rows."""
    async with await namespace.open_log(name) as log:
        await namespace.create_log(name)
        await log.declare_schema(COLUMNS, **options)
    rows = [[(0, "ann"), (1, "bob")], [(2, "ann"), (3, None)], [(4, "cyd"), (5, "ann")], [(6, "bob")]]
    payloads = [[json.dumps({"id": id_, "name": name}).encode() for id_, name in part] for part in rows]
    payloads[1].append(b"not a row")
    await written(namespace, name, payloads)
    async with await namespace.open_log(name) as log:
        return await log.schema()


async def test_the_records_that_are_meant_are_gone_and_all_others_are_as_they_were(namespace, folder):
    await written(namespace, "log", FIVE_SEGMENTS)
    before = await records_of(namespace)
    old = await moved(namespace, "log", f"file://{folder}", [(1, 2), (3, 4)])
    request = at((1, 1, 0), (3, 2, 0), (5, 0, 0))
    plan = await erasure(namespace).plan(request)
    assert [(one.meant, one.erased, one.hot, one.records) for one in plan.units] == [(1, 0, 0, 4), (1, 0, 0, 5)]
    assert plan.unfiled == (5, 5)
    assert await records_of(namespace) == before, "a plan changes nothing"

    report = await erase(namespace, request)
    assert report.records == 2
    assert await records_of(namespace) == without(before, (1, 1, 0), (3, 2, 0))
    units = await units_of(namespace, "log")
    assert [one.replaced[0].url for one in units] == [one.file.url for one in old]
    assert [one.file.redacted for one in units] == [True, True]
    assert all(one.file.url.rpartition("/")[0] == old[0].file.url.rpartition("/")[0] for one in units)
    assert all(one.attempt in one.file.url for one in units)
    # The payload is nowhere in the new file.
    for unit in units:
        assert footer_of(unit.file).redacted
        store = open_store(f"file://{folder}")
        checked = await check_file(store, await read_footer(store, await store.head(unit.file.url)))
        await store.close()
        assert (checked.erased, checked.sha256) == (1, unit.file.sha256)
    # Once more: there is nothing left to do.
    assert (await erase(namespace, request)).units == []
    assert await units_of(namespace, "log") == units


async def test_a_condition_on_declared_columns_erases_rows(namespace, folder):
    declaration = await declared(namespace)
    before = await records_of(namespace)
    await moved(namespace, "log", f"file://{folder}", [(1, 2), (3, 3)], declaration=declaration)
    plan = await erasure(namespace).plan(ErasureRequest(where="name = 'ann'"))
    assert [(one.first, one.meant, one.misfits) for one in plan.units] == [(1, 2, 1), (3, 1, 0)]
    await erase(namespace, ErasureRequest(where="name = 'ann'"))
    assert await records_of(namespace) == without(before, (1, 0, 0), (2, 0, 0), (3, 1, 0))
    for unit in await units_of(namespace, "log"):
        rows = pq.read_table(unit.file.url.removeprefix("file://")).to_pylist()
        gone = [row for row in rows if row["_error"] == "the record was erased"]
        assert gone
        assert {(row["id"], row["name"], row["value"]) for row in gone} == {(None, None, None)}
        assert "ann" not in {row["name"] for row in rows}
    # What readers of rows see.
    async with await namespace.open_log("log") as log, await log.open_reader("earliest") as reader:
        table = await reader.next_table()
    assert table.column("name").to_pylist()[:2] == [None, "bob"]


async def test_conditions_reach_the_place_of_a_row_and_are_bounded_by_an_id(namespace, folder):
    declaration = await declared(namespace)
    await moved(namespace, "log", f"file://{folder}", [(1, 3)], declaration=declaration)
    for request, meant in (
        (ErasureRequest(where="_log.transaction_id between 10 and 20"), 2),
        (ErasureRequest(where="name = 'ann'", before_txid=25), 2),
        (ErasureRequest(where="name = 'ann'", before_txid=20), 1),
        (ErasureRequest(where="id > 0", dlsns=(DLSN(1, 0, 0), DLSN(1, 1, 0))), 1),
        (ErasureRequest(where="name is null"), 2),
        (ErasureRequest(where="_error is not null"), 1),
        (ErasureRequest(where="id = 99"), 0),
    ):
        assert (await erasure(namespace).plan(request)).meant == meant, request
    with pytest.raises(SqlTextError, match="there is no column nme"):
        await erasure(namespace).plan(ErasureRequest(where="nme = 'ann'"))
    with pytest.raises(CallerError, match="it is not said which records"):
        ErasureRequest(where=" ", before_txid=7)


async def test_a_log_without_a_schema_is_asked_of_what_records_have(namespace, folder):
    await written(namespace, "log", FIVE_SEGMENTS)
    before = await records_of(namespace)
    await moved(namespace, "log", f"file://{folder}", [(1, 4)])
    await erase(namespace, ErasureRequest(where="value = 'c1' or transaction_id < 10"))
    assert await records_of(namespace) == without(before, (1, 0, 0), (3, 1, 0))


async def test_a_column_that_was_renamed_is_asked_by_its_new_name_in_old_files(namespace, folder):
    declaration = await declared(namespace)
    await moved(namespace, "log", f"file://{folder}", [(1, 2)], declaration=declaration)
    async with await namespace.open_log("log") as log:
        await log.change_schema([RenameColumn(("name",), "who")])
    plan = await erasure(namespace).plan(ErasureRequest(where="who = 'ann'"))
    assert plan.meant == 2


async def test_a_schema_that_was_replaced_since_the_plan_refuses_the_rest(namespace, folder):
    declaration = await declared(namespace)
    before = await records_of(namespace)
    await moved(namespace, "log", f"file://{folder}", [(1, 2)], declaration=declaration)
    one = erasure(namespace)
    plan = await one.plan(ErasureRequest(where="name = 'ann'"))
    async with await namespace.open_log("log") as log:
        await log.declare_schema(COLUMNS, replace=True)
    with pytest.raises(SchemaChangedError, match="declares other records than when the erasure was planned"):
        await one.run(plan)
    assert await records_of(namespace) == before


async def test_a_strict_log_is_refused_unless_it_is_said(namespace, folder):
    declaration = await declared(namespace, strict=True)
    await moved(namespace, "log", f"file://{folder}", [(1, 1)], declaration=declaration)
    request = ErasureRequest(where="name = 'ann'")
    with pytest.raises(CallerError, match="the log is strict"):
        await erase(namespace, request)
    assert (await erase(namespace, request, even_strict=True)).records == 1


async def test_an_arrow_record_with_one_row_that_is_meant_is_erased_whole(namespace, folder):
    async with await namespace.open_log("log") as log:
        await namespace.create_log("log")
        await log.declare_schema(COLUMNS, "arrow")
        for part in ([(0, "ann"), (1, "bob"), (2, "cyd")], [(3, "eve"), (4, "fay")], [(5, "bob"), (6, "gus")]):
            table = pa.Table.from_pylist([{"id": id_, "name": name} for id_, name in part], COLUMNS)
            async with await log.open_writer() as writer:
                await writer.write_table(table)
        declaration = await log.schema()
    async with await namespace.open_log("log") as log, await log.open_writer() as writer:
        await writer.write_table(pa.Table.from_pylist([{"id": 9, "name": "zoe"}], COLUMNS))
    before = await records_of(namespace)
    (old,) = await moved(namespace, "log", f"file://{folder}", [(1, 3)], declaration=declaration)
    assert [(one.first_row, one.rows) for one in old.segments] == [(0, 3), (3, 2), (5, 2)]
    plan = await erasure(namespace).plan(ErasureRequest(where="name = 'ann'"))
    assert plan.meant == 1
    await erase(namespace, ErasureRequest(where="name = 'ann'"))
    (unit,) = await units_of(namespace, "log")
    assert [(one.first_row, one.rows) for one in unit.segments] == [(0, 1), (1, 2), (3, 2)]
    assert await records_of(namespace) == without(before, tuple(before[0].dlsn))


async def test_hot_copies_are_told_of_and_the_file_is_erased_all_the_same(namespace, folder):
    await written(namespace, "log", FIVE_SEGMENTS)
    before = await records_of(namespace)
    await moved(namespace, "log", f"file://{folder}", [(1, 2)], keep_hot=True)
    plan = await erasure(namespace).plan(at((1, 1, 0), (3, 0, 0)))
    assert [(one.meant, one.hot) for one in plan.units] == [(1, 1)]
    assert (plan.hot, plan.unfiled) == (1, (3, 5))
    await erase(namespace, at((1, 1, 0)))
    assert await records_of(namespace) == before, "readers have the hot copy until it goes"
    cold = ColdStore(namespace.logs_store)
    (unit,) = await cold.units("log")
    assert unit.value.state is UnitState.FINISHED
    await cold.delete_hot("log", unit, now_ms=5)
    assert await records_of(namespace) == without(before, (1, 1, 0))


async def test_erasing_twice_keeps_what_was_erased_and_what_came_back_from_a_file_stays_erased(namespace, folder):
    await written(namespace, "log", FIVE_SEGMENTS)
    before = await records_of(namespace)
    await moved(namespace, "log", f"file://{folder}", [(1, 4)])
    await erase(namespace, at((1, 0, 0)))
    await erase(namespace, at((3, 0, 0), (1, 0, 0)))
    after = without(before, (1, 0, 0), (3, 0, 0))
    assert await records_of(namespace) == after
    (unit,) = await units_of(namespace, "log")
    assert len(unit.replaced) == 2
    # From files alone: of the three, the one with the most erased records.
    store = open_store(f"file://{folder}")
    found = await find_files(store, f"file://{folder}/")
    assert [one.url for one in found.chosen.files] == [unit.file.url]
    rebuild = LogRebuild(namespace.services, namespace.services.settings, "again", options={})
    await rebuild.run(found, await check_files(store, found), namespace_id="b" * 32)
    await store.close()
    assert await records_of(namespace, "again") == after[:-1]
    await LogReturn(namespace.services, namespace.services.settings, "log").run(keep_hot_ms=0)
    assert await records_of(namespace) == after


async def test_a_borrowed_file_is_replaced_by_one_of_the_log_itself(namespace, folder):
    await written(namespace, "log", FIVE_SEGMENTS)
    before = await records_of(namespace)
    (unit,) = await moved(namespace, "log", f"file://{folder}", [(1, 4)])
    store = open_store(f"file://{folder}")
    found = await find_files(store, f"file://{folder}/")
    rebuild = LogRebuild(namespace.services, namespace.services.settings, "again", options={})
    await rebuild.run(found, await check_files(store, found), namespace_id="b" * 32)
    await store.close()
    with pytest.raises(CallerError, match="it is not said where this one's files go"):
        await erase(namespace, at((1, 0, 0)), "again")
    one = erasure(namespace, "again", cold_path=str(folder))
    await one.run(await one.plan(at((1, 0, 0))))
    (again,) = await units_of(namespace, "again")
    assert not again.file.borrowed
    assert again.replaced[0].borrowed
    assert again.file.url.rpartition("/")[0] != unit.file.url.rpartition("/")[0]
    assert await records_of(namespace, "again") == without(before[:-1], (1, 0, 0))
    assert await records_of(namespace) == before, "the first log's own file is as it was"


async def test_a_damaged_file_is_refused_and_stays(namespace, folder):
    await written(namespace, "log", FIVE_SEGMENTS)
    (unit,) = await moved(namespace, "log", f"file://{folder}", [(1, 4)])
    damage_value(unit.file)
    with pytest.raises(DamagedColdFileError):
        await erase(namespace, at((1, 0, 0)))
    assert await units_of(namespace, "log") == [unit]


async def test_a_unit_that_goes_meanwhile_is_left_and_its_new_file_too(namespace, folder, monkeypatch):
    await written(namespace, "log", FIVE_SEGMENTS)
    await moved(namespace, "log", f"file://{folder}", [(1, 2), (3, 4)])
    one = erasure(namespace)
    replace_file = one._cold.replace_file

    async def overtaken(name, unit, file, **named):
        if unit.value.first == 1:
            await one._cold.begin_cold_delete(name, unit)
        return await replace_file(name, unit, file, **named)

    monkeypatch.setattr(one._cold, "replace_file", overtaken)
    report = await one.run(await one.plan(at((1, 0, 0), (3, 0, 0))))
    assert [one.first for one in report.units] == [3]
    assert len(report.gone) == 1
    assert len(list(folder.rglob("*-*.parquet"))) == 3, "the file that no mark would name was deleted"


async def test_killed_anywhere_it_is_run_again(tmp_path, rounds):
    for seed in range(rounds or 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        cluster = MemoryCluster()
        await cluster.start()
        await _killed(cluster, folder, random.Random(seed))
        await cluster.stop()


async def _killed(cluster, folder, rng):
    namespace = await cluster.namespace()
    await written(namespace, "log", FIVE_SEGMENTS)
    before = await records_of(namespace)
    await moved(namespace, "log", f"file://{folder}", [(1, 2), (3, 4)])
    request = at((1, 1, 0), (3, 2, 0))
    after = without(before, (1, 1, 0), (3, 2, 0))
    for _ in range(30):
        victim = await cluster.namespace()
        left, killed = rng.randrange(1, 50), False

        def inject(session, operation, path, victim=victim):
            nonlocal left, killed
            if session != victim.store.session_id:
                return None
            left -= 1
            if left == 0:
                killed = True
                return rng.choice([Fault.LOSE_REPLY, Fault.REFUSE])
            return Fault.REFUSE if killed else None

        cluster.tree.inject = inject
        try:
            await erase(victim, request)
        except DistributedLogError:
            pass
        await cluster.crash(victim)
        cluster.tree.inject = None
        there = await records_of(namespace)
        assert all(one in (old, new) for one, old, new in zip(there, before, after, strict=True))
        if not killed:
            break
    else:
        await erase(namespace, request)
    assert await records_of(namespace) == after
    named = {file.url for unit in await units_of(namespace, "log") for file in (unit.file, *unit.replaced)}
    there = {f"file://{path}" for path in folder.rglob("*.parquet")}
    assert named <= there, "no mark names a file that is not there"


async def test_a_new_file_that_is_gone_before_it_counts_takes_no_others_place(namespace, folder, monkeypatch):
    await written(namespace, "log", FIVE_SEGMENTS)
    await moved(namespace, "log", f"file://{folder}", [(1, 2)])
    before = await units_of(namespace, "log")

    def swept(point):
        if point == "cold.rewritten":  # as if it stood still here for longer than the sweep waits
            newest = max(folder.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
            assert f"file://{newest}" not in [unit.file.url for unit in before]
            newest.unlink()

    monkeypatch.setattr(fault_points, "reach", swept)
    with pytest.raises(ObjectNotFoundError):
        await erase(namespace, at((1, 1, 0)))
    assert await units_of(namespace, "log") == before
