"""`Declarations`: what one log declares of its records: read, made once, changed at the version that was read.

Fault model: an answer of the metadata store may be lost, and other clients change the declaration at any time. Whether
a change was made is found out by looking: versions of a schema are only ever added, so a version that is there as it
was sent is made, by us or by a client that wanted the same, and one that is not there never will be (its set depended
on a version that has passed). A change that another client's overtook is made anew of what is there by then, where it
can be; else its error says that nothing was changed. Only where the store stays away, or the log declares something new
altogether, the outcome stays unknown.

A declaration changes nothing of the records: a log without one is as it ever was.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from dlspark.errors import NoSchemaError, SchemaExistsError
from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import AddColumn, Change, WidenColumn
from dlspark.tables.types import InvalidSchemaError, Schema
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.record_schemas import SchemaStore, StoredSchema
from metadata.foundation.errors import (
    BadVersionError,
    CorruptDataError,
    DistributedLogError,
    NodeExistsError,
    OutcomeUnknownError,
)
from metadata.retry import MAX_REPEATS

MAX_SCHEMA_NUMBER: Final = 2**32 - 1
"""Of a registry: records have four bytes for it."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A change whose answer was lost: of which declaration, and the version that it makes."""

    error: OutcomeUnknownError
    id: str
    sent: Schema


@dataclass(frozen=True, slots=True)
class Declared:
    """What does a log declare, and which declaration is that?

    Args:
        declaration: What the log says of its records.
        stored: Its bytes, the id that no other declaration has, and the version at which it can be replaced.
    """

    declaration: Declaration
    stored: StoredSchema


def declaration_of(
    schema: pa.Schema | Schema,
    format: RecordFormat | str = RecordFormat.JSON,
    *,
    timestamp: str | None = None,
    strict: bool = False,
    confluent: Mapping[int, object] | None = None,
) -> Declaration:
    """Return the first declaration of a log that has these columns. Raises InvalidSchemaError."""
    # Imported here, as in this whole room: programs of logs that declare nothing do without codecs.
    from dlspark.tables.arrow_types import schema_from_arrow
    from dlspark.tables.codecs import RecordDecoder

    names = ", ".join(one.value for one in RecordFormat)
    try:
        format_ = RecordFormat(format)
    except ValueError:
        raise InvalidSchemaError(
            f"{format!r} is not a format of records; nothing was changed", advice=f"Formats are {names}"
        ) from None
    if not isinstance(schema, Schema | pa.Schema):
        raise InvalidSchemaError(
            f"{type(schema).__name__} is not a schema; nothing was changed",
            advice='Give a pyarrow.Schema, pa.schema([pa.field("id", pa.int64(), nullable=False), ...])',
        )
    ours = schema if isinstance(schema, Schema) else schema_from_arrow(schema)
    made = replace(Declaration.of(format_, ours, timestamp=timestamp, strict=strict), id=uuid.uuid4().hex)
    if confluent:
        made = _registered(made, confluent)
    RecordDecoder(made)  # Said now, and not by the first write: the format's library may be missing.
    return made


def _in_our_types(change: Change) -> Change:
    """Return a change whose type is one of ours, of one whose type may be Arrow's."""
    from dlspark.tables.arrow_types import schema_from_arrow

    if isinstance(change, AddColumn | WidenColumn) and isinstance(change.type, pa.DataType):
        return replace(change, type=schema_from_arrow(pa.schema([pa.field("c", change.type)])).fields[0].type)
    return change


