"""`ServiceHost`: all that a proxy of either kind has around its service, from the page to the member that it announces.

A proxy takes these steps in this order, with its own between them, and ends in the opposite one:

    begin       audit trail  first, so that nothing is allowed or refused without it
                page         health and metrics, so that a probe is answered that the proxy is not ready yet
                namespace    the session with ZooKeeper, the ledger client
                rights       who may do what, where clients prove who they are
                frames       the port, which is part of the proxy's location; a request that comes now is refused (503)
    serve       door         what comes goes to the proxy's service from here on
                gRPC         the second binding
    watch       proxies      those of both kinds that are announced
    announce    member       last: only now do clients and other proxies find it

Each step leaves on one stack (`ending`) what ends it, and so does a proxy for its own parts.

Fault model: the member is announced again in the session that follows one that has ended. Where it cannot be withdrawn
it ends with the session, and the proxy ends all the same.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from dlspark.core.metrics.registries import Statistics, registry_of
from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import ServiceUnavailableError
from dlspark.serving.bindings.frames_server import CLOSE_GRACE_S, FramesServer, frames_network
from dlspark.serving.bindings.service import Caller, FramesLimits, GrpcLimits, ProxyService, Reply
from dlspark.serving.process.access import AccessKeys
from dlspark.serving.process.entrance import open_audit, open_entrance
from dlspark.serving.process.membership import (
    READ_PROXIES,
    WRITE_PROXIES,
    Announcement,
    MemberWatch,
    ProxyEndpoint,
    ProxyMember,
    paged_member,
    proxy_member,
    read_proxy_member,
    secured_member,
    watch_members,
)
from dlspark.serving.process.page import ProxyPage, ShownProxy
from dlspark.serving.process.peers import ProxyDirectory
from dlspark.serving.process.rights_door import RightsDoor
from dlspark.serving.protocol.failures import refusal_of
from dlspark.serving.protocol.operations import ProxyKind, Request
from dlspark.serving.security.authentication import Authentication
from dlspark.serving.security.credentials import ClientCredentials
from dlspark.serving.security.settings import ProxySecurity
from metadata.foundation.errors import CallerError, DistributedLogError, present
from metadata.foundation.tasks import end_tasks
from metadata.security.audit import NOWHERE, Noted
from metadata.security.identity import TlsIdentity
from metadata.security.listening import ListeningRule, is_loopback
from metadata.security.settings import SecurityMode
from metadata.store import join
from storage_node.edge import Network

if TYPE_CHECKING:
    from dlspark.serving.bindings.grpc_server import GrpcServer

_LOG: Final = logging.getLogger(__name__)

REFRESH_S: Final = 4.0
"""The interval at which certificates, lists of revoked ones and tokens' keys are read again."""
NO_PORT: Final = -1
"""Of gRPC, and of the page: there is none."""
FOLDERS: Final[Mapping[ProxyKind, str]] = {ProxyKind.WRITE: WRITE_PROXIES, ProxyKind.READ: READ_PROXIES}

MembersChanged: TypeAlias = Callable[[ProxyKind, tuple[ProxyMember, ...], frozenset[str]], None]
"""Takes all members of a kind, and the addresses of those that are gone."""


class HostSettings(Protocol):
    """The settings of a proxy that say where it listens, and how it is named."""

    @property
    def host(self) -> str:
        """The address to listen on; empty: every one."""
        ...

    @property
    def insecure_listen(self) -> str:
        """What happens where it would listen on more than loopback without security: REFUSE or ALLOW."""
        ...

    @property
    def port(self) -> int:
        """For frames; 0: any."""
        ...

    @property
    def grpc_port(self) -> int:
        """For gRPC; 0: any, NO_PORT: none."""
        ...

    @property
    def stats_port(self) -> int:
        """For the page; 0: any, NO_PORT: none."""
        ...

    @property
    def stats_host(self) -> str:
        """The address to listen on with the page."""
        ...

    @property
    def advertised_host(self) -> str:
        """The name under which others reach this host; empty: the host's own name."""
        ...

    @property
    def shard(self) -> int:
        """The number of this proxy among those of its kind; -1: none."""
        ...


