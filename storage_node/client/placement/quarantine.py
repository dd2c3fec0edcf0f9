"""`Quarantine`: bookies that failed many requests of this client lately, which are avoided where there are others.

Failures are counted in intervals. A bookie that reached the threshold in one is avoided for the quarantine's length,
with the configured probability. A refusal that says nothing about its health (fenced, no such entry, read-only) does
not count. Where the cluster's switch `disableHealthCheck` is set, no bookie is avoided and all are released.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from metadata.foundation.errors import DistributedLogError
from storage_node.client.health import Timer
from storage_node.errors import (
    BookieUnreachableError,
    ConnectionClosedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadOnlyError,
    UnauthorizedAccessError,
)
from storage_node.settings.placement import PlacementSettings

_LOG: Final = logging.getLogger(__name__)

HARMLESS: Final = (NoSuchEntryError, NoSuchLedgerError, LedgerFencedError, ReadOnlyError, UnauthorizedAccessError)
"""Answers of a bookie that works as it should."""
_CONNECTION: Final = (BookieUnreachableError, ConnectionClosedError)

IsDisabled = Callable[[], Awaitable[bool]]
"""Whether the cluster's operators have switched the health check off."""


class Quarantine:
    """Counts failures and knows which bookies to avoid. It has no timer: intervals end with the next call."""

    def __init__(self, settings: PlacementSettings, timer: Timer, rng: random.Random) -> None:
        self._settings = settings
        self._timer = timer
        self._rng = rng
        self._interval_start = timer.time()
        self._counts: dict[str, int] = {}
        self._until: dict[str, float] = {}
        self._suspects: dict[str, float] = {}  # not yet asked for the cluster's switch; and when their interval ended

    def failed(self, bookie: str, error: DistributedLogError) -> None:
        """A request to it failed so. Loss of a connection is one failure, whatever was under way on it."""
        if not self._settings.bookie_health_check_enabled or isinstance(error, HARMLESS):
            return
        if isinstance(error, _CONNECTION) and not self._settings.bookie_connection_error_quarantine_enabled:
            return
        self._end_interval()
        self._counts[bookie] = self._counts.get(bookie, 0) + 1

    async def avoided(self, is_disabled: IsDisabled) -> frozenset[str]:
        """The bookies to place nothing on as long as there are others."""
        if not self._settings.bookie_health_check_enabled:
            return frozenset()
        self._end_interval()
        if self._suspects:
            await self._judge(is_disabled)
        now = self._timer.time()
        self._until = {bookie: until for bookie, until in self._until.items() if until > now}
        return frozenset(self._until)

    async def _judge(self, is_disabled: IsDisabled) -> None:
        try:
            disabled = await is_disabled()
        except DistributedLogError as error:
            _LOG.warning(
                "whether disableHealthCheck is set is not known, looked up again at the next ensemble: %s", error
            )
            return
        suspects, self._suspects = self._suspects, {}
        if disabled:
            self._until.clear()
            _LOG.info("disableHealthCheck is set: %s would be avoided, and is not", ", ".join(sorted(suspects)))
            return
        for bookie, since in sorted(suspects.items()):
            if self._rng.random() < self._settings.bookie_quarantine_ratio:
                self._until[bookie] = since + self._settings.bookie_quarantine_time_s
                _LOG.warning("%s failed too many requests and is avoided for a while", bookie)

    def _end_interval(self) -> None:
        length = self._settings.bookie_health_check_interval_s
        passed = self._timer.time() - self._interval_start
        if passed < length:
            return
        counts, self._counts = self._counts, {}
        ended = self._interval_start + length
        self._interval_start += passed // length * length
        for bookie, count in counts.items():
            if count >= self._settings.bookie_error_threshold_per_interval:
                self._suspects[bookie] = ended
