"""`OnePerRegistry`: a collector that is registered once in each Prometheus registry, whoever asks for it first."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from metadata.foundation.errors import CallerError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

_T = TypeVar("_T", bound="Collector")


class OnePerRegistry(Generic[_T]):
    """The collectors that `make` makes, by registry; a registry that is gone takes its own along."""

    def __init__(self, make: Callable[[], _T], taker: str) -> None:
        """`taker`: what can be given another registry, for the error."""
        self._make = make
        self._taker = taker
        self._found: weakref.WeakKeyDictionary[CollectorRegistry, _T] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, registry: CollectorRegistry) -> _T:
        """The one of `registry`, registered there; from any thread. Raises CallerError where its names are taken."""
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
