"""`Settings`: upstream's configuration keys, as far as they are honoured here.

A setting is a field of the dataclass; beside it stand its upstream key, what it means, and whether one log may
override it. The file conf/distributedlog.conf is the same table for people, and a test keeps the two equal.

Values come, later ones over earlier ones, from: the defaults; a properties file (`DLSPARK_CONF` or `from_properties`);
environment variables `DLSPARK_SET_<key>`, e.g. `DLSPARK_SET_writerOutputBufferSize=0`; a mapping given in code.

Keys that begin with `bkc.` are the ledger client's, without the prefix BookKeeper's own; they override what follows
from the settings here (docs/client-settings.md). In an environment variable the prefix is written `bkc_`.
A key or value that cannot be honoured is an error that names the nearest key, never ignored.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, TypeAlias

import javaproperties

from dlspark.errors import SettingsError
from metadata.errors import CallerError
from storage_node.client import ClientSettings
from storage_node.client.placement import PlacementSettings
from storage_node.client.placement.resolvers import parse_overrides
from storage_node.client.placement.settings import RESOLVERS, Resolver

Value: TypeAlias = bool | int | str

FILE_VARIABLE = "DLSPARK_CONF"
"""Environment variable that names a properties file."""
VARIABLE_PREFIX = "DLSPARK_SET_"
"""Prefix of environment variables that set one key each."""
CLIENT_PREFIX = "bkc."
"""Prefix of the ledger client's keys."""
_CLIENT_VARIABLE_PREFIX = "bkc_"

MAX_BUFFER_BYTES = 1_044_480
"""Upstream's MAX_LOGRECORDSET_SIZE: the transmit threshold is capped there."""
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """What is known about one setting besides its value. `minimum` and `maximum` are inclusive."""

    key: str
    meaning: str
    per_log: bool = True
    old_key: str | None = None
    minimum: int = -_MAX_INT - 1
    maximum: int = _MAX_INT
    choices: tuple[str, ...] = ()


def _setting(default: Value, info: SettingInfo) -> Value:
    return field(default=default, metadata={"info": info})


def _flag(default: bool, key: str, meaning: str, *, old_key: str | None = None, per_log: bool = True) -> bool:
    value: bool = _setting(default, SettingInfo(key, meaning, per_log, old_key))  # type: ignore[assignment]
    return value


def _number(
    default: int,
    key: str,
    meaning: str,
    *,
    minimum: int = -_MAX_INT - 1,
    maximum: int = _MAX_INT,
    old_key: str | None = None,
    per_log: bool = True,
) -> int:
    info = SettingInfo(key, meaning, per_log, old_key, minimum, maximum)
    value: int = _setting(default, info)  # type: ignore[assignment]
    return value


