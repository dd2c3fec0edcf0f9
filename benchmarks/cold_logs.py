"""Logs for the section `cold`: the flights as typed rows, records that do not compress, and their way into files."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from dlspark.cold.moving.log_mover import LogMover
from dlspark.cold.moving.stores import MoverStores
from dlspark.core.namespace import AsyncNamespace
from dlspark.demo.datasets import flight_records
from metadata.distributedlog.cold_store import ColdStore
from metadata.distributedlog.cold_units import ColdUnit
from metadata.foundation.errors import check

_WHOLE: Final = (
    ["year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"],
    ["air_time", "distance", "hour", "minute"],
)
FLIGHTS: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("scheduled_ms", pa.int64(), nullable=False),
        *((name, pa.int32()) for name in _WHOLE[0]),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        *((name, pa.string()) for name in ("tailnum", "origin", "dest")),
        *((name, pa.int32()) for name in _WHOLE[1]),
        ("time_hour", pa.timestamp("us", "UTC")),
    ]
)
"""What the demo's log declares of its records."""
SUMMED: Final = "dep_delay"
YEAR_MS: Final = 365 * 86_400_000
SLICE_ROWS: Final = 50_000
RECORD_BYTES: Final = 1_000
BATCH_RECORDS: Final = 250
"""Of one write: an entry of some 256 KB."""


def flights() -> pa.Table:
    """Return all flights ordered by scheduled departure. Raises CallerError where their package is not installed."""
    lines = "\n".join(record.value for record in flight_records())
    options = pa_json.ParseOptions(explicit_schema=FLIGHTS, unexpected_field_behavior="error")
    found = pa_json.read_json(io.BytesIO(lines.encode()), parse_options=options)
    return found.select(FLIGHTS.names).cast(FLIGHTS)


def another_year(rows: pa.Table, years: int) -> pa.Table:
    """Return the same flights some years later, under new ids."""
    moved = {"id": years * len(rows), "scheduled_ms": years * YEAR_MS}
    for name, by in moved.items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, FLIGHTS.field(name), pc.add(rows.column(name), by))
    return rows


async def write_flights(namespace: AsyncNamespace, name: str, rows: pa.Table, years: int) -> None:
    """Make a log that declares the flights' columns, with a completed segment for each year."""
    await namespace.create_log(name)
    async with await namespace.open_log(name) as log:
        await log.declare_schema(FLIGHTS, timestamp="scheduled_ms")
        for year in range(years):
            async with await log.open_writer() as writer:
                for batch in another_year(rows, year).to_batches(max_chunksize=SLICE_ROWS):
                    await writer.write_table(batch)


async def write_last(namespace: AsyncNamespace, name: str, row: pa.Table) -> None:
    """Write a segment more, of one row: the newest one never leaves the storage nodes."""
    async with await namespace.open_log(name) as log, await log.open_writer() as writer:
        await writer.write_table(row)


async def write_noise(namespace: AsyncNamespace, name: str, size: int) -> int:
    """Make a log of one completed segment, `size` bytes of records that do not compress, and one of a record behind it;
    returns the records in the first one."""
    rng = random.Random(31)
    await namespace.create_log(name)
    count = 0
    async with await namespace.open_log(name) as log:
        async with await log.open_writer() as writer:
            written = None
            for _ in range(max(1, size // (RECORD_BYTES * BATCH_RECORDS))):
                await writer.wait_for_room()
                txids = np.arange(count, count + BATCH_RECORDS)
                data = pa.py_buffer(rng.randbytes(RECORD_BYTES * BATCH_RECORDS))
                offsets = pa.py_buffer(np.arange(0, (BATCH_RECORDS + 1) * RECORD_BYTES, RECORD_BYTES, dtype=np.int32))
                payloads = pa.BinaryArray.from_buffers(pa.binary(), BATCH_RECORDS, [None, offsets, data])
                written = writer.write_batch(txids, payloads)
                count += BATCH_RECORDS
            check(written is not None, "nothing was written")
            if written is not None:
                await written
        return count


async def close_with_one_record(namespace: AsyncNamespace, name: str) -> None:
    """Write a segment more, of one record."""
    async with await namespace.open_log(name) as log, await log.open_writer() as writer:
        await writer.write(writer.last_txid + 1, b"the newest segment stays with the storage nodes")


async def move(namespace: AsyncNamespace, name: str) -> list[ColdUnit]:
    """Make one pass of a mover over a log, of all its completed segments; return its units, oldest first. What failed
    is raised."""
    stores = MoverStores()
    cold = ColdStore(namespace.services.logs)
    try:
        async with await namespace.open_log(name) as log:
            done = await LogMover(namespace.services, cold, stores, name, lambda: log.settings, "benchmark").run(
                at_once=True
            )
    finally:
        await stores.close()
    check(not done.problems, f"the mover failed: {done.problems}")
    return [one.value for one in await cold.units(name)]


def cold_settings(place: str, options: Mapping[str, str]) -> dict[str, str | int]:
    """Return the settings of a namespace whose logs go to files below `place` and leave storage nodes at once."""
    return {"coldStoragePath": place, "coldFreshnessSeconds": 0, "coldHotRetentionSeconds": 0, **options}
