"""`ClientSettings`: every time limit and bound of the ledger client, with BookKeeper's keys and (mostly) defaults.

Fields count in milliseconds where a key counts in seconds. A key that cannot be honoured is an error that names the
nearest one or says why, never ignored. Keys reach this class from a namespace's settings, where they carry the prefix
`bkc.`, and from a storage node's file. `files` reads that one; docs/settings/ledger-client.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.foundation.settings import FLAG, MAX_INT, REAL, WHOLE, Registry, Value, setting
from metadata.security.other_keys import SECURITY_ELSEWHERE
from metadata.security.sasl.settings import ClientProofSettings, SaslSettings
from metadata.security.settings import REFUSED_SECURITY, SecuritySettings
from storage_node.protocol.frames import MAX_FRAME_BYTES
from storage_node.settings.placement import PAGE, REFUSED_PLACEMENT, PlacementSettings

SECOND: Final = 1000
READ_TIMEOUT: Final = "readTimeout"
"""BookKeeper's older key: it sets those of two newer ones that are not given themselves."""


COUNTED_QUORUM_TIMEOUT_MS: Final = 60_000
"""See `ClientSettings.quorum_timeout_ms`."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How long does a ledger client wait, and how much does it hold? Times in milliseconds, counted from the moment a
    request is handed to its connection.
    """

    # Requests
    add_entry_timeout_ms: int = setting(
        WHOLE,
        5_000,
        "addEntryTimeoutSec",
        "Seconds without an answer after which an add counts as failed and its storage node is replaced",
        scale=SECOND,
        minimum=1,
    )
    add_entry_quorum_timeout_ms: int = setting(
        WHOLE,
        0,
        "addEntryQuorumTimeoutSec",
        "Seconds after which an entry that is still not acknowledged ends its writer; 0 or less: never, but after a "
        "minute where fault domains are counted (enforceMinNumFaultDomainsForWrite)",
        scale=SECOND,
    )
    read_entry_timeout_ms: int = setting(
        WHOLE,
        5_000,
        "readEntryTimeoutSec",
        "Seconds without an answer after which every other request fails",
        scale=SECOND,
        minimum=1,
        other_keys=(READ_TIMEOUT,),
    )
    read_operation_timeout_ms: int = setting(
        WHOLE,
        30_000,
        "readOperationTimeoutMillis",
        "Milliseconds after which a read that no replica has answered fails, however many are left to ask",
        own=True,
        minimum=1,
    )
    connect_timeout_ms: int = setting(
        WHOLE, 10_000, "clientConnectTimeoutMillis", "Milliseconds after which an attempt to connect fails", minimum=1
    )
    channels_per_bookie: int = setting(
        WHOLE, 1, "numChannelsPerBookie", "Connections to each storage node; a ledger uses one of them", minimum=1
    )
    max_frame_bytes: int = setting(
        WHOLE,
        MAX_FRAME_BYTES,
        "nettyMaxFrameSizeBytes",
        "Largest frame that the storage nodes take; an entry has to fit with its headers",
        minimum=1024,
    )

    # Writing
    delay_ensemble_change: bool = setting(
        FLAG,
        False,
        "delayEnsembleChange",
        "Replace a storage node only when an entry cannot reach its ack quorum otherwise, or the node is read-only",
    )
    max_ensemble_changes: int = setting(
        WHOLE, MAX_INT, "maxNumEnsembleChanges", "Ensemble changes after which a writer fails", minimum=0
    )
    opportunistic_striping: bool = setting(
        FLAG,
        False,
        "opportunisticStriping",
        "Create a ledger on fewer nodes than its ensemble size, down to the write quorum, if no more are available",
    )
    explicit_lac_interval_ms: int = setting(
        WHOLE,
        0,
        "explicitLacInterval",
        "Send the storage nodes the last confirmed entry after this many milliseconds if no later entry has carried "
        "it; 0: never. In a namespace the default is 10",
        minimum=0,
    )
    max_outstanding_bytes: int = setting(
        WHOLE,
        64 * 1024 * 1024,
        "maxOutstandingBytes",
        "`wait_for_room` waits while more than this is unacknowledged, or queued for one storage node",
        own=True,
        minimum=1,
    )
    replacement_pause_ms: int = setting(
        WHOLE,
        5_000,
        "replacementPauseMillis",
        "How long a storage node that failed is not used to replace another, while the writer can do without it",
        own=True,
        minimum=1,
    )
    replacement_timeout_ms: int = setting(
        WHOLE,
        2_000,
        "replacementTimeoutMillis",
        "Milliseconds for which an ensemble change waits for the list of storage nodes, if it can do without",
        own=True,
        minimum=1,
    )
    vacancy_retry_ms: int = setting(
        WHOLE,
        1_000,
        "vacancyRetryMillis",
        "Milliseconds after which a writer that could not replace a storage node tries again",
        own=True,
        minimum=1,
    )

    # Reading
    speculative_read_ms: int = setting(
        WHOLE,
        2_000,
        "firstSpeculativeReadTimeout",
        "Milliseconds without an answer after which a read is sent to the next replica as well; 0: never",
        minimum=0,
        other_keys=("speculativeReadTimeout",),
    )
    max_speculative_read_ms: int = setting(
        WHOLE,
        2_000,
        "maxSpeculativeReadTimeout",
        "Longest pause, in milliseconds, before yet another replica is asked",
        minimum=1,
    )
    speculative_read_factor: float = setting(
        REAL,
        2.0,
        "speculativeReadTimeoutBackoffMultiplier",
        "Factor by which that pause grows from replica to replica",
        minimum=1,
    )
    speculative_lac_ms: int = setting(
        WHOLE,
        1_500,
        "firstSpeculativeReadLACTimeout",
        "Milliseconds without an answer after which a long poll is sent to the next storage node as well; 0: never",
        minimum=0,
    )
    max_speculative_lac_ms: int = setting(
        WHOLE,
        5_000,
        "maxSpeculativeReadLACTimeout",
        "Longest pause, in milliseconds, before yet another storage node is polled",
        minimum=1,
    )
    speculative_lac_factor: float = setting(
        REAL,
        2.0,
        "speculativeReadLACTimeoutBackoffMultiplier",
        "Factor by which that pause grows from node to node",
        minimum=1,
    )
    long_poll_ms: int = setting(
        WHOLE,
        1_000,
        "longPollMillis",
        "Longest wait asked of a storage node in one long poll; it must stay below readEntryTimeoutSec",
        own=True,
        minimum=1,
    )
    reorder_reads: bool = setting(
        FLAG,
        True,
        "reorderReadSequenceEnabled",
        "Ask replicas on nodes that are read-only, slow or unavailable after the others, and clearly faster ones first",
    )
    reorder_threshold_pending: int = setting(
        WHOLE,
        0,
        "readReorderThresholdPendingRequests",
        "Ask the replica first whose node has fewest requests under way, if the first one's has this many more; then "
        "no node counts as slow because another one had to be asked. 0: answer times decide",
        minimum=0,
    )
    hedged_reads_percent: int = setting(
        WHOLE,
        10,
        "hedgedReadsPercent",
        "Of 100 reads, those that may be sent to the next replica as well once the first one takes clearly longer than "
        "it usually does, where the own region is known; 0: none before firstSpeculativeReadTimeout",
        own=True,
        minimum=0,
        maximum=100,
    )
    sticky_reads: bool = setting(
        FLAG,
        False,
        "stickyReadSEnabled",
        "Read a ledger from one storage node as long as it answers, where every node has every entry",
        other_keys=("stickyReadsEnabled",),
    )
    batch_reads: bool = setting(
        FLAG,
        True,
        "batchReadEnabled",
        "Read ranges of small entries in one request each, where every storage node has every entry",
    )
    batch_read_max_entry_bytes: int = setting(
        WHOLE,
        64 * 1024,
        "batchReadMaxEntryBytes",
        "Average entry size, in bytes, above which entries are still read one by one",
        own=True,
        minimum=1,
    )
    failure_memory_ms: int = setting(
        WHOLE,
        60_000,
        "bookieFailureHistoryExpirationMSec",
        "Milliseconds for which a storage node that failed or was slow is asked last, and taken last for ensembles",
        minimum=1,
    )

    outage_wait_ms: int = setting(
        WHOLE,
        0,
        "outageWaitMillis",
        "Milliseconds for which an operation that too few storage nodes answer is tried again; 0: not at all",
        minimum=0,
        own=True,
    )

    # Recovery
    recovery_window_entries: int = setting(
        WHOLE,
        16,
        "recoveryReadBatchSize",
        "Entries that a recovery reads ahead of those that it has replicated again",
        minimum=1,
    )

    # Metadata
    zk_timeout_ms: int = setting(
        WHOLE,
        0,
        "zkTimeout",
        "Timeout in milliseconds of a separate ZooKeeper session for ledgers; 0: they share the namespace's session",
        minimum=0,
    )

    placement: PlacementSettings = field(default_factory=PlacementSettings)
    """Which bookies an ensemble is made of."""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    """What it proves itself with, and whom it believes."""
    proofs: ClientProofSettings = field(default_factory=ClientProofSettings)
    """What it proves to storage nodes beside a certificate."""

    def __post_init__(self) -> None:
        REGISTRY.check(self)
        if self.long_poll_ms >= self.read_entry_timeout_ms:
            raise CallerError(
                f"long_poll_ms ({self.long_poll_ms}) is not below read_entry_timeout_ms ({self.read_entry_timeout_ms})",
                advice="Every long poll would end as a timeout; lower the one or raise the other",
            )
        if self.delay_ensemble_change and self.placement.enforce_min_num_fault_domains_for_write:
            raise CallerError(
                "delayEnsembleChange keeps a failed bookie as long as others make up the ack quorum, and "
                "enforceMinNumFaultDomainsForWrite may need that very one",
                advice="Set one of them only",
            )

    @property
    def quorum_timeout_ms(self) -> int:
        """How long an entry may wait until it is acknowledged; 0: for ever.

        As it is set; else, where fault domains are counted, COUNTED_QUORUM_TIMEOUT_MS: what is known of locations may
        change so that no answer of these nodes would be enough, and then a writer must end rather than wait.
        """
        if self.add_entry_quorum_timeout_ms > 0:
            return self.add_entry_quorum_timeout_ms
        return COUNTED_QUORUM_TIMEOUT_MS if self.placement.enforce_min_num_fault_domains_for_write else 0

    @property
    def sweep_interval_s(self) -> float:
        """How often time limits are looked at."""
        shortest = min(self.add_entry_timeout_ms, self.read_entry_timeout_ms, self.speculative_read_ms or SECOND)
        if self.add_entry_quorum_timeout_ms > 0:
            shortest = min(shortest, self.add_entry_quorum_timeout_ms)
        return min(max(shortest / 8, 2), 250) / 1000

    @classmethod
    def from_mapping(cls, values: Mapping[str, Value], base: ClientSettings | None = None) -> ClientSettings:
        """Return the settings of BookKeeper's keys, over `base` or the defaults; texts are parsed as in a properties
        file.

        Raises CallerError for a key or value that cannot be honoured.
        """
        base = base if base is not None else cls()
        given: dict[str, object] = dict(values)
        if READ_TIMEOUT in given:
            REGISTRY.read(READ_TIMEOUT, given[READ_TIMEOUT])
            older = given.pop(READ_TIMEOUT)
            given = {"readEntryTimeoutSec": older, "addEntryTimeoutSec": older} | given
        found = REGISTRY.read_all(given)
        changed = found.get(cls, {})
        if PlacementSettings in found:
            changed["placement"] = replace(base.placement, **found[PlacementSettings])  # type: ignore[arg-type]
        if SecuritySettings in found:
            changed["security"] = replace(base.security, **found[SecuritySettings])  # type: ignore[arg-type]
        if ClientProofSettings in found or SaslSettings in found:
            sasl = replace(base.proofs.sasl, **found.get(SaslSettings, {}))  # type: ignore[arg-type]
            changed["proofs"] = replace(base.proofs, **found.get(ClientProofSettings, {}), sasl=sasl)  # type: ignore[arg-type]
        return replace(base, **changed)  # type: ignore[arg-type]


