"""Keys of AUTH: upstream's names stand for what does the same, and what cannot be honoured is refused."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from metadata.foundation.errors import CallerError
from metadata.security.exchange import SASL_PLUGIN, SCRAM_PLUGIN
from metadata.security.sasl.credentials import write_scram_user
from metadata.security.sasl.scram import stored_keys
from metadata.security.sasl.settings import (
    ClientProofSettings,
    NodeProofSettings,
    SaslSettings,
    check_startup_user,
)
from metadata.security.secrets import Secret
from storage_node.errors import BookieConfigurationError
from storage_node.settings.client import ClientSettings
from storage_node.settings.files import NodeFile

JAAS = """
Bookie { x.DigestLoginModule required user_bookkeeper="one"; };
BookKeeper { x.DigestLoginModule required username="bookkeeper" password="one"; };
Auditor { x.DigestLoginModule required username="bookkeeper" password="one"; };
"""
OF_NODE = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
OF_CLIENT = "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
DIRECTORIES = {"journalDirectories": "/j", "ledgerDirectories": "/l"}


@pytest.fixture
def jaas(tmp_path: Path) -> str:
    path = tmp_path / "jaas.conf"
    path.write_text(JAAS)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def users(tmp_path: Path) -> str:
    path = tmp_path / "scram.json"
    write_scram_user(path, "flights", stored_keys(Secret("pencil")))
    return str(path)


def test_a_nodes_file_asks_by_upstreams_names(jaas: str, users: str) -> None:
    given = {"bookieAuthProviderFactoryClass": f"{OF_NODE},scram", "scramUsersFile": users}
    file = NodeFile(DIRECTORIES | given | {"saslJaasConfigurationFile": jaas, "saslDigestMd5WithoutTls": "true"})
    proofs = file.bookie().proofs
    assert sorted(proofs.authenticators()) == sorted((SASL_PLUGIN, SCRAM_PLUGIN))
    assert proofs.sasl == SaslSettings(jaas, True)
    assert NodeProofSettings().authenticators() == {}


def test_auto_recovery_is_a_client_of_the_system(jaas: str) -> None:
    given = {"clientAuthProviderFactoryClass": OF_CLIENT, "saslJaasConfigurationFile": jaas}
    found = NodeFile(DIRECTORIES | given).auto_recovery().client.proofs
    assert found == ClientProofSettings(OF_CLIENT, role="system", sasl=SaslSettings(jaas))
    named = NodeFile(DIRECTORIES | given | {"saslJaasAuditorSectionName": "None"}).auto_recovery().client.proofs
    with pytest.raises(CallerError, match="no section None"):
        named.authenticator()
    assert found.authenticator() is not None


def test_a_client_proves_itself_by_upstreams_names(jaas: str, tmp_path: Path) -> None:
    given = {"clientAuthProviderFactoryClass": OF_CLIENT, "saslJaasConfigurationFile": jaas}
    made = ClientSettings.from_mapping(given).proofs.authenticator()
    assert made is not None
    assert made.plugin == SASL_PLUGIN
    password = tmp_path / "password"
    password.write_text("pencil")
    password.chmod(0o600)
    scram = {"clientAuthProviderFactoryClass": "scram", "scramUser": "flights", "scramPasswordFile": str(password)}
    base = ClientSettings.from_mapping(given)
    made = ClientSettings.from_mapping(scram, base).proofs.authenticator()
    assert made is not None
    assert made.plugin == SCRAM_PLUGIN
    assert ClientSettings.from_mapping(scram, base).proofs.sasl == SaslSettings(jaas)
    assert ClientProofSettings().authenticator() is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (NodeProofSettings(("com.example.Mine",)), "no class is loaded by its name here"),
        (NodeProofSettings(("sasl",)), "needs saslJaasConfigurationFile"),
        (NodeProofSettings(("scram",)), "needs scramUsersFile"),
        (NodeProofSettings(("scram",), scram_users_file="/none"), "cannot be read"),
        (NodeProofSettings(("sasl",), sasl=SaslSettings("/none")), "cannot be read"),
        (NodeProofSettings(("sasl",), allowed_ids="(", sasl=SaslSettings("JAAS")), "not a regular expression"),
        (NodeProofSettings(("sasl",), bookie_section="BookKeeper", sasl=SaslSettings("JAAS")), "knows no user"),
    ],
)
def test_what_a_node_cannot_honour_keeps_it_from_starting(settings: NodeProofSettings, message: str, jaas: str) -> None:
    if settings.sasl.jaas_file == "JAAS":
        object.__setattr__(settings, "sasl", SaslSettings(jaas))
    with pytest.raises(CallerError, match=message):
        settings.authenticators(BookieConfigurationError)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (ClientProofSettings("com.example.Mine"), "no class is loaded by its name here"),
        (ClientProofSettings("sasl"), "needs saslJaasConfigurationFile"),
        (ClientProofSettings("scram"), "needs scramUser"),
        (ClientProofSettings("scram", scram_user="x"), "needs scramPasswordFile"),
        (ClientProofSettings("scram", scram_user="x", scram_password_file="/none"), "cannot be read"),
    ],
)
def test_what_a_client_cannot_honour_is_an_error(settings: ClientProofSettings, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        settings.authenticator()


def test_a_node_is_started_by_permitted_users_only() -> None:
    user = pwd.getpwuid(os.geteuid()).pw_name
    check_startup_user(())
    check_startup_user((user, "other"))
    with pytest.raises(BookieConfigurationError, match="not among permittedStartupUsers") as caught:
        check_startup_user(("nobody-else", "other"), BookieConfigurationError)
    assert "Start the node as nobody-else or other" in str(caught.value)
