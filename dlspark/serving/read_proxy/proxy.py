"""`ReadProxy`: one read proxy as a whole, from the namespace that it opens to the member that it announces.

It begins in this order, and ends in the opposite one:

    page         health and metrics, so that a probe is answered that the proxy is not ready yet; where it is asked for
    namespace    the session with ZooKeeper, the ledger client
    service      what does the work (`service`)
    frames       the port, which is part of the proxy's location
    gRPC         the second binding, where it is asked for
    peers        the other read proxies, which say how many logs they read
    member       last, in <namespace>/.read_proxy: only now do clients find it

Stopping is graceful: it withdraws its member, so that nobody new comes; then readers that wait are refused with
SERVICE_UNAVAILABLE and go on elsewhere at their positions; then it waits for answers to leave.

Fault model: a read proxy owns nothing. Where it dies, its readers lose no more than a connection. Where its session
with ZooKeeper ends, it is announced again in the next one, and goes on serving meanwhile.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from dlspark.core.metrics.registries import Statistics, registry_of
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.bounds import FramesLimits
from dlspark.serving.bindings.frames_server import FramesServer, frames_network
from dlspark.serving.process.directory import ProxyDirectory
from dlspark.serving.process.membership import (
    READ_PROXIES,
    WRITE_PROXIES,
    Announcement,
    ProxyEndpoint,
    ProxyMember,
    read_proxy_member,
    watch_members,
)
from dlspark.serving.process.page import ProxyPage
from dlspark.serving.protocol.operations import ProxyKind
from dlspark.serving.read_proxy.balance import SENT_S, ReadBalance
from dlspark.serving.read_proxy.figures import figures_shown_in
from dlspark.serving.read_proxy.peer_counts import PeerCounts
from dlspark.serving.read_proxy.service import ReadProxyService
from dlspark.serving.read_proxy.settings import ReadProxySettings
from metadata.foundation.errors import CallerError, DistributedLogError, check
from metadata.store import join
from storage_node.edge import Network

if TYPE_CHECKING:
    from dlspark.serving.bindings.grpc_server import GrpcServer

_LOG: Final = logging.getLogger(__name__)

NO_PORT: Final = -1
"""Of gRPC, and of the page: there is none."""


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
        self.settings = settings
        self._uri = uri
        self._network = network or frames_network(_frames_limits(settings))
        self._given = namespace
        self._statistics = statistics or Statistics()
        self._ending = AsyncExitStack()
        self._member: ProxyMember | None = None
        self._service: ReadProxyService | None = None
        self._announcement: Announcement | None = None
        self._directory = ProxyDirectory()
        self._counts: PeerCounts | None = None
        self._serving = False

    @property
    def service(self) -> ReadProxyService:
        """What does the work. Raises InvariantViolation before `start`."""
        check(self._service is not None, "the read proxy is not started")
        assert self._service is not None
        return self._service

    @property
    def member(self) -> ProxyMember:
        """What it announces. Raises InvariantViolation before `start`."""
        check(self._member is not None, "the read proxy is not started")
        assert self._member is not None
        return self._member

    @property
    def ready(self) -> bool:
        """Whether it answers readers."""
        return self._serving

    def state(self) -> Mapping[str, object]:
        """What its page says that it is: its name, whether clients find it, how many readers and logs it has."""
        figures = self._service.figures() if self._service is not None else None
        return {
            "location": self._member.location if self._member is not None else "",
            "announced": self._announcement is not None and self._announcement.announced,
            "readers": figures.readers if figures is not None else 0,
            "streams": figures.logs if figures is not None else 0,
        }

    def streams_shown(self) -> Mapping[str, Mapping[str, object]]:
        """What its page says of each log that it reads."""
        return self._service.logs_shown() if self._service is not None else {}

    async def start(self) -> None:
        """Begin to serve. Raises CallerError, MetadataUnavailableError, NotBoundError, OSError for a port that is
        taken; then nothing is left running."""
        try:
            await self._start()
        except BaseException:
            await self._ending.aclose()
            raise

    async def _start(self) -> None:
        page = await self._start_page()
        namespace = self._given or await AsyncNamespace.open(self._uri, statistics=self._statistics)
        self._ending.push_async_callback(namespace.close)
        settings = self.settings
        service = self._service = ReadProxyService(namespace, settings, location="", directory=self._directory)
        self._ending.push_async_callback(service.close)
        if page is not None:
            self._ending.callback(figures_shown_in(self._statistics, service.figures))
        frames = FramesServer(self._network, service, limits=_frames_limits(settings))
        grace_s = settings.shutdown_grace_ms / 1000
        self._ending.push_async_callback(frames.close, grace_s=grace_s)
        await frames.start(settings.host, settings.port)
        host = settings.advertised_host or socket.gethostname()
        grpc = await self._start_grpc(service)
        self._member = read_proxy_member(
            ProxyEndpoint(host, frames.port),
            settings.shard,
            grpc=ProxyEndpoint(host, grpc.port) if grpc is not None else None,
            stats=ProxyEndpoint(host, page.port) if page is not None else None,
        )
        service.location = self._member.location
        self._directory.use_own(self._member)
        if settings.read_balance:
            balance = service.balance = ReadBalance(
                settings.read_balance, sent_s=max(SENT_S, settings.linger_ms / 1000)
            )
            self._counts = PeerCounts(balance, self._network, str(self._member.endpoint))
            self._ending.push_async_callback(self._counts.close)
        for kind, folder in ((ProxyKind.WRITE, WRITE_PROXIES), (ProxyKind.READ, READ_PROXIES)):
            await self._watch(namespace, kind, folder)
        # Before the bindings end: they wait for answers, which readers at the end of a log would not get for long.
        self._ending.push_async_callback(service.close)
        announcement = self._announcement = Announcement(
            namespace.store, join(namespace.uri.path, READ_PROXIES), self._member
        )
        await announcement.begin()
        self._ending.push_async_callback(_withdraw, announcement)
        self._serving = True
        _LOG.info("the read proxy %s serves %s", self._member.location, namespace.uri)

    async def _start_page(self) -> ProxyPage | None:
        settings = self.settings
        if settings.stats_port == NO_PORT:
            return None
        page = ProxyPage(self, registry_of(self._statistics))
        await page.start(settings.host, settings.stats_port)
        self._ending.push_async_callback(page.close)
        return page

    async def _start_grpc(self, service: ReadProxyService) -> GrpcServer | None:
        if self.settings.grpc_port == NO_PORT:
            return None
        try:
            from dlspark.serving.bindings.grpc_server import GrpcServer
        except ImportError as error:
            raise CallerError(
                f"gRPC is not installed: {error}",
                advice="Install grpcio, grpcio-health-checking, grpcio-reflection; or serve frames alone: grpcPort=-1",
            ) from error
        server = GrpcServer(service, names=self._directory)
        await server.start(self.settings.host, self.settings.grpc_port)
        self._ending.push_async_callback(server.close)
        return server

    async def _watch(self, namespace: AsyncNamespace, kind: ProxyKind, folder: str) -> None:
        """Know the proxies of a kind from here on."""

        def changed(members: tuple[ProxyMember, ...]) -> None:
            self._directory.use(kind, members)
            if kind is ProxyKind.READ and self._counts is not None:
                self._counts.use_members(members)

        watch = await watch_members(namespace.store, join(namespace.uri.path, folder), changed)
        self._ending.push_async_callback(watch.close)

    async def stop(self) -> None:
        """End in order: withdraw, refuse what waits, let answers leave, close. Idempotent."""
        self._serving = False
        if self._service is not None:
            _LOG.info("stopping; so far: %s", self._service.figures())
        await self._ending.aclose()


async def _withdraw(announcement: Announcement) -> None:
    try:
        await announcement.withdraw()
    except DistributedLogError as error:
        _LOG.warning("the member could not be withdrawn, it ends with the session: %s", error)


def _frames_limits(settings: ReadProxySettings) -> FramesLimits:
    return FramesLimits(
        connections=settings.max_connections,
        requests_under_way=settings.max_caller_readers,
        bytes_under_way=settings.connection_bytes,
        memory_bytes=settings.connections_bytes,
    )
