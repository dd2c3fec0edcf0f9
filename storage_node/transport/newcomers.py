"""`Newcomers`: connections that are accepted and not yet secured, where a listener speaks TLS from the first byte on.

Nobody else knows of them: the listener's owner gets a link once TLS stands. So they are bounded here, in number and in
time: the oldest goes where there are too many, and each one after the time of a handshake.

Where plain connections are taken too, the first byte tells the two kinds apart: no frame begins like a handshake.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable

from storage_node.edge import TlsTerms
from storage_node.errors import TlsError
from storage_node.transport.links import TcpLink
from storage_node.transport.tls import FIRST_BYTE_OF_TLS, TlsEntrance

MAX_NEWCOMERS = 512


class Newcomers:
    """Which connections of a listener are being secured?

    Args:
        loop: of the listener.
        tls: how they are secured.
        adopt: makes a link of a socket and the peer's `host:port`.
        greet: begins to serve a link.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tls: TlsEntrance,
        adopt: Callable[[socket.socket, str], TcpLink],
        greet: Callable[[TcpLink], None],
    ) -> None:
        self._loop = loop
        self._tls = tls
        self._adopt = adopt
        self._greet = greet
        self._silent: OrderedDict[socket.socket, asyncio.TimerHandle] = OrderedDict()
        """Those whose first byte is waited for."""
        self._shaking: OrderedDict[TcpLink, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._silent) + len(self._shaking)

    def came(self, sock: socket.socket, peer: str) -> None:
        """Take a connection in."""
        if len(self) >= MAX_NEWCOMERS:
            self._drop_oldest()
        if not self._tls.plain_too:
            self._shake(sock, peer)
            return
        sock.setblocking(False)
        self._silent[sock] = self._loop.call_later(self._tls.limit_s, self._leave, sock)
        self._loop.add_reader(sock.fileno(), self._first_byte, sock, peer)

    def close(self) -> None:
        """Drop them all."""
        while self:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if self._silent:
            self._leave(next(iter(self._silent)))
        else:
            link, _ = self._shaking.popitem(last=False)
            link.cut("it is not secured yet, and others wait to be")

    def _leave(self, sock: socket.socket) -> None:
        self._heard(sock)
        sock.close()

    def _heard(self, sock: socket.socket) -> None:
        """Wait no more for the first byte."""
        self._silent.pop(sock).cancel()
        self._loop.remove_reader(sock.fileno())

    def _first_byte(self, sock: socket.socket, peer: str) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._leave(sock)
            return
        self._heard(sock)
        if first[0] == FIRST_BYTE_OF_TLS:
            self._shake(sock, peer)
        else:
            self._greet(self._adopt(sock, peer))

    def _shake(self, sock: socket.socket, peer: str) -> None:
        link = self._adopt(sock, peer)
        self._shaking[link] = None

        def ended(error: TlsError | None) -> None:
            self._shaking.pop(link, None)
            if error is None:
                self._greet(link)
            elif self._tls.failed is not None:
                self._tls.failed(peer, error)

        try:
            context = self._tls.context()
        except Exception as error:  # the boundary: certificates that cannot be read must not stop the listener
            link.cut(f"it cannot be secured: {error}")
            ended(TlsError(str(error)))
            return
        link.start_tls(TlsTerms(context, server_side=True, limit_s=self._tls.limit_s), ended)
