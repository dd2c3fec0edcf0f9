"""Changes of a node's directories while it does not run: rebuilding the index, clearing limbo, formatting.

*Formatting* removes the cookies first, in every directory, durably: a crash between leaves directories that no node
starts on, never a node that has lost its data and does not know.

*Limbo*: the node may have lost entries of these ledgers, and answers "unknown" for what it cannot find (I11). A ledger
leaves limbo when that answer is no longer needed:

    deleted     its metadata is gone
    elsewhere   no ensemble names this node any more: auto-recovery has replicated it
    whole       it is closed, and every entry that its metadata places on this node is here and intact

Otherwise it stays: `missing` entries have to be replicated elsewhere first (`mark` asks auto-recovery for it); of an
`open` ledger it is not known yet where it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from metadata.foundation.errors import CorruptDataError, NoNodeError
from storage_node.bookie.disk.cookies import COOKIE_FILE
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.store import checkpoints
from storage_node.bookie.store.index import parse_sidecar
from storage_node.bookie.store.log_files import log_name, sidecar_name
from storage_node.bookie.store.opening import read_checkpoint, scan_log
from storage_node.bookie.tools.cluster import Cluster
from storage_node.bookie.tools.offline import Offline, Snapshot
from storage_node.protocol.striping import in_write_set
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
            # The cookies first, and durably: with a cookie and without its entries the node would start as the one that
            # had them (I11).
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


# ------------------------------------------------------------------------------------ limbo

CLEARED = frozenset({"deleted", "elsewhere", "whole"})


@dataclass(frozen=True, slots=True)
class LimboOutcome:
    """May a ledger leave limbo? `missing` counts entries that should be here and are not."""

    ledger_id: int
    state: str
    missing: int = 0

    @property
    def cleared(self) -> bool:
        """True where the answer "unknown" is not needed for the ledger any more."""
        return self.state in CLEARED


async def judge_limbo(settings: BookieSettings, cluster: Cluster, *, clear: bool) -> list[LimboOutcome]:
    """Judge every ledger in limbo; with `clear` take out those that can leave it. The node must not run.

    Raises BookieConfigurationError (it runs), CorruptDataError, OSError, and the metadata store's errors.
    """
    disk = SystemDisk()
    with Offline(settings) as node:
        snapshot = node.load()
        if snapshot.checkpoint is None:
            return []
        found = [ledger_id for ledger_id, ledger in sorted(snapshot.ledgers.items()) if ledger.limbo]
        bookie_id = node.cookie().bookie_id
        verdicts = [await _judge(node, snapshot, cluster, bookie_id, ledger_id) for ledger_id in found]
        leaving = {verdict.ledger_id for verdict in verdicts if verdict.cleared}
        if clear and leaving:
            _write(disk, node, leaving)
    return verdicts


async def mark_missing(
    cluster: Cluster, bookie_id: str, verdicts: list[LimboOutcome], now_ms: Callable[[], int]
) -> int:
    """Ask auto-recovery to replicate what is missing; how many ledgers were marked."""
    wanted = [verdict.ledger_id for verdict in verdicts if verdict.state == "missing"]
    await cluster.mark(wanted, bookie_id, now_ms)
    return len(wanted)


async def _judge(node: Offline, snapshot: Snapshot, cluster: Cluster, bookie_id: str, ledger_id: int) -> LimboOutcome:
    try:
        metadata = await cluster.read_ledger(ledger_id)
    except NoNodeError:
        return LimboOutcome(ledger_id, "deleted")
    if not any(bookie_id in ensemble.bookies for ensemble in metadata.ensembles):
        return LimboOutcome(ledger_id, "elsewhere")
    if not metadata.is_closed:
        return LimboOutcome(ledger_id, "open")  # a recovery may still ask for entries that nothing here names (I11)
    missing = sum(not _has(node, snapshot, ledger_id, entry_id) for entry_id in _due(metadata, bookie_id))
    return LimboOutcome(ledger_id, "missing" if missing else "whole", missing)


def _due(metadata: LedgerMetadata, bookie_id: str) -> Iterator[int]:
    """Yield the entries of a closed ledger that its metadata places on the bookie."""
    last = -1 if metadata.last_entry is None else metadata.last_entry
    for number, ensemble in enumerate(metadata.ensembles):
        if bookie_id not in ensemble.bookies:
            continue
        index = ensemble.bookies.index(bookie_id)
        behind = number + 1 < len(metadata.ensembles)
        end = metadata.ensembles[number + 1].first_entry if behind else last + 1
        for entry_id in range(ensemble.first_entry, end):
            if in_write_set(entry_id, index, metadata.ensemble_size, metadata.write_quorum):
                yield entry_id


def _has(node: Offline, snapshot: Snapshot, ledger_id: int, entry_id: int) -> bool:
    """Return whether the entry is here and has its checksum."""
    if snapshot.ledgers[ledger_id].index.get(entry_id) is None:
        return False
    try:
        node.read_entry(ledger_id, entry_id, snapshot)
    except (CorruptDataError, OSError):
        return False
    return True


def _write(disk: SystemDisk, node: Offline, leaving: set[int]) -> None:
    """Write a checkpoint like the last one, in which these ledgers are not in limbo any more."""
    written: list[str] = []
    for directory in node.ledgers:
        path = f"{directory}/{checkpoints.CHECKPOINT_FILE}"
        data = disk.read_file(path)
        decoded = None if data is None else checkpoints.decode(data)
        if decoded is None:
            raise _damaged_error(path, written)
        checkpoint, ledgers = decoded
        for ledger_id in leaving & ledgers.keys():
            ledgers[ledger_id].limbo = False
        # Newer than any copy that is there: a start goes by the newest, also if this is cut off after one directory.
        newer = replace(checkpoint, counter=checkpoint.counter + 1)
        disk.write_file(path, checkpoints.encode(newer, [ledger.encode() for ledger in ledgers.values()]))
        written.append(path)


def _damaged_error(path: str, written: list[str]) -> CorruptDataError:
    """Return the error for a copy of the checkpoint that cannot be read; copies that were `written` before it stay, and
    count: they are the newest.
    """
    what = "this copy of the checkpoint is missing or damaged, and was left as it is"
    if not written:
        return CorruptDataError(
            f"{what}; no directory was changed, and no ledger has left limbo",
            advice="Start and stop the node once, which writes every copy anew; then clear limbo again",
            path=path,
        )
    return CorruptDataError(
        f"{what}; the ledgers have left limbo all the same, by the newer copy that was written: {', '.join(written)}",
        advice="Start and stop the node once: it goes by the newest copy, and writes it to every directory; nothing is "
        "left to clear",
        path=path,
    )
