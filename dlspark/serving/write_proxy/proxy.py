"""`WriteProxy`: one write proxy as a whole, from the namespace that it opens to the member that it announces.

What it has in common with any proxy, and the order in which that begins and ends, is its host's (`process.host`). Its
own are the service, which does the work; and the placement of streams, with their loads, which begins last. Without an
announcement (`ProxyRole`) no client or proxy finds it by itself.

Stopping is graceful: it withdraws its member, takes nothing any more, hands its streams over to the others, and goes on
saying where they are for `server_graceful_shutdown_period_ms`.

Fault model: where the session with ZooKeeper ends, the locks of its logs are gone. Each writer takes its lock again;
one that finds another owner ends, and its stream with it. The member is announced again in the new session. An error
that says that the proxy cannot go on (`failure`) ends the process; nothing here may keep it alive then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlspark.core.metrics.registries import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.service import FramesLimits, GrpcLimits
from dlspark.serving.process.host import ServiceHost
from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.process.peers import ProxyPeers, TierForwarder
from dlspark.serving.protocol.operations import ProxyKind, ProxyStatus
from dlspark.serving.write_proxy.metrics import MeasuredService, ProxyScopes, StreamTraffic, WriteProxyView, shown_in
from dlspark.serving.write_proxy.service import WriteProxyService
from dlspark.serving.write_proxy.settings import ProxyConfiguration
from dlspark.serving.write_proxy.streams.files import StreamFiles
from dlspark.serving.write_proxy.streams.table import STOP_ACCEPT
from dlspark.serving.write_proxy.tier.placement import (
    LEADING_SHARD,
    EqualLoads,
    LeastLoadPlacement,
    LoadAppraiser,
    LoadTable,
    RingPlacement,
)
from dlspark.serving.write_proxy.tier.placement_keeper import MeasuredLoads, PlacementKeeper
from dlspark.serving.write_proxy.tier.writer_follower import WriterFollower
from metadata.foundation.errors import CallerError
from metadata.foundation.tasks import end_tasks
from storage_node.edge import Clock, Network, SystemClock

_LOG: Final = logging.getLogger(__name__)

SAMPLE_S: Final = 60.0
"""The interval at which streams' bytes a second are computed, and the series of those that were given up are ended."""
_STATUS_GAUGE: Final[Mapping[ProxyStatus, int]] = {
    ProxyStatus.WRITE_AND_ACCEPT: 1,
    ProxyStatus.WRITE_ONLY: 2,
    ProxyStatus.DOWN: -1,
}
_STATUS_BY_FEATURE: Final = 3


@dataclass(frozen=True, slots=True)
class ProxyRole:
    """What is this proxy to be among the others? Asked for when it is made, beside its settings."""

    announce: bool = True
    """True where it becomes a member, and others find it."""
    measured_loads: bool = False
    """True where the leader gives streams out by the bytes that they take, and not by their number."""


