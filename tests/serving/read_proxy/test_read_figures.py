"""What a read proxy counts, and where that shows: on its page, in Prometheus's registries, in the documentation."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from helpers.logs import written
from helpers.paths import DOCS
from helpers.serving.read_world import Puller, ReadWorld
from prometheus_client import CollectorRegistry

from dlspark.core.metrics.registries import NO_STATISTICS, Statistics
from dlspark.serving.process.membership import READ_PROXIES, ProxyEndpoint, read_members
from dlspark.serving.read_proxy.figures import FIGURES, ReadProxyFigures, figures_shown_in, figures_table
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings
from metadata.foundation.errors import CallerError

SETTINGS = ReadProxySettings(host="127.0.0.1", port=0, stats_port=0, advertised_host="127.0.0.1", linger_ms=0)
NOTHING = ReadProxyFigures(**{name: 0 for name, _ in FIGURES})


async def shown(endpoint: ProxyEndpoint, path: str) -> tuple[int, str]:
    """The status and the body of a page."""

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{endpoint}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


def value(registry: CollectorRegistry, name: str) -> float | None:
    return registry.get_sample_value(f"read_proxy_{name}")


async def test_the_page_says_who_reads_what_and_what_that_cost(read_world: ReadWorld):
    writing, serving = await read_world.namespace(), await read_world.namespace()
    await written(writing, "log", [[b"a", b"b"], [b"c"]])
    registry = CollectorRegistry()
    proxy = ReadProxy(None, SETTINGS, namespace=serving, statistics=Statistics(registry))
    assert (proxy.ready, proxy.streams_shown()) == (False, {})
    assert proxy.state() == {"location": "", "announced": False, "readers": 0, "streams": 0}
    await proxy.start()
    (member,) = await read_members(read_world.operator, f"/dl/{READ_PROXIES}")
    page = member.stats
    assert page is not None
    readers = [Puller(proxy.service, "log", number=number) for number in range(3)]
    for reader in readers:
        await reader.until(3)
    assert await shown(page, "/ready") == (200, "OK\n")
    state = {"location": member.location, "announced": True, "readers": 3, "streams": 1}
    assert json.loads((await shown(page, "/api/v1/proxy/state"))[1]) == state
    streams = json.loads((await shown(page, "/api/v1/proxy/streams"))[1])
    assert streams["log"]["readers"] == 3
    assert streams["log"]["ringBytes"] + proxy.service.figures().catch_up_bytes > 0
    _, metrics = await shown(page, "/metrics")
    assert "\nread_proxy_readers 3.0\n" in metrics
    assert (await shown(page, "/nothing"))[0] == 404
    figures = proxy.service.figures()
    assert figures.entries_read >= 2
    assert figures.catch_ups_begun >= 1, "they began behind the ring"
    assert figures.delivered_bytes > 0
    for name, info in FIGURES:
        counted = f"{name}_total" if info.kind == "counter" else name
        assert value(registry, counted) == getattr(figures, name), name
    await proxy.stop()
    assert not proxy.ready
    assert value(registry, "readers") == 0, "it has none any more"
    assert value(registry, "deliveries_total") == figures.deliveries, "what was counted stays"
    with pytest.raises(OSError):
        await shown(page, "/heartbeat")
    read_world.clients.remove(serving)


async def test_without_a_port_there_is_no_page_and_one_that_is_taken_is_named(read_world: ReadWorld):
    serving = await read_world.namespace()
    without = ReadProxy(None, replace(SETTINGS, stats_port=-1), namespace=serving)
    await without.start()
    assert without.member.stats is None
    taken = int(str(without.member.endpoint).rpartition(":")[2])
    with pytest.raises(CallerError, match="statsPort"):
        await ReadProxy("distributedlog://nowhere/dl", replace(SETTINGS, stats_port=taken)).start()
    await without.stop()
    read_world.clients.remove(serving)


async def test_a_reader_that_waits_counts_as_waiting_until_it_is_answered(read_world: ReadWorld):
    namespace = await read_world.namespace()
    await written(namespace, "log", [[b"a"]])
    service = await read_world.proxy()
    reader = Puller(service, "log", wait_ms=60_000)
    await reader.until(1)
    assert (service.figures().readers, service.figures().waiting) == (1, 0)
    asked = reader.ask()
    assert (service.figures().readers, service.figures().waiting) == (1, 1)
    service.caller_gone(reader.caller)
    await asked
    assert (service.figures().readers, service.figures().waiting) == (0, 0)


def test_the_proxies_of_a_process_are_summed_up_and_what_they_counted_stays():
    registry = CollectorRegistry()
    now = [replace(NOTHING, readers=2, deliveries=10), replace(NOTHING, readers=3, deliveries=5)]
    end_first = figures_shown_in(Statistics(registry), lambda: now[0])
    end_second = figures_shown_in(Statistics(registry), lambda: now[1])
    assert (value(registry, "readers"), value(registry, "deliveries_total")) == (5, 15)
    end_first()
    end_first()
    assert (value(registry, "readers"), value(registry, "deliveries_total")) == (3, 15)
    now[1] = replace(now[1], deliveries=6)
    assert value(registry, "deliveries_total") == 16
    end_second()
    assert (value(registry, "readers"), value(registry, "deliveries_total")) == (0, 16)
    figures_shown_in(NO_STATISTICS, lambda: NOTHING)()


def test_a_registry_that_has_such_names_is_refused():
    from prometheus_client import Gauge

    registry = CollectorRegistry()
    Gauge("read_proxy_readers", "another program's", registry=registry)
    with pytest.raises(CallerError, match="already"):
        figures_shown_in(Statistics(registry), lambda: NOTHING)


def test_the_page_of_the_documentation_has_them_all():
    assert "\n".join(figures_table()) in (DOCS / "serving" / "read-proxy.md").read_text()
