"""`StreamTable`: the streams that are on a write proxy, and whether it takes another one.

A stream is in the table from its first request until it is forgotten, also while it is only refused. What others take
in the table is bounded (`server_max_streams`, partition limits), for names come from clients. In the background the
table looks at the access control of the logs that are served (`server_permissions_refresh_ms`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from dlspark.core.namespace import AsyncNamespace
from dlspark.errors import RegionUnavailableError, ServiceUnavailableError, TooManyStreamsError
from dlspark.serving.process.fair_turns import FairTurns
from dlspark.serving.protocol.operations import ProxyStatus
from dlspark.serving.protocol.request_checks import check_stream_length, check_stream_parts
from dlspark.serving.write_proxy.settings import WriteProxySettings
from dlspark.serving.write_proxy.streams.limits import AcquireLimit, LimitValues, PartitionCounts, WriteLimiter
from dlspark.serving.write_proxy.streams.stream import ProxyStream
from dlspark.serving.write_proxy.streams.stream_host import HostedStream, MayCreate, StreamHost
from dlspark.serving.write_proxy.streams.taken_requests import RequestsUnderWay
from metadata.foundation.tasks import end_tasks
from storage_node.transport.turns import Turns

_LOG: Final = logging.getLogger(__name__)

REFRESH_AT_ONCE: Final = 32
"""The number of streams whose access control is looked at together."""
RATE_LIMIT_DISABLED: Final = "service_rate_limit_disabled"
"""The feature that switches all limits off."""
FORMER_SESSIONS: Final = 2
"""Timeouts of a session within which the process that was at this location before has lost its own, beyond doubt."""
STOP_ACCEPT: Final = "region_stop_accept_new_stream"
"""The feature that has no other stream taken."""


class StreamTable:
    """Which streams are on this proxy, and does it take one more?

    Args:
        location: the proxy's name among clients and locks.
        on_fatal: called with the reason where the process has to end.
        stream_settings: returns the settings with a stream's own limits; the proxy's for all, unless given.
    """

    def __init__(
        self,
        namespace: AsyncNamespace,
        settings: WriteProxySettings,
        location: str,
        on_fatal: Callable[[str], None],
        stream_settings: Callable[[str], WriteProxySettings] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.status = ProxyStatus.WRITE_AND_ACCEPT
        self.counts: Counter[str] = Counter()
        """The number of times that limits were passed, by names such as `stream-rps-soft`."""
        self.recent = AcquireLimit(loop.time())
        self.host = StreamHost(
            namespace=namespace,
            location=location,
            settings=settings,
            traffic=RequestsUnderWay(),
            opening=FairTurns(settings.max_opening),
            opening_sets=FairTurns(1),
            turns=Turns(loop.time),
            waited=set(),
            tasks=set(),
            on_owned=self._owned_changed,
            on_removed=self._removed,
            on_fatal=on_fatal,
            former_until_s=loop.time() + FORMER_SESSIONS * namespace.settings.zk_session_timeout_s,
        )
        self._loop = loop
        self._stream_settings = stream_settings
        self._streams: dict[str, ProxyStream] = {}
        self.get = self._streams.get
        """The stream of a name, None where it is not here."""
        self._cached = PartitionCounts(settings.converter())
        self._acquired = PartitionCounts(settings.converter())
        self._refreshing: asyncio.Task[None] | None = None
        features = namespace.services.features
        self._no_limits = features.feature(RATE_LIMIT_DISABLED)
        self._stop_accept = features.feature(STOP_ACCEPT)

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[ProxyStream]:
        """Return all streams as they are now: they may come and go meanwhile."""
        return iter(list(self._streams.values()))

    @property
    def owned(self) -> list[str]:
        """Names of the streams that are served here. May be called from any thread."""
        return [name for name, stream in list(self._streams.items()) if stream.owned]

    def use_settings(self, settings: WriteProxySettings) -> None:
        """Let other limits and time-outs hold; the converter, and how many are opened at a time, stay as they were."""
        self.host.settings = settings
        for name in self._streams:
            self.stream_settings_changed(name)

    def stream_settings_changed(self, name: str) -> None:
        """Ask again for the limits of a stream."""
        stream = self._streams.get(name)
        if stream is not None:
            stream.limiter.use(LimitValues.of_stream(self._settings_of(name)), self._loop.time())

    def _settings_of(self, name: str) -> WriteProxySettings:
        return self._stream_settings(name) if self._stream_settings is not None else self.host.settings

    # ------------------------------------------------------------------ coming and going

    def add(
        self,
        name: str,
        *,
        lock_timeout_s: int = 0,
        create_missing: bool = True,
        may_create: MayCreate | None = None,
    ) -> ProxyStream:
        """Return a stream that is not here; the arguments are those of `ProxyStream`. Raises where it is not taken."""
        self._check_accepts(name)  # before anything of it is kept: names come from clients
        values = LimitValues.of_stream(self._settings_of(name))
        limiter = WriteLimiter("stream", values, self._loop.time(), self.counts)
        stream = ProxyStream(
            name,
            self.host,
            limiter,
            lock_timeout_s=lock_timeout_s,
            create_missing=create_missing,
            may_create=may_create,
        )
        self._streams[name] = stream
        self._cached.add(name)
        if self._refreshing is None and self.host.namespace.services.permissions is not None:
            self._refreshing = self._loop.create_task(self._refresh_permissions())
        return stream

    def _check_accepts(self, name: str) -> None:
        settings = self.host.settings
        if self._stop_accept.is_available():
            raise RegionUnavailableError("this region takes no other streams", log=name, advice="Ask another region")
        if self.status is not ProxyStatus.WRITE_AND_ACCEPT:
            raise ServiceUnavailableError("this proxy takes no other streams", log=name, advice="Ask another proxy")
        check_stream_length(name)
        check_stream_parts(name)
        self.host.namespace.logs_store.validate_name(name)
        if len(self._streams) >= settings.max_streams:
            raise TooManyStreamsError(f"{len(self._streams)} streams are here already", log=name)
        if self.recent.is_over(settings, self._loop.time()):
            self.counts["acquire"] += 1
            if not (settings.dark_mode or self._no_limits.is_available()):
                raise TooManyStreamsError("this proxy is busy with the streams that it has", log=name)
        self._cached.check(name, settings.max_cached_partitions, "cached")
        self._acquired.check(name, settings.max_acquired_partitions, "acquired")

    def _owned_changed(self, name: str, owned: bool) -> None:
        if owned:
            self._acquired.add(name)
        else:
            self._acquired.discard(name)

    def _removed(self, stream: HostedStream) -> None:
        self.host.waited.discard(stream)
        # Not where the name has begun anew meanwhile: the newer stream is another one.
        if self._streams.get(stream.name) is stream:
            del self._streams[stream.name]
            self._cached.discard(stream.name)

    # ------------------------------------------------------------------ access control

    async def _refresh_permissions(self) -> None:
        while True:
            await asyncio.sleep(self.host.settings.permissions_refresh_ms / 1000)
            owned = [stream for stream in self if stream.owned]
            for at in range(0, len(owned), REFRESH_AT_ONCE):
                looks = [stream.refresh_permissions() for stream in owned[at : at + REFRESH_AT_ONCE]]
                failures = [one for one in await asyncio.gather(*looks, return_exceptions=True) if one is not None]
                if failures:
                    _LOG.warning("access control could not be looked at, it stays as it was: %s", failures[0])

    async def close(self) -> None:
        """End what runs in the background, and forget all streams. Idempotent."""
        if self._refreshing is not None:
            await end_tasks([self._refreshing], drop_errors=True)
        await end_tasks(self.host.tasks, drop_errors=True)
        for stream in self:
            stream.forget()
