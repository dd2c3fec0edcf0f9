"""How a sink's frame is taken: as bytes or as a log's own columns, decided on the planner, and cut by log in the tasks.

A frame is **typed** where its log declares a schema, unless it has a column `value` that the log does not declare; the
option `columns` says it outright. Where rows name their logs (column `log`), what these declare is not known on the
planner: a frame with a column `value` has bytes then, and any other one is typed.

A frame of bytes is taken as ever, and loads nothing of `dlspark.tables`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql.types import StringType, StructType

from dlspark.spark.errors import OptionError, SchemaError
from dlspark.spark.options.column_choice import COLUMNS, ColumnChoice
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.columns import SinkColumns, TypedFrame, columns_of, route_of, routing_of
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import InvariantViolation

if TYPE_CHECKING:
    import pyarrow as pa

    from dlspark.spark.sink.log_rows import LogRows
    from dlspark.spark.sink.row_encoding import FindDeclared
    from dlspark.tables.declaration import Declaration

_SYSTEM: Final = ("_log", "_error")
"""What readers put beside a log's own columns."""

Cut: TypeAlias = "Callable[[pa.RecordBatch], list[LogRows]]"
Declared = Mapping[str, "Declaration | None"]


def wanted_columns(options: Options) -> ColumnChoice | None:
    """Return what the option `columns` says, RAW or TYPED; None: nothing. Raises OptionError."""
    found = options.columns
    if found is not ColumnChoice.BOTH:
        return found
    if options.asked(COLUMNS):
        raise OptionError(
            "Option columns=both is for reading: rows are written as bytes or as the log's own columns",
            advice="Give raw or typed, or leave it out",
        )
    return None  # a session's default, for what it reads


def known_logs(options: Options) -> tuple[str, ...]:
    """Return the logs that options or path name: all that rows may go to, where they do not name them themselves."""
    routing, one = routing_of(options), options.one_log()
    if routing is not None:
        return routing.logs
    return () if one is None else (LogStore.validate_name(one),)


