"""`SessionTlsSocket`: TLS on a socket of kazoo's, and what it means where TLS fails.

The socket below stays a plain one, and TLS is done between two buffers beside it. So nothing can take TLS off a
connection that is in use (Python's `SSLSocket.shutdown` does, and what is sent after it goes in clear text), kazoo
waits for what TLS has decrypted rather than for bytes that may be TLS's own affair (a ticket, a new key), and an end
without `close_notify` is the end of a connection like any other: ZooKeeper's frames have lengths, none is cut short.

A connection that TLS ended says why (`TlsFailure`): kazoo knows lost connections alone, and would try again forever
without a word.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from metadata.security.shown_certificates import shown_beside

_CHUNK_BYTES: Final = 65_536
_REFUSED_BY_SERVER: Final = (
    "the server refuses this process's certificate or its ciphers ({alert}); the certificate may be missing, expired or"
    " revoked, or be of an authority that the server does not trust"
)
_NO_TLS: Final = "the server does not speak TLS at this port: it is the plain one, or not a ZooKeeper's"
_ENDED: Final = (
    "the server ended the connection during the handshake without a word: it may be starting or stopping, or speak no"
    " TLS at this port"
)
ENDED_AFTER_HANDSHAKE: Final = (
    "the server ended the connection right after the handshake: it refuses this process's certificate, or does not"
    " serve yet"
)


class ClientTls(Protocol):
    """With which certificates does a session speak TLS? `metadata.security.identity.TlsIdentity`, for one."""

    def client_context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        ...

    def refresh(self) -> bool:
        """Read the files again where they have changed; returns whether there is a new context. Called before each
        connection, and every few seconds."""
        ...

    def judge(self, der: bytes, *, shown: Sequence[bytes] | None = None) -> str | None:
        """Return why a server's certificate, once verified, is not good any more; None: it is. `shown`: what the server
        showed beside it; None: that is not known."""
        ...


@dataclass(frozen=True, slots=True)
class FixedTls:
    """Which context is there, for all connections?"""

    context: ssl.SSLContext

    def client_context(self) -> ssl.SSLContext:
        """Return it."""
        return self.context

    def refresh(self) -> bool:
        """Return False: nothing is read again."""
        return False

    def judge(self, der: bytes, *, shown: Sequence[bytes] | None = None) -> str | None:
        """Return None: what the handshake found holds as long as the connection."""
        return None


@dataclass(frozen=True, slots=True)
class TlsFailure:
    """Why did TLS not come about, and would the next attempt end in the same way?

    Args:
        reason: for a person.
        lasting: this server refuses us, or we it, until certificates are other ones; otherwise it may only be away.
    """

    reason: str
    lasting: bool


class CertificatesUnreadError(OSError):
    """Our own certificates could not be taken up: an OSError to kazoo, which tries again after one."""


class ServerRefusedError(OSError):
    """A server's certificate stopped being good while the connection was up."""


def tls_failure(error: BaseException, server_name: str) -> TlsFailure | None:
    """Return what an error means that ended a connection by TLS; None for one that TLS has no part in."""
    if isinstance(error, CertificatesUnreadError):
        return TlsFailure(str(error), lasting=True)
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        return TlsFailure(f"the certificate of {server_name} is not accepted: {said}", lasting=True)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return TlsFailure(_ENDED, lasting=False)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or "no reason given"
    if "ALERT" in reason:
        return TlsFailure(_REFUSED_BY_SERVER.format(alert=reason.lower().replace("_", " ")), lasting=True)
    if reason in ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return TlsFailure(_NO_TLS, lasting=True)
    return TlsFailure(f"TLS failed: {reason.lower().replace('_', ' ')}", lasting=True)


