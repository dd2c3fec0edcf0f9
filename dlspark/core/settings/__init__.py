"""Settings of namespaces, logs, writers and readers: upstream's keys."""

from dlspark.core.settings.keys import SettingInfo, Value
from dlspark.core.settings.live import LiveSettings
from dlspark.core.settings.registry import describe_settings
from dlspark.core.settings.settings import Settings

__all__ = ["LiveSettings", "SettingInfo", "Settings", "Value", "describe_settings"]
