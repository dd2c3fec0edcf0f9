"""`SecuredNetwork`: real links, each of them under TLS from its first byte on, for tests of what links promise."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import lru_cache

import trustme

from storage_node.edge import FrameHandler, Link, Listener, TlsTerms
from storage_node.transport.tcp import TcpNetwork
from storage_node.transport.tls import TlsEntrance, secure

HOSTS = ("localhost", "127.0.0.1", "::1")


@lru_cache
def authority() -> trustme.CA:
    """Return the one authority of most tests."""
    return trustme.CA()


@lru_cache
def server_context(*, asks: bool = True) -> ssl.SSLContext:
    """Return the context of a server, which asks for a certificate."""
    return fresh_server_context(asks=asks)


def fresh_server_context(*, asks: bool = True) -> ssl.SSLContext:
    """Return one that a test may change."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _certificate_of_tests().configure_cert(context)
    authority().configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    context.num_tickets = 0
    return context


@lru_cache
def client_context(*, shows: bool = True) -> ssl.SSLContext:
    """Return the context of a client, which shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if shows:
        _certificate_of_tests().configure_cert(context)
    authority().configure_trust(context)
    return context


@lru_cache
def _certificate_of_tests() -> trustme.LeafCert:
    return authority().issue_cert(*HOSTS, common_name="tests", organization_unit_name="node")


class SecuredNetwork(TcpNetwork):
    """How do frames travel? Under TLS, both ends."""

    async def connect(self, host: str, port: int, handler: FrameHandler, *, timeout_ms: int) -> Link:
        link = await super().connect(host, port, handler, timeout_ms=timeout_ms)
        return await secure(link, TlsTerms(client_context(), host, limit_s=timeout_ms / 1000))

    async def listen(
        self, host: str, port: int, accept: Callable[[Link], FrameHandler], *, tls: TlsEntrance | None = None
    ) -> Listener:
        return await super().listen(host, port, accept, tls=tls or TlsEntrance(server_context))


async def dial_secured(port: int, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    """Return a blocking socket under TLS, for a client that is none of ours."""
    secured_by = context or client_context()  # made here: two threads would make an authority each

    def dial() -> ssl.SSLSocket:
        sock = socket.create_connection(("127.0.0.1", port))
        return secured_by.wrap_socket(sock, server_hostname="127.0.0.1")

    return await asyncio.get_running_loop().run_in_executor(None, dial)
