"""The certificates that lead from a peer's to an authority that is believed, for libraries that verify a handshake
and know no revocation lists (gRPC).

Signatures were verified there. Which of the certificates that a peer has shown was used is not said, so whatever may
have been is judged: each one shown whose subject is the name of the issuer. A peer cannot leave out the one that it
needs, and what it adds can only refuse it. One that is shown beside a believed authority with the same name and key is
not needed, and not looked at: companies show old certificates of theirs, signed by others, for old clients.

A path that does not arrive at an authority that is believed now is refused: it was another one at the handshake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from metadata.security.certificates import CertificateFacts

MAX_SHOWN = 16
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
    anchors = list(believed)
    known = {(one.subject, one.key) for one in anchors}
    between = [one for one in shown if (one.subject, one.key) not in known]
    if len(between) > MAX_SHOWN:
        return f"it has shown more than {MAX_SHOWN} certificates beside its own"
    if (peer.subject, peer.key) in known:
        return None  # a trust store may have the certificates of single peers
    found: set[str] = set()
    arrived = False
    ahead = [peer]
    while ahead:
        below = ahead.pop()
        ends = [one for one in anchors if one.subject == below.issuer]
        above = [one for one in between if one.subject == below.issuer and one.fingerprint not in found]
        for one in (*ends, *above):
            why = objection(one)
            if why is not None:
                return f"its authority, {one.subject_text}, is not good: {why}"
        arrived = arrived or bool(ends)
        found.update(one.fingerprint for one in above)
        ahead += above
    if not arrived:
        return f"no certificate is known that leads from its authority, {peer.issuer_text}, to one that is believed"
    return None
