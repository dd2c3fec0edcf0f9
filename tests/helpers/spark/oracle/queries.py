"""Random queries as small trees, said in SQL or by the methods of frames, over whatever their leaves stand for.

A tree knows its columns and nothing of where rows come from: so the same query is asked of logs and of Parquet files.
All conditions are text of Spark SQL; `{r0}` in it is the table of the leaf 0.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from helpers.spark.oracle.logs import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBERS: Final = ("segment", "entry", "slot", "sequence_id", "transaction_id")
COLUMNS: Final = ("log", *NUMBERS, "timestamp", "value")
FAR_TIMES: Final = (
    "TIMESTAMP'9999-12-31 23:59:59.999'",
    "TIMESTAMP'9999-12-31 23:59:59.999999'",
    "TIMESTAMP'+10000-01-01 00:00:00'",
    "TIMESTAMP'+12345-06-07 08:09:10.123456'",
    "TIMESTAMP'+294000-01-01 00:00:00'",
    "TIMESTAMP'2262-04-11 23:47:16.854776'",
    "TIMESTAMP'2300-01-01'",
    "TIMESTAMP'1677-09-21 00:12:43'",
    "TIMESTAMP'1969-12-31 23:59:59.999999'",
    "TIMESTAMP'1500-01-01'",
    "TIMESTAMP'0001-01-01'",
    "TIMESTAMP'-0044-03-15'",
    "TIMESTAMP'-250000-01-01'",
    "DATE'9999-12-31'",
    "DATE'+10000-01-01'",
    "DATE'+200000-01-01'",
    "DATE'0001-01-01'",
    "DATE'-10000-01-01'",
    "TIMESTAMP_NTZ'9999-12-31 23:59:59'",
    "TIMESTAMP_NTZ'+10000-01-01 00:00:00'",
    "TIMESTAMP_NTZ'1600-01-01 00:00:00'",
)
"""Ends that stand for "open", and times that some type on the way cannot hold."""
_COMPARISONS: Final = ("=", "<", "<=", ">", ">=", "<>", "<=>")


class Column(NamedTuple):
    """A column by its name here, and the column of the log that its values come from ("" if from none)."""

    name: str
    origin: str


class _Asked(dict[str, str]):
    """Tables by relation, which notes which are asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __missing__(self, name: str) -> str:
        self.names.add(name)
        return name


class Tree:
    """A query, or a part of one."""

    columns: tuple[Column, ...]

    def sql(self, names: Mapping[str, str]) -> str:
        """Return the tree as a statement; `names` are the tables of the leaves."""
        raise NotImplementedError

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        """Return the tree by the methods of frames; `frames` are those of the leaves."""
        raise NotImplementedError

    def relations(self) -> set[str]:
        """Return the relations that it asks."""
        asked = _Asked()
        self.sql(asked)
        return asked.names


@dataclass(frozen=True)
class Leaf(Tree):
    """What a relation has."""

    relation: str
    columns: tuple[Column, ...]

    def sql(self, names: Mapping[str, str]) -> str:
        return f"SELECT * FROM {names[self.relation]}"

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        return frames[self.relation]


@dataclass(frozen=True)
class Where(Tree):
    """The rows for which a condition holds."""

    child: Tree
    condition: str

    @property
    def columns(self) -> tuple[Column, ...]:  # type: ignore[override]
        return self.child.columns

    def sql(self, names: Mapping[str, str]) -> str:
        return f"SELECT * FROM ({self.child.sql(names)}) WHERE {self.condition.format_map(names)}"

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        return self.child.frame(frames, names).where(self.condition.format_map(names))


@dataclass(frozen=True)
class Select(Tree):
    """Expressions of each row; with `distinct` each result once."""

    child: Tree
    expressions: tuple[str, ...]
    columns: tuple[Column, ...]
    distinct: bool = False

    def sql(self, names: Mapping[str, str]) -> str:
        once = "DISTINCT " if self.distinct else ""
        return f"SELECT {once}{', '.join(self.expressions)} FROM ({self.child.sql(names)})"

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        frame = self.child.frame(frames, names).selectExpr(*self.expressions)
        return frame.distinct() if self.distinct else frame


