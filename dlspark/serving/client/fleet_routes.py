"""`FleetRoutes`: the routes of a client over the proxies of its fleets, one for writing and one for reading. No I/O.

    one fleet                     one route, over all of its proxies
    one namespace, own region     the own region's proxies first, by what they announce (`own_region`)
    several fleets                each is one region's, the local one's first: one after the other (`RegionChain`)

The own region is the setting `region`, else what the environment says. The setting is refused where nothing follows
from it; the environment says where the process is, whatever its clients were given, and is of no use to some of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from dlspark.errors import SettingsError
from dlspark.serving.client.fleet import Fleet
from dlspark.serving.client.settings import SINGLE, ThinClientSettings
from dlspark.serving.routing.hosts import ProxyHost, Route
from dlspark.serving.routing.other_routes import RegionChain
from dlspark.serving.routing.own_region import OwnRegionFirst, OwnRegionReads, ReadRoute
from metadata.foundation.errors import CallerError

logger = logging.getLogger(__name__)

LOCAL_REGION: Final = "local"
"""What the first of several lists is called; the others are `region-2` and so on."""


class FleetRoutes:
    """Which proxies does a client ask, and in which order? Made when its fleets are open.

    Args:
        fleets: the proxies of each region, the local one's first; or those of all regions, in one.
        read_fleets: the proxies to read through; none: those of `fleets`.

    Raises SettingsError where `region` means nothing for these, CallerError for a region of the environment that is
    none, and where `single-host` has another number of hosts.
    """

    def __init__(self, fleets: Sequence[Fleet], read_fleets: Sequence[Fleet], settings: ThinClientSettings) -> None:
        self._fleets = fleets
        self._read_fleets = read_fleets
        self._settings = settings
        _check_region(settings, fleets, read_fleets)
        self.own = settings.own_region()
        """The client's own region; empty where nothing says it."""
        self._parts = [self._part(fleet) for fleet in fleets]
        chain = RegionChain(list(zip(_names(fleets), self._parts, strict=True)))
        self.writing: Route = chain if len(self._parts) > 1 else self._parts[0]
        self.reading: ReadRoute = self._read_route()

    def _part(self, fleet: Fleet) -> Route:
        settings = self._settings
        if self.own and fleet.says_regions and len(self._fleets) == 1 and settings.routing != SINGLE:
            return OwnRegionFirst(self.own, settings.route, fleet.write_hosts)
        return settings.route(fleet.write_hosts)

    def _read_route(self) -> ReadRoute:
        make, names = self._settings.read_route, _names(self._read_fleets or self._fleets)
        if len(names) > 1:
            return OwnRegionReads(LOCAL_REGION, make, order=names[1:])
        return OwnRegionReads(self.own, make) if self.own else make()

    def update(self, now: float) -> None:
        """Take the write proxies that the fleets have now."""
        for route, fleet in zip(self._parts, self._fleets, strict=True):
            try:
                route.update(fleet.write_hosts, now)
            except CallerError as error:  # the list is from elsewhere: what was known stays
                logger.warning("a list of proxies is not taken: %s", error)

    def read_hosts(self) -> list[ProxyHost]:
        """Return the proxies to read through that there are now: read proxies, else write proxies."""
        found = _hosts(self._read_fleets or self._fleets, lambda fleet: fleet.read_hosts)
        if self._read_fleets and not found:
            found = _hosts(self._read_fleets, lambda fleet: fleet.write_hosts)
        return found or _hosts(self._fleets, lambda fleet: fleet.write_hosts)


def _check_region(settings: ThinClientSettings, fleets: Sequence[Fleet], read_fleets: Sequence[Fleet]) -> None:
    if settings.region and (len(fleets) > 1 or not all(fleet.says_regions for fleet in (*fleets, *read_fleets))):
        raise SettingsError(
            f"region={settings.region} says nothing here: proxies that are found in one namespace say in which regions "
            "they are, lists do not",
            advice="Name the namespace's URI; or leave region out, and give a list a region, the local one first",
        )


def _names(fleets: Sequence[Fleet]) -> list[str]:
    return [LOCAL_REGION, *(f"region-{number}" for number in range(2, len(fleets) + 1))]


def _hosts(fleets: Sequence[Fleet], of: Callable[[Fleet], tuple[ProxyHost, ...]]) -> list[ProxyHost]:
    """Return the hosts of all fleets; of several, each host is in the region of its list."""
    if len(fleets) == 1:
        return list(of(fleets[0]))
    named = zip(_names(fleets), fleets, strict=True)
    return [replace(host, region=name) for name, fleet in named for host in of(fleet)]
