"""`PermissionStore`: what may be done with a namespace's logs, below the root of access control that its binding names.

    NS/<root>               the default entry
    NS/<root>/<log>         the entry of one log: it replaces the default, field by field that it does not have as well

An entry is a TJSON struct of booleans, each optional: 1 deny write, 2 deny truncate, 3 deny delete, 4 deny acquire,
5 deny release. What is absent is allowed, and so is everything where there is no entry. Upstream's write proxies
enforce it; here the library does too, for those of these actions that it does itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import ClassVar, Final

from metadata.distributedlog.bindings import StructFields, encode_struct
from metadata.distributedlog.log_names import validate_name
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    CorruptDataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import ANY_VERSION, Create, Delete, MetadataStore, Op, SetData, join


class RequestDeniedError(CallerError):
    """The namespace's access control denies this; nothing was done."""

    code: ClassVar[int] = 403


class Action(Enum):
    """Which actions on a log can an entry deny? The value is its field's id."""

    WRITE = 1
    TRUNCATE = 2
    DELETE = 3
    ACQUIRE = 4
    RELEASE = 5


@dataclass(frozen=True, slots=True)
class Permissions:
    """Which actions does one entry deny? None: not said, which allows."""

    deny_write: bool | None = None
    deny_truncate: bool | None = None
    deny_delete: bool | None = None
    deny_acquire: bool | None = None
    deny_release: bool | None = None

    def denies(self, action: Action) -> bool:
        """Return whether what this field stands for may not be done."""
        return bool(self._values()[action.value - 1])

    def _values(self) -> tuple[bool | None, ...]:
        return tuple(getattr(self, item.name) for item in fields(self))

    def encode(self) -> bytes:
        """Return the znode's data."""
        return encode_struct(dict(enumerate(self._values(), start=1))).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Permissions:
        """Read the data of the znode at `path`; none at all allows everything. Raises CorruptDataError."""
        if not data:
            return ALLOW_ALL
        try:
            struct = StructFields(data.decode("utf-8"), "an access control entry", path)
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"not an access control entry: {error}", path=path) from error
        return cls(*(struct.flag(action.value) for action in Action))


ALLOW_ALL: Final = Permissions()


class PermissionStore:
    """May an action be done to a log?

    Every method raises InvalidLogNameError for a name that cannot be a log's, and CorruptDataError for data that is not
    an entry.

    Args:
        store: the session.
        root: the znode path of a namespace's access control, whose entries lie below.
    """

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._root = root

    def _path(self, log: str | None) -> str:
        return self._root if log is None else join(self._root, validate_name(log))

    async def get(self, log: str | None = None) -> Permissions | None:
        """Return a log's own entry, or the default one; None where there is none."""
        path = self._path(log)
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        if not data and (log is None or stat.num_children):
            return None  # the folder of other entries: only those were set
        return Permissions.decode(data, path)

    async def of(self, log: str) -> Permissions:
        """Return what holds for a log: its own entry, else the default one, else everything is allowed."""
        for name in (log, None):
            found = await self.get(name)
            if found is not None:
                return found
        return ALLOW_ALL

    async def set(self, permissions: Permissions, log: str | None = None) -> None:
        """Set a log's own entry, or the default one, replacing what is there. Safe to repeat."""
        path, data = self._path(log), permissions.encode()

        async def store() -> None:
            for _ in range(MAX_REPEATS):
                try:
                    await self._store.put(path, data, ANY_VERSION)
                    return
                except NoNodeError:
                    pass
                try:
                    await self._store.create(path, data, make_parents=True)
                    return
                except NodeExistsError:
                    continue
            raise BadVersionError("the entry keeps coming and going; nothing was stored", path=path)

        await repeat(self._store, store)

    async def delete(self, log: str) -> bool:
        """Remove a log's own entry, so that the default holds; whether there was one."""
        path = self._path(log)

        async def remove() -> bool:
            if await self.get(log) is None:
                return False
            try:
                await self._store.delete(path)
            except NoNodeError:
                return False
            except NotEmptyError:
                await self._store.put(path, b"", ANY_VERSION)  # entries of nested logs stay
            return True

        return await repeat(self._store, remove)

    async def logs(self) -> list[str]:
        """Return names of the logs at the first level that have an entry, or nested ones that do."""
        try:
            return (await repeat(self._store, lambda: self._store.children(self._root)))[0]
        except NoNodeError:
            return []

    async def check(self, log: str, *actions: Action) -> None:
        """Raise RequestDeniedError if one of `actions` is denied on the log."""
        permissions = await self.of(log)
        for action in actions:
            if permissions.denies(action):
                raise RequestDeniedError(
                    f"the namespace's access control denies {action.name.lower()}; nothing was done",
                    log=log,
                    path=self._root,
                    advice="Ask the namespace's administrator to change the log's entry or the default one",
                )

    async def move_ops(self, old: str, new: str) -> list[Op]:
        """Return the operations that move a log's own entry to its new name, for the transaction that renames it.

        A renamed log keeps what is denied on it; an entry that waits under the new name gives way. The new name must
        not be nested in the old one.
        """
        moved = await self.get(old)
        if moved is None:
            return []
        source, target = self._path(old), self._path(new)
        _, stat = await self._store.get(source)
        present = await self._store.exists(target)
        remove: Op = SetData(source, b"", stat.version) if stat.num_children else Delete(source, stat.version)
        if present is not None:
            return [SetData(target, moved.encode(), present.version), remove]
        missing = [
            Create(parent) for parent in _between(self._root, target) if await self._store.exists(parent) is None
        ]
        return [*missing, Create(target, moved.encode()), remove]


def _between(root: str, path: str) -> list[str]:
    """Return the znodes below `root` and above `path`, outermost first."""
    parts = path[len(root) + 1 :].split("/")[:-1]
    return [join(root, *parts[: count + 1]) for count in range(len(parts))]
