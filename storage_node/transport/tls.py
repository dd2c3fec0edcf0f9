"""TLS on the socket of a link (`links`): what a plain socket's `recv_into` and `sendmsg` do, records and handshakes.

OpenSSL works in memory, and is given about a record at a time: on the socket itself it would go on with a flood of
records that hold no data (changes of keys), and keep the loop, for as long as any come. A link calls `TlsSocket` at the
very places where it calls its socket otherwise; the differences are kept here:

    readiness   says nothing of a record's rest that OpenSSL has decrypted already: `has_more` does
    reading     may have to write (an answer to a change of keys): `stalled` says so
    writing     what is encrypted has to leave as it is: it is kept until the socket has taken it
    the end     is a message of its own; a stream that ends without it was cut, perhaps by an attacker

A handshake is bounded in time and in bytes, and is taken step by step in turns (`turns`), as everything is.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from metadata.foundation.errors import CallerError, DistributedLogError
from metadata.security.shown_certificates import shown_beside
from storage_node.edge import FrameHandler, Link, Network, SecurableLink, TlsTerms
from storage_node.errors import SecureConnectionError, TlsError, TlsRefusedError
from storage_node.protocol.frames import NO_PLAIN_ALERT, Buffer
from storage_node.transport.turns import Turns

RECORD_BYTES = 16 * 1024
"""Most bytes of a record, which is also what OpenSSL takes at a time."""
RECORDS_A_CALL = 4
"""Records that are sent by one call: as much is kept for a socket that takes nothing, beside what is queued."""
RECORDS_AT_ONCE = 128
"""Records that are read at a time: a peer may put a single byte into each."""
FEED_BYTES = RECORD_BYTES + 22
"""What OpenSSL is given at a time, about a record: it goes on with records that hold no data for as long as it has any.
A change of keys takes 27 bytes, and more time than 16 KiB of data."""
MAX_SILENT_BYTES = 2 * RECORD_BYTES
"""Bytes that may come without data. A peer changes its keys once in millions of records, not all the time."""
DATA_FOR_A_SILENT_BYTE = 1024
"""So many bytes of data in a record let one byte more come without. So a change of keys in each 27 KiB may go on for
ever, and a byte behind each change buys nothing."""
BESIDE_DATA_BYTES = 22
"""What a record of TLS 1.3 has beside its data, and no more: its head, its kind, its end."""
BESIDE_DATA_BYTES_1_2 = 256
"""The same of TLS 1.2, padding included. Nothing there takes more time than data: new handshakes are refused."""
MAX_WAITING_BYTES = RECORDS_A_CALL * (RECORD_BYTES + BESIDE_DATA_BYTES_1_2) + FEED_BYTES
"""Encrypted bytes that the socket has not taken, above which nothing is read: what one call may leave behind, and about
a record of answers to changes of keys. Data alone never keeps a link from reading: both ends might wait then."""
PIECES_A_CALL = 64
"""Pieces that the socket is given by one call: the kernel refuses more than 1024."""
SMALL_BYTES = 2048
"""Encrypted pieces below this size are joined: an answer to a change of keys has 27 bytes."""
HANDSHAKE_S = 10.0
MAX_HANDSHAKE_BYTES = 64 * 1024
"""Bytes that a peer may send in a handshake: chains of certificates take some thousands."""
MAX_PLAIN_BYTES = 128
"""Bytes of the frame that may come in plain before a handshake, where one may: its length prefix included."""
FIRST_BYTE_OF_TLS = 22
"""The type of the record with which a handshake begins; no frame begins so, for it would have 369 MB."""


_PLAIN = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST"})
"""What OpenSSL says of a first record that is none."""


@dataclass(frozen=True, slots=True)
class TlsEntrance:
    """How does a listener secure its connections from the first byte on?"""

    context: Callable[[], ssl.SSLContext]
    """Returns the context of a new connection: certificates may change meanwhile."""
    plain_too: bool = False
    """Connections that do not begin with a handshake are taken as they are."""
    limit_s: float = HANDSHAKE_S
    failed: Callable[[str, TlsError], None] | None = None
    """Called with the peer's `host:port` and the reason, of each handshake that fails."""


