"""The table of producers: a request is written once, in order, whoever sends it and however often."""

from __future__ import annotations

import gc
from functools import partial
from struct import error as StructError
from types import SimpleNamespace
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlspark.core.codec.dlsn import DLSN
from dlspark.core.codec.producer_records import (
    KEPT,
    MAX_COUNT,
    MAX_NAME_BYTES,
    FencingToken,
    ProducerRequest,
    SnapshotPart,
    decode_control,
)
from dlspark.core.writing.acknowledgements import Appended, OutcomeCallback
from dlspark.core.writing.conditional_appends import AppendWrite, Condition, RequestLog
from dlspark.core.writing.producers import LAST_EPOCHS, RECENT, LogTime, Producers, UnderWay, Written, epoch_limit
from dlspark.errors import (
    ConditionError,
    InvalidEntryError,
    InvalidRecordError,
    ProducerFencedError,
    ProducerForgottenError,
    SequenceGapError,
    SequencePassedError,
)
from metadata.foundation.errors import NotAppliedError

DAY_MS = 86_400_000


def request(sequence: int, *, name: str = "p", epoch: int = 0, count: int = 1) -> ProducerRequest:
    return ProducerRequest(name, epoch, sequence, count if sequence >= 0 else 0)


def place(number: int) -> DLSN:
    return DLSN(1, number, 1)


def written(producers: Producers, *sequences: int, epoch: int = 0) -> None:
    for sequence in sequences:
        one = request(sequence, epoch=epoch)
        assert producers.judge(one) is None
        producers.begin(one, place(sequence), 0)
        producers.answered(one)


def test_the_last_requests_are_answered_with_their_first_positions() -> None:
    producers = Producers()
    written(producers, *range(8))
    assert [producers.judge(request(n)) for n in range(3, 8)] == [Written(place(n), 1) for n in range(3, 8)]
    assert [producers.judge(request(n)) for n in range(3)] == [Written(None, 1)] * 3, "written, position forgotten"


def test_a_producer_whose_state_cannot_be_kept_is_not_forgotten() -> None:
    """It would be taken for one that is new, and its request be written twice (I19)."""
    producers, beyond = Producers(), request(0, name="beyond", count=MAX_COUNT + 1)
    producers.replay(beyond, place(1), 0)
    for _ in range(2):
        with pytest.raises(StructError):
            producers.snapshot(0, DAY_MS)
        assert producers.judge(beyond) == Written(DLSN(1, 1, 2), MAX_COUNT + 1)
    for n in range(RECENT - 1):
        producers.replay(request(0, name=f"p{n}"), place(n), 0)
    with pytest.raises(StructError):
        producers.replay(request(0, name="one more"), place(9), 0)
    assert isinstance(producers.judge(beyond), Written)


def test_a_request_that_could_not_be_remembered_is_not_read() -> None:
    highest = b"dlp1:request:0:0:%d:%b" % (MAX_COUNT, b"n" * MAX_NAME_BYTES)
    producers, known = Producers(), decode_control(highest)
    assert isinstance(known, ProducerRequest)
    producers.replay(known, place(1), 0)
    producers.restore(
        [part for part in map(decode_control, producers.snapshot(0, DAY_MS)) if type(part) is SnapshotPart]
    )
    assert isinstance(producers.judge(known), Written)
    for beyond in (b"0:0:%d:p" % (MAX_COUNT + 1), b"0:0:1:" + b"n" * (MAX_NAME_BYTES + 1), b"0:0:1:"):
        with pytest.raises(InvalidEntryError, match="damaged"):
            decode_control(b"dlp1:request:" + beyond)


