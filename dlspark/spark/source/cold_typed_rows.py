"""Row groups of cold files as rows of a version of what their log declares: the same rows that their records give.

A file has the typed columns of the version that was current when it was written, by the ids of fields, and the bytes of
records (`value`) only where those columns do not give them back. A query has a version of its own. So a record's row
comes from

| the file's declaration and the query's | bytes of the record in the file | row |
|---|---|---|
| equal, the current version wanted | any | the typed columns and `_error`, as they are |
| differ | none | the typed columns, by ids: cast where they were widened, defaults or null where they came later |
| differ | there | decoded from the bytes, as everywhere |

Why that is the same: the first line's columns were made by the same decoder with the same declaration. In the second,
the bytes are exactly those that the encoder makes of the columns, by some version up to the file's: they name the
fields of that version and no other, so to read them as another one is to look for each field by its id. In the third
nothing is known of what else the bytes say: a JSON record may have named a member that became a column later.

A record that was erased has neither bytes nor columns. It is decoded from no bytes, as whoever reads entries gets it.

An Arrow record holds many rows, or none: then a row of the file stands for it, with number -1, which is no row here.
Row groups begin where a record begins.

Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlspark.core.codec.vector_decoding import timestamps
from dlspark.core.cold.files.columns import ERROR, FLAG_ERASED, LOG
from dlspark.core.cold.files.footer import Footer
from dlspark.spark.source.cold_columns import empty_rows, is_cut, numbers, within_slots
from dlspark.spark.source.planning import SegmentSpan
from dlspark.tables.arrow_decoding import columns_by_ids
from dlspark.tables.arrow_types import FIELD_ID
from dlspark.tables.codecs import record_of_row
from dlspark.tables.declaration import RecordFormat
from dlspark.tables.resolution import DecodedRows
from dlspark.tables.typed_rows import LOG_TYPE, VALUE, TypedRows, check_fits
from metadata.foundation.errors import check

_PLACES: Final = ("entry", "slot")
_IDS: Final = "transaction_id"


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """What is read of a row group?

    Args:
        names: paths of the file's columns, none twice.
        as_stored: whether all rows are what the typed columns say, and no bytes are decoded.
        same: whether the file's declaration is the query's, too.
        known: whether the typed columns, read or not, are those of all rows: so their statistics are.
        all_fit: whether it is known that each record fits.
    """

    names: tuple[str, ...]
    as_stored: bool
    same: bool
    known: bool
    all_fit: bool


def gives_columns(footer: Footer, rows: TypedRows) -> bool:
    """Return whether a file's columns, and the bytes that it has, give rows of a version without its other records."""
    declared = footer.declaration
    own_bytes = VALUE in rows.schema.names and VALUE not in rows.own  # bytes of records that it does not have as such
    return declared is not None and declared.id == rows.decoder.declaration.id and not own_bytes


def stored_columns(footer: Footer, rows: TypedRows, group: int, span: SegmentSpan) -> StoredColumns:
    """Return what of a row group gives a span's rows. `gives_columns` holds."""
    declaration, target, stored = rows.decoder.declaration, rows.decoder.target, footer.declaration
    check(stored is not None, "columns were asked of a file that has none")
    said = footer.row_groups[group]
    same = (
        replace(stored, strict=declaration.strict) == declaration  # type: ignore[type-var]
        and target.id == declaration.current.id
        and not footer.redacted
    )
    exact = said.values == 0 and not footer.redacted
    parts = _parts_wanted(rows, span)
    own = [name for one in target.fields if one.name in rows.own and (name := _name_of(footer, one.id)) is not None]
    others: list[str] = []
    if same:
        others = _wanted_of_misfits(footer, rows, group)
    elif exact:
        pass
    elif rows.decodes:
        parts |= {"row", _IDS, "flags"}
        others = [footer.value_column]
    if declaration.strict and not exact:
        parts |= set(_PLACES)
    names = [*(f"{LOG}.{part}" for part in sorted(parts)), *own, *others]
    fits = exact or (same and _all_fit(footer, group))
    return StoredColumns(tuple(names), same or exact or not rows.decodes, same, same or exact, fits)


def _parts_wanted(rows: TypedRows, span: SegmentSpan) -> set[str]:
    """Return the fields of the file's `_log` that rows show, or that tell which rows are the span's."""
    parts: set[str] = set()
    if LOG in rows.schema.names:
        shown = set(rows.schema.field(LOG).type.names)
        parts = (shown & {"entry", "slot", "row", "sequence_id", _IDS}) | ({_IDS} if "timestamp" in shown else set())
    if rows.decoder.declaration.format is RecordFormat.ARROW:
        parts.add("row")
    return parts | (set(_PLACES) if is_cut(span) else set())


