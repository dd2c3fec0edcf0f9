"""Names under which a plain page of this machine is shown, and that it is shown under no other."""

from __future__ import annotations

import asyncio
import socket

import pytest

from storage_node.transport.http_hosts import names_this_machine
from storage_node.transport.http_server import HttpServer, Reply

OWN = socket.gethostname()


def head(*fields: str) -> bytes:
    return "\r\n".join(("GET /metrics HTTP/1.1", *fields, "Accept: */*", "", "")).encode("latin-1")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "127.0.0.1:8000",
        "[::1]:8000",
        "10.0.0.7",
        "a.localhost.",
        OWN,
        f"{OWN}:8000",
        "ip6-localhost",
        "localhost.localdomain",
        "host.docker.internal:8000",
    ],
)
def test_names_of_this_machine_and_addresses_are_its_own(host: str) -> None:
    assert names_this_machine(head(f"Host: {host}"), "127.0.0.1")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil@localhost",
        "",
        "a b",
        ".",
        "internal.evil.example",
    ],
)
@pytest.mark.parametrize("local", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_names_of_others_are_not(host: str, local: str) -> None:
    assert not names_this_machine(head(f"Host: {host}"), local)
    assert not names_this_machine(head(f"hOsT :{host}"), local)
    assert names_this_machine(head("Host: localhost"), local)


def test_the_machines_own_name_may_have_a_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node-1.example.org")
    assert names_this_machine(head("Host: node-1.example.org:8000"), "127.0.0.1")
    assert not names_this_machine(head("Host: node-2.example.org"), "127.0.0.1")


def test_two_names_are_none_and_what_comes_from_elsewhere_is_not_held_to_that() -> None:
    assert not names_this_machine(head("Host: localhost", "Host: localhost"), "127.0.0.1")
    assert names_this_machine(head(), "127.0.0.1")
    assert names_this_machine(head("Host: node-1.example.org"), "10.0.0.7")


async def _status(port: int, host: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(f"Host: {host}"))
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


async def test_a_page_of_this_machine_is_not_shown_under_a_name_of_others() -> None:
    server = HttpServer(lambda _path: Reply(b"names of logs\n"))
    await server.start("127.0.0.1", 0)
    try:
        refused = await _status(server.port, f"evil.example:{server.port}")
        assert refused.startswith(b"HTTP/1.1 421 ")
        assert b"names of logs" not in refused
        assert b"ask by localhost" in refused
        shown = await _status(server.port, f"localhost:{server.port}")
        assert shown.startswith(b"HTTP/1.1 200 ")
        assert shown.endswith(b"names of logs\n")
    finally:
        await server.stop()
