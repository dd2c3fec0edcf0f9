"""`Settings`: upstream's configuration keys, those that mean something here.

The settings stand in groups (`cluster`, `writing`, `cold`, `reading`, `operations`): a field, its upstream key, what it
means, and whether one log may override it. conf/distributedlog.conf and docs/settings/logs.md are made from them.

Values come, later ones over earlier ones, from: the defaults; a properties file (`DLSPARK_CONF` or `from_properties`);
environment variables `DLSPARK_SET_<key>`, e.g. `DLSPARK_SET_writerOutputBufferSize=0`; options of the interpreter, as
Java's system properties, `python -X dlspark.writerOutputBufferSize=0`; a mapping given in code; one given on opening a
log; and, while a log is open, its dynamic settings files (`DynamicSettings`).

Keys that begin with `bkc.` are the ledger client's, without the prefix BookKeeper's own; they override what follows
from the settings here (docs/settings/ledger-client.md). In an environment variable the prefix is written `bkc_`.
A key or value that cannot be honoured is an error that names the nearest key, never ignored; for a key of upstream's
that means nothing here (`WITHOUT_MEANING`) the error gives the reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, cast

from dlspark.core.settings.cluster import (
    AllocatorKeys,
    FederationKeys,
    LedgerKeys,
    MetadataKeys,
    PlacementKeys,
    SecurityKeys,
    SurvivalKeys,
    ZooKeeperKeys,
)
from dlspark.core.settings.cold import ColdKeys
from dlspark.core.settings.log_setting import LogSetting
from dlspark.core.settings.operations import (
    ConfigurationKeys,
    ObservabilityKeys,
    provider_kind,
    stream_converter,
)
from dlspark.core.settings.reading import ReaderKeys
from dlspark.core.settings.survival import COPIES, REGION, REGIONS_TO_WRITE, SurvivalPlan, survival_plan
from dlspark.core.settings.writing import RetentionKeys, SegmentKeys, WriterKeys
from dlspark.errors import SettingsError
from metadata.distributedlog.allocators import pool_path
from metadata.foundation.errors import CallerError
from metadata.foundation.properties import read_properties
from metadata.foundation.regions import region_names
from metadata.foundation.settings import MAX_INT, Registry, Value, settings_of
from metadata.security.other_keys import SECURITY_ELSEWHERE
from metadata.security.sasl.settings import ClientProofSettings, SaslSettings
from metadata.security.settings import SecuritySettings
from storage_node.client.placement.racks import parse_overrides
from storage_node.settings.client import ClientSettings
from storage_node.settings.placement import RESOLVERS, PlacementSettings, Resolver

CLIENT_PREFIX = "bkc."
"""Prefix of the ledger client's keys."""
FILE_VARIABLE = "DLSPARK_CONF"
"""Environment variable that names a properties file."""
_NAMED_BY = f"--conf, or environment variable {FILE_VARIABLE}"
VARIABLE_PREFIX = "DLSPARK_SET_"
"""Prefix of environment variables that set one key each."""
_CLIENT_VARIABLE_PREFIX = "bkc_"
_QUORUMS = ("ensemble_size", "write_quorum", "ack_quorum")
OPTION_PREFIX = "dlspark."
"""Prefix of interpreter options that set one key each."""


EXPLICIT_LAC_INTERVAL_MS = 10
"""The value of `bkc.explicitLacInterval` unless given: a log's records become visible though none follows them.
BookKeeper's default, 0, leaves the last entry of a quiet ledger invisible until another one, or its end."""


