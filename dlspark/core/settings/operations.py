"""Settings for operators: what changes while logs are open, what is measured, warned of and traced.

Two of them name a class of upstream's, and what that is here stands behind them. `streamConfigRouterClass` says which
stream a log is a partition of, because logs of one stream share its dynamic settings file. A converter splits a log's
name into a stream's name and a partition number; applications number partitions in log names by themselves, and each
converter knows one form of such names:

    identity     every log is a stream of its own, in partition 0
    delimiter    `<stream>_<number>`: exactly two parts at the delimiter; other names are streams of their own
    event bus    `eventbus_<stream>_<six digits>`, also with `__dark_` before it; other names are streams of their own

`featureProviderClass` says whether feature switches are read from files (`dlspark.core.dynamic.features`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from dlspark.core.settings.log_setting import setting
from dlspark.errors import SettingsError
from metadata.foundation.settings import FLAG, TEXT, WHOLE


@dataclass(frozen=True)
class ConfigurationKeys:
    """Dynamic settings and features"""

    stream_config_directory: str = setting(
        TEXT,
        "",
        "streamConfigDirectory",
        "Directory of the files <stream>.conf, whose dynamic settings hold for the stream's logs; empty: none",
        per_log=False,
        own=True,
    )
    stream_config_default: str = setting(
        TEXT,
        "",
        "streamConfigDefaultPath",
        "File of dynamic settings for all logs, unless the file of a log's stream says otherwise; empty: none",
        per_log=False,
        own=True,
    )
    stream_config_router: str = setting(
        TEXT,
        "IdentityConfigRouter",
        "streamConfigRouterClass",
        "How a log's name gives its stream: IdentityConfigRouter (it is the stream), DelimiterStreamPartitionConverter "
        "(<stream>_<number>) or EventbusPartitionConfigRouter (eventbus_<stream>_<six digits>)",
        per_log=False,
    )
    dynamic_reload_s: int = setting(
        WHOLE,
        60,
        "dynamicConfigReloadIntervalSec",
        "Seconds between two checks of the files of dynamic settings and features",
        minimum=1,
        per_log=False,
    )
    feature_provider: str = setting(
        TEXT,
        "DefaultFeatureProvider",
        "featureProviderClass",
        "What decides which features are on: DefaultFeatureProvider (all are off) or "
        "DynamicConfigurationFeatureProvider (files do)",
        per_log=False,
    )
    feature_base_path: str = setting(
        TEXT,
        "decider.conf",
        "fileFeatureProviderBaseConfigPath",
        "Properties file of features and their availability; above 0: on",
        per_log=False,
    )
    feature_overlay_path: str = setting(
        TEXT,
        "",
        "fileFeatureProviderOverlayConfigPath",
        "Properties file whose features take the place of those of the base file; empty: none",
        per_log=False,
    )


@dataclass(frozen=True)
class ObservabilityKeys:
    """Observability"""

    per_stream_statistics: bool = setting(
        FLAG,
        False,
        "enablePerStreamStat",
        "Whether a log has metrics of its own, with the label stream, while it is open",
    )
    metadata_latency_warn_ms: int = setting(
        WHOLE,
        1000,
        "metadataLatencyWarnThresholdMs",
        "A request to the metadata store that takes longer, in milliseconds, is counted and logged; 0: never",
        minimum=0,
        per_log=False,
    )
    data_latency_warn_ms: int = setting(
        WHOLE,
        2000,
        "dataLatencyWarnThresholdMs",
        "The same for writing an entry, and for reading an entry that exists",
        minimum=0,
        dynamic=True,
    )
    trace_delivery_latency: bool = setting(
        FLAG,
        False,
        "traceReadAheadDeliveryLatency",
        "Whether the time from fetching an entry until its reader takes it is measured",
        dynamic=True,
    )
    trace_metadata_changes: bool = setting(
        FLAG,
        False,
        "traceReadAheadMetadataChanges",
        "Whether each change of a log's segments that a reader sees is logged",
        dynamic=True,
    )
    tracing_enabled: bool = setting(
        FLAG,
        False,
        "tracingEnabled",
        "Whether OpenTelemetry gets spans of writes, reads, segments and metadata requests (extra telemetry)",
        per_log=False,
        own=True,
    )


# ------------------------------------------------------------------ which stream a log belongs to


@dataclass(frozen=True, slots=True)
class StreamPartition:
    """One partition of a stream. `str` gives it as people know it: `<stream>_<six digits>`."""

    stream: str
    partition: int

    def __str__(self) -> str:
        return f"{self.stream}_{self.partition:06d}"


StreamConverter: TypeAlias = Callable[[str], StreamPartition]

_EVENT_BUS: Final = re.compile(r"(?:__dark_)?eventbus_(.+)_([0-9]{6})")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")


def _identity(log: str) -> StreamPartition:
    """Return the log as a stream of its own, in partition 0."""
    return StreamPartition(log, 0)


def _delimited(log: str, delimiter: str = "_") -> StreamPartition:
    """Return the log as `<stream>_<number>`, the number one of 32 bits; other names as streams of their own."""
    parts = [part for part in log.split(delimiter) if part]
    if len(parts) == 2 and _NUMBER.fullmatch(parts[1]) and -(2**31) <= int(parts[1]) < 2**31:
        return StreamPartition(parts[0], int(parts[1]))
    return _identity(log)


def _event_bus(log: str) -> StreamPartition:
    """Return the log as `eventbus_<stream>_<six digits>`, also behind `__dark_`; other names as streams of their
    own."""
    found = _EVENT_BUS.fullmatch(log)
    return StreamPartition(found[1], int(found[2])) if found else _identity(log)


_CONVERTERS: Final[Mapping[str, StreamConverter]] = {
    "IdentityConfigRouter": _identity,
    "IdentityStreamPartitionConverter": _identity,
    "DelimiterStreamPartitionConverter": _delimited,
    "EventbusPartitionConfigRouter": _event_bus,
    "EventBusStreamPartitionConverter": _event_bus,
}
"""By upstream's class names, without their packages."""


def stream_converter(class_name: str, key: str) -> StreamConverter:
    """Return the converter of one of upstream's class names, with or without its package.

    Raises SettingsError, saying that `key` was wrong.
    """
    converter = _CONVERTERS.get(class_name.rpartition(".")[2])
    if converter is None:
        raise SettingsError(f"{key}={class_name} is not known here", advice=f"Known are {', '.join(_CONVERTERS)}")
    return converter


# ------------------------------------------------------------------ where feature switches come from


ProviderKind: TypeAlias = Literal["none", "files"]
_PROVIDERS: Final[Mapping[str, ProviderKind]] = {
    "DefaultFeatureProvider": "none",
    "DynamicConfigurationFeatureProvider": "files",
}
"""By upstream's class names, without their packages."""


def provider_kind(class_name: str) -> ProviderKind:
    """Return what one of upstream's provider classes, with or without its package, is here. Raises SettingsError."""
    kind = _PROVIDERS.get(class_name.rpartition(".")[2])
    if kind is None:
        raise SettingsError(
            f"featureProviderClass={class_name} is not known here",
            advice=f"Known are {', '.join(_PROVIDERS)}; a provider of your own is given on opening the namespace",
        )
    return kind
