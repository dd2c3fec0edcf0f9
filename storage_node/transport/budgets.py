"""Bytes that all connections of a server may hold together."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """Do all connections together hold too much? Nothing is ever refused: a connection that waits must not ask for more
    meanwhile.

    Args:
        limit: bytes.
    """

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def exceeded(self) -> bool:
        """True while all connections together hold more than the limit."""
        return self.used > self.limit

    def change(self, by: int) -> None:
        """Count `by` bytes more (or less) that a connection holds than before."""
        self.used += by
        if by < 0 and self._waiting and self.used <= self.limit // 4 * 3:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when a quarter is free again."""
        self._waiting.append(callback)