def test_a_snapshot_has_all_producers_in_the_order_in_which_they_were_heard_of() -> None:
    producers = Producers()
    names = [f"p{n}" for n in range(RECENT + 50)]
    for turn, heard in enumerate((names, names[:20], names[RECENT:])):
        for name in heard:
            one = request(0, name=name, epoch=turn)
            assert producers.judge(one) is None
            producers.begin(one, place(turn), turn)
    assert len(producers) == len(names)
    [payload] = producers.snapshot(0, DAY_MS)
    part = decode_control(payload)
    assert isinstance(part, SnapshotPart)
    assert list(part.states) == [*names[20:RECENT], *names[:20], *names[RECENT:]]
    again = Producers()
    again.restore([part])
    assert [again.state(name) for name in names] == [producers.state(name) for name in names]
    assert list(again.names()) == list(producers.names()) == list(part.states)


class FixedTime:
    """A clock that a test sets."""

    ms = 0

    def now_ms(self) -> int:
        return self.ms

    def elapsed_s(self) -> float:
        return self.ms / 1000


def test_a_request_is_judged_anew_where_a_snapshot_has_just_forgotten_its_producer() -> None:
    producers, clock = Producers(), FixedTime()
    written(producers, 0)
    log = RequestLog(producers, None, -1, LogTime(clock, 0, DAY_MS))
    ended: list[Appended | BaseException] = []
    write = AppendWrite(lambda: log, ([1], [b"a"]), OutcomeCallback(ended.append), producer=request(1))
    write.check()
    assert not log.answer(write), "it is new, and was not written before"
    clock.ms = DAY_MS
    log.snapshot(expiry_s=1)
    segment = None  # nothing may be written to one
    log.issue(write, segment)  # type: ignore[arg-type]
    assert [type(one) for one in ended] == [ProducerForgottenError]


def test_a_request_that_its_condition_refuses_is_not_kept() -> None:
    log = RequestLog(Producers(), None, -1, LogTime(FixedTime(), 0, DAY_MS))
    ended: list[type] = []
    giver = partial(RequestLog.snapshot, log)  # as the log, the request alone holds it
    held = ref(giver)
    write = AppendWrite(
        giver,  # type: ignore[arg-type]
        ([1], [b"a" * 1_000_000]),
        OutcomeCallback(lambda outcome: ended.append(type(outcome))),
        producer=request(0),
        condition=Condition(token=b"another"),
    )
    write.check()
    assert not log.answer(write), "it is new, and was not written before"
    log.issue(write, SimpleNamespace(last_dlsn=None))  # type: ignore[arg-type]
    assert ended == [ConditionError]
    del write, giver
    gc.collect()
    assert held() is None


def test_a_request_under_way_is_waited_for() -> None:
    producers = Producers()
    one = request(0)
    producers.begin(one, place(0), 0)
    assert producers.judge(request(0)) == UnderWay(one)
    assert producers.judge(request(1)) is None, "the next one may follow at once"
    producers.answered(one)
    assert producers.judge(request(0)) == Written(place(0), 1)


def test_a_gap_is_refused_with_the_number_that_is_next() -> None:
    producers = Producers()
    with pytest.raises(SequenceGapError, match="0 is next") as caught:
        producers.judge(request(1))
    assert caught.value.expected == 0
    written(producers, 0, 1)
    with pytest.raises(SequenceGapError, match="2 is next"):
        producers.judge(request(3))


def test_gaps_that_are_allowed_leave_lower_numbers_unknown() -> None:
    producers = Producers(gaps_allowed=True)
    written(producers, 7, 10)
    assert producers.judge(request(7)) == Written(place(7), 1)
    for passed in (0, 8):
        with pytest.raises(SequencePassedError, match="is not among the 2"):
            producers.judge(request(passed))


def test_a_newer_epoch_fences_the_older_one_and_begins_at_0() -> None:
    producers = Producers()
    written(producers, 0, 1, 2)
    with pytest.raises(SequenceGapError, match="0 is next"):
        producers.judge(request(3, epoch=1))
    written(producers, 0, epoch=1)
    with pytest.raises(ProducerFencedError, match="epoch 1 has begun"):
        producers.judge(request(3))
    with pytest.raises(ProducerFencedError):
        producers.judge(request(0))


