"""Records that say their schema, Avro's and Arrow's, read as rows of another one: which field is which.

A field is looked for by its id. Where the writer's schema has no ids it is looked for by its name, then by the names
that it had in earlier versions, newest first. A field that the record's schema does not have has its default, or is
null; one that the log's schema does not have is passed over. Types may have been widened since, never narrowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dlspark.tables.types import DATE, Field, Schema, Type

FIRST_US: Final = -62_135_596_800_000_000
LAST_US: Final = 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since the epoch: neither Python nor SQL has a form for others."""
DAY_US: Final = 86_400_000_000

Names: TypeAlias = "Mapping[int, Sequence[str]]"
"""Other names of fields, by their ids, newest first."""


class MisfitError(Exception):
    """A record, or a value of one, that its column does not take."""


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Which rows do records hold?

    Args:
        rows: The rows, with the schema's columns; of a record that does not fit there is one, and all are null.
        errors: Why a row's record does not fit; null where it does.
        counts: How many of the rows, one after another, each record gave, an int64 array; None: one each.
    """

    rows: pa.RecordBatch
    errors: pa.Array
    counts: pa.Array | None = None


def other_names(schemas: Sequence[Schema], target: Schema) -> Names:
    """Return the names that fields of `target` have in the other versions, those of later ones as well: a query that
    keeps its version reads records which were written since."""
    found: dict[int, list[str]] = {id_: [one.name] for id_, one in target.by_id().items()}
    for schema in reversed(schemas):
        for id_, one in schema.by_id().items():
            if id_ in found and one.name not in found[id_]:
                found[id_].append(one.name)
    return {id_: names[1:] for id_, names in found.items() if names[1:]}


def name_of(one: Field, siblings: Sequence[Field], written: Mapping[str, str], former: Names) -> str | None:
    """Return the name in the record of a field that is known by its name; None where it has none.

    `written` has what the record's siblings are called, by what that is as a column's name. A former name that is
    another column's by now is that column's.
    """
    taken = {other.name for other in siblings if other is not one}
    names = (one.name, *(name for name in former.get(one.id, ()) if name not in taken))
    return next((written[name] for name in names if name in written), None)


def lists_of(lengths: pa.Array, values: pa.Array) -> pa.Array:
    """Return lists of these lengths, of all their values in order."""
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    return pa.LargeListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int64()), ends]), values)


def has_key_twice(lengths: pa.Array, keys: pa.Array) -> bool:
    """Return whether one of several maps has a key twice: `lengths` of the maps, and the keys of all, in order."""
    if not len(keys) or pc.max(lengths).as_py() < 2:
        return False
    maps = pc.list_parent_indices(lists_of(lengths, keys))
    if pa.types.is_nested(keys.type):
        keys = pa.array([repr(one) for one in keys.to_pylist()], pa.large_string())  # Arrow does not group by these
    return bool(pa.table([maps, keys], ["map", "key"]).group_by(["map", "key"]).aggregate([]).num_rows < len(keys))


def outside_years(type_: Type, column: pa.Array) -> bool:
    """Return whether a column of dates or times has one outside of the years 1 to 9999."""
    ends = pc.min_max(column.cast(pa.int32() if type_ == DATE else pa.int64())).as_py()
    unit = DAY_US if type_ == DATE else 1
    return ends["min"] is not None and bool(ends["min"] * unit < FIRST_US or ends["max"] * unit > LAST_US)


def years_error(path: str) -> MisfitError:
    """Return the error of a time that is outside of those years."""
    return MisfitError(f"column {path} has a time outside of the years 1 to 9999")


def missing_error(path: str) -> MisfitError:
    """Return the error of a required column without a value."""
    return MisfitError(f"column {path} is NOT NULL, and there is no value of it")