def _text(default: str, key: str, meaning: str, *, choices: tuple[str, ...] = (), per_log: bool = True) -> str:
    value: str = _setting(default, SettingInfo(key, meaning, per_log, choices=choices))  # type: ignore[assignment]
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a namespace and its logs. Frozen: `with_values` gives a changed copy."""

    # Metadata
    zk_session_timeout_s: int = _number(
        30,
        "zkSessionTimeoutSeconds",
        "ZooKeeper session timeout in seconds: how long a dead writer keeps its lock",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    zk_retry_max_backoff_ms: int = _number(
        30_000,
        "zkRetryMaxBackoffMillis",
        "Longest pause in milliseconds between retries of a reader that cannot read its list of segments",
        minimum=1,
        per_log=False,
    )
    unpartitioned_stream_name: str = _text(
        "<default>",
        "unpartitionedStreamName",
        "Name of the znode under a log that holds it",
        per_log=False,
    )
    first_lssn: int = _number(
        1,
        "firstLogsegmentSequenceNumber",
        "Sequence number of a new log's first segment, unless the namespace's binding gives one",
        minimum=1,
        maximum=2**63 - 1,
        old_key="first-logsegment-sequence-number",
        per_log=False,
    )
    create_log_if_missing: bool = _flag(
        True,
        "createStreamIfNotExists",
        "Whether opening a writer creates a missing log",
    )
    max_id_sanity_check: bool = _flag(
        True,
        "maxIdSanityCheck",
        "Whether a transaction id below the log's highest is refused, record by record",
    )

    # Ledgers
    ensemble_size: int = _number(
        3,
        "bkcEnsembleSize",
        "Storage nodes over which a segment is striped",
        minimum=1,
        maximum=1000,
        old_key="ensemble-size",
    )
    write_quorum: int = _number(
        3,
        "bkcWriteQuorumSize",
        "Copies of each entry; at most the ensemble size",
        minimum=1,
        maximum=1000,
        old_key="write-quorum-size",
    )
    ack_quorum: int = _number(
        2,
        "bkcAckQuorumSize",
        "Copies on disk before a write is acknowledged; at most the write quorum",
        minimum=1,
        maximum=1000,
        old_key="ack-quorum-size",
    )
    digest_password: str = _text(
        "",
        "digestPw",
        "Password of the ledgers; writers and readers must agree on it",
        per_log=False,
    )
    read_timeout_s: int = _number(
        10,
        "bkcReadTimeoutSeconds",
        "How long a storage node may take to answer a read, in seconds; not below readLACLongPollTimeout",
        minimum=1,
        maximum=3600,
        per_log=False,
    )
    write_timeout_s: int = _number(
        10,
        "bkcWriteTimeoutSeconds",
        "How long a storage node may take to answer a write, in seconds, before it is replaced",
        minimum=1,
        maximum=3600,
        per_log=False,
    )

    # Placement
    row_aware_placement: bool = _flag(
        False,
        "bkRowAwareEnsemblePlacement",
        "Whether a storage node's rack is its row, told by DNSResolverForRows",
        old_key="row-aware-ensemble-placement",
        per_log=False,
    )
    placement_resolver: str = _text(
        "DNSResolverForRacks",
        "bkEnsemblePlacementDnsResolverClass",
        "Who tells racks: DNSResolverForRacks, DNSResolverForRows (by host names) or ScriptBasedMapping (by a script)",
        per_log=False,
    )
    resolver_overrides: str = _text(
        "",
        "dnsResolverOverrides",
        "Regions in place of those that host names give: host:region;host:region",
        per_log=False,
    )

    # Writer
    compression: str = _text(
        "none",
        "compressionType",
        "Compression of entries",
        choices=("none", "lz4"),
    )
    output_buffer_bytes: int = _number(
        1024,
        "writerOutputBufferSize",
        "Buffered bytes above which an entry is sent; 0 sends every record at once; above 1044480 counts as that",
        minimum=0,
        old_key="output-buffer-size",
    )
    periodic_flush_ms: int = _number(
        0,
        "periodicFlushFrequencyMilliSeconds",
        "Send what is buffered, else publish what is acknowledged, every half of so many milliseconds; 0 or less: off",
    )
    immediate_flush: bool = _flag(
        False,
        "enableImmediateFlush",
        "Whether acknowledged records are made visible to readers at once, by a control record",
    )
    immediate_flush_delay_ms: int = _number(
        0,
        "minimumDelayBetweenImmediateFlushMilliSeconds",
        "Least milliseconds between two sends; only with enableImmediateFlush and writerOutputBufferSize 0",
    )
    keep_alive_ms: int = _number(
        0,
        "periodicKeepAliveMilliSeconds",
        "Write a control record when nothing was sent for so many milliseconds; 0 or less: off",
    )
    fail_fast: bool = _flag(
        False,
        "failFastOnStreamNotReady",
        "Whether a write fails at once, instead of waiting, while a segment is being started",
    )
    disable_rolling_on_error: bool = _flag(
        True,
        "disableRollingOnLogSegmentError",
        "Whether a writer stays failed after a failed write; false: the next write recovers and starts a segment",
    )
    rolling_minutes: int = _number(
        120,
        "logSegmentRollingMinutes",
        "Age in minutes at which a segment is completed and another started; 0 or less: by size",
        old_key="rolling-interval",
    )
    max_segment_bytes: int = _number(
        268_435_456,
        "maxLogSegmentBytes",
        "Bytes at which a segment is completed and another started, while rolling by time is off; 0 or less: off",
        maximum=2**63 - 1,
    )
    rolling_concurrency: int = _number(
        1,
        "logSegmentRollingConcurrency",
        "Segments a process may roll per minute; 0 or less: any number",
        per_log=False,
    )
    lock_timeout_s: int = _number(
        30,
        "lockTimeoutSeconds",
        "How long opening a writer waits for the log's lock, in seconds; 0 or less: try once",
    )
    outstanding_write_limit: int = _number(
        -1,
        "perWriterOutstandingWriteLimit",
        "Unacknowledged records a writer takes; 0 or less: any number",
    )
    write_limit_dark_mode: bool = _flag(
        True,
        "outstandingWriteLimitDarkmode",
        "Whether writes over the limit are only counted; false: they are refused",
    )

    # Reader
    long_poll_ms: int = _number(
        1000,
        "readLACLongPollTimeout",
        "How long one request waits at the tail for a new entry, in milliseconds",
        minimum=1,
    )
    read_ahead_entries: int = _number(
        10,
        "readAheadMaxRecords",
        "Entries a reader holds in advance",
        minimum=1,
        old_key="ReadAheadMaxEntries",
    )
    prefetch_entries: int = _number(
        32,
        "maxPrefetchEntriesPerLogSegment",
        "Entries of one segment requested in advance",
        minimum=1,
    )
    read_ahead_wait_ms: int = _number(
        200,
        "readAheadWaitTime",
        "Milliseconds a blocking read waits at the tail, and the first pause after a failed read",
        minimum=1,
        old_key="ReadAheadWaitTime",
    )
    ignore_truncation: bool = _flag(
        False,
        "ignoreTruncationStatus",
        "Whether truncated records are read as long as they exist",
    )
    fail_on_truncated: bool = _flag(
        True,
        "alertPositionOnTruncated",
        "Whether a reader positioned on truncated records fails; false: it goes on with the first record that is left",
    )
    gap_detection: bool = _flag(
        True,
        "positionGapDetectionEnabled",
        "Whether a reader fails when a record is missing between two others",
    )
    idle_error_ms: int = _number(
        _MAX_INT,
        "readerIdleErrorThresholdMillis",
        "Fail a read for which nothing arrives in so many milliseconds; 2147483647 or below 1: never",
    )

    ledger_client: tuple[tuple[str, Value], ...] = ()
    """What was set with the prefix `bkc.`, by BookKeeper's keys."""

    def __post_init__(self) -> None:
        for name in _names():
            _check_value(_info(name), getattr(self, name))
        if self.read_timeout_s * 1000 < self.long_poll_ms:
            raise SettingsError(
                f"bkcReadTimeoutSeconds={self.read_timeout_s} is shorter than "
                f"readLACLongPollTimeout={self.long_poll_ms} ms",
                advice="Raise the first or lower the second",
            )
        self._check_placement()
        if self.ledger_client:
            self.client_settings()

    def client_settings(self) -> ClientSettings:
        """The ledger client's settings: those that follow from these, and over them the `bkc.` keys."""
        derived = ClientSettings(
            add_entry_timeout_ms=self.write_timeout_s * 1000,
            # A long poll's answer must have the time to come after its wait.
            read_entry_timeout_ms=max(self.read_timeout_s * 1000, self.long_poll_ms + 1000),
            long_poll_ms=self.long_poll_ms,
            placement=self._placement(),
        )
        try:
            return ClientSettings.from_mapping(dict(self.ledger_client), derived)
        except CallerError as error:
            raise SettingsError(f"among the keys {CLIENT_PREFIX}*: {error.message}", advice=error.advice) from error

    def _placement(self) -> PlacementSettings:
        return PlacementSettings(
            repp_dns_resolver_class=self.rack_resolver, dns_resolver_overrides=self.resolver_overrides
        )

    def _check_placement(self) -> None:
        known = sorted(name for name in RESOLVERS if "." not in name)
        if self.placement_resolver not in RESOLVERS:
            raise SettingsError(
                f"bkEnsemblePlacementDnsResolverClass={self.placement_resolver} is not known here",
                advice=f"Known are {', '.join(known)}",
            )
        try:
            parse_overrides(self.resolver_overrides)
            self._placement()
        except CallerError as error:
            raise SettingsError(error.message, advice=error.advice) from error

    @property
    def rack_resolver(self) -> Resolver:
        """Who tells racks, by its short name."""
        return "rows" if self.row_aware_placement else RESOLVERS[self.placement_resolver]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Value], base: Settings | None = None) -> Settings:
        """Settings of upstream keys (`{"writerOutputBufferSize": 0}`), over `base` or the defaults.

        Raises SettingsError for a key or value that is not understood.
        """
        base = base if base is not None else cls()
        changed: dict[str, object] = {}
        passed_on = {key[len(CLIENT_PREFIX) :]: value for key, value in values.items() if key.startswith(CLIENT_PREFIX)}
        if passed_on:
            changed["ledger_client"] = tuple(sorted((dict(base.ledger_client) | passed_on).items()))
        for key, value in values.items():
            if key.startswith(CLIENT_PREFIX):
                continue
            info = _lookup(key)
            name = _FIELDS[info.key]
            if name in changed:
                raise SettingsError(f"{info.key} is given twice, once as {key}", advice="Keep one of them")
            changed[name] = _convert(info, key, value)
        return replace(base, **changed)  # type: ignore[arg-type]

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], base: Settings | None = None) -> Settings:
        """Settings of a Java properties file. Raises SettingsError, also for a file that cannot be read."""
        try:
            with Path(path).open("rb") as file:
                values: dict[str, str] = javaproperties.load(file)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"the settings file {os.fspath(path)} cannot be read: {error}",
                advice=f"Correct the path (environment variable {FILE_VARIABLE}) or the file",
            ) from error
        return cls.from_mapping(values, base)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, base: Settings | None = None) -> Settings:
        """Settings of `DLSPARK_CONF` and `DLSPARK_SET_<key>` variables, over `base` or the defaults."""
        environment = os.environ if environment is None else environment
        file = environment.get(FILE_VARIABLE)
        if file:
            base = cls.from_properties(file, base)
        prefix = len(VARIABLE_PREFIX)
        values = {name[prefix:]: value for name, value in environment.items() if name.startswith(VARIABLE_PREFIX)}
        dotted = {
            CLIENT_PREFIX + name[len(_CLIENT_VARIABLE_PREFIX) :]: values.pop(name)
            for name in list(values)
            if name.startswith(_CLIENT_VARIABLE_PREFIX)
        }
        return cls.from_mapping(values | dotted, base)

    def with_values(self, values: Mapping[str, Value]) -> Settings:
        """A copy with upstream keys changed."""
        return Settings.from_mapping(values, self)

    def for_log(self, values: Mapping[str, Value]) -> Settings:
        """A copy with one log's overrides. Raises SettingsError for keys that hold for a whole namespace."""
        for key in values:
            if key.startswith(CLIENT_PREFIX) or not _lookup(key).per_log:
                raise SettingsError(f"{key} holds for a whole namespace", advice="Set it on opening the namespace")
        return self.with_values(values)

    def as_mapping(self) -> dict[str, Value]:
        """All settings by upstream key."""
        mine = {info.key: getattr(self, _FIELDS[info.key]) for info in describe_settings()}
        return mine | {CLIENT_PREFIX + key: value for key, value in self.ledger_client}

    @property
    def quorums(self) -> tuple[int, int, int]:
        """Effective ensemble size, write quorum and ack quorum: each capped at the one before, as upstream."""
        write_quorum = min(self.ensemble_size, self.write_quorum)
        return self.ensemble_size, write_quorum, min(write_quorum, self.ack_quorum)

    @property
    def password(self) -> bytes:
        return self.digest_password.encode()


