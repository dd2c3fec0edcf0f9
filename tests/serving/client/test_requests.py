"""The way of a request: what follows from each answer, what may be sent twice, and its bounds."""

from __future__ import annotations

import itertools
import random

import pytest

from dlspark import errors
from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import ProxyUnreachableError
from dlspark.serving.client.answer_rules import (
    FINAL_REASONS,
    RULE_OF_CODE,
    AnswerRule,
    StreamRequest,
    is_repeatable,
    may_pass,
    rule_of,
)
from dlspark.serving.client.ownership import OwnershipCache
from dlspark.serving.client.requests import (
    MAX_TRIED_HOSTS,
    REQUEST_TABLE,
    SOON_AGAIN,
    AskHost,
    BackOff,
    Effect,
    Finished,
    RequestEvent,
    RequestState,
    RetryLimits,
    RoutedRequest,
)
from dlspark.serving.protocol.failures import error_of, refusal_of
from dlspark.serving.protocol.operations import (
    REASON_OF_NAME,
    Applied,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Delivery,
    Done,
    FindOwner,
    Heartbeat,
    MoveStream,
    OwnerFound,
    ProducerStamp,
    ReadBatch,
    ReadForm,
    ReadFrom,
    Reason,
    Refusal,
    ReleaseStream,
    SetFencingToken,
    StatusCode,
    TakeStream,
    TruncateStream,
    WriteReceipt,
    WriteRecords,
)
from dlspark.serving.routing.hosts import ProxyHost, Route
from dlspark.serving.routing.other_routes import RegionChain, ServerOrder
from dlspark.serving.routing.ring import BoundedRing
from metadata.foundation.errors import DistributedLogError, InvariantViolation, OutcomeUnknownError
from metadata.security.proofs import NotAuthenticatedError
from storage_node.protocol.tables import Reaction

READ = ReadBatch("s", ReadFrom.OLDEST)
WRITE = WriteRecords("s", (b"x",))
STAMPED = WriteRecords("s", (b"x",), stamp=ProducerStamp("p", 0, 0))
RECEIPT = WriteReceipt(DLSN(1, 0, 0), 1)
DELIVERY = Delivery(ReadForm.ENTRIES, DLSN(1, 0, 0))
UNAVAILABLE = Refusal(StatusCode.STREAM_UNAVAILABLE, "failed lately")
LIMITS = RetryLimits(request_timeout_ms=1_000)

REPEATABLE: tuple[StreamRequest, ...] = (
    STAMPED,
    WriteRecords("s", (b"x",), expected_position=7),
    BeginEpoch("s", "p"),
    Heartbeat("s"),
    TruncateStream("s", DLSN(1, 0, 0)),
    ReleaseStream("s"),
    MoveStream("s", "b:1"),
    FindOwner("s"),
    ReadBatch("s", ReadFrom.OLDEST),
)
ONCE: tuple[StreamRequest, ...] = (
    WRITE,
    WriteRecords("s", (b"x",), atomic=True),
    WriteRecords("s", (b"x",), fencing_token=b"t"),
    SetFencingToken("s", b"t"),
    CreateStream("s"),
    DeleteStream("s"),
    TakeStream("s", "a:1"),
)


