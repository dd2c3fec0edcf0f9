"""The certificates that lead from a peer's to an authority that is believed, where it matters later on which way a
handshake has gone: at libraries that know no revocation lists (gRPC), and on connections that are open.

Signatures were verified in the handshake; which of the certificates that a peer has shown were used for it is not said.
One authority may have several certificates: renewed ones, and ones that others have signed, all with the same name and
key. What that key has signed has a way over each of them, and any good way is enough. Where authorities of *different*
keys may have signed one certificate (they bear one name, and no number of the key tells them apart), each of them
has to be good: it cannot be seen here which one it was. So what a peer shows in addition never hides a revoked one.

    good    a believed one to which there is no objection
            a shown one to which there is none, if of each key that may have signed it one is good

A way that does not arrive at an authority that is believed now is refused: it was another one at the handshake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from metadata.security.certificates import CertificateFacts

MAX_SHOWN: Final = 16
"""Certificates beside its own that a peer may show."""


def path_objection(
    peer: CertificateFacts,
    shown: Iterable[CertificateFacts],
    believed: Iterable[CertificateFacts],
    objection: Callable[[CertificateFacts], str | None],
) -> str | None:
    """Return why the certificates above a peer's do not let it in; None: they do.

    Args:
        peer: the peer's own, which is judged elsewhere.
        shown: those that the peer has shown beside it.
        believed: the authorities.
        objection: says why one of them is not good. Believed ones are asked for as well, as OpenSSL does: they end, and
            who has signed one may revoke it.
    """
    anchors = list({one.fingerprint: one for one in believed}.values())
    roots = {one.fingerprint for one in anchors}
    between = list({one.fingerprint: one for one in shown if one.fingerprint not in roots}.values())
    if len(between) > MAX_SHOWN:
        return f"it has shown more than {MAX_SHOWN} certificates beside its own"
    if any((one.subject, one.key) == (peer.subject, peer.key) for one in anchors):
        return None  # a trust store may have the certificates of single peers
    # A trust store may have hundreds.
    near = [one for one in anchors if any(each.may_be_signed_by(one.subject, one.key_id) for each in (peer, *between))]
    ways = _Ways([*near, *(one for one in between if one.is_authority)], roots, objection)
    return ways.why_not(peer)


class _Ways:
    """Which authorities are good?"""

    def __init__(
        self,
        authorities: Sequence[CertificateFacts],
        roots: set[str],
        objection: Callable[[CertificateFacts], str | None],
    ) -> None:
        self._authorities = authorities
        self._objections = {one.fingerprint: objection(one) for one in authorities}
        self._good = {one for one, why in self._objections.items() if why is None and one in roots}
        # From above to below; those that have signed each other lead nowhere, and are never good by it.
        grows = True
        while grows:
            found = {
                one.fingerprint
                for one in authorities
                if one.fingerprint not in roots and self._objections[one.fingerprint] is None and self._leads_up(one)
            }
            grows = not found <= self._good
            self._good |= found

    def why_not(self, peer: CertificateFacts) -> str | None:
        """Return why no way leads up from a certificate; None: one does."""
        below, passed = peer, {peer.fingerprint}
        while not self._leads_up(below):
            bad = next((each for each in self._signers(below) if self._good.isdisjoint(_marks(each))), [])
            for one in bad:
                why = self._objections[one.fingerprint]
                if why is not None:
                    return f"its authority, {one.subject_text}, is not good: {why}"
            ahead = [one for one in bad if one.fingerprint not in passed]
            if not ahead:
                above = peer.issuer_text
                return f"no certificate is known that leads from its authority, {above}, to one that is believed"
            below = ahead[0]
            passed.add(below.fingerprint)
        return None

    def _leads_up(self, below: CertificateFacts) -> bool:
        signers = self._signers(below)
        return bool(signers) and not any(self._good.isdisjoint(_marks(each)) for each in signers)

    def _signers(self, below: CertificateFacts) -> list[list[CertificateFacts]]:
        """Return those that may have signed a certificate, which are of one key together."""
        found: dict[bytes, list[CertificateFacts]] = {}
        for one in self._authorities:
            if below.may_be_signed_by(one.subject, one.key_id):
                found.setdefault(one.key, []).append(one)
        return list(found.values())


def _marks(group: Iterable[CertificateFacts]) -> set[str]:
    return {one.fingerprint for one in group}
