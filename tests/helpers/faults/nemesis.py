"""The faults: what is broken, whose, for how long, drawn from a seed; and how it is mended.

A fault begins, lasts, and ends. Directions between two hosts may be blocked by several faults at once; a process is in
the hands of one fault at a time.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from helpers.faults.arena import CLIENTS, NODES, SMALL_DISK_NODE, ZOOKEEPER, Arena

Action = Callable[[], None]
HOUR_MS = 3_600_000


@dataclass
class Fault:
    """One fault under way or to come."""

    kind: str
    begins_s: float
    lasts_s: float
    where: str = ""
    mend: Action | None = None


KINDS = (
    "client-node cut",
    "client-node mute",
    "client-node deaf",
    "node-zookeeper cut",
    "node-zookeeper mute",
    "node-zookeeper deaf",
    "client-zookeeper cut",
    "client-zookeeper mute",
    "client-zookeeper deaf",
    "node alone",
    "slow link",
    "half-open",
    "pause node",
    "pause client",
    "pause zookeeper",
    "kill node",
    "kill client",
    "kill zookeeper",
    "slow disk",
    "full disk",
    "clock of a node",
    "clock of a client",
)
"""Cut: nothing passes. Mute: what the first says is lost. Deaf: what the first should hear is lost."""
KINDS_PER_ROUND = 5
ROUNDS_FOR_ALL = -(-len(KINDS) // KINDS_PER_ROUND)
LAST_BEGIN_S = 1.6
SHORT_S = (0.2, 1.0)
LONG_S = (0.6, 2.2)
"""Longer than a session with ZooKeeper, or not."""
LONG_KINDS = ("zookeeper", "alone", "pause", "half-open")


def plan(seed: int) -> list[Fault]:
    """Draw the faults of a round. Rounds whose seeds follow each other share out all kinds between them."""
    deal, turn = divmod(seed, ROUNDS_FOR_ALL)
    kinds = list(KINDS)
    random.Random(f"deal {deal}").shuffle(kinds)
    rng = random.Random(f"round {seed}")
    mine = kinds[turn * KINDS_PER_ROUND : (turn + 1) * KINDS_PER_ROUND]
    faults = [
        Fault(
            kind,
            rng.uniform(0.0, LAST_BEGIN_S),
            rng.uniform(*(LONG_S if any(word in kind for word in LONG_KINDS) else SHORT_S)),
        )
        for kind in mine
    ]
    return sorted(faults, key=lambda fault: fault.begins_s)


@dataclass
class Nemesis:
    """Does faults to an arena."""

    arena: Arena
    rng: random.Random
    restarted: Callable[[str], None]
    """Note a client that is a new process."""
    held: set[str] = field(default_factory=set)
    """Hosts whose processes are in the hands of a fault."""

    def begin(self, fault: Fault) -> None:
        """Break something, say where, and remember how to mend it."""
        kind = fault.kind
        if kind == "slow link" and not self.arena.network.can_delay:
            kind = fault.kind = "client-node cut"
        fault.where, fault.mend = self._begin(kind)
        self.arena.reached[kind] += 1

    def _begin(self, kind: str) -> tuple[str, Action]:
        pair, _, how = kind.rpartition(" ")
        if pair == "client-node":
            return self._lose(self._draw(CLIENTS), self._draw(NODES), how)
        if pair == "node-zookeeper":
            return self._lose(self._draw(NODES), ZOOKEEPER, how)
        if pair == "client-zookeeper":
            return self._lose(self._draw(CLIENTS), ZOOKEEPER, how)
        verb, _, what = kind.partition(" ")
        if verb == "pause":
            return self._pause(self._take({"node": NODES, "client": CLIENTS, "zookeeper": (ZOOKEEPER,)}[what]))
        if kind == "kill node":
            return self._kill_node(self._take(NODES))
        if kind == "kill client":
            return self._kill_client(self._take(CLIENTS))
        others: dict[str, Callable[[], tuple[str, Action]]] = {
            "node alone": self._isolate,
            "half-open": self._half_open,
            "slow link": self._slow_link,
            "kill zookeeper": self._kill_zookeeper,
            "slow disk": self._slow_disk,
            "full disk": self._full_disk,
            "clock of a node": lambda: self._step_clock(NODES),
            "clock of a client": lambda: self._step_clock(CLIENTS),
        }
        return others[kind]()

    def _draw(self, hosts: tuple[str, ...]) -> str:
        return self.rng.choice(hosts)

    def _take(self, hosts: tuple[str, ...]) -> str:
        """Take a host whose process no other fault has in hand (ZooKeeper's own may meet: then it is taken twice)."""
        host = self.rng.choice([host for host in hosts if host not in self.held] or hosts)
        self.held.add(host)
        return host

    # ------------------------------------------------------------------------------------ the network

    def _lose(self, one: str, other: str, how: str) -> tuple[str, Action]:
        ways = {"cut": [(one, other), (other, one)], "mute": [(one, other)], "deaf": [(other, one)]}[how]
        return self._lose_all(f"{one}, {other}", ways)

    def _lose_all(self, where: str, ways: list[tuple[str, str]]) -> tuple[str, Action]:
        for way in ways:
            self.arena.block(*way)

        def mend() -> None:
            for way in ways:
                self.arena.unblock(*way)

        return where, mend

    def _isolate(self) -> tuple[str, Action]:
        node = self._draw(NODES)
        others = [host for host in (ZOOKEEPER, *NODES, *CLIENTS) if host != node]
        return self._lose_all(node, [way for other in others for way in ((node, other), (other, node))])

    def _slow_link(self) -> tuple[str, Action]:
        client, node, seconds = self._draw(CLIENTS), self._draw(NODES), self.rng.uniform(0.02, 0.3)
        self.arena.network.delay(client, node, seconds)
        return f"{client}, {node}", lambda: self.arena.network.delay(client, node, 0.0)

    def _half_open(self) -> tuple[str, Action]:
        """Kill a node and start it where no other host hears of it: connections to it are of the dead."""
        node = self._take(NODES)
        _, heal = self._lose_all(node, [way for client in CLIENTS for way in ((node, client), (client, node))])
        _, restart = self._kill_node(node)

        def mend() -> None:
            restart()
            heal()

        return node, mend

    # ------------------------------------------------------------------------------------ processes

    def _pause(self, host: str) -> tuple[str, Action]:
        self.arena.signal(host, signal.SIGSTOP)

        def mend() -> None:
            self.arena.signal(host, signal.SIGCONT)
            self.held.discard(host)

        return host, mend

    def _kill_node(self, node: str) -> tuple[str, Action]:
        self.arena.kill(node)

        def mend() -> None:
            self.arena.start_node(node)
            self.held.discard(node)

        return node, mend

    def _kill_zookeeper(self) -> tuple[str, Action]:
        self.arena.kill(ZOOKEEPER)
        return ZOOKEEPER, self.arena.start_zookeeper

    def _kill_client(self, client: str) -> tuple[str, Action]:
        self.arena.kill(client)

        def mend() -> None:
            self.arena.start_client(client)
            self.held.discard(client)
            self.restarted(client)

        return client, mend

    # ------------------------------------------------------------------------------------ disk and clock

    def _slow_disk(self) -> tuple[str, Action]:
        node = self._take(NODES)
        self.arena.tell(node, slow_disk_ms=self.rng.randint(50, 400))
        return node, self._then(node, slow_disk_ms=0)

    def _full_disk(self) -> tuple[str, Action]:
        """Fill a small file system, where the node has one; else have the node's disk say that it is full."""
        if self.arena.small_disk is None or SMALL_DISK_NODE in self.held:
            node = self._take(NODES)
            self.arena.tell(node, full_disk=True)
            return node, self._then(node, full_disk=False)
        self.held.add(SMALL_DISK_NODE)
        disk = self.arena.small_disk
        disk.fill()

        def mend() -> None:
            disk.make_room()
            self.held.discard(SMALL_DISK_NODE)

        return f"{SMALL_DISK_NODE} (its file system)", mend

    def _step_clock(self, hosts: tuple[str, ...]) -> tuple[str, Action]:
        host = self._take(hosts)
        self.arena.tell(host, step_clock_ms=self.rng.choice((-1, 1)) * self.rng.randint(1_000, 24 * HOUR_MS))
        return host, self._then(host, step_clock_ms=0)

    def _then(self, host: str, **command: object) -> Action:
        def mend() -> None:
            self.arena.tell(host, **command)
            self.held.discard(host)

        return mend
