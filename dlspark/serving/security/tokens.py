"""`TokenVerifier`: a bearer token to who it proves, or why it proves nothing.

    what is set                          what follows
    no `tokenKeys`                       no verifier: a token is refused, whatever it says
    keys that cannot be read             no key is current: likewise (`token_keys`)
    a key id that no current key has     refused, and nothing is asked for it
    another algorithm than the key's     refused before anything is computed

Verifying costs a signature, some 100 microseconds; a token that was good is remembered, by its digest, for as long as
its key is current and it has not expired. What is remembered is bounded, and holds no token. A token ends before its
time by its id in the list of revoked ones (`tokenRevoked`, one `jti` a line), or with its key.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlspark.errors import SettingsError
from dlspark.serving.security.token_claims import ClaimRules, ProvenToken, read_claims, read_header, refuse
from dlspark.serving.security.token_keys import (
    ALGORITHMS,
    HMAC_ALGORITHMS,
    KeyEntry,
    TokenKeys,
    extra_missing_error,
    source_of,
)
from metadata.foundation.settings import TEXT, WHOLE, WORDS, setting
from metadata.security.principals import is_name

_LOG: Final = logging.getLogger(__name__)

REMEMBERED: Final = 4096
"""Tokens whose signatures were verified."""
MAX_REVOKED_BYTES: Final = 4 * 1024 * 1024
MAX_LEEWAY_S: Final = 300
DEFAULT_ALGORITHMS: Final = ("ES256", "Ed25519", "PS256", "RS256")
OWN_NAME: Final = "dlspark"
"""Issuer and audience of this project's own tokens."""


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Which tokens does a proxy take? None where `token_keys` is empty."""

    token_keys: str = setting(
        TEXT,
        "",
        "tokenKeys",
        "The public keys by which bearer tokens are verified (a JWKS): a file, or an address https://... that is asked "
        "again and again. Empty: no token is taken",
        own=True,
        section="Tokens",
    )
    token_keys_authorities: str = setting(
        TEXT,
        "",
        "tokenKeysAuthorities",
        "A file (PEM) of the authorities that are trusted for the address in tokenKeys; empty: those of the system",
        own=True,
    )
    token_keys_refresh_s: int = setting(
        WHOLE,
        300,
        "tokenKeysRefreshSeconds",
        "Seconds between two questions to the address in tokenKeys. A file is read again within 5 s",
        minimum=5,
        own=True,
    )
    token_keys_max_age_s: int = setting(
        WHOLE,
        86_400,
        "tokenKeysMaxAgeSeconds",
        "Seconds for which keys are used that could not be read again; every token is refused then",
        minimum=5,
        own=True,
    )
    token_issuer: str = setting(
        TEXT,
        OWN_NAME,
        "tokenIssuer",
        "The `iss` that a token must have; the default is that of tokens that `dlspark token issue` makes",
        own=True,
    )
    token_audience: str = setting(
        TEXT,
        OWN_NAME,
        "tokenAudience",
        "The `aud` that a token must have, perhaps among others; likewise",
        own=True,
    )
    token_algorithms: tuple[str, ...] = setting(
        WORDS,
        DEFAULT_ALGORITHMS,
        "tokenAlgorithms",
        "The algorithms of signatures that are taken, with commas between. Each key is used with its own one alone, "
        "whatever a token says. HS256, HS384 and HS512 are taken only where they are named here: who verifies them can "
        "make them as well",
        own=True,
    )
    token_leeway_s: int = setting(
        WHOLE,
        30,
        "tokenLeewaySeconds",
        "Seconds by which the clocks of issuer and proxy may differ: tokens are good so much sooner and longer",
        minimum=0,
        maximum=MAX_LEEWAY_S,
        own=True,
    )
    token_max_lifetime_s: int = setting(
        WHOLE,
        86_400,
        "tokenMaxLifetimeSeconds",
        "A token that is to be good for longer, from its `nbf` to its `exp`, is refused; 5 s more are taken, by which "
        "`dlspark token issue` and Spark's driver let a token begin before it is made",
        minimum=1,
        own=True,
    )
    token_name_claim: str = setting(
        TEXT,
        "sub",
        "tokenNameClaim",
        "The claim with the name of who has the token",
        own=True,
    )
    token_name_prefix: str = setting(
        TEXT,
        "",
        "tokenNamePrefix",
        "What stands before each name that a token gives, `token:` say: then no issuer of tokens can give the name of "
        "a certificate, and its rights. Rules of access name who comes by a token with it",
        own=True,
    )
    token_roles_claim: str = setting(
        TEXT,
        "roles",
        "tokenRolesClaim",
        "The claim with the roles of who has the token; empty: tokens give none",
        own=True,
    )
    token_roles_prefix: str = setting(
        TEXT,
        "",
        "tokenRolesPrefix",
        "What stands before each role that a token gives; likewise",
        own=True,
    )
    token_revoked: str = setting(
        TEXT,
        "",
        "tokenRevoked",
        "A file with the ids (`jti`) of tokens that are refused before their time, one a line; read again within 5 s",
        own=True,
    )

    def algorithms(self) -> frozenset[str]:
        """Return the algorithms that are taken. Raises SettingsError for one that is none, and for `none`."""
        named = frozenset(self.token_algorithms)
        unknown = sorted(named - ALGORITHMS)
        if unknown or not named:
            raise SettingsError(
                f"tokenAlgorithms names {', '.join(unknown) or 'none'}",
                advice=f"There are {', '.join(sorted(ALGORITHMS))}; with {', '.join(HMAC_ALGORITHMS)} whoever verifies "
                "tokens can make them",
            )
        return named

    def rules(self) -> ClaimRules:
        """Return which claims are taken. Raises SettingsError where issuer, audience or the name's claim is not said,
        and for a prefix with which nothing could be a name."""
        for key, value in (("tokenIssuer", self.token_issuer), ("tokenAudience", self.token_audience)):
            if not value:
                raise SettingsError(
                    f"tokenKeys is set, and {key} is empty", advice="Without it, tokens made for others would be taken"
                )
        if not self.token_name_claim:
            raise SettingsError(
                "tokenKeys is set, and tokenNameClaim is empty", advice="Leave it out: it is `sub` then"
            )
        prefixes = (("tokenNamePrefix", self.token_name_prefix), ("tokenRolesPrefix", self.token_roles_prefix))
        for key, value in prefixes:
            if not is_name(f"{value}a"):
                raise SettingsError(
                    f"nothing that begins as {key} says could be a name",
                    advice="Write a short text of signs that can be seen, as `token:`",
                )
        return ClaimRules(
            self.token_issuer,
            self.token_audience,
            float(self.token_leeway_s),
            float(self.token_max_lifetime_s),
            self.token_roles_claim,
            self.token_name_claim,
            self.token_name_prefix,
            self.token_roles_prefix,
        )

    def verifier(
        self, *, now: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic
    ) -> TokenVerifier | None:
        """Return what verifies tokens, with its keys read; None where none is taken. It may block.

        Args:
            now: seconds since the epoch.
            elapsed: seconds that go on while the machine is suspended.

        Raises SettingsError: the server does not start then.
        """
        if not self.token_keys:
            return None
        source = source_of(self.token_keys, self.token_keys_authorities or None, float(self.token_keys_refresh_s))
        keys = TokenKeys(source, self.algorithms(), float(self.token_keys_max_age_s), elapsed)
        verifier = TokenVerifier(keys, self.rules(), RevokedTokens(self.token_revoked), now)
        verifier.start()
        return verifier


class RevokedTokens:
    """Which tokens are refused before their time? The ids in a file; none where there is no file's name."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._ids: frozenset[str] = frozenset()
        self._failed = False

    def __contains__(self, token_id: object) -> bool:
        return token_id in self._ids

    def start(self) -> None:
        """Read the file for the first time. Raises SettingsError where it cannot be read."""
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise SettingsError(f"the list of revoked tokens cannot be read: {error}", path=self._path) from error

    def refresh(self) -> None:
        """Read it again; the ids that were read last stay where that fails, and nothing is forgotten so."""
        try:
            self._read()
            self._failed = False
        except (OSError, ValueError) as error:
            if not self._failed:
                _LOG.warning("the list of revoked tokens cannot be read again, the last one stays: %s", error)
            self._failed = True

    def _read(self) -> None:
        if not self._path:
            return
        with Path(self._path).open("rb") as file:
            data = file.read(MAX_REVOKED_BYTES + 1)
        if len(data) > MAX_REVOKED_BYTES:
            raise ValueError(f"it has more than {MAX_REVOKED_BYTES} bytes")
        self._ids = frozenset(filter(None, map(str.strip, data.decode().splitlines())))


