"""Errors of records and rows, apart from the codecs that raise them: naming one imports no Arrow.

    CallerError
    ├── RowRefusedError       rows that the log's schema has no record for: nothing of them was written
    ├── RecordMisfitError     a record that a strict log's schema does not fit: nothing from it on was read
    └── MissingExtraError     the library of a format is not installed

Those of schemas are where schemas are: InvalidSchemaError in `types`, EvolutionError in `evolution`, SchemaChangedError
in `declaration`.
"""

from __future__ import annotations

from metadata.foundation.errors import CallerError


class RowRefusedError(CallerError):
    """A row that the log's schema has no record for; nothing of its batch was written."""


class RecordMisfitError(CallerError):
    """A record that does not fit its log's schema, which is strict: nothing from it on was read."""


class MissingExtraError(CallerError):
    """A library that is not installed; nothing was read or written."""


class SqlTextError(CallerError):
    """Columns or a condition that are not written as SQL writes them; nothing was done."""


def missing_value_error(path: str, row: int) -> RowRefusedError:
    """Return the error of a row without a value of a required column."""
    return RowRefusedError(
        f"Column {path} is NOT NULL, and row {row} has no value of it; nothing was written",
        advice="Give it a value, leave the row out, or let the column be null (ALTER TABLE ... ALTER COLUMN ... "
        "DROP NOT NULL; not one that gives transaction ids)",
    )


def untold_time_error(path: str) -> RowRefusedError:
    """Return the error of a row with a time that no record can say."""
    return RowRefusedError(
        f"Column {path} has a time outside of the years 1 to 9999, which no record can say; nothing was written",
        advice="Give a time within them, or null",
    )


def repeated_key_error(path: str) -> RowRefusedError:
    """Return the error of a row with a map in which a key is twice: of two values readers would take one."""
    return RowRefusedError(
        f"Column {path} has a map with a key twice; nothing was written", advice="Keep one of its values"
    )