class TlsSocket:
    """How does a link read and write under TLS? As by a socket."""

    __slots__ = (
        "_begun",
        "_beside",
        "_ended",
        "_failed",
        "_incoming",
        "_leaving",
        "_outgoing",
        "_plain",
        "_silent",
        "_sock",
        "_terms",
        "_tls",
        "_waiting",
        "received",
        "stalled",
    )

    def __init__(self, sock: socket.socket, terms: TlsTerms) -> None:
        """Take the socket over; nothing is sent yet. Raises OSError, and ValueError for a host that is none."""
        # Renegotiation of old versions: an attacker's first bytes may be taken for the client's (CVE-2009-3555).
        terms.context.options |= ssl.OP_NO_RENEGOTIATION
        self._terms = terms
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = terms.context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=terms.server_side,
            server_hostname=None if terms.server_side else terms.host,
        )
        self._leaving: list[Buffer] = []
        """What OpenSSL has encrypted and the socket has not taken; what is in `_outgoing` comes behind it."""
        self._waiting = 0
        """Bytes of it."""
        self._begun = 0
        """Bytes of what `sendmsg` was given that are among them, and that it has not said to be taken yet."""
        self._silent = 0
        """Bytes that came without data in them, but for what each record has beside it."""
        self._beside = BESIDE_DATA_BYTES
        self._ended = False
        self._failed: TlsError | None = None
        self._plain: bytearray | None = None if terms.plain_behind is None else bytearray()
        """What has come of a frame in plain; None: the next byte is the handshake's."""
        self.received = 0
        """Bytes of the handshake."""
        self.stalled = False
        """Nothing can be read before something was written."""

    @property
    def socket(self) -> socket.socket:
        """The socket, for its descriptor and its end."""
        return self._sock

    @property
    def certificate(self) -> bytes | None:
        """The peer's certificate (DER), if it showed one and that was verified."""
        if self._terms.context.verify_mode is ssl.CERT_NONE:
            return None
        return self._tls.getpeercert(binary_form=True)

    @property
    def shown(self) -> tuple[bytes, ...] | None:
        """The certificates that the peer showed beside its own (DER); None: they are not known."""
        return None if self._terms.context.verify_mode is ssl.CERT_NONE else shown_beside(self._tls)

    @property
    def has_more(self) -> bool:
        """There is something to be read, though the socket may never become readable."""
        return self._ended or self._failed is not None or self._tls.pending() > 0 or self._incoming.pending > 0

    def shake(self) -> bool | None:
        """Go on with the handshake. True: it is done; None: wait until the socket is readable; False: writable.

        Raises TlsError.
        """
        if self._plain is not None and not self._take_plain(self._plain):
            return None
        try:
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    done = False
                else:
                    done = True
                if not self._flush():
                    return False
                if done:
                    if self._tls.version() != "TLSv1.3":
                        self._beside = BESIDE_DATA_BYTES_1_2
                    return True
                if self.received > MAX_HANDSHAKE_BYTES:
                    raise TlsError(f"the peer's handshake has more than {MAX_HANDSHAKE_BYTES} bytes")
                fed = self._feed()
                if fed is None:
                    return None
                self.received += fed
        except (OSError, ValueError) as error:
            self._try_to_flush()  # the alert, which tells the peer what is wrong
            if self._terms.server_side and getattr(error, "reason", None) in _PLAIN:
                self._answer_plain()
            if not self._terms.server_side and isinstance(error, ssl.SSLEOFError | ConnectionResetError):
                raise TlsError(_ENDED_WITHOUT_A_WORD) from error
            raise tls_error(error) from error

    def _feed(self) -> int | None:
        """Give OpenSSL what has come, no more than FEED_BYTES. Returns how many bytes; None: there are none.

        Raises OSError.
        """
        try:
            piece = self._sock.recv(FEED_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        if piece:
            self._incoming.write(piece)
        else:
            self._incoming.write_eof()
        return len(piece)

    def _flush(self) -> bool:
        """Send what OpenSSL has encrypted. Returns whether all of it has left. Raises OSError."""
        while True:
            self._collect()
            if not self._leaving:
                return True
            try:
                sent = self._sock.sendmsg(self._leaving[:PIECES_A_CALL])
            except (BlockingIOError, InterruptedError):
                return False
            self._waiting -= sent
            while self._leaving and sent >= len(self._leaving[0]):  # what has left is kept by nothing, not by a view
                sent -= len(self._leaving.pop(0))
            if sent:
                self._leaving[0] = memoryview(self._leaving[0])[sent:]

    def _collect(self) -> None:
        """Take what OpenSSL has encrypted, after each record: its memory keeps the size of the most that lay in it,
        until the connection ends."""
        if not self._outgoing.pending:
            return
        piece = self._outgoing.read()
        self._waiting += len(piece)
        last = self._leaving[-1] if self._leaving else None
        if len(piece) >= SMALL_BYTES:
            self._leaving.append(piece)
        elif isinstance(last, bytearray) and len(last) < RECORD_BYTES:
            last += piece
        else:
            self._leaving.append(bytearray(piece))

    def _try_to_flush(self) -> None:
        try:
            self._flush()
        except OSError:
            pass  # the peer has gone: nobody is there to be told

    def _answer_plain(self) -> None:
        """Tell a peer that began in plain what is spoken here: our own clients know the alert, and others' at least end
        their wait."""
        try:
            self._sock.recv(MAX_HANDSHAKE_BYTES)  # else the end would be a reset, which may overtake it
        except OSError:
            pass  # all of it was read
        try:
            self._sock.send(NO_PLAIN_ALERT)
        except OSError:
            pass  # it has gone, or does not read

    def _take_plain(self, plain: bytearray) -> bool:
        """Take the frame that came in plain, if one did. True: the handshake is next. False: wait for more bytes.

        Raises TlsError for what may not be there: else it would be taken for what came under TLS (CVE-2011-0411).
        """
        receive = self._sock.recv
        frame = self._terms.plain_behind
        try:
            if not plain and receive(1, socket.MSG_PEEK) in (b"", bytes((FIRST_BYTE_OF_TLS,))):
                self._plain = None
                return True
            while len(plain) < 4 or len(plain) < 4 + int.from_bytes(plain[:4], "big"):
                wanted = 4 if len(plain) < 4 else 4 + int.from_bytes(plain[:4], "big")
                if wanted > MAX_PLAIN_BYTES:
                    raise TlsError("the peer does not begin TLS")
                piece = receive(wanted - len(plain))
                if not piece:
                    raise TlsError("the peer broke off before TLS")
                plain += piece
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise tls_error(error) from error
        if frame is None or not frame(bytes(plain[4:])):
            raise TlsError("bytes came in plain behind the last frame before TLS")
        self._plain = None
        return True

    def recv_into(self, view: memoryview) -> int:
        """Read what is there, as far as there is room. Returns 0 after the peer's orderly end.

        Raises BlockingIOError where nothing is there (see `stalled`), TlsError where the stream is broken.
        """
        if self._failed is not None:
            raise self._failed
        self._try_to_flush()  # what OpenSSL answers to a change of keys: it may not have left the last time
        if self._waiting > MAX_WAITING_BYTES:  # whoever takes no answers is not heard: they would take our memory
            self.stalled = True
            raise BlockingIOError
        total, size, fed, drained = 0, len(view), 0, False
        try:
            for _ in range(2 * RECORDS_AT_ONCE):
                if not (self._incoming.pending or self._tls.pending()):
                    # Less than was asked for was all there was: what comes later makes the socket readable.
                    piece = None if drained or fed - total > MAX_SILENT_BYTES else self._feed()
                    if piece is None:
                        break
                    drained = piece < FEED_BYTES
                    fed += piece
                    self._silent += piece
                try:
                    received: int | None = self._tls.read(size - total, view[total:])  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    received = None
                if received:
                    data = received + received // DATA_FOR_A_SILENT_BYTE + self._beside
                    self._silent = max(self._silent - data, 0)
                if self._silent > MAX_SILENT_BYTES:
                    raise TlsError("the peer sends records without data, and no end of them")
                if received is None:
                    continue
                total += received
                self._ended = not received
                if not received or total == size:
                    break
        except (OSError, ValueError, TlsError) as error:
            self._failed = error if isinstance(error, TlsError) else tls_error(error)
            self._try_to_flush()  # the alert, which tells the peer what is wrong
            if not total:
                raise self._failed from error
        if self._outgoing.pending:
            self._try_to_flush()  # nothing else may follow that would take it along
        if not (total or self._ended):
            raise BlockingIOError
        return total

    def sendmsg(self, pieces: Sequence[Buffer]) -> int:
        """Send from the front of `pieces`; returns how many bytes were taken. Raises BlockingIOError, TlsError."""
        sent = 0
        try:
            if not self._flush():
                raise BlockingIOError
            if self._begun:
                sent, self._begun = self._begun, 0
                return sent
            records = _records(pieces)
            while batch := list(islice(records, RECORDS_A_CALL)):
                for record in batch:
                    self._tls.write(record)
                    self._collect()
                size = sum(map(len, batch))
                if not self._flush():
                    self._begun = size
                    break
                sent += size
        except BlockingIOError:
            raise
        except ssl.SSLWantReadError:
            # Only a renegotiation has to read before it can write.
            raise TlsError("the peer asks for another handshake, which is refused") from None
        except (OSError, ValueError) as error:
            raise self._said(error) from error
        if not sent and self._begun:
            raise BlockingIOError
        return sent

    def _said(self, error: Exception) -> TlsError:
        """Return why the peer went, where it said so before it did: nothing can be sent to it, and that may be read."""
        try:
            self._feed()
            self._tls.read(1)
        except (ssl.SSLWantReadError, ssl.SSLEOFError):
            pass
        except ssl.SSLError as alert:
            return tls_error(alert)
        except (OSError, ValueError):
            pass
        return tls_error(error)

    def say_end(self) -> None:
        """Tell the peer that nothing follows, if that can be sent at once."""
        try:
            self._tls.unwrap()
        except (OSError, ValueError):
            pass  # it waits for the peer's own end, which is not waited for here; or the connection is gone
        self._try_to_flush()


def _records(pieces: Sequence[Buffer]) -> Iterator[Buffer]:
    """Cut `pieces` into records: full ones but for the last, small pieces together."""
    small: list[Buffer] = []
    size = 0
    for piece in pieces:
        length = len(piece)
        if size + length <= RECORD_BYTES:
            small.append(piece)
            size += length
            continue
        view = memoryview(piece)
        at = 0
        if small:
            at = RECORD_BYTES - size
            small.append(view[:at])
            yield b"".join(small)
        while length - at > RECORD_BYTES:
            yield view[at : at + RECORD_BYTES]
            at += RECORD_BYTES
        small, size = [view[at:]], length - at
    if small:
        yield small[0] if len(small) == 1 else b"".join(small)


def waiting_bytes(sock: socket.socket) -> int:
    """Return how many bytes wait in the kernel."""
    count = bytearray(4)
    try:
        fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    except (OSError, ValueError):  # the socket is closed
        return 0
    return int.from_bytes(count, sys.byteorder)


class TlsHandshake:
    """How far is a link's handshake? Goes on with it as the socket becomes ready, in turns.

    Args:
        loop: of the link.
        tls: its socket.
        turns: the line of those that have something to do.
        limit_s: the handshake is cut after so many seconds.
        ended: called once: None, TLS stands; or why it does not.
    """

    __slots__ = ("_ended", "_limit_s", "_loop", "_timer", "_tls", "_turns", "_waits_to_write")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tls: TlsSocket,
        turns: Turns,
        limit_s: float,
        ended: Callable[[TlsError | None], None],
    ) -> None:
        self._loop = loop
        self._tls = tls
        self._turns = turns
        self._limit_s = limit_s
        self._ended = ended
        self._waits_to_write: bool | None = None
        """Which readiness is waited for; None: none."""
        self._timer = loop.call_later(limit_s, self._late)
        turns.join(self._step)

    def stop(self) -> None:
        """End it; `ended` is not called any more."""
        self._timer.cancel()
        self._turns.leave(self._step)
        self._wait(None)

    def _wait(self, to_write: bool | None) -> None:
        descriptor = self._tls.socket.fileno()
        if self._waits_to_write is True:
            self._loop.remove_writer(descriptor)
        elif self._waits_to_write is False:
            self._loop.remove_reader(descriptor)
        self._waits_to_write = to_write
        if to_write is True:
            self._loop.add_writer(descriptor, self._ready)
        elif to_write is False:
            self._loop.add_reader(descriptor, self._ready)

    def _ready(self) -> None:
        self._wait(None)
        self._turns.join(self._step)  # a step takes a millisecond, and hundreds may be ready at a time

    def _step(self) -> None:
        try:
            done = self._tls.shake()
        except TlsError as error:
            self._end(error)
            return
        if done:
            self._end(None)
        else:
            self._wait(to_write=done is False)

    def _late(self) -> None:
        self._end(TlsError(f"the peer did not end its handshake within {self._limit_s:g} s"))

    def _end(self, error: TlsError | None) -> None:
        self.stop()
        self._ended(error)


