"""What is measured: names, that every metric is fed, shared registries, logs on their own, warnings, spans, logs."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
import urllib.request

import pyarrow as pa
import pytest
from helpers.logs import drained, written
from helpers.paths import DOCS, ROOT
from helpers.serving.proxy_world import LoopClock
from helpers.virtual_time import virtual_time
from helpers.waiting import until
from helpers.worlds.memory_bookies import MemoryBookie
from helpers.worlds.memory_cluster import MemoryCluster
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest

from dlspark.core.metrics.catalog import METRICS, WITHOUT_MEANING, Measures
from dlspark.core.metrics.cells import Gauge, Histogram, Timing
from dlspark.core.metrics.meter import EntryMeasures, Meter, Moments
from dlspark.core.metrics.page import metrics_page
from dlspark.core.metrics.registries import NO_STATISTICS, Statistics, collection_of, serve_metrics
from dlspark.core.metrics.structured_logging import JsonFormatter, about
from dlspark.core.settings.settings import Settings
from dlspark.errors import IdleReaderError, OverCapacityError, SettingsError, WriteError
from dlspark.testing.java_process import free_port
from metadata.distributedlog.locks import OwnershipAcquireFailedError
from metadata.foundation.errors import CallerError, DistributedLogError

UPSTREAM = """
log_writer_write log_writer_bulk_write log_writer_mark_end_of_stream log_writer_get_writer
log_writer_pending_request_dispatch seg_writer_write seg_writer_pending seg_writer_add_complete_callback
data_success data_miss control_success transmit_packetsize transmit_outstanding_requests
flush_periodic_success flush_periodic_miss segments_open segments_close segments_recover segments_delete
logsegments_recover_last_entry logsegments_recover_scanned_entries async_reader_delay_until_promise_satisfied
async_reader_idle_reader_error skipped_broken_entries lock_acquire lock_reacquire lock_tryTimeouts lock_unlock
read_lock_lock_acquire read_lock_lock_unlock read_lock_lock_tryTimeouts streamWriteLimiter_permits
streamWriteLimiter_acquireFailure writeLimiter_permits writeLimiter_acquireFailure permits_outstanding dl_alert
"""


@pytest.fixture
def registry():
    return CollectorRegistry()


class Statistician:
    """Has something that a gauge asks for."""

    def __init__(self, held=0):
        self.held = held


def _value(registry, name, **labels):
    """A sample's value, None where there is no such sample."""
    return registry.get_sample_value(name, labels)


def _count(registry, name, success="true", **labels):
    return _value(registry, f"{name}_count", success=success, **labels)


async def _write(namespace, name, count, **settings):
    log = await namespace.open_log(name, settings or None)
    async with await log.open_writer() as writer:
        futures = [writer.write(txid, b"payload") for txid in range(1, count + 1)]
        await writer.flush()
        for future in futures:
            await future
    return log


async def _read(log, count):
    async with await log.open_reader("earliest") as reader:
        return [await reader.read_next() for _ in range(count)]


# ---------------------------------------------------------------------- cells


def test_a_histogram_counts_values_up_to_and_including_each_bound():
    histogram = Histogram((1, 5))
    for value in (0.5, 1, 1.1, 5, 5.1):
        histogram.observe(value)
    histogram.observe(2, times=10)
    assert {(suffix, labels.get("le")): value for suffix, labels, value in histogram.samples()} == {
        ("_bucket", "1.0"): 2,
        ("_bucket", "5.0"): 14,
        ("_bucket", "+Inf"): 15,
        ("_count", None): 15,
        ("_sum", None): pytest.approx(32.7),
    }


async def test_a_block_that_raises_is_a_failure_and_one_that_is_cancelled_is_nothing():
    timing = Timing()
    with timing.measured():
        pass
    with pytest.raises(ValueError), timing.measured():
        raise ValueError
    with pytest.raises(asyncio.CancelledError), timing.measured():
        raise asyncio.CancelledError
    assert (timing.done.count, timing.failed.count) == (1, 1)


