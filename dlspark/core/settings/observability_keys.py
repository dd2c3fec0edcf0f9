"""Settings of what is measured, warned of and traced."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number


@dataclass(frozen=True)
class ObservabilityKeys:
    """Observability"""

    per_stream_statistics: bool = flag(
        False,
        "enablePerStreamStat",
        "Whether a log has metrics of its own, with the label stream, while it is open",
    )
    metadata_latency_warn_ms: int = number(
        1000,
        "metadataLatencyWarnThresholdMs",
        "A request to the metadata store that takes longer, in milliseconds, is counted and told in the log; 0: never",
        minimum=0,
        per_log=False,
    )
    data_latency_warn_ms: int = number(
        2000,
        "dataLatencyWarnThresholdMs",
        "The same for writing an entry, and for reading one that is there",
        minimum=0,
        dynamic=True,
    )
    trace_delivery_latency: bool = flag(
        False,
        "traceReadAheadDeliveryLatency",
        "Whether the time from fetching an entry to its reader's taking it is measured",
        dynamic=True,
    )
    trace_metadata_changes: bool = flag(
        False,
        "traceReadAheadMetadataChanges",
        "Whether the log tells of each change of a log's segments that a reader sees",
        dynamic=True,
    )
    tracing_enabled: bool = flag(
        False,
        "tracingEnabled",
        "Whether OpenTelemetry gets spans of writes, reads, segments and metadata requests (extra telemetry)",
        per_log=False,
        own=True,
    )
