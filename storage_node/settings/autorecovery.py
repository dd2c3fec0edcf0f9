"""`AutoRecoverySettings`: those of BookKeeper's keys of auto-recovery that are honoured here.

They stand in the same file as a bookie's own (`files.NodeFile`), together with the keys of the ledger client that
auto-recovery works with, placement's above all. A process that is auto-recovery alone takes the same file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metadata.foundation.settings import FLAG, WHOLE, setting
from storage_node.settings.client import ClientSettings


@dataclass(frozen=True, slots=True)
class AutoRecoverySettings:
    """How does auto-recovery run: how often, how much at a time, with which ledger client?"""

    auto_recovery_daemon_enabled: bool = setting(
        FLAG,
        False,
        "autoRecoveryDaemonEnabled",
        "Run auto-recovery, which finds ledgers that lack copies and restores them, inside of the storage "
        "node's process. A process of its own is: dlspark autorecovery --conf FILE. The keys of placement may "
        "stand in the file too (ensemblePlacementPolicy, reppDnsResolverClass, "
        "networkTopologyScriptFileName, minNumRacksPerWriteQuorum, ...), for its ledger client",
        section="Auto-recovery",
    )
    lost_bookie_recovery_delay_s: int = setting(
        WHOLE,
        0,
        "lostBookieRecoveryDelay",
        "Seconds that a single lost node is given to come back. The first process of a cluster writes this value "
        "into the metadata; from then on the value there counts",
        minimum=0,
    )
    periodic_bookie_check_interval_s: int = setting(
        WHOLE,
        86_400,
        "auditorPeriodicBookieCheckInterval",
        "Seconds between two audits of the nodes that are there (the loss of a node starts an audit in any case); "
        "0 or less: only at the start",
    )
    periodic_check_interval_s: int = setting(
        WHOLE,
        604_800,
        "auditorPeriodicCheckInterval",
        "Seconds between two checks of all ledgers by reading from their nodes; 0 or less: never",
    )
    periodic_placement_check_interval_s: int = setting(
        WHOLE,
        0,
        "auditorPeriodicPlacementPolicyCheckInterval",
        "Seconds between two checks whether closed ledgers keep the placement policy; 0 or less: never. Those "
        "that do not are counted and named in the log",
    )
    repair_placement: bool = setting(
        FLAG,
        False,
        "repairedPlacementPolicyNotAdheringBookieEnable",
        "Move copies of closed ledgers that do not keep the placement policy: the auditor marks what its check of "
        "placement finds, workers copy to other nodes and then enter those into the ledger's metadata",
    )
    underreplicated_grace_period_s: int = setting(
        WHOLE,
        0,
        "underreplicatedLedgerRecoveryGracePeriod",
        "Seconds after which a marked ledger that is not repaired yet is counted and named in the log, as an error, by "
        "the check of placement; 0 or less: never",
    )
    ledger_verification_percentage: int = setting(
        WHOLE,
        0,
        "auditorLedgerVerificationPercentage",
        "Percentage of its entries that a check reads from each node, beside the first and the last of each fragment",
        minimum=0,
        maximum=100,
    )
    max_concurrent_ledger_checks: int = setting(
        WHOLE,
        50,
        "auditorMaxNumberOfConcurrentOpenLedgerOperations",
        "Ledgers that the check of all ledgers examines at once (Apache BookKeeper: 500)",
        minimum=1,
        maximum=10000,
    )
    in_flight_check_reads: int = setting(
        WHOLE,
        64,
        "inFlightReadEntryNumInLedgerChecker",
        "Entries that checks read at once; 0 or less: no limit (Apache BookKeeper: no limit)",
    )
    store_mark_time: bool = setting(
        FLAG, True, "storeSystemTimeAsLedgerUnderreplicatedMarkTime", "Write into each mark when it was made"
    )
    open_ledger_grace_period_ms: int = setting(
        WHOLE,
        30_000,
        "openLedgerRereplicationGracePeriod",
        "Milliseconds that a ledger's writer is given to replace a lost node by itself, before the ledger is "
        "fenced and closed",
        minimum=0,
    )
    failed_ledger_lock_period_ms: int = setting(
        WHOLE,
        300_000,
        "lockReleaseOfFailedLedgerGracePeriod",
        "Longest time, in milliseconds, that a ledger which could not be repaired is left alone; the first time "
        "is a 32nd of it, and it doubles with each failure",
        minimum=0,
    )
    rereplicate_backoff_ms: int = setting(
        WHOLE, 5_000, "rwRereplicateBackoffMs", "Pause after a failure, milliseconds", minimum=1
    )
    entry_batch_size: int = setting(
        WHOLE, 10, "rereplicationEntryBatchSize", "Entries that are copied at once", minimum=1, maximum=1000
    )
    rate_by_bytes: int = setting(
        WHOLE, -1, "replicationRateByBytes", "Bytes that one process copies a second; 0 or less: no limit"
    )

    client: ClientSettings = field(default_factory=ClientSettings)
    """The settings of its ledger client."""