@dataclass(frozen=True)
class Settings(
    ObservabilityKeys,
    ReaderKeys,
    ColdKeys,
    RetentionKeys,
    WriterKeys,
    AllocatorKeys,
    PlacementKeys,
    SurvivalKeys,
    LedgerKeys,
    SegmentKeys,
    MetadataKeys,
    FederationKeys,
    SecurityKeys,
    ZooKeeperKeys,
    ConfigurationKeys,
):
    """The settings of a namespace and its logs. Frozen: `with_values` gives a changed copy."""

    ledger_client: tuple[tuple[str, Value], ...] = ()
    """Values that were set with the prefix `bkc.`, by BookKeeper's keys."""
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Names of the fields that were set by key, also to what is their default."""

    def __post_init__(self) -> None:
        REGISTRY.check(self)
        if self.read_timeout_s * 1000 < self.long_poll_ms:
            raise SettingsError(
                f"bkcReadTimeoutSeconds={self.read_timeout_s} is shorter than "
                f"readLACLongPollTimeout={self.long_poll_ms} ms",
                advice="Raise the first or lower the second",
            )
        if self.idle_warn_ms <= 2 * self.long_poll_ms and self.idle_warn_ms != MAX_INT:
            raise SettingsError(
                f"readerIdleWarnThresholdMillis={self.idle_warn_ms} is not above twice "
                f"readLACLongPollTimeout={self.long_poll_ms}",
                advice=f"Raise the first or lower the second; {MAX_INT} never warns",
            )
        self._check_placement()
        self._check_survival()
        self._check_segments()
        self._check_cold()
        provider_kind(self.feature_provider)
        stream_converter(self.stream_config_router, "streamConfigRouterClass")
        if self.ledger_client or self.survive or self.security_directory:
            self.client_settings()

    def client_settings(self) -> ClientSettings:
        """Return the ledger client's settings: those that follow from these, and over them the `bkc.` keys."""
        derived = ClientSettings(
            add_entry_timeout_ms=self.write_timeout_s * 1000,
            # A long poll's answer must have the time to come after its wait.
            read_entry_timeout_ms=max(self.read_timeout_s * 1000, self.long_poll_ms + 1000),
            long_poll_ms=self.long_poll_ms,
            explicit_lac_interval_ms=EXPLICIT_LAC_INTERVAL_MS,
            placement=self._placement(),
        )
        plan = self.survival
        switch = {"security": self.security, "securityDirectory": self.security_directory}
        given = {key: value for key, value in switch.items() if value} | dict(self.ledger_client)
        follows = dict(plan.placement) if plan is not None else {}
        try:
            found = ClientSettings.from_mapping(follows | given, derived)
            planned = ClientSettings.from_mapping(given | follows, derived)
        except CallerError as error:
            where = f"among the keys {CLIENT_PREFIX}*: " if self.ledger_client or self.survive else ""
            raise SettingsError(f"{where}{error.message}", advice=error.advice) from error
        if found != planned:
            means = ", ".join(f"{CLIENT_PREFIX}{key}={value}" for key, value in follows.items())
            raise SettingsError(
                f"survive={self.survive} means {means}, and another value of one of them is set",
                advice="Set the goal or the ledger client's keys, not both",
            )
        return found

    def _placement(self) -> PlacementSettings:
        return PlacementSettings(
            repp_dns_resolver_class=self.rack_resolver,
            dns_resolver_overrides=self.resolver_overrides,
            region=self.region,
            of_logs=True,
        )

    @property
    def survival(self) -> SurvivalPlan | None:
        """What `survive` means in numbers and words; None where it is not set."""
        if not self.survive:
            return None
        listed = str(dict(self.ledger_client).get(REGIONS_TO_WRITE, ""))
        return survival_plan(self.survive, self.survive_by, region_names(listed))

    def _check_survival(self) -> None:
        plan = self.survival
        if self.survive_by != COPIES and self.survive != REGION:
            raise SettingsError(
                f"surviveBy={self.survive_by} does nothing without survive=region",
                advice="Set survive=region, or leave surviveBy out",
            )
        if plan is None:
            return
        for one in fields(self):
            if one.name in _QUORUMS and (one.name in self.given or getattr(self, one.name) != one.default):
                computed = plan.quorums[_QUORUMS.index(one.name)]
                if getattr(self, one.name) != computed:
                    key = settings_of(Settings)[one.name].key
                    raise SettingsError(
                        f"survive={self.survive} means {key}={computed}, and {getattr(self, one.name)} is set",
                        advice="Set the goal or the quorums, not both",
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

    def _check_segments(self) -> None:
        if self.metadata_version < 4 and self.compression != "none":
            raise SettingsError(
                f"ledgerMetadataLayoutVersion={self.metadata_version} has no envelopes, so "
                f"compressionType={self.compression} would do nothing",
                advice="Set compressionType=none, or write version 4 or 5",
            )
        if self.allocator_pool or self.allocator_pool_name:
            try:
                pool_path("/", self.allocator_pool_path, self.allocator_pool_name)
            except CallerError as error:
                raise SettingsError(error.message, advice=error.advice) from error

    @property
    def rack_resolver(self) -> Resolver:
        """The short name of what finds racks."""
        return "rows" if self.row_aware_placement else RESOLVERS[self.placement_resolver]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Value], base: Settings | None = None) -> Settings:
        """Return the settings of upstream keys (`{"writerOutputBufferSize": 0}`), over `base` or the defaults.

        Raises SettingsError for a key or value that is not understood.
        """
        base = base if base is not None else cls()
        changed: dict[str, object] = {}
        passed_on = {key[len(CLIENT_PREFIX) :]: value for key, value in values.items() if key.startswith(CLIENT_PREFIX)}
        if passed_on:
            changed["ledger_client"] = tuple(sorted((dict(base.ledger_client) | passed_on).items()))
        mine = {key: value for key, value in values.items() if not key.startswith(CLIENT_PREFIX)}
        changed |= REGISTRY.read_all(mine).get(cls, {})
        return replace(base, given=base.given | changed.keys(), **changed)  # type: ignore[arg-type]

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], base: Settings | None = None) -> Settings:
        """Return the settings of a Java properties file: a path or a `file:` URL.

        Raises SettingsError, also for a file that cannot be read.
        """
        return cls.from_mapping(read_properties(path, SettingsError, named_by=_NAMED_BY), base)

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        base: Settings | None = None,
        options: Mapping[str, str | Literal[True]] | None = None,
    ) -> Settings:
        """Return what `DLSPARK_CONF`, `DLSPARK_SET_<key>` variables and `-X dlspark.<key>` options set, over `base`.

        `options` are those that the interpreter was started with, unless given.
        """
        environment = os.environ if environment is None else environment
        file = environment.get(FILE_VARIABLE)
        if file:
            base = cls.from_properties(file, base)
        options = sys._xoptions if options is None else options
        return cls.from_mapping(_options(options), cls.from_mapping(_variables(environment), base))

    def with_values(self, values: Mapping[str, Value]) -> Settings:
        """Return a copy with upstream keys changed."""
        return Settings.from_mapping(values, self)

    def for_log(self, values: Mapping[str, Value]) -> Settings:
        """Return a copy with one log's overrides. Raises SettingsError for keys that hold for a whole namespace."""
        for key in values:
            if key.startswith(CLIENT_PREFIX) or not lookup(key).per_log:
                raise SettingsError(f"{key} holds for a whole namespace", advice="Set it on opening the namespace")
        return self.with_values(values)

    def as_mapping(self) -> dict[str, Value]:
        """Return all settings by upstream key."""
        mine: dict[str, Value] = {info.key: getattr(self, name) for name, info in settings_of(Settings).items()}
        return mine | {CLIENT_PREFIX + key: value for key, value in self.ledger_client}

    @property
    def quorums(self) -> tuple[int, int, int]:
        """Effective ensemble size, write quorum and ack quorum: what `survive` means, else each capped at the one
        before, as upstream."""
        plan = self.survival
        if plan is not None:
            return plan.quorums
        write_quorum = min(self.ensemble_size, self.write_quorum)
        return self.ensemble_size, write_quorum, min(write_quorum, self.ack_quorum)

    def in_namespace(self, quorums: tuple[int, int, int] | None) -> Settings:
        """Return these settings with the quorums that a namespace is bound with, where these say nothing of their
        own."""
        if quorums is None or self.survive:
            return self
        mine = {one.name: one for one in fields(self) if one.name in _QUORUMS}
        if any(name in self.given or getattr(self, name) != mine[name].default for name in _QUORUMS):
            return self
        return replace(self, **dict(zip(_QUORUMS, quorums, strict=True)))  # type: ignore[arg-type]

    @property
    def password(self) -> bytes:
        """The ledgers' password, as BookKeeper takes it."""
        return self.digest_password.encode()


