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
from simulation.deposing import Deposing

if TYPE_CHECKING:
    from simulation.cluster import Client
    from simulation.life_workload import LifeWorkload
    from simulation.log_workload import SimulatedLog

DEPOSED_SHARE = 0.4
"""Of the truncations: their owner loses its session."""
AHEAD = 8
"""Records behind the log's begin, within which a rival truncates."""


class Rivals:
    """The rivals at one log."""

    def __init__(self, workload: LifeWorkload, log: SimulatedLog) -> None:
        self._workload = workload
        self._log = log
        self._deposing = Deposing(workload, "life.rival")

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
                    self._deposing.soon(client, rng)
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
