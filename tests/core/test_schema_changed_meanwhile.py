"""Seeded rounds: two clients change a log's schema, answers and sessions are lost, a writer writes, a reader reads.

Each row that was acknowledged is there once, fits, and has the values that it was given, by the ids of their columns.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from helpers.worlds.memory_cluster import MemoryCluster

from dlspark.core.log import AsyncLog
from dlspark.errors import RowRefusedError, SchemaChangedError
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import AddColumn, Change, DropColumn, MoveColumn, Place, RenameColumn, WidenColumn
from dlspark.tables.types import INT, LONG, STRING
from metadata.foundation.errors import MetadataUnavailableError, OutcomeUnknownError, SessionExpiredError
from metadata.zookeeper.memory import Fault

pytestmark = pytest.mark.torture
LOG = "orders"
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("s", pa.string())])
TABLES = 25
CHANGES = 8


class Round:
    """One round on a cluster in memory."""

    def __init__(self, cluster: MemoryCluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = Random(seed)
        self.given: dict[int, dict[int, object]] = {}
        """Values of acknowledged rows, by the ids of their columns."""
        self.writing = True
        self.changers: set[int] = set()
        self.losses = self.rng.choice((0.0, 0.2, 0.4))

    def go_wrong(self, session: int, operation: str, path: str) -> Fault | None:
        """Lose answers and requests of those who change the schema."""
        if session not in self.changers or self.rng.random() >= self.losses:
            return None
        return self.rng.choice((Fault.LOSE_REQUEST, Fault.LOSE_REPLY))

    async def client(self, **settings: object) -> AsyncLog:
        """Return the log, as another process has it."""
        return await (await self.cluster.namespace(**settings)).open_log(LOG)

    async def write(self) -> None:
        """Write tables of the columns that the log has, or had a moment ago."""
        log = await self.client()
        async with await log.open_writer() as writer:
            declaration = await log.schema()
            assert declaration is not None
            for number in range(TABLES):
                if self.rng.random() < 0.6:
                    declaration = await log.schema()
                    assert declaration is not None
                rows, given = self.rows(declaration, number * 10)
                try:
                    await writer.write_table(rows)
                except RowRefusedError:
                    continue  # a column was dropped meanwhile, or the writer has not heard of it
                self.given |= given
                await writer.flush()
        self.writing = False
        await log.close()

    def rows(self, declaration: Declaration, first: int) -> tuple[pa.Table, dict[int, dict[int, object]]]:
        """Return a table, and its values by the ids of their columns."""
        numbers = list(range(first, first + self.rng.randint(1, 5)))
        columns: dict[str, pa.Array] = {"id": pa.array(numbers)}
        given: dict[int, dict[int, object]] = {number: {1: number} for number in numbers}
        for one in declaration.current.fields[1:]:
            if one.name == "id" or self.rng.random() < 0.3:
                continue
            values = [f"{one.id}-{number}" if one.type == STRING else one.id * 1_000 + number for number in numbers]
            columns[one.name] = pa.array(values, pa.string() if one.type == STRING else pa.int32())
            for number, value in zip(numbers, values, strict=True):
                given[number][one.id] = value
        return pa.table(columns), given

    async def change(self, client: int) -> None:
        """Change the schema, by names of this client's own; what it is told does not matter here."""
        log = await self.client()
        store = log._services.store  # type: ignore[attr-defined]
        for number in range(CHANGES):
            self.changers.add(store.session_id)
            name = f"c{client}_{number}"
            own = f"c{client}_{number - 1}"
            changes: list[list[Change]] = [
                [AddColumn((name,), self.rng.choice((INT, STRING)))],
                [AddColumn((name,), INT), WidenColumn((name,), LONG)],
                [AddColumn((name,), STRING, default="none", required=True, place=Place())],
                [AddColumn((name,), INT), MoveColumn((name,), Place("id"))],
            ]
            chosen = self.rng.choice(changes)
            try:
                declaration = await log.schema()
                if declaration is not None and declaration.current.column(own) and self.rng.random() < 0.4:
                    chosen = self.rng.choice(([DropColumn((own,))], [RenameColumn((own,), name)]))
                await log.change_schema(chosen)
            except (OutcomeUnknownError, SessionExpiredError, MetadataUnavailableError):
                continue
            for _ in range(self.rng.choice((0, 10, 100))):
                await asyncio.sleep(0)
            if self.rng.random() < 0.1:
                self.cluster.tree.expire(store.session_id)
        await log.close()

    async def follow(self) -> int:
        """Read from the start, as of the version that is current then, until that cannot be; then again."""
        log, seen = await self.client(), 0
        while self.writing:
            reader = await log.open_reader("earliest")
            try:
                expected: list[str] | None = None
                while self.writing:
                    table = await asyncio.wait_for(reader.next_table(), 0.2)
                    expected = expected or table.schema.names
                    assert table.schema.names == expected, "the columns stay"
                    assert table.column("_error").null_count == table.num_rows
                    seen += table.num_rows
            except (SchemaChangedError, asyncio.TimeoutError):
                pass
            await reader.close()
        await log.close()
        return seen

    async def run(self, format_: RecordFormat) -> None:
        """Run the round, and read everything afterwards."""
        log = await self.client()
        await log.declare_schema(COLUMNS, format_.value)
        self.cluster.tree.inject = self.go_wrong
        await asyncio.gather(self.write(), self.change(1), self.change(2), self.follow())
        self.cluster.tree.inject = None
        declaration = await log.schema()
        assert declaration is not None
        found: list[dict[str, Any]] = []
        async with await log.open_reader("earliest") as reader:
            while len(found) < len(self.given):
                found += (await reader.next_table()).to_pylist()
        assert self.given
        assert [row["id"] for row in found] == sorted(self.given)
        for row in found:
            assert row["_error"] is None
            given = self.given[row["id"]]
            for one in declaration.current.fields:
                assert row[one.name] == given.get(one.id, one.default), (str(declaration.current), row, given)
        await log.close()


@pytest.mark.parametrize("format_", list(RecordFormat))
async def test_rows_that_are_written_while_the_schema_changes_are_all_there(
    format_: RecordFormat, rounds: int | None, seed: int | None
) -> None:
    for number in [seed] if seed is not None else range(rounds or 2):
        cluster = MemoryCluster()
        await cluster.start()
        try:
            await (await cluster.namespace()).create_log(LOG)
            await Round(cluster, number).run(format_)
        except BaseException as error:
            error.add_note(f"seed {number}")
            raise
        finally:
            cluster.tree.inject = None
            await cluster.stop()
