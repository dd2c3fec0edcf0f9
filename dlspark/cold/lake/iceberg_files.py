"""A cold file as Iceberg's manifests name it: its size, rows, and the bounds of its columns, from the footer alone.

Columns are known by the field ids that the file itself has, so a file that was written under an older name or a
narrower type is named as it is; columns that the table has not are left out. Bounds are kept of columns with one
value a row; a bound that cannot be said (`value`, texts beyond 16 characters, in part) is left out, and is never
wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import StatsAggregator
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, PrimitiveType, StringType

from dlspark.cold.lake.columns import field_id

_LOG: Final = logging.getLogger(__name__)
_TEXT_CHARS: Final = 16


def data_file(
    url: str,
    size: int,
    partition: str | None,
    parquet: pq.FileMetaData,
    columns: pa.Schema,
    schema: Schema,
    spec_id: int,
) -> DataFile:
    """Return what a manifest says of a file.

    Args:
        url: its address.
        size: its bytes.
        partition: the log's name, where the table is partitioned by it.
        parquet: its Parquet footer.
        columns: its columns, with field ids.
        schema: the table's.
        spec_id: the table's partitioning.
    """
    ids = {path: id_ for path, id_ in _leaf_ids(columns).items() if _has(schema, id_)}
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    nulls: dict[int, int] = {}
    for path, id_, chunk in _chunks(parquet, ids):
        sizes[id_] = sizes.get(id_, 0) + chunk.total_compressed_size
        if "." not in path or path.startswith("_log."):
            counts[id_] = counts.get(id_, 0) + chunk.num_values
    lower, upper = _bounds(parquet, ids, schema, nulls)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=url,
        file_format=FileFormat.PARQUET,
        partition=Record() if partition is None else Record(partition),
        record_count=parquet.num_rows,
        file_size_in_bytes=size,
        column_sizes=sizes,
        value_counts=counts,
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=sorted(_start(parquet, group) for group in range(parquet.num_row_groups)),
        sort_order_id=None,
        spec_id=spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def _bounds(
    parquet: pq.FileMetaData, ids: Mapping[str, int], schema: Schema, nulls: dict[int, int]
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Return lower and upper bounds by field id, and count nulls, of columns whose every row group says them."""
    found: dict[int, StatsAggregator] = {}
    silent: set[int] = set()
    for path, id_, chunk in _chunks(parquet, ids):
        statistics = chunk.statistics if chunk.is_stats_set else None
        if statistics is None or not statistics.has_null_count or ("." in path and not path.startswith("_log.")):
            silent.add(id_)  # of what is nested, nulls are counted otherwise by Parquet and by Iceberg
            continue
        nulls[id_] = nulls.get(id_, 0) + statistics.null_count
        if statistics.null_count == chunk.num_values:
            continue
        type_ = schema.find_type(id_)
        if not statistics.has_min_max or not isinstance(type_, PrimitiveType) or isinstance(type_, DecimalType):
            silent.add(id_)
            continue
        try:
            one = found.get(id_)
            if one is None:
                chars = _TEXT_CHARS if isinstance(type_, StringType) else None
                one = found[id_] = StatsAggregator(type_, statistics.physical_type, chars)
            one.update_min(statistics.min)
            one.update_max(statistics.max)
        except (ValueError, pa.ArrowException) as error:
            _LOG.debug("column %s: no bounds: %s", path, error)
            silent.add(id_)
    for id_ in silent:
        found.pop(id_, None)
    for id_ in [id_ for id_ in silent if _no_nulls_known(parquet, ids, id_)]:
        nulls.pop(id_, None)
    lower = {id_: bound for id_, one in found.items() if (bound := one.min_as_bytes()) is not None}
    upper = {id_: bound for id_, one in found.items() if (bound := one.max_as_bytes()) is not None}
    return lower, upper


def _no_nulls_known(parquet: pq.FileMetaData, ids: Mapping[str, int], id_: int) -> bool:
    """Return whether some row group does not say how many nulls a column has."""
    return any(
        chunk.statistics is None
        or not chunk.statistics.has_null_count
        or ("." in path and not path.startswith("_log."))
        for path, other, chunk in _chunks(parquet, ids)
        if other == id_
    )


def _chunks(parquet: pq.FileMetaData, ids: Mapping[str, int]) -> list[tuple[str, int, pq.ColumnChunkMetaData]]:
    found = []
    for number in range(parquet.num_row_groups):
        group = parquet.row_group(number)
        for at in range(group.num_columns):
            chunk = group.column(at)
            if chunk.path_in_schema in ids:
                found.append((chunk.path_in_schema, ids[chunk.path_in_schema], chunk))
    return found


def _start(parquet: pq.FileMetaData, group: int) -> int:
    chunk = parquet.row_group(group).column(0)
    first = int(chunk.data_page_offset)
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return first if dictionary is None else min(int(dictionary), first)


def _has(schema: Schema, id_: int) -> bool:
    return schema.find_column_name(id_) is not None


def _leaf_ids(columns: pa.Schema) -> dict[str, int]:
    """Return the field ids of leaf columns by their paths in Parquet."""
    found: dict[str, int] = {}

    def walk(one: pa.Field, path: str) -> None:
        type_ = one.type
        if pa.types.is_struct(type_):
            for part in type_:
                walk(part, f"{path}.{part.name}")
        elif pa.types.is_map(type_):
            walk(type_.key_field, f"{path}.key_value.key")
            walk(type_.item_field, f"{path}.key_value.value")
        elif pa.types.is_list(type_):
            walk(type_.value_field, f"{path}.list.element")
        else:
            found[path] = field_id(one)

    for one in columns:
        walk(one, one.name)
    return found
