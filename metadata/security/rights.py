r"""`RuleBook`: what may a principal do with a log, and which rule says so. Pure rules: no I/O, no clock.

A *rule* allows or denies verbs, to one principal, one role or everybody that has proved who they are, on one log or on
all logs whose names begin with a prefix (Kafka's literal and prefixed patterns):

    allow  user:alice    read,write   orders*
    deny   role:client   truncate     orders-archive

What is asked is decided by three sentences, in this order, whatever the order of the rules:

    a super user may do everything                  they are in the settings of each process, never among the rules
    what one rule denies is refused                 whatever other rules allow, more special ones as well
    what one rule allows is allowed, all else not

A rule fits by its whole text: `orders*` fits `orders`, `orders2` and `orders/eu`, but not `order`; a literal pattern
fits that one name. What concerns no log, but a whole proxy or namespace, is fitted by the pattern `*` alone.

As text a pattern is the log's name; a `*` at the end makes it a prefix; a backslash takes a `*`, or a backslash, for
itself (`odd\*` is the one log `odd*`). Two patterns are the same where their texts are.

Fault model: rules come from ZooKeeper, where others may have written anything. `decode_rules` takes what it knows
entirely, and raises CorruptDataError for all else: a rule that is not understood could be one that denies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from metadata.foundation.errors import CallerError, CorruptDataError
from metadata.foundation.settings import did_you_mean
from metadata.security.principals import Principal, Scheme
from metadata.security.restrictions import UNRESTRICTED, Restrictions

MAX_NAME_CHARS: Final = 255
"""Of a principal and a role."""
MAX_LOG_CHARS: Final = 1024
"""Of a pattern: proxies take names of logs of so many bytes. What is decided on longer ones is not remembered."""
MAX_RULES: Final = 10_000
MAX_RULES_BYTES: Final = 900_000
"""Of all rules as they are stored: a request to ZooKeeper has 1 MB at most."""
MAX_DECISIONS: Final = 65_536
"""Decisions that one book remembers; then it begins anew."""
VERSION: Final = 1

_REFUSED: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that stand in no name: they would forge what a terminal shows."""
_EVERYBODY: Final = "*"


class InvalidRuleError(CallerError):
    """It is not a rule of access; nothing was changed."""


class Verb(str, Enum):
    """The things that rules allow and deny. Texts, for those have the hash of C: a decision hashes a verb, or some."""

    READ = "read"
    WRITE = "write"
    TRUNCATE = "truncate"
    CREATE = "create"
    DELETE = "delete"
    ADMINISTER = "administer"
    """Ownership of logs, proxies as such, and the rules themselves."""

    @classmethod
    def parse(cls, word: str) -> Verb:
        """Return the verb of this name. Raises InvalidRuleError."""
        try:
            return cls(word.strip().lower())
        except ValueError:
            names = [verb.value for verb in cls]
            raise InvalidRuleError(
                f"{word!r} is not a verb", advice=f"{did_you_mean(word, names)}Verbs are {', '.join(names)}"
            ) from None


ALL_VERBS: Final = frozenset(Verb)


class SubjectKind(Enum):
    """To whom may a rule apply?"""

    USER = "user"
    """The principal of this name."""
    ROLE = "role"
    """Every principal with this role."""
    EVERYBODY = "*"
    """Every principal."""


