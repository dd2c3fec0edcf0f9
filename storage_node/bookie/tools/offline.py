"""A node's directories, read and not changed: from outside at any time, from inside while the node does not run.

`directories_status` is the outside: what is there, how full it is, whether a node holds the lock. `Offline` is the
inside, locked: what is seen is what the node would have after its next start, which is the newest checkpoint, the logs
that it names, and the journals' records behind its marks. Nothing is repaired on the way; see `verify` for what is
damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

from metadata.bookkeeper.bookies import Cookie
from metadata.foundation.errors import CorruptDataError
from storage_node.bookie.disk.cookies import COOKIE_FILE
from storage_node.bookie.disk.records import (
    ALIGN,
    ENTRY,
    HEADER_BYTES,
    LAC,
    LEDGER,
    Record,
    parse_ledger_body,
    read_record,
)
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.journal.files import SPARE_PREFIX, node_tag, parse_file_name
from storage_node.bookie.journal.journals import check_marks, open_readers
from storage_node.bookie.node.identity import was_read_only
from storage_node.bookie.store.checkpoints import Checkpoint
from storage_node.bookie.store.contents import Ledger
from storage_node.bookie.store.log_files import parse_log_name
from storage_node.bookie.store.opening import OpenedLogs, index_logs, read_checkpoint
from storage_node.bookie.store.placed import PlacedLogs
from storage_node.edge import Disk, DiskFile
from storage_node.errors import BookieConfigurationError, NoSuchEntryError, NoSuchLedgerError
from storage_node.protocol.digests import ENTRY_IDS, LAC_HEADER
from storage_node.settings.bookie import BookieSettings

logger = logging.getLogger(__name__)

LOCK_NAME = "lock"
IN_JOURNAL = 0
"""Stands for an entry's log where the entry is in the journal only; logs are numbered from 1."""


class ReadOnlyDisk(SystemDisk):
    """The real disk, for readers: what they would repair on the way is left as it is."""

    def write_file(self, path: str, data: bytes) -> None:
        """Write nothing; log that the node would do so."""
        logger.info("%s would be written anew by the node", path)


@dataclass(slots=True)
class Snapshot:
    """Which ledgers does a stopped node hold?"""

    checkpoint: Checkpoint | None
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    logs: OpenedLogs = field(default_factory=OpenedLogs)


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """One ledger as the node holds it; `ranges` are contiguous entry ids, (first, last)."""

    ledger_id: int
    entries: int
    bytes: int
    fenced: bool
    last_add_confirmed: int
    ranges: tuple[tuple[int, int], ...]


