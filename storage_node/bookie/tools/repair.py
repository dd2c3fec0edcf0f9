"""What changes a node's directories while it does not run: rebuilding the index, and formatting.

Formatting removes the cookies first, in every directory, durably: a crash between leaves directories that no node
starts on, never a node that has lost its data and does not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metadata.foundation.errors import CorruptDataError
from storage_node.bookie.disk.cookies import COOKIE_FILE
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.store.entry_logs import log_name, sidecar_name
from storage_node.bookie.store.index import parse_sidecar
from storage_node.bookie.store.opening import read_checkpoint, scan_log
from storage_node.bookie.tools.offline import Offline
from storage_node.settings.bookie import BookieSettings


@dataclass(slots=True)
class Rebuilt:
    """Sidecars by what became of them (paths)."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """The log has damage that the intact sidecar sees past: better than anything that could be rebuilt."""
    lost: list[str] = field(default_factory=list)
    """The log has damage and there is no intact sidecar: what lies in the damaged part cannot be named any more."""
    missing: list[str] = field(default_factory=list)
    """The log itself is not there."""


def rebuild_index(settings: BookieSettings) -> Rebuilt:
    """Write every log's sidecar anew from the log's own records (D11).

    Raises BookieConfigurationError (the node runs), CorruptDataError (no checkpoint names the logs), OSError.
    """
    result = Rebuilt()
    disk = SystemDisk()
    with Offline(settings, disk) as node:
        found = read_checkpoint(disk, node.ledgers)
        if found is None:
            raise CorruptDataError("there is no checkpoint, so there are no logs either", path=", ".join(node.ledgers))
        places = {name: directory for directory in node.ledgers for name in disk.list_directory(directory)}
        for log_id, length in sorted(found[0].logs.items()):
            directory = places.get(log_name(log_id))
            if directory is None:
                result.missing.append(log_name(log_id))
            else:
                _rebuild_one(disk, directory, log_id, length, result)
    return result


def _rebuild_one(disk: SystemDisk, directory: str, log_id: int, length: int, result: Rebuilt) -> None:
    path = f"{directory}/{sidecar_name(log_id)}"
    file = disk.open(f"{directory}/{log_name(log_id)}")
    try:
        new, lost = scan_log(file, length)
    finally:
        file.close()
    if not lost:
        disk.write_file(path, new.block(log_id, 0, length))
        result.written.append(path)
        return
    data = disk.read_file(path)
    intact = data is not None and parse_sidecar(data, log_id, length) is not None
    (result.kept if intact else result.lost).append(path)


def format_directories(settings: BookieSettings) -> list[str]:
    """Remove everything that a node stored; returns the files that were there.

    Raises BookieConfigurationError while the node runs; OSError, after which formatting can be done again.
    """
    disk = SystemDisk()
    removed: list[str] = []
    with Offline(settings, disk) as node:
        for directory in node.directories:
            disk.remove(f"{directory}/{COOKIE_FILE}")
            if disk.list_directory(directory):
                disk.sync_directory(directory)
        for directory in node.directories:
            names = disk.list_directory(directory)
            for name in names:
                disk.remove(f"{directory}/{name}")
                removed.append(f"{directory}/{name}")
            if names:
                disk.sync_directory(directory)
    return removed
