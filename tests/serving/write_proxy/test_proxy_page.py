"""The page of a proxy: health, metrics, and its streams, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from dlspark.core.metrics.registries import Statistics
from dlspark.serving.process.membership import ProxyEndpoint
from dlspark.serving.process.page import ProxyPage
from dlspark.serving.protocol.operations import ProxyStatus
from dlspark.serving.write_proxy.metrics import ProxyScopes, shown_in
from dlspark.serving.write_proxy.page import WriteProxyView
from dlspark.serving.write_proxy.tier.placement_keeper import fetch_stream_loads
from metadata.foundation.errors import CallerError


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


def status(page: ProxyPage, path: str) -> int:
    reply = page.answer(path)
    assert reply is not None
    return reply.status.value


def test_a_proxy_is_ready_while_it_serves_and_does_not_end(page: ProxyPage, proxy: Proxy) -> None:
    assert status(page, "/heartbeat") == 200
    assert status(page, "/ready") == 503
    proxy.serving = True
    assert status(page, "/ready/") == 200
    proxy.status = ProxyStatus.DOWN
    assert status(page, "/ready") == 503
    assert page.answer("/else") is None


def test_what_it_is_and_counts_shows(page: ProxyPage) -> None:
    metrics, state = page.answer("/metrics"), page.answer("/api/v1/proxy/state")
    assert metrics is not None
    assert b"\nrecords_received_total 5.0\n" in metrics.body
    assert state is not None
    shown = {"location": "1;3;host:8000", "status": "WRITE_AND_ACCEPT", "announced": True, "streams": 2}
    assert json.loads(state.body) == shown


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
        await asyncio.wait_for(fetch_stream_loads(ProxyEndpoint("127.0.0.1", port)), 20)
