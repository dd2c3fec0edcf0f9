"""What logs declare is asked beside what a sink asks anyway, kept under a watch, and read anew once it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.spark.sink_world import NS, round_trips
from helpers.spark.typed_frames import declaration_of, declare
from pyspark.sql.types import BinaryType, StructField, StructType

from dlspark.spark.errors import BatchRefusedError, SchemaError
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.sink.declared_logs import DeclaredLogs
from dlspark.spark.sink.driver import PublishingSession
from dlspark.spark.sink.row_cutting import FramePlan
from dlspark.spark.sink.session import SinkSession
from dlspark.spark.sink.write_proxies import proxies_at
from dlspark.tables.declaration import Declaration
from dlspark.tables.evolution import AddColumn
from dlspark.tables.types import BINARY, LONG
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.zookeeper.memory import MemoryStore, MemoryTree

if TYPE_CHECKING:
    from helpers.spark.memory_world import DriverWorld

LOG = "flights"


class World:
    """Two clients of one namespace: one declares, the other looks."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.logs = LogStore(MemoryStore(self.tree), NS)
        self.store = MemoryStore(self.tree)
        self.declared = DeclaredLogs(LogStore(self.store, NS))

    async def version(self, log: str = LOG) -> int | None:
        """The version that is found."""
        found = (await self.declared.find([log]))[log]
        return None if found is None else found.current.id

    async def evolve(self) -> None:
        schemas = SchemaStore(self.logs)
        before = await schemas.get(LOG)
        assert before is not None
        after = Declaration.decode(before.data, LOG)
        made = after.evolved([AddColumn((f"more{after.current.id}",), LONG)])
        await schemas.replace(LOG, before, made.encode())

    async def withdraw(self) -> None:
        schemas = SchemaStore(self.logs)
        before = await schemas.get(LOG)
        assert before is not None
        await schemas.withdraw(LOG, before)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.logs.store.create(NS, make_parents=True)
    return world


async def test_each_change_is_found_and_nothing_is_asked_where_nothing_changed(world: World) -> None:
    async def asked(expected: int | None) -> int:
        found, trips = await round_trips(world.tree, world.store, world.version())
        assert found == expected
        return len(trips)

    assert await asked(None) > 0  # there is no such log
    assert await asked(None) == 0
    await declare(world.logs, LOG, declaration_of("json"))
    assert await asked(0) > 0
    assert await asked(0) == 0
    await world.evolve()
    assert await asked(1) == 3  # whether there is one, which, and what it says
    assert await asked(1) == 0
    await world.withdraw()
    assert await asked(None) > 0
    await declare(world.logs, LOG, declaration_of("avro", timed=True))
    assert await asked(0) > 0
    await world.logs.delete_tree(LOG)
    assert await asked(None) > 0


async def test_what_changes_while_the_connection_is_lost_is_found_afterwards(world: World) -> None:
    await declare(world.logs, LOG, declaration_of("json"))
    assert await world.version() == 0
    world.tree.disconnect(world.store.session_id)
    await world.evolve()
    world.tree.reconnect(world.store.session_id)
    assert await world.version() == 1


async def test_a_task_finds_what_its_rows_name_and_refuses_a_log_that_declares_nothing(world: World) -> None:
    await world.logs.ensure("plain")
    with pytest.raises(BatchRefusedError, match="declares no schema; nothing of the batch is visible") as caught:
        await world.declared.need(["plain"])
    assert caught.value.log == "plain"
    await declare(world.logs, LOG, declaration_of("json"))
    assert (await world.declared.need([LOG]))[LOG] == declaration_of("json")


async def test_logs_that_declare_the_same_have_one_object_which_travels_once(world: World) -> None:
    names = [f"f-{number}" for number in range(5)]
    for name in names:
        await declare(world.logs, name, declaration_of("json"))
    found = await world.declared.need(names)
    assert len(set(map(id, found.values()))) == 1
    assert list(found) == names


# ---------------------------------------------------------------------- on the planner


def plan(**columns: str) -> FramePlan:
    fields = [StructField(name, BinaryType()) for name in columns or ("value",)]
    return FramePlan(Options({"uri": "distributedlog://z:1/dl", "log": LOG}, Scope.SINK_STREAM), StructType(fields))


async def test_planning_takes_no_longer_for_what_logs_declare_and_asks_nothing_a_second_time(
    driver_world: DriverWorld,
) -> None:
    namespace = driver_world.namespace
    await declare(namespace.logs_store, LOG, declaration_of("json"))

    def session() -> PublishingSession:
        proxies = proxies_at("nowhere:1", namespace.uri.path, 1000)
        return PublishingSession(SinkSession(namespace, namespace.services.settings, proxies))

    publishing = session()
    _, before = await round_trips(driver_world.tree, namespace.store, session().check_ready((LOG,)))
    columns, first = await round_trips(driver_world.tree, namespace.store, publishing.plan_columns(plan(body="")))
    assert columns.typed is not None
    assert (len(before), len(first)) == (3, 3)
    _, second = await round_trips(driver_world.tree, namespace.store, publishing.plan_columns(plan(body="")))
    raw, third = await round_trips(driver_world.tree, namespace.store, publishing.plan_columns(plan()))
    assert (second, third) == ([], [])
    assert raw.typed is None


async def test_a_column_that_was_added_a_moment_ago_is_known_to_the_next_plan(driver_world: DriverWorld) -> None:
    namespace = driver_world.namespace
    await declare(namespace.logs_store, LOG, declaration_of("json"))
    proxies = proxies_at("nowhere:1", namespace.uri.path, 1000)
    publishing = PublishingSession(SinkSession(namespace, namespace.services.settings, proxies))
    await publishing.plan_columns(plan(body=""))
    with pytest.raises(SchemaError, match="no column note"):
        await publishing.plan_columns(plan(body="", note=""))
    schemas = SchemaStore(namespace.logs_store)
    before = await schemas.get(LOG)
    assert before is not None
    made = declaration_of("json").evolved([AddColumn(("note",), BINARY)])
    await schemas.replace(LOG, before, made.encode())
    columns = await publishing.plan_columns(plan(body="", note=""))
    assert columns.typed is not None
    assert columns.typed.declared[LOG].current.id == 1
