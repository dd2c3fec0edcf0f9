"""Marks: how far a sink has published, into each log and over all.

| where | data |
|---|---|
| `P/sink-<sink id>`, beside a log's own values | the log's mark: highest batch of the sink in it, by whom, rows: |
| | `{"v":2,"batch":7,"attempt":"a","rows":[[7,1000],[6,998]],"since":4}` |
| the same, while batches are appended | the same with `"v":3` and `"appending"`: the time at which it was set, in ms |
| the same, while a batch is sent to a proxy | the same with `"v":4` and `"sent"`: [number of the request, batch] |
| `NS/.sinks/<sink id>` | the sink: highest batch published into any log, by whom, its rows; its mark of old, if any: |
| | `{"v":2,"batch":7,"attempt":"a","rows":1000,"floor":{"zxid":99,"mark":{"v":1,...}}}` |
| the same, of a batch write's sink, and of old | `{"v":1,"batch":7,"attempt":"a","rows":[[7,1000],[6,998]]}` |

`rows`: batches with their numbers of rows, newest first; of a log's mark, those in that log. Every batch from `since`
on that wrote to the log is in it. A log's mark lies in the log: it is deleted, made again and renamed with it, so it
never speaks of another log that has the name now (I9). Whether a batch is in a log, that mark alone says; the
sink's znode only says which batches no log can have yet. It also keeps an older dlspark, which has one mark for all
logs, from publishing beside this one: that refuses what is not of version 1.

A batch may also be in a log as one request of an idempotent producer that has the sink's id (I20). The mark of such a
sink is moved only now and then, so it says that it is not the whole truth: the log's producers may know later batches.
Where a proxy owns the log, the mark names the one batch that was perhaps sent there, before it is. An older dlspark,
which would not ask the producers, refuses marks of versions 3 and 4. `"epoch"`, where it is not 0, is the newest epoch
that a mark has named for the requests of its sink; an older dlspark passes over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from metadata.foundation.errors import CorruptDataError
from metadata.store import Stat

OLD_VERSION: Final = 1
VERSION: Final = 2
APPENDING_VERSION: Final = 3
SENT_VERSION: Final = 4
NO_BATCH: Final = -1
MAX_HISTORY: Final = 64
"""Batches whose numbers of rows a mark keeps: some 1 KB, written with each publication."""
MIN_HISTORY: Final = 8
_HISTORY_OF_ALL: Final = 2048
"""Numbers of rows that one publication writes over all its logs, so that many logs' marks fit into one transaction."""


