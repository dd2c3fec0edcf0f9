"""The page of a proxy: health, metrics, and its streams, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator, Mapping

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from dlspark.core.metrics.registries import Statistics
from dlspark.serving.process.membership import ProxyEndpoint
from dlspark.serving.process.page import ProxyPage
from dlspark.serving.protocol.operations import ProxyStatus
from dlspark.serving.write_proxy.metrics import ProxyScopes, WriteProxyView, shown_in
from dlspark.serving.write_proxy.tier.placement_keeper import fetch_stream_loads
from metadata.foundation.errors import CallerError
from storage_node.transport.http_server import Reply


class Proxy:
    location = "1;3;host:8000"
    serving = False
    announced = True
    status = ProxyStatus.WRITE_AND_ACCEPT

    def streams(self) -> list[str]:
        return ["b", "a"]

    def traffic(self) -> Mapping[str, int]:
        return {"a": 7, "gone": 9}


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
def page(proxy: Proxy) -> ProxyPage:
    registry, scopes = CollectorRegistry(), ProxyScopes()
    shown_in(Statistics(registry), scopes)
    scopes.root.records_received.inc(5)
    return ProxyPage(WriteProxyView(proxy), registry)


def at(page: ProxyPage, path: str) -> Reply:
    reply = page.answer(path)
    assert isinstance(reply, Reply)
    return reply


def status(page: ProxyPage, path: str) -> int:
    return at(page, path).status.value


async def metrics_of(page: ProxyPage) -> bytes:
    reply = page.answer("/metrics")
    assert isinstance(reply, Awaitable)
    return (await reply).body


def test_a_proxy_is_ready_while_it_serves_and_does_not_end(page: ProxyPage, proxy: Proxy) -> None:
    assert status(page, "/heartbeat") == 200
    assert status(page, "/ready") == 503
    proxy.serving = True
    assert status(page, "/ready/") == 200
    proxy.status = ProxyStatus.DOWN
    assert status(page, "/ready") == 503
    assert page.answer("/else") is None


async def test_what_it_is_and_counts_shows(page: ProxyPage) -> None:
    assert b"\nrecords_received_total 5.0\n" in await metrics_of(page)
    shown = {"location": "1;3;host:8000", "status": "WRITE_AND_ACCEPT", "announced": True, "streams": 2}
    assert json.loads(at(page, "/api/v1/proxy/state").body) == shown


class SlowCollector:
    """Is collected in a while: not before the event loop has had turns, and something has happened meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collected = 0
        self.happened = asyncio.Event()
        self._loop = loop

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        self.collected += 1
        assert asyncio.run_coroutine_threadsafe(self.happened.wait(), self._loop).result(60)
        yield from ()


async def test_metrics_are_made_in_a_thread_and_many_who_ask_together_get_the_same(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand streams' took the loop for a second, and fifty clients that asked again and again for minutes."""
    monkeypatch.setattr("dlspark.serving.process.page.LONG_S", 1e9)  # however busy the machine is
    registry, slow = CollectorRegistry(), SlowCollector(asyncio.get_running_loop())
    registry.register(slow)
    page = ProxyPage(WriteProxyView(proxy), registry)
    shared, askers = page._shared_metrics, []

    def counted() -> Awaitable[Reply]:
        askers.append(shared())
        if len(askers) == 20:
            slow.happened.set()
        return askers[-1]

    monkeypatch.setattr(page, "_shared_metrics", counted)
    await page.start("127.0.0.1", 0)
    try:
        asked = [asyncio.ensure_future(fetched(page.port, "/metrics")) for _ in range(20)]
        answers = await asyncio.gather(*asked)
        assert {answer.partition(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 200 OK"}
        assert slow.collected == 1
        assert (await fetched(page.port, "/metrics")).startswith(b"HTTP/1.1 200 OK")
        assert slow.collected == 2, "what is quickly made is not kept"
    finally:
        await page.close()


async def test_metrics_that_take_long_are_kept_for_those_who_ask_again(
    page: ProxyPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlspark.serving.process.page.LONG_S", 0.0)
    monkeypatch.setattr("dlspark.serving.process.page.KEPT_FOR", 1e6)
    assert await metrics_of(page) is await metrics_of(page)


async def fetched(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


async def test_another_proxy_reads_its_streams_there(page: ProxyPage) -> None:
    await page.start("127.0.0.1", 0)
    try:
        assert await fetch_stream_loads(ProxyEndpoint("127.0.0.1", page.port)) == {"a": 7, "b": 0}
        other = ProxyPage(WriteProxyView(Proxy()), CollectorRegistry())
        with pytest.raises(CallerError, match="stats-port"):
            await other.start("127.0.0.1", page.port)
        port = page.port
    finally:
        await page.close()
    with pytest.raises(OSError):
        await asyncio.wait_for(fetch_stream_loads(ProxyEndpoint("127.0.0.1", port)), 60)
