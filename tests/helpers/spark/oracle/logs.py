"""Logs of the oracle, drawn by a seed, with what must be read of them: the writer's own word on each record.

No reader of the library takes part: positions are those that writing returned, sequence ids are counted. Only rows that
Spark's sink has appended are looked up behind the last known one, for the sink says no positions.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.writing.writer import AsyncLogWriter

LAST_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: ids beyond are no times."""
SCHEMA: Final = pa.schema(
    [
        ("log", pa.string()),
        ("segment", pa.int64()),
        ("entry", pa.int64()),
        ("slot", pa.int64()),
        ("sequence_id", pa.int64()),
        ("transaction_id", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("value", pa.binary()),
    ]
)
_BEGINNINGS: Final = (0, 1, 95, 1_000_000, 1_372_636_800_000, 1_600_000_000_000, LAST_TIME_MS - 20)
_STEPS: Final = ((0,), (1,), (0, 1), (0, 0, 3), (1, 7, 500), (1000, 86_400_000))


class Record(NamedTuple):
    """One record as a row of the source."""

    log: str
    segment: int
    entry: int
    slot: int
    sequence_id: int
    transaction_id: int
    timestamp: int | None
    value: bytes


def time_of(txid: int) -> int | None:
    """Return a transaction id as microseconds since the epoch, if it is a time."""
    return txid * 1000 if 0 <= txid <= LAST_TIME_MS else None


def table_of(records: Iterable[Record]) -> pa.Table:
    """Return records as an Arrow table of the source's columns."""
    columns = list(zip(*records, strict=True)) or [()] * len(SCHEMA)
    return pa.Table.from_arrays(
        [pa.array(values, kind) for values, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
    )


@dataclass
class OracleLog:
    """One log: what is in it by its writer, and how its ids go on."""

    name: str
    steps: Sequence[int]
    next_txid: int
    records: list[Record] = field(default_factory=list)
    written: int = 0
    """Records since the log was created; `records` loses those that were truncated."""
    writer: AsyncLogWriter | None = None


class OracleLogs:
    """The logs of one scene, on one connection. Everything that is drawn comes from `rng`."""

    def __init__(self, uri: str, rng: random.Random) -> None:
        self._rng = rng
        self._mark = uuid.uuid4().hex[:8]
        self._runtime = Runtime("oracle")
        self._namespace = self._runtime.run(AsyncNamespace.open(uri))
        self.logs: dict[str, OracleLog] = {}

    @property
    def prefix(self) -> str:
        """Return how the names of all logs of this scene begin."""
        return f"oracle_{self._mark}_"

    def create(self) -> str:
        """Create a log: mostly of a few segments, the last of which may stay open; one of six is empty."""
        name = f"{self.prefix}{len(self.logs)}"
        self._runtime.run(self._namespace.create_log(name))
        self.logs[name] = OracleLog(name, self._rng.choice(_STEPS), self._rng.choice(_BEGINNINGS))
        for _ in range(self._rng.choice((0, 1, 1, 2, 3, 4))):
            self.append(name)
        return name

    def append(self, name: str) -> None:
        """Append some records in a few entries; then the segment is completed, or stays open."""
        log = self.logs[name]
        if self._rng.random() < 0.06:
            log.next_txid = max(log.next_txid, self._rng.choice((LAST_TIME_MS - 3, LAST_TIME_MS + 1, 2**62)))
        self._runtime.run(self._append(log, self._rng.choice((1, 2, 3)), keep_open=self._rng.random() < 0.35))

    def values(self, log: OracleLog, count: int) -> list[tuple[int, bytes]]:
        """Draw the next records of a log: ids that rise, or stay; payloads of text, of any bytes, of nothing."""
        found = []
        for _ in range(count):
            kind = self._rng.random()
            value = b"%d" % self._rng.randrange(200) if kind < 0.8 else self._rng.randbytes(self._rng.randrange(12))
            found.append((log.next_txid, value))
            log.next_txid += self._rng.choice(log.steps)
        return found

    def truncate(self, name: str) -> None:
        """Truncate a log somewhere among its records."""
        log = self.logs[name]
        if not log.records:
            return
        at = self._rng.choice(log.records)
        begins = self._runtime.run(self._truncate(log, DLSN(at.segment, at.entry, at.slot)))
        log.records = [one for one in log.records if DLSN(one.segment, one.entry, one.slot) >= begins]

    def create_again(self, name: str) -> None:
        """Delete a log, and create another one of its name."""
        log = self.logs[name]
        self._runtime.run(self._close_writer(log))
        self._runtime.run(self._namespace.delete_log(name))
        self._runtime.run(self._namespace.create_log(name))
        log.records, log.written, log.next_txid = [], 0, self._rng.choice(_BEGINNINGS)
        self.append(name)

    def appended_by_spark(self, name: str, written: Sequence[tuple[int, bytes]]) -> None:
        """Take over what Spark's sink has just appended; records of one id may have any order."""
        log = self.logs[name]
        found = self._runtime.run(self._behind(log, len(written)))
        assert sorted((one.transaction_id, one.value) for one in found) == sorted(written)
        log.records += found
        log.written += len(found)

    def free(self, name: str) -> None:
        """Complete the open segment, so that another writer gets the log."""
        self._runtime.run(self._close_writer(self.logs[name]))

    def delete_all(self) -> None:
        """Delete the logs, so that the cluster does not grow with the scenes; end the connection."""
        for log in self.logs.values():
            self._runtime.run(self._close_writer(log))
            self._runtime.run(self._namespace.delete_log(log.name))
        self._runtime.run(self._namespace.close())
        self._runtime.close()

    # ------------------------------------------------------------------ on the loop

    async def _append(self, log: OracleLog, entries: int, *, keep_open: bool) -> None:
        if log.writer is None:
            log.writer = await (await self._namespace.open_log(log.name)).open_writer()
        for _ in range(entries):
            new = self.values(log, self._rng.choice((1, 2, 3, 5, 8)))
            payloads = pa.array([value for _, value in new], type=pa.binary())
            stored = await log.writer.write_batch(np.array([txid for txid, _ in new], dtype=np.int64), payloads)
            places = [(one.dlsn.lssn, one.dlsn.entry_id, slot) for one in stored for slot in range(one.record_count)]
            for place, (txid, value) in zip(places, new, strict=True):
                log.records.append(Record(log.name, *place, log.written, txid, time_of(txid), value))
                log.written += 1
        await log.writer.commit()
        if not keep_open:
            await self._close_writer(log)

    async def _close_writer(self, log: OracleLog) -> None:
        writer, log.writer = log.writer, None
        if writer is not None:
            await writer.close()

    async def _truncate(self, log: OracleLog, at: DLSN) -> DLSN:
        await self._close_writer(log)
        async with await self._namespace.open_log(log.name) as opened:
            return await opened.truncate(at)

    async def _behind(self, log: OracleLog, count: int) -> list[Record]:
        last = log.records[-1] if log.records else None
        found: list[Record] = []
        async with await self._namespace.open_log(log.name) as opened:
            start = DLSN(1, 0, 0) if last is None else DLSN(last.segment, last.entry, last.slot + 1)
            async with await opened.open_reader(start) as reader:
                while len(found) < count:
                    for one in await reader.read_bulk(count - len(found)):
                        place = (one.dlsn.lssn, one.dlsn.entry_id, one.dlsn.slot_id)
                        row = Record(log.name, *place, one.sequence_id, one.txid, time_of(one.txid), one.payload)
                        found.append(row)
        return found
