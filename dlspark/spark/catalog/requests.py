"""The SQL catalog's questions, answered: the other side of `Requests.java`, and the only side that reads metadata.

A question is JSON in option `REQUEST` of the data source; Spark asks for the data source's schema in a worker on the
driver, and the answer is the metadata of that schema's one column: `{"result": ...}`, or `{"error": {"kind": ...,
"text": ...}}`, of which the Java side makes Spark's own exceptions. Each question opens a session with ZooKeeper and
ends it: Spark's workers live and die as Spark pleases, and must leave none behind (I16).

| operation | what it needs beside `catalog`, `defaults` | result |
|---|---|---|
| `tables`, `namespaces`, `namespace` | `namespace` | names of tables, of namespaces below; its properties |
| `load` | `table`, and `version` or `timestamp_us` | the table: columns, properties, handle |
| `change` | `table` | none: UPDATE, DELETE, MERGE and overwriting are refused |
| `create`, `replace`, `create_or_replace` | `table`, `schema`, `properties` ... | the table |
| `alter` | `table`; `set`, `remove`, `columns`, `others` | the table |
| `drop`, `rename` | `table`; `new_table` | whether there was one; true |
| `abandon` | `table`, and `created` of the answer to `create` | whether it was still there |
| `filters` | `filters` | for each whether it is kept exactly |
| `columns` | `schema` that a user has given to a reader, `metadata`, `options` | the columns |
| `statistics` | `options` of a read | rows and bytes |
| `summarise` | `options` of a read, `functions` | values of aggregates, or null; what the query has seen of logs |
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from pyspark.sql.types import StringType, StructField, StructType

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.lifecycle.deletion import creation_of, delete_unwritten_log
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.settings.settings import Settings
from dlspark.core.typed.declarations import Declarations, Declared
from dlspark.core.write_lock import default_client_id
from dlspark.spark.catalog.creation import (
    FORMAT,
    check_layout,
    check_use,
    is_of_bytes,
    own_properties,
    schema_properties,
)
from dlspark.spark.catalog.scan import Pushed, Rows, exact
from dlspark.spark.catalog.tables import Json, TableHandle, TableProperties, checked_properties, pushed, unpacked
from dlspark.spark.connection import Connect, namespace_settings, open_namespace, resolve_uri
from dlspark.spark.errors import DataLossError, OffsetError, OptionError, SchemaError
from dlspark.spark.metadata_tables.registry import TABLES, MetadataTable, table_named
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import PASSED_ON, Scope
from dlspark.spark.source.driver import SourceDriver
from dlspark.spark.source.driver_log_view import DriverLogView
from dlspark.spark.source.frame_columns import FrameColumns
from dlspark.spark.source.loading import look_up
from dlspark.spark.source.offsets import parse_dlsn
from dlspark.spark.source.query_snapshot import QuerySnapshot
from dlspark.spark.source.schema import SCHEMA, column_names
from dlspark.spark.source.selection import SourceQuery
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.log_admin import Below, LogAdmin
from metadata.distributedlog.log_names import InvalidLogNameError, LogExistsError, LogNotFoundError, validate_name
from metadata.distributedlog.permissions import Action
from metadata.foundation.errors import CallerError, DistributedLogError, InvariantViolation

_COMMENTS: Final = {
    "log": "the log's name",
    "segment": "the record's position: segment,",
    "entry": "entry in it,",
    "slot": "record in that; together its DLSN",
    "sequence_id": "number of the record in its log, from 0",
    "transaction_id": "as the writer gave it; never decreases",
    "timestamp": "the transaction id read as milliseconds since the epoch",
    "value": "the payload",
}


class _Named(Exception):
    """An answer that has a name of its own in Spark; `kind` is what the Java side calls it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def answer_in_schema(request: str, given: Mapping[str, str], session: Mapping[str, str]) -> StructType:
    """Return the answer to a question, packed into a schema. `given` are the options that came with it, `session` the
    session's defaults of options."""
    runtime = Runtime("dlspark-catalog")
    try:
        said = runtime.run(
            answer(json.loads(request), lambda: resolve_uri(Options(given, Scope.ANY, session)), session=session)
        )
    finally:
        runtime.close()
    return StructType([StructField("answer", StringType(), metadata={"answer": json.dumps(said)})])


