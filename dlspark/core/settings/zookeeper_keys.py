"""Settings of the sessions with ZooKeeper: the logs' one, and that of the ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import number, real, text
from metadata.store import RetryPolicy


@dataclass(frozen=True)
class ZooKeeperKeys:
    """ZooKeeper"""

    zk_acl_id: str = text(
        "",
        "zkAclId",
        "Identity of the session, name and password in one: what it creates can be changed with the same one alone, "
        "and read by all; it guards neither ledgers nor storage nodes; empty: none",
        per_log=False,
        secret=True,
    )
    zk_session_timeout_s: int = number(
        30,
        "zkSessionTimeoutSeconds",
        "ZooKeeper session timeout in seconds: how long a dead writer keeps its lock",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    zk_request_rate: float = real(
        0.0,
        "zkRequestRateLimit",
        "Requests a second that the session makes, further ones wait; 0 or less: any number",
        per_log=False,
    )
    zk_retries: int = number(
        3,
        "zkNumRetries",
        "How often a request that may be repeated is, when the connection is lost",
        minimum=0,
        maximum=1000,
        per_log=False,
    )
    zk_retry_start_backoff_ms: int = number(
        5_000,
        "zkRetryStartBackoffMillis",
        "How long the first repetition waits for the connection at most, in milliseconds; further ones twice as long "
        "each",
        minimum=0,
        per_log=False,
    )
    zk_retry_max_backoff_ms: int = number(
        30_000,
        "zkRetryMaxBackoffMillis",
        "Longest wait before a repetition, and between attempts of a reader that cannot read its list of segments, in "
        "milliseconds",
        minimum=1,
        per_log=False,
    )
    bkc_zk_session_timeout_s: int = number(
        30,
        "bkcZKSessionTimeoutSeconds",
        "As zkSessionTimeoutSeconds, for the ledgers' session. They have one of their own where their ZooKeeper is "
        "another one, with zkAclId, and where one of these five keys is set",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    bkc_zk_request_rate: float = real(
        0.0,
        "bkcZKRequestRateLimit",
        "As zkRequestRateLimit, for the ledgers' session",
        per_log=False,
    )
    bkc_zk_retries: int = number(
        3,
        "bkcZKNumRetries",
        "As zkNumRetries, for the ledgers' session",
        minimum=0,
        maximum=1000,
        per_log=False,
    )
    bkc_zk_retry_start_backoff_ms: int = number(
        5_000,
        "bkcZKRetryStartBackoffMillis",
        "As zkRetryStartBackoffMillis, for the ledgers' session",
        minimum=0,
        per_log=False,
    )
    bkc_zk_retry_max_backoff_ms: int = number(
        30_000,
        "bkcZKRetryMaxBackoffMillis",
        "As zkRetryMaxBackoffMillis, for the ledgers' session",
        minimum=1,
        per_log=False,
    )

    @property
    def zk_retry_policy(self) -> RetryPolicy:
        return RetryPolicy(self.zk_retries, self.zk_retry_start_backoff_ms, self.zk_retry_max_backoff_ms)

    @property
    def bkc_zk_retry_policy(self) -> RetryPolicy:
        return RetryPolicy(self.bkc_zk_retries, self.bkc_zk_retry_start_backoff_ms, self.bkc_zk_retry_max_backoff_ms)
