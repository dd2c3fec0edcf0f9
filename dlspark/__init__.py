"""dlspark: Apache DistributedLog in Python, as a Spark-native connector.

The names below are imported when they are first used, so that `import dlspark` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dlspark.version import __version__

if TYPE_CHECKING:
    from dlspark import errors
    from dlspark.core.dlsn import DLSN
    from dlspark.core.features import SettableFeatures
    from dlspark.core.log import AsyncLog
    from dlspark.core.namespace import AsyncNamespace
    from dlspark.core.reader import AsyncLogReader
    from dlspark.core.records import LogRecord
    from dlspark.core.runtime import Runtime
    from dlspark.core.settings import Settings
    from dlspark.core.sync import Log, LogReader, LogWriter, Namespace
    from dlspark.core.writer import AsyncLogWriter

_PLACES = {
    "AsyncLog": "dlspark.core.log",
    "AsyncLogReader": "dlspark.core.reader",
    "AsyncLogWriter": "dlspark.core.writer",
    "AsyncNamespace": "dlspark.core.namespace",
    "DLSN": "dlspark.core.dlsn",
    "Log": "dlspark.core.sync",
    "LogReader": "dlspark.core.sync",
    "LogRecord": "dlspark.core.records",
    "LogWriter": "dlspark.core.sync",
    "Namespace": "dlspark.core.sync",
    "Runtime": "dlspark.core.runtime",
    "SettableFeatures": "dlspark.core.features",
    "Settings": "dlspark.core.settings",
    "errors": "dlspark.errors",
}

__all__ = [
    "AsyncLog",
    "AsyncLogReader",
    "AsyncLogWriter",
    "AsyncNamespace",
    "DLSN",
    "Log",
    "LogReader",
    "LogRecord",
    "LogWriter",
    "Namespace",
    "Runtime",
    "SettableFeatures",
    "Settings",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(place)
    value = module if name == "errors" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
