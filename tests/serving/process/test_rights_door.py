"""The door of a proxy: every operation needs its verb on its log; a withdrawn right ends what is under way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from helpers.serving.scripted_service import ScriptedService

from dlspark.core.codec.dlsn import DLSN
from dlspark.errors import RequestDeniedError
from dlspark.serving.bindings.service import Caller, RunReply
from dlspark.serving.client.answer_rules import AnswerRule, rule_of
from dlspark.serving.process import rights_door
from dlspark.serving.process.rights_door import PROVED, VERBS_OF, RightsDoor
from dlspark.serving.protocol.failures import error_of
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    Answer,
    Applied,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Delivery,
    FindOwner,
    Handshake,
    Heartbeat,
    ListProxies,
    MoveStream,
    ProxyInfo,
    ProxyStatus,
    ReadBatch,
    ReadFrom,
    Refusal,
    ReleaseStream,
    Request,
    SetFencingToken,
    StatusCode,
    TakeStream,
    TruncateStream,
    WriteRecords,
)
from dlspark.serving.protocol.write_runs import WriteRun
from metadata.security.audit import NOWHERE, AuditTrail
from metadata.security.principals import Principal, Scheme
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import Restrictions
from metadata.security.rights import VISIBLE, LogPattern, Rule, RuleBook, RuleSet, Subject, Verb

ALICE = Principal("alice", Scheme.TLS)
OPERATOR = Principal("root", Scheme.TLS, frozenset({"operator"}))
PROXY = Principal("proxy1", Scheme.TLS, frozenset({"proxy"}))

REQUESTS: dict[type[Request], Request] = {
    Handshake: Handshake(),
    ListProxies: ListProxies(),
    FindOwner: FindOwner("orders"),
    ReadBatch: ReadBatch("orders", ReadFrom.OLDEST),
    WriteRecords: WriteRecords("orders", (b"x",)),
    BeginEpoch: BeginEpoch("orders", "producer"),
    SetFencingToken: SetFencingToken("orders", b"t"),
    Heartbeat: Heartbeat("orders"),
    TruncateStream: TruncateStream("orders", DLSN(1, 0, 0)),
    CreateStream: CreateStream("orders"),
    DeleteStream: DeleteStream("orders"),
    ReleaseStream: ReleaseStream("orders"),
    MoveStream: MoveStream("orders", "host:1"),
    TakeStream: TakeStream("orders", "host:1"),
    AcceptStreams: AcceptStreams(False),
}
NEEDED = {
    ReadBatch: {Verb.READ},
    WriteRecords: {Verb.WRITE},
    BeginEpoch: {Verb.WRITE},
    SetFencingToken: {Verb.WRITE},
    Heartbeat: {Verb.WRITE},
    TruncateStream: {Verb.TRUNCATE},
    CreateStream: {Verb.CREATE},
    DeleteStream: {Verb.DELETE},
    ReleaseStream: {Verb.ADMINISTER},
    MoveStream: {Verb.ADMINISTER},
    TakeStream: {Verb.ADMINISTER},
    AcceptStreams: {Verb.ADMINISTER},
    FindOwner: set(Verb),
}
"""Said a second time, by hand: a verb that is changed is noticed."""


def rule(text: str) -> Rule:
    effect, who, verbs, logs = text.split(" ")
    return Rule(
        effect == "allow", Subject.parse(who), frozenset(map(Verb.parse, verbs.split(","))), LogPattern.parse(logs)
    )


class Entrance:
    """A door before a scripted service, whose rules and clock a test sets."""

    def __init__(self, *rules: str, demands_proof: bool = True, **options: Any) -> None:
        self.service = ScriptedService()
        self.now_s = 1000.0
        self.use(*rules)
        noted = options.pop("noted", NOWHERE)
        notes_all = options.pop("notes_all", False)
        self.door = RightsDoor(
            self.service,
            lambda: self.book,
            demands_proof=demands_proof,
            noted=noted,
            notes_all=notes_all,
            now_s=lambda: self.now_s,
        )

    def use(self, *rules: str) -> None:
        self.book = RuleBook(RuleSet.of(map(rule, rules)), [Subject.parse("role:operator")])

    def begin(self, request: Request, caller: Caller | None) -> list[Answer]:
        answers: list[Answer] = []
        self.door.submit(request, caller or Caller("10.0.0.1:1"), answers.append)
        return answers

    def ask(self, request: Request, principal: Principal | None = ALICE, **fields: Any) -> Answer:
        (answer,) = self.begin(request, Caller("10.0.0.1:1", principal, **fields))
        return answer


class TakenRuns:
    """Takes all writes that come together."""

    def __init__(self) -> None:
        self.taken: list[WriteRun] = []

    def submit_run(self, run: WriteRun, caller: Caller, reply: RunReply) -> bool:
        self.taken.append(run)
        return True


def test_writes_that_came_together_pass_as_one_where_just_this_was_allowed_before_and_still_is() -> None:
    run = WriteRun("orders", [1, 2], [b"a", b"b"], 2, True)
    write, expiring = REQUESTS[WriteRecords], Principal("alice", Scheme.TLS, expires_at_s=2000.0)

    def passes(entrance: Entrance, caller: Caller, run: WriteRun = run) -> bool:
        return entrance.door.submit_run(run, caller, lambda *_: None)

    entrance, caller = Entrance("allow user:alice write orders"), Caller("10.0.0.1:1", expiring)
    assert not passes(entrance, caller), "no taker"
    entrance.door.runs = taker = TakenRuns()
    assert not passes(entrance, caller), "judged by itself first, and noted"
    assert not isinstance(entrance.begin(write, caller)[0], Refusal)
    assert passes(entrance, caller)
    assert not passes(entrance, caller, run._replace(stream="others"))
    assert not passes(entrance, Caller("10.0.0.1:2", expiring)), "another connection"
    entrance.now_s = 2001.0
    assert not passes(entrance, caller), "the proof has expired"
    entrance.now_s = 1000.0
    assert passes(entrance, caller)
    entrance.use("deny user:alice write orders")
    assert not passes(entrance, caller), "other rules"
    assert is_denied(entrance.begin(write, caller)[0])
    assert not passes(entrance, caller)
    assert taker.taken == [run, run]
    noting = Entrance("allow user:alice write orders", notes_all=True)
    noting.door.runs = TakenRuns()
    noting.begin(write, caller)
    assert not passes(noting, caller), "each of them is noted"


def is_denied(answer: Answer) -> bool:
    return isinstance(answer, Refusal) and answer.code is StatusCode.REQUEST_DENIED


def test_rules_that_cannot_be_read_allow_nothing_and_are_no_denial() -> None:
    """A client that is denied gives up; one that hears that the proxy cannot say goes on, here later or elsewhere."""
    entrance = Entrance("allow user:alice read orders")
    asked = [REQUESTS[FindOwner], REQUESTS[FindOwner]]
    entrance.ask(asked[0])
    entrance.book = RuleBook(RuleSet(), [Subject.parse("role:operator")], broken="ZooKeeper has not answered")
    for kind in NEEDED:
        answer = entrance.ask(REQUESTS[kind])
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.applied) == (StatusCode.SERVICE_UNAVAILABLE, Applied.NO)
        assert "rules of access" in answer.message
        assert rule_of(answer, fail_fast=False) is not AnswerRule.FAIL
    narrowed = Caller("10.0.0.1:1", ALICE, restrictions=Restrictions(("other",)))
    (answer,) = entrance.begin(REQUESTS[FindOwner], narrowed)
    assert is_denied(answer)  # whatever the rules say
    entrance.ask(asked[1], OPERATOR)
    assert entrance.service.requests == asked


# ---------------------------------------------------------------------- every operation


def test_every_operation_has_its_verbs() -> None:
    assert set(VERBS_OF) == set(get_args(Request)) == set(REQUESTS)
    assert {kind: set(verbs) for kind, verbs in VERBS_OF.items() if verbs != PROVED} == NEEDED


@pytest.mark.parametrize("kind", NEEDED, ids=lambda kind: kind.__name__)
def test_an_operation_needs_its_verb_and_no_other_one_helps(kind: type[Request]) -> None:
    request = REQUESTS[kind]
    logs = "orders" if kind is not AcceptStreams else "*"
    for verb in Verb:
        entrance = Entrance(f"allow user:alice {verb.value} {logs}")
        allowed = verb in NEEDED[kind]
        assert is_denied(entrance.ask(request)) is not allowed
        assert (entrance.service.requests == [request]) is allowed
    assert is_denied(Entrance(f"allow user:alice read,write,truncate,create,delete,administer x{logs}").ask(request))
    assert is_denied(Entrance().ask(request))
    assert not is_denied(Entrance().ask(request, OPERATOR))


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_who_has_proved_nothing_gets_nothing_where_proof_is_demanded(kind: type[Request]) -> None:
    entrance = Entrance("allow * read,write,truncate,create,delete,administer *")
    answer = entrance.ask(REQUESTS[kind], None)
    assert is_denied(answer)
    assert isinstance(error_of(answer, stream="orders"), NotAuthenticatedError)  # type: ignore[arg-type]
    assert entrance.service.requests == []


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_a_proof_that_has_expired_is_none(kind: type[Request]) -> None:
    entrance = Entrance("allow * read,write,truncate,create,delete,administer *")
    principal = replace(ALICE, expires_at_s=1000.0)
    assert is_denied(entrance.ask(REQUESTS[kind], principal))
    entrance.now_s = 999.0
    assert not is_denied(entrance.ask(REQUESTS[kind], principal))


def test_without_a_demand_for_proof_only_who_proves_something_is_held_to_the_rules() -> None:
    entrance = Entrance(demands_proof=False)
    assert not is_denied(entrance.ask(REQUESTS[WriteRecords], None))
    assert is_denied(entrance.ask(REQUESTS[WriteRecords]))
    assert entrance.door.may_create(Caller("a:1"), "orders", noted=False)
    assert not entrance.door.may_create(Caller("a:1", ALICE), "orders", noted=False)


def test_a_token_leaves_only_what_it_is_restricted_to() -> None:
    entrance = Entrance("allow user:alice read,write *")
    only = Restrictions(("orders*",), frozenset({"read"}))
    assert not is_denied(entrance.ask(REQUESTS[ReadBatch], restrictions=only))
    assert is_denied(entrance.ask(ReadBatch("invoices", ReadFrom.OLDEST), restrictions=only))
    assert is_denied(entrance.ask(REQUESTS[WriteRecords], restrictions=only))
    assert is_denied(entrance.ask(REQUESTS[AcceptStreams], OPERATOR, restrictions=only))


def test_a_log_is_taken_over_for_a_proxy_that_shows_its_certificate() -> None:
    entrance = Entrance()
    assert not is_denied(entrance.ask(REQUESTS[TakeStream], PROXY))
    assert is_denied(entrance.ask(REQUESTS[MoveStream], PROXY))
    assert is_denied(entrance.ask(REQUESTS[TakeStream], replace(PROXY, scheme=Scheme.TOKEN)))
    assert is_denied(entrance.ask(REQUESTS[TakeStream], PROXY, restrictions=Restrictions()))


def test_a_proxy_asks_whether_a_log_was_taken_over_and_writes_nothing_by_that() -> None:
    entrance = Entrance()
    assert not is_denied(entrance.ask(Heartbeat("orders"), PROXY))
    assert is_denied(entrance.ask(Heartbeat("orders", to_readers=True), PROXY))
    assert is_denied(entrance.ask(Heartbeat("orders"), ALICE))
    assert is_denied(entrance.ask(Heartbeat("orders"), replace(PROXY, scheme=Scheme.TOKEN)))


def test_who_may_create_what_it_writes() -> None:
    entrance = Entrance("allow user:alice write *", "allow user:alice create orders*")
    assert entrance.door.may_create(Caller("a:1", ALICE), "orders2", noted=False)
    assert not entrance.door.may_create(Caller("a:1", ALICE), "invoices", noted=False)


def test_an_operation_without_verbs_is_refused() -> None:
    class Unheard:
        stream = "orders"

    entrance = Entrance("allow user:alice read,write *")
    assert is_denied(entrance.ask(Unheard(), OPERATOR))  # type: ignore[arg-type]
    assert entrance.service.requests == []


# ---------------------------------------------------------------------- what the client is answered


def test_a_refusal_is_final_to_clients_and_names_no_rule() -> None:
    entrance = Entrance("deny * write ord*", "allow user:bob write orders")
    answer = entrance.ask(REQUESTS[WriteRecords], Principal("alice", Scheme.TLS, roles=frozenset({"b", "a c"})))
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.applied) == (StatusCode.REQUEST_DENIED, Applied.WRONG)
    assert rule_of(answer, fail_fast=False) is AnswerRule.FAIL
    error = error_of(answer, stream="orders")
    assert isinstance(error, RequestDeniedError)
    assert str(error) == (
        "alice may not write this log; nothing was done [log orders]. "
        "Ask an operator for it; dlspark acl check alice write orders --role 'a c' --role b says which rule decides. "
        "A token may be restricted to less than that"
    )


def test_only_logs_with_a_right_are_listed() -> None:
    entrance = Entrance("allow user:alice truncate a", "allow * read b*", "deny role:client read b2")
    owned = dict.fromkeys(("a", "b", "b2", "c"), "1;-1;host:1")
    entrance.service.answer = lambda _request, _number: ProxyInfo("1;-1;host:1", ProxyStatus.WRITE_AND_ACCEPT, owned)

    def listed(principal: Principal | None) -> list[str]:
        answer = entrance.ask(Handshake(), principal)
        assert isinstance(answer, ProxyInfo)
        return list(answer.ownerships)

    assert listed(ALICE) == ["a", "b", "b2"]
    assert listed(Principal("bob", Scheme.TLS, frozenset({"client"}))) == ["b"]
    assert listed(OPERATOR) == list(owned)


# ---------------------------------------------------------------------- what is under way


async def test_a_read_that_waits_is_refused_when_its_right_is_withdrawn() -> None:
    entrance = Entrance("allow user:alice read *")
    entrance.service.hold = True
    caller = Caller("10.0.0.1:1", ALICE)
    withdrawn, kept = (
        entrance.begin(REQUESTS[ReadBatch], caller),
        entrance.begin(ReadBatch("b", ReadFrom.OLDEST), caller),
    )
    await entrance.door.recheck()
    assert withdrawn == kept == []
    entrance.use("allow user:alice read b")
    await entrance.door.recheck()
    assert [is_denied(one) for one in withdrawn] == [True]
    assert kept == []
    for answer in list(entrance.service.held):
        answer()
    assert len(withdrawn) == 1
    assert isinstance(kept[0], Delivery)
    assert entrance.door._reads == {}


async def test_what_waits_is_judged_anew_only_where_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand reads took most of a proxy's time, though nothing had changed."""
    entrance = Entrance("allow user:alice read *")
    entrance.service.hold = True
    caller = Caller("a:1", ALICE)
    reads = [entrance.begin(ReadBatch(log, ReadFrom.OLDEST), caller) for log in ("a", "b")]
    await entrance.door.recheck()
    judged = 0
    judge = entrance.door._judge

    def counted(*given: object, **named: object) -> object:
        nonlocal judged
        judged += 1
        return judge(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(entrance.door, "_judge", counted)
    await entrance.door.recheck()
    assert judged == 0
    caller.restrictions = Restrictions(("b",), frozenset({"read"}))
    await entrance.door.recheck()
    assert judged == 2
    assert [len(one) for one in reads] == [1, 0]
    await entrance.door.recheck()
    assert judged == 2
    entrance.use("allow user:alice read *")
    await entrance.door.recheck()
    assert judged == 3


def test_what_a_read_brings_is_thrown_away_without_a_right() -> None:
    """Also before anybody has looked at what waits."""
    entrance = Entrance("allow user:alice read orders")
    entrance.service.hold = True
    answers = entrance.begin(REQUESTS[ReadBatch], Caller("10.0.0.1:1", ALICE))
    entrance.use()
    entrance.service.held.popleft()()
    assert [is_denied(one) for one in answers] == [True]


async def test_a_read_that_waits_ends_with_its_proof() -> None:
    entrance = Entrance("allow user:alice read orders")
    entrance.service.hold = True
    answers = entrance.begin(REQUESTS[ReadBatch], Caller("a:1", replace(ALICE, expires_at_s=1001.0)))
    await entrance.door.recheck()
    assert answers == []
    entrance.now_s = 1001.0
    await entrance.door.recheck()
    assert [is_denied(one) for one in answers] == [True]


async def test_a_client_that_is_gone_leaves_nothing() -> None:
    entrance = Entrance("allow user:alice read orders")
    entrance.service.hold = True
    caller = Caller("a:1", ALICE)
    answers = entrance.begin(REQUESTS[ReadBatch], caller)
    entrance.door.caller_gone(caller)
    assert entrance.service.gone == [caller]
    assert entrance.door._reads == {}
    entrance.use()
    await entrance.door.recheck()
    entrance.service.held.popleft()()
    assert answers == []


def test_the_next_request_finds_the_right_withdrawn() -> None:
    entrance = Entrance("allow user:alice write orders")
    caller = Caller("a:1", ALICE)
    assert not is_denied(entrance.begin(REQUESTS[WriteRecords], caller)[0])
    entrance.use("allow user:alice write orders", "deny * write *")
    assert is_denied(entrance.begin(REQUESTS[WriteRecords], caller)[0])


@pytest.mark.parametrize("kind", [WriteRecords, ReadBatch])
def test_what_is_remembered_of_a_caller_ends_with_rules_proof_and_restrictions(kind: type[Request]) -> None:
    rules = ["allow user:alice read,write *"]
    entrance = Entrance(*rules)
    caller = Caller("a:1", replace(ALICE, expires_at_s=2000.0))
    request = REQUESTS[kind]

    def is_refused() -> bool:
        entrance.now_s += 1
        return is_denied(entrance.begin(request, caller)[0])

    assert [is_refused() for _ in range(3)] == [False] * 3
    assert (kind, "orders") in entrance.door._known[caller].allowed
    entrance.use()
    assert [is_refused() for _ in range(2)] == [True] * 2
    entrance.use(*rules)
    assert [is_refused() for _ in range(2)] == [False] * 2
    caller.restrictions = Restrictions(("invoices",))
    assert [is_refused() for _ in range(2)] == [True] * 2
    caller.restrictions = None
    assert [is_refused() for _ in range(2)] == [False] * 2
    caller.principal = Principal("bob", Scheme.TLS)
    assert [is_refused() for _ in range(2)] == [True] * 2
    caller.principal = replace(ALICE, expires_at_s=2000.0)
    assert [is_refused() for _ in range(2)] == [False] * 2
    entrance.now_s = 2000.0
    assert [is_refused() for _ in range(2)] == [True] * 2
    entrance.door.caller_gone(caller)
    assert entrance.door._known == {}


def test_a_long_name_is_not_remembered_of_a_caller() -> None:
    entrance = Entrance("allow user:alice write *")
    caller = Caller("a:1", ALICE)
    entrance.begin(WriteRecords("a", (b"x",)), caller)
    assert not is_denied(entrance.begin(WriteRecords("a" * 100_000, (b"x",)), caller)[0])
    assert entrance.door._known[caller].allowed == {(WriteRecords, "a")}


def test_what_is_remembered_of_a_caller_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights_door, "MAX_KNOWN", 3)
    entrance = Entrance("allow user:alice write *")
    caller = Caller("a:1", ALICE)
    for number in range(10):
        assert not is_denied(entrance.begin(WriteRecords(f"log{number}", (b"x",)), caller)[0])
        assert len(entrance.door._known[caller].allowed) <= 3


