"""Which kinds of handshakes, pieces of them, and tokens are thrown at doors (`Attacked`), and what they are."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import warnings
from collections.abc import Callable
from datetime import timedelta

from joserfc.jwk import ECKey

from dlspark.core.codec.dlsn import DLSN
from dlspark.serving.protocol.operations import (
    AcceptStreams,
    BeginEpoch,
    CreateStream,
    DeleteStream,
    Heartbeat,
    MoveStream,
    ReadBatch,
    ReadFrom,
    ReleaseStream,
    Request,
    SetFencingToken,
    TakeStream,
    TruncateStream,
    WriteRecords,
)
from helpers.security.attacked import Attacked, base64_of, by_itself, issued_by
from helpers.security.minting import SERVER, MintedAuthority, now, replace_file

HANDSHAKES = {
    "no certificate": "certificate",
    "foreign authority": "issuer",
    "impostor authority": "signature",
    "signed by itself": "self",
    "signed by a client": "",
    "expired": "expired",
    "not yet valid": "not yet valid",
    "revoked": "revoked",
    "good for servers alone": "purpose",
    "TLS 1.0 and 1.1": "",
    "weak cipher": "",
}
"""Handshakes of who does not prove itself, and a word of the reason in the audit trail."""

PIECES = ("plain request", "noise", "a cut hello", "a replayed session", "an endless hello", "an alert")
"""What is sent where a handshake is to be."""

GRPC_SAYS = {
    "no certificate": "PEER_DID_NOT_RETURN_A_CERTIFICATE",
    "foreign authority": "unable to get local issuer certificate",
    "impostor authority": "certificate signature failure",
    "signed by itself": "KEY_USAGE_BIT_INCORRECT",
    "signed by a client": "invalid CA certificate",
    "expired": "certificate has expired",
    "not yet valid": "certificate is not yet valid",
    "good for servers alone": "unsupported certificate purpose",
    "TLS 1.0 and 1.1": "UNSUPPORTED_PROTOCOL",
    "weak cipher": "NO_SHARED_CIPHER",
    "plain request": "WRONG_VERSION_NUMBER",
    "noise": "WRONG_VERSION_NUMBER",
    "a cut hello": "",
    "a replayed session": "BAD_DECRYPT",
    "an endless hello": "EXCESSIVE_MESSAGE_SIZE",
    "an alert": "SSLV3_ALERT_HANDSHAKE_FAILURE",
}
"""What gRPC's own library writes to standard error: the trail has no line of it, and the client sees an end alone."""

TOKENS: dict[str, Callable[[Attacked], str]] = {
    "alg none": lambda world: unsigned(world, "none"),
    "alg NONE": lambda world: unsigned(world, "NONE"),
    "an HMAC of the public key": lambda world: by_hmac(world),
    "signed with another key": lambda world: world.token({}, key=ECKey.generate_key("P-256")),
    "changed after it was signed": lambda world: changed(world.token({})),
    "an unknown kid": lambda world: world.token({}, {"kid": "other"}),
    "no kid": lambda world: world.token({}, {"kid": None}),
    "a kid that is a path": lambda world: world.token({}, {"kid": "../../dev/null"}),
    "jku": lambda world: world.token({}, {"jku": "https://evil.example/keys"}),
    "jku of a file": lambda world: world.token({}, {"jku": "file:///etc/passwd"}),
    "x5u": lambda world: world.token({}, {"x5u": "https://evil.example/chain"}),
    "x5c": lambda world: world.token({}, {"x5c": ["AAAA"]}),
    "jwk": lambda world: with_own_key(world),
    "crit": lambda world: world.token({}, {"crit": ["exp"]}),
    "another issuer": lambda world: world.token({"iss": "evil"}),
    "no issuer": lambda world: world.token({"iss": None}),
    "another audience": lambda world: world.token({"aud": "others"}),
    "no audience": lambda world: world.token({"aud": None}),
    "expired": lambda world: world.token({"nbf": world.now_s() - 600, "exp": world.now_s() - 60}),
    "not yet valid": lambda world: world.token({"nbf": world.now_s() + 200}),
    "without an end": lambda world: world.token({"exp": None}),
    "good for a year": lambda world: world.token({"exp": world.now_s() + 365 * 86_400}),
    "revoked": lambda world: world.token({"jti": REVOKED}),
    "noise": lambda world: "noise.noise.noise",
}
"""Tokens that prove nothing."""

REVOKED = "a token that was revoked"


def unsigned(world: Attacked, algorithm: str) -> str:
    """Return a token that says that it is not signed."""
    head = base64_of(json.dumps({"alg": algorithm, "kid": "ours"}).encode())
    return f"{head}.{world.token({}).split('.')[1]}."


def by_hmac(world: Attacked) -> str:
    """Return a token whose secret is the key that everybody may know."""
    head = base64_of(json.dumps({"alg": "HS256", "kid": "ours"}).encode())
    body = f"{head}.{world.token({}).split('.')[1]}"
    mac = hmac.new(world.key.as_pem(private=False), body.encode(), hashlib.sha256).digest()
    return f"{body}.{base64_of(mac)}"