def _wanted_of_misfits(footer: Footer, rows: TypedRows, group: int) -> list[str]:
    """Return the columns that say what does not fit, as far as rows show it."""
    shows_bytes = LOG in rows.schema.names and VALUE in rows.schema.field(LOG).type.names
    wanted = ERROR in rows.schema.names or rows.decoder.declaration.strict or shows_bytes
    if not wanted or _all_fit(footer, group):
        return []
    return [ERROR, footer.value_column] if shows_bytes else [ERROR]


def _all_fit(footer: Footer, group: int) -> bool:
    """Return whether no record of a row group has an error, by its statistics."""
    said = footer.parquet.row_group(group)
    (leaf,) = footer.leaves([ERROR])
    statistics = said.column(leaf).statistics if said.column(leaf).is_stats_set else None
    return statistics is not None and statistics.has_null_count and statistics.null_count == said.num_rows


def _name_of(footer: Footer, id_: int) -> str | None:
    """Return what a file calls the column of an id; None where it does not have it."""
    wanted = str(id_).encode()
    return next((one.name for one in footer.schema if (one.metadata or {}).get(FIELD_ID) == wanted), None)


class RowsOfGroups:
    """How do row groups become rows? Keep one for a task.

    Args:
        rows: What the rows have, and what reads records.
    """

    def __init__(self, rows: TypedRows) -> None:
        self._rows = rows
        self._many = rows.decoder.declaration.format is RecordFormat.ARROW

    def of(self, batch: pa.RecordBatch, columns: StoredColumns, footer: Footer, span: SegmentSpan) -> pa.RecordBatch:
        """Return the rows of a span, of which `batch` has the columns that `stored_columns` says, cut to its entries.

        Raises RecordMisfitError for the first record that does not fit, where the log is strict.
        """
        batch = within_slots(batch, span)
        if self._many and columns.as_stored:
            batch = _without_empty(batch)
        if columns.as_stored:
            return self._as_stored(batch, columns, footer, span)
        return self._decoded(batch, footer, span)

    def _as_stored(
        self, batch: pa.RecordBatch, columns: StoredColumns, footer: Footer, span: SegmentSpan
    ) -> pa.RecordBatch:
        """Return rows of which all columns are in the file."""
        count = len(batch)
        known = columns.same and ERROR in batch.schema.names
        errors = batch.column(ERROR) if known else pa.nulls(count, pa.string())
        if self._rows.decoder.declaration.strict and known:
            check_fits(DecodedRows(pa.RecordBatch.from_arrays([], names=[]), errors), _places(batch, span))
        misfits = pa.nulls(count, pa.binary())
        if errors.null_count < count and footer.value_column in batch.schema.names:
            misfits = _where(errors.is_valid(), batch.column(footer.value_column))
        made = self._own_columns(batch, footer, same=columns.same)
        number = numbers(batch, "row") if self._many and self._shows_row() else np.zeros(count, np.int64)
        return self._made(made, errors, misfits, batch, number, span)

    def _decoded(self, batch: pa.RecordBatch, footer: Footer, span: SegmentSpan) -> pa.RecordBatch:
        """Return rows of which some come from the bytes of their records."""
        row, values = numbers(batch, "row"), batch.column(footer.value_column)
        first = np.flatnonzero(row <= 0)  # the first row of each record
        record = np.cumsum(row <= 0) - 1
        check(not len(row) or row[0] <= 0, "a row group begins within a record", log=span.log, dlsn=span.start)
        erased = (numbers(batch, "flags") & FLAG_ERASED) != 0
        has_bytes = (values.is_valid().to_numpy(zero_copy_only=False) | erased)[first]
        told = first[has_bytes]
        places = batch.take(pa.array(told))
        payloads = places.column(footer.value_column).fill_null(b"")
        found = self._rows.decoder.decode(payloads, pa.array(numbers(places, _IDS)))
        if self._rows.decoder.declaration.strict:
            check_fits(found, _places(places, span))
        within = np.arange(len(told)) if found.counts is None else record_of_row(found.counts).to_numpy()
        decoded = np.flatnonzero(has_bytes)[within]
        kept = np.flatnonzero(~has_bytes[record] & (row >= 0)) if len(record) else record
        order = np.argsort(np.concatenate([record[kept], decoded]), kind="stable")
        take, source = pa.array(order), np.concatenate([kept, first[decoded]])[order]
        stored = self._own_columns(batch.take(pa.array(kept)), footer, same=False)
        made = {name: pa.concat_arrays([column, found.rows.column(name)]).take(take) for name, column in stored.items()}
        errors = pa.concat_arrays([pa.nulls(len(kept), pa.string()), found.errors]).take(take)
        misfits = _where(errors.is_valid(), values.take(pa.array(source)).fill_null(b""))
        number = np.concatenate([row[kept], _numbers_within(within)])[order]
        return self._made(made, errors, misfits, batch.take(pa.array(source)), number, span)

    def _own_columns(self, batch: pa.RecordBatch, footer: Footer, *, same: bool) -> dict[str, pa.Array]:
        """Return the wanted columns that the log declares, of rows that are what a file's columns say.

        `same`: by the very declaration that is wanted. Then also rows that do not fit are among them, which have no
        value where one is required; and what is required in a nested type may be null by the file's type.
        """
        fields = [one for one in self._rows.decoder.target.fields if one.name in self._rows.own]
        if same:
            return {one.name: batch.column(one.name) for one in fields}
        stored = [one for one in footer.schema if one.name not in (LOG, ERROR, footer.value_column)]
        stored = [one for one in stored if one.name in batch.schema.names]
        made = columns_by_ids(fields, stored, [batch.column(one.name) for one in stored], len(batch))
        return {one.name: column for one, column in zip(fields, made, strict=True)}

    def _shows_row(self) -> bool:
        return LOG in self._rows.schema.names and "row" in self._rows.schema.field(LOG).type.names

    def _made(
        self,
        own: dict[str, pa.Array],
        errors: pa.Array,
        misfits: pa.Array,
        places: pa.RecordBatch,
        number: npt.NDArray[np.int64],
        span: SegmentSpan,
    ) -> pa.RecordBatch:
        """Return the wanted columns; `places` has each row's place in the file, `misfits` the bytes that do not fit."""
        columns = []
        for one in self._rows.schema:
            if one.name in self._rows.own:
                columns.append(own[one.name])
            elif one.name == ERROR:
                columns.append(errors)
            else:
                check(one.name == LOG, "a cold file's columns were asked for records' bytes")
                parts = [_place(part, places, misfits, number, span) for part in one.type.names]
                columns.append(pa.StructArray.from_arrays(parts, fields=list(one.type)))
        if columns:
            return pa.RecordBatch.from_arrays(columns, names=self._rows.schema.names)
        return empty_rows(len(places))


