"""Control records in which a log keeps the state of its idempotent producers (docs/reference/records.md#producers).

    request     before the records of a producer's request, in the same entry: its producer, and its number
    snapshot    what is known of all producers up to this entry, in one or more parts, an entry each; and up to which
                epoch those may have written that were left out
    fence       the log's fencing token from here on

A request's record is text, for it stands before the records that readers look for: bytes of zeros would look to them
like headers of records (`record_chain`). The others are binary, each alone in its entry:

    request     dlp1:request:<epoch>:<sequence>:<count>:<name>
    snapshot    dlp1:producers:<binary>, or dlp1:remembered:<binary> where some were left out
    fence       dlp1:fence:<token>

Readers hide control records, upstream's too, so a log with producers is read like any other. Payloads that do not begin
with `dlp` and a version are other writers' control records. What does and is not whole, or is of another version or
kind, is an InvalidEntryError.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final, NamedTuple

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import InvalidEntryError, InvalidRecordError

VERSION: Final = b"dlp1"
REQUEST, SNAPSHOT, REMEMBERED, FENCE = b"request", b"producers", b"remembered", b"fence"
KEPT: Final = 5
"""Requests of a producer whose positions are kept, the newest."""
MAX_NAME_BYTES: Final = 256
MAX_TOKEN_BYTES: Final = 36
"""Of a fencing token: room for a UUID as text."""
MAX_NUMBER: Final = 2**63 - 1
"""Of an epoch or a sequence number."""
MAX_COUNT: Final = 2**32 - 1
"""Of the records of a request."""

_OURS: Final = re.compile(rb"dlp[0-9]+:")
_PART: Final = Struct(">IIIH")
_NAME: Final = Struct(">HH")
_STATE: Final = Struct(">qqq")
_KEPT: Final = Struct(">qqqII")
_EPOCH: Final = Struct(">q")
_NUMBERS: Final = re.compile(rb"([0-9]{1,19}):(-1|[0-9]{1,19}):([0-9]{1,10}):")
_HEAD_OF_PART: Final = b"%b:%b:" % (VERSION, SNAPSHOT)
_HEAD_OF_REMEMBERED: Final = b"%b:%b:" % (VERSION, REMEMBERED)


class ProducerRequest(NamedTuple):
    """Whose records follow in the entry: request number `sequence` of producer `name` in `epoch`, of `count` records.

    A request without records only begins an epoch; its sequence number is -1.
    """

    name: str
    epoch: int
    sequence: int
    count: int  # type: ignore[assignment]

    def encode(self) -> bytes:
        """Return the payload of its control record. Raises InvalidRecordError."""
        try:
            name = self.name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecordError(f"a producer's name is not text: {error}", advice="Give another one") from error
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise InvalidRecordError(
                f"a producer's name has {len(name)} bytes; 1 to {MAX_NAME_BYTES} are accepted",
                advice="Give another one",
            )
        if not (0 <= self.epoch <= MAX_NUMBER and -1 <= self.sequence <= MAX_NUMBER):
            raise InvalidRecordError(
                f"epoch {self.epoch} or sequence number {self.sequence} of producer {self.name!r} is out of range",
                advice=f"Both begin at 0 and end at {MAX_NUMBER}",
            )
        return b"%b:%b:%d:%d:%d:%b" % (VERSION, REQUEST, self.epoch, self.sequence, self.count, name)


class Kept(NamedTuple):
    """One request that was written: its number, where its first record is, and how many there are."""

    sequence: int
    first: DLSN
    records: int


class ProducerState(NamedTuple):
    """One producer as its log knows it. `last` is its newest request's number, -1 where the epoch has none yet; `kept`
    has the newest requests, oldest first."""

    epoch: int
    last: int
    seen_ms: int
    kept: tuple[Kept, ...] = ()

    def encode(self, name: str) -> bytes:
        """Return what a snapshot says of the producer of this name: 28 bytes and the name, and 32 for each request."""
        encoded = name.encode()
        requests = [_KEPT.pack(sequence, *first[:2], first[2], count) for sequence, first, count in self.kept]
        length = _STATE.size + _KEPT.size * len(requests)
        state = _STATE.pack(self.epoch, self.last, self.seen_ms)
        return b"".join((_NAME.pack(len(encoded), length), encoded, state, *requests))

    @classmethod
    def decode(cls, entry: bytes) -> ProducerState:
        """Reverse `encode`, but for the name; a whole number of requests is the caller's to check."""
        start = _state_start(entry)
        epoch, last, seen_ms = _STATE.unpack_from(entry, start)
        kept = [
            Kept(sequence, DLSN(lssn, entry_id, slot), count)
            for sequence, lssn, entry_id, slot, count in _KEPT.iter_unpack(entry[start + _STATE.size :])
        ]
        return cls(epoch, last, seen_ms, tuple(kept))


