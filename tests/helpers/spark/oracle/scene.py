"""A scene of the oracle: some logs, and queries over them while they change; each is asked of Parquet files as well.

A seed gives one scene, whatever the session can do: `python oracle_program.py URI --seeds 17` plays it again. A query
that gives other rows than the same query over the Parquet files is a `Difference`, which has the query and both.

What is asked, beside plain queries: queries of a frame or view that was made before the log changed; one frame used
twice; frames and tables that Spark keeps in its cache, which shall have the rows of when they were cached until they
are refreshed; streams, alone and joined with something that changes meanwhile.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from dlspark.spark import start
from helpers.spark.oracle.logs import OracleLogs, Record, table_of
from helpers.spark.oracle.queries import COLUMNS, AnyOf, Column, Drawing, First, Join, Leaf, Tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "distributedlog"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
QUERIES: Final = 10
"""Queries of a scene."""
_CONFS: Final = {
    # The Parquet side is the plain one: Spark looks at each row.
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.parquet.aggregatePushdown": "false",
    # To compile a query takes longer than to run it over some dozens of rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}
_ADAPTIVE: Final = "spark.sql.adaptive.enabled"
_ZONE: Final = "spark.sql.session.timeZone"
_ZONES: Final = ("UTC", "UTC", "America/New_York", "Asia/Kolkata")
_SHOWN: Final = 12
Rows = list[tuple[object, ...]]


class Difference(AssertionError):
    """A query that gave other rows than the same query over Parquet files."""


class _Refused(Exception):
    """A query was refused, as it may be."""


@dataclass(frozen=True)
class Relation:
    """One way of reading some logs."""

    name: str
    logs: tuple[str, ...]
    read: Callable[[], DataFrame]
    said: str
    columns: tuple[str, ...] = COLUMNS
    lowest: int | None = None
    below: int | None = None
    table: str | None = None
    """The name in the SQL catalog, where it has one."""
    kept: DataFrame | None = None
    """The frame that was made when the scene began; None: made for each query."""

    def wanted(self, records: Sequence[Record]) -> list[Record]:
        """Return those of its logs' records that it reads."""
        return [
            one
            for one in records
            if (self.lowest is None or one.transaction_id >= self.lowest)
            and (self.below is None or one.transaction_id < self.below)
        ]


