"""Which kinds of connection does a ZooKeeper's port take? Asked once one has ended without a word.

A server ends a connection of the wrong kind as it ends any: it says nothing of TLS. And it ends good ones as well while
it starts, stops, or is full. So other connections ask what it speaks:

    in plain    `srvr`: words come back, if only that the command is not allowed, or the connection is ended
    by TLS      the first words of a handshake: a record of TLS comes back, an alert for one, or the connection is ended

A port is said to be of the other kind only where it answers to that one, ends the own one without a word, and answers
to the other one again, twice over: so it was there all the time. One that answers to both takes both
(`client.portUnification`). What does not answer in time, or is not there, says nothing.

Neither question has a secret in it, and neither answer is trusted with anything but an error's words, and with an early
end of the wait for a first session: a session goes on to speak what it is set to. The questions have a thread of their
own, for a server that hangs must hold up neither the session, which goes on to the next server, nor its end.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Final

from metadata.zookeeper.tls_socket import TlsFailure

ANSWER_S: Final = 5.0
"""How long a server may take for one answer. Nothing waits for it."""
ASK_EVERY_S: Final = 5.0
"""The shortest time between two questions for one port."""
_ROUNDS: Final = 2
_END_S: Final = 1.0
"""How long the end of a session waits for a question that is broken off, at the most."""
_END_SLICE_S: Final = 0.02
_PLAIN_WORDS: Final = b"srvr\n"
"""With one byte more than the command: a port of TLS tells by five bytes that they are none of TLS."""
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""How an alert, and a handshake, of any version of TLS begins."""

PLAIN_AT_SECURED: Final = TlsFailure("the server speaks TLS at this port, and this session is without", lasting=True)
SECURED_AT_PLAIN: Final = TlsFailure(
    "the server speaks no TLS at this port: it answers in plain, and nothing else is said to it so", lasting=True
)
ENDED_AT_SECURED: Final = TlsFailure(
    "the server, which does speak TLS at this port, ended the connection during the handshake without a word: it may be"
    " starting or stopping, or refuse this process's certificate",
    lasting=False,
)


class PortKind(enum.Enum):
    """What does a port take?"""

    PLAIN = "plain"
    TLS = "TLS"
    BOTH = "both"


class Answer(enum.Enum):
    """What became of a question?"""

    UNDERSTOOD = "understood"
    ENDED = "ended"
    """The server ended the connection, and had not understood."""
    NONE = "none"
    """It is not there, or said nothing in time."""


class KindProbe:
    """Asks one port, in a thread of its own.

    Args:
        address, port: where it listens.
        by_tls: the session's own kind.
        before: what was found by the question before this one.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(self, address: str, port: int, *, by_tls: bool, before: PortKind | None = None) -> None:
        self.began = time.monotonic()
        self._found = before
        self._where = address, port
        self._by_tls = by_tls
        self._asking: socket.socket | None = None
        self._given_up = False
        self._forgotten = False
        self._thread = threading.Thread(target=self._run, name="dlspark-zookeeper-kind", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """True once it has been answered, or has not."""
        return not self._thread.is_alive()

    @property
    def found(self) -> PortKind | None:
        """What the port takes, by the last question that has ended; None: it is not known."""
        return None if self._forgotten else self._found

    def forget(self) -> None:
        """Let nothing count that was found, or is being found: the server has been away, or has changed, since."""
        self._forgotten = True

    def end(self) -> None:
        """Give up: the session is closed, and nothing of it stays behind (I16)."""
        self._given_up = True
        until = time.monotonic() + _END_S
        while not self.ended and time.monotonic() < until:
            asking = self._asking
            if asking is not None:
                # More than once: a socket that is about to be connected takes no end of a connection yet.
                with contextlib.suppress(OSError):
                    asking.shutdown(socket.SHUT_RDWR)
            self._thread.join(_END_SLICE_S)

    def _run(self) -> None:
        found = self._kind()
        if not self._given_up:
            self._found = found

    def _kind(self) -> PortKind | None:
        questions = (speaks_plain, speaks_tls)
        kinds = (PortKind.PLAIN, PortKind.TLS)
        own, other = int(self._by_tls), int(not self._by_tls)

        def ask(which: int) -> Answer:
            return questions[which](*self._where, self._keep)

        if ask(other) is not Answer.UNDERSTOOD:
            return kinds[own] if ask(own) is Answer.UNDERSTOOD else None
        for _ in range(_ROUNDS):
            said = ask(own)
            if said is Answer.UNDERSTOOD:
                return PortKind.BOTH
            if said is Answer.NONE or ask(other) is not Answer.UNDERSTOOD:
                return None
        return kinds[other]

    def _keep(self, connection: socket.socket) -> None:
        self._asking = connection
        if self._given_up:  # behind the line before; `end` does both the other way round, so that one of them sees it
            raise OSError("given up")


def speaks_tls(address: str, port: int, begun: Callable[[socket.socket], None] | None = None) -> Answer:
    """Return whether what listens there understands TLS, whatever it thinks of us. Waits for `ANSWER_S` at most for the
    connection, and for the answer; `begun` gets the socket before it is connected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent but the first words
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return _asked(address, port, outgoing.read(), 2, lambda answer: answer in _TLS_RECORDS, begun)


def speaks_plain(address: str, port: int, begun: Callable[[socket.socket], None] | None = None) -> Answer:
    """Return whether what listens there understands words in plain, as `speaks_tls` does."""
    return _asked(address, port, _PLAIN_WORDS, 1, bytes.isalpha, begun)


def _asked(
    address: str,
    port: int,
    words: bytes,
    count: int,
    understood: Callable[[bytes], bool],
    begun: Callable[[socket.socket], None] | None,
) -> Answer:
    """Say something, and judge the first `count` bytes that come back."""
    answer = b""
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as connection:
            connection.settimeout(ANSWER_S)
            if begun is not None:
                begun(connection)
            connection.connect(resolved)
            until = time.monotonic() + ANSWER_S
            try:
                connection.sendall(words)
                while len(answer) < count:
                    connection.settimeout(max(0.001, until - time.monotonic()))
                    chunk = connection.recv(count - len(answer))
                    if not chunk:
                        break
                    answer += chunk
            except (ConnectionResetError, BrokenPipeError):
                pass
    except OSError:
        return Answer.NONE
    return Answer.UNDERSTOOD if len(answer) == count and understood(answer) else Answer.ENDED
