"""DIGEST-MD5: the examples of RFC 2831, both sides against each other, and messages that are not right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.security.principals import Principal, Scheme
from metadata.security.sasl.digest_md5 import DigestMd5Client, DigestMd5Server
from metadata.security.sasl.machine import SaslError
from metadata.security.secrets import Secret

USERS = {"bookkeeper-hd": "testpwd", "süß-bookkeeper": "Straße", "雪-bookkeeper": '雪\\"', "other": "x"}


def password_of(name: str) -> Secret | None:
    return Secret(USERS[name]) if name in USERS else None


def server(allowed: Callable[[str], bool] = lambda name: "bookkeeper" in name) -> DigestMd5Server:
    return DigestMd5Server(password_of, allowed)


def exchange(client: DigestMd5Client, serving: DigestMd5Server) -> bytes:
    """Run both sides to the end; return the client's response."""
    challenge = serving.step(client.step(b"") or b"")
    response = client.step(challenge)
    assert response is not None
    assert client.step(serving.step(response)) is None
    return response


@pytest.mark.parametrize(
    ("service", "nonce", "cnonce", "response", "rspauth"),
    [
        (
            "imap",
            "OA6MG9tEQGm2hh",
            "OA6MHXh6VqTrRk",
            "d388dad90d4bbd760a152321f2143af7",
            "ea40f60335c427b5527b84dbabcdfffd",
        ),
        (
            "acap",
            "OA9BSXrbuRhWay",
            "OA9BSuZWMSpW8m",
            "6084c6db3fede7352c551284490fd0fc",
            "2f0b3d7c3c2e486600ef710726aa2eae",
        ),
    ],
)
def test_the_examples_of_the_rfc(service: str, nonce: str, cnonce: str, response: str, rspauth: str) -> None:
    host = "elwood.innosoft.com"
    client = DigestMd5Client(
        "chris", Secret("secret"), service=service, host=host, authorized=False, cnonce=lambda: cnonce
    )
    serving = DigestMd5Server(
        lambda name: Secret("secret") if name == "chris" else None,
        lambda name: True,
        service=service,
        host=host,
        realm=host,
        nonce=lambda: nonce,
    )
    sent = exchange(client, serving)
    assert f"response={response}".encode() in sent
    assert client.done
    assert serving.principal == Principal("chris", Scheme.DIGEST_MD5)
    again = DigestMd5Server(
        lambda name: Secret("secret"), lambda name: True, service=service, host=host, realm=host, nonce=lambda: nonce
    )
    again.step(b"")
    assert again.step(sent) == f"rspauth={rspauth}".encode()


@pytest.mark.parametrize("name", ["bookkeeper-hd", "süß-bookkeeper", "雪-bookkeeper"])
def test_each_side_proves_itself_to_the_other(name: str) -> None:
    client, serving = DigestMd5Client(name, Secret(USERS[name])), server()
    exchange(client, serving)
    assert client.done
    assert serving.principal == Principal(name, Scheme.DIGEST_MD5)


@pytest.mark.parametrize(
    ("name", "password"), [("bookkeeper-hd", "wrong"), ("bookkeeper-nobody", "testpwd"), ("bookkeeper-nobody", "")]
)
def test_a_wrong_password_and_an_unknown_name_fail_alike(name: str, password: str) -> None:
    client, serving = DigestMd5Client(name, Secret(password)), server()
    response = client.step(serving.step(client.step(b"") or b""))
    with pytest.raises(SaslError, match="is not known, or its password is another"):
        serving.step(response or b"")
    assert not serving.done
    assert serving.principal is None


def test_a_user_that_is_not_allowed_is_refused() -> None:
    client, serving = DigestMd5Client("other", Secret("x")), server()
    response = client.step(serving.step(client.step(b"") or b""))
    with pytest.raises(SaslError, match="not allowed here"):
        serving.step(response or b"")
    assert serving.principal is None


def test_nobody_acts_as_somebody_else() -> None:
    client, serving = DigestMd5Client("bookkeeper-hd", Secret("testpwd")), server()
    client._authorized = "süß-bookkeeper"
    response = client.step(serving.step(client.step(b"") or b""))
    with pytest.raises(SaslError, match="asks to act as"):
        serving.step(response or b"")
    assert not serving.done


def test_a_response_is_good_for_one_connection_and_once() -> None:
    client, serving = DigestMd5Client("bookkeeper-hd", Secret("testpwd")), server()
    response = exchange(client, serving)
    with pytest.raises(SaslError, match="over"):
        serving.step(response)
    another = server()
    another.step(b"")
    with pytest.raises(SaslError, match="the client's nonce"):
        another.step(response)
    assert not another.done


def test_a_wrong_response_ends_the_exchange() -> None:
    serving = server()
    right, wrong = (DigestMd5Client("bookkeeper-hd", Secret(text)) for text in ("testpwd", "wrong"))
    challenge = serving.step(b"")
    responses = []
    for client in (wrong, right):
        client.step(b"")
        responses.append(client.step(challenge) or b"")
    for response in responses:
        with pytest.raises(SaslError):
            serving.step(response)
    assert not serving.done


