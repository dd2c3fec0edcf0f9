"""SCRAM-SHA-256: the example of RFC 7677, channel binding, and messages that are not right."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.security.principals import Principal, Scheme
from metadata.security.sasl.binding import server_end_point
from metadata.security.sasl.machine import SaslError
from metadata.security.sasl.scram import (
    MAX_ITERATIONS,
    ScramClient,
    ScramServer,
    StoredKeys,
    prepared_name,
    stored_keys,
)
from metadata.security.secrets import Secret

PASSWORD = Secret("pencil")
KEYS = stored_keys(PASSWORD, salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))
DECOY = b"d" * 32


def keys_of(name: str) -> StoredKeys | None:
    return KEYS if name in ("user", "a,b=c", "other") else None


def server(
    binding: bytes | None = None,
    allowed: Callable[[str], bool] = lambda name: name != "other",
    nonce: str | None = None,
) -> ScramServer:
    return ScramServer(keys_of, allowed, binding=binding, decoy=DECOY, nonce=nonce)


def until_proof(client: ScramClient, serving: ScramServer) -> bytes:
    """Return the client's proof, which the server has not seen yet."""
    return client.step(serving.step(client.step(b"") or b"")) or b""


def test_the_example_of_the_rfc() -> None:
    client = ScramClient("user", PASSWORD, binding=None, nonce="rOprNGfwEbeRWgbNEkqO")
    serving = server(nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert client.step(b"") == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = serving.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = client.step(first)
    assert proof == b"c=biws," + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    last = serving.step(proof)
    assert last == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.step(last) is None
    assert client.done
    assert serving.principal == Principal("user", Scheme.SCRAM_SHA_256)


@pytest.mark.parametrize("name", ["user", "a,b=c"])
def test_over_tls_each_side_binds_the_proof_to_the_connection(name: str) -> None:
    client, serving = ScramClient(name, PASSWORD, binding=b"this"), server(b"this")
    assert client.step(serving.step(until_proof(client, serving))) is None
    assert client.done
    assert serving.principal == Principal(name, Scheme.SCRAM_SHA_256)


@pytest.mark.parametrize(("ours", "theirs"), [(b"this", b"that"), (None, b"that"), (b"this", None)])
def test_a_proof_of_another_connection_is_refused(ours: bytes | None, theirs: bytes | None) -> None:
    client, serving = ScramClient("user", PASSWORD, binding=ours), server(theirs)
    with pytest.raises(SaslError, match="channel binding"):
        serving.step(until_proof(client, serving))
    assert not serving.done


def test_a_wrong_password_is_refused_as_an_unknown_name_is() -> None:
    for name, password in (("user", "pen"), ("nobody", "pencil")):
        client, serving = ScramClient(name, Secret(password), binding=None), server()
        proof = until_proof(client, serving)
        with pytest.raises(SaslError, match="is not known, or its proof is wrong"):
            serving.step(proof)
        with pytest.raises(SaslError, match="over"):
            serving.step(proof)
        assert serving.principal is None


def test_an_unknown_name_keeps_its_salt() -> None:
    salts = []
    for name in ("nobody", "nobody", "anybody"):
        first = server().step(ScramClient(name, PASSWORD, binding=None).step(b"") or b"")
        salts.append(first.split(b",")[1])
    assert salts[0] == salts[1] != salts[2]
    assert len(salts[0]) == len(b"s=W22ZaJ0SNY7soEsUEjb6gQ==")


def test_a_user_that_is_not_allowed_is_refused() -> None:
    client, serving = ScramClient("other", PASSWORD, binding=None), server()
    proof = until_proof(client, serving)
    with pytest.raises(SaslError, match="not allowed here"):
        serving.step(proof)
    assert not serving.done


def test_a_proof_is_good_for_one_connection() -> None:
    client, serving = ScramClient("user", PASSWORD, binding=None), server()
    first = client.step(b"") or b""
    proof = client.step(serving.step(first)) or b""
    serving.step(proof)
    again = server()
    again.step(first)
    with pytest.raises(SaslError):
        again.step(proof)
    assert not again.done


def test_a_server_without_the_keys_is_not_believed() -> None:
    client, serving = ScramClient("user", PASSWORD, binding=None), server()
    until_proof(client, serving)
    with pytest.raises(SaslError, match="signature"):
        client.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert not client.done


def test_a_client_does_not_hash_for_minutes() -> None:
    client = ScramClient("user", PASSWORD, binding=None, nonce="abc")
    client.step(b"")
    with pytest.raises(SaslError, match="rounds of hashing"):
        client.step(b"r=abcdef,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=%d" % (MAX_ITERATIONS + 1))
    assert not client.done


def test_keys_show_themselves_nowhere() -> None:
    assert KEYS.stored_key not in repr(KEYS).encode()
    assert repr(KEYS.stored_key) not in repr(KEYS)
    with pytest.raises(ValueError, match="32 bytes"):
        StoredKeys(b"s" * 16, 4096, b"", b"k" * 32)
    with pytest.raises(ValueError, match="iterations"):
        StoredKeys(b"s" * 16, 1, b"k" * 32, b"k" * 32)


def test_a_name_is_prepared_as_it_travels() -> None:
    assert prepared_name("I\u00adX") == "IX"
    for name in ("", "\u0007", "\u0627\u0031"):
        with pytest.raises(SaslError):
            prepared_name(name)


@settings(max_examples=40)
@given(
    st.lists(
        st.binary(max_size=200) | st.sampled_from([b"n,,n=user,r=x", b"r=x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"]),
        max_size=4,
    )
)
def test_random_messages_authenticate_nobody(messages: list[bytes]) -> None:
    serving, client = server(), ScramClient("user", PASSWORD, binding=None)
    for message in messages:
        for side in (serving, client):
            try:
                side.step(message)
            except SaslError:
                pass
    assert not serving.done
    assert not client.done


@settings(max_examples=40)
@given(st.data())
def test_changed_messages_enter_as_nobody_else(data: st.DataObject) -> None:
    def changed(message: bytes) -> bytes:
        at = data.draw(st.integers(0, len(message)))
        until = data.draw(st.integers(at, min(len(message), at + 6)))
        return message[:at] + data.draw(st.binary(max_size=6)) + message[until:]

    client, serving = ScramClient("user", PASSWORD, binding=None), server(allowed=lambda name: True)
    first = client.step(b"") or b""
    early = data.draw(st.booleans())
    try:
        proof = client.step(serving.step(changed(first) if early else first)) or b""
        serving.step(proof if early else changed(proof))
    except SaslError:
        assert not serving.done
    else:
        assert serving.principal == Principal("user", Scheme.SCRAM_SHA_256)


def test_long_messages_are_not_read() -> None:
    with pytest.raises(SaslError, match="at most 4096"):
        server().step(b"n,,n=user,r=" + b"x" * 5000)


def test_the_binding_is_the_digest_of_the_servers_certificate() -> None:
    leaf = trustme.CA().issue_cert("node").cert_chain_pems[0].bytes()
    certificate = x509.load_pem_x509_certificate(leaf)
    algorithm = certificate.signature_hash_algorithm
    assert algorithm is not None
    assert server_end_point(certificate.public_bytes(Encoding.DER)) == certificate.fingerprint(algorithm)
    assert algorithm.name != hashes.SHA1.name
    with pytest.raises(SaslError, match="no channel binding"):
        server_end_point(b"no certificate")
