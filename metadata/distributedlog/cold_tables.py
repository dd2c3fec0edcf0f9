"""Lake tables of a namespace: which logs' cold files are shown to other engines as a table, and where that is.

    NS/.dlspark-cold/tables/<name>      the declaration: `ColdTable`, JSON

A declaration never holds a secret: znodes can be read by everybody. It is made and removed, and never changed: another
set of logs is another table. Its id is in the table itself too, so that a sync never writes into a table of somebody
else's that has come to stand at the same place (docs/lake-tables.md).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from metadata.foundation.errors import CallerError, CorruptDataError, NodeExistsError, NoNodeError
from metadata.retry import repeat
from metadata.store import MetadataStore, join

TABLES: Final = ".dlspark-cold/tables"
VERSION: Final = 1
MAX_LOGS: Final = 1_000
ICEBERG: Final = "iceberg"
DELTA: Final = "delta"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_SECRET: Final = re.compile(r"secret|password|token|credential|access-key|private|session", re.IGNORECASE)
_USER_INFO: Final = re.compile(r"//[^/@]*:[^/@]*@")


@dataclass(frozen=True, slots=True)
class ColdTable:
    """Which logs are shown as a table, and where?

    Args:
        name: of the declaration, and of the table unless `identifier` says otherwise.
        id: random, never another table's.
        kind: `iceberg` or `delta`.
        place: Iceberg: the catalog, an address or a name of the user's own settings; Delta: the table's address.
        identifier: Iceberg: the table's name in the catalog, `namespace.table`; Delta: empty.
        logs: names of its logs.
        options: of the catalog or the store, without secrets.
        created_ms: when it was declared.
    """

    name: str
    id: str
    kind: str
    place: str
    identifier: str
    logs: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    created_ms: int = 0

    @property
    def grouped(self) -> bool:
        """Whether it is of several logs, and so partitioned by log."""
        return len(self.logs) > 1

    def encode(self) -> bytes:
        """Return the znode's data."""
        fields: dict[str, Any] = {
            "v": VERSION,
            "id": self.id,
            "kind": self.kind,
            "place": self.place,
            "as": self.identifier,
            "logs": list(self.logs),
            "options": dict(self.options),
            "created": self.created_ms,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, name: str, data: bytes, path: str) -> ColdTable:
        """Read the data of the znode at `path`. Raises CorruptDataError."""
        try:
            fields = json.loads(data)
            if fields["v"] != VERSION or fields["kind"] not in (ICEBERG, DELTA):
                raise ValueError
            return cls(
                name,
                str(fields["id"]),
                fields["kind"],
                str(fields["place"]),
                str(fields["as"]),
                tuple(str(one) for one in fields["logs"]),
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
