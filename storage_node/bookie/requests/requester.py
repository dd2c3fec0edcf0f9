"""`Requester`: the client at the other end of a connection, as the handlers of its requests see it.

A connection makes one and hands it to the handlers of `reads` and `handlers` with each request. Through it they reach
what the node stores, send their answers, and run what has to wait for a disk or a sync; they know no connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol, TypeAlias

from metadata.security.audit import Noted
from metadata.security.principals import Principal
from storage_node.bookie.requests.limits import REQUEST_BYTES, TASK_BYTES, Flow, NodeLimits
from storage_node.bookie.store.storage import Storage
from storage_node.bookie.store.waiters import MAX_CONNECTION_POLLS, PollLine
from storage_node.edge import Clock, Link
from storage_node.errors import ProtocolError

Wait: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls back once, when it is worth another try."""


class NodeServices(Protocol):
    """Which services do the handlers of requests need of their node?"""

    @property
    def storage(self) -> Storage:
        """The node's entries."""
        ...

    @property
    def limits(self) -> NodeLimits:
        """Shared by all connections: gates, budgets, the line of turns."""
        ...

    @property
    def max_batch_read_bytes(self) -> int:
        """Most bytes of the answer to a batch read; its first entry may be larger."""
        ...

    @property
    def max_list_bytes(self) -> int:
        """Most bytes of the list of a ledger's entries."""
        ...

    @property
    def clock(self) -> Clock:
        """Wall-clock time, for the timestamps of answers."""
        ...

    @property
    def noted(self) -> Noted:
        """Where refusals are noted."""
        ...

    @property
    def read_only(self) -> bool:
        """True while adds and explicit LACs are refused."""
        ...

    @property
    def takes_high_priority(self) -> bool:
        """While read-only: recovery's adds are still taken."""
        ...

    def disk_space(self) -> tuple[int, int]:
        """Return (total, free) bytes of the ledger disks."""
        ...


class Requester:
    """Which client gets the answers to the requests that are handled?

    Args:
        node: the services of its node.
        link: where its answers go.
        go_on: called when what stopped the connection may be over.
        principal: returns who the client has proved to be; None where that was not asked for.
    """

    def __init__(
        self,
        node: NodeServices,
        link: Link,
        go_on: Callable[[], None],
        principal: Callable[[], Principal | None],
    ) -> None:
        self.node = node
        self.storage = node.storage
        self.link = link
        self.traffic = node.limits.traffic
        self.flow = Flow(link, node.limits.answers, go_on)
        self.polls = PollLine(MAX_CONNECTION_POLLS)
        self.listing = asyncio.Lock()
        """Held by the task that makes the list of a ledger's entries, one at a time for each connection."""
        self._reads = node.limits.reads
        self._principal = principal
        self._tasks: dict[asyncio.Task[None], None] = {}

    def acknowledge(self, answer: bytes) -> None:
        """Acknowledge an add, for which `in_flight` counts REQUEST_BYTES: its record is durable."""
        self.link.send(answer)
        self.flow.done(REQUEST_BYTES)

    def note_another_key(self, ledger_id: int, asked: str) -> None:
        """Note a request that is refused for its key: somebody guesses, or takes a ledger of others for its own."""
        principal = self._principal()
        self.node.noted.note(
            "request",
            allowed=False,
            reason=f"ledger {ledger_id} has another key: the password is wrong",
            principal=principal.name if principal is not None else None,
            scheme=principal.scheme.value if principal is not None else None,
            peer=self.link.peer,
            request=asked,
        )

    def spawn(self, work: Coroutine[object, object, None], cost: int) -> None:
        """Run what has to wait as a task of this connection; its answer takes about `cost` bytes."""
        cost += TASK_BYTES
        task = asyncio.get_running_loop().create_task(work)
        self._reads.take()
        self._tasks[task] = None
        task.add_done_callback(partial(self._finished, cost))
        self.flow.owe(cost)

    def _finished(self, cost: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._reads.give()
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
        self.flow.paid(cost)

    def fail(self, error: BaseException) -> None:
        """Close the connection, and log why; with a traceback where that is not the peer's fault."""
        lines, known = self.node.limits.lines, isinstance(error, ProtocolError)
        level = logging.WARNING if known else logging.ERROR
        lines.log(level, "closing the connection to %s: %s", self.link.peer, error, error=None if known else error)
        self.link.close()

    def cancel_tasks(self) -> None:
        """Cancel what runs for the link, which is gone; it ends soon."""
        self.node.limits.endings.add(self._tasks)

    def cancel_polls(self) -> None:
        """End the long polls of the link, which is gone, without an answer."""
        for poll in self.polls.take_all():
            self.node.limits.polls.discard(poll)
            poll.cancel()
