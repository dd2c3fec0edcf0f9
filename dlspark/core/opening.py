"""The opening of a namespace: its ZooKeeper sessions (`connect_all`), and the services made from them (`services_of`).

`AsyncNamespace.open` connects and then calls `AsyncNamespace.over`, which makes the services from `Edges`: sessions,
network, clock. Tests and simulations call `over` with edges of their own.

There are sessions for the logs and for the ledgers, each for writers and for readers: four at most. Usually one session
serves all. The binding may name other servers for each of the four. And the ledgers have a session of their own where
its settings differ, and with `zkAclId`: what the logs' session creates is closed to other identities, while ledgers
must be open to the storage nodes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

from dlspark.core.dynamic.features import BKC_SCOPE, DISABLE_ENSEMBLE_CHANGE, FeatureProvider
from dlspark.core.metrics.meter import Meter
from dlspark.core.services import RollingPermits, Services, Shared
from dlspark.core.settings.cluster import ZooKeeperKeys
from dlspark.core.settings.settings import Settings
from dlspark.errors import SettingsError
from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.topology import TopologyStore
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.log_folders import FederatedFolders
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore, NamespaceUri
from metadata.distributedlog.permissions import PermissionStore
from metadata.distributedlog.segment_listing import SegmentCache
from metadata.store import MetadataStore, join
from storage_node.client.client import LedgerClient
from storage_node.client.placement.region_policy import RegionSwitches
from storage_node.edge import Clock, Network
from storage_node.settings.client import ClientSettings


@dataclass(frozen=True, slots=True)
class Edges:
    """The parts of the outside world that a namespace uses. None stands for the real one."""

    logs: MetadataStore
    ledgers: MetadataStore
    reader_logs: MetadataStore
    reader_ledgers: MetadataStore
    clock: Clock
    network: Network | None
    rng: random.Random | None
    client_settings: ClientSettings | None

    @property
    def stores(self) -> tuple[MetadataStore, ...]:
        """The four stores, one for each purpose; some may be the same."""
        return self.logs, self.ledgers, self.reader_logs, self.reader_ledgers


def services_of(
    edges: Edges,
    path: str,
    binding: Binding,
    settings: Settings,
    *,
    features: FeatureProvider,
    meter: Meter,
    region_id: int,
) -> Services:
    """Return the services of the namespace at `path`; with services for readers where these have other sessions."""
    ledger_store, client = _ledger_client(edges.ledgers, edges, binding, settings, features)
    acl_root = binding.acl_root_path
    services = Services(
        store=edges.logs,
        logs=_log_store(edges.logs, path, binding, settings),
        ledgers=client,
        binding=binding,
        settings=settings,
        clock=edges.clock,
        permits=RollingPermits(settings.rolling_concurrency),
        ledger_store=ledger_store,
        shared=Shared(path),
        region_id=region_id,
        features=features,
        meter=meter,
        permissions=PermissionStore(edges.logs, join(path, acl_root)) if acl_root else None,
    )
    if (edges.reader_logs, edges.reader_ledgers) == (edges.logs, edges.ledgers):
        return services
    ledger_store, client = _ledger_client(edges.reader_ledgers, edges, binding, settings, features)
    reading = replace(
        services,
        store=edges.reader_logs,
        logs=_log_store(edges.reader_logs, path, binding, settings),
        ledgers=client,
        ledger_store=ledger_store,
    )
    return replace(services, for_readers=reading)


def _ledger_client(
    store: MetadataStore, edges: Edges, binding: Binding, settings: Settings, features: FeatureProvider
) -> tuple[LedgerStore, LedgerClient]:
    ledgers = LedgerStore(store, binding.ledgers_path, rng=edges.rng)
    bookies = BookieRegistry(store, binding.ledgers_path)
    bookies.keep_lists()  # Every segment's ensemble is chosen from them,
    topology = TopologyStore(store, binding.ledgers_path)
    topology.keep()  # by where they are.
    client = LedgerClient(
        ledgers,
        bookies,
        settings=_client_settings(edges, settings),
        network=edges.network,
        rng=edges.rng,
        regions=RegionSwitches(topology.disallowed_regions, partial(_is_on, features.scope(BKC_SCOPE))),
        topology=topology,
        ensemble_change_disabled=features.scope(BKC_SCOPE).feature(DISABLE_ENSEMBLE_CHANGE).is_available,
    )
    return ledgers, client


def _client_settings(edges: Edges, settings: Settings) -> ClientSettings:
    """Return the ledger client's settings: those given, which must keep what `survive` asks for. Raises
    SettingsError."""
    given, derived = edges.client_settings, settings.client_settings()
    if given is None:
        return derived
    if settings.survive and replace(given.placement, region="") != replace(derived.placement, region=""):
        raise SettingsError(
            f"survive={settings.survive} is set, and the ledger client is given another placement",
            advice="Give it the placement of settings.client_settings(), or leave survive out",
        )
    return given


def _is_on(client: FeatureProvider, region: str | None, key: str) -> bool:
    """Return whether a feature of the ledger client is on, or of one region for it."""
    return (client if region is None else client.scope(region)).feature(key).is_available()


def _log_store(store: MetadataStore, path: str, binding: Binding, settings: Settings) -> LogStore:
    """Return the logs of the namespace at `path`."""
    folders = None
    if binding.federated or settings.federated:
        folders = FederatedFolders(
            store, path, max_logs=settings.federated_max_logs, ask_on_miss=settings.federated_ask_on_miss
        )
    return LogStore(
        store,
        path,
        settings.unpartitioned_stream_name,
        skip_minimum_version=settings.skip_minimum_version,
        validate_sequence=settings.validate_sequence,
        cache=SegmentCache(
            enabled=settings.segment_cache,
            max_segments=settings.segment_cache_max,
            ttl_ms=settings.segment_cache_ttl_ms,
        ),
        log_folders=folders,
    )


# ------------------------------------------------------------------ sessions

CONNECT_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions, which may be fewer than four, and the binding that says where they go."""

    binding: Binding
    logs: MetadataStore
    ledgers: MetadataStore
    reader_logs: MetadataStore
    reader_ledgers: MetadataStore

    @property
    def all(self) -> tuple[MetadataStore, ...]:
        """Every session once."""
        return tuple(dict.fromkeys((self.logs, self.ledgers, self.reader_logs, self.reader_ledgers)))


