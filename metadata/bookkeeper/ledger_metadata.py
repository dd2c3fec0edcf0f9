"""Ledger metadata as values: what BookKeeper keeps in a ledger's znode, and its byte format.

Pure: no store, no I/O. The znode's version travels beside the value (`ledgers.Versioned`), not in it.

The format is that of docs/reference/znodes.md#ledger-metadata.
The value begins with a text header, `BookieMetadataFormatVersion TAB version LF`. What follows depends on the version:

    3   varint length, then LedgerMetadataFormat in binary protobuf (what we write)
    2   the same message in protobuf text format, without the creator token
    1   plain lines: write quorum, ensemble size, length, `first TAB bookie TAB bookie...` for each fragment, and where
        the ledger is not open `last TAB CLOSED` (last = -102: in recovery). No digest, password or custom data

A ledger keeps the version that it was created with. Unless it is CLOSED, last entry and length are written as -1 and 0
and ignored when read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

from metadata.bookkeeper.protos import LEDGER_METADATA, format_text, parse_binary, parse_text
from metadata.foundation.errors import CallerError, CorruptDataError, check

_HEADER: Final = b"BookieMetadataFormatVersion\t"
_V1_CLOSED: Final = "CLOSED"
_V1_IN_RECOVERY: Final = -102
_MAX_VARINT: Final = 10


class LedgerState(IntEnum):
    """May a ledger still be written? OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED; CLOSED is final (I2)."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(IntEnum):
    """How are a ledger's entries protected? The numbers are those of the metadata's enum, not of the Java
    client API.
    """

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Which bookies hold a fragment: the entries from `first_entry` to the next fragment's first entry minus one?"""

    first_entry: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """Where do a ledger's entries lie, how many copies has each, where does it end? `last_entry` and `length` (payload
    bytes) mean something only when CLOSED.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    ensembles: tuple[Ensemble, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32
    password: bytes | None = field(default=b"", repr=False)
    custom: Mapping[str, bytes] = field(default_factory=dict)
    ctime_ms: int | None = None
    creator_token: int | None = None
    format_version: int = 3

    @property
    def last_ensemble(self) -> Ensemble:
        """The newest fragment; an open ledger is written to it."""
        return self.ensembles[-1]

    @property
    def is_closed(self) -> bool:
        """True once its end is decided, for ever (I2)."""
        return self.state is LedgerState.CLOSED

    def ensemble_for(self, entry: int) -> Ensemble:
        """Return the fragment that holds `entry` (>= 0)."""
        check(entry >= 0, f"no fragment holds entry {entry}")
        for ensemble in reversed(self.ensembles):
            if ensemble.first_entry <= entry:
                return ensemble
        return self.ensembles[0]

    def with_state(self, state: LedgerState) -> LedgerMetadata:
        """Return the same ledger OPEN or IN_RECOVERY; a CLOSED one stays closed for ever (I2)."""
        check(not self.is_closed, "a closed ledger cannot change its state")
        check(state is not LedgerState.CLOSED, "use closed(): it needs the last entry and the length")
        return replace(self, state=state, last_entry=-1, length=0, creator_token=0)

    def closed(self, last_entry: int, length: int) -> LedgerMetadata:
        """Return the ledger closed after `last_entry` (-1: empty) with `length` bytes of payload."""
        check(not self.is_closed, "a closed ledger cannot be closed again")  # I2: one last entry for ever
        check(last_entry >= -1 and length >= 0, f"last entry {last_entry} or length {length} out of range")
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length, creator_token=0)

    def with_ensemble(self, first_entry: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """Return the ledger with `bookies` from `first_entry` on: appended, or in place of a last fragment that starts
        there.

        Earlier fragments are never touched (docs/reference/wire.md#ensemble-change).
        """
        check(not self.is_closed, "a closed ledger's fragments are changed only by re-replication")
        check(len(bookies) == self.ensemble_size, f"{len(bookies)} bookies for an ensemble of {self.ensemble_size}")
        last = self.last_ensemble.first_entry
        check(first_entry >= last, f"fragment at {first_entry} would precede the last one at {last}")
        kept = self.ensembles[:-1] if first_entry == last else self.ensembles
        return replace(self, ensembles=(*kept, Ensemble(first_entry, tuple(bookies))), creator_token=0)

    def with_copies_on(self, first_entry: int, swaps: Mapping[int, tuple[str, str]]) -> LedgerMetadata | None:
        """Return the ledger with other bookies in the fragment that starts at `first_entry`, where copies were
        restored: index -> (old, new). Everything else stays, also of a closed ledger. None where there is nothing to
        do.

        An old bookie that is not in its place any more, or a new one that is a member, leaves its index as it is.
        """
        changed = []
        for ensemble in self.ensembles:
            bookies = list(ensemble.bookies)
            if ensemble.first_entry == first_entry:
                for index, (old, new) in swaps.items():
                    if bookies[index] == old and new not in bookies:
                        bookies[index] = new
            changed.append(replace(ensemble, bookies=tuple(bookies)))
        if tuple(changed) == self.ensembles:
            return None
        return replace(self, ensembles=tuple(changed), creator_token=0)

    def encode(self) -> bytes:
        """Return the znode's bytes, in this value's format version. Raises CallerError where that version cannot hold
        it."""
        fault = _fault(self)
        if fault is not None:
            raise CallerError(f"invalid ledger metadata: {fault}")
        header = _HEADER + str(self.format_version).encode("ascii") + b"\n"
        if self.format_version == 1:
            return header + _encode_lines(self)
        if self.format_version == 2:
            return header + format_text(_to_message(self, token=False))
        body: bytes = _to_message(self, token=True).SerializeToString()
        return header + _varint(len(body)) + body

    @classmethod
    def decode(cls, data: bytes, path: str) -> LedgerMetadata:
        """Read the bytes of the znode at `path` (for the error only). Raises CorruptDataError."""
        version, body = _split_header(bytes(data), path)
        if version == 1:
            metadata = _decode_lines(body, path)
        elif version == 2:
            metadata = _from_message(parse_text(LEDGER_METADATA, body, path), version, path)
        else:
            message = parse_binary(LEDGER_METADATA, _delimited(body, path), path)
            metadata = _from_message(message, version, path)
        fault = _fault(metadata)
        if fault is not None:
            raise CorruptDataError(f"invalid ledger metadata: {fault}", path=path)
        return metadata


def _fault(metadata: LedgerMetadata) -> str | None:
    """Return what is wrong with the value, or None. Held both before writing and after reading."""
    e, w, a = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
    if not e >= w >= a > 0:
        return f"ensemble {e} >= write quorum {w} >= ack quorum {a} > 0 does not hold"
    if not metadata.ensembles:
        return "no ensemble"
    starts = [ensemble.first_entry for ensemble in metadata.ensembles]
    if starts[0] < 0 or any(later <= earlier for earlier, later in pairwise(starts)):
        return f"first entries {starts} do not ascend"
    if any(len(ensemble.bookies) != e for ensemble in metadata.ensembles):
        return f"an ensemble does not have {e} members"
    if not all(bookie for ensemble in metadata.ensembles for bookie in ensemble.bookies):
        return "an ensemble has a member without a name"
    if metadata.is_closed and (metadata.last_entry < -1 or metadata.length < 0):
        return f"closed at entry {metadata.last_entry} with length {metadata.length}"
    return _fault_of_version(metadata)


def _fault_of_version(metadata: LedgerMetadata) -> str | None:
    if metadata.format_version not in (1, 2, 3):
        return f"format version {metadata.format_version} is not one of 1 to 3"
    if (metadata.digest_type is None) != (metadata.password is None):
        return "digest type and password must both be present or both absent"
    if metadata.format_version == 1:
        if metadata.write_quorum != metadata.ack_quorum:
            return "format version 1 has no ack quorum"
        if metadata.digest_type is not None or metadata.custom:
            return "format version 1 holds no digest type, password or custom metadata"
    return None


def _to_message(metadata: LedgerMetadata, *, token: bool) -> Any:
    message: Any = LEDGER_METADATA()
    message.quorumSize = metadata.write_quorum
    message.ensembleSize = metadata.ensemble_size
    message.length = metadata.length if metadata.is_closed else 0
    message.lastEntryId = metadata.last_entry if metadata.is_closed else -1
    message.state = int(metadata.state)
    for ensemble in metadata.ensembles:
        message.segment.add(ensembleMember=ensemble.bookies, firstEntryId=ensemble.first_entry)
    if metadata.digest_type is not None:
        message.digestType = int(metadata.digest_type)
        message.password = metadata.password  # empty but present for the empty password
    message.ackQuorumSize = metadata.ack_quorum
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    for key, value in metadata.custom.items():
        message.customMetadata.add(key=key, value=value)
    if token and metadata.creator_token is not None:
        message.cToken = metadata.creator_token
    return message


def _from_message(message: Any, version: int, path: str) -> LedgerMetadata:
    state = LedgerState(message.state)
    closed = state is LedgerState.CLOSED
    if closed and not message.HasField("lastEntryId"):
        raise CorruptDataError("invalid ledger metadata: closed without a last entry", path=path)
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        ensembles=tuple(Ensemble(part.firstEntryId, tuple(part.ensembleMember)) for part in message.segment),
        state=state,
        # Other writers may leave one there while the ledger is open: before the close no end counts (I2).
        last_entry=message.lastEntryId if closed else -1,
        length=message.length if closed else 0,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password if message.HasField("password") else None,
        custom={pair.key: pair.value for pair in message.customMetadata},
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        creator_token=message.cToken if message.HasField("cToken") else None,
        format_version=version,
    )


def _encode_lines(metadata: LedgerMetadata) -> bytes:
    length = metadata.length if metadata.is_closed else 0
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(length)]
    lines += ["\t".join((str(part.first_entry), *part.bookies)) for part in metadata.ensembles]
    tail = ""
    if metadata.state is not LedgerState.OPEN:
        last = metadata.last_entry if metadata.is_closed else _V1_IN_RECOVERY
        tail = f"{last}\t{_V1_CLOSED}"
    return ("\n".join(lines) + "\n" + tail).encode("utf-8")


def _decode_lines(body: bytes, path: str) -> LedgerMetadata:
    try:
        return _parse_lines(body.decode("utf-8").split("\n"))
    except (ValueError, IndexError) as error:  # UnicodeDecodeError is a ValueError
        raise CorruptDataError(f"not ledger metadata of version 1: {error}", path=path) from error


def _parse_lines(lines: list[str]) -> LedgerMetadata:
    quorum, size, length = int(lines[0]), int(lines[1]), int(lines[2])
    ensembles: list[Ensemble] = []
    state, last_entry = LedgerState.OPEN, -1
    for line in lines[3:]:
        first, *rest = line.split("\t")
        if not line:
            continue
        if state is not LedgerState.OPEN:
            raise ValueError("lines after the closing one")
        if rest == [_V1_CLOSED]:
            in_recovery = int(first) == _V1_IN_RECOVERY
            state = LedgerState.IN_RECOVERY if in_recovery else LedgerState.CLOSED
            last_entry = -1 if in_recovery else int(first)
        else:
            ensembles.append(Ensemble(int(first), tuple(rest)))
    return LedgerMetadata(
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=quorum,
        ensembles=tuple(ensembles),
        state=state,
        last_entry=last_entry,
        length=length if state is LedgerState.CLOSED else 0,
        digest_type=None,
        password=None,
        format_version=1,
    )


def _split_header(data: bytes, path: str) -> tuple[int, bytes]:
    head, separator, body = data.partition(b"\n")
    digits = head[len(_HEADER) :]
    if not separator or not head.startswith(_HEADER) or not digits.isdigit() or len(digits) > 4:
        raise CorruptDataError("ledger metadata does not begin with its header", path=path)
    version = int(digits)
    if not 1 <= version <= 3:
        raise CorruptDataError(
            f"ledger metadata of version {version}; 1 to 3 are known", path=path, advice="Use a newer dlspark"
        )
    return version, body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _delimited(body: bytes, path: str) -> bytes:
    """Return the message after its varint length: exactly that many bytes must follow."""
    length = 0
    for index, byte in enumerate(body[:_MAX_VARINT]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            message = body[index + 1 :]
            if len(message) != length:
                raise CorruptDataError(f"{len(message)} bytes of ledger metadata, {length} announced", path=path)
            return message
    raise CorruptDataError("ledger metadata without a valid length", path=path)