def test_an_epoch_begins_without_records_and_once() -> None:
    producers = Producers()
    written(producers, 0)
    begin = request(-1, epoch=4)
    assert producers.judge(begin) is None
    producers.begin(begin, place(9), 0)
    producers.answered(begin)
    assert producers.judge(begin) == Written(None, 0)
    with pytest.raises(ProducerFencedError):
        producers.judge(request(1))
    written(producers, 0, epoch=4)


def test_another_request_under_a_used_number_is_refused() -> None:
    producers = Producers()
    written(producers, 0)
    with pytest.raises(InvalidRecordError, match="written with 1 records and came again with 2"):
        producers.judge(request(0, count=2))


def test_producers_that_were_silent_for_long_leave_the_snapshot() -> None:
    producers = Producers()
    producers.begin(request(0, name="old"), place(0), 0)
    producers.begin(request(0, name="new"), place(1), DAY_MS)
    (payload,) = producers.snapshot(2 * DAY_MS, DAY_MS)
    part = decode_control(payload)
    assert isinstance(part, SnapshotPart)
    assert list(part.states) == list(producers.names()) == ["new"]
    assert part.forgotten == producers.forgotten == 0


def test_a_producer_that_was_silent_for_too_long_is_not_taken_for_a_new_one() -> None:
    producers = Producers()
    written(producers, 0, epoch=3)
    parts = [decode_control(payload) for payload in producers.snapshot(2 * DAY_MS, DAY_MS)]
    heir = Producers()
    heir.restore([part for part in parts if isinstance(part, SnapshotPart)])
    for table in (producers, heir):
        for epoch, sequence in ((3, 0), (3, 1), (2, 0), (0, 0), (3, -1)):
            with pytest.raises(ProducerForgottenError, match="up to 3") as refused:
                table.judge(request(sequence, epoch=epoch))
            assert refused.value.epoch == 3
        assert table.next_epoch("p") == table.next_epoch("another") == 4
        assert table.judge(request(-1, epoch=4)) is None
        assert table.judge(request(0, epoch=4)) is None


@pytest.mark.parametrize("losses", [0, 1, 7])
def test_no_producer_leaves_the_others_without_an_epoch(losses: int) -> None:
    """The highest epoch, begun once, and forgotten: the log took no producer any more that was new."""
    producers, limit = Producers(losses=losses), epoch_limit(losses)
    for epoch in (2**63 - 1, limit, limit - LAST_EPOCHS + 1):
        with pytest.raises(InvalidRecordError, match=f"is above {limit - LAST_EPOCHS}, the highest"):
            producers.judge(request(-1, epoch=epoch))
    epoch = limit - LAST_EPOCHS
    for _ in range(3):
        written(producers, -1, 0, epoch=epoch)
        epoch += 1
        assert producers.next_epoch("p") == epoch
        with pytest.raises(InvalidRecordError, match="the highest that this log takes"):
            producers.judge(request(-1, epoch=epoch + 1))
    producers.snapshot(2 * DAY_MS, DAY_MS)
    assert producers.next_epoch("another") == epoch
    assert producers.judge(request(-1, name="another", epoch=epoch)) is None


def test_what_is_known_is_not_held_against_what_others_forgot() -> None:
    producers = Producers()
    producers.begin(request(0, name="old", epoch=9), place(0), 0)
    producers.begin(request(0, name="new"), place(1), 2 * DAY_MS)
    producers.snapshot(2 * DAY_MS, DAY_MS)
    assert producers.forgotten == 9
    assert producers.judge(request(1, name="new")) is None
    assert producers.judge(request(-1, name="new", epoch=1)) is None


@pytest.mark.parametrize("ahead_ms", [0, DAY_MS, -DAY_MS])
def test_the_time_of_a_log_goes_on_where_it_was_left_and_trusts_a_clock_only_so_far(ahead_ms: int) -> None:
    clock = HandClock(10 * DAY_MS + ahead_ms)
    time = LogTime(clock, 10 * DAY_MS, 1_000)
    began = time.now_ms()
    assert began == 10 * DAY_MS + min(max(ahead_ms, 0), 1_000)
    clock.wall_ms += 7 * DAY_MS  # somebody sets it
    clock.passed_s += 5.0
    assert time.now_ms() == began + 5_000
    assert LogTime(clock, None, 1_000).now_ms() == clock.wall_ms, "nothing there that could be forgotten"


