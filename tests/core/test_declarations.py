"""What logs declare of their records: made with the log, changed by several clients at once, gone with the log."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pytest

from dlspark.core.administration.references import find_references
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.typed.declarations import declaration_of
from dlspark.errors import (
    BadVersionError,
    EvolutionError,
    InvalidSchemaError,
    NoSchemaError,
    OutcomeUnknownError,
    SchemaExistsError,
)
from dlspark.tables.declaration import RecordFormat
from dlspark.tables.evolution import AddColumn, AllowNull, DropColumn, MoveColumn, Place, RenameColumn, WidenColumn
from dlspark.tables.types import LONG, STRING
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.log_names import LogExistsError, LogNotFoundError
from metadata.distributedlog.namespaces import NamespaceStore
from metadata.distributedlog.permissions import RequestDeniedError
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.foundation.errors import CorruptDataError
from metadata.zookeeper.memory import Fault, MemoryStore

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("item", pa.string())])
NOTE = AddColumn(("note",), STRING)


async def declared(namespace, name: str = "orders"):
    await namespace.create_log(name)
    log = await namespace.open_log(name)
    await log.declare_schema(COLUMNS)
    return log


def lose_once(tree, fault: Fault) -> None:
    """Let the next transaction go wrong."""

    def inject(_number: int, operation: str, _path: str) -> Fault | None:
        if operation != "multi":
            return None
        tree.inject = None
        return fault

    tree.inject = inject


async def test_a_log_declares_its_schema_changes_it_and_withdraws_it(namespace):
    await namespace.create_log("orders")
    log = await namespace.open_log("orders")
    assert await log.schema() is None
    made = await log.declare_schema(COLUMNS, format="avro", timestamp="id", strict=True)
    assert await log.schema() == made
    assert (made.format, made.strict, made.timestamp_id, str(made.current)) == (
        RecordFormat.AVRO,
        True,
        1,
        "id long not null, item string",
    )
    changed = await log.change_schema([NOTE, RenameColumn(("item",), "what")], strict=False)
    assert await log.schema() == changed
    assert str(changed.current) == "id long not null, what string, note string"
    assert (changed.current.id, changed.strict) == (1, False)
    await log.withdraw_schema()
    await log.withdraw_schema()
    assert await log.schema() is None


async def test_a_log_with_a_schema_is_not_given_another_one(namespace):
    log = await declared(namespace)
    before = await log.schema()
    with pytest.raises(SchemaExistsError, match="nothing was changed"):
        await log.declare_schema(pa.schema([("other", pa.string())]))
    assert await log.schema() == before


async def test_what_cannot_be_declared_or_changed_is_refused(namespace):
    log = await declared(namespace)
    plain = await namespace.open_log("plain")
    for action in (plain.schema(), plain.declare_schema(COLUMNS), plain.change_schema([NOTE]), plain.withdraw_schema()):
        with pytest.raises(LogNotFoundError):
            await action
    await namespace.create_log("plain")
    with pytest.raises(NoSchemaError):
        await plain.change_schema([NOTE])
    with pytest.raises(InvalidSchemaError, match="'xml' is not a format of records"):
        await plain.declare_schema(COLUMNS, format="xml")
    with pytest.raises(EvolutionError, match="cannot be NOT NULL"):
        await log.change_schema([AddColumn(("note",), STRING, required=True)])
    with pytest.raises(InvalidSchemaError, match="only those of Avro"):
        await log.change_schema(confluent={7: "string"})
    assert len((await log.schema()).schemas) == 1


async def test_schemas_of_a_registry_are_added_and_nothing_makes_a_version(namespace):
    await namespace.create_log("orders")
    log = await namespace.open_log("orders")
    record = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    await log.declare_schema(COLUMNS, format="avro", confluent={7: record})
    found = await log.change_schema(confluent={9: record})
    assert await log.schema() == found
    assert (sorted(found.confluent), len(found.schemas)) == ([7, 9], 1)
    for number in (-1, 2**32, True):
        with pytest.raises(InvalidSchemaError, match="is not the number of a schema"):
            await log.change_schema(confluent={number: record})
    with pytest.raises(InvalidSchemaError):
        await log.change_schema(confluent={8: {"type": "nonsense"}})


async def test_who_may_not_write_a_log_does_not_say_what_its_records_are(memory_cluster, namespace, monkeypatch):
    log = await declared(namespace)

    async def permit(services, name, *actions) -> None:
        raise RequestDeniedError(f"{[one.name for one in actions]} on {name}")

    monkeypatch.setattr("dlspark.core.services.Services.permit", permit)
    for action in (log.declare_schema(COLUMNS), log.change_schema([NOTE]), log.withdraw_schema()):
        with pytest.raises(RequestDeniedError, match="WRITE"):
            await action
    assert await log.schema() is not None


# ---------------------------------------------------------------------- several clients


async def test_of_two_changes_at_once_both_are_made_or_the_second_is_refused(memory_cluster):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log, theirs = await declared(one), await other.open_log("orders")
    await asyncio.gather(log.change_schema([NOTE]), theirs.change_schema([AddColumn(("more",), STRING)]))
    found = await log.schema()
    assert {field.name for field in found.current.fields} == {"id", "item", "note", "more"}
    assert len(found.schemas) == 3
    drop = [DropColumn(("note",))]
    results = await asyncio.gather(log.change_schema(drop), theirs.change_schema(drop), return_exceptions=True)
    refused = [result for result in results if isinstance(result, BaseException)]
    assert [type(error) for error in refused] == [EvolutionError]
    assert "nothing was changed" in str(refused[0])
    assert len((await log.schema()).schemas) == 4


async def test_a_change_that_changes_nothing_makes_no_version(namespace):
    log = await declared(namespace)
    await log.change_schema([WidenColumn(("id",), LONG), AllowNull(("item",)), MoveColumn(("id",), Place())])
    assert len((await log.schema()).schemas) == 1


async def test_a_change_that_others_keep_overtaking_ends(namespace, monkeypatch):
    log = await declared(namespace)

    async def overtaken(store, name, before, data):
        raise BadVersionError("another client was first")

    monkeypatch.setattr(SchemaStore, "replace", overtaken)
    with pytest.raises(BadVersionError, match="nothing was changed"):
        await log.change_schema([NOTE])


async def test_a_schema_that_changed_since_it_was_read_is_not_withdrawn(namespace, monkeypatch):
    log = await declared(namespace)
    get = SchemaStore.get

    async def late(store, name):
        found = await get(store, name)
        monkeypatch.setattr(SchemaStore, "get", get)
        await log.change_schema([NOTE])
        return found

    monkeypatch.setattr(SchemaStore, "get", late)
    with pytest.raises(BadVersionError, match="it was not withdrawn"):
        await log.withdraw_schema()
    assert len((await log.schema()).schemas) == 2


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
async def test_an_answer_that_is_lost_changes_a_schema_once(memory_cluster, namespace, fault):
    log = await declared(namespace)
    lose_once(memory_cluster.tree, fault)
    found = await log.change_schema([NOTE])
    assert await log.schema() == found
    assert len(found.schemas) == 2
    lose_once(memory_cluster.tree, fault)
    await log.withdraw_schema()
    assert await log.schema() is None
    lose_once(memory_cluster.tree, fault)
    made = await log.declare_schema(COLUMNS)
    assert await log.schema() == made


async def test_a_change_that_was_made_and_overtaken_before_its_answer_was_looked_for_is_not_made_again(
    memory_cluster, monkeypatch
):
    one, other = await memory_cluster.namespace(), await memory_cluster.namespace()
    log, theirs = await declared(one), await other.open_log("orders")
    replace = SchemaStore.replace

    async def lost(store, name, before, data):
        monkeypatch.setattr(SchemaStore, "replace", replace)
        await replace(store, name, before, data)
        await theirs.change_schema([AddColumn(("more",), STRING)])
        raise OutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(SchemaStore, "replace", lost)
    found = await log.change_schema([NOTE])
    assert [field.name for field in found.current.fields] == ["id", "item", "note", "more"]


async def test_of_a_change_to_what_is_declared_anew_since_nothing_is_known(namespace, monkeypatch):
    log = await declared(namespace)
    replace = SchemaStore.replace

    async def lost(store, name, before, data):
        monkeypatch.setattr(SchemaStore, "replace", replace)
        await log.withdraw_schema()
        await log.declare_schema(COLUMNS)
        raise OutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(SchemaStore, "replace", lost)
    with pytest.raises(OutcomeUnknownError):
        await log.change_schema([NOTE])


# ---------------------------------------------------------------------- with the log


async def test_a_log_is_made_with_its_schema_in_one_step(memory_cluster, namespace):
    declaration = declaration_of(COLUMNS, timestamp="id")
    await namespace.create_log("folder/orders", b"mine", declaration)
    log = await namespace.open_log("folder/orders")
    assert await log.schema() == declaration
    assert (await log.metadata()).value == b"mine"
    await namespace.create_log("plain")
    for name in ("folder/orders", "plain"):
        with pytest.raises(LogExistsError, match="nothing was changed"):
            await namespace.create_log(name, b"", declaration)
    assert await (await namespace.open_log("plain")).schema() is None


async def test_what_another_client_has_half_made_does_not_get_our_schema(memory_cluster, namespace):
    await namespace.create_log("half")
    path = namespace.logs_store.paths("half").allocation
    await memory_cluster.operator.delete(path)
    with pytest.raises(LogExistsError):
        await namespace.create_log("half", b"", declaration_of(COLUMNS))
    await namespace.create_log("half")
    assert await (await namespace.open_log("half")).schema() is None


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
async def test_a_log_is_made_once_though_the_answer_is_lost(memory_cluster, namespace, fault):
    declaration = declaration_of(COLUMNS)
    lose_once(memory_cluster.tree, fault)
    await namespace.create_log("orders", b"", declaration)
    assert await (await namespace.open_log("orders")).schema() == declaration


async def test_a_schema_goes_along_where_its_log_is_renamed_and_goes_where_it_is_deleted(namespace):
    log = await declared(namespace)
    before = await log.schema()
    await namespace.rename_log("orders", "sales")
    assert await (await namespace.open_log("sales")).schema() == before
    await namespace.delete_log("sales")
    await namespace.create_log("sales")
    assert await (await namespace.open_log("sales")).schema() is None


def test_programs_of_logs_that_declare_nothing_load_no_codecs():
    code = """
