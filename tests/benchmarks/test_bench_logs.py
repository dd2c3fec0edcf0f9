"""The benchmark of logs does what it measures: every record is delivered once, and every way reads the whole log."""

from __future__ import annotations

import pytest
from helpers.worlds.warm_sandbox import WarmSandbox

from benchmarks.cluster import run
from benchmarks.logs import LOW_LATENCY, bare_objects, by_columns, by_records, fill_log, loop_over, tail_latencies_us
from benchmarks.payloads import any_lengths
from benchmarks.storage import LEAST_SAMPLES
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.sync.namespace import Namespace

pytestmark = pytest.mark.processes


def test_a_delivery_at_the_tail_comes_after_its_write_and_is_counted_once(warm_sandbox: WarmSandbox) -> None:
    async def measure() -> tuple[list[float], list[float]]:
        opening = AsyncNamespace.open(warm_sandbox.uri, LOW_LATENCY)
        async with await opening as namespace, await namespace.open_log("tail") as log:
            return await tail_latencies_us(log, 0.1)

    delivered, whole = run(measure())
    assert len(delivered) == len(whole) >= LEAST_SAMPLES
    assert all(0 < part < all_of_it for part, all_of_it in zip(delivered, whole, strict=True))


def test_a_log_is_read_whole_by_columns_and_by_records(warm_sandbox: WarmSandbox) -> None:
    records = any_lengths(100)

    async def measure() -> tuple[int, int]:
        async with await AsyncNamespace.open(warm_sandbox.uri) as namespace, await namespace.open_log("filled") as log:
            ledger_id, size = await fill_log(log, records, batches=2)
            await by_columns(log, 2 * len(records.txids))
            await by_records(log, 2 * len(records.txids))
            (segment,) = await log.segments()
            assert (segment.ledger_id, segment.record_count) == (ledger_id, 2 * len(records.txids))
            return size, (await namespace.ledgers.open(ledger_id, recover=False)).length

    size, stored = run(measure())
    assert abs(size - stored) < 0.01 * stored, "the size that rates are made of is what is stored"
    with Namespace.open(warm_sandbox.uri) as namespace, namespace.open_log("filled") as log:
        loop_over(log, 2 * len(records.txids))


def test_bare_objects_are_of_every_row() -> None:
    records = any_lengths(100)
    entries = [(number, memoryview(entry)) for number, entry in enumerate(records.entries())]
    assert [each.payload for each in bare_objects(entries)] == records.payloads.to_pylist()