class HandClock:
    """A clock that is set by hand."""

    def __init__(self, wall_ms: int) -> None:
        self.wall_ms = wall_ms
        self.passed_s = 0.0

    def now_ms(self) -> int:
        return self.wall_ms

    def elapsed_s(self) -> float:
        return self.passed_s


def test_a_hundred_thousand_producers_are_cut_into_parts() -> None:
    producers = Producers()
    for number in range(100_000):
        producers.begin(ProducerRequest(f"device-{number:07}", 0, 0, 1), place(number), 0)
    parts = [decode_control(payload) for payload in producers.snapshot(0, DAY_MS)]
    assert 20 < len(parts) < 60
    other = Producers()
    other.restore([part for part in parts if isinstance(part, SnapshotPart)])
    assert len(other) == 100_000
    assert other.state("device-0099999") == producers.state("device-0099999")


# ---- any history ---------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("ab"), st.integers(0, 2), st.integers(-1, 12)),
        st.tuples(st.just("next"), st.sampled_from("ab"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("snapshot"), st.just(""), st.just(0), st.just(0)),
        st.tuples(st.just("new owner"), st.just(""), st.just(0), st.just(0)),
        st.tuples(st.just("token"), st.just(""), st.integers(0, 9), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
def test_any_owner_comes_to_the_same_table_and_no_request_is_written_twice(
    steps: list[tuple[str, str, int, int]], gaps_allowed: bool
) -> None:
    """The log is a list of control records. A new owner reads the newest snapshot and what follows it."""
    producers = Producers(gaps_allowed=gaps_allowed)
    log: list[bytes] = []
    stored: dict[tuple[str, int, int], DLSN] = {}
    newest: dict[str, tuple[int, int]] = {}
    snapshot_at = 0
    for kind, name, epoch, sequence in steps:
        if kind == "next":
            known = producers.state(name)
            kind, sequence = "send", known.last + 1 if known is not None and known.epoch == epoch else 0
        if kind == "send":
            one = ProducerRequest(name, epoch, sequence, 2 if sequence >= 0 else 0)
            key = (name, epoch, sequence)
            try:
                answer = producers.judge(one)
            except NotAppliedError:
                assert key not in stored or (epoch, sequence) < newest[name]
                continue
            except SequencePassedError:
                assert gaps_allowed
                continue
            if answer is None:
                assert key not in stored, "written twice"
                assert (epoch, sequence) > newest.get(name, (-1, -1)), "out of order"
                assert gaps_allowed or sequence in (-1, 0) or (name, epoch, sequence - 1) in stored
                first = DLSN(1, len(log), 1)
                log.append(one.encode())
                producers.begin(one, first, 0)
                producers.answered(one)
                stored[key], newest[name] = first, (epoch, sequence)
            else:
                assert isinstance(answer, Written)
                assert answer.first in (None, stored[key])
        elif kind == "token":
            producers.token = str(epoch).encode()
            log.append(FencingToken(producers.token).encode())
        elif kind == "snapshot":
            snapshot_at = len(log)
            log += producers.snapshot(0, DAY_MS)
        else:
            heir = Producers(gaps_allowed=gaps_allowed)
            parts: list[SnapshotPart] = []
            for number in range(snapshot_at, len(log)):
                said = decode_control(log[number])
                if isinstance(said, SnapshotPart):
                    parts.append(said)
                    if said.number + 1 == said.parts:
                        heir.restore(parts)
                elif said is not None:
                    heir.replay(said, DLSN(1, number, 0), 0)
            assert heir.token == producers.token
            assert {n: heir.state(n) for n in heir.names()} == {n: producers.state(n) for n in producers.names()}
            producers = heir


def test_kept_is_what_the_specification_says() -> None:
    assert KEPT == 5
