"""Random lives of schemas: changes that evolution takes, and what a row of an older version is in a newer one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random

from random_rows import random_schema, random_type

from dlspark.tables.declaration import Declaration, RecordFormat
from dlspark.tables.evolution import (
    AddColumn,
    AllowNull,
    Change,
    DropColumn,
    MoveColumn,
    Path,
    Place,
    RenameColumn,
    WidenColumn,
)
from dlspark.tables.json_decoding import value_of_default
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
    Struct,
    Type,
    children,
    renumbered,
)


def random_life(rng: Random, format_: RecordFormat, *, steps: int = 6) -> Declaration:
    """Return a declaration that was changed up to so many times."""
    made = Declaration.of(format_, random_schema(rng))
    for _ in range(steps):
        try:
            made = made.evolved([random_change(rng, made)])
        except InvalidSchemaError:
            continue
    return made


def random_change(rng: Random, declaration: Declaration) -> Change:
    """Return a change that may be refused."""
    path, one = rng.choice([*_paths(declaration.current.fields, ())])
    name = f"new{rng.randrange(100)}"
    parent = path[:-1]
    changes: list[Callable[[], Change]] = [
        lambda: _added(rng, (*parent, name)),
        lambda: _added(rng, (*parent, one.name)),
        lambda: DropColumn(path),
        lambda: RenameColumn(path, name),
        lambda: MoveColumn(path, Place()),
        lambda: WidenColumn(path, _wider(one.type)),
        lambda: AllowNull(path),
    ]
    return rng.choice(changes)()


def _added(rng: Random, path: Path) -> Change:
    if rng.random() < 0.4:
        return AddColumn(path, INT, default=7, required=rng.random() < 0.5)
    return AddColumn(path, renumbered(random_type(rng, rng.randint(0, 2)), count(1).__next__))


def _wider(type_: Type) -> Type:
    if isinstance(type_, Decimal):
        return Decimal(38, type_.scale)
    return DOUBLE if type_ == FLOAT else LONG


def _paths(fields: tuple[Field, ...], where: Path) -> list[tuple[Path, Field]]:
    found: list[tuple[Path, Field]] = []
    for one in fields:
        found += [((*where, one.name), one), *_paths(children(one.type), (*where, one.name))]
    return found


def expected_row(row: dict[str, object], old: tuple[Field, ...], new: tuple[Field, ...]) -> dict[str, object]:
    """Return what a row of older fields is in newer ones, by their ids."""
    by_id = {one.id: one for one in old}
    made: dict[str, object] = {}
    for one in new:
        source = by_id.get(one.id)
        if source is not None:
            made[one.name] = _expected(row[source.name], source.type, one.type)
        else:
            made[one.name] = None if one.default is None else value_of_default(one)
    return made


def _expected(value: object, old: Type, new: Type) -> object:
    if value is None:
        return None
    if isinstance(old, Struct) and isinstance(new, Struct) and isinstance(value, dict):
        return expected_row(value, old.fields, new.fields)
    if isinstance(old, ListOf) and isinstance(new, ListOf) and isinstance(value, list):
        return [_expected(one, old.element.type, new.element.type) for one in value]
    if isinstance(old, MapOf) and isinstance(new, MapOf) and isinstance(value, list):
        return [(key, _expected(one, old.value.type, new.value.type)) for key, one in value]
    return value
