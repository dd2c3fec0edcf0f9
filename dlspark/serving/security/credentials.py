"""`ClientCredentials`: what a client shows proxies: a certificate, a token, or both; and whom it believes.

A token comes from a file (`tokenFile`, or the variable DLSPARK_TOKEN_FILE), which whoever renews it replaces, or from
the variable DLSPARK_TOKEN. Files are looked at again every LOOK_S; what cannot be read then leaves the last one in use,
which the proxy refuses once it has expired. Neither certificate nor token is ever sent without TLS.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from dlspark.errors import SettingsError
from metadata.foundation.errors import CallerError
from metadata.security.secrets import Secret, secret_from_environment, secret_from_file
from metadata.security.settings import SecurityMode, SecuritySettings, client_identity

_LOG: Final = logging.getLogger(__name__)

TOKEN_VARIABLE: Final = "DLSPARK_TOKEN"
TOKEN_FILE_VARIABLE: Final = "DLSPARK_TOKEN_FILE"
LOOK_S: Final = 2.0
"""The interval at which files are looked at again."""


class ClientIdentity(Protocol):
    """Whom does a client believe, and what does it show? `TlsIdentity`."""

    generation: int
    """Goes up when files have changed."""

    def client_context(self) -> ssl.SSLContext:
        """Return the context of connections that are made from now on."""
        ...

    def refresh(self) -> bool:
        """Read files that have changed."""
        ...


class ClientCredentials:
    """What does this client show a proxy now? For one loop.

    Args:
        identity: certificates.
        token_file: a file with a token; None: there is none.
        token: the token, where it is in no file.
    """

    def __init__(
        self,
        identity: ClientIdentity,
        token_file: str | None = None,
        token: Secret | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the token. Raises SettingsError where its file cannot be read."""
        self._identity = identity
        self._token_file = token_file
        self._token = secret_from_file(token_file, SettingsError) if token_file is not None else token
        self._now = now
        self._look_at = now() + LOOK_S
        self._failed = False

    @property
    def generation(self) -> int:
        """The number of the certificates; a connection that was made with older ones shows the old ones."""
        self._look()
        return self._identity.generation

    def context(self) -> ssl.SSLContext:
        """Return how a connection is secured that is made now."""
        self._look()
        return self._identity.client_context()

    @property
    def token(self) -> Secret | None:
        """The token; None where there is none, and the certificate alone proves who the client is."""
        self._look()
        return self._token

    def show(self, token: Secret) -> None:
        """Show this token from now on, of the same principal: open connections show it within LOOK_S."""
        self._token = token

    def _look(self) -> None:
        now = self._now()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        self._identity.refresh()
        if self._token_file is None:
            return
        try:
            self._token = secret_from_file(self._token_file, SettingsError)
            self._failed = False
        except SettingsError as error:
            if not self._failed:
                _LOG.warning("the token cannot be read again, the last one stays in use: %s", error)
            self._failed = True


def client_credentials(
    settings: SecuritySettings, token_file: str = "", environment: Mapping[str, str] | None = None
) -> ClientCredentials | None:
    """Return what a client shows proxies; None where security is off.

    Args:
        token_file: over the environment's variables.
        environment: this process's, unless given.

    Raises SettingsError: for a token without TLS, and where something cannot be read.
    """
    environment = os.environ if environment is None else environment
    named = token_file or environment.get(TOKEN_FILE_VARIABLE) or None
    try:
        if settings.client_mode(environment) is SecurityMode.OFF:
            if token_file:
                raise SettingsError(
                    "tokenFile is set, and security is off: the token would be known to whoever is on its way",
                    advice="Set security=on, and securityDirectory or tlsTrustStore",
                )
            return None
        identity = client_identity(settings, environment)
    except SettingsError:
        raise
    except CallerError as error:
        raise SettingsError(error.message, advice=error.advice, path=error.path) from error
    if identity is None:
        return None
    token = None
    if named is None and TOKEN_VARIABLE in environment:
        token = secret_from_environment(TOKEN_VARIABLE, SettingsError, environment)
    return ClientCredentials(identity, named, token)
