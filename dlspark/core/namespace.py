"""`AsyncNamespace`: a namespace of logs at `distributedlog://host:port;host:port/path`."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Final

from dlspark.core import binding as bindings
from dlspark.core.binding import settings_from
from dlspark.core.dynamic.features import FeatureProvider
from dlspark.core.dynamic.operator_files import OperatorFiles
from dlspark.core.metrics.meter import Meter
from dlspark.core.metrics.registries import Statistics
from dlspark.core.opening import Edges, connect_all, services_of
from dlspark.core.services import RollingPermits, Services, check_region_id
from dlspark.core.settings.settings import Settings
from dlspark.core.write_lock import default_client_id
from dlspark.default_namespace import uri_or_default
from dlspark.errors import AlreadyClosedError
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.allocators import pool_path
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.log_admin import LogAdmin
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.log_watch import LogChange, watch_logs
from metadata.distributedlog.logs import LogStore
from metadata.distributedlog.namespaces import NamespaceStore, NamespaceUri
from metadata.distributedlog.permissions import Action, PermissionStore
from metadata.distributedlog.record_schemas import SchemaStore
from metadata.foundation.errors import CallerError
from metadata.foundation.opened_here import OnOneLoop
from metadata.foundation.settings import Value
from metadata.foundation.tasks import Once, each
from metadata.store import MetadataStore, Op
from storage_node.client.client import LedgerClient
from storage_node.edge import Clock, Network, SystemClock
from storage_node.settings.client import ClientSettings

if TYPE_CHECKING:
    from dlspark.core.display.status import Overview
    from dlspark.core.log import AsyncLog

OVERVIEW_S: Final = 3.0
"""How long an overview looks at logs by default."""


class AsyncNamespace(OnOneLoop):
    """Creates, lists, opens, renames and deletes the logs of a namespace, over its ZooKeeper sessions and one client of
    the bookies.

    Connect with `open`, and use it as an asynchronous context manager or call `close`, which closes all that was opened
    in it. All calls come from one event loop. `Namespace` does the same for programs without one.
    """

    def __init__(
        self,
        uri: NamespaceUri,
        services: Services,
        files: OperatorFiles,
        *,
        own: tuple[MetadataStore, ...] = (),
    ) -> None:
        """Use `open` or `over` instead; `own` are the stores to close with the namespace."""
        self.uri = uri
        self._loop = asyncio.get_running_loop()
        self._services = services
        self._files = files
        self._own = own
        self._logs: list[AsyncLog] = []
        self._closing = Once(self._close)
        measures = services.meter.root
        measures.write_limiter_permits.follow(self, lambda namespace: namespace._services.shared.outstanding)
        measures.permits_outstanding.follow(services.permits, RollingPermits.outstanding)

    @classmethod
    async def open(
        cls,
        uri: str | None = None,
        settings: Settings | Mapping[str, Value] | None = None,
        *,
        features: FeatureProvider | None = None,
        region_id: int | None = None,
        statistics: Statistics | None = None,
    ) -> AsyncNamespace:
        """Connect to a namespace: that of `uri`, else of the environment variable `DLSPARK_URI`, else of the sandbox
        that runs on this machine (`dlspark sandbox start`).

        Args:
            uri: `distributedlog://host:port/path`.
            settings: those of the environment (`DLSPARK_CONF`, `DLSPARK_SET_*`) unless given.
            features: instead of the provider that the settings name (`featureProviderClass`).
            region_id: 0 to 15, for segments where `encodeRegionIDInVersion` or the namespace's binding says so; the
                setting `regionId` unless given.
            statistics: where metrics go; to prometheus_client's own registry unless given.

        Raises:
            CallerError: a bad URI or setting, or no namespace is named.
            NotBoundError: no namespace is bound at the path.
            MetadataUnavailableError: ZooKeeper could not be reached.
        """
        parsed = NamespaceUri.parse(uri_or_default(uri))
        settings = settings_from(settings)
        sessions = await connect_all(parsed, settings)
        try:
            return await cls.over(
                sessions.logs,
                parsed,
                settings,
                binding=sessions.binding,
                ledger_store=sessions.ledgers,
                reader_store=sessions.reader_logs,
                reader_ledger_store=sessions.reader_ledgers,
                features=features,
                region_id=region_id,
                statistics=statistics,
                own=sessions.all,
            )
        except BaseException:
            for one in reversed(sessions.all):
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
        reader_store: MetadataStore | None = None,
        reader_ledger_store: MetadataStore | None = None,
        network: Network | None = None,
        rng: random.Random | None = None,
        clock: Clock | None = None,
        client_settings: ClientSettings | None = None,
        features: FeatureProvider | None = None,
        region_id: int | None = None,
        statistics: Statistics | None = None,
        own: tuple[MetadataStore, ...] = (),
    ) -> AsyncNamespace:
        """Return a namespace over given edges: what `open` does after connecting, and what tests and simulations use.

        Stores that are not given are `store`; stores for readers that are not given are those for writers.
        """
        parsed = NamespaceUri.parse(uri) if isinstance(uri, str) else uri
        settings = settings or Settings()
        binding = binding or await NamespaceStore(store, parsed.path).resolve()
        settings = settings.in_namespace(binding.quorums)
        region_id = settings.region_id if region_id is None else region_id
        check_region_id(region_id)
        meter = Meter.open(statistics, settings)
        files = await OperatorFiles.load(settings, meter.root.rare_paths.values, features)
        edges = Edges(
            logs=store,
            ledgers=ledger_store or store,
            reader_logs=reader_store or store,
            reader_ledgers=reader_ledger_store or ledger_store or store,
            clock=clock or SystemClock(),
            network=network,
            rng=rng,
            client_settings=client_settings,
        )
        services = services_of(
            edges, parsed.path, binding, settings, features=files.features, meter=meter, region_id=region_id
        )
        files.start(settings.dynamic_reload_s)
        meter.observe(edges.stores, settings)
        return cls(parsed, services, files, own=own)

    bind = staticmethod(bindings.bind)
    find_binding = staticmethod(bindings.find_binding)
    update_binding = staticmethod(bindings.update_binding)
    unbind = staticmethod(bindings.unbind)

    def __repr__(self) -> str:
        return f"AsyncNamespace({str(self.uri)!r})"

    # ------------------------------------------------------------------ what it is made of

    @property
    def services(self) -> Services:
        """The services that everything opened in the namespace shares."""
        return self._services

    @property
    def store(self) -> MetadataStore:
        """The session with the namespace's ZooKeeper."""
        return self._services.store

    @property
    def ledgers(self) -> LedgerClient:
        """The client of the storage nodes that hold the logs' ledgers."""
        return self._services.ledgers

    @property
    def logs_store(self) -> LogStore:
        """The metadata of the logs."""
        return self._services.logs

    @property
    def binding(self) -> Binding:
        """The binding of the namespace, as it was when the namespace was opened."""
        return self._services.binding

    @property
    def federated(self) -> bool:
        """True if its logs are spread over sub-namespaces."""
        return self.binding.federated or self.settings.federated

    @property
    def access_control(self) -> PermissionStore:
        """The namespace's access control: what may be done with all logs, and with single ones.

        Raises CallerError where the namespace's binding has no root for it.
        """
        if self._services.permissions is None:
            raise CallerError(
                "the namespace is bound without access control",
                path=self.uri.path,
                advice="Give it a root: dlspark namespace bind --acl-root .acl",
            )
        return self._services.permissions

    @property
    def settings(self) -> Settings:
        """The namespace's settings; a log's own settings override them."""
        return self._services.settings

    @property
    def counters(self) -> Counter[str]:
        """How often rare paths were taken (recoveries, retries, lost answers)."""
        return self._services.counters

    # ------------------------------------------------------------------ logs

    async def create_log(self, name: str, metadata: bytes = b"", declaration: Declaration | None = None) -> None:
        """Create a log, with bytes of the application's own; an existing log is left as it is.

        `declaration` is what it declares of its records (`Declaration.of`), made in the same step: there is never a log
        without it. Then a log that is there, even half-made by another client, raises LogExistsError.

        Raises InvalidLogNameError; LogExistsError where another client was faster.
        """
        self._check_open()
        if declaration is None:
            await self._services.logs.create(name, metadata)
        else:
            await SchemaStore(self._services.logs).create_log(name, declaration.encode_to_store(), metadata)

    async def log_exists(self, name: str) -> bool:
        """Return whether there is a log of this name. Raises InvalidLogNameError, DuplicateLogError."""
        self._check_open()
        return await self._services.logs.exists(name)

    async def logs(self, prefix: str = "", *, recursive: bool = False) -> list[str]:
        """Return names of the logs, or of those directly below `prefix`. A name with `/` in it shows as its first part.

        With `recursive`: the full names of all logs, at any depth.
        """
        self._check_open()
        return await (LogAdmin(self._services.logs).names(prefix) if recursive else self._services.logs.list(prefix))

    async def overview(self, seconds: float = OVERVIEW_S) -> Overview:
        """Return the first 50 names with their logs' states and sizes, as a table for notebooks.

        It looks for `seconds` at most; logs that it did not reach by then are marked.
        """
        from dlspark.core.display.status import overview

        self._check_open()
        return await overview(self._services, str(self.uri), seconds)

    async def watch_logs(self, prefix: str = "", *, existing: bool = False) -> AsyncGenerator[LogChange, None]:
        """Report every log that comes or goes, by the names that `logs(prefix)` gives, until the namespace is closed
        (or the session, where that was given to `over`).

        With `existing` the logs that exist come first. A log that comes and goes at once may not be reported.
        """
        self._check_open()
        async with aclosing(watch_logs(self._services.reading.logs, prefix, existing=existing)) as changes:
            async for change in changes:
                yield change

    async def rename_log(self, old: str, new: str, client_id: str | None = None) -> None:
        """Give a log another name, in one step, with its permissions. Its readers must be opened again. `client_id`:
        the name under which others see the lock held meanwhile; host and process unless given.

        Raises LogNotFoundError, LogExistsError for a name that is taken, OwnershipAcquireFailedError as `delete_log`,
        LockingError while a reader has it locked, CallerError for a log of several thousand segments: nothing was
        renamed. After an OutcomeUnknownError look which name it has: it has one of the two.
        """
        self._check_open()
        await self._services.permit(old, Action.DELETE)
        permissions = self._services.permissions

        async def moved() -> list[Op]:
            return await permissions.move_ops(old, new) if permissions is not None else []

        await LogAdmin(self._services.logs).rename(old, new, moved, client_id=client_id or default_client_id())

    async def open_log(self, name: str, settings: Mapping[str, Value] | None = None) -> AsyncLog:
        """Return a handle on a log, with settings of its own over the namespace's. The log need not exist yet.

        Args:
            name: the log's name below the namespace.
            settings: by their keys; dynamic settings files override them, now and whenever they change.

        Raises:
            InvalidLogNameError: no log can have this name.
            SettingsError: a setting is unknown, ill-typed or contradicts another.
        """
        from dlspark.core.log import AsyncLog

        self._check_open()
        name = self._services.logs.validate_name(name)
        own = self.settings.for_log(settings) if settings else self.settings
        live = await self._files.settings_of(name, own)
        if self._closing.begun:
            live.close()
        self._check_open()  # Closed meanwhile, it would never close this log (I16).
        log = AsyncLog(self._services, name, live)
        self._logs = [*(one for one in self._logs if not one.closed), log]
        return log

    async def reload_settings(self) -> None:
        """Look at the dynamic settings and feature files now, instead of at the end of the interval."""
        self._check_open()
        await self._files.reload()

    async def delete_log(self, name: str) -> None:
        """Delete a log with all its segments. After any error it may be called again, and finishes what was begun.

        Raises LogNotFoundError if there is no such log, and OwnershipAcquireFailedError, at once, while another client
        owns it: a writer, a Spark query, a proxy.
        """
        from dlspark.core.lifecycle.deletion import delete_log

        self._check_open()
        services, logs = self._services, self._services.logs
        name = logs.validate_name(name)
        await services.permit(name, Action.DELETE)
        if not await logs.exists(name):
            raise LogNotFoundError("no such log in this namespace", log=name, advice="dlspark log list shows all names")
        await delete_log(services, name, self.settings, default_client_id())

    async def delete_allocator_pool(self, name: str, folder: str | None = None) -> int:
        """Delete a pool of ledger allocators with the ledgers that it has ready; returns how many. It may be missing.

        `folder` is `ledgerAllocatorPoolPath` unless given. A process that still uses the pool loses its allocators, and
        no segment. After any error it may be called again. Raises CallerError for a name that a pool cannot have.
        """
        from dlspark.core.writing.ledger_allocators import delete_pool

        self._check_open()
        path = pool_path(self.uri.path, folder or self.settings.allocator_pool_path, name)
        return await delete_pool(self._services, path)

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        """Close every log opened here (writers complete their segments), the ledger client and the session.

        Idempotent. Raises the first failure of a writer, and a cancellation, after everything is closed.
        """
        self._check_loop()
        await self._closing.run()

    async def _close(self) -> None:
        services = self._services
        clients = dict.fromkeys((services.ledgers, services.reading.ledgers))
        try:
            await each(
                [
                    self._files.close,
                    *(log.close for log in self._logs),
                    services.shared.close,
                    *(client.close for client in clients),
                    *(store.close for store in reversed(self._own)),
                ]
            )
        finally:
            services.meter.close()

    async def __aenter__(self) -> AsyncNamespace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        self._check_loop()
        if self._closing.begun:
            raise AlreadyClosedError("the namespace was closed", advice="Open it again")
