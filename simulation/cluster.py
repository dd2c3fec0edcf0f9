"""`World`: a whole cluster in one simulated machine room: storage nodes, clients, metadata, and the checkers.

    world = World(seed)
    host = world.add_node()            a storage node on a disk of its own; `start`, `kill`, `pause` it
    client = world.add_client("c1")    a process with a metadata session and a ledger client
    world.run(main())                  on virtual time, to the end of `main`

Randomness comes from streams named by their purpose, all of them from the seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from metadata.bookkeeper.bookies import BookieRegistry
from metadata.bookkeeper.ledgers import LedgerStore
from metadata.foundation.errors import CallerError, CorruptDataError, DistributedLogError
from metadata.security.listening import ALLOW
from metadata.store import Op, OpResult, SessionState
from metadata.zookeeper.memory import MemorySession, MemoryTree
from simulation.checkers.durability import JOURNAL_DIRECTORIES, LEDGER_DIRECTORIES
from simulation.checkers.history import History, Trace
from simulation.checkers.ledgers import LedgerCheckers
from simulation.checkers.logs import LogCheckers
from simulation.environment.disk import SimulatedDisk
from simulation.environment.loop import Process, SimulatedLoop
from simulation.environment.metadata import MetadataService, SimulatedStore
from simulation.environment.network import Fabric, SimulatedNetwork
from storage_node.bookie.node.bookie import Bookie
from storage_node.client.client import LedgerClient
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.client import ClientSettings

T = TypeVar("T")

PORT = 3181
KIB = 1024
EPOCH_MS = 1_700_000_000_000

CLIENT_SETTINGS = ClientSettings(
    add_entry_timeout_ms=800,
    read_entry_timeout_ms=800,
    speculative_read_ms=200,
    long_poll_ms=300,
    connect_timeout_ms=400,
    vacancy_retry_ms=150,
    replacement_pause_ms=700,
    replacement_timeout_ms=500,
    failure_memory_ms=5_000,
)


@dataclass(frozen=True, slots=True)
class SmallSettings(BookieSettings):
    """A node whose units are small, so that a short run fills slabs, rolls logs and journal files."""

    @property
    def slab_bytes(self) -> int:
        """128 KiB, so that a short run fills slabs."""
        return 128 * KIB


class WatchedTree(MemoryTree):
    """The metadata tree; every transaction is shown to a checker as it is applied."""

    def __init__(self, now_ms: Callable[[], int], applied: Callable[[Sequence[Op]], None]) -> None:
        super().__init__(now_ms)
        self._applied = applied

    def apply(self, session: MemorySession, ops: Sequence[Op]) -> list[OpResult]:
        """Apply the transaction, then show it to the checker: only what was applied is shown."""
        results = super().apply(session, ops)
        # Within the same step: no client can have seen the change before the checkers judge it.
        self._applied(ops)
        return results


class SimulatedClock:
    """A host's clocks: that of the wall may be wrong and may jump."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def now_ms(self) -> int:
        """Return milliseconds since the epoch by the host's wall clock, wrong by `offset_ms`."""
        return EPOCH_MS + int(self._loop.time() * 1000) + self.offset_ms

    def elapsed_s(self) -> float:
        """Return virtual seconds: no fault moves them."""
        return self._loop.time()


