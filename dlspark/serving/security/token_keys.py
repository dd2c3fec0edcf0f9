"""The keys that vouch for tokens, and where they come from: a JWKS (RFC 7517) in a file, or at an https address.

Where keys come from is the server's own configuration, and never what a token says. A key decides by itself which
algorithm it is used with (`KeyEntry.algorithm`): that a token claims another one refuses the token, so no token makes a
public key an HMAC's secret.

    a key without `kid`, or for anything but signatures     left out, with a warning
    of a kind or length that is not used here               likewise
    of an algorithm that `tokenAlgorithms` does not name    likewise; HMAC's only where it names it
    two keys of one `kid`                                   the whole set is refused: which is meant is not known
    the private half of a key                               likewise: who verifies must not be able to sign
    no key left                                             likewise

Fault model. A set that cannot be read, or is refused, at the start: a file's keeps the server from starting; an
address's leaves it without keys, and so refusing every token, until it answers. Later the keys that were read last
stay, with one warning, for `tokenKeysMaxAgeSeconds` at most: then there are none. An address is asked over https alone,
follows no redirect, and has READ_S seconds and MAX_KEYS_BYTES; whatever `http_proxy` says is not asked.
"""

from __future__ import annotations

import http.client
import logging
import math
import os
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from dlspark.errors import SettingsError
from dlspark.serving.security.token_claims import MAX_NAME_CHARS, json_object
from metadata.foundation.errors import DistributedLogError

if TYPE_CHECKING:
    from joserfc.jwk import Key

_LOG: Final = logging.getLogger(__name__)

MAX_KEYS_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 256
READ_S: Final = 10.0
"""The time that an address has to give its keys, all in all."""
AGAIN_S: Final = 30.0
"""The interval at which an address is asked again that has not given its keys."""
HTTPS: Final = "https://"
LEAST_RSA_BITS: Final = 2048
LEAST_SECRET_BYTES: Final = 32
CURVES: Final[Mapping[str, str]] = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "Ed25519"}
"""The algorithm of each curve."""
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
"""What an RSA key may say that it is used with; the first one where it says nothing."""
HMAC_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
ALGORITHMS: Final = frozenset({*CURVES.values(), *RSA_ALGORITHMS, *HMAC_ALGORITHMS})
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


_NO_KEY: Final = "there is no key by which tokens could be verified"
_WHAT_KEYS_NEED: Final = "Each needs a kid, an algorithm that tokenAlgorithms names, and at least 2048 bits (RSA)"


