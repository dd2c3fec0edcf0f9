"""dlspark: Apache DistributedLog in Python, as a Spark-native connector."""

from dlspark.version import __version__

__all__ = ["__version__"]
