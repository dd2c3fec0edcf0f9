"""The HTTP endpoints of a node: what probes and Prometheus ask for, and nothing that harms the node."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from helpers.bookie.harness import BookieCluster, entry
from prometheus_client.parser import text_string_to_metric_families

from metadata.zookeeper.memory import MemoryStore
from storage_node.bookie.node.bookie import Bookie
from storage_node.bookie.node.endpoints import shown
from storage_node.errors import BookieConfigurationError
from storage_node.protocol.schema import Status
from storage_node.settings.bookie import BookieSettings
from storage_node.transport import http_server
from storage_node.transport.tcp import TcpNetwork


async def _raw(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


async def _get(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    head, _, body = (await _raw(port, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())).partition(
        b"\r\n\r\n"
    )
    first, *lines = head.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines), body.decode()


def _samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def _enabled(cluster: BookieCluster, **overrides: object) -> BookieSettings:
    return cluster.settings(http_server_enabled=True, http_server_host="127.0.0.1", http_server_port=0, **overrides)


async def test_a_node_shows_nothing_unless_it_is_told_to(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    async with shown(cluster.settings(), bookie) as server:
        assert server is None
    assert BookieSettings(("/j",), ("/l",)).http_server_port == 8080


async def test_a_node_tells_whether_it_is_ready_from_before_its_start_to_after_its_stop(cluster: BookieCluster) -> None:
    settings = _enabled(cluster)
    store = MemoryStore(cluster.tree)
    bookie = Bookie(settings, store, network=TcpNetwork())
    async with shown(settings, bookie) as server:
        assert server is not None
        port = server.port
        for path, status in (("/heartbeat", 200), ("/api/v1/bookie/is_ready", 503), ("/api/v1/bookie/info", 503)):
            assert (await _get(port, path))[0] == status
        not_yet = {"running": False, "readOnly": False, "shuttingDown": False, "availableForHighPriorityWrites": False}
        assert json.loads((await _get(port, "/api/v1/bookie/state"))[2]) == not_yet
        assert _samples((await _get(port, "/metrics"))[2]) == {"bookie_SERVER_STATUS": -1}

        await bookie.start()
        assert await _get(port, "/heartbeat") == (200, _headers(3), "OK\n")
        assert (await _get(port, "/api/v1/bookie/is_ready"))[::2] == (200, "")
        running = {**not_yet, "running": True, "availableForHighPriorityWrites": True}
        assert json.loads((await _get(port, "/api/v1/bookie/state"))[2]) == running
        info = json.loads((await _get(port, "/api/v1/bookie/info"))[2])
        assert 0 < info["freeSpace"] <= info["totalSpace"]

        await bookie.stop()
        assert (await _get(port, "/api/v1/bookie/is_ready"))[0] == 503
        assert json.loads((await _get(port, "/api/v1/bookie/state"))[2]) == {**not_yet, "shuttingDown": True}
    await store.close()
    with pytest.raises(OSError):
        await _raw(port, b"GET / HTTP/1.1\r\n\r\n")


def _headers(length: int) -> dict[str, str]:
    return {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(length), "Connection": "close"}


async def test_metrics_count_what_clients_add_and_read(cluster: BookieCluster) -> None:
    bookie = await cluster.start(max_adds_in_progress_limit=10)
    client = await cluster.connect(bookie)
    for number in range(3):
        assert await client.add(entry(5, number)) == Status.EOK
    assert (await client.read(5, 1)).status == Status.EOK
    async with shown(_enabled(cluster), bookie) as server:
        assert server is not None
        status, headers, text = await _get(server.port, "/metrics?format=text")
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=")
        samples = _samples(text)
        size = len(entry(5, 0))
        told = {
            "bookie_SERVER_STATUS": 1,
            "bookie_adds_total": 3,
            "bookie_reads_total": 1,
            "bookie_read_bytes_total": size,
            "bookie_ledgers_count": 1,
            "bookie_connections": 1,
            "bookie_ledger_writable_dirs": 1,
            "bookkeeper_server_ADD_ENTRY_IN_PROGRESS": 0,
            "bookkeeper_server_READ_ENTRY_IN_PROGRESS": 0,
            "bookie_failed_disk_reads_total{damaged}": 0,
            "bookie_gc_rounds_total": 0,
        }
        assert {name: samples[name] for name in told} == told
        assert samples["bookie_add_bytes_total"] >= 3 * size
        assert 0 < samples["bookie_journal_commits_total"] <= 4
        directories = [name for name in samples if name.startswith("bookie_dir_free_bytes")]
        assert len(directories) == 2
        bookie.read_only = True
        samples = _samples((await _get(server.port, "/metrics"))[2])
        assert samples["bookie_SERVER_STATUS"] == 0


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /nothing HTTP/1.1", b"404 Not Found"),
        (b"POST /heartbeat HTTP/1.1", b"405 Method Not Allowed"),
        (b"DELETE /api/v1/bookie/state HTTP/1.1", b"405 Method Not Allowed"),
        (b"GET heartbeat HTTP/1.1", b"400 Bad Request"),
        (b"\x16\x03\x01\x02\x00", b"400 Bad Request"),
        (b"GET / SPDY/3", b"400 Bad Request"),
        (b"GET /heartbeat HTTP/1.1\r\nX: " + b"x" * 40_000, b"431 Request Header Fields Too Large"),
    ],
)
async def test_what_is_no_request_for_an_endpoint_gets_an_error(
    cluster: BookieCluster, request_line: bytes, status: bytes
) -> None:
    bookie = await cluster.start()
    async with shown(_enabled(cluster), bookie) as server:
        assert server is not None
        assert (await _raw(server.port, request_line + b"\r\n\r\n")).startswith(b"HTTP/1.1 " + status)
        assert (await _get(server.port, "/heartbeat"))[0] == 200


async def test_head_has_no_body(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    async with shown(_enabled(cluster), bookie) as server:
        assert server is not None
        assert await _get(server.port, "/heartbeat", "HEAD") == (200, _headers(3), "")


async def test_clients_that_send_nothing_hold_a_bounded_number_of_places_and_not_for_ever(
    cluster: BookieCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HTTP_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.2)
    bookie = await cluster.start()
    async with shown(_enabled(cluster), bookie) as server:
        assert server is not None
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        for reader, writer in silent:
            assert await _ended(reader)
            writer.close()
        assert (await _get(server.port, "/heartbeat"))[0] == 200


async def test_half_requests_keep_no_probe_out(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    async with shown(_enabled(cluster), bookie) as server:
        assert server is not None
        half = []
        for _ in range(http_server.HTTP_CONNECTIONS + 10):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /heartbeat HTTP/1.1\r\n")
            half.append((reader, writer))
        assert (await _get(server.port, "/heartbeat"))[0] == 200, "while all of them are open"
        for reader, _ in half[:11]:
            assert await _ended(reader), "the oldest made room"
        reader, writer = half[-1]
        writer.write(b"\r\n")
        assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 200"), "the newest is still served"
        for _, writer in half:
            writer.close()


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 60) == b""
    except ConnectionError:
        return True


async def test_a_port_that_is_taken_is_refused_with_what_to_do(cluster: BookieCluster) -> None:
    bookie = await cluster.start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = cluster.settings(http_server_enabled=True, http_server_host="127.0.0.1", http_server_port=port)
        with pytest.raises(
            BookieConfigurationError, match=f"cannot listen on port {port} of 127.0.0.1.*httpServerPort"
        ):
            async with shown(settings, bookie):
                pass
