"""`ReadProxy`: one read proxy as a whole, from the namespace that it opens to the member that it announces.

What it has in common with any proxy, and the order in which that begins and ends, is its host's (`process.host`). Its
own are the service, which does the work; and the counts of the logs that the other read proxies read. Its member lies
in <namespace>/.read_proxy.

Stopping is graceful: it withdraws its member, so that nobody new comes; then readers that wait are refused with
SERVICE_UNAVAILABLE and go on elsewhere at their positions; then it waits for answers to leave.

Fault model: a read proxy owns nothing. Where it dies, its readers lose no more than a connection. Where its session
with ZooKeeper ends, it is announced again in the next one, and goes on serving meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from dlspark.core.metrics.registries import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.service import FramesLimits
from dlspark.serving.process.host import ServiceHost
from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.protocol.operations import ProxyKind
from dlspark.serving.read_proxy.balance import SENT_S, ReadBalance
from dlspark.serving.read_proxy.figures import figures_shown_in
from dlspark.serving.read_proxy.peer_counts import PeerCounts
from dlspark.serving.read_proxy.service import ReadProxyService
from dlspark.serving.read_proxy.settings import ReadProxySettings
from metadata.foundation.errors import check
from storage_node.edge import Network

_LOG: Final = logging.getLogger(__name__)


class ReadProxy:
    """One proxy. All calls come from one event loop."""

    def __init__(
        self,
        uri: str | None,
        settings: ReadProxySettings,
        *,
        network: Network | None = None,
        statistics: Statistics | None = None,
        namespace: AsyncNamespace | None = None,
    ) -> None:
        """`namespace`: over given edges; it is closed with the proxy, and `uri` is not looked at."""
        self.failed = asyncio.Event()
        """See `RunningProxy`; never set, for a proxy that owns nothing can always go on."""
        self.settings = settings
        self.host = ServiceHost(
            ProxyKind.READ, settings, _frames_limits(settings), network=network, statistics=statistics
        )
        self._uri = uri
        self._given = namespace
        self._service: ReadProxyService | None = None
        self._counts: PeerCounts | None = None
        self._serving = False

    @property
    def service(self) -> ReadProxyService:
        """What does the work. Raises InvariantViolation before `start`."""
        check(self._service is not None, "the read proxy is not started")
        assert self._service is not None
        return self._service

    @property
    def location(self) -> str:
        """How clients and other proxies name it; empty before its port is known."""
        return self.host.location

    @property
    def member(self) -> ProxyMember:
        """What it announces. Raises CallerError before it serves."""
        return self.host.member

    @property
    def ready(self) -> bool:
        """Whether it answers readers."""
        return self._serving

    def state(self) -> Mapping[str, object]:
        """Return what its page says that it is: its name, whether clients find it, how many readers and logs it has."""
        figures = self._service.figures() if self._service is not None else None
        return {
            "location": self.location,
            "announced": self.host.announced,
            "readers": figures.readers if figures is not None else 0,
            "streams": figures.logs if figures is not None else 0,
        }

    def streams_shown(self) -> Mapping[str, Mapping[str, object]]:
        """Return what its page says of each log that it reads."""
        return self._service.logs_shown() if self._service is not None else {}

    async def start(self) -> None:
        """Begin to serve. Raises CallerError, MetadataUnavailableError, NotBoundError, OSError for a port that is
        taken; then nothing is left running."""
        await self.host.start(self._start)

    async def _start(self) -> None:
        host, settings = self.host, self.settings
        namespace, _ = await host.begin(self, self._open_namespace, grace_s=settings.shutdown_grace_ms / 1000)
        service = self._service = ReadProxyService(
            namespace, settings, location=host.location, directory=host.directory
        )
        host.ending.push_async_callback(service.close)
        if host.has_page:
            host.ending.callback(figures_shown_in(host.statistics, service.figures))
        member = await host.serve(service)
        if settings.read_balance:
            balance = service.balance = ReadBalance(
                settings.read_balance, sent_s=max(SENT_S, settings.linger_ms / 1000)
            )
            self._counts = PeerCounts(balance, host.network, str(member.endpoint))
            host.ending.push_async_callback(self._counts.close)
        await host.watch(self._members_changed)
        # Before the bindings end: they wait for answers, which readers at the end of a log would not get for long.
        host.ending.push_async_callback(service.close)
        await host.announce()
        self._serving = True
        _LOG.info("the read proxy %s serves %s", self.location, namespace.uri)

    async def _open_namespace(self) -> AsyncNamespace:
        return self._given or await AsyncNamespace.open(self._uri, statistics=self.host.statistics)

    def _members_changed(self, kind: ProxyKind, members: tuple[ProxyMember, ...], _: frozenset[str]) -> None:
        if kind is ProxyKind.READ and self._counts is not None:
            self._counts.use_members(members)

    async def stop(self) -> None:
        """End in order: withdraw, refuse what waits, let answers leave, close. Idempotent."""
        self._serving = False
        if self._service is not None:
            _LOG.info("stopping; so far: %s", self._service.figures())
        await self.host.close()


def _frames_limits(settings: ReadProxySettings) -> FramesLimits:
    return FramesLimits(
        connections=settings.max_connections,
        requests_under_way=settings.max_caller_readers,
        bytes_under_way=settings.connection_bytes,
        memory_bytes=settings.connections_bytes,
    )
