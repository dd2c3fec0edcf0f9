"""`ExecutionStore`: what the tasks of one execution of a query agree on, which nothing but the metadata store connects.

Under a namespace `NS` (names that begin with `.` are reserved, so listings of logs skip them):

| znode | data |
|---|---|
| `NS/.executions` | empty; parent, created by the first |
| `NS/.executions/<driver>` | JSON: `{"v": 1, "notes": {"<execution>": {...}}, "forgotten": 17}` |

`<driver>` stands for one context of Spark's driver, `<execution>` is the number that Spark gave to an execution there,
and its note is what the first of the execution's tasks wrote. The oldest executions are forgotten, so that the znode
stays small; `forgotten` is the highest number among them, so that a task which comes later is refused and does not
write a second note (docs/reference/znodes.md#executions).

Fault model: tasks of one execution run at the same time on different machines, are repeated and stop at any line. Each
write is conditional on the version that was read, so of two notes for one execution one wins, and both tasks go on with
that one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from metadata.foundation.errors import BadVersionError, CallerError, NoAuthError, NodeExistsError, NoNodeError
from metadata.retry import repeat
from metadata.store import MetadataStore

Note: TypeAlias = "Mapping[str, object]"
Extend: TypeAlias = "Callable[[Note], Awaitable[Note]]"

MAX_NOTES: Final = 1_000
"""Executions of one driver that are kept."""
MAX_BYTES: Final = 256 << 10
"""Stored size of one driver's notes, of which the newest is kept in any case."""
KEPT_MS: Final = 30 * 24 * 3_600_000
"""A driver whose last execution is longer ago has ended; its notes are removed when another driver begins."""
_MAX_TRIES: Final = 100
_VERSION: Final = 1


class ForgottenExecutionError(CallerError):
    """The execution began so long ago, and so many have begun since, that what its tasks agreed on is gone."""


class ExecutionStore:
    """Which executions of a Spark query are under way? The notes of one namespace's.

    Args:
        store: the session.
        namespace_path: the namespace's znode.
    """

    def __init__(self, store: MetadataStore, namespace_path: str) -> None:
        self._store = store
        self._root = f"{namespace_path.rstrip('/')}/.executions"

    async def agree(self, driver: str, execution: int, extend: Extend) -> Note:
        """Return the note of an execution, which `extend` makes of what is noted already ({} at first).

        `extend` is called again where another task was faster, with what that one noted; it returns all of that, and
        perhaps more. Raises ForgottenExecutionError; BadVersionError if others were faster every time; what `extend`
        raises; what a lost connection raises.
        """

        async def attempt() -> Note:  # reads anew: so it may be repeated when an answer is lost
            return await self._agree(f"{self._root}/{driver}", execution, extend)

        for _ in range(_MAX_TRIES - 1):
            try:
                return await repeat(self._store, attempt)
            except (BadVersionError, NodeExistsError, NoNodeError):
                continue
        return await repeat(self._store, attempt)

    async def _agree(self, path: str, execution: int, extend: Extend) -> Note:
        notes, forgotten, version = await self._read(path)
        present = notes.get(str(execution))
        if present is None and execution <= forgotten:
            raise ForgottenExecutionError(
                f"So many executions have begun since number {execution} that what its tasks read up to is forgotten",
                advice="Start the query again",
            )
        extended = await extend(present or {})
        if extended != present:
            await self._write(path, {**notes, str(execution): extended}, forgotten, version)
        return extended

    async def _read(self, path: str) -> tuple[dict[str, Note], int, int | None]:
        """Return the notes of a driver, the highest execution that is forgotten, and the version; None where it has
        none."""
        try:
            data, stat = await repeat(self._store, lambda: self._store.get(path))
        except NoNodeError:
            return {}, -1, None
        stored = json.loads(data)
        return stored["notes"], stored["forgotten"], stat.version

    async def _write(self, path: str, notes: dict[str, Note], forgotten: int, version: int | None) -> None:
        """Write notes over the version that was read."""
        data = _encode(notes, forgotten)
        while len(notes) > 1 and (len(notes) > MAX_NOTES or len(data) > MAX_BYTES):
            lowest = min(notes, key=int)
            forgotten = max(forgotten, int(lowest))
            notes = {execution: note for execution, note in notes.items() if execution != lowest}
            data = _encode(notes, forgotten)
        if version is not None:
            await self._store.put(path, data, version)
            return
        await self._store.create(path, data, make_parents=True)
        await self._remove_old(path)

    async def _remove_old(self, own: str) -> None:
        """Remove the notes of drivers that have ended long ago, by the store's clock; `own` has just begun."""
        begun = await self._store.exists(own)
        names, _ = await self._store.children(self._root)
        for path in [f"{self._root}/{name}" for name in names]:
            stat = await self._store.exists(path)
            if begun is not None and stat is not None and stat.mtime_ms < begun.ctime_ms - KEPT_MS:
                try:
                    await self._store.delete(path, stat.version)
                except (BadVersionError, NoNodeError, NoAuthError):
                    continue  # in use after all, gone, or of a driver that lets no other delete it


def _encode(notes: Mapping[str, Note], forgotten: int) -> bytes:
    return json.dumps({"v": _VERSION, "notes": notes, "forgotten": forgotten}).encode()
