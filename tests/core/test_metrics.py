"""What is measured: names, that every metric is fed, shared registries, logs on their own, warnings, spans, logs."""

from __future__ import annotations

import asyncio
import gc

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from dlspark.core.metrics import Statistics
from dlspark.core.metrics.catalog import METRICS, WITHOUT_MEANING, Measures
from dlspark.core.metrics.cells import Gauge, Histogram, Timing

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


async def test_writes_are_counted_by_record_and_entry(world, registry):
    namespace = await world.namespace(statistics=Statistics(registry), output_buffer_bytes=0, immediate_flush=False)
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


async def test_gauges_show_what_is_under_way(world, registry):
    namespace = await world.namespace(statistics=Statistics(registry), output_buffer_bytes=0, rolling_concurrency=2)
    log = await namespace.open_log("log")
    writer = await log.open_writer()
    await writer.write(1, b"first")
    for bookie in world.bookies:
        bookie.hold_adds = True
    futures = [writer.write(2, b"held"), writer.write(3, b"held")]
    await asyncio.sleep(0)
    gauges = ("seg_writer_pending", "transmit_outstanding_requests", "streamWriteLimiter_permits")
    assert [_value(registry, name) for name in gauges] == [2, 2, 2]
    assert _value(registry, "writeLimiter_permits") == 2
    assert _value(registry, "permits_outstanding") == 0
    assert namespace.services.permits.take()
    assert _value(registry, "permits_outstanding") == 1
    for bookie in world.bookies:
        bookie.release()
    await asyncio.gather(*futures)
    await writer.close()
    assert [_value(registry, name) for name in (*gauges, "writeLimiter_permits")] == [0, 0, 0, 0]
