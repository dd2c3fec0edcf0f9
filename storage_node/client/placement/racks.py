"""Where bookies are: network locations, asked of a resolver once for each bookie, and kept (`RackMap`).

A location is `/rack`, or `/region/rack`, of which the whole counts as the rack and the first part as the region
(`region_of`). A bookie whose location is not known is in the default rack, together with all others of that kind.

A resolver says where a host is, from a script, from the host's own name (by racks or by rows), or from a fixed table:

    script    networkTopologyScriptFileName: addresses as arguments, one location for each on standard output
    racks     (region)-(rack)-xxx-xxx.domain    -> /(region)/(rack)
    rows      (region)-(row)xx-xxx-xxx.domain   -> /(region)/(row)     the row is two characters, as upstream reads it

What bookies say of themselves is another kind of map (`announced`).

Scripts and look-ups of names run beside the loop and within a time limit. A resolver answers None for a host that it
cannot place, and raises RackResolutionError where it could not do its work at all.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from metadata.bookkeeper.bookies import BookieAddress
from metadata.foundation.errors import CallerError, DistributedLogError
from storage_node.client.health import Timer
from storage_node.errors import RackResolutionError
from storage_node.settings.placement import PlacementSettings

_LOG: Final = logging.getLogger(__name__)

DEFAULT_RACK: Final = "/default-rack"
DEFAULT_RACKS: Final = frozenset({DEFAULT_RACK, "/default-region/default-rack", "/default-region/default-row"})
MAX_DEPTH: Final = 2
RETRY_S: Final = 60.0
"""A bookie whose location could not be had is asked for again after this."""
MAX_REMEMBERED: Final = 10_000
"""Bookies whose location is kept; beyond this those that were not seen for longest are forgotten."""


def normal_location(text: str) -> str | None:
    """Return `/rack` or `/region/rack` without a trailing slash; None where the text is neither."""
    parts = text.strip().rstrip("/").split("/")
    if parts[0] or not 1 <= len(parts) - 1 <= MAX_DEPTH or not all(parts[1:]):
        return None
    return "/".join(parts)


def is_default(location: str) -> bool:
    """Return whether it stands for "not known"."""
    return location in DEFAULT_RACKS


def region_of(location: str) -> str | None:
    """Return `region` of `/region/rack`; None for a location without a region, and where it is not known."""
    parts = location.split("/")
    return None if is_default(location) or len(parts) != MAX_DEPTH + 1 or not all(parts[1:]) else parts[1]


@dataclass(slots=True)
class _Place:
    host: str
    location: str | None
    """None: the resolver could not say."""
    ask_again: float
    """Loop time; only where there is no location."""


class RackMap:
    """The locations of the bookies that were looked up; lives on one loop. `region` is this process's own, where it was
    said (`said_region`); else it is the resolver's to say."""

    def __init__(self, resolver: RackResolver, timer: Timer, region: str = "") -> None:
        self._resolver = resolver
        self._timer = timer
        self._said_region = region or None
        self._places: dict[str, _Place] = {}  # least recently seen first
        self._present: frozenset[str] = frozenset()
        self._doubted: set[str] = set()  # known by what was said before `forget`
        self._own: str | None = None
        self._own_known = False
        self._ask_own_again = 0.0
        self._lock = asyncio.Lock()
        self.error: DistributedLogError | None = None
        """Why the last look-up failed, if it did."""

    def rack_of(self, bookie: str) -> str:
        """Return its location, or the default rack."""
        place = self._places.get(bookie)
        return DEFAULT_RACK if place is None or place.location is None else place.location

    def region_of(self, bookie: str) -> str | None:
        """Return its region, None where no location with a region is known."""
        return region_of(self.rack_of(bookie))

    def is_known(self, bookie: str) -> bool:
        """Return whether a resolver placed it."""
        place = self._places.get(bookie)
        return place is not None and place.location is not None and not is_default(place.location)

    async def see(self, writable: Sequence[BookieAddress], also: Iterable[BookieAddress] = ()) -> None:
        """Learn where these bookies are. A bookie that was away, or has another host, is looked up anew.

        `also` are bookies by the addresses in their ids, which count only where they are not writable. Never fails: a
        bookie that cannot be placed is in the default rack.
        """
        async with self._lock:
            now = self._timer.time()
            present = frozenset(address.bookie_id for address in writable)
            joined = present - self._present
            wanted = [address for address in writable if self._is_due(address, now, address.bookie_id in joined)]
            # A registered bookie's id may name another host than its registration does; the registration counts.
            wanted += [
                address
                for address in also
                if address.bookie_id not in present
                and (address.bookie_id not in self._places or address.bookie_id in self._doubted)
            ]
            if wanted:
                await self._look_up(wanted)
            self._present = present
            for address in writable:
                self._places[address.bookie_id] = self._places.pop(address.bookie_id)
            for bookie in list(self._places)[: max(0, len(self._places) - MAX_REMEMBERED)]:
                if bookie not in self._present:
                    del self._places[bookie]

    async def own_rack(self) -> str | None:
        """Return this client's own rack, None where it is not known. Asked for once."""
        async with self._lock:
            if not self._own_known:
                try:
                    location = await self._resolver.own_location()
                except DistributedLogError as error:
                    self.error = error
                    _LOG.warning("this host's own rack is not known: %s", error)
                    location = None
                found = normal_location(location) if location is not None else None
                self._own = None if found is None or is_default(found) else found
                self._own_known = True
            return self._own

    async def own_region(self) -> str | None:
        """Return this client's own region, None where it is not known: what was said, else what the resolver says.
        Asks again while it is not known: a process without a storage node beside it may be placed later than it starts.
        """
        if self._said_region is not None:
            return self._said_region
        now = self._timer.time()
        if self._own is None and self._own_known and now >= self._ask_own_again:
            self._own_known = False
        if not self._own_known:
            self._ask_own_again = now + RETRY_S
        own = await self.own_rack()
        return None if own is None else region_of(own)

    def ask_again(self) -> None:
        """Ask again for all bookies that have no location when they are next seen, however lately that was tried."""
        for bookie in [bookie for bookie, place in self._places.items() if place.location is None]:
            del self._places[bookie]

    def forget(self) -> None:
        """Look every rack up again when it is next needed: they have changed."""
        self._present = frozenset()
        self._doubted = set(self._places)  # also of nodes that are away: they are replaced by where they are
        self._own_known = False

    def _is_due(self, address: BookieAddress, now: float, joined: bool) -> bool:
        place = self._places.get(address.bookie_id)
        if place is None or joined or place.host != address.host:
            return True
        return place.location is None and now >= place.ask_again

    async def _look_up(self, wanted: Sequence[BookieAddress]) -> None:
        hosts = sorted({address.host for address in wanted})
        found: dict[str, str] = {}
        try:
            answers = await self._resolver.locations(hosts)
        except DistributedLogError as error:
            self.error = error
            _LOG.warning("the racks of %d storage nodes are not known: %s", len(wanted), error)
        else:
            self.error = None
            for host, answer in zip(hosts, answers, strict=True):
                location = normal_location(answer) if answer is not None else None
                if location is not None:
                    if not is_default(location):  # "not known", which is asked again later
                        found[host] = location
                elif answer is not None:
                    _LOG.warning("%r, given for %s, is not a network location: it counts as not known", answer, host)
        ask_again = self._timer.time() + RETRY_S
        self._doubted.difference_update(address.bookie_id for address in wanted)
        for address in wanted:
            location = found.get(address.host)
            former = self._places.get(address.bookie_id)
            if location is None and former is not None and former.host == address.host:
                location = former.location  # a resolver that fails for a while moves no bookie
            self._places[address.bookie_id] = _Place(address.host, location, ask_again)


