"""What a node's directories look like from outside, whether the node runs or not. Nothing is changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from metadata.bookies import Cookie
from metadata.foundation.errors import CorruptDataError
from storage_node.bookie.disk.cookies import COOKIE_FILE
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.journal.files import SPARE_PREFIX, parse_file_name
from storage_node.bookie.node.identity import was_read_only
from storage_node.bookie.store.entry_logs import parse_log_name
from storage_node.bookie.store.opening import read_checkpoint
from storage_node.bookie.tools.offline import LOCK_NAME
from storage_node.settings.bookie import BookieSettings


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
