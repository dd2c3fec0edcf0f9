"""`HttpTlsSettings`: TLS of a node's, or a proxy's, pages over HTTP, by upstream's keys."""

from __future__ import annotations

from dataclasses import dataclass, replace

from metadata.foundation.settings import EXACT, FLAG, TEXT, setting
from metadata.security.identity import TlsIdentity
from metadata.security.secrets import Secret
from metadata.security.settings import SecuritySettings
from storage_node.errors import BookieConfigurationError


@dataclass(frozen=True, slots=True)
class HttpTlsSettings:
    """How are the pages over HTTP secured? Key stores may be JKS or PKCS12; which of both shows in the file."""

    enabled: bool = setting(
        FLAG,
        False,
        "httpServerTlsEnable",
        "The pages are served by HTTPS, and each client, probes among them, has to show a certificate, as in "
        "BookKeeper. Without stores of its own (httpServerKeyStorePath) the certificate of the process is shown",
        section="TLS for HTTP",
    )
    key_store_path: str = setting(
        TEXT, "", "httpServerKeyStorePath", "The store with the key and certificate, for HTTP"
    )
    key_store_password: str = setting(
        EXACT, "", "httpServerKeyStorePassword", "The password of httpServerKeyStorePath", secret=True
    )
    trust_store_path: str = setting(
        TEXT, "", "httpServerTrustStorePath", "The store with the authorities that are believed, for HTTP"
    )
    trust_store_password: str = setting(
        EXACT,
        "",
        "httpServerTrustStorePassword",
        "The password of httpServerTrustStorePath; empty: that of httpServerKeyStorePassword",
        secret=True,
    )

    def __post_init__(self) -> None:
        if not self.enabled and (self.key_store_path or self.trust_store_path):
            raise BookieConfigurationError(
                "a store for HTTP is set, and nothing switches its TLS on: the pages would be plain",
                advice="Set httpServerTlsEnable=true as well, or leave the stores out",
            )

    def identity(self, process: SecuritySettings) -> TlsIdentity | None:
        """Return what the pages prove themselves with, by default as the process does; None: nothing.

        Raises BookieConfigurationError, IdentityError.
        """
        if not self.enabled:
            return None
        files = replace(process.server_files(), peers_prove=True)
        if self.key_store_path:
            secret = Secret(self.key_store_password)
            files = replace(
                files, certificate="", key=self.key_store_path, key_type="jks", key_password="", key_secret=secret
            )
        if self.trust_store_path:
            secret = Secret(self.trust_store_password or self.key_store_password)
            files = replace(
                files,
                authorities=self.trust_store_path,
                authorities_type="jks",
                authorities_password="",
                authorities_secret=secret,
            )
        if not files.key or not files.authorities:
            raise BookieConfigurationError(
                "httpServerTlsEnable=true, and there is no certificate to show, or no authority to believe",
                advice="Set httpServerKeyStorePath and httpServerTrustStorePath, or securityDirectory",
            )
        return TlsIdentity(files)