@dataclass(frozen=True, slots=True)
class Subject:
    """To whom does a rule apply? As text: `user:NAME`, `role:NAME` or `*`."""

    kind: SubjectKind
    name: str = ""

    def __post_init__(self) -> None:
        """Check the name. Raises InvalidRuleError."""
        if self.kind is SubjectKind.EVERYBODY:
            if self.name:
                raise InvalidRuleError("everybody has no name", advice="Write * alone")
        else:
            _check_name(self.name, self.kind.value)

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Read one. A name alone is refused: it could be meant as either. Raises InvalidRuleError."""
        if text == _EVERYBODY:
            return EVERYBODY
        kind, colon, name = text.partition(":")
        if not colon or kind not in ("user", "role"):
            raise InvalidRuleError(
                f"{text!r} does not say whom it means", advice="Write user:NAME, role:NAME, or * for every principal"
            )
        return cls(SubjectKind(kind), name)

    def __str__(self) -> str:
        return _EVERYBODY if self.kind is SubjectKind.EVERYBODY else f"{self.kind.value}:{self.name}"

    def fits(self, principal: Principal) -> bool:
        """Return whether the principal is meant."""
        if self.kind is SubjectKind.USER:
            return self.name == principal.name
        return self.kind is SubjectKind.EVERYBODY or self.name in principal.roles


EVERYBODY: Final = Subject(SubjectKind.EVERYBODY)


@dataclass(frozen=True, slots=True)
class LogPattern:
    """Which logs does a rule concern: one, or all whose names begin with `text`?"""

    text: str
    prefix: bool = False

    def __post_init__(self) -> None:
        """Check the text. Raises InvalidRuleError."""
        if self.text or not self.prefix:
            _check_name(self.text, "log", MAX_LOG_CHARS)

    @classmethod
    def parse(cls, text: str) -> LogPattern:
        """Read one from its text. Raises InvalidRuleError."""
        name: list[str] = []
        characters = iter(text)
        for character in characters:
            if character == "*":
                if next(characters, None) is not None:
                    raise InvalidRuleError(
                        f"{text!r} is not a pattern of logs: a * stands at the end alone",
                        advice="Patterns are a log's name, or a prefix with * behind it; \\* is the character itself",
                    )
                return cls("".join(name), prefix=True)
            if character == "\\":
                character = next(characters, "")
                if character not in ("\\", "*"):
                    raise InvalidRuleError(
                        f"{text!r} is not a pattern of logs: a \\ stands before * or \\",
                        advice="Write \\\\ for a backslash in a log's name",
                    )
            name.append(character)
        return cls("".join(name))

    def __str__(self) -> str:
        return self.text.replace("\\", "\\\\").replace("*", "\\*") + ("*" if self.prefix else "")

    def matches(self, log: str | None) -> bool:
        """Return whether the log is meant; None: what concerns no log."""
        if log is None:
            return self.prefix and not self.text
        return log.startswith(self.text) if self.prefix else log == self.text


def _check_name(name: str, what: str, most: int = MAX_NAME_CHARS) -> None:
    if not name:
        raise InvalidRuleError(f"the name of a {what} is empty", advice="Give a name; * alone means all")
    if len(name) > most:
        raise InvalidRuleError(f"the name of a {what} has {len(name)} characters, at most {most} are taken")
    if _REFUSED.search(name):
        raise InvalidRuleError(f"{name!r} cannot be the name of a {what}: it has control characters")


@dataclass(frozen=True, slots=True)
class Rule:
    """What does one rule say? Allowed or denied are `verbs`, to `who`, on `logs`."""

    allow: bool
    who: Subject
    verbs: frozenset[Verb]
    logs: LogPattern

    def __post_init__(self) -> None:
        """Check it. Raises InvalidRuleError."""
        if not self.verbs:
            raise InvalidRuleError("a rule needs a verb", advice="Name at least one")

    @property
    def effect(self) -> str:
        """Whether it allows or denies, as a word."""
        return "allow" if self.allow else "deny"

    def __str__(self) -> str:
        verbs = ",".join(verb.value for verb in Verb if verb in self.verbs)
        return f"{self.effect} {self.who} {verbs} {self.logs}"


@dataclass(frozen=True, slots=True)
class Decision:
    """May it be done, and why? `rule` is the one that decided, None where none did. `known`: by the rules; where these
    cannot be read it is no, and may be yes once they can."""

    allowed: bool
    reason: str
    rule: Rule | None = None
    known: bool = True


# ---------------------------------------------------------------------- sets of rules

RuleKey = tuple[bool, Subject, LogPattern]
"""Two rules with one key are one rule, with the verbs of both."""


@dataclass(frozen=True)
class RuleSet:
    """Which rules are there? Unchangeable; equal where the same is allowed and denied, in any order."""

    verbs: Mapping[RuleKey, frozenset[Verb]] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> RuleSet:
        """Return the set of these."""
        return cls().added(rules)

    def __iter__(self) -> Iterator[Rule]:
        for key in sorted(self.verbs, key=_order):
            allow, who, logs = key
            yield Rule(allow, who, self.verbs[key], logs)

    def __len__(self) -> int:
        return len(self.verbs)

    def added(self, rules: Iterable[Rule]) -> RuleSet:
        """Return these and `rules`."""
        verbs = dict(self.verbs)
        for rule in rules:
            key = (rule.allow, rule.who, rule.logs)
            verbs[key] = verbs.get(key, frozenset()) | rule.verbs
        return RuleSet(MappingProxyType(verbs))

    def removed(self, rules: Iterable[Rule]) -> RuleSet:
        """Return these without what `rules` say; what they say and is not here changes nothing."""
        verbs = dict(self.verbs)
        for rule in rules:
            key = (rule.allow, rule.who, rule.logs)
            left = verbs.pop(key, frozenset()) - rule.verbs
            if left:
                verbs[key] = left
        return RuleSet(MappingProxyType(verbs))


def _order(key: RuleKey) -> tuple[bool, str, str]:
    allow, who, logs = key
    return (allow, str(who), str(logs))


def encode_rules(rules: RuleSet) -> bytes:
    """Return the rules as they are stored. Raises InvalidRuleError where they are too many."""
    if len(rules) > MAX_RULES:
        raise InvalidRuleError(
            f"there would be {len(rules)} rules, at most {MAX_RULES} are kept",
            advice="Use prefixes and roles, and remove rules that are not needed",
        )
    said = [
        {
            "effect": rule.effect,
            "who": str(rule.who),
            "verbs": [verb.value for verb in Verb if verb in rule.verbs],
            "logs": str(rule.logs),
        }
        for rule in rules
    ]
    data = json.dumps({"v": VERSION, "rules": said}, separators=(",", ":"), ensure_ascii=False).encode()
    if len(data) > MAX_RULES_BYTES:
        raise InvalidRuleError(
            f"the rules would take {len(data):,} bytes, at most {MAX_RULES_BYTES:,} are kept",
            advice="Use prefixes and roles, and remove rules that are not needed",
        )
    return data


def decode_rules(data: bytes, path: str) -> RuleSet:
    """Read stored rules; no data are no rules. Raises CorruptDataError for whatever this dlspark does not know."""
    if not data:
        return RuleSet()
    try:
        stored = json.loads(data)
        if stored["v"] != VERSION:
            raise ValueError(f"they have version {stored['v']!r}, and this dlspark knows {VERSION}")
        if set(stored) != {"v", "rules"} or not isinstance(stored["rules"], list) or len(stored["rules"]) > MAX_RULES:
            raise ValueError("not a list of rules")
        return RuleSet.of([_decoded(one) for one in stored["rules"]])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, InvalidRuleError) as error:
        said = error.message if isinstance(error, InvalidRuleError) else f"{error}"
        raise CorruptDataError(
            f"the rules of access cannot be read: {said}",
            path=path,
            advice="Super users alone are let in until they are mended: dlspark acl mend FILE writes all rules anew, "
            "from what dlspark acl list has printed before",
        ) from error


def _decoded(stored: dict[str, object]) -> Rule:
    if set(stored) != {"effect", "who", "verbs", "logs"} or stored["effect"] not in ("allow", "deny"):
        raise ValueError(f"not a rule: {str(stored)[:200]}")
    who, verbs, logs = stored["who"], stored["verbs"], stored["logs"]
    if not isinstance(who, str) or not isinstance(logs, str) or not isinstance(verbs, list):
        raise ValueError(f"not a rule: {str(stored)[:200]}")
    return Rule(stored["effect"] == "allow", Subject.parse(who), frozenset(map(Verb, verbs)), LogPattern.parse(logs))


# ---------------------------------------------------------------------- deciding


class _Patterns:
    """The rules of one subject, verb and effect, by their patterns."""

    __slots__ = ("_lengths", "_literal", "_prefixes")

    def __init__(self) -> None:
        self._literal: dict[str, Rule] = {}
        self._prefixes: dict[str, Rule] = {}
        self._lengths: list[int] = []
        """Of the prefixes, the longest first: there are few different ones, however many prefixes there are."""

    def add(self, rule: Rule) -> None:
        """Add a rule whose pattern is not there yet."""
        if not rule.logs.prefix:
            self._literal[rule.logs.text] = rule
            return
        self._prefixes[rule.logs.text] = rule
        if len(rule.logs.text) not in self._lengths:
            self._lengths.append(len(rule.logs.text))
            self._lengths.sort(reverse=True)

    def find(self, log: str | None) -> Rule | None:
        """Return the rule that fits most closely, None where none fits."""
        if log is None:
            return self._prefixes.get("")
        rule = self._literal.get(log)
        if rule is not None:
            return rule
        size = len(log)
        for length in self._lengths:
            if length <= size:
                rule = self._prefixes.get(log[:length])
                if rule is not None:
                    return rule
        return None


VISIBLE: Final = (Verb.READ, Verb.WRITE, Verb.TRUNCATE, Verb.CREATE, Verb.DELETE, Verb.ADMINISTER)
"""Who may do any of these to a log may know that it is there, and who owns it."""
UNPROVED: Final = Decision(False, "the client has not proved who it is")


class RuleBook:
    """May a principal do something? One generation of rules, made ready to be asked often.

    Args:
        rules: what is allowed and denied.
        super_users: may do everything. Roles in a token make nobody one: whoever issues tokens may mean another thing
            by the same word.
        broken: why the rules cannot be known, where they cannot: then super users alone may do anything.
    """

    def __init__(self, rules: RuleSet, super_users: Iterable[Subject] = (), *, broken: str | None = None) -> None:
        self.rules = rules
        self.super_users = tuple(super_users)
        self.broken = broken
        self._denied: dict[tuple[str, Verb], _Patterns] = {}
        self._allowed: dict[tuple[str, Verb], _Patterns] = {}
        for rule in rules:
            index = self._allowed if rule.allow else self._denied
            for verb in rule.verbs:
                index.setdefault((str(rule.who), verb), _Patterns()).add(rule)
        self._decided: dict[tuple[str, Scheme, frozenset[str], Verb, str | None], Decision] = {}

    def decide(
        self, principal: Principal | None, verb: Verb, log: str | None, restrictions: Restrictions = UNRESTRICTED
    ) -> Decision:
        """Return whether the principal may do it to the log, and why; a log of None is the proxy or namespace as such.

        Whether the principal's proof is over is not looked at: that is the caller's, who has a clock.
        """
        if principal is None:
            return UNPROVED
        if restrictions is not UNRESTRICTED and not restrictions.allows(verb.value, log):
            return Decision(False, f"the proof that {principal.name} gave is not good for {verb.value} here")
        if (log is not None and len(log) > MAX_LOG_CHARS) or len(principal.name) > MAX_NAME_CHARS:
            return self._decide(principal, verb, log)
        key = (principal.name, principal.scheme, principal.roles, verb, log)
        decision = self._decided.get(key)
        if decision is None:
            if len(self._decided) >= MAX_DECISIONS:  # names come from clients
                self._decided.clear()
            decision = self._decided[key] = self._decide(principal, verb, log)
        return decision

    def decide_any(
        self,
        principal: Principal | None,
        verbs: Iterable[Verb],
        log: str | None,
        restrictions: Restrictions = UNRESTRICTED,
    ) -> Decision:
        """Return the decision on the first of `verbs` that is allowed, else that on the first one."""
        decisions = [self.decide(principal, verb, log, restrictions) for verb in verbs]
        return next((one for one in decisions if one.allowed), decisions[0])

    def _decide(self, principal: Principal, verb: Verb, log: str | None) -> Decision:
        one = self._super_user(principal)
        if one is not None:
            return Decision(True, f"{one} is a super user")
        if self.broken is not None:
            reason = f"the rules of access cannot be read, so none allows anything: {self.broken}"
            return Decision(False, reason, known=False)
        subjects = _subjects_of(principal)
        for index in (self._denied, self._allowed):
            for subject in subjects:
                patterns = index.get((subject, verb))
                rule = patterns.find(log) if patterns is not None else None
                if rule is not None:
                    word = "allows" if rule.allow else "denies"
                    return Decision(rule.allow, f"a rule {word} it: {rule}", rule)
        return Decision(False, f"no rule allows {verb.value} to {principal.name}")

    def _super_user(self, principal: Principal) -> Subject | None:
        """Return as whom the principal may do everything; None where it is no super user."""
        by_token = principal.scheme is Scheme.TOKEN
        found = (one for one in self.super_users if one.fits(principal))
        return next((one for one in found if one.kind is SubjectKind.USER or not by_token), None)

    def visible(
        self, principal: Principal, logs: Iterable[str], restrictions: Restrictions = UNRESTRICTED
    ) -> list[str]:
        """Return those of many logs to which the principal may do anything at all, in their order."""
        if self._super_user(principal) is not None:
            return [log for log in logs if any(restrictions.allows(verb.value, log) for verb in VISIBLE)]
        if self.broken is not None:
            return []
        subjects = _subjects_of(principal)
        # What is the same for all logs once: a verb that nothing allows is not looked at again.
        tables = [
            (verb, _tables(self._denied, subjects, verb), allowed)
            for verb in VISIBLE
            if (allowed := _tables(self._allowed, subjects, verb))
        ]

        def is_visible(log: str) -> bool:
            return any(
                restrictions.allows(verb.value, log)
                and any(one.find(log) is not None for one in allowed)
                and all(one.find(log) is None for one in denied)
                for verb, denied, allowed in tables
            )

        return [log for log in logs if is_visible(log)]


def _subjects_of(principal: Principal) -> tuple[str, ...]:
    """Return the texts of all subjects that mean the principal, the closest first. A name that no rule can have is none
    of a rule's, and its principal gets what everybody has."""
    return (f"user:{principal.name}", *(f"role:{role}" for role in sorted(principal.roles)), _EVERYBODY)


def _tables(index: Mapping[tuple[str, Verb], _Patterns], subjects: Iterable[str], verb: Verb) -> list[_Patterns]:
    found = (index.get((subject, verb)) for subject in subjects)
    return [one for one in found if one is not None]