def _variables(environment: Mapping[str, str]) -> dict[str, Value]:
    """Return the keys that environment variables set, with the prefix `bkc.` where they say `bkc_`."""
    prefix = len(VARIABLE_PREFIX)
    values = {name[prefix:]: value for name, value in environment.items() if name.startswith(VARIABLE_PREFIX)}
    return {
        CLIENT_PREFIX + key[len(_CLIENT_VARIABLE_PREFIX) :] if key.startswith(_CLIENT_VARIABLE_PREFIX) else key: value
        for key, value in values.items()
    }


def _options(options: Mapping[str, str | Literal[True]]) -> dict[str, Value]:
    """Return the keys that options of the interpreter set; one without a value is a flag that is true."""
    prefix = len(OPTION_PREFIX)
    return {name[prefix:]: value for name, value in options.items() if name.startswith(OPTION_PREFIX)}


# ------------------------------------------------------------------ by key

_ONE_LOOP = "one event loop does all the work, there are no pools of threads"
_LOOP_TIMERS = "the event loop keeps the time"
_NO_POOLS = "there are no pools of threads whose tasks could be measured"
_ONE_READ = "one read of the metadata store shows whether a log exists"
_INJECTION = "tests inject faults at the edges, not settings"
_PROXY = "it bounds a write proxy, which these settings do not configure"
WITHOUT_MEANING: Mapping[str, str] = {
    "zkcNumRetryThreads": "requests are repeated by the event loop, without threads",
    "bkcNumIOThreads": _ONE_LOOP,
    "timerTickDuration": _LOOP_TIMERS,
    "timerNumTicks": _LOOP_TIMERS,
    "bkcNumWorkerThreads": _ONE_LOOP,
    "numWorkerThreads": _ONE_LOOP,
    "numReadAheadWorkerThreads": _ONE_LOOP,
    "numLockStateThreads": _ONE_LOOP,
    "numResourceReleaseThreads": _ONE_LOOP,
    "schedulerShutdownTimeoutMs": "closing waits for what it closes; there are no schedulers",
    "useDaemonThread": "the one background thread, that of the synchronous classes, is always a daemon",
    "enableRecordCounts": "records always carry their positions: without them no reader could see that one is missing",
    "logFlushTimeoutSeconds": (
        "a flush ends when its entries are acknowledged or fail, which bkcWriteTimeoutSeconds bounds"
    ),
    "lockReacquireTimeoutSeconds": "a lost lock is taken again as long as no other client has it",
    "lockOpTimeoutSeconds": "lockTimeoutSeconds bounds the wait for a lock",
    "readLACLongPoll": "readLACLongPollTimeout is the only setting of long polls",
    "enableReadAhead": "readers always read ahead, with readAheadMaxRecords=1 by one entry",
    "enableForceRead": "there is only one way of reading; upstream does not use this key either",
    "readAheadWaitTimeOnEndOfStream": "a watch reports the next segment; readers do not wait for a fixed time",
    "readAheadNoSuchLedgerExceptionOnReadLACErrorThresholdMillis": (
        "a listed segment without its ledger fails a reader after ten seconds, unless it leaves the list before"
    ),
    "enableTaskExecutionStats": _NO_POOLS,
    "taskExecutionWarnTimeMicros": _NO_POOLS,
    "checkLogExistenceBackoffStartMillis": _ONE_READ,
    "checkLogExistenceBackoffMaxMillis": _ONE_READ,
    "bpsSoftWriteLimit": _PROXY,
    "bpsHardWriteLimit": _PROXY,
    "rpsSoftWriteLimit": _PROXY,
    "rpsHardWriteLimit": _PROXY,
    "rpsSoftServiceLimit": _PROXY,
    "rpsHardServiceLimit": _PROXY,
    "rpsStreamAcquireServiceLimit": _PROXY,
    "bpsSoftServiceLimit": _PROXY,
    "bpsHardServiceLimit": _PROXY,
    "bpsStreamAcquireServiceLimit": _PROXY,
    "maxAcquiredPartitionsPerProxy": _PROXY,
    "maxCachedPartitionsPerProxy": _PROXY,
    "eiInjectWriteDelay": _INJECTION,
    "eiInjectedWriteDelayPercent": _INJECTION,
    "eiInjectedWriteDelayMs": _INJECTION,
    "eiInjectReadAheadStall": _INJECTION,
    "eiInjectReadAheadDelay": _INJECTION,
    "eiInjectMaxReadAheadDelayMs": _INJECTION,
    "eiInjectReadAheadDelayPercent": _INJECTION,
    "eiInjectReadAheadBrokenEntries": _INJECTION,
}
"""Upstream's keys that mean nothing here: they are refused, with the reason, rather than ignored."""
PROXY_STREAM_KEYS: frozenset[str] = frozenset(
    ("bpsSoftWriteLimit", "bpsHardWriteLimit", "rpsSoftWriteLimit", "rpsHardWriteLimit")
)
"""Keys of a write proxy that may stand in a stream's file of dynamic settings: the proxy reads them there."""
OLD_KEYS: Mapping[str, str] = {
    "ReadAheadWaitTimeOnEndOfStream": "readAheadWaitTimeOnEndOfStream",
}
"""Names that some of them had before."""
PROTECTING_KEYS: Mapping[str, str] = {
    **SECURITY_ELSEWHERE,
    **{
        key: f"it is the ledger client's, and written {CLIENT_PREFIX}{key}; security and securityDirectory hold for "
        "ZooKeeper and storage nodes alike"
        for owner in (SecuritySettings, SaslSettings, ClientProofSettings)
        for info in settings_of(owner).values()
        for key in (info.key, *info.other_keys)
    },
}
"""Keys of security, and why they are none of these settings. They are never ignored: whoever sets one believes to be
protected by it."""

