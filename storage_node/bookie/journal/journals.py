"""All journals of a node as one: a ledger's records go to the journal with the number `ledger id % journals`.

Each has its own directory, files, batches, syncs and mark. What a ledger's records promise each other (its key before
its entries, a fence behind the adds that came before it) needs one journal only, and a ledger never changes its
journal: the number of journals is fixed by the node's cookie, by every journal file's header and by the checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from metadata.foundation.errors import CorruptDataError
from storage_node.bookie.disk.resources import NoSpaceError, lacks_descriptors
from storage_node.bookie.journal.batches import Acknowledge
from storage_node.bookie.journal.files import JournalFile, JournalFiles, JournalOwner
from storage_node.bookie.journal.places import PlacedRecords
from storage_node.bookie.journal.replay import JournalMark, JournalReader
from storage_node.bookie.journal.writer import Journal, JournalledLogs, JournalSupervisor
from storage_node.edge import Disk
from storage_node.settings.bookie import MIB, BookieSettings


def owners(tag: bytes, count: int) -> list[JournalOwner]:
    """Return what identifies each of a node's journals, in order."""
    return [JournalOwner(tag, number, count) for number in range(count)]


def open_readers(disk: Disk, directories: Sequence[str], tag: bytes, placed: PlacedRecords) -> list[JournalReader]:
    """Return a reader for each journal. Raises JournalCorruptError where a file is another's."""
    readers = [
        JournalReader(disk, directory, owner, placed)
        for directory, owner in zip(directories, owners(tag, len(directories)), strict=True)
    ]
    for reader in readers:
        reader.check_owner()
    return readers


def check_marks(marks: Sequence[JournalMark], directories: Sequence[str]) -> None:
    """Raise CorruptDataError unless the checkpoint speaks of as many journals as there are."""
    if len(marks) != len(directories):
        raise CorruptDataError(
            f"the checkpoint knows {len(marks)} journals, journalDirectories names {len(directories)}",
            advice="The number of journals cannot change while a node holds data; nothing was changed",
            path=", ".join(directories),
        )


def _first_file(files: JournalFiles, reader: JournalReader, mark: JournalMark) -> JournalFile:
    """Return a file behind all that exist; without space, one of them that holds nothing, used again. Raises
    OSError."""
    file_id = max([0, *reader.file_ids, mark.file_id]) + 1
    try:
        begun = files.open_next(file_id)
    except NoSpaceError:
        # Only files without any batch, and never the mark's own: the next start must find what no checkpoint covers
        # (I11).
        unused = reader.unused(mark)
        if not unused:
            raise
        files.spare(unused[0])
        reader.file_ids.remove(unused[0])
        begun = files.open_next(file_id)
    reader.file_ids.append(file_id)  # it stays where another journal finds no space, and this is tried again
    return begun


class Journals:
    """The writers. Calls concern all journals, unless `of` names one."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self.journals = tuple(journals)
        self._count = len(self.journals)

    @classmethod
    async def begin(
        cls,
        disk: Disk,
        settings: BookieSettings,
        tag: bytes,
        readers: Sequence[JournalReader],
        marks: Sequence[JournalMark],
        supervisor: JournalSupervisor,
        logs: JournalledLogs,
    ) -> Journals:
        """Begin a new file in each directory, behind all that exist. A new node has no `marks`. Raises OSError."""
        begun: list[Journal] = []
        try:
            for reader, owner in zip(readers, owners(tag, len(readers)), strict=True):
                mark = marks[owner.number] if marks else JournalMark(0, 0, 0)
                files = JournalFiles(
                    disk,
                    reader.directory,
                    owner,
                    step_bytes=settings.journal_pre_alloc_size_mb * MIB,
                    max_bytes=settings.journal_max_size_mb * MIB,
                    spares=settings.journal_max_backups,
                )
                journal = Journal(
                    disk,
                    files,
                    await disk.submit("files", partial(_first_file, files, reader, mark)),
                    last_sequence=max(reader.last_sequence, mark.sequence),
                    supervisor=supervisor,
                    logs=logs,
                    pool="journal" if owner.number == 0 else f"journal-{owner.number}",
                    gathers=owner.count > 1,
                    # A journal that is written by the loop holds up all the others.
                    in_place_s=settings.journal_in_place_micros / 1e6 if owner.count == 1 else 0.0,
                    once_from=settings.journal_write_once_from_bytes,
                    once_always=settings.journal_write_once_always,
                )
                begun.append(journal)
        except BaseException:
            for journal in begun:
                await journal.close(abandon=True)
            raise
        return cls(begun)

    def of(self, ledger_id: int) -> Journal:
        """Return the journal of a ledger."""
        return self.journals[ledger_id % self._count]

    def send_off(self) -> None:
        """Send off what was held, in every journal; see `Journal.extend`."""
        for journal in self.journals:
            journal.send_off()

    def barrier(self, acknowledge: Acknowledge) -> None:
        """Call `acknowledge` once everything appended so far is durable in every journal."""
        left = self._count

        def reached() -> None:
            nonlocal left
            left -= 1
            if not left:
                acknowledge()

        for journal in self.journals:
            journal.barrier(reached)

    def mark(self) -> tuple[JournalMark, ...]:
        """End every journal's batch here: what was appended so far is up to the marks, what follows is behind them."""
        return tuple(journal.mark() for journal in self.journals)

    async def durable(self) -> None:
        """Wait until everything appended so far is durable. Raises what stopped a journal."""
        for journal in self.journals:
            await journal.durable()

    async def landed(self) -> None:
        """Wait until everything sent off so far is durable. Raises what stopped a journal."""
        for journal in self.journals:
            await journal.landed()

    async def retire(self, marks: Sequence[JournalMark]) -> None:
        """Retire older files: a checkpoint with these marks is in every ledger directory (D7). Raises OSError."""
        for journal, mark in zip(self.journals, marks, strict=True):
            await journal.retire(mark)

    async def try_again(self) -> None:
        """Go on in every journal that waits for space, if there is some now."""
        for journal in self.journals:
            await journal.try_again()

    @property
    def error(self) -> BaseException | None:
        """The error that stopped a journal, and with it the node."""
        return next((journal.error for journal in self.journals if journal.error is not None), None)

    @property
    def full(self) -> bool:
        """A journal has no space to go on in: the node must take no more entries."""
        return any(journal.full for journal in self.journals)

    @property
    def wants_descriptors(self) -> bool:
        """True while a journal waits for file descriptors, not for space."""
        return any(journal.full and lacks_descriptors(journal.wanting) for journal in self.journals)

    @property
    def stalled(self) -> bool:
        """Records wait for space, and the clients that sent them for an answer."""
        return any(journal.stalled for journal in self.journals)

    @property
    def commits(self) -> int:
        """Batches made durable since the start."""
        return sum(journal.commits for journal in self.journals)

    async def close(self, *, abandon: bool = False) -> None:
        """Wait for what is under way, and close the files; see `Journal.close`."""
        await asyncio.gather(*(journal.close(abandon=abandon) for journal in self.journals))
