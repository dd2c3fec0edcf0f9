"""What `LagListener` makes of the progress that Spark tells it; progress is made here, no session."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from dlspark.core.metrics.page import metrics_page
from dlspark.core.metrics.registries import LAG_METRICS, NO_STATISTICS, Statistics
from dlspark.spark import LagListener
from dlspark.spark.listener import MAX_ENDED, reported_lags
from dlspark.spark.source.lag import NO_LAG, Lag
from metadata.foundation.errors import CallerError

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def source(logs: Mapping[str, Lag | None]) -> str:
    """`latestOffset` as the source reports it: logs that are not behind have no lag there."""
    behind = {log: None if lag is None else lag.reported() for log, lag in logs.items() if lag != NO_LAG}
    return json.dumps({"v": 1, "logs": dict.fromkeys(logs, "1:5:0"), "behind": behind})


def progress(
    *latest: str | None, query: uuid.UUID = A, name: str | None = None, batch: int = 0
) -> StreamingQueryProgress:
    one = {"startOffset": "null", "endOffset": "null", "numInputRows": 0, "inputRowsPerSecond": 0.0}
    sources = [
        {**one, "description": "d", "latestOffset": text, "processedRowsPerSecond": 0.0, "metrics": {}}
        for text in latest
    ]
    return StreamingQueryProgress.fromJson(
        {
            "id": str(query),
            "runId": str(uuid.uuid4()),
            "name": name,
            "timestamp": f"2026-11-22T00:00:{batch:02}.500Z",
            "batchId": batch,
            "batchDuration": 1,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": sources,
            "sink": {"description": "sink", "numOutputRows": 0, "metrics": {}},
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
            "observedMetrics": {},
        }
    )


def tell(listener: LagListener, *latest: str | None, **about: object) -> None:
    listener.onQueryProgress(QueryProgressEvent(progress(*latest, **about)))  # type: ignore[arg-type]


def end(listener: LagListener, query: uuid.UUID) -> None:
    listener.onQueryTerminated(QueryTerminatedEvent(query, uuid.uuid4(), None, None))


class Session:
    """What the listener asks of a session: which queries it runs."""

    def __init__(self, *running: uuid.UUID, when_asked: Callable[[], None] = lambda: None) -> None:
        self._running = running
        self._when_asked = when_asked

    @property
    def streams(self) -> Session:
        return self

    @property
    def active(self) -> list[SimpleNamespace]:
        self._when_asked()
        return [SimpleNamespace(id=query) for query in self._running]


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of other tests in this process do not know the queries of these."""
    monkeypatch.setattr("dlspark.spark.listener.SparkSession", SimpleNamespace(getActiveSession=lambda: None))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def listener(registry: CollectorRegistry) -> LagListener:
    return LagListener(Statistics(registry))


def gauges(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, sample.labels["query_name"], sample.labels.get("log", "")): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name != "query_progress_time"
    }


def test_lags_are_told_by_query_and_log(listener: LagListener) -> None:
    tell(listener, source({"flights": Lag(7, 700, 70), "alerts": NO_LAG}), name="copy")
    tell(listener, source({"flights": Lag(1, 100, None)}), query=B)
    assert listener.lags() == {
        "copy": {"flights": Lag(7, 700, 70), "alerts": NO_LAG},
        str(B): {"flights": Lag(1, 100, None)},
    }
    tell(listener, source({"flights": NO_LAG, "alerts": None}), name="copy", batch=1)
    assert listener.lags()["copy"] == {"flights": NO_LAG, "alerts": None}


def test_queries_of_other_sources_are_none_of_its_business(listener: LagListener, registry: CollectorRegistry) -> None:
    for latest in (None, "null", "5", '"x"', "{}", '{"flights": {"0": 17}}', '{"v": 1, "logs": {"a": "1:2:0"}}', "{"):
        tell(listener, latest)
    assert listener.lags() == {}
    assert gauges(registry) == {}
    assert "none that reads a log" in listener._repr_html_()


def test_sources_of_one_query_are_put_together_and_the_larger_lag_counts() -> None:
    both = progress(source({"a": Lag(3, 30, 1), "b": NO_LAG}), '{"kafka": 1}', source({"a": Lag(9, 90, 1), "c": None}))
    assert reported_lags(both) == {"a": Lag(9, 90, 1), "b": NO_LAG, "c": None}


def test_prometheus_shows_what_is_known_until_the_query_ends(
    listener: LagListener, registry: CollectorRegistry
) -> None:
    tell(listener, source({"flights": Lag(7, 700, 70), "alerts": Lag(None, 5, None), "lost": None}), name="copy")
    assert gauges(registry) == {
        ("query_lag_records", "copy", "flights"): 7,
        ("query_lag_bytes", "copy", "flights"): 700,
        ("query_lag_ms", "copy", "flights"): 70,
        ("query_lag_bytes", "copy", "alerts"): 5,
    }
    first = registry.get_sample_value("query_progress_time", {"query_id": str(A), "query_name": "copy"})
    listener.onQueryIdle(QueryIdleEvent(A, uuid.uuid4(), "2026-11-22T00:00:10.000Z"))
    second = registry.get_sample_value("query_progress_time", {"query_id": str(A), "query_name": "copy"})
    assert first is not None
    assert second is not None
    assert second >= first > 1.6e9
    tell(listener, source({"flights": NO_LAG}), name="copy", batch=1)
    assert gauges(registry)[("query_lag_records", "copy", "flights")] == 0
    assert ("query_lag_bytes", "copy", "alerts") not in gauges(registry), "the query reads it no more"
    end(listener, A)
    assert gauges(registry) == {}


