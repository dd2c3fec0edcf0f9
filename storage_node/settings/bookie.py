"""`BookieSettings`: upstream's configuration keys, as far as they are honoured here (conf/bookie.conf lists them).

A key that is not honoured is an error that names the nearest one, never ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from storage_node.errors import BookieConfigurationError
from storage_node.protocol.frames import MAX_FRAME_BYTES
from storage_node.settings.other_keys import OTHER_KEYS

MIB = 1024 * 1024
MIN_SLAB_BYTES = 256 * 1024
ROOM_IN_SLAB = 8192
"""What a slab may hold besides the largest entry."""


def _key(name: str, *, minimum: int | None = None, maximum: int | None = None) -> dict[str, object]:
    return {"key": name, "minimum": minimum, "maximum": maximum}


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """One storage node's configuration. Directories are created where missing; a port of 0 takes a free one."""

    journal_directories: tuple[str, ...] = field(metadata=_key("journalDirectories"))
    ledger_directories: tuple[str, ...] = field(metadata=_key("ledgerDirectories"))
    bookie_port: int = field(default=3181, metadata=_key("bookiePort", minimum=0, maximum=65535))
    listening_address: str = field(default="", metadata=_key("listeningAddress"))
    """Address to listen on; empty: all interfaces."""
    advertised_address: str = field(default="", metadata=_key("advertisedAddress"))
    """Host that clients are told; empty: the listening address, else this host's name."""
    allow_loopback: bool = field(default=True, metadata=_key("allowLoopback"))
    """Permit advertising a loopback address that was not named explicitly."""
    bookie_id: str | None = field(default=None, metadata=_key("bookieId"))
    """None: advertised host and port."""
    use_host_name_as_bookie_id: bool = field(default=False, metadata=_key("useHostNameAsBookieID"))
    """Name the node by the host's name, not its address, where nothing else names it."""
    allow_storage_expansion: bool = field(default=False, metadata=_key("allowStorageExpansion"))
    """Accept further, empty ledger directories beside those that the cookie names."""
    zk_servers: str = field(default="127.0.0.1:2181", metadata=_key("zkServers"))
    zk_ledgers_root_path: str = field(default="/ledgers", metadata=_key("zkLedgersRootPath"))
    zk_timeout_ms: int = field(default=10_000, metadata=_key("zkTimeout", minimum=1000, maximum=600_000))
    journal_max_size_mb: int = field(default=256, metadata=_key("journalMaxSizeMB", minimum=16, maximum=65536))
    """Size at which the journal goes on in another file; a full file also starts a checkpoint."""
    journal_pre_alloc_size_mb: int = field(default=16, metadata=_key("journalPreAllocSizeMB", minimum=1, maximum=4096))
    """How far ahead of the journal its file is written with zeros, so that a commit needs no block allocation."""
    journal_max_backups: int = field(default=2, metadata=_key("journalMaxBackups", minimum=0, maximum=100))
    """Journal files that are kept for reuse once they are no longer needed."""
    flush_interval_ms: int = field(default=10_000, metadata=_key("flushInterval", minimum=10, maximum=3_600_000))
    """Longest time between checkpoints while there is something to flush."""
    log_size_limit: int = field(
        default=1024 * MIB, metadata=_key("logSizeLimit", minimum=MIN_SLAB_BYTES, maximum=32 * 1024 * MIB)
    )
    """Bytes at which the entry log goes on in another file; at least a slab."""
    skip_list_size_limit: int = field(
        default=128 * MIB, metadata=_key("skipListSizeLimit", minimum=4 * MIN_SLAB_BYTES, maximum=1 << 40)
    )
    """Bytes of memory for entries not yet in the entry log; what is flushed stays there as the tail cache."""
    disk_usage_threshold: float = field(default=0.95, metadata=_key("diskUsageThreshold"))
    disk_usage_warn_threshold: float = field(default=0.90, metadata=_key("diskUsageWarnThreshold"))
    """Usage beyond which the log warns, once."""
    disk_usage_lwm_threshold: float | None = field(default=None, metadata=_key("diskUsageLwmThreshold"))
    """Usage below which a read-only node becomes writable again; None: the threshold itself."""
    disk_check_interval_ms: int = field(default=10_000, metadata=_key("diskCheckInterval", minimum=10))
    min_usable_size_for_entry_log_creation: int = field(
        default=64 * MIB, metadata=_key("minUsableSizeForEntryLogCreation", minimum=0)
    )
    """Free bytes below which a directory counts as full, whatever the threshold says."""
    min_usable_size_for_high_priority_writes: int | None = field(
        default=None, metadata=_key("minUsableSizeForHighPriorityWrites", minimum=0)
    )
    """Free bytes above which a read-only node still takes what recovery writes; None: as for entry logs."""
    read_only_mode_enabled: bool = field(default=True, metadata=_key("readOnlyModeEnabled"))
    """Off: the node stops where it would become read-only."""
    read_only_mode_on_any_disk_full_enabled: bool = field(
        default=True, metadata=_key("readOnlyModeOnAnyDiskFullEnabled")
    )
    """One full ledger directory makes the node read-only; off: only when all are full."""
    force_read_only_bookie: bool = field(default=False, metadata=_key("forceReadOnlyBookie"))
    """The operator's wish: read-only whatever the disks say."""
    persist_bookie_status_enabled: bool = field(default=False, metadata=_key("persistBookieStatusEnabled"))
    """Remember over a restart that the node was read-only: the low-water mark then decides when it is writable."""
    gc_wait_time_ms: int = field(default=600_000, metadata=_key("gcWaitTime", minimum=1))
    """Time between two rounds of garbage collection."""
    gc_overreplicated_ledger_wait_time_ms: int = field(
        default=86_400_000, metadata=_key("gcOverreplicatedLedgerWaitTime")
    )
    """Time between two looks for closed ledgers that are stored elsewhere by now; 0 or less: never."""
    verify_metadata_on_gc: bool = field(default=False, metadata=_key("verifyMetadataOnGC"))
    """Read a ledger's metadata once more before it is collected."""
    gc_metadata_op_rate_limit: int = field(default=1000, metadata=_key("gcMetadataOpRateLimit", minimum=1))
    """Reads of single ledgers' metadata, a second."""
    minor_compaction_threshold: float = field(default=0.2, metadata=_key("minorCompactionThreshold"))
    """Logs of which a smaller part is live are rewritten; 0 or less: never. So for the major compaction."""
    minor_compaction_interval_s: int = field(default=3600, metadata=_key("minorCompactionInterval"))
    """0 or less: never."""
    major_compaction_threshold: float = field(default=0.8, metadata=_key("majorCompactionThreshold"))
    major_compaction_interval_s: int = field(default=86_400, metadata=_key("majorCompactionInterval"))
    compaction_rate_by_entries: int = field(default=1000, metadata=_key("compactionRateByEntries", minimum=1))
    """Entries that compaction copies a second."""
    compaction_rate_by_bytes: int = field(default=1_000_000, metadata=_key("compactionRateByBytes", minimum=1))
    """Bytes that it copies a second, where isThrottleByBytes says that they count."""
    is_throttle_by_bytes: bool = field(default=False, metadata=_key("isThrottleByBytes"))
    max_adds_in_progress_limit: int = field(default=0, metadata=_key("maxAddsInProgressLimit", minimum=0))
    """Adds under way at which the node stops reading requests, until some are answered; 0: any number."""
    max_reads_in_progress_limit: int = field(default=0, metadata=_key("maxReadsInProgressLimit", minimum=0))
    """The same for requests that read entries from disk; 0: any number."""
    max_batch_read_size: int = field(default=MAX_FRAME_BYTES, metadata=_key("maxBatchReadSize", minimum=1))
    """Bytes of the answer to a batch read, its first entry excepted."""
    bookie_max_connections: int = field(default=0, metadata=_key("bookieMaxConnections", minimum=0))
    """Connections of clients; one more closes an idle one. 0: what the process's limit of file descriptors leaves."""
    request_memory_limit: int = field(default=64 * MIB, metadata=_key("requestMemoryLimit", minimum=8 * MIB))
    """Bytes of large requests that are not there whole yet; the same of such that wait for write memory."""
    response_memory_limit: int = field(default=256 * MIB, metadata=_key("responseMemoryLimit", minimum=1 * MIB))
    """Bytes of answers that wait for clients; beyond it no more requests are read from those that let them wait."""
    netty_max_frame_size_bytes: int = field(
        default=MAX_FRAME_BYTES, metadata=_key("nettyMaxFrameSizeBytes", minimum=1024, maximum=7 * MIB)
    )

    http_server_enabled: bool = field(default=False, metadata=_key("httpServerEnabled"))
    """Serve metrics, and what probes ask for, over HTTP (`endpoints`)."""
    http_server_host: str = field(default="0.0.0.0", metadata=_key("httpServerHost"))
    http_server_port: int = field(default=8080, metadata=_key("httpServerPort", minimum=0, maximum=65535))
    """0 takes a free one, which the log tells."""

    def __post_init__(self) -> None:
        for key, directories in (
            ("journalDirectories", self.journal_directories),
            ("ledgerDirectories", self.ledger_directories),
        ):
            if not directories:
                raise BookieConfigurationError(f"{key} names no directory")
            if len(set(directories)) != len(directories) or any("," in path for path in directories):
                raise BookieConfigurationError(
                    f"{key} names a directory twice, or one whose name has a comma",
                    advice="Give every directory its own, plain name",
                )
        if not 0 < self.low_water_mark <= self.disk_usage_threshold <= 1:
            raise BookieConfigurationError("0 < diskUsageLwmThreshold <= diskUsageThreshold <= 1 does not hold")
        if not 0 < self.disk_usage_warn_threshold <= 1:
            raise BookieConfigurationError("0 < diskUsageWarnThreshold <= 1 does not hold")
        if self.skip_list_size_limit < 4 * self.slab_bytes:
            raise BookieConfigurationError(
                f"skipListSizeLimit is below {4 * self.slab_bytes} bytes",
                advice="Raise it, or lower nettyMaxFrameSizeBytes: four parts of it each hold the largest entry",
            )
        if self.log_size_limit < self.slab_bytes:
            raise BookieConfigurationError(
                f"logSizeLimit is below {self.slab_bytes} bytes",
                advice="Raise it, or lower skipListSizeLimit or nettyMaxFrameSizeBytes",
            )
        self._check_compaction()

    def _check_compaction(self) -> None:
        minor, major = self.minor_compaction_threshold, self.major_compaction_threshold
        if max(minor, major) >= 1:
            raise BookieConfigurationError(
                "a compaction threshold is not below 1", advice="Every log would be rewritten for ever; 0.8 is usual"
            )
        if 0 < major < minor:
            raise BookieConfigurationError("minorCompactionThreshold is above majorCompactionThreshold")
        for key, interval in (
            ("minorCompactionInterval", self.minor_compaction_interval_s),
            ("majorCompactionInterval", self.major_compaction_interval_s),
        ):
            if 0 < interval * 1000 < self.gc_wait_time_ms:
                raise BookieConfigurationError(
                    f"{key} ({interval} s) is shorter than gcWaitTime ({self.gc_wait_time_ms} ms)",
                    advice="Compaction is a part of garbage collection: lower gcWaitTime or raise the interval",
                )

    @property
    def low_water_mark(self) -> float:
        return self.disk_usage_threshold if self.disk_usage_lwm_threshold is None else self.disk_usage_lwm_threshold

    @property
    def high_priority_reserve(self) -> int:
        given = self.min_usable_size_for_high_priority_writes
        return self.min_usable_size_for_entry_log_creation if given is None else given

    @property
    def slab_bytes(self) -> int:
        """Unit of the write memory: must hold the largest entry."""
        if self.skip_list_size_limit >= 32 * MIB:
            return 8 * MIB if self.skip_list_size_limit < 128 * MIB else 16 * MIB
        size = MIN_SLAB_BYTES
        while size < self.netty_max_frame_size_bytes + ROOM_IN_SLAB:
            size *= 2
        return size

    @classmethod
    def from_properties(cls, path: str | Path) -> BookieSettings:
        """Read a properties file. Raises BookieConfigurationError, which names key and file."""
        values = read_properties(path)
        try:
            return cls.from_mapping(values)
        except BookieConfigurationError as error:
            error.path = str(path)
            raise

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> BookieSettings:
        """Settings from upstream's keys and their texts; auto-recovery's keys are left to it.

        Raises BookieConfigurationError.
        """
        by_key = {str(f.metadata["key"]): f for f in fields(cls)}
        renamed = {"journalDirectory": "journalDirectories", "compactionRate": "compactionRateByEntries"}
        given: dict[str, object] = {}
        for name, text in values.items():
            key = renamed.get(name, name)
            if key in OTHER_KEYS:
                continue
            if key not in by_key:
                near = difflib.get_close_matches(name, [*by_key, *sorted(OTHER_KEYS)], 1, 0.0)[0]
                raise BookieConfigurationError(
                    f"unknown key {name}",
                    advice=f"The nearest key is {near}; what `dlspark bookie init` writes lists all of them",
                )
            known = by_key[key]
            given[known.name] = _parse(key, str(known.type), text.strip(), known.metadata)
        for name in ("journal_directories", "ledger_directories"):
            if name not in given:
                raise BookieConfigurationError(f"{'journal' if name[0] == 'j' else 'ledger'}Directories is not set")
        return cls(**given)  # type: ignore[arg-type]


def read_properties(path: str | Path) -> dict[str, str]:
    """A properties file as keys and texts. Raises BookieConfigurationError."""
    import javaproperties

    try:
        with Path(path).open("rb") as stream:
            values: dict[str, str] = javaproperties.load(stream)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BookieConfigurationError(f"cannot read the configuration: {why}", path=str(path)) from error
    return values


def _parse(key: str, kind: str, text: str, bounds: Mapping[str, object]) -> object:
    """One value as its field's type. Raises BookieConfigurationError."""
    try:
        if kind.startswith("tuple"):
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind.startswith("float"):
            return float(text)
        if not kind.startswith("int"):
            return text
        number = int(text)
    except (ValueError, KeyError):
        raise BookieConfigurationError(f"{key}={text} is no {kind.partition(' ')[0]}") from None
    low, high = bounds["minimum"], bounds["maximum"]
    if (isinstance(low, int) and number < low) or (isinstance(high, int) and number > high):
        raise BookieConfigurationError(f"{key}={number} is out of bounds: {low} to {high}")
    return number
