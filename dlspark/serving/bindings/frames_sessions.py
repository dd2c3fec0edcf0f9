"""`FramesSession`: what the client of one frames connection has proved, and what follows when that ends.

    unproven   nothing was proved yet: every request is refused (403, NotAuthenticatedError), but a Handshake with a
               token. Ends the connection where it lasts longer than a first request may take
    proven     requests are begun. A Handshake with a token renews it, or narrows it to what the token leaves
    over       certificate or token have expired or were revoked: nothing new is begun (503: it was not done, and may be
               asked again over a new connection), what is under way is answered. Ends the connection as soon as no
               write is under way, at the latest after OVER_S; a new token makes it proven again until then

A renewed token must be the same principal's: what a connection has under way must not change hands. A connection over
which MAX_FAILURES tokens were refused is closed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dlspark.serving.bindings.service import Caller
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import Handshake, Refusal, Request, StatusCode
from dlspark.serving.security.authentication import Authentication, PeerProof
from metadata.security.proofs import NotAuthenticatedError

OVER_S: Final = 2.0
"""The time that writes under way have when the session is over."""
MAX_FAILURES: Final = 3
"""Tokens of one connection that are refused, until it is closed."""


class FramesSession:
    """May this connection's requests be begun, and for how long? Sets what its caller has proved."""

    __slots__ = ("_authentication", "_caller", "_opened_at", "_over_at", "_proof", "_was_proven", "failures", "why")

    def __init__(self, authentication: Authentication, caller: Caller, proof: PeerProof, now: float) -> None:
        self._authentication = authentication
        self._caller = caller
        self._proof = proof
        self._opened_at = now
        self._over_at: float | None = None
        self._was_proven = False
        self.failures = 0
        """Tokens that were refused."""
        self.why: str | None = None
        """Why nothing is begun now; None: it is."""
        self._proved(proof)

    def _proved(self, proof: PeerProof) -> None:
        self._proof = proof
        self.why = self._authentication.objection(proof)
        if self.why is None:
            if not self._was_proven or str(self._caller.principal) != str(proof.principal):
                self._authentication.entered(self._caller.address, proof, self._caller.session)
            self._was_proven, self._over_at = True, None
            self._caller.principal, self._caller.restrictions = proof.principal, proof.restrictions

    def admitted(self, request: Request) -> Request | Refusal:
        """Return the request as the service is to have it, or why it is not begun. A token in it is taken first."""
        if isinstance(request, Handshake) and request.token is not None:
            try:
                self._proved(self._authentication.with_token(self._caller.address, self._proof, request.token))
                self.failures = 0
            except NotAuthenticatedError as error:
                self.failures += 1
                return refusal_of(error)
            request = replace(request, token=None)
        if self.why is None:
            return request
        if self._was_proven:
            return Refusal(StatusCode.SERVICE_UNAVAILABLE, f"the session has ended: {self.why}")
        return refusal_of(self._authentication.refused(self._caller.address, self.why, proof=self._proof))

    def look(self, now: float, first_request_s: float) -> str | None:
        """Return why the connection is to end; None where it goes on."""
        before, self.why = self.why, self._authentication.objection(self._proof)
        if self.why is None:
            self._over_at = None
            return None
        if not self._was_proven:
            return self.why if now - self._opened_at > first_request_s else None
        if self._over_at is None:
            self._over_at = now
        if before is None:
            self._authentication.refused(self._caller.address, self.why, proof=self._proof)  # noted, once
        return self.why

    def excuse(self, seconds: float) -> None:
        """Leave this much time out of what the client has let pass: this process did not run."""
        self._opened_at += seconds
        if self._over_at is not None:
            self._over_at += seconds

    def late(self, now: float) -> bool:
        """Return whether what is under way is waited for no longer."""
        return self._over_at is None or now - self._over_at > OVER_S


def without_security(request: Request) -> Request | Refusal:
    """Return a request to a proxy that asks for no proof; a token is refused, for it came without TLS."""
    if isinstance(request, Handshake) and request.token is not None:
        said = "a token came without TLS, to a proxy that takes none; it is known to whoever was on its way"
        return refusal_of(NotAuthenticatedError(said, advice="Revoke it"))
    return request
