"""Settings of namespaces, logs, writers and readers: upstream's keys."""

from dlspark.core.settings.settings import LiveSettings, Settings
from metadata.foundation.settings import Value

__all__ = ["LiveSettings", "Settings", "Value"]
