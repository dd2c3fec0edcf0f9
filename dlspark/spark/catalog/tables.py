"""A log as a table of the SQL catalog: what its properties may say, where they are kept, and how a query gets them.

Properties are options of the connector that hold for every query of the table, unless the query says otherwise. They
are kept with the log, in the bytes that DistributedLog leaves to the application (the data of the log's znode), as
JSON: `{"dlspark": {"v": 1, "comment": "...", "properties": {...}}}`. Bytes of another application are left alone.

A `TableHandle` is what the catalog's Java side carries unread from `load` to each read and write, in option `HANDLE`;
`unpacked` turns it into options before anything else looks at them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final, TypeAlias

from dlspark.spark.errors import OptionError
from dlspark.spark.options.column_choice import CHOICES, COLUMNS, ColumnChoice
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import BY_NAME, PASSED_ON, Option, Scope
from dlspark.spark.options.tls import SETTINGS as TLS_SETTINGS

HANDLE: Final = "dlspark.catalog.table"
SCAN: Final = "dlspark.catalog.scan"
REQUEST: Final = "dlspark.catalog.request"

Json: TypeAlias = "dict[str, object]"

_KEY: Final = "dlspark"
_VERSION: Final = 1
_COMMENT: Final = "comment"
_NAMED_BY_THE_TABLE: Final = ("uri", "log", "path", "subscribe", "subscribePattern", "metadata")
_TIME_TRAVEL: Final = ("versionasof", "timestampasof")
NOT_OF_A_TABLE: Final = frozenset(
    {*_NAMED_BY_THE_TABLE, "createStreamIfNotExists", "numLogs", "partitionBy", "txnAppId", "txnVersion"}
    | {*TLS_SETTINGS, "tokenKeyFile"}
)
"""Options that say which log it is, belong to one write alone, or name files of those who ask."""


def property_options() -> dict[str, Option]:
    """Return the options that may be properties of a table, by lower-case name."""
    return {name: option for name, option in BY_NAME.items() if option.key not in NOT_OF_A_TABLE}


def checked_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Table properties under their registered names. OptionError for what no table can have, with the nearest name."""
    found: dict[str, str] = {}
    for name, value in given.items():
        option = BY_NAME.get(name.lower())
        if option is not None and option.key in NOT_OF_A_TABLE:
            raise OptionError(
                f"Option {option.key} cannot be a property of a table: it names logs, or files of who asks, or belongs "
                "to one write",
                advice=f"Properties may be: {', '.join(one.key for one in property_options().values())}",
            )
        Options({name: value}, option.scope if option is not None else Scope.ANY)  # unknown or malformed: it raises
        if option is not None and option.key == COLUMNS and CHOICES.read(value) is not ColumnChoice.RAW:
            raise OptionError(
                f"Property {COLUMNS} of a table cannot be {value}: a table has the columns that its log declares",
                advice="Leave it out, or give it raw: the table is then one of bytes, whatever the log declares",
            )
        if option is None and not name.lower().startswith(PASSED_ON):  # `location` and its like
            raise OptionError(
                f"{name} cannot be a property of a table: it is a word of Spark's, and a log has no use for it",
                advice=f"Properties may be: {', '.join(one.key for one in property_options().values())}",
            )
        found[name.lower() if option is None else option.key] = value
    return dict(sorted(found.items()))


def of_scope(properties: Mapping[str, str], scope: Scope) -> dict[str, str]:
    """Return those of a table's properties that have a meaning for a kind of query; settings handed on have one for
    each."""
    return {
        name: value
        for name, value in properties.items()
        if (option := BY_NAME.get(name.lower())) is None or option.scope & scope
    }


@dataclass(frozen=True, slots=True)
class TableProperties:
    """What a log's znode says of it as a table. `foreign`: the bytes there are another application's."""

    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    other_keys: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the same JSON object, which are not ours."""
    foreign: bool = False

    @classmethod
    def decode(cls, data: bytes) -> TableProperties:
        """Read a log's application bytes; what is not ours is `foreign`, never an error."""
        if not data:
            return cls()
        try:
            stored: object = json.loads(data)
        except (ValueError, RecursionError):
            return cls(foreign=True)
        if not isinstance(stored, dict):
            return cls(foreign=True)
        other_keys = {name: value for name, value in stored.items() if name != _KEY}
        ours = stored.get(_KEY)
        if ours is None:
            return cls(other_keys=other_keys)
        if not isinstance(ours, dict) or ours.get("v") != _VERSION:
            return cls(foreign=True)
        properties, comment = ours.get("properties", {}), ours.get(_COMMENT)
        if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
            return cls(foreign=True)
        return cls(properties, comment if isinstance(comment, str) else None, other_keys)

    def encode(self) -> bytes:
        """Return the bytes to keep; empty where there is nothing to say."""
        ours: Json = {"v": _VERSION}
        if self.comment is not None:
            ours[_COMMENT] = self.comment
        if self.properties:
            ours["properties"] = dict(self.properties)
        stored = {**self.other_keys, **({_KEY: ours} if len(ours) > 1 else {})}
        return json.dumps(stored).encode() if stored else b""

    def changed(self, log: str, set_: Mapping[str, str], removed: Iterable[str]) -> TableProperties:
        """Return these with some set and some removed. OptionError for what cannot be one, or where the bytes are
        foreign."""
        if self.foreign:
            raise OptionError(
                "Another application keeps bytes of its own with this log; nothing was changed",
                advice="Give the options with each query, or as options of the catalog (spark.sql.catalog.<name>.)",
                log=log,
            )
        gone = {name.lower() for name in removed}
        comment = None if _COMMENT in gone else set_.get(_COMMENT, self.comment)
        kept = {name: value for name, value in self.properties.items() if name.lower() not in gone}
        new = checked_properties({name: value for name, value in set_.items() if name != _COMMENT})
        return replace(self, properties=dict(sorted({**kept, **new}.items())), comment=comment)


