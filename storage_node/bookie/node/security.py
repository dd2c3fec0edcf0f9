"""What a storage node proves and demands, by its settings, and the watch over those whom it has let in.

A proof may end while its connection lives: a certificate expires, is revoked, or its authority is believed no more; a
user is deleted. So every LOOK_S the node looks at its files and at all of its connections, and closes those whose proof
is over. Fault model: files that cannot be read leave what was read before in use (`TlsIdentity.refresh`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from metadata.foundation.tasks import end_tasks
from metadata.security.audit import NOWHERE, Noted
from metadata.security.exchange import Authenticator
from metadata.security.sasl.authenticators import SaslAuthenticator
from metadata.security.sasl.settings import check_startup_user
from metadata.security.settings import SecurityMode, server_identity
from storage_node.bookie.requests.gate import NodeSecurity, SecurityGate
from storage_node.edge import Clock
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two looks: a connection whose proof ends is closed within twice that."""
LOOKED_AT_ONCE = 50
"""Connections that are judged in one turn of the loop."""


def node_security(
    settings: BookieSettings,
    *,
    authenticators: Mapping[str, Authenticator] | None = None,
    audit: Noted = NOWHERE,
) -> NodeSecurity:
    """Return what a node's settings demand; `authenticators` take the place of those that the settings name.

    Raises BookieConfigurationError, IdentityError, or the error of a file of SASL's: it must not start.
    """
    security, admission, proofs = settings.security, settings.admission, settings.proofs
    check_startup_user(proofs.permitted_startup_users, BookieConfigurationError)
    if authenticators is None:
        authenticators = proofs.authenticators(BookieConfigurationError)
    mode = security.server_mode()
    roles = frozenset(admission.authorized_roles)
    if "certificate" in proofs.asked(BookieConfigurationError) and not roles:
        raise BookieConfigurationError(
            "bookieAuthProviderFactoryClass asks for a certificate with a role, and authorizedRoles names none",
            advice="Name the roles that are let in",
        )
    if roles and mode is SecurityMode.OFF:
        raise BookieConfigurationError(
            "authorizedRoles names roles, and without TLS nobody can show one",
            advice="Set security=on (or optional), or leave authorizedRoles out",
        )
    if roles and not security.proves:
        raise BookieConfigurationError(
            "authorizedRoles names roles, and no certificate is demanded that would show one",
            advice="Set tlsClientAuthentication=true, or leave authorizedRoles out",
        )
    if mode is SecurityMode.OFF and any(
        isinstance(one, SaslAuthenticator) and one.needs_tls for one in authenticators.values()
    ):
        raise BookieConfigurationError(
            "bookieAuthProviderFactoryClass asks for DIGEST-MD5, and security is off: nobody could enter by it",
            advice="Set security=on, or saslDigestMd5WithoutTls=true where everybody on the way is trusted",
        )
    if mode is SecurityMode.OPTIONAL:
        logger.warning("security=optional: plain connections are taken as well as secured ones")
    return NodeSecurity(
        mode,
        server_identity(security, admission),
        roles,
        authenticators,
        audit,
        security.start_tls_timeout_s,
    )


class SecurityWatch:
    """Does the proof of each connection still hold? Looks at all of them every LOOK_S.

    Args:
        security: what the node demands.
        gates: returns the gates of the connections that are open.
        clock: wall-clock time.
        refresh_s: seconds between two looks at the files; 0: they are read at the start only.
    """

    def __init__(
        self,
        security: NodeSecurity,
        gates: Callable[[], Collection[SecurityGate]],
        clock: Clock,
        *,
        refresh_s: float = LOOK_S,
    ) -> None:
        self._security = security
        self._gates = gates
        self._clock = clock
        self._refresh_s = refresh_s
        self._refreshed_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._task is not None:
            await end_tasks([self._task])
            self._task = None

    async def _run(self) -> None:
        every_s = min(LOOK_S, self._refresh_s or LOOK_S)
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.look()
            except Exception:  # the boundary: one that cannot be judged must not end the watch over all others
                logger.exception("the proofs of connections could not be looked at")

    async def look(self) -> None:
        """Read the files again where that is due, and close the connections whose proof is over."""
        identity = self._security.identity
        elapsed_s = self._clock.elapsed_s()
        if identity is not None and self._refresh_s and elapsed_s - self._refreshed_s >= self._refresh_s:
            self._refreshed_s = elapsed_s
            try:
                # Off the loop: a store of PKCS#12 takes a tenth of a second on purpose.
                await asyncio.to_thread(identity.refresh)
            except Exception:  # the boundary: no thread, say; connections are judged by what was read before
                logger.exception("changed certificates could not be looked at")
        now_s = self._clock.now_ms() / 1000
        for number, gate in enumerate(list(self._gates())):
            if number % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                reason = gate.why_no_more(now_s)
            except Exception as error:  # the boundary: one that cannot be judged goes, and all others are judged
                logger.exception("a connection's proof could not be judged")
                reason = f"the client's proof could not be judged: {error}"
            if reason is not None:
                gate.end(reason)
