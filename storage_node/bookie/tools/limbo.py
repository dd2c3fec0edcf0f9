"""Ledgers in limbo: the node may have lost entries of them, and answers "unknown" for what it cannot find (I11).

A ledger leaves limbo when that answer is no longer needed:

    deleted     its metadata is gone
    elsewhere   no ensemble names this node any more: auto-recovery has replicated it
    whole       it is closed, and every entry that its metadata places on this node is here and intact

Otherwise it stays: `missing` entries have to be replicated elsewhere first (`mark` asks auto-recovery for it); of an
`open` ledger it is not known yet where it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from metadata.foundation.errors import CorruptDataError, NoNodeError
from metadata.ledger_metadata import LedgerMetadata
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.store import checkpoints
from storage_node.bookie.tools.cluster import Cluster
from storage_node.bookie.tools.offline import Offline, Snapshot
from storage_node.protocol.striping import in_write_set
from storage_node.settings.bookie import BookieSettings

CLEARED = frozenset({"deleted", "elsewhere", "whole"})


@dataclass(frozen=True, slots=True)
class LimboVerdict:
    """What became of a ledger in limbo; `missing` counts entries that should be here and are not."""

    ledger_id: int
    state: str
    missing: int = 0

    @property
    def cleared(self) -> bool:
        """Whether "unknown" is no longer needed as an answer for the ledger."""
        return self.state in CLEARED


async def judge_limbo(settings: BookieSettings, cluster: Cluster, *, clear: bool) -> list[LimboVerdict]:
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
    cluster: Cluster, bookie_id: str, verdicts: list[LimboVerdict], now_ms: Callable[[], int]
) -> int:
    """Ask auto-recovery to replicate what is missing; how many ledgers were marked."""
    wanted = [verdict.ledger_id for verdict in verdicts if verdict.state == "missing"]
    await cluster.mark(wanted, bookie_id, now_ms)
    return len(wanted)


async def _judge(node: Offline, snapshot: Snapshot, cluster: Cluster, bookie_id: str, ledger_id: int) -> LimboVerdict:
    try:
        metadata = await cluster.read_ledger(ledger_id)
    except NoNodeError:
        return LimboVerdict(ledger_id, "deleted")
    if not any(bookie_id in ensemble.bookies for ensemble in metadata.ensembles):
        return LimboVerdict(ledger_id, "elsewhere")
    if not metadata.is_closed:
        return LimboVerdict(ledger_id, "open")  # a recovery may still ask for entries that nothing here names (I11)
    missing = sum(not _has(node, snapshot, ledger_id, entry_id) for entry_id in _due(metadata, bookie_id))
    return LimboVerdict(ledger_id, "missing" if missing else "whole", missing)


def _due(metadata: LedgerMetadata, bookie_id: str) -> Iterator[int]:
    """The entries of a closed ledger that its metadata places on the bookie."""
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
    """The entry is here and has its checksum."""
    if snapshot.ledgers[ledger_id].index.get(entry_id) is None:
        return False
    try:
        node.read_entry(ledger_id, entry_id, snapshot)
    except (CorruptDataError, OSError):
        return False
    return True


def _write(disk: SystemDisk, node: Offline, leaving: set[int]) -> None:
    """A checkpoint like the last one, in which these ledgers are not in limbo any more."""
    for directory in node.ledgers:
        path = f"{directory}/{checkpoints.CHECKPOINT_FILE}"
        data = disk.read_file(path)
        decoded = None if data is None else checkpoints.decode(data)
        if decoded is None:
            raise CorruptDataError(
                "this copy of the checkpoint is missing or damaged",
                advice="Start and stop the node once, so that every directory has it; nothing was changed here",
                path=path,
            )
        checkpoint, ledgers = decoded
        for ledger_id in leaving & ledgers.keys():
            ledgers[ledger_id].limbo = False
        newer = replace(checkpoint, counter=checkpoint.counter + 1)
        disk.write_file(path, checkpoints.encode(newer, [ledger.encode() for ledger in ledgers.values()]))
