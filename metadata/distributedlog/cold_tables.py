"""Lake tables of a namespace: which logs' cold files are shown to other engines as a table, and where that is.

    NS/.dlspark-cold/tables/<name>      the declaration: `ColdTable`, JSON

A declaration never holds a secret: znodes can be read by everybody. Its id is in the table itself too, so that a sync
never writes into a table of somebody else's that has come to stand at the same place (docs/lake-tables.md).

It names logs, and holds their ids from the moment at which they have one, which is before any file of theirs is in the
table: a log that is renamed is followed, one that is deleted is marked so, and one that is made anew under an old name
is another log. Nothing else of a declaration ever changes: another set of logs is another table.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    CorruptDataError,
    NodeExistsError,
    NoNodeError,
    NotAppliedError,
)
from metadata.retry import repeat
from metadata.store import MetadataStore, join

TABLES: Final = ".dlspark-cold/tables"
VERSION: Final = 2
"""Version 1 knew names of logs alone."""
MAX_LOGS: Final = 1_000
ICEBERG: Final = "iceberg"
DELTA: Final = "delta"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_SECRET: Final = re.compile(r"secret|password|token|credential|access-key|private|session", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"//[^/@]*:[^/@]*@")


@dataclass(frozen=True, slots=True)
class TableLog:
    """Which log is in a table?

    Args:
        name: its name when a sync saw it last.
        id: its id in cold storage, which stays where it is renamed; empty as long as it has none.
        deleted: whether it is known to have been deleted.
    """

    name: str
    id: str = ""
    deleted: bool = False


def table_logs(names: Iterable[str]) -> tuple[TableLog, ...]:
    """Return logs of which the names alone are known."""
    return tuple(TableLog(name) for name in names)


@dataclass(frozen=True, slots=True)
class ColdTable:
    """Which logs are shown as a table, and where?

    Args:
        name: of the declaration, and of the table unless `identifier` says otherwise.
        id: random, never another table's.
        kind: `iceberg` or `delta`.
        place: Iceberg: the catalog, an address or a name of the user's own settings; Delta: the table's address.
        identifier: Iceberg: the table's name in the catalog, `namespace.table`; Delta: empty.
        members: its logs, in the order in which they were declared.
        options: of the catalog or the store, without secrets.
        created_ms: when it was declared.
    """

    name: str
    id: str
    kind: str
    place: str
    identifier: str
    members: tuple[TableLog, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    created_ms: int = 0

    @property
    def logs(self) -> tuple[str, ...]:
        """Names of its logs."""
        return tuple(one.name for one in self.members)

    @property
    def grouped(self) -> bool:
        """Whether it is of several logs, and so partitioned by log."""
        return len(self.members) > 1

    def encode(self) -> bytes:
        """Return the znode's data."""
        fields: dict[str, Any] = {
            "v": VERSION,
            "id": self.id,
            "kind": self.kind,
            "place": self.place,
            "as": self.identifier,
            "logs": [
                {"name": one.name, "id": one.id, **({"deleted": True} if one.deleted else {})} for one in self.members
            ],
            "options": dict(self.options),
            "created": self.created_ms,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, name: str, data: bytes, path: str) -> ColdTable:
        """Read the data of the znode at `path`. Raises CorruptDataError."""
        try:
            fields = json.loads(data)
            if fields["v"] not in (1, VERSION) or fields["kind"] not in (ICEBERG, DELTA):
                raise ValueError
            logs = [{"name": one, "id": ""} for one in fields["logs"]] if fields["v"] == 1 else fields["logs"]
            return cls(
                name,
                str(fields["id"]),
                fields["kind"],
                str(fields["place"]),
                str(fields["as"]),
                tuple(TableLog(str(one["name"]), str(one["id"]), bool(one.get("deleted", False))) for one in logs),
                {str(key): str(value) for key, value in fields["options"].items()},
                int(fields["created"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptDataError(
                f"it declares no lake table that this dlspark knows: {bytes(data[:120])!r}",
                path=path,
                advice="Was it written by a newer dlspark? Use that one",
            ) from error


def check_table(table: ColdTable) -> None:
    """Raise CallerError unless this can be declared."""
    if not _NAME.fullmatch(table.name):
        raise CallerError(
            f"{table.name!r} cannot be the name of a table; nothing was declared",
            advice="Use 1 to 100 letters, digits, '_' and '-'",
        )
    if not 1 <= len(set(table.logs)) == len(table.logs) <= MAX_LOGS:
        raise CallerError(
            f"Table {table.name} names {len(table.logs)} logs; nothing was declared",
            advice=f"Name 1 to {MAX_LOGS} logs, each once",
        )
    secret = next((key for key in table.options if _SECRET.search(key)), None)
    if secret is not None or _USER_INFO.search(table.place):
        raise CallerError(
            f"{secret or 'The address'} holds a secret, and a znode can be read by everybody; nothing was declared",
            advice="Leave it to the environment of whoever syncs: AWS's variables, or pyiceberg's own",
        )


class ColdTableStore:
    """Which lake tables does a namespace declare?

    Args:
        store: the session.
        namespace_path: the namespace's znode.
    """

    def __init__(self, store: MetadataStore, namespace_path: str) -> None:
        self._store = store
        self.root = join(namespace_path, *TABLES.split("/"))

    async def create(self, table: ColdTable) -> ColdTable:
        """Declare a table; what is declared alike already, by a first try perhaps, is returned as it is. The namespace
        has its cold storage's znode by then (`ColdStore.namespace_id`), which is never to be made without its data.

        Raises CallerError for what cannot be declared, and where the name is taken by another declaration.
        """
        check_table(table)
        path = join(self.root, table.name)
        try:
            await repeat(self._store, lambda: self._store.create(self.root))
        except NodeExistsError:
            pass
        try:
            await repeat(self._store, lambda: self._store.create(path, table.encode()))
            return table
        except NodeExistsError:
            found = await self.get(table.name)
        if found is None or _what(found) != _what(table):
            raise CallerError(
                f"There is a table {table.name} that is declared otherwise; nothing was changed",
                path=path,
                advice=f"See dlspark cold table show {table.name}; take another name, or drop that declaration",
            )
        return found

    async def get(self, name: str) -> ColdTable | None:
        """Return a declaration; None where there is none of the name."""
        if not _NAME.fullmatch(name):
            return None
        path = join(self.root, name)
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return ColdTable.decode(name, data, path)

    async def tables(self) -> list[ColdTable]:
        """Return all declarations, by name, as of what was committed before this call."""

        async def names() -> list[str]:
            await self._store.sync(self.root)
            return (await self._store.children(self.root))[0]

        try:
            found = await repeat(self._store, names)
        except NoNodeError:
            return []
        return [one for one in await asyncio.gather(*map(self.get, found)) if one is not None]

    async def follow(self, table: ColdTable, members: tuple[TableLog, ...]) -> ColdTable:
        """Note what has become of a table's logs; return the declaration as it is then. Where somebody else has noted
        something meanwhile, nothing is changed: look at the logs again, by what is returned.

        Raises NotAppliedError where the declaration was dropped.
        """
        path = join(self.root, table.name)
        after = replace(table, members=members)

        async def step() -> ColdTable | None:
            try:
                data, stat = await self._store.get(path)
                found = ColdTable.decode(table.name, data, path)
                if found.id != table.id or found.members != table.members:
                    return found  # also our own, if its answer was lost
                await self._store.put(path, after.encode(), stat.version)
            except BadVersionError:
                await self._store.sync(path)
                return await self.get(table.name)
            except NoNodeError:
                return None
            return after

        return self._same(table, await repeat(self._store, step))

    async def current(self, table: ColdTable) -> ColdTable:
        """Return a declaration as it is by now. Raises NotAppliedError where it was dropped."""
        return self._same(table, await self.get(table.name))

    def _same(self, table: ColdTable, found: ColdTable | None) -> ColdTable:
        if found is None or found.id != table.id:
            raise NotAppliedError(
                f"Table {table.name} was dropped meanwhile; nothing was added to it",
                path=join(self.root, table.name),
                advice="Nothing needs to be done",
            )
        return found

    async def drop(self, name: str) -> bool:
        """Forget a declaration; the table stays where it is. False: there was none."""
        attempts = 0

        async def delete() -> bool:
            nonlocal attempts
            attempts += 1
            try:
                await self._store.delete(join(self.root, name))
            except NoNodeError:
                return attempts > 1  # an answer that was lost
            return True

        return await repeat(self._store, delete)


def _what(table: ColdTable) -> tuple[object, ...]:
    """Return what a declaration says, without its id and time."""
    return table.kind, table.place, table.identifier, set(table.logs), dict(table.options)
