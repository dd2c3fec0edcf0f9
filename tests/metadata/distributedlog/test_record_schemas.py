"""What logs declare of their records: made once, replaced at the version that was read, gone with the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from helpers.waiting import until

from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.record_schemas import SchemaStore, StoredSchema
from metadata.foundation.errors import BadVersionError, CorruptDataError, NodeExistsError, OutcomeUnknownError
from metadata.zookeeper.memory import Fault, MemoryStore, MemoryTree

NS = "/dl/ns"


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture
async def logs(tree: MemoryTree) -> AsyncIterator[LogStore]:
    store = MemoryStore(tree)
    await store.create(NS, make_parents=True)
    logs = LogStore(store, NS)
    await logs.create("orders")
    yield logs
    await store.close()


async def test_a_declaration_is_made_once_and_replaced_as_it_was_read(logs: LogStore) -> None:
    schemas = SchemaStore(logs)
    assert await schemas.get("orders") is None
    first = await schemas.declare("orders", b"one")
    assert await schemas.get("orders") == first == StoredSchema(b"one", first.id, 0)
    with pytest.raises(NodeExistsError):
        await SchemaStore(logs).declare("orders", b"other")
    second = await schemas.replace("orders", first, b"two")
    assert await schemas.get("orders") == second == StoredSchema(b"two", first.id, 1)
    with pytest.raises(BadVersionError):
        await schemas.replace("orders", first, b"late")
    with pytest.raises(BadVersionError):
        await schemas.withdraw("orders", first)
    await schemas.withdraw("orders", second)
    await schemas.withdraw("orders", second)
    assert await schemas.get("orders") is None
    with pytest.raises(BadVersionError):
        await schemas.replace("orders", second, b"late")


async def test_another_declaration_takes_the_place_of_one_in_one_step(tree: MemoryTree, logs: LogStore) -> None:
    schemas = SchemaStore(logs)
    first = await schemas.replace("orders", await schemas.declare("orders", b"one"), b"two")
    second = await schemas.declare("orders", b"anew", first)
    assert second.id != first.id
    assert await schemas.get("orders") == second
    assert (await logs.store.children(logs.paths("orders").schema))[0] == [second.id]
    for stale in (first, StoredSchema(b"anew", second.id, 7)):
        with pytest.raises(BadVersionError):
            await schemas.declare("orders", b"late", stale)
    for fault in (Fault.LOSE_REPLY, Fault.LOSE_REQUEST):
        left = [fault]

        def lose(session: int, operation: str, path: str, left: list[Fault] = left) -> Fault | None:
            return left.pop() if operation == "multi" and left else None

        tree.inject = lose
        found = await schemas.declare("orders", fault.name.encode(), await schemas.get("orders"))
        assert not left
        assert await schemas.get("orders") == found
        assert (await logs.store.children(logs.paths("orders").schema))[0] == [found.id]


async def test_a_log_that_is_not_there_declares_nothing(logs: LogStore) -> None:
    schemas = SchemaStore(logs)
    for action in (schemas.get("none"), schemas.declare("none", b"x")):
        with pytest.raises(LogNotFoundError):
            await action


async def test_of_two_that_declare_at_once_one_does(logs: LogStore) -> None:
    found = await asyncio.gather(
        *(SchemaStore(logs).declare("orders", b"%d" % n) for n in range(4)), return_exceptions=True
    )
    made = [one for one in found if isinstance(one, StoredSchema)]
    assert made == [await SchemaStore(logs).get("orders")]
    assert sum(isinstance(one, NodeExistsError) for one in found) == 3


async def test_a_declaration_goes_where_its_log_goes(logs: LogStore) -> None:
    schemas = SchemaStore(logs)
    made = await schemas.declare("orders", b"one")
    await LogAdmin(logs).rename("orders", "sales/orders")
    found = await schemas.get("sales/orders")
    assert found is not None
    assert (found.data, found.version) == (made.data, 0)
    second = await schemas.replace("sales/orders", found, b"two")
    assert await schemas.get("sales/orders") == second
    with pytest.raises(LogNotFoundError):
        await schemas.get("orders")


async def test_a_log_that_has_its_former_name_back_is_changed_by_nobody_who_read_it_before(logs: LogStore) -> None:
    schemas, admin = SchemaStore(logs), LogAdmin(logs)
    before = await schemas.declare("orders", b"one")
    await schemas.replace("orders", before, b"two")
    seen = {before.id}
    for _ in range(2):
        await admin.rename("orders", "away")
        await admin.rename("away", "orders")
        found = await schemas.get("orders")
        assert found is not None
        assert (found.data, found.version) == (b"two", before.version), "the version alone would not tell"
        assert found.id not in seen
        seen.add(found.id)
        with pytest.raises(BadVersionError):
            await schemas.replace("orders", before, b"late")
        with pytest.raises(BadVersionError):
            await schemas.withdraw("orders", before)


async def test_nothing_takes_the_place_of_what_another_log_of_the_name_declares(logs: LogStore) -> None:
    schemas = SchemaStore(logs)
    before = await schemas.declare("orders", b"one")
    await LogAdmin(logs).rename("orders", "old")
    await logs.create("orders")
    other = await schemas.declare("orders", b"other")
    assert other.version == before.version, "the version alone would not tell"
    with pytest.raises(BadVersionError):
        await schemas.replace("orders", before, b"two")
    assert await schemas.get("orders") == other


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_answer_is_found_out_by_looking(tree: MemoryTree, logs: LogStore, applied: bool) -> None:
    schemas = SchemaStore(logs)
    lost: list[str] = []

    def lose(session: int, operation: str, path: str) -> Fault | None:
        if operation == "multi" and not lost:
            lost.append(path)
            return Fault.LOSE_REPLY if applied else Fault.LOSE_REQUEST
        return None

    tree.inject = lose
    made = await schemas.declare("orders", b"one")
    assert lost
    assert await schemas.get("orders") == made
    lost.clear()
    if applied:
        assert (await schemas.replace("orders", made, b"two")).version == 1
    else:
        with pytest.raises(BadVersionError, match="was not replaced"):
            await schemas.replace("orders", made, b"two")
    tree.inject = None
    found = await schemas.get("orders")
    assert found is not None
    assert found.data == (b"two" if applied else b"one")


@pytest.mark.parametrize("whole", [True, False], ids=["with its log", "alone"])
@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_REPLY])
async def test_no_id_is_given_to_two_logs_though_an_answer_was_lost(
    tree: MemoryTree, logs: LogStore, fault: Fault, whole: bool
) -> None:
    """Between two attempts the log may have been deleted, and made again by another client."""
    asked: list[str] = []

    def new_id() -> str:
        asked.append(f"id{len(asked)}")
        return asked[-1]

    def lose(session: int, operation: str, path: str) -> Fault | None:
        return fault if operation == "multi" and len(asked) == 1 else None

    schemas = SchemaStore(logs, new_id)
    tree.inject = lose
    made = await (schemas.create_log("flights", b"one") if whole else schemas.declare("orders", b"one"))
    tree.inject = None
    assert asked == ["id0", "id1"]
    assert made.id == ("id0" if fault is Fault.LOSE_REPLY else "id1")
    assert await schemas.get("flights" if whole else "orders") == made


async def test_a_lost_answer_behind_which_the_log_has_gone_stays_unknown(tree: MemoryTree, logs: LogStore) -> None:
    schemas = SchemaStore(logs)
    made = await schemas.declare("orders", b"one")
    other = LogStore(MemoryStore(tree), NS)

    def lose(session: int, operation: str, path: str) -> Fault | None:
        return Fault.LOSE_REPLY if operation == "multi" and session == logs.store.session_id else None

    async def replaced() -> bool:
        found = await SchemaStore(other).get("orders")
        return found is not None and found.version == 1

    tree.inject = lose
    replacing = asyncio.ensure_future(schemas.replace("orders", made, b"two"))
    await until(replaced, every_s=0)
    tree.disconnect(logs.store.session_id)
    await other.delete_tree("orders")
    tree.reconnect(logs.store.session_id)
    with pytest.raises(OutcomeUnknownError):
        await replacing
    await other.store.close()


async def test_a_lost_answer_behind_which_others_others_have_replaced_it_stays_unknown(
    tree: MemoryTree, logs: LogStore
) -> None:
    schemas, made = SchemaStore(logs), await SchemaStore(logs).declare("orders", b"one")
    other = MemoryStore(tree)
    path = f"{(await logs.located('orders')).partition}/schema/{made.id}"

    def lose(session: int, operation: str, asked: str) -> Fault | None:
        return Fault.LOSE_REPLY if operation == "multi" else None

    tree.inject = lose
    replacing = asyncio.ensure_future(schemas.replace("orders", made, b"two"))

    async def replaced() -> bool:
        stat = await other.exists(path)
        return stat is not None and stat.version == 1

    await until(replaced, every_s=0)
    await other.put(path, b"three", 1)
    tree.inject = None
    with pytest.raises(OutcomeUnknownError):
        await replacing
    await other.close()


async def test_an_id_that_is_none_is_refused(logs: LogStore) -> None:
    schemas = SchemaStore(logs)
    await schemas.declare("orders", b"one")
    parent = f"{(await logs.located('orders')).partition}/schema"
    for named in (b"", b"a/b", b"\xff", b"a" * 65):
        await logs.store.put(parent, named, -1)
        with pytest.raises(CorruptDataError):
            await schemas.get("orders")