def _place(
    name: str, places: pa.RecordBatch, misfits: pa.Array, number: npt.NDArray[np.int64], span: SegmentSpan
) -> pa.Array:
    """Return a field of `_log`."""
    if name == "log":
        return pa.repeat(pa.scalar(span.log), len(places))
    if name == "segment":
        return pa.repeat(pa.scalar(span.lssn, pa.int64()), len(places))
    if name == "row":
        return pa.array(number, pa.int32())
    if name == VALUE:
        return misfits
    if name == "timestamp":
        return timestamps(numbers(places, _IDS))
    return pa.array(numbers(places, name), LOG_TYPE.field(name).type)


def _places(batch: pa.RecordBatch, span: SegmentSpan) -> pa.RecordBatch:
    """Return where records are, as an error says it."""
    columns = [_place(name, batch, pa.nulls(0), np.empty(0, np.int64), span) for name in ("log", "segment", *_PLACES)]
    return pa.RecordBatch.from_arrays(columns, names=["log", "segment", *_PLACES])


def _without_empty(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without those that stand for records which hold none."""
    row = numbers(batch, "row")
    return batch if not (row < 0).any() else batch.take(pa.array(np.flatnonzero(row >= 0)))


def _numbers_within(owner: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of each row in its record, of rows that say which record they are of, in order."""
    if not len(owner):
        return np.empty(0, np.int64)
    starts = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    return np.arange(len(owner)) - np.repeat(starts, np.diff([*starts, len(owner)]))


def _where(kept: pa.Array, values: pa.Array) -> pa.Array:
    """Return values where `kept` says so, else null; those others are not copied on the way."""
    if not pc.any(kept).as_py():
        return pa.nulls(len(values), pa.binary())
    at = pc.if_else(kept, pa.array(range(len(values)), pa.int64()), pa.scalar(None, pa.int64()))
    return values.take(at).cast(pa.binary())
