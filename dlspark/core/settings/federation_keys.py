"""Settings of federated namespaces."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number


@dataclass(frozen=True)
class FederationKeys:
    """Federation"""

    federated: bool = flag(
        False,
        "federatedNamespaceEnabled",
        "Whether the namespace is treated as federated also where its binding does not say so",
        per_log=False,
    )
    federated_max_logs: int = number(
        15_000,
        "federatedMaxLogsPerSubnamespace",
        "Logs of a sub-namespace beyond which a further one is made",
        minimum=1,
        per_log=False,
    )
    federated_ask_on_miss: bool = flag(
        True,
        "federatedCheckExistenceWhenCacheMiss",
        "Whether ZooKeeper is asked for a log that is not known; false: the lists of names that were read decide, and "
        "a log that was created elsewhere just now may be missed",
        per_log=False,
    )
