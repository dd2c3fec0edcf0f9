"""A million records of a real writer, with all that stands between records: by the mover's own command into files, and
by `dlspark cold restore` into ledgers again. Records and entry ids are the same at each stop."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from helpers.cold.moved_logs import all_ledgers

from dlspark.core.codec.entries import CODEC_MASK, ENVELOPE, Compression, decode_entry
from dlspark.core.codec.records import MAX_PAYLOAD_BYTES
from dlspark.core.codec.vector_decoding import decode_entries
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.sandbox.processes import child_environment
from dlspark.sandbox.sandbox import Sandbox
from metadata.distributedlog.segments import SegmentMetadata

pytestmark = [pytest.mark.processes, pytest.mark.torture, pytest.mark.long]

RECORDS = 1_000_000
SEGMENTS = 8
LOG = "million"
LARGEST = MAX_PAYLOAD_BYTES
PRODUCER = "a producer"


@dataclass(frozen=True)
class StoredSegment:
    """What is in a segment's ledger?

    Args:
        records: user records.
        digest: of them, and of where they are.
        entries: the ids of all entries.
    """

    lssn: int
    records: int
    digest: str
    entries: tuple[int, ...]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox", nodes=1) as running:
        yield running


class MillionRecords:
    """Writes segments of many records, short ones mostly, and here and there what is rare."""

    def __init__(self, seed: str) -> None:
        self._dice = random.Random(seed)
        self._noise = self._dice.randbytes(2 << 20)
        self._txid = self._dice.randrange(1 << 40)
        self._sequence = 0
        self._epoch: int | None = None
        self.kinds: Counter[str] = Counter()

    def _payload(self, largest: int) -> bytes:
        at = self._dice.randrange(1 << 20)
        return self._noise[at : at + int(largest * self._dice.random() ** 3)]

    def _next_txid(self) -> int:
        self._txid += self._dice.randrange(3)
        return self._txid

    async def segment(self, writer: AsyncLogWriter, records: int) -> None:
        """Write so many records."""
        self._epoch = await writer.begin_epoch(PRODUCER)
        self._sequence = 0
        left = records - await self._large(writer, records, LARGEST)
        while left:
            kind, write = self._dice.choice(
                (
                    ("columns", self._columns),
                    ("one by one", self._singles),
                    ("record sets", self._record_set),
                    ("producers", self._produced),
                    ("large", self._large),
                    ("control", self._control),
                )
                if self._dice.random() < 0.3
                else (("columns", self._columns),)
            )
            await writer.wait_for_room()
            written = await write(writer, left)
            self.kinds[kind] += max(1, written)
            left -= written

    async def _columns(self, writer: AsyncLogWriter, most: int) -> int:
        count = min(most, self._dice.randrange(1, 600))
        txids = np.cumsum([self._next_txid() * (n == 0) + self._dice.randrange(3) for n in range(count)])
        self._txid = int(txids[-1])
        await writer.write_batch(
            txids.astype(np.int64), pa.array([self._payload(300) for _ in range(count)], pa.binary())
        )
        return count

    async def _singles(self, writer: AsyncLogWriter, most: int) -> int:
        count = min(most, self._dice.randrange(1, 30))
        futures = [writer.write(self._next_txid(), self._payload(5_000)) for _ in range(count)]
        await writer.flush()
        assert all(one.result() is not None for one in futures)
        return count

    async def _record_set(self, writer: AsyncLogWriter, most: int) -> int:
        count = min(most, self._dice.randrange(1, 40))
        payloads = [self._payload(400) for _ in range(count)]
        writer.write_record_set(self._next_txid(), payloads, self._dice.choice(("none", "lz4")))
        await writer.flush()
        return count

    async def _produced(self, writer: AsyncLogWriter, most: int) -> int:
        count = min(most, self._dice.randrange(1, 20))
        assert self._epoch is not None
        records = [(self._next_txid(), self._payload(300)) for _ in range(count)]
        appended = writer.append(records, producer=PRODUCER, epoch=self._epoch, sequence=self._sequence)
        await writer.flush()
        await appended
        self._sequence += 1
        return count

    async def _large(self, writer: AsyncLogWriter, most: int, size: int | None = None) -> int:
        if self.kinds["large"] > 60 and size is None:
            return 0
        if size is None:
            size = self._dice.choice((0, LARGEST, LARGEST - 1, self._dice.randrange(LARGEST)))
        future = writer.write(self._next_txid(), self._noise[:size])
        await writer.flush()
        await future
        return min(most, 1)

    async def _control(self, writer: AsyncLogWriter, _most: int) -> int:
        await (writer.heartbeat() if self._dice.random() < 0.5 else writer.commit())
        return 0


async def stored(namespace: AsyncNamespace, segment: SegmentMetadata, kinds: Counter[str]) -> StoredSegment:
    """Read a segment's ledger, entry by entry, and count what is in it."""
    ledger = await namespace.ledgers.open(segment.ledger_id, recover=False)
    digest, ids, records = RecordDigest(), [], 0
    batch: list[tuple[int, memoryview]] = []

    def take() -> int:
        decoded = decode_entries(
            batch,
            lssn=segment.lssn,
            start_sequence_id=segment.effective_start_sequence_id,
            enveloped=segment.enveloped,
        )
        digest.update(RecordColumns.of(decoded))
        lengths = pc.binary_length(decoded.payload).to_numpy()
        kinds["empty records"] += int((lengths == 0).sum())
        kinds["largest records"] += int((lengths == LARGEST).sum())
        batch.clear()
        return len(decoded)

    async for entry in ledger.entries(0, segment.last_entry):
        payload = bytes(entry.payload)
        ids.append(entry.entry_id)
        batch.append((entry.entry_id, memoryview(payload)))
        count_kinds(segment, entry.entry_id, payload, kinds)
        if len(batch) == 200:
            records += take()
    records += take()
    await ledger.close()
    return StoredSegment(segment.lssn, records, digest.hexdigest(), tuple(ids))


