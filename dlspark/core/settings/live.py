"""`LiveSettings`: the settings of one open log, which dynamic settings change while it is open."""

from __future__ import annotations

from collections.abc import Callable

from dlspark.core.settings.settings import Settings


class LiveSettings:
    """What holds now. Whoever keeps a copy of `current` listens for changes; nobody pays for them per record."""

    def __init__(self, settings: Settings, on_close: Callable[[], None] | None = None) -> None:
        self.current = settings
        self._listeners: list[Callable[[Settings], None]] = []
        self._on_close = on_close

    def listen(self, listener: Callable[[Settings], None]) -> None:
        """Call `listener` with the new settings after each change, until `close`."""
        self._listeners.append(listener)

    def change(self, settings: Settings) -> bool:
        """Let other settings hold from now on; False if they are the same."""
        if settings == self.current:
            return False
        self.current = settings
        for listener in list(self._listeners):
            listener(settings)
        return True

    def close(self) -> None:
        """No change is made known any more. Idempotent."""
        self._listeners.clear()
        closing, self._on_close = self._on_close, None
        if closing is not None:
            closing()
