"""Settings of the ledgers that segments are, and of where their copies go."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number, text


@dataclass(frozen=True)
class LedgerKeys:
    """Ledgers"""

    ensemble_size: int = number(
        3,
        "bkcEnsembleSize",
        "Storage nodes over which a segment is striped",
        minimum=1,
        maximum=1000,
        old_key="ensemble-size",
        dynamic=True,
    )
    write_quorum: int = number(
        3,
        "bkcWriteQuorumSize",
        "Copies of each entry; at most the ensemble size",
        minimum=1,
        maximum=1000,
        old_key="write-quorum-size",
        dynamic=True,
    )
    ack_quorum: int = number(
        2,
        "bkcAckQuorumSize",
        "Copies on disk before a write is acknowledged; at most the write quorum",
        minimum=1,
        maximum=1000,
        old_key="ack-quorum-size",
        dynamic=True,
    )
    digest_password: str = text(
        "",
        "digestPw",
        "Password of the ledgers; writers and readers must agree on it",
        per_log=False,
        secret=True,
    )
    read_timeout_s: int = number(
        10,
        "bkcReadTimeoutSeconds",
        "How long a storage node may take to answer a read, in seconds; not below readLACLongPollTimeout",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    write_timeout_s: int = number(
        10,
        "bkcWriteTimeoutSeconds",
        "How long a storage node may take to answer a write, in seconds, before it is replaced",
        minimum=1,
        maximum=3600,
        per_log=False,
    )


@dataclass(frozen=True)
class PlacementKeys:
    """Placement"""

    row_aware_placement: bool = flag(
        False,
        "bkRowAwareEnsemblePlacement",
        "Whether a storage node's rack is its row, told by DNSResolverForRows",
        old_key="row-aware-ensemble-placement",
        per_log=False,
    )
    placement_resolver: str = text(
        "DNSResolverForRacks",
        "bkEnsemblePlacementDnsResolverClass",
        "Who tells racks: DNSResolverForRacks, DNSResolverForRows (by host names) or ScriptBasedMapping (by a script)",
        per_log=False,
    )
    resolver_overrides: str = text(
        "",
        "dnsResolverOverrides",
        "Regions in place of those that host names give: host:region;host:region",
        per_log=False,
    )
