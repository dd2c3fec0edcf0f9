"""`ReadBalance`: where a log is to be read that a proxy does not read yet, so that none reads much more than its share.

Clients ask the proxy that a log's hash gives, and know of each other nothing. So the bound over all of them is kept by
the proxies, each of which knows how many logs it reads, and about how many the others do (consistent hashing with
bounded loads, Mirrokni, Thorup and Zadimoghaddam, 2016, as clients have it for their own logs in `BoundedRing`):

    read here already                       serve it: a log stays where it is read
    room here                               serve it: less than `ceil(balance * (logs read by all + 1) / proxies)`
    sent on before                          the same proxy again, where it has room, or was sent the log just now
    else                                    the first proxy behind the log's hash that has room

A client is sent on once. One that says that it asked another proxy is served: that one sent it, or could not be
reached, or refused. So no client goes in circles, and no log is unreadable for the bound. A client of gRPC that does
not say which proxy it asked is known again by its connection.

The count of another proxy is what it said last, and the logs that were sent to it since it was asked. One that has not
said a number, or whose connection ended, is left out: of the sum, of the proxies, and of those that logs are sent to.
Where none is known there is no bound.

Fault model: counts are as old as the last answer, and each proxy may see others. Proxies that send logs to the same one
at the same time may fill it a little above the bound. Nothing is decided twice: what is read stays. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dlspark.serving.routing.hosts import ProxyHost, address_of
from dlspark.serving.routing.ring import HostRing

MAX_SENT: Final = 20_000
"""Logs, and clients of gRPC, of which it is remembered where they were sent."""
SENT_S: Final = 10.0
"""How long a proxy is taken to read a log that was sent to it, at least."""
MOST_TRIED: Final = 1
"""Proxies that a client may have asked before and be sent on all the same, where none of them runs as far as is known
here. It is a bound for proxies that know different ones."""
BACK_S: Final = 10.0
"""A client of gRPC that asks for a log again so soon does not follow."""
_K = TypeVar("_K")
_V = TypeVar("_V")


class _Remembered(Generic[_K, _V]):
    """A bounded dictionary; what was put in longest ago goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[_K, _V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: _K, value: _V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]

    def get(self, key: _K) -> _V | None:
        return self._values.get(key)

    def drop(self, key: _K) -> None:
        self._values.pop(key, None)


@dataclass(slots=True)
class _Peer:
    """Another read proxy."""

    host: ProxyHost
    count: int | None = None
    """How many logs it reads; None: not known."""
    sent: int = 0
    """Logs that were sent there, which its count need not have yet."""
    sent_before: int = 0
    """How many of them were sent before it was asked last."""

    @property
    def load(self) -> int:
        return (self.count or 0) + self.sent


def any_host(_host: ProxyHost) -> bool:
    """Return for a client that can ask every proxy."""
    return True


class ReadBalance:
    """Decides, for one proxy, whether a log is to be read there. Times are seconds that never go back, of one clock.

    Args:
        balance: how far above its share a proxy may be, 1 or more; 0: without a bound.
        sent_s: how long a proxy is sure to read what it was sent, which is what it reads a log on for without readers.
        max_sent: logs, and clients of gRPC, of which it is remembered where they were sent.
    """

    def __init__(self, balance: float, *, sent_s: float = SENT_S, max_sent: int = MAX_SENT) -> None:
        self.on_sent: Callable[[], None] | None = None
        """Called when a client was sent to another proxy: counts matter now."""
        self._balance = balance
        self._sent_s = sent_s
        self._peers: dict[str, _Peer] = {}
        self._ring = HostRing()
        self._sent: _Remembered[str, tuple[str, float]] = _Remembered(max_sent)
        """Log to the address that it was sent to, and when."""
        self._clients: _Remembered[tuple[str, str], float] = _Remembered(max_sent)
        """Connections of gRPC and logs, and when they were sent on."""

    # ------------------------------------------------------------------ what is known

    def use_members(self, hosts: Iterable[ProxyHost]) -> None:
        """Note that these are all other read proxies. What is not new keeps its count."""
        before, self._peers = self._peers, {}
        for host in hosts:
            known = before.get(host.address)
            self._peers[host.address] = known if known is not None and known.host == host else _Peer(host)
        self._ring.update([peer.host for peer in self._peers.values()], 0.0)

    def asked(self, address: str) -> None:
        """Note that a proxy is asked for its count now."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.sent_before = peer.sent

    def heard(self, address: str, count: int | None) -> None:
        """Note that it answered so; None: it did not, or said no number."""
        peer = self._peers.get(address)
        if peer is None:
            return
        # What was sent before the question is in the answer; what was sent since may not be, and counts on.
        peer.sent = 0 if count is None else peer.sent - peer.sent_before
        peer.sent_before = 0
        peer.count = count

    def lost(self, address: str) -> None:
        """Note that the connection to a proxy ended."""
        self.heard(address, None)

    def counts(self) -> dict[str, int]:
        """Return what is known of other proxies, by address."""
        return {address: peer.load for address, peer in self._peers.items() if peer.count is not None}

    # ------------------------------------------------------------------ the decision

    def elsewhere(
        self,
        stream: str,
        reads: int,
        tried: Collection[str],
        now: float,
        *,
        usable: Callable[[ProxyHost], bool] = any_host,
        client: str | None = None,
    ) -> str | None:
        """Return the location of the proxy that is to read `stream`; None: it is read here, where it is not yet.

        `reads`: the logs that are read here. `tried`: locations that the client asked before. `usable`: whether the
        client can ask a proxy. `client`: its connection, where it may not say which proxy it asked.
        """
        known = {address: peer for address, peer in self._peers.items() if peer.count is not None}
        asked = {address_of(one) for one in tried}
        # A client that was at a proxy which is known to run was sent here by it: sent on again, it would go in circles.
        if not self._balance or not known or len(asked) > MOST_TRIED or not asked.isdisjoint(known):
            return None
        if client is not None:
            sent_on = self._clients.get((client, stream))
            if sent_on is not None and now - sent_on < BACK_S:
                self._clients.drop((client, stream))
                return None
        found = self._choose(stream, reads, known, usable, now)
        if found is None:
            return None
        self._sent.put(stream, (found.host.address, now))
        if client is not None:
            self._clients.put((client, stream), now)
        if self.on_sent is not None:
            self.on_sent()
        return found.host.location

    def _choose(
        self, stream: str, reads: int, known: dict[str, _Peer], usable: Callable[[ProxyHost], bool], now: float
    ) -> _Peer | None:
        total = reads + sum(peer.load for peer in known.values())
        room = math.ceil(self._balance * (total + 1) / (len(known) + 1))
        address, sent_at = self._sent.get(stream) or ("", 0.0)
        before = known.get(address)
        if before is not None and usable(before.host):
            if now - sent_at < self._sent_s:
                return before  # It reads the log: that is one log for however many clients.
            if before.load < room:
                before.sent += 1
                return before
        if reads < room:
            return None
        for address in self._ring.following(stream):
            peer = known.get(address)
            if peer is not None and peer.load < room and usable(peer.host):
                peer.sent += 1
                return peer
        return None
