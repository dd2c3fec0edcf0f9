"""`tail`: shows the last records of a log, and then those that come, in a notebook or on a terminal.

A notebook's page is changed in place through IPython's display handle, which needs no widgets. IPython is never
imported here by itself: where a kernel runs this code, it has been.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TextIO, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.records import LogRecord, record_cells, records_table
from dlspark.core.markup import Printed, heading, printable
from dlspark.core.reading.positions import LogPositions
from dlspark.core.reading.reader import AsyncLogReader
from dlspark.errors import EndOfStreamError, LogEmptyError
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted

MAX_LAST: Final = 1_000
"""Records from before the end that `tail` shows at most."""
INTERRUPTED: Final = "interrupted"
MIN_ROWS: Final = 10
"""Rows that a notebook has room for, even if fewer records are wanted."""
_AT_ONCE: Final = 1_000
_REFRESH_S: Final = 0.2
_HEAD: Final = "DLSN, transaction id, sequence id, bytes, payload"

OpenReader: TypeAlias = Callable[[DLSN], Awaitable[AsyncLogReader]]


class TailReader:
    """A reader at the end of a log that knows when to stop. `ending` says why it did."""

    def __init__(self, reader: AsyncLogReader, last: int, seconds: float | None, records: int | None) -> None:
        """Use `open` instead."""
        self.ending = ""
        self._reader = reader
        self._before = last
        self._follows = seconds is not None or records is not None
        self._seconds = seconds
        self._deadline: float | None = None
        self._left = records

    @classmethod
    async def open(
        cls, log: LogPositions, open_reader: OpenReader, last: int, seconds: float | None, records: int | None
    ) -> TailReader:
        """Begin `last` records before the end. Raises CallerError, LogNotFoundError."""
        if isinstance(last, bool) or not isinstance(last, int) or not 0 <= last <= MAX_LAST:
            raise CallerError(f"{last!r} records cannot be shown", advice=f"Give a number from 0 to {MAX_LAST}")
        if (seconds is not None and not seconds >= 0) or (records is not None and records < 0):
            raise CallerError("a tail cannot be followed for less than nothing", advice="Give 0 or more, or neither")
        start, before = await _start(log, last)
        return cls(await open_reader(start), before, seconds, records)

    async def more(self) -> list[LogRecord] | None:
        """Return the next records, none if none came within a moment; None when it is over. Raises what the reader
        raises."""
        try:
            if self._before:
                return await self._from_before()
            return await self._following()
        except EndOfStreamError:
            self.ending = "the log is sealed: nothing more can come"
            return None

    async def _from_before(self) -> list[LogRecord]:
        found = await self._reader.read_available(self._before, wait=True)
        self._before = self._before - len(found) if found else 0
        return found

    async def _following(self) -> list[LogRecord] | None:
        if not self._follows:
            self.ending = f"the next record will be at or behind {self._reader.position}"
            return None
        now = asyncio.get_running_loop().time()
        if self._deadline is None and self._seconds is not None:
            self._deadline = now + self._seconds
        left_s = _REFRESH_S if self._deadline is None else self._deadline - now
        if left_s <= 0 or self._left == 0:
            self.ending = f"followed as long as asked for; goes on at {self._reader.position}"
            return None
        count = _AT_ONCE if self._left is None else min(self._left, _AT_ONCE)
        try:
            found = await asyncio.wait_for(self._reader.read_bulk(count), min(left_s, _REFRESH_S))
        except asyncio.TimeoutError:
            return []  # Cancelling a read loses nothing.
        if self._left is not None:
            self._left -= len(found)
        return found

    async def close(self) -> None:
        """Close its reader."""
        await self._reader.close()


async def _start(log: LogPositions, last: int) -> tuple[DLSN, int]:
    """Return the position at most `last` records before the end, and how many there are from it on.

    Where the segments have no sequence ids (metadata versions below 5), only the last record is looked for.
    """
    if not last:
        return await log.end(), 0
    try:
        newest = await log.last_record()
    except LogEmptyError:
        return await log.start(), 0
    if newest.sequence_id < 0:
        return newest.dlsn, 1
    start = await log.find_sequence_id(max(newest.sequence_id - last + 1, 0))
    return start, min(last, newest.sequence_id - await log.sequence_id(start) + 1)


class Screen(Protocol):
    """A place where a tail is shown."""

    def add(self, records: Sequence[LogRecord]) -> None:
        """Show more records, perhaps none. May put off showing them until the next call."""
        ...

    def end(self, why: str) -> None:
        """Show everything that was added, and why the tail ends."""
        ...


class TerminalScreen:
    """A line for each record."""

    def __init__(self, name: str, out: TextIO | None = None) -> None:
        self._out = out
        self._say(f"log {printable(name)}: {_HEAD}")

    def _say(self, line: str) -> None:
        print(line, file=self._out if self._out is not None else sys.stdout, flush=True)

    def add(self, records: Sequence[LogRecord]) -> None:
        """Print a line for each record."""
        for record in records:
            self._say("  ".join(record_cells(record)))

    def end(self, why: str) -> None:
        """Print why the tail ends."""
        self._say(why)


@dataclass(frozen=True, slots=True, repr=False)
class _Page(Printed):
    """A tail in a notebook, at a moment."""

    name: str
    note: str
    records: Sequence[LogRecord]

    def __str__(self) -> str:
        lines = [f"log {printable(self.name)}: {self.note}", *("  ".join(record_cells(one)) for one in self.records)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return heading(f"log {self.name}", self.note) + records_table(self.records)


class NotebookScreen:
    """A table that is changed in place: the newest records, and how many have come."""

    def __init__(self, name: str, last: int, now: Callable[[], float] = time.monotonic) -> None:
        ipython = importlib.import_module("IPython.display")
        self._name = name
        self._now = now
        self._newest: deque[LogRecord] = deque(maxlen=max(last, MIN_ROWS))
        self._seen = 0
        self._pending = False
        self._next_s = 0.0
        self._handle = ipython.display(self._page("reading"), display_id=True)

    def _page(self, note: str) -> _Page:
        return _Page(self._name, f"{counted(self._seen, 'record')} seen; {note}", tuple(self._newest))

    def _update(self, note: str) -> None:
        if self._handle is not None:
            self._handle.update(self._page(note))

    def add(self, records: Sequence[LogRecord]) -> None:
        """Show more records; not more often than eyes can follow, for the page is drawn anew each time."""
        self._newest.extend(records)
        self._seen += len(records)
        self._pending = self._pending or bool(records)
        now = self._now()
        if self._pending and now >= self._next_s:
            self._pending = False
            self._next_s = now + _REFRESH_S
            self._update("following")

    def end(self, why: str) -> None:
        """Show what was added and not yet shown, and why the tail ends."""
        self._update(why)


def open_screen(name: str, last: int) -> Screen:
    """Return a notebook's page where this runs in one, else lines on standard output."""
    return NotebookScreen(name, last) if in_notebook() else TerminalScreen(name)


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel: IPython has been imported, and its shell has a kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None
