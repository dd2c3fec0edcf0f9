"""`ReceiveMemory`: what frames that are begun and not ended may take of memory, all links of a network together.

Frames up to SMALL_BYTES are not counted: a client that sends small requests never waits here. Beyond `limit` bytes

    slow senders   are cut, the oldest first: no bytes of theirs wait in the kernel, and less than PROGRESS_BYTES has
                   come within PROGRESS_S
    the others     are not read any more, but for the ALWAYS_READ that lack least of their frames; those that lack
                   least go on first

So a peer that sends half a frame and waits keeps its memory as long as no other needs it, and honest ones lose some
time at most. No link allocates more than twice what has arrived (`protocol.frames`), whatever it announced.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

SMALL_BYTES = 64 * 1024 + 4
PROGRESS_S = 0.25
PROGRESS_BYTES = 64 * 1024
LOOK_S = 0.1
"""How often it is checked whether a link can go on, while any waits."""
ALWAYS_READ = 8
"""Links that are read on whatever the others hold, so that some frame always ends. They are those that lack least:
an entry of 100 KB does not wait for 300 halves of 5 MiB."""
GROWTH_BYTES = 512 * 1024
"""Bytes that a link that is read again may take before it is looked at again."""


class Sender(Protocol):
    """How is a link that lacks memory read on? `ReceiveMemory` needs this of it."""

    def starve(self) -> None:
        """Read no more until `feed`."""
        ...

    def feed(self) -> None:
        """Read again."""
        ...

    def has_more(self) -> bool:
        """Return whether bytes that arrived wait to be read."""
        ...

    def cut(self, reason: str) -> None:
        """Close the link; `ended` follows."""
        ...


class _Begun:
    """One link's begun frame."""

    __slots__ = ("held", "lacks", "marked_at", "marked_bytes", "received")

    def __init__(self, now: float) -> None:
        self.held = 0
        self.lacks = 0
        """Bytes that are still to come."""
        self.received = 0
        self.marked_at = now
        self.marked_bytes = 0

    def mark(self, now: float) -> None:
        self.marked_at, self.marked_bytes = now, self.received

    def is_slow(self, now: float) -> bool:
        """Return whether too little came since the mark, which is old enough to judge by."""
        return now - self.marked_at >= PROGRESS_S and self.received - self.marked_bytes < PROGRESS_BYTES


class ReceiveMemory:
    """The begun frames of one network, on one loop. A `limit` of 0 bounds nothing."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._begun: OrderedDict[Sender, _Begun] = OrderedDict()
        self._starved: OrderedDict[Sender, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def short(self) -> bool:
        """A link waits: links read little at a time."""
        return bool(self._starved)

    def begun(self, sender: Sender, held: int, received: int, lacks: int) -> None:
        """Count an incomplete frame of this link: it holds `held` bytes, `received` arrived, and `lacks` are to
        come.
        """
        if not self.limit:
            return
        if held <= SMALL_BYTES:
            if sender in self._begun:
                self.ended(sender)
            return
        now = asyncio.get_running_loop().time()
        begun = self._begun.get(sender)
        if begun is None:
            begun = self._begun[sender] = _Begun(now)
        self.used += held - begun.held
        begun.held, begun.received, begun.lacks = held, received, lacks
        # Progress is measured from the last mark, so a link that once was fast does not live on that.
        if begun.received - begun.marked_bytes >= PROGRESS_BYTES:
            begun.mark(now)
        if self.used > self.limit:
            self._cut_slow(now)
            if self.used > self.limit and sender in self._begun and not self._is_first(sender):
                self._starved[sender] = None
                sender.starve()
                self._watch()

    def ended(self, sender: Sender) -> None:
        """Count a frame no more that is complete, or whose link was closed. Idempotent."""
        self._starved.pop(sender, None)
        begun = self._begun.pop(sender, None)
        if begun is not None:
            self.used -= begun.held
            self._feed()

    def _is_first(self, sender: Sender) -> bool:
        """Return whether a link is one of those that are read in any case."""
        lacks, before, itself = self._begun[sender].lacks, 0, False
        for other, begun in self._begun.items():
            itself = itself or other is sender
            before += begun.lacks < lacks or (begun.lacks == lacks and not itself)
        return before < ALWAYS_READ

    def _cut_slow(self, now: float) -> None:
        """Make room by cutting links that hold memory and send too little."""
        for sender, begun in list(self._begun.items()):
            if self.used <= self.limit:
                return
            # Bytes that wait in the kernel are our delay, not the peer's.
            if begun.is_slow(now) and not sender.has_more():
                sender.cut(f"its frame stopped after {begun.received} bytes, and others need the memory")
                self.ended(sender)

    def _feed(self) -> None:
        """Let as many links go on as there is room for, and the first ones in any case."""
        if not self._starved:
            return
        by_need = sorted(self._begun, key=self._lacks)
        room = max(ALWAYS_READ, (self.limit - self.used) // GROWTH_BYTES)
        for sender in by_need[:room]:
            if sender in self._starved:
                self._let_go_on(sender)

    def _lacks(self, sender: Sender) -> int:
        return self._begun[sender].lacks

    def _let_go_on(self, sender: Sender) -> None:
        del self._starved[sender]
        # From now on: while it was starved it could not make progress.
        self._begun[sender].mark(asyncio.get_running_loop().time())
        sender.feed()

    def _watch(self) -> None:
        if self._timer is None and self._starved:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.used > self.limit:
            self._cut_slow(asyncio.get_running_loop().time())
        self._feed()
        self._watch()
