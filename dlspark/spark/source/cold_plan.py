"""The driver's side of cold files that are read as columns: which row groups have rows that a query wants.

The spans of a plan are ranges of entries at first, wherever those are. Of a span whose segment is in a file alone, each
row group that may have wanted rows becomes a span of its own, with what its rows weigh: the columns that are read of
them, and no row less than `MIN_ROW_BYTES`. Filters leave out row groups (`row_group_filters`), but none with a record
that would end the query, as the first misfit of a strict log does.

A file's columns do not give everything. Entries are read where records' bytes are wanted that typed columns stand for,
where the file was written by another declaration of the log, and where tasks reach read proxies alone.

Fault model: a plan reads the footers of its files, a few at a time, and waits for a store as tasks do. A file that is
not there leaves its spans as they are: their tasks know what that means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import Filter

from dlspark.core.cold.files.footer import Footer
from dlspark.core.cold.reading.cold_files import ColdFilesHold, shared_cold_files
from dlspark.core.cold.reading.places import ANYWHERE, ReadsFrom
from dlspark.objects.errors import ObjectNotFoundError
from dlspark.spark.source.cold_columns import gives_records, is_cut, record_columns
from dlspark.spark.source.frame_columns import FrameColumns
from dlspark.spark.source.planning import ColdRows, SegmentSpan
from metadata.foundation.errors import check
from metadata.foundation.tasks import together

if TYPE_CHECKING:
    from dlspark.spark.source.declared_columns import DeclaredColumns
    from dlspark.tables.typed_rows import TypedRows

MIN_ROW_BYTES: Final = 8
"""What a row weighs at least: columns that repeat themselves take next to nothing in a file, and in memory what they
are."""
MAX_FOOTERS: Final = 16
"""Files whose footers are on their way at a time."""


@dataclass(frozen=True)
class WantedColumns:
    """Which columns does a query read?

    Args:
        names: those of records, where it reads such.
        rows: those that its log declares; None: those of records.
        hints: filters on them, which Spark sees to itself.
    """

    names: Sequence[str]
    rows: TypedRows | None = None
    hints: Sequence[Filter] = ()


def wanted_columns(frame: FrameColumns, declared: DeclaredColumns | None, hints: Sequence[Filter]) -> WantedColumns:
    """Return what a frame reads, of whose log `declared` says what it declares; None: columns of records."""
    if declared is None:
        return WantedColumns(frame.names or ())
    from dlspark.spark.source.typed_records import prepared  # as below

    return WantedColumns((), prepared(declared.packed, frame.schema.json())[0], hints)


class RowGroupPlanner:
    """Makes spans of row groups. To be closed.

    Args:
        wanted: what the query reads.
        patience_s: for how long a store is waited for that is out of reach.
        reads_from: in which region the driver is.
    """

    def __init__(self, wanted: WantedColumns, patience_s: float, reads_from: ReadsFrom = ANYWHERE) -> None:
        self._wanted = wanted
        self._patience_s = patience_s
        self._reads_from = reads_from
        self._hold: ColdFilesHold | None = None
        self._room = asyncio.Semaphore(MAX_FOOTERS)

    async def close(self) -> None:
        """Let the stores of files go."""
        hold, self._hold = self._hold, None
        if hold is not None:
            await hold.close()

    async def spans(self, spans: Sequence[SegmentSpan]) -> list[SegmentSpan]:
        """Return spans with row groups in place of those whose file gives the wanted columns, in the same order.

        Raises ObjectStoreError, DamagedColdFileError.
        """
        self._hold = self._hold or shared_cold_files().hold()
        planned = await together(self._planned(self._hold, span) for span in spans)
        return [one for some in planned for one in some]

    async def _planned(self, hold: ColdFilesHold, span: SegmentSpan) -> list[SegmentSpan]:
        file = span.cold.file if span.is_cold and span.cold is not None else None
        if file is None:
            return [span]
        try:
            async with self._room:
                footer = await hold.files.reader(file, self._patience_s, self._reads_from).footer()
        except ObjectNotFoundError:
            return [span]
        return row_group_spans(footer, span, self._wanted)


def row_group_spans(footer: Footer, span: SegmentSpan, wanted: WantedColumns) -> list[SegmentSpan]:
    """Return a span of each row group that may have wanted rows; the span itself where columns do not give them."""
    groups = footer.groups_of(span.lssn, span.first_entry, span.last_entry)
    if wanted.rows is None:
        if not gives_records(footer, groups, wanted.names):
            return [span]
        return [_part(footer, span, at, record_columns(footer, at, wanted.names, cut=is_cut(span))) for at in groups]
    # What logs declare is loaded where a frame has such columns.
    from dlspark.spark.source.cold_typed_rows import gives_columns, stored_columns
    from dlspark.spark.source.row_group_filters import RowGroupFilters

    if not gives_columns(footer, wanted.rows):
        return [span]
    filters = RowGroupFilters(footer, wanted.rows.decoder.target, wanted.hints)
    strict = wanted.rows.decoder.declaration.strict
    found: list[SegmentSpan] = []
    for at in groups:
        columns = stored_columns(footer, wanted.rows, at, span)
        if (strict and not columns.all_fit) or filters.may_have_rows(at, known=columns.known):
            found.append(_part(footer, span, at, columns.names))
    return found


def _part(footer: Footer, span: SegmentSpan, at: int, names: Sequence[str]) -> SegmentSpan:
    """Return what a row group has of a span."""
    group, segment = footer.row_groups[at], footer.segment(span.lssn)
    first = segment.first_row + segment.entries.rows_before(span.first_entry)
    after = segment.first_row + segment.entries.rows_before(span.last_entry + 1)
    begin, end = max(first, group.first_row), min(after, group.first_row + group.rows)
    check(begin < end, "a row group was planned that has no row of a span", log=span.log, dlsn=span.start)
    weight = _decoded_bytes(footer, at, names) * (end - begin) // group.rows
    rows = ColdRows(at, begin - group.first_row, end - begin, max(weight, MIN_ROW_BYTES * (end - begin)))
    made = replace(span, cold_rows=rows, records=min(span.records, end - begin))
    # Row groups end between entries: the slots at a span's ends belong to those with its first and its last rows.
    if begin > first:
        made = replace(made, first_entry=group.first.entry_id, first_slot=0)
    if end < after:
        made = replace(made, last_entry=group.last.entry_id, end_slot=None)
    return made


def _decoded_bytes(footer: Footer, at: int, names: Sequence[str]) -> int:
    """Return what columns of a row group take before they are compressed."""
    said = footer.parquet.row_group(at)
    return sum(said.column(leaf).total_uncompressed_size for leaf in footer.leaves(names))