class SessionTlsSocket:
    """Takes the place of a socket in kazoo's hands. Of one thread, but for `break_off`.

    Args:
        connection: connected, and not blocking.
        context: of a client.
        server_name: the name or address that the server's certificate must have, where the context checks it.
        await_writable: returns once the connection takes bytes, or raises.
    """

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        server_name: str,
        await_writable: Callable[[socket.socket], None],
    ) -> None:
        self._connection = connection
        self._await_writable = await_writable
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=False, server_hostname=server_name)
        self._unsent = b""
        self._plain = bytearray()
        self._ended = False
        self._error: OSError | None = None

    def shake_hands(self, await_readable: Callable[[socket.socket], None]) -> None:
        """Do TLS's handshake; `await_readable` returns once there are bytes, or raises. Raises ssl.SSLError where it
        fails, OSError where the connection does."""
        while True:
            try:
                self._tls.do_handshake()
                return self._send_all()
            except ssl.SSLWantReadError:
                self._send_all()
            except ssl.SSLError:
                # The other side is told why, which its log shows.
                with contextlib.suppress(OSError):
                    self._push()
                raise
            await_readable(self._connection)
            self._receive()
            if self._error is not None and not self._incoming.pending:
                raise self._error

    def peer_certificate(self) -> bytes | None:
        """Return the server's certificate (DER)."""
        return self._tls.getpeercert(True)

    def shown(self) -> tuple[bytes, ...] | None:
        """Return what the server showed beside it (DER); None: that is not known."""
        return shown_beside(self._tls)

    # ---- what kazoo does with a socket -----------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._connection.fileno()

    def setblocking(self, flag: bool) -> None:
        """Do nothing: it never blocks."""

    def pending(self) -> int:
        """Return how many decrypted bytes there are."""
        return len(self._plain)

    def readable(self) -> bool:
        """Take in what has come, and return whether `recv` has something to return or to raise."""
        if not self._plain and self._error is None and not self._ended:
            self._receive()
            self._decrypt()
            with contextlib.suppress(OSError):  # TLS's own answers; a lost connection shows at the next read
                self._push()
        return bool(self._plain) or self._ended or self._error is not None

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes, none at the end. Raises ssl.SSLWantReadError where nothing has come, else why the
        connection is lost."""
        if not self.readable():
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing has come")
        if self._plain:
            taken = bytes(self._plain[:size])
            del self._plain[:size]
            return taken
        if self._error is not None:
            raise self._error
        return b""

    def send(self, data: bytes | memoryview) -> int:
        """Send all of `data`, and return its length."""
        sent = self._tls.write(data)
        self._send_all()
        return sent

    def close(self) -> None:
        """Say that nothing follows, where the connection takes it at once, and close it."""
        with contextlib.suppress(OSError, ValueError):
            try:
                self._tls.unwrap()
            finally:
                self._push()
        self._connection.close()

    def break_off(self) -> None:
        """Break the connection below, from any thread."""
        self._connection.shutdown(socket.SHUT_RDWR)

    # ---- between the buffers and the connection --------------------------------------------------------------------

    def _receive(self) -> None:
        """Take in what has come, in whatever amount; the end and errors are kept for the reader."""
        try:
            while chunk := self._connection.recv(_CHUNK_BYTES):
                self._incoming.write(chunk)
                if len(chunk) < _CHUNK_BYTES:
                    return
            self._incoming.write_eof()
        except BlockingIOError:
            pass
        except OSError as error:
            self._error = error

    def _decrypt(self) -> None:
        lost, self._error = self._error, None
        try:
            while chunk := self._tls.read(_CHUNK_BYTES):
                self._plain += chunk
            self._ended = True
        except ssl.SSLWantReadError:
            self._error = lost
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self._ended = True
        except ssl.SSLError as error:
            # An alert tells more than the connection's end that follows it.
            self._error = error

    def _push(self) -> bool:
        """Send what the connection takes at once; returns whether that was all."""
        self._unsent += self._outgoing.read()
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]
        return True

    def _send_all(self) -> None:
        try:
            while not self._push():
                self._await_writable(self._connection)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET):
                # The server has ended it; what it said before that says why.
                self._receive()
                with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    self._plain += self._tls.read(_CHUNK_BYTES)
            raise
