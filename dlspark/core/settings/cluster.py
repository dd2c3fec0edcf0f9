"""Settings of a namespace: the sessions with ZooKeeper, federation, what logs are in the metadata store.

The ledgers that segments are, and where their copies go, are among them: these are settings of the cluster below.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.log_setting import setting
from dlspark.core.settings.survival import ACKNOWLEDGEMENTS, COPIES, NODE, RACK, REGION
from metadata.foundation.settings import EXACT, FLAG, MAX_LONG, REAL, TEXT, WHOLE
from metadata.store import RetryPolicy


@dataclass(frozen=True)
class ZooKeeperKeys:
    """ZooKeeper"""

    zk_acl_id: str = setting(
        EXACT,
        "",
        "zkAclId",
        "Identity of the session, name and password in one: only a session with the same one can change what it "
        "creates, and every session can read it; it guards neither ledgers nor storage nodes; empty: none",
        per_log=False,
        secret=True,
    )
    zk_session_timeout_s: int = setting(
        WHOLE,
        30,
        "zkSessionTimeoutSeconds",
        "ZooKeeper session timeout in seconds: how long a dead writer keeps its lock",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    zk_request_rate: float = setting(
        REAL,
        0.0,
        "zkRequestRateLimit",
        "Requests a second that the session makes; further ones wait; 0 or less: any number",
        per_log=False,
    )
    zk_retries: int = setting(
        WHOLE,
        3,
        "zkNumRetries",
        "How often a request that can safely be repeated is repeated after its connection was lost",
        minimum=0,
        maximum=1000,
        per_log=False,
    )
    zk_retry_start_backoff_ms: int = setting(
        WHOLE,
        5_000,
        "zkRetryStartBackoffMillis",
        "Longest time, in milliseconds, that the first repetition waits for the connection; each further one waits "
        "twice as long",
        minimum=0,
        per_log=False,
    )
    zk_retry_max_backoff_ms: int = setting(
        WHOLE,
        30_000,
        "zkRetryMaxBackoffMillis",
        "Longest wait before a repetition, and between attempts of a reader that cannot read its list of segments, in "
        "milliseconds",
        minimum=1,
        per_log=False,
    )
    bkc_zk_session_timeout_s: int = setting(
        WHOLE,
        30,
        "bkcZKSessionTimeoutSeconds",
        "As zkSessionTimeoutSeconds, for the ledgers' session. Ledgers have a session of their own if their metadata "
        "are on another ZooKeeper, if zkAclId is set, or if one of these five keys is set",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    bkc_zk_request_rate: float = setting(
        REAL, 0.0, "bkcZKRequestRateLimit", "As zkRequestRateLimit, for the ledgers' session", per_log=False
    )
    bkc_zk_retries: int = setting(
        WHOLE, 3, "bkcZKNumRetries", "As zkNumRetries, for the ledgers' session", minimum=0, maximum=1000, per_log=False
    )
    bkc_zk_retry_start_backoff_ms: int = setting(
        WHOLE,
        5_000,
        "bkcZKRetryStartBackoffMillis",
        "As zkRetryStartBackoffMillis, for the ledgers' session",
        minimum=0,
        per_log=False,
    )
    bkc_zk_retry_max_backoff_ms: int = setting(
        WHOLE,
        30_000,
        "bkcZKRetryMaxBackoffMillis",
        "As zkRetryMaxBackoffMillis, for the ledgers' session",
        minimum=1,
        per_log=False,
    )

    @property
    def zk_retry_policy(self) -> RetryPolicy:
        """How requests of the logs' session are repeated."""
        return RetryPolicy(self.zk_retries, self.zk_retry_start_backoff_ms, self.zk_retry_max_backoff_ms)

    @property
    def bkc_zk_retry_policy(self) -> RetryPolicy:
        """How requests of the ledgers' session are repeated."""
        return RetryPolicy(self.bkc_zk_retries, self.bkc_zk_retry_start_backoff_ms, self.bkc_zk_retry_max_backoff_ms)


@dataclass(frozen=True)
class SecurityKeys:
    """Security"""

    security: str = setting(
        TEXT,
        "",
        "security",
        "`on`: TLS with ZooKeeper and storage nodes, and both ends prove by certificate who they are. `optional`: with "
        "those that do that; the others are spoken to in plain. `off`: plain connections. Empty: on where the "
        "environment variable DLSPARK_SECURITY names an identity folder, else off. The keys of BookKeeper "
        "(bkc.tlsKeyStore and others) are over these two",
        choices=("", "off", "optional", "on"),
        per_log=False,
        own=True,
    )
    security_directory: str = setting(
        TEXT,
        "",
        "securityDirectory",
        "The folder with this process's certificate, key, authorities and revocation lists, as `dlspark tls issue` "
        "makes one; empty: that of DLSPARK_SECURITY",
        per_log=False,
        own=True,
    )


@dataclass(frozen=True)
class FederationKeys:
    """Federation"""

    federated: bool = setting(
        FLAG,
        False,
        "federatedNamespaceEnabled",
        "Whether the namespace is treated as federated even if its binding does not say so",
        per_log=False,
    )
    federated_max_logs: int = setting(
        WHOLE,
        15_000,
        "federatedMaxLogsPerSubnamespace",
        "Logs in a sub-namespace, above which another sub-namespace is created",
        minimum=1,
        per_log=False,
    )
    federated_ask_on_miss: bool = setting(
        FLAG,
        True,
        "federatedCheckExistenceWhenCacheMiss",
        "Whether ZooKeeper is asked about a log that is not in the lists read so far; false: the lists decide, and a "
        "log that another client has just created may be missed",
        per_log=False,
    )


