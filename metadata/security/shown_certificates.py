"""The certificates that a peer has shown beside its own, so that an authority in between that is revoked later ends
connections that are open.

Python says them from 3.13 on. 3.10 to 3.12 have the same function one object further in, under a private name, and this
is the only place that uses it. Where it is missing, or gives anything else than it should, what lies between is not
known: then the peer's own certificate alone is judged, as the handshake has verified the rest. The log says so once.
"""

from __future__ import annotations

import logging
import ssl
from functools import lru_cache
from typing import Final

logger = logging.getLogger(__name__)

_DER: Final = 2
"""`_ssl.ENCODING_DER`."""


def shown_beside(tls: ssl.SSLObject) -> tuple[bytes, ...] | None:
    """Return what the peer has shown beside its own certificate (DER), in its order; None: that is not known."""
    own = tls.getpeercert(True)
    if own is None:
        return None
    try:
        if hasattr(tls, "get_unverified_chain"):
            chain = [bytes(one) for one in tls.get_unverified_chain()]
        else:
            inner = tls._sslobj  # type: ignore[attr-defined]
            chain = [bytes(one.public_bytes(_DER)) for one in inner.get_unverified_chain() or ()]
    except (AttributeError, TypeError, ValueError) as error:
        _warn_once(f"this Python does not say it ({error})")
        return None
    if not chain:
        return None  # a session of TLS 1.2 that was taken up again may have it no more
    if chain[0] != own:
        _warn_once("this Python says something else")
        return None
    return tuple(chain[1:])


@lru_cache(maxsize=2)
def _warn_once(why: str) -> None:
    logger.warning("which certificates a peer shows beside its own is not known here: %s", why)