REGISTRY = Registry(
    [Settings],
    SettingsError,
    page="conf/distributedlog.conf",
    refused={**PROTECTING_KEYS, **WITHOUT_MEANING, **{old: WITHOUT_MEANING[new] for old, new in OLD_KEYS.items()}},
)


def lookup(key: str) -> LogSetting:
    """Return the setting of a key, or of an old key. Raises SettingsError, with the nearest key or the reason."""
    return cast(LogSetting, REGISTRY.find(key)[2])


def describe_settings() -> Iterator[LogSetting]:
    """Return all settings, in the order of the configuration file."""
    return (cast(LogSetting, info) for info in settings_of(Settings).values())


def dynamic_values(written: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values, by key, of what a dynamic settings file says; without those of the write proxy that reads it,
    too.

    Raises SettingsError, also for a key that does not change while a log is open.
    """
    written = {key: value for key, value in written.items() if key not in PROXY_STREAM_KEYS}
    for key in written:
        info = None if key.startswith(CLIENT_PREFIX) else lookup(key)
        if info is None or not info.dynamic:
            raise SettingsError(
                f"{key} does not change while a log is open",
                advice="Take it out of the dynamic settings file, and set it on opening the namespace or the log",
            )
    names = REGISTRY.read_all(written).get(Settings, {})
    return {info.key: names[name] for name, info in settings_of(Settings).items() if name in names}  # type: ignore[misc]


# ------------------------------------------------------------------ while a log is open


class LiveSettings:
    """The settings of one open log, which dynamic settings change while it is open.

    `current` is what holds now. A reader or writer that keeps a copy of it listens for changes, so that no record pays
    for them."""

    def __init__(self, settings: Settings, on_close: Callable[[], None] | None = None) -> None:
        self.current = settings
        self._listeners: list[Callable[[Settings], None]] = []
        self._on_close = on_close

    def listen(self, listener: Callable[[Settings], None]) -> None:
        """Call `listener` with the new settings after each change, until `close`."""
        self._listeners.append(listener)

    def change(self, settings: Settings) -> bool:
        """Let other settings hold from now on; False if they are the same."""
        if settings == self.current:
            return False
        self.current = settings
        for listener in list(self._listeners):
            listener(settings)
        return True

    def close(self) -> None:
        """Make no change known any more. Idempotent."""
        self._listeners.clear()
        closing, self._on_close = self._on_close, None
        if closing is not None:
            closing()