def history_kept(logs: int) -> int:
    """Return for how many batches each mark of a publication over so many logs keeps the number of rows."""
    return max(MIN_HISTORY, min(MAX_HISTORY, _HISTORY_OF_ALL // max(1, logs)))


@dataclass(frozen=True, slots=True)
class SinkMark:
    """The old form: every batch up to `batch` (`NO_BATCH`: none), the last one by `attempt`.

    `rows` has (batch, rows) of the newest batches, newest first; two marks are equal by batch and attempt alone.
    It says nothing of logs, so it is still written only for batch writes, whose sink has one publication.
    """

    batch: int = NO_BATCH
    attempt: str = ""
    rows: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    def covers(self, batch: int) -> bool:
        """Return whether `batch` has been published: compared by order, never by equality (D15)."""
        return batch <= self.batch

    def rows_of(self, batch: int) -> int | None:
        """Return how many rows `batch` was published with; None if that is not known (any more)."""
        return dict(self.rows).get(batch)

    def encode(self) -> bytes:
        """Return the mark as JSON."""
        return _encoded(self._fields())

    def _fields(self) -> dict[str, object]:
        fields: dict[str, object] = {"v": OLD_VERSION, "batch": self.batch, "attempt": self.attempt}
        if self.rows:
            fields["rows"] = self.rows
        return fields

    @classmethod
    def decode(cls, data: bytes, path: str) -> SinkMark:
        """Read a mark. Raises CorruptDataError for anything but one of this form."""
        return cls._of(_MarkFields.read(data, path, OLD_VERSION))

    @classmethod
    def _of(cls, fields: _MarkFields) -> SinkMark:
        return cls(fields.batch(), fields.text("attempt"), fields.rows())


class NamedBatch(NamedTuple):
    """Was a batch perhaps sent to the log's proxy? As request `number` of the mark's epoch."""

    number: int
    batch: int


@dataclass(frozen=True, slots=True)
class LogMark:
    """How far has a sink published into one log? Its last batch there, by `attempt`, and the rows of the newest ones.

    `rows` has (batch, rows), newest first; below `since` some are missing. Equal by batch and attempt alone.
    """

    batch: int = NO_BATCH
    attempt: str = ""
    rows: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    since: int = field(default=0, compare=False)
    appending_ms: int | None = field(default=None, compare=False)
    """When the mark was set by a process that appends batches of the sink to the log: later batches than `batch` may be
    there, and the log's producers know them (I20). None: there are none."""
    epoch: int = field(default=0, compare=False)
    """The newest epoch of the sink's requests that a mark of this log has named."""
    sent: NamedBatch | None = field(default=None, compare=False)
    """The only later batch that may be there; None: any may, if the mark is not the whole truth."""

    def covers(self, batch: int) -> bool:
        """Return whether the log takes no rows of `batch` any more: compared by order, never by equality (D15)."""
        return batch <= self.batch

    def rows_of(self, batch: int) -> int | None:
        """Return the rows that `batch` has in the log; None if it has none, or they are not known any more."""
        return dict(self.rows).get(batch)

    def forgot(self, batch: int) -> bool:
        """Return whether nothing is known any more of a batch so old."""
        return batch < self.since

    def moved(self, batch: int, attempt: str, rows: int, keep: int) -> LogMark:
        """Return the mark after the publication of `batch`, with the rows of `keep` batches. It is the whole truth."""
        # `since` follows the newest batch that is left out: a batch from there on without rows here did not write.
        every = ((batch, rows), *self.rows)
        since = max(self.since, every[keep][0] + 1) if len(every) > keep else self.since
        return LogMark(batch, attempt, every[:keep], since, epoch=self.epoch)

    def gone_past(self, batch: int) -> LogMark:
        """Return the mark above a batch of which it stays unknown whether the log has it: it takes no rows any more."""
        return replace(self, batch=batch, attempt="", since=batch + 1, sent=None)

    def with_appended(self, requests: Iterable[tuple[int, int]], keep: int) -> LogMark:
        """Return the mark with the batches (and their rows) that the log's producers have above it, in ascending
        order."""
        mark = self
        for batch, rows in requests:
            if batch > mark.batch:
                mark = mark.moved(batch, "", rows, keep)
        return mark

    def encode(self) -> bytes:
        """Return the mark as JSON."""
        version = VERSION
        if self.appending_ms is not None:
            version = APPENDING_VERSION if self.sent is None else SENT_VERSION
        fields: dict[str, object] = {"v": version, "batch": self.batch, "attempt": self.attempt}
        fields["rows"] = self.rows
        if self.since:
            fields["since"] = self.since
        if self.appending_ms is not None:
            fields["appending"] = self.appending_ms
        if self.epoch:
            fields["epoch"] = self.epoch
        if self.sent is not None:
            fields["sent"] = self.sent
        return _encoded(fields)

    @classmethod
    def decode(cls, data: bytes, path: str) -> LogMark:
        """Read a log's mark. Raises CorruptDataError for anything but one of a version known here."""
        fields = _MarkFields.read(data, path, VERSION, APPENDING_VERSION, SENT_VERSION)
        return cls(
            fields.batch(),
            fields.text("attempt"),
            fields.rows(),
            fields.number("since", 0),
            None if fields.version == VERSION else fields.number("appending", None),
            fields.number("epoch", 0),
            fields.sent() if fields.version == SENT_VERSION else None,
        )


class Floor(NamedTuple):
    """How far had an older dlspark published when a newer one took the sink over? Into which logs it does not say.

    `zxid` is the transaction that moved `mark` last, and so made the segments of its last batch; 0: not known, because
    the znodes were copied from elsewhere.
    """

    mark: SinkMark
    zxid: int


@dataclass(frozen=True, slots=True)
class SinkState:
    """How far has a sink published over all its logs? The content of its own znode; `old`: it has the old form, which a
    publication replaces.
    """

    batch: int = NO_BATCH
    attempt: str = ""
    rows: int | None = None
    floor: Floor | None = None
    old: bool = False

    def moved(self, batch: int, attempt: str, rows: int) -> SinkState:
        """Return the state after a publication. Never lower: forks may publish in any order."""
        if batch < self.batch:
            return SinkState(self.batch, self.attempt, self.rows, self.floor)
        return SinkState(batch, attempt, rows, self.floor)

    def encode(self) -> bytes:
        """Return the state as JSON."""
        fields: dict[str, object] = {"v": VERSION, "batch": self.batch, "attempt": self.attempt}
        if self.rows is not None:
            fields["rows"] = self.rows
        if self.floor is not None:
            fields["floor"] = {"zxid": self.floor.zxid, "mark": self.floor.mark._fields()}
        return _encoded(fields)

    @classmethod
    def decode(cls, data: bytes, stat: Stat, path: str) -> SinkState:
        """Read a sink's state. Raises CorruptDataError for anything but one of a version known here."""
        fields = _MarkFields.read(data, path, OLD_VERSION, VERSION)
        if fields.version == OLD_VERSION:
            mark = SinkMark._of(fields)
            # A mark that was moved has been set: at version 0 it is a copy, and its transaction says nothing.
            floor = Floor(mark, stat.mzxid if stat.version else 0) if mark.batch != NO_BATCH else None
            return cls(mark.batch, mark.attempt, mark.rows_of(mark.batch), floor, old=True)
        rows = fields.number("rows", 0) if "rows" in fields.found else None
        return cls(fields.batch(), fields.text("attempt"), rows, _floor(fields))


def _floor(fields: _MarkFields) -> Floor | None:
    if "floor" not in fields.found:
        return None
    inner = fields.inner("floor")
    return Floor(SinkMark._of(inner.inner("mark")), inner.number("zxid", 0))


@dataclass(frozen=True, slots=True)
class _MarkFields:
    """The fields of a mark, checked as they are asked for."""

    found: dict[str, object]
    path: str
    version: int

    @classmethod
    def read(cls, data: bytes, path: str, *versions: int) -> _MarkFields:
        try:
            found = json.loads(data)
        except ValueError:
            raise _bad_mark_error(path, f"{data[:60]!r} is not JSON") from None
        version = found.get("v") if isinstance(found, dict) else None
        if version not in versions:
            known = " or ".join(map(str, versions))
            raise _bad_mark_error(path, f"{data[:60]!r} is not a mark of version {known}")
        return cls(found, path, version)

    def batch(self) -> int:
        return self.number("batch", None, least=NO_BATCH)

    def number(self, name: str, default: int | None, least: int = 0) -> int:
        value = self.found.get(name, default)
        if type(value) is not int or value < least:
            raise _bad_mark_error(self.path, f"{name} is {value!r}")
        return value

    def text(self, name: str) -> str:
        value = self.found.get(name)
        if not isinstance(value, str):
            raise _bad_mark_error(self.path, f"{name} is {value!r}")
        return value

    def inner(self, name: str) -> _MarkFields:
        value = self.found.get(name)
        if not isinstance(value, dict):
            raise _bad_mark_error(self.path, f"{name} is {value!r}")
        return _MarkFields(value, self.path, self.version)

    def sent(self) -> NamedBatch:
        """Return a request's number and its batch."""
        match self.found.get("sent"):
            case [int(number), int(batch)] if min(number, batch) >= 0:
                return NamedBatch(number, batch)
        raise _bad_mark_error(self.path, f"sent is {self.found.get('sent')!r}")

    def rows(self) -> tuple[tuple[int, int], ...]:
        """Return the batches with their numbers of rows."""
        value = self.found.get("rows", [])
        if not isinstance(value, list):
            raise _bad_mark_error(self.path, f"rows is {value!r}")
        return tuple(map(self._counted, value))

    def _counted(self, pair: object) -> tuple[int, int]:
        match pair:
            case [int(batch), int(rows)]:
                return batch, rows
        raise _bad_mark_error(self.path, f"{pair!r} is not a number of rows of a batch")


def _encoded(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _bad_mark_error(path: str, what: str) -> CorruptDataError:
    return CorruptDataError(
        f"The sink's mark cannot be read: {what}",
        advice="Nothing is published through this sink until the znode is repaired: it says which batches are in",
        path=path,
    )