def _state_start(entry: bytes) -> int:
    return _NAME.size + int.from_bytes(entry[:2], "big")


def seen_ms(entry: bytes) -> int:
    """Return when the producer of an encoded state was heard of last, in milliseconds since the epoch."""
    start = _state_start(entry)
    return int.from_bytes(entry[start + 16 : start + 24], "big", signed=True)


def epoch_of(entry: bytes) -> int:
    """Return the epoch of an encoded state."""
    start = _state_start(entry)
    return int.from_bytes(entry[start : start + 8], "big", signed=True)


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Part `number` of `parts`: encoded states by name, and the log's fencing token.

    `forgotten`: the highest epoch that a producer may have begun which is in no part any more; -1 where none was left
    out. An older dlspark, which takes those for producers that never wrote, refuses a part that says so.
    """

    number: int
    parts: int
    token: bytes
    states: dict[str, bytes]
    forgotten: int = -1
    newest_ms: int | None = None
    """When one of them was heard of last, in milliseconds since the epoch; None where it has none."""


@dataclass(frozen=True, slots=True)
class FencingToken:
    """The log's fencing token from here on; empty for none."""

    token: bytes

    def encode(self) -> bytes:
        """Return the payload of its control record. Raises InvalidRecordError."""
        if len(self.token) > MAX_TOKEN_BYTES:
            raise InvalidRecordError(
                f"a fencing token of {len(self.token)} bytes is longer than {MAX_TOKEN_BYTES}", advice="Use a UUID"
            )
        return b":".join((VERSION, FENCE, self.token))


def encode_snapshot(states: Sequence[bytes], token: bytes, part_bytes: int, forgotten: int = -1) -> list[bytes]:
    """Return the payloads of a snapshot's control records, each of about `part_bytes` at most; one at least.

    A log may know 65,536 producers, and its event loop serves others: nothing here is done for one state at a time.
    """
    head = _HEAD_OF_PART if forgotten < 0 else _HEAD_OF_REMEMBERED + _EPOCH.pack(forgotten)
    ends = list(accumulate(map(len, states)))
    cuts = [0]
    # One step a part, by bisection: a loop over 65,536 states would hold up the writer's other logs.
    while cuts[-1] < len(states):
        begin = cuts[-1]
        before = ends[begin - 1] if begin else 0
        cuts.append(max(bisect_right(ends, before + part_bytes, lo=begin), begin + 1))
    parts = list(pairwise(cuts)) or [(0, 0)]
    return [
        b"".join((head, _PART.pack(number, len(parts), end - begin, len(token)), token, *states[begin:end]))
        for number, (begin, end) in enumerate(parts)
    ]


