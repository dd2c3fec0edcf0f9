"""Keys and tokens of one's own: `dlspark token`, and Spark's driver for its tasks.

A signing key is a file with one private JWK, for its owner alone; who verifies gets the public half, in a JWKS beside
it. A token is short-lived, says when it begins and ends, has an id by which it can be revoked, and is restricted to
what its bearer needs: it can be handed to a task without handing over the holder's own proof.

Neither a key nor a token stands in a message, an exception or the command line's arguments.
"""

from __future__ import annotations

import json
import os
import stat
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dlspark.serving.security.token_claims import (
    BACKDATED_S,
    MAX_NAME_CHARS,
    MAX_PATTERNS,
    MAX_TOKEN_BYTES,
    RESTRICTIONS,
)
from dlspark.serving.security.token_keys import CURVES, MAX_KEYS_BYTES, RSA_ALGORITHMS, extra_missing_error
from dlspark.serving.security.tokens import OWN_NAME
from metadata.foundation.errors import CallerError
from metadata.security.principals import is_name
from metadata.security.restrictions import VERBS, Restrictions, pattern_fault
from metadata.security.secrets import Secret

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

RSA_BITS: Final = 3072
SIGNING: Final = ("ES256", "ES384", "ES512", "Ed25519", "PS256", "RS256")
"""The algorithms that keys are made for."""


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """Whose token is made, what is it good for, and how long?"""

    name: str
    """The principal's."""
    seconds: int
    restrictions: Restrictions
    roles: frozenset[str] = frozenset()
    issuer: str = OWN_NAME
    audience: str = OWN_NAME
    token_id: str = ""
    """By what the token can be revoked, and audit trails name it; empty: a number that no other token has."""

    def __post_init__(self) -> None:
        """Check it. Raises CallerError for what no proxy would take."""
        for what, text in (("name", self.name), *(("role", one) for one in sorted(self.roles))):
            if not is_name(text):
                raise CallerError(
                    f"the token's {what} {text!r} is no name of at most {MAX_NAME_CHARS} characters",
                    advice="All have to be seen, composed where there are such (NFC); no space at its ends.",
                )
        named = (("id", self.token_id),) if self.token_id else ()
        for what, text in (*named, ("issuer", self.issuer), ("audience", self.audience)):
            if not text or len(text) > MAX_NAME_CHARS or not text.isprintable():
                raise CallerError(f"the token's {what} is not a printable text of at most {MAX_NAME_CHARS} characters")
        if self.seconds < 1:
            raise CallerError(f"a token of {self.seconds} s is good for no time")
        logs, verbs = self.restrictions.logs or (), self.restrictions.verbs or frozenset()
        for one in logs:
            fault = pattern_fault(one)
            if fault is not None:
                raise CallerError(f"{one!r} is not a pattern of logs' names: {fault}")
        if len(logs) > MAX_PATTERNS:
            raise CallerError(f"a token has at most {MAX_PATTERNS} patterns of logs' names")
        if verbs - VERBS:
            unknown = ", ".join(sorted(verbs - VERBS))
            raise CallerError(f"there is no verb {unknown}", advice=f"Verbs are {', '.join(sorted(VERBS))}")


