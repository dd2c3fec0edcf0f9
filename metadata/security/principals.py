"""`Principal`: who a peer has proved to be, by which means, and until when.

Every means of proof ends here: a certificate, a SASL exchange, a token. What a principal may do is decided elsewhere,
by its name and its roles alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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

    def __str__(self) -> str:
        return self.name

    def expired(self, now_s: float) -> bool:
        """Return whether the proof is over at `now_s`, seconds since the epoch."""
        return self.expires_at_s is not None and now_s >= self.expires_at_s