class Scene:
    """Everything that one seed draws, over a session."""

    def __init__(
        self, spark: SparkSession, uri: str, seed: int, place: Path, *, catalog: str | None, name: str = FORMAT
    ) -> None:
        """`place` is a folder for files, `catalog` the SQL catalog's name, None where the session has no jar; `name` is
        that of the format."""
        self._spark = spark
        self._seed = seed
        self._rng = random.Random(f"oracle {seed}")
        self._place = place / f"seed-{seed}"
        self._catalog = catalog
        self._format = name
        self._uri = uri
        self._logs = OracleLogs(uri, self._rng)
        self._files: dict[str, str] = {}
        self._pushdown = False
        self._steps: list[str] = []
        self._outdated: set[str] = set()
        """Relations of which a log has lost records since their frame was made."""
        self.asked: Counter[str] = Counter()
        """How many queries there were, by kind."""
        self.refused = 0
        """How many of them were refused, as they may be."""
        self.trace = False
        """Whether to print queries before they are asked."""

    def play(self, queries: int = QUERIES) -> list[Difference]:
        """Ask so many queries; returns those that are not as they should be."""
        found: list[Difference] = []
        drawn = {_ZONE: self._rng.choice(_ZONES), _ADAPTIVE: str(self._rng.random() < 0.3).lower()}
        before = {key: self._spark.conf.get(key, None) for key in (*_CONFS, *drawn, PUSHDOWN)}
        try:
            for key, value in {**_CONFS, **drawn}.items():
                self._spark.conf.set(key, value)
            for _ in range(self._rng.choice((1, 2, 3))):
                self._logs.create()
            self._relations = [self._relation(f"r{number}") for number in range(4)]
            for _ in range(queries):
                try:
                    self._ask()
                except _Refused:
                    self.refused += 1
                except Difference as difference:
                    found.append(difference)
        finally:
            for key, earlier in before.items():
                self._spark.conf.unset(key) if earlier is None else self._spark.conf.set(key, earlier)
            for view in (f"logs_{one.name}" for one in getattr(self, "_relations", ())):
                self._spark.catalog.dropTempView(view)
            self._logs.delete_all()
            shutil.rmtree(self._place, ignore_errors=True)
        return found

    def _ask(self) -> None:
        self._pushdown = self._rng.random() < 0.5
        self._spark.conf.set(PUSHDOWN, str(self._pushdown).lower())
        if self._rng.random() < 0.3:
            self._change()
        kinds = {"plain": 70, "again": 8, "cached": 7, "stream": 4, "joined stream": 4, "table cache": 7}
        kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
        ask = {
            "plain": self._plain,
            "again": self._again,
            "cached": self._cached,
            "stream": self._stream,
            "joined stream": self._joined_stream,
            "table cache": self._table_cache if self._tables() else self._plain,
        }[kind]
        self.asked[kind] += 1
        ask()

    # ------------------------------------------------------------------ relations

    def _relation(self, name: str) -> Relation:
        """Draw one way of reading some of the logs, with options now and then."""
        rng = self._rng
        every = sorted(self._logs.logs)
        log = rng.choice(every)
        made = self._bounds(log) | rng.choice(({}, {}, {"minPartitions": "3"}, {"maxRecordsPerPartition": "4"}))
        ends = {
            "lowest": made.get("startingTransactionId", made.get("startingTimestamp")),
            "below": made.get("endingTransactionId", made.get("endingTimestamp")),
        }
        numbers = {side: None if end is None else int(end) for side, end in ends.items()}

        def reader() -> DataFrame:
            return self._spark.read.format(self._format).option("uri", self._uri).options(**made).load(log)

        found = Relation(name, (log,), reader, f"load({log}) {made}", lowest=numbers["lowest"], below=numbers["below"])
        way = rng.random()
        if self._catalog is not None and way < 0.45:
            table = f"{self._catalog}.{log}"
            if not made or rng.random() < 0.5:
                return Relation(name, (log,), lambda: self._spark.table(table), table, table=table)
            given = self._spark.read.options(**made)
            found = _with_ends(Relation(name, (log,), lambda: given.table(table), f"{table} {made}"), found)
        elif way < 0.6:
            options = (
                {"subscribe": ",".join(every)} if rng.random() < 0.5 else {"subscribePattern": f"{self._logs.prefix}.*"}
            )
            source = self._spark.read.format(self._format).option("uri", self._uri).options(**options)
            found = Relation(name, tuple(every), source.load, f"load() {options}")
        elif way < 0.7:
            some = tuple(one for one in COLUMNS if rng.random() < 0.5) or ("transaction_id",)
            found = _with_ends(
                Relation(name, (log,), lambda: reader().select(*some), f"{found.said} {some}", some), found
            )
        if rng.random() < 0.6:
            found = replace(found, kept=found.read())
        return found

    def _bounds(self, log: str) -> dict[str, str]:
        records = self._logs.logs[log].records
        if not records or self._rng.random() < 0.7:
            return {}
        low, high = sorted(self._rng.choice(records).transaction_id + self._rng.choice((0, 1)) for _ in range(2))
        kind = self._rng.choice(("TransactionId", "Timestamp"))
        return self._rng.choice(
            ({f"starting{kind}": str(low)}, {f"starting{kind}": str(low), f"ending{kind}": str(high)})
        )

    def _tables(self) -> list[Relation]:
        return [one for one in self._relations if one.table is not None]

    def _bound(self, tree: Tree, *, truth: bool) -> tuple[dict[str, DataFrame], dict[str, str]]:
        """Return the frames and the tables of the relations of a query; of the Parquet files with `truth`."""
        frames: dict[str, DataFrame] = {}
        names: dict[str, str] = {}
        asked = tree.relations()
        for one in self._relations:
            if one.name not in asked:
                continue
            side = "files" if truth else "logs"
            view = f"{side}_{one.name}"
            if truth:
                frames[one.name] = self._truth(one)
            else:
                frames[one.name] = one.read() if one.kept is None else one.kept
            names[one.name] = view if truth or one.table is None else one.table
            # A view over a frame that is kept is as old as the frame.
            if truth or one.kept is None or not self._spark.catalog.tableExists(view):
                frames[one.name].createOrReplaceTempView(view)
        return frames, names

    def _rows(self, one: Relation) -> list[Record]:
        return one.wanted([record for log in one.logs for record in self._logs.logs[log].records])

    def _truth(self, one: Relation, rows: Sequence[Record] | None = None) -> DataFrame:
        """Write the rows that a relation has now to a Parquet file."""
        table = table_of(self._rows(one) if rows is None else rows).select(list(one.columns))
        path = self._place / f"{len(self._files)}.parquet"
        key = f"{one.columns} {table.to_pydict()}"
        if key not in self._files:
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, path)
            self._files[key] = str(path)
        return self._spark.read.schema(_spark_schema(one.columns)).parquet(self._files[key])

    # ------------------------------------------------------------------ what changes

    def _change(self, *, in_sql: bool = True) -> None:
        """Append to a log; sometimes truncate it, or replace it by another one. `in_sql`: by `INSERT INTO` as well."""
        rng = self._rng
        name = rng.choice(sorted(self._logs.logs))
        kind = rng.random()
        if kind < 0.75:
            self._note(f"append to {name}")
            self._logs.append(name)
        elif kind < 0.85:
            self._note(f"truncate {name}")
            self._logs.truncate(name)
            self._lost(name)
        elif kind < 0.9:
            self._note(f"create {name} again")
            self._logs.create_again(name)
            self._lost(name)
        else:
            self._insert(name, in_sql=self._catalog is not None and self._rng.random() < 0.7 and in_sql)

    def _lost(self, log: str) -> None:
        self._outdated |= {one.name for one in self._relations if log in one.logs and one.kept is not None}

    def _insert(self, name: str, *, in_sql: bool) -> None:
        """Append by Spark's sink."""
        log = self._logs.logs[name]
        self._logs.free(name)
        rows = self._logs.values(log, self._rng.randint(1, 4))
        said = ", ".join(f"({txid}L, X'{value.hex()}')" for txid, value in rows)
        frame = self._spark.sql(f"SELECT * FROM VALUES {said} AS t(transaction_id, value)").coalesce(1)
        self._note(f"insert {len(rows)} rows into {name} {'in SQL' if in_sql else 'by format'}")
        if in_sql:
            self._spark.sql(f"INSERT INTO {self._catalog}.{name} (transaction_id, value) VALUES {said}")
        else:
            frame.write.format(self._format).option("uri", self._uri).mode("append").save(name)
        self._logs.appended_by_spark(name, rows)

    def _note(self, step: str) -> None:
        self._steps.append(step)
        self._say(step)

    def _say(self, what: str) -> None:
        if self.trace:
            print(f"seed {self._seed}, query {self.asked.total()}: {what}", flush=True)

    def _text(self, tree: Tree) -> str:
        return tree.sql({one.name: one.name for one in self._relations} | {"stream": "stream"})

    # ------------------------------------------------------------------ kinds of queries

    def _drawing(self) -> Drawing:
        seen = [record for log in self._logs.logs.values() for record in log.records[-30:]]
        return Drawing(self._rng, {one.name: one.columns for one in self._relations}, seen)

    def _plain(self) -> None:
        """Ask one query, by frames or in SQL."""
        tree = self._drawing().tree()
        self._compare(tree, in_sql=self._rng.random() < 0.5)

    def _again(self) -> None:
        """Ask one query again after a change: by another action of the same frames and views."""
        tree = self._drawing().tree()
        in_sql = self._rng.random() < 0.5
        self._compare(tree, in_sql=in_sql)
        self._change()
        self._compare(tree, in_sql=in_sql)

    def _cached(self) -> None:
        """Check that a cached frame keeps its rows while the logs change, and has the new ones afterwards."""
        tree = self._drawing().part(self._rng.choice((0, 1, 2)))
        frame, expected = self._made(tree, truth=False), _rows_of(self._made(tree, truth=True))
        with self._reported("cached", tree, expected):
            frame.cache()
            try:
                # A frame that was collected before keeps the plan of then, which fills no cache; another one does.
                self._same("when it is cached", tree, _rows_of(frame.select("*")), expected)
                self._change(in_sql=False)  # that has Spark fill the caches of its table anew: `_table_cache`
                self._same("while it is cached", tree, _rows_of(frame.select("*")), expected)
            finally:
                frame.unpersist(blocking=True)
        self._compare(tree, in_sql=False)

    def _table_cache(self) -> None:
        """Ask with `CACHE TABLE`, a change by others, `REFRESH TABLE`; `INSERT INTO` makes the cache anew by itself."""
        relation = self._rng.choice(self._tables())
        table = str(relation.table)
        tree = Leaf(relation.name, tuple(Column(name, name) for name in COLUMNS))
        self._note(f"CACHE TABLE {table}")
        self._spark.sql(f"CACHE TABLE {table}")
        try:
            self._compare(tree, in_sql=True)
            if self._rng.random() < 0.5:
                self._insert(relation.logs[0], in_sql=True)
            else:
                self._note(f"append to {relation.logs[0]}, REFRESH TABLE")
                self._logs.append(relation.logs[0])
                self._spark.sql(f"REFRESH TABLE {table}")
            self._compare(tree, in_sql=self._rng.random() < 0.5)
        finally:
            self._spark.sql(f"UNCACHE TABLE IF EXISTS {table}")
        self._compare(tree, in_sql=True)

    def _stream(self) -> None:
        """Read a log as a stream, into Parquet files or the memory; then again after an append."""
        log = self._rng.choice(sorted(self._logs.logs))
        by_table = self._rng.random() < 0.5
        stream = Relation("stream", (log,), lambda: self._streamed(log, by_table), f"stream of {log}")
        tree = self._stream_drawing(stream).rows_alone("stream")
        out = str(self._place / f"out-{len(self._steps)}-{self.asked['stream']}")
        self._note(f"stream of {log}")
        for round_ in range(2):
            if round_:
                self._logs.append(log)
            frame = tree.frame({"stream": stream.read()}, {})
            writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{out}-offsets")
            expected = _rows_of(tree.frame({"stream": self._truth(stream)}, {}))
            with self._reported(f"run {round_ + 1} of a stream", tree, expected):
                start(writer.option("path", out).trigger(availableNow=True)).awaitTermination()
            found = _rows_of(self._spark.read.schema(frame.schema).parquet(out))
            self._same(f"run {round_ + 1} of a stream", tree, found, expected)

    def _joined_stream(self) -> None:
        """Join a stream with a relation: each batch sees the relation's rows as they are then."""
        log = self._rng.choice(sorted(self._logs.logs))
        by_table = self._rng.random() < 0.5
        stream = Relation("stream", (log,), lambda: self._streamed(log, by_table), f"stream of {log}")
        fixed = self._rng.choice(self._relations)
        on = self._rng.choice(fixed.columns)
        how = self._rng.choice(("INNER", "LEFT", "LEFT SEMI"))
        left, right = (Leaf(one.name, tuple(Column(n, n) for n in one.columns)) for one in (stream, fixed))
        said = ["l.transaction_id AS c1", "l.sequence_id AS c2"]
        said += [] if how == "LEFT SEMI" else [f"r.{name} AS d{i}" for i, name in enumerate(fixed.columns)]
        tree = Join(left, right, how, f"l.{on} = r.{on}", tuple(said), ())
        frames, _ = self._bound(tree, truth=False)
        query = f"joined_{self._logs.prefix}{self.asked['joined stream']}"
        frame = tree.frame({**frames, "stream": stream.read()}, {})
        self._note(f"stream of {log} joined with {fixed.said}")
        running = start(frame.writeStream.format("memory").queryName(query))
        try:
            done: list[Record] = []
            expected: Rows = []
            for round_ in range(2):
                if round_:
                    # What is joined first: the stream's own records start the batch.
                    for name in (*(one for one in fixed.logs if one != log), log):
                        self._logs.append(name)
                new = [one for one in self._rows(stream) if one not in done]
                done += new
                batch = {"stream": self._truth(stream, new), fixed.name: self._truth(fixed)}
                expected += _rows_of(tree.frame(batch, {}))
                with self._reported(f"batch {round_ + 1} of a stream", tree, expected):
                    running.processAllAvailable()
                self._same(f"batch {round_ + 1} of a stream", tree, _rows_of(self._spark.table(query)), expected)
        finally:
            running.stop()
            self._spark.catalog.dropTempView(query)

    def _streamed(self, log: str, by_table: bool) -> DataFrame:
        if by_table and self._catalog is not None:
            return self._spark.readStream.table(f"{self._catalog}.{log}")
        return self._spark.readStream.format(self._format).option("uri", self._uri).load(log)

    def _stream_drawing(self, stream: Relation) -> Drawing:
        return Drawing(self._rng, {"stream": stream.columns}, self._logs.logs[stream.logs[0]].records[-30:])

    # ------------------------------------------------------------------ comparing

    def _made(self, tree: Tree, *, truth: bool, in_sql: bool = False) -> DataFrame:
        frames, names = self._bound(tree, truth=truth)
        if in_sql:
            return self._spark.sql(tree.sql(names))
        return tree.frame(frames, names)

    def _compare(self, tree: Tree, *, in_sql: bool) -> None:
        self._say(f"{'in SQL' if in_sql else 'by frames'}, pushdown {self._pushdown}: {self._text(tree)}")
        expected = _rows_of(self._made(tree, truth=True, in_sql=in_sql))
        whole = tree.child if isinstance(tree, AnyOf) else None
        with self._reported("in SQL" if in_sql else "by frames", tree, expected):
            found = _rows_of(self._made(tree, truth=False, in_sql=in_sql))
        if whole is not None:
            all_rows = _rows_of(self._made(whole, truth=True, in_sql=in_sql))
            if len(found) != len(expected) or Counter(map(repr, found)) - Counter(map(repr, all_rows)):
                raise self._difference("some rows", tree, found, all_rows)
            return
        self._same("in SQL" if in_sql else "by frames", tree, found, expected, ordered=isinstance(tree, First))

    def _same(self, what: str, tree: Tree, found: Rows, expected: Rows, *, ordered: bool = False) -> None:
        same = found == expected if ordered else sorted(map(repr, found)) == sorted(map(repr, expected))
        if not same:
            raise self._difference(what, tree, found, expected)

    @contextmanager
    def _reported(self, what: str, tree: Tree, expected: Rows) -> Iterator[None]:
        """Report an error of the query as a difference too: the same one over Parquet had none.

        A plan that Spark keeps, and that has records which the log has lost, is refused: without the jar that of any
        query of a frame, with it that of the very same frame object.
        """
        try:
            yield
        except Difference:
            raise
        except Exception as error:
            outdated = tree.relations() & self._outdated
            kept = self._catalog is None or isinstance(tree, Leaf)
            if kept and "OutdatedPlanError" in str(error) and outdated:
                self._load_again(outdated)
                raise _Refused from error
            raise self._difference(what, tree, [(type(error).__name__, str(error)[:3000])], expected) from error

    def _load_again(self, relations: set[str]) -> None:
        """Load a relation again, as the refusal says."""
        self._outdated -= relations
        for number, one in enumerate(self._relations):
            if one.name in relations:
                self._relations[number] = replace(one, kept=one.read())
                self._spark.catalog.dropTempView(f"logs_{one.name}")

    def _difference(self, what: str, tree: Tree, found: Rows, expected: Rows) -> Difference:
        relations = "\n".join(
            f"  {one.name}: {'kept ' if one.kept is not None else ''}{one.said}" for one in self._relations
        )
        return Difference(
            f"seed {self._seed}, query {self.asked.total()}, {what}, pushdown {self._pushdown}, "
            f"catalog {self._catalog}, zone {self._spark.conf.get(_ZONE)}\n"
            f"steps: {'; '.join(self._steps[-6:]) or 'none'}\n{relations}\n{self._text(tree)}\n"
            f"logs:    {_shown(found)}\nParquet: {_shown(expected)}"
        )


def _with_ends(made: Relation, ends: Relation) -> Relation:
    """Return `made` with the same lowest and end of transaction ids as `ends`."""
    return replace(made, lowest=ends.lowest, below=ends.below)


def _spark_schema(columns: Sequence[str]) -> str:
    kinds = {"log": "string", "timestamp": "timestamp", "value": "binary"}
    return ", ".join(f"{name} {kinds.get(name, 'bigint')}" for name in columns)


def _rows_of(frame: DataFrame) -> Rows:
    """Return the rows of a frame as plain values. Arrow would be faster, but waits for ever without a partition."""
    return [tuple(bytes(one) if isinstance(one, bytearray) else one for one in row) for row in frame.collect()]


def _shown(rows: Rows) -> str:
    some = [repr(row) if len(repr(row)) < 3000 else repr(row)[:3000] for row in sorted(rows, key=repr)[:_SHOWN]]
    return f"{len(rows)} rows: {', '.join(some)}{' ...' if len(rows) > _SHOWN else ''}"
