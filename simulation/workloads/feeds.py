"""Feeds: idempotent producers of logs whose names move (`checkers.feeds` judges what comes of their requests).

A feed sends its requests to a name, through every writer of that name, in order, from the first that was not answered
or a few before it. It hears answers, and knows when they came. It does not know which log a writer has: nothing tells a
client that the name leads to another log than before. So it concludes that from the answers:

    what it hears                               what it does
    a request comes too early, behind fewer     the log is another one (deleted and made again, or renamed), which knows
    than were answered before the writer        nothing of what was answered: it begins a later epoch
    began to open
    a request is new to the log that was        the same: the log took it at number 0, or behind others that were sent
    answered before that                        to it again
    the log has forgotten the producer          it begins an epoch above all that was forgotten
    the epoch is above the log's limit          it goes on as another producer: only a log that has lost what it knew
                                                takes such epochs, and this is another one
    a request comes too early, behind more      nothing, it sends them again: a deposed writer may not know of the later
                                                ones
    a later epoch has begun                     nothing: that was the feed itself

What was sent in older epochs without an answer stays unknown and is not sent again: the log that may have it is
perhaps not the one that would take it. But a copy of the last one may come late, from a process that stood still. A
request that no log has answered may be taken by several, by each of them once; no client can know that.

Some feeds follow their log: the program that has renamed it tells them the new name. They go on where they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from dlspark.core.codec.producer_records import KEPT
from dlspark.core.writing.acknowledgements import Appended
from dlspark.core.writing.writer import AsyncLogWriter
from dlspark.errors import InvalidRecordError, ProducerForgottenError, SequenceGapError
from simulation.checkers.feeds import FeedCheckers, SentRequest
from simulation.checkers.history import RecordedOperation
from simulation.checkers.logs import SeenRecord, WriterSession, WrittenRecord
from simulation.checkers.moving_names import MovingNamesCheckers
from simulation.cluster import World
from simulation.workloads.producers import IMPATIENT_SHARE

FOLLOWS_SHARE = 0.5
"""Feeds that follow their log to its new name."""
LATE_SHARE = 0.05
"""Requests before which one of the epoch before comes late."""


@dataclass(slots=True, eq=False)
class FedEpoch:
    """An epoch of a feed, as the feed knows it."""

    producer: str
    number: int
    requests: list[int] = field(default_factory=list)
    """How many records each request has."""
    answered: int = 0
    """Requests from the first on that were answered, by whatever log."""

    def __str__(self) -> str:
        return f"epoch {self.number} of {self.producer}"


@dataclass(slots=True, eq=False)
class Feed:
    """Which requests does a name get? The program that sends them."""

    name: str
    log: str
    follows: bool
    epochs: list[FedEpoch] = field(init=False)

    def __post_init__(self) -> None:
        self.epochs = [FedEpoch(self.name, 0)]

    @property
    def now(self) -> FedEpoch:
        """The epoch in which it sends."""
        return self.epochs[-1]

    def begin_epoch(self, after: FedEpoch, above: int = -1) -> None:
        """Begin an epoch after this one and above a number, unless it has begun a later one since."""
        if after is self.now:
            self.epochs.append(FedEpoch(after.producer, max(after.number, above) + 1))

    def change_producer(self, after: FedEpoch) -> None:
        """Go on as another producer, unless it has begun something else since."""
        if after is self.now:
            self.epochs.append(FedEpoch(f"{self.name}.{len(self.epochs)}", 0))


class Feeds:
    """All feeds of a run."""

    def __init__(self, world: World, names: MovingNamesCheckers, logs: Sequence[str], rng: Random) -> None:
        """Draw one feed or two for each of the `logs`."""
        self.world = world
        self.names = names
        self.checkers = FeedCheckers(world, world.ledger_checkers, names)
        self._feeds = [
            Feed(f"{log}-feed{index}", log, rng.random() < FOLLOWS_SHARE)
            for log in logs
            for index in range(rng.choice((1, 2)))
        ]

    def of(self, log: str) -> list[Feed]:
        """Return those that send to a name now."""
        return [feed for feed in self._feeds if feed.log == log]

    def renamed(self, old: str, new: str) -> None:
        """Let the feeds that follow a log know that a client has renamed it."""
        for feed in self.of(old):
            if feed.follows:
                self.world.reached("names.feed-followed")
                feed.log = new

    def answered(self) -> dict[str, int]:
        """Return how many requests of each epoch were answered so far, by any log, and by each log."""
        return {str(epoch): epoch.answered for feed in self._feeds for epoch in feed.epochs} | self.checkers.answered()


class NamedFeeds:
    """The feeds of one name: `producers.RequestSource`."""

    def __init__(self, feeds: Feeds, log: str) -> None:
        self._feeds = feeds
        self._log = log

    def answered(self) -> dict[str, int]:
        """Return the same as `Feeds.answered`."""
        return self._feeds.answered()

    def sender(
        self, writer: AsyncLogWriter, session: WriterSession, record: Callable[[], WrittenRecord]
    ) -> FeedSender | None:
        """Return what sends requests through an opened writer; None where it is not known which log that has."""
        return FeedSender(self._feeds, writer, session, record) if self._feeds.names.is_known(session) else None

    def check(self, seen: Sequence[SeenRecord], *, whole: bool = True) -> None:
        """Check the whole log that has the name now."""
        self._feeds.checkers.check(self._feeds.names.present[self._log], seen)


class FeedSender:
    """Sends the requests of a name's feeds through one writer."""

    def __init__(
        self, feeds: Feeds, writer: AsyncLogWriter, session: WriterSession, record: Callable[[], WrittenRecord]
    ) -> None:
        self._world = feeds.world
        self._feeds = feeds
        self._writer = writer
        self._session = session
        self._record = record
        self._next: dict[FedEpoch, int] = {}

    def send_some(self, rng: Random, count: int) -> int:
        """Send the next requests of feeds, new ones of `count` records where all were sent; returns how many records
        are new."""
        feeds = self._feeds.of(self._session.log)
        return (
            sum(self._send_next(rng, rng.choice(feeds), count) for _ in range(rng.choice((1, 1, 2, 4)))) if feeds else 0
        )

    def _send_next(self, rng: Random, feed: Feed, count: int) -> int:
        if len(feed.epochs) > 1 and rng.random() < LATE_SHARE and feed.epochs[-2].requests:
            self._send(feed, feed.epochs[-2], len(feed.epochs[-2].requests) - 1)
        epoch = feed.now
        if epoch not in self._next:
            self._next[epoch] = max(0, epoch.answered - rng.choice((0, 0, 1, 2, KEPT + 1)))
        sequence = self._next[epoch]
        if sequence and (rng.random() < IMPATIENT_SHARE or not self._feeds.names.has_its_name(self._session)):
            self._send(feed, epoch, sequence - 1)
        new = sequence == len(epoch.requests)
        if new:
            epoch.requests.append(count)
        self._send(feed, epoch, sequence)
        return count if new else 0

    def send_rest(self) -> list[asyncio.Future[Appended]]:
        """Send everything that was not answered, of each feed one request at least."""
        sent: list[asyncio.Future[Appended]] = []
        for feed in self._feeds.of(self._session.log):
            epoch = feed.now
            if epoch.answered == len(epoch.requests):
                epoch.requests.append(1)
            sent += [self._send(feed, epoch, sequence) for sequence in range(epoch.answered, len(epoch.requests))]
        return sent

    def _send(self, feed: Feed, epoch: FedEpoch, sequence: int) -> asyncio.Future[Appended]:
        self._next[epoch] = sequence + 1
        session, count = self._session, epoch.requests[sequence]
        sent = self._feeds.checkers.sending(
            session, epoch.producer, epoch.number, sequence, lambda: [self._record() for _ in range(count)]
        )
        session.requests_under_way += 1
        future = self._writer.append(
            [(session.txid, record.payload) for record in sent.records],
            producer=epoch.producer,
            epoch=epoch.number,
            sequence=sequence,
        )
        operation = self._world.history.begin(session.client, "request", session.log)
        future.add_done_callback(partial(self._ended, feed, epoch, sent, operation))
        return future

    def _ended(
        self,
        feed: Feed,
        epoch: FedEpoch,
        sent: SentRequest,
        operation: RecordedOperation,
        done: asyncio.Future[Appended],
    ) -> None:
        self._session.requests_under_way -= 1
        error = done.exception()
        self._world.history.end(operation, error)
        if error is None:
            self._feeds.checkers.acknowledged(sent, self._session, done.result())
            self._learn_from_answer(feed, epoch, sent.sequence, done.result())
        else:
            self._feeds.checkers.refused(sent, self._session, error)
            self._learn_from_refusal(feed, epoch, error)

    # ------------------------------------------------------------------------------------ what the feed concludes

    def _answered_before(self, epoch: FedEpoch) -> int:
        """Return how many requests were answered before this writer began to open."""
        return self._session.answered_before.get(str(epoch), 0)

    def _learn_from_answer(self, feed: Feed, epoch: FedEpoch, sequence: int, answer: Appended) -> None:
        if not answer.repeated and sequence < self._answered_before(epoch):
            self._world.reached("names.feed-taken-for-new")
            feed.begin_epoch(epoch)
        epoch.answered = max(epoch.answered, sequence + 1)

    def _learn_from_refusal(self, feed: Feed, epoch: FedEpoch, error: BaseException) -> None:
        self._next[epoch] = epoch.answered  # it and those behind it come again
        if isinstance(error, ProducerForgottenError) and error.epoch is not None:
            self._world.reached("names.feed-forgotten")
            feed.begin_epoch(epoch, error.epoch)
        elif isinstance(error, SequenceGapError) and error.expected < self._answered_before(epoch):
            self._world.reached("names.feed-not-known")
            feed.begin_epoch(epoch)
        elif isinstance(error, InvalidRecordError):
            self._world.reached("names.feed-above-limit")
            feed.change_producer(epoch)
