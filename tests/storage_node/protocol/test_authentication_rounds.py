"""AUTH under fire: exchanges whose messages are changed, mixed and replayed at random. Nobody enters by what it was not
given, and nothing but a refusal comes of it (`--rounds N`: N times ten thousand exchanges)."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from metadata.security.exchange import DISABLED_PLUGIN, SASL_PLUGIN, SCRAM_PLUGIN, ChannelFacts
from metadata.security.sasl.authenticators import (
    SaslAuthenticator,
    SaslClientAuthenticator,
    ScramAuthenticator,
    ScramClientAuthenticator,
)
from metadata.security.sasl.credentials import write_scram_user
from metadata.security.sasl.machine import SaslError
from metadata.security.sasl.scram import stored_keys
from metadata.security.secrets import Secret
from storage_node.protocol.authentication import ClientAuthentication, ServerAuthentication
from storage_node.protocol.schema import Status

FACTS = ChannelFacts("node", secured=True, binding=lambda: b"this connection")
NAMES = {SASL_PLUGIN: "bookkeeper-1", SCRAM_PLUGIN: "flights"}
EXCHANGES = 10_000
PIECES = (b"", b"\0", b'"', b",", b"=", b"\\", b"\xff", b"nc=00000001", b"username=", b"authzid=", b"n,,n=x,r=y", b"p=")


class Fire:
    """Which messages are sent? Those of a real client, and what a random generator makes of them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.overheard: list[tuple[str, bytes]] = [(SASL_PLUGIN, b"")]
        jaas, users, password = folder / "jaas.conf", folder / "scram.json", folder / "password"
        if not jaas.exists():
            jaas.write_text(
                'Bookie { x.DigestLoginModule required user_bookkeeper-1="one" user_bookkeeper-2="two"; };\n'
                'BookKeeper { x.DigestLoginModule required username="bookkeeper-1" password="one"; };\n'
            )
            password.write_text("pencil")
            for path in (jaas, password):
                path.chmod(0o600)
            for name, text in (("flights", "pencil"), ("trains", "other")):
                write_scram_user(users, name, stored_keys(Secret(text)))
        self.servers = {
            SASL_PLUGIN: SaslAuthenticator(jaas, "Bookie", allowed=re.compile(".*"), without_tls=False),
            SCRAM_PLUGIN: ScramAuthenticator(users),
        }
        self.clients = {
            SASL_PLUGIN: SaslClientAuthenticator(jaas, "BookKeeper", without_tls=False),
            SCRAM_PLUGIN: ScramClientAuthenticator("flights", password),
        }

    def changed(self, message: bytes) -> bytes:
        rng = self.rng
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            start = rng.randint(0, len(message))
            end = min(len(message), start + rng.choice((0, 1, 1, 4, 40)))
            piece = rng.choice((rng.choice(PIECES), rng.randbytes(rng.randint(1, 4)), message[start:end] * 2))
            message = message[:start] + piece + message[end:]
        return message

    def exchange(self) -> bool:
        """Play one; return whether the client was let in. Fails where somebody else was, or nobody has asked."""
        rng = self.rng
        plugin = SCRAM_PLUGIN if rng.random() < 0.03 else SASL_PLUGIN  # its client hashes for milliseconds
        server = ServerAuthentication(self.servers, FACTS)
        client = ClientAuthentication(self.clients[plugin], FACTS, demands=True)
        said, payload = client.first()
        honest = True
        for _ in range(5):
            kind = rng.random()
            if kind < 0.4:
                payload, honest = self.changed(payload), False
            elif kind < 0.5:
                (said, payload), honest = rng.choice(self.overheard), False
            else:
                self.overheard[rng.randrange(50) % len(self.overheard)] = (said, payload)
                if len(self.overheard) < 50:
                    self.overheard.append((said, payload))
            answer = server.auth(said, payload)
            if server.proven:
                principal = server.principal
                assert principal is not None
                assert principal.name == NAMES[plugin]
                return True
            assert answer.plugin != DISABLED_PLUGIN
            if answer.refused is not None or answer.payload is None:
                assert not honest, answer.refused
                return False
            answered = self.changed(answer.payload) if rng.random() < 0.1 else answer.payload
            honest = honest and answered == answer.payload
            try:
                following = client.answered(Status.EOK, answer.plugin, answered)
            except SaslError:
                assert not honest
                assert not client.done
                return False
            if following is None:
                return False
            said, payload = plugin, following
        return False


@pytest.mark.torture
def test_whatever_is_sent_only_the_client_itself_enters(rounds: int | None, tmp_path: Path) -> None:
    entered = 0
    for seed in range(rounds or 1):
        fire = Fire(seed, tmp_path)
        count = EXCHANGES if rounds is not None else 300
        entered += sum(fire.exchange() for _ in range(count))
        # Else the test has not come as far as the last message.
        assert entered > count // 100
