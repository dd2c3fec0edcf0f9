"""`watch_logs`: logs that come and go, reported by ZooKeeper's watches; nothing polls.

All watchers of one `LogStore` share one watch a list in the session, and leave no other behind when they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeVar

from metadata.distributedlog.log_names import validate_folder
from metadata.distributedlog.logs import LogStore
from metadata.foundation.errors import MetadataUnavailableError, NoNodeError, OutcomeUnknownError
from metadata.retry import REPEAT_TIMEOUT_MS, reconnected, repeat
from metadata.store import SessionState, WatchEvent, join

T = TypeVar("T")
_FOLDERS: Final = ""  # in place of a path: the list of folders
_PAUSE_S: Final = 1.0  # where the session is up and the server does not answer


@dataclass(frozen=True, slots=True)
class LogChange:
    """Which log came (`added`) or went? A name with an inner slash shows as its first component below the prefix."""

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
        """Return all names there are now. `heard` is set when that changes from here on."""
        self.heard.clear()
        if None not in self.fresh:
            watch = self.logs.list_watches.watch(_FOLDERS, self.folders_changed)
            self.folders = await self._asked(None, self.logs.log_folders.folders(watch))
        for folder in self.folders:
            where = join(folder, self.prefix) if self.prefix else folder
            if where not in self.fresh:
                self.names[where] = await self._asked(where, self._list(where))
        return frozenset(name for names in self.names.values() for name in names)

    async def _asked(self, what: str | None, question: Awaitable[T]) -> T:
        """Return the answer, fresh unless its watch is heard on the way."""
        self.fresh.add(what)  # before the answer: a watch that is heard meanwhile must be able to take it out
        try:
            return await question
        except BaseException:
            self.fresh.discard(what)
            raise

    async def _list(self, where: str) -> frozenset[str]:
        store = self.logs.store
        watch = self.logs.list_watches.watch(where, self.names_changed)
        while True:
            try:
                names, _ = await store.children(where, watch)
                return frozenset(self.logs.logs_among(names))
            except NoNodeError:
                if await store.exists(where, watch) is None:
                    return frozenset()

    def session_changed(self, state: SessionState) -> None:
        """Hear of the session's end: a list that is answered while the session closes leaves no watch that would report
        it.
        """
        if state is SessionState.CLOSED:
            self.heard.set()

    def close(self) -> None:
        """Take the watches back."""
        self.logs.list_watches.leave(_FOLDERS, self.folders_changed)
        for where in {*self.names, *(what for what in self.fresh if what is not None)}:
            self.logs.list_watches.leave(where, self.names_changed)


async def watch_logs(logs: LogStore, prefix: str = "", *, existing: bool = False) -> AsyncGenerator[LogChange, None]:
    """Yield every log that comes or goes, until the session is closed; with `existing` first those that exist.

    A log that comes and goes again between two looks may be left out. A lost connection or session is waited for; what
    changed meanwhile is yielded then.
    """
    lists = _Lists(logs, validate_folder(prefix))
    forget_session = logs.store.on_session(lists.session_changed)
    try:
        async with aclosing(_changes(lists, frozenset() if existing else None)) as changes:
            async for change in changes:
                yield change
    finally:
        forget_session()
        lists.close()


async def _changes(lists: _Lists, known: frozenset[str] | None) -> AsyncGenerator[LogChange, None]:
    """Yield what comes and goes after `known`; with None, after the first look."""
    store = lists.logs.store
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
        if store.state is SessionState.CLOSED:
            return