class Machine:
    """A host and the process that runs on it."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = SimulatedClock(world.loop)
        self.process: Process | None = None
        self.store: SimulatedStore | None = None
        self.ended: asyncio.Future[None] = world.loop.create_future()
        """Done when the process that runs now has been killed."""
        self.runs = 0

    @property
    def running(self) -> bool:
        """True while its process lives; a paused one does."""
        return self.process is not None and not self.process.dead

    def begin(self) -> tuple[Process, SimulatedStore]:
        """Begin a new process with a metadata session."""
        self.runs += 1
        self.ended = self.world.loop.create_future()
        self.world.fabric.silent.discard(self.name)
        process = self.process = self.world.loop.process(self.name, f"{self.name}#{self.runs}")
        store = self.store = SimulatedStore(self.world.service, process)
        return process, store

    @property
    def session(self) -> SimulatedStore:
        """The metadata session of the process that runs now."""
        if self.store is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.store

    def open_session(self) -> SimulatedStore:
        """Return the metadata session of the process that runs now; another one where that was closed."""
        store = self.session
        if store.state is SessionState.CLOSED:
            store = self.store = SimulatedStore(self.world.service, store.process)
        return store

    def kill(self, *, power: bool = False) -> None:
        """End the process: SIGKILL, or with `power` the whole host."""
        process = self.process
        if process is None or process.dead:
            return
        self.world.trace.note(f"kill {process.name} power={power}")
        self.world.loop.kill(process)
        if power:
            self.world.fabric.silent.add(self.name)
        self.world.fabric.forget(process, power=power)
        if self.store is not None:
            # The server does not hear of it, and notices by silence: until then the ephemerals of the dead are there.
            self.world.service.lost(self.store)
        self.ended.set_result(None)

    def pause(self) -> None:
        """Stop the process as SIGSTOP does."""
        if self.process is not None and not self.process.halted:
            self.world.trace.note(f"pause {self.process.name}")
            self.world.loop.pause(self.process)
            if self.store is not None:
                self.world.service.lost(self.store)

    def disown(self) -> Process | None:
        """Stop the process, as `pause` does, and take it for dead: another one may be started beside it. None where
        none runs. What was disowned goes on, or is killed, by the loop and the fabric."""
        process = self.process
        if process is None or process.halted:
            return None
        self.pause()
        self.process = None
        self.ended.set_result(None)
        return process

    def resume(self) -> None:
        """Continue the process as SIGCONT does."""
        if self.process is not None and self.process.paused:
            self.world.trace.note(f"resume {self.process.name}")
            self.world.loop.resume(self.process)


class NodeMachine(Machine):
    """A host that runs a storage node on its disk."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.disk = SimulatedDisk(world.loop, name, world.rng(f"disk/{name}"))
        self.disk.reached = world.reached
        self.disk.synced = lambda path, written: world.ledger_checkers.durability.synced(self, path, written)
        self.disk.survived = lambda path, written: world.ledger_checkers.durability.survived(self, path, written)
        self.bookie: Bookie | None = None
        self.serving = False
        self.damaged = False
        """Synced bytes were lost or changed here: the node may refuse to start, or be unable to answer."""
        self.refused: DistributedLogError | None = None
        self.last_error: BaseException | None = None

    @property
    def bookie_id(self) -> str:
        """The id under which the node registers, the same over all restarts."""
        return f"{self.name}:{PORT}"

    @property
    def healthy(self) -> bool:
        """True while it serves, and is not about to stop by itself."""
        return self.serving and self.bookie is not None and self.bookie.failure is None

    def settings(self) -> BookieSettings:
        """Return the node's configuration: the same at each start."""
        rng = self.world.rng(f"settings/{self.name}")
        return SmallSettings(
            journal_directories=JOURNAL_DIRECTORIES[: rng.choice((1, 1, 1, 2))],
            ledger_directories=LEDGER_DIRECTORIES[: rng.choice((1, 1, 2))],
            bookie_port=PORT,
            listening_address="",
            insecure_listen=ALLOW,
            advertised_address=self.name,
            bookie_id=self.bookie_id,
            journal_pre_alloc_size_mb=1,
            journal_max_size_mb=1,
            flush_interval_ms=rng.choice((150, 400, 1_500)),
            skip_list_size_limit=rng.choice((4, 16)) * 128 * KIB,
            log_size_limit=rng.choice((128, 128, 256, 1_024)) * KIB,
            disk_check_interval_ms=250,
            min_usable_size_for_entry_log_creation=0,
            journal_max_backups=rng.choice((0, 1, 2)),
            gc_wait_time_ms=rng.choice((200, 700)),
            gc_overreplicated_ledger_wait_time_ms=rng.choice((400, 86_400_000)),
            verify_metadata_on_gc=rng.random() < 0.3,
            minor_compaction_interval_s=rng.choice((1, 3600)),
            major_compaction_interval_s=rng.choice((2, 86_400)),
            journal_write_once_from_bytes=rng.choice((0, 0, 1, 500, 4_096)),
            journal_write_once_always=rng.random() < 0.5,
            compaction_rate_by_entries=rng.choice((1_000, 30)),
        )

    def start(self) -> None:
        """Run the node in a process of its own; nothing happens if it runs already."""
        if self.running or self.refused is not None:
            return
        process, store = self.begin()
        world = self.world
        world.ledger_checkers.durability.node_starts(self)
        world.trace.note(f"start {process.name}")
        bookie = self.bookie = Bookie(
            self.settings(), store, network=SimulatedNetwork(world.fabric), disk=self.disk, clock=self.clock
        )
        self.serving = False
        world.loop.start(process, self._run(bookie))

    async def _run(self, bookie: Bookie) -> None:
        try:
            await bookie.start()
        except (DistributedLogError, OSError) as error:
            self.last_error = error
            self.world.loop.call_soon(self._exit, self.process, error, context=self.world.context)
            return
        except Exception as error:
            self.world.ledger_checkers.fail(f"the start of {self.name} ended with {error!r}")
        self.serving = True
        self.world.loop.call_soon(self.world.ledger_checkers.node_started, self, context=self.world.context)
        await bookie.failed.wait()
        self.last_error = bookie.failure
        self.world.loop.call_soon(self._exit, self.process, bookie.failure, context=self.world.context)

    def _exit(self, process: Process, error: BaseException) -> None:
        """Let the process die of its own error."""
        if process is not self.process or process.dead:
            return
        self.world.trace.note(f"exit {process.name} {type(error).__name__}")
        if isinstance(error, CallerError | CorruptDataError):
            self.world.reached("node.refused-to-start")
            if not self.damaged:
                self.world.ledger_checkers.fail(f"{process.name} refuses to start on an undamaged disk: {error}")
            # For good: a node that refused because its disk is damaged must not be started into an answer (I11).
            self.refused = error
        else:
            self.world.reached("node.stopped-itself")
        self.kill()

    def kill(self, *, power: bool = False) -> None:
        """Kill the process; with `power` the disk loses what was not synced, too."""
        if self.running:
            self.serving = False
            super().kill(power=power)
            self.disk.cut(power=power)


