"""`NamespaceStore`: a DistributedLog namespace: its URI, and the binding that says where its ledgers are.

A namespace is a znode path. The binding is text in that znode's data, or in its nearest ancestor's that has any:

    1                       metadata format version
    BKDL                    type tag
    {"1":{"str":"..."},...} a Thrift struct in TJSON: field id -> {type tag: value}, ascending, no spaces

Booleans are 0 and 1 under the tag `tf`. Any JSON reader reads it; a compact dump writes the same bytes as Java.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar, Final

from metadata.errors import BadVersionError, CallerError, CorruptDataError, NodeExistsError, NoNodeError
from metadata.paths import check_path, parent_of
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import ANY_VERSION, MetadataStore

DEFAULT_FIRST_LSSN: Final = 1
DEFAULT_ZOOKEEPER_PORT: Final = 2181
_FORMAT: Final = "1"
_TAG: Final = "BKDL"
_SCHEME: Final = "distributedlog"
_BACKEND: Final = "bk"
_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(/[^?#]*)?([?#].*)?", re.DOTALL)
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@\[\]]+)(?::(\d{1,5}))?")


_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class NotBoundError(CallerError):
    """The path is not, and is not in, a DistributedLog namespace."""

    code: ClassVar[int] = 500


@dataclass(frozen=True, slots=True)
class NamespaceUri:
    """`distributedlog://host:port;host:port/path`: ZooKeeper's servers ("host:port,host:port") and the znode path."""

    servers: str
    path: str

    @classmethod
    def parse(cls, uri: str) -> NamespaceUri:
        """Read a URI. Raises CallerError saying what is wrong with it."""
        match = _URI.fullmatch(uri.strip())
        if match is None:
            raise _bad_uri(uri, "it is no URI")
        scheme, authority, path, rest = match.groups()
        name, _, backend = scheme.lower().partition("-")
        if name != _SCHEME:
            raise _bad_uri(uri, f"its scheme is {scheme!r}")
        if (backend or _BACKEND) != _BACKEND:
            raise _bad_uri(uri, f"the only backend is {_BACKEND!r}, not {backend!r}")
        if rest:
            raise _bad_uri(uri, f"{rest!r} has no meaning in it")
        path = (path or "/").rstrip("/")
        if not path:
            raise _bad_uri(uri, "the path of the namespace is missing")
        try:
            check_path(path)
        except CallerError as error:
            raise _bad_uri(uri, error.message) from error
        return cls(",".join(_server(uri, part) for part in authority.replace(",", ";").split(";")), path)

    def __str__(self) -> str:
        return f"{_SCHEME}://{self.servers.replace(',', ';')}{self.path}"