# ------------------------------------------------------------------------------------ resolvers

SCRIPT_TIMEOUT_S: Final = 10.0
NAME_TIMEOUT_S: Final = 1.0
_LABELS: Final = 4
_ROW_CHARACTERS: Final = 2


class RackResolver(Protocol):
    """Asked when racks are needed: once for each bookie, again when it comes back or has another host."""

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        """Return one location for each host, None where none is known. Raises RackResolutionError."""
        ...

    async def own_location(self) -> str | None:
        """Return where this process is. Raises RackResolutionError."""
        ...


class HostNames(Protocol):
    """How does a resolver ask the name service?"""

    def own(self) -> str:
        """Return this host's name."""
        ...

    async def address_of(self, host: str) -> str | None:
        """Return an IP address of the host, None where none is found in time."""
        ...

    async def name_of(self, host: str) -> str | None:
        """Return the name of a host given by address (or name: itself), None where none is found in time."""
        ...


class SystemHostNames:
    """The machine's name service; what it does not answer within NAME_TIMEOUT_S counts as unknown."""

    def own(self) -> str:
        """Return this host's name, as the operating system has it."""
        return socket.gethostname()

    async def address_of(self, host: str) -> str | None:
        """Return an IP address of the host, the host itself if it is one; None where it cannot be resolved within
        NAME_TIMEOUT_S."""
        if _ip(host) is not None:
            return host
        look_up = asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.wait_for(look_up, NAME_TIMEOUT_S)
        except (OSError, UnicodeError, asyncio.TimeoutError):
            return None
        return str(found[0][4][0]) if found else None

    async def name_of(self, host: str) -> str | None:
        """Return the host's name by reverse look-up, the host itself if it is a name; None for loopback addresses and
        where none is found within NAME_TIMEOUT_S."""
        address = _ip(host)
        if address is None:
            return host
        if address.is_loopback:
            return None  # "localhost" names no rack; not worth a question
        look_up = asyncio.get_running_loop().getnameinfo((host, 0), socket.NI_NAMEREQD)
        try:
            name, _ = await asyncio.wait_for(look_up, NAME_TIMEOUT_S)
        except (OSError, UnicodeError, asyncio.TimeoutError):
            return None
        return name


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class UnknownRacks:
    """No rack is known: every bookie is in the default one."""

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        """Return None for each host."""
        return [None] * len(hosts)

    async def own_location(self) -> str | None:
        """Return None: this process is in the default rack, too."""
        return None


