"""Which changes make one schema of another, and how SQL says them.

Fields are known by ids where both schemas are of one log, as two versions are. A schema that a person wrote has no ids
of the log's: there a field is the one of its name, so a column that was renamed is one dropped and one added.

What evolution refuses is found all the same, as the change that it would take: `evolution` says why it cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dlspark.tables.ddl import default_text, name_text, quoted, type_text
from dlspark.tables.evolution import (
    AddColumn,
    AllowNull,
    Change,
    DocumentColumn,
    DropColumn,
    EvolutionError,
    MoveColumn,
    Path,
    Place,
    RenameColumn,
    WidenColumn,
)
from dlspark.tables.types import Field, Schema, Struct, children


def changes_between(old: Schema, new: Schema, *, by_ids: bool) -> list[Change]:
    """Return the changes, one after the other, that make `new` of `old`; none where they are equal but for ids.

    Raises EvolutionError for what no change does: a field that becomes required, or has another default.
    """
    found = _Changes(by_ids)
    found.compare((), old.fields, new.fields)
    return found.made


def change_text(change: Change) -> str:
    """Return a change as SQL says it behind ALTER TABLE."""
    path = ".".join(name_text(name) for name in change.path)
    if isinstance(change, AddColumn):
        text = f"ADD COLUMN {path} {type_text(change.type)}{' NOT NULL' if change.required else ''}"
        if change.default is not None:
            text += f" DEFAULT {default_text(change.default)}"
        text += "" if change.doc is None else f" COMMENT {quoted(change.doc)}"
        return text + ("" if change.place is None else f" {_place_text(change.place)}")
    if isinstance(change, DropColumn):
        return f"DROP COLUMN {path}"
    if isinstance(change, RenameColumn):
        return f"RENAME COLUMN {path} TO {name_text(change.name)}"
    if isinstance(change, MoveColumn):
        return f"ALTER COLUMN {path} {_place_text(change.place)}"
    if isinstance(change, WidenColumn):
        return f"ALTER COLUMN {path} TYPE {type_text(change.type)}"
    if isinstance(change, AllowNull):
        return f"ALTER COLUMN {path} DROP NOT NULL"
    return f"ALTER COLUMN {path} COMMENT {quoted(change.doc or '')}"


def _place_text(place: Place) -> str:
    return "FIRST" if place.after is None else f"AFTER {name_text(place.after)}"


@dataclass(slots=True)
class _Changes:
    """Finds the changes of siblings, those of their own fields included."""

    by_ids: bool
    made: list[Change] = field(default_factory=list)

    def compare(self, path: Path, old: Sequence[Field], new: Sequence[Field]) -> None:
        """Find the changes that make the fields `new` of `old`, which stand below a path."""
        before = {self._key(one): one for one in old}
        kept = {self._key(one) for one in new}
        # Names come free first: another field may take one that is dropped or renamed.
        self.made += [DropColumn((*path, one.name)) for one in old if self._key(one) not in kept]
        self._rename(path, before, new)
        order = [self._key(one) for one in old if self._key(one) in kept]
        names = {self._key(one): one.name for one in new}
        for place, one in enumerate(new):
            key = self._key(one)
            behind = Place(new[place - 1].name if place else None)
            if key not in before:
                last = place == len(order)
                self.made.append(
                    AddColumn((*path, one.name), one.type, one.required, one.doc, one.default, None if last else behind)
                )
                order.insert(place, key)
                continue
            if order[place] != key:
                self.made.append(MoveColumn((*path, names[key]), behind))
                order.remove(key)
                order.insert(place, key)
            self._field((*path, one.name), before[key], one)

    def _key(self, one: Field) -> object:
        return one.id if self.by_ids else one.name.casefold()

    def _rename(self, path: Path, before: Mapping[object, Field], new: Sequence[Field]) -> None:
        left = [
            (before[self._key(one)].name, one.name)
            for one in new
            if self._key(one) in before and before[self._key(one)].name != one.name
        ]
        while left:
            # One whose new name is free; where names are swapped, none is.
            taken = {name.casefold() for name, _ in left}
            free = next((one for one in left if one[1].casefold() not in taken - {one[0].casefold()}), left[0])
            left.remove(free)
            self.made.append(RenameColumn((*path, free[0]), free[1]))

    def _field(self, path: Path, old: Field, new: Field) -> None:
        where = ".".join(path)
        if new.required and not old.required:
            raise EvolutionError(
                f"Column {where} cannot become NOT NULL: rows without a value of it may be there; nothing was changed",
                advice="Let it be null; a new column with a default can be NOT NULL",
            )
        if new.default != old.default:
            raise EvolutionError(
                f"Column {where} has the default {old.default!r}, and would get {new.default!r}; nothing was changed",
                advice="Defaults do not change: rows that are there show them",
            )
        if old.required and not new.required:
            self.made.append(AllowNull(path))
        if old.doc != new.doc:
            self.made.append(DocumentColumn(path, new.doc))
        if type(old.type) is not type(new.type) or not children(old.type):
            if old.type != new.type:
                self.made.append(WidenColumn(path, new.type))
            return
        if not isinstance(old.type, Struct):
            # The fields of lists and maps have fixed names.
            for one, other in zip(children(old.type), children(new.type), strict=True):
                self._field((*path, one.name), one, other)
        else:
            self.compare(path, children(old.type), children(new.type))
