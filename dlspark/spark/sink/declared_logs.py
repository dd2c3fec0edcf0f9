"""`DeclaredLogs`: what logs declare of their records, asked once and kept for as long as it is so.

A sink encodes each batch by what a log declares when the batch is planned. To ask it for each batch would cost three
round trips of which mostly nothing comes, so what was read is kept under a watch: it is read again once the watch says
that something was declared, replaced or withdrawn, or has ended with its session.

A declaration that is a moment old does no harm: records say their version, or are read by names, and writers that hold
an older one while it is replaced are what evolution is made for.

Fault model: that of the metadata store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlspark.spark.errors import BatchRefusedError
from dlspark.spark.sink.row_cutting import undeclared_words
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.record_schemas import SchemaStore, StoredSchema
from metadata.foundation.pacing import for_each
from metadata.store import WatchEvent

if TYPE_CHECKING:
    from dlspark.tables.declaration import Declaration

LOGS_AT_ONCE = 64
MAX_DECODED = 1000
MAX_KEPT = 10_000
"""Logs whose declarations are kept; beyond, all are asked again."""


@dataclass(slots=True)
class _Watched:
    """What a log declares; `stands`: no watch has said otherwise."""

    stored: StoredSchema | None = None
    stands: bool = True

    def fell(self, _: WatchEvent) -> None:
        self.stands = False


class DeclaredLogs:
    """What do logs declare? Of one namespace and process; all coroutines run on one event loop.

    Args:
        logs: The logs of the namespace.
    """

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs
        self._schemas = SchemaStore(logs)
        self._kept: dict[str, _Watched] = {}
        self._decoded: dict[bytes, Declaration] = {}

    async def find(self, logs: Sequence[str], *, anew: bool = False) -> dict[str, Declaration | None]:
        """Return what each log declares; None where it declares nothing, or there is no such log yet. `anew`: nothing
        that is kept is taken for it.

        Raises CorruptDataError, and what the metadata store raises.
        """
        found: dict[str, Declaration | None] = {}

        async def look(log: str) -> None:
            kept = self._kept.get(log)
            if kept is None or not kept.stands or anew:
                kept = await self._look(log)
            found[log] = None if kept.stored is None else self._declaration(log, kept.stored)

        await for_each(logs, min(len(logs), LOGS_AT_ONCE), look)
        return {log: found[log] for log in logs}

    async def need(self, logs: Sequence[str]) -> dict[str, Declaration]:
        """Return as `find`, for a task whose rows have named the logs. Raises BatchRefusedError where one declares
        nothing."""
        found = await self.find(logs)
        if missing := [log for log, declaration in found.items() if declaration is None]:
            found |= await self.find(missing, anew=True)
        for log, declaration in found.items():
            if declaration is None:
                said, advice = undeclared_words("nothing of the batch is visible")
                raise BatchRefusedError(said, log=log, advice=advice)
        return {log: one for log, one in found.items() if one is not None}

    async def _look(self, log: str) -> _Watched:
        kept = _Watched()
        self._kept.pop(log, None)
        try:
            kept.stored = await self._schemas.watch(log, kept.fell)
        except LogNotFoundError:
            return kept  # no watch can tell when there is one
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[log] = kept
        return kept

    def _declaration(self, log: str, stored: StoredSchema) -> Declaration:
        found = self._decoded.get(stored.data)
        if found is None:
            from dlspark.tables.declaration import Declaration

            if len(self._decoded) >= MAX_DECODED:
                self._decoded.clear()
            # Logs that declare the same have one object: it travels to tasks once.
            found = self._decoded[stored.data] = Declaration.decode(stored.data, log)
        return found
