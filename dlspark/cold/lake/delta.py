"""`DeltaLakeTable`: cold files as a Delta table, through deltalake, without a catalog.

A log's watermark is the version of a `txn` action, `dlspark/<table id>/<log id>`, in the commit that adds the files.
Commits are sent with no repetition inside: then deltalake makes exactly the version behind the one that was loaded, or
fails, and the file of a version can be made once (`delta_stores`). So the head that a commit depends on is the version.

Files are named by their whole addresses, outside of the table's folder: `vacuum` deletes what lies in that folder
alone. Delta knows columns by their names here (deltalake writes no column mapping), so the table can follow new
columns only. A column that is renamed or widened in the log ends the sync of the table, and says what to do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

from dlspark.cold.lake.columns import PARTITION
from dlspark.cold.lake.delta_stores import delta_options, is_served, try_store
from dlspark.cold.lake.planning import TableChanges, TableState, moved_to
from dlspark.cold.lake.targets import (
    TABLE_ID,
    WATERMARKS,
    AppliedChanges,
    FileFigures,
    TableMovedError,
    TableUnclearError,
    TableUnreachableError,
    settle_changes,
    sought_files,
)
from metadata.foundation.errors import CallerError, DistributedLogError, present

T = TypeVar("T")

FIELD_ID: Final = "parquet.field.id"
_HISTORY: Final = 50
_CHECKPOINTS: Final = 100


class DeltaLakeTable:
    """How do I add cold files to a Delta table? A `LakeTable`.

    Args:
        address: of the table's folder.
        table_id: the declaration's id, which the table has in its configuration.
        grouped: whether it is partitioned by log.
        options: of the store.
    """

    def __init__(self, address: str, table_id: str, grouped: bool, options: Mapping[str, str]) -> None:
        self._address = address
        self._table_id = table_id
        self._grouped = grouped
        self._options = delta_options(address, options)
        self._table: DeltaTable | None = None

    def ensure(self, columns: pa.Schema) -> None:
        """Make the table, if it is not there."""
        try:
            self._open()
            return
        except TableNotFoundError:
            pass
        schema = _delta_schema(columns, self._grouped)
        try_store(self._address, self._options)
        try:
            DeltaTable.create(
                self._address,
                schema,
                mode="error",
                partition_by=[PARTITION] if self._grouped else None,
                configuration={TABLE_ID: self._table_id, "delta.checkpointInterval": str(_CHECKPOINTS)},
                storage_options=self._options or None,
                commit_properties=CommitProperties(custom_metadata={TABLE_ID: self._table_id}),
                raise_if_key_not_exists=False,
            )
        except Exception as error:
            # Another client's, or our own with a lost answer: `_open` tells, and so where nothing came of it.
            try:
                self._open()
            except TableNotFoundError:
                raise self._unreachable_error(error) from error
        self._open()

    def _open(self) -> DeltaTable:
        table = self._asked(lambda: DeltaTable(self._address, storage_options=self._options or None))
        said = self._asked(lambda: table.metadata().configuration.get(TABLE_ID))
        if said != self._table_id:
            raise CallerError(
                f"The Delta table at {self._address} is not the one that was declared: its {TABLE_ID} is {said!r}; "
                "nothing was changed",
                advice="Declare another place, or drop what stands there",
            )
        self._table = table
        return table

    def load(self) -> TableState:
        """Load the table. CallerError where it is gone, or not ours any more."""
        try:
            table = self._open()
        except TableNotFoundError as error:
            raise CallerError(
                f"There is no Delta table at {self._address} any more; nothing was done",
                advice="dlspark cold table create makes it anew, with all that is cold; or drop the declaration",
            ) from error
        actions = self._asked(lambda: _actions(table))
        return TableState(
            str(table.version()),
            _Watermarks(self, table),
            frozenset(),  # what is settled is looked for again: all paths are in memory here
            sum(one.get("num_records") or 0 for one in actions),
            len(actions),
            tuple(self._findings(table)),
        )

    def _findings(self, table: DeltaTable) -> list[str]:
        foreign = [
            f"version {one['version']} {one.get('operation', '?')}"
            for one in self._asked(lambda: table.history(_HISTORY))
            if one.get(TABLE_ID) != self._table_id
        ]
        if not foreign:
            return []
        return [f"the table was changed from outside (of its last {_HISTORY} versions: {', '.join(foreign[:5])})"]

    def watermark(self, table: DeltaTable, log_id: str) -> int | None:
        """Return the last segment of a log that the table has; None for none."""
        return self._asked(lambda: table.transaction_version(self._app(log_id)))

    def named(self, urls: Collection[str] | None) -> set[str]:
        """Return which files the table names."""
        table = present(self._table, "a table is asked before it was loaded")
        there = {str(one["path"]) for one in self._asked(lambda: _actions(table))}
        return there if urls is None else there & set(urls)

    def evolve(self, state: TableState, columns: pa.Schema) -> bool:
        """Add the columns that the table lacks. CallerError where a column was renamed or is of another type."""
        table = present(self._table, "a table is changed before it was loaded")
        wanted = _delta_schema(columns, self._grouped)
        there = {one.name: one for one in table.schema().fields}
        by_id = {_id(one): one for one in table.schema().fields if _id(one) is not None}
        new: list[Field] = []
        for one in wanted.fields:
            old = there.get(one.name)
            if old is None:
                former = by_id.get(_id(one))
                if former is not None:
                    raise _cannot_follow_error(self._address, f"column {former.name} is called {one.name} by now")
                new.append(one)
            elif _plain(old) != _plain(one) or _id(old) != _id(one):
                raise _cannot_follow_error(self._address, f"column {one.name} has another type, or is another column")
        if not new:
            return False
        self._send(lambda: table.alter.add_columns(new, commit_properties=self._properties({})))
        return True

    def commit(
        self, state: TableState, changes: TableChanges, figures: Mapping[str, FileFigures]
    ) -> AppliedChanges | None:
        """Apply changes in one version."""
        table = present(self._table, "a table is changed before it was loaded")
        there = {str(one["path"]): one for one in self._asked(lambda: _actions(table))}
        sought = sought_files(changes)
        gone, come = settle_changes(changes, {url for url in there if url in sought})
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = []
        for file in come:
            one = figures[file.url]
            values = {PARTITION: one.log} if self._grouped else {}
            said = _statistics(one.parquet, file.rows)
            actions.append(AddAction(file.url, file.bytes, values, now_ms, True, said))
        for url in sorted(gone):
            action = there[url]
            part: dict[str, str | None] = {PARTITION: action[f"partition.{PARTITION}"]} if self._grouped else {}
            actions.append(RemoveAction(url, True, now_ms, action["size_bytes"], part))
        if not actions and all((state.watermarks.get(log, -1)) >= at for log, at in changes.watermarks.items()):
            return None  # what was looked for is not there, and nothing has to be kept out
        marks = {log: moved_to(state, changes).watermarks[log] for log in changes.watermarks}
        self._send(
            lambda: table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=[PARTITION] if self._grouped else None,
                commit_properties=self._properties(marks),
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        )
        return AppliedChanges.of(changes, gone, come)

    def close(self) -> None:
        """Forget the table: a store's connections go with it."""
        self._table = None

    def _properties(self, marks: Mapping[str, int]) -> CommitProperties:
        said: dict[str, Any] = {TABLE_ID: self._table_id, WATERMARKS: json.dumps(dict(marks), separators=(",", ":"))}
        # No repetition inside: deltalake would make a later version of it, planned with a head that is not the table's.
        return CommitProperties(
            custom_metadata=said,
            max_commit_retries=0,
            app_transactions=[Transaction(self._app(log_id), at) for log_id, at in marks.items()],
        )

    def _app(self, log_id: str) -> str:
        return f"dlspark/{self._table_id}/{log_id}"

    def _send(self, commit: Callable[[], None]) -> None:
        try:
            commit()
        except CommitFailedError as error:
            if is_served(self._address):
                # Below, requests are repeated: it may be our own one, done at the first try, that stood in the way.
                raise TableUnclearError(
                    f"The Delta table at {self._address} was changed meanwhile: by another commit, or by this one"
                ) from error
            raise TableMovedError(
                f"The Delta table at {self._address} was changed meanwhile; this commit was not applied"
            ) from error
        except Exception as error:
            # Whatever it is called: the file of the version may have been made.
            raise TableUnclearError(
                f"The commit to the Delta table at {self._address} may have been applied, or not: {error}"
            ) from error

    def _asked(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except (TableNotFoundError, DistributedLogError):
            raise
        except Exception as error:
            raise self._unreachable_error(error) from error

    def _unreachable_error(self, error: Exception) -> TableUnreachableError:
        return TableUnreachableError(
            f"The Delta table at {self._address} could not be asked: {error}; nothing was added",
            advice="Look whether its store can be reached from here; then sync again",
        )


class _Watermarks(Mapping[str, int]):
    """Watermarks as they are asked for: Delta has them by name only."""

    def __init__(self, owner: DeltaLakeTable, table: DeltaTable) -> None:
        self._owner = owner
        self._table = table
        self._known: dict[str, int | None] = {}

    def __getitem__(self, log_id: str) -> int:
        if log_id not in self._known:
            self._known[log_id] = self._owner.watermark(self._table, log_id)
        found = self._known[log_id]
        if found is None:
            raise KeyError(log_id)
        return found

    def __iter__(self) -> Any:
        return iter([log_id for log_id, at in self._known.items() if at is not None])

    def __len__(self) -> int:
        return sum(at is not None for at in self._known.values())


def _actions(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return found


def _delta_schema(columns: pa.Schema, grouped: bool) -> Schema:
    fields = list(Schema.from_arrow(columns).fields)
    return Schema([*fields, Field(PARTITION, PrimitiveType("string"))] if grouped else fields)


def _id(one: Field) -> int | None:
    said = one.metadata.get(FIELD_ID)
    return None if said is None else int(said)


def _plain(one: Field) -> object:
    """Return a field's type without ids, which Delta may keep or not."""

    def bare(found: object) -> object:
        if isinstance(found, dict):
            return {key: bare(value) for key, value in found.items() if key != "metadata"}
        return [bare(value) for value in found] if isinstance(found, list) else found

    return bare(json.loads(one.to_json())["type"])


def _statistics(parquet: pq.FileMetaData, rows: int) -> str:
    """Return Delta's statistics: rows, and the bounds of whole numbers, `_log`'s among them."""
    bounds: dict[str, list[int] | None] = {}
    for number in range(parquet.num_row_groups):
        group = parquet.row_group(number)
        for at in range(group.num_columns):
            chunk = group.column(at)
            path = chunk.path_in_schema
            if "." in path and not path.startswith("_log."):
                continue
            statistics = chunk.statistics if chunk.is_stats_set else None
            whole = chunk.physical_type in ("INT32", "INT64") and statistics is not None and statistics.has_min_max
            if statistics is None or not whole or type(statistics.min) is not int or bounds.get(path, ()) is None:
                bounds[path] = None
                continue
            low, high = bounds.get(path) or [statistics.min, statistics.max]
            bounds[path] = [min(low, statistics.min), max(high, statistics.max)]
    said: dict[str, Any] = {"numRecords": rows, "minValues": {}, "maxValues": {}}
    for path, one in bounds.items():
        if one is None:
            continue
        for key, value in (("minValues", one[0]), ("maxValues", one[1])):
            *above, name = path.split(".")
            place = said[key]
            for part in above:
                place = place.setdefault(part, {})
            place[name] = value
    return json.dumps(said, separators=(",", ":"))


def _cannot_follow_error(address: str, what: str) -> CallerError:
    return CallerError(
        f"The Delta table at {address} knows columns by their names, and {what}; no file was added",
        advice="Declare an Iceberg table, which follows any change of the log's schema; or drop this declaration and "
        "leave the table as it is, and declare another one",
    )