class KeysRefusedError(SettingsError):
    """A set of keys is not one by which tokens can be verified; none of it is used."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """Which key, and by which algorithm alone?"""

    key_id: str
    algorithm: str
    key: Key
    thumbprint: str
    """Of the key itself (RFC 7638): another key under the same id is another one."""


KeyEntries = Mapping[str, KeyEntry]
"""By key id."""


def extra_missing_error(error: ImportError) -> SettingsError:
    """Return the error of tokens without the library that verifies them."""
    return SettingsError(
        f"tokens need the package joserfc, which is not installed: {error}",
        advice="pip install 'dlspark[security]'",
    )


def read_keys(data: bytes, algorithms: frozenset[str], where: str) -> KeyEntries:
    """Return the keys of a JWKS that are used here; there may be none. Raises KeysRefusedError, and SettingsError
    without joserfc."""
    try:
        found = json_object(data, "JWKS")
    except DistributedLogError:
        raise KeysRefusedError(
            "the keys of tokens are not a JSON object in which each name stands once", path=where
        ) from None
    keys = found.get("keys")
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise KeysRefusedError(f"the keys of tokens are not a JWKS of at most {MAX_KEYS} keys", path=where)
    entries: dict[str, KeyEntry] = {}
    for number, one in enumerate(keys):
        fault, entry = _entry(one, algorithms, where)
        if entry is None:
            _LOG.warning("key %d of %s is left out: %s", number, where, fault)
        elif entry.key_id in entries:
            raise KeysRefusedError("two keys of tokens have the same id (kid): which is meant is not known", path=where)
        else:
            entries[entry.key_id] = entry
    return MappingProxyType(entries)


def _entry(one: object, algorithms: frozenset[str], where: str) -> tuple[str, KeyEntry | None]:
    """Return why a key is left out, or its entry."""
    if not isinstance(one, dict):
        return "it is not an object", None
    if one.get("kty") != "oct" and _PRIVATE & one.keys():
        raise KeysRefusedError(
            "the keys of tokens have a private one: who verifies tokens must not be able to make them",
            advice="Give the server the public keys alone (dlspark token key writes both files)",
            path=where,
        )
    key_id = one.get("kid")
    if not isinstance(key_id, str) or not key_id or len(key_id) > MAX_NAME_CHARS or not key_id.isprintable():
        return "it has no kid", None
    if one.get("use", "sig") != "sig" or not _verifies(one.get("key_ops", ["verify"])):
        return "it is not for signatures", None
    algorithm = _algorithm(one)
    if algorithm is None:
        return "its kind, curve or algorithm is not used here", None
    if algorithm not in algorithms:
        return f"tokenAlgorithms does not name {algorithm}", None
    key, fault = _key(one)
    if key is None:
        return fault, None
    return "", KeyEntry(key_id, algorithm, key, key.thumbprint())


def _verifies(operations: object) -> bool:
    return isinstance(operations, list) and "verify" in operations


def _algorithm(one: Mapping[str, object]) -> str | None:
    """Return the one algorithm of a key: what its kind allows, and it says itself where there are several."""
    kind, said = one.get("kty"), one.get("alg")
    curve = one.get("crv")
    if kind == "EC" or (kind == "OKP" and curve == "Ed25519"):
        found = CURVES.get(curve) if isinstance(curve, str) else None
        # "EdDSA" is the older name of what Ed25519 names now.
        return found if said in (None, found) or (kind, said) == ("OKP", "EdDSA") else None
    choices = RSA_ALGORITHMS if kind == "RSA" else HMAC_ALGORITHMS if kind == "oct" else ()
    if said is None:
        return choices[0] if choices else None
    return said if isinstance(said, str) and said in choices else None


def _key(one: dict[str, object]) -> tuple[Key | None, str]:
    try:
        from joserfc.errors import JoseError
        from joserfc.jwk import JWKRegistry, OctKey, RSAKey
    except ImportError as error:
        raise extra_missing_error(error) from error
    kept = {name: value for name, value in one.items() if name not in ("alg", "use", "key_ops")}
    try:
        key = JWKRegistry.import_key(kept)  # type: ignore[arg-type]
        if isinstance(key, RSAKey) and key.public_key.key_size < LEAST_RSA_BITS:
            return None, f"it has fewer than {LEAST_RSA_BITS} bits"
        if isinstance(key, OctKey) and len(key.raw_value) < LEAST_SECRET_BYTES:
            return None, f"its secret is shorter than {LEAST_SECRET_BYTES} bytes"
        key.thumbprint()
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        return None, "it is not what its kind is made of"  # nothing of the key itself is said
    return key, ""


# ---------------------------------------------------------------------- where they come from


class KeySource(Protocol):
    """Where are keys read from? Calls may block."""

    name: str
    """For messages."""
    required: bool
    """True where a server does not start without them."""

    def read(self) -> bytes | None:
        """Return the JWKS; None where it is not to be asked for yet. Raises KeysRefusedError, OSError."""
        ...


class KeyFile:
    """Which keys are in this file?"""

    required = True

    def __init__(self, path: str) -> None:
        self.name = path

    def read(self) -> bytes | None:
        """Return the file. Raises OSError; KeysRefusedError for one that is too long, or with a secret that everybody
        may read."""
        with Path(self.name).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_KEYS_BYTES + 1)
        if len(data) > MAX_KEYS_BYTES:
            raise KeysRefusedError(f"the keys of tokens have more than {MAX_KEYS_BYTES} bytes", path=self.name)
        if mode & stat.S_IRWXO and b'"oct"' in data:
            raise KeysRefusedError(
                "everybody may read the file with a secret by which tokens can be made",
                advice=f"Take the right away: chmod o= {self.name}",
                path=self.name,
            )
        return data


class KeyAddress:
    """Which keys does this https address give?

    Args:
        authorities: a file of the certificates that are trusted for it; None: the system's.
    """

    required = False

    def __init__(
        self,
        url: str,
        authorities: str | None = None,
        now: Callable[[], float] = time.monotonic,
        every_s: float = 300.0,
    ) -> None:
        """Check them. Raises SettingsError for anything but an https address, or authorities that cannot be read."""
        try:
            parts = urlsplit(url)
            port = parts.port or 443
        except ValueError as error:
            raise SettingsError(f"tokenKeys is no address: {error}") from None
        odd = parts.username is not None or parts.fragment or not url.isascii() or not url.isprintable() or " " in url
        if parts.scheme != "https" or not parts.hostname or odd:
            raise SettingsError(
                "tokenKeys is neither a file's path nor an https address", advice="No other kind of address is asked"
            )
        self.name = url
        self._host, self._port = parts.hostname, port
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._authorities = authorities
        self._now, self._every_s = now, every_s
        self._next: float | None = None
        self._context()

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._authorities)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"the authorities that are trusted for the address of tokens' keys cannot be read: {error}",
                path=self._authorities,
            ) from error

    def read(self) -> bytes | None:
        """Return what the address gives; None where it is not to be asked yet. Raises OSError, KeysRefusedError."""
        now = self._now()
        if self._next is not None and now < self._next:
            return None
        self._next = now + min(self._every_s, AGAIN_S)  # soon where this fails
        data = self._fetch()
        self._next = now + self._every_s
        return data

    def _fetch(self) -> bytes:
        deadline = self._now() + READ_S
        asking = http.client.HTTPSConnection(self._host, self._port, timeout=READ_S, context=self._context())
        try:
            asking.request("GET", self._target, headers={"Accept": "application/json"})
            answer = asking.getresponse()
            if answer.status != http.client.OK:  # a redirect as well: it would be an address of others' choice
                raise KeysRefusedError(f"the address of tokens' keys answers {answer.status}", path=self.name)
            data = bytearray()
            while piece := answer.read1(16 * 1024):
                data += piece
                if len(data) > MAX_KEYS_BYTES:
                    raise KeysRefusedError(f"the keys of tokens have more than {MAX_KEYS_BYTES} bytes", path=self.name)
                if self._now() > deadline:
                    raise KeysRefusedError(f"the address of tokens' keys takes more than {READ_S:g} s", path=self.name)
            return bytes(data)
        except http.client.HTTPException as error:
            raise KeysRefusedError(f"the address of tokens' keys answers no HTTP: {error!r}", path=self.name) from error
        finally:
            asking.close()


def source_of(where: str, authorities: str | None, every_s: float) -> KeySource:
    """Return the source that a setting names: an https address, or a file's path. Raises SettingsError."""
    if where.startswith(HTTPS):
        return KeyAddress(where, authorities, every_s=every_s)
    if "://" in where or where.startswith("file:"):
        raise SettingsError(
            "tokenKeys is neither a file's path nor an https address", advice="No other kind of address is asked"
        )
    return KeyFile(where)