def test_a_server_that_does_not_know_the_password_is_not_believed() -> None:
    client, serving = DigestMd5Client("bookkeeper-hd", Secret("testpwd")), server()
    client.step(serving.step(client.step(b"") or b""))
    for answer in (b"rspauth=" + b"0" * 32, b"rspauth=" + b"0" * 32, b""):
        with pytest.raises(SaslError):
            client.step(answer)
    assert not client.done


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b"nc=00000001", b"nc=00000002"),
        (b"qop=auth", b"qop=auth-int"),
        (b'realm="bookkeeper"', b'realm="elsewhere"'),
        (b'digest-uri="bookkeeper/bookkeeper"', b'digest-uri="bookkeeper/else"'),
        (b"charset=utf-8", b"charset=utf-16"),
        (b"nc=00000001", b"nc=00000001,nc=00000001"),
        (b"cnonce=", b"conce="),
        (b'cnonce="', b'cnonce="another'),
        (b'username="', b'username="another'),
    ],
)
def test_what_belongs_to_the_proof_cannot_be_changed(was: bytes, becomes: bytes) -> None:
    client, serving = DigestMd5Client("bookkeeper-hd", Secret("testpwd")), server()
    response = client.step(serving.step(client.step(b"") or b"")) or b""
    assert was in response
    with pytest.raises(SaslError):
        serving.step(response.replace(was, becomes))
    assert not serving.done


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b'realm="bookkeeper",nonce="n",qop="auth",charset=utf-8',
        b'realm="bookkeeper",nonce="n",qop="auth",algorithm=md5-sess',
        b'realm="bookkeeper",nonce="n",qop="auth-conf",charset=utf-8,algorithm=md5-sess',
        b'realm="bookkeeper",nonce="",qop="auth",charset=utf-8,algorithm=md5-sess',
        b'realm="bookkeeper",nonce="n",nonce="m",qop="auth",charset=utf-8,algorithm=md5-sess',
        b'realm="\xff",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess',
        b'realm="bookkeeper',
        b'nonce="' + b"n" * 2048 + b'",charset=utf-8,algorithm=md5-sess',
    ],
)
def test_a_challenge_that_is_not_one_ends_the_client(challenge: bytes) -> None:
    client = DigestMd5Client("bookkeeper-hd", Secret("testpwd"))
    client.step(b"")
    with pytest.raises(SaslError):
        client.step(challenge)
    with pytest.raises(SaslError, match="over"):
        client.step(b'realm="bookkeeper",nonce="n",qop="auth",charset=utf-8,algorithm=md5-sess')
    assert not client.done


def test_a_message_out_of_its_turn_ends_each_side() -> None:
    serving, client = server(), DigestMd5Client("bookkeeper-hd", Secret("testpwd"))
    with pytest.raises(SaslError, match="not empty"):
        serving.step(b"username=x")
    with pytest.raises(SaslError, match="spoke first"):
        client.step(b"nonce=x")
    with pytest.raises(SaslError, match="over"):
        serving.step(b"")
    with pytest.raises(SaslError, match="over"):
        client.step(b"")


def test_a_long_response_is_not_read() -> None:
    serving = server()
    serving.step(b"")
    with pytest.raises(SaslError, match="at most 4095"):
        serving.step(b'username="' + b"x" * 5000 + b'"')


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=200), max_size=4))
def test_random_messages_authenticate_nobody(messages: list[bytes]) -> None:
    serving, client = server(), DigestMd5Client("bookkeeper-hd", Secret("testpwd"))
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
def test_a_changed_response_authenticates_nobody(data: st.DataObject) -> None:
    client, serving = DigestMd5Client("bookkeeper-hd", Secret("testpwd")), server()
    response = client.step(serving.step(client.step(b"") or b"")) or b""
    # Fields alone: their names may be written in any case, and spaces may lie between them.
    start = response.index(b"response=") + len(b"response=")
    at = data.draw(st.integers(start, start + 31))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != response[at]))
    with pytest.raises(SaslError):
        serving.step(response[:at] + bytes((byte,)) + response[at + 1 :])
    assert not serving.done


@settings(max_examples=40)
@given(st.data())
def test_a_response_changed_anywhere_never_enters_as_another(data: st.DataObject) -> None:
    client, serving = DigestMd5Client("bookkeeper-hd", Secret("testpwd")), server(lambda name: True)
    response = client.step(serving.step(client.step(b"") or b"")) or b""
    at = data.draw(st.integers(0, len(response)))
    piece = data.draw(st.binary(max_size=8))
    until = data.draw(st.integers(at, min(len(response), at + 8)))
    try:
        serving.step(response[:at] + piece + response[until:])
    except SaslError:
        assert not serving.done
    else:
        assert serving.principal == Principal("bookkeeper-hd", Scheme.DIGEST_MD5)


def test_no_error_is_as_long_as_a_peer_likes() -> None:
    client, serving = DigestMd5Client("x" * 3000, Secret("testpwd"), authorized=False), server()
    response = client.step(serving.step(client.step(b"") or b"")) or b""
    with pytest.raises(SaslError) as caught:
        serving.step(response)
    assert len(str(caught.value)) < 400


def test_no_error_shows_a_password() -> None:
    client, serving = DigestMd5Client("bookkeeper-hd", Secret("a-secret-text")), server()
    response = client.step(serving.step(client.step(b"") or b"")) or b""
    with pytest.raises(SaslError) as caught:
        serving.step(response)
    assert "a-secret-text" not in f"{caught.value!r} {caught.value} {vars(caught.value)} {client!r} {vars(client)}"
    assert "testpwd" not in f"{caught.value!r} {caught.value} {vars(serving)}"
