"""`Bookie`: the life of a storage node, from the lock on its directories to its last checkpoint.

    start   lock -> listen -> cookies -> end a dead predecessor's session -> recover (replay, checkpoint) -> serve
            -> register
    stop    unregister -> no more connections -> everything durable and answered -> last checkpoint -> unlock
    failure of the journal: every connection is closed at once, nothing further is answered, `failed` is set

Read-only, announced in metadata, while a disk is too full or the operator wants it, and for good once writing to a
ledger directory has failed; reads, fences and, as long as they can be stored, recovery's adds go on. Where
`readOnlyModeEnabled` is off the node stops instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from metadata.bookkeeper.bookies import BookieAddress, BookieRegistry, Cookie
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.bookkeeper.replication import ReplicationStore
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.descriptors import current_limit
from metadata.foundation.errors import DistributedLogError
from metadata.foundation.tasks import end_tasks, undisturbed
from metadata.security.audit import Noted
from metadata.store import MetadataStore
from storage_node.bookie.disk.cookies import check_cookies
from storage_node.bookie.disk.resources import (
    Disks,
    NoSpaceError,
    cannot_start_error,
    connection_limit,
    is_no_space,
    needing_space,
)
from storage_node.bookie.disk.system_disk import SystemDisk
from storage_node.bookie.journal.files import node_tag
from storage_node.bookie.node.identity import (
    SessionFile,
    announce_location,
    listening_host,
    name_bookie,
    software_version,
    was_read_only,
    write_status,
)
from storage_node.bookie.node.security import SecurityWatch, node_security
from storage_node.bookie.requests.connections import ServedConnection
from storage_node.bookie.requests.gate import NodeSecurity, SecurityGate
from storage_node.bookie.requests.limits import NodeLimits
from storage_node.bookie.requests.unproved import Unproved
from storage_node.bookie.store.collection import ClusterMetadata, GarbageCollector
from storage_node.bookie.store.storage import Storage
from storage_node.edge import Clock, Disk, DiskFile, FrameHandler, Link, Listener, Network, SystemClock
from storage_node.errors import BookieConfigurationError, BookieFailedError, TooManyConnectionsError
from storage_node.settings.bookie import BookieSettings
from storage_node.transport.admission import Admission
from storage_node.transport.tcp import TcpNetwork

logger = logging.getLogger(__name__)

METADATA_TIMEOUT_S = 5.0
"""How long a stop waits for metadata to take the registration back; it ends with the session anyway."""
DRAIN_S = 5.0
LOCK_NAME = "lock"
ROOM_FOR_IDS = 128
"""More bytes than an answer takes besides the list that it carries."""
DESCRIPTORS_RETRY_S = 1.0
"""A node that lacks file descriptors looks for some after this."""
NEW_DIRECTORY_BYTES = 16 * 1024
"""Space that making a directory takes: some blocks of the file system's own."""


