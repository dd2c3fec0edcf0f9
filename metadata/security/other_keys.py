"""Upstream's security keys where they are not honoured: each is refused with what to set instead, and is never taken
for a misspelt key of another meaning. Whoever sets one believes to be protected by it.

A registry of settings knows some of these keys itself; then that counts, and what is said here does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from metadata.security.settings import REFUSED_SECURITY

_NODE: Final = "it is a storage node's: set it in the node's file, for dlspark bookie"
_PAGES: Final = "it is for the pages of storage nodes and of proxies, in their files"
_SERVERS: Final = "it is a server's: a storage node's or proxy's own file says whom it lets in"
_CLIENT: Final = (
    "it is a ledger client's: bkc.{key} in a namespace's settings (DLSPARK_CONF), and in a write proxy's file. Clients "
    "of proxies prove themselves by a certificate or a token"
)
_LEDGER: Final = "each ledger has its own: given when it is created (digestPw of a namespace), read from its metadata"
_NAMESPACE: Final = "it is a namespace's: set it in the settings of the programs that open it, and of proxies"
_PROPERTY: Final = "it is a property of Java's machine; here it is {instead}"
_STORES: Final = "securityDirectory, or {} for a file of another place"
_ZOOKEEPER_SASL: Final = REFUSED_SECURITY["zookeeper.sasl.client"]
_ZOOKEEPER_SERVER: Final = "it is a ZooKeeper server's: set it in zoo.cfg, or for that server's Java"

SECURITY_ELSEWHERE: Final[Mapping[str, str]] = {
    **REFUSED_SECURITY,
    **dict.fromkeys(
        (
            "bookieAuthProviderFactoryClass",
            "permittedStartupUsers",
            "saslJaasBookieSectionName",
            "saslJaasClientAllowedIds",
            "scramUsersFile",
        ),
        _NODE,
    ),
    **dict.fromkeys(
        (
            "httpServerTlsEnable",
            "httpServerKeyStorePath",
            "httpServerKeyStorePassword",
            "httpServerTrustStorePath",
            "httpServerTrustStorePassword",
        ),
        _PAGES,
    ),
    **dict.fromkeys(("authorizedRoles", "principalMapping"), _SERVERS),
    **{
        key: _CLIENT.format(key=key)
        for key in (
            "clientAuthProviderFactoryClass",
            "clientDemandsAuthentication",
            "clientRole",
            "saslDigestMd5WithoutTls",
            "saslJaasAuditorSectionName",
            "saslJaasClientSectionName",
            "saslJaasConfigurationFile",
            "saslKerberosServiceName",
            "scramPasswordFile",
            "scramUser",
        )
    },
    **dict.fromkeys(("digestType", "passwd"), _LEDGER),
    "enableDigestTypeAutodetection": "always so here",
    **dict.fromkeys(("digestPw", "zkAclId"), _NAMESPACE),
    "java.security.auth.login.config": _PROPERTY.format(instead="saslJaasConfigurationFile"),
    "bookkeeper.sasl.servicename": _PROPERTY.format(instead="saslKerberosServiceName"),
    "javax.net.ssl.keyStore": _PROPERTY.format(instead=_STORES.format("tlsKeyStore")),
    "javax.net.ssl.keyStorePassword": _PROPERTY.format(instead="tlsKeyStorePasswordPath, which names a file"),
    "javax.net.ssl.keyStoreType": _PROPERTY.format(instead="tlsKeyStoreType"),
    "javax.net.ssl.trustStore": _PROPERTY.format(instead=_STORES.format("tlsTrustStore")),
    "javax.net.ssl.trustStorePassword": _PROPERTY.format(instead="tlsTrustStorePasswordPath, which names a file"),
    "javax.net.ssl.trustStoreType": _PROPERTY.format(instead="tlsTrustStoreType"),
    **dict.fromkeys(
        (
            "java.security.krb5.conf",
            "java.security.krb5.kdc",
            "java.security.krb5.realm",
            "javax.security.auth.useSubjectCredsOnly",
        ),
        _PROPERTY.format(instead="krb5.conf of the system, or the variable KRB5_CONFIG"),
    ),
    **dict.fromkeys(
        (
            "zookeeper.sasl.client.allowReverseDnsLookup",
            "zookeeper.sasl.client.canonicalize.hostname",
            "zookeeper.sasl.client.username",
            "zookeeper.sasl.clientconfig",
            "zookeeper.server.principal",
            "zookeeper.server.realm",
        ),
        _ZOOKEEPER_SASL,
    ),
    "zookeeper.client.certReload": "files are always looked at again: see tlsCertFilesRefreshDurationSeconds",
    "zookeeper.fips-mode": "OpenSSL of the system decides that; names of servers are checked in any case",
    "zookeeper.ssl.allowReverseDnsLookup": "a server's name is the one that stands in the list of servers",
    "zookeeper.ssl.clientHostnameVerification": _ZOOKEEPER_SERVER,
    "zookeeper.ssl.authProvider": _ZOOKEEPER_SERVER,
    "zookeeper.ssl.clientAuth": _ZOOKEEPER_SERVER,
    "zookeeper.ssl.sslProvider": "Python's library of TLS is OpenSSL in any case",
    "zookeeper.ssl.tcnative.ocsp.stapling": REFUSED_SECURITY["zookeeper.ssl.ocsp"],
    "zookeeper.DigestAuthenticationProvider.digestAlg": _ZOOKEEPER_SERVER,
    "zookeeper.DigestAuthenticationProvider.superDigest": _ZOOKEEPER_SERVER,
}
"""By key: why it is not taken here, and what is, in the settings of a program that does not have it."""