class ServiceDoor:
    """Where do requests go before there is a service? A `ProxyService` at the port as soon as it is open.

    The service comes behind it once the location is known, which has the port.
    """

    def __init__(self) -> None:
        self._service: ProxyService | None = None

    def open(self, service: ProxyService) -> None:
        """Hand everything on from here on."""
        self._service = service

    def submit(self, request: Request, caller: Caller, reply: Reply) -> None:
        """See `ProxyService`."""
        if self._service is None:
            reply(refusal_of(ServiceUnavailableError("the proxy is starting", advice="Ask another one, or again")))
            return
        self._service.submit(request, caller, reply)

    def caller_gone(self, caller: Caller) -> None:
        """See `ProxyService`."""
        if self._service is not None:
            self._service.caller_gone(caller)


async def _read_again(read: Callable[[], object]) -> None:
    """Read what has changed, again and again."""
    while True:
        await asyncio.sleep(REFRESH_S)
        try:
            await asyncio.to_thread(read)
        except Exception:  # the boundary: what goes wrong once must not leave the proxy with what it has for ever
            _LOG.exception("what proves who clients are could not be read again")


class ServiceHost:
    """What does a proxy begin and end besides its service, and in which order? All calls come from one event loop.

    Args:
        kind: which members it announces itself among.
        limits: those of the frames server.
        network: TCP, unless given.
        access: who may do what, beside the rules in ZooKeeper, and the audit trail.
        security: whom it takes, and what it shows others; off, unless given.
    """

    def __init__(
        self,
        kind: ProxyKind,
        settings: HostSettings,
        limits: FramesLimits,
        *,
        access: AccessKeys | None = None,
        security: ProxySecurity | None = None,
        network: Network | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        self.network = network or frames_network(limits)
        self.statistics = statistics or Statistics()
        self.door = ServiceDoor()
        self._security = security or ProxySecurity()
        mode = self._security.mode
        self.demands_proof: bool | None = None if mode is SecurityMode.OFF else mode is SecurityMode.ON
        """Whether clients that have proved nothing are refused; None: nothing can be proved, so there are no rights."""
        self.noted: Noted = NOWHERE
        """The audit trail."""
        self.rights: RightsDoor | None = None
        """What holds clients to their rights; None before it begins, and without security."""
        self._authentication: Authentication | None = None
        self._credentials: ClientCredentials | None = None
        self._access = access or AccessKeys()
        self.directory = ProxyDirectory()
        self.ending = AsyncExitStack()
        """Ends the steps that were taken, the last one first."""
        self._kind = kind
        self._settings = settings
        self._limits = limits
        self._page: ProxyPage | None = None
        self.page_identity: TlsIdentity | None = None
        """By what the page is served, and other proxies' pages are asked; None: in plain."""
        self._namespace: AsyncNamespace | None = None
        self._endpoint: ProxyEndpoint | None = None
        self._member: ProxyMember | None = None
        self._announcement: Announcement | None = None
        self._watches: dict[ProxyKind, MemberWatch] = {}

    # ------------------------------------------------------------------ what it is

    @property
    def has_page(self) -> bool:
        """True where the settings ask for a page."""
        return self._settings.stats_port != NO_PORT

    @property
    def location(self) -> str:
        """Its name among clients, locks and other proxies; empty before its port is known."""
        return proxy_member(self._endpoint, self._settings.shard).location if self._endpoint is not None else ""

    @property
    def member(self) -> ProxyMember:
        """The member that it announces. Raises CallerError before it serves."""
        if self._member is None:
            raise CallerError("the proxy does not serve yet")
        return self._member

    @property
    def announced(self) -> bool:
        """True while it is a member, as far as this process knows."""
        return self._announcement is not None and self._announcement.announced

    def members(self, kind: ProxyKind) -> tuple[ProxyMember, ...]:
        """Return the proxies of a kind, as of the last look."""
        return self._watches[kind].members if kind in self._watches else ()

    def others(self, members: tuple[ProxyMember, ...]) -> tuple[ProxyMember, ...]:
        """Return `members` without this proxy."""
        return tuple(one for one in members if one.endpoint != self._endpoint)

    # ------------------------------------------------------------------ the steps of a start

    async def start(self, steps: Callable[[], Awaitable[None]]) -> None:
        """Take the steps of a start; where one raises, end those that were taken."""
        try:
            await steps()
        except BaseException:
            await self.close()
            raise

    async def begin(
        self,
        shown: ShownProxy,
        open_namespace: Callable[[], Awaitable[AsyncNamespace]],
        *,
        grace_s: float = CLOSE_GRACE_S,
    ) -> tuple[AsyncNamespace, FramesServer]:
        """Start the page, open the namespace, listen for frames; return the latter two.

        Args:
            shown: the proxy as its page shows it.
            grace_s: how long an end waits for answers to leave.

        Raises CallerError for the page's port and for what others could reach without security, OSError for the port
        of frames where it is taken, and the errors of `open_namespace`.
        """
        settings = self._settings
        listening = self._listening_host()  # first of all: what must not listen tells nobody that it is there
        self.noted = open_audit(self._access, self.ending)
        await self._read_proofs()
        if self.has_page:
            await self._read_page_identity()
            self._page = ProxyPage(shown, registry_of(self.statistics), self.page_identity, self.noted)
            await self._page.start(self._page_host(), settings.stats_port)
            self.ending.push_async_callback(self._page.close)
        namespace = self._namespace = await open_namespace()
        self.ending.push_async_callback(namespace.close)
        if self.demands_proof is not None:
            self.rights = await open_entrance(
                self.door, namespace, self._access, self.noted, self.ending, demands_proof=self.demands_proof
            )
        # The port is opened before there is a service: locks and members name the location, which has the port.
        frames = FramesServer(self.network, self._entrance, limits=self._limits, authentication=self._authentication)
        self.ending.push_async_callback(frames.close, grace_s=grace_s)
        await frames.start(listening, settings.port)
        self._endpoint = self._own(frames.port)
        return namespace, frames

    async def serve(self, service: ProxyService, grpc_limits: GrpcLimits | None = None) -> ProxyMember:
        """Hand what comes to `service`, open gRPC; return the member that is to be announced.

        Raises CallerError where gRPC is not installed or the own region is the name of none, OSError where a port is
        taken.
        """
        endpoint = present(self._endpoint, "the host has not begun")
        region = await self._opened.ledgers.own_region()
        self.door.open(service)
        grpc = await self._start_grpc(grpc_limits)
        page = self._announced_page()
        make_member = read_proxy_member if self._kind is ProxyKind.READ else proxy_member
        member = self._member = make_member(
            endpoint,
            self._settings.shard,
            grpc=self._own(grpc.port) if grpc is not None else None,
            stats=page if self.page_identity is None else None,
            region=region,
        )
        if page is not None and self.page_identity is not None:
            member = self._member = paged_member(member, page)
        if self._authentication is not None:
            tls_port = grpc.tls_port if grpc is not None else None
            member = self._member = secured_member(member, self._own(tls_port) if tls_port is not None else None)
        self.directory.use_own(member)
        return member

    async def _read_page_identity(self) -> None:
        """Read what the page is served by, and go on reading it as it changes. Raises SettingsError."""
        identity = self.page_identity = await asyncio.to_thread(self._security.for_pages)
        if identity is not None:
            refreshing = asyncio.get_running_loop().create_task(_read_again(identity.refresh))
            self.ending.push_async_callback(end_tasks, [refreshing], drop_errors=True)

    async def _read_proofs(self) -> None:
        """Read certificates and keys, and go on reading them as they change. Raises SettingsError."""
        if self._security.mode is SecurityMode.OFF:
            if self._access.audit_log:
                _LOG.warning(
                    "auditLog is set, and security is off: nobody proves who they are, and %s stays empty",
                    self._access.audit_log,
                )
            return
        authentication = await asyncio.to_thread(self._security.authentication, self.noted)
        self._authentication = authentication
        self._credentials = await asyncio.to_thread(self._security.for_peers)
        if self.demands_proof is False:
            _LOG.warning(
                "security=optional: connections without TLS are taken as well, and prove nothing; set security=on once "
                "every client speaks TLS"
            )
        if authentication is not None:
            loop = asyncio.get_running_loop()
            tasks = [loop.create_task(_read_again(read)) for read in authentication.readings()]
            self.ending.push_async_callback(end_tasks, tasks, drop_errors=True)

    def page_context(self) -> ssl.SSLContext | None:
        """Return by what other proxies' pages are asked under TLS: as this one's own is served, or as this proxy proves
        itself to others; None where it has nothing to show."""
        if self.page_identity is not None:
            return self.page_identity.client_context()
        return self._credentials.context() if self._credentials is not None else None

    def credentials_for(self, address: str) -> ClientCredentials | None:
        """Return what is shown to another proxy, under TLS; None: nothing, without TLS."""
        # While a tier is changed over, one after the other begins to speak TLS, and says so in its member.
        if self.demands_proof is False and not self.directory.speaks_tls(address):
            return None
        return self._credentials

    async def _start_grpc(self, limits: GrpcLimits | None) -> GrpcServer | None:
        if self._settings.grpc_port == NO_PORT:
            return None
        try:
            from dlspark.serving.bindings.grpc_server import GrpcServer
            from dlspark.serving.bindings.grpc_tls import GrpcTls
        except ImportError as error:
            raise CallerError(
                f"gRPC is not installed: {error}",
                advice="Install grpcio, grpcio-health-checking, grpcio-reflection; or serve frames alone, with -1 for "
                "server_grpc_port (--grpc-port) of a write proxy, grpcPort of a read proxy",
            ) from error
        server = GrpcServer(
            self._entrance,
            limits=limits,
            names=self.directory,
            tls=GrpcTls(self._authentication, self._security.grpc.grpc_tls_port, proves=self._security.tls.proves)
            if self._authentication is not None
            else None,
        )
        await server.start(self._listening_host(), self._settings.grpc_port)
        self.ending.push_async_callback(server.close)
        return server

    @property
    def _entrance(self) -> ProxyService:
        """Where the bindings bring what comes."""
        return self.rights or self.door

    def _listening_host(self) -> str:
        """Return where frames and gRPC are served. Raises CallerError where that is not safe."""
        key = "listenHost" if self._kind is ProxyKind.READ else "server_host"
        rule = ListeningRule(f"the {self._kind.name.lower()} proxy", key, self._settings.insecure_listen)
        return rule.host(
            self._settings.host, secured=self.demands_proof is not None, advertised=self._settings.advertised_host
        )

    def _page_host(self) -> str:
        key = "statsHost" if self._kind is ProxyKind.READ else "server_stats_host"
        rule = ListeningRule(
            "the page with health and metrics",
            key,
            self._settings.insecure_listen,
            harm="read the proxy's state, names of streams, and metrics",
            secure="switch its TLS on (httpServerTlsEnable=true)",
        )
        return rule.host(self._settings.stats_host, secured=self.page_identity is not None)

    def _announced_page(self) -> ProxyEndpoint | None:
        """Return where others find the page; None where only this machine can reach it, and others know this proxy: at
        the loopback address they would ask a process of their own."""
        if self._page is None:
            return None
        reached = not is_loopback(self._settings.stats_host) or is_loopback(self._settings.advertised_host)
        return self._own(self._page.port) if reached else None

    def _own(self, port: int) -> ProxyEndpoint:
        return ProxyEndpoint(self._settings.advertised_host or socket.gethostname(), port)

    async def watch(self, changed: MembersChanged) -> None:
        """Know the proxies of both kinds from here on; `changed` is called when the directory knows them."""
        for kind, folder in FOLDERS.items():
            watch = await watch_members(self._opened.store, self._path(folder), partial(self._changed, changed, kind))
            self._watches[kind] = watch
            self.ending.push_async_callback(watch.close)

    def _changed(self, changed: MembersChanged, kind: ProxyKind, members: tuple[ProxyMember, ...]) -> None:
        # The directory first: what a proxy does about the change asks it.
        changed(kind, members, self.directory.use(kind, members))

    async def announce(self) -> None:
        """Become a member. Raises MetadataUnavailableError or an OutcomeUnknownError."""
        announcement = Announcement(self._opened.store, self._path(FOLDERS[self._kind]), self.member)
        await announcement.begin()
        self._announcement = announcement
        self.ending.push_async_callback(self.withdraw)

    @property
    def _opened(self) -> AsyncNamespace:
        return present(self._namespace, "the host has not begun")

    def _path(self, folder: str) -> str:
        return join(self._opened.uri.path, folder)

    # ------------------------------------------------------------------ ending

    async def withdraw(self) -> None:
        """Be a member no longer, as far as that can be done. Idempotent."""
        # An error must not keep the proxy from its end: the member is ephemeral, and goes with the session.
        if self._announcement is not None:
            try:
                await self._announcement.withdraw()
            except DistributedLogError as error:
                _LOG.warning("the member could not be withdrawn, it ends with the session: %s", error)

    async def close(self) -> None:
        """End the steps that were taken, the last one first. Idempotent."""
        await self.ending.aclose()
