"""`BookieSettings`: a storage node's settings, by those of upstream's keys that are honoured here.

`files` reads them, from a file that holds auto-recovery's as well, and makes conf/bookie.conf from them. That a value
is within its bounds is checked as it is read; what values say together, when the settings are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from metadata.bookkeeper.topology import check_location
from metadata.foundation.errors import CallerError
from metadata.foundation.settings import FLAG, REAL, TEXT, WHOLE, WORDS, required, setting
from metadata.security.audit import AuditKeys
from metadata.security.listening import LOOPBACK, insecure_listen_setting
from metadata.security.sasl.settings import NodeProofSettings
from metadata.security.settings import AdmissionSettings, SecuritySettings
from storage_node.errors import BookieConfigurationError
from storage_node.protocol.frames import MAX_FRAME_BYTES
from storage_node.settings.http import HttpTlsSettings

MIB: Final = 1024 * 1024
MIN_SLAB_BYTES: Final = 256 * 1024
ROOM_IN_SLAB: Final = 8192
"""Bytes that a slab may hold besides the largest entry."""


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """How is one storage node set up? Directories are created where missing; a port of 0 takes a free one."""

    journal_directories: tuple[str, ...] = required(
        WORDS,
        "journalDirectories",
        "One or several, separated by commas; best each on a device of its own. A ledger's records go to one "
        "of them (its id modulo their number), so the number cannot change while the node holds data",
        other_keys=("journalDirectory",),
        section="Directories",
    )
    ledger_directories: tuple[str, ...] = required(
        WORDS,
        "ledgerDirectories",
        "One or several, separated by commas. Entry logs go to those with room, each getting its share by free space",
    )
    allow_storage_expansion: bool = setting(
        FLAG,
        False,
        "allowStorageExpansion",
        "Accept further, empty ledger directories beside those that the node had; its cookie is written anew. "
        "Switch it off again after that start: to an operator a directory that was lost looks the same as a new "
        "one, though not to the node",
    )

    bookie_port: int = setting(
        WHOLE,
        3181,
        "bookiePort",
        "Port for clients; 0 takes a free one (then set bookieId, or the node is another one after each start)",
        minimum=0,
        maximum=65535,
        section="Name and address",
    )
    listening_address: str = setting(
        TEXT,
        "",
        "listeningAddress",
        "Address to listen on; empty: all interfaces, which needs security or insecureListen=allow; without "
        "them the loopback address that advertisedAddress names, if it names one",
    )
    insecure_listen: str = insecure_listen_setting()
    advertised_address: str = setting(
        TEXT, "", "advertisedAddress", "Host name that clients get; empty: listeningAddress, else this host's name"
    )
    allow_loopback: bool = setting(
        FLAG, True, "allowLoopback", "Permit advertising a loopback address that advertisedAddress does not name"
    )
    bookie_id: str | None = setting(
        TEXT,
        None,
        "bookieId",
        "The node's name in ledger metadata; unset: advertised host and port. Never change it once the node holds data",
    )
    use_host_name_as_bookie_id: bool = setting(
        FLAG,
        False,
        "useHostNameAsBookieID",
        "Name the node by its host's name, not its address, where neither bookieId nor advertisedAddress does",
    )
    network_location: str = setting(
        TEXT,
        "",
        "networkLocation",
        "Where the node is, `/region/rack` or `/rack`: it says so in metadata when it starts, for clients with "
        "reppDnsResolverClass=announced. Empty: it says nothing, and what it said before stays until the node is "
        "decommissioned",
        own=True,
    )

    zk_servers: str = setting(
        TEXT, "127.0.0.1:2181", "zkServers", "ZooKeeper's servers: host:port,host:port", section="Metadata"
    )
    zk_ledgers_root_path: str = setting(TEXT, "/ledgers", "zkLedgersRootPath", "Root of the ledgers' tree there")
    zk_timeout_ms: int = setting(
        WHOLE, 10_000, "zkTimeout", "Session timeout, milliseconds", minimum=1000, maximum=600_000
    )

    journal_max_size_mb: int = setting(
        WHOLE,
        256,
        "journalMaxSizeMB",
        "Size at which the journal goes on in another file; this also starts a checkpoint",
        minimum=16,
        maximum=65_536,
        section="Journal",
    )
    journal_pre_alloc_size_mb: int = setting(
        WHOLE,
        16,
        "journalPreAllocSizeMB",
        "How far ahead of the journal its file is written with zeros, so that a commit need not allocate blocks",
        minimum=1,
        maximum=4096,
    )
    journal_max_backups: int = setting(
        WHOLE,
        2,
        "journalMaxBackups",
        "Journal files that are kept for reuse once they are no longer needed",
        minimum=0,
        maximum=100,
    )
    journal_in_place_micros: int = setting(
        WHOLE,
        1000,
        "journalInPlaceMicros",
        "A commit of a single block, while no other one is under way, is made without a hand-over to a thread where "
        "each of the last 16 commits took no longer than this, microseconds. The node does nothing else meanwhile: a "
        "disk that hangs holds up all that it does, reads and its HTTP page too. 0: never; and never with several "
        "journals",
        minimum=0,
        maximum=1_000_000,
    )
    journal_write_once_from_bytes: int = setting(
        WHOLE,
        0,
        "journalWriteOnceFromBytes",
        "Adds that come together and have this size or more, bytes, while others are being written, are written "
        "once: into their entry log, synced before they are answered, and in the journal only the place is noted. "
        "Smaller ones, and those that find nothing under way, are written to both. 0: never. Such an add waits for "
        "the entry log as for the journal: while a ledger disk is full its answer waits, and all later ones of that "
        "journal, fences too; a ledger disk that fails stops the node then, where otherwise it becomes read-only. "
        "Once it was used, a version before this setting does not start on the node's directories, unless the node "
        "was stopped in good order",
        minimum=0,
        maximum=1024 * 1024 * 1024,
    )
    journal_write_once_always: bool = setting(
        FLAG,
        False,
        "journalWriteOnceAlways",
        "Adds of the size that journalWriteOnceFromBytes names are written once also where nothing else is being "
        "written: fewer bytes to the disk, and a longer wait for each",
    )

    flush_interval_ms: int = setting(
        WHOLE,
        10_000,
        "flushInterval",
        "Longest time between checkpoints while there is something to flush, milliseconds",
        minimum=10,
        maximum=3_600_000,
        section="Entry logs and memory",
    )
    log_size_limit: int = setting(
        WHOLE,
        1024 * MIB,
        "logSizeLimit",
        "Bytes at which the entry log goes on in another file. At least a slab: 16 MiB, 8 MiB with a "
        "skipListSizeLimit below 128 MiB, and with one below 32 MiB as little as holds nettyMaxFrameSizeBytes",
        minimum=MIN_SLAB_BYTES,
        maximum=32 * 1024 * MIB,
    )
    skip_list_size_limit: int = setting(
        WHOLE,
        128 * MIB,
        "skipListSizeLimit",
        "Bytes of memory for entries that are not in the entry log yet, and for the tail of the log",
        minimum=4 * MIN_SLAB_BYTES,
        maximum=1 << 40,
    )

    disk_usage_threshold: float = setting(
        REAL,
        0.95,
        "diskUsageThreshold",
        "Fraction of a disk beyond which the node becomes read-only",
        section="Disk space",
    )
    disk_usage_lwm_threshold: float | None = setting(
        REAL, None, "diskUsageLwmThreshold", "Fraction below which it becomes writable again; unset: the same"
    )
    disk_usage_warn_threshold: float = setting(
        REAL, 0.90, "diskUsageWarnThreshold", "Fraction beyond which the log warns, once"
    )
    disk_check_interval_ms: int = setting(
        WHOLE, 10_000, "diskCheckInterval", "Milliseconds between two checks of the disks", minimum=10
    )
    min_usable_size_for_entry_log_creation: int = setting(
        WHOLE,
        64 * MIB,
        "minUsableSizeForEntryLogCreation",
        "Free bytes below which a disk counts as full, whatever the threshold says",
        minimum=0,
    )
    min_usable_size_for_high_priority_writes: int | None = setting(
        WHOLE,
        None,
        "minUsableSizeForHighPriorityWrites",
        "Free bytes above which a read-only node still takes what recovery writes; unset: as above",
        minimum=0,
    )
    read_only_mode_enabled: bool = setting(
        FLAG, True, "readOnlyModeEnabled", "Off: the node stops where it would become read-only"
    )
    read_only_mode_on_any_disk_full_enabled: bool = setting(
        FLAG,
        True,
        "readOnlyModeOnAnyDiskFullEnabled",
        "One full ledger directory makes the node read-only; off: only when all of them are full, and until "
        "then new entry logs go to the others",
    )
    force_read_only_bookie: bool = setting(FLAG, False, "forceReadOnlyBookie", "Read-only whatever the disks say")
    persist_bookie_status_enabled: bool = setting(
        FLAG,
        False,
        "persistBookieStatusEnabled",
        "Remember over a restart that the node was read-only, so that the low-water mark decides when it is "
        "writable again",
    )

    max_adds_in_progress_limit: int = setting(
        WHOLE,
        0,
        "maxAddsInProgressLimit",
        "Adds under way at which no more of them are begun (recovery's excepted) and the sockets they come "
        "from are not read until some are answered; 0: any number",
        minimum=0,
        section="Requests",
    )
    max_reads_in_progress_limit: int = setting(
        WHOLE, 0, "maxReadsInProgressLimit", "The same for requests that read from disk; 0: any number", minimum=0
    )
    max_batch_read_size: int = setting(
        WHOLE,
        MAX_FRAME_BYTES,
        "maxBatchReadSize",
        "Bytes of the answer to a batch read (protocol version 2); its first entry is returned whatever its size",
        minimum=1,
    )
    netty_max_frame_size_bytes: int = setting(
        WHOLE,
        MAX_FRAME_BYTES,
        "nettyMaxFrameSizeBytes",
        "Largest frame in bytes, its length included; the same on clients and nodes",
        minimum=1024,
        maximum=7 * MIB,
    )
    bookie_max_connections: int = setting(
        WHOLE,
        0,
        "bookieMaxConnections",
        "Connections of clients: one more closes the one that was idle for longest, or is refused where none "
        "was idle for 5 s. 0: as many as the process's limit of file descriptors leaves beside files, which "
        "is the bound in any case. The soft limit is raised to the hard one at start",
        minimum=0,
        own=True,
    )
    request_memory_limit: int = setting(
        WHOLE,
        64 * MIB,
        "requestMemoryLimit",
        "Bytes of large requests (above 64 KB) that clients have begun and not ended: beyond it slow senders "
        "are cut, and others wait. As many bytes of requests may wait for write memory; more are refused at "
        "once",
        minimum=8 * MIB,
        own=True,
    )
    response_memory_limit: int = setting(
        WHOLE,
        256 * MIB,
        "responseMemoryLimit",
        "Bytes of answers that wait for their clients, on all connections together, beyond which no more "
        "requests are read from clients that let more than 64 KB wait",
        minimum=1 * MIB,
        own=True,
    )

    http_server_enabled: bool = setting(
        FLAG,
        False,
        "httpServerEnabled",
        "Serve metrics for Prometheus (/metrics) and what probes ask for (/heartbeat, "
        "/api/v1/bookie/is_ready, /state, /info) over HTTP, to every client that can connect; nothing can be "
        "changed there",
        section="HTTP",
    )
    http_server_host: str = setting(
        TEXT,
        LOOPBACK,
        "httpServerHost",
        "Address to listen on; 0.0.0.0: all interfaces, which needs httpServerTlsEnable, or insecureListen=allow. In "
        "BookKeeper it is 0.0.0.0 if not set",
    )
    http_server_port: int = setting(
        WHOLE, 8080, "httpServerPort", "0 takes a free one, which the log names", minimum=0, maximum=65535
    )

    gc_wait_time_ms: int = setting(
        WHOLE,
        600_000,
        "gcWaitTime",
        "Milliseconds between two rounds, each of which deletes the ledgers that metadata no longer names",
        minimum=1,
        section="Garbage collection and compaction",
    )
    verify_metadata_on_gc: bool = setting(
        FLAG, False, "verifyMetadataOnGC", "Read each such ledger's metadata once more before it is deleted"
    )
    gc_overreplicated_ledger_wait_time_ms: int = setting(
        WHOLE,
        86_400_000,
        "gcOverreplicatedLedgerWaitTime",
        "Milliseconds between two looks for closed ledgers that are stored on other nodes by now; 0 or less: never",
    )
    gc_metadata_op_rate_limit: int = setting(
        WHOLE, 1000, "gcMetadataOpRateLimit", "Reads of single ledgers' metadata, a second", minimum=1
    )
    minor_compaction_threshold: float = setting(
        REAL,
        0.2,
        "minorCompactionThreshold",
        "Entry logs of which less than this fraction is live are rewritten; 0 or less: none",
    )
    minor_compaction_interval_s: int = setting(
        WHOLE, 3600, "minorCompactionInterval", "Seconds between two minor compactions; 0 or less: never"
    )
    major_compaction_threshold: float = setting(
        REAL, 0.8, "majorCompactionThreshold", "The same for the major compaction, which is for logs that are fuller"
    )
    major_compaction_interval_s: int = setting(
        WHOLE, 86_400, "majorCompactionInterval", "Seconds between two major compactions; 0 or less: never"
    )
    compaction_rate_by_entries: int = setting(
        WHOLE,
        1000,
        "compactionRateByEntries",
        "Entries that compaction copies a second",
        minimum=1,
        other_keys=("compactionRate",),
    )
    compaction_rate_by_bytes: int = setting(
        WHOLE,
        1_000_000,
        "compactionRateByBytes",
        "Bytes that compaction copies a second, if isThrottleByBytes is on",
        minimum=1,
    )
    is_throttle_by_bytes: bool = setting(FLAG, False, "isThrottleByBytes", "Limit compaction by bytes, not by entries")

    http_tls: HttpTlsSettings = field(default_factory=HttpTlsSettings)
    """How its pages over HTTP are secured."""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    """What the node proves itself with, and whom it believes."""
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    """Whom it lets in, of those who have proved who they are."""
    proofs: NodeProofSettings = field(default_factory=NodeProofSettings)
    """What it asks of them beside a certificate."""
    audit: AuditKeys = field(default_factory=AuditKeys)
    """Where it notes whom it let in, and whom it refused."""

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
            raise BookieConfigurationError(
                "0 < diskUsageLwmThreshold <= diskUsageThreshold <= 1 does not hold, with "
                f"{self.low_water_mark} and {self.disk_usage_threshold}",
                advice="They are fractions of a disk: 0.95 is 95 percent",
            )
        if not 0 < self.disk_usage_warn_threshold <= 1:
            raise BookieConfigurationError(
                f"0 < diskUsageWarnThreshold <= 1 does not hold, with {self.disk_usage_warn_threshold}",
                advice="It is a fraction of a disk: 0.9 is 90 percent",
            )
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
        if self.network_location:
            try:
                check_location(self.network_location, "networkLocation")
            except CallerError as error:
                raise BookieConfigurationError(error.message, advice=error.advice) from error

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
        """The usage, from 0 to 1, at which a full disk counts as usable again; by default that at which it is full."""
        return self.disk_usage_threshold if self.disk_usage_lwm_threshold is None else self.disk_usage_lwm_threshold

    @property
    def high_priority_reserve(self) -> int:
        """Free bytes above which a read-only node still takes a recovery's adds; by default what a new log needs."""
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
