"""Settings of proxies and thin clients about security: one switch, and nothing that would only look secured."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.security.minting import MintedAuthority

from dlspark.errors import SettingsError
from dlspark.serving.client.settings import ThinClientSettings
from dlspark.serving.process.membership import ProxyEndpoint, ProxyMember, proxy_member, secured_member
from dlspark.serving.process.peers import ProxyDirectory
from dlspark.serving.protocol.operations import ProxyKind
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.write_proxy.settings import read_configuration
from metadata.security.settings import SecurityMode


def test_one_switch_is_for_clients_proxies_and_the_namespace(tmp_path: Path) -> None:
    file = tmp_path / "proxy.conf"
    file.write_text("security=on\nsecurityDirectory=/identity\nauthorizedRoles=client,operator\n")
    found = read_configuration(file, {"tokenKeys": "/keys.json", "tokenLeewaySeconds": 5}, {})
    own = found.proxy.security
    assert (own.mode, own.admission.authorized_roles, own.tokens.token_leeway_s) == (
        SecurityMode.ON,
        ("client", "operator"),
        5,
    )
    logs = found.logs.client_settings().security
    assert (logs.client_mode({}), logs.security_directory) == (SecurityMode.ON, "/identity")
    assert found.proxy.with_values({"server_port": 1}).security == own


def test_a_variable_sets_it_as_any_other_key() -> None:
    found = read_configuration(None, {}, {"DLSPARK_SET_security": "optional", "DLSPARK_SET_securityDirectory": "/i"})
    assert found.proxy.security.mode is SecurityMode.OPTIONAL


def test_a_read_proxy_has_the_same_keys() -> None:
    found = ReadProxySettings.from_mapping({"security": "on", "securityDirectory": "/i", "grpcTlsPort": 0})
    assert (found.security.mode, found.security.grpc.grpc_tls_port) == (SecurityMode.ON, 0)
    assert found.security.for_namespace == {"security": "on", "securityDirectory": "/i"}
    assert ReadProxySettings().security.mode is SecurityMode.OFF


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokenKeys": "/keys.json"},
        {"securityDirectory": "/i"},
        {"grpcTlsPort": 1},
        {"security": "yes"},
        {"security": "on", "tokenKeys": "/k", "tokenAlgorithms": "none"},
        {"security": "on", "tokenKeys": "/k", "tokenIssuer": ""},
        {"security": "on", "tokenLeewaySeconds": 301},
        {"security": "on", "tokenKey": "/k"},
        {"security": "on", "tlsProvider": "OpenSSL"},
    ],
)
def test_what_would_only_look_secured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        ReadProxySettings.from_mapping(wrong)
    with pytest.raises(SettingsError):
        read_configuration(None, wrong, {})  # type: ignore[arg-type]


def test_a_thin_client_is_secured_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLSPARK_SECURITY", raising=False)
    with pytest.raises(SettingsError, match="never speaks plain"):
        ThinClientSettings.from_mapping({"security": "optional", "securityDirectory": "/i"})
    with pytest.raises(SettingsError, match="security is off"):
        ThinClientSettings.from_mapping({"tokenFile": str(tmp_path / "token")}).credentials()
    with pytest.raises(SettingsError):
        ThinClientSettings.from_mapping({"security": "on", "securityDirectory": str(tmp_path)}).credentials()
    assert ThinClientSettings().credentials() is None
    over = ThinClientSettings.from_mapping({"security": "on", "securityDirectory": "/i"}).with_values({"clientId": "a"})
    assert (over.tls.security, over.client_id) == ("on", "a")


def test_other_proxies_are_let_in_whatever_roles_clients_need(tmp_path: Path) -> None:
    """With authorizedRoles=client,operator no log could be handed over."""
    authority = MintedAuthority()
    folder = str(authority.folder(tmp_path / "proxy", "proxy-1", roles=["proxy"], hosts=["localhost"]))
    given = {"security": "on", "securityDirectory": folder, "authorizedRoles": "app"}
    authentication = ReadProxySettings.from_mapping(given).security.authentication()
    assert authentication is not None

    def objection(*roles: str) -> str | None:
        der = authority.issue("other", roles=roles).der
        return authentication.objection(authentication.arrived("a:1", der, secured=True))

    assert objection("proxy") is None
    assert objection("app") is None
    assert objection("client") is not None


def test_a_member_says_that_it_speaks_tls_and_others_know_it_by_that() -> None:
    endpoint = ProxyEndpoint("proxy-1", 8000)
    plain = proxy_member(endpoint, 0)
    member = ProxyMember.decode(secured_member(plain, ProxyEndpoint("proxy-1", 8001)).encode())
    assert (plain.secured, member.secured, member.endpoints["grpc-tls"].port) == (False, True, 8001)
    assert "grpc-tls" not in secured_member(plain, None).endpoints
    directory = ProxyDirectory()
    directory.use(ProxyKind.WRITE, [member, proxy_member(ProxyEndpoint("proxy-2", 8000), 1)])
    assert directory.speaks_tls("proxy-1:8000")
    assert not directory.speaks_tls("proxy-2:8000")
