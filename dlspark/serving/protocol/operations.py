"""What clients ask of proxies, and what they are answered: the values that both bindings carry. No I/O.

A *stream* is a log as clients of a proxy name it. Upstream's operations (docs/reference/serving.md#operations) are all
here; those of idempotent producers, hand-over and reading are this project's own.

    request            answer, where it was done
    Handshake          ProxyInfo
    WriteRecords       WriteReceipt; without a stamp and conditions and with several payloads, a BulkReceipt
    BeginEpoch         EpochBegun
    SetFencingToken    Done
    Heartbeat          Done
    TruncateStream     Done, with the DLSN truncated to
    CreateStream, DeleteStream, ReleaseStream, AcceptStreams     Done
    MoveStream         Done
    FindOwner          OwnerFound
    ListProxies        ProxyList
    ReadBatch          Delivery

Any of them may be answered with a Refusal instead, which says by its code what happened, by `applied` whether the thing
was done, and by `location` where to ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from storage_node.protocol.frames import Buffer


class StatusCode(IntEnum):
    """Upstream's status codes (docs/reference/serving.md#status-codes)."""

    SUCCESS = 200
    CLIENT_CLOSED = 301
    FOUND = 302
    REQUEST_DENIED = 403
    TOO_LARGE_RECORD = 413
    INTERNAL_SERVER_ERROR = 500
    NOT_IMPLEMENTED = 501
    ALREADY_CLOSED = 502
    SERVICE_UNAVAILABLE = 503
    LOCKING_EXCEPTION = 504
    ZOOKEEPER_ERROR = 505
    METADATA_EXCEPTION = 506
    BK_TRANSMIT_ERROR = 507
    FLUSH_TIMEOUT = 508
    LOG_EMPTY = 509
    LOG_NOT_FOUND = 510
    TRUNCATED_TRANSACTION = 511
    END_OF_STREAM = 512
    TRANSACTION_OUT_OF_ORDER = 513
    WRITE_EXCEPTION = 514
    STREAM_UNAVAILABLE = 515
    WRITE_CANCELLED = 516
    OVER_CAPACITY = 517
    STREAM_NOT_READY = 518
    REGION_UNAVAILABLE = 519
    INVALID_ENVELOPED_ENTRY = 520
    UNSUPPORTED_METADATA_VERSION = 521
    LOG_EXISTS = 522
    CHECKSUM_FAILED = 523
    TOO_MANY_STREAMS = 524
    LOG_SEGMENT_NOT_FOUND = 525
    END_OF_LOG_SEGMENT = 526
    LOG_SEGMENT_IS_TRUNCATED = 527
    UNEXPECTED = 600
    INTERRUPTED = 601
    INVALID_STREAM_NAME = 602
    ILLEGAL_STATE = 603
    RETRYABLE_READ = 1000
    LOG_READ_ERROR = 1001
    READ_CANCELLED = 1002


class ProxyStatus(IntEnum):
    """Says whether a write proxy takes writes (upstream's ServerStatus)."""

    WRITE_AND_ACCEPT = 100
    WRITE_ONLY = 200
    DOWN = 300


class Applied(IntEnum):
    """Says whether what was refused was done, as the error tree has it (`dlspark.errors`)."""

    NO = 0
    """Definitely not: a retry is safe."""
    WRONG = 1
    """Not done, and a retry of the same request is refused again: the request itself is wrong."""
    UNKNOWN = 2
    """May or may not have been: only a producer's request may be sent again as it is."""


