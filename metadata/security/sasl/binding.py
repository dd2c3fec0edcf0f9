"""Channel bindings: bytes that both ends of one TLS connection know, and that no other connection has.

A proof that takes them in is worth nothing on another connection, so who sits in the middle of two cannot pass it on.
Python's `ssl` gives neither the exporter of TLS 1.3 (RFC 9266) nor, there, `tls-unique`; so `tls-server-end-point`
(RFC 5929) is used, the digest of the server's certificate, which holds in TLS 1.2 and 1.3 alike.
"""

from __future__ import annotations

from typing import Final

from metadata.security.sasl.machine import SaslError

END_POINT: Final = "tls-server-end-point"
_ADVICE: Final = "Install the extra: pip install 'dlspark[security]'"


def server_end_point(certificate: bytes) -> bytes:
    """Return the binding of a server's certificate (DER): its digest by the hash of its signature, SHA-256 at least.

    A client gives the certificate that it was shown, a server the one that it shows on this very connection, which
    after a rotation is not the one on its disk. Raises SaslError: without the extra `security`, and for a certificate
    whose signature names no hash (Ed25519), for which the RFC defines no binding.
    """
    try:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes
    except ImportError as cause:
        raise SaslError("a channel binding needs the library cryptography", advice=_ADVICE) from cause
    try:
        loaded = x509.load_der_x509_certificate(certificate)
        algorithm = loaded.signature_hash_algorithm
    except (ValueError, UnsupportedAlgorithm) as cause:
        raise SaslError(f"the server's certificate has no channel binding: {cause}") from cause
    if algorithm is None:
        raise SaslError(
            "the server's certificate has no channel binding: its signature names no hash",
            advice="Issue it with ECDSA or RSA, or use the certificates themselves for authentication",
        )
    if isinstance(algorithm, (hashes.MD5, hashes.SHA1)):
        algorithm = hashes.SHA256()
    digest = hashes.Hash(algorithm)
    digest.update(certificate)
    return digest.finalize()
