"""The open namespace that the sink of this process writes to, and what its tasks and its driver ask there.

It knows neither way of writing: `segments` and `append` are handed a session. What only the driver does is in
`driver`.

One session a process and target: Spark reuses its Python workers, and opening costs more than a small batch. A worker
that was forked, or whose session was closed, opens another.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Sequence

from dlspark.core.codec.entries import Compression
from dlspark.core.codec.records import MAX_TXID
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.settings.settings import FILE_VARIABLE, VARIABLE_PREFIX, Settings
from dlspark.spark.connection import namespace_settings
from dlspark.spark.options.query_options import Options
from dlspark.spark.sink.batch_rules import batch_swept_error, log_sealed_error
from dlspark.spark.sink.declared_logs import DeclaredLogs
from dlspark.spark.sink.messages import JobId
from dlspark.spark.sink.write_proxies import WriteProxies, proxies_at
from metadata.bookkeeper.bookies import BookieAddress
from metadata.distributedlog.log_names import LogNotFoundError
from metadata.distributedlog.owner_names import sink_owner
from metadata.distributedlog.sink_marks import SinkState
from metadata.distributedlog.sinks import JOB_PREFIX, SinkStore
from metadata.foundation.errors import MetadataUnavailableError
from metadata.foundation.pacing import for_each
from metadata.foundation.settings import Value
from metadata.store import SessionState
from storage_node.client.health import Outage
from storage_node.client.writer import LedgerWriter

MARKS_AT_ONCE = 64
HAND_OVER_S = 5
"""How long a log's lock is waited for at least, also where `outageTimeout` is shorter."""

_SETTINGS_OF_OPTIONS = {
    "compressionType": "compressionType",
    "ensembleSize": "bkcEnsembleSize",
    "writeQuorumSize": "bkcWriteQuorumSize",
    "ackQuorumSize": "bkcAckQuorumSize",
    "createStreamIfNotExists": "createStreamIfNotExists",
}
_COMPRESSIONS = {"none": Compression.NONE, "lz4": Compression.LZ4}


def owner_name(*, appending: bool = False) -> str:
    """Return the name that other writers see of this process; `appending`: it keeps its logs for the next batch."""
    return sink_owner(socket.gethostname(), os.getpid(), appending=appending)


class SinkSession:
    """An open namespace with what the sink asks and makes there. All coroutines run on the process's `Runtime`.

    Args:
        namespace: the open namespace.
        settings: the settings that ledgers are made by.
        proxies: the write proxies of the namespace, which may own its logs.
        appending: whether logs are kept from batch to batch.
    """

    def __init__(
        self, namespace: AsyncNamespace, settings: Settings, proxies: WriteProxies, *, appending: bool = False
    ) -> None:
        self.namespace = namespace
        self.settings = settings
        self.proxies = proxies
        self.owner = owner_name(appending=appending)
        self.compression = _COMPRESSIONS[settings.compression]
        self.sinks = SinkStore(namespace.store, namespace.uri.path)
        self._services = namespace.services
        self.declared = DeclaredLogs(self._services.logs)
        self._one_zookeeper = self._services.ledger_store.store is namespace.store
        self._services.ledgers.bookies.keep_lists()  # each ledger's ensemble is chosen from them
        self._ahead: asyncio.Future[tuple[BaseException | None, list[BookieAddress] | BaseException]] | None = None
        self._newest_sink = ""

    @property
    def create_missing(self) -> bool:
        """Whether a log that is missing may be created."""
        return self.settings.create_log_if_missing and self._services.create_missing

    async def state(self, job: JobId) -> SinkState:
        """Return what is known of the job's sink as a whole. The sink is created if this is its first task."""
        state = await self.sinks.ensure(job.sink_id)
        self._newest_sink = job.sink_id
        return state.value

    async def covered(self, job: JobId, logs: Sequence[str]) -> set[str]:
        """Return the logs, of these, into which the job's batch has been published, as their own marks say."""
        if job.sink_id.startswith(JOB_PREFIX):
            state = await self.sinks.read(job.sink_id)
            return set(logs) if state is not None and job.batch <= state.value.batch else set()
        found: set[str] = set()

        async def look(log: str) -> None:
            try:
                paths = await self._services.logs.located(log)
            except LogNotFoundError:
                return
            mark = await self.sinks.mark_in(paths, job.sink_id)
            if mark is not None and mark.value.covers(job.batch):
                found.add(log)

        await for_each(logs, MARKS_AT_ONCE, look)
        return found

    def has_seen(self, job: JobId) -> bool:
        """Return whether the sink of the job was there for the task before this one."""
        return self._newest_sink == job.sink_id

    def get_ready(self) -> None:
        """Fetch what the next ledger needs, in the background. An id that is not used is lost, which does no harm."""
        # What fails is asked again when it is needed, and fails there.
        self._ahead = asyncio.gather(
            self._services.ledger_store.reserve_id(), self._services.ledgers.bookies.writable(), return_exceptions=True
        )

    async def stamp(self, log: str, stamp_ms: int) -> int:
        """Return the timestamp that this job's rows carry in `log`: chosen when the job began, not below the log's
        highest.

        Should the log move on before the batch is published, the commit mends it (`Publisher`).
        """
        highest = await self._services.logs.highest_txid(log)
        if highest == MAX_TXID:
            raise log_sealed_error(log)
        return stamp_ms if highest is None else max(stamp_ms, highest)

    async def create_ledger(self, job: JobId, log: str) -> LedgerWriter:
        """Return a new ledger of `job` for `log`, listed under its sink in the transaction that makes it.

        Where ledgers have a ZooKeeper of their own it is listed first, and BatchSweptError is raised if the listing was
        swept meanwhile: the sweep found no ledger, and this one must not outlive it.
        """
        ensemble_size, write_quorum, ack_quorum = self.settings.quorums

        async def list_first(ledger_id: int) -> None:
            if self._one_zookeeper:
                listing = self.sinks.listing_op(job.sink_id, job.staged(ledger_id, log), log)
                self._services.ledger_store.join_creation(ledger_id, [listing])
            else:
                await self.sinks.list_ledger(job.sink_id, job.staged(ledger_id, log), log)

        ledger = await self._services.ledgers.create(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            password=self.settings.password,
            before_create=list_first,
        )
        # A listing that was made with the ledger cannot have been swept before the ledger existed.
        if not self._one_zookeeper and not await self.sinks.stands(job.sink_id, job.staged(ledger.ledger_id, log)):
            await ledger.abandon()
            await self._services.ledgers.delete(ledger.ledger_id)  # unlisted, no sweep would find it
            raise batch_swept_error(job)
        ledger.replace_with(functools.partial(self._replace, job, log))
        return ledger

    async def _replace(self, job: JobId, log: str) -> LedgerWriter:
        """Return a new ledger in place of one whose id another client wrote to first: that one stays listed, for the
        sweep."""
        self._services.counters["ledger-taken"] += 1
        return await self.create_ledger(job, log)


