"""`StreamHost`: all that the streams of a write proxy share: the namespace, bounds, turns, tasks; and access control.

A request is permitted by the entry of its log, else by the namespace's default one (`permissions`):

| request | denied by |
|---|---|
| write, producer's epoch, fencing token | write |
| truncate | truncate |
| delete | delete (upstream asks for truncate, a slip) |
| create, heartbeat, taking a stream over | acquire |
| release, move | release |

A proxy knows a stream's entry from the moment at which it opens the log, and looks at it again at intervals: a request
costs no question to ZooKeeper.

Fault model: none of its own. What is counted and kept here is bounded by the streams of the proxy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dlspark.core.metrics.structured_logging import about
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.service import Caller
from dlspark.serving.process.fair_turns import FairTurns
from dlspark.serving.protocol.operations import (
    Applied,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Heartbeat,
    MoveStream,
    Refusal,
    ReleaseStream,
    Request,
    SetFencingToken,
    StatusCode,
    TakeStream,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.routing.hosts import is_address
from dlspark.serving.write_proxy.settings import WriteProxySettings
from dlspark.serving.write_proxy.streams.model import FOUND_KEPT_SHARE, OTHERS_KEPT_S
from dlspark.serving.write_proxy.streams.taken_requests import RequestsUnderWay
from metadata.distributedlog.permissions import ALLOW_ALL, Action, Permissions, RequestDeniedError
from metadata.foundation.plurals import counted
from metadata.foundation.settings import Value
from storage_node.transport.turns import Turns

_LOG: Final = logging.getLogger(__name__)

ENTRY_BYTES: Final = 512 * 1024
"""The bytes that a stream's writer collects before it sends without being asked: the proxy asks at the end of each turn
of its loop. Only where `writerOutputBufferSize` is not set."""
END_IN_DOUBT: Final = Refusal(
    StatusCode.FLUSH_TIMEOUT,
    "the stream is being given up; that takes longer than this request may, and goes on",
    applied=Applied.UNKNOWN,
    advice="Ask for it again: the answer comes once it is done",
)
FOUND_LOG_S: Final = 1.0
"""The interval, at least, at which it is logged that streams were asked for which other proxies own. When one has died,
clients ask the others for all of its streams, several times a second, until its session has ended."""
ACTION_OF: Final[Mapping[type, Action]] = {
    WriteRecords: Action.WRITE,
    BeginEpoch: Action.WRITE,
    SetFencingToken: Action.WRITE,
    TruncateStream: Action.TRUNCATE,
    DeleteStream: Action.DELETE,
    CreateStream: Action.ACQUIRE,
    Heartbeat: Action.ACQUIRE,
    TakeStream: Action.ACQUIRE,
    ReleaseStream: Action.RELEASE,
    MoveStream: Action.RELEASE,
}


class HostedStream(Protocol):
    """A stream (`streams.stream.ProxyStream`) as what it shares with the others knows it."""

    name: str

    @property
    def waits(self) -> bool:
        """True while requests wait to be begun."""
        ...

    def caller_gone(self, caller: Caller) -> None:
        """Note that what this caller asked and was not begun is not begun any more."""
        ...


class MayCreate(Protocol):
    """May what a caller asks make the log, where there is none?"""

    def __call__(self, caller: Caller, stream: str, *, noted: bool) -> bool:
        """Return whether it may. `noted`: there is no such log, and the audit trail is to have the decision."""
        ...


@dataclass(eq=False, slots=True)
class StreamHost:
    """What does a stream share with all others of its proxy, and which functions does it call when it changes?"""

    namespace: AsyncNamespace
    location: str
    settings: WriteProxySettings
    traffic: RequestsUnderWay
    opening: FairTurns
    opening_sets: FairTurns
    """Lets one request's record sets be opened in a thread at a time: they may expand to 64 MiB."""
    turns: Turns
    """Streams on which so much waited that one turn of the loop is too short for it."""
    waited: set[HostedStream]
    """The streams on which requests wait, or did when a client went last: a client that goes, and each call of gRPC is
    one, must not cost a look at ten thousand others."""
    tasks: set[asyncio.Task[None]]
    """The tasks that run for streams."""
    on_owned: Callable[[str, bool], None]
    """Called when a log begins to be this proxy's, from the first attempt to open it, and when it is so no longer."""
    on_removed: Callable[[HostedStream], None]
    """Called once, when a stream is not this proxy's any more."""
    on_fatal: Callable[[str], None]
    """Called with the reason when the process has to end."""
    former_until_s: float = 0.0
    """Until then a log that this very location owns is that of a process which was here before: its session ends."""
    announced: Callable[[str], bool] = lambda _: True
    """Returns whether the proxy at a location is announced; when it no longer is, `owner_gone` is called."""
    found: int = 0
    """The number of streams that were found to be owned elsewhere since that was logged last."""
    found_logged_s: float = -FOUND_LOG_S

    def log_found(self, stream: str, owner: str, now_s: float) -> None:
        """Log that another proxy owns a stream, unless that was logged for one just now."""
        self.found += 1
        if now_s - self.found_logged_s >= FOUND_LOG_S:
            more = f"; {counted(self.found - 1, 'other')} before it" if self.found > 1 else ""
            _LOG.info("stream %s is owned by %s%s", stream, owner, more, extra=about(log=stream))
            self.found, self.found_logged_s = 0, now_s

    def log_overrides(self, lock_timeout_s: int, *, create_missing: bool) -> dict[str, Value]:
        """Return the settings of a log that a proxy writes, where they differ from the namespace's."""
        overrides: dict[str, Value] = {"lockTimeoutSeconds": lock_timeout_s}
        if "output_buffer_bytes" not in self.namespace.settings.given:
            overrides["writerOutputBufferSize"] = ENTRY_BYTES
        if not create_missing:
            overrides["createStreamIfNotExists"] = False
        return overrides

    @property
    def found_kept_s(self) -> float:
        """The time for which it is remembered that another proxy has a log."""
        return self.namespace.settings.zk_session_timeout_s * FOUND_KEPT_SHARE

    def kept_s(self, owner: str) -> float:
        """Return how long it is remembered that this owner has a log."""
        # An announced proxy answers the clients that are sent there, and says itself when the log is gone from it. Of
        # any other owner only the lock knows: it is asked again soon.
        is_proxy = is_address(owner) and self.announced(owner)
        return self.found_kept_s if is_proxy else min(self.found_kept_s, OTHERS_KEPT_S)

    def is_former(self, owner: str, now_s: float) -> bool:
        """Return whether the owner of a log is, by all that is known, the process that was at this location before."""
        return owner == self.location and now_s < self.former_until_s

    def run(self, work: Awaitable[None]) -> None:
        """Run something in a task that is waited for at the end."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


# ---------------------------------------------------------------------- access control


async def permissions_of(namespace: AsyncNamespace, stream: str) -> Permissions:
    """Return a log's permissions now: its own entry, else the default one; all where there is no access control."""
    store = namespace.services.permissions
    return await store.of(stream) if store is not None else ALLOW_ALL


def check_permitted(permissions: Permissions, request: Request, stream: str) -> None:
    """Raise RequestDeniedError where `permissions`, those of the stream, deny the request."""
    action = ACTION_OF[type(request)]
    if permissions.denies(action):
        raise RequestDeniedError(
            f"the namespace's access control denies {action.name.lower()}; nothing was done",
            log=stream,
            advice="Ask the namespace's administrator to change the log's entry or the default one",
        )
