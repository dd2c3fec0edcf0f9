"""`TierNemesis`: what goes wrong around write proxies, besides what `Nemesis` does to storage nodes and the store.

    crash        SIGKILL a proxy, now or right before any of its next callbacks; it is started again
    freeze       SIGSTOP one, for less or for longer than its session lives; then it goes on
    expire       its session with the metadata store ends, and it hears of it soon, late, or after a stop
    cut_off      it cannot reach the metadata store, for long enough that its session ends
    split        a proxy and a client, another proxy or a storage node cannot reach each other, in one direction or both
    lose_node    a storage node is killed, loses its power, stops or is slow; one at a time, so that quorums are left
    disturb      connections break or are slow, the store loses requests, answers and changes, or stands still
    clients      clients are killed and stopped, too; or taken for dead and replaced, and go on beside their successors
    limits       a proxy takes few requests a second, for a while
    reading      read proxies, where there are any, are killed, stopped, cut off, or leave, and their readers are killed

A run of failovers has crash, freeze and cut_off alone, one at a time: what they take is measured there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from simulation.cluster import Machine, NodeMachine
from simulation.environment.loop import Process
from simulation.environment.metadata import SimulatedStore
from simulation.faults.nemesis import MAX_STEP, Nemesis
from simulation.reading_tier import ReadTier
from simulation.tier import ProxyMachine, ProxyTier, ServingMachine

STOPS = (0.02, 0.5, 1.3, 2.5)
"""How long a process stands still, in sessions' timeouts."""
NODE_AWAY_S = (0.3, 2.0)
AT_STEP_SHARE = 0.7
"""Of crashes and stops, which come right before some callback, and so in the middle of something."""


@dataclass(slots=True)
class Disablement:
    """A proxy that cannot serve any more, from a moment on."""

    kind: str
    process: Process
    since_s: float


