"""GSSAPI against a real realm: both sides prove themselves, and nobody enters otherwise."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.security.realm import REALM, Realm, no_realm, started_realm

from metadata.security.exchange import ChannelFacts
from metadata.security.principals import Scheme
from metadata.security.sasl.authenticators import SaslAuthenticator, SaslClientAuthenticator
from metadata.security.sasl.kerberos import KerberosClient, KerberosServer
from metadata.security.sasl.machine import SaslError
from storage_node.protocol.authentication import ClientAuthentication, ServerAuthentication
from storage_node.protocol.schema import Status

MISSING = no_realm()
needs_a_realm = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with pytest.MonkeyPatch.context() as patch, started_realm(tmp_path_factory.mktemp("realm")) as started:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started


@pytest.fixture(scope="module")
def service_keys(realm: Realm) -> str:
    return str(realm.keytab("bookkeeper/localhost", "other/localhost"))


@pytest.fixture(scope="module")
def client_keys(realm: Realm) -> str:
    return str(realm.keytab("bookkeeper-flights"))


def server(keys: str, allowed: Callable[[str], bool] = lambda name: name.startswith("bookkeeper-")) -> KerberosServer:
    return KerberosServer(keys, f"bookkeeper/localhost@{REALM}", allowed, clock=lambda: 1000.0)


def client(keys: str, service: str = "bookkeeper") -> KerberosClient:
    principal = f"bookkeeper-flights@{REALM}"
    return KerberosClient(service, "localhost", principal=principal, keytab=keys, ticket_cache=None)


def run(asking: KerberosClient, serving: KerberosServer) -> list[bytes]:
    """Carry messages until the server is done; return the client's."""
    message: bytes | None = asking.step(b"")
    sent = []
    while message is not None:
        sent.append(message)
        answer = serving.step(message)
        if answer is None:
            return sent
        message = asking.step(answer)
    return sent


@needs_a_realm
def test_both_sides_prove_themselves(service_keys: str, client_keys: str) -> None:
    asking, serving = client(client_keys), server(service_keys)
    sent = run(asking, serving)
    assert asking.done
    assert serving.principal is not None
    assert serving.principal.name == asking.name == f"bookkeeper-flights@{REALM}"
    assert serving.principal.scheme is Scheme.GSSAPI
    assert serving.principal.expires_at_s is not None
    assert 1000 < serving.principal.expires_at_s <= 1000 + 24 * 3600
    with pytest.raises(SaslError, match="over"):
        serving.step(sent[-1])
    again = server(service_keys)
    with pytest.raises(SaslError, match="replay"):
        again.step(sent[0])


@needs_a_realm
def test_a_principal_that_is_not_allowed_is_refused(service_keys: str, client_keys: str) -> None:
    serving = server(service_keys, lambda name: False)
    with pytest.raises(SaslError, match="not allowed here"):
        run(client(client_keys), serving)
    assert serving.principal is None


@needs_a_realm
def test_a_ticket_for_another_service_is_refused(service_keys: str, client_keys: str) -> None:
    serving = server(service_keys)
    with pytest.raises(SaslError):
        run(client(client_keys, "other"), serving)
    assert not serving.done
    with pytest.raises(SaslError):
        client(client_keys, "unknown").step(b"")


@needs_a_realm
def test_nobody_acts_as_somebody_else_or_asks_for_a_layer(service_keys: str, client_keys: str) -> None:
    for choice, message in ((b"\x01\0\0\0other", "asks to act as"), (b"\x04\0\0\0", "layer"), (b"\x01", "layer")):
        asking, serving = client(client_keys), server(service_keys)
        offer = serving.step(asking.step(serving.step(asking.step(b"") or b"") or b"") or b"")
        assert offer is not None
        wrapped = asking._context.wrap(choice, False).message  # type: ignore[attr-defined]
        with pytest.raises(SaslError, match=message):
            serving.step(wrapped)
        assert not serving.done


@needs_a_realm
def test_changed_tokens_authenticate_nobody(service_keys: str, client_keys: str) -> None:
    for at in (0, -40, -1):  # not among the names in the middle, which are not part of the proof
        asking, serving = client(client_keys), server(service_keys)
        token = bytearray(asking.step(b"") or b"")
        token[at] ^= 1
        with pytest.raises(SaslError):
            serving.step(bytes(token))
        with pytest.raises(SaslError, match="over"):
            serving.step(bytes(token))
        asking = client(client_keys)
        token = bytearray(server(service_keys).step(asking.step(b"") or b"") or b"")
        token[at] ^= 1
        with pytest.raises(SaslError):
            asking.step(bytes(token))
        assert not asking.done


@needs_a_realm
def test_a_keytab_that_is_missing_is_an_error(realm: Realm) -> None:
    with pytest.raises(SaslError):
        server("/nonexistent.keytab").step(b"x")
    with pytest.raises(SaslError):
        client("/nonexistent.keytab").step(b"")


@needs_a_realm
def test_a_login_configuration_names_the_keys(tmp_path: Path, service_keys: str, client_keys: str) -> None:
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
    path = tmp_path / "jaas.conf"
    path.write_text(
        f'Bookie {{ {module} keyTab="{service_keys}" principal="bookkeeper/localhost@{REALM}"; }};\n'
        f'BookKeeper {{ {module} keyTab="{client_keys}" principal="bookkeeper-flights@{REALM}"; }};\n'
    )
    of_node = SaslAuthenticator(path, "Bookie", allowed=re.compile("bookkeeper-.*"), without_tls=False)
    of_client = SaslClientAuthenticator(path, "BookKeeper", without_tls=False)
    serving = ServerAuthentication({of_node.plugin: of_node}, ChannelFacts("client:1"))
    asking = ClientAuthentication(of_client, ChannelFacts("localhost"), demands=True)
    plugin, payload = asking.first()
    sent: bytes | None = payload
    while sent is not None:
        answer = serving.auth(plugin, sent)
        assert answer.refused is None
        sent = None if answer.payload is None else asking.answered(Status.EOK, answer.plugin, answer.payload)
    assert asking.done
    assert asking.blocks
    assert serving.proven
    assert serving.still() is None


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(SaslError, match=r"dlspark\[kerberos\]"):
        KerberosServer(None, None, lambda name: True)
    with pytest.raises(SaslError, match=r"dlspark\[kerberos\]"):
        KerberosClient("bookkeeper", "localhost", principal=None, keytab=None, ticket_cache=None)
