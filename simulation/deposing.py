"""`Deposing`: an owner loses its session, and with it its lock, in the middle of something, and is late from then on.

What protects a log from a deposed owner matters where its last change arrives after others have been at the log. So it
is far from the metadata store, or stands still, for a while from the moment in which its session ended.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.cluster import Client
    from simulation.roles import Roles

WITHIN_STEPS = 70
"""Callbacks within which that happens, and again until the owner stands still."""
STANDS_STILL_S = (0.02, 0.35)
FAR_SHARE = 0.7
"""Of the deposed ones, which are far away; the others stand still."""


class Deposing:
    """`point` is how the points of a run begin that tell of it."""

    def __init__(self, roles: Roles, point: str) -> None:
        self._roles = roles
        self._point = point

    def soon(self, client: Client, rng: Random) -> None:
        """Depose the client at one of its next callbacks."""
        self._trap(client, rng, partial(self._depose, client, rng))

    def _trap(self, client: Client, rng: Random, trap: partial[None]) -> None:
        if client.process is not None:
            client.process.at_step(rng.randint(1, WITHIN_STEPS), trap)

    def _depose(self, client: Client, rng: Random) -> None:
        """Its session ends, with nothing wrong otherwise; from then on it is late."""
        world = self._roles.world
        service = world.service
        if client.store is None or self._roles.over:
            return
        service.expire(client.store)
        if rng.random() < FAR_SHARE:
            world.reached(f"{self._point}-far")
            service.far(client.name)
        else:
            self._trap(client, rng, partial(self._stand_still, client, rng))

    def _stand_still(self, client: Client, rng: Random) -> None:
        if client.running and not self._roles.over:
            world = self._roles.world
            world.reached(f"{self._point}-stopped")
            client.pause()
            world.loop.call_later(rng.uniform(*STANDS_STILL_S), client.resume, context=world.context)
