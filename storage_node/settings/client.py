"""`ClientSettings`: every time limit and bound of the ledger client, with BookKeeper's keys and (mostly) defaults.

A setting is a field; beside it stand its key, what it means and its bounds. docs/client-settings.md is the same table
for people (`settings_table` makes it), and a test keeps the two equal. Fields count in milliseconds where a key counts
in seconds.

A key that cannot be honoured is an error that names the nearest one or says why, never ignored. Keys reach this class
from a namespace's settings, where they carry the prefix `bkc.`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TypeAlias

from metadata.foundation.errors import CallerError
from storage_node.protocol.frames import MAX_FRAME_BYTES
from storage_node.settings.placement import PlacementSettings
from storage_node.settings.refused_keys import WITHOUT_MEANING

Value: TypeAlias = bool | int | float | str

SECOND = 1000
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ClientKey:
    """What is known of one setting besides its value. The field is `scale` times what the key says."""

    key: str
    meaning: str
    scale: int = 1
    minimum: float = 1
    own: bool = False
    """Not one of BookKeeper's keys."""
    aliases: tuple[str, ...] = ()


def _ms(default_ms: int, key: str, meaning: str, *, scale: int = 1, minimum: int = 1, own: bool = False) -> int:
    info = ClientKey(key, meaning, scale, minimum, own)
    value: int = field(default=default_ms, metadata={"info": info})
    return value


def _number(default: int, key: str, meaning: str, *, minimum: int = 1, own: bool = False) -> int:
    value: int = field(default=default, metadata={"info": ClientKey(key, meaning, 1, minimum, own)})
    return value


def _factor(default: float, key: str, meaning: str) -> float:
    value: float = field(default=default, metadata={"info": ClientKey(key, meaning)})
    return value


