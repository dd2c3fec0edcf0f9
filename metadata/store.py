"""`MetadataStore`: the small protocol that all metadata goes through, with ZooKeeper's semantics.

Two implementations pass one conformance suite: `metadata.zookeeper.client.ZooKeeperStore` (kazoo) and
`metadata.zookeeper.memory.MemoryStore` (tests and simulation). No kazoo type leaves this package.

Versions are ZooKeeper's: a new znode has data version 0, each set adds one; -1 matches any version. Watches fire once;
the same callable left twice on one path is one watch. An event is heard before any answer that shows its cause.
Every error is one of `metadata.foundation.errors`; it says whether the request may have been applied. A request made
while the session is not CONNECTED fails at once (MetadataUnavailableError): it is not kept for later. Nothing is
repeated here, see `metadata.retry`. Both make the same checks of paths and sizes before anything is sent
(`check_path`, `check_request`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

from metadata.foundation.errors import CallerError

ANY_VERSION = -1
MAX_REQUEST_BYTES: Final = 1_000_000
"""Largest request sent, counted generously. ZooKeeper's own default limit is 1,048,575 bytes, and it answers a larger
one by closing the connection, which would look like an unknown outcome."""
_OVERHEAD_BYTES: Final = 80  # a request's or operation's own fields, rounded up
_REFUSED: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
# A character beyond U+FFFF is a pair of surrogates to Java, and refused as such.


@dataclass(frozen=True, slots=True)
class Stat:
    """When was a znode made and changed, in which versions, and does it end with a session? Times are milliseconds
    since the epoch.
    """

    version: int
    cversion: int
    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int
    data_length: int
    num_children: int


class EventKind(Enum):
    """Why did a watch fire? SESSION: the watch is void, because the session ended or the connection was lost and came
    back: changes may have passed unseen, look again.
    """

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Which watch fired, and why?"""

    kind: EventKind
    path: str


class SessionState(Enum):
    """Can the session be used? CONNECTED: usable. SUSPENDED: connection lost, session may live. EXPIRED: ephemerals
    gone, a new session follows by itself. CLOSED: by our own `close`.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


Watcher: TypeAlias = Callable[[WatchEvent], None]
SessionListener: TypeAlias = Callable[[SessionState], None]
RequestObserver: TypeAlias = Callable[[str, str, float, BaseException | None], None]
"""Called after a request has ended with its operation, its path, the seconds that it took, and what it raised."""


@dataclass(frozen=True, slots=True)
class Create:
    """What is made in a multi? `path`; a sequential node gets ten digits appended to its name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """What is set in a multi? A znode's data, if the version matches."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """What is deleted in a multi? A znode, if the version matches."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """On what does a multi depend? It fails as a whole unless the version matches."""

    path: str
    version: int


Op: TypeAlias = Create | SetData | Delete | Check
OpResult: TypeAlias = str | Stat | None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long is a request repeated that a lost connection, or a refusing server, stopped (`metadata.retry.repeat`)?

    Before the n-th repetition it waits until the connection is back, at most `start_backoff_ms` doubled n-1 times and
    not above `max_backoff_ms`; where the connection is up and the server refuses, for all of that time.
    """

    retries: int
    start_backoff_ms: int
    max_backoff_ms: int

    def backoff_ms(self, repetition: int) -> int:
        """Return the longest wait before a repetition, counted from 1."""
        doublings = min(repetition - 1, 31)
        return min(self.start_backoff_ms << doublings, self.max_backoff_ms)