class TierNemesis(Nemesis):
    """Runs as a task of the world until `heal`."""

    def __init__(self, tier: ProxyTier, rng: Random, reading: ReadTier | None = None) -> None:
        super().__init__(tier.world, rng, may_damage=False)
        self._tier = tier
        self._reading = reading
        self._disowned: list[tuple[Process, SimulatedStore]] = []
        self._node_away: NodeMachine | None = None
        self.disablements: list[Disablement] = []
        every: list[Callable[[], None]] = [
            self.crash,
            self.freeze,
            self.expire,
            self.cut_off,
            self.split,
            self.lose_node,
            self.break_links,
            self.slow_path,
            self.flaky_metadata,
            self.doubt_changes,
            self.stall_metadata,
            self.disturb_client,
            self.replace_client,
            self.limit,
        ]
        self.kinds = rng.sample(every, rng.randint(3, 7))
        if reading is not None:
            self.kinds.append(self.disturb_reading)
        self.mean_pause_s = rng.choice((0.1, 0.2, 0.4))

    def _machine(self) -> Machine:
        number = self.rng.random()
        if number < 0.6:
            return self._proxy()
        return self._node() if number < 0.75 else self.rng.choice(list(self.world.clients.values()))

    def _proxies(self) -> list[ServingMachine]:
        return [*self._tier.proxies, *(self._reading.proxies if self._reading is not None else ())]

    def _proxy(self) -> ProxyMachine:
        return self.rng.choice(self._tier.proxies)

    def doubt_changes(self) -> None:
        """Lose changes of proxies, or their answers."""
        super().doubt_changes()
        names = {machine.name for machine in self._tier.proxies}
        self.world.service.doubtful = names.__contains__

    def heal(self) -> None:
        """End every fault that ends."""
        super().heal()
        while self._disowned:
            self._end_replaced()
        for proxy in self._tier.proxies:
            proxy.limit(0)
        for machine in self._proxies():
            machine.resume()
            if machine.process is not None:
                machine.process.trap = None

    def _owner(self) -> ProxyMachine:
        """Return a proxy that has acknowledged something, where there is any."""
        processes = self._tier.checkers.owners()
        owners = [machine for machine in self._tier.proxies if machine.serving and machine.process in processes]
        return self.rng.choice(owners or self._tier.proxies)

    # ------------------------------------------------------------------------------------ proxies

    async def fail_over(self, pause_s: tuple[float, float], rounds: int) -> None:
        """Disturb a proxy by one fault after the other, each given the time to be got over."""
        timeout_s = self.world.service.session_timeout_s
        for _ in range(rounds):
            await asyncio.sleep(self.rng.uniform(*pause_s))
            machine = self._owner()
            if not machine.serving:
                continue
            kind = self.rng.choice((self._crash_now, self._freeze_long, self._freeze_long, self._cut_off_long))
            self.world.trace.note(f"failover {kind.__name__} {machine.name}")
            if machine.process is not None:
                machine.process.at_step(self.rng.randint(1, MAX_STEP), partial(kind, machine))
            # Longer than a session's timeout: by then another proxy has to serve, and how long that took is measured.
            await asyncio.sleep(3 * timeout_s)

    def _note(self, kind: str, machine: Machine) -> None:
        if machine.process is not None:
            self.world.reached(f"proxy.{kind}")
            self.disablements.append(Disablement(kind, machine.process, self.world.loop.time()))

    def _crash_now(self, machine: Machine) -> None:
        if machine.running and not self._stopped:
            self._note("crash", machine)
            machine.kill()

    def _freeze_long(self, machine: Machine) -> None:
        self._stop(machine, self.rng.uniform(1.6, 3.0) * self.world.service.session_timeout_s)

    def _cut_off_long(self, machine: Machine) -> None:
        self._note("cut-off", machine)
        self.world.service.cut_off(machine.name)
        seconds = self.rng.uniform(1.3, 2.5) * self.world.service.session_timeout_s
        self._later(seconds, seconds, self.world.service.join, machine.name)

    def _stop(self, machine: Machine, seconds: float) -> None:
        if machine.running and not self._stopped:
            self._note("freeze", machine)
            machine.pause()
            self._later(seconds, seconds, machine.resume)

    def _now_or_later(self, machine: Machine, act: Callable[[], None]) -> None:
        if machine.running and machine.process is not None and self.rng.random() < AT_STEP_SHARE:
            machine.process.at_step(self.rng.randint(1, MAX_STEP), act)
        else:
            act()

    def crash(self) -> None:
        """Kill a proxy; its supervisor starts it again."""
        machine = self._proxy()
        self._now_or_later(machine, lambda: self._crash_now(machine))

    def freeze(self) -> None:
        """Stop a proxy and continue it later: what it was about to do, it does then."""
        machine = self._proxy()
        seconds = self.rng.choice(STOPS) * self.world.service.session_timeout_s
        self._now_or_later(machine, lambda: self._stop(machine, seconds))

    def expire(self) -> None:
        """End a proxy's session, with the proxy late or standing still just then."""
        machine = self._proxy()
        if not machine.running or machine.store is None:
            return
        self.world.reached("proxy.expire")
        self.world.service.expire(machine.store)
        number = self.rng.random()
        if number < 0.3:
            self.world.service.far(machine.name)
        elif number < 0.6:
            seconds = self.rng.choice(STOPS) * self.world.service.session_timeout_s
            self._now_or_later(machine, lambda: self._stop(machine, seconds))

    def cut_off(self) -> None:
        """Cut the proxy off from the metadata store; clients and storage nodes it still reaches."""
        machine = self._proxy()
        self.world.reached("proxy.cut-off")
        self.world.service.cut_off(machine.name)
        self._later(0.2, 2.5 * self.world.service.session_timeout_s, self.world.service.join, machine.name)

    # ------------------------------------------------------------------------------------ between proxies and others

    def _peer(self, machine: Machine) -> str:
        others = [*self.world.nodes, *self._tier.proxies, *self.world.clients.values()]
        return self.rng.choice([one.name for one in others if one is not machine])

    def split(self) -> None:
        """Let nothing pass between a proxy and another host, in one direction or both."""
        machine = self._proxy()
        one, other = machine.name, self._peer(machine)
        both = self.rng.random() < 0.6
        self.world.reached("proxy.split" if both else "proxy.split-one-way")
        if both or self.rng.random() < 0.5:
            self._block(one, other)
        if both or (one, other) not in self.world.fabric.blocked:
            self._block(other, one)

    def slow_path(self) -> None:
        """Let everything between a proxy and another host take long."""
        machine = self._proxy()
        one, other = machine.name, self._peer(machine)
        factor = self.rng.choice((10.0, 100.0))
        self.world.fabric.slow[(one, other)] = self.world.fabric.slow[(other, one)] = factor
        self._later(0.1, 1.5, self._hurry, one, other)
        self.world.reached("proxy.slow-path")

    # ------------------------------------------------------------------------------------ others

    def lose_node(self) -> None:
        """Lose one storage node at a time: it is gone, stopped or slow."""
        if self._node_away is not None:
            return
        node = self._node_away = self._node()
        kind = self.rng.choice(("kill", "power", "pause", "slow"))
        self.world.reached(f"node.{kind}")
        if kind == "pause":
            node.pause()
        elif kind == "slow":
            node.disk.faults.slow = 200.0
        else:
            node.kill(power=kind == "power")
        self._later(*NODE_AWAY_S, self._node_back, node)

    def _node_back(self, node: NodeMachine) -> None:
        self._node_away = None
        node.resume()
        self._mend_disk(node)
        if not node.running and node.refused is None:
            node.start()

    def disturb_client(self) -> None:
        """Kill a client, or stop it for a while."""
        machine = self.rng.choice([one for name, one in self.world.clients.items() if name[-1].isdigit()])
        if machine.running and self.rng.random() < 0.5:
            self.world.reached("client.killed-here")
            machine.kill()
        elif machine.running:
            self.world.reached("client.paused-here")
            machine.pause()
            self._later(0.05, 2.0, machine.resume)

    def replace_client(self) -> None:
        """Stop a client, which is taken for dead and started again; then its first process goes on for a while."""
        machine = self.rng.choice([one for name, one in self.world.clients.items() if name.startswith("c")])
        store = machine.store
        process = machine.disown()
        if process is None or store is None:
            return
        self.world.reached("client.replaced")
        self._tier.checkers.replaced.add(process)
        self._disowned.append((process, store))
        self._later(0.1, 1.5, self._wake, process)
        self._later(1.6, 3.0, self._end_replaced)

    def _wake(self, process: Process) -> None:
        if not process.dead:
            self.world.reached("client.replaced-wakes")
            self.world.loop.resume(process)

    def _end_replaced(self) -> None:
        """End the oldest of those that were taken for dead."""
        if self._disowned:
            process, store = self._disowned.pop(0)
            self.world.loop.kill(process)
            self.world.fabric.forget(process, power=False)
            self.world.service.lost(store)

    def limit(self) -> None:
        """Let a proxy take few requests a second, for a while."""
        machine = self._proxy()
        machine.limit(self.rng.choice((3, 15)))
        self.world.reached("proxy.limited")
        self._later(0.2, 1.5, machine.limit, 0)

    def disturb_reading(self) -> None:
        """Kill or stop a read proxy, cut it off from another host or the store, or have it leave; or kill a reader."""
        if self._reading is None:
            return
        machine = self.rng.choice(self._reading.proxies)
        kind = self.rng.choice(("kill", "pause", "leave", "split", "expire", "reader"))
        if not machine.running:
            return
        self.world.reached(f"reading.{kind}")
        if kind == "kill":
            self._now_or_later(machine, partial(self._kill, machine))
        elif kind == "pause":
            machine.pause()
            self._later(0.05, 2.5, machine.resume)
        elif kind == "leave":
            machine.leave()
        elif kind == "reader":
            self.rng.choice([one for name, one in self.world.clients.items() if name.startswith("reader")]).kill()
        elif kind == "expire":
            self.world.service.expire(machine.session)
        else:
            peer = self._peer(machine)
            self._block(machine.name, peer)
            self._block(peer, machine.name)

    def _kill(self, machine: Machine) -> None:
        if not self._stopped:
            machine.kill()