class TokenKeys:
    """Which keys vouch for tokens now? `refresh` reads them again; it may block, and runs on a thread of its own.

    Args:
        max_age_s: how long keys are used that could not be read again.
        now: seconds that go on while the machine is suspended.
    """

    def __init__(
        self, source: KeySource, algorithms: frozenset[str], max_age_s: float, now: Callable[[], float]
    ) -> None:
        self._source = source
        self._algorithms = algorithms
        self._max_age_s = max_age_s
        self._now = now
        self._accepted = b""
        self._entries: KeyEntries = MappingProxyType({})
        self._read_at = -math.inf
        self._failed = False

    def start(self) -> None:
        """Read the keys for the first time. Raises SettingsError where they are a file's and cannot be used: a server
        does not start so."""
        try:
            self._read()
            if not self._entries and self._source.required:
                raise KeysRefusedError(_NO_KEY, advice=_WHAT_KEYS_NEED)
        except (OSError, DistributedLogError) as error:
            if self._source.required:
                said = error.strerror if isinstance(error, OSError) else error.message
                advice = error.advice if isinstance(error, DistributedLogError) else None
                raise SettingsError(
                    f"the keys of tokens cannot be used: {said}", advice=advice, path=self._source.name
                ) from error
            self._warn(error)

    def refresh(self) -> None:
        """Read the keys again where they may have changed; those that there are stay where that fails."""
        try:
            self._read()
        except (OSError, DistributedLogError) as error:
            self._warn(error)

    def current(self) -> KeyEntries:
        """Return the keys by their ids: none where none could be read for longer than they may be used."""
        return self._entries if self._now() - self._read_at <= self._max_age_s else MappingProxyType({})

    def _read(self) -> None:
        data = self._source.read()
        if data is None:
            return
        if data != self._accepted:
            # None is an answer, too: who takes the last key out has perhaps lost it to a thief. Only keys that cannot
            # be read leave those in use that were read last.
            self._entries = read_keys(data, self._algorithms, self._source.name)
            self._accepted = data
            if not self._entries:
                _LOG.warning("%s in %s; every token is refused. %s", _NO_KEY, self._source.name, _WHAT_KEYS_NEED)
        self._read_at, self._failed = self._now(), False

    def _warn(self, error: Exception) -> None:
        if not self._failed:  # once, and not at every look
            kept = f"those read last stay for {self._max_age_s:g} s" if self._entries else "every token is refused"
            _LOG.warning("the keys of tokens cannot be read, %s: %s", kept, error)
        self._failed = True
