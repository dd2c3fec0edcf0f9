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