def test_a_gauge_asks_its_owners_and_forgets_those_that_are_gone():
    gauge, one, other = Gauge(), Statistician(2), Statistician(3)
    forget = gauge.follow(one, lambda owner: owner.held)
    gauge.follow(other, lambda owner: owner.held)
    assert gauge.value == 5
    forget()
    assert gauge.value == 3
    del other
    gc.collect()
    assert gauge.value == 0


def test_what_ends_is_kept_of_counters_and_not_of_gauges():
    root, one = Measures(), Measures()
    one.data_success.inc(3)
    one.transmit_write.record(0.002, times=4)
    holder = Statistician()
    one.seg_writer_pending.follow(holder, lambda owner: 7)
    root.keep(one)
    assert (root.data_success.value, root.transmit_write.done.count, root.seg_writer_pending.value) == (3, 4, 0)


# ---------------------------------------------------------------------- the table


def test_metrics_have_upstreams_names_where_upstream_has_them():
    assert {info.name for _, info in METRICS if info.upstream} == set(UPSTREAM.split())
    names = [info.name for _, info in METRICS]
    assert len(set(names)) == len(names)
    assert not set(names) & set(WITHOUT_MEANING)


# ---------------------------------------------------------------------- writing and reading


async def test_writes_are_counted_by_record_and_entry(memory_cluster, registry):
    namespace = await memory_cluster.namespace(
        statistics=Statistics(registry), output_buffer_bytes=0, immediate_flush=False
    )
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        await writer.write(1, b"x")
        for future in writer.write_bulk([(2, b"xx"), (3, b"xx")]):
            await future
        await asyncio.gather(*writer.write_record_set(4, [b"a", b"b", b"c"]))
        await writer.write_batch([5, 6], pa.array([b"five", b"six"]))
        await writer.commit()
    assert _count(registry, "log_writer_write") == _count(registry, "seg_writer_write") == 8
    assert _count(registry, "log_writer_bulk_write") == 3
    entries = _value(registry, "data_success_total")
    control = _value(registry, "control_success_total")
    assert 4 <= entries <= 5
    assert control == 1
    assert _count(registry, "transmit_write") == _value(registry, "transmit_packetsize_count") == entries + control
    assert _count(registry, "seg_writer_add_complete_callback") == entries + control
    assert _count(registry, "segments_open") == _count(registry, "segments_close") == 1
    assert _value(registry, "log_writer_pending_request_dispatch_total") == 1, "the first one waited for the segment"
    assert _count(registry, "log_writer_get_writer") == 1
    assert _value(registry, "log_writer_write_sum", success="true") >= _value(
        registry, "seg_writer_write_sum", success="true"
    )


async def test_gauges_show_what_is_under_way(memory_cluster, registry):
    namespace = await memory_cluster.namespace(
        statistics=Statistics(registry), output_buffer_bytes=0, rolling_concurrency=2
    )
    log = await namespace.open_log("log")
    writer = await log.open_writer()
    await writer.write(1, b"first")
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = True
    futures = [writer.write(2, b"held"), writer.write(3, b"held")]
    await asyncio.sleep(0)
    gauges = ("seg_writer_pending", "transmit_outstanding_requests", "streamWriteLimiter_permits")
    assert [_value(registry, name) for name in gauges] == [2, 2, 2]
    assert _value(registry, "writeLimiter_permits") == 2
    assert _value(registry, "permits_outstanding") == 0
    assert namespace.services.permits.take()
    assert _value(registry, "permits_outstanding") == 1
    for bookie in memory_cluster.bookies:
        bookie.release()
    await asyncio.gather(*futures)
    await writer.close()
    assert [_value(registry, name) for name in (*gauges, "writeLimiter_permits")] == [0, 0, 0, 0]


async def test_refused_records_are_counted_by_the_limit_that_refused_them(memory_cluster, registry):
    namespace = await memory_cluster.namespace(
        statistics=Statistics(registry),
        outstanding_write_limit=1,
        global_outstanding_write_limit=2,
        write_limit_dark_mode=False,
    )
    for bookie in memory_cluster.bookies:
        bookie.hold_adds = True
    writers = [await (await namespace.open_log(name)).open_writer() for name in ("one", "other", "third")]
    taken = [writer.write(1, b"taken") for writer in writers[:2]]
    for writer in (writers[0], writers[2]):
        with pytest.raises(OverCapacityError):
            await writer.write(2, b"refused")
    assert _value(registry, "streamWriteLimiter_acquireFailure_total") == 1
    assert _value(registry, "writeLimiter_acquireFailure_total") == 1
    for bookie in memory_cluster.bookies:
        bookie.release()
    for writer in writers:
        await writer.close()
    await asyncio.gather(*taken)


