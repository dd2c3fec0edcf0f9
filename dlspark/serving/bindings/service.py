"""The seam between a proxy and its bindings: one `ProxyService` behind both, and what they take from their clients.

A connection is *paused* where it has too much under way: its socket is not read any more, TCP makes its client wait,
and nothing is refused. Something is refused only where pausing cannot help: one request that is too large by itself, or
a large one while the whole binding holds all the memory that it may. Each bound has a name here. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol.operations import Answer, Refusal, Request, WriteRecords
from dlspark.serving.protocol.request_checks import MAX_SET_RECORDS, declared_records
from dlspark.serving.protocol.write_runs import WriteRun
from metadata.security.principals import Principal
from metadata.security.restrictions import Restrictions
from storage_node.protocol.frames import MAX_FRAME_BYTES

Reply: TypeAlias = Callable[[Answer], None]
"""Takes the answer to one request, once, from the loop."""


@dataclass(eq=False, slots=True)
class Caller:
    """Which client sent a request? One connection (frames), or one call's peer (gRPC). Compared by identity."""

    address: str
    """`host:port`, for messages."""
    principal: Principal | None = None
    """Who it has proved to be; None where nothing had to be proved. It changes when a token is renewed."""
    restrictions: Restrictions | None = None
    """What its proof leaves of the principal's rights, as a token may say; None: all of them."""
    grpc: bool = False
    """True for one that speaks gRPC, and can be sent to proxies that speak nothing else."""
    region: str | None = None
    """The region that it said it is in (`Handshake.region`; over gRPC metadata of each call); None where it said none.
    Nothing may be relied on it."""
    session: str | None = None
    """The connection, or the call, for the audit trail."""


RunReply: TypeAlias = Callable[[int, "Sequence[DLSN] | Refusal", int], None]
"""Takes the answers to some of the writes of a run, from the loop: the number of the first of them, their positions or
one refusal for all, and how many they are."""


class RunTaker(Protocol):
    """Takes writes that came together as one: a write proxy's service, and what stands before it (`RightsDoor`,
    `MeasuredService`)."""

    def submit_run(self, run: WriteRun, caller: Caller, reply: RunReply) -> bool:
        """Begin the writes of `run` as if each was given to `submit`; `reply` is called until each has
        its answer, once, perhaps before this returns. Never raises.

        False where they are to be submitted one by one: nothing was done.
        """
        ...


class ProxyService(Protocol):
    """What must a proxy do with a request, however it came? A write proxy and a read proxy are one of these each; so is
    what stands before them (`ServiceDoor`, `MeasuredService`)."""

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """Begin `request`; `reply` is called exactly once, perhaps before this returns. Never raises.

        Requests of one caller on one stream are written in the order in which they are submitted.
        """
        ...

    def caller_gone(self, caller: Caller) -> None:
        """Note that the connection is closed: what was kept for it goes. What it asked for may still be done,
        unanswered."""
        ...


# ---------------------------------------------------------------------- what clients may hold


STEP_BYTES: Final = 64 * 1024
"""A connection may hold so much uncounted in what all hold together; smaller changes are not counted either."""
REQUEST_BYTES: Final = 512
"""A request counts so much besides its frame: its number, its values, the call that answers it."""
RECORD_BYTES: Final = 200
"""Each record of a write counts so much besides its bytes, of which it may have none."""
LEAST_ANSWER_BYTES: Final = 2 * STEP_BYTES
"""Below it a connection that was paused could not be seen to have room again: links say so at STEP_BYTES."""
CONNECTIONS: Final = 12_000
"""Of one binding of a proxy, unless its settings say otherwise."""
IDLE_MS: Final = 900_000
"""A connection on which nothing is asked is kept for so long, unless a setting says otherwise."""
KEEPALIVE_MS: Final = 60_000
"""A proxy pings a gRPC client from which nothing has come for so long, unless a setting says otherwise."""
KEPT_VIEW_BYTES: Final = 256 * 1024
"""A longer frame stays where it was received; a shorter one is copied, lest it keeps a chunk of 2 MiB in use."""


def write_bytes(request: WriteRecords) -> int:
    """Return what a write counts for its records, besides its frame; more records than one may have are refused
    later."""
    if len(request.payloads) == 1 and not request.context.is_record_set:
        return RECORD_BYTES
    return RECORD_BYTES * min(declared_records(request), MAX_SET_RECORDS)


