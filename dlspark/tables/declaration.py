"""`Declaration`: what a log says of its records: their format, and every version of their schema.

It is the data of the log's znode `P/schema`, JSON (docs/reference/znodes.md#schema):

    {"v": 1, "id": "5f0c...", "format": "json", "encoder": 1, "highest-id": 5, "timestamp-id": 4, "strict": false,
     "confluent": {}, "schemas": [{"type": "struct", "schema-id": 0, "fields": [...]}, ...]}

The last schema is the current one; the others stay, because records of theirs do. `highest-id` is the highest id that a
field ever had, so that none is given twice. `encoder` is the version of what makes bytes of rows: rows that were equal
give equal bytes for as long as it is the same. `timestamp-id` names the column that gives each record its transaction
id, and `strict` refuses to read past a record that does not fit. `confluent` has Avro schemas by their numbers in a
registry of Confluent's: records that its serialisers wrote are read by them, without the registry.

A declaration is read whole and replaced whole, at the version that was read. Unknown keys, or another "v", are a newer
dlspark's: it is refused, never read in part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from dlspark.tables.evolution import Change, NamesTaken, evolve
from dlspark.tables.types import (
    DATE,
    LONG,
    TIMESTAMP,
    Field,
    InvalidSchemaError,
    Schema,
    check_schema,
    children,
    schema_from_json,
    schema_to_json,
    walk,
)
from metadata.foundation.errors import CallerError, CorruptDataError, check

VERSION: Final = 1
MAX_BYTES: Final = 512 << 10
"""Of the znode's data; ZooKeeper refuses requests of 1 MiB."""
MAX_VERSIONS: Final = 1_000
_KEYS: Final = frozenset(
    {"v", "id", "format", "encoder", "highest-id", "timestamp-id", "strict", "confluent", "schemas"}
)
RESERVED: Final = frozenset({"_log", "_error"})
"""Names of the columns that are not the log's own: where a record is, and why it does not fit."""


class SchemaChangedError(CallerError):
    """A query began with a version of a log's schema that records of the current one do not fit."""


