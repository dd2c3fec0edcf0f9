"""`IcebergTable`: cold files as an Iceberg table, format 2, through pyiceberg.

What the table says of itself lies in its properties (`dlspark.state`), set by the very commit that adds the files,
so it outlives `expire_snapshots`; each snapshot's summary has the watermarks that it moved. Commits go to the catalog
as updates with requirements, one request each, and are never repeated here: pyiceberg's own commit repeats after a
conflict, and deletes the manifests of what it takes for a failure, which may be the commit that was applied.

The manifests that a commit which was not applied has written stay in the table's metadata folder: unreferenced, some
kilobytes each. To delete them would be safe only after certain failures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    UnauthorizedError,
    ValidationError,
)
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform

from dlspark.cold.lake.iceberg_files import data_file
from dlspark.cold.lake.planning import TableChanges, TableState, moved_to
from dlspark.cold.lake.targets import (
    STATE,
    TABLE_ID,
    WATERMARKS,
    AppliedChanges,
    FileFigures,
    SoughtFiles,
    TableMovedError,
    TableUnclearError,
    TableUnreachableError,
    settle_changes,
    sought_files,
)
from metadata.foundation.errors import CallerError, DistributedLogError, present

T = TypeVar("T")

PROPERTIES: Final = {
    "format-version": "2",
    # The files are the log's. An engine that keeps to this deletes none of them (expire_snapshots, drop with purge).
    "gc.enabled": "false",
    "external.table.purge": "false",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_REFUSED: Final = (BadRequestError, ForbiddenError, UnauthorizedError, ValidationError)
_PARTITION_FIELD: Final = 1000


@dataclass(frozen=True, slots=True)
class _OwnState:
    """What our last commit left in the table's properties. `schema`: `_digest` of the columns that it left; the ids of
    schemas are the catalog's to give."""

    watermarks: Mapping[str, int]
    settled: frozenset[str]
    rows: int
    files: int
    snapshot: int | None
    schema: str

    def encode(self) -> str:
        """Return it as a property."""
        fields = {
            "v": 2,
            "logs": dict(self.watermarks),
            "settled": sorted(self.settled),
            "rows": self.rows,
            "files": self.files,
            "snapshot": self.snapshot,
            "schema": self.schema,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> _OwnState:
        """Read what `encode` makes; KeyError, TypeError or ValueError for anything else."""
        said: dict[str, Any] = json.loads(text)
        if said["v"] not in (1, 2):
            raise ValueError("of another version")
        marks = {str(log): int(at) for log, at in said["logs"].items()}
        snapshot = None if said["snapshot"] is None else int(said["snapshot"])
        schema = str(said["schema"]) if said["v"] == 2 else ""  # the first version had its number, which says little
        return cls(marks, frozenset(said["settled"]), int(said["rows"]), int(said["files"]), snapshot, schema)


class IcebergTable:
    """How do I add cold files to an Iceberg table? A `LakeTable`.

    Args:
        catalog: where the table is listed.
        identifier: its name there, `namespace.table`.
        table_id: the declaration's id, which the table has as a property.
        grouped: whether it is partitioned by log.
        location: where its metadata goes; None: where the catalog says.
    """

    def __init__(
        self, catalog: Catalog, identifier: str, table_id: str, grouped: bool, location: str | None = None
    ) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._table_id = table_id
        self._grouped = grouped
        self._location = location
        self._table: Table | None = None
        self._own: _OwnState | None = None

    # ---------------------------------------------------------------- making it

    def ensure(self, columns: pa.Schema) -> None:
        """Make the table, if it is not there: with the files' own field ids, which a catalog's `create` would not
        keep."""
        try:
            self._open()
            return
        except NoSuchTableError:
            pass
        self._asked(lambda: self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0]))
        self._asked(lambda: self._create(pyarrow_to_schema(columns)))
        self._open()

    def _create(self, schema: Schema) -> None:
        spec = PartitionSpec()
        if self._grouped:
            source = schema.find_field("_log.log").field_id
            part = PartitionField(source, _PARTITION_FIELD, IdentityTransform(), "_log.log")
            spec = PartitionSpec(part, spec_id=0)
        own = _OwnState({}, frozenset(), 0, 0, None, _digest(schema))
        properties = {**PROPERTIES, TABLE_ID: self._table_id, STATE: own.encode()}
        transaction = self._catalog.create_table_transaction(
            self._identifier, schema, location=self._location, properties=properties
        )
        own_updates: list[TableUpdate] = []
        for one in transaction._updates:
            # pyiceberg has numbered the fields anew: the files' ids come back.
            if isinstance(one, AddSchemaUpdate):
                own_updates.append(AddSchemaUpdate(schema=schema))
            elif isinstance(one, AddPartitionSpecUpdate):
                own_updates.append(AddPartitionSpecUpdate(spec=spec))
            else:
                own_updates.append(one)
        transaction._updates = tuple(own_updates)
        try:
            transaction.commit_transaction()
        except Exception as error:
            try:
                self._catalog.load_table(self._identifier)  # another client's, or our own with a lost answer: `_open`
            except Exception:
                raise error from None

    # ---------------------------------------------------------------- reading

    def _open(self) -> Table:
        table = self._asked(lambda: self._catalog.load_table(self._identifier))
        if table.properties.get(TABLE_ID) != self._table_id:
            raise CallerError(
                f"Iceberg table {self._identifier} is not the one that was declared: its property {TABLE_ID} is "
                f"{table.properties.get(TABLE_ID)!r}; nothing was changed",
                advice="Declare it under another name (--as), or drop what stands there",
            )
        try:
            own = _OwnState.decode(table.properties[STATE])
        except (KeyError, TypeError, ValueError) as error:
            raise CallerError(
                f"Iceberg table {self._identifier} does not say any more which files it has: its property {STATE} was "
                "changed or removed from outside; nothing was added, for a file might be there already",
                advice="Drop the declaration (dlspark cold table drop) and declare a new table",
            ) from error
        self._table, self._own = table, own
        return table

    def load(self) -> TableState:
        """Load the table. CallerError where it is gone, or not ours any more."""
        try:
            table = self._open()
        except NoSuchTableError as error:
            raise CallerError(
                f"Iceberg table {self._identifier} is not in its catalog any more; nothing was done",
                advice="dlspark cold table create makes it anew, with all that is cold; or drop the declaration",
            ) from error
        own = present(self._own, "a table was loaded without its state")
        head = table.current_snapshot()
        summary = {} if head is None or head.summary is None else head.summary.additional_properties
        return TableState(
            str(None if head is None else head.snapshot_id),
            own.watermarks,
            own.settled,
            int(summary.get("total-records", 0)),
            int(summary.get("total-data-files", 0)),
            tuple(self._findings(table, own)),
        )

    def _findings(self, table: Table, own: _OwnState) -> list[str]:
        found: list[str] = []
        head = now = table.current_snapshot()
        head_id = None if head is None else head.snapshot_id
        if head_id != own.snapshot:
            said: list[str] = []
            while head is not None and head.snapshot_id != own.snapshot and len(said) < 10:
                said.append("?" if head.summary is None else head.summary.operation.value)
                head = None if head.parent_snapshot_id is None else table.snapshot_by_id(head.parent_snapshot_id)
            found.append(f"the table was changed from outside: its last snapshots are {', '.join(said) or 'gone'}")
        summary = {} if now is None or now.summary is None else now.summary.additional_properties
        for key, ours, what in (("total-records", own.rows, "rows"), ("total-data-files", own.files, "files")):
            there = int(summary.get(key, 0))
            if there != ours:
                found.append(f"the table has {there} {what}, and the log's sync left {ours}")
        deletes = int(summary.get("total-delete-files", 0))
        if deletes:
            found.append(f"the table has {deletes} delete files, which hide rows that the log still has")
        if own.schema not in ("", _digest(table.schema())):
            found.append(
                "the table's schema was changed from outside; it is left as it is, and follows the log no more"
            )
        if (collects := table.properties.get("gc.enabled")) != "false":
            found.append(f"property gc.enabled is {collects!r}: an engine may delete the log's files")
        return found

    def named(self, urls: Collection[str] | None) -> set[str]:
        """Return which files the table names: reads its manifests."""
        return {one.file_path for one in self._asked(lambda: self._entries(urls))}

    def _entries(self, urls: Collection[str] | SoughtFiles | None) -> list[DataFile]:
        table = present(self._table, "a table is asked before it was loaded")
        head = table.current_snapshot()
        if head is None or (urls is not None and not urls):
            return []
        return [
            entry.data_file
            for manifest in head.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            if urls is None or entry.data_file.file_path in urls
        ]

    # ---------------------------------------------------------------- changing

    def evolve(self, state: TableState, columns: pa.Schema) -> bool:
        """Have the table show these columns. Left alone where somebody else has changed its schema: then CallerError if
        a column that both have differs."""
        table = present(self._table, "a table is changed before it was loaded")
        own = present(self._own, "a table is changed before it was loaded")
        wanted = pyarrow_to_schema(columns)
        if table.schema().as_struct() == wanted.as_struct():
            return False
        if own.schema not in ("", _digest(table.schema())):
            _check_fits(table.schema(), wanted)
            return False
        number = max(one.schema_id for one in table.metadata.schemas) + 1
        known = next((one.schema_id for one in table.metadata.schemas if one.as_struct() == wanted.as_struct()), None)
        after = replace(own, schema=_digest(wanted))
        updates: list[TableUpdate] = []
        if known is None:
            updates.append(AddSchemaUpdate(schema=Schema(*wanted.fields, schema_id=number)))
        updates += [
            SetCurrentSchemaUpdate.model_validate({"schema-id": -1 if known is None else known}),
            SetPropertiesUpdate(updates={STATE: after.encode()}),
        ]
        requirements: list[TableRequirement] = [
            AssertTableUUID(uuid=table.metadata.table_uuid),
            _schema_is(table),
            # The property is set beside: nobody else's may be lost by it.
            AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": _head_id(table)}),
        ]
        self._send(table, requirements, updates)
        return True

    def commit(
        self, state: TableState, changes: TableChanges, figures: Mapping[str, FileFigures]
    ) -> AppliedChanges | None:
        """Apply changes in one commit: one request to the catalog, behind the writing of its manifests."""
        table = present(self._table, "a table is changed before it was loaded")
        own = present(self._own, "a table is changed before it was loaded")
        there = self._asked(lambda: self._entries(sought_files(changes)))
        gone, come = settle_changes(changes, {one.file_path for one in there})
        leaving = [one for one in there if one.file_path in gone]
        moved = {log: str(at) for log, at in changes.watermarks.items()}
        after = moved_to(state, changes)

        def build() -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...], int]:
            transaction = table.transaction()
            summary = {WATERMARKS: json.dumps(moved, separators=(",", ":")), TABLE_ID: self._table_id}
            update = transaction.update_snapshot(snapshot_properties=summary)
            producer = update.overwrite() if leaving else update.merge_append()
            for file in come:
                one = figures[file.url]
                producer.append_data_file(
                    data_file(
                        file.url,
                        file.bytes,
                        one.log if self._grouped else None,
                        one.parquet,
                        one.columns,
                        table.schema(),
                        table.metadata.default_spec_id,
                    )
                )
            for entry in leaving:
                producer.delete_data_file(entry)
            updates, requirements = producer._commit()
            return updates, requirements, producer.snapshot_id

        updates, requirements, snapshot = self._asked(build)
        rows = state.rows + sum(one.rows for one in come) - sum(one.record_count for one in leaving)
        # What somebody else has changed stays a finding: only from a table as we left it do we say what is there now.
        untouched = _head_id(table) == own.snapshot
        left = _OwnState(
            after.watermarks,
            after.settled,
            rows if untouched else own.rows + rows - state.rows,
            (state.files if untouched else own.files) + len(come) - len(leaving),
            snapshot if untouched else own.snapshot,
            own.schema,
        )
        own_updates = (*updates, SetPropertiesUpdate(updates={STATE: left.encode()}))
        # The schema too: a change of it moves no head, and what we say of it would be older.
        identity = AssertTableUUID(uuid=table.metadata.table_uuid)
        self._send(table, (*requirements, identity, _schema_is(table)), own_updates)
        return AppliedChanges.of(changes, gone, come)

    def close(self) -> None:
        """Close the catalog's connections."""
        self._catalog.close()

    def _send(self, table: Table, requirements: Collection[TableRequirement], updates: Collection[TableUpdate]) -> None:
        """Send a commit, once."""
        try:
            self._catalog.commit_table(table, tuple(requirements), tuple(updates))
        except CommitFailedException as error:
            raise TableMovedError(
                f"Iceberg table {self._identifier} was changed meanwhile; this commit was not applied"
            ) from error
        except _REFUSED as error:
            raise CallerError(
                f"The catalog refuses the commit to {self._identifier}: {error}; nothing was added"
            ) from error
        except Exception as error:
            # 500, 502, 503, 504, a cut connection, a timeout: whatever it is called, it may have been applied.
            raise TableUnclearError(
                f"The commit to Iceberg table {self._identifier} may have been applied, or not: {error}"
            ) from error

    def _asked(self, request: Callable[[], T]) -> T:
        """Make a request that changes nothing in the table."""
        try:
            return request()
        except (NoSuchTableError, DistributedLogError):
            raise
        except _REFUSED as error:
            raise CallerError(f"The catalog refuses to show {self._identifier}: {error}; nothing was done") from error
        except Exception as error:
            raise TableUnreachableError(
                f"Iceberg table {self._identifier} could not be asked: {error!r}; nothing was added",
                advice="Look whether its catalog and warehouse can be reached from here; then sync again",
            ) from error


def _digest(schema: Schema) -> str:
    return hashlib.sha256(str(schema.as_struct()).encode()).hexdigest()[:32]


def _head_id(table: Table) -> int | None:
    head = table.current_snapshot()
    return None if head is None else head.snapshot_id


def _schema_is(table: Table) -> AssertCurrentSchemaId:
    return AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id})


def _check_fits(there: Schema, wanted: Schema) -> None:
    """Raise CallerError where a column of the log and one of a table whose schema was changed differ in their type."""
    types = {id_: there.find_type(id_) for id_ in there._lazy_id_to_name if there.find_type(id_).is_primitive}
    for id_ in wanted._lazy_id_to_name:
        type_ = wanted.find_type(id_)
        if id_ in types and types[id_] != type_:
            raise CallerError(
                f"Column {wanted.find_column_name(id_)} is {type_} in the log and {types[id_]} in the table, whose "
                "schema was changed from outside; no file was added",
                advice="Give the table its schema back, or drop the declaration and declare another table",
            )