class Bookie:
    """How does one run a storage node? This one, on the running loop.

    Args:
        settings: where its data lies and what it is called.
        store: its metadata session; the caller closes it, after `stop`.
        network, disk, clock: the edges; the real ones if left out.
        security: what it demands of its clients; what the settings say if left out.
    """

    def __init__(
        self,
        settings: BookieSettings,
        store: MetadataStore,
        *,
        network: Network | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        security: NodeSecurity | None = None,
    ) -> None:
        """Open nothing yet. Raises BookieConfigurationError, IdentityError for certificates that are none."""
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._security = security or node_security(settings)
        self._watch = SecurityWatch(
            self._security,
            self._gates,
            self.clock,
            refresh_s=settings.security.tls_cert_files_refresh_duration_s,
        )
        self._network: Network = network or TcpNetwork(
            max_frame=settings.netty_max_frame_size_bytes,
            begun_bytes=settings.request_memory_limit,
            stuck_bytes=settings.response_memory_limit,
        )
        self._disk: Disk = disk or SystemDisk()
        self._store = store
        self._registry = BookieRegistry(store, settings.zk_ledgers_root_path, version=software_version())
        self._ledgers = LedgerStore(store, settings.zk_ledgers_root_path)
        self._session: SessionFile | None = None
        self._address: BookieAddress | None = None
        self._storage: Storage | None = None
        self._listener: Listener | None = None
        self._locks: list[DiskFile] = []
        self._connections: dict[ServedConnection, SecurityGate | None] = {}
        """With what each had to prove, if anything."""
        self.limits = NodeLimits(
            self.clock.elapsed_s,
            adds=settings.max_adds_in_progress_limit,
            reads=settings.max_reads_in_progress_limit,
            answer_bytes=settings.response_memory_limit,
            waiting_bytes=settings.request_memory_limit,
        )
        self._admission = Admission(self.clock.elapsed_s)
        self._unproved = Unproved(self._security.handshake_s)
        self._serving = False
        self._stopped = False
        self._monitor: asyncio.Task[None] | None = None
        self._collector: GarbageCollector | None = None
        self._disks: Disks | None = None
        self._announced_read_only = False
        self._background: set[asyncio.Task[None]] = set()
        self.read_only = False
        """Adds are refused: a disk is too full, or writing to a ledger directory has failed."""
        self.failed: asyncio.Event = asyncio.Event()
        """Set when the node has stopped by itself; `failure` says why."""
        self.failure: BookieFailedError | None = None

    # ------------------------------------------------------------------------------------ what others see

    @property
    def address(self) -> BookieAddress:
        """The address that is registered. Raises BookieFailedError before `start`."""
        if self._address is None:
            raise BookieFailedError("the bookie is not started")
        return self._address

    @property
    def storage(self) -> Storage:
        """The node's entries. Raises BookieFailedError before `start`."""
        if self._storage is None:
            raise BookieFailedError("the bookie is not started")
        return self._storage

    @property
    def serving(self) -> bool:
        """Connections are accepted and requests answered."""
        return self._serving

    @property
    def stopping(self) -> bool:
        """It is being stopped, or was, or has failed."""
        return self._stopped or self.failure is not None

    @property
    def connection_count(self) -> int:
        """Connections of clients that are open."""
        return len(self._connections)

    @property
    def takes_high_priority(self) -> bool:
        """True where a recovery's adds are taken though the node is read-only: there is room in reserve for them."""
        storage = self.storage
        return not storage.writing_failed and not storage.full and self.disks.takes_high_priority

    @property
    def disks(self) -> Disks:
        """The space of its directories. Raises BookieFailedError before `start`."""
        if self._disks is None:
            raise BookieFailedError("the bookie is not started")
        return self._disks

    @property
    def noted(self) -> Noted:
        """The audit trail."""
        return self._security.audit

    @property
    def max_list_bytes(self) -> int:
        """Bytes of the list of a ledger's entries that fit in a frame."""
        return self.settings.netty_max_frame_size_bytes - ROOM_FOR_IDS

    @property
    def max_batch_read_bytes(self) -> int:
        """Most bytes of the answer to a batch read; its first entry may be larger."""
        return min(self.settings.max_batch_read_size, self.settings.netty_max_frame_size_bytes)

    def disk_space(self) -> tuple[int, int]:
        """Return (total, free) bytes of the ledger disks together, looked up now."""
        self.disks.look()
        return self.disks.capacity()

    def heard(self, connection: ServedConnection) -> None:
        """Note that something came from the connection: from now on it is the one that was idle for the
        shortest time.
        """
        self._admission.heard(connection)

    def closed(self, connection: ServedConnection) -> None:
        """Let a connection go that is closed; it makes room for another."""
        self._connections.pop(connection, None)
        self._admission.left(connection)

    # ------------------------------------------------------------------------------------ start

    async def start(self) -> None:
        """Recover and serve. On any error nothing is left behind, and the node serves no client.

        Raises:
            BookieConfigurationError, CookieMismatchError: it was not allowed to start.
            CallerError: no cluster is initialised where its metadata should be.
            CorruptDataError (JournalCorruptError): what it had acknowledged cannot be read any more.
            NoSpaceToStartError: a disk is full, and the node cannot start read-only.
            OSError, and the metadata store's errors.
        """
        try:
            await self._start()
        except OSError as error:
            await undisturbed(self._tear_down(clean=False))
            if not is_no_space(error):
                raise
            directories = [*self.settings.journal_directories, *self.settings.ledger_directories]
            raise cannot_start_error(error, self._disk, directories) from error
        except BaseException:
            await undisturbed(self._tear_down(clean=False))
            raise

    async def _start(self) -> None:
        settings = self.settings
        limit = current_limit()
        self._admission.limit = connection_limit(settings, limit)
        logger.info("%d file descriptors: up to %d connections, the rest for files", limit, self._admission.limit)
        # Locks first: whatever follows relies on no other process being this node (the former session is ended, too).
        host = listening_host(settings)
        currents = self._claim_directories()
        self._listener = await self._network.listen(host, settings.bookie_port, self._accept)
        self._address = name_bookie(settings, self._listener.port)
        await self._ledgers.layout()  # without it nothing could be collected here, and auto-recovery could not start
        cookie = Cookie(
            bookie_id=self._address.bookie_id,
            journal_dirs=settings.journal_directories,
            ledger_dirs=settings.ledger_directories,
            instance_id=await self._registry.instance_id(),
        )
        folders = list(dict.fromkeys(currents))
        expansion = settings.allow_storage_expansion
        # Before the storage is opened: a node whose disks are not its own must not answer "no such entry" (I11).
        await check_cookies(self._registry, self._disk, cookie, folders, expansion=expansion)
        self._session = SessionFile(self._disk, currents[0], self._store)
        await self._session.end_former()
        journals, ledgers = currents[: len(settings.journal_directories)], currents[len(settings.journal_directories) :]
        was_full = settings.persist_bookie_status_enabled and was_read_only(self._disk, ledgers)
        self._disks = Disks(settings, self._disk, journals=journals, ledgers=ledgers, was_full=was_full)
        self._disks.look()
        self._storage = Storage(
            settings,
            self._disk,
            self._disks,
            node_tag(cookie.bookie_id, cookie.instance_id),
            self,
        )
        await self._storage.start()
        self._judge_disks()
        if self.read_only and not (settings.read_only_mode_enabled or settings.force_read_only_bookie):
            raise self._no_read_only_mode_error()
        self._announced_read_only = self.read_only
        self._note_mode()
        # Serving before it is registered, so that no client is sent to a node that refuses it; the session's token
        # before the registration, so that a successor can end whatever was registered.
        self._serving = True
        await self._session.keep()
        # Before the registration: whoever hears of a node that came back elsewhere must not place by where it was.
        topology = TopologyStore(self._store, settings.zk_ledgers_root_path)
        await announce_location(topology, self._registry, self._address.bookie_id, settings.network_location or None)
        await self._registry.register(self._address, readonly=self._announced_read_only)
        if self.failure is not None:
            # The journal failed meanwhile and the node was torn down, perhaps before it was registered.
            await self.failed.wait()
            await self._unregister()
            raise self.failure
        self._monitor = asyncio.get_running_loop().create_task(self._watch_disks())
        if self._security.asks:
            self._watch.start()
        self._collector = self._make_collector(self._address.bookie_id, cookie.instance_id)
        self._collector.start()
        logger.info("bookie %s serves on port %d", self._address.bookie_id, self._listener.port)

    def _claim_directories(self) -> list[str]:
        """Create and lock every directory; return their `current` folders, the journal's first."""
        every = [*self.settings.journal_directories, *self.settings.ledger_directories]
        for directory in dict.fromkeys(every):
            try:
                with needing_space(directory, NEW_DIRECTORY_BYTES):
                    self._disk.make_directory(f"{directory}/current")
                    self._locks.append(self._disk.lock(f"{directory}/{LOCK_NAME}"))
                self._disk.close_to_others(f"{directory}/current")
            except NoSpaceError:
                raise
            except BlockingIOError as error:
                raise BookieConfigurationError(
                    "another process uses this directory",
                    advice="Stop the other node, or give this one directories of its own",
                    path=directory,
                ) from error
            except OSError as error:
                raise BookieConfigurationError(f"the directory cannot be used: {error}", path=directory) from error
        return [f"{directory}/current" for directory in every]

    def _accept(self, link: Link) -> FrameHandler:
        if not self._serving:
            raise BookieFailedError("connections are not accepted yet, or no more")
        connection = ServedConnection(self, link)
        leaving = self._admission.arrived(connection)
        if leaving is connection:
            raise TooManyConnectionsError(
                f"the node has {self._admission.limit} connections, and all of them are in use",
                advice="Raise its limit of file descriptors (and bookieMaxConnections), or start more nodes",
            )
        gate = None
        if self._security.asks:
            gate = SecurityGate(self._security, connection, self.limits.lines, self._unproved)
        self._connections[connection] = gate
        if isinstance(leaving, ServedConnection):
            message = "closing the connection to %s for the one from %s: there are %d, and it was the most idle"
            self.limits.lines.log(logging.WARNING, message, leaving.peer, link.peer, self._admission.limit)
            leaving.close()
        return gate or connection

    def _gates(self) -> list[SecurityGate]:
        return [gate for gate in self._connections.values() if gate is not None]

    # ------------------------------------------------------------------------------------ read-only mode

    async def _watch_disks(self) -> None:
        while True:
            await asyncio.sleep(self.settings.disk_check_interval_ms / 1000)
            await self.check_disks()

    async def check_disks(self) -> None:
        """Look at the disks' usage now, and announce a change of mode."""
        await self.storage.try_again()
        self._judge_disks()
        if self.read_only and not (self.settings.read_only_mode_enabled or self.settings.force_read_only_bookie):
            self._give_up(self._no_read_only_mode_error())
            return
        await self._announce()

    def _judge_disks(self) -> None:
        self.disks.look()
        self.storage.leave(self.disks.full_ledger_directories)
        storage = self.storage
        full = self.disks.full or storage.full
        if storage.wants_descriptors and not self.settings.read_only_mode_enabled:
            full = self.disks.full  # a lack of descriptors passes: no reason to stop
        self.read_only = self.settings.force_read_only_bookie or full or storage.writing_failed

    def _no_read_only_mode_error(self) -> BookieFailedError:
        return BookieFailedError(
            "a disk is too full or fails, and readOnlyModeEnabled is off",
            advice="Make room or mend the disk, then start the node again; what it had acknowledged is there",
            node=None if self._address is None else self._address.bookie_id,
        )

    def degraded(self, error: BaseException) -> None:
        """Refuse writes after one to a ledger directory failed; what is not there yet is in the journal and in
        memory.
        """
        logger.error("read-only until the node is restarted with a working disk: %s", error)
        self.read_only = True
        if self._serving:
            self._run(self._leave_off())

    def no_space(self) -> None:
        """Take nothing more, at once: a disk is full, and what came in waits in memory or on what is prepared. Where
        descriptors are wanting, adds only wait as well: there may be some in a moment.
        """
        if self._serving and self.storage.wants_descriptors:
            asyncio.get_running_loop().call_later(DESCRIPTORS_RETRY_S, self._look_again)
            return
        self.read_only = True
        if self._serving:
            self._run(self._leave_off())

    def _look_again(self) -> None:
        if self._serving and self.storage.wants_descriptors:
            self._run(self.storage.try_again())

    async def _leave_off(self) -> None:
        if self.settings.read_only_mode_enabled or self.settings.force_read_only_bookie:
            await self._announce()
        else:
            self._give_up(self._no_read_only_mode_error())

    async def _announce(self) -> None:
        """Bring the registration in line with the mode; a failure is retried with the next look at the disks."""
        read_only = self.read_only
        if not self._serving or read_only == self._announced_read_only:
            return
        try:
            await self._registry.register(self.address, readonly=read_only)
        except DistributedLogError as error:
            logger.warning("the mode could not be announced, trying again later: %s", error)
            return
        self._announced_read_only = read_only
        self._note_mode()
        logger.warning("bookie %s is %s now", self.address.bookie_id, "read-only" if read_only else "writable")

    def _note_mode(self) -> None:
        if self.settings.persist_bookie_status_enabled:
            folders = self.storage.ledger_directories
            write_status(self._disk, folders, read_only=self.read_only, now_ms=self.clock.now_ms())

    # ------------------------------------------------------------------------------------ garbage

    def _make_collector(self, bookie_id: str, instance_id: str | None) -> GarbageCollector:
        replication = ReplicationStore(self._store, self.settings.zk_ledgers_root_path)
        cluster = ClusterMetadata(bookie_id, instance_id, self._ledgers, self._registry, replication)
        return GarbageCollector(self.storage, self.settings, cluster, self.clock)

    @property
    def collector(self) -> GarbageCollector:
        """Its garbage collection. Raises BookieFailedError before `start`."""
        if self._collector is None:
            raise BookieFailedError("the bookie is not started")
        return self._collector

    async def collect_garbage(self, *, moved_away: bool = False) -> int:
        """Delete now the ledgers that are not in the metadata; returns how many. See `GarbageCollector.collect`."""
        return await self.collector.collect(moved_away=moved_away)

    async def compact(self, *, major: bool = True) -> int:
        """Rewrite now the logs below the threshold; returns how many."""
        return await self.collector.compact(major=major)

    # ------------------------------------------------------------------------------------ the end

    def _give_up(self, failure: BookieFailedError) -> None:
        """Stop in good order, and say why: the process that runs the node waits for `failed`."""
        if self.failure is None and not self._stopped:
            self.failure = failure
            self._run(self._stop_failed(clean=True))

    def journal_failed(self, error: BaseException) -> None:
        """Stop at once: nothing may be answered any more, least of all by trying the sync again."""
        stopping = self.failure is not None  # another journal failed before, or the stop has begun: `failed` is its end
        self.failure = self.failure or BookieFailedError(
            f"the journal cannot be written: {error}",
            advice="Mend the disk and start the node again; what it had acknowledged is in the journal",
            node=None if self._address is None else self._address.bookie_id,
        )
        # All in this step: an answer that left after it could be for something that is not on disk (I1).
        self._serving = False
        for connection in list(self._connections):
            connection.close()
        if not stopping:
            self._run(self._stop_failed(clean=False))

    async def _stop_failed(self, *, clean: bool) -> None:
        try:
            await self._tear_down(clean=clean)
        finally:
            self.failed.set()

    async def stop(self) -> None:
        """Stop in good order; idempotent. The next start has nothing to replay."""
        if self.failure is not None:
            await self.failed.wait()
            return
        await self._tear_down(clean=True)

    async def abort(self) -> None:
        """Stop as a crash would: no checkpoint, nothing unregistered (that ends with the metadata session)."""
        await self._tear_down(clean=False, unregister=False)

    async def _tear_down(self, *, clean: bool, unregister: bool = True) -> None:
        if self._stopped:
            return
        self._stopped = True
        # Unregistered first, and serving until then: clients choose other nodes before this one refuses them.
        unregistered = await self._unregister() if unregister else await self._let_go()
        if self._session is not None:
            await self._session.close(ended=unregistered)
        if self._monitor is not None:
            await end_tasks([self._monitor])
            self._monitor = None
        await self._watch.stop()
        if self._collector is not None:
            await self._collector.stop()
        self._serving = False
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        if clean and self._storage is not None:
            await self._answer_the_rest()
        for connection in list(self._connections):
            connection.close()
        if self._storage is not None:
            await self._storage.stop(clean=clean)
        for lock in self._locks:
            lock.close()
        self._locks.clear()
        self._disk.close()

    async def _answer_the_rest(self) -> None:
        """Let what was accepted be answered, unless it waits for space."""
        if self.storage.journal.stalled:
            return
        try:
            await asyncio.wait_for(self.storage.journal.durable(), DRAIN_S)
        except (OSError, DistributedLogError, asyncio.TimeoutError) as error:
            logger.warning("stopping with adds unanswered: %s", error)
        await asyncio.sleep(0)

    async def _unregister(self) -> bool:
        """Return True if nothing of this node is registered any more."""
        if self._address is None:
            return True
        try:
            await asyncio.wait_for(self._registry.unregister(self._address.bookie_id), METADATA_TIMEOUT_S)
        except (DistributedLogError, asyncio.TimeoutError) as error:
            logger.warning("the registration is left to end with its session: %s", error)
            return False
        return True

    async def _let_go(self) -> bool:
        if self._address is not None:
            await self._registry.let_go(self._address.bookie_id)
        return False

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
