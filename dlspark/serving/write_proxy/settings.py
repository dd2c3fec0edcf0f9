"""The settings of a write proxy: their keys (`WriteProxySettings`), and where they come from (`read_configuration`).

Keys are upstream's, lower case with `_` or camel case as they have them there; new ones begin with `server_` and are
marked as own. A key or value that cannot be honoured is an error that names the nearest key; for a key of upstream's
that means nothing here the error gives the reason (`WITHOUT_MEANING`). Keys of the group `StreamLimitKeys` hold for
each stream by itself and change while it is served: a stream's file of dynamic settings may have others (`for_stream`).

Upstream has the keys of a proxy and those of the log library in one properties file. So it is here: a key that the
proxy knows, or refuses with a reason of its own, is the proxy's, every other one is the log library's, with its errors.
Later ones go over earlier ones: the defaults, `DLSPARK_CONF` or the file that is given instead of it, the variables
`DLSPARK_SET_<key>`, what is given by option.

A file may be upstream's: keys of upstream's that would do nothing here are left out of it with a warning, which names
the line and the reason. The same by variable or option is an error, for these are written for this proxy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from dlspark.core.services import check_region_id
from dlspark.core.settings.operations import StreamConverter, stream_converter
from dlspark.core.settings.settings import FILE_VARIABLE, PROTECTING_KEYS, VARIABLE_PREFIX, Settings
from dlspark.core.settings.settings import REGISTRY as LOG_REGISTRY
from dlspark.errors import SettingsError
from dlspark.serving.bindings.service import CONNECTIONS, IDLE_MS, KEEPALIVE_MS
from dlspark.serving.process.access import AccessKeys
from dlspark.serving.security.settings import SECURITY_CLASSES, ProxySecurity
from dlspark.serving.write_proxy.following_settings import FollowKeys
from dlspark.serving.write_proxy.tier.following import FollowRules
from metadata.foundation.errors import CallerError
from metadata.foundation.properties import lines_of, local_path, read_if_exists, read_properties
from metadata.foundation.settings import (
    FLAG,
    MAX_INT,
    MAX_LONG,
    TEXT,
    WHOLE,
    Registry,
    Value,
    setting,
    settings_of,
)
from metadata.security.listening import LOOPBACK, insecure_listen_setting
from metadata.security.other_keys import SECURITY_ELSEWHERE

_LOG: Final = logging.getLogger(__name__)

PAGE: Final = "docs/settings/write-proxy.md"
_LOCAL_REGION: Final = "LOCAL"
_MIB: Final = 1 << 20
_OFF: Final = "0 or less: off"
_OWN_PREFIX: Final = "server_"
_LOCK_TIMEOUT: Final = "lockTimeoutSeconds"
_Split: TypeAlias = tuple[dict[str, Value], dict[str, Value]]


@dataclass(frozen=True)
class AddressKeys:
    """The proxy's region, addresses and number"""

    region: str = setting(
        TEXT,
        _LOCAL_REGION,
        "server_region_id",
        "The number of this proxy's region, from 0 to 15, that segments carry where the namespace says so; LOCAL: that "
        "of the log library's regionId, which is 0 unless it is set",
    )
    host: str = setting(
        TEXT,
        "",
        "server_host",
        "The address to listen on; empty: every address of the machine, which needs security or insecureListen=allow; "
        "without them the loopback address that server_advertised_host names, if it names one",
        own=True,
    )
    insecure_listen: str = insecure_listen_setting()
    advertised_host: str = setting(
        TEXT,
        "",
        "server_advertised_host",
        "The host name or address by which clients and other proxies reach this one; empty: the machine's host name",
        own=True,
    )
    port: int = setting(WHOLE, 0, "server_port", "The port for frames; 0: any that is free", minimum=0, maximum=65535)
    grpc_port: int = setting(
        WHOLE,
        0,
        "server_grpc_port",
        "The port for gRPC; 0: any that is free; -1: no gRPC",
        minimum=-1,
        maximum=65535,
        own=True,
    )
    stats_port: int = setting(
        WHOLE,
        -1,
        "server_stats_port",
        "The port of the page with health and metrics; 0: any that is free; -1: no page, and single requests are not "
        "measured",
        minimum=-1,
        maximum=65535,
        own=True,
    )
    stats_host: str = setting(
        TEXT,
        LOOPBACK,
        "server_stats_host",
        "The address of the page with health and metrics. Where others cannot reach it, it is not announced, and "
        "`--load-appraiser measured` on another machine counts its streams alike",
        own=True,
    )
    shard: int = setting(
        WHOLE,
        -1,
        "server_shard",
        "A number that this proxy keeps when its address changes; clients' hash rings then keep its position. -1: none",
        minimum=-1,
        maximum=MAX_INT,
    )


