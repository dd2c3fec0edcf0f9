"""`AutoRecoverySettings`: BookKeeper's keys of auto-recovery, as far as they are honoured here.

They stand in the same file as a bookie's own (conf/bookie.conf), together with the keys of the ledger client that
auto-recovery works with, placement's above all. A process that is auto-recovery alone takes the same file.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from metadata.foundation.errors import CallerError
from storage_node.errors import BookieConfigurationError
from storage_node.settings.bookie import BookieSettings
from storage_node.settings.client import ClientSettings, Value
from storage_node.settings.other_keys import OTHER_KEYS, PLACEMENT_KEYS

_SHARED: Final = frozenset({"nettyMaxFrameSizeBytes"})
"""Keys of both the bookie and the client."""

_OLDER_NAMES: Final = frozenset({"journalDirectory", "compactionRate"})
"""What a node understands besides."""


def _key(name: str, *, minimum: int | None = None, maximum: int | None = None) -> dict[str, object]:
    return {"key": name, "minimum": minimum, "maximum": maximum}


@dataclass(frozen=True, slots=True)
class AutoRecoverySettings:
    """Auto-recovery's configuration."""

    auto_recovery_daemon_enabled: bool = field(default=False, metadata=_key("autoRecoveryDaemonEnabled"))
    """Run auto-recovery inside of the storage node's process."""
    lost_bookie_recovery_delay_s: int = field(default=0, metadata=_key("lostBookieRecoveryDelay", minimum=0))
    """Seconds to wait for a single lost bookie; the first process of a cluster writes it into the metadata, where it
    can be changed from then on."""
    periodic_bookie_check_interval_s: int = field(default=86_400, metadata=_key("auditorPeriodicBookieCheckInterval"))
    """Between two full audits of who is there; 0 or less: only when the auditor begins."""
    periodic_check_interval_s: int = field(default=604_800, metadata=_key("auditorPeriodicCheckInterval"))
    """Between two checks of all ledgers by reading; 0 or less: never."""
    periodic_placement_check_interval_s: int = field(
        default=0, metadata=_key("auditorPeriodicPlacementPolicyCheckInterval")
    )
    """Between two checks whether closed ledgers keep the placement policy; 0 or less: never."""
    ledger_verification_percentage: int = field(
        default=0, metadata=_key("auditorLedgerVerificationPercentage", minimum=0, maximum=100)
    )
    """How many of a fragment's entries are read from each bookie, beside the first and the last."""
    max_concurrent_ledger_checks: int = field(
        default=50, metadata=_key("auditorMaxNumberOfConcurrentOpenLedgerOperations", minimum=1, maximum=10_000)
    )
    """Ledgers that the check by reading has in hand at once."""
    in_flight_check_reads: int = field(default=64, metadata=_key("inFlightReadEntryNumInLedgerChecker"))
    """Entries that checks read at once; 0 or less: no limit."""
    store_mark_time: bool = field(default=True, metadata=_key("storeSystemTimeAsLedgerUnderreplicatedMarkTime"))
    """Write into each mark when it was made."""
    open_ledger_grace_period_ms: int = field(
        default=30_000, metadata=_key("openLedgerRereplicationGracePeriod", minimum=0)
    )
    """How long a ledger's writer is given to replace a lost bookie by itself before the ledger is fenced and closed."""
    failed_ledger_lock_period_ms: int = field(
        default=300_000, metadata=_key("lockReleaseOfFailedLedgerGracePeriod", minimum=0)
    )
    """For so long at most a ledger that could not be repaired is left alone; it begins with a 32nd of it."""
    rereplicate_backoff_ms: int = field(default=5_000, metadata=_key("rwRereplicateBackoffMs", minimum=1))
    """Pause of a worker after a failure."""
    entry_batch_size: int = field(default=10, metadata=_key("rereplicationEntryBatchSize", minimum=1, maximum=1_000))
    """Entries that are copied at once."""
    rate_by_bytes: int = field(default=-1, metadata=_key("replicationRateByBytes"))
    """Bytes a second that one process copies; 0 or less: no limit."""
    client: ClientSettings = field(default_factory=ClientSettings)
    """The ledger client's."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> AutoRecoverySettings:
        """The settings in a node's file; what is not auto-recovery's is left to whom it belongs.

        Raises BookieConfigurationError.
        """
        by_key = {str(item.metadata["key"]): item for item in fields(cls) if item.metadata}
        given: dict[str, object] = {}
        for_client: dict[str, Value] = {}
        for key, text in values.items():
            if key in by_key:
                given[by_key[key].name] = _parse(key, str(by_key[key].type), text.strip(), by_key[key].metadata)
            elif key in PLACEMENT_KEYS or key in _SHARED:
                for_client[key] = text
        try:
            return cls(**given, client=ClientSettings.from_mapping(for_client))  # type: ignore[arg-type]
        except CallerError as error:
            raise BookieConfigurationError(error.message, advice=error.advice) from error


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """Where the metadata is: what a process needs of the bookie's keys that is auto-recovery alone."""

    zk_servers: str = field(default="127.0.0.1:2181", metadata=_key("zkServers"))
    zk_ledgers_root_path: str = field(default="/ledgers", metadata=_key("zkLedgersRootPath"))
    zk_timeout_ms: int = field(default=10_000, metadata=_key("zkTimeout", minimum=1000, maximum=600_000))
    bookie_id: str = field(default="", metadata=_key("bookieId"))
    """The name under which it stands for election and takes locks; empty: this host's."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> MetadataSettings:
        """Its keys among those of a node's file. Raises BookieConfigurationError for a key that is nobody's."""
        by_key = {str(item.metadata["key"]): item for item in fields(cls)}
        nodes = {str(item.metadata["key"]) for item in fields(BookieSettings)} | _OLDER_NAMES
        given: dict[str, object] = {}
        for key, text in values.items():
            if key in by_key:
                given[by_key[key].name] = _parse(key, str(by_key[key].type), text.strip(), by_key[key].metadata)
            elif key not in nodes and key not in OTHER_KEYS:
                near = difflib.get_close_matches(key, sorted(nodes | OTHER_KEYS), 1, 0.0)[0]
                raise BookieConfigurationError(
                    f"unknown key {key}", advice=f"The nearest key is {near}; conf/bookie.conf lists all of them"
                )
        return cls(**given)  # type: ignore[arg-type]


def _parse(key: str, kind: str, text: str, bounds: Mapping[str, object]) -> object:
    if kind == "str":
        return text
    try:
        value = {"true": True, "false": False}[text.lower()] if kind == "bool" else int(text)
    except (ValueError, KeyError):
        raise BookieConfigurationError(f"{key}={text} is no {kind}") from None
    low, high = bounds["minimum"], bounds["maximum"]
    if (isinstance(low, int) and value < low) or (isinstance(high, int) and value > high):
        raise BookieConfigurationError(f"{key}={value} is out of bounds: {low} to {high if high is not None else '…'}")
    return value
