"""What a bearer token says, read strictly: its header before any key is chosen, its claims once the signature holds.

A token (RFC 7519) is three texts in base64url with dots between: header, claims, signature. Whatever it is made of was
chosen by who sends it, so everything is checked by this side's own rules, and what is not understood is refused:

    the whole           at most MAX_TOKEN_BYTES, of the alphabet, in the one spelling that its bytes have
    header, claims      JSON objects in UTF-8 in which no name stands twice, and no number that is none (NaN)
    header              `alg` and `kid`, perhaps `typ` and thumbprints (HEADER_NAMES): nothing that names a key's place
                        (`jku`, `x5u`), is a key (`jwk`, `x5c`), must be understood (`crit`), or says that a token is
                        inside (`cty`)
    iss, aud            the ones that this server is set to
    exp, nbf            numbers; now lies between them, give or take the leeway, and they are not too far apart
    sub                 the principal's name (or another claim: `tokenNameClaim`), as certificates may have one: all of
                        it is seen, and it is written in one way only; roles likewise. What stands before them
                        (`tokenNamePrefix`, `tokenRolesPrefix`) is the server's, so an issuer can be kept from the names
                        and roles that certificates have
    dlspark             an object with `logs` and `verbs`: what the token is restricted to (`Restrictions`). Anything
                        else in it is refused: a restriction that was misspelled, or is newer than this server, must not
                        count as none

No I/O, and no cryptography. Messages never hold the token, nor a part of it that could be tried again.
"""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import dataclass
from typing import Final, NoReturn

from metadata.security.principals import Principal, Scheme, is_name
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import UNRESTRICTED, VERBS, Restrictions, pattern_fault

MAX_TOKEN_BYTES: Final = 8 * 1024
MAX_NAME_CHARS: Final = 256
"""Of a principal, role, key id, or token's own id."""
MAX_ROLES: Final = 64
MAX_PATTERNS: Final = 256
BACKDATED_S: Final = 5
"""A token of one's own begins so much before it is made: the clock of who takes it may be behind. The longest lifetime
counts from when it is made, so a token of exactly that is taken."""
HEADER_NAMES: Final = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})
"""What a header may have. The thumbprints of a certificate, which some issuers send, choose nothing here."""
TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
RESTRICTIONS: Final = "dlspark"
"""The claim that narrows a token."""
_COMPACT: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """By which key, and by which algorithm, does a token say that it is signed?"""

    algorithm: str
    key_id: str


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """Which claims does this server take?"""

    issuer: str
    audience: str
    leeway_s: float
    """Seconds by which the clocks of issuer and server may differ."""
    max_lifetime_s: float
    """Seconds that may lie between `nbf` and `exp`, and BACKDATED_S more."""
    roles_claim: str
    """The claim that has the principal's roles; empty: tokens give none."""
    name_claim: str = "sub"
    """The claim that has the principal's name."""
    name_prefix: str = ""
    """Stands before the name."""
    roles_prefix: str = ""
    """Stands before each role."""


@dataclass(frozen=True, slots=True)
class ProvenToken:
    """Who has a token proved its bearer to be, and what does it leave them?"""

    principal: Principal
    restrictions: Restrictions
    key_id: str
    """The key that vouches for it, and its thumbprint: another key may get its id."""
    thumbprint: str
    token_id: str | None
    """The token's own id (`jti`), by which it can be revoked."""


def refuse(why: str, advice: str | None = None) -> NoReturn:
    """Raise NotAuthenticatedError: the token is not good, `why` says what is wrong with it."""
    raise NotAuthenticatedError(f"the token is refused: {why}", advice=advice)


def read_header(token: str) -> TokenHeader:
    """Return what the header of a token says. Raises NotAuthenticatedError for anything but a token that may be
    signed by a key of this server."""
    header = _json_object(_parts(token)[0], "header")
    unknown = sorted(map(_shown, header.keys() - HEADER_NAMES))
    if unknown:
        refuse(f"its header has {', '.join(unknown)}, which must not be there")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        refuse("it is of a type that is not a token's (`typ`)")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not algorithm or algorithm.lower() == "none":
        refuse("it is not signed (`alg`)")
    # "EdDSA" is the older name, and the usual one, of what is Ed25519 where the key is one (RFC 9864).
    return TokenHeader("Ed25519" if algorithm == "EdDSA" else algorithm, _name(key_id, "kid"))


