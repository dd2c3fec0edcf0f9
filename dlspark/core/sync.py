"""The synchronous classes: the asynchronous ones of the same names, driven from the background event loop.

`Namespace`, `Log`, `LogWriter` and `LogReader` may be used from any thread, though each object by one at a time. What
each method does and raises is said at its asynchronous twin; here stands only what differs.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import ParamSpec, TypeVar

from dlspark.core import binding as bindings
from dlspark.core.display.inquiries import OVERVIEW_S, shown
from dlspark.core.display.objects import Overview
from dlspark.core.dynamic.features import FeatureProvider
from dlspark.core.metrics import Statistics
from dlspark.core.namespace import AsyncNamespace
from dlspark.core.runtime import Runtime
from dlspark.core.services import LOCAL_REGION_ID
from dlspark.core.settings import Settings, Value
from dlspark.core.sync_log import Log
from dlspark.core.sync_readers import LogReader
from dlspark.core.sync_writer import LogWriter, PendingWrite
from metadata.log_watch import LogChange
from metadata.namespaces import Binding, NamespaceUri
from metadata.permissions import Action, Permissions, PermissionStore

__all__ = ["Log", "LogReader", "LogWriter", "Namespace", "PendingWrite"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _blocking(function: Callable[_P, Coroutine[object, object, _T]]) -> Callable[_P, _T]:
    """`function` on the process's runtime."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return Runtime.shared().run(function(*args, **kwargs))

    return call


class Namespace:
    """A namespace of logs, synchronously. Use it as a context manager, or call `close`."""

    def __init__(self, runtime: Runtime, inner: AsyncNamespace) -> None:
        """Used by `open`."""
        self._runtime = runtime
        self._inner = inner
        self._forget = runtime.on_close(inner.close)

    @classmethod
    def open(
        cls,
        uri: str | None = None,
        settings: Settings | Mapping[str, Value] | None = None,
        *,
        features: FeatureProvider | None = None,
        region_id: int = LOCAL_REGION_ID,
        statistics: Statistics | None = None,
        runtime: Runtime | None = None,
    ) -> Namespace:
        """Connect to `distributedlog://host:port/path`, or to the namespace that `DLSPARK_URI` names, or to the sandbox
        that runs on this machine: see `AsyncNamespace.open`. Without a runtime, the process's shared one is used.

        `features` are asked from the runtime's thread; see `AsyncNamespace.open`.
        """
        runtime = runtime or Runtime.shared()
        opening = AsyncNamespace.open(uri, settings, features=features, region_id=region_id, statistics=statistics)
        return cls(runtime, runtime.run(opening))

    bind = staticmethod(_blocking(bindings.bind))
    find_binding = staticmethod(_blocking(bindings.find_binding))
    update_binding = staticmethod(_blocking(bindings.update_binding))
    unbind = staticmethod(_blocking(bindings.unbind))

    def __repr__(self) -> str:
        return f"Namespace({str(self.uri)!r})"

    def _repr_html_(self) -> str:
        """Its logs with their sizes and states; asks the metadata store, for five seconds at most, and never raises."""
        return shown(self._runtime, f"namespace {self.uri}", self._inner.overview)

    @property
    def uri(self) -> NamespaceUri:
        return self._inner.uri

    @property
    def binding(self) -> Binding:
        return self._inner.binding

    @property
    def federated(self) -> bool:
        return self._inner.federated

    @property
    def settings(self) -> Settings:
        return self._inner.settings

    @property
    def access_control(self) -> AccessControl:
        return AccessControl(self._runtime, self._inner.access_control)

    def create_log(self, name: str, metadata: bytes = b"") -> None:
        self._runtime.run(self._inner.create_log(name, metadata))

    def log_exists(self, name: str) -> bool:
        return self._runtime.run(self._inner.log_exists(name))

    def logs(self, prefix: str = "", *, recursive: bool = False) -> list[str]:
        return self._runtime.run(self._inner.logs(prefix, recursive=recursive))

    def overview(self, seconds: float = OVERVIEW_S) -> Overview:
        return self._runtime.run(self._inner.overview(seconds))

    def watch_logs(self, prefix: str = "", *, existing: bool = False) -> Iterator[LogChange]:
        """Tell of every log that comes or goes: waits for as long as it takes, until the namespace is closed."""
        changes = self._inner.watch_logs(prefix, existing=existing)

        async def next_change() -> LogChange | None:
            return await anext(changes, None)

        try:
            while (change := self._runtime.run(next_change())) is not None:
                yield change
        finally:
            if not self._runtime.closed:
                self._runtime.run(changes.aclose())

    def rename_log(self, old: str, new: str) -> None:
        self._runtime.run(self._inner.rename_log(old, new))

    def open_log(self, name: str, settings: Mapping[str, Value] | None = None) -> Log:
        return Log(self._runtime, self._runtime.run(self._inner.open_log(name, settings)))

    def delete_log(self, name: str) -> None:
        self._runtime.run(self._inner.delete_log(name))

    def delete_allocator_pool(self, name: str, folder: str | None = None) -> int:
        """Delete a pool of ledgers made in advance; see `AsyncNamespace.delete_allocator_pool`."""
        return self._runtime.run(self._inner.delete_allocator_pool(name, folder))

    def reload_settings(self) -> None:
        """Look at the dynamic settings and feature files now; see `AsyncNamespace.reload_settings`."""
        self._runtime.run(self._inner.reload_settings())

    @property
    def counters(self) -> Counter[str]:
        """How often rare paths were taken (recoveries, retries, lost answers)."""
        return self._inner.counters

    def close(self) -> None:
        """Close everything opened in it. Idempotent; nothing happens once the runtime is closed, which did it."""
        if not self._runtime.closed:
            try:
                self._runtime.run(self._inner.close())
            finally:
                self._forget()

    def __enter__(self) -> Namespace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AccessControl:
    """What may be done with a namespace's logs: see `metadata.permissions.PermissionStore`, method by method."""

    def __init__(self, runtime: Runtime, inner: PermissionStore) -> None:
        """Used by `Namespace.access_control`."""
        self._runtime = runtime
        self._inner = inner

    def get(self, log: str | None = None) -> Permissions | None:
        return self._runtime.run(self._inner.get(log))

    def of(self, log: str) -> Permissions:
        return self._runtime.run(self._inner.of(log))

    def set(self, permissions: Permissions, log: str | None = None) -> None:
        self._runtime.run(self._inner.set(permissions, log))

    def delete(self, log: str) -> bool:
        return self._runtime.run(self._inner.delete(log))

    def logs(self) -> list[str]:
        return self._runtime.run(self._inner.logs())

    def check(self, log: str, *actions: Action) -> None:
        self._runtime.run(self._inner.check(log, *actions))
