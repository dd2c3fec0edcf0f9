"""`ReadProxyFigures`: what a read proxy has and has done; and how Prometheus's registries show it.

The proxy's own numbers are its metrics: nothing is counted twice. All names are this project's own, for upstream has no
such process. A registry shows the sums over the read proxies of its process. What a proxy has counted stays in the
sums when it ends, so that counters never go back; what it has now does not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dlspark.core.metrics.catalog import MetricKind
from dlspark.core.metrics.registries import OnePerRegistry, Statistics, family_of, registry_of
from metadata.foundation.settings import markdown_table

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PREFIX: Final = "read_proxy_"


@dataclass(frozen=True, slots=True)
class FigureInfo:
    """The kind and meaning of a figure; its metric has the field's name behind `PREFIX`."""

    kind: MetricKind
    meaning: str


def _figure(kind: MetricKind, meaning: str) -> Any:
    return field(metadata={"info": FigureInfo(kind, meaning)})


_gauge, _count = partial(_figure, "gauge"), partial(_figure, "counter")


@dataclass(frozen=True, slots=True)
class ReadProxyFigures:
    """The figures of a read proxy: what it has now, and what it has done."""

    readers: int = _gauge("Readers that have a session at the proxy")
    waiting: int = _gauge("Readers with a read under way")
    logs: int = _gauge("Logs that are read")
    ring_bytes: int = _gauge("Bytes of the entries that are kept for readers at the ends of their logs")
    catch_up_bytes: int = _gauge("Bytes of the entries that are kept for readers that catch up")
    decoded_bytes: int = _gauge("Bytes of decoded chunks that are kept for other readers of the same form")
    catch_ups: int = _gauge("Places behind the rings that are read now")
    catch_ups_waiting: int = _gauge("Readers that wait for their turn to catch up")
    catch_ups_begun: int = _count("Turns to catch up that were used: each is a read of a log for few")
    entries_read: int = _count("Entries that were read from storage nodes, once for all readers of a feed")
    chunks_decoded: int = _count("Chunks of entries that were made ready for a form")
    chunks_shared: int = _count("Times that a chunk was ready, for another reader had it made")
    redirects: int = _count("Reads of logs that were sent to another read proxy, for this one has its share")
    deliveries: int = _count("Answers with records, and empty ones where nothing came in time")
    delivered_bytes: int = _count("Bytes of the records, entries or Arrow streams in them")


FIGURES: Final[tuple[tuple[str, FigureInfo], ...]] = tuple(
    (item.name, item.metadata["info"]) for item in fields(ReadProxyFigures)
)


def figures_table() -> Iterator[str]:
    """Return the lines of the table in docs/serving/read-proxy.md."""
    rows = ((f"`{PREFIX}{name}{_suffix(info)}`", info.kind, info.meaning) for name, info in FIGURES)
    return iter(markdown_table(("metric", "kind", "meaning"), rows))


def _suffix(info: FigureInfo) -> str:
    return "_total" if info.kind == "counter" else ""


class FiguresCollection:
    """The collector of one registry: the sums over the read proxies of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: list[Callable[[], ReadProxyFigures]] = []
        self._past: Counter[str] = Counter()

    def attach(self, figures: Callable[[], ReadProxyFigures]) -> Callable[[], None]:
        """Show what `figures` says; returns what ends that."""
        with self._lock:
            self._live.append(figures)

        def detach() -> None:
            with self._lock:
                if figures in self._live:
                    self._live.remove(figures)
                    last = figures()
                    self._past.update({name: getattr(last, name) for name, info in FIGURES if info.kind == "counter"})

        return detach

    # ------------------------------------------------------------------ for prometheus_client

    def describe(self) -> Iterator[Metric]:
        """Yield names and kinds: a registry refuses those that it has already."""
        for name, info in FIGURES:
            yield family_of(PREFIX + name, info.meaning, "", info.kind)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with the sums of now."""
        with self._lock:
            found = [figures() for figures in self._live]
            past = dict(self._past)
        for name, info in FIGURES:
            family = family_of(PREFIX + name, info.meaning, "", info.kind)
            total = past.get(name, 0) + sum(getattr(one, name) for one in found)
            family.add_sample(PREFIX + name + _suffix(info), {}, total)
            yield family


_COLLECTIONS: Final = OnePerRegistry(FiguresCollection, "read proxy")


def figures_shown_in(statistics: Statistics, figures: Callable[[], ReadProxyFigures]) -> Callable[[], None]:
    """Show what `figures` says in the registry of `statistics`, where metrics are wanted; returns what ends that.

    Raises CallerError where the registry has other metrics of these names.
    """
    if not statistics.collect:
        return lambda: None
    return _COLLECTIONS.of(registry_of(statistics)).attach(figures)
