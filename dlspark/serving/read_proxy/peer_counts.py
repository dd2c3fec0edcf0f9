"""`PeerCounts`: how many logs the other read proxies read, asked of them over frames, for `ReadBalance`.

Each is asked every `INTERVAL_S`, and `BUSY_S` after its last answer where this proxy has sent a client on since it was
asked: then old counts would send many logs to one proxy. Only proxies that announce that they answer are asked
(`membership.LOGS_READ`): one of an older release would take the question for a broken frame.

Fault model: a proxy may not answer, answer late, or go. Its count is then not known, from the moment at which its
connection ends or the answer is late on, until it answers again. Nothing waits for a peer but the one task that asks
it, and nothing here fails a proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.process.peers import ProxyPeers
from dlspark.serving.protocol.operations import Answer, Handshake, ProxyInfo, ProxyStatus
from dlspark.serving.read_proxy.balance import ReadBalance
from dlspark.serving.routing.hosts import ProxyHost
from metadata.foundation.tasks import end_tasks
from storage_node.edge import Network

INTERVAL_S: Final = 2.0
BUSY_S: Final = 0.1
ASKED_IN_A_SECOND: Final = 50
"""Of a thousand proxies each is asked every 20 s."""
ANSWER_TIMEOUT_MS: Final = 1_000
COUNT: Final = Handshake(ownerships=False, count_logs=True)


def count_in(answer: Answer) -> int | None:
    """Return the logs that a proxy reads; None for one that refuses, says no number, or is being stopped."""
    if not isinstance(answer, ProxyInfo) or answer.status is ProxyStatus.DOWN:
        return None
    return answer.logs_read


class PeerCounts:
    """Asks, from the first members until `close`; for one running loop."""

    def __init__(self, balance: ReadBalance, network: Network, own_address: str) -> None:
        """`own_address`: of the member that is left out, `host:port`."""
        self._balance = balance
        self._own_address = own_address
        self._peers = ProxyPeers(network, connect_timeout_ms=ANSWER_TIMEOUT_MS, on_lost=balance.lost)
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._all: dict[asyncio.Task[None], None] = {}
        """Those of proxies that are gone, too, until they have ended."""
        self._sent = asyncio.Event()
        """Set, and replaced, when a client was sent on."""
        balance.on_sent = self._client_sent

    def use_members(self, members: Iterable[ProxyMember]) -> None:
        """Note that these read proxies run now."""
        others = [one for one in members if one.frames is not None and str(one.endpoint) != self._own_address]
        self._balance.use_members(ProxyHost(str(one.endpoint), one.shard) for one in others)
        answering = dict.fromkeys(str(one.endpoint) for one in others if one.logs_read is not None)
        for address in [one for one in self._asking if one not in answering]:
            self._asking.pop(address).cancel()
        for address in answering:
            if address not in self._asking:
                task = self._asking[address] = asyncio.get_running_loop().create_task(self._ask(address))
                self._all[task] = None
                task.add_done_callback(self._all.pop)

    async def close(self) -> None:
        """Ask no more. Idempotent."""
        self._balance.on_sent = None
        self._asking.clear()
        await end_tasks(self._all, drop_errors=True)
        await self._peers.close()

    def _client_sent(self) -> None:
        sent, self._sent = self._sent, asyncio.Event()
        sent.set()

    async def _ask(self, address: str) -> None:
        while self._asking.get(address) is asyncio.current_task():
            sent = self._sent
            self._balance.asked(address)
            answer = await self._peers.call(address, COUNT, ANSWER_TIMEOUT_MS)
            self._balance.heard(address, count_in(answer))
            spacing_s = len(self._asking) / ASKED_IN_A_SECOND
            await asyncio.sleep(max(BUSY_S, spacing_s))
            try:
                await asyncio.wait_for(sent.wait(), max(INTERVAL_S, spacing_s))
            except asyncio.TimeoutError:
                pass