async def test_reads_are_counted(memory_cluster, registry):
    namespace = await memory_cluster.namespace(statistics=Statistics(registry))
    log = await written(namespace, "log", [[b"one", b"two"], [b"three"]])
    log = await namespace.open_log("log", {"traceReadAheadDeliveryLatency": True})
    async with await log.open_reader() as reader:
        assert await drained(reader) == [b"one", b"two", b"three"]
        assert _value(registry, "read_ahead_queued_entries") == _value(registry, "read_ahead_queued_bytes") == 0
    entries = _count(registry, "read_ahead_fetch")
    assert entries >= 3
    assert _count(registry, "read_ahead_delivery") == entries
    assert _value(registry, "read_ahead_bytes_total") > 100
    async with await log.open_reader() as reader:
        assert (await reader.read_next()).payload == b"one"
        await until(lambda: reader._ahead.caught_up)
        assert _value(registry, "read_ahead_queued_entries") > 0
    assert _value(registry, "read_ahead_queued_entries") == 0
    assert _count(registry, "async_reader_delay_until_promise_satisfied") >= 1


@virtual_time
async def test_trouble_of_readers_is_counted(registry):
    memory_cluster = MemoryCluster(clock=LoopClock())
    await memory_cluster.start()
    namespace = await memory_cluster.namespace(
        statistics=Statistics(registry), skip_broken_entries=True, idle_error_ms=450, idle_warn_ms=420
    )
    log = await written(namespace, "log", [[b"one", b"two", b"three"]])
    (segment,) = await log.segments()
    for bookie in memory_cluster.bookies:
        entries = bookie.ledgers[segment.ledger_id].entries if segment.ledger_id in bookie.ledgers else {}
        if 1 in entries:
            entries[1] = entries[1][:-1] + bytes([entries[1][-1] ^ 1])
    async with await log.open_reader() as reader:
        assert [(await reader.read_next()).payload for _ in range(2)] == [b"one", b"three"]
        with pytest.raises(IdleReaderError):
            await reader.read_next()
    assert _value(registry, "skipped_broken_entries_total") == _value(registry, "dl_alert_total") == 1
    assert _value(registry, "async_reader_idle_reader_error_total") == 1
    assert _value(registry, "rare_paths_total", path="broken-entry-skipped") == 1
    assert _count(registry, "async_reader_delay_until_promise_satisfied", "false") == 1
    await memory_cluster.stop()


# ---------------------------------------------------------------------- segments and locks


async def test_recovery_and_deletion_of_segments_are_counted(memory_cluster, registry):
    one = await memory_cluster.namespace(statistics=NO_STATISTICS)
    writer = await (await one.open_log("log")).open_writer()
    await asyncio.gather(*[writer.write(txid, b"x") for txid in range(3)], writer.flush())
    await memory_cluster.crash(one)
    other = await memory_cluster.namespace(statistics=Statistics(registry))
    log = await other.open_log("log")
    async with await log.open_writer() as writer:
        writer.write(5, b"another segment")
    assert await log.purge_older_than(4) == 1
    for name in ("segments_recover", "segments_delete", "logsegments_recover_last_entry"):
        assert _count(registry, name) == 1, name
    assert _value(registry, "logsegments_recover_scanned_entries_count") == 1
    assert _value(registry, "logsegments_recover_scanned_entries_sum") >= 1
    assert _value(registry, "rare_paths_total", path="segment-recovered") == 1


