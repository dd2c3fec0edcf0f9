"""`Flow`: how much one connection may have under way, and when its socket is not read.

Two things are counted: `in_flight`, what its requests under way take, and what the node owes it: entries being read and
answers that its socket has not taken. A connection stops reading beyond IN_FLIGHT_BYTES of both, and also while the
node's budget for answers is exceeded, if it holds more than ALLOWANCE_BYTES of it. So a client that never reads its
answers stops itself, and a client that does read is served whatever others do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from storage_node.bookie.requests.limits import Budget
from storage_node.edge import Link
from storage_node.errors import ConnectionClosedError

IN_FLIGHT_BYTES = 32 * 1024 * 1024
RESUME_BYTES = IN_FLIGHT_BYTES // 2
ALLOWANCE_BYTES = 64 * 1024
"""What a connection may hold of the budget for answers without being counted."""
REQUEST_BYTES = 512
"""What a request without a body counts."""
TASK_BYTES = 4096
"""What a request counts that waits for the disk or a sync: a task, its frames and its future."""


class Flow:
    """One connection's. `go_on` is called when what stopped it may be over."""

    __slots__ = (
        "_budget",
        "_counted",
        "_go_on",
        "_link",
        "_waiting",
        "_watching",
        "closed",
        "in_flight",
        "owed",
        "stopped",
    )

    def __init__(self, link: Link, budget: Budget, go_on: Callable[[], None]) -> None:
        self._link = link
        self._budget = budget
        self._go_on = go_on
        self._counted = 0
        self._waiting = False
        self._watching: asyncio.Task[None] | None = None
        self.in_flight = 0
        self.owed = 0
        """Bytes of entries being read; part of `in_flight`."""
        self.stopped = False
        """The socket is not read, and frames that were read already wait."""
        self.closed = False

    @property
    def overfull(self) -> bool:
        """Nothing large may be begun here, whatever was admitted before: its peer does not take what there is."""
        return self.in_flight + self._link.queued_bytes > IN_FLIGHT_BYTES or bool(
            self._counted and self._budget.exceeded
        )

    def check(self) -> None:
        """To be called after whatever may have queued or begun something."""
        queued = self._link.queued_bytes
        if self.in_flight + queued > IN_FLIGHT_BYTES:
            self.stop()
        if self.owed + queued > ALLOWANCE_BYTES:
            self.settle()

    def owe(self, size: int) -> None:
        """An answer of about `size` bytes is being prepared."""
        self.in_flight += size
        self.owed += size
        if size > ALLOWANCE_BYTES or self._counted or self._budget.exceeded:
            self.settle()

    def paid(self, size: int) -> None:
        """That answer was sent, or will not be."""
        self.owed -= size
        if self._counted:
            self.settle()
        self.done(size)

    def done(self, size: int) -> None:
        """A request of that size is no longer under way."""
        self.in_flight -= size
        if self.stopped and self.in_flight <= RESUME_BYTES:
            self._go_on()

    def stop(self) -> None:
        """Read no further until `may_go_on` says so."""
        if not self.stopped and not self.closed:
            self.stopped = True
            self._link.pause_reading()
            self._watch()

    def may_go_on(self) -> bool:
        """True if nothing here speaks against it. If False, `go_on` will be called."""
        if self.in_flight > RESUME_BYTES:
            return False
        if self._link.queued_bytes > RESUME_BYTES:
            self._watch()
            return False
        self._count()
        if self._counted and self._budget.exceeded:
            if not self._waiting:
                self._waiting = True
                self._budget.wait(self._freed)
            self._watch()
            return False
        return True

    def resume(self) -> None:
        """Read on."""
        self.stopped = False
        self._link.resume_reading()

    def settle(self) -> None:
        """Bring the node's budget up to date; stop if too much of it is used here."""
        if self.closed:
            return
        self._count()
        if self._counted:
            self._watch()
            if self._budget.exceeded:
                self.stop()

    def close(self) -> None:
        """The link is gone, and with it what it had queued."""
        self.closed = True
        if self._counted:
            self._budget.change(-self._counted)
            self._counted = 0
        if self._watching is not None:
            self._watching.cancel()

    def _count(self) -> None:
        held = self.owed + self._link.queued_bytes
        held = held if held > ALLOWANCE_BYTES else 0
        if held != self._counted and not self.closed:
            by, self._counted = held - self._counted, held
            self._budget.change(by)

    def _watch(self) -> None:
        """Have a look again once the socket has taken what is queued."""
        if self._watching is None and self._link.queued_bytes > ALLOWANCE_BYTES and not self.closed:
            self._watching = asyncio.get_running_loop().create_task(self._drained())
            self._watching.add_done_callback(self._looked)

    def _freed(self) -> None:
        """The budget has room again."""
        self._waiting = False
        if self.stopped and not self.closed:
            self._go_on()

    async def _drained(self) -> None:
        try:
            await self._link.drain()
        except ConnectionClosedError:
            return

    def _looked(self, _task: asyncio.Task[None]) -> None:
        self._watching = None
        if not self.closed:
            self._count()
            if self.stopped:
                self._go_on()