def describe_settings() -> Iterator[SettingInfo]:
    """All settings, in the order of the configuration file."""
    for name in _names():
        yield _info(name)


def _names() -> Iterator[str]:
    """The fields that stand for one key each."""
    return (item.name for item in fields(Settings) if "info" in item.metadata)


def _info(name: str) -> SettingInfo:
    info: SettingInfo = Settings.__dataclass_fields__[name].metadata["info"]
    return info


_FIELDS: dict[str, str] = {_info(name).key: name for name in _names()}
_KEYS: dict[str, SettingInfo] = {info.key: info for info in describe_settings()} | {
    info.old_key: info for info in describe_settings() if info.old_key
}

_UPSTREAM_ONLY = """
    zkAclId zkRequestRateLimit zkNumRetries zkRetryStartBackoffMillis zkcNumRetryThreads bkcZKSessionTimeoutSeconds
    bkcZKRequestRateLimit bkcZKNumRetries bkcZKRetryStartBackoffMillis bkcZKRetryMaxBackoffMillis
    bkcNumIOThreads timerTickDuration timerNumTicks bkcNumWorkerThreads numWorkerThreads numReadAheadWorkerThreads
    numLockStateThreads
    numResourceReleaseThreads schedulerShutdownTimeoutMs useDaemonThread ledgerMetadataLayoutVersion
    ledgerMetadataSkipMinVersionCheck logSegmentSequenceNumberValidationEnabled enableRecordCounts
    encodeRegionIDInVersion logSegmentNameVersion logSegmentCacheTTLMs logSegmentCacheMaxSize logSegmentCacheEnabled
    logFlushTimeoutSeconds isDurableWriteEnabled logSegmentRetentionHours explicitTruncationByApp writeLockEnabled
    lockReacquireTimeoutSeconds lockOpTimeoutSeconds enableLedgerAllocatorPool ledgerAllocatorPoolPath
    ledgerAllocatorPoolName ledgerAllocatorPoolCoreSize globalOutstandingWriteLimit readLACLongPoll
    deserializeRecordSetOnReads readerIdleWarnThresholdMillis enableReadAhead enableForceRead readAheadBatchSize
    readAheadWaitTimeOnEndOfStream readAheadNoSuchLedgerExceptionOnReadLACErrorThresholdMillis
    readAheadSkipBrokenEntries numPrefetchEntriesPerLogSegment firstNumEntriesEachPerLastRecordScan
    maxNumEntriesPerReadLastRecordScan federatedNamespaceEnabled federatedMaxLogsPerSubnamespace
    federatedCheckExistenceWhenCacheMiss
"""
NOT_YET_HONOURED = frozenset(_UPSTREAM_ONLY.split())
"""Keys that upstream knows and this version would have to ignore: they are refused with that reason."""


