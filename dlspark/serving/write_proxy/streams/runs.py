"""`TakenRun`: writes of one record each, of one caller on one stream, that came together and are begun as one.

A frames connection reads many requests at a time. Of those that ask for nothing but to have their record stored, what
follows for each is the same as long as the stream is open, no limit is near and none is counted by itself. So they are
taken, given to the writer and answered together, and what a request costs is not paid for each of them. Wherever that
is not so, nothing is done here, and they are submitted one by one: what they are answered is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.bindings.service import Caller, RunReply
from dlspark.serving.protocol.operations import Refusal, WriteRecords
from dlspark.serving.protocol.write_runs import WriteRun

_LOG: Final = logging.getLogger(__name__)


class TakenRun:
    """Which writes came together, of which caller, and how many of them are answered? Compared by identity.

    Args:
        run: the writes.
        began_s: when they came, by the event loop's clock.
    """

    __slots__ = ("_left", "_reply", "began_s", "caller", "on_end", "payloads", "records", "request", "size")

    def __init__(self, run: WriteRun, caller: Caller, reply: RunReply, began_s: float) -> None:
        self.request = WriteRecords(run.stream, (run.payloads[0],))
        """The first of them."""
        self.payloads = run.payloads
        self.records = len(run.payloads)
        """How many requests it stands for."""
        self.size = run.size
        self.caller = caller
        self.began_s = began_s
        self.on_end: Callable[[TakenRun], None] | None = None
        """Called when all are answered, before the last answers go out."""
        self._reply = reply
        self._left = self.records

    def ended(self, first: int, outcome: Sequence[DLSN] | Refusal, count: int) -> None:
        """Answer `count` of them, from number `first` on: with their positions, or with why they are not known. Called
        once for each. Never raises."""
        self._left -= count
        if not self._left and self.on_end is not None:
            self.on_end(self)
        try:
            self._reply(first, outcome, count)
        except Exception:
            # A binding's fault must not take a stream, or the answers of others, with it.
            _LOG.exception("the answers to writes for %s were not taken", self.caller.address)