async def test_locks_are_timed_and_those_that_were_not_acquired_in_time_counted(memory_cluster, registry):
    owner = await memory_cluster.namespace(statistics=NO_STATISTICS)
    other = await memory_cluster.namespace(statistics=Statistics(registry), lock_timeout_s=0)
    held = await (await owner.open_log("log")).open_writer()
    log = await other.open_log("log")
    with pytest.raises(OwnershipAcquireFailedError):
        await log.open_writer()
    assert _value(registry, "lock_tryTimeouts_total") == _count(registry, "lock_acquire", "false") == 1
    await held.close()
    writer = await log.open_writer()
    memory_cluster.tree.expire(other.store.session_id)
    await until(lambda: _count(registry, "lock_reacquire"))
    await writer.close()
    assert _count(registry, "lock_acquire") == _count(registry, "lock_unlock") == 1

    reader = await log.open_reader(subscriber="me")
    with pytest.raises(OwnershipAcquireFailedError):
        await log.open_reader(subscriber="me")
    await reader.close()
    assert _value(registry, "read_lock_lock_tryTimeouts_total") == 1
    assert _count(registry, "read_lock_lock_acquire") == _count(registry, "read_lock_lock_unlock") == 1


async def test_sealing_and_periodic_flushes_are_counted(memory_cluster, registry):
    namespace = await memory_cluster.namespace(
        statistics=Statistics(registry), output_buffer_bytes=1000, immediate_flush=False, periodic_flush_ms=10
    )
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        await writer.write(1, b"x")
        await until(lambda: _value(registry, "flush_periodic_miss_total"))
        await writer.mark_end_of_stream()
    assert _value(registry, "flush_periodic_success_total") >= 1
    assert _count(registry, "log_writer_mark_end_of_stream") == 1
    assert _value(registry, "data_miss_total") >= 1


def test_every_metric_is_fed_by_the_core_or_by_a_mover():
    rooms = (ROOT / "dlspark" / "core", ROOT / "dlspark" / "cold")
    sources = "".join(path.read_text() for room in rooms for path in room.rglob("*.py") if path.name != "catalog.py")
    assert [name for name, _ in METRICS if f".{name}" not in sources] == []


# ---------------------------------------------------------------------- registries


async def test_namespaces_of_a_process_are_added_up_in_one_registry_and_stay_counted_when_they_are_closed(
    memory_cluster, registry
):
    one, other = [await memory_cluster.namespace(statistics=Statistics(registry)) for _ in range(2)]
    await _write(one, "one", 3)
    await _write(other, "other", 4)
    assert _count(registry, "log_writer_write") == 7
    await one.close()
    assert _count(registry, "log_writer_write") == 7
    assert _count(registry, "metadata_requests", operation="multi") >= 4
    assert generate_latest(registry).count(b"# TYPE log_writer_write histogram") == 1


async def test_without_a_registry_it_is_prometheus_clients_own(memory_cluster):
    before = _count(REGISTRY, "log_writer_write") or 0
    await _write(await memory_cluster.namespace(), "log", 5)
    assert _count(REGISTRY, "log_writer_write") == before + 5


async def test_a_registry_with_other_metrics_of_these_names_is_refused(memory_cluster, registry):
    Counter("dl_alert", "another program's", registry=registry)
    with pytest.raises(CallerError, match="dl_alert"):
        await memory_cluster.namespace(statistics=Statistics(registry))


async def test_where_no_statistics_are_wanted_nothing_is_counted_by_entry_and_rare_paths_still_are(memory_cluster):
    namespace = await memory_cluster.namespace(statistics=NO_STATISTICS)
    log = await _write(namespace, "log", 5)
    assert len(await _read(log, 5)) == 5
    measures = namespace.services.meter.root
    assert not namespace.services.meter.wanted
    for name in ("log_writer_write", "transmit_write", "read_ahead_fetch", "seg_writer_add_complete_callback"):
        assert getattr(measures, name).done.count == 0
    assert measures.transmit_packetsize.count == measures.data_success.value == 0
    assert namespace.counters["segments-listed"] >= 1


def test_a_namespace_that_is_dropped_without_being_closed_leaves_its_counts(registry):
    meter = Meter.open(Statistics(registry), Settings())
    meter.root.data_success.inc(2)
    assert _value(registry, "data_success_total") == 2
    del meter
    gc.collect()
    assert _value(registry, "data_success_total") == 2
    assert len(collection_of(registry)._live) == 0


# ---------------------------------------------------------------------- one log's own


