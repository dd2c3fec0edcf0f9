"""A node asks for what its settings name, and does not start where that cannot be asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from helpers.bookie.gc_harness import FixedClock
from helpers.security.minting import MintedAuthority
from helpers.waiting import until

from metadata.foundation.errors import CallerError
from metadata.security.exchange import SCRAM_PLUGIN
from metadata.security.identity import TlsIdentity
from metadata.security.sasl.credentials import write_scram_user
from metadata.security.sasl.scram import stored_keys
from metadata.security.sasl.settings import NodeProofSettings, SaslSettings
from metadata.security.secrets import Secret
from metadata.security.settings import AdmissionSettings, SecurityMode, SecuritySettings
from storage_node.bookie.node.endpoints import _refresh
from storage_node.bookie.node.security import SecurityWatch, node_security
from storage_node.bookie.requests.gate import NodeSecurity, SecurityGate
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings

CERTIFICATE = "org.apache.bookkeeper.tls.BookieAuthZFactory"


def settings(proofs: NodeProofSettings, **more: object) -> BookieSettings:
    return BookieSettings(("/j",), ("/l",), proofs=proofs, **more)  # type: ignore[arg-type]


def test_a_node_asks_for_what_its_settings_name(tmp_path: Path) -> None:
    users = tmp_path / "scram.json"
    write_scram_user(users, "flights", stored_keys(Secret("pencil")))
    asked = node_security(settings(NodeProofSettings(("scram",), scram_users_file=str(users))))
    assert list(asked.authenticators) == [SCRAM_PLUGIN]
    assert asked.asks
    assert not node_security(settings(NodeProofSettings())).asks


def test_a_certificate_is_asked_for_by_its_roles(tmp_path: Path) -> None:
    folder = MintedAuthority().folder(tmp_path / "identity", "node-1", roles=["node"])
    security = SecuritySettings(security="on", security_directory=str(folder))
    proofs = NodeProofSettings((CERTIFICATE,))
    with pytest.raises(BookieConfigurationError, match="authorizedRoles names none"):
        node_security(settings(proofs, security=security))
    admission = AdmissionSettings(authorized_roles=("client",))
    found = node_security(settings(proofs, security=security, admission=admission))
    assert found.roles == {"client"}
    assert not found.authenticators


@pytest.mark.parametrize(
    ("proofs", "message"),
    [
        (NodeProofSettings(permitted_startup_users=("nobody-else",)), "not among permittedStartupUsers"),
        (NodeProofSettings(("com.example.Mine",)), "no class is loaded"),
        (NodeProofSettings(("sasl",), sasl=SaslSettings("/none")), "cannot be read"),
        (NodeProofSettings(("scram",), scram_users_file="/none"), "cannot be read"),
    ],
)
def test_a_node_does_not_start_without_what_it_is_to_ask_for(proofs: NodeProofSettings, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        node_security(settings(proofs))


def test_digest_md5_without_tls_is_said_at_the_start(tmp_path: Path) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text('Bookie { x.DigestLoginModule required user_bookkeeper="one"; };')
    jaas.chmod(0o600)
    with pytest.raises(BookieConfigurationError, match="nobody could enter"):
        node_security(settings(NodeProofSettings(("sasl",), sasl=SaslSettings(str(jaas)))))
    allowed = SaslSettings(str(jaas), digest_md5_without_tls=True)
    assert node_security(settings(NodeProofSettings(("sasl",), sasl=allowed))).authenticators
    folder = MintedAuthority().folder(tmp_path / "identity", "node-1", roles=["node"])
    security = SecuritySettings(security="on", security_directory=str(folder))
    assert node_security(settings(NodeProofSettings(("sasl",), sasl=SaslSettings(str(jaas))), security=security)).asks


class StarvedIdentity:
    """An identity whose files cannot be looked at, as where no thread can be made."""

    def __init__(self) -> None:
        self.looks = 0

    def refresh(self) -> bool:
        self.looks += 1
        raise RuntimeError("can't start new thread")


class RevokedGate:
    def __init__(self) -> None:
        self.ended: list[str] = []

    def why_no_more(self, now_s: float) -> str | None:
        return "revoked"

    def end(self, reason: str) -> None:
        self.ended.append(reason)


async def test_connections_are_judged_though_files_cannot_be_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    identity, gate = StarvedIdentity(), RevokedGate()
    security = NodeSecurity(SecurityMode.ON, cast(TlsIdentity, identity))
    watch = SecurityWatch(security, lambda: [cast(SecurityGate, gate)], FixedClock())
    await watch.look()
    assert identity.looks == 1
    assert gate.ended == ["revoked"]
    assert "could not be looked at" in caplog.text


async def test_the_http_servers_files_are_looked_at_again_though_one_look_failed() -> None:
    identity = StarvedIdentity()
    looking = asyncio.ensure_future(_refresh(cast(TlsIdentity, identity), 0.001))
    await until(lambda: identity.looks > 2 or looking.done())
    looking.cancel()
    assert identity.looks > 2