class Reason(IntEnum):
    """Why, where the status code alone does not say what follows (docs/reference/serving.md#reasons).

    A code stands for several failures; a client decides by the reason first, and by the code where there is none.
    """

    NONE = 0
    CONDITION_FAILED = 1
    """A condition of the write does not hold."""
    RECORD_REFUSED = 2
    """A record, or what the request says of its records, cannot be written anywhere."""
    DATA_DAMAGED = 3
    """What is stored cannot be read."""
    POSITIONS_MISSING = 4
    """A record is missing between two that were read."""
    SEGMENT_GONE = 5
    """A segment's data is gone, though the log lists it."""
    PRODUCER_REFUSED = 6
    """The producer's request does not follow its last one."""
    PRODUCER_FENCED = 7
    """A newer epoch of the producer has begun."""
    SEQUENCE_GAP = 8
    """Requests of the producer before this one are missing."""
    SEQUENCE_PASSED = 9
    """Later requests of the producer were written; this one, perhaps."""
    PROXY_UNREACHABLE = 10
    """Another proxy could not be reached; it was not asked."""
    PROXY_LOST = 11
    """Another proxy was asked, and was gone before it had answered."""
    PRODUCER_FORGOTTEN = 12
    """The log knows nothing of the producer any more, and has forgotten some: perhaps it was written before."""
    TOO_MANY_PRODUCERS = 13
    """The log, or this client on it, has as many producers as it may have, and the request is of a new one."""


REASON_OF_NAME: Final[Mapping[str, Reason]] = MappingProxyType(
    {
        "ConditionError": Reason.CONDITION_FAILED,
        "InvalidRecordError": Reason.RECORD_REFUSED,
        "RecordTooLongError": Reason.RECORD_REFUSED,
        "CorruptDataError": Reason.DATA_DAMAGED,
        "DigestError": Reason.DATA_DAMAGED,
        "DamagedColdFileError": Reason.DATA_DAMAGED,
        "InvalidEntryError": Reason.DATA_DAMAGED,
        "RangeShortError": Reason.DATA_DAMAGED,
        "PositionGapError": Reason.POSITIONS_MISSING,
        "SegmentNotFoundError": Reason.SEGMENT_GONE,
        "ProducerError": Reason.PRODUCER_REFUSED,
        "ProducerFencedError": Reason.PRODUCER_FENCED,
        "SequenceGapError": Reason.SEQUENCE_GAP,
        "SequencePassedError": Reason.SEQUENCE_PASSED,
        "ProducerForgottenError": Reason.PRODUCER_FORGOTTEN,
        "TooManyProducersError": Reason.TOO_MANY_PRODUCERS,
        "ProxyUnreachableError": Reason.PROXY_UNREACHABLE,
        "ProxyLostError": Reason.PROXY_LOST,
    }
)
"""What names of errors say, where no reason is said: frames carry names, and so did proxies before there were
reasons. These names are part of the protocol, and are not renamed with the classes."""
NAME_OF_REASON: Final[Mapping[Reason, str]] = MappingProxyType(
    {reason: name for name, reason in list(REASON_OF_NAME.items())[::-1]}  # of several names the first one stays
)
"""The first name that says a reason stands for it."""


# ---------------------------------------------------------------------- requests


class RequestContext(NamedTuple):
    """Travels with every request on a stream (upstream's WriteContext)."""

    tried_hosts: tuple[str, ...] = ()
    """Locations that were asked before: a proxy that remembers one of them as the owner looks again."""
    checksum: int | None = None
    """CRC-32 of stream and payload (`checksums`), None where the client sends none."""
    is_record_set: bool = False
    """Whether each payload is a record set, encoded by the client."""
    timeout_ms: int = 0
    """How long the client waits for the answer; 0: for ever. A proxy does not begin what nobody waits for any more."""


NO_CONTEXT = RequestContext()


class ProducerStamp(NamedTuple):
    """The producer of a request, and the request's number (docs/reference/records.md#producers)."""

    name: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Handshake:
    """Ask a proxy for its name, and for what it owns: streams that match `stream_regex` as a whole."""

    stream_regex: str | None = None
    ownerships: bool = True
    count_logs: bool = False
    """From read proxy to read proxy: how many logs do you read? Over frames alone, to proxies that announce that they
    know the question."""
    region: str | None = None
    """The region of the client, for whatever else comes over its connection. Over frames alone, to proxies that
    announce a region: older ones would take it for a broken frame."""
    token: bytes | None = field(default=None, repr=False)
    """A bearer token, for whatever else comes over its connection, until another one follows. Over frames alone, and
    only under TLS: every proxy that speaks TLS knows it."""