async def test_a_log_has_series_of_its_own_while_it_is_open_if_that_is_wanted(memory_cluster, registry):
    namespace = await memory_cluster.namespace(statistics=Statistics(registry))
    await _write(namespace, "with-the-rest", 1)
    log = await _write(namespace, "apart", 2, enablePerStreamStat=True)
    again = await namespace.open_log("apart", {"enablePerStreamStat": True})
    assert _count(registry, "log_writer_write", stream="apart") == 2
    assert _count(registry, "log_writer_write") == 1
    await log.close()
    assert _count(registry, "log_writer_write", stream="apart") == 2, "another handle is open"
    await again.close()
    assert _count(registry, "log_writer_write", stream="apart") is None
    assert _count(registry, "log_writer_write") == 3
    assert b"stream=" not in generate_latest(registry)


async def test_only_so_many_logs_have_series_of_their_own(registry, monkeypatch, caplog):
    monkeypatch.setattr("dlspark.core.metrics.meter.MAX_STREAMS", 2)
    meter = Meter.open(Statistics(registry), Settings())
    apart = Settings(per_stream_statistics=True)
    closers = [meter.open_log(name, apart) for name in ("a", "b", "c", "d")]
    assert [meter.of(name) is meter.root for name in ("a", "b", "c", "d")] == [False, False, True, True]
    assert sum("metrics of their own" in record.message for record in caplog.records) == 1
    for close in (*closers, *closers):
        close()
    assert meter.of("a") is meter.root


# ---------------------------------------------------------------------- slow operations


async def test_slow_metadata_requests_are_counted_and_told_once_in_a_while(
    memory_cluster, registry, caplog, monkeypatch
):
    namespace = await memory_cluster.namespace(statistics=Statistics(registry), metadata_latency_warn_ms=2_000)
    loop, ahead_s = asyncio.get_running_loop(), 0.0
    loop_time = loop.time
    # The loop's clock jumps while a request waits: no request of a busy machine takes as long as one that is slow here.
    monkeypatch.setattr(loop, "time", lambda: loop_time() + ahead_s)
    for _ in range(3):
        memory_cluster.tree.stall()
        asking = asyncio.ensure_future(namespace.log_exists("log"))
        await until(lambda: memory_cluster.tree._stalled)
        ahead_s += 3
        memory_cluster.tree.resume()
        await asking
    told = [record for record in caplog.records if record.name.endswith("metrics.meter")]
    assert _value(registry, "slow_operations_total", kind="metadata") >= 3
    assert len(told) == 1
    assert (told[0].kind, told[0].threshold_ms, told[0].path[:4]) == ("metadata", 2_000, "/dl/")
    assert told[0].duration_ms >= 3_000


async def test_slow_writes_and_reads_are_told_with_their_log_and_segment(caplog):
    meter = Meter()
    entries = EntryMeasures(meter, "flights", 3, 17)
    for entry_id, answered in ((0, 1.9), (1, 2.1), (2, 9.0)):
        entries.answered(entry_id, 1, Moments(0.0, 0.0, 0.0), answered, None, 2000)
    entries.answered(3, 1, Moments(0.0, 0.0, 0.0), 9.0, None, 0)
    (told,) = caplog.records
    assert told.getMessage() == "log flights: writing entry 1 of segment 3 took 2100 ms, more than 2000 ms"
    assert (told.log, told.segment, told.ledger, told.kind) == ("flights", 3, 17, "write")
    assert meter.root.slow_operations.values == {"write": 2}


async def test_a_slow_read_of_an_entry_that_is_there_is_told(memory_cluster, caplog):
    namespace = await memory_cluster.namespace(data_latency_warn_ms=1)
    log = await written(namespace, "log", [[b"one"]])
    serve = MemoryBookie.serve

    async def late(self, link, frame):
        await asyncio.sleep(0.005)
        await serve(self, link, frame)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryBookie, "serve", late)
        async with await log.open_reader() as reader:
            assert await drained(reader) == [b"one"]
    told = [record for record in caplog.records if getattr(record, "kind", None) == "read"]
    assert [(record.log, record.segment) for record in told] == [("log", 1)]


