"""`SharedWatches`: many listeners to the same thing, one watch in the store.

A store keeps a watch until it is heard. Without sharing, whoever listens to what rarely changes and goes again would
leave one behind each time; so here the store knows one watch for each key, and listeners come and go.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.session import call_safely
from metadata.store import Watcher, WatchEvent


@dataclass(frozen=True, slots=True)
class _SharedWatch:
    """Equal for the same key, so that a store keeps one of them on a path."""

    watches: SharedWatches
    key: str

    def __call__(self, event: WatchEvent) -> None:
        self.watches._heard(self.key, event)


class SharedWatches:
    """Listeners by key. Each is told of the next event, once, as a store's own watchers are."""

    def __init__(self) -> None:
        self._listeners: dict[str, dict[Watcher, None]] = {}

    def __len__(self) -> int:
        """Listeners that wait for an event."""
        return sum(map(len, self._listeners.values()))

    def watch(self, key: str, listener: Watcher) -> Watcher:
        """The watch to leave with the store, for `listener` to be told; one that is left already may tell it first."""
        self._listeners.setdefault(key, {})[listener] = None
        return _SharedWatch(self, key)

    def leave(self, key: str, listener: Watcher) -> None:
        """Tell this listener nothing more; it may have been told, or never have listened."""
        listeners = self._listeners.get(key, {})
        listeners.pop(listener, None)
        if not listeners:
            self._listeners.pop(key, None)

    def _heard(self, key: str, event: WatchEvent) -> None:
        for listener in self._listeners.pop(key, {}):
            call_safely(listener, event)