_ALWAYS_SO = "always so here"
_ONE_LOOP = "one event loop does all the work"
_SOCKETS = "the operating system chooses"
_ADMISSION = "it is for servers: the storage node's own file says whom it lets in"
_METRICS = "a matter of BookKeeper's own metrics and logs"
WITHOUT_MEANING: Mapping[str, str] = {
    "throttle": "bytes in flight are bounded instead (maxOutstandingBytes)",
    "waitTimeoutOnBackpressureMs": "`wait_for_room` waits as long as its caller does",
    "digestType": "given when a ledger is created, and read from its metadata",
    "passwd": "given when a ledger is created or opened (digestPw of a namespace)",
    "enableDigestTypeAutodetection": _ALWAYS_SO,
    "enableParallelRecoveryRead": _ALWAYS_SO,
    "enableBookieFailureTracking": _ALWAYS_SO,
    "enableBookieAddressTracking": "addresses are looked up for each connection that is made",
    "bookieAddressResolverEnabled": "registrations are always looked up, then ids read as host:port",
    "clientTcpNoDelay": _ALWAYS_SO,
    "clientSockKeepalive": _ALWAYS_SO,
    "clientSendBufferSize": _SOCKETS,
    "clientReceiveBufferSize": _SOCKETS,
    "clientTcpUserTimeoutMillis": "a connection on which nothing comes for a request's whole time is made anew",
    "clientWriteBufferLowWaterMark": "bytes in flight are bounded instead (maxOutstandingBytes)",
    "clientWriteBufferHighWaterMark": "bytes in flight are bounded instead (maxOutstandingBytes)",
    "nettyUsePooledBuffers": _ALWAYS_SO,
    "useV2WireProtocol": "version 3 is spoken, and version 2 for batch reads",
    "useV3Enforced": "version 3 is spoken, and version 2 for batch reads",
    "timeoutMonitorIntervalSec": "follows from the time limits",
    "timeoutTaskIntervalMillis": "follows from the time limits",
    "pcbcTimeoutTimerTickDurationMs": "follows from the time limits",
    "pcbcTimeoutTimerNumTicks": "follows from the time limits",
    "timeoutTimerTickDurationMs": "follows from the time limits",
    "timeoutTimerNumTicks": "follows from the time limits",
    "ensemblePlacementPolicyOrderSlowBookies": _ALWAYS_SO,
    "numWorkerThreads": _ONE_LOOP,
    "numIOThreads": _ONE_LOOP,
    "enableBusyWait": _ONE_LOOP,
    **REFUSED_SECURITY,
    "authorizedRoles": _ADMISSION,
    "principalMapping": _ADMISSION,
    "registrationClientClass": "metadata lie in ZooKeeper",
    "metadataServiceUri": "the namespace's binding names the cluster",
    "zkServers": "the namespace's binding names the cluster",
    "zkLedgersRootPath": "the namespace's binding names the cluster",
    "ledgerManagerFactoryClass": "the cluster's layout is followed",
    "ledgerManagerType": "the cluster's layout is followed",
    "ledgerMetadataVersion": "version 3 is written; what exists keeps its version",
    "storeSystemtimeAsLedgerCreationTime": "the metadata store's creation time is used",
    "disableEnsembleChangeFeatureName": "there are no dynamic features; see maxNumEnsembleChanges",
    "featureProviderClass": "there are no dynamic features",
    "enableTaskExecutionStats": _METRICS,
    "taskExecutionWarnTimeMicros": _METRICS,
    "enablePerHostStats": _METRICS,
    "clientConnectBookieUnavailableLogThrottling": _METRICS,
    **REFUSED_PLACEMENT,
    "followBookieAddressTrackingEnabled": "addresses are looked up for each connection that is made",
}
"""BookKeeper's keys that are refused, and why nothing is to be set."""

REGISTRY: Final = Registry(
    [ClientSettings, PlacementSettings, SecuritySettings, SaslSettings, ClientProofSettings],
    CallerError,
    page=PAGE,
    refused={**SECURITY_ELSEWHERE, **WITHOUT_MEANING},
)