class Offline:
    """The directories of one node, locked while the context lasts.

    Raises BookieConfigurationError where a directory is missing, or the node runs.
    """

    def __init__(self, settings: BookieSettings, disk: Disk | None = None) -> None:
        self.settings = settings
        self.disk: Disk = disk or ReadOnlyDisk()
        self.journals = [f"{directory}/current" for directory in settings.journal_directories]
        self.ledgers = [f"{directory}/current" for directory in settings.ledger_directories]
        self._locks: list[DiskFile] = []

    @property
    def directories(self) -> list[str]:
        """The `current` folders of all directories, each once."""
        return list(dict.fromkeys([*self.journals, *self.ledgers]))

    def __enter__(self) -> Offline:
        try:
            for directory in self.directories:
                self._lock(directory.rpartition("/")[0])
        except BaseException:
            self._unlock()
            raise
        return self

    def _lock(self, directory: str) -> None:
        try:
            self._locks.append(self.disk.lock(f"{directory}/{LOCK_NAME}"))
        except FileNotFoundError:
            raise BookieConfigurationError("there is no such directory", path=directory) from None
        except BlockingIOError:
            raise BookieConfigurationError(
                "the node runs, or another tool does", advice="Stop it first; nothing was done", path=directory
            ) from None

    def _unlock(self) -> None:
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unlock()

    def cookie(self) -> Cookie:
        """Return the cookie, which says whose directories these are. Raises CorruptDataError where none of them says
        so.
        """
        for directory in self.directories:
            path = f"{directory}/{COOKIE_FILE}"
            data = self.disk.read_file(path)
            if data is not None:
                return Cookie.decode(data, path)
        raise CorruptDataError(
            f"no directory has a file {COOKIE_FILE}: no node has ever run here, or it was formatted",
            path=", ".join(self.directories),
        )

    @property
    def tag(self) -> bytes:
        """The tag that its journal files bear, from the cookie. Raises what `cookie` raises."""
        cookie = self.cookie()
        return node_tag(cookie.bookie_id, cookie.instance_id)

    # ------------------------------------------------------------------------------------ contents

    def load(self) -> Snapshot:
        """Return what the node holds. Raises JournalCorruptError, CorruptDataError or OSError."""
        found = read_checkpoint(self.disk, self.ledgers)
        if found is None:
            return Snapshot(None)
        checkpoint, ledgers = found
        check_marks(checkpoint.marks, self.journals)
        snapshot = Snapshot(checkpoint, ledgers, index_logs(self.disk, self.ledgers, checkpoint, ledgers))
        for record in self.journal_records(checkpoint):
            _apply(snapshot.ledgers, record)
        return snapshot

    def journal_records(self, checkpoint: Checkpoint) -> Iterator[Record]:
        """Yield the records of all journals behind the checkpoint. Raises JournalCorruptError."""
        readers = open_readers(self.disk, self.journals, self.tag, PlacedLogs(self.disk, self.ledgers).look())
        for reader, mark in zip(readers, checkpoint.marks, strict=True):
            if not checkpoint.clean or reader.goes_beyond(mark):
                yield from reader.replay(mark)

    def summaries(self) -> list[LedgerSummary]:
        """Return every ledger, by id."""
        return [_summary(ledger) for _, ledger in sorted(self.load().ledgers.items())]

    def read_entry(self, ledger_id: int, entry_id: int, snapshot: Snapshot | None = None) -> bytes:
        """Return an entry as its client sent it; -1 is the last one. `snapshot`: what `load` gave, to look up many.

        Raises NoSuchLedgerError, NoSuchEntryError; CorruptDataError where it is damaged; OSError.
        """
        snapshot = snapshot or self.load()
        ledger = snapshot.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError("the node does not hold this ledger", ledger_id=ledger_id)
        entry_id = ledger.index.last if entry_id == -1 else entry_id
        place = ledger.index.get(entry_id)
        if place is None:
            raise NoSuchEntryError("the node does not hold this entry", ledger_id=ledger_id, entry_id=entry_id)
        log_id, at, size = place
        if log_id == IN_JOURNAL and snapshot.checkpoint is not None:
            found = b""
            for record in self.journal_records(snapshot.checkpoint):
                if record.kind == ENTRY and (record.ledger_id, record.entry_id) == (ledger_id, entry_id):
                    found = bytes(record.body)
            return found
        return self._read_from_log(snapshot.logs.paths[log_id], at * ALIGN, size, ledger_id, entry_id)

    def _read_from_log(self, path: str, offset: int, size: int, ledger_id: int, entry_id: int) -> bytes:
        file = self.disk.open(path)
        try:
            body = read_record(memoryview(file.read_at(offset, size)), ledger_id, entry_id)
        finally:
            file.close()
        if body is None:
            raise CorruptDataError(
                f"the entry is damaged at offset {offset}", ledger_id=ledger_id, entry_id=entry_id, path=path
            )
        return bytes(body)


def _apply(ledgers: dict[int, Ledger], record: Record) -> None:
    """Apply what a record of the journal changes."""
    ledger = ledgers.get(record.ledger_id)
    if ledger is None:
        ledger = ledgers[record.ledger_id] = Ledger(record.ledger_id)
    if record.kind == ENTRY:
        ledger.index.put(record.entry_id, IN_JOURNAL, 0, record.size)
        ledger.raise_lac(ENTRY_IDS.unpack_from(record.body)[2])
    elif record.kind == LEDGER:
        ledger.master_key, fenced = parse_ledger_body(record.body)
        ledger.fenced = ledger.fenced or fenced
    elif record.kind == LAC:
        ledger.raise_lac(LAC_HEADER.unpack_from(record.body)[1])