def _connect(session: Mapping[str, str], defaults: Mapping[str, str]) -> Connect:
    """Return what opens the namespace as options of the session and the catalog say. It does not wait for locks: a
    statement that needs one fails with the owner's name."""
    own = {name: value for name, value in defaults.items() if name.startswith(PASSED_ON)}
    passed_on = namespace_settings(Options(own, Scope.ANY, session).passed_on())
    settings = Settings.from_environment().with_values({**passed_on, "lockTimeoutSeconds": 0})
    return partial(AsyncNamespace.open, settings=settings)


async def answer(
    request: Json, uri: Callable[[], str], connect: Connect | None = None, session: Mapping[str, str] | None = None
) -> Json:
    """Return the answer to a question: its result, or the error that the Java side has to raise.

    `uri` gives the URI of the catalog's namespace, or raises OptionError. `session`: its defaults of options.
    `connect` opens a namespace; None: as options and the environment say.
    """
    operation = str(request["operation"])
    try:
        if operation == "filters":
            return {"result": exact([_words(one) for one in _list(request, "filters")])}
        if operation == "columns":
            return {"result": (await _columns(request, session or {}, connect)).json()}
        if operation in ("statistics", "summarise"):
            return {"result": await _about_rows(operation, request, session or {}, connect)}
        defaults = checked_properties(_texts(request, "defaults"))
        place = uri()
        namespace = await open_namespace(place, connect or _connect(session or {}, defaults))
        try:
            return {"result": await Catalog(namespace, place, defaults).do(operation, request)}
        finally:
            await namespace.close()
    except _Named as named:
        return {"error": {"kind": named.kind}}
    except DistributedLogError as error:
        return {"error": {"kind": "refused", "text": f"{type(error).__name__}: {error}"}}