class TokenVerifier:
    """Who does a token prove its bearer to be? For one thread; keys and the list are read on others."""

    def __init__(
        self, keys: TokenKeys, rules: ClaimRules, revoked: RevokedTokens, now: Callable[[], float] = time.time
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._revoked = revoked
        self._now = now
        self._signed: OrderedDict[bytes, str] = OrderedDict()
        """Digests of tokens whose signatures hold, and the thumbprint of the key that made them."""

    def start(self) -> None:
        """Read keys and revoked tokens. Raises SettingsError."""
        self._keys.start()
        self._revoked.start()

    def refresh_keys(self) -> None:
        """Read the keys again; it may block for long, and never raises for what it reads."""
        self._keys.refresh()

    def refresh_revoked(self) -> None:
        """Read the list of revoked tokens again; likewise."""
        self._revoked.refresh()

    def verify(self, token: str) -> ProvenToken:
        """Return who a token proves its bearer to be. Raises NotAuthenticatedError, and nothing else."""
        header = read_header(token)
        entry = self._keys.current().get(header.key_id)
        if entry is None:
            refuse("no key here vouches for it (`kid`)", "Compare its issuer's keys with this server's (tokenKeys)")
        if header.algorithm != entry.algorithm:
            refuse("its key is not used with the algorithm that it names (`alg`)")
        digest = hashlib.sha256(token.encode()).digest()
        if self._signed.get(digest) != entry.thumbprint:
            _check_signature(token, entry)
            self._signed[digest] = entry.thumbprint
            if len(self._signed) > REMEMBERED:
                self._signed.popitem(last=False)
        proven = read_claims(token, header.key_id, entry.thumbprint, self._rules, self._now())
        if proven.token_id in self._revoked:
            refuse("it was revoked", "Get a new one")
        return proven

    def objection(self, proven: ProvenToken) -> str | None:
        """Return why a token that was good is good no longer; None where it is."""
        if proven.principal.expired(self._now()):
            return "the token has expired"
        entry = self._keys.current().get(proven.key_id)
        if entry is None or entry.thumbprint != proven.thumbprint:
            return "the key of the token is used no longer"
        return "the token was revoked" if proven.token_id in self._revoked else None


def _check_signature(token: str, entry: KeyEntry) -> None:
    """Raise NotAuthenticatedError unless the entry's key has made the token's signature."""
    try:
        from joserfc.errors import JoseError
        from joserfc.jwa import JWSAlgModel
        from joserfc.jws import JWSRegistry, deserialize_compact
    except ImportError as error:
        raise extra_missing_error(error) from error

    class OneAlgorithm(JWSRegistry):
        """Knows Ed25519 by its older name as well, which `read_header` has taken for it."""

        def get_alg(self, name: str) -> JWSAlgModel:
            return super().get_alg("Ed25519" if name == "EdDSA" else name)

    registry = OneAlgorithm(algorithms=[entry.algorithm])
    # The library's own limit is 512 bytes of header, and `read_header` has bounded the whole.
    registry.max_header_length = len(token)
    try:
        deserialize_compact(token, entry.key, registry=registry)
    except (JoseError, ValueError, TypeError):  # whatever it is, the text of it may hold parts of the token
        good = False
    else:
        good = True
    if not good:
        refuse("its signature is not that of its key")