class MetadataStore(Protocol):
    """How is metadata read, changed and watched? One session with the store. All coroutines run on, and all callbacks
    are made from, one event loop.

    A session may have an identity (`acl_id`). Then what it creates can be changed by sessions with the same identity
    alone, and be read by all: others meet NoAuthError when they set the data, or create or delete a child. A session
    with `restrict` off has the identity and creates znodes that are open to all.
    """

    retry_policy: RetryPolicy | None
    """How often and how long requests of this session are repeated; None: `metadata.retry`'s own limits."""

    @property
    def session_id(self) -> int:
        """The current session's id (0 before the first connection); it changes after an expiry."""
        ...

    @property
    def state(self) -> SessionState:
        """The session's state as this process knows it: the server may already have expired the session."""
        ...

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Call `listener` at each change of state; returns a function that unsubscribes it."""
        ...

    def observe(self, observer: RequestObserver) -> Callable[[], None]:
        """Call `observer` after each request, with the name of the method that made it; returns a function that
        unsubscribes it. The time is the caller's: it includes the wait for the session's limit of requests."""
        ...

    @property
    def session_token(self) -> bytes:
        """A secret that another process needs to end this session; empty before the first connection."""
        ...

    async def end_session(self, token: bytes) -> None:
        """End the session with this token, as if it had expired: its ephemerals go, and all that it still sends is
        refused. A session that has ended already is fine. Only for a session whose owner is known to be dead.

        Raises MetadataUnavailableError where no server answered; CallerError for bytes that are not a token.
        """
        ...

    async def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]:
        """Return data and stat. The watch fires once, on change or deletion. Raises NoNodeError (no watch is left
        then).
        """
        ...

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        """Return the stat, or None. The watch fires once, on creation, change or deletion, and is left in both
        cases.
        """
        ...

    async def children(self, path: str, watch: Watcher | None = None) -> tuple[list[str], Stat]:
        """Return the child names, sorted, and the parent's stat. Raises NoNodeError."""
        ...

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a znode, return its actual path. Raises NodeExistsError; NoNodeError where the parent is missing and
        `make_parents` (persistent, empty) is off."""
        ...

    async def put(self, path: str, data: bytes, version: int) -> Stat:
        """Set data if `version` matches (-1: any). Raises BadVersionError, NoNodeError."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete. Raises BadVersionError, NoNodeError, NotEmptyError."""
        ...

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        """Apply all or none: a path for each Create, a Stat for each SetData, None for others.

        Raises the failing operation's own error, with the attribute `op_index` set to its place in `ops`; or an
        OutcomeUnknownError.
        """
        ...

    async def sync(self, path: str) -> None:
        """Make later reads see everything that was committed before this call."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral nodes go at once. Idempotent."""
        ...


def check_path(path: str) -> None:
    """Raise CallerError unless ZooKeeper accepts `path`."""
    fault = None
    if not path.startswith("/"):
        fault = "does not begin with '/'"
    elif path != "/" and path.endswith("/"):
        fault = "ends with '/'"
    elif "//" in path:
        fault = "has an empty component"
    elif _REFUSED.search(path):
        fault = "has a character that ZooKeeper refuses"
    elif any(part in (".", "..") for part in path.split("/")):
        fault = "has a relative component"
    if fault is not None:
        raise CallerError(f"invalid znode path {path!r}: {fault}", path=path)


def check_request(ops: Sequence[Op]) -> None:
    """Raise CallerError for a bad path, an operation on the root, or a request above MAX_REQUEST_BYTES."""
    for op in ops:
        check_path(op.path)
        if op.path == "/" and not isinstance(op, SetData):
            raise CallerError("the root znode can be neither created, deleted nor checked", path=op.path)
    size = request_bytes(ops)
    if size > MAX_REQUEST_BYTES:
        raise CallerError(
            f"a metadata request of {len(ops)} operations and {size} bytes exceeds {MAX_REQUEST_BYTES}",
            path=ops[0].path if ops else None,
            advice="Nothing was sent. Split the request, or store less in one znode",
        )


def request_bytes(ops: Sequence[Op]) -> int:
    """Return bytes of a request of these operations, counted generously."""
    data = sum(len(op.data) for op in ops if isinstance(op, Create | SetData))
    return _OVERHEAD_BYTES + data + sum(_OVERHEAD_BYTES + len(op.path.encode("utf-8")) for op in ops)


def parent_of(path: str) -> str:
    """Return the path of the znode above; the root for what lies right below it."""
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    """Return the last component of a path."""
    return path.rpartition("/")[2]


def join(parent: str, *names: str) -> str:
    """Return `parent` with `names` below it; the root does not get a second slash."""
    base = "" if parent == "/" else parent
    return "/".join((base, *names))


def ancestors(path: str) -> list[str]:
    """Return every proper ancestor except the root, outermost first."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