def _flag(default: bool, key: str, meaning: str, *, own: bool = False, aliases: tuple[str, ...] = ()) -> bool:
    value: bool = field(default=default, metadata={"info": ClientKey(key, meaning, own=own, aliases=aliases)})
    return value


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Times in milliseconds, counted from the moment a request is handed to its connection."""

    # Requests
    add_entry_timeout_ms: int = _ms(
        5_000,
        "addEntryTimeoutSec",
        "An add without an answer counts as failed after so many seconds, and its storage node is replaced",
        scale=SECOND,
    )
    add_entry_quorum_timeout_ms: int = _ms(
        0,
        "addEntryQuorumTimeoutSec",
        "An entry that is not acknowledged after so many seconds, whatever is tried, ends its writer; 0 or less: never",
        scale=SECOND,
        minimum=-_MAX_INT,
    )
    read_entry_timeout_ms: int = _ms(
        5_000, "readEntryTimeoutSec", "Every other request without an answer fails after so many seconds", scale=SECOND
    )
    read_operation_timeout_ms: int = _ms(
        30_000,
        "readOperationTimeoutMillis",
        "A read that no replica has answered fails after so many milliseconds, however many are left to ask",
        own=True,
    )
    connect_timeout_ms: int = _ms(
        10_000, "clientConnectTimeoutMillis", "Milliseconds until an attempt to connect is given up"
    )
    channels_per_bookie: int = _number(
        1, "numChannelsPerBookie", "Connections to each storage node; a ledger uses one of them"
    )
    max_frame_bytes: int = _number(
        MAX_FRAME_BYTES,
        "nettyMaxFrameSizeBytes",
        "Largest frame that the storage nodes take; an entry has to fit with its headers",
        minimum=1024,
    )

    # Writing
    delay_ensemble_change: bool = _flag(
        False,
        "delayEnsembleChange",
        "Replace a storage node only when an entry cannot reach its ack quorum otherwise, or the node is read-only",
    )
    max_ensemble_changes: int = _number(
        _MAX_INT, "maxNumEnsembleChanges", "Ensemble changes after which a writer fails", minimum=0
    )
    opportunistic_striping: bool = _flag(
        False,
        "opportunisticStriping",
        "Create a ledger on fewer nodes than its ensemble size, down to the write quorum, where no more are to be had",
    )
    explicit_lac_interval_ms: int = _ms(
        0,
        "explicitLacInterval",
        "Tell the storage nodes the last confirmed entry after so many milliseconds if no later entry has; 0: never; "
        "in a namespace 10 unless it is set",
        minimum=0,
    )
    max_outstanding_bytes: int = _number(
        64 * 1024 * 1024,
        "maxOutstandingBytes",
        "`wait_for_room` waits while more than this is unacknowledged, or queued for one storage node",
        own=True,
    )
    replacement_pause_ms: int = _ms(
        5_000,
        "replacementPauseMillis",
        "For so long a storage node that failed replaces no other while the writer can do without",
        own=True,
    )
    replacement_timeout_ms: int = _ms(
        2_000,
        "replacementTimeoutMillis",
        "How long an ensemble change waits for the list of storage nodes while the writer can do without a replacement",
        own=True,
    )
    vacancy_retry_ms: int = _ms(
        1_000,
        "vacancyRetryMillis",
        "How often a writer that could not replace a storage node tries again",
        own=True,
    )

    # Reading
    speculative_read_ms: int = _ms(
        2_000,
        "firstSpeculativeReadTimeout",
        "A read without an answer is put to the next replica as well after so many milliseconds; 0: never",
        minimum=0,
    )
    max_speculative_read_ms: int = _ms(
        2_000, "maxSpeculativeReadTimeout", "Longest pause, in milliseconds, before yet another replica is asked"
    )
    speculative_read_factor: float = _factor(
        2.0, "speculativeReadTimeoutBackoffMultiplier", "By how much that pause grows from replica to replica"
    )
    speculative_lac_ms: int = _ms(
        1_500,
        "firstSpeculativeReadLACTimeout",
        "A long poll without an answer is put to the next storage node as well after so many milliseconds; 0: never",
        minimum=0,
    )
    max_speculative_lac_ms: int = _ms(
        5_000, "maxSpeculativeReadLACTimeout", "Longest pause, in milliseconds, before yet another is polled"
    )
    speculative_lac_factor: float = _factor(
        2.0, "speculativeReadLACTimeoutBackoffMultiplier", "By how much that pause grows from node to node"
    )
    long_poll_ms: int = _ms(
        1_000,
        "longPollMillis",
        "Longest wait asked of a storage node in one long poll; it must stay below readEntryTimeoutSec",
        own=True,
    )
    reorder_reads: bool = _flag(
        True,
        "reorderReadSequenceEnabled",
        "Ask replicas on nodes that are read-only, slow or unavailable after the others, and clearly faster ones first",
    )
    sticky_reads: bool = _flag(
        False,
        "stickyReadSEnabled",
        "Read a ledger from one storage node as long as it answers, where every node has every entry",
        aliases=("stickyReadsEnabled",),
    )
    batch_reads: bool = _flag(
        True,
        "batchReadEnabled",
        "Read ranges of small entries in one request each, where every storage node has every entry",
    )
    batch_read_max_entry_bytes: int = _number(
        64 * 1024,
        "batchReadMaxEntryBytes",
        "Average size above which entries are read one by one all the same",
        own=True,
    )
    failure_memory_ms: int = _ms(
        60_000,
        "bookieFailureHistoryExpirationMSec",
        "For so many milliseconds a storage node that failed or was slow is asked last, and taken last for ensembles",
    )

    outage_wait_ms: int = _ms(
        0,
        "outageWaitMillis",
        "How long an operation for which too few storage nodes answer is tried again, before it fails; 0: not at all",
        minimum=0,
        own=True,
    )

    # Recovery
    recovery_window_entries: int = _number(
        16, "recoveryReadBatchSize", "Entries that a recovery reads ahead of what it has replicated again"
    )

    # Metadata
    zk_timeout_ms: int = _ms(
        0,
        "zkTimeout",
        "Timeout in milliseconds of a ZooKeeper session of the ledgers' own; 0: they share the namespace's session",
        minimum=0,
    )

    placement: PlacementSettings = field(default_factory=PlacementSettings)
    """Which bookies an ensemble is made of."""

    def __post_init__(self) -> None:
        for name, info in _INFOS.items():
            value = getattr(self, name)
            if isinstance(value, bool):
                continue
            if not math.isfinite(value) or value < info.minimum:
                raise CallerError(
                    f"{name} is {value}", advice=f"It must be {info.minimum} or more ({info.key}: {info.meaning})"
                )
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
    def sweep_interval_s(self) -> float:
        """How often time limits are looked at."""
        shortest = min(self.add_entry_timeout_ms, self.read_entry_timeout_ms, self.speculative_read_ms or SECOND)
        if self.add_entry_quorum_timeout_ms > 0:
            shortest = min(shortest, self.add_entry_quorum_timeout_ms)
        return min(max(shortest / 8, 2), 250) / 1000

    @classmethod
    def from_mapping(cls, values: Mapping[str, Value], base: ClientSettings | None = None) -> ClientSettings:
        """Settings of BookKeeper's keys, over `base` or the defaults; texts are parsed as in a properties file.

        Raises CallerError for a key or value that cannot be honoured.
        """
        base = base if base is not None else cls()
        changed: dict[str, Value] = {}
        placing: dict[str, Value] = {}
        for key, value in sorted(values.items(), key=lambda item: item[0] == _READ_TIMEOUT):  # which gives way
            table = placing if key in _PLACEMENT else changed
            for name in _names_of(key):
                if name not in table:
                    table[name] = _convert(key, value, _default_of(key, name), _scale_of(key, name))
                elif key != _READ_TIMEOUT:
                    raise CallerError(f"{key} is given twice, under two names", advice="Keep one of them")
        if placing:
            changed["placement"] = replace(base.placement, **placing)  # type: ignore[arg-type, assignment]
        return replace(base, **changed)  # type: ignore[arg-type]


def describe_client_settings() -> Iterator[tuple[ClientKey, Value]]:
    """Every key but the placement's, with its default in the key's own unit, in the order of the table."""
    for name, info in _INFOS.items():
        default = _default_of(info.key, name)
        if isinstance(default, bool | int | float):
            yield info, default if info.scale == 1 else int(default) // info.scale


_INFOS: dict[str, ClientKey] = {
    item.name: item.metadata["info"] for item in fields(ClientSettings) if "info" in item.metadata
}
_FIELDS: dict[str, str] = {info.key: name for name, info in _INFOS.items()} | {
    alias: name for name, info in _INFOS.items() for alias in info.aliases
}
_FIELDS["speculativeReadTimeout"] = "speculative_read_ms"
_PLACEMENT: dict[str, str] = {str(item.metadata["key"]): item.name for item in fields(PlacementSettings)}
_READ_TIMEOUT = "readTimeout"
_READ_TIMEOUT_FIELDS = ("read_entry_timeout_ms", "add_entry_timeout_ms")
"""What BookKeeper's older key sets, in seconds, as far as the newer ones do not."""


