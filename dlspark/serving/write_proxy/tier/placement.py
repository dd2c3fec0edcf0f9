"""The placement of streams that no proxy owns: what is answered to a client that asks for the owner of such a stream.

    <namespace>/.server-load                  8 bytes: when the loads were computed, in milliseconds since the epoch
    <namespace>/.server-load/<host:port>      one proxy's load and its streams, in Thrift's JSON; a `/` is written `--`

Upstream's placement. The proxy with shard 0 leads: at intervals it has the load of every log of the namespace
appraised, gives the streams out, the heaviest first to the proxy with least, and writes down which got what. The others
watch that. A stream that is not in it goes to the proxy with the least load. Without such loads (they are switched off,
or none were written yet) streams go by consistent hashing, as clients send them.

A proxy that knows its region places streams in it, for as long as any proxy runs there: a log stays near its writers,
and where `dlspark regions move` has put it. Loads count the proxies of all regions alike, so they decide there only
about streams that they give to the region; others go by consistent hashing, as clients of that region send them.

Fault model: loads are hints. They may be old, name proxies that are gone, come from two leaders at a time, or be
damaged; a proxy that does not run is never named. The owner of a stream is decided by its lock alone.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dlspark.serving.process.membership import ProxyMember
from dlspark.serving.routing.hosts import ProxyHost, Route
from dlspark.serving.routing.own_region import OwnRegionFirst
from dlspark.serving.routing.ring import HostRing
from metadata.foundation.errors import CorruptDataError, NodeExistsError, NoNodeError
from metadata.retry import repeat
from metadata.store import (
    MAX_REQUEST_BYTES,
    Create,
    Delete,
    MetadataStore,
    Op,
    SetData,
    Watcher,
    join,
    name_of,
    request_bytes,
)

_LOG: Final = logging.getLogger(__name__)

SERVER_LOAD: Final = ".server-load"
LEADING_SHARD: Final = 0
REFRESH_S: Final = 120.0
"""The interval at which the leader computes loads."""
MAX_LOAD_BYTES: Final = 512 * 1024
"""Largest znode of one proxy's loads; its lightest streams are left out, and go to the proxy with the least load."""
MAX_PLACED: Final = 100_000
"""Streams outside of the loads whose proxy is remembered until the next ones; a stream's name comes from clients."""
MAX_STREAM_LOAD: Final = 2**31 - 1
_STAMP_BYTES: Final = 8


class StreamPlacement(Protocol):
    """Where does a stream belong that has no owner?"""

    def place(self, stream: str) -> str | None:
        """Return the location of a proxy that runs; None where none is known."""
        ...


# ---------------------------------------------------------------------- loads


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """The work that a stream is, in its appraiser's unit."""

    stream: str
    load: int


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The streams that are given to one proxy, named `host:port`."""

    server: str
    streams: tuple[StreamLoad, ...] = ()

    @property
    def load(self) -> int:
        """The load of all its streams."""
        return sum(one.load for one in self.streams)

    @property
    def node(self) -> str:
        """The name of its znode."""
        return self.server.replace("/", "--")

    def encode(self) -> bytes:
        """Return thrift's JSON of upstream's struct, with as many streams as fit; the heaviest first."""
        # The size is known before the text is joined: with a znode that is too large all loads would be refused.
        streams = sorted(self.streams, key=lambda one: (-one.load, one.stream))
        parts, size = [], 200 + 2 * len(self.server.encode())
        for one in streams:
            part = f'{{"1":{{"str":{_quoted(one.stream)}}},"2":{{"i32":{one.load}}}}}'
            size += len(part.encode()) + 1
            if size > MAX_LOAD_BYTES:
                break
            parts.append(part)
        if len(parts) < len(streams):
            left_out = len(streams) - len(parts)
            _LOG.warning("%s has %d streams: the %d lightest are not written", self.server, len(streams), left_out)
        items = ",".join(['"rec"', str(len(parts)), *parts])
        return f'{{"1":{{"str":{_quoted(self.server)}}},"2":{{"i64":{self.load}}},"3":{{"lst":[{items}]}}}}'.encode()

    @classmethod
    def decode(cls, data: bytes, path: str = "") -> ServerLoad:
        """Read the bytes of `encode`, or of upstream. Raises CorruptDataError."""
        try:
            value = json.loads(data)
            items = value["3"]["lst"] if "3" in value else ["rec", 0]
            if items[0] != "rec" or items[1] != len(items) - 2:
                raise ValueError("the list does not have the length that it says")
            return cls(_text(value["1"]["str"]), tuple(map(_stream_load, items[2:])))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise CorruptDataError(f"not a proxy's load: {error!r}", path=path) from error


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _stream_load(item: Mapping[str, Mapping[str, object]]) -> StreamLoad:
    load = item["2"]["i32"]
    if not isinstance(load, int) or isinstance(load, bool) or not 0 <= load <= MAX_STREAM_LOAD:
        raise ValueError(f"the load {load!r}")
    return StreamLoad(_text(item["1"]["str"]), load)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"the name {value!r}")
    return value


def given_out(servers: Iterable[str], streams: Iterable[StreamLoad]) -> tuple[ServerLoad, ...]:
    """Give each stream to a server: the heaviest first, each to the one that has least by then. Same in, same out."""
    given: dict[str, list[StreamLoad]] = {server: [] for server in sorted(set(servers))}
    if not given:
        return ()
    order = [(0, 0, server) for server in given]
    for one in sorted(streams, key=lambda one: (-one.load, one.stream)):
        load, count, server = order[0]
        given[server].append(one)
        heapq.heapreplace(order, (load + one.load, count + 1, server))
    return tuple(ServerLoad(server, tuple(found)) for server, found in given.items())


class LoadAppraiser(Protocol):
    """How much work is a stream?"""

    async def refresh(self) -> None:
        """Look again; called before the loads are computed. An appraiser that cannot keeps what it knows."""
        ...

    def load_of(self, stream: str) -> int:
        """Return a load from 0 to MAX_STREAM_LOAD."""
        ...


class EqualLoads:
    """How much work is a stream, where all are alike? Upstream's default."""

    async def refresh(self) -> None:
        """Note that nothing changes."""

    def load_of(self, stream: str) -> int:
        """Return 1."""
        return 1