class SigningKey:
    """By which key are tokens made? It shows nothing of itself, and is not pickled."""

    __slots__ = ("_key", "algorithm", "key_id")

    def __init__(self, key: ECKey | OKPKey | RSAKey, algorithm: str, key_id: str) -> None:
        self._key = key
        self.algorithm = algorithm
        self.key_id = key_id

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id!r})"

    def __reduce__(self) -> str:
        raise TypeError("a signing key is not pickled: hand over its file's name")

    @classmethod
    def make(cls, algorithm: str) -> SigningKey:
        """Return a new key. Raises CallerError for an algorithm that keys are not made for."""
        if algorithm not in SIGNING:
            raise CallerError(
                f"no key is made for the algorithm {algorithm!r}", advice=f"Take one of {', '.join(SIGNING)}"
            )
        try:
            from joserfc.jwk import ECKey, OKPKey, RSAKey
        except ImportError as error:
            raise extra_missing_error(error) from error
        key: ECKey | OKPKey | RSAKey
        if algorithm in RSA_ALGORITHMS:
            key = RSAKey.generate_key(RSA_BITS)
        else:
            curve = next(curve for curve, of in CURVES.items() if of == algorithm)
            key = OKPKey.generate_key("Ed25519") if curve == "Ed25519" else ECKey.generate_key(curve)
        return cls(key, algorithm, key.thumbprint())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Return the key in a file that `write` has made. Raises CallerError where it is not one, or where others than
        its owner may read it."""
        place = Path(path)
        try:
            with place.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(MAX_KEYS_BYTES)
        except OSError as error:
            raise CallerError(f"the signing key cannot be read: {error.strerror}", path=str(place)) from error
        if mode & (stat.S_IRWXO | stat.S_IRWXG):
            raise CallerError(
                "others than its owner may read the signing key", advice=f"chmod 600 {place}", path=str(place)
            )
        found = cls._of_jwk(data)
        if found is None:
            raise CallerError("the file has no signing key", advice="dlspark token key makes one", path=str(place))
        return found

    @classmethod
    def of_text(cls, text: Secret, where: str) -> SigningKey:
        """Return the key that is what a file of `write` holds, from `where` an error says. Raises CallerError."""
        found = cls._of_jwk(text.reveal().encode())
        if found is None:
            raise CallerError(
                f"{where} has no signing key", advice="It is to hold what is in a file of dlspark token key"
            )
        return found

    @classmethod
    def _of_jwk(cls, data: bytes) -> SigningKey | None:
        """Return the private key of a JWK; None where it is not one, for a cause that may hold a part of the key."""
        try:
            from joserfc.errors import JoseError
            from joserfc.jwk import JWKRegistry, OctKey
        except ImportError as error:
            raise extra_missing_error(error) from error
        found = None
        try:
            said = json.loads(data)
            algorithm, key_id = said.pop("alg"), said.pop("kid")
            key = JWKRegistry.import_key(said)
            if algorithm in SIGNING and isinstance(key_id, str) and not isinstance(key, OctKey) and key.is_private:
                found = cls(key, algorithm, key_id)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            pass  # said by the caller, without the cause: its text may hold a part of the key
        return found

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the key, the private half included, into a new file for its owner alone. Raises CallerError where there
        is one, or it cannot be written."""
        private = {**self._key.as_dict(private=True), "kid": self.key_id, "alg": self.algorithm, "use": "sig"}
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise CallerError("there is a file already; nothing was written", path=str(path)) from error
        except OSError as error:
            raise CallerError(f"the key cannot be written: {error.strerror}", path=str(path)) from error
        with os.fdopen(descriptor, "w") as file:
            file.write(_text(private))
            file.flush()
            os.fsync(descriptor)

    def publish(self, path: str | os.PathLike[str]) -> None:
        """Add the public half to a JWKS, which is made where there is none. Raises CallerError where what is there is
        not one."""
        place = Path(path)
        keys: list[object] = []
        try:
            if place.exists():
                found = json.loads(place.read_bytes())
                if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
                    raise ValueError("it is not a JWKS")
                keys = found["keys"]
        except (OSError, ValueError) as error:
            raise CallerError(
                f"the public keys cannot be read; nothing was written: {error}", path=str(place)
            ) from error
        public = {**self._key.as_dict(private=False), "kid": self.key_id, "alg": self.algorithm, "use": "sig"}
        # Beside it and then in its place: a proxy reads the old set or the new one, never half of one.
        beside = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
        try:
            with beside.open("x", encoding="utf-8") as file:
                file.write(_text({"keys": [*keys, public]}))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(place)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise CallerError(f"the public keys cannot be written: {error.strerror}", path=str(place)) from error

    def issue(self, grant: TokenGrant, now_s: float | None = None) -> Secret:
        """Return a token that proves what `grant` says, from now on. Raises CallerError where it would be too long."""
        try:
            from joserfc.jws import JWSRegistry, serialize_compact
        except ImportError as error:
            raise extra_missing_error(error) from error
        now = int(time.time() if now_s is None else now_s)
        claims: dict[str, object] = {
            "iss": grant.issuer,
            "aud": grant.audience,
            "sub": grant.name,
            "iat": now,
            "nbf": now - BACKDATED_S,
            "exp": now + grant.seconds,
            "jti": grant.token_id or str(uuid.uuid4()),
        }
        if grant.roles:
            claims["roles"] = sorted(grant.roles)
        narrowed = _restrictions(grant.restrictions)
        if narrowed:
            claims[RESTRICTIONS] = narrowed
        header = {"alg": self.algorithm, "kid": self.key_id, "typ": "JWT"}
        registry = JWSRegistry(algorithms=[self.algorithm])
        text = serialize_compact(header, json.dumps(claims, separators=(",", ":")), self._key, registry=registry)
        if len(text) > MAX_TOKEN_BYTES:
            raise CallerError(f"the token would have more than {MAX_TOKEN_BYTES} bytes", advice="Name fewer logs")
        return Secret(text)


def _restrictions(restrictions: Restrictions) -> dict[str, Collection[str]]:
    found: dict[str, Collection[str]] = {}
    if restrictions.logs is not None:
        found["logs"] = list(restrictions.logs)
    if restrictions.verbs is not None:
        found["verbs"] = sorted(restrictions.verbs)
    return found


def _text(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=2) + "\n"
