"""`CopyProgress`: a line on the terminal that says how far a copy of records is, while it goes on.

It is there only where a person sees it: standard error is a terminal in whose foreground the command runs, and the
records themselves are not typed or shown on a terminal. It goes when the copy ends, so that what is said then stands
alone. Nothing of it runs by itself: it is drawn when there is news, some times a second at most.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from dlspark.cli.common import size_text
from metadata.foundation.plurals import counted

if TYPE_CHECKING:
    from rich.progress import Progress

ERASED: Final = b"\r\x1b[K"
"""Takes away what stands on the terminal's current line."""
_EVERY_S: Final = 0.1


class CopyProgress:
    """How far is a copy of records? To be closed."""

    def __init__(self, what: str, total_bytes: int | None = None) -> None:
        """Begin a line. `total_bytes`: of the whole input, which gives it a bar; None where that is not known."""
        # Here, because importing rich takes longer than all the rest of a command without a terminal.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        console = Console(stderr=True)
        columns = [BarColumn(), TaskProgressColumn()] if total_bytes else []
        self._progress: Progress | None = Progress(
            TextColumn("{task.description}", markup=False),  # a log's name may look like it
            *columns,
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task(what, total=total_bytes)
        self._what = what
        self._began = self._drawn = time.monotonic()
        self._progress.start()
        console.show_cursor()  # a signal that ends the process must not leave the terminal without one

    def show(self, records: int, size: int, done_bytes: int = 0, *, at_once: bool = False) -> None:
        """Say how many records are done, how many bytes they have, and how much of the input that is."""
        now = time.monotonic()
        if self._progress is None or (now - self._drawn < _EVERY_S and not at_once):
            return
        self._drawn = now
        rate = records / max(now - self._began, _EVERY_S)
        text = f"{self._what}: {counted(records, 'record')}, {size_text(size)}, {rate:,.0f} records/s"
        with suppress(OSError):  # a terminal that was closed does not end the copy
            self._progress.update(self._task, description=text, completed=done_bytes, refresh=True)

    def close(self) -> None:
        """Take the line away. Idempotent."""
        if self._progress is not None:
            progress, self._progress = self._progress, None
            with suppress(OSError):
                progress.stop()


def is_watched() -> bool:
    """Return whether a person sees standard error: it is the terminal in whose foreground this process runs."""
    try:
        fd = sys.stderr.fileno()
        return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False  # closed, or no file
