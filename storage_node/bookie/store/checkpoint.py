"""The checkpoint file: what the node knew, and from where on the journal has to be replayed
(docs/reference/node-files.md#checkpoint).

The same file `checkpoint` lies in every ledger directory; the one with the highest counter is the truth. It replaces
its predecessor atomically, and the journal's files are given up only when every copy is in place (D7).

    8   magic "dlsCKPT4"
    4   flags: 1 = clean stop, nothing to replay; 2 = entries may have been lost here (I11)
    8   counter
    8   lowest entry log id never used
    4   number of journals, then the mark of each: 8 file id, 8 offset, 8 batch sequence number
    4   number of logs, then for each: 8 log id, 8 length
    4   number of ledgers, then the ledgers' states
    4   number of logs of which entries are lost, then for each: 8 log id
    4   number of ledgers that were fenced when they were deleted, then for each: 8 ledger id, 8 when (ms)
    4   CRC-32 of everything before
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError

from metadata.foundation.errors import CorruptDataError
from storage_node.bookie.journal.replay import Mark
from storage_node.bookie.store.ledgers import Ledger
from storage_node.protocol.digests import crc32

FILE_NAME = "checkpoint"
MAGIC = b"dlsCKPT4"
_HEAD = Struct(">8sIQQ")
_MARK = Struct(">QQQ")
_LOG = Struct(">QQ")
_COUNT = Struct(">I")
_LOST = Struct(">Q")
_GONE = Struct(">qQ")
_SUM = Struct(">I")
_CLEAN, _LOSSY = 1, 2


def missing(directories: list[str]) -> CorruptDataError:
    """There is data, but no readable checkpoint."""
    return CorruptDataError(
        f"there are journal files or entry logs, but no intact file {FILE_NAME} in any ledger directory",
        advice="The node did not start, because it cannot know what it has lost. Restore the file, or give the node "
        "up: let its ledgers be replicated elsewhere, then remove its cookie and directories",
        path=", ".join(directories),
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A decoded checkpoint.

    `marks` has one for each journal, `logs` gives the length up to which each log is indexed and durable, `fenced_gone`
    when (milliseconds since the epoch) a fenced ledger was deleted. `lost_logs` are logs of which entries are lost, and
    whose loss the ledgers' states tell of.
    """

    counter: int
    marks: tuple[Mark, ...]
    next_log_id: int
    logs: Mapping[int, int]
    clean: bool
    lossy: bool
    fenced_gone: Mapping[int, int] = field(default_factory=dict)
    lost_logs: frozenset[int] = frozenset()


def encode(checkpoint: Checkpoint, ledgers: Iterable[bytes]) -> bytes:
    """The file's bytes; `ledgers` are states by `Ledger.encode`."""
    states = list(ledgers)
    flags = (_CLEAN if checkpoint.clean else 0) | (_LOSSY if checkpoint.lossy else 0)
    parts = [_HEAD.pack(MAGIC, flags, checkpoint.counter, checkpoint.next_log_id), _COUNT.pack(len(checkpoint.marks))]
    parts += [_MARK.pack(mark.file_id, mark.offset, mark.sequence) for mark in checkpoint.marks]
    parts.append(_COUNT.pack(len(checkpoint.logs)))
    parts += [_LOG.pack(log_id, length) for log_id, length in checkpoint.logs.items()]
    parts.append(_COUNT.pack(len(states)))
    gone = [_COUNT.pack(len(checkpoint.fenced_gone)), *(_GONE.pack(*pair) for pair in checkpoint.fenced_gone.items())]
    lost = [_COUNT.pack(len(checkpoint.lost_logs)), *map(_LOST.pack, sorted(checkpoint.lost_logs))]
    data = b"".join(parts + states + lost + gone)
    return data + _SUM.pack(crc32(data, 0))


def decode(data: bytes) -> tuple[Checkpoint, dict[int, Ledger]] | None:
    """A checkpoint and the ledgers; None where the bytes are damaged."""
    if len(data) < _SUM.size or _SUM.unpack(data[-_SUM.size :])[0] != crc32(data[: -_SUM.size], 0):
        return None
    view = memoryview(data)[: -_SUM.size]
    try:
        magic, flags, counter, next_log_id = _HEAD.unpack_from(view)
        if magic != MAGIC:
            return None
        (mark_count,) = _COUNT.unpack_from(view, _HEAD.size)
        at = _HEAD.size + _COUNT.size
        marks = tuple(Mark(*_MARK.unpack_from(view, at + _MARK.size * index)) for index in range(mark_count))
        at += _MARK.size * mark_count
        (log_count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        logs: dict[int, int] = {}
        for _ in range(log_count):
            log_id, length = _LOG.unpack_from(view, at)
            logs[log_id] = length
            at += _LOG.size
        (ledger_count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        ledgers: dict[int, Ledger] = {}
        for _ in range(ledger_count):
            ledger, at = Ledger.decode(view, at)
            ledgers[ledger.ledger_id] = ledger
        (lost_count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        lost = frozenset(_LOST.unpack_from(view, at + _LOST.size * index)[0] for index in range(lost_count))
        at += _LOST.size * lost_count
        (gone_count,) = _COUNT.unpack_from(view, at)
        at += _COUNT.size
        gone = dict(_GONE.unpack_from(view, at + _GONE.size * index) for index in range(gone_count))
    except StructError:
        return None
    clean, lossy = bool(flags & _CLEAN), bool(flags & _LOSSY)
    return Checkpoint(counter, marks, next_log_id, logs, clean, lossy, gone, lost), ledgers
