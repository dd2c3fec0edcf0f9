"""Rules of access: what is denied is refused whatever else is allowed, and what nothing allows is refused, too."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.foundation.errors import CorruptDataError
from metadata.security import rights
from metadata.security.principals import Principal, Scheme
from metadata.security.restrictions import UNRESTRICTED, VERBS, Restrictions
from metadata.security.rights import (
    ALL_VERBS,
    EVERYBODY,
    MAX_LOG_CHARS,
    MAX_NAME_CHARS,
    MAX_RULES,
    InvalidRuleError,
    LogPattern,
    Rule,
    RuleBook,
    RuleSet,
    Subject,
    SubjectKind,
    Verb,
    decode_rules,
    encode_rules,
)

ALICE = Principal("alice", Scheme.TLS, frozenset({"client", "writers"}))
OPERATOR = Principal("root", Scheme.TLS, frozenset({"operator"}))


def rule(text: str) -> Rule:
    effect, who, verbs, logs = text.split(" ")
    return Rule(
        effect == "allow", Subject.parse(who), frozenset(map(Verb.parse, verbs.split(","))), LogPattern.parse(logs)
    )


def book(*texts: str) -> RuleBook:
    return RuleBook(RuleSet.of(map(rule, texts)), [Subject.parse("role:operator")])


# ---------------------------------------------------------------------- examples


def test_what_no_rule_allows_is_refused() -> None:
    decision = book().decide(ALICE, Verb.READ, "orders")
    assert (decision.allowed, decision.rule) == (False, None)
    assert decision.reason == "no rule allows read to alice"


def test_who_has_proved_nothing_is_refused_everything() -> None:
    assert not book("allow * read *").decide(None, Verb.READ, "orders").allowed


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("allow user:alice read orders", True),
        ("allow role:writers read orders", True),
        ("allow * read orders", True),
        ("allow * read *", True),
        ("allow user:alice write orders", False),
        ("allow user:alic read orders", False),
        ("allow role:alice read orders", False),
        ("allow user:writers read orders", False),
    ],
)
def test_a_rule_applies_to_whom_it_names_and_to_the_verbs_it_names(text: str, allowed: bool) -> None:
    decision = book(text).decide(ALICE, Verb.READ, "orders")
    assert decision.allowed is allowed
    assert (decision.rule == rule(text)) is allowed


@pytest.mark.parametrize(
    ("pattern", "log", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "order", False),
        ("orders", "orders/eu", False),
        ("orders*", "orders", True),
        ("orders*", "orders2", True),
        ("orders*", "orders/eu", True),
        ("orders*", "order", False),
        ("orders/*", "orders", False),
        ("orders/*", "orders/eu", True),
        ("*", "anything", True),
        (r"odd\*", "odd*", True),
        (r"odd\*", "odd", False),
        (r"odd\**", "odd*2", True),
        (r"a\\b", r"a\b", True),
        ("Orders", "orders", False),
        ("caf\u00e9", "cafe\u0301", False),
    ],
)
def test_patterns_are_literal_or_prefixes(pattern: str, log: str, fits: bool) -> None:
    assert LogPattern.parse(pattern).matches(log) is fits
    assert book(f"allow user:alice read {pattern}").decide(ALICE, Verb.READ, log).allowed is fits


def test_what_concerns_no_log_needs_the_pattern_of_all() -> None:
    assert not book("allow * administer a*").decide(ALICE, Verb.ADMINISTER, None).allowed
    assert book("allow * administer *").decide(ALICE, Verb.ADMINISTER, None).allowed
    assert not book("allow * administer *", "deny * administer *").decide(ALICE, Verb.ADMINISTER, None).allowed


def test_a_denial_of_a_prefix_wins_over_a_closer_allowance() -> None:
    decision = book("deny role:client write o*", "allow user:alice write orders").decide(ALICE, Verb.WRITE, "orders")
    assert not decision.allowed
    assert decision.reason == "a rule denies it: deny role:client write o*"


def test_super_users_may_do_everything() -> None:
    for one in (book("deny * read,administer *"), RuleBook(RuleSet(), [Subject.parse("role:operator")], broken="torn")):
        assert one.decide(OPERATOR, Verb.ADMINISTER, None).allowed
        assert not one.decide(ALICE, Verb.READ, "orders").allowed


def test_rules_that_cannot_be_read_allow_nothing_and_the_reason_says_so() -> None:
    broken = RuleBook(RuleSet.of([rule("allow * read *")]), broken="not JSON")
    assert "cannot be read" in broken.decide(ALICE, Verb.READ, "orders").reason


def test_a_restriction_takes_away_and_never_gives() -> None:
    only = Restrictions(("orders*",), frozenset({"read", "write"}))
    allowed = book("allow user:alice read,truncate *")
    assert allowed.decide(ALICE, Verb.READ, "orders2", only).allowed
    assert not allowed.decide(ALICE, Verb.READ, "invoices", only).allowed
    assert not allowed.decide(ALICE, Verb.TRUNCATE, "orders2", only).allowed
    assert not allowed.decide(ALICE, Verb.WRITE, "orders2", only).allowed
    assert not allowed.decide(OPERATOR, Verb.READ, "invoices", only).allowed
    assert {verb.value for verb in Verb} == VERBS


def test_any_of_some_verbs_is_enough() -> None:
    one = book("allow user:alice delete orders", "deny user:alice read orders")
    assert one.decide_any(ALICE, rights.VISIBLE, "orders").allowed
    assert one.decide_any(ALICE, [Verb.READ, Verb.WRITE], "orders").reason.startswith("a rule denies it")
    assert set(rights.VISIBLE) == ALL_VERBS


def test_a_name_that_no_rule_can_have_gets_what_everybody_has() -> None:
    odd = Principal("line\nend", Scheme.TLS, frozenset({"x" * 999}))
    assert book("allow * read orders").decide(odd, Verb.READ, "orders").allowed
    assert not book("deny * read orders", "allow * read *").decide(odd, Verb.READ, "orders").allowed


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Subject.parse("alice"),
        lambda: Subject.parse("group:alice"),
        lambda: Subject.parse("user:"),
        lambda: Subject(SubjectKind.EVERYBODY, "alice"),
        lambda: Subject.parse("user:a\x1b[2Jb"),
        lambda: Subject.parse("user:" + "x" * (MAX_NAME_CHARS + 1)),
        lambda: LogPattern.parse(""),
        lambda: LogPattern.parse("x" * (MAX_LOG_CHARS + 1)),
        lambda: LogPattern.parse("a*b"),
        lambda: LogPattern.parse("**"),
        lambda: LogPattern.parse("a\\b"),
        lambda: LogPattern.parse("a\\"),
        lambda: LogPattern.parse("a\nb"),
        lambda: Verb.parse("raed"),
        lambda: Rule(True, EVERYBODY, frozenset(), LogPattern("a")),
    ],
)
def test_what_is_not_a_rule_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(InvalidRuleError):
        wrong()


def test_a_mistyped_verb_is_answered_with_the_near_one() -> None:
    with pytest.raises(InvalidRuleError, match="Did you mean read"):
        Verb.parse("raed")


# ---------------------------------------------------------------------- sets, and how they are stored


def test_sets_join_and_take_away_verbs() -> None:
    one = RuleSet.of([rule("allow * read a"), rule("allow * write a"), rule("deny * read a")])
    assert [str(each) for each in one] == ["deny * read a", "allow * read,write a"]
    left = one.removed([rule("allow * read,delete a"), rule("allow * read b")])
    assert [str(each) for each in left] == ["deny * read a", "allow * write a"]
    assert one.removed(one) == RuleSet()


def test_rules_have_one_stored_form() -> None:
    stored = encode_rules(RuleSet.of([rule("allow user:alice write,read orders*")]))
    assert stored == (
        b'{"v":1,"rules":[{"effect":"allow","who":"user:alice","verbs":["read","write"],"logs":"orders*"}]}'
    )
    assert decode_rules(b"", "/rules") == RuleSet()


GOOD = {"effect": "deny", "who": "*", "verbs": ["read"], "logs": "a"}


@pytest.mark.parametrize(
    "stored",
    [
        b"\xff",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b"[" * 100_000,
        {"v": 2, "rules": []},
        {"v": 1},
        {"v": 1, "rules": {}},
        {"v": 1, "rules": [], "more": 1},
        {"v": 1, "rules": [[]]},
        {"v": 1, "rules": [GOOD | {"effect": "Deny"}]},
        {"v": 1, "rules": [GOOD | {"who": "alice"}]},
        {"v": 1, "rules": [GOOD | {"who": 7}]},
        {"v": 1, "rules": [GOOD | {"verbs": ["fly"]}]},
        {"v": 1, "rules": [GOOD | {"verbs": []}]},
        {"v": 1, "rules": [GOOD | {"verbs": "read"}]},
        {"v": 1, "rules": [GOOD | {"verbs": [[]]}]},
        {"v": 1, "rules": [GOOD | {"logs": None}]},
        {"v": 1, "rules": [GOOD | {"logs": "a*b"}]},
        {"v": 1, "rules": [GOOD | {"host": "10.0.0.1"}]},
        {"v": 1, "rules": [{name: GOOD[name] for name in ("effect", "who", "logs")}]},
        {"v": 1, "rules": [GOOD] * (MAX_RULES + 1)},
    ],
    ids=lambda stored: str(stored)[:40],
)
def test_what_is_not_understood_entirely_is_damage(stored: object) -> None:
    data = stored if isinstance(stored, bytes) else json.dumps(stored).encode()
    with pytest.raises(CorruptDataError, match="cannot be read"):
        decode_rules(data, "/rules")


def test_there_are_only_so_many_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = RuleSet.of(Rule(True, EVERYBODY, ALL_VERBS, LogPattern(f"log{number}")) for number in range(11))
    monkeypatch.setattr(rights, "MAX_RULES", 10)
    with pytest.raises(InvalidRuleError, match="11 rules"):
        encode_rules(rules)
    monkeypatch.setattr(rights, "MAX_RULES", 11)
    monkeypatch.setattr(rights, "MAX_RULES_BYTES", 100)
    with pytest.raises(InvalidRuleError, match="bytes"):
        encode_rules(rules)


# ---------------------------------------------------------------------- properties

# Few letters, so that prefixes, equal names and odd characters meet often.
names = st.text("ab*\\/\u00e9\U0001f600", min_size=1, max_size=4)
subjects = st.one_of(
    st.just(EVERYBODY),
    st.builds(Subject, st.sampled_from([SubjectKind.USER, SubjectKind.ROLE]), st.sampled_from(["a", "b", "user:a"])),
)
patterns = st.builds(LogPattern, names, st.booleans()) | st.just(LogPattern("", prefix=True))
rules = st.builds(Rule, st.booleans(), subjects, st.frozensets(st.sampled_from(Verb), min_size=1), patterns)
principals = st.builds(
    Principal, st.sampled_from(["a", "b", "c"]), st.just(Scheme.TLS), st.frozensets(st.sampled_from(["a", "b"]))
)
logs = st.none() | names


def naive(given_rules: list[Rule], principal: Principal, verb: Verb, log: str | None) -> bool:
    """The three sentences, rule by rule, without sets or indexes."""
    fitting = []
    for one in given_rules:
        who = str(one.who)
        meant = who == "*" or who == f"user:{principal.name}" or who in {f"role:{role}" for role in principal.roles}
        if one.logs.prefix:
            there = (log or "")[: len(one.logs.text)] == one.logs.text if log is not None else one.logs.text == ""
        else:
            there = log == one.logs.text
        if meant and there and verb in one.verbs:
            fitting.append(one.allow)
    return bool(fitting) and all(fitting)


@given(st.lists(rules, max_size=12), principals, st.sampled_from(Verb), logs, st.randoms())
def test_the_index_decides_as_its_naive_twin_in_any_order(
    given_rules: list[Rule], principal: Principal, verb: Verb, log: str | None, random: object
) -> None:
    made = RuleBook(RuleSet.of(given_rules))
    decision = made.decide(principal, verb, log)
    assert decision.allowed is naive(given_rules, principal, verb, log)
    assert made.decide(principal, verb, log) == decision  # and again from memory
    shuffled = list(given_rules)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert RuleBook(RuleSet.of(shuffled)).decide(principal, verb, log) == decision
    if decision.rule is not None:
        assert decision.rule.who.fits(principal)
        assert decision.rule.logs.matches(log)
        assert verb in decision.rule.verbs


@settings(max_examples=25)
@given(st.lists(rules, max_size=8), principals, st.lists(names, max_size=4), st.sets(st.sampled_from(Verb)))
def test_logs_are_visible_on_which_any_verb_is_allowed(
    given_rules: list[Rule], principal: Principal, some: list[str], left: set[Verb]
) -> None:
    made = RuleBook(RuleSet.of(given_rules))
    only = Restrictions(None, frozenset(verb.value for verb in left))
    for restrictions in (UNRESTRICTED, only):
        expected = [log for log in some if made.decide_any(principal, rights.VISIBLE, log, restrictions).allowed]
        assert made.visible(principal, some, restrictions) == expected


def test_a_tokens_roles_make_nobody_a_super_user() -> None:
    """An issuer of tokens gives the role operator for reasons of its own."""
    book = RuleBook(RuleSet(), [Subject.parse("role:operator"), Subject.parse("user:root")])
    certified, token = (Principal("ann", one, frozenset({"operator"})) for one in (Scheme.TLS, Scheme.TOKEN))
    assert book.decide(certified, Verb.DELETE, "orders").allowed
    assert not book.decide(token, Verb.DELETE, "orders").allowed
    assert book.visible(token, ["orders"]) == []
    assert book.decide(Principal("root", Scheme.TOKEN), Verb.DELETE, "orders").allowed


def test_a_proof_can_be_restricted_to_a_log_whose_name_ends_in_a_star() -> None:
    """It left the whole prefix: `odd*` has no other spelling."""
    only = Restrictions(("odd\\*",), frozenset({"read"}))
    assert only.allows("read", "odd*")
    assert not any(only.allows("read", log) for log in ("odd1", "odd", "odd\\", "odd\\*"))


def test_super_users_see_all_and_nobody_else_sees_anything_while_the_rules_are_damaged() -> None:
    broken = RuleBook(RuleSet.of([rule("allow * read *")]), [Subject.parse("role:operator")], broken="torn")
    assert broken.visible(OPERATOR, ["a", "b"]) == ["a", "b"]
    assert broken.visible(OPERATOR, ["a", "b"], Restrictions(("b",))) == ["b"]
    assert broken.visible(ALICE, ["a", "b"]) == []


@settings(max_examples=15)
@given(st.lists(rules, max_size=8), rules, principals, st.sampled_from(Verb), logs)
def test_a_denial_always_wins(
    given_rules: list[Rule], denial: Rule, principal: Principal, verb: Verb, log: str | None
) -> None:
    denial = replace(denial, allow=False)
    before = RuleBook(RuleSet.of(given_rules)).decide(principal, verb, log).allowed
    after = RuleBook(RuleSet.of([*given_rules, denial])).decide(principal, verb, log).allowed
    applies = denial.who.fits(principal) and verb in denial.verbs and denial.logs.matches(log)
    assert after is (before and not applies)


@settings(max_examples=15)
@given(st.lists(rules, max_size=8))
def test_rules_are_read_back_as_they_were_stored(given_rules: list[Rule]) -> None:
    stored = RuleSet.of(given_rules)
    assert decode_rules(encode_rules(stored), "/rules") == stored
    assert RuleSet.of(stored) == stored


@given(patterns)
def test_a_pattern_is_read_back_from_its_text(pattern: LogPattern) -> None:
    assert LogPattern.parse(str(pattern)) == pattern


@given(subjects)
def test_a_subject_is_read_back_from_its_text(subject: Subject) -> None:
    assert Subject.parse(str(subject)) == subject


@settings(max_examples=15)
@given(st.lists(rules, max_size=6), st.lists(rules, max_size=6))
def test_what_is_added_and_removed_again_leaves_nothing_of_itself(first: list[Rule], second: list[Rule]) -> None:
    left = RuleSet.of([*first, *second]).removed(second)
    for one in left:
        for other in second:
            if (one.allow, one.who, one.logs) == (other.allow, other.who, other.logs):
                assert not one.verbs & other.verbs


def test_memory_of_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "MAX_DECISIONS", 10)
    one = book("allow user:alice read a*")
    for number in range(100):
        assert one.decide(ALICE, Verb.READ, f"a{number}").allowed
        assert len(one._decided) <= 10


def test_a_name_that_is_no_logs_is_decided_on_and_not_remembered() -> None:
    """Names come from clients, in requests of megabytes: kept, they would take all the memory that there is."""
    one = book("allow user:alice read a*")
    assert one.decide(ALICE, Verb.READ, "a" * 1_000_000).allowed
    assert not one.decide(ALICE, Verb.WRITE, "a" * 1_000_000).allowed
    assert one.decide(replace(ALICE, name="a" * 10_000), Verb.READ, "a").allowed is False
    assert one._decided == {}
    assert one.decide(ALICE, Verb.READ, "a" * MAX_LOG_CHARS).allowed
    assert len(one._decided) == 1


def test_thousands_of_rules_are_not_walked_through() -> None:
    """By count, not by time: the looks into tables that a decision takes do not grow with the rules."""
    many = RuleSet.of(
        Rule(
            True,
            Subject(SubjectKind.USER, f"user{number % 50}"),
            ALL_VERBS,
            LogPattern(f"log{number:05}/", prefix=True),
        )
        for number in range(1000)
    )
    made = RuleBook(many)
    patterns_of = made._allowed[("user:user7", Verb.READ)]
    assert len(patterns_of._lengths) == 1
    assert made.decide(Principal("user7", Scheme.TLS), Verb.READ, "log00057/x").allowed
    assert not made.decide(Principal("user7", Scheme.TLS), Verb.READ, "log00058/x").allowed
