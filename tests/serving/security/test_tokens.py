"""Tokens: what a good one proves, and that nothing else is taken."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry, serialize_compact

from dlspark.errors import SettingsError
from dlspark.serving.security.token_claims import MAX_TOKEN_BYTES
from dlspark.serving.security.token_issuing import SigningKey, TokenGrant
from dlspark.serving.security.tokens import TokenSettings, TokenVerifier
from metadata.foundation.errors import CallerError
from metadata.security.principals import Scheme
from metadata.security.proofs import NotAuthenticatedError
from metadata.security.restrictions import UNRESTRICTED, Restrictions
from metadata.security.rights import RuleBook, RuleSet, Subject, Verb

NOW = 1_800_000_000.0
GOOD: dict[str, Any] = {"iss": "dlspark", "aud": "dlspark", "sub": "alice", "nbf": NOW - 5, "exp": NOW + 300}
Mint = Callable[..., str]


def text_of(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class World:
    """One server that takes tokens of an EC key and an RSA key, and whoever attacks it."""

    def __init__(self, folder: Path) -> None:
        self.now = NOW
        self.elapsed = 0.0
        self.ec = ECKey.generate_key("P-256", {"kid": "ec"})
        self.rsa = RSAKey.generate_key(2048, {"kid": "rsa"})
        self.keys = folder / "keys.json"
        self.revoked = folder / "revoked"
        self.revoked.write_text("")
        self.publish(self.ec, self.rsa)
        self.settings = TokenSettings(token_keys=str(self.keys), token_revoked=str(self.revoked))
        self.verifier = self.made(self.settings)

    def publish(self, *keys: ECKey | RSAKey) -> None:
        self.keys.write_text(json.dumps({"keys": [one.as_dict(private=False) for one in keys]}))

    def made(self, wanted: TokenSettings) -> TokenVerifier:
        verifier = wanted.verifier(now=lambda: self.now, elapsed=lambda: self.elapsed)
        assert verifier is not None
        return verifier

    def token(
        self, claims: object = None, header: dict[str, Any] | None = None, key: Any = None, algorithm: str = "ES256"
    ) -> str:
        """A token that a key has signed, whatever it says."""
        head = {"alg": algorithm, "kid": "ec", "typ": "JWT"} if header is None else header
        return signed(head, GOOD if claims is None else claims, key or self.ec, algorithm)


def refreshed(world: World) -> None:
    world.verifier.refresh_keys()
    world.verifier.refresh_revoked()


def signed(header: dict[str, Any], claims: object, key: Any, algorithm: str) -> str:
    """Sign by the algorithm, whatever the header says."""
    data = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    body = f"{text_of(header)}.{text_of(data)}".encode()
    signature = JWSRegistry.algorithms[algorithm].sign(body, key)
    return f"{body.decode()}.{text_of(signature)}"


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(name="world")
def _world(shared: World) -> World:
    """The same keys for all, and a state of its own."""
    shared.now, shared.elapsed = NOW, 0.0
    shared.publish(shared.ec, shared.rsa)
    shared.revoked.write_text("")
    shared.verifier = shared.made(shared.settings)
    return shared


def test_a_key_of_ed25519_takes_the_older_name_of_its_algorithm_too(world: World) -> None:
    """Most issuers still write EdDSA, into keys and tokens; it is no other algorithm, and no other key takes it."""
    key, ed_keys = OKPKey.generate_key("Ed25519", {"kid": "ed"}), world.keys.with_name("ed.json")
    for said in (None, "EdDSA", "Ed25519"):
        shown = {**key.as_dict(private=False), **({} if said is None else {"alg": said})}
        ed_keys.write_text(json.dumps({"keys": [shown, world.ec.as_dict(private=False)]}))
        verifier = world.made(replace(world.settings, token_keys=str(ed_keys)))
        for algorithm in ("Ed25519", "EdDSA"):
            token = signed({"alg": algorithm, "kid": "ed"}, GOOD, key, "Ed25519")
            assert verifier.verify(token).principal.name == "alice"
        with pytest.raises(NotAuthenticatedError, match="its key is not used with the algorithm"):
            verifier.verify(signed({"alg": "EdDSA", "kid": "ec"}, GOOD, world.ec, "ES256"))
        with pytest.raises(NotAuthenticatedError, match="signature"):
            verifier.verify(signed({"alg": "EdDSA", "kid": "ed"}, GOOD, OKPKey.generate_key("Ed25519"), "Ed25519"))


def test_a_good_token_proves_a_principal_with_roles_until_it_ends(world: World) -> None:
    proven = world.verifier.verify(world.token({**GOOD, "roles": ["client", "operator"]}))
    assert (proven.principal.name, proven.principal.scheme) == ("alice", Scheme.TOKEN)
    assert proven.principal.roles == {"client", "operator"}
    assert proven.principal.expires_at_s == NOW + 300 + 30
    assert proven.restrictions == UNRESTRICTED


def test_an_issuer_can_be_kept_from_the_names_and_roles_of_certificates(world: World) -> None:
    token = world.token({**GOOD, "sub": "operator", "roles": ["operator", "proxy"]})
    free = world.verifier.verify(token).principal
    assert (free.name, free.roles) == ("operator", {"operator", "proxy"})
    confined = replace(world.settings, token_name_prefix="token:", token_roles_prefix="token:")
    kept = world.made(confined).verify(token).principal
    assert (kept.name, kept.roles) == ("token:operator", {"token:operator", "token:proxy"})
    book = RuleBook(RuleSet(), [Subject.parse("user:operator"), Subject.parse("role:operator")])
    assert book.decide(free, Verb.READ, "orders").allowed
    assert not book.decide(kept, Verb.READ, "orders").allowed
    with pytest.raises(NotAuthenticatedError, match="`sub` is not a name"):
        world.made(replace(world.settings, token_name_prefix="t" * 255)).verify(world.token({**GOOD, "sub": "ab"}))


def test_the_claim_with_the_name_can_be_another_one(world: World) -> None:
    verifier = world.made(replace(world.settings, token_name_claim="email"))
    assert verifier.verify(world.token({**GOOD, "email": "bob@example.org"})).principal.name == "bob@example.org"
    with pytest.raises(NotAuthenticatedError, match="`email` is missing"):
        verifier.verify(world.token())


@pytest.mark.parametrize(
    "wrong", [{"token_name_claim": ""}, {"token_name_prefix": " a"}, {"token_roles_prefix": "a\u3164"}]
)
def test_settings_by_which_nobody_would_have_a_name_are_refused(world: World, wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r"tokenName|tokenRoles"):
        replace(world.settings, **wrong).rules()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "extra", [{"aud": ["others", "dlspark"]}, {"nbf": NOW + 29}, {"exp": NOW - 29, "nbf": NOW - 90}]
)
def test_what_is_taken_within_the_rules(world: World, extra: dict[str, Any]) -> None:
    assert world.verifier.verify(world.token({**GOOD, **extra})).principal.name == "alice"


def test_each_key_verifies_by_its_own_algorithm(world: World) -> None:
    header = {"alg": "RS256", "kid": "rsa", "x5t": "abc"}
    assert world.verifier.verify(world.token(None, header, world.rsa, "RS256")).key_id == "rsa"


def test_restrictions_narrow_and_are_read_strictly(world: World) -> None:
    token = world.token({**GOOD, "dlspark": {"logs": ["orders", "raw/*"], "verbs": ["read"]}})
    found = world.verifier.verify(token).restrictions
    assert found.allows("read", "orders")
    assert found.allows("read", "raw/1")
    assert not found.allows("write", "orders")
    assert not found.allows("read", "orders2")
    assert not found.allows("read", None)
    nothing = world.verifier.verify(world.token({**GOOD, "dlspark": {"logs": []}})).restrictions
    assert not nothing.allows("read", "orders")


CLAIMS: dict[str, dict[str, Any] | bytes] = {
    "another issuer": {**GOOD, "iss": "evil"},
    "an issuer's beginning": {**GOOD, "iss": "dlsparkx"},
    "issuers as a list": {**GOOD, "iss": ["dlspark"]},
    "no issuer": {name: value for name, value in GOOD.items() if name != "iss"},
    "another audience": {**GOOD, "aud": "others"},
    "an audience that is an object": {**GOOD, "aud": {"dlspark": 1}},
    "audiences of several kinds": {**GOOD, "aud": ["dlspark", 1]},
    "no audience": {name: value for name, value in GOOD.items() if name != "aud"},
    "expired": {**GOOD, "nbf": NOW - 600, "exp": NOW - 31},
    "not yet valid": {**GOOD, "nbf": NOW + 31},
    "made in the future": {**GOOD, "iat": NOW + 31},
    "no end": {name: value for name, value in GOOD.items() if name != "exp"},
    "no beginning": {name: value for name, value in GOOD.items() if name != "nbf"},
    "an end that is a text": {**GOOD, "exp": str(NOW + 300)},
    "an end that is true": {**GOOD, "exp": True},
    "an end that is no number": json.dumps({**GOOD, "exp": float("nan")}).encode(),
    "an end without end": json.dumps({**GOOD, "exp": float("inf")}).encode(),
    "an end as 1e999": json.dumps(GOOD).replace(str(NOW + 300), "1e999").encode(),
    "good for a year": {**GOOD, "exp": NOW + 365 * 86_400},
    "the end before the beginning": {**GOOD, "nbf": NOW, "exp": NOW - 1},
    "no name": {name: value for name, value in GOOD.items() if name != "sub"},
    "an empty name": {**GOOD, "sub": ""},
    "a name with a line's end": {**GOOD, "sub": "alice\nroot"},
    "a name that is a number": {**GOOD, "sub": 0},
    "a long name": {**GOOD, "sub": "a" * 257},
    "a name with a filler that nobody sees": {**GOOD, "sub": "operator\u3164"},
    "a name with a space behind it": {**GOOD, "sub": "operator "},
    "a name in another spelling": {**GOOD, "sub": "Zoe\u0308"},
    "a role with a filler that nobody sees": {**GOOD, "roles": ["operator\u3164"]},
    "roles that are a text": {**GOOD, "roles": "operator"},
    "too many roles": {**GOOD, "roles": ["r"] * 65},
    "a misspelled restriction": {**GOOD, "dlspark": {"log": ["orders"]}},
    "an unknown verb": {**GOOD, "dlspark": {"verbs": ["read", "own"]}},
    "a pattern that is none": {**GOOD, "dlspark": {"logs": ["a*b"]}},
    "restrictions that are a list": {**GOOD, "dlspark": ["read"]},
    "restrictions that are null": {**GOOD, "dlspark": None},
    "an id with a space behind it": {**GOOD, "jti": "stolen "},
    "a name twice": json.dumps(GOOD).replace('"sub"', '"sub": "bob", "sub"').encode(),
    "a list": json.dumps([GOOD]).encode(),
    "no JSON": b"{",
    "no UTF-8": b'{"iss": "\xff"}',
    "deep JSON": b'{"a":' + b"[" * 3_000 + b"]" * 3_000 + b"}",
    "a number of thousands of digits": b'{"exp":' + b"9" * 5_000 + b"}",
}


def test_a_token_is_good_for_the_longest_lifetime_and_not_for_longer(world: World) -> None:
    key, keys = SigningKey.make("ES256"), world.keys.with_name("longest.json")
    keys.unlink(missing_ok=True)
    key.publish(keys)
    verifier = world.made(replace(world.settings, token_keys=str(keys)))
    longest = TokenSettings().token_max_lifetime_s
    for seconds, taken in ((longest, True), (longest + 1, False)):
        token = key.issue(TokenGrant("task", seconds, UNRESTRICTED), NOW).reveal()
        if taken:
            assert verifier.verify(token).principal.expires_at_s == NOW + longest + 30
        else:
            with pytest.raises(NotAuthenticatedError, match="good for more than 86400 s"):
                verifier.verify(token)


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_that_are_refused_though_a_key_has_signed_them(world: World, name: str) -> None:
    with pytest.raises(NotAuthenticatedError):
        world.verifier.verify(world.token(CLAIMS[name]))
    assert world.verifier.verify(world.token(json.dumps(GOOD).encode())).principal.name == "alice"


HEADERS: dict[str, dict[str, Any]] = {
    "alg none": {"alg": "none", "kid": "ec"},
    "alg NONE": {"alg": "NONE", "kid": "ec"},
    "no alg": {"kid": "ec"},
    "alg of another kind": {"alg": 256, "kid": "ec"},
    "alg of the other key": {"alg": "RS256", "kid": "ec"},
    "alg of an HMAC": {"alg": "HS256", "kid": "ec"},
    "alg not set": {"alg": "ES512", "kid": "ec"},
    "no kid": {"alg": "ES256"},
    "an empty kid": {"alg": "ES256", "kid": ""},
    "an unknown kid": {"alg": "ES256", "kid": "other"},
    "a kid that is a path": {"alg": "ES256", "kid": "../../etc/passwd"},
    "a kid that is /dev/null": {"alg": "ES256", "kid": "/dev/null"},
    "a kid that is an address": {"alg": "ES256", "kid": "https://evil.example/keys"},
    "a kid that is a list": {"alg": "ES256", "kid": ["ec"]},
    "a kid with a NUL": {"alg": "ES256", "kid": "ec\0"},
    "jku": {"alg": "ES256", "kid": "ec", "jku": "https://evil.example/keys"},
    "jku of a file": {"alg": "ES256", "kid": "ec", "jku": "file:///etc/passwd"},
    "x5u": {"alg": "ES256", "kid": "ec", "x5u": "https://evil.example/chain"},
    "x5c": {"alg": "ES256", "kid": "ec", "x5c": ["AAAA"]},
    "jwk": {"alg": "ES256", "kid": "ec", "jwk": {"kty": "EC"}},
    "crit": {"alg": "ES256", "kid": "ec", "crit": ["exp"]},
    "crit, empty": {"alg": "ES256", "kid": "ec", "crit": []},
    "b64": {"alg": "ES256", "kid": "ec", "b64": False},
    "nested": {"alg": "ES256", "kid": "ec", "cty": "JWT"},
    "encrypted": {"alg": "ES256", "kid": "ec", "enc": "A128GCM"},
    "compressed": {"alg": "ES256", "kid": "ec", "zip": "DEF"},
    "of another type": {"alg": "ES256", "kid": "ec", "typ": "secevent+jwt"},
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_are_refused_though_the_key_has_signed_them(world: World, name: str) -> None:
    with pytest.raises(NotAuthenticatedError):
        world.verifier.verify(world.token(None, HEADERS[name]))
    assert world.verifier.verify(world.token(None, {"alg": "ES256", "kid": "ec"})).key_id == "ec"


def test_a_key_of_the_senders_own_is_not_taken(world: World) -> None:
    evil = ECKey.generate_key("P-256")
    for header in ({"alg": "ES256", "kid": "ec"}, {"alg": "ES256", "kid": "ec", "jwk": evil.as_dict(private=False)}):
        with pytest.raises(NotAuthenticatedError):
            world.verifier.verify(signed(header, GOOD, evil, "ES256"))
    assert world.verifier.verify(signed({"alg": "ES256", "kid": "ec"}, GOOD, world.ec, "ES256")).key_id == "ec"


def test_a_public_key_is_no_secret_of_an_hmac(world: World) -> None:
    public = (
        world.rsa.as_pem(private=False),
        json.dumps(world.rsa.as_dict(private=False)).encode(),
        world.rsa.as_der(),
    )
    for secret in public:
        for algorithm in ("HS256", "hs256"):
            body = f"{text_of({'alg': algorithm, 'kid': 'rsa'})}.{text_of(GOOD)}"
            mac = hmac.new(secret, body.encode(), hashlib.sha256).digest()
            with pytest.raises(NotAuthenticatedError):
                world.verifier.verify(f"{body}.{text_of(mac)}")
    # Nor where an operator has allowed HMAC for another key.
    allowed = world.made(replace(world.settings, token_algorithms=("HS256", "RS256", "ES256")))
    with pytest.raises(NotAuthenticatedError):
        allowed.verify(f"{body}.{text_of(mac)}")
    # The same shape is taken where the secret is one.
    secret, secrets_file = b"s" * 32, world.keys.with_name("secret.json")
    secrets_file.write_text(json.dumps({"keys": [OctKey.import_key(secret, {"kid": "rsa"}).as_dict(private=True)]}))
    secrets_file.chmod(0o600)
    taken = world.made(replace(world.settings, token_keys=str(secrets_file), token_algorithms=("HS256",)))
    body = f"{text_of({'alg': 'HS256', 'kid': 'rsa'})}.{text_of(GOOD)}"
    mac = hmac.new(secret, body.encode(), hashlib.sha256).digest()
    assert taken.verify(f"{body}.{text_of(mac)}").principal.name == "alice"


def test_texts_that_are_no_token(world: World) -> None:
    good = world.token()
    header, claims, signature = good.split(".")
    unsigned = f"{text_of({'alg': 'none', 'kid': 'ec'})}.{claims}."
    texts = [
        "",
        ".",
        "..",
        header,
        f"{header}.{claims}",
        f"{header}.{claims}.",
        unsigned,
        f"{good}.{signature}",
        f"{good}\n",
        f" {good}",
        f"{good}=",
        f"Bearer {good}",
        good.replace(".", "。"),
        json.dumps({"payload": claims, "signatures": [{"protected": header, "signature": signature}]}),
        f"{header}.{claims}.{'A' * MAX_TOKEN_BYTES}",
        f"{header}.{text_of({**GOOD, 'sub': 'root'})}.{signature}",
        f"{text_of({'alg': 'ES256', 'kid': 'ec', 'typ': 'jwt'})}.{claims}.{signature}",
        f"{header}.{claims}.{text_of(bytes(64))}",
        f"{header}.{claims}.{text_of(b'')}",
    ]
    for text in texts:
        with pytest.raises(NotAuthenticatedError):
            world.verifier.verify(text)
    assert world.verifier.verify(good).principal.name == "alice"


def test_another_spelling_of_the_same_bytes_is_refused(world: World) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    header = {"alg": "ES256", "kid": "ec", "typ": "JWT", "x5t": "a"}  # the last of its letters has bits to spare
    text = next(text for pad in range(3) if len(text := text_of({**header, "x5t": "a" * (pad + 1)})) % 4)
    other = text[:-1] + alphabet[alphabet.index(text[-1]) + 1]
    body = f"{other}.{text_of(GOOD)}"
    assert base64.urlsafe_b64decode(other + "==="[: -len(other) % 4]) == base64.urlsafe_b64decode(
        text + "==="[: -len(text) % 4]
    )
    signature = JWSRegistry.algorithms["ES256"].sign(body.encode(), world.ec)
    with pytest.raises(NotAuthenticatedError, match="base64url"):
        world.verifier.verify(f"{body}.{text_of(signature)}")


def test_no_message_holds_the_token(world: World) -> None:
    for claims in ({**GOOD, "iss": "evil"}, {**GOOD, "sub": "secret\n"}, b"secret"):
        token = world.token(claims)
        with pytest.raises(NotAuthenticatedError) as caught:
            world.verifier.verify(token)
        assert "secret" not in str(caught.value)
        assert not any(part in str(caught.value) for part in token.split("."))


@settings(max_examples=40)
@given(st.one_of(st.text(max_size=200), st.binary(max_size=120).map(lambda data: data.decode("latin-1"))))
def test_garbage_is_refused_and_nothing_else_is_raised(shared: World, text: str) -> None:
    for token in (text, f"{text}.{text}.{text}", f"{text_of(text.encode())}.{text_of(GOOD)}.{text_of(text.encode())}"):
        with pytest.raises(NotAuthenticatedError):
            shared.verifier.verify(token)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "jku", "jwk"]), _JSON, max_size=4),
    st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "roles", "dlspark", "jti"]), _JSON),
)
def test_any_header_and_claims_are_refused_or_read(
    shared: World, header: dict[str, Any], claims: dict[str, Any]
) -> None:
    shared.now = NOW
    with pytest.raises(NotAuthenticatedError):
        shared.verifier.verify(shared.token(claims, header))
    try:
        proven = shared.verifier.verify(shared.token({**GOOD, **claims}))
    except NotAuthenticatedError:
        return
    assert proven.principal.name == claims.get("sub", "alice")


# ---------------------------------------------------------------------- in the middle of a session


def test_a_token_ends_with_its_time_its_key_or_its_revocation(world: World) -> None:
    proven = world.verifier.verify(world.token({**GOOD, "jti": "one"}))
    assert world.verifier.objection(proven) is None
    world.now = NOW + 331
    assert world.verifier.objection(proven) == "the token has expired"
    world.now = NOW
    world.revoked.write_text("other\none\n")
    refreshed(world)
    assert world.verifier.objection(proven) == "the token was revoked"
    with pytest.raises(NotAuthenticatedError, match="revoked"):
        world.verifier.verify(world.token({**GOOD, "jti": "one"}))
    world.revoked.write_text("")
    world.publish(world.rsa)
    refreshed(world)
    assert world.verifier.objection(proven) == "the key of the token is used no longer"


def test_a_token_that_was_good_is_refused_once_its_key_is_another_one(world: World) -> None:
    token = world.token()
    world.verifier.verify(token)
    world.publish(ECKey.generate_key("P-256", {"kid": "ec"}))
    refreshed(world)
    with pytest.raises(NotAuthenticatedError, match="signature"):
        world.verifier.verify(token)


def test_a_session_ends_when_another_key_has_its_keys_id(world: World) -> None:
    """Its id alone was compared: what a stolen key had opened stayed open until the tokens ended."""
    proven = world.verifier.verify(world.token())
    world.publish(ECKey.generate_key("P-256", {"kid": "ec"}))
    refreshed(world)
    assert world.verifier.objection(proven) == "the key of the token is used no longer"


def test_keys_that_cannot_be_read_again_stay_for_a_bounded_time(world: World, caplog: pytest.LogCaptureFixture) -> None:
    token = world.token()
    for content in (b"{", b"[]", None):
        if content is None:
            world.keys.unlink()
        else:
            world.keys.write_bytes(content)
        refreshed(world)
        world.elapsed += 10
        world.verifier.verify(token)
    assert caplog.text.count("cannot be read") == 1
    world.elapsed += 86_400
    with pytest.raises(NotAuthenticatedError, match="no key"):
        world.verifier.verify(token)
    world.publish(world.ec)
    refreshed(world)
    world.verifier.verify(token)


# ---------------------------------------------------------------------- keys of one's own


def test_keys_and_tokens_of_ones_own(tmp_path: Path) -> None:
    for number, algorithm in enumerate(("ES256", "Ed25519", "ES384")):
        made = SigningKey.make(algorithm)
        private = tmp_path / f"{number}.jwk"
        made.write(private)
        made.publish(tmp_path / "keys.json")
        assert private.stat().st_mode & 0o777 == 0o600
        read = SigningKey.read(private)
        wanted = TokenSettings(
            token_keys=str(tmp_path / "keys.json"), token_algorithms=("ES256", "Ed25519", "ES384"), token_issuer="us"
        )
        verifier = wanted.verifier()
        assert verifier is not None
        restrictions = Restrictions(("orders*",), frozenset({"read"}))
        token = read.issue(TokenGrant("task", 60, restrictions, frozenset({"client"}), "us"))
        proven = verifier.verify(token.reveal())
        assert (proven.principal.name, proven.principal.roles) == ("task", {"client"})
        assert proven.restrictions == restrictions
        assert proven.token_id
    assert len(json.loads((tmp_path / "keys.json").read_text())["keys"]) == 3


def test_a_signing_key_shows_nothing_of_itself(tmp_path: Path) -> None:
    made = SigningKey.make("ES256")
    made.write(tmp_path / "key.jwk")
    secret = json.loads((tmp_path / "key.jwk").read_text())["d"]
    assert secret not in repr(made) + str(vars(SigningKey))
    with pytest.raises(TypeError):
        pickle.dumps(made)
    with pytest.raises(CallerError, match="already"):
        made.write(tmp_path / "key.jwk")
    (tmp_path / "key.jwk").chmod(0o640)
    with pytest.raises(CallerError, match="others"):
        SigningKey.read(tmp_path / "key.jwk")
    (tmp_path / "broken.jwk").write_text(json.dumps({"kty": "EC", "d": secret, "alg": "ES256", "kid": "x"}))
    (tmp_path / "broken.jwk").chmod(0o600)
    with pytest.raises(CallerError, match="no signing key") as caught:
        SigningKey.read(tmp_path / "broken.jwk")
    assert secret not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "changed",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"seconds": 0},
        {"restrictions": Restrictions(("a*b",))},
        {"restrictions": Restrictions(None, frozenset({"own"}))},
    ],
)
def test_what_no_proxy_would_take_is_not_issued(changed: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        TokenGrant(**{"name": "task", "seconds": 60, "restrictions": UNRESTRICTED, **changed})


# ---------------------------------------------------------------------- what a server is set to


def test_without_keys_there_is_no_verifier() -> None:
    assert TokenSettings().verifier() is None


@pytest.mark.parametrize(
    "changed",
    [
        {"token_algorithms": ("none",)},
        {"token_algorithms": ("ES256", "HS1")},
        {"token_algorithms": ()},
        {"token_issuer": ""},
        {"token_audience": ""},
        {"token_keys": "file:///etc/keys.json"},
        {"token_keys": "http://keys.example/keys"},
        {"token_keys": "ftp://keys.example/keys"},
        {"token_keys": "https://"},
        {"token_keys": "https://user:word@keys.example/keys"},
        {"token_keys": "/nowhere/keys.json"},
        {"token_revoked": "/nowhere/revoked"},
    ],
)
def test_settings_with_which_a_server_does_not_start(world: World, changed: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        replace(world.settings, **changed).verifier()


def test_a_secret_of_an_hmac_is_taken_only_where_that_is_named(world: World, tmp_path: Path) -> None:
    secret = OctKey.generate_key(256, {"kid": "shared"})
    place = tmp_path / "secret.json"
    place.write_text(json.dumps({"keys": [secret.as_dict()]}))
    place.chmod(0o600)
    wanted = replace(world.settings, token_keys=str(place))
    with pytest.raises(SettingsError, match="no key"):
        wanted.verifier()
    allowed = replace(wanted, token_algorithms=("HS256",))
    token = serialize_compact({"alg": "HS256", "kid": "shared"}, json.dumps(GOOD), secret, algorithms=["HS256"])
    assert world.made(allowed).verify(token).principal.name == "alice"
    place.chmod(0o644)
    with pytest.raises(SettingsError, match="everybody"):
        allowed.verifier()


@pytest.mark.parametrize("name", ["alice ", " alice", "cafe\u0301", "alice\u200b", "", "a\n", "x" * 2000])
def test_no_token_is_made_for_a_name_or_a_role_that_no_proxy_takes(name: str) -> None:
    TokenGrant("alice", 60, UNRESTRICTED, roles=frozenset({"client"}))
    with pytest.raises(CallerError, match="is no name of at most"):
        TokenGrant(name, 60, UNRESTRICTED)
    with pytest.raises(CallerError, match="is no name of at most"):
        TokenGrant("alice", 60, UNRESTRICTED, roles=frozenset({"client", name}))