@dataclass(frozen=True)
class Join(Tree):
    """Two trees side by side; columns get a new name each."""

    left: Tree
    right: Tree
    how: str
    on: str
    expressions: tuple[str, ...]
    columns: tuple[Column, ...]

    def sql(self, names: Mapping[str, str]) -> str:
        condition = f" ON {self.on}" if self.on else ""
        sides = f"({self.left.sql(names)}) l {self.how} JOIN ({self.right.sql(names)}) r{condition}"
        return f"SELECT {', '.join(self.expressions)} FROM {sides}"

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        from pyspark.sql.functions import expr

        left, right = self.left.frame(frames, names).alias("l"), self.right.frame(frames, names).alias("r")
        how = self.how.lower().replace(" ", "_")
        joined = left.crossJoin(right) if not self.on else left.join(right, expr(self.on), how)
        return joined.selectExpr(*self.expressions)


@dataclass(frozen=True)
class Union(Tree):
    """The rows of both."""

    left: Tree
    right: Tree

    @property
    def columns(self) -> tuple[Column, ...]:  # type: ignore[override]
        return self.left.columns

    def sql(self, names: Mapping[str, str]) -> str:
        return f"({self.left.sql(names)}) UNION ALL ({self.right.sql(names)})"

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        return self.left.frame(frames, names).union(self.right.frame(frames, names))


@dataclass(frozen=True)
class Grouped(Tree):
    """Aggregates, of all rows or by key."""

    child: Tree
    keys: tuple[str, ...]
    functions: tuple[str, ...]
    columns: tuple[Column, ...]

    def sql(self, names: Mapping[str, str]) -> str:
        by = f" GROUP BY {', '.join(self.keys)}" if self.keys else ""
        return f"SELECT {', '.join((*self.keys, *self.functions))} FROM ({self.child.sql(names)}){by}"

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        from pyspark.sql.functions import expr

        return self.child.frame(frames, names).groupBy(*self.keys).agg(*map(expr, self.functions))


@dataclass(frozen=True)
class First(Tree):
    """The first rows in an order that leaves none of them to chance."""

    child: Tree
    order: tuple[str, ...]
    count: int

    @property
    def columns(self) -> tuple[Column, ...]:  # type: ignore[override]
        return self.child.columns

    def sql(self, names: Mapping[str, str]) -> str:
        return f"SELECT * FROM ({self.child.sql(names)}) ORDER BY {', '.join(self.order)} LIMIT {self.count}"

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        from pyspark.sql.functions import expr

        keys = []
        for one in self.order:
            column, *words = one.split(" ", 1)
            kind = words[0].lower().replace(" ", "_") if words else "asc"
            keys.append(getattr(expr(column), kind)())
        return self.child.frame(frames, names).orderBy(*keys).limit(self.count)


@dataclass(frozen=True)
class AnyOf(Tree):
    """Some rows, whichever come: only ever the top of a tree."""

    child: Tree
    count: int

    @property
    def columns(self) -> tuple[Column, ...]:  # type: ignore[override]
        return self.child.columns

    def sql(self, names: Mapping[str, str]) -> str:
        return f"SELECT * FROM ({self.child.sql(names)}) LIMIT {self.count}"

    def frame(self, frames: Mapping[str, DataFrame], names: Mapping[str, str]) -> DataFrame:
        return self.child.frame(frames, names).limit(self.count)


