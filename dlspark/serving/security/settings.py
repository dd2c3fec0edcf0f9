"""`ProxySecurity`: all that a proxy of either kind may be set to about whom it takes, and how it asks other proxies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dlspark.errors import SettingsError
from dlspark.serving.security.authentication import PROXY_ROLE, Authentication
from dlspark.serving.security.credentials import ClientCredentials
from dlspark.serving.security.tokens import TokenSettings
from metadata.foundation.errors import CallerError
from metadata.foundation.settings import WHOLE, setting
from metadata.security.audit import NOWHERE, Noted
from metadata.security.identity import TlsIdentity
from metadata.security.settings import (
    AdmissionSettings,
    SecurityMode,
    SecuritySettings,
    client_identity,
    server_identity,
)
from storage_node.settings.http import HttpTlsSettings

NO_PORT: Final = -1


@dataclass(frozen=True, slots=True)
class GrpcTlsSettings:
    """Where does a proxy speak gRPC under TLS?"""

    grpc_tls_port: int = setting(
        WHOLE,
        NO_PORT,
        "grpcTlsPort",
        "The port for gRPC under TLS beside the plain one, with security=optional, which needs it: gRPC takes only one "
        "kind at a port. -1: there is none. With security=on the port for gRPC is TLS's, and this one as well",
        minimum=NO_PORT,
        maximum=65535,
        own=True,
        section="Security",
    )


SECURITY_CLASSES: Final = (SecuritySettings, AdmissionSettings, GrpcTlsSettings, TokenSettings, HttpTlsSettings)
"""The dataclasses whose keys a proxy's registry has besides its own."""


@dataclass(frozen=True, slots=True)
class ProxySecurity:
    """Whom does a proxy take, and what does it show other proxies?"""

    tls: SecuritySettings = field(default_factory=SecuritySettings)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    grpc: GrpcTlsSettings = field(default_factory=GrpcTlsSettings)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    pages: HttpTlsSettings = field(default_factory=HttpTlsSettings)

    def changed(self, read: Mapping[type, Mapping[str, object]]) -> ProxySecurity:
        """Return the same with what a registry has read. Raises SettingsError for what contradicts itself."""
        found = self
        for name, kind in zip(("tls", "admission", "grpc", "tokens", "pages"), SECURITY_CLASSES, strict=True):
            try:
                if kind in read:
                    found = replace(found, **{name: replace(getattr(found, name), **read[kind])})
            except SettingsError:
                raise
            except CallerError as error:
                raise SettingsError(error.message, advice=error.advice) from error
        found.check()
        return found

    @property
    def for_namespace(self) -> dict[str, str]:
        """The switch as the log library has it, for what this process asks of ZooKeeper and of storage nodes."""
        given = {"security": self.tls.security, "securityDirectory": self.tls.security_directory}
        return {key: value for key, value in given.items() if value}

    def check(self) -> None:
        """Raise SettingsError for what contradicts itself."""
        if self.tokens.token_keys and self.mode is SecurityMode.OFF:
            raise SettingsError(
                "tokenKeys is set, and security is off: tokens would be known to whoever is on their way",
                advice="Set security=on and securityDirectory",
            )
        if self.grpc.grpc_tls_port != NO_PORT and self.mode is SecurityMode.OFF:
            raise SettingsError("grpcTlsPort is set, and security is off", advice="Set security=on, or leave it out")
        if self.tokens.token_keys:
            self.tokens.algorithms()
            self.tokens.rules()

    @property
    def mode(self) -> SecurityMode:
        """Which connections are taken."""
        return self.tls.server_mode()

    def authentication(self, audit: Noted = NOWHERE) -> Authentication | None:
        """Return what clients must prove, with certificates and keys read; None where security is off. It may block.

        Raises SettingsError: the proxy does not start then.
        """
        self.check()
        try:
            identity = server_identity(self.tls, self.admission)
        except SettingsError:
            raise
        except CallerError as error:
            raise SettingsError(error.message, advice=error.advice, path=error.path) from error
        if identity is None:
            return None
        return Authentication(
            identity,
            self.tokens.verifier(),
            plain_too=self.mode is SecurityMode.OPTIONAL,
            # Other proxies, which hand logs over, must always come in: what they may do, their role says besides.
            roles=frozenset((*self.admission.authorized_roles, PROXY_ROLE) if self.admission.authorized_roles else ()),
            audit=audit,
        )

    def for_pages(self) -> TlsIdentity | None:
        """Return by what the page is served, and other proxies' pages are asked; None: in plain. It may block. Raises
        SettingsError: the proxy does not start then."""
        try:
            return self.pages.identity(self.tls)
        except CallerError as error:
            raise SettingsError(error.message, advice=error.advice, path=error.path) from error

    def for_peers(self) -> ClientCredentials | None:
        """Return what this proxy shows other proxies: its own certificate; None where security is off. It may block.
        Raises SettingsError."""
        if self.mode is SecurityMode.OFF:
            return None
        identity: TlsIdentity | None
        try:
            # With its own certificate, whether or not it demands one of clients.
            identity = client_identity(replace(self.tls, tls_client_authentication=True), {})
        except CallerError as error:
            raise SettingsError(error.message, advice=error.advice, path=error.path) from error
        return ClientCredentials(identity) if identity is not None else None
