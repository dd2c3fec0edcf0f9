"""`Rivals`: two keepers of a log that truncate it little by little, and lose its lock in the middle of that.

What the lock's check in a transaction is for takes a coincidence: an owner has lost its session, and with it the lock;
on a new session it reads the list once more, as after any lost answer, and its change takes long to arrive. By then
somebody else has truncated the same segment further. So rivals lose their sessions on the way, and are far from the
metadata store, or stand still, for a while from then on.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from dlspark.core.codec.dlsn import DLSN

if TYPE_CHECKING:
    from dlspark.testing.simulation.cluster import Client
    from dlspark.testing.simulation.life_workload import LifeWorkload
    from dlspark.testing.simulation.log_workload import SimulatedLog

DEPOSED_SHARE = 0.4
"""Of the truncations: their owner loses its session."""
WITHIN_STEPS = 70
"""Callbacks within which that happens, and again until the owner stands still."""
STANDS_STILL_S = (0.02, 0.35)
FAR_SHARE = 0.7
"""Of the deposed ones, which are far away; the others stand still."""
DISTANCE_S = (0.03, 0.2)
FAR_FOR_S = 0.8
AHEAD = 8
"""Records behind the log's begin, within which a rival truncates."""


class Rivals:
    """The rivals at one log."""

    def __init__(self, workload: LifeWorkload, log: SimulatedLog) -> None:
        self._workload = workload
        self._log = log

    def start_programs(self) -> None:
        for index in range(2):
            self._workload.add_role(f"rival{index}-{self._log.name}", self._truncate)

    async def _truncate(self, client: Client) -> None:
        workload = self._workload
        rng = workload.world.rng(f"rival/{client.name}/{client.runs}/{workload.opened}")
        namespace = await workload.open_namespace(self._log, client)
        try:
            handle = await namespace.open_log(self._log.name)
            while not workload.over:
                await asyncio.sleep(rng.uniform(0, 0.05))
                if rng.random() < DEPOSED_SHARE:
                    self._trap(client, rng, partial(self._depose, client, rng))
                await workload.truncate_at(
                    partial(handle.truncate, client_id=client.name), handle.name, self._ahead(rng)
                )
        finally:
            await workload.close_namespace(namespace)

    def _ahead(self, rng: Random) -> DLSN:
        """A record that is not hidden yet, near to the begin: most of its segment stays."""
        checkers = self._workload.life_checkers
        point = checkers.begin_of(checkers.truth(self._log.name))
        left = sorted(dlsn for dlsn in checkers.truth(self._log.name).at if dlsn >= point)
        return rng.choice(left[:AHEAD]) if left else DLSN.INITIAL

    def _trap(self, client: Client, rng: Random, trap: partial[None]) -> None:
        if client.process is not None:
            client.process.at_step(rng.randint(1, WITHIN_STEPS), trap)

    def _depose(self, client: Client, rng: Random) -> None:
        """Its session ends, with nothing wrong otherwise; from then on it is late."""
        service = self._workload.world.service
        if client.store is None or self._workload.over:
            return
        service.expire(client.store)
        if rng.random() < FAR_SHARE:
            self._workload.world.reached("life.rival-far")
            service.slow[client.name] = rng.uniform(*DISTANCE_S) / service.latency_s
            service.loop.call_later(
                FAR_FOR_S, service.slow.pop, client.name, None, context=self._workload.world.context
            )
        else:
            self._trap(client, rng, partial(self._stand_still, client, rng))

    def _stand_still(self, client: Client, rng: Random) -> None:
        if client.running and not self._workload.over:
            world = self._workload.world
            world.reached("life.rival-stopped")
            client.pause()
            world.loop.call_later(rng.uniform(*STANDS_STILL_S), client.resume, context=world.context)
