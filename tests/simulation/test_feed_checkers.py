"""The checkers of feeds see what they are for: requests that are sent to a name, judged by the log that it leads to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.writing.acknowledgements import Appended
from dlspark.errors import ProducerFencedError, ProducerForgottenError, SequenceGapError
from metadata.distributedlog.log_names import DEFAULT_PARTITION
from metadata.store import ANY_VERSION, Create, Delete
from simulation.checkers.feeds import FeedCheckers, SentRequest
from simulation.checkers.ledgers import ViolationError
from simulation.checkers.logs import NAMESPACE_PATH, SeenRecord, WriterSession, WrittenRecord
from simulation.checkers.moving_names import MovingNamesCheckers
from simulation.cluster import World
from simulation.workloads.feeds import FedEpoch, Feed

FEED = "feed"


class NamedLogs:
    """Logs that are made, renamed and deleted, without anything in them; and writers of them."""

    def __init__(self) -> None:
        self.world = World("feeds")
        self.names = MovingNamesCheckers(self.world, self.world.ledger_checkers)
        self.feeds = FeedCheckers(self.world, self.world.ledger_checkers, self.names)
        self._client = self.world.add_client("writer")
        self._client.process = self.world.loop.process("writer", "writer#1")

    def make(self, name: str) -> None:
        self.names.metadata_applied([Create(_segments(name), b"0")])

    def delete(self, name: str) -> None:
        self.names.metadata_applied([Delete(_segments(name), ANY_VERSION)])

    def rename(self, old: str, new: str) -> None:
        self.names.metadata_applied([Create(_segments(new), b"0"), Delete(_segments(old), ANY_VERSION)])

    def open(self, name: str) -> WriterSession:
        session = self.names.session(name, self._client)
        session.answered_before = self.feeds.answered()
        self.names.opened(session)
        return session

    def send(self, session: WriterSession, sequence: int, *, epoch: int = 0) -> SentRequest:
        def make() -> list[WrittenRecord]:
            payload = f"{self.names.truth_of(session).name}/{epoch}/{sequence}".encode()
            return [self.names.written(session, sequence, payload)]

        return self.feeds.sending(session, FEED, epoch, sequence, make)

    def write(self, session: WriterSession, *sequences: int) -> None:
        """As requests that an attempt before has written."""
        for sequence in sequences:
            self.send(session, sequence)
            sent = self.send(session, sequence)
            self.feeds.acknowledged(sent, session, Appended(DLSN(1, sequence, 0), 1, repeated=True))

    def check(self, name: str, *sequences: int) -> None:
        incarnation = self.names.present[name]
        self.feeds.check(
            incarnation,
            [
                SeenRecord(DLSN(1, place, 0), 0, f"{incarnation}/0/{sequence}".encode(), place)
                for place, sequence in enumerate(sequences)
            ],
        )


def _segments(name: str) -> str:
    return f"{NAMESPACE_PATH}/{name}/{DEFAULT_PARTITION}/ledgers"


@pytest.fixture
def logs() -> Iterator[NamedLogs]:
    made = NamedLogs()
    made.make("a")
    yield made
    made.world.loop.finish()


# ---------------------------------------------------------------------------------------- answers


def test_a_log_that_was_made_again_has_nothing_of_the_one_before_to_repeat(logs: NamedLogs) -> None:
    first = logs.open("a")
    logs.write(first, 0)
    logs.delete("a")
    logs.make("a")
    session = logs.open("a")
    sent = logs.send(session, 0)
    with pytest.raises(ViolationError, match="sent to the log once"):
        logs.feeds.acknowledged(sent, session, Appended(DLSN(1, 0, 0), 1, repeated=True))


def test_a_deposed_writer_repeats_what_its_own_log_has(logs: NamedLogs) -> None:
    deposed = logs.open("a")
    logs.write(deposed, 0)
    logs.delete("a")
    logs.make("a")
    logs.feeds.acknowledged(logs.send(deposed, 0), deposed, Appended(DLSN(1, 0, 0), 1, repeated=True))
    assert logs.world.points["names.repeated-by-deposed"] == 1


def test_a_log_answers_no_request_before_those_that_it_was_never_sent(logs: NamedLogs) -> None:
    logs.write(logs.open("a"), 0, 1)
    logs.delete("a")
    logs.make("a")
    session = logs.open("a")
    with pytest.raises(ViolationError, match="was never sent"):
        logs.write(session, 2)


def test_a_writer_that_was_opened_while_the_name_moved_may_have_either_log(logs: NamedLogs) -> None:
    session = logs.names.session("a", logs.world.clients["writer"])
    logs.delete("a")
    logs.make("a")
    logs.names.opened(session)
    assert not logs.names.is_known(session)
    assert logs.names.is_known(logs.open("a"))


# ---------------------------------------------------------------------------------------- refusals


def test_a_log_waits_for_nothing_that_it_answered_under_another_name(logs: NamedLogs) -> None:
    logs.write(logs.open("a"), 0, 1)
    logs.rename("a", "b")
    session = logs.open("b")
    logs.feeds.refused(logs.send(session, 3), session, SequenceGapError("", expected=2))
    sent = logs.send(session, 2)
    with pytest.raises(ViolationError, match="I19"):
        logs.feeds.refused(sent, session, SequenceGapError("", expected=0))


def test_a_log_that_was_made_again_waits_for_the_first_request(logs: NamedLogs) -> None:
    logs.write(logs.open("a"), 0, 1)
    logs.rename("a", "b")
    logs.make("a")
    session = logs.open("a")
    logs.feeds.refused(logs.send(session, 2), session, SequenceGapError("", expected=0))


def test_a_renaming_forgets_no_producer(logs: NamedLogs) -> None:
    logs.write(logs.open("a"), 0)
    logs.rename("a", "b")
    session = logs.open("b")
    sent = logs.send(session, 1)
    with pytest.raises(ViolationError, match="for nothing"):
        logs.feeds.refused(sent, session, ProducerForgottenError("", epoch=7))


def test_only_an_epoch_that_was_sent_to_the_log_fences(logs: NamedLogs) -> None:
    session = logs.open("a")
    logs.send(session, 0, epoch=1)
    logs.feeds.refused(logs.send(session, 0), session, ProducerFencedError("", epoch=1))
    logs.delete("a")
    logs.make("a")
    session = logs.open("a")
    sent = logs.send(session, 0)
    with pytest.raises(ViolationError, match="never sent"):
        logs.feeds.refused(sent, session, ProducerFencedError("", epoch=1))


# ---------------------------------------------------------------------------------------- the end


def test_a_log_has_its_requests_from_the_first_on_and_all_that_were_answered(logs: NamedLogs) -> None:
    session = logs.open("a")
    logs.write(session, 0, 1)
    logs.send(session, 2)
    logs.rename("a", "b")
    logs.check("b", 0, 1)
    logs.check("b", 0, 1, 2)
    for wrong in ((0,), (0, 2), (1, 0)):
        with pytest.raises(ViolationError):
            logs.check("b", *wrong)


# ---------------------------------------------------------------------------------------- feeds


def test_a_feed_begins_one_epoch_for_all_that_it_hears_of_an_older_one() -> None:
    feed = Feed(FEED, "a", follows=False)
    first = feed.now
    feed.begin_epoch(first)
    feed.begin_epoch(first, above=10)
    assert [epoch.number for epoch in feed.epochs] == [0, 1]
    feed.begin_epoch(feed.now, above=10)
    feed.change_producer(feed.now)
    assert (feed.now.producer, feed.now.number) != (FEED, 0)
    assert isinstance(feed.now, FedEpoch)
