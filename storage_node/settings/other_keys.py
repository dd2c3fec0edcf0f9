"""Keys that may stand in a node's file and are not the node's own: auto-recovery's, and those of the ledger client that
it works with. With `autoRecoveryDaemonEnabled` it runs inside of the node's process. A test keeps the lists complete.
"""

from __future__ import annotations

from typing import Final

AUTO_RECOVERY_KEYS: Final = frozenset(
    {
        "auditorLedgerVerificationPercentage",
        "auditorMaxNumberOfConcurrentOpenLedgerOperations",
        "auditorPeriodicBookieCheckInterval",
        "auditorPeriodicCheckInterval",
        "auditorPeriodicPlacementPolicyCheckInterval",
        "autoRecoveryDaemonEnabled",
        "inFlightReadEntryNumInLedgerChecker",
        "lockReleaseOfFailedLedgerGracePeriod",
        "lostBookieRecoveryDelay",
        "openLedgerRereplicationGracePeriod",
        "replicationRateByBytes",
        "rereplicationEntryBatchSize",
        "rwRereplicateBackoffMs",
        "storeSystemTimeAsLedgerUnderreplicatedMarkTime",
    }
)

PLACEMENT_KEYS: Final = frozenset(
    {
        "bookieConnectionErrorQuarantineEnabled",
        "bookieErrorThresholdPerInterval",
        "bookieHealthCheckEnabled",
        "bookieHealthCheckIntervalSeconds",
        "bookieMaxMultipleForWeightBasedPlacement",
        "bookieQuarantineRatio",
        "bookieQuarantineTimeSeconds",
        "diskWeightBasedPlacementEnabled",
        "dnsResolverOverrides",
        "enforceMinNumFaultDomainsForWrite",
        "enforceMinNumRacksPerWriteQuorum",
        "ensemblePlacementPolicy",
        "getBookieInfoIntervalSeconds",
        "getBookieInfoRetryIntervalSeconds",
        "getBookieInfoTimeoutSecs",
        "minNumRacksPerWriteQuorum",
        "networkTopologyScriptFileName",
        "networkTopologyScriptNumberArgs",
        "reppDnsResolverClass",
    }
)

OTHER_KEYS: Final = AUTO_RECOVERY_KEYS | PLACEMENT_KEYS
