"""Opening what is on disk: the newest checkpoint, and the index of every entry log (D11).

A log whose sidecar is whole is indexed from it; otherwise the log is scanned, and a new sidecar written. A record whose
header is damaged hides what lies behind it up to the next header that can be read: those entries are unknown, so
the node calls what it cannot find unknown from then on (I11). So it does when a log is missing altogether.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from storage_node.bookie import checkpoint as checkpoints
from storage_node.bookie.checkpoint import Checkpoint
from storage_node.bookie.entry_logs import log_name, sidecar_name
from storage_node.bookie.index import NewPlaces, Runs, parse_sidecar
from storage_node.bookie.ledgers import Ledger
from storage_node.bookie.records import ALIGN, ENTRY, HEADER_BYTES, LEDGER, aligned, parse_header, parse_ledger_body
from storage_node.edge import Disk, DiskFile
from storage_node.protocol.digests import crc32

logger = logging.getLogger(__name__)

WINDOW_BYTES = 4 * 1024 * 1024
MAX_RECORD_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class OpenedLogs:
    """Where the logs are, how long they are, and whether any of their entries are lost."""

    paths: dict[int, str] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    lost: bool = False


def read_checkpoint(disk: Disk, directories: list[str]) -> tuple[Checkpoint, dict[int, Ledger]] | None:
    """The newest intact checkpoint of all directories; None if no directory has one. Raises CorruptDataError.

    Any intact copy will do: the journal is kept until every directory has the newer one, and the node serves only then.
    """
    best: tuple[Checkpoint, dict[int, Ledger]] | None = None
    damaged = False
    for directory in directories:
        path = f"{directory}/{checkpoints.FILE_NAME}"
        data = disk.read_file(path)
        if data is None:
            continue
        found = checkpoints.decode(data)
        if found is None:
            logger.error("%s is damaged", path)
            damaged = True
        elif best is None or found[0].counter > best[0].counter:
            best = found
    if damaged and best is None:
        raise checkpoints.missing(directories)
    return best


def index_logs(disk: Disk, directories: list[str], found: Checkpoint, ledgers: dict[int, Ledger]) -> OpenedLogs:
    """Fill the ledgers' indexes with every log that the checkpoint knows."""
    opened = OpenedLogs()
    places = {name: directory for directory in directories for name in disk.list_directory(directory)}
    for log_id in sorted(found.logs):
        length = found.logs[log_id]
        opened.lengths[log_id] = length
        directory = places.get(log_name(log_id)) or places.get(sidecar_name(log_id)) or directories[0]
        opened.paths[log_id] = f"{directory}/{log_name(log_id)}"
        sidecar = disk.read_file(f"{directory}/{sidecar_name(log_id)}")
        parsed = parse_sidecar(sidecar, log_id, length) if sidecar is not None else None
        if parsed is not None:
            _apply(ledgers, log_id, parsed[0])
            if log_name(log_id) not in places:
                logger.error("entry log %s is missing; its entries will be answered with an error", log_name(log_id))
        elif log_name(log_id) not in places:
            logger.error("entry log %s and its sidecar are missing", log_name(log_id))
            opened.lost = True
        else:
            logger.warning("the sidecar of entry log %s is missing or damaged, scanning the log", log_name(log_id))
            opened.lost |= _rebuild(disk, directory, log_id, length, ledgers)
    return opened


def _apply(ledgers: dict[int, Ledger], log_id: int, runs: Runs) -> None:
    for ledger_id, first, places, sizes in runs:
        ledger = ledgers.get(ledger_id)
        if ledger is None:
            ledger = ledgers[ledger_id] = Ledger(ledger_id)
        ledger.index.put_run(first, log_id, places, sizes)


def _rebuild(disk: Disk, directory: str, log_id: int, length: int, ledgers: dict[int, Ledger]) -> bool:
    """Index a log by its records and write its sidecar anew. True if anything in it could not be made out."""
    file = disk.open(f"{directory}/{log_name(log_id)}")
    try:
        new, lost = _scan(file, length, ledgers)
    finally:
        file.close()
    block = new.block(log_id, 0, length)
    parsed = parse_sidecar(block, log_id, length)
    if parsed is not None:
        _apply(ledgers, log_id, parsed[0])
    if not lost:
        disk.write_file(f"{directory}/{sidecar_name(log_id)}", block)
    return lost


def _scan(file: DiskFile, length: int, ledgers: dict[int, Ledger]) -> tuple[NewPlaces, bool]:
    """All entries of a log's first `length` bytes by their headers; bodies are checked when they are read."""
    new = NewPlaces()
    lost = file.size() < length
    offset = 0
    window, start = memoryview(b""), 0
    while offset < length:
        if not start <= offset <= start + len(window) - HEADER_BYTES:
            window, start = memoryview(file.read_at(offset, min(WINDOW_BYTES, length - offset))), offset
            if len(window) < HEADER_BYTES:
                return new, True
        found = parse_header(window, offset - start)
        if found is None or (found[0] == ENTRY and found[1] > MAX_RECORD_BYTES):
            if not lost:
                logger.error("%s is damaged at offset %d", file.path, offset)
            lost = True
            offset += ALIGN
            continue
        kind, size, ledger_id, entry_id, total = found
        if kind == ENTRY:
            new.put(ledger_id, entry_id, offset // ALIGN, HEADER_BYTES + size)
        elif kind == LEDGER:
            body = file.read_at(offset + HEADER_BYTES, size)
            if crc32(body, 0) == total:
                _learn(ledgers, ledger_id, memoryview(body))
        offset += aligned(HEADER_BYTES + size)
    return new, lost


def _learn(ledgers: dict[int, Ledger], ledger_id: int, body: memoryview) -> None:
    """A LEDGER record: key and fence are monotone, so an old record can only add."""
    key, fenced = parse_ledger_body(body)
    ledger = ledgers.get(ledger_id)
    if ledger is None:
        ledger = ledgers[ledger_id] = Ledger(ledger_id)
    ledger.master_key = ledger.master_key if ledger.master_key is not None else key
    ledger.fenced = ledger.fenced or fenced
