"""The keys that vouch for tokens: which are used, and how an address is asked for them."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from joserfc.jwk import ECKey, OctKey, RSAKey

from dlspark.errors import SettingsError
from dlspark.serving.security.token_keys import (
    ALGORITHMS,
    MAX_KEYS_BYTES,
    KeyAddress,
    KeyFile,
    KeysRefusedError,
    TokenKeys,
    read_keys,
)

EC = ECKey.generate_key("P-256", {"kid": "one"})
PUBLIC: dict[str, Any] = EC.as_dict(private=False)


def keys(*each: object) -> bytes:
    return json.dumps({"keys": each}).encode()


def test_keys_for_something_else_are_left_out() -> None:
    unused: list[object] = [
        {**PUBLIC, "kid": "a", "use": "enc"},
        {**PUBLIC, "kid": "b", "key_ops": ["encrypt"]},
        {**PUBLIC, "kid": "n", "key_ops": None},
        {**PUBLIC, "kid": "i", "key_ops": 7},
        {**PUBLIC, "kid": "c", "alg": "ES512"},
        {**PUBLIC, "kid": "d", "alg": "none"},
        {**PUBLIC, "kid": "e", "crv": "secp256k1"},
        {**PUBLIC, "kid": "f", "x": "AAAA"},
        {**PUBLIC, "kid": "g", "kty": "oct"},
        {**PUBLIC, "kid": 1},
        {name: value for name, value in PUBLIC.items() if name != "kid"},
        {**OctKey.generate_key(128).as_dict(), "kid": "short", "alg": "HS256"},
        {"kid": "nothing"},
        "text",
    ]
    assert set(read_keys(keys(*unused, PUBLIC), ALGORITHMS, "here")) == {"one"}
    assert not read_keys(keys(*unused), ALGORITHMS, "here")


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_a_short_rsa_key_is_left_out() -> None:
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = RSAKey.import_key(rsa.generate_private_key(65537, 1024))  # type: ignore[arg-type]
    assert not read_keys(keys({**key.as_dict(private=False), "kid": "rsa"}), ALGORITHMS, "here")


def test_the_last_key_that_is_taken_out_vouches_for_nothing_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stayed for a day: a set without a key was taken for one that cannot be read."""
    place = tmp_path / "keys.json"
    place.write_bytes(keys(PUBLIC))
    held = TokenKeys(KeyFile(str(place)), ALGORITHMS, 86_400, lambda: 0.0)
    held.start()
    place.write_bytes(b"{")
    held.refresh()
    assert set(held.current()) == {"one"}
    for left in ((), ({**PUBLIC, "use": "enc"},)):
        place.write_bytes(keys(PUBLIC))
        held.refresh()
        assert set(held.current()) == {"one"}
        place.write_bytes(keys(*left))
        held.refresh()
        assert not held.current()
    assert "every token is refused" in caplog.text
    with pytest.raises(SettingsError, match="no key"):
        TokenKeys(KeyFile(str(place)), ALGORITHMS, 86_400, lambda: 0.0).start()


@pytest.mark.parametrize(
    "address", ["https://h:no", "https://h:99999/", "https://h/\u00e4", "https://h/ x", "https://[h"]
)
def test_an_address_that_is_none_keeps_a_server_from_starting(address: str) -> None:
    with pytest.raises(SettingsError, match="tokenKeys"):
        KeyAddress(address)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": [], "keys": []}',
        b"\xff",
        keys(*[PUBLIC] * 257),
        keys(PUBLIC, PUBLIC),
        keys({**EC.as_dict(private=True)}),
    ],
)
def test_sets_that_are_refused_whole(data: bytes) -> None:
    with pytest.raises(KeysRefusedError):
        read_keys(data, ALGORITHMS, "here")


# ---------------------------------------------------------------------- an address


class _Issuer(http.server.BaseHTTPRequestHandler):
    answer: tuple[int, dict[str, str], bytes] = (200, {}, b"")
    asked = 0

    def do_GET(self) -> None:
        """Answer whatever the test has set."""
        type(self).asked += 1
        status, headers, body = self.answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(name="issuer")
def _issuer(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """An https address, and a file of the authority that is trusted for it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    server = http.server.HTTPServer(("127.0.0.1", 0), _Issuer)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    _Issuer.asked = 0
    try:
        yield f"https://localhost:{server.server_address[1]}/keys", str(tmp_path / "authority.pem")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_address_is_asked_again_at_its_interval(issuer: tuple[str, str]) -> None:
    url, authority = issuer
    now = [0.0]
    source = KeyAddress(url, authority, now=lambda: now[0], every_s=300)
    held = TokenKeys(source, ALGORITHMS, 1_000, lambda: now[0])
    _Issuer.answer = (200, {}, keys(PUBLIC))
    held.start()
    held.refresh()
    assert (set(held.current()), _Issuer.asked) == ({"one"}, 1)
    now[0] = 301
    _Issuer.answer = (200, {}, keys({**PUBLIC, "kid": "two"}))
    held.refresh()
    assert set(held.current()) == {"two"}
    now[0] = 602
    _Issuer.answer = (302, {"Location": "https://localhost/other"}, b"")
    held.refresh()
    held.refresh()
    assert (set(held.current()), _Issuer.asked) == ({"two"}, 3)  # a redirect is not followed, and not at once again
    now[0] = 1_302
    assert not held.current()


def test_an_address_that_answers_otherwise_gives_no_key(issuer: tuple[str, str]) -> None:
    url, authority = issuer
    for answer in (
        (404, {}, b""),
        (301, {"Location": "file:///etc/passwd"}, b""),
        (200, {}, b" " * MAX_KEYS_BYTES + b"{}"),
    ):
        _Issuer.answer = answer
        with pytest.raises(KeysRefusedError):
            KeyAddress(url, authority).read()


def test_an_address_whose_certificate_is_not_trusted_gives_no_key(issuer: tuple[str, str]) -> None:
    url, authority = issuer
    _Issuer.answer = (200, {}, keys(PUBLIC))
    with pytest.raises(ssl.SSLError):
        KeyAddress(url).read()
    with pytest.raises(ssl.SSLError):
        KeyAddress(url.replace("localhost", "127.0.0.1"), authority).read()
    assert _Issuer.asked == 0


def test_a_server_whose_issuer_is_away_starts_and_takes_no_token(caplog: pytest.LogCaptureFixture) -> None:
    held = TokenKeys(KeyAddress("https://127.0.0.1:1/keys"), ALGORITHMS, 1_000, lambda: 0.0)
    held.start()
    assert not held.current()
    assert "every token is refused" in caplog.text


def test_authorities_that_cannot_be_read_keep_a_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="authorities"):
        KeyAddress("https://localhost/keys", str(tmp_path / "none.pem"))