def read_claims(token: str, key_id: str, thumbprint: str, rules: ClaimRules, now_s: float) -> ProvenToken:
    """Return what a token proves, whose signature by that key holds. Raises NotAuthenticatedError."""
    claims = _json_object(_parts(token)[1], "claims")
    if claims.get("iss") != rules.issuer:
        refuse("it is of another issuer (`iss`)", "Ask the issuer that this server is set to (tokenIssuer)")
    audience = claims.get("aud")
    named = [audience] if isinstance(audience, str) else audience
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named) or rules.audience not in named:
        refuse("it is meant for others (`aud`)", "Ask for a token of this server's audience (tokenAudience)")
    ends_s, begins_s = _time(claims, "exp"), _time(claims, "nbf")
    if not begins_s < ends_s <= begins_s + BACKDATED_S + rules.max_lifetime_s:
        refuse(
            f"it is to be good for more than {rules.max_lifetime_s:g} s, or for no time (`nbf`, `exp`)",
            "Ask for one of at most that time (in Spark: option tokenLifetime), or raise this server's "
            "tokenMaxLifetimeSeconds",
        )
    if now_s >= ends_s + rules.leeway_s:
        refuse(f"it has expired {now_s - ends_s:.0f} s ago", "Get a new one")
    if now_s < begins_s - rules.leeway_s:
        refuse(f"it is good only in {begins_s - now_s:.0f} s", "Compare the clocks of its issuer and of this server")
    if "iat" in claims and _time(claims, "iat") > now_s + rules.leeway_s:
        refuse("it was made in the future (`iat`)", "Compare the clocks of its issuer and of this server")
    token_id = _name(claims["jti"], "jti") if "jti" in claims else None
    if token_id is not None and token_id != token_id.strip():
        refuse("its `jti` begins or ends with a space: no list of revoked tokens could name it")
    name = _principals_name(claims.get(rules.name_claim), rules.name_claim, rules.name_prefix)
    principal = Principal(name, Scheme.TOKEN, _roles(claims, rules), ends_s + rules.leeway_s)
    return ProvenToken(principal, _restrictions(claims), key_id, thumbprint, token_id)


def _parts(token: str) -> tuple[str, str, str]:
    if len(token) > MAX_TOKEN_BYTES:
        refuse(f"it has more than {MAX_TOKEN_BYTES} bytes")
    found = _COMPACT.fullmatch(token)
    if found is None:
        refuse("it is not three texts in base64url with dots between")
    return found[1], found[2], found[3]


def _json_object(part: str, what: str) -> dict[str, object]:
    data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) if len(part) % 4 != 1 else b""
    # The decoder passes over bits that no byte has: the same claims in other letters would be another token to whoever
    # compares tokens by their text.
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != part:
        refuse(f"its {what} is not base64url")
    return json_object(data, what)


def json_object(data: bytes, what: str) -> dict[str, object]:
    """Return a JSON object in which no name stands twice. Raises NotAuthenticatedError."""
    try:
        found = json.loads(data.decode(), object_pairs_hook=_without_doubles, parse_constant=_no_number)
    # Deep nesting ends in RecursionError, a number of thousands of digits in ValueError.
    except (ValueError, RecursionError):
        refuse(f"its {what} is not JSON in which each name stands once")
    if not isinstance(found, dict):
        refuse(f"its {what} is not a JSON object")
    return found


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_number(_text: str) -> NoReturn:
    raise ValueError("not a number")


def _shown(name: str) -> str:
    return f"`{name}`" if len(name) <= 32 and name.isprintable() else "a name that is not printed"


def _name(value: object, claim: str) -> str:
    if not isinstance(value, str) or not value or len(value) > MAX_NAME_CHARS or not value.isprintable():
        refuse(f"its `{claim}` is missing, or not a printable text of at most {MAX_NAME_CHARS} characters")
    return value


def _principals_name(value: object, claim: str, prefix: str) -> str:
    name = prefix + _name(value, claim)
    if not is_name(name):
        refuse(
            f"its `{claim}` is not a name of at most {MAX_NAME_CHARS} characters that can all be seen, composed ones "
            "where there are such (NFC), without a space at its ends",
            "Have its issuer give another one; what stands before it here counts as well (tokenNamePrefix, "
            "tokenRolesPrefix)",
        )
    return name


def _time(claims: dict[str, object], claim: str) -> float:
    """Return seconds since the epoch."""
    value = claims.get(claim)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        refuse(f"its `{claim}` is missing, or not a time")
    if not math.isfinite(value):
        refuse(f"its `{claim}` is not a time")
    return float(value)


def _texts(value: object, claim: str, most: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > most:
        refuse(f"its `{claim}` is not a list of at most {most} texts")
    return tuple(_name(one, claim) for one in value)


def _roles(claims: dict[str, object], rules: ClaimRules) -> frozenset[str]:
    claim = rules.roles_claim
    if not claim or claim not in claims:
        return frozenset()
    return frozenset(
        _principals_name(one, claim, rules.roles_prefix) for one in _texts(claims[claim], claim, MAX_ROLES)
    )


def _restrictions(claims: dict[str, object]) -> Restrictions:
    if RESTRICTIONS not in claims:
        return UNRESTRICTED
    said = claims[RESTRICTIONS]
    if not isinstance(said, dict) or said.keys() - {"logs", "verbs"}:
        refuse(f"its `{RESTRICTIONS}` has something other than `logs` and `verbs`, which this server would pass over")
    logs = _texts(said["logs"], "logs", MAX_PATTERNS) if "logs" in said else None
    verbs = frozenset(_texts(said["verbs"], "verbs", len(VERBS))) if "verbs" in said else None
    if logs is not None and any(pattern_fault(one) for one in logs):
        refuse("its `logs` have a pattern that is none")
    if verbs is not None and verbs - VERBS:
        refuse(f"its `verbs` have others than {', '.join(sorted(VERBS))}")
    return Restrictions(logs, verbs)