def _server(uri: str, part: str) -> str:
    match = _HOST.fullmatch(part)
    port = int(match[2] or DEFAULT_ZOOKEEPER_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise _bad_uri(uri, f"{part!r} is no ZooKeeper server")
    return f"{match[1]}:{port}"


def _bad_uri(uri: str, why: str) -> CallerError:
    return CallerError(
        f"{uri!r} does not name a namespace: {why}",
        advice="Use distributedlog://host:port/path, with further ZooKeeper servers after ';'",
    )


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a namespace's ledgers are, and what it demands of its writers. Servers are "host:port,host:port"; readers
    use the writers' where they have none of their own."""

    bk_servers: str
    ledgers_path: str
    dl_servers: str
    bk_reader_servers: str | None = None
    dl_reader_servers: str | None = None
    sanity_check_txid: bool = True
    encode_region_id: bool = False
    acl_root_path: str | None = None
    first_lssn: int | None = None
    federated: bool = False

    @classmethod
    def for_cluster(cls, servers: str, ledgers_path: str = "/ledgers") -> Binding:
        """The usual binding: one ZooKeeper ensemble for everything."""
        return cls(bk_servers=servers, ledgers_path=ledgers_path, dl_servers=servers)

    @property
    def effective_first_lssn(self) -> int:
        """Sequence number of a log's first segment."""
        return DEFAULT_FIRST_LSSN if self.first_lssn is None else self.first_lssn

    def encode(self) -> bytes:
        """The namespace znode's data."""
        return f"{_FORMAT}\n{_TAG}\n{self.body()}".encode()

    def body(self) -> str:
        """The TJSON text alone."""
        fields: dict[str, dict[str, str | int]] = {
            "1": {"str": self.bk_servers},
            "2": {"str": self.ledgers_path},
            "3": {"tf": int(self.sanity_check_txid)},
            "4": {"tf": int(self.encode_region_id)},
            "5": {"str": self.bk_reader_servers or self.bk_servers},
            "6": {"str": self.dl_servers},
            "7": {"str": self.dl_reader_servers or self.dl_servers},
        }
        if self.acl_root_path is not None:
            fields["8"] = {"str": self.acl_root_path}
        if self.first_lssn is not None:
            fields["9"] = {"i64": self.first_lssn}
        if self.federated:
            fields["10"] = {"tf": 1}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def decode(cls, data: bytes, path: str) -> Binding:
        """Read a namespace znode's data. Raises CorruptDataError naming `path`."""
        try:
            lines = _LINE_END.split(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise CorruptDataError(f"not a namespace binding: {error}", path=path) from error
        if [line.strip() for line in lines[:2]] != [_FORMAT, _TAG]:
            raise CorruptDataError(
                f"not a namespace binding: it begins with {data[:40]!r}",
                path=path,
                advice="Is this the znode of something else? Bind the namespace at a path of its own",
            )
        return _Fields("".join(lines[2:]), path).binding()


class _Fields:
    """The parsed struct: each access checks the type tag and the value's type."""

    def __init__(self, text: str, path: str) -> None:
        self._path = path
        try:
            parsed: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._corrupt(f"its body is no JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise self._corrupt("its body is no struct")
        self._fields: dict[str, object] = parsed

    def _corrupt(self, why: str) -> CorruptDataError:
        return CorruptDataError(f"not a namespace binding: {why}", path=self._path)

    def _value(self, number: str, tag: str) -> object:
        field = self._fields.get(number)
        if field is None:
            return None
        if not isinstance(field, dict) or tag not in field:
            raise self._corrupt(f"field {number} is not of type {tag}: {field!r}")
        return field[tag]

    def _text(self, number: str) -> str | None:
        value = self._value(number, "str")
        if value is not None and not isinstance(value, str):
            raise self._corrupt(f"field {number} is no string: {value!r}")
        return value

    def _required(self, number: str, name: str) -> str:
        value = self._text(number)
        if not value:
            raise self._corrupt(f"{name} is missing")
        return value

    def _flag(self, number: str, default: bool) -> bool:
        value = self._value(number, "tf")
        if value is None:
            return default
        if isinstance(value, bool) or value not in (0, 1):
            raise self._corrupt(f"field {number} is neither 0 nor 1: {value!r}")
        return bool(value)

    def _number(self, number: str) -> int | None:
        value = self._value(number, "i64")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._corrupt(f"field {number} is no number: {value!r}")
        return value

    def binding(self) -> Binding:
        bk_servers = self._required("1", "the BookKeeper servers")
        dl_servers = self._required("6", "the DistributedLog servers")
        bk_readers, dl_readers = self._text("5"), self._text("7")
        return Binding(
            bk_servers=bk_servers,
            ledgers_path=self._required("2", "the ledgers path"),
            dl_servers=dl_servers,
            bk_reader_servers=None if bk_readers == bk_servers else bk_readers,
            dl_reader_servers=None if dl_readers == dl_servers else dl_readers,
            sanity_check_txid=self._flag("3", True),
            encode_region_id=self._flag("4", False),
            acl_root_path=self._text("8"),
            first_lssn=self._number("9"),
            federated=self._flag("10", False),
        )


class NamespaceStore:
    """The binding of the namespace at `path`."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        check_path(path)
        if path == "/":
            raise CallerError("the root znode cannot be a namespace", path=path)
        self._store = store
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    async def bind(self, binding: Binding, create: bool = True) -> None:
        """Store the binding, replacing one that is there; with `create` the path is made, otherwise it must exist.

        Raises NotBoundError for a missing path, CallerError to make a federated namespace a plain one. Safe to repeat.
        """
        data = binding.encode()
        Binding.decode(data, self._path)  # never store what cannot be read back
        await repeat(self._store, lambda: self._bind(binding, data, create))

    async def _bind(self, binding: Binding, data: bytes, create: bool) -> None:
        for _ in range(MAX_REPEATS):
            try:
                found, stat = await self._store.get(self._path)
            except NoNodeError:
                if not create:
                    raise self._not_bound("the namespace's path does not exist") from None
                try:
                    await self._store.create(self._path, data, make_parents=True)
                    return
                except NodeExistsError:
                    continue
            if found and Binding.decode(found, self._path).federated and not binding.federated:
                raise CallerError("a federated namespace cannot be bound as a plain one", path=self._path)
            try:
                await self._store.put(self._path, data, stat.version)
                return
            except (BadVersionError, NoNodeError):
                continue
        raise BadVersionError("the namespace's binding keeps changing; nothing was stored", path=self._path)

    async def resolve(self) -> Binding:
        """The binding that holds at the path: its own or its nearest ancestor's. Raises NotBoundError."""
        path = self._path
        while path != "/":
            data = await repeat(self._store, lambda path=path: self._data(path))  # type: ignore[misc]
            if data:
                return Binding.decode(data, path)
            path = parent_of(path)
        raise self._not_bound("no namespace is bound here")

    async def _data(self, path: str) -> bytes:
        try:
            return (await self._store.get(path))[0]
        except NoNodeError:
            return b""

    async def unbind(self) -> None:
        """Empty the binding; logs stay. Raises NotBoundError for a missing path."""

        async def clear() -> None:
            try:
                await self._store.put(self._path, b"", ANY_VERSION)
            except NoNodeError:
                raise self._not_bound("the namespace's path does not exist") from None

        await repeat(self._store, clear)

    def _not_bound(self, what: str) -> NotBoundError:
        return NotBoundError(
            what, path=self._path, advice="Check the URI's path, or bind the namespace there (NamespaceStore.bind)"
        )
