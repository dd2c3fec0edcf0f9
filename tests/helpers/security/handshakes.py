"""Real handshakes of TLS in memory: no socket, no thread, no time."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True)
class Connected:
    """Both ends of a connection whose handshake is over."""

    client: ssl.SSLObject
    server: ssl.SSLObject


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None = "localhost") -> Connected:
    """Connect two contexts. Raises ssl.SSLError where one of them refuses, also after the other one is content: in
    TLS 1.3 a client learns with its first read that its certificate is not taken."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = Connected(
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    open_ends = {"client": ends.client, "server": ends.server}
    for _ in range(20):
        for name, end in list(open_ends.items()):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            del open_ends[name]
        if not open_ends:
            break
    else:
        raise AssertionError("the handshake does not end")
    ends.server.write(b"welcome")
    assert ends.client.read() == b"welcome"
    return ends
