"""Records as rows of a log's own columns, with where each is and why one does not fit: what every reader hands out.

    id, price, at ...        the columns of one version of the log's schema; all null where a record does not fit
    _log                     a struct: where the record is (LOG_TYPE)
    _error                   why the record does not fit; null where it does
    value                    the record's bytes, where they are asked for beside the columns

`_log.value` has the bytes of records that do not fit, so nothing is lost; of the others it is null, since they would be
there twice. A log that is strict has no such rows: the first one ends the reading.

Nothing here does I/O, and nothing here knows Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.tables.arrow_types import arrow_schema
from dlspark.tables.codecs import RecordDecoder, record_of_row
from dlspark.tables.declaration import RecordFormat
from dlspark.tables.errors import RecordMisfitError
from dlspark.tables.resolution import DecodedRows
from metadata.foundation.errors import check

LOG: Final = "_log"
ERROR: Final = "_error"
VALUE: Final = "value"
LOG_TYPE: Final = pa.struct(
    [
        pa.field("log", pa.string()),
        pa.field("segment", pa.int64()),
        pa.field("entry", pa.int64()),
        pa.field("slot", pa.int64()),
        pa.field("row", pa.int32()),
        pa.field("sequence_id", pa.int64()),
        pa.field("transaction_id", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("value", pa.binary()),
    ]
)
"""Where a row's record is: the columns of records, and `row`, its number in the record from 0."""


class TypedRows:
    """How do I make rows of a log's records? Keep one for all records of a log.

    Args:
        decoder: What reads the records.
        columns: Columns that are wanted, in order, of the log's own, `_log`, `_error` and `value`; None: the log's own,
            `_log` and `_error`.
        parts: Fields of `_log` that are wanted, in order; None: all.
    """

    def __init__(
        self, decoder: RecordDecoder, columns: Sequence[str] | None = None, parts: Sequence[str] | None = None
    ) -> None:
        self.decoder = decoder
        own = {one.name: one.with_nullable(True) for one in arrow_schema(decoder.target)}
        log = pa.struct([LOG_TYPE.field(part) for part in (LOG_TYPE.names if parts is None else parts)])
        others = {LOG: pa.field(LOG, log), ERROR: pa.field(ERROR, pa.string()), VALUE: pa.field(VALUE, pa.binary())}
        wanted = [*own, LOG, ERROR] if columns is None else columns
        self.schema = pa.schema([own[name] if name in own else others[name] for name in wanted])
        """The columns of what comes out."""
        self.own = frozenset(own).intersection(wanted)
        """Those that the log declares."""
        # A record is a row without being read, but for Arrow's, which hold many.
        self.decodes = (
            decoder.declaration.format is RecordFormat.ARROW
            or decoder.declaration.strict
            or any(name in own or name == ERROR or (name == LOG and VALUE in log.names) for name in wanted)
        )

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of records, which have the columns `log` to `value`.

        Raises RecordMisfitError for the first record that does not fit, where the log is strict.
        """
        payloads = records.column(VALUE)
        if not self.decodes:
            nothing = pa.nulls(len(records), pa.string())
            return self._rows(DecodedRows(pa.RecordBatch.from_arrays([], names=[]), nothing), records, None)
        found = self.decoder.decode(payloads, records.column("transaction_id"))
        if self.decoder.declaration.strict:
            check_fits(found, records)
        return self._rows(found, records, None if found.counts is None else record_of_row(found.counts))

    def _rows(self, found: DecodedRows, records: pa.RecordBatch, record: pa.Array | None) -> pa.RecordBatch:
        """Return the wanted columns; `record` is the index of each row's record, None if each is one row."""
        # The bytes of a record with many rows would be there as many times: each place below takes what it needs.
        places = records.drop_columns([VALUE])
        repeated = places if record is None else places.take(record)
        columns = []
        for one in self.schema:
            if one.name in self.own:
                columns.append(found.rows.column(one.name))
            elif one.name == LOG:
                columns.append(_log(one.type, repeated, records.column(VALUE), found, record))
            elif one.name == ERROR:
                columns.append(found.errors)
            else:
                values = records.column(VALUE) if record is None else records.column(VALUE).take(record)
                columns.append(values.cast(pa.binary()))
        if columns:
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        # Arrow counts rows by columns, so there is one at first.
        return repeated.select([])


def _log(
    type_: pa.StructType, records: pa.RecordBatch, values: pa.Array, found: DecodedRows, record: pa.Array | None
) -> pa.Array:
    """Return where rows are: `records` has the place of each row's record, `values` the bytes of each record."""
    parts = []
    for field in type_:
        if field.name == "row":
            parts.append(_numbers(len(records), record, found.counts))
        elif field.name == VALUE:
            parts.append(_misfits(values, found.errors, record))
        else:
            parts.append(records.column(field.name))
    return pa.StructArray.from_arrays(parts, fields=list(type_))


def _misfits(values: pa.Array, errors: pa.Array, record: pa.Array | None) -> pa.Array:
    """Return the bytes of the records that do not fit, null for the others. Those are not copied on the way, as by a
    choice between them and null."""
    if errors.null_count == len(errors):
        return pa.nulls(len(errors), pa.binary())
    at = pa.array(range(len(errors)), pa.int64()) if record is None else record
    return values.take(pc.if_else(errors.is_valid(), at, pa.scalar(None, pa.int64()))).cast(pa.binary())


def _numbers(count: int, record: pa.Array | None, counts: pa.Array | None) -> pa.Array:
    """Return the number of each row in its record."""
    if record is None or counts is None:
        return pa.repeat(pa.scalar(0, pa.int32()), count)
    before = pc.subtract(pc.cumulative_sum(counts), counts)
    return pc.subtract(pa.array(range(count), pa.int64()), before.take(record)).cast(pa.int32())


def check_fits(found: DecodedRows, records: pa.RecordBatch) -> None:
    """Raise RecordMisfitError for the first record that does not fit; `records` have the columns of their places."""
    if found.errors.null_count == len(found.errors):
        return
    at = pc.index(found.errors.is_valid(), pa.scalar(True)).as_py()
    check(at >= 0, "an error is there that cannot be found")
    record = at if found.counts is None else record_of_row(found.counts)[at].as_py()
    said = {name: records.column(name)[record].as_py() for name in ("log", "segment", "entry", "slot")}
    raise RecordMisfitError(
        f"A record does not fit the log's schema: {found.errors[at].as_py()}; nothing from it on was read",
        advice="The log is strict. Read it with columns=raw, or let such records be rows that say why: dlspark log "
        f"schema set {said['log']} --no-strict, or ALTER TABLE ... SET TBLPROPERTIES ('strict' = 'false')",
        log=said["log"],
        dlsn=f"{said['segment']}:{said['entry']}:{said['slot']}",
    )