# ---------------------------------------------------------------------- the audit trail


def test_refusals_and_changes_are_noted_with_the_rule(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.log", max_bytes=1 << 20, files=2)
    entrance = Entrance("allow user:alice write,delete *", "deny user:alice read orders", noted=trail)
    for kind in (WriteRecords, DeleteStream, ReadBatch, Handshake, FindOwner):
        entrance.ask(REQUESTS[kind], session="frames-7")
    entrance.ask(REQUESTS[WriteRecords], None)
    trail.close()
    noted = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(one["request"], one["verb"], one["result"]) for one in noted] == [
        ("DeleteStream", "delete", "allowed"),
        ("ReadBatch", "read", "refused"),
        ("WriteRecords", "write", "refused"),
    ]
    assert noted[1] == noted[1] | {
        "event": "request",
        "reason": "a rule denies it: deny user:alice read orders",
        "principal": "alice",
        "scheme": "tls",
        "peer": "10.0.0.1:1",
        "session": "frames-7",
        "log": "orders",
    }
    assert noted[2]["principal"] is None


def test_each_write_is_noted_where_all_is(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.log", max_bytes=1 << 20, files=2, allowed="all")
    entrance = Entrance("allow user:alice write *", noted=trail, notes_all=True)
    caller = Caller("a:1", ALICE)
    for _ in range(3):
        entrance.begin(REQUESTS[WriteRecords], caller)
    trail.close()
    assert len((tmp_path / "audit.log").read_text().splitlines()) == 3


def test_nothing_is_allowed_while_a_complete_trail_cannot_be_written(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.log", max_bytes=1 << 20, files=2, refuse_unwritten=True)
    entrance = Entrance("allow user:alice write *", noted=trail)
    caller = Caller("a:1", ALICE)
    assert not is_denied(entrance.begin(REQUESTS[WriteRecords], caller)[0])
    trail._failure = "no space"
    for one in (caller, Caller("a:1", OPERATOR), Caller("a:1")):
        (answer,) = entrance.begin(REQUESTS[WriteRecords], one)
        assert isinstance(answer, Refusal)
        assert answer.code is StatusCode.SERVICE_UNAVAILABLE  # another proxy may have room
    assert len(entrance.service.requests) == 1
    trail._failure = None
    trail.close()


def test_any_verb_makes_a_log_visible() -> None:
    assert set(VISIBLE) == set(Verb)
