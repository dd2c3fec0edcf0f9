"""Copying a run of segments: ledgers into one object, and the object read back.

`copy_segments` streams: entries come from the storage nodes once each, a thread makes the file's bytes of them, and
these go to the store as they come. What is held in memory is the reader's window, one batch of entries and one row
group, whatever the segments' size. A run without user records has no file: nothing is created at the store then.

`read_back` reads the whole object as any reader would, from the store, each byte once: its SHA-256, every row group
with its checksums and digest, the index; and compares with what the writer counted while it wrote. What it compares
with never comes from the object itself.

Fault model: everything may fail at any moment, and what is half done is the sweep's. Whether a commit was applied is
not asked of its answer: whoever reads back finds the object whole, or not. It must never overwrite an object, and never
say of one that it is right because a write of it ended well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from dlspark.core.cold.files.footer import FileIdentity
from dlspark.core.cold.files.verifying import FileVerifier, WholeFile
from dlspark.core.cold.files.writing import ColdFileWriter, WrittenFile
from dlspark.core.cold.reading.file_reader import ColdFileReader, KnownParts
from dlspark.core.cold.reading.places import FilePlaces
from dlspark.core.services import Services
from dlspark.errors import DamagedColdFileError
from dlspark.objects.errors import ObjectExistsError, ObjectOutcomeUnknownError, unavailable_error
from dlspark.objects.store import ObjectStore, ObjectWriter
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.cold_places import ColdFile
from metadata.distributedlog.cold_units import ColdAttempt, ColdLog
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.distributedlog.segments import SegmentMetadata
from metadata.foundation import fault_points

T = TypeVar("T")

BATCH_BYTES: Final = 4 << 20
"""Bytes of entries that are handed to the thread at once."""


@dataclass(frozen=True, slots=True)
class CopiedRun:
    """What was copied: the counts of the writer, and the file that came of it; None for a run without user records."""

    written: WrittenFile
    file: ColdFile | None


async def copy_segments(
    services: Services,
    password: bytes,
    log: str,
    cold: ColdLog,
    attempt: ColdAttempt,
    segments: Sequence[SegmentMetadata],
    store: ObjectStore,
) -> CopiedRun:
    """Copy the segments into the attempt's object. Raises what reading ledgers raises, InvalidEntryError and
    SegmentStateError for segments that are not what the list says, and the store's errors; then there may be an object,
    an open upload, or nothing."""
    declared = await SchemaStore(services.logs).get(log)
    declaration = None if declared is None else Declaration.decode(declared.data, f"schema/{declared.id}")
    identity = FileIdentity(cold.namespace_id, cold.log_id, log, attempt.attempt)
    upload = _FileUpload(store, attempt.url)
    writer = ColdFileWriter(upload.take, identity, declaration)
    try:
        for segment in segments:
            await _copy_segment(services, password, segment, writer, upload)
            fault_points.reach("cold.segment-copied")
        written = await _in_thread(writer.finish)
        if not written.records:
            await upload.abort()
            return CopiedRun(written, None)
        await upload.commit()
    except BaseException:
        await upload.abort()
        raise
    return CopiedRun(written, _cold_file(attempt, written))


def _cold_file(attempt: ColdAttempt, written: WrittenFile) -> ColdFile:
    return ColdFile(
        url=attempt.url,
        bytes=written.bytes,
        sha256=written.sha256,
        digest=written.digest,
        rows=written.rows,
        entries=written.entries,
        options=dict(attempt.options),
        schema_version=written.schema_version,
    )


async def _copy_segment(
    services: Services, password: bytes, segment: SegmentMetadata, writer: ColdFileWriter, upload: _FileUpload
) -> None:
    # Without recovery: the ledger of a completed segment is closed, and copying must not fence a writer (I5).
    ledger = await services.ledgers.open(segment.ledger_id, password=password, recover=False)
    try:
        length = (await services.ledger_store.read(segment.ledger_id)).value.length
        writer.begin_segment(segment, length)
        if segment.last_entry >= 0:
            batch: list[tuple[int, memoryview]] = []
            size = 0
            async with aclosing(ledger.entries(0, segment.last_entry)) as entries:
                async for entry in entries:
                    batch.append((entry.entry_id, entry.payload))
                    size += len(entry.payload)
                    if size >= BATCH_BYTES:
                        await _add(writer, batch, upload)
                        batch, size = [], 0
            if batch:
                await _add(writer, batch, upload)
        await _in_thread(writer.end_segment)
        await upload.send(writer.records)
    finally:
        await ledger.close()


async def _add(writer: ColdFileWriter, batch: Sequence[tuple[int, memoryview]], upload: _FileUpload) -> None:
    await _in_thread(partial(writer.add, batch))
    await upload.send(writer.records)


class _FileUpload:
    """The bytes of one file on their way to the store; the object is begun with the first user record."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url
        self._waiting: list[bytes] = []
        self._writer: ObjectWriter | None = None
        self._committed = False

    def take(self, data: bytes) -> None:
        """Keep bytes until they are sent. Called in the thread that makes them."""
        self._waiting.append(data)

    async def send(self, records: int) -> None:
        """Give the store what was made. Nothing while there are no records: there may never be any."""
        if records and self._waiting:
            if self._writer is None:
                self._writer = await self._store.create(self._url)
            data, self._waiting = b"".join(self._waiting), []
            await self._asked(self._writer, data)

    async def commit(self) -> None:
        """Make the object, as far as can be told: an answer that was lost is as good as one that came."""
        await self.send(1)
        fault_points.reach("cold.written")
        self._committed = True
        try:
            if self._writer is not None:
                await self._writer.commit()
        except (ObjectOutcomeUnknownError, ObjectExistsError):
            # It may be there (the name is ours alone): reading back shows it. Only an answer was lost: an object that
            # was made and is not durable is another error, for reading back would show that one, too.
            pass

    async def abort(self) -> None:
        """Leave nothing, unless the object may be there already."""
        if self._writer is not None and not self._committed:
            await self._writer.abort()

    async def _asked(self, writer: ObjectWriter, data: bytes) -> None:
        try:
            await writer.write(data)
        except ObjectOutcomeUnknownError as error:
            # Of a part, that is: there is no object, and this upload is given up.
            raise unavailable_error(self._url, "take a part of an object", error.message) from error