# ------------------------------------------------------------------------------------------- for both ends


def securable(link: Link) -> SecurableLink:
    """Return the link as one that TLS can be begun on. Raises CallerError where its network knows no TLS."""
    if not isinstance(link, SecurableLink):
        raise CallerError(
            "this network knows no TLS",
            advice="Simulated networks carry plain connections only: leave security off there",
            node=link.peer,
        )
    return link


async def secure(link: Link, terms: TlsTerms) -> SecurableLink:
    """Begin TLS on a link and wait for it. Raises SecureConnectionError, and the link is closed."""
    secured: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ended(error: TlsError | None) -> None:
        if secured.done():
            return
        if error is None:
            secured.set_result(None)
        else:
            secured.set_exception(insecure_error(link.peer, error))

    under_tls = securable(link)
    under_tls.start_tls(terms, ended)
    try:
        await secured
    except BaseException:
        link.close()
        raise
    return under_tls


async def connect_secured(
    network: Network, host: str, port: int, handler: FrameHandler, *, timeout_ms: int, context: ssl.SSLContext
) -> SecurableLink:
    """Connect, and speak TLS from the first byte on; the certificate must be one for `host`.

    Raises BookieUnreachableError; SecureConnectionError, one of these, where TLS could not be begun.
    """
    link = await network.connect(host, port, handler, timeout_ms=timeout_ms)
    return await secure(link, TlsTerms(context, host, limit_s=timeout_ms / 1000))


