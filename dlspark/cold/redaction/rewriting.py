"""`rewrite_file`: a cold file anew, without the payloads and columns of some records, and read back.

Everything else stays: positions, transaction ids, sequence ids, flags, entries and their slots. The new object has a
name that was never used; it is named by no mark until its caller has put it in the other's place. It is read back whole
before that, and its records compared with the digest that they had while they were written.

Records are read by row groups, and given to the writer in a thread, which waits for each row group and for each piece
that the store takes: so a file takes a few row groups of memory, whatever its size.

Fault model: the process may die anywhere: then there is an object, or an open upload, that nothing names, for the
sweep.
A damaged file is an error with its place: nothing is erased from it in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from dlspark.cold.redaction.selection import RecordSelection
from dlspark.cold.restoring.checking import check_file, read_footer
from dlspark.core.cold.files.digests import RecordColumns, RecordDigest
from dlspark.core.cold.files.footer import FileIdentity, Footer
from dlspark.core.cold.files.row_groups import decode_records
from dlspark.core.cold.files.writing import ColdFileWriter, WrittenFile
from dlspark.errors import DamagedColdFileError
from dlspark.objects.errors import ObjectExistsError, ObjectOutcomeUnknownError, unavailable_error
from dlspark.objects.store import ObjectStore, ObjectWriter
from metadata.foundation.errors import CallerError
from metadata.foundation.tasks import undisturbed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """What came of a file?

    Args:
        url: the new file.
        written: what the writer counted.
        erased: records that were erased now.
    """

    url: str
    written: WrittenFile
    erased: int


async def rewrite_file(
    old: ObjectStore, footer: Footer, new: ObjectStore, url: str, identity: FileIdentity, selection: RecordSelection
) -> RewrittenFile:
    """Write the file of `footer` anew as `url`, without the records that are meant, and read it back.

    Raises DamagedColdFileError for either file, ObjectStoreErrors: then there may be an object, which nothing names.
    """
    upload = await new.create(url)
    try:
        rewriting = _Rewriting(old, footer, upload, url, identity, selection)
        written = await rewriting.run()
    except BaseException:
        await upload.abort()
        raise
    try:
        await upload.commit()
    except (ObjectOutcomeUnknownError, ObjectExistsError):
        # It may be there (the name is ours alone): reading back shows it. Only an answer was lost: an object that was
        # made and is not durable is another error, for reading back would show that one, too.
        pass
    await _read_back(new, url, written, rewriting)
    return RewrittenFile(url, written, rewriting.erased)


async def _read_back(store: ObjectStore, url: str, written: WrittenFile, rewriting: _Rewriting) -> None:
    checked = await check_file(store, await read_footer(store, await store.head(url)))
    for what, there, wanted in (
        ("a SHA-256", checked.sha256, written.sha256),
        ("a digest of its records", checked.digest, rewriting.digest.hexdigest()),
        ("erased records", checked.erased, rewriting.erased + rewriting.erased_before),
    ):
        if there != wanted:
            raise DamagedColdFileError(f"it has {what} of {there}, and {wanted} was written", url=url)


class _Rewriting:
    """One file on its way: a thread makes the new one of row groups that the event loop fetches for it."""

    def __init__(
        self,
        store: ObjectStore,
        footer: Footer,
        upload: ObjectWriter,
        url: str,
        identity: FileIdentity,
        selection: RecordSelection,
    ) -> None:
        self._store = store
        self._footer = footer
        self._upload = upload
        self._url = url
        self._identity = identity
        self._selection = selection
        self._loop = asyncio.get_running_loop()
        self._given_up = False
        self._held: tuple[int, RecordColumns] | None = None
        self.digest = RecordDigest()
        """Of all records, as they are to be in the new file."""
        self.erased = 0
        self.erased_before = 0

    async def run(self) -> WrittenFile:
        """Make the file, up to the commit."""
        working = self._loop.run_in_executor(None, self._work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            # The thread waits for this loop: it must have ended before the loop may.
            self._given_up = True
            await undisturbed(_settled(working))
            raise

    # ------------------------------------------------------------------ in the thread

    def _work(self) -> WrittenFile:
        writer = ColdFileWriter(self._take, self._identity, self._footer.declaration)
        for segment in self._footer.segments:
            groups = self._footer.groups_of(segment.lssn, 0, len(segment.entries) - 1) if segment.rows else range(0)
            writer.copy_segment(self._footer, segment.lssn, self._records(groups))
        return writer.finish()

    def _records(self, groups: range) -> Iterator[RecordColumns]:
        for index in groups:
            # A row group may have the end of one segment and the beginning of the next.
            if self._held is None or self._held[0] != index:
                self._held = (index, self._erased(index))
            yield self._held[1]

    def _erased(self, index: int) -> RecordColumns:
        footer = self._footer
        ranges = footer.ranges(index, footer.record_columns(index))
        found = self._wait(self._store.read(footer.url, ranges))
        records = decode_records(footer, index, dict(zip(ranges, found, strict=True)))
        group = footer.row_groups[index]
        self.erased_before += int(records.value.null_count)
        if self._selection.may_have(group.first, group.last, group.lowest_txid):
            chosen = self._selection.of(records).chosen
            self.erased += int(chosen.sum())
            records = records.erased(chosen)
        self.digest.update(records)
        return records

    def _take(self, data: bytes) -> None:
        try:
            self._wait(self._upload.write(bytes(data)))
        except ObjectOutcomeUnknownError as error:
            # Of a part, that is: there is no object, and this upload is given up.
            raise unavailable_error(self._url, "take a part of an object", error.message) from error

    def _wait(self, asked: Coroutine[Any, Any, T]) -> T:
        """Have the event loop do what takes time, and wait for it."""
        if self._given_up:
            asked.close()
            raise CallerError("the file that was rewritten was given up")
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()


async def _settled(working: asyncio.Future[WrittenFile]) -> None:
    await asyncio.wait([working])
    if not working.cancelled():
        working.exception()