def _lookup(key: str) -> SettingInfo:
    info = _KEYS.get(key)
    if info is not None:
        return info
    if key in NOT_YET_HONOURED:
        raise SettingsError(f"the setting {key} is Apache DistributedLog's, but has no effect here", advice="Remove it")
    folded = {known.lower(): known for known in _KEYS}
    nearest = difflib.get_close_matches(key.lower(), folded, n=1, cutoff=0.6)
    advice = f"Did you mean {folded[nearest[0]]}?" if nearest else "conf/distributedlog.conf lists all settings"
    raise SettingsError(f"there is no setting {key!r}", advice=advice)


_TRUE = frozenset(("true", "yes", "on"))
_FALSE = frozenset(("false", "no", "off"))
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


def _kind(info: SettingInfo) -> Literal["bool", "int", "str"]:
    default = Settings.__dataclass_fields__[_FIELDS[info.key]].default
    if isinstance(default, bool):
        return "bool"
    return "int" if isinstance(default, int) else "str"


def _convert(info: SettingInfo, key: str, value: Value) -> Value:
    """`value` as the setting's type; texts are parsed as in a properties file."""
    kind = _kind(info)
    if kind == "bool" and isinstance(value, str):
        text = value.strip().lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
    elif kind == "bool" and isinstance(value, bool):
        return value
    elif kind == "int" and isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    elif kind == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    elif kind == "str" and isinstance(value, str):
        return value.strip().lower() if info.choices else value
    wanted = {"bool": "true or false", "int": "a whole number", "str": "text"}[kind]
    raise SettingsError(f"{key}={value!r} is not {wanted}", advice=f"{key}: {info.meaning}")


def _check_value(info: SettingInfo, value: Value) -> None:
    if info.choices and value not in info.choices:
        # Upstream writes entries of length zero when this is misspelt.
        raise SettingsError(f"{info.key}={value!r} is not one of {', '.join(info.choices)}")
    if isinstance(value, int) and not isinstance(value, bool) and not info.minimum <= value <= info.maximum:
        raise SettingsError(f"{info.key}={value} is outside {info.minimum}..{info.maximum}", advice=info.meaning)
