"""`Deliveries`: each reader has each record exactly once, from its start on, however often it is opened again.

A reader is a chain of spans: where one ends, the next one begins. `due` is the first place that the chain has not been
given yet, told by what it was given, not by where the product says that it goes on.

    a span begins     nothing is given again, and nothing between what is due and what is given first is left out, but
                      what was hidden by then (the documented skip); numbers go on where nothing was hidden
    a subscriber      a span begins where the last commit is; a position is stored by who holds the reader's lock, never
                      moves back, and is what that one was given, so that what lies below it was given to somebody
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlspark.core.codec.dlsn import DLSN
from metadata.store import Check, Create, Op, SetData

if TYPE_CHECKING:
    from simulation.log_checkers import LogTruth, Seen, Span

SUBSCRIBERS = "subscribers"
_DEPTH = 6
"""Parts of a subscriber's path: "", namespace, log, partition, "subscribers", name."""


@dataclass(slots=True)
class Subscriber:
    """A named subscriber of a log. `stored` is its position in the metadata now."""

    stored: DLSN = DLSN.INITIAL
    spans: list[Span] = field(default_factory=list)


class Deliveries:
    """Of all logs of a world. `fail` is told of the log and of what is wrong with it."""

    def __init__(self, fail: Callable[[str, str], None], reached: Callable[[str], None]) -> None:
        self._fail = fail
        self._reached = reached
        self.subscribers: dict[tuple[str, str], Subscriber] = {}

    def forget(self, log: str) -> None:
        """The log was deleted, and its subscribers with it."""
        for key in [key for key in self.subscribers if key[0] == log]:
            del self.subscribers[key]

    # ------------------------------------------------------------------------------------ spans

    def begins(self, span: Span, seen: Seen, hidden: DLSN) -> None:
        """The span's first record; what is below `hidden` need not be given any more."""
        span.hidden = hidden
        if seen.dlsn < span.due:
            self._fail(span.log, f"{span.name} was given {seen.dlsn} again, due was {span.due} (exactly once)")
        before = span.before
        if before is not None and before.read and hidden <= span.due:
            last = before.read[-1]
            if seen.sequence_id != last.sequence_id + 1:
                self._fail(span.log, f"{span.name} went on with {seen} after {last} (exactly once)")

    def check_starts(self, truth: LogTruth) -> None:
        """At the end: nothing was left out before the first record of any span."""
        places = sorted(truth.at)
        for span in truth.spans:
            first = span.next if not span.read else span.read[0].dlsn
            missed = [one for one in places if max(span.due, span.hidden) <= one < first]
            if missed:
                self._fail(
                    truth.name,
                    f"{span.name}, due at {span.due}, began at {first} without {missed[0]} (exactly once)",
                )

    # ------------------------------------------------------------------------------------ subscribers

    def subscriber(self, log: str, name: str) -> Subscriber:
        return self.subscribers.setdefault((log, name), Subscriber())

    def subscribed(self, span: Span, subscriber: str, stored_before: DLSN) -> None:
        """A reader was opened for a subscriber without a start; `stored_before` was its position before that."""
        one = self.subscriber(span.log, subscriber)
        if not stored_before <= max(span.start, DLSN.INITIAL) <= one.stored:
            self._fail(
                span.log,
                f"{span.name} began at {span.start} for {subscriber}, stored were {stored_before} to {one.stored}",
            )
        self._went_on(one, span)

    def started_over(self, span: Span, subscriber: str) -> None:
        """A reader was opened for a subscriber at the log's beginning, because what was stored had been truncated."""
        self._went_on(self.subscriber(span.log, subscriber), span)

    def _went_on(self, one: Subscriber, span: Span) -> None:
        if one.spans and one.spans[-1].name != span.name:
            self._reached("log.subscriber-taken-over")
        one.spans.append(span)

    def committed(self, span: Span, subscriber: str, told: DLSN) -> None:
        """A reader's commit was answered: what is stored is what it was given, or what its successor was."""
        given = span.next
        others = [one.next for one in self.subscriber(span.log, subscriber).spans if one is not span]
        if told != given and not given < told <= max(others, default=given):
            self._fail(span.log, f"{span.name} committed {told}, and was given what is below {given} (exactly once)")
        self._reached("log.subscriber-committed")

    def metadata_applied(self, ops: Sequence[Op]) -> None:
        """A transaction: positions are stored by lock holders, and go forwards."""
        for op in ops:
            parts = op.path.split("/")
            if not isinstance(op, Create | SetData) or len(parts) != _DEPTH or parts[4] != SUBSCRIBERS or not op.data:
                continue
            one, position = self.subscriber(parts[2], parts[5]), DLSN.from_base64(op.data.decode("ascii"))
            if position < one.stored:
                self._fail(parts[2], f"the position of {parts[5]} went back from {one.stored} to {position}")
            if not any(isinstance(other, Check) and other.path.startswith(f"{op.path}/") for other in ops):
                self._fail(parts[2], f"the position of {parts[5]} was stored by one whose lock was not checked")
            given = max((span.next for span in one.spans), default=DLSN.INITIAL)
            if position > given:
                self._fail(
                    parts[2], f"the position of {parts[5]} is {position}; its readers were given what is below {given}"
                )
            one.stored = position
