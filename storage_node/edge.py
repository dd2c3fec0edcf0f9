"""The edges that are injected into the storage node and its client: clock, network, disk.

Everything above them is deterministic given their answers; a simulator implements the same protocols. Elapsed time is
the running loop's (`loop.time`, `call_later`, `wait_for`); `Clock` gives the wall clock's time, and a time that goes on
while the machine is suspended.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from storage_node.errors import TlsError
from storage_node.protocol.frames import Buffer

__all__ = [
    "Clock",
    "Disk",
    "DiskFile",
    "FrameHandler",
    "Link",
    "Listener",
    "Network",
    "RecognisingHandler",
    "SecurableLink",
    "SystemClock",
    "TlsTerms",
]

T = TypeVar("T")


class Clock(Protocol):
    """Which time is it? Wall-clock time, and time that passes while the machine is suspended."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    def elapsed_s(self) -> float:
        """Return seconds since some moment. It never goes back, and goes on while the machine is suspended, which the
        event loop's time (`time.monotonic`) does not on Linux and macOS."""
        ...


class SystemClock:
    """Which time is it by this machine's clocks?"""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch by the wall clock, which operators and NTP may set back."""
        return time.time_ns() // 1_000_000

    if sys.platform == "linux":

        def elapsed_s(self) -> float:
            """Return seconds since some moment, sleep included."""
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    elif sys.platform == "darwin":

        def elapsed_s(self) -> float:
            """Return seconds since some moment, sleep included."""
            return time.clock_gettime(time.CLOCK_MONOTONIC)  # goes on in sleep, unlike time.monotonic() there

    else:

        def elapsed_s(self) -> float:
            """Return seconds since some moment."""
            return time.monotonic()


class Link(Protocol):
    """How are frames sent to the other end? One framed connection, from either side."""

    @property
    def peer(self) -> str:
        """The other end's `host:port`, for messages."""
        ...

    @property
    def queued_bytes(self) -> int:
        """Bytes given to `send` that the network has not taken yet."""
        ...

    def send(self, *buffers: Buffer) -> None:
        """Queue one or several whole frames, length prefixes included, in any number of pieces.

        They leave behind what the loop has to call by now, together with what that sends; so a call without buffers
        makes room for what will be sent soon. The buffers must not be changed afterwards. Nothing is refused: the
        caller bounds `queued_bytes`. On a closed link the bytes are dropped (the handler learns of the close by
        `link_closed`).
        """
        ...

    def send_at_once(self, *buffers: Buffer) -> None:
        """Queue frames as `send` does, and have them leave within this call where nothing else is about to leave: for
        a frame that no other one is likely to follow in this turn of the loop."""
        ...

    async def drain(self) -> None:
        """Wait until `queued_bytes` is below the low-water mark. Raises ConnectionClosedError if the link is closed."""
        ...

    def pause_reading(self) -> None:
        """Read no more from the peer, whose sends then wait; frames that arrived before may still be delivered."""
        ...

    def resume_reading(self) -> None:
        """Deliver frames again; does nothing if reading was not paused."""
        ...

    def close(self) -> None:
        """Close now; idempotent. `link_closed` follows exactly once, from the loop."""
        ...


class FrameHandler(Protocol):
    """Which frames came? A connection delivers to this. Calls come from the loop, never from inside `send` or
    `close`.
    """

    def frame_received(self, frame: memoryview) -> None:
        """Take a frame's body without its length; the view stays valid and unchanged for as long as it is held.

        Raising an exception closes the link with it.
        """
        ...

    def batch_done(self) -> None:
        """Note that all frames of one read were delivered; what is sent until the return of this call leaves
        together."""
        ...

    def link_closed(self, error: Exception | None) -> None:
        """End: this is the last call. None after the peer's orderly end or our own `close`."""
        ...


@runtime_checkable
class RecognisingHandler(FrameHandler, Protocol):
    """Which frames need not be cut out? A handler that knows some of them by their bytes takes those all at once."""

    def recognise(self, received: memoryview) -> int:
        """Return how many bytes of whole frames at the beginning of `received` were taken; 0: none.

        `received` begins with a frame, its length included; it may end in one, and must not be kept. What is taken
        counts as delivered: `batch_done` follows, and `frame_received` for frames behind it.
        """
        ...


@dataclass(frozen=True, slots=True)
class TlsTerms:
    """How is TLS begun on a connection?"""

    context: ssl.SSLContext
    host: str | None = None
    """Of a client: the name or address that the peer's certificate must be for, where the context checks names."""
    server_side: bool = False
    limit_s: float = 10.0
    """The handshake is cut after so many seconds."""
    plain_behind: Callable[[bytes], bool] | None = None
    """Of a server: takes the body of one short frame that came in plain before the handshake, and returns whether it
    may be there. None: nothing may."""


