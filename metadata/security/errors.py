"""Errors of proofs: our own that cannot be used, and a peer's that is refused. None of them ever holds a secret.

CallerError
└── IdentityError       certificates, keys, stores or lists of ours that cannot be used; nothing was done
    └── NoExtraError    they need a library that is not installed
NotAppliedError
└── PeerRefusedError    the other end has not proved that it may be there; nothing was sent or taken
"""

from __future__ import annotations

from metadata.foundation.errors import CallerError, NotAppliedError


class IdentityError(CallerError):
    """Certificates, keys, stores or revocation lists of one's own cannot be used; nothing was done."""


class NoExtraError(IdentityError):
    """What is to be read or made needs a library that is not installed; nothing was done."""


class PeerRefusedError(NotAppliedError):
    """The other end has not proved who it is, or what it has proved is not good any more; nothing was sent to it."""


def no_extra_error(what: str, library: str) -> NoExtraError:
    """Return the error for a library of the extra [security] that is missing."""
    return NoExtraError(
        f"{what} needs the library {library}, which is not installed",
        advice="Install the extra: pip install 'dlspark[security]'. TLS with PEM files needs no extra",
    )