# ------------------------------------------------------------------ reading back


async def read_back(store: ObjectStore, run: CopiedRun) -> None:
    """Read the object from the store and compare. Raises ObjectNotFoundError, DamagedColdFileError for one that is not
    what was written, and the store's errors where it cannot be read."""
    file, written = run.file, run.written
    if file is None:
        return
    info = await store.head(file.url)
    if info.bytes != file.bytes:
        raise _difference_error(file.url, "bytes", info.bytes, file.bytes)
    whole = await read_whole(store, file)
    groups = whole.footer.row_groups
    for what, there, wanted in (
        ("a SHA-256", whole.sha256, written.sha256),
        ("a digest of its records", whole.digest, written.digest),
        ("records", whole.records, written.records),
        ("rows", whole.rows, written.rows),
        ("entries", whole.entries, written.entries),
        ("segments", tuple(one.cold for one in whole.footer.segments), written.segments),
        ("a first record", groups[0].first if groups else None, written.first),
        ("a last record", groups[-1].last if groups else None, written.last),
    ):
        if there != wanted:
            raise _difference_error(file.url, what, there, wanted)


async def read_whole(store: ObjectStore, file: ColdFile) -> WholeFile:
    """Read a file of a known size whole, each byte once, as a reader would, and check all that it says of itself.
    Raises DamagedColdFileError, and the store's errors."""
    known = KnownParts()
    try:
        verifier = FileVerifier(await ColdFileReader(FilePlaces.only(file.url, store), file, known).footer())
    finally:
        await known.close()
    for part in verifier.parts:
        (data,) = await store.read(file.url, [part])
        await _in_thread(partial(verifier.take, data))
    return await _in_thread(verifier.finish)


def _difference_error(url: str, what: str, there: object, wanted: object) -> DamagedColdFileError:
    return DamagedColdFileError(f"it has {what} of {there}, and {wanted} was written", url=url)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