def client_keys() -> Iterator[str]:
    """All keys that are honoured, other names of one setting included."""
    yield from (*_FIELDS, *_PLACEMENT, _READ_TIMEOUT)


def _names_of(key: str) -> tuple[str, ...]:
    """The fields that a key sets. Raises CallerError for a key that is not honoured."""
    if key == _READ_TIMEOUT:
        return _READ_TIMEOUT_FIELDS
    name = _FIELDS.get(key) or _PLACEMENT.get(key)
    if name is not None:
        return (name,)
    if key in WITHOUT_MEANING:
        raise CallerError(f"{key} has no effect here: {WITHOUT_MEANING[key]}", advice="Remove it")
    folded = {known.lower(): known for known in (*_FIELDS, *_PLACEMENT)}
    nearest = difflib.get_close_matches(key.lower(), folded, 1, 0.0)[0]
    raise CallerError(
        f"the ledger client has no setting {key}",
        advice=f"The nearest is {folded[nearest]}; docs/client-settings.md lists all of them",
    )


def _default_of(key: str, name: str) -> object:
    owner = PlacementSettings if key in _PLACEMENT else ClientSettings
    return owner.__dataclass_fields__[name].default


def _scale_of(key: str, name: str) -> int:
    return 1 if key in _PLACEMENT else _INFOS[name].scale


def _convert(key: str, value: Value, default: object, scale: int) -> Value:
    """`value` as the type of `default`, in the field's unit."""
    kind = "true or false" if isinstance(default, bool) else "text" if isinstance(default, str) else "a number"
    if kind == "text" and isinstance(value, str):
        return value.strip()
    if kind == "true or false":
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
    if kind == "a number" and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value) if isinstance(default, float) else int(value) * scale
        except (ValueError, OverflowError):
            pass
    raise CallerError(f"{key}={value!r} is not {kind}")
