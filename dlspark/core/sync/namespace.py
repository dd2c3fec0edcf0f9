"""The synchronous classes: the asynchronous ones of the same names, driven from the background event loop.

`Namespace`, `Log`, `LogWriter` and `LogReader` may be used from any thread, though each object by one at a time.
By hand is what differs from the asynchronous classes; the rest is made from them (`generation`).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import ParamSpec, TypeVar

from dlspark.core import binding as bindings
from dlspark.core.display.status import Overview, shown
from dlspark.core.dynamic.features import FeatureProvider
from dlspark.core.metrics.registries import Statistics
from dlspark.core.namespace import OVERVIEW_S, AsyncNamespace
from dlspark.core.runtime import Runtime, iterated
from dlspark.core.settings.settings import Settings
from dlspark.core.sync.log import Log
from dlspark.tables.declaration import Declaration
from metadata.distributedlog.bindings import Binding
from metadata.distributedlog.log_watch import LogChange
from metadata.distributedlog.namespaces import NamespaceUri
from metadata.distributedlog.permissions import Action, Permissions, PermissionStore
from metadata.foundation.opened_here import OpenedHere
from metadata.foundation.settings import Value

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _blocking(function: Callable[_P, Coroutine[object, object, _T]]) -> Callable[_P, _T]:
    """Run `function` on the process's runtime."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return Runtime.shared().run(function(*args, **kwargs))

    return call


