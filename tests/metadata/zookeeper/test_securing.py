"""What settings and environment mean for sessions with ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.keeper_identities import KeeperAuthority

from metadata.foundation.errors import CallerError
from metadata.security.identity import TlsIdentity
from metadata.security.secrets import Secret
from metadata.security.settings import PROVIDERS, REFUSED_SECURITY, SecuritySettings
from metadata.zookeeper.access import WORLD_READS, Access, AclEntry, Credential, access_by_id
from metadata.zookeeper.securing import open_session, session_access, session_tls, speaks_tls
from metadata.zookeeper.tls_socket import FixedTls

SHARED = Credential(Secret("cluster:word"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An identity folder without a shared secret."""
    return KeeperAuthority().issue(tmp_path_factory.mktemp("identity") / "node", "node-1", "node")


@pytest.fixture
def folder(bare: Path) -> Path:
    (bare / "zookeeper.secret").write_text("cluster:word\n")
    (bare / "zookeeper.secret").chmod(0o600)
    return bare


def settings(folder: Path | None, **values: object) -> SecuritySettings:
    return SecuritySettings(security_directory=str(folder or ""), **values)  # type: ignore[arg-type]


def test_without_security_a_session_is_as_ever() -> None:
    assert session_tls(SecuritySettings(), {}) is None
    assert session_access(SecuritySettings(), environment={}) == Access()
    assert session_access(SecuritySettings(), "alice", environment={}) == access_by_id("alice")


def test_on_means_tls_the_shared_identity_and_its_lists(folder: Path) -> None:
    on = settings(folder, security="on")
    assert isinstance(session_tls(on), TlsIdentity)
    assert session_access(on) == Access((SHARED,), (SHARED.entry(),), needs_tls=True)


def test_the_environment_is_the_same_for_a_client(folder: Path) -> None:
    by_environment = {"DLSPARK_SECURITY": str(folder)}
    assert isinstance(session_tls(SecuritySettings(), by_environment), TlsIdentity)
    assert session_access(SecuritySettings(), environment=by_environment).entries == (SHARED.entry(),)


def test_in_the_middle_of_a_change_the_identity_is_shown_and_what_is_created_is_open(folder: Path) -> None:
    optional = settings(folder, security="optional")
    assert speaks_tls(optional)
    assert session_access(optional) == Access((SHARED,), (), needs_tls=True)


def test_a_folder_without_a_secret_means_no_lists_and_a_demand_for_them_is_refused(folder: Path) -> None:
    (folder / "zookeeper.secret").unlink()
    assert session_access(settings(folder, security="on")) == Access()
    with pytest.raises(CallerError, match="would shut all others out"):
        session_access(settings(folder, security="on", zk_enable_security=True))
    named = settings(folder, security="on", zk_acl_identities="x509:CN=java-1,OU=node", zk_acl_world_read=True)
    assert session_access(named).entries == (AclEntry("x509", "CN=java-1,OU=node"), WORLD_READS)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return its warnings: another test's thread in this process may have its own."""
    return [one.getMessage() for one in caplog.records if one.name == "metadata.zookeeper.securing"]


def test_znodes_that_are_open_though_security_is_on_are_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session_access(settings(folder, security="on"))
    session_access(settings(folder, security="optional"))
    (folder / "zookeeper.secret").unlink()
    session_access(settings(folder, security="on", zk_enable_security=False))
    session_access(SecuritySettings(), environment={})
    assert not said(caplog)
    session_access(settings(folder, security="on"))
    (one,) = said(caplog)
    assert f"no zookeeper.secret in {folder}" in one
    stores = SecuritySettings(security="on", tls_trust_store="t")
    session_access(stores)
    assert "zkAclSecretPath is not set" in said(caplog)[1]


def test_lists_can_be_left_out(folder: Path) -> None:
    without = settings(folder, security="on", zk_enable_security=False)
    assert session_access(without) == Access((SHARED,), (), needs_tls=True)


def test_upstreams_identity_keeps_what_it_creates_under_security(folder: Path) -> None:
    on = settings(folder, security="on")
    logs, ledgers = session_access(on, "alice"), session_access(on, "alice", restrict=False)
    assert logs.entries == access_by_id("alice").entries
    assert len(logs.credentials) == len(ledgers.credentials) == 2
    assert ledgers.entries == (SHARED.entry(),)  # those are the cluster's, whatever a namespace's identity is


def test_javas_switch_says_nothing_of_zookeeper(folder: Path) -> None:
    java = settings(folder, tls_provider_factory_class=PROVIDERS[0])
    assert session_tls(java) is None
    assert session_access(java) == Access()  # the folder's secret is not sent in clear text
    both = settings(folder, tls_provider_factory_class=PROVIDERS[0], zookeeper_client_secure=True)
    assert isinstance(session_tls(both), TlsIdentity)


async def test_what_contradicts_itself_is_refused(folder: Path) -> None:
    with pytest.raises(CallerError, match="there is no certificate to show"):
        session_tls(settings(None, security="off", zookeeper_client_secure=True))
    plain = settings(
        folder, security="on", zookeeper_client_secure=False, zk_acl_secret_path=str(folder / "zookeeper.secret")
    )
    with pytest.raises(CallerError, match="in clear text"):
        await open_session("127.0.0.1:1", plain)


def test_certificates_that_are_read_once_are_read_once(folder: Path) -> None:
    assert isinstance(session_tls(settings(folder, security="on", tls_cert_files_refresh_duration_s=0)), FixedTls)


def test_zookeepers_own_keys_are_each_refused_with_a_reason() -> None:
    theirs = [key for key in REFUSED_SECURITY if key.startswith("zookeeper.")]
    assert len(theirs) > 12
    for key in theirs:
        with pytest.raises(CallerError) as caught:
            _client_with(key)
        assert REFUSED_SECURITY[key][:30] in str(caught.value)


def _client_with(key: str) -> object:
    from storage_node.settings.client import ClientSettings

    return ClientSettings.from_mapping({key: "x"})
