"""The client's side of a session, which both stores share.

SessionHub        the session's state, its listeners, and watches that became void
RequestObservers  callbacks that hear how long requests take
SharedWatches     many listeners to the same thing, one watch in the store

A watch does not survive a lost connection, because changes may pass unseen while it is down. It is then void, and says
so once with `EventKind.SESSION`: when the connection is back, or when the session ended, whichever comes first. Its
owner must look again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import ParamSpec

from metadata.store import EventKind, RequestObserver, SessionListener, SessionState, Watcher, WatchEvent

P = ParamSpec("P")


def call_safely(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a user's callback; its error goes to the loop's exception handler and does not stop other callbacks."""
    try:
        callback(*args, **kwargs)
    except Exception as error:
        context = {"message": f"error in metadata callback {callback!r}", "exception": error}
        try:
            asyncio.get_running_loop().call_exception_handler(context)
        except RuntimeError:
            raise error from None  # outside a loop only the caller can hear of it


class SessionHub:
    """State and listeners of one store's session. `hear` and what it calls run on the store's loop."""

    def __init__(self, state: SessionState, session_id: int = 0) -> None:
        self.state = state
        self.session_id = session_id
        self._listeners: dict[object, SessionListener] = {}
        self._voided: list[tuple[str, Watcher]] = []
        self._lock = threading.Lock()

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Call `listener` at each change of state. Returns what ends that."""
        key = object()
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def void(self, path: str, watcher: Watcher) -> None:
        """Remember a watch that the lost connection took along; any thread."""
        with self._lock:
            self._voided.append((path, watcher))

    def hear(self, state: SessionState, session_id: int) -> None:
        """Enter `state`, call the listeners, then the void watches. CLOSED is final."""
        if self.state is SessionState.CLOSED:
            self.tell_void()  # watches that became void only after the state was heard
            return
        changed = state is not self.state or session_id != self.session_id
        self.state, self.session_id = state, session_id
        if changed:
            for listener in list(self._listeners.values()):
                call_safely(listener, state)
        if state is not SessionState.SUSPENDED:
            self.tell_void()

    def tell_void(self) -> None:
        """Fire the watches that became void (`EventKind.SESSION`), each once."""
        with self._lock:
            voided, self._voided = self._voided, []
        for path, watcher in voided:
            call_safely(watcher, WatchEvent(EventKind.SESSION, path))


class RequestObservers:
    """The observers of one store."""

    def __init__(self) -> None:
        self._observers: tuple[RequestObserver, ...] = ()

    def add(self, observer: RequestObserver) -> Callable[[], None]:
        """See `MetadataStore.observe`."""
        self._observers = (*self._observers, observer)

        def forget() -> None:
            self._observers = tuple(one for one in self._observers if one is not observer)

        return forget

    def request(self, operation: str, path: str) -> _Request:
        """Note that the block is one request."""
        return _Request(self, operation, path)

    def notify(self, operation: str, path: str, seconds: float, error: BaseException | None) -> None:
        """Call each observer with a request that has ended; an error of one does not keep it from the others."""
        for observer in self._observers:
            call_safely(observer, operation, path, seconds, error)


class _Request:
    __slots__ = ("_began", "_loop", "_observers", "_operation", "_path")

    def __init__(self, observers: RequestObservers, operation: str, path: str) -> None:
        self._observers = observers
        self._operation = operation
        self._path = path
        self._began = 0.0
        # Kept: the block may end outside of the loop, where an abandoned request is garbage-collected.
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._began = self._loop.time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = self._loop.time() - self._began
        self._observers.notify(self._operation, self._path, seconds, error)


@dataclass(frozen=True, slots=True)
class _SharedWatch:
    """Equal for the same key, so that a store keeps one of them on a path."""

    watches: SharedWatches
    key: str

    def __call__(self, event: WatchEvent) -> None:
        self.watches._heard(self.key, event)


class SharedWatches:
    """Listeners by key. Each hears of the next event, once, as a store's own watchers do.

    A store keeps a watch until it is heard. Without sharing, each listener that comes and goes would leave a watch
    behind on what rarely changes; here the store has one watch for each key, and listeners come and go.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, dict[Watcher, None]] = {}

    def __len__(self) -> int:
        """Return how many listeners wait for an event."""
        return sum(map(len, self._listeners.values()))

    def watch(self, key: str, listener: Watcher) -> Watcher:
        """Return the watch to leave with the store so that `listener` hears of the next event. An equal watch that was
        left before may fire first."""
        self._listeners.setdefault(key, {})[listener] = None
        return _SharedWatch(self, key)

    def leave(self, key: str, listener: Watcher) -> None:
        """Drop this listener; harmless where it was called already, or never listened."""
        listeners = self._listeners.get(key, {})
        listeners.pop(listener, None)
        if not listeners:
            self._listeners.pop(key, None)

    def _heard(self, key: str, event: WatchEvent) -> None:
        for listener in self._listeners.pop(key, {}):
            call_safely(listener, event)