@dataclass(frozen=True)
class StreamKeys:
    """Streams"""

    service_timeout_ms: int = setting(
        WHOLE,
        0,
        "server_service_timeout_ms",
        f"A request that takes longer, in milliseconds, ends its stream's service on this proxy. {_OFF}",
        minimum=-1,
        maximum=MAX_INT,
    )
    probation_timeout_ms: int = setting(
        WHOLE,
        300_000,
        "server_stream_probation_timeout_ms",
        "How long a stream is refused after that, in milliseconds, so that this proxy does not take it again at once",
        minimum=0,
        maximum=MAX_INT,
    )
    writer_close_timeout_ms: int = setting(
        WHOLE,
        1000,
        "server_writer_close_timeout_ms",
        "How long a request to release or delete a stream waits until its writer is closed, in milliseconds",
        minimum=1,
        maximum=MAX_INT,
    )
    take_timeout_ms: int = setting(
        WHOLE,
        10_000,
        "server_take_timeout_ms",
        "How long a move may take, in milliseconds: so long the target waits for the log's lock, and the source for "
        "the target's answer, and for its own writer to close. So long a Spark query is waited for, too, which gives "
        "its log up for a proxy",
        minimum=1000,
        maximum=MAX_INT,
        own=True,
    )
    converter_class: str = setting(
        TEXT,
        "IdentityStreamPartitionConverter",
        "stream_partition_converter_class",
        "How a stream's name gives the group whose partitions are counted: IdentityStreamPartitionConverter (each is "
        "a group), DelimiterStreamPartitionConverter (<group>_<number>) or EventBusStreamPartitionConverter "
        "(eventbus_<group>_<six digits>)",
    )
    max_acquired_partitions: int = setting(
        WHOLE,
        -1,
        "maxAcquiredPartitionsPerProxy",
        f"Partitions of one group that this proxy owns at most. {_OFF}",
        minimum=-MAX_INT,
        maximum=MAX_INT,
    )
    max_cached_partitions: int = setting(
        WHOLE,
        -1,
        "maxCachedPartitionsPerProxy",
        f"Partitions of one group that it owns, opens, closes or refuses at most. {_OFF}",
        minimum=-MAX_INT,
        maximum=MAX_INT,
    )
    gaps_allowed: bool = setting(
        FLAG,
        False,
        "server_producer_gaps_allowed",
        "Whether a producer may leave out sequence numbers",
        own=True,
    )
    producers_per_client: int = setting(
        WHOLE,
        10_000,
        "server_producers_per_client",
        f"Producers that one client (one host, or one principal) may begin on one stream. {_OFF}",
        minimum=-MAX_INT,
        maximum=MAX_INT,
        own=True,
    )
    permissions_refresh_ms: int = setting(
        WHOLE,
        10_000,
        "server_permissions_refresh_ms",
        "How old what is known of a stream's access control may be, in milliseconds",
        minimum=100,
        maximum=MAX_INT,
        own=True,
    )


