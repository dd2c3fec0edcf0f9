"""Settings for operators: what changes while logs are open, what is measured, warned of and traced."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.log_setting import setting
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
