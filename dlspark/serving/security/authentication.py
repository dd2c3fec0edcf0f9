"""`Authentication`: what a proxy's clients must prove, and whether what they have proved still holds.

| what a connection, or call, has | who it is |
|---|---|
| a certificate that was verified | its principal |
| a token as well, or alone | the token's principal, restricted as the token says; the certificate must hold, too |
| neither | nobody: refused |
| no TLS, where that is taken too (`optional`) | nobody, and not refused: the middle of a rolling change |

A proof that was good is looked at again (`objection`), for certificates, keys and lists of revoked ones are read again
while connections live. That is cheap: a certificate that many connections show is judged once in JUDGED_S.

A token is not taken from a connection without TLS: whoever reads it on its way would have it.
"""

from __future__ import annotations

import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Protocol

from dlspark.serving.security.token_claims import ProvenToken
from dlspark.serving.security.tokens import TokenVerifier
from metadata.foundation.errors import DistributedLogError
from metadata.security.audit import NOWHERE, Noted
from metadata.security.identity import TlsMaterial
from metadata.security.principals import Principal
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import Restrictions

JUDGED_S: Final = 2.0
"""Whether a certificate still holds is not asked again for so long."""
MAX_JUDGED: Final = 20_000
MAX_ENTERED: Final = 4_096
"""Connections of gRPC that are remembered as noted."""
PROXY_ROLE: Final = "proxy"
"""The role of proxies among themselves."""
CONNECTION: Final = "connection"
"""The event of the audit trail that notes are made of here."""
_WHAT_PROVES: Final = "Give the client a certificate (securityDirectory), or a token (tokenFile)"


class ServerIdentity(Protocol):
    """What a proxy is to its clients, and what it knows of their certificates: `TlsIdentity`."""

    generation: int
    """Goes up when files have changed."""

    @property
    def material(self) -> TlsMaterial:
        """The contents of the files, for gRPC."""
        ...

    def server_context(self) -> ssl.SSLContext:
        """Return the context of connections that come from now on."""
        ...

    def judge(self, der: bytes, now_s: float | None = None, shown: Sequence[bytes] | None = None) -> str | None:
        """Return why a certificate is not good any more, or one of those that its peer has shown beside it, where that
        is known; None where all is good."""
        ...

    def principal_of(self, der: bytes) -> Principal:
        """Return whose certificate it is. Raises DistributedLogError."""
        ...

    def refresh(self) -> bool:
        """Read files that have changed; it may block."""
        ...


@dataclass(frozen=True, slots=True)
class PeerProof:
    """What has a peer proved? Made and renewed by `Authentication` alone."""

    secured: bool
    certificate: bytes | None = None
    """DER; verified in the handshake."""
    shown: tuple[bytes, ...] | None = None
    """The certificates that it has shown beside its own; None: whoever verified it has looked at lists of revoked ones
    for all of them."""
    holder: Principal | None = None
    """Whose certificate it is."""
    token: ProvenToken | None = None

    @property
    def principal(self) -> Principal | None:
        """Who the peer is; None: it has proved nothing."""
        return self.token.principal if self.token is not None else self.holder

    @property
    def restrictions(self) -> Restrictions | None:
        """What its proof leaves of its rights; None: all of them."""
        return self.token.restrictions if self.token is not None else None


