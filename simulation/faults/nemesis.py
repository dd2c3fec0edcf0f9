"""`Nemesis`: breaks things at drawn moments, each run with its own selection of fault kinds.

A run that could do everything at any time would rarely do one thing often enough to matter; so each seed draws which
kinds it uses and how often. All damage that no journal can undo (flipped bits, lost files, a wiped disk) stays on one
node, and out of runs that need every node: fewer than an ack quorum of replicas, as the invariants presuppose.
`heal` undoes everything that can be undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from metadata.bookkeeper.ledger_metadata import LedgerMetadata
from simulation.checkers.ledgers import bodies_in, decode_answer
from simulation.cluster import Machine, NodeMachine, World
from simulation.environment.disk import REMOVAL
from simulation.environment.network import SimulatedLink
from storage_node.protocol.frames import LENGTH, LENGTH_BYTES

MAX_STEP = 400
"""How many callbacks ahead a trap is set."""
LOST_SHARE = (0.1, 0.5)
"""Of the first requests of disturbed recoveries: to most nodes, and to remote ones."""
LATE_SHARE = 0.6
"""Of the other nodes, which answer late where one was lost."""
FAR_SHARE = 0.5
"""Of the clients, for which a remote node is far away."""
DISTANCE_S = (0.01, 0.15)
DOUBT_SHARE = 0.5
"""Of the contested runs, in which metadata changes are lost as well."""
UNREGISTERED_SHARE = 0.7
"""Of the nodes that cannot reach the store, whose session had been about to end."""
LATE_DISKS = (60.0, 120.0, 240.0)
HELD_BACK_S = (0.2, 0.7)
"""Less than a writer waits."""
MOMENTS = ("journal", "journal", "journal", "entries", "files", REMOVAL)
"""In which the power of a node goes; a call of a pool is under way then."""
OFTEN_SHARE = 0.3
"""Of the runs, in which power goes at such moments most of the time."""
TEARING_SHARE = 0.7
"""Of the cuts while the journal is written, that find a batch written and not synced."""
CUT_WITHIN_S = 0.0004
JUMPS_MS = (-3_600_000, -5_000, 5_000, 86_400_000)


class Nemesis:
    """Runs as a task of the world until `stop`."""

    def __init__(self, world: World, rng: Random, *, may_damage: bool) -> None:
        self.world = world
        self.rng = rng
        self.kinds = self._draw_kinds(may_damage)
        self.mean_pause_s = rng.choice((0.05, 0.15, 0.4))
        # Damage is for one node of a run: nothing is promised beyond the loss of A - 1 (I1).
        self._victim = rng.choice(world.nodes)
        self._remote: set[str] = set()
        self._leaving: NodeMachine | None = None
        """The node that answers late."""
        world.ledger_checkers.on_replaced = self._replaced
        self._stopped = False

    def contest(self) -> None:
        """Keep to faults that make messages late or lost: several clients of one ledger meet most often so."""
        self.kinds = [
            self.one_way,
            self.partition,
            self.slow_link,
            self.break_links,
            self.pause_at_step,
            self.kill_client,
        ]
        if self.rng.random() < DOUBT_SHARE:
            self.kinds += 2 * [self.doubt_changes]
        self.mean_pause_s = 0.06
        self.world.ledger_checkers.on_first_fence = self._disturb
        self._keep_distances()

    def replace_nodes(self) -> None:
        """Keep to nodes that are replaced and answer late."""
        self.kinds = [self.late_answers]
        self.mean_pause_s = 0.06

    def disturb_owners(self) -> None:
        """Add faults to those that were drawn, for programs that hold something which others then take from them."""
        self.kinds += 2 * [self.pause_client]
        self.kinds += self.rng.sample([self.kill_rolling, self.cut_off_nodes, self.doubt_changes], 2)

    def _draw_kinds(self, may_damage: bool) -> list[Callable[[], None]]:
        every = [
            self.partition,
            self.one_way,
            self.isolate,
            self.break_links,
            self.disturb_recoveries,
            self.slow_link,
            self.kill_node,
            self.kill_at_step,
            self.power_off,
            self.power_off_all,
            self.pause,
            self.pause_at_step,
            self.kill_client,
            self.slow_disk,
            self.full_disk,
            self.failing_disk,
            self.unreadable_disk,
            self.flaky_metadata,
            self.disconnect_session,
            self.expire_session,
            self.stall_metadata,
            self.slow_metadata,
            self.cut_off_metadata,
            self.cut_off_nodes,
            self.doubt_changes,
            self.jump_clock,
        ]
        if may_damage:
            every += [self.flip_bits, self.lose_file, self.wipe_disk, self.bad_memory]
        # A few kinds a run: of all of them none would meet the same one twice, which is where mistakes are.
        kinds = self.rng.sample(every, self.rng.randint(3, 9))
        if self.rng.random() < OFTEN_SHARE:
            kinds = [*kinds[:3], *2 * [self.power_off_at_moment]]
        return kinds

    async def run(self, seconds: float) -> None:
        """Break things for so long."""
        until = self.world.loop.time() + seconds
        while self.world.loop.time() < until:
            await asyncio.sleep(self.rng.expovariate(1 / self.mean_pause_s))
            kind = self.rng.choice(self.kinds)
            self.world.trace.note(f"fault {kind.__name__}")
            kind()

    def heal(self) -> None:
        """End every fault that ends; start what does not run."""
        world = self.world
        self._stopped = True
        world.fabric.heal()
        self._spare_recoveries()
        world.ledger_checkers.on_replaced = lambda old, new: None
        self._steady_metadata()
        world.service.unreachable.clear()
        world.service.slow.clear()
        world.service.resume()
        for machine in (*world.nodes, *world.clients.values()):
            machine.resume()
        for node in world.nodes:
            self._mend_disk(node)

    def _later(self, low_s: float, high_s: float, action: Callable[..., None], *args: object) -> None:
        """Undo something after a drawn time."""
        world = self.world
        # In no process's context: a fault must end although what it hit has died.
        world.loop.call_later(self.rng.uniform(low_s, high_s), action, *args, context=world.context)

    def _node(self) -> NodeMachine:
        return self.rng.choice(self.world.nodes)

    def _machine(self) -> Machine:
        if self.rng.random() < 0.7 or not self.world.clients:
            return self._node()
        return self.rng.choice(list(self.world.clients.values()))

    # ------------------------------------------------------------------------------------ network

    def partition(self) -> None:
        """Cut a node off from another host, and that from the node, for up to 2 s."""
        one, other = self._machine().name, self._node().name
        if one != other:
            self._block(one, other)
            self._block(other, one)
            self.world.reached("net.partition")

    def one_way(self) -> None:
        """Hold back what a node sends to another host, or what it should receive from it, for up to 2 s."""
        one, other = self._machine().name, self._node().name
        if one != other:
            self._block(*((one, other) if self.rng.random() < 0.5 else (other, one)))
            self.world.reached("net.one-way-partition")

    def isolate(self) -> None:
        """Cut a host off from all others, for up to 2 s each; the metadata store it reaches."""
        name = self._machine().name
        for other in (*self.world.nodes, *self.world.clients.values()):
            if other.name != name:
                self._block(name, other.name)
                self._block(other.name, name)
        self.world.reached("net.isolated-host")

    def _block(self, source: str, target: str) -> None:
        self.world.fabric.block(source, target)
        self._later(0.05, 2.0, self.world.fabric.unblock, source, target)

    def break_links(self) -> None:
        """Break one to three connections, with any prefix of what is under way delivered."""
        links = [link for link in self.world.fabric.links if link.client]
        for link in self.rng.sample(links, min(len(links), self.rng.randint(1, 3))):
            self.world.reached("net.broken-link")
            if link.in_flight or link.other.in_flight:
                self.world.reached("net.unknown-delivery")
            self.world.fabric.break_link(link)

    def disturb_recoveries(self) -> None:
        """Break some connections, for a while, just when a recovery begins, and have other nodes answer it late.

        So it goes on with a node that was never fenced, and hears what that one lacks before it hears what others have.
        """
        self.world.ledger_checkers.on_first_fence = self._disturb
        self._later(0.1, 1.5, self._spare_recoveries)

    def _disturb(self, link: SimulatedLink) -> None:
        if self.rng.random() > LOST_SHARE[link.other.process.host in self._remote]:
            return
        self.world.reached("net.lost-fence")
        self.world.fabric.break_link(link, within=0.1)
        recoverer = link.process.host
        for node in self.world.nodes:
            if node.name != link.other.process.host and self.rng.random() < LATE_SHARE:
                self.world.fabric.slow[(node.name, recoverer)] = self._distance()
                self._later(0.05, 0.3, self._hurry, node.name, recoverer)

    def _distance(self) -> float:
        """Return how many times slower a way must be to take DISTANCE_S."""
        return self.rng.uniform(*DISTANCE_S) / self.world.fabric.latency_s

    def _keep_distances(self) -> None:
        """Put one node or two far away: what some of the clients send there comes late."""
        names = [node.name for node in self.world.nodes]
        self._remote = set(self.rng.sample(names, self.rng.choice((1, 2))))
        for client in self.world.clients:
            for node in names:
                if node in self._remote and self.rng.random() < FAR_SHARE:
                    self.world.fabric.slow[(client, node)] = self._distance()

    def _spare_recoveries(self) -> None:
        self.world.ledger_checkers.on_first_fence = lambda link: None

    def slow_link(self) -> None:
        """Let messages between a node and another host take 5 to 400 times as long for a while."""
        one, other = self._machine().name, self._node().name
        factor = self.rng.choice((5.0, 50.0, 400.0))
        self.world.fabric.slow[(one, other)] = self.world.fabric.slow[(other, one)] = factor
        self._later(0.1, 1.5, self._hurry, one, other)
        self.world.reached("net.slow-link")

    def _hurry(self, one: str, other: str) -> None:
        self.world.fabric.slow.pop((one, other), None)
        self.world.fabric.slow.pop((other, one), None)

    def late_answers(self) -> None:
        """Let a node take no more entries, and be slow to answer for those that it took: by then it has been replaced.

        What its replacement has to say is held back for longer, so that entries must go on waiting for that.
        """
        under_way = [truth.metadata for truth in self.world.ledger_checkers.ledgers.values() if truth.under_way]
        metadata = self.rng.choice(under_way) if under_way else None
        if self._leaving is not None or metadata is None:
            return
        node = self._leaving = self.world.node_of(self.rng.choice(metadata.last_ensemble.bookies))
        node.disk.faults.slow, node.disk.faults.full = self.rng.choice(LATE_DISKS), True
        self._later(0.7, 1.5, self._stay, node)

    def _replaced(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        before, after = old.last_ensemble.bookies, new.last_ensemble.bookies
        if self._leaving is None or self._leaving.bookie_id not in set(before).difference(after):
            return
        self.world.reached("net.late-answers")
        for joined in (self.world.node_of(bookie).name for bookie in after if bookie not in before):
            for client in self.world.clients:
                self.world.fabric.block(joined, client)
                self._later(*HELD_BACK_S, self.world.fabric.unblock, joined, client)

    def _stay(self, node: NodeMachine) -> None:
        self._leaving = None
        self._mend_disk(node)

    def bad_memory(self) -> None:
        """Damage one node's entries on their way out, for a while: digests are made against that."""
        fabric = self.world.fabric
        fabric.corrupt = self._corrupt
        fabric.corrupting.add(self._victim.name)
        self._victim.damaged = True
        self._later(0.2, 3.0, fabric.corrupting.discard, self._victim.name)

    def _corrupt(self, data: bytes) -> bytes:
        """Flip a bit in the body of a read's answer, every other time."""
        out = bytearray(data)
        at = 0
        while at < len(out):
            end = at + LENGTH_BYTES + LENGTH.unpack_from(out, at)[0]
            for body in bodies_in(decode_answer(memoryview(out)[at + LENGTH_BYTES : end])):
                if self.rng.random() < 0.5:
                    body[self.rng.randrange(len(body))] ^= 1 << self.rng.randrange(8)
                    self.world.reached("net.corrupted-entry")
            at = end
        return bytes(out)

    # ------------------------------------------------------------------------------------ processes

    def kill_node(self) -> None:
        """Kill a node; it starts again within a second."""
        self._end(self._node(), power=False)

    def power_off(self) -> None:
        """Take the power from a node's host, and with it what was not synced; it starts again within a second."""
        self._end(self._node(), power=True)

    def power_off_at_moment(self) -> None:
        """Take the power away while the disk is at work on something, or right after a file was removed."""
        node, moment = self._node(), self.rng.choice(MOMENTS)
        node.disk.at_moment(moment, lambda: self._later(0.0, CUT_WITHIN_S, self._cut_at, node, moment))

    def _cut_at(self, node: NodeMachine, moment: str) -> None:
        if not self._stopped and node.running:
            self.world.reached(f"process.power-at-{moment}")
            node.disk.tears = moment == "journal" and self.rng.random() < TEARING_SHARE
            self._end(node, power=True)

    def power_off_all(self) -> None:
        """Cut the power of every node at once."""
        if self.rng.random() < 0.5:
            return
        self.world.reached("process.power-all")
        for node in self.world.nodes:
            self._end(node, power=True)

    def _end(self, node: NodeMachine, *, power: bool) -> None:
        if node.running:
            self.world.reached("process.power-loss" if power else "process.kill")
            node.kill(power=power)
        self._later(0.02, 1.0, self._start, node)

    def _start(self, node: NodeMachine) -> None:
        """Start a node, and see that it goes on to run."""
        if self._stopped:
            return  # the end of the run starts what does not run
        if not node.running and node.refused is None:
            node.start()
            self._later(0.5, 1.0, self._start, node)

    def kill_at_step(self) -> None:
        """Kill a process right before one of its next callbacks, so at any await point; some nodes lose their power."""
        machine = self._machine()
        process = machine.process
        if machine.running and process is not None:
            power = self.rng.random() < 0.5
            # By the number of callbacks, not by time: so each await point is as likely, however short.
            process.at_step(self.rng.randint(1, MAX_STEP), lambda: self._spring(machine, power))

    def _spring(self, machine: Machine, power: bool) -> None:
        if self._stopped:
            return
        self.world.reached("process.kill-at-step")
        if isinstance(machine, NodeMachine):
            self._end(machine, power=power)
        else:
            machine.kill()

    def kill_client(self) -> None:
        """Kill a client; its workload starts it again."""
        machine = self.rng.choice(list(self.world.clients.values()))
        if machine.running:
            self.world.reached("process.kill-client")
            machine.kill()

    def kill_rolling(self) -> None:
        """Kill the next writer that rolls, with two segments in progress. Only `disturb_owners` uses it."""
        self.world.log_checkers.on_rolled = self._kill_rolling

    def _kill_rolling(self, name: str) -> None:
        self.world.log_checkers.on_rolled = lambda client: None
        # At a drawn moment from here on: before the new segment is heard of, or before the old one has its end.
        self._later(0.0, 4 * self.world.service.latency_s, self._kill_client, self.world.clients[name])

    def _kill_client(self, client: Machine) -> None:
        if client.running and not self._stopped:
            self.world.reached("process.kill-rolling")
            client.kill()

    def pause(self) -> None:
        """Stop a process for 1 ms to 7 s: longer than some sessions live."""
        self._pause(self._machine())

    def pause_at_step(self) -> None:
        """Pause a process right before one of its next callbacks."""
        machine = self._machine()
        if machine.running and machine.process is not None:
            machine.process.at_step(self.rng.randint(1, MAX_STEP), lambda: self._pause(machine))

    def pause_client(self) -> None:
        """Stop a client for a while. Only `disturb_owners` uses it."""
        running = [client for client in self.world.clients.values() if client.running]
        if running:
            self._pause(self.rng.choice(running))

    def _pause(self, machine: Machine) -> None:
        if not self._stopped and machine.running:
            self.world.reached("process.pause")
            machine.pause()
            low, high = self.rng.choice(((0.001, 0.05), (0.1, 2.0), (3.0, 7.0)))
            self._later(low, high, machine.resume)

    # ------------------------------------------------------------------------------------ disks

    def slow_disk(self) -> None:
        """Let a node's disk take 10 to 600 times as long for a while."""
        node = self._node()
        node.disk.faults.slow = self.rng.choice((10.0, 100.0, 600.0))
        self.world.reached("disk.slow")
        self._later(0.1, 1.5, self._mend_disk, node)

    def full_disk(self) -> None:
        """Let a node's disk take no more bytes for a while."""
        node = self._node()
        node.disk.faults.full = True
        self._later(0.2, 2.0, self._mend_disk, node)

    def failing_disk(self) -> None:
        """Let writes or syncs of a node fail, some or all of them, for a while. The node may stop by that: it is
        started again.
        """
        node = self._node()
        share = self.rng.choice((0.01, 0.1, 1.0))
        setattr(node.disk.faults, self.rng.choice(("eio_write", "eio_sync")), share)
        self._later(0.1, 1.0, self._mend_disk, node)
        self._later(1.0, 1.5, self._start, node)

    def unreadable_disk(self) -> None:
        """Let some reads of a node's disk fail for a while."""
        node = self._node()
        node.disk.faults.eio_read = self.rng.choice((0.05, 0.5))
        self._later(0.1, 1.5, self._mend_disk, node)

    @staticmethod
    def _mend_disk(node: NodeMachine) -> None:
        faults = node.disk.faults
        faults.slow, faults.full = 1.0, False
        faults.eio_read = faults.eio_write = faults.eio_sync = 0.0

    def flip_bits(self) -> None:
        """Flip bits in entry logs, sidecars and checkpoints of the one node that may be damaged."""
        disk = self._victim.disk
        files = [*disk.files(".log", "/ledgers"), *disk.files(".idx"), *disk.files("/checkpoint")]
        for path in self.rng.sample(files, min(len(files), self.rng.randint(1, 3))):
            if disk.flip(path):
                self._victim.damaged = True
                self.world.reached("disk.bit-flip")

    def lose_file(self) -> None:
        """Lose an entry log or sidecar of the one node that may be damaged, perhaps with a power cut."""
        disk = self._victim.disk
        files = [*disk.files(".log", "/ledgers"), *disk.files(".idx")]
        if files:
            self._victim.damaged = True
            self.world.reached("disk.lost-file")
            disk.lose(self.rng.choice(files))
            if self.rng.random() < 0.5:
                self._end(self._victim, power=True)

    def wipe_disk(self) -> None:
        """Bring the node back under its old name with an empty disk."""
        if self._victim.runs > 0 and self.rng.random() < 0.4:
            self._victim.damaged = True
            self._victim.kill(power=True)
            self._victim.disk.wipe()
            self.world.reached("disk.wiped")
            self._later(0.02, 1.0, self._start, self._victim)

    # ------------------------------------------------------------------------------------ metadata and clocks

    def flaky_metadata(self) -> None:
        """Lose or refuse some requests to the metadata store, of any host, or lose their answers, for a while."""
        service = self.world.service
        service.lose, service.lose_reply, service.refuse = (self.rng.choice((0.0, 0.03, 0.2)) for _ in range(3))
        self._later(0.2, 2.0, self._steady_metadata)

    def doubt_changes(self) -> None:
        """Lose changes of clients, or their answers, and with some of them the session: others go on meanwhile."""
        service = self.world.service
        service.doubtful = self.world.clients.__contains__
        service.lose_changes = self.rng.choice((0.1, 0.3))
        service.away_s = (0.01, self.rng.choice((0.1, 0.5)))
        service.expiring = self.rng.choice((0.0, 0.5))
        self._later(0.3, 2.0, self._steady_metadata)

    def _steady_metadata(self) -> None:
        service = self.world.service
        service.lose = service.lose_reply = service.refuse = service.lose_changes = service.expiring = 0.0
        service.away_s = (0.01, 0.01)

    def _store_owner(self) -> Machine | None:
        owners = [x for x in (*self.world.nodes, *self.world.clients.values()) if x.running and x.store is not None]
        return self.rng.choice(owners) if owners else None

    def disconnect_session(self) -> None:
        """Break a process's connection to the metadata store, for up to a second; its session may live on."""
        owner = self._store_owner()
        if owner is not None and owner.store is not None:
            self.world.service.disconnect(owner.store, self.rng.uniform(0.01, 1.0))

    def expire_session(self) -> None:
        """End a process's metadata session at once: its ephemerals go before it hears of it."""
        owner = self._store_owner()
        if owner is not None and owner.store is not None:
            self.world.service.expire(owner.store)

    def stall_metadata(self) -> None:
        """Let the metadata store serve no request for up to 2 s."""
        self.world.service.stalled = True
        self._later(0.1, 2.0, self.world.service.resume)

    def slow_metadata(self) -> None:
        """Let one host hear everything late, changes too: others act upon them long before it."""
        name = self._machine().name
        self.world.service.slow[name] = self.rng.choice((20.0, 100.0))
        self.world.reached("metadata.slow")
        self._later(0.3, 2.0, self._hurry_metadata, name)

    def _hurry_metadata(self, name: str) -> None:
        self.world.service.slow.pop(name, None)

    def cut_off_metadata(self) -> None:
        """Cut a host off from the metadata store, for up to 6 s: its sessions may end."""
        owner = self._store_owner()
        if owner is not None:
            self.world.reached("metadata.unreachable")
            self.world.service.cut_off(owner.name)
            self._later(0.3, 6.0, self.world.service.join, owner.name)

    def cut_off_nodes(self) -> None:
        """Cut so many nodes off from the store that none is left to replace another: they go on serving."""
        count = self.rng.randint(2, len(self.world.nodes)) if len(self.world.nodes) > 2 else 1
        for node in self.rng.sample(self.world.nodes, count):
            self.world.service.cut_off(node.name)
            if node.running and self.rng.random() < UNREGISTERED_SHARE:
                self.world.service.expire(node.session)
            self._later(0.5, 6.0, self.world.service.join, node.name)
        self.world.reached("metadata.nodes-unreachable")

    def jump_clock(self) -> None:
        """Let a host's wall clock jump, by up to an hour back or a day ahead, and stay so."""
        machine = self._machine()
        machine.clock.offset_ms += self.rng.choice(JUMPS_MS)
        self.world.reached("clock.jump")
