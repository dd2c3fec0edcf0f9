"""dlspark: Apache DistributedLog in Python, as a Spark-native connector.

The names below are imported when they are first used, so that `import dlspark` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dlspark.shadowed_packages import check_not_shadowed
from dlspark.version import __version__

check_not_shadowed()

if TYPE_CHECKING:
    from dlspark import errors
    from dlspark.core.append_stream import AsyncAppendReader, AsyncAppendStream
    from dlspark.core.codec.dlsn import DLSN, DLSNRange
    from dlspark.core.codec.records import LogRecord
    from dlspark.core.dynamic.features import SettableFeatures
    from dlspark.core.log import AsyncLog
    from dlspark.core.metrics.registries import NO_STATISTICS, Statistics, serve_metrics
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.core.reading.locked_reader import AsyncLockedReader
    from dlspark.core.reading.reader import AsyncLogReader
    from dlspark.core.runtime import Runtime
    from dlspark.core.settings.settings import Settings
    from dlspark.core.sync.log import Log
    from dlspark.core.sync.namespace import Namespace
    from dlspark.core.sync.readers import AppendReader, AppendStream, LockedReader, LogReader
    from dlspark.core.sync.writer import LogWriter, PendingWrite
    from dlspark.core.writing.writer import AsyncLogWriter
    from dlspark.serving.client.client import AsyncClient
    from dlspark.serving.client.sync import Client
    from metadata.distributedlog.permissions import Permissions

_PLACES = {
    "AppendReader": "dlspark.core.sync.readers",
    "AppendStream": "dlspark.core.sync.readers",
    "AsyncAppendReader": "dlspark.core.append_stream",
    "AsyncAppendStream": "dlspark.core.append_stream",
    "AsyncClient": "dlspark.serving.client.client",
    "AsyncLockedReader": "dlspark.core.reading.locked_reader",
    "AsyncLog": "dlspark.core.log",
    "AsyncLogReader": "dlspark.core.reading.reader",
    "AsyncLogWriter": "dlspark.core.writing.writer",
    "AsyncNamespace": "dlspark.core.namespace",
    "Client": "dlspark.serving.client.sync",
    "DLSN": "dlspark.core.codec.dlsn",
    "DLSNRange": "dlspark.core.codec.dlsn",
    "LockedReader": "dlspark.core.sync.readers",
    "Log": "dlspark.core.sync.log",
    "LogReader": "dlspark.core.sync.readers",
    "LogRecord": "dlspark.core.codec.records",
    "LogWriter": "dlspark.core.sync.writer",
    "NO_STATISTICS": "dlspark.core.metrics.registries",
    "Namespace": "dlspark.core.sync.namespace",
    "PendingWrite": "dlspark.core.sync.writer",
    "Permissions": "metadata.distributedlog.permissions",
    "Runtime": "dlspark.core.runtime",
    "SettableFeatures": "dlspark.core.dynamic.features",
    "Settings": "dlspark.core.settings.settings",
    "Statistics": "dlspark.core.metrics.registries",
    "errors": "dlspark.errors",
    "serve_metrics": "dlspark.core.metrics.registries",
}

__all__ = [
    "AppendReader",
    "AppendStream",
    "AsyncAppendReader",
    "AsyncAppendStream",
    "AsyncClient",
    "AsyncLockedReader",
    "AsyncLog",
    "AsyncLogReader",
    "AsyncLogWriter",
    "AsyncNamespace",
    "Client",
    "DLSN",
    "DLSNRange",
    "LockedReader",
    "Log",
    "LogReader",
    "LogRecord",
    "LogWriter",
    "NO_STATISTICS",
    "Namespace",
    "PendingWrite",
    "Permissions",
    "Runtime",
    "SettableFeatures",
    "Settings",
    "Statistics",
    "__version__",
    "errors",
    "serve_metrics",
]


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(place)
    if name == "AsyncNamespace":
        importlib.import_module("dlspark.core.log")  # what it opens: a running loop would stand still for that
    value = module if name == "errors" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
