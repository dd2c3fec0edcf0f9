"""How a schema may become another one: Iceberg's rules, and one more for formats that name columns in each record.

| change | rule |
|---|---|
| add | a name that is free; a required column needs a default, which older rows show |
| drop | not the last column, nor the one that gives the transaction id |
| rename | a name that is free; the id stays |
| move | among its siblings |
| widen | `int` to `long`, `float` to `double`, a decimal to more digits with the same scale |
| require less | a required column, but for the one that gives the transaction id; never the other way |
| document | any comment |

A JSON record says its columns by name. So a name that another field of the same parent had stays taken for good
(`names_taken`), whatever the parent is named by now: an older record that has it would give its value to the new field.
Formats whose records say their schema (Avro, Arrow)
have no such rule.

Everything else is refused, with a way to go on. Paths name nested fields: `address.street`, `tags.element`, `m.value`.
These are pure functions: the schema that comes out has the next version's number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, TypeAlias

from dlspark.tables.types import (
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    Decimal,
    Field,
    InvalidSchemaError,
    ListOf,
    MapOf,
    Schema,
    Struct,
    Type,
    check_schema,
    children,
    renumbered,
)

Path: TypeAlias = "tuple[str, ...]"
NamesTaken: TypeAlias = "Mapping[tuple[int, str], int]"
"""Ids of fields by the ids of their parents, 0 for none, and the names they had there, in lower case."""
_Act: TypeAlias = "Callable[[tuple[Field, ...], int], tuple[Field, ...]]"
"""What changes siblings, given with the id of their parent."""
_WIDER: Final = frozenset({(INT, LONG), (FLOAT, DOUBLE)})


class EvolutionError(InvalidSchemaError):
    """A change of a schema that records which are there would contradict; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where among its siblings does a field stand? First, or behind the one of a name."""

    after: str | None = None


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a field to the columns, or to a struct. Its type's own ids do not matter: it gets new ones."""

    path: Path
    type: Type
    required: bool = False
    doc: str | None = None
    default: object = None
    place: Place | None = None
    """None: behind all others."""


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Take a field away. Records keep what they have of it."""

    path: Path


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Give a field another name among the same siblings."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """Put a field elsewhere among its siblings."""

    path: Path
    place: Place


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """Give a field a type that has all values of the one before."""

    path: Path
    type: Type


@dataclass(frozen=True, slots=True)
class AllowNull:
    """Let rows have no value of a field."""

    path: Path


@dataclass(frozen=True, slots=True)
class DocumentColumn:
    """Give a field another comment, or None for no comment."""

    path: Path
    doc: str | None


Change: TypeAlias = "AddColumn | DropColumn | RenameColumn | MoveColumn | WidenColumn | AllowNull | DocumentColumn"


def evolve(
    schema: Schema,
    changes: Collection[Change],
    *,
    highest_id: int,
    names_taken: NamesTaken | None = None,
    timestamp_id: int | None = None,
) -> Schema:
    """Return the schema that comes of changes, one after the other.

    Args:
        schema: The version before.
        changes: What is to be done with it.
        highest_id: The highest id that a field of the log ever had.
        names_taken: Names that fields had in any version, where records say columns by name.
        timestamp_id: The field that gives the transaction id.

    Raises:
        EvolutionError: for a change that cannot be.
        InvalidSchemaError: where what comes out cannot be a schema.
    """
    number = count(highest_id + 1).__next__
    root = Struct(schema.fields)
    for change in changes:
        path: object = change.path
        if not isinstance(path, tuple):  # of a text each letter would be a name
            raise EvolutionError(
                f"The path of a change is a tuple of names, and not the text {change.path!r}; nothing was changed",
                advice=f'Write ({change.path!r},), or ("address", "street") for a field of a struct',
            )
        root = _applied(root, change, number, names_taken or {}, timestamp_id)
    found = Schema(schema.id + 1, root.fields)
    check_schema(found)
    return found


def widened(old: Type, new: Type) -> bool:
    """Return whether each value of `old` is one of `new`, with the same meaning."""
    if isinstance(old, Decimal) and isinstance(new, Decimal):
        return old.scale == new.scale and old.precision <= new.precision
    return old == new or (old, new) in _WIDER


def _applied(
    root: Struct, change: Change, number: Callable[[], int], taken: NamesTaken, timestamp_id: int | None
) -> Struct:
    *above, name = change.path
    where = tuple(above)

    def in_struct(fields: tuple[Field, ...], parent: int) -> tuple[Field, ...]:
        at = _index(fields, name)
        if isinstance(change, AddColumn):
            _check_free(change.path, fields, parent, taken, None)
            return _added(fields, change, number)
        if at is None:
            raise _no_column_error(change.path, fields)
        one = fields[at]
        if isinstance(change, DropColumn):
            _check_drop(change, one, fields, timestamp_id)
            return fields[:at] + fields[at + 1 :]
        if isinstance(change, MoveColumn):
            return _placed(fields[:at] + fields[at + 1 :], one, change.place, change.path)
        if isinstance(change, AllowNull) and one.id == timestamp_id:
            raise EvolutionError(
                f"Column {'.'.join(change.path)} gives each record its transaction id, and cannot be null; nothing was "
                "changed",
                advice="Keep it NOT NULL: a record without a time would have no transaction id",
            )
        if isinstance(change, RenameColumn):
            _check_free((*change.path[:-1], change.name), fields, parent, taken, one.id)
        return (*fields[:at], _changed(one, change), *fields[at + 1 :])

    return _within(root, 0, where, in_struct, change.path)


def _within(struct: Struct, parent: int, where: Path, act: _Act, whole: Path) -> Struct:
    """Return a struct, of the field `parent`, in which `act` has changed the fields at a path."""
    if not where:
        return Struct(act(struct.fields, parent))
    name, *below = where
    at = _index(struct.fields, name)
    if at is None:
        raise _no_column_error(whole, struct.fields)
    one = struct.fields[at]
    changed = replace(one, type=_in_type(one, tuple(below), act, whole))
    return Struct((*struct.fields[:at], changed, *struct.fields[at + 1 :]))


def _in_type(parent: Field, where: Path, act: _Act, whole: Path) -> Type:
    type_ = parent.type
    if isinstance(type_, Struct):
        return _within(type_, parent.id, where, act, whole)
    # The fields of lists and maps are changed as those of a struct of one or two, which keeps their names.
    made = _within(Struct(children(type_)), parent.id, where, act, whole).fields
    before = [one.name for one in children(type_)]
    if not before or [one.name for one in made] != before:
        raise EvolutionError(
            f"Column {'.'.join(whole)} is part of {type_}, which has no other fields; nothing was changed",
            advice="Fields of structs can be added, dropped, renamed and moved",
        )
    if isinstance(type_, ListOf):
        return ListOf(made[0])
    if made[0] != children(type_)[0]:
        raise EvolutionError(
            f"Column {'.'.join(whole)}: the key of a map does not change; nothing was changed",
            advice="Add a column with another map",
        )
    return MapOf(made[0], made[1])


def _index(fields: tuple[Field, ...], name: str) -> int | None:
    folded = name.casefold()
    return next((at for at, one in enumerate(fields) if one.name.casefold() == folded), None)


def _added(fields: tuple[Field, ...], change: AddColumn, number: Callable[[], int]) -> tuple[Field, ...]:
    if change.required and change.default is None:
        raise EvolutionError(
            f"Column {'.'.join(change.path)} cannot be NOT NULL: rows that are there have no value of it; nothing was "
            "changed",
            advice="Give it a default, or let it be null",
        )
    new = number()
    one = Field(new, change.path[-1], renumbered(change.type, number), change.required, change.doc, change.default)
    return (*fields, one) if change.place is None else _placed(fields, one, change.place, change.path)


def _placed(fields: tuple[Field, ...], one: Field, place: Place, path: Path) -> tuple[Field, ...]:
    if place.after is None:
        return (one, *fields)
    at = _index(fields, place.after)
    if at is None:
        raise _no_column_error((*path[:-1], place.after), fields)
    return (*fields[: at + 1], one, *fields[at + 1 :])


def _check_drop(change: DropColumn, one: Field, fields: tuple[Field, ...], timestamp_id: int | None) -> None:
    if len(fields) == 1:
        raise EvolutionError(
            f"Column {'.'.join(change.path)} is the last one; nothing was changed", advice="Add another one first"
        )
    if timestamp_id is not None and timestamp_id in {one.id, *Schema(0, (one,)).by_id()}:
        raise EvolutionError(
            f"Column {'.'.join(change.path)} gives each record its transaction id; nothing was changed",
            advice="Keep it: a log's transaction ids come from one column for good",
        )


def _check_free(path: Path, fields: tuple[Field, ...], parent: int, taken: NamesTaken, id_: int | None) -> None:
    at = _index(fields, path[-1])
    if at is not None and fields[at].id != id_:
        raise EvolutionError(
            f"There is a column {'.'.join(path)}; nothing was changed", advice="Take another name, or drop that one"
        )
    former = taken.get((parent, path[-1].casefold()))
    if former is not None and former != id_:
        raise EvolutionError(
            f"Another column was named {'.'.join(path)} before, and records which are there say columns by name: its "
            "values would show as those of this one; nothing was changed",
            advice="Take another name",
        )


def _changed(one: Field, change: Change) -> Field:
    if isinstance(change, RenameColumn):
        return replace(one, name=change.name)
    if isinstance(change, WidenColumn):
        if not widened(one.type, change.type):
            raise EvolutionError(
                f"Column {'.'.join(change.path)} cannot become {change.type}: it is {one.type}, and records which are "
                "there would not fit; nothing was changed",
                advice="int becomes long, float becomes double, a decimal gets more digits; else add another column",
            )
        return replace(one, type=change.type)
    if isinstance(change, AllowNull):
        return replace(one, required=False)
    assert isinstance(change, DocumentColumn)
    return replace(one, doc=change.doc)


def _no_column_error(path: Path, fields: tuple[Field, ...]) -> EvolutionError:
    return EvolutionError(
        f"There is no column {'.'.join(path)}; nothing was changed",
        advice=f"There are: {', '.join(one.name for one in fields)}",
    )
