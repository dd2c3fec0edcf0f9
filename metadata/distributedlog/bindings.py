"""`Binding`: says where a namespace's ledgers are, and what it demands. It is text in the namespace's znode
(docs/reference/znodes.md#binding):

    1                       metadata format version
    BKDL                    type tag
    {"1":{"str":"..."},...} a Thrift struct in TJSON

| field | |
|---|---|
| 1, 5 | BookKeeper's ZooKeeper servers, for writers and for readers |
| 2 | root path of the ledgers |
| 3, 4 | sanityCheckTxnID (nothing acts on it), encodeRegionID |
| 6, 7 | DistributedLog's ZooKeeper servers, for writers and for readers |
| 8 | root of access control, a name below the namespace |
| 9 | first log segment sequence number |
| 10 | whether the namespace is federated |
| 100 | ours, passed over by Java: "ensemble size,write quorum,ack quorum" of writers that say nothing of them |

TJSON is Thrift's text: `{"<field id>":{"<type tag>":<value>},...}`, ascending, no spaces. Booleans are 0 and 1 under
the tag `tf`. Any JSON reader reads it; a compact dump writes the same bytes as Java (`encode_struct`, `StructFields`).
`metadata.distributedlog.permissions` keeps its entries in it as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from metadata.foundation.errors import CallerError, CorruptDataError
from metadata.store import check_path

DEFAULT_FIRST_LSSN: Final = 1
SUB_NAMESPACES: Final = ".subnamespaces"
"""The child of a federated namespace below which its further sub-namespaces are."""
RESERVED_NODES: Final = (
    SUB_NAMESPACES,
    ".allocation_pool",
    ".sinks",
    ".executions",
    ".write_proxy",
    ".server-load",
    ".dlspark-cold",
    ".dlspark-rights",
)
_QUORUMS: Final = 100
_FORMAT: Final = "1"
_TAG: Final = "BKDL"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_SERVER: Final = re.compile(r"\s*(\[[0-9A-Fa-f:.]+\]|[^\s:@/\[\]]+):\d{1,5}\s*")


@dataclass(frozen=True, slots=True)
class Binding:
    """Where are a namespace's ledgers, and what does it demand of its writers? Servers are "host:port,host:port";
    readers use the writers' where they have none of their own.
    """

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
    quorums: tuple[int, int, int] | None = None
    """Ensemble size, write quorum and ack quorum of those writers whose settings say nothing of them: for a cluster
    that has fewer nodes than the settings' defaults ask for. Java's writers do not know it."""

    @classmethod
    def for_cluster(cls, servers: str, ledgers_path: str = "/ledgers") -> Binding:
        """Return the usual binding: one ZooKeeper ensemble for everything."""
        return cls(bk_servers=servers, ledgers_path=ledgers_path, dl_servers=servers)

    @property
    def effective_first_lssn(self) -> int:
        """Sequence number of a log's first segment."""
        return DEFAULT_FIRST_LSSN if self.first_lssn is None else self.first_lssn

    def encode(self) -> bytes:
        """Return the namespace znode's data."""
        return f"{_FORMAT}\n{_TAG}\n{self.body()}".encode()

    def body(self) -> str:
        """Return the TJSON text alone."""
        return encode_struct(
            {
                1: self.bk_servers,
                2: self.ledgers_path,
                3: self.sanity_check_txid,
                4: self.encode_region_id,
                5: self.bk_reader_servers or self.bk_servers,
                6: self.dl_servers,
                7: self.dl_reader_servers or self.dl_servers,
                8: self.acl_root_path,
                9: self.first_lssn,
                10: self.federated or None,
                _QUORUMS: None if self.quorums is None else ",".join(map(str, self.quorums)),
            }
        )

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
        return cls._of(StructFields("".join(lines[2:]), "a namespace binding", path), path)

    @classmethod
    def _of(cls, fields: StructFields, path: str) -> Binding:
        bk_servers = fields.required(1, "the BookKeeper servers")
        dl_servers = fields.required(6, "the DistributedLog servers")
        bk_readers, dl_readers = fields.text(5), fields.text(7)
        sanity_check = fields.flag(3)
        return cls(
            bk_servers=bk_servers,
            ledgers_path=fields.required(2, "the ledgers path"),
            dl_servers=dl_servers,
            bk_reader_servers=None if bk_readers == bk_servers else bk_readers,
            dl_reader_servers=None if dl_readers == dl_servers else dl_readers,
            sanity_check_txid=True if sanity_check is None else sanity_check,
            encode_region_id=bool(fields.flag(4)),
            acl_root_path=fields.text(8),
            first_lssn=fields.number(9),
            federated=bool(fields.flag(10)),
            quorums=_quorums(fields.text(_QUORUMS), path),
        )

    def check(self, path: str) -> None:
        """Raise CallerError for a binding that no namespace should get: `path` is the namespace's."""
        for servers in (self.bk_servers, self.bk_reader_servers, self.dl_servers, self.dl_reader_servers):
            if servers is not None and not all(_SERVER.fullmatch(part) for part in re.split("[,;]", servers)):
                raise CallerError(
                    f"{servers!r} are not ZooKeeper servers; nothing was bound",
                    path=path,
                    advice='Give them as "host:port" or "host:port,host:port"',
                )
        check_path(self.ledgers_path)
        acl_root = self.acl_root_path
        if acl_root is not None:
            if not acl_root.startswith(".") or "/" in acl_root or acl_root in (".", "..") or acl_root in RESERVED_NODES:
                raise CallerError(
                    f"{acl_root!r} cannot be the root of access control; nothing was bound",
                    path=path,
                    advice="Take one name that begins with '.', as .acl",
                )
            check_path(f"{path}/{acl_root}")
        if self.quorums is not None and not self.quorums[0] >= self.quorums[1] >= self.quorums[2] >= 1:
            raise CallerError(
                f"{self.quorums} cannot be an ensemble size, a write quorum and an ack quorum; nothing was bound",
                path=path,
                advice="Give positive ones, none above the one before",
            )
        if self.first_lssn is not None and not 1 <= self.first_lssn < 2**63:
            raise CallerError(
                f"{self.first_lssn} cannot be a segment's number; nothing was bound",
                path=path,
                advice="Take a positive one",
            )


