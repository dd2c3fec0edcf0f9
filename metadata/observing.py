"""`RequestObservers`: who wants to know how long a store's requests take. Both stores have one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from metadata.session import call_safely
from metadata.store import RequestObserver


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
        """A block that is one request."""
        return _Request(self, operation, path)

    def tell(self, operation: str, path: str, seconds: float, error: BaseException | None) -> None:
        for observer in self._observers:
            call_safely(observer, operation, path, seconds, error)


class _Request:
    __slots__ = ("_began", "_loop", "_observers", "_operation", "_path")

    def __init__(self, observers: RequestObservers, operation: str, path: str) -> None:
        self._observers = observers
        self._operation = operation
        self._path = path
        self._began = 0.0
        # Kept: the block may end outside of it, where a request that nobody waits for any more is thrown away.
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._began = self._loop.time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = self._loop.time() - self._began
        self._observers.tell(self._operation, self._path, seconds, error)
