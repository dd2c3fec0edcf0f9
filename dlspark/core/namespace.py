"""`AsyncNamespace`: a namespace of logs at `distributedlog://host:port;host:port/path`."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from types import TracebackType

from dlspark.core.deletion import delete_log
from dlspark.core.features import BKC_SCOPE, DISABLE_ENSEMBLE_CHANGE, FeatureProvider
from dlspark.core.log import AsyncLog
from dlspark.core.operator_files import OperatorFiles
from dlspark.core.services import RollingPermits, Services
from dlspark.core.settings import Settings, Value
from dlspark.core.writer import default_client_id
from dlspark.errors import AlreadyClosedError, UnsupportedFeatureError
from metadata.bookies import BookieRegistry
from metadata.ledgers import LedgerStore
from metadata.logs import LogNotFoundError, LogStore
from metadata.namespaces import Binding, NamespaceStore, NamespaceUri
from metadata.segment_listing import SegmentCache
from metadata.store import MetadataStore
from storage_node.client import ClientSettings, LedgerClient
from storage_node.edge import Clock, Network, SystemClock

CONNECT_TIMEOUT_MS = 10_000


class AsyncNamespace:
    """An open namespace: a ZooKeeper session, a ledger client, and the logs. All calls come from one event loop."""

    def __init__(
        self,
        uri: NamespaceUri,
        services: Services,
        files: OperatorFiles,
        *,
        own: tuple[MetadataStore, ...] = (),
    ) -> None:
        """Used by `open` and `over`; `own` are the stores to close with the namespace."""
        self.uri = uri
        self._services = services
        self._files = files
        self._own = own
        self._logs: list[AsyncLog] = []
        self._closed = False

    @classmethod
    async def open(
        cls,
        uri: str,
        settings: Settings | Mapping[str, Value] | None = None,
        *,
        features: FeatureProvider | None = None,
    ) -> AsyncNamespace:
        """Connect to a namespace. `settings` default to those of the environment (`DLSPARK_CONF`, `DLSPARK_SET_*`).

        `features` are asked instead of the provider that the settings name (`featureProviderClass`).
        Raises CallerError for a bad URI or setting, NotBoundError, MetadataUnavailableError.
        """
        parsed = NamespaceUri.parse(uri)
        settings = _settings(settings)
        store = await _connect(parsed.servers, settings)
        own: list[MetadataStore] = [store]
        try:
            binding = await NamespaceStore(store, parsed.path).resolve()
            ledger_store = store
            timeout_ms = settings.client_settings().zk_timeout_ms
            if timeout_ms or _servers(binding.bk_servers) != _servers(parsed.servers):
                ledger_store = await _connect(binding.bk_servers.replace(";", ","), settings, timeout_ms)
                own.append(ledger_store)
            return await cls.over(
                store,
                parsed,
                settings,
                binding=binding,
                ledger_store=ledger_store,
                features=features,
                own=tuple(own),
            )
        except BaseException:
            for one in reversed(own):
                await one.close()
            raise

    @classmethod
    async def over(
        cls,
        store: MetadataStore,
        uri: NamespaceUri | str,
        settings: Settings | None = None,
        *,
        binding: Binding | None = None,
        ledger_store: MetadataStore | None = None,
        network: Network | None = None,
        rng: random.Random | None = None,
        clock: Clock | None = None,
        client_settings: ClientSettings | None = None,
        features: FeatureProvider | None = None,
        own: tuple[MetadataStore, ...] = (),
    ) -> AsyncNamespace:
        """A namespace over given edges: what `open` does after connecting, and what tests and simulations use."""
        parsed = NamespaceUri.parse(uri) if isinstance(uri, str) else uri
        settings = settings or Settings()
        binding = binding or await NamespaceStore(store, parsed.path).resolve()
        if binding.federated:
            raise UnsupportedFeatureError(
                "the namespace is federated, which this version does not read", path=parsed.path
            )
        counters: Counter[str] = Counter()
        files = await OperatorFiles.load(settings, counters, features)
        ledgers = LedgerStore(ledger_store or store, binding.ledgers_path, rng=rng)
        bookies = BookieRegistry(ledger_store or store, binding.ledgers_path)
        client = LedgerClient(
            ledgers,
            bookies,
            settings=client_settings or settings.client_settings(),
            network=network,
            rng=rng,
            ensemble_change_disabled=files.features.scope(BKC_SCOPE).feature(DISABLE_ENSEMBLE_CHANGE).is_available,
        )
        services = Services(
            store=store,
            logs=LogStore(
                store,
                parsed.path,
                settings.unpartitioned_stream_name,
                cache=SegmentCache(
                    enabled=settings.segment_cache,
                    max_segments=settings.segment_cache_max,
                    ttl_ms=settings.segment_cache_ttl_ms,
                ),
            ),
            ledgers=client,
            binding=binding,
            settings=settings,
            clock=clock or SystemClock(),
            permits=RollingPermits(settings.rolling_concurrency),
            ledger_store=ledgers,
            features=files.features,
            counters=counters,
        )
        files.start(settings.dynamic_reload_s)
        return cls(parsed, services, files, own=own)

    @staticmethod
    async def bind(
        uri: str,
        *,
        ledgers_path: str = "/ledgers",
        ledger_servers: str | None = None,
        first_lssn: int | None = None,
        settings: Settings | Mapping[str, Value] | None = None,
    ) -> Binding:
        """Make a namespace at `uri`, whose ledgers are in the BookKeeper cluster at `ledgers_path`.

        `ledger_servers` is that cluster's ZooKeeper ("host:port,host:port") where it is another than the URI's.
        Binding again replaces the binding; logs stay. Safe to repeat after an unknown outcome.
        """
        parsed = NamespaceUri.parse(uri)
        binding = Binding(
            bk_servers=ledger_servers or parsed.servers,
            ledgers_path=ledgers_path,
            dl_servers=parsed.servers,
            first_lssn=first_lssn,
        )
        store = await _connect(parsed.servers, _settings(settings))
        try:
            await NamespaceStore(store, parsed.path).bind(binding)
        finally:
            await store.close()
        return binding

    # ------------------------------------------------------------------ what it is made of

    @property
    def services(self) -> Services:
        return self._services

    @property
    def store(self) -> MetadataStore:
        """The session with the namespace's ZooKeeper."""
        return self._services.store

    @property
    def ledgers(self) -> LedgerClient:
        return self._services.ledgers

    @property
    def logs_store(self) -> LogStore:
        return self._services.logs

    @property
    def binding(self) -> Binding:
        return self._services.binding

    @property
    def settings(self) -> Settings:
        return self._services.settings

    @property
    def counters(self) -> Counter[str]:
        """How often rare paths were taken (recoveries, retries, lost answers)."""
        return self._services.counters

    # ------------------------------------------------------------------ logs

    async def create_log(self, name: str) -> None:
        """Create a log; one that exists is left as it is. Raises InvalidLogNameError, or LogExistsError for a race."""
        self._check_open()
        await self._services.logs.create(name)

    async def log_exists(self, name: str) -> bool:
        self._check_open()
        return await self._services.logs.exists(name)

    async def logs(self, prefix: str = "") -> list[str]:
        """Names of the logs, or of those directly below `prefix`. A name with `/` in it shows as its first part."""
        self._check_open()
        return await self._services.logs.list(prefix)

    async def open_log(self, name: str, settings: Mapping[str, Value] | None = None) -> AsyncLog:
        """A handle on a log, with settings of its own over the namespace's. The log need not exist yet.

        What dynamic settings files say of the log goes over both, now and later. Raises InvalidLogNameError,
        SettingsError.
        """
        self._check_open()
        name = self._services.logs.validate_name(name)
        own = self.settings.for_log(settings) if settings else self.settings
        log = AsyncLog(self._services, name, await self._files.settings_of(name, own))
        self._logs = [*(one for one in self._logs if not one.closed), log]
        return log

    async def reload_settings(self) -> None:
        """Look at the dynamic settings and feature files now, instead of at the next interval's end."""
        self._check_open()
        await self._files.reload()

    async def delete_log(self, name: str) -> None:
        """Delete a log with all its segments. Safe to repeat: a second call finishes what a first one began.

        Raises OwnershipAcquireFailedError while somebody writes it, LogNotFoundError if there is no such log.
        """
        self._check_open()
        services, logs = self._services, self._services.logs
        name = logs.validate_name(name)
        if not await logs.exists(name):
            raise LogNotFoundError("no such log in this namespace", log=name, advice="dlspark log list shows all names")
        await delete_log(services, name, self.settings, default_client_id())

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        """Close every log opened here (writers complete their segments), the ledger client and the session.

        Idempotent. Raises the first failure of a writer, after everything is closed.
        """
        if self._closed:
            return
        self._closed = True
        await self._files.close()
        errors: list[Exception] = []
        for log in self._logs:
            try:
                await log.close()
            except Exception as error:
                errors.append(error)
        await self._services.ledgers.close()
        for store in reversed(self._own):
            await store.close()
        if errors:
            raise errors[0]

    async def __aenter__(self) -> AsyncNamespace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError("the namespace was closed", advice="Open it again")


def _settings(settings: Settings | Mapping[str, Value] | None) -> Settings:
    if isinstance(settings, Settings):
        return settings
    return Settings.from_environment() if settings is None else Settings.from_environment().with_values(settings)


def _servers(servers: str) -> set[str]:
    return set(servers.replace(";", ",").split(","))


async def _connect(servers: str, settings: Settings, session_timeout_ms: int = 0) -> MetadataStore:
    # Imported here: everything else works over any metadata store, without a ZooKeeper client installed.
    from metadata.zookeeper import ZooKeeperStore

    return await ZooKeeperStore.connect(
        servers,
        session_timeout_ms=session_timeout_ms or settings.zk_session_timeout_s * 1000,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
    )
