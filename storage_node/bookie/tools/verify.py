"""Is everything that a node stored still there, as it was written? Offline: every byte is read, nothing is changed.

Looked at are the cookies, every copy of the checkpoint, every record of every log that the checkpoint names, each log's
sidecar against what the log holds, every place in the index, and the journals behind the checkpoint's marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from metadata.bookkeeper.bookies import Cookie
from metadata.foundation.errors import CorruptDataError
from storage_node.bookie.disk.cookies import COOKIE_FILE
from storage_node.bookie.disk.records import (
    ALIGN,
    ENTRY,
    HEADER_BYTES,
    PAD,
    aligned,
    parse_header,
)
from storage_node.bookie.store import checkpoints
from storage_node.bookie.store.index import parse_sidecar
from storage_node.bookie.store.log_files import log_name, sidecar_name
from storage_node.bookie.store.opening import MAX_RECORD_BYTES
from storage_node.bookie.tools.offline import IN_JOURNAL, Offline, Snapshot
from storage_node.edge import DiskFile
from storage_node.errors import JournalCorruptError
from storage_node.protocol.digests import crc32


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written. `harmless`: the node mends it by itself, and nothing is lost."""

    path: str
    what: str
    offset: int | None = None
    ledger_id: int | None = None
    entry_id: int | None = None
    harmless: bool = False

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at offset {self.offset}"
        entry = "" if self.ledger_id is None else f" (ledger {self.ledger_id}, entry {self.entry_id})"
        return f"{self.path}{place}: {self.what}{entry}" + ("; the node mends this" if self.harmless else "")


@dataclass(slots=True)
class Verification:
    """Is a node's data whole? The files that were looked at, and the damage that was found."""

    damages: list[Damage] = field(default_factory=list)
    logs: int = 0
    entries: int = 0
    bytes: int = 0
    journal_records: int = 0
    ledgers: int = 0

    @property
    def lost(self) -> list[Damage]:
        """The damage that the node cannot repair."""
        return [damage for damage in self.damages if not damage.harmless]


def verify(node: Offline) -> Verification:
    """Look at everything. Raises OSError where even the directories cannot be read."""
    result = Verification()
    _check_cookies(node, result)
    _check_checkpoints(node, result)
    if result.lost:
        return result  # without a cookie or any checkpoint it is not known what should be here
    try:
        snapshot = node.load()
    except JournalCorruptError as error:
        result.damages.append(Damage(error.path or "journal", error.message))
        return result
    except CorruptDataError as error:
        result.damages.append(Damage(error.path or "", error.message))
        return result
    if snapshot.checkpoint is not None:
        result.journal_records = sum(1 for _ in node.journal_records(snapshot.checkpoint))
        intact = {log_id: _check_log(node, snapshot, log_id, result) for log_id in snapshot.checkpoint.logs}
        _check_index(snapshot, intact, result)
    result.ledgers = len(snapshot.ledgers)
    return result


def _check_cookies(node: Offline, result: Verification) -> None:
    found: list[tuple[str, Cookie]] = []
    for directory in node.directories:
        path = f"{directory}/{COOKIE_FILE}"
        data = node.disk.read_file(path)
        try:
            if data is None:
                result.damages.append(Damage(path, "the cookie is missing"))
            else:
                found.append((path, Cookie.decode(data, path)))
        except CorruptDataError as error:
            result.damages.append(Damage(path, error.message))
    for path, cookie in found[1:]:
        if not cookie.matches(found[0][1]):
            result.damages.append(Damage(path, f"the cookie is not that of {found[0][0]}"))


def _check_checkpoints(node: Offline, result: Verification) -> None:
    """Check the checkpoints, of which one intact copy is enough: the journals are kept until all are."""
    damages: list[Damage] = []
    intact = 0
    for directory in node.ledgers:
        path = f"{directory}/{checkpoints.CHECKPOINT_FILE}"
        data = node.disk.read_file(path)
        if data is None:
            damages.append(Damage(path, "the checkpoint is missing"))
        elif checkpoints.decode(data) is None:
            damages.append(Damage(path, "the checkpoint is damaged"))
        else:
            intact += 1
    for damage in damages:
        result.damages.append(Damage(damage.path, damage.what, harmless=intact > 0))