class ClientMachine(Machine):
    """A host that runs a program with a ledger client. Each `start` is a fresh process."""

    def __init__(self, world: World, name: str, settings: ClientSettings) -> None:
        super().__init__(world, name)
        self.settings = settings
        self._ledgers: LedgerClient | None = None

    def start(self) -> LedgerClient:
        """Begin a fresh process with a metadata session, and give it a ledger client."""
        _, store = self.begin()
        world = self.world
        rng = world.rng(f"client/{self.name}/{self.runs}")
        self._ledgers = LedgerClient(
            LedgerStore(store, rng=rng),
            BookieRegistry(store),
            settings=self.settings,
            network=SimulatedNetwork(world.fabric),
            rng=rng,
        )
        return self._ledgers

    @property
    def ledgers(self) -> LedgerClient:
        """The ledger client of the process that runs now."""
        if self._ledgers is None:
            raise RuntimeError("the client was not started")
        return self._ledgers

    def spawn(self, work: Coroutine[object, None, T]) -> asyncio.Task[T]:
        """Run a coroutine in this client's process."""
        if self.process is None:
            raise RuntimeError("the client was not started")
        return self.world.loop.start(self.process, work)


class World:
    """Everything of one run."""

    def __init__(self, seed: int | str, *, trace: bool = False) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(self.rng("loop"))
        self.context = self.loop.outside.context
        self.trace = Trace(self.loop, keep=trace)
        self.points: Counter[str] = Counter()
        """Named fault points that were reached."""
        self.history = History(self.loop)
        self.nodes: list[NodeMachine] = []
        self.clients: dict[str, ClientMachine] = {}
        self.ledger_checkers = LedgerCheckers(self)
        self.log_checkers = LogCheckers(self, self.ledger_checkers)
        self.fabric = Fabric(self.loop, self.rng("network"))
        self.fabric.reached = self.reached
        self.fabric.on_frame = self.ledger_checkers.frame_sent
        self.tree = WatchedTree(lambda: EPOCH_MS + int(self.loop.time() * 1000), self._applied)
        self.service = MetadataService(self.loop, self.rng("metadata"), self.tree)
        self.service.reached = self.reached

    def start(self, work: Coroutine[object, None, T]) -> asyncio.Task[T]:
        """Run something outside of all processes."""
        return self.loop.start(self.loop.outside, work)

    def rng(self, purpose: str) -> random.Random:
        """Return a stream of randomness for one purpose."""
        return random.Random(f"{self.seed}/{purpose}")

    def reached(self, point: str) -> None:
        """Note that a named point was reached."""
        self.points[point] += 1

    def _applied(self, ops: Sequence[Op]) -> None:
        self.trace.note(f"metadata {[(type(op).__name__, op.path) for op in ops]}")
        self.ledger_checkers.metadata_applied(ops)
        self.log_checkers.metadata_applied(ops)

    def add_node(self, place: str = "") -> NodeMachine:
        """Return a host for a storage node, with an empty disk; the node is not started. `place` goes before its name,
        as `region-rack-x-`."""
        node = NodeMachine(self, f"{place}b{len(self.nodes)}")
        self.nodes.append(node)
        return node

    def add_client(self, name: str, settings: ClientSettings = CLIENT_SETTINGS) -> ClientMachine:
        """Return a host for a client; one of the same name is replaced. No process is started."""
        client = self.clients[name] = ClientMachine(self, name, settings)
        return client

    def node_of(self, bookie_id: str) -> NodeMachine:
        """Return the host of the node with this bookie id."""
        return self.nodes[int(bookie_id.partition(":")[0].rpartition("b")[2])]

    async def format(self) -> None:
        """Set up the metadata, from a client of its own that then ends."""
        client = self.add_client("format")
        client.begin()
        if client.store is None:
            raise RuntimeError("no session")
        store = client.store
        await client.spawn(LedgerStore(store, rng=self.rng("format")).format())
        await client.spawn(store.close())
        client.kill()

    def run(self, main: Coroutine[object, None, T], *, limit_s: float = 600.0) -> T:
        """Run to the end of `main`, which has `limit_s` of virtual time. The world cannot be used afterwards."""
        try:
            return self.loop.run_until_complete(self._bounded(main, limit_s))
        except Exception as error:
            # The violation comes first: what programs raise after it follows from it.
            if self.ledger_checkers.violation is not None and error is not self.ledger_checkers.violation:
                raise self.ledger_checkers.violation from error
            raise
        finally:
            self.loop.finish()

    async def _bounded(self, main: Coroutine[object, None, T], limit_s: float) -> T:
        return await asyncio.wait_for(main, limit_s)
