"""DIGEST-MD5 (RFC 2831) with the quality of protection `auth`, as Java's library speaks it.

It is here so that Java clients and bookies can be spoken with; RFC 6331 calls it obsolete, and rightly: MD5, and a
server that keeps passwords. So it belongs inside TLS. What is kept of its promises:

* A nonce is of 256 random bits, belongs to one connection, and is used once: a proof that was overheard fails on every
  other connection, and a second proof on the same one is not heard (re-authentication is not offered, as in Java).
* The client's proof and the server's are compared in constant time, and an unknown name costs and says what a wrong
  password does.
* The client is not done before the server has proved that it knows the password as well (`rspauth`).

Texts travel in UTF-8 (the directive `charset`), and are hashed in ISO 8859-1 where they can be, as the RFC wants.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from metadata.foundation.settings import shown
from metadata.security.principals import Principal, Scheme
from metadata.security.sasl.machine import SaslError, check_size
from metadata.security.secrets import Secret

MECHANISM: Final = "DIGEST-MD5"
MAX_CHALLENGE_BYTES: Final = 2048
MAX_RESPONSE_BYTES: Final = 4096
"""Both of the RFC, which counts them exclusively."""
NONCE_BYTES: Final = 32
NONCE_COUNT: Final = "00000001"

_TOKEN = rb"[!#$%&'*+\-.0-9A-Z^_`a-z|~]+"
_DIRECTIVE: Final = re.compile(
    rb"[ \t\r\n]*(" + _TOKEN + rb')[ \t\r\n]*=[ \t\r\n]*(?:"((?:[^"\\]|\\[\x00-\x7f])*)"|(' + _TOKEN + rb"))[ \t\r\n]*"
)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_HEX_OF_MD5: Final = re.compile(rb"[0-9a-f]{32}")


class DigestMd5Server:
    """Which of the users that have a password here is the client?

    Args:
        password_of: the password of a user, or None for a name that is not known.
        allowed: whether a user may enter; asked once the password has proved right.
        service, host, realm: as clients expect them; upstream has `bookkeeper` for all three.
    """

    mechanism = MECHANISM

    def __init__(
        self,
        password_of: Callable[[str], Secret | None],
        allowed: Callable[[str], bool],
        *,
        service: str = "bookkeeper",
        host: str = "bookkeeper",
        realm: str = "bookkeeper",
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(NONCE_BYTES),
    ) -> None:
        self._password_of = password_of
        self._allowed = allowed
        self._uri = f"{service}/{host}"
        self._realm = realm
        self._make_nonce = nonce
        self._nonce: str | None = None
        self._over = False
        self._principal: Principal | None = None

    @property
    def done(self) -> bool:
        """True once the client's proof was right."""
        return self._principal is not None

    @property
    def principal(self) -> Principal | None:
        """The user, once its proof was right."""
        return self._principal

    def step(self, message: bytes) -> bytes:
        """Return the challenge, then the server's own proof. Raises SaslError, after which nothing is heard."""
        if self._over:
            raise SaslError("DIGEST-MD5: a message after the exchange was over")
        if self._nonce is None:
            if message:
                self._over = True
                raise SaslError("DIGEST-MD5: the client's first message is not empty")
            self._nonce = self._make_nonce()
            return _challenge(self._realm, self._nonce)
        self._over = True  # whatever comes of this message: the nonce is used
        return self._judge(message, self._nonce)

    def _judge(self, message: bytes, nonce: str) -> bytes:
        check_size(message, MAX_RESPONSE_BYTES - 1, MECHANISM)
        given = _single(_directives(message))
        charset = _text_of(given, "charset", "ascii") if "charset" in given else None
        if charset not in (None, "utf-8"):
            raise SaslError("DIGEST-MD5: the client's charset is not utf-8")
        coding = "iso-8859-1" if charset is None else "utf-8"
        user = _text_of(given, "username", coding)
        realm = _text_of(given, "realm", coding) if "realm" in given else ""
        authorized = _text_of(given, "authzid", "utf-8") if "authzid" in given else None
        uri = _text_of(given, "digest-uri", "iso-8859-1")
        cnonce = _required(given, "cnonce")
        expected = {"nonce": nonce, "nc": NONCE_COUNT, "qop": "auth"}
        for name, value in expected.items():
            if name == "qop" and name not in given:
                continue
            if not hmac.compare_digest(_required(given, name), value.encode()):
                raise SaslError(f"DIGEST-MD5: the client's {name} is not the one that belongs to this connection")
        if realm != self._realm:
            raise SaslError("DIGEST-MD5: the client answers for another realm", advice=f"It is {self._realm!r}")
        if uri.lower() != self._uri.lower():
            raise SaslError("DIGEST-MD5: the client answers another service", advice=f"It is {self._uri!r}")
        proof = _required(given, "response")
        if not user or not cnonce or not _HEX_OF_MD5.fullmatch(proof):
            raise SaslError("DIGEST-MD5: the client's response is not complete")
        password = self._password_of(user)
        # An unknown user is compared too, with a password that nobody has: the time does not tell who is known here.
        known = password if password is not None else Secret(secrets.token_urlsafe(NONCE_BYTES))
        session = _session_key(user, realm, known, nonce.encode(), cnonce, authorized)
        right = hmac.compare_digest(_proof(session, b"AUTHENTICATE:", uri, nonce.encode(), cnonce), proof)
        if password is None or not right:
            raise SaslError(f"DIGEST-MD5: the user {shown(user)} is not known, or its password is another")
        if authorized is not None and authorized != user:
            raise SaslError(f"DIGEST-MD5: the user {shown(user)} asks to act as {shown(authorized)}, which nobody may")
        if not self._allowed(user):
            raise SaslError(
                f"DIGEST-MD5: the user {shown(user)} is known, and not allowed here",
                advice="The key saslJaasClientAllowedIds says by a regular expression who is",
            )
        self._principal = Principal(user, Scheme.DIGEST_MD5)
        return b"rspauth=" + _proof(session, b":", uri, nonce.encode(), cnonce)


