"""`Collection`: what one Prometheus registry shows: the sums over all namespaces of this process that count for it.

A registry has one collection, which its first namespace registers (`OnePerRegistry`): a second namespace in the process
joins it instead of registering the same names again. What closed namespaces and logs have counted stays in the sums, so
that counters never go back. A log's own series (label `stream`) end with it, and go on in those without the label.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dlspark.core.metrics.catalog import METRICS, Measures, MetricInfo

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector


_T = TypeVar("_T", bound="Collector")


class OnePerRegistry(Generic[_T]):
    """The collectors that `make` makes, one for each registry; kept as long as the registry lives."""

    def __init__(self, make: Callable[[], _T], taker: str) -> None:
        """`taker`: what can be given another registry, in words for the error's advice."""
        self._make = make
        self._taker = taker
        self._found: weakref.WeakKeyDictionary[CollectorRegistry, _T] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, registry: CollectorRegistry) -> _T:
        """The collector of `registry`, registered there; from any thread. Raises CallerError where names are taken."""
        with self._lock:
            found = self._found.get(registry)
            if found is None:
                found = self._make()
                try:
                    registry.register(found)
                except ValueError as error:
                    raise CallerError(
                        f"the registry has metrics of dlspark's names already: {error}",
                        advice=f"Give the {self._taker} a registry of its own: "
                        "statistics=Statistics(CollectorRegistry())",
                    ) from error
                self._found[registry] = found
            return found


@dataclass(eq=False, slots=True)
class Scopes:
    """What one namespace counts in: cells of its own, and cells for each log that has `enablePerStreamStat`."""

    root: Measures = field(default_factory=Measures)
    logs: dict[str, Measures] = field(default_factory=dict)

    def end_log(self, name: str) -> None:
        """End a log's own series; what they have counted goes to the namespace's."""
        self.root.keep(self.logs.pop(name))


class Collection:
    """The collector of one registry. `attach` and `detach` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: list[Scopes] = []
        self._ended: deque[Scopes] = deque()
        self._past = Measures()

    def attach(self, scopes: Scopes) -> None:
        """Show what is counted there, until `detach`."""
        with self._lock:
            self._live.append(scopes)

    def detach(self, scopes: Scopes) -> None:
        """Called when nothing more is counted there. Takes no lock: the garbage collector may call it at any point."""
        self._ended.append(scopes)

    def _settle(self) -> None:
        """Move what has ended from the living to the past. Under the lock."""
        while self._ended:
            scopes = self._ended.popleft()
            self._live = [one for one in self._live if one is not scopes]
            for measures in (scopes.root, *scopes.logs.values()):
                self._past.keep(measures)

    # ------------------------------------------------------------------ for prometheus_client

    def describe(self) -> Iterator[Metric]:
        """Names and kinds: a registry refuses those that it has already."""
        for _, info in METRICS:
            yield _family(info)

    def collect(self) -> Iterator[Metric]:
        """All metrics with the sums of now; called by the registry, from any thread."""
        with self._lock:
            self._settle()
            scopes: dict[str | None, list[Measures]] = {None: [self._past]}
            for one in self._live:
                scopes[None].append(one.root)
                for log, measures in dict(one.logs).items():
                    scopes.setdefault(log, []).append(measures)
            families = [_filled(name, info, scopes) for name, info in METRICS]
        yield from families


def _family(info: MetricInfo) -> Metric:
    from prometheus_client.metrics_core import Metric

    return Metric(info.name, f"{info.meaning}{f' ({info.unit})' if info.unit else ''}", info.kind)


def _filled(name: str, info: MetricInfo, scopes: dict[str | None, list[Measures]]) -> Metric:
    family = _family(info)
    for log, several in scopes.items():
        if log is not None and not info.per_log:
            continue
        total = info.make()
        for measures in several:
            total.add(getattr(measures, name))
        stream = {} if log is None else {"stream": log}
        for suffix, labels, value in total.samples():
            family.add_sample(info.name + suffix, {**stream, **labels}, value)
    return family


_COLLECTIONS: Final = OnePerRegistry(Collection, "namespace")


def collection_of(registry: CollectorRegistry) -> Collection:
    """The collection of `registry`, registered there. Raises CallerError where its names are taken."""
    return _COLLECTIONS.of(registry)
