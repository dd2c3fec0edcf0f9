"""`Principal`: who a peer has proved to be, by which means, and until when; and what a certificate says of that.

Every means of proof ends here: a certificate, a SASL exchange, a token. What a principal may do is decided elsewhere,
by its name and its roles alone.

A certificate is mapped to a principal by its subject: the common name is the name, the organisational units are the
roles. `principalMapping` says otherwise, by rules that are tried in order:

    kind#pattern#name#roles#

    kind     what is looked at: `subject` (whole, as RFC 4514 writes it), or one of the alternative names: `uri`, `dns`,
             `email`, `address`
    #        any sign that none of the parts has; the same one four times
    pattern  a regular expression that has to match all of it, not a part
    name     $1 to $9 stand for the pattern's groups
    roles    the same, separated by commas; empty: the organisational units; `-`: none

`default`, as the last rule, is the mapping by the subject. A certificate that no rule matches, and one that gives no
name, is refused: nobody is let in without one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.security.certificates import CertificateFacts
from metadata.security.errors import PeerRefusedError

MAX_NAME: Final = 256
DEFAULT_RULE: Final = "default"
_KINDS: Final = ("subject", "uri", "dns", "email", "address")
_GROUP: Final = re.compile(r"\$([1-9])")
_CODED: Final = re.compile(r"([0-9]+):(.*)")
_UNSEEN_KINDS: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories of signs that a reader of rules or of the audit trail would not see, or see elsewhere."""
_UNSEEN_LETTERS: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800"
    + "".join(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
"""Letters and marks that are not seen either: fillers, and what chooses the form of the sign before."""


class Scheme(Enum):
    """By which means has a peer proved who it is?"""

    TLS = "tls"
    DIGEST_MD5 = "digest-md5"
    SCRAM_SHA_256 = "scram-sha-256"
    GSSAPI = "gssapi"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who has a peer proved to be?"""

    name: str
    """As rules and the audit trail name it; never empty."""
    scheme: Scheme
    roles: frozenset[str] = frozenset()
    """For a certificate, the organisational units of its subject, unless a mapping says otherwise."""
    expires_at_s: float | None = None
    """Seconds since the epoch at which the proof ends, and the session with it; None: it has no end of its own."""
    credential: object = field(default=None, repr=False, compare=False)
    """Of a user with a password: what was proved by it, for whoever looks whether it is the user's still."""

    def __str__(self) -> str:
        return self.name

    def expired(self, now_s: float) -> bool:
        """Return whether the proof is over at `now_s`, seconds since the epoch."""
        return self.expires_at_s is not None and now_s >= self.expires_at_s


@dataclass(frozen=True, slots=True)
class _MappingRule:
    kind: str
    pattern: re.Pattern[str]
    name: str
    roles: str

    def values(self, facts: CertificateFacts) -> tuple[str, ...]:
        if self.kind == "subject":
            return (facts.subject_text,)
        if self.kind == "uri":
            return facts.uris
        if self.kind == "dns":
            return facts.dns_names
        return facts.emails if self.kind == "email" else facts.addresses


class PrincipalMapping:
    """Whose certificate is it? Makes a principal of one that has been verified.

    Args:
        text: the rules, as `principalMapping` has them; empty: `default` alone.

    Raises:
        CallerError: the rules cannot be understood.
    """

    def __init__(self, text: str = "") -> None:
        self._rules: list[_MappingRule] = []
        self._by_subject = False
        rest = text.strip() or DEFAULT_RULE
        while rest:
            if self._by_subject:
                raise _rule_error(f"{DEFAULT_RULE} matches every certificate, and rules follow it")
            if rest == DEFAULT_RULE or rest.startswith(DEFAULT_RULE + " "):
                self._by_subject = True
                rest = rest[len(DEFAULT_RULE) :].strip()
            else:
                rule, rest = _first_rule(rest)
                self._rules.append(rule)

    def principal(self, facts: CertificateFacts) -> Principal:
        """Return whose certificate it is. Raises PeerRefusedError for one that gives no usable name."""
        for rule in self._rules:
            for value in rule.values(facts):
                match = rule.pattern.fullmatch(value)
                if match is not None:
                    roles = _roles(rule.roles, match, facts)
                    return _principal(_filled(rule.name, match), roles, facts)
        if not self._by_subject:
            raise PeerRefusedError(
                f"no rule of principalMapping matches the certificate of {facts.subject_text}",
                advice=f"Add a rule for it, or {DEFAULT_RULE} as the last one",
            )
        names = facts.parts("CN")
        if len(names) != 1:
            whose = facts.subject_text or "nobody"
            raise PeerRefusedError(
                f"the certificate of {whose} has {len(names)} common names where one is needed",
                advice="Issue one whose subject has one common name (CN), or map another name of it (principalMapping)",
            )
        return _principal(names[0], roles_of_units(facts.parts("OU")), facts)


def _principal(name: str, roles: Iterable[str], facts: CertificateFacts) -> Principal:
    kept = frozenset(role for role in roles if role)
    for text in (name, *kept):
        if not is_name(text):
            raise PeerRefusedError(
                f"the certificate with the fingerprint {facts.fingerprint} gives {text[:MAX_NAME]!a} as a name or role",
                advice=f"A name has 1 to {MAX_NAME} signs that can be seen, composed ones where there are such (NFC), "
                "and no space at its ends",
            )
    return Principal(name, Scheme.TLS, kept, facts.not_after_s)


def is_name(text: str) -> bool:
    """Return whether a text may be a principal's name or a role, by whichever means it is proved: short, all of it
    seen, and no space at its ends."""
    return 0 < len(text) <= MAX_NAME and text == text.strip() and _seen(text)


def _seen(text: str) -> bool:
    """Return whether all of a text can be seen, and written in one way only: code points are what is compared."""
    if not unicodedata.is_normalized("NFC", text):
        return False
    for sign in text:
        kind = unicodedata.category(sign)
        if kind in _UNSEEN_KINDS or sign in _UNSEEN_LETTERS or (kind == "Zs" and sign != " "):
            return False
    return True


def roles_of_units(units: Iterable[str]) -> tuple[str, ...]:
    """Return the roles that organisational units name: each is one, unless it has the form that BookKeeper's bookies
    read (`BookieAuthZFactory`): `0:role1,role2;1:cluster`, of which those behind 0 are roles."""
    roles: list[str] = []
    for unit in units:
        coded = [_CODED.fullmatch(one.strip()) for one in unit.split(";")]
        if all(coded):
            values = [match[2] for match in coded if match is not None and match[1] == "0"]
            roles += [role.strip() for value in values for role in value.split(",")]
        else:
            roles.append(unit)
    return tuple(role for role in roles if role)


def _filled(template: str, match: re.Match[str]) -> str:
    return _GROUP.sub(lambda found: match[int(found[1])] or "", template)


def _roles(template: str, match: re.Match[str], facts: CertificateFacts) -> tuple[str, ...]:
    if not template:
        return roles_of_units(facts.parts("OU"))
    # Split first: a comma that comes out of the certificate is a sign of the role, not the begin of another one.
    return () if template == "-" else tuple(_filled(one.strip(), match) for one in template.split(","))


def _first_rule(text: str) -> tuple[_MappingRule, str]:
    """Return the rule with which the text begins, and what follows."""
    kind = next((one for one in _KINDS if text.startswith(one)), None)
    mark = text[len(kind) : len(kind) + 1] if kind is not None else ""
    if kind is None or not mark or mark.isalnum() or mark.isspace() or mark in "\\$":
        raise _rule_error(
            f"a rule begins with {text[:40]!r}, not with one of {', '.join(_KINDS)} and a separating sign"
        )
    parts = text[len(kind) + 1 :].split(mark, 3)
    if len(parts) != 4:
        raise _rule_error(f"the rule {text[:80]!r} has {len(parts) - 1} parts that end with {mark!r}, not 3")
    pattern, name, roles, rest = parts
    if rest and not rest[0].isspace():
        raise _rule_error(f"behind the rule for {kind} there is {rest[:40]!r}, not a space")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise _rule_error(f"the pattern {pattern!r} is not a regular expression: {error}") from error
    if not name.strip():
        raise _rule_error(f"the rule for {kind} gives no name")
    for number in _GROUP.findall(name + roles):
        if int(number) > compiled.groups:
            raise _rule_error(f"${number} is used, and the pattern {pattern!r} has {compiled.groups} groups")
    return _MappingRule(kind, compiled, name.strip(), roles.strip()), rest.strip()


def _rule_error(message: str) -> CallerError:
    return CallerError(
        f"principalMapping: {message}",
        advice=r"Write rules as uri#spiffe://example\.org/(.+)#$1#client#, separated by spaces, `default` last",
    )