def decode_control(payload: bytes, dlsn: DLSN | None = None) -> ProducerRequest | SnapshotPart | FencingToken | None:
    """Return what a control record says of producers; None for one that says nothing of them.

    Raises InvalidEntryError carrying `dlsn` for one that is cut off, or of a version or kind that is not known: what
    it says would be missed, and a request be written twice.
    """
    if not _OURS.match(payload):
        return None
    version, _, rest = payload.partition(b":")
    if version != VERSION:
        raise InvalidEntryError(
            f"a producers' control record has version {version.decode()}; only {VERSION.decode()} is known",
            dlsn=dlsn,
            advice="Use the version of dlspark that wrote it, or a later one",
        )
    kind, colon, rest = rest.partition(b":")
    try:
        if kind == REQUEST:
            return _request(rest)
        if kind == SNAPSHOT:
            return _part(_PartFields(rest))
        if kind == REMEMBERED:
            return _remembered(_PartFields(rest))
        if kind == FENCE and colon:
            return FencingToken(rest)
    except ValueError as error:  # UnicodeDecodeError too
        raise InvalidEntryError(f"a producers' control record is damaged: {error}", dlsn=dlsn) from error
    raise InvalidEntryError(f"a producers' control record is of kind {kind!r}, which is not known", dlsn=dlsn)


class _PartFields:
    """Takes fields off a payload; raises ValueError where it is too short."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def fixed(self, layout: Struct) -> Sequence[int]:
        """Return the fields of `layout`."""
        return layout.unpack(self.taken(layout.size))

    def taken(self, size: int) -> bytes:
        """Take so many bytes."""
        end = self._at + size
        if end > len(self._payload):
            raise ValueError(f"it ends at byte {len(self._payload)}, in a field up to {end}")
        data, self._at = self._payload[self._at : end], end
        return data

    def end(self) -> None:
        """Check that nothing follows."""
        if self._at != len(self._payload):
            raise ValueError(f"{len(self._payload) - self._at} bytes are left over")


def _request(text: bytes) -> ProducerRequest:
    numbers = _NUMBERS.match(text)
    if numbers is None:
        raise ValueError(f"{text[:60]!r} is not an epoch, sequence number, count and name")
    epoch, sequence, count = (int(number) for number in numbers.groups())
    encoded = text[numbers.end() :]
    # What is beyond a state's fields could not be remembered (I19).
    if not 0 < len(encoded) <= MAX_NAME_BYTES:
        raise ValueError(f"a producer's name has {len(encoded)} bytes, it may have 1 to {MAX_NAME_BYTES}")
    name = encoded.decode()
    if max(epoch, sequence) > MAX_NUMBER or count > MAX_COUNT or (sequence == -1) != (count == 0):
        raise ValueError(f"request {sequence} of epoch {epoch} by {name!r} has {count} records")
    return ProducerRequest(name, epoch, sequence, count)


def _part(fields: _PartFields) -> SnapshotPart:
    number, parts, count, token_length = fields.fixed(_PART)
    token = fields.taken(token_length)
    states = dict(_states(fields, count))
    fields.end()
    if number >= parts or len(states) != count:
        raise ValueError(f"part {number} of {parts} names {len(states)} producers and has {count}")
    return SnapshotPart(number, parts, token, states, newest_ms=max(map(seen_ms, states.values()), default=None))


def _remembered(fields: _PartFields) -> SnapshotPart:
    (forgotten,) = fields.fixed(_EPOCH)
    if forgotten < 0:
        raise ValueError(f"producers up to epoch {forgotten} were left out")
    return replace(_part(fields), forgotten=forgotten)


def _states(fields: _PartFields, count: int) -> Iterator[tuple[str, bytes]]:
    for _ in range(count):
        head = fields.taken(_NAME.size)
        name_length, length = _NAME.unpack(head)
        encoded = fields.taken(name_length)
        name, state = encoded.decode(), fields.taken(length)
        kept, rest = divmod(length - _STATE.size, _KEPT.size)
        if not name or rest or not 0 <= kept <= KEPT:
            raise ValueError(f"the state of producer {name!r} has {length} bytes")
        yield name, b"".join((head, encoded, state))