@dataclass(frozen=True)
class ServiceLimitKeys:
    """Limits of the whole proxy"""

    bps_soft_service: int = setting(
        WHOLE, 0, "bpsSoftServiceLimit", f"Payload bytes a second above which requests are counted. {_OFF}"
    )
    bps_hard_service: int = setting(
        WHOLE, 0, "bpsHardServiceLimit", f"Payload bytes a second above which writes are refused. {_OFF}"
    )
    rps_soft_service: int = setting(
        WHOLE, 0, "rpsSoftServiceLimit", f"Writes a second above which they are counted. {_OFF}"
    )
    rps_hard_service: int = setting(
        WHOLE, 0, "rpsHardServiceLimit", f"Writes a second above which they are refused. {_OFF}"
    )
    rps_acquire: int = setting(
        WHOLE,
        0,
        "rpsStreamAcquireServiceLimit",
        f"Writes a second, over the last minute, above which no other stream is taken. {_OFF}",
    )
    bps_acquire: int = setting(
        WHOLE,
        0,
        "bpsStreamAcquireServiceLimit",
        f"Payload bytes a second, over the last minute, above which no other stream is taken. {_OFF}",
    )
    dark_mode: bool = setting(
        FLAG,
        False,
        "server_limits_dark_mode",
        "Whether what is over a hard limit is only counted, as for soft ones: to try a limit out",
        own=True,
    )


@dataclass(frozen=True)
class StreamLimitKeys:
    """Limits of each stream"""

    bps_soft_write: int = setting(
        WHOLE, 0, "bpsSoftWriteLimit", f"Payload bytes a second above which the stream's writes are counted. {_OFF}"
    )
    bps_hard_write: int = setting(
        WHOLE, 0, "bpsHardWriteLimit", f"Payload bytes a second above which the stream's writes are refused. {_OFF}"
    )
    rps_soft_write: int = setting(
        WHOLE, 0, "rpsSoftWriteLimit", f"Writes a second above which the stream's are counted. {_OFF}"
    )
    rps_hard_write: int = setting(
        WHOLE, 0, "rpsHardWriteLimit", f"Writes a second above which the stream's are refused. {_OFF}"
    )


@dataclass(frozen=True)
class BoundKeys:
    """Bounds of memory and work"""

    max_streams: int = setting(
        WHOLE,
        10_000,
        "server_max_streams",
        "Streams that are owned, opened, closed or refused at most; others are refused with 524",
        minimum=1,
        maximum=MAX_INT,
        own=True,
    )
    max_opening: int = setting(
        WHOLE,
        64,
        "server_max_streams_opening",
        "Streams that are opened at the same time; others wait for their turn",
        minimum=1,
        maximum=10_000,
        own=True,
    )
    max_bytes_under_way: int = setting(
        WHOLE,
        256 * _MIB,
        "server_max_bytes_under_way",
        "Payload bytes that all clients together have under way; more are refused with 517. One request is taken "
        "always",
        minimum=1,
        maximum=MAX_LONG,
        own=True,
    )
    max_stream_requests: int = setting(
        WHOLE,
        50_000,
        "server_max_stream_requests_under_way",
        "Requests under way on one stream; more are refused with 517",
        minimum=1,
        maximum=MAX_INT,
        own=True,
    )
    entries_under_way: int = setting(
        WHOLE,
        4,
        "server_entries_under_way",
        "Entries of a stream that are sent without waiting for answers; what comes then is collected into larger "
        "entries",
        minimum=1,
        maximum=10_000,
        own=True,
    )
    append_window_bytes: int = setting(
        WHOLE,
        4 * _MIB,
        "server_append_window_bytes",
        "Bytes of requests that one connection may have under way before it is read no further",
        minimum=65_536,
        maximum=32 * _MIB - 1,
        own=True,
    )
    max_connections: int = setting(
        WHOLE,
        CONNECTIONS,
        "server_max_connections",
        "Connections at most, of each binding",
        minimum=1,
        maximum=MAX_INT,
        own=True,
    )