# ---------------------------------------------------------------------- policies


class RingPlacement:
    """Where does a stream belong, without loads? By consistent hashing, as clients do it, over the proxies that run;
    as clients of the own region do it, where that is known."""

    def __init__(self) -> None:
        self._route: Route = HostRing()
        self._members: tuple[ProxyMember, ...] = ()
        self._running: dict[str, str] = {}
        self._gone: frozenset[str] = frozenset()

    def use_region(self, region: str) -> None:
        """Place streams in this region, for as long as any proxy of it runs."""
        # One ring a region: proxies of two regions that have the same number are both there.
        self._route = OwnRegionFirst(region, HostRing)
        self.use_members(self._members)

    def use_members(self, members: tuple[ProxyMember, ...]) -> None:
        """Note that these proxies run now; others are not named from here on."""
        self._members = members
        self._running = {str(one.endpoint): one.location for one in members}
        self._route.update([ProxyHost(str(one.endpoint), one.shard, region=one.region) for one in members], 0.0)
        self._gone = frozenset(self._route.addresses()) - self._running.keys()

    def place(self, stream: str) -> str | None:
        """See `StreamPlacement`."""
        address = self._route.pick(stream, 0.0, self._gone)
        return self._running[address] if address is not None else None


class LeastLoadPlacement:
    """Where does a stream belong, by load? Where it was given; else at the proxy with least; else as `otherwise` says.

    Among proxies of several regions, where the own one is known: at the proxy of this region to which it was given,
    else as `otherwise` says.

    Args:
        otherwise: for as long as there are no loads.
        load_of: the load of a stream that is not in the loads.
    """

    def __init__(self, otherwise: RingPlacement, load_of: Callable[[str], int]) -> None:
        self._otherwise = otherwise
        self._load_of = load_of
        self._loads: tuple[ServerLoad, ...] = ()
        self._region: str | None = None
        self._members: tuple[ProxyMember, ...] = ()
        self._running: dict[str, str] = {}
        self._given: dict[str, str] = {}
        self._order: list[tuple[int, str]] = []
        self._placed: OrderedDict[str, str] = OrderedDict()

    @property
    def loads(self) -> tuple[ServerLoad, ...]:
        """The loads that were given out last."""
        return self._loads

    @property
    def difference(self) -> int:
        """The highest load of a proxy less the lowest."""
        loads = [one.load for one in self._loads]
        return max(loads) - min(loads) if loads else 0

    def use_region(self, region: str) -> None:
        """Place streams in this region, for as long as any proxy of it runs."""
        self._region = region
        self._otherwise.use_region(region)
        self._begin()

    def use_members(self, members: tuple[ProxyMember, ...]) -> None:
        """Note that these proxies run now; others are not named from here on."""
        self._otherwise.use_members(members)
        self._members = members
        self._begin()

    def use_loads(self, loads: Iterable[ServerLoad]) -> None:
        """Note that these loads hold now. Streams that were placed outside of the ones before are forgotten."""
        self._loads = tuple(loads)
        self._begin()

    def _begin(self) -> None:
        near = [one for one in self._members if one.region == self._region] if self._region is not None else []
        self._running = {str(one.endpoint): one.location for one in near or self._members}
        living = [one for one in self._loads if one.server in self._running]
        self._given = {stream.stream: one.server for one in living for stream in one.streams}
        loads = {one.server: one.load for one in living}
        # A proxy that came since the loads were computed has none yet: it is where least is.
        self._order = [(loads.get(server, 0), server) for server in sorted(self._running)] if living else []
        if self._region is not None and any(one.region != self._region for one in self._members):
            # A stream that was given to another region must go where all of this one, and its clients, look for it.
            self._order = []
        heapq.heapify(self._order)
        self._placed.clear()

    def place(self, stream: str) -> str | None:
        """See `StreamPlacement`. A stream stays at the same proxy until loads or members change."""
        server = self._given.get(stream) or self._placed.get(stream) or self._least(stream)
        return self._running[server] if server is not None else self._otherwise.place(stream)

    def _least(self, stream: str) -> str | None:
        if not self._order:
            return None
        load, server = self._order[0]
        heapq.heapreplace(self._order, (load + self._load_of(stream), server))
        self._placed[stream] = server
        if len(self._placed) > MAX_PLACED:
            self._placed.popitem(last=False)
        return server


