"""Settings of the metadata store and of what logs are in it."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number, text


@dataclass(frozen=True)
class MetadataKeys:
    """Metadata"""

    zk_session_timeout_s: int = number(
        30,
        "zkSessionTimeoutSeconds",
        "ZooKeeper session timeout in seconds: how long a dead writer keeps its lock",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    zk_retry_max_backoff_ms: int = number(
        30_000,
        "zkRetryMaxBackoffMillis",
        "Longest pause in milliseconds between retries of a reader that cannot read its list of segments",
        minimum=1,
        per_log=False,
    )
    unpartitioned_stream_name: str = text(
        "<default>",
        "unpartitionedStreamName",
        "Name of the znode under a log that holds it",
        per_log=False,
    )
    first_lssn: int = number(
        1,
        "firstLogsegmentSequenceNumber",
        "Sequence number of a new log's first segment, unless the namespace's binding gives one",
        minimum=1,
        maximum=2**63 - 1,
        old_key="first-logsegment-sequence-number",
        per_log=False,
    )
    create_log_if_missing: bool = flag(
        True,
        "createStreamIfNotExists",
        "Whether opening a writer creates a missing log",
    )
    max_id_sanity_check: bool = flag(
        True,
        "maxIdSanityCheck",
        "Whether a transaction id below the log's highest is refused, record by record",
    )
