"""Sinks: how far each Spark sink has published, and every ledger that its tasks have staged.

Under a namespace `NS` (names that begin with `.` are reserved, so listings of logs skip them):

| znode | data |
|---|---|
| `NS/.sinks` | empty; parent of sinks, created by the first one |
| `NS/.sinks/<sink id>` | the sink's state (`metadata.distributedlog.sink_marks`) |
| `NS/.sinks/<sink id>/attempts` | empty; parent of staged ledgers |
| `.../attempts/b<batch, 19 digits>-<attempt>-<ledger id>-<tag>` | one ledger, written by one task: the log that it is |
| | for, or `swept`. The tag stands for the log; an older dlspark wrote neither |
| `NS/<log>/<default>/sink-<sink id>` | the sink's mark in this log (`metadata.distributedlog.sink_marks`) |

The data byte by byte, and the rules for other readers of it: docs/reference/znodes.md#sinks.

Fault model: any process may die, and any request may be applied with its answer lost, at any line. Two rules decide:

* A ledger is listed before it exists, or by the transaction that makes it, so what a crash leaves can be found.
* A listing node is a **token**. It is created with version 0. Publishing a ledger deletes the node at version 0 in the
  very multi that refers to the ledger from a log and moves the log's mark; sweeping first sets the node's data, which
  makes it version 1. So a ledger is published or swept and never both, however stale the reads of either side were.

A mark only rises: a batch at or below it takes no rows into its log any more (I9, D15), whichever attempt published
them. The numbers of rows distinguish a replay from another batch of the same number, planned anew from a checkpoint
that was rolled back or copied.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.sink_marks import LogMark, SinkMark, SinkState
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from metadata.retry import repeat
from metadata.store import ANY_VERSION, Create, Delete, MetadataStore, Op, SetData, Stat

LISTED_VERSION = 0
SWEPT = b"swept"
MAX_SINK_ID_CHARS = 250

APPLICATION_PREFIX = "app-"
JOB_PREFIX = "job-"
MAX_APPLICATION_CHARS = MAX_SINK_ID_CHARS - len(APPLICATION_PREFIX)
"""The longest id of an application, as it is percent-encoded."""

_STAGED_NAME = re.compile(r"b(\d{19})-([0-9A-Za-z]{1,64})-(\d{1,19})(?:-([0-9a-f]{12}))?\Z")
_SINK_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.%~-]*\Z")


def query_sink(query_id: str) -> str:
    """Return the sink id of a streaming query: its id, which stays the same over restarts from one checkpoint."""
    return _sink_name(quote(query_id, safe=""))


def application_sink(application_id: str) -> str:
    """Return the sink id for batches that the application numbers itself (`txnAppId`)."""
    return _sink_name(APPLICATION_PREFIX + quote(application_id, safe=""))


def job_sink(attempt: str) -> str:
    """Return the sink id of one batch write, which is never repeated under the same name."""
    return _sink_name(JOB_PREFIX + attempt)


def _sink_name(name: str) -> str:
    if not _SINK_NAME.match(name) or len(name) > MAX_SINK_ID_CHARS:
        raise CallerError(
            f"{name!r} cannot name a sink",
            advice=f"Use an id of 1 to {MAX_SINK_ID_CHARS} characters (as they are percent-encoded)",
        )
    return name


def log_tag(log: str) -> str:
    """Return what stands for a log in the name of a listing: a name of a log may be as long as a path."""
    return hashlib.sha256(log.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, order=True)
class StagedLedger:
    """Which attempt at which batch writes a ledger? Its name carries everything, so a listing needs no reads.

    `tag` is its log's (`log_tag`); empty where an older dlspark listed it.
    """

    batch: int
    attempt: str
    ledger_id: int
    tag: str = ""

    @property
    def name(self) -> str:
        """The name of the ledger's znode."""
        return f"b{self.batch:019d}-{self.attempt}-{self.ledger_id}" + (f"-{self.tag}" if self.tag else "")

    @classmethod
    def parse(cls, name: str) -> StagedLedger | None:
        """Return the listing of this name; None for a name that is not of this form, another program's znode."""
        match = _STAGED_NAME.match(name)
        return cls(int(match[1]), match[2], int(match[3]), match[4] or "") if match else None


@dataclass(frozen=True, slots=True)
class SinkPaths:
    """The znodes of one sink."""

    root: str

    @property
    def attempts(self) -> str:
        """The parent of staged ledgers."""
        return f"{self.root}/attempts"

    def staged(self, ledger: StagedLedger) -> str:
        """Return the znode of one staged ledger."""
        return f"{self.root}/attempts/{ledger.name}"