def count_kinds(segment: SegmentMetadata, entry_id: int, payload: bytes, kinds: Counter[str]) -> None:
    """Count what an entry has, for the test to know that all of it was there."""
    assert segment.enveloped
    kinds["entries"] += 1
    kinds["compressed entries"] += ENVELOPE.unpack_from(payload)[1] & CODEC_MASK != Compression.NONE
    if len(payload) < 400:
        decoded = decode_entry(
            memoryview(payload),
            lssn=segment.lssn,
            entry_id=entry_id,
            start_sequence_id=segment.effective_start_sequence_id,
            enveloped=segment.enveloped,
        )
        kinds["control records"] += sum(one.is_control for one in decoded)


def command(sandbox: Sandbox, files: Path, *words: str) -> str:
    """Run `dlspark cold` in a process of its own."""
    sets = [f"--set=coldStoragePath={files}", "--set=coldHotRetentionSeconds=0"]
    done = subprocess.run(
        [sys.executable, "-m", "dlspark.cli", "cold", *words, f"--uri={sandbox.uri}", *sets],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout[-2_000:], done.stderr[-2_000:])
    return done.stdout


async def read_digest(namespace: AsyncNamespace, records: int) -> str:
    """Return the digest of the first records that a reader gets, one after the other."""
    found = hashlib.sha256()
    async with await namespace.open_log(LOG) as log, await log.open_reader("earliest") as reader:
        left = records
        while left:
            for one in await reader.read_bulk(min(left, 5_000)):
                found.update(b"%d %d %d %d " % (*one.dlsn, one.txid))
                found.update(one.payload)
                left -= 1
    return found.hexdigest()


@pytest.mark.timeout(7_200)
async def test_a_million_records_go_into_files_and_come_back(sandbox, tmp_path, seed):
    files = tmp_path / "files"
    files.mkdir()
    made = MillionRecords(f"{seed}")
    kinds: Counter[str] = Counter()
    async with await AsyncNamespace.open(sandbox.uri) as namespace:
        for number in range(SEGMENTS):
            settings = {"compressionType": ("none", "lz4")[number % 2]}
            async with await namespace.open_log(LOG, settings) as log, await log.open_writer(producers=True) as writer:
                await made.segment(writer, RECORDS // SEGMENTS)
        segments = await namespace.logs_store.hot_segments(LOG)
        before = [await stored(namespace, one, kinds) for one in segments]
        assert sum(one.records for one in before) == RECORDS
        print(dict(made.kinds), dict(kinds), flush=True)
        for kind in ("compressed entries", "control records", "empty records", "largest records"):
            assert kinds[kind], kind
        for kind in ("columns", "one by one", "record sets", "producers", "large", "control"):
            assert made.kinds[kind], kind
        read_before = await read_digest(namespace, RECORDS)

        print(command(sandbox, files, "move", LOG, "--all"), flush=True)
        # The newest completed segment stays hot, and so does what producers were last described in: that a newer
        # segment describes them is known with the one behind it.
        for number in range(2):
            async with await namespace.open_log(LOG) as log, await log.open_writer(producers=True) as writer:
                await writer.begin_epoch(PRODUCER)
                newest = writer.write((1 << 50) + number, b"a newer segment")
                await writer.flush()
                await newest
        print(command(sandbox, files, "move", LOG), flush=True)
        print(command(sandbox, files, "verify", LOG), flush=True)
        hot = [one.lssn for one in await namespace.logs_store.hot_segments(LOG)]
        assert hot == [SEGMENTS + 1, SEGMENTS + 2], command(sandbox, files, "status", LOG)
        assert (await all_ledgers(namespace)).isdisjoint(one.ledger_id for one in segments)
        assert await read_digest(namespace, RECORDS) == read_before

        print(command(sandbox, files, "restore", LOG, "--yes"), flush=True)
        back = (await namespace.logs_store.hot_segments(LOG))[:SEGMENTS]
        assert {one.ledger_id for one in back}.isdisjoint(one.ledger_id for one in segments)
        after = [await stored(namespace, one, Counter()) for one in back]
        assert after == before
        for path in files.rglob("*.parquet"):
            path.unlink()  # what is read now is in ledgers
        assert await read_digest(namespace, RECORDS) == read_before
    print(f"{RECORDS} records, {kinds['entries']} entries: the same in ledgers, in files, and in ledgers again")
