"""`Idleness`: how long a reader has been waiting for a log in which nothing happens, and what is said of it.

The time runs from the first read that finds nothing until an entry arrives, control records included; that reads come
and go, and that requests for more are answered with nothing, does not start it anew. No request is made for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.logs import about
from dlspark.core.settings import Settings
from dlspark.errors import IdleReaderError

NEVER_MS = 2**31 - 1

_log = logging.getLogger(__name__)


class Idleness:
    """Of one reader."""

    def __init__(self, log: str, counters: Counter[str]) -> None:
        self._name = log
        self._counters = counters
        self._since: float | None = None
        self._warned = False

    def arrived(self) -> None:
        """Something came: the reader is not idle."""
        self._since = None
        self._warned = False

    def _began(self) -> float:
        """When the waiting began: now, unless it had."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
        return self._since

    def next_moment(self, settings: Settings) -> float | None:
        """When there will be something to say, if nothing comes."""
        began = self._began()
        thresholds = [] if self._warned else [settings.idle_warn_ms]
        thresholds = [ms for ms in (*thresholds, settings.idle_error_ms) if 0 < ms < NEVER_MS]
        return began + min(thresholds) / 1000 if thresholds else None

    def check(self, settings: Settings, position: DLSN) -> IdleReaderError | None:
        """Warn, once, of what has lasted for `readerIdleWarnThresholdMillis`; the error that is due after the other."""
        idle_ms = (asyncio.get_running_loop().time() - self._began()) * 1000
        if not self._warned and settings.idle_warn_ms <= idle_ms and settings.idle_warn_ms < NEVER_MS:
            self._warned = True
            self._counters["reader-idle-warned"] += 1
            _log.warning(
                "log %s: nothing has arrived at %s for %d ms",
                self._name,
                position,
                idle_ms,
                extra=about(log=self._name, segment=position.lssn),
            )
        if not 0 < settings.idle_error_ms <= idle_ms or settings.idle_error_ms == NEVER_MS:
            return None
        self._counters["reader-idle-failed"] += 1
        return IdleReaderError(
            f"nothing arrived for {settings.idle_error_ms} ms",
            log=self._name,
            dlsn=position,
            advice="See whether the log is written to",
        )