# ---------------------------------------------------------------------- what is written down


class LoadTable:
    """How does the leader hand its loads to the others? Writes and reads them, below the namespace's znode."""

    def __init__(self, store: MetadataStore, namespace_path: str) -> None:
        self._store = store
        self.path: Final = join(namespace_path, SERVER_LOAD)

    async def write(self, loads: Sequence[ServerLoad], now_ms: int) -> None:
        """Replace all loads; the stamp comes last, and those that watch it read then.

        Raises MetadataUnavailableError or an OutcomeUnknownError: a later write replaces what this one left.
        """
        stamp = now_ms.to_bytes(_STAMP_BYTES, "big", signed=True)
        await repeat(self._store, lambda: self._replace(loads, stamp))

    async def _replace(self, loads: Sequence[ServerLoad], stamp: bytes) -> None:
        try:
            there = set((await self._store.children(self.path))[0])
        except NoNodeError:
            try:
                await self._store.create(self.path, stamp, make_parents=True)
            except NodeExistsError:
                pass
            there = set((await self._store.children(self.path))[0])
        ops: list[Op] = []
        for one in loads:
            path = join(self.path, one.node)
            ops.append(SetData(path, one.encode(), -1) if one.node in there else Create(path, one.encode()))
        wanted = {one.node for one in loads}
        ops += [Delete(join(self.path, name)) for name in sorted(there - wanted)]
        ops.append(SetData(self.path, stamp, -1))
        for some in _within_requests(ops):
            await self._store.multi(some)

    async def read(self, heard: Watcher | None = None) -> tuple[ServerLoad, ...]:
        """Return the loads there are, without unreadable ones; `heard` is called when they have been replaced.

        Raises MetadataUnavailableError or an OutcomeUnknownError.
        """
        return await repeat(self._store, lambda: self._read(heard))

    async def _read(self, heard: Watcher | None) -> tuple[ServerLoad, ...]:
        # The watch is set before anything is read: loads that are replaced meanwhile are read once more.
        if await self._store.exists(self.path, heard) is None:
            return ()
        found = []
        try:
            names, _ = await self._store.children(self.path)
        except NoNodeError:
            return ()
        for name in names:
            path = join(self.path, name)
            try:
                data, _ = await self._store.get(path)
                found.append(ServerLoad.decode(data, path))
            except NoNodeError:
                continue
            except CorruptDataError as error:
                _LOG.warning("the load of %s is left out: %s", name_of(path), error)
        return tuple(found)

    async def written_ms(self) -> int | None:
        """Return when loads were written last, by the leader's clock; None where they never were, or not by this
        format."""
        try:
            data, _ = await repeat(self._store, lambda: self._store.get(self.path))
        except NoNodeError:
            return None
        return int.from_bytes(data, "big", signed=True) if len(data) == _STAMP_BYTES else None


def _within_requests(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Yield the operations in order, in as few requests as they fit into."""
    some: list[Op] = []
    for op in ops:
        if some and request_bytes([*some, op]) > MAX_REQUEST_BYTES:
            yield some
            some = []
        some.append(op)
    if some:
        yield some