def _summary(ledger: Ledger) -> LedgerSummary:
    ranges = tuple(ledger.index.ranges())
    entries = sum(last - first + 1 for first, last in ranges)
    size = sum(size for _, size in ledger.index.bytes_by_log()) - HEADER_BYTES * entries
    return LedgerSummary(ledger.ledger_id, entries, size, ledger.fenced, ledger.lac, ranges)


# ------------------------------------------------------------------------------------ from outside


@dataclass(slots=True)
class DirectoryStatus:
    """One directory; `full` by the settings' threshold and reserve."""

    path: str
    role: str
    exists: bool
    total_bytes: int = 0
    free_bytes: int = 0
    full: bool = False
    journal_files: int = 0
    spare_journal_files: int = 0
    entry_logs: int = 0
    data_bytes: int = 0


@dataclass(slots=True)
class DirectoriesStatus:
    """One node. `clean` and `lossy` are the last checkpoint's: nothing to replay; entries may have been lost."""

    bookie_id: str | None = None
    running: bool = False
    read_only_at_last: bool = False
    checkpoint: int | None = None
    clean: bool | None = None
    lossy: bool | None = None
    ledgers: int | None = None
    directories: list[DirectoryStatus] = field(default_factory=list)


def directories_status(settings: BookieSettings) -> DirectoriesStatus:
    """Look at a node. Raises OSError where a directory cannot be read."""
    disk = SystemDisk()
    result = DirectoriesStatus()
    roles = [(path, "journal") for path in settings.journal_directories]
    roles += [(path, "ledgers") for path in settings.ledger_directories]
    for path, role in roles:
        result.directories.append(_directory(disk, settings, path, role))
    there = [one.path for one in result.directories if one.exists]
    result.running = any(_locked(disk, path) for path in there)
    result.bookie_id = _bookie_id(disk, there)
    folders = [f"{path}/current" for path in settings.ledger_directories]
    result.read_only_at_last = was_read_only(disk, folders)
    try:
        found = read_checkpoint(disk, folders)
    except CorruptDataError:
        return result
    if found is not None:
        result.checkpoint, result.clean, result.lossy = found[0].counter, found[0].clean, found[0].lossy
        result.ledgers = len(found[1])
    return result


def _directory(disk: SystemDisk, settings: BookieSettings, path: str, role: str) -> DirectoryStatus:
    try:
        _, total, free = disk.usage(path)
    except FileNotFoundError:
        return DirectoryStatus(path, role, False)
    used = 1 - free / max(total, 1)
    full = used > settings.disk_usage_threshold or free < settings.min_usable_size_for_entry_log_creation
    found = DirectoryStatus(path, role, True, total, free, full)
    for name in disk.list_directory(f"{path}/current"):
        if role == "journal":
            found.journal_files += parse_file_name(name) is not None
            found.spare_journal_files += name.startswith(SPARE_PREFIX)
        elif parse_log_name(name) is not None:
            found.entry_logs += 1
            found.data_bytes += _size(disk, f"{path}/current/{name}")
    return found


def _size(disk: SystemDisk, path: str) -> int:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return 0  # collected meanwhile
    try:
        return file.size()
    finally:
        file.close()


def _locked(disk: SystemDisk, path: str) -> bool:
    if LOCK_NAME not in disk.list_directory(path):
        return False
    try:
        disk.lock(f"{path}/{LOCK_NAME}").close()
    except BlockingIOError:
        return True
    return False


def _bookie_id(disk: SystemDisk, directories: list[str]) -> str | None:
    for directory in directories:
        path = f"{directory}/current/{COOKIE_FILE}"
        data = disk.read_file(path)
        if data is not None:
            try:
                return Cookie.decode(data, path).bookie_id
            except CorruptDataError:
                continue
    return None
