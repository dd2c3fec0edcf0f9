"""`SecuritySettings`: the one switch `security`, and which files prove what; BookKeeper's keys of TLS among them.

    security=on, securityDirectory=DIR     all of it: DIR was made by `dlspark tls issue`
    DLSPARK_SECURITY=DIR                   the same for clients, the command line and Spark's tasks, by the environment
    tlsProviderFactoryClass, tlsKeyStore   as Apache BookKeeper is set up, with its meanings

A key that is given counts, and what is not given comes from the folder. `client_identity` and `server_identity` are
where all processes get their `TlsIdentity` from.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.foundation.settings import FLAG, TEXT, WHOLE, WORDS, Registry, setting, settings_of
from metadata.security.ciphers import apply_ciphers, apply_protocols
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.principals import PrincipalMapping

VARIABLE: Final = "DLSPARK_SECURITY"
"""Environment variable that names an identity folder, and switches security on for clients."""
PAGE: Final = "docs/security.md"
PROVIDERS: Final = ("org.apache.bookkeeper.tls.TLSContextFactory", "TLSContextFactory")
_STORE_TYPES: Final = ("jks", "pkcs12", "pem")


class SecurityMode(Enum):
    """Which connections are there?"""

    OFF = "off"
    """Plain ones only."""
    OPTIONAL = "optional"
    """Secured ones where the other end does that, else plain ones: the middle of a rolling change."""
    ON = "on"
    """Secured ones only."""


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """How does a process prove who it is, and whom does it believe? With the defaults nothing is proved or hidden."""

    security: str = setting(
        TEXT,
        "",
        "security",
        "`on`: TLS on every connection, and both ends prove by certificate who they are; plain connections are "
        "refused. `optional`: both kinds are taken, while a cluster is being changed over. `off`: plain connections "
        "only. Empty: off, unless tlsProviderFactoryClass or, for clients, the environment variable DLSPARK_SECURITY "
        "says otherwise",
        choices=("", "off", "optional", "on"),
        own=True,
        section="Security",
    )
    security_directory: str = setting(
        TEXT,
        "",
        "securityDirectory",
        "The folder with this process's certificate, key, authorities and revocation lists, as `dlspark tls issue` "
        "makes one. It is read again when it changes",
        own=True,
    )
    tls_provider_factory_class: str = setting(
        TEXT,
        "",
        "tlsProviderFactoryClass",
        "BookKeeper's switch: `org.apache.bookkeeper.tls.TLSContextFactory` is security=optional to a server and "
        "security=on to a client",
    )
    tls_client_authentication: bool | None = setting(
        FLAG,
        None,
        "tlsClientAuthentication",
        "To a server: demand a certificate of each client. To a client: show one. Unset: true, but false where "
        "tlsProviderFactoryClass is the switch, as in Java",
    )
    tls_certificate_path: str = setting(
        TEXT,
        "",
        "tlsCertificatePath",
        "The certificate, PEM, and behind it those that lead to an authority, if tlsKeyStoreType is PEM",
    )
    tls_key_store_type: str = setting(
        TEXT, "jks", "tlsKeyStoreType", "What tlsKeyStore is: PEM (a private key), JKS or PKCS12", choices=_STORE_TYPES
    )
    tls_key_store: str = setting(
        TEXT, "", "tlsKeyStore", "The private key, or the store that has it and its certificate"
    )
    tls_key_store_password_path: str = setting(
        TEXT,
        "",
        "tlsKeyStorePasswordPath",
        "The file with the password of tlsKeyStore, or `env:NAME`, the environment variable that has it; empty: it has "
        "none",
    )
    tls_trust_store_type: str = setting(
        TEXT, "jks", "tlsTrustStoreType", "What tlsTrustStore is: PEM, JKS or PKCS12", choices=_STORE_TYPES
    )
    tls_trust_store: str = setting(
        TEXT, "", "tlsTrustStore", "The certificates of the authorities, or of single peers, that are believed"
    )
    tls_trust_store_password_path: str = setting(
        TEXT,
        "",
        "tlsTrustStorePasswordPath",
        "The file with the password of tlsTrustStore, or `env:NAME`, the environment variable that has it; empty: it "
        "has none",
    )
    tls_revocation_lists_path: str = setting(
        TEXT,
        "",
        "tlsRevocationListsPath",
        "Revocation lists, PEM, one of each authority: certificates that they name are refused, and open connections "
        "with them are ended. Empty: revoked.pem in securityDirectory, if it is there",
        own=True,
    )
    tls_cert_files_refresh_duration_s: int = setting(
        WHOLE,
        5,
        "tlsCertFilesRefreshDurationSeconds",
        "Seconds between two looks whether these files have changed; 0: they are read at the start only",
        minimum=0,
        maximum=86_400,
    )
    tls_enabled_protocols: tuple[str, ...] = setting(
        WORDS, (), "tlsEnabledProtocols", "Of TLSv1.2 and TLSv1.3 those that are spoken; empty: both"
    )
    tls_enabled_cipher_suites: tuple[str, ...] = setting(
        WORDS,
        (),
        "tlsEnabledCipherSuites",
        "Ciphers that are used, by Java's names or OpenSSL's; empty: all that have forward secrecy and authenticated "
        "encryption",
    )
    tls_hostname_verification_enabled: bool = setting(
        FLAG,
        True,
        "tlsHostnameVerificationEnabled",
        "To a client: the server's certificate has to name the host, or the address, that it was connected to",
    )
    start_tls_timeout_s: int = setting(
        WHOLE,
        10,
        "startTLSTimeoutSecs",
        "Seconds that the change to TLS may take on a connection, until it is closed; at a storage node, from its "
        "beginning until the client has proved all that is demanded of it",
        minimum=1,
        maximum=600,
    )
    client_key_store_type: str = setting(
        TEXT,
        "",
        "clientKeyStoreType",
        "To a client, over tlsKeyStoreType; so are the other keys with client. In a storage node's file they are for "
        "the ledger client of its auto-recovery",
        choices=("", *_STORE_TYPES),
    )
    client_key_store: str = setting(TEXT, "", "clientKeyStore", "To a client, over tlsKeyStore")
    client_key_store_password_path: str = setting(
        TEXT, "", "clientKeyStorePasswordPath", "To a client, over tlsKeyStorePasswordPath"
    )
    client_trust_store_type: str = setting(
        TEXT, "", "clientTrustStoreType", "To a client, over tlsTrustStoreType", choices=("", *_STORE_TYPES)
    )
    client_trust_store: str = setting(TEXT, "", "clientTrustStore", "To a client, over tlsTrustStore")
    client_trust_store_password_path: str = setting(
        TEXT, "", "clientTrustStorePasswordPath", "To a client, over tlsTrustStorePasswordPath"
    )

    zookeeper_client_secure: bool | None = setting(
        FLAG,
        None,
        "zookeeper.client.secure",
        "Sessions with ZooKeeper are by TLS, with the same files. Unset: where security is on or optional, but not "
        "where tlsProviderFactoryClass alone is the switch, which in Java says nothing of ZooKeeper",
    )
    zk_enable_security: bool | None = setting(
        FLAG,
        None,
        "zkEnableSecurity",
        "What this process creates in ZooKeeper has a list of the identities that may use it: that of zkAclSecretPath "
        "and those of zkAclIdentities. Unset: if security=on and there are any",
    )
    zk_acl_secret_path: str = setting(
        TEXT,
        "",
        "zkAclSecretPath",
        "The file with the identity that a cluster's processes share at ZooKeeper, one line `name:password`; empty: "
        "zookeeper.secret in securityDirectory, if it is there",
        own=True,
    )
    zk_acl_identities: str = setting(
        TEXT,
        "",
        "zkAclIdentities",
        "Further identities that may use what this process creates in ZooKeeper, separated by semicolons: "
        "`x509:CN=java-1,OU=node; x509:CN=look,OU=client:r`; the letters at the end are rights (cdrwa), none means all",
        own=True,
    )
    zk_acl_world_read: bool = setting(
        FLAG,
        False,
        "zkAclWorldRead",
        "Whoever ZooKeeper lets in may read what this process creates there; it holds passwords of ledgers",
        own=True,
    )

    def __post_init__(self) -> None:
        REGISTRY.check(self)
        if self.tls_provider_factory_class and self.tls_provider_factory_class not in PROVIDERS:
            raise CallerError(
                f"tlsProviderFactoryClass={self.tls_provider_factory_class} is not known here",
                advice=f"Set {PROVIDERS[0]}, or security=on in its place",
            )
        if self.tls_enabled_protocols or self.tls_enabled_cipher_suites:
            tried = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            apply_protocols(tried, self.tls_enabled_protocols)
            apply_ciphers(tried, self.tls_enabled_cipher_suites)
        self._check_switch()

    def _check_switch(self) -> None:
        """Refuse files that would not be looked at: whoever has named them believes to be secured."""
        if not _folder_of_environment(None):
            self._refuse_unheeded(settings_of(SecuritySettings))

    def _refuse_unheeded(self, names: Iterable[str]) -> None:
        if self.security or self.tls_provider_factory_class:
            return
        known = settings_of(SecuritySettings)
        for name in names:
            info = known[name]
            if info.kind is TEXT and not info.choices and getattr(self, name):
                raise CallerError(
                    f"{info.key} is set, and nothing switches security on: connections would be plain",
                    advice="Set security=on as well, or security=off if that is meant",
                )

    def client_folder(self, environment: Mapping[str, str] | None = None) -> str:
        """Return the identity folder of a client; empty where there is none."""
        if self.security_directory or self.security or self.tls_provider_factory_class:
            return self.security_directory
        return _folder_of_environment(environment)

    def server_mode(self) -> SecurityMode:
        """Return which connections a server takes.

        Raises CallerError where files are named that a server would not look at: DLSPARK_SECURITY is for clients only,
        and so no switch of a server.
        """
        self._refuse_unheeded(
            name for name in settings_of(SecuritySettings) if name.startswith(("tls_", "security_directory"))
        )
        if self.security:
            return SecurityMode(self.security)
        return SecurityMode.OPTIONAL if self.tls_provider_factory_class else SecurityMode.OFF

    def client_mode(self, environment: Mapping[str, str] | None = None) -> SecurityMode:
        """Return which connections a client makes; `environment` is this process's, unless given."""
        if self.security:
            return SecurityMode(self.security)
        by_others = self.tls_provider_factory_class or _folder_of_environment(environment)
        return SecurityMode.ON if by_others else SecurityMode.OFF

    def server_files(self) -> TlsFiles:
        """Return the files of a server."""
        return self._files(self.security_directory)

    def client_files(self, environment: Mapping[str, str] | None = None) -> TlsFiles:
        """Return the files of a client; `environment` is this process's, unless given."""
        over: dict[str, object] = {}
        for name in settings_of(SecuritySettings):
            if name.startswith("client_") and getattr(self, name):
                over[name.replace("client_", "tls_", 1)] = getattr(self, name)
        mine: SecuritySettings = replace(self, **over) if over else self  # type: ignore[arg-type]
        files = mine._files(self.client_folder(environment))
        if not self.proves:
            return replace(files, certificate="", key="", key_password="", key_type="pem")
        return files

    @property
    def proves(self) -> bool:
        """Clients show a certificate, and servers demand one."""
        if self.tls_client_authentication is not None:
            return self.tls_client_authentication
        return bool(self.security) or not self.tls_provider_factory_class

    def _files(self, folder: str) -> TlsFiles:
        files = TlsFiles.of_folder(folder) if folder else TlsFiles()
        if self.tls_key_store:
            in_files = self.tls_key_store_type == "pem"
            files = replace(
                files,
                key=self.tls_key_store,
                key_type=self.tls_key_store_type,
                certificate=self.tls_certificate_path if in_files else "",
                key_password=self.tls_key_store_password_path,
            )
        if self.tls_trust_store:
            files = replace(
                files,
                authorities=self.tls_trust_store,
                authorities_type=self.tls_trust_store_type,
                authorities_password=self.tls_trust_store_password_path,
            )
        if self.tls_revocation_lists_path:
            files = replace(files, revoked=self.tls_revocation_lists_path, revoked_may_be_missing=False)
        return replace(
            files,
            protocols=self.tls_enabled_protocols,
            ciphers=self.tls_enabled_cipher_suites,
            peers_prove=self.proves,
            names_checked=self.tls_hostname_verification_enabled,
            reread=self.tls_cert_files_refresh_duration_s > 0,
        )


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Whom does a server let in, of those who have proved who they are?"""

    authorized_roles: tuple[str, ...] = setting(
        WORDS,
        (),
        "authorizedRoles",
        "Roles of which a client has to have one: the organisational units (OU) of its certificate, unless "
        "principalMapping says otherwise. Empty: any",
    )
    principal_mapping: str = setting(
        TEXT,
        "",
        "principalMapping",
        "How a certificate becomes a name and roles, by rules: `uri#spiffe://example\\.org/(.+)#$1#client# default`. "
        "Empty: the subject's common name and organisational units",
        own=True,
    )

    def __post_init__(self) -> None:
        ADMISSION_REGISTRY.check(self)
        PrincipalMapping(self.principal_mapping)

    def mapping(self) -> PrincipalMapping:
        """Return what makes principals of certificates."""
        return PrincipalMapping(self.principal_mapping)


def server_identity(settings: SecuritySettings, admission: AdmissionSettings | None = None) -> TlsIdentity | None:
    """Return what a server proves itself with; None: security is off. Raises IdentityError."""
    if settings.server_mode() is SecurityMode.OFF:
        return None
    identity = TlsIdentity(settings.server_files(), (admission or AdmissionSettings()).mapping())
    identity.server_context()
    return identity


def client_identity(settings: SecuritySettings, environment: Mapping[str, str] | None = None) -> TlsIdentity | None:
    """Return what a client proves itself with; None: security is off. `environment` is this process's, unless given.

    Raises IdentityError.
    """
    if settings.client_mode(environment) is SecurityMode.OFF:
        return None
    return TlsIdentity(settings.client_files(environment))


def _folder_of_environment(environment: Mapping[str, str] | None) -> str:
    return (os.environ if environment is None else environment).get(VARIABLE, "").strip()


_SAME: Final = "sessions with ZooKeeper have the files of all other connections: set {}"
_IN_FILES: Final = "passwords are in files of their own: set {}"

REFUSED_SECURITY: Final[Mapping[str, str]] = {
    "tlsProvider": "Python's library of TLS is OpenSSL in any case",
    "zookeeper.clientCnxnSocket": "it is a class of Java; zookeeper.client.secure says that sessions are by TLS",
    "zookeeper.ssl.keyStore.location": _SAME.format("securityDirectory, or tlsKeyStore"),
    "zookeeper.ssl.keyStore.password": _IN_FILES.format("tlsKeyStorePasswordPath"),
    "zookeeper.ssl.keyStore.passwordPath": _SAME.format("tlsKeyStorePasswordPath"),
    "zookeeper.ssl.keyStore.type": _SAME.format("tlsKeyStoreType"),
    "zookeeper.ssl.trustStore.location": _SAME.format("securityDirectory, or tlsTrustStore"),
    "zookeeper.ssl.trustStore.password": _IN_FILES.format("tlsTrustStorePasswordPath"),
    "zookeeper.ssl.trustStore.passwordPath": _SAME.format("tlsTrustStorePasswordPath"),
    "zookeeper.ssl.trustStore.type": _SAME.format("tlsTrustStoreType"),
    "zookeeper.ssl.protocol": _SAME.format("tlsEnabledProtocols"),
    "zookeeper.ssl.enabledProtocols": _SAME.format("tlsEnabledProtocols"),
    "zookeeper.ssl.ciphersuites": _SAME.format("tlsEnabledCipherSuites"),
    "zookeeper.ssl.hostnameVerification": _SAME.format("tlsHostnameVerificationEnabled"),
    "zookeeper.ssl.crl": "revocation lists are files here: set tlsRevocationListsPath",
    "zookeeper.ssl.ocsp": "Python's ssl asks no authority about a certificate: set tlsRevocationListsPath",
    "zookeeper.ssl.context.supplier.class": "it is a class of Java",
    "zookeeper.ssl.handshakeDetectionTimeoutMillis": "clients never wait to see what a port speaks",
    "zookeeper.sasl.client": "sessions prove themselves by certificate and zkAclSecretPath; kazoo's SASL needs a "
    "library that is not maintained, and ZooKeeper's DIGEST-MD5 would be a second password for the same lists",
}
"""BookKeeper's keys of TLS that are refused, and why nothing is to be set."""

REGISTRY: Final = Registry([SecuritySettings], CallerError, page=PAGE, refused=REFUSED_SECURITY)
ADMISSION_REGISTRY: Final = Registry([AdmissionSettings], CallerError, page=PAGE)
