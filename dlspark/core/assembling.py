"""How a namespace's services are made of its edges: sessions, network, clock, as `AsyncNamespace.over` is given them.

Writers and readers may have sessions of their own, and so may logs and ledgers: four at most, often one for all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from dlspark.core.dynamic.features import BKC_SCOPE, DISABLE_ENSEMBLE_CHANGE, FeatureProvider
from dlspark.core.metrics import Meter
from dlspark.core.services import RollingPermits, Services, Shared
from dlspark.core.settings import Settings
from metadata.bookies import BookieRegistry
from metadata.ledgers import LedgerStore
from metadata.log_folders import FederatedFolders
from metadata.logs import LogStore
from metadata.namespaces import Binding
from metadata.permissions import PermissionStore
from metadata.segment_listing import SegmentCache
from metadata.store import MetadataStore, join
from storage_node.client import ClientSettings, LedgerClient
from storage_node.edge import Clock, Network


@dataclass(frozen=True, slots=True)
class Edges:
    """What a namespace stands on. What is None is the product's own."""

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
    """The services of the namespace at `path`; those for readers apart where their sessions are others."""
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
    bookies.keep_lists()  # Every segment's ensemble is chosen from them.
    client = LedgerClient(
        ledgers,
        bookies,
        settings=edges.client_settings or settings.client_settings(),
        network=edges.network,
        rng=edges.rng,
        ensemble_change_disabled=features.scope(BKC_SCOPE).feature(DISABLE_ENSEMBLE_CHANGE).is_available,
    )
    return ledgers, client


def _log_store(store: MetadataStore, path: str, binding: Binding, settings: Settings) -> LogStore:
    """The logs of the namespace at `path`."""
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