class Declarations:
    """What does this log declare of its records?

    Args:
        logs: The logs of the namespace.
        name: The log's name.
    """

    def __init__(self, logs: LogStore, name: str) -> None:
        self._store = SchemaStore(logs)
        self._name = name

    async def find(self, known: Declared | None = None) -> Declared | None:
        """Return what the log declares; None for nothing; `known` itself where that is still so.

        Raises LogNotFoundError, CorruptDataError.
        """
        stored = await self._store.get(self._name)
        if known is not None and stored == known.stored:
            return known
        return None if stored is None else self._decoded(stored)

    async def get(self, known: Declared | None = None) -> Declared:
        """Return what the log declares. Raises NoSchemaError for nothing, and as `find`."""
        found = await self.find(known)
        if found is None:
            raise self._none_error()
        return found

    async def declare(self, declaration: Declaration, *, replace: bool = False) -> None:
        """Make the log's first declaration, or with `replace` one in the place of what it declares, in one step.

        Raises SchemaExistsError where it has one that is not to be replaced, LogNotFoundError; BadVersionError where
        another client has changed it meanwhile: nothing was changed.
        """
        # Its bytes do not matter: what cannot be read is replaced as well.
        before = await self._store.get(self._name) if replace else None
        try:
            await self._store.declare(self._name, declaration.encode_to_store(), before)
        except NodeExistsError as error:
            raise SchemaExistsError(
                "the log declares a schema already; nothing was changed",
                log=self._name,
                path=error.path,
                advice="Change it, or withdraw it first: records that are there stay as they are",
            ) from error

    async def change(
        self,
        changes: Collection[Change],
        *,
        strict: bool | None = None,
        confluent: Mapping[int, object] | None = None,
    ) -> Declaration:
        """Change the schema by the rules of evolution, and what else the declaration says, in one step; returns what
        the log declares then.

        Raises EvolutionError, InvalidSchemaError, NoSchemaError: nothing was changed; BadVersionError where other
        clients keep changing it; OutcomeUnknownError where it cannot be found out.
        """

        changes = [_in_our_types(one) for one in changes]

        def changed(before: Declaration) -> Declaration:
            made = before.evolved(changes) if changes else before
            if strict is not None:
                made = replace(made, strict=strict)
            return _registered(made, confluent) if confluent else made

        return await self._replace(changed, evolves=bool(changes))

    async def withdraw(self) -> None:
        """Take away what the log declares; a log that declares nothing is a success.

        Raises BadVersionError where another client has changed it meanwhile: nothing was taken away.
        """
        # Its bytes do not matter: what cannot be read is withdrawn as well.
        stored = await self._store.get(self._name)
        if stored is None:
            return
        try:
            await self._store.withdraw(self._name, stored)
        except BadVersionError as error:
            raise BadVersionError(
                "another client has changed what the log declares; it was not withdrawn",
                log=self._name,
                path=error.path,
                advice="Look at it, and withdraw it again if that is still wanted",
            ) from error

    async def _replace(self, changed: Callable[[Declaration], Declaration], *, evolves: bool) -> Declaration:
        doubt: _Doubt | None = None
        for _ in range(MAX_REPEATS):
            before = await self.get() if doubt is None else await self._after(doubt)
            # Versions are only added: ours is there, or was overtaken.
            if doubt is not None and evolves and before.declaration.version(doubt.sent.id) == doubt.sent:
                return before.declaration
            made = changed(before.declaration)
            if made == before.declaration:
                return made
            try:
                await self._store.replace(self._name, before.stored, made.encode_to_store())
                return made
            except (BadVersionError, OutcomeUnknownError) as error:
                lost = error if isinstance(error, OutcomeUnknownError) else error.__cause__
                if isinstance(lost, OutcomeUnknownError):
                    doubt = _Doubt(lost, before.stored.id, made.current)
                # Else another client was first: what that means shows when it is read again.
        raise BadVersionError(
            "other clients keep changing what the log declares; nothing was changed",
            log=self._name,
            advice="Try again",
        )

    async def _after(self, doubt: _Doubt) -> Declared:
        """Return what the log declares after an answer was lost. Raises that error where nothing can be told by it."""
        try:
            found = await self.find()
        except DistributedLogError:
            raise doubt.error from None
        if found is None or found.stored.id != doubt.id:
            raise doubt.error  # withdrawn since: whether ours was there before, nothing says
        return found

    def _decoded(self, stored: StoredSchema) -> Declared:
        try:
            return Declared(Declaration.decode(stored.data, f"schema/{stored.id}"), stored)
        except CorruptDataError as error:
            error.log = self._name
            raise

    def _none_error(self) -> NoSchemaError:
        return NoSchemaError(
            "the log declares no schema; nothing was done",
            log=self._name,
            advice="Declare one: log.declare_schema, or dlspark log schema set (`infer` proposes one)",
        )


def _registered(declaration: Declaration, confluent: Mapping[int, object]) -> Declaration:
    """Return the declaration with further schemas of a registry. Raises InvalidSchemaError."""
    from dlspark.tables.avro_schema import schema_from_avro

    if declaration.format is not RecordFormat.AVRO:
        raise InvalidSchemaError(
            f"Records are {declaration.format.value}, and only those of Avro have schemas of a registry; nothing was "
            "changed",
            advice="Declare the log's records as Avro",
        )
    for number, avro in confluent.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_SCHEMA_NUMBER:
            raise InvalidSchemaError(
                f"{number!r} is not the number of a schema in a registry; nothing was changed",
                advice=f"Numbers are whole, from 0 to {MAX_SCHEMA_NUMBER}",
            )
        schema_from_avro(avro)
    return replace(declaration, confluent={**declaration.confluent, **confluent})