class WriteRecords(NamedTuple):
    """Write payloads as records, in this order.

    With a stamp, a condition or `atomic`, all of them lie in one entry: they are written whole or not at all, and are
    answered with one WriteReceipt. Otherwise each is a record of its own fate (upstream's writeBulk).
    """

    stream: str
    payloads: tuple[Buffer, ...]
    context: RequestContext = NO_CONTEXT
    stamp: ProducerStamp | None = None
    expected_position: int | DLSN | None = None
    """A sequence id that the first record must get, or the DLSN that must be the log's last one."""
    fencing_token: bytes | None = None
    atomic: bool = False
    transaction_ids: tuple[int, ...] | None = None
    """One for each payload, None: the proxy's clock (docs/serving/write-proxy.md#transaction-ids)."""

    @property
    def is_whole(self) -> bool:
        """Whether it is written whole or not at all."""
        return (
            self.atomic
            or self.stamp is not None
            or self.expected_position is not None
            or self.fencing_token is not None
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is one record, no record set, of which nothing is asked but to be stored, with the proxy's id."""
        # What is asked is compared at once: every record that a proxy gets comes through here.
        return len(self.payloads) == 1 and self[_ASKED] == _NOTHING_ASKED and not self.context.is_record_set

    def within(self, context: RequestContext) -> WriteRecords:
        """Return the same in another context."""
        return self._copy(context, self.stamp)

    def stamped(self, stamp: ProducerStamp) -> WriteRecords:
        """Return the same as a request of a producer."""
        return self._copy(self.context, stamp)

    def _copy(self, context: RequestContext, stamp: ProducerStamp | None) -> WriteRecords:
        """Return what `dataclasses.replace` does in four times the time, twice for each request of a client."""
        return WriteRecords(
            self.stream,
            self.payloads,
            context,
            stamp,
            self.expected_position,
            self.fencing_token,
            self.atomic,
            self.transaction_ids,
        )


_ASKED: Final = slice(WriteRecords._fields.index("stamp"), None)
_NOTHING_ASKED: Final[object] = (None, None, None, False, None)
"""What `_ASKED` cuts out of a write of which nothing is asked."""


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Begin a new epoch of a producer: requests of its older ones are refused from then on."""

    stream: str
    producer: str
    epoch: int | None = None
    """None: the one after the producer's last; a number may come again."""
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class SetFencingToken:
    """Set the log's fencing token; `expected` is the one that it must have now, None for any."""

    stream: str
    token: bytes
    expected: bytes | None = None
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Own the stream; with `to_readers` a control record `heartbeat` is written."""

    stream: str
    to_readers: bool = False
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class TruncateStream:
    """Hide every record below `dlsn`."""

    stream: str
    dlsn: DLSN
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class CreateStream:
    """Create the log."""

    stream: str
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class DeleteStream:
    """Delete the log that is served here."""

    stream: str
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class ReleaseStream:
    """Give up the ownership of the stream."""

    stream: str
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class MoveStream:
    """Hand the stream over to the proxy at `target` (docs/serving/write-proxy.md#hand-over)."""

    stream: str
    target: str
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class TakeStream:
    """From proxy to proxy: get ready for a stream that `source` hands over."""

    stream: str
    source: str
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class FindOwner:
    """Ask for the owner of the stream."""

    stream: str
    context: RequestContext = NO_CONTEXT


@dataclass(frozen=True, slots=True)
class ListProxies:
    """Ask for the proxies that there are."""


@dataclass(frozen=True, slots=True)
class AcceptStreams:
    """Have the proxy take streams that it does not own yet, or not (upstream's setAcceptNewStream)."""

    enabled: bool


class ReadForm(IntEnum):
    """The forms in which a reader is given a log."""

    RECORDS = 1
    """Records, decoded by the proxy (`deliveries`)."""
    ENTRIES = 2
    """Entries as they are stored; the client decodes them."""
    ARROW = 3
    """Arrow record batches, in Arrow's stream format."""


class ReadFrom(IntEnum):
    """A start that is not a position."""

    OLDEST = 1
    LATEST = 2
    """Behind the last record that can be read now."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Read what comes at `start` or behind it; wait for it at the end of the log.

    `start` is the DLSN to read next, a transaction id (an int) or a `ReadFrom`. `reader` is a number that the client
    chooses, one for each of its readers in a connection; by it the proxy finds what it has open for the reader. The
    answer says where to go on, so any proxy can be asked next: nothing is acknowledged, no position is stored.
    """

    stream: str
    start: DLSN | int | ReadFrom
    reader: int = 0
    form: ReadForm = ReadForm.RECORDS
    max_bytes: int = 1024 * 1024
    """About how much may come; one entry comes always, however long it is."""
    wait_ms: int = 10_000
    """How long to wait where nothing is there yet; a Delivery without data comes then."""
    context: RequestContext = NO_CONTEXT


Request: TypeAlias = (
    Handshake
    | WriteRecords
    | BeginEpoch
    | SetFencingToken
    | Heartbeat
    | TruncateStream
    | CreateStream
    | DeleteStream
    | ReleaseStream
    | MoveStream
    | TakeStream
    | FindOwner
    | ListProxies
    | AcceptStreams
    | ReadBatch
)


# ---------------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True)
class Refusal:
    """It was not done, or that is not known."""

    code: StatusCode
    message: str
    location: str | None = None
    """The owner's location, where `code` is FOUND."""
    applied: Applied = Applied.NO
    error: str = ""
    """The name of the error class (`dlspark.errors`) that the client raises; empty: the one of the code. Nothing is
    decided by it."""
    actual: str | int | None = None
    """What was found where something else was required: the next sequence number, position, or token."""
    advice: str | None = None
    reason: Reason = Reason.NONE
    """What a client decides by; where it is not given, what the error's name says (REASON_OF_NAME)."""

    def __post_init__(self) -> None:
        """Give it the reason that its error's name says, unless it has one."""
        # Here the wire's name becomes what decisions are made by; see `failures` for the class that is raised.
        if self.error and not self.reason:
            object.__setattr__(self, "reason", REASON_OF_NAME.get(self.error, Reason.NONE))


class WriteReceipt(NamedTuple):
    """All records of the request are stored. `dlsn` is the first one's, None where a repetition's is forgotten."""

    dlsn: DLSN | None
    records: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class BulkReceipt:
    """The fate of each record, in their order."""

    results: tuple[DLSN | Refusal, ...]


@dataclass(frozen=True, slots=True)
class EpochBegun:
    """The producer's epoch that is valid now; its requests are numbered from `next_sequence` on."""

    epoch: int
    next_sequence: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """It was done."""

    dlsn: DLSN | None = None


@dataclass(frozen=True, slots=True)
class OwnerFound:
    """The owner of the stream, or the proxy that would own it."""

    location: str


class ProxyKind(IntEnum):
    """The kinds of proxies, by what they do."""

    WRITE = 1
    READ = 2


@dataclass(frozen=True, slots=True)
class ListedProxy:
    """One of the proxies that there are."""

    kind: ProxyKind
    location: str
    grpc_address: str = ""
    """Where it speaks gRPC, host:port; empty where it does not."""


@dataclass(frozen=True, slots=True)
class ProxyList:
    """The proxies that are announced, as far as the one that was asked knows."""

    proxies: tuple[ListedProxy, ...]


@dataclass(frozen=True, slots=True)
class ProxyInfo:
    """A proxy's answer to a handshake (upstream's ServerInfo)."""

    location: str
    status: ProxyStatus
    ownerships: Mapping[str, str] = field(default_factory=dict)
    """Stream to location."""
    max_request_bytes: int = 0
    """The largest request that it takes, 0 where it does not say."""
    region: str | None = None
    logs_read: int | None = None
    """How many logs a read proxy reads; None where it was not asked."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """An answer to a read. `parts` are records, entries or Arrow streams by `form`, encoded as `deliveries` says."""

    form: ReadForm
    next: DLSN
    """Where to read on."""
    parts: tuple[Buffer, ...] = ()
    end_of_stream: bool = False
    """Whether the log is sealed and nothing comes at `next` or behind it."""


Answer: TypeAlias = (
    Refusal | WriteReceipt | BulkReceipt | EpochBegun | Done | OwnerFound | ProxyList | ProxyInfo | Delivery
)
