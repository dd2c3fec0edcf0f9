"""Settings of where else settings and feature switches come from, while logs are open."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import number, text


@dataclass(frozen=True)
class ConfigurationKeys:
    """Dynamic settings and features"""

    stream_config_directory: str = text(
        "",
        "streamConfigDirectory",
        "Directory of the files <stream>.conf, whose dynamic settings hold for the stream's logs; empty: none",
        per_log=False,
        own=True,
    )
    stream_config_default: str = text(
        "",
        "streamConfigDefaultPath",
        "File of the dynamic settings that hold for logs whose stream's file does not say otherwise; empty: none",
        per_log=False,
        own=True,
    )
    stream_config_router: str = text(
        "IdentityConfigRouter",
        "streamConfigRouterClass",
        "How a log's name tells its stream: IdentityConfigRouter (it is the stream), DelimiterStreamPartitionConverter "
        "(<stream>_<number>) or EventbusPartitionConfigRouter (eventbus_<stream>_<six digits>)",
        per_log=False,
    )
    dynamic_reload_s: int = number(
        60,
        "dynamicConfigReloadIntervalSec",
        "How often dynamic settings and feature files are looked at, in seconds",
        minimum=1,
        per_log=False,
    )
    feature_provider: str = text(
        "DefaultFeatureProvider",
        "featureProviderClass",
        "Who tells which features are on: DefaultFeatureProvider (all are off) or DynamicConfigurationFeatureProvider "
        "(files do)",
        per_log=False,
    )
    feature_base_path: str = text(
        "decider.conf",
        "fileFeatureProviderBaseConfigPath",
        "Properties file of features and their availability; above 0: on",
        per_log=False,
    )
    feature_overlay_path: str = text(
        "",
        "fileFeatureProviderOverlayConfigPath",
        "Properties file whose features take the place of those of the base file; empty: none",
        per_log=False,
    )