class SinkStore:
    """Which batches has a sink published, and which ledgers has it still to publish? The sinks of one namespace (I9).

    Every request here is safe to repeat, and is repeated across lost connections; the publishing multi is not among
    them, its parts are only made here (`publish_ops`).

    Args:
        store: the session.
        namespace_path: the namespace's znode.
    """

    def __init__(self, store: MetadataStore, namespace_path: str) -> None:
        self._store = store
        self.root = f"{namespace_path.rstrip('/')}/.sinks"

    def paths(self, sink_id: str) -> SinkPaths:
        """Return the znodes of one sink."""
        return SinkPaths(f"{self.root}/{sink_id}")

    async def ensure(self, sink_id: str) -> Versioned[SinkState]:
        """Return the sink's state; the sink is created if it does not exist yet. Safe to repeat."""
        found = await self.read(sink_id)
        if found is not None:
            return found
        paths = self.paths(sink_id)
        ops: list[Op] = [Create(paths.root, _state_data(sink_id, SinkState())), Create(paths.attempts)]
        try:
            await repeat(self._store, lambda: self._store.create(self.root, make_parents=True))
        except NodeExistsError:
            pass
        try:
            await repeat(self._store, lambda: self._store.multi(ops))
        except NodeExistsError:
            pass  # another task was first, or our own earlier try whose answer was lost
        return await repeat(self._store, lambda: self._read(sink_id))

    async def read(self, sink_id: str) -> Versioned[SinkState] | None:
        """Return the sink's state, None if there is no such sink."""
        try:
            return await repeat(self._store, lambda: self._read(sink_id))
        except NoNodeError:
            return None

    async def _read(self, sink_id: str) -> Versioned[SinkState]:
        path = self.paths(sink_id).root
        data, stat = await self._store.get(path)
        return Versioned(SinkState.decode(data, stat, path), stat.version)

    async def mark_in(self, log: LogPaths, sink_id: str) -> Versioned[LogMark] | None:
        """Return the sink's mark in a log; None if the sink has published nothing into it, or there is no such log."""
        path = log.sink_mark(sink_id)
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return Versioned(LogMark.decode(data, path), stat.version)

    async def list_ledger(self, sink_id: str, ledger: StagedLedger, log: str = "") -> None:
        """List `ledger`, which is for `log`; to be called before the ledger exists, after `ensure`.

        Raises NoNodeError if the sink was removed meanwhile: its job is over. It must not come to life again without
        its mark, so missing parents are not created here.
        """
        path = self.paths(sink_id).staged(ledger)
        try:
            await repeat(self._store, lambda: self._store.create(path, log.encode()))
        except NodeExistsError:
            pass  # only this task uses the name: an earlier try whose answer was lost

    def listing_op(self, sink_id: str, ledger: StagedLedger, log: str) -> Op:
        """Return `list_ledger` as part of the transaction that makes the ledger: then neither is ever without the
        other, and a sweep that condemns the listing always finds the ledger. NoNodeError there as in `list_ledger`.
        """
        return Create(self.paths(sink_id).staged(ledger), log.encode())

    async def stands(self, sink_id: str, ledger: StagedLedger) -> bool:
        """Return whether `ledger` is listed and not condemned: asked once it exists, because a sweep may have come
        before."""
        stat = await self.stat(sink_id, ledger)
        return stat is not None and stat.version == LISTED_VERSION

    async def staged(self, sink_id: str) -> list[StagedLedger]:
        """Return every ledger listed and not published, by batch; empty if there is no such sink."""
        names = await self._names(self.paths(sink_id).attempts)
        return sorted(ledger for ledger in map(StagedLedger.parse, names) if ledger is not None)

    async def log_of(self, sink_id: str, ledger: StagedLedger) -> tuple[str, Stat] | None:
        """Return the log that a listed ledger is for, with the listing's stat. None if it is not listed any more.

        The name is empty where an older dlspark listed it, and where a sweep has condemned it.
        """
        path = self.paths(sink_id).staged(ledger)
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return None
        return (data.decode() if stat.version == LISTED_VERSION else ""), stat

    def publish_ops(
        self, sink_id: str, found: Versioned[SinkState], moved: SinkState, winners: Iterable[StagedLedger]
    ) -> list[Op]:
        """Return the sink's part of a publishing multi: set its state, take the winners' tokens. The state comes first.

        One of the old form is replaced at the version that was found, so that nothing which an older dlspark publishes
        meanwhile is overlooked, and so is a batch write's, which is its only mark. Others are set at any version: the
        logs' marks decide, and forks of a query that write to other logs do not hold each other up.
        """
        paths = self.paths(sink_id)
        conditional = found.value.old
        # At the version of a listing that no sweep has condemned: the batch fails as a whole rather than in part (I9).
        tokens = [Delete(paths.staged(ledger), LISTED_VERSION) for ledger in winners]
        state = SetData(paths.root, _state_data(sink_id, moved), found.version if conditional else ANY_VERSION)
        return [state, *tokens]

    def mark_op(self, log: LogPaths, sink_id: str, found: Versioned[LogMark] | None, moved: LogMark) -> Op:
        """Return the log's part of a publishing multi that moves the sink's mark in it, from what was found."""
        # Created, or set at the version found: a publication that was delayed, or another driver's, fails (D13).
        path = log.sink_mark(sink_id)
        if found is None:
            return Create(path, moved.encode())
        return SetData(path, moved.encode(), found.version)

    async def condemn(self, sink_id: str, ledger: StagedLedger) -> bool:
        """Make sure that `ledger` can never be published. False: it has been, or it is gone; leave it alone."""
        path = self.paths(sink_id).staged(ledger)
        try:
            # Before the ledger is deleted: the new version fails a publication of it, also one already sent (I9).
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
        # In one multi: a listing that is added meanwhile keeps `attempts`, and so the sink with its mark.
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
        """Return the ids of all sinks of this namespace."""
        return await self._names(self.root)

    async def _names(self, path: str) -> list[str]:
        try:
            names, _ = await repeat(self._store, lambda: self._store.children(path))
        except NoNodeError:
            return []
        return names

    async def stat(self, sink_id: str, ledger: StagedLedger | None = None) -> Stat | None:
        """Return the stat of a sink, or of one of its listings: it carries the server's times. None if there is
        none."""
        paths = self.paths(sink_id)
        path = paths.root if ledger is None else paths.staged(ledger)
        return await repeat(self._store, lambda: self._store.exists(path))


def _state_data(sink_id: str, state: SinkState) -> bytes:
    """Return a sink's state as it is stored: a batch write's sink has one publication, and the old form of a mark says
    all of it.
    """
    if sink_id.startswith(JOB_PREFIX):
        rows = () if state.rows is None else ((state.batch, state.rows),)
        return SinkMark(state.batch, state.attempt, rows).encode()
    return state.encode()
