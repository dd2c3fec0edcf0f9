"""`LedgerClient`: creates, opens, recovers and deletes ledgers of one BookKeeper cluster.

Beside it, `Registrations` reads the cluster's lists of bookies when a bookie failed, so that reads go elsewhere at
once. While all is well nothing is read. What is learned goes into `BookieHealth`: bookies in neither list are asked
last, read-only ones behind the writable.

`Whereabouts` learns this client's own region, and where that is known those of the bookies of ledgers that are read, so
that the near ones are asked first.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledger_metadata import DigestType, Ensemble, LedgerMetadata
from metadata.bookkeeper.ledgers import LedgerStore, Versioned
from metadata.bookkeeper.topology import TopologyStore
from metadata.foundation.errors import DistributedLogError, NodeExistsError, present
from storage_node.client.connections import ConnectionPool, DiskSpace, ask_disk_space
from storage_node.client.health import Members, outlast
from storage_node.client.ledger_copies import LedgerCopies
from storage_node.client.pipeline import ClientContext, Tasks
from storage_node.client.placement.arranging import Adherence
from storage_node.client.placement.by_settings import Placements, make_racks
from storage_node.client.placement.ledger_rules import custom_of_settings
from storage_node.client.placement.policies import Placement, addresses_of
from storage_node.client.placement.racks import RackMap, RackResolver
from storage_node.client.placement.region_policy import RegionSwitches
from storage_node.client.reader import LedgerLocation, LedgerReader
from storage_node.client.recovering import recover as run_recovery
from storage_node.client.writer import LedgerWriter
from storage_node.edge import Network
from storage_node.errors import LedgerClosedError, NotEnoughBookiesError, UnauthorizedAccessError
from storage_node.protocol.striping import validate_quorums
from storage_node.protocol.writing import WriterMachine
from storage_node.settings.client import ClientSettings
from storage_node.transport.tcp import TcpNetwork

logger = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0
"""The lists are not read more often than this."""

MAX_ID_ATTEMPTS = 20
"""How often a new id may turn out to be taken."""


class LedgerClient:
    """How does a program write and read ledgers? It uses one client, on the event loop on which that is first used; it
    shares one connection per bookie among all ledgers.

    Closing the client abandons its writers (a recovery will close their ledgers) and ends its readers; the metadata
    store it was given stays open.

    Args:
        ledgers, bookies: the cluster's metadata.
        settings: timeouts and bounds.
        network, rng: the edges; the real ones if left out.
        placement: picks bookies; by the settings if left out.
        racks: finds where a bookie stands; by the settings if left out.
        regions: which regions get no new copies, and features; asked at each placement over regions.
        topology: where bookies announce their locations; needed where the settings say `announced`.
        ensemble_change_disabled: asked whenever a bookie has failed an add: while it says so, writers keep their
            ensembles and send the bookie again what it failed.
    """

    def __init__(
        self,
        ledgers: LedgerStore,
        bookies: BookieRegistry,
        *,
        settings: ClientSettings | None = None,
        network: Network | None = None,
        rng: random.Random | None = None,
        placement: Placement | None = None,
        racks: RackResolver | None = None,
        regions: RegionSwitches | None = None,
        topology: TopologyStore | None = None,
        ensemble_change_disabled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make a client that is not open yet."""
        self._ledgers = ledgers
        self._bookies = bookies
        self._settings = settings or ClientSettings()
        self._network = network or TcpNetwork()
        self._rng = rng or random.Random()
        self._placement = placement
        self._racks = racks
        self._regions = regions
        self._topology = topology
        self._ensemble_change_disabled = ensemble_change_disabled
        self._context: ClientContext | None = None
        self._registrations: Registrations | None = None
        self._whereabouts: Whereabouts | None = None
        self._writers: dict[LedgerWriter, None] = {}
        self._readers: dict[LedgerReader, None] = {}
        self._closed = False

    @property
    def settings(self) -> ClientSettings:
        """The settings that this client was made with; they never change."""
        return self._settings

    @property
    def bookies(self) -> BookieRegistry:
        """The registrations of the cluster's bookies."""
        return self._bookies

    @property
    def topology(self) -> TopologyStore | None:
        """Where the cluster's bookies announce their locations, as it was given."""
        return self._topology

    async def create(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        before_create: Callable[[int], Awaitable[None]] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
        advanced: bool = False,
    ) -> LedgerWriter:
        """Return a new, empty, open ledger and its writer.

        `before_create(ledger_id)` runs when the id is known and before anything of the ledger exists. With
        `deferred_sync` bookies acknowledge before they sync, and `LedgerWriter.force` moves the LAC; with `advanced`
        entries are added by `LedgerWriter.add_at`. A `ledger_id` of the caller's must be new: NodeExistsError.

        Ids can be foreseen, and bookies take a first entry from any client: see `LedgerWriter.replace_with` for what is
        done where others have written under this id. Without that the first adds fail with LedgerTakenError.

        Raises CallerError, NotEnoughBookiesError, or the metadata store's errors.
        """
        context = self._use()
        validate_quorums(ensemble_size, write_quorum, ack_quorum)
        bookies = await outlast(
            self._settings.outage_wait_ms,
            partial(self._place, ensemble_size, write_quorum, ack_quorum),
            Members(self._bookies, ensemble_size),
        )
        metadata = LedgerMetadata(
            ensemble_size=len(bookies),
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            ensembles=(Ensemble(0, bookies),),
            digest_type=digest_type,
            password=password,
            # Whoever recovers or repairs it keeps the rule, too, by whatever settings.
            custom={**(custom or {}), **custom_of_settings(self._settings.placement)},
        )
        ledger_id, created = await self._create(metadata, before_create, ledger_id)
        self._use()  # closed meanwhile: the ledger exists, empty; the caller that noted its id deletes it
        spans = None
        if self._settings.placement.enforce_min_num_fault_domains_for_write:
            spans = partial(context.placements.usual.spans_fault_domains, write_quorum=write_quorum)
        machine = WriterMachine(
            ledger_id,
            created.value,
            created.version,
            delay_ensemble_change=self._settings.delay_ensemble_change,
            deferred_sync=deferred_sync,
            advanced=advanced,
            max_ensemble_changes=self._settings.max_ensemble_changes,
            spans_domains=spans,
        )
        writer = LedgerWriter(context, machine, on_end=lambda ended: self._writers.pop(ended, None))
        self._writers[writer] = None
        return writer

    async def _place(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> tuple[str, ...]:
        """Return the first ensemble; with opportunistic striping a smaller one where there are too few bookies."""
        placement = self._use().placements.usual
        while True:
            try:
                return await placement.new_ensemble(ensemble_size, write_quorum, ack_quorum)
            except NotEnoughBookiesError:
                if not self._settings.opportunistic_striping or ensemble_size == write_quorum:
                    raise
                ensemble_size -= 1

    async def _create(
        self,
        metadata: LedgerMetadata,
        before_create: Callable[[int], Awaitable[None]] | None,
        given_id: int | None,
    ) -> tuple[int, Versioned[LedgerMetadata]]:
        attempt = 0
        while True:
            attempt += 1
            ledger_id = await self._ledgers.generate_id() if given_id is None else given_id
            if before_create is not None:
                await before_create(ledger_id)
            try:
                return ledger_id, await self._ledgers.create(ledger_id, metadata)
            except NodeExistsError:
                if attempt == MAX_ID_ATTEMPTS or given_id is not None:
                    raise

    async def open(self, ledger_id: int, *, password: bytes = b"", recover: bool) -> LedgerReader:
        """Return a reader of a ledger. With `recover` its writer is fenced and the ledger closed first, if it is not
        yet.

        Raises NoNodeError (no such ledger), UnauthorizedAccessError, LedgerRecoveryError, or what kept too many
        bookies from answering.
        """
        context = self._use()
        current = await self._ledgers.read(ledger_id)
        stored = current.value.password
        if stored is not None and stored != password:
            raise UnauthorizedAccessError("the ledger has another password", ledger_id=ledger_id)
        await context.learn_places(current.value)
        if recover and not current.value.is_closed:
            current = await outlast(self._settings.outage_wait_ms, partial(self._recover, context, ledger_id, current))
        reader = LedgerReader(
            context, ledger_id, current, locate=self._locate, on_end=lambda ended: self._readers.pop(ended, None)
        )
        self._use()
        self._readers[reader] = None
        reader.watch()
        try:
            await reader.read_last_confirmed()
        except BaseException:
            await reader.close()
            raise
        return reader

    async def _recover(
        self, context: ClientContext, ledger_id: int, current: Versioned[LedgerMetadata]
    ) -> Versioned[LedgerMetadata]:
        return Versioned(await run_recovery(context, ledger_id, current), current.version)

    async def locate(self, ledger_id: int) -> LedgerLocation:
        """Return where a ledger is now, for readers that have no metadata store."""
        self._use()
        current = await self._ledgers.read(ledger_id)
        return await self._locate(ledger_id, current.value)

    async def _locate(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerLocation:
        names = sorted({bookie for ensemble in metadata.ensembles for bookie in ensemble.bookies})
        found = await asyncio.gather(*(self._resolve(name) for name in names), return_exceptions=True)
        addresses: dict[str, tuple[str, int]] = {}
        for name, address in zip(names, found, strict=True):
            if isinstance(address, DistributedLogError):
                continue  # a node that is away: the reader counts it as unreachable and asks the other replicas
            if isinstance(address, BaseException):
                raise address
            addresses[name] = address
        await self._use().learn_places(metadata)
        nearness = self._use().pool.nearness
        regions = {name: region for name in names if (region := nearness.region_of(name)) is not None}
        return LedgerLocation(ledger_id, metadata, addresses, regions)

    def copies(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerCopies:
        """Return access to single copies of a ledger's entries, for auto-recovery."""
        return LedgerCopies(self._use(), ledger_id, metadata)

    async def judge_placement(self, bookies: Sequence[str], metadata: LedgerMetadata) -> Adherence:
        """Return how well an ensemble of a ledger keeps this client's placement policy, or the ledger's own rule where
        that asks for more. Raises the metadata store's errors, CorruptDataError where that rule cannot be read."""
        placement = self._use().placements.of(metadata)
        return await placement.judge(bookies, metadata.write_quorum, metadata.ack_quorum)

    def knows_places(self, bookies: Sequence[str], metadata: LedgerMetadata) -> bool:
        """Return whether it was known where all bookies of an ensemble lie, when `judge_placement` looked at it last.
        Raises CorruptDataError where the ledger's own rule cannot be read."""
        return not self._use().placements.of(metadata).unknown_places(bookies)

    async def placement_moves(
        self, bookies: Sequence[str], metadata: LedgerMetadata, but: Collection[str] = ()
    ) -> Mapping[int, str]:
        """Return where copies of an ensemble are to be moved, to none of `but`, so that it keeps what `judge_placement`
        judges by. Raises NotEnoughBookiesError, RackResolutionError, and the metadata store's errors."""
        placement = self._use().placements.of(metadata)
        return await placement.moves(bookies, metadata.write_quorum, metadata.ack_quorum, but)

    async def may_begin(self, metadata: LedgerMetadata) -> bool:
        """Return whether a ledger that was made earlier may be written to from now on, as operators have switched
        regions. Raises what kept it from knowing."""
        ensemble = metadata.last_ensemble.bookies
        placement = self._use().placements.of(metadata)
        return await placement.allows(ensemble, metadata.write_quorum, metadata.ack_quorum)

    async def own_region(self) -> str | None:
        """Return the region that this client is in: its setting, DLSPARK_REGION, or what finds racks says; None where
        none of them does. Raises CallerError for the name of none."""
        self._use()
        return await present(self._whereabouts, "the client is not in use").own_region()

    @property
    def requests(self) -> int:
        """Requests sent to storage nodes so far, a round trip each: that of an entry to all its copies is one."""
        return self._use().pool.requests

    async def disk_space(self, bookie: str) -> DiskSpace:
        """Return what a bookie says of its disks. Raises what kept it from answering, within
        `getBookieInfoTimeoutSecs`."""
        return await ask_disk_space(self._use().pool, bookie)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata; does nothing where there is none. Bookies collect its entries later."""
        self._use()
        await self._ledgers.delete(ledger_id)

    async def close(self) -> None:
        """End every writer, reader, connection and timer of this client. Idempotent."""
        self._closed = True
        for writer in list(self._writers):
            await writer.abandon()
        for reader in list(self._readers):
            await reader.close()
        if self._registrations is not None:
            await self._registrations.stop()
        if self._whereabouts is not None:
            await self._whereabouts.stop()
        if self._context is not None:
            await self._context.pool.close()

    # ------------------------------------------------------------------------------------ inside

    def _use(self) -> ClientContext:
        if self._closed:
            raise LedgerClosedError("this client was closed")
        if self._context is None:
            pool = ConnectionPool(self._resolve, self._settings, self._network, asyncio.get_running_loop(), self._rng)
            given: object = self._placement
            if isinstance(given, HasRacks):
                racks = given.racks
            else:
                racks = make_racks(self._settings.placement, pool.loop, self._racks, self._topology)
            self._whereabouts = Whereabouts(self._bookies, pool, racks)
            self._context = ClientContext(
                self._settings,
                pool,
                self._ledgers,
                Placements(self._bookies, pool, self._rng, racks, self._regions, self._placement),
                self._ensemble_change_disabled,
                self._whereabouts.learn,
            )
            if self._settings.reorder_reads:
                self._registrations = Registrations(self._bookies, pool)
        return self._context

    async def _resolve(self, bookie: str) -> tuple[str, int]:
        address = await self._bookies.resolve(bookie)
        return address.host, address.port


# ------------------------------------------------------------------------------------ the cluster's lists


class Registrations:
    """One object for each client; `stop` it with the client."""

    def __init__(self, registry: BookieRegistry, pool: ConnectionPool) -> None:
        self._registry = registry
        self._pool = pool
        self._next_look = 0.0
        self._tasks = Tasks(lambda violation: logger.error("%s", violation))
        pool.health.on_trouble = self._trouble

    def _trouble(self) -> None:
        now = self._pool.loop.time()
        if now >= self._next_look and not self._pool.closed:
            self._next_look = now + LOOK_EVERY_S
            self._tasks.start(self._look())

    async def _look(self) -> None:
        try:
            writable = [address.bookie_id for address in await self._registry.writable()]
            read_only = [address.bookie_id for address in await self._registry.readonly()]
        except DistributedLogError as error:
            logger.info("which storage nodes are registered is not known at present: %s", error)
            return
        self._pool.health.registered(writable, read_only, self._pool.bookies)

    async def stop(self) -> None:
        """End what runs."""
        self._pool.health.on_trouble = None
        await self._tasks.stop()


# ------------------------------------------------------------------------------------ where all are

LEARN_S = 1.0
"""How long a reader that opens waits to learn where the bookies are; then it begins, and the order follows."""


@runtime_checkable
class HasRacks(Protocol):
    """A placement that knows where bookies are."""

    racks: RackMap


class Whereabouts:
    """One object for each client; `stop` it with the client."""

    def __init__(self, registry: BookieRegistry, pool: ConnectionPool, racks: RackMap) -> None:
        self._registry = registry
        self._nearness = pool.nearness
        self._nearness.find_region = racks.region_of
        self._racks = racks
        self._tasks = Tasks(lambda violation: logger.error("%s", violation))

    async def own_region(self) -> str | None:
        """Return the client's own region, None where it is not known."""
        return await self._racks.own_region()

    async def learn(self, metadata: LedgerMetadata) -> None:
        """Learn where the bookies of a ledger are; returns after LEARN_S at the latest, and goes on learning. Never
        fails: an order that is not known is the usual one."""
        learning = self._tasks.start(self._learn(metadata))
        await asyncio.wait({learning}, timeout=LEARN_S)

    async def _learn(self, metadata: LedgerMetadata) -> None:
        # Looked up each time: a client without a node beside it may be placed after it began, or be moved.
        self._nearness.own = await self._racks.own_region()
        if self._nearness.own is None:
            return
        try:
            writable = await self._registry.writable()
        except DistributedLogError as error:
            logger.info("where storage nodes are is not learned at present: %s", error)
            return
        names = {bookie for ensemble in metadata.ensembles for bookie in ensemble.bookies}
        await self._racks.see(writable, addresses_of(sorted(names)))

    async def stop(self) -> None:
        """End what runs."""
        await self._tasks.stop()
