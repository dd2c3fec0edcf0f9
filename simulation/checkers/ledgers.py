"""`LedgerCheckers`: the invariants of docs/reference/invariants.md, held against everything that happens.

They see three things that no product code can hide: every frame a node sends, every byte that becomes durable, every
transaction of the metadata. From these they know which entries lie where for certain, what nodes have promised, and
how each ledger's metadata developed; workloads report what clients pushed, what they were answered, and what they read.

    at every answer of a node   an EOK only for what is in a synced journal (journal before ack); a fencing read only
                                after a synced fence (D19); "no such entry" never for what it promised (I11, D3);
                                bytes of an entry only as they were pushed (I3, I12)
    at every acknowledgement    in entry order (I4); on an ack quorum of the current ensemble's write set (I1);
                                never beyond the end of a closed ledger (I5)
    at every metadata change    one end for ever (I2); no ensemble change while in recovery but by the closing write
                                (I18); a new fragment begins behind everything acknowledged (D4, D5), and what was
                                acknowledged lies on an ack quorum of the ensembles that the metadata name (I1)
    at every read               what was pushed (I3); never beyond the LAC or the end (I17); a LAC that never goes back
                                nor passes what an ack quorum holds (I6)
    at every sync of a node     entries carry no LAC beyond what an ack quorum of the ensembles in the metadata has
                                (I6, I18); batches claim no more to be durable than is; a checkpoint names what is on
                                the medium (`durability`: D7, D8)
    at every start of a node    everything it promised is still there, fences included; what it has replayed is what was
                                pushed (I12)
    at the end                  `final_state`: see there
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from metadata.store import Create, Delete, Op, SetData
from simulation.checkers.durability import Durability
from simulation.checkers.history import OperationOutcome, outcome_of
from simulation.checkers.watched import WatchedNode, WatchedWorld
from simulation.environment.network import SimulatedLink
from storage_node.bookie.store.storage import Storage
from storage_node.protocol import v2
from storage_node.protocol.decoding import decode_request, decode_response
from storage_node.protocol.digests import DIGEST_BYTES, ENTRY_HEADER, ENTRY_HEADER_BYTES
from storage_node.protocol.schema import Operation, Status
from storage_node.protocol.striping import write_set
from storage_node.protocol.values import AddResponse, BatchReadResponse, ReadRequest, ReadResponse, Response, ResponseV2

MISSING = frozenset({Status.ENOENTRY, Status.ENOLEDGER})
FENCING_READ_BYTES = (40, 120)
SHORT_ANSWER_BYTES = 64
VERSION_THREE_START = 0x0A
OPERATION_AT = 5
"""Where a version 3 frame of this project's peers says what it is about."""
_EOK_TO_ADD = b"\x10\x00\xaa\x06"
_EOK = b"\x08\x00\x10"


