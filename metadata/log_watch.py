"""`watch_logs`: logs that come and go, told by ZooKeeper's watches; nothing polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from metadata.errors import MetadataUnavailableError, NoNodeError, OutcomeUnknownError
from metadata.logs import LogStore
from metadata.paths import join
from metadata.retry import REPEAT_TIMEOUT_MS, reconnected, repeat
from metadata.store import SessionState, WatchEvent

T = TypeVar("T")
_PAUSE_S: Final = 1.0  # where the session is up and the server does not answer


@dataclass(frozen=True, slots=True)
class LogChange:
    """A log came (`added`) or went. A name with an inner slash shows as its first component below the prefix."""

    name: str
    added: bool


@dataclass(slots=True, eq=False)
class _Lists:
    """The lists of names that a watch looks at; a list is read again once its watch was heard."""

    logs: LogStore
    prefix: str
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    names: dict[str, frozenset[str]] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    fresh: set[str | None] = field(default_factory=set)
    """Lists whose watch has not been heard since before they were asked for; None is the list of folders."""

    def folders_changed(self, event: WatchEvent) -> None:
        self.fresh.discard(None)
        self.heard.set()

    def names_changed(self, event: WatchEvent) -> None:
        self.fresh.discard(event.path)
        self.heard.set()

    async def read(self) -> frozenset[str]:
        """All names there are now. `heard` is set when that changes from here on."""
        self.heard.clear()
        if None not in self.fresh:
            self.folders = await self._asked(None, self.logs.places.folders(self.folders_changed))
        for folder in self.folders:
            where = join(folder, self.prefix) if self.prefix else folder
            if where not in self.fresh:
                self.names[where] = await self._asked(where, self._list(where))
        return frozenset(name for names in self.names.values() for name in names)

    async def _asked(self, what: str | None, question: Awaitable[T]) -> T:
        """The answer, fresh unless its watch is heard on the way."""
        self.fresh.add(what)
        try:
            return await question
        except BaseException:
            self.fresh.discard(what)
            raise

    async def _list(self, where: str) -> frozenset[str]:
        store = self.logs.store
        while True:
            try:
                names, _ = await store.children(where, self.names_changed)
                return frozenset(self.logs.logs_among(names))
            except NoNodeError:
                if await store.exists(where, self.names_changed) is None:
                    return frozenset()


async def watch_logs(logs: LogStore, prefix: str = "", *, existing: bool = False) -> AsyncGenerator[LogChange, None]:
    """Tell of every log that comes or goes, until the session is closed; with `existing` first of those there are.

    What comes and goes again between two looks may not be told. A lost connection or session is waited for; what
    changed meanwhile is told then.
    """
    store = logs.store
    lists = _Lists(logs, logs.validate_name(prefix) if prefix.strip("/") else "")
    known: frozenset[str] | None = frozenset() if existing else None
    while True:
        try:
            names = await repeat(store, lists.read)
        except (MetadataUnavailableError, OutcomeUnknownError):
            if store.state is SessionState.CLOSED:
                return
            if await reconnected(store, REPEAT_TIMEOUT_MS):
                await asyncio.sleep(_PAUSE_S)
            continue
        for name in sorted((known or frozenset()) - names):
            yield LogChange(name, added=False)
        for name in sorted(names - known) if known is not None else ():
            yield LogChange(name, added=True)
        known = names
        await lists.heard.wait()
