"""`Operator`: plans what no client may notice: moves of logs, proxies that leave in order and come back or are emptied,
balancing. What comes of a plan is the proxies' to say; where nothing else is wrong, it must come out as planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from math import ceil
from random import Random

from dlspark.serving.client.client import AsyncClient
from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.write_proxy.tier.administration import (
    BalanceResult,
    accept_streams,
    distribution_of,
    run_balance,
    survey,
)
from dlspark.serving.write_proxy.tier.balancing import ClusterBalance
from metadata.foundation.errors import DistributedLogError
from simulation.environment.network import SimulatedNetwork
from simulation.tier import LOOK_S
from simulation.workloads.programs import HEALTHY_S
from simulation.workloads.thin_clients import ProxyWorkload, open_thin_client

SETTLED_S = 5.0
"""Within which logs that were moved are served, where nothing is wrong."""
Streams = Mapping[str, frozenset[str]]
"""By the location of their owner."""


class Operator:
    """One operator, with a thin client and connections to the proxies of its own."""

    def __init__(self, workload: ProxyWorkload, rng: Random) -> None:
        self._workload = workload
        self._world = workload.world
        self._tier = workload.tier
        self._rng = rng
        self._client: AsyncClient | None = None
        self._peers = ProxyPeers(SimulatedNetwork(self._world.fabric))
        self._machine = self._world.add_client("operator")

    async def begin(self) -> None:
        """Open a client of its own."""
        self._machine.start()
        opening = open_thin_client(self._tier, self._machine, {"requestTimeoutMs": 5_000})
        self._client = await self._machine.spawn(opening)

    async def end(self) -> None:
        """Close everything; proxies that were emptied take logs again."""
        if self._client is None:
            return
        await self._machine.spawn(self._accept_again())
        await self._machine.spawn(self._client.close())
        await self._machine.spawn(self._peers.close())
        await self._machine.spawn(self._machine.session.close())
        self._machine.kill()

    async def move(self) -> None:
        """Have a log moved to a proxy that is drawn; what comes of it is the proxies' to say."""
        log, target = self._rng.choice(self._workload.logs), self._rng.choice(self._tier.proxies)
        if self._client is None:
            return
        try:
            await self._machine.spawn(self._client.move(log, target.address))
            self._world.reached("proxy.moved")
        except DistributedLogError as error:
            self._world.reached(f"proxy.move-refused.{type(error).__name__}")

    async def restart(self) -> None:
        """Have one proxy leave in order, and wait until it is back and all know each other again."""
        machine = self._rng.choice(self._tier.proxies)
        if machine.serving:
            machine.leave()
            await asyncio.wait([machine.ended], timeout=HEALTHY_S)
            self._world.reached("proxy.restarted")
            await self._tier.all_serve()

    async def balance(self) -> None:
        """Balance the cluster, as `dlspark proxy balance` does."""
        await self._machine.spawn(self._balance())

    async def drain(self) -> None:
        """Empty one proxy, as `dlspark proxy drain` does, then have it take logs again."""
        await self._machine.spawn(self._drain())

    # ------------------------------------------------------------------------------------ in the operator's process

    def _members(self) -> list[ProxyMember]:
        return [one.proxy.member for one in self._tier.proxies if one.serving and one.proxy is not None]

    async def _look(self) -> Streams:
        return dict(distribution_of(await survey(self._peers, self._members())))

    async def _balance(self) -> None:
        before = await self._look()
        result = await run_balance(self._peers, ClusterBalance(before, rng=self._rng))
        self._world.reached("proxy.balanced" if result.moved else "proxy.was-balanced")
        if not self._as_planned(result):
            return
        after = await self._settled(_all_of(before))
        most = max(map(len, after.values()))
        # A log that no proxy had may have come to any of them meanwhile.
        if _all_of(after) == _all_of(before) and most > max(ceil(len(_all_of(after)) / len(after)), 1):
            self._world.ledger_checkers.fail(f"the cluster was balanced, and a proxy has {most} logs: {after}")

    async def _settled(self, logs: frozenset[str]) -> Streams:
        """Return who has what, once these logs are served: a proxy opens what it has taken."""
        deadline = self._world.loop.time() + SETTLED_S
        while not logs <= _all_of(found := await self._look()):
            if self._world.loop.time() > deadline:
                self._world.ledger_checkers.fail(
                    f"nothing was wrong, and not all of {sorted(logs)} are served: {found}"
                )
            await asyncio.sleep(LOOK_S)
        return found

    async def _drain(self) -> None:
        before, members = await self._look(), self._members()
        member = self._rng.choice(members) if members else None
        if member is None or member.location not in before or len(before) < 2:
            return
        try:
            await accept_streams(self._peers, member, enabled=False)
            balance = ClusterBalance(before, source=member.location, rng=self._rng)
            result = await run_balance(self._peers, balance)
            self._world.reached("proxy.drained")
            left = (await self._look()).get(member.location)
            # A log that no proxy had is perhaps just being opened.
            all_owned = sum(map(len, before.values())) == len(self._workload.logs)
            if self._as_planned(result) and all_owned and left:
                self._world.ledger_checkers.fail(f"{member.location} was emptied, and has {sorted(left)}")
            await accept_streams(self._peers, member, enabled=True)
        except DistributedLogError as error:
            self._world.reached(f"proxy.drain-refused.{type(error).__name__}")

    def _as_planned(self, result: BalanceResult) -> bool:
        """Return whether nothing stood in the way. Raises in a calm run where something did."""
        calm = self._workload.tier.checkers.calm
        if calm and result.failed:
            self._world.ledger_checkers.fail(f"nothing was wrong, and these moves failed: {result.failed}")
        return calm

    async def _accept_again(self) -> None:
        for member in self._members():
            again = partial(accept_streams, self._peers, member, enabled=True)
            await self._workload.patiently(f"having {member.location} take logs", again)


def _all_of(streams: Streams) -> frozenset[str]:
    return frozenset().union(*streams.values())