class DigestMd5Client:
    """Which user is this, to a server that knows its password?

    Args:
        name: the user, who also asks to act as itself (`authzid`), as upstream's clients do.
        password: known to the server as well.
        service, host: of the server; upstream has `bookkeeper` for both.
    """

    mechanism = MECHANISM

    def __init__(
        self,
        name: str,
        password: Secret,
        *,
        service: str = "bookkeeper",
        host: str = "bookkeeper",
        authorized: bool = True,
        cnonce: Callable[[], str] = lambda: secrets.token_urlsafe(NONCE_BYTES),
    ) -> None:
        self.name = name
        self._password = password
        self._uri = f"{service}/{host}"
        self._authorized = name if authorized else None
        self._make_cnonce = cnonce
        self._steps = 0
        self._expected: bytes | None = None
        self._done = False

    @property
    def done(self) -> bool:
        """True once the server has proved that it knows the password."""
        return self._done

    def step(self, message: bytes) -> bytes | None:
        """Return the empty message, then the response; None once the server's proof is right. Raises SaslError."""
        step, self._steps = self._steps, self._steps + 1
        if step == 0:
            if message:
                self._steps = 3
                raise SaslError("DIGEST-MD5: the server spoke first")
            return b""
        if step == 1:
            self._steps = 3  # unless the response is made
            response = self._respond(message)
            self._steps = 2
            return response
        if step == 2 and self._expected is not None:
            self._check_server(message, self._expected)
            self._done = True
            return None
        raise SaslError("DIGEST-MD5: a message after the exchange was over")

    def _respond(self, message: bytes) -> bytes:
        check_size(message, MAX_CHALLENGE_BYTES - 1, MECHANISM)
        directives = _directives(message)
        realms = [value for name, value in directives if name == "realm"]
        given = _single([(name, value) for name, value in directives if name != "realm"])
        if _required(given, "algorithm").lower() != b"md5-sess":
            raise SaslError("DIGEST-MD5: the server's algorithm is not md5-sess")
        if given.get("charset") != b"utf-8":
            raise SaslError("DIGEST-MD5: the server does not take UTF-8")
        offered = [word.strip() for word in given.get("qop", b"auth").split(b",")]
        if b"auth" not in offered:
            raise SaslError("DIGEST-MD5: the server wants each message signed or encrypted, which TLS does")
        nonce = _required(given, "nonce")
        if not nonce:
            raise SaslError("DIGEST-MD5: the server's nonce is empty")
        try:
            realm = realms[0].decode() if realms else ""
        except UnicodeDecodeError as cause:
            raise SaslError("DIGEST-MD5: the server's realm is not in UTF-8") from cause
        cnonce = self._make_cnonce().encode()
        session = _session_key(self.name, realm, self._password, nonce, cnonce, self._authorized)
        self._expected = _proof(session, b":", self._uri, nonce, cnonce)
        fields = [
            b"charset=utf-8",
            b"username=" + _quoted(self.name.encode()),
            *([b"realm=" + _quoted(realm.encode())] if realms else []),
            b"nonce=" + _quoted(nonce),
            b"nc=" + NONCE_COUNT.encode(),
            b"cnonce=" + _quoted(cnonce),
            b"digest-uri=" + _quoted(self._uri.encode()),
            b"response=" + _proof(session, b"AUTHENTICATE:", self._uri, nonce, cnonce),
            b"qop=auth",
            *([b"authzid=" + _quoted(self._authorized.encode())] if self._authorized is not None else []),
        ]
        return b",".join(fields)

    @staticmethod
    def _check_server(message: bytes, expected: bytes) -> None:
        check_size(message, MAX_CHALLENGE_BYTES - 1, MECHANISM)
        proof = _required(_single(_directives(message)), "rspauth")
        if not hmac.compare_digest(proof, expected):
            raise SaslError(
                "DIGEST-MD5: the server does not know the password, so it is not the server that was meant",
                advice="Nothing else was sent to it. Look at the address, and at who answers there",
            )


