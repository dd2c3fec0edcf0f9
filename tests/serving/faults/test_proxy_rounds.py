"""Write proxies and what they depend on fail under load: nothing acknowledged is lost, nothing is there twice.

Each round has a seed that decides what fails, whose, when and for how long: a proxy is killed, or stands still for
longer than its session; it is cut off from ZooKeeper, from clients, from storage nodes; its session ends; a storage
node is killed and comes back. Rounds whose seeds follow each other go through all kinds. At the end of each round
everything runs again, every record gets its outcome, and the logs are held against these (`serving_rounds.Tier.check`).

Replay one round with `--seed N`. How long the logs of a proxy that failed were without an acknowledgement is printed
beside the session timeout.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from helpers.serving.rounds import (
    CLIENTS,
    NODES,
    PROXIES,
    SESSION_S,
    ZOOKEEPER,
    Tier,
    first_acknowledgements,
    now_s,
    row,
)

pytestmark = [pytest.mark.processes, pytest.mark.torture]

DEFAULT_ROUNDS = 1
FEW = (40, 12)
MANY = (200, 50)
"""Logs and clients: in the ordinary command, and with --rounds."""
KINDS = (
    "proxy killed",
    "session ended",
    "proxy paused",
    "proxy - zookeeper, long",
    "proxy - clients",
    "proxy - nodes",
    "node killed",
    "proxy - zookeeper, short",
    "proxy - one node",
)
TAKEN_OVER = KINDS[:4]
"""Those after which another proxy must take the logs."""
AFTERWARDS_S = 1.5


@dataclass
class Arena:
    """The tier of all rounds, and what they measured."""

    tier: Tier
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    outcomes: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory, rounds: int | None) -> Iterator[Arena]:
    logs, clients = FEW if rounds is None else MANY
    tier = Tier(tmp_path_factory.mktemp("proxy-rounds"), logs=logs, clients=clients, pause_s=0.1)
    try:
        tier.warm_up()
        played = Arena(tier)
        yield played
        show_times(played)
    finally:
        tier.close()


def show_times(arena: Arena) -> None:
    """How long logs were without an acknowledgement after each kind of fault. Shown, and not judged: no test asserts
    time."""
    print(f"\nseconds to the first acknowledgement; session timeout {SESSION_S} s; outcomes {dict(arena.outcomes)}")
    print(f"{'fault':<28} {'logs':>6} {'p50':>9} {'p99':>9} {'most':>9}")
    for kind in KINDS:
        if arena.times[kind]:
            print(row(kind, arena.times[kind]))


class Round:
    """One round: the fault that its seed decides."""

    def __init__(self, tier: Tier, seed: int) -> None:
        self.tier = tier
        turn, place = divmod(seed, len(KINDS))
        self.kind = KINDS[place] if turn == 0 else random.Random(f"turn {turn}").sample(KINDS, len(KINDS))[place]
        self.rng = random.Random(seed)
        self.proxy = self.rng.choice(PROXIES)
        self.where = self.proxy

    def begin(self) -> Callable[[], None]:
        """Break something; returns what mends it."""
        tier, proxy = self.tier, self.proxy
        if self.kind == "proxy killed":
            tier.processes[proxy].kill()
            return lambda: tier.start_proxy(proxy)
        if self.kind == "session ended":
            tier.expire(proxy)
            return lambda: None
        if self.kind == "proxy paused":
            tier.processes[proxy].signal(signal.SIGSTOP)
            return lambda: tier.processes[proxy].signal(signal.SIGCONT)
        if self.kind == "node killed":
            node = self.rng.randrange(len(NODES))
            self.where = NODES[node]
            tier.sandbox.kill_node(node)
            return lambda: tier.sandbox.start_node(node)
        others = {
            "proxy - zookeeper, long": (ZOOKEEPER,),
            "proxy - zookeeper, short": (ZOOKEEPER,),
            "proxy - clients": (self.rng.choice(CLIENTS),),
            "proxy - nodes": NODES,
            "proxy - one node": (self.rng.choice(NODES),),
        }[self.kind]
        self.where = f"{proxy} - {', '.join(others)}"
        for other in others:
            tier.cut(proxy, other)

        def mend() -> None:
            for other in others:
                tier.heal(proxy, other)

        return mend

    def lasts_s(self) -> float:
        """How long it is broken: as long as others need to take the logs, or less than that."""
        if self.kind in TAKEN_OVER or self.kind == "proxy - nodes":
            return SESSION_S + self.rng.uniform(0.7, 1.5)
        return self.rng.uniform(0.2, SESSION_S / 2)

    def affected(self) -> set[str]:
        return set(self.tier.logs) if self.kind == "node killed" else self.tier.owned_by(self.proxy)


def play(arena: Arena, seed: int) -> str:
    """One round; what it was like, in words."""
    tier, this = arena.tier, Round(arena.tier, seed)
    tier.go()
    time.sleep(this.rng.uniform(0.6, 1.0))  # the round's own time, not a synchronisation
    affected = this.affected()
    fault_s = now_s()
    mend = this.begin()
    try:
        time.sleep(this.lasts_s())
    finally:
        mend()
    tier.mend()
    mended_s = now_s()
    time.sleep(AFTERWARDS_S)
    told = tier.settle()
    tier.mend()
    found = tier.check()
    times = first_acknowledgements(told, affected, fault_s)
    behind = first_acknowledgements(told, tier.logs, mended_s)
    said = Counter(one.outcome for one in told)
    arena.outcomes += said
    arena.times[this.kind] += times.values()
    assert len(times) == len(affected), f"not written again: {sorted(affected - set(times))}"
    assert len(behind) > len(tier.logs) // 2, f"only {len(behind)} logs were written once all was mended"
    notes, tier.notes = tier.notes, []
    return (
        f"{this.kind} ({this.where}): {len(affected)} logs, again after {max(times.values(), default=0.0):.2f} s at "
        f"most; {dict(said)}; {found} records; {notes}"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_seed" not in metafunc.fixturenames:
        return
    one: int | None = metafunc.config.getoption("--seed")
    rounds: int | None = metafunc.config.getoption("--rounds")
    seeds = [one] if one is not None else list(range(DEFAULT_ROUNDS if rounds is None else rounds))
    metafunc.parametrize("round_seed", seeds)


def test_what_is_acknowledged_is_there_once_and_in_order(arena: Arena, round_seed: int) -> None:
    print(f"seed {round_seed}: {play(arena, round_seed)}")