@runtime_checkable
class SecurableLink(Link, Protocol):
    """How is a connection secured? A link that TLS can be begun on (see `transport.tls.securable`)."""

    @property
    def secured(self) -> bool:
        """TLS stands."""
        ...

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate (DER), where TLS stands and the peer showed one that was verified."""
        ...

    @property
    def shown(self) -> tuple[bytes, ...] | None:
        """The certificates that the peer showed beside its own (DER); None: they are not known."""
        ...

    @property
    def between_frames(self) -> bool:
        """All that was read was handed out: no frame waits, and none has begun."""
        ...

    def has_more(self) -> bool:
        """Return whether bytes that arrived wait to be read."""
        ...

    def deliver_to(self, handler: FrameHandler) -> None:
        """Deliver what comes from now on to another handler; what is being delivered goes to the old one to its end."""
        ...

    def start_tls(self, terms: TlsTerms, ended: Callable[[TlsError | None], None]) -> None:
        """Begin TLS behind what was sent so far; what is sent from now on waits for it.

        Bytes that came behind the frame that is being delivered are an attack, and close the link: they would be taken
        for the peer's. `ended` is called once, from the loop: None, TLS stands; or why the link is closed without it.
        """
        ...


class Listener(Protocol):
    """Which connections come from outside? Accepts them until it is closed."""

    @property
    def port(self) -> int:
        """The port that is listened on; the one that was taken where 0 was asked for."""
        ...

    async def close(self) -> None:
        """Stop accepting. Accepted links live on."""
        ...


class Network(Protocol):
    """How are connections made and accepted?"""

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        """Open a link. Raises BookieUnreachableError (NotAppliedError)."""
        ...

    async def listen(self, host: str, port: int, accept: Callable[[Link], FrameHandler]) -> Listener:
        """Listen; port 0 takes a free one. `accept` gives each new link its handler."""
        ...


class DiskFile(Protocol):
    """How is an open file read and written? A direct file takes writes whose offsets, lengths and buffer addresses are
    multiples of 4096.
    """

    @property
    def path(self) -> str:
        """The path that it was opened under; a later rename does not change it."""
        ...

    @property
    def direct(self) -> bool:
        """True where writes bypass the page cache."""
        ...

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all of the buffers one after the other at `offset`. Blocking. Raises OSError."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file. Blocking. Raises OSError."""
        ...

    def read_now(self, offset: int, length: int) -> bytearray | None:
        """Return all `length` bytes if that needs no waiting, else None."""
        ...

    def size(self) -> int:
        """Return how many bytes the file has now. Raises OSError."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file off, or lengthen it by zeros, to `size` bytes; not durable before a sync. Raises OSError."""
        ...

    def sync_data(self) -> None:
        """Call fdatasync: what was written before is durable on return. Blocking. Raises OSError; never retry."""
        ...

    def close(self) -> None:
        """Give the descriptor back. It syncs nothing."""
        ...


class Disk(Protocol):
    """Which files has a bookie? All calls block; long ones (`write_at`, `sync_data`, `read_at`) go through `submit`."""

    def make_directory(self, path: str) -> None:
        """Create it and its parents, durably and for this user alone; existing is fine."""
        ...

    def close_to_others(self, path: str) -> None:
        """Take what other users may do with a directory and the files in it, where an older version left them open."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Return names, sorted; empty for a directory that does not exist."""
        ...

    def open(self, path: str, *, create: bool = False, direct: bool = False) -> DiskFile:
        """Open for reading and writing. `direct` is a wish: see `DiskFile.direct`. Raises OSError."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """Return the whole file, None if there is none."""
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Replace the file atomically and durably (temporary file, sync, rename, sync of the directory)."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically; a file of the new name is replaced. Durable after `sync_directory`. Raises OSError."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file; a missing one is fine."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in it durable."""
        ...

    def lock(self, path: str) -> DiskFile:
        """Take an exclusive lock that ends with the file's close or the process. Raises BlockingIOError if taken."""
        ...

    def usage(self, path: str) -> tuple[int, int, int]:
        """Return (device id, total bytes, free bytes) of the file system that holds `path`."""
        ...

    def submit(self, pool: str, call: Callable[[], T]) -> asyncio.Future[T]:
        """Run one long blocking call off the loop, in the named pool: `journal` (two at a time; further journals have
        `journal-1` and so on), `entries` (in order), `reads` (a few at a time), `files` (in order)."""
        ...

    def at_once(self, pool: str, call: Callable[[], object], limit_s: float) -> bool:
        """Run a call here, where each of the pool's last ones took no more than `limit_s`. Returns whether it was run:
        if not, it is for `submit`. Raises what it raises."""
        ...

    def close(self) -> None:
        """Wait for what was submitted and end the threads; the disk may be used again."""
        ...