class Catalog:
    """The statements of one catalog on an open namespace."""

    def __init__(self, namespace: AsyncNamespace, uri: str, defaults: Mapping[str, str]) -> None:
        self._namespace = namespace
        self._admin = LogAdmin(namespace.logs_store)
        self._uri = uri
        self._defaults = defaults
        self._operations: dict[str, Callable[[Json], Awaitable[object]]] = {
            "tables": self.tables,
            "namespaces": self.namespaces,
            "namespace": self.about_namespace,
            "create_namespace": self.create_namespace,
            "alter_namespace": self.refuse_namespace_change,
            "drop_namespace": self.drop_namespace,
            "load": self.load,
            "change": self.refuse_change,
            "create": self.create,
            "replace": self.refuse_replacement,
            "create_or_replace": self.create_or_replace,
            "abandon": self.abandon,
            "alter": self.alter,
            "drop": self.drop,
            "rename": self.rename,
        }

    async def do(self, operation: str, request: Json) -> object:
        """Answer a request for one operation. Raises CallerError, or what reaching metadata raises."""
        return await self._operations[operation](request)

    # ------------------------------------------------------------------ namespaces

    async def tables(self, request: Json) -> list[str]:
        """Return names of the logs directly in a namespace."""
        return [one.name for one in await self._below(self._folder(request)) if one.is_log]

    async def namespaces(self, request: Json) -> list[str]:
        """Return names of the namespaces directly below one: what other logs' names begin with."""
        return [one.name for one in await self._below(self._folder(request)) if one.is_folder]

    async def about_namespace(self, request: Json) -> dict[str, str]:
        """Return a namespace's properties: where it is."""
        folder = self._folder(request)
        await self._below(folder)
        return {"location": f"{self._uri}/{folder}" if folder else self._uri}

    async def create_namespace(self, request: Json) -> object:
        """Refused in any case: a namespace is there as long as a log in it is."""
        folder = self._folder(request)
        if not folder or await self._admin.below(folder):
            raise _Named("namespace_exists")
        raise CallerError(
            "A namespace of this catalog cannot be empty: it is what the names of its logs begin with",
            advice=f"Create a table in it: CREATE TABLE {folder.replace('/', '.')}.<name>",
        )

    async def refuse_namespace_change(self, request: Json) -> object:
        """Refused in any case: a namespace has no properties."""
        raise CallerError(
            "A namespace of this catalog has no properties to change", advice="Tables have: TBLPROPERTIES"
        )

    async def drop_namespace(self, request: Json) -> object:
        """Refused in any case: a namespace goes with its last log, so one that exists is never empty."""
        await self._below(self._folder(request))
        raise _Named("namespace_not_empty")

    async def _below(self, folder: str) -> list[Below]:
        """Return what is directly in a namespace. One without a log does not exist, but for the root."""
        found = await self._admin.below(folder)
        if folder and not found:
            raise _Named("no_such_namespace")
        return found

    def _folder(self, request: Json) -> str:
        folder = "/".join(map(str, _list(request, "namespace")))
        if folder:
            try:
                self._namespace.logs_store.validate_name(folder)
            except InvalidLogNameError:
                _check_slash(folder)
                raise _Named("no_such_namespace") from None
        return folder

    # ------------------------------------------------------------------ tables

    async def load(self, request: Json) -> Json:
        """Return a log, or a metadata table where no log has the name."""
        log = self._log(request)
        try:
            properties = TableProperties.decode((await self._admin.metadata(log)).value)
        except (LogNotFoundError, InvalidLogNameError):
            return await self._metadata_table(request)
        handle = TableHandle(self._uri, log, self._defaults, {} if properties.foreign else properties.properties)
        declared = None if handle.shows_bytes else await self._declared(log)
        if declared is not None:
            handle = handle.of_version(declared.stored.id, declared.declaration.current.id)
        if "version" in request:
            handle = await self._as_of(handle, str(request["version"]))
        elif "timestamp_us" in request:
            # Ids are milliseconds, so those up to this microsecond lie before the next millisecond.
            handle = handle.until(txid=max(0, int(str(request["timestamp_us"])) // 1000 + 1))
        try:
            made = await creation_of(self._namespace.services, log)
        except LogNotFoundError:
            raise _Named("no_such_table") from None  # it was deleted meanwhile
        shown: Json = {"columns": _columns_of(SCHEMA, _COMMENTS)} if declared is None else _shown(declared)
        return _table(shown, properties, handle, log=log, created=made)

    async def _declared(self, log: str) -> Declared | None:
        """Return what a log declares of its records; None for a log of bytes."""
        try:
            return await Declarations(self._namespace.logs_store, log).find()
        except LogNotFoundError:
            raise _Named("no_such_table") from None  # it was deleted meanwhile

    async def refuse_change(self, request: Json) -> Json:
        """Refuse a statement that does not only append."""
        log = await self._existing(request)
        raise CallerError(
            "Rows of a log are neither updated, deleted, merged nor overwritten: a log only grows, and cannot be "
            "replaced; nothing was changed",
            advice="Append with INSERT INTO; to be rid of old records truncate the log (`dlspark log truncate`) or "
            "give it a retention; DROP TABLE deletes it with its data",
            log=log,
        )

    async def _as_of(self, handle: TableHandle, version: str) -> TableHandle:
        """Return the table up to and with the record that is named, which must be there."""
        record = parse_dlsn(version, "VERSION AS OF")
        view = await DriverLogView.open(self._namespace, str(handle.log))
        try:
            latest = await view.latest()
            if record >= latest:
                raise OffsetError(
                    f"The log has no record {record} yet: the next one will be at {latest}",
                    advice="Name a record's position, segment:entry:slot, or leave VERSION AS OF out",
                    log=handle.log,
                )
            if record < view.earliest():
                raise DataLossError(
                    f"The log as of {record} is gone: it begins at {view.earliest()} now; nothing was read",
                    advice="Name a later record",
                    log=handle.log,
                )
        finally:
            await view.close()
        return handle.until(position=str(DLSN(record.lssn, record.entry_id, record.slot_id + 1)))

    async def _metadata_table(self, request: Json) -> Json:
        """`flights.segments`, `bookies`: what the namespace says of itself."""
        table, log = await self._find_metadata_table(request)
        if table is None:
            _check_slash(self._log(request))
            raise _Named("no_such_table")
        if "version" in request or "timestamp_us" in request:
            raise OptionError(
                f"The metadata table {table.name} has no older versions: it is what there is at one moment",
                advice="Leave VERSION AS OF or TIMESTAMP AS OF out",
            )
        comments = {column.name: column.meaning for column in table.columns}
        columns, handle = _columns_of(table.schema, comments), TableHandle(self._uri, log, metadata=table.name)
        return _table({"columns": columns}, TableProperties(), handle)

    async def _find_metadata_table(self, request: Json) -> tuple[MetadataTable | None, str | None]:
        *above, name = map(str, _list(request, "table"))
        if name.lower() not in TABLES:
            return None, None
        table, log = table_named(name), "/".join(above) or None
        if log is not None and not (table.of_logs and await self._namespace.log_exists(log)):
            return None, None
        return table, log

    async def create(self, request: Json) -> Json:
        """Create a log, with its schema where it has columns of its own.

        What its columns and properties cannot be is refused before anything is done.
        """
        log = self._log(request)
        check_layout([str(one) for one in _list(request, "partitioning")], constrained=bool(request.get("constraints")))
        self._namespace.logs_store.validate_name(log)
        default = str(request.get("default_provider", ""))
        given = own_properties(_texts(request, "properties"), default, f"{self._uri}/{log}")
        of_schema, others = schema_properties(given)
        declaration = _declaration(request, of_schema)
        properties = TableProperties().changed(log, others, ())
        check_use(log, properties.properties)
        if await self._namespace.log_exists(log):
            raise _Named("table_exists")
        data = properties.encode()
        try:
            await self._namespace.create_log(log, data, declaration)
        except LogExistsError:
            raise _Named("table_exists") from None
        # `create_log` completes what another client has half created, and leaves that one's metadata.
        if declaration is None and (await self._admin.metadata(log)).value != data:
            raise _Named("table_exists")  # another client created it meanwhile, with other properties
        return await self.load(request)

    async def abandon(self, request: Json) -> bool:
        """Delete the log that a failed `CREATE TABLE ... AS SELECT` created. False if it is gone already.

        Raises CallerError, with nothing deleted, if another client has written to it, or made another log of the name.
        """
        log, services = self._log(request), self._namespace.services
        await services.permit(log, Action.DELETE)
        created = int(str(request["created"]))
        try:
            if await delete_unwritten_log(services, log, self._namespace.settings, default_client_id(), created):
                return True
        except LogNotFoundError:
            return False
        raise CallerError(
            "The log that was created for the query stays: it has been written to since, or is another one by now",
            advice="Look at what it holds before DROP TABLE, which deletes it with its data",
            log=log,
        )

    async def refuse_replacement(self, request: Json) -> Json:
        """Refuse to replace a table: Spark would delete it and write another."""
        log = await self._existing(request)
        raise CallerError(
            "A table of this catalog cannot be replaced: a log only grows; nothing was changed",
            advice="Write to another log, or DROP TABLE first, which deletes the log with its data",
            log=log,
        )

    async def create_or_replace(self, request: Json) -> Json:
        """Create a table. Raises CallerError if it exists: a log is not replaced."""
        return await (self.refuse_replacement if await self._exists(request) else self.create)(request)

    async def alter(self, request: Json) -> Json:
        """Change columns, or set and remove properties. A change that another client makes at the same time is not
        overwritten."""
        log = await self._existing(request)
        others = _list(request, "others")
        if others:
            raise SchemaError(
                f"A log cannot be changed by {', '.join(map(str, others))}; nothing was changed",
                advice="ALTER TABLE can set and unset TBLPROPERTIES, rename the table, and change columns that a log "
                "declares",
                log=log,
            )
        of_schema, set_ = schema_properties(_texts(request, "set"))
        dropped, removed = schema_properties({str(name): "" for name in _list(request, "remove")})
        columns = [one for one in _list(request, "columns") if isinstance(one, dict)]
        if columns or of_schema or dropped:
            if set_ or removed:
                raise OptionError(
                    "Properties of the schema are kept apart from the others, and both would not change at once; "
                    "nothing was changed",
                    advice=f"Set {', '.join([*of_schema, *dropped])} in a statement of its own",
                    log=log,
                )
            await self._change_schema(log, columns, of_schema, list(dropped))
            return await self.load(request)
        stored = await self._admin.metadata(log)
        new = TableProperties.decode(stored.value).changed(log, set_, removed)
        if set_:  # what is there already, and wrong, can always be taken away
            check_use(log, new.properties)
        # At the version that was read: of two changes at a time the second is refused.
        await self._admin.set_metadata(log, new.encode(), stored.version)
        return await self.load(request)

    async def _change_schema(
        self, log: str, columns: Sequence[Json], set_: Mapping[str, str], removed: Sequence[str]
    ) -> None:
        """Change what a log declares, all of a statement at once, or nothing."""
        from dlspark.spark.catalog.declared_columns import changed_strictness, changes_of

        declarations = Declarations(self._namespace.logs_store, log)
        found = await declarations.find()
        if found is None:
            raise SchemaError(
                "The log declares no schema: its records are bytes; nothing was changed",
                advice="Declare one: `dlspark log schema set`, or log.declare_schema in Python; `dlspark log schema "
                "infer` proposes one from the records",
                log=log,
            )
        changes = changes_of(columns, found.declaration.current)
        await declarations.change(changes, strict=changed_strictness(found.declaration, set_, removed))

    async def drop(self, request: Json) -> bool:
        """Delete a log with its data; False if there is none. A log that is being written is refused."""
        if not await self._exists(request):
            return False
        try:
            await self._namespace.delete_log(self._log(request))
        except LogNotFoundError:
            return False
        return True

    async def rename(self, request: Json) -> bool:
        """Give a log another name; true. A name that is taken is the answer `table_exists`."""
        log = await self._existing(request)
        new = "/".join(map(str, _list(request, "new_table")))
        try:
            await self._namespace.rename_log(log, new)
        except LogExistsError:
            raise _Named("table_exists") from None
        return True

    async def _exists(self, request: Json) -> bool:
        try:
            await self._existing(request)
        except _Named:
            return False
        return True

    def _log(self, request: Json) -> str:
        return "/".join(map(str, _list(request, "table")))

    async def _existing(self, request: Json) -> str:
        """Return the log that a statement changes. A metadata table is refused, a missing log is `no_such_table`."""
        log = self._log(request)
        try:
            if await self._namespace.log_exists(log):
                return log
        except InvalidLogNameError:
            _check_slash(log)
            raise _Named("no_such_table") from None
        table, _ = await self._find_metadata_table(request)
        if table is None:
            raise _Named("no_such_table")
        raise CallerError(
            f"{table.name} is a metadata table: it can only be read; nothing was changed",
            advice="Name a log",
        )


async def _columns(request: Json, session: Mapping[str, str], connect: Connect | None) -> StructType:
    """Return the columns that the user has named, checked to be some of those that there are, and with the version of
    what the log declares if they are its own. Raises SchemaError, or what looking at the log raises."""
    schema = StructType.fromJson(json.loads(str(request["schema"])))
    if request["metadata"]:
        column_names(schema, table_named(str(request["metadata"])).schema)
        return schema
    options = Options(unpacked(_texts(request, "options"), Scope.SOURCE), Scope.SOURCE, session)
    try:
        query = SourceQuery.of(options.with_uri(resolve_uri(options)))
    except DistributedLogError:
        return schema  # the reader is refused, which says of what kind the query is
    frame = FrameColumns.of(query, schema)
    return schema if frame.log is None else await look_up(query, schema, connect)


def _check_slash(name: str) -> None:
    """Raise InvalidLogNameError for a name with a leading slash, which says how to write it.

    To SQL all other names that no log can have are just tables that do not exist.
    """
    if name.startswith("/"):
        validate_name(name)


async def _about_rows(operation: str, request: Json, session: Mapping[str, str], connect: Connect | None) -> object:
    """Return what is known of the rows of one read, from metadata and a few entries."""
    raw = _texts(request, "options")
    options = Options(unpacked(raw, Scope.SOURCE_BATCH), Scope.SOURCE_BATCH, session)
    query, down = SourceQuery.of(options.with_uri(resolve_uri(options))), Pushed.of(pushed(raw))
    snapshot = QuerySnapshot.of(down.seen, query.uri)
    driver = SourceDriver(query, connect, snapshot=snapshot)
    try:
        await driver.open()
        declared = await driver.declared(FrameColumns.of(query, StructType(), down.version, settled=True))
        bounds = down.bounds if declared is None else declared.bounds(down.hints)
        if operation == "statistics":
            found = await (await Rows.of(driver, bounds)).statistics()
            return found if declared is None or declared.counted else {**found, "rows": None}
        values = None
        functions = [one for one in _list(request, "functions") if isinstance(one, dict)]
        # A column that a log declares is not the one of records that has its name.
        known = declared is None or (declared.counted and all(one.keys() == {"function"} for one in functions))
        if known and not bounds.scattered:  # or some entries of each segment: no one range of positions
            values = await (await Rows.of(driver, bounds)).summary(functions)
        return {"values": values, "seen": snapshot.within(down.seen, query.uri)}
    finally:
        await driver.close()


def _columns_of(schema: StructType, comments: Mapping[str, str]) -> list[Json]:
    """Return columns for the Java side. Types are in JSON: how Spark reads `timestamp` in DDL is up to
    `spark.sql.timestampType`."""
    return [
        {"name": one.name, "type": one.dataType.json(), "comment": comments.get(one.name, "")} for one in schema.fields
    ]


def _declaration(request: Json, of_schema: Mapping[str, str]) -> Declaration | None:
    """Return what a new log declares; None for a log of bytes."""
    columns, defaults = StructType.fromJson(json.loads(str(request["schema"]))), _object(request, "column_defaults")
    as_select = request.get("as_select") is True
    if not of_schema and not defaults and is_of_bytes(columns, as_select=as_select):
        return None
    from dlspark.spark.catalog.declared_columns import declared_by

    return declared_by(columns, of_schema, defaults, as_select=as_select)


def _shown(declared: Declared) -> Json:
    """Return the part of a table that a log's schema says."""
    from dlspark.spark.catalog.declared_columns import columns_of, metadata_columns_of, properties_of

    return {
        "columns": columns_of(declared),
        "metadata_columns": metadata_columns_of(declared),
        "typed": True,
        "properties": properties_of(declared.declaration),
    }


def _table(
    columns: Json,
    about: TableProperties,
    handle: TableHandle,
    *,
    log: str | None = None,
    created: int | None = None,
) -> Json:
    """Return what the Java side has to know of a table. `created` tells a log from another one that had its name
    before."""
    properties = {**handle.properties, **_texts(columns, "properties")}
    if about.comment is not None:
        properties["comment"] = about.comment
    if log is not None:
        properties |= {"provider": FORMAT, "location": f"{handle.uri}/{log}"}
    is_log = log is not None
    return {
        "metadata_columns": [],
        "typed": False,
        **columns,
        "properties": properties,
        "handle": handle.to_json(),
        "created": created,
        "writable": is_log and not handle.ends,
        "pushdown": is_log,
    }


def _object(request: Json, name: str) -> Json:
    found = request.get(name, {})
    return found if isinstance(found, dict) else {}


def _texts(request: Json, name: str) -> dict[str, str]:
    found = request.get(name, {})
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _list(request: Json, name: str) -> Sequence[object]:
    found = request.get(name, [])
    return found if isinstance(found, list) else []


def _words(filter_: object) -> list[object]:
    if not isinstance(filter_, list):
        raise InvariantViolation(f"a filter came as {filter_!r}")
    return filter_