class Namespace(OpenedHere):
    """Creates, lists, opens, renames and deletes the logs of a namespace.

    Connect with `open`, and use it as a context manager or call `close`, which closes all that was opened in it. It is
    `AsyncNamespace` for programs without an event loop; any thread may use it, one at a time.
    """

    def __init__(self, runtime: Runtime, inner: AsyncNamespace) -> None:
        """Use `open` instead."""
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
        region_id: int | None = None,
        statistics: Statistics | None = None,
        runtime: Runtime | None = None,
    ) -> Namespace:
        """Connect to a namespace: that of `uri`, else of the environment variable `DLSPARK_URI`, else of the sandbox
        that runs on this machine (`dlspark sandbox start`).

        Args:
            uri: `distributedlog://host:port/path`.
            settings: those of the environment (`DLSPARK_CONF`, `DLSPARK_SET_*`) unless given.
            features: asked from the runtime's thread; otherwise as with `AsyncNamespace.open`.
            region_id: as with `AsyncNamespace.open`.
            statistics: where metrics go; to prometheus_client's own registry unless given.
            runtime: the thread that does the work; the process's shared one unless given.

        Raises:
            CallerError: a bad URI or setting, or no namespace is named.
            NotBoundError: no namespace is bound at the path.
            MetadataUnavailableError: ZooKeeper could not be reached.
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
        """Return its logs with their sizes and states; asks the metadata store, for five seconds at most, and never
        raises."""
        return shown(self._runtime, f"namespace {self.uri}", self._inner.overview)

    @property
    def uri(self) -> NamespaceUri:
        """Where the namespace is."""
        return self._inner.uri

    @property
    def access_control(self) -> AccessControl:
        """What may be done with the logs: default entry and entries of single logs.

        Raises CallerError where the namespace's binding has no root for it.
        """
        return AccessControl(self._runtime, self._inner.access_control)

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

    # --- made from dlspark.core.namespace.AsyncNamespace; left out: services, store, ledgers, logs_store

    @property
    def binding(self) -> Binding:
        """The binding of the namespace, as it was when the namespace was opened."""
        return self._inner.binding

    @property
    def federated(self) -> bool:
        """True if its logs are spread over sub-namespaces."""
        return self._inner.federated

    @property
    def settings(self) -> Settings:
        """The namespace's settings; a log's own settings override them."""
        return self._inner.settings

    @property
    def counters(self) -> Counter[str]:
        """How often rare paths were taken (recoveries, retries, lost answers)."""
        return self._inner.counters

    def create_log(self, name: str, metadata: bytes = b"", declaration: Declaration | None = None) -> None:
        """Create a log, with bytes of the application's own; an existing log is left as it is.

        `declaration` is what it declares of its records (`Declaration.of`), made in the same step: there is never a log
        without it. Then a log that is there, even half-made by another client, raises LogExistsError.

        Raises InvalidLogNameError; LogExistsError where another client was faster.
        """
        self._runtime.run(self._inner.create_log(name, metadata, declaration))

    def log_exists(self, name: str) -> bool:
        """Return whether there is a log of this name. Raises InvalidLogNameError, DuplicateLogError."""
        return self._runtime.run(self._inner.log_exists(name))

    def logs(self, prefix: str = "", *, recursive: bool = False) -> list[str]:
        """Return names of the logs, or of those directly below `prefix`. A name with `/` in it shows as its first part.

        With `recursive`: the full names of all logs, at any depth.
        """
        return self._runtime.run(self._inner.logs(prefix, recursive=recursive))

    def overview(self, seconds: float = OVERVIEW_S) -> Overview:
        """Return the first 50 names with their logs' states and sizes, as a table for notebooks.

        It looks for `seconds` at most; logs that it did not reach by then are marked.
        """
        return self._runtime.run(self._inner.overview(seconds))

    def watch_logs(self, prefix: str = "", *, existing: bool = False) -> Iterator[LogChange]:
        """Report every log that comes or goes, by the names that `logs(prefix)` gives, until the namespace is closed
        (or the session, where that was given to `over`).

        With `existing` the logs that exist come first. A log that comes and goes at once may not be reported.
        """
        yield from iterated(self._runtime, self._inner.watch_logs(prefix, existing=existing))

    def rename_log(self, old: str, new: str, client_id: str | None = None) -> None:
        """Give a log another name, in one step, with its permissions. Its readers must be opened again. `client_id`:
        the name under which others see the lock held meanwhile; host and process unless given.

        Raises LogNotFoundError, LogExistsError for a name that is taken, OwnershipAcquireFailedError as `delete_log`,
        LockingError while a reader has it locked, CallerError for a log of several thousand segments: nothing was
        renamed. After an OutcomeUnknownError look which name it has: it has one of the two.
        """
        self._runtime.run(self._inner.rename_log(old, new, client_id))

    def open_log(self, name: str, settings: Mapping[str, Value] | None = None) -> Log:
        """Return a handle on a log, with settings of its own over the namespace's. The log need not exist yet.

        Args:
            name: the log's name below the namespace.
            settings: by their keys; dynamic settings files override them, now and whenever they change.

        Raises:
            InvalidLogNameError: no log can have this name.
            SettingsError: a setting is unknown, ill-typed or contradicts another.
        """
        opened = self._runtime.run(self._inner.open_log(name, settings))
        return Log(self._runtime, opened)

    def reload_settings(self) -> None:
        """Look at the dynamic settings and feature files now, instead of at the end of the interval."""
        self._runtime.run(self._inner.reload_settings())

    def delete_log(self, name: str) -> None:
        """Delete a log with all its segments. After any error it may be called again, and finishes what was begun.

        Raises LogNotFoundError if there is no such log, and OwnershipAcquireFailedError, at once, while another client
        owns it: a writer, a Spark query, a proxy.
        """
        self._runtime.run(self._inner.delete_log(name))

    def delete_allocator_pool(self, name: str, folder: str | None = None) -> int:
        """Delete a pool of ledger allocators with the ledgers that it has ready; returns how many. It may be missing.

        `folder` is `ledgerAllocatorPoolPath` unless given. A process that still uses the pool loses its allocators, and
        no segment. After any error it may be called again. Raises CallerError for a name that a pool cannot have.
        """
        return self._runtime.run(self._inner.delete_allocator_pool(name, folder))

    # --- made up to here


class AccessControl(OpenedHere):
    """The permissions of a namespace's logs: see `PermissionStore`, method by method."""

    def __init__(self, runtime: Runtime, inner: PermissionStore) -> None:
        """Use `Namespace.access_control` instead."""
        self._runtime = runtime
        self._inner = inner

    # --- made from metadata.distributedlog.permissions.PermissionStore; left out: move_ops

    def get(self, log: str | None = None) -> Permissions | None:
        """Return a log's own entry, or the default one; None where there is none."""
        return self._runtime.run(self._inner.get(log))

    def of(self, log: str) -> Permissions:
        """Return what holds for a log: its own entry, else the default one, else everything is allowed."""
        return self._runtime.run(self._inner.of(log))

    def set(self, permissions: Permissions, log: str | None = None) -> None:
        """Set a log's own entry, or the default one, replacing what is there. Safe to repeat."""
        self._runtime.run(self._inner.set(permissions, log))

    def delete(self, log: str) -> bool:
        """Remove a log's own entry, so that the default holds; whether there was one."""
        return self._runtime.run(self._inner.delete(log))

    def logs(self) -> list[str]:
        """Return names of the logs at the first level that have an entry, or nested ones that do."""
        return self._runtime.run(self._inner.logs())

    def check(self, log: str, *actions: Action) -> None:
        """Raise RequestDeniedError if one of `actions` is denied on the log."""
        self._runtime.run(self._inner.check(log, *actions))

    # --- made up to here
