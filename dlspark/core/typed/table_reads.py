"""`TableReads`: the records of one reader as tables of the version that it began with.

The declaration is read anew whenever records are at hand, before they are decoded: a record of a version was written
after that version was stored, so what is read then knows every version that the records may have. Records of newer
versions become rows of the one that the reader began with, as long as they can.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.cells import Count
from dlspark.core.metrics.structured_logging import about
from dlspark.core.typed.declarations import Declarations, Declared
from dlspark.tables.declaration import SchemaChangedError
from dlspark.tables.errors import RecordMisfitError
from dlspark.tables.types import Schema
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import InvariantViolation, present

if TYPE_CHECKING:
    from dlspark.tables.typed_rows import TypedRows

_log = logging.getLogger(__name__)


class TableReads:
    """How does a reader make tables of a log's records? One for each reader.

    Args:
        logs: The logs of the namespace.
        name: The log's name.
        misfits: Counts the records that do not fit.
    """

    def __init__(self, logs: LogStore, name: str, misfits: Count) -> None:
        self._misfits = misfits
        self._declarations = Declarations(logs, name)
        self._name = name
        self._known: Declared | None = None
        self._version = 0
        """The version that the reader began with."""
        self._rows: TypedRows | None = None
        self._said = False

    async def begin(self) -> None:
        """Keep the version that is current now, unless there is one. Raises NoSchemaError, LogNotFoundError."""
        if self._known is not None:
            return
        found = await self._declarations.get()
        self._rows = _typed(found)
        self._known, self._version = found, found.declaration.current.id

    async def renew(self) -> None:
        """Learn what the log declares now. Raises SchemaChangedError where records of that are no rows of the version
        that the reader began with."""
        known = present(self._known, "it has not begun", log=self._name)
        found = await self._declarations.find(known)
        if found is None or found.stored.id != known.stored.id:
            raise SchemaChangedError(
                f"The schema that reading began with was withdrawn{'' if found is None else ', and there is another'}; "
                "nothing more was read",
                log=self._name,
                advice="Open another reader: it has the columns that the log declares now",
            )
        if found is known:
            return
        target = found.declaration.version(self._version)
        try:
            self._rows = _typed(found, target)
        except SchemaChangedError as error:
            error.log = self._name
            raise
        self._known = found
        if not self._said and found.declaration.current.id != self._version:
            self._said = True
            _log.warning(
                "log %s: version %d of its schema is there; tables keep the columns of version %d, with which reading "
                "began",
                self._name,
                found.declaration.current.id,
                self._version,
                extra=about(log=self._name),
            )

    def rows(self, records: pa.RecordBatch) -> tuple[pa.Table, RecordMisfitError | None]:
        """Return the rows of records (`ROW_SCHEMA`); in a strict log those before the first record that does not fit,
        and the error that this one is."""
        typed = present(self._rows, "it has not begun", log=self._name)
        try:
            rows = typed.of(records)
            self._misfits.inc(_misfits(rows))
            return pa.Table.from_batches([rows]), None
        except RecordMisfitError as misfit:
            before = typed.of(records.slice(0, _index(records, DLSN.parse(str(misfit.dlsn)))))
            return pa.Table.from_batches([before]), misfit


def _typed(declared: Declared, target: Schema | None = None) -> TypedRows:
    from dlspark.tables.codecs import RecordDecoder
    from dlspark.tables.typed_rows import TypedRows

    return TypedRows(RecordDecoder(declared.declaration, target))


def _misfits(rows: pa.RecordBatch) -> int:
    """Return how many records the rows that say why are of."""
    errors = rows.column("_error")
    if errors.null_count == len(errors):
        return 0
    first = pc.equal(pc.struct_field(rows.column("_log"), "row"), 0)
    return int(pc.sum(pc.and_(errors.is_valid(), first)).as_py())


def _index(records: pa.RecordBatch, dlsn: DLSN) -> int:
    """Return which of the records is at a position."""
    segment, entry, slot = (records.column(name).to_numpy() for name in ("segment", "entry", "slot"))
    found = np.flatnonzero((segment == dlsn.lssn) & (entry == dlsn.entry_id) & (slot == dlsn.slot_id))
    if not len(found):
        raise InvariantViolation("a record does not fit that was not read", dlsn=dlsn)
    return int(found[0])
