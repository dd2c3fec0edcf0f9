"""A write proxy's metrics: what requests count, what streams have of their own, and that sums never go back."""

from __future__ import annotations

import pytest
from helpers.paths import DOCS
from prometheus_client import CollectorRegistry

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.metrics.registries import NO_STATISTICS, Statistics
from dlspark.serving.bindings.service import Caller, Reply
from dlspark.serving.protocol.operations import (
    Answer,
    BulkReceipt,
    Done,
    FindOwner,
    Heartbeat,
    OwnerFound,
    Refusal,
    Request,
    StatusCode,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.write_proxy.metrics import (
    MAX_STREAM_SERIES,
    MeasuredService,
    ProxyScopes,
    StreamTraffic,
    metrics_tables,
    shown_in,
)

CALLER = Caller("10.0.0.9:1")


class HeldService:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request, Reply]] = []
        self.gone: list[Caller] = []

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        self.asked.append((request, reply))

    def caller_gone(self, caller: Caller) -> None:
        self.gone.append(caller)


class MeasuredProxy:
    def __init__(self) -> None:
        self.now = 100.0
        self.scopes = ProxyScopes()
        self.registry = CollectorRegistry()
        self.end = shown_in(Statistics(self.registry), self.scopes)
        self.traffic = StreamTraffic()
        self.inner = HeldService()
        self.service = MeasuredService(self.inner, self.scopes, self.traffic, lambda: self.now)

    def ask(self, request: Request, answer: Answer, seconds: float = 0.002) -> None:
        answers: list[Answer] = []
        self.service.submit(request, CALLER, answers.append)
        asked, reply = self.inner.asked.pop()
        assert asked is request
        self.now += seconds
        reply(answer)
        assert answers == [answer]

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def measured() -> MeasuredProxy:
    return MeasuredProxy()


def test_writes_count_for_their_stream_once_it_was_written(measured: MeasuredProxy) -> None:
    write = WriteRecords("a", (b"xx",))
    measured.ask(write, Refusal(StatusCode.OVER_CAPACITY, "slow down"))
    assert measured.value("request_write_count", success="false") == 1
    assert measured.value("request_write_count", stream="a", success="false") is None
    measured.ask(write, WriteReceipt(DLSN(1, 0, 0), 1))
    assert measured.value("request_write_count", stream="a", success="true") == 1
    assert measured.value("request_write_bucket", stream="a", success="true", le="2.5") == 1
    assert measured.value("records_success_total", stream="a") == 1
    assert measured.value("records_failure_total") == 1
    assert measured.value("records_received_total") == 2
    assert measured.value("request_statuscode_total", code="OVER_CAPACITY") == 1
    assert measured.value("request_statuscode_total", code="SUCCESS") == 1
    assert measured.value("request_statuscode_count_total") == 2


def test_a_bulk_counts_each_record_and_a_redirect_is_no_failure(measured: MeasuredProxy) -> None:
    bulk = WriteRecords("a", (b"1", b"2", b"3"))
    refused = Refusal(StatusCode.TOO_LARGE_RECORD, "too large")
    measured.ask(bulk, BulkReceipt((DLSN(1, 0, 0), refused, DLSN(1, 0, 1))))
    assert measured.value("records_success_total", stream="a") == 2
    assert measured.value("records_failure_total", stream="a") == 1
    measured.ask(bulk, Refusal(StatusCode.FOUND, "elsewhere", "1;1;b:1"))
    assert measured.value("records_redirect_total") == 3
    assert measured.value("request_redirect_total") == 1
    assert measured.value("request_bulkWrite_count", success="false") == 0
    assert measured.value("request_bulkWrite_count", stream="a", success="true") == 1


def test_other_operations_are_timed_by_upstreams_names_or_under_one(measured: MeasuredProxy) -> None:
    measured.ask(Heartbeat("a"), Done())
    measured.ask(FindOwner("a"), OwnerFound("1;0;a:1"))
    measured.ask(Heartbeat("a"), Refusal(StatusCode.REQUEST_DENIED, "no"))
    assert measured.value("request_heartbeat_count", success="true") == 1
    assert measured.value("request_heartbeat_count", success="false") == 1
    assert measured.value("request_other_count", operation="FindOwner", success="true") == 1
    assert measured.value("denied_total", operation="heartbeat") == 1


def test_what_is_not_answered_yet_shows(measured: MeasuredProxy) -> None:
    measured.service.submit(WriteRecords("a", (b"1",)), CALLER, lambda _: None)
    measured.service.submit(WriteRecords("a", (b"1",), atomic=True), CALLER, lambda _: None)
    measured.service.submit(FindOwner("a"), CALLER, lambda _: None)
    pending = ("request_writePending", "request_bulkWritePending", "service_outstandingAsync")
    assert [measured.value(name) for name in pending] == [1, 1, 3]
    for _, reply in measured.inner.asked:
        reply(Done())
    assert [measured.value(name) for name in pending] == [0, 0, 0]
    measured.service.caller_gone(CALLER)
    assert measured.inner.gone == [CALLER]


def test_a_stream_that_is_given_up_goes_on_in_the_sum(measured: MeasuredProxy) -> None:
    for stream in ("a", "b"):
        measured.ask(WriteRecords(stream, (b"1",)), WriteReceipt(DLSN(1, 0, 0), 1))
    measured.scopes.keep_streams(lambda stream: stream == "b")
    assert measured.value("records_success_total", stream="a") is None
    assert measured.value("records_success_total", stream="b") == 1
    assert measured.value("records_success_total") == 1
    measured.end()
    assert measured.value("records_success_total") == 2
    assert measured.value("records_received_total") == 2
    measured.end()
    assert measured.value("records_success_total") == 2


def test_how_many_streams_have_series_is_bounded_and_can_be_none(measured: MeasuredProxy) -> None:
    for number in range(MAX_STREAM_SERIES + 5):
        measured.scopes.of(str(number))
    assert len(measured.scopes.streams) == MAX_STREAM_SERIES
    assert measured.scopes.of("more") is measured.scopes.rest
    assert ProxyScopes(per_stream=False).of("a") is not None
    assert not ProxyScopes(per_stream=False).streams


def test_the_page_has_them_all() -> None:
    page = (DOCS / "serving" / "write-proxy.md").read_text()
    assert "\n".join(metrics_tables()) in page


def test_two_proxies_of_a_process_are_summed_up() -> None:
    registry, scopes = CollectorRegistry(), [ProxyScopes(), ProxyScopes()]
    for one in scopes:
        shown_in(Statistics(registry), one)
        one.root.records_received.inc(3)
    assert registry.get_sample_value("records_received_total") == 6
    shown_in(NO_STATISTICS, ProxyScopes())()


def test_traffic_is_bytes_a_second_between_two_samples(measured: MeasuredProxy) -> None:
    measured.traffic.sample(measured.now)
    measured.ask(WriteRecords("a", (b"x" * 600, b"x" * 400)), BulkReceipt((DLSN(1, 0, 0), DLSN(1, 0, 1))), 10)
    measured.ask(WriteRecords("b", (b"x",)), Refusal(StatusCode.OVER_CAPACITY, "slow down"), 10)
    measured.traffic.sample(measured.now)
    assert measured.traffic.bytes_per_second == {"a": 50}
    measured.traffic.sample(measured.now + 1)
    assert measured.traffic.bytes_per_second == {}
