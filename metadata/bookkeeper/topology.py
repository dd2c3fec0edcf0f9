"""`TopologyStore`: where the storage nodes of a cluster are, as they announce it, and which regions take no new data.

    <root>/underreplication/topology
        {"v":1,"nodes":{"host:port":"/eu/r1"},"regions":{"eu":{"disallowed":true}}}

Only software of this project reads it. It lies where Apache BookKeeper never looks, and goes where the cluster goes
(docs/reference/znodes.md#topology). Every change is conditional on the version that was read (I2), and sets one entry:
it may be repeated after a lost answer, because what it finds done it leaves alone. A node that does not run keeps its
entry: what is known of the copies on it is needed most while it is away.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from metadata.bookkeeper.bookies import check_bookie_id
from metadata.bookkeeper.ledgers import DEFAULT_ROOT
from metadata.bookkeeper.replication import FOLDER
from metadata.foundation.errors import BadVersionError, CallerError, CorruptDataError, NodeExistsError, NoNodeError
from metadata.foundation.regions import region_named
from metadata.retry import repeat
from metadata.store import MetadataStore, SessionState, WatchEvent, check_path, join

_NAME: Final = "topology"
_VERSION: Final = 1
_PART: Final = r"[^/;\s]+"  # as `region_named` has it
_LOCATION: Final = re.compile(f"/{_PART}(?:/{_PART})?")
_MAX_TRIES: Final = 500
"""Of each try that fails another process's has succeeded: as many nodes may be started at once."""
_MAX_PAUSE_S: Final = 0.5


def check_location(location: str, what: str) -> None:
    """Raise CallerError unless the text is `/rack` or `/region/rack`; `what` names the setting."""
    if not _LOCATION.fullmatch(location):
        raise CallerError(
            f"{what}={location!r} is not a network location",
            advice="Write /region/rack, or /rack; names without white space, semicolons and slashes",
        )


def check_region(region: str) -> None:
    """Raise CallerError unless the text may be a region's name."""
    if not region_named(region, "region"):
        raise CallerError(
            "no region is named", advice="It is the first part of a network location, `eu` of `/eu/rack1`"
        )