class Drawing:
    """Draws trees over relations. `seen` are records whose values conditions ask for, `columns` those of each leaf."""

    def __init__(self, rng: random.Random, columns: Mapping[str, Sequence[str]], seen: Sequence[Record]) -> None:
        self._rng = rng
        self._columns = columns
        self._seen = seen
        self._names = 0

    def tree(self) -> Tree:
        """Draw a whole query."""
        rng = self._rng
        found = self.part(rng.choice((0, 1, 1, 2, 2, 3)))
        last = rng.random()
        if last < 0.25:
            return self.grouped(found)
        if last < 0.45:
            return self.first(found)
        return AnyOf(found, rng.choice((0, 1, 3, 10, 100))) if last < 0.55 else found

    def part(self, depth: int) -> Tree:
        """Draw a tree of so many steps at most."""
        rng = self._rng
        if depth <= 0:
            return self.leaf()
        kind = rng.random()
        if kind < 0.45:
            return self.where(self.part(depth - 1))
        if kind < 0.6:
            return self.select(self.part(depth - 1))
        if kind < 0.75:
            return self.joined(self.part(depth - 1), self.part(rng.randrange(depth)))
        if kind < 0.88:
            return self.union(self.part(depth - 1), self.part(rng.randrange(depth)))
        if kind < 0.93:
            return self.grouped(self.part(depth - 1))
        return self.first(self.part(depth - 1))

    def rows_alone(self, relation: str) -> Tree:
        """Draw what a stream can do with each row by itself."""
        found: Tree = self.leaf(relation)
        if self._rng.random() < 0.8:
            found = self.where(found, subqueries=False)
        return self.select(found, distinct=False) if self._rng.random() < 0.5 else found

    def leaf(self, relation: str | None = None) -> Leaf:
        """Draw all of a relation."""
        relation = relation or self._rng.choice(sorted(self._columns))
        return Leaf(relation, tuple(Column(name, name) for name in self._columns[relation]))

    def where(self, child: Tree, *, subqueries: bool = True) -> Tree:
        """Draw some rows of a tree."""
        return Where(child, self.condition(child.columns, self._rng.choice((1, 1, 2)), subqueries=subqueries))

    def select(self, child: Tree, *, distinct: bool = True) -> Tree:
        """Draw some columns of a tree, or what is made of them."""
        rng = self._rng
        expressions, columns = [], []
        for column in rng.sample(child.columns, rng.randint(1, len(child.columns))):
            if column.origin in NUMBERS and rng.random() < 0.2:
                made = f"{column.name} % 7"
            elif column.origin == "timestamp" and rng.random() < 0.3:
                made = f"CAST({column.name} AS DATE)"
            else:
                expressions.append(column.name)
                columns.append(column)
                continue
            name = self._fresh()
            expressions.append(f"{made} AS {name}")
            columns.append(Column(name, ""))
        return Select(child, tuple(expressions), tuple(columns), distinct and rng.random() < 0.15)

    def joined(self, left: Tree, right: Tree) -> Tree:
        """Draw two trees, joined by columns of the same kind if they have some."""
        rng = self._rng
        pairs = [
            (one, other)
            for one in left.columns
            for other in right.columns
            if one.origin and (one.origin == other.origin or {one.origin, other.origin} <= set(NUMBERS))
        ]
        how = rng.choice(("INNER", "INNER", "LEFT", "LEFT SEMI", "LEFT ANTI", "FULL OUTER")) if pairs else "CROSS"
        on = ""
        if pairs:
            chosen = rng.sample(pairs, min(len(pairs), rng.choice((1, 2))))
            on = " AND ".join(f"l.{one.name} = r.{other.name}" for one, other in chosen)
        else:  # many rows with many rows are too many
            left, right = First(left, self._order(left), 6), First(right, self._order(right), 6)
        sides = [("l", left)] if how in ("LEFT SEMI", "LEFT ANTI") else [("l", left), ("r", right)]
        expressions, columns = [], []
        for side, tree in sides:
            for column in rng.sample(tree.columns, rng.randint(1, min(4, len(tree.columns)))):
                name = self._fresh()
                expressions.append(f"{side}.{column.name} AS {name}")
                columns.append(Column(name, column.origin))
        return Join(left, right, how, on, tuple(expressions), tuple(columns))

    def union(self, left: Tree, right: Tree) -> Tree:
        """Draw the rows of two trees, in the columns that both have."""
        common = sorted({one.origin for one in left.columns} & {one.origin for one in right.columns} - {""})
        if not common:
            return left
        names = [Column(self._fresh(), origin) for origin in common]
        sides = []
        for tree in (left, right):
            by_origin = {column.origin: column.name for column in tree.columns}
            said = tuple(f"{by_origin[column.origin]} AS {column.name}" for column in names)
            sides.append(Select(tree, said, tuple(names)))
        return Union(*sides)

    def grouped(self, child: Tree) -> Tree:
        """Draw aggregates of a tree; mostly of all of its rows."""
        rng = self._rng
        keys = tuple(one.name for one in rng.sample(child.columns, 1)) if rng.random() < 0.4 else ()
        functions = []
        columns = [one for one in child.columns if one.name in keys]
        for _ in range(rng.randint(1, 3)):
            column, name = rng.choice(child.columns), self._fresh()
            of_it = [f"count({column.name})", f"min({column.name})", f"max({column.name})"]
            of_it.append(f"count(DISTINCT {column.name})")
            if column.origin in NUMBERS:
                of_it.append(f"sum({column.name} % 1000)")
            function = rng.choice(["count(*)", "count(*)", *of_it])
            functions.append(f"{function} AS {name}")
            columns.append(Column(name, ""))
        return Grouped(child, keys, tuple(functions), tuple(columns))

    def first(self, child: Tree) -> Tree:
        """Draw the first rows of a tree: by all of its columns, or by some that are all that is looked at."""
        rng = self._rng
        if rng.random() < 0.5:
            wanted = [rng.choice(([one], ["segment", "entry", "slot"])) for one in ("timestamp", "transaction_id")]
            by_origin = {one.origin: one for one in child.columns if one.origin}
            for origins in wanted:
                if all(origin in by_origin for origin in origins):
                    some = [by_origin[origin] for origin in origins]
                    child = Select(child, tuple(one.name for one in some), tuple(some))
                    way = rng.choice(("ASC", "DESC", "ASC NULLS LAST", "DESC NULLS FIRST"))
                    return First(child, tuple(f"{one.name} {way}" for one in some), rng.choice((0, 1, 3, 10)))
        return First(child, self._order(child), rng.choice((0, 1, 3, 10)))

    def _order(self, tree: Tree) -> tuple[str, ...]:
        way = self._rng.choice(("ASC", "DESC"))
        return tuple(f"{one.name} {way}" for one in tree.columns)

    def _fresh(self) -> str:
        self._names += 1
        return f"c{self._names}"

    # ------------------------------------------------------------------ conditions

    def condition(self, columns: Sequence[Column], depth: int = 1, *, subqueries: bool = True) -> str:
        """Draw something that holds for some rows."""
        rng = self._rng
        if depth > 1:
            way = rng.random()
            one, other = (self.condition(columns, depth - 1, subqueries=subqueries) for _ in range(2))
            if way < 0.65:
                return f"({one} AND {other})"
            return f"({one} OR {other})" if way < 0.85 else f"(NOT ({one}))"
        known = [column for column in columns if column.origin]
        if not known:
            return f"{rng.choice(list(columns)).name} IS NOT NULL"
        times = [column for column in known if column.origin == "timestamp"]
        column = rng.choice(times if times and rng.random() < 0.3 else known)
        if rng.random() < 0.06:
            return f"{column.name} IS {rng.choice(('', 'NOT '))}NULL"
        if subqueries and rng.random() < 0.08:
            return self._subquery(column)
        return {"log": self._of_log, "timestamp": self._of_time, "value": self._of_value}.get(
            column.origin, self._of_number
        )(column)

    def _subquery(self, column: Column) -> str:
        having = [name for name in sorted(self._columns) if column.origin in self._columns[name]]
        if not having:
            return f"{column.name} IS NOT NULL"
        relation = self._rng.choice(having)
        inner = reduce(
            lambda text, _: f"{text} AND {self.condition([Column(column.origin, column.origin)], subqueries=False)}",
            range(self._rng.choice((0, 1))),
            f"SELECT {column.origin} FROM {{{relation}}} WHERE true",
        )
        if column.origin != "log" and self._rng.random() < 0.4:
            function = self._rng.choice(("min", "max"))
            whole = inner.replace(f"SELECT {column.origin}", f"SELECT {function}({column.origin})", 1)
            return f"{column.name} {self._rng.choice(_COMPARISONS)} ({whole})"
        return f"{column.name} IN ({inner})"

    def _one_seen(self, origin: str) -> object:
        return getattr(self._rng.choice(self._seen), origin) if self._seen else None

    def _number(self, origin: str) -> str:
        rng = self._rng
        seen = self._one_seen(origin)
        kind = rng.random()
        if kind < 0.75 and isinstance(seen, int):
            return str(seen + rng.choice((-1, 0, 0, 1)))
        if kind < 0.9:
            return rng.choice(("0", "-1", "1", "2", "100000", "9223372036854775807", "-9223372036854775808"))
        return rng.choice(("1.5", "CAST(2 AS SMALLINT)", "CAST(1 AS TINYINT)", "2.0D", "12345678901234567890", "NULL"))

    def _of_number(self, column: Column) -> str:
        rng, name = self._rng, column.name
        kind = rng.random()
        if kind < 0.65:
            return f"{name} {rng.choice(_COMPARISONS)} {self._number(column.origin)}"
        if kind < 0.8:
            values = ", ".join(self._number(column.origin) for _ in range(rng.randint(1, 4)))
            return f"{name} {rng.choice(('', 'NOT '))}IN ({values})"
        if kind < 0.92:
            low, high = self._number(column.origin), self._number(column.origin)
            return f"{name} {rng.choice(('', 'NOT '))}BETWEEN {low} AND {high}"
        return f"{name} % {rng.choice((2, 3))} = 0"

    def _time(self) -> str:
        rng = self._rng
        seen = self._one_seen("timestamp")
        if isinstance(seen, int) and rng.random() < 0.45:
            micros = seen + rng.choice((-1000, -1, 0, 0, 1, 500, 1000))
            made = f"timestamp_micros({micros})"
            return rng.choice((made, made, f"CAST({made} AS DATE)", f"CAST({made} AS TIMESTAMP_NTZ)"))
        return rng.choice(FAR_TIMES)

    def _of_time(self, column: Column) -> str:
        rng, name = self._rng, column.name
        kind = rng.random()
        if kind < 0.6:
            return f"{name} {rng.choice(_COMPARISONS)} {self._time()}"
        if kind < 0.75:
            return f"{name} {rng.choice(('', 'NOT '))}BETWEEN {self._time()} AND {self._time()}"
        if kind < 0.87:
            values = ", ".join(self._time() for _ in range(rng.randint(1, 3)))
            return f"{name} {rng.choice(('', 'NOT '))}IN ({values})"
        day = rng.choice(("DATE'9999-12-31'", "DATE'2013-07-01'", "DATE'1970-01-01'", "DATE'+10000-01-02'"))
        return f"CAST({name} AS DATE) {rng.choice(_COMPARISONS)} {day}"

    def _of_log(self, column: Column) -> str:
        rng = self._rng
        some = [f"'{self._one_seen('log')}'" for _ in range(rng.randint(1, 2))] + ["'none'"] * (rng.random() < 0.3)
        kind = rng.random()
        if kind < 0.5:
            return f"{column.name} {rng.choice(_COMPARISONS)} {some[0]}"
        if kind < 0.8:
            return f"{column.name} {rng.choice(('', 'NOT '))}IN ({', '.join(some)})"
        return f"{column.name} LIKE '%{rng.choice('0123')}'"

    def _of_value(self, column: Column) -> str:
        rng, seen = self._rng, self._one_seen("value")
        said = f"X'{seen.hex()}'" if isinstance(seen, bytes) else "X'31'"
        kind = rng.random()
        if kind < 0.5:
            return f"{column.name} {rng.choice(_COMPARISONS)} {said}"
        if kind < 0.7:
            return f"{column.name} IN ({said}, X'3130')"
        return f"length({column.name}) {rng.choice(_COMPARISONS)} {rng.randrange(4)}"
