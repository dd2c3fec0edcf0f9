"""What the page of a write proxy shows (`process.page`): what it is, and what each of its streams takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from dlspark.serving.protocol.operations import ProxyStatus


class ShownWriteProxy(Protocol):
    """What is asked of a write proxy, at any time from its making on."""

    @property
    def location(self) -> str:
        """How it names itself."""
        ...

    @property
    def serving(self) -> bool:
        """Whether it answers clients."""
        ...

    @property
    def announced(self) -> bool:
        """Whether it is a member of the serving tier."""
        ...

    @property
    def status(self) -> ProxyStatus:
        """What it takes."""
        ...

    def streams(self) -> Iterable[str]:
        """Return those that it owns."""
        ...

    def traffic(self) -> Mapping[str, int]:
        """Return bytes a second by stream."""
        ...


class WriteProxyView:
    """A write proxy as its page asks for it."""

    def __init__(self, proxy: ShownWriteProxy) -> None:
        self._proxy = proxy

    @property
    def ready(self) -> bool:
        """Whether it serves and takes writes."""
        return self._proxy.serving and self._proxy.status is not ProxyStatus.DOWN

    def state(self) -> Mapping[str, object]:
        """Return its name, what it takes, whether others find it, how many streams it owns."""
        return {
            "location": self._proxy.location,
            "status": self._proxy.status.name,
            "announced": self._proxy.announced,
            "streams": sum(1 for _ in self._proxy.streams()),
        }

    def streams_shown(self) -> Mapping[str, Mapping[str, object]]:
        """Return the bytes a second of each stream."""
        traffic = self._proxy.traffic()
        return {one: {"bytesPerSecond": traffic.get(one, 0)} for one in sorted(self._proxy.streams())}
