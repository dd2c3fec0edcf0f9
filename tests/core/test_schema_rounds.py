"""Seeded rounds: a log's schema is changed by clients at once, while answers and sessions are lost, and the log goes.

No change is lost or applied twice, none is put in the place of another log's, no id is given twice, and what a client
was told is what happened (`helpers.schema_history`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pyarrow as pa
import pytest
from helpers.schema_history import AuditedTree, Life
from helpers.virtual_time import virtual_time

from dlspark.core.typed.declarations import Declarations, declaration_of
from dlspark.errors import NoSchemaError, SchemaExistsError
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import AddColumn, AllowNull, Change, DropColumn, RenameColumn, WidenColumn
from dlspark.tables.types import INT, LONG, STRING
from metadata.distributedlog.locks import LockingError
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.log_names import LogExistsError, LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.foundation.errors import (
    BadVersionError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
)
from metadata.zookeeper.memory import Fault, MemoryStore

pytestmark = pytest.mark.torture
NS = "/dl/ns"
LOG = "orders"
CLIENTS = 3
CHANGES = 6
NOT_DONE = (BadVersionError, LogNotFoundError, NoSchemaError)
UNKNOWN = (OutcomeUnknownError, MetadataUnavailableError)


class Round:
    """One round: clients that change the schema, one that does things to the log, and what goes wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.tree = AuditedTree()
        self.stores: list[MemoryStore] = []
        self.told: dict[str, str] = {}
        """By the name of the column that a client added: `made`, `not made`, or `unknown`."""
        self.quiet = self.rng.random() < 0.2
        self.losses = self.rng.choice((0.02, 0.1, 0.3))
        self.wilder = self.rng.choice((0.0, 0.3, 1.0))
        """How often the log is renamed, deleted, and made again."""

    def logs(self) -> LogStore:
        """Return another client's view."""
        store = MemoryStore(self.tree)
        self.stores.append(store)
        return LogStore(store, NS)

    def go_wrong(self, session: int, operation: str, path: str) -> Fault | None:
        """Lose some requests, and some answers."""
        if self.quiet or self.rng.random() >= self.losses:
            return None
        return self.rng.choice((Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.LOSE_REPLY))

    def schema(self) -> Declaration:
        """Return a first declaration."""
        columns = pa.schema([pa.field("id", pa.int32(), nullable=False), ("item", pa.string())])
        return declaration_of(columns, self.rng.choice(list(RecordFormat)))

    async def turns(self) -> None:
        """Let the others go on for a while: each request takes them two turns of the loop."""
        for _ in range(self.rng.choice((0, 1, 5, 40))):
            await asyncio.sleep(0)

    async def change(self, client: int) -> None:
        """Add columns under names of this client's own, and change them."""
        declarations = Declarations(self.logs(), LOG)
        for number in range(CHANGES):
            name = f"c{client}_{number}"
            await self.turns()
            changes: list[Change] = [AddColumn((name,), self.rng.choice((INT, STRING)))]
            if self.rng.random() < 0.5:
                changes += self.rng.choice((
                    [RenameColumn((name,), f"{name}_more"), RenameColumn((f"{name}_more",), name)],
                    [AddColumn((f"{name}_gone",), INT), DropColumn((f"{name}_gone",))],
                    [AddColumn((f"{name}_wide",), INT), WidenColumn((f"{name}_wide",), LONG)],
                    [AddColumn((f"{name}_free",), INT, default=1, required=True), AllowNull((f"{name}_free",))],
                ))  # fmt: skip
            strict = self.rng.choice((None, None, True, False))
            try:
                made = await declarations.change(changes, strict=strict)
                assert any(schema.column(name) for schema in made.schemas)
                self.told[name] = "made"
            except NOT_DONE:
                self.told[name] = "not made"
            except UNKNOWN:
                self.told[name] = "unknown"

    async def live(self) -> None:
        """Rename the log and back, delete it and make it again, withdraw what it declares and declare it anew."""
        logs = self.logs()
        admin, schemas, declarations = LogAdmin(logs), SchemaStore(logs), Declarations(logs, LOG)
        doings: list[Callable[[], object]] = [
            lambda: admin.rename(LOG, "away"),
            lambda: admin.rename("away", LOG),
            lambda: logs.delete_tree(LOG),
            lambda: schemas.create_log(LOG, self.schema().encode()),
            lambda: logs.ensure(LOG),
            lambda: declarations.declare(self.schema()),
            lambda: declarations.withdraw(),
        ]
        expected = (
            *NOT_DONE,
            *UNKNOWN,
            LogExistsError,
            SchemaExistsError,
            LockingError,
            NodeExistsError,
            NoNodeError,
            NotEmptyError,
        )
        for _ in range(int(30 * self.wilder)):
            await self.turns()
            try:
                await self.rng.choice(doings)()  # type: ignore[misc]
            except expected:
                continue

    async def look(self) -> None:
        """Read what the log declares again and again: each is whole, and of one declaration none is older."""
        declarations = Declarations(self.logs(), LOG)
        newest: dict[str, int] = {}
        for _ in range(40):
            await self.turns()
            try:
                found = await declarations.find()
            except (LogNotFoundError, *UNKNOWN):
                continue
            if found is not None:
                assert found.stored.version >= newest.get(found.stored.id, 0)
                newest[found.stored.id] = found.stored.version

    async def expire(self) -> None:
        """End sessions, whoever has them."""
        for _ in range(0 if self.quiet else 4):
            await self.turns()
            with suppress(KeyError):  # it has not heard of its last session's end yet
                self.tree.expire(self.rng.choice(self.stores).session_id)

    async def run(self) -> None:
        """Run the round, and judge it."""
        operator = MemoryStore(self.tree)
        await operator.create(NS, make_parents=True)
        await SchemaStore(LogStore(operator, NS)).create_log(LOG, self.schema().encode())
        self.tree.inject = self.go_wrong
        await asyncio.gather(*(self.change(one) for one in range(CLIENTS)), self.live(), self.look(), self.expire())
        self.tree.inject = None
        lives = self.tree.judge()
        for name, told in self.told.items():
            check_told(name, told, lives)
        for store in (operator, *self.stores):
            await store.close()


def check_told(name: str, told: str, lives: list[Life]) -> None:
    """A column that was made is in one declaration, once; one that was not made is in none."""
    ids = [columns for life in lives if (columns := life.columns_named(name))]
    assert len(ids) <= 1, f"{name} is in two logs' declarations"
    assert all(len(columns) == 1 for columns in ids), f"{name} was made twice"
    if told != "unknown":
        assert bool(ids) is (told == "made"), f"{name} is told to be {told}"


def test_no_change_is_lost_or_made_twice_whatever_happens_to_the_log(rounds: int | None, seed: int | None) -> None:
    told: Counter[str] = Counter()
    for number in [seed] if seed is not None else range(rounds or 4):
        one = Round(number)
        try:
            virtual_time(one.run)()
        except BaseException as error:
            error.add_note(f"seed {number}")
            raise
        told.update(one.told.values())
    print(f"{dict(told)} of {told.total()} changes")
    assert told["made"] > told.total() // 10