def _quorums(text: str | None, path: str) -> tuple[int, int, int] | None:
    if text is None:
        return None
    try:
        ensemble_size, write_quorum, ack_quorum = map(int, text.split(","))
    except ValueError as error:
        raise CorruptDataError(
            f"the namespace's quorums are {text!r}, which are not three numbers", path=path
        ) from error
    return ensemble_size, write_quorum, ack_quorum


Struct: TypeAlias = Mapping[int, str | int | bool | None]
"""Values by field id; None where the field is absent. The type of a value is that of the field."""


def encode_struct(struct: Struct) -> str:
    """Return the text of a struct."""
    fields = {str(number): _tagged(value) for number, value in sorted(struct.items()) if value is not None}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def _tagged(value: str | int | bool) -> dict[str, str | int]:
    if isinstance(value, bool):
        return {"tf": int(value)}
    return {"str" if isinstance(value, str) else "i64": value}


class StructFields:
    """A struct's fields by id: each access checks the type tag and the value's type.

    Raises CorruptDataError, which says that the data at `path` is not `what`.
    """

    def __init__(self, text: str, what: str, path: str) -> None:
        self._what = what
        self._path = path
        try:
            parsed: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._corrupt_error(f"its body is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise self._corrupt_error("its body is not a struct")
        self._fields: dict[str, object] = parsed

    def _corrupt_error(self, why: str) -> CorruptDataError:
        return CorruptDataError(f"not {self._what}: {why}", path=self._path)

    def _value(self, number: int, tag: str) -> object:
        field = self._fields.get(str(number))
        if field is None:
            return None
        if not isinstance(field, dict) or tag not in field:
            raise self._corrupt_error(f"field {number} is not of type {tag}: {field!r}")
        return field[tag]

    def text(self, number: int) -> str | None:
        """Return a string field; None where it is absent."""
        value = self._value(number, "str")
        if value is not None and not isinstance(value, str):
            raise self._corrupt_error(f"field {number} is not a string: {value!r}")
        return value

    def required(self, number: int, name: str) -> str:
        """Return a string field, which must be there and not be empty; `name` is what an error calls it."""
        value = self.text(number)
        if not value:
            raise self._corrupt_error(f"{name} is missing")
        return value

    def flag(self, number: int) -> bool | None:
        """Return a boolean field, 0 or 1 in the text; None where it is absent."""
        value = self._value(number, "tf")
        if value is None:
            return None
        if isinstance(value, bool) or value not in (0, 1):
            raise self._corrupt_error(f"field {number} is neither 0 nor 1: {value!r}")
        return bool(value)

    def number(self, number: int) -> int | None:
        """Return an integer field; None where it is absent."""
        value = self._value(number, "i64")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._corrupt_error(f"field {number} is not a number: {value!r}")
        return value
