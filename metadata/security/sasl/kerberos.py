"""GSSAPI (RFC 4752): Kerberos, by the library gssapi of the extra `kerberos`, which is loaded on first use.

No security layer is offered or taken: TLS is that. Both sides prove themselves (the client asks for mutual
authentication; Java's does not, and is taken too). A session ends with its ticket.

A client's steps ask a key distribution centre over the network, and so may take seconds: who drives it runs it on a
thread (`ClientAuthenticator.blocks`). A server's steps read its keytab and its replay cache only.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from types import ModuleType
from typing import Final, TypeVar

from metadata.foundation.settings import shown
from metadata.security.principals import Principal, Scheme
from metadata.security.sasl.machine import MAX_MESSAGE_BYTES, SaslError, check_size

T = TypeVar("T")

MECHANISM: Final = "GSSAPI"
_NO_LAYER: Final = 1
_OFFER: Final = bytes((_NO_LAYER, 0, 0, 0))
"""The layers that are offered, or chosen, and the largest wrapped message, of which there are none."""
_ADVICE: Final = "Install the extra: pip install 'dlspark[kerberos]' (it needs the system's Kerberos, libkrb5)"


class KerberosServer:
    """Which principal of the realm is the client?

    Args:
        keytab: the file with the service's keys; None: the system's default.
        principal: the service, `bookkeeper/host@REALM`; None: any in the keytab.
        allowed: whether a principal, as `name@REALM`, may enter.
    """

    mechanism = MECHANISM

    def __init__(
        self,
        keytab: str | None,
        principal: str | None,
        allowed: Callable[[str], bool],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        gssapi = kerberos_library()
        self._allowed = allowed
        self._clock = clock
        self._stage = 0
        self._principal: Principal | None = None
        store = {"keytab": keytab} if keytab is not None else None
        name = None
        if principal is not None:
            name = _guarded(lambda: gssapi.Name(principal, gssapi.NameType.kerberos_principal))
        # Kerberos alone: else whatever mechanism the library has (SPNEGO) is heard from those who have proved nothing.
        mechanisms = [gssapi.MechType.kerberos]
        credentials = _guarded(lambda: gssapi.Credentials(name=name, usage="accept", mechs=mechanisms, store=store))
        self._context = _guarded(lambda: gssapi.SecurityContext(creds=credentials, usage="accept"))

    @property
    def done(self) -> bool:
        """True once the client has proved itself."""
        return self._principal is not None

    @property
    def principal(self) -> Principal | None:
        """The client, once it has proved itself; it expires with its ticket."""
        return self._principal

    def step(self, message: bytes) -> bytes | None:
        """Return the next token, then the layers that are offered, then nothing. Raises SaslError."""
        stage, self._stage = self._stage, 3  # unless the step comes to its end
        check_size(message, MAX_MESSAGE_BYTES, MECHANISM)
        if stage == 0:
            token = _guarded(lambda: self._context.step(message))
            # The library keeps an error that it has a token for, and raises it here.
            if not _guarded(lambda: self._context.complete):
                self._stage = 0
                return token or b""
            if token:
                self._stage = 1
                return bytes(token)
            self._stage = 2
            return self._offer()
        if stage == 1:
            if message:
                raise SaslError("GSSAPI: a token where none was expected")
            self._stage = 2
            return self._offer()
        if stage == 2:
            self._judge(_guarded(lambda: self._context.unwrap(message)).message)
            return None
        raise SaslError("GSSAPI: a message after the exchange was over")

    def _offer(self) -> bytes:
        return bytes(_guarded(lambda: self._context.wrap(_OFFER, False)).message)

    def _judge(self, choice: bytes) -> None:
        name = str(_guarded(lambda: self._context.initiator_name))
        if len(choice) < 4 or choice[0] != _NO_LAYER:
            raise SaslError(f"GSSAPI: {name} wants a security layer, which TLS is here")
        try:
            authorized = choice[4:].decode()
        except UnicodeDecodeError as cause:
            raise SaslError("GSSAPI: a name that is not in UTF-8") from cause
        if authorized not in ("", name):
            raise SaslError(f"GSSAPI: {name} asks to act as {shown(authorized)}, which nobody may")
        if not self._allowed(name):
            raise SaslError(
                f"GSSAPI: {name} is known, and not allowed here",
                advice="The key saslJaasClientAllowedIds says by a regular expression who is",
            )
        lifetime_s: int = _guarded(lambda: self._context.lifetime)
        self._principal = Principal(name, Scheme.GSSAPI, expires_at_s=self._clock() + lifetime_s)


class KerberosClient:
    """Which principal is this, to a service of the realm?

    Args:
        service, host: of the storage node: `bookkeeper`, and the name of its host, which the realm has to know.
        principal: as whom; None: the one whose keys or ticket there are.
        keytab: the file with its keys; a ticket is fetched with them, and fetched anew when it ends.
        ticket_cache: where its ticket is, if there is no keytab; None: the system's default.
    """

    mechanism = MECHANISM

    def __init__(
        self, service: str, host: str, *, principal: str | None, keytab: str | None, ticket_cache: str | None
    ) -> None:
        gssapi = kerberos_library()
        self.name = principal or ""
        self._stage = 0
        self._done = False
        self._target = f"{service}@{host}"
        self._principal = principal
        if keytab is not None:
            # One cache in memory for each file and principal: the ticket is fetched once, not for each connection.
            cache = hashlib.sha256(f"{keytab}\0{principal}".encode()).hexdigest()
            self._store = {"client_keytab": keytab, "ccache": f"MEMORY:dlspark-{cache}"}
        else:
            self._store = {"ccache": ticket_cache} if ticket_cache is not None else {}
        self._gssapi = gssapi
        self._context: object = None

    @property
    def done(self) -> bool:
        """True once the service has proved itself and knows who this is."""
        return self._done

    def step(self, message: bytes) -> bytes | None:
        """Return the next token, and at last the choice of no layer. May take seconds. Raises SaslError."""
        stage, self._stage = self._stage, 3
        check_size(message, MAX_MESSAGE_BYTES, MECHANISM)
        if stage == 0:
            if message:
                raise SaslError("GSSAPI: the server spoke first")
            self._begin()
            return self._token(None)
        if stage == 1:
            return self._token(message)
        if stage == 2:
            return self._choose(message)
        raise SaslError("GSSAPI: a message after the exchange was over")

    def _begin(self) -> None:
        gssapi = self._gssapi
        flags = gssapi.RequirementFlag
        wanted = flags.mutual_authentication | flags.integrity | flags.replay_detection

        def context() -> object:
            name = None
            if self._principal is not None:
                name = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
            credentials = gssapi.Credentials(
                name=name, usage="initiate", mechs=[gssapi.MechType.kerberos], store=self._store or None
            )
            target = gssapi.Name(self._target, gssapi.NameType.hostbased_service)
            return gssapi.SecurityContext(
                name=target, creds=credentials, usage="initiate", flags=wanted, mech=gssapi.MechType.kerberos
            )

        self._context = _guarded(context)

    def _token(self, message: bytes | None) -> bytes:
        context = self._context
        token = _guarded(lambda: context.step(message))  # type: ignore[attr-defined]
        complete: bool = _guarded(lambda: context.complete)  # type: ignore[attr-defined]
        if complete and self._gssapi.RequirementFlag.mutual_authentication not in context.actual_flags:  # type: ignore[attr-defined]
            raise SaslError("GSSAPI: the storage node has not proved itself")
        self._stage = 2 if complete else 1
        return bytes(token or b"")

    def _choose(self, message: bytes) -> bytes:
        context = self._context
        offered: bytes = _guarded(lambda: context.unwrap(message)).message  # type: ignore[attr-defined]
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise SaslError("GSSAPI: the storage node wants a security layer, which TLS is here")
        self.name = str(_guarded(lambda: context.initiator_name))  # type: ignore[attr-defined]
        choice = _OFFER + self.name.encode()
        answer = bytes(_guarded(lambda: context.wrap(choice, False)).message)  # type: ignore[attr-defined]
        self._done = True
        return answer


def kerberos_library() -> ModuleType:
    """Return the library. Raises SaslError that names the extra where it is not installed, or lacks its own."""
    try:
        import gssapi
    except (ImportError, OSError) as cause:
        raise SaslError(f"Kerberos needs the library gssapi: {cause}", advice=_ADVICE) from cause
    library: ModuleType = gssapi
    return library


def _guarded(call: Callable[[], T]) -> T:
    """Return what the library returns; whatever it raises at a peer's bytes is a refusal."""
    try:
        return call()
    except SaslError:
        raise
    except Exception as cause:  # the boundary: a library's surprise must refuse the peer, not stop the loop
        said = str(cause).replace("\n", " ")
        raise SaslError(f"GSSAPI: {said or type(cause).__name__}") from None
