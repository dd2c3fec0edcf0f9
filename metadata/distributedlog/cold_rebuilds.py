"""`ColdRebuilds`: the znodes of a log that is made again from its cold files.

| step | one transaction |
|---|---|
| begin | on an untouched log: the highest numbers, the empty segment behind the newest file, its |
| | declaration, `P/cold`, and `P/cold/rebuild`, which says what is being rebuilt |
| each unit, newest first | the unit, as one whose hot copies are gone; `P/cold` at the version read |
| the last unit | the same, and `P/cold/rebuild` goes |

So the log is one that can be read and written from its first step on, without a hole: it only begins later than it
will. Whoever writes meanwhile writes behind the newest file. The empty segment is there for writers: the sequence ids
of the next one go on from it.

| znode | data |
|---|---|
| `P/cold/rebuild` | JSON: `{"v": 1, "namespace": ..., "log": ..., "first": ..., "last": ..., "attempt": ...}` |

The rebuilt log has an id of its own, so that nothing that sweeps below its id can touch files that another log may
still name.

Fault model: the process may die anywhere, answers may be lost; another client may use the log at any time. A rebuild is
taken up again from `P/cold/rebuild` and the units that are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from metadata.bookkeeper.ledgers import Versioned
from metadata.distributedlog.cold_units import WORKER, ColdLog, ColdUnit, parse_unit_name
from metadata.distributedlog.log_names import LogPaths
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation.errors import (
    BadVersionError,
    CallerError,
    CorruptDataError,
    NodeExistsError,
    NoNodeError,
    NotAppliedError,
    OutcomeUnknownError,
    check,
)
from metadata.retry import MAX_REPEATS, repeat
from metadata.store import Create, Delete, MetadataStore, Op, SetData

VERSION: Final = 1
REBUILD: Final = "rebuild"


class RebuildRacedError(NotAppliedError):
    """Another client has changed the log that is being rebuilt; this transaction changed nothing."""


@dataclass(frozen=True, slots=True)
class RebuildOrigin:
    """What is a log rebuilt from?

    Args:
        namespace_id, log_id: of the log whose files they are.
        first, last: numbers of the segments that it is to have.
        attempt: a random id of the rebuild that began it.
    """

    namespace_id: str
    log_id: str
    first: int
    last: int
    attempt: str

    def encode(self) -> bytes:
        """Return the znode's data."""
        fields = asdict(self)
        named = {"v": VERSION, "namespace": fields.pop("namespace_id"), "log": fields.pop("log_id"), **fields}
        return json.dumps(named, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> RebuildOrigin:
        """Read the data of the znode at `path`. Raises CorruptDataError."""
        try:
            fields = json.loads(bytes(data))
            if fields["v"] != VERSION:
                raise ValueError(f"version {fields['v']!r}")
            return cls(
                str(fields["namespace"]),
                str(fields["log"]),
                int(fields["first"]),
                int(fields["last"]),
                str(fields["attempt"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError(
                f"it does not say what is rebuilt: {bytes(data[:80])!r}",
                path=path,
                advice="Was it written by a newer dlspark? Go on with that one",
            ) from error


@dataclass(frozen=True, slots=True)
class RebuiltLog:
    """How far has a log been rebuilt?

    Args:
        cold: its identity in files, with the version.
        origin: what it is rebuilt from; None: it has all its units.
        units: numbers of the first and last segment of each unit that is there.
    """

    cold: Versioned[ColdLog]
    origin: RebuildOrigin | None
    units: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LogBeginning:
    """What does a rebuilt log begin as?

    Args:
        head: the empty segment behind its files, in a ledger that is listed as staged.
        listing: takes the listing of that ledger.
        max_txid: the highest transaction id in its files.
        cold: its identity in files, unless it has one.
        declared: the id and the bytes of what it declares of its records; None: nothing.
    """

    head: SegmentMetadata
    listing: Op
    max_txid: int
    cold: ColdLog
    declared: tuple[str, bytes] | None


class ColdRebuilds:
    """How is a log made again from its cold files? Of the logs of one namespace."""

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs

    @property
    def _store(self) -> MetadataStore:
        return self._logs.store

    async def find(self, name: str) -> RebuiltLog | None:
        """Return how far a log is rebuilt; None where there is no such log, or one without cold storage."""
        if not await self._logs.exists(name):
            return None
        paths = await self._logs.located(name)
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(paths.cold))
        except NoNodeError:
            return None
        names = await self._children(paths.cold_units)
        units = tuple(sorted(numbers for numbers in map(parse_unit_name, names) if numbers is not None))
        cold = Versioned(ColdLog.decode(data, paths.cold), stat.version)
        path = rebuild_path(paths)
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return RebuiltLog(cold, None, units)
        return RebuiltLog(cold, RebuildOrigin.decode(data, path), units)

    async def _children(self, path: str) -> list[str]:
        try:
            return (await repeat(self._store, lambda: self._store.children(path)))[0]
        except NoNodeError:
            return []

    async def ensure_untouched(self, name: str) -> None:
        """Make the log unless there is one. Raises as `check_untouched`."""
        await self._logs.ensure(name)
        await self.check_untouched(name)

    async def check_untouched(self, name: str) -> None:
        """Raise CallerError for a log that was ever written, or declares something. An identity in files is nothing
        yet: a mover gives it to each log that it finds."""
        paths = await self._logs.located(name)
        state = await self._logs.open(name)
        children = set(await self._children(paths.partition))
        used = (state.max_lssn.version, state.max_txid.version, state.allocation.version) != (0, 0, 0)
        if used or paths.schema.rpartition("/")[2] in children or await self._children(paths.ledgers):
            raise CallerError(
                "there is such a log, and it has been written or declares its records; nothing was changed",
                log=name,
                advice="Give a name that no log has, or delete that log first",
            )

    async def begin(self, name: str, origin: RebuildOrigin, beginning: LogBeginning) -> None:
        """Make what is a rebuilt log before its first unit, of an untouched log (`ensure_untouched`).

        Raises RebuildRacedError where the log was used meanwhile; an OutcomeUnknownError where the store stays away.
        """
        head = beginning.head
        check(head.lssn == origin.last + 1 and not head.in_progress, "the first hot segment follows the files")
        paths = await self._logs.located(name)

        def has_begun(now: RebuiltLog | None) -> bool:
            return now is not None and now.origin == origin

        there = await self.find(name)
        try:
            await self._once(name, _beginning(paths, origin, beginning, there), has_begun)
        except RebuildRacedError:
            before, there = there, await self.find(name)
            if before is not None or there is None:
                raise
            # A mover has found the log, and given it its identity since: that changes nothing.
            await self._once(name, _beginning(paths, origin, beginning, there), has_begun)

    async def add(self, name: str, found: RebuiltLog, unit: ColdUnit, *, last: bool) -> RebuiltLog:
        """Add a unit before those that are there; `last`: with it the log is rebuilt. Returns how far it is then.

        Raises as `begin` does.
        """
        check(not found.units or found.units[0][0] == unit.last + 1, "units are added from the newest downwards")
        check(found.origin is not None, "a log that is rebuilt already gets no more units")
        paths = await self._logs.located(name)
        ops: list[Op] = [
            SetData(paths.cold, found.cold.value.encode(), found.cold.version),
            Create(f"{paths.cold_units}/{unit.name}", unit.encode()),
        ]
        if last:
            ops.append(Delete(rebuild_path(paths)))
        numbers = (unit.first, unit.last)

        def is_there(now: RebuiltLog | None) -> bool:
            return now is not None and numbers in now.units and now.cold.value.log_id == found.cold.value.log_id

        await self._once(name, ops, is_there)
        return RebuiltLog(
            Versioned(found.cold.value, found.cold.version + 1),
            None if last else found.origin,
            (numbers, *found.units),
        )

    async def _once(self, name: str, ops: list[Op], done: Callable[[RebuiltLog | None], bool]) -> None:
        """Apply a transaction once, whatever answers are lost; `done` says of what is there whether it was."""
        for attempt in range(MAX_REPEATS):
            try:
                await self._store.multi(ops)
                return
            except OutcomeUnknownError:
                if attempt + 1 == MAX_REPEATS:
                    raise
                if done(await self.find(name)):
                    return
            except (BadVersionError, NodeExistsError, NoNodeError) as error:
                if attempt and done(await self.find(name)):
                    return
                raise RebuildRacedError(
                    "another client uses the log that is being rebuilt; this step changed nothing",
                    log=name,
                    path=error.path,
                    advice="Run it again: it goes on from what is there, or says why it cannot",
                ) from error


def _beginning(paths: LogPaths, origin: RebuildOrigin, beginning: LogBeginning, there: RebuiltLog | None) -> list[Op]:
    """Return the transaction that makes a log begin. `there`: what it is in files already, which it stays."""
    head = beginning.head
    if there is None:
        identity: list[Op] = [
            Create(paths.cold, beginning.cold.encode()),
            Create(paths.cold_attempts),
            Create(paths.cold_units),
            Create(f"{paths.cold}/{WORKER}"),
        ]
    else:
        identity = [SetData(paths.cold, there.cold.value.encode(), there.cold.version)]
    return [
        # At their first versions: a client that has written meanwhile, or is about to, fails this or is failed.
        SetData(paths.ledgers, str(head.lssn).encode(), 0),
        SetData(paths.max_txid, str(beginning.max_txid).encode(), 0),
        SetData(paths.allocation, b"", 0),
        Create(paths.segment(head), head.encode()),
        beginning.listing,
        *identity,
        Create(rebuild_path(paths), origin.encode()),
        *(paths.declared(*beginning.declared) if beginning.declared is not None else ()),
    ]


def rebuild_path(paths: LogPaths) -> str:
    """Return what says that a log is being rebuilt, and from what."""
    return f"{paths.cold}/{REBUILD}"