def changed(token: str) -> str:
    """Return it with another name in it."""
    head, claims, signature = token.split(".")
    said = json.loads(base64.urlsafe_b64decode(claims + "=="))
    return f"{head}.{base64_of(json.dumps({**said, 'sub': 'root', 'roles': ['operator']}).encode())}.{signature}"


def with_own_key(world: Attacked) -> str:
    """Return a token that brings the key with which it is to be verified."""
    own = ECKey.generate_key("P-256", {"kid": "ours"})
    return world.token({}, {"jwk": own.as_dict(private=False)}, own)


REQUESTS: dict[str, tuple[Request, str | None]] = {
    "read": (ReadBatch("orders", ReadFrom.OLDEST), None),
    "write": (WriteRecords("orders", (b"x",)), None),
    "begin an epoch of a producer": (BeginEpoch("orders", "producer"), None),
    "set a fencing token": (SetFencingToken("orders", b"t"), None),
    "heartbeat": (Heartbeat("orders"), None),
    "truncate": (TruncateStream("orders", DLSN(1, 0, 0)), None),
    "create": (CreateStream("orders"), "Create"),
    "delete": (DeleteStream("orders"), "Delete"),
    "release": (ReleaseStream("orders"), "Release"),
    "move": (MoveStream("orders", "host:1"), None),
    "take over": (TakeStream("orders", "host:1"), None),
    "close a proxy": (AcceptStreams(False), None),
    "delete her own": (DeleteStream("hers"), "Delete"),
    "create above her own": (CreateStream("hers/../orders"), "Create"),
}
"""What somebody with a proof and without a right asks, and by which method of gRPC that has no fields but the log."""


async def handshake(world: Attacked, kind: str) -> tuple[ssl.SSLContext, str]:
    """Return the context of such a client, and the word of the reason."""
    authority, roles = world.authority, ["client"]
    pair = authority.issue("honest", roles=roles)
    context: ssl.SSLContext | None = None
    if kind == "no certificate":
        context = world.context(None)
    elif kind == "foreign authority":
        pair = MintedAuthority("Somebody else's").issue("honest", roles=roles)
    elif kind == "impostor authority":
        pair = MintedAuthority().issue("honest", roles=roles)  # by the name of the right one
    elif kind == "signed by itself":
        pair = by_itself("honest")
    elif kind == "signed by a client":
        leaf = authority.issue("mallory", roles=roles)
        context = world.context(issued_by(leaf, "root", roles=["operator"]), leaf)
    elif kind == "expired":
        pair = authority.issue("honest", roles=roles, ends=now() - timedelta(days=1))
    elif kind == "not yet valid":
        pair = authority.issue("honest", roles=roles, begins=now() + timedelta(days=1))
    elif kind == "revoked":
        replace_file(world.server_folder / "revoked.pem", authority.revoke(pair))
        await world.look()
    elif kind == "good for servers alone":
        pair = authority.issue("honest", roles=roles, usages=(SERVER,))
    context = context or world.context(pair)
    if kind == "TLS 1.0 and 1.1":
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    elif kind == "weak cipher":
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES128-SHA")  # neither new nor authenticated
    return context, HANDSHAKES[kind]


def pieces(world: Attacked, kind: str, door: str) -> tuple[bytes, bool]:
    """Return what is sent, and whether it is sent without asking the node for TLS before."""
    session = recorded(world, door)
    return {
        "plain request": (world.request(door), True),
        "noise": (b"\x16\x03\x01" + bytes(range(256)) * 4, False),
        "a cut hello": (session[:100], False),
        "a replayed session": (session, False),
        "an endless hello": (b"".join(endless_hello()), False),
        "an alert": (b"\x15\x03\x03\x00\x02\x02\x28", False),
    }[kind]


def endless_hello() -> list[bytes]:
    """Return the records of a hello of 16 MB, as far as a server might be patient."""
    body = b"\x01\xff\xff\xff\x03\x03" + bytes(130_000)
    return [
        b"\x16\x03\x01" + len(body[at : at + 16_000]).to_bytes(2, "big") + body[at : at + 16_000]
        for at in range(0, len(body), 16_000)
    ]


def recorded(world: Attacked, door: str) -> bytes:
    """Return all bytes that an honest client has sent in a session with this very server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = world.context(world.authority.issue("honest", roles=["client"]))
    client = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    incoming = ssl.MemoryBIO()
    server = world.identity.server_context().wrap_bio(incoming, to_client, server_side=True)
    sent, done = b"", False
    while not done:
        try:
            client.do_handshake()
            done = True
            client.write(world.request(door))
        except ssl.SSLWantReadError:
            pass
        data = to_server.read()
        sent += data
        incoming.write(data)
        try:
            server.do_handshake()
        except ssl.SSLWantReadError:
            pass
    return sent