def insecure_error(peer: str, reason: object, *, node: str | None = None) -> SecureConnectionError:
    """Return the error of a connection that could not be secured."""
    said, advice = reason, None
    if isinstance(reason, DistributedLogError):
        said, advice = reason.message, reason.advice
    error = SecureConnectionError(
        f"the connection to {peer} could not be secured: {said}",
        advice=advice
        or "Nothing is ever sent in plain instead. Check both sides' certificates, authorities and switches",
        node=node or peer,
    )
    error.refused = isinstance(reason, TlsRefusedError)
    return error


_CERTIFICATE_WANTED = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer showed no certificate",
    _CERTIFICATE_WANTED: "the peer asks for a certificate, and this side has none",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refuses this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer refuses this side's certificate, which has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the peer refuses this side's certificate, which is revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refuses this side's certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the peer refuses this side's certificate: it is not made for this use",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer refuses this side's certificate: it does not know its authority",
    "TLSV1_ALERT_ACCESS_DENIED": "the peer refuses this side's certificate: access denied",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "HTTP_REQUEST": "the peer speaks HTTP, not TLS",
    "UNSUPPORTED_PROTOCOL": "the sides have no version of TLS in common",
    "NO_PROTOCOLS_AVAILABLE": "the sides have no version of TLS in common",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the sides have no version of TLS in common",
    "NO_SHARED_CIPHER": "the sides have no cipher in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer refuses the handshake: no cipher in common, or it wants a certificate",
}
"""What one side does not take of the other, by OpenSSL's name."""
_ADVICE = {
    "WRONG_VERSION_NUMBER": "Nothing is sent in plain instead. Check the port; switch security on there, or off here "
    "(security=off, no DLSPARK_SECURITY)",
}
_ENDED_WITHOUT_A_WORD = (
    "the peer ended the connection in the handshake without a word: it may not speak TLS at this port, or not serve yet"
)


def tls_error(error: Exception) -> TlsError:
    """Return what an error of `ssl` or of the socket says of the peer."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsRefusedError(f"the peer's certificate is refused: {error.verify_message.rstrip('.')}")
    if isinstance(error, ssl.SSLEOFError):
        return TlsError("the peer broke off without ending TLS")
    if isinstance(error, ssl.SSLError):
        if error.reason in _REASONS:
            refused = TlsRefusedError(_REASONS[error.reason], advice=_ADVICE.get(error.reason))
            refused.certificate_wanted = error.reason == _CERTIFICATE_WANTED
            return refused
        if error.reason == "NO_RENEGOTIATION":
            return TlsError("the peer asks for another handshake, which is refused")
        return TlsError(f"TLS failed: {error.reason or error}")
    return TlsError(f"the connection broke: {error}")
