"""Which kind of connection does a ZooKeeper's port take? Asked once one of the other kind has ended without a word.

A server ends a connection of the wrong kind as it ends any: it says nothing of TLS. So another connection asks what it
speaks, and only its answer decides; a server that is stopping, or full, answers neither question.

    a plain session was ended    the first words of TLS: a record of TLS comes back, an alert for one, or nothing
    one by TLS was ended         `srvr` in plain: words come back, if only that the command is not allowed, or nothing

Neither question has a secret in it, and neither answer is trusted with anything but an error's words: a session goes on
to speak what it is set to.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final

from metadata.zookeeper.homing import ASK_S, four_letters
from metadata.zookeeper.tls_socket import TlsFailure

ASK_EVERY_S: Final = 5.0
"""The shortest time between two questions of a session that cannot connect."""
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""How an alert, and a handshake, of any version of TLS begins."""

PLAIN_AT_SECURED: Final = TlsFailure("the server speaks TLS at this port, and this session is without", lasting=True)
SECURED_AT_PLAIN: Final = TlsFailure(
    "the server speaks no TLS at this port: it answers in plain, and nothing else is said to it so", lasting=True
)


def speaks_tls(address: str, port: int) -> bool:
    """Return whether what listens there answers to TLS, whatever it thinks of us. Waits for `ASK_S` at most."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent but the first words
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    answer = b""
    try:
        with socket.create_connection((address, port), ASK_S) as connection:
            connection.sendall(outgoing.read())
            while len(answer) < 2 and (chunk := connection.recv(2 - len(answer))):
                answer += chunk
    except OSError:
        return False
    return answer in _TLS_RECORDS


def speaks_plain(address: str, port: int) -> bool:
    """Return whether what listens there answers to words in plain."""
    return four_letters(address, port, "srvr")[:1].isalpha()