@dataclass(frozen=True, slots=True)
class Topology:
    """Where is each storage node, and which regions take no new data? `version` is the znode's; -1: there is none."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    """Location by bookie id, of those that announced one; also of nodes that do not run."""
    disallowed: frozenset[str] = frozenset()
    version: int = -1

    def location_of(self, bookie_id: str) -> str | None:
        """Return the location that a bookie announced last, None where it never did."""
        return self.nodes.get(bookie_id)

    def encode(self) -> bytes:
        """Return the text of the znode: the same for the same topology."""
        regions = {region: {"disallowed": True} for region in sorted(self.disallowed)}
        fields = {"v": _VERSION, "nodes": dict(sorted(self.nodes.items())), "regions": regions}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")

    @classmethod
    def decode(cls, data: bytes, path: str, version: int = -1) -> Topology:
        """Read the znode's text. Raises CorruptDataError, also for one of a later version: a change by software that
        does not know all of its fields would lose them."""
        try:
            fields: Any = json.loads(data.decode("utf-8"))
        except ValueError as error:
            raise _corrupt_error(f"it is not JSON: {error}", path) from error
        if not isinstance(fields, dict) or fields.get("v") != _VERSION:
            raise _corrupt_error(f"it is not of version {_VERSION}", path)
        nodes, regions = fields.get("nodes"), fields.get("regions")
        if set(fields) != {"v", "nodes", "regions"} or not isinstance(nodes, dict) or not isinstance(regions, dict):
            raise _corrupt_error("its fields are not v, nodes and regions", path)
        for bookie_id, location in nodes.items():
            if not isinstance(location, str) or not _LOCATION.fullmatch(location):
                raise _corrupt_error(f"{location!r}, of {bookie_id}, is not a network location", path)
        for region, what in regions.items():
            known = isinstance(what, dict) and set(what) <= {"disallowed"}
            if not known or not isinstance(what.get("disallowed", False), bool):
                raise _corrupt_error(f"what it says of region {region} is not known here", path)
        disallowed = frozenset(region for region, what in regions.items() if what.get("disallowed", False))
        return cls(MappingProxyType(nodes), disallowed, version)


def _corrupt_error(why: str, path: str) -> CorruptDataError:
    return CorruptDataError(
        f"the topology of the storage nodes cannot be read: {why}",
        path=path,
        advice="Was it written by a later release, or by hand? Nothing was changed. Software that knows its form reads "
        "it; where none does, delete the znode, disallow regions again, and restart the nodes one after the other",
    )


def _last_region_error(region: str, disallowed: Collection[str]) -> CallerError:
    others = f"; disallowed already: {', '.join(sorted(disallowed))}" if disallowed else ""
    return CallerError(
        f"no other region than {region} could take new copies, so that no ledger could be made any more{others}. "
        "Nothing was changed",
        advice="Allow another region first (dlspark regions allow), or start storage nodes in one",
    )


class TopologyStore:
    """Where is each storage node of a cluster, and which regions are disallowed?

    Args:
        store: the session.
        root: the znode of the cluster's ledgers; the cluster must be initialised.
        rng: draws the pauses between tries that meet each other.
    """

    def __init__(self, store: MetadataStore, root: str = DEFAULT_ROOT, *, rng: random.Random | None = None) -> None:
        check_path(root)
        self._store = store
        self._root = root
        self._path = join(root, FOLDER, _NAME)
        self._rng = rng or random.Random()
        self._keeping = False
        self._kept: Topology | None = None

    @property
    def path(self) -> str:
        """The znode."""
        return self._path

    def keep(self) -> None:
        """Read the znode again only after its watch fired: for callers that ask often. Without a session nothing that
        is kept counts: a watch may have fired unheard."""
        self._keeping = True

    async def read(self) -> Topology:
        """Return the topology; an empty one where none was ever written. Raises CorruptDataError, and the metadata
        store's errors."""
        if self._kept is not None and self._store.state is SessionState.CONNECTED:
            return self._kept
        fired = False

        def changed(_event: WatchEvent) -> None:
            nonlocal fired
            fired = True
            self._kept = None

        found = await repeat(self._store, lambda: self._read(changed if self._keeping else None))
        if self._keeping and not fired:  # a watch that fired meanwhile would not fire again for what was read
            self._kept = found
        return found

    async def _read(self, watch: Callable[[WatchEvent], None] | None) -> Topology:
        # Whoever keeps it asks whether it is there first: most clusters have none, and this one request hears of its
        # creation as of any change.
        while watch is None or await self._store.exists(self._path, watch) is not None:
            try:
                data, stat = await self._store.get(self._path)
            except NoNodeError:
                if watch is None:
                    return Topology()
                continue
            return Topology.decode(data, self._path, stat.version)
        return Topology()

    async def disallowed_regions(self) -> frozenset[str]:
        """Return the regions that take no new data. Raises as `read`."""
        return (await self.read()).disallowed

    # ---- changes ----------------------------------------------------------------------------------------------------

    async def announce(self, bookie_id: str, location: str | None) -> bool:
        """Note where a bookie is; None: it does not say. Returns whether that is news. Raises CallerError for a text
        that is no location, CorruptDataError, and the metadata store's errors; then what is noted is as it was, or,
        after a lost answer, is what was asked for."""
        check_bookie_id(bookie_id)
        if location is not None:
            check_location(location, "networkLocation")

        def change(now: Topology) -> Topology:
            nodes = {name: where for name, where in now.nodes.items() if name != bookie_id}
            return replace(now, nodes=nodes if location is None else {**nodes, bookie_id: location})

        return await self._change(change)

    async def disallow(self, region: str, among: Collection[str] | None = None) -> bool:
        """Have no new data placed in a region; returns whether it was allowed until now.

        `among` are the regions that could take data: of them one must stay allowed, or CallerError. Raises as
        `announce`.
        """
        check_region(region)

        def change(now: Topology) -> Topology:
            disallowed = now.disallowed | {region}
            # Judged by what is being replaced: two operators may close the last two regions at the same time.
            if disallowed != now.disallowed and among is not None and disallowed.issuperset(among):
                raise _last_region_error(region, now.disallowed)
            return replace(now, disallowed=disallowed)

        return await self._change(change)

    async def allow(self, region: str) -> bool:
        """Have data placed in a region again; returns whether it was disallowed until now. Raises as `announce`."""
        return await self._change(lambda now: replace(now, disallowed=now.disallowed - {region}))

    async def _change(self, change: Callable[[Topology], Topology]) -> bool:
        for attempt in range(_MAX_TRIES):
            tries: list[Topology] = []
            try:
                return await repeat(self._store, partial(self._try_change, change, tries))
            except (BadVersionError, NodeExistsError, NoNodeError):
                # Another process changed it between our look and our write: all of a cluster's nodes may start at once.
                await asyncio.sleep(self._rng.uniform(0, min(0.01 * (attempt + 1), _MAX_PAUSE_S)))
        raise BadVersionError(
            "the topology of the storage nodes kept changing while an entry was to be set; the entry was not set",
            path=self._path,
            advice="Try again; where this goes on, look for a node that restarts again and again",
        )

    async def _try_change(self, change: Callable[[Topology], Topology], tries: list[Topology]) -> bool:
        """Make the change once; `tries` has what was tried before in vain, or without an answer."""
        now = await self._read(None)
        wanted = change(now)
        if wanted == now:
            return bool(tries)  # found done after a lost answer: by us
        if now.version >= 0:
            tries.append(wanted)
            await self._store.put(self._path, wanted.encode(), now.version)
            return True
        # A root made here would look like a cluster to Apache BookKeeper, which then refuses to initialise one.
        if await self._store.exists(self._root) is None:
            raise CallerError(
                "no BookKeeper cluster is initialised here", path=self._root, advice="Check the ledgers path"
            )
        tries.append(wanted)
        await self._store.create(self._path, wanted.encode(), make_parents=True)
        return True
