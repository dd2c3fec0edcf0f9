"""TLS and proofs for gRPC's server: its certificates as they change, and who makes a call.

gRPC makes its own TLS, and knows neither lists of revoked certificates, nor certificates that expire while a connection
lives. It does say which certificates a client has shown beside its own, and so the whole way to an authority is judged
here (`certificate_paths`); where it says none, the client's own has to be signed by an authority that is believed. So a
call is judged as a connection of frames is (`Authentication`): by the certificate of its connection and by the token in
its metadata (`authorization: Bearer ...`), when it begins and, where it goes on for long, every LOOK_S.

| | under TLS |
|---|---|
| `tlsClientAuthentication` (the default) | no connection without a certificate; a token may narrow what it proves |
| without it | gRPC asks for no certificate: a token proves who the client is |
| health | open to whoever could connect: balancers have no token |
| reflection, and everything else | to who has proved who they are |

A call that is refused, or whose proof ends, ends with UNAUTHENTICATED.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

import grpc

from dlspark.serving.security.authentication import Authentication, PeerProof
from metadata.foundation.errors import CallerError
from metadata.security.certificates import pem_blocks
from metadata.security.errors import no_extra_error
from metadata.security.identity import TlsMaterial
from metadata.security.proofs import NotAuthenticatedError

NO_PORT: Final = -1
LOOK_S: Final = 2.0
"""The interval at which the proof of a long call is looked at."""
HEALTH: Final = "/grpc.health.v1.Health/"
BEARER: Final = "bearer "
PROOF: Final[ContextVar[PeerProof | None]] = ContextVar("PROOF", default=None)
"""What has been proved of the call that is handled; None where nothing is to be proved."""


class CallOfPeer(Protocol):
    """A call of gRPC, as far as it says who makes it."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return keys and values that the client sends with the call."""
        ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what gRPC knows of the connection."""
        ...


@dataclass(frozen=True, slots=True)
class GrpcTls:
    """How does gRPC speak TLS, and what must its clients prove?"""

    authentication: Authentication
    port: int = NO_PORT
    """A port for TLS beside the other one; NO_PORT: none."""
    proves: bool = True
    """Clients must have a certificate."""

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a port is opened with: every new connection gets the certificates of its moment."""
        identity = self.authentication.identity
        held = (identity.generation, _configuration(identity.material))

        def current() -> grpc.ServerCertificateConfiguration | None:
            # Called from threads of gRPC's, once for each handshake; None keeps the one before.
            nonlocal held
            generation = identity.generation
            if generation == held[0]:
                return None
            held = (generation, _configuration(identity.material))
            return held[1]

        return grpc.dynamic_ssl_server_credentials(held[1], current, self.proves)


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(_plain_key(material), material.chain)], material.authorities)


def _plain_key(material: TlsMaterial) -> bytes:
    """Return the key as gRPC takes it: not encrypted, and in memory alone. Raises CallerError."""
    if material.key_password is None:
        return material.key
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise no_extra_error("gRPC with an encrypted key", "cryptography") from error
    try:
        key = serialization.load_pem_private_key(material.key, material.key_password)
    except (ValueError, TypeError):
        raise CallerError("the private key cannot be decrypted for gRPC") from None
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def proof_of_call(authentication: Authentication, call: CallOfPeer, peer: str, method: str) -> PeerProof:
    """Return what has been proved of a call that begins. Raises NotAuthenticatedError."""
    known = call.auth_context()
    secured = any(one == b"ssl" for one in known.get("transport_security_type", ()))
    certificates = list(known.get("x509_pem_cert", ())) if secured else []
    try:
        certificate = ssl.PEM_cert_to_DER_cert(certificates[0].decode("ascii")) if certificates else None
        shown = tuple(one.body for text in known.get("x509_pem_cert_chain", ()) for one in pem_blocks(text))
    except ValueError:
        raise authentication.refused(peer, "its certificates cannot be read") from None
    proof = authentication.arrived(peer, certificate, secured=secured, shown=shown)
    if method.startswith(HEALTH):
        return proof
    tokens = [value for key, value in call.invocation_metadata() or () if key == "authorization"]
    if len(tokens) > 1:
        raise authentication.refused(peer, "the call has more than one `authorization`")
    if tokens:
        said = tokens[0] if isinstance(tokens[0], str) else tokens[0].decode("latin-1")
        if not said.lower().startswith(BEARER):
            raise authentication.refused(peer, "its `authorization` is not that of a bearer of a token")
        proof = authentication.with_token(peer, proof, said[len(BEARER) :].strip())
    why = authentication.objection(proof)
    if why is not None:
        raise authentication.refused(peer, why, proof=proof)
    authentication.called(peer, proof)
    return proof


async def proof_over(authentication: Authentication, proof: PeerProof, peer: str) -> NotAuthenticatedError:
    """Wait until a proof holds no longer; return the error of its call."""
    while True:
        await asyncio.sleep(LOOK_S)
        why = authentication.objection(proof)
        if why is not None:
            return authentication.refused(peer, f"the session has ended: {why}", proof=proof)