class StaticResolver:
    """A fixed table of host (name or address as registered) to location; for programs, and for tests."""

    def __init__(self, table: Mapping[str, str], own: str | None = None) -> None:
        self._table = table
        self._own = own

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        """Return what the table has for each host, else None."""
        return [self._table.get(host) for host in hosts]

    async def own_location(self) -> str | None:
        """Return what the table's owner gave for this process."""
        return self._own


# ------------------------------------------------------------------------------------ names


def parse_overrides(text: str) -> dict[str, str]:
    """Read `host:region;host:region` as a mapping. Raises CallerError."""
    table: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(";"))):
        host, _, region = (part.strip() for part in pair.partition(":"))
        if not host or not region or ":" in region or "/" in region:
            raise CallerError(
                f"dnsResolverOverrides: {pair!r} is not a pair of a host and its region",
                advice="Write host:region, several of them separated by semicolons",
            )
        table.setdefault(host, region)
    return table


class HostNameResolver:
    """Region and rack (or row) are parts of the host's name; `overrides` give some hosts another region."""

    def __init__(self, overrides: Mapping[str, str], *, rows: bool = False, names: HostNames | None = None) -> None:
        self._overrides = overrides
        self._rows = rows
        self._names = names or SystemHostNames()

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        """Look up the names of all hosts at once and read the locations from them; None for a host without a name, or
        with one that is built otherwise."""
        names = await asyncio.gather(*map(self._names.name_of, hosts))
        return [None if name is None else self.location_of(name) for name in names]

    async def own_location(self) -> str | None:
        """Return what this host's name says; None where it is built otherwise."""
        return self.location_of(self._names.own())

    def location_of(self, name: str) -> str | None:
        """Return what the name says, None where it is built otherwise."""
        host = name.split(".", 1)[0]
        labels = host.split("-")
        if len(labels) != _LABELS or not all(labels[:2]):
            return None
        region = self._overrides.get(name) or self._overrides.get(host) or labels[0]
        return f"/{region}/{labels[1][:_ROW_CHARACTERS] if self._rows else labels[1]}"


# ------------------------------------------------------------------------------------ script