class ViolationError(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class LedgerTruth:
    """Which entries must one ledger have, and where may it end? Known from outside."""

    ledger_id: int
    metadata: LedgerMetadata | None = None
    deleted: bool = False
    pushed: dict[int, bytes] = field(default_factory=dict)
    """Payloads that its writer gave to the client."""
    foreign: bool = False
    """Its writer's payloads are not known here."""
    acknowledged: int = -1
    highest_read: int = -1
    highest_lac: int = -1
    committed: int = -1
    """Entries up to here lie on an ack quorum of nodes."""
    carried: int = -1
    """The highest LAC that any entry carries."""
    closes: int = 0

    @property
    def under_way(self) -> bool:
        """It is open, and entries of it are on their way."""
        is_open = self.metadata is not None and self.metadata.state is LedgerState.OPEN and not self.deleted
        return is_open and max(self.pushed, default=-1) > self.acknowledged


class LedgerCheckers:
    """One for each world. Methods raise `ViolationError` into `World.run`."""

    def __init__(self, world: WatchedWorld) -> None:
        self._world = world
        self.ledgers: dict[int, LedgerTruth] = {}
        self.durability = Durability(self.fail, self._lac_carried)
        self.nodes = self.durability.nodes
        self._fence_reads: dict[tuple[SimulatedLink, int], tuple[int, float]] = {}
        self.violation: ViolationError | None = None
        self.on_first_fence: Callable[[SimulatedLink], None] = lambda link: None
        """Called with the link of each read with which a recovery begins, before the read is on its way."""
        self.on_replaced: Callable[[LedgerMetadata, LedgerMetadata], None] = lambda old, new: None
        """Called with each ensemble change of a writer, before the writer hears that it is applied."""

    def fail(self, message: str) -> NoReturn:
        """Note the first violation and stop the run."""
        error = ViolationError(message)
        if self.violation is None:
            self.violation = error
            self._world.trace.note(f"VIOLATION {message}")
            self._world.loop.stop()
        raise error

    def truth(self, ledger_id: int) -> LedgerTruth:
        """Return what is known of a ledger; an id that was not met before begins with nothing."""
        truth = self.ledgers.get(ledger_id)
        if truth is None:
            truth = self.ledgers[ledger_id] = LedgerTruth(ledger_id)
        return truth

    # ------------------------------------------------------------------------------------ frames

    def frame_sent(self, link: SimulatedLink, frame: bytes) -> None:
        """Note that a frame leaves a process."""
        self._world.trace.note(f"{link.process.name}>{link.other.process.name} {len(frame)} {zlib.crc32(frame)}")
        if link.client:
            if frame[0] == VERSION_THREE_START:
                self._request_sent(link, frame)
            return
        host = link.process.host
        if frame[0] != VERSION_THREE_START:
            self._version_two_answered(host, v2.decode_response(memoryview(frame)))
            return
        if len(frame) < SHORT_ANSWER_BYTES and frame[OPERATION_AT] == Operation.ADD:
            promised = _acknowledged_entry(frame)
            if promised is not None:
                self._promise(host, *promised)
                return
        response = decode_response(memoryview(frame))
        if isinstance(response, AddResponse):
            if response.status is Status.EOK:
                self._promise(host, response.ledger_id, response.entry_id)
        elif response.operation is Operation.READ:
            self._read_answered(link, host, response)

    def _request_sent(self, link: SimulatedLink, frame: bytes) -> None:
        """Remember fencing reads: they carry a key, and no body."""
        # By its length first: decoding every frame would take longer than the run.
        if FENCING_READ_BYTES[0] <= len(frame) <= FENCING_READ_BYTES[1] and frame[OPERATION_AT] == Operation.READ:
            request = decode_request(memoryview(frame))
            if isinstance(request, ReadRequest) and request.fence:
                self._fence_reads[(link.other, request.txn_id)] = (request.ledger_id, self._world.loop.time())
                if request.entry_id < 0:
                    self.on_first_fence(link)

    def _version_two_answered(self, host: str, response: ResponseV2) -> None:
        """Look at answers of version 2, which reads of ranges speak on connections of their own; no request fences
        there.
        """
        if isinstance(response, ReadResponse | BatchReadResponse):
            key = (response.ledger_id, response.entry_id)
            if response.status in MISSING and key in self.nodes[host].promised and self._owes(host, *key):
                self.fail(f"{host} says it lacks entry {key[1]} of ledger {key[0]}, which it had acknowledged (I11)")
            for body in bodies_in(response):
                self._entry_sent(host, body)

    def _promise(self, host: str, ledger_id: int, entry_id: int) -> None:
        truth = self.nodes[host]
        if (ledger_id, entry_id) not in truth.durable:
            self.fail(f"{host} acknowledges entry {entry_id} of ledger {ledger_id} before it is in a synced journal")
        truth.promised.setdefault((ledger_id, entry_id), self._world.loop.time())

    def _read_answered(self, link: SimulatedLink, host: str, response: Response) -> None:
        truth = self.nodes[host]
        ledger_id, asked_at = self._fence_reads.pop((link, response.txn_id), (None, self._world.loop.time()))
        definite = response.status is Status.EOK or response.status in MISSING
        if ledger_id is not None and definite:
            if ledger_id not in truth.fenced:
                self.fail(f"{host} answers a fencing read of ledger {ledger_id} before the fence is durable (D19)")
            truth.promised_fences[ledger_id] = None
        if not isinstance(response, ReadResponse):
            return
        key = (response.ledger_id, response.entry_id)
        # Only what was promised before the read was asked for: an entry may arrive between question and answer.
        lacks = response.status in MISSING and truth.promised.get(key, asked_at) < asked_at
        if lacks and self._owes(host, *key):
            self.fail(f"{host} says it lacks entry {key[1]} of ledger {key[0]}, which it had acknowledged (I11)")
        for body in bodies_in(response):
            self._entry_sent(host, body)

    def _entry_sent(self, host: str, body: memoryview) -> None:
        ledger_id, entry_id, _, _ = ENTRY_HEADER.unpack_from(body)
        ledger = self.truth(ledger_id)
        if ledger.foreign or ledger.metadata is None:
            return
        size = DIGEST_BYTES[ledger.metadata.digest_type] if ledger.metadata.digest_type is not None else 0
        if bytes(body[ENTRY_HEADER_BYTES + size :]) != ledger.pushed.get(entry_id):
            self.fail(f"{host} returns bytes for entry {entry_id} of ledger {ledger_id} that no writer wrote (I12)")

    # ------------------------------------------------------------------------------------ nodes

    def node_started(self, node: WatchedNode) -> None:
        """Check that a node that serves again has what it promised."""
        if node.bookie is None:
            return
        self._world.trace.note(f"serves {node.name}")
        storage = node.bookie.storage
        truth = self.nodes[node.name]
        if storage.lossy:
            self._world.reached("node.lossy")
            if not node.damaged:
                self.fail(f"{node.name} believes that it lost entries, on an undamaged disk")
        self._check_promises(node, "restarted")
        self._check_replayed(node.name, storage)
        for ledger_id in truth.promised_fences:
            ledger = storage.ledgers.get(ledger_id)
            if self._needs_fence(ledger_id) and not storage.lossy and (ledger is None or not ledger.fenced):
                self.fail(f"{node.name} restarted without the fence of ledger {ledger_id} (I5)")
        if node.runs > 1:
            self._world.reached("node.restarted")

    def _check_promises(self, node: WatchedNode, what: str) -> None:
        if node.bookie is None:
            return
        storage = node.bookie.storage
        for ledger_id, entry_id in self.nodes[node.name].promised:
            found = storage.find(ledger_id, entry_id)
            if not isinstance(found, Status) or not self._owes(node.name, ledger_id, entry_id):
                continue
            if found in MISSING or not node.damaged:  # what a damaged node lost, it must call unknown (I11)
                self.fail(f"{node.name} {what} without entry {entry_id} of ledger {ledger_id}, acknowledged before")

    def _check_replayed(self, host: str, storage: Storage) -> None:
        """Check that what is in memory right after the start, from the journal, has the bytes of a writer (I12)."""
        for ledger_id, truth in self.ledgers.items():
            ledger = storage.ledgers.get(ledger_id)
            if ledger is not None and not truth.foreign:
                for entry_id in truth.pushed:
                    body = storage.read_now(ledger, entry_id)
                    if body is not None:
                        self._entry_sent(host, body)

    def _owes(self, host: str, ledger_id: int, entry_id: int) -> bool:
        """Return True if a node must keep an entry: its ledger is open, or closed behind the entry with the node in its
        write set (I13, I17)."""
        truth = self.truth(ledger_id)
        metadata = truth.metadata
        if truth.deleted or metadata is None:
            return False
        if not metadata.is_closed:
            return True
        if entry_id > metadata.last_entry:
            return False  # a node that collected the ledger may be given the rest of it back
        bookies = metadata.ensemble_for(entry_id).bookies
        indices = write_set(entry_id, len(bookies), metadata.write_quorum)
        return any(bookies[index].partition(":")[0] == host for index in indices)

    def _needs_fence(self, ledger_id: int) -> bool:
        truth = self.truth(ledger_id)
        return not truth.deleted and truth.metadata is not None and not truth.metadata.is_closed

    def final_state(self) -> None:
        """Check that every node that serves still has what it acknowledged, after all collecting and compacting (I13,
        D8).
        """
        for node in self._world.nodes:
            if node.serving:
                self._check_promises(node, "is")

    # ------------------------------------------------------------------------------------ metadata

    def metadata_applied(self, ops: Sequence[Op]) -> None:
        """Judge each change of a ledger's znode by a transaction that was applied, before any client hears of it."""
        for op in ops:
            ledger_id = ledger_of(op.path)
            if ledger_id is None:
                continue
            if isinstance(op, Create | SetData):
                self._changed(self.truth(ledger_id), LedgerMetadata.decode(op.data, op.path))
            elif isinstance(op, Delete):
                self.truth(ledger_id).deleted = True

    def _changed(self, ledger: LedgerTruth, new: LedgerMetadata) -> None:
        old, ledger.metadata = ledger.metadata, new
        if old is None:
            return
        name = f"ledger {ledger.ledger_id}"
        if old.is_closed and (new.state, new.last_entry, new.length) != (old.state, old.last_entry, old.length):
            self.fail(f"{name} was closed at {old.last_entry} and is {new.state.name} at {new.last_entry} now (I2)")
        if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.OPEN:
            self.fail(f"{name} went back from recovery to open (I2)")
        if new.state is LedgerState.IN_RECOVERY and new.ensembles != old.ensembles and not _is_re_replication(old, new):
            self.fail(f"{name}: a recovery published an ensemble change before its closing write (I18)")
        if new.ensembles != old.ensembles:
            self._ensembles_changed(ledger, old, new)
        if new.is_closed and not old.is_closed:
            self._closed(ledger, old, new)

    def _ensembles_changed(self, ledger: LedgerTruth, old: LedgerMetadata, new: LedgerMetadata) -> None:
        name = f"ledger {ledger.ledger_id}"
        kept = 0
        for before, after in zip(old.ensembles, new.ensembles, strict=False):
            if before != after:
                break
            kept += 1
        # From this entry on other nodes count, and what lies on the old ones alone is lost to readers.
        first = new.ensembles[kept].first_entry if kept < len(new.ensembles) else new.last_ensemble.first_entry
        if _is_re_replication(old, new):
            self._world.reached("metadata.re-replicated")  # an earlier fragment has another node now
        elif new.state is LedgerState.OPEN:
            self._world.reached("writer.ensemble-change")
            self.on_replaced(old, new)
            if len(new.ensembles) == len(old.ensembles):
                self._world.reached("writer.fragment-replaced")
            if first <= ledger.acknowledged:
                self.fail(
                    f"{name}: the ensemble from entry {first} on was changed, though entry {ledger.acknowledged} was "
                    "acknowledged by the old one (D5)"
                )
        elif not old.is_closed:
            self._world.reached("recovery.ensemble-change")
        else:
            self._world.reached("metadata.re-replicated")
        last = new.last_entry if new.is_closed else ledger.acknowledged
        for entry_id in range(first, min(ledger.acknowledged, last) + 1):
            self._check_replicas(ledger, entry_id, "after an ensemble change")

    def _closed(self, ledger: LedgerTruth, old: LedgerMetadata, new: LedgerMetadata) -> None:
        name = f"ledger {ledger.ledger_id}"
        ledger.closes += 1
        self._world.reached("recovery.closed" if old.state is LedgerState.IN_RECOVERY else "writer.closed")
        if ledger.foreign:
            return
        if new.last_entry < ledger.acknowledged:
            self.fail(f"{name} was closed at {new.last_entry}; entry {ledger.acknowledged} was acknowledged (I1)")
        if new.last_entry < ledger.highest_read:
            self.fail(f"{name} was closed at {new.last_entry}; entry {ledger.highest_read} was read before (I2, I17)")
        if new.last_entry < ledger.highest_lac:
            self.fail(f"{name} was closed at {new.last_entry}; a reader saw LAC {ledger.highest_lac} (I6)")
        length = sum(len(ledger.pushed.get(entry_id, b"")) for entry_id in range(new.last_entry + 1))
        if new.last_entry >= 0 and new.last_entry not in ledger.pushed:
            self.fail(f"{name} was closed at {new.last_entry}, which was never written")
        if new.length != length:
            self.fail(f"{name} was closed with length {new.length}; its entries have {length} bytes")
        for entry_id in range(new.last_entry + 1):
            self._check_replicas(ledger, entry_id, "when it was closed")

    def _check_replicas(self, ledger: LedgerTruth, entry_id: int, when: str) -> None:
        metadata = ledger.metadata
        if metadata is None or ledger.deleted:
            return
        bookies = metadata.ensemble_for(entry_id).bookies
        indices = write_set(entry_id, len(bookies), metadata.write_quorum)
        holders = [bookies[i] for i in indices if self._holds(bookies[i], ledger.ledger_id, entry_id)]
        if len(holders) < metadata.ack_quorum:
            self.fail(
                f"ledger {ledger.ledger_id}: {when}, committed entry {entry_id} lies on {holders} of its "
                f"write set {[bookies[i] for i in indices]}: fewer than {metadata.ack_quorum} (I1)"
            )

    def _lac_carried(self, ledger_id: int, entry_id: int, lac: int) -> None:
        """Note that a node stores an entry with this LAC: every later recovery believes in all entries up to there."""
        truth = self.truth(ledger_id)
        for earlier in range(truth.carried + 1, lac + 1):
            self._check_replicas(truth, earlier, f"as entry {entry_id} was stored, which carries LAC {lac} (I6, I18)")
        truth.carried = max(truth.carried, lac)

    def _holds(self, bookie_id: str, ledger_id: int, entry_id: int) -> bool:
        return (ledger_id, entry_id) in self.nodes[bookie_id.partition(":")[0]].durable

    # ------------------------------------------------------------------------------------ clients

    def pushed(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """Note that a writer gives an entry to its client."""
        truth = self.truth(ledger_id)
        if entry_id in truth.pushed:
            self.fail(f"entry {entry_id} of ledger {ledger_id} was given out twice (I3)")
        truth.pushed[entry_id] = payload

    def acknowledged(self, ledger_id: int, entry_id: int) -> None:
        """Note that a writer's add was answered: the entry is stored."""
        self._world.trace.note(f"ack {ledger_id}/{entry_id}")
        truth = self.truth(ledger_id)
        if entry_id != truth.acknowledged + 1:
            self.fail(f"ledger {ledger_id}: entry {entry_id} acknowledged after {truth.acknowledged} (I4)")
        metadata = truth.metadata
        if metadata is not None and metadata.is_closed and entry_id > metadata.last_entry:
            self.fail(f"ledger {ledger_id} is closed at {metadata.last_entry}; entry {entry_id} was acknowledged (I5)")
        truth.acknowledged = entry_id
        self._check_replicas(truth, entry_id, "when it was acknowledged")

    def refused(self, ledger_id: int, entry_id: int, error: BaseException) -> None:
        """Note that a writer's add ended with an error: not acknowledged; some errors say that the entry is not in the
        ledger."""
        truth = self.truth(ledger_id)
        # Only "not applied" is a promise that can be broken; an unknown outcome may be either.
        if truth.deleted or outcome_of(error) is not OperationOutcome.FAILED:
            return
        metadata = truth.metadata
        if metadata is None or not metadata.is_closed or metadata.last_entry >= entry_id:
            self.fail(f"entry {entry_id} of ledger {ledger_id} may be in it, but was called not applied: {error!r}")

    def lac_seen(self, reader: str, ledger_id: int, before: int, lac: int) -> None:
        """Note that a reader has a LAC."""
        truth = self.truth(ledger_id)
        if lac < before:
            self.fail(f"{reader}: the LAC of ledger {ledger_id} went back from {before} to {lac} (I6)")
        if truth.deleted or truth.metadata is None or truth.foreign:
            return
        quorum = truth.metadata.ack_quorum
        # Only upwards: an entry that an ack quorum has had is committed, whatever their disks lose later.
        while self.durability.holders.get((ledger_id, truth.committed + 1), 0) >= quorum:
            truth.committed += 1
        if lac > truth.committed:
            self.fail(
                f"{reader}: LAC {lac} of ledger {ledger_id}, but an ack quorum has the entries up to "
                f"{truth.committed} only (I6)"
            )
        if truth.metadata.is_closed and lac > truth.metadata.last_entry:
            self.fail(f"{reader}: LAC {lac} of ledger {ledger_id}, which ends at {truth.metadata.last_entry} (I6, I17)")
        truth.highest_lac = max(truth.highest_lac, lac)

    def entry_read(self, reader: str, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """Note that a reader was given an entry."""
        self._world.trace.note(f"read {reader} {ledger_id}/{entry_id}")
        truth = self.truth(ledger_id)
        if truth.pushed.get(entry_id) != payload:
            self.fail(f"{reader}: entry {entry_id} of ledger {ledger_id} is not what was written (I3, I12)")
        metadata = truth.metadata
        if metadata is not None and metadata.is_closed and entry_id > metadata.last_entry:
            self.fail(f"{reader}: entry {entry_id} lies beyond the end {metadata.last_entry} (I17)")
        truth.highest_read = max(truth.highest_read, entry_id)

    def end_seen(self, client: str, ledger_id: int, last_entry: int, length: int) -> None:
        """Note that a client learned a ledger's end: from its own closing, a recovery or a reader."""
        metadata = self.truth(ledger_id).metadata
        if metadata is None or not metadata.is_closed:
            self.fail(f"{client}: ledger {ledger_id} is said to end at {last_entry}, but it is not closed (I2)")
        elif (metadata.last_entry, metadata.length) != (last_entry, length):
            self.fail(
                f"{client}: ledger {ledger_id} ends at {metadata.last_entry} ({metadata.length} bytes), not at "
                f"{last_entry} ({length} bytes) (I2, I10)"
            )


def _is_re_replication(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Return whether only the nodes of earlier fragments differ, whose entries are settled: auto-recovery may do that
    at any time."""
    return new.last_ensemble == old.last_ensemble and len(new.ensembles) == len(old.ensembles)


def ledger_of(path: str) -> int | None:
    """Return the id in a ledger's path (layout `hierarchical`), None for other znodes."""
    parts = path.split("/")
    if len(parts) < 5 or parts[1] != "ledgers" or not parts[-1].startswith("L") or not parts[2].isdigit():
        return None
    return int("".join(parts[2:-1]) + parts[-1][1:])


def bodies_in(response: Response | ResponseV2) -> Sequence[memoryview]:
    """Return the entries that an answer carries."""
    if isinstance(response, BatchReadResponse):
        return response.entries
    return [response.body] if isinstance(response, ReadResponse) and response.body else []


def decode_answer(frame: memoryview) -> Response | ResponseV2:
    """Return a node's answer in either version."""
    return decode_response(frame) if frame[0] == VERSION_THREE_START else v2.decode_response(frame)


def _acknowledged_entry(frame: bytes) -> tuple[int, int] | None:
    """Return (ledger id, entry id) of an EOK to an add in its usual form; None: decode it."""
    at = 2 + frame[1]
    if frame[at : at + 4] != _EOK_TO_ADD or frame[at + 5 : at + 8] != _EOK:
        return None
    ledger_id, at = _varint(frame, at + 8)
    return (ledger_id, _varint(frame, at + 1)[0]) if frame[at] == 0x18 else None


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    """Return (value, offset behind it)."""
    value = shift = 0
    while frame[at] > 127:
        value |= (frame[at] & 127) << shift
        shift += 7
        at += 1
    return value | frame[at] << shift, at + 1