async def test_changes_of_segments_are_told_where_that_is_wanted(memory_cluster, caplog):
    namespace = await memory_cluster.namespace(trace_metadata_changes=True)
    log = await namespace.open_log("log")
    async with await log.open_writer() as writer:
        writer.write(1, b"one")
        await writer.commit()
        async with await log.open_reader() as reader:
            with caplog.at_level(logging.INFO, "dlspark.core.reading.segment_list"):
                assert (await reader.read_next()).payload == b"one"
                await writer.close()
                assert await drained(reader) == []
                await until(lambda: any("completed" in record.message for record in caplog.records))
    said = [record.message for record in caplog.records if record.name == "dlspark.core.reading.segment_list"]
    assert said[-1] == "log log: segment 1 is completed"


# ---------------------------------------------------------------------- spans


async def test_writes_reads_segments_and_metadata_requests_are_spans(memory_cluster):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    namespace = await memory_cluster.namespace(statistics=Statistics(tracer_provider=provider, collect=False))
    log = await _write(namespace, "log", 2)
    await _read(log, 2)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {"transmit", "segment start", "segment complete", "read-ahead fetch", "lock acquire"} <= set(spans)
    assert spans["transmit"].attributes["dlspark.log"] == "log"
    assert spans["transmit"].end_time >= spans["transmit"].start_time
    start = spans["segment start"].context.span_id
    inside = [span.name for span in exporter.get_finished_spans() if span.parent and span.parent.span_id == start]
    assert "metadata multi" in inside


async def test_what_fails_is_a_failed_span(memory_cluster):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    meter = Meter.open(Statistics(tracer_provider=provider, collect=False), Settings())
    with pytest.raises(ValueError), meter.step(Timing(), "segment start", log="log"):
        raise ValueError("no")
    meter.tracing.past("transmit", 0.5, ValueError("no"), log="log", entry=None)
    first, second = exporter.get_finished_spans()
    assert [span.status.is_ok for span in (first, second)] == [False, False]
    assert dict(second.attributes) == {"dlspark.log": "log"}
    assert second.end_time - second.start_time == 500_000_000


def test_spans_take_an_extra_and_nothing_of_it_is_imported_unless_they_are_wanted(monkeypatch):
    code = (
        "import sys; from dlspark.core.metrics.meter import Meter; from dlspark.core.settings.settings import Settings;"
        "Meter.open(None, Settings()); assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match="telemetry"):
        Meter.open(NO_STATISTICS, Settings(tracing_enabled=True))


# ---------------------------------------------------------------------- logs, serving, the page


def test_log_records_are_lines_of_json_with_what_they_are_about():
    logger = logging.getLogger("dlspark.core.writing.writer")
    told = about(log="flights", segment=3, ledger=None)
    record = logger.makeRecord(logger.name, logging.WARNING, "f", 1, "the writer of %s", ("flights",), None, extra=told)
    record.created = 0.5
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "WARNING",
        "logger": "dlspark.core.writing.writer",
        "message": "the writer of flights",
        "log": "flights",
        "segment": 3,
    }
    try:
        raise ValueError("no")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "ValueError: no" in json.loads(JsonFormatter().format(record))["error"]


async def test_a_failed_writers_log_record_names_the_log(memory_cluster, caplog):
    namespace = await memory_cluster.namespace(disable_rolling_on_error=True)
    writer = await (await namespace.open_log("log")).open_writer()
    future = writer.write(1, b"one")
    await asyncio.sleep(0)
    writer._issuer.fail(WriteError("for a test"))
    with pytest.raises(DistributedLogError):
        await future
    await writer.abort()
    (told,) = [record for record in caplog.records if record.name == "dlspark.core.writing.writer"]
    assert told.log == "log"


def test_metrics_are_served_over_http(registry):
    meter = Meter.open(Statistics(registry), Settings())
    meter.root.data_success.inc(3)
    port = free_port()
    stop = serve_metrics(port, registry=registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b"data_success_total 3.0" in answer.read()
        with pytest.raises(CallerError, match="cannot be served"):
            serve_metrics(port, registry=registry)
    finally:
        stop()
    meter.close()


def test_the_page_of_metrics_is_the_table_of_metrics():
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert page == metrics_page(), "run: python -m dlspark.core.metrics > docs/metrics.md"