@dataclass(frozen=True)
class LifeKeys:
    """Keep-alive, shutdown, statistics"""

    keep_alive_ms: int = setting(
        WHOLE,
        KEEPALIVE_MS,
        "server_keep_alive_ms",
        "The proxy pings a gRPC client from which nothing has come for so long, in milliseconds. How often clients may "
        "ping it does not depend on this: docs/serving/bindings.md#grpc",
        minimum=1000,
        maximum=MAX_INT,
        own=True,
    )
    idle_timeout_ms: int = setting(
        WHOLE,
        IDLE_MS,
        "server_idle_timeout_ms",
        "A connection for frames on which nothing was asked for so long, in milliseconds, is closed",
        minimum=1000,
        maximum=MAX_INT,
        own=True,
    )
    graceful_shutdown_ms: int = setting(
        WHOLE,
        0,
        "server_graceful_shutdown_period_ms",
        "How long the proxy still answers where its streams have gone, in milliseconds, before it stops",
        minimum=0,
        maximum=MAX_INT,
    )
    shutdown_timeout_ms: int = setting(
        WHOLE,
        300_000,
        "server_shutdown_timeout_ms",
        "How long a shutdown waits for all streams to be handed over or closed, in milliseconds",
        minimum=1,
        maximum=MAX_INT,
        own=True,
    )
    per_stream_statistics: bool = setting(
        FLAG,
        True,
        "server_enable_perstream_stat",
        "Whether the proxy has metrics of each stream; the log library's are enablePerStreamStat's",
    )


GROUPS: Final = (
    AddressKeys,
    StreamKeys,
    ServiceLimitKeys,
    StreamLimitKeys,
    BoundKeys,
    FollowKeys,
    LifeKeys,
    AccessKeys,
)
"""In the order of the page."""


@dataclass(frozen=True)
class WriteProxySettings(
    AccessKeys, LifeKeys, FollowKeys, BoundKeys, StreamLimitKeys, ServiceLimitKeys, StreamKeys, AddressKeys
):
    """What may be set of a write proxy, and to what is it set? Frozen: `with_values` gives a changed copy.

    Raises SettingsError for values that cannot be honoured.
    """

    security: ProxySecurity = field(default_factory=ProxySecurity)
    """Whom it takes, and what it shows other proxies."""

    def __post_init__(self) -> None:
        REGISTRY.check(self)
        self.converter()
        self.region_number()
        self.super_subjects()

    @classmethod
    def from_mapping(cls, values: Mapping[str, Value], base: WriteProxySettings | None = None) -> WriteProxySettings:
        """Return settings by upstream's keys (`{"server_port": 8000}`), over `base` or the defaults.

        Raises SettingsError.
        """
        read = REGISTRY.read_all(values)
        over = base if base is not None else cls()
        return replace(over, **read.get(cls, {}), security=over.security.changed(read))  # type: ignore[arg-type]

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str]) -> WriteProxySettings:
        """Return the settings of a Java properties file. Raises SettingsError, also for a file that cannot be read."""
        return cls.from_mapping(read_properties(path, SettingsError, named_by="--conf"))

    def with_values(self, values: Mapping[str, Value]) -> WriteProxySettings:
        """Return a copy with some keys changed."""
        return self.from_mapping(values, self)

    def for_stream(self, values: Mapping[str, Value]) -> WriteProxySettings:
        """Return a copy with one stream's own limits. Raises SettingsError for keys that hold for the whole proxy."""
        own = {info.key for info in settings_of(StreamLimitKeys).values()}
        for key in values:
            REGISTRY.find(key)
            if key not in own:
                raise SettingsError(f"{key} holds for the whole proxy", advice="Set it in the proxy's own file")
        return self.with_values(values)

    def follow_rules(self) -> FollowRules:
        """Return when a log follows its writers to another region."""
        return FollowRules(self.follow_percent, self.follow_windows, self.follow_least, float(self.follow_stay_s))

    def converter(self) -> StreamConverter:
        """Return the function from a stream to its group and partition. Raises SettingsError for an unknown class."""
        return stream_converter(self.converter_class, "stream_partition_converter_class")

    def region_number(self) -> int | None:
        """Return the region as segments carry it; None for LOCAL. Raises SettingsError."""
        if self.region.upper() == _LOCAL_REGION:
            return None
        try:
            number = int(self.region)
            check_region_id(number)
        except (ValueError, CallerError):
            raise SettingsError(
                f"server_region_id={self.region} is neither LOCAL nor a number from 0 to 15",
                advice="Give the number by which segments name the region",
            ) from None
        return number