ScriptRunner = Callable[[Sequence[str]], Awaitable[str]]
"""Runs a command line and returns its standard output. Raises RackResolutionError."""


async def run_script(command: Sequence[str], *, timeout_s: float = SCRIPT_TIMEOUT_S) -> str:
    """Run a program beside the loop; after `timeout_s` it is killed with all it started."""
    return await asyncio.get_running_loop().run_in_executor(None, partial(_run, command, timeout_s))


def _run(command: Sequence[str], timeout_s: float) -> str:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise RackResolutionError(
            f"the topology script does not start: {error}",
            path=command[0],
            advice="See that networkTopologyScriptFileName names a program that may be executed",
        ) from error
    with process:
        try:
            output, complaint = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is still its own
            raise RackResolutionError(
                f"the topology script had not ended after {timeout_s:g} s", path=command[0]
            ) from None
    if process.returncode != 0:
        raise RackResolutionError(
            f"the topology script ended with status {process.returncode}: {complaint.strip()[:200]}", path=command[0]
        )
    return output


class ScriptResolver:
    """Asks a program, with up to `names_per_call` addresses a call."""

    def __init__(
        self,
        script: str,
        *,
        names_per_call: int = 100,
        names: HostNames | None = None,
        run: ScriptRunner = run_script,
    ) -> None:
        self._script = script
        self._names_per_call = names_per_call
        self._names = names or SystemHostNames()
        self._run = run
        self._runs: dict[tuple[str, ...], asyncio.Future[str]] = {}

    async def locations(self, hosts: Sequence[str]) -> Sequence[str | None]:
        """Resolve the hosts' addresses and run the script for them. Raises RackResolutionError where the script fails,
        takes longer than its limit, or prints another number of locations."""
        addresses = await asyncio.gather(*map(self._names.address_of, hosts))
        asked = [address or host for address, host in zip(addresses, hosts, strict=True)]
        found: list[str | None] = []
        for start in range(0, len(asked), self._names_per_call):
            found += await self._ask(asked[start : start + self._names_per_call])
        return found

    async def own_location(self) -> str | None:
        """Return what the script prints for this host. Raises RackResolutionError."""
        return (await self.locations([self._names.own()]))[0]

    async def _ask(self, addresses: Sequence[str]) -> list[str]:
        answers = (await self._answer_for(tuple(addresses))).split()
        if len(answers) != len(addresses):
            raise RackResolutionError(
                f"the topology script gave {len(answers)} locations for {len(addresses)} addresses",
                path=self._script,
                advice="It must print one for each argument, separated by white space",
            )
        return answers

    async def _answer_for(self, addresses: tuple[str, ...]) -> str:
        """Return what the script says. A caller that gives up waiting finds its answer the next time: an ensemble
        change has little time, and would otherwise run a slow script in vain again and again."""
        running = self._runs.get(addresses)
        if running is None:
            running = self._runs[addresses] = asyncio.ensure_future(self._run([self._script, *addresses]))
            running.add_done_callback(_seen)
        try:
            return await asyncio.shield(running)
        finally:
            if running.done():
                self._runs.pop(addresses, None)


def _seen(ended: asyncio.Future[str]) -> None:
    """Mark a failure as seen where no caller waits for it any more; asyncio would log it as never retrieved."""
    if not ended.cancelled():
        ended.exception()


def resolver_of(settings: PlacementSettings, names: HostNames | None = None) -> RackResolver:
    """Return the resolver that the settings name. Raises CallerError for overrides that cannot be read, and for
    locations that bookies announce, which take no resolver."""
    if settings.resolver == "announced":
        raise CallerError(
            f"{settings.named('reppDnsResolverClass')}=announced, and this client was not given where nodes announce "
            "their locations",
            advice="Give the ledger client the cluster's TopologyStore",
        )
    if settings.resolver != "script":
        overrides = parse_overrides(settings.dns_resolver_overrides)
        return HostNameResolver(overrides, rows=settings.resolver == "rows", names=names)
    if not settings.network_topology_script_file_name:
        return UnknownRacks()
    return ScriptResolver(
        settings.network_topology_script_file_name,
        names_per_call=settings.network_topology_script_number_args,
        names=names,
    )
