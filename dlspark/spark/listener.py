"""`LagListener`: how far streaming queries are behind in their logs, by what their progress reports.

    listener = dlspark.spark.LagListener()
    spark.streams.addListener(listener)

The source puts the lag into the progress of each batch (`latestOffset`, `behind`), so the listener has no connection of
its own and runs wherever progress is reported: in a classic session, and in the client of Spark Connect. It shows the
lag in three ways: `lags()` for programs, gauges for Prometheus, a picture for notebooks.

It must never harm a query: whatever goes wrong in it is logged, once a kind, and dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from dlspark.core.display.lag_picture import LagPicture, LagSample, Measure
from dlspark.core.metrics.registries import Statistics, lags_of
from dlspark.spark.source.lag import Lag, larger_lag, read_behind
from metadata.foundation.errors import CallerError
from metadata.foundation.plurals import counted
from metadata.foundation.times import NS_PER_S, read_time

_log = logging.getLogger(__name__)

SETTLE_S: Final = 2.0
"""How long to wait for the news that a query has ended, once the session says that it has."""
MAX_ENDED: Final = 16
"""Queries that have ended and are still shown in pictures."""
DEFAULT_HISTORY: Final = 720
"""Batches of a query that its picture goes back."""
_MEASURES: Final = ("records", "bytes", "ms")


@dataclass(slots=True)
class _QueryHistory:
    """A query as far as it was heard of."""

    name: str
    samples: deque[LagSample]
    ended: bool = False
    elsewhere: bool = False
    """No news of its end came in time: the session that is asked does not know it."""
    lags: dict[str, Lag | None] = field(default_factory=dict)

    def words(self, running: bool) -> str:
        """Return one line of text. `running`: a session says so; it cannot be concluded from what was heard."""
        if not self.samples:
            return "ended before a batch" if self.ended else "no batch yet"
        known = [lag for lag in self.lags.values() if lag is not None]
        behind = sum(lag.records or 0 for lag in known)
        stored = sum(lag.bytes for lag in known)
        state = "ended" if self.ended else "running" if running else "no end heard of"
        lag = f"{counted(behind, 'record')}, {counted(stored, 'byte')} behind"
        return f"{state}, batch {self.samples[-1].batch:,}: {lag}"


class LagListener(StreamingQueryListener):
    """Show how far the streaming queries of a session are behind in their logs: to programs by `lags`, to people by
    `picture` or as the value of a notebook's cell, to Prometheus by gauges.

    It follows every query of the session that reads from a log. One listener may be added to several sessions. Its
    methods may be called from any thread.

    Args:
        statistics: where gauges go; None: prometheus_client's own registry.
        history: how many batches of a query its picture goes back.

    Raises:
        CallerError: for a history below 1, or where the gauges' names are taken in the registry.
    """

    def __init__(self, statistics: Statistics | None = None, *, history: int = DEFAULT_HISTORY) -> None:
        if history < 1:
            raise CallerError(f"a history of {history} batches shows nothing", advice="Give 1 or more")
        self._gauges = lags_of(statistics)
        self._history = history
        self._lock = threading.Condition()
        self._queries: dict[str, _QueryHistory] = {}
        self._logged: set[str] = set()

    # ------------------------------------------------------------------ what was heard

    def lags(self) -> dict[str, dict[str, Lag | None]]:
        """Return by query (its name, else its id) and log, how far those that run are behind; None: that is not
        known."""
        self._settled()
        with self._lock:
            return {heard.name: dict(heard.lags) for heard in self._queries.values() if not heard.ended}

    def picture(self, query: str | None = None, by: Measure = "records") -> LagPicture:
        """Return how far a query was behind over time.

        Args:
            query: its name or id; None: the one heard of last.
            by: what a lag is counted in: `records`, `bytes` or `ms`.

        Raises:
            CallerError: for a query that was not heard of, or another measure.
        """
        if by not in _MEASURES:
            raise CallerError(f"there is no lag in {by!r}", advice="Give by='records', by='bytes' or by='ms'")
        running = self._settled()
        with self._lock:
            query_id, heard = self._found(query)
            if heard is None and query is not None:
                known = ", ".join(one.name for one in self._queries.values()) or "none"
                raise CallerError(f"no query {query!r} was heard of", advice=f"Heard of: {known}")
            if heard is None:
                return LagPicture("no query", "none that reads a log was heard of yet", ())
            return LagPicture(f"query {heard.name}", heard.words(query_id in running), tuple(heard.samples), by)

    def _found(self, query: str | None) -> tuple[str, _QueryHistory | None]:
        for query_id, heard in reversed(self._queries.items()):
            if query is None or query in (query_id, heard.name):
                return query_id, heard
        return "", None

    def _settled(self) -> frozenset[str]:
        """Return the ids of the queries that the session runs, after the news of those that it runs no more has come.

        Spark notifies listeners of a query's end some time after `query.stop()` has returned. The session of this
        thread is asked, or the listener's on a client of Spark Connect; without a session it does not wait.
        """
        running = self._running()
        if running is None:
            return frozenset()
        with self._lock:

            def late() -> list[_QueryHistory]:
                return [
                    heard
                    for query_id, heard in self._queries.items()
                    if not heard.ended and not heard.elsewhere and query_id not in running
                ]

            self._lock.wait_for(lambda: not late(), SETTLE_S)
            # Queries of another session, or whose end was missed: no second wait for them.
            for heard in late():
                heard.elsewhere = True
        return running

    def _running(self) -> frozenset[str] | None:
        """Return the ids of the queries that the session runs; None where no session can be asked."""
        try:
            session = self.spark or SparkSession.getActiveSession()
            return None if session is None else frozenset(str(query.id) for query in session.streams.active)
        except Exception as error:  # The session has ended, or its server has.
            _log.debug("the session does not say which queries run: %s", error)
            return None

    def __str__(self) -> str:
        with self._lock:
            queries = list(self._queries)
        return "\n".join(str(self.picture(query)) for query in queries) or str(self.picture())

    def _repr_html_(self) -> str:
        with self._lock:
            queries = [query_id for query_id, heard in self._queries.items() if not heard.ended] or list(self._queries)[
                -1:
            ]
        return "".join(self.picture(query)._repr_html_() for query in queries) or self.picture()._repr_html_()

    # ------------------------------------------------------------------ for Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: of a query nothing is known before its first batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take up the lags that a batch's progress reports."""
        self._safely(lambda: self._progress(event.progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Keep the lags of a query that idles: it is alive, and they are what they were."""
        self._safely(lambda: self._alive(str(event.id)))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Mark a query as ended: it has no lag any more."""
        self._safely(lambda: self._terminated(str(event.id)))

    def _safely(self, action: Callable[[], None]) -> None:
        """Do what an event asks for, and only log what it raises: Spark would print a trace for each batch, and some of
        its buses drop a listener that fails."""
        try:
            action()
        except Exception as error:
            kind = type(error).__name__
            if kind not in self._logged:
                self._logged.add(kind)
                _log.warning("what a query reported of its lag is not shown: %s: %s", kind, error, exc_info=error)

    def _progress(self, progress: StreamingQueryProgress) -> None:
        lags = reported_lags(progress)
        if lags is None:
            return
        query_id, name = str(progress.id), progress.name or str(progress.id)
        at_s = _epoch_s(progress.timestamp)
        sample = LagSample(at_s, progress.batchId, {log: _values(lag) for log, lag in lags.items()})
        with self._lock:
            heard = self._queries.pop(query_id, None) or _QueryHistory(name, deque(maxlen=self._history))
            self._queries[query_id] = heard  # The one heard of last is the last one.
            heard.name, heard.ended, heard.lags = name, False, lags
            heard.samples.append(sample)
        self._show(query_id, heard)

    def _alive(self, query_id: str) -> None:
        """Show a query that idles as it was: it found nothing new, so only the gauge's time moves."""
        with self._lock:
            heard = self._queries.get(query_id)
        if heard is not None:
            self._show(query_id, heard)

    def _show(self, query_id: str, heard: _QueryHistory) -> None:
        if self._gauges is not None:
            values = {log: _values(lag) for log, lag in heard.lags.items()}
            self._gauges.show(query_id, heard.name, time.time(), values)

    def _terminated(self, query_id: str) -> None:
        if self._gauges is not None:
            self._gauges.forget(query_id)
        with self._lock:
            heard = self._queries.get(query_id)
            if heard is not None:
                heard.ended = True
                self._lock.notify_all()
            ended = [one for one, heard in self._queries.items() if heard.ended]
            for one in ended[: max(len(ended) - MAX_ENDED, 0)]:
                del self._queries[one]


def reported_lags(progress: StreamingQueryProgress) -> dict[str, Lag | None] | None:
    """Return what a batch's progress reports of each log that the query reads; None where it reads none.

    A log that two sources of the query read counts once, with the larger lag.
    """
    found: dict[str, Lag | None] = {}
    ours = False
    for source in progress.sources:
        for log, lag in (read_behind(source.latestOffset) or {}).items():
            ours = True
            found[log] = lag if log not in found else larger_lag(found[log], lag)
    return found if ours else None


def _values(lag: Lag | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if lag is None else (lag.records, lag.bytes, lag.milliseconds)


def _epoch_s(timestamp: str) -> float:
    """Return a progress's time, for a gauge."""
    return read_time(timestamp) / NS_PER_S