import sys
import dlspark.errors
assert "pyarrow" not in sys.modules
import dlspark.core.sync.namespace
loaded = {name for name in sys.modules if name.startswith("dlspark.tables.")}
print(sorted(name.rpartition(".")[2] for name in loaded))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['declaration', 'errors', 'evolution', 'types']"


async def test_a_log_of_a_federated_namespace_is_made_and_renamed_with_its_schema(memory_cluster):
    store = MemoryStore(memory_cluster.tree)
    await NamespaceStore(store, "/fed").bind(replace(Binding.for_cluster("memory:2181"), federated=True))
    namespace = await AsyncNamespace.over(
        store, "distributedlog://memory:2181/fed", network=memory_cluster.network, own=(store,)
    )
    memory_cluster.clients.append(namespace)
    declaration = declaration_of(COLUMNS)
    for name in ("orders", "folder/more"):
        await namespace.create_log(name, b"", declaration)
        with pytest.raises(LogExistsError):
            await namespace.create_log(name, b"", declaration)
    await namespace.rename_log("orders", "sales")
    for name in ("sales", "folder/more"):
        assert await (await namespace.open_log(name)).schema() == declaration


async def test_an_audit_passes_over_what_logs_declare(memory_cluster, namespace):
    log = await declared(namespace)
    async with await log.open_writer() as writer:
        await writer.write_table(pa.table({"id": [1]}))
    found = await find_references(memory_cluster.operator)
    assert not found.unreadable
    assert len(found.by_ledger) >= 1


async def test_types_of_arrow_s_are_types_of_columns_in_changes_too(namespace):
    await namespace.create_log("arrow-types")
    async with await namespace.open_log("arrow-types") as log:
        await log.declare_schema(pa.schema([("a", pa.int32())]))
        made = await log.change_schema([AddColumn(("b",), pa.list_(pa.int64())), WidenColumn(("a",), pa.int64())])
        assert str(made.current) == "a long, b list<long>"
        assert (await log.schema()) == made
        with pytest.raises(InvalidSchemaError):
            await log.declare_schema({"a": "double"})


async def test_what_cannot_be_read_is_replaced_in_one_step(namespace):
    log = await declared(namespace)
    store = SchemaStore(namespace.logs_store)
    stored = await store.get("orders")
    await store.replace("orders", stored, b"a newer dlspark's")
    with pytest.raises(CorruptDataError):
        await log.schema()
    with pytest.raises(SchemaExistsError):
        await log.declare_schema(COLUMNS)
    made = await log.declare_schema(COLUMNS, replace=True)
    assert await log.schema() == made
