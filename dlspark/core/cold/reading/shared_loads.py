"""`SharedLoads`: values that several readers want at about the same time, each loaded once, and some of them kept.

Readers of one segment come to the same row groups one after the other, or together. A value that is being loaded is
loaded for all who want it; one that is there is kept until younger ones need its room. The bound is in bytes of what is
kept; what a reader holds besides is that reader's.

Fault model: a load that fails fails for all that wait for it, and is not kept. A reader that gives up leaves the load
to the others; when the last one has given up, the load is cancelled, so that no task is left (I16).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from metadata.foundation.tasks import end_tasks

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class _Load(Generic[V]):
    task: asyncio.Task[V]
    waiting: int = 0


class SharedLoads(Generic[K, V]):
    """Which values are there, or on their way? For one event loop.

    Args:
        max_bytes: of all values kept; 0 keeps none, and values are still shared while they are loaded.
        size: the bytes of a value.
    """

    def __init__(self, max_bytes: int, size: Callable[[V], int]) -> None:
        self._max_bytes = max_bytes
        self._size = size
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._loads: dict[K, _Load[V]] = {}

    @property
    def bytes(self) -> int:
        """Bytes of what is kept."""
        return self._bytes

    def known(self, key: K) -> V | None:
        """Return the value if it is kept."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    async def get(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """Return the value: the one that is kept, else what `load` gives, or gave another reader meanwhile. Raises what
        the load raised."""
        kept = self.known(key)
        if kept is not None:
            return kept
        loading = self._loads.get(key)
        if loading is None:
            loading = self._loads[key] = _Load(asyncio.get_running_loop().create_task(self._load(key, load)))
        loading.waiting += 1
        try:
            # Shielded: this reader may be cancelled, and the others still want it.
            return await asyncio.shield(loading.task)
        finally:
            loading.waiting -= 1
            if not loading.waiting and not loading.task.done():
                self._loads.pop(key, None)
                loading.task.cancel()

    async def _load(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        try:
            value = await load()
        finally:
            # A load that its last reader gave up was taken out already, and another one may be under the key by now.
            if (found := self._loads.get(key)) is not None and found.task is asyncio.current_task():
                del self._loads[key]
        self._keep(key, value)
        return value

    def _keep(self, key: K, value: V) -> None:
        size = self._size(value)
        if size > self._max_bytes:
            return
        before = self._kept.pop(key, None)
        self._bytes += size - (before[1] if before is not None else 0)
        self._kept[key] = (value, size)
        while self._bytes > self._max_bytes:
            self._bytes -= self._kept.popitem(last=False)[1][1]

    def forget(self) -> None:
        """Drop what is kept."""
        self._kept.clear()
        self._bytes = 0

    async def end_loads(self) -> None:
        """End what is being loaded; who waits for it is cancelled."""
        await end_tasks([loading.task for loading in self._loads.values()], drop_errors=True)

    async def close(self) -> None:
        """Drop what is kept, and end what is being loaded."""
        self.forget()
        await self.end_loads()