class Authentication:
    """What must a proxy's clients prove? For one loop; `readings` run on threads of their own.

    Args:
        identity: the proxy's certificates.
        tokens: verifies tokens; None: none is taken.
        plain_too: connections without TLS are taken as well, and prove nothing.
        roles: of which a principal must have one, however it proved who it is; none: any principal is taken.
        audit: where refusals are noted.
    """

    def __init__(
        self,
        identity: ServerIdentity,
        tokens: TokenVerifier | None = None,
        *,
        plain_too: bool = False,
        roles: frozenset[str] = frozenset(),
        audit: Noted = NOWHERE,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.plain_too = plain_too
        self._tokens = tokens
        self._roles = roles
        self._audit = audit
        self._elapsed = elapsed
        self._judged: dict[tuple[bytes, bytes | None], tuple[float, str | None]] = {}
        self._entered: OrderedDict[tuple[str, str | None], None] = OrderedDict()

    @property
    def takes_tokens(self) -> bool:
        """True where tokens can be verified."""
        return self._tokens is not None

    def readings(self) -> tuple[Callable[[], object], ...]:
        """Return what is to be called again and again, each on a thread of its own: it reads certificates, keys or
        lists that have changed, and may block. An issuer of tokens that hangs keeps no revocation from being read."""
        found: list[Callable[[], object]] = [self.identity.refresh]
        if self._tokens is not None:
            found += [self._tokens.refresh_keys, self._tokens.refresh_revoked]
        return tuple(found)

    def refresh(self) -> None:
        """Read all of it once."""
        for read in self.readings():
            read()

    def arrived(
        self, peer: str, certificate: bytes | None, *, secured: bool, shown: tuple[bytes, ...] | None = None
    ) -> PeerProof:
        """Return what a new connection proves by itself, which may be nothing yet.

        Args:
            certificate: the peer's (DER), verified in the handshake; None: it has shown none.
            secured: whether the connection has TLS.
            shown: the certificates beside it, to judge the whole way to an authority by; None: the handshake did.

        Raises NotAuthenticatedError for a certificate that is not good, and for a connection without TLS where none is
        taken.
        """
        if not secured and not self.plain_too:
            raise self.refused(peer, "the connection has no TLS, and none is taken without")
        if certificate is None:
            return PeerProof(secured)
        why = self._judge(certificate, shown)
        if why is not None:
            raise self.refused(peer, f"its certificate is not good: {why}")
        try:
            holder = self.identity.principal_of(certificate)
        except DistributedLogError as error:
            raise self.refused(peer, error.message) from error
        return PeerProof(secured, certificate, shown, holder)

    def with_token(self, peer: str, proof: PeerProof, token: bytes | str) -> PeerProof:
        """Return the proof with a token that came over the connection: its first one, or one that takes the place of
        another of the same principal's.

        Raises NotAuthenticatedError; what was proved before holds then as long as it would have.
        """
        if not proof.secured:
            raise self.refused(peer, "a token came without TLS; it is known to whoever was on its way, so revoke it")
        if self._tokens is None:
            raise self.refused(peer, "the proxy takes no tokens", "Prove it by a certificate; or set tokenKeys there")
        try:
            text = token if isinstance(token, str) else token.decode("ascii")
            proven = self._tokens.verify(text)
        except UnicodeDecodeError:
            raise self.refused(peer, "the token is refused: it is not a text") from None
        except NotAuthenticatedError as error:
            raise self.refused(peer, error.message, error.advice) from None
        if proof.token is not None and proof.token.principal.name != proven.principal.name:
            raise self.refused(peer, "the token is another principal's than the one before", "Make a new connection")
        return replace(proof, token=proven)

    def objection(self, proof: PeerProof) -> str | None:
        """Return why what was proved does not suffice, or holds no longer; None where it does."""
        if not proof.secured and self.plain_too:
            return None
        if proof.principal is None:
            return "nothing was proved: neither a certificate was shown, nor a token"
        if self._roles and not self._roles & proof.principal.roles:
            return f"none of its roles is taken here: {', '.join(sorted(proof.principal.roles)) or 'it has none'}"
        if proof.certificate is not None:
            why = self._judge(proof.certificate, proof.shown)
            if why is not None:
                return f"its certificate is not good: {why}"
        if proof.token is not None:
            return "no token is taken" if self._tokens is None else self._tokens.objection(proof.token)
        return None

    def entered(self, peer: str, proof: PeerProof, session: str | None = None) -> None:
        """Note a connection that is let in, and as whom: also as nobody, for who is to switch `optional` to `on` looks
        for these."""
        principal = proof.principal
        if principal is None:
            how = "no TLS: taken, for security is optional" if not proof.secured else "nothing was proved"
        else:
            named = f" ({proof.token.token_id})" if proof.token is not None and proof.token.token_id else ""
            how = f"it has shown a token{named}" if proof.token is not None else "it has shown a certificate"
        self._audit.note(
            CONNECTION,
            allowed=True,
            reason=how,
            principal=principal.name if principal is not None else None,
            peer=peer,
            session=session,
            scheme=principal.scheme.value if principal is not None else None,
        )

    def called(self, peer: str, proof: PeerProof) -> None:
        """Note a connection by its first call, where the calls are all that is seen of it: once for each principal."""
        key = peer, proof.principal.name if proof.principal is not None else None
        if key in self._entered:
            self._entered.move_to_end(key)
            return
        self._entered[key] = None
        if len(self._entered) > MAX_ENTERED:
            self._entered.popitem(last=False)
        self.entered(peer, proof)

    def handshake_failed(self, peer: str, error: Exception) -> None:
        """Note a connection that was refused before anything could be heard on it."""
        self.refused(peer, f"no TLS: {error.message if isinstance(error, DistributedLogError) else error}")

    def refused(
        self, peer: str, why: str, advice: str | None = _WHAT_PROVES, proof: PeerProof | None = None
    ) -> NotAuthenticatedError:
        """Return the error of a peer that is refused, which is noted."""
        principal = proof.principal if proof is not None else None
        self._audit.note(
            CONNECTION,
            allowed=False,
            reason=why,
            principal=principal.name if principal is not None else None,
            peer=peer,
            scheme=principal.scheme.value if principal is not None else None,
        )
        return NotAuthenticatedError(why, advice=advice)

    def _judge(self, certificate: bytes, shown: tuple[bytes, ...] | None) -> str | None:
        # A digest, for what is shown may be long, and clients could fill the memory with it. Each says where it ends.
        others = None if shown is None else sha256(b"".join(shown)).digest()
        now, key = self._elapsed(), (certificate, others)
        found = self._judged.get(key)
        if found is not None and now - found[0] < JUDGED_S:
            return found[1]
        if len(self._judged) >= MAX_JUDGED:
            self._judged.clear()
        why = self.identity.judge(certificate, shown=shown)
        self._judged[key] = now, why
        return why
