"""Opening what is on disk: the newest checkpoint, and the index of every entry log (D11).

A log whose sidecar is whole is indexed from it; otherwise the log is scanned, and a new sidecar written. A record whose
header is damaged hides what lies behind it up to the next header that can be read: those entries are unknown, so
what cannot be found of any ledger that may have had some there is called unknown from then on (I11). So it is when a
log is missing altogether. Ledgers that came later, and those that were never here, are not concerned.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from operator import sub

from storage_node.bookie.disk.records import ALIGN, ENTRY, HEADER_BYTES, aligned, parse_header
from storage_node.bookie.disk.resources import NoSpaceError, needing_space
from storage_node.bookie.store import checkpoints
from storage_node.bookie.store.checkpoints import Checkpoint
from storage_node.bookie.store.contents import Ledger, LiveBytes
from storage_node.bookie.store.index import NewPlaces, Runs, parse_sidecar
from storage_node.bookie.store.log_files import log_name, parse_log_name, sidecar_name
from storage_node.edge import Disk, DiskFile

logger = logging.getLogger(__name__)

WINDOW_BYTES = 4 * 1024 * 1024
MAX_RECORD_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class OpenedLogs:
    """Where the logs are, how long they are, and what is known of their entries."""

    paths: dict[int, str] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    lost: bool = False
    """Entries that were stored cannot be found any more."""
    lost_logs: set[int] = field(default_factory=set)
    """The logs in which they were."""
    damaged: set[int] = field(default_factory=set)
    """Logs of which a part could not be made out: they are kept, whatever seems to be live in them."""
    live: LiveBytes = field(default_factory=LiveBytes)


def read_checkpoint(disk: Disk, directories: list[str]) -> tuple[Checkpoint, dict[int, Ledger]] | None:
    """Return the newest intact checkpoint of all directories; None if no directory has one. Raises CorruptDataError.

    Any intact copy will do: the journal is kept until every directory has the newer one, and the node serves only then.
    """
    best: tuple[Checkpoint, dict[int, Ledger]] | None = None
    damaged = False
    for directory in directories:
        path = f"{directory}/{checkpoints.CHECKPOINT_FILE}"
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
        raise checkpoints.missing_file_error(directories)
    return best


def first_free_log(disk: Disk, directories: list[str], found: Checkpoint, named: Collection[int]) -> int:
    """Return a log id behind all that a checkpoint, a journal (`named`) or a directory knows."""
    # Logs that no checkpoint knows count too: an id that is given twice would mix their records with new ones.
    names = [name for directory in directories for name in disk.list_directory(directory)]
    seen = [parse_log_name(name) or parse_log_name(name, ".idx") or 0 for name in names]
    return max([found.next_log_id, *(log_id + 1 for log_id in (*named, *seen))])


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
            # Also where the log itself is gone: its entries are known, so reading one is an error, never a "no" (I11).
            _apply(opened.live, ledgers, log_id, parsed[0])
            if log_name(log_id) not in places:
                logger.error("entry log %s is missing; its entries will be answered with an error", log_name(log_id))
        elif log_name(log_id) not in places:
            logger.error("entry log %s and its sidecar are missing", log_name(log_id))
            opened.lost = True
            opened.lost_logs.add(log_id)
        else:
            logger.warning("the sidecar of entry log %s is missing or damaged, scanning the log", log_name(log_id))
            _rebuild(disk, directory, log_id, ledgers, opened)
    return opened


def _apply(live: LiveBytes, ledgers: dict[int, Ledger], log_id: int, runs: Runs) -> None:
    """Put a log's entries into the indexes. What the checkpoint does not know of was deleted, and stays so."""
    for ledger_id, first, places, sizes in runs:
        ledger = ledgers.get(ledger_id)
        # A ledger that was deleted and came again must not get its former entries back.
        born_log, born_place = (log_id + 1, 0) if ledger is None else ledger.born
        if log_id < born_log:
            live.found(log_id, sizes, False)
            continue
        if log_id == born_log and min(places) < born_place:  # gaps have place 0, which costs a look at each
            alive = [size if place >= born_place else 0 for place, size in zip(places, sizes, strict=True)]
            live.found(log_id, array("I", map(sub, sizes, alive)), False)
            sizes = array("I", alive)
        live.found(log_id, sizes, True)
        if ledger is not None:
            for previous_log, _, size in ledger.index.put_run(first, log_id, places, sizes):
                live.gone(previous_log, size)


def _rebuild(disk: Disk, directory: str, log_id: int, ledgers: dict[int, Ledger], opened: OpenedLogs) -> None:
    """Index a log by its records, and write its sidecar anew unless anything in it could not be made out."""
    length = opened.lengths[log_id]
    file = disk.open(f"{directory}/{log_name(log_id)}")
    try:
        new, lost = scan_log(file, length)
    finally:
        file.close()
    block = new.block(log_id, 0, length)
    parsed = parse_sidecar(block, log_id, length)
    if parsed is not None:
        _apply(opened.live, ledgers, log_id, parsed[0])
    if lost:
        # No new sidecar either: it would say that the log holds no more than was found (D11).
        opened.lost = True
        opened.lost_logs.add(log_id)
        opened.damaged.add(log_id)
    else:
        _keep_sidecar(disk, f"{directory}/{sidecar_name(log_id)}", block)


def _keep_sidecar(disk: Disk, path: str, block: bytes) -> None:
    """Write a sidecar, which only saves the next start a scan: where there is no space for it, this start goes on
    without.
    """
    try:
        with needing_space(path, len(block)):
            disk.write_file(path, block)
    except NoSpaceError as error:
        logger.warning("%s is not written, its log will be scanned again: %s", path, error)


def scan_log(file: DiskFile, length: int) -> tuple[NewPlaces, bool]:
    """Return all entries of a log's first `length` bytes by their headers; bodies are checked when they are read.

    Facts about ledgers are passed over: the checkpoint knows as much as any record that it covers, or more.
    """
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
        kind, size, ledger_id, entry_id, _ = found
        if kind == ENTRY:
            new.put(ledger_id, entry_id, offset // ALIGN, HEADER_BYTES + size)
        offset += aligned(HEADER_BYTES + size)
    return new, lost