def test_queries_of_one_name_have_series_of_their_own(listener: LagListener, registry: CollectorRegistry) -> None:
    tell(listener, source({"a": Lag(1, 1, 1)}), name="same")
    tell(listener, source({"a": Lag(2, 2, 2)}), name="same", query=B)
    values = [s.value for f in registry.collect() for s in f.samples if s.name == "query_lag_records"]
    assert values == [1, 2]


def test_listeners_of_one_registry_share_its_gauges_and_foreign_names_are_refused(registry: CollectorRegistry) -> None:
    one, other = LagListener(Statistics(registry)), LagListener(Statistics(registry))
    tell(one, source({"a": Lag(1, 1, 1)}), name="x")
    tell(other, source({"a": Lag(2, 2, 2)}), name="y", query=B)
    assert len(gauges(registry)) == 6
    taken = CollectorRegistry()
    Gauge("query_lag_bytes", "somebody's", registry=taken)
    with pytest.raises(CallerError, match="registry of its own"):
        LagListener(Statistics(taken))
    assert LagListener(NO_STATISTICS).lags() == {}


def test_the_gauges_are_those_of_the_page() -> None:
    page = metrics_page()
    assert all(f"| `{one.name}` | gauge |" in page for one in LAG_METRICS)
    assert page == (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_the_picture_goes_back_over_the_history_and_outlives_the_query(registry: CollectorRegistry) -> None:
    listener = LagListener(Statistics(registry), history=3)
    for batch in range(5):
        tell(listener, source({"flights": Lag(100 - batch, 10, 1)}), name="copy", batch=batch)
    picture = listener.picture("copy", by="records")
    assert [(one.batch, one.lags["flights"][0]) for one in picture.samples] == [(2, 98), (3, 97), (4, 96)]
    assert picture.samples[1].at_s - picture.samples[0].at_s == 1
    assert "batch 4: 96 records, 10 bytes behind" in str(picture)
    assert listener.picture(str(A)).samples == picture.samples
    assert '<img src="data:image/svg+xml;base64,' in listener._repr_html_()
    assert 'alt="records behind, over 2 s of query copy: no end heard of, batch 4: 96 records' in listener._repr_html_()
    end(listener, A)
    assert listener.lags() == {}
    assert "ended, batch 4" in listener._repr_html_()
    with pytest.raises(CallerError, match="Heard of: copy"):
        listener.picture("other")
    with pytest.raises(CallerError, match="by='bytes'"):
        listener.picture("copy", by="rows")  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="1 or more"):
        LagListener(NO_STATISTICS, history=0)


def test_a_query_runs_where_a_session_says_so_and_not_because_no_end_was_heard_of(listener: LagListener) -> None:
    tell(listener, source({"a": Lag(5, 5, 5)}), name="copy")
    assert "no end heard of, batch 0" in str(listener.picture())
    listener.spark = Session(A)  # type: ignore[assignment]
    assert "running, batch 0" in str(listener.picture())


def test_the_end_of_a_query_that_the_session_has_stopped_is_waited_for(listener: LagListener) -> None:
    """Spark tells its listeners later than `query.stop()` returns: the picture said "running" then."""
    told = []

    def told_later() -> None:
        told.append(threading.Thread(target=end, args=(listener, A)))
        told[-1].start()

    for ask in (lambda: str(listener.picture()), lambda: "ended" if listener.lags() == {} else "behind"):
        listener.spark = None  # type: ignore[assignment]
        tell(listener, source({"a": Lag(5, 5, 5)}), name="copy")
        listener.spark = Session(when_asked=told_later)  # type: ignore[assignment]
        assert "ended" in ask()
        told[-1].join()


def test_a_query_of_another_session_is_waited_for_once(listener: LagListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlspark.spark.listener.SETTLE_S", 0.05)
    tell(listener, source({"a": Lag(5, 5, 5)}), name="copy")
    listener.spark = Session(B)  # type: ignore[assignment]
    assert "no end heard of" in str(listener.picture())
    monkeypatch.setattr("dlspark.spark.listener.SETTLE_S", 1_000)
    assert listener.lags() == {"copy": {"a": Lag(5, 5, 5)}}

    def ended() -> None:
        raise ConnectionError("the session's server has gone")

    listener.spark = Session(when_asked=ended)  # type: ignore[assignment]
    assert "no end heard of" in str(listener.picture())


def test_a_query_that_is_started_again_goes_on(listener: LagListener) -> None:
    tell(listener, source({"a": Lag(5, 5, 5)}), name="copy")
    end(listener, A)
    tell(listener, source({"a": Lag(4, 4, 4)}), name="copy", batch=1)
    assert listener.lags() == {"copy": {"a": Lag(4, 4, 4)}}
    assert len(listener.picture("copy").samples) == 2


def test_only_so_many_queries_that_have_ended_are_kept(listener: LagListener) -> None:
    for number in range(MAX_ENDED + 5):
        tell(listener, source({"a": NO_LAG}), query=uuid.UUID(int=100 + number))
        end(listener, uuid.UUID(int=100 + number))
    assert len(listener._queries) == MAX_ENDED
    assert str(uuid.UUID(int=100 + MAX_ENDED + 4)) in listener._queries


def test_what_goes_wrong_in_a_listener_is_logged_once_and_dropped(
    listener: LagListener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            listener.onQueryProgress(object())  # type: ignore[arg-type]
            listener.onQueryIdle(object())  # type: ignore[arg-type]
            listener.onQueryTerminated(object())  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    assert "AttributeError" in caplog.text
    tell(listener, source({"a": Lag(1, 2, 3)}), name="copy")
    assert listener.lags() == {"copy": {"a": Lag(1, 2, 3)}}