class WriteProxy:
    """How do I run a write proxy in a process of mine? `start` it, and `stop` it; all calls come from one event loop.

    Args:
        uri: the namespace; one that is found as `AsyncNamespace.open` does, unless given.
        role: announced, with equal loads, unless given.
        network: TCP, unless given.
        statistics: where metrics go; prometheus_client's own registry, unless given.
        namespace: over given edges, for tests; it is closed with the proxy, and `uri` is not looked at.
    """

    def __init__(
        self,
        uri: str | None,
        configuration: ProxyConfiguration,
        role: ProxyRole | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        statistics: Statistics | None = None,
        namespace: AsyncNamespace | None = None,
    ) -> None:
        self.failed = asyncio.Event()
        """Set when the proxy cannot go on."""
        self.failure: str | None = None
        """The reason why it cannot go on; None while it can."""
        self._uri = uri
        self._configuration = configuration
        self._settings = configuration.proxy
        self._role = role or ProxyRole()
        self.host = ServiceHost(
            ProxyKind.WRITE,
            configuration.proxy,
            _frames_limits(configuration),
            access=configuration.proxy,
            security=configuration.proxy.security,
            network=network,
            statistics=statistics,
        )
        self._clock = clock or SystemClock()
        self._given = namespace
        self._scopes = ProxyScopes(per_stream=self._settings.per_stream_statistics)
        self._traffic = StreamTraffic()
        self._service: WriteProxyService | None = None
        self._keeper: PlacementKeeper | None = None
        self._follower: WriterFollower | None = None
        self._serving = self._stopping = False
        self._twins: set[str] = set()
        """Locations of members with this proxy's number that were warned of."""

    # ------------------------------------------------------------------ what it is

    @property
    def location(self) -> str:
        """Its name among clients, locks and other proxies; empty before its port is known."""
        return self.host.location

    @property
    def member(self) -> ProxyMember:
        """The member that it announces. Raises CallerError before it serves."""
        return self.host.member

    @property
    def serving(self) -> bool:
        """True once it has started, until it ends."""
        return self._serving

    @property
    def announced(self) -> bool:
        """True while it is a member, as far as this process knows."""
        return self.host.announced

    @property
    def status(self) -> ProxyStatus:
        """Which requests it takes."""
        return self._service.status if self._service is not None else ProxyStatus.DOWN

    def streams(self) -> list[str]:
        """Return the names of the streams that it owns."""
        return self._service.streams_owned if self._service is not None else []

    def traffic(self) -> Mapping[str, int]:
        """Return bytes a second by stream, as of the last sample."""
        return self._traffic.bytes_per_second

    @property
    def members(self) -> tuple[ProxyMember, ...]:
        """The write proxies of the namespace, as of the last look."""
        return self.host.members(ProxyKind.WRITE)

    # ------------------------------------------------------------------ starting

    async def start(self) -> None:
        """Begin to serve. Where it raises nothing is left running.

        Raises CallerError, MetadataUnavailableError, NotBoundError, OSError for a port that is taken.
        """
        await self.host.start(self._start)

    async def _start(self) -> None:
        host = self.host
        if host.has_page:
            host.ending.callback(shown_in(host.statistics, self._scopes))
        namespace, frames = await host.begin(WriteProxyView(self), self._open_namespace)
        self._scopes.root.connections.follow(frames, lambda one: one.connection_count)
        peers = ProxyPeers(host.network, credentials_for=host.credentials_for)
        host.ending.push_async_callback(peers.close)
        placement = self._make_placement(namespace)
        files = await self._open_files(namespace)
        service = WriteProxyService(
            namespace,
            self._settings,
            location=host.location,
            forwarder=TierForwarder(peers, lambda: self.members),
            placement=placement,
            on_fatal=self._fail,
            directory=host.directory,
            stream_settings=files.settings_of,
        )
        host.ending.push_async_callback(service.close)
        if host.rights is not None:
            service.may_create = host.rights.may_create
        self._service = service
        measured: MeasuredService | WriteProxyService = service
        if host.has_page:
            measured = self._measured(service, namespace)
        member = await host.serve(measured, grpc_limits(self._configuration))
        frames.runs = measured
        if host.rights is not None:
            frames.runs, host.rights.runs = host.rights, measured
        if member.region is not None:
            placement.use_region(member.region)
        follower = self._make_follower(service, member) if self._settings.follow_writers else None
        await host.watch(self._members_changed)
        # Last: clients are sent here as soon as the member is there.
        await self._join_tier()
        if follower is not None:
            follower.start()
        self._serving = True
        _LOG.info("the write proxy %s serves %s", self.location, namespace.uri)

    async def _open_namespace(self) -> AsyncNamespace:
        return self._given or await AsyncNamespace.open(
            self._uri,
            self._configuration.logs,
            region_id=self._settings.region_number(),
            statistics=self.host.statistics,
        )

    def _make_placement(self, namespace: AsyncNamespace) -> LeastLoadPlacement:
        """Return how streams without an owner are placed; the leader computes loads, where it is announced itself."""
        appraiser: LoadAppraiser = EqualLoads()
        if self._role.measured_loads:
            appraiser = MeasuredLoads(lambda: self.members, context=self.host.page_context)
        placement = LeastLoadPlacement(RingPlacement(), appraiser.load_of)

        async def names() -> list[str]:
            return await namespace.logs(recursive=True)

        self._keeper = PlacementKeeper(
            placement,
            LoadTable(namespace.store, namespace.uri.path),
            names,
            appraiser,
            leads=self._role.announce and self._settings.shard == LEADING_SHARD,
            clock=self._clock,
            timing=self._scopes.root.placement,
        )
        self._scopes.root.placement_difference.follow(placement, lambda one: one.difference)
        return placement

    def _make_follower(self, service: WriteProxyService, member: ProxyMember) -> WriterFollower:
        if member.region is None:
            raise CallerError(
                "server_follow_writers=true, and this proxy does not know in which region it is",
                advice="Set region, or DLSPARK_REGION; or leave server_follow_writers out",
            )
        follower = self._follower = WriterFollower(
            member.region,
            self._settings.follow_rules(),
            self._settings.follow_window_s,
            members=lambda: self.members,
            owned=service.streams_served,
            hand_over=service.hand_over,
        )
        service.count_writer = follower.count
        self.host.ending.push_async_callback(follower.close)
        return follower

    async def _open_files(self, namespace: AsyncNamespace) -> StreamFiles:
        files = StreamFiles(self._settings, self._configuration.logs, namespace.counters, self._files_changed)
        await files.load()
        files.start(self._configuration.logs.dynamic_reload_s)
        self.host.ending.push_async_callback(files.close)
        return files

    def _files_changed(self) -> None:
        if self._service is not None:
            for stream in self._service.streams_owned:
                self._service.stream_settings_changed(stream)

    def _measured(self, service: WriteProxyService, namespace: AsyncNamespace) -> MeasuredService:
        """Return the service with its metrics before it, and what is sampled for them."""
        root, loop = self._scopes.root, asyncio.get_running_loop()
        stopped = namespace.services.features.feature(STOP_ACCEPT)

        def status(one: WriteProxyService) -> int:
            by_feature = stopped.is_available() and one.status is not ProxyStatus.DOWN
            return _STATUS_BY_FEATURE if by_feature else _STATUS_GAUGE[one.status]

        root.proxy_status.follow(service, status)
        root.moving_average_rps.follow(service, lambda one: one.requests_per_second)
        root.moving_average_bps.follow(service, lambda one: one.bytes_per_second)
        root.streams_acquired.follow(service, lambda one: len(one.streams_owned))
        root.streams_cached.follow(service, lambda one: one.streams_cached)
        root.announced.follow(self, lambda one: float(one.announced))
        root.over_limit.values = service.limit_counts
        sampling = loop.create_task(self._sample(service))
        self.host.ending.push_async_callback(end_tasks, [sampling], drop_errors=True)
        return MeasuredService(service, self._scopes, self._traffic, loop.time, service)

    async def _sample(self, service: WriteProxyService) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._traffic.sample(loop.time())
            await asyncio.sleep(SAMPLE_S)
            self._scopes.keep_streams(frozenset(service.streams_owned).__contains__)

    async def _join_tier(self) -> None:
        if self._role.announce:
            await self.host.announce()
        keeper = self._keeper
        if keeper is not None:
            keeper.use_members(self.members)
            keeper.start()
            self.host.ending.push_async_callback(keeper.close)

    def _members_changed(self, kind: ProxyKind, members: tuple[ProxyMember, ...], gone: frozenset[str]) -> None:
        if kind is not ProxyKind.WRITE:
            return
        if self._service is not None:
            self._service.owners_gone(gone)
        self._place_among(members)
        if self._settings.shard >= 0:
            self._warn_of_twins(self.host.others(members), self._settings.shard)

    def _place_among(self, members: tuple[ProxyMember, ...]) -> None:
        """Have streams placed on these; nothing is handed over to a proxy that ends."""
        if self._keeper is not None:
            self._keeper.use_members(self.host.others(members) if self._stopping else members)

    def _warn_of_twins(self, others: tuple[ProxyMember, ...], shard: int) -> None:
        """Say once of another proxy that it has the same number, as with a copied file: two leaders of placement write
        over each other's loads."""
        for one in others:
            if one.shard == shard and one.location not in self._twins:
                self._twins.add(one.location)
                _LOG.warning(
                    "the proxy %s has number %d, too: give each a server_shard of its own, unless that one has died "
                    "and its session is still to end",
                    one.location,
                    shard,
                )

    # ------------------------------------------------------------------ ending

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            _LOG.critical("the proxy cannot go on: %s", reason)
            self.failure = reason
            self.failed.set()

    async def stop(self) -> None:
        """End in order: withdraw, hand the streams over, go on saying where they are, close. Idempotent."""
        self._serving, self._stopping = False, True
        if self._follower is not None:
            await self._follower.close()  # a stream that it is moving would be closed, and not handed over
        # The member goes first, so that no client comes here anew; then streams are placed on the others alone, so that
        # none is handed over to this proxy.
        await self.host.withdraw()
        self._place_among(self.members)
        if self._service is not None:
            await self._service.shut_down()
            # Clients that remember this proxy as an owner still ask here, and are sent on from its memory.
            _LOG.info("the streams are given up; %d ms more", self._settings.graceful_shutdown_ms)
            await asyncio.sleep(self._settings.graceful_shutdown_ms / 1000)
        await self.host.close()


def _frames_limits(configuration: ProxyConfiguration) -> FramesLimits:
    settings = configuration.proxy
    return FramesLimits(
        connections=settings.max_connections,
        bytes_under_way=settings.append_window_bytes,
        idle_ms=settings.idle_timeout_ms,
    )


def grpc_limits(configuration: ProxyConfiguration) -> GrpcLimits:
    """Return what its gRPC binding takes from its clients. How often these may ping is not set: clients rely on it."""
    settings = configuration.proxy
    return GrpcLimits(
        connections=settings.max_connections,
        append_bytes=settings.append_window_bytes,
        keepalive_ms=settings.keep_alive_ms,
    )
