"""`PlacementSettings`: which bookies an ensemble is made of, by BookKeeper's keys, as far as they are honoured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from metadata.foundation.errors import CallerError

Policy = Literal["rackaware", "uniform"]
Resolver = Literal["script", "racks", "rows"]

POLICIES: Final[Mapping[str, Policy]] = {
    "rackaware": "rackaware",
    "RackawareEnsemblePlacementPolicy": "rackaware",
    "org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy": "rackaware",
    "uniform": "uniform",
    "default": "uniform",
    "DefaultEnsemblePlacementPolicy": "uniform",
    "org.apache.bookkeeper.client.DefaultEnsemblePlacementPolicy": "uniform",
}
"""What `ensemblePlacementPolicy` may say."""

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
}
"""What `reppDnsResolverClass` may say."""


def _key(name: str, *, minimum: float | None = None, maximum: float | None = None) -> dict[str, object]:
    return {"key": name, "minimum": minimum, "maximum": maximum}


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """With the defaults every bookie is in one rack, so that ensembles are drawn at random."""

    ensemble_placement_policy: str = field(default="rackaware", metadata=_key("ensemblePlacementPolicy"))
    """`rackaware`, or `uniform` (also `default`); upstream's class names are understood."""
    repp_dns_resolver_class: str = field(default="script", metadata=_key("reppDnsResolverClass"))
    """Who tells a bookie's rack: `script`, `racks` or `rows` (from its host's name); upstream's class names too."""
    network_topology_script_file_name: str = field(default="", metadata=_key("networkTopologyScriptFileName"))
    """Program that is given addresses as arguments and prints one location for each. Empty: one rack for all."""
    network_topology_script_number_args: int = field(
        default=100, metadata=_key("networkTopologyScriptNumberArgs", minimum=1, maximum=10_000)
    )
    """Addresses in one call of the script, at most."""
    dns_resolver_overrides: str = field(default="", metadata=_key("dnsResolverOverrides"))
    """`host:region;host:region`: regions that replace what `racks` and `rows` read from the hosts' names."""
    min_num_racks_per_write_quorum: int = field(default=2, metadata=_key("minNumRacksPerWriteQuorum", minimum=1))
    """Racks over which the copies of each entry are spread, where there are so many (at most the write quorum)."""
    enforce_min_num_racks_per_write_quorum: bool = field(
        default=False, metadata=_key("enforceMinNumRacksPerWriteQuorum")
    )
    """Fail rather than use fewer racks, or a bookie whose rack is not known."""
    enforce_min_num_fault_domains_for_write: bool = field(
        default=False, metadata=_key("enforceMinNumFaultDomainsForWrite")
    )
    """Acknowledge an entry only when the bookies that have it are in so many racks."""
    disk_weight_based_placement_enabled: bool = field(default=False, metadata=_key("diskWeightBasedPlacementEnabled"))
    """Draw bookies in proportion to their free disk space."""
    bookie_max_multiple_for_weight_based_placement: int = field(
        default=3, metadata=_key("bookieMaxMultipleForWeightBasedPlacement", minimum=0)
    )
    """No bookie counts for more than so many times the median; 0: no limit."""
    get_bookie_info_interval_s: int = field(default=86_400, metadata=_key("getBookieInfoIntervalSeconds", minimum=1))
    """How old what is known of free space may become, in seconds."""
    get_bookie_info_retry_interval_s: int = field(
        default=60, metadata=_key("getBookieInfoRetryIntervalSeconds", minimum=1)
    )
    """When a bookie that did not tell its free space is asked again, in seconds."""
    get_bookie_info_timeout_s: int = field(default=5, metadata=_key("getBookieInfoTimeoutSecs", minimum=1))
    """How long a bookie may take to tell its free space, in seconds."""
    bookie_health_check_enabled: bool = field(default=False, metadata=_key("bookieHealthCheckEnabled"))
    """Avoid bookies that fail many requests for a while."""
    bookie_health_check_interval_s: int = field(
        default=60, metadata=_key("bookieHealthCheckIntervalSeconds", minimum=1)
    )
    """Length of the intervals in which failures are counted, in seconds."""
    bookie_error_threshold_per_interval: int = field(
        default=100, metadata=_key("bookieErrorThresholdPerInterval", minimum=1)
    )
    """Failed requests in one interval that make a bookie suspect."""
    bookie_quarantine_time_s: int = field(default=1800, metadata=_key("bookieQuarantineTimeSeconds", minimum=1))
    """For how long a bookie is avoided, in seconds."""
    bookie_quarantine_ratio: float = field(
        default=1.0, metadata=_key("bookieQuarantineRatio", minimum=0.0, maximum=1.0)
    )
    """Probability that a suspect bookie is avoided, so that not every client avoids it at once."""
    bookie_connection_error_quarantine_enabled: bool = field(
        default=False, metadata=_key("bookieConnectionErrorQuarantineEnabled")
    )
    """Count lost and refused connections as well."""

    def __post_init__(self) -> None:
        _named("ensemblePlacementPolicy", self.ensemble_placement_policy, POLICIES)
        resolver = _named("reppDnsResolverClass", self.repp_dns_resolver_class, RESOLVERS)
        if self.network_topology_script_file_name and resolver != "script":
            raise CallerError(
                f"networkTopologyScriptFileName is set, but racks are told by {self.repp_dns_resolver_class}",
                advice="Set reppDnsResolverClass (bkEnsemblePlacementDnsResolverClass of a log) to ScriptBasedMapping",
            )
        if self.dns_resolver_overrides and resolver == "script":
            raise CallerError(
                "dnsResolverOverrides changes regions read from host names, but racks are told by a script",
                advice="Set reppDnsResolverClass to DNSResolverForRacks or DNSResolverForRows",
            )
        for name, low, high in _BOUNDED:
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                raise CallerError(f"{name} is {value}", advice=f"It must be between {low} and {high or 'any number'}")
        if self.enforce_min_num_fault_domains_for_write and not self.enforces_racks:
            raise CallerError(
                "enforceMinNumFaultDomainsForWrite without enforceMinNumRacksPerWriteQuorum: an ensemble in too few "
                "racks would be allowed, and its entries never acknowledged",
                advice="Set both, with the rack-aware policy",
            )
        if self.enforces_racks and resolver == "script" and not self.network_topology_script_file_name:
            raise CallerError(
                "enforceMinNumRacksPerWriteQuorum is set and nothing tells the racks",
                advice="Set networkTopologyScriptFileName, or reppDnsResolverClass",
            )

    @property
    def policy(self) -> Policy:
        return POLICIES[self.ensemble_placement_policy]

    @property
    def resolver(self) -> Resolver:
        return RESOLVERS[self.repp_dns_resolver_class]

    @property
    def enforces_racks(self) -> bool:
        """Whether an ensemble in too few racks is an error."""
        return self.policy == "rackaware" and self.enforce_min_num_racks_per_write_quorum

    def racks_wanted(self, write_quorum: int) -> int:
        """R: racks that every write set must span."""
        return min(write_quorum, self.min_num_racks_per_write_quorum)


_BOUNDED: Final = (
    ("network_topology_script_number_args", 1, 10_000),
    ("min_num_racks_per_write_quorum", 1, None),
    ("bookie_max_multiple_for_weight_based_placement", 0, None),
    ("get_bookie_info_interval_s", 1, None),
    ("get_bookie_info_retry_interval_s", 1, None),
    ("get_bookie_info_timeout_s", 1, None),
    ("bookie_health_check_interval_s", 1, None),
    ("bookie_error_threshold_per_interval", 1, None),
    ("bookie_quarantine_time_s", 1, None),
    ("bookie_quarantine_ratio", 0.0, 1.0),
)


def _named(key: str, name: str, known: Mapping[str, str]) -> str:
    found = known.get(name)
    if found is None:
        short = sorted({known_as for known_as in known if "." not in known_as})
        raise CallerError(f"{key}={name} is not known here", advice=f"Known are {', '.join(short)}")
    return found
