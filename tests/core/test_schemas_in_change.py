"""A log's schema changes while it is written and read, by two clients whose answers are lost: no row is, nor is any
change made twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

import pyarrow as pa
import pytest
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.core.log import AsyncLog
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.typed import table_writes
from dlspark.errors import BadVersionError, OutcomeUnknownError, RowRefusedError, SchemaChangedError
from dlspark.tables.comparison import changes_between
from dlspark.tables.declaration import Declaration
from dlspark.tables.evolution import AddColumn, Change, DropColumn, EvolutionError, RenameColumn, WidenColumn
from dlspark.tables.types import INT, LONG, STRING
from metadata.zookeeper.memory import Fault, MemoryTree

ROUNDS = 2
CHANGES = 8
TABLES = 25
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a", pa.int32()), ("b", pa.string())])


def a_change(rng: Random, name: str, now: Declaration) -> Change:
    """Return a change that another client's may overtake; what it adds has a name that nobody else gives."""
    others = [one for one in now.current.fields if one.name != "id"]
    kind = rng.randrange(6) if others else 0
    one = rng.choice(others) if others else None
    if kind < 3 or one is None:
        return AddColumn((name,), rng.choice([INT, STRING]))
    if kind == 3:
        return RenameColumn((one.name,), name)
    return WidenColumn((one.name,), LONG) if kind == 4 and one.type == INT else DropColumn((one.name,))


async def change(log: AsyncLog, rng: Random, client: int) -> dict[str, list[Change]]:
    """Change a log's schema some times, and return how that went."""
    went: dict[str, list[Change]] = {"made": [], "refused": [], "unknown": []}
    for number in range(CHANGES):
        now = await log.schema()
        assert now is not None
        one = a_change(rng, f"c{client}_{number}", now)
        try:
            await log.change_schema([one])
            went["made"].append(one)
        except (EvolutionError, BadVersionError):
            went["refused"].append(one)
        except OutcomeUnknownError:
            went["unknown"].append(one)
        await asyncio.sleep(0)
    return went


def new_names(changes: Iterable[Change]) -> list[str]:
    """Return the names that changes give; each is given by one change of one client alone."""
    return [
        one.path[0] if isinstance(one, AddColumn) else one.name
        for one in changes
        if isinstance(one, AddColumn | RenameColumn)
    ]


async def write(log: AsyncLog, rng: Random) -> int:
    """Write rows by what the log declares, until it is sealed; return how many."""
    written = 0
    async with await log.open_writer() as writer:
        for _ in range(TABLES):
            now = await log.schema()
            assert now is not None
            count = rng.randrange(1, 4)
            columns: dict[str, list[object]] = {"id": list(range(written, written + count))}
            for one in now.current.fields[1:]:
                if rng.random() < 0.7:
                    columns[one.name] = ["x" if one.type == STRING else 7] * count
            try:
                await writer.write_table(pa.table(columns))
            except RowRefusedError:
                continue  # a column was dropped or renamed meanwhile: nothing was written
            written += count
        await writer.mark_end_of_stream()
    return written


async def read(log: AsyncLog) -> list[int]:
    """Read all rows, each time anew where newer records are no rows of the version that was begun with."""
    found: list[int] = []
    position = None
    while True:
        async with await log.open_reader(position) as reader:
            try:
                async for table in reader.tables():
                    assert table.column("_error").null_count == len(table)
                    found += table.column("id").to_pylist()
                    position = reader.position
            except SchemaChangedError:
                position = reader.position
                continue
            return found


def lossy(tree: MemoryTree, rng: Random, clients: list[AsyncNamespace]) -> None:
    """Let requests of these clients, and answers to them, be lost now and then."""
    sessions = {client.store.session_id for client in clients}  # type: ignore[attr-defined]

    def inject(session: int, operation: str, _path: str) -> Fault | None:
        if session not in sessions or rng.random() > (0.3 if operation == "multi" else 0.02):
            return None
        return rng.choice([Fault.LOSE_REQUEST, Fault.LOSE_REPLY])

    tree.inject = inject


@pytest.mark.parametrize("format_", ["json", "avro"])
async def test_no_row_is_lost_and_no_change_made_twice(
    format_: str, rounds: int | None, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writes, "SCHEMA_AGE_S", 0.02)
    first = 30 if seed is None else seed
    for number in range(first, first + (ROUNDS if rounds is None else rounds)):
        rng = Random(number)
        cluster = MemoryCluster()
        await cluster.start()
        clients = [await cluster.namespace() for _ in range(4)]
        await clients[0].create_log("orders")
        logs = [await client.open_log("orders") for client in clients]
        await logs[0].declare_schema(SCHEMA, format=format_)
        lossy(cluster.tree, rng, clients[:2])
        one, other, written, found = await asyncio.gather(
            change(logs[0], rng, 0), change(logs[1], rng, 1), write(logs[2], rng), read(logs[3])
        )
        cluster.tree.inject = None
        declaration = await logs[3].schema()
        await cluster.stop()
        assert found == list(range(written)), number
        assert written > TABLES // 2, number
        made, doubtful = one["made"] + other["made"], one["unknown"] + other["unknown"]
        assert len(made) > 2, number
        assert declaration is not None
        there = [
            changes_between(old, new, by_ids=True)
            for old, new in zip(declaration.schemas, declaration.schemas[1:], strict=False)
        ]
        assert all(len(changes) == 1 for changes in there), number
        names = new_names(changes[0] for changes in there)
        assert len(set(names)) == len(names), number
        assert set(new_names(made)) <= set(names) <= set(new_names([*made, *doubtful])), number
        # Two may drop one column: where the answer was lost, it is as its client wanted it.
        assert len(there) <= len(made) + len(doubtful), number
