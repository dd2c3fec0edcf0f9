"""`LogLimit`: lines of a log that others can cause, at most so many in a while, and how many were left out."""

from __future__ import annotations

import asyncio
import logging

BURST = 20
WINDOW_S = 10.0


class LogLimit:
    """Passes `burst` lines in `window_s` seconds to a logger; the others are counted, and the count is logged when the
    time is over. For one running loop."""

    def __init__(self, logger: logging.Logger, *, burst: int = BURST, window_s: float = WINDOW_S) -> None:
        self._logger = logger
        self._burst = burst
        self._window_s = window_s
        self._began: float | None = None
        self._passed = 0
        self._left_out = 0

    def log(self, level: int, message: str, *args: object, error: BaseException | None = None) -> None:
        """Log a line, with the traceback of `error` if there is one; or count it."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._began is None or now >= self._began + self._window_s:
            self._tell()
            self._began, self._passed = now, 0
        if self._passed < self._burst:
            self._passed += 1
            self._logger.log(level, message, *args, exc_info=error)
            return
        if not self._left_out:
            loop.call_later(self._began + self._window_s - now, self._tell)
        self._left_out += 1

    def _tell(self) -> None:
        count, self._left_out = self._left_out, 0
        if count:
            self._logger.warning("%d more lines like these were left out within %g s", count, self._window_s)
