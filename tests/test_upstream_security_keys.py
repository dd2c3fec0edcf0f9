"""Every security key of upstream is honoured, or refused with a reason of its own, by each of our programs.

The keys are those of Apache BookKeeper 4.18 (conf/bk_server.conf, and the constants of AbstractConfiguration,
ServerConfiguration, ClientConfiguration and SaslConstants), of Apache DistributedLog's configuration, of ZooKeeper's
client (its administrator's guide), and the properties by which Java's machine is told the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlspark.core.settings.settings import PROTECTING_KEYS, Settings
from dlspark.core.settings.settings import REGISTRY as NAMESPACE
from dlspark.serving.client.settings import REGISTRY as THIN
from dlspark.serving.read_proxy.settings import REGISTRY as READ_PROXY
from dlspark.serving.write_proxy.settings import REGISTRY as WRITE_PROXY
from dlspark.serving.write_proxy.settings import read_configuration
from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.security.other_keys import SECURITY_ELSEWHERE
from metadata.security.settings import REFUSED_SECURITY
from storage_node.settings.client import REGISTRY as LEDGER_CLIENT
from storage_node.settings.files import REGISTRY as NODE

PAGES = [
    "httpServerTlsEnable",
    "httpServerKeyStorePath",
    "httpServerKeyStorePassword",
    "httpServerTrustStorePath",
    "httpServerTrustStorePassword",
]
SERVER = [
    "authorizedRoles",
    "bookieAuthProviderFactoryClass",
    "permittedStartupUsers",
    "saslJaasBookieSectionName",
    "saslJaasClientAllowedIds",
    *PAGES,
]
BOTH = [
    "tlsProviderFactoryClass",
    "tlsClientAuthentication",
    "tlsCertFilesRefreshDurationSeconds",
    "tlsEnabledCipherSuites",
    "tlsEnabledProtocols",
    "tlsKeyStoreType",
    "tlsKeyStore",
    "tlsKeyStorePasswordPath",
    "tlsTrustStoreType",
    "tlsTrustStore",
    "tlsTrustStorePasswordPath",
    "tlsCertificatePath",
    "zkEnableSecurity",
    "zookeeper.client.secure",
]
CLIENT_STORES = [
    "clientKeyStoreType",
    "clientKeyStore",
    "clientKeyStorePasswordPath",
    "clientTrustStoreType",
    "clientTrustStore",
    "clientTrustStorePasswordPath",
    "startTLSTimeoutSecs",
    "tlsHostnameVerificationEnabled",
]
CLIENT_PROOFS = [
    "clientAuthProviderFactoryClass",
    "clientRole",
    "saslJaasClientSectionName",
    "saslJaasAuditorSectionName",
]
NOWHERE = [
    "tlsProvider",
    "digestType",
    "passwd",
    "enableDigestTypeAutodetection",
    "zookeeper.clientCnxnSocket",
    "zookeeper.client.certReload",
    "zookeeper.fips-mode",
    "zookeeper.sasl.client",
    "zookeeper.sasl.clientconfig",
    "zookeeper.sasl.client.username",
    "zookeeper.sasl.client.canonicalize.hostname",
    "zookeeper.sasl.client.allowReverseDnsLookup",
    "zookeeper.server.principal",
    "zookeeper.server.realm",
    "zookeeper.ssl.keyStore.location",
    "zookeeper.ssl.keyStore.password",
    "zookeeper.ssl.keyStore.passwordPath",
    "zookeeper.ssl.keyStore.type",
    "zookeeper.ssl.trustStore.location",
    "zookeeper.ssl.trustStore.password",
    "zookeeper.ssl.trustStore.passwordPath",
    "zookeeper.ssl.trustStore.type",
    "zookeeper.ssl.protocol",
    "zookeeper.ssl.enabledProtocols",
    "zookeeper.ssl.ciphersuites",
    "zookeeper.ssl.context.supplier.class",
    "zookeeper.ssl.hostnameVerification",
    "zookeeper.ssl.clientHostnameVerification",
    "zookeeper.ssl.allowReverseDnsLookup",
    "zookeeper.ssl.crl",
    "zookeeper.ssl.ocsp",
    "zookeeper.ssl.tcnative.ocsp.stapling",
    "zookeeper.ssl.clientAuth",
    "zookeeper.ssl.authProvider",
    "zookeeper.ssl.sslProvider",
    "zookeeper.ssl.handshakeDetectionTimeoutMillis",
    "zookeeper.DigestAuthenticationProvider.digestAlg",
    "zookeeper.DigestAuthenticationProvider.superDigest",
    "java.security.auth.login.config",
    "bookkeeper.sasl.servicename",
    "java.security.krb5.conf",
    "java.security.krb5.kdc",
    "java.security.krb5.realm",
    "javax.security.auth.useSubjectCredsOnly",
    "javax.net.ssl.keyStore",
    "javax.net.ssl.keyStorePassword",
    "javax.net.ssl.keyStoreType",
    "javax.net.ssl.trustStore",
    "javax.net.ssl.trustStorePassword",
    "javax.net.ssl.trustStoreType",
]
OF_NAMESPACES = ["zkAclId", "digestPw"]
EVERY = [*SERVER, *BOTH, *CLIENT_STORES, *CLIENT_PROOFS, *NOWHERE, *OF_NAMESPACES]
PROGRAMS = {
    "storage node": (NODE, [*SERVER, *BOTH, *CLIENT_STORES, *CLIENT_PROOFS]),
    "ledger client": (LEDGER_CLIENT, [*BOTH, *CLIENT_STORES, *CLIENT_PROOFS]),
    "namespace": (NAMESPACE, OF_NAMESPACES),
    "write proxy": (WRITE_PROXY, ["authorizedRoles", *PAGES, *BOTH, *CLIENT_STORES]),
    "read proxy": (READ_PROXY, ["authorizedRoles", *PAGES, *BOTH, *CLIENT_STORES]),
    "client of proxies": (THIN, [*BOTH, *CLIENT_STORES]),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_key_is_honoured_or_refused_with_its_own_reason(program: str) -> None:
    registry, honoured = PROGRAMS[program]
    assert {key for key in EVERY if key in registry} == set(honoured)
    for key in EVERY:
        if key in honoured:
            continue
        reason = registry.reason_against(key)
        assert reason, f"{key} is answered by the nearest other key"
        with pytest.raises(DistributedLogError, match=re.escape(reason)) as caught:
            registry.find(key)
        assert "Did you mean" not in str(caught.value)


def test_a_key_of_the_ledger_client_says_how_a_namespace_writes_it() -> None:
    for key in (*BOTH, *CLIENT_STORES, *CLIENT_PROOFS):
        with pytest.raises(CallerError, match=re.escape(f"bkc.{key}")):
            Settings.from_mapping({key: "x"})


@pytest.mark.parametrize(
    "key", ["permittedStartupUsers", "bookieAuthProviderFactoryClass", "zookeeper.ssl.crl", "tlsProvider"]
)
def test_a_write_proxy_s_file_ignores_no_key_of_security(key: str, tmp_path: Path) -> None:
    """Other keys of upstream's that do nothing are warned of there: these would leave something open that was shut."""
    conf = tmp_path / "proxy.conf"
    conf.write_text(f"{key}=true\n")
    with pytest.raises(CallerError, match=re.escape(key)):
        read_configuration(conf, environment={})


def test_what_the_reasons_name_exists() -> None:
    known: list[Callable[[object], bool]] = [registry.__contains__ for registry, _ in PROGRAMS.values()]
    for key, reason in {**SECURITY_ELSEWHERE, **PROTECTING_KEYS}.items():
        for word in re.findall(r"\b(?:bkc\.)?((?:tls|sasl|scram|zk|security|digest)[A-Z]\w+)", reason):
            assert any(one(word) for one in known), (key, word)


def test_what_is_refused_everywhere_is_taken_nowhere() -> None:
    for key in REFUSED_SECURITY:
        assert not [name for name, (registry, _) in PROGRAMS.items() if key in registry], key