# ------------------------------------------------------------------------------------ messages


def _challenge(realm: str, nonce: str) -> bytes:
    fields = (f"realm={_quoted(realm.encode()).decode()}", f'nonce="{nonce}"', 'qop="auth"', "charset=utf-8")
    return ",".join((*fields, "algorithm=md5-sess")).encode()


def _directives(message: bytes) -> list[tuple[str, bytes]]:
    """Return the directives in their order, their names in small letters. Raises SaslError."""
    found: list[tuple[str, bytes]] = []
    at = 0
    while at < len(message):
        match = _DIRECTIVE.match(message, at)
        if match is None:
            raise SaslError("DIGEST-MD5: a message that is not a list of directives")
        name, quoted, plain = match.groups()
        found.append((name.decode().lower(), plain if quoted is None else _ESCAPED.sub(rb"\1", quoted)))
        at = match.end()
        if at < len(message):
            if message[at : at + 1] != b",":
                raise SaslError("DIGEST-MD5: a message that is not a list of directives")
            at += 1
    return found


def _single(directives: list[tuple[str, bytes]]) -> Mapping[str, bytes]:
    """Return the directives by name. Raises SaslError where one comes twice: which is meant, nobody knows."""
    given = dict(directives)
    if len(given) != len(directives):
        raise SaslError("DIGEST-MD5: a directive that comes twice")
    return given


def _required(given: Mapping[str, bytes], name: str) -> bytes:
    value = given.get(name)
    if value is None:
        raise SaslError(f"DIGEST-MD5: a message without {name}")
    return value


def _text_of(given: Mapping[str, bytes], name: str, coding: str) -> str:
    try:
        return _required(given, name).decode(coding)
    except UnicodeDecodeError as cause:
        raise SaslError(f"DIGEST-MD5: {name} is not in the charset that the message names") from cause


def _quoted(value: bytes) -> bytes:
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


# ------------------------------------------------------------------------------------ digests


def _session_key(user: str, realm: str, password: Secret, nonce: bytes, cnonce: bytes, authorized: str | None) -> bytes:
    """Return H(A1) of the RFC, in hexadecimal."""
    secret = _md5(b":".join((_hashed_text(user), _hashed_text(realm), _hashed_text(password.reveal()))))
    parts = [secret, nonce, cnonce]
    if authorized is not None:
        parts.append(authorized.encode())
    return _md5(b":".join(parts)).hex().encode()


def _proof(session: bytes, prefix: bytes, uri: str, nonce: bytes, cnonce: bytes) -> bytes:
    """Return a side's proof; `prefix` is what A2 begins with, which differs between the sides."""
    asked = _md5(prefix + uri.encode("iso-8859-1")).hex().encode()
    return _md5(b":".join((session, nonce, NONCE_COUNT.encode(), cnonce, b"auth", asked))).hex().encode()


def _hashed_text(text: str) -> bytes:
    try:
        return text.encode("iso-8859-1")
    except UnicodeEncodeError:
        return text.encode()


def _md5(content: bytes) -> bytes:
    # Not for its strength: the mechanism is MD5, and is there for peers that speak no other; TLS protects it.
    return hashlib.md5(content, usedforsecurity=False).digest()
