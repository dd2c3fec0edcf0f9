"""Sinks: how far each Spark sink has published, and every ledger that its tasks have staged.

Under a namespace `NS` (names that begin with `.` are reserved, so listings of logs skip them):

| znode | data |
|---|---|
| `NS/.sinks` | empty; parent of sinks, created by the first one |
| `NS/.sinks/<sink id>` | the mark: highest batch published (-1: none), by whom, rows of the newest batches: |
| | `{"v":1,"batch":7,"attempt":"a","rows":[[7,1000],[6,998]]}` |
| `NS/.sinks/<sink id>/attempts` | empty; parent of staged ledgers |
| `.../attempts/b<batch, 19 digits>-<attempt>-<ledger id>` | empty, or `swept`; one ledger written by one task |

Fault model: any process may die, and any request may be applied with its answer lost, at any line. Two rules decide:

* A ledger is listed before it exists, or by the transaction that makes it, so whatever a crash leaves can be found.
* A listing node is a **token**. It is created with version 0. Publishing a ledger deletes the node at version 0 in the
  very multi that refers to the ledger from a log and moves the mark; sweeping first sets the node's data, which makes
  it version 1. So a ledger is published or swept and never both, however stale the reads of either side were.

The mark only rises: a batch at or below it has been published whole (I9, D15), whoever did it. The numbers of rows tell
a replay from another batch of the same number: one that a checkpoint rolled back, or copied, has cut anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote

from metadata.errors import (
    BadVersionError,
    CallerError,
    CorruptDataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from metadata.ledgers import Versioned
from metadata.retry import repeat
from metadata.store import Create, Delete, MetadataStore, Op, SetData, Stat

MARK_VERSION = 1
NO_BATCH = -1
LISTED_VERSION = 0
SWEPT = b"swept"
MAX_SINK_ID_CHARS = 250
MAX_HISTORY = 64
"""Batches whose numbers of rows a mark keeps: some 1 KB, written with each publication."""

APPLICATION_PREFIX = "app-"
JOB_PREFIX = "job-"

_STAGED_NAME = re.compile(r"b(\d{19})-([0-9A-Za-z]{1,64})-(\d{1,19})\Z")
_SINK_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.%~-]*\Z")


def query_sink(query_id: str) -> str:
    """The sink id of a streaming query: its id, which stays the same over restarts from one checkpoint."""
    return _sink_name(quote(query_id, safe=""))


def application_sink(application_id: str) -> str:
    """The sink id for batches that the application numbers itself (`txnAppId`)."""
    return _sink_name(APPLICATION_PREFIX + quote(application_id, safe=""))


def job_sink(attempt: str) -> str:
    """The sink id of one batch write that nobody will repeat under the same name."""
    return _sink_name(JOB_PREFIX + attempt)


def _sink_name(name: str) -> str:
    if not _SINK_NAME.match(name) or len(name) > MAX_SINK_ID_CHARS:
        raise CallerError(
            f"{name!r} cannot name a sink",
            advice=f"Use an id of 1 to {MAX_SINK_ID_CHARS} characters (as they are percent-encoded)",
        )
    return name


@dataclass(frozen=True, slots=True)
class Mark:
    """What a sink has published: every batch up to `batch` (`NO_BATCH`: none), the last one by `attempt`.

    `rows` has (batch, rows) of the newest batches, newest first; two marks are told apart by batch and attempt alone.
    """

    batch: int = NO_BATCH
    attempt: str = ""
    rows: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    def covers(self, batch: int) -> bool:
        """Whether `batch` has been published: compared by order, never by equality (D15)."""
        return batch <= self.batch

    def rows_of(self, batch: int) -> int | None:
        """How many rows `batch` was published with; None if that is not known (any more)."""
        return dict(self.rows).get(batch)

    def forgot(self, batch: int) -> bool:
        """Whether `batch` is older than every batch whose number of rows is kept, and some were dropped."""
        return len(self.rows) == MAX_HISTORY and batch < self.rows[-1][0]

    def moved(self, batch: int, attempt: str, rows: int | None) -> Mark:
        """The mark after the publication of `batch` with so many rows (None: nobody counted them)."""
        newest = () if rows is None else ((batch, rows),)
        return Mark(batch, attempt, (*newest, *self.rows)[:MAX_HISTORY])

    def encode(self) -> bytes:
        fields: dict[str, object] = {"v": MARK_VERSION, "batch": self.batch, "attempt": self.attempt}
        if self.rows:
            fields["rows"] = self.rows
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> Mark:
        """Raises CorruptDataError for anything but a mark of a version known here."""
        try:
            fields = json.loads(data)
        except ValueError:
            raise _bad_mark(path, f"{data[:60]!r} is not JSON") from None
        if not isinstance(fields, dict) or fields.get("v") != MARK_VERSION:
            raise _bad_mark(path, f"{data[:60]!r} is no mark of version {MARK_VERSION}")
        batch, attempt, rows = fields.get("batch"), fields.get("attempt"), fields.get("rows", [])
        if type(batch) is not int or batch < NO_BATCH or not isinstance(attempt, str) or not isinstance(rows, list):
            raise _bad_mark(path, f"{data[:60]!r} lacks a batch number or an attempt")
        return cls(batch, attempt, tuple(_counted(pair, path) for pair in rows))


def _counted(pair: object, path: str) -> tuple[int, int]:
    match pair:
        case [int(batch), int(rows)]:
            return batch, rows
    raise _bad_mark(path, f"{pair!r} is no number of rows of a batch")


def _bad_mark(path: str, what: str) -> CorruptDataError:
    return CorruptDataError(
        f"The sink's mark cannot be read: {what}",
        advice="Nothing is published through this sink until the znode is repaired: it says which batches are in",
        path=path,
    )


@dataclass(frozen=True, slots=True, order=True)
class StagedLedger:
    """One ledger that one attempt at one batch writes; its name carries everything, so a listing needs no reads."""

    batch: int
    attempt: str
    ledger_id: int

    @property
    def name(self) -> str:
        return f"b{self.batch:019d}-{self.attempt}-{self.ledger_id}"

    @classmethod
    def parse(cls, name: str) -> StagedLedger | None:
        """None for a name that is not of this form (somebody else's znode)."""
        match = _STAGED_NAME.match(name)
        return cls(int(match[1]), match[2], int(match[3])) if match else None


@dataclass(frozen=True, slots=True)
class SinkPaths:
    """The znodes of one sink."""

    root: str

    @property
    def attempts(self) -> str:
        return f"{self.root}/attempts"

    def staged(self, ledger: StagedLedger) -> str:
        return f"{self.root}/attempts/{ledger.name}"


class SinkStore:
    """The sinks of one namespace.

    Every request here is safe to repeat, and is repeated across lost connections; the publishing multi is not among
    them, its parts are only made here (`publish_ops`).
    """

    def __init__(self, store: MetadataStore, namespace_path: str) -> None:
        self._store = store
        self.root = f"{namespace_path.rstrip('/')}/.sinks"

    def paths(self, sink_id: str) -> SinkPaths:
        return SinkPaths(f"{self.root}/{sink_id}")

    async def ensure(self, sink_id: str) -> Versioned[Mark]:
        """The sink's mark; the sink is created if nobody did so yet."""
        found = await self.read(sink_id)
        if found is not None:
            return found
        paths = self.paths(sink_id)
        ops: list[Op] = [Create(paths.root, Mark().encode()), Create(paths.attempts)]
        try:
            await repeat(self._store, lambda: self._store.create(self.root, make_parents=True))
        except NodeExistsError:
            pass
        try:
            await repeat(self._store, lambda: self._store.multi(ops))
        except NodeExistsError:
            pass  # another task was first, or our own earlier try whose answer was lost
        return await repeat(self._store, lambda: self._read(sink_id))

    async def read(self, sink_id: str) -> Versioned[Mark] | None:
        """The sink's mark, None if there is no such sink."""
        try:
            return await repeat(self._store, lambda: self._read(sink_id))
        except NoNodeError:
            return None

    async def _read(self, sink_id: str) -> Versioned[Mark]:
        path = self.paths(sink_id).root
        data, stat = await self._store.get(path)
        return Versioned(Mark.decode(data, path), stat.version)

    async def list_ledger(self, sink_id: str, ledger: StagedLedger) -> None:
        """List `ledger`; to be called before the ledger exists, after `ensure`.

        Raises NoNodeError if the sink was removed meanwhile: its job is over. It must not come to life again without
        its mark, so missing parents are not created here.
        """
        path = self.paths(sink_id).staged(ledger)
        try:
            await repeat(self._store, lambda: self._store.create(path))
        except NodeExistsError:
            pass  # the name is nobody else's: an earlier try whose answer was lost

    def listing_op(self, sink_id: str, ledger: StagedLedger) -> Op:
        """`list_ledger` as part of the transaction that makes the ledger: then neither is ever without the other, and
        a sweep that condemns the listing always finds the ledger. NoNodeError there as in `list_ledger`."""
        return Create(self.paths(sink_id).staged(ledger))

    async def stands(self, sink_id: str, ledger: StagedLedger) -> bool:
        """Whether `ledger` is listed and not condemned: asked once it exists, because a sweep may have come before."""
        stat = await self.stat(sink_id, ledger)
        return stat is not None and stat.version == LISTED_VERSION

    async def staged(self, sink_id: str) -> list[StagedLedger]:
        """Every ledger listed and not published, by batch; empty if there is no such sink."""
        names = await self._names(self.paths(sink_id).attempts)
        return sorted(ledger for ledger in map(StagedLedger.parse, names) if ledger is not None)

    def publish_ops(self, sink_id: str, mark: Mark, version: int, winners: Iterable[StagedLedger]) -> list[Op]:
        """The sink's part of a publishing multi: move the mark from `version`, take the winners' tokens.

        The mark comes first: a BadVersionError with `op_index` 0 is a mark that somebody else moved.
        """
        paths = self.paths(sink_id)
        tokens = [Delete(paths.staged(ledger), LISTED_VERSION) for ledger in winners]
        return [SetData(paths.root, mark.encode(), version), *tokens]

    async def condemn(self, sink_id: str, ledger: StagedLedger) -> bool:
        """Make sure that `ledger` can never be published. False: it has been, or it is gone; leave it alone."""
        path = self.paths(sink_id).staged(ledger)
        try:
            await repeat(self._store, lambda: self._store.put(path, SWEPT, LISTED_VERSION))
        except BadVersionError:
            return True  # condemned before: by a sweep that did not get to its end, or by our own lost request
        except NoNodeError:
            return False
        return True

    async def forget(self, sink_id: str, ledger: StagedLedger) -> None:
        """Remove a condemned ledger's listing; to be called once the ledger is deleted."""
        path = self.paths(sink_id).staged(ledger)
        try:
            await repeat(self._store, lambda: self._store.delete(path))
        except NoNodeError:
            pass

    async def remove(self, sink_id: str) -> bool:
        """Remove a sink that lists no ledger. False: something is still listed, and its mark stays."""
        paths = self.paths(sink_id)
        ops: list[Op] = [Delete(paths.attempts), Delete(paths.root)]
        try:
            await repeat(self._store, lambda: self._store.multi(ops))
        except NoNodeError:
            return True
        except NotEmptyError:
            return False
        return True

    async def sinks(self) -> list[str]:
        """The ids of all sinks of this namespace."""
        return await self._names(self.root)

    async def _names(self, path: str) -> list[str]:
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(path))
        except NoNodeError:
            return []
        return names

    async def stat(self, sink_id: str, ledger: StagedLedger | None = None) -> Stat | None:
        """The stat of a sink, or of one of its listings: it carries the server's times. None if there is none."""
        paths = self.paths(sink_id)
        path = paths.root if ledger is None else paths.staged(ledger)
        return await repeat(self._store, lambda: self._store.exists(path))
