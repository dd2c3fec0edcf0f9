"""Which versions of TLS, and which ciphers: what `tlsEnabledProtocols` and `tlsEnabledCipherSuites` mean to OpenSSL.

Names are Java's or OpenSSL's. A list that OpenSSL cannot honour exactly is an error: a cipher that was left out must
not be used all the same. Ciphers of TLS 1.3 cannot be chosen one by one (Python gives no way to), so a list has all of
them or none; with none, TLS 1.3 is not spoken.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

from metadata.security.errors import IdentityError

_VERSIONS: Final = {"TLSV1.2": ssl.TLSVersion.TLSv1_2, "TLSV1.3": ssl.TLSVersion.TLSv1_3}
_NEWEST: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_SUITES: Final = {
    f"TLS_{key}_WITH_{cipher}_{digest}": f"{key.replace('_', '-')}-{name}"
    for key in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for cipher, digest, name in (
        ("AES_256_GCM", "SHA384", "AES256-GCM-SHA384"),
        ("AES_128_GCM", "SHA256", "AES128-GCM-SHA256"),
        ("CHACHA20_POLY1305", "SHA256", "CHACHA20-POLY1305"),
    )
}
"""Java's names (IANA's) of what TLS 1.2 has with forward secrecy and authenticated encryption, and OpenSSL's."""


def apply_protocols(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Let a context speak these versions; none: TLS 1.2 and 1.3. Raises IdentityError."""
    versions = {_version(name) for name in names} or set(_VERSIONS.values())
    context.minimum_version = min(versions)
    context.maximum_version = max(versions)


def apply_ciphers(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Let a context use these ciphers; none: those with forward secrecy and authenticated encryption.

    Raises IdentityError for one that is not known, or not good enough, and for a list that cannot be honoured.
    """
    newest = [name for name in names if name in _NEWEST]
    older = [_suite(name) for name in names if name not in _NEWEST] if names else list(_SUITES.values())
    if newest and len(set(newest)) != len(_NEWEST):
        raise IdentityError(
            f"tlsEnabledCipherSuites has {', '.join(newest)}: the ciphers of TLS 1.3 cannot be chosen one by one here",
            advice=f"List all of {', '.join(_NEWEST)}, or none (then TLS 1.3 is not spoken)",
        )
    if names and not newest:
        _narrow(context, context.minimum_version, ssl.TLSVersion.TLSv1_2)
    if not older:
        _narrow(context, ssl.TLSVersion.TLSv1_3, context.maximum_version)
        return
    try:
        context.set_ciphers(":".join(dict.fromkeys(older)))
    except ssl.SSLError as error:
        raise IdentityError(
            "this OpenSSL has none of the ciphers in tlsEnabledCipherSuites", advice="Leave the key out"
        ) from error


def _narrow(context: ssl.SSLContext, least: ssl.TLSVersion, most: ssl.TLSVersion) -> None:
    if least > most:
        raise IdentityError(
            "tlsEnabledProtocols and tlsEnabledCipherSuites leave nothing that both ends could speak",
            advice="List ciphers of the versions that are enabled, or leave one of the keys out",
        )
    context.minimum_version, context.maximum_version = least, most


def _version(name: str) -> ssl.TLSVersion:
    found = _VERSIONS.get(name.strip().upper())
    if found is None:
        raise IdentityError(
            f"tlsEnabledProtocols has {name!r}", advice="TLSv1.2 and TLSv1.3 are spoken; older ones are not safe"
        )
    return found


def _suite(name: str) -> str:
    found = name if name in _SUITES.values() else _SUITES.get(name)
    if found is None:
        raise IdentityError(
            f"tlsEnabledCipherSuites has {name!r}, which is not known here or not good enough",
            advice=f"Known are {', '.join((*_NEWEST, *_SUITES))}",
        )
    return found
