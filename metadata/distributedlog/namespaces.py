"""`NamespaceStore`: a DistributedLog namespace: its URI, and its binding (`metadata.distributedlog.bindings`).

A namespace is a znode path. Its binding is that znode's data, or that of its nearest ancestor that has any: what lies
below a bound namespace without a binding of its own is a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from metadata.distributedlog.bindings import SUB_NAMESPACES, Binding
from metadata.foundation.errors import BadVersionError, CallerError, NodeExistsError, NoNodeError
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import ANY_VERSION, MetadataStore, check_path, join, parent_of

DEFAULT_ZOOKEEPER_PORT: Final = 2181
_SCHEME: Final = "distributedlog"
_BACKEND: Final = "bk"
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(/[^?#]*)?([?#].*)?", re.DOTALL)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]]+)(?::(\d{1,5}))?")
_RESERVED: Final = (".", "<")  # how the names of children begin that are not logs


class NotBoundError(CallerError):
    """The path is not, and is not in, a DistributedLog namespace."""

    code: ClassVar[int] = 500


class NamespaceInUseError(CallerError):
    """The namespace has logs, which would be out of reach without its binding; nothing was done."""


@dataclass(frozen=True, slots=True)
class NamespaceUri:
    """Which namespace, of which ZooKeeper? `distributedlog://host:port;host:port/path`: the servers
    ("host:port,host:port") and the znode path.
    """

    servers: str
    path: str

    @classmethod
    def parse(cls, uri: str) -> NamespaceUri:
        """Read a URI. Raises CallerError saying what is wrong with it."""
        match = _URI.fullmatch(uri.strip())
        if match is None:
            raise _bad_uri_error(uri, "it is not a URI")
        scheme, authority, path, rest = match.groups()
        name, _, backend = scheme.lower().partition("-")
        if name != _SCHEME:
            raise _bad_uri_error(uri, f"its scheme is {scheme!r}")
        if (backend or _BACKEND) != _BACKEND:
            raise _bad_uri_error(uri, f"the only backend is {_BACKEND!r}, not {backend!r}")
        if rest:
            raise _bad_uri_error(uri, f"{rest!r} has no meaning in it")
        path = (path or "/").rstrip("/")
        if not path:
            raise _bad_uri_error(uri, "the path of the namespace is missing")
        try:
            check_path(path)
        except CallerError as error:
            raise _bad_uri_error(uri, error.message) from error
        return cls(",".join(_server(uri, part) for part in authority.replace(",", ";").split(";")), path)

    def __str__(self) -> str:
        return f"{_SCHEME}://{self.servers.replace(',', ';')}{self.path}"


def _server(uri: str, part: str) -> str:
    match = _HOST.fullmatch(part)
    port = int(match[2] or DEFAULT_ZOOKEEPER_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise _bad_uri_error(uri, f"{part!r} is not a ZooKeeper server")
    return f"{match[1]}:{port}"


def _bad_uri_error(uri: str, why: str) -> CallerError:
    return CallerError(
        f"{uri!r} does not name a namespace: {why}",
        advice="Use distributedlog://host:port/path, with further ZooKeeper servers after ';'",
    )


class NamespaceStore:
    """Is there a namespace at a path, and how is it bound? Its binding: made, read, changed, taken away.

    Args:
        store: the session.
        path: the namespace's znode.

    Raises:
        CallerError: the path is the root, or none that a znode can have.
    """

    def __init__(self, store: MetadataStore, path: str) -> None:
        check_path(path)
        if path == "/":
            raise CallerError("the root znode cannot be a namespace", path=path)
        self._store = store
        self._path = path

    @property
    def path(self) -> str:
        """The namespace's znode."""
        return self._path

    async def bind(self, binding: Binding, create: bool = True) -> None:
        """Store the binding in place of any other; with `create` the path is made, otherwise it must exist.

        Raises NotBoundError for a missing path, CallerError for a binding that makes no sense or to make a federated
        namespace a plain one. Safe to repeat.
        """
        await repeat(self._store, lambda: self._bind(binding, create))

    async def _bind(self, binding: Binding, create: bool) -> None:
        for _ in range(MAX_REPEATS):
            try:
                found, stat = await self._store.get(self._path)
            except NoNodeError:
                if not create:
                    raise self._not_bound_error("the namespace's path does not exist") from None
                try:
                    await self._store.create(self._path, self._encoded(binding), make_parents=True)
                except NodeExistsError:
                    continue
                await self._make_index(binding)
                return
            if await self._replace(binding, Binding.decode(found, self._path) if found else None, stat.version):
                return
        raise BadVersionError("the namespace's binding keeps changing; nothing was stored", path=self._path)

    def _encoded(self, binding: Binding) -> bytes:
        data = binding.encode()
        binding.check(self._path)
        Binding.decode(data, self._path)  # never store what cannot be read back
        return data

    async def _replace(self, binding: Binding, current: Binding | None, version: int) -> bool:
        """Store the binding over `current` of that version; False when another client was first."""
        if current is not None and current.federated and not binding.federated:
            raise CallerError(
                "a federated namespace cannot be bound as a plain one: the logs of its sub-namespaces would be lost; "
                "nothing was bound",
                path=self._path,
                advice="Bind it as federated",
            )
        try:
            await self._store.put(self._path, self._encoded(binding), version)
        except (BadVersionError, NoNodeError):
            return False
        await self._make_index(binding)
        return True

    async def _make_index(self, binding: Binding) -> None:
        """Make the znode of the sub-namespaces, which a federated namespace has from the start."""
        if binding.federated:
            try:
                await self._store.create(join(self._path, SUB_NAMESPACES))
            except NodeExistsError:
                pass

    async def update(self, change: Callable[[Binding], Binding]) -> Binding:
        """Replace the namespace's own binding by what `change` makes of it; returns the new one.

        `change` may be called again when another client changes the binding meanwhile. Raises NotBoundError where the
        path itself has no binding, and what `bind` raises.
        """

        async def update() -> Binding:
            for _ in range(MAX_REPEATS):
                try:
                    found, stat = await self._store.get(self._path)
                except NoNodeError:
                    found = b""
                if not found:
                    raise self._not_bound_error("no namespace is bound at the path itself")
                current = Binding.decode(found, self._path)
                changed = change(current)
                if await self._replace(changed, current, stat.version):
                    return changed
            raise BadVersionError("the namespace's binding keeps changing; nothing was stored", path=self._path)

        return await repeat(self._store, update)

    async def resolve(self) -> Binding:
        """Return the binding that holds at the path: its own or its nearest ancestor's. Raises NotBoundError."""
        return (await self.find())[0]

    async def find(self) -> tuple[Binding, str]:
        """Return the binding that holds at the path, and the path that has it. Raises NotBoundError."""
        path = self._path
        while path != "/":
            data = await repeat(self._store, lambda path=path: self._data(path))  # type: ignore[misc]
            if data:
                return Binding.decode(data, path), path
            path = parent_of(path)
        raise self._not_bound_error("no namespace is bound here")

    async def _data(self, path: str) -> bytes:
        try:
            return (await self._store.get(path))[0]
        except NoNodeError:
            return b""

    async def unbind(self, *, force: bool = False) -> None:
        """Empty the binding. Logs stay, out of reach until the path is bound again: so where there are any, it needs
        `force`.

        Raises NamespaceInUseError, NotBoundError for a missing path.
        """

        async def clear() -> None:
            try:
                logs = [] if force else await self._logs()
                if logs:
                    raise NamespaceInUseError(
                        f"the namespace has logs ({', '.join(logs[:3])}{', ...' if logs[3:] else ''}); it stays bound",
                        path=self._path,
                        advice="Delete them, or unbind with force: they stay, and are there again once it is bound",
                    )
                await self._store.put(self._path, b"", ANY_VERSION)
            except NoNodeError:
                raise self._not_bound_error("the namespace's path does not exist") from None

        await repeat(self._store, clear)

    async def _logs(self) -> list[str]:
        """Return names of logs, those of sub-namespaces included."""
        names, _ = await self._store.children(self._path)
        index = join(self._path, SUB_NAMESPACES)
        if SUB_NAMESPACES in names:
            for folder in (await self._store.children(index))[0]:
                names += (await self._store.children(join(index, folder)))[0]
        return sorted(name for name in names if not name.startswith(_RESERVED))

    def _not_bound_error(self, what: str) -> NotBoundError:
        return NotBoundError(
            what,
            path=self._path,
            advice="Check the URI's path, or bind the namespace there: dlspark namespace bind --uri URI",
        )