@dataclass(frozen=True)
class TableHandle:
    """Which table a query reads or writes: its log, its properties, and where it ends if it is an older version.

    `end_position` ends it before a position, `end_txid` before a transaction id; `metadata` names a metadata table.
    `declaration` and `version` say of what its columns are, where the log declares a schema and the table shows it.
    """

    uri: str
    log: str | None
    defaults: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    end_position: str | None = None
    end_txid: int | None = None
    metadata: str | None = None
    declaration: str | None = None
    version: int | None = None

    @property
    def shows_bytes(self) -> bool:
        """Whether it is a table of bytes, whatever the log declares."""
        layers = ({name.lower(): value for name, value in one.items()} for one in (self.properties, self.defaults))
        return any(COLUMNS in one for one in layers)

    def of_version(self, declaration: str, version: int) -> TableHandle:
        """Return the table with the columns of a version of what its log declares."""
        return replace(self, declaration=declaration, version=version)

    @property
    def ends(self) -> bool:
        """Whether it is an older version of the log."""
        return self.end_position is not None or self.end_txid is not None

    def until(self, *, position: str | None = None, txid: int | None = None) -> TableHandle:
        """Return the table as it was before a position, or before a transaction id."""
        return replace(self, end_position=position, end_txid=txid)

    def to_json(self) -> Json:
        """Return the form in which the Java side carries it."""
        return asdict(self)

    def options(self, given: Mapping[str, str], scope: Scope) -> dict[str, str]:
        """Return the options of one query of this table: the query's own before the table's before the catalog's."""
        given = self._without_time_travel(given)
        lowered = {name.lower() for name in given}
        for name in _NAMED_BY_THE_TABLE:
            if name.lower() in lowered:
                raise OptionError(
                    f"Option {name} has no meaning for a table, which is one log of one namespace",
                    advice='Leave it out, or use format("distributedlog")',
                )
        if COLUMNS in lowered:
            raise OptionError(
                f"Option {COLUMNS} was not applied: the columns of a table are found before a query's options are",
                advice=f"Set it for the table, ALTER TABLE ... SET TBLPROPERTIES ({COLUMNS} = 'raw'), or use "
                'format("distributedlog")',
            )
        if self.metadata is not None:
            log = {} if self.log is None else {"log": self.log}
            return {**given, "uri": self.uri, "metadata": self.metadata, **log}
        # As the table was loaded, whatever was declared since.
        columns = ColumnChoice.RAW if self.version is None else ColumnChoice.TYPED
        found = {**given, **self._end(lowered), "uri": self.uri, "log": str(self.log), COLUMNS: columns.value}
        for layer in (self.properties, self.defaults):
            taken = {_group_of(name) for name in found}
            for name, value in of_scope(layer, scope).items():
                if _group_of(name) not in taken:
                    found[name] = value
        return found

    def _without_time_travel(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """Without the options by which Spark has loaded this older version: it leaves them among those of the query."""
        asked = sorted(name for name in given if name.lower() in _TIME_TRAVEL)
        if asked and not self.ends:
            raise OptionError(
                f"Option {asked[0]} was not applied: Spark loads older versions of tables for batch queries alone",
                advice="Say SELECT ... VERSION AS OF or TIMESTAMP AS OF, or give it to spark.read before table(); a "
                "stream begins where startingOffsets or startingTimestamp says",
            )
        return {name: value for name, value in given.items() if name not in asked}

    def _end(self, given: set[str]) -> dict[str, str]:
        """Return the option that ends an older version of the log."""
        if not self.ends:
            return {}
        ending = sorted(name for name in given if _group_of(name) == "ending")
        if ending:
            raise OptionError(
                f"Option {ending[0]} and an older version of the table contradict each other: each names an end",
                advice="Keep one of them",
            )
        if self.end_position is not None:
            return {"endingOffsets": json.dumps({self.log: self.end_position})}
        return {"endingTransactionId": str(self.end_txid)}


def _group_of(name: str) -> str:
    """Options of which a query takes one: all that say where to start, all that say where to end; else the name."""
    lowered = name.lower()
    if lowered.endswith("strategy"):
        return lowered
    return next((word for word in ("starting", "ending") if lowered.startswith(word)), lowered)


def unpacked(raw: Mapping[str, str], scope: Scope) -> dict[str, str]:
    """Return a query's options with the catalog's in them, if it is a query of a catalog's table, and without its own
    keys."""
    given = {name: value for name, value in raw.items() if name.lower() not in (HANDLE, SCAN)}
    text = {name.lower(): value for name, value in raw.items()}.get(HANDLE)
    return given if text is None else TableHandle(**json.loads(text)).options(given, scope)


def pushed(raw: Mapping[str, str]) -> Json:
    """Return what Spark's planner pushed down to a query of a catalog's table; empty for any other query."""
    text = {name.lower(): value for name, value in raw.items()}.get(SCAN)
    return {} if text is None else json.loads(text)