async def connect_all(
    uri: NamespaceUri, settings: Settings, *, connect_timeout_ms: int = CONNECT_TIMEOUT_MS
) -> Sessions:
    """Connect to the namespace at `uri`, read its binding, and connect to where that says.

    Raises NotBoundError, MetadataUnavailableError; then nothing stays open.
    """
    for_logs: dict[frozenset[str], MetadataStore] = {}
    for_ledgers: dict[frozenset[str], MetadataStore] = {}

    async def session(servers: str, *, ledgers: bool = False) -> MetadataStore:
        servers = servers.replace(";", ",")
        key = frozenset(servers.split(","))
        shared = not ledgers or (key in for_logs and not _ledgers_apart(settings))
        opened = for_logs if shared else for_ledgers
        if key not in opened:
            opened[key] = await (connect_logs if shared else connect_ledgers)(servers, settings, connect_timeout_ms)
        return opened[key]

    try:
        first = await session(uri.servers)
        binding = await NamespaceStore(first, uri.path).resolve()
        sessions = Sessions(
            binding,
            logs=await session(binding.dl_servers),
            reader_logs=await session(binding.dl_reader_servers or binding.dl_servers),
            ledgers=await session(binding.bk_servers, ledgers=True),
            reader_ledgers=await session(binding.bk_reader_servers or binding.bk_servers, ledgers=True),
        )
    except BaseException:
        for one in (*for_ledgers.values(), *for_logs.values()):
            await one.close()
        raise
    if first not in sessions.all:
        await first.close()  # It was needed for the binding alone.
    return sessions


def _ledgers_apart(settings: Settings) -> bool:
    """Return whether the ledgers need a session of their own even on the logs' servers."""
    plain = ZooKeeperKeys()
    own = any(
        getattr(settings, name) != getattr(plain, name)
        for name in ("bkc_zk_session_timeout_s", "bkc_zk_request_rate", "bkc_zk_retry_policy")
    )
    return own or bool(settings.zk_acl_id) or bool(settings.client_settings().zk_timeout_ms)


async def connect_logs(servers: str, settings: Settings, connect_timeout_ms: int = CONNECT_TIMEOUT_MS) -> MetadataStore:
    """Return a session for logs on `servers` ("host:port,host:port"). Raises MetadataUnavailableError."""
    # Imported here: everything else works over any metadata store.
    from metadata.zookeeper.securing import open_session

    return await open_session(
        servers,
        settings.client_settings().security,
        session_timeout_ms=settings.zk_session_timeout_s * 1000,
        connect_timeout_ms=connect_timeout_ms,
        acl_id=settings.zk_acl_id,
        requests_per_second=settings.zk_request_rate,
        retry_policy=settings.zk_retry_policy,
    )


async def connect_ledgers(
    servers: str, settings: Settings, connect_timeout_ms: int = CONNECT_TIMEOUT_MS
) -> MetadataStore:
    """Return a session for ledgers on `servers`. Raises MetadataUnavailableError."""
    from metadata.zookeeper.securing import open_session

    return await open_session(
        servers,
        settings.client_settings().security,
        session_timeout_ms=settings.client_settings().zk_timeout_ms or settings.bkc_zk_session_timeout_s * 1000,
        connect_timeout_ms=connect_timeout_ms,
        acl_id=settings.zk_acl_id,
        restrict=False,
        requests_per_second=settings.bkc_zk_request_rate,
        retry_policy=settings.bkc_zk_retry_policy,
    )