@dataclass(frozen=True)
class MetadataKeys:
    """Metadata"""

    unpartitioned_stream_name: str = setting(
        TEXT,
        "<default>",
        "unpartitionedStreamName",
        "Name of the znode under a log that holds the log's metadata",
        per_log=False,
    )
    first_lssn: int = setting(
        WHOLE,
        1,
        "firstLogsegmentSequenceNumber",
        "Sequence number of a new log's first segment, unless the namespace's binding gives one",
        minimum=1,
        maximum=MAX_LONG,
        other_keys=("first-logsegment-sequence-number",),
        per_log=False,
    )
    create_log_if_missing: bool = setting(
        FLAG, True, "createStreamIfNotExists", "Whether opening a writer creates a missing log"
    )
    max_id_sanity_check: bool = setting(
        FLAG, True, "maxIdSanityCheck", "Whether a transaction id below the log's highest is refused, record by record"
    )


@dataclass(frozen=True)
class LedgerKeys:
    """Ledgers"""

    ensemble_size: int = setting(
        WHOLE,
        3,
        "bkcEnsembleSize",
        "Storage nodes over which a segment is striped",
        minimum=1,
        maximum=1000,
        other_keys=("ensemble-size",),
        dynamic=True,
    )
    write_quorum: int = setting(
        WHOLE,
        3,
        "bkcWriteQuorumSize",
        "Copies of each entry; at most the ensemble size",
        minimum=1,
        maximum=1000,
        other_keys=("write-quorum-size",),
        dynamic=True,
    )
    ack_quorum: int = setting(
        WHOLE,
        2,
        "bkcAckQuorumSize",
        "Copies on disk before a write is acknowledged; at most the write quorum",
        minimum=1,
        maximum=1000,
        other_keys=("ack-quorum-size",),
        dynamic=True,
    )
    digest_password: str = setting(
        EXACT,
        "",
        "digestPw",
        "Password of the ledgers; writers and readers must agree on it",
        per_log=False,
        secret=True,
    )
    read_timeout_s: int = setting(
        WHOLE,
        10,
        "bkcReadTimeoutSeconds",
        "How long a storage node may take to answer a read, in seconds; not below readLACLongPollTimeout",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    write_timeout_s: int = setting(
        WHOLE,
        10,
        "bkcWriteTimeoutSeconds",
        "How long a storage node may take to answer a write, in seconds, before it is replaced",
        minimum=1,
        maximum=3600,
        per_log=False,
    )


@dataclass(frozen=True)
class SurvivalKeys:
    """Survival"""

    survive: str = setting(
        TEXT,
        "",
        "survive",
        "What may be lost without losing an acknowledged record or the ability to write: `node`, `rack` or `region`; "
        "the three quorums and the placement follow from it (`dlspark regions goals` says the price). Empty: the "
        "quorums as they are set",
        choices=("", NODE, RACK, REGION),
        per_log=False,
        own=True,
    )
    survive_by: str = setting(
        TEXT,
        COPIES,
        "surviveBy",
        "How a region may be lost: by `copies` (6/6/4 over three regions; Java's writers keep it too), or by "
        "`acknowledgements` (3/3/2, half the storage: an entry counts when two regions have it; this library's writers "
        "only)",
        choices=(COPIES, ACKNOWLEDGEMENTS),
        per_log=False,
        own=True,
    )


@dataclass(frozen=True)
class PlacementKeys:
    """Placement"""

    row_aware_placement: bool = setting(
        FLAG,
        False,
        "bkRowAwareEnsemblePlacement",
        "Whether a storage node's rack is its row, as DNSResolverForRows finds it",
        other_keys=("row-aware-ensemble-placement",),
        per_log=False,
    )
    placement_resolver: str = setting(
        TEXT,
        "DNSResolverForRacks",
        "bkEnsemblePlacementDnsResolverClass",
        "What finds racks: DNSResolverForRacks, DNSResolverForRows (by host names), ScriptBasedMapping (by a script) "
        "or announced (what storage nodes of this library say by networkLocation)",
        per_log=False,
    )
    resolver_overrides: str = setting(
        TEXT,
        "",
        "dnsResolverOverrides",
        "Regions that replace those read from host names: host:region;host:region",
        per_log=False,
    )
    region: str = setting(
        TEXT,
        "",
        "region",
        "Region of this process; empty: the environment variable DLSPARK_REGION, else what finds racks says",
        own=True,
        per_log=False,
    )


@dataclass(frozen=True)
class AllocatorKeys:
    """Ledger allocation"""

    allocator_pool: bool = setting(
        FLAG,
        False,
        "enableLedgerAllocatorPool",
        "Whether ledgers are created in advance, in a pool for all logs that have the namespace's quorums",
        dynamic=True,
    )
    allocator_pool_path: str = setting(
        TEXT,
        ".allocation_pool",
        "ledgerAllocatorPoolPath",
        "Folder of allocator pools in the namespace; begins with a dot",
        per_log=False,
    )
    allocator_pool_name: str = setting(
        TEXT,
        "",
        "ledgerAllocatorPoolName",
        "Name of this process's pool, unique among processes; required for enableLedgerAllocatorPool",
        per_log=False,
    )
    allocator_pool_size: int = setting(
        WHOLE,
        20,
        "ledgerAllocatorPoolCoreSize",
        "Ledgers that the pool keeps ready",
        minimum=1,
        maximum=10_000,
        per_log=False,
    )