def _check_log(node: Offline, snapshot: Snapshot, log_id: int, result: Verification) -> dict[int, tuple[int, int]]:
    """Check one log and its sidecar. Returns the intact entries: place -> (ledger id, entry id)."""
    path, length = snapshot.logs.paths[log_id], snapshot.logs.lengths[log_id]
    directory = path.rpartition("/")[0]
    if log_name(log_id) not in node.disk.list_directory(directory):
        result.damages.append(Damage(path, "the entry log is missing"))
        return {}
    result.logs += 1
    intact: dict[int, tuple[int, int]] = {}
    sizes: dict[int, int] = {}
    file = node.disk.open(path)
    try:
        if file.size() < length:
            result.damages.append(Damage(path, f"the log is cut: {file.size()} of {length} bytes are there"))
        for offset, ledger_id, entry_id, size, whole in _records(file, min(length, file.size()), result):
            sizes[offset // ALIGN] = size
            if whole:
                intact[offset // ALIGN] = ledger_id, entry_id
                result.entries += 1
                result.bytes += size
    finally:
        file.close()
    _check_sidecar(node, f"{directory}/{sidecar_name(log_id)}", log_id, length, sizes, result)
    return intact


def _records(file: DiskFile, length: int, result: Verification) -> Iterator[tuple[int, int, int, int, bool]]:
    """Yield (offset, ledger id, entry id, size, whether the body has its sum) of a log's entries; damages go to
    `result`.
    """
    offset = 0
    broken_from: int | None = None
    while offset + HEADER_BYTES <= length:
        head = parse_header(memoryview(file.read_at(offset, HEADER_BYTES)), 0)
        if head is None or (head[0] != PAD and head[1] > MAX_RECORD_BYTES):
            if broken_from is None:
                broken_from = offset
                result.damages.append(Damage(file.path, "no record can be made out from here on", offset))
            offset += ALIGN
            continue
        broken_from = None
        kind, size, ledger_id, entry_id, total = head
        if kind != PAD:
            body = file.read_at(offset + HEADER_BYTES, size)
            whole = len(body) == size and crc32(body, 0) == total
            if not whole:
                what = "the entry fails its checksum" if kind == ENTRY else "a record about a ledger fails its checksum"
                result.damages.append(Damage(file.path, what, offset, ledger_id, entry_id))
            if kind == ENTRY:
                yield offset, ledger_id, entry_id, HEADER_BYTES + size, whole
        offset += aligned(HEADER_BYTES + size)


def _check_sidecar(
    node: Offline, path: str, log_id: int, length: int, sizes: dict[int, int], result: Verification
) -> None:
    data = node.disk.read_file(path)
    parsed = None if data is None else parse_sidecar(data, log_id, length)
    if parsed is None:
        what = "the log's index is missing" if data is None else "the log's index is damaged"
        result.damages.append(Damage(path, what, harmless=True))
        return
    for ledger_id, first, places, claimed in parsed[0]:
        for at, size in enumerate(claimed):
            if size and sizes.get(places[at]) != size:
                what = "the index names a place where no such entry begins"
                result.damages.append(Damage(path, what, places[at] * ALIGN, ledger_id, first + at))


def _check_index(snapshot: Snapshot, intact: dict[int, dict[int, tuple[int, int]]], result: Verification) -> None:
    """Check that every entry that the node believes to have is where it believes it to be. Damaged ones were named
    already.
    """
    for ledger_id, ledger in snapshot.ledgers.items():
        for first, last in ledger.index.ranges():
            for entry_id in range(first, last + 1):
                place = ledger.index.get(entry_id)
                if place is None or place[0] == IN_JOURNAL:
                    continue
                found = intact.get(place[0], {}).get(place[1])
                if found is not None and found != (ledger_id, entry_id):
                    path = snapshot.logs.paths[place[0]]
                    result.damages.append(
                        Damage(path, "another entry lies here", place[1] * ALIGN, ledger_id, entry_id)
                    )