class Way:
    """One request among the hosts a:1, b:1 and c:1; without an owner it asks the one that its hash gives it."""

    def __init__(
        self,
        request: StreamRequest = WRITE,
        limits: RetryLimits = LIMITS,
        *,
        hosts: tuple[str, ...] = ("a:1", "b:1", "c:1"),
        owner: str | None = "a:1",
        route: Route | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.route = route if route is not None else ServerOrder(ProxyHost(one) for one in hosts)
        self.owners = OwnershipCache()
        if owner is not None:
            self.owners.learn("s", owner)
        self.way = RoutedRequest(request, self.route, self.owners, limits, rng=rng)
        self.now = 100.0
        self.effect: Effect | None = self.way.begin(self.now)

    @property
    def asked(self) -> AskHost:
        assert isinstance(self.effect, AskHost), self.effect
        return self.effect

    @property
    def finished(self) -> Finished:
        assert isinstance(self.effect, Finished), self.effect
        return self.effect

    def answer(self, answer: Refusal | WriteReceipt | Done | OwnerFound, attempt: int | None = None) -> Way:
        self.effect = self.way.answered(self.asked.attempt if attempt is None else attempt, answer, self.now)
        return self

    def fail(self, *, sent: bool) -> Way:
        self.effect = self.way.failed(self.asked.attempt, self.now, sent=sent)
        return self

    def resume(self) -> Way:
        assert isinstance(self.effect, BackOff), self.effect
        self.now += self.effect.seconds
        self.effect = self.way.resumed(self.now)
        return self


def found(location: str) -> Refusal:
    return Refusal(StatusCode.FOUND, "owned elsewhere", location=location)


# ---------------------------------------------------------------------- the tables


def test_every_code_has_a_rule() -> None:
    assert RULE_OF_CODE.keys() == set(StatusCode)
    at_once = {403, 413, 501, 506, 509, 510, 511, 512, 513, 517, 518, 523, 602}
    ours = {301, 522}
    assert {int(code) for code, rule in RULE_OF_CODE.items() if rule is AnswerRule.FAIL} == at_once | ours
    assert RULE_OF_CODE[StatusCode.SERVICE_UNAVAILABLE] is AnswerRule.LEAVE_HOST
    assert RULE_OF_CODE[StatusCode.REGION_UNAVAILABLE] is AnswerRule.NEXT_REGION


@pytest.mark.parametrize("code", StatusCode, ids=lambda code: code.name)
def test_what_a_refusal_leads_to(code: StatusCode) -> None:
    for fail_fast, applied, error in itertools.product((False, True), Applied, ("", "SequenceGapError")):
        refusal = Refusal(code, "no", applied=applied, error=error)
        rule = rule_of(refusal, fail_fast=fail_fast)
        assert (rule is AnswerRule.FAIL) or not error
        if not error and applied is not Applied.WRONG:
            listed = RULE_OF_CODE[code]
            assert rule is (AnswerRule.FAIL if fail_fast and listed is AnswerRule.NEXT_HOST else listed)
    assert rule_of(Refusal(code, "wrong", applied=Applied.WRONG), fail_fast=False) is (
        RULE_OF_CODE[code]
        if code in (StatusCode.FOUND, StatusCode.ALREADY_CLOSED, StatusCode.SERVICE_UNAVAILABLE)
        else AnswerRule.FAIL
    )


def test_every_name_that_says_a_reason_is_an_error_s() -> None:
    for name in REASON_OF_NAME:
        assert issubclass(getattr(errors, name), DistributedLogError)


def test_what_may_pass_is_not_final() -> None:
    assert may_pass(Refusal(StatusCode.OVER_CAPACITY, ""))
    assert may_pass(UNAVAILABLE)
    assert not may_pass(Refusal(StatusCode.REQUEST_DENIED, ""))
    assert not may_pass(Refusal(StatusCode.ILLEGAL_STATE, "", error="ConditionError"))


@pytest.mark.parametrize("request_", REPEATABLE, ids=lambda one: type(one).__name__)
def test_what_may_be_done_twice_is_sent_again(request_: StreamRequest) -> None:
    assert is_repeatable(request_)
    way = Way(request_).fail(sent=True)
    assert way.asked.address != "a:1"


@pytest.mark.parametrize("request_", ONCE, ids=lambda one: type(one).__name__)
def test_what_may_not_be_done_twice_is_not_sent_again(request_: StreamRequest) -> None:
    assert not is_repeatable(request_)
    way = Way(request_)
    assert way.asked.wait_s is None, "it is waited for as long as there is time"
    way.fail(sent=True)
    refusal = way.finished.for_caller
    assert isinstance(refusal, Refusal)
    assert refusal.applied is Applied.UNKNOWN
    assert isinstance(error_of(refusal, stream="s"), OutcomeUnknownError)


@pytest.mark.parametrize("request_", ONCE, ids=lambda one: type(one).__name__)
def test_what_was_never_sent_is_sent_elsewhere(request_: StreamRequest) -> None:
    assert Way(request_).fail(sent=False).asked.address != "a:1"


def test_a_plain_write_is_sent_again_where_a_setting_says_so() -> None:
    limits = RetryLimits(resend_writes=True)
    assert Way(WRITE, limits).fail(sent=True).asked.address != "a:1"
    assert Way(DeleteStream("s"), limits).fail(sent=True).finished.in_doubt


def reach(state: RequestState) -> Way:
    way = Way(STAMPED)
    if state is RequestState.NEW:
        way.way = RoutedRequest(STAMPED, way.route, way.owners, LIMITS)
    elif state is RequestState.PAUSED:
        way.answer(found("b:1")).answer(found("a:1"))
    elif state is RequestState.DONE:
        way.answer(RECEIPT)
    assert way.way.state is state
    return way


@pytest.mark.parametrize(("state", "event"), list(itertools.product(RequestState, RequestEvent)))
def test_every_event_in_every_state(state: RequestState, event: RequestEvent) -> None:
    way = reach(state).way
    acts = {
        RequestEvent.BEGIN: lambda: way.begin(101.0),
        RequestEvent.ANSWERED: lambda: way.answered(0, RECEIPT, 101.0),
        RequestEvent.FAILED: lambda: way.failed(max(way.attempts - 1, 0), 101.0, sent=True),
        RequestEvent.SILENT: lambda: way.silent(max(way.attempts - 1, 0), 101.0),
        RequestEvent.RESUMED: lambda: way.resumed(100.5),
        RequestEvent.DEADLINE: lambda: way.deadline_passed(101.0),
    }
    reaction = REQUEST_TABLE[state][event]
    if reaction is Reaction.BUG:
        with pytest.raises(InvariantViolation):
            acts[event]()
        return
    effect = acts[event]()
    assert (effect is not None) is (reaction is Reaction.ACT)
    assert isinstance(effect, Finished) is (way.state is RequestState.DONE and state is not RequestState.DONE)


# ---------------------------------------------------------------------- where it goes


def test_the_owner_is_asked_first_and_remembered() -> None:
    way = Way(owner="c:1")
    assert way.asked.address == "c:1"
    way.answer(RECEIPT)
    assert way.finished == Finished(RECEIPT)
    assert way.owners.owner("s") == "c:1"


def test_without_an_owner_the_route_chooses() -> None:
    way = Way(owner=None)
    assert way.asked.address == way.route.pick("s", 0.0)
    way.answer(RECEIPT)
    assert way.owners.owner("s") == way.route.pick("s", 0.0)


def test_a_redirect_is_followed_and_remembered() -> None:
    way = Way().answer(found("1;7;b:1"))
    assert way.asked.address == "b:1"
    assert way.asked.request.context.tried_hosts == ("a:1",)
    assert way.owners.owner("s") == "b:1"


@pytest.mark.parametrize("location", ["1;0;a:1", "", "nonsense", "1;0;host:99999", None])
def test_a_redirect_that_leads_nowhere_is_not_followed(location: str | None) -> None:
    way = Way().answer(Refusal(StatusCode.FOUND, "elsewhere", location=location))
    assert way.asked.address in ("b:1", "c:1")
    assert way.owners.owner("s") is None


def test_proxies_that_name_each_other_are_asked_in_turn_with_a_longer_back_off_each_time() -> None:
    way = Way(limits=RetryLimits(request_timeout_ms=1_000, backoff_start_ms=25, backoff_max_ms=100)).answer(
        found("b:1")
    )
    pauses = []
    for address in ("a:1", "b:1", "a:1", "b:1"):
        way.answer(found(address))
        assert isinstance(way.effect, BackOff)
        pauses.append(way.effect.seconds)
        way.resume()
        assert way.asked.address == address
    assert pauses == [0.05, 0.075, 0.1, 0.1]


def test_the_number_of_redirects_is_bounded() -> None:
    way = Way(limits=RetryLimits(max_redirects=2)).answer(UNAVAILABLE).answer(UNAVAILABLE).answer(UNAVAILABLE)
    answer = way.finished.answer
    assert isinstance(answer, Refusal)
    assert "3 attempts" in answer.message
    assert answer.code is StatusCode.STREAM_UNAVAILABLE
    assert not way.finished.in_doubt
    assert Way(limits=RetryLimits(max_redirects=0)).answer(found("b:1")).finished.answer != RECEIPT


def test_a_read_is_sent_on_though_its_attempts_are_used_up_but_not_for_ever() -> None:
    way = Way(READ, RetryLimits(max_redirects=0)).answer(found("b:1"))
    assert way.asked.address == "b:1"
    way.answer(found("c:1")).answer(found("d:1"))
    answer = way.finished.answer
    assert isinstance(answer, Refusal)
    assert "3 attempts" in answer.message


def test_a_read_is_not_sent_to_a_host_that_failed_lately_and_says_that_it_was() -> None:
    route = BoundedRing([ProxyHost("a:1")])
    way = Way(READ, RetryLimits(max_redirects=0), route=route).answer(found("1;-1;far:1"))
    assert way.asked.address == "far:1"
    way.fail(sent=False)
    assert isinstance(way.finished.answer, Refusal), "that was an attempt"
    way = Way(READ, RetryLimits(max_redirects=0), route=route).answer(found("1;-1;far:1")).resume()
    assert (way.asked.address, way.asked.request.context.tried_hosts) == ("a:1", ("far:1", "a:1"))
    way.answer(found("1;-1;far:1"))
    assert way.asked.address == "far:1", "who named it does so again: it is asked"
    way = Way(WRITE, route=route).answer(found("1;-1;far:1"))
    assert way.asked.address == "far:1", "nobody else has the stream"


def test_an_unavailable_host_loses_all_its_streams_and_a_refused_stream_only_itself() -> None:
    way = Way()
    way.owners.learn("t", "a:1")
    way.answer(UNAVAILABLE)
    assert way.owners.owner("t") == "a:1"
    assert way.owners.owner("s") is None
    way = Way()
    way.owners.learn("t", "a:1")
    way.answer(Refusal(StatusCode.SERVICE_UNAVAILABLE, "stopping"))
    assert way.owners.owner("t") is None


def test_proxies_that_take_no_requests_are_asked_less_and_less_often_and_not_all_clients_come_at_once() -> None:
    def pauses(refusal: Refusal, seed: int) -> list[float]:
        route = ServerOrder([ProxyHost("a:1")])
        way = Way(limits=RetryLimits(request_timeout_ms=-1), route=route, rng=random.Random(seed))
        found = []
        for _ in range(12):
            way.answer(refusal)
            assert isinstance(way.effect, BackOff)
            found.append(way.effect.seconds)
            way.resume()
        return found

    unavailable = Refusal(StatusCode.SERVICE_UNAVAILABLE, "no rules can be read")
    first, other = pauses(unavailable, 1), pauses(unavailable, 2)
    assert first[:SOON_AGAIN] == other[:SOON_AGAIN] == [0.025, 0.05, 0.075, 0.1]
    assert all(0.5 <= pause <= 1.0 for pause in (*first[SOON_AGAIN + 3 :], *other[SOON_AGAIN + 3 :]))
    assert len({*first[SOON_AGAIN:], *other[SOON_AGAIN:]}) > 8, "they are drawn"
    assert max(pauses(UNAVAILABLE, 1)) == 0.1, "the log alone is not to be had there"


def test_a_proxy_that_cannot_be_reached_is_dialled_as_often_as_before() -> None:
    way = Way(limits=RetryLimits(request_timeout_ms=-1), hosts=("a:1",))
    for _ in range(12):
        way.fail(sent=False)
        assert isinstance(way.effect, BackOff)
        assert way.effect.seconds <= 0.1
        way.resume()


def test_when_all_hosts_were_asked_they_are_asked_again() -> None:
    way = Way()
    asked = [way.asked.address]
    for _ in range(2):
        asked.append(way.answer(UNAVAILABLE).asked.address)
    assert sorted(asked) == ["a:1", "b:1", "c:1"]
    way.answer(UNAVAILABLE)
    assert isinstance(way.effect, BackOff)
    assert way.resume().asked.address in asked


def test_the_next_region_is_asked_where_one_is_not_available() -> None:
    hosts = [ServerOrder([ProxyHost("a:1"), ProxyHost("b:1")]), ServerOrder([ProxyHost("c:1")])]
    way = Way(route=RegionChain(list(zip(("here", "there"), hosts, strict=True))))
    way.answer(Refusal(StatusCode.REGION_UNAVAILABLE, "evacuated"))
    assert way.asked.address == "c:1"
    way.answer(Refusal(StatusCode.REGION_UNAVAILABLE, "evacuated"))
    assert isinstance(way.effect, BackOff), "from the first region on again"


def test_a_host_whose_connection_failed_is_passed_over_by_the_next_request() -> None:
    way = Way(STAMPED, owner=None)
    first = way.asked.address
    way.fail(sent=False)
    assert way.asked.address != first
    assert way.route.pick("s", way.now) != first


def test_fail_fast_says_at_once_what_the_first_host_said() -> None:
    way = Way(limits=RetryLimits(fail_fast=True)).answer(UNAVAILABLE)
    assert way.finished.answer == UNAVAILABLE
    assert Way(limits=RetryLimits(fail_fast=True)).answer(found("b:1")).asked.address == "b:1"


def test_a_request_without_any_host_waits_for_one() -> None:
    way = Way(hosts=(), owner=None)
    assert isinstance(way.effect, BackOff)
    way.resume()
    assert isinstance(way.effect, BackOff)
    way.route.update([ProxyHost("d:1")], way.now)
    assert way.resume().asked.address == "d:1"


def test_hosts_that_travel_as_tried_are_bounded() -> None:
    hosts = tuple(f"h{number}:1" for number in range(100))
    way = Way(hosts=hosts, owner=None)
    for _ in range(90):
        way.answer(UNAVAILABLE)
    tried = way.asked.request.context.tried_hosts
    assert len(tried) == MAX_TRIED_HOSTS == len(set(tried))


@pytest.mark.parametrize(
    ("request_", "answer", "owner"),
    [
        (FindOwner("s"), OwnerFound("1;0;c:1"), "c:1"),
        (MoveStream("s", "1;2;b:1"), Done(), "b:1"),
        (ReleaseStream("s"), Done(), None),
        (DeleteStream("s"), Done(), None),
        (CreateStream("s"), Done(), "z:1"),
        (Heartbeat("s"), Done(), "a:1"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_a_success_says_of_the_owner(request_: StreamRequest, answer: Done | OwnerFound, owner: str) -> None:
    way = Way(request_)
    way.owners.learn("s", "z:1" if isinstance(request_, CreateStream) else "a:1")
    way.answer(answer)
    assert way.owners.owner("s") == owner


# ---------------------------------------------------------------------- proofs that are not taken


UNPROVEN = refusal_of(NotAuthenticatedError("the certificate is revoked"))


def unproven(way: Way) -> Way:
    way.effect = way.way.failed(way.asked.attempt, way.now, sent=False, unproven=UNPROVEN)
    return way


def test_a_client_that_no_proxy_takes_hears_it_when_each_has_said_so() -> None:
    way = unproven(unproven(Way()))
    assert {way.asked.address, "a:1"} < {"a:1", "b:1", "c:1"}
    assert unproven(way).finished == Finished(UNPROVEN)
    error = error_of(UNPROVEN, stream="s")
    assert isinstance(error, NotAuthenticatedError)


def test_a_proxy_that_takes_the_proof_is_found_behind_others_that_do_not() -> None:
    assert unproven(unproven(Way())).answer(RECEIPT).finished == Finished(RECEIPT)


@pytest.mark.parametrize("first", ["unreachable", "unproven"])
def test_a_proxy_that_cannot_be_reached_is_not_waited_for_where_the_others_refuse(first: str) -> None:
    way = Way(hosts=("a:1", "b:1"))
    way = unproven(way.fail(sent=False)) if first == "unreachable" else unproven(way).fail(sent=False)
    assert way.finished == Finished(UNPROVEN)


def test_a_proxy_that_ends_the_session_of_a_revoked_client_is_asked_once_more() -> None:
    way = Way(hosts=("a:1",)).answer(UNAVAILABLE).resume()
    assert unproven(way).finished == Finished(UNPROVEN)


def test_an_owner_that_takes_no_proof_is_not_asked_again_for_others_that_name_it() -> None:
    way = Way(hosts=("a:1", "b:1", "c:1"))
    owner = next(one for one in ("b:1", "c:1") if one != way.asked.address)
    way = unproven(way.answer(found(owner)))
    asked = []
    while not isinstance(way.effect, Finished):
        way = way.resume() if not isinstance(way.effect, AskHost) else way
        asked.append(way.asked.address)
        way.answer(found(owner))
    assert owner not in asked
    assert len(asked) <= 2
    assert way.finished == Finished(UNPROVEN)


def test_another_owner_that_a_proxy_names_is_asked_though_the_first_took_no_proof() -> None:
    way = unproven(Way(hosts=("a:1", "b:1", "c:1")).answer(found("b:1")))
    assert way.asked.address == "c:1"
    assert way.answer(found("d:1")).asked.address == "d:1"
    assert way.answer(RECEIPT).finished == Finished(RECEIPT)


@pytest.mark.parametrize("ring", [False, True])
def test_a_read_that_was_sent_to_a_proxy_that_takes_no_proof_is_served_by_the_one_that_sent_it(ring: bool) -> None:
    hosts = ("a:1", "b:1")
    way = Way(READ, hosts=hosts, route=BoundedRing([ProxyHost(one) for one in hosts]) if ring else None)
    way = unproven(way.answer(found("b:1"))).resume()
    assert way.asked.address == "a:1"
    assert way.asked.request.context.tried_hosts == ("b:1", "a:1"), "so it hears that b was tried, and serves the log"
    way.effect = way.way.answered(way.asked.attempt, DELIVERY, way.now)
    assert way.finished == Finished(DELIVERY)


def test_a_read_that_a_proxy_sends_on_though_it_heard_that_the_other_was_tried_ends() -> None:
    way = unproven(Way(READ, hosts=("a:1", "b:1")).answer(found("b:1")))
    asked = []
    while not isinstance(way.effect, Finished):
        way = way if isinstance(way.effect, AskHost) else way.resume()
        asked.append(way.asked.address)
        way = way.answer(found("b:1")) if way.asked.address == "a:1" else unproven(way)
    assert asked == ["a:1", "a:1", "b:1"]
    assert way.finished == Finished(UNPROVEN)


def test_a_read_that_was_sent_to_a_proxy_that_takes_no_proof_asks_a_third_one_first() -> None:
    way = unproven(Way(READ, hosts=("a:1", "b:1", "c:1")).answer(found("b:1")))
    assert way.asked.address == "c:1"
    assert way.asked.request.context.tried_hosts == ("b:1", "a:1")


def test_an_earlier_doubt_is_not_forgotten_over_a_proof_that_is_not_taken() -> None:
    way = Way(STAMPED, hosts=("a:1", "b:1")).fail(sent=True)
    way = unproven(way)
    while not isinstance(way.effect, Finished):
        way = unproven(way.resume())
    assert way.finished.in_doubt


def test_a_request_whose_time_is_up_while_its_proxy_is_dialled_was_not_done() -> None:
    way = Way()
    way.effect = way.way.deadline_passed(101.0, sent=False)
    assert not way.finished.in_doubt
    assert isinstance(error_of(way.finished.for_caller, stream="s"), ProxyUnreachableError)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- time, and doubt


def test_a_request_whose_time_is_up_while_it_is_asked_is_in_doubt() -> None:
    way = Way()
    assert way.way.deadline == 101.0
    assert way.asked.request.context.timeout_ms == 1_000
    way.effect = way.way.deadline_passed(101.0)
    assert way.finished.in_doubt
    refusal = way.finished.for_caller
    assert isinstance(refusal, Refusal)
    assert refusal.applied is Applied.UNKNOWN
    assert "a:1" in refusal.message


def test_a_request_whose_time_is_up_between_two_hosts_was_not_done() -> None:
    way = Way(hosts=("a:1",)).answer(UNAVAILABLE)
    assert isinstance(way.effect, BackOff)
    way.effect = way.way.deadline_passed(101.0)
    refusal = way.finished.for_caller
    assert isinstance(refusal, Refusal)
    assert refusal.applied is Applied.NO
    assert "failed lately" in refusal.message
    assert isinstance(error_of(refusal, stream="s"), ProxyUnreachableError)


def test_reading_is_never_in_doubt() -> None:
    way = Way(ReadBatch("s", ReadFrom.OLDEST))
    way.effect = way.way.deadline_passed(101.0)
    assert not way.finished.in_doubt


def test_what_woke_up_too_late_is_not_sent_again() -> None:
    way = Way(STAMPED)
    way.now = 500_000.0
    assert way.fail(sent=True).finished.in_doubt


def test_a_host_that_does_not_answer_is_left_where_the_request_may_be_repeated() -> None:
    way = Way(STAMPED, RetryLimits(attempt_timeout_ms=300))
    assert way.asked.wait_s == 0.3
    first = way.asked.attempt
    way.owners.learn("t", "a:1")
    way.effect = way.way.silent(first, way.now)
    assert way.asked.address != "a:1"
    assert way.owners.owner("t") == "a:1", "it may be slow with one stream alone"
    late = way.asked.attempt
    way.answer(UNAVAILABLE)
    assert way.asked.attempt == late + 1
    way.answer(RECEIPT, first)
    assert way.finished == Finished(RECEIPT), "a success counts whenever it comes"


def test_a_refusal_behind_an_attempt_in_doubt_does_not_say_that_nothing_happened() -> None:
    denied = Refusal(StatusCode.REQUEST_DENIED, "denied", applied=Applied.WRONG, error="RequestDeniedError")
    way = Way(STAMPED).fail(sent=True).answer(denied)
    assert way.finished.answer == denied
    assert way.finished.in_doubt
    refusal = way.finished.for_caller
    assert isinstance(refusal, Refusal)
    assert (refusal.applied, refusal.code) == (Applied.UNKNOWN, StatusCode.REQUEST_DENIED)
    assert isinstance(error_of(refusal, stream="s"), OutcomeUnknownError)


def test_a_late_refusal_takes_the_doubt_away() -> None:
    way = Way(STAMPED, RetryLimits(attempt_timeout_ms=300))
    first = way.asked.attempt
    way.effect = way.way.silent(first, way.now)
    second = way.asked.attempt
    assert way.way.answered(first, UNAVAILABLE, way.now) is None
    way.effect = way.way.answered(second, Refusal(StatusCode.TOO_LARGE_RECORD, "too large"), way.now)
    assert not way.finished.in_doubt


def test_an_unknown_outcome_is_repeated_for_a_producer_and_raised_for_another_write() -> None:
    unknown = Refusal(StatusCode.BK_TRANSMIT_ERROR, "lost", applied=Applied.UNKNOWN, error="TransmitError")
    assert Way(STAMPED).answer(unknown).asked.address != "a:1"
    way = Way(WRITE).answer(unknown)
    assert way.finished.for_caller == unknown
    assert way.owners.owner("s") is None


@pytest.mark.parametrize("reason", sorted(FINAL_REASONS))
def test_what_is_said_of_the_request_itself_ends_it_whatever_the_code(reason: Reason) -> None:
    refusal = Refusal(StatusCode.LOCKING_EXCEPTION, "no", error="AnErrorOfTomorrow", reason=reason)
    assert Way(STAMPED).answer(refusal).finished.answer == refusal


def test_without_bounds_it_goes_on() -> None:
    way = Way(limits=RetryLimits(request_timeout_ms=-1))
    assert way.way.deadline is None
    assert way.asked.request.context.timeout_ms == 0
    for _ in range(200):
        way.answer(UNAVAILABLE)
        if isinstance(way.effect, BackOff):
            way.resume()
    assert way.way.attempts == 201