def settings_of(options: Options, *, appending: bool = False) -> Settings:
    """Return the settings of a sink's namespace: from the environment, and over them from the options.

    `appending`: of a process that appends to open segments, which are read while they are written.
    """
    given = {key: options.text(name) or "" for name, key in _SETTINGS_OF_OPTIONS.items() if options.given(name)}
    passed_on = tuple(sorted(options.passed_on().items()))
    if FILE_VARIABLE in os.environ:
        # The file may have changed.
        return _make_settings(options.outage_ms, None, passed_on, tuple(given.items()), appending)
    variables = tuple((name, value) for name, value in os.environ.items() if name.startswith(VARIABLE_PREFIX))
    return _made_settings(options.outage_ms, variables, passed_on, tuple(given.items()), appending)


def _make_settings(
    outage_ms: int,
    variables: tuple[tuple[str, str], ...] | None,
    passed_on: tuple[tuple[str, str], ...],
    given: tuple[tuple[str, str], ...],
    appending: bool,
) -> Settings:
    values: dict[str, Value] = {
        "bkc.outageWaitMillis": outage_ms,
        # A driver that died keeps its lock until its session ends, whatever that one's timeout is. A sink that holds a
        # log between its batches gives it up for another writer that waits, which takes a moment.
        "lockTimeoutSeconds": max(-(-outage_ms // 1000), HAND_OVER_S),
    }
    if not appending:
        values["bkc.explicitLacInterval"] = 0  # A staged ledger is not read before it is closed.
    defaults = Settings.from_mapping(values)
    settings = Settings.from_environment(None if variables is None else dict(variables), defaults)
    return settings.with_values({**namespace_settings(dict(passed_on)), **dict(given)})


_made_settings = functools.lru_cache(maxsize=16)(_make_settings)
"""Made once for each target: to check all keys takes half a millisecond, three times a micro-batch."""

_sessions: dict[tuple[object, ...], SinkSession] = {}


async def open_session(options: Options, *, patient: bool = True, appending: bool = False) -> SinkSession:
    """Return this process's session for the target of `options`. Raises what opening the namespace raises.

    With `patient` it waits for ZooKeeper: use it for a job that has begun, since ZooKeeper was there then. `appending`:
    as in `settings_of`.
    """
    settings = settings_of(options, appending=appending)
    # The runtime is part of the key: after a fork, or once it was closed, sessions of the old one cannot be used.
    key = (os.getpid(), id(Runtime.shared()), options.uri, settings, options.proxies)
    session = _sessions.get(key)
    if session is not None and session.namespace.store.state is not SessionState.CLOSED:
        return session
    namespace = await _open_namespace(options.uri, settings, options.outage_ms if patient else 0)
    chosen = options.proxies
    where = options.uri if chosen is None or chosen.discover else ",".join(chosen.addresses)
    security = namespace.settings.client_settings().security
    proxies = proxies_at(where, namespace.uri.path, options.outage_ms, security)
    session = _sessions[key] = SinkSession(namespace, namespace.settings, proxies, appending=appending)
    Runtime.shared().on_close(proxies.close)
    Runtime.shared().on_close(namespace.close)
    return session


async def _open_namespace(uri: str, settings: Settings, limit_ms: int) -> AsyncNamespace:
    outage = Outage(limit_ms)
    while True:
        try:
            return await AsyncNamespace.open(uri, settings)
        except MetadataUnavailableError as error:
            if not await outage.wait(error):
                outage.lasted(error)
                raise
