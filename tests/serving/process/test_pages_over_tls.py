"""Pages of proxies by HTTPS: where they may listen, who is shown them, and how other proxies come to them."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from helpers.security.minting import MintedAuthority, replace_file
from helpers.waiting import until
from helpers.worlds.memory_cluster import MemoryCluster
from prometheus_client import CollectorRegistry

from dlspark.core.metrics.registries import Statistics
from dlspark.errors import SettingsError
from dlspark.serving.process import host
from dlspark.serving.process.membership import ProxyEndpoint
from dlspark.serving.read_proxy.proxy import ReadProxy
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.write_proxy.proxy import WriteProxy
from dlspark.serving.write_proxy.settings import read_configuration
from dlspark.serving.write_proxy.tier.placement_keeper import MeasuredLoads, fetch_stream_loads
from metadata.foundation.errors import CallerError
from metadata.foundation.settings import Value
from metadata.security.identity import REVOKED_FILE, TlsFiles, TlsIdentity

HOSTS = ["localhost", "127.0.0.1"]


class Paged:
    """Proxies with pages over a cluster in memory, and an authority."""

    def __init__(self, cluster: MemoryCluster, folder: Path, ending: AsyncExitStack) -> None:
        self.cluster = cluster
        self.folder = folder
        self.ending = ending
        self.authority = MintedAuthority()
        self.trail = folder / "audit.log"

    def identity(self, name: str, **given: object) -> Path:
        revoked = self.authority.revoke()
        return self.authority.folder(self.folder / name, name, revoked=revoked, hosts=HOSTS, **given)

    def context(self, name: str) -> ssl.SSLContext:
        return TlsIdentity(TlsFiles.of_folder(self.identity(name))).client_context()

    async def writer(self, **given: Value) -> WriteProxy:
        common: dict[str, Value] = {
            "server_host": "127.0.0.1",
            "server_advertised_host": "127.0.0.1",
            "server_port": 0,
            "server_grpc_port": -1,
            "server_stats_port": 0,
            "auditLog": str(self.trail),
        }
        proxy = WriteProxy(
            None,
            read_configuration(None, {**common, **given}, {}),
            statistics=Statistics(CollectorRegistry()),
            namespace=await self.cluster.namespace(),
        )
        await proxy.start()
        self.ending.push_async_callback(proxy.stop)
        return proxy

    def noted(self) -> list[str]:
        lines = self.trail.read_text().rpartition("\n")[0].splitlines() if self.trail.exists() else []
        return [one["reason"] for one in map(json.loads, lines) if one["request"] == "HTTP"]


@pytest.fixture
async def paged(tmp_path: Path) -> AsyncIterator[Paged]:
    async with AsyncExitStack() as ending:
        cluster = MemoryCluster()
        await cluster.start()
        yield Paged(cluster, tmp_path, ending)


def page_of(proxy: WriteProxy) -> ProxyEndpoint:
    page = proxy.member.stats_tls
    assert page is not None
    assert (proxy.member.stats, "aurora" in proxy.member.endpoints) == (None, False), "nobody is led there in plain"
    return page


async def test_a_page_under_tls_may_be_for_others_and_shows_itself_to_who_has_a_certificate(paged: Paged) -> None:
    with pytest.raises(CallerError, match="httpServerTlsEnable=true"):
        await paged.writer(server_stats_host="0.0.0.0")
    secured = {"security": "on", "securityDirectory": str(paged.identity("proxy", roles=["proxy"]))}
    proxy = await paged.writer(server_stats_host="0.0.0.0", httpServerTlsEnable="true", **secured)
    page = page_of(proxy)
    assert await fetch_stream_loads(page, paged.context("probe")) == {}
    with pytest.raises((OSError, ValueError)):
        await fetch_stream_loads(page)
    believer = ssl.create_default_context(cafile=str(paged.folder / "proxy" / "authorities.pem"))
    with pytest.raises(OSError):
        await fetch_stream_loads(page, believer)
    await until(lambda: len(paged.noted()) == 2, paged.noted)
    assert any("HTTP, not TLS" in one for one in paged.noted())
    assert any("showed no certificate" in one for one in paged.noted())


async def test_pages_are_asked_by_proxies_with_the_certificate_of_their_own(paged: Paged) -> None:
    secured = {"security": "on", "securityDirectory": str(paged.identity("proxy", roles=["proxy"]))}
    asked = await paged.writer(server_shard=0, server_stats_host="0.0.0.0", httpServerTlsEnable="true", **secured)
    asking = await paged.writer(server_shard=1, server_stats_port=-1, auditLog="", **secured)
    assert asking.host.page_identity is None, "it has no page, and proves itself as to proxies' frames"
    for one in (asked, asking):
        context = one.host.page_context()
        assert context is not None
        assert await fetch_stream_loads(page_of(asked), context) == {}
    loads = MeasuredLoads(lambda: (asked.member,), context=asking.host.page_context)
    await loads.refresh()
    assert loads._by_proxy == {page_of(asked): {}}


async def test_a_certificate_that_is_revoked_is_shown_nothing_within_seconds(
    paged: Paged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "REFRESH_S", 0.02)
    secured = {"security": "on", "securityDirectory": str(paged.identity("proxy", roles=["proxy"]))}
    page = page_of(await paged.writer(server_stats_host="0.0.0.0", httpServerTlsEnable="true", **secured))
    pair = paged.authority.issue("probe")
    probe = paged.identity("probe")
    replace_file(probe / "certificate.pem", pair.certificate_pem)
    replace_file(probe / "key.pem", pair.key_pem)
    context = TlsIdentity(TlsFiles.of_folder(probe)).client_context()
    assert await fetch_stream_loads(page, context) == {}
    replace_file(paged.folder / "proxy" / REVOKED_FILE, paged.authority.revoke(pair))

    async def refused() -> bool:
        try:
            await fetch_stream_loads(page, context)
        except OSError:
            return True
        return False

    await until(refused)
    await until(lambda: any("revoked" in one for one in paged.noted()), paged.noted)


async def test_a_page_without_certificates_keeps_the_proxy_from_starting(paged: Paged) -> None:
    with pytest.raises(SettingsError, match="no certificate to show"):
        await paged.writer(httpServerTlsEnable="true")
    with pytest.raises(SettingsError, match="nothing switches its TLS on"):
        await paged.writer(httpServerKeyStorePath="/nowhere")
    with pytest.raises(SettingsError, match="nowhere"):
        await paged.writer(
            httpServerTlsEnable="true", httpServerKeyStorePath="/nowhere", httpServerTrustStorePath="/nowhere"
        )


async def test_a_read_proxys_page_as_well_and_open_frames_beside_it(paged: Paged) -> None:
    """The page has a switch of its own, as in BookKeeper: the identity is there, and security is off."""
    own = {"port": 0, "listenHost": "127.0.0.1", "advertisedHost": "127.0.0.1", "statsPort": 0, "statsHost": "0.0.0.0"}
    tls = {"httpServerTlsEnable": "true", "security": "off", "securityDirectory": str(paged.identity("reader"))}
    proxy = ReadProxy(
        None,
        ReadProxySettings.from_mapping({**own, **tls}),
        statistics=Statistics(CollectorRegistry()),
        namespace=await paged.cluster.namespace(),
    )
    await proxy.start()
    paged.ending.push_async_callback(proxy.stop)
    page = proxy.host.member.stats_tls
    assert page is not None
    context = paged.context("probe")
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port, ssl=context, server_hostname="localhost")
    writer.write(b"GET /ready HTTP/1.1\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    with pytest.raises((OSError, urllib.error.URLError)):
        await fetch_stream_loads(page)
