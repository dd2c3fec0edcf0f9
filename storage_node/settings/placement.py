"""`PlacementSettings`: which bookies an ensemble is made of, by those of BookKeeper's keys that are honoured here.

They are a part of the ledger client's settings (`client`), and may stand in a storage node's file for auto-recovery's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from metadata.foundation.errors import CallerError
from metadata.foundation.regions import region_named, region_names
from metadata.foundation.settings import FLAG, REAL, TEXT, WHOLE, Registry, setting

PAGE: Final = "docs/settings/ledger-client.md"
"""Where people find the settings of the ledger client, these among them."""

Policy = Literal["rackaware", "regionaware", "uniform"]
Resolver = Literal["script", "racks", "rows", "announced"]

POLICIES: Final[Mapping[str, Policy]] = {
    "rackaware": "rackaware",
    "RackawareEnsemblePlacementPolicy": "rackaware",
    "org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy": "rackaware",
    "regionaware": "regionaware",
    "RegionAwareEnsemblePlacementPolicy": "regionaware",
    "org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy": "regionaware",
    "uniform": "uniform",
    "default": "uniform",
    "DefaultEnsemblePlacementPolicy": "uniform",
    "org.apache.bookkeeper.client.DefaultEnsemblePlacementPolicy": "uniform",
}
"""The values of `ensemblePlacementPolicy`."""

RESOLVERS: Final[Mapping[str, Resolver]] = {
    "script": "script",
    "ScriptBasedMapping": "script",
    "org.apache.bookkeeper.net.ScriptBasedMapping": "script",
    "racks": "racks",
    "DNSResolverForRacks": "racks",
    "org.apache.distributedlog.net.DNSResolverForRacks": "racks",
    "rows": "rows",
    "DNSResolverForRows": "rows",
    "org.apache.distributedlog.net.DNSResolverForRows": "rows",
    "announced": "announced",
}
"""The values of `reppDnsResolverClass`."""


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """On which bookies are copies placed? With the defaults every bookie is in one rack, so that ensembles are drawn at
    random.
    """

    ensemble_placement_policy: str = setting(
        TEXT,
        "rackaware",
        "ensemblePlacementPolicy",
        "`rackaware`, `regionaware`, or `uniform` (also `default`); upstream's class names are understood",
    )
    region: str = setting(
        TEXT,
        "",
        "region",
        "Region of this process; empty: the environment variable DLSPARK_REGION, else what finds racks says",
        own=True,
    )
    repp_regions_to_write: str = setting(
        TEXT,
        "",
        "reppRegionsToWrite",
        "`R1;R2;R3`: regions that are to hold copies; nodes of others are used as well. Empty: `regionaware` spreads "
        "copies over the regions that it sees, and enforces no number of them",
    )
    repp_minimum_regions_for_durability: int = setting(
        WHOLE,
        2,
        "reppMinimumRegionsForDurability",
        "Regions of which each acknowledged entry has copies in as many, if reppRegionsToWrite or "
        "enforceMinNumFaultDomainsForWrite is set; 0: no number is enforced",
        minimum=0,
        maximum=16,
    )
    repp_enable_durability_enforcement_in_replace: bool = setting(
        FLAG,
        True,
        "reppEnableDurabilityEnforcementInReplace",
        "Whether the storage node that takes a failed one's place must keep that number, too",
    )
    repp_disallow_bookie_placement_in_region_feature_name: str = setting(
        TEXT,
        "disallow_bookie_placement",
        "reppDisallowBookiePlacementInRegionFeatureName",
        "Name of the feature switch, in the scope of a region, while which is on the region gets no new copies",
    )
    repp_disable_durability_feature_name: str = setting(
        TEXT,
        "repp_disable_durability_enforcement",
        "reppDisableDurabilityFeatureName",
        "Name of the feature switch while which is on no number of regions is enforced",
    )
    repp_dns_resolver_class: str = setting(
        TEXT,
        "script",
        "reppDnsResolverClass",
        "What finds a bookie's rack: `script`, `racks` or `rows` (from its host's name; upstream's class names too) or "
        "`announced` (what nodes of this library say by networkLocation)",
    )
    network_topology_script_file_name: str = setting(
        TEXT,
        "",
        "networkTopologyScriptFileName",
        "Program that is given addresses as arguments and prints one location for each. Empty: bookies are where they "
        "announce to be, and the others in one rack",
    )
    network_topology_script_number_args: int = setting(
        WHOLE,
        100,
        "networkTopologyScriptNumberArgs",
        "Addresses in one call of the script, at most",
        minimum=1,
        maximum=10000,
    )
    dns_resolver_overrides: str = setting(
        TEXT,
        "",
        "dnsResolverOverrides",
        "`host:region;host:region`: regions that replace what `racks` and `rows` read from the hosts' names",
    )
    min_num_racks_per_write_quorum: int = setting(
        WHOLE,
        2,
        "minNumRacksPerWriteQuorum",
        "Racks over which the copies of each entry are spread, if there are enough (at most the write quorum)",
        minimum=1,
    )
    enforce_min_num_racks_per_write_quorum: bool = setting(
        FLAG,
        False,
        "enforceMinNumRacksPerWriteQuorum",
        "Fail rather than use fewer racks, or a bookie whose rack is not known",
    )
    enforce_min_num_fault_domains_for_write: bool = setting(
        FLAG,
        False,
        "enforceMinNumFaultDomainsForWrite",
        "Acknowledge an entry only when the bookies that have it are in minNumRacksPerWriteQuorum racks; under "
        "`regionaware`, in reppMinimumRegionsForDurability regions",
    )
    ignore_local_node_in_placement_policy: bool = setting(
        FLAG,
        False,
        "ignoreLocalNodeInPlacementPolicy",
        "Whether ensembles begin in any rack and region, rather than in this process's own",
    )
    disk_weight_based_placement_enabled: bool = setting(
        FLAG, False, "diskWeightBasedPlacementEnabled", "Draw bookies in proportion to their free disk space"
    )
    bookie_max_multiple_for_weight_based_placement: int = setting(
        WHOLE,
        3,
        "bookieMaxMultipleForWeightBasedPlacement",
        "Limit on a bookie's weight, as a multiple of the median; 0: no limit",
        minimum=0,
    )
    get_bookie_info_interval_s: int = setting(
        WHOLE,
        86_400,
        "getBookieInfoIntervalSeconds",
        "How long a reported free space is used before the bookie is asked again, in seconds",
        minimum=1,
    )
    get_bookie_info_retry_interval_s: int = setting(
        WHOLE,
        60,
        "getBookieInfoRetryIntervalSeconds",
        "How long until a bookie that did not report its free space is asked again, in seconds",
        minimum=1,
    )
    get_bookie_info_timeout_s: int = setting(
        WHOLE,
        5,
        "getBookieInfoTimeoutSecs",
        "How long a bookie may take to report its free space, in seconds",
        minimum=1,
    )
    bookie_health_check_enabled: bool = setting(
        FLAG, False, "bookieHealthCheckEnabled", "Avoid bookies that fail many requests for a while"
    )
    bookie_health_check_interval_s: int = setting(
        WHOLE,
        60,
        "bookieHealthCheckIntervalSeconds",
        "Length of the intervals in which failures are counted, in seconds",
        minimum=1,
    )
    bookie_error_threshold_per_interval: int = setting(
        WHOLE,
        100,
        "bookieErrorThresholdPerInterval",
        "Failed requests in one interval that make a bookie suspect",
        minimum=1,
    )
    bookie_quarantine_time_s: int = setting(
        WHOLE, 1800, "bookieQuarantineTimeSeconds", "For how long a bookie is avoided, in seconds", minimum=1
    )
    bookie_quarantine_ratio: float = setting(
        REAL,
        1.0,
        "bookieQuarantineRatio",
        "Probability that a suspect bookie is avoided, so that not every client avoids it at once",
        minimum=0.0,
        maximum=1.0,
    )
    bookie_connection_error_quarantine_enabled: bool = setting(
        FLAG, False, "bookieConnectionErrorQuarantineEnabled", "Count lost and refused connections as well"
    )
    of_logs: bool = field(default=False, compare=False)
    """True where these follow from the settings of logs, in which keys have other names: see `named`."""

    def __post_init__(self) -> None:
        REGISTRY.check(self)
        _named("ensemblePlacementPolicy", self.ensemble_placement_policy, POLICIES)
        region_named(self.region, "region")
        self._check_regions()
        resolver = _named("reppDnsResolverClass", self.repp_dns_resolver_class, RESOLVERS)
        if self.network_topology_script_file_name and resolver != "script":
            raise CallerError(
                f"networkTopologyScriptFileName is set, but racks come from {self.repp_dns_resolver_class}",
                advice=f"Set {self.named('reppDnsResolverClass')} to ScriptBasedMapping",
            )
        if self.dns_resolver_overrides and resolver not in ("racks", "rows"):
            raise CallerError(
                "dnsResolverOverrides changes regions read from host names, but racks "
                + ("come from a script" if resolver == "script" else "are announced by the nodes"),
                advice=f"Set {self.named('reppDnsResolverClass')} to DNSResolverForRacks or DNSResolverForRows",
            )
        by_regions = self.policy == "regionaware"
        if self.enforce_min_num_fault_domains_for_write and not by_regions and not self.enforces_racks:
            raise CallerError(
                "enforceMinNumFaultDomainsForWrite without enforceMinNumRacksPerWriteQuorum: an ensemble in too few "
                "racks would be allowed, and its entries never acknowledged",
                advice="Set both, with the rack-aware policy; or use the region-aware one",
            )
        if self.enforces_racks and resolver == "script" and not self.network_topology_script_file_name:
            raise CallerError(
                "enforceMinNumRacksPerWriteQuorum is set and no rack is known",
                advice=f"Set {self.named('networkTopologyScriptFileName')}, or {self.named('reppDnsResolverClass')}",
            )

    def _check_regions(self) -> None:
        """Raise CallerError for regions that cannot be, and for settings of regions under another policy, where they
        would do nothing."""
        regions = self.regions_to_write
        for region in regions:
            region_named(region, "reppRegionsToWrite")
        if len(set(regions)) != len(regions):
            raise CallerError("reppRegionsToWrite names a region twice", advice="Name each of them once")
        if self.policy != "regionaware":
            if regions:
                raise CallerError(
                    f"reppRegionsToWrite is set, but ensemblePlacementPolicy={self.ensemble_placement_policy} knows no "
                    "regions",
                    advice="Set ensemblePlacementPolicy=regionaware, or remove reppRegionsToWrite",
                )
            return
        minimum = self.repp_minimum_regions_for_durability
        if regions and len(regions) < minimum:
            raise CallerError(
                f"reppRegionsToWrite names {len(regions)} regions, and reppMinimumRegionsForDurability={minimum} of "
                "them must hold every entry",
                advice="Name more regions, or lower reppMinimumRegionsForDurability",
            )
        if self.enforce_min_num_fault_domains_for_write and minimum < 2:
            raise CallerError(
                "enforceMinNumFaultDomainsForWrite counts regions under ensemblePlacementPolicy=regionaware, and "
                f"reppMinimumRegionsForDurability={minimum} asks for none",
                advice="Set reppMinimumRegionsForDurability to 2 or more",
            )
        if self.enforce_min_num_fault_domains_for_write and not self.repp_enable_durability_enforcement_in_replace:
            raise CallerError(
                "reppEnableDurabilityEnforcementInReplace=false lets storage nodes be replaced until all copies lie in "
                "one region, and with enforceMinNumFaultDomainsForWrite no entry would be acknowledged then",
                advice="Leave one of them out",
            )

    def named(self, key: str) -> str:
        """Return a key of placement as its user writes it: with the settings of logs it stands behind `bkc.`, and what
        finds racks has a key of its own."""
        if not self.of_logs:
            return key
        return "bkEnsemblePlacementDnsResolverClass" if key == "reppDnsResolverClass" else f"bkc.{key}"

    @property
    def regions_to_write(self) -> tuple[str, ...]:
        """The regions that `reppRegionsToWrite` names."""
        return region_names(self.repp_regions_to_write)

    @property
    def policy(self) -> Policy:
        """The policy that `ensemblePlacementPolicy` names."""
        return POLICIES[self.ensemble_placement_policy]

    @property
    def resolver(self) -> Resolver:
        """The kind of resolver that `reppDnsResolverClass` names."""
        return RESOLVERS[self.repp_dns_resolver_class]

    @property
    def enforces_racks(self) -> bool:
        """True where an ensemble in too few racks is an error."""
        return self.policy != "uniform" and self.enforce_min_num_racks_per_write_quorum

    def racks_wanted(self, write_quorum: int) -> int:
        """Return R, the number of racks that every write set must span."""
        return min(write_quorum, self.min_num_racks_per_write_quorum)


_ZONES: Final = "regions are your zones: set ensemblePlacementPolicy=regionaware and reppMinimumRegionsForDurability"
REFUSED_PLACEMENT: Final[Mapping[str, str]] = {
    "minNumZonesPerWriteQuorum": _ZONES,
    "desiredNumZonesPerWriteQuorum": _ZONES,
    "enforceStrictZoneawarePlacement": _ZONES,
    "reppEnableValidation": "always so here: no ensemble is made that does not keep the rules",
    "reppDisableDurabilityEnforcementFeature": (
        "it takes an object of Java's; name a switch by reppDisableDurabilityFeatureName"
    ),
    "useHostnameResolveLocalNodePlacementPolicy": (
        "this host is looked up as the others are: by its name, or by its address where a script finds racks"
    ),
    "networkTopologyStabilizePeriodSeconds": "the list of storage nodes is read when it is needed",
}
"""BookKeeper's keys of placement that are refused, and why nothing is to be set."""

REGISTRY: Final = Registry([PlacementSettings], CallerError, page=PAGE, refused=REFUSED_PLACEMENT)


def _named(key: str, name: str, known: Mapping[str, str]) -> str:
    found = known.get(name)
    if found is None and name.lower().endswith(("zoneaware", "zoneawareensembleplacementpolicy")):
        raise CallerError(
            f"{key}={name}: there is no policy of zones here; regions are your zones",
            advice="Set ensemblePlacementPolicy=regionaware, and name the zones as regions: /zone/rack",
        )
    if found is None:
        short = sorted({known_as for known_as in known if "." not in known_as})
        raise CallerError(f"{key}={name} is not known here", advice=f"Known are {', '.join(short)}")
    return found
