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

MIB = 1024 * 1024


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
        default=1024 * MIB, metadata=_key("logSizeLimit", minimum=16 * MIB, maximum=32 * 1024 * MIB)
    )
    """Bytes at which the entry log goes on in another file."""
    skip_list_size_limit: int = field(
        default=128 * MIB, metadata=_key("skipListSizeLimit", minimum=32 * MIB, maximum=1 << 40)
    )
    """Bytes of memory for entries not yet in the entry log; what is flushed stays there as the tail cache."""
    disk_usage_threshold: float = field(default=0.95, metadata=_key("diskUsageThreshold"))
    disk_usage_lwm_threshold: float | None = field(default=None, metadata=_key("diskUsageLwmThreshold"))
    """Usage below which a read-only node becomes writable again; None: the threshold itself."""
    disk_check_interval_ms: int = field(default=10_000, metadata=_key("diskCheckInterval", minimum=10))
    min_usable_size_for_entry_log_creation: int = field(
        default=64 * MIB, metadata=_key("minUsableSizeForEntryLogCreation", minimum=0)
    )
    """Free bytes below which a ledger directory counts as full, whatever the threshold says."""
    netty_max_frame_size_bytes: int = field(
        default=MAX_FRAME_BYTES, metadata=_key("nettyMaxFrameSizeBytes", minimum=1024, maximum=7 * MIB)
    )

    def __post_init__(self) -> None:
        if len(self.journal_directories) != 1:
            raise BookieConfigurationError(
                f"journalDirectories names {len(self.journal_directories)} directories, this node has one journal",
                advice="Name one directory; to use more disks, run more nodes",
            )
        if not self.ledger_directories:
            raise BookieConfigurationError("ledgerDirectories names no directory")
        every = [*self.journal_directories, *self.ledger_directories]
        if len(set(self.ledger_directories)) != len(self.ledger_directories) or any("," in path for path in every):
            raise BookieConfigurationError(
                "a ledger directory is named twice, or a directory's name has a comma",
                advice="Give every directory its own, plain name",
            )
        if not 0 < self.low_water_mark <= self.disk_usage_threshold <= 1:
            raise BookieConfigurationError("0 < diskUsageLwmThreshold <= diskUsageThreshold <= 1 does not hold")
        if self.skip_list_size_limit < 4 * self.slab_bytes:
            raise BookieConfigurationError(f"skipListSizeLimit is below {4 * self.slab_bytes} bytes")

    @property
    def low_water_mark(self) -> float:
        return self.disk_usage_threshold if self.disk_usage_lwm_threshold is None else self.disk_usage_lwm_threshold

    @property
    def slab_bytes(self) -> int:
        """Unit of the write memory: must hold the largest entry."""
        return 8 * MIB if self.skip_list_size_limit < 128 * MIB else 16 * MIB

    @classmethod
    def from_properties(cls, path: str | Path) -> BookieSettings:
        """Read a properties file. Raises BookieConfigurationError, which names key and file."""
        import javaproperties

        try:
            with Path(path).open("rb") as stream:
                values: dict[str, str] = javaproperties.load(stream)
        except (OSError, ValueError) as error:
            raise BookieConfigurationError(f"cannot read the configuration: {error}", path=str(path)) from error
        try:
            return cls.from_mapping(values)
        except BookieConfigurationError as error:
            error.path = str(path)
            raise

    @classmethod
    def from_mapping(cls, values: Mapping[str, str]) -> BookieSettings:
        """Settings from upstream's keys and their texts. Raises BookieConfigurationError."""
        by_key = {str(f.metadata["key"]): f for f in fields(cls)}
        renamed = {"journalDirectory": "journalDirectories"}
        given: dict[str, object] = {}
        for name, text in values.items():
            key = renamed.get(name, name)
            if key not in by_key:
                near = difflib.get_close_matches(name, by_key, 1, 0.0)[0]
                raise BookieConfigurationError(
                    f"unknown key {name}", advice=f"The nearest key is {near}; conf/bookie.conf lists all of them"
                )
            known = by_key[key]
            given[known.name] = _parse(key, str(known.type), text.strip(), known.metadata)
        for name in ("journal_directories", "ledger_directories"):
            if name not in given:
                raise BookieConfigurationError(f"{'journal' if name[0] == 'j' else 'ledger'}Directories is not set")
        return cls(**given)  # type: ignore[arg-type]


def _parse(key: str, kind: str, text: str, bounds: Mapping[str, object]) -> object:
    """One value as its field's type. Raises BookieConfigurationError."""
    try:
        if kind.startswith("tuple"):
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind.startswith("float"):
            return float(text)
        if kind != "int":
            return text
        number = int(text)
    except (ValueError, KeyError):
        raise BookieConfigurationError(f"{key}={text} is no {kind.partition(' ')[0]}") from None
    low, high = bounds["minimum"], bounds["maximum"]
    if (isinstance(low, int) and number < low) or (isinstance(high, int) and number > high):
        raise BookieConfigurationError(f"{key}={number} is out of bounds: {low} to {high}")
    return number
