"""What both stores share on the client's side: the session's state, its listeners, and watches that became void.

A watch does not survive a lost connection, because changes may pass unseen while it is down. It is then void, and says
so once with `EventKind.SESSION`: when the connection is back, or when the session ended, whichever comes first. Whoever
set it must look again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec

from metadata.store import EventKind, SessionListener, SessionState, Watcher, WatchEvent

P = ParamSpec("P")


def call_safely(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a user's callback; its error goes to the loop's exception handler and stops nobody else's callback."""
    try:
        callback(*args, **kwargs)
    except Exception as error:
        context = {"message": f"error in metadata callback {callback!r}", "exception": error}
        try:
            asyncio.get_running_loop().call_exception_handler(context)
        except RuntimeError:
            raise error from None  # outside a loop there is nobody to tell but the caller


class SessionHub:
    """State and listeners of one store's session. `hear` and what it calls run on the store's loop."""

    def __init__(self, state: SessionState, session_id: int = 0) -> None:
        self.state = state
        self.session_id = session_id
        self._listeners: dict[object, SessionListener] = {}
        self._voided: list[tuple[str, Watcher]] = []
        self._lock = threading.Lock()

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
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
        """Enter `state`, tell the listeners, then the void watches. CLOSED is final."""
        if self.state is SessionState.CLOSED:
            self.tell_void()  # watches that learned of the end only after the state did
            return
        changed = state is not self.state or session_id != self.session_id
        self.state, self.session_id = state, session_id
        if changed:
            for listener in list(self._listeners.values()):
                call_safely(listener, state)
        if state is not SessionState.SUSPENDED:
            self.tell_void()

    def tell_void(self) -> None:
        with self._lock:
            voided, self._voided = self._voided, []
        for path, watcher in voided:
            call_safely(watcher, WatchEvent(EventKind.SESSION, path))