_ONE_LOOP: Final = "one event loop does all the work; more processor cores are used by more proxies"
_ONE_FORM: Final = "a position travels in the one form that docs/reference/serving.md describes"
WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "server_dlsn_version": _ONE_FORM,
    "server_threads": _ONE_LOOP,
    "server_mode": "a proxy always writes to storage nodes",
    "server_use_hostname_as_allocator_pool_name": "ledgerAllocatorPoolName of the log library names the pool",
    "server_resource_placement_refresh_interval_sec": "loads are computed every two minutes, as upstream's default",
}
"""Upstream's keys that mean nothing here, and why: a proxy's file may have them, nothing else."""

REGISTRY: Final = Registry(
    [WriteProxySettings, *SECURITY_CLASSES], SettingsError, page=PAGE, refused={**WITHOUT_MEANING, **SECURITY_ELSEWHERE}
)


# ---------------------------------------------------------------------- where they come from


@dataclass(frozen=True, slots=True)
class ProxyConfiguration:
    """The settings of a proxy, and those of the logs that it writes."""

    proxy: WriteProxySettings
    logs: Settings


def is_of_proxy(key: str) -> bool:
    """Return whether a key is a write proxy's, known or not; else it is the log library's."""
    return key in REGISTRY or key in WITHOUT_MEANING or key.startswith(_OWN_PREFIX)


def read_configuration(
    conf: str | os.PathLike[str] | None = None,
    given: Mapping[str, Value] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ProxyConfiguration:
    """Return the configuration from a file, the environment (the process's, unless given) and what is given by option.

    `lockTimeoutSeconds` is 0 whatever a file says: a client that comes to the wrong proxy is sent on at once.

    Raises SettingsError for a file that cannot be read, and for a key or value that cannot be honoured.
    """
    environment = os.environ if environment is None else environment
    file = conf if conf is not None else environment.get(FILE_VARIABLE)
    from_file: Mapping[str, Value] = {}
    if file:
        from_file = read_properties(file, SettingsError, named_by=f"--conf, or environment variable {FILE_VARIABLE}")
        from_file = _with_meaning(from_file, local_path(file, SettingsError))
    proxy, logs = _split(from_file)
    variables = {
        name: value
        for name, value in environment.items()
        if name.startswith(VARIABLE_PREFIX) and is_of_proxy(name[len(VARIABLE_PREFIX) :])
    }
    proxy |= {name[len(VARIABLE_PREFIX) :]: value for name, value in variables.items()}
    others = {name: value for name, value in environment.items() if name not in variables and name != FILE_VARIABLE}
    by_option = _split(given or {})
    settings = Settings.from_environment(others, Settings.from_mapping(logs)).with_values(by_option[1])
    own = WriteProxySettings.from_mapping(proxy | by_option[0])
    # One switch for the whole process: what it asks of storage nodes is secured as what is asked of it.
    return ProxyConfiguration(own, settings.with_values({_LOCK_TIMEOUT: 0, **own.security.for_namespace}))


def _with_meaning(values: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return what a file says, without keys of upstream's that do nothing here: each is warned of, with its line. Keys
    of security stay, and are refused with the others that cannot be honoured."""
    reasons = {
        key: reason
        for key in values
        if key not in PROTECTING_KEYS
        and (reason := (REGISTRY if is_of_proxy(key) else LOG_REGISTRY).reason_against(key)) is not None
    }
    lines = lines_of(read_if_exists(path) or b"") if reasons else {}
    for key, reason in reasons.items():
        where = f"{path}, line {lines[key]}" if key in lines else str(path)
        _LOG.warning("%s: the setting %s has no effect here and is ignored: %s", where, key, reason)
    return {key: value for key, value in values.items() if key not in reasons}


def _split(values: Mapping[str, Value]) -> _Split:
    proxy = {key: value for key, value in values.items() if is_of_proxy(key)}
    return proxy, {key: value for key, value in values.items() if key not in proxy}


def with_stream_files(configuration: ProxyConfiguration, directory: Path) -> ProxyConfiguration:
    """Return the same, with the streams' dynamic settings in `directory` (`streamConfigDirectory`)."""
    logs = configuration.logs.with_values({"streamConfigDirectory": str(directory)})
    return ProxyConfiguration(configuration.proxy, logs)