@dataclass(frozen=True, slots=True)
class FramesLimits:
    """How much may clients hold of a `FramesServer`, and how long may they be silent? Raises ValueError below 1."""

    connections: int = CONNECTIONS
    """All together. One more closes the most idle one, or is refused where all are in use."""
    request_bytes: int = MAX_FRAME_BYTES
    """The longest request. A longer one is refused by its number; what the transport does not take closes the link."""
    requests_under_way: int = 4096
    """Of one connection, unanswered; beyond it the connection is paused until half of them are answered."""
    bytes_under_way: int = 16 * 1024 * 1024
    """Of one connection: unanswered requests, likewise."""
    reads_under_way: int = 512
    """Of one connection: reads, most of which wait for records; one more is refused with OVER_CAPACITY."""
    read_bytes: int = 2 * 1024 * 1024
    """The most that a read gets at a time, whatever it asks for."""
    answer_bytes: int = 8 * 1024 * 1024
    """Of one connection, at least LEAST_ANSWER_BYTES: answers that its socket has not taken; beyond it it is paused."""
    delivery_bytes: int = 64 * 1024 * 1024
    """Of one connection: beyond it what its reads are answered with is not queued, they are refused with OVER_CAPACITY.
    Nothing is lost so: the client reads again from where it is."""
    memory_bytes: int = 512 * 1024 * 1024
    """Of all connections together. Beyond it those that hold more than STEP_BYTES are paused, and nothing large is
    begun; one that goes on sending when they hold twice as much is closed."""
    begun_bytes: int = 128 * 1024 * 1024
    """Of all connections together: requests of which a part has come (`transport.receive_memory`)."""
    stuck_bytes: int = 256 * 1024 * 1024
    """Of all connections together: answers for clients that take none; beyond it the oldest of them are closed."""
    first_request_ms: int = 10_000
    """The time within which a new connection must have sent a whole request."""
    idle_ms: int = IDLE_MS
    """A connection that asked nothing for so long, and waits for nothing, is closed. Clients of ours ask before."""
    stuck_ms: int = 60_000
    """A client that takes nothing of its answers for so long is closed."""

    def __post_init__(self) -> None:
        """Check them. Raises ValueError."""
        for name in self.__slots__:
            least = LEAST_ANSWER_BYTES if name == "answer_bytes" else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: at least {least} is needed")


@dataclass(frozen=True, slots=True)
class FramesClientLimits:
    """How much may a `FramesClient` have under way, and when does it ask whether its proxy lives?"""

    requests_under_way: int = 65_536
    """Unanswered ones; one more is refused with OVER_CAPACITY, and was not sent."""
    queued_bytes: int = 64 * 1024 * 1024
    """Requests that the socket has not taken; more is refused likewise."""
    first_ping_ms: int = 2_000
    """A new connection over which nothing was asked by then asks a Handshake: a proxy closes those that ask nothing."""
    ping_ms: int = 60_000
    """When nothing has come from the proxy for so long, it is asked a Handshake."""
    ping_timeout_ms: int = 20_000
    """When nothing has come within this after that, the proxy's host is gone, and the connection is closed."""


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """How much may clients hold of a `GrpcServer`? Raises ValueError below 1.

    Of incomplete messages gRPC itself may hold `calls` times `message_bytes`.
    """

    connections: int = 1_000
    """All together; one more is closed as soon as it is made."""
    streams_per_connection: int = 128
    """Calls at a time on one connection; a client waits with more of them (HTTP/2)."""
    calls: int = 2_000
    """Calls at a time on all connections; one more ends with RESOURCE_EXHAUSTED."""
    calls_per_host: int = 1_000
    """Likewise, of one client's host, and of health and reflection as well: it leaves room to the others."""
    message_ms: int = 60_000
    """The time within which the message of a call that has one must have come."""
    message_bytes: int = MAX_FRAME_BYTES + STEP_BYTES
    """The longest request; a longer one ends its call with RESOURCE_EXHAUSTED. A request that fits in a frame fits."""
    metadata_bytes: int = 16 * 1024
    """The headers of a call; more ends it with RESOURCE_EXHAUSTED."""
    append_requests: int = 1_024
    """Of one Append, unanswered; beyond it no more of its requests are read until some answers were taken."""
    append_bytes: int = 16 * 1024 * 1024
    """Of one Append, likewise."""
    read_bytes: int = 4 * 1024 * 1024 - 4 * STEP_BYTES
    """The most that a Read gets at a time: with what its parts have in front, up to 3 bytes each, more than that could
    be more than clients of gRPC take by default. Records come in shorter responses."""
    waiting_reads: int = 200
    """Reads at a time whose log does not exist: each looks for it every second, though its client does nothing. One
    more is refused with OVER_CAPACITY."""
    memory_bytes: int = 512 * 1024 * 1024
    """Of all calls together: requests without an answer, and what was read and not taken yet. Beyond it what is new is
    refused with OVER_CAPACITY, and a Read ends so."""
    keepalive_ms: int = KEEPALIVE_MS
    """A connection over which nothing has come for so long is pinged."""
    keepalive_timeout_ms: int = 20_000
    """When nothing comes within this after that, the connection is closed."""
    least_ping_ms: int = 5_000
    """Clients may ping as often as this, without calls, too: gRPC's own default, 5 minutes, ends their connections."""
    idle_ms: int = IDLE_MS
    """A connection without calls for so long is closed; clients of gRPC make another by themselves."""
    handshake_ms: int = 10_000
    """The time within which a new connection must have spoken HTTP/2."""

    def __post_init__(self) -> None:
        """Check them. Raises ValueError."""
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
