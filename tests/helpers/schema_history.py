"""`AuditedTree`: a metadata store in memory that remembers what was done to declarations, and judges it.

A declaration's life is a chain of versions: made with its log or later, changed by one version at a time, carried along
where the log is renamed, ended where it is withdrawn or its log deleted. `judge` replays all transactions and raises
AssertionError where one of them put something else in a declaration's place than the next version of the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dlspark.tables.declaration import Declaration
from dlspark.tables.types import walk
from metadata.store import Create, Delete, Op, OpResult, SetData
from metadata.zookeeper.memory import MemorySession, MemoryTree


@dataclass
class Life:
    """What one declaration was, oldest first, and the ids of the znodes that it was in."""

    states: list[Declaration]
    ids: list[str] = field(default_factory=list)

    @property
    def now(self) -> Declaration:
        """The newest state."""
        return self.states[-1]

    def columns_named(self, name: str) -> set[int]:
        """Return the ids of the columns that ever had a name."""
        return {one.id for schema in self.now.schemas for one in schema.fields if one.name == name}


class AuditedTree(MemoryTree):
    """A tree that keeps each transaction that changed a declaration."""

    def __init__(self) -> None:
        super().__init__()
        self._done: list[list[Op]] = []

    def apply(self, session: MemorySession, ops: Sequence[Op]) -> list[OpResult]:
        """Apply `ops`, and remember them if they did something to a declaration."""
        results = super().apply(session, ops)
        if any("/schema/" in op.path for op in ops):
            self._done.append(list(ops))
        return results

    def judge(self) -> list[Life]:
        """Return the lives of all declarations that there were."""
        lives: list[Life] = []
        at: dict[str, Life] = {}
        seen: set[str] = set()
        for ops in self._done:
            concerned = [op for op in ops if "/schema/" in op.path]
            ended = {op.path: at.pop(op.path) for op in concerned if isinstance(op, Delete)}
            for op in concerned:
                if isinstance(op, Create):
                    id_ = op.path.rpartition("/")[2]
                    assert id_ not in seen, f"the id {id_} was given twice"
                    seen.add(id_)
                    made = Declaration.decode(op.data, op.path)
                    if ended:
                        (life,) = ended.values()
                        assert made == life.now, "a renamed log declares what it did"
                    else:
                        lives.append(life := Life([made]))
                    life.ids.append(id_)
                    at[op.path] = life
                elif isinstance(op, SetData):
                    _follow(at[op.path], Declaration.decode(op.data, op.path))
        return lives


def _follow(life: Life, made: Declaration) -> None:
    """Add a state, which must be the next version of the newest one, or the same with another strictness."""
    before = life.now
    assert made.schemas[: len(before.schemas)] == before.schemas, "a version was lost"
    assert len(made.schemas) <= len(before.schemas) + 1, "a change was applied with another one"
    assert (made.format, made.timestamp_id, made.encoder) == (before.format, before.timestamp_id, before.encoder)
    known = {one.id for schema in before.schemas for one in walk(schema.fields)}
    new = {one.id for one in walk(made.current.fields)} - known
    assert not new or min(new) > before.highest_id, "an id was given twice"
    assert made.highest_id == max(new, default=before.highest_id)
    life.states.append(made)
