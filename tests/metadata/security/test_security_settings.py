"""One switch, BookKeeper's keys under it, and the environment for clients: which files are read, and by whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.security.handshakes import shake_hands
from helpers.security.minting import MintedAuthority

from dlspark.core.settings.settings import Settings
from dlspark.errors import SettingsError
from metadata.foundation.errors import CallerError
from metadata.security.errors import IdentityError, PeerRefusedError
from metadata.security.identity import TlsFiles
from metadata.security.settings import (
    VARIABLE,
    AdmissionSettings,
    SecurityMode,
    SecuritySettings,
    client_identity,
    server_identity,
)
from storage_node.errors import BookieConfigurationError
from storage_node.settings.client import ClientSettings
from storage_node.settings.files import NodeFile

JAVA = "org.apache.bookkeeper.tls.TLSContextFactory"
NODE = {"journalDirectories": "/j", "ledgerDirectories": "/l"}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_with_the_defaults_nothing_is_secured() -> None:
    settings = SecuritySettings()
    assert settings.server_mode() is settings.client_mode() is SecurityMode.OFF
    assert server_identity(settings) is client_identity(settings) is None


@pytest.mark.parametrize("mode", ["optional", "on"])
def test_the_switch_and_a_folder_are_all_that_is_needed(tmp_path: Path, mode: str) -> None:
    folder = MintedAuthority().folder(tmp_path / "node", "node-1", hosts=["localhost"], roles=["node"])
    settings = SecuritySettings(security=mode, security_directory=str(folder))
    assert settings.server_mode() is settings.client_mode() is SecurityMode(mode)
    server, client = server_identity(settings), client_identity(settings)
    assert server is not None
    assert client is not None
    ends = shake_hands(server.server_context(), client.client_context())
    assert server.principal(ends.server).roles == {"node"}


def test_the_environment_secures_clients_and_no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = MintedAuthority().folder(tmp_path / "client", "writer")
    monkeypatch.setenv(VARIABLE, str(folder))
    settings = SecuritySettings()
    assert settings.client_mode() is SecurityMode.ON
    assert settings.server_mode() is SecurityMode.OFF
    identity = client_identity(settings)
    assert identity is not None
    assert identity.files == TlsFiles.of_folder(folder)
    assert client_identity(SecuritySettings(security="off")) is None, "what is given counts"
    assert settings.client_mode({}) is SecurityMode.OFF


def test_java_s_switch_means_what_it_means_in_java() -> None:
    settings = SecuritySettings(tls_provider_factory_class=JAVA, tls_key_store="/k.jks", tls_trust_store="/t.jks")
    assert (settings.server_mode(), settings.client_mode()) == (SecurityMode.OPTIONAL, SecurityMode.ON)
    assert not settings.server_files().peers_prove
    assert settings.client_files().key == ""
    proving = replace(settings, tls_client_authentication=True)
    assert proving.server_files().peers_prove
    assert (proving.client_files().key, proving.client_files().key_type) == ("/k.jks", "jks")


def test_a_client_has_stores_of_its_own_where_they_are_named() -> None:
    settings = SecuritySettings(
        security="on",
        security_directory="/id",
        client_key_store="/c.p12",
        client_key_store_type="pkcs12",
        client_key_store_password_path="/c.pw",
    )
    assert settings.server_files().key == "/id/key.pem"
    files = settings.client_files()
    assert (files.key, files.key_type, files.key_password, files.certificate) == ("/c.p12", "pkcs12", "/c.pw", "")
    assert files.authorities == "/id/authorities.pem"


def test_named_files_are_over_those_of_the_folder() -> None:
    settings = SecuritySettings(
        security="on",
        security_directory="/id",
        tls_trust_store="/other.pem",
        tls_trust_store_type="pem",
        tls_revocation_lists_path="/lists.pem",
        tls_hostname_verification_enabled=False,
        tls_enabled_protocols=("TLSv1.3",),
    )
    files = settings.server_files()
    assert (files.certificate, files.authorities, files.revoked) == ("/id/certificate.pem", "/other.pem", "/lists.pem")
    assert not files.revoked_may_be_missing
    assert (files.names_checked, files.protocols) == (False, ("TLSv1.3",))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"securityDirectory": "/id"}, "nothing switches security on"),
        ({"tlsKeyStore": "/k"}, "nothing switches security on"),
        ({"clientTrustStore": "/k"}, "nothing switches security on"),
        ({"security": "yes"}, "not one of off, optional, on"),
        ({"tlsProviderFactoryClass": "com.example.Mine"}, "not known here"),
        ({"tlsKeyStoreType": "BCFKS"}, "not one of jks, pkcs12, pem"),
        ({"security": "on", "tlsEnabledProtocols": "TLSv1"}, "TLSv1"),
        ({"security": "on", "tlsEnabledCipherSuites": "RC4"}, "RC4"),
        ({"tlsProvider": "JDK"}, "OpenSSL"),
    ],
)
def test_what_cannot_be_honoured_is_refused_everywhere(given: dict[str, str], reason: str) -> None:
    with pytest.raises(CallerError, match=reason):
        ClientSettings.from_mapping(given)
    with pytest.raises(BookieConfigurationError, match=reason):
        NodeFile({**NODE, **given}).bookie()
    with pytest.raises(SettingsError, match=reason):
        Settings.from_mapping({f"bkc.{key}": value for key, value in given.items()})


def test_security_without_files_is_refused_when_it_is_to_begin() -> None:
    with pytest.raises(IdentityError, match="no authorities are named"):
        client_identity(SecuritySettings(security="on"))
    with pytest.raises(IdentityError):
        server_identity(SecuritySettings(security="optional"))


def test_a_server_without_a_certificate_does_not_start(tmp_path: Path) -> None:
    folder = MintedAuthority().folder(tmp_path / "client", "writer")
    settings = SecuritySettings(
        security="on", tls_trust_store=str(folder / "authorities.pem"), tls_trust_store_type="pem"
    )
    assert client_identity(settings) is not None
    with pytest.raises(IdentityError, match="a server needs a certificate"):
        server_identity(settings)


def test_a_node_s_file_secures_its_auto_recovery_too() -> None:
    file = NodeFile({**NODE, "security": "on", "securityDirectory": "/id", "authorizedRoles": "client, node"})
    bookie, recovery = file.bookie(), file.auto_recovery()
    assert bookie.security == recovery.client.security == SecuritySettings(security="on", security_directory="/id")
    assert bookie.admission.authorized_roles == ("client", "node")


def test_a_namespace_has_the_switch_too_and_the_ledger_client_s_keys_are_over_it() -> None:
    settings = Settings.from_mapping({"security": "on", "securityDirectory": "/id"})
    assert settings.client_settings().security == SecuritySettings(security="on", security_directory="/id")
    mixed = Settings.from_mapping({"securityDirectory": "/id", "bkc.security": "optional"})
    assert mixed.client_settings().security == SecuritySettings(security="optional", security_directory="/id")
    with pytest.raises(SettingsError, match="nothing switches security on"):
        Settings.from_mapping({"securityDirectory": "/id"})


def test_files_are_read_once_where_they_are_not_to_be_looked_at_again(tmp_path: Path) -> None:
    authority = MintedAuthority()
    folder = authority.folder(tmp_path / "node", hosts=["localhost"])
    settings = SecuritySettings(security="on", security_directory=str(folder), tls_cert_files_refresh_duration_s=0)
    once = server_identity(settings)
    looked = server_identity(replace(settings, tls_cert_files_refresh_duration_s=1))
    assert once is not None
    assert looked is not None
    authority.folder(tmp_path / "node", hosts=["localhost"])
    assert not once.refresh()
    assert looked.refresh()


def test_a_mapping_makes_the_principals_of_a_server(tmp_path: Path) -> None:
    authority = MintedAuthority()
    folder = authority.folder(tmp_path / "node", "node-1", hosts=["localhost"])
    settings = SecuritySettings(security="on", security_directory=str(folder))
    admission = AdmissionSettings(principal_mapping="uri#urn:(.+)#$1##")
    server = server_identity(settings, admission)
    assert server is not None
    assert server.principal_of(authority.issue("x", uris=["urn:writer"]).der).name == "writer"
    with pytest.raises(PeerRefusedError):
        server.principal_of(authority.issue("x").der)
    with pytest.raises(CallerError, match="principalMapping"):
        AdmissionSettings(principal_mapping="x")


def test_the_environment_of_clients_switches_no_server_and_a_servers_files_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert SecuritySettings().server_mode() is SecurityMode.OFF
    assert SecuritySettings(client_key_store="k", zk_acl_identities="x509:CN=a").server_mode() is SecurityMode.OFF
    for given in ({"security_directory": "d"}, {"tls_key_store": "k"}, {"tls_revocation_lists_path": "r"}):
        ours = SecuritySettings(**given)  # type: ignore[arg-type]
        assert ours.client_mode() is SecurityMode.ON
        for ask in (ours.server_mode, lambda ours=ours: server_identity(ours)):
            with pytest.raises(CallerError, match="is set, and nothing switches security on"):
                ask()
        assert SecuritySettings(security="off", **given).server_mode() is SecurityMode.OFF  # type: ignore[arg-type]