class FramePlan:
    """Is a frame typed, and does it fit its logs? Made with what needs no look; then `decide`.

    Raises OptionError, SchemaError or InvalidLogNameError for a frame that no declaration could make fit.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._schema = schema
        self._wanted = wanted_columns(options)
        self._routing = routing_of(options)
        self._one_log = None if self._routing is not None else options.one_log()
        self._proxied = options.proxies is not None
        self.logs = known_logs(options)
        self.raw: SinkColumns | None = None
        """The frame as bytes; None: it cannot be."""
        self._raw_error: SchemaError | None = None
        if self._wanted is not ColumnChoice.TYPED:
            try:
                self.raw = columns_of(schema, self._one_log, self._routing)
            except SchemaError as error:
                self._raw_error = error
        if self._wanted is ColumnChoice.RAW and self._raw_error is not None:
            raise self._raw_error

    @property
    def looks(self) -> bool:
        """Whether it matters what the logs declare."""
        return self._wanted is not ColumnChoice.RAW and bool(self.logs)

    def decide(self, declared: Declared) -> SinkColumns:
        """Return where the columns are. `declared` is what the logs declare, where that matters. Raises SchemaError."""
        if self._wanted is not None:
            return self._typed(declared) if self._wanted is ColumnChoice.TYPED else self._bytes()
        if self._value and not self._has_declared_value(declared):
            return self._bytes()
        if self.logs and self._raw_error is not None and not any(declared.values()):
            error = self._raw_error
            raise SchemaError(
                error.message, advice=f"{error.advice}; or declare the log's columns, and write them as they are"
            )
        return self._typed(declared)

    def _bytes(self) -> SinkColumns:
        if self.raw is None:
            raise self._raw_error or InvariantViolation("a frame of bytes was not looked at")
        return self.raw

    @property
    def _value(self) -> bool:
        return "value" in {name.lower() for name in self._schema.names}

    def _has_declared_value(self, declared: Declared) -> bool:
        """Return whether each log declares the frame's column `value` as its own. Raises SchemaError where only some
        do."""
        if not self._value or not declared:
            return False
        found = {log: one is not None and one.current.column("value") is not None for log, one in declared.items()}
        if len(set(found.values())) > 1:
            has, has_not = (next(log for log, own in found.items() if own is wanted) for wanted in (True, False))
            raise SchemaError(
                f"Log {has} declares a column value, and log {has_not} does not: whether the frame's is bytes cannot "
                "be said; no task was started",
                advice='Say it: option("columns", "raw") or option("columns", "typed")',
            )
        return next(iter(found.values()))

    def _typed(self, declared: Declared) -> SinkColumns:
        from dlspark.spark.sink.row_encoding import check_fits

        schema = self._schema
        for name in schema.names:
            if name.lower() in _SYSTEM:
                raise SchemaError(
                    f"The frame has a column {name}, which says where a row was read: no log has such a column; no "
                    "task was started",
                    advice=f'Drop it: df.drop("{_SYSTEM[0]}", "{_SYSTEM[1]}")',
                )
        keys = () if self._routing is None else self._routing.keys
        known: dict[str, Declaration] = {}
        for log in self.logs:
            declaration = declared.get(log)
            if declaration is None:
                said, advice = undeclared_words("no task was started")
                raise SchemaError(said, log=log, advice=advice)
            check_fits(log, schema, keys, declaration)
            known[log] = declaration
        places = {name.lower(): place for place, name in enumerate(schema.names)}
        by_column = None if self.logs else self._log_column(places)
        route = None if self._routing is None else route_of(self._routing, schema.fields, None)
        typed = TypedFrame(tuple(schema.names), keys, known)
        return SinkColumns(-1, places.get("transaction_id"), by_column, self._one_log, route, typed)

    def _log_column(self, places: Mapping[str, int]) -> int:
        place = places.get("log")
        if place is None or not isinstance(self._schema.fields[place].dataType, StringType):
            raise self._raw_error or SchemaError(
                "No log to write to: there is neither an option or path that names one, nor a string column log",
                advice='Give option("log", "name"), or save("name"), or add a string column log',
            )
        if self._proxied:
            raise OptionError(
                "Rows that name their logs are encoded by what each declares, which tasks ask of ZooKeeper, and "
                "through proxies they ask nothing of it",
                advice='Name the log: option("log", "name"), a query for each log; or leave proxy out',
            )
        return place


def undeclared_words(what_not: str) -> tuple[str, str]:
    """Return what the error says, and advises, for a typed frame of a log that declares no columns."""
    return (
        f"The frame's columns are to be encoded as the log declares, and it declares no schema; {what_not}",
        'Declare one (CREATE TABLE, or `dlspark log schema set`); or pack the columns: to_json(struct("*")) as value',
    )


def packs_rows(columns: SinkColumns) -> bool:
    """Return whether a log is known whose records hold many rows: one row each would be a poor way to write it."""
    if columns.typed is None:
        return False
    return any(declaration.format.value == "arrow" for declaration in columns.typed.declared.values())


def takes_ids_from_column(columns: SinkColumns, log: str) -> bool:
    """Return whether the log is known to take the ids of these rows from a column that it declares."""
    found = None if columns.typed is None else columns.typed.declared.get(log)
    return found is not None and found.timestamp_field(found.current) is not None


def cutter(columns: SinkColumns, task: str, find: FindDeclared | None = None, *, one_row: bool = False) -> Cut:
    """Return what cuts a task's Arrow batches by log. `find` and `one_row` as `FrameEncoder` takes them."""
    if columns.typed is None:
        from dlspark.spark.sink.log_rows import rows_by_log

        return functools.partial(rows_by_log, columns=columns, task=task)
    from dlspark.spark.sink.row_encoding import FrameEncoder

    return FrameEncoder(columns, task, find or _nothing_to_find, one_row=one_row).rows_by_log


def _nothing_to_find(logs: object) -> Mapping[str, Declaration]:
    raise InvariantViolation(f"what {logs} declare was to be known from the start")