class RecordFormat(Enum):
    """How does a record hold a row?"""

    JSON = "json"
    """One object, UTF-8, columns by name."""
    AVRO = "avro"
    """Avro's single-object encoding: a fingerprint of the schema, and a datum."""
    ARROW = "arrow"
    """An Arrow IPC stream of one batch: a record holds many rows."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """Which rows does a log hold, and how does a record hold them?

    Args:
        format: How a record holds a row.
        schemas: All versions, oldest first; the last one is current.
        highest_id: The highest id that a field of any version had.
        timestamp_id: The column that gives each record its transaction id; None: the writer gives it.
        strict: Whether a record that does not fit ends a query, in place of a row that says so.
        encoder: Version of what makes bytes of rows.
        confluent: Avro schemas, in JSON, by their numbers in a registry of Confluent's.
        id: What no other declaration has: ids of fields mean something in records of this one alone.
    """

    format: RecordFormat
    schemas: tuple[Schema, ...]
    highest_id: int
    timestamp_id: int | None = None
    strict: bool = False
    encoder: int = 1
    confluent: Mapping[int, object] = field(default_factory=dict)
    id: str = ""

    @classmethod
    def of(
        cls, format: RecordFormat, schema: Schema, *, timestamp: str | None = None, strict: bool = False
    ) -> Declaration:
        """Return a first declaration. `timestamp` names the column that gives the transaction id.

        Raises InvalidSchemaError for a column that cannot give it.
        """
        column = None if timestamp is None else schema.column(timestamp)
        if timestamp is not None and column is None:
            raise InvalidSchemaError(
                f"There is no column {timestamp!r} to take transaction ids from; nothing was changed",
                advice=f"There are: {', '.join(one.name for one in schema.fields)}",
            )
        if column is not None and not _gives_times(schema, column.id):
            raise InvalidSchemaError(
                f"Column {column.name} cannot give transaction ids: it is {column.type}"
                f"{'' if column.required else ' and may be null'}; nothing was changed",
                advice="Take a column that is NOT NULL, a TIMESTAMP, DATE, or BIGINT of milliseconds",
            )
        made = replace(schema, id=0)
        _check_columns(made)
        return cls(format, (made,), made.highest_id, None if column is None else column.id, strict)

    @property
    def current(self) -> Schema:
        """The schema that rows are written by."""
        return self.schemas[-1]

    def version(self, id_: int) -> Schema | None:
        """Return the schema of a version; None for a version that there is not."""
        return next((one for one in self.schemas if one.id == id_), None)

    def timestamp_field(self, schema: Schema) -> Field | None:
        """Return the column of a version that gives transaction ids; None where the writer gives them."""
        return None if self.timestamp_id is None else schema.by_id().get(self.timestamp_id)

    def evolved(self, changes: Collection[Change]) -> Declaration:
        """Return the declaration with another current schema; itself where that would be equal.

        Raises as `evolution.evolve`.
        """
        if len(self.schemas) >= MAX_VERSIONS:
            raise InvalidSchemaError(
                f"The schema has changed {MAX_VERSIONS} times; nothing was changed", advice="Declare another log"
            )
        new = evolve(
            self.current,
            changes,
            highest_id=self.highest_id,
            names_taken=self.names_taken(),
            timestamp_id=self.timestamp_id,
        )
        if new.fields == self.current.fields:
            return self  # another client has made the same change, perhaps: no version is there for nothing
        _check_columns(new)
        return replace(self, schemas=(*self.schemas, new), highest_id=max(self.highest_id, new.highest_id))

    def check_readable_as(self, target: Schema) -> None:
        """Raise SchemaChangedError unless records of the current version can be read as rows of an earlier one: each
        column of it is still there, has its type, and is not null where it was not."""
        now = self.current.by_id()
        for id_, one in target.by_id().items():
            new = now.get(id_)
            if new is None:
                what = "was dropped"
            elif not children(one.type) and new.type != one.type:
                what = f"was widened to {new.type}"
            elif one.required and not new.required:
                what = "may be null"
            else:
                continue
            raise SchemaChangedError(
                f"Column {one.name} {what} in version {self.current.id} of the log's schema, and the query began with "
                f"version {target.id}: records that are written now do not fit; nothing more was read",
                advice="Start the query again, or load the frame again: it then has the columns of the current version",
            )

    def names_taken(self) -> NamesTaken:
        """Return the names that fields had in any version, where records say columns by name."""
        found: dict[tuple[int, str], int] = {}
        if self.format is RecordFormat.JSON:
            for schema in self.schemas:
                found |= {(0, one.name.casefold()): one.id for one in schema.fields}
                for parent in walk(schema.fields):
                    found |= {(parent.id, one.name.casefold()): one.id for one in children(parent.type)}
        return found

    def encode(self) -> bytes:
        """Return the znode's data. Raises InvalidSchemaError if it is too large."""
        said = {
            "v": VERSION,
            "id": self.id,
            "format": self.format.value,
            "encoder": self.encoder,
            "highest-id": self.highest_id,
            "timestamp-id": self.timestamp_id,
            "strict": self.strict,
            "confluent": {str(number): avro for number, avro in sorted(self.confluent.items())},
            "schemas": [schema_to_json(one) for one in self.schemas],
        }
        data = json.dumps(said, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        if len(data) > MAX_BYTES:
            raise InvalidSchemaError(
                f"All versions of the schema together have {len(data)} bytes; nothing was changed",
                advice=f"Up to {MAX_BYTES} are kept: shorten comments, or declare another log",
            )
        return data

    def encode_to_store(self) -> bytes:
        """Return as `encode`, what was found to read back: else it would take the log's columns from everybody."""
        data = self.encode()
        check(Declaration.decode(data, "") == self, "a declaration does not read back as it was made")
        return data

    @classmethod
    def decode(cls, data: bytes, path: str) -> Declaration:
        """Read what `encode` makes. Raises CorruptDataError for anything else."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _corrupt_error(path, "it is not JSON") from error
        if not isinstance(found, dict) or found.get("v") != VERSION or found.keys() != _KEYS:
            raise _corrupt_error(path, f"it is not of version {VERSION}")
        numbers = found["encoder"], found["highest-id"]
        timestamp_id, strict, listed = found["timestamp-id"], found["strict"], found["schemas"]
        if any(type(one) is not int for one in numbers) or type(timestamp_id) not in (int, type(None)):
            raise _corrupt_error(path, "its numbers are not numbers")
        try:
            schemas = tuple(schema_from_json(one) for one in listed) if isinstance(listed, list) else ()
            for schema in schemas:
                _check_defaults(schema)
            format_ = RecordFormat(found["format"])
        except (InvalidSchemaError, ValueError) as error:
            raise _corrupt_error(path, str(error)) from error
        if not schemas or [one.id for one in schemas] != list(range(len(schemas))) or not isinstance(strict, bool):
            raise _corrupt_error(path, "its schemas are not numbered from 0")
        if timestamp_id is not None and not all(_gives_times(one, timestamp_id) for one in schemas):
            raise _corrupt_error(path, "the column of transaction ids cannot give them")
        confluent, id_ = found["confluent"], found["id"]
        if not isinstance(id_, str):
            raise _corrupt_error(path, "its id is not a text")
        if not isinstance(confluent, dict) or not all(number.isdecimal() for number in confluent):
            raise _corrupt_error(path, "its schemas of a registry have no numbers")
        encoder, highest_id = numbers
        if max(one.highest_id for one in schemas) > highest_id:
            raise _corrupt_error(path, "a field has a higher id than the highest")
        registered = {int(number): avro for number, avro in confluent.items()}
        return cls(format_, schemas, highest_id, timestamp_id, strict, encoder, registered, id_)


def _check_columns(schema: Schema) -> None:
    """Raise InvalidSchemaError for what a schema may have, and a log's may not."""
    check_schema(schema)
    _check_defaults(schema)
    for one in schema.fields:
        if one.name.casefold() in RESERVED:
            raise InvalidSchemaError(
                f"A column cannot be named {one.name}: readers show by it where a record is, or why it does not fit; "
                "nothing was changed",
                advice="Take another name",
            )


def _check_defaults(schema: Schema) -> None:
    with_defaults = [one for one in walk(schema.fields) if one.default is not None]
    if with_defaults:
        from dlspark.tables.json_decoding import value_of_default  # Arrow is loaded for it: not by who has none

        for one in with_defaults:
            value_of_default(one)


def _gives_times(schema: Schema, id_: int) -> bool:
    """Return whether a field is a column that can give transaction ids."""
    return any(one.id == id_ and one.required and one.type in (TIMESTAMP, LONG, DATE) for one in schema.fields)


def _corrupt_error(path: str, what: str) -> CorruptDataError:
    return CorruptDataError(
        f"what a log declares of its records cannot be used: {what}",
        path=path,
        advice="Read the log with columns=raw; a newer dlspark may have written it. `dlspark log schema set --replace` "
        "declares it anew",
    )
