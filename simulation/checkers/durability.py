"""`Durability`: what lies on the nodes' disks for certain, from the bytes that became durable and nothing else.

a journal batch     counts once it is synced and every batch before it: replay goes no further than the first batch
                    that is missing. It must not claim more to be durable than is (replay could not distinguish a
                    torn tail from damage then). Where it names the place of its records in an entry log, those must
                    be on the medium too
a checkpoint        the journal behind it may go, so each log that it names must be on the medium: its name, and its
                    bytes up to where the checkpoint says (D7, D8)
"""

from __future__ import annotations

import os.path
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from simulation.checkers.watched import WatchedNode
from storage_node.bookie.disk.records import ENTRY, LEDGER, Record, parse_ledger_body, scan
from storage_node.bookie.journal.files import BatchHeader, parse_batch_header
from storage_node.bookie.journal.places import LogPlace
from storage_node.bookie.store import checkpoints
from storage_node.bookie.store.log_files import log_name
from storage_node.protocol.digests import ENTRY_HEADER

CHECKPOINT_AS_WRITTEN: Final = f"/{checkpoints.CHECKPOINT_FILE}.new"
JOURNAL_DIRECTORIES: Final = ("/journal1", "/journal2")
LEDGER_DIRECTORIES: Final = ("/ledgers1", "/ledgers2")
"""Of every node; some use the first ones only."""
_BATCH_START: Final = b"dlsBATCH"


@dataclass(slots=True)
class _Journal:
    """The batches of one journal since its node was started."""

    through: int
    """Up to this one all are synced."""
    waiting: dict[int, tuple[str, BatchHeader, memoryview]] = field(default_factory=dict)
    """Synced, with one before them that is not, or with records that are not: the file, the batch, what it holds."""


@dataclass(slots=True)
class NodeTruth:
    """Which bytes does one node have on its medium for certain, and which has it promised?"""

    durable: dict[tuple[int, int], int] = field(default_factory=dict)
    """(ledger, entry) -> CRC-32 of the entry in a batch that counts."""
    fenced: set[int] = field(default_factory=set)
    promised: dict[tuple[int, int], float] = field(default_factory=dict)
    """Entries whose EOK left the node, and when."""
    promised_fences: dict[int, None] = field(default_factory=dict)
    journals: dict[str, _Journal] = field(default_factory=dict)
    """By directory."""


class Durability:
    """The disks of all nodes. `fail` is called with each violation, `carried` with each entry's ledger, id and LAC."""

    def __init__(self, fail: Callable[[str], None], carried: Callable[[int, int, int], None]) -> None:
        self._fail = fail
        self._carried = carried
        self.nodes: defaultdict[str, NodeTruth] = defaultdict(NodeTruth)
        self.holders: defaultdict[tuple[int, int], int] = defaultdict(int)
        """How many nodes have each (ledger, entry)."""

    def node_starts(self, node: WatchedNode) -> None:
        """Prepare for a node's start: the numbers of a journal's batches go on where replay finds its end."""
        self._go_on(node)
        self.nodes[node.name].journals.clear()

    def synced(self, node: WatchedNode, path: str, written: Sequence[tuple[int, bytes]]) -> None:
        """Note that bytes of a file became durable."""
        if path.endswith(CHECKPOINT_AS_WRITTEN):
            self._checkpoint(node, b"".join(data for _, data in sorted(written)))
        elif path.startswith(JOURNAL_DIRECTORIES):
            for offset, data in written:
                if data.startswith(_BATCH_START):
                    self._batch(node.name, path, offset, data)
                    self._go_on(node)
        elif path.endswith(".log"):
            self._go_on(node)

    def survived(self, node: WatchedNode, path: str, written: Sequence[tuple[int, bytes]]) -> None:
        """Note that bytes of a file are on the medium after a power cut, though they were not synced.

        Batches of a journal count then as if they were, for the next start replays them. It makes nothing durable that
        is so already, neither by a sync nor, where it has space for one, by a checkpoint.
        """
        if not path.endswith(CHECKPOINT_AS_WRITTEN):
            self.synced(node, path, written)

    def _batch(self, host: str, path: str, offset: int, data: bytes) -> None:
        batch = parse_batch_header(data, 0, offset, int.from_bytes(data[8:16], "big"))
        if batch is None:
            return
        truth, claimed = self.nodes[host], batch.durable_through
        journal = truth.journals.setdefault(os.path.dirname(path), _Journal(claimed))
        if claimed > journal.through:
            self._fail(
                f"{host}: batch {batch.sequence} in {path} claims that those up to {claimed} are durable, and batch "
                f"{journal.through + 1} is not"
            )
        held = memoryview(data)[batch.records_at : batch.records_at + batch.records_length]
        journal.waiting[batch.sequence] = path, batch, held

    def _go_on(self, node: WatchedNode) -> None:
        """Count every batch that is on the medium with all before it."""
        truth = self.nodes[node.name]
        for journal in truth.journals.values():
            while (waiting := journal.waiting.get(journal.through + 1)) is not None:
                path, batch, held = waiting
                place = LogPlace.parse(held)
                if place is not None:
                    found = self._placed(node, place)
                    if found is None:
                        break
                    held = found
                    node.disk.reached("disk.written-once")
                journal.through += 1
                del journal.waiting[journal.through]
                for record in self._records(node.name, path, batch, held):
                    self._count(truth, record)

    def _placed(self, node: WatchedNode, place: LogPlace) -> memoryview | None:
        """Return the records that a batch names, once they are on the medium."""
        for directory in LEDGER_DIRECTORIES:
            path = f"{directory}/current/{log_name(place.log_id)}"
            data = node.disk.on_medium(path, place.offset, place.length)
            if len(data) == place.length and zlib.crc32(data) == place.records_sum:
                return memoryview(data)
        return None

    def _records(self, host: str, path: str, batch: BatchHeader, held: memoryview) -> Iterator[Record]:
        for record in scan(held):
            if isinstance(record, int):
                self._fail(f"{host} wrote a malformed record into {path} at {batch.offset}")
            else:
                yield record

    def _count(self, truth: NodeTruth, record: Record) -> None:
        if record.kind == ENTRY:
            key = (record.ledger_id, record.entry_id)
            if key not in truth.durable:
                self.holders[key] += 1
            truth.durable[key] = zlib.crc32(record.body)
            self._carried(*ENTRY_HEADER.unpack_from(record.body)[:3])
        elif record.kind == LEDGER and parse_ledger_body(record.body)[1]:
            truth.fenced.add(record.ledger_id)

    def _checkpoint(self, node: WatchedNode, data: bytes) -> None:
        found = checkpoints.decode(data)
        if found is None:
            return
        # A record that survived in the journal without a sync is durable by the checkpoint of the next start.
        self.nodes[node.name].fenced.update(i for i, ledger in found[1].items() if ledger.fenced)
        if node.damaged:
            return
        for log_id, length in found[0].logs.items():
            if not any(node.disk.holds(log, length) for log in node.disk.files(log_name(log_id))):
                self._fail(
                    f"{node.name} writes a checkpoint that names {length} bytes of {log_name(log_id)}, which would not "
                    "all be there after a power cut (D7)"
                )
