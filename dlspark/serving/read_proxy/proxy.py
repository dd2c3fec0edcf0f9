"""`ReadProxy`: one read proxy as a whole, from the namespace that it opens to the member that it announces; and
`PeerCounts`, which asks the other read proxies how many logs they read.

What it has in common with any proxy, and the order in which that begins and ends, is its host's (`process.host`). Its
own are the service, which does the work; and the counts of the logs that the other read proxies read, by which
`ReadBalance` decides. Its member lies in <namespace>/.read_proxy.

Each peer is asked every `INTERVAL_S`, and `BUSY_S` after its last answer where this proxy has sent a client on since it
was asked: then old counts would send many logs to one proxy. Only proxies that announce that they answer are asked
(`membership.LOGS_READ`): one of an older release would take the question for a broken frame.

Stopping is graceful: it withdraws its member, so that no new reader comes; then readers that wait are refused with
SERVICE_UNAVAILABLE and go on elsewhere at their positions; then it waits for answers to leave.

Fault model: a read proxy owns nothing. Where it dies, its readers lose no more than a connection. Where its session
with ZooKeeper ends, it is announced again in the next one, and goes on serving meanwhile. A peer may not answer, answer
late, or go: its count is then not known, from the moment at which its connection ends or the answer is late on, until
it answers again. Nothing waits for a peer but the one task that asks it, and nothing of a peer fails the proxy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dlspark.core.metrics.registries import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.serving.bindings.service import FramesLimits
from dlspark.serving.process.host import ServiceHost
from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.process.peers import ProxyPeers, no_credentials
from dlspark.serving.protocol.operations import Answer, Handshake, ProxyInfo, ProxyKind, ProxyStatus
from dlspark.serving.read_proxy.balance import SENT_S, ReadBalance
from dlspark.serving.read_proxy.figures import figures_shown_in
from dlspark.serving.read_proxy.service import ReadProxyService
from dlspark.serving.read_proxy.settings import ReadProxySettings
from dlspark.serving.routing.hosts import ProxyHost
from dlspark.serving.security.credentials import ClientCredentials
from metadata.foundation.errors import present
from metadata.foundation.tasks import end_tasks
from storage_node.edge import Network

# ---------------------------------------------------------------------- what the others read


INTERVAL_S: Final = 2.0
BUSY_S: Final = 0.1
ASKED_IN_A_SECOND: Final = 50
"""Of a thousand proxies each is asked every 20 s."""
ANSWER_TIMEOUT_MS: Final = 1_000
COUNT: Final = Handshake(ownerships=False, count_logs=True)


def count_in(answer: Answer) -> int | None:
    """Return the logs that a proxy reads; None for one that refuses, says no number, or is being stopped."""
    if not isinstance(answer, ProxyInfo) or answer.status is ProxyStatus.DOWN:
        return None
    return answer.logs_read


class PeerCounts:
    """Asks the other read proxies how many logs they read, from the first members until `close`. For one loop.

    Args:
        balance: gets the counts.
        network: connects to peers.
        own: the member that is left out. Where it says its region, so are those of other regions: a client of this one
            that was sent there would read every entry from afar.
        credentials_for: what is shown to the proxy at an address.
    """

    def __init__(
        self,
        balance: ReadBalance,
        network: Network,
        own: ProxyMember,
        credentials_for: Callable[[str], ClientCredentials | None] = no_credentials,
    ) -> None:
        self._balance = balance
        self._own = own
        self._peers = ProxyPeers(
            network, connect_timeout_ms=ANSWER_TIMEOUT_MS, on_lost=balance.lost, credentials_for=credentials_for
        )
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._all: dict[asyncio.Task[None], None] = {}
        """Tasks, of proxies that are gone too, until they have ended."""
        self._sent = asyncio.Event()
        """Set, and replaced, when a client was sent on."""
        balance.on_sent = self._client_sent

    def use_members(self, members: Iterable[ProxyMember]) -> None:
        """Note that these read proxies run now."""
        own = self._own
        others = [one for one in members if one.frames is not None and one.endpoint != own.endpoint]
        if own.region is not None:
            others = [one for one in others if one.region == own.region]
        self._balance.use_members(ProxyHost(str(one.endpoint), one.shard) for one in others)
        answering = dict.fromkeys(str(one.endpoint) for one in others if one.logs_read is not None)
        for address in [one for one in self._asking if one not in answering]:
            self._asking.pop(address).cancel()
        for address in answering:
            if address not in self._asking:
                task = self._asking[address] = asyncio.get_running_loop().create_task(self._ask(address))
                self._all[task] = None
                task.add_done_callback(self._all.pop)

    async def close(self) -> None:
        """Ask no more. Idempotent."""
        self._balance.on_sent = None
        self._asking.clear()
        await end_tasks(self._all, drop_errors=True)
        await self._peers.close()

    def _client_sent(self) -> None:
        sent, self._sent = self._sent, asyncio.Event()
        sent.set()

    async def _ask(self, address: str) -> None:
        while self._asking.get(address) is asyncio.current_task():
            sent = self._sent
            self._balance.asked(address)
            answer = await self._peers.call(address, COUNT, ANSWER_TIMEOUT_MS)
            self._balance.heard(address, count_in(answer))
            spacing_s = len(self._asking) / ASKED_IN_A_SECOND
            await asyncio.sleep(max(BUSY_S, spacing_s))
            try:
                await asyncio.wait_for(sent.wait(), max(INTERVAL_S, spacing_s))
            except asyncio.TimeoutError:
                pass


# ---------------------------------------------------------------------- the proxy


_LOG: Final = logging.getLogger(__name__)


class ReadProxy:
    """Runs one read proxy: `start` serves and announces it, `stop` withdraws it and ends. For one running loop.

    Args:
        uri: the namespace's; None: that of the environment, or of a sandbox.
        settings: the proxy's.
        network: listens and connects; None: TCP.
        statistics: where metrics go; None: prometheus_client's own registry.
        namespace: over given edges; it is closed with the proxy, and `uri` is not looked at.
    """

    def __init__(
        self,
        uri: str | None,
        settings: ReadProxySettings,
        *,
        network: Network | None = None,
        statistics: Statistics | None = None,
        namespace: AsyncNamespace | None = None,
    ) -> None:
        self.failed = asyncio.Event()
        """See `RunningProxy`; never set, for a proxy that owns nothing can always go on."""
        self.settings = settings
        self.host = ServiceHost(
            ProxyKind.READ,
            settings,
            _frames_limits(settings),
            access=settings,
            security=settings.security,
            network=network,
            statistics=statistics,
        )
        self._uri = uri
        self._given = namespace
        self._service: ReadProxyService | None = None
        self._counts: PeerCounts | None = None
        self._serving = False

    @property
    def service(self) -> ReadProxyService:
        """What does the work. Raises InvariantViolation before `start`."""
        return present(self._service, "the read proxy is not started")

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
            self._counts = PeerCounts(balance, host.network, member, host.credentials_for)
            host.ending.push_async_callback(self._counts.close)
        await host.watch(self._members_changed)
        # Before the bindings end: they wait for answers, which readers at the end of a log would not get for long.
        host.ending.push_async_callback(service.close)
        await host.announce()
        self._serving = True
        _LOG.info("the read proxy %s serves %s", self.location, namespace.uri)

    async def _open_namespace(self) -> AsyncNamespace:
        return self._given or await AsyncNamespace.open(
            self._uri, self.settings.security.for_namespace or None, statistics=self.host.statistics
        )

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
